/*
 * Regions grow (core/pool/arena.h). Pieces are made without the lock: their place is taken
 * meanwhile, and so is what is free beside it, which the block that they are for is to have, too.
 */
#include "core/pool/arena.h"

#define LARGE_LEAST  ((size_t)32 << 20)  /* a piece for large blocks, */
#define LARGE_SHARE  16                  /* or this part of what is reserved, */
#define LARGE_MOST   ((size_t)128 << 20) /* but no more than is missing beyond this, */
#define DEVICE_SHARE 256                 /* or this part of the device; */
#define LEFT_SHARE   8                   /* no more than this part of what the device has left */
#define SMALL_OTHER  ((size_t)16 << 20)  /* one for small blocks in an arena of few threads */

/* Between two pieces, or behind the last one. */
struct gap {
    uint64_t base;
    size_t size;
    struct gs_piece *under;         /* the piece below, or NULL */
    struct gs_block *below, *above; /* free ones right beside it, or NULL */
    size_t missing;
};

static struct gs_block *free_or_null(struct gs_block *block)
{
    return block && block->state == GS_BLOCK_FREE ? block : NULL;
}

static size_t bytes_of(const struct gs_block *block)
{
    return block ? block->entry.size : 0;
}

/* False: what is missing does not fit there. */
static bool measure(struct gap *gap, size_t need)
{
    size_t below = bytes_of(gap->below), missing = gs_page_round(need > below ? need - below : 1);

    gap->missing = missing;
    if (missing <= gap->size) {
        if (missing < gap->size)
            gap->above = NULL;
        return true;
    }
    gap->missing = gap->size;
    return below + gap->size + bytes_of(gap->above) >= need;
}

/* The gap below a piece, or below the region's end. */
static bool gap_below_locked(const struct gs_region *region, struct gs_piece *under,
                             struct gs_piece *over, size_t need, struct gap *ret)
{
    uint64_t end = over ? over->span.base : region->base + region->size;

    *ret = (struct gap){.base = under ? gs_piece_end(under) : region->base, .under = under};
    ret->size = end - ret->base;
    if (ret->size == 0)
        return false;
    if (region->crosses && under && under->mapped)
        ret->below = free_or_null(gs_piece_find_locked(under, ret->base - 1));
    if (region->crosses && over && over->mapped)
        ret->above = free_or_null(gs_piece_start_locked(over, end));
    return measure(ret, need);
}

/* Where the fewest bytes are missing, and lowest of those: of small blocks it is the same anywhere.
 * There may be tens of thousands of pieces. */
static bool choose_locked(const struct gs_region *region, size_t need, struct gap *ret)
{
    bool any = false,
         holes = region->highest && gs_piece_end(region->highest) - region->base > region->taken;
    struct gs_piece *under = holes ? NULL : region->highest, *over = holes ? region->lowest : NULL;
    struct gap gap;

    for (;; under = over, over = over->next) {
        if (gap_below_locked(region, under, over, need, &gap) &&
            (!any || gap.missing < ret->missing)) {
            *ret = gap;
            any = true;
        }
        if (!over || (any && !region->crosses))
            return any;
    }
}

/* No piece is larger than this: of one that is used in part nothing goes back. */
static size_t largest_locked(const struct gs_arena *arena, const struct gs_region *region)
{
    return region->crosses ? gs_page_round(arena->device->total / DEVICE_SHARE) : SIZE_MAX;
}

static size_t size_at_best_locked(const struct gs_arena *arena, const struct gs_region *region,
                                  size_t missing)
{
    size_t left = __atomic_load_n(&arena->shared->left[arena->device->ordinal], __ATOMIC_RELAXED);
    size_t largest = largest_locked(arena, region), size;

    if (region == &arena->small)
        return !arena->first && left / LEFT_SHARE >= SMALL_OTHER ? SMALL_OTHER : missing;
    if (!region->crosses) /* of a piece for one block more goes back */
        return missing;
    size =
        arena->reserved / LARGE_SHARE > LARGE_LEAST ? arena->reserved / LARGE_SHARE : LARGE_LEAST;
    if (size > LARGE_MOST)
        size = LARGE_MOST;
    if (size > left / LEFT_SHARE)
        size = left / LEFT_SHARE;
    if (size > largest)
        size = largest;
    return size > missing ? gs_page_round(size) : missing;
}

/* It is free still, and nobody's. */
static void set_aside_locked(struct gs_block *block)
{
    if (!block)
        return;
    gs_block_unbin_locked(block);
    block->state = GS_BLOCK_RETIRED;
}

/* NULL: no host memory. */
static struct gs_piece *place_new_locked(struct gs_region *region, uint64_t base, size_t size,
                                         struct gs_piece *under)
{
    struct gs_piece *place = gs_piece_record_new_locked(region->arena);

    if (!place)
        return NULL;
    place->span = (struct gs_span){.base = base, .size = size, .kind = GS_SPAN_PIECE};
    place->region = region;
    place->shift = region->free.shift;
    place->mapped = false;
    place->prev = under;
    place->next = under ? under->next : region->lowest;
    *(under ? &under->next : &region->lowest) = place;
    *(place->next ? &place->next->prev : &region->highest) = place;
    region->taken += size;
    return place;
}

