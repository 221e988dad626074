/*
 * Counts the instructions of a piece of another process: a child that is traced (PTRACE_TRACEME) is
 * single-stepped from its SIGUSR1 to its SIGUSR2. The same every time, and no counter of the
 * processor is asked for; but a container may not permit tracing.
 */
#ifndef TESTS_STEPS_H
#define TESTS_STEPS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define STEPS_NOT_PERMITTED 77 /* what the child ends with then; Meson's word for skipped */

/* Lets the child, which is stopped, run to its next SIGUSR2 or its end, or for so many counted
 * instructions: those from here on, or from its SIGUSR1. -1: it cannot be traced any more. *status
 * is waitpid's. */
static inline long steps_run(pid_t pid, int *status, bool from_here, long limit)
{
    bool counting = from_here;
    long steps = 0;

    do {
        int signal = WSTOPSIG(*status);
        bool known = signal == SIGTRAP || signal == SIGUSR1 || signal == SIGUSR2;

        counting |= signal == SIGUSR1;
        steps += counting;
        if (ptrace(counting ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL,
                   (long)(known ? 0 : signal)) != 0 ||
            waitpid(pid, status, 0) != pid)
            return -1;
    } while (WIFSTOPPED(*status) && WSTOPSIG(*status) != SIGUSR2 && steps < limit);
    return steps;
}

#endif
