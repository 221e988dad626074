/* Processes that a test starts: they end with it, whatever ends it, and stand where they are told
 * to. */
#ifndef GPUSHIM_TESTS_CHILDREN_H
#define GPUSHIM_TESTS_CHILDREN_H

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define CHILD_S 120 /* no test takes longer */

/* As fork; the child is killed when the thread that called this ends, also once it is another
 * program. */
static inline pid_t fork_child(void)
{
    pid_t parent = getpid(), child = fork();

    if (child == 0) {
        /* 0: the first of a new PID namespace, which does not show its parent. */
        bool has_parent =
            prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && (getppid() == parent || getppid() == 0);

        if (!has_parent)
            _exit(1);
    }
    return child;
}

/* In a child of fork_child: another user, who ends with its parent all the same (setuid would undo
 * that), and group. */
static inline bool become_user(uid_t user, gid_t group)
{
    pid_t parent = getppid(); /* it may end in between */

    return setgid(group) == 0 && setuid(user) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
           getppid() == parent;
}

/* What a child of fork does that outlives its parent, but not the test. */
static inline _Noreturn void stay_until_end_of(pid_t test)
{
    struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, test, 0), .events = POLLIN};

    alarm(CHILD_S);
    while (poll(&end, 1, -1) != 1)
        continue;
    _exit(0);
}

/* What a thread does: R runs, S sleeps, D waits for the system, and others; ? cannot be read, 0 is
 * no more. */
static inline char thread_state(pid_t pid, pid_t thread)
{
    char path[64], state;
    FILE *stat;

    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)thread);
    stat = fopen(path, "re");
    if (!stat)
        return 0;
    if (fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
        state = '?';
    fclose(stat);
    return state;
}

static inline bool stands(pid_t pid)
{
    char path[64], state;
    const struct dirent *entry;
    bool all = true;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    while (tasks && all && (entry = readdir(tasks))) {
        if (entry->d_name[0] == '.')
            continue;
        state = thread_state(pid, atoi(entry->d_name));
        all = !state || !strchr("RSD?", state);
    }
    if (tasks)
        closedir(tasks);
    return all;
}

/* Stops a process, whoever's child it is. When this returns all of its threads stand: until then
 * one may still answer. */
static inline void halt(pid_t pid)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    kill(pid, SIGSTOP);
    for (int i = 0; i < 60000 && !stands(pid); i++)
        nanosleep(&moment, NULL);
}

#endif
