/*
 * Contexts and streams that come and go on several threads, while the process is put to sleep and
 * woken at random moments. All memory has what was written into it, and each thread goes on after
 * each wake: none is left at the gate.
 *
 * usage: contexts [SLEEPS [SEED]], under the library
 */
#include <stdatomic.h>

#include "../../shim/gpushim.h"
#include "../conformance/plain.h"
#include "tests/clock.h"
#include "tests/system.h"

#define SIZE     ((size_t)3 << 20)
#define THREADS  5
#define OF_THEIR 3 /* have contexts of their own; the others share the primary one */
#define LONG_NS  UINT64_C(10000000000)
#define REST_US  8000 /* at most, asleep and awake */

struct worker {
    pthread_t thread;
    unsigned number;
    atomic_uint rounds;
};
static struct worker workers[THREADS];
static atomic_bool over;

static struct {
    __typeof__(&gpushim_sleep) sleep;
    __typeof__(&gpushim_wake) wake;
} gpushim;

static CUcontext enter(const struct worker *worker)
{
    CUcontext context;

    if (worker->number >= OF_THEIR) {
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        return context;
    }
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, 0));
#else
    OK(cuCtxCreate(&context, 0, 0));
#endif
    return context;
}

static void leave(const struct worker *worker, CUcontext context)
{
    if (worker->number < OF_THEIR) {
        OK(cuCtxDestroy(context));
        return;
    }
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
}

/* In turn some of it is left to the end of the context, where that is the thread's own. */
static void use(const struct worker *worker, unsigned round)
{
    const bool leaves = worker->number < OF_THEIR && round % 3 == 0;
    const unsigned value = round * THREADS + worker->number;
    unsigned first, last;
    CUdeviceptr plain, ordered;
    CUstream stream;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&plain, SIZE));
    OK(cuMemAllocAsync(&ordered, SIZE, stream));
    OK(cuMemsetD32Async(ordered, value, SIZE / 4, stream));
    OK(cuMemcpyDtoDAsync(plain, ordered, SIZE, stream));
    OK(cuMemFreeAsync(ordered, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH(&first, plain, sizeof first));
    OK(cuMemcpyDtoH(&last, plain + SIZE - sizeof last, sizeof last));
    if (first != value || last != value)
        FAIL("thread %u has %u and %u for %u", worker->number, first, last, value);
    if (leaves)
        return;
    OK(cuMemFree(plain));
    OK(cuStreamDestroy(stream));
}

static void *work(void *argument)
{
    struct worker *worker = argument;

    while (!atomic_load(&over)) {
        const CUcontext context = enter(worker);

        use(worker, atomic_load(&worker->rounds));
        leave(worker, context);
        atomic_fetch_add(&worker->rounds, 1);
    }
    return NULL;
}

static void sleep_and_wake(unsigned *random)
{
    const struct gpushim_sleep_how how = {.size = sizeof how, .timeout_ns = LONG_NS};
    struct gpushim_asleep asleep = {.size = sizeof asleep};

    usleep((useconds_t)(rand_r(random) % REST_US));
    if (gpushim.sleep(&how, &asleep) != 0)
        FAIL("it does not sleep: %s", asleep.text);
    usleep((useconds_t)(rand_r(random) % REST_US));
    if (gpushim.wake(LONG_NS, &asleep) != 0)
        FAIL("it does not wake: %s", asleep.text);
}

/* Each thread ends a round that was begun before this. */
static void await_rounds(void)
{
    const uint64_t end = now_ns() + LONG_NS;

    for (unsigned i = 0; i < THREADS; i++) {
        const unsigned before = atomic_load(&workers[i].rounds);

        while (atomic_load(&workers[i].rounds) == before && now_ns() < end)
            usleep(200);
        if (atomic_load(&workers[i].rounds) == before)
            FAIL("thread %u does not go on", i);
    }
}

int main(int argc, char **argv)
{
    const unsigned sleeps = argc > 1 ? (unsigned)atoi(argv[1]) : 60;
    unsigned random = argc > 2 ? (unsigned)atoi(argv[2]) : 1, rounds = 0;

    gpushim.sleep = (__typeof__(&gpushim_sleep))dlsym(RTLD_DEFAULT, "gpushim_sleep");
    gpushim.wake = (__typeof__(&gpushim_wake))dlsym(RTLD_DEFAULT, "gpushim_wake");
    if (!gpushim.sleep || !gpushim.wake)
        FAIL("the library is not there");
    OK(cuInit(0));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].number = i;
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            FAIL("no thread");
    }
    for (unsigned i = 1; i <= sleeps; i++) {
        sleep_and_wake(&random);
        if (i % 10 == 0)
            await_rounds();
    }
    atomic_store(&over, true);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        rounds += atomic_load(&workers[i].rounds);
    }
    printf("%u sleeps, %u rounds\n", sleeps, rounds);
    return 0;
}
