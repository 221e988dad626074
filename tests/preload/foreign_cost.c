/*
 * How many instructions the shim adds to a dlsym that is not about the driver. The program runs
 * itself without and with the shim, single-steps through one call and prints the difference beside
 * its budget.
 *
 * usage: foreign_cost LIBGPUSHIM
 */
#include "check.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define BUDGET 40
#define SKIP   77

/* The step counting starts and stops at these signals. */
static int measured(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    const char *volatile name = "getenv";
    if (!libc || !dlsym(libc, name)) /* the first call finds and binds */
        return 1;
    raise(SIGUSR1);
    void *found = dlsym(libc, name);
    raise(SIGUSR2);
    return found == NULL;
}

/* Instructions between the two signals of the child, or -1 where tracing is not permitted. */
static long count(const char *program, const char *preload)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (preload)
            setenv("LD_PRELOAD", preload, 1);
        else
            unsetenv("LD_PRELOAD");
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(SKIP);
        execl(program, program, "--measured", NULL);
        _exit(1);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "waitpid: %d", errno);
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIP)
        return -1;
    long steps = 0;
    bool counting = false;
    while (WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == SIGUSR1)
            counting = true;
        else if (WSTOPSIG(status) == SIGUSR2)
            counting = false;
        steps += counting;
        CHECK(ptrace(counting ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL, NULL) == 0, "ptrace");
        CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %d", errno);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %d", status);
    return steps;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2, "usage: foreign_cost LIBGPUSHIM");
    if (strcmp(argv[1], "--measured") == 0)
        return measured();
    long without = count(argv[0], NULL);
    if (without < 0) {
        puts("skipped: this system does not let a process be traced");
        return SKIP;
    }
    long with = count(argv[0], argv[1]);
    printf("a dlsym of a foreign name: %ld instructions without the shim, %ld with it: %ld more, "
           "budget %d\n",
           without, with, with - without, BUDGET);
    CHECK(without > 100, "nothing was measured");
    CHECK(with > without, "the shim was not in the way");
    CHECK(with - without <= BUDGET, "over the budget");
    return 0;
}
