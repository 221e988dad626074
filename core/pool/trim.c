/*
 * Pieces leave their arena (core/pool/arena.h): those that are free from end to end, whatever lies
 * in the rest of the free block around them. The highest go first, so that a region stays low.
 */
#include "core/pool/arena.h"

#define HELD_MIN           ((size_t)64 << 20) /* below this nothing is too much */
#define SLACK_PERCENT      16 /* beside what was live lately, while half of the device is left; */
#define SLACK_PERCENT_FULL 4  /* falling to this */

static bool may_unmap_locked(const struct gs_arena *arena, const struct gs_piece *piece)
{
    const struct gs_guard *guard = &arena->shared->guard;

    return guard->may_unmap(guard->arg, piece->span.base, piece->span.size);
}

/* Whether no work touches it any more. Of a line no more than the first fence that has not passed
 * is asked for. */
static bool has_passed_locked(struct gs_arena *arena, struct gs_piece *piece,
                              struct gs_fence *stuck)
{
    if (stuck->line && stuck->line == piece->freed.line && stuck->number <= piece->freed.number)
        return false;
    if (arena->leaving ? gs_fence_passed(&piece->freed)
                       : gs_fence_query(&arena->events, &piece->freed) == GS_OK)
        return true;
    *stuck = piece->freed;
    return false;
}

/* Takes the piece out of the free block around it, whose rest stays free. False: no host memory. */
static bool take_out_locked(struct gs_arena *arena, struct gs_block *block,
                            const struct gs_piece *piece)
{
    struct gs_block *above;

    gs_block_unbin_locked(block);
    if (gs_block_end(block) > gs_piece_end(piece)) {
        above = gs_block_cut_locked(arena, block, gs_piece_end(piece) - block->base);
        gs_block_put_locked(arena, above ? above : block);
        if (!above)
            return false;
    }
    gs_arena_free_less_locked(arena, piece->span.size);
    if (block->above)
        block->above->below = NULL;
    block->above = NULL;
    block->entry.size -= piece->span.size;
    if (block->entry.size > 0) {
        gs_block_put_locked(arena, block);
        return true;
    }
    if (block->below)
        block->below->above = NULL;
    gs_index_set_locked(block->piece, block->base, NULL);
    gs_block_record_free_locked(arena, block);
    return true;
}

void gs_piece_leaves_locked(struct gs_arena *arena, struct gs_piece *piece)
{
    gs_latch_assert_held(&arena->lock);
    if (piece->mapped)
        gs_map_remove(arena->shared->map, &piece->span);
    piece->mapped = false; /* its addresses are taken until it is unmapped */
    piece->after = NULL;
    __atomic_store_n(&piece->arena, NULL, __ATOMIC_RELAXED);
    __atomic_add_fetch(&arena->shared->leaving[piece->device], piece->span.size, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&arena->shared->detached, 1, __ATOMIC_SEQ_CST);
}

/* `block` is free, and all of the piece. False: no host memory. */
static bool detach_locked(struct gs_arena *arena, struct gs_block *block, struct gs_piece *piece)
{
    if (!take_out_locked(arena, block, piece))
        return false;
    gs_piece_leaves_locked(arena, piece);
    GS_SUB(arena->reserved, piece->span.size);
    GS_COUNT(arena->counts.trims);
    return true;
}

static bool has_all_of(const struct gs_block *block, const struct gs_piece *piece)
{
    return block && block->state == GS_BLOCK_FREE && block->base <= piece->span.base &&
           gs_block_end(block) >= gs_piece_end(piece);
}

/* Onto the list, of `bytes` together, each of `largest` at most; returns what is still wanted. A
 * block is found by looking through all pieces below: the one of the piece above may be known. */
static size_t detach_from_locked(struct gs_arena *arena, struct gs_region *region, size_t bytes,
                                 size_t largest, struct gs_piece **list)
{
    struct gs_piece *piece = region->highest, *lower;
    struct gs_block *block = NULL;
    struct gs_fence stuck = {0};

    if (!gs_bins_find(&region->free, GS_PAGE_SIZE, SIZE_MAX)) /* none is; there may be many */
        return bytes;
    for (; piece && bytes > 0; piece = lower) {
        size_t size = piece->span.size;
        bool detached, more;

        lower = piece->prev;
        if (!piece->mapped || piece->asleep || size > largest)
            continue;
        if (!has_all_of(block, piece))
            block = gs_piece_first_locked(piece);
        if (!has_all_of(block, piece) || !has_passed_locked(arena, piece, &stuck) ||
            !may_unmap_locked(arena, piece))
            continue;
        more = block->base < piece->span.base;
        detached = detach_locked(arena, block, piece);
        if (!more)
            block = NULL; /* nothing is left of it; else it is what lies below */
        if (!detached)
            continue;
        piece->after = *list;
        *list = piece;
        bytes -= size < bytes ? size : bytes;
    }
    return bytes;
}

struct gs_piece *gs_arena_detach_locked(struct gs_arena *arena, size_t bytes, size_t largest)
{
    struct gs_piece *detached = NULL;

    gs_latch_assert_held(&arena->lock);
    if (bytes == 0)
        return NULL;
    gs_arena_merge_quick_locked(arena);
    bytes = detach_from_locked(arena, &arena->large, bytes, largest, &detached);
    detach_from_locked(arena, &arena->small, bytes, largest, &detached);
    return detached;
}

void gs_arena_spend_locked(struct gs_arena *arena, struct gs_piece *piece)
{
    struct gs_block *block = gs_piece_first_locked(piece);
    struct gs_piece **spent = &arena->shared->spent;

    gs_latch_assert_held(&arena->lock);
    if (!has_all_of(block, piece) || !may_unmap_locked(arena, piece) ||
        !detach_locked(arena, block, piece))
        return;
    piece->after = __atomic_load_n(spent, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(spent, &piece->after, piece, true, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        continue;
}

static unsigned slack_percent(const struct gs_arena *arena)
{
    size_t left = __atomic_load_n(&arena->shared->left[arena->device->ordinal], __ATOMIC_RELAXED);
    size_t half = arena->device->total / 2;

    if (left == 0 || left >= half)
        return SLACK_PERCENT;
    return SLACK_PERCENT_FULL +
           (unsigned)((SLACK_PERCENT - SLACK_PERCENT_FULL) * (left >> 10) / (half >> 10));
}

size_t gs_arena_surplus_locked(const struct gs_arena *arena)
{
    size_t peak = arena->kept.live_peak > arena->live ? arena->kept.live_peak : arena->live;
    size_t target = peak + peak / 100 * slack_percent(arena);
    size_t held = arena->live + arena->free_bytes + arena->order.bytes, surplus;

    gs_latch_assert_held(&arena->lock);
    if (target < HELD_MIN)
        target = HELD_MIN;
    surplus = held > target ? held - target : 0;
    return surplus < arena->free_bytes ? surplus : arena->free_bytes;
}
