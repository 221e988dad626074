/*
 * A library in which no stream ever waits for the one that all work went to first, to prove that
 * the program single sees it: linked from the same objects as libgpushim.so
 * (--wrap=gs_fence_order).
 */
#include "core/gpu/fence.h"

bool __wrap_gs_fence_order(const struct gs_fence *fence, CUstream stream);

bool __wrap_gs_fence_order(const struct gs_fence *fence, CUstream stream)
{
    return true;
}
