/* The public face of core (core/api/core.h): allocating, freeing, asking, sharing. */
#include "core/api/core.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/cancel.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

/* What an allocation waits at most for a GPU that is behind; twice as long each time in vain. */
#define BEHIND_WAIT_NS UINT64_C(50000000)
#define BEHIND_DOUBLED 3 /* times at most */

#define CHANGED 1000000 /* a handle has changed its meaning since the context was looked up */

/* A lease, a grace or a use of a registration has ended: its blocks may leave limbo. Runs on the
 * share thread, or on the one that ended the use. No lock is held. */
static void hold_ended(void *arg)
{
    struct gs_core *core = arg;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++) {
            /* Detached: on its way out, or dead and looked through below. */
            if (!context->pools[i] || context->detached)
                continue;
            gs_latch_take(&context->pools[i]->lock);
            gs_pool_collect(context->pools[i]);
            gs_pool_collect_limbo(context->pools[i], false);
            gs_latch_release(&context->pools[i]->lock);
        }
    gs_lock_release(&core->lock);
    gs_core_wipe(core);
    gs_context_bury_dead(core);
}

static void registration_released(void *arg)
{
    struct gs_core *core = arg;

    hold_ended(core);
    gs_share_look_again(core->share);
}

static bool import_held(void *arg, uint64_t base, size_t size)
{
    struct gs_core *core = arg;

    return gs_regcache_in_use(core->regcache, base, size);
}

static void import_going(void *arg, uint64_t base, size_t size)
{
    struct gs_core *core = arg;

    gs_regcache_settle(core->regcache, base, size);
}

gs_status gs_core_create(const struct gs_driver *driver, const struct gs_core_options *options,
                         struct gs_core **ret_core)
{
    struct gs_core *core = calloc(1, sizeof *core);
    struct gs_share_events events = {.lease_ended = hold_ended,
                                     .unmapping = import_going,
                                     .held = import_held,
                                     .arg = core};
    struct gs_regcache_events released = {.released = registration_released, .arg = core};
    gs_status status;

    if (!core)
        return GS_NO_HOST_MEMORY;
    core->driver = *driver;
    core->options = *options;
    gs_context_handles_changed(core);
    gs_lock_init(&core->lock, GS_RANK_CONTEXTS);
    gs_map_init(&core->map);
    gs_reach_init(core);
    gs_releases_init(core);
    gs_fences_init(&core->fences, &core->driver);
    gs_lone_init(&core->lone, &core->fences, &core->options.log, gs_context_pass_pools, core,
                 options->lone_stream && !options->free_native && !options->share.isolate);
    status = gs_share_create(&core->driver, &core->map, &core->fences, &core->options.log,
                             &core->options.share, &events, &core->share);
    if (status == GS_OK)
        status = gs_regcache_create(&core->options.registrations, &released, &core->options.log,
                                    &core->regcache);
    if (status != GS_OK) {
        if (core->share)
            gs_share_destroy(core->share);
        free(core);
        return status;
    }
    core->shared = (struct gs_pool_shared){
        .driver = &core->driver,
        .log = &core->options.log,
        .map = &core->map,
        .fences = &core->fences,
        .lone = &core->lone,
        .guard = gs_guard_of(core),
        .async = core->async,
        .debt = core->debt,
        .left = core->left,
        .wipe = options->share.isolate,
        .whole_chunks = options->whole_chunks,
        .small_limit = options->small_limit,
        .epoch_bytes = options->epoch_bytes,
        .cache_limit = options->cache_limit,
        .cache_percent = options->cache_percent,
        .retiring_percent = options->retiring_percent,
        .activity = gs_decay_activity,
        .activity_arg = core,
    };
    *ret_core = core;
    return GS_OK;
}

