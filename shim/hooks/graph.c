/*
 * Copies and fills that are added to a graph by hand, or changed there. They are checked as the
 * calls are that do such work at once: a range that leaves its block is refused. Memory of another
 * device is made reachable, for a fill as well: the driver refuses such a call and takes such a
 * node (measured on two H200s). The work is done later, in a context that the call names, by
 * however many launches.
 */
#include "box.h"
#include "hook.h"
#include "room.h"
#include "shim/start.h"
#include "way.h"

static bool may_copy(const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
    if (!gs_state_enter() || !copy)
        return true;

    const struct gs_access_range to = GS_RANGE_OF_BOX(copy, dst), from = GS_RANGE_OF_BOX(copy, src);

    if (!gs_way_is_ours(to) && !gs_way_is_ours(from))
        return true;
    GS_KEEP_ERRNO;
    return gs_core_may_do_later(gs_core, to, from, ctx) == GS_OK;
}

static bool may_fill(CUdeviceptr dst, size_t pitch, unsigned element, size_t width, size_t height,
                     CUcontext ctx)
{
    const struct gs_side side = {.type = CU_MEMORYTYPE_DEVICE, .device = dst, .pitch = pitch};
    struct gs_extent extent = {.height = height, .depth = 1};
    struct gs_access_range range;

    if (!gs_state_enter() || __builtin_mul_overflow(width, element, &extent.width))
        return true;
    range = gs_range_of(&side, &extent);
    if (!gs_way_is_ours(range))
        return true;
    GS_KEEP_ERRNO;
    return gs_core_may_do_later(gs_core, range, (struct gs_access_range){0, 0}, ctx) == GS_OK;
}

static bool may_set(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext ctx)
{
    return !gs_state_enter() || !fill ||
           may_fill(fill->dst, fill->pitch, fill->elementSize, fill->width, fill->height, ctx);
}

/* A fill that names no context is done in the one that owns the memory, where that is cuMemAlloc's.
 * The driver knows it from the address, and refuses such a node for VMM memory, as for memory of
 * its pools; a change of a node would take the current one, and what is instantiated stays in its
 * own. A copy and a kernel need none (measured on H200s). */
static CUcontext filling_context(CUdeviceptr dst, CUcontext named)
{
    struct gs_block_info info;

    if (named || !gs_state_enter() || !gs_ours(dst))
        return named;
    GS_KEEP_ERRNO;
    return gs_core_find(gs_core, dst, &info) == GS_OK && !info.async ? info.context : NULL;
}

/* The node itself, or the same with that context. */
static CUgraphNodeParams *in_a_context(CUgraphNodeParams *params, CUgraphNodeParams *copy)
{
    CUcontext context;

    if (!params || params->type != CU_GRAPH_NODE_TYPE_MEMSET)
        return params;
    context = filling_context(params->memset.dst, params->memset.ctx);
    if (context == params->memset.ctx)
        return params;
    *copy = *params;
    copy->memset.ctx = context;
    return copy;
}

/* Nodes of several copies, as CUDA 13.5 has them. */
#define NODE_TYPE_MEMCPY_BATCH 14
#define NODE_TYPE_FABRIC_BATCH 18
struct fabric_batch {
    size_t count;
    const CUDA_FABRIC_COPY_BATCH_OP *list;
};
struct batch {
    size_t count;
    const CUdeviceptr *dsts, *srcs;
    const size_t *sizes;
    const CUmemcpyAttributes *attrs;
    const size_t *attrsIdxs;
    size_t numAttrs;
    CUcontext ctx;
};
#if CUDA_VERSION >= 13050
_Static_assert(offsetof(struct batch, sizes) == offsetof(CUDA_MEMCPY_BATCH_NODE_PARAMS, sizes) &&
                   offsetof(struct batch, ctx) == offsetof(CUDA_MEMCPY_BATCH_NODE_PARAMS, ctx),
               "it is as the vendor's");
#endif

static bool may_copy_batch(const struct batch *batch)
{
    bool may = true;

    GS_KEEP_ERRNO;
    for (size_t i = 0; batch->dsts && batch->srcs && batch->sizes && may && i < batch->count; i++) {
        const struct gs_access_range to = {batch->dsts[i], batch->sizes[i]};
        const struct gs_access_range from = {batch->srcs[i], batch->sizes[i]};

        if (gs_way_is_ours(to) || gs_way_is_ours(from))
            may = gs_core_may_do_later(gs_core, to, from, batch->ctx) == GS_OK;
    }
    return may;
}

/* Of a memory node it is noted. */
static bool may_add(const CUgraphNodeParams *params)
{
    const CUDA_MEMSET_NODE_PARAMS_v2 *fill = params ? &params->memset : NULL;

    if (!gs_state_enter() || !params)
        return true;
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        gs_graph_node(params->alloc.bytesize);
    if (params->type == CU_GRAPH_NODE_TYPE_MEMCPY)
        return may_copy(&params->memcpy.copyParams, params->memcpy.copyCtx);
    if ((int)params->type == NODE_TYPE_MEMCPY_BATCH)
        return may_copy_batch((const struct batch *)params->reserved1);
    if ((int)params->type == NODE_TYPE_FABRIC_BATCH) {
        const struct fabric_batch *fabric = (const struct fabric_batch *)params->reserved1;

        return gs_way_fabric(fabric->list, fabric->count);
    }
    return params->type != CU_GRAPH_NODE_TYPE_MEMSET ||
           may_fill(fill->dst, fill->pitch, fill->elementSize, fill->width, fill->height,
                    fill->ctx);
}

#define GS_MAKES_NODE_COPIES GS_ALWAYS
#define GS_MAKE_NODE_COPIES(symbol, order, async, real) \
    return may_copy(copy, ctx) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_NODE_COPY_CHANGED GS_ALWAYS
#define GS_MAKE_NODE_COPY_CHANGED(symbol, order, async, real) \
    return may_copy(copy, NULL) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_NODE_FILLS GS_ALWAYS
#define GS_MAKE_NODE_FILLS(symbol, order, async, real) \
    if (fill)                                          \
        ctx = filling_context(fill->dst, ctx);         \
    return may_set(fill, ctx) ? real : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_NODE_FILL_CHANGED GS_ALWAYS
#define GS_MAKE_NODE_FILL_CHANGED(symbol, order, async, real) \
    return may_set(fill, NULL) ? real : CUDA_ERROR_INVALID_VALUE;

/* It may be memory. */
#define GS_MAKES_NODE_ADDED GS_ALWAYS
#define GS_MAKE_NODE_ADDED(symbol, order, async, real) \
    CUgraphNodeParams copy;                            \
                                                       \
    params = in_a_context(params, &copy);              \
    return may_add(params) ? GS_MADE_WITH_ROOM(-1, real) : CUDA_ERROR_INVALID_VALUE;

#define GS_MAKES_NODE_CHANGED GS_ALWAYS
#define GS_MAKE_NODE_CHANGED(symbol, order, async, real) \
    CUgraphNodeParams copy;                              \
                                                         \
    params = in_a_context(params, &copy);                \
    return may_add(params) ? real : CUDA_ERROR_INVALID_VALUE;

#include "made.h"
