/* Fences pass when the context's earlier work is done, and are not recorded in a capture. */
#include <criterion/criterion.h>

#include "core/gpu/fence.h"
#include "tests/children.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

FIXTURE_SUITE(fence)

Test(fence, waits_for_work_of_every_stream_before_it_and_none_after)
{
    struct gs_fence_pool pool;
    struct gs_fence fence = {0};
    CUdeviceptr word;

    fixture_start(&f);
    gs_fence_pool_init(fixture_fences(&f), &pool, f.context, NULL);
    MUST(cuMemAlloc(&word, 4));
    softcuda_hold(1);
    fixture_spin_fill(&f, f.stream, word, 1, 1, 0);
    cr_assert_eq(gs_fence_record(&pool, &fence), GS_OK);
    cr_assert_eq(gs_fence_query(&pool, &fence), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    cr_assert_eq(gs_fence_wait(&fence, UINT64_MAX), GS_OK);
    cr_assert_eq(gs_fence_query(&pool, &fence), GS_OK);
    cr_assert_null(fence.line);
    MUST(cuMemFree(word));
    gs_fence_pool_destroy(&pool);
}

Test(fence, a_capture_forbids_recording_and_stays_valid)
{
    struct gs_fence_pool pool;
    struct gs_fence fence = {0}, earlier = {0};
    CUgraph graph;

    fixture_start(&f);
    gs_fence_pool_init(fixture_fences(&f), &pool, f.context, NULL);
    cr_assert_eq(gs_fence_record(&pool, &earlier), GS_OK);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert_eq(gs_fence_record(&pool, &fence), GS_CAPTURING);
    cr_assert_null(fence.line);
    fence = gs_fence_next(&pool);
    cr_assert_eq(gs_fence_query(&pool, &fence), GS_CAPTURING);
    cr_assert_eq(gs_fence_query(&pool, &earlier), GS_OK,
                 "what was recorded before can be asked for");
    cr_assert(gs_core_capturing(f.core));
    cr_assert_eq(cuStreamEndCapture(f.stream, &graph), CUDA_SUCCESS);
    gs_core_capture_end(f.core, f.stream);
    cr_assert_not(gs_core_capturing(f.core));
    cr_assert_eq(gs_fence_query(&pool, &fence), GS_OK);
    MUST(cuGraphDestroy(graph));
    gs_fence_pool_destroy(&pool);
}

/* As the driver is beside one whose green context has ended (measured on an H100). */
Test(fence, an_event_is_asked_for_beside_a_capture_that_is_not_known)
{
    struct gs_fence_pool pool;
    struct gs_fence fence = {0};
    CUgraph graph;

    fixture_start(&f);
    gs_fence_pool_init(fixture_fences(&f), &pool, f.context, NULL);
    cr_assert_eq(gs_fence_record(&pool, &fence), GS_OK);
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert_eq(gs_fence_query(&pool, &fence), GS_OK);
    cr_assert_neq(cuStreamEndCapture(f.stream, &graph), CUDA_SUCCESS,
                  "the driver forbids the first question");
    gs_fence_pool_destroy(&pool);
}

/* Too little for an epoch of its own, and some of it in the order of a stream. */
Test(fence, what_was_freed_before_a_capture_comes_back_while_it_is_open)
{
    CUdeviceptr small, ordered;
    CUstream stream, beside;
    CUgraph graph;
    size_t reserved;

    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
    small = must_alloc(&f, 64 << 10);
    MUST(gs_core_alloc_async(f.core, 4 * MIB, NULL, beside, &ordered)); /* a piece */
    reserved = fixture_arena(&f).reserved;
    MUST(gs_core_free(f.core, small));
    MUST(gs_core_free_async(f.core, ordered, beside));
    MUST(gs_core_capture_begin(f.core, stream));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    must_alloc(&f, 64 << 10);
    must_alloc(&f, 4 * MIB);
    cr_assert_eq(fixture_arena(&f).reserved, reserved, "%zu and %zu", fixture_arena(&f).reserved,
                 reserved);
    MUST(cuStreamEndCapture(stream, &graph));
    gs_core_capture_end(f.core, stream);
    MUST(cuGraphDestroy(graph));
    MUST(cuStreamDestroy(stream));
    MUST(cuStreamDestroy(beside));
}

Test(fence, captures_are_counted_by_stream)
{
    struct gs_fences fences;
    struct gs_driver none = {0};
    CUcontext context = (CUcontext)8;

    gs_fences_init(&fences, &none);
    for (uint64_t i = 0; i < 100; i++)
        cr_assert_eq(gs_fences_capture_begin(&fences, 8 * i + 8, context, context), GS_OK);
    gs_fences_capture_end(&fences, 4, NULL); /* captures nothing */
    for (uint64_t i = 0; i < 99; i++)
        gs_fences_capture_end(&fences, 8 * i + 8, NULL);
    gs_fences_capture_end(&fences, 8, NULL); /* over already */
    cr_assert(gs_fences_capturing(&fences));
    gs_fences_capture_context_gone(&fences, context);
    cr_assert_not(gs_fences_capturing(&fences));
    for (unsigned first = 0; first < 3; first++) /* in whatever order they end */
        for (unsigned step = 1; step < 3; step++) {
            for (uint64_t i = 0; i < 3; i++)
                cr_assert_eq(gs_fences_capture_begin(&fences, 8 * i + 8, context, context), GS_OK);
            for (unsigned i = 0; i < 3; i++) {
                cr_assert(gs_fences_capturing(&fences));
                gs_fences_capture_end(&fences, 8 * ((first + i * step) % 3) + 8, NULL);
            }
            cr_assert_not(gs_fences_capturing(&fences));
        }
    /* A default stream has one key in all contexts; a green context's captures are its primary
     * one's, too. */
    cr_assert_eq(gs_fences_capture_begin(&fences, 2, context, context), GS_OK);
    cr_assert_eq(gs_fences_capture_begin(&fences, 2, (CUcontext)16, context), GS_OK);
    gs_fences_capture_end(&fences, 2, (CUcontext)16);
    gs_fences_capture_context_gone(&fences, (CUcontext)16);
    cr_assert(gs_fences_capturing(&fences));
    gs_fences_capture_end(&fences, 2, context);
    cr_assert_not(gs_fences_capturing(&fences));
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gs_fences_capture_begin(&fences, 8, (CUcontext)16, context), GS_OK);
        gs_fences_capture_context_gone(&fences, i ? context : (CUcontext)16);
        cr_assert_not(gs_fences_capturing(&fences));
    }
    gs_fences_destroy(&fences);
}