void gs_core_destroy(struct gs_core *core)
{
    struct gs_context *context;
    CUcontext popped;

    gs_lone_settle(&core->lone, "the library ends");
    gs_decay_stop(core);
    gs_neighbour_leave(core);
    gs_neighbour_free(core);
    for (context = core->contexts; context; context = context->next) {
        if (context->pools[0]->dead ||
            core->driver.ctx_push_current(context->handle) != CUDA_SUCCESS)
            continue;
        core->driver.ctx_synchronize();
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++) {
            if (!context->pools[i])
                continue;
            gs_latch_take(&context->pools[i]->lock);
            gs_pool_collect(context->pools[i]);
            gs_fence_pool_destroy(&context->pools[i]->events);
            gs_latch_release(&context->pools[i]->lock);
        }
        core->driver.ctx_pop_current(&popped);
    }
    while ((context = core->contexts)) {
        while (context && context->detached)
            context = context->next;
        if (!context)
            break;
        gs_core_context_gone(core, context->handle,
                             gs_core_context_detach(core, context->handle));
    }
    gs_context_end_dead(core);
    gs_releases_finish(core);
    gs_releases_destroy(core);
    gs_share_destroy(core->share);
    gs_regcache_destroy(core->regcache);
    while ((context = core->spare_contexts)) {
        core->spare_contexts = context->next;
        for (unsigned i = 0; i < GS_CONTEXT_POOLS; i++)
            free(context->pools[i]);
        free(context);
    }
    gs_map_destroy(&core->map);
    gs_reach_destroy(core);
    gs_fences_destroy(&core->fences);
    gs_lone_destroy(&core->lone);
    gs_lock_destroy(&core->lock);
    free(core);
}

void gs_core_forked(struct gs_core *core)
{
    for (unsigned i = 0; i < GS_DEVICES_MAX; i++)
        gs_device_forked(&core->device[i]);
}

void gs_core_at_exit(struct gs_core *core)
{
    gs_decay_at_exit(core);
    gs_neighbour_leave(core);
    gs_stats_log(core);
    gs_share_at_exit(core->share);
}

/* ---- Allocate --------------------------------------------------------------------------- */

/* A block from what is there, looking at what has come back since the last time. The stream's own
 * list stays: it is nearer to its next use than any epoch. */
static struct gs_block *take_collected(struct gs_pool *pool, size_t size, uint64_t stream_key)
{
    struct gs_block *block;

    if (gs_pool_settle(pool) && (block = gs_pool_take(pool, size)))
        return block;
    gs_pool_flush_streams(pool, stream_key);
    gs_pool_look(pool);
    if (pool->limbo.first)
        gs_pool_collect_limbo(pool, false);
    block = gs_pool_take(pool, size);
    return !block && gs_pool_settle(pool) ? gs_pool_take(pool, size) : block;
}

/* The same while too much retires: waits rather than let the pool grow by it, 400 ms at most, where
 * the driver's own free would have waited. A GPU that does not move (its work may wait for this very
 * thread) is waited for again when the pool has grown a good deal meanwhile. Not for an allocation
 * in the order of a stream, which natively waits for nothing. */
static struct gs_block *take_waiting(struct gs_pool *pool, size_t size)
{
    unsigned doubled = pool->stalls < BEHIND_DOUBLED ? pool->stalls : BEHIND_DOUBLED;
    const struct gs_patience patience = {gs_now_ns(), BEHIND_WAIT_NS << doubled};
    const uint64_t life = pool->made_ns;
    struct gs_block *block = NULL;

    while (!block && gs_pool_behind(pool, size) && gs_pool_wait_oldest(pool, &patience)) {
        if (pool->dead || pool->made_ns != life) /* meanwhile */
            break;
        gs_pool_look(pool);
        gs_pool_settle(pool);
        block = gs_pool_take(pool, size);
    }
    return block;
}

