/*
 * Every entry point, one row each; the only place where their names stand.
 *
 *   ROW(name, symbol, since, mode, parameters, body)
 *   CALL(name, symbol, since, mode, parameters, function, arguments)
 *
 * name is what cuGetProcAddress is asked for, symbol what is exported, since the CUDA version that
 * brought this form. Rows of one name stand together, older forms first, and a per-thread form
 * after the plain form of the same version. The body runs with sd_lock held unless SD_UNLOCKED.
 * That of a CALL is `function arguments`; the function has these parameters, and is declared by it.
 *
 * ROWS and CALLS are two rows, of the plain form and of the per-thread one, whose symbol has that
 * suffix and which came with `since_too`: OWN(stream) is what a handle means in either.
 *
 * What says 14000 is in no CUDA: calls and forms that are newer than every library.
 *
 * The 32-bit forms of CUDA 2 and 3 do what they can with 32 bits: those that take an address find
 * nothing there, those that would have to return one say NOT_SUPPORTED.
 *
 * Define ROW and ALIAS, and CALL where its function matters, include this, and they are undefined
 * again.
 */
/* clang-format off */
#ifndef CALL
#define CALL(name, symbol, since, mode, parameters, function, arguments) \
    ROW(name, symbol, since, mode, parameters, function arguments)
