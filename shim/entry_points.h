/*
 * The one table of entry points that are ours: the driver's, and those of libraries that register
 * memory with devices or tell how much there is. A row says
 *
 *     ROW(symbol, since, what, gate, how, parameters...)
 *
 *   symbol  the exact exported symbol
 *   since   the CUDA version that brought it; of a call of another library, which one that is
 *   what    the call does (enum gs_does)
 *   gate    STOPS where the process sleeps, its memory off the GPU, or GOES on; ABOUT: it stops
 *           where it is about an address of memory that may be away, or about the limit of stacks,
 *           which sleep lowers
 *   how     the hook comes about, and what the call means by its stream:
 *             BY_HAND  written out in shim/hooks
 *             LEGACY, THREAD  made; the work goes to the legacy default stream, or to the thread's
 *             STREAM, PTSZ    made; it goes to `stream`, of which 0 is the one or the other
 *             PLAIN    made; no stream, or none that matters
 *
 * What is made is made in the file of shim/hooks that has GS_MAKE_ and what the call does
 * (hooks/made.h), by the names of the parameters: dst and src are addresses, bytes and count sizes,
 * stream the stream.
 *
 * So a call that does what another does is a row; any other takes a hook of that name as well.
 * Without one the library does not link, with a wrong prototype it does not compile. All else comes
 * from here: the struct of real functions, the names that dlsym knows and the map from the driver's
 * addresses to the hooks.
 *
 * cuMemAlloc, cuMemAllocPitch, cuMemFree and cuMemGetAddressRange without _v2 are not here on
 * purpose, nor are copies and fills without it. They are CUDA 2's forms with 32-bit addresses: our
 * addresses never fit in one, so such a call is never about our memory and an answer of ours could
 * not be returned.
 */
#ifndef GPUSHIM_SHIM_ENTRY_POINTS_H
#define GPUSHIM_SHIM_ENTRY_POINTS_H

enum gs_does {
    /* memory of the library's */
    GS_DOES_ALLOCATES,
    GS_DOES_ALLOCATES_ROWS,
    GS_DOES_ALLOCATES_ASYNC,
    GS_DOES_ALLOCATES_FROM, /* a pool */
    GS_DOES_EXPORTS,        /* by CUDA IPC */
    GS_DOES_OPENS,
    GS_DOES_MAPS,
    GS_DOES_BINDS,
    GS_DOES_BINDS_HANDLE,
    GS_DOES_SHARES, /* with other processes, devices and APIs */
    GS_DOES_ASKS,
    GS_DOES_BOUND, /* asks, and is hooked only where the option pool.limit is set */
    GS_DOES_SETS,
    GS_DOES_FINDS,     /* functions */
    GS_DOES_LEADS,     /* the driver's look-up: what it finds is led to the hooks */
    GS_DOES_REGISTERS, /* it with a device, or ends that */
    /* work */
    GS_DOES_FILLS,
    GS_DOES_FILLS_ROWS,
    GS_DOES_COPIES,
    GS_DOES_COPIES_IN, /* from the host */
    GS_DOES_COPIES_OUT,
    GS_DOES_COPIES_ARRAY, /* to or from one */
    GS_DOES_COPIES_PEER,  /* between contexts that are named */
    GS_DOES_COPIES_2D,
    GS_DOES_COPIES_3D,
    GS_DOES_COPIES_3D_PEER,
    GS_DOES_COPIES_LIST,
    GS_DOES_COPIES_LIST_V2, /* does not say which one failed */
    GS_DOES_COPIES_BOXES,
    GS_DOES_COPIES_BOXES_V2,
    GS_DOES_COPIES_WITH, /* attributes */
    GS_DOES_COPIES_BOX,
    GS_DOES_COPIES_FABRIC,
    GS_DOES_NODE_COPIES,       /* is a node of a graph, added or changed, in the context `ctx` */
    GS_DOES_NODE_COPY_CHANGED, /* in the current one */
    GS_DOES_NODE_FILLS,
    GS_DOES_NODE_FILL_CHANGED,
    GS_DOES_NODE_ADDED,
    GS_DOES_NODE_CHANGED,
    GS_DOES_SUBMITS, /* other work */
    GS_DOES_LAUNCHES,
    GS_DOES_LAUNCHES_EX, /* in the stream of its configuration; `how` says what 0 is there */
    GS_DOES_LAUNCHES_GRAPH,
    /* memory that the driver takes: made again where a full device has got some back */
    GS_DOES_ROOM,
    GS_DOES_LOADS, /* code, by settings that it changes */
    GS_DOES_MAKES_CONTEXT,
    GS_DOES_MAKES_GRAPH,
    GS_DOES_UPLOADS_GRAPH,
    /* what else is noted */
    GS_DOES_CAPTURES,
    GS_DOES_CAPTURED, /* ends a capture */
    /* what never fails for want of memory */
    GS_DOES_NEVER_FULL,
    GS_DOES_FREES = GS_DOES_NEVER_FULL,
    GS_DOES_FREES_ASYNC,
    GS_DOES_STALLS, /* a stream, and touches no memory */
    GS_DOES_ENDS_STREAM,
    GS_DOES_ENDS_CONTEXT,
    GS_DOES_LEAVES_CONTEXT,
    GS_DOES_RESETS_PRIMARY,
    GS_DOES_RELEASES_PRIMARY,
};

/* clang-format off */
#define GS_STREAM CUstream, stream
#define GS_FILL_8 CUdeviceptr, dst, unsigned char, value, size_t, count
#define GS_FILL_16 CUdeviceptr, dst, unsigned short, value, size_t, count
#define GS_FILL_32 CUdeviceptr, dst, unsigned, value, size_t, count
#define GS_FILL_ROWS_8                                                                             \
    CUdeviceptr, dst, size_t, pitch, unsigned char, value, size_t, width, size_t, height
#define GS_FILL_ROWS_16                                                                            \
    CUdeviceptr, dst, size_t, pitch, unsigned short, value, size_t, width, size_t, height
#define GS_FILL_ROWS_32                                                                            \
    CUdeviceptr, dst, size_t, pitch, unsigned, value, size_t, width, size_t, height
#define GS_COPY CUdeviceptr, dst, CUdeviceptr, src, size_t, bytes
#define GS_COPY_IN CUdeviceptr, dst, const void *, src, size_t, bytes
#define GS_COPY_OUT void *, dst, CUdeviceptr, src, size_t, bytes
#define GS_COPY_PEER                                                                               \
    CUdeviceptr, dst, CUcontext, dst_context, CUdeviceptr, src, CUcontext, src_context,            \
    size_t, bytes
#define GS_COPY_LIST                                                                               \
    CUdeviceptr *, dst, CUdeviceptr *, src, size_t *, sizes, size_t, count,                        \
    CUmemcpyAttributes *, with, size_t *, with_at, size_t, withs
#define GS_COPY_BOXES size_t, count, CUDA_MEMCPY3D_BATCH_OP *, boxes
#define GS_NEW_NODE CUgraphNode *, made, CUgraph, graph, const CUgraphNode *, after, size_t, count
#define GS_LAUNCH                                                                                  \
    CUfunction, function, unsigned, grid_x, unsigned, grid_y, unsigned, grid_z, unsigned, block_x, \
    unsigned, block_y, unsigned, block_z, unsigned, shared, CUstream, stream, void **, params
#define GS_VALUE_32 CUstream, stream, CUdeviceptr, address, cuuint32_t, value, unsigned, flags
#define GS_VALUE_64 CUstream, stream, CUdeviceptr, address, cuuint64_t, value, unsigned, flags

