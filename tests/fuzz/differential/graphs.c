/* Steps with captures and graphs. A capture begins and ends within its step. */
#include "world.h"

static void use(struct graph *graph, int block)
{
    if (world.block[block].context >= 0)
        graph->contexts |= 1u << world.block[block].context;
    graph->use[graph->uses].block = block;
    graph->use[graph->uses++].life = world.block[block].life;
}

/* A fill, a copy or a kernel, on the stream that captures. */
static void capture_one(struct graph *graph, int stream)
{
    const unsigned kinds = 1u << PLAIN | 1u << ASYNC | 1u << POOLED | 1u << VMM;
    int slot = any_block(kinds), from = any_block(kinds);
    const struct block *block = &world.block[slot < 0 ? 0 : slot];
    unsigned value = pick(256);
    CUdeviceptr at, source;
    size_t size, offset;
    uint64_t count;

    if (slot < 0 || graph->uses > 6 || block->device != world.context[graph->context].device ||
        world.block[from].device != block->device)
        return;
    size = pick_part(block, 4 * KIB, &offset);
    at = block->ptr + offset;
    say(" b%d+%zu %zu", slot, offset, size);
    use(graph, slot);
    switch (pick(3)) {
    case 0:
        CALL(cuMemsetD8Async, at, (unsigned char)value, size, stream_handle(stream));
        break;
    case 1:
        if (from == slot)
            break;
        count = pick_part(&world.block[from], size, &offset);
        source = world.block[from].ptr + offset;
        say(" b%d+%zu %zu", from, offset, (size_t)count);
        use(graph, from);
        CALL(cuMemcpyDtoDAsync, at, source, count, stream_handle(stream));
        break;
    default:
        at &= ~(CUdeviceptr)3;
        count = size / 4;
        if (count && block->ptr % 4 == 0)
            launch(0, graph->context, stream_handle(stream), (void *[]){&at, &value, &count});
    }
}

/* Synchronously, in the legacy stream, where no other stream has the block. */
static void write_one(int slot)
{
    const struct block *block = &world.block[slot];
    unsigned char value = (unsigned char)pick(256);

    if (block->last.context >= 0)
        return;
    say(" b%d", slot);
    if (block->device == world.context[current_context()].device && one_in(2))
        CALL(cuMemsetD8, block->ptr, value, 1);
    else
        CALL(cuMemcpyHtoD, block->ptr, &value, 1);
    world_used(slot, order_of(-1));
}

/* A call that has no business in a capture. In GLOBAL and THREAD_LOCAL mode this thread's are
 * refused; those that the library lets pass where the driver does not are not made. True: the graph
 * would end memory of ours, and is not to be launched. */
static bool intrude(CUstreamCaptureMode mode, int stream)
{
    bool ends = false;
    int slot = any_block(1u << PLAIN | 1u << ASYNC), other = any_stream();
    CUdeviceptr ptr = 0;
    CUgraph beside;
    unsigned on = 1;

    if (slot >= 0 && is_far(&world.block[slot])) /* LIMIT_FAR */
        slot = -1;
    switch (pick(17)) {
    case 0:
        CALL(cuStreamSynchronize, stream_handle(stream));
        break;
    case 11:
        if (other >= 0)
            CALL(cuStreamSynchronize, stream_handle(other));
        break;
    case 1:
        CALL(cuStreamQuery, stream_handle(stream));
        break;
    case 2:
        CALL(cuCtxSynchronize);
        break;
    case 3:
        CALL(cuStreamBeginCapture, stream_handle(stream), mode);
        break;
    case 4:
        if (slot >= 0)
            CALL(cuMemcpyDtoH, &on, world.block[slot].ptr, 1);
        break;
    case 5:
        if (slot >= 0 && mode == CU_STREAM_CAPTURE_MODE_RELAXED)
            CALL(cuPointerSetAttribute, &on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                 world.block[slot].ptr);
        break;
    case 6:
        if (mode == CU_STREAM_CAPTURE_MODE_RELAXED && CALL(cuMemAlloc, &ptr, 4096) == CUDA_SUCCESS)
            CALL(cuMemFree, ptr);
        break;
    case 7: {
        CUstreamCaptureStatus status = 77;
        if (CALL(cuStreamIsCapturing, stream_handle(stream), &status) == CUDA_SUCCESS)
            say(" %d", (int)status);
        break;
    }
    case 8:
        if (CALL(cuMemAllocAsync, &ptr, 4096, stream_handle(stream)) == CUDA_SUCCESS)
            CALL(cuMemFreeAsync, ptr, stream_handle(stream));
        break;
    case 9:
        if (slot >= 0)
            ends =
                CALL(cuMemFreeAsync, world.block[slot].ptr, stream_handle(stream)) == CUDA_SUCCESS;
        break;
    case 12:
        if (slot >= 0)
            write_one(slot);
        break;
    case 14: {
        unsigned flags;
        CALL(cuStreamGetFlags, stream_handle(other), &flags);
        break;
    }
    case 15: {
        CUcontext its;
        CALL(cuStreamGetCtx, stream_handle(other), &its);
        break;
    }
    case 16:
        if (other >= 0 && other != stream &&
            CALL(cuStreamBeginCapture, stream_handle(other), mode) == CUDA_SUCCESS &&
            CALL(cuStreamEndCapture, stream_handle(other), &beside) == CUDA_SUCCESS)
            CALL(cuGraphDestroy, beside);
        break;
    default:
        CALL(cuMemGetInfo, NULL, NULL);
    }
    return ends;
}

