/*
 * The memory that a device has, to a program that is bounded (bound.h); cuMemGetInfo_v2 is in memory.c.
 * The forms with 32 bits tell what fits.
 */
#include "bound.h"
#include "shim/start.h"

/* Whether there is something to be told differently. */
static bool enter(void)
{
    return gs_state_enter() && gs_bounded;
}

static size_t bounded_total(CUdevice device, size_t total)
{
    size_t free = 0;
    GS_KEEP_CALLER;

    gs_core_bound(gs_core, device, &free, &total);
    return total;
}

GS_HOOK CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    bool bounded = enter();
    CUresult result = gs_real.cuDeviceTotalMem_v2(bytes, dev);

    if (bounded && result == CUDA_SUCCESS)
        *bytes = bounded_total(dev, *bytes);
    return result;
}

GS_HOOK CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    bool bounded = enter();
    CUresult result = gs_real.cuDeviceTotalMem(bytes, dev);
    size_t total = 0;

    if (bounded && result == CUDA_SUCCESS &&
        cuDeviceTotalMem_v2(&total, dev) == CUDA_SUCCESS && total < *bytes)
        *bytes = (unsigned int)total;
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    bool bounded = enter();
    CUresult result = gs_real.cuMemGetInfo(free, total);
    size_t free_bytes, total_bytes;

    if (!bounded || result != CUDA_SUCCESS ||
        cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
        return result;
    if (free && free_bytes < *free)
        *free = (unsigned int)free_bytes;
    if (total && total_bytes < *total)
        *total = (unsigned int)total_bytes;
    return result;
}
