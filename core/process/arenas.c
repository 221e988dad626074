/* What concerns all arenas of a process, and the driver's own by name (core/process/process.h). */
#include "core/process/context.h"

void gs_context_pass_arenas(void *arg, bool closes)
{
    struct gs_core *core = arg;
    struct gs_arena *arena = NULL;

    gs_lock_take(&core->lock); /* none begins meanwhile, and goes by what ends here */
    while ((arena = gs_next_arena(core, NULL, arena))) {
        gs_latch_take(&arena->lock);
        if (closes)
            gs_arena_close_locked(arena);
        gs_latch_release(&arena->lock);
    }
    gs_lock_release(&core->lock);
}

void gs_context_before_capture(struct gs_core *core)
{
    struct gs_arena *arena = NULL;

    while (!gs_fences_capturing(&core->fences) && (arena = gs_next_arena(core, NULL, arena))) {
        gs_latch_take(&arena->lock);
        gs_arena_before_capture_locked(arena);
        gs_latch_release(&arena->lock);
    }
}

void gs_core_stream_gone(struct gs_core *core, CUstream stream)
{
    struct gs_arena *arena = NULL;

    gs_single_stream_gone(&core->single, stream);
    gs_context_handles_changed(core);
    while ((arena = gs_next_arena(core, NULL, arena))) {
        gs_latch_take(&arena->lock);
        gs_arena_flush_stream_locked(arena, gs_stream_key(stream));
        gs_latch_release(&arena->lock);
    }
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
    while ((arena = gs_next_arena(core, current->device, arena))) {
        gs_latch_take(&arena->lock);
        gs_arena_collect_locked(arena);
        /* What was freed and another process holds is not free: such blocks show as held, as does
         * what waits for one to come and goes as soon as it is needed, which is free. */
        if (!arena->dead)
            cached_bytes += arena->reserved - arena->live - arena->held;
        gs_latch_release(&arena->lock);
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

struct gs_arena *gs_next_alive(const struct gs_core *core, const struct gs_device *device,
                               const struct gs_arena *arena)
{
    struct gs_arena *next = gs_next_arena(core, device, arena);

    for (; next; next = gs_next_arena(core, device, next)) {
        gs_latch_take(&next->lock);
        if (!next->dead && !next->leaving)
            break;
        gs_latch_release(&next->lock);
    }
    return next;
}

void gs_core_mempool_set(struct gs_core *core, CUdevice device, CUmemoryPool pool)
{
    if (gs_is_device(device))
        __atomic_store_n(&core->current_pool[device], pool, __ATOMIC_RELAXED);
}

uint64_t gs_core_mempool_going(struct gs_core *core, CUmemoryPool pool)
{
    uint64_t devices = 0;

    for (CUdevice device = 0; pool && device < GS_DEVICES_MAX; device++) {
        CUmemoryPool current = pool;

        if (__atomic_compare_exchange_n(&core->current_pool[device], &current, NULL, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            devices |= UINT64_C(1) << device;
    }
    return devices;
}

/* Another thread may have set one meanwhile. */
void gs_core_mempool_stays(struct gs_core *core, CUmemoryPool pool, uint64_t devices)
{
    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++) {
        CUmemoryPool none = NULL;

        if (devices >> device & 1)
            __atomic_compare_exchange_n(&core->current_pool[device], &none, pool, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}
