/*
 * Blocks within regions (core/pool/arena.h): cutting, merging, taking, giving.
 */
#include "core/pool/arena.h"

#include <stdlib.h>
#include <string.h>

#define IDS_AT_ONCE     65536             /* so seldom do arenas write what others read */
#define QUICK_BYTES_MIN ((size_t)4 << 20) /* what may lie unmerged, and */
#define QUICK_SHARE     64                /* this part of what is live */

/* ---- Cutting and merging ---------------------------------------------------------------- */

/* NULL also without host memory, or where blocks have their pieces alone: the block simply stays
 * larger. */
struct gs_block *gs_block_cut_locked(struct gs_arena *arena, struct gs_block *block, size_t size)
{
    struct gs_block *rest;

    gs_latch_assert_held(&arena->lock);
    if (block->entry.size == size || (arena->shared->whole_pieces && gs_block_is_large(block)))
        return NULL;
    rest = gs_block_record_new_locked(arena);
    if (!rest)
        return NULL;
    rest->piece = block->piece;
    while (gs_piece_end(rest->piece) <= block->base + size)
        rest->piece = rest->piece->next;
    rest->base = block->base + size;
    rest->entry.size = block->entry.size - size;
    rest->state = block->state;
    block->entry.size = size;
    rest->below = block;
    rest->above = block->above;
    if (rest->above)
        rest->above->below = rest;
    block->above = rest;
    gs_index_set_locked(rest->piece, rest->base, rest);
    return rest;
}

bool gs_blocks_may_merge_locked(const struct gs_block *lower, const struct gs_block *upper)
{
    return lower->piece == upper->piece || lower->piece->region->crosses;
}

/* `upper` becomes part of `lower`, its neighbour below; both are in no bin. */
void gs_block_merge_locked(struct gs_arena *arena, struct gs_block *lower, struct gs_block *upper)
{
    gs_latch_assert_held(&arena->lock);
    lower->entry.size += upper->entry.size;
    lower->above = upper->above;
    if (upper->above)
        upper->above->below = lower;
    gs_index_set_locked(upper->piece, upper->base, NULL);
    gs_block_record_free_locked(arena, upper);
}

/* ---- Bins ------------------------------------------------------------------------------- */

void gs_block_unbin_locked(struct gs_block *block)
{
    gs_bins_remove(block->bins, &block->entry);
    block->bins = NULL;
}

static bool is_in(const struct gs_block *neighbour, const struct gs_bins *bins)
{
    return neighbour && neighbour->bins == bins;
}

struct gs_block *gs_block_bin_locked(struct gs_arena *arena, struct gs_block *block,
                                     struct gs_bins *bins)
{
    struct gs_block *below = block->below, *above = block->above;

    gs_latch_assert_held(&arena->lock);
    if (is_in(above, bins) && gs_blocks_may_merge_locked(block, above)) {
        gs_block_unbin_locked(above);
        gs_block_merge_locked(arena, block, above);
    }
    if (is_in(below, bins) && gs_blocks_may_merge_locked(below, block)) {
        gs_block_unbin_locked(below);
        gs_block_merge_locked(arena, below, block);
        block = below;
    }
    block->state = bins == &block->piece->region->free ? GS_BLOCK_FREE : GS_BLOCK_ORDERED;
    block->bins = bins;
    gs_bins_insert(bins, &block->entry);
    return block;
}

struct gs_block *gs_block_put_locked(struct gs_arena *arena, struct gs_block *block)
{
    return gs_block_bin_locked(arena, block, &block->piece->region->free);
}

struct gs_bin_entry *gs_arena_find_locked(const struct gs_arena *arena, const struct gs_bins *bins,
                                          size_t need)
{
    bool whole = arena->shared->whole_pieces && bins->shift == GS_LARGE_SHIFT;

    gs_latch_assert_held(&arena->lock);
    return gs_bins_find(bins, need, whole ? need + GS_PAGE_SIZE - 1 : SIZE_MAX);
}

