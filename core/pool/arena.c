/* An arena begins and ends (core/pool/arena.h). */
#include "core/pool/arena.h"

#include <stdlib.h>
#include <string.h>

void gs_arena_init(struct gs_arena *arena, struct gs_arena_shared *shared,
                   const struct gs_device *device, CUcontext context,
                   const struct gs_fence_pool *events, unsigned tag)
{
    /* The lock of a recycled record stays: a late reader may be waiting for it, and so it is held.
     */
    gs_latch_take(&arena->lock);
    memset((char *)arena + sizeof arena->lock, 0, sizeof *arena - sizeof arena->lock);
    arena->shared = shared;
    arena->device = device;
    arena->context = context;
    arena->first = !events;
    arena->tag = (unsigned char)tag;
    gs_fence_pool_init(shared->fences, &arena->events, context, events);
    gs_bins_init(&arena->small.free, GS_UNIT_SHIFT);
    gs_bins_init(&arena->large.free, GS_LARGE_SHIFT);
    arena->small.arena = arena->large.arena = arena;
    gs_epoch_choose_limits_locked(arena);
    arena->made_ns = gs_now_ns();
    gs_latch_release(&arena->lock);
}

struct gs_arena *gs_arena_new(void)
{
    struct gs_arena *arena = aligned_alloc(_Alignof(struct gs_arena), sizeof *arena);

    if (!arena)
        return NULL;
    memset(arena, 0, sizeof *arena);
    gs_latch_init(&arena->lock, GS_RANK_ARENA);
    return arena;
}

static void region_end(struct gs_arena *arena, struct gs_region *region)
{
    if (region->size > 0)
        arena->shared->driver->mem_address_free(region->base, region->size);
    region->size = 0;
}

void gs_arena_fini(struct gs_arena *arena)
{
    struct gs_epoch *epoch;
    struct gs_block *block;

    /* An allocation that the context's end overtook may look at it now. */
    gs_latch_take(&arena->lock);
    while ((epoch = arena->epochs.spare)) {
        arena->epochs.spare = epoch->next;
        free(epoch);
    }
    while ((block = arena->free.spare)) {
        arena->free.spare = block->above;
        free(block);
    }
    region_end(arena, &arena->small);
    region_end(arena, &arena->large);
    gs_fence_pool_forget(&arena->events);
    gs_latch_release(&arena->lock);
}
