/*
 * Nodes that are added to a graph by hand. Each is what the call would have been that a capture
 * turns into one, so it is made by that call, in a capture of its own around the graph.
 */
#include "internal.h"

/* A capture into `graph`, behind the nodes given. */
struct by_hand {
    struct sd_capture capture;
    struct sd_queue queue;
};

static CUresult begin(struct by_hand *hand, struct sd_graph *graph, const CUgraphNode *after,
                      size_t count, struct sd_context *context)
{
    memset(hand, 0, sizeof *hand);
    if (!graph || (count && !after))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!sd_object_check(after[i], SD_NODE))
            return CUDA_ERROR_INVALID_VALUE;
    hand->capture.graph = graph;
    hand->queue.capture = &hand->capture;
    hand->queue.context = context;
    hand->queue.nodes = malloc((count ? count : 1) * sizeof *hand->queue.nodes);
    if (!hand->queue.nodes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (count)
        memcpy(hand->queue.nodes, after, count * sizeof *after);
    hand->queue.node_count = count;
    return CUDA_SUCCESS;
}

static CUresult end(struct by_hand *hand, CUresult result, CUgraphNode *ret_node)
{
    if (!result && ret_node)
        *ret_node = (CUgraphNode)hand->queue.nodes[0];
    free(hand->queue.nodes);
    return result;
}

