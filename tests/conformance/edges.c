/* What calls answer at their edges, as measured on H200s: without a current context, of no bytes or
 * more than there are, with outputs left out. What two drivers were seen to answer differently has
 * its test here. */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(edges, .init = conform_start, .timeout = 60);

#define NO_CONTEXT CUDA_ERROR_INVALID_CONTEXT

/* ---- without a current context ---- */

static void plain_and_async(CUstream stream, CUdeviceptr *ret_plain, CUdeviceptr *ret_async)
{
    OK(cuMemAlloc(ret_plain, 4096));
    OK(cuMemAllocAsync(ret_async, 4096, stream));
    OK(cuStreamSynchronize(stream));
}

Test(edges, without_a_context_memory_is_freed)
{
    CUstream stream = new_stream();
    CUdeviceptr plain = 0, async = 0, behind = 0;

    plain_and_async(stream, &plain, &async);
    OK(cuMemAlloc(&behind, 2 * MIB));
    OK(launch_spin_fill(stream, behind, 7, 1024, 10 * MILLISECOND));
    OK(cuCtxSetCurrent(NULL));
    OK(cuMemFree(0));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(plain + 1));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(NOWHERE));
    OK(cuMemFree(plain));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(plain));
    OK(cuMemFree(behind));
    CHECK(NO_CONTEXT, cuMemFreeAsync(async, CU_STREAM_LEGACY));
}

Test(edges, without_a_context_a_stream_of_ones_own_allocates)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;
    size_t pitch;

    OK(cuCtxSetCurrent(NULL));
    CHECK(NO_CONTEXT, cuMemAlloc(&ptr, 10));
    CHECK(NO_CONTEXT, cuMemAlloc(&ptr, 0));
    CHECK(NO_CONTEXT, cuMemAllocPitch(&ptr, &pitch, 10, 10, 4));
    CHECK(NO_CONTEXT, cuMemAllocAsync(&ptr, 10, CU_STREAM_LEGACY));
    OK(cuMemAllocAsync(&ptr, 10, stream));
}

Test(edges, without_a_context_ranges_and_handles_are_not_told)
{
    CUdeviceptr plain = 0, async = 0, base;
    CUstream stream = new_stream();
    CUipcMemHandle handle;
    unsigned int type;
    void *host = NULL;
    size_t size;

    plain_and_async(stream, &plain, &async);
    OK(cuIpcGetMemHandle(&handle, plain));
    OK(cuMemHostAlloc(&host, 4096, 0));
    OK(cuCtxSetCurrent(NULL));
    OK(cuMemFreeHost(host));
    CHECK(NO_CONTEXT, cuMemGetAddressRange(&base, &size, plain));
    CHECK(NO_CONTEXT, cuMemGetAddressRange(NULL, &size, async));
    CHECK(NO_CONTEXT, cuMemGetAddressRange(&base, NULL, NOWHERE));
    OK(cuMemGetAddressRange(NULL, NULL, plain));
    OK(cuMemGetAddressRange(NULL, NULL, NOWHERE));
    CHECK(NO_CONTEXT, cuIpcGetMemHandle(&handle, plain));
    CHECK(NO_CONTEXT, cuIpcGetMemHandle(&handle, NOWHERE));
    /* Flags are looked at first. */
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&base, handle, 0));
    CHECK(NO_CONTEXT, cuIpcOpenMemHandle(&base, handle, 1));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&base, handle, 2));
    CHECK(NO_CONTEXT, cuIpcCloseMemHandle(plain));
    CHECK(NO_CONTEXT, cuIpcCloseMemHandle(async));
    CHECK(NO_CONTEXT, cuIpcCloseMemHandle(NOWHERE));
    CHECK(NO_CONTEXT, cuIpcCloseMemHandle(0));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain));
    CHECK(NO_CONTEXT, cuMemGetInfo(&size, &size));
    CHECK(NO_CONTEXT, cuMemGetInfo(NULL, NULL));
}

/* Also of memory where nothing is any more. */
Test(edges, without_a_context_memory_that_was_freed_is_not_looked_at)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = allocated(4096), other = allocated(4096);
    uint32_t word = 0;

    OK(cuMemFree(ptr));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(ptr, 0, 16));
    OK(cuCtxSetCurrent(NULL));
    CHECK(NO_CONTEXT, cuMemsetD8(ptr, 0, 16));
    CHECK(NO_CONTEXT, cuMemcpyDtoH(&word, ptr, 4));
    CHECK(NO_CONTEXT, cuMemcpyDtoD(other, ptr, 16));
    CHECK(NO_CONTEXT, cuMemsetD8(other, 0, 5000));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(ptr, 0, 16, stream));
}

