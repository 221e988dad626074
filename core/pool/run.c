/*
 * Runs: blocks that lie side by side in a chunk, each of them free or behind a fence. On a full
 * device an allocation in the order of a stream gets them as one block, and its stream is put
 * behind all of those fences (core/pool/apart.c has the same of one block).
 *
 * A run ends where its chunk does. Chunks cannot be put together while work may touch them: each is
 * one physical allocation, whose handle is mapped whole, and leaves its place only when unmapped,
 * which does not wait for work.
 */
#include "core/pool/arena.h"

#include <stdlib.h>

/* A block that retires, and where. */
struct piece {
    struct gs_block *block;
    struct gs_block_list *list;
    const struct gs_fence *fence;
    bool in_epoch;
};

struct pieces {
    struct piece *piece; /* by address */
    size_t count;
};

/* One after the other, from `first` on: `bytes` of them, and the pieces among them from `piece` on,
 * up to `next`. */
struct run {
    struct gs_block *first;
    size_t bytes, piece, next;
};

/* ---- What there is ---------------------------------------------------------------------- */

static int by_address(const void *left, const void *right)
{
    const uint64_t one = ((const struct piece *)left)->block->base;
    const uint64_t other = ((const struct piece *)right)->block->base;

    return one < other ? -1 : one > other;
}

static void add_list_locked(const struct gs_arena *arena, struct pieces *pieces,
                            struct gs_block_list *list, const struct gs_fence *fence, bool in_epoch)
{
    struct gs_block *block = list->first;

    for (; block; block = (struct gs_block *)block->entry.next)
        if (gs_block_suits_next_locked(arena, block))
            pieces->piece[pieces->count++] = (struct piece){block, list, fence, in_epoch};
}

/* What is behind another context's work is not: it retires here after that. */
static size_t count_all_locked(const struct gs_arena *arena, bool epochs)
{
    size_t count = 0;

    for (const struct gs_apart *apart = arena->order.apart; apart; apart = apart->next)
        count += apart->line.line ? apart->blocks.count : 0;
    for (const struct gs_epoch *epoch = epochs ? arena->epochs.oldest : NULL; epoch;
         epoch = epoch->next)
        count += epoch->blocks.count;
    return count;
}

/* False: there is nothing, or no host memory. */
static bool collect_locked(struct gs_arena *arena, bool epochs, struct pieces *pieces)
{
    size_t most = count_all_locked(arena, epochs);

    pieces->count = 0;
    pieces->piece = most ? calloc(most, sizeof *pieces->piece) : NULL;
    if (!pieces->piece)
        return false;
    for (struct gs_apart *apart = arena->order.apart; apart; apart = apart->next)
        if (apart->line.line)
            add_list_locked(arena, pieces, &apart->blocks, &apart->fence, false);
    for (struct gs_epoch *epoch = epochs ? arena->epochs.oldest : NULL; epoch; epoch = epoch->next)
        add_list_locked(arena, pieces, &epoch->blocks, &epoch->fence, true);
    qsort(pieces->piece, pieces->count, sizeof *pieces->piece, by_address);
    return true;
}

/* ---- Finding ---------------------------------------------------------------------------- */

/* False: there would be too many. */
static bool add_fence(struct gs_behind *behind, const struct gs_fence *fence)
{
    unsigned i = 0;

    if (gs_fence_passed(fence))
        return true;
    while (i < behind->count && behind->fence[i].line != fence->line)
        i++;
    if (i == GS_BEHIND_MOST)
        return false;
    if (i == behind->count)
        behind->fence[behind->count++] = *fence;
    else if (behind->fence[i].number < fence->number)
        behind->fence[i].number = fence->number;
    return true;
}

static bool is_free(const struct gs_block *block)
{
    return block && block->state == GS_BLOCK_FREE;
}

/* From the piece on, and what is free below it, upwards until there is enough. */
static bool find_from_locked(const struct pieces *pieces, size_t piece, size_t need,
                             struct run *run, struct gs_behind *behind)
{
    struct gs_block *block = pieces->piece[piece].block;

    run->first = is_free(block->below) ? block->below : block;
    run->bytes = 0;
    run->piece = run->next = piece;
    behind->count = 0;
    for (block = run->first; block && run->bytes < need; block = block->above) {
        if (!is_free(block)) {
            if (run->next == pieces->count || pieces->piece[run->next].block != block ||
                !add_fence(behind, pieces->piece[run->next].fence))
                break;
            run->next++;
        }
        run->bytes += block->entry.size;
    }
    return run->bytes >= need;
}

static bool find_locked(const struct gs_arena *arena, const struct pieces *pieces, size_t size,
                        struct run *run, struct gs_behind *behind)
{
    size_t i = 0;
    bool small;

    gs_arena_round(arena, size, &small);
    while (i < pieces->count) {
        const struct gs_chunk *chunk = pieces->piece[i].block->chunk;

        if ((small || chunk->shift == GS_LARGE_SHIFT) &&
            find_from_locked(pieces, i, gs_chunk_round(chunk, size), run, behind))
            return true;
        i = small || chunk->shift == GS_LARGE_SHIFT ? run->next : i + 1;
    }
    return false;
}

/* ---- Taking ----------------------------------------------------------------------------- */

/* What of the block is more than `need` stays what it was; `piece` is NULL of a free one. */
static void take_part_locked(struct gs_arena *arena, struct gs_block *block,
                             const struct piece *piece, size_t need)
{
    struct gs_block *rest = NULL;

    if (!piece)
        gs_block_unready_locked(arena, block);
    else if (piece->in_epoch)
        gs_epoch_remove_locked(&arena->epochs, piece->list, block);
    else
        gs_block_list_remove(piece->list, block);
    if (block->entry.size > need)
        rest = gs_block_cut_locked(arena, block, need);
    if (!rest)
        return;
    if (!piece)
        gs_arena_give_locked(arena, rest);
    else if (piece->in_epoch)
        gs_epoch_add_locked(&arena->epochs, piece->list, rest);
    else
        gs_block_list_push(piece->list, rest);
}

static struct gs_block *take_locked(struct gs_arena *arena, const struct pieces *pieces,
                                    const struct run *run, size_t size)
{
    const struct piece *piece = &pieces->piece[run->piece];
    struct gs_block *first = run->first, *block = first, *next;
    struct gs_chunk *chunk = first->chunk;
    size_t left = gs_chunk_round(chunk, size);

    for (; left > 0; block = next) {
        take_part_locked(arena, block, is_free(block) ? NULL : piece++, left);
        left -= block->entry.size < left ? block->entry.size : left;
        next = block->above;
        if (block != first)
            gs_block_merge_locked(arena, first, block);
    }
    if (chunk->shift == GS_LARGE_SHIFT)
        gs_block_lies_locked(arena, chunk, first->entry.size);
    gs_block_live_locked(arena, first, size);
    return first;
}

/* Epochs are behind all of the context's work: only where nothing else will do. */
struct gs_block *gs_arena_take_run_locked(struct gs_arena *arena, size_t size,
                                          struct gs_behind *ret)
{
    struct gs_block *block = NULL;
    struct pieces pieces;
    struct run run;

    gs_latch_assert_held(&arena->lock);
    gs_arena_settle_locked(arena);
    for (int epochs = 0; epochs < 2 && !block; epochs++) {
        if (!collect_locked(arena, epochs, &pieces))
            continue;
        if (find_locked(arena, &pieces, size, &run, ret))
            block = take_locked(arena, &pieces, &run, size);
        free(pieces.piece);
    }
    if (!block)
        ret->count = 0;
    return block;
}
