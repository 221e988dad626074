/*
 * Each call of the table as the first one of a process that is linked with libcuda: its hook finds
 * the driver before it asks it anything. What the driver says of arguments that are all 0 is
 * nobody's matter, and that it may not live through them; but it is initialised, and does not say
 * that it is not.
 *
 * usage: first [ROW]
 */
#include "../../shim/cuda_exact.h"
#include "../../shim/entry_points.h"
#include "check.h"

#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Weak: no driver has them all. */
#define GS_ENTRY(symbol, ...) extern __typeof__(symbol) symbol __attribute__((weak));
GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY

/* As many words as any of them takes, the frame of a stream among them. */
typedef CUresult CUDAAPI call_fn(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                                 uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                                 uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static const struct {
    const char *name;
    call_fn *call;
} rows[] = {
#define GS_ENTRY(symbol, ...) {#symbol, (call_fn *)(void *)symbol},
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

static int ask(int row)
{
    const struct rlimit no_core = {0, 0};

    setrlimit(RLIMIT_CORE, &no_core);
    if (!rows[row].call)
        return 0;
    CHECK(is_hook((void *)rows[row].call), "%s is in %s", rows[row].name,
          object_of((void *)rows[row].call));
    CHECK(cuInit(0) == CUDA_SUCCESS, "cuInit");
    return rows[row].call(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) ==
           CUDA_ERROR_NOT_INITIALIZED;
}

int main(int argc, char **argv)
{
    int faults = 0, ended = 0;

    if (argc > 1)
        return ask(atoi(argv[1]));
    for (unsigned row = 0; row < GS_DRIVER_ROWS; row++) {
        char number[12];
        int status;

        snprintf(number, sizeof number, "%u", row);
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            execl(argv[0], argv[0], number, NULL);
            _exit(2);
        }
        CHECK(waitpid(child, &status, 0) == child, "wait");
        CHECK(!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT, "%s", rows[row].name);
        CHECK(!WIFEXITED(status) || WEXITSTATUS(status) < 2, "%s was not called", rows[row].name);
        ended += WIFEXITED(status);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 1) {
            printf("%s as the first call: the driver is not asked\n", rows[row].name);
            faults++;
        }
    }
    printf("%d of %d calls came back\n", ended, GS_DRIVER_ROWS);
    CHECK(ended > GS_DRIVER_ROWS / 2, "the driver does not live");
    return faults != 0;
}
