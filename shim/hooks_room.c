/*
 * Calls by which the driver takes device memory that is not the pools': physical memory of the
 * program's own, arrays, contexts, code, graphs, and kernels, whose code may be loaded at their
 * first launch. Each goes to the driver, and again when a full device has got some memory back.
 */
#include "hook.h"
#include "room.h"

#include <limits.h>

/* The device that such memory is of; none for memory of the host. */
static CUdevice device_of(const CUmemAllocationProp *prop)
{
    return prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : INT_MAX;
}

GS_HOOK CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuMemCreate(handle, size, prop, flags);
    while (gs_room_again(result, device_of(prop), size, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuArrayCreate_v2(CUarray *pHandle,
                                          const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuArrayCreate_v2(pHandle, pAllocateArray);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuArray3DCreate_v2(CUarray *pHandle,
                                            const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuArray3DCreate_v2(pHandle, pAllocateArray);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray *pHandle,
                                                const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc,
                                                unsigned int numMipmapLevels)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuCtxCreate(pctx, flags, dev);
    while (gs_room_again(result, dev, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuCtxCreate_v2(pctx, flags, dev);
    while (gs_room_again(result, dev, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray,
                                        int numParams, unsigned int flags, CUdevice dev)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev);
    while (gs_room_again(result, dev, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                                        unsigned int flags, CUdevice dev)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev);
    while (gs_room_again(result, dev, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuDevicePrimaryCtxRetain(pctx, dev);
    while (gs_room_again(result, dev, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuStreamCreate(CUstream *phStream, unsigned int Flags)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuStreamCreate(phStream, Flags);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *phStream, unsigned int flags,
                                                    int priority)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuStreamCreateWithPriority(phStream, flags, priority);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuModuleLoad(CUmodule *module, const char *fname)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuModuleLoad(module, fname);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuModuleLoadData(module, image);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

/* The values of its options are outputs too: a second call would take them for inputs. */
GS_HOOK CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image,
                                            unsigned int numOptions, CUjit_option *options,
                                            void **optionValues)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuModuleLoadDataEx(module, image, numOptions, options, optionValues);
    while (numOptions == 0 && gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuModuleLoadFatBinary(module, fatCubin);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuModuleGetFunction(hfunc, hmod, name);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code,
                                           CUjit_option *jitOptions, void **jitOptionsValues,
                                           unsigned int numJitOptions,
                                           CUlibraryOption *libraryOptions,
                                           void **libraryOptionValues,
                                           unsigned int numLibraryOptions)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues,
                                           numJitOptions, libraryOptions, libraryOptionValues,
                                           numLibraryOptions);
    while (numJitOptions == 0 && gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
                                               CUjit_option *jitOptions, void **jitOptionsValues,
                                               unsigned int numJitOptions,
                                               CUlibraryOption *libraryOptions,
                                               void **libraryOptionValues,
                                               unsigned int numLibraryOptions)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLibraryLoadFromFile(library, fileName, jitOptions, jitOptionsValues,
                                               numJitOptions, libraryOptions, libraryOptionValues,
                                               numLibraryOptions);
    while (numJitOptions == 0 && gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLibraryGetModule(pMod, library);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuKernelGetFunction(pFunc, kernel);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX,
                                        unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams, void **extra)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                        blockDimZ, sharedMemBytes, hStream, kernelParams, extra);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX,
                                             unsigned int gridDimY, unsigned int gridDimZ,
                                             unsigned int blockDimX, unsigned int blockDimY,
                                             unsigned int blockDimZ, unsigned int sharedMemBytes,
                                             CUstream hStream, void **kernelParams, void **extra)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLaunchKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                             blockDimZ, sharedMemBytes, hStream, kernelParams,
                                             extra);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f,
                                          void **kernelParams, void **extra)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLaunchKernelEx(config, f, kernelParams, extra);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f,
                                               void **kernelParams, void **extra)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLaunchKernelEx_ptsz(config, f, kernelParams, extra);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                                   unsigned int gridDimY, unsigned int gridDimZ,
                                                   unsigned int blockDimX, unsigned int blockDimY,
                                                   unsigned int blockDimZ,
                                                   unsigned int sharedMemBytes, CUstream hStream,
                                                   void **kernelParams)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLaunchCooperativeKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                                   blockDimY, blockDimZ, sharedMemBytes, hStream,
                                                   kernelParams);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX,
                                                        unsigned int gridDimY,
                                                        unsigned int gridDimZ,
                                                        unsigned int blockDimX,
                                                        unsigned int blockDimY,
                                                        unsigned int blockDimZ,
                                                        unsigned int sharedMemBytes,
                                                        CUstream hStream, void **kernelParams)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuLaunchCooperativeKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                                        blockDimY, blockDimZ, sharedMemBytes,
                                                        hStream, kernelParams);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
                                            CUgraphNode *phErrorNode, char *logBuffer,
                                            size_t bufferSize)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphInstantiate(phGraphExec, hGraph, phErrorNode, logBuffer,
                                            bufferSize);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                               CUgraphNode *phErrorNode, char *logBuffer,
                                               size_t bufferSize)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer,
                                               bufferSize);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                     unsigned long long flags)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                      CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec *phGraphExec,
                                                           CUgraph hGraph,
                                                           CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                                const CUgraphNode *dependencies,
                                                size_t numDependencies,
                                                CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies, numDependencies,
                                                nodeParams);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraph, CUstream hStream)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphUpload(hGraph, hStream);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphUpload_ptsz(hGraphExec, hStream);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphLaunch(hGraph, hStream);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    unsigned step = 0;
    CUresult result;

    gs_state_enter();
    do
        result = gs_real.cuGraphLaunch_ptsz(hGraphExec, hStream);
    while (gs_room_again(result, -1, 0, &step));
    return result;
}
