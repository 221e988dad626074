/*
 * cuda.h with every entry point under its exact symbol name (cuMemAlloc_v2, not a macro cuMemAlloc
 * that means it), and with the prototypes that the headers at hand are too old to have: a library
 * built against CUDA 12 serves a program of CUDA 13 as well.
 */
#ifndef GPUSHIM_SHIM_CUDA_EXACT_H
#define GPUSHIM_SHIM_CUDA_EXACT_H

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include <cuda.h>

#ifdef cuMemAlloc
#error "cuda.h came before cuda_exact.h, with its renaming macros: include cuda_exact.h first"
#endif

/* The vendor's declarations of what is newer than the headers at hand. Pointers to types that such
 * headers lack are opaque here: the shim only passes them on. */
#if CUDA_VERSION < 12030
CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *, const void *,
                                             size_t, CUstreamCaptureMode);
CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream, CUgraph, const CUgraphNode *,
                                                  const void *, size_t, CUstreamCaptureMode);
#define GS_GRAPH_EDGE_DATA void
#else
#define GS_GRAPH_EDGE_DATA CUgraphEdgeData
#endif

#if CUDA_VERSION < 12080
typedef struct CUmemcpyAttributes_st CUmemcpyAttributes;
#endif
/* Of these, each header has some. */
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
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream, CUstreamCigCaptureParams *);
CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(CUstream, CUstreamCigCaptureParams *);
CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream);
CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream);
#endif

#if CUDA_VERSION < 13030
typedef CUresult(CUDA_CB *CUgraphRecaptureCallback)(void);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream, CUstreamCaptureMode, CUgraph,
                                               CUgraphRecaptureCallback, void *);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream, CUstreamCaptureMode, CUgraph,
                                                    CUgraphRecaptureCallback, void *);
#endif

#endif
