/*
 * Copies of device memory in one piece. A range that leaves its block is refused, as the driver
 * refuses one that leaves its allocation. Memory of another device is made reachable before the
 * driver looks at an asynchronous copy (core/api/peer_access.h). Other copies, and all where
 * devices cannot reach each other, go between the owning contexts, or, from and to the host,
 * through the owner's: the driver orders those with the work of both devices.
 */
#include "hook.h"
#include "shim/start.h"
#include "way.h"

/* Where the way is not clear, a function of these finds it. Each has the result of the copy. */

static CUresult around(enum gs_way way, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                       CUstream stream)
{
    CUresult result;

    if (way == GS_WAY_REFUSED)
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    if (gs_ours(dst) && gs_ours(src)) {
        return gs_real.cuMemcpyPeer(dst, gs_core_copy_context(gs_core, dst), src,
                                    gs_core_copy_context(gs_core, src), bytes);
    }
    result = gs_core_owner_enter(gs_core, gs_ours(dst) ? dst : src, stream);
    if (result == CUDA_SUCCESS) {
        result = gs_real.cuMemcpy(dst, src, bytes);
        gs_core_owner_leave(gs_core);
    }
    /* The other side may be device memory that the owner does not reach. */
    if (result == CUDA_ERROR_INVALID_VALUE)
        result = gs_real.cuMemcpyPeer(dst, gs_core_copy_context(gs_core, dst), src,
                                      gs_core_copy_context(gs_core, src), bytes);
    return result;
}

static CUresult around_async(enum gs_way way, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
                             CUstream stream)
{
    if (way != GS_WAY_APART || !gs_ours(dst) || !gs_ours(src))
        return around(way, dst, src, bytes, stream);
    GS_KEEP_ERRNO;
    return gs_real.cuMemcpyPeerAsync(dst, gs_core_copy_context(gs_core, dst), src,
                                     gs_core_copy_context(gs_core, src), bytes, stream);
}

static CUresult around_to_device(enum gs_way way, CUdeviceptr dst, const void *src, size_t bytes,
                                 CUstream stream)
{
    CUresult result;

    if (way != GS_WAY_APART)
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    result = gs_core_owner_enter(gs_core, dst, stream);
    if (result == CUDA_SUCCESS) {
        result = gs_real.cuMemcpyHtoD_v2(dst, src, bytes);
        gs_core_owner_leave(gs_core);
    }
    return result;
}

static CUresult around_to_host(enum gs_way way, void *dst, CUdeviceptr src, size_t bytes,
                               CUstream stream)
{
    CUresult result;

    if (way != GS_WAY_APART)
        return CUDA_ERROR_INVALID_VALUE;
    GS_KEEP_ERRNO;
    result = gs_core_owner_enter(gs_core, src, stream);
    if (result == CUDA_SUCCESS) {
        result = gs_real.cuMemcpyDtoH_v2(dst, src, bytes);
        gs_core_owner_leave(gs_core);
    }
    return result;
}

/* Its pointer to the host may be one to device memory, for all the driver cares. */
static void also_touches(const void *host, CUstream order)
{
    GS_KEEP_ERRNO;
    if (gs_state_enter() && gs_ours((CUdeviceptr)host))
        gs_submits_at(order, 0, (CUdeviceptr)host);
}

/*
 * What a hook goes on to where memory of ours may be in it, apart from it, so that the way of all
 * other memory keeps no registers. `real` is the driver's function, to be read when the state was
 * entered; `order` is the stream that `stream` means there.
 */
__attribute__((noinline)) static CUresult copy(__typeof__(&cuMemcpy) const *real, CUdeviceptr dst,
                                               CUdeviceptr src, size_t bytes, CUstream order)
{
    enum gs_way way = gs_way_copy(dst, src, bytes, order, false);

    return way == GS_WAY_CLEAR ? (*real)(dst, src, bytes) : around(way, dst, src, bytes, order);
}

__attribute__((noinline)) static CUresult copy_async(__typeof__(&cuMemcpyAsync) const *real,
                                                     CUdeviceptr dst, CUdeviceptr src,
                                                     size_t bytes, CUstream stream,
                                                     CUstream order)
{
    enum gs_way way = gs_way_copy(dst, src, bytes, order, true);

    return way == GS_WAY_CLEAR ? (*real)(dst, src, bytes, stream)
                               : around_async(way, dst, src, bytes, order);
}

