/*
 * The way of freed blocks back to ready (core/pool.h): epochs behind fences, stream lists, limbo.
 *
 * An epoch is closed when enough was freed into it or when an allocation misses. Its fence covers
 * all work submitted to the context before, and so all work submitted before each of its blocks'
 * frees. While a capture is open no fence can be recorded: the open epoch just grows.
 */
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EPOCH_BLOCKS 128       /* an epoch closes at this many blocks, whatever their size */
#define STREAM_LIST_BLOCKS 256 /* what one stream may hold back before it goes to the epoch */
#define STREAM_COMPARED_MAX 16 /* blocks looked at for one that fits */

uint64_t gs_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void gs_block_list_push(struct gs_block_list *list, struct gs_block *block)
{
    block->entry.next = NULL;
    block->entry.prev = list->last ? &list->last->entry : NULL;
    if (list->last)
        list->last->entry.next = &block->entry;
    else
        list->first = block;
    list->last = block;
    list->bytes += block->entry.size;
    list->count++;
}

void gs_block_list_remove(struct gs_block_list *list, struct gs_block *block)
{
    struct gs_bin_entry *prev = block->entry.prev, *next = block->entry.next;

    if (prev)
        prev->next = next;
    else
        list->first = (struct gs_block *)next;
    if (next)
        next->prev = prev;
    else
        list->last = (struct gs_block *)prev;
    list->bytes -= block->entry.size;
    list->count--;
}

static struct gs_block *list_pop(struct gs_block_list *list)
{
    struct gs_block *block = list->first;

    if (block)
        gs_block_list_remove(list, block);
    return block;
}

/* Empties `from` into `to`. */
static void list_join(struct gs_block_list *to, struct gs_block_list *from)
{
    if (!from->first)
        return;
    from->first->entry.prev = to->last ? &to->last->entry : NULL;
    if (to->last)
        to->last->entry.next = &from->first->entry;
    else
        to->first = from->first;
    to->last = from->last;
    to->bytes += from->bytes;
    to->count += from->count;
    memset(from, 0, sizeof *from);
}

/* Whether no registration in use, no lease and no grace covers a block. */
static bool let_go(struct gs_pool *pool, struct gs_block *block, uint64_t now, bool no_grace)
{
    if (gs_regcache_in_use(pool->shared->regcache, block->base, block->entry.size))
        return false;
    if (block->offer &&
        !gs_share_withdraw(pool->shared->share, block->offer, block->freed_ns, now, no_grace))
        return false;
    block->offer = NULL;
    return true;
}

/* No GPU work can touch the block any more; a peer or a network card may. */
static void passed(struct gs_pool *pool, struct gs_block *block, uint64_t now)
{
    if (!let_go(pool, block, now, false)) {
        block->state = GS_BLOCK_LIMBO;
        gs_block_list_push(&pool->limbo, block);
        return;
    }
    gs_pool_give(pool, block);
}

static void all_passed(struct gs_pool *pool, struct gs_block_list *list)
{
    uint64_t now = list->first ? gs_now_ns() : 0;
    struct gs_block *block;

    while ((block = list_pop(list)))
        passed(pool, block, now);
}

/* The epoch record is taken before the fence is recorded, so that nothing fails afterwards. */
static void close_epoch(struct gs_pool *pool)
{
    struct gs_epoch *epoch = pool->spare_epochs;

    if (!pool->retiring.first || pool->dead)
        return;
    if (epoch)
        pool->spare_epochs = epoch->next;
    else if (!(epoch = calloc(1, sizeof *epoch)))
        return;
    epoch->next = NULL;
    if (gs_fence_record(pool->shared->fences, &pool->events, &epoch->fence) != GS_OK) {
        epoch->next = pool->spare_epochs;
        pool->spare_epochs = epoch;
        return;
    }
    list_join(&epoch->blocks, &pool->retiring);
    if (pool->newest)
        pool->newest->next = epoch;
    else
        pool->oldest = epoch;
    pool->newest = epoch;
}

static struct gs_epoch *pop_oldest(struct gs_pool *pool)
{
    struct gs_epoch *epoch = pool->oldest;

    pool->oldest = epoch->next;
    if (!pool->oldest)
        pool->newest = NULL;
    return epoch;
}

static void epoch_passed(struct gs_pool *pool, struct gs_epoch *epoch)
{
    all_passed(pool, &epoch->blocks);
    epoch->next = pool->spare_epochs;
    pool->spare_epochs = epoch;
}

void gs_pool_unlive(struct gs_pool *pool, struct gs_block *block)
{
    block->state = GS_BLOCK_RETIRING;
    pool->live -= block->entry.size;
    if (block->offer)
        block->freed_ns = gs_now_ns();
}

void gs_pool_retire(struct gs_pool *pool, struct gs_block *block)
{
    gs_pool_unlive(pool, block);
    gs_block_list_push(&pool->retiring, block);
    if (pool->retiring.count >= EPOCH_BLOCKS || pool->retiring.bytes >= pool->shared->epoch_bytes)
        gs_pool_collect(pool);
}