static void graph_end(struct graph *graph)
{
    CALL(cuGraphExecDestroy, graph->exec);
    CALL(cuGraphDestroy, graph->handle);
    graph->live = false;
}

static bool finish(struct graph *graph, int stream, bool ends)
{
    graph->handle = NULL;
    if (CALL(cuStreamEndCapture, stream_handle(stream), &graph->handle) || !graph->handle)
        return false;
    if (!ends && CALL(cuGraphInstantiate, &graph->exec, graph->handle, 0) == CUDA_SUCCESS)
        return true;
    CALL(cuGraphDestroy, graph->handle);
    return false;
}

void step_capture(void)
{
    int slot = pick(GRAPHS), stream = any_stream();
    struct graph *graph = &world.graph[slot];
    CUstreamCaptureMode mode = pick(3);
    CUcontext before;
    bool ends;

    if (graph->live) {
        CALL(cuCtxSynchronize); /* its memory may go with it, and is in use until then */
        graph_end(graph);
    }
    if (stream < 0)
        return;
    memset(graph, 0, sizeof *graph);
    graph->context = world.stream[stream].context;
    graph->contexts = 1u << graph->context;
    graph->context_life = world.context[graph->context].life;
    say(" g%d s%d mode %d", slot, stream, (int)mode);
    CALL(cuCtxPushCurrent, context_handle(graph->context));
    if (CALL(cuStreamBeginCapture, stream_handle(stream), mode) == CUDA_SUCCESS) {
        for (unsigned i = 1 + pick(4); i > 0; i--)
            capture_one(graph, stream);
        ends = one_in(3) && intrude(mode, stream);
        graph->live = finish(graph, stream, ends);
    }
    CALL(cuCtxPopCurrent, &before);
}

/* Whether all that the graph touches is still there. */
static bool whole(const struct graph *graph)
{
    bool whole = graph->live && graph->context_life == world.context[graph->context].life;

    for (unsigned i = 0; i < graph->uses && whole; i++)
        whole = world.block[graph->use[i].block].live &&
                world.block[graph->use[i].block].life == graph->use[i].life;
    return whole;
}

void step_graph_launch(void)
{
    int slot = pick(GRAPHS), stream = any_stream();
    const struct graph *graph = &world.graph[slot];
    struct order order = order_of(stream);

    if (stream < 0 || !whole(graph) || order.context != graph->context)
        return;
    say(" g%d s%d", slot, stream);
    for (unsigned i = 0; i < graph->uses; i++)
        if (!world_order(graph->use[i].block, order))
            return;
    CALL(cuGraphUpload, graph->exec, stream_handle(stream));
    CALL(cuGraphLaunch, graph->exec, stream_handle(stream));
    for (unsigned i = 0; i < graph->uses; i++)
        world_used(graph->use[i].block, order);
}

static CUDA_MEMCPY3D row_copy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .srcPitch = size,
                           .srcHeight = 1,
                           .dstPitch = size,
                           .dstHeight = 1,
                           .WidthInBytes = size,
                           .Height = 1,
                           .Depth = 1};
}

/* Nodes without an edge between them run in any order, so each is behind the one before. */
void step_graph_by_hand(void)
{
    int to = any_block(DEVICE_KINDS), from = any_block(1u << PLAIN);
    struct block *block = &world.block[to < 0 ? 0 : to];
    CUDA_MEMSET_NODE_PARAMS fill = {.elementSize = 1, .height = 1};
    CUcontext context = one_in(3) ? NULL : context_handle(current_context());
    CUgraphNode first = NULL, second = NULL;
    CUDA_MEMCPY3D copy;
    size_t offset, size;
    CUgraphExec exec;
    CUgraph graph;

    if (to < 0 || from < 0 || to == from || current_context() < 0 ||
        block->device != world.context[current_context()].device ||
        world.block[from].device != block->device || !world_settle(to) || !world_settle(from))
        return;
    fill.width = pick_part(block, 4 * KIB, &offset);
    fill.dst = block->ptr + offset;
    fill.value = pick(256);
    size = pick_part(&world.block[from], fill.width, &offset);
    copy = row_copy(fill.dst, world.block[from].ptr + offset, size);
    if (one_in(4) &&
        block->kind != VMM) /* past the end, where nothing that counts as one follows */
        fill.width = block->size + 1;
    say(" b%d %s b%d %zu %s", to, kind_names[block->kind], from, size, context ? "ctx" : "no ctx");
    if (CALL(cuGraphCreate, &graph, 0))
        return;
    CALL(cuGraphAddMemsetNode, &first, graph, NULL, 0, &fill, context);
    CALL(cuGraphAddMemcpyNode, &second, graph, first ? &first : NULL, first != NULL, &copy,
         context);
    if (CALL(cuGraphInstantiate, &exec, graph, 0) == CUDA_SUCCESS) {
        CALL(cuGraphLaunch, exec, CU_STREAM_LEGACY);
        CALL(cuCtxSynchronize);
        CALL(cuGraphExecDestroy, exec);
    }
    CALL(cuGraphDestroy, graph);
}
