/*
 * Freed memory is free for everything: what the program takes from the driver by other calls than
 * cuMemAlloc, and what the driver takes for itself, finds room on a device that was full.
 */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(room, .init = conform_start, .timeout = 60);

/* More than half of what is free, so that it is not there twice; whole pages of 2 MiB. */
static size_t most(void)
{
    return memory_free_bytes() / 10 * 6 & ~(2 * MIB - 1);
}

static CUresult own_pool(size_t size)
{
    CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;
    CUresult r;

    r = cuMemAllocFromPoolAsync(&ptr, size, pool, stream);
    if (r == CUDA_SUCCESS)
        OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolDestroy(pool));
    OK(cuStreamDestroy(stream));
    return r;
}

static CUresult graph(size_t size)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = size};
    CUgraphNode alloc = NULL, release = NULL;
    CUgraph made = NULL;
    CUgraphExec exec = NULL;
    CUresult r;

    OK(cuGraphCreate(&made, 0));
    r = cuGraphAddMemAllocNode(&alloc, made, NULL, 0, &params);
    if (r == CUDA_SUCCESS)
        OK(cuGraphAddMemFreeNode(&release, made, &alloc, 1, params.dptr));
    if (r == CUDA_SUCCESS)
        r = cuGraphInstantiateWithFlags(&exec, made, 0);
    if (r == CUDA_SUCCESS)
        r = cuGraphLaunch(exec, CU_STREAM_PER_THREAD);
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    if (exec)
        OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(made));
    OK(cuDeviceGraphMemTrim(device));
    return r;
}

/* Rows of 32 KiB: cubes of 32-bit elements would round the size. */
static CUresult array(size_t size)
{
    __typeof__(&cuArray3DCreate) make = (__typeof__(make))driver_lookup("cuArray3DCreate", 3020, 0);
    const size_t slice = 8192 * 4 * 2048;
    const CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 8192,
                                           .Height = 2048,
                                           .Depth = size / slice,
                                           .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                                           .NumChannels = 1};
    CUarray made = NULL;
    CUresult r = make ? make(&made, &shape) : CUDA_SUCCESS;

    if (made)
        OK(cuArrayDestroy(made));
    return r;
}

static const struct {
    const char *name;
    CUresult (*take)(size_t);
} takers[] = {{"cuMemCreate", physical_memory},
              {"a pool of the program's", own_pool},
              {"a graph's memory", graph},
              {"an array", array}};
#define TAKERS (sizeof takers / sizeof *takers)

Test(room, freed_memory_is_there_for_every_call)
{
    for (size_t i = 0; i < TAKERS; i++)
        for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++) {
            size_t size = most();
            CUdeviceptr ptr = 0;
            CUresult r;

            OK(memory_alloc((enum memory_kind)kind, &ptr, size));
            OK(memory_free((enum memory_kind)kind, ptr));
            OK(cuStreamSynchronize(CU_STREAM_LEGACY));
            r = takers[i].take(size);
            /* An array may be too large for other reasons. */
            if (takers[i].take != array || r == CUDA_ERROR_OUT_OF_MEMORY)
                cr_assert_eq(r, CUDA_SUCCESS, "%s: %s", takers[i].name, result_name(r));
            if (software_driver())
                OK(r);
        }
}

Test(room, small_blocks_leave_room_as_well)
{
    enum { BLOCKS = 512 };
    CUdeviceptr ptr[BLOCKS];
    size_t size = most(), each = size / BLOCKS & ~(size_t)511;

    for (int i = 0; i < BLOCKS; i++)
        OK(cuMemAlloc(&ptr[i], each));
    for (int i = 0; i < BLOCKS; i++)
        OK(cuMemFree(ptr[i]));
    OK(physical_memory(size));
}

