/*
 * Waiting for the GPU (core/pool/arena.h): for the oldest epoch or for what was free at once, and
 * whether an allocation should rather than let its arena grow.
 */
#include "core/pool/arena.h"

/* What retires is no reason to wait below this. */
#define BEHIND_MIN ((size_t)64 << 20)
#define STALLED_MORE \
    2 /* an arena that grew by this part waits again for a GPU that does not move */

bool gs_arena_touched_locked(struct gs_arena *arena)
{
    bool touched;

    gs_latch_assert_held(&arena->lock);
    touched = gs_fence_query(&arena->events, &arena->freed) != GS_OK;
    return gs_fence_query(&arena->events, &arena->order.freed) != GS_OK || touched;
}

/* When it ends for something that is worth `wait_ns`. */
static uint64_t ends_ns(const struct gs_patience *patience, uint64_t wait_ns)
{
    uint64_t least = patience->most_ns < wait_ns ? patience->most_ns : wait_ns;

    return least < UINT64_MAX - patience->began_ns ? patience->began_ns + least : UINT64_MAX;
}

/* Lets the lock go meanwhile. False: it did not pass in time. */
static bool wait_locked(struct gs_arena *arena, struct gs_fence fence,
                        const struct gs_patience *patience, uint64_t wait_ns)
{
    uint64_t began = gs_now_ns(), deadline_ns = ends_ns(patience, wait_ns);

    GS_COUNT(arena->counts.waits);
    gs_latch_release(&arena->lock);
    gs_fence_wait(&fence, deadline_ns);
    gs_latch_take(&arena->lock);
    GS_ADD(arena->counts.wait_ns, gs_now_ns() - began);
    if (gs_fence_passed(&fence))
        return true;
    if (patience->lightly)
        return false;
    arena->epochs.stalled = fence;
    arena->epochs.stalled_most = arena->reserved + arena->reserved / STALLED_MORE;
    GS_COUNT(arena->counts.late);
    return false;
}

/* While all work goes to one stream, nothing is submitted between a cuMemFree and the event behind
 * it. What was freed in the order of the stream natively nobody would have waited for. */
static bool wait_for_freed_locked(struct gs_arena *arena, const struct gs_patience *patience)
{
    bool known; /* what is before it */

    if (arena->leaving || !gs_arena_touched_locked(arena))
        return false;
    if (gs_fence_passed(&arena->freed))
        return wait_locked(arena, arena->order.freed, patience, GS_LATER_WAIT_NS);
    known = gs_single_is(arena->shared->single) || gs_fence_is_recorded(&arena->freed);
    return wait_locked(arena, arena->freed, patience, known ? UINT64_MAX : GS_LATER_WAIT_NS);
}

/* The work before an epoch's fence is also before those of all epochs after it. */
static uint64_t longest_locked(const struct gs_arena *arena)
{
    uint64_t longest = 0;

    for (const struct gs_epoch *epoch = arena->epochs.oldest; epoch; epoch = epoch->next)
        if (epoch->wait_ns > longest)
            longest = epoch->wait_ns;
    return longest;
}

/* The epoch stays where it is meanwhile: other threads may wait for it as well. */
bool gs_arena_wait_oldest_locked(struct gs_arena *arena, const struct gs_patience *patience)
{
    bool passed;

    gs_latch_assert_held(&arena->lock);
    if (!arena->epochs.oldest)
        gs_epoch_close_locked(arena, false);
    if (!arena->epochs.oldest)
        return wait_for_freed_locked(arena, patience);
    if (arena->leaving)
        return false;
    passed = wait_locked(arena, arena->epochs.oldest->fence, patience, longest_locked(arena));
    return gs_arena_poll_locked(arena) || passed;
}

bool gs_arena_behind_locked(struct gs_arena *arena, size_t size, unsigned times)
{
    const unsigned percent = times * arena->shared->retiring_percent;
    size_t most = arena->live / 100 * percent;

    gs_latch_assert_held(&arena->lock);
    /* A GPU that was waited for in vain (its work may wait for this very thread) is so again only
     * when it has moved, or the arena has grown a good deal. */
    if (percent == 0 || (!gs_fence_passed(&arena->epochs.stalled) &&
                         arena->reserved + size <= arena->epochs.stalled_most))
        return false;
    return gs_arena_behind_bytes_locked(arena) > (most > BEHIND_MIN ? most : BEHIND_MIN);
}
