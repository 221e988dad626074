/* What concerns all pools of a process, and the driver's own by name (core/process/process.h). */
#include "core/process/context.h"

void gs_context_pass_pools(void *arg, bool closes)
{
    struct gs_core *core = arg;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++)
            if (context->pools[i]) {
                gs_latch_take(&context->pools[i]->lock);
                if (closes)
                    gs_pool_close(context->pools[i]);
                gs_latch_release(&context->pools[i]->lock);
            }
    gs_lock_release(&core->lock);
}

void gs_core_stream_gone(struct gs_core *core, CUstream stream)
{
    gs_lone_stream_gone(&core->lone, stream);
    gs_lock_take(&core->lock);
    gs_context_handles_changed(core);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++) {
            struct gs_pool *pool = context->pools[i];

            if (!pool)
                continue;
            gs_latch_take(&pool->lock);
            gs_pool_flush_stream(pool, gs_stream_key(stream));
            gs_latch_release(&pool->lock);
        }
    gs_lock_release(&core->lock);
}

size_t gs_core_cached(struct gs_core *core)
{
    struct gs_context *current;
    size_t cached_bytes = 0;

    /* Who only asks has no memory taken: not that of a trial, nor what is kept of it. */
    if (gs_context_current_unprobed(core, &current) != GS_OK)
        return 0;
    gs_context_bury_dead(core);
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++) {
            struct gs_pool *pool = context->pools[i];

            /* Beside stream-ordered memory that lives on, a dead one's is nobody's. */
            if (!pool || pool->device != current->device || pool->dead)
                continue;
            gs_latch_take(&pool->lock);
            /* What was freed and another process holds is not free: such blocks show in limbo. */
            if (!context->detached)
                gs_pool_collect(pool);
            cached_bytes += pool->reserved - pool->live - pool->guarded.limbo;
            gs_latch_release(&pool->lock);
        }
    gs_lock_release(&core->lock);
    return cached_bytes;
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
