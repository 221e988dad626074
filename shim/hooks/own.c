/*
 * The program's own virtual memory: its handles. Each call goes to the driver, and what comes of it
 * is noted (core/process/own.h; mappings: vmm.c). Memory of which it wants no descriptors is asked
 * for with them where the device can, so that it can be shared by CUDA IPC. The program cannot
 * tell: its properties are what it asked for, and an export is refused as the driver refuses it.
 */
#include "hook.h"
#include "room.h"
#include "shim/start.h"

#include <limits.h>

#include "core/process/own.h"

/* NULL: nothing is noted. */
static struct gs_own *own(void)
{
    return gs_state_enter() ? gs_core_own(gs_core) : NULL;
}

/* The device that such memory is of; none for memory of the host. */
static CUdevice device_of(const CUmemAllocationProp *prop)
{
    return prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : INT_MAX;
}

/* With descriptors if that goes; else as it was asked for. */
static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUmemGenericAllocationHandle made;
    CUmemAllocationProp more;
    CUresult result;

    if (!own())
        return gs_real.cuMemCreate(handle, size, prop, flags);
    GS_KEEP_CALLER;
    if (gs_core_own_adds(gs_core, prop, &more) &&
        gs_real.cuMemCreate(handle, size, &more, flags) == CUDA_SUCCESS) {
        if ((made = gs_core_own_made(gs_core, *handle, size, prop, true)))
            return *handle = made, CUDA_SUCCESS;
        gs_real.cuMemRelease(*handle);
    }
    result = gs_real.cuMemCreate(handle, size, prop, flags);
    if (result == CUDA_SUCCESS)
        *handle = gs_core_own_made(gs_core, *handle, size, prop, false);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    GS_AT_GATE(cuMemCreate);
    gs_state_enter();
    return GS_WITH_ROOM(device_of(prop), size, create(handle, size, prop, flags));
}

GS_HOOK CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    GS_AT_GATE(cuMemRelease);
    if (!own() || !handle)
        return gs_real.cuMemRelease(handle);
    GS_KEEP_CALLER;
    handle = gs_own_releasing(own(), handle);
    return handle ? gs_real.cuMemRelease(handle) : CUDA_SUCCESS;
}

GS_HOOK CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                     void *addr)
{
    GS_AT_GATE(cuMemRetainAllocationHandle);
    /* Success would make UCX and NCCL export the piece with the offset of a block. */
    if (gs_state_enter() && gs_ours((CUdeviceptr)addr))
        return CUDA_ERROR_INVALID_VALUE;
    return GS_NOTED(gs_real.cuMemRetainAllocationHandle(handle, addr),
                    if (own()) * handle = gs_own_retained(own(), *handle, (CUdeviceptr)addr));
}

GS_HOOK CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                        void *osHandle,
                                                        CUmemAllocationHandleType shHandleType)
{
    GS_AT_GATE(cuMemImportFromShareableHandle);
    return GS_NOTED(gs_real.cuMemImportFromShareableHandle(handle, osHandle, shHandleType),
                    if (own()) * handle = gs_core_own_made(gs_core, *handle, 0, NULL, false));
}

/* Whether the handle has descriptors that the program did not ask for. */
static bool is_added(CUmemGenericAllocationHandle handle)
{
    if (!own())
        return false;
    GS_KEEP_CALLER;
    return gs_own_is_added(own(), handle);
}

GS_HOOK CUresult CUDAAPI cuMemExportToShareableHandle(void *shareableHandle,
                                                      CUmemGenericAllocationHandle handle,
                                                      CUmemAllocationHandleType handleType,
                                                      unsigned long long flags)
{
    GS_AT_GATE(cuMemExportToShareableHandle);
    if (gs_state_enter() && handleType == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        is_added(handle))
        return CUDA_ERROR_INVALID_VALUE;
    return GS_NOTED(gs_real.cuMemExportToShareableHandle(shareableHandle,
                                                         gs_own_real(own(), handle), handleType,
                                                         flags),
                    if (own()) gs_own_used(own(), handle, GS_OWN_LENT));
}

GS_HOOK CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                                CUmemGenericAllocationHandle handle)
{
    const bool moved = gs_own_real(own(), handle) != handle; /* first: it finds the driver */
    CUresult result = moved ? CUDA_ERROR_INVALID_VALUE
                            : gs_real.cuMemGetAllocationPropertiesFromHandle(prop, handle);

    GS_KEEP_CALLER;
    if (result == CUDA_ERROR_INVALID_VALUE && prop && own() &&
        gs_own_properties(own(), handle, prop))
        result = CUDA_SUCCESS;
    if (result == CUDA_SUCCESS && is_added(handle))
        prop->requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment,
                                             CUdeviceptr addr, unsigned long long flags)
{
    GS_AT_GATE(cuMemAddressReserve);
    return GS_NOTED(gs_real.cuMemAddressReserve(ptr, size, alignment, addr, flags),
                    if (own()) gs_own_reserved(own(), *ptr, size));
}
