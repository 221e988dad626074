/* What the pools ask of sharing and of registrations (core/pool/guard.h). */
#include "core/process/context.h"

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
