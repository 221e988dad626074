/* All work in one stream, and what ends that (core/gpu/lone.h). */
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/process/context.h"
#include "core/api/mempool.h"
#include "core/api/memops.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"
#include "tests/rest.h"

#define MIB ((size_t)1 << 20)
#define MS UINT64_C(1000000)
#define WORDS 4096

struct lone_fixture {
    struct fixture base;
    CUstream a, b;
};

static void start(struct lone_fixture *f)
{
    fixture_options(&f->base);
    f->base.options.lone_stream = true;
    fixture_start(&f->base);
    MUST(cuStreamCreate(&f->a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&f->b, CU_STREAM_NON_BLOCKING));
}

static void finish(struct lone_fixture *f)
{
    MUST(cuStreamDestroy(f->a));
    MUST(cuStreamDestroy(f->b));
    fixture_end(&f->base);
}

static CUdeviceptr must_alloc(struct lone_fixture *f, size_t size)
{
    CUdeviceptr address;

    MUST(gs_core_alloc(f->base.core, size, &address));
    return address;
}

static void must_free(struct lone_fixture *f, CUdeviceptr address)
{
    MUST(gs_core_free(f->base.core, address));
}

/* As the program's calls come through the hooks. */
static void fill(struct lone_fixture *f, CUstream stream, CUdeviceptr address, unsigned value,
                 uint64_t delay_ns)
{
    gs_lone_submits(gs_core_lone(f->base.core), stream);
    fixture_spin_fill(&f->base, stream, address, value, WORDS, delay_ns);
}

/* How many words differ, when all work is done. Looked at without the library's knowledge. */
static unsigned others(struct lone_fixture *f, CUdeviceptr address, unsigned value)
{
    MUST(cuCtxSynchronize());
    return fixture_count_other(&f->base, f->a, address, value, WORDS);
}

static struct gs_pool_counts counts(struct lone_fixture *f)
{
    struct gs_stats stats;

    gs_stats_read(f->base.core, 0, &stats);
    return stats.counts;
}

static uint64_t alone(struct lone_fixture *f)
{
    return f->base.core->lone.stream;
}

/* A block that was freed behind work in stream a, and is handed out again at once. */
static CUdeviceptr reused_behind(struct lone_fixture *f, uint64_t delay_ns)
{
    CUdeviceptr block = must_alloc(f, 8 * MIB);

    fill(f, f->a, block, 1, delay_ns);
    must_free(f, block);
    cr_assert_eq(must_alloc(f, 8 * MIB), block);
    return block;
}

static void reused_at_once(size_t size)
{
    struct lone_fixture f;
    CUdeviceptr block, next;

    start(&f);
    block = must_alloc(&f, size);
    softcuda_hold(1);
    fill(&f, f.a, block, 1, 0);
    for (unsigned i = 2; i < 10; i++) {
        must_free(&f, block);
        next = must_alloc(&f, size);
        cr_assert_eq(next, block);
        fill(&f, f.a, block, i, 0);
    }
    cr_assert_eq(counts(&f).at_once, 8);
    cr_assert_eq(counts(&f).waits, 0);
    cr_assert_eq(fixture_pool(&f.base).retiring, 0);
    softcuda_hold(0);
    cr_assert_eq(others(&f, block, 9), 0);
    finish(&f);
}

Test(lone, small_blocks_are_reused_at_once)
{
    reused_at_once(64 << 10);
}

Test(lone, large_blocks_are_reused_at_once)
{
    reused_at_once(8 * MIB);
}

Test(lone, without_it_blocks_wait_for_the_gpu)
{
    struct lone_fixture f;
    CUdeviceptr block;

    fixture_options(&f.base);
    fixture_start(&f.base);
    MUST(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&f.b, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 8 * MIB);
    softcuda_hold(1);
    fill(&f, f.a, block, 1, 0);
    must_free(&f, block);
    cr_assert_neq(must_alloc(&f, 8 * MIB), block);
    cr_assert_eq(counts(&f).at_once, 0);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    finish(&f);
}

