/* All work in one stream, and what ends that (core/gpu/single.h). */
#include <criterion/criterion.h>

#include "tests/driver/softcuda.h"
#include "tests/rest.h"
#include "tests/unit/single_fixture.h"

static void reused_at_once(size_t size)
{
    CUdeviceptr block, next;

    lone_start(&f);
    block = lone_alloc(&f, size);
    softcuda_hold(1);
    lone_fill(&f, f.a, block, 1, 0);
    for (unsigned i = 2; i < 10; i++) {
        lone_free(&f, block);
        next = lone_alloc(&f, size);
        cr_assert_eq(next, block);
        lone_fill(&f, f.a, block, i, 0);
    }
    cr_assert_eq(fixture_counts(&f.base).at_once, 8);
    cr_assert_eq(fixture_counts(&f.base).waits, 0);
    cr_assert_eq(fixture_arena(&f.base).retired, 0);
    softcuda_hold(0);
    cr_assert_eq(lone_others(&f, block, 9), 0);
    lone_finish(&f);
}

Test(single, small_blocks_are_reused_at_once)
{
    reused_at_once(64 << 10);
}

Test(single, large_blocks_are_reused_at_once)
{
    reused_at_once(8 * MIB);
}

/* The second owner's work is on another stream, where nothing but the library orders it. */
Test(single, a_second_stream_comes_behind_what_was_freed)
{
    CUdeviceptr block, other;

    lone_start(&f);
    softcuda_hold(1);
    block = lone_reused_behind(&f, 30 * MS);
    lone_fill(&f, f.b, block, 2, 0);
    cr_assert_eq(single_stream(&f), GS_SINGLE_DRAINING);
    softcuda_hold(0);
    cr_assert_eq(lone_others(&f, block, 2), 0);
    /* From now on frees wait. */
    softcuda_hold(1);
    lone_fill(&f, f.b, block, 3, 0);
    cr_assert_eq(single_stream(&f), GS_SINGLE_MULTI);
    lone_free(&f, block);
    other = lone_alloc(&f, 8 * MIB);
    cr_assert_neq(other, block);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
}

/* So long as the single stream is behind, every stream waits, not only the first that came; and the
 * legacy default stream is one as any other. */
Test(single, every_other_stream_comes_behind)
{
    static const CUstream by_name[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

    for (size_t i = 0; i < sizeof by_name / sizeof *by_name; i++) {
        CUdeviceptr block[2];

        lone_start(&f);
        for (int k = 0; k < 2; k++) {
            block[k] = lone_alloc(&f, 8 * MIB);
            lone_fill(&f, f.a, block[k], 1, 20 * MS);
        }
        lone_free(&f, block[0]);
        lone_free(&f, block[1]);
        block[0] = lone_alloc(&f, 8 * MIB);
        block[1] = lone_alloc(&f, 8 * MIB);
        lone_fill(&f, f.b, block[0], 2, 0);
        lone_fill(&f, by_name[i], block[1], 3, 0);
        cr_assert_eq(lone_others(&f, block[0], 2), 0);
        cr_assert_eq(lone_others(&f, block[1], 3), 0);
        lone_finish(&f);
    }
}

static void *works_on_b(void *arg)
{
    MUST(cuCtxSetCurrent(f.base.context));
    gs_single_submits(gs_core_single(f.base.core), f.b);
    return NULL;
}

/* A stream that the driver takes no wait for is waited for by its thread alone: the GPU may need
 * what another thread submits to get there. */
Test(single, a_stream_that_cannot_wait_keeps_no_other_thread, .timeout = 60)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    pthread_t thread;

    lone_start(&f);
    softcuda_hold(1);
    lone_reused_behind(&f, 0);
    cr_assert_eq(softcuda_fail("cuStreamWaitEvent", 1, CUDA_ERROR_INVALID_HANDLE), 0);
    pthread_create(&thread, NULL, works_on_b, &f);
    while (softcuda_calls("cuStreamWaitEvent") == 0)
        nanosleep(&moment, NULL);
    gs_single_submits(gs_core_single(f.base.core), f.a);
    gs_single_stalls(gs_core_single(f.base.core), f.a);
    softcuda_hold(0);
    pthread_join(thread, NULL);
    cr_assert_eq(single_stream(&f), GS_SINGLE_MULTI);
    cr_assert_eq(cuStreamQuery(f.a), CUDA_SUCCESS, "the other came behind");
}

