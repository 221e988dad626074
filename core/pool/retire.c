/*
 * The way of freed blocks back to free (core/pool/arena.h): epochs behind fences, guards. While a
 * capture is open no fence can be recorded: the open epoch just grows. Before one begins it is
 * closed, and so comes back meanwhile.
 */
#include "core/pool/arena.h"

#include <stdlib.h>
#include <string.h>

#define EPOCH_SHARE        32 /* an epoch closes at this part of what was live lately, */
#define EPOCH_LEAST        ((size_t)4 << 20)  /* but at no less than this, */
#define EPOCH_LEAST_OTHER  ((size_t)32 << 20) /* or in an arena that is not the first; */
#define EPOCH_BLOCKS       128                /* and with so many blocks */
#define EPOCH_BLOCKS_OTHER 512
#define EPOCH_FINER        8 /* times, while allocations may soon wait for the oldest, */
#define EPOCH_FINER_FROM   ((size_t)32 << 20) /* with so much behind at least */
#define TOLD_ONCE_IN       64 /* small blocks free at once, until the trimmer is told */
#define EXACT_MIN          ((size_t)32 << 20) /* an epoch of so much has its event at once */

void gs_block_list_push(struct gs_block_list *list, struct gs_block *block)
{
    block->entry.next = NULL;
    if (list->last)
        list->last->entry.next = &block->entry;
    else
        list->first = block;
    list->last = block;
    GS_ADD(list->bytes, block->entry.size);
    list->count++;
}

/* All of it, which is empty then. */
static struct gs_block_list take_list(struct gs_block_list *list)
{
    const struct gs_block_list taken = *list;

    memset(list, 0, sizeof *list);
    return taken;
}

/* No GPU work can touch the block any more; another process or a network card may. Else it is free.
 * What another process had goes back to the driver, which clears it: who kept its piece by itself
 * would see the next block, and that what it wrote. */
static void passed_locked(struct gs_arena *arena, struct gs_block *block)
{
    bool shared = block->export != NULL;
    struct gs_piece *piece = block->piece;

    gs_latch_assert_held(&arena->lock);
    if (!gs_block_may_go_locked(&arena->shared->guard, block)) {
        block->state = GS_BLOCK_HELD;
        GS_ADD(arena->held, block->entry.size);
    } else if (shared && arena->shared->isolates && !arena->dead) {
        gs_arena_give_locked(arena, block);
        gs_arena_spend_locked(arena, piece);
    } else {
        gs_arena_give_quick_locked(arena, block);
    }
}

static void all_passed_locked(struct gs_arena *arena, struct gs_block_list *list)
{
    struct gs_block *block = take_list(list).first, *next;

    for (; block; block = next) {
        next = (struct gs_block *)block->entry.next;
        passed_locked(arena, block);
    }
}

/* Another arena records the next event, in its own time; where much depends on when, it is recorded
 * now. */
static __attribute__((cold, noinline)) uint64_t wait_for_later_locked(struct gs_arena *arena,
                                                                      const struct gs_epoch *epoch)
{
    struct gs_fence fence = epoch->fence;

    if (arena->epochs.open.bytes >= EXACT_MIN)
        gs_fence_query(&arena->events, &fence);
    return gs_fence_is_recorded(&epoch->fence) ? UINT64_MAX : GS_LATER_WAIT_NS;
}

/* `at_free`: nothing was submitted since the last block came into it that native frees would not
 * have waited for. */
static uint64_t wait_for_locked(struct gs_arena *arena, const struct gs_epoch *epoch, bool at_free)
{
    if (!arena->epochs.plain || !at_free)
        return GS_LATER_WAIT_NS;
    return __builtin_expect(gs_fence_is_recorded(&epoch->fence), 1)
               ? UINT64_MAX
               : wait_for_later_locked(arena, epoch);
}

/* Who waits for the oldest epoch waits for all work that was submitted until it was closed. Where
 * the GPU is half as far behind as makes allocations wait, epochs are smaller, and so is each wait:
 * of a server's bursts 99.9 % are done in 0.64 ms, with epochs of one size in 0.78 to 0.89
 * (tests/bench/against.py --software --mix server, twice each). */
