/* Steps on contexts, streams, events and pools. */
#include "world.h"

/* The context is about to go: its work is done, and what does not go with it by itself goes before.
 * So do graphs of other contexts that copy its memory: the driver (580.159.04, an H200) takes a
 * lock of the copy's context when such a graph is destroyed, and may wait for ever where that has
 * gone. */
static bool leave(int slot)
{
    CUcontext before;

    if (CALL(cuCtxPushCurrent, context_handle(slot)))
        return false;
    CALL(cuCtxSynchronize);
    CALL(cuCtxPopCurrent, &before);
    for (int i = 0; i < GRAPHS; i++)
        if (world.graph[i].live && world.graph[i].contexts >> slot & 1) {
            CALL(cuCtxPushCurrent, context_handle(world.graph[i].context));
            CALL(cuCtxSynchronize);
            CALL(cuCtxPopCurrent, &before);
            CALL(cuGraphExecDestroy, world.graph[i].exec);
            CALL(cuGraphDestroy, world.graph[i].handle);
            world.graph[i].live = false;
        }
    for (int i = 0; i < BLOCKS; i++) {
        if (!world.block[i].live || world.block[i].context != slot)
            continue;
        if (!world_settle(i) || (world.block[i].kind == REGISTERED && block_free(i, -2)))
            return false;
        if (world.block[i].kind == ASYNC && block_free(i, -1)) /* natively it lives on */
            return false;
    }
    return true;
}

static void create(int slot)
{
    struct context *context = &world.context[slot];
    CUcontext before;

    say(" c%d", slot);
    context->device = 0;
    if (CALL(cuCtxCreate_v4, &context->handle, NULL, 0, 0))
        return;
    context->live = true;
    kernels_load(slot);
    CALL(cuCtxPopCurrent, &before); /* below it lies what is not to be current by its end */
    if (one_in(2))
        CALL(cuCtxSetCurrent, context->handle);
}

/* Those of contexts that a program made come and go; none is current on a thread that does not make
 * this step. */
void step_context(void)
{
    int slot = 1 + pick(2);

    if (!world.context[slot].live) {
        create(slot);
        return;
    }
    say(" c%d", slot);
    CALL(cuCtxSetCurrent, context_handle(0));
    if (!world_alone() || !leave(slot))
        return;
    if (CALL(cuCtxDestroy, world.context[slot].handle) == CUDA_SUCCESS) {
        context_gone(slot);
        world.context[slot].live = false;
    }
}

void step_current(void)
{
    int slot = pick(CONTEXTS + 1) - 1, was;
    CUcontext handle;
    CUdevice device = 77;

    if (slot >= 0 && !world.context[slot].live)
        slot = 0;
    say(" c%d", slot);
    CALL(cuCtxSetCurrent, context_handle(slot));
    if (CALL(cuCtxGetDevice, &device) == CUDA_SUCCESS)
        say(" %d", device);
    if (slot < 0 && one_in(2)) { /* some calls without one */
        step_range();
        step_free();
    }
    if (slot < 0 || one_in(2)) {
        CALL(cuCtxPushCurrent, context_handle(0));
        was = current_context();
        CALL(cuCtxPopCurrent, &handle);
        say(" c%d %d", was, handle == context_handle(0));
        CALL(cuCtxSetCurrent, context_handle(0));
    }
}

/* A reset, now and then; else the primary context is retained and released. */
void step_primary(void)
{
    struct context *context = &world.context[0];
    CUcontext handle = NULL;
    unsigned flags;
    int active;

    if (CALL(cuDevicePrimaryCtxGetState, 0, &flags, &active) == CUDA_SUCCESS)
        say(" %d", active);
    if (!one_in(4) || !world_alone()) {
        CALL(cuDevicePrimaryCtxRetain, &handle, 0);
        say(" %d", handle == context->handle);
        CALL(cuDevicePrimaryCtxRelease, 0);
        return;
    }
    CALL(cuCtxSetCurrent, context->handle);
    if (!leave(0))
        return;
    CALL(cuDevicePrimaryCtxReset, 0);
    context_gone(0);
    CALL(cuDevicePrimaryCtxRetain, &context->handle, 0);
    CALL(cuCtxSetCurrent, context->handle);
    kernels_load(0);
}

static void stream_make(int slot)
{
    struct stream *stream = &world.stream[slot];
    unsigned flags = one_in(3) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;

    say(" s%d %u", slot, flags);
    stream->context = current_context();
    if (stream->context < 0)
        stream->context = 0;
    stream->live = CALL(cuStreamCreate, &stream->handle, flags) == CUDA_SUCCESS;
    stream->life++;
}

