/*
 * cuMemAlloc, cuMemAllocPitch, cuMemFree and cuMemGetInfo: device memory in no stream's order.
 *
 * Whatever keeps the arena from giving memory (no context, a device that cannot, memory that is
 * out), the driver is asked next: it may still have some, and otherwise the error is its own.
 */
#include "shim/registration/callbacks.h"
#include "bound.h"
#include "hook.h"
#include "room.h"
#include "shim/lookup/patchable.h"
#include "record.h"
#include "shim/registration/pinning.h"
#include "shim/result.h"
#include "shim/start.h"

#include "core/process/sleep.h"

/* What the driver aligns the rows of a pitched allocation to (measured on an H200: 1000 bytes wide
 * give a pitch of 1024). */
#define PITCH_ALIGNMENT 512u

#define INFO_TRIES 3 /* at two figures that belong together */

GS_PATCHABLE(cuMemAlloc_v2);
GS_PATCHABLE(cuMemAllocPitch_v2);
GS_PATCHABLE(cuMemFree_v2);

GS_DOES CUresult allocate(bool entered, CUdeviceptr *dptr, size_t bytesize)
{
    CUdeviceptr address;
    gs_status status;

    if (!entered || !dptr || bytesize == 0)
        return gs_real.cuMemAlloc_v2(dptr, bytesize);
    GS_KEEP_ERRNO;
    status = gs_core_alloc(gs_core, bytesize, &address);
    if (status != GS_OK)
        return GS_UNLESS_BOUNDED(status, bytesize, gs_real.cuMemAlloc_v2(dptr, bytesize));
    gs_tell_allocated(address, bytesize);
    *dptr = address;
    return CUDA_SUCCESS;
}

GS_DOES CUresult allocate_pitch(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes,
                                size_t Height, unsigned int ElementSizeBytes)
{
    bool element_valid = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    CUdeviceptr address;
    size_t pitch, bytes;
    gs_status status;

    if (!gs_state_enter() || !dptr || !pPitch || !WidthInBytes || !Height || !element_valid ||
        __builtin_add_overflow(WidthInBytes, PITCH_ALIGNMENT - 1, &pitch) ||
        __builtin_mul_overflow(pitch & ~(size_t)(PITCH_ALIGNMENT - 1), Height, &bytes))
        return gs_real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    GS_KEEP_ERRNO;
    status = gs_core_alloc(gs_core, bytes, &address);
    if (status != GS_OK)
        return GS_UNLESS_BOUNDED(status, bytes,
                                 gs_real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height,
                                                            ElementSizeBytes));
    gs_tell_allocated(address, bytes);
    *dptr = address;
    *pPitch = pitch & ~(size_t)(PITCH_ALIGNMENT - 1);
    return CUDA_SUCCESS;
}

GS_DOES CUresult free_block(bool entered, CUdeviceptr dptr)
{
    gs_status status;

    if (!entered)
        return gs_real.cuMemFree_v2(dptr);
    if (!gs_ours(dptr)) {
        gs_pin_foreign_going(dptr);
        return gs_real.cuMemFree_v2(dptr);
    }
    GS_KEEP_ERRNO;
    gs_tell_freeing(dptr);
    status = gs_core_free(gs_core, dptr);
    if (status != GS_NOT_OURS)
        return gs_result(status);
    gs_pin_foreign_going(dptr);
    return gs_real.cuMemFree_v2(dptr);
}

#define GS_MAKES_ALLOCATES                            GS_TRACED(0)
#define GS_MAKE_ALLOCATES(symbol, order, async, real) return allocate(gs_entered, ret, bytes);
#define GS_RECORD_ALLOCATES(order) \
    gs_record_alloc(&recorded, GS_TRACE_ALLOC, result, ret, bytes, NULL);

#define GS_MAKES_ALLOCATES_ROWS GS_TRACED(0)
#define GS_MAKE_ALLOCATES_ROWS(symbol, order, async, real) \
    return allocate_pitch(ret, pitch, width, height, element);
#define GS_RECORD_ALLOCATES_ROWS(order)                     \
    gs_record_alloc(&recorded, GS_TRACE_ALLOC, result, ret, \
                    (result == CUDA_SUCCESS ? *pitch : width) * height, NULL);

#define GS_MAKES_FREES                            GS_TRACED(ptr)
#define GS_MAKE_FREES(symbol, order, async, real) return free_block(gs_entered, ptr);

#define GS_RECORD_FREES(order) gs_record_free(&recorded, GS_TRACE_FREE, result, ptr, NULL);

#include "made.h"

GS_HOOK CUresult CUDAAPI cuMemGetInfo_v2(size_t *free, size_t *total)
{
    size_t free_bytes, total_bytes, cached, away;
    uint64_t begun;
    int tries = 0;
    CUresult result;

    if (!gs_state_enter())
        return gs_real.cuMemGetInfo_v2(free, total);
    GS_KEEP_ERRNO;
    do {
        begun = gs_core_begin_count(gs_core);
        result = gs_real.cuMemGetInfo_v2(&free_bytes, &total_bytes);
        if (result != CUDA_SUCCESS)
            return result;
        /* What the program has freed is free to it, though the arena still holds it. What goes from
         * there to the driver in between is in neither figure: both are taken again. */
        cached = gs_core_cached(gs_core);
        away = gs_core_away_here(gs_core); /* the program has it */
    } while (!gs_core_count_is_right(gs_core, begun) && ++tries < INFO_TRIES);
    free_bytes -= away < free_bytes ? away : free_bytes;
    free_bytes = cached < total_bytes - free_bytes ? free_bytes + cached : total_bytes;
    gs_bound_info(&free_bytes, &total_bytes);
    if (free) /* the driver takes either as NULL */
        *free = free_bytes;
    if (total)
        *total = total_bytes;
    return CUDA_SUCCESS;
}
