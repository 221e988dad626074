/* What concerns all arenas of a process, and the driver's own by name (core/process/process.h). */
#include "core/process/context.h"

void gs_context_pass_arenas(void *arg, bool closes)
{
    struct gs_core *core = arg;
    struct gs_arena *arena = NULL;
    GS_HOLDING(&core->lock); /* none begins meanwhile, and goes by what ends here */

    while ((arena = gs_next_locked(core, NULL, arena, false)))
        if (closes)
            gs_arena_close_locked(arena);
}

void gs_context_before_capture(struct gs_core *core)
{
    struct gs_arena *arena = NULL;

    while ((arena = gs_next_locked(core, NULL, arena, false)))
        if (!gs_fences_capturing(&core->fences))
            gs_arena_before_capture_locked(arena);
}

void gs_core_stream_gone(struct gs_core *core, CUstream stream)
{
    struct gs_arena *arena = NULL;

    gs_single_stream_gone(&core->single, stream);
    gs_context_handles_changed(core);
    while ((arena = gs_next_locked(core, NULL, arena, false)))
        gs_arena_flush_streams_locked(arena, gs_stream_key(stream), 0);
}

size_t gs_core_cached(struct gs_core *core)
{
    struct gs_context *current;
    struct gs_arena *arena = NULL;
    size_t cached_bytes;

    /* Who only asks has no memory taken: not that of a trial, nor what is kept of it. */
    if (gs_context_current_unprobed(core, &current) != GS_OK)
        return 0;
    gs_context_trim_dead(core);
    cached_bytes = __atomic_load_n(&core->figures.leaving[current->ordinal], __ATOMIC_SEQ_CST);
    cached_bytes += gs_share_would_go(core->share, (unsigned)current->ordinal);
    while ((arena = gs_next_locked(core, current->device, arena, false))) {
        gs_arena_collect_locked(arena);
        /* What was freed and another process holds is not free: such blocks show as held, as does
         * what waits for one to come and goes as soon as it is needed, which is free. */
        if (!arena->dead)
            cached_bytes += arena->reserved - arena->live - arena->held;
    }
    return cached_bytes;
}

struct gs_arena *gs_next_arena(const struct gs_core *core, const struct gs_device *device,
                               const struct gs_arena *arena)
{
    struct gs_arena *next = arena ? arena->next : __atomic_load_n(&core->arenas, __ATOMIC_ACQUIRE);

    while (next && device && next->device != device)
        next = next->next;
    return next;
}

struct gs_arena *gs_next_locked(const struct gs_core *core, const struct gs_device *device,
                                struct gs_arena *arena, bool alive)
{
    do {
        if (arena)
            gs_latch_release(&arena->lock);
        arena = gs_next_arena(core, device, arena);
        if (arena)
            gs_latch_take(&arena->lock);
    } while (arena && alive && (arena->dead || arena->leaving));
    return arena;
}

void gs_core_mempool_set(struct gs_core *core, CUdevice device, CUmemoryPool pool)
{
    if (gs_is_device(device))
        __atomic_store_n(&core->current_pool[device], pool, __ATOMIC_RELAXED);
}

CUdevice gs_core_mempool_going(struct gs_core *core, CUmemoryPool pool)
{
    for (CUdevice device = 0; pool && device < GS_DEVICES_MAX; device++) {
        CUmemoryPool current = pool; /* unless another thread sets one now */

        if (__atomic_compare_exchange_n(&core->current_pool[device], &current, NULL, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return device;
    }
    return -1;
}