struct marking {
    struct gs_fence_pool pool;
    struct gs_fence fence;
    CUcontext context;
};

static void *make_mark(void *arg)
{
    struct marking *marking = arg;

    MUST(cuCtxSetCurrent(marking->context));
    MUST(gs_fence_mark(&marking->pool, &marking->fence));
    return NULL;
}

/* The driver is in the midst of recording an event, and would find itself in a capture. */
Test(fence, a_capture_begins_when_nobody_records, .timeout = 60)
{
    struct marking marking = {.fence = {0}};
    unsigned long before;
    pthread_t thread;

    fixture_start(&f);
    marking.context = f.context;
    gs_fence_pool_init(fixture_fences(&f), &marking.pool, f.context, NULL);
    before = softcuda_calls(fixture_recording_call());
    cr_assert_eq(softcuda_delay(fixture_recording_call(), 300000), 0);
    cr_assert_eq(pthread_create(&thread, NULL, make_mark, &marking), 0);
    while (softcuda_calls(fixture_recording_call()) == before)
        sched_yield();
    MUST(gs_fences_capture_begin(fixture_fences(&f), 8, f.context, f.context));
    cr_assert_eq(__atomic_load_n(&marking.pool.line->taken.state, __ATOMIC_SEQ_CST), 0);
    pthread_join(thread, NULL);
    gs_fences_capture_end(fixture_fences(&f), 8, NULL);
    MUST(gs_fence_wait(&marking.fence, UINT64_MAX));
    gs_fence_pool_destroy(&marking.pool);
}

/* The test decides when the driver has recorded. */
static struct {
    CUresult (*record)(CUcontext, CUevent);
    sem_t entered, leave;
    pid_t waiter;
    bool over; /* atomic */
} slow;

static CUresult record_slowly(CUcontext context, CUevent event)
{
    sem_post(&slow.entered);
    sem_wait(&slow.leave);
    return slow.record(context, event);
}

static void *mark_behind_another(void *arg)
{
    __atomic_store_n(&slow.waiter, gettid(), __ATOMIC_SEQ_CST);
    return make_mark(arg);
}

