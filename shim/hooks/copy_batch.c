/*
 * Several copies at once, also over a fabric, and copies with attributes. What is refused is refused before anything is
 * copied; memory of another device is made reachable, and where that cannot be, the driver says so.
 * Several are told of as other work is, not one by one.
 */
#include "box.h"
#include "hook.h"
#include "shim/start.h"
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

GS_HOOK CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                            size_t count, CUmemcpyAttributes *attrs,
                                            size_t *attrsIdxs, size_t numAttrs, size_t *failIdx,
                                            CUstream hStream)
{
    if (!within_batch(dsts, srcs, sizes, count, hStream, failIdx))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx,
                                      hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyBatchAsync_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs,
                                                 size_t *sizes, size_t count,
                                                 CUmemcpyAttributes *attrs, size_t *attrsIdxs,
                                                 size_t numAttrs, size_t *failIdx, CUstream hStream)
{
    if (!within_batch(dsts, srcs, sizes, count, gs_per_thread(hStream), failIdx))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyBatchAsync_ptsz(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs,
                                           failIdx, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
                                               size_t count, CUmemcpyAttributes *attrs,
                                               size_t *attrsIdxs, size_t numAttrs, CUstream hStream)
{
    if (!within_batch(dsts, srcs, sizes, count, hStream, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyBatchAsync_v2(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs,
                                         hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs,
                                                    size_t *sizes, size_t count,
                                                    CUmemcpyAttributes *attrs, size_t *attrsIdxs,
                                                    size_t numAttrs, CUstream hStream)
{
    if (!within_batch(dsts, srcs, sizes, count, gs_per_thread(hStream), NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyBatchAsync_v2_ptsz(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs,
                                              hStream);
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

GS_HOOK CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                              size_t *failIdx, unsigned long long flags,
                                              CUstream hStream)
{
    if (!within_boxes(opList, numOps, hStream, failIdx))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpy3DBatchAsync(numOps, opList, failIdx, flags, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpy3DBatchAsync_ptsz(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                                   size_t *failIdx, unsigned long long flags,
                                                   CUstream hStream)
{
    if (!within_boxes(opList, numOps, gs_per_thread(hStream), failIdx))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpy3DBatchAsync_ptsz(numOps, opList, failIdx, flags, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                                 unsigned long long flags, CUstream hStream)
{
    if (!within_boxes(opList, numOps, hStream, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpy3DBatchAsync_v2(numOps, opList, flags, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpy3DBatchAsync_v2_ptsz(size_t numOps, CUDA_MEMCPY3D_BATCH_OP *opList,
                                                      unsigned long long flags, CUstream hStream)
{
    if (!within_boxes(opList, numOps, gs_per_thread(hStream), NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpy3DBatchAsync_v2_ptsz(numOps, opList, flags, hStream);
}

/* ---- One, with attributes ---- */

GS_HOOK CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size,
                                                     CUmemcpyAttributes *attr, CUstream hStream)
{
    if (!within(dst, src, size, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyWithAttributesAsync(dst, src, size, attr, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr dst, CUdeviceptr src,
                                                          size_t size, CUmemcpyAttributes *attr,
                                                          CUstream hStream)
{
    if (!within(dst, src, size, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyWithAttributesAsync_ptsz(dst, src, size, attr, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op,
                                                       unsigned long long flags, CUstream hStream)
{
    if (!within_box(op, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpy3DWithAttributesAsync(op, flags, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *op,
                                                            unsigned long long flags,
                                                            CUstream hStream)
{
    if (!within_box(op, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpy3DWithAttributesAsync_ptsz(op, flags, hStream);
}

GS_HOOK CUresult CUDAAPI cuFabricCpyBatchAsync(size_t numOps, CUDA_FABRIC_COPY_BATCH_OP *opList,
                                               unsigned long long flags, CUstream hStream)
{
    gs_submits(hStream);
    if (!gs_way_fabric(opList, numOps))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuFabricCpyBatchAsync(numOps, opList, flags, hStream);
}

GS_HOOK CUresult CUDAAPI cuFabricCpyBatchAsync_ptsz(size_t numOps,
                                                    CUDA_FABRIC_COPY_BATCH_OP *opList,
                                                    unsigned long long flags, CUstream hStream)
{
    gs_submits(gs_per_thread(hStream));
    if (!gs_way_fabric(opList, numOps))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuFabricCpyBatchAsync_ptsz(numOps, opList, flags, hStream);
}
