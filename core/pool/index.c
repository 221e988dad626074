/*
 * Records of pieces and blocks, and which block is at an address. A piece has one bit for each
 * unit, set where a block starts, so that the block around any address is found by looking
 * backwards over few words, and over the pieces that it crosses.
 */
#include "core/pool/arena.h"

#include "core/base/list.h"

#include <stdlib.h>
#include <string.h>

struct gs_piece *gs_piece_record_new_locked(struct gs_arena *arena)
{
    struct gs_piece *piece = arena->spare_pieces;

    gs_latch_assert_held(&arena->lock);
    if (!piece)
        return calloc(1, sizeof *piece);
    LL_DELETE2(arena->spare_pieces, piece, after);
    return piece;
}

void gs_piece_record_free_locked(struct gs_piece *piece)
{
    struct gs_region *region = piece->region;

    gs_latch_assert_held(&region->arena->lock);
    *(piece->prev ? &piece->prev->next : &region->lowest) = piece->next;
    *(piece->next ? &piece->next->prev : &region->highest) = piece->prev;
    region->taken -= piece->span.size;
    piece->prev = piece->next = NULL;
    free(piece->at);
    piece->at = NULL;
    LL_PREPEND2(region->arena->spare_pieces, piece, after);
}

void gs_piece_gone(struct gs_piece *piece)
{
    struct gs_arena *arena = piece->region->arena; /* it stays one while the piece has its place */

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

void gs_index_set_locked(struct gs_piece *piece, uint64_t base, struct gs_block *block)
{
    size_t unit = unit_of(piece, base);

    piece->at[unit] = block;
    piece->starts[unit / 64] ^= UINT64_C(1) << (unit % 64);
}

/* Its pages are touched only where blocks start. */
bool gs_index_make(struct gs_piece *piece)
{
    size_t units = piece->span.size >> piece->shift;

    piece->at = calloc(1, units * sizeof *piece->at + (units + 63) / 64 * sizeof *piece->starts);
    if (piece->at)
        piece->starts = (uint64_t *)(piece->at + units);
    return piece->at;
}

struct gs_block *gs_piece_start_locked(const struct gs_piece *piece, uint64_t address)
{
    uint64_t offset = address - piece->span.base;

    if (offset & ((UINT64_C(1) << piece->shift) - 1))
        return NULL;
    return piece->at[offset >> piece->shift];
}

/* The last block that begins in the piece at or below a unit, or NULL. */
static struct gs_block *begins_below(const struct gs_piece *piece, size_t unit)
{
    size_t word = unit / 64;
    uint64_t bits = piece->starts[word] & (~UINT64_C(0) >> (63 - unit % 64));

    while (!bits && word > 0)
        bits = piece->starts[--word];
    return bits ? piece->at[word * 64 + (63 - (size_t)__builtin_clzll(bits))] : NULL;
}

/* Ends: the first piece behind a hole begins with a block. One that has a large piece alone is not
 * looked for in that. */
struct gs_block *gs_piece_find_locked(const struct gs_piece *piece, uint64_t address)
{
    struct gs_block *block = piece->at[0];

    if (!block || address >= gs_block_end(block))
        block = begins_below(piece, unit_of(piece, address));
    while (!block) {
        piece = piece->prev;
        block = begins_below(piece, (piece->span.size >> piece->shift) - 1);
    }
    return block;
}