#endif
#define ROWS(name, symbol, suffix, since, since_too, parameters, body) \
    ROW(name, symbol, since, SD_LEGACY, parameters, body) \
    ROW(name, symbol##suffix, since_too, SD_PER_THREAD, parameters, body)
#define CALLS(name, symbol, suffix, since, since_too, parameters, function, arguments) \
    CALL(name, symbol, since, SD_LEGACY, parameters, function, arguments) \
    ROW(name, symbol##suffix, since_too, SD_PER_THREAD, parameters, function arguments)

/* -- start, errors, look-up -- */
CALL(cuInit, cuInit, 2000, SD_EARLY, (unsigned flags), sd_init, (flags))
CALL(cuDriverGetVersion, cuDriverGetVersion, 2020, SD_EARLY | SD_UNLOCKED, (int *version), sd_driver_get_version, (version))
CALL(cuGetErrorName, cuGetErrorName, 6000, SD_EARLY | SD_UNLOCKED, (CUresult e, const char **s), sd_get_error_name, (e, s))
ROW(cuGetProcAddress, cuGetProcAddress, 11030, SD_EARLY | SD_UNLOCKED, (const char *symbol, void **pfn, int version, cuuint64_t flags), sd_get_proc_address(symbol, pfn, version, flags, NULL))
CALL(cuGetProcAddress, cuGetProcAddress_v2, 12000, SD_EARLY | SD_UNLOCKED, (const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status), sd_get_proc_address, (symbol, pfn, version, flags, status))
CALL(cuGetExportTable, cuGetExportTable, 3000, SD_EARLY | SD_UNLOCKED, (const void **table, const CUuuid *id), sd_get_export_table, (table, id))

/* -- devices -- */
CALL(cuDeviceGet, cuDeviceGet, 2000, SD_PLAIN, (CUdevice *dev, int ordinal), sd_device_get, (dev, ordinal))
CALL(cuDeviceGetCount, cuDeviceGetCount, 2000, SD_PLAIN, (int *count), sd_device_get_count, (count))
CALL(cuDeviceGetName, cuDeviceGetName, 2000, SD_PLAIN, (char *name, int len, CUdevice dev), sd_device_get_name, (name, len, dev))
CALL(cuDeviceGetUuid, cuDeviceGetUuid, 9020, SD_PLAIN, (CUuuid *uuid, CUdevice dev), sd_device_get_uuid, (uuid, dev))
ROW(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, SD_PLAIN, (CUuuid *uuid, CUdevice dev), sd_device_get_uuid(uuid, dev))
CALL(cuDeviceTotalMem, cuDeviceTotalMem, 2000, SD_PLAIN, (unsigned *bytes, CUdevice dev), sd_device_total_mem_v1, (bytes, dev))
CALL(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, SD_PLAIN, (size_t *bytes, CUdevice dev), sd_device_total_mem, (bytes, dev))
CALL(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, SD_PLAIN, (int *value, CUdevice_attribute a, CUdevice dev), sd_device_get_attribute, (value, a, dev))
CALL(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, SD_PLAIN, (int *can, CUdevice dev, CUdevice peer), sd_device_can_access_peer, (can, dev, peer))
CALL(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010, SD_PLAIN, (char *id, int len, CUdevice dev), sd_device_get_pci_bus_id, (id, len, dev))
CALL(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, SD_PLAIN, (CUmemoryPool *pool, CUdevice dev), sd_device_get_default_pool, (pool, dev))
CALL(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, SD_PLAIN, (CUmemoryPool *pool, CUdevice dev), sd_device_get_pool, (pool, dev))
CALL(cuDeviceSetMemPool, cuDeviceSetMemPool, 11020, SD_PLAIN, (CUdevice dev, CUmemoryPool pool), sd_device_set_pool, (dev, pool))

/* -- contexts -- */
CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, SD_PLAIN, (CUcontext *ctx, CUdevice dev), sd_primary_retain, (ctx, dev))
CALL(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, SD_PLAIN, (CUdevice dev), sd_primary_release, (dev))
ROW(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, SD_PLAIN, (CUdevice dev), sd_primary_release(dev))
CALL(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, SD_PLAIN, (CUdevice dev), sd_primary_reset, (dev))
ROW(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, SD_PLAIN, (CUdevice dev), sd_primary_reset(dev))
CALL(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, SD_PLAIN, (CUdevice dev, unsigned *flags, int *active), sd_primary_get_state, (dev, flags, active))
ROW(cuCtxCreate, cuCtxCreate, 2000, SD_PLAIN, (CUcontext *ctx, unsigned flags, CUdevice dev), sd_ctx_create(ctx, flags, dev, 3010))
ROW(cuCtxCreate, cuCtxCreate_v2, 3020, SD_PLAIN, (CUcontext *ctx, unsigned flags, CUdevice dev), sd_ctx_create(ctx, flags, dev, 3020))
ROW(cuCtxCreate, cuCtxCreate_v3, 11040, SD_PLAIN, (CUcontext *ctx, CUexecAffinityParam *params, int count, unsigned flags, CUdevice dev), sd_ctx_create(ctx, flags, dev, 3020))
CALL(cuCtxCreate, cuCtxCreate_v4, 12050, SD_PLAIN, (CUcontext *ctx, CUctxCreateParams *params, unsigned flags, CUdevice dev), sd_ctx_create_v4, (ctx, params, flags, dev))
ROW(cuGLCtxCreate, cuGLCtxCreate, 2000, SD_PLAIN, (CUcontext *ctx, unsigned flags, CUdevice dev), sd_ctx_create(ctx, flags, dev, 3010))
ROW(cuGLCtxCreate, cuGLCtxCreate_v2, 3020, SD_PLAIN, (CUcontext *ctx, unsigned flags, CUdevice dev), sd_ctx_create(ctx, flags, dev, 3020))
ROW(cuVDPAUCtxCreate, cuVDPAUCtxCreate, 3010, SD_PLAIN, (CUcontext *ctx, unsigned flags, CUdevice dev, unsigned vdp, void *get), sd_ctx_create(ctx, flags, dev, 3010))
ROW(cuVDPAUCtxCreate, cuVDPAUCtxCreate_v2, 3020, SD_PLAIN, (CUcontext *ctx, unsigned flags, CUdevice dev, unsigned vdp, void *get), sd_ctx_create(ctx, flags, dev, 3020))
CALL(cuCtxDestroy, cuCtxDestroy, 2000, SD_PLAIN, (CUcontext ctx), sd_ctx_destroy, (ctx))
ROW(cuCtxDestroy, cuCtxDestroy_v2, 4000, SD_PLAIN, (CUcontext ctx), sd_ctx_destroy(ctx))
CALL(cuCtxDetach, cuCtxDetach, 2000, SD_PLAIN, (CUcontext ctx), sd_ctx_detach, (ctx))
CALL(cuCtxPushCurrent, cuCtxPushCurrent, 2000, SD_PLAIN, (CUcontext ctx), sd_ctx_push_current, (ctx))
ROW(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, SD_PLAIN, (CUcontext ctx), sd_ctx_push_current(ctx))
CALL(cuCtxPopCurrent, cuCtxPopCurrent, 2000, SD_PLAIN, (CUcontext *ctx), sd_ctx_pop_current, (ctx))
ROW(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, SD_PLAIN, (CUcontext *ctx), sd_ctx_pop_current(ctx))
CALL(cuCtxSetCurrent, cuCtxSetCurrent, 4000, SD_PLAIN, (CUcontext ctx), sd_ctx_set_current, (ctx))
CALL(cuCtxGetCurrent, cuCtxGetCurrent, 4000, SD_UNLOCKED, (CUcontext *ctx), sd_ctx_get_current, (ctx))
CALL(cuCtxGetDevice, cuCtxGetDevice, 2000, SD_PLAIN, (CUdevice *dev), sd_ctx_get_device, (dev))
#if CUDA_VERSION >= 13000
ROW(cuCtxGetDevice, cuCtxGetDevice_v2, 13000, SD_PLAIN, (CUdevice *dev, CUcontext ctx), sd_ctx_get_device_v2(dev, ctx))
#endif
CALL(cuCtxSynchronize, cuCtxSynchronize, 2000, SD_PLAIN, (void), sd_ctx_synchronize, ())
#if CUDA_VERSION >= 13000
ROW(cuCtxSynchronize, cuCtxSynchronize_v2, 13000, SD_PLAIN, (CUcontext ctx), sd_ctx_synchronize_v2(ctx))
#endif
CALL(cuCtxGetId, cuCtxGetId, 12000, SD_PLAIN, (CUcontext ctx, unsigned long long *id), sd_ctx_get_id, (ctx, id))
CALL(cuCtxGetApiVersion, cuCtxGetApiVersion, 3020, SD_PLAIN, (CUcontext ctx, unsigned *version), sd_ctx_get_api_version, (ctx, version))
CALL(cuCtxSetFlags, cuCtxSetFlags, 12010, SD_PLAIN, (unsigned flags), sd_ctx_set_flags, (flags))
CALL(cuCtxGetFlags, cuCtxGetFlags, 7000, SD_PLAIN, (unsigned *flags), sd_ctx_get_flags, (flags))
ROW(cuCtxGetFlags, cuCtxGetFlags_v2, 14000, SD_PLAIN, (unsigned *flags), sd_ctx_get_flags(flags))
CALL(cuCtxSetLimit, cuCtxSetLimit, 3010, SD_PLAIN, (CUlimit limit, size_t value), sd_ctx_set_limit, (limit, value))
CALL(cuCtxGetLimit, cuCtxGetLimit, 3010, SD_PLAIN, (size_t *value, CUlimit limit), sd_ctx_get_limit, (value, limit))
CALL(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, SD_PLAIN, (CUcontext peer, unsigned flags), sd_ctx_enable_peer_access, (peer, flags))
CALL(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, SD_PLAIN, (CUcontext peer), sd_ctx_disable_peer_access, (peer))
CALL(cuCtxRecordEvent, cuCtxRecordEvent, 12050, SD_PLAIN, (CUcontext ctx, CUevent event), sd_ctx_record_event, (ctx, event))
CALL(cuCtxWaitEvent, cuCtxWaitEvent, 12050, SD_PLAIN, (CUcontext ctx, CUevent event), sd_ctx_wait_event, (ctx, event))

/* -- green contexts -- */
CALL(cuDeviceGetDevResource, cuDeviceGetDevResource, 12040, SD_PLAIN, (CUdevice dev, CUdevResource *r, CUdevResourceType type), sd_device_get_resource, (dev, r, type))
CALL(cuDevResourceGenerateDesc, cuDevResourceGenerateDesc, 12040, SD_PLAIN, (CUdevResourceDesc *desc, CUdevResource *r, unsigned count), sd_resource_describe, (desc, r, count))
CALL(cuGreenCtxCreate, cuGreenCtxCreate, 12040, SD_PLAIN, (CUgreenCtx *green, CUdevResourceDesc desc, CUdevice dev, unsigned flags), sd_green_create, (green, desc, dev, flags))
CALL(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040, SD_PLAIN, (CUgreenCtx green), sd_green_destroy, (green))
CALL(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 12040, SD_PLAIN, (CUcontext *ctx, CUgreenCtx green), sd_ctx_from_green, (ctx, green))

/* -- streams -- */
CALL(cuStreamCreate, cuStreamCreate, 2000, SD_PLAIN, (CUstream *s, unsigned flags), sd_stream_create, (s, flags))
CALL(cuStreamDestroy, cuStreamDestroy, 2000, SD_PLAIN, (CUstream s), sd_stream_destroy, (s))
ROW(cuStreamDestroy, cuStreamDestroy_v2, 4000, SD_PLAIN, (CUstream s), sd_stream_destroy(s))
CALLS(cuStreamQuery, cuStreamQuery, _ptsz, 2000, 7000, (CUstream s), sd_stream_query, (OWN(s)))
CALLS(cuStreamSynchronize, cuStreamSynchronize, _ptsz, 2000, 7000, (CUstream s), sd_stream_synchronize, (OWN(s)))
CALLS(cuStreamWaitEvent, cuStreamWaitEvent, _ptsz, 3020, 7000, (CUstream s, CUevent e, unsigned flags), sd_stream_wait_event, (OWN(s), e, flags))
CALLS(cuStreamAddCallback, cuStreamAddCallback, _ptsz, 5000, 7000, (CUstream s, CUstreamCallback fn, void *data, unsigned flags), sd_stream_add_callback, (OWN(s), fn, data, flags))
CALLS(cuLaunchHostFunc, cuLaunchHostFunc, _ptsz, 10000, 10000, (CUstream s, CUhostFn fn, void *data), sd_launch_host_func, (OWN(s), fn, data))
CALLS(cuStreamGetCtx, cuStreamGetCtx, _ptsz, 9020, 9020, (CUstream s, CUcontext *ctx), sd_stream_get_ctx, (OWN(s), ctx))
CALLS(cuStreamGetCtx, cuStreamGetCtx_v2, _ptsz, 12050, 12050, (CUstream s, CUcontext *ctx, CUgreenCtx *green), sd_stream_get_contexts, (OWN(s), ctx, green))
CALLS(cuStreamGetFlags, cuStreamGetFlags, _ptsz, 5050, 7000, (CUstream s, unsigned *flags), sd_stream_get_flags, (OWN(s), flags))
CALLS(cuStreamGetId, cuStreamGetId, _ptsz, 12000, 12000, (CUstream s, unsigned long long *id), sd_stream_get_id, (OWN(s), id))
ROWS(cuStreamWriteValue32, cuStreamWriteValue32_v2, _ptsz, 11070, 11070, (CUstream s, CUdeviceptr p, cuuint32_t v, unsigned flags), sd_memset(p, v, 4, 1, OWN(s)))

/* -- captures -- */
ROWS(cuStreamBeginCapture, cuStreamBeginCapture, _ptsz, 10000, 10000, (CUstream s), sd_stream_begin_capture(OWN(s), CU_STREAM_CAPTURE_MODE_GLOBAL))
CALLS(cuStreamBeginCapture, cuStreamBeginCapture_v2, _ptsz, 10010, 10010, (CUstream s, CUstreamCaptureMode mode), sd_stream_begin_capture, (OWN(s), mode))
ROWS(cuStreamBeginCaptureNext, cuStreamBeginCaptureNext, _ptsz, 14000, 14000, (CUstream s, CUstreamCaptureMode mode), sd_stream_begin_capture(OWN(s), mode))
CALL(cuStreamEndCaptureNext, cuStreamEndCaptureNext, 14000, SD_LEGACY, (CUstream s, CUgraph *graph), sd_stream_end_capture, (s, graph))
ROWS(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, _ptsz, 12030, 12030, (CUstream s, CUgraph g, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode), sd_stream_begin_capture_to_graph(OWN(s), g, after, count, mode))
ROWS(cuStreamBeginCaptureToCig, cuStreamBeginCaptureToCig, _ptsz, 13010, 13010, (CUstream s, CUstreamCigCaptureParams *p), CUDA_ERROR_NOT_SUPPORTED)
ROWS(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph, _ptsz, 13030, 13030, (CUstream s, CUstreamCaptureMode mode, CUgraph g, CUgraphRecaptureCallback fn, void *data), sd_stream_begin_recapture(OWN(s), mode, g))
ROWS(cuStreamEndCapture, cuStreamEndCapture, _ptsz, 10000, 10000, (CUstream s, CUgraph *g), sd_stream_end_capture(OWN(s), g))
CALLS(cuStreamIsCapturing, cuStreamIsCapturing, _ptsz, 10000, 10000, (CUstream s, CUstreamCaptureStatus *status), sd_stream_is_capturing, (OWN(s), status))
CALL(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, SD_PLAIN, (CUstreamCaptureMode *mode), sd_thread_exchange_capture_mode, (mode))

/* -- graphs -- */
CALL(cuGraphCreate, cuGraphCreate, 10000, SD_PLAIN, (CUgraph *g, unsigned flags), sd_graph_create, (g, flags))
CALL(cuGraphDestroy, cuGraphDestroy, 10000, SD_PLAIN, (CUgraph g), sd_graph_destroy, (g))
CALL(cuGraphGetNodes, cuGraphGetNodes, 10000, SD_PLAIN, (CUgraph g, CUgraphNode *nodes, size_t *count), sd_graph_get_nodes, (g, nodes, count))
ROW(cuGraphAddMemcpyNode, cuGraphAddMemcpyNode, 10000, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, const CUDA_MEMCPY3D *c, CUcontext ctx), sd_graph_add_node(node, g, after, n, sd_copy_params(c, ctx, &(CUgraphNodeParams){0})))
ROW(cuGraphMemcpyNodeSetParams, cuGraphMemcpyNodeSetParams, 10000, SD_PLAIN, (CUgraphNode node, const CUDA_MEMCPY3D *c), sd_node_set(node, sd_copy_params(c, NULL, &(CUgraphNodeParams){0})))
ROW(cuGraphExecMemcpyNodeSetParams, cuGraphExecMemcpyNodeSetParams, 10020, SD_PLAIN, (CUgraphExec x, CUgraphNode node, const CUDA_MEMCPY3D *c, CUcontext ctx), sd_exec_node_set(x, node, sd_copy_params(c, ctx, &(CUgraphNodeParams){0})))
ROW(cuGraphAddMemsetNode, cuGraphAddMemsetNode, 10000, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, const CUDA_MEMSET_NODE_PARAMS *f, CUcontext ctx), sd_graph_add_node(node, g, after, n, sd_fill_params(f, ctx, &(CUgraphNodeParams){0})))
ROW(cuGraphMemsetNodeSetParams, cuGraphMemsetNodeSetParams, 10000, SD_PLAIN, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *f), sd_node_set(node, sd_fill_params(f, NULL, &(CUgraphNodeParams){0})))
ROW(cuGraphExecMemsetNodeSetParams, cuGraphExecMemsetNodeSetParams, 10020, SD_PLAIN, (CUgraphExec x, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *f, CUcontext ctx), sd_exec_node_set(x, node, sd_fill_params(f, ctx, &(CUgraphNodeParams){0})))
ROW(cuGraphAddNode, cuGraphAddNode, 12020, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUgraphNodeParams *p), sd_graph_add_node(node, g, after, n, p))
ROW(cuGraphAddNode, cuGraphAddNode_v2, 12030, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *p), sd_graph_add_node(node, g, after, n, p))
ROW(cuGraphAddNode, cuGraphAddNode_v3, 13040, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *p), sd_graph_add_node(node, g, after, n, p))
ROW(cuGraphNodeSetParams, cuGraphNodeSetParams, 12020, SD_PLAIN, (CUgraphNode node, CUgraphNodeParams *p), sd_node_set(node, p))
ROW(cuGraphNodeSetParams, cuGraphNodeSetParams_v2, 13040, SD_PLAIN, (CUgraphNode node, CUgraphNodeParams *p), sd_node_set(node, p))
ROW(cuGraphExecNodeSetParams, cuGraphExecNodeSetParams, 12020, SD_PLAIN, (CUgraphExec x, CUgraphNode node, CUgraphNodeParams *p), sd_exec_node_set(x, node, p))
CALL(cuGraphAddMemAllocNode, cuGraphAddMemAllocNode, 11040, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p), sd_graph_add_alloc, (node, g, after, n, p))
CALL(cuGraphAddMemFreeNode, cuGraphAddMemFreeNode, 11040, SD_PLAIN, (CUgraphNode *node, CUgraph g, const CUgraphNode *after, size_t n, CUdeviceptr p), sd_graph_add_free, (node, g, after, n, p))
ROW(cuGraphInstantiate, cuGraphInstantiate, 10000, SD_PLAIN, (CUgraphExec *x, CUgraph g, CUgraphNode *node, char *log, size_t size), sd_graph_instantiate(x, g, 0))
ROW(cuGraphInstantiate, cuGraphInstantiate_v2, 11000, SD_PLAIN, (CUgraphExec *x, CUgraph g, CUgraphNode *node, char *log, size_t size), sd_graph_instantiate(x, g, 0))
CALL(cuGraphInstantiate, cuGraphInstantiateWithFlags, 12000, SD_PLAIN, (CUgraphExec *x, CUgraph g, unsigned long long flags), sd_graph_instantiate, (x, g, flags))
ALIAS(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, SD_PLAIN)
CALLS(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, _ptsz, 12000, 12000, (CUgraphExec *x, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p), sd_graph_instantiate_params, (x, g, p))
CALLS(cuGraphUpload, cuGraphUpload, _ptsz, 11010, 11010, (CUgraphExec x, CUstream s), sd_graph_upload, (x, OWN(s)))
CALLS(cuGraphLaunch, cuGraphLaunch, _ptsz, 10000, 10000, (CUgraphExec x, CUstream s), sd_graph_launch, (x, OWN(s)))
CALL(cuGraphExecDestroy, cuGraphExecDestroy, 10000, SD_PLAIN, (CUgraphExec x), sd_graph_exec_destroy, (x))
ROW(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, SD_PLAIN, (CUdevice dev), sd_device_get_ptr(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE)

/* -- events -- */
CALL(cuEventCreate, cuEventCreate, 2000, SD_PLAIN, (CUevent *e, unsigned flags), sd_event_create, (e, flags))
CALL(cuEventDestroy, cuEventDestroy, 2000, SD_PLAIN, (CUevent e), sd_event_destroy, (e))
ROW(cuEventDestroy, cuEventDestroy_v2, 4000, SD_PLAIN, (CUevent e), sd_event_destroy(e))
ROWS(cuEventRecord, cuEventRecord, _ptsz, 2000, 7000, (CUevent e, CUstream s), sd_event_record(e, OWN(s), 0))
CALLS(cuEventRecordWithFlags, cuEventRecordWithFlags, _ptsz, 11010, 11010, (CUevent e, CUstream s, unsigned flags), sd_event_record, (e, OWN(s), flags))
CALL(cuEventQuery, cuEventQuery, 2000, SD_PLAIN, (CUevent e), sd_event_query, (e))
CALL(cuEventSynchronize, cuEventSynchronize, 2000, SD_PLAIN, (CUevent e), sd_event_synchronize, (e))
CALL(cuEventElapsedTime, cuEventElapsedTime, 2000, SD_PLAIN, (float *ms, CUevent a, CUevent b), sd_event_elapsed_time, (ms, a, b))
ROW(cuEventElapsedTime, cuEventElapsedTime_v2, 12080, SD_PLAIN, (float *ms, CUevent a, CUevent b), sd_event_elapsed_time(ms, a, b))

/* -- memory -- */
ROW(cuMemAlloc, cuMemAlloc, 2000, SD_PLAIN, (CUdeviceptr_v1 *p, unsigned bytes), CUDA_ERROR_NOT_SUPPORTED)
CALL(cuMemAlloc, cuMemAlloc_v2, 3020, SD_PLAIN, (CUdeviceptr *p, size_t bytes), sd_mem_alloc, (p, bytes))
ROW(cuMemAllocPitch, cuMemAllocPitch, 2000, SD_PLAIN, (CUdeviceptr_v1 *p, unsigned *pitch, unsigned width, unsigned height, unsigned element), CUDA_ERROR_NOT_SUPPORTED)
CALL(cuMemAllocPitch, cuMemAllocPitch_v2, 3020, SD_PLAIN, (CUdeviceptr *p, size_t *pitch, size_t width, size_t height, unsigned element), sd_mem_alloc_pitch, (p, pitch, width, height, element))
CALL(cuMemAllocManaged, cuMemAllocManaged, 6000, SD_PLAIN, (CUdeviceptr *p, size_t bytes, unsigned flags), sd_mem_alloc_managed, (p, bytes, flags))
ROW(cuMemFree, cuMemFree, 2000, SD_PLAIN, (CUdeviceptr_v1 p), sd_mem_free(p))
CALL(cuMemFree, cuMemFree_v2, 3020, SD_PLAIN, (CUdeviceptr p), sd_mem_free, (p))
CALL(cuMemGetInfo, cuMemGetInfo, 2000, SD_PLAIN, (unsigned *free_bytes, unsigned *total), sd_mem_get_info_v1, (free_bytes, total))
CALL(cuMemGetInfo, cuMemGetInfo_v2, 3020, SD_PLAIN, (size_t *free_bytes, size_t *total), sd_mem_get_info, (free_bytes, total))
CALL(cuMemGetAddressRange, cuMemGetAddressRange, 2000, SD_PLAIN, (CUdeviceptr_v1 *base, unsigned *size, CUdeviceptr_v1 p), sd_mem_get_address_range_v1, (base, size, p))
CALL(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, SD_PLAIN, (CUdeviceptr *base, size_t *size, CUdeviceptr p), sd_mem_get_address_range, (base, size, p))
ROW(cuMemAllocHost, cuMemAllocHost, 2000, SD_PLAIN, (void **p, unsigned bytes), sd_mem_host_alloc(p, bytes, 0))
ROW(cuMemAllocHost, cuMemAllocHost_v2, 3020, SD_PLAIN, (void **p, size_t bytes), sd_mem_host_alloc(p, bytes, 0))
CALL(cuMemHostAlloc, cuMemHostAlloc, 2020, SD_PLAIN, (void **p, size_t bytes, unsigned flags), sd_mem_host_alloc, (p, bytes, flags))
CALL(cuMemFreeHost, cuMemFreeHost, 2000, SD_PLAIN, (void *p), sd_mem_free_host, (p))
CALL(cuMemHostRegister, cuMemHostRegister, 4000, SD_PLAIN, (void *p, size_t bytes, unsigned flags), sd_mem_host_register, (p, bytes, flags))
ROW(cuMemHostRegister, cuMemHostRegister_v2, 6050, SD_PLAIN, (void *p, size_t bytes, unsigned flags), sd_mem_host_register(p, bytes, flags))
CALL(cuMemHostUnregister, cuMemHostUnregister, 4000, SD_PLAIN, (void *p), sd_mem_host_unregister, (p))
ROW(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer, 2020, SD_PLAIN, (CUdeviceptr_v1 *d, void *p, unsigned flags), CUDA_ERROR_NOT_SUPPORTED)
CALL(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, SD_PLAIN, (CUdeviceptr *d, void *p, unsigned flags), sd_mem_host_get_device_pointer, (d, p, flags))
CALL(cuMemHostGetFlags, cuMemHostGetFlags, 2030, SD_PLAIN, (unsigned *flags, void *p), sd_mem_host_get_flags, (flags, p))

/* -- stream-ordered memory -- */
CALLS(cuMemAllocAsync, cuMemAllocAsync, _ptsz, 11020, 11020, (CUdeviceptr *p, size_t bytes, CUstream s), sd_mem_alloc_async, (p, bytes, OWN(s)))
CALLS(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, _ptsz, 11020, 11020, (CUdeviceptr *p, size_t bytes, CUmemoryPool pool, CUstream s), sd_mem_alloc_from_pool_async, (p, bytes, pool, OWN(s)))
CALLS(cuMemFreeAsync, cuMemFreeAsync, _ptsz, 11020, 11020, (CUdeviceptr p, CUstream s), sd_mem_free_async, (p, OWN(s)))
CALL(cuMemPoolCreate, cuMemPoolCreate, 11020, SD_PLAIN, (CUmemoryPool *pool, const CUmemPoolProps *props), sd_pool_create, (pool, props))
CALL(cuMemPoolDestroy, cuMemPoolDestroy, 11020, SD_PLAIN, (CUmemoryPool pool), sd_pool_destroy, (pool))
CALL(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, SD_PLAIN, (CUmemoryPool pool, size_t keep), sd_pool_trim_to, (pool, keep))
CALL(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, SD_PLAIN, (CUmemoryPool pool, CUmemPool_attribute a, void *value), sd_pool_set_attribute, (pool, a, value))
CALL(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, SD_PLAIN, (CUmemoryPool pool, CUmemPool_attribute a, void *value), sd_pool_get_attribute, (pool, a, value))
CALL(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 11020, SD_PLAIN, (void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags), sd_pool_export, (out, pool, type, flags))
CALL(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 11020, SD_PLAIN, (CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type, unsigned long long flags), sd_pool_import, (pool, handle, type, flags))
ROW(cuMemPoolImportPointer, cuMemPoolImportPointer, 11020, SD_PLAIN, (CUdeviceptr *p, CUmemoryPool pool, CUmemPoolPtrExportData *data), sd_pool_import_pointer(p, pool, data))
CALL(cuMemPoolExportPointer, cuMemPoolExportPointer, 11020, SD_PLAIN, (CUmemPoolPtrExportData *data, CUdeviceptr p), sd_pool_export_pointer, (data, p))
CALL(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, SD_PLAIN, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count), sd_pool_set_access, (pool, map, count))
CALL(cuMemPoolGetAccess, cuMemPoolGetAccess, 11020, SD_PLAIN, (CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *where), sd_pool_get_access, (flags, pool, where))
#if CUDA_VERSION >= 13000
ROW(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 13000, SD_PLAIN, (CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type), sd_mem_get_default_pool(pool, where, type))
ROW(cuMemGetMemPool, cuMemGetMemPool, 13000, SD_PLAIN, (CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type), sd_mem_get_pool(pool, where, type))
ROW(cuMemSetMemPool, cuMemSetMemPool, 13000, SD_PLAIN, (CUmemLocation *where, CUmemAllocationType type, CUmemoryPool pool), sd_mem_set_pool(where, type, pool))
#endif

