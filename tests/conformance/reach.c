/*
 * What copies and fills may touch: one allocation to its last byte, memory of other devices, and
 * what peer access adds to that.
 */
#include "peer.h"
#include "two.h"

#include <criterion/criterion.h>

TestSuite(reach, .init = conform_start, .timeout = 60);

static char host[64 << 10];

/* ---- one allocation, to the byte ---- */

/* Every way to touch `size` bytes of a block; `other` is large. */
#define WAYS 13
static CUresult touch(int way, CUdeviceptr ptr, size_t size, CUdeviceptr other, CUstream stream)
{
    const CUDA_MEMCPY2D flat = rectangle_copy(other, ptr, size, 1);

    switch (way) {
    case 0:
        return cuMemsetD8(ptr, 1, size);
    case 1:
        return cuMemsetD8Async(ptr, 1, size, stream);
    case 2:
        return cuMemcpyDtoD(ptr, other, size);
    case 3:
        return cuMemcpyDtoD(other, ptr, size);
    case 4:
        return cuMemcpyDtoDAsync(other, ptr, size, stream);
    case 5:
        return cuMemcpyHtoD(ptr, host, size);
    case 6:
        return cuMemcpyDtoH(host, ptr, size);
    case 7:
        return cuMemcpyHtoDAsync(ptr, host, size, stream);
    case 8:
        return cuMemcpyDtoHAsync(host, ptr, size, stream);
    case 9:
        return cuMemcpyAsync(ptr, other, size, stream);
    case 10:
        return cuMemcpyPeerAsync(other, context, ptr, context, size, stream);
    case 11:
        return cuMemcpy2DAsync(&flat, stream);
    default:
        return cuMemsetD2D8(ptr, size, 1, size, 1);
    }
}

Test(reach, copies_and_fills_stay_inside_one_allocation)
{
    static const size_t sizes[] = {1000, 512, 5000, 60000};
    CUstream stream = new_stream();
    CUdeviceptr other = allocated(4 * MIB), ptr = 0, neighbour = 0;

    for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            OK(memory_alloc((enum memory_kind)kind, &ptr, sizes[i]));
            OK(memory_alloc((enum memory_kind)kind, &neighbour, sizes[i]));
            OK(cuStreamSynchronize(CU_STREAM_LEGACY));
            for (int way = 0; way < WAYS; way++) {
                CUresult past;

                OK(touch(way, ptr, sizes[i], other, stream));
                past = touch(way, ptr, sizes[i] + 1, other, stream);
                cr_assert_eq(past, CUDA_ERROR_INVALID_VALUE, "way %d, %zu bytes: %s", way, sizes[i],
                             result_name(past));
                past = touch(way, ptr + 100, sizes[i] - 99, other, stream);
                cr_assert_eq(past, CUDA_ERROR_INVALID_VALUE, "way %d, from inside: %s", way,
                             result_name(past));
            }
            OK(cuCtxSynchronize());
            OK(memory_free((enum memory_kind)kind, ptr));
            OK(memory_free((enum memory_kind)kind, neighbour));
        }
}

Test(reach, freed_memory_cannot_be_touched)
{
    CUstream stream = new_stream();
    CUdeviceptr other = allocated(MIB), ptr = 0;

    for (int i = 0; i < 3; i++) {
        OK(cuMemAlloc(&ptr, i == 0 ? 512 : (size_t)i * MIB));
        OK(cuMemFree(ptr));
        for (int way = 0; way < WAYS; way++) {
            CUresult r;

            if (way == 9)
                continue; /* an address that nothing is at may be one of the host */
            r = touch(way, ptr, 16, other, stream);
            cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "way %d: %s", way, result_name(r));
        }
    }
    OK(cuMemAllocAsync(&ptr, 5000, stream));
    OK(cuMemFreeAsync(ptr, stream));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8Async(ptr, 1, 16, stream));
}