/* The second owner's work is on another stream, where nothing but the library orders it. */
Test(lone, a_second_stream_comes_behind_what_was_freed)
{
    struct lone_fixture f;
    CUdeviceptr block, other;

    start(&f);
    softcuda_hold(1);
    block = reused_behind(&f, 30 * MS);
    fill(&f, f.b, block, 2, 0);
    cr_assert_eq(alone(&f), GS_LONE_PENDING);
    softcuda_hold(0);
    cr_assert_eq(others(&f, block, 2), 0);
    /* From now on frees wait. */
    softcuda_hold(1);
    fill(&f, f.b, block, 3, 0);
    cr_assert_eq(alone(&f), GS_LONE_SEVERAL);
    must_free(&f, block);
    other = must_alloc(&f, 8 * MIB);
    cr_assert_neq(other, block);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    finish(&f);
}

/* So long as the lone stream is behind, every stream waits, not only the first that came; and the
 * legacy default stream is one as any other. */
Test(lone, every_other_stream_comes_behind)
{
    static const CUstream by_name[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    struct lone_fixture f;

    for (size_t i = 0; i < sizeof by_name / sizeof *by_name; i++) {
        CUdeviceptr block[2];

        start(&f);
        for (int k = 0; k < 2; k++) {
            block[k] = must_alloc(&f, 8 * MIB);
            fill(&f, f.a, block[k], 1, 20 * MS);
        }
        must_free(&f, block[0]);
        must_free(&f, block[1]);
        block[0] = must_alloc(&f, 8 * MIB);
        block[1] = must_alloc(&f, 8 * MIB);
        fill(&f, f.b, block[0], 2, 0);
        fill(&f, by_name[i], block[1], 3, 0);
        cr_assert_eq(others(&f, block[0], 2), 0);
        cr_assert_eq(others(&f, block[1], 3), 0);
        finish(&f);
    }
}

static void *works_on_b(void *arg)
{
    struct lone_fixture *f = arg;

    MUST(cuCtxSetCurrent(f->base.context));
    gs_lone_submits(gs_core_lone(f->base.core), f->b);
    return NULL;
}

/* A stream that the driver takes no wait for is waited for by its thread alone: the GPU may need
 * what another thread submits to get there. */
Test(lone, a_stream_that_cannot_wait_keeps_no_other_thread, .timeout = 60)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    struct lone_fixture f;
    pthread_t thread;

    start(&f);
    softcuda_hold(1);
    reused_behind(&f, 0);
    cr_assert_eq(softcuda_fail("cuStreamWaitEvent", 1, CUDA_ERROR_INVALID_HANDLE), 0);
    pthread_create(&thread, NULL, works_on_b, &f);
    while (softcuda_calls("cuStreamWaitEvent") == 0)
        nanosleep(&moment, NULL);
    gs_lone_submits(gs_core_lone(f.base.core), f.a);
    gs_lone_stalls(gs_core_lone(f.base.core));
    softcuda_hold(0);
    pthread_join(thread, NULL);
    cr_assert_eq(alone(&f), GS_LONE_SEVERAL);
    cr_assert_eq(cuStreamQuery(f.a), CUDA_SUCCESS, "the other came behind");
    finish(&f);
}

/* A driver that has no memory for an event just then has one later; what was freed has not passed
 * for that. */
Test(lone, a_second_stream_comes_behind_where_memory_is_out)
{
    static const char *const calls[] = {"cuEventCreate", "cuCtxRecordEvent"};
    struct lone_fixture f;

    for (size_t i = 0; i < 2; i++) {
        CUdeviceptr block;

        start(&f);
        block = reused_behind(&f, 30 * MS);
        for (unsigned nth = 1; nth < 4; nth++)
            cr_assert_eq(softcuda_fail(calls[i], nth, CUDA_ERROR_OUT_OF_MEMORY), 0);
        fill(&f, f.b, block, 2, 0);
        cr_assert_eq(others(&f, block, 2), 0, "%s", calls[i]);
        softcuda_reset();
        finish(&f);
    }
}

