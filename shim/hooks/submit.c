/*
 * Work that needs nothing of the hooks but to be told of: the forms of a launch that CUDA 4 and 9
 * left behind, values written and waited for in a stream, decompression; and
 * what touches no memory, but may stop a stream.
 */
#include "hook.h"
#include "shim/start.h"
#include "submit.h"

GS_HOOK CUresult CUDAAPI cuLaunch(CUfunction f)
{
    gs_submits(NULL);
    return gs_real.cuLaunch(f);
}

GS_HOOK CUresult CUDAAPI cuLaunchGrid(CUfunction f, int grid_width, int grid_height)
{
    gs_submits(NULL);
    return gs_real.cuLaunchGrid(f, grid_width, grid_height);
}

GS_HOOK CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height,
                                           CUstream hStream)
{
    gs_submits(hStream);
    return gs_real.cuLaunchGridAsync(f, grid_width, grid_height, hStream);
}

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launchParamsList,
                                                              unsigned int numDevices,
                                                              unsigned int flags)
{
    gs_state_enter();
    for (unsigned int i = 0; launchParamsList && i < numDevices; i++)
        gs_submits(launchParamsList[i].hStream);
    return gs_real.cuLaunchCooperativeKernelMultiDevice(launchParamsList, numDevices, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                              unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWriteValue32(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue32_ptsz(CUstream stream, CUdeviceptr addr,
                                                   cuuint32_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWriteValue32_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr,
                                                 cuuint32_t value, unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWriteValue32_v2(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue32_v2_ptsz(CUstream stream, CUdeviceptr addr,
                                                      cuuint32_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWriteValue32_v2_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                              unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWriteValue64(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue64_ptsz(CUstream stream, CUdeviceptr addr,
                                                   cuuint64_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWriteValue64_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr,
                                                 cuuint64_t value, unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWriteValue64_v2(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWriteValue64_v2_ptsz(CUstream stream, CUdeviceptr addr,
                                                      cuuint64_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWriteValue64_v2_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                             unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWaitValue32(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue32_ptsz(CUstream stream, CUdeviceptr addr,
                                                  cuuint32_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWaitValue32_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                                unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWaitValue32_v2(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue32_v2_ptsz(CUstream stream, CUdeviceptr addr,
                                                     cuuint32_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWaitValue32_v2_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                             unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWaitValue64(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue64_ptsz(CUstream stream, CUdeviceptr addr,
                                                  cuuint64_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWaitValue64_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                                unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamWaitValue64_v2(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitValue64_v2_ptsz(CUstream stream, CUdeviceptr addr,
                                                     cuuint64_t value, unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamWaitValue64_v2_ptsz(stream, addr, value, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int count,
                                            CUstreamBatchMemOpParams *paramArray,
                                            unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamBatchMemOp(stream, count, paramArray, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamBatchMemOp_ptsz(CUstream stream, unsigned int count,
                                                 CUstreamBatchMemOpParams *paramArray,
                                                 unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamBatchMemOp_ptsz(stream, count, paramArray, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamBatchMemOp_v2(CUstream stream, unsigned int count,
                                               CUstreamBatchMemOpParams *paramArray,
                                               unsigned int flags)
{
    gs_submits(stream);
    return gs_real.cuStreamBatchMemOp_v2(stream, count, paramArray, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamBatchMemOp_v2_ptsz(CUstream stream, unsigned int count,
                                                    CUstreamBatchMemOpParams *paramArray,
                                                    unsigned int flags)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuStreamBatchMemOp_v2_ptsz(stream, count, paramArray, flags);
}

GS_HOOK CUresult CUDAAPI cuMemBatchDecompressAsync(CUmemDecompressParams *paramsArray, size_t count,
                                                   unsigned int flags, size_t *errorIndex,
                                                   CUstream stream)
{
    gs_submits(stream);
    return gs_real.cuMemBatchDecompressAsync(paramsArray, count, flags, errorIndex, stream);
}

GS_HOOK CUresult CUDAAPI cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams *paramsArray,
                                                        size_t count, unsigned int flags,
                                                        size_t *errorIndex, CUstream stream)
{
    gs_submits(gs_per_thread(stream));
    return gs_real.cuMemBatchDecompressAsync_ptsz(paramsArray, count, flags, errorIndex, stream);
}

/* ---- What may stop a stream -------------------------------------------------------------- */

GS_HOOK CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    gs_stalls(hStream);
    return gs_real.cuLaunchHostFunc(hStream, fn, userData);
}

GS_HOOK CUresult CUDAAPI cuLaunchHostFunc_ptsz(CUstream hStream, CUhostFn fn, void *userData)
{
    gs_stalls(gs_per_thread(hStream));
    return gs_real.cuLaunchHostFunc_ptsz(hStream, fn, userData);
}

GS_HOOK CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void *userData,
                                             unsigned int syncMode)
{
    gs_stalls(hStream);
    return gs_real.cuLaunchHostFunc_v2(hStream, fn, userData, syncMode);
}

GS_HOOK CUresult CUDAAPI cuLaunchHostFunc_v2_ptsz(CUstream hStream, CUhostFn fn, void *userData,
                                                  unsigned int syncMode)
{
    gs_stalls(gs_per_thread(hStream));
    return gs_real.cuLaunchHostFunc_v2_ptsz(hStream, fn, userData, syncMode);
}

GS_HOOK CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback,
                                             void *userData, unsigned int flags)
{
    gs_stalls(hStream);
    return gs_real.cuStreamAddCallback(hStream, callback, userData, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamAddCallback_ptsz(CUstream hStream, CUstreamCallback callback,
                                                  void *userData, unsigned int flags)
{
    gs_stalls(gs_per_thread(hStream));
    return gs_real.cuStreamAddCallback_ptsz(hStream, callback, userData, flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags)
{
    gs_stalls(hStream);
    return gs_real.cuStreamWaitEvent(hStream, hEvent, Flags);
}

GS_HOOK CUresult CUDAAPI cuStreamWaitEvent_ptsz(CUstream hStream, CUevent hEvent,
                                                unsigned int Flags)
{
    gs_stalls(gs_per_thread(hStream));
    return gs_real.cuStreamWaitEvent_ptsz(hStream, hEvent, Flags);
}

GS_HOOK CUresult CUDAAPI cuWaitExternalSemaphoresAsync(
    const CUexternalSemaphore *extSemArray,
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems,
    CUstream stream)
{
    gs_stalls(stream);
    return gs_real.cuWaitExternalSemaphoresAsync(extSemArray, paramsArray, numExtSems, stream);
}

GS_HOOK CUresult CUDAAPI cuWaitExternalSemaphoresAsync_ptsz(
    const CUexternalSemaphore *extSemArray,
    const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *paramsArray, unsigned int numExtSems,
    CUstream stream)
{
    gs_stalls(gs_per_thread(stream));
    return gs_real.cuWaitExternalSemaphoresAsync_ptsz(extSemArray, paramsArray, numExtSems, stream);
}

GS_HOOK CUresult CUDAAPI cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent)
{
    gs_stalls(NULL);
    return gs_real.cuCtxWaitEvent(hCtx, hEvent);
}

GS_HOOK CUresult CUDAAPI cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent)
{
    gs_stalls(NULL);
    return gs_real.cuGreenCtxWaitEvent(hCtx, hEvent);
}
