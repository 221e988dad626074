/*
 * Graphs and their instances. A launch makes one operation a node, which wait for each other as
 * the nodes do; the stream goes on behind the last of them.
 */
#include "internal.h"

static struct sd_graph_memory *memory_ref(struct sd_graph_memory *memory)
{
    memory->refs++;
    return memory;
}

/* What `op` ends is a use of the memory as well. */
static void memory_used(struct sd_graph_memory *memory, struct sd_context *context,
                        struct sd_op *op)
{
    struct sd_op *join;

    if (!op || op->done)
        return;
    if (!memory->last || memory->last->done) {
        sd_op_unref(memory->last);
        memory->last = sd_op_ref(op);
        return;
    }
    join = sd_op_new(context, NULL);
    if (!join)
        abort(); /* order that cannot be kept must not look kept */
    sd_op_after(join, memory->last);
    sd_op_after(join, op);
    sd_op_submit(join);
    sd_op_unref(memory->last);
    memory->last = join;
}

/* The last one out frees the memory, when its latest user is done: `last`, or one before. */
static void memory_unref(struct sd_graph_memory *memory, struct sd_context *context,
                         struct sd_op *last)
{
    memory_used(memory, context, last);
    if (--memory->refs)
        return;
    for (size_t i = 0; i < memory->count; i++) {
        struct sd_work work = {.kind = SD_FREE, .free = {.block = memory->blocks[i]}};
        struct sd_op *op =
            memory->last && !memory->last->done ? sd_op_new(memory->last->context, &work) : NULL;
        if (!op) {
            sd_op_wait(memory->last);
            sd_block_release(memory->blocks[i], NULL, NULL);
            continue;
        }
        sd_op_after(op, memory->last);
        sd_op_submit(op);
        sd_op_unref(op);
    }
    sd_op_unref(memory->last);
    free(memory->blocks);
    free(memory);
}

bool sd_graph_keep(struct sd_graph *graph, struct sd_block *block)
{
    struct sd_graph_memory *memory = graph->memory;
    struct sd_block **blocks =
        realloc(memory->blocks, (memory->count + 1) * sizeof *memory->blocks);

    if (!blocks)
        return false;
    memory->blocks = blocks;
    blocks[memory->count++] = block;
    return true;
}

bool sd_graph_owns(const struct sd_graph *graph, const struct sd_block *block)
{
    for (size_t i = 0; i < graph->memory->count; i++)
        if (graph->memory->blocks[i] == block)
            return true;
    return false;
}

struct sd_graph *sd_graph_new(void)
{
    struct sd_graph_memory *memory = calloc(1, sizeof *memory);
    struct sd_graph *graph = memory ? sd_object_new(SD_GRAPH, sizeof *graph) : NULL;

    if (!graph) {
        free(memory);
        return NULL;
    }
    graph->memory = memory_ref(memory);
    return graph;
}

void sd_graph_free(struct sd_graph *graph)
{
    for (size_t i = 0; i < graph->count; i++) {
        free(graph->nodes[i]->after);
        sd_work_unref(&graph->nodes[i]->work);
        sd_object_free(graph->nodes[i]);
    }
    free(graph->nodes);
    memory_unref(graph->memory, NULL, NULL);
    sd_object_free(graph);
}

struct sd_node *sd_graph_add(struct sd_graph *graph, const struct sd_work *work,
                             struct sd_node **after, size_t after_count)
{
    struct sd_node *node;

    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 16;
        struct sd_node **nodes = realloc(graph->nodes, room * sizeof *nodes);
        if (!nodes)
            return NULL;
        graph->nodes = nodes;
        graph->room = room;
    }
    node = sd_object_new(SD_NODE, sizeof *node);
    if (!node)
        return NULL;
    node->after = malloc((after_count ? after_count : 1) * sizeof *node->after);
    if (!node->after) {
        sd_object_free(node);
        return NULL;
    }
    if (after_count)
        memcpy(node->after, after, after_count * sizeof *node->after);
    node->after_count = after_count;
    node->graph = graph;
    node->work = *work;
    sd_work_ref(work);
    node->index = graph->count;
    graph->nodes[graph->count++] = node;
    return node;
}

CUresult sd_graph_create(CUgraph *handle, unsigned flags)
{
    struct sd_graph *graph;

    if (!handle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    graph = sd_graph_new();
    if (!graph)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (CUgraph)graph;
    return CUDA_SUCCESS;
}

CUresult sd_graph_destroy(CUgraph handle)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);

    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    sd_graph_free(graph);
    return CUDA_SUCCESS;
}

