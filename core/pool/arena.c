/* An arena begins and ends (core/pool/arena.h). */
#include "core/pool/arena.h"

#include "core/base/list.h"

#include <stdlib.h>
#include <string.h>

struct gs_arena *gs_arena_new(struct gs_arena_shared *shared, const struct gs_device *device,
                              bool first, unsigned tag)
{
    struct gs_arena *arena = aligned_alloc(_Alignof(struct gs_arena), sizeof *arena);

    if (!arena)
        return NULL;
    memset(arena, 0, sizeof *arena);
    gs_latch_init(&arena->lock, GS_RANK_ARENA);
    arena->shared = shared;
    arena->device = device;
    arena->first = first;
    arena->tag = (unsigned char)tag;
    return arena;
}

void gs_arena_init(struct gs_arena *arena, CUcontext context, const struct gs_fence_pool *events)
{
    const size_t from = offsetof(struct gs_arena, context), to = offsetof(struct gs_arena, counts);

    gs_latch_take(&arena->lock); /* a late reader of a recycled record may be waiting for it */
    arena->dead = arena->leaving = false;
    memset((char *)arena + from, 0, to - from);
    arena->context = context;
    gs_fence_pool_init(arena->shared->fences, &arena->events, context, events);
    gs_bins_init(&arena->small.free, GS_UNIT_SHIFT);
    gs_bins_init(&arena->large.free, GS_LARGE_SHIFT);
    arena->small.arena = arena->large.arena = arena;
    gs_epoch_choose_limits_locked(arena);
    arena->made_ns = gs_now_ns();
    gs_latch_release(&arena->lock);
}

void gs_arena_free(struct gs_arena *arena)
{
    struct gs_piece *piece, *next;

    LL_FOREACH_SAFE2(arena->spare_pieces, piece, next, after)
    free(piece);
    free(arena);
}

void gs_arena_fini(struct gs_arena *arena)
{
    struct gs_epoch *epoch, *next_epoch;
    struct gs_block *block, *next_block;

    /* An allocation that the context's end overtook may look at it now. */
    gs_latch_take(&arena->lock);
    LL_FOREACH_SAFE(arena->epochs.spare, epoch, next_epoch)
        free(epoch);
    LL_FOREACH_SAFE2(arena->free.spare, block, next_block, above)
    free(block);
    arena->epochs.spare = NULL;
    arena->free.spare = NULL;
    for (int small = 0; small < 2; small++) {
        struct gs_region *region = gs_arena_region_locked(arena, small);

        if (region->size > 0)
            arena->shared->driver->mem_address_free(region->base, region->size);
        region->size = 0;
    }
    gs_fence_pool_forget(&arena->events);
    gs_latch_release(&arena->lock);
}
