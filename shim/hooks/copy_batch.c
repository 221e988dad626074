/*
 * Several copies at once, also over a fabric, and copies with attributes. What is refused is
 * refused before anything is copied; memory of another device is made reachable, and where that
 * cannot be, the driver says so. Several are told of as other work is, not one by one.
 */
#include "box.h"
#include "way.h"

/* By itself, so that memory that is not ours pays for no more than the look. */
__attribute__((noinline)) static bool may_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                                               CUstream stream)
{
    return gs_way_copy(dst, src, bytes, stream, true) != GS_WAY_REFUSED;
}

static inline bool within(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    return gs_foreign_both(dst, src) || may_copy(dst, src, bytes, stream);
}

/* False: one of them, *ret_fail, is refused, and so none is made. */
static bool within_batch(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes,
                         size_t count, CUstream stream, size_t *ret_fail)
{
    if (!gs_state_enter())
        return true;
    gs_single_submits(gs_single, stream);
    if (!dsts || !srcs || !sizes)
        return true;
    for (size_t i = 0; i < count; i++)
        if (!within(dsts[i], srcs[i], sizes[i], stream)) {
            if (ret_fail)
                *ret_fail = i;
            return false;
        }
    return true;
}

/* ---- Boxes ---- */

/* What an operand covers. The elements of an array may be of any size, so of what is copied from or
 * to one only the beginning is known. */
static struct gs_access_range range_of_operand(const CUmemcpy3DOperand *operand,
                                               const CUmemcpy3DOperand *other,
                                               const CUDA_MEMCPY3D_BATCH_OP *box)
{
    const struct gs_extent first = {1, 1, 1};
    const struct gs_extent all = {box->extent.width, box->extent.height, box->extent.depth};
    const size_t row = operand->op.ptr.rowLength, layer = operand->op.ptr.layerHeight;
    const struct gs_side side = {
        .type = CU_MEMORYTYPE_UNIFIED,
        .device = operand->op.ptr.ptr,
        .pitch = row ? row : all.width,
        .height = layer ? layer : all.height,
    };

    if (operand->type != CU_MEMCPY_OPERAND_TYPE_POINTER)
        return (struct gs_access_range){0, 0};
    return gs_range_of(&side, other->type == CU_MEMCPY_OPERAND_TYPE_POINTER ? &all : &first);
}

__attribute__((noinline)) static bool may_copy_box(const CUDA_MEMCPY3D_BATCH_OP *box,
                                                   CUstream stream)
{
    if (!gs_state_enter() || !box)
        return true;
    return gs_way_ranges(range_of_operand(&box->dst, &box->src, box),
                         range_of_operand(&box->src, &box->dst, box), stream,
                         true) != GS_WAY_REFUSED;
}

/* An array's handle is in no memory of ours either. */
static inline bool within_box(const CUDA_MEMCPY3D_BATCH_OP *box, CUstream stream)
{
    return (box && gs_foreign_both(box->dst.op.ptr.ptr, box->src.op.ptr.ptr)) ||
           may_copy_box(box, stream);
}

static bool within_boxes(const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t count, CUstream stream,
                         size_t *ret_fail)
{
    if (!gs_state_enter())
        return true;
    gs_single_submits(gs_single, stream);
    if (!boxes)
        return true;
    for (size_t i = 0; i < count; i++)
        if (!within_box(&boxes[i], stream)) {
            if (ret_fail)
                *ret_fail = i;
            return false;
        }
    return true;
}

/* ---- The hooks ---- */

#define GS_MAKES_COPIES_LIST GS_ALWAYS
#define GS_MAKE_COPIES_LIST(symbol, order, async, real) \
    return within_batch(dst, src, sizes, count, order, failed) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_COPIES_LIST_V2 GS_ALWAYS
#define GS_MAKE_COPIES_LIST_V2(symbol, order, async, real) \
    return within_batch(dst, src, sizes, count, order, NULL) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_COPIES_BOXES GS_ALWAYS
#define GS_MAKE_COPIES_BOXES(symbol, order, async, real) \
    return within_boxes(boxes, count, order, failed) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_COPIES_BOXES_V2 GS_ALWAYS
#define GS_MAKE_COPIES_BOXES_V2(symbol, order, async, real) \
    return within_boxes(boxes, count, order, NULL) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_COPIES_WITH GS_ALWAYS
#define GS_MAKE_COPIES_WITH(symbol, order, async, real) \
    return within(dst, src, bytes, order) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_COPIES_BOX GS_ALWAYS
#define GS_MAKE_COPIES_BOX(symbol, order, async, real) \
    return within_box(box, order) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_COPIES_FABRIC GS_ALWAYS
#define GS_MAKE_COPIES_FABRIC(symbol, order, async, real) \
    gs_submits(order);                                    \
    return gs_way_fabric(list, count) ? real : CUDA_ERROR_INVALID_VALUE;

#include "made.h"
