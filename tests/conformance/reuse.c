/*
 * Freed memory is not handed out while GPU work submitted before the free can still touch it: the
 * promise the shim must keep although its cuMemFree does not wait. Each test frees behind a kernel
 * that writes late, gets new memory at once, and looks whether the old kernel's words turn up
 * there.
 */
#include "conform.h"

#include <criterion/criterion.h>
#include <pthread.h>

TestSuite(reuse, .init = conform_start, .timeout = 60);

#define OLD 0x01d01d01u
#define NEW 0x2e2e2e2eu

static const size_t sizes[] = {512, 64 * KIB, MIB, 2 * MIB, 6 * MIB};
#define SIZES (sizeof sizes / sizeof sizes[0])

/* Frees old behind a late kernel on user, and fills fresh memory of the same size on filler. */
static void free_behind_kernel(CUstream user, CUstream filler, size_t size, uint64_t ns)
{
    CUdeviceptr old = 0, fresh = 0;

    OK(cuMemAlloc(&old, size));
    OK(launch_spin_fill(user, old, OLD, size / 4, ns));
    OK(cuMemFree(old));
    OK(cuMemAlloc(&fresh, size));
    OK(launch_fill(filler, fresh, NEW, size / 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(fresh, NEW, size / 4), 0, "%zu bytes%s", size,
                 old == fresh ? ", the same block" : "");
    OK(cuMemFree(fresh));
}

Test(reuse, behind_a_non_blocking_stream)
{
    CUstream user = new_stream(), filler = new_stream();

    for (int i = 0; i < 40; i++)
        free_behind_kernel(user, filler, sizes[(size_t)i % SIZES], 4 * MILLISECOND);
}

Test(reuse, behind_the_default_streams)
{
    CUstream filler = new_stream();

    for (int i = 0; i < 10; i++) {
        free_behind_kernel(CU_STREAM_LEGACY, filler, sizes[(size_t)i % SIZES], 4 * MILLISECOND);
        free_behind_kernel(CU_STREAM_PER_THREAD, filler, sizes[(size_t)i % SIZES], 4 * MILLISECOND);
    }
}

Test(reuse, behind_a_destroyed_stream)
{
    CUstream filler = new_stream();

    for (int i = 0; i < 15; i++) {
        CUstream user = new_stream();
        CUdeviceptr old = 0, fresh = 0;
        size_t size = sizes[(size_t)i % SIZES];

        OK(cuMemAlloc(&old, size));
        OK(launch_spin_fill(user, old, OLD, size / 4, 5 * MILLISECOND));
        OK(cuStreamDestroy(user));
        OK(cuMemFree(old));
        OK(cuMemAlloc(&fresh, size));
        OK(launch_fill(filler, fresh, NEW, size / 4));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(fresh, NEW, size / 4), 0, "%zu bytes", size);
        OK(cuMemFree(fresh));
    }
}

/* All in one stream, which such a launch may overtake. */
static void free_behind_what_is_overtaken(bool refused_between)
{
    CUstream stream = new_stream();

    for (int i = 0; i < 15; i++) {
        CUdeviceptr old = 0, fresh = 0;
        size_t size = sizes[(size_t)i % SIZES];
        CUresult r;

        OK(cuMemAlloc(&old, size));
        OK(launch_spin_fill(stream, old, OLD, size / 4, 4 * MILLISECOND));
        OK(cuMemFree(old));
        OK(cuMemAlloc(&fresh, size));
        if (refused_between)
            cr_assert_eq(cuMemsetD32Async(fresh, NEW, size << 10, stream),
                         CUDA_ERROR_INVALID_VALUE);
        r = launch_early_fill(stream, fresh, NEW, size / 4);
        if (r == CUDA_ERROR_NOT_SUPPORTED)
            cr_skip_test("no dependent launches");
        OK(r);
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(fresh, NEW, size / 4), 0, "%zu bytes", size);
        OK(cuMemFree(fresh));
    }
}

