/*
 * What the cuda.h at hand is too old to declare, as the vendor's newer ones do: a library built
 * against CUDA 12 serves a program of CUDA 13 as well, and so does the software driver of the
 * tests. Included after cuda.h, with its exact symbol names.
 */
#ifndef GPUSHIM_SHIM_CUDA_NEWER_H
#define GPUSHIM_SHIM_CUDA_NEWER_H

/* Types that nothing looks into are opaque. Boxes are looked into. */
#if CUDA_VERSION < 12080
typedef struct CUmemcpyAttributes_st CUmemcpyAttributes;
#define CU_MEMCPY_OPERAND_TYPE_POINTER 1
typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr ptr;
            size_t rowLength, layerHeight;
            CUmemLocation locHint;
        } ptr;
        struct {
            CUarray array;
            size_t offset[3];
        } array;
    } op;
} CUmemcpy3DOperand;
typedef struct {
    CUmemcpy3DOperand src, dst;
    struct {
        size_t width, height, depth;
    } extent;
    int srcAccessOrder;
    unsigned int flags;
} CUDA_MEMCPY3D_BATCH_OP;

typedef struct CUmemDecompressParams_st CUmemDecompressParams;
CUresult CUDAAPI cuMemBatchDecompressAsync(CUmemDecompressParams *, size_t, unsigned int, size_t *,
                                           CUstream);
CUresult CUDAAPI cuMemBatchDecompressAsync_ptsz(CUmemDecompressParams *, size_t, unsigned int,
                                                size_t *, CUstream);
#endif

/* Of these, each header has some. */
CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *,
                                      unsigned long long, CUstream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_ptsz(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *,
                                           unsigned long long, CUstream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_v2(size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long,
                                         CUstream);
CUresult CUDAAPI cuMemcpy3DBatchAsync_v2_ptsz(size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long,
                                              CUstream);
CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                    CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream);
CUresult CUDAAPI cuMemcpyBatchAsync_ptsz(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                         CUmemcpyAttributes *, size_t *, size_t, size_t *,
                                         CUstream);
CUresult CUDAAPI cuMemcpyBatchAsync_v2(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                       CUmemcpyAttributes *, size_t *, size_t, CUstream);
CUresult CUDAAPI cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *, CUdeviceptr *, size_t *, size_t,
                                            CUmemcpyAttributes *, size_t *, size_t, CUstream);

#if CUDA_VERSION < 13000
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation *, CUmemAllocationType, CUmemoryPool);
#endif

#if CUDA_VERSION < 13010
CUresult CUDAAPI cuMulticastBindAddr_v2(CUmemGenericAllocationHandle, CUdevice, size_t, CUdeviceptr,
                                        size_t, unsigned long long);
CUresult CUDAAPI cuMulticastBindMem_v2(CUmemGenericAllocationHandle, CUdevice, size_t,
                                       CUmemGenericAllocationHandle, size_t, size_t,
                                       unsigned long long);
CUresult CUDAAPI cuLaunchHostFunc_v2(CUstream, CUhostFn, void *, unsigned int);
CUresult CUDAAPI cuLaunchHostFunc_v2_ptsz(CUstream, CUhostFn, void *, unsigned int);
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream, CUstreamCigCaptureParams *);
CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(CUstream, CUstreamCigCaptureParams *);
CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream);
CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream);
#endif

#if CUDA_VERSION < 13020
CUresult CUDAAPI cuMemcpyWithAttributesAsync(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *,
                                             CUstream);
CUresult CUDAAPI cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr, CUdeviceptr, size_t,
                                                  CUmemcpyAttributes *, CUstream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *, unsigned long long,
                                               CUstream);
CUresult CUDAAPI cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *, unsigned long long,
                                                    CUstream);
#endif

#if CUDA_VERSION < 13030
typedef cuuint32_t CUlogicalEndpointId;
CUresult CUDAAPI cuLogicalEndpointBindAddr(CUlogicalEndpointId, CUdevice, cuuint64_t, void *,
                                           cuuint64_t, unsigned long long);
CUresult CUDAAPI cuLogicalEndpointBindMem(CUlogicalEndpointId, CUdevice, cuuint64_t,
                                          CUmemGenericAllocationHandle, cuuint64_t, cuuint64_t,
                                          unsigned long long);
typedef CUresult(CUDA_CB *CUgraphRecaptureCallback)(void);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream, CUstreamCaptureMode, CUgraph,
                                               CUgraphRecaptureCallback, void *);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream, CUstreamCaptureMode, CUgraph,
                                                    CUgraphRecaptureCallback, void *);
#endif

#if CUDA_VERSION < 13040
CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode *, CUgraph, const CUgraphNode *,
                                   const CUgraphEdgeData *, size_t, CUgraphNodeParams *);
CUresult CUDAAPI cuGraphNodeSetParams_v2(CUgraphNode, CUgraphNodeParams *);
#endif

#if CUDA_VERSION < 13050
#define CU_FABRIC_COPY_OPERAND_TYPE_POINTER 1
typedef struct {
    int type;
    union {
        struct {
            CUdeviceptr ptr;
            CUmemLocation locHint;
        } ptr;
        struct {
            cuuint32_t id;
            cuuint64_t offset;
        } le;
    } op;
} CUfabricCpyOperand;
typedef struct {
    CUfabricCpyOperand src, dst;
    size_t size;
    unsigned int flags;
} CUDA_FABRIC_COPY_BATCH_OP;
CUresult CUDAAPI cuFabricCpyBatchAsync(size_t, CUDA_FABRIC_COPY_BATCH_OP *, unsigned long long,
                                       CUstream);
CUresult CUDAAPI cuFabricCpyBatchAsync_ptsz(size_t, CUDA_FABRIC_COPY_BATCH_OP *, unsigned long long,
                                            CUstream);
#endif

#endif
