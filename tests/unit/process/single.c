/* Single-stream mode (core/gpu/single.h): which memory goes back to the driver, and contexts that
 * may end. */
#include <criterion/criterion.h>

#include "core/process/reclaim.h"
#include "tests/driver/softcuda.h"
#include "tests/rest.h"
#include "tests/unit/single_fixture.h"

/* Chunks that the GPU is at stay, and go when it has passed. */
Test(single, a_piece_goes_back_when_no_work_touches_it)
{
    CUdeviceptr block;

    lone_start(&f);
    block = lone_alloc(&f, 200 * MIB);
    softcuda_hold(1);
    lone_fill(&f, f.a, block, 1, 0);
    lone_free(&f, block);
    cr_assert_eq(fixture_release(&f.base, false), 0);
    cr_assert_eq(fixture_arena(&f.base).reserved, 200 * MIB);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    fixture_release(&f.base, false);
    cr_assert_eq(fixture_arena(&f.base).reserved, 0);
    cr_assert_eq(single_stream(&f), (uint64_t)(uintptr_t)f.a);
}

static CUdeviceptr lone_ordered(CUstream stream)
{
    CUdeviceptr block;

    MUST(gs_core_alloc_async(f.base.core, 32 * MIB, NULL, stream, &block));
    return block;
}

/* The GPU is at the first one, and nothing waits for that. */
Test(single, what_was_freed_in_stream_order_merges_before_memory_is_made)
{
    CUdeviceptr block[3], all;
    size_t reserved;

    lone_start(&f);
    for (int by_stream = 0; by_stream < 2; by_stream++) {
        for (int i = 0; i < 3; i++)
            block[i] = lone_ordered(f.a);
        reserved = fixture_arena(&f.base).reserved;
        softcuda_hold(1);
        lone_fill(&f, f.a, block[0], 1, 0);
        for (int i = 2; i >= 0; i--)
            MUST(gs_core_free_async(f.base.core, block[i], i == 1 ? f.b : f.a));
        if (by_stream)
            MUST(gs_core_alloc_async(f.base.core, 96 * MIB, NULL, f.a, &all));
        else
            all = lone_alloc(&f, 96 * MIB);
        softcuda_hold(0);
        cr_assert_eq(all, block[0]);
        cr_assert_eq(fixture_arena(&f.base).reserved, reserved);
        cr_assert_eq(fixture_counts(&f.base).events, 0, "and none is behind that");
        MUST(cuCtxSynchronize());
        lone_free(&f, all);
    }
}

/* Of half a gigabyte that is live a quarter is more than that, and stays a stream's where others
 * have work. */
Test(single, no_more_than_64_mib_of_what_its_stream_freed_stays_apart)
{
    CUdeviceptr block[16];
    size_t live;

    for (int several = 0; several < 2; several++) {
        lone_start(&f);
        for (int i = 0; i < 16; i++)
            block[i] = lone_ordered(f.a);
        lone_fill(&f, f.a, block[0], 1, 0);
        if (several)
            lone_fill(&f, f.b, block[1], 1, 0);
        MUST(cuCtxSynchronize());
        live = fixture_arena(&f.base).live;
        for (int i = 0; i < 3; i++) {
            MUST(gs_core_free_async(f.base.core, block[i], f.a));
            cr_assert_eq(fixture_arena(&f.base).retired,
                         i < 2 || several ? live - fixture_arena(&f.base).live : 0);
        }
        lone_finish(&f);
    }
}

