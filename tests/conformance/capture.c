/*
 * Stream captures. Natively cuMemAlloc is refused in some modes; the shim must never be what breaks
 * a capture (an event recorded at the wrong moment does), whatever is allocated and freed
 * meanwhile.
 */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(capture, .init = conform_start, .timeout = 60);

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};
static const char *const mode_names[] = {"global", "thread_local", "relaxed"};

#define WORDS 1024

static CUstream capturing; /* for another thread */

/* A capture of one fill of target is under way on stream. */
static void begin(CUstream stream, CUstreamCaptureMode mode, CUdeviceptr target, uint32_t value)
{
    OK(cuStreamBeginCapture(stream, mode));
    OK(launch_fill(stream, target, value, WORDS));
}

/* Ends the capture, which must be whole, and runs its graph: target gets value. */
static void end_and_run(CUstream stream, CUdeviceptr target, uint32_t value)
{
    CUgraph graph = NULL;

    OK(cuStreamEndCapture(stream, &graph));
    cr_assert_not_null(graph);
    OK(fill_now(target, 0, WORDS)); /* and done: stream does not wait for the legacy stream */
    run_graph(graph, stream);
    cr_assert_eq(words_other(target, value, WORDS), 0, "the graph did not run");
    OK(cuGraphDestroy(graph));
}

/* Nothing that has begun has not ended, as the library has it: what would hurt a capture of the
 * context is done at once. The driver itself has this in the memory. */
static void none_is_open(void)
{
    unsigned int on = 1, flags = 0;
    CUdeviceptr ptr = allocated(4096);

    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
    OK(cuMemFree(ptr));
    OK(cuCtxGetFlags(&flags));
    if (!under_shim())
        return;
    cr_assert(flags & CU_CTX_SYNC_MEMOPS, "a capture is taken to be open");
    OK(cuCtxSetFlags(flags & ~(unsigned)CU_CTX_SYNC_MEMOPS));
}

struct elsewhere {
    CUresult alloc, query, record;
    CUevent event;
    CUdeviceptr ptr, to_free;
    CUresult freed;
};

/* What a thread that has nothing to do with the capture does meanwhile. */
static void *allocate_elsewhere(void *arg)
{
    struct elsewhere *e = arg;

    e->alloc = cuCtxSetCurrent(context);
    if (e->alloc == CUDA_SUCCESS)
        e->alloc = cuMemAlloc(&e->ptr, MIB);
    if (e->to_free)
        e->freed = cuMemFree(e->to_free);
    return NULL;
}

static void run_elsewhere(struct elsewhere *e)
{
    pthread_t thread;

    cr_assert_eq(pthread_create(&thread, NULL, allocate_elsewhere, e), 0);
    pthread_join(thread, NULL);
}

Test(capture, allocation_on_the_capturing_thread)
{
    static const CUresult native[] = {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                                      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS};
    CUstream stream = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int m = 0; m < 3; m++) {
        CUdeviceptr ptr = 0;
        CUresult r;

        begin(stream, modes[m], target, 50u + (uint32_t)m);
        r = cuMemAlloc(&ptr, MIB);
        probe("alloc_in_capture", "%s: %s", mode_names[m], result_name(r));
        if (under_shim()) {
            end_and_run(stream, target, 50u + (uint32_t)m);
        } else {
            CHECK(native[m], r);
            r = capture_result(stream);
            probe("alloc_in_capture_then_end", "%s: %s", mode_names[m], result_name(r));
        }
        if (ptr)
            OK(cuMemFree(ptr));
    }
}

Test(capture, allocation_on_another_thread)
{
    static const CUresult native[] = {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS,
                                      CUDA_SUCCESS};
    CUstream stream = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int m = 0; m < 3; m++) {
        struct elsewhere e = {.ptr = 0};

        begin(stream, modes[m], target, 60u + (uint32_t)m);
        run_elsewhere(&e);
        probe("alloc_in_other_threads_capture", "%s: %s", mode_names[m], result_name(e.alloc));
        if (under_shim()) {
            end_and_run(stream, target, 60u + (uint32_t)m);
        } else {
            CHECK(native[m], e.alloc);
            probe("alloc_in_other_threads_capture_then_end", "%s: %s", mode_names[m],
                  result_name(capture_result(stream)));
        }
        if (e.ptr)
            OK(cuMemFree(e.ptr));
    }
}

static bool free_waits(void)
{
    const char *how = getenv("GPUSHIM_POOL_FREE");

    return !under_shim() || (how && strcmp(how, "native") == 0);
}

