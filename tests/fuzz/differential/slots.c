/* Slots, the order of work, the kernels: what the steps of world.h stand on. */
#include "world.h"

#include "tests/conformance/kernels.h"

int any_block(unsigned kinds)
{
    unsigned first = pick(BLOCKS);

    for (unsigned i = 0; i < BLOCKS; i++) {
        unsigned slot = (first + i) % BLOCKS;
        if (world.block[slot].live && kinds >> world.block[slot].kind & 1)
            return slot;
    }
    return -1;
}

int any_stream(void)
{
    unsigned first = pick(STREAMS);

    for (unsigned i = 0; i < STREAMS; i++)
        if (world.stream[(first + i) % STREAMS].live)
            return (first + i) % STREAMS;
    return -1;
}

int any_event(void)
{
    unsigned first = pick(EVENTS);

    for (unsigned i = 0; i < EVENTS; i++)
        if (world.event[(first + i) % EVENTS].live)
            return (first + i) % EVENTS;
    return -1;
}

int free_block(void)
{
    unsigned first = pick(BLOCKS);

    for (unsigned i = 0; i < BLOCKS; i++)
        if (!world.block[(first + i) % BLOCKS].live)
            return (first + i) % BLOCKS;
    return -1;
}

int current_context(void)
{
    CUcontext handle = NULL;

    cuCtxGetCurrent(&handle);
    for (int i = 0; i < CONTEXTS && handle; i++)
        if (world.context[i].live && world.context[i].handle == handle)
            return i;
    return -1;
}

bool is_far(const struct block *block)
{
    int context = current_context();

    return (block->kind == ASYNC || block->kind == POOLED) && context >= 0 &&
           world.context[context].device != block->device;
}

CUcontext context_handle(int slot)
{
    return slot < 0 ? NULL : world.context[slot].handle;
}

void block_gone(int slot)
{
    struct block *block = &world.block[slot];
    unsigned life = block->life + 1;

    memset(block, 0, sizeof *block);
    block->life = life;
    block->last.context = -1;
}

/* Memory of pools, VMM memory and, of those that a context has work with, nothing else stays. */
void context_gone(int slot)
{
    struct context *context = &world.context[slot];

    for (int i = 0; i < BLOCKS; i++) {
        struct block *block = &world.block[i];
        bool stays = block->kind == POOLED || block->kind == VMM;
        if (block->live && block->context == slot && !stays)
            block_gone(i);
        else if (block->last.context == slot)
            block->last.context = -1;
    }
    for (int i = 0; i < STREAMS; i++)
        if (world.stream[i].context == slot)
            world.stream[i].live = false;
    for (int i = 0; i < EVENTS; i++)
        if (world.event[i].context == slot)
            world.event[i].live = false;
    for (int i = 0; i < GRAPHS; i++)
        if (world.graph[i].context == slot)
            world.graph[i].live = false; /* what is left of it is not asked */
    context->life++;
}

struct order order_of(int stream)
{
    if (stream < 0)
        return (struct order){current_context(), -1, 0};
    return (struct order){world.stream[stream].context, stream, world.stream[stream].life};
}

static bool same(struct order a, struct order b)
{
    return a.context == b.context && a.stream == b.stream &&
           (a.stream < 0 || a.stream_life == b.stream_life);
}

static bool stream_is_there(struct order order)
{
    return order.stream < 0 || (world.stream[order.stream].live &&
                                world.stream[order.stream].life == order.stream_life);
}

/* The host waits for what was submitted there; the context is current. */
static bool wait_for(struct order order)
{
    if (stream_is_there(order))
        return CALL(cuStreamSynchronize, stream_handle(order.stream)) == CUDA_SUCCESS;
    return CALL(cuCtxSynchronize) == CUDA_SUCCESS;
}

/* The stream waits for it. */
static bool put_behind(struct order before, struct order after)
{
    CUevent event;
    bool done;

    if (CALL(cuEventCreate, &event, CU_EVENT_DISABLE_TIMING))
        return false;
    done = CALL(cuEventRecord, event, stream_handle(before.stream)) == CUDA_SUCCESS &&
           CALL(cuStreamWaitEvent, stream_handle(after.stream), event, 0) == CUDA_SUCCESS;
    CALL(cuEventDestroy, event);
    return done;
}

bool world_settle(int slot)
{
    struct block *block = &world.block[slot];
    CUcontext before;
    bool done;

    if (block->last.context < 0)
        return true;
    if (CALL(cuCtxPushCurrent, context_handle(block->last.context)))
        return false;
    done = wait_for(block->last);
    CALL(cuCtxPopCurrent, &before);
    if (done)
        block->last.context = -1;
    return done;
}

bool world_order(int slot, struct order order)
{
    struct block *block = &world.block[slot];
    CUcontext before;
    bool done;

    if (block->last.context < 0 || same(block->last, order))
        return true;
    /* The legacy stream is another one in each context. */
    if (order.stream < 0 || !stream_is_there(block->last) || one_in(2))
        return world_settle(slot);
    if (CALL(cuCtxPushCurrent, context_handle(block->last.context)))
        return false;
    done = put_behind(block->last, order);
    CALL(cuCtxPopCurrent, &before);
    if (done)
        block->last = order;
    return done;
}

void world_used(int slot, struct order order)
{
    world.block[slot].last = order;
}

size_t pick_part(const struct block *block, size_t most, size_t *ret_offset)
{
    size_t room = block->kind == PITCH        ? block->width
                  : block->size < 2 * WRITTEN ? block->size
                                              : WRITTEN;
    size_t size = 1 + random_next() % (room < most ? room : most);
    size_t offset = random_next() % (room - size + 1);

    if (one_in(2)) {
        size &= size > 4 ? ~(size_t)3 : ~(size_t)0;
        offset &= ~(size_t)3;
    }
    if (block->kind != PITCH && block->size > 2 * WRITTEN && one_in(2))
        offset += block->size / 4 * 4 - WRITTEN;
    *ret_offset = offset;
    return size;
}

void block_written(int slot, struct order order)
{
    struct block *block = &world.block[slot];
    size_t head = block->size < 2 * WRITTEN ? block->size : WRITTEN;
    unsigned char value = (unsigned char)(slot + 16 * block->life);

    if (block->kind == HOST || block->kind == REGISTERED) {
        memset(block->host, value, block->size);
        return;
    }
    CALL(cuMemsetD8Async, block->ptr, value, head, stream_handle(order.stream));
    if (head < block->size)
        CALL(cuMemsetD8Async, block->ptr + block->size - WRITTEN, value, WRITTEN,
             stream_handle(order.stream));
    world_used(slot, order);
}

bool kernels_load(int slot)
{
    static const char *const names[KERNELS] = {"fill", "copy_words", "count_other"};
    struct context *context = &world.context[slot];
    bool loaded = CALL(cuModuleLoadData, &context->module, kernels_ptx) == CUDA_SUCCESS;

    for (int i = 0; i < KERNELS && loaded; i++)
        loaded = CALL(cuModuleGetFunction, &context->kernel[i], context->module, names[i]) ==
                 CUDA_SUCCESS;
    return loaded;
}

CUresult launch(int which, int context, CUstream stream, void **args)
{
    return CALL(cuLaunchKernel, world.context[context].kernel[which], 4, 1, 1, 64, 1, 1, 0, stream,
                args, NULL);
}
