/*
 * What the arenas of a full device can spare, and how an allocation there still succeeds.
 */
#include "core/process/reclaim.h"

#include <string.h>

#include "core/record/trace.h"
#include "core/process/context.h"
#include "core/process/limit.h"

#define RELEASED_NS UINT64_C(1000000000) /* for what other threads are giving back */
#define UNMAPPED_NS UINT64_C(500000000) /* for processes that are to give back and unmap what was freed */

/* ---- All arenas of a device, no lock held ------------------------------------------------ */

/* As often at most gs_arena_wait_oldest_locked has something to wait for that was freed by now:
 * other threads may free as fast as the GPU goes. */
static size_t waits_for_all_locked(const struct gs_arena *arena)
{
    size_t count = 2; /* the open epoch, and who finds out first */

    for (const struct gs_epoch *epoch = arena->epochs.oldest; epoch; epoch = epoch->next)
        count++;
    return count;
}

/* Waits as long as is right for each (core/pool/arena.h). The lock is held, and let go at times. */
static void wait_for_all_locked(struct gs_arena *arena, const struct gs_patience *patience)
{
    size_t left = waits_for_all_locked(arena);

    gs_latch_assert_held(&arena->lock);
    while (left-- > 0 && gs_arena_wait_oldest_locked(arena, patience))
        continue;
    while (gs_arena_wait_apart_locked(arena, patience))
        continue;
}

/* While a capture is open, or on a driver without cuCtxRecordEvent, no event can be recorded behind what
 * is freed. What cuMemFree freed is waited for as that call does natively. The lock is held, and let go
 * meanwhile. */
static void wait_without_events_locked(struct gs_core *core, struct gs_arena *arena)
{
    const CUcontext context = arena->context;
    struct gs_block_list freed;
    CUcontext popped;
    bool over;

    gs_latch_assert_held(&arena->lock);
    if ((core->driver.ctx_record_event && !gs_fences_capturing(&core->fences)) ||
        !gs_arena_take_open_locked(arena, &freed))
        return;
    gs_latch_release(&arena->lock);
    over = core->driver.ctx_push_current(context) == CUDA_SUCCESS;
    if (over) {
        over = gs_fences_synchronize(&core->fences) == GS_OK;
        core->driver.ctx_pop_current(&popped);
    }
    gs_latch_take(&arena->lock);
    gs_arena_waited_locked(arena, &freed, over);
}

/* Takes back what has come back, also what has to be waited for (NULL: nothing). The lock is held,
 * and let go at times. */
static void collect_locked(struct gs_core *core, struct gs_arena *arena,
                           const struct gs_patience *patience)
{
    gs_latch_assert_held(&arena->lock);
    gs_arena_part_streams_locked(arena);
    gs_arena_collect_locked(arena);
    if (patience)
        wait_for_all_locked(arena, patience);
    if (patience && patience->most_ns == UINT64_MAX)
        wait_without_events_locked(core, arena);
    if (arena->guarded.unwiped.first) {
        gs_latch_release(&arena->lock);
        gs_arena_wipe(core, arena);
        gs_latch_take(&arena->lock);
        if (patience)
            wait_for_all_locked(arena, patience);
    }
}

/* What one arena can give up of `bytes`. */
static size_t purge_arena(struct gs_core *core, struct gs_arena *arena,
                          const struct gs_patience *patience, size_t bytes)
{
    struct gs_piece *pieces;

    gs_latch_take(&arena->lock);
    collect_locked(core, arena, patience);
    pieces = gs_arena_detach_ready_locked(
        arena, arena->free_bytes > bytes ? arena->free_bytes - bytes : 0);
    gs_latch_release(&arena->lock);
    if (core->shared.wipe)
        gs_arena_wipe(core, arena);
    return gs_pieces_unmap(core, pieces);
}