/* -- virtual memory management -- */
CALL(cuMemAddressReserve, cuMemAddressReserve, 10020, SD_PLAIN, (CUdeviceptr *p, size_t size, size_t align, CUdeviceptr at, unsigned long long flags), sd_address_reserve_call, (p, size, align, at, flags))
CALL(cuMemAddressFree, cuMemAddressFree, 10020, SD_PLAIN, (CUdeviceptr p, size_t size), sd_address_free_call, (p, size))
CALL(cuMemCreate, cuMemCreate, 10020, SD_PLAIN, (CUmemGenericAllocationHandle *h, size_t size, const CUmemAllocationProp *prop, unsigned long long flags), sd_vmm_create, (h, size, prop, flags))
CALL(cuMemRelease, cuMemRelease, 10020, SD_PLAIN, (CUmemGenericAllocationHandle h), sd_vmm_release, (h))
CALL(cuMemMap, cuMemMap, 10020, SD_PLAIN, (CUdeviceptr p, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags), sd_vmm_map, (p, size, offset, h, flags))
CALL(cuMemUnmap, cuMemUnmap, 10020, SD_PLAIN, (CUdeviceptr p, size_t size), sd_vmm_unmap, (p, size))
CALL(cuMemSetAccess, cuMemSetAccess, 10020, SD_PLAIN, (CUdeviceptr p, size_t size, const CUmemAccessDesc *desc, size_t count), sd_vmm_set_access, (p, size, desc, count))
CALL(cuMemGetAccess, cuMemGetAccess, 10020, SD_PLAIN, (unsigned long long *flags, const CUmemLocation *where, CUdeviceptr p), sd_vmm_get_access, (flags, where, p))
CALL(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, SD_PLAIN, (void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags), sd_vmm_export, (out, h, type, flags))
CALL(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, SD_PLAIN, (CUmemGenericAllocationHandle *h, void *os, CUmemAllocationHandleType type), sd_vmm_import, (h, os, type))
CALL(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, SD_PLAIN, (size_t *g, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option), sd_vmm_granularity, (g, prop, option))
CALL(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, SD_PLAIN, (CUmemAllocationProp *prop, CUmemGenericAllocationHandle h), sd_vmm_properties, (prop, h))
CALL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, SD_PLAIN, (CUmemGenericAllocationHandle *h, void *p), sd_vmm_retain, (h, p))
CALL(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, SD_PLAIN, (void *out, CUdeviceptr p, size_t size, CUmemRangeHandleType type, unsigned long long flags), sd_vmm_range_handle, (out, p, size, type, flags))
ROW(cuMulticastCreate, cuMulticastCreate, 12010, SD_PLAIN, (CUmemGenericAllocationHandle *made, const CUmulticastObjectProp *prop), sd_multicast_none())
ROW(cuMulticastBindMem, cuMulticastBindMem, 12010, SD_PLAIN, (CUmemGenericAllocationHandle group, size_t offset, CUmemGenericAllocationHandle memory, size_t from, size_t size, unsigned long long flags), sd_multicast_none())
ROW(cuMulticastBindMem, cuMulticastBindMem_v2, 13010, SD_PLAIN, (CUmemGenericAllocationHandle group, CUdevice dev, size_t offset, CUmemGenericAllocationHandle memory, size_t from, size_t size, unsigned long long flags), sd_multicast_none())
ROW(cuMulticastBindAddr, cuMulticastBindAddr, 12010, SD_PLAIN, (CUmemGenericAllocationHandle group, size_t offset, CUdeviceptr ptr, size_t size, unsigned long long flags), sd_multicast_bind(group))
ROW(cuMulticastBindAddr, cuMulticastBindAddr_v2, 13010, SD_PLAIN, (CUmemGenericAllocationHandle group, CUdevice dev, size_t offset, CUdeviceptr ptr, size_t size, unsigned long long flags), sd_multicast_bind(group))
ROW(cuEGLStreamProducerPresentFrame, cuEGLStreamProducerPresentFrame, 7000, SD_PLAIN, (gs_egl_connection *connection, struct gs_egl_frame frame, CUstream *stream), sd_egl_present(connection))
CALL(cuMulticastGetGranularity, cuMulticastGetGranularity, 12010, SD_PLAIN, (size_t *g, const CUmulticastObjectProp *prop, CUmulticastGranularity_flags option), sd_multicast_granularity, (g, prop, option))