#define GS_ENTRIES(ROW)                                                                            \
    ROW(cuMemAlloc_v2,                         3020, ALLOCATES,       STOPS, PLAIN,                \
        CUdeviceptr *, ret, size_t, bytes)                                                         \
    ROW(cuMemAllocPitch_v2,                    3020, ALLOCATES_ROWS,  STOPS, PLAIN,                \
        CUdeviceptr *, ret, size_t *, pitch, size_t, width, size_t, height, unsigned, element)     \
    ROW(cuMemFree_v2,                          3020, FREES,           STOPS, PLAIN,                \
        CUdeviceptr, ptr)                                                                          \
    ROW(cuMemAllocAsync,                      11020, ALLOCATES_ASYNC, STOPS, STREAM,               \
        CUdeviceptr *, ret, size_t, bytes, GS_STREAM)                                              \
    ROW(cuMemAllocAsync_ptsz,                 11020, ALLOCATES_ASYNC, STOPS, PTSZ,                 \
        CUdeviceptr *, ret, size_t, bytes, GS_STREAM)                                              \
    ROW(cuMemAllocFromPoolAsync,              11020, ALLOCATES_FROM,  STOPS, STREAM,               \
        CUdeviceptr *, ret, size_t, bytes, CUmemoryPool, pool, GS_STREAM)                          \
    ROW(cuMemAllocFromPoolAsync_ptsz,         11020, ALLOCATES_FROM,  STOPS, PTSZ,                 \
        CUdeviceptr *, ret, size_t, bytes, CUmemoryPool, pool, GS_STREAM)                          \
    ROW(cuMemFreeAsync,                       11020, FREES_ASYNC,     STOPS, STREAM,               \
        CUdeviceptr, ptr, GS_STREAM)                                                               \
    ROW(cuMemFreeAsync_ptsz,                  11020, FREES_ASYNC,     STOPS, PTSZ,                 \
        CUdeviceptr, ptr, GS_STREAM)                                                               \
    ROW(cuMemGetInfo_v2,                       3020, ASKS,            GOES,  BY_HAND)              \
    ROW(cuMemGetInfo,                          2000, BOUND,           GOES,  BY_HAND)              \
    ROW(cuDeviceTotalMem,                      2000, BOUND,           GOES,  BY_HAND)              \
    ROW(cuDeviceTotalMem_v2,                   3020, BOUND,           GOES,  BY_HAND)              \
    ROW(cuCtxGetLimit,                         3010, ASKS,            ABOUT, BY_HAND)              \
    ROW(cuMemGetAddressRange_v2,               3020, ASKS,            ABOUT, BY_HAND)              \
    ROW(cuPointerGetAttribute,                 4000, ASKS,            ABOUT, BY_HAND)              \
    ROW(cuPointerGetAttributes,                7000, ASKS,            ABOUT, BY_HAND)              \
    ROW(cuMemRetainAllocationHandle,          11000, SHARES,          STOPS, BY_HAND)              \
    ROW(cuPointerSetAttribute,                 6000, SETS,            ABOUT, BY_HAND)              \
    ROW(cuMemPoolTrimTo,                      11020, FREES,           STOPS, BY_HAND)              \
    ROW(cuMemPoolGetAttribute,                11020, ASKS,            GOES,  BY_HAND)              \
    ROW(cuMemPoolSetAttribute,                11020, SETS,            GOES,  BY_HAND)              \
    ROW(cuMemPoolSetAccess,                   11020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemPoolDestroy,                     11020, FREES,           STOPS, BY_HAND)              \
    ROW(cuMemPoolExportPointer,               11020, SHARES,          STOPS, BY_HAND)              \
    ROW(cuMemMap,                             10020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemRelease,                         10020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemAddressReserve,                  10020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemExportToShareableHandle,         10020, SHARES,          STOPS, BY_HAND)              \
    ROW(cuMemImportFromShareableHandle,       10020, SHARES,          STOPS, BY_HAND)              \
    ROW(cuMemGetAllocationPropertiesFromHandle, 10020, ASKS,            GOES,  BY_HAND)            \
    ROW(cuMemUnmap,                           10020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemAddressFree,                     10020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemSetAccess,                       10020, MAPS,            STOPS, BY_HAND)              \
    ROW(cuMemGetAccess,                       10020, ASKS,            ABOUT, BY_HAND)              \
    ROW(cuMemGetHandleForAddressRange,        11070, SHARES,          STOPS, BY_HAND)              \
    ROW(cuMulticastBindAddr,                  12010, BINDS,           STOPS, PLAIN,                \
        CUmemGenericAllocationHandle, object, size_t, offset, CUdeviceptr, address, size_t, bytes, \
        unsigned long long, flags)                                                                 \
    ROW(cuMulticastBindAddr_v2,               13010, BINDS,           STOPS, PLAIN,                \
        CUmemGenericAllocationHandle, object, CUdevice, device, size_t, offset,                    \
        CUdeviceptr, address, size_t, bytes, unsigned long long, flags)                            \
    ROW(cuLogicalEndpointBindAddr,            13030, BINDS,           STOPS, PLAIN,                \
        CUlogicalEndpointId, object, CUdevice, device, cuuint64_t, offset, void *, address,        \
        cuuint64_t, bytes, unsigned long long, flags)                                              \
    ROW(cuEGLStreamProducerPresentFrame,       7000, SHARES,          STOPS, BY_HAND)              \
    ROW(cuIpcGetMemHandle,                     4010, EXPORTS,         STOPS, PLAIN,                \
        CUipcMemHandle *, ret, CUdeviceptr, ptr)                                                   \
    ROW(cuIpcOpenMemHandle,                    4010, OPENS,           STOPS, PLAIN,                \
        CUdeviceptr *, ret, CUipcMemHandle, handle, unsigned, flags)                               \
    ROW(cuIpcOpenMemHandle_v2,                11000, OPENS,           STOPS, PLAIN,                \
        CUdeviceptr *, ret, CUipcMemHandle, handle, unsigned, flags)                               \
    ROW(cuIpcCloseMemHandle,                   4010, SHARES,          STOPS, BY_HAND)              \
    ROW(cuIpcGetEventHandle,                   4010, ASKS,            GOES,  BY_HAND)              \
    ROW(cuIpcOpenEventHandle,                  4010, ASKS,            GOES,  BY_HAND)              \
    ROW(cuMemcpy,                   4000, COPIES,       STOPS, LEGACY, GS_COPY)                    \
    ROW(cuMemcpy_ptds,              7000, COPIES,       STOPS, THREAD, GS_COPY)                    \
    ROW(cuMemcpyDtoD_v2,            3020, COPIES,       STOPS, LEGACY, GS_COPY)                    \
    ROW(cuMemcpyDtoD_v2_ptds,       7000, COPIES,       STOPS, THREAD, GS_COPY)                    \
    ROW(cuMemcpyHtoD_v2,            3020, COPIES_IN,    STOPS, LEGACY, GS_COPY_IN)                 \
    ROW(cuMemcpyHtoD_v2_ptds,       7000, COPIES_IN,    STOPS, THREAD, GS_COPY_IN)                 \
    ROW(cuMemcpyDtoH_v2,            3020, COPIES_OUT,   STOPS, LEGACY, GS_COPY_OUT)                \
    ROW(cuMemcpyDtoH_v2_ptds,       7000, COPIES_OUT,   STOPS, THREAD, GS_COPY_OUT)                \
    ROW(cuMemcpyDtoA_v2,            3020, COPIES_ARRAY, STOPS, LEGACY,                             \
        CUarray, dst, size_t, offset, CUdeviceptr, device, size_t, bytes)                          \
    ROW(cuMemcpyDtoA_v2_ptds,       7000, COPIES_ARRAY, STOPS, THREAD,                             \
        CUarray, dst, size_t, offset, CUdeviceptr, device, size_t, bytes)                          \
    ROW(cuMemcpyAtoD_v2,            3020, COPIES_ARRAY, STOPS, LEGACY,                             \
        CUdeviceptr, device, CUarray, src, size_t, offset, size_t, bytes)                          \
    ROW(cuMemcpyAtoD_v2_ptds,       7000, COPIES_ARRAY, STOPS, THREAD,                             \
        CUdeviceptr, device, CUarray, src, size_t, offset, size_t, bytes)                          \
    ROW(cuMemcpyAsync,              4000, COPIES,       STOPS, STREAM, GS_COPY, GS_STREAM)         \
    ROW(cuMemcpyAsync_ptsz,         7000, COPIES,       STOPS, PTSZ,   GS_COPY, GS_STREAM)         \
    ROW(cuMemcpyDtoDAsync_v2,       3020, COPIES,       STOPS, STREAM, GS_COPY, GS_STREAM)         \
    ROW(cuMemcpyDtoDAsync_v2_ptsz,  7000, COPIES,       STOPS, PTSZ,   GS_COPY, GS_STREAM)         \
    ROW(cuMemcpyHtoDAsync_v2,       3020, COPIES_IN,    STOPS, STREAM, GS_COPY_IN, GS_STREAM)      \
    ROW(cuMemcpyHtoDAsync_v2_ptsz,  7000, COPIES_IN,    STOPS, PTSZ,   GS_COPY_IN, GS_STREAM)      \
    ROW(cuMemcpyDtoHAsync_v2,       3020, COPIES_OUT,   STOPS, STREAM, GS_COPY_OUT, GS_STREAM)     \
    ROW(cuMemcpyDtoHAsync_v2_ptsz,  7000, COPIES_OUT,   STOPS, PTSZ,   GS_COPY_OUT, GS_STREAM)     \
    ROW(cuMemcpyPeer,               4000, COPIES_PEER,  STOPS, LEGACY, GS_COPY_PEER)               \
    ROW(cuMemcpyPeer_ptds,          7000, COPIES_PEER,  STOPS, THREAD, GS_COPY_PEER)               \
    ROW(cuMemcpyPeerAsync,          4000, COPIES_PEER,  STOPS, STREAM, GS_COPY_PEER, GS_STREAM)    \
    ROW(cuMemcpyPeerAsync_ptsz,     7000, COPIES_PEER,  STOPS, PTSZ,   GS_COPY_PEER, GS_STREAM)    \
    ROW(cuMemsetD8_v2,            3020, FILLS,      STOPS, LEGACY, GS_FILL_8)                      \
    ROW(cuMemsetD8_v2_ptds,       7000, FILLS,      STOPS, THREAD, GS_FILL_8)                      \
    ROW(cuMemsetD8Async,          3020, FILLS,      STOPS, STREAM, GS_FILL_8, GS_STREAM)           \
    ROW(cuMemsetD8Async_ptsz,     7000, FILLS,      STOPS, PTSZ,   GS_FILL_8, GS_STREAM)           \
    ROW(cuMemsetD2D8_v2,          3020, FILLS_ROWS, STOPS, LEGACY, GS_FILL_ROWS_8)                 \
    ROW(cuMemsetD2D8_v2_ptds,     7000, FILLS_ROWS, STOPS, THREAD, GS_FILL_ROWS_8)                 \
    ROW(cuMemsetD2D8Async,        3020, FILLS_ROWS, STOPS, STREAM, GS_FILL_ROWS_8, GS_STREAM)      \
    ROW(cuMemsetD2D8Async_ptsz,   7000, FILLS_ROWS, STOPS, PTSZ,   GS_FILL_ROWS_8, GS_STREAM)      \
    ROW(cuMemsetD16_v2,           3020, FILLS,      STOPS, LEGACY, GS_FILL_16)                     \
    ROW(cuMemsetD16_v2_ptds,      7000, FILLS,      STOPS, THREAD, GS_FILL_16)                     \
    ROW(cuMemsetD16Async,         3020, FILLS,      STOPS, STREAM, GS_FILL_16, GS_STREAM)          \
    ROW(cuMemsetD16Async_ptsz,    7000, FILLS,      STOPS, PTSZ,   GS_FILL_16, GS_STREAM)          \
    ROW(cuMemsetD2D16_v2,         3020, FILLS_ROWS, STOPS, LEGACY, GS_FILL_ROWS_16)                \
    ROW(cuMemsetD2D16_v2_ptds,    7000, FILLS_ROWS, STOPS, THREAD, GS_FILL_ROWS_16)                \
    ROW(cuMemsetD2D16Async,       3020, FILLS_ROWS, STOPS, STREAM, GS_FILL_ROWS_16, GS_STREAM)     \
    ROW(cuMemsetD2D16Async_ptsz,  7000, FILLS_ROWS, STOPS, PTSZ,   GS_FILL_ROWS_16, GS_STREAM)     \
    ROW(cuMemsetD32_v2,           3020, FILLS,      STOPS, LEGACY, GS_FILL_32)                     \
    ROW(cuMemsetD32_v2_ptds,      7000, FILLS,      STOPS, THREAD, GS_FILL_32)                     \
    ROW(cuMemsetD32Async,         3020, FILLS,      STOPS, STREAM, GS_FILL_32, GS_STREAM)          \
    ROW(cuMemsetD32Async_ptsz,    7000, FILLS,      STOPS, PTSZ,   GS_FILL_32, GS_STREAM)          \
    ROW(cuMemsetD2D32_v2,         3020, FILLS_ROWS, STOPS, LEGACY, GS_FILL_ROWS_32)                \
    ROW(cuMemsetD2D32_v2_ptds,    7000, FILLS_ROWS, STOPS, THREAD, GS_FILL_ROWS_32)                \
    ROW(cuMemsetD2D32Async,       3020, FILLS_ROWS, STOPS, STREAM, GS_FILL_ROWS_32, GS_STREAM)     \
    ROW(cuMemsetD2D32Async_ptsz,  7000, FILLS_ROWS, STOPS, PTSZ,   GS_FILL_ROWS_32, GS_STREAM)     \
    ROW(cuMemcpy2D_v2,                       3020, COPIES_2D,       STOPS, LEGACY,                 \
        const CUDA_MEMCPY2D *, copy)                                                               \
    ROW(cuMemcpy2D_v2_ptds,                  7000, COPIES_2D,       STOPS, THREAD,                 \
        const CUDA_MEMCPY2D *, copy)                                                               \
    ROW(cuMemcpy2DUnaligned_v2,              3020, COPIES_2D,       STOPS, LEGACY,                 \
        const CUDA_MEMCPY2D *, copy)                                                               \
    ROW(cuMemcpy2DUnaligned_v2_ptds,         7000, COPIES_2D,       STOPS, THREAD,                 \
        const CUDA_MEMCPY2D *, copy)                                                               \
    ROW(cuMemcpy2DAsync_v2,                  3020, COPIES_2D,       STOPS, STREAM,                 \
        const CUDA_MEMCPY2D *, copy, GS_STREAM)                                                    \
    ROW(cuMemcpy2DAsync_v2_ptsz,             7000, COPIES_2D,       STOPS, PTSZ,                   \
        const CUDA_MEMCPY2D *, copy, GS_STREAM)                                                    \
    ROW(cuMemcpy3D_v2,                       3020, COPIES_3D,       STOPS, LEGACY,                 \
        const CUDA_MEMCPY3D *, copy)                                                               \
    ROW(cuMemcpy3D_v2_ptds,                  7000, COPIES_3D,       STOPS, THREAD,                 \
        const CUDA_MEMCPY3D *, copy)                                                               \
    ROW(cuMemcpy3DAsync_v2,                  3020, COPIES_3D,       STOPS, STREAM,                 \
        const CUDA_MEMCPY3D *, copy, GS_STREAM)                                                    \
    ROW(cuMemcpy3DAsync_v2_ptsz,             7000, COPIES_3D,       STOPS, PTSZ,                   \
        const CUDA_MEMCPY3D *, copy, GS_STREAM)                                                    \
    ROW(cuMemcpy3DPeer,                      4000, COPIES_3D_PEER,  STOPS, LEGACY,                 \
        const CUDA_MEMCPY3D_PEER *, copy)                                                          \
    ROW(cuMemcpy3DPeer_ptds,                 7000, COPIES_3D_PEER,  STOPS, THREAD,                 \
        const CUDA_MEMCPY3D_PEER *, copy)                                                          \
    ROW(cuMemcpy3DPeerAsync,                 4000, COPIES_3D_PEER,  STOPS, STREAM,                 \
        const CUDA_MEMCPY3D_PEER *, copy, GS_STREAM)                                               \
    ROW(cuMemcpy3DPeerAsync_ptsz,            7000, COPIES_3D_PEER,  STOPS, PTSZ,                   \
        const CUDA_MEMCPY3D_PEER *, copy, GS_STREAM)                                               \
    ROW(cuMemcpyBatchAsync,                 12080, COPIES_LIST,     STOPS, STREAM,                 \
        GS_COPY_LIST, size_t *, failed, GS_STREAM)                                                 \
    ROW(cuMemcpyBatchAsync_ptsz,            12080, COPIES_LIST,     STOPS, PTSZ,                   \
        GS_COPY_LIST, size_t *, failed, GS_STREAM)                                                 \
    ROW(cuMemcpyBatchAsync_v2,              13000, COPIES_LIST_V2,  STOPS, STREAM,                 \
        GS_COPY_LIST, GS_STREAM)                                                                   \
    ROW(cuMemcpyBatchAsync_v2_ptsz,         13000, COPIES_LIST_V2,  STOPS, PTSZ,                   \
        GS_COPY_LIST, GS_STREAM)                                                                   \
    ROW(cuMemcpy3DBatchAsync,               12080, COPIES_BOXES,    STOPS, STREAM,                 \
        GS_COPY_BOXES, size_t *, failed, unsigned long long, flags, GS_STREAM)                     \
    ROW(cuMemcpy3DBatchAsync_ptsz,          12080, COPIES_BOXES,    STOPS, PTSZ,                   \
        GS_COPY_BOXES, size_t *, failed, unsigned long long, flags, GS_STREAM)                     \
    ROW(cuMemcpy3DBatchAsync_v2,            13000, COPIES_BOXES_V2, STOPS, STREAM,                 \
        GS_COPY_BOXES, unsigned long long, flags, GS_STREAM)                                       \
    ROW(cuMemcpy3DBatchAsync_v2_ptsz,       13000, COPIES_BOXES_V2, STOPS, PTSZ,                   \
        GS_COPY_BOXES, unsigned long long, flags, GS_STREAM)                                       \
    ROW(cuMemcpyWithAttributesAsync,        13020, COPIES_WITH,     STOPS, STREAM,                 \
        GS_COPY, CUmemcpyAttributes *, with, GS_STREAM)                                            \
    ROW(cuMemcpyWithAttributesAsync_ptsz,   13020, COPIES_WITH,     STOPS, PTSZ,                   \
        GS_COPY, CUmemcpyAttributes *, with, GS_STREAM)                                            \
    ROW(cuMemcpy3DWithAttributesAsync,      13020, COPIES_BOX,      STOPS, STREAM,                 \
        CUDA_MEMCPY3D_BATCH_OP *, box, unsigned long long, flags, GS_STREAM)                       \
    ROW(cuMemcpy3DWithAttributesAsync_ptsz, 13020, COPIES_BOX,      STOPS, PTSZ,                   \
        CUDA_MEMCPY3D_BATCH_OP *, box, unsigned long long, flags, GS_STREAM)                       \
    ROW(cuGraphAddMemcpyNode,           10000, NODE_COPIES,       STOPS, PLAIN,                    \
        GS_NEW_NODE, const CUDA_MEMCPY3D *, copy, CUcontext, ctx)                                  \
    ROW(cuGraphMemcpyNodeSetParams,     10000, NODE_COPY_CHANGED, STOPS, PLAIN,                    \
        CUgraphNode, node, const CUDA_MEMCPY3D *, copy)                                            \
    ROW(cuGraphExecMemcpyNodeSetParams, 10020, NODE_COPIES,       STOPS, PLAIN,                    \
        CUgraphExec, exec, CUgraphNode, node, const CUDA_MEMCPY3D *, copy, CUcontext, ctx)         \
    ROW(cuGraphAddMemsetNode,           10000, NODE_FILLS,        STOPS, PLAIN,                    \
        GS_NEW_NODE, const CUDA_MEMSET_NODE_PARAMS *, fill, CUcontext, ctx)                        \
    ROW(cuGraphMemsetNodeSetParams,     10000, NODE_FILL_CHANGED, STOPS, PLAIN,                    \
        CUgraphNode, node, const CUDA_MEMSET_NODE_PARAMS *, fill)                                  \
    ROW(cuGraphExecMemsetNodeSetParams, 10020, NODE_FILLS,        STOPS, PLAIN,                    \
        CUgraphExec, exec, CUgraphNode, node, const CUDA_MEMSET_NODE_PARAMS *, fill,               \
        CUcontext, ctx)                                                                            \
    ROW(cuGraphAddNode,                 12020, NODE_ADDED,        STOPS, PLAIN,                    \
        GS_NEW_NODE, CUgraphNodeParams *, params)                                                  \
    ROW(cuGraphAddNode_v2,              12030, NODE_ADDED,        STOPS, PLAIN,                    \
        CUgraphNode *, made, CUgraph, graph, const CUgraphNode *, after,                           \
        const CUgraphEdgeData *, edges, size_t, count, CUgraphNodeParams *, params)                \
    ROW(cuGraphAddNode_v3,              13040, NODE_ADDED,        STOPS, PLAIN,                    \
        CUgraphNode *, made, CUgraph, graph, const CUgraphNode *, after,                           \
        const CUgraphEdgeData *, edges, size_t, count, CUgraphNodeParams *, params)                \
    ROW(cuGraphNodeSetParams,           12020, NODE_CHANGED,      STOPS, PLAIN,                    \
        CUgraphNode, node, CUgraphNodeParams *, params)                                            \
    ROW(cuGraphNodeSetParams_v2,        13040, NODE_CHANGED,      STOPS, PLAIN,                    \
        CUgraphNode, node, CUgraphNodeParams *, params)                                            \
    ROW(cuGraphExecNodeSetParams,       12020, NODE_CHANGED,      STOPS, PLAIN,                    \
        CUgraphExec, exec, CUgraphNode, node, CUgraphNodeParams *, params)                         \
    ROW(cuMemCreate,                          10020, ROOM,           STOPS, BY_HAND)               \
    ROW(cuMulticastCreate,                    12010, ROOM,           STOPS, PLAIN,                 \
        CUmemGenericAllocationHandle *, made, const CUmulticastObjectProp *, shape)                \
    ROW(cuMulticastBindMem,                   12010, BINDS_HANDLE,   STOPS, PLAIN,                 \
        CUmemGenericAllocationHandle, object, size_t, offset, CUmemGenericAllocationHandle,        \
        memory, size_t, from, size_t, bytes, unsigned long long, flags)                            \
    ROW(cuMulticastBindMem_v2,                13010, BINDS_HANDLE,   STOPS, PLAIN,                 \
        CUmemGenericAllocationHandle, object, CUdevice, on, size_t, offset,                        \
        CUmemGenericAllocationHandle, memory, size_t, from, size_t, bytes, unsigned long long,     \
        flags)                                                                                     \
    ROW(cuMemMapArrayAsync,                    11010, ROOM,           STOPS, PLAIN,                \
        CUarrayMapInfo *, list, unsigned, count, GS_STREAM)                                        \
    ROW(cuMemMapArrayAsync_ptsz,               11010, ROOM,           STOPS, PLAIN,                \
        CUarrayMapInfo *, list, unsigned, count, GS_STREAM)                                        \
    ROW(cuLogicalEndpointBindMem,              13030, BINDS_HANDLE,   STOPS, PLAIN,                \
        CUlogicalEndpointId, object, CUdevice, on, cuuint64_t, offset,                             \
        CUmemGenericAllocationHandle, memory, cuuint64_t, from, cuuint64_t, bytes,                 \
        unsigned long long, flags)                                                                 \
    ROW(cuTexObjectCreate,                      5000, ROOM,           STOPS, PLAIN,                \
        CUtexObject *, made, const CUDA_RESOURCE_DESC *, resource, const CUDA_TEXTURE_DESC *, how, \
        const CUDA_RESOURCE_VIEW_DESC *, view)                                                     \
    ROW(cuTexRefSetAddress_v2,                  3020, ROOM,           STOPS, PLAIN,                \
        size_t *, offset, CUtexref, reference, CUdeviceptr, address, size_t, bytes)                \
    ROW(cuTexRefSetAddress2D_v2,                3020, ROOM,           STOPS, PLAIN,                \
        CUtexref, reference, const CUDA_ARRAY_DESCRIPTOR *, shape, CUdeviceptr, address,           \
        size_t, pitch)                                                                             \
    ROW(cuTexRefSetAddress2D_v3,                4010, ROOM,           STOPS, PLAIN,                \
        CUtexref, reference, const CUDA_ARRAY_DESCRIPTOR *, shape, CUdeviceptr, address,           \
        size_t, pitch)                                                                             \
    ROW(cuArrayCreate_v2,                      3020, ROOM,           STOPS, PLAIN,                 \
        CUarray *, made, const CUDA_ARRAY_DESCRIPTOR *, shape)                                     \
    ROW(cuArray3DCreate_v2,                    3020, ROOM,           STOPS, PLAIN,                 \
        CUarray *, made, const CUDA_ARRAY3D_DESCRIPTOR *, shape)                                   \
    ROW(cuMipmappedArrayCreate,                5000, ROOM,           STOPS, PLAIN,                 \
        CUmipmappedArray *, made, const CUDA_ARRAY3D_DESCRIPTOR *, shape, unsigned, levels)        \
    ROW(cuCtxCreate,                           2000, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, unsigned, flags, CUdevice, device)                                      \
    ROW(cuCtxCreate_v2,                        3020, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, unsigned, flags, CUdevice, device)                                      \
    ROW(cuCtxCreate_v3,                       11040, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, CUexecAffinityParam *, params, int, count, unsigned, flags,             \
        CUdevice, device)                                                                          \
    ROW(cuCtxCreate_v4,                       12050, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, CUctxCreateParams *, params, unsigned, flags, CUdevice, device)         \
    ROW(cuGLCtxCreate,                         2000, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, unsigned, flags, CUdevice, device)                                      \
    ROW(cuGLCtxCreate_v2,                      3020, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, unsigned, flags, CUdevice, device)                                      \
    ROW(cuVDPAUCtxCreate,                      3010, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, unsigned, flags, CUdevice, device, unsigned, vdpau, void *, look_up)    \
    ROW(cuVDPAUCtxCreate_v2,                   3020, MAKES_CONTEXT,  STOPS, PLAIN,                 \
        CUcontext *, made, unsigned, flags, CUdevice, device, unsigned, vdpau, void *, look_up)    \
    ROW(cuDevicePrimaryCtxRetain,              7000, MAKES_CONTEXT,  STOPS, BY_HAND)               \
    ROW(cuGreenCtxCreate,                     12040, MAKES_CONTEXT,  STOPS, BY_HAND)               \
    ROW(cuStreamCreate,                        2000, ROOM,           STOPS, PLAIN,                 \
        CUstream *, made, unsigned, flags)                                                         \
    ROW(cuStreamCreateWithPriority,            5050, ROOM,           STOPS, PLAIN,                 \
        CUstream *, made, unsigned, flags, int, priority)                                          \
    ROW(cuModuleLoad,                          2000, ROOM,           STOPS, PLAIN,                 \
        CUmodule *, made, const char *, name)                                                      \
    ROW(cuModuleLoadData,                      2000, ROOM,           STOPS, PLAIN,                 \
        CUmodule *, made, const void *, image)                                                     \
    ROW(cuModuleLoadDataEx,                    2010, LOADS,          STOPS, PLAIN,                 \
        CUmodule *, made, const void *, image, unsigned, settings, CUjit_option *, names,          \
        void **, values)                                                                           \
    ROW(cuModuleLoadFatBinary,                 2000, ROOM,           STOPS, PLAIN,                 \
        CUmodule *, made, const void *, image)                                                     \
    ROW(cuModuleGetFunction,                   2000, ROOM,           STOPS, PLAIN,                 \
        CUfunction *, ret, CUmodule, module, const char *, name)                                   \
    ROW(cuLibraryLoadData,                    12000, LOADS,          STOPS, PLAIN,                 \
        CUlibrary *, made, const void *, image, CUjit_option *, names, void **, values,            \
        unsigned, settings, CUlibraryOption *, options, void **, option_values, unsigned, count)   \
    ROW(cuLibraryLoadFromFile,                12000, LOADS,          STOPS, PLAIN,                 \
        CUlibrary *, made, const char *, name, CUjit_option *, names, void **, values,             \
        unsigned, settings, CUlibraryOption *, options, void **, option_values, unsigned, count)   \
    ROW(cuLibraryGetModule,                   12000, ROOM,           STOPS, PLAIN,                 \
        CUmodule *, ret, CUlibrary, library)                                                       \
    ROW(cuKernelGetFunction,                  12000, ROOM,           STOPS, PLAIN,                 \
        CUfunction *, ret, CUkernel, kernel)                                                       \
    ROW(cuLaunchKernel,                        4000, LAUNCHES,       STOPS, STREAM,                \
        GS_LAUNCH, void **, extra)                                                                 \
    ROW(cuLaunchKernel_ptsz,                   7000, LAUNCHES,       STOPS, PTSZ,                  \
        GS_LAUNCH, void **, extra)                                                                 \
    ROW(cuLaunchKernelEx,                     11060, LAUNCHES_EX,    STOPS, LEGACY,                \
        const CUlaunchConfig *, config, CUfunction, function, void **, params, void **, extra)     \
    ROW(cuLaunchKernelEx_ptsz,                11060, LAUNCHES_EX,    STOPS, THREAD,                \
        const CUlaunchConfig *, config, CUfunction, function, void **, params, void **, extra)     \
    ROW(cuLaunchCooperativeKernel,             9000, LAUNCHES,       STOPS, STREAM,  GS_LAUNCH)    \
    ROW(cuLaunchCooperativeKernel_ptsz,        9000, LAUNCHES,       STOPS, PTSZ,    GS_LAUNCH)    \
    ROW(cuGreenCtxStreamCreate,               12050, ROOM,           STOPS, PLAIN,                 \
        CUstream *, made, CUgreenCtx, green, unsigned, flags, int, priority)                       \
    ROW(cuCtxSetLimit,                         3010, ROOM,           STOPS, PLAIN,                 \
        CUlimit, limit, size_t, value)                                                             \
    ROW(cuModuleGetGlobal_v2,                  3020, ROOM,           STOPS, PLAIN,                 \
        CUdeviceptr *, ret, size_t *, bytes, CUmodule, module, const char *, name)                 \
    ROW(cuLibraryGetKernel,                   12000, ROOM,           STOPS, PLAIN,                 \
        CUkernel *, ret, CUlibrary, library, const char *, name)                                   \
    ROW(cuLibraryGetGlobal,                   12000, ROOM,           STOPS, PLAIN,                 \
        CUdeviceptr *, ret, size_t *, bytes, CUlibrary, library, const char *, name)               \
    ROW(cuLibraryGetManaged,                  12000, ROOM,           STOPS, PLAIN,                 \
        CUdeviceptr *, ret, size_t *, bytes, CUlibrary, library, const char *, name)               \
    ROW(cuLibraryGetUnifiedFunction,          12000, ROOM,           STOPS, PLAIN,                 \
        void **, ret, CUlibrary, library, const char *, name)                                      \
    ROW(cuKernelGetAttribute,                 12000, ROOM,           STOPS, PLAIN,                 \
        int *, ret, CUfunction_attribute, which, CUkernel, kernel, CUdevice, on)                   \
    ROW(cuKernelSetAttribute,                 12000, ROOM,           STOPS, PLAIN,                 \
        CUfunction_attribute, which, int, value, CUkernel, kernel, CUdevice, on)                   \
    ROW(cuKernelSetCacheConfig,               12000, ROOM,           STOPS, PLAIN,                 \
        CUkernel, kernel, CUfunc_cache, config, CUdevice, on)                                      \
    ROW(cuFuncLoad,                           12040, ROOM,           STOPS, PLAIN,                 \
        CUfunction, function)                                                                      \
    ROW(cuFuncGetAttribute,                    2020, ROOM,           STOPS, PLAIN,                 \
        int *, ret, CUfunction_attribute, which, CUfunction, function)                             \
    ROW(cuFuncSetAttribute,                    9000, ROOM,           STOPS, PLAIN,                 \
        CUfunction, function, CUfunction_attribute, which, int, value)                             \
    ROW(cuFuncSetCacheConfig,                  3000, ROOM,           STOPS, PLAIN,                 \
        CUfunction, function, CUfunc_cache, config)                                                \
    ROW(cuOccupancyMaxActiveBlocksPerMultiprocessor,  6050, ROOM,           STOPS, PLAIN,          \
        int *, ret, CUfunction, function, int, size, size_t, shared)                               \
    ROW(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,  7000, ROOM,           STOPS, PLAIN, \
        int *, ret, CUfunction, function, int, size, size_t, shared, unsigned, flags)              \
    ROW(cuOccupancyMaxPotentialBlockSize,      6050, ROOM,           STOPS, PLAIN,                 \
        int *, grid, int *, block, CUfunction, function, CUoccupancyB2DSize, shared_of,            \
        size_t, shared, int, most)                                                                 \
    ROW(cuOccupancyMaxPotentialBlockSizeWithFlags,  7000, ROOM,           STOPS, PLAIN,            \
        int *, grid, int *, block, CUfunction, function, CUoccupancyB2DSize, shared_of,            \
        size_t, shared, int, most, unsigned, flags)                                                \
    ROW(cuOccupancyAvailableDynamicSMemPerBlock, 10020, ROOM,           STOPS, PLAIN,              \
        size_t *, ret, CUfunction, function, int, blocks, int, size)                               \
    ROW(cuOccupancyMaxPotentialClusterSize,   11070, ROOM,           STOPS, PLAIN,                 \
        int *, ret, CUfunction, function, const CUlaunchConfig *, config)                          \
    ROW(cuOccupancyMaxActiveClusters,         11070, ROOM,           STOPS, PLAIN,                 \
        int *, ret, CUfunction, function, const CUlaunchConfig *, config)                          \
    ROW(cuGraphAddKernelNode,                 10000, ROOM,           STOPS, PLAIN,                 \
        GS_NEW_NODE, const CUDA_KERNEL_NODE_PARAMS_v1 *, kernel)                                   \
    ROW(cuGraphAddKernelNode_v2,              12000, ROOM,           STOPS, PLAIN,                 \
        GS_NEW_NODE, const CUDA_KERNEL_NODE_PARAMS_v2 *, kernel)                                   \
    ROW(cuGraphExecUpdate,                    10020, ROOM,           STOPS, PLAIN,                 \
        CUgraphExec, exec, CUgraph, graph, CUgraphNode *, node, CUgraphExecUpdateResult *, ret)    \
    ROW(cuGraphExecUpdate_v2,                 12000, ROOM,           STOPS, PLAIN,                 \
        CUgraphExec, exec, CUgraph, graph, CUgraphExecUpdateResultInfo *, ret)                     \
    ROW(cuGraphInstantiate,                   10000, MAKES_GRAPH,    STOPS, PLAIN,                 \
        CUgraphExec *, made, CUgraph, graph, CUgraphNode *, node, char *, log, size_t, bytes)      \
    ROW(cuGraphInstantiate_v2,                11000, MAKES_GRAPH,    STOPS, PLAIN,                 \
        CUgraphExec *, made, CUgraph, graph, CUgraphNode *, node, char *, log, size_t, bytes)      \
    ROW(cuGraphInstantiateWithFlags,          11040, MAKES_GRAPH,    STOPS, PLAIN,                 \
        CUgraphExec *, made, CUgraph, graph, unsigned long long, flags)                            \
    ROW(cuGraphInstantiateWithParams,         12000, MAKES_GRAPH,    STOPS, PLAIN,                 \
        CUgraphExec *, made, CUgraph, graph, CUDA_GRAPH_INSTANTIATE_PARAMS *, params)              \
    ROW(cuGraphInstantiateWithParams_ptsz,    12000, MAKES_GRAPH,    STOPS, PLAIN,                 \
        CUgraphExec *, made, CUgraph, graph, CUDA_GRAPH_INSTANTIATE_PARAMS *, params)              \
    ROW(cuGraphAddMemAllocNode,               11040, ROOM,           STOPS, BY_HAND)               \
    ROW(cuGraphUpload,                        11010, UPLOADS_GRAPH,  STOPS, PLAIN,                 \
        CUgraphExec, exec, GS_STREAM)                                                              \
    ROW(cuGraphUpload_ptsz,                   11010, UPLOADS_GRAPH,  STOPS, PLAIN,                 \
        CUgraphExec, exec, GS_STREAM)                                                              \
    ROW(cuGraphLaunch,                        10000, LAUNCHES_GRAPH, STOPS, STREAM,                \
        CUgraphExec, exec, GS_STREAM)                                                              \
    ROW(cuGraphLaunch_ptsz,                   10000, LAUNCHES_GRAPH, STOPS, PTSZ,                  \
        CUgraphExec, exec, GS_STREAM)                                                              \
    ROW(cuLaunch,                              2000, SUBMITS,        STOPS, LEGACY,                \
        CUfunction, function)                                                                      \
    ROW(cuLaunchGrid,                          2000, SUBMITS,        STOPS, LEGACY,                \
        CUfunction, function, int, width, int, height)                                             \
    ROW(cuLaunchGridAsync,                     2000, SUBMITS,        STOPS, STREAM,                \
        CUfunction, function, int, width, int, height, GS_STREAM)                                  \
    ROW(cuLaunchCooperativeKernelMultiDevice,  9000, SUBMITS,        STOPS, BY_HAND)               \
    ROW(cuLaunchHostFunc,                     10000, STALLS,         STOPS, STREAM,                \
        GS_STREAM, CUhostFn, function, void *, data)                                               \
    ROW(cuLaunchHostFunc_ptsz,                10000, STALLS,         STOPS, PTSZ,                  \
        GS_STREAM, CUhostFn, function, void *, data)                                               \
    ROW(cuLaunchHostFunc_v2,                  13010, STALLS,         STOPS, STREAM,                \
        GS_STREAM, CUhostFn, function, void *, data, unsigned, mode)                               \
    ROW(cuLaunchHostFunc_v2_ptsz,             13010, STALLS,         STOPS, PTSZ,                  \
        GS_STREAM, CUhostFn, function, void *, data, unsigned, mode)                               \
    ROW(cuStreamAddCallback,                   5000, STALLS,         STOPS, STREAM,                \
        GS_STREAM, CUstreamCallback, function, void *, data, unsigned, flags)                      \
    ROW(cuStreamAddCallback_ptsz,              7000, STALLS,         STOPS, PTSZ,                  \
        GS_STREAM, CUstreamCallback, function, void *, data, unsigned, flags)                      \
    ROW(cuStreamWaitEvent,                     3020, STALLS,         STOPS, STREAM,                \
        GS_STREAM, CUevent, event, unsigned, flags)                                                \
    ROW(cuStreamWaitEvent_ptsz,                7000, STALLS,         STOPS, PTSZ,                  \
        GS_STREAM, CUevent, event, unsigned, flags)                                                \
    ROW(cuWaitExternalSemaphoresAsync,        10000, STALLS,         STOPS, STREAM,                \
        const CUexternalSemaphore *, list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *, params,    \
        unsigned, count, GS_STREAM)                                                                \
    ROW(cuWaitExternalSemaphoresAsync_ptsz,   10000, STALLS,         STOPS, PTSZ,                  \
        const CUexternalSemaphore *, list, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *, params,    \
        unsigned, count, GS_STREAM)                                                                \
    ROW(cuCtxWaitEvent,                       12050, STALLS,         STOPS, LEGACY,                \
        CUcontext, context, CUevent, event)                                                        \
    ROW(cuGreenCtxWaitEvent,                  12040, STALLS,         STOPS, LEGACY,                \
        CUgreenCtx, context, CUevent, event)                                                       \
    ROW(cuStreamWriteValue32,                  8000, SUBMITS,        STOPS, STREAM,  GS_VALUE_32)  \
    ROW(cuStreamWriteValue32_ptsz,             8000, SUBMITS,        STOPS, PTSZ,    GS_VALUE_32)  \
    ROW(cuStreamWriteValue32_v2,              11070, SUBMITS,        STOPS, STREAM,  GS_VALUE_32)  \
    ROW(cuStreamWriteValue32_v2_ptsz,         11070, SUBMITS,        STOPS, PTSZ,    GS_VALUE_32)  \
    ROW(cuStreamWriteValue64,                  9000, SUBMITS,        STOPS, STREAM,  GS_VALUE_64)  \
    ROW(cuStreamWriteValue64_ptsz,             9000, SUBMITS,        STOPS, PTSZ,    GS_VALUE_64)  \
    ROW(cuStreamWriteValue64_v2,              11070, SUBMITS,        STOPS, STREAM,  GS_VALUE_64)  \
    ROW(cuStreamWriteValue64_v2_ptsz,         11070, SUBMITS,        STOPS, PTSZ,    GS_VALUE_64)  \
    ROW(cuStreamWaitValue32,                   8000, SUBMITS,        STOPS, STREAM,  GS_VALUE_32)  \
    ROW(cuStreamWaitValue32_ptsz,              8000, SUBMITS,        STOPS, PTSZ,    GS_VALUE_32)  \
    ROW(cuStreamWaitValue32_v2,               11070, SUBMITS,        STOPS, STREAM,  GS_VALUE_32)  \
    ROW(cuStreamWaitValue32_v2_ptsz,          11070, SUBMITS,        STOPS, PTSZ,    GS_VALUE_32)  \
    ROW(cuStreamWaitValue64,                   9000, SUBMITS,        STOPS, STREAM,  GS_VALUE_64)  \
    ROW(cuStreamWaitValue64_ptsz,              9000, SUBMITS,        STOPS, PTSZ,    GS_VALUE_64)  \
    ROW(cuStreamWaitValue64_v2,               11070, SUBMITS,        STOPS, STREAM,  GS_VALUE_64)  \
    ROW(cuStreamWaitValue64_v2_ptsz,          11070, SUBMITS,        STOPS, PTSZ,    GS_VALUE_64)  \
    ROW(cuStreamBatchMemOp,                    8000, SUBMITS,        STOPS, STREAM,                \
        GS_STREAM, unsigned, count, CUstreamBatchMemOpParams *, list, unsigned, flags)             \
    ROW(cuStreamBatchMemOp_ptsz,               8000, SUBMITS,        STOPS, PTSZ,                  \
        GS_STREAM, unsigned, count, CUstreamBatchMemOpParams *, list, unsigned, flags)             \
    ROW(cuStreamBatchMemOp_v2,                11070, SUBMITS,        STOPS, STREAM,                \
        GS_STREAM, unsigned, count, CUstreamBatchMemOpParams *, list, unsigned, flags)             \
    ROW(cuStreamBatchMemOp_v2_ptsz,           11070, SUBMITS,        STOPS, PTSZ,                  \
        GS_STREAM, unsigned, count, CUstreamBatchMemOpParams *, list, unsigned, flags)             \
    ROW(cuMemBatchDecompressAsync,            12060, SUBMITS,        STOPS, STREAM,                \
        CUmemDecompressParams *, list, size_t, count, unsigned, flags, size_t *, failed,           \
        GS_STREAM)                                                                                 \
    ROW(cuMemBatchDecompressAsync_ptsz,       12060, SUBMITS,        STOPS, PTSZ,                  \
        CUmemDecompressParams *, list, size_t, count, unsigned, flags, size_t *, failed,           \
        GS_STREAM)                                                                                 \
    ROW(cuFabricCpyBatchAsync,      13050, COPIES_FABRIC, STOPS, STREAM,                           \
        size_t, count, CUDA_FABRIC_COPY_BATCH_OP *, list, unsigned long long, flags, GS_STREAM)    \
    ROW(cuFabricCpyBatchAsync_ptsz, 13050, COPIES_FABRIC, STOPS, PTSZ,                             \
        size_t, count, CUDA_FABRIC_COPY_BATCH_OP *, list, unsigned long long, flags, GS_STREAM)    \
    ROW(cuCtxEnablePeerAccess,   4000, MAPS, STOPS, BY_HAND)                                       \
    ROW(cuCtxDisablePeerAccess,  4000, MAPS, STOPS, BY_HAND)                                       \
    ROW(cuStreamBeginCapture,               10000, CAPTURES, STOPS, STREAM, GS_STREAM)             \
    ROW(cuStreamBeginCapture_ptsz,          10000, CAPTURES, STOPS, PTSZ,   GS_STREAM)             \
    ROW(cuStreamBeginCapture_v2,            10010, CAPTURES, STOPS, STREAM,                        \
        GS_STREAM, CUstreamCaptureMode, mode)                                                      \
    ROW(cuStreamBeginCapture_v2_ptsz,       10010, CAPTURES, STOPS, PTSZ,                          \
        GS_STREAM, CUstreamCaptureMode, mode)                                                      \
    ROW(cuStreamBeginCaptureToGraph,        12030, CAPTURES, STOPS, STREAM,                        \
        GS_STREAM, CUgraph, graph, const CUgraphNode *, after, const CUgraphEdgeData *, edges,     \
        size_t, count, CUstreamCaptureMode, mode)                                                  \
    ROW(cuStreamBeginCaptureToGraph_ptsz,   12030, CAPTURES, STOPS, PTSZ,                          \
        GS_STREAM, CUgraph, graph, const CUgraphNode *, after, const CUgraphEdgeData *, edges,     \
        size_t, count, CUstreamCaptureMode, mode)                                                  \
    ROW(cuStreamBeginCaptureToCig,          13010, CAPTURES, STOPS, STREAM,                        \
        GS_STREAM, CUstreamCigCaptureParams *, params)                                             \
    ROW(cuStreamBeginCaptureToCig_ptsz,     13010, CAPTURES, STOPS, PTSZ,                          \
        GS_STREAM, CUstreamCigCaptureParams *, params)                                             \
    ROW(cuStreamBeginRecaptureToGraph,      13030, CAPTURES, STOPS, STREAM,                        \
        GS_STREAM, CUstreamCaptureMode, mode, CUgraph, graph, CUgraphRecaptureCallback, function,  \
        void *, data)                                                                              \
    ROW(cuStreamBeginRecaptureToGraph_ptsz, 13030, CAPTURES, STOPS, PTSZ,                          \
        GS_STREAM, CUstreamCaptureMode, mode, CUgraph, graph, CUgraphRecaptureCallback, function,  \
        void *, data)                                                                              \
    ROW(cuStreamEndCapture,                 10000, CAPTURED, STOPS, STREAM,                        \
        GS_STREAM, CUgraph *, ret)                                                                 \
    ROW(cuStreamEndCapture_ptsz,            10000, CAPTURED, STOPS, PTSZ,                          \
        GS_STREAM, CUgraph *, ret)                                                                 \
    ROW(cuStreamEndCaptureToCig,            13010, CAPTURED, STOPS, STREAM, GS_STREAM)             \
    ROW(cuStreamEndCaptureToCig_ptsz,       13010, CAPTURED, STOPS, PTSZ,   GS_STREAM)             \
    ROW(cuStreamDestroy,               2000, ENDS_STREAM,      STOPS, PLAIN,   GS_STREAM)          \
    ROW(cuStreamDestroy_v2,            4000, ENDS_STREAM,      STOPS, PLAIN,   GS_STREAM)          \
    ROW(cuCtxDestroy,                  2000, ENDS_CONTEXT,     STOPS, PLAIN,   CUcontext, context) \
    ROW(cuCtxDestroy_v2,               4000, ENDS_CONTEXT,     STOPS, PLAIN,   CUcontext, context) \
    ROW(cuCtxDetach,                   2000, LEAVES_CONTEXT,   STOPS, PLAIN,   CUcontext, context) \
    ROW(cuDevicePrimaryCtxReset,       7000, RESETS_PRIMARY,   STOPS, PLAIN,   CUdevice, device)   \
    ROW(cuDevicePrimaryCtxReset_v2,   11000, RESETS_PRIMARY,   STOPS, PLAIN,   CUdevice, device)   \
    ROW(cuDevicePrimaryCtxRelease,     7000, RELEASES_PRIMARY, STOPS, PLAIN,   CUdevice, device)   \
    ROW(cuDevicePrimaryCtxRelease_v2, 11000, RELEASES_PRIMARY, STOPS, PLAIN,   CUdevice, device)   \
    ROW(cuGetExportTable,              3000, FINDS,            GOES,  BY_HAND)                     \
    ROW(cuGreenCtxDestroy,            12040, ENDS_CONTEXT,     STOPS, BY_HAND)                     \
    ROW(cuDeviceSetMemPool,           11020, SETS,             GOES,  BY_HAND)                     \
    ROW(cuMemSetMemPool,              13000, SETS,             GOES,  BY_HAND)                     \
    ROW(cuGetProcAddress,             11030, LEADS,            GOES,  PLAIN,                       \
        const char *, name, void **, ret, int, version, cuuint64_t, flags)                         \
    ROW(cuGetProcAddress_v2,          12000, LEADS,            GOES,  PLAIN,                       \
        const char *, name, void **, ret, int, version, cuuint64_t, flags,                         \
        CUdriverProcAddressQueryResult *, status)

