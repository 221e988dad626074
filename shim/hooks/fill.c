/*
 * Fills. As copies, but memory of another device can be filled only where peer access is enabled,
 * which the driver holds to for memory of cuMemAlloc as well (measured on an H200).
 */
#include "way.h"

#define GS_MAKES_FILLS GS_UNLESS(gs_foreign(dst))
#define GS_MAKE_FILLS(symbol, order, async, real)                         \
    return gs_way_fill_rows(dst, 0, count, 1, sizeof value, order) ? real \
                                                                   : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_FILLS_ROWS GS_UNLESS(gs_foreign(dst))
#define GS_MAKE_FILLS_ROWS(symbol, order, async, real)                      \
    return gs_way_fill_rows(dst, pitch, width, height, sizeof value, order) \
               ? real                                                       \
               : CUDA_ERROR_INVALID_VALUE;

#include "made.h"
