/* What the arenas ask of sharing and of registrations (core/pool/guard.h). */
#include "core/process/context.h"
#include "core/process/reclaim.h"

static void freed(void *arg, struct gs_block *block)
{
    struct gs_core *core = arg;

    gs_share_freed(core->share, block->export, gs_now_ns());
}

static bool may_go(void *arg, struct gs_block *block)
{
    struct gs_core *core = arg;

    if (gs_regcache_in_use(core->regcache, block->base, block->entry.size))
        return false;
    if (block->export && !gs_share_withdraw(core->share, block->export))
        return false;
    block->export = NULL;
    return true;
}

static bool may_unmap(void *arg, uint64_t base, size_t size)
{
    struct gs_core *core = arg;

    return gs_regcache_invalidate(core->regcache, base, size);
}

struct gs_guard gs_guard_of(struct gs_core *core)
{
    return (struct gs_guard){.registered = gs_regcache_count(core->regcache),
                             .freed = freed,
                             .may_go = may_go,
                             .may_unmap = may_unmap,
                             .arg = core};
}

/* A block that is not held yet is asked about when it does. */
void gs_guard_ended(void *arg, uint64_t base, size_t size)
{
    struct gs_core *core = arg;
    struct gs_piece *piece;
    struct gs_arena *arena;
    gs_status status = gs_context_lock_piece(core, base, &piece);
    bool wipes;

    if (status == GS_NOT_LIVE || status == GS_NOT_OURS) /* another process's; external */
        gs_share_look_again(core->share);
    if (status != GS_OK)
        return;
    arena = piece->arena;
    gs_arena_unguard_locked(arena, piece, base, size);
    wipes = arena->guarded.unwiped.first || arena->guarded.spent;
    gs_latch_release(&arena->lock);
    if (wipes)
        gs_arena_wipe(core, arena);
    gs_context_purge_dead(core);
}

void gs_guard_lease_ended(void *arg, uint64_t address)
{
    gs_guard_ended(arg, address, 1);
}
