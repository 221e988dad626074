/*
 * What a program sees of the library's memory while it runs (gpushim.h), found by dlsym; run under
 * the library.
 */
#include <cuda.h>

#include "shim/gpushim.h"
#include "softcuda.h"
#include "tests/check.h"
#include "tests/clock.h"
#include "tests/system.h"

#define MIB       ((size_t)1 << 20)
#define PAIRS     20000
#define WAITED_NS 100000000 /* by the library, before it tells what is so meanwhile */

static __typeof__(&gpushim_memory) memory_of;
static bool done; /* atomic */

static struct gpushim_memory look(void)
{
    struct gpushim_memory memory = {.size = sizeof memory};

    CHECK(memory_of(0, &memory) == 0);
    return memory;
}

/* Asks all the while, as a monitor does. */
static void *watch(void *arg)
{
    struct gpushim_memory before = look(), now;
    uint64_t *looks = arg; /* atomic */

    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        now = look();
        CHECK(now.hits >= before.hits && now.misses >= before.misses);
        CHECK(now.live <= 4 * MIB + 64 * 1024 && now.live_peak == before.live_peak);
        before = now;
        __atomic_fetch_add(looks, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static uint64_t timed(const struct gpushim_memory *memory)
{
    uint64_t calls = 0;

    for (unsigned i = 0; i < GPUSHIM_TOOK; i++)
        calls += memory->took[i];
    return calls;
}

/* An allocation that cannot be had: all that is kept goes back to the driver. */
static void *give_back(void *arg)
{
    CUcontext context;
    CUdeviceptr all;
    size_t left, total;

    CHECK(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS && cuMemGetInfo(&left, &total) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&all, total) == CUDA_ERROR_OUT_OF_MEMORY);
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
    return arg;
}

/* What is free stays free while it goes from the library to the driver; but the library does not
 * wait for long to tell, and less is free for a question where the other thread stands still. */
static void watch_it_go(void)
{
    size_t before, now, total;
    CUdeviceptr kept, block;
    pthread_t thread;

    CHECK(cuMemAlloc(&kept, 4 * MIB) == CUDA_SUCCESS); /* so that not all can be had */
    CHECK(cuMemAlloc(&block, 100 * MIB) == CUDA_SUCCESS && cuMemFree(block) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS && cuMemGetInfo(&before, &total) == CUDA_SUCCESS);
    CHECK(softcuda_delay("cuMemUnmap", 30000) == 0);
    done = false;
    CHECK(pthread_create(&thread, NULL, give_back, NULL) == 0);
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) {
        uint64_t began = now_ns();

        CHECK(cuMemGetInfo(&now, &total) == CUDA_SUCCESS);
        CHECK(now >= before || now_ns() - began >= WAITED_NS);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(look().cached < 100 * MIB);
    softcuda_reset();
    CHECK(cuMemFree(kept) == CUDA_SUCCESS);
}

/* The GPU is named; and a caller who was built when the struct ended before that gets no more. */
static void first_version(const struct gpushim_memory *memory)
{
    struct gpushim_memory old;
    CUuuid uuid;

    CHECK(cuDeviceGetUuid(&uuid, 0) == CUDA_SUCCESS);
    CHECK(memcmp(memory->uuid, &uuid, sizeof memory->uuid) == 0);
    memset(&old, 0x55, sizeof old);
    old.size = offsetof(struct gpushim_memory, slow);
    CHECK(memory_of(0, &old) == 0 && old.live == memory->live);
    CHECK(old.size == offsetof(struct gpushim_memory, slow));
    CHECK(old.slow == UINT64_C(0x5555555555555555) && old.uuid[0] == 0x55);
    old.size--;
    CHECK(memory_of(0, &old) == EINVAL);
}

int main(void)
{
    struct gpushim_memory memory = {.size = sizeof memory};
    __typeof__(&gpushim_version) version =
        (__typeof__(version))dlsym(RTLD_DEFAULT, "gpushim_version");
    CUdeviceptr large, small;
    CUcontext context;
    pthread_t thread;
    uint64_t looks = 0, at_once;
    CUgraph graph;

    memory_of = (__typeof__(memory_of))dlsym(RTLD_DEFAULT, "gpushim_memory");
    CHECK(memory_of);
    CHECK(version && strcmp(version(), GPUSHIM_VERSION) == 0);
    CHECK(memory_of(0, &memory) == ENODEV); /* nothing has started */
    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(memory_of(0, NULL) == EINVAL && memory_of(-1, &memory) == EINVAL);
    memory.size = 8;
    CHECK(memory_of(0, &memory) == EINVAL);

    CHECK(cuMemAlloc(&large, 4 * MIB) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&small, 64 << 10) == CUDA_SUCCESS);
    memory = look();
    CHECK(memory.live == 4 * MIB + (64 << 10) && memory.reserved == 6 * MIB);
    CHECK(memory.cached == memory.reserved - memory.live);
    CHECK(memory.retired + memory.ordered + memory.limbo == 0);
    CHECK(memory.misses == 2 && memory.hits == 0 && memory.pieces_made == 2);
    CHECK(timed(&memory) == 2 && memory.map_ns > 0);
    first_version(&memory);
    memory.size = sizeof memory;
    CHECK(memory_of(1000, &memory) == 0 && memory.reserved == 0 && memory.misses == 0);

    CHECK(pthread_create(&thread, NULL, watch, &looks) == 0);
    for (int i = 0; i < PAIRS || __atomic_load_n(&looks, __ATOMIC_RELAXED) == 0; i++) {
        CHECK(cuMemFree(small) == CUDA_SUCCESS);
        CHECK(cuMemAlloc(&small, 64 << 10) == CUDA_SUCCESS);
    }
    __atomic_store_n(&done, true, __ATOMIC_RELEASE);
    CHECK(pthread_join(thread, NULL) == 0);
    memory = look();
    CHECK(memory.hits + memory.misses >= PAIRS + 2);
    CHECK(memory.at_once >= PAIRS && memory.events == 0);
    CHECK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED) ==
              CUDA_SUCCESS &&
          cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph) == CUDA_SUCCESS &&
          cuGraphDestroy(graph) == CUDA_SUCCESS);
    at_once = memory.at_once;
    for (int i = 0; i < PAIRS; i++) {
        CHECK(cuMemFree(small) == CUDA_SUCCESS);
        CHECK(cuMemAlloc(&small, 64 << 10) == CUDA_SUCCESS);
    }
    memory = look();
    CHECK(memory.at_once == at_once && memory.events > 0);
    CHECK(cuMemFree(small) == CUDA_SUCCESS && cuMemFree(large) == CUDA_SUCCESS);
    CHECK(look().live == 0);
    watch_it_go();
    return 0;
}
