/*
 * What a program asks about a pointer.
 */
#include "hook.h"

GS_HOOK CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    gs_state_enter();
    return gs_real.cuMemGetAddressRange_v2(pbase, psize, dptr);
}

GS_HOOK CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
                                               CUdeviceptr ptr)
{
    gs_state_enter();
    return gs_real.cuPointerGetAttribute(data, attribute, ptr);
}

GS_HOOK CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes,
                                                CUpointer_attribute *attributes, void **data,
                                                CUdeviceptr ptr)
{
    gs_state_enter();
    return gs_real.cuPointerGetAttributes(numAttributes, attributes, data, ptr);
}

GS_HOOK CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                     void *addr)
{
    gs_state_enter();
    return gs_real.cuMemRetainAllocationHandle(handle, addr);
}