void gs_epoch_choose_limits_locked(struct gs_arena *arena)
{
    const unsigned percent = arena->shared->retiring_percent;
    const size_t least = arena->first ? EPOCH_LEAST : EPOCH_LEAST_OTHER;
    size_t limit = arena->kept.live_peak / EPOCH_SHARE;
    size_t behind = gs_arena_behind_bytes_locked(arena);

    gs_latch_assert_held(&arena->lock);
    if (limit < least)
        limit = least;
    arena->epochs.limit = limit < arena->shared->epoch_bytes ? limit : arena->shared->epoch_bytes;
    arena->epochs.blocks = arena->first ? EPOCH_BLOCKS : EPOCH_BLOCKS_OTHER;
    if (!arena->first || percent == 0 || behind < EPOCH_FINER_FROM ||
        behind <= arena->live / 200 * percent)
        return;
    arena->epochs.blocks /= EPOCH_FINER;
    if (arena->epochs.limit > EPOCH_FINER * EPOCH_LEAST)
        arena->epochs.limit /= EPOCH_FINER;
    else if (arena->epochs.limit > EPOCH_LEAST)
        arena->epochs.limit = EPOCH_LEAST;
}

/* The epoch record is taken before the fence is recorded, so that nothing fails afterwards. */
void gs_epoch_close_locked(struct gs_arena *arena, bool at_free)
{
    struct gs_epoch *epoch = arena->epochs.spare;

    gs_latch_assert_held(&arena->lock);
    if (!arena->epochs.open.first || arena->dead || arena->leaving)
        return;
    gs_epoch_choose_limits_locked(arena);
    if (epoch)
        arena->epochs.spare = epoch->next;
    else if (!(epoch = calloc(1, sizeof *epoch)))
        return;
    epoch->next = NULL;
    if (gs_fence_record(&arena->events, &epoch->fence) != GS_OK) {
        epoch->next = arena->epochs.spare;
        arena->epochs.spare = epoch;
        return;
    }
    GS_COUNT(arena->counts.events);
    epoch->wait_ns = wait_for_locked(arena, epoch, at_free);
    arena->epochs.plain = false;
    epoch->blocks = take_list(&arena->epochs.open);
    if (arena->epochs.newest)
        arena->epochs.newest->next = epoch;
    else
        arena->epochs.oldest = epoch;
    arena->epochs.newest = epoch;
}

static void oldest_passed_locked(struct gs_arena *arena)
{
    struct gs_epoch *epoch = arena->epochs.oldest;

    arena->epochs.oldest = epoch->next;
    if (!arena->epochs.oldest)
        arena->epochs.newest = NULL;
    all_passed_locked(arena, &epoch->blocks);
    epoch->next = arena->epochs.spare;
    arena->epochs.spare = epoch;
}

void gs_arena_count_async_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    block->async = true;
    GS_ADD(arena->async.live, block->size);
    if (__builtin_expect(arena->async.live <= arena->async.high, 1))
        return;
    __atomic_store_n(&arena->async.high, arena->async.live, __ATOMIC_RELAXED);
    __atomic_store_n(&arena->shared->async[arena->device->ordinal].ever, true, __ATOMIC_RELAXED);
}

void gs_arena_unlive_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    if (block->async)
        GS_ADD(arena->async.live, -block->size);
    block->state = GS_BLOCK_RETIRED;
    GS_SUB(arena->live, block->entry.size);
    if (block->export)
        arena->shared->guard.freed(arena->shared->guard.arg, block);
}

/* All work that touched the block is in one stream, and so is all that its next owner submits.
 * `freed`: the arena's fence of its kind. */
static void pass_at_once_locked(struct gs_arena *arena, struct gs_block *block,
                                struct gs_fence *freed)
{
    struct gs_piece *piece = block->piece;
    bool told = gs_block_is_large(block);

    *freed = piece->freed = gs_single_freed(arena->shared->single);
    if (told)
        while ((piece = gs_block_next_piece(block, piece)))
            piece->freed = *freed;
    else
        told = arena->counts.at_once % TOLD_ONCE_IN == 0;
    if (told)
        arena->shared->activity(arena->shared->activity_arg);
    GS_COUNT(arena->counts.at_once);
    passed_locked(arena, block);
}

/* What was recorded just now is looked at when it is needed. */
static inline void close_full_locked(struct gs_arena *arena, bool at_free)
{
    if (__builtin_expect(arena->epochs.open.count < arena->epochs.blocks &&
                             arena->epochs.open.bytes < arena->epochs.limit,
                         1))
        return;
    gs_arena_poll_locked(arena);
    gs_epoch_close_locked(arena, at_free);
    arena->shared->activity(arena->shared->activity_arg);
}

