/*
 * The end of contexts and streams.
 */
#include "hook.h"

GS_HOOK CUresult CUDAAPI cuStreamDestroy(CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuStreamDestroy(hStream);
}

GS_HOOK CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream)
{
    gs_state_enter();
    return gs_real.cuStreamDestroy_v2(hStream);
}

GS_HOOK CUresult CUDAAPI cuCtxDestroy(CUcontext ctx)
{
    gs_state_enter();
    return gs_real.cuCtxDestroy(ctx);
}

GS_HOOK CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx)
{
    gs_state_enter();
    return gs_real.cuCtxDestroy_v2(ctx);
}

GS_HOOK CUresult CUDAAPI cuCtxDetach(CUcontext ctx)
{
    gs_state_enter();
    return gs_real.cuCtxDetach(ctx);
}

GS_HOOK CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev)
{
    gs_state_enter();
    return gs_real.cuDevicePrimaryCtxReset(dev);
}

GS_HOOK CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
    gs_state_enter();
    return gs_real.cuDevicePrimaryCtxReset_v2(dev);
}

GS_HOOK CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev)
{
    gs_state_enter();
    return gs_real.cuDevicePrimaryCtxRelease(dev);
}

GS_HOOK CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    gs_state_enter();
    return gs_real.cuDevicePrimaryCtxRelease_v2(dev);
}
