/*
 * The way of freed blocks back to ready (core/pool/pool.h): epochs behind fences, stream lists,
 * limbo.
 *
 * An epoch is closed when enough was freed into it or when an allocation misses. Its fence covers
 * all work submitted to the context before, and so all work submitted before each of its blocks'
 * frees. While a capture is open no fence can be recorded: the open epoch just grows.
 */
#include "core/pool/pool.h"

#include <stdlib.h>
#include <string.h>

#define EPOCH_SHARE 32 /* an epoch closes at this part of what was live lately, */
#define EPOCH_LEAST ((size_t)4 << 20) /* but at no less than this, */
#define EPOCH_LEAST_OTHER ((size_t)32 << 20) /* or in a pool that is not the first; */
#define EPOCH_BLOCKS 128                     /* and with so many blocks */
#define EPOCH_BLOCKS_OTHER 512
#define TOLD_ONCE_IN 64 /* small blocks that are ready at once, until the decay thread is told */
#define EXACT_MIN ((size_t)32 << 20) /* an epoch of so much has its event at once */

void gs_block_list_push(struct gs_block_list *list, struct gs_block *block)
{
    block->entry.next = NULL;
    block->entry.prev = list->last ? &list->last->entry : NULL;
    if (list->last)
        list->last->entry.next = &block->entry;
    else
        list->first = block;
    list->last = block;
    GS_ADD(list->bytes, block->entry.size);
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
    GS_SUB(list->bytes, block->entry.size);
    list->count--;
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
    GS_ADD(to->bytes, from->bytes);
    to->count += from->count;
    memset(from, 0, sizeof *from);
}

/* Another process had the block: it is overwritten before anybody gets it. What has no context any
 * more cannot be; its chunk goes to the driver. */
static bool is_to_wipe(const struct gs_pool *pool, bool shared)
{
    return shared && pool->shared->wipe && !pool->dead;
}

/* Nothing covers the block any more. What was wiped goes back to the driver: whoever kept the chunk
 * by himself would see its next block. */
static void go_on(struct gs_pool *pool, struct gs_block *block, bool shared, bool quick)
{
    if (is_to_wipe(pool, shared)) {
        block->state = GS_BLOCK_RETIRING;
        gs_block_list_push(&pool->guarded.unwiped, block);
    } else if (block->wiped) {
        block->wiped = false;
        gs_pool_give(pool, block);
        gs_pool_spend(pool, block);
    } else if (quick) {
        gs_pool_give_quick(pool, block);
    } else {
        gs_pool_give(pool, block);
    }
}

/* No GPU work can touch the block any more; a peer or a network card may. */
static void passed(struct gs_pool *pool, struct gs_block *block)
{
    bool shared = block->offer != NULL;

    if (!gs_block_may_go(&pool->shared->guard, block)) {
        block->state = GS_BLOCK_LIMBO;
        GS_ADD(pool->guarded.limbo, block->entry.size);
        return;
    }
    go_on(pool, block, shared, true);
}

/* Sizes that share a count cost a wait in vain at times. */
static unsigned *retiring_of(struct gs_pool_epochs *epochs, size_t size)
{
    uint64_t hash = (uint64_t)(size >> GS_LARGE_SHIFT) * UINT64_C(0x9e3779b97f4a7c15);

    return &epochs->sizes[(hash >> 32) % GS_RETIRING_SIZES];
}

bool gs_epochs_have(struct gs_pool_epochs *epochs, size_t size)
{
    return *retiring_of(epochs, size) > 0;
}

/* Whether a block serves another of its size as soon as its epoch has passed. That does not change
 * while it is in one: only live blocks are offered, and only those in no list are wiped. */
static bool serves_next(const struct gs_block *block)
{
    return block->chunk->shift == GS_LARGE_SHIFT && !block->offer && !block->wiped;
}

void gs_epoch_add(struct gs_pool_epochs *epochs, struct gs_block_list *list,
                  struct gs_block *block)
{
    gs_block_list_push(list, block);
    if (serves_next(block))
        ++*retiring_of(epochs, block->entry.size);
}

