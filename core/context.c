/* Contexts and devices (core/context.h). */
#include "core/context.h"

#include <stdlib.h>
#include <string.h>

/* What this thread looked up last. Generations never repeat in a process, so one core's are not
 * another's (tests make several). */
static _Thread_local struct {
    CUcontext handle;
    uint64_t generation;
    struct gs_context *context;
} cached;

void gs_context_handles_changed(struct gs_core *core)
{
    static uint64_t generations;
    uint64_t next = __atomic_add_fetch(&generations, 1, __ATOMIC_RELAXED);

    __atomic_store_n(&core->generation, next, __ATOMIC_RELEASE);
}

void gs_pool_init(struct gs_pool *pool, struct gs_pool_shared *shared,
                  const struct gs_device *device, CUcontext context)
{
    /* The lock of a recycled record stays: a late reader may be waiting for it. */
    memset((char *)pool + sizeof pool->lock, 0, sizeof *pool - sizeof pool->lock);
    pool->shared = shared;
    pool->device = device;
    pool->context = context;
    gs_fence_pool_init(&pool->events, context);
    gs_bins_init(&pool->small, GS_UNIT_SHIFT);
    gs_bins_init(&pool->large, GS_PAGE_SHIFT);
}

void gs_pool_fini(struct gs_pool *pool)
{
    struct gs_epoch *epoch;
    struct gs_stream_list *stream;
    struct gs_block *block;

    while ((epoch = pool->spare_epochs)) {
        pool->spare_epochs = epoch->next;
        free(epoch);
    }
    while ((stream = pool->streams)) {
        pool->streams = stream->next;
        free(stream);
    }
    while ((block = pool->spare_blocks)) {
        pool->spare_blocks = block->above;
        free(block);
    }
    gs_fence_pool_forget(&pool->events);
}

/* Called with the contexts' lock held; the handle's device is in `ordinal`. */
static gs_status context_make(struct gs_core *core, CUcontext handle, CUdevice ordinal,
                              struct gs_context **ret)
{
    struct gs_context *context = core->spare_contexts;
    struct gs_device *device;

    if (ordinal < 0 || ordinal >= GS_DEVICES_MAX)
        return GS_NOT_OFFERED;
    device = &core->device[ordinal];
    if (device->rung == GS_RUNG_UNKNOWN)
        gs_device_probe(&core->driver, &core->options.log, ordinal, device);
    if (context) {
        core->spare_contexts = context->next;
    } else {
        context = calloc(1, sizeof *context);
        if (!context)
            return GS_NO_HOST_MEMORY;
        gs_lock_init(&context->pool.lock, GS_RANK_POOL);
    }
    gs_pool_init(&context->pool, &core->shared, device, handle);
    context->handle = handle;
    context->detached = false;
    context->next = core->contexts;
    core->contexts = context;
    *ret = context;
    return GS_OK;
}

/* Called with the contexts' lock held. */
static struct gs_context *context_find(struct gs_core *core, CUcontext handle)
{
    struct gs_context *context = core->contexts;

    while (context && (context->detached || context->handle != handle))
        context = context->next;
    return context;
}

static gs_status look_up(struct gs_core *core, CUcontext handle, struct gs_context **ret)
{
    gs_status status = GS_OK;
    CUcontext popped;
    CUdevice ordinal;

    gs_lock_take(&core->lock);
    *ret = context_find(core, handle);
    if (!*ret) {
        status = core->driver.ctx_push_current(handle);
        if (status == GS_OK) {
            status = core->driver.ctx_get_device(&ordinal);
            core->driver.ctx_pop_current(&popped);
        }
        if (status == GS_OK)
            status = context_make(core, handle, ordinal, ret);
    } else if ((*ret)->pool.device->rung == GS_RUNG_UNKNOWN) {
        gs_device_probe(&core->driver, &core->options.log, (*ret)->pool.device->ordinal,
                        &core->device[(*ret)->pool.device->ordinal]);
    }
    gs_lock_release(&core->lock);
    return status;
}

static gs_status of_handle(struct gs_core *core, CUcontext handle, struct gs_context **ret)
{
    uint64_t seen = __atomic_load_n(&core->generation, __ATOMIC_ACQUIRE);
    gs_status status;

    if (cached.handle == handle && cached.generation == seen) {
        *ret = cached.context;
        return GS_OK;
    }
    status = look_up(core, handle, ret);
    if (status != GS_OK)
        return status;
    if ((*ret)->pool.device->rung != GS_RUNG_UNKNOWN) {
        cached.handle = handle;
        cached.generation = seen;
        cached.context = *ret;
    }
    return GS_OK;
}

gs_status gs_context_current(struct gs_core *core, struct gs_context **ret_context)
{
    CUcontext handle = NULL;
    gs_status status = core->driver.ctx_get_current(&handle);

    if (status != GS_OK)
        return status;
    if (!handle)
        return GS_NO_CONTEXT;
    return of_handle(core, handle, ret_context);
}

gs_status gs_context_of_stream(struct gs_core *core, CUstream stream,
                               struct gs_context **ret_context)
{
    CUcontext handle = NULL;
    gs_status status;

    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return gs_context_current(core, ret_context);
    status = core->driver.stream_get_ctx(stream, &handle);
    if (status != GS_OK)
        return status;
    return of_handle(core, handle, ret_context);
}