/* What others hold no more, or with `graces` never came for, is held no more. */
static void end_limbo(struct gs_core *core, const struct gs_device *device, bool graces)
{
    if (graces)
        gs_share_end_graces(core->share, device->uuid);
    else
        gs_share_tell(core->share);
}

static size_t purge_arenas(struct gs_core *core, const struct gs_device *device,
                           const struct gs_patience *patience, size_t bytes)
{
    struct gs_arena *arena;
    size_t released = 0;

    end_limbo(core, device, patience != NULL);
    for (unsigned at = 0; released < bytes && (arena = gs_next_pool(core, device, &at));)
        released += purge_arena(core, arena, patience, bytes - released);
    if (released < bytes)
        released += gs_device_end_warm_up(&core->device[device->ordinal]);
    gs_context_purge_dead(core);
    return released;
}

size_t gs_device_purge(struct gs_core *core, const struct gs_device *device, bool wait)
{
    struct gs_patience patience = gs_patience_of(UINT64_MAX);

    return purge_arenas(core, device, wait ? &patience : NULL, SIZE_MAX);
}

size_t gs_device_yield(struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    return purge_arenas(core, device, NULL, bytes);
}

bool gs_device_purge_some(struct gs_core *core, const struct gs_device *device,
                          const struct gs_patience *patience, size_t most)
{
    size_t released = purge_arenas(core, device, patience, most);

    if (released > 0)
        gs_share_await_unmapped(core->share, device->uuid, UNMAPPED_NS);
    return gs_releases_await(core, RELEASED_NS) || released > 0;
}

/* Asks other processes, twice: others may take what one gave. */
static gs_status take_from_neighbours(struct gs_core *core, struct gs_arena *arena, uint64_t life,
                                      const struct gs_device *device, CUcontext context,
                                      size_t size, CUdeviceptr *ret_address)
{
    gs_status status = GS_NO_MEMORY;

    for (int i = 0; i < 2 && gs_is_out(status); i++) {
        if (gs_limit_is_beyond(core, device, size) ||
            !gs_neighbour_ask(core, device, context, size))
            break;
        status = gs_arena_grow(core, arena, life, size, ret_address);
    }
    return status;
}

/* Of what this arena has free, as much as the block needs, or all, becomes the driver's and then
 * the block. GS_NO_MEMORY: nothing was free. */
static gs_status exchange(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                          bool all, CUdeviceptr *ret_address)
{
    struct gs_piece *pieces;

    gs_latch_take(&arena->lock);
    gs_arena_settle_locked(arena);
    pieces = gs_arena_detach_bytes_locked(arena, all ? arena->free_bytes : size + GS_PAGE_SIZE);
    gs_latch_release(&arena->lock);
    if (!pieces)
        return GS_NO_MEMORY;
    gs_pieces_unmap(core, pieces);
    return gs_arena_grow(core, arena, life, size, ret_address);
}

/* A block is another thread's to look at once its lock is let go: its address is all that leaves. */
static gs_status found(const struct gs_block *block, CUdeviceptr *ret_address)
{
    if (!block)
        return GS_NO_MEMORY;
    *ret_address = block->base;
    return GS_OK;
}

/* From what is free in any arena of the context; with `any`, whatever it fragments. */
static gs_status take_anywhere(struct gs_core *core, const struct gs_device *device,
                               CUcontext context, size_t size, bool any, CUdeviceptr *ret_address)
{
    struct gs_arena *arena;
    gs_status status = GS_NO_MEMORY;

    for (unsigned at = 0; status != GS_OK && (arena = gs_next_pool(core, device, &at));) {
        gs_latch_take(&arena->lock);
        if (arena->context == context && !arena->dead && !arena->leaving) {
            gs_arena_settle_locked(arena);
            status = found(any ? gs_arena_take_any_locked(arena, size)
                               : gs_arena_take_locked(arena, size),
                           ret_address);
        }
        gs_latch_release(&arena->lock);
    }
    return status;
}

