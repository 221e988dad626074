/*
 * Copies and fills of rectangles: row by row over copy.c.
 */
#include "internal.h"

struct side {
    uint64_t start;
    size_t pitch;
    bool host;
};

static bool side_of(CUmemorytype type, const void *host, CUdeviceptr device, size_t pitch, size_t x,
                    size_t y, size_t width, struct side *ret)
{
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE &&
        type != CU_MEMORYTYPE_UNIFIED)
        return false;
    ret->host = type == CU_MEMORYTYPE_HOST;
    ret->pitch = pitch ? pitch : width;
    ret->start = (ret->host ? (uint64_t)host : device) + y * ret->pitch + x;
    return ret->start && x + width <= ret->pitch;
}

static CUresult copy_row(uint64_t dst, bool dst_host, uint64_t src, bool src_host, size_t width,
                         CUstream stream, bool async)
{
    if (dst_host && src_host)
        return CUDA_ERROR_INVALID_VALUE;
    if (dst_host)
        return sd_memcpy_dtoh((void *)dst, src, width, stream, async);
    if (src_host)
        return sd_memcpy_htod(dst, (const void *)src, width, stream, async);
    return sd_memcpy_dtod(dst, src, width, stream);
}

CUresult sd_memcpy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async)
{
    struct side dst, src;
    CUresult result = CUDA_SUCCESS;

    if (!copy ||
        !side_of(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstPitch,
                 copy->dstXInBytes, copy->dstY, copy->WidthInBytes, &dst) ||
        !side_of(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcPitch,
                 copy->srcXInBytes, copy->srcY, copy->WidthInBytes, &src))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; row < copy->Height && !result; row++)
        result = copy_row(dst.start + row * dst.pitch, dst.host, src.start + row * src.pitch,
                          src.host, copy->WidthInBytes, stream, async);
    return result;
}

CUresult sd_memset_2d(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned width, size_t columns,
                      size_t rows, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (rows > 1 && pitch < columns * width)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; row < rows && !result; row++)
        result = sd_memset(dst + row * pitch, value, width, columns, stream);
    return result;
}