Test(reuse, behind_a_kernel_that_the_next_may_overtake)
{
    free_behind_what_is_overtaken(false);
}

/* Work that the driver did not take keeps nothing in order. */
Test(reuse, behind_a_kernel_that_the_next_may_overtake_after_what_was_refused)
{
    free_behind_what_is_overtaken(true);
}

Test(reuse, behind_kernels_of_many_streams)
{
    enum { STREAMS = 6, ROUNDS = 12 };
    CUstream user[STREAMS], filler = new_stream();
    CUdeviceptr old[STREAMS], fresh[STREAMS];

    for (int s = 0; s < STREAMS; s++)
        user[s] = new_stream();
    for (int i = 0; i < ROUNDS; i++) {
        size_t size = sizes[(size_t)i % SIZES];

        for (int s = 0; s < STREAMS; s++) {
            OK(cuMemAlloc(&old[s], size));
            OK(launch_spin_fill(user[s], old[s], OLD, size / 4, (uint64_t)(s + 1) * MILLISECOND));
        }
        for (int s = 0; s < STREAMS; s++)
            OK(cuMemFree(old[s]));
        for (int s = 0; s < STREAMS; s++) {
            OK(cuMemAlloc(&fresh[s], size));
            OK(launch_fill(filler, fresh[s], NEW, size / 4));
        }
        OK(cuCtxSynchronize());
        for (int s = 0; s < STREAMS; s++) {
            cr_assert_eq(words_other(fresh[s], NEW, size / 4), 0, "stream %d, %zu bytes", s, size);
            OK(cuMemFree(fresh[s]));
        }
    }
}

/* A kernel that writes all the time catches even a short moment of two owners. */
Test(reuse, behind_a_kernel_that_keeps_writing)
{
    CUstream user = new_stream(), filler = new_stream();
    CUdeviceptr old = 0, fresh[8] = {0};

    for (int i = 0; i < 10; i++) {
        size_t size = sizes[(size_t)i % SIZES];

        OK(cuMemAlloc(&old, size));
        OK(launch_scribble(user, old, size / 4, 10 * MILLISECOND));
        OK(cuMemFree(old));
        for (int k = 0; k < 8; k++) {
            OK(cuMemAlloc(&fresh[k], size));
            OK(launch_fill(filler, fresh[k], NEW, size / 4));
        }
        OK(cuCtxSynchronize());
        for (int k = 0; k < 8; k++) {
            cr_assert_eq(words_other(fresh[k], NEW, size / 4), 0, "block %d of %zu bytes", k, size);
            OK(cuMemFree(fresh[k]));
        }
    }
}

/* Blocks of other sizes carved from what was freed. */
Test(reuse, in_other_sizes)
{
    CUstream user = new_stream(), filler = new_stream();
    CUdeviceptr old = 0, piece[16];

    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc(&old, 8 * MIB));
        OK(launch_spin_fill(user, old, OLD, 2 * MIB, 5 * MILLISECOND));
        OK(cuMemFree(old));
        for (int k = 0; k < 16; k++) {
            OK(cuMemAlloc(&piece[k], 512 * KIB));
            OK(launch_fill(filler, piece[k], NEW, 128 * KIB));
        }
        OK(cuCtxSynchronize());
        for (int k = 0; k < 16; k++) {
            cr_assert_eq(words_other(piece[k], NEW, 128 * KIB), 0, "piece %d", k);
            OK(cuMemFree(piece[k]));
        }
    }
}

/* Plain memory freed in stream order while another stream's kernel is on it, ordered by an event;
 * then the calls cross: cuMemAlloc gets what cuMemFreeAsync gave back. */
Test(reuse, across_plain_and_async_memory)
{
    CUstream user = new_stream(), filler = new_stream();
    CUdeviceptr old = 0, fresh = 0;

    for (int i = 0; i < 20; i++) {
        size_t size = sizes[(size_t)i % SIZES];

        OK(i % 2 ? cuMemAlloc(&old, size) : cuMemAllocAsync(&old, size, user));
        OK(launch_spin_fill(user, old, OLD, size / 4, 5 * MILLISECOND));
        OK(cuMemFreeAsync(old, user));
        OK(i % 4 < 2 ? cuMemAlloc(&fresh, size) : cuMemAllocAsync(&fresh, size, filler));
        OK(launch_fill(filler, fresh, NEW, size / 4));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(fresh, NEW, size / 4), 0, "%zu bytes", size);
        OK(cuMemFree(fresh));
    }
}

