/* What the arenas ask of sharing and of registrations (core/pool/block.h). */
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

/* The block at an address; returns where that ends, or the next page. */
static uint64_t unguard(struct gs_core *core, uint64_t base, bool *ret_any)
{
    struct gs_piece *piece;
    struct gs_arena *arena;
    uint64_t done;

    if (gs_context_lock_piece(core, base, &piece) != GS_OK)
        return (base / GS_PAGE_SIZE + 1) * GS_PAGE_SIZE;
    *ret_any = true;
    arena = piece->arena;
    done = gs_arena_unguard_locked(arena, piece, base);
    gs_latch_release(&arena->lock);
    return done;
}

/* A block that is not held yet is asked about when it does. A piece in the range may have gone just
 * now: what lies behind it is told all the same. */
void gs_guard_ended(void *arg, uint64_t base, size_t size)
{
    struct gs_core *core = arg;
    bool any = false;

    for (uint64_t end = base + size; base < end;)
        base = unguard(core, base, &any);
    if (any)
        gs_context_trim_dead(core);
    else /* another process's; external */
        gs_share_look_again(core->share);
}

void gs_guard_lease_ended(void *arg, uint64_t address)
{
    gs_guard_ended(arg, address, 1);
}