gs_status gs_context_lock_chunk(struct gs_core *core, CUdeviceptr address,
                                struct gs_chunk **ret_chunk)
{
    for (;;) {
        struct gs_span *span = gs_map_find(&core->map, address);
        struct gs_chunk *chunk = (struct gs_chunk *)span;
        struct gs_pool *pool;

        if (!span)
            return GS_NOT_OURS;
        if (span->kind == GS_SPAN_IMPORT)
            return GS_NOT_LIVE;
        pool = __atomic_load_n(&chunk->pool, __ATOMIC_RELAXED);
        if (!pool)
            continue; /* just taken out of the map */
        gs_lock_take(&pool->lock);
        if (chunk->pool == pool && gs_map_find(&core->map, address) == span) {
            *ret_chunk = chunk;
            return GS_OK;
        }
        gs_lock_release(&pool->lock);
    }
}

struct gs_context *gs_core_context_detach(struct gs_core *core, CUcontext handle)
{
    struct gs_context *context;

    gs_lock_take(&core->lock);
    context = context_find(core, handle);
    if (context) {
        context->detached = true;
        gs_context_handles_changed(core);
    }
    gs_lock_release(&core->lock);
    gs_share_context_leaving(core->share, handle);
    return context;
}

void gs_core_context_stays(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    gs_share_context_stays(core->share, handle);
    if (!context)
        return;
    gs_lock_take(&core->lock);
    context->detached = false;
    gs_context_handles_changed(core);
    gs_lock_release(&core->lock);
}

/* Called with the pool's lock held: every live block is freed, as the driver does. */
static void free_all(struct gs_pool *pool)
{
    for (struct gs_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        for (struct gs_block *block = chunk->lowest; block; block = block->above)
            if (block->state == GS_BLOCK_LIVE) {
                gs_pool_unlive(pool, block);
                gs_block_list_push(&pool->retiring, block);
            }
}

/* Takes a dead context whose memory is all gone out of the list. The contexts' lock is held. */
static void recycle(struct gs_core *core, struct gs_context *context)
{
    struct gs_context **link = &core->contexts;

    while (*link != context)
        link = &(*link)->next;
    *link = context->next;
    gs_pool_fini(&context->pool);
    context->next = core->spare_contexts;
    core->spare_contexts = context;
    __atomic_store_n(&core->dead, core->dead - 1, __ATOMIC_RELAXED);
}

void gs_context_bury_dead(struct gs_core *core)
{
    struct gs_chunk *released = NULL;
    struct gs_context *next;

    if (__atomic_load_n(&core->dead, __ATOMIC_RELAXED) == 0)
        return;
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = next) {
        struct gs_chunk *detached, *last;
        bool empty;

        next = context->next;
        gs_lock_take(&context->pool.lock);
        detached = NULL;
        if (context->pool.dead) {
            gs_pool_collect_limbo(&context->pool, false);
            detached = gs_pool_detach_ready(&context->pool, 0);
        }
        empty = context->pool.dead && !context->pool.chunks;
        gs_lock_release(&context->pool.lock);
        if (detached) {
            for (last = detached; last->next;)
                last = last->next;
            last->next = released;
            released = detached;
        }
        if (empty)
            recycle(core, context);
    }
    gs_lock_release(&core->lock);
    gs_chunks_release(&core->shared, released);
}

void gs_core_context_gone(struct gs_core *core, CUcontext handle, struct gs_context *context)
{
    gs_fences_capture_context_gone(&core->fences, handle);
    gs_share_context_gone(core->share, handle);
    if (!context)
        return;
    gs_lock_take(&core->lock);
    gs_lock_take(&context->pool.lock);
    context->pool.dead = true;
    gs_fence_pool_forget(&context->pool.events);
    free_all(&context->pool);
    gs_pool_context_over(&context->pool);
    gs_lock_release(&context->pool.lock);
    __atomic_store_n(&core->dead, core->dead + 1, __ATOMIC_RELAXED);
    gs_lock_release(&core->lock);
    gs_context_bury_dead(core);
}

bool gs_core_context_exists(struct gs_core *core, CUcontext handle)
{
    unsigned version;

    return core->driver.ctx_get_api_version(handle, &version) == CUDA_SUCCESS;
}

bool gs_core_primary_active(struct gs_core *core, CUdevice device)
{
    unsigned flags;
    int active = 0;

    return core->driver.primary_ctx_get_state(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUcontext gs_core_primary(struct gs_core *core, CUdevice device)
{
    CUcontext handle = NULL;
    bool known = false;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        known = known || context->pool.device->ordinal == device;
    gs_lock_release(&core->lock);
    if (!known || !gs_core_primary_active(core, device) ||
        core->driver.primary_ctx_retain(&handle, device) != CUDA_SUCCESS)
        return NULL;
    core->driver.primary_ctx_release(device);
    return handle;
}

void gs_core_stream_gone(struct gs_core *core, CUstream stream)
{
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next) {
        gs_lock_take(&context->pool.lock);
        gs_pool_flush_streams(&context->pool, gs_stream_key(stream));
        gs_lock_release(&context->pool.lock);
    }
    gs_lock_release(&core->lock);
}

size_t gs_core_cached(struct gs_core *core)
{
    struct gs_context *current;
    size_t cached_bytes = 0;

    if (gs_context_current(core, &current) != GS_OK)
        return 0;
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next) {
        struct gs_pool *pool = &context->pool;

        if (pool->device != current->pool.device)
            continue;
        gs_lock_take(&pool->lock);
        cached_bytes += pool->reserved - pool->live - pool->limbo.bytes;
        gs_lock_release(&pool->lock);
    }
    gs_lock_release(&core->lock);
    return cached_bytes;
}

void gs_core_pool_set(struct gs_core *core, CUdevice device, CUmemoryPool pool)
{
    if (device >= 0 && device < GS_DEVICES_MAX)
        __atomic_store_n(&core->current_pool[device], pool, __ATOMIC_RELAXED);
}
