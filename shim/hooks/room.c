/*
 * Calls by which the driver takes device memory that is not the arenas': physical memory of the
 * program's own, arrays, contexts, code, graphs, and kernels, whose code may be loaded at their
 * first launch. Each goes to the driver, and again when a full device has got some memory back.
 */
#include "hook.h"
#include "room.h"
#include "submit.h"
#include "shim/say.h"

unsigned gs_room_step(CUdevice device, size_t bytes, unsigned step)
{
    if (!gs_state_enter())
        return 0;
    GS_KEEP_CALLER;
    return gs_core_make_room(gs_core, device, bytes, &step) ? step : 0;
}

void gs_room_refused(CUdevice device, size_t bytes)
{
    if (!gs_state_enter())
        return;
    GS_KEEP_CALLER;
    gs_core_refused(gs_core, device, bytes);
}

bool gs_room_is_bounded(gs_status status)
{
    return status == GS_NO_MEMORY && gs_state_enter() && gs_bounded;
}

/* After the driver's call. */
static CUresult context_made(CUresult result, const CUcontext *context)
{
    if (result == CUDA_SUCCESS && gs_state_enter()) {
        GS_KEEP_CALLER;
        gs_core_context_made(gs_core, *context);
        gs_say_started();
    }
    return result;
}

GS_HOOK CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    gs_state_enter();
    return context_made(GS_WITH_ROOM(dev, 0, gs_real.cuCtxCreate(pctx, flags, dev)), pctx);
}

GS_HOOK CUresult CUDAAPI cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    gs_state_enter();
    return context_made(GS_WITH_ROOM(dev, 0, gs_real.cuCtxCreate_v2(pctx, flags, dev)), pctx);
}

GS_HOOK CUresult CUDAAPI cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *paramsArray,
                                        int numParams, unsigned int flags, CUdevice dev)
{
    gs_state_enter();
    return context_made(
        GS_WITH_ROOM(dev, 0, gs_real.cuCtxCreate_v3(pctx, paramsArray, numParams, flags, dev)),
        pctx);
}

GS_HOOK CUresult CUDAAPI cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *ctxCreateParams,
                                        unsigned int flags, CUdevice dev)
{
    gs_state_enter();
    return context_made(
        GS_WITH_ROOM(dev, 0, gs_real.cuCtxCreate_v4(pctx, ctxCreateParams, flags, dev)), pctx);
}

GS_HOOK CUresult CUDAAPI cuGLCtxCreate(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    gs_state_enter();
    return context_made(GS_WITH_ROOM(device, 0, gs_real.cuGLCtxCreate(pCtx, Flags, device)), pCtx);
}

GS_HOOK CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext *pCtx, unsigned int Flags, CUdevice device)
{
    gs_state_enter();
    return context_made(GS_WITH_ROOM(device, 0, gs_real.cuGLCtxCreate_v2(pCtx, Flags, device)),
                        pCtx);
}

GS_HOOK CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext *pCtx, unsigned int flags, CUdevice device,
                                          unsigned int vdpDevice, void *vdpGetProcAddress)
{
    gs_state_enter();
    return context_made(GS_WITH_ROOM(device, 0,
                                     gs_real.cuVDPAUCtxCreate(pCtx, flags, device, vdpDevice,
                                                              vdpGetProcAddress)),
                        pCtx);
}

GS_HOOK CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext *pCtx, unsigned int flags, CUdevice device,
                                             unsigned int vdpDevice, void *vdpGetProcAddress)
{
    gs_state_enter();
    return context_made(GS_WITH_ROOM(device, 0,
                                     gs_real.cuVDPAUCtxCreate_v2(pCtx, flags, device, vdpDevice,
                                                                 vdpGetProcAddress)),
                        pCtx);
}

static CUresult retain(CUcontext *pctx, CUdevice dev)
{
    GS_KEEP_CALLER;
    bool turn = gs_state_enter() && gs_core_primary_turn(gs_core, dev);
    CUresult result = gs_real.cuDevicePrimaryCtxRetain(pctx, dev);

    if (turn)
        gs_core_primary_turn_end(gs_core, dev);
    return result;
}

GS_HOOK CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    return context_made(GS_WITH_ROOM(dev, 0, retain(pctx, dev)), pctx);
}

/* Its streams run beside those of the primary one, and its default stream has no other name than
 * theirs. */
GS_HOOK CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                                          unsigned int flags)
{
    bool ours = gs_state_enter();
    CUresult result =
        GS_WITH_ROOM(dev, 0, gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags));

    if (ours && result == CUDA_SUCCESS)
        gs_single_drain(gs_single, "a green context");
    return result;
}

/* The values of its options are outputs too: a second call would take them for inputs. */
GS_HOOK CUresult CUDAAPI cuModuleLoadDataEx(CUmodule *module, const void *image,
                                            unsigned int numOptions, CUjit_option *options,
                                            void **optionValues)
{
    gs_state_enter();
    return GS_WITH_ROOM_IF(
        numOptions == 0, -1, 0,
        gs_real.cuModuleLoadDataEx(module, image, numOptions, options, optionValues));
}

