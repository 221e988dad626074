/*
 * Records of chunks and blocks, and which block is at an address. A chunk that was cut has one bit for
 * each unit, set where a block starts, and a word of summary for 64 of such words, so that the block
 * around any address is found by looking backwards over few words.
 */
#include "core/pool/arena.h"

#include <stdlib.h>
#include <string.h>

struct gs_index {
    struct gs_block **at; /* by unit: the block that starts there, or NULL */
    uint64_t *starts, *summary;
};

/* Chunk records are recycled and never freed: a reader of the map may hold one for a moment
 * longer than it lives (core/gpu/map.h). */
static struct {
    struct gs_lock lock; /* rank RECORDS; protects first */
    struct gs_chunk *first;
} spare_chunks = {GS_LOCK_INITIALIZER(GS_RANK_RECORDS), NULL};

struct gs_chunk *gs_chunk_record_new(void)
{
    struct gs_chunk *chunk;

    gs_lock_take(&spare_chunks.lock);
    chunk = spare_chunks.first;
    if (chunk)
        spare_chunks.first = chunk->next;
    gs_lock_release(&spare_chunks.lock);
    return chunk ? chunk : calloc(1, sizeof *chunk);
}

void gs_chunk_record_free(struct gs_chunk *chunk)
{
    free(chunk->index);
    chunk->index = NULL;
    gs_lock_take(&spare_chunks.lock);
    chunk->next = spare_chunks.first;
    spare_chunks.first = chunk;
    gs_lock_release(&spare_chunks.lock);
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

static size_t unit_of(const struct gs_chunk *chunk, uint64_t address)
{
    return (address - chunk->span.base) >> chunk->shift;
}

void gs_index_set_locked(struct gs_chunk *chunk, struct gs_block *block)
{
    size_t unit = unit_of(chunk, block->base);

    chunk->index->at[unit] = block;
    chunk->index->starts[unit / 64] |= UINT64_C(1) << (unit % 64);
    chunk->index->summary[unit / 4096] |= UINT64_C(1) << (unit / 64 % 64);
}

void gs_index_clear_locked(struct gs_chunk *chunk, const struct gs_block *block)
{
    size_t unit = unit_of(chunk, block->base);

    chunk->index->at[unit] = NULL;
    chunk->index->starts[unit / 64] &= ~(UINT64_C(1) << (unit % 64));
    if (!chunk->index->starts[unit / 64])
        chunk->index->summary[unit / 4096] &= ~(UINT64_C(1) << (unit / 64 % 64));
}

/* For a chunk whose whole is one block. Its pages are touched only where blocks start. */
bool gs_index_make_locked(struct gs_chunk *chunk)
{
    size_t units = chunk->span.size >> chunk->shift;
    size_t words = (units + 63) / 64, summaries = (words + 63) / 64;
    struct gs_index *index =
        calloc(1, sizeof *index + units * sizeof *index->at + (words + summaries) * 8);

    if (!index)
        return false;
    index->at = (struct gs_block **)(index + 1);
    index->starts = (uint64_t *)(index->at + units);
    index->summary = index->starts + words;
    chunk->index = index;
    gs_index_set_locked(chunk, chunk->lowest);
    return true;
}

struct gs_block *gs_chunk_start_locked(const struct gs_chunk *chunk, uint64_t address)
{
    uint64_t offset = address - chunk->span.base;

    if (!chunk->index)
        return offset == 0 ? chunk->lowest : NULL;
    if (offset & ((UINT64_C(1) << chunk->shift) - 1))
        return NULL;
    return chunk->index->at[offset >> chunk->shift];
}

/* The highest bit of `words` at or below `bit`; there is one. */
static size_t bit_below(const uint64_t *words, size_t bit)
{
    size_t word = bit / 64;
    uint64_t bits = words[word] & (~UINT64_C(0) >> (63 - bit % 64));

    while (!bits)
        bits = words[--word];
    return word * 64 + (63 - (size_t)__builtin_clzll(bits));
}

/* Ends: the chunk's first unit always starts a block. */
struct gs_block *gs_chunk_find_locked(const struct gs_chunk *chunk, uint64_t address)
{
    const struct gs_index *index = chunk->index;
    size_t unit, word;
    uint64_t bits;

    if (!index)
        return chunk->lowest;
    unit = unit_of(chunk, address);
    bits = index->starts[unit / 64] & (~UINT64_C(0) >> (63 - unit % 64));
    if (bits)
        return index->at[unit / 64 * 64 + (63 - (size_t)__builtin_clzll(bits))];
    word = bit_below(index->summary, unit / 64 - 1);
    return index->at[word * 64 + (63 - (size_t)__builtin_clzll(index->starts[word]))];
}

/* ---- Bins ------------------------------------------------------------------------------- */
