/* What the pools ask of sharing and of registrations (core/pool/guard.h). */
#include "core/process/context.h"
#include "core/process/reclaim.h"

static void freed(void *arg, struct gs_block *block)
{
    struct gs_core *core = arg;

    gs_share_freed(core->share, block->offer, block->freed_ns);
}

static bool may_go(void *arg, struct gs_block *block, bool no_grace)
{
    struct gs_core *core = arg;

    if (gs_regcache_in_use(core->regcache, block->base, block->entry.size))
        return false;
    if (block->offer &&
        !gs_share_withdraw(core->share, block->offer, block->freed_ns, gs_now_ns(), no_grace))
        return false;
    block->offer = NULL;
    return true;
}

static bool may_unmap(void *arg, uint64_t base, size_t size)
{
    struct gs_core *core = arg;

    return gs_regcache_doom(core->regcache, base, size);
}

struct gs_guard gs_guard_of(struct gs_core *core)
{
    return (struct gs_guard){.registered = gs_regcache_count(core->regcache),
                             .freed = freed,
                             .may_go = may_go,
                             .may_unmap = may_unmap,
                             .arg = core};
}

/* The block may not have come to limbo yet: then it is asked about when it does. */
void gs_guard_lease_ended(void *arg, uint64_t address)
{
    struct gs_core *core = arg;
    struct gs_chunk *chunk;
    struct gs_block *block;
    struct gs_pool *pool;
    bool wipes;

    if (gs_context_lock_chunk(core, address, &chunk) != GS_OK)
        return;
    pool = chunk->pool;
    block = gs_chunk_start(chunk, address);
    if (block)
        gs_pool_unguard(pool, block);
    wipes = pool->guarded.unwiped.first || pool->guarded.spent;
    gs_latch_release(&pool->lock);
    if (wipes)
        gs_pool_wipe(core, pool);
    gs_context_bury_dead(core);
}

void gs_guard_released(void *arg)
{
    struct gs_core *core = arg;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++) {
            struct gs_pool *pool = context->pools[i];

            if (!pool)
                continue;
            gs_latch_take(&pool->lock);
            gs_pool_collect_limbo(pool, false);
            gs_latch_release(&pool->lock);
        }
    gs_lock_release(&core->lock);
    gs_core_wipe(core);
    gs_context_bury_dead(core);
    gs_share_look_again(core->share);
}
