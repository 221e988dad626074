/* Drivers without cuCtxRecordEvent: a fence is behind every stream that was told of work, and what
 * the rules are for those in which no event can be had (core/gpu/told.h). */
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/fixture.h"

#define NOT_READY CUDA_ERROR_NOT_READY

struct told {
    struct fixture base;
    struct gs_fences *fences;
    struct gs_fence_pool pool;
    CUdeviceptr word;
    CUstream a, b;
};

static void told_start(struct told *t, unsigned flags)
{
    softcuda_without("ctx_record_event");
    fixture_options(&t->base);
    fixture_start(&t->base);
    MUST(gs_core_alloc(t->base.core, 4096, &t->word)); /* the first context says what there is */
    t->fences = fixture_fences(&t->base);
    cr_assert(t->fences->tells);
    gs_fence_pool_init(t->fences, &t->pool, t->base.context, NULL);
    MUST(cuStreamCreate(&t->a, flags));
    MUST(cuStreamCreate(&t->b, flags));
}

static void told_end(struct told *t)
{
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    MUST(gs_core_free(t->base.core, t->word));
    gs_core_stream_gone(t->base.core, t->b);
    MUST(cuStreamDestroy(t->b));
    if (t->a) {
        gs_core_stream_gone(t->base.core, t->a);
        MUST(cuStreamDestroy(t->a));
    }
    gs_fence_pool_destroy(&t->pool);
    fixture_end(&t->base);
    softcuda_without("");
}

/* Without telling: as what a hook submits after it has told. */
static void submit(struct told *t, CUstream stream)
{
    unsigned long long words = 1, delay = 0;
    unsigned value = 1;
    void *parameters[] = {&t->word, &value, &words, &delay};

    MUST(cuLaunchKernel(t->base.spin_fill, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
}

static void work(struct told *t, CUstream stream)
{
    MUST(!gs_told_work(t->fences, stream));
    submit(t, stream);
}

static struct gs_fence fence_now(struct told *t)
{
    struct gs_fence fence;

    MUST(gs_fence_record(&t->pool, &fence));
    return fence;
}

static gs_status query(struct told *t, const struct gs_fence *fence)
{
    struct gs_fence copy = *fence;

    return gs_fence_query(&t->pool, &copy);
}

/* Runs `function` in a thread of its own, in the context, to its end. */
static void in_thread(struct told *t, void *(*function)(void *))
{
    pthread_t thread;

    MUST(pthread_create(&thread, NULL, function, t));
    MUST(pthread_join(thread, NULL));
}

Test(told, a_fence_is_behind_each_stream_that_was_told_and_no_other)
{
    struct gs_fence fence;
    struct told t;
    unsigned long before;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    softcuda_hold(1);
    work(&t, t.a);
    work(&t, t.b);
    before = softcuda_calls("cuEventRecord");
    fence = fence_now(&t);
    cr_assert_eq(softcuda_calls("cuEventRecord") - before, 2);
    cr_assert_eq(query(&t, &fence), NOT_READY);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(t.a));
    MUST(cuStreamSynchronize(t.b));
    cr_assert_eq(query(&t, &fence), GS_OK);
    /* b was told last, and may be about to have more; a is behind the first. */
    before = softcuda_calls("cuEventRecord");
    fence = fence_now(&t);
    cr_assert_eq(softcuda_calls("cuEventRecord") - before, 1);
    told_end(&t);
}

/* It tells, another thread records, and then it submits. */
Test(told, what_is_submitted_after_an_event_was_recorded_is_behind_the_next)
{
    struct gs_fence fence;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    softcuda_hold(1);
    MUST(!gs_told_work(t.fences, t.a));
    fence = fence_now(&t);
    submit(&t, t.a);
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), NOT_READY, "the thread told of no other stream since");
    softcuda_hold(0);
    MUST(cuStreamSynchronize(t.a));
    softcuda_hold(1);
    MUST(!gs_told_work(t.fences, t.a));
    fence = fence_now(&t);
    submit(&t, t.a);
    MUST(!gs_told_work(t.fences, t.b));
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), NOT_READY, "it did, when it had submitted");
    told_end(&t);
}