/*
 * The same once all arenas of the device have taken back what has come back, `patience` as above.
 * What of it fits is not given to the driver first, which takes its time to clear it, and cannot
 * have it before a process that ended has let go of it (100 ms on an H200, where its exit is seen
 * after 60).
 */
static gs_status take_returned(struct gs_core *core, const struct gs_device *device,
                               CUcontext context, size_t size,
                               const struct gs_patience *patience, CUdeviceptr *ret_address)
{
    struct gs_arena *arena;

    end_limbo(core, device, patience != NULL);
    for (unsigned at = 0; (arena = gs_next_pool(core, device, &at));) {
        gs_latch_take(&arena->lock);
        collect_locked(core, arena, patience);
        gs_latch_release(&arena->lock);
    }
    return take_anywhere(core, device, context, size, false, ret_address);
}

/* Puts back what take_in_order took; the context may have ended meanwhile. */
static void put_back(struct gs_core *core, CUdeviceptr address)
{
    struct gs_piece *piece;
    struct gs_block *block;

    if (gs_context_lock_piece(core, address, &piece) != GS_OK)
        return;
    block = gs_piece_start_locked(piece, address);
    if (block && block->state == GS_BLOCK_LIVE) {
        gs_arena_unlive_locked(piece->arena, block);
        gs_arena_retire_more_locked(piece->arena, block);
    }
    gs_latch_release(&piece->arena->lock);
}

/*
 * What retires in any arena of the context, for a stream that comes behind its free. Nothing is
 * waited for: the GPU does, as with the driver's own stream-ordered memory (measured on an H200:
 * an allocation in one stream, while what would serve it was freed in another one behind a host
 * function, is back after 57 ms). While a capture is open no stream is made to wait.
 */
static gs_status take_in_order(struct gs_core *core, const struct gs_device *device,
                               CUcontext context, size_t size, CUstream stream,
                               CUdeviceptr *ret_address)
{
    struct gs_arena *arena;
    gs_status status = GS_NO_MEMORY;

    for (unsigned at = 0; status != GS_OK && !gs_fences_capturing(&core->fences) &&
                          (arena = gs_next_pool(core, device, &at));) {
        struct gs_fence behind;

        gs_latch_take(&arena->lock);
        if (arena->context == context && !arena->dead && !arena->leaving) {
            gs_arena_part_streams_locked(arena);
            gs_arena_collect_locked(arena);
            status = found(gs_arena_take_in_order_locked(arena, size, &behind), ret_address);
        }
        gs_latch_release(&arena->lock);
        if (status == GS_OK && !gs_fence_order(&behind, stream)) {
            put_back(core, *ret_address);
            status = GS_NO_MEMORY;
        }
    }
    return status;
}

/* Waits for this arena's epochs one by one, and then for what is apart, until the block can be
 * had. */
static gs_status wait_for_block(struct gs_core *core, struct gs_arena *arena, uint64_t life,
                                size_t size, const struct gs_patience *patience,
                                CUdeviceptr *ret_address)
{
    gs_status status = GS_NO_MEMORY;
    bool more = true;
    size_t left;

    gs_latch_take(&arena->lock);
    gs_arena_part_streams_locked(arena);
    left = waits_for_all_locked(arena);
    gs_latch_release(&arena->lock);
    while (more && gs_is_out(status) && left-- > 0) {
        gs_latch_take(&arena->lock);
        more = gs_arena_wait_oldest_locked(arena, patience) ||
               gs_arena_wait_apart_locked(arena, patience);
        gs_arena_settle_locked(arena);
        status = gs_arena_is_over_locked(arena, life)
                     ? GS_NO_CONTEXT
                     : found(gs_arena_take_locked(arena, size), ret_address);
        gs_latch_release(&arena->lock);
        if (more && gs_is_out(status))
            status = exchange(core, arena, life, size, true, ret_address);
    }
    return status;
}