struct gs_block *gs_block_take_out_locked(struct gs_arena *arena, struct gs_bin_entry *entry,
                                          size_t need)
{
    struct gs_block *block = (struct gs_block *)entry, *rest;
    struct gs_bins *bins = block->bins;

    gs_latch_assert_held(&arena->lock);
    gs_block_unbin_locked(block);
    rest = gs_block_cut_locked(arena, block, need);
    if (rest)
        gs_block_bin_locked(arena, rest, bins);
    return block;
}

/* ---- Taking ----------------------------------------------------------------------------- */

size_t gs_arena_round(const struct gs_arena *arena, size_t size, bool *ret_small)
{
    size_t unit;

    *ret_small = size < arena->shared->small_limit;
    unit = *ret_small ? GS_UNIT_SIZE : (size_t)1 << GS_LARGE_SHIFT;
    return (size + unit - 1) & ~(unit - 1);
}

uint64_t gs_arena_next_id_locked(struct gs_arena *arena)
{
    if (__builtin_expect(arena->id % IDS_AT_ONCE == 0, 0))
        arena->id = __atomic_add_fetch(&arena->shared->next_id, IDS_AT_ONCE, __ATOMIC_RELAXED);
    return arena->id++;
}

void gs_block_live_locked(struct gs_arena *arena, struct gs_block *block, size_t size)
{
    gs_latch_assert_held(&arena->lock);
    block->state = GS_BLOCK_LIVE;
    block->size = size;
    block->async = block->multi_stream = false;
    block->id = gs_arena_next_id_locked(arena);
    GS_ADD(arena->live, block->entry.size);
    if (arena->live > arena->kept.live_high) {
        arena->kept.live_high = arena->live;
        if (arena->live > arena->kept.live_peak)
            arena->kept.live_peak = arena->live;
        if (arena->live > arena->counts.live_peak)
            __atomic_store_n(&arena->counts.live_peak, arena->live, __ATOMIC_RELAXED);
    }
}

/* What was free, and is in no list any more, is live. */
static struct gs_block *take_locked(struct gs_arena *arena, struct gs_block *block, size_t size)
{
    gs_arena_free_less_locked(arena, block->entry.size);
    gs_block_live_locked(arena, block, size);
    return block;
}

/* By itself, so that what is quick saves no registers for it. */
__attribute__((noinline)) static struct gs_block *
take_entry_locked(struct gs_arena *arena, struct gs_bin_entry *entry, size_t need, size_t size)
{
    return take_locked(arena, gs_block_take_out_locked(arena, entry, need), size);
}

static struct gs_block *pop_quick_locked(struct gs_arena *arena, size_t unit)
{
    struct gs_block *block = arena->free.quick[unit];

    arena->free.quick[unit] = (struct gs_block *)block->entry.next;
    arena->free.quick_bytes -= block->entry.size;
    return block;
}

static struct gs_block *take_small_locked(struct gs_arena *arena, size_t need, size_t size)
{
    size_t unit = need >> GS_UNIT_SHIFT;
    struct gs_bin_entry *entry;

    if (unit < GS_QUICK_CLASSES && arena->free.quick[unit])
        return take_locked(arena, pop_quick_locked(arena, unit), size);
    entry = gs_arena_find_locked(arena, &arena->small.free, need);
    return entry ? take_entry_locked(arena, entry, need, size) : NULL;
}

/* The large block that came back last leaves its place for the free ones proper. False: there was
 * none. */
static bool merge_last_locked(struct gs_arena *arena)
{
    struct gs_block *block = arena->free.last;

    if (!block)
        return false;
    arena->free.last = NULL;
    gs_block_put_locked(arena, block);
    return true;
}

static struct gs_block *take_large_ready_locked(struct gs_arena *arena, size_t need, size_t size)
{
    struct gs_block *last = arena->free.last;
    struct gs_bin_entry *entry;

