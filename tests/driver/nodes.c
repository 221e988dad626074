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

CUresult sd_graph_add_memcpy(CUgraphNode *node, CUgraph handle, const CUgraphNode *after,
                             size_t count, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);
    struct sd_context *context;
    struct by_hand hand;
    CUresult result = sd_context_get(ctx, true, &context);

    if (!result && !node)
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result)
        result = begin(&hand, graph, after, count, context);
    return result ? result : end(&hand, copy_node(&hand, copy), node);
}

/* The work of the new node, made in a graph that goes again. */
static CUresult copy_work(const CUDA_MEMCPY3D *copy, CUcontext ctx, struct sd_work *ret_work)
{
    struct sd_graph *graph = sd_graph_new();
    CUgraphNode node = NULL;
    CUresult result;

    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = sd_graph_add_memcpy(&node, (CUgraph)graph, NULL, 0, copy, ctx);
    if (!result)
        *ret_work = ((struct sd_node *)node)->work;
    sd_graph_free(graph);
    return result;
}

CUresult sd_graph_memcpy_set(CUgraphNode handle, const CUDA_MEMCPY3D *copy)
{
    struct sd_node *node = sd_object_check(handle, SD_NODE);

    if (!node || node->work.kind != SD_COPY)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_work(copy, NULL, &node->work);
}

CUresult sd_exec_memcpy_set(CUgraphExec handle, CUgraphNode node_handle, const CUDA_MEMCPY3D *copy,
                            CUcontext ctx)
{
    struct sd_exec *exec = sd_object_check(handle, SD_EXEC);
    struct sd_node *node = sd_object_check(node_handle, SD_NODE);

    if (!exec || !node || node->index >= exec->count ||
        exec->nodes[node->index].work.kind != SD_COPY)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_work(copy, ctx, &exec->nodes[node->index].work);
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

/* One after the other: their order is nobody's business. */
CUresult sd_memcpy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                         const CUmemcpyAttributes *attributes, const size_t *first,
                         size_t attribute_count, size_t *ret_fail, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (ret_fail)
        *ret_fail = SIZE_MAX;
    if (!dsts || !srcs || !sizes || !count || !attributes || !first || !attribute_count ||
        attribute_count > count || first[0] != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count && !result; i++) {
        result = sd_memcpy(dsts[i], srcs[i], sizes[i], stream, true);
        if (result && ret_fail)
            *ret_fail = i;
    }
    return result;
}
