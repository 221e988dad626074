/*
 * What the arenas of a full device can spare, and how an allocation there still succeeds.
 */
#include "core/process/reclaim.h"

#include "core/base/list.h"
#include "core/record/trace.h"
#include "core/process/context.h"
#include "core/process/limit.h"

/* ---- All arenas of a device, no lock held ------------------------------------------------ */

/* As often at most gs_arena_wait_oldest_locked has something to wait for that was freed by now:
 * other threads may free as fast as the GPU goes. */
static size_t waits_for_all_locked(const struct gs_arena *arena)
{
    const struct gs_epoch *epoch;
    size_t count;

    LL_COUNT(arena->epochs.oldest, epoch, count);
    return count + 2; /* the open epoch, and who finds out first */
}

/* Waits as long as is right for each (core/pool/arena.h). The lock is held, and let go at times. */
static void wait_for_all_locked(struct gs_arena *arena, const struct gs_patience *patience)
{
    size_t left = waits_for_all_locked(arena);

    gs_latch_assert_held(&arena->lock);
    while (left-- > 0 && gs_arena_wait_oldest_locked(arena, patience))
        continue;
}

#define TURN_STEP_NS 50000

gs_status gs_arena_synchronize_locked(struct gs_core *core, struct gs_arena *arena,
                                      struct gs_block_list *freed)
{
    const CUcontext context = arena->context;
    gs_status status;

    gs_latch_assert_held(&arena->lock);
    gs_latch_release(&arena->lock);
    status = gs_fences_synchronize(&core->fences, context);
    gs_latch_take(&arena->lock);
    gs_arena_waited_locked(arena, freed, status == GS_OK);
    return status;
}

/* While a capture is open, or on a driver without cuCtxRecordEvent, no event can be recorded behind
 * what is freed. What cuMemFree freed is waited for as that call does natively. The lock is held,
 * and let go meanwhile. False: there is nothing, or events are recorded. */
static bool wait_for_open_locked(struct gs_core *core, struct gs_arena *arena)
{
    struct gs_block_list freed;

    gs_latch_assert_held(&arena->lock);
    if ((core->driver.ctx_record_event && !gs_fences_capturing(&core->fences)) ||
        !gs_arena_take_open_locked(arena, &freed))
        return false;
    gs_arena_synchronize_locked(core, arena, &freed);
    return true;
}

/* Allocations that wait so do it one after the other, as they come: who came later keeps nobody,
 * and takes nothing that another waited for. Who finds that its context has ended meanwhile has its
 * turn all the same, before those of the next one. The lock is held, and let go meanwhile. */
static void await_turn_locked(struct gs_arena *arena)
{
    const unsigned mine = arena->line++;

    gs_latch_assert_held(&arena->lock);
    while (arena->turn != mine) {
        gs_latch_release(&arena->lock);
        gs_rest_ns(TURN_STEP_NS);
        gs_latch_take(&arena->lock);
    }
}

/* While a capture is open no event can be had, and what a stream freed stays its own. */
static void flush_streams_locked(struct gs_core *core, struct gs_arena *arena)
{
    if (!gs_fences_capturing(&core->fences))
        gs_arena_flush_streams_locked(arena, 0, 0);
}

/* Takes back what has come back, also what has to be waited for (NULL: nothing). The lock is held,
 * and let go at times. */
static void collect_locked(struct gs_core *core, struct gs_arena *arena,
                           const struct gs_patience *patience)
{
    gs_latch_assert_held(&arena->lock);
    flush_streams_locked(core, arena);
    gs_arena_collect_locked(arena);
    if (patience)
        wait_for_all_locked(arena, patience);
    if (patience && patience->most_ns == UINT64_MAX) {
        await_turn_locked(arena);
        wait_for_open_locked(core, arena);
        arena->turn++;
    }
}

void gs_arenas_collect(struct gs_core *core, const struct gs_device *device,
                       const struct gs_patience *patience)
{
    struct gs_arena *arena = NULL;

    while ((arena = gs_next_locked(core, device, arena, true)))
        collect_locked(core, arena, patience);
}

size_t gs_arena_trim(struct gs_core *core, struct gs_arena *arena,
                     const struct gs_patience *patience, size_t keep, size_t most)
{
    struct gs_piece *pieces;
    size_t bytes;

    gs_latch_take(&arena->lock);
    collect_locked(core, arena, patience);
    bytes = arena->free_bytes > keep ? arena->free_bytes - keep : 0;
    pieces = gs_arena_detach_locked(arena, bytes < most ? bytes : most, SIZE_MAX);
    gs_latch_release(&arena->lock);
    return gs_pieces_unmap(core, pieces) + gs_spent_unmap(core);
}

