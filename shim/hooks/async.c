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

/* Whether the call would be recorded into a graph. A stream whose state cannot be told is left to
 * the driver as well. */
static bool captures(CUstream stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    return gs_core_capturing(gs_core) &&
           (gs_core_stream_status(gs_core, stream, &status) != CUDA_SUCCESS ||
            status != CU_STREAM_CAPTURE_STATUS_NONE);
}

/* GS_OK: *dptr is set. GS_NO_MEMORY: core has found the device full, and waited for what may be
 * waited for. `pool` NULL: the device's current one. */
static gs_status allocate(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
    CUdeviceptr address;
    gs_status status;

    if (!gs_state_enter() || !dptr || bytesize == 0)
        return GS_NOT_OURS;
    GS_KEEP_ERRNO;
    if (captures(stream)) {
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

/* `order` is the stream that `stream` means to `real`. */
GS_DOES CUresult allocate_ordered(__typeof__(&cuMemAllocAsync) const *real, CUdeviceptr *dptr,
                                  size_t bytesize, CUstream stream, CUstream order)
{
    gs_status status = allocate(dptr, bytesize, NULL, order);

    if (status == GS_OK)
        return CUDA_SUCCESS;
    return GS_WITH_ROOM_AFTER(status, bytesize, (*real)(dptr, bytesize, stream));
}

GS_RECORDS CUresult recorded_allocate(__typeof__(&cuMemAllocAsync) const *real, CUdeviceptr *dptr,
                                      size_t bytesize, CUstream stream, CUstream order,
                                      void *caller)
{
    struct gs_recorded recorded;
    CUresult result;

    gs_record_begin(&recorded, caller, 0);
    result = allocate_ordered(real, dptr, bytesize, stream, order);
    gs_record_alloc(&recorded, GS_TRACE_ALLOC_ASYNC, result, dptr, bytesize, order);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    if (gs_tracing())
        return recorded_allocate(&gs_real.cuMemAllocAsync, dptr, bytesize, hStream, hStream,
                                 GS_CALLER);
    return allocate_ordered(&gs_real.cuMemAllocAsync, dptr, bytesize, hStream, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    CUstream order = gs_per_thread(hStream);

    if (gs_tracing())
        return recorded_allocate(&gs_real.cuMemAllocAsync_ptsz, dptr, bytesize, hStream, order,
                                 GS_CALLER);
    return allocate_ordered(&gs_real.cuMemAllocAsync_ptsz, dptr, bytesize, hStream, order);
}

GS_DOES CUresult allocate_from(__typeof__(&cuMemAllocFromPoolAsync) const *real, CUdeviceptr *dptr,
                               size_t bytesize, CUmemoryPool pool, CUstream stream, CUstream order)
{
    gs_status status = pool ? allocate(dptr, bytesize, pool, order) : GS_NOT_OURS;

    if (status == GS_OK)
        return CUDA_SUCCESS;
    gs_state_enter();
    return GS_WITH_ROOM_AFTER(status, bytesize, (*real)(dptr, bytesize, pool, stream));
}

GS_RECORDS CUresult recorded_from(__typeof__(&cuMemAllocFromPoolAsync) const *real,
                                  CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool,
                                  CUstream stream, CUstream order, void *caller)
{
    struct gs_recorded recorded;
    CUresult result;

    gs_record_begin(&recorded, caller, 0);
    result = allocate_from(real, dptr, bytesize, pool, stream, order);
    gs_record_alloc(&recorded, GS_TRACE_ALLOC_ASYNC, result, dptr, bytesize, order);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize,
                                                 CUmemoryPool pool, CUstream hStream)
{
    if (gs_tracing())
        return recorded_from(&gs_real.cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream,
                             hStream, GS_CALLER);
    return allocate_from(&gs_real.cuMemAllocFromPoolAsync, dptr, bytesize, pool, hStream, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize,
                                                      CUmemoryPool pool, CUstream hStream)
{
    CUstream order = gs_per_thread(hStream);

    if (gs_tracing())
        return recorded_from(&gs_real.cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, pool, hStream,
                             order, GS_CALLER);
    return allocate_from(&gs_real.cuMemAllocFromPoolAsync_ptsz, dptr, bytesize, pool, hStream,
                         order);
}

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
    if (captures(order))
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

GS_RECORDS CUresult recorded_release(__typeof__(&cuMemFreeAsync) const *real, CUdeviceptr dptr,
                                     CUstream stream, CUstream order, void *caller)
{
    struct gs_recorded recorded;
    CUresult result;

    gs_record_begin(&recorded, caller, dptr);
    result = release(real, dptr, stream, order);
    gs_record_free(&recorded, GS_TRACE_FREE_ASYNC, result, dptr, order);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    if (gs_tracing())
        return recorded_release(&gs_real.cuMemFreeAsync, dptr, hStream, hStream, GS_CALLER);
    if (is_the_drivers(dptr))
        return gs_real.cuMemFreeAsync(dptr, hStream);
    return release(&gs_real.cuMemFreeAsync, dptr, hStream, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream)
{
    if (gs_tracing())
        return recorded_release(&gs_real.cuMemFreeAsync_ptsz, dptr, hStream, gs_per_thread(hStream),
                                GS_CALLER);
    if (is_the_drivers(dptr))
        return gs_real.cuMemFreeAsync_ptsz(dptr, hStream);
    return release(&gs_real.cuMemFreeAsync_ptsz, dptr, hStream, gs_per_thread(hStream));
}

GS_HOOK CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    bool ours = gs_state_enter();
    CUresult result = gs_real.cuDeviceSetMemPool(dev, pool);

    if (ours && result == CUDA_SUCCESS)
        gs_core_mempool_set(gs_core, dev, pool);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                                         CUmemoryPool pool)
{
    bool ours = gs_state_enter();
    CUresult result = gs_real.cuMemSetMemPool(location, type, pool);

    if (ours && result == CUDA_SUCCESS && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
        type == CU_MEM_ALLOCATION_TYPE_PINNED)
        gs_core_mempool_set(gs_core, location->id, pool);
    return result;
}

/* Its handle may be a new one's at once. */
GS_HOOK CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
    uint64_t devices;
    CUresult result;

    if (!gs_state_enter())
        return gs_real.cuMemPoolDestroy(pool);
    devices = gs_core_mempool_going(gs_core, pool);
    result = gs_real.cuMemPoolDestroy(pool);
    if (result != CUDA_SUCCESS)
        gs_core_mempool_stays(gs_core, pool, devices);
    return result;
}