/* A driver that has no memory for an event just then has one later; what was freed has not passed
 * for that. */
Test(single, a_second_stream_comes_behind_where_memory_is_out)
{
    const char *const calls[] = {"cuEventCreate", fixture_recording_call()};

    for (size_t i = 0; i < 2; i++) {
        CUdeviceptr block;

        lone_start(&f);
        block = lone_reused_behind(&f, 30 * MS);
        for (unsigned nth = 1; nth < 4; nth++)
            cr_assert_eq(softcuda_fail(calls[i], nth, CUDA_ERROR_OUT_OF_MEMORY), 0);
        lone_fill(&f, f.b, block, 2, 0);
        cr_assert_eq(lone_others(&f, block, 2), 0, "%s", calls[i]);
        softcuda_reset();
        lone_finish(&f);
    }
}

/* The first of what is submitted next, and no wait but for what came before. */
static void ends_for_want_of_a_mark(const char *call, void (*submit)(struct single_fixture *lone))
{
    CUdeviceptr block;

    lone_start(&f);
    softcuda_hold(1);
    block = lone_reused_behind(&f, 0);
    cr_assert_eq(fixture_counts(&f.base).at_once, 1);
    cr_assert_eq(softcuda_fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY), 0);
    submit(&f);
    cr_assert_neq(single_stream(&f), (uint64_t)(uintptr_t)f.a, "%s", call);
    lone_fill(&f, f.a, block, 2, 0);
    lone_free(&f, block);
    cr_assert_eq(fixture_counts(&f.base).at_once, 1, "%s: no mark, and still at once", call);
    softcuda_reset();
    MUST(cuCtxSynchronize());
    lone_finish(&f);
}

static void stalls(struct single_fixture *lone)
{
    gs_single_stalls(gs_core_single(lone->base.core), lone->a);
}

/* What is submitted without a mark before it may never end, and others would wait for it. */
Test(single, a_mark_that_cannot_be_made_ends_it)
{
    ends_for_want_of_a_mark("cuEventCreate", lone_submits_on_a);
    ends_for_want_of_a_mark(fixture_recording_call(), lone_submits_on_a);
    ends_for_want_of_a_mark(fixture_recording_call(), stalls);
}

/* Who has the memory that the driver lacks for an event may be the one that waits. */
Test(single, a_driver_without_memory_for_an_event_is_not_waited_for, .timeout = 60)
{
    CUcontext context, current;
    CUdeviceptr block;

    lone_start(&f);
    block = lone_reused_behind(&f, 30 * MS);
    cr_assert_eq(softcuda_fail("cuEventCreate", 0, CUDA_ERROR_OUT_OF_MEMORY), 0);
    MUST(cuCtxPopCurrent(&context));
    gs_single_submits(gs_core_single(f.base.core), f.b);
    MUST(cuCtxGetCurrent(&current));
    cr_assert_null(current, "the wait's own context stays with the thread");
    MUST(cuCtxPushCurrent(context));
    lone_fill(&f, f.b, block, 2, 0);
    cr_assert_eq(single_stream(&f), GS_SINGLE_MULTI);
    softcuda_reset();
    cr_assert_eq(lone_others(&f, block, 2), 0);
}

/* Copies and fills say what they touch: libraries make a fill on a stream of their own as they
 * start, and everything else on the program's. */
