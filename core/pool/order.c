/*
 * Stream order (core/pool/pool.h): what was freed on a stream is ready for that stream at once.
 * Each stream has a small index of its own in which neighbours freed on it merge; the last block
 * freed stays apart, since the next allocation so often is the same again.
 */
#include "core/pool/pool.h"

#include <stdlib.h>

/* What one stream may hold back before it goes to the epoch: a part of what is live, or this. */
#define HELD_BACK_MIN ((size_t)64 << 20)
#define HELD_BACK_SHARE 4

static struct gs_stream_list **bucket_of(struct gs_pool_order *order, uint64_t key)
{
    return &order->streams[(key * UINT64_C(0x9e3779b97f4a7c15)) >> 58];
}

static struct gs_stream_list *list_find(struct gs_pool_order *order, uint64_t key)
{
    struct gs_stream_list *stream = *bucket_of(order, key);

    while (stream && stream->key != key)
        stream = stream->next;
    return stream;
}

static struct gs_stream_list *list_make(struct gs_pool_order *order, uint64_t key)
{
    struct gs_stream_list **bucket = bucket_of(order, key);
    struct gs_stream_list *stream = order->spare;

    if (stream)
        order->spare = stream->next;
    else if (!(stream = malloc(sizeof *stream)))
        return NULL;
    stream->key = key;
    stream->id = ++order->serial;
    stream->unparted = 0;
    stream->recent = NULL;
    stream->bytes = 0;
    gs_bins_init(&stream->small, GS_UNIT_SHIFT);
    gs_bins_init(&stream->large, GS_LARGE_SHIFT);
    stream->next = *bucket;
    *bucket = stream;
    return stream;
}

static struct gs_bins *bins_of(struct gs_stream_list *stream, const struct gs_block *block)
{
    return block->chunk->shift == GS_LARGE_SHIFT ? &stream->large : &stream->small;
}

static bool joins(const struct gs_block *neighbour, const struct gs_stream_list *stream)
{
    return neighbour && neighbour->state == GS_BLOCK_ORDERED && neighbour->stream == stream;
}

/* A block of the stream in no bin goes to its bins, merged with its neighbours there. */
static void bin(struct gs_pool *pool, struct gs_stream_list *stream, struct gs_block *block)
{
    struct gs_block *below = block->below, *above = block->above;

    if (joins(above, stream)) {
        gs_bins_remove(bins_of(stream, above), &above->entry);
        gs_block_merge(pool, block, above);
    }
    if (joins(below, stream)) {
        gs_bins_remove(bins_of(stream, below), &below->entry);
        gs_block_merge(pool, below, block);
        block = below;
    }
    block->state = GS_BLOCK_ORDERED;
    gs_bins_insert(bins_of(stream, block), &block->entry);
}

static void flush_block(struct gs_pool *pool, struct gs_stream_list *stream,
                        struct gs_block *block)
{
    block->stream_id = stream->id;
    gs_pool_retire_more(pool, block);
}

static void flush_bins(struct gs_pool *pool, struct gs_stream_list *stream, struct gs_bins *bins)
{
    struct gs_bin_entry *entry;

    while ((entry = gs_bins_largest(bins))) {
        gs_bins_remove(bins, entry);
        flush_block(pool, stream, (struct gs_block *)entry);
    }
}

static void flush(struct gs_pool *pool, struct gs_stream_list *stream)
{
    if (stream->recent)
        flush_block(pool, stream, stream->recent);
    stream->recent = NULL;
    flush_bins(pool, stream, &stream->small);
    flush_bins(pool, stream, &stream->large);
    GS_SUB(pool->order.bytes, stream->bytes);
    stream->bytes = 0;
}

void gs_pool_retire_stream(struct gs_pool *pool, struct gs_block *block, uint64_t stream_key)
{
    struct gs_stream_list *stream = list_find(&pool->order, stream_key);
    size_t most = pool->live / HELD_BACK_SHARE;

    if (!stream)
        stream = list_make(&pool->order, stream_key);
    /* What others hold or may hold goes the long way: its next owner is not only a stream. */
    if (!stream || gs_block_is_guarded(&pool->shared->guard, block)) {
        gs_pool_retire_in_order(pool, block, stream_key);
        return;
    }
    gs_pool_unlive(pool, block);
    if (stream->recent)
        bin(pool, stream, stream->recent);
    block->state = GS_BLOCK_RECENT;
    block->stream = stream;
    stream->recent = block;
    stream->bytes += block->entry.size;
    GS_ADD(pool->order.bytes, block->entry.size);
    if (__builtin_expect(stream->bytes > HELD_BACK_MIN && stream->bytes > most, 0)) {
        flush(pool, stream);
        gs_pool_collect(pool);
    }
}