static void leaves_epoch(struct gs_pool_epochs *epochs, struct gs_block *block)
{
    if (serves_next(block))
        --*retiring_of(epochs, block->entry.size);
    block->stream_id = 0;
}

void gs_epoch_remove(struct gs_pool_epochs *epochs, struct gs_block_list *list,
                     struct gs_block *block)
{
    gs_block_list_remove(list, block);
    leaves_epoch(epochs, block);
}

/* What of a list was in no epoch belongs to a context that is over, where nobody counts any more. */
static void all_passed(struct gs_pool *pool, struct gs_block_list *list)
{
    struct gs_block *block = list->first, *next;

    memset(list, 0, sizeof *list);
    for (; block; block = next) {
        next = (struct gs_block *)block->entry.next;
        leaves_epoch(&pool->epochs, block);
        passed(pool, block);
    }
}

size_t gs_epoch_limit(const struct gs_pool *pool)
{
    size_t limit = pool->kept.live_peak / EPOCH_SHARE;
    size_t least = pool->first ? EPOCH_LEAST : EPOCH_LEAST_OTHER;

    if (limit < least)
        limit = least;
    return limit < pool->shared->epoch_bytes ? limit : pool->shared->epoch_bytes;
}

/* Another pool records the next event, in its own time; where much depends on when, it is recorded
 * now. */
static __attribute__((cold, noinline)) uint64_t wait_for_later(struct gs_pool *pool,
                                                               const struct gs_epoch *epoch)
{
    struct gs_fence fence = epoch->fence;

    if (pool->epochs.open.bytes >= EXACT_MIN)
        gs_fence_query(&pool->events, &fence);
    return gs_fence_is_recorded(&epoch->fence) ? UINT64_MAX : GS_LATER_WAIT_NS;
}

/* `at_free`: nothing was submitted since the last block came into it that native frees would not
 * have waited for. */
static uint64_t wait_for(struct gs_pool *pool, const struct gs_epoch *epoch, bool at_free)
{
    if (!pool->epochs.plain)
        return GS_ORDERED_WAIT_NS;
    if (!at_free)
        return GS_LATER_WAIT_NS;
    return __builtin_expect(gs_fence_is_recorded(&epoch->fence), 1) ? UINT64_MAX
                                                                    : wait_for_later(pool, epoch);
}

/* The epoch record is taken before the fence is recorded, so that nothing fails afterwards. */
void gs_epoch_close(struct gs_pool *pool, bool at_free)
{
    struct gs_epoch *epoch = pool->epochs.spare;

    if (!pool->epochs.open.first || pool->dead || pool->leaving)
        return;
    pool->epochs.limit = gs_epoch_limit(pool);
    if (epoch)
        pool->epochs.spare = epoch->next;
    else if (!(epoch = calloc(1, sizeof *epoch)))
        return;
    epoch->next = NULL;
    if (gs_fence_record(&pool->events, &epoch->fence) != GS_OK) {
        epoch->next = pool->epochs.spare;
        pool->epochs.spare = epoch;
        return;
    }
    GS_COUNT(pool->counts.events);
    epoch->wait_ns = wait_for(pool, epoch, at_free);
    pool->epochs.plain = false;
    list_join(&epoch->blocks, &pool->epochs.open);
    if (pool->epochs.newest)
        pool->epochs.newest->next = epoch;
    else
        pool->epochs.oldest = epoch;
    pool->epochs.newest = epoch;
}

static void oldest_passed(struct gs_pool *pool)
{
    struct gs_epoch *epoch = pool->epochs.oldest;

    pool->epochs.oldest = epoch->next;
    if (!pool->epochs.oldest)
        pool->epochs.newest = NULL;
    all_passed(pool, &epoch->blocks);
    epoch->next = pool->epochs.spare;
    pool->epochs.spare = epoch;
}

