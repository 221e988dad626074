/*
 * Blocks apart (core/pool/arena.h): freed in an order that is not their context's.
 *
 * An epoch is behind all work of its context. That is too much where memory is out: what was freed
 * in the order of one stream is free when that stream gets there, whatever stops another one. Then
 * it is parted from its epoch, behind an event in its stream. And it is not enough for what was
 * freed in the order of another context's stream: that is behind an event of the other context
 * first, and retires here after that.
 *
 * Nobody waits for blocks apart but for a bounded time (gs_arena_wait_apart_locked), and an
 * allocation in the order of a stream not at all: its stream is put behind them
 * (gs_arena_take_in_order_locked).
 */
#include "core/pool/arena.h"

#include <stdlib.h>

#define APART_STEP_NS UINT64_C(2000000) /* between two looks at all of them */

static bool is_same(const struct gs_fence *one, const struct gs_fence *other)
{
    return one->line == other->line && one->number == other->number;
}

static struct gs_apart *apart_new_locked(struct gs_arena *arena, const struct gs_fence *fence,
                                         const struct gs_fence *epoch)
{
    struct gs_apart *apart = calloc(1, sizeof *apart), **end = &arena->order.apart;

    if (!apart)
        return NULL;
    apart->fence = *fence;
    if (epoch)
        apart->epoch = *epoch;
    while (*end)
        end = &(*end)->next;
    *end = apart;
    return apart;
}

/* ---- Parting ---------------------------------------------------------------------------- */

/* One event serves all that is parted of a stream at a time. */
static struct gs_apart *first_of_locked(struct gs_arena *arena, struct gs_stream_list *stream,
                                        const struct gs_fence *epoch, uint64_t time)
{
    struct gs_fence_pool line;
    struct gs_apart *apart;
    struct gs_fence fence;
    CUstream handle;

    if (stream->unparted == time)
        return NULL;
    stream->unparted = time;
    if (!gs_stream_of_key(stream->key, &handle) ||
        gs_fence_of_stream(arena->shared->fences, &line, arena->context, handle, &fence) != GS_OK)
        return NULL;
    apart = apart_new_locked(arena, &fence, epoch);
    if (!apart) {
        gs_fence_pool_destroy(&line);
        return NULL;
    }
    apart->line = line;
    return apart;
}

/* Where a block goes that was freed in the order of the stream and was in the epoch; NULL: it stays
 * there. */
static struct gs_apart *apart_of_locked(struct gs_arena *arena, struct gs_stream_list *stream,
                                        const struct gs_fence *epoch, uint64_t time)
{
    const struct gs_fence none = {0};
    struct gs_apart *like = NULL, *apart = arena->order.apart;

    for (; apart; apart = apart->next) {
        if (apart->stream != stream->id || apart->parted != time)
            continue;
        if (is_same(&apart->epoch, epoch ? epoch : &none))
            return apart;
        like = apart;
    }
    apart = like ? apart_new_locked(arena, &like->fence, epoch)
                 : first_of_locked(arena, stream, epoch, time);
    if (!apart)
        return NULL;
    if (like)
        gs_fence_pool_init(arena->shared->fences, &apart->line, arena->context, &like->line);
    apart->stream = stream->id;
    apart->parted = time;
    return apart;
}

static void part_list_locked(struct gs_arena *arena, struct gs_block_list *list,
                             const struct gs_fence *epoch, uint64_t time)
{
    struct gs_block *block = list->first, *next;

    for (; block; block = next) {
        struct gs_apart *apart;

        next = (struct gs_block *)block->entry.next;
        if (!gs_block_has_stream_locked(block) ||
            !(apart = apart_of_locked(arena, block->stream, epoch, time)))
            continue;
        gs_epoch_remove_locked(&arena->epochs, list, block);
        gs_block_list_push(&apart->blocks, block);
    }
}

/* The arena's lock is held all the time: a stream that ends takes it first (gs_core_stream_gone),
 * so each is there while an event is recorded in it. */
