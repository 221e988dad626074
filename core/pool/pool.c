/* A pool begins and ends (core/pool/pool.h). */
#include "core/pool/pool.h"

#include <stdlib.h>
#include <string.h>

/* All but the lock. How long calls took is counted without it, by late ones too. */
static void pool_clear(struct gs_pool *pool)
{
    char *first = (char *)pool + sizeof pool->lock, *took = (char *)pool->counts.took;
    char *rest = took + sizeof pool->counts.took;

    memset(first, 0, (size_t)(took - first));
    for (unsigned i = 0; i < GS_TOOK; i++)
        __atomic_store_n(&pool->counts.took[i], 0, __ATOMIC_RELAXED);
    memset(rest, 0, (size_t)((char *)(pool + 1) - rest));
}

void gs_pool_init(struct gs_pool *pool, struct gs_pool_shared *shared,
                  const struct gs_device *device, CUcontext context,
                  const struct gs_fence_pool *events)
{
    /* The lock of a recycled record stays: a late reader may be waiting for it, and so it is held.
     */
    gs_latch_take(&pool->lock);
    pool_clear(pool);
    pool->shared = shared;
    pool->device = device;
    pool->context = context;
    pool->first = !events;
    gs_fence_pool_init(shared->fences, &pool->events, context, events);
    gs_bins_init(&pool->free.bins[GS_BIN_SMALL_PART], GS_UNIT_SHIFT);
    gs_bins_init(&pool->free.bins[GS_BIN_SMALL_WHOLE], GS_UNIT_SHIFT);
    gs_bins_init(&pool->free.bins[GS_BIN_LARGE_PART], GS_LARGE_SHIFT);
    gs_bins_init(&pool->free.bins[GS_BIN_LARGE_WHOLE], GS_LARGE_SHIFT);
    pool->epochs.limit = gs_epoch_limit(pool);
    pool->kept.spare_percent = GS_SPARE_PERCENT_MIN;
    pool->made_ns = pool->kept.seen_ns = gs_now_ns();
    gs_latch_release(&pool->lock);
}

struct gs_pool *gs_pool_new(void)
{
    struct gs_pool *pool = aligned_alloc(_Alignof(struct gs_pool), sizeof *pool);

    if (!pool)
        return NULL;
    memset(pool, 0, sizeof *pool);
    gs_latch_init(&pool->lock, GS_RANK_POOL);
    return pool;
}

void gs_pool_fini(struct gs_pool *pool)
{
    struct gs_epoch *epoch;
    struct gs_stream_list *stream;
    struct gs_block *block;

    /* An allocation that the context's end overtook may look at it now. */
    gs_latch_take(&pool->lock);
    while ((epoch = pool->epochs.spare)) {
        pool->epochs.spare = epoch->next;
        free(epoch);
    }
    for (unsigned i = 0; i <= GS_STREAM_BUCKETS; i++) {
        struct gs_stream_list **list =
            i < GS_STREAM_BUCKETS ? &pool->order.streams[i] : &pool->order.spare;
        while ((stream = *list)) {
            *list = stream->next;
            free(stream);
        }
    }
    while ((block = pool->free.spare)) {
        pool->free.spare = block->above;
        free(block);
    }
    gs_fence_pool_forget(&pool->events);
    gs_latch_release(&pool->lock);
}
