/* Allocating (core/api/core.h). */
#include "core/api/core.h"

#include "core/base/cancel.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

/* What an allocation waits at most for a GPU that is behind. */
#define BEHIND_WAIT_NS UINT64_C(200000000)

/* What a pool that is not the context's first has before it looks for what came back. */
#define LOOKS_FROM ((size_t)32 << 20)

#define CHANGED 1000000 /* a handle has changed its meaning since the context was looked up */

/* A block from what is there, looking at what has come back since the last time. The stream's own
 * list stays: it is nearer to its next use than any epoch. */
static struct gs_block *take_collected(struct gs_pool *pool, size_t size, uint64_t stream_key)
{
    struct gs_block *block;

    if (gs_pool_settle(pool) && (block = gs_pool_take(pool, size)))
        return block;
    gs_pool_flush_streams(pool, stream_key);
    gs_pool_look(pool);
    block = gs_pool_take(pool, size);
    return !block && gs_pool_settle(pool) ? gs_pool_take(pool, size) : block;
}

/* The same while too much retires: waits rather than let the pool grow by it, 200 ms at most, where
 * the driver's own free would have waited. A GPU that does not move (its work may wait for this very
 * thread) is waited for again when the pool has grown a good deal meanwhile. Not for an allocation
 * in the order of a stream, which natively waits for nothing. */
static struct gs_block *take_waiting(struct gs_pool *pool, size_t size)
{
    const struct gs_patience patience = {gs_now_ns(), BEHIND_WAIT_NS};
    const uint64_t life = pool->made_ns;
    struct gs_block *block = NULL;

    while (!block && gs_pool_behind(pool, size) && gs_pool_wait_oldest(pool, &patience)) {
        if (pool->dead || pool->made_ns != life) /* meanwhile */
            break;
        gs_pool_look(pool);
        gs_pool_settle(pool);
        block = gs_pool_take(pool, size);
    }
    return block;
}

/* What is not there at once. The pool's lock is held, and is let go here. */
static gs_status allocate_slowly(struct gs_core *core, struct gs_pool *pool, size_t size,
                                 uint64_t stream_key, CUdeviceptr *ret_address)
{
    struct gs_chunk *excess = NULL;
    struct gs_block *block = NULL;
    const uint64_t life = pool->made_ns;
    gs_status status;

    GS_COUNT(pool->counts.misses);
    if (pool->first || pool->reserved >= LOOKS_FROM)
        block = take_collected(pool, size, stream_key);
    if (!block && !stream_key && gs_pool_behind(pool, size))
        block = take_waiting(pool, size);
    if (block) {
        *ret_address = block->base;
    } else {
        gs_pool_weigh(pool);
        excess = gs_pool_detach_excess(pool, size);
    }
    gs_latch_release(&pool->lock);
    if (block)
        return GS_OK;
    GS_UNCANCELLED;
    if (excess)
        gs_pool_release(core, pool, excess, size);
    gs_releases_make_room(core, pool, size);
    gs_context_bury_dead(core);
    if (core->shared.wipe)
        gs_pool_wipe(core, pool);
    status = gs_pool_grow(core, pool, life, size, ret_address);
    if (status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
        status = gs_pool_reclaim(core, pool, life, size, stream_key, ret_address);
    return status;
}

/* A full device may have given the block out of another pool; and a reset by another thread may
 * have taken it back already. */
static void count_async(struct gs_core *core, CUdeviceptr address)
{
    struct gs_chunk *chunk;
    struct gs_block *block;
    CUdevice device;
    bool look;

    if (gs_context_lock_chunk(core, address, &chunk) != GS_OK)
        return;
    device = chunk->pool->device->ordinal;
    block = gs_chunk_start(chunk, address);
    look = block && block->state == GS_BLOCK_LIVE && gs_pool_count_async(chunk->pool, block);
    gs_latch_release(&chunk->pool->lock);
    if (look)
        gs_async_look(core, device);
}

/* Just after the context was looked up. CHANGED: it may have gone since. */
static gs_status allocate(struct gs_core *core, struct gs_context *context, size_t size,
                          uint64_t stream_key, CUdeviceptr *ret_address)
{
    const struct gs_device *device = context->device;
    struct gs_block *block = NULL;
    struct gs_pool *pool;
    gs_status status;
    uint64_t began;

    if (__builtin_expect(device->rung == GS_RUNG_UNKNOWN, 0))
        return GS_NO_MEMORY;
    if (__builtin_expect(device->rung == GS_RUNG_NATIVE, 0))
        return GS_NOT_OFFERED;
    if (size == 0)
        return GS_INVALID;
    if (size > device->total)
        return GS_NO_MEMORY;
    pool = gs_context_lock_pool(core, context, size);
    if (__builtin_expect(!pool, 0))
        return CHANGED;
    if (stream_key)
        block = gs_pool_take_stream(pool, size, stream_key);
    if (!block)
        block = gs_pool_take(pool, size);
    if (__builtin_expect(block != NULL, 1)) {
        const bool look = stream_key && gs_pool_count_async(pool, block);

        *ret_address = block->base;
        GS_COUNT(pool->counts.hits);
        gs_latch_release(&pool->lock);
        if (__builtin_expect(look, 0))
            gs_async_look(core, device->ordinal);
        return GS_OK;
    }
    began = gs_now_ns();
    status = allocate_slowly(core, pool, size, stream_key, ret_address);
    gs_stats_took(pool, began);
    if (status == GS_OK && stream_key)
        count_async(core, *ret_address);
    return status;
}

/* The device was too full even to be tried. */
static gs_status try_device_again(struct gs_core *core, struct gs_context **context)
{
    const struct gs_device *device = (*context)->device;

    if (!gs_neighbour_ask(core, device, (*context)->handle, GS_PAGE_SIZE))
        return GS_OK;
    return gs_context_current(core, context);
}

gs_status gs_core_alloc(struct gs_core *core, size_t size, CUdeviceptr *ret_address)
{
    struct gs_context *context;
    gs_status status = gs_context_current(core, &context);

    if (status == GS_OK && context->device->rung == GS_RUNG_UNKNOWN)
        status = try_device_again(core, &context);
    if (status == GS_OK)
        status = allocate(core, context, size, 0, ret_address);
    return __builtin_expect(status == CHANGED, 0) ? gs_core_alloc(core, size, ret_address) : status;
}

gs_status gs_core_alloc_async(struct gs_core *core, size_t size, CUmemoryPool pool,
                              CUstream stream, CUdeviceptr *ret_address)
{
    const struct gs_device *device;
    struct gs_context *context;
    gs_status status;

    status = gs_context_of_stream(core, stream, &context);
    if (status != GS_OK)
        return status;
    if (!core->driver.ctx_record_event)
        return GS_NOT_OFFERED;
    device = context->device;
    if (!pool)
        pool = __atomic_load_n(&core->current_pool[device->ordinal], __ATOMIC_RELAXED);
    if (pool && pool != device->default_pool)
        return GS_NOT_OFFERED;
    status = allocate(core, context, size, gs_stream_key(stream), ret_address);
    return __builtin_expect(status == CHANGED, 0)
               ? gs_core_alloc_async(core, size, pool, stream, ret_address)
               : status;
}