/* -- legacy IPC -- */
CALL(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, SD_PLAIN, (CUipcEventHandle *h, CUevent e), sd_ipc_get_event_handle, (h, e))
CALL(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, SD_PLAIN, (CUevent *e, CUipcEventHandle h), sd_ipc_open_event_handle, (e, h))
CALL(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, SD_PLAIN, (CUipcMemHandle *h, CUdeviceptr p), sd_ipc_get_mem_handle, (h, p))
CALL(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 4010, SD_PLAIN, (CUdeviceptr *p, CUipcMemHandle h, unsigned flags), sd_ipc_open_mem_handle, (p, h, flags))
ROW(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, SD_PLAIN, (CUdeviceptr *p, CUipcMemHandle h, unsigned flags), sd_ipc_open_mem_handle(p, h, flags))
CALL(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, SD_PLAIN, (CUdeviceptr p), sd_ipc_close_mem_handle, (p))

/* -- asking about a pointer -- */
CALL(cuPointerGetAttribute, cuPointerGetAttribute, 4000, SD_PLAIN, (void *data, CUpointer_attribute a, CUdeviceptr p), sd_pointer_get_attribute, (data, a, p))
CALL(cuPointerGetAttributes, cuPointerGetAttributes, 7000, SD_PLAIN, (unsigned count, CUpointer_attribute *a, void **data, CUdeviceptr p), sd_pointer_get_attributes, (count, a, data, p))
CALL(cuPointerSetAttribute, cuPointerSetAttribute, 6000, SD_PLAIN, (const void *value, CUpointer_attribute a, CUdeviceptr p), sd_pointer_set_attribute, (value, a, p))

