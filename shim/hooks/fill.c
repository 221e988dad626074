/*
 * Fills. As copies, but memory of another device can be filled only where peer access is enabled,
 * which the driver holds to for memory of cuMemAlloc as well (measured on an H200).
 */
#include "hook.h"
#include "shim/start.h"
#include "way.h"

GS_HOOK CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD8_v2(dstDevice, uc, N);
    if (!gs_way_fill(dstDevice, N, 1, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD8_v2(dstDevice, uc, N);
}

GS_HOOK CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr dstDevice, unsigned char uc, size_t N)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD8_v2_ptds(dstDevice, uc, N);
    if (!gs_way_fill(dstDevice, N, 1, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD8_v2_ptds(dstDevice, uc, N);
}

GS_HOOK CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                         CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD8Async(dstDevice, uc, N, hStream);
    if (!gs_way_fill(dstDevice, N, 1, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD8Async(dstDevice, uc, N, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD8Async_ptsz(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                              CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD8Async_ptsz(dstDevice, uc, N, hStream);
    if (!gs_way_fill(dstDevice, N, 1, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD8Async_ptsz(dstDevice, uc, N, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                         size_t Width, size_t Height)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D8_v2(dstDevice, dstPitch, uc, Width, Height);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 1, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D8_v2(dstDevice, dstPitch, uc, Width, Height);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D8_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch,
                                              unsigned char uc, size_t Width, size_t Height)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D8_v2_ptds(dstDevice, dstPitch, uc, Width, Height);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 1, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D8_v2_ptds(dstDevice, dstPitch, uc, Width, Height);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                           size_t Width, size_t Height, CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D8Async(dstDevice, dstPitch, uc, Width, Height, hStream);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 1, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D8Async(dstDevice, dstPitch, uc, Width, Height, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D8Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch,
                                                unsigned char uc, size_t Width, size_t Height,
                                                CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D8Async_ptsz(dstDevice, dstPitch, uc, Width, Height, hStream);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 1, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D8Async_ptsz(dstDevice, dstPitch, uc, Width, Height, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD16_v2(dstDevice, us, N);
    if (!gs_way_fill(dstDevice, N, 2, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD16_v2(dstDevice, us, N);
}

GS_HOOK CUresult CUDAAPI cuMemsetD16_v2_ptds(CUdeviceptr dstDevice, unsigned short us, size_t N)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD16_v2_ptds(dstDevice, us, N);
    if (!gs_way_fill(dstDevice, N, 2, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD16_v2_ptds(dstDevice, us, N);
}

GS_HOOK CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                          CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD16Async(dstDevice, us, N, hStream);
    if (!gs_way_fill(dstDevice, N, 2, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD16Async(dstDevice, us, N, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD16Async_ptsz(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                               CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD16Async_ptsz(dstDevice, us, N, hStream);
    if (!gs_way_fill(dstDevice, N, 2, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD16Async_ptsz(dstDevice, us, N, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                          size_t Width, size_t Height)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D16_v2(dstDevice, dstPitch, us, Width, Height);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 2, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D16_v2(dstDevice, dstPitch, us, Width, Height);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D16_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch,
                                               unsigned short us, size_t Width, size_t Height)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D16_v2_ptds(dstDevice, dstPitch, us, Width, Height);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 2, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D16_v2_ptds(dstDevice, dstPitch, us, Width, Height);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch,
                                            unsigned short us, size_t Width, size_t Height,
                                            CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D16Async(dstDevice, dstPitch, us, Width, Height, hStream);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 2, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D16Async(dstDevice, dstPitch, us, Width, Height, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D16Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch,
                                                 unsigned short us, size_t Width, size_t Height,
                                                 CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D16Async_ptsz(dstDevice, dstPitch, us, Width, Height, hStream);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 2, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D16Async_ptsz(dstDevice, dstPitch, us, Width, Height, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD32_v2(dstDevice, ui, N);
    if (!gs_way_fill(dstDevice, N, 4, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD32_v2(dstDevice, ui, N);
}

GS_HOOK CUresult CUDAAPI cuMemsetD32_v2_ptds(CUdeviceptr dstDevice, unsigned int ui, size_t N)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD32_v2_ptds(dstDevice, ui, N);
    if (!gs_way_fill(dstDevice, N, 4, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD32_v2_ptds(dstDevice, ui, N);
}

GS_HOOK CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                          CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD32Async(dstDevice, ui, N, hStream);
    if (!gs_way_fill(dstDevice, N, 4, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD32Async(dstDevice, ui, N, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD32Async_ptsz(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                               CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD32Async_ptsz(dstDevice, ui, N, hStream);
    if (!gs_way_fill(dstDevice, N, 4, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD32Async_ptsz(dstDevice, ui, N, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                          size_t Width, size_t Height)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D32_v2(dstDevice, dstPitch, ui, Width, Height);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 4, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D32_v2(dstDevice, dstPitch, ui, Width, Height);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D32_v2_ptds(CUdeviceptr dstDevice, size_t dstPitch,
                                               unsigned int ui, size_t Width, size_t Height)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D32_v2_ptds(dstDevice, dstPitch, ui, Width, Height);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 4, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D32_v2_ptds(dstDevice, dstPitch, ui, Width, Height);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                            size_t Width, size_t Height, CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D32Async(dstDevice, dstPitch, ui, Width, Height, hStream);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 4, hStream))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D32Async(dstDevice, dstPitch, ui, Width, Height, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemsetD2D32Async_ptsz(CUdeviceptr dstDevice, size_t dstPitch,
                                                 unsigned int ui, size_t Width, size_t Height,
                                                 CUstream hStream)
{
    if (gs_foreign(dstDevice))
        return gs_real.cuMemsetD2D32Async_ptsz(dstDevice, dstPitch, ui, Width, Height, hStream);
    if (!gs_way_fill_rows(dstDevice, dstPitch, Width, Height, 4, gs_per_thread(hStream)))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemsetD2D32Async_ptsz(dstDevice, dstPitch, ui, Width, Height, hStream);
}
