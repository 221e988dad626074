/*
 * One primary context that several threads retain, allocate in and release, each when it likes, and
 * some reset: whoever ends it, its memory goes with it, and it is a new one for who retains it
 * next.
 *
 *   primary [--seconds N]
 */
#include "plain.h"
#include "tests/clock.h"
#include "tests/system.h"

#include <cuda.h>

#define WORKERS 4
#define BLOCKS  6
#define TURNS   4 /* of each worker, until all have released it */

static bool resets;
/* Set before a barrier that all wait at, so that all see the same. */
static bool over, shares;
static uint64_t end_ns;
static pthread_barrier_t barrier;
static unsigned long rounds, failed;

/* Another thread's reset takes everything away at any time. */
static bool worked(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (!resets) {
        fprintf(stderr, "%s: %d\n", call, (int)result);
        _Exit(1);
    }
    __atomic_fetch_add(&failed, 1, __ATOMIC_RELAXED);
    return false;
}
#define TRY(call) worked((call), #call)

static void use(unsigned *seed)
{
    CUdeviceptr block[2 * BLOCKS];
    CUipcMemHandle handle;
    unsigned count = 0;

    for (int i = 0; i < BLOCKS; i++) {
        size_t size = rand_r(seed) % 4 ? 512u * (1 + rand_r(seed) % 50) : (size_t)3 << 20;
        bool ends_with_it = rand_r(seed) % 2;

        if (!TRY(cuMemAlloc(&block[count], size)))
            continue;
        TRY(cuMemsetD8Async(block[count], 1, size, NULL));
        if (shares && rand_r(seed) % 8 == 0)
            TRY(cuIpcGetMemHandle(&handle, block[count]));
        count += !ends_with_it;
        if (!resets && TRY(cuMemAllocAsync(&block[count], size, NULL)))
            count++; /* pools outlive contexts */
    }
    for (unsigned i = 0; i < count; i++)
        TRY(rand_r(seed) % 2 ? cuMemFreeAsync(block[i], NULL) : cuMemFree(block[i]));
}

static void *work(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    CUcontext context;

    for (;;) {
        pthread_barrier_wait(&barrier);
        if (over)
            return NULL;
        for (int i = 0; i < TURNS; i++) {
            OK(cuDevicePrimaryCtxRetain(&context, 0));
            OK(cuCtxSetCurrent(context));
            use(&seed);
            if (resets && rand_r(&seed) % 4 == 0)
                OK(cuDevicePrimaryCtxReset(0));
            TRY(cuDevicePrimaryCtxRelease(0));
        }
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
}

/* What the library's own thread may still be at when the context ends. */
static size_t await_shared(void)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    size_t free_bytes, total;

    OK(cuMemGetInfo(&free_bytes, &total));
    for (int i = 0; i < 6000 && free_bytes != total; i++) {
        nanosleep(&pause, NULL);
        OK(cuMemGetInfo(&free_bytes, &total));
    }
    return free_bytes;
}

/* Nobody has the context: what was in it is back, at once where nothing was shared. */
static void look(void)
{
    size_t free_bytes, total;
    CUmemoryPool pool;
    CUcontext context;
    unsigned flags;
    int active;

    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    while (resets && active) { /* a reset took one's release from it */
        OK(cuDevicePrimaryCtxRelease(0));
        OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    }
    if (active) {
        fprintf(stderr, "the context is active\n");
        exit(1);
    }
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxSynchronize());
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemGetInfo(&free_bytes, &total));
    if (shares)
        free_bytes = await_shared();
    OK(cuDevicePrimaryCtxRelease(0));
    if (free_bytes != total) {
        fprintf(stderr, "round %lu, %s resets, %s shared: %zu bytes are missing\n", rounds,
                resets ? "with" : "without", shares ? "some of it" : "none of it",
                total - free_bytes);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    double seconds = argc > 2 && strcmp(argv[1], "--seconds") == 0 ? strtod(argv[2], NULL) : 2;
    pthread_t thread[WORKERS];

    OK(cuInit(0));
    pthread_barrier_init(&barrier, NULL, WORKERS + 1);
    for (int part = 0; part < 2; part++) {
        resets = part;
        end_ns = now_ns() + (uint64_t)(seconds / 2 * 1e9);
        for (int i = 0; i < WORKERS; i++)
            pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
        for (;;) {
            over = now_ns() >= end_ns;
            shares = rounds % 2;
            pthread_barrier_wait(&barrier);
            if (over)
                break;
            pthread_barrier_wait(&barrier);
            look();
            rounds++;
            pthread_barrier_wait(&barrier);
        }
        for (int i = 0; i < WORKERS; i++)
            pthread_join(thread[i], NULL);
        printf("%lu rounds, %lu calls failed\n", rounds, failed);
    }
    return 0;
}