void gs_block_of_stream(struct gs_pool *pool, struct gs_block *block, uint64_t stream_key)
{
    struct gs_stream_list *stream = list_find(&pool->order, stream_key);

    if (!stream && !(stream = list_make(&pool->order, stream_key)))
        return;
    block->stream = stream;
    block->stream_id = stream->id;
}

/* The part of the entry that is needed; the rest stays the stream's. */
static struct gs_block *take_entry(struct gs_pool *pool, struct gs_stream_list *stream,
                                   struct gs_bin_entry *entry, size_t need)
{
    struct gs_block *block = (struct gs_block *)entry, *rest;

    gs_bins_remove(bins_of(stream, block), entry);
    if (block->chunk->shift == GS_LARGE_SHIFT)
        gs_block_lies(pool, block->chunk, need);
    rest = gs_block_cut(pool, block, need);
    if (rest)
        gs_bins_insert(bins_of(stream, rest), &rest->entry);
    return block;
}

/* In the stream's bins. A whole large chunk is not cut for less than most of it, as elsewhere. */
static struct gs_block *take_binned(struct gs_pool *pool, struct gs_stream_list *stream,
                                    size_t need, bool small)
{
    size_t limit = SIZE_MAX;
    struct gs_bin_entry *entry;

    if (!small) {
        size_t slack = gs_pool_strandable(pool);

        limit = need + (slack > need / 8 ? slack : need / 8);
    }
    entry = gs_bins_find(small ? &stream->small : &stream->large, need, limit);
    if (!entry || (!small && !gs_block_may_lie(pool, (struct gs_block *)entry, need)))
        return NULL;
    return take_entry(pool, stream, entry, need);
}

struct gs_block *gs_pool_take_stream(struct gs_pool *pool, size_t size, uint64_t stream_key)
{
    struct gs_stream_list *stream = list_find(&pool->order, stream_key);
    struct gs_block *block;
    bool small;
    size_t need;

    if (!stream || !stream->bytes)
        return NULL;
    need = gs_pool_round(pool, size, &small);
    block = stream->recent;
    if (block && block->entry.size == need) {
        stream->recent = NULL;
    } else {
        if (block)
            bin(pool, stream, block);
        stream->recent = NULL;
        block = take_binned(pool, stream, need, small);
        if (!block)
            return NULL;
    }
    stream->bytes -= block->entry.size;
    GS_SUB(pool->order.bytes, block->entry.size);
    gs_block_live(pool, block, size);
    return block;
}

/* The key may never come again, or mean another stream. */
static void forget(struct gs_pool *pool, struct gs_stream_list **link)
{
    struct gs_stream_list *stream = *link;

    flush(pool, stream);
    stream->id = 0;
    *link = stream->next;
    stream->next = pool->order.spare;
    pool->order.spare = stream;
}

void gs_pool_flush_stream(struct gs_pool *pool, uint64_t stream_key)
{
    struct gs_stream_list **link = bucket_of(&pool->order, stream_key);

    while (*link && (*link)->key != stream_key)
        link = &(*link)->next;
    if (*link)
        forget(pool, link);
}

void gs_pool_forget_streams(struct gs_pool *pool)
{
    for (unsigned i = 0; i < GS_STREAM_BUCKETS; i++)
        while (pool->order.streams[i])
            forget(pool, &pool->order.streams[i]);
}

void gs_pool_flush_streams(struct gs_pool *pool, uint64_t keep)
{
    if (!pool->order.bytes)
        return;
    for (unsigned i = 0; i < GS_STREAM_BUCKETS; i++)
        for (struct gs_stream_list *stream = pool->order.streams[i]; stream; stream = stream->next)
            if (stream->key != keep || !keep)
                flush(pool, stream);
}
