/* Copies between contexts of two devices. */
#include "two.h"

#include <criterion/criterion.h>

TestSuite(between, .init = conform_start, .timeout = 60);

/* Which contexts are named does not matter, not even that they are of another device, or none. */
Test(between, copies_may_name_any_context)
{
    CUcontext named[4] = {context, NULL, NULL, NULL}, third = NULL;
    CUdeviceptr here = allocated(4096), there = 0;
    const uint32_t value = 7;

    named[1] = second_device();
    OK(cuMemAlloc(&there, 4096));
    named[2] = third = context_create(device);
    for (int i = 0; i < 16; i++) {
        CUcontext to = named[i / 4], from = named[i % 4];
        const CUDA_MEMCPY3D_PEER box = peer_copy(there, to, here, from, 4096, 1, 1);

        OK(cuCtxSetCurrent(context));
        OK(fill_now(here, value + (uint32_t)i, 1024));
        OK(cuCtxSetCurrent(third));
        OK(cuMemcpyPeer(there, to, here, from, 4096));
        OK(cuMemcpyPeerAsync(there, to, here, from, 4096, NULL));
        OK(cuMemcpy3DPeer(&box));
        OK(cuMemcpy3DPeerAsync(&box, NULL));
        OK(cuCtxSynchronize());
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeer(there, to, here, from, 5000));
        OK(cuMemcpyPeer(there, to, here, from, 0));
        OK(cuCtxSetCurrent(named[1]));
        cr_assert_eq(words_other(there, value + (uint32_t)i, 1024), 0, "contexts %d", i);
    }
}

static CUresult copy_rows(CUdeviceptr dst, const void *src)
{
    const CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                .srcHost = src,
                                .srcPitch = 64,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = dst,
                                .dstPitch = 64,
                                .WidthInBytes = 64,
                                .Height = 2};

    return cuMemcpy2D(&rows);
}

/* They are in the order of the current device's streams. */
Test(between, a_copy_of_the_hosts_leaves_the_other_devices_captures_whole)
{
    uint32_t words[32] = {7};
    CUstream stream;

    two_devices(2 * MIB);
    OK(cuCtxSetCurrent(second));
    stream = blocking_stream();
    OK(cuCtxSetCurrent(context));
    for (int mode = 0; mode < 3; mode++) {
        OK(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
        OK(cuMemcpyHtoD(far, words, sizeof words));
        OK(cuMemcpyDtoH(words, far, sizeof words));
        OK(cuMemcpy(far, (CUdeviceptr)words, sizeof words));
        OK(copy_rows(far, words));
        CHECK(CUDA_SUCCESS, capture_result(stream));
        cr_assert_eq(words[0], 7);
    }
}

/* No two numbers of it are alike, so that none can stand for another. */
static const CUDA_MEMCPY3D apart = {
    .srcMemoryType = CU_MEMORYTYPE_DEVICE,
    .dstMemoryType = CU_MEMORYTYPE_DEVICE,
    .srcXInBytes = 5,
    .srcY = 1,
    .srcZ = 3,
    .srcPitch = 64,
    .srcHeight = 11,
    .dstXInBytes = 9,
    .dstY = 4,
    .dstZ = 2,
    .dstPitch = 80,
    .dstHeight = 13,
    .WidthInBytes = 39,
    .Height = 7,
    .Depth = 6,
};

#define APART_SIZE ((size_t)16384)

/* What the copy makes of memory that is `to` everywhere. */
static void copy_by_hand(unsigned char *to, const unsigned char *from, const CUDA_MEMCPY3D *copy)
{
    memset(to, 0xee, APART_SIZE);
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++)
            memcpy(to + ((copy->dstZ + z) * copy->dstHeight + copy->dstY + y) * copy->dstPitch +
                       copy->dstXInBytes,
                   from + ((copy->srcZ + z) * copy->srcHeight + copy->srcY + y) * copy->srcPitch +
                       copy->srcXInBytes,
                   copy->WidthInBytes);
}