Test(capture, frees_during_a_capture)
{
    CUstream stream = new_stream(), user = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int m = 0; m < 3; m++) {
        CUdeviceptr ptr = 0, fresh = 0;
        struct elsewhere e = {.ptr = 0};
        CUresult r;

        OK(cuMemAlloc(&ptr, MIB));
        OK(cuMemAlloc(&e.to_free, MIB));
        OK(launch_spin_fill(user, ptr, 1, MIB / 4, 20 * MILLISECOND));
        OK(launch_spin_fill(user, e.to_free, 1, MIB / 4, 20 * MILLISECOND));
        begin(stream, modes[m], target, 70u + (uint32_t)m);
        r = cuMemFree(ptr);
        probe("free_in_capture", "%s: %s", mode_names[m], result_name(r));
        if (m == 2 && free_waits())
            cr_assert_not(is_busy(user), "%s", mode_names[m]);
        if (under_shim()) {
            CHECK(CUDA_SUCCESS, r);
            run_elsewhere(&e);
            CHECK(CUDA_SUCCESS, e.freed);
            end_and_run(stream, target, 70u + (uint32_t)m);
            /* What was freed meanwhile is guarded like any other. */
            OK(cuMemAlloc(&fresh, MIB));
            OK(launch_fill(stream, fresh, 2, MIB / 4));
            OK(cuCtxSynchronize());
            cr_assert_eq(words_other(fresh, 2, MIB / 4), 0);
            OK(cuMemFree(fresh));
            if (e.ptr)
                OK(cuMemFree(e.ptr));
        } else {
            probe("free_in_capture_then_end", "%s: %s", mode_names[m],
                  result_name(capture_result(stream)));
            if (r != CUDA_SUCCESS)
                OK(cuMemFree(ptr));
            OK(cuMemFree(e.to_free));
        }
    }
}

/* Many allocations and frees in a row: the moment at which an arena would close an epoch or
 * grow. */
Test(capture, a_storm_of_allocations_during_a_capture)
{
    CUstream stream = new_stream();
    CUdeviceptr target = 0, ptr[64];

    if (!under_shim())
        cr_skip_test("natively refused in two of three modes");
    target = filled(WORDS * 4, 0);
    for (int m = 0; m < 3; m++) {
        int n = 0;

        begin(stream, modes[m], target, 80u + (uint32_t)m);
        for (int i = 0; i < 64; i++)
            n += cuMemAlloc(&ptr[n], i % 3 ? 64 * KIB : 4 * MIB) == CUDA_SUCCESS;
        while (n)
            OK(cuMemFree(ptr[--n]));
        end_and_run(stream, target, 80u + (uint32_t)m);
    }
    for (int i = 0; i < 64; i++)
        OK(cuMemAlloc(&ptr[i], 4 * MIB));
    for (int i = 0; i < 64; i++)
        OK(cuMemFree(ptr[i]));
}

Test(capture, questions_during_a_capture)
{
    CUstream stream = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int m = 0; m < 3; m++) {
        CUdeviceptr base = 0;
        size_t size = 0, total = 0;
        unsigned int type = 0;
        CUipcMemHandle handle;
        CUresult info, share;

        begin(stream, modes[m], target, 90u + (uint32_t)m);
        OK(cuMemGetAddressRange(&base, &size, target));
        OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, target));
        end_and_run(stream, target, 90u + (uint32_t)m);
        begin(stream, modes[m], target, 1);
        info = cuMemGetInfo(&size, &total);
        share = cuIpcGetMemHandle(&handle, target);
        probe("questions_in_capture", "%s: info %s share %s then end %s", mode_names[m],
              result_name(info), result_name(share), result_name(capture_result(stream)));
    }
}

