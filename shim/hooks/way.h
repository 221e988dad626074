/*
 * Which way a copy or a fill takes: the short question that every such hook asks first. Memory that
 * is not ours costs one look at the allocation map for each side. Work on what is ours is told of
 * on the way (submit.h).
 */
#ifndef GPUSHIM_SHIM_WAY_H
#define GPUSHIM_SHIM_WAY_H

#include "hook.h"
#include "shim/start.h"
#include "submit.h"

#include "core/api/peer_access.h"

enum gs_way {
    GS_WAY_CLEAR,   /* to the driver, with the program's own arguments */
    GS_WAY_REFUSED, /* CUDA_ERROR_INVALID_VALUE */
    GS_WAY_APART,   /* memory of another device: through the owning contexts */
};

/* The first line of a hook on a hot path: nothing to do for memory at this address, which may also
 * be 0. Such a hook leaves by a jump. */
static inline bool gs_foreign(CUdeviceptr address)
{
    return __builtin_expect(atomic_load_explicit(&gs_state, memory_order_acquire) ==
                                    GS_STATE_READY &&
                                !gs_map_find(gs_map, address),
                            1);
}

/* Whether two addresses are both foreign. */
static inline bool gs_foreign_both(CUdeviceptr dst, CUdeviceptr src)
{
    return __builtin_expect(atomic_load_explicit(&gs_state, memory_order_acquire) ==
                                    GS_STATE_READY &&
                                !gs_map_find(gs_map, dst) && !gs_map_find(gs_map, src),
                            1);
}

static inline bool gs_way_is_ours(struct gs_access_range range)
{
    return range.size != 0 && gs_ours(range.address);
}

__attribute__((noinline, unused)) static enum gs_way
gs_way_found(struct gs_access_range dst, struct gs_access_range src, CUstream stream, bool async)
{
    GS_KEEP_ERRNO;
    gs_submits_at(stream, dst.size ? dst.address : 0, src.size ? src.address : 0);
    switch (gs_core_may_copy(gs_core, dst, src, stream, async)) {
    case GS_OK:
        return GS_WAY_CLEAR;
    case GS_UNREACHABLE:
        return GS_WAY_APART;
    default:
        return GS_WAY_REFUSED;
    }
}

/* The state was entered. */
static inline enum gs_way gs_way_ranges(struct gs_access_range dst, struct gs_access_range src,
                                        CUstream stream, bool async)
{
    if (__builtin_expect(!gs_way_is_ours(dst) && !gs_way_is_ours(src), 1))
        return GS_WAY_CLEAR;
    return gs_way_found(dst, src, stream, async);
}

/* The result of a copy that is made in the context that owns the memory at an address: in its
 * per-thread stream, as what the legacy one does breaks captures of blocking streams there. */
#define GS_WAY_IN_OWNER(address, stream, copy)                            \
    ({                                                                    \
        CUresult gs_made = gs_core_owner_enter(gs_core, address, stream); \
                                                                          \
        if (gs_made == CUDA_SUCCESS) {                                    \
            gs_made = gs_core_owner_leave(gs_core, copy);                 \
        }                                                                 \
        gs_made;                                                          \
    })

/* A copy of `bytes`; 0 for a side in host memory. */
static inline enum gs_way gs_way_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                      CUstream stream, bool async)
{
    struct gs_access_range to = {dst, dst ? bytes : 0}, from = {src, src ? bytes : 0};

    return gs_state_enter() ? gs_way_ranges(to, from, stream, async) : GS_WAY_CLEAR;
}

/* Whether both ranges are all right, whatever device they are of. */
static inline bool gs_way_within(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    struct gs_access_range to = {dst, dst ? bytes : 0}, from = {src, src ? bytes : 0};

    if (!gs_state_enter() || (!gs_way_is_ours(to) && !gs_way_is_ours(from)))
        return true;
    GS_KEEP_ERRNO;
    gs_submits_at(stream, dst, src);
    return gs_core_within(gs_core, to) && gs_core_within(gs_core, from);
}

/* Whether each side of copies over a fabric that is at an address is all right; what is at none is
 * an endpoint's. */
__attribute__((unused)) static bool gs_way_fabric(const CUDA_FABRIC_COPY_BATCH_OP *list,
                                                  size_t count)
{
    if (!list || !gs_state_enter())
        return true;
    GS_KEEP_ERRNO;
    for (size_t i = 0; i < 2 * count; i++) {
        const CUfabricCpyOperand *side = i % 2 ? &list[i / 2].dst : &list[i / 2].src;
        const struct gs_access_range range = {side->op.ptr.ptr, list[i / 2].size};

        if (side->type == CU_FABRIC_COPY_OPERAND_TYPE_POINTER && gs_way_is_ours(range) &&
            !gs_core_within(gs_core, range))
            return false;
    }
    return true;
}

__attribute__((noinline, unused)) static bool gs_way_may_fill(struct gs_access_range range,
                                                              CUstream stream)
{
    GS_KEEP_ERRNO;
    gs_submits_at(stream, range.address, 0);
    return gs_core_may_fill(gs_core, range, stream) == GS_OK;
}

/* A fill of rows of `width` elements. What overflows is the driver's to refuse. */
static inline bool gs_way_fill_rows(CUdeviceptr dst, size_t pitch, size_t width, size_t height,
                                    size_t element, CUstream stream)
{
    struct gs_access_range range = {dst, 0};
    size_t rows;

    if (!gs_state_enter() || width == 0 || height == 0 ||
        __builtin_mul_overflow(width, element, &range.size) ||
        __builtin_mul_overflow(height - 1, pitch, &rows) ||
        __builtin_add_overflow(range.size, rows, &range.size) ||
        __builtin_expect(!gs_way_is_ours(range), 1))
        return true;
    return gs_way_may_fill(range, stream);
}

#endif
