/*
 * How many instructions the shim adds to a dlsym that is not about its entry points: for any name,
 * and for one of the driver's that has no hook, which has to be found among those that are known.
 * The program runs itself without and with the shim, single-steps through one call and prints the
 * difference beside its budget.
 *
 * usage: foreign_cost LIBGPUSHIM LIBCUDA
 */
#include "../steps.h"
#include "check.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#ifdef __clang__ /* its code takes a few more */
#define BUDGET_KNOWN 450
#else
#define BUDGET_KNOWN 410
#endif

/* The step counting starts and stops at these signals. */
static int measured(const char *library, const char *name_given)
{
    /* Where an argument lies depends on the environment, and how strings are compared on that. */
    static char name[64] __attribute__((aligned(64)));
    snprintf(name, sizeof(name), "%s", name_given);
    void *handle = dlopen(library, RTLD_NOW);
    if (!handle || !dlsym(handle, name)) /* the first call finds and binds */
        return 1;
    raise(SIGUSR1);
    void *found = dlsym(handle, name);
    raise(SIGUSR2);
    return found == NULL;
}

/* Instructions between the two signals of the child, or -1 where tracing is not permitted. */
static long count(char *const arguments[], const char *preload)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (preload)
            setenv("LD_PRELOAD", preload, 1);
        else
            unsetenv("LD_PRELOAD");
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(STEPS_NOT_PERMITTED);
        execv(arguments[0], arguments);
        _exit(1);
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "waitpid: %d", errno);
    if (WIFEXITED(status) && WEXITSTATUS(status) == STEPS_NOT_PERMITTED)
        return -1;
    CHECK(WIFSTOPPED(status), "the child's status is %d", status);
    long steps = steps_run(pid, &status, false, LONG_MAX);
    if (WIFSTOPPED(status))
        CHECK(steps_run(pid, &status, false, LONG_MAX) == 0, "ptrace: %d", errno);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is %d", status);
    return steps;
}

/* False where nothing can be measured. */
static bool within(char *program, char *shim, char *library, char *name, long budget)
{
    char *const arguments[] = {program, (char *)"--measured", library, name, NULL};
    long without = count(arguments, NULL);
    if (without < 0)
        return false;
    long with = count(arguments, shim);
    printf("dlsym of %s: %ld instructions without the shim, %ld with it: %ld more, budget %ld\n",
           name, without, with, with - without, budget);
    CHECK(without > 100, "nothing was measured");
    CHECK(with > without, "the shim was not in the way");
    CHECK(with - without <= budget, "over the budget");
    return true;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--measured") == 0)
        return measured(argv[2], argv[3]);
    CHECK(argc == 3, "usage: foreign_cost LIBGPUSHIM LIBCUDA");
    if (within(argv[0], argv[1], (char *)"libc.so.6", (char *)"getenv", 40) &&
        within(argv[0], argv[1], argv[2], (char *)"cuDriverGetVersion", BUDGET_KNOWN))
        return 0;
    puts("skipped: this system does not let a process be traced");
    return STEPS_NOT_PERMITTED;
}