Test(capture, the_calls_by_which_a_capture_begins_and_ends_in_every_form)
{
    typedef CUresult (*begin_fn)(CUstream, CUstreamCaptureMode);
    typedef CUresult (*end_fn)(CUstream, CUgraph *);
    CUstream stream = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int i = 0; i < 2; i++) {
        begin_fn begin_form =
            (begin_fn)driver_lookup("cuStreamBeginCapture", 12000, default_streams[i]);
        end_fn end_form = (end_fn)driver_lookup("cuStreamEndCapture", 12000, default_streams[i]);
        CUgraph graph = NULL;
        CUdeviceptr ptr = 0;

        cr_assert(begin_form && end_form);
        OK(begin_form(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(launch_fill(stream, target, 5, WORDS));
        for (int k = 0; k < 8; k++) {
            OK(cuMemAlloc(&ptr, 8 * MIB));
            if (under_shim())
                OK(cuMemFree(ptr));
            else
                OK(cuStreamIsCapturing(stream, &(CUstreamCaptureStatus){0}));
            if (!under_shim())
                break;
        }
        OK(end_form(stream, &graph));
        none_is_open();
        OK(cuGraphDestroy(graph));
        if (!under_shim())
            OK(cuMemFree(ptr));
    }
}

/* What comes and goes while a capture is open: enough for the arena to want events. */
static void churn(void)
{
    for (int i = 0; i < 8 && under_shim(); i++) {
        CUdeviceptr ptr = allocated(8 * MIB);

        OK(cuMemFree(ptr));
    }
}

typedef CUresult to_graph_fn(CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                             size_t, CUstreamCaptureMode);
typedef CUresult again_fn(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);

/* Into a graph that is there, and once more over what was captured, by drivers that can. */
Test(capture, into_a_graph_and_over_it_again)
{
    CUstream stream = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int i = 0; i < 2; i++) {
        to_graph_fn *to_graph =
            (to_graph_fn *)driver_lookup("cuStreamBeginCaptureToGraph", 12030, default_streams[i]);
        again_fn *again =
            (again_fn *)driver_lookup("cuStreamBeginRecaptureToGraph", 13030, default_streams[i]);
        CUgraph graph = NULL, ended = NULL;

        if (!to_graph)
            cr_skip_test("the driver captures into no graph that is there");
        OK(cuGraphCreate(&graph, 0));
        for (int k = 0; k < (again ? 2 : 1); k++) {
            OK(k ? again(stream, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL, NULL)
                 : to_graph(stream, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
            churn();
            OK(launch_fill(stream, target, 21u + (uint32_t)k, WORDS));
            churn();
            OK(cuStreamEndCapture(stream, &ended));
            cr_assert_eq(ended, graph);
            run_graph(graph, stream);
            cr_assert_eq(words_other(target, 21u + (uint32_t)k, WORDS), 0);
        }
        OK(cuGraphDestroy(graph));
    }
}

/* Captures for a graphics API take a context that was made for one. */
Test(capture, one_that_does_not_begin_is_not_open)
{
    typedef CUresult to_cig_fn(CUstream, void *);
    to_cig_fn *to_cig = (to_cig_fn *)driver_lookup("cuStreamBeginCaptureToCig", 13010, 0);
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;
    CUgraph graph = NULL;
    char nothing[64] = "";
    void *params[2] = {nothing, NULL};

    for (int i = 0; i < 4; i++) {
        if (to_cig)
            FAILS(to_cig(stream, params));
        FAILS(cuStreamBeginCapture(stream, (CUstreamCaptureMode)4711));
        FAILS(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
        FAILS(cuStreamEndCapture(stream, &graph));
        none_is_open();
    }
    for (int i = 0; i < 40; i++) {
        OK(cuMemAlloc(&ptr, 64 * MIB));
        OK(fill_now(ptr, 1, 16));
        OK(cuMemFree(ptr));
    }
}

Test(capture, a_capture_abandoned_with_its_stream)
{
    CUdeviceptr ptr = 0, target = 0;
    CUstream stream;
    CUresult r;

    target = filled(WORDS * 4, 0);
    for (int i = 0; i < 4; i++) {
        stream = new_stream();
        begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, target, 1);
        r = cuStreamDestroy(stream);
        probe("destroy_of_a_capturing_stream", "%s", result_name(r));
        if (r != CUDA_SUCCESS) {
            (void)capture_result(stream);
            OK(cuStreamDestroy(stream));
        }
        none_is_open();
    }
    /* Freed memory comes back as usual. */
    for (int i = 0; i < 40; i++) {
        OK(cuMemAlloc(&ptr, 64 * MIB));
        OK(fill_now(ptr, 1, 16));
        OK(cuMemFree(ptr));
    }
}

/* ---- graph memory nodes ---- */

Test(capture, async_memory_of_a_capturing_stream_belongs_to_the_graph)
{
    CUstream stream = new_stream();
    CUdeviceptr out = 0, ptr = 0;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    size_t nodes = 0;

    out = filled(WORDS * 4, 0);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemAllocAsync(&ptr, WORDS * 4, stream));
    OK(launch_fill(stream, ptr, 123, WORDS));
    OK(launch_copy(stream, out, ptr, WORDS));
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    cr_assert_eq(nodes, 4, "%zu nodes", nodes);
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        OK(fill_now(out, 0, WORDS));
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(out, 123, WORDS), 0, "launch %d", i);
    }
}

