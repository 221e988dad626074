/*
 * Blocks apart (core/pool/arena.h): freed in the order of another context's stream, so that no
 * event of their own context is behind that. They are behind one of the other context first, and
 * retire here after it. Nobody waits for them but for a bounded time.
 */
#include "core/pool/arena.h"

#include <stdlib.h>

bool gs_arena_retire_elsewhere_locked(struct gs_arena *arena, struct gs_block *block,
                                      const struct gs_fence *fence)
{
    struct gs_apart **link = &arena->apart, *apart;

    gs_latch_assert_held(&arena->lock);
    while ((apart = *link) &&
           (apart->fence.line != fence->line || apart->fence.number != fence->number))
        link = &apart->next;
    if (!apart) {
        apart = *link = calloc(1, sizeof *apart);
        if (!apart)
            return false;
        apart->fence = *fence;
    }
    gs_arena_unlive_locked(arena, block);
    gs_block_list_push(&apart->blocks, block);
    arena->shared->activity(arena->shared->activity_arg);
    return true;
}

/* The apart is in no list any more. */
static void end_locked(struct gs_arena *arena, struct gs_apart *apart)
{
    struct gs_block *block;

    while ((block = apart->blocks.first)) {
        gs_block_list_remove(&apart->blocks, block);
        if (arena->dead)
            gs_arena_pass_locked(arena, block);
        else
            gs_arena_retire_more_locked(arena, block);
    }
    free(apart);
}

/* Of one context no more than the first that has not passed is asked for. */
bool gs_arena_poll_apart_locked(struct gs_arena *arena)
{
    struct gs_apart **link = &arena->apart, *apart;
    const struct gs_fence_line *stuck = NULL;
    bool any = false;

    gs_latch_assert_held(&arena->lock);
    while ((apart = *link)) {
        if ((stuck && apart->fence.line == stuck) || gs_fence_query(NULL, &apart->fence) != GS_OK) {
            stuck = apart->fence.line;
            link = &apart->next;
            continue;
        }
        *link = apart->next;
        end_locked(arena, apart);
        any = true;
    }
    return any;
}

/* A host function of the program may stop the other context that waits for this very thread: so
 * there is an end to it. */
bool gs_arena_wait_apart_locked(struct gs_arena *arena, const struct gs_patience *patience)
{
    const uint64_t began = gs_now_ns();
    struct gs_fence fence;

    gs_latch_assert_held(&arena->lock);
    if (gs_arena_poll_apart_locked(arena))
        return true;
    if (!arena->apart)
        return false;
    fence = arena->apart->fence;
    gs_latch_release(&arena->lock);
    gs_fence_wait(&fence, gs_patience_ends(patience, GS_LATER_WAIT_NS));
    gs_latch_take(&arena->lock);
    GS_ADD(arena->counts.wait_ns, gs_now_ns() - began);
    return gs_arena_poll_apart_locked(arena);
}
