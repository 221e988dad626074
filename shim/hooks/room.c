/*
 * Calls by which the driver takes device memory that is not the arenas': arrays, streams, limits,
 * contexts, graphs, and code, which it loads when somebody first asks for a function, a variable or
 * what a kernel needs, or launches one. Each goes to the driver, and again when a full device has
 * got some memory back.
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
    GS_AT_GATE(cuDevicePrimaryCtxRetain);
    return context_made(GS_WITH_ROOM(dev, 0, retain(pctx, dev)), pctx);
}

/* Its streams run beside those of the primary one, and its default stream has no other name than
 * theirs. */
GS_HOOK CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx *phCtx, CUdevResourceDesc desc, CUdevice dev,
                                          unsigned int flags)
{
    GS_AT_GATE(cuGreenCtxCreate);
    struct gs_green *note;
    CUresult result;

    if (!gs_state_enter())
        return gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags);
    GS_KEEP_CALLER;
    note = gs_core_green_new();
    if (!note)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = GS_WITH_ROOM(dev, 0, gs_real.cuGreenCtxCreate(phCtx, desc, dev, flags));
    gs_core_green_made(gs_core, note, result == CUDA_SUCCESS ? *phCtx : NULL, dev);
    if (result == CUDA_SUCCESS)
        gs_single_drain(gs_single, "a green context");
    return result;
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

__attribute__((noinline)) static CUresult launch_special(__typeof__(&cuLaunchKernelEx) const *real,
                                                         const CUlaunchConfig *config, CUfunction f,
                                                         void **kernelParams, void **extra,
                                                         CUstream order)
{
    CUlaunchAttribute room[ATTRIBUTES_MOST];
    CUlaunchConfig copy;
    uint64_t marks;
    CUresult result;

    if (config->numAttrs <= ATTRIBUTES_MOST)
        config = in_order(config, order, &copy, room, &marks);
    else
        gs_single_drain(gs_single, "a launch with more attributes than are known");
    result = GS_MADE_WITH_ROOM(-1, (*real)(config, f, kernelParams, extra));
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

/* `zero` is the stream that 0 means. Without a configuration the driver launches nothing. */
__attribute__((always_inline)) static inline CUresult
launch(bool entered, __typeof__(&cuLaunchKernelEx) const *real, const CUlaunchConfig *config,
       CUfunction f, void **kernelParams, void **extra, CUstream zero)
{
    CUresult result;

    if (entered && config) {
        const CUstream order = config->hStream ? config->hStream : zero;

        if (is_special(config) && gs_single_matters())
            return launch_special(real, config, f, kernelParams, extra, order);
        gs_single_submits(gs_single, order);
    }
    result = (*real)(config, f, kernelParams, extra);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return launch_again(real, config, f, kernelParams, extra);
    return result;
}

GS_HOOK CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode *phGraphNode, CUgraph hGraph,
                                                const CUgraphNode *dependencies,
                                                size_t numDependencies,
                                                CUDA_MEM_ALLOC_NODE_PARAMS *nodeParams)
{
    GS_AT_GATE(cuGraphAddMemAllocNode);
    if (gs_state_enter() && nodeParams)
        gs_graph_node(nodeParams->bytesize);
    return GS_WITH_ROOM(-1, 0,
                        gs_real.cuGraphAddMemAllocNode(phGraphNode, hGraph, dependencies,
                                                       numDependencies, nodeParams));
}

static CUresult graph_made(CUresult result)
{
    if (result == CUDA_SUCCESS && gs_state_enter() && gs_core_graph_waits(gs_core))
        gs_core_graph_made(gs_core);
    return result;
}

static CUresult graph_launched(CUresult result)
{
    if (result == CUDA_SUCCESS && gs_state_enter() && gs_core_graph_waits(gs_core))
        gs_core_graph_launched(gs_core);
    return result;
}

/* ---- Made from rows ------------------------------------------------------------------------- */

#define GS_MAKES_ROOM                            GS_ALWAYS
#define GS_MAKE_ROOM(symbol, order, async, real) return GS_MADE_WITH_ROOM(-1, real);

/* The values of the settings are outputs too: a second call would take them for inputs. */
#define GS_MAKES_LOADS GS_ALWAYS
#define GS_MAKE_LOADS(symbol, order, async, real) \
    return GS_WITH_ROOM_IF(settings == 0, -1, 0, real);

#define GS_MAKES_MAKES_CONTEXT GS_ALWAYS
#define GS_MAKE_MAKES_CONTEXT(symbol, order, async, real) \
    return context_made(GS_MADE_WITH_ROOM(device, real), made);

#define GS_MAKES_LAUNCHES GS_ALWAYS
#define GS_MAKE_LAUNCHES(symbol, order, async, real) \
    gs_submits_if(gs_entered, order);                \
    return GS_MADE_WITH_ROOM(-1, real);

#define GS_MAKES_LAUNCHES_EX GS_ALWAYS
#define GS_MAKE_LAUNCHES_EX(symbol, order, async, real) \
    return launch(gs_entered, &gs_real.symbol, config, function, params, extra, order);

#define GS_MAKES_MAKES_GRAPH GS_ALWAYS
#define GS_MAKE_MAKES_GRAPH(symbol, order, async, real) \
    gs_graph_room();                                    \
    return graph_made(GS_MADE_WITH_ROOM(-1, real));

#define GS_MAKES_UPLOADS_GRAPH GS_ALWAYS
#define GS_MAKE_UPLOADS_GRAPH(symbol, order, async, real) \
    gs_graph_room();                                      \
    return GS_MADE_WITH_ROOM(-1, real);

#define GS_MAKES_LAUNCHES_GRAPH GS_ALWAYS
#define GS_MAKE_LAUNCHES_GRAPH(symbol, order, async, real) \
    gs_submits_if(gs_entered, order);                      \
    gs_graph_room();                                       \
    return graph_launched(GS_MADE_WITH_ROOM(-1, real));

#include "made.h"
