/*
 * Copies of a rectangle, a box, and a box between contexts: rows of device memory, side by side in
 * both places.
 */
#ifndef CONFORMANCE_COPIES_H
#define CONFORMANCE_COPIES_H

#include <cuda.h>

static inline CUDA_MEMCPY2D rectangle_copy(CUdeviceptr dst, CUdeviceptr src, size_t row,
                                           size_t rows)
{
    return (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = src,
                           .srcPitch = row,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = dst,
                           .dstPitch = row,
                           .WidthInBytes = row,
                           .Height = rows};
}

static inline CUDA_MEMCPY3D box_copy(CUdeviceptr dst, CUdeviceptr src, size_t row, size_t rows,
                                     size_t slices)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = src,
                           .srcPitch = row,
                           .srcHeight = rows,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = dst,
                           .dstPitch = row,
                           .dstHeight = rows,
                           .WidthInBytes = row,
                           .Height = rows,
                           .Depth = slices};
}

static inline CUDA_MEMCPY3D_PEER peer_copy(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src,
                                           CUcontext src_context, size_t row, size_t rows,
                                           size_t slices)
{
    return (CUDA_MEMCPY3D_PEER){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                .srcDevice = src,
                                .srcContext = src_context,
                                .srcPitch = row,
                                .srcHeight = rows,
                                .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                .dstDevice = dst,
                                .dstContext = dst_context,
                                .dstPitch = row,
                                .dstHeight = rows,
                                .WidthInBytes = row,
                                .Height = rows,
                                .Depth = slices};
}

#endif
