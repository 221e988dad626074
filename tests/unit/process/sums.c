/* tests/unit/process/sums.h */
#include "tests/unit/process/sums.h"

#include <criterion/criterion.h>

#include "core/process/context.h"

struct sums {
    size_t of[GS_BLOCK_HELD + 1]; /* bytes of blocks, by state */
    size_t binned, blocks, reserved;
};

static void found_from_both_ends(const struct gs_block *block)
{
    const struct gs_piece *last = block->piece, *next;

    cr_assert(block->base >= block->piece->span.base && block->base < gs_piece_end(block->piece));
    while ((next = gs_block_next_piece(block, last))) {
        cr_assert(next->mapped && next->span.base == gs_piece_end(last), "a hole is in a block");
        last = next;
    }
    cr_assert_leq(gs_block_end(block), gs_piece_end(last));
    cr_assert_eq(gs_piece_start_locked(block->piece, block->base), block);
    cr_assert_eq(gs_piece_find_locked(block->piece, block->base), block);
    cr_assert_eq(gs_piece_find_locked(last, gs_block_end(block) - 1), block);
}

static void is_as_it_may_be(const struct gs_region *region, const struct gs_block *block)
{
    const size_t unit = (size_t)1 << block->piece->shift;

    cr_assert(block->entry.size > 0 && block->entry.size % unit == 0 && block->base % unit == 0);
    cr_assert(region->crosses || gs_block_end(block) <= gs_piece_end(block->piece),
              "a block is in two pieces");
    if (block->state == GS_BLOCK_LIVE)
        cr_assert(block->size > 0 && block->size <= block->entry.size);
    if (block->above && block->state == GS_BLOCK_FREE && block->above->state == GS_BLOCK_FREE)
        cr_assert_not(gs_blocks_may_merge_locked(block, block->above), "neighbours are not one");
}

/* From one hole to the next. Returns the piece behind it. */
static struct gs_piece *run_adds_up(const struct gs_region *region, struct gs_piece *piece,
                                    struct sums *sums)
{
    struct gs_block *block = gs_piece_start_locked(piece, piece->span.base), *below = NULL;
    uint64_t end = piece->span.base;

    for (; block; below = block, block = block->above) {
        cr_assert_eq(block->base, end);
        cr_assert_eq(block->below, below);
        found_from_both_ends(block);
        is_as_it_may_be(region, block);
        sums->of[block->state] += block->entry.size;
        sums->binned += block->state == GS_BLOCK_FREE;
        sums->blocks++;
        end = gs_block_end(block);
    }
    while (piece && piece->span.base < end) {
        cr_assert_leq(gs_piece_end(piece), end, "a piece has an end without a block");
        piece = piece->next;
    }
    cr_assert(!piece || piece->span.base > end, "pieces side by side have blocks that are not");
    return piece;
}

static size_t starts_in(const struct gs_piece *piece)
{
    const uint64_t unit = UINT64_C(1) << piece->shift;
    size_t starts = 0;

    for (uint64_t address = piece->span.base; address < gs_piece_end(piece); address += unit)
        starts += gs_piece_start_locked(piece, address) != NULL;
    return starts;
}

static void pieces_are_in_order(const struct fixture *f, const struct gs_arena *arena,
                                const struct gs_region *region, struct sums *sums)
{
    const struct gs_piece *below = NULL, *piece = region->lowest;
    size_t starts = 0, taken = 0;

    for (; piece; below = piece, piece = piece->next) {
        cr_assert(piece->mapped, "a place is left over");
        cr_assert_eq(piece->prev, below);
        cr_assert_eq(piece->arena, arena);
        cr_assert_geq(piece->span.base, below ? gs_piece_end(below) : region->base);
        cr_assert_leq(gs_piece_end(piece), region->base + region->size);
        cr_assert_eq(gs_map_find(&f->core->map, piece->span.base), &piece->span);
        cr_assert_eq(gs_map_find(&f->core->map, gs_piece_end(piece) - 1), &piece->span);
        starts += starts_in(piece);
        taken += piece->span.size;
    }
    sums->reserved += taken;
    cr_assert_eq(region->highest, below);
    cr_assert_eq(region->taken, taken);
    cr_assert_eq(starts, sums->blocks, "the index has others than the region");
}

static size_t entries_of(const struct gs_bins *bins)
{
    size_t entries = 0;

    for (unsigned level = 0; level < GS_BIN_LEVELS; level++)
        for (unsigned slot = 0; slot < GS_BIN_SLOTS; slot++)
            for (const struct gs_bin_entry *entry = bins->head[level][slot]; entry;
                 entry = entry->next)
                entries++;
    return entries;
}

static void region_adds_up(const struct fixture *f, const struct gs_arena *arena,
                           const struct gs_region *region, struct sums *all)
{
    struct sums sums = {.reserved = 0};
    struct gs_piece *piece = region->lowest;

    while (piece)
        piece = run_adds_up(region, piece, &sums);
    pieces_are_in_order(f, arena, region, &sums);
    cr_assert_eq(entries_of(&region->free), sums.binned);
    for (unsigned state = 0; state <= GS_BLOCK_HELD; state++)
        all->of[state] += sums.of[state];
    all->reserved += sums.reserved;
}

static size_t list_adds_up(const struct gs_block_list *list)
{
    const struct gs_block *last = NULL;
    unsigned count = 0;
    size_t bytes = 0;

    for (const struct gs_block *block = list->first; block;
         last = block, block = (const struct gs_block *)block->entry.next, count++) {
        cr_assert_eq(block->state, GS_BLOCK_RETIRED);
        bytes += block->entry.size;
    }
    cr_assert_eq(list->last, last);
    cr_assert_eq(list->count, count);
    cr_assert_eq(list->bytes, bytes);
    return bytes;
}

static size_t retired_of(const struct gs_arena *arena)
{
    size_t bytes = list_adds_up(&arena->epochs.open);

    for (const struct gs_epoch *epoch = arena->epochs.oldest; epoch; epoch = epoch->next)
        bytes += list_adds_up(&epoch->blocks);
    return bytes;
}

static void arena_adds_up(const struct fixture *f, struct gs_arena *arena)
{
    struct sums sums = {.reserved = 0};

    gs_latch_take(&arena->lock);
    region_adds_up(f, arena, &arena->small, &sums);
    region_adds_up(f, arena, &arena->large, &sums);
    cr_assert_eq(arena->reserved, sums.reserved);
    cr_assert_eq(arena->live, sums.of[GS_BLOCK_LIVE]);
    cr_assert_eq(arena->free_bytes, sums.of[GS_BLOCK_FREE] + sums.of[GS_BLOCK_QUICK]);
    cr_assert_eq(arena->free.quick_bytes + (arena->free.last ? arena->free.last->entry.size : 0),
                 sums.of[GS_BLOCK_QUICK]);
    cr_assert_eq(arena->order.bytes, sums.of[GS_BLOCK_ORDERED] + sums.of[GS_BLOCK_LAST_FREED]);
    cr_assert_eq(arena->held, sums.of[GS_BLOCK_HELD]);
    cr_assert_eq(retired_of(arena), sums.of[GS_BLOCK_RETIRED], "a block is in no list");
    cr_assert_eq(gs_arena_behind_bytes_locked(arena), sums.of[GS_BLOCK_RETIRED]);
    gs_latch_release(&arena->lock);
}

void must_add_up(struct fixture *f)
{
    struct gs_arena *arena = NULL;

    while ((arena = gs_next_arena(f->core, NULL, arena)))
        arena_adds_up(f, arena);
}