Test(reach, nothing_may_be_anywhere)
{
    CUdeviceptr ptr = allocated(4096);

    OK(cuMemFree(ptr));
    OK(cuMemsetD8(NOWHERE, 1, 0));
    OK(cuMemsetD8(ptr, 1, 0));
    OK(cuMemcpyDtoD(NOWHERE, ptr, 0));
}

Test(reach, rectangles_may_use_all_of_their_rows_and_no_more)
{
    CUDA_MEMCPY2D flat;
    CUDA_MEMCPY3D box;
    CUdeviceptr other = allocated(16 * MIB), rows = 0;
    size_t pitch = 0;

    OK(cuMemAllocPitch(&rows, &pitch, 1000, 6, 4));
    flat = rectangle_copy(other, rows, 1024, 3);
    box = box_copy(other, rows, 1024, 3, 2);
    flat.srcPitch = box.srcPitch = pitch;
    flat.WidthInBytes = box.WidthInBytes = 1000;
    OK(cuMemcpy2D(&flat));
    OK(cuMemcpy3D(&box));
    flat.WidthInBytes = pitch, flat.Height = 6;
    OK(cuMemcpy2D(&flat));
    flat.Height = 7, flat.WidthInBytes = 1000;
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&flat));
    flat.Height = 6, flat.srcY = 1;
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpy2DAsync(&flat, CU_STREAM_LEGACY));
    flat.Height = 0;
    OK(cuMemcpy2D(&flat));
    box.srcZ = 1;
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&box));
    box.Depth = 1;
    OK(cuMemcpy3DAsync(&box, CU_STREAM_LEGACY));
    OK(cuMemsetD2D32(rows, pitch, 5, 250, 6));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D32(rows, pitch, 5, 250, 7));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8Async(rows + pitch, pitch, 5, 1000, 6, NULL));
    OK(cuCtxSynchronize());
}

/* A copy that is refused while a stream captures leaves the capture whole. */
Test(reach, a_copy_past_the_end_does_not_break_a_capture)
{
    CUstream stream = new_stream();
    CUdeviceptr from = allocated(2 * MIB), to = allocated(2 * MIB);
    CUgraph graph = NULL;

    OK(fill_now(from, 6, MIB / 2));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(to, from, 4 * MIB, stream));
    OK(cuMemcpyDtoDAsync(to, from, 2 * MIB, stream));
    OK(cuStreamEndCapture(stream, &graph));
    run_graph(graph, stream);
    cr_assert_eq(words_other(to, 6, MIB / 2), 0);
}

/* ---- two devices ---- */

Test(reach, memory_of_another_device_is_copied_without_peer_access)
{
    const size_t size = 4 * MIB;
    CUcontext current = NULL;
    CUstream stream;
    uint32_t word = 0;

    two_devices(size);
    stream = new_stream();
    OK(cuMemcpyDtoD(near, far, size));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(near, 2, size / 4), 0);
    OK(fill_now(near, 3, size / 4));
    OK(cuMemcpyDtoDAsync(far, near, size, stream));
    OK(cuStreamSynchronize(stream));
    far_words(3, size / 4);
    OK(cuMemcpyDtoH(&word, far + size - 4, 4));
    cr_assert_eq(word, 3);
    word = 4;
    OK(cuMemcpyHtoD(far, &word, 4));
    far_words(4, 1);
    word = 5;
    OK(cuMemcpyHtoDAsync(far, &word, 4, stream));
    OK(cuStreamSynchronize(stream));
    far_words(5, 1);
    OK(cuMemcpy(near, far, 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(near, 5, 1), 0);
    word = 0;
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)&word, far, 4));
    cr_assert_eq(word, 5);
    OK(cuCtxGetCurrent(&current));
    cr_assert_eq(current, context, "it is made in the owner's, which stays current");
    OK(cuMemcpyAsync(far + 8, far, 4, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(near, far, size + 1));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(host, far + size - 4, 8));
}

