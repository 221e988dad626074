/*
 * Copies of rectangles and boxes. A side in device memory covers, of its rows, everything from the
 * first byte to the last; sides in arrays and in host memory are not looked at.
 */
#include "box.h"
#include "way.h"

/* The first byte of a side, whatever kind of memory it is said to be. */
#define FIRST(copy, which, row) \
    (copy)->which##Device + (row) * (copy)->which##Pitch + (copy)->which##XInBytes
#define FOREIGN_2D(copy) \
    ((copy) && gs_foreign_both(FIRST(copy, dst, (copy)->dstY), FIRST(copy, src, (copy)->srcY)))
#define FOREIGN_3D(copy)                                                                          \
    ((copy) && gs_foreign_both(FIRST(copy, dst, (copy)->dstZ * (copy)->dstHeight + (copy)->dstY), \
                               FIRST(copy, src, (copy)->srcZ * (copy)->srcHeight + (copy)->srcY)))

static enum gs_way way_2d(const CUDA_MEMCPY2D *copy, CUstream order, bool async)
{
    if (!gs_state_enter() || !copy)
        return GS_WAY_CLEAR;

    const struct gs_side dst = GS_SIDE(copy, dst, 0, 0), src = GS_SIDE(copy, src, 0, 0);
    const struct gs_extent extent = {copy->WidthInBytes, copy->Height, 1};

    return gs_way_ranges(gs_range_of(&dst, &extent), gs_range_of(&src, &extent), order, async);
}

static enum gs_way way_3d(const CUDA_MEMCPY3D *copy, CUstream order, bool async)
{
    if (!gs_state_enter() || !copy)
        return GS_WAY_CLEAR;

    return gs_way_ranges(GS_RANGE_OF_BOX(copy, dst), GS_RANGE_OF_BOX(copy, src), order, async);
}

/* *ret_owned is the copy between the contexts that own what is ours (shim/hooks/copy.c). */
static bool within_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream order,
                           CUDA_MEMCPY3D_PEER *ret_owned)
{
    const struct gs_access_range to = GS_RANGE_OF_BOX(copy, dst), from = GS_RANGE_OF_BOX(copy, src);

    if (!gs_way_within(to.address, 0, to.size, order) ||
        !gs_way_within(from.address, 0, from.size, order))
        return false;
    GS_KEEP_ERRNO;
    *ret_owned = *copy;
    if (gs_way_is_ours(to))
        ret_owned->dstContext = gs_core_copy_context(gs_core, to.address);
    if (gs_way_is_ours(from))
        ret_owned->srcContext = gs_core_copy_context(gs_core, from.address);
    return true;
}

/* A side of a copy, as the side of one of another kind. */
#define SAME(copy, which)                                                                   \
    .which##XInBytes = (copy)->which##XInBytes, .which##Y = (copy)->which##Y,               \
    .which##MemoryType = (copy)->which##MemoryType, .which##Device = (copy)->which##Device, \
    .which##Pitch = (copy)->which##Pitch

/* Devices that cannot reach each other: between two contexts, or in the owner's. */
static CUresult around_3d(enum gs_way way, const CUDA_MEMCPY3D *copy, CUstream stream, bool async)
{
    CUDA_MEMCPY3D_PEER peer = {
        SAME(copy, src),
        SAME(copy, dst),
        .srcZ = copy->srcZ,
        .srcHeight = copy->srcHeight,
        .dstZ = copy->dstZ,
        .dstHeight = copy->dstHeight,
        .WidthInBytes = copy->WidthInBytes,
        .Height = copy->Height,
        .Depth = copy->Depth,
    };
    const struct gs_access_range to = GS_RANGE_OF_BOX(copy, dst), from = GS_RANGE_OF_BOX(copy, src);

    if (way == GS_WAY_REFUSED)
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    if (gs_way_is_ours(from) && gs_way_is_ours(to)) {
        peer.srcContext = gs_core_copy_context(gs_core, from.address);
        peer.dstContext = gs_core_copy_context(gs_core, to.address);
        return async ? gs_real.cuMemcpy3DPeerAsync(&peer, stream) : gs_real.cuMemcpy3DPeer(&peer);
    }
    return GS_WAY_IN_OWNER(gs_way_is_ours(to) ? to.address : from.address, stream,
                           gs_real.cuMemcpy3D_v2_ptds(copy));
}

static CUresult around_2d(enum gs_way way, const CUDA_MEMCPY2D *copy, CUstream stream, bool async)
{
    const CUDA_MEMCPY3D box = {
        SAME(copy, src),
        SAME(copy, dst),
        .srcHost = copy->srcHost,
        .srcArray = copy->srcArray,
        .srcHeight = copy->srcY + copy->Height,
        .dstHost = copy->dstHost,
        .dstArray = copy->dstArray,
        .dstHeight = copy->dstY + copy->Height,
        .WidthInBytes = copy->WidthInBytes,
        .Height = copy->Height,
        .Depth = 1,
    };

    return around_3d(way, &box, stream, async);
}

/* ---- The hooks ------------------------------------------------------------------------------ */

#define GS_MAKES_COPIES_2D GS_UNLESS(FOREIGN_2D(copy))
#define GS_MAKE_COPIES_2D(symbol, order, async, real) \
    enum gs_way way = way_2d(copy, order, async);     \
    return way == GS_WAY_CLEAR ? real : around_2d(way, copy, order, async);

#define GS_MAKES_COPIES_3D GS_UNLESS(FOREIGN_3D(copy))
#define GS_MAKE_COPIES_3D(symbol, order, async, real) \
    enum gs_way way = way_3d(copy, order, async);     \
    return way == GS_WAY_CLEAR ? real : around_3d(way, copy, order, async);

#define GS_MAKES_COPIES_3D_PEER GS_UNLESS(FOREIGN_3D(copy))
#define GS_MAKE_COPIES_3D_PEER(symbol, order, async, real) \
    CUDA_MEMCPY3D_PEER owned;                              \
                                                           \
    if (gs_state_enter() && copy) {                        \
        if (!within_3d_peer(copy, order, &owned))          \
            return CUDA_ERROR_INVALID_VALUE;               \
        copy = &owned;                                     \
    }                                                      \
    return real;

#include "made.h"