/* -- arrays -- */
CALL(cuArrayCreate, cuArrayCreate_v2, 3020, SD_PLAIN, (CUarray *a, const CUDA_ARRAY_DESCRIPTOR *flat), sd_array_create, (a, flat))
CALL(cuArray3DCreate, cuArray3DCreate, 2000, SD_PLAIN, (CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *shape), sd_array_create_3d_v1, (a, shape))
CALL(cuArray3DCreate, cuArray3DCreate_v2, 3020, SD_PLAIN, (CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *shape), sd_array_create_3d, (a, shape))
CALL(cuArray3DGetDescriptor, cuArray3DGetDescriptor_v2, 3020, SD_PLAIN, (CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray a), sd_array_get_descriptor, (shape, a))
CALL(cuArrayDestroy, cuArrayDestroy, 2000, SD_PLAIN, (CUarray a), sd_array_destroy, (a))
CALL(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, SD_PLAIN, (CUmipmappedArray *m, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels), sd_mipmapped_create, (m, shape, levels))
CALL(cuMipmappedArrayGetLevel, cuMipmappedArrayGetLevel, 5000, SD_PLAIN, (CUarray *a, CUmipmappedArray m, unsigned level), sd_mipmapped_get_level, (a, m, level))
CALL(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, SD_PLAIN, (CUmipmappedArray m), sd_mipmapped_destroy, (m))
CALL(cuTexObjectCreate, cuTexObjectCreate, 5000, SD_PLAIN, (CUtexObject *t, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *reads, const CUDA_RESOURCE_VIEW_DESC *view), sd_texture_create, (t, resource, reads, view))
CALL(cuTexObjectGetResourceDesc, cuTexObjectGetResourceDesc, 5000, SD_PLAIN, (CUDA_RESOURCE_DESC *resource, CUtexObject t), sd_texture_resource, (resource, t))
CALL(cuTexObjectDestroy, cuTexObjectDestroy, 5000, SD_PLAIN, (CUtexObject t), sd_texture_destroy, (t))

