/*
 * cuMemAlloc, cuMemAllocPitch, cuMemFree and cuMemGetInfo: device memory in no stream's order.
 */
#include "hook.h"

GS_HOOK CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    gs_state_enter();
    return gs_real.cuMemAlloc_v2(dptr, bytesize);
}

GS_HOOK CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                            size_t Height, unsigned int ElementSizeBytes)
{
    gs_state_enter();
    return gs_real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
}

GS_HOOK CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr)
{
    gs_state_enter();
    return gs_real.cuMemFree_v2(dptr);
}

GS_HOOK CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    gs_state_enter();
    return gs_real.cuMemGetInfo_v2(free, total);
}