/* No more than one of this device's memory, which the driver makes in a capture of any mode. */
Test(reach, a_synchronous_copy_of_another_devices_memory_does_not_break_a_capture)
{
    CUstream stream;

    two_devices(4096);
    stream = new_stream();
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        uint32_t word = (uint32_t)mode + 5, got = 0;
        CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_RELAXED;

        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
        OK(cuMemcpyHtoD(far, &word, 4));
        OK(cuMemcpyDtoH(&got, far, 4));
        OK(cuThreadExchangeStreamCaptureMode(&own));
        cr_assert_eq(own, CU_STREAM_CAPTURE_MODE_GLOBAL, "the thread's mode is what it was");
        OK(cuThreadExchangeStreamCaptureMode(&own));
        cr_assert_eq(got, word, "mode %d: %u", mode, got);
        end_capture(stream);
    }
}

/* A blocking stream's capture refuses what the legacy stream would do. */
Test(reach, a_synchronous_copy_beside_a_capture_of_a_blocking_stream_is_refused)
{
    CUgraph graph = NULL;
    CUstream stream;
    uint32_t word = 0;

    two_devices(4096);
    OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoH(&word, far, 4));
    CHECK(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(stream, &graph));
}

Test(reach, rectangles_of_another_device_are_copied_without_peer_access)
{
    CUDA_MEMCPY2D flat;
    CUDA_MEMCPY3D box;
    CUDA_MEMCPY3D_PEER peer;

    two_devices(2 * MIB);
    flat = rectangle_copy(near, far, 1024, 4);
    box = box_copy(near, far, 1024, 2, 4);
    peer = peer_copy(near, context, far, second, 1024, 2, 4);
    OK(cuMemcpy2D(&flat));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(near, 2, 1024), 0);
    cr_assert_eq(words_other(near + 4096, 1, 1024), 0);
    OK(cuMemcpy3D(&box));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(near, 2, 2048), 0);
    OK(fill_now(near, 7, 2048));
    OK(cuMemcpy3DPeer(&peer));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(near, 2, 2048), 0);
    peer.Depth = 5000;
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DPeer(&peer));
}

Test(reach, memory_of_another_device_is_copied_in_a_graph)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUresult captured;

    two_devices(2 * MIB);
    need_reach();
    stream = new_stream();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    captured = cuMemcpyDtoDAsync(near, far, 2 * MIB, stream);
    OK(cuStreamEndCapture(stream, &graph));
    CHECK(CUDA_SUCCESS, captured);
    run_graph(graph, stream);
    cr_assert_eq(words_other(near, 2, MIB / 2), 0);
}

/* A batch by one form of the call; skips the test where the driver has none. */
static CUresult batch(int form, CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                      size_t *ret_fail, CUstream stream)
{
    if (!driver_lookup("cuMemcpyBatchAsync", form ? 13000 : 12080, 0))
        cr_skip_test("the driver copies no batches");
    return copy_batch(form, dsts, srcs, sizes, ret_fail, stream);
}

/* In a process of its own: the driver need not survive it. */
static void bad_batch(int form, enum bad_batch what)
{
    static const char *const names[] = {"batch_past_the_end", "batch_of_freed_memory"};
    struct peer *peer = peer_start(-1);
    size_t failed = 77;
    CUresult r = CUDA_SUCCESS;

    if (peer_bad_batch(peer, form, what, &r, &failed)) {
        probe(names[what], "%s, %zu", result_name(r), failed);
        if (under_shim() || (software_driver() && what == BATCH_PAST_THE_END))
            cr_assert(r == CUDA_ERROR_INVALID_VALUE && (form || failed == 1), "%s: %s, %zu",
                      names[what], result_name(r), failed);
    } else {
        probe(names[what], "the process ended");
        cr_assert(!software_driver() && !under_shim());
    }
    peer_kill(peer);
}

