/*
 * The devices' default memory pools: the driver acts on its own part first, and where it agrees
 * ours follows (core/api/core.h). A program's own pools are passed on.
 */
#include "hook.h"
#include "shim/result.h"
#include "shim/start.h"

#include "core/api/core.h"
#include "core/api/peer_access.h"

/* The default pool's device, where a call of the driver about it went well; else -1. */
static CUdevice follow(bool ours, CUmemoryPool pool, CUresult result)
{
    return ours && result == CUDA_SUCCESS ? gs_core_mempool_device(gs_core, pool) : -1;
}

GS_HOOK CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    GS_AT_GATE(cuMemPoolTrimTo);
    bool ours = gs_state_enter();
    CUresult result = gs_real.cuMemPoolTrimTo(pool, minBytesToKeep);
    GS_KEEP_CALLER;
    CUdevice device = follow(ours, pool, result);

    if (device >= 0)
        gs_core_mempool_trim(gs_core, device, minBytesToKeep);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr,
                                               void *value)
{
    bool ours = gs_state_enter();
    CUresult result = gs_real.cuMemPoolGetAttribute(pool, attr, value);
    struct gs_mempool_figures figures;
    CUdevice device;

    if (attr < CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT || attr > CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return result;
    GS_KEEP_CALLER;
    device = follow(ours, pool, result);
    if (device < 0)
        return result;
    gs_core_mempool_figures(gs_core, device, &figures);
    if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        *(cuuint64_t *)value += figures.reserved;
    else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        *(cuuint64_t *)value += figures.reserved_high;
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        *(cuuint64_t *)value += figures.used;
    else
        *(cuuint64_t *)value += figures.used_high;
    return result;
}

/* A release threshold says how much may stay cached: what is above it goes now, and what is freed
 * later stays free for the program's next allocations and counts as free. */
GS_HOOK CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr,
                                               void *value)
{
    bool ours = gs_state_enter();
    CUresult result = gs_real.cuMemPoolSetAttribute(pool, attr, value);
    GS_KEEP_CALLER;
    CUdevice device = follow(ours, pool, result);

    if (device < 0)
        return result;
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        gs_core_mempool_trim(gs_core, device, *(const cuuint64_t *)value);
    else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        gs_core_mempool_reset_high(gs_core, device, true);
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        gs_core_mempool_reset_high(gs_core, device, false);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map,
                                            size_t count)
{
    GS_AT_GATE(cuMemPoolSetAccess);
    bool ours = gs_state_enter();
    CUresult result = gs_real.cuMemPoolSetAccess(pool, map, count);
    GS_KEEP_CALLER;
    CUdevice device = follow(ours, pool, result);

    if (device < 0)
        return result;
    for (size_t i = 0; i < count; i++) {
        CUmemAccessDesc none = {map[i].location, CU_MEM_ACCESS_FLAGS_PROT_NONE};
        gs_status status = GS_OK;

        if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && map[i].location.id != device &&
            map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
            status = gs_core_mempool_access(gs_core, device, map[i].location.id);
        if (status == GS_OK)
            continue;
        gs_real.cuMemPoolSetAccess(pool, &none, 1);
        result = gs_result(status);
    }
    return result;
}

/* Memory of a pool that cannot be exported, as a default pool cannot: INVALID_VALUE, measured. */
GS_HOOK CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData *shareData_out,
                                                CUdeviceptr ptr)
{
    GS_AT_GATE(cuMemPoolExportPointer);
    if (gs_state_enter() && gs_ours(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemPoolExportPointer(shareData_out, ptr);
}
