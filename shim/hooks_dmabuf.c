/* dma-bufs of device memory: what each stands for is noted, for when it is registered. */
#include "hook.h"
#include "pinning.h"

GS_HOOK CUresult CUDAAPI cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                                       CUmemRangeHandleType handleType,
                                                       unsigned long long flags)
{
    bool ours = gs_state_enter();
    CUresult result =
        gs_real.cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);

    if (!ours || result != CUDA_SUCCESS || handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        return result;
    GS_KEEP_ERRNO;
    gs_pin_dmabuf_note(*(const int *)handle, dptr, size);
    return result;
}