Test(reach, batches_of_copies_stay_inside_their_allocations)
{
    CUstream stream = new_stream();
    CUdeviceptr small = allocated(1000), neighbour = allocated(1000), other = 0;
    size_t failed;

    other = filled(MIB, 7);
    for (int form = 0; form < 2; form++) {
        CUdeviceptr dsts[] = {small, neighbour}, srcs[] = {other, other};
        size_t sizes[] = {1000, 1000};

        OK(cuMemsetD8(small, 0, 1000));
        OK(cuCtxSynchronize());
        OK(batch(form, dsts, srcs, sizes, &failed, stream));
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(small, 7, 250), 0);
        bad_batch(form, BATCH_PAST_THE_END);
        bad_batch(form, BATCH_OF_FREED_MEMORY);
    }
}

Test(reach, memory_of_another_device_is_copied_in_batches)
{
    CUstream stream;
    size_t failed;

    two_devices(2 * MIB);
    need_reach();
    stream = new_stream();
    for (int form = 0; form < 2; form++) {
        CUdeviceptr dsts[] = {near, far + MIB}, srcs[] = {far, near + MIB};
        size_t sizes[] = {MIB, MIB};
        CUresult r = batch(form, dsts, srcs, sizes, &failed, stream);

        probe("batch_between_devices", "%s, %zu", result_name(r), failed);
        if (software_driver() || under_shim())
            OK(r);
        OK(cuStreamSynchronize(stream));
        if (r != CUDA_SUCCESS)
            continue;
        cr_assert_eq(words_other(near, 2, MIB / 4), 0);
        cr_assert_eq(words_other(far + MIB, 1, MIB / 4), 0);
    }
}

static void is_said_to_be_let_in(bool in)
{
    unsigned int flags = 77;

    OK(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, far));
    probe("access_flags_of_another_devices_memory", "%u", flags);
    if (under_shim() || software_driver())
        cr_assert_eq(flags != 0, in, "flags %u", flags);
}

Test(reach, peer_access_lets_kernels_and_fills_in)
{
    CUdeviceptr later = 0, small = 0;

    two_devices(2 * MIB);
    need_reach();
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(far, 1, 16));
    OK(cuMemcpyDtoD(near, far, 16)); /* a copy opens the door for copies alone */
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(far, 1, 16));
    is_said_to_be_let_in(false);
    CHECK(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(second));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(second, 1));
    OK(cuCtxEnablePeerAccess(second, 0));
    is_said_to_be_let_in(true);
    CHECK(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(second, 0));
    OK(fill_now(far, 8, MIB / 2)); /* memory that was there */
    OK(cuMemsetD32(far, 9, 16));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&later, 64 * MIB));
    OK(cuMemAlloc(&small, 512));
    OK(cuCtxSetCurrent(context));
    OK(fill_now(later, 10, 16 * MIB)); /* memory that came later */
    OK(fill_now(small, 11, 128));
    cr_assert_eq(words_other(later, 10, 16 * MIB), 0);
    OK(cuMemsetD8(later, 1, 16));
    OK(cuCtxDisablePeerAccess(second));
    CHECK(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(second));
    CHECK(under_shim() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, cuMemsetD8(far, 1, 16));
    OK(cuMemcpyDtoD(near, far, 16)); /* and copies go on */
    OK(cuCtxSynchronize());
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(fill_now(later, 12, 16));
}

/* A fill does what the device of its stream may, whichever is current. */
Test(reach, fills_are_of_their_streams_device)
{
    CUcontext current = NULL;
    CUstream stream;

    two_devices(2 * MIB);
    need_reach();
    OK(cuCtxSetCurrent(second));
    stream = new_stream();
    OK(cuCtxSetCurrent(context));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(far, 1, 16));
    if (under_shim()) { /* natively some drivers take no such stream */
        OK(cuMemsetD8Async(far, 6, 16, stream));
        OK(cuCtxGetCurrent(&current));
        cr_assert_eq(current, context, "it is another by now");
        OK(cuStreamSynchronize(stream));
        far_words(0x06060606, 4);
    }
}