static struct gs_stream_list *stream_list(struct gs_pool *pool, uint64_t key, bool make)
{
    struct gs_stream_list *stream = pool->streams, *empty = NULL;

    for (; stream; stream = stream->next) {
        if (stream->key == key)
            return stream;
        if (!stream->blocks.first)
            empty = stream;
    }
    if (!make)
        return NULL;
    if (!empty) {
        empty = calloc(1, sizeof *empty);
        if (!empty)
            return NULL;
        empty->next = pool->streams;
        pool->streams = empty;
    }
    empty->key = key;
    return empty;
}

void gs_pool_retire_stream(struct gs_pool *pool, struct gs_block *block, uint64_t stream_key)
{
    struct gs_stream_list *stream = stream_list(pool, stream_key, true);

    /* A block that others may hold goes the long way: its next owner is not only a stream. */
    if (!stream || block->offer ||
        gs_regcache_in_use(pool->shared->regcache, block->base, block->entry.size)) {
        gs_pool_retire(pool, block);
        return;
    }
    gs_pool_unlive(pool, block);
    gs_block_list_push(&stream->blocks, block);
    if (stream->blocks.count > STREAM_LIST_BLOCKS ||
        stream->blocks.bytes > pool->shared->epoch_bytes) {
        list_join(&pool->retiring, &stream->blocks);
        gs_pool_collect(pool);
    }
}

struct gs_block *gs_pool_take_stream(struct gs_pool *pool, size_t size, uint64_t stream_key)
{
    struct gs_stream_list *stream = stream_list(pool, stream_key, false);
    struct gs_bin_entry *entry;
    struct gs_block *block;
    bool small;
    size_t need = gs_pool_round(pool, size, &small);

    if (!stream || !stream->blocks.last)
        return NULL;
    entry = &stream->blocks.last->entry;
    for (unsigned i = 0; entry && i < STREAM_COMPARED_MAX; i++, entry = entry->prev) {
        block = (struct gs_block *)entry;
        if (entry->size < need || entry->size > need + need / 8 ||
            (block->chunk->small != NULL) != small)
            continue;
        gs_block_list_remove(&stream->blocks, block);
        block->state = GS_BLOCK_LIVE;
        block->size = size;
        block->id = __atomic_add_fetch(&pool->shared->next_id, 1, __ATOMIC_RELAXED);
        pool->live += entry->size;
        return block;
    }
    return NULL;
}

void gs_pool_flush_streams(struct gs_pool *pool, uint64_t stream_key)
{
    for (struct gs_stream_list *stream = pool->streams; stream; stream = stream->next)
        if (stream_key == 0 || stream->key == stream_key)
            list_join(&pool->retiring, &stream->blocks);
}

void gs_pool_collect(struct gs_pool *pool)
{
    close_epoch(pool);
    while (pool->oldest && gs_fence_query(pool->shared->fences, &pool->events,
                                          &pool->oldest->fence) == GS_OK)
        epoch_passed(pool, pop_oldest(pool));
}

void gs_pool_collect_limbo(struct gs_pool *pool, bool no_grace)
{
    struct gs_block *block = pool->limbo.first, *next;
    uint64_t now = block ? gs_now_ns() : 0;

    for (; block; block = next) {
        next = (struct gs_block *)block->entry.next;
        if (!let_go(pool, block, now, no_grace))
            continue;
        gs_block_list_remove(&pool->limbo, block);
        gs_pool_give(pool, block);
    }
}

bool gs_pool_wait_oldest(struct gs_pool *pool)
{
    struct gs_epoch *epoch;
    bool is_passed;

    gs_pool_flush_streams(pool, 0);
    close_epoch(pool);
    if (!pool->oldest)
        return false;
    epoch = pop_oldest(pool); /* ours alone while the lock is let go */
    gs_lock_release(&pool->lock);
    gs_fence_wait(pool->shared->fences, &epoch->fence);
    gs_lock_take(&pool->lock);
    is_passed = gs_fence_query(pool->shared->fences, &pool->events, &epoch->fence) == GS_OK;
    if (is_passed) {
        epoch_passed(pool, epoch);
        return true;
    }
    epoch->next = pool->oldest;
    pool->oldest = epoch;
    if (!pool->newest)
        pool->newest = epoch;
    return false;
}

void gs_pool_pass(struct gs_pool *pool, struct gs_block *block)
{
    passed(pool, block, gs_now_ns());
}

void gs_pool_context_over(struct gs_pool *pool)
{
    gs_pool_flush_streams(pool, 0);
    all_passed(pool, &pool->retiring);
    while (pool->oldest) {
        pool->oldest->fence.event = NULL; /* it went with the context */
        epoch_passed(pool, pop_oldest(pool));
    }
}