/* The short way of a thread that goes on with its stream. */
Test(told, a_thread_that_tells_the_same_stream_again_says_nothing_new)
{
    struct gs_fence fence;
    struct told t;
    uint64_t serial;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    work(&t, t.a);
    serial = t.fences->told.serial;
    cr_assert(gs_told_knows(t.fences, gs_stream_key(t.a)));
    cr_assert_not(gs_told_knows(t.fences, gs_stream_key(t.b)));
    for (int i = 0; i < 3; i++) {
        fence = fence_now(&t);
        cr_assert(gs_told_knows(t.fences, gs_stream_key(t.a)));
        softcuda_hold(1);
        submit(&t, t.a);
        fence = fence_now(&t);
        cr_assert_eq(query(&t, &fence), NOT_READY);
        softcuda_hold(0);
        MUST(gs_fence_wait(&fence, UINT64_MAX));
    }
    cr_assert_eq(t.fences->told.serial, serial);
    told_end(&t);
}

Test(told, a_destroyed_stream_has_its_event_before)
{
    struct gs_fence fence;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    softcuda_hold(1);
    work(&t, t.a);
    gs_core_stream_gone(t.base.core, t.a);
    MUST(cuStreamDestroy(t.a));
    t.a = NULL;
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), NOT_READY);
    cr_assert_not(gs_fence_is_lacking(&fence));
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    cr_assert_eq(query(&t, &fence), GS_OK);
    told_end(&t);
}

/* No event can be recorded then: the context is waited for, as the driver's free does. */
Test(told, a_stream_that_is_destroyed_in_a_capture_is_waited_for_with_its_context)
{
    unsigned long before;
    struct gs_fence fence;
    struct told t;
    CUgraph graph;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    work(&t, t.a);
    MUST(gs_core_capture_begin(t.base.core, t.b));
    MUST(cuStreamBeginCapture(t.b, CU_STREAM_CAPTURE_MODE_RELAXED));
    gs_core_stream_gone(t.base.core, t.a);
    MUST(cuStreamDestroy(t.a));
    t.a = NULL;
    MUST(cuStreamEndCapture(t.b, &graph));
    gs_core_capture_end(t.base.core, t.b);
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), NOT_READY);
    cr_assert(gs_fence_is_lacking(&fence));
    before = softcuda_calls("cuCtxSynchronize");
    MUST(gs_fence_wait(&fence, UINT64_MAX));
    cr_assert_eq(softcuda_calls("cuCtxSynchronize") - before, 1);
    cr_assert_not(gs_fence_is_lacking(&fence));
    MUST(cuGraphDestroy(graph));
    told_end(&t);
}

/* ---- Default streams of other threads ---------------------------------------------------- */

static sem_t step, done;

static void *works_in_its_own(void *arg)
{
    struct told *t = arg;

    MUST(cuCtxSetCurrent(t->base.context));
    work(t, CU_STREAM_PER_THREAD);
    sem_post(&done);
    sem_wait(&step);
    MUST(!gs_told_work(t->fences, t->b)); /* comes by */
    sem_post(&done);
    sem_wait(&step);
    return NULL;
}

static pthread_t other_thread(struct told *t, void *(*function)(void *))
{
    pthread_t thread;

    sem_init(&step, 0, 0);
    sem_init(&done, 0, 0);
    MUST(pthread_create(&thread, NULL, function, t));
    sem_wait(&done);
    return thread;
}

Test(told, a_default_stream_of_another_thread_is_recorded_when_that_comes_by)
{
    struct gs_fence fence;
    pthread_t thread;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    softcuda_hold(1);
    thread = other_thread(&t, works_in_its_own);
    fence = fence_now(&t);
    cr_assert(gs_fence_is_lacking(&fence));
    cr_assert_eq(query(&t, &fence), NOT_READY);
    sem_post(&step);
    sem_wait(&done);
    cr_assert_not(gs_fence_is_lacking(&fence));
    cr_assert_eq(query(&t, &fence), NOT_READY, "its work has not run");
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    cr_assert_eq(query(&t, &fence), GS_OK);
    sem_post(&step);
    MUST(pthread_join(thread, NULL));
    told_end(&t);
}

static void *works_and_ends(void *arg)
{
    struct told *t = arg;

    MUST(cuCtxSetCurrent(t->base.context));
    work(t, CU_STREAM_PER_THREAD);
    sem_post(&done);
    sem_wait(&step);
    return NULL;
}

Test(told, a_default_stream_of_another_thread_is_recorded_when_that_ends)
{
    for (int before = 0; before < 2; before++) {
        struct gs_fence fence = {0};
        pthread_t thread;
        struct told t;

        told_start(&t, CU_STREAM_NON_BLOCKING);
        softcuda_hold(1);
        thread = other_thread(&t, works_and_ends);
        if (before)
            fence = fence_now(&t);
        sem_post(&step);
        MUST(pthread_join(thread, NULL));
        if (!before)
            fence = fence_now(&t);
        cr_assert_not(gs_fence_is_lacking(&fence));
        cr_assert_eq(query(&t, &fence), NOT_READY);
        softcuda_hold(0);
        MUST(cuCtxSynchronize());
        cr_assert_eq(query(&t, &fence), GS_OK);
        told_end(&t);
    }
}