void gs_arena_part_streams_locked(struct gs_arena *arena)
{
    uint64_t time;

    gs_latch_assert_held(&arena->lock);
    /* While a capture is open no event can be had, and what a stream freed stays its own. */
    if (arena->dead || arena->leaving || gs_fences_capturing(arena->shared->fences))
        return;
    gs_arena_flush_streams_locked(arena, 0);
    time = ++arena->order.serial;
    part_list_locked(arena, &arena->epochs.open, NULL, time);
    for (struct gs_epoch *epoch = arena->epochs.oldest; epoch; epoch = epoch->next)
        part_list_locked(arena, &epoch->blocks, &epoch->fence, time);
}

/* ---- Of other contexts ------------------------------------------------------------------ */

bool gs_arena_retire_elsewhere_locked(struct gs_arena *arena, struct gs_block *block,
                                      const struct gs_fence *fence)
{
    struct gs_apart *apart = arena->order.apart;

    gs_latch_assert_held(&arena->lock);
    while (apart && (apart->line.line || !is_same(&apart->fence, fence)))
        apart = apart->next;
    if (!apart && !(apart = apart_new_locked(arena, fence, NULL)))
        return false;
    gs_arena_unlive_locked(arena, block);
    block->freed_async = !block->async;
    gs_block_list_push(&apart->blocks, block);
    arena->shared->activity(arena->shared->activity_arg);
    return true;
}

/* ---- Coming back ------------------------------------------------------------------------ */

/* The apart is in no list any more. What came from another context's stream is behind that alone,
 * and retires here as what is freed now. */
static void end_locked(struct gs_arena *arena, struct gs_apart *apart)
{
    const bool multi_stream = !apart->line.line;
    struct gs_block *block;

    gs_fence_pool_destroy(&apart->line);
    while ((block = apart->blocks.first)) {
        gs_block_list_remove(&apart->blocks, block);
        block->freed_async = false;
        if (multi_stream && !arena->dead)
            gs_arena_retire_more_locked(arena, block);
        else
            gs_arena_pass_locked(arena, block);
    }
    free(apart);
}

/* Of one line no more than the first that has not passed is asked for. */
static bool has_passed_locked(struct gs_arena *arena, struct gs_apart *apart,
                              struct gs_fence *stuck)
{
    if (apart->epoch.line && gs_fence_query(&arena->events, &apart->epoch) == GS_OK)
        return true;
    if (stuck->line == apart->fence.line && apart->fence.number >= stuck->number)
        return false;
    if (gs_fence_query(NULL, &apart->fence) == GS_OK)
        return true;
    *stuck = apart->fence;
    return false;
}

bool gs_arena_poll_apart_locked(struct gs_arena *arena)
{
    struct gs_apart **link = &arena->order.apart, *apart;
    struct gs_fence stuck = {0};
    bool any = false;

    gs_latch_assert_held(&arena->lock);
    while ((apart = *link)) {
        if ((arena->leaving && !arena->dead) || !has_passed_locked(arena, apart, &stuck)) {
            link = &apart->next;
            continue;
        }
        *link = apart->next;
        end_locked(arena, apart);
        any = true;
    }
    return any;
}

/* Ends when a stream, or another context, gets there; at the deadline, a second after the wait
 * began, otherwise: a host function of the program may stop it that waits for this very thread.
 * Natively such an allocation fails at once (measured on an H200). */
bool gs_arena_wait_apart_locked(struct gs_arena *arena, const struct gs_patience *patience)
{
    const uint64_t deadline = gs_patience_ends(patience, GS_ORDERED_WAIT_NS);
    const uint64_t life = arena->made_ns, began = gs_now_ns();
    bool any = gs_arena_poll_apart_locked(arena);
    gs_status status = (gs_status)CUDA_ERROR_NOT_READY;

    gs_latch_assert_held(&arena->lock);
    while (!any && arena->order.apart && !arena->leaving && arena->made_ns == life &&
           status == (gs_status)CUDA_ERROR_NOT_READY && gs_now_ns() < deadline) {
        struct gs_fence fence = arena->order.apart->fence;
        uint64_t step = gs_now_ns() + APART_STEP_NS;

        gs_latch_release(&arena->lock);
        status = gs_fence_wait(&fence, step < deadline ? step : deadline);
        gs_latch_take(&arena->lock);
        any = gs_arena_poll_apart_locked(arena);
    }
    GS_ADD(arena->counts.wait_ns, gs_now_ns() - began);
    return any;
}