void step_stream(void)
{
    int slot = pick(STREAMS);
    struct stream *stream = &world.stream[slot];
    CUcontext context = NULL;
    unsigned flags = 77;

    if (!stream->live) {
        stream_make(slot);
        return;
    }
    say(" s%d", slot);
    if (one_in(3)) {
        CALL(cuStreamDestroy, stream->handle);
        stream->live = false;
        return;
    }
    if (CALL(cuStreamGetCtx, stream->handle, &context) == CUDA_SUCCESS)
        say(" %d", context == context_handle(stream->context));
    if (CALL(cuStreamGetFlags, stream->handle, &flags) == CUDA_SUCCESS)
        say(" %u", flags);
    CALL(cuStreamSynchronize, stream->handle);
    CALL(cuStreamQuery, stream->handle);
}

void step_event(void)
{
    int slot = pick(EVENTS), stream;
    struct event *event = &world.event[slot];

    say(" e%d", slot);
    if (!event->live) {
        event->context = current_context();
        event->live = CALL(cuEventCreate, &event->handle,
                           one_in(4) ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
        event->recorded = false;
        return;
    }
    if (one_in(5)) {
        CALL(cuEventDestroy, event->handle);
        event->live = false;
        return;
    }
    stream = any_stream();
    say(" s%d", stream);
    if (stream >= 0 && CALL(cuEventRecord, event->handle, stream_handle(stream)) == CUDA_SUCCESS)
        event->recorded = true;
    if (one_in(2)) {
        CALL(cuEventSynchronize, event->handle);
        CALL(cuEventQuery, event->handle);
    }
}

void step_wait(void)
{
    int event = any_event(), stream = one_in(4) ? -1 : any_stream();

    if (event < 0)
        return;
    say(" e%d s%d", event, stream);
    CALL(cuStreamWaitEvent, stream_handle(stream), world.event[event].handle, one_in(12) ? 5 : 0);
}

void step_sync(void)
{
    if (one_in(3))
        CALL(cuStreamSynchronize, CU_STREAM_PER_THREAD);
    else
        CALL(cuCtxSynchronize);
}

static void pool_make(struct pool *pool)
{
    CUmemPoolProps props;

    memset(&props, 0, sizeof props);
    props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    pool->live = CALL(cuMemPoolCreate, &pool->handle, &props) == CUDA_SUCCESS;
}

/* A pool that goes with memory of its own lives on in that. */
static void pool_destroy(int slot)
{
    if (CALL(cuMemPoolDestroy, world.pool[slot].handle))
        return;
    world.pool[slot].live = false;
    for (int i = 0; i < BLOCKS; i++)
        if (world.block[i].kind == POOLED && world.block[i].pool == slot)
            world.block[i].pool = -1;
}

void step_pool(void)
{
    int slot = pick(POOLS);
    struct pool *pool = &world.pool[slot];
    CUmemoryPool usual = NULL;

    say(" %d", slot);
    if (!pool->live) {
        pool_make(pool);
        return;
    }
    switch (pick(6)) {
    case 0:
        pool_destroy(slot);
        break;
    case 1:
        CALL(cuDeviceSetMemPool, 0, pool->handle);
        break;
    case 2:
        CALL(cuDeviceGetDefaultMemPool, &usual, 0);
        CALL(cuDeviceSetMemPool, 0, usual);
        break;
    case 3:
        CALL(cuMemPoolTrimTo, pool->handle, 0);
        break;
    case 4: {
        cuuint64_t threshold = pick(2) * 64 * MIB;
        CALL(cuMemPoolSetAttribute, pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
        break;
    }
    default: {
        CUmemAccess_flags flags = 77;
        CUmemLocation where = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
        if (CALL(cuMemPoolGetAccess, &flags, pool->handle, &where) == CUDA_SUCCESS)
            say(" %d", (int)flags);
        if (CALL(cuDeviceGetMemPool, &usual, 0) == CUDA_SUCCESS)
            say(" %d", usual == pool->handle);
    }
    }
}

/* What is used; what a driver keeps beyond it is its own affair. */
void step_pool_figures(void)
{
    CUmemoryPool pool = NULL;
    cuuint64_t used = 77, high = 5;
    int reuse = 77;

    CALL(cuCtxSynchronize);
    if (CALL(cuDeviceGetDefaultMemPool, &pool, 0))
        return;
    if (CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used) ==
        CUDA_SUCCESS) {
        if (world.freed_plainly)
            say(" ~%d", LIMIT_USED);
        else
            say(" %llu", (unsigned long long)used);
    }
    CALL(cuMemPoolGetAttribute, pool, (CUmemPool_attribute)99, &used);
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &high);
    if (CALL(cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse) ==
        CUDA_SUCCESS)
        say(" %d", reuse);
    CALL(cuMemPoolTrimTo, pool, 0);
}

/* With one device only what is refused; with two, access is given and stays. */
void step_peer(void)
{
    int to = world.devices > 1 ? CONTEXTS - 1 : (int)pick(2);
    CUcontext peer = context_handle(world.context[to].live ? to : 0);

    say(" c%d", to);
    if (world.devices > 1 || one_in(2))
        world.lets_in |= CALL(cuCtxEnablePeerAccess, peer, one_in(6)) == CUDA_SUCCESS;
    else
        CALL(cuCtxDisablePeerAccess, peer);
}
