/*
 * Blocks apart (core/pool/pool.h): freed in an order that is not their context's.
 *
 * An epoch is behind all work of its context. That is too much where memory is out: what was freed
 * in the order of one stream is free when that stream gets there, whatever stops another one. Then
 * it is parted from its epoch, behind an event in its stream. And it is not enough for what was
 * freed in the order of another context's stream: that is behind an event of the other context
 * first, and retires here after that.
 *
 * Nobody waits for blocks apart but for a bounded time (gs_pool_wait_apart), and an allocation in
 * the order of a stream not at all: its stream is put behind them (gs_pool_take_in_order).
 */
#include "core/pool/pool.h"

#include <stdlib.h>

#define APART_STEP_NS UINT64_C(2000000) /* between two looks at all of them */

static bool is_same(const struct gs_fence *one, const struct gs_fence *other)
{
    return one->line == other->line && one->number == other->number;
}

static struct gs_apart *apart_new(struct gs_pool *pool, const struct gs_fence *fence,
                                  const struct gs_fence *epoch)
{
    struct gs_apart *apart = calloc(1, sizeof *apart), **end = &pool->order.apart;

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
static struct gs_apart *first_of(struct gs_pool *pool, struct gs_stream_list *stream,
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
        gs_fence_of_stream(pool->shared->fences, &line, pool->context, handle, &fence) != GS_OK)
        return NULL;
    apart = apart_new(pool, &fence, epoch);
    if (!apart) {
        gs_fence_pool_destroy(&line);
        return NULL;
    }
    apart->line = line;
    return apart;
}

/* Where a block goes that was freed in the order of the stream and was in the epoch; NULL: it stays
 * there. */
static struct gs_apart *apart_of(struct gs_pool *pool, struct gs_stream_list *stream,
                                 const struct gs_fence *epoch, uint64_t time)
{
    const struct gs_fence none = {0};
    struct gs_apart *like = NULL, *apart = pool->order.apart;

    for (; apart; apart = apart->next) {
        if (apart->stream != stream->id || apart->parted != time)
            continue;
        if (is_same(&apart->epoch, epoch ? epoch : &none))
            return apart;
        like = apart;
    }
    apart = like ? apart_new(pool, &like->fence, epoch) : first_of(pool, stream, epoch, time);
    if (!apart)
        return NULL;
    if (like)
        gs_fence_pool_init(pool->shared->fences, &apart->line, pool->context, &like->line);
    apart->stream = stream->id;
    apart->parted = time;
    return apart;
}

static void part_list(struct gs_pool *pool, struct gs_block_list *list,
                      const struct gs_fence *epoch, uint64_t time)
{
    struct gs_block *block = list->first, *next;

    for (; block; block = next) {
        struct gs_apart *apart;

        next = (struct gs_block *)block->entry.next;
        if (!gs_block_has_stream(block) || !(apart = apart_of(pool, block->stream, epoch, time)))
            continue;
        gs_epoch_remove(&pool->epochs, list, block);
        gs_block_list_push(&apart->blocks, block);
    }
}

/* The pool's lock is held all the time: a stream that ends takes it first (gs_core_stream_gone), so
 * each is there while an event is recorded in it. */
void gs_pool_part_streams(struct gs_pool *pool)
{
    uint64_t time;

    if (pool->dead || pool->leaving)
        return;
    gs_pool_flush_streams(pool, 0);
    if (gs_fences_capturing(pool->shared->fences))
        return;
    time = ++pool->order.serial;
    part_list(pool, &pool->epochs.open, NULL, time);
    for (struct gs_epoch *epoch = pool->epochs.oldest; epoch; epoch = epoch->next)
        part_list(pool, &epoch->blocks, &epoch->fence, time);
}

/* ---- Of other contexts ------------------------------------------------------------------ */

bool gs_pool_retire_elsewhere(struct gs_pool *pool, struct gs_block *block,
                              const struct gs_fence *fence)
{
    struct gs_apart *apart = pool->order.apart;

    while (apart && (apart->line.line || !is_same(&apart->fence, fence)))
        apart = apart->next;
    if (!apart && !(apart = apart_new(pool, fence, NULL)))
        return false;
    gs_pool_unlive(pool, block);
    block->lingers = !block->async;
    gs_block_list_push(&apart->blocks, block);
    pool->shared->activity(pool->shared->activity_arg);
    return true;
}

/* ---- Coming back ------------------------------------------------------------------------ */

/* The apart is in no list any more. What came from another context's stream is behind that alone,
 * and retires here as what is freed now. */
static void end(struct gs_pool *pool, struct gs_apart *apart)
{
    const bool elsewhere = !apart->line.line;
    struct gs_block *block;

    gs_fence_pool_destroy(&apart->line);
    while ((block = apart->blocks.first)) {
        gs_block_list_remove(&apart->blocks, block);
        block->lingers = false;
        if (elsewhere && !pool->dead)
            gs_pool_retire_more(pool, block);
        else
            gs_pool_pass(pool, block);
    }
    free(apart);
}

/* Of one line no more than the first that has not passed is asked for. */
static bool has_passed(struct gs_pool *pool, struct gs_apart *apart, struct gs_fence *stuck)
{
    if (apart->epoch.line && gs_fence_query(&pool->events, &apart->epoch) == GS_OK)
        return true;
    if (stuck->line == apart->fence.line && apart->fence.number >= stuck->number)
        return false;
    if (gs_fence_query(NULL, &apart->fence) == GS_OK)
        return true;
    *stuck = apart->fence;
    return false;
}

