/*
 * What a copy of rows or of a box covers in device memory: of its rows, everything from the first
 * byte to the last.
 */
#ifndef GPUSHIM_SHIM_BOX_H
#define GPUSHIM_SHIM_BOX_H

#include "hook.h"

#include "core/api/peer_access.h"

/* One side of a copy, the same for all structs that describe one. */
struct gs_side {
    CUmemorytype type;
    CUdeviceptr device;
    size_t pitch, height, x, y, z;
};

struct gs_extent {
    size_t width, height, depth;
};

/* What the side covers; nothing where the driver will find fault with the numbers. */
static inline struct gs_access_range gs_range_of(const struct gs_side *side,
                                                 const struct gs_extent *extent)
{
    struct gs_access_range nothing = {0, 0}, range = {side->device, extent->width};
    size_t rows, skipped;

    if ((side->type != CU_MEMORYTYPE_DEVICE && side->type != CU_MEMORYTYPE_UNIFIED) ||
        extent->width == 0 || extent->height == 0 || extent->depth == 0)
        return nothing;
    if (__builtin_mul_overflow(extent->depth - 1, side->height, &rows) ||
        __builtin_add_overflow(rows, extent->height - 1, &rows) ||
        __builtin_mul_overflow(rows, side->pitch, &rows) ||
        __builtin_add_overflow(range.size, rows, &range.size) ||
        __builtin_mul_overflow(side->z, side->height, &skipped) ||
        __builtin_add_overflow(skipped, side->y, &skipped) ||
        __builtin_mul_overflow(skipped, side->pitch, &skipped) ||
        __builtin_add_overflow(skipped, side->x, &skipped) ||
        __builtin_add_overflow(range.address, skipped, &range.address))
        return nothing;
    return range;
}

#define GS_SIDE(copy, which, its_height, its_z) \
    {(copy)->which##MemoryType,                 \
     (copy)->which##Device,                     \
     (copy)->which##Pitch,                      \
     its_height,                                \
     (copy)->which##XInBytes,                   \
     (copy)->which##Y,                          \
     its_z}

/* What a side of a box covers. */
#define GS_RANGE_OF_BOX(copy, which)                                               \
    gs_range_of(&(const struct gs_side)GS_SIDE(copy, which, (copy)->which##Height, \
                                               (copy)->which##Z),                  \
                &(const struct gs_extent){(copy)->WidthInBytes, (copy)->Height, (copy)->Depth})

#endif