__attribute__((noinline)) static CUresult to_device(__typeof__(&cuMemcpyHtoD_v2) const *real,
                                                    CUdeviceptr dst, const void *src, size_t bytes,
                                                    CUstream order)
{
    enum gs_way way = gs_way_copy(dst, 0, bytes, order, false);

    also_touches(src, order);
    return way == GS_WAY_CLEAR ? (*real)(dst, src, bytes)
                               : around_to_device(way, dst, src, bytes, order);
}

__attribute__((noinline)) static CUresult
to_device_async(__typeof__(&cuMemcpyHtoDAsync_v2) const *real, CUdeviceptr dst, const void *src,
                size_t bytes, CUstream stream, CUstream order)
{
    enum gs_way way = gs_way_copy(dst, 0, bytes, order, true);

    also_touches(src, order);
    return way == GS_WAY_CLEAR ? (*real)(dst, src, bytes, stream)
                               : around_to_device(way, dst, src, bytes, order);
}

__attribute__((noinline)) static CUresult to_host(__typeof__(&cuMemcpyDtoH_v2) const *real,
                                                  void *dst, CUdeviceptr src, size_t bytes,
                                                  CUstream order)
{
    enum gs_way way = gs_way_copy(0, src, bytes, order, false);

    also_touches(dst, order);
    return way == GS_WAY_CLEAR ? (*real)(dst, src, bytes)
                               : around_to_host(way, dst, src, bytes, order);
}

__attribute__((noinline)) static CUresult
to_host_async(__typeof__(&cuMemcpyDtoHAsync_v2) const *real, void *dst, CUdeviceptr src,
              size_t bytes, CUstream stream, CUstream order)
{
    enum gs_way way = gs_way_copy(0, src, bytes, order, true);

    also_touches(dst, order);
    return way == GS_WAY_CLEAR ? (*real)(dst, src, bytes, stream)
                               : around_to_host(way, dst, src, bytes, order);
}

GS_HOOK CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    if (gs_foreign_both(dst, src))
        return gs_real.cuMemcpy(dst, src, ByteCount);
    return copy(&gs_real.cuMemcpy, dst, src, ByteCount, NULL);
}

GS_HOOK CUresult CUDAAPI cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount)
{
    if (gs_foreign_both(dst, src))
        return gs_real.cuMemcpy_ptds(dst, src, ByteCount);
    return copy(&gs_real.cuMemcpy_ptds, dst, src, ByteCount, CU_STREAM_PER_THREAD);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                         size_t ByteCount)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyDtoD_v2(dstDevice, srcDevice, ByteCount);
    return copy(&gs_real.cuMemcpyDtoD_v2, dstDevice, srcDevice, ByteCount, NULL);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoD_v2_ptds(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                              size_t ByteCount)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyDtoD_v2_ptds(dstDevice, srcDevice, ByteCount);
    return copy(&gs_real.cuMemcpyDtoD_v2_ptds, dstDevice, srcDevice, ByteCount,
                CU_STREAM_PER_THREAD);
}

GS_HOOK CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void *srcHost,
                                         size_t ByteCount)
{
    if (gs_foreign_both(dstDevice, (CUdeviceptr)srcHost))
        return gs_real.cuMemcpyHtoD_v2(dstDevice, srcHost, ByteCount);
    return to_device(&gs_real.cuMemcpyHtoD_v2, dstDevice, srcHost, ByteCount, NULL);
}

