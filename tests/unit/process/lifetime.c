/* Contexts that end, drivers that cannot, calls that fail: nothing is lost or used too early. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/share/importer.h"
#include "tests/check.h"
#include "tests/rest.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

static struct fixture f;

static void begin(void)
{
    fixture_options(&f);
}

/* Unless the test has. */
static void end(void)
{
    struct softcuda_census census;

    if (f.core)
        fixture_end(&f);
    softcuda_census(&census);
    CHECK(census.handles == 0, "%u handles", census.handles);
    CHECK(census.mappings == 0 && census.reservations == 0 && census.exported_fds == 0);
    CHECK(census.events == 0, "%u events", census.events);
    CHECK(census.device_bytes == 0);
}

TestSuite(lifetime, .init = begin, .fini = end);

Test(lifetime, memory_goes_with_its_context)
{
    struct softcuda_census before, after;
    struct gs_mempool_figures figures;
    struct gs_context *detached;
    CUcontext context, popped;
    CUdeviceptr a, b;

    fixture_start(&f);
    softcuda_census(&before);
    for (int round = 0; round < 20; round++) {
        context = fixture_context_new();
        MUST(gs_core_alloc(f.core, 1000, &a));
        MUST(gs_core_alloc(f.core, 4 * MIB, &b));
        MUST(gs_core_free(f.core, b));
        MUST(gs_core_alloc_async(f.core, 4096, NULL, NULL, &b));
        MUST(gs_core_free_async(f.core, b, NULL));
        detached = gs_core_context_detach(f.core, context);
        cr_assert_not_null(detached);
        MUST(cuCtxDestroy(context));
        gs_core_context_gone(f.core, context, detached);
        cr_assert_eq(gs_core_free(f.core, a), GS_NOT_OURS);
        MUST(cuCtxGetCurrent(&popped));
        if (!popped)
            MUST(cuCtxSetCurrent(f.context));
    }
    softcuda_census(&after);
    cr_assert_eq(after.handles, before.handles);
    cr_assert_eq(after.mappings, before.mappings);
    cr_assert_eq(after.events, before.events);
    cr_assert_eq(f.core->gone.dead, 0, "nobody looks for what is left of them");
    gs_core_mempool_figures(f.core, 0, &figures);
    cr_assert_eq(figures.used, 0);
    cr_assert_eq(figures.used_high, 4096, "the most is remembered");
}

/* An allocation that waits in it finds its turn in the record, which is another one's by then. */
Test(lifetime, who_waits_in_a_context_that_ends_has_its_turn)
{
    struct gs_context *detached, *next;
    CUcontext context;
    CUdeviceptr block;

    fixture_start(&f);
    context = fixture_context_new();
    MUST(gs_core_alloc(f.core, 1000, &block));
    detached = gs_core_context_detach(f.core, context);
    detached->arenas[0]->line = 3;
    detached->arenas[0]->turn = 2;
    MUST(cuCtxDestroy(context));
    gs_core_context_gone(f.core, context, detached);
    fixture_context_new();
    MUST(gs_core_alloc(f.core, 1000, &block));
    MUST(gs_context_current(f.core, &next));
    cr_assert_eq(next, detached);
    cr_assert_eq(next->arenas[0]->line, 3);
    cr_assert_eq(next->arenas[0]->turn, 2);
}

Test(lifetime, a_context_that_stays_keeps_its_memory)
{
    struct gs_context *detached;
    CUdeviceptr a, b;

    fixture_start(&f);
    MUST(gs_core_alloc(f.core, 1000, &a));
    detached = gs_core_context_detach(f.core, f.context);
    /* Meanwhile the handle means a new record. */
    MUST(gs_core_alloc(f.core, 1000, &b));
    gs_core_context_stays(f.core, f.context, detached);
    MUST(gs_core_free(f.core, a));
    MUST(gs_core_free(f.core, b));
}

/* A green context that goes takes its streams along, and the primary one stays: a new stream may
 * have the handle of one of them, and what that one freed is not its own. */
