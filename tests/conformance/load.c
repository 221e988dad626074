/*
 * Several devices under load: threads allocate in the context that is current, free from any, hand
 * blocks to each other, let each other's devices in and out, and copy between them. No block ever
 * shows another owner's stamp, no call that must succeed fails, and in the end every byte is back.
 * A plain program, so that TSan can watch it too. Contexts that come and go: tests/stress; a
 * primary one that is reset and released meanwhile: primary.c; what is shared: tests/chaos.
 *
 *   load [--seconds N]
 */
#include "plain.h"
#include "tests/clock.h"
#include "tests/system.h"

#include <cuda.h>

#define WORKERS 3
#define DEVICES 2
#define HANDED  16
#define LIVE    12

struct block {
    CUdeviceptr ptr;
    size_t size;
    unsigned stamp;
    int device;
    bool async;
};

static CUcontext primary[DEVICES];
static uint64_t end_ns;
static uint64_t rounds; /* atomic */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects what is handed on */
static struct block handed[HANDED];

static bool time_left(void)
{
    __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
    return now_ns() < end_ns;
}

static size_t random_size(unsigned *seed)
{
    return rand_r(seed) % 6 == 0 ? (size_t)(1 + rand_r(seed) % 24) << 18
                                 : (size_t)(1 + rand_r(seed) % 100) << 9;
}

/* ---- Blocks ---- */

static struct block make(int device, unsigned *seed, unsigned stamp, bool may_be_async)
{
    struct block block = {.size = random_size(seed), .stamp = stamp, .device = device};
    size_t pitch;

    OK(cuCtxSetCurrent(primary[device]));
    block.async = may_be_async && rand_r(seed) % 2;
    if (block.async)
        OK(cuMemAllocAsync(&block.ptr, block.size, NULL));
    else if (block.size % 4096 == 0)
        OK(cuMemAllocPitch(&block.ptr, &pitch, 4096, block.size / 4096, 4));
    else
        OK(cuMemAlloc(&block.ptr, block.size));
    OK(cuMemsetD32Async(block.ptr, stamp, block.size / 4, NULL));
    OK(cuStreamSynchronize(NULL));
    return block;
}

/* From any context, but for async memory, which other devices do not reach natively. */
static void check(const struct block *block)
{
    unsigned first = 0, last = 0;
    CUcontext owner = NULL;

    OK(cuMemcpyDtoH(&first, block->ptr, 4));
    OK(cuMemcpyDtoH(&last, block->ptr + block->size - 4, 4));
    if (first != block->stamp || last != block->stamp)
        FAIL("stamp 0x%x: 0x%x and 0x%x are read", block->stamp, first, last);
    if (!block->async) {
        OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block->ptr));
        if (owner != primary[block->device])
            FAIL("the block of another context");
    }
}

static void drop(const struct block *block, unsigned *seed)
{
    int from = rand_r(seed) % DEVICES;

    /* The other kind of free, in the order of one's own device's stream or none's. */
    OK(cuCtxSetCurrent(primary[block->async ? block->device : from]));
    check(block);
    OK(cuCtxSetCurrent(primary[from]));
    if (rand_r(seed) % 2) {
        OK(cuCtxSetCurrent(primary[block->device]));
        OK(cuMemFreeAsync(block->ptr, NULL));
    } else {
        OK(cuMemFree(block->ptr));
    }
}

static void hand_on(struct block *block, unsigned *seed)
{
    struct block other;
    int place = rand_r(seed) % HANDED;

    pthread_mutex_lock(&lock);
    other = handed[place];
    handed[place] = *block;
    pthread_mutex_unlock(&lock);
    *block = other;
}

static void *work(void *arg)
{
    unsigned number = *(unsigned *)arg, seed = number, stamp = number << 24;
    struct block live[LIVE] = {{0}};

    while (time_left()) {
        struct block *block = &live[rand_r(&seed) % LIVE];

        if (block->ptr && rand_r(&seed) % 3 == 0)
            hand_on(block, &seed);
        if (block->ptr)
            drop(block, &seed);
        *block = make(rand_r(&seed) % DEVICES, &seed, ++stamp, true);
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].ptr)
            drop(&live[i], &seed);
    return NULL;
}

