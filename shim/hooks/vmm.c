/*
 * Virtual memory management, where a program points it at memory of ours: the driver refuses these
 * calls for memory of cuMemAlloc, so they are refused here. The program's own mappings are passed
 * on, and noted (core/process/own.h). And what lets others than the program's own work come to
 * memory of ours.
 */
#include "hook.h"
#include "room.h"
#include "shim/registration/pinning.h"
#include "shim/start.h"

#include "core/process/own.h"
#include "core/api/peer_access.h"

/* What a range is exported in: the pages of the host, which cards map too. */
#define EXPORT_PAGE ((CUdeviceptr)4096)

/* NULL: nothing is noted. */
static struct gs_own *own(void)
{
    return gs_state_enter() ? gs_core_own(gs_core) : NULL;
}

static bool touches_ours(CUdeviceptr ptr, size_t size)
{
    return gs_state_enter() && gs_map_overlaps(gs_core_map(gs_core), ptr, size);
}

GS_HOOK CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    GS_AT_GATE(cuMemMap);
    if (touches_ours(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    return GS_NOTED(gs_real.cuMemMap(ptr, size, offset, gs_own_real(own(), handle), flags),
                    if (own()) gs_own_mapped(own(), ptr, size, offset, handle));
}

GS_HOOK CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    GS_AT_GATE(cuMemUnmap);
    struct gs_own_mapping *taken;
    CUresult result;

    if (touches_ours(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (gs_state_enter() && size > 0)
        gs_core_foreign_going(gs_core, ptr, size);
    if (!own())
        return gs_real.cuMemUnmap(ptr, size);
    GS_KEEP_CALLER;
    taken = gs_own_unmapping(own(), ptr, size);
    result = gs_real.cuMemUnmap(ptr, size);
    gs_own_unmapped(own(), taken, result == CUDA_SUCCESS);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    GS_AT_GATE(cuMemAddressFree);
    struct gs_own_range range;
    CUresult result;
    bool known;

    if (touches_ours(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (!own())
        return gs_real.cuMemAddressFree(ptr, size);
    GS_KEEP_CALLER;
    known = gs_own_unreserving(own(), ptr, &range);
    result = gs_real.cuMemAddressFree(ptr, size);
    if (known && result != CUDA_SUCCESS)
        gs_own_reserved(own(), range.base, range.size);
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
                                        size_t count)
{
    GS_AT_GATE(cuMemSetAccess);
    if (touches_ours(ptr, size))
        return CUDA_ERROR_INVALID_VALUE;
    return GS_NOTED(gs_real.cuMemSetAccess(ptr, size, desc, count),
                    if (own()) gs_own_access_set(own(), ptr, size, desc, count));
}

/* For memory of cuMemAlloc the driver answers that there is no access (measured on an H200). */
GS_HOOK CUresult CUDAAPI cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                                        CUdeviceptr ptr)
{
    GS_AT_GATE_ABOUT(cuMemGetAccess, ptr);
    struct gs_block_info info;
    CUresult result;

    if (!gs_state_enter() || !gs_ours(ptr))
        return gs_real.cuMemGetAccess(flags, location, ptr);
    GS_KEEP_CALLER;
    if (gs_core_find(gs_core, ptr, &info) != GS_OK)
        return CUDA_ERROR_INVALID_VALUE;
    result = gs_real.cuMemGetAccess(flags, location, ptr);
    if (result == CUDA_SUCCESS)
        *flags = 0;
    return result;
}

/* Others have it from now on. */
static void lent(CUdeviceptr base, size_t size, enum gs_own_use use)
{
    gs_core_lent(gs_core, base, size);
    if (own())
        gs_own_used_at(own(), base, size, use);
}

/* What a dma-buf stands for is noted, for when it is registered with a device. */
static CUresult export_range(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType type,
                             unsigned long long flags)
{
    CUresult result = gs_real.cuMemGetHandleForAddressRange(handle, dptr, size, type, flags);

    if (result == CUDA_SUCCESS && type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
        gs_pin_dmabuf_note(*(const int *)handle, dptr, size);
    if (result == CUDA_SUCCESS)
        lent(dptr, size, GS_OWN_LENT);
    return result;
}

/* A range of one block, rounded out to pages: a neighbour's memory is not given away with it. */
GS_HOOK CUresult CUDAAPI cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size,
                                                       CUmemRangeHandleType handleType,
                                                       unsigned long long flags)
{
    GS_AT_GATE(cuMemGetHandleForAddressRange);
    CUdeviceptr below = dptr & (EXPORT_PAGE - 1);
    struct gs_block_info info;
    CUdeviceptr last;

    if (!gs_state_enter())
        return gs_real.cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
    GS_KEEP_CALLER;
    if (!touches_ours(dptr, size))
        return export_range(handle, dptr, size, handleType, flags);
    gs_single_drain(gs_single, "memory is exported");
    /* The block may begin after the page does. */
    for (CUdeviceptr at = dptr - below; at < dptr - below + EXPORT_PAGE; at += 512)
        if (gs_core_find(gs_core, at, &info) == GS_OK &&
            !__builtin_add_overflow(dptr, size - 1, &last) &&
            last < ((info.base + info.size + EXPORT_PAGE - 1) & ~(EXPORT_PAGE - 1)))
            return export_range(handle, dptr, size, handleType, flags);
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- What goes to others ----------------------------------------------------------------- */

/* Memory of the device's pool may be bound by its address, as the driver's own may: a range of one
 * block. What it is bound to may be known to other processes. */
static bool may_bind(CUdeviceptr ptr, size_t size)
{
    struct gs_block_info info;

    if (!touches_ours(ptr, size))
        return true;
    GS_KEEP_ERRNO;
    if (gs_core_find(gs_core, ptr, &info) != GS_OK || !info.async ||
        size > info.size - (ptr - info.base))
        return false;
    gs_single_drain(gs_single, "memory is bound to an object of the driver's");
    return true;
}

#define GS_MAKES_BINDS GS_ALWAYS
#define GS_MAKE_BINDS(symbol, order, async, real)       \
    if (!may_bind((CUdeviceptr)address, (size_t)bytes)) \
        return CUDA_ERROR_INVALID_VALUE;                \
    return GS_NOTED(real, lent((CUdeviceptr)address, (size_t)bytes, GS_OWN_BOUND));

/* A handle of the program's own; by its number for the driver. */
#define GS_MAKES_BINDS_HANDLE GS_ALWAYS
#define GS_MAKE_BINDS_HANDLE(symbol, order, async, real) \
    const CUmemGenericAllocationHandle number = memory;  \
                                                         \
    memory = gs_own_real(own(), number);                 \
    return GS_NOTED(GS_MADE_WITH_ROOM(-1, real),         \
                    if (own()) gs_own_used(own(), number, GS_OWN_BOUND));

#include "made.h"

/* How large a plane is, the format of the frame says; that each begins in a live block is what is
 * looked at. The frame's consumer may be another API, or another process. */
static bool may_present(const struct gs_egl_frame *frame)
{
    bool any = false;

    if (!gs_state_enter() || frame->frame_type != GS_EGL_FRAME_TYPE_PITCH)
        return true;
    GS_KEEP_ERRNO;
    for (unsigned i = 0; i < frame->plane_count && i < GS_EGL_PLANES; i++) {
        const CUdeviceptr at = (CUdeviceptr)frame->plane[i];

        if (!gs_ours(at))
            continue;
        if (!gs_core_within(gs_core, (struct gs_access_range){at, 1}))
            return false;
        any = true;
    }
    if (any)
        gs_single_drain(gs_single, "a frame is presented");
    return true;
}

GS_HOOK CUresult CUDAAPI cuEGLStreamProducerPresentFrame(gs_egl_connection *conn,
                                                         struct gs_egl_frame eglframe,
                                                         CUstream *pStream)
{
    GS_AT_GATE(cuEGLStreamProducerPresentFrame);
    if (!may_present(&eglframe))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuEGLStreamProducerPresentFrame(conn, eglframe, pStream);
}