CUresult sd_graph_get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    struct sd_graph *graph = sd_object_check(handle, SD_GRAPH);

    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; nodes && i < *count; i++)
        nodes[i] = i < graph->count ? (CUgraphNode)graph->nodes[i] : NULL;
    if (!nodes || *count > graph->count)
        *count = graph->count;
    return CUDA_SUCCESS;
}

static void exec_free(struct sd_exec *exec)
{
    for (size_t i = 0; exec->nodes && i < exec->count; i++) {
        free(exec->nodes[i].after);
        sd_work_unref(&exec->nodes[i].work);
    }
    free(exec->nodes);
    sd_op_unref(exec->last);
    sd_object_free(exec);
}

static bool exec_fill(struct sd_exec *exec, const struct sd_graph *graph)
{
    exec->nodes = calloc(graph->count ? graph->count : 1, sizeof *exec->nodes);
    if (!exec->nodes)
        return false;
    exec->count = graph->count;
    for (size_t i = 0; i < graph->count; i++) {
        const struct sd_node *node = graph->nodes[i];
        struct sd_exec_node *to = &exec->nodes[i];
        to->work = node->work;
        sd_work_ref(&to->work);
        to->after_count = node->after_count;
        to->after = malloc((node->after_count ? node->after_count : 1) * sizeof *to->after);
        if (!to->after)
            return false;
        for (size_t j = 0; j < node->after_count; j++)
            to->after[j] = node->after[j]->index;
    }
    return true;
}

CUresult sd_graph_instantiate(CUgraphExec *handle, CUgraph graph_handle, unsigned long long flags)
{
    struct sd_graph *graph = sd_object_check(graph_handle, SD_GRAPH);
    struct sd_context *context;
    struct sd_exec *exec;
    CUresult result = sd_current(&context);

    if (result)
        return result;
    if (!handle || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    exec = sd_object_new(SD_EXEC, sizeof *exec);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!exec_fill(exec, graph)) {
        exec_free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->context = context;
    exec->memory = memory_ref(graph->memory);
    *handle = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

CUresult sd_graph_instantiate_params(CUgraphExec *handle, CUgraph graph,
                                     CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    CUresult result;

    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    result = sd_graph_instantiate(handle, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return result;
}

CUresult sd_graph_upload(CUgraphExec handle, CUstream stream)
{
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);

    if (result)
        return result;
    return sd_object_check(handle, SD_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static void launch(struct sd_exec *exec, struct sd_queue *queue, struct sd_op **ops,
                   struct sd_op *start, struct sd_op *end)
{
    sd_op_after(start, exec->last);
    for (size_t i = 0; i < exec->count; i++) {
        const struct sd_exec_node *node = &exec->nodes[i];
        sd_shared_number(&ops[i]->work);
        sd_op_after(ops[i], start);
        for (size_t j = 0; j < node->after_count; j++)
            sd_op_after(ops[i], ops[node->after[j]]);
        sd_op_after(end, ops[i]);
    }
    sd_op_unref(exec->last);
    exec->last = sd_op_ref(end);
    sd_queue_submit(queue, start);
    sd_queue_submit(queue, end);
    for (size_t i = 0; i < exec->count; i++)
        sd_op_submit(ops[i]);
}

CUresult sd_graph_launch(CUgraphExec handle, CUstream stream)
{
    struct sd_exec *exec = sd_object_check(handle, SD_EXEC);
    struct sd_op **ops, *start, *end;
    struct sd_queue *queue;
    CUresult result = sd_queue_get(stream, &queue);
    size_t made = 0;

    if (result)
        return result;
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    if (queue->capture)
        return sd_capture_add_graph(queue, exec);
    result = sd_capture_forbids_legacy(queue);
    if (result)
        return result;
    ops = calloc(exec->count + 1, sizeof *ops);
    start = sd_op_new(queue->context, NULL);
    end = sd_op_new(queue->context, NULL);
    while (ops && made < exec->count &&
           (ops[made] = sd_op_new(queue->context, &exec->nodes[made].work))) {
        sd_work_ref(&ops[made]->work);
        made++;
    }
    if (ops && start && end && made == exec->count) {
        launch(exec, queue, ops, start, end);
    } else {
        sd_op_unref(start);
        sd_op_unref(end);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < made; i++)
        sd_op_unref(ops[i]);
    free(ops);
    return result;
}

CUresult sd_graph_exec_destroy(CUgraphExec handle)
{
    struct sd_exec *exec = sd_object_check(handle, SD_EXEC);

    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    memory_unref(exec->memory, exec->context, exec->last);
    exec_free(exec);
    return CUDA_SUCCESS;
}