/* ---- Copies and peers ---- */

static void *reach(void *arg)
{
    unsigned seed = 99;
    bool enabled = false;
    int can = 0;

    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    while (time_left()) {
        /* Natively a pool's memory is for those that the pool lets in. */
        struct block near = make(0, &seed, 0x70000000, false);
        struct block far = make(1, &seed, 0x71000000, false);
        size_t size = near.size < far.size ? near.size : far.size;
        unsigned word = 0;

        OK(cuCtxSetCurrent(primary[0]));
        if (can && rand_r(&seed) % 4 == 0) {
            OK(enabled ? cuCtxDisablePeerAccess(primary[1]) : cuCtxEnablePeerAccess(primary[1], 0));
            enabled = !enabled;
        }
        OK(cuMemcpyDtoDAsync(near.ptr, far.ptr, size, NULL));
        OK(cuStreamSynchronize(NULL));
        OK(cuMemcpyDtoH(&word, near.ptr + size - 4, 4));
        if (word != far.stamp)
            FAIL("0x%x was copied from the other device", word);
        if (enabled) {
            OK(cuMemsetD32(far.ptr, far.stamp, far.size / 4));
            OK(cuStreamSynchronize(NULL)); /* a free waits for the owner's work alone */
        }
        OK(cuMemFree(near.ptr));
        OK(cuMemFree(far.ptr));
    }
    return arg;
}

/* ---- The end ---- */

static void free_memory(size_t *ret_free)
{
    for (int i = 0; i < DEVICES; i++) {
        size_t total;

        OK(cuCtxSetCurrent(primary[i]));
        OK(cuCtxSynchronize());
        OK(cuMemGetInfo(&ret_free[i], &total));
    }
}

/* What is freed in the order of a stream is back a little later. */
static void all_is_back(const size_t *before)
{
    const struct timespec pause = {.tv_nsec = 50000000};
    size_t now[DEVICES];
    CUmemoryPool pool;
    cuuint64_t used = 1;
    bool back = false;

    for (int i = 0; i < 600 && !back; i++) {
        free_memory(now);
        back = true;
        for (int k = 0; k < DEVICES; k++)
            back &= now[k] >= before[k];
        if (!back)
            nanosleep(&pause, NULL);
    }
    for (int i = 0; i < DEVICES; i++) {
        if (now[i] != before[i])
            FAIL("device %d has %zu bytes, and had %zu", i, now[i], before[i]);
        OK(cuDeviceGetDefaultMemPool(&pool, i));
        OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
        if (used)
            FAIL("the pool of device %d counts %llu bytes as used", i, (unsigned long long)used);
    }
}

int main(int argc, char **argv)
{
    unsigned numbers[WORKERS], seed = 1;
    pthread_t thread[WORKERS + 1];
    size_t before[DEVICES];
    int count = 0, seconds = 4;

    if (argc == 3 && strcmp(argv[1], "--seconds") == 0)
        seconds = atoi(argv[2]);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    if (count < DEVICES) {
        printf("skipped: %d devices, of %d\n", count, DEVICES);
        return 77;
    }
    for (int i = 0; i < DEVICES; i++)
        OK(cuDevicePrimaryCtxRetain(&primary[i], i));
    free_memory(before);
    end_ns = now_ns() + (uint64_t)seconds * 1000000000u;
    for (unsigned i = 0; i < WORKERS; i++) {
        numbers[i] = i + 1;
        if (pthread_create(&thread[i], NULL, work, &numbers[i]) != 0)
            FAIL("no thread");
    }
    if (pthread_create(&thread[WORKERS], NULL, reach, NULL) != 0)
        FAIL("no thread");
    for (unsigned i = 0; i < WORKERS + 1; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < HANDED; i++)
        if (handed[i].ptr)
            drop(&handed[i], &seed);
    all_is_back(before);
    printf("%llu rounds\n", (unsigned long long)rounds);
    return 0;
}
