/*
 * Several copies at once, and copies with attributes. One after the other: their order is nobody's
 * business, and stream order is an access order that every attribute allows.
 */
#include "internal.h"

CUresult sd_memcpy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                         const CUmemcpyAttributes *attributes, const size_t *first,
                         size_t attribute_count, size_t *ret_fail, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (ret_fail)
        *ret_fail = SIZE_MAX;
    if (!dsts || !srcs || !sizes || !count || !attributes || !first || !attribute_count ||
        attribute_count > count || first[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++) {
        result = sd_memcpy(dsts[i], srcs[i], sizes[i], stream, true);
        if (result && ret_fail)
            *ret_fail = i;
    }
    return result;
}

/* One side of a box; false: not of this driver's. */
static bool side_ok(const CUmemcpy3DOperand *operand, const CUextent3D *extent)
{
    return operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
           (!operand->op.ptr.rowLength || operand->op.ptr.rowLength >= extent->width) &&
           (!operand->op.ptr.layerHeight || operand->op.ptr.layerHeight >= extent->height);
}

static CUresult copy_box(const CUDA_MEMCPY3D_BATCH_OP *box, CUstream stream)
{
    const CUmemcpy3DOperand *dst = &box->dst, *src = &box->src;
    const CUextent3D *extent = &box->extent;
    CUDA_MEMCPY3D copy = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                          .WidthInBytes = extent->width,
                          .Height = extent->height,
                          .Depth = extent->depth};

    if (!extent->width || !extent->height || !extent->depth || !side_ok(dst, extent) ||
        !side_ok(src, extent))
        return CUDA_ERROR_INVALID_VALUE;
    copy.dstDevice = dst->op.ptr.ptr;
    copy.dstPitch = dst->op.ptr.rowLength ? dst->op.ptr.rowLength : extent->width;
    copy.dstHeight = dst->op.ptr.layerHeight ? dst->op.ptr.layerHeight : extent->height;
    copy.srcDevice = src->op.ptr.ptr;
    copy.srcPitch = src->op.ptr.rowLength ? src->op.ptr.rowLength : extent->width;
    copy.srcHeight = src->op.ptr.layerHeight ? src->op.ptr.layerHeight : extent->height;
    return sd_memcpy_3d(&copy, stream, true);
}

CUresult sd_memcpy_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes, size_t *ret_fail,
                         unsigned long long flags, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (ret_fail)
        *ret_fail = SIZE_MAX;
    if (!count || !boxes || flags)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++) {
        result = copy_box(&boxes[i], stream);
        if (result && ret_fail)
            *ret_fail = i;
    }
    return result;
}

CUresult sd_memcpy_with(CUdeviceptr dst, CUdeviceptr src, size_t size,
                        const CUmemcpyAttributes *attributes, CUstream stream)
{
    if (!attributes || attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    return sd_memcpy(dst, src, size, stream, true);
}
