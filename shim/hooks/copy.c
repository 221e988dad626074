/*
 * Copies of device memory in one piece. A range that leaves its block is refused, as the driver
 * refuses one that leaves its allocation. Memory of another device is made reachable before the
 * driver looks at an asynchronous copy (core/api/peer_access.h). Other copies, and all where
 * devices cannot reach each other, go between the owning contexts, or, from and to the host,
 * through the owner's: the driver orders those with the work of both devices.
 */
#include "way.h"

/* ---- Where the way is not clear: the result of the copy ----------------------------------- */

static CUresult between_owners(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return gs_real.cuMemcpyPeer(dst, gs_core_copy_context(gs_core, dst), src,
                                gs_core_copy_context(gs_core, src), bytes);
}

__attribute__((noinline)) static CUresult around(enum gs_way way, CUdeviceptr dst, CUdeviceptr src,
                                                 size_t bytes, CUstream stream, bool async)
{
    CUresult result;

    if (way == GS_WAY_REFUSED)
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    if (gs_ours(dst) && gs_ours(src)) {
        if (!async)
            return between_owners(dst, src, bytes);
        return gs_real.cuMemcpyPeerAsync(dst, gs_core_copy_context(gs_core, dst), src,
                                         gs_core_copy_context(gs_core, src), bytes, stream);
    }
    result =
        GS_WAY_IN_OWNER(gs_ours(dst) ? dst : src, stream, gs_real.cuMemcpy_ptds(dst, src, bytes));
    /* The other side may be device memory that the owner does not reach. */
    return result == CUDA_ERROR_INVALID_VALUE ? between_owners(dst, src, bytes) : result;
}

/* From the host, or to it. */
__attribute__((noinline)) static CUresult
around_host(enum gs_way way, CUdeviceptr device, void *host, bool in, size_t bytes, CUstream stream)
{
    if (way != GS_WAY_APART)
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    return GS_WAY_IN_OWNER(device, stream,
                           in ? gs_real.cuMemcpyHtoD_v2_ptds(device, host, bytes)
                              : gs_real.cuMemcpyDtoH_v2_ptds(host, device, bytes));
}

/* ---- The hooks ------------------------------------------------------------------------------ */

/* A pointer to the host may be one to device memory, for all the driver cares. */
static void also_touches(const void *host, CUstream order)
{
    GS_KEEP_ERRNO;
    if (gs_state_enter() && gs_ours((CUdeviceptr)host))
        gs_submits_at(order, 0, (CUdeviceptr)host);
}

#define GS_MAKES_COPIES GS_UNLESS(gs_foreign_both(dst, src))
#define GS_MAKE_COPIES(symbol, order, async, real)                \
    enum gs_way way = gs_way_copy(dst, src, bytes, order, async); \
    return way == GS_WAY_CLEAR ? real : around(way, dst, src, bytes, order, async);

#define GS_MAKES_COPIES_IN GS_UNLESS(gs_foreign_both(dst, (CUdeviceptr)src))
#define GS_MAKE_COPIES_IN(symbol, order, async, real)           \
    enum gs_way way = gs_way_copy(dst, 0, bytes, order, async); \
    also_touches(src, order);                                   \
    return way == GS_WAY_CLEAR ? real : around_host(way, dst, (void *)src, true, bytes, order);

#define GS_MAKES_COPIES_OUT GS_UNLESS(gs_foreign_both((CUdeviceptr)dst, src))
#define GS_MAKE_COPIES_OUT(symbol, order, async, real)          \
    enum gs_way way = gs_way_copy(0, src, bytes, order, async); \
    also_touches(dst, order);                                   \
    return way == GS_WAY_CLEAR ? real : around_host(way, src, dst, false, bytes, order);

/* ---- Between contexts that are named -------------------------------------------------------- */

/* So any device's memory is reached; ranges are checked alone. Of memory of cuMemAlloc the driver
 * takes any context, or none; of VMM memory one of a device that has access (measured on two
 * H200s).
 */
__attribute__((noinline)) static bool may_copy_named(CUdeviceptr dst, CUcontext *dst_context,
                                                     CUdeviceptr src, CUcontext *src_context,
                                                     size_t bytes, CUstream order)
{
    if (!gs_way_within(dst, src, bytes, order))
        return false;
    GS_KEEP_ERRNO;
    if (gs_ours(dst))
        *dst_context = gs_core_copy_context(gs_core, dst);
    if (gs_ours(src))
        *src_context = gs_core_copy_context(gs_core, src);
    return true;
}

#define GS_MAKES_COPIES_PEER GS_UNLESS(gs_foreign_both(dst, src))
#define GS_MAKE_COPIES_PEER(symbol, order, async, real)                       \
    return may_copy_named(dst, &dst_context, src, &src_context, bytes, order) \
               ? real                                                         \
               : CUDA_ERROR_INVALID_VALUE;

/* ---- Between an array of this device and memory --------------------------------------------- */

#define GS_MAKES_COPIES_ARRAY GS_UNLESS(gs_foreign(device))
#define GS_MAKE_COPIES_ARRAY(symbol, order, async, real)                \
    return gs_way_copy(device, 0, bytes, order, true) != GS_WAY_REFUSED \
               ? real                                                   \
               : CUDA_ERROR_INVALID_VALUE;

#include "made.h"