Test(single, a_fill_on_another_stream_ends_nothing)
{
    CUdeviceptr block, other;

    lone_start(&f);
    block = lone_alloc(&f, 8 * MIB);
    gs_core_touches(f.base.core, f.b, block, 0);
    MUST(cuMemsetD32Async(block, 7, WORDS, f.b));
    cr_assert_eq(single_stream(&f), GS_SINGLE_UNUSED);
    lone_free(&f, block);
    cr_assert_eq(fixture_counts(&f.base).at_once, 0);
    MUST(cuCtxSynchronize());

    block = lone_reused_behind(&f, 20 * MS);
    gs_core_touches(f.base.core, f.b, 0, block + 4);
    gs_core_touches(f.base.core, f.b, block + 4, 0);
    MUST(cuMemsetD32Async(block, 2, WORDS, f.b));
    cr_assert_eq(lone_others(&f, block, 2), 0);
    cr_assert_eq(single_stream(&f), (uint64_t)(uintptr_t)f.a);

    other = lone_alloc(&f, 8 * MIB);
    softcuda_hold(1);
    gs_core_touches(f.base.core, f.b, block, 0);
    MUST(cuMemsetD32Async(block, 3, WORDS, f.b));
    lone_free(&f, block);
    cr_assert_neq(lone_alloc(&f, 8 * MIB), block, "the other stream may be at it");
    lone_free(&f, other);
    cr_assert_eq(lone_alloc(&f, 8 * MIB), other);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    lone_free(&f, other);
    cr_assert_eq(lone_alloc(&f, 8 * MIB), other);
    gs_core_touches(f.base.core, f.a, other, 0);
    lone_free(&f, other);
    cr_assert_eq(lone_alloc(&f, 8 * MIB), other, "on the single stream it is as any work");
    cr_assert_eq(fixture_counts(&f.base).at_once, 4);
}

/* A launch that may overtake the work before it would meet the last owner's of a block that was
 * freed: one in order comes first. What marks the free beside that is none, nor is what the driver
 * never got, nor one that was told of before the free. */
Test(single, nothing_overtakes_the_work_on_what_was_freed)
{
    struct gs_single *single;
    CUdeviceptr block, other;
    uint64_t marks, old = 0;

    lone_start(&f);
    single = gs_core_single(f.base.core);
    block = lone_alloc(&f, 8 * MIB);
    other = lone_alloc(&f, 8 * MIB);
    for (int i = 0; i < 6; i++) {
        lone_fill(&f, f.a, block, 1, 0);
        cr_assert(gs_single_may_overtake(single, f.a, &marks), "nothing was freed");
        lone_free(&f, block);
        cr_assert_eq(lone_alloc(&f, 8 * MIB), block);
        if (i == 1)
            gs_core_touches(f.base.core, f.b, other, 0);
        if (i == 2)
            gs_single_stalls(single, f.b);
        if (i == 3)
            gs_core_context_stays(f.base.core, f.base.context,
                                  gs_core_context_detach(f.base.core, f.base.context));
        if (i == 4)
            gs_single_submits(single, f.a);
        if (i == 5)
            gs_single_in_order(single, old);
        cr_assert_not(gs_single_may_overtake(single, f.a, &marks), "%d", i);
        cr_assert_not(gs_single_may_overtake(single, f.a, &marks), "%d: the driver took none", i);
        gs_single_in_order(single, marks);
        cr_assert(gs_single_may_overtake(single, f.a, &old), "one was in order");
        old = marks;
    }
    MUST(cuCtxSynchronize());
}

static void wait_for_post(void *arg)
{
    sem_wait(arg);
}

/* Work that ends only when the program lets it, such as a kernel that serves requests, or a
 * function of the host: submitted behind the last free, on the single stream or another one, it
 * keeps no other stream. The driver's own free would not have waited for it, nor would anything
 * else. */