GS_HOOK CUresult CUDAAPI cuLibraryLoadData(CUlibrary *library, const void *code,
                                           CUjit_option *jitOptions, void **jitOptionsValues,
                                           unsigned int numJitOptions,
                                           CUlibraryOption *libraryOptions,
                                           void **libraryOptionValues,
                                           unsigned int numLibraryOptions)
{
    gs_state_enter();
    return GS_WITH_ROOM_IF(numJitOptions == 0, -1, 0,
                           gs_real.cuLibraryLoadData(library, code, jitOptions, jitOptionsValues,
                                                     numJitOptions, libraryOptions,
                                                     libraryOptionValues, numLibraryOptions));
}

GS_HOOK CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary *library, const char *fileName,
                                               CUjit_option *jitOptions, void **jitOptionsValues,
                                               unsigned int numJitOptions,
                                               CUlibraryOption *libraryOptions,
                                               void **libraryOptionValues,
                                               unsigned int numLibraryOptions)
{
    gs_state_enter();
    return GS_WITH_ROOM_IF(numJitOptions == 0, -1, 0,
                           gs_real.cuLibraryLoadFromFile(
                               library, fileName, jitOptions, jitOptionsValues, numJitOptions,
                               libraryOptions, libraryOptionValues, numLibraryOptions));
}

GS_HOOK CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX,
                                        unsigned int blockDimY, unsigned int blockDimZ,
                                        unsigned int sharedMemBytes, CUstream hStream,
                                        void **kernelParams, void **extra)
{
    gs_submits(hStream);
    return GS_WITH_ROOM(-1, 0,
                        gs_real.cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                               blockDimY, blockDimZ, sharedMemBytes, hStream,
                                               kernelParams, extra));
}

GS_HOOK CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX,
                                             unsigned int gridDimY, unsigned int gridDimZ,
                                             unsigned int blockDimX, unsigned int blockDimY,
                                             unsigned int blockDimZ, unsigned int sharedMemBytes,
                                             CUstream hStream, void **kernelParams, void **extra)
{
    gs_submits(gs_per_thread(hStream));
    return GS_WITH_ROOM(-1, 0,
                        gs_real.cuLaunchKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX,
                                                    blockDimY, blockDimZ, sharedMemBytes, hStream,
                                                    kernelParams, extra));
}

#define ATTRIBUTES_MOST 64

/* Whether a launch has an attribute that is about more than itself. */
static bool is_special(const CUlaunchConfig *config)
{
    const CUlaunchAttribute *attribute = config->attrs;

    if (attribute)
        for (unsigned left = config->numAttrs; left > 0; left--, attribute++)
            if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
                attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
                return true;
    return false;
}

/* A launch that may begin before the work before it has ended is made an ordinary one where it has
 * to be: the attribute allows that, and promises nothing. `room` is for the copy, *ret_marks for
 * gs_single_in_order where that is the result. */
static const CUlaunchConfig *in_order(const CUlaunchConfig *config, CUstream order,
                                      CUlaunchConfig *copy, CUlaunchAttribute *room,
                                      uint64_t *ret_marks)
{
    bool overtakes = false;

    for (unsigned i = 0; i < config->numAttrs; i++) {
        room[i] = config->attrs[i];
        if (room[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            gs_single_drain(gs_single,
                            "an event that is recorded before the work before it has ended");
        if (room[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
            overtakes |= room[i].value.programmaticStreamSerializationAllowed != 0;
            room[i].value.programmaticStreamSerializationAllowed = 0;
        }
    }
    if (!overtakes) {
        gs_submits(order);
        return config;
    }
    if (gs_single_may_overtake(gs_single, order, ret_marks))
        return config;
    *copy = *config;
    copy->attrs = room;
    return copy;
}

__attribute__((noinline)) static CUresult
launch_special(__typeof__(&cuLaunchKernelEx) const *real, const CUlaunchConfig *config,
               CUfunction f, void **kernelParams, void **extra, CUstream order)
{
    CUlaunchAttribute room[ATTRIBUTES_MOST];
    CUlaunchConfig copy;
    uint64_t marks;
    CUresult result;

    if (config->numAttrs <= ATTRIBUTES_MOST)
        config = in_order(config, order, &copy, room, &marks);
    else
        gs_single_drain(gs_single, "a launch with more attributes than are known");
    result = GS_WITH_ROOM(-1, 0, (*real)(config, f, kernelParams, extra));
    if (config == &copy && result == CUDA_SUCCESS)
        gs_single_in_order(gs_single, marks);
    return result;
}

/* By itself, so that a launch that is taken saves no registers for it. */
__attribute__((cold, noinline)) static CUresult
launch_again(__typeof__(&cuLaunchKernelEx) const *real, const CUlaunchConfig *config, CUfunction f,
             void **kernelParams, void **extra)
{
    return GS_AGAIN_WITH_ROOM(-1, 0, (*real)(config, f, kernelParams, extra));
}

static inline CUstream order_of(const CUlaunchConfig *config, bool per_thread)
{
    return per_thread ? gs_per_thread(config->hStream) : config->hStream;
}

/* Without a configuration the driver launches nothing. */
__attribute__((always_inline)) static inline CUresult
launch(__typeof__(&cuLaunchKernelEx) const *real, const CUlaunchConfig *config, CUfunction f,
       void **kernelParams, void **extra, bool per_thread)
{
    CUresult result;

    if (gs_state_enter() && config) {
        if (is_special(config) && gs_single_matters())
            return launch_special(real, config, f, kernelParams, extra,
                                  order_of(config, per_thread));
        gs_single_submits(gs_single, order_of(config, per_thread));
    }
    result = (*real)(config, f, kernelParams, extra);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return launch_again(real, config, f, kernelParams, extra);
    return result;
}

GS_HOOK CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f,
                                          void **kernelParams, void **extra)
{
    return launch(&gs_real.cuLaunchKernelEx, config, f, kernelParams, extra, false);
}

GS_HOOK CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f,
                                               void **kernelParams, void **extra)
{
    return launch(&gs_real.cuLaunchKernelEx_ptsz, config, f, kernelParams, extra, true);
}

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                                   unsigned int gridDimY, unsigned int gridDimZ,
                                                   unsigned int blockDimX, unsigned int blockDimY,
                                                   unsigned int blockDimZ,
                                                   unsigned int sharedMemBytes, CUstream hStream,
                                                   void **kernelParams)
{
    gs_submits(hStream);
    return GS_WITH_ROOM(-1, 0,
                        gs_real.cuLaunchCooperativeKernel(f, gridDimX, gridDimY, gridDimZ,
                                                          blockDimX, blockDimY, blockDimZ,
                                                          sharedMemBytes, hStream, kernelParams));
}