static void set_numbers(unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        bytes[i] = (unsigned char)(i * 7 + i / 256);
}

/* Memory of another context, which then is not the current one any more. */
static void fill_beside(CUcontext other, CUdeviceptr ptr, unsigned char value, size_t size)
{
    OK(cuCtxSetCurrent(other));
    OK(cuMemsetD8(ptr, value, size));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context));
}

Test(between, boxes_of_devices_without_access_land_where_they_are_to)
{
    static unsigned char from[APART_SIZE], seen[APART_SIZE], wanted[APART_SIZE];
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcXInBytes = 5,
                          .srcY = 3,
                          .srcPitch = 64,
                          .dstXInBytes = 9,
                          .dstY = 4,
                          .dstPitch = 80,
                          .WidthInBytes = 39,
                          .Height = 7};
    CUDA_MEMCPY3D box = apart, flat = {.srcXInBytes = 5,
                                       .srcY = 3,
                                       .srcPitch = 64,
                                       .dstXInBytes = 9,
                                       .dstY = 4,
                                       .dstPitch = 80,
                                       .WidthInBytes = 39,
                                       .Height = 7,
                                       .Depth = 1};
    CUdeviceptr here = allocated(APART_SIZE), there;
    CUcontext other;

    other = second_device();
    OK(cuMemAlloc(&there, APART_SIZE));
    OK(cuCtxSetCurrent(context));
    set_numbers(from, APART_SIZE);
    OK(cuMemcpyHtoD(here, from, APART_SIZE));
    box.srcDevice = rows.srcDevice = here;
    box.dstDevice = rows.dstDevice = there;
    for (int way = 0; way < 4; way++) {
        fill_beside(other, there, 0xee, APART_SIZE);
        if (way < 2)
            OK(way ? cuMemcpy3DAsync(&box, NULL) : cuMemcpy3D(&box));
        else
            OK(way == 3 ? cuMemcpy2DAsync(&rows, NULL) : cuMemcpy2D(&rows));
        OK(cuCtxSynchronize());
        OK(cuCtxSetCurrent(other));
        OK(cuMemcpyDtoH(seen, there, APART_SIZE));
        copy_by_hand(wanted, from, way < 2 ? &apart : &flat);
        for (size_t i = 0; i < APART_SIZE; i++)
            cr_assert_eq(seen[i], wanted[i], "way %d, byte %zu: %#x, not %#x", way, i, seen[i],
                         wanted[i]);
    }
}

/* A box that is used again: of a side, only the field that its type names is read. */
Test(between, an_address_left_over_beside_host_memory_is_not_read)
{
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcPitch = 64,
                         .srcHeight = 4,
                         .dstPitch = 64,
                         .dstHeight = 4,
                         .WidthInBytes = 64,
                         .Height = 4,
                         .Depth = 4};
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcPitch = 64,
                          .dstPitch = 64,
                          .WidthInBytes = 64,
                          .Height = 16};
    unsigned char from[1024], to[1024];
    CUdeviceptr here, there;
    CUcontext other;

    OK(cuMemAlloc(&here, sizeof from));
    OK(cuMemsetD8(here, 0xee, sizeof from));
    other = second_device();
    OK(cuMemAlloc(&there, sizeof from));
    OK(cuCtxSetCurrent(context));
    set_numbers(from, sizeof from);
    box.srcHost = rows.srcHost = from;
    box.srcDevice = rows.srcDevice = here;
    box.dstDevice = rows.dstDevice = there;
    for (int flat = 0; flat < 2; flat++) {
        fill_beside(other, there, 0, sizeof to);
        OK(flat ? cuMemcpy2D(&rows) : cuMemcpy3D(&box));
        OK(cuCtxSetCurrent(other));
        OK(cuMemcpyDtoH(to, there, sizeof to));
        cr_assert_arr_eq(to, from, sizeof to, "flat %d", flat);
    }
}