/* What others hold no more, or with `graces` never came for, is held no more. */
static void end_limbo(struct gs_core *core, const struct gs_device *device, bool graces)
{
    if (graces)
        gs_share_end_graces(core->share, device->uuid, GS_GRACES_ALL);
    else
        gs_share_tell(core->share);
}

size_t gs_device_trim(struct gs_core *core, const struct gs_device *device,
                      const struct gs_patience *patience, size_t bytes)
{
    struct gs_arena *arena = NULL;
    size_t released = 0;

    end_limbo(core, device, patience != NULL);
    while (released < bytes && (arena = gs_next_arena(core, device, arena)))
        released += gs_arena_trim(core, arena, patience, 0, bytes - released);
    if (released < bytes)
        released += gs_device_end_warm_up(&core->device[device->ordinal]);
    gs_context_trim_dead(core);
    return released;
}

size_t gs_device_yield(struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    size_t released = gs_device_trim(core, device, NULL, bytes);

    if (released >= bytes)
        return released;
    gs_share_end_graces(core->share, device->uuid, GS_GRACES_LONG);
    return released + gs_device_trim(core, device, NULL, bytes - released);
}

/* ---- One block on a full device ---------------------------------------------------------- */

struct request {
    struct gs_core *core;
    struct gs_arena *arena;
    uint64_t life; /* of the arena's context: its record may be another's by now */
    const struct gs_device *device;
    CUcontext context;
    unsigned tag;
    size_t size;
    bool any;
    struct gs_patience patience; /* from wait_for_block on; began_ns 0: nothing is waited for */
    CUdeviceptr *ret_address;
};

static gs_status grow(struct request *r)
{
    return gs_arena_grow(r->core, r->arena, r->life, r->size, r->ret_address);
}

/* A block is another thread's to look at once its lock is let go: its address is all that
 * leaves. */
static gs_status found(struct request *r, const struct gs_block *block)
{
    if (!block)
        return GS_NO_MEMORY;
    *r->ret_address = block->base;
    return GS_OK;
}

static gs_status take_own_locked(struct request *r)
{
    gs_arena_merge_quick_locked(r->arena);
    return gs_arena_is_over_locked(r->arena, r->life)
               ? GS_NO_CONTEXT
               : found(r, gs_arena_take_locked(r->arena, r->size));
}

/* From what is free in any arena of the context and the tag; with `any`, a piece of another class
 * too. */
static gs_status take_free(struct request *r)
{
    struct gs_arena *arena = NULL;
    gs_status status = GS_NO_MEMORY;

    while ((arena = gs_next_locked(r->core, r->device, arena, true)))
        if (status != GS_OK && arena->context == r->context && arena->tag == r->tag) {
            gs_arena_merge_quick_locked(arena);
            status = found(r, r->any ? gs_arena_take_any_locked(arena, r->size)
                                     : gs_arena_take_locked(arena, r->size));
        }
    return status;
}

static gs_status take_any(struct request *r)
{
    r->any = true;
    return take_free(r);
}

/*
 * Once all arenas of the device have taken back what has come back, or does while it is waited for.
 * What of it fits is not given to the driver first, which takes its time to clear it, and cannot
 * have it before a process that ended has let go of it (100 ms on an H200, where its exit is seen
 * after 60).
 */
static gs_status take_what_came_back(struct request *r)
{
    const struct gs_patience *patience = r->patience.began_ns ? &r->patience : NULL;

    end_limbo(r->core, r->device, patience != NULL);
    gs_arenas_collect(r->core, r->device, patience);
    return take_free(r);
}

/* What other threads give back, or had aside for a growth that failed as this one's did. */
static gs_status await_threads(struct request *r)
{
    gs_status status = GS_NO_MEMORY;

    if (gs_releases_await(r->core, GS_RELEASED_NS))
        status = grow(r);
    if (gs_is_out(status) && gs_growths_await(r->core, GS_RELEASED_NS))
        status = take_free(r);
    return status;
}

/* Of what this arena has free so much becomes the driver's and then the block. GS_NO_MEMORY:
 * nothing was free. */
static gs_status exchange(struct request *r, size_t most)
{
    return gs_arena_trim(r->core, r->arena, NULL, 0, most) == 0 ? GS_NO_MEMORY : grow(r);
}

static gs_status exchange_some(struct request *r)
{
    return exchange(r, r->size + GS_PAGE_SIZE);
}