/* Of other libraries; their prototypes are in registration/pinning.h. */
#define GS_LIBRARY_ENTRIES(ROW)                                                                    \
    ROW(ibv_reg_mr,                 VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_reg_mr_iova,            VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_reg_mr_iova2,           VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_reg_dmabuf_mr,          VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_reg_mr_ex,              VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_rereg_mr,               VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_dereg_mr,               VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_dealloc_pd,             VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(ibv_close_device,           VERBS,  REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_open,                   GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_pin_buffer,             GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_pin_buffer_v2,          GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_unpin_buffer,           GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_map,                    GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_unmap,                  GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(gdr_close,                  GDR,    REGISTERS, STOPS, BY_HAND)                             \
    ROW(cuFileBufRegister,          CUFILE, REGISTERS, STOPS, BY_HAND)                             \
    ROW(cuFileBufDeregister,        CUFILE, REGISTERS, STOPS, BY_HAND)                             \
    ROW(cuFileDriverClose,          CUFILE, REGISTERS, STOPS, BY_HAND)                             \
    ROW(cuFileDriverClose_v2,       CUFILE, REGISTERS, STOPS, BY_HAND)                             \
    ROW(nvmlDeviceGetMemoryInfo,    NVML,   BOUND,     GOES,  BY_HAND)                             \
    ROW(nvmlDeviceGetMemoryInfo_v2, NVML,   BOUND,     GOES,  BY_HAND)
/* clang-format on */

/* The number of each row, of 16 bits. */
enum gs_row {
#define GS_ENTRY(symbol, ...) GS_ROW_##symbol,
    GS_ENTRIES(GS_ENTRY) GS_DRIVER_ROWS,
    GS_DRIVER_LAST = GS_DRIVER_ROWS - 1,
    GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
        GS_ROWS
};
_Static_assert(GS_ROWS < 1 << 16, "it has 16 bits");

#endif