/* It sleeps for ever. Frees retire at first, and then one waits as the driver's does. */
Test(told, a_thread_that_never_comes_by_is_waited_for_by_frees)
{
    unsigned long before;
    pthread_t thread;
    struct told t;
    size_t most;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    thread = other_thread(&t, works_in_its_own);
    before = softcuda_calls("cuCtxSynchronize");
    for (int i = 0; i < 40; i++) {
        CUdeviceptr block;

        MUST(gs_core_alloc(t.base.core, 8 * MIB, &block));
        MUST(gs_core_free(t.base.core, block));
        cr_assert_leq(fixture_arena(&t.base).retired, 32 * MIB);
    }
    most = softcuda_calls("cuCtxSynchronize") - before;
    cr_assert_gt(most, 0);
    cr_assert_lt(most, 40);
    sem_post(&step);
    sem_post(&step);
    MUST(pthread_join(thread, NULL));
    told_end(&t);
}

/* Who waits without a bound, as a full GPU does, waits for the context too. */
Test(told, a_wait_without_a_bound_ends_without_that_thread)
{
    struct gs_fence fence;
    pthread_t thread;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    thread = other_thread(&t, works_in_its_own);
    fence = fence_now(&t);
    cr_assert_eq(gs_fence_wait(&fence, gs_now_ns() + 20 * MS), NOT_READY);
    MUST(gs_fence_wait(&fence, UINT64_MAX));
    sem_post(&step);
    sem_post(&step);
    MUST(pthread_join(thread, NULL));
    told_end(&t);
}

static void *frees_in_its_own(void *arg)
{
    struct told *t = arg;
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(t->base.context));
    MUST(gs_core_alloc(t->base.core, 4096, &block));
    work(t, CU_STREAM_PER_THREAD);
    sem_post(&done);
    sem_wait(&step);
    MUST(gs_core_free(t->base.core, block));
    sem_post(&done);
    sem_wait(&step);
    return NULL;
}

Test(told, a_free_is_one_way_to_come_by)
{
    struct gs_fence fence;
    pthread_t thread;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    thread = other_thread(&t, frees_in_its_own);
    fence = fence_now(&t);
    cr_assert(gs_fence_is_lacking(&fence));
    sem_post(&step);
    sem_wait(&done);
    cr_assert_not(gs_fence_is_lacking(&fence));
    fence = fence_now(&t);
    cr_assert_not(gs_fence_is_lacking(&fence), "it rests");
    sem_post(&step);
    MUST(pthread_join(thread, NULL));
    told_end(&t);
}

/* ---- The legacy default stream ----------------------------------------------------------- */

static void CUDA_CB wait_for_step(void *arg)
{
    sem_wait(&step);
}

/* An event there orders all blocking streams: a host function in one of them, after the free, is not
 * to keep another one. */
Test(told, the_legacy_stream_has_its_event_at_the_free_and_no_later, .timeout = 60)
{
    CUdeviceptr block, other;
    struct gs_fence fence;
    struct told t;
    uint64_t begun;

    told_start(&t, CU_STREAM_DEFAULT);
    sem_init(&step, 0, 0);
    MUST(gs_core_alloc(t.base.core, 8 * MIB, &block));
    softcuda_hold(1);
    work(&t, NULL);
    MUST(gs_core_free(t.base.core, block));
    fence = gs_fence_last(&fixture_home(&t.base)->events);
    MUST(gs_core_alloc(t.base.core, 8 * MIB, &other));
    cr_assert_neq(other, block, "its work has not run");
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    work(&t, NULL);
    MUST(gs_core_free(t.base.core, other));
    MUST(gs_core_alloc(t.base.core, 16 * MIB, &other)); /* that much later */
    work(&t, NULL);
    MUST(cuCtxSynchronize());
    MUST(cuLaunchHostFunc(t.a, wait_for_step, NULL));
    begun = fixture_home(&t.base)->events.line->begun;
    MUST(gs_core_free_async(t.base.core, other, t.b)); /* its epoch is closed at once */
    cr_assert_gt(fixture_home(&t.base)->events.line->begun, begun);
    MUST(gs_core_alloc(t.base.core, 64 * MIB, &block));
    submit(&t, t.b);
    MUST(cuStreamSynchronize(t.b)); /* for ever, were there an event in between */
    sem_post(&step);
    MUST(gs_core_free(t.base.core, block));
    cr_assert(fence.line);
    told_end(&t);
}

