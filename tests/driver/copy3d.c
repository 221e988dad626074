/*
 * Copies of boxes: slice by slice over copy2d.c, and between contexts row by row over copy.c.
 */
#include "internal.h"

/* Rows from one slice to the next. */
static size_t height_of(CUmemorytype type, CUarray handle, size_t height)
{
    const struct sd_array *array =
        type == CU_MEMORYTYPE_ARRAY ? sd_object_check(handle, SD_ARRAY) : NULL;

    return !array ? height : array->shape.Height ? array->shape.Height : 1;
}

CUDA_MEMCPY2D sd_slice_of(const CUDA_MEMCPY3D *copy, size_t z)
{
    return (CUDA_MEMCPY2D){
        .srcXInBytes = copy->srcXInBytes,
        .srcY = copy->srcY +
                (copy->srcZ + z) * height_of(copy->srcMemoryType, copy->srcArray, copy->srcHeight),
        .srcMemoryType = copy->srcMemoryType,
        .srcHost = copy->srcHost,
        .srcDevice = copy->srcDevice,
        .srcArray = copy->srcArray,
        .srcPitch = copy->srcPitch,
        .dstXInBytes = copy->dstXInBytes,
        .dstY = copy->dstY +
                (copy->dstZ + z) * height_of(copy->dstMemoryType, copy->dstArray, copy->dstHeight),
        .dstMemoryType = copy->dstMemoryType,
        .dstHost = copy->dstHost,
        .dstDevice = copy->dstDevice,
        .dstArray = copy->dstArray,
        .dstPitch = copy->dstPitch,
        .WidthInBytes = copy->WidthInBytes,
        .Height = copy->Height,
    };
}

CUresult sd_memcpy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool async)
{
    CUresult result = copy ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

    for (size_t z = 0; !result && z < copy->Depth; z++) {
        CUDA_MEMCPY2D slice = sd_slice_of(copy, z);
        result = sd_memcpy_2d(&slice, stream, async);
    }
    return result;
}

CUresult sd_memcpy_3d_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (!copy || copy->srcMemoryType != CU_MEMORYTYPE_DEVICE ||
        copy->dstMemoryType != CU_MEMORYTYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height && !result; y++) {
            size_t dst = ((copy->dstZ + z) * copy->dstHeight + copy->dstY + y) * copy->dstPitch;
            size_t src = ((copy->srcZ + z) * copy->srcHeight + copy->srcY + y) * copy->srcPitch;

            result = sd_memcpy_peer(copy->dstDevice + dst + copy->dstXInBytes, copy->dstContext,
                                    copy->srcDevice + src + copy->srcXInBytes, copy->srcContext,
                                    copy->WidthInBytes, stream);
        }
    return result;
}