static void keeps_nobody(bool is_work, bool elsewhere)
{
    CUdeviceptr block;
    CUstream other;
    sem_t end;

    sem_init(&end, 0, 0);
    lone_start(&f);
    block = lone_reused_behind(&f, 5 * MS);
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    if (is_work)
        gs_single_submits(gs_core_single(f.base.core), f.a);
    else
        gs_single_stalls(gs_core_single(f.base.core), f.a);
    MUST(cuLaunchHostFunc(elsewhere ? other : f.a, wait_for_post, &end));
    lone_fill(&f, f.b, block, 2, 0);
    MUST(cuStreamSynchronize(f.b));
    cr_assert_eq(cuStreamQuery(elsewhere ? other : f.a), CUDA_ERROR_NOT_READY);
    gs_single_drain(gs_core_single(f.base.core), "the test goes on");
    sem_post(&end);
    cr_assert_eq(lone_others(&f, block, 2), 0);
    MUST(cuStreamDestroy(other));
    lone_finish(&f);
    sem_destroy(&end);
}

Test(single, work_behind_the_last_free_keeps_nobody, .timeout = 60)
{
    keeps_nobody(true, false);
}

Test(single, what_stalls_behind_the_last_free_keeps_nobody, .timeout = 60)
{
    keeps_nobody(false, false);
    keeps_nobody(false, true);
}

/* Drivers before CUDA 12.5: what other streams wait for is an event in the stream that was
 * alone. */
Test(single, without_context_events_a_mark_is_an_event_in_the_single_stream, .timeout = 60)
{
    CUdeviceptr block;

    for (int works_first = 0; works_first < 2; works_first++) {
        softcuda_without("ctx_record_event");
        lone_start(&f);
        if (works_first)
            lone_submits_on_a(&f);
        softcuda_hold(1);
        block = lone_reused_behind(&f, 20 * MS);
        gs_single_submits(gs_core_single(f.base.core), f.b);
        cr_assert_eq(cuStreamQuery(f.a), CUDA_ERROR_NOT_READY, "the stream waits, not the thread");
        fixture_spin_fill(&f.base, f.b, block, 2, WORDS, 0);
        softcuda_hold(0);
        cr_assert_eq(lone_others(&f, block, 2), 0);
        lone_finish(&f);
        softcuda_without("");
    }
}

/* Its end in a capture leaves no mark, and the next stream waits for the context. */
Test(single, without_context_events_nothing_is_recorded_in_a_stream_that_is_gone)
{
    unsigned long before;
    CUdeviceptr block;

    softcuda_without("ctx_record_event");
    lone_start(&f);
    block = lone_reused_behind(&f, 20 * MS);
    MUST(gs_fences_capture_begin(fixture_fences(&f.base), 8, f.base.context, f.base.context));
    gs_core_stream_gone(f.base.core, f.a);
    MUST(cuStreamDestroy(f.a));
    gs_fences_capture_end(fixture_fences(&f.base), 8, NULL);
    before = softcuda_calls("cuEventRecord");
    lone_fill(&f, f.b, block, 2, 0);
    cr_assert_eq(softcuda_calls("cuEventRecord"), before);
    cr_assert_eq(single_stream(&f), GS_SINGLE_MULTI);
    MUST(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    cr_assert_eq(lone_others(&f, block, 2), 0);
    lone_finish(&f);
    softcuda_without("");
}

/* A new stream may have the handle of the one that was alone: it is not ordered behind it. */
Test(single, the_streams_end_is_the_end)
{
    unsigned long waits;
    CUdeviceptr block;
    CUstream gone;

    lone_start(&f);
    gone = f.a;
    softcuda_hold(1);
    block = lone_reused_behind(&f, 20 * MS);
    gs_core_stream_gone(f.base.core, f.a);
    cr_assert_eq(single_stream(&f), GS_SINGLE_DRAINING);
    waits = softcuda_calls("cuStreamWaitEvent");
    gs_single_submits(gs_core_single(f.base.core), gone); /* as if it were another */
    cr_assert_eq(softcuda_calls("cuStreamWaitEvent"), waits + 1);
    fixture_spin_fill(&f.base, f.b, block, 2, WORDS, 0);
    cr_assert_eq(cuStreamQuery(gone), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(gone));
    MUST(cuStreamDestroy(gone));
    MUST(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    lone_fill(&f, f.b, block, 2, 0);
    cr_assert_eq(single_stream(&f), GS_SINGLE_MULTI);
    cr_assert_eq(lone_others(&f, block, 2), 0);
}