static void *leave_behind_another(void *arg)
{
    struct marking *marking = arg;

    __atomic_store_n(&slow.waiter, gettid(), __ATOMIC_SEQ_CST);
    gs_fence_pool_leaving(&marking->pool, true);
    __atomic_store_n(&slow.over, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* A context that is about to go does so when nobody is in a call of the driver for it. Who waits
 * sleeps: a thread of a real-time policy would keep the processor from the one that it waits
 * for. */
Test(fence, a_thread_that_waits_for_a_line_sleeps, .timeout = 60)
{
    void *(*const waits[])(void *) = {mark_behind_another, leave_behind_another};
    struct marking marking = {.fence = {0}}, behind;
    pthread_t thread[2];

    fixture_start(&f);
    if (fixture_is_old())
        cr_skip_test("a driver without cuCtxRecordEvent records elsewhere");
    marking.context = f.context;
    gs_fence_pool_init(fixture_fences(&f), &marking.pool, f.context, NULL);
    behind = marking;
    slow.record = fixture_driver(&f)->ctx_record_event;
    fixture_driver(&f)->ctx_record_event = record_slowly;
    sem_init(&slow.entered, 0, 0);
    sem_init(&slow.leave, 0, 0);
    for (unsigned way = 0; way < 2; way++) {
        slow.waiter = 0;
        cr_assert_eq(pthread_create(&thread[0], NULL, make_mark, &marking), 0);
        sem_wait(&slow.entered);
        cr_assert_eq(pthread_create(&thread[1], NULL, waits[way], &behind), 0);
        while (!__atomic_load_n(&slow.over, __ATOMIC_SEQ_CST) &&
               (__atomic_load_n(&marking.pool.line->taken.state, __ATOMIC_SEQ_CST) != 2 ||
                thread_state(getpid(), slow.waiter) != 'S'))
            sched_yield();
        cr_assert_not(slow.over, "way %u does not wait", way);
        sem_post(&slow.leave);
        sem_post(&slow.leave);
        for (unsigned i = 0; i < 2; i++)
            pthread_join(thread[i], NULL);
        while (sem_trywait(&slow.entered) == 0)
            continue;
    }
    cr_assert(slow.over);
    gs_fence_pool_leaving(&marking.pool, false);
    fixture_driver(&f)->ctx_record_event = slow.record;
    gs_fence_pool_destroy(&marking.pool);
}

static unsigned events(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.events;
}

/* What the driver refused to record is recorded the next time; of events there are no more. */
Test(fence, events_are_used_again_and_go_with_the_last_user, .timeout = 60)
{
    struct gs_fence_pool pool, other;
    struct gs_fence fence = {0};
    unsigned before;

    fixture_start(&f);
    before = events();
    gs_fence_pool_init(fixture_fences(&f), &pool, f.context, NULL);
    gs_fence_pool_init(fixture_fences(&f), &other, f.context, &pool);
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(softcuda_fail(fixture_recording_call(), 1, CUDA_ERROR_OUT_OF_MEMORY), 0);
        cr_assert_eq(gs_fence_mark(&pool, &fence), CUDA_ERROR_OUT_OF_MEMORY);
    }
    cr_assert_leq(events(), before + 1);
    for (int i = 0; i < 20; i++) {
        MUST(gs_fence_mark(&pool, &fence));
        MUST(cuCtxSynchronize());
    }
    cr_assert_leq(events(), before + 2);
    MUST(gs_fence_wait(&fence, UINT64_MAX));
    gs_fence_pool_destroy(&pool);
    cr_assert_gt(events(), before);
    gs_fence_pool_destroy(&other);
    cr_assert_eq(events(), before);
}

Test(fence, a_probe_leaves_nothing_behind)
{
    unsigned before;

    fixture_start(&f);
    before = events();
    for (int i = 0; i < 3; i++)
        cr_assert_eq(gs_fences_probe(fixture_fences(&f), f.context), !fixture_is_old());
    cr_assert_eq(events(), before);
}

static CUcontext current(void)
{
    CUcontext context;

    MUST(cuCtxGetCurrent(&context));
    return context;
}

/* Events need a context, which this thread had not; before CUDA 12.5 also to be recorded. */
Test(fence, the_programs_current_context_stays)
{
    for (int old = 0; old < 2; old++) {
        struct gs_fence_pool pool;
        struct gs_fence fence = {0};
        CUcontext popped;

        if (old)
            setenv("SOFTCUDA_WITHOUT", "ctx_record_event", 1);
        fixture_start(&f);
        gs_fence_pool_init(fixture_fences(&f), &pool, f.context, NULL);
        gs_fence_pool_follow(&pool, gs_stream_key(CU_STREAM_LEGACY));
        MUST(cuCtxPopCurrent(&popped));
        cr_assert_null(current());
        MUST(gs_fence_record(&pool, &fence));
        cr_assert_null(current());
        cr_assert_eq(gs_fence_wait(&fence, UINT64_MAX), GS_OK);
        cr_assert_null(current());
        MUST(cuCtxPushCurrent(f.context));
        gs_fence_pool_destroy(&pool);
        fixture_end(&f);
    }
}

/* ---- A wait for all work, and captures ------------------------------------------------------- */

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    MUST(cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

Test(fence, a_wait_beside_a_capture_leaves_the_threads_mode_alone)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL};
    struct gs_fences *fences;

    fixture_start(&f);
    fences = fixture_fences(&f);
    for (int i = 0; i < 2; i++) {
        CUstreamCaptureMode before = exchange(modes[i]);

        MUST(gs_fences_capture_begin(fences, 8, f.context, f.context));
        MUST(gs_fences_synchronize(fences, f.context));
        gs_fences_capture_end(fences, 8, NULL);
        cr_assert_eq(exchange(before), modes[i]);
    }
}