GS_HOOK CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(
    CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
    unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
    unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    gs_submits(gs_per_thread(hStream));
    return GS_WITH_ROOM(-1, 0,
                        gs_real.cuLaunchCooperativeKernel_ptsz(
                            f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                            sharedMemBytes, hStream, kernelParams));
}

static CUresult made(CUresult result)
{
    if (result == CUDA_SUCCESS && gs_state_enter() && gs_core_graph_waits(gs_core))
        gs_core_graph_made(gs_core);
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiate(CUgraphExec *phGraphExec, CUgraph hGraph,
                                            CUgraphNode *phErrorNode, char *logBuffer,
                                            size_t bufferSize)
{
    gs_graph_room();
    return made(GS_WITH_ROOM(-1, 0,
                             gs_real.cuGraphInstantiate(phGraphExec, hGraph, phErrorNode,
                                                        logBuffer, bufferSize)));
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec *phGraphExec, CUgraph hGraph,
                                               CUgraphNode *phErrorNode, char *logBuffer,
                                               size_t bufferSize)
{
    gs_graph_room();
    return made(GS_WITH_ROOM(
        -1, 0,
        gs_real.cuGraphInstantiate_v2(phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize)));
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph,
                                                     unsigned long long flags)
{
    gs_graph_room();
    return made(
        GS_WITH_ROOM(-1, 0, gs_real.cuGraphInstantiateWithFlags(phGraphExec, hGraph, flags)));
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiateWithParams(
    CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    gs_graph_room();
    return made(GS_WITH_ROOM(
        -1, 0, gs_real.cuGraphInstantiateWithParams(phGraphExec, hGraph, instantiateParams)));
}

GS_HOOK CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(
    CUgraphExec *phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS *instantiateParams)
{
    gs_graph_room();
    return made(GS_WITH_ROOM(
        -1, 0, gs_real.cuGraphInstantiateWithParams_ptsz(phGraphExec, hGraph, instantiateParams)));
}

GS_HOOK CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                                const CUgraphNode *dependencies,
                                                size_t numDependencies,
                                                CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    if (nodeParams)
        gs_graph_node(nodeParams->bytesize);
    return GS_WITH_ROOM(-1, 0,
                        gs_real.cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies,
                                                       numDependencies, nodeParams));
}

GS_HOOK CUresult CUDAAPI cuGraphUpload(CUgraphExec hGraph, CUstream hStream)
{
    gs_graph_room();
    return GS_WITH_ROOM(-1, 0, gs_real.cuGraphUpload(hGraph, hStream));
}

GS_HOOK CUresult CUDAAPI cuGraphUpload_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    gs_graph_room();
    return GS_WITH_ROOM(-1, 0, gs_real.cuGraphUpload_ptsz(hGraphExec, hStream));
}

static CUresult launched(CUresult result)
{
    if (result == CUDA_SUCCESS && gs_state_enter() && gs_core_graph_waits(gs_core))
        gs_core_graph_launched(gs_core);
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
    gs_submits(hStream);
    gs_graph_room();
    return launched(GS_WITH_ROOM(-1, 0, gs_real.cuGraphLaunch(hGraph, hStream)));
}

GS_HOOK CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream)
{
    gs_submits(gs_per_thread(hStream));
    gs_graph_room();
    return launched(GS_WITH_ROOM(-1, 0, gs_real.cuGraphLaunch_ptsz(hGraphExec, hStream)));
}
