/*
 * The one table of the driver's entry points that are ours: a row is an exact exported symbol of
 * libcuda, what the shim does there, and the CUDA version that brought it.
 *
 *   OURS  the shim answers for its own memory; anything else goes to the driver
 *   NOTE  the shim notes the call and passes it on
 *   ROOM  passed on, and again where a full device has got memory back
 *   BOUND asked only where the option pool.limit is set: else look-ups get the driver's own
 *   FIND  the driver's own look-up: its answers are led to the hooks
 *
 * Adding a row takes a hook of that name in shim/hooks (without one the library does not link,
 * with a wrong prototype it does not compile), and nothing else: the struct of real functions, the
 * names that dlsym knows and the map from the driver's addresses to the hooks all come from here.
 *
 * cuMemAlloc, cuMemAllocPitch, cuMemFree and cuMemGetAddressRange without _v2 are not here on
 * purpose, nor are copies and fills without it. They are CUDA 2's forms with 32-bit addresses: our
 * addresses never fit in one, so such a call is never about our memory and an answer of ours could
 * not be returned.
 */
#ifndef GPUSHIM_SHIM_ENTRY_POINTS_H
#define GPUSHIM_SHIM_ENTRY_POINTS_H

/* clang-format off */
#define GS_ENTRIES(GS_ENTRY)                                    \
    GS_ENTRY(cuMemAlloc_v2,                         OURS,  3020) \
    GS_ENTRY(cuMemAllocPitch_v2,                    OURS,  3020) \
    GS_ENTRY(cuMemFree_v2,                          OURS,  3020) \
    GS_ENTRY(cuMemAllocAsync,                       OURS, 11020) \
    GS_ENTRY(cuMemAllocAsync_ptsz,                  OURS, 11020) \
    GS_ENTRY(cuMemAllocFromPoolAsync,               OURS, 11020) \
    GS_ENTRY(cuMemAllocFromPoolAsync_ptsz,          OURS, 11020) \
    GS_ENTRY(cuMemFreeAsync,                        OURS, 11020) \
    GS_ENTRY(cuMemFreeAsync_ptsz,                   OURS, 11020) \
    GS_ENTRY(cuMemGetInfo_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemGetInfo,                          BOUND, 2000) \
    GS_ENTRY(cuDeviceTotalMem,                      BOUND, 2000) \
    GS_ENTRY(cuDeviceTotalMem_v2,                   BOUND, 3020) \
    GS_ENTRY(cuMemGetAddressRange_v2,               OURS,  3020) \
    GS_ENTRY(cuPointerGetAttribute,                 OURS,  4000) \
    GS_ENTRY(cuPointerGetAttributes,                OURS,  7000) \
    GS_ENTRY(cuMemRetainAllocationHandle,           OURS, 11000) \
    GS_ENTRY(cuPointerSetAttribute,                 OURS,  6000) \
    GS_ENTRY(cuMemPoolTrimTo,                       OURS, 11020) \
    GS_ENTRY(cuMemPoolGetAttribute,                 OURS, 11020) \
    GS_ENTRY(cuMemPoolSetAttribute,                 OURS, 11020) \
    GS_ENTRY(cuMemPoolSetAccess,                    NOTE, 11020) \
    GS_ENTRY(cuMemPoolDestroy,                        NOTE, 11020) \
    GS_ENTRY(cuMemPoolExportPointer,                OURS, 11020) \
    GS_ENTRY(cuMemMap,                              OURS, 10020) \
    GS_ENTRY(cuMemRelease,                          NOTE, 10020) \
    GS_ENTRY(cuMemAddressReserve,                   NOTE, 10020) \
    GS_ENTRY(cuMemExportToShareableHandle,          OURS, 10020) \
    GS_ENTRY(cuMemImportFromShareableHandle,        NOTE, 10020) \
    GS_ENTRY(cuMemGetAllocationPropertiesFromHandle, OURS, 10020) \
    GS_ENTRY(cuMemUnmap,                            OURS, 10020) \
    GS_ENTRY(cuMemAddressFree,                      OURS, 10020) \
    GS_ENTRY(cuMemSetAccess,                        OURS, 10020) \
    GS_ENTRY(cuMemGetAccess,                        OURS, 10020) \
    GS_ENTRY(cuMemGetHandleForAddressRange,         OURS, 11070) \
    GS_ENTRY(cuMulticastBindAddr,                     OURS, 12010) \
    GS_ENTRY(cuMulticastBindAddr_v2,                  OURS, 13010) \
    GS_ENTRY(cuEGLStreamProducerPresentFrame,         OURS,  7000) \
    GS_ENTRY(cuIpcGetMemHandle,                     OURS,  4010) \
    GS_ENTRY(cuIpcOpenMemHandle,                    OURS,  4010) \
    GS_ENTRY(cuIpcOpenMemHandle_v2,                 OURS, 11000) \
    GS_ENTRY(cuIpcCloseMemHandle,                   OURS,  4010) \
    GS_ENTRY(cuMemcpy,                              OURS,  4000) \
    GS_ENTRY(cuMemcpy_ptds,                         OURS,  7000) \
    GS_ENTRY(cuMemcpyDtoD_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemcpyDtoD_v2_ptds,                  OURS,  7000) \
    GS_ENTRY(cuMemcpyHtoD_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemcpyHtoD_v2_ptds,                  OURS,  7000) \
    GS_ENTRY(cuMemcpyDtoH_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemcpyDtoH_v2_ptds,                  OURS,  7000) \
    GS_ENTRY(cuMemcpyDtoA_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemcpyDtoA_v2_ptds,                  OURS,  7000) \
    GS_ENTRY(cuMemcpyAtoD_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemcpyAtoD_v2_ptds,                  OURS,  7000) \
    GS_ENTRY(cuMemcpyAsync,                         OURS,  4000) \
    GS_ENTRY(cuMemcpyAsync_ptsz,                    OURS,  7000) \
    GS_ENTRY(cuMemcpyDtoDAsync_v2,                  OURS,  3020) \
    GS_ENTRY(cuMemcpyDtoDAsync_v2_ptsz,             OURS,  7000) \
    GS_ENTRY(cuMemcpyHtoDAsync_v2,                  OURS,  3020) \
    GS_ENTRY(cuMemcpyHtoDAsync_v2_ptsz,             OURS,  7000) \
    GS_ENTRY(cuMemcpyDtoHAsync_v2,                  OURS,  3020) \
    GS_ENTRY(cuMemcpyDtoHAsync_v2_ptsz,             OURS,  7000) \
    GS_ENTRY(cuMemcpyPeer,                          OURS,  4000) \
    GS_ENTRY(cuMemcpyPeer_ptds,                     OURS,  7000) \
    GS_ENTRY(cuMemcpyPeerAsync,                     OURS,  4000) \
    GS_ENTRY(cuMemcpyPeerAsync_ptsz,                OURS,  7000) \
    GS_ENTRY(cuMemsetD8_v2,                         OURS,  3020) \
    GS_ENTRY(cuMemsetD8_v2_ptds,                    OURS,  7000) \
    GS_ENTRY(cuMemsetD8Async,                       OURS,  3020) \
    GS_ENTRY(cuMemsetD8Async_ptsz,                  OURS,  7000) \
    GS_ENTRY(cuMemsetD2D8_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemsetD2D8_v2_ptds,                  OURS,  7000) \
    GS_ENTRY(cuMemsetD2D8Async,                     OURS,  3020) \
    GS_ENTRY(cuMemsetD2D8Async_ptsz,                OURS,  7000) \
    GS_ENTRY(cuMemsetD16_v2,                        OURS,  3020) \
    GS_ENTRY(cuMemsetD16_v2_ptds,                   OURS,  7000) \
    GS_ENTRY(cuMemsetD16Async,                      OURS,  3020) \
    GS_ENTRY(cuMemsetD16Async_ptsz,                 OURS,  7000) \
    GS_ENTRY(cuMemsetD2D16_v2,                      OURS,  3020) \
    GS_ENTRY(cuMemsetD2D16_v2_ptds,                 OURS,  7000) \
    GS_ENTRY(cuMemsetD2D16Async,                    OURS,  3020) \
    GS_ENTRY(cuMemsetD2D16Async_ptsz,               OURS,  7000) \
    GS_ENTRY(cuMemsetD32_v2,                        OURS,  3020) \
    GS_ENTRY(cuMemsetD32_v2_ptds,                   OURS,  7000) \
    GS_ENTRY(cuMemsetD32Async,                      OURS,  3020) \
    GS_ENTRY(cuMemsetD32Async_ptsz,                 OURS,  7000) \
    GS_ENTRY(cuMemsetD2D32_v2,                      OURS,  3020) \
    GS_ENTRY(cuMemsetD2D32_v2_ptds,                 OURS,  7000) \
    GS_ENTRY(cuMemsetD2D32Async,                    OURS,  3020) \
    GS_ENTRY(cuMemsetD2D32Async_ptsz,               OURS,  7000) \
    GS_ENTRY(cuMemcpy2D_v2,                         OURS,  3020) \
    GS_ENTRY(cuMemcpy2D_v2_ptds,                    OURS,  7000) \
    GS_ENTRY(cuMemcpy2DUnaligned_v2,                OURS,  3020) \
    GS_ENTRY(cuMemcpy2DUnaligned_v2_ptds,           OURS,  7000) \
    GS_ENTRY(cuMemcpy2DAsync_v2,                    OURS,  3020) \
    GS_ENTRY(cuMemcpy2DAsync_v2_ptsz,               OURS,  7000) \
    GS_ENTRY(cuMemcpy3D_v2,                         OURS,  3020) \
    GS_ENTRY(cuMemcpy3D_v2_ptds,                    OURS,  7000) \
    GS_ENTRY(cuMemcpy3DAsync_v2,                    OURS,  3020) \
    GS_ENTRY(cuMemcpy3DAsync_v2_ptsz,               OURS,  7000) \
    GS_ENTRY(cuMemcpy3DPeer,                        OURS,  4000) \
    GS_ENTRY(cuMemcpy3DPeer_ptds,                   OURS,  7000) \
    GS_ENTRY(cuMemcpy3DPeerAsync,                   OURS,  4000) \
    GS_ENTRY(cuMemcpy3DPeerAsync_ptsz,              OURS,  7000) \
    GS_ENTRY(cuMemcpyBatchAsync,                    OURS, 12080) \
    GS_ENTRY(cuMemcpyBatchAsync_ptsz,               OURS, 12080) \
    GS_ENTRY(cuMemcpyBatchAsync_v2,                 OURS, 13000) \
    GS_ENTRY(cuMemcpyBatchAsync_v2_ptsz,            OURS, 13000) \
    GS_ENTRY(cuMemcpy3DBatchAsync,                  OURS, 12080) \
    GS_ENTRY(cuMemcpy3DBatchAsync_ptsz,             OURS, 12080) \
    GS_ENTRY(cuMemcpy3DBatchAsync_v2,               OURS, 13000) \
    GS_ENTRY(cuMemcpy3DBatchAsync_v2_ptsz,          OURS, 13000) \
    GS_ENTRY(cuMemcpyWithAttributesAsync,           OURS, 13020) \
    GS_ENTRY(cuMemcpyWithAttributesAsync_ptsz,      OURS, 13020) \
    GS_ENTRY(cuMemcpy3DWithAttributesAsync,         OURS, 13020) \
    GS_ENTRY(cuMemcpy3DWithAttributesAsync_ptsz,    OURS, 13020) \
    GS_ENTRY(cuGraphAddMemcpyNode,                  OURS, 10000) \
    GS_ENTRY(cuGraphMemcpyNodeSetParams,            OURS, 10000) \
    GS_ENTRY(cuGraphExecMemcpyNodeSetParams,        OURS, 10020) \
    GS_ENTRY(cuGraphAddMemsetNode,                  OURS, 10000) \
    GS_ENTRY(cuGraphMemsetNodeSetParams,            OURS, 10000) \
    GS_ENTRY(cuGraphExecMemsetNodeSetParams,        OURS, 10020) \
    GS_ENTRY(cuGraphAddNode,                        OURS, 12020) \
    GS_ENTRY(cuGraphAddNode_v2,                     OURS, 12030) \
    GS_ENTRY(cuGraphAddNode_v3,                     OURS, 13040) \
    GS_ENTRY(cuGraphNodeSetParams,                  OURS, 12020) \
    GS_ENTRY(cuGraphNodeSetParams_v2,               OURS, 13040) \
    GS_ENTRY(cuGraphExecNodeSetParams,              OURS, 12020) \
    GS_ENTRY(cuMemCreate,                           ROOM, 10020) \
    GS_ENTRY(cuArrayCreate_v2,                      ROOM,  3020) \
    GS_ENTRY(cuArray3DCreate_v2,                    ROOM,  3020) \
    GS_ENTRY(cuMipmappedArrayCreate,                ROOM,  5000) \
    GS_ENTRY(cuCtxCreate,                           ROOM,  2000) \
    GS_ENTRY(cuCtxCreate_v2,                        ROOM,  3020) \
    GS_ENTRY(cuCtxCreate_v3,                        ROOM, 11040) \
    GS_ENTRY(cuCtxCreate_v4,                        ROOM, 12050) \
    GS_ENTRY(cuGLCtxCreate,                           ROOM,  2000) \
    GS_ENTRY(cuGLCtxCreate_v2,                        ROOM,  3020) \
    GS_ENTRY(cuVDPAUCtxCreate,                        ROOM,  3010) \
    GS_ENTRY(cuVDPAUCtxCreate_v2,                     ROOM,  3020) \
    GS_ENTRY(cuDevicePrimaryCtxRetain,              ROOM,  7000) \
    GS_ENTRY(cuGreenCtxCreate,                      ROOM, 12040) \
    GS_ENTRY(cuStreamCreate,                        ROOM,  2000) \
    GS_ENTRY(cuStreamCreateWithPriority,            ROOM,  5050) \
    GS_ENTRY(cuModuleLoad,                          ROOM,  2000) \
    GS_ENTRY(cuModuleLoadData,                      ROOM,  2000) \
    GS_ENTRY(cuModuleLoadDataEx,                    ROOM,  2010) \
    GS_ENTRY(cuModuleLoadFatBinary,                 ROOM,  2000) \
    GS_ENTRY(cuModuleGetFunction,                   ROOM,  2000) \
    GS_ENTRY(cuLibraryLoadData,                     ROOM, 12000) \
    GS_ENTRY(cuLibraryLoadFromFile,                 ROOM, 12000) \
    GS_ENTRY(cuLibraryGetModule,                    ROOM, 12000) \
    GS_ENTRY(cuKernelGetFunction,                   ROOM, 12000) \
    GS_ENTRY(cuLaunchKernel,                        ROOM,  4000) \
    GS_ENTRY(cuLaunchKernel_ptsz,                   ROOM,  7000) \
    GS_ENTRY(cuLaunchKernelEx,                      ROOM, 11060) \
    GS_ENTRY(cuLaunchKernelEx_ptsz,                 ROOM, 11060) \
    GS_ENTRY(cuLaunchCooperativeKernel,             ROOM,  9000) \
    GS_ENTRY(cuLaunchCooperativeKernel_ptsz,        ROOM,  9000) \
    GS_ENTRY(cuGreenCtxStreamCreate,                ROOM, 12050) \
    GS_ENTRY(cuCtxSetLimit,                         ROOM,  3010) \
    GS_ENTRY(cuModuleGetGlobal_v2,                  ROOM,  3020) \
    GS_ENTRY(cuLibraryGetKernel,                    ROOM, 12000) \
    GS_ENTRY(cuLibraryGetGlobal,                    ROOM, 12000) \
    GS_ENTRY(cuLibraryGetManaged,                   ROOM, 12000) \
    GS_ENTRY(cuLibraryGetUnifiedFunction,           ROOM, 12000) \
    GS_ENTRY(cuKernelGetAttribute,                  ROOM, 12000) \
    GS_ENTRY(cuKernelSetAttribute,                  ROOM, 12000) \
    GS_ENTRY(cuKernelSetCacheConfig,                ROOM, 12000) \
    GS_ENTRY(cuFuncLoad,                            ROOM, 12040) \
    GS_ENTRY(cuFuncGetAttribute,                    ROOM,  2020) \
    GS_ENTRY(cuFuncSetAttribute,                    ROOM,  9000) \
    GS_ENTRY(cuFuncSetCacheConfig,                  ROOM,  3000) \
    GS_ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessor,ROOM,  6050) \
    GS_ENTRY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,ROOM,  7000) \
    GS_ENTRY(cuOccupancyMaxPotentialBlockSize,      ROOM,  6050) \
    GS_ENTRY(cuOccupancyMaxPotentialBlockSizeWithFlags,ROOM,  7000) \
    GS_ENTRY(cuOccupancyAvailableDynamicSMemPerBlock,ROOM, 10020) \
    GS_ENTRY(cuOccupancyMaxPotentialClusterSize,    ROOM, 11070) \
    GS_ENTRY(cuOccupancyMaxActiveClusters,          ROOM, 11070) \
    GS_ENTRY(cuGraphAddKernelNode,                  ROOM, 10000) \
    GS_ENTRY(cuGraphAddKernelNode_v2,               ROOM, 12000) \
    GS_ENTRY(cuGraphExecUpdate,                     ROOM, 10020) \
    GS_ENTRY(cuGraphExecUpdate_v2,                  ROOM, 12000) \
    GS_ENTRY(cuGraphInstantiate,                    ROOM, 10000) \
    GS_ENTRY(cuGraphInstantiate_v2,                 ROOM, 11000) \
    GS_ENTRY(cuGraphInstantiateWithFlags,           ROOM, 11040) \
    GS_ENTRY(cuGraphInstantiateWithParams,          ROOM, 12000) \
    GS_ENTRY(cuGraphInstantiateWithParams_ptsz,     ROOM, 12000) \
    GS_ENTRY(cuGraphAddMemAllocNode,                ROOM, 11040) \
    GS_ENTRY(cuGraphUpload,                         ROOM, 11010) \
    GS_ENTRY(cuGraphUpload_ptsz,                    ROOM, 11010) \
    GS_ENTRY(cuGraphLaunch,                         ROOM, 10000) \
    GS_ENTRY(cuGraphLaunch_ptsz,                    ROOM, 10000) \
    GS_ENTRY(cuLaunch,                              NOTE,  2000) \
    GS_ENTRY(cuLaunchGrid,                          NOTE,  2000) \
    GS_ENTRY(cuLaunchGridAsync,                     NOTE,  2000) \
    GS_ENTRY(cuLaunchCooperativeKernelMultiDevice,  NOTE,  9000) \
    GS_ENTRY(cuLaunchHostFunc,                      NOTE, 10000) \
    GS_ENTRY(cuLaunchHostFunc_ptsz,                 NOTE, 10000) \
    GS_ENTRY(cuLaunchHostFunc_v2,                     NOTE, 13010) \
    GS_ENTRY(cuLaunchHostFunc_v2_ptsz,                NOTE, 13010) \
    GS_ENTRY(cuStreamAddCallback,                   NOTE,  5000) \
    GS_ENTRY(cuStreamAddCallback_ptsz,              NOTE,  7000) \
    GS_ENTRY(cuStreamWaitEvent,                     NOTE,  3020) \
    GS_ENTRY(cuStreamWaitEvent_ptsz,                NOTE,  7000) \
    GS_ENTRY(cuWaitExternalSemaphoresAsync,         NOTE, 10000) \
    GS_ENTRY(cuWaitExternalSemaphoresAsync_ptsz,    NOTE, 10000) \
    GS_ENTRY(cuCtxWaitEvent,                        NOTE, 12050) \
    GS_ENTRY(cuGreenCtxWaitEvent,                   NOTE, 12040) \
    GS_ENTRY(cuStreamWriteValue32,                  NOTE,  8000) \
    GS_ENTRY(cuStreamWriteValue32_ptsz,             NOTE,  8000) \
    GS_ENTRY(cuStreamWriteValue32_v2,               NOTE, 11070) \
    GS_ENTRY(cuStreamWriteValue32_v2_ptsz,          NOTE, 11070) \
    GS_ENTRY(cuStreamWriteValue64,                  NOTE,  9000) \
    GS_ENTRY(cuStreamWriteValue64_ptsz,             NOTE,  9000) \
    GS_ENTRY(cuStreamWriteValue64_v2,               NOTE, 11070) \
    GS_ENTRY(cuStreamWriteValue64_v2_ptsz,          NOTE, 11070) \
    GS_ENTRY(cuStreamWaitValue32,                   NOTE,  8000) \
    GS_ENTRY(cuStreamWaitValue32_ptsz,              NOTE,  8000) \
    GS_ENTRY(cuStreamWaitValue32_v2,                NOTE, 11070) \
    GS_ENTRY(cuStreamWaitValue32_v2_ptsz,           NOTE, 11070) \
    GS_ENTRY(cuStreamWaitValue64,                   NOTE,  9000) \
    GS_ENTRY(cuStreamWaitValue64_ptsz,              NOTE,  9000) \
    GS_ENTRY(cuStreamWaitValue64_v2,                NOTE, 11070) \
    GS_ENTRY(cuStreamWaitValue64_v2_ptsz,           NOTE, 11070) \
    GS_ENTRY(cuStreamBatchMemOp,                    NOTE,  8000) \
    GS_ENTRY(cuStreamBatchMemOp_ptsz,               NOTE,  8000) \
    GS_ENTRY(cuStreamBatchMemOp_v2,                 NOTE, 11070) \
    GS_ENTRY(cuStreamBatchMemOp_v2_ptsz,            NOTE, 11070) \
    GS_ENTRY(cuMemBatchDecompressAsync,             NOTE, 12060) \
    GS_ENTRY(cuMemBatchDecompressAsync_ptsz,        NOTE, 12060) \
    GS_ENTRY(cuFabricCpyBatchAsync,                 NOTE, 13050) \
    GS_ENTRY(cuFabricCpyBatchAsync_ptsz,            NOTE, 13050) \
    GS_ENTRY(cuCtxEnablePeerAccess,                 NOTE,  4000) \
    GS_ENTRY(cuCtxDisablePeerAccess,                NOTE,  4000) \
    GS_ENTRY(cuStreamBeginCapture,                  NOTE, 10000) \
    GS_ENTRY(cuStreamBeginCapture_ptsz,             NOTE, 10000) \
    GS_ENTRY(cuStreamBeginCapture_v2,               NOTE, 10010) \
    GS_ENTRY(cuStreamBeginCapture_v2_ptsz,          NOTE, 10010) \
    GS_ENTRY(cuStreamBeginCaptureToGraph,           NOTE, 12030) \
    GS_ENTRY(cuStreamBeginCaptureToGraph_ptsz,      NOTE, 12030) \
    GS_ENTRY(cuStreamBeginCaptureToCig,             NOTE, 13010) \
    GS_ENTRY(cuStreamBeginCaptureToCig_ptsz,        NOTE, 13010) \
    GS_ENTRY(cuStreamBeginRecaptureToGraph,         NOTE, 13030) \
    GS_ENTRY(cuStreamBeginRecaptureToGraph_ptsz,    NOTE, 13030) \
    GS_ENTRY(cuStreamEndCapture,                    NOTE, 10000) \
    GS_ENTRY(cuStreamEndCapture_ptsz,               NOTE, 10000) \
    GS_ENTRY(cuStreamEndCaptureToCig,               NOTE, 13010) \
    GS_ENTRY(cuStreamEndCaptureToCig_ptsz,          NOTE, 13010) \
    GS_ENTRY(cuStreamDestroy,                       NOTE,  2000) \
    GS_ENTRY(cuStreamDestroy_v2,                    NOTE,  4000) \
    GS_ENTRY(cuCtxDestroy,                          NOTE,  2000) \
    GS_ENTRY(cuCtxDestroy_v2,                       NOTE,  4000) \
    GS_ENTRY(cuCtxDetach,                           NOTE,  2000) \
    GS_ENTRY(cuDevicePrimaryCtxReset,               NOTE,  7000) \
    GS_ENTRY(cuDevicePrimaryCtxReset_v2,            NOTE, 11000) \
    GS_ENTRY(cuDevicePrimaryCtxRelease,             NOTE,  7000) \
    GS_ENTRY(cuDevicePrimaryCtxRelease_v2,          NOTE, 11000) \
    GS_ENTRY(cuGetExportTable,                      NOTE,  3000) \
    GS_ENTRY(cuGreenCtxDestroy,                     NOTE, 12040) \
    GS_ENTRY(cuDeviceSetMemPool,                    NOTE, 11020) \
    GS_ENTRY(cuMemSetMemPool,                       NOTE, 13000) \
    GS_ENTRY(cuGetProcAddress,                      FIND, 11030) \
    GS_ENTRY(cuGetProcAddress_v2,                   FIND, 12000)
/* clang-format on */

#endif
