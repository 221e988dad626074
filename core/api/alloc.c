/* Allocating (core/api/core.h). */
#include "core/api/core.h"

#include "core/base/cancel.h"
#include "core/record/trace.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

/* What an allocation waits at most for a GPU that is behind, where several streams have work: about
 * as long as making a piece takes; and else, or where it is far behind. */
#define BEHIND_WAIT_NS     UINT64_C(100000)
#define FAR_BEHIND_WAIT_NS UINT64_C(200000000)
#define FAR_TIMES          2 /* what makes an allocation wait */

/* What an arena that is not the context's first has before it looks for what came back. */
#define LOOKS_FROM ((size_t)32 << 20)

#define CHANGED 1000000 /* a handle has changed its meaning since the context was looked up */

/* A block from what is there, looking at what has come back since the last time. The stream's own
 * list stays, which is nearer to its next use than any epoch; where all work is in one stream it
 * is free too, and merges with what is. */
static struct gs_block *take_collected_locked(struct gs_arena *arena, size_t size,
                                              uint64_t stream_key)
{
    struct gs_block *block;

    gs_latch_assert_held(&arena->lock);
    if (gs_arena_merge_quick_locked(arena) && (block = gs_arena_take_locked(arena, size)))
        return block;
    gs_arena_flush_streams_locked(arena, 0, gs_single_is(arena->shared->single) ? 0 : stream_key);
    gs_arena_look_locked(arena);
    block = gs_arena_take_locked(arena, size);
    return !block && gs_arena_merge_quick_locked(arena) ? gs_arena_take_locked(arena, size) : block;
}

/* A block, while too much retires: waits rather than let the arena grow by it, where the driver's
 * own free would have waited; with several streams a moment, unless twice as much retires: what the
 * GPU is behind there comes back in no order. Not for an allocation in the order of a stream, which
 * natively waits for nothing. */
static struct gs_block *take_waiting_locked(struct gs_arena *arena, size_t size)
{
    struct gs_patience patience = {.began_ns = gs_now_ns()};
    const uint64_t life = arena->made_ns;
    struct gs_block *block = NULL;

    gs_latch_assert_held(&arena->lock);
    while (!block && gs_arena_behind_locked(arena, size, 1)) {
        patience.lightly =
            !gs_single_is(arena->shared->single) && !gs_arena_behind_locked(arena, size, FAR_TIMES);
        patience.most_ns = patience.lightly ? BEHIND_WAIT_NS : FAR_BEHIND_WAIT_NS;
        if (!gs_arena_wait_oldest_locked(arena, &patience) || gs_arena_is_over_locked(arena, life))
            break;
        gs_arena_look_locked(arena);
        gs_arena_merge_quick_locked(arena);
        block = gs_arena_take_locked(arena, size);
    }
    return block;
}

/* What is not there at once. The arena's lock is held, and is let go here. */
static gs_status allocate_slowly_locked(struct gs_core *core, struct gs_arena *arena, size_t size,
                                        uint64_t stream_key, CUdeviceptr *ret_address)
{
    struct gs_block *block = NULL;
    const uint64_t life = arena->made_ns;
    gs_status status;

    gs_latch_assert_held(&arena->lock);
    GS_COUNT(arena->counts.misses);
    if (arena->first || arena->reserved >= LOOKS_FROM)
        block = take_collected_locked(arena, size, stream_key);
    gs_trace_outcome = GS_TRACE_FURTHER;
    if (!block && !stream_key && gs_arena_behind_locked(arena, size, 1)) {
        block = take_waiting_locked(arena, size);
        gs_trace_outcome = block ? GS_TRACE_WAITED : GS_TRACE_FURTHER;
    }
    if (block)
        *ret_address = block->base;
    gs_latch_release(&arena->lock);
    if (block)
        return GS_OK;
    GS_UNCANCELLED;
    gs_context_trim_dead(core);
    status = gs_arena_grow(core, arena, life, size, ret_address);
    if (gs_is_out(status))
        status = gs_arena_reclaim(core, arena, life, size, ret_address);
    return status;
}

/* A full device may have given the block out of another arena; and a reset by another thread may
 * have taken it back already. */
static void count_async(struct gs_core *core, CUdeviceptr address)
{
    struct gs_block *block;

    if (gs_context_lock_around(core, address, &block) != GS_OK)
        return;
    if (block->base == address)
        gs_arena_count_async_locked(block->piece->arena, block);
    gs_latch_release(&block->piece->arena->lock);
}

/* Just after the context was looked up. CHANGED: it may have gone since. */
static gs_status allocate(struct gs_core *core, struct gs_context *context, size_t size,
                          uint64_t stream_key, CUdeviceptr *ret_address)
{
    const struct gs_device *device = context->device;
    struct gs_block *block = NULL;
    struct gs_arena *arena;
    gs_status status;
    uint64_t began;

    if (__builtin_expect(device->mode == GS_MODE_UNKNOWN, 0))
        return GS_NO_MEMORY;
    if (__builtin_expect(device->mode == GS_MODE_NATIVE, 0))
        return GS_NOT_OFFERED;
    if (size == 0)
        return GS_INVALID;
    if (size > device->total)
        return GS_NO_MEMORY;
    arena = gs_context_lock_arena(core, context, size);
    if (__builtin_expect(!arena, 0))
        return CHANGED;
    if (stream_key)
        block = gs_arena_take_stream_locked(arena, size, stream_key);
    if (!block)
        block = gs_arena_take_locked(arena, size);
    if (__builtin_expect(block != NULL, 1)) {
        *ret_address = block->base;
        GS_COUNT(arena->counts.hits);
        if (stream_key)
            gs_arena_count_async_locked(arena, block);
        gs_latch_release(&arena->lock);
        return GS_OK;
    }
    began = gs_now_ns();
    status = allocate_slowly_locked(core, arena, size, stream_key, ret_address);
    gs_stats_took(core, device->ordinal, began);
    if (status == GS_OK && stream_key)
        count_async(core, *ret_address);
    return status;
}

gs_status gs_core_alloc(struct gs_core *core, size_t size, CUdeviceptr *ret_address)
{
    struct gs_context *context;
    gs_status status = gs_context_current(core, &context);

    if (status == GS_OK && /* too full to be tried */
        __builtin_expect(context->device->mode == GS_MODE_UNKNOWN, 0) &&
        gs_neighbour_ask(core, context->device, context->handle, GS_PAGE_SIZE))
        status = gs_context_current(core, &context);
    if (status == GS_OK)
        status = allocate(core, context, size, 0, ret_address);
    return __builtin_expect(status == CHANGED, 0) ? gs_core_alloc(core, size, ret_address) : status;
}

gs_status gs_core_alloc_async(struct gs_core *core, size_t size, CUmemoryPool pool, CUstream stream,
                              CUdeviceptr *ret_address)
{
    const struct gs_device *device;
    struct gs_context *context;
    gs_status status;
    uint64_t key;

    status = gs_context_of_stream(core, stream, &context, &key);
    if (status != GS_OK)
        return status;
    if (!core->driver.ctx_record_event)
        return GS_NOT_OFFERED;
    device = context->device;
    if (!pool)
        pool = __atomic_load_n(&core->current_pool[device->ordinal], __ATOMIC_RELAXED);
    if (pool && pool != device->default_pool)
        return GS_NOT_OFFERED;
    status = allocate(core, context, size, key, ret_address);
    return __builtin_expect(status == CHANGED, 0)
               ? gs_core_alloc_async(core, size, pool, stream, ret_address)
               : status;
}