/* The first of what is submitted next, and no wait but for what came before. */
static void ends_for_want_of_a_mark(const char *call, void (*submit)(struct lone_fixture *f))
{
    struct lone_fixture f;
    CUdeviceptr block;

    start(&f);
    softcuda_hold(1);
    block = reused_behind(&f, 0);
    cr_assert_eq(counts(&f).at_once, 1);
    cr_assert_eq(softcuda_fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY), 0);
    submit(&f);
    cr_assert_neq(alone(&f), (uint64_t)(uintptr_t)f.a, "%s", call);
    fill(&f, f.a, block, 2, 0);
    must_free(&f, block);
    cr_assert_eq(counts(&f).at_once, 1, "%s: no mark, and still at once", call);
    softcuda_reset();
    MUST(cuCtxSynchronize());
    finish(&f);
}

static void submits_on_a(struct lone_fixture *f)
{
    gs_lone_submits(gs_core_lone(f->base.core), f->a);
}

static void stalls(struct lone_fixture *f)
{
    gs_lone_stalls(gs_core_lone(f->base.core));
}

/* What is submitted without a mark before it may never end, and others would wait for it. */
Test(lone, a_mark_that_cannot_be_made_ends_it)
{
    ends_for_want_of_a_mark("cuEventCreate", submits_on_a);
    ends_for_want_of_a_mark("cuCtxRecordEvent", submits_on_a);
    ends_for_want_of_a_mark("cuCtxRecordEvent", stalls);
}

/* Who has the memory that the driver lacks for an event may be the one that waits. */
Test(lone, a_driver_without_memory_for_an_event_is_not_waited_for, .timeout = 60)
{
    struct lone_fixture f;
    CUdeviceptr block;

    start(&f);
    block = reused_behind(&f, 30 * MS);
    cr_assert_eq(softcuda_fail("cuEventCreate", 0, CUDA_ERROR_OUT_OF_MEMORY), 0);
    fill(&f, f.b, block, 2, 0);
    cr_assert_eq(alone(&f), GS_LONE_SEVERAL);
    softcuda_reset();
    cr_assert_eq(others(&f, block, 2), 0);
    finish(&f);
}