    if (last && last->entry.size == need) {
        arena->free.last = NULL;
        return take_locked(arena, last, size);
    }
    merge_last_locked(arena);
    entry = gs_arena_find_locked(arena, &arena->large.free, need);
    return entry ? take_entry_locked(arena, entry, need, size) : NULL;
}

/* Looks at what has come back rather than find nothing: one large block is often all of it. */
static struct gs_block *take_large_locked(struct gs_arena *arena, size_t need, size_t size)
{
    struct gs_block *block = take_large_ready_locked(arena, need, size);

    if (block || (!arena->epochs.oldest && !arena->epochs.open.first))
        return block;
    gs_arena_look_locked(arena);
    return take_large_ready_locked(arena, need, size);
}

struct gs_block *gs_arena_take_locked(struct gs_arena *arena, size_t size)
{
    bool small;
    size_t need = gs_arena_round(arena, size, &small);

    gs_latch_assert_held(&arena->lock);
    return small ? take_small_locked(arena, need, size) : take_large_locked(arena, need, size);
}

struct gs_block *gs_arena_take_any_locked(struct gs_arena *arena, size_t size)
{
    struct gs_block *block = gs_arena_take_locked(arena, size);

    gs_latch_assert_held(&arena->lock);
    for (int small = 0; !block && small < 2; small++) {
        size_t unit = small ? GS_UNIT_SIZE : (size_t)1 << GS_LARGE_SHIFT;
        size_t need = (size + unit - 1) & ~(unit - 1);
        struct gs_bin_entry *entry =
            gs_bins_find(&gs_arena_region_locked(arena, small)->free, need, SIZE_MAX);

        if (entry)
            block = take_entry_locked(arena, entry, need, size);
    }
    return block;
}

/* ---- Giving ----------------------------------------------------------------------------- */

void gs_arena_give_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    GS_ADD(arena->free_bytes, block->entry.size);
    gs_block_put_locked(arena, block);
}

void gs_arena_give_quick_locked(struct gs_arena *arena, struct gs_block *block)
{
    size_t unit = block->entry.size >> GS_UNIT_SHIFT;

    gs_latch_assert_held(&arena->lock);
    if (gs_block_is_large(block)) {
        merge_last_locked(arena);
        arena->free.last = block;
    } else if (unit >= GS_QUICK_CLASSES || (arena->free.quick_bytes > QUICK_BYTES_MIN &&
                                            arena->free.quick_bytes > arena->live / QUICK_SHARE)) {
        gs_arena_give_locked(arena, block);
        return;
    } else {
        block->entry.next = (struct gs_bin_entry *)arena->free.quick[unit];
        arena->free.quick[unit] = block;
        arena->free.quick_bytes += block->entry.size;
    }
    block->state = GS_BLOCK_QUICK;
    GS_ADD(arena->free_bytes, block->entry.size);
}

bool gs_arena_merge_quick_locked(struct gs_arena *arena)
{
    bool any = merge_last_locked(arena);

    gs_latch_assert_held(&arena->lock);
    for (size_t unit = 0; arena->free.quick_bytes > 0; unit++)
        for (; arena->free.quick[unit]; any = true)
            gs_block_put_locked(arena, pop_quick_locked(arena, unit));
    return any;
}

/* Not before there is a piece: until then the device may not have been looked at. */
void gs_arena_limit_locked(struct gs_arena *arena)
{
    const struct gs_arena_shared *shared = arena->shared;
    size_t limit = __atomic_load_n(&shared->cache_limit, __ATOMIC_RELAXED);
    size_t share =
        arena->device->total / 100 * __atomic_load_n(&shared->cache_percent, __ATOMIC_RELAXED);

    gs_latch_assert_held(&arena->lock);
    if (arena->reserved > 0)
        arena->kept.limit = share && share < limit ? share : limit;
}
