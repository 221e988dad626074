/*
 * Fills. As copies, but memory of another device can be filled only where peer access is enabled,
 * which the driver holds to for memory of cuMemAlloc as well (measured on an H200).
 */
#include "hook.h"
#include "shim/start.h"
#include "way.h"

#define GS_MAKES_FILLS GS_HERE
#define GS_MAKE_FILLS(symbol, order, async, ...)                                                   \
    GS_MADE_UNLESS(gs_foreign(dst), symbol, __VA_ARGS__)                                           \
    GS_IF(gs_way_fill(dst, count, sizeof value, order), symbol, __VA_ARGS__)

#define GS_MAKES_FILLS_ROWS GS_HERE
#define GS_MAKE_FILLS_ROWS(symbol, order, async, ...)                                              \
    GS_MADE_UNLESS(gs_foreign(dst), symbol, __VA_ARGS__)                                           \
    GS_IF(gs_way_fill_rows(dst, pitch, width, height, sizeof value, order), symbol, __VA_ARGS__)

#include "made.h"
