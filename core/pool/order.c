/*
 * Stream order (core/pool/arena.h): what was freed on a stream is free for that stream at once.
 * Each stream has a small index of its own in which neighbours freed on it merge; the last block
 * freed stays apart, since the next allocation so often is the same again. It costs no event.
 */
#include "core/pool/arena.h"

#include "core/base/list.h"

#include <stdlib.h>

/* What one stream may hold back: this, and while others have work a part of what is live. */
#define HELD_BACK_MIN   ((size_t)64 << 20)
#define HELD_BACK_SHARE 4
#define POLLED_ONCE_IN  8 /* frees beyond that while the GPU is behind */

static struct gs_stream_list **bucket_of_locked(struct gs_arena *arena, uint64_t key)
{
    return &arena->order.streams[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 58];
}

static struct gs_stream_list *list_find_locked(struct gs_arena *arena, uint64_t key)
{
    struct gs_stream_list *stream;

    LL_SEARCH_SCALAR(*bucket_of_locked(arena, key), stream, key, key);
    return stream;
}

static struct gs_stream_list *list_make_locked(struct gs_arena *arena, uint64_t key)
{
    struct gs_stream_list *stream = calloc(1, sizeof *stream);

    if (!stream)
        return NULL;
    stream->key = key;
    gs_bins_init(&stream->bins[false], GS_LARGE_SHIFT);
    gs_bins_init(&stream->bins[true], GS_UNIT_SHIFT);
    LL_PREPEND(*bucket_of_locked(arena, key), stream);
    return stream;
}

static void flush_bins_locked(struct gs_arena *arena, struct gs_bins *bins)
{
    struct gs_bin_entry *entry;

    while ((entry = gs_bins_largest(bins))) {
        gs_block_unbin_locked((struct gs_block *)entry);
        gs_arena_retire_held_locked(arena, (struct gs_block *)entry);
    }
}

/* The last one that was freed goes to the bins. */
static void bin_last_locked(struct gs_arena *arena, struct gs_stream_list *stream)
{
    struct gs_block *block = stream->last_freed;

    stream->last_freed = NULL;
    if (block)
        gs_block_bin_locked(arena, block, &stream->bins[!gs_block_is_large(block)]);
}

static void flush_locked(struct gs_arena *arena, struct gs_stream_list *stream)
{
    bin_last_locked(arena, stream);
    flush_bins_locked(arena, &stream->bins[true]);
    flush_bins_locked(arena, &stream->bins[false]);
    GS_SUB(arena->order.bytes, stream->bytes);
    stream->bytes = 0;
}

/* While all work is in one stream, what that freed is free for all at once, and merges with what
 * is. Else it goes to the epoch: while the GPU is behind that is of use to nobody, and a stream
 * that is alone is better off with it. */
static __attribute__((noinline)) void holds_much_locked(struct gs_arena *arena,
                                                        struct gs_stream_list *stream)
{
    if (!gs_single_is(arena->shared->single) && stream->bytes <= arena->live / HELD_BACK_SHARE)
        return;
    if (stream->bytes == arena->order.bytes && arena->epochs.oldest) {
        if (arena->epochs.polls++ % POLLED_ONCE_IN == 0)
            gs_arena_poll_locked(arena);
        if (arena->epochs.oldest)
            return;
    }
    flush_locked(arena, stream);
    gs_arena_collect_locked(arena);
}

void gs_arena_retire_stream_locked(struct gs_arena *arena, struct gs_block *block,
                                   uint64_t stream_key)
{
    struct gs_stream_list *stream = list_find_locked(arena, stream_key);

    gs_latch_assert_held(&arena->lock);
    if (!stream)
        stream = list_make_locked(arena, stream_key);
    /* What others hold or may hold goes the long way: its next owner is not only a stream. So does
     * what another stream has worked on: merged, nothing says that of it. */
    if (!stream || block->multi_stream || block->export ||
        !gs_block_may_go_locked(&arena->shared->guard, block)) {
        gs_arena_retire_in_order_locked(arena, block);
        return;
    }
    gs_arena_unlive_locked(arena, block);
    bin_last_locked(arena, stream);
    block->state = GS_BLOCK_LAST_FREED;
    stream->last_freed = block;
    stream->bytes += block->entry.size;
    GS_ADD(arena->order.bytes, block->entry.size);
    if (__builtin_expect(stream->bytes > HELD_BACK_MIN, 0))
        holds_much_locked(arena, stream);
}

/* In the stream's bins: best fit, unless what is free for all fits better. Cutting what the stream
 * has instead takes half as much again of the GPU (tests/bench/latency mixed --async). */
static struct gs_block *take_binned_locked(struct gs_arena *arena, struct gs_stream_list *stream,
                                           size_t need, bool small)
{
    struct gs_bin_entry *entry = gs_arena_find_locked(arena, &stream->bins[small], need);

    if (!entry || (entry->size > need && gs_bins_find(&gs_arena_region_locked(arena, small)->free,
                                                      need, entry->size - 1)))
        return NULL;
    return gs_block_take_out_locked(arena, entry, need);
}

struct gs_block *gs_arena_take_stream_locked(struct gs_arena *arena, size_t size,
                                             uint64_t stream_key)
{
    struct gs_stream_list *stream = list_find_locked(arena, stream_key);
    struct gs_block *block;
    bool small;
    size_t need;

    gs_latch_assert_held(&arena->lock);
    if (!stream || !stream->bytes)
        return NULL;
    need = gs_arena_round(arena, size, &small);
    block = stream->last_freed;
    if (block && block->entry.size == need) {
        stream->last_freed = NULL;
    } else {
        bin_last_locked(arena, stream);
        block = take_binned_locked(arena, stream, need, small);
        if (!block)
            return NULL;
    }
    stream->bytes -= block->entry.size;
    GS_SUB(arena->order.bytes, block->entry.size);
    gs_block_live_locked(arena, block, size);
    return block;
}

/* Their keys may never come again, or mean other streams. */
void gs_arena_flush_streams_locked(struct gs_arena *arena, uint64_t only, uint64_t keep)
{
    struct gs_stream_list *stream, *next;

    gs_latch_assert_held(&arena->lock);
    for (unsigned i = 0; i < GS_STREAM_BUCKETS; i++)
        LL_FOREACH_SAFE(arena->order.streams[i], stream, next) {
            if ((only && stream->key != only) || stream->key == keep)
                continue;
            flush_locked(arena, stream);
            LL_DELETE(arena->order.streams[i], stream);
            free(stream);
        }
}
