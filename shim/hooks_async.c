/*
 * cuMemAllocAsync, cuMemAllocFromPoolAsync and cuMemFreeAsync, memory in a stream's order, with the
 * calls that change which memory pool a device allocates from.
 */
#include "hook.h"

GS_HOOK CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuMemAllocAsync(dptr, bytesize, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuMemAllocAsync_ptsz(dptr, bytesize, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize,
                                                 CUmemoryPool pool, CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize,
                                                      CUmemoryPool pool, CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuMemFreeAsync(dptr, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuMemFreeAsync_ptsz(dptr, hStream);
}

GS_HOOK CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    gs_state_enter();
    return gs_real.cuDeviceSetMemPool(dev, pool);
}

GS_HOOK CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                         CUmemoryPool pool)
{
    gs_state_enter();
    return gs_real.cuMemSetMemPool(location, type, pool);
}
