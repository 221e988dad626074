/*
 * Work runs later and in order: streams, events and context events of the software driver.
 */
#include "softdriver.h"
#include "tests/rest.h"
#include "tests/clock.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

TestSuite(softdriver_streams, .init = sd_start, .timeout = 60);

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

Test(softdriver_streams, work_is_not_done_when_the_call_returns)
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

Test(softdriver_streams, a_destroyed_stream_finishes_its_work)
{
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 4096));
    OK(sd_spin(stream, 50 * MS));
    OK(sd_fill(stream, ptr, 6, 1024));
    OK(cuStreamDestroy(stream));
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSynchronize());
    cr_assert_eq(sd_word(ptr, NULL), 6);
}

Test(softdriver_streams, the_legacy_stream_waits_for_blocking_streams_only)
{
    CUstream blocking = sd_stream_new(CU_STREAM_DEFAULT), other = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 4096));
    softcuda_hold(1);
    OK(sd_fill(blocking, ptr, 1, 1));
    OK(sd_fill(NULL, ptr, 2, 1));
    OK(sd_fill(blocking, ptr, 3, 1));
    OK(cuLaunchHostFunc(other, at_gate, NULL));
    softcuda_hold(0);
    OK(cuStreamSynchronize(blocking));
    cr_assert_eq(*(volatile uint32_t *)ptr, 3);
    OK(cuStreamSynchronize(NULL));
    GIVES(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
}

static void *fill_in_a_stream_of_its_own(void *ptr)
{
    OK(cuCtxSetCurrent(sd_ctx));
    OK(sd_spin(CU_STREAM_PER_THREAD, 100 * MS));
    OK(sd_fill(CU_STREAM_PER_THREAD, (CUdeviceptr)(uintptr_t)ptr, 5, 1));
    return NULL;
}

Test(softdriver_streams, a_context_event_waits_for_everything_before_it_and_nothing_after)
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
    cr_assert_eq(((volatile uint32_t *)ptr)[0], 5, "the ended thread's default stream was not awaited");
    cr_assert_eq(((volatile uint32_t *)ptr)[1], 6, "the destroyed stream was not awaited");
    GIVES(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    open_gate(b);
}

Test(softdriver_streams, an_event_orders_two_streams)
{
    CUstream a = sd_stream_new(CU_STREAM_NON_BLOCKING), b = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = sd_event_new();
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 4096));
    OK(sd_spin(a, 80 * MS));
    OK(sd_fill(a, ptr, 1, 1));
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(sd_fill(b, ptr, 2, 1));
    OK(cuEventDestroy(event));
    GIVES(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    cr_assert_eq(sd_word(ptr, b), 2);
    OK(cuStreamQuery(a));
}

Test(softdriver_streams, an_event_is_done_until_it_is_recorded)
{
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUevent event = sd_event_new();

    OK(cuEventQuery(event));
    softcuda_hold(1);
    OK(sd_spin(stream, 1 * MS));
    OK(cuEventRecord(event, stream));
    GIVES(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    OK(cuEventSynchronize(event));
    OK(cuEventQuery(event));
}

Test(softdriver_streams, events_measure_time)
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

Test(softdriver_streams, host_functions_run_in_order_and_may_not_call_cuda)
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

Test(softdriver_streams, freeing_waits_for_all_work_of_its_own_context_only)
{
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUcontext second;
    CUdeviceptr ptr;
    uint64_t start;

    OK(cuMemAlloc(&ptr, 4 * MIB));
    start = now_ns();
    OK(sd_spin(stream, 80 * MS));
    OK(cuMemFree(ptr));
    cr_assert_geq(now_ns() - start, 80 * MS);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxPushCurrent(second));
    OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(cuLaunchHostFunc(stream, at_gate, NULL));
    OK(cuMemFree(ptr));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    open_gate(stream);
}

Test(softdriver_streams, stale_and_junk_handles_are_errors)
{
    CUcontext context, now;
    CUstream stream;
    unsigned long long id;

#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, 1));
#else
    OK(cuCtxCreate(&context, 0, 1));
#endif
    OK(cuStreamCreate(&stream, 0));
    OK(cuCtxGetId(context, &id));
    OK(cuCtxDestroy(context));
    OK(cuCtxGetCurrent(&now));
    cr_assert_eq(now, sd_ctx, "destroying the current context pops it");
    GIVES(cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
    GIVES(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    GIVES(cuStreamQuery((CUstream)0x1234), CUDA_ERROR_INVALID_HANDLE);
    GIVES(cuCtxSetCurrent((CUcontext)sd_mod), CUDA_ERROR_INVALID_CONTEXT);
    GIVES(cuEventQuery((CUevent)sd_ctx), CUDA_ERROR_INVALID_HANDLE);
    GIVES(cuModuleUnload((CUmodule)((char *)sd_mod + 8)), CUDA_ERROR_INVALID_HANDLE);
}

Test(softdriver_streams, a_reset_primary_context_is_destroyed_until_retained)
{
    CUcontext again;
    CUdeviceptr ptr;
    unsigned flags;
    int active;

    OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    cr_assert_not(active);
    GIVES(cuMemAlloc(&ptr, 512), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    cr_assert_eq(again, sd_ctx);
    GIVES(cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&ptr, 512));
}

Test(softdriver_streams, an_unknown_kernel_is_told_apart)
{
    CUfunction function;

    GIVES(cuModuleGetFunction(&function, sd_mod, "absent"), CUDA_ERROR_NOT_FOUND);
    GIVES(cuModuleGetFunction(&function, sd_mod, "fil"), CUDA_ERROR_NOT_FOUND);
    GIVES(cuModuleGetFunction(&function, sd_mod, "of_nobody"), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cuModuleLoadData(&sd_mod, "no module"), CUDA_ERROR_INVALID_IMAGE);
}

static void *reset(void *unused)
{
    return (void *)(uintptr_t)cuDevicePrimaryCtxReset(0);
}

static void *retain(void *ret_context)
{
    return (void *)(uintptr_t)cuDevicePrimaryCtxRetain(ret_context, 0);
}

/* A reset waits for the work, and who retains the context meanwhile waits for the reset. */
Test(softdriver_streams, a_context_retained_while_it_is_reset_has_its_streams)
{
    pthread_t resets, retains;
    CUcontext context;
    CUdeviceptr ptr;
    void *result;

    OK(cuMemAlloc(&ptr, 4096));
    softcuda_hold(1);
    OK(sd_fill(NULL, ptr, 5, 1024));
    pthread_create(&resets, NULL, reset, NULL);
    cr_assert(all_rest(0));
    pthread_create(&retains, NULL, retain, &context);
    cr_assert(all_rest(0));
    softcuda_hold(0);
    pthread_join(resets, &result);
    cr_assert_eq((uintptr_t)result, CUDA_SUCCESS);
    pthread_join(retains, &result);
    cr_assert_eq((uintptr_t)result, CUDA_SUCCESS);
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&ptr, 4096));
    OK(cuMemsetD32(ptr, 7, 1024));
    OK(cuCtxSynchronize());
    cr_assert_eq(sd_word(ptr, NULL), 7);
}