Test(lifetime, what_a_stream_freed_is_no_streams_after_a_call_that_may_end_it)
{
    struct gs_context *context;
    CUdeviceptr block, next;
    CUstream stream;

    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_context_current(f.core, &context));
    MUST(gs_core_alloc_async(f.core, 4 * MIB, NULL, stream, &block));
    softcuda_hold(1);
    MUST(cuMemsetD8Async(block, 1, 4096, stream));
    MUST(gs_core_free_async(f.core, block, stream));
    cr_assert_eq(context->arenas[0]->order.bytes, 4 * MIB);
    gs_core_context_stays(f.core, f.context, gs_core_context_detach(f.core, f.context));
    cr_assert_eq(context->arenas[0]->order.bytes, 0);
    MUST(gs_core_alloc_async(f.core, 4 * MIB, NULL, stream, &next));
    cr_assert_neq(next, block, "it may be another stream");
    softcuda_hold(0);
    MUST(gs_core_free_async(f.core, next, stream));
    MUST(cuStreamDestroy(stream));
    gs_core_stream_gone(f.core, stream);
}

/* ---- Threads that are at it when a context ends ---- */

struct call {
    struct fixture *f;
    CUcontext context;
    CUdeviceptr block;
    CUstream stream;
    gs_status status;
    size_t given;
    int done; /* atomic */
};