/* Another free, another look at the same event. */
Test(told, one_event_stands_for_all_frees_behind_the_legacy_stream)
{
    struct softcuda_census census, after;
    CUdeviceptr block[20];
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 20; i++)
        MUST(gs_core_alloc(t.base.core, 4096, &block[i]));
    softcuda_hold(1);
    for (int i = 0; i < 20; i++) {
        work(&t, NULL);
        MUST(gs_core_free(t.base.core, block[i]));
        if (i == 0)
            softcuda_census(&census);
    }
    softcuda_census(&after);
    cr_assert_eq(after.events, census.events);
    told_end(&t);
}

Test(told, in_a_capture_nothing_is_recorded_and_afterwards_all_is)
{
    CUdeviceptr block;
    unsigned long before;
    struct gs_fence fence;
    struct told t;
    CUgraph graph;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    MUST(gs_core_alloc(t.base.core, 4096, &block));
    MUST(gs_core_capture_begin(t.base.core, t.b));
    MUST(cuStreamBeginCapture(t.b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    before = softcuda_calls("cuEventRecord");
    MUST(!gs_told_work(t.fences, NULL));
    MUST(!gs_told_work(t.fences, t.a));
    MUST(gs_core_free(t.base.core, block));
    cr_assert_eq(gs_fence_record(&t.pool, &fence), GS_CAPTURING);
    cr_assert_eq(softcuda_calls("cuEventRecord"), before);
    MUST(cuStreamEndCapture(t.b, &graph));
    gs_core_capture_end(t.base.core, t.b);
    softcuda_hold(1);
    submit(&t, NULL);
    fence = gs_fence_next(&fixture_home(&t.base)->events);
    cr_assert_eq(gs_fence_query(&fixture_home(&t.base)->events, &fence), NOT_READY,
                 "the free could not record it");
    MUST(cuGraphDestroy(graph));
    told_end(&t);
}

/* ---- The rest ---------------------------------------------------------------------------- */

Test(told, a_stream_is_put_behind_all_of_them)
{
    struct gs_fence fence;
    struct told t;
    CUstream c;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    MUST(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
    sem_init(&step, 0, 0);
    for (int first = 0; first < 2; first++) {
        MUST(!gs_told_work(t.fences, t.a));
        MUST(!gs_told_work(t.fences, t.b));
        MUST(cuLaunchHostFunc(first ? t.a : t.b, wait_for_step, NULL));
        fence = fence_now(&t);
        MUST(!gs_told_work(t.fences, c));
        fence_now(&t); /* one that has less */
        cr_assert(gs_fence_order(&fence, c));
        submit(&t, c);
        for (int i = 0; i < 50 && cuStreamQuery(c) == NOT_READY; i++)
            usleep(1000); /* it would be overtaken long before */
        cr_assert_eq(cuStreamQuery(c), NOT_READY);
        sem_post(&step);
        MUST(cuStreamSynchronize(c));
    }
    gs_core_stream_gone(t.base.core, c);
    MUST(cuStreamDestroy(c));
    told_end(&t);
}

/* A free's order may be that of work elsewhere, which the stream waits for. */
Test(told, the_stream_of_an_ordered_free_is_told)
{
    CUdeviceptr block, other;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    sem_init(&step, 0, 0);
    MUST(gs_core_alloc_async(t.base.core, 8 * MIB, NULL, t.a, &block));
    MUST(cuLaunchHostFunc(t.a, wait_for_step, NULL));
    MUST(gs_core_free_async(t.base.core, block, t.a));
    MUST(gs_core_alloc_async(t.base.core, 8 * MIB, NULL, t.b, &other));
    cr_assert_neq(other, block);
    sem_post(&step);
    MUST(gs_core_free_async(t.base.core, other, t.b));
    told_end(&t);
}

/* What stalls a stream may be the wait for another context's work on this one's memory. */
Test(told, what_stalls_a_stream_is_told_too)
{
    struct gs_fence fence;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    sem_init(&step, 0, 0);
    gs_single_stalls(gs_core_single(t.base.core), t.a);
    MUST(cuLaunchHostFunc(t.a, wait_for_step, NULL));
    gs_single_stalls(gs_core_single(t.base.core), t.b);
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), NOT_READY);
    sem_post(&step);
    told_end(&t);
}

/* Nothing waits for what goes to another context, whose streams have its events. */
Test(told, streams_of_another_context_are_that_ones)
{
    struct gs_fence_pool pool;
    struct gs_fence fence;
    CUcontext other;
    CUstream stream;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    other = fixture_context_new();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    gs_fence_pool_init(t.fences, &pool, other, NULL);
    MUST(cuLaunchHostFunc(stream, wait_for_step, NULL));
    MUST(!gs_told_work(t.fences, CU_STREAM_PER_THREAD));
    MUST(cuLaunchHostFunc(CU_STREAM_PER_THREAD, wait_for_step, NULL));
    MUST(!gs_told_work(t.fences, stream));
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), GS_OK);
    MUST(gs_fence_record(&pool, &fence));
    cr_assert_eq(gs_fence_query(&pool, &fence), NOT_READY);
    /* The same name, in the first context. */
    MUST(cuCtxSetCurrent(t.base.context));
    MUST(!gs_told_work(t.fences, CU_STREAM_PER_THREAD));
    MUST(cuLaunchHostFunc(CU_STREAM_PER_THREAD, wait_for_step, NULL));
    fence = fence_now(&t);
    cr_assert_eq(query(&t, &fence), NOT_READY);
    for (int i = 0; i < 3; i++)
        sem_post(&step);
    MUST(cuCtxSetCurrent(other));
    MUST(cuCtxSynchronize());
    gs_fences_capture_context_gone(t.fences, other);
    gs_fence_pool_forget(&pool);
    MUST(cuCtxDestroy(other));
    MUST(cuCtxSetCurrent(t.base.context));
    told_end(&t);
}