/* ---- sizes ---- */

/* The pitch is told before the driver looks for memory, and the size is what is left of the product
 * in 64 bits; nothing is larger than a pitch may be. */
Test(edges, pitches_of_rows_that_are_too_long)
{
    static const struct {
        size_t width, height, pitch;
        CUresult result;
    } of[] = {
        {(size_t)1 << 40, 1, (size_t)1 << 40, CUDA_ERROR_OUT_OF_MEMORY},
        {((size_t)1 << 40) + 1, 1, ((size_t)1 << 40) + 512, CUDA_ERROR_OUT_OF_MEMORY},
        {SIZE_MAX / 2, 1, (size_t)1 << 63, CUDA_ERROR_OUT_OF_MEMORY},
        {SIZE_MAX - 511, 1, SIZE_MAX - 511, CUDA_ERROR_OUT_OF_MEMORY},
        {SIZE_MAX - 510, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {SIZE_MAX, 1, 0, CUDA_ERROR_INVALID_VALUE},
        {SIZE_MAX / 2, 4, (size_t)1 << 63, CUDA_ERROR_INVALID_VALUE},
        {(size_t)1 << 30, (size_t)1 << 30, (size_t)1 << 30, CUDA_ERROR_OUT_OF_MEMORY},
        {100, SIZE_MAX, 512, CUDA_ERROR_OUT_OF_MEMORY},
    };
    CUdeviceptr ptr = 0;

    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        size_t pitch = 77;
        CUresult got = cuMemAllocPitch(&ptr, &pitch, of[i].width, of[i].height, 4);
        cr_assert_eq(got, of[i].result, "%zu x %zu: %s", of[i].width, of[i].height,
                     result_name(got));
        cr_assert_eq(pitch, of[i].pitch, "%zu x %zu: %zu", of[i].width, of[i].height, pitch);
    }
    for (unsigned int element = 0; element <= 32; element++) {
        CUresult want =
            element == 4 || element == 8 || element == 16 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        size_t pitch = 77;
        CHECK(want, cuMemAllocPitch(&ptr, &pitch, 64, 4, element));
        cr_assert_eq(pitch, want ? 0 : 512, "element %u: %zu", element, pitch);
        if (!want)
            OK(cuMemFree(ptr));
    }
}

/* What is left of the product in 64 bits, as well where that is less than the rows. */
Test(edges, a_pitched_size_wraps_round)
{
    CUdeviceptr ptr = 0;
    size_t pitch = 0, size = 0;

    OK(cuMemAllocPitch(&ptr, &pitch, MIB, ((size_t)1 << 44) + 1, 4));
    cr_assert_eq(pitch, MIB);
    OK(cuMemGetAddressRange(NULL, &size, ptr));
    cr_assert_eq(size, MIB);
}

/* Beside a piece that has room, too. */
Test(edges, async_memory_of_no_bytes_and_of_more_than_there_are)
{
    static const size_t much[] = {SIZE_MAX, SIZE_MAX - 100, SIZE_MAX - 510, (size_t)1 << 50};
    CUstream stream = new_stream();
    CUdeviceptr beside = 0;

    OK(cuMemAllocAsync(&beside, 4096, stream));
    for (size_t i = 0; i < sizeof much / sizeof *much; i++) {
        CUdeviceptr ptr = 0;
        CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&ptr, much[i], stream));
        CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&ptr, much[i]));
    }
    for (int i = 0; i < 2; i++) {
        CUdeviceptr ptr = 77;
        OK(cuMemAllocAsync(&ptr, 0, stream));
        cr_assert_eq(ptr, 0, "%llx", (unsigned long long)ptr);
        OK(cuMemFreeAsync(ptr, stream));
    }
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(NULL, 10, stream));
}

/* ---- in a capture ---- */