static void moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void *allocates(void *arg)
{
    struct call *call = arg;

    MUST(cuCtxSetCurrent(call->context));
    call->status = gs_core_alloc(call->f->core, 4096, &call->block);
    __atomic_store_n(&call->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static void *frees(void *arg)
{
    struct call *call = arg;

    call->status = gs_core_free(call->f->core, call->block);
    return NULL;
}

static void *gives_back(void *arg)
{
    struct call *call = arg;
    const struct gs_patience patience = gs_patience_of(UINT64_MAX);

    call->given = gs_device_trim(call->f->core, &call->f->core->device[0], &patience, SIZE_MAX);
    return NULL;
}

/* A block that another process may still open keeps its piece, beside which nothing is handed out.
 * False: the allocation did not wait then, for the machine was too busy. */
static bool ends_under_an_allocation(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct call call = {.f = &f, .context = fixture_context_new()};
    struct gs_arena_counts before;
    CUdeviceptr shared, other, large;
    struct gs_context *detached;
    pthread_t thread;
    bool waited;

    MUST(gs_core_alloc(f.core, MIB - 512, &shared));
    MUST(gs_core_alloc(f.core, MIB - 512, &other));
    MUST(gs_core_ipc_handle(f.core, shared, ipc_handle));
    MUST(gs_core_alloc(f.core, 80 * MIB, &large));
    softcuda_hold(1);
    MUST(cuMemsetD8Async(large, 1, MIB, NULL));
    MUST(gs_core_free(f.core, large));
    before = fixture_counts(&f);
    MUST(pthread_create(&thread, NULL, allocates, &call)); /* and waits for that */
    while (fixture_counts(&f).waits == before.waits &&
           !__atomic_load_n(&call.done, __ATOMIC_SEQ_CST))
        usleep(100);
    detached = gs_core_context_detach(f.core, call.context);
    waited = !__atomic_load_n(&call.done, __ATOMIC_SEQ_CST);
    softcuda_hold(0);
    MUST(cuCtxDestroy(call.context));
    gs_core_context_gone(f.core, call.context, detached);
    MUST(pthread_join(thread, NULL));
    MUST(cuCtxSetCurrent(f.context));
    waited &= fixture_counts(&f).late == before.late;
    cr_assert(!waited || call.status == GS_NO_CONTEXT, "%d", call.status);
    return waited;
}

Test(lifetime, nothing_is_taken_of_a_context_that_has_gone)
{
    struct softcuda_census census;

    f.options.share.enable = true;
    f.options.share.grace_ns = 300000000;
    snprintf(f.options.share.dir, sizeof f.options.share.dir, "/tmp/gpushim-lifetime-%d",
             (int)getpid());
    fixture_start(&f);
    for (int i = 0; i < 20 && !ends_under_an_allocation();)
        i++;
    for (int i = 0; i < 100; i++) {
        softcuda_census(&census);
        if (census.device_bytes == 0)
            break;
        moment();
    }
    fixture_end(&f);
    rmdir(f.options.share.dir);
}

Test(lifetime, a_free_that_its_context_does_not_outlive_leaves_nothing)
{
    struct call call = {.f = &f};
    pthread_t thread;
    CUdeviceptr block;

    f.options.free_native = true;
    fixture_start(&f);
    MUST(gs_core_alloc(f.core, 4096, &block));
    call.context = fixture_context_new();
    MUST(gs_core_alloc(f.core, 3 * MIB, &call.block));
    cr_assert_eq(softcuda_delay("cuCtxPushCurrent", 100000), 0);
    MUST(pthread_create(&thread, NULL, frees, &call));
    moment();
    fixture_context_end(&f, call.context);
    MUST(pthread_join(thread, NULL));
    softcuda_reset();
    MUST(cuCtxSetCurrent(f.context));
    MUST(gs_core_free(f.core, block));
}

Test(lifetime, a_free_whose_wait_the_driver_refuses_has_freed_nothing)
{
    CUdeviceptr block, first;

    f.options.free_native = true;
    fixture_start(&f);
    MUST(gs_core_alloc(f.core, 4096, &first));
    MUST(gs_core_alloc(f.core, 3 * MIB, &block));
    cr_assert_eq(softcuda_fail("cuCtxSynchronize", 1, CUDA_ERROR_UNKNOWN), 0);
    cr_assert_eq(gs_core_free(f.core, block), (gs_status)CUDA_ERROR_UNKNOWN);
    cr_assert_eq(fixture_arena(&f).live, 3 * MIB + (size_t)4096);
    MUST(gs_core_free(f.core, block));
    cr_assert_eq(gs_core_free(f.core, block), GS_NOT_LIVE);
    MUST(gs_core_free(f.core, first));
    fixture_end(&f);
}

static CUdeviceptr freed, again;

static CUresult another_frees(void)
{
    fixture_driver(&f)->ctx_synchronize = cuCtxSynchronize;
    f.core->options.free_native = false;
    MUST(gs_core_free(f.core, freed));
    again = must_alloc(&f, 3 * MIB);
    return cuCtxSynchronize();
}

Test(lifetime, a_block_that_another_frees_during_the_wait_is_freed_once)
{
    f.options.free_native = true;
    fixture_start(&f);
    freed = must_alloc(&f, 3 * MIB);
    fixture_driver(&f)->ctx_synchronize = another_frees;
    cr_assert_eq(gs_core_free(f.core, freed), GS_NOT_LIVE);
    cr_assert_eq(again, freed);
    MUST(gs_core_free(f.core, again));
    fixture_end(&f);
}

/* A thread waits for the GPU, which stands still, in a context that then may be about to go. */
static struct gs_context *detach_under_a_wait(struct call *call, pthread_t *ret_thread)
{
    unsigned long asked;

    call->context = fixture_context_new();
    MUST(gs_core_alloc(call->f->core, 8 * MIB, &call->block));
    MUST(cuStreamCreate(&call->stream, CU_STREAM_NON_BLOCKING));
    softcuda_hold(1);
    MUST(cuMemsetD8Async(call->block, 1, 4096, call->stream));
    MUST(gs_core_free(call->f->core, call->block));
    asked = softcuda_calls("cuEventQuery");
    MUST(pthread_create(ret_thread, NULL, gives_back, call));
    for (int i = 0; i < 1000 && softcuda_calls("cuEventQuery") == asked; i++)
        usleep(1000);
    return gs_core_context_detach(call->f->core, call->context);
}

/* The driver's call may itself wait for work that waits for who waits here. */
Test(lifetime, a_context_that_goes_for_long_is_not_waited_for)
{
    struct call call = {.f = &f};
    struct gs_context *detached;
    pthread_t thread;

    fixture_start(&f);
    detached = detach_under_a_wait(&call, &thread);
    MUST(pthread_join(thread, NULL));
    cr_assert_eq(call.given, 0, "%zu bytes that the GPU is still at", call.given);
    softcuda_hold(0);
    MUST(cuCtxDestroy(call.context));
    gs_core_context_gone(f.core, call.context, detached);
    MUST(cuCtxSetCurrent(f.context));
}

/* Who waits for its work, without a lock, looks at no event of it while the driver may destroy
 * it. */
Test(lifetime, nothing_is_asked_about_a_context_that_may_go)
{
    struct call call = {.f = &f};
    struct gs_context *detached;
    pthread_t thread;

    fixture_start(&f);
    detached = detach_under_a_wait(&call, &thread);
    cr_assert_eq(softcuda_fail("cuEventQuery", 0, CUDA_ERROR_CONTEXT_IS_DESTROYED), 0);
    moment();
    softcuda_reset(); /* and the GPU goes on */
    gs_core_context_stays(f.core, call.context, detached);
    MUST(pthread_join(thread, NULL));
    cr_assert_geq(call.given, 8 * MIB, "%zu", call.given);
    MUST(cuStreamDestroy(call.stream));
    fixture_context_end(&f, call.context);
}

static bool has_record(CUcontext handle)
{
    const struct gs_context *context;

    gs_lock_take(&f.core->lock);
    context = f.core->contexts;
    while (context && context->handle != handle)
        context = context->next;
    gs_lock_release(&f.core->lock);
    return context != NULL;
}

static void start_in(struct call *call, pthread_t *ret_thread)
{
    MUST(pthread_create(ret_thread, NULL, allocates, call));
    while (!has_record(call->context))
        usleep(1000);
}

/* A thread that has looked its context up waits for the single stream; the context goes meanwhile,
 * and its record is the next one's. */
Test(lifetime, a_record_is_of_use_to_its_own_context_alone, .timeout = 60)
{
    struct call call = {.f = &f}, other = {.f = &f};
    pthread_t thread[2];
    CUdeviceptr block;
    CUstream stream;

    f.options.single_stream = true;
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_alloc(f.core, 8 * MIB, &block));
    softcuda_hold(1);
    gs_single_submits(gs_core_single(f.core), stream);
    fixture_spin_fill(&f, stream, block, 1, 16, 0);
    MUST(gs_core_free(f.core, block));
    other.context = fixture_context_new();
    call.context = fixture_context_new();
    start_in(&call, &thread[0]);
    fixture_context_end(&f, call.context);
    start_in(&other, &thread[1]);
    softcuda_hold(0);
    MUST(pthread_join(thread[0], NULL));
    MUST(pthread_join(thread[1], NULL));
    MUST(other.status);
    cr_assert_neq(call.status, GS_OK, "it has the other context's memory");
    MUST(cuCtxSetCurrent(other.context));
    fixture_context_end(&f, other.context);
    MUST(cuStreamDestroy(stream));
}

static unsigned exported(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.exported_fds;
}

/* Nor does that cost anybody the last of a full device. */
Test(lifetime, a_full_device_has_what_was_exported_too)
{
    unsigned count[2] = {0};

    for (unsigned enable = 0; enable < 2; enable++) {
        CUdeviceptr address;

        fixture_options(&f);
        f.options.share.enable = enable;
        f.options.share.export_ahead = true;
        fixture_start(&f);
        while (gs_core_alloc(f.core, 2 * MIB, &address) == GS_OK)
            if (count[enable]++ == 0)
                cr_assert_eq(exported(), enable);
        cr_assert_eq(exported(), 0);
        end();
    }
    cr_assert_gt(count[0], 0);
    cr_assert_eq(count[0], count[1], "%u blocks, not %u", count[1], count[0]);
}

/* The call is there and does not work, which the first context says. */
Test(lifetime, without_context_events_a_free_waits_where_work_goes_to_several_streams)
{
    CUdeviceptr block, address;

    softcuda_without("ctx_record_event");
    fixture_start(&f);
    MUST(gs_core_alloc(f.core, 4096, &block));
    fixture_spin_fill(&f, f.stream, block, 1, 1, 100000000);
    MUST(gs_core_free(f.core, block));
    cr_assert_eq(cuStreamQuery(f.stream), CUDA_SUCCESS);
    cr_assert_eq(gs_core_alloc_async(f.core, 4096, NULL, f.stream, &address), GS_NOT_OFFERED);
    MUST(gs_core_alloc(f.core, 4096, &address));
    cr_assert_eq(address, block);
    MUST(gs_core_free(f.core, address));
    fixture_end(&f);
    softcuda_without("");
}

struct freeing {
    struct fixture *f;
    CUdeviceptr block;
};

static void *frees_in_order(void *arg)
{
    struct freeing *freeing = arg;

    MUST(cuCtxSetCurrent(freeing->f->context));
    fixture_spin_fill(freeing->f, CU_STREAM_PER_THREAD, freeing->block, 1, 1, 20000000);
    MUST(gs_core_free_async(freeing->f->core, freeing->block, CU_STREAM_PER_THREAD));
    return NULL;
}

/* cuMemFreeAsync does not wait; the allocation that needs the memory does, also where this thread
 * has no name for the stream. */
Test(lifetime, without_context_events_a_full_gpu_waits_for_what_was_freed_in_order)
{
    struct freeing freeing = {&f};
    CUdeviceptr block;
    pthread_t thread;
    size_t free, total;

    softcuda_without("ctx_record_event");
    fixture_start(&f);
    MUST(cuMemGetInfo(&free, &total));
    MUST(gs_core_alloc(f.core, free / 4 * 3, &freeing.block));
    cr_assert_eq(pthread_create(&thread, NULL, frees_in_order, &freeing), 0);
    pthread_join(thread, NULL);
    MUST(gs_core_alloc(f.core, free / 4 * 3, &block));
    MUST(gs_core_free(f.core, block));
    fixture_end(&f);
    softcuda_without("");
}

/* Beside a capture as well, when the driver could not be asked. */
Test(lifetime, a_green_contexts_memory_is_its_primary_ones_until_it_ends)
{
    struct gs_context *known;
    CUdevResource processors;
    CUdevResourceDesc description;
    CUcontext handle;
    CUgreenCtx green;
    CUgraph graph;

    fixture_start(&f);
    MUST(cuDeviceGetDevResource(0, &processors, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &processors, 1));
    MUST(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    gs_core_green_made(f.core, gs_core_green_new(), green, 0);
    MUST(cuCtxFromGreenCtx(&handle, green));
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuCtxSetCurrent(handle));
    MUST(gs_context_current(f.core, &known));
    cr_assert_eq(known->handle, f.context);
    cr_assert_eq(gs_context_owner(f.core, handle), f.context);
    f.core->programs.greens->id++;
    cr_assert_eq(gs_context_owner(f.core, handle), handle, "it is another's that has the handle");
    f.core->programs.greens->id--;
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
    MUST(cuCtxSetCurrent(f.context));
    MUST(cuGreenCtxDestroy(green));
    gs_core_green_gone(f.core, handle);
    cr_assert_eq(gs_context_owner(f.core, handle), handle, "it may be another context's");
    cr_assert_null(f.core->programs.greens, "who makes many and ends them keeps none");
}

/* A reset ends them with it, and what destroys them then fails. */
Test(lifetime, green_contexts_end_with_their_primary_one)
{
    CUdevResource processors;
    CUdevResourceDesc description;
    CUgreenCtx green[2];
    CUcontext handle[2];

    fixture_start(&f);
    MUST(cuDeviceGetDevResource(0, &processors, CU_DEV_RESOURCE_TYPE_SM));
    MUST(cuDevResourceGenerateDesc(&description, &processors, 1));
    for (int i = 0; i < 2; i++) {
        MUST(cuGreenCtxCreate(&green[i], description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        gs_core_green_made(f.core, gs_core_green_new(), green[i], 0);
        MUST(cuCtxFromGreenCtx(&handle[i], green[i]));
    }
    gs_greens_forget(f.core, NULL, f.context);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gs_context_owner(f.core, handle[i]), handle[i]);
        MUST(cuGreenCtxDestroy(green[i]));
    }
}

/* A call that may end it is under way, and may leave it as it is. */
Test(lifetime, a_context_that_may_be_about_to_go_has_not_done_its_work)
{
    struct gs_context *context;

    fixture_start(&f);
    MUST(gs_context_current(f.core, &context));
    context = gs_core_context_detach(f.core, f.context);
    cr_assert_eq(gs_context_await_work(context, 0), GS_NO_CONTEXT);
    gs_core_context_stays(f.core, f.context, context);
}

/* Nor is it the device's any more, nor what comes next; of another device it never was. */
Test(lifetime, a_context_is_its_devices_until_it_may_be_about_to_go)
{
    struct gs_context *first, *context;
    size_t left = 256 * MIB, total = left;
    CUcontext second, handle;
    CUdeviceptr block;

    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_start(&f);
    block = must_alloc(&f, 4 * MIB);
    MUST(gs_context_current(f.core, &first));
    cr_assert_null(gs_context_of_device(f.core, 1));
    cr_assert_null(gs_core_primary(f.core, 1), "it is not active");
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxSetCurrent(second));
    MUST(gs_context_current(f.core, &context));
    cr_assert_eq(gs_context_of_device(f.core, 0), f.context);
    cr_assert_eq(gs_context_of_device(f.core, 1), second);
    cr_assert_eq(gs_core_primary(f.core, 1), second);
    for (CUdevice device = 0; device < 2; device++)
        cr_assert_eq(gs_core_device_of_uuid(f.core, f.core->device[device].uuid), device);
    cr_assert_eq(gs_core_device_of_uuid(f.core, (unsigned char[16]){1}), GS_NO_DEVICE);
    gs_core_bound(f.core, 0, &left, &total);
    cr_assert_eq(left, 252 * MIB);
    context = gs_core_context_detach(f.core, f.context);
    cr_assert_eq(context, first);
    cr_assert_null(gs_context_of_device(f.core, 0));
    cr_assert_not_null(context = gs_context_next(f.core, NULL, &handle));
    cr_assert_eq(handle, second);
    cr_assert_null(gs_context_next(f.core, context, &handle));
    gs_core_context_stays(f.core, f.context, first);
    MUST(cuCtxSetCurrent(f.context));
    gs_core_context_gone(f.core, second, gs_core_context_detach(f.core, second));
    MUST(cuDevicePrimaryCtxRelease(1));
    cr_assert_null(gs_core_primary(f.core, 1));
    MUST(gs_core_free(f.core, block));
}