/* Boxes of one slice are all that is here. */
static CUresult copy_node(struct by_hand *hand, const CUDA_MEMCPY3D *copy)
{
    CUDA_MEMCPY2D slice;

    if (!copy || !copy->WidthInBytes || !copy->Height || !copy->Depth)
        return CUDA_ERROR_INVALID_VALUE;
    if (copy->Depth > 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    slice = sd_slice_of(copy, 0);
    return sd_queue_copy(&hand->queue, &slice, true);
}

static CUresult fill_node(struct by_hand *hand, const CUDA_MEMSET_NODE_PARAMS_v2 *fill)
{
    if (!fill->width || !fill->height ||
        (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    return sd_queue_fill(&hand->queue, fill->dst, fill->height > 1 ? fill->pitch : 0, fill->value,
                         fill->elementSize, fill->width, fill->height, true);
}

static CUcontext named(const CUgraphNodeParams *params)
{
    return params->type == CU_GRAPH_NODE_TYPE_MEMCPY ? params->memcpy.copyCtx : params->memset.ctx;
}

/* Where none is named, the owner of the memory that is written, or any that reaches it. */
static CUresult some_context(const CUgraphNodeParams *params, struct sd_context **ret)
{
    const bool copies = params->type == CU_GRAPH_NODE_TYPE_MEMCPY;
    const struct sd_block *block;

    if (named(params))
        return sd_context_get(named(params), false, ret);
    block = sd_block_find(copies ? params->memcpy.copyParams.dstDevice : params->memset.dst);
    if (block && block->context)
        *ret = block->context;
    else if (sd_current(ret) != CUDA_SUCCESS)
        *ret = block ? sd_devices[block->device].primary : NULL;
    return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A fill is added in a context, which may be the memory's owner; VMM memory and that of pools has
 * none. A copy needs none (measured on H200s). */
static CUresult context_to_add(const CUgraphNodeParams *params, struct sd_context **ret)
{
    const struct sd_block *block;

    if (params->type == CU_GRAPH_NODE_TYPE_MEMSET && !named(params)) {
        block = sd_block_find(params->memset.dst);
        if (!block || !block->context)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return some_context(params, ret);
}

/* Copies and fills are all that is here. */
static CUresult add_node(CUgraphNode *node, CUgraph handle, const CUgraphNode *after, size_t count,
                         const CUgraphNodeParams *params, struct sd_context *context)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);
    struct by_hand hand;
    CUresult result = begin(&hand, graph, after, count, context);

    if (result)
        return result;
    result = params->type == CU_GRAPH_NODE_TYPE_MEMCPY
                 ? copy_node(&hand, &params->memcpy.copyParams)
                 : fill_node(&hand, &params->memset);
    if (!result && params->type == CU_GRAPH_NODE_TYPE_MEMSET)
        hand.queue.nodes[0]->work.set.in = context;
    return end(&hand, result, node);
}

static CUresult check_kind(const CUgraphNodeParams *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    return params->type == CU_GRAPH_NODE_TYPE_MEMCPY || params->type == CU_GRAPH_NODE_TYPE_MEMSET
               ? CUDA_SUCCESS
               : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sd_graph_add_node(CUgraphNode *node, CUgraph handle, const CUgraphNode *after,
                           size_t count, const CUgraphNodeParams *params)
{
    struct sd_context *context;
    CUresult result = node ? check_kind(params) : CUDA_ERROR_INVALID_VALUE;

    if (!result)
        result = context_to_add(params, &context);
    return result ? result : add_node(node, handle, after, count, params, context);
}

/* The work of such a node, made in a graph that goes again; it replaces work of its kind. What is
 * instantiated stays in its context. */
static CUresult change(struct sd_work *work, const CUgraphNodeParams *params, bool instantiated)
{
    struct sd_graph *graph = sd_graph_new();
    CUresult result = check_kind(params);
    struct sd_context *context;
    CUgraphNode node = NULL;

    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!result)
        result = some_context(params, &context);
    if (!result)
        result = add_node(&node, (CUgraph)graph, NULL, 0, params, context);
    if (!result && ((struct sd_node *)node)->work.kind != work->kind)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result && instantiated && work->kind == SD_SET && work->set.in && work->set.in != context)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *work = ((struct sd_node *)node)->work;
    sd_graph_free(graph);
    return result;
}

CUresult sd_node_set(CUgraphNode handle, const CUgraphNodeParams *params)
{
    struct sd_node *node = sd_object_check(handle, SD_NODE);

    return node ? change(&node->work, params, false) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sd_exec_node_set(CUgraphExec handle, CUgraphNode node_handle,
                          const CUgraphNodeParams *params)
{
    struct sd_exec *exec = sd_object_check(handle, SD_EXEC);
    struct sd_node *node = sd_object_check(node_handle, SD_NODE);

    if (!exec || !node || node->index >= exec->count)
        return CUDA_ERROR_INVALID_VALUE;
    return change(&exec->nodes[node->index].work, params, true);
}

/* ---- The forms for copies and for fills alone ---- */

CUgraphNodeParams *sd_copy_params(const CUDA_MEMCPY3D *copy, CUcontext ctx, CUgraphNodeParams *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->type = CU_GRAPH_NODE_TYPE_MEMCPY;
    if (!copy)
        return NULL;
    ret->memcpy.copyCtx = ctx;
    ret->memcpy.copyParams = *copy;
    return ret;
}

CUgraphNodeParams *sd_fill_params(const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext ctx,
                                  CUgraphNodeParams *ret)
{
    memset(ret, 0, sizeof *ret);
    ret->type = CU_GRAPH_NODE_TYPE_MEMSET;
    if (!fill)
        return NULL;
    ret->memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = fill->dst,
                                               .pitch = fill->pitch,
                                               .value = fill->value,
                                               .elementSize = fill->elementSize,
                                               .width = fill->width,
                                               .height = fill->height,
                                               .ctx = ctx};
    return ret;
}

CUresult sd_graph_add_alloc(CUgraphNode *node, CUgraph handle, const CUgraphNode *after,
                            size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);
    struct sd_context on_device = {.device = 0};
    struct sd_block *block;
    struct by_hand hand;
    CUresult result;

    if (!node || !params || !params->bytesize ||
        params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !sd_device_get_ptr(params->poolProps.location.id))
        return CUDA_ERROR_INVALID_VALUE;
    on_device.device = params->poolProps.location.id;
    result = begin(&hand, graph, after, count, &on_device);
    if (result)
        return result;
    result = sd_graph_take(&hand.queue, params->bytesize, &block);
    if (!result)
        params->dptr = block->base;
    return end(&hand, result, node);
}

CUresult sd_graph_add_free(CUgraphNode *node, CUgraph handle, const CUgraphNode *after,
                           size_t count, CUdeviceptr ptr)
{
    const struct sd_work nothing = {.kind = SD_JOIN};
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);
    const struct sd_block *block = sd_block_find(ptr);
    struct by_hand hand;
    CUresult result;

    if (!node || !graph || !block || block->base != ptr || !sd_graph_owns(graph, block))
        return CUDA_ERROR_INVALID_VALUE;
    result = begin(&hand, graph, after, count, NULL);
    return result ? result : end(&hand, sd_capture_add(&hand.queue, &nothing), node);
}