static void set_in_capture(unsigned int flags, CUstreamCaptureMode mode, CUdeviceptr ptr,
                           CUresult want)
{
    CUstream stream = NULL;
    CUgraph graph = NULL;
    unsigned int on = 1;

    OK(cuStreamCreate(&stream, flags));
    OK(cuStreamBeginCapture(stream, mode));
    CHECK(want, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
    CHECK(want ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS,
          cuStreamEndCapture(stream, &graph));
    if (graph)
        OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
}

Test(edges, sync_memops_is_set_in_a_capture)
{
    static const enum memory_kind kinds[] = {MEMORY_PLAIN, MEMORY_ASYNC};
    static const unsigned int streams[] = {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING};
    unsigned int flags = 0;

    for (int i = 0; i < 4; i++) {
        const enum memory_kind kind = kinds[i / 2];
        const unsigned int stream = streams[i % 2];
        const CUresult want = (kind == MEMORY_PLAIN ? under_shim() : under_shim_with_events())
                                  ? CUDA_SUCCESS
                                  : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        CUdeviceptr ptr = 0;

        OK(memory_alloc(kind, &ptr, 4096));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
        set_in_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, ptr, want);
        set_in_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, ptr, want);
        set_in_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED, ptr, CUDA_SUCCESS);
        OK(cuCtxGetFlags(
            &flags)); /* VMM memory cannot synchronise by itself, so its context does */
        cr_assert_eq(!!(flags & CU_CTX_SYNC_MEMOPS), under_shim());
        OK(memory_free(kind, ptr));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    }
}

/* Of another context than the one that captures, and that ends with the capture open. */
Test(edges, sync_memops_is_set_beside_a_capture_that_ends_with_its_context)
{
    unsigned int on = 1, flags = 0;
    CUstream stream = NULL;
    CUcontext second;
    CUdeviceptr ptr = 0;

    if (!software_driver())
        cr_skip_test("what the end of a context does to its captures was not measured on a GPU");
    OK(cuMemAlloc(&ptr, 4096));
    second = context_create(device);
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetFlags(&flags));
    cr_assert_eq(!!(flags & CU_CTX_SYNC_MEMOPS), under_shim());
}

/* ---- outputs and flags ---- */

Test(edges, no_bytes_are_no_memory_in_a_capture_too)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = 77;

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&ptr, 0, stream));
    cr_assert_eq(ptr, 0, "%llx", (unsigned long long)ptr);
    end_capture(stream);
}

/* In the legacy stream, which has nothing to do with one that is not blocking. */
Test(edges, a_synchronous_copy_or_fill_is_made_beside_a_capture)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = allocated(4096);

    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        uint32_t word = 0;

        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
        OK(cuMemsetD8(ptr, mode + 1, 4));
        OK(cuMemcpyDtoH(&word, ptr, 4));
        cr_assert_eq(word, (mode + 1) * 0x01010101u, "mode %d: %x", mode, word);
        end_capture(stream);
    }
}

/* By a driver that can do nothing at the moment; what comes and goes until it can breaks
 * nothing. */
Test(edges, a_capture_whose_end_fails_is_open_still)
{
    CUstream stream = new_stream();
    CUdeviceptr target = 0, ptr = 0;
    CUgraph graph = NULL;

    if (!software())
        cr_skip_test("only the software driver fails when it is told to");
    target = filled(4096, 0);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert_eq(software()->fail("cuStreamEndCapture", 1, CUDA_ERROR_SYSTEM_NOT_READY), 0);
    CHECK(CUDA_ERROR_SYSTEM_NOT_READY, cuStreamEndCapture(stream, &graph));
    for (int i = 0; i < 8 && under_shim(); i++) {
        OK(cuMemAlloc(&ptr, 8 * MIB));
        OK(cuMemFree(ptr));
    }
    OK(launch_fill(stream, target, 9, 1024));
    end_capture(stream);
}

Test(edges, to_wait_for_another_stream_breaks_a_capture_that_is_not_relaxed)
{
    CUstream stream = new_stream(), other = new_stream();

    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        bool relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
        CUgraph graph = NULL;

        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
        CHECK(relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
              cuStreamSynchronize(other));
        CHECK(relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
              cuStreamEndCapture(stream, &graph));
        if (graph)
            OK(cuGraphDestroy(graph));
    }
}

Test(edges, memory_info_needs_no_output)
{
    size_t free_bytes = 0, total = 0;

    OK(cuMemGetInfo(NULL, NULL));
    OK(cuMemGetInfo(&free_bytes, NULL));
    OK(cuMemGetInfo(NULL, &total));
    cr_assert_gt(free_bytes, 0);
    cr_assert_geq(total, free_bytes);
}

/* The flags come before the process that a handle is of. */
Test(edges, ipc_handles_open_under_one_flag_alone)
{
    CUdeviceptr ptr = allocated(4096), opened = 0;
    CUipcMemHandle handle;

    OK(cuIpcGetMemHandle(&handle, ptr));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&opened, handle, 0));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&opened, handle, 2));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(NULL, handle, 1));
    CHECK(NO_CONTEXT, cuIpcOpenMemHandle(&opened, handle, 1));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(NULL, ptr));
}