GS_HOOK CUresult CUDAAPI cuMemcpyHtoD_v2_ptds(CUdeviceptr dstDevice, const void *srcHost,
                                              size_t ByteCount)
{
    if (gs_foreign_both(dstDevice, (CUdeviceptr)srcHost))
        return gs_real.cuMemcpyHtoD_v2_ptds(dstDevice, srcHost, ByteCount);
    return to_device(&gs_real.cuMemcpyHtoD_v2_ptds, dstDevice, srcHost, ByteCount,
                     CU_STREAM_PER_THREAD);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoH_v2(void *dstHost, CUdeviceptr srcDevice, size_t ByteCount)
{
    if (gs_foreign_both((CUdeviceptr)dstHost, srcDevice))
        return gs_real.cuMemcpyDtoH_v2(dstHost, srcDevice, ByteCount);
    return to_host(&gs_real.cuMemcpyDtoH_v2, dstHost, srcDevice, ByteCount, NULL);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoH_v2_ptds(void *dstHost, CUdeviceptr srcDevice,
                                              size_t ByteCount)
{
    if (gs_foreign_both((CUdeviceptr)dstHost, srcDevice))
        return gs_real.cuMemcpyDtoH_v2_ptds(dstHost, srcDevice, ByteCount);
    return to_host(&gs_real.cuMemcpyDtoH_v2_ptds, dstHost, srcDevice, ByteCount,
                   CU_STREAM_PER_THREAD);
}

GS_HOOK CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                       CUstream hStream)
{
    if (gs_foreign_both(dst, src))
        return gs_real.cuMemcpyAsync(dst, src, ByteCount, hStream);
    return copy_async(&gs_real.cuMemcpyAsync, dst, src, ByteCount, hStream, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                                            CUstream hStream)
{
    if (gs_foreign_both(dst, src))
        return gs_real.cuMemcpyAsync_ptsz(dst, src, ByteCount, hStream);
    return copy_async(&gs_real.cuMemcpyAsync_ptsz, dst, src, ByteCount, hStream,
                      gs_per_thread(hStream));
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                              size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream);
    return copy_async(&gs_real.cuMemcpyDtoDAsync_v2, dstDevice, srcDevice, ByteCount, hStream,
                      hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                                   size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyDtoDAsync_v2_ptsz(dstDevice, srcDevice, ByteCount, hStream);
    return copy_async(&gs_real.cuMemcpyDtoDAsync_v2_ptsz, dstDevice, srcDevice, ByteCount, hStream,
                      gs_per_thread(hStream));
}

GS_HOOK CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void *srcHost,
                                              size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both(dstDevice, (CUdeviceptr)srcHost))
        return gs_real.cuMemcpyHtoDAsync_v2(dstDevice, srcHost, ByteCount, hStream);
    return to_device_async(&gs_real.cuMemcpyHtoDAsync_v2, dstDevice, srcHost, ByteCount, hStream,
                           hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dstDevice, const void *srcHost,
                                                   size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both(dstDevice, (CUdeviceptr)srcHost))
        return gs_real.cuMemcpyHtoDAsync_v2_ptsz(dstDevice, srcHost, ByteCount, hStream);
    return to_device_async(&gs_real.cuMemcpyHtoDAsync_v2_ptsz, dstDevice, srcHost, ByteCount,
                           hStream, gs_per_thread(hStream));
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void *dstHost, CUdeviceptr srcDevice,
                                              size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both((CUdeviceptr)dstHost, srcDevice))
        return gs_real.cuMemcpyDtoHAsync_v2(dstHost, srcDevice, ByteCount, hStream);
    return to_host_async(&gs_real.cuMemcpyDtoHAsync_v2, dstHost, srcDevice, ByteCount, hStream,
                         hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoHAsync_v2_ptsz(void *dstHost, CUdeviceptr srcDevice,
                                                   size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both((CUdeviceptr)dstHost, srcDevice))
        return gs_real.cuMemcpyDtoHAsync_v2_ptsz(dstHost, srcDevice, ByteCount, hStream);
    return to_host_async(&gs_real.cuMemcpyDtoHAsync_v2_ptsz, dstHost, srcDevice, ByteCount, hStream,
                         gs_per_thread(hStream));
}

/* The contexts are given, so any device's memory is reached; ranges are checked alone. */

/* Of memory of cuMemAlloc the driver takes any context, or none; of VMM memory one of a device that
 * has access (measured on two H200s). */
static CUcontext owner_of(CUdeviceptr address, CUcontext named)
{
    GS_KEEP_ERRNO;
    return gs_ours(address) ? gs_core_copy_context(gs_core, address) : named;
}

