/*
 * Waiting for the GPU (core/pool/pool.h): for the oldest epoch or for what was ready at once, and
 * whether an allocation should rather than let its pool grow.
 */
#include "core/pool/pool.h"

/* What retires, or what a pool has beyond what was live, is no reason to wait below this. */
#define BEHIND_MIN ((size_t)64 << 20)
#define STALLED_MORE 2 /* a pool that grew by this part waits again for a GPU that does not move */

bool gs_pool_touched(struct gs_pool *pool)
{
    return gs_fence_query(&pool->events, &pool->freed) != GS_OK;
}

/* Bytes of the chunks that are ready as a whole and that work may still touch; also the fence that
 * the first of them is behind. */
static size_t touched_chunks(const struct gs_pool *pool, struct gs_fence *ret_first)
{
    size_t bytes = 0;

    for (const struct gs_chunk *chunk = pool->chunks; chunk; chunk = chunk->next) {
        const struct gs_block *block = chunk->lowest;

        if ((block->state != GS_BLOCK_READY && block->state != GS_BLOCK_QUICK) ||
            block->entry.size != chunk->span.size || gs_fence_passed(&chunk->freed))
            continue;
        if (bytes == 0 || chunk->freed.number < ret_first->number)
            *ret_first = chunk->freed;
        bytes += chunk->span.size;
    }
    return bytes;
}

static void gave_up(struct gs_pool *pool, const struct gs_fence *fence)
{
    pool->epochs.stalled = *fence;
    pool->epochs.stalled_most = pool->reserved + pool->reserved / STALLED_MORE;
    GS_COUNT(pool->counts.late);
}

/* For the first chunk that can be given back then, or for all there is. While all work goes to one
 * stream, nothing is submitted between a free and the event behind it. */
static bool wait_for_freed(struct gs_pool *pool, const struct gs_patience *patience)
{
    struct gs_fence fence = pool->freed;
    uint64_t began = gs_now_ns(), deadline_ns;
    bool known; /* what is before it */

    if (pool->leaving || !gs_pool_touched(pool))
        return false;
    touched_chunks(pool, &fence);
    known = gs_lone_is(pool->shared->lone) || gs_fence_is_recorded(&fence);
    deadline_ns = gs_patience_ends(patience, known ? UINT64_MAX : GS_LATER_WAIT_NS);
    GS_COUNT(pool->counts.waits);
    gs_latch_release(&pool->lock);
    gs_fence_wait(&fence, deadline_ns);
    gs_latch_take(&pool->lock);
    GS_ADD(pool->counts.wait_ns, gs_now_ns() - began);
    if (gs_fence_passed(&fence))
        return true;
    gave_up(pool, &fence);
    return false;
}

/* The work before an epoch's fence is also before those of all epochs after it. */
static uint64_t longest(const struct gs_pool *pool)
{
    uint64_t longest = 0;

    for (const struct gs_epoch *epoch = pool->epochs.oldest; epoch; epoch = epoch->next)
        if (epoch->wait_ns > longest)
            longest = epoch->wait_ns;
    return longest;
}

/* The epoch stays where it is: other threads may wait for it as well. */
bool gs_pool_wait_oldest(struct gs_pool *pool, const struct gs_patience *patience)
{
    struct gs_epoch *epoch;
    struct gs_fence fence;
    uint64_t began, deadline_ns;

    if (!pool->epochs.oldest)
        gs_epoch_close(pool, false);
    if (!pool->epochs.oldest)
        return wait_for_freed(pool, patience);
    if (pool->leaving)
        return false;
    epoch = pool->epochs.oldest;
    fence = epoch->fence;
    GS_COUNT(pool->counts.waits);
    deadline_ns = gs_patience_ends(patience, longest(pool));
    gs_latch_release(&pool->lock);
    began = gs_now_ns();
    gs_fence_wait(&fence, deadline_ns);
    gs_latch_take(&pool->lock);
    GS_ADD(pool->counts.wait_ns, gs_now_ns() - began);
    if (gs_pool_poll(pool) || pool->epochs.oldest != epoch || epoch->fence.line != fence.line ||
        epoch->fence.number != fence.number)
        return true; /* another thread may have found that it passed; or the context is over */
    gave_up(pool, &fence);
    return false;
}

/* A GPU that was waited for in vain is so again only when it has moved, or the pool has grown a good
 * deal. */
static bool may_move(const struct gs_pool *pool, size_t size)
{
    return gs_fence_passed(&pool->epochs.stalled) ||
           pool->reserved + size > pool->epochs.stalled_most;
}

static bool exceeds(size_t bytes, size_t basis, size_t most)
{
    return bytes > basis + (most > BEHIND_MIN ? most : BEHIND_MIN);
}

/* Whether the pool holds too much because the GPU is still at chunks that should go back. Where it
 * has passed the last free, as for good where work goes to several streams, none is looked at. */
static bool keeps_touched(const struct gs_pool *pool, size_t size)
{
    size_t most = pool->live / 400 * pool->shared->retiring_percent;
    struct gs_fence first;

    if (gs_fence_passed(&pool->freed) || !exceeds(gs_pool_excess(pool, size), 0, most))
        return false;
    return exceeds(touched_chunks(pool, &first), 0, most);
}

bool gs_pool_behind(struct gs_pool *pool, size_t size)
{
    const unsigned percent = pool->shared->retiring_percent;
    size_t behind = gs_pool_behind_bytes(pool);
    bool small;
    size_t need = gs_pool_round(pool, size, &small);

    if (percent == 0 || !may_move(pool, size))
        return false;
    if (exceeds(behind, 0, pool->live / 100 * percent) || keeps_touched(pool, size))
        return true;
    return !small && gs_epochs_have(&pool->epochs, need) &&
           exceeds(pool->reserved + need, pool->kept.live_peak,
                   pool->kept.live_peak / 200 * percent);
}
