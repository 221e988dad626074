/* What concerns all pools of a process, and the driver's own by name (core/process/process.h). */
#include "core/process/context.h"

void gs_context_pass_pools(void *arg, bool closes)
{
    struct gs_core *core = arg;

    struct gs_pool_walk walk = {0};
    struct gs_pool *pool;

    gs_lock_take(&core->lock);
    while ((pool = gs_next_pool_locked(core, &walk))) {
        gs_latch_take(&pool->lock);
        if (closes)
            gs_pool_close(pool);
        gs_latch_release(&pool->lock);
    }
    gs_lock_release(&core->lock);
}

void gs_core_stream_gone(struct gs_core *core, CUstream stream)
{
    struct gs_pool_walk walk = {0};
    struct gs_pool *pool;

    gs_lone_stream_gone(&core->lone, stream);
    gs_lock_take(&core->lock);
    gs_context_handles_changed(core);
    while ((pool = gs_next_pool_locked(core, &walk))) {
        gs_latch_take(&pool->lock);
        gs_pool_flush_stream(pool, gs_stream_key(stream));
        gs_latch_release(&pool->lock);
    }
    gs_lock_release(&core->lock);
}

size_t gs_core_cached(struct gs_core *core)
{
    struct gs_pool_walk walk = {0};
    struct gs_context *current;
    struct gs_pool *pool;
    size_t cached_bytes = 0;

    /* Who only asks has no memory taken: not that of a trial, nor what is kept of it. */
    if (gs_context_current_unprobed(core, &current) != GS_OK)
        return 0;
    gs_context_bury_dead(core);
    gs_lock_take(&core->lock);
    while ((pool = gs_next_pool_locked(core, &walk))) {
        /* Beside stream-ordered memory that lives on, a dead one's is nobody's. */
        if (pool->device != current->device || pool->dead)
            continue;
        gs_latch_take(&pool->lock);
        gs_pool_collect(pool);
        /* What was freed and another process holds is not free: such blocks show in limbo. */
        cached_bytes += pool->reserved - pool->live - pool->guarded.limbo;
        gs_latch_release(&pool->lock);
    }
    gs_lock_release(&core->lock);
    return cached_bytes;
}

unsigned gs_pools_of(struct gs_core *core, const struct gs_device *device,
                     struct gs_pool *ret_pools[GS_POOLS_MAX])
{
    struct gs_pool_walk walk = {0};
    struct gs_pool *pool;
    unsigned count = 0;

    gs_lock_take(&core->lock);
    while (count < GS_POOLS_MAX && (pool = gs_next_pool_locked(core, &walk)))
        if (!device || pool->device == device)
            ret_pools[count++] = pool;
    gs_lock_release(&core->lock);
    return count;
}

void gs_core_pool_set(struct gs_core *core, CUdevice device, CUmemoryPool pool)
{
    if (device >= 0 && device < GS_DEVICES_MAX)
        __atomic_store_n(&core->current_pool[device], pool, __ATOMIC_RELAXED);
}

uint64_t gs_core_pool_going(struct gs_core *core, CUmemoryPool pool)
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
void gs_core_pool_stays(struct gs_core *core, CUmemoryPool pool, uint64_t devices)
{
    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++) {
        CUmemoryPool none = NULL;

        if (devices >> device & 1)
            __atomic_compare_exchange_n(&core->current_pool[device], &none, pool, false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}
