/*
 * Captures and graphs of the software driver, and what captures forbid.
 */
#include "softdriver.h"

#include <pthread.h>

TestSuite(softdriver_capture, .init = sd_start, .timeout = 60);

static CUstream stream_new(void)
{
    CUstream stream;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static CUevent event_new(void)
{
    CUevent event;

    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status;

    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                            CU_STREAM_CAPTURE_MODE_RELAXED};

Test(softdriver_capture, a_context_event_breaks_every_capture)
{
    CUstream stream = stream_new();
    CUevent event = event_new();

    for (int i = 0; i < 3; i++) {
        CUgraph graph = (CUgraph)1;
        OK(cuStreamBeginCapture(stream, modes[i]));
        GIVES(cuCtxRecordEvent(sd_ctx, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        cr_assert_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        GIVES(sd_spin(stream, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        GIVES(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        cr_assert_null(graph);
        cr_assert_eq(status_of(stream), CU_STREAM_CAPTURE_STATUS_NONE);
        OK(cuCtxRecordEvent(sd_ctx, event));
    }
}

static CUresult from_other_thread[2];

static void *ask(void *event)
{
    CUdeviceptr ptr;

    OK(cuCtxSetCurrent(sd_ctx));
    from_other_thread[0] = cuEventQuery(event);
    from_other_thread[1] = cuMemAlloc(&ptr, 512);
    return NULL;
}

Test(softdriver_capture, each_mode_forbids_what_the_real_one_does)
{
    static const struct {
        CUresult here, there;
    } wanted[] = {
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_SUCCESS},
        {CUDA_SUCCESS, CUDA_SUCCESS},
    };
    CUstream stream = stream_new();
    CUevent event = event_new();

    for (int i = 0; i < 3; i++) {
        CUmemAllocationProp prop = sd_prop(0);
        CUmemGenericAllocationHandle handle;
        CUdeviceptr ptr;
        CUgraph graph;
        pthread_t thread;
        OK(cuStreamBeginCapture(stream, modes[i]));
        pthread_create(&thread, NULL, ask, event);
        pthread_join(thread, NULL);
        GIVES(from_other_thread[0], wanted[i].there);
        GIVES(from_other_thread[1], wanted[i].there);
        OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        OK(cuMemRelease(handle));
        GIVES(cuMemAlloc(&ptr, 512), wanted[i].here);
        GIVES(cuEventQuery(event), wanted[i].here);
        GIVES(cuStreamEndCapture(stream, &graph),
              wanted[i].here ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
    }
}

Test(softdriver_capture, a_thread_in_relaxed_mode_is_let_through)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream stream = stream_new();
    CUdeviceptr ptr;
    CUgraph graph;

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc(&ptr, 512));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamEndCapture(stream, &graph));
    cr_assert_not_null(graph);
}

Test(softdriver_capture, a_graph_runs_at_its_launch_and_not_before)
{
    CUstream stream = stream_new();
    CUdeviceptr ptr;
    CUgraph graph;
    CUgraphExec exec;
    size_t nodes = 0;

    OK(cuMemAlloc(&ptr, 4096));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(sd_fill(stream, ptr, 1, 1024));
    OK(cuMemsetD32Async(ptr, 2, 512, stream));
    OK(cuMemcpyDtoDAsync(ptr + 2048, ptr, 1024, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    cr_assert_eq(nodes, 3);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    cr_assert_eq(sd_word(ptr, stream), 0);
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(exec, stream));
        cr_assert_eq(sd_word(ptr, stream), 2);
        cr_assert_eq(sd_word(ptr + 2048, stream), 2);
        cr_assert_eq(sd_word(ptr + 4092, stream), 1);
    }
    OK(cuGraphExecDestroy(exec));
    GIVES(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
}

Test(softdriver_capture, a_forked_stream_joins_and_must_be_joined)
{
    CUstream a = stream_new(), b = stream_new();
    CUevent fork = event_new(), join = event_new();
    CUdeviceptr ptr;
    CUgraph graph;
    CUgraphExec exec;

    OK(cuMemAlloc(&ptr, 4096));
    for (int joined = 0; joined < 2; joined++) {
        OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(sd_fill(a, ptr, 1, 2));
        OK(cuEventRecord(fork, a));
        OK(cuStreamWaitEvent(b, fork, 0));
        cr_assert_eq(status_of(b), CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(sd_spin(b, 50 * MS));
        OK(sd_fill(b, ptr, 2, 1));
        OK(cuEventRecord(join, b));
        if (joined)
            OK(cuStreamWaitEvent(a, join, 0));
        GIVES(cuStreamEndCapture(a, &graph),
              joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        cr_assert_eq(status_of(b), CU_STREAM_CAPTURE_STATUS_NONE);
    }
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, a));
    cr_assert_eq(sd_word(ptr, a), 2);
    cr_assert_eq(sd_word(ptr + 4, a), 1);
}

Test(softdriver_capture, the_capture_can_be_looked_at)
{
    CUstream stream = stream_new();
    CUstreamCaptureStatus status;
    cuuint64_t id = 0;
    CUgraph graph = NULL, ended;
    const CUgraphNode *nodes;
    size_t count = 9;

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(sd_spin(stream, 1));
#if CUDA_VERSION >= 13000
    OK(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, NULL, &count));
#else
    OK(cuStreamGetCaptureInfo(stream, &status, &id, &graph, &nodes, &count));
#endif
    cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    cr_assert_neq(id, 0);
    cr_assert_eq(count, 1);
    OK(cuStreamEndCapture(stream, &ended));
    cr_assert_eq(graph, ended);
}

Test(softdriver_capture, memory_allocated_in_a_capture_is_the_graphs)
{
    CUstream stream = stream_new();
    struct softcuda_census census;
    CUdeviceptr ptr;
    CUgraph graph;
    CUgraphExec exec;

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&ptr, 4096, stream));
    OK(sd_fill(stream, ptr, 3, 1024));
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuGraphDestroy(graph));
    softcuda_census(&census);
    cr_assert_eq(census.blocks, 1);
    OK(cuGraphExecDestroy(exec));
    softcuda_census(&census);
    cr_assert_eq(census.blocks, 0);
    cr_assert_eq(census.graphs, 0);
}