/* -- copies -- */
ROWS(cuMemcpy, cuMemcpy, _ptds, 4000, 7000, (CUdeviceptr d, CUdeviceptr s, size_t n), sd_memcpy(d, s, n, OWN(NULL), false))
ROWS(cuMemcpyAsync, cuMemcpyAsync, _ptsz, 4000, 7000, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream q), sd_memcpy(d, s, n, OWN(q), true))
ROW(cuMemcpyHtoD, cuMemcpyHtoD, 2000, SD_PLAIN, (CUdeviceptr_v1 d, const void *s, unsigned n), sd_memcpy_htod(d, s, n, NULL, false))
ROWS(cuMemcpyHtoD, cuMemcpyHtoD_v2, _ptds, 3020, 7000, (CUdeviceptr d, const void *s, size_t n), sd_memcpy_htod(d, s, n, OWN(NULL), false))
ROW(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync, 2000, SD_PLAIN, (CUdeviceptr_v1 d, const void *s, unsigned n, CUstream q), sd_memcpy_htod(d, s, n, q, true))
ROWS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, _ptsz, 3020, 7000, (CUdeviceptr d, const void *s, size_t n, CUstream q), sd_memcpy_htod(d, s, n, OWN(q), true))
ROW(cuMemcpyDtoH, cuMemcpyDtoH, 2000, SD_PLAIN, (void *d, CUdeviceptr_v1 s, unsigned n), sd_memcpy_dtoh(d, s, n, NULL, false))
ROWS(cuMemcpyDtoH, cuMemcpyDtoH_v2, _ptds, 3020, 7000, (void *d, CUdeviceptr s, size_t n), sd_memcpy_dtoh(d, s, n, OWN(NULL), false))
ROW(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, 2000, SD_PLAIN, (void *d, CUdeviceptr_v1 s, unsigned n, CUstream q), sd_memcpy_dtoh(d, s, n, q, true))
ROWS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, _ptsz, 3020, 7000, (void *d, CUdeviceptr s, size_t n, CUstream q), sd_memcpy_dtoh(d, s, n, OWN(q), true))
ROW(cuMemcpyDtoD, cuMemcpyDtoD, 2000, SD_PLAIN, (CUdeviceptr_v1 d, CUdeviceptr_v1 s, unsigned n), sd_memcpy_dtod(d, s, n, NULL))
ROWS(cuMemcpyDtoD, cuMemcpyDtoD_v2, _ptds, 3020, 7000, (CUdeviceptr d, CUdeviceptr s, size_t n), sd_memcpy_dtod(d, s, n, OWN(NULL)))
ROW(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync, 3000, SD_PLAIN, (CUdeviceptr_v1 d, CUdeviceptr_v1 s, unsigned n, CUstream q), sd_memcpy_dtod(d, s, n, q))
CALLS(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, _ptsz, 3020, 7000, (CUdeviceptr d, CUdeviceptr s, size_t n, CUstream q), sd_memcpy_dtod, (d, s, n, OWN(q)))
ROWS(cuMemcpyPeer, cuMemcpyPeer, _ptds, 4000, 7000, (CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n), sd_memcpy_peer(d, dc, s, sc, n, OWN(NULL)))
ROWS(cuMemcpyBatchAsync, cuMemcpyBatchAsync, _ptsz, 12080, 12080, (CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t count, CUmemcpyAttributes *a, size_t *first, size_t as, size_t *fail, CUstream q), sd_memcpy_batch(d, s, n, count, a, first, as, fail, OWN(q)))
ROWS(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, _ptsz, 13000, 13000, (CUdeviceptr *d, CUdeviceptr *s, size_t *n, size_t count, CUmemcpyAttributes *a, size_t *first, size_t as, CUstream q), sd_memcpy_batch(d, s, n, count, a, first, as, NULL, OWN(q)))
ROWS(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync, _ptsz, 12080, 12080, (size_t count, CUDA_MEMCPY3D_BATCH_OP *b, size_t *fail, unsigned long long flags, CUstream q), sd_memcpy_boxes(count, b, fail, flags, OWN(q)))
ROWS(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_v2, _ptsz, 13000, 13000, (size_t count, CUDA_MEMCPY3D_BATCH_OP *b, unsigned long long flags, CUstream q), sd_memcpy_boxes(count, b, NULL, flags, OWN(q)))
ROWS(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync, _ptsz, 13020, 13020, (CUdeviceptr d, CUdeviceptr s, size_t n, CUmemcpyAttributes *a, CUstream q), sd_memcpy_with(d, s, n, a, OWN(q)))
ROWS(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync, _ptsz, 13020, 13020, (CUDA_MEMCPY3D_BATCH_OP *b, unsigned long long flags, CUstream q), sd_memcpy_boxes(1, b, NULL, flags, OWN(q)))
CALLS(cuMemcpyPeerAsync, cuMemcpyPeerAsync, _ptsz, 4000, 7000, (CUdeviceptr d, CUcontext dc, CUdeviceptr s, CUcontext sc, size_t n, CUstream q), sd_memcpy_peer, (d, dc, s, sc, n, OWN(q)))
ROW(cuMemsetD8, cuMemsetD8, 2000, SD_PLAIN, (CUdeviceptr_v1 d, unsigned char v, unsigned n), sd_memset(d, v, 1, n, NULL))
ROWS(cuMemsetD8, cuMemsetD8_v2, _ptds, 3020, 7000, (CUdeviceptr d, unsigned char v, size_t n), sd_memset(d, v, 1, n, OWN(NULL)))
ROW(cuMemsetD16, cuMemsetD16, 2000, SD_PLAIN, (CUdeviceptr_v1 d, unsigned short v, unsigned n), sd_memset(d, v, 2, n, NULL))
ROWS(cuMemsetD16, cuMemsetD16_v2, _ptds, 3020, 7000, (CUdeviceptr d, unsigned short v, size_t n), sd_memset(d, v, 2, n, OWN(NULL)))
ROW(cuMemsetD32, cuMemsetD32, 2000, SD_PLAIN, (CUdeviceptr_v1 d, unsigned v, unsigned n), sd_memset(d, v, 4, n, NULL))
ROWS(cuMemsetD32, cuMemsetD32_v2, _ptds, 3020, 7000, (CUdeviceptr d, unsigned v, size_t n), sd_memset(d, v, 4, n, OWN(NULL)))
ROWS(cuMemsetD8Async, cuMemsetD8Async, _ptsz, 3020, 7000, (CUdeviceptr d, unsigned char v, size_t n, CUstream q), sd_memset(d, v, 1, n, OWN(q)))
ROWS(cuMemsetD16Async, cuMemsetD16Async, _ptsz, 3020, 7000, (CUdeviceptr d, unsigned short v, size_t n, CUstream q), sd_memset(d, v, 2, n, OWN(q)))
ROWS(cuMemsetD32Async, cuMemsetD32Async, _ptsz, 3020, 7000, (CUdeviceptr d, unsigned v, size_t n, CUstream q), sd_memset(d, v, 4, n, OWN(q)))
ROW(cuMemcpy2D, cuMemcpy2D, 2000, SD_PLAIN, (const CUDA_MEMCPY2D_v1 *c), sd_memcpy_2d_v1(c, NULL, false))
ROWS(cuMemcpy2D, cuMemcpy2D_v2, _ptds, 3020, 7000, (const CUDA_MEMCPY2D *c), sd_memcpy_2d(c, OWN(NULL), false))
ROW(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned, 2000, SD_PLAIN, (const CUDA_MEMCPY2D_v1 *c), sd_memcpy_2d_v1(c, NULL, false))
ROWS(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, _ptds, 3020, 7000, (const CUDA_MEMCPY2D *c), sd_memcpy_2d(c, OWN(NULL), false))
ROW(cuMemcpy2DAsync, cuMemcpy2DAsync, 2000, SD_PLAIN, (const CUDA_MEMCPY2D_v1 *c, CUstream q), sd_memcpy_2d_v1(c, q, true))
ROWS(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, _ptsz, 3020, 7000, (const CUDA_MEMCPY2D *c, CUstream q), sd_memcpy_2d(c, OWN(q), true))
ROWS(cuMemcpyDtoA, cuMemcpyDtoA_v2, _ptds, 3020, 7000, (CUarray a, size_t at, CUdeviceptr s, size_t n), sd_memcpy_2d(&(CUDA_MEMCPY2D){.dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = a, .dstXInBytes = at, .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = s, .WidthInBytes = n, .Height = 1}, OWN(NULL), false))
ROWS(cuMemcpyAtoD, cuMemcpyAtoD_v2, _ptds, 3020, 7000, (CUdeviceptr d, CUarray a, size_t at, size_t n), sd_memcpy_2d(&(CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a, .srcXInBytes = at, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = d, .WidthInBytes = n, .Height = 1}, OWN(NULL), false))
ROW(cuMemsetD2D8, cuMemsetD2D8, 2000, SD_PLAIN, (CUdeviceptr_v1 d, unsigned pitch, unsigned char v, unsigned n, unsigned rows), sd_memset_2d(d, pitch, v, 1, n, rows, NULL))
ROWS(cuMemsetD2D8, cuMemsetD2D8_v2, _ptds, 3020, 7000, (CUdeviceptr d, size_t pitch, unsigned char v, size_t n, size_t rows), sd_memset_2d(d, pitch, v, 1, n, rows, OWN(NULL)))
ROWS(cuMemsetD2D8Async, cuMemsetD2D8Async, _ptsz, 3020, 7000, (CUdeviceptr d, size_t pitch, unsigned char v, size_t n, size_t rows, CUstream q), sd_memset_2d(d, pitch, v, 1, n, rows, OWN(q)))
ROW(cuMemsetD2D16, cuMemsetD2D16, 2000, SD_PLAIN, (CUdeviceptr_v1 d, unsigned pitch, unsigned short v, unsigned n, unsigned rows), sd_memset_2d(d, pitch, v, 2, n, rows, NULL))
ROWS(cuMemsetD2D16, cuMemsetD2D16_v2, _ptds, 3020, 7000, (CUdeviceptr d, size_t pitch, unsigned short v, size_t n, size_t rows), sd_memset_2d(d, pitch, v, 2, n, rows, OWN(NULL)))
ROWS(cuMemsetD2D16Async, cuMemsetD2D16Async, _ptsz, 3020, 7000, (CUdeviceptr d, size_t pitch, unsigned short v, size_t n, size_t rows, CUstream q), sd_memset_2d(d, pitch, v, 2, n, rows, OWN(q)))
ROW(cuMemsetD2D32, cuMemsetD2D32, 2000, SD_PLAIN, (CUdeviceptr_v1 d, unsigned pitch, unsigned v, unsigned n, unsigned rows), sd_memset_2d(d, pitch, v, 4, n, rows, NULL))
ROWS(cuMemsetD2D32, cuMemsetD2D32_v2, _ptds, 3020, 7000, (CUdeviceptr d, size_t pitch, unsigned v, size_t n, size_t rows), sd_memset_2d(d, pitch, v, 4, n, rows, OWN(NULL)))
ROWS(cuMemsetD2D32Async, cuMemsetD2D32Async, _ptsz, 3020, 7000, (CUdeviceptr d, size_t pitch, unsigned v, size_t n, size_t rows, CUstream q), sd_memset_2d(d, pitch, v, 4, n, rows, OWN(q)))
ROWS(cuMemcpy3D, cuMemcpy3D_v2, _ptds, 3020, 7000, (const CUDA_MEMCPY3D *c), sd_memcpy_3d(c, OWN(NULL), false))
ROWS(cuMemcpy3DAsync, cuMemcpy3DAsync_v2, _ptsz, 3020, 7000, (const CUDA_MEMCPY3D *c, CUstream q), sd_memcpy_3d(c, OWN(q), true))
ROWS(cuMemcpy3DPeer, cuMemcpy3DPeer, _ptds, 4000, 7000, (const CUDA_MEMCPY3D_PEER *c), sd_memcpy_3d_peer(c, OWN(NULL)))
CALLS(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, _ptsz, 4000, 7000, (const CUDA_MEMCPY3D_PEER *c, CUstream q), sd_memcpy_3d_peer, (c, OWN(q)))

