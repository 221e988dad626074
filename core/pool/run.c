/*
 * Runs: blocks that lie side by side, each of them free or behind a fence. On a full device an
 * allocation in the order of a stream gets them as one block, and its stream is put behind all of
 * those fences (core/pool/apart.c has the same of one block).
 */
#include "core/pool/arena.h"

#include <stdlib.h>

/* A block that retires, and where. */
struct part {
    struct gs_block *block;
    struct gs_block_list *list;
    const struct gs_fence *fence;
    bool in_epoch;
};

struct parts {
    struct part *part; /* by address */
    size_t count;
};

/* One after the other, from `first` on: `bytes` of them, and the parts among them from `part` on,
 * up to `next`. */
struct run {
    struct gs_block *first;
    size_t bytes, part, next;
};

/* ---- What there is ---------------------------------------------------------------------- */

static int by_address(const void *left, const void *right)
{
    const uint64_t one = ((const struct part *)left)->block->base;
    const uint64_t other = ((const struct part *)right)->block->base;

    return one < other ? -1 : one > other;
}

static void add_list_locked(const struct gs_arena *arena, struct parts *parts,
                            struct gs_block_list *list, const struct gs_fence *fence, bool in_epoch)
{
    struct gs_block *block = list->first;

    for (; block; block = (struct gs_block *)block->entry.next)
        if (gs_block_suits_next_locked(arena, block))
            parts->part[parts->count++] = (struct part){block, list, fence, in_epoch};
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
static bool collect_locked(struct gs_arena *arena, bool epochs, struct parts *parts)
{
    size_t most = count_all_locked(arena, epochs);

    parts->count = 0;
    parts->part = most ? calloc(most, sizeof *parts->part) : NULL;
    if (!parts->part)
        return false;
    for (struct gs_apart *apart = arena->order.apart; apart; apart = apart->next)
        if (apart->line.line)
            add_list_locked(arena, parts, &apart->blocks, &apart->fence, false);
    for (struct gs_epoch *epoch = epochs ? arena->epochs.oldest : NULL; epoch; epoch = epoch->next)
        add_list_locked(arena, parts, &epoch->blocks, &epoch->fence, true);
    qsort(parts->part, parts->count, sizeof *parts->part, by_address);
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

/* From the part on, and what is free below it, upwards until there is enough. */
static bool find_from_locked(const struct parts *parts, size_t part, size_t need,
                             struct run *run, struct gs_behind *behind)
{
    struct gs_block *block = parts->part[part].block;

    run->first = is_free(block->below) && gs_blocks_may_merge_locked(block->below, block)
                     ? block->below
                     : block;
    run->bytes = 0;
    run->part = run->next = part;
    behind->count = 0;
    for (block = run->first; block && run->bytes < need; block = block->above) {
        if (!gs_blocks_may_merge_locked(run->first, block))
            break;
        if (!is_free(block)) {
            if (run->next == parts->count || parts->part[run->next].block != block ||
                !add_fence(behind, parts->part[run->next].fence))
                break;
            run->next++;
        }
        run->bytes += block->entry.size;
    }
    return run->bytes >= need;
}

static bool find_locked(const struct gs_arena *arena, const struct parts *parts, size_t size,
                        struct run *run, struct gs_behind *behind)
{
    size_t i = 0;
    bool small;

    gs_arena_round(arena, size, &small);
    while (i < parts->count) {
        const struct gs_piece *piece = parts->part[i].block->piece;

        if ((small || piece->shift == GS_LARGE_SHIFT) &&
            find_from_locked(parts, i, gs_piece_round(piece, size), run, behind))
            return true;
        i = small || piece->shift == GS_LARGE_SHIFT ? run->next : i + 1;
    }
    return false;
}

/* ---- Taking ----------------------------------------------------------------------------- */

/* What of the block is more than `need` stays what it was; `part` is NULL of a free one. */
static void take_part_locked(struct gs_arena *arena, struct gs_block *block,
                             const struct part *part, size_t need)
{
    struct gs_block *rest = NULL;

    if (!part)
        gs_block_unready_locked(arena, block);
    else if (part->in_epoch)
        gs_epoch_remove_locked(&arena->epochs, part->list, block);
    else
        gs_block_list_remove(part->list, block);
    if (block->entry.size > need)
        rest = gs_block_cut_locked(arena, block, need);
    if (!rest)
        return;
    if (!part)
        gs_arena_give_locked(arena, rest);
    else if (part->in_epoch)
        gs_epoch_add_locked(&arena->epochs, part->list, rest);
    else
        gs_block_list_push(part->list, rest);
}

static struct gs_block *take_locked(struct gs_arena *arena, const struct parts *parts,
                                    const struct run *run, size_t size)
{
    const struct part *part = &parts->part[run->part];
    struct gs_block *first = run->first, *block = first, *next;
    struct gs_piece *piece = first->piece;
    size_t left = gs_piece_round(piece, size);

    for (; left > 0; block = next) {
        take_part_locked(arena, block, is_free(block) ? NULL : part++, left);
        left -= block->entry.size < left ? block->entry.size : left;
        next = block->above;
        if (block != first)
            gs_block_merge_locked(arena, first, block);
    }
    gs_block_live_locked(arena, first, size);
    return first;
}

/* Epochs are behind all of the context's work: only where nothing else will do. */
struct gs_block *gs_arena_take_run_locked(struct gs_arena *arena, size_t size,
                                          struct gs_behind *ret)
{
    struct gs_block *block = NULL;
    struct parts parts;
    struct run run;

    gs_latch_assert_held(&arena->lock);
    gs_arena_settle_locked(arena);
    for (int epochs = 0; epochs < 2 && !block; epochs++) {
        if (!collect_locked(arena, epochs, &parts))
            continue;
        if (find_locked(arena, &parts, size, &run, ret))
            block = take_locked(arena, &parts, &run, size);
        free(parts.part);
    }
    if (!block)
        ret->count = 0;
    return block;
}
