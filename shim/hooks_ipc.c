/*
 * CUDA IPC of memory: handles given out, opened and closed.
 */
#include "hook.h"

GS_HOOK CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    gs_state_enter();
    return gs_real.cuIpcGetMemHandle(pHandle, dptr);
}

GS_HOOK CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                            unsigned int Flags)
{
    gs_state_enter();
    return gs_real.cuIpcOpenMemHandle(pdptr, handle, Flags);
}

GS_HOOK CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                               unsigned int Flags)
{
    gs_state_enter();
    return gs_real.cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

GS_HOOK CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    gs_state_enter();
    return gs_real.cuIpcCloseMemHandle(dptr);
}
