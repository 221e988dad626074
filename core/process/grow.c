/* An arena grows (core/process/reclaim.h): a region is reserved, a piece is made. */
#include "core/process/reclaim.h"

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/record.h"

#define LEAST_PART   64 /* of the addresses that are wanted */
#define LOOKED_AGAIN 16 /* when an arena has grown by this part of what the device had left */

/* What the device has left decides how large pieces are, and how much is kept. Looking takes some
 * microseconds, so it is done when what grew since may have changed the answer. */
static void look_at_left(struct gs_core *core, struct gs_arena *arena)
{
    const CUdevice device = arena->device->ordinal;
    size_t *since = &core->figures.grown[device], *known = &core->figures.left[device];
    size_t left = __atomic_load_n(known, __ATOMIC_RELAXED), total;
    CUcontext context;

    if (left > 0 && __atomic_load_n(since, __ATOMIC_RELAXED) < left / LOOKED_AGAIN)
        return;
    gs_latch_take(&arena->lock);
    context = arena->context; /* another one might be ended meanwhile by the program's thread */
    gs_latch_release(&arena->lock);
    if (!gs_context_mem_info(core, context, &left, &total))
        return;
    __atomic_store_n(known, left | 1, __ATOMIC_RELAXED);
    __atomic_store_n(since, 0, __ATOMIC_RELAXED);
}

static void say_no_region(struct gs_core *core, gs_status status)
{
    if (!__atomic_exchange_n(&core->figures.no_region, true, __ATOMIC_RELAXED))
        gs_log_line(&core->options.log, GS_LOG_WARNING,
                    "no addresses could be reserved for a GPU's memory (driver error %d; is the "
                    "address space limited, ulimit -v?): allocations are the driver's own, and are "
                    "not shared",
                    (int)status);
}

/* Twice the device: what is free in it is never too scattered for what the device has. Less where
 * that is not to be had. GS_NOT_OFFERED: none is, and the memory is the driver's. The arena's lock
 * is held, and let go meanwhile. */
static gs_status reserve_locked(struct gs_core *core, struct gs_arena *arena, uint64_t life,
                                bool small)
{
    struct gs_region *region = gs_arena_region_locked(arena, small);
    const size_t most = gs_page_round(2 * arena->device->total);
    gs_status status;
    CUdeviceptr base;
    size_t size;

    gs_latch_release(&arena->lock);
    for (size = most;; size = gs_page_round(size / 2)) {
        status = core->driver.mem_address_reserve(&base, size, GS_PAGE_SIZE, 0, 0);
        if (status == GS_OK || size <= GS_PAGE_SIZE || size / 2 < most / LEAST_PART)
            break;
    }
    gs_latch_take(&arena->lock);
    if (status != GS_OK) {
        say_no_region(core, status);
        return GS_NOT_OFFERED;
    }
    if (region->size > 0 || gs_arena_is_over_locked(arena, life)) {
        gs_latch_release(&arena->lock);
        core->driver.mem_address_free(base, size);
        gs_latch_take(&arena->lock);
    } else {
        region->base = base;
        region->size = size;
        region->short_of_room = size < most;
        region->crosses = !small && __atomic_load_n(&core->shared.crosses, __ATOMIC_RELAXED) &&
                          (arena->device->dma_bufs || !core->shared.by_address);
    }
    return GS_OK;
}

/* What takes the lock for; then `growth` is a place, and what is free beside it. */
static gs_status begin(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                       struct gs_growth *ret_growth)
{
    gs_status status = GS_OK;
    bool small;

    gs_latch_assert_held(&arena->lock);
    gs_arena_round(arena, size, &small);
    if (gs_arena_region_locked(arena, small)->size == 0)
        status = reserve_locked(core, arena, life, small);
    if (gs_arena_is_over_locked(arena, life))
        status = GS_NO_CONTEXT;
    if (status == GS_OK)
        status = gs_arena_grow_locked(arena, size, ret_growth);
    return status == GS_NO_MEMORY && gs_arena_region_locked(arena, small)->short_of_room
               ? GS_NOT_OFFERED
               : status;
}