/* While nothing was freed, work in the lone stream takes no lock, whatever the stream is called. */
Test(lone, work_in_one_stream_takes_no_lock, .timeout = 60)
{
    static const CUstream by_name[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

    for (size_t i = 0; i < sizeof by_name / sizeof *by_name; i++) {
        struct lone_fixture f;
        struct gs_lone *lone;
        CUdeviceptr block;

        start(&f);
        lone = gs_core_lone(f.base.core);
        block = must_alloc(&f, 8 * MIB);
        fill(&f, by_name[i], block, 1, 0);
        gs_lock_take(&lone->lock);
        gs_lone_submits(lone, by_name[i]);
        gs_core_touches(f.base.core, by_name[i], block, 0);
        gs_lock_release(&lone->lock);
        MUST(cuCtxSynchronize());
        finish(&f);
    }
}

/* One stream that has passed what was freed is asked once, not with each copy on another. */
Test(lone, what_has_passed_is_waited_for_no_more)
{
    struct lone_fixture f;
    CUdeviceptr block, other;

    start(&f);
    block = must_alloc(&f, 8 * MIB);
    other = must_alloc(&f, 8 * MIB);
    fill(&f, f.a, block, 1, 0);
    must_free(&f, block);
    gs_lone_submits(gs_core_lone(f.base.core), f.a);
    MUST(cuCtxSynchronize());
    softcuda_reset();
    for (int i = 0; i < 8; i++)
        gs_core_touches(f.base.core, f.b, other, 0);
    cr_assert_eq(softcuda_calls("cuStreamWaitEvent"), 0);
    cr_assert_leq(softcuda_calls("cuEventQuery"), 1);
    cr_assert_eq(alone(&f), (uint64_t)(uintptr_t)f.a);
    finish(&f);
}

/* Copies and fills say what they touch: libraries make a fill on a stream of their own as they
 * start, and everything else on the program's. */
Test(lone, a_fill_on_another_stream_ends_nothing)
{
    struct lone_fixture f;
    CUdeviceptr block, other;

    start(&f);
    block = must_alloc(&f, 8 * MIB);
    gs_core_touches(f.base.core, f.b, block, 0);
    MUST(cuMemsetD32Async(block, 7, WORDS, f.b));
    cr_assert_eq(alone(&f), GS_LONE_NONE);
    must_free(&f, block);
    cr_assert_eq(counts(&f).at_once, 0);
    MUST(cuCtxSynchronize());

    block = reused_behind(&f, 20 * MS);
    gs_core_touches(f.base.core, f.b, 0, block + 4);
    gs_core_touches(f.base.core, f.b, block + 4, 0);
    MUST(cuMemsetD32Async(block, 2, WORDS, f.b));
    cr_assert_eq(others(&f, block, 2), 0);
    cr_assert_eq(alone(&f), (uint64_t)(uintptr_t)f.a);

    other = must_alloc(&f, 8 * MIB);
    softcuda_hold(1);
    gs_core_touches(f.base.core, f.b, block, 0);
    MUST(cuMemsetD32Async(block, 3, WORDS, f.b));
    must_free(&f, block);
    cr_assert_neq(must_alloc(&f, 8 * MIB), block, "the other stream may be at it");
    must_free(&f, other);
    cr_assert_eq(must_alloc(&f, 8 * MIB), other);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    must_free(&f, other);
    cr_assert_eq(must_alloc(&f, 8 * MIB), other);
    gs_core_touches(f.base.core, f.a, other, 0);
    must_free(&f, other);
    cr_assert_eq(must_alloc(&f, 8 * MIB), other, "on the lone stream it is as any work");
    cr_assert_eq(counts(&f).at_once, 4);
    finish(&f);
}

/* A launch that may overtake the work before it would meet the last owner's of a block that was
 * freed: one in order comes first. What marks the free beside that is none, nor is what the driver
 * never got, nor one that was told of before the free. */
Test(lone, nothing_overtakes_the_work_on_what_was_freed)
{
    struct lone_fixture f;
    struct gs_lone *lone;
    CUdeviceptr block, other;
    uint64_t marks, old = 0;

    start(&f);
    lone = gs_core_lone(f.base.core);
    block = must_alloc(&f, 8 * MIB);
    other = must_alloc(&f, 8 * MIB);
    for (int i = 0; i < 6; i++) {
        fill(&f, f.a, block, 1, 0);
        cr_assert(gs_lone_may_overtake(lone, f.a, &marks), "nothing was freed");
        must_free(&f, block);
        cr_assert_eq(must_alloc(&f, 8 * MIB), block);
        if (i == 1)
            gs_core_touches(f.base.core, f.b, other, 0);
        if (i == 2)
            gs_lone_stalls(lone);
        if (i == 3)
            gs_core_context_stays(f.base.core, f.base.context,
                                  gs_core_context_detach(f.base.core, f.base.context));
        if (i == 4)
            gs_lone_submits(lone, f.a);
        if (i == 5)
            gs_lone_in_order(lone, old);
        cr_assert_not(gs_lone_may_overtake(lone, f.a, &marks), "%d", i);
        cr_assert_not(gs_lone_may_overtake(lone, f.a, &marks), "%d: the driver took none", i);
        gs_lone_in_order(lone, marks);
        cr_assert(gs_lone_may_overtake(lone, f.a, &old), "one was in order");
        old = marks;
    }
    MUST(cuCtxSynchronize());
    finish(&f);
}

/* What was freed with no work behind it needs no wait, and no stream is alone before the first. */
Test(lone, nothing_is_waited_for_without_work)
{
    struct lone_fixture f;

    start(&f);
    must_free(&f, must_alloc(&f, 8 * MIB));
    cr_assert_eq(alone(&f), GS_LONE_NONE);
    softcuda_reset();
    fill(&f, f.a, must_alloc(&f, 8 * MIB), 1, 0);
    fill(&f, f.b, must_alloc(&f, 8 * MIB), 1, 0);
    cr_assert_eq(softcuda_calls("cuStreamWaitEvent"), 0);
    MUST(cuCtxSynchronize());
    finish(&f);
}

static void wait_for_post(void *arg)
{
    sem_wait(arg);
}

/* Work that ends only when the program lets it, such as a kernel that serves requests, or a
 * function of the host: submitted behind the last free, on the lone stream or another one, it keeps
 * no other stream. The driver's own free would not have waited for it, nor would anything else. */
static void keeps_nobody(bool is_work, bool elsewhere)
{
    struct lone_fixture f;
    CUdeviceptr block;
    CUstream other;
    sem_t end;

    sem_init(&end, 0, 0);
    start(&f);
    block = reused_behind(&f, 5 * MS);
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    if (is_work)
        gs_lone_submits(gs_core_lone(f.base.core), f.a);
    else
        gs_lone_stalls(gs_core_lone(f.base.core));
    MUST(cuLaunchHostFunc(elsewhere ? other : f.a, wait_for_post, &end));
    fill(&f, f.b, block, 2, 0);
    MUST(cuStreamSynchronize(f.b));
    cr_assert_eq(cuStreamQuery(elsewhere ? other : f.a), CUDA_ERROR_NOT_READY);
    gs_lone_settle(gs_core_lone(f.base.core), "the test goes on");
    sem_post(&end);
    cr_assert_eq(others(&f, block, 2), 0);
    MUST(cuStreamDestroy(other));
    finish(&f);
    sem_destroy(&end);
}

Test(lone, work_behind_the_last_free_keeps_nobody, .timeout = 60)
{
    keeps_nobody(true, false);
}

Test(lone, what_stalls_behind_the_last_free_keeps_nobody, .timeout = 60)
{
    keeps_nobody(false, false);
    keeps_nobody(false, true);
}

/* Chunks that the GPU is at stay, and go when it has passed. */
Test(lone, a_chunk_goes_back_when_no_work_touches_it)
{
    struct lone_fixture f;
    CUdeviceptr block;
    struct gs_context *context;

    start(&f);
    block = must_alloc(&f, 200 * MIB);
    MUST(gs_context_current(f.base.core, &context));
    softcuda_hold(1);
    fill(&f, f.a, block, 1, 0);
    must_free(&f, block);
    cr_assert_eq(gs_device_release(f.base.core, context->device, false), 0);
    cr_assert_eq(fixture_pool(&f.base).reserved, 200 * MIB);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    gs_device_release(f.base.core, context->device, false);
    cr_assert_eq(fixture_pool(&f.base).reserved, 0);
    cr_assert_eq(alone(&f), (uint64_t)(uintptr_t)f.a);
    finish(&f);
}

/* What the GPU is at counts for nothing: another chunk goes. */
Test(lone, another_chunk_goes_back_for_one_that_stays)
{
    struct lone_fixture f;
    CUdeviceptr passed, touched;
    struct gs_context *context;
    struct gs_chunk *chunks;
    struct gs_pool *pool;

    start(&f);
    MUST(gs_context_current(f.base.core, &context));
    pool = context->pools[0];
    passed = must_alloc(&f, 60 * MIB);
    touched = must_alloc(&f, 100 * MIB);
    fill(&f, f.a, passed, 1, 0);
    must_free(&f, passed);
    submits_on_a(&f); /* which records the event behind it */
    MUST(cuCtxSynchronize());
    softcuda_hold(1);
    fill(&f, f.a, touched, 1, 0);
    must_free(&f, touched);
    gs_latch_take(&pool->lock);
    cr_assert_eq(pool->ready, 160 * MIB);
    chunks = gs_pool_detach_ready(pool, 80 * MIB);
    gs_latch_release(&pool->lock);
    cr_assert_eq(gs_chunks_release(f.base.core, chunks), 60 * MIB);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    finish(&f);
}

/* Who runs out of memory waits for the GPU before it unmaps what it works on. */
Test(lone, memory_for_another_size_is_waited_for)
{
    struct lone_fixture f;
    CUdeviceptr block;
    size_t left, total;

    start(&f);
    MUST(cuMemGetInfo(&left, &total));
    left = left / 2 & ~(2 * MIB - 1);
    block = must_alloc(&f, left);
    fill(&f, f.a, block, 1, 30 * MS);
    must_free(&f, block);
    block = must_alloc(&f, left + left / 2);
    fill(&f, f.a, block, 2, 0);
    cr_assert_eq(others(&f, block, 2), 0, "and no fault");
    must_free(&f, block);
    finish(&f);
}

/* Not where an allocation has waited in vain, and so took more: the GPU stood still. */
static bool no_chunks_pile_up(void)
{
    struct lone_fixture f;
    size_t most;
    bool in_vain;

    start(&f);
    for (unsigned i = 0; i < 40; i++) {
        CUdeviceptr block = must_alloc(&f, (60 + 2 * (size_t)i) * MIB);

        fill(&f, f.a, block, i, MS);
        must_free(&f, block);
    }
    most = counts(&f).reserved_peak;
    in_vain = counts(&f).late > 0;
    MUST(cuCtxSynchronize());
    finish(&f);
    cr_assert(in_vain || most <= (138 + 2 * 138 + 64) * MIB, "%zu MiB", most / MIB);
    return !in_vain;
}

/* Chunks of other sizes go back as the GPU passes them, and not under its hands: an allocation waits
 * where they would pile up. */
Test(lone, sizes_that_change_pile_up_no_chunks)
{
    bool seen = false;

    for (int i = 0; i < 20 && !seen; i++)
        seen = no_chunks_pile_up();
    cr_assert(seen, "every time an allocation waited in vain");
}

/* What makes memory reachable beside the stream, each after a free that the GPU has not passed and
 * a reuse. After it the first owner's work is over. */
static CUdeviceptr reused;

static void by_a_capture(struct lone_fixture *f)
{
    MUST(gs_core_capture_begin(f->base.core, f->b));
    gs_core_capture_end(f->base.core, f->b);
}

static void by_sharing(struct lone_fixture *f)
{
    unsigned char token[GS_TOKEN_SIZE];

    gs_core_token(f->base.core, reused, token); /* whatever becomes of it */
}

static void by_sync_memops(struct lone_fixture *f)
{
    MUST(gs_core_sync_memops(f->base.core, reused, true));
}

static void by_another_context(struct lone_fixture *f)
{
    CUcontext popped;

    gs_lone_context(gs_core_lone(f->base.core), (CUcontext)&popped);
}

static const struct {
    const char *name;
    void (*by)(struct lone_fixture *);
} ends[] = {
    {"a capture", by_a_capture},
    {"sharing", by_sharing},
    {"SYNC_MEMOPS", by_sync_memops},
    {"another context", by_another_context},
};

Test(lone, what_reaches_memory_beside_the_stream_waits_for_it)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct lone_fixture f;
        CUdeviceptr block;

        start(&f);
        block = must_alloc(&f, 8 * MIB);
        fill(&f, f.a, block, 1, 20 * MS);
        must_free(&f, block);
        reused = must_alloc(&f, 8 * MIB);
        cr_assert_eq(reused, block);
        ends[i].by(&f);
        cr_assert_eq(alone(&f), GS_LONE_SEVERAL, "%s", ends[i].name);
        cr_assert_eq(cuStreamQuery(f.a), CUDA_SUCCESS, "%s", ends[i].name);
        finish(&f);
    }
}

