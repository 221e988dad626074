/*
 * The end of contexts (core/process/context.h): one that is about to go is detached, and then it is
 * gone or stays. A dead one keeps what others hold until that is given back.
 */
#include "core/process/context.h"

#include "core/process/reclaim.h"
#include "core/process/stats.h"

/* The contexts' lock is held. Other threads, the decay thread first of all, make no events in a
 * context that the driver may be ending. */
static void set_leaving(struct gs_context *context, bool leaving)
{
    struct gs_pool *pool;

    for (unsigned at = 0; (pool = gs_context_next_pool(context, &at));) {
        gs_latch_take(&pool->lock);
        pool->leaving = leaving;
        gs_pool_apart_leaving(pool, leaving);
        if (leaving) /* where it stays, a green one may go, and its streams with it */
            gs_pool_forget_streams(pool);
        gs_latch_release(&pool->lock);
    }
    gs_fence_pool_leaving(&context->pools[0]->events, leaving); /* for who waits without the lock */
}

struct gs_context *gs_core_context_detach(struct gs_core *core, CUcontext handle)
{
    struct gs_context *context;

    gs_lock_take(&core->lock);
    context = gs_context_find_locked(core, handle);
    if (context) {
        context->detached = true;
        set_leaving(context, true);
        gs_context_handles_changed(core);
    }
    gs_lock_release(&core->lock);
    if (context)
        gs_lone_context_leaving(&core->lone, handle, true);
    gs_share_context_leaving(core->share, handle);
    return context;
}

void gs_core_context_stays(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    gs_share_context_stays(core->share, handle);
    if (!context)
        return;
    gs_lone_context_leaving(&core->lone, handle, false);
    gs_lock_take(&core->lock);
    context->detached = false;
    set_leaving(context, false);
    gs_context_handles_changed(core);
    gs_lock_release(&core->lock);
}

/* Called with the pool's lock held: every live block is freed, as the driver does; stream-ordered
 * memory is its device's, and lives on. */
static void free_all(struct gs_pool *pool, bool async_too)
{
    for (struct gs_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        for (struct gs_block *block = chunk->lowest; block; block = block->above)
            if (block->state == GS_BLOCK_LIVE && (async_too || !block->async)) {
                gs_pool_unlive(pool, block);
                gs_pool_retire_more(pool, block);
            }
}

/* Takes a dead context whose memory is all gone out of the list. The contexts' lock is held. */
static void recycle(struct gs_core *core, struct gs_context *context)
{
    struct gs_context **link = &core->contexts;
    struct gs_pool *pool;

    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    for (unsigned at = 0; (pool = gs_context_next_pool(context, &at));) {
        gs_counts_add(&core->gone.counts[context->ordinal], &pool->counts);
        if (pool->async.granted > 0)
            __atomic_sub_fetch(&core->async[context->ordinal].pools, 1, __ATOMIC_SEQ_CST);
        gs_pool_fini(pool);
    }
    context->next = core->spare_contexts;
    core->spare_contexts = context;
    __atomic_store_n(&core->gone.dead, core->gone.dead - 1, __ATOMIC_RELAXED);
}

/* Detaches onto a list what a dead pool can give; true: nothing is left. Sets *ret_waits where
 * something is behind other contexts' work. */
static bool bury(struct gs_pool *pool, struct gs_chunk **released, bool *ret_waits)
{
    struct gs_chunk *detached, *last;
    bool empty;

    gs_latch_take(&pool->lock);
    gs_pool_poll_apart(pool);
    detached = gs_pool_detach_ready(pool, 0);
    while (pool->guarded.spent) {
        struct gs_chunk *spent = pool->guarded.spent;

        pool->guarded.spent = spent->next;
        spent->next = detached;
        detached = spent;
    }
    empty = !pool->chunks;
    *ret_waits |= pool->order.apart != NULL;
    gs_latch_release(&pool->lock);
    if (detached) {
        for (last = detached; last->next;)
            last = last->next;
        last->next = *released;
        *released = detached;
    }
    return empty;
}

bool gs_context_bury_dead(struct gs_core *core)
{
    struct gs_chunk *released = NULL;
    struct gs_context *next;
    struct gs_pool *pool;
    bool waits = false;

    if (__atomic_load_n(&core->gone.dead, __ATOMIC_RELAXED) == 0)
        return false;
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = next) {
        bool empty = true;

        next = context->next;
        if (!context->pools[0]->dead)
            continue;
        for (unsigned at = 0; (pool = gs_context_next_pool(context, &at));)
            empty &= bury(pool, &released, &waits);
        if (empty)
            recycle(core, context);
    }
    gs_lock_release(&core->lock);
    gs_chunks_release(core, released);
    return waits;
}

void gs_context_end_dead(struct gs_core *core)
{
    struct gs_pool_walk walk = {0};
    struct gs_pool *pool;

    gs_lock_take(&core->lock);
    while ((pool = gs_next_pool_locked(core, &walk))) {
        if (!pool->dead)
            continue;
        gs_latch_take(&pool->lock);
        free_all(pool, true);
        gs_pool_context_over(pool);
        gs_latch_release(&pool->lock);
    }
    gs_lock_release(&core->lock);
    gs_context_bury_dead(core);
}

/* Whether no other context of its device has memory of ours. The contexts' lock is held. */
static bool is_last(const struct gs_core *core, const struct gs_context *context)
{
    const struct gs_context *other = core->contexts;

    while (other && (other->device != context->device || other->pools[0]->dead))
        other = other->next;
    return !other;
}

void gs_core_context_gone(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    struct gs_pool *pool;
    CUdevice ordinal;
    bool last;

    gs_fences_capture_context_gone(&core->fences, handle);
    gs_share_context_gone(core->share, handle);
    gs_lone_context_gone(&core->lone, handle);
    if (!context)
        return;
    gs_lock_take(&core->lock);
    for (unsigned at = 0; (pool = gs_context_next_pool(context, &at));) {
        gs_latch_take(&pool->lock);
        pool->dead = true;
        pool->leaving = false; /* it has gone */
        gs_fence_pool_forget(&pool->events);
        free_all(pool, false);
        gs_pool_context_over(pool);
        gs_latch_release(&pool->lock);
    }
    __atomic_store_n(&core->gone.dead, core->gone.dead + 1, __ATOMIC_RELAXED);
    last = is_last(core, context);
    ordinal = context->ordinal; /* its record may be another's soon */
    gs_lock_release(&core->lock);
    if (last)
        gs_device_let_go(&core->device[ordinal]);
    gs_context_bury_dead(core);
}
