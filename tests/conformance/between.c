/* Contexts of two devices: copies between them, and whose access to whose memory is enabled. */
#include "two.h"

#include <criterion/criterion.h>

TestSuite(between, .init = conform_start, .timeout = 60);

/* Which contexts are named does not matter, not even that they are of another device, or none. */
Test(between, copies_may_name_any_context)
{
    CUcontext named[4] = {context, NULL, NULL, NULL}, third = NULL;
    CUdeviceptr here = 0, there = 0;
    const uint32_t value = 7;
    CUDA_MEMCPY3D_PEER box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                              .WidthInBytes = 4096,
                              .Height = 1,
                              .Depth = 1};
    int count = 0;

    OK(cuDeviceGetCount(&count));
    if (count < 2)
        cr_skip_test("one device");
    OK(cuMemAlloc(&here, 4096));
    OK(cuDevicePrimaryCtxRetain(&named[1], 1));
    OK(cuCtxSetCurrent(named[1]));
    OK(cuMemAlloc(&there, 4096));
    named[2] = third = context_create(device);
    for (int i = 0; i < 16; i++) {
        CUcontext to = named[i / 4], from = named[i % 4];

        OK(cuCtxSetCurrent(context));
        OK(fill_now(here, value + (uint32_t)i, 1024));
        OK(cuCtxSetCurrent(third));
        OK(cuMemcpyPeer(there, to, here, from, 4096));
        OK(cuMemcpyPeerAsync(there, to, here, from, 4096, NULL));
        box.srcDevice = here;
        box.dstDevice = there;
        box.srcContext = from;
        box.dstContext = to;
        OK(cuMemcpy3DPeer(&box));
        OK(cuMemcpy3DPeerAsync(&box, NULL));
        OK(cuCtxSynchronize());
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeer(there, to, here, from, 5000));
        OK(cuMemcpyPeer(there, to, here, from, 0));
        OK(cuCtxSetCurrent(named[1]));
        cr_assert_eq(words_other(there, value + (uint32_t)i, 1024), 0, "contexts %d", i);
    }
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(here));
    OK(cuMemFree(there));
    OK(cuCtxDestroy(third));
}

/* ---- peer access is of one context to memory of another ---- */

static CUcontext pair[2]; /* the primary contexts of two devices that reach each other */

static void start(void)
{
    int count = 0, can = 0;

    OK(cuDeviceGetCount(&count));
    if (count > 1)
        OK(cuDeviceCanAccessPeer(&can, 0, 1));
    if (!can)
        cr_skip_test("no second device that the first one reaches");
    pair[0] = context;
    OK(cuDevicePrimaryCtxRetain(&pair[1], 1));
}

static CUdeviceptr memory_of(CUcontext owner)
{
    CUdeviceptr ptr = 0;

    OK(cuCtxSetCurrent(owner));
    OK(cuMemAlloc(&ptr, 4096));
    return ptr;
}

/* Whether a fill is let in, and the copy that always is. */
static bool may_fill(CUcontext who, CUdeviceptr ptr)
{
    unsigned int flags = 77;
    CUresult r;

    OK(cuCtxSetCurrent(who));
    r = cuMemsetD8(ptr, 1, 16);
    cr_assert(r == CUDA_SUCCESS || r == CUDA_ERROR_INVALID_VALUE, "%s", result_name(r));
    OK(cuCtxSynchronize()); /* access that is taken away under it would be a fault */
    OK(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, ptr));
    probe("access_flags_of_another_devices_memory", "%s %u", result_name(r), flags);
    if (under_shim() || software_driver())
        cr_assert_eq(flags != 0, r == CUDA_SUCCESS, "flags %u, fill %s", flags, result_name(r));
    return r == CUDA_SUCCESS;
}

static void reset(int which)
{
    OK(cuCtxSetCurrent(pair[which]));
    kernels_forget();
    OK(cuDevicePrimaryCtxReset(which));
    OK(cuDevicePrimaryCtxRetain(&pair[which], which));
    if (which == 0)
        context = pair[0];
    OK(cuCtxSetCurrent(pair[0]));
}

Test(between, a_reset_of_the_peer_ends_the_access)
{
    CUdeviceptr there;

    start();
    there = memory_of(pair[1]);
    cr_assert(!may_fill(pair[0], there));
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    cr_assert(may_fill(pair[0], there));
    reset(1);
    there = memory_of(pair[1]);
    cr_assert(!may_fill(pair[0], there));
    CHECK(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(pair[1]));
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    cr_assert(may_fill(pair[0], there));
    CHECK(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(pair[1], 0));
    OK(cuCtxDisablePeerAccess(pair[1]));
    CHECK(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(pair[1]));
    cr_assert(!may_fill(pair[0], there));
    OK(cuMemFree(there));
}

Test(between, a_reset_of_ones_own_ends_the_access)
{
    CUdeviceptr there, here;

    start();
    there = memory_of(pair[1]);
    OK(cuCtxSetCurrent(pair[0]));
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    cr_assert(may_fill(pair[0], there));
    reset(0);
    cr_assert(!may_fill(pair[0], there));
    here = memory_of(pair[0]);
    OK(cuMemcpyDtoD(here, there, 16));
    OK(cuCtxSynchronize());
    cr_assert(!may_fill(pair[0], there), "a copy lets fills in");
    CHECK(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(pair[1]));
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    cr_assert(may_fill(pair[0], there));
    OK(cuCtxDisablePeerAccess(pair[1]));
    cr_assert(!may_fill(pair[0], there));
    OK(cuMemFree(there));
    OK(cuMemFree(here));
}

Test(between, each_context_enables_for_itself_and_to_one)
{
    CUcontext beside, other;
    CUdeviceptr there, more;

    start();
    there = memory_of(pair[1]);
    OK(cuCtxSetCurrent(pair[0]));
    beside = context_create(0);
    cr_assert(!may_fill(beside, there));
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    cr_assert(may_fill(beside, there));
    cr_assert(!may_fill(pair[0], there), "another context's access is this one's");
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    cr_assert(may_fill(pair[0], there));
    OK(cuCtxSetCurrent(beside));
    OK(cuCtxDisablePeerAccess(pair[1]));
    cr_assert(!may_fill(beside, there));
    cr_assert(may_fill(pair[0], there));
    other = context_create(1);
    more = memory_of(other);
    cr_assert(!may_fill(pair[0], more), "access to one context is access to another");
    OK(cuCtxEnablePeerAccess(other, 0));
    cr_assert(may_fill(pair[0], more));
    OK(cuCtxDisablePeerAccess(pair[1]));
    cr_assert(may_fill(pair[0], more));
    cr_assert(!may_fill(pair[0], there));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(pair[0]));
    OK(cuCtxEnablePeerAccess(pair[1], 0));
    OK(cuCtxDestroy(beside));
    cr_assert(may_fill(pair[0], there), "another context's end ends the access");
    OK(cuMemFree(there));
}