/* What is not there at once. The pool's lock is held, and is let go here. */
static gs_status allocate_slowly(struct gs_core *core, struct gs_pool *pool, size_t size,
                                 uint64_t stream_key, CUdeviceptr *ret_address)
{
    struct gs_chunk *excess = NULL;
    struct gs_block *block = NULL;
    const uint64_t life = pool->made_ns;
    gs_status status;

    GS_COUNT(pool->counts.misses);
    if (pool->reserved >= pool->grown_first)
        block = take_collected(pool, size, stream_key);
    if (!block && !stream_key && gs_pool_behind(pool, size))
        block = take_waiting(pool, size);
    if (block) {
        *ret_address = block->base;
    } else {
        gs_pool_weigh(pool);
        excess = gs_pool_detach_excess(pool, size);
    }
    gs_latch_release(&pool->lock);
    if (block)
        return GS_OK;
    GS_UNCANCELLED;
    if (excess)
        gs_pool_release(core, pool, excess, size);
    gs_releases_make_room(core, pool, size);
    gs_context_bury_dead(core);
    if (core->shared.wipe)
        gs_pool_wipe(core, pool);
    status = gs_pool_grow(core, pool, life, size, ret_address);
    if (status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
        status = gs_pool_reclaim(core, pool, life, size, stream_key, ret_address);
    return status;
}

/* A full device may have given the block out of another pool; and a reset by another thread may
 * have taken it back already. */
static void count_async(struct gs_core *core, CUdeviceptr address)
{
    struct gs_chunk *chunk;
    struct gs_block *block;
    CUdevice device;
    bool look;

    if (gs_context_lock_chunk(core, address, &chunk) != GS_OK)
        return;
    device = chunk->pool->device->ordinal;
    block = gs_chunk_start(chunk, address);
    look = block && block->state == GS_BLOCK_LIVE && gs_pool_count_async(chunk->pool, block);
    gs_latch_release(&chunk->pool->lock);
    if (look)
        gs_async_look(core, device);
}

/* Just after the context was looked up. CHANGED: it may have gone since. */
static gs_status allocate(struct gs_core *core, struct gs_context *context, size_t size,
                          uint64_t stream_key, CUdeviceptr *ret_address)
{
    const struct gs_device *device = context->device;
    struct gs_block *block = NULL;
    struct gs_pool *pool;
    gs_status status;
    uint64_t began;

    if (__builtin_expect(device->rung == GS_RUNG_UNKNOWN, 0))
        return GS_NO_MEMORY;
    if (__builtin_expect(device->rung == GS_RUNG_NATIVE, 0))
        return GS_NOT_OFFERED;
    if (size == 0)
        return GS_INVALID;
    if (size > device->total)
        return GS_NO_MEMORY;
    pool = gs_context_lock_pool(core, context, size);
    if (__builtin_expect(!pool, 0))
        return CHANGED;
    if (stream_key)
        block = gs_pool_take_stream(pool, size, stream_key);
    if (!block)
        block = gs_pool_take(pool, size);
    if (__builtin_expect(block != NULL, 1)) {
        const bool look = stream_key && gs_pool_count_async(pool, block);

        *ret_address = block->base;
        GS_COUNT(pool->counts.hits);
        gs_latch_release(&pool->lock);
        if (__builtin_expect(look, 0))
            gs_async_look(core, device->ordinal);
        return GS_OK;
    }
    began = gs_now_ns();
    status = allocate_slowly(core, pool, size, stream_key, ret_address);
    gs_stats_took(pool, began);
    if (status == GS_OK && stream_key)
        count_async(core, *ret_address);
    return status;
}

/* The device was too full even to be tried. */
static gs_status try_device_again(struct gs_core *core, struct gs_context **context)
{
    const struct gs_device *device = (*context)->device;

    if (!gs_neighbour_ask(core, device, (*context)->handle, GS_PAGE_SIZE))
        return GS_OK;
    return gs_context_current(core, context);
}

gs_status gs_core_alloc(struct gs_core *core, size_t size, CUdeviceptr *ret_address)
{
    struct gs_context *context;
    gs_status status = gs_context_current(core, &context);

    if (status == GS_OK && context->device->rung == GS_RUNG_UNKNOWN)
        status = try_device_again(core, &context);
    if (status == GS_OK)
        status = allocate(core, context, size, 0, ret_address);
    return __builtin_expect(status == CHANGED, 0) ? gs_core_alloc(core, size, ret_address) : status;
}

gs_status gs_core_alloc_async(struct gs_core *core, size_t size, CUmemoryPool pool,
                              CUstream stream, CUdeviceptr *ret_address)
{
    const struct gs_device *device;
    struct gs_context *context;
    gs_status status;

    status = gs_context_of_stream(core, stream, &context);
    if (status != GS_OK)
        return status;
    if (!core->driver.ctx_record_event)
        return GS_NOT_OFFERED;
    device = context->device;
    if (!pool)
        pool = __atomic_load_n(&core->current_pool[device->ordinal], __ATOMIC_RELAXED);
    if (pool && pool != device->default_pool)
        return GS_NOT_OFFERED;
    status = allocate(core, context, size, gs_stream_key(stream), ret_address);
    return __builtin_expect(status == CHANGED, 0)
               ? gs_core_alloc_async(core, size, pool, stream, ret_address)
               : status;
}

/* ---- Free ------------------------------------------------------------------------------- */

/* The live block that starts at the address, its pool locked. */
static gs_status lock_live(struct gs_core *core, CUdeviceptr address, struct gs_block **ret)
{
    struct gs_chunk *chunk;
    gs_status status = gs_context_lock_chunk(core, address, &chunk);
    struct gs_block *block;

    if (status != GS_OK)
        return status;
    block = gs_chunk_start(chunk, address);
    if (block && block->state == GS_BLOCK_LIVE) {
        *ret = block;
        return GS_OK;
    }
    gs_latch_release(&chunk->pool->lock);
    return GS_NOT_LIVE;
}

/* Waits for all work of the context, as the driver's own free does: for as long as that, in the same
 * call. No lock is held. */
static gs_status synchronize(struct gs_core *core, CUcontext handle)
{
    CUcontext popped;
    gs_status status = core->driver.ctx_push_current(handle);

    if (status != GS_OK)
        return status;
    status = core->driver.ctx_synchronize();
    core->driver.ctx_pop_current(&popped);
    return status;
}

/* As the driver's free: waits first. The pool's lock is held and let go meanwhile. */
static gs_status pass_waiting(struct gs_core *core, struct gs_pool *pool, struct gs_block *block)
{
    uint64_t began = gs_now_ns();
    gs_status status;

    gs_pool_unlive(pool, block);
    gs_latch_release(&pool->lock);
    status = synchronize(core, pool->context);
    gs_latch_take(&pool->lock);
    if (status == GS_OK || pool->dead) /* its work is over, whoever waited */
        gs_pool_pass(pool, block);
    else
        gs_pool_retire_more(pool, block);
    gs_stats_took(pool, began);
    return status;
}

/* Behind what was submitted to a context so far. Nothing is asked of the driver here, so that it may
 * be while a capture is open: the event is recorded when the fence is looked at. False: the context
 * has ended meanwhile, or there was no host memory for its events. */
static bool behind(struct gs_context *context, CUcontext handle, struct gs_fence *ret)
{
    struct gs_pool *pool = context->pools[0];
    bool is_there;

    gs_latch_take(&pool->lock);
    is_there = pool->context == handle && pool->events.line;
    if (is_there)
        *ret = gs_fence_next(&pool->events);
    gs_latch_release(&pool->lock);
    return is_there;
}

/* A block behind a fence that is not its context's. Its memory goes back by who looks next where its
 * context is dead. */
static gs_status retire_elsewhere(struct gs_core *core, CUdeviceptr address,
                                  const struct gs_fence *fence)
{
    struct gs_block *block;
    gs_status status = lock_live(core, address, &block);

    if (status != GS_OK)
        return status;
    if (!gs_pool_retire_elsewhere(block->chunk->pool, block, fence))
        status = GS_NO_HOST_MEMORY;
    gs_latch_release(&block->chunk->pool->lock);
    gs_context_bury_dead(core);
    return status;
}

/* Stream-ordered memory whose context is dead: no work of that can touch it, and work of the current
 * one may. */
static gs_status free_orphan(struct gs_core *core, CUdeviceptr address)
{
    struct gs_fence fence = {0};
    struct gs_context *context;
    gs_status status = gs_context_current_unprobed(core, &context);
    CUcontext handle;

    if (status == GS_OK) {
        handle = context->handle;
        if (core->options.free_native)
            status = synchronize(core, handle);
        else if (!behind(context, handle, &fence))
            status = GS_NO_HOST_MEMORY;
    }
    return status == GS_OK || status == GS_NO_CONTEXT ? retire_elsewhere(core, address, &fence)
                                                      : status;
}

gs_status gs_core_free(struct gs_core *core, CUdeviceptr address)
{
    struct gs_chunk *surplus = NULL;
    struct gs_block *block;
    struct gs_pool *pool;
    gs_status status = lock_live(core, address, &block);

    if (status != GS_OK)
        return status;
    pool = block->chunk->pool;
    if (__builtin_expect(pool->dead, 0)) {
        gs_latch_release(&pool->lock);
        return free_orphan(core, address);
    }
    if (block->offer && pool->limbo.first)
        gs_pool_collect_limbo(pool, false);
    if (core->options.free_native || !core->driver.ctx_record_event)
        status = pass_waiting(core, pool, block);
    else
        gs_pool_retire(pool, block);
    if (pool->ready > pool->cache_limit)
        surplus = gs_pool_detach_ready(pool, pool->cache_limit);
    gs_latch_release(&pool->lock);
    if (surplus) {
        uint64_t began = gs_now_ns();

        gs_pool_release(core, pool, surplus, 0);
        gs_stats_took(pool, began);
    }
    return status;
}

/*
 * The work of another context's stream is not behind the owning context's events: the block is
 * behind that one's first. Drivers that record no such event wait, here and in cuMemFree: for all
 * that was submitted in both contexts, where the driver alone would not in this call.
 */
static gs_status free_elsewhere(struct gs_core *core, CUdeviceptr address,
                                struct gs_context *context)
{
    CUcontext handle = context->handle;
    struct gs_fence fence;
    gs_status status;

    if (!core->driver.ctx_record_event) {
        status = synchronize(core, handle);
        return status == GS_OK ? gs_core_free(core, address) : status;
    }
    return behind(context, handle, &fence) ? retire_elsewhere(core, address, &fence)
                                           : GS_NO_HOST_MEMORY;
}

gs_status gs_core_free_async(struct gs_core *core, CUdeviceptr address, CUstream stream)
{
    struct gs_context *context;
    struct gs_block *block;
    struct gs_pool *pool;
    gs_status status;
    bool owned;

    if (!gs_map_find(&core->map, address))
        return GS_NOT_OURS;
    status = gs_context_of_stream(core, stream, &context);
    if (status != GS_OK)
        return status;
    status = lock_live(core, address, &block);
    if (status != GS_OK)
        return status;
    pool = block->chunk->pool;
    owned = pool->context == context->handle && !pool->dead;
    if (owned && core->driver.ctx_record_event) {
        if (block->async)
            gs_pool_retire_stream(pool, block, gs_stream_key(stream));
        else
            gs_pool_retire_lingering(pool, block, gs_stream_key(stream));
        gs_latch_release(&pool->lock);
        return GS_OK;
    }
    gs_latch_release(&pool->lock);
    return owned ? gs_core_free(core, address) : free_elsewhere(core, address, context);
}

/* ---- Ask -------------------------------------------------------------------------------- */

static gs_status find_import(struct gs_core *core, CUdeviceptr address,
                             struct gs_block_info *ret_info)
{
    struct gs_import_info import;
    gs_status status = gs_share_find(core->share, address, &import);

    if (status != GS_OK)
        return GS_NOT_LIVE;
    *ret_info = (struct gs_block_info){
        .base = import.base,
        .size = import.size,
        .id = import.id,
        .context = import.context,
        .sync_memops = 1,
        .imported = true,
    };
    return GS_OK;
}

gs_status gs_core_find(struct gs_core *core, CUdeviceptr address, struct gs_block_info *ret_info)
{
    struct gs_chunk *chunk;
    struct gs_pool *pool;
    const struct gs_block *block;
    gs_status status = gs_context_lock_chunk(core, address, &chunk);
    CUdevice orphan_of = -1;

    if (status == GS_NOT_LIVE)
        return find_import(core, address, ret_info);
    if (status != GS_OK)
        return status;
    pool = chunk->pool;
    block = gs_chunk_find(chunk, address);
    if (!gs_pool_usable(pool, block) || address - block->base >= block->size) {
        status = GS_NOT_LIVE;
    } else {
        *ret_info = (struct gs_block_info){
            .base = block->base,
            .size = block->size,
            .id = block->id,
            .context = pool->context,
            .async = block->async,
            .sync_memops = block->memops >> 1 == block->id ? (int)(block->memops & 1) : -1,
            .default_pool = pool->device->default_pool,
        };
        if (pool->dead)
            orphan_of = pool->device->ordinal;
    }
    gs_latch_release(&pool->lock);
    if (orphan_of >= 0)
        ret_info->context = gs_context_of_device(core, orphan_of);
    return status;
}

struct gs_lone *gs_core_lone(struct gs_core *core)
{
    return &core->lone;
}

/* False: no live block is there. */
static bool touch(struct gs_core *core, CUdeviceptr address)
{
    struct gs_chunk *chunk;
    struct gs_block *block;
    bool live;

    if (gs_context_lock_chunk(core, address, &chunk) != GS_OK)
        return true; /* not the pools' */
    block = gs_chunk_find(chunk, address);
    live = block->state == GS_BLOCK_LIVE;
    if (live)
        block->elsewhere = true;
    gs_latch_release(&chunk->pool->lock);
    return live;
}

void gs_core_touches(struct gs_core *core, CUstream stream, CUdeviceptr dst, CUdeviceptr src)
{
    const uint64_t only = __atomic_load_n(&core->lone.stream, __ATOMIC_RELAXED);

    if (only == gs_stream_key(stream) || (dst && !touch(core, dst)) ||
        (src && !touch(core, src)) || !gs_lone_passes_by(&core->lone, stream))
        gs_lone_submits(&core->lone, stream);
}

const struct gs_map *gs_core_map(const struct gs_core *core)
{
    return &core->map;
}

/* With whose end a capture there ends; the program may have another context current. */
static CUcontext capturing_context(struct gs_core *core, CUstream stream)
{
    CUcontext current = NULL, its;

    core->driver.ctx_get_current(&current);
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
        core->driver.stream_get_ctx(stream, &its) != CUDA_SUCCESS || its == current)
        return current;
    return gs_context_owner(core, its);
}