/* -- modules and kernels -- */
CALL(cuModuleLoadData, cuModuleLoadData, 2000, SD_PLAIN, (CUmodule *m, const void *image), sd_module_load_data, (m, image))
ROW(cuModuleLoadDataEx, cuModuleLoadDataEx, 2010, SD_PLAIN, (CUmodule *m, const void *image, unsigned n, CUjit_option *options, void **values), sd_module_load_data(m, image))
CALL(cuModuleUnload, cuModuleUnload, 2000, SD_PLAIN, (CUmodule m), sd_module_unload, (m))
CALL(cuModuleGetGlobal, cuModuleGetGlobal_v2, 3020, SD_PLAIN, (CUdeviceptr *p, size_t *bytes, CUmodule m, const char *name), sd_module_get_global, (p, bytes, m, name))
CALL(cuFuncLoad, cuFuncLoad, 12040, SD_PLAIN, (CUfunction f), sd_func_load, (f))
CALL(cuModuleGetFunction, cuModuleGetFunction, 2000, SD_PLAIN, (CUfunction *f, CUmodule m, const char *name), sd_module_get_function, (f, m, name))
ROW(cuLibraryLoadData, cuLibraryLoadData, 12000, SD_PLAIN, (CUlibrary *l, const void *code, CUjit_option *options, void **values, unsigned n, CUlibraryOption *library_options, void **library_values, unsigned m), sd_library_load_data(l, code))
CALL(cuLibraryUnload, cuLibraryUnload, 12000, SD_PLAIN, (CUlibrary l), sd_library_unload, (l))
CALL(cuLibraryGetGlobal, cuLibraryGetGlobal, 12000, SD_PLAIN, (CUdeviceptr *p, size_t *bytes, CUlibrary l, const char *name), sd_library_get_global, (p, bytes, l, name))
ROWS(cuLaunchKernel, cuLaunchKernel, _ptsz, 4000, 7000, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream s, void **params, void **extra), sd_launch_kernel(f, (const unsigned[]){gx, gy, gz}, (const unsigned[]){bx, by, bz}, OWN(s), params, extra))
ROWS(cuLaunchKernelEx, cuLaunchKernelEx, _ptsz, 11060, 11060, (const CUlaunchConfig *c, CUfunction f, void **params, void **extra), sd_launch_kernel_ex(c, f, OWN(c ? c->hStream : NULL), params, extra))
ROW(cuLaunchKernelEx, cuLaunchKernelEx_v2, 14000, SD_LEGACY, (const CUlaunchConfig *c, CUfunction f, void **params, void **extra), sd_launch_kernel_ex(c, f, c ? c->hStream : NULL, params, extra))
ROW(cuLaunchKernelNext, cuLaunchKernelNext, 14000, SD_LEGACY, (const CUlaunchConfig *c, CUfunction f, void **params, void **extra), sd_launch_kernel_ex(c, f, c ? c->hStream : NULL, params, extra))

#undef ROW
#undef ROWS
#undef CALL
#undef CALLS
#undef ALIAS