/* While a call of the driver may end the context, no event is made in it. */
Test(lone, a_second_stream_comes_behind_though_the_context_may_end)
{
    struct lone_fixture f;
    struct gs_context *detached;
    CUdeviceptr block, other;

    start(&f);
    block = must_alloc(&f, 8 * MIB);
    other = must_alloc(&f, 8 * MIB);
    fill(&f, f.a, block, 1, 20 * MS);
    must_free(&f, block);
    cr_assert_eq(must_alloc(&f, 8 * MIB), block);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    must_free(&f, other);
    fill(&f, f.b, block, 2, 0);
    gs_core_context_stays(f.base.core, f.base.context, detached);
    cr_assert_eq(others(&f, block, 2), 0);
    finish(&f);
}

struct late_stay {
    struct lone_fixture *f;
    struct gs_context *detached;
};

static void *stays_late(void *arg)
{
    const struct timespec moment = {.tv_nsec = 10000000};
    const struct late_stay *stay = arg;

    nanosleep(&moment, NULL);
    gs_core_context_stays(stay->f->base.core, stay->f->base.context, stay->detached);
    return NULL;
}

/* The whole process may have stood still in the midst of the call that the context outlives. */
Test(lone, a_call_that_may_end_the_context_is_waited_for_by_what_runs)
{
    const struct timespec long_ago = {.tv_sec = 1, .tv_nsec = 200000000};
    struct lone_fixture f;
    struct late_stay stay = {.f = &f};
    CUdeviceptr block;
    pthread_t thread;

    start(&f);
    softcuda_hold(1);
    block = reused_behind(&f, 50 * MS);
    stay.detached = gs_core_context_detach(f.base.core, f.base.context);
    nanosleep(&long_ago, NULL);
    softcuda_hold(0);
    MUST(pthread_create(&thread, NULL, stays_late, &stay));
    fill(&f, f.b, block, 2, 0);
    MUST(pthread_join(thread, NULL));
    cr_assert_eq(others(&f, block, 2), 0);
    finish(&f);
}