Test(capture, graph_memory_that_outlives_its_graph_is_freed_by_either_call)
{
    for (int by_async = 0; by_async < 2; by_async++) {
        CUstream stream = new_stream();
        CUdeviceptr ptr = 0;
        CUgraph graph = NULL;
        CUgraphExec exec = NULL;

        OK(launch_spin(stream, 1));
        OK(cuStreamSynchronize(stream));
        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(cuMemAllocAsync(&ptr, WORDS * 4, stream));
        OK(launch_fill(stream, ptr, 124, WORDS));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphInstantiate(&exec, graph, 0));
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(ptr, 124, WORDS), 0);
        OK(by_async ? cuMemFreeAsync(ptr, stream) : cuMemFree(ptr));
        OK(cuStreamSynchronize(stream));
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(cuStreamDestroy(stream));
    }
}

/* Nodes that are added by hand: their memory is the graph's, whoever frees it. */
Test(capture, memory_of_a_node_added_by_hand_is_freed_in_and_out_of_the_graph)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = WORDS * 4};

    for (int freed_by = 0; freed_by < 3; freed_by++) {
        CUstream stream = new_stream();
        CUgraphNode alloc = NULL, release = NULL;
        CUdeviceptr plain = 0, base = 0;
        CUgraph graph = NULL;
        CUgraphExec exec = NULL;
        size_t size = 0;

        OK(cuMemAlloc(&plain, WORDS * 4));
        OK(cuGraphCreate(&graph, 0));
        params.dptr = 0;
        OK(cuGraphAddMemAllocNode(&alloc, graph, NULL, 0, &params));
        cr_assert_neq(params.dptr, 0);
        FAILS(cuGraphAddMemFreeNode(&release, graph, &alloc, 1, plain));
        if (freed_by == 0)
            OK(cuGraphAddMemFreeNode(&release, graph, &alloc, 1, params.dptr));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        for (int i = 0; i < (freed_by == 0 ? 3 : 1); i++)
            OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        if (freed_by) {
            OK(launch_fill(stream, params.dptr, 9, WORDS));
            OK(cuStreamSynchronize(stream));
            cr_assert_eq(words_other(params.dptr, 9, WORDS), 0);
            OK(cuMemGetAddressRange(&base, &size, params.dptr));
            cr_assert_eq(base, params.dptr);
            OK(freed_by == 1 ? cuMemFree(params.dptr) : cuMemFreeAsync(params.dptr, stream));
            OK(cuStreamSynchronize(stream));
        }
        OK(fill_now(plain, 3, WORDS));
        cr_assert_eq(words_other(plain, 3, WORDS), 0);
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(cuStreamDestroy(stream));
        OK(cuMemFree(plain));
    }
}

Test(capture, async_memory_beside_a_capture)
{
    CUstream stream = new_stream(), beside = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    for (int m = 0; m < 3; m++) {
        CUdeviceptr ptr = 0;
        CUresult r, f = CUDA_SUCCESS;

        begin(stream, modes[m], target, 40u + (uint32_t)m);
        r = cuMemAllocAsync(&ptr, MIB, beside);
        if (r == CUDA_SUCCESS)
            f = cuMemFreeAsync(ptr, beside);
        probe("async_beside_capture", "%s: alloc %s free %s", mode_names[m], result_name(r),
              result_name(f));
        if (under_shim_with_events())
            end_and_run(stream, target, 40u + (uint32_t)m);
        else
            probe("async_beside_capture_then_end", "%s: %s", mode_names[m],
                  result_name(capture_result(stream)));
        if (r == CUDA_SUCCESS && f != CUDA_SUCCESS)
            OK(cuMemFreeAsync(ptr, beside));
        OK(cuStreamSynchronize(beside));
    }
}

/* ---- a capture beside a capture, and what is asked about streams meanwhile ---- */

/* Of blocking streams, which the legacy default stream waits for. */
Test(capture, one_that_is_begun_beside_another_leaves_it_alone)
{
    CUstream stream = blocking_stream(), beside = blocking_stream();
    CUdeviceptr target = filled(WORDS * 4, 0), other = filled(WORDS * 4, 0);

    for (uint32_t m = 0; m < 3; m++) {
        begin(stream, modes[m], target, 70 + m);
        CHECK(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture(stream, modes[m]));
        begin(beside, modes[m], other, 80 + m);
        OK(capture_result(beside));
        end_and_run(stream, target, 70 + m);
    }
}

