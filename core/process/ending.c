/*
 * The end of contexts (core/process/context.h): one that is about to go is detached, and then it is
 * gone or stays. A dead one keeps what others hold until that is given back.
 */
#include "core/process/context.h"

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
            gs_arena_flush_streams_locked(arena, 0);
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

/* Called with the arena's lock held: every live block is freed, as the driver does. */
static void free_all_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    for (int small = 0; small < 2; small++) {
        const struct gs_region *region = gs_arena_region_locked(arena, small);
        struct gs_block *block = NULL;

        while ((block = gs_region_next_locked(region, block)))
            if (block->state == GS_BLOCK_LIVE) {
                gs_arena_unlive_locked(arena, block);
                gs_block_list_push(&arena->epochs.open, block);
            }
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

/* What a dead arena has free, all of it. */
static void trim_dead(struct gs_core *core, struct gs_arena *arena)
{
    struct gs_piece *pieces = NULL;

    gs_latch_take(&arena->lock);
    if (arena->dead)
        pieces = gs_arena_detach_locked(arena, arena->free_bytes, SIZE_MAX);
    gs_latch_release(&arena->lock);
    gs_pieces_unmap(core, pieces);
}

static bool has_pieces(const struct gs_context *context)
{
    const struct gs_arena *arena;

    for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));)
        if (__atomic_load_n(&arena->large.pieces, __ATOMIC_SEQ_CST) > 0 ||
            __atomic_load_n(&arena->small.pieces, __ATOMIC_SEQ_CST) > 0)
            return true;
    return false;
}

/* A record is free for the next context once all its pieces are unmapped. */
void gs_context_trim_dead(struct gs_core *core)
{
    struct gs_arena *arena = NULL;

    if (__atomic_load_n(&core->gone.dead, __ATOMIC_RELAXED) == 0)
        return;
    gs_spent_unmap(core);
    while ((arena = gs_next_arena(core, NULL, arena)))
        trim_dead(core, arena);
    GS_HOLDING(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        if (context->arenas[0]->dead && !context->spare && !has_pieces(context))
            recycle_locked(core, context);
}

/* Whether no other context of its device has memory of ours. The contexts' lock is held. */
static bool is_last_locked(const struct gs_core *core, const struct gs_context *context)
{
    const struct gs_context *other = core->contexts;

    gs_lock_assert_held(&core->lock);
    while (other && (other->device != context->device || other->arenas[0]->dead))
        other = other->next;
    return !other;
}

void gs_contexts_alive(struct gs_core *core, struct gs_contexts *ret_contexts)
{
    const unsigned most = sizeof ret_contexts->of / sizeof ret_contexts->of[0];
    struct gs_context *context = NULL;
    unsigned count = 0;

    while (count < most && (context = gs_context_next(core, context, &ret_contexts->of[count])))
        count++;
    ret_contexts->count = count;
}

void gs_core_context_gone(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    struct gs_arena *arena;
    uint64_t live, high;
    CUdevice ordinal;
    bool last;

    __atomic_store_n(&core->gone.ever, true, __ATOMIC_RELAXED);
    gs_fences_capture_context_gone(&core->fences, handle);
    gs_share_context_gone(core->share, handle);
    gs_single_context_gone(&core->single, handle);
    gs_greens_primary_gone(core, handle);
    if (!context)
        return;
    gs_async_read(core, context->ordinal, false, &live, &high); /* the most is remembered */
    gs_lock_take(&core->lock);
    for (unsigned at = 0; (arena = gs_context_next_arena(context, &at));) {
        gs_latch_take(&arena->lock);
        arena->dead = true;
        arena->leaving = false; /* it has gone */
        gs_fence_pool_forget(&arena->events);
        free_all_locked(arena);
        __atomic_store_n(&arena->async.high, arena->async.live, __ATOMIC_RELAXED);
        gs_arena_context_over_locked(arena);
        gs_latch_release(&arena->lock);
    }
    __atomic_store_n(&core->gone.dead, core->gone.dead + 1, __ATOMIC_RELAXED);
    last = is_last_locked(core, context);
    ordinal = context->ordinal; /* its record may be another's soon */
    gs_lock_release(&core->lock);
    if (last)
        gs_device_end_warm_up(&core->device[ordinal]);
    gs_context_trim_dead(core);
}
