/*
 * Records of pieces and blocks, and which block is at an address. A piece has one bit for each
 * unit, set where a block starts, so that the block around any address is found by looking
 * backwards over few words, and over the pieces that it crosses.
 */
#include "core/pool/arena.h"

#include <stdlib.h>
#include <string.h>

struct gs_index {
    struct gs_block **at; /* by unit: the block that starts there, or NULL */
    uint64_t *starts;     /* the same, a bit each */
};

/* Piece records are recycled and never freed: a reader of the map may hold one for a moment
 * longer than it lives (core/gpu/map.h). */
static struct {
    struct gs_lock lock; /* rank RECORDS; protects first */
    struct gs_piece *first;
} spare_pieces = {GS_LOCK_INITIALIZER(GS_RANK_RECORDS), NULL};

struct gs_piece *gs_piece_record_new(void)
{
    struct gs_piece *piece;

    gs_lock_take(&spare_pieces.lock);
    piece = spare_pieces.first;
    if (piece)
        spare_pieces.first = piece->after;
    gs_lock_release(&spare_pieces.lock);
    return piece ? piece : calloc(1, sizeof *piece);
}

void gs_piece_record_free_locked(struct gs_piece *piece)
{
    struct gs_region *region = piece->region;

    gs_latch_assert_held(&region->arena->lock);
    *(piece->prev ? &piece->prev->next : &region->lowest) = piece->next;
    *(piece->next ? &piece->next->prev : &region->highest) = piece->prev;
    region->taken -= piece->span.size;
    piece->prev = piece->next = NULL;
    free(piece->index);
    piece->index = NULL;
    gs_lock_take(&spare_pieces.lock);
    piece->after = spare_pieces.first;
    spare_pieces.first = piece;
    gs_lock_release(&spare_pieces.lock);
    __atomic_sub_fetch(&region->pieces, 1, __ATOMIC_SEQ_CST);
}

void gs_piece_gone(struct gs_piece *piece)
{
    struct gs_arena *arena =
        piece->region->arena; /* which stays one while it has the piece's place */

    GS_HOLDING_LATCH(&arena->lock);
    gs_piece_record_free_locked(piece);
}

struct gs_block *gs_block_record_new_locked(struct gs_arena *arena)
{
    struct gs_block *block = arena->free.spare;

    gs_latch_assert_held(&arena->lock);
    if (!block)
        return calloc(1, sizeof *block);
    arena->free.spare = block->above;
    memset(block, 0, sizeof *block);
    return block;
}

void gs_block_record_free_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    block->above = arena->free.spare;
    arena->free.spare = block;
}

/* ---- Finding ---------------------------------------------------------------------------- */

static size_t unit_of(const struct gs_piece *piece, uint64_t address)
{
    return (address - piece->span.base) >> piece->shift;
}

void gs_index_set_locked(struct gs_piece *piece, struct gs_block *block)
{
    size_t unit = unit_of(piece, block->base);

    piece->index->at[unit] = block;
    piece->index->starts[unit / 64] |= UINT64_C(1) << (unit % 64);
}

void gs_index_clear_locked(struct gs_piece *piece, const struct gs_block *block)
{
    size_t unit = unit_of(piece, block->base);

    piece->index->at[unit] = NULL;
    piece->index->starts[unit / 64] &= ~(UINT64_C(1) << (unit % 64));
}

/* Its pages are touched only where blocks start. */
bool gs_index_make(struct gs_piece *piece)
{
    size_t units = piece->span.size >> piece->shift;
    struct gs_index *index =
        calloc(1, sizeof *index + units * sizeof *index->at + (units + 63) / 64 * 8);

    if (!index)
        return false;
    index->at = (struct gs_block **)(index + 1);
    index->starts = (uint64_t *)(index->at + units);
    piece->index = index;
    return true;
}

struct gs_block *gs_piece_start_locked(const struct gs_piece *piece, uint64_t address)
{
    uint64_t offset = address - piece->span.base;

    if (offset & ((UINT64_C(1) << piece->shift) - 1))
        return NULL;
    return piece->index->at[offset >> piece->shift];
}

/* The last block that begins in the piece at or below a unit, or NULL. */
static struct gs_block *begins_below(const struct gs_index *index, size_t unit)
{
    size_t word = unit / 64;
    uint64_t bits = index->starts[word] & (~UINT64_C(0) >> (63 - unit % 64));

    while (!bits && word > 0)
        bits = index->starts[--word];
    return bits ? index->at[word * 64 + (63 - (size_t)__builtin_clzll(bits))] : NULL;
}

/* Ends: the first piece behind a hole begins with a block. One that has a large piece alone is not
 * looked for in that. */
struct gs_block *gs_piece_find_locked(const struct gs_piece *piece, uint64_t address)
{
    struct gs_block *block = piece->index->at[0];

    if (!block || address >= gs_block_end(block))
        block = begins_below(piece->index, unit_of(piece, address));
    while (!block) {
        piece = piece->prev;
        block = begins_below(piece->index, (piece->span.size >> piece->shift) - 1);
    }
    return block;
}

struct gs_block *gs_region_next_locked(const struct gs_region *region, const struct gs_block *block)
{
    const struct gs_piece *piece = block ? block->piece : region->lowest;

    if (block && block->above)
        return block->above;
    while (piece && (!piece->mapped || (block && piece->span.base < gs_block_end(block))))
        piece = piece->next;
    return piece ? gs_piece_start_locked(piece, piece->span.base) : NULL;
}
