/*
 * Memory that no block lies in any more goes back to the driver (core/process/reclaim.h), and what
 * other processes had is overwritten before it is used again.
 */
#include "core/process/reclaim.h"

#include <string.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/record.h"

/* How deep this thread is in unmap_chunk. Listeners and pinners that it calls may come back
 * here with an allocation or a question, which are not to wait for it. */
static _Thread_local unsigned releasing_here;

static _Thread_local bool goes_after;

void gs_releasing_goes_after(bool after)
{
    goes_after = after;
}

bool gs_releasing_here(void)
{
    return releasing_here > 0;
}

static size_t unmap_chunk(struct gs_core *core, struct gs_chunk *chunk)
{
    void (*unmapping)(uint64_t, size_t) = __atomic_load_n(&core->programs.unmapping, __ATOMIC_ACQUIRE);
    struct gs_trace_mark mark;
    size_t bytes = 0;

    releasing_here++;
    if (unmapping)
        unmapping(chunk->span.base, chunk->span.size);
    /* What could not be unpinned keeps its memory: it is lost, but nobody else's. */
    if (gs_regcache_drain(core->regcache, chunk->span.base, chunk->span.size)) {
        gs_share_chunk_gone(core->share, chunk->id);
        mark = gs_trace_begin();
        gs_device_unmap(&core->driver, chunk->handle, chunk->span.base, chunk->span.size,
                        goes_after ? &core->releases.turn : NULL);
        gs_limit_give(core, chunk->device, chunk->span.size);
        bytes = chunk->span.size;
        if (gs_tracing())
            gs_record_gone(core, &mark, chunk->device, chunk->span.base, bytes);
        __atomic_store_n(&core->shared.released_ns, gs_now_ns(), __ATOMIC_SEQ_CST);
    }
    if (chunk->releasing)
        __atomic_sub_fetch(&core->shared.releasing, 1, __ATOMIC_SEQ_CST);
    chunk->releasing = false;
    gs_chunk_record_free(chunk);
    releasing_here--;
    return bytes;
}

size_t gs_chunks_unmap(struct gs_core *core, struct gs_chunk *chunks)
{
    size_t bytes = 0;

    while (chunks) {
        struct gs_chunk *next = chunks->next;

        bytes += unmap_chunk(core, chunks);
        chunks = next;
    }
    return bytes;
}

/* One block, without the lock. It is in no list meanwhile. */
static bool overwrite(const struct gs_driver *driver, const struct gs_block *block)
{
    return driver->memset_d8_async && driver->memset_d8_async(block->base, 0, block->entry.size,
                                                              CU_STREAM_PER_THREAD) == CUDA_SUCCESS;
}

void gs_arena_wipe(struct gs_core *core, struct gs_arena *arena)
{
    const struct gs_driver *driver = &core->driver;
    struct gs_block_list failed = {0}, done = {0};
    struct gs_block *block, *next;
    CUcontext context, popped;
    struct gs_chunk *spent;

    gs_latch_take(&arena->lock);
    spent = arena->guarded.spent;
    arena->guarded.spent = NULL;
    context = arena->context;
    block = gs_arena_take_unwiped_locked(arena);
    arena->guarded.wiping += block != NULL;
    gs_latch_release(&arena->lock);
    gs_chunks_unmap(core, spent);
    if (!block)
        return;
    if (driver->ctx_push_current(context) != CUDA_SUCCESS)
        driver = NULL;
    for (; block; block = next) {
        next = (struct gs_block *)block->entry.next;
        block->wiped = driver && overwrite(driver, block);
        gs_block_list_push(block->wiped ? &done : &failed, block);
    }
    if (driver)
        driver->ctx_pop_current(&popped);
    gs_latch_take(&arena->lock);
    gs_arena_wiped_locked(arena, &done, &failed);
    arena->guarded.wiping--;
    gs_latch_release(&arena->lock);
}
