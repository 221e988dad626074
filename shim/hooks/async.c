/*
 * Stream-ordered memory: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync. A call on a
 * stream that captures is the driver's: it becomes a node of the graph.
 */
#include "shim/registration/callbacks.h"
#include "hook.h"
#include "shim/lookup/patchable.h"
#include "shim/registration/pinning.h"
#include "way.h"
#include "record.h"
#include "shim/result.h"
#include "room.h"
#include "shim/start.h"
#include "submit.h"

GS_PATCHABLE(cuMemAllocAsync);
GS_PATCHABLE(cuMemAllocAsync_ptsz);
GS_PATCHABLE(cuMemAllocFromPoolAsync);
GS_PATCHABLE(cuMemAllocFromPoolAsync_ptsz);
GS_PATCHABLE(cuMemFreeAsync);
GS_PATCHABLE(cuMemFreeAsync_ptsz);

/* GS_OK: *dptr is set. GS_NO_MEMORY: core has found the device full, and waited for what may be
 * waited for. `pool` NULL: the device's current one. */
static gs_status allocate(bool entered, CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                          CUstream stream)
{
    CUdeviceptr address;
    gs_status status;

    if (!entered || !dptr || bytesize == 0)
        return GS_NOT_OURS;
    GS_KEEP_ERRNO;
    if (gs_captures(stream)) {
        gs_core_graph_node(gs_core, bytesize);
        return GS_NOT_OURS;
    }
    status = gs_core_alloc_async(gs_core, bytesize, pool, stream, &address);
    if (status != GS_OK)
        return status;
    gs_tell_allocated(address, bytesize);
    *dptr = address;
    return GS_OK;
}

#define GS_MAKES_ALLOCATES_ASYNC GS_TRACED(0)
#define GS_MAKE_ALLOCATES_ASYNC(symbol, order, async, real)           \
    gs_status status = allocate(gs_entered, ret, bytes, NULL, order); \
                                                                      \
    return status == GS_OK ? CUDA_SUCCESS : GS_WITH_ROOM_AFTER(status, bytes, real);
#define GS_RECORD_ALLOCATES_ASYNC(order) \
    gs_record_alloc(&recorded, GS_TRACE_ALLOC_ASYNC, result, ret, bytes, order);

#define GS_MAKES_ALLOCATES_FROM GS_TRACED(0)
#define GS_MAKE_ALLOCATES_FROM(symbol, order, async, real)                                 \
    gs_status status = pool ? allocate(gs_entered, ret, bytes, pool, order) : GS_NOT_OURS; \
                                                                                           \
    if (status == GS_OK)                                                                   \
        return CUDA_SUCCESS;                                                               \
    return GS_WITH_ROOM_AFTER(status, bytes, real);
#define GS_RECORD_ALLOCATES_FROM(order) GS_RECORD_ALLOCATES_ASYNC(order)

/* Whether the driver is to be asked, and no more is to be done: the way of memory that is not ours,
 * from which the hooks leave by a jump. */
static inline bool is_the_drivers(CUdeviceptr dptr)
{
    return gs_foreign(dptr) && !gs_pin_is_any();
}

/* `order` is the stream that `stream` means to `real`. What is kept over the driver's memory goes
 * before that frees it. */
__attribute__((noinline)) static CUresult release(__typeof__(&cuMemFreeAsync) const *real,
                                                  CUdeviceptr dptr, CUstream stream, CUstream order)
{
    gs_status status;

    if (!gs_state_enter())
        return (*real)(dptr, stream);
    if (!gs_ours(dptr)) {
        gs_pin_foreign_going(dptr);
        return (*real)(dptr, stream);
    }
    GS_KEEP_ERRNO;
    if (gs_captures(order))
        return (*real)(dptr, stream);
    gs_tell_freeing(dptr);
    status = gs_core_free_async(gs_core, dptr, order);
    if (status == (gs_status)CUDA_ERROR_INVALID_CONTEXT)
        return (*real)(dptr, stream); /* it knows whether there was one */
    if (status != GS_NOT_OURS)
        return gs_result(status);
    gs_pin_foreign_going(dptr);
    return (*real)(dptr, stream);
}

#define GS_MAKES_FREES_ASYNC GS_TRACED(ptr)
#define GS_MAKE_FREES_ASYNC(symbol, order, async, real) \
    return is_the_drivers(ptr) ? real : release(&gs_real.symbol, ptr, stream, order);
#define GS_RECORD_FREES_ASYNC(order) \
    gs_record_free(&recorded, GS_TRACE_FREE_ASYNC, result, ptr, order);

#include "made.h"

GS_HOOK CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    return GS_NOTED(gs_real.cuDeviceSetMemPool(dev, pool), gs_core_mempool_set(gs_core, dev, pool));
}

GS_HOOK CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                         CUmemoryPool pool)
{
    return GS_NOTED(gs_real.cuMemSetMemPool(location, type, pool),
                    if (location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
                        type == CU_MEM_ALLOCATION_TYPE_PINNED)
                        gs_core_mempool_set(gs_core, location->id, pool));
}

/* Its handle may be a new one's at once. */
GS_HOOK CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    GS_AT_GATE(cuMemPoolDestroy);
    const CUdevice device = gs_state_enter() ? gs_core_mempool_going(gs_core, pool) : -1;
    const CUresult result = gs_real.cuMemPoolDestroy(pool);

    if (result != CUDA_SUCCESS)
        gs_core_mempool_set(gs_core, device, pool);
    return result;
}