/* Where the driver has no memory for a peer's page tables: as natively, all of it or nothing. */
Test(reach, peer_access_that_cannot_be_given_is_an_error)
{
    const struct software *driver = software();
    CUmemAccessDesc access = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool;

    two_devices(2 * MIB);
    need_reach();
    if (!driver || !under_shim())
        cr_skip_test("a driver gives its own memory access in ways of its own");
    OK(cuDeviceGetDefaultMemPool(&pool, 1));
    driver->fail("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemPoolSetAccess(pool, &access, 1));
    OK(cuMemPoolGetAccess(&access.flags, pool, &access.location));
    cr_assert_eq(access.flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    driver->fail("cuMemSetAccess", 1, CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuCtxEnablePeerAccess(second, 0));
    CHECK(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(second));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(far, 1, 16));
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(fill_now(far, 8, 16));
}

/* Enabled before there is any memory, and again after the context was reset. */
Test(reach, peer_access_is_the_contexts)
{
    two_devices(2 * MIB);
    need_reach();
    OK(cuMemFree(far));
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&far, 32 * MIB));
    OK(cuCtxSetCurrent(context));
    OK(fill_now(far, 1, 8 * MIB));
    kernels_forget();
    OK(cuDevicePrimaryCtxReset(device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(fill_now(far, 2, 8 * MIB));
    cr_assert_eq(words_other(far, 2, 8 * MIB), 0);
}

/* Memory of another process follows the context that opened it. */
Test(reach, peer_access_covers_what_another_process_shared)
{
    struct peer *peer;
    CUdeviceptr first = 0, later = 0, opened[2] = {0, 0};
    CUipcMemHandle handle;
    uint32_t word = 0;
    CUresult r;

    two_devices(2 * MIB);
    need_reach();
    peer = peer_start(-1);
    OK(peer_alloc(peer, MEMORY_PLAIN, &first, 4 * MIB));
    OK(peer_fill(peer, first, 21, MIB));
    OK(peer_alloc(peer, MEMORY_PLAIN, &later, 4 * MIB));
    OK(peer_fill(peer, later, 22, MIB));
    opened[0] = opened_from(peer, first);
    OK(peer_share(peer, later, &handle));
    OK(cuCtxSetCurrent(second));
    r = cuMemsetD8(opened[0], 1, 16);
    probe("fill_of_shared_memory_from_another_device", "%s", result_name(r));
    if (software_driver())
        cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE);
    OK(cuMemcpyDtoD(far, opened[0], 4));
    OK(cuMemcpyDtoDAsync(far + 4, opened[0] + 4, 4, CU_STREAM_LEGACY));
    OK(cuMemcpyDtoH(&word, opened[0], 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(word, 21);
    cr_assert_eq(words_other(far, 21, 2), 0);
    r = cuMemsetD8(opened[0], 1, 16);
    if (software_driver())
        cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "a copy opens the door for copies alone");
    OK(cuCtxEnablePeerAccess(context, 0));
    if (!software_driver() && !under_shim()) {
        /* A kernel's fill of what was open before faults on H200s, and the process is spoiled. */
        peer_quit(peer);
        cr_skip_test("natively peer access does not cover memory that was open before");
    }
    OK(fill_now(opened[0], 23, MIB)); /* memory that was open */
    OK(cuMemsetD32(opened[0], 24, 16));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context));
    OK(cuIpcOpenMemHandle(&opened[1], handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuCtxSetCurrent(second));
    OK(fill_now(opened[1], 25, MIB)); /* memory that was opened later */
    cr_assert_eq(words_other(opened[1], 25, MIB), 0);
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(words_other(opened[0], 24, 16), 0);
    cr_assert_eq(words_other(opened[0] + 64, 23, MIB - 16), 0);
    peer_quit(peer);
}