/* The pool needs more than it was granted. */
static bool needs_more(struct gs_pool *pool)
{
    struct gs_async_count *count = &pool->shared->async[pool->device->ordinal];

    if (pool->async.granted == 0) {
        __atomic_add_fetch(&count->pools, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&pool->async.granted, 1, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&count->ever, true, __ATOMIC_RELAXED);
    if (__atomic_load_n(&count->pools, __ATOMIC_SEQ_CST) > 1)
        return true;
    __atomic_store_n(&pool->async.granted, pool->async.live + 1, __ATOMIC_RELAXED);
    if (pool->async.live > __atomic_load_n(&count->peak, __ATOMIC_RELAXED))
        __atomic_store_n(&count->peak, pool->async.live, __ATOMIC_RELAXED);
    return false;
}

bool gs_pool_count_async(struct gs_pool *pool, struct gs_block *block)
{
    block->async = true;
    GS_ADD(pool->async.live, block->size);
    return __builtin_expect(pool->async.live >= pool->async.granted, 0) && needs_more(pool);
}

void gs_pool_unlive(struct gs_pool *pool, struct gs_block *block)
{
    if (block->async)
        GS_ADD(pool->async.live, -block->size);
    block->state = GS_BLOCK_RETIRING;
    block->lingers = false;
    GS_COUNT(block->chunk->span.frees);
    GS_SUB(pool->live, block->entry.size);
    if (block->offer)
        pool->shared->guard.freed(pool->shared->guard.arg, block);
}

/* All work that touched the block is in one stream, and so is all that its next owner submits. */
static void pass_at_once(struct gs_pool *pool, struct gs_block *block)
{
    struct gs_chunk *chunk = block->chunk;

    pool->freed = chunk->freed = gs_lone_freed(pool->shared->lone);
    if (chunk->shift == GS_LARGE_SHIFT || pool->counts.at_once % TOLD_ONCE_IN == 0)
        pool->shared->activity(pool->shared->activity_arg);
    GS_COUNT(pool->counts.at_once);
    passed(pool, block);
}

/* What was recorded just now is looked at when it is needed. */
static inline void close_full(struct gs_pool *pool, bool at_free)
{
    const unsigned blocks = pool->first ? EPOCH_BLOCKS : EPOCH_BLOCKS_OTHER;

    if (__builtin_expect(pool->epochs.open.count < blocks &&
                             pool->epochs.open.bytes < pool->epochs.limit, 1))
        return;
    gs_pool_poll(pool);
    gs_epoch_close(pool, at_free);
    pool->shared->activity(pool->shared->activity_arg);
}

/* What cuMemFree freed, or what is waited for as that, comes into the open epoch. */
static inline void becomes_plain(struct gs_pool *pool)
{
    if (pool->epochs.plain)
        return;
    pool->epochs.plain = true;
    gs_lone_retires(pool->shared->lone);
}

void gs_pool_retire(struct gs_pool *pool, struct gs_block *block)
{
    gs_pool_unlive(pool, block);
    if (!block->elsewhere && !pool->leaving && gs_lone_is(pool->shared->lone)) {
        pass_at_once(pool, block);
        return;
    }
    becomes_plain(pool);
    gs_epoch_add(&pool->epochs, &pool->epochs.open, block);
    close_full(pool, true);
}

void gs_pool_retire_in_order(struct gs_pool *pool, struct gs_block *block, uint64_t stream_key)
{
    gs_pool_unlive(pool, block);
    gs_block_of_stream(pool, block, stream_key);
    gs_epoch_add(&pool->epochs, &pool->epochs.open, block);
    close_full(pool, false);
}

void gs_pool_retire_lingering(struct gs_pool *pool, struct gs_block *block, uint64_t stream_key)
{
    gs_pool_unlive(pool, block);
    gs_block_of_stream(pool, block, stream_key);
    block->lingers = true;
    gs_epoch_add(&pool->epochs, &pool->epochs.open, block);
    gs_epoch_close(pool, false);
    pool->shared->activity(pool->shared->activity_arg);
}

/* Where that cannot be now, because a capture is open, say, it is so before the next of them. */
void gs_pool_close(struct gs_pool *pool)
{
    if (!pool->epochs.plain)
        return;
    gs_epoch_close(pool, true);
    if (pool->epochs.plain && pool->epochs.open.first)
        gs_lone_retires(pool->shared->lone);
}

bool gs_pool_usable(struct gs_pool *pool, const struct gs_block *block)
{
    uint64_t id = block->id;

    if (__builtin_expect(block->state == GS_BLOCK_LIVE, 1))
        return true;
    if (block->state != GS_BLOCK_RETIRING || !block->lingers)
        return false;
    gs_pool_collect(pool); /* it may have passed, and be merged into another or gone */
    return block->id == id && block->state == GS_BLOCK_RETIRING && block->lingers;
}

void gs_pool_retire_more(struct gs_pool *pool, struct gs_block *block)
{
    block->state = GS_BLOCK_RETIRING;
    gs_epoch_add(&pool->epochs, &pool->epochs.open, block);
}

bool gs_pool_poll(struct gs_pool *pool)
{
    bool any = __builtin_expect(pool->order.apart != NULL, 0) && gs_pool_poll_apart(pool);

    while (pool->epochs.oldest && !pool->leaving &&
           gs_fence_query(&pool->events, &pool->epochs.oldest->fence) == GS_OK) {
        oldest_passed(pool);
        any = true;
    }
    return any;
}

void gs_pool_collect(struct gs_pool *pool)
{
    gs_epoch_close(pool, false);
    gs_pool_poll(pool);
}

void gs_pool_look(struct gs_pool *pool)
{
    gs_pool_poll(pool);
    if (!pool->epochs.oldest && pool->epochs.open.first)
        gs_pool_collect(pool);
}

static void leave_limbo(struct gs_pool *pool, struct gs_block *block)
{
    bool shared = block->offer != NULL;

    if (!gs_block_may_go(&pool->shared->guard, block))
        return;
    GS_SUB(pool->guarded.limbo, block->entry.size);
    go_on(pool, block, shared, false);
}

/* A block that goes may become part of a neighbour, and the chunk's only one takes it along. */
void gs_pool_unguard(struct gs_pool *pool, struct gs_chunk *chunk, uint64_t base, size_t size)
{
    uint64_t end = chunk->span.base + chunk->span.size;

    end = base + size < end ? base + size : end;
    while (base < end) {
        struct gs_block *block = gs_chunk_find(chunk, base);

        base = block->base + block->entry.size;
        if (block->state == GS_BLOCK_LIMBO)
            leave_limbo(pool, block);
    }
}

/* While a capture is open nothing is overwritten: the thread's own stream may be the one that
 * captures. */
struct gs_block *gs_pool_take_unwiped(struct gs_pool *pool)
{
    struct gs_block *block = pool->guarded.unwiped.first;

    if (pool->leaving || gs_fences_capturing(pool->shared->fences))
        return NULL;
    memset(&pool->guarded.unwiped, 0, sizeof pool->guarded.unwiped);
    return block;
}

void gs_pool_wiped(struct gs_pool *pool, struct gs_block_list *done, struct gs_block_list *failed)
{
    if (pool->dead) { /* meanwhile */
        all_passed(pool, done);
        all_passed(pool, failed);
    }
    if (done->first)
        becomes_plain(pool);
    list_join(&pool->epochs.open, done);
    list_join(&pool->guarded.unwiped, failed);
}

void gs_pool_pass(struct gs_pool *pool, struct gs_block *block)
{
    passed(pool, block);
}

void gs_pool_context_over(struct gs_pool *pool)
{
    gs_pool_flush_streams(pool, 0);
    all_passed(pool, &pool->epochs.open);
    all_passed(pool, &pool->guarded.unwiped);
    while (pool->epochs.oldest) {
        pool->epochs.oldest->fence = (struct gs_fence){0}; /* its event went with the context */
        oldest_passed(pool);
    }
    gs_pool_apart_over(pool);
}