bool gs_pool_poll_apart(struct gs_pool *pool)
{
    struct gs_apart **link = &pool->order.apart, *apart;
    struct gs_fence stuck = {0};
    bool any = false;

    while ((apart = *link)) {
        if ((pool->leaving && !pool->dead) || !has_passed(pool, apart, &stuck)) {
            link = &apart->next;
            continue;
        }
        *link = apart->next;
        end(pool, apart);
        any = true;
    }
    return any;
}

/* Ends when a stream, or another context, gets there; at the deadline, a second after the wait
 * began, otherwise: a host function of the program may stop it that waits for this very thread.
 * Natively such an allocation fails at once (measured on an H200). */
bool gs_pool_wait_apart(struct gs_pool *pool, const struct gs_patience *patience)
{
    const uint64_t deadline = gs_patience_ends(patience, GS_ORDERED_WAIT_NS);
    const uint64_t life = pool->made_ns, began = gs_now_ns();
    bool any = gs_pool_poll_apart(pool);
    gs_status status = (gs_status)CUDA_ERROR_NOT_READY;

    while (!any && pool->order.apart && !pool->leaving && pool->made_ns == life &&
           status == (gs_status)CUDA_ERROR_NOT_READY && gs_now_ns() < deadline) {
        struct gs_fence fence = pool->order.apart->fence;
        uint64_t step = gs_now_ns() + APART_STEP_NS;

        gs_latch_release(&pool->lock);
        status = gs_fence_wait(&fence, step < deadline ? step : deadline);
        gs_latch_take(&pool->lock);
        any = gs_pool_poll_apart(pool);
    }
    GS_ADD(pool->counts.wait_ns, gs_now_ns() - began);
    return any;
}

void gs_pool_apart_leaving(struct gs_pool *pool, bool leaving)
{
    for (struct gs_apart *apart = pool->order.apart; apart; apart = apart->next)
        gs_fence_pool_leaving(&apart->line, leaving);
}

/* Work of another context may still touch what is behind that. */
void gs_pool_apart_over(struct gs_pool *pool)
{
    struct gs_apart **link = &pool->order.apart, *apart;

    while ((apart = *link)) {
        if (!apart->line.line) {
            link = &apart->next;
            continue;
        }
        *link = apart->next;
        gs_fence_pool_forget(&apart->line);
        apart->line.line = NULL;
        end(pool, apart);
    }
    gs_pool_poll_apart(pool);
}

/* ---- Taking in order -------------------------------------------------------------------- */

bool gs_block_suits_next(const struct gs_pool *pool, struct gs_block *block)
{
    return !block->lingers && !block->wiped && !gs_block_is_guarded(&pool->shared->guard, block);
}

static bool suits(const struct gs_pool *pool, struct gs_block *block, size_t size)
{
    bool small;

    gs_pool_round(pool, size, &small);
    return block->entry.size >= gs_chunk_round(block->chunk, size) &&
           (small || block->chunk->shift == GS_LARGE_SHIFT) && gs_block_suits_next(pool, block);
}

static struct gs_block *smallest(const struct gs_pool *pool, const struct gs_block_list *list,
                                 size_t size)
{
    struct gs_block *found = NULL, *block = list->first;

    for (; block; block = (struct gs_block *)block->entry.next)
        if ((!found || block->entry.size < found->entry.size) && suits(pool, block, size))
            found = block;
    return found;
}

/* A block in no list becomes live; what is left of it, or NULL, retires as it did. */
static struct gs_block *cut(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    size_t need = gs_chunk_round(block->chunk, size);
    struct gs_block *rest;

    if (block->chunk->shift == GS_LARGE_SHIFT)
        gs_block_lies(pool, block->chunk, need);
    rest = gs_block_cut(pool, block, need);
    gs_block_live(pool, block, size);
    return rest;
}

static struct gs_block *take_one(struct gs_pool *pool, size_t size, struct gs_fence *ret)
{
    struct gs_block *block, *rest;

    for (struct gs_apart *apart = pool->order.apart; apart; apart = apart->next) {
        if (!apart->line.line || !(block = smallest(pool, &apart->blocks, size)))
            continue;
        *ret = apart->fence;
        gs_block_list_remove(&apart->blocks, block);
        if ((rest = cut(pool, block, size)))
            gs_block_list_push(&apart->blocks, rest);
        return block;
    }
    for (struct gs_epoch *epoch = pool->epochs.oldest; epoch; epoch = epoch->next) {
        if (!(block = smallest(pool, &epoch->blocks, size)))
            continue;
        *ret = epoch->fence;
        gs_epoch_remove(&pool->epochs, &epoch->blocks, block);
        if ((rest = cut(pool, block, size)))
            gs_epoch_add(&pool->epochs, &epoch->blocks, rest);
        return block;
    }
    return NULL;
}

struct gs_block *gs_pool_take_in_order(struct gs_pool *pool, size_t size, struct gs_behind *ret)
{
    struct gs_block *block = take_one(pool, size, &ret->fence[0]);

    ret->count = block != NULL;
    return block ? block : gs_pool_take_run(pool, size, ret);
}
