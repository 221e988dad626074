/*
 * The end of contexts (core/process/context.h): one that is about to go is detached, and then it is
 * gone or stays. A dead one keeps what others hold until that is given back.
 */
#include "core/process/context.h"

#include "core/base/list.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

/* The contexts' lock is held. Other threads, the trimmer first of all, make no events in a
 * context that the driver may be ending. */
static void set_leaving_locked(struct gs_context *context, bool leaving)
{
    struct gs_arena *arena;

    for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));) {
        GS_HOLDING_LATCH(&arena->lock);
        arena->leaving = leaving;
        if (leaving) /* where it stays, a green one may go, and its streams with it */
            gs_arena_flush_streams_locked(arena, 0, 0);
    }
    /* For who waits without the lock. */
    gs_fence_pool_leaving(&context->arenas[0]->events, leaving);
}

struct gs_context *gs_core_context_detach(struct gs_core *core, CUcontext handle)
{
    struct gs_context *context;

    gs_lock_take(&core->lock);
    context = gs_context_find_locked(core, handle);
    if (context) {
        context->detached = true;
        set_leaving_locked(context, true);
        gs_context_handles_changed(core);
    }
    gs_lock_release(&core->lock);
    if (context)
        gs_single_context_leaving(&core->single, handle, true);
    gs_share_context_leaving(core->share, handle, true);
    return context;
}

void gs_core_context_stays(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    gs_share_context_leaving(core->share, handle, false);
    if (!context)
        return;
    gs_single_context_leaving(&core->single, handle, false);
    GS_HOLDING(&core->lock);
    context->detached = false;
    set_leaving_locked(context, false);
    gs_context_handles_changed(core);
}

/* The arena's lock is held: every live block of a region is freed, as the driver does. */
static void free_all_locked(struct gs_arena *arena, const struct gs_region *region)
{
    gs_latch_assert_held(&arena->lock);
    for (const struct gs_piece *piece = region->lowest; piece; piece = piece->next)
        for (struct gs_block *block = piece->mapped ? gs_piece_first_locked(piece) : NULL;
             block && block->base < gs_piece_end(piece); block = block->above)
            if (block->state == GS_BLOCK_LIVE) {
                gs_arena_unlive_locked(arena, block);
                gs_block_list_push(&arena->epochs.open, block);
            }
}

/* The memory of a dead context is all gone. The contexts' lock is held. */
static void recycle_locked(struct gs_core *core, struct gs_context *context)
{
    struct gs_arena *arena;

    gs_lock_assert_held(&core->lock);
    for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));)
        gs_arena_fini(arena);
    context->spare = true;
    __atomic_store_n(&core->gone.dead, core->gone.dead - 1, __ATOMIC_RELAXED);
}

static bool has_pieces(const struct gs_context *context)
{
    struct gs_arena *arena;

    for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));) {
        GS_HOLDING_LATCH(&arena->lock);
        if (arena->large.lowest || arena->small.lowest)
            return true;
    }
    return false;
}

/* A record is free for the next context once all its pieces are unmapped. */
void gs_context_trim_dead(struct gs_core *core)
{
    struct gs_piece *pieces = NULL, *detached;
    struct gs_arena *arena = NULL;

    gs_spent_unmap(core);
    if (__atomic_load_n(&core->gone.dead, __ATOMIC_RELAXED) == 0)
        return;
    while ((arena = gs_next_locked(core, NULL, arena, false)))
        if (arena->dead) {
            detached = gs_arena_detach_locked(arena, arena->free_bytes, SIZE_MAX);
            LL_CONCAT2(pieces, detached, after);
        }
    gs_pieces_unmap(core, pieces);
    GS_HOLDING(&core->lock);
    for (struct gs_context *context = gs_contexts_locked(core); context; context = context->next)
        if (context->arenas[0]->dead && !context->spare && !has_pieces(context))
            recycle_locked(core, context);
}

void gs_core_context_gone(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    struct gs_arena *arena;
    uint64_t live, high;
    CUdevice ordinal;

    __atomic_store_n(&core->gone.ever, true, __ATOMIC_RELAXED);
    gs_fences_capture_context_gone(&core->fences, handle);
    gs_share_context_gone(core->share, handle);
    gs_single_context_gone(&core->single, handle);
    gs_greens_forget(core, NULL, handle);
    if (!context)
        return;
    gs_async_read(core, context->ordinal, false, &live, &high); /* the most is remembered */
    gs_lock_take(&core->lock);
    for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));) {
        gs_latch_take(&arena->lock);
        arena->dead = true;
        arena->leaving = false; /* it has gone */
        gs_fence_pool_forget(&arena->events);
        free_all_locked(arena, &arena->small);
        free_all_locked(arena, &arena->large);
        __atomic_store_n(&arena->async.high, arena->async.live, __ATOMIC_RELAXED);
        gs_arena_context_over_locked(arena);
        gs_latch_release(&arena->lock);
    }
    __atomic_store_n(&core->gone.dead, core->gone.dead + 1, __ATOMIC_RELAXED);
    ordinal = context->ordinal; /* its record may be another's soon */
    gs_lock_release(&core->lock);
    if (!gs_context_of_device(core, ordinal))
        gs_device_end_warm_up(&core->device[ordinal]);
    gs_context_trim_dead(core);
}