/* A free waits for the GPU, natively when it is called, else when somebody wants the memory. */
Test(room, memory_freed_behind_a_kernel_is_there_when_it_is_wanted)
{
    CUstream stream = new_stream();
    size_t size = most();
    CUdeviceptr ptr = allocated(size);

    OK(launch_spin_fill(stream, ptr, 1, 4096, 300 * MILLISECOND));
    OK(cuMemFree(ptr));
    OK(physical_memory(size));
    OK(cuCtxSynchronize());
}

/* ---- while a stream captures ---- */

static CUresult plain(size_t size, CUstream beside)
{
    CUdeviceptr ptr = 0;
    CUresult r = cuMemAlloc(&ptr, size);

    (void)beside;
    return r ? r : cuMemFree(ptr);
}

static CUresult in_order(size_t size, CUstream beside)
{
    CUdeviceptr ptr = 0;
    CUresult r = cuMemAllocAsync(&ptr, size, beside);

    return r ? r : cuMemFreeAsync(ptr, beside);
}

static CUresult physical(size_t size, CUstream beside)
{
    (void)beside;
    return physical_memory(size);
}

static const struct {
    const char *name;
    CUresult (*take)(size_t, CUstream);
} beside_takers[] = {{"cuMemAlloc", plain},
                     {"cuMemAllocAsync", in_order},
                     {"cuMemCreate", physical}};
#define BESIDE_TAKERS (sizeof beside_takers / sizeof *beside_takers)

struct beside {
    size_t taker, size;
    CUstream stream;
    CUresult result;
};

/* As allocators do whose programs capture. */
static void *take_relaxed(void *arg)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    struct beside *beside = arg;

    beside->result = cuCtxSetCurrent(context);
    if (!beside->result)
        beside->result = cuThreadExchangeStreamCaptureMode(&mode);
    if (!beside->result)
        beside->result = beside_takers[beside->taker].take(beside->size, beside->stream);
    cuThreadExchangeStreamCaptureMode(&mode);
    return NULL;
}

/* What was freed before, behind work or not, is had while a stream captures, and the capture is
 * whole. */
static void take_beside_a_capture(CUstreamCaptureMode mode, size_t taker, bool busy, bool other)
{
    CUstream stream = new_stream(), user = new_stream();
    struct beside beside = {taker, most(), new_stream(), CUDA_SUCCESS};
    CUgraph made = NULL;
    CUdeviceptr ptr = allocated(beside.size);
    pthread_t thread;

    OK(launch_spin_fill(user, ptr, 1, 4096, busy ? 100 * MILLISECOND : 1));
    if (!busy)
        OK(cuCtxSynchronize());
    OK(cuMemFree(ptr));
    OK(cuStreamBeginCapture(stream, mode));
    OK(launch_spin(stream, 1));
    if (other) {
        cr_assert_eq(pthread_create(&thread, NULL, take_relaxed, &beside), 0);
        pthread_join(thread, NULL);
    } else {
        take_relaxed(&beside);
    }
    cr_assert_eq(beside.result, CUDA_SUCCESS, "%s, mode %d, %s, %s: %s", beside_takers[taker].name,
                 mode, busy ? "behind work" : "idle", other ? "another thread" : "the same thread",
                 result_name(beside.result));
    OK(cuStreamEndCapture(stream, &made));
    OK(cuGraphDestroy(made));
    OK(cuStreamDestroy(stream));
    OK(cuStreamDestroy(user));
    OK(cuStreamDestroy(beside.stream));
    OK(cuCtxSynchronize());
}

/* Of memory that is freed while the capture is open. */
Test(room, memory_freed_in_a_relaxed_capture_is_had_again_while_it_is_open)
{
    CUstream stream = new_stream(), user = new_stream();
    CUdeviceptr ptr = 0;
    CUgraph made = NULL;
    size_t size = most();

    for (size_t taker = 0; taker < BESIDE_TAKERS; taker++)
        for (int busy = 0; busy < 2; busy++) {
            OK(cuMemAlloc(&ptr, size));
            OK(launch_spin_fill(user, ptr, 1, 4096, busy ? 100 * MILLISECOND : 1));
            if (!busy)
                OK(cuCtxSynchronize());
            OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            OK(launch_spin(stream, 1));
            OK(cuMemFree(ptr));
            OK(beside_takers[taker].take(size, user));
            OK(cuStreamEndCapture(stream, &made));
            OK(cuGraphDestroy(made));
            OK(cuCtxSynchronize());
        }
}

