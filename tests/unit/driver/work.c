/*
 * What of the software driver the conformance suite cannot ask, as it would end a real GPU's
 * context or has no order for it: held work, faults of work whose memory vanishes, and what memory
 * costs.
 */
#include "softdriver.h"
#include "tests/system.h"

TestSuite(softdriver_work, .init = sd_start, .timeout = 60);

/* Work of one stream that lasts until the gate is opened. */
static bool gate_open;

static void CUDA_CB at_gate(void *data)
{
    while (!__atomic_load_n(&gate_open, __ATOMIC_ACQUIRE))
        usleep(1000);
}

static void open_gate(CUstream stream)
{
    __atomic_store_n(&gate_open, true, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
}

Test(softdriver_work, work_is_not_done_when_the_call_returns)
{
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 4096));
    softcuda_hold(1);
    OK(sd_fill(stream, ptr, 5, 1024));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    cr_assert_eq(*(volatile uint32_t *)ptr, 0, "the fill ran while work was held");
    softcuda_hold(0);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamQuery(stream));
    cr_assert_eq(sd_word(ptr, stream), 5);
}

static void *fill_in_a_stream_of_its_own(void *ptr)
{
    OK(cuCtxSetCurrent(sd_ctx));
    OK(sd_spin(CU_STREAM_PER_THREAD, 100 * MS));
    OK(sd_fill(CU_STREAM_PER_THREAD, (CUdeviceptr)(uintptr_t)ptr, 5, 1));
    return NULL;
}

Test(softdriver_work, a_context_event_waits_for_everything_before_it_and_nothing_after)
{
    CUstream a = sd_stream_new(CU_STREAM_NON_BLOCKING), b = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = sd_event_new();
    CUdeviceptr ptr;
    pthread_t thread;

    OK(cuMemAlloc(&ptr, 4096));
    softcuda_hold(1);
    OK(sd_spin(a, 60 * MS));
    OK(sd_fill(a, ptr + 4, 6, 1));
    OK(cuStreamDestroy(a));
    pthread_create(&thread, NULL, fill_in_a_stream_of_its_own, (void *)(uintptr_t)ptr);
    pthread_join(thread, NULL);
    OK(cuCtxRecordEvent(sd_ctx, event));
    GIVES(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    OK(cuLaunchHostFunc(b, at_gate, NULL)); /* later work is not awaited */
    softcuda_hold(0);
    OK(cuEventSynchronize(event));
    cr_assert_eq(((volatile uint32_t *)ptr)[0], 5,
                 "the ended thread's default stream was not awaited");
    cr_assert_eq(((volatile uint32_t *)ptr)[1], 6, "the destroyed stream was not awaited");
    GIVES(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    open_gate(b);
}

Test(softdriver_work, unmapping_does_not_wait_and_the_work_faults_for_good)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(2 * MIB, &handle), other;
    uint64_t count = 1024, ns = 0;
    uint32_t value = 1;
    CUstream stream;
    CUcontext second;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    softcuda_hold(1);
    OK(sd_launch("spin_fill", stream, (void *[]){&vmm, &value, &count, &ns}));
    OK(cuMemUnmap(vmm, 2 * MIB));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    GIVES(cuMemAlloc(&other, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&other, 512));
}

Test(softdriver_work, a_running_kernel_notices_the_unmapping)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(4 * MIB, &handle);
    uint64_t count = MIB, ns = 5000 * MS;

    OK(sd_launch("scribble", NULL, (void *[]){&vmm, &count, &ns}));
    while (!*(volatile uint32_t *)vmm)
        usleep(1000);
    OK(cuMemUnmap(vmm, 4 * MIB));
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(softdriver_work, freed_memory_faults_too)
{
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(cuMemFree(ptr));
    OK(sd_fill(NULL, ptr, 1, 1));
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(softdriver_work, a_read_only_mapping_refuses_copies_and_faults_kernels)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(2 * MIB, &handle), out;
    uint64_t count = 16;
    uint32_t value = 4;

    OK(cuMemAlloc(&out, 4));
    OK(cuMemsetD32(out, 0, 1));
    OK(sd_fill(NULL, vmm, 4, 16));
    OK(cuCtxSynchronize());
    OK(sd_access(vmm, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    GIVES(cuMemcpyHtoD(vmm, &value, 4), CUDA_ERROR_INVALID_VALUE);
    OK(sd_launch("count_other", NULL, (void *[]){&vmm, &value, &count, &out}));
    cr_assert_eq(sd_word(out, NULL), 0);
    OK(sd_fill(NULL, vmm, 5, 1));
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

static CUstreamCaptureStatus status_of(CUstream stream)
{
    CUstreamCaptureStatus status;

    OK(cuStreamIsCapturing(stream, &status));
    return status;
}

Test(softdriver_work, a_forked_stream_joins_and_must_be_joined)
{
    CUstream a = sd_stream_new(CU_STREAM_NON_BLOCKING), b = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUevent fork = sd_event_new(), join = sd_event_new();
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