gs_status gs_core_capture_begin(struct gs_core *core, CUstream stream)
{
    CUcontext context;

    gs_lone_settle(&core->lone, "a capture begins");
    context = capturing_context(core, stream);
    return gs_fences_capture_begin(&core->fences, gs_stream_key(stream), context);
}

void gs_core_capture_end(struct gs_core *core, CUstream stream)
{
    gs_fences_capture_end(&core->fences, gs_stream_key(stream));
}

bool gs_core_capturing(struct gs_core *core)
{
    return gs_fences_capturing(&core->fences);
}

CUresult gs_core_stream_status(struct gs_core *core, CUstream stream,
                               CUstreamCaptureStatus *ret_status)
{
    *ret_status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (!core->driver.stream_is_capturing)
        return CUDA_SUCCESS;
    return core->driver.stream_is_capturing(stream, ret_status);
}

/* ---- Share ------------------------------------------------------------------------------ */

static struct gs_share_source source_of(const struct gs_block *block)
{
    const struct gs_chunk *chunk = block->chunk;
    struct gs_share_source source = {
        .handle = chunk->handle,
        .chunk_id = chunk->id,
        .chunk_size = chunk->span.size,
        .block_id = block->id,
        .offset = block->base - chunk->span.base,
        .size = block->size,
        .alone = chunk->shift == GS_LARGE_SHIFT && chunk->pool->shared->whole_chunks,
    };