/* It is in the order of a stream that has none: the single one does not come behind it. */
Test(single, what_another_stream_worked_on_is_not_free_for_all)
{
    CUdeviceptr block[3], other;

    lone_start(&f);
    other = lone_alloc(&f, 8 * MIB);
    lone_fill(&f, f.a, other, 1, 0);
    MUST(cuCtxSynchronize());
    for (int i = 0; i < 3; i++)
        block[i] = lone_ordered(f.b);
    softcuda_hold(1);
    gs_core_touches(f.base.core, f.b, block[1], 0);
    MUST(cuMemsetD32Async(block[1], 7, WORDS, f.b));
    for (int i = 0; i < 3; i++) {
        MUST(gs_core_free_async(f.base.core, block[i], f.b));
        cr_assert_eq(gs_core_free(f.base.core, block[i]), GS_NOT_LIVE, "it is free, %d", i);
    }
    cr_assert_eq(single_stream(&f), (uint64_t)(uintptr_t)f.a);
    other = lone_alloc(&f, 64 * MIB);
    softcuda_hold(0);
    cr_assert_neq(other, block[0], "the other stream was at half of it");
    MUST(cuCtxSynchronize());
}

/* Who runs out of memory waits for the GPU before it unmaps what it works on. */
Test(single, memory_for_another_size_is_waited_for)
{
    CUdeviceptr block;
    size_t left, total;

    lone_start(&f);
    MUST(cuMemGetInfo(&left, &total));
    left = left / 2 & ~(2 * MIB - 1);
    block = lone_alloc(&f, left);
    lone_fill(&f, f.a, block, 1, 30 * MS);
    lone_free(&f, block);
    block = lone_alloc(&f, left + left / 2);
    lone_fill(&f, f.a, block, 2, 0);
    cr_assert_eq(lone_others(&f, block, 2), 0, "and no fault");
    lone_free(&f, block);
}

/* While a call of the driver may end the context, no event is made in it. */
Test(single, a_second_stream_comes_behind_though_the_context_may_end)
{
    struct gs_context *detached;
    CUdeviceptr block, other;

    lone_start(&f);
    block = lone_alloc(&f, 8 * MIB);
    other = lone_alloc(&f, 8 * MIB);
    lone_fill(&f, f.a, block, 1, 20 * MS);
    lone_free(&f, block);
    cr_assert_eq(lone_alloc(&f, 8 * MIB), block);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    lone_free(&f, other);
    lone_fill(&f, f.b, block, 2, 0);
    gs_core_context_stays(f.base.core, f.base.context, detached);
    cr_assert_eq(lone_others(&f, block, 2), 0);
}

static void *stays_late(void *detached)
{
    const struct timespec moment = {.tv_nsec = 10000000};

    nanosleep(&moment, NULL);
    gs_core_context_stays(f.base.core, f.base.context, detached);
    return NULL;
}

/* The whole process may have stood still in the midst of the call that the context outlives. */
Test(single, a_call_that_may_end_the_context_is_waited_for_by_what_runs)
{
    const struct timespec long_ago = {.tv_sec = 1, .tv_nsec = 200000000};
    struct gs_context *detached;
    CUdeviceptr block;
    pthread_t thread;

    lone_start(&f);
    softcuda_hold(1);
    block = lone_reused_behind(&f, 50 * MS);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    nanosleep(&long_ago, NULL);
    softcuda_hold(0);
    MUST(pthread_create(&thread, NULL, stays_late, detached));
    lone_fill(&f, f.b, block, 2, 0);
    MUST(pthread_join(thread, NULL));
    cr_assert_eq(lone_others(&f, block, 2), 0);
}

static void *releases(void *arg)
{
    MUST(cuCtxSetCurrent(f.base.context));
    fixture_release(&f.base, true);
    return NULL;
}

/* Who waits for what was freed in the single stream asks nothing about a context that may go. */
Test(single, nothing_is_asked_about_a_context_that_may_go)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    struct gs_context *detached;
    unsigned long asked;
    CUdeviceptr block;
    pthread_t thread;

    lone_start(&f);
    block = lone_alloc(&f, 8 * MIB);
    softcuda_hold(1);
    lone_fill(&f, f.a, block, 1, 0);
    lone_free(&f, block);
    MUST(pthread_create(&thread, NULL, releases, &f));
    for (int i = 0; i < 10000 && softcuda_calls("cuEventQuery") == 0; i++)
        nanosleep(&moment, NULL); /* until it waits */
    detached = gs_core_context_detach(f.base.core, f.base.context);
    asked = softcuda_calls("cuEventQuery");
    cr_assert_gt(asked, 0);
    cr_assert(all_rest(0));
    cr_assert_eq(softcuda_calls("cuEventQuery"), asked);
    gs_core_context_stays(f.base.core, f.base.context, detached);
    softcuda_hold(0);
    MUST(pthread_join(thread, NULL));
}