/* Whichever of the two handles goes last. */
Test(softdriver_capture, memory_of_a_graph_stays_while_it_runs)
{
    for (int graph_last = 0; graph_last < 2; graph_last++) {
        CUstream stream = stream_new();
        struct softcuda_census census;
        CUdeviceptr ptr;
        CUgraph graph;
        CUgraphExec exec;

        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuMemAllocAsync(&ptr, 4096, stream));
        OK(sd_spin(stream, 50 * MS));
        OK(sd_fill(stream, ptr, 3, 1024));
        OK(cuMemFreeAsync(ptr, stream));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, stream));
        if (!graph_last)
            OK(cuGraphDestroy(graph));
        OK(cuGraphExecDestroy(exec));
        if (graph_last)
            OK(cuGraphDestroy(graph));
        OK(cuStreamSynchronize(stream)); /* no fault */
        softcuda_census(&census);
        cr_assert_eq(census.blocks, 0);
    }
}

Test(softdriver_capture, misuse_is_told_apart)
{
    CUstream a = stream_new(), b = stream_new(), blocking;
    CUevent event = event_new();
    CUdeviceptr ptr;
    CUgraph graph;

    OK(cuMemAlloc(&ptr, 512));
    GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);
    GIVES(cuStreamBeginCapture(NULL, modes[0]), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    OK(cuStreamBeginCapture(a, modes[2]));
    GIVES(cuStreamBeginCapture(a, modes[2]), CUDA_ERROR_ILLEGAL_STATE);
    GIVES(cuStreamSynchronize(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(sd_spin(b, 1));
    OK(cuEventRecord(event, b));
    OK(cuStreamBeginCapture(a, modes[2]));
    GIVES(cuStreamWaitEvent(a, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    GIVES(cuStreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuStreamCreate(&blocking, 0));
    OK(cuStreamBeginCapture(blocking, modes[2]));
    GIVES(cuMemsetD8Async(ptr, 0, 1, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    GIVES(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

Test(softdriver_capture, one_that_loses_its_stream_or_context_is_in_nobodys_way)
{
    CUdeviceptr ptr;
    CUstream stream;
    CUcontext other;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuStreamDestroy(stream));
    OK(cuMemAlloc(&ptr, 512));
    OK(cuMemFree(ptr));
    OK(cuCtxCreate_v4(&other, NULL, 0, 0));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(sd_ctx));
    OK(cuMemAlloc(&ptr, 512));
    OK(cuMemFree(ptr));
}