    memcpy(source.uuid, chunk->pool->device->uuid, sizeof source.uuid);
    return source;
}

/* The live block around an address, its pool locked. */
static gs_status lock_around(struct gs_core *core, CUdeviceptr address, struct gs_block **ret)
{
    struct gs_chunk *chunk;
    gs_status status = gs_context_lock_chunk(core, address, &chunk);

    if (status != GS_OK)
        return status;
    *ret = gs_chunk_find(chunk, address);
    if ((*ret)->state == GS_BLOCK_LIVE && address - (*ret)->base < (*ret)->size)
        return GS_OK;
    gs_latch_release(&chunk->pool->lock);
    return GS_INVALID;
}

gs_status gs_core_token(struct gs_core *core, CUdeviceptr address,
                        unsigned char ret_token[GS_TOKEN_SIZE])
{
    struct gs_share_source source;
    struct gs_offer *offer;
    struct gs_block *block;
    gs_status status;

    gs_lone_settle(&core->lone, "memory is shared");
    status = lock_around(core, address, &block);
    if (status == GS_NOT_LIVE && gs_share_pass_on(core->share, address, ret_token) == GS_OK)
        return GS_OK;
    if (status == GS_NOT_LIVE || status == GS_INVALID)
        gs_log_line(&core->options.log, GS_LOG_DEBUG, "no IPC handle: no block in use lies at %llx",
                    (unsigned long long)address);
    if (status != GS_OK)
        return status == GS_NOT_LIVE ? GS_INVALID : status;
    source = source_of(block);
    offer = block->offer;
    if (offer)
        gs_offer_token(offer, ret_token);
    gs_latch_release(&block->chunk->pool->lock);
    if (offer)
        return GS_OK;

    /* The first offer of a process starts a thread and a socket: not under the pool's lock. */
    status = gs_share_offer(core->share, &source, &offer);
    if (status != GS_OK)
        return status;
    status = lock_around(core, address, &block);
    if (status == GS_OK && block->id == source.block_id && !block->offer) {
        block->offer = offer;
        gs_offer_token(offer, ret_token);
        gs_share_given_out(core->share, offer);
        gs_latch_release(&block->chunk->pool->lock);
        return GS_OK;
    }
    /* Another thread was first, or freed the block meanwhile. */
    if (status == GS_OK) {
        if (block->id == source.block_id)
            gs_offer_token(block->offer, ret_token);
        else
            status = GS_INVALID;
        gs_latch_release(&block->chunk->pool->lock);
    }
    if (status != GS_OK)
        gs_log_line(&core->options.log, GS_LOG_DEBUG,
                    "no IPC handle: the block at %llx was freed meanwhile",
                    (unsigned long long)address);
    gs_share_withdraw(core->share, offer, 0, gs_now_ns(), true);
    return status == GS_OK ? GS_OK : GS_INVALID;
}

gs_status gs_core_open(struct gs_core *core, const unsigned char token[GS_TOKEN_SIZE],
                       CUdeviceptr *ret_address)
{
    struct gs_context *context;
    gs_status status = gs_context_current_unprobed(core, &context);

    if (status == GS_OK && !gs_device_has_vmm(&core->driver))
        status = GS_NOT_OFFERED;
    if (status != GS_OK)
        gs_log_line(&core->options.log, GS_LOG_DEBUG, "an IPC handle was not opened: %s",
                    status == GS_NOT_OFFERED ? "the driver has no virtual memory management"
                                             : "no context of a GPU that takes part is current");
    if (status != GS_OK)
        return status;
    status = gs_share_open(core->share, token, context->handle, context->ordinal, ret_address);
    if (status == GS_OK)
        gs_reach_admit(core, *ret_address);
    return status;
}

gs_status gs_core_close(struct gs_core *core, CUdeviceptr address)
{
    return gs_share_close(core->share, address);
}