Test(room, memory_freed_before_a_capture_is_had_again_while_it_is_open)
{
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++)
        for (size_t taker = 0; taker < BESIDE_TAKERS; taker++)
            for (int how = 0; how < 4; how++)
                take_beside_a_capture((CUstreamCaptureMode)mode, taker, how & 1, how & 2);
}

/* Another thread gives back the last of what is kept when the driver has just refused a call. */
Test(room, what_came_back_after_the_refusal_is_found)
{
    const struct software *driver = software();
    CUdeviceptr ptr = 0;

    if (!driver)
        cr_skip_test("a real driver says no when it must, not when it is told to");
    if (!under_shim())
        cr_skip_test("natively the refusal is the end");
    OK(cuMemAlloc(&ptr, 4 * MIB));
    cr_assert_eq(driver->fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY), 0);
    OK(physical_memory(2 * MIB));
}

Test(room, what_is_in_use_leaves_none)
{
    size_t size = most();
    CUdeviceptr ptr = allocated(size);

    OK(fill_now(ptr, 5, 4096));
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, physical_memory(size));
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, own_pool(size));
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, physical_memory((size_t)1 << 50));
    cr_assert_eq(words_other(ptr, 5, 4096), 0);
}

/* ---- what the driver takes for itself: the software driver is told to find no room ---- */

