/* Clears up after a test (folder.h). */
#include "tests/folder.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#define QUIET    20 /* rounds in a row: what was on its way when the test ended has come by then */
#define ROUNDS   600
#define ROUND_MS 100

static bool runs_there(const char *pid, const char *setting)
{
    static char environment[1 << 16];
    char path[64];
    size_t got;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%.10s/environ", pid);
    file = fopen(path, "re");
    if (!file)
        return false;
    got = fread(environment, 1, sizeof environment - 1, file);
    fclose(file);
    environment[got] = '\0';
    for (const char *at = environment; at < environment + got; at += strlen(at) + 1)
        if (strcmp(at, setting) == 0)
            return true;
    return false;
}

/* Whether there were any. */
static bool end_processes(const char *folder)
{
    bool were = false;
    char setting[256];
    DIR *processes = opendir("/proc");
    const struct dirent *entry;

    snprintf(setting, sizeof setting, "GPUSHIM_SHARE_DIR=%s", folder);
    while (processes && (entry = readdir(processes))) {
        pid_t pid = (pid_t)atoi(entry->d_name);

        if (pid > 0 && pid != getpid() && runs_there(entry->d_name, setting))
            were |= kill(pid, SIGKILL) == 0;
    }
    if (processes)
        closedir(processes);
    return were;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    remove(path); /* or it comes to that in the next round */
    return 0;
}

void folder_remove(const char *folder)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* It keeps nothing of the test's: neither its output nor its session. */
static _Noreturn void watch(const char *folder, pid_t test)
{
    struct pollfd end = {.events = POLLIN};

    setsid();
    syscall(SYS_close_range, 0u, ~0u, 0u);
    end.fd = (int)syscall(SYS_pidfd_open, test, 0);
    if (end.fd < 0 && errno != ESRCH) /* a short test may be over */
        _exit(1);
    while (end.fd >= 0 && poll(&end, 1, -1) != 1)
        ;
    for (int i = 0, quiet = 0; i < ROUNDS && quiet < QUIET; i++) {
        bool ended = end_processes(folder);

        quiet = ended || access(folder, F_OK) == 0 ? 0 : quiet + 1;
        folder_remove(folder);
        poll(NULL, 0, ROUND_MS);
    }
    _exit(0);
}

void folder_watch(const char *folder)
{
    pid_t test = getpid(), between = fork();

    if (between == 0) {
        if (fork() == 0)
            watch(folder, test);
        _exit(0);
    }
    while (between > 0 && waitpid(between, NULL, 0) != between)
        ;
}

const char *folder_new(const char *name)
{
    static char folder[64];

    snprintf(folder, sizeof folder, "/tmp/gpushim-%s-XXXXXX", name);
    if (!mkdtemp(folder)) {
        perror(folder);
        exit(1);
    }
    setenv("GPUSHIM_SHARE_DIR", folder, 1);
    folder_watch(folder);
    return folder;
}