/* What can go at once goes, and is asked for. */
static gs_status purge_and_grow(struct gs_core *core, struct gs_arena *arena, uint64_t life,
                                const struct gs_device *device, size_t size,
                                CUdeviceptr *ret_address)
{
    if (gs_device_purge(core, device, false) == 0)
        return GS_NO_MEMORY;
    gs_share_await_unmapped(core->share, device->uuid, UNMAPPED_NS);
    return gs_arena_grow(core, arena, life, size, ret_address);
}

/*
 * Each step leaves the arena holding no more than the driver would for the same blocks, but for the
 * last one of its own, a block in the midst of a larger piece. Only then are others asked.
 *
 * What is waited for, each only where there is any, and by whom it ends:
 *
 *   GPU work before a cuMemFree       the GPU, as long as the driver's own free would have waited
 *   other freed blocks                the GPU, or 10 s; those freed in stream order 1 s of them
 *   pieces on their way back          the threads that are at it, or 1 s, each time
 *   blocks that openers have closed   the openers, their end, or 2 s (core/share/flush.c)
 *   idle mappings of them             the openers, or 0.5 s, each time
 *   what other processes keep         they answer, or 1 s, twice (core/share/pressure_ask.c)
 *
 * So it is refused after some 20 s where all others stand still and the GPU has passed what
 * cuMemFree freed.
 */
gs_status gs_arena_reclaim(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                           uint64_t stream_key, CUdeviceptr *ret_address)
{
    struct gs_patience patience;
    const struct gs_device *device;
    CUcontext context;
    gs_status status;
    CUstream stream;

    gs_latch_take(&arena->lock);
    device = arena->device;
    context = arena->context;
    status = gs_arena_is_over_locked(arena, life) ? GS_NO_CONTEXT : GS_NO_MEMORY;
    gs_latch_release(&arena->lock);

    if (size > gs_limit_of(core, device)) /* for which nothing is given up */
        return status;
    if (gs_is_out(status))
        status = take_returned(core, device, context, size, NULL, ret_address);
    if (gs_is_out(status) && gs_releases_await(core, RELEASED_NS))
        status = gs_arena_grow(core, arena, life, size, ret_address);
    if (gs_is_out(status))
        status = exchange(core, arena, life, size, false, ret_address);
    if (gs_is_out(status))
        status = purge_and_grow(core, arena, life, device, size, ret_address);
    if (gs_is_out(status) && gs_releases_await(core, RELEASED_NS))
        status = gs_arena_grow(core, arena, life, size, ret_address);
    if (gs_is_out(status))
        status = take_anywhere(core, device, context, size, false, ret_address);
    if (gs_is_out(status) && stream_key && gs_stream_of_key(stream_key, &stream))
        status = take_in_order(core, device, context, size, stream, ret_address);
    patience = gs_patience_of(UINT64_MAX);
    if (gs_is_out(status))
        gs_trace_outcome = GS_TRACE_WAITED;
    if (gs_is_out(status))
        status = wait_for_block(core, arena, life, size, &patience, ret_address);
    if (gs_is_out(status)) {
        gs_share_await_given_back(core->share, device->uuid, UNMAPPED_NS);
        status = take_returned(core, device, context, size, &patience, ret_address);
    }
    if (gs_is_out(status)) {
        purge_arenas(core, device, &patience, SIZE_MAX);
        gs_releases_await(core, RELEASED_NS); /* what waited for the same work may have been faster */
        gs_share_await_unmapped(core->share, device->uuid, UNMAPPED_NS);
        status = gs_arena_grow(core, arena, life, size, ret_address);
    }
    if (gs_is_out(status))
        status = take_anywhere(core, device, context, size, true, ret_address);
    if (gs_is_out(status))
        status = take_from_neighbours(core, arena, life, device, context, size, ret_address);
    if (gs_is_out(status)) /* the share thread tells of ends: some may have come since the last look */
        status = purge_and_grow(core, arena, life, device, size, ret_address);
    return gs_is_out(status) ? GS_NO_MEMORY : status;
}
