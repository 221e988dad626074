/*
 * Freed memory is not handed out while GPU work submitted before the free can still touch it: the
 * promise the shim must keep although its cuMemFree does not wait. Each test frees behind a kernel
 * that writes late, gets new memory at once, and looks whether the old kernel's words turn up
 * there. Threads against each other: tests/stress.
 */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(reuse, .init = conform_start, .timeout = 60);

#define OLD 0x01d01d01u
#define NEW 0x2e2e2e2eu

static const size_t sizes[] = {512, 64 * KIB, MIB, 2 * MIB, 6 * MIB};
#define SIZES (sizeof sizes / sizeof sizes[0])

Test(reuse, behind_a_non_blocking_stream)
{
    turns_over(&(struct turn){.has = PLAINLY,
                              .works = new_stream(),
                              .frees = PLAINLY,
                              .takes = PLAINLY,
                              .fills = new_stream()},
               40);
}

Test(reuse, behind_the_default_streams)
{
    struct turn turn = {.has = PLAINLY, .frees = PLAINLY, .takes = PLAINLY, .fills = new_stream()};

    turn.works = CU_STREAM_LEGACY;
    turns_over(&turn, 10);
    turn.works = CU_STREAM_PER_THREAD;
    turns_over(&turn, 10);
}

Test(reuse, behind_a_destroyed_stream)
{
    struct turn turn = {.has = PLAINLY,
                        .frees = PLAINLY,
                        .takes = PLAINLY,
                        .fills = new_stream(),
                        .destroys = true};

    for (size_t i = 0; i < 3 * SIZES; i++) {
        turn.works = new_stream();
        turn_over(&turn, sizes[i % SIZES]);
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
    CUdeviceptr old[STREAMS];

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
        next_owners(STREAMS, size, filler, 0);
    }
}

/* A kernel that writes all the time catches even a short moment of two owners. */
Test(reuse, behind_a_kernel_that_keeps_writing)
{
    CUstream user = new_stream(), filler = new_stream();
    CUdeviceptr old = 0;

    for (int i = 0; i < 10; i++) {
        size_t size = sizes[(size_t)i % SIZES];

        OK(cuMemAlloc(&old, size));
        OK(launch_scribble(user, old, size / 4, 10 * MILLISECOND));
        OK(cuMemFree(old));
        next_owners(8, size, filler, 0);
    }
}

/* Blocks of other sizes carved from what was freed. */
Test(reuse, in_other_sizes)
{
    CUstream user = new_stream(), filler = new_stream();
    CUdeviceptr old = 0;

    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc(&old, 8 * MIB));
        OK(launch_spin_fill(user, old, OLD, 2 * MIB, 5 * MILLISECOND));
        OK(cuMemFree(old));
        next_owners(16, 512 * KIB, filler, 0);
    }
}

/* Memory of either kind freed in stream order behind a kernel; then the calls cross: cuMemAlloc
 * gets what cuMemFreeAsync gave back. */
Test(reuse, across_plain_and_async_memory)
{
    CUstream user = new_stream(), filler = new_stream();

    for (int i = 0; i < 4; i++)
        turns_over(&(struct turn){.has = i % 2 ? PLAINLY : user,
                                  .works = user,
                                  .frees = user,
                                  .takes = i < 2 ? PLAINLY : filler,
                                  .fills = filler},
                   SIZES);
}

/* Plain memory's free covers every stream's work, also where cuMemAllocAsync takes the block. */
Test(reuse, of_plain_memory_by_async_memory)
{
    CUstream filler = new_stream();

    turns_over(&(struct turn){.has = PLAINLY,
                              .works = new_stream(),
                              .frees = PLAINLY,
                              .takes = filler,
                              .fills = filler},
               15);
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