/* The streams before it have theirs, and all have one with the next. */
Test(told, a_set_that_fails_is_made_up_for)
{
    struct gs_fence fence = {0};
    unsigned long before;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    for (unsigned nth = 1; nth <= 2; nth++) {
        softcuda_hold(1);
        work(&t, t.a);
        work(&t, t.b);
        cr_assert_eq(softcuda_fail("cuEventRecord", nth, CUDA_ERROR_OUT_OF_MEMORY), 0);
        cr_assert_eq(gs_fence_record(&t.pool, &fence), CUDA_ERROR_OUT_OF_MEMORY);
        before = softcuda_calls("cuEventRecord");
        fence = fence_now(&t);
        cr_assert_eq(softcuda_calls("cuEventRecord") - before, 2);
        cr_assert_eq(query(&t, &fence), NOT_READY);
        softcuda_hold(0);
        MUST(gs_fence_wait(&fence, UINT64_MAX));
    }
    told_end(&t);
}

static void *works_alone(void *arg)
{
    struct told *t = arg;

    MUST(cuCtxSetCurrent(t->base.context));
    gs_single_submits(gs_core_single(t->base.core), CU_STREAM_PER_THREAD);
    submit(t, CU_STREAM_PER_THREAD);
    sem_post(&done);
    sem_wait(&step);
    return NULL;
}

/* The mark that the second stream is to be put behind cannot be had. */
Test(told, single_stream_mode_ends_where_the_stream_is_another_threads, .timeout = 60)
{
    struct gs_single *single;
    CUdeviceptr block;
    pthread_t thread;
    struct told t;

    softcuda_without("ctx_record_event");
    fixture_options(&t.base);
    t.base.options.lone_stream = true;
    fixture_start(&t.base);
    single = gs_core_single(t.base.core);
    t.fences = fixture_fences(&t.base);
    MUST(cuStreamCreate(&t.a, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_alloc(t.base.core, 8 * MIB, &t.word));
    MUST(gs_core_alloc(t.base.core, 8 * MIB, &block));
    thread = other_thread(&t, works_alone);
    MUST(gs_core_free(t.base.core, block));
    cr_assert_eq(fixture_counts(&t.base).at_once, 1);
    gs_single_submits(single, t.a);
    cr_assert_eq(gs_single_state(single), GS_SINGLE_MULTI);
    submit(&t, t.a);
    MUST(cuCtxSynchronize());
    sem_post(&step);
    MUST(pthread_join(thread, NULL));
    gs_core_stream_gone(t.base.core, t.a);
    MUST(cuStreamDestroy(t.a));
    fixture_end(&t.base);
    softcuda_without("");
}

static void *tells(void *arg)
{
    struct told *t = arg;

    MUST(cuCtxSetCurrent(t->base.context));
    MUST(!gs_told_work(t->fences, t->a));
    return NULL;
}

/* A thread that has ended is about to submit nothing. */
Test(told, a_thread_that_ended_keeps_nothing_due)
{
    unsigned long before;
    struct told t;

    told_start(&t, CU_STREAM_NON_BLOCKING);
    in_thread(&t, tells);
    fence_now(&t);
    before = softcuda_calls("cuEventRecord");
    fence_now(&t);
    cr_assert_eq(softcuda_calls("cuEventRecord"), before);
    told_end(&t);
}
