/* What another thread does at the worst moment of a call of core: captures that it begins or ends,
 * blocks that it frees. */
#include <criterion/criterion.h>

#include "core/api/core.h"
#include "core/api/peer_access.h"
#include "core/base/clock.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/fixture.h"

FIXTURE_SUITE(captures)

/* ---- One that is begun ----------------------------------------------------------------------- */

#define MOMENT_NS (20 * MS) /* in which a begin that waits for nobody is done */

static struct {
    pthread_t thread;
    unsigned flags; /* of its stream */
    CUstreamCaptureMode mode;
    sem_t starts, begun, may_end;
    CUresult result;
} other;

static void *captures(void *arg)
{
    CUstream stream;
    CUgraph graph;

    (void)arg;
    MUST(cuCtxSetCurrent(f.context));
    MUST(cuStreamCreate(&stream, other.flags));
    sem_post(&other.starts);
    MUST(gs_core_capture_begin(f.core, stream));
    MUST(cuStreamBeginCapture(stream, other.mode));
    sem_post(&other.begun);
    sem_wait(&other.may_end);
    other.result = cuStreamEndCapture(stream, &graph);
    gs_core_capture_end(f.core, stream);
    return NULL;
}

static void begin_elsewhere(unsigned flags, CUstreamCaptureMode mode)
{
    other.flags = flags;
    other.mode = mode;
    sem_init(&other.starts, 0, 0);
    sem_init(&other.begun, 0, 0);
    sem_init(&other.may_end, 0, 0);
    cr_assert_eq(pthread_create(&other.thread, NULL, captures, NULL), 0);
    sem_wait(&other.starts);
}

static void must_be_whole(void)
{
    sem_post(&other.may_end);
    pthread_join(other.thread, NULL);
    cr_assert_eq(other.result, CUDA_SUCCESS, "the capture is broken: %d", (int)other.result);
}

static CUresult flags_at_a_begin(unsigned flags)
{
    begin_elsewhere(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_RELAXED);
    gs_rest_ns(MOMENT_NS);
    return cuCtxSetFlags(flags);
}

Test(captures, of_a_blocking_stream_begin_behind_sync_memops, .timeout = 60)
{
    fixture_start(&f);
    fixture_driver(&f)->ctx_set_flags = flags_at_a_begin;
    MUST(gs_core_sync_memops(f.core, must_alloc(&f, 4096), true));
    must_be_whole();
}

Test(captures, of_a_blocking_stream_begin_behind_sync_memops_that_waited_for_one, .timeout = 60)
{
    CUdeviceptr block;
    CUgraph graph;

    fixture_start(&f);
    fixture_driver(&f)->ctx_set_flags = flags_at_a_begin;
    block = must_alloc(&f, 4096);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(gs_core_sync_memops(f.core, block, true));
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    must_be_whole();
}

static CUresult synchronise_at_a_begin(CUstream stream)
{
    begin_elsewhere(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
    sem_wait(&other.begun);
    return cuStreamSynchronize(stream);
}

Test(captures, in_global_mode_begin_within_a_copy_between_devices, .timeout = 60)
{
    fixture_start(&f);
    fixture_driver(&f)->stream_synchronize = synchronise_at_a_begin;
    MUST(gs_core_owner_enter(f.core, must_alloc(&f, 4096), f.stream));
    fixture_driver(&f)->stream_synchronize = cuStreamSynchronize;
    MUST(gs_core_owner_leave(f.core, CUDA_SUCCESS));
    must_be_whole();
}

/* ---- One that begins while a free waits ------------------------------------------------------ */

static sem_t waits;
static CUdeviceptr freed;

static CUresult record_seen(CUcontext context, CUevent event)
{
    const CUresult result = cuCtxRecordEvent(context, event);

    sem_post(&waits);
    return result;
}

static CUresult synchronise_seen(void)
{
    sem_post(&waits);
    return cuCtxSynchronize();
}

/* In a stream of another context, where a fill stands still. */
static void *frees_elsewhere(void *arg)
{
    CUcontext context = fixture_context_new();
    CUdeviceptr target;
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc(&target, 4096));
    softcuda_hold(1);
    MUST(cuMemsetD32Async(target, 1, 1024, stream));
    *(gs_status *)arg = gs_core_free_async(f.core, freed, stream);
    MUST(cuMemFree(target));
    fixture_context_end(&f, context);
    return NULL;
}

/* A block is freed so, and that waits. */
static void begin_to_free(pthread_t *thread, gs_status *status)
{
    sem_init(&waits, 0, 0);
    fixture_start(&f);
    freed = must_alloc(&f, 4 * MIB);
    if (!fixture_is_old())
        fixture_driver(&f)->ctx_record_event = record_seen;
    fixture_driver(&f)->ctx_synchronize = synchronise_seen;
    cr_assert_eq(pthread_create(thread, NULL, frees_elsewhere, status), 0);
    sem_wait(&waits);
}