/* What can go at once goes, and is asked for. */
static gs_status trim_all(struct request *r)
{
    return gs_device_trim(r->core, r->device, NULL, SIZE_MAX) == 0 ? GS_NO_MEMORY : grow(r);
}

/* Waits for this arena's epochs one by one, until the block can be had. */
static gs_status wait_for_block(struct request *r)
{
    struct gs_arena *arena = r->arena;
    gs_status status = GS_NO_MEMORY;
    bool more = true;
    size_t left;

    gs_trace_outcome = GS_TRACE_WAITED;
    r->patience = gs_patience_of(UINT64_MAX);
    gs_latch_take(&arena->lock);
    flush_streams_locked(r->core, arena);
    left = waits_for_all_locked(arena);
    gs_latch_release(&arena->lock);
    while (more && gs_is_out(status) && left-- > 0) {
        gs_latch_take(&arena->lock);
        more = gs_arena_wait_oldest_locked(arena, &r->patience);
        status = take_own_locked(r);
        gs_latch_release(&arena->lock);
        if (more && gs_is_out(status))
            status = exchange(r, SIZE_MAX);
    }
    return status;
}

/* It has what it needs before the lock is let go. */
static gs_status wait_in_turn(struct request *r)
{
    struct gs_arena *arena = r->arena;
    gs_status status;

    gs_latch_take(&arena->lock);
    await_turn_locked(arena);
    status = take_own_locked(r);
    if (gs_is_out(status) && wait_for_open_locked(r->core, arena))
        status = take_own_locked(r);
    arena->turn++;
    gs_latch_release(&arena->lock);
    return status;
}

static gs_status wait_for_all(struct request *r)
{
    gs_share_await_given_back(r->core->share, r->device->uuid, GS_RETURNED_NS);
    return take_what_came_back(r);
}

static gs_status trim_waiting(struct request *r)
{
    gs_device_trim(r->core, r->device, &r->patience, SIZE_MAX);
    /* What waited for the same work may have been faster. */
    gs_releases_await(r->core, GS_RELEASED_NS);
    return grow(r);
}

/* Asks other processes, twice: others may take what one gave. */
static gs_status ask_neighbours(struct request *r)
{
    gs_status status = GS_NO_MEMORY;

    for (int i = 0; i < 2 && gs_is_out(status); i++) {
        if (gs_limit_is_beyond(r->core, r->device, r->size) ||
            !gs_neighbour_ask(r->core, r->device, r->context, r->size))
            break;
        status = grow(r);
    }
    return status;
}

/*
 * Each step leaves the arena holding no more than the driver would for the same blocks, but for the
 * last one of its own, a block in the midst of a larger piece. Only then are others asked. Beside
 * each: what it waits for, where there is any, who ends that, and after how long at most. So it is
 * refused after some 20 s where all others stand still and the GPU has passed what cuMemFree freed.
 */
static gs_status (*const steps[])(struct request *r) = {
    take_what_came_back,
    await_threads, /* pieces and growths: the threads that are at it, or 1 s each */
    exchange_some,
    trim_all,
    await_threads,
    take_free,
    wait_for_block, /* GPU work before a cuMemFree: the GPU, as the driver's own free would have
                       waited; before other frees: the GPU, or 10 s */
    wait_in_turn,   /* what no event is behind: the GPU, and who came before */
    wait_for_all,   /* closed blocks: who had them open, their end, or 2 s (core/share/flush.c) */
    trim_waiting,   /* all of the above */
    take_any,
    ask_neighbours, /* what other processes keep: they answer, or 1 s, or 10 s where one goes to
                       sleep for it, twice (core/share/pressure_ask.c) */
    trim_all,       /* ends that the share thread was told of since */
    await_threads,
};

gs_status gs_arena_reclaim(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                           CUdeviceptr *ret_address)
{
    struct request request = {
        .core = core, .arena = arena, .life = life, .size = size, .ret_address = ret_address};
    gs_status status;

    gs_latch_take(&arena->lock);
    request.device = arena->device;
    request.context = arena->context;
    request.tag = arena->tag;
    status = gs_arena_is_over_locked(arena, life) ? GS_NO_CONTEXT : GS_NO_MEMORY;
    gs_latch_release(&arena->lock);
    if (size > gs_limit_of(core, request.device)) /* for which nothing is given up */
        return status;
    for (size_t i = 0; gs_is_out(status) && i < sizeof(steps) / sizeof(*steps); i++)
        status = steps[i](&request);
    return gs_is_out(status) ? GS_NO_MEMORY : status;
}