/* A thread that was about to allocate makes the arena of its tag. */
Test(lifetime, an_arena_of_a_context_that_goes_is_as_the_others)
{
    struct gs_context *detached;
    CUcontext context;

    fixture_start(&f);
    context = fixture_context_new();
    must_alloc(&f, MIB);
    detached = gs_core_context_detach(f.core, context);
    gs_core_tag("late");
    cr_assert_null(gs_context_lock_arena(f.core, detached, 1000));
    cr_assert_not_null(detached->arenas[GS_THREAD_ARENAS]);
    cr_assert(detached->arenas[GS_THREAD_ARENAS]->leaving);
    MUST(cuCtxDestroy(context));
    gs_core_context_gone(f.core, context, detached);
    cr_assert_not(detached->arenas[GS_THREAD_ARENAS]->leaving);
    gs_core_tag("later");
    cr_assert_null(gs_context_lock_arena(f.core, detached, 1000));
    cr_assert(detached->arenas[GS_THREAD_ARENAS + 1]->dead);
    gs_core_tag("");
    MUST(cuCtxSetCurrent(f.context));
}

/* What is of others is looked after again where a call that may end a context did not. */
Test(lifetime, of_what_is_open_in_a_context_that_may_go_nothing_is_asked_until_it_stays)
{
    struct gs_importer_context opener = {0};
    struct gs_context *detached;
    struct gs_share *share;

    fixture_start(&f);
    share = f.core->share;
    opener.context = f.context;
    HASH_ADD(hh, share->importer.contexts, context, sizeof opener.context, &opener);
    detached = gs_core_context_detach(f.core, f.context);
    cr_assert(opener.leaving);
    gs_core_context_stays(f.core, f.context, detached);
    cr_assert_not(opener.leaving);
    HASH_DEL(share->importer.contexts, &opener);
}

/* A handle is another pool's soon. */
Test(lifetime, a_pool_that_goes_is_no_devices_any_more)
{
    CUmemoryPool pools[2] = {(CUmemoryPool)&pools[0], (CUmemoryPool)&pools[1]};

    fixture_start(&f);
    cr_assert_eq(gs_core_mempool_going(f.core, NULL), -1);
    for (CUdevice device = 0; device < 2; device++)
        gs_core_mempool_set(f.core, device, pools[device]);
    gs_core_mempool_set(f.core, GS_DEVICES_MAX, pools[0]);
    cr_assert_eq(gs_core_mempool_going(f.core, pools[1]), 1);
    cr_assert_eq(gs_core_mempool_going(f.core, pools[1]), -1);
    cr_assert_eq(gs_core_mempool_going(f.core, pools[0]), 0);
    cr_assert_eq(gs_core_mempool_going(f.core, pools[0]), -1);
    gs_core_mempool_set(f.core, GS_DEVICES_MAX - 1, pools[0]);
    cr_assert_eq(gs_core_mempool_going(f.core, pools[0]), GS_DEVICES_MAX - 1);
}