/* ---- what the driver says to events: the same with the shim, which passes these on ---- */

typedef CUresult (*ctx_record_fn)(CUcontext, CUevent);

Test(capture, a_context_event_breaks_a_capture)
{
    ctx_record_fn record = (ctx_record_fn)driver_lookup("cuCtxRecordEvent", 12050, 0);
    CUstream stream = new_stream();
    CUdeviceptr target = 0;
    CUevent event;

    if (!record)
        cr_skip_test("this driver has no cuCtxRecordEvent");
    target = filled(WORDS * 4, 0);
    for (int m = 0; m < 3; m++) {
        OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
        begin(stream, modes[m], target, 1);
        CHECK(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, record(context, event));
        CHECK(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, capture_result(stream));
        OK(cuEventDestroy(event));
    }
}

/* Whether the event was there neither before the work before it nor as late as the work after. */
static bool event_is_between(ctx_record_fn record, CUevent event, CUdeviceptr ptr)
{
    CUstream gone = new_stream(), later = new_stream();
    bool between;

    OK(fill_now(ptr, 0, WORDS));
    OK(launch_spin_fill(gone, ptr, 1, WORDS, 60 * MILLISECOND));
    OK(launch_spin(CU_STREAM_PER_THREAD, 30 * MILLISECOND));
    OK(cuStreamDestroy(gone));
    OK(record(context, event));
    OK(launch_spin(later, 800 * MILLISECOND)); /* not waited for */
    between = cuEventQuery(event) == CUDA_ERROR_NOT_READY;
    OK(cuEventSynchronize(event));
    between &= is_busy(later);
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(ptr, 1, WORDS), 0);
    OK(cuStreamDestroy(later));
    return between;
}

Test(capture, a_context_event_covers_all_work_before_it)
{
    ctx_record_fn record = (ctx_record_fn)driver_lookup("cuCtxRecordEvent", 12050, 0);
    bool between = false;
    CUdeviceptr ptr = 0;
    CUevent event;

    if (!record)
        cr_skip_test("this driver has no cuCtxRecordEvent");
    OK(cuMemAlloc(&ptr, WORDS * 4));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < BUSY_TRIES && !between; i++)
        between = event_is_between(record, event, ptr);
    cr_assert(between);
}

Test(capture, event_queries_and_records_beside_a_capture)
{
    CUstream stream = new_stream(), beside = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);
    CUevent event = new_event();

    OK(cuEventRecord(event, beside));
    OK(cuEventSynchronize(event));
    begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, target, 1);
    CHECK(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuEventQuery(event));
    probe("event_query_in_global_capture_then_end", "%s", result_name(capture_result(stream)));
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, target, 32);
    OK(cuEventRecord(event, beside));
    end_and_run(stream, target, 32);
}

/* In another thread: the end of its capture is refused, and memory is used. */
static void *end_and_use_memory(void *arg)
{
    CUresult *refused = arg;
    CUgraph graph = NULL;
    CUdeviceptr ptr;

    OK(cuCtxSetCurrent(context));
    *refused = cuStreamEndCapture(capturing, &graph);
    none_is_open();
    for (int i = 0; i < 20; i++) {
        OK(cuMemAlloc(&ptr, 16 * MIB));
        OK(cuMemFree(ptr));
    }
    return NULL;
}

/* By the wrong thread: that is told, and the capture is no more. */
Test(capture, one_whose_end_is_refused_has_ended)
{
    CUresult refused = CUDA_SUCCESS;
    CUdeviceptr target = 0;
    pthread_t thread;

    capturing = new_stream();
    target = filled(WORDS * 4, 0); /* loads the kernel, which no capture allows */
    begin(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, target, 7);
    cr_assert_eq(pthread_create(&thread, NULL, end_and_use_memory, &refused), 0);
    pthread_join(thread, NULL);
    cr_assert_eq(refused, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "%s", result_name(refused));
    CHECK(CUDA_ERROR_ILLEGAL_STATE, capture_result(capturing));
    begin(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, target, 8);
    end_and_run(capturing, target, 8);
}

/* Told to put the graph nowhere. */
Test(capture, one_whose_graph_goes_nowhere_has_ended)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUstream stream = new_stream();
    CUdeviceptr target = filled(WORDS * 4, 0);

    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, target, 7);
    OK(cuStreamEndCapture(stream, NULL));
    OK(cuStreamIsCapturing(stream, &status));
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
    churn();
    begin(stream, CU_STREAM_CAPTURE_MODE_RELAXED, target, 8);
    end_and_run(stream, target, 8);
}