static void *releases(void *arg)
{
    const struct lone_fixture *f = arg;
    struct gs_context *context;

    MUST(cuCtxSetCurrent(f->base.context));
    MUST(gs_context_current(f->base.core, &context));
    gs_device_release(f->base.core, context->device, true);
    return NULL;
}

/* Who waits for what was freed in the lone stream asks nothing about a context that may go. */
Test(lone, nothing_is_asked_about_a_context_that_may_go)
{
    const struct timespec moment = {.tv_nsec = 20000000};
    struct gs_context *detached;
    struct lone_fixture f;
    unsigned long asked;
    CUdeviceptr block;
    pthread_t thread;

    start(&f);
    block = must_alloc(&f, 8 * MIB);
    softcuda_hold(1);
    fill(&f, f.a, block, 1, 0);
    must_free(&f, block);
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
    finish(&f);
}

/* A primary context that is reset keeps its handle. Who uses it again while that call is not back
 * yet, is in another context. */
Test(lone, a_context_may_be_back_before_its_end_is_known)
{
    struct lone_fixture f;
    struct gs_context *detached;

    start(&f);
    must_free(&f, must_alloc(&f, 8 * MIB));
    fill(&f, f.a, must_alloc(&f, 8 * MIB), 1, 0);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    fill(&f, f.a, must_alloc(&f, 8 * MIB), 1, 0);
    gs_core_context_gone(f.base.core, f.base.context, detached);
    for (unsigned i = 0; i < 2; i++) {
        CUdeviceptr block = must_alloc(&f, 8 * MIB);

        fill(&f, f.a, block, 1, 0);
        must_free(&f, block);
    }
    MUST(cuCtxSynchronize());
    finish(&f);
}