/* Plain memory's free covers every stream's work, also where cuMemAllocAsync takes the block. */
Test(reuse, of_plain_memory_by_async_memory)
{
    CUstream user = new_stream(), filler = new_stream();
    CUdeviceptr old = 0, fresh = 0;

    for (int i = 0; i < 15; i++) {
        size_t size = sizes[(size_t)i % SIZES];

        OK(cuMemAlloc(&old, size));
        OK(launch_spin_fill(user, old, OLD, size / 4, 5 * MILLISECOND));
        OK(cuMemFree(old));
        OK(cuMemAllocAsync(&fresh, size, filler));
        OK(launch_fill(filler, fresh, NEW, size / 4));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(fresh, NEW, size / 4), 0, "%zu bytes", size);
        OK(cuMemFreeAsync(fresh, filler));
    }
    OK(cuCtxSynchronize());
}

/* ---- threads ---- */

struct worker {
    unsigned int number;
    const char *bad;
    CUresult result;
};

static CUresult worker_round(CUstream user, CUstream filler, size_t size, uint32_t mark,
                             uint32_t *last)
{
    CUdeviceptr old = 0, fresh = 0;
    CUresult r = cuMemAlloc(&old, size);

    if (r == CUDA_SUCCESS)
        r = launch_spin_fill(user, old, OLD, size / 4, MILLISECOND);
    if (r == CUDA_SUCCESS)
        r = cuMemFree(old);
    if (r == CUDA_SUCCESS)
        r = cuMemAlloc(&fresh, size);
    if (r == CUDA_SUCCESS)
        r = launch_fill(filler, fresh, mark, size / 4);
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(user);
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(filler);
    if (r == CUDA_SUCCESS)
        *last = words_other(fresh, mark, size / 4) != 0;
    if (r == CUDA_SUCCESS)
        r = cuMemFree(fresh);
    return r;
}

static void *free_behind_kernels(void *arg)
{
    struct worker *worker = arg;
    CUstream user, filler;
    uint32_t overwritten = 0;
    CUresult r = cuCtxSetCurrent(context);

    if (r == CUDA_SUCCESS)
        r = cuStreamCreate(&user, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS)
        r = cuStreamCreate(&filler, CU_STREAM_NON_BLOCKING);
    for (unsigned int i = 0; i < 30 && r == CUDA_SUCCESS && !overwritten; i++)
        r = worker_round(user, filler, sizes[(i + worker->number) % SIZES],
                         0x10000u * worker->number + i + 1, &overwritten);
    worker->result = r;
    worker->bad = overwritten ? "a new owner's words were overwritten" : NULL;
    return NULL;
}

