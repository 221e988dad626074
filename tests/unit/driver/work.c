/*
 * What of the software driver the conformance suite cannot ask, as it would end a real GPU's
 * context or has no order for it: held work, faults of work whose memory vanishes, and what memory
 * costs.
 */
#include "softdriver.h"
#include "tests/clock.h"
#include "tests/system.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* cuCtxAttach, cuCtxDetach */

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

Test(softdriver_work, events_measure_time)
{
    CUevent start, end;
    uint64_t began;
    float ms = 0;

    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    softcuda_hold(1);
    began = now_ns();
    OK(cuEventRecord(start, NULL));
    OK(sd_spin(NULL, 50 * MS));
    OK(cuEventRecord(end, NULL));
    GIVES(cuEventElapsedTime(&ms, start, end), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    OK(cuEventSynchronize(end));
    OK(cuEventElapsedTime(&ms, start, end));
    cr_assert_geq(ms, 49);
    cr_assert_leq(ms, (float)(now_ns() - began) / 1e6F + 1);
}

static CUresult seen_in_callback;

static void CUDA_CB host_function(void *data)
{
    CUdeviceptr ptr;

    seen_in_callback = cuMemAlloc(&ptr, 512);
    *(int *)data = 1;
}

static void CUDA_CB stream_callback(CUstream stream, CUresult status, void *data)
{
    *(int *)data += status == CUDA_SUCCESS ? 10 : 1000;
}

Test(softdriver_work, host_functions_run_in_order_and_may_not_call_cuda)
{
    CUstream stream = sd_stream_new(CU_STREAM_DEFAULT);
    int called = 0;

    OK(sd_spin(stream, 30 * MS));
    OK(cuLaunchHostFunc(stream, host_function, &called));
    OK(cuStreamAddCallback(stream, stream_callback, &called, 0));
    OK(cuStreamSynchronize(stream));
    cr_assert_eq(called, 11);
    GIVES(seen_in_callback, CUDA_ERROR_NOT_PERMITTED);
}

Test(softdriver_work, pageable_memory_is_read_at_the_call_and_pinned_memory_later)
{
    uint32_t pageable = 1, *pinned;
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a, b;

    OK(cuMemAlloc(&a, 4));
    OK(cuMemAlloc(&b, 4));
    OK(cuMemAllocHost((void **)&pinned, sizeof *pinned));
    *pinned = 1;
    softcuda_hold(1);
    OK(cuMemcpyHtoDAsync(a, &pageable, 4, stream));
    OK(cuMemcpyHtoDAsync(b, pinned, 4, stream));
    pageable = *pinned = 2;
    softcuda_hold(0);
    cr_assert_eq(sd_word(a, stream), 1);
    cr_assert_eq(sd_word(b, stream), 2);
    OK(cuMemFreeHost(pinned));
    GIVES(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
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

Test(softdriver_work, memory_costs_the_program_no_descriptor)
{
    struct rlimit limit;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    int fd, next;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while ((next = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        fd = next;
    cr_assert_eq(fd, 255);
    ptr = sd_map_new(2 * MIB, &handle);
    OK(cuMemAlloc(&ptr, 4 * MIB));
    GIVES(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_OPERATING_SYSTEM);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(limit.rlim_cur, 256);
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

Test(softdriver_work, the_capture_can_be_looked_at)
{
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
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

Test(softdriver_work, rows_at_a_pitch_are_copied_and_filled_and_nothing_between_them)
{
    unsigned char in[4 * 10], out[4 * 16];
    CUDA_MEMCPY2D to = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = 10,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstPitch = 16,
                        .dstXInBytes = 2,
                        .WidthInBytes = 10,
                        .Height = 4};
    CUdeviceptr ptr;

    memset(in, 7, sizeof in);
    OK(cuMemAlloc(&ptr, sizeof out));
    OK(cuMemsetD2D8(ptr, 16, 1, 16, 4));
    to.dstDevice = ptr;
    OK(cuMemcpy2D(&to));
    OK(cuMemcpyDtoH(out, ptr, sizeof out));
    for (int i = 0; i < 4 * 16; i++)
        cr_assert_eq(out[i], i % 16 >= 2 && i % 16 < 12 ? 7 : 1, "byte %d", i);
    to.dstXInBytes = 7; /* the last row would end one byte behind the block */
    GIVES(cuMemcpy2D(&to), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD2D32(ptr, 16, 0, 4, 5), CUDA_ERROR_INVALID_VALUE);
}

Test(softdriver_work, an_attached_context_is_detached_as_often)
{
    CUcontext context, attached;
    CUdeviceptr ptr;

    OK(cuCtxCreate_v4(&context, NULL, 0, 0));
    OK(cuCtxAttach(&attached, 0));
    cr_assert_eq(attached, context);
    OK(cuMemAlloc(&ptr, 512));
    OK(cuCtxDetach(context));
    OK(cuMemsetD8(ptr, 0, 1));
    OK(cuCtxDetach(context));
    GIVES(cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE);
}

static CUdeviceptr map_whole(CUmemGenericAllocationHandle handle)
{
    CUdeviceptr ptr;

    OK(cuMemAddressReserve(&ptr, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(ptr, 2 * MIB, 0, handle, 0));
    OK(sd_access(ptr, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return ptr;
}

/* By whoever sees the domain's folder, and as long as anybody has it. */
Test(softdriver_work, in_an_nvlink_domain_a_fabric_handle_opens_the_same_memory)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUmemGenericAllocationHandle handle, opened, by_descriptor;
    char folder[] = "/dev/shm/softcuda-domain-XXXXXX";
    CUmemFabricHandle fabric, changed;
    CUdeviceptr here, there;
    int fd;

    cr_assert(mkdtemp(folder));
    setenv("SOFTCUDA_FABRIC", folder, 1);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    GIVES(cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    prop.requestedHandleTypes =
        (CUmemAllocationHandleType)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR |
                                    CU_MEM_HANDLE_TYPE_FABRIC);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&opened, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(cuMemImportFromShareableHandle(&by_descriptor, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    here = map_whole(handle);
    there = map_whole(opened);
    OK(cuMemsetD8(here, 7, MIB));
    OK(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)there, 7);
    changed = fabric;
    changed.data[20] ^= 1;
    GIVES(cuMemImportFromShareableHandle(&opened, &changed, CU_MEM_HANDLE_TYPE_FABRIC),
          CUDA_ERROR_INVALID_VALUE);
    memcpy(changed.data, "softcuda-/../x", 15);
    GIVES(cuMemImportFromShareableHandle(&opened, &changed, CU_MEM_HANDLE_TYPE_FABRIC),
          CUDA_ERROR_INVALID_VALUE);
    unsetenv("SOFTCUDA_FABRIC");
    GIVES(cuMemImportFromShareableHandle(&opened, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
          CUDA_ERROR_NOT_PERMITTED);
    close(fd);
    OK(cuMemUnmap(there, 2 * MIB));
    OK(cuMemUnmap(here, 2 * MIB));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(opened));
    OK(cuMemRelease(by_descriptor));
    cr_assert_eq(rmdir(folder), 0, "its file goes with the last that has it");
}