Test(captures, begin_while_a_free_waits_for_another_contexts_work, .timeout = 60)
{
    pthread_t thread;
    gs_status status;
    CUgraph graph;

    if (fixture_is_old())
        cr_skip_test("there such a free holds up begins of captures");
    begin_to_free(&thread, &status);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    softcuda_hold(0);
    pthread_join(thread, NULL);
    MUST(status);
}

/* It is the later free that finds nothing, and what is at the address since stays. */
Test(captures, a_block_that_another_thread_frees_meanwhile_is_freed_once, .timeout = 60)
{
    gs_status status;
    CUdeviceptr again;
    pthread_t thread;

    begin_to_free(&thread, &status);
    MUST(gs_core_free(f.core, freed));
    again = must_alloc(&f, 4 * MIB);
    cr_assert_eq(again, freed);
    softcuda_hold(0);
    pthread_join(thread, NULL);
    cr_assert_eq(status, GS_NOT_LIVE);
    MUST(gs_core_free(f.core, again));
}

/* ---- One that is open ------------------------------------------------------------------------ */

static CUresult unregister_seen(void *page)
{
    sem_post(&waits);
    return cuMemHostUnregister(page);
}

static void *allocates_half(void *arg)
{
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(f.context));
    MUST(gs_core_alloc(f.core, *(const size_t *)arg, &block));
    MUST(gs_core_free(f.core, block));
    return NULL;
}

/* The driver has waited in the free. */
Test(captures, what_was_freed_before_one_is_waited_for_by_two_threads, .timeout = 60)
{
    CUdeviceptr first, second;
    pthread_t threads[2];
    size_t left, total, half;
    CUgraph graph;

    if (fixture_is_old())
        cr_skip_test("there such a free waits itself");
    sem_init(&waits, 0, 0);
    fixture_start(&f);
    MUST(cuMemGetInfo(&left, &total));
    half = left / 8 * 3;
    first = must_alloc(&f, half);
    second = must_alloc(&f, half);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    softcuda_hold(1);
    MUST(cuMemsetD32Async(first, 1, 1024, CU_STREAM_PER_THREAD));
    MUST(gs_core_free(f.core, first));
    MUST(gs_core_free(f.core, second));
    fixture_driver(&f)->mem_host_unregister = unregister_seen;
    cr_assert_eq(pthread_create(&threads[0], NULL, allocates_half, &half), 0);
    sem_wait(&waits);
    cr_assert_eq(pthread_create(&threads[1], NULL, allocates_half, &half), 0);
    gs_rest_ns(5 * MOMENT_NS);
    softcuda_hold(0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
}

#define PARTS 4
#define TIMES 60

static size_t part;

static void CUDA_CB rest_a_moment(void *arg)
{
    gs_rest_ns((uintptr_t)arg * MOMENT_NS / 8);
}

/* Behind work of its own, and at times behind none. */
static void *allocates_its_part(void *arg)
{
    CUdeviceptr block;
    CUstream stream;
    uintptr_t refused = 0;

    MUST(cuCtxSetCurrent(f.context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (uintptr_t i = (uintptr_t)arg; i < (uintptr_t)arg + TIMES; i++) {
        if (gs_core_alloc(f.core, part, &block) != GS_OK) {
            refused++;
            continue;
        }
        if (i % 2)
            MUST(cuLaunchHostFunc(stream, rest_a_moment, (void *)(i % 7)));
        MUST(gs_core_free(f.core, block));
    }
    MUST(cuStreamDestroy(stream));
    return (void *)refused;
}

/* Natively a free has waited, and what it freed is there. */
Test(captures, of_which_one_is_open_beside_threads_that_free_what_they_need_again, .timeout = 120)
{
    pthread_t threads[PARTS];
    size_t left, total;
    CUgraph graph;

    fixture_start(&f);
    MUST(cuMemGetInfo(&left, &total));
    part = left / PARTS / (2 * MIB) * (2 * MIB);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (uintptr_t i = 0; i < PARTS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, allocates_its_part, (void *)i), 0);
    for (int i = 0; i < PARTS; i++) {
        void *refused;

        pthread_join(threads[i], &refused);
        cr_expect_eq((uintptr_t)refused, 0, "%zu times", (size_t)refused);
    }
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
}

/* ---- One that ends --------------------------------------------------------------------------- */

static bool ends; /* when it was seen */

bool __real_gs_fences_wait_begins(struct gs_fences *fences);
bool __wrap_gs_fences_wait_begins(struct gs_fences *fences);

bool __wrap_gs_fences_wait_begins(struct gs_fences *fences)
{
    const bool none = __real_gs_fences_wait_begins(fences);
    CUgraph graph;

    if (none || !ends)
        return none;
    ends = false;
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
    return none;
}

Test(captures, that_end_meanwhile_leave_sync_memops_set, .timeout = 60)
{
    unsigned flags = 0;
    CUdeviceptr block;

    fixture_start(&f);
    block = must_alloc(&f, 4096);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ends = true;
    MUST(gs_core_sync_memops(f.core, block, true));
    cr_assert_not(ends, "the moment did not come");
    MUST(cuCtxGetFlags(&flags));
    cr_assert(flags & CU_CTX_SYNC_MEMOPS);
}
