/* An arena grows (core/process/reclaim.h): by how much, and from what the device has left. */
#include "core/process/reclaim.h"

#include <string.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/record.h"

#define GROWN_OTHER ((size_t)16 << 20) /* a chunk of small blocks in an arena of few threads, */
#define SEVERAL_MOST ((size_t)48 << 20) /* for several blocks of one size, */
#define SEVERAL_PART 4 /* of which all but one take no more than this part of what is live, */
#define FEWER_PART 64 /* or that where one alone wastes nothing */
#define LOOKED_AGAIN 16 /* when an arena has grown by this part of what the device had left */

/* What the device has left decides what chunks may owe (gs_arena_may_owe_locked). Looking takes
 * some microseconds, so it is done when what grew since may have changed the answer. */
static void look_at_left(struct gs_core *core, CUdevice device, CUcontext context, size_t grown)
{
    size_t *since = &core->figures.grown[device], *known = &core->figures.left[device], left, total;
    CUcontext popped;

    left = __atomic_load_n(known, __ATOMIC_RELAXED);
    grown += __atomic_load_n(since, __ATOMIC_RELAXED);
    __atomic_store_n(since, grown, __ATOMIC_RELAXED);
    if ((left > 0 && grown < left / LOOKED_AGAIN) || !core->driver.mem_get_info ||
        core->driver.ctx_push_current(context) != CUDA_SUCCESS)
        return;
    if (core->driver.mem_get_info(&left, &total) == CUDA_SUCCESS) {
        __atomic_store_n(known, left | 1, __ATOMIC_RELAXED);
        __atomic_store_n(since, 0, __ATOMIC_RELAXED);
    }
    core->driver.ctx_pop_current(&popped);
}

/* Whether a chunk was made for a block of that size lately; from now on there was. */
static bool grows_again_locked(struct gs_arena_kept *kept, size_t need)
{
    bool again = false;

    for (unsigned i = 0; i < GS_GROWN_FOR; i++)
        again |= kept->grown_for[i] == need;
    memmove(&kept->grown_for[1], kept->grown_for, sizeof kept->grown_for - sizeof need);
    kept->grown_for[0] = need;
    return again;
}

static size_t wasted(size_t need)
{
    return gs_page_round(need) - need;
}

/* Less of its pages is wasted; or nothing, as before, and there are fewer chunks: each takes calls
 * of the driver to make, to share and to open. */
static bool is_better_locked(const struct gs_arena *arena, size_t need, size_t best, size_t all)
{
    if (wasted(best) == 0)
        return wasted(all) == 0 && all - need <= arena->live / FEWER_PART;
    return wasted(all) * best < wasted(best) * all;
}

/*
 * A program that holds more than it did lately, and for which a chunk of that size was made before,
 * goes on: layers of a network, say. So the chunk is made for the number of such blocks that is
 * best. Only the first may ever come, which must be within bounds.
 */
static size_t size_for_several_locked(struct gs_arena *arena, size_t need)
{
    bool again = grows_again_locked(&arena->kept, need);
    size_t best = need;

    if (!again || arena->live + need <= arena->kept.live_peak || arena->shared->whole_chunks)
        return gs_page_round(need);
    for (size_t all = 2 * need; all <= GS_MIXED_TIMES * need && all <= SEVERAL_MOST &&
                                gs_page_round(all) - need <= arena->live / SEVERAL_PART;
         all += need)
        if (is_better_locked(arena, need, best, all))
            best = all;
    /* Half of what may be owed is for those that waste less by it. */
    if (!gs_arena_may_owe_locked(arena, gs_page_round(best) - gs_page_round(need),
                                 wasted(need) ? 1 : 2))
        best = need;
    return gs_page_round(best);
}

static size_t choose_chunk_size_locked(struct gs_arena *arena, size_t need, bool small)
{
    if (small)
        return !arena->first && gs_arena_may_owe_locked(arena, GROWN_OTHER, 1)
                   ? GROWN_OTHER
                   : gs_page_round(need);
    return size_for_several_locked(arena, need);
}

/* The memory of a chunk, within the limit. */
static gs_status map(struct gs_core *core, const struct gs_device *device, size_t size,
                     CUmemGenericAllocationHandle *ret_handle, CUdeviceptr *ret_address)
{
    gs_status status;

    if (!gs_limit_take(core, device, size))
        return (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
    gs_turn_begin(&core->releases.turn);
    status = gs_device_map(&core->driver, device, size, ret_handle, ret_address);
    gs_turn_end(&core->releases.turn);
    if (status != GS_OK)
        gs_limit_give(core, device->ordinal, size);
    return status;
}

gs_status gs_arena_grow(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                        CUdeviceptr *ret_address)
{
    CUmemGenericAllocationHandle handle;
    struct gs_block *block;
    CUdeviceptr address;
    const struct gs_trace_mark mark = gs_trace_begin();
    uint64_t began = mark.began_ns, ready;
    size_t need, chunk_size;
    const struct gs_device *device;
    CUcontext context;
    gs_status status;
    bool small, again, added;

    /* Without the lock nothing of the arena may be read: its context may end, and another begin. */
    gs_latch_take(&arena->lock);
    device = arena->device;
    context = arena->context;
    need = gs_arena_round(arena, size, &small);
    chunk_size = choose_chunk_size_locked(arena, need, small);
    status = gs_arena_is_over_locked(arena, life) ? GS_NO_CONTEXT : GS_OK;
    gs_latch_release(&arena->lock);
    if (status != GS_OK)
        return status;
    status = map(core, device, chunk_size, &handle, &address);
    if (gs_is_out(status) && chunk_size > gs_page_round(need)) {
        chunk_size = gs_page_round(need);
        status = map(core, device, chunk_size, &handle, &address);
    }
    if (status != GS_OK)
        return status;
    ready = gs_now_ns();
    gs_latch_take(&arena->lock);
    /* With what it held once it would not have had to. */
    again = arena->reserved + chunk_size <= arena->counts.reserved_peak;
    status = gs_arena_is_over_locked(arena, life)
                 ? GS_NO_CONTEXT
                 : gs_arena_add_chunk_locked(arena, address, chunk_size, small, handle, &block);
    added = status == GS_OK;
    if (added)
        status = gs_peers_admit_locked(core, block->chunk);
    if (status == GS_OK)
        *ret_address = gs_arena_take_from_locked(arena, block, size)->base;
    else if (added)
        gs_arena_spend_locked(arena, block);
    gs_arena_felt_locked(arena, gs_now_ns() - began, again);
    gs_latch_release(&arena->lock);
    if (status == GS_OK) {
        gs_trace_outcome = GS_TRACE_NEW;
        if (gs_tracing())
            gs_record_made(core, &mark, ready, device->ordinal, address, chunk_size);
        look_at_left(core, device->ordinal, context, chunk_size);
    } else if (added) {
        gs_arena_wipe(core, arena); /* gives back what is spent */
    } else {
        gs_device_unmap(&core->driver, handle, address, chunk_size, NULL);
        gs_limit_give(core, device->ordinal, chunk_size);
    }
    gs_purge_grown(core);
    return status;
}