/* A primary context that is reset keeps its handle. Who uses it again while that call is not back
 * yet, is in another context. */
Test(single, a_context_may_be_back_before_its_end_is_known)
{
    struct gs_context *detached;

    lone_start(&f);
    lone_free(&f, lone_alloc(&f, 8 * MIB));
    lone_fill(&f, f.a, lone_alloc(&f, 8 * MIB), 1, 0);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    lone_fill(&f, f.a, lone_alloc(&f, 8 * MIB), 1, 0);
    gs_core_context_gone(f.base.core, f.base.context, detached);
    for (unsigned i = 0; i < 2; i++) {
        CUdeviceptr block = lone_alloc(&f, 8 * MIB);

        lone_fill(&f, f.a, block, 1, 0);
        lone_free(&f, block);
    }
    MUST(cuCtxSynchronize());
}

/* A context that may go and stays is the same; one that is gone has no work, and another may have
 * one stream again. */
Test(single, a_context_may_end)
{
    CUdeviceptr block;
    struct gs_context *detached;
    CUcontext again;
    CUstream stream;

    lone_start(&f);
    block = lone_alloc(&f, 8 * MIB);
    lone_fill(&f, f.a, block, 1, 5 * MS);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    gs_core_context_stays(f.base.core, f.base.context, detached);
    cr_assert_eq(single_stream(&f), (uint64_t)(uintptr_t)f.a);
    lone_free(&f, block);
    cr_assert_eq(lone_alloc(&f, 8 * MIB), block);
    lone_free(&f, block);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    MUST(cuCtxSynchronize());
    gs_core_context_gone(f.base.core, f.base.context, detached);
    cr_assert_eq(single_stream(&f), GS_SINGLE_UNUSED);

    again = fixture_context_new();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    block = lone_alloc(&f, 8 * MIB);
    lone_fill(&f, stream, block, 2, 5 * MS);
    lone_free(&f, block);
    cr_assert_eq(lone_alloc(&f, 8 * MIB), block);
    cr_assert_eq(fixture_counts(&f.base).at_once, 3);
    lone_free(&f, block);
    gs_core_context_gone(f.base.core, again, gs_core_context_detach(f.base.core, again));
    MUST(cuCtxDestroy(again));
    MUST(cuCtxSetCurrent(f.base.context));
}

/* What was free at once goes back when it lies idle, though no free comes after the GPU's work. */
Test(single, idle_memory_goes_back)
{
    const struct timespec moment = {.tv_nsec = 2000000};
    CUdeviceptr block;

    fixture_options(&f.base);
    f.base.options.single_stream = true;
    f.base.options.decay_ns = 20 * MS;
    fixture_start(&f.base);
    MUST(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&f.b, CU_STREAM_NON_BLOCKING));
    block = lone_alloc(&f, 500 * MIB);
    softcuda_hold(1);
    lone_fill(&f, f.a, block, 1, 0);
    lone_free(&f, block);
    for (int i = 0; i < 100; i++)
        nanosleep(&moment, NULL); /* the thread has looked in vain, and may sleep for good */
    cr_assert_geq(fixture_arena(&f.base).reserved, 500 * MIB);
    softcuda_hold(0);
    for (int i = 0; i < 5000 && fixture_arena(&f.base).reserved > 64 * MIB; i++)
        nanosleep(&moment, NULL);
    cr_assert_leq(fixture_arena(&f.base).reserved, 64 * MIB);
}
