/* Two devices (two.h). */
#include "two.h"

#include <criterion/criterion.h>

CUcontext second;
CUdeviceptr near, far;

void two_devices(size_t size)
{
    second = second_device();
    far = filled(size, 2);
    OK(cuCtxSetCurrent(context));
    near = filled(size, 1);
}

void far_anew(size_t size)
{
    OK(cuMemFree(far));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&far, size));
    OK(fill_now(far, 2, MIB / 2));
    OK(cuCtxSetCurrent(context));
}

void need_reach(void)
{
    int can = 0;

    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    if (!can)
        cr_skip_test("the devices do not reach each other");
}

void far_words(uint32_t value, size_t words)
{
    OK(cuCtxSetCurrent(second));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(far, value, words), 0);
    OK(cuCtxSetCurrent(context));
}