__attribute__((noinline)) static CUresult
copy_peer(__typeof__(&cuMemcpyPeer) const *real, CUdeviceptr dst, CUcontext dst_context,
          CUdeviceptr src, CUcontext src_context, size_t bytes, CUstream order)
{

    if (!gs_way_within(dst, src, bytes, order))
        return CUDA_ERROR_INVALID_VALUE;
    return (*real)(dst, owner_of(dst, dst_context), src, owner_of(src, src_context), bytes);
}

__attribute__((noinline)) static CUresult
copy_peer_async(__typeof__(&cuMemcpyPeerAsync) const *real, CUdeviceptr dst, CUcontext dst_context,
                CUdeviceptr src, CUcontext src_context, size_t bytes, CUstream stream,
                CUstream order)
{
    if (!gs_way_within(dst, src, bytes, order))
        return CUDA_ERROR_INVALID_VALUE;
    return (*real)(dst, owner_of(dst, dst_context), src, owner_of(src, src_context), bytes, stream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext,
                                      CUdeviceptr srcDevice, CUcontext srcContext, size_t ByteCount)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyPeer(dstDevice, dstContext, srcDevice, srcContext, ByteCount);
    return copy_peer(&gs_real.cuMemcpyPeer, dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                     NULL);
}

GS_HOOK CUresult CUDAAPI cuMemcpyPeer_ptds(CUdeviceptr dstDevice, CUcontext dstContext,
                                           CUdeviceptr srcDevice, CUcontext srcContext,
                                           size_t ByteCount)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyPeer_ptds(dstDevice, dstContext, srcDevice, srcContext, ByteCount);
    return copy_peer(&gs_real.cuMemcpyPeer_ptds, dstDevice, dstContext, srcDevice, srcContext,
                     ByteCount, CU_STREAM_PER_THREAD);
}

GS_HOOK CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext,
                                           CUdeviceptr srcDevice, CUcontext srcContext,
                                           size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                                         hStream);
    return copy_peer_async(&gs_real.cuMemcpyPeerAsync, dstDevice, dstContext, srcDevice, srcContext,
                           ByteCount, hStream, hStream);
}

GS_HOOK CUresult CUDAAPI cuMemcpyPeerAsync_ptsz(CUdeviceptr dstDevice, CUcontext dstContext,
                                                CUdeviceptr srcDevice, CUcontext srcContext,
                                                size_t ByteCount, CUstream hStream)
{
    if (gs_foreign_both(dstDevice, srcDevice))
        return gs_real.cuMemcpyPeerAsync_ptsz(dstDevice, dstContext, srcDevice, srcContext,
                                              ByteCount, hStream);
    return copy_peer_async(&gs_real.cuMemcpyPeerAsync_ptsz, dstDevice, dstContext, srcDevice,
                           srcContext, ByteCount, hStream, gs_per_thread(hStream));
}

/* Between an array of this device and memory: what the driver reaches of another device's. */
static bool within_one(CUdeviceptr device, size_t bytes, CUstream stream)
{
    return gs_foreign(device) || gs_way_copy(device, 0, bytes, stream, true) != GS_WAY_REFUSED;
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoA_v2(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice,
                                         size_t ByteCount)
{
    if (!within_one(srcDevice, ByteCount, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyDtoA_v2(dstArray, dstOffset, srcDevice, ByteCount);
}

GS_HOOK CUresult CUDAAPI cuMemcpyDtoA_v2_ptds(CUarray dstArray, size_t dstOffset,
                                              CUdeviceptr srcDevice, size_t ByteCount)
{
    if (!within_one(srcDevice, ByteCount, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyDtoA_v2_ptds(dstArray, dstOffset, srcDevice, ByteCount);
}

GS_HOOK CUresult CUDAAPI cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset,
                                         size_t ByteCount)
{
    if (!within_one(dstDevice, ByteCount, NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyAtoD_v2(dstDevice, srcArray, srcOffset, ByteCount);
}

GS_HOOK CUresult CUDAAPI cuMemcpyAtoD_v2_ptds(CUdeviceptr dstDevice, CUarray srcArray,
                                              size_t srcOffset, size_t ByteCount)
{
    if (!within_one(dstDevice, ByteCount, CU_STREAM_PER_THREAD))
        return CUDA_ERROR_INVALID_VALUE;
    return gs_real.cuMemcpyAtoD_v2_ptds(dstDevice, srcArray, srcOffset, ByteCount);
}
