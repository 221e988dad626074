/*
 * The devices' default memory pools: the driver acts on its own part first, and where it agrees
 * ours follows (core/api/core.h). A program's own pools are passed on.
 */
#include "hook.h"
#include "shim/result.h"
#include "shim/start.h"

#include "core/api/core.h"
#include "core/api/peer_access.h"

/* The driver's result; a default pool's `device` is told where the call went well. */
#define FOLLOWED(call, pool, told)                                                \
    GS_NOTED(call, const CUdevice device = gs_core_mempool_device(gs_core, pool); \
             if (device >= 0) told)

GS_HOOK CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep)
{
    GS_AT_GATE(cuMemPoolTrimTo);
    return FOLLOWED(gs_real.cuMemPoolTrimTo(pool, minBytesToKeep), pool,
                    gs_core_mempool_trim(gs_core, device, minBytesToKeep));
}

static void add_ours(CUdevice device, CUmemPool_attribute attr, cuuint64_t *value)
{
    struct gs_mempool_figures figures;

    gs_core_mempool_figures(gs_core, device, &figures);
    if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
        *value += figures.reserved;
    else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        *value += figures.reserved_high;
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
        *value += figures.used;
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        *value += figures.used_high;
}

GS_HOOK CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr,
                                               void *value)
{
    return FOLLOWED(gs_real.cuMemPoolGetAttribute(pool, attr, value), pool,
                    add_ours(device, attr, value));
}

/* A release threshold says how much may stay cached: what is above it goes now, and what is freed
 * later stays free for the program's next allocations and counts as free. */
static void follow(CUdevice device, CUmemPool_attribute attr, const cuuint64_t *value)
{
    if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
        gs_core_mempool_trim(gs_core, device, *value);
    else if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)
        gs_core_mempool_reset_high(gs_core, device, true);
    else if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        gs_core_mempool_reset_high(gs_core, device, false);
}

GS_HOOK CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr,
                                               void *value)
{
    return FOLLOWED(gs_real.cuMemPoolSetAttribute(pool, attr, value), pool,
                    follow(device, attr, value));
}

GS_HOOK CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *map,
                                            size_t count)
{
    GS_AT_GATE(cuMemPoolSetAccess);
    const bool ours = gs_state_enter();
    CUresult result = gs_real.cuMemPoolSetAccess(pool, map, count);
    GS_KEEP_CALLER;
    const CUdevice device =
        ours && result == CUDA_SUCCESS ? gs_core_mempool_device(gs_core, pool) : -1;

    for (size_t i = 0; device >= 0 && i < count; i++) {
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
