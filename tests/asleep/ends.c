/*
 * The end of a program that sleeps, or slept: it waits for no wake, whatever its handlers call.
 *
 * usage: ends CASE, under the library
 */
#include <cuda.h>

#include "../../shim/gpushim.h"
#include "../conformance/plain.h"
#include "tests/system.h"

#define SIZE    ((size_t)5 << 20)
#define LONG_NS UINT64_C(30000000000)

static CUcontext context;
static CUdeviceptr left_over;

static int try_sleep(void)
{
    const struct gpushim_sleep_how how = {.size = sizeof how, .timeout_ns = LONG_NS};

    return gpushim_sleep(&how, NULL);
}

static void free_at_exit(void)
{
    cuMemFree(left_over);
    cuDevicePrimaryCtxRelease(0);
}

/* Whatever it says: the process is at its end. */
static void *read_at_the_end(void *unused)
{
    static char host[SIZE];

    cuCtxSetCurrent(context);
    cuMemcpyDtoH(host, left_over, SIZE);
    return NULL;
}

/* It ends, though handlers free what is away, and other threads wait. */
static void case_asleep(void)
{
    pthread_t thread;

    atexit(free_at_exit);
    OK(try_sleep());
    if (pthread_create(&thread, NULL, read_at_the_end, NULL))
        FAIL("no thread");
}

/* Also those that were registered since it first slept. */
static void case_again(void)
{
    OK(try_sleep());
    OK(gpushim_wake(LONG_NS, NULL));
    atexit(free_at_exit);
    OK(try_sleep());
}

static void sleep_at_exit(void)
{
    if (try_sleep() != ESHUTDOWN)
        _exit(1);
    cuMemFree(left_over);
}

/* Nobody puts it to sleep any more. */
static void case_late(void)
{
    atexit(sleep_at_exit);
    OK(try_sleep());
    OK(gpushim_wake(LONG_NS, NULL));
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"asleep", case_asleep}, {"again", case_again}, {"late", case_late}};

int main(int argc, char **argv)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&left_over, SIZE));
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    FAIL("usage: ends CASE");
}