Test(reuse, by_threads_at_once)
{
    enum { THREADS = 4 };
    struct worker worker[THREADS];
    pthread_t thread[THREADS];

    OK(launch_spin(CU_STREAM_LEGACY, 1));
    for (unsigned int i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.number = i + 1};
        cr_assert_eq(pthread_create(&thread[i], NULL, free_behind_kernels, &worker[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        cr_assert_null(worker[i].bad, "%s", worker[i].bad);
        OK(worker[i].result);
    }
}

/* One thread's kernel, another thread's free, a third one's allocation. */
struct relay {
    pthread_barrier_t turn;
    CUdeviceptr block;
    CUresult result;
};

static void *relay_free(void *arg)
{
    struct relay *relay = arg;

    relay->result = cuCtxSetCurrent(context);
    for (int i = 0; i < 20; i++) {
        CUresult r;
        pthread_barrier_wait(&relay->turn);
        r = cuMemFree(relay->block);
        if (r != CUDA_SUCCESS)
            relay->result = r;
        pthread_barrier_wait(&relay->turn);
    }
    return NULL;
}

Test(reuse, after_another_threads_free)
{
    struct relay relay = {.result = CUDA_SUCCESS};
    CUstream user = new_stream(), filler = new_stream();
    pthread_t thread;
    int overwritten = 0;

    pthread_barrier_init(&relay.turn, NULL, 2);
    cr_assert_eq(pthread_create(&thread, NULL, relay_free, &relay), 0);
    for (int i = 0; i < 20; i++) {
        size_t size = sizes[(size_t)i % SIZES];
        CUdeviceptr fresh = 0;

        cr_expect_eq(cuMemAlloc(&relay.block, size), CUDA_SUCCESS);
        cr_expect_eq(launch_spin_fill(user, relay.block, OLD, size / 4, 3 * MILLISECOND),
                     CUDA_SUCCESS);
        pthread_barrier_wait(&relay.turn);
        pthread_barrier_wait(&relay.turn);
        cr_expect_eq(cuMemAlloc(&fresh, size), CUDA_SUCCESS);
        cr_expect_eq(launch_fill(filler, fresh, NEW, size / 4), CUDA_SUCCESS);
        cr_expect_eq(cuCtxSynchronize(), CUDA_SUCCESS);
        overwritten += words_other(fresh, NEW, size / 4) != 0;
        cr_expect_eq(cuMemFree(fresh), CUDA_SUCCESS);
    }
    pthread_join(thread, NULL);
    OK(relay.result);
    cr_assert_eq(overwritten, 0);
}

/* ---- what free waits for ---- */

/* Whether the kernel still runs when the free has returned. */
static bool free_returns_before(CUstream stream, enum memory_kind kind)
{
    CUdeviceptr ptr = 0;
    bool before;

    if (kind == MEMORY_ASYNC)
        OK(cuMemAllocAsync(&ptr, 4 * MIB, stream));
    else
        OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(launch_spin_fill(stream, ptr, 1, MIB, 500 * MILLISECOND));
    if (kind == MEMORY_ASYNC)
        OK(cuMemFreeAsync(ptr, stream));
    else
        OK(cuMemFree(ptr));
    before = is_busy(stream);
    OK(cuCtxSynchronize());
    return before;
}

static bool free_may_return_before(CUstream stream, enum memory_kind kind)
{
    bool before = false;

    for (int i = 0; i < BUSY_TRIES && !before; i++)
        before = free_returns_before(stream, kind);
    return before;
}

Test(reuse, free_waits_natively_and_not_under_the_shim)
{
    CUstream stream = new_stream();
    bool waits;

    OK(launch_spin(stream, MILLISECOND)); /* load the kernels first */
    OK(cuStreamSynchronize(stream));
    if (under_shim())
        waits = !free_may_return_before(stream, MEMORY_PLAIN);
    else
        waits = !free_returns_before(stream, MEMORY_PLAIN);
    probe("free_behind_a_kernel_waits", "%s", waits ? "yes" : "no");
    cr_assert_eq(waits, !under_shim());
}

Test(reuse, async_free_never_waits)
{
    cr_assert(free_may_return_before(new_stream(), MEMORY_ASYNC));
}

/* Frees in a row behind one long kernel: what runs ahead of the GPU stays bounded by the device,
 * and the program meets no out-of-memory that waiting would have prevented. */
Test(reuse, run_ahead_never_runs_out_of_memory)
{
    CUstream stream = new_stream();
    size_t limit = memory_free_bytes();
    size_t size = 48 * MIB, sum = 0;

    if (!software_driver())
        cr_skip_test("the device is not this test's alone");
    OK(launch_spin(stream, 200 * MILLISECOND));
    while (sum < 3 * limit) {
        CUdeviceptr ptr = allocated(size);

        OK(launch_fill(stream, ptr, 1, 64));
        OK(cuMemFree(ptr));
        sum += size;
    }
    OK(cuCtxSynchronize());
}
