/*
 * The driver's functions to the newest CUDA whose headers were looked through, by exact name and in
 * order, that need no row in entry_points.h: they submit no work on memory, begin no capture, and
 * give and take none of the memory that the library has. Where that is not plain, pass_through.txt
 * or no_work.txt says why. tests/preload/check_table.py holds this to the vendor's headers. What is
 * neither here nor a row is newer than the library (hooks/newer.c).
 */
#ifndef GPUSHIM_SHIM_KNOWN_NAMES_H
#define GPUSHIM_SHIM_KNOWN_NAMES_H

#define GS_KNOWN_CUDA 13050

#define GS_KNOWN_NAMES                                                                             \
    "cuArray3DCreate cuArray3DGetDescriptor cuArray3DGetDescriptor_v2 cuArrayCreate "              \
    "cuArrayDestroy cuArrayGetDescriptor cuArrayGetDescriptor_v2 cuArrayGetMemoryRequirements "    \
    "cuArrayGetPlane cuArrayGetSparseProperties cuCheckpointOperationComplete "                    \
    "cuCheckpointProcessCheckpoint cuCheckpointProcessGetRestoreThreadId "                         \
    "cuCheckpointProcessGetState cuCheckpointProcessLock cuCheckpointProcessRestore "              \
    "cuCheckpointProcessUnlock cuCoredumpDeregisterCompleteCallback "                              \
    "cuCoredumpDeregisterStartCallback cuCoredumpGetAttribute cuCoredumpGetAttributeGlobal "       \
    "cuCoredumpRegisterCompleteCallback cuCoredumpRegisterStartCallback cuCoredumpSetAttribute "   \
    "cuCoredumpSetAttributeGlobal cuCtxAttach cuCtxFromGreenCtx cuCtxGetApiVersion "               \
    "cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevResource cuCtxGetDevice cuCtxGetDevice_v2 "    \
    "cuCtxGetExecAffinity cuCtxGetFlags cuCtxGetId cuCtxGetSharedMemConfig "                       \
    "cuCtxGetStreamPriorityRange cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxPushCurrent "             \
    "cuCtxPushCurrent_v2 cuCtxRecordEvent cuCtxResetPersistingL2Cache cuCtxSetCacheConfig "        \
    "cuCtxSetCurrent cuCtxSetFlags cuCtxSetSharedMemConfig cuCtxSynchronize cuCtxSynchronize_v2 "  \
    "cuDestroyExternalMemory cuDestroyExternalSemaphore cuDevResourceGenerateDesc "                \
    "cuDevSmResourceSplit cuDevSmResourceSplitByCount cuDeviceCanAccessPeer "                      \
    "cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetByPCIBusId "            \
    "cuDeviceGetCliqueCount cuDeviceGetCliqueInfo cuDeviceGetCount cuDeviceGetDefaultMemPool "     \
    "cuDeviceGetDevResource cuDeviceGetExecAffinitySupport cuDeviceGetFabricClusterUuid "          \
    "cuDeviceGetGraphMemAttribute cuDeviceGetHostAtomicCapabilities cuDeviceGetLuid "              \
    "cuDeviceGetMemPool cuDeviceGetName cuDeviceGetNvSciSyncAttributes "                           \
    "cuDeviceGetP2PAtomicCapabilities cuDeviceGetP2PAttribute cuDeviceGetPCIBusId "                \
    "cuDeviceGetProperties cuDeviceGetTexture1DLinearMaxWidth cuDeviceGetUuid cuDeviceGetUuid_v2 " \
    "cuDeviceGraphMemTrim cuDevicePrimaryCtxGetState cuDevicePrimaryCtxSetFlags "                  \
    "cuDevicePrimaryCtxSetFlags_v2 cuDeviceRegisterAsyncNotification "                             \
    "cuDeviceSetGraphMemAttribute cuDeviceUnregisterAsyncNotification cuDriverGetVersion "         \
    "cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerConnect "                                  \
    "cuEGLStreamConsumerConnectWithFlags cuEGLStreamConsumerDisconnect "                           \
    "cuEGLStreamConsumerReleaseFrame cuEGLStreamProducerConnect cuEGLStreamProducerDisconnect "    \
    "cuEGLStreamProducerReturnFrame cuEventCreate cuEventCreateFromEGLSync cuEventDestroy "        \
    "cuEventDestroy_v2 cuEventElapsedTime cuEventElapsedTime_v2 cuEventQuery cuEventRecord "       \
    "cuEventRecordWithFlags cuEventRecordWithFlags_ptsz cuEventRecord_ptsz cuEventSynchronize "    \
    "cuExternalMemoryGetMappedBuffer cuExternalMemoryGetMappedMipmappedArray "                     \
    "cuFlushGPUDirectRDMAWrites cuFuncGetModule cuFuncGetName cuFuncGetParamCount "                \
    "cuFuncGetParamInfo cuFuncIsLoaded cuFuncSetBlockShape cuFuncSetSharedMemConfig "              \
    "cuFuncSetSharedSize cuGLGetDevices cuGLGetDevices_v2 cuGLInit cuGLMapBufferObject "           \
    "cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2 cuGLMapBufferObjectAsync_v2_ptsz "       \
    "cuGLMapBufferObject_v2 cuGLMapBufferObject_v2_ptds cuGLRegisterBufferObject "                 \
    "cuGLSetBufferObjectMapFlags cuGLUnmapBufferObject cuGLUnmapBufferObjectAsync "                \
    "cuGLUnregisterBufferObject cuGetErrorName cuGetErrorString cuGraphAddBatchMemOpNode "         \
    "cuGraphAddChildGraphNode cuGraphAddDependencies cuGraphAddDependencies_v2 "                   \
    "cuGraphAddEmptyNode cuGraphAddEventRecordNode cuGraphAddEventWaitNode "                       \
    "cuGraphAddExternalSemaphoresSignalNode cuGraphAddExternalSemaphoresWaitNode "                 \
    "cuGraphAddHostNode cuGraphAddMemFreeNode cuGraphBatchMemOpNodeGetParams "                     \
    "cuGraphBatchMemOpNodeSetParams cuGraphChildGraphNodeGetGraph cuGraphClone "                   \
    "cuGraphConditionalHandleCreate cuGraphCreate cuGraphDebugDotPrint cuGraphDestroy "            \
    "cuGraphDestroyNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent "            \
    "cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent "                                   \
    "cuGraphExecBatchMemOpNodeSetParams cuGraphExecChildGraphNodeSetParams cuGraphExecDestroy "    \
    "cuGraphExecEventRecordNodeSetEvent cuGraphExecEventWaitNodeSetEvent "                         \
    "cuGraphExecExternalSemaphoresSignalNodeSetParams "                                            \
    "cuGraphExecExternalSemaphoresWaitNodeSetParams cuGraphExecGetFlags cuGraphExecGetId "         \
    "cuGraphExecHostNodeSetParams cuGraphExecKernelNodeSetParams "                                 \
    "cuGraphExecKernelNodeSetParams_v2 cuGraphExternalSemaphoresSignalNodeGetParams "              \
    "cuGraphExternalSemaphoresSignalNodeSetParams cuGraphExternalSemaphoresWaitNodeGetParams "     \
    "cuGraphExternalSemaphoresWaitNodeSetParams cuGraphGetEdges cuGraphGetEdges_v2 cuGraphGetId "  \
    "cuGraphGetNodes cuGraphGetRootNodes cuGraphHostNodeGetParams cuGraphHostNodeSetParams "       \
    "cuGraphKernelNodeCopyAttributes cuGraphKernelNodeGetAttribute cuGraphKernelNodeGetParams "    \
    "cuGraphKernelNodeGetParams_v2 cuGraphKernelNodeSetAttribute cuGraphKernelNodeSetParams "      \
    "cuGraphKernelNodeSetParams_v2 cuGraphMemAllocNodeGetParams cuGraphMemFreeNodeGetParams "      \
    "cuGraphMemcpyNodeGetParams cuGraphMemsetNodeGetParams cuGraphNodeFindInClone "                \
    "cuGraphNodeGetContainingGraph cuGraphNodeGetDependencies cuGraphNodeGetDependencies_v2 "      \
    "cuGraphNodeGetDependentNodes cuGraphNodeGetDependentNodes_v2 cuGraphNodeGetEnabled "          \
    "cuGraphNodeGetLocalId cuGraphNodeGetParams cuGraphNodeGetToolsId cuGraphNodeGetType "         \
    "cuGraphNodeSetEnabled cuGraphReleaseUserObject cuGraphRemoveDependencies "                    \
    "cuGraphRemoveDependencies_v2 cuGraphRetainUserObject cuGraphicsEGLRegisterImage "             \
    "cuGraphicsGLRegisterBuffer cuGraphicsGLRegisterImage cuGraphicsMapResources "                 \
    "cuGraphicsMapResources_ptsz cuGraphicsResourceGetMappedEglFrame "                             \
    "cuGraphicsResourceGetMappedMipmappedArray cuGraphicsResourceGetMappedPointer "                \
    "cuGraphicsResourceGetMappedPointer_v2 cuGraphicsResourceSetMapFlags "                         \
    "cuGraphicsResourceSetMapFlags_v2 cuGraphicsSubResourceGetMappedArray "                        \
    "cuGraphicsUnmapResources cuGraphicsUnmapResources_ptsz cuGraphicsUnregisterResource "         \
    "cuGraphicsVDPAURegisterOutputSurface cuGraphicsVDPAURegisterVideoSurface "                    \
    "cuGreenCtxGetDevResource cuGreenCtxGetId cuGreenCtxRecordEvent cuImportExternalMemory "       \
    "cuImportExternalSemaphore cuInit "                                                            \
    "cuKernelGetLibrary cuKernelGetName cuKernelGetParamCount cuKernelGetParamInfo "               \
    "cuLibraryEnumerateKernels cuLibraryGetKernelCount cuLibraryUnload cuLinkAddData "             \
    "cuLinkAddData_v2 cuLinkAddFile cuLinkAddFile_v2 cuLinkComplete cuLinkCreate cuLinkCreate_v2 " \
    "cuLinkDestroy cuLogicalEndpointAddDevice "                                                    \
    "cuLogicalEndpointCreate cuLogicalEndpointDestroy cuLogicalEndpointExport "                    \
    "cuLogicalEndpointGetLimits cuLogicalEndpointIdRelease cuLogicalEndpointIdReserve "            \
    "cuLogicalEndpointImport cuLogicalEndpointQuery cuLogicalEndpointUnbind cuLogsCurrent "        \
    "cuLogsDumpToFile cuLogsDumpToMemory cuLogsRegisterCallback cuLogsUnregisterCallback "         \
    "cuMemAdvise cuMemAdvise_v2 cuMemAlloc cuMemAllocHost cuMemAllocHost_v2 cuMemAllocManaged "    \
    "cuMemAllocPitch cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz "    \
    "cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz cuMemFree cuMemFreeHost "                  \
    "cuMemGetAddressRange cuMemGetAllocationGranularity cuMemGetDefaultMemPool "                   \
    "cuMemGetLocationInfo cuMemGetMemPool cuMemHostAlloc cuMemHostGetDevicePointer "               \
    "cuMemHostGetDevicePointer_v2 cuMemHostGetFlags cuMemHostRegister cuMemHostRegister_v2 "       \
    "cuMemHostUnregister cuMemPoolCreate "                                                         \
    "cuMemPoolExportToShareableHandle cuMemPoolGetAccess cuMemPoolImportFromShareableHandle "      \
    "cuMemPoolImportPointer cuMemPrefetchAsync cuMemPrefetchAsync_ptsz cuMemPrefetchAsync_v2 "     \
    "cuMemPrefetchAsync_v2_ptsz cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz "             \
    "cuMemRangeGetAttribute cuMemRangeGetAttributes cuMemcpy2D cuMemcpy2DAsync "                   \
    "cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA cuMemcpyAtoA_v2 "                 \
    "cuMemcpyAtoA_v2_ptds cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2 "       \
    "cuMemcpyAtoHAsync_v2_ptsz cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds cuMemcpyDtoA cuMemcpyDtoD "    \
    "cuMemcpyDtoDAsync cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync "             \
    "cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds "         \
    "cuMemcpyHtoD cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 "         \
    "cuMemsetD32 cuMemsetD8 cuMipmappedArrayDestroy cuMipmappedArrayGetLevel "                     \
    "cuMipmappedArrayGetMemoryRequirements cuMipmappedArrayGetSparseProperties "                   \
    "cuModuleEnumerateFunctions cuModuleGetFunctionCount cuModuleGetGlobal "                       \
    "cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef cuModuleUnload "                  \
    "cuMulticastAddDevice cuMulticastGetGranularity cuMulticastUnbind cuParamSetSize "             \
    "cuParamSetTexRef cuParamSetf cuParamSeti cuParamSetv cuProfilerInitialize cuProfilerStart "   \
    "cuProfilerStop "                                                                              \
    "cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz cuStreamAttachMemAsync " \
    "cuStreamAttachMemAsync_ptsz cuStreamCopyAttributes cuStreamCopyAttributes_ptsz "              \
    "cuStreamGetAttribute cuStreamGetAttribute_ptsz cuStreamGetCaptureInfo "                       \
    "cuStreamGetCaptureInfo_ptsz cuStreamGetCaptureInfo_v2 cuStreamGetCaptureInfo_v2_ptsz "        \
    "cuStreamGetCaptureInfo_v3 cuStreamGetCaptureInfo_v3_ptsz cuStreamGetCtx cuStreamGetCtx_ptsz " \
    "cuStreamGetCtx_v2 cuStreamGetCtx_v2_ptsz cuStreamGetDevResource cuStreamGetDevResource_ptsz " \
    "cuStreamGetDevice cuStreamGetDevice_ptsz cuStreamGetFlags cuStreamGetFlags_ptsz "             \
    "cuStreamGetGreenCtx cuStreamGetId cuStreamGetId_ptsz cuStreamGetPriority "                    \
    "cuStreamGetPriority_ptsz cuStreamIsCapturing cuStreamIsCapturing_ptsz cuStreamQuery "         \
    "cuStreamQuery_ptsz cuStreamSetAttribute cuStreamSetAttribute_ptsz cuStreamSynchronize "       \
    "cuStreamSynchronize_ptsz cuStreamUpdateCaptureDependencies "                                  \
    "cuStreamUpdateCaptureDependencies_ptsz cuStreamUpdateCaptureDependencies_v2 "                 \
    "cuStreamUpdateCaptureDependencies_v2_ptsz cuSurfObjectCreate cuSurfObjectDestroy "            \
    "cuSurfObjectGetResourceDesc cuSurfRefGetArray cuSurfRefSetArray cuTensorMapEncodeIm2col "     \
    "cuTensorMapEncodeIm2colWide cuTensorMapEncodeTiled cuTensorMapReplaceAddress "                \
    "cuTensorMapSetAllocationClass cuTexObjectDestroy "                                            \
    "cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc cuTexObjectGetTextureDesc "         \
    "cuTexRefCreate cuTexRefDestroy cuTexRefGetAddress cuTexRefGetAddressMode "                    \
    "cuTexRefGetAddress_v2 cuTexRefGetArray cuTexRefGetBorderColor cuTexRefGetFilterMode "         \
    "cuTexRefGetFlags cuTexRefGetFormat cuTexRefGetMaxAnisotropy cuTexRefGetMipmapFilterMode "     \
    "cuTexRefGetMipmapLevelBias cuTexRefGetMipmapLevelClamp cuTexRefGetMipmappedArray "            \
    "cuTexRefSetAddress cuTexRefSetAddress2D "                                                     \
    "cuTexRefSetAddressMode cuTexRefSetArray cuTexRefSetBorderColor "                              \
    "cuTexRefSetFilterMode cuTexRefSetFlags cuTexRefSetFormat cuTexRefSetMaxAnisotropy "           \
    "cuTexRefSetMipmapFilterMode cuTexRefSetMipmapLevelBias cuTexRefSetMipmapLevelClamp "          \
    "cuTexRefSetMipmappedArray cuThreadExchangeStreamCaptureMode cuUserObjectCreate "              \
    "cuUserObjectRelease cuUserObjectRetain cuVDPAUGetDevice "

#endif