static CUresult synchronize_slowly(void)
{
    sem_post(&slow.entered);
    sem_wait(&slow.leave);
    __atomic_store_n(&slow.over, true, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

static CUresult is_current(CUcontext context)
{
    return CUDA_SUCCESS;
}

static CUresult is_no_more(CUcontext *ret)
{
    return CUDA_SUCCESS;
}

static void *synchronizes(void *fences)
{
    MUST(gs_fences_synchronize(fences, (CUcontext)8));
    return NULL;
}

static bool began_before; /* the capture, while the driver was waiting */

static void *begins_capture(void *fences)
{
    __atomic_store_n(&slow.waiter, gettid(), __ATOMIC_SEQ_CST);
    MUST(gs_fences_capture_begin(fences, 8, (CUcontext)8, (CUcontext)8));
    began_before = !__atomic_load_n(&slow.over, __ATOMIC_SEQ_CST);
    __atomic_store_n(&slow.waiter, -1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* The driver's wait would find itself in it. */
Test(fence, a_capture_begins_when_nobody_waits_for_all_work, .timeout = 60)
{
    struct gs_driver driver = {.ctx_synchronize = synchronize_slowly,
                               .ctx_push_current = is_current,
                               .ctx_pop_current = is_no_more};
    struct gs_fences fences;
    pthread_t thread[2];
    pid_t waiter = 0;

    gs_fences_init(&fences, &driver);
    sem_init(&slow.entered, 0, 0);
    sem_init(&slow.leave, 0, 0);
    cr_assert_eq(pthread_create(&thread[0], NULL, synchronizes, &fences), 0);
    sem_wait(&slow.entered);
    cr_assert_eq(pthread_create(&thread[1], NULL, begins_capture, &fences), 0);
    do { /* until it sleeps, or has begun */
        sched_yield();
        waiter = __atomic_load_n(&slow.waiter, __ATOMIC_SEQ_CST);
    } while (waiter == 0 || (waiter > 0 && thread_state(getpid(), waiter) != 'S'));
    sem_post(&slow.leave);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    cr_assert_not(began_before);
    gs_fences_capture_end(&fences, 8, NULL);
    gs_fences_destroy(&fences);
}

static void *own_key(void *arg)
{
    *(uint64_t *)arg = gs_stream_key(CU_STREAM_PER_THREAD);
    return NULL;
}

Test(fence, each_thread_has_a_default_stream_of_its_own)
{
    uint64_t keys[2], mine = gs_stream_key(CU_STREAM_PER_THREAD);
    pthread_t thread[2];

    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, own_key, &keys[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    cr_assert_neq(keys[0], keys[1]);
    cr_assert_neq(keys[0], mine);
    cr_assert_neq(keys[1], mine);
    cr_assert_eq(gs_stream_key(CU_STREAM_PER_THREAD), mine);
    cr_assert_eq(gs_stream_key(NULL), gs_stream_key(CU_STREAM_LEGACY));
    cr_assert_neq(gs_stream_key(NULL), mine);
}