gs_status gs_arena_grow_locked(struct gs_arena *arena, size_t size, struct gs_growth *ret)
{
    bool small;
    size_t need = gs_arena_round(arena, size, &small), best;
    struct gs_region *region = gs_arena_region_locked(arena, small);
    struct gap gap = {0};

    gs_latch_assert_held(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    if (!choose_locked(region, need, &gap))
        return GS_NO_MEMORY;
    best = size_at_best_locked(arena, region, gap.missing);
    *ret = (struct gs_growth){.least = gap.missing, .block = gap.below, .above = gap.above};
    ret->place = place_new_locked(region, gap.base, best < gap.size ? best : gap.size, gap.under);
    if (!ret->place)
        return GS_NO_HOST_MEMORY;
    set_aside_locked(gap.below);
    set_aside_locked(gap.above);
    return GS_OK;
}

gs_status gs_growth_next_locked(struct gs_arena *arena, struct gs_growth *growth, bool scarce,
                                struct gs_span *ret)
{
    size_t largest;

    gs_latch_assert_held(&arena->lock);
    growth->piece = NULL;
    if (!growth->place)
        return GS_NO_HOST_MEMORY;
    largest = largest_locked(arena, growth->place->region);
    *ret = growth->place->span;
    if (scarce)
        ret->size = growth->least;
    if (ret->size > largest)
        ret->size = largest;
    return GS_OK;
}

/* What lies right below and above a piece without blocks. */
static void link_block_locked(struct gs_block *block)
{
    struct gs_piece *piece = block->piece, *under = piece->prev, *over = piece->next;

    if (under && under->mapped && gs_piece_end(under) == piece->span.base)
        block->below = gs_piece_find_locked(under, piece->span.base - 1);
    if (over && over->mapped && over->span.base == gs_piece_end(piece))
        block->above = gs_piece_start_locked(over, over->span.base);
    if (block->below)
        block->below->above = block;
    if (block->above)
        block->above->below = block;
}

/* What is wanted has one block more, all of the new piece. */
static void add_block_locked(struct gs_arena *arena, struct gs_growth *growth,
                             struct gs_block *block)
{
    struct gs_piece *piece = growth->piece;

    block->piece = piece;
    block->base = piece->span.base;
    block->entry.size = piece->span.size;
    block->state = GS_BLOCK_RETIRED; /* in no list, as what was set aside */
    GS_ADD(arena->free_bytes, block->entry.size);
    gs_index_set_locked(piece, block->base, block);
    link_block_locked(block);
    if (growth->block)
        gs_block_merge_locked(arena, growth->block, block);
    else
        growth->block = block;
}

gs_status gs_growth_mapped_locked(struct gs_arena *arena, struct gs_growth *growth, size_t size,
                                  CUmemGenericAllocationHandle handle)
{
    struct gs_piece *piece = growth->place;
    const size_t rest = piece->span.size - size;

    gs_latch_assert_held(&arena->lock);
    growth->piece = piece;
    piece->span.size = size;
    piece->region->taken -= rest;
    growth->place = rest ? place_new_locked(piece->region, gs_piece_end(piece), rest, piece) : NULL;
    __atomic_store_n(&piece->arena, arena, __ATOMIC_RELAXED);
    __atomic_store_n(&piece->device, (unsigned char)arena->device->ordinal, __ATOMIC_RELAXED);
    piece->handle = handle;
    piece->peer_access = 0;
    piece->lent = false;
    piece->freed = (struct gs_fence){0};
    piece->mapped =
        gs_index_make(piece) && gs_map_insert(arena->shared->map, &piece->span) == GS_OK;
    return piece->mapped ? GS_OK : GS_NO_HOST_MEMORY;
}

gs_status gs_growth_join_locked(struct gs_arena *arena, struct gs_growth *growth)
{
    struct gs_block *block = gs_block_record_new_locked(arena);
    struct gs_piece *piece = growth->piece;

    gs_latch_assert_held(&arena->lock);
    if (!block)
        return GS_NO_HOST_MEMORY;
    piece->id = gs_arena_next_id_locked(arena);
    GS_ADD(arena->reserved, piece->span.size);
    if (arena->reserved > arena->counts.reserved_peak)
        __atomic_store_n(&arena->counts.reserved_peak, arena->reserved, __ATOMIC_RELAXED);
    GS_COUNT(arena->counts.grown);
    growth->least -= piece->span.size < growth->least ? piece->span.size : growth->least;
    add_block_locked(arena, growth, block);
    gs_arena_limit_locked(arena);
    return GS_OK;
}

void gs_arena_grown_locked(struct gs_arena *arena, struct gs_growth *growth)
{
    gs_latch_assert_held(&arena->lock);
    if (growth->place)
        gs_piece_record_free_locked(growth->place);
    if (growth->above)
        gs_block_put_locked(arena, growth->above);
    if (growth->block)
        gs_block_put_locked(arena, growth->block);
}
