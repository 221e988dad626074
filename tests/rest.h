/*
 * What a test awaits before it looks that something has not happened: that whoever could have done
 * it has had the chance, however busy the machine is.
 */
#ifndef GPUSHIM_TESTS_REST_H
#define GPUSHIM_TESTS_REST_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define REST_LOOKS   20    /* a thread that sleeps at so many looks in a row has nothing to do, */
#define REST_ROUNDS  10    /* and one that has slept so often anew has looked at what there is */
#define REST_BOUND   30000 /* looks, a millisecond apart */
#define REST_THREADS 256

struct rest_thread {
    int id;
    unsigned long first, last; /* how often it has gone to sleep */
    unsigned looks;            /* in a row at which it slept, and had not been awake */
};

struct rest_process {
    pid_t pid;
    size_t count;
    struct rest_thread threads[REST_THREADS];
};

/* False where the thread has ended. */
static inline bool rest_look(pid_t pid, struct rest_thread *thread)
{
    char path[64], line[128], state = 'R';
    unsigned long sleeps = 0;
    FILE *status;

    snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, thread->id);
    status = fopen(path, "re");
    if (!status)
        return false;
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "State: %c", &state) != 1)
            sscanf(line, "voluntary_ctxt_switches: %lu", &sleeps);
    fclose(status);
    if (!thread->first)
        thread->first = thread->last = sleeps;
    thread->looks = strchr("STtZX", state) && sleeps == thread->last ? thread->looks + 1 : 0;
    thread->last = sleeps;
    return true;
}

/* Whether all threads of the process but the caller's rest, or have looked. */
static inline bool rest_of(struct rest_process *process)
{
    char path[64];
    const struct dirent *entry;
    bool rest = true;
    DIR *tasks;

    snprintf(path, sizeof path, "/proc/%d/task", (int)process->pid);
    tasks = opendir(path);
    while (tasks && (entry = readdir(tasks))) {
        int id = atoi(entry->d_name);
        size_t i = 0;

        if (id == 0 || id == (int)syscall(SYS_gettid))
            continue;
        while (i < process->count && process->threads[i].id != id)
            i++;
        if (i == REST_THREADS)
            continue;
        if (i == process->count)
            process->threads[process->count++] = (struct rest_thread){.id = id};
        if (rest_look(process->pid, &process->threads[i]))
            rest = rest && (process->threads[i].looks >= REST_LOOKS ||
                            process->threads[i].last - process->threads[i].first >= REST_ROUNDS);
    }
    if (tasks)
        closedir(tasks);
    return rest;
}

/* Waits until the other threads of this process, and those of another one (0: none), have nothing
 * left to do or have come back to their waits often. False: they do not come to it. */
static inline bool all_rest(pid_t other)
{
    static struct rest_process processes[2];
    const struct timespec moment = {.tv_nsec = 1000000};

    processes[0] = (struct rest_process){.pid = getpid()};
    processes[1] = (struct rest_process){.pid = other};
    for (int look = 0; look < REST_BOUND; look++) {
        bool rest = rest_of(&processes[0]);

        rest = (other == 0 || rest_of(&processes[1])) && rest;
        if (rest)
            return true;
        nanosleep(&moment, NULL);
    }
    return false;
}

#endif