/* The memory of a piece, within the limit. On failure as gs_device_map. */
static gs_status map(struct gs_core *core, const struct gs_device *device,
                     const struct gs_span *span, CUmemGenericAllocationHandle *ret_handle)
{
    gs_status status;

    *ret_handle = 0;
    if (!gs_limit_take(core, device, span->size))
        return (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
    status = gs_device_map(&core->driver, device, span->base, span->size, ret_handle);
    if (status != GS_OK && !*ret_handle)
        gs_limit_give(core, device->ordinal, span->size);
    return status;
}

/* The next piece. What is not everybody's who is to have access does not join. The lock is held,
 * and let go meanwhile. */
static gs_status make_locked(struct gs_core *core, struct gs_arena *arena, uint64_t life,
                             struct gs_growth *growth, bool scarce)
{
    const struct gs_device *device = arena->device;
    const struct gs_trace_mark mark = gs_trace_begin();
    CUmemGenericAllocationHandle handle;
    struct gs_span span;
    gs_status status = gs_growth_next_locked(arena, growth, scarce, &span);

    if (status != GS_OK)
        return status;
    gs_latch_release(&arena->lock);
    status = map(core, device, &span, &handle);
    if (status == GS_OK)
        gs_record_piece(core, &mark, gs_now_ns(), device->ordinal, &span);
    gs_latch_take(&arena->lock);
    if (status != GS_OK) {
        if (handle)
            growth->place = NULL; /* it stays taken for good */
        return status;
    }
    status = gs_growth_mapped_locked(arena, growth, span.size, handle);
    if (status == GS_OK)
        status = gs_arena_is_over_locked(arena, life) ? GS_NO_CONTEXT
                                                      : gs_peers_admit_locked(core, growth->piece);
    if (status == GS_OK)
        status = gs_growth_join_locked(arena, growth);
    if (status == GS_OK) {
        __atomic_add_fetch(&core->figures.grown[device->ordinal], span.size, __ATOMIC_RELAXED);
        return GS_OK;
    }
    gs_piece_leaves_locked(arena, growth->piece);
    gs_latch_release(&arena->lock);
    gs_pieces_unmap(core, growth->piece);
    gs_latch_take(&arena->lock);
    return status;
}

/* More than the device has beside the arenas' pieces, or than they may have. */
static bool is_beyond(const struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    size_t used = gs_limit_used(core, device->ordinal);

    return gs_limit_is_beyond(core, device, bytes) || used > device->total ||
           bytes > device->total - used;
}

/* All that are missing; what was made stays where one cannot be. The same. */
static gs_status make_all_locked(struct gs_core *core, struct gs_arena *arena, uint64_t life,
                                 struct gs_growth *growth)
{
    gs_status status = GS_OK;

    if (is_beyond(core, arena->device, growth->least))
        return (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
    while (status == GS_OK && growth->least > 0) {
        status = make_locked(core, arena, life, growth, false);
        if (gs_is_out(status) && !growth->piece && growth->place &&
            growth->place->span.size > growth->least)
            status = make_locked(core, arena, life, growth, true);
    }
    return status;
}

gs_status gs_arena_grow(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                        CUdeviceptr *ret_address)
{
    uint64_t began = gs_now_ns();
    struct gs_growth growth;
    struct gs_piece *vain;
    size_t wanted, made;
    gs_status status;
    bool surplus;

    look_at_left(core, arena);
    gs_latch_take(&arena->lock);
    status = begin(core, arena, life, size, &growth);
    if (status != GS_OK) {
        gs_latch_release(&arena->lock);
        return status;
    }
    gs_growth_is(core, true);
    wanted = growth.least;
    status = make_all_locked(core, arena, life, &growth);
    made = wanted - growth.least;
    gs_arena_grown_locked(arena, &growth);
    gs_growth_is(core, false);
    vain = status != GS_OK && made > 0 ? gs_arena_detach_locked(arena, made, SIZE_MAX) : NULL;
    if (status == GS_OK)
        *ret_address = gs_arena_take_locked(arena, size)->base;
    GS_ADD(arena->counts.map_ns, gs_now_ns() - began);
    surplus = gs_arena_surplus_locked(arena) > 0;
    gs_latch_release(&arena->lock);
    if (status == GS_OK)
        gs_trace_outcome = GS_TRACE_NEW;
    gs_pieces_unmap(core, vain); /* another may need it */
    if (status != GS_OK)
        gs_context_trim_dead(core); /* it may have gone meanwhile, all but what this had aside */
    gs_trimmer_grown(core);
    if (surplus)
        gs_trimmer_wake(core);
    return status;
}
