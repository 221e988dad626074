/*
 * Calls that are made again when a full device has got some memory back, and nothing else: by them the
 * driver takes memory for arrays, streams, limits, and for code, which it loads when somebody first asks
 * for a function, a variable or what a kernel needs. Others are in hooks/room.c.
 */
#include "hook.h"
#include "room.h"

#define WITH_ROOM(name, parameters, arguments)                                                     \
    GS_HOOK CUresult CUDAAPI name parameters                                                       \
    {                                                                                              \
        gs_state_enter();                                                                          \
        return GS_WITH_ROOM(-1, 0, gs_real.name arguments);                                        \
    }

WITH_ROOM(cuArrayCreate_v2, (CUarray *made, const CUDA_ARRAY_DESCRIPTOR *shape), (made, shape))
WITH_ROOM(cuArray3DCreate_v2, (CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR *shape), (made, shape))
WITH_ROOM(cuMipmappedArrayCreate,
          (CUmipmappedArray *made, const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned levels),
          (made, shape, levels))
WITH_ROOM(cuStreamCreate, (CUstream *made, unsigned flags), (made, flags))
WITH_ROOM(cuStreamCreateWithPriority,
          (CUstream *made, unsigned flags, int priority),
          (made, flags, priority))
WITH_ROOM(cuGreenCtxStreamCreate,
          (CUstream *made, CUgreenCtx green, unsigned flags, int priority),
          (made, green, flags, priority))
WITH_ROOM(cuCtxSetLimit, (CUlimit limit, size_t value), (limit, value))
WITH_ROOM(cuModuleLoad, (CUmodule *made, const char *name), (made, name))
WITH_ROOM(cuModuleLoadData, (CUmodule *made, const void *image), (made, image))
WITH_ROOM(cuModuleLoadFatBinary, (CUmodule *made, const void *image), (made, image))
WITH_ROOM(cuModuleGetFunction,
          (CUfunction *ret, CUmodule module, const char *name),
          (ret, module, name))
WITH_ROOM(cuModuleGetGlobal_v2,
          (CUdeviceptr *ret, size_t *bytes, CUmodule module, const char *name),
          (ret, bytes, module, name))
WITH_ROOM(cuLibraryGetModule, (CUmodule *ret, CUlibrary library), (ret, library))
WITH_ROOM(cuLibraryGetKernel,
          (CUkernel *ret, CUlibrary library, const char *name),
          (ret, library, name))
WITH_ROOM(cuLibraryGetGlobal,
          (CUdeviceptr *ret, size_t *bytes, CUlibrary library, const char *name),
          (ret, bytes, library, name))
WITH_ROOM(cuLibraryGetManaged,
          (CUdeviceptr *ret, size_t *bytes, CUlibrary library, const char *name),
          (ret, bytes, library, name))
WITH_ROOM(cuLibraryGetUnifiedFunction,
          (void **ret, CUlibrary library, const char *name),
          (ret, library, name))
WITH_ROOM(cuKernelGetFunction, (CUfunction *ret, CUkernel kernel), (ret, kernel))
WITH_ROOM(cuKernelGetAttribute,
          (int *ret, CUfunction_attribute which, CUkernel kernel, CUdevice on),
          (ret, which, kernel, on))
WITH_ROOM(cuKernelSetAttribute,
          (CUfunction_attribute which, int value, CUkernel kernel, CUdevice on),
          (which, value, kernel, on))
WITH_ROOM(cuKernelSetCacheConfig,
          (CUkernel kernel, CUfunc_cache config, CUdevice on),
          (kernel, config, on))
WITH_ROOM(cuFuncLoad, (CUfunction function), (function))
WITH_ROOM(cuFuncGetAttribute,
          (int *ret, CUfunction_attribute which, CUfunction function),
          (ret, which, function))
WITH_ROOM(cuFuncSetAttribute,
          (CUfunction function, CUfunction_attribute which, int value),
          (function, which, value))
WITH_ROOM(cuFuncSetCacheConfig, (CUfunction function, CUfunc_cache config), (function, config))
WITH_ROOM(cuOccupancyMaxActiveBlocksPerMultiprocessor,
          (int *ret, CUfunction function, int size, size_t shared),
          (ret, function, size, shared))
WITH_ROOM(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
          (int *ret, CUfunction function, int size, size_t shared, unsigned flags),
          (ret, function, size, shared, flags))
WITH_ROOM(cuOccupancyMaxPotentialBlockSize,
          (int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared,
           int most),
          (grid, block, function, shared_of, shared, most))
WITH_ROOM(cuOccupancyMaxPotentialBlockSizeWithFlags,
          (int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared,
           int most, unsigned flags),
          (grid, block, function, shared_of, shared, most, flags))
WITH_ROOM(cuOccupancyAvailableDynamicSMemPerBlock,
          (size_t *ret, CUfunction function, int blocks, int size),
          (ret, function, blocks, size))
WITH_ROOM(cuOccupancyMaxPotentialClusterSize,
          (int *ret, CUfunction function, const CUlaunchConfig *config),
          (ret, function, config))
WITH_ROOM(cuOccupancyMaxActiveClusters,
          (int *ret, CUfunction function, const CUlaunchConfig *config),
          (ret, function, config))
WITH_ROOM(cuGraphAddKernelNode,
          (CUgraphNode *made, CUgraph graph, const CUgraphNode *after, size_t count,
           const CUDA_KERNEL_NODE_PARAMS_v1 *node),
          (made, graph, after, count, node))
WITH_ROOM(cuGraphAddKernelNode_v2,
          (CUgraphNode *made, CUgraph graph, const CUgraphNode *after, size_t count,
           const CUDA_KERNEL_NODE_PARAMS_v2 *node),
          (made, graph, after, count, node))
WITH_ROOM(cuGraphExecUpdate,
          (CUgraphExec exec, CUgraph graph, CUgraphNode *node, CUgraphExecUpdateResult *ret),
          (exec, graph, node, ret))
WITH_ROOM(cuGraphExecUpdate_v2,
          (CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *ret),
          (exec, graph, ret))