void gs_arena_apart_leaving_locked(struct gs_arena *arena, bool leaving)
{
    gs_latch_assert_held(&arena->lock);
    for (struct gs_apart *apart = arena->order.apart; apart; apart = apart->next)
        gs_fence_pool_leaving(&apart->line, leaving);
}

/* Work of another context may still touch what is behind that. */
void gs_arena_apart_over_locked(struct gs_arena *arena)
{
    struct gs_apart **link = &arena->order.apart, *apart;

    gs_latch_assert_held(&arena->lock);
    while ((apart = *link)) {
        if (!apart->line.line) {
            link = &apart->next;
            continue;
        }
        *link = apart->next;
        gs_fence_pool_forget(&apart->line);
        apart->line.line = NULL;
        end_locked(arena, apart);
    }
    gs_arena_poll_apart_locked(arena);
}

/* ---- Taking in order -------------------------------------------------------------------- */

/* Whether a retired block can be the next one's who comes behind its free. */
static bool suits_next_locked(const struct gs_arena *arena, struct gs_block *block)
{
    return !block->freed_async && !block->wiped &&
           !gs_block_is_guarded_locked(&arena->shared->guard, block);
}

static bool suits_locked(const struct gs_arena *arena, struct gs_block *block, size_t size)
{
    bool small;

    gs_arena_round(arena, size, &small);
    return block->entry.size >= gs_piece_round(block->piece, size) &&
           (small || gs_block_is_large(block)) &&
           suits_next_locked(arena, block);
}

static struct gs_block *smallest_locked(const struct gs_arena *arena,
                                        const struct gs_block_list *list, size_t size)
{
    struct gs_block *found = NULL, *block = list->first;

    for (; block; block = (struct gs_block *)block->entry.next)
        if ((!found || block->entry.size < found->entry.size) && suits_locked(arena, block, size))
            found = block;
    return found;
}

/* A block in no list becomes live; what is left of it, or NULL, retires as it did. */
static struct gs_block *cut_locked(struct gs_arena *arena, struct gs_block *block, size_t size)
{
    size_t need = gs_piece_round(block->piece, size);
    struct gs_block *rest;

    rest = gs_block_cut_locked(arena, block, need);
    gs_block_live_locked(arena, block, size);
    return rest;
}

struct gs_block *gs_arena_take_in_order_locked(struct gs_arena *arena, size_t size,
                                               struct gs_fence *ret)
{
    struct gs_block *block, *rest;

    gs_latch_assert_held(&arena->lock);
    for (struct gs_apart *apart = arena->order.apart; apart; apart = apart->next) {
        if (!apart->line.line || !(block = smallest_locked(arena, &apart->blocks, size)))
            continue;
        *ret = apart->fence;
        gs_block_list_remove(&apart->blocks, block);
        if ((rest = cut_locked(arena, block, size)))
            gs_block_list_push(&apart->blocks, rest);
        return block;
    }
    for (struct gs_epoch *epoch = arena->epochs.oldest; epoch; epoch = epoch->next) {
        if (!(block = smallest_locked(arena, &epoch->blocks, size)))
            continue;
        *ret = epoch->fence;
        gs_epoch_remove_locked(&arena->epochs, &epoch->blocks, block);
        if ((rest = cut_locked(arena, block, size)))
            gs_epoch_add_locked(&arena->epochs, &epoch->blocks, rest);
        return block;
    }
    return NULL;
}