/* Another stream's end is nothing, nor is its being made. */
Test(lone, other_streams_come_and_go)
{
    struct lone_fixture f;
    CUstream other;

    start(&f);
    fill(&f, f.a, must_alloc(&f, 8 * MIB), 1, 0);
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    gs_core_stream_gone(f.base.core, other);
    MUST(cuStreamDestroy(other));
    gs_lone_context(gs_core_lone(f.base.core), f.base.context);
    cr_assert_eq(alone(&f), (uint64_t)(uintptr_t)f.a);
    finish(&f);
}

/* A new stream may have the handle of the one that was alone: it is not ordered behind it. */
Test(lone, the_streams_end_is_the_end)
{
    struct lone_fixture f;
    CUdeviceptr block;
    CUstream gone;

    start(&f);
    gone = f.a;
    softcuda_hold(1);
    block = reused_behind(&f, 20 * MS);
    gs_core_stream_gone(f.base.core, f.a);
    cr_assert_eq(alone(&f), GS_LONE_PENDING);
    gs_lone_submits(gs_core_lone(f.base.core), gone); /* as if it were another */
    fixture_spin_fill(&f.base, f.b, block, 2, WORDS, 0);
    cr_assert_eq(cuStreamQuery(gone), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(gone));
    MUST(cuStreamDestroy(gone));
    MUST(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    fill(&f, f.b, block, 2, 0);
    cr_assert_eq(alone(&f), GS_LONE_SEVERAL);
    cr_assert_eq(others(&f, block, 2), 0);
    finish(&f);
}

/* A context that may go and stays is the same; one that is gone has no work, and another may have
 * one stream again. */
Test(lone, a_context_may_end)
{
    struct lone_fixture f;
    CUdeviceptr block;
    struct gs_context *detached;
    CUcontext again;
    CUstream stream;

    start(&f);
    block = must_alloc(&f, 8 * MIB);
    fill(&f, f.a, block, 1, 5 * MS);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    gs_core_context_stays(f.base.core, f.base.context, detached);
    cr_assert_eq(alone(&f), (uint64_t)(uintptr_t)f.a);
    must_free(&f, block);
    cr_assert_eq(must_alloc(&f, 8 * MIB), block);
    must_free(&f, block);
    detached = gs_core_context_detach(f.base.core, f.base.context);
    MUST(cuCtxSynchronize());
    gs_core_context_gone(f.base.core, f.base.context, detached);
    cr_assert_eq(alone(&f), GS_LONE_NONE);

    again = fixture_context_new();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 8 * MIB);
    fill(&f, stream, block, 2, 5 * MS);
    must_free(&f, block);
    cr_assert_eq(must_alloc(&f, 8 * MIB), block);
    cr_assert_eq(counts(&f).at_once, 3);
    must_free(&f, block);
    gs_core_context_gone(f.base.core, again, gs_core_context_detach(f.base.core, again));
    MUST(cuCtxDestroy(again));
    MUST(cuCtxSetCurrent(f.base.context));
    finish(&f);
}

/* What was ready at once goes back when it lies idle, though no free comes after the GPU's work. */
Test(lone, idle_memory_goes_back)
{
    const struct timespec moment = {.tv_nsec = 2000000};
    struct lone_fixture f;
    CUdeviceptr block;

    fixture_options(&f.base);
    f.base.options.lone_stream = true;
    f.base.options.decay_ns = 20 * MS;
    fixture_start(&f.base);
    MUST(cuStreamCreate(&f.a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&f.b, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 500 * MIB);
    softcuda_hold(1);
    fill(&f, f.a, block, 1, 0);
    must_free(&f, block);
    for (int i = 0; i < 100; i++)
        nanosleep(&moment, NULL); /* the thread has looked in vain, and may sleep for good */
    cr_assert_eq(fixture_pool(&f.base).reserved, 500 * MIB);
    softcuda_hold(0);
    for (int i = 0; i < 5000 && fixture_pool(&f.base).reserved > 0; i++)
        nanosleep(&moment, NULL);
    cr_assert_eq(fixture_pool(&f.base).reserved, 0);
    finish(&f);
}