static CUmodule module;
static CUfunction function;
static CUgraph empty;
static CUgraphExec instance;
static const char ptx[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry spin(.param .u64 ns) { ret; }\n";

static CUresult load(void)
{
    return cuModuleLoadData(&module, ptx);
}

static CUresult load_library(void)
{
    __typeof__(&cuLibraryLoadData) load_data =
        (__typeof__(load_data))driver_lookup("cuLibraryLoadData", 12000, 0);

    cr_assert(load_data, "no cuLibraryLoadData");
    return load_data(&(CUlibrary){NULL}, ptx, NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult find(void)
{
    return cuModuleGetFunction(&function, module, "spin");
}

static CUresult launch(void)
{
    return launch_spin(CU_STREAM_PER_THREAD, 1);
}

static CUresult launch_ex(void)
{
    const CUlaunchConfig config = {.gridDimX = 1,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 1,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = CU_STREAM_PER_THREAD};
    uint64_t ns = 1;

    return cuLaunchKernelEx(&config, function, (void *[]){&ns}, NULL);
}

static CUresult instantiate(void)
{
    return cuGraphInstantiateWithFlags(&instance, empty, 0);
}

static CUresult launch_graph(void)
{
    return cuGraphLaunch(instance, CU_STREAM_PER_THREAD);
}

static CUresult load_function(void)
{
    __typeof__(&cuFuncLoad) load_it = (__typeof__(load_it))driver_lookup("cuFuncLoad", 12040, 0);

    cr_assert(load_it, "no cuFuncLoad");
    return load_it(function);
}

static CUresult set_limit(void)
{
    return cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16 * KIB);
}

static CUresult make_stream(void)
{
    return cuStreamCreate(&(CUstream){NULL}, CU_STREAM_NON_BLOCKING);
}

static CUresult retain(void)
{
    return cuDevicePrimaryCtxRetain(&context, device);
}

/* The software driver has no multicast objects: that is what it says when it is asked again. */
static CUresult without_multicast(CUresult result)
{
    return result == CUDA_ERROR_NOT_SUPPORTED ? CUDA_SUCCESS : result;
}

static CUresult make_group(void)
{
    const CUmulticastObjectProp shape = {.numDevices = 1, .size = 2 * MIB};

    return without_multicast(cuMulticastCreate(&(CUmemGenericAllocationHandle){0}, &shape));
}

static CUresult bind_memory(void)
{
    return without_multicast(cuMulticastBindMem(1, 0, 1, 0, 2 * MIB, 0));
}

static CUresult bind_memory_v2(void)
{
    CUresult (*bind_it)(CUmemGenericAllocationHandle, CUdevice, size_t,
                        CUmemGenericAllocationHandle, size_t, size_t, unsigned long long) =
        (__typeof__(bind_it))driver_lookup("cuMulticastBindMem", 13010, 0);

    cr_assert(bind_it, "no cuMulticastBindMem of 13.1");
    return without_multicast(bind_it(1, device, 0, 1, 0, 2 * MIB, 0));
}

static const struct {
    const char *name;
    CUresult (*call)(void);
} calls[] = {{"cuModuleLoadData", load},           {"cuModuleGetFunction", find},
             {"cuLibraryLoadData", load_library},  {"cuLaunchKernel", launch},
             {"cuLaunchKernelEx", launch_ex},      {"cuGraphInstantiateWithFlags", instantiate},
             {"cuGraphLaunch", launch_graph},      {"cuStreamCreate", make_stream},
             {"cuDevicePrimaryCtxRetain", retain}, {"cuFuncLoad", load_function},
             {"cuCtxSetLimit", set_limit},         {"cuMulticastCreate", make_group},
             {"cuMulticastBindMem", bind_memory},  {"cuMulticastBindMem_v2", bind_memory_v2}};

Test(room, the_driver_itself_finds_room)
{
    const struct software *driver = software();

    if (!driver)
        cr_skip_test("a real driver says no when it must, not when it is told to");
    OK(launch_spin(CU_STREAM_PER_THREAD, 1));
    OK(cuGraphCreate(&empty, 0));
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        CUdeviceptr ptr = allocated(32 * MIB);
        CUresult r;

        OK(cuMemFree(ptr));
        OK(cuCtxSynchronize());
        driver->fail(calls[i].name, 1, CUDA_ERROR_OUT_OF_MEMORY);
        r = calls[i].call();
        cr_assert_eq(r, under_shim() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, "%s: %s",
                     calls[i].name, result_name(r));
        /* And where giving does not help, its answer stands. */
        driver->fail(calls[i].name, 0, CUDA_ERROR_OUT_OF_MEMORY);
        r = calls[i].call();
        cr_assert_eq(r, CUDA_ERROR_OUT_OF_MEMORY, "%s: %s", calls[i].name, result_name(r));
        driver->reset();
        driver->fail(calls[i].name, 1, CUDA_ERROR_INVALID_VALUE);
        r = calls[i].call();
        cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "%s: %s", calls[i].name, result_name(r));
        OK(calls[i].call());
    }
}

/* The GPU may stand still until this very thread goes on. */
Test(room, the_driver_itself_waits_for_no_work_for_ever)
{
    const struct software *driver = software();
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;
    CUresult r;

    if (!driver)
        cr_skip_test("a real GPU is not told to stand still");
    OK(cuMemAllocAsync(&ptr, 32 * MIB, stream));
    OK(launch_fill(stream, ptr, 1, 16));
    OK(cuStreamSynchronize(stream));
    driver->hold(1);
    OK(launch_fill(stream, ptr, 2, 16));
    OK(cuMemFreeAsync(ptr, stream));
    driver->fail("cuLaunchKernel", 0, CUDA_ERROR_OUT_OF_MEMORY);
    r = launch_spin(stream, 1);
    driver->reset(); /* and the GPU goes on */
    cr_assert_eq(r, CUDA_ERROR_OUT_OF_MEMORY, "%s", result_name(r));
    OK(cuStreamSynchronize(stream));
}