static inline bool passes_at_once_locked(const struct gs_arena *arena, const struct gs_block *block)
{
    return !block->multi_stream && !arena->leaving && gs_single_is(arena->shared->single);
}

void gs_arena_retire_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    gs_arena_unlive_locked(arena, block);
    if (passes_at_once_locked(arena, block)) {
        pass_at_once_locked(arena, block, &arena->freed);
        return;
    }
    if (!arena->epochs.plain) {
        arena->epochs.plain = true;
        gs_single_retires(arena->shared->single);
    }
    gs_block_list_push(&arena->epochs.open, block);
    close_full_locked(arena, true);
}

void gs_arena_retire_in_order_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    gs_arena_unlive_locked(arena, block);
    gs_block_list_push(&arena->epochs.open, block);
    close_full_locked(arena, false);
}

/* Where that cannot be now, because a capture is open, say, it is so before the next of them. */
void gs_arena_close_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    if (!arena->epochs.plain)
        return;
    gs_epoch_close_locked(arena, true);
    if (arena->epochs.plain && arena->epochs.open.first)
        gs_single_retires(arena->shared->single);
}

void gs_arena_retire_held_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    block->state = GS_BLOCK_RETIRED;
    if (passes_at_once_locked(arena, block))
        pass_at_once_locked(arena, block, &arena->order.freed);
    else
        gs_block_list_push(&arena->epochs.open, block);
}

bool gs_arena_poll_locked(struct gs_arena *arena)
{
    bool any = false;

    gs_latch_assert_held(&arena->lock);
    while (arena->epochs.oldest && !arena->leaving &&
           gs_fence_query(&arena->events, &arena->epochs.oldest->fence) == GS_OK) {
        oldest_passed_locked(arena);
        any = true;
    }
    return any;
}

void gs_arena_collect_locked(struct gs_arena *arena)
{
    gs_epoch_close_locked(arena, false);
    gs_arena_poll_locked(arena);
}

void gs_arena_before_capture_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    gs_arena_flush_streams_locked(arena, 0, 0);
    gs_arena_collect_locked(arena);
    if (arena->dead || arena->leaving)
        return;
    gs_arena_touched_locked(arena);
    if (arena->epochs.newest) {
        struct gs_fence fence = arena->epochs.newest->fence;

        gs_fence_query(&arena->events, &fence); /* recorded, if no other arena has */
    }
}

void gs_arena_look_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    gs_arena_poll_locked(arena);
    if (!arena->epochs.oldest && arena->epochs.open.first)
        gs_arena_collect_locked(arena);
}

/* A block that goes may become part of a neighbour, or take its piece along. */
uint64_t gs_arena_unguard_locked(struct gs_arena *arena, struct gs_piece *piece, uint64_t address)
{
    struct gs_block *block = gs_piece_find_locked(piece, address);
    const uint64_t end = gs_block_end(block);

    gs_latch_assert_held(&arena->lock);
    if (block->state == GS_BLOCK_HELD) {
        GS_SUB(arena->held, block->entry.size);
        passed_locked(arena, block); /* or it is held on */
    }
    return end;
}

bool gs_arena_take_open_locked(struct gs_arena *arena, struct gs_block_list *ret)
{
    gs_latch_assert_held(&arena->lock);
    if ((!arena->epochs.plain && arena->shared->fences->driver->ctx_record_event) ||
        !arena->epochs.open.first || arena->dead || arena->leaving)
        return false;
    *ret = take_list(&arena->epochs.open);
    return true;
}

void gs_arena_waited_locked(struct gs_arena *arena, struct gs_block_list *freed, bool over)
{
    struct gs_block *block, *next;

    gs_latch_assert_held(&arena->lock);
    if (over || arena->dead)
        all_passed_locked(arena, freed);
    for (block = freed->first; block; block = next) {
        next = (struct gs_block *)block->entry.next;
        gs_block_list_push(&arena->epochs.open, block);
    }
}

void gs_arena_context_over_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    gs_arena_flush_streams_locked(arena, 0, 0);
    all_passed_locked(arena, &arena->epochs.open);
    while (arena->epochs.oldest)
        oldest_passed_locked(arena);
}
