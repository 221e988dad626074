/*
 * A library in which no stream ever waits, neither for the one that all work went to first, nor for
 * the one that freed what it is given on a full device, to prove that the programs single and
 * stress see it: linked from the same objects as libgpushim.so (--wrap=gs_fence_order).
 */
#include "core/gpu/fence.h"

bool __wrap_gs_fence_order(const struct gs_fence *fence, CUstream stream);

bool __wrap_gs_fence_order(const struct gs_fence *fence, CUstream stream)
{
    return true;
}
