/*
 * Giving memory back to the driver: what is too much before a pool grows, what other pools of a
 * full device can spare, and how an allocation on a full device still succeeds.
 *
 * A pool holds no more than a little above what was live lately, what retires apart: a chunk that
 * is ready as a whole goes when a new one of another size comes. Without that, a program whose
 * sizes change holds several times what it uses.
 */
#include "core/reclaim.h"

#include "core/context.h"

#define GROWN_PER_LOOK 8 /* chunks, for one look at what the device has left */
#define GROWN_FIRST ((size_t)16 << 20) /* a chunk of small blocks in a pool of few threads */
#define POOLS_MAX 1024 /* of one device, asked for memory when it is full */
#define START_NS UINT64_C(1000000000)
#define WEIGHED_NS UINT64_C(50000000) /* at least between two weighings */
#define UNFELT_NS UINT64_C(500000000) /* and before less is kept again */
#define FELT_PART 100                 /* of the time */
#define UNFELT_PART 1000
#define UNMAPPED_NS UINT64_C(500000000) /* for peers that are to unmap what was released */
#define HELD_MIN ((size_t)64 << 20) /* live and ready: below this nothing is too much */

/* ---- One pool, locked ------------------------------------------------------------------- */

static const struct gs_chunk *chunk_of(const struct gs_bin_entry *entry)
{
    return ((const struct gs_block *)entry)->chunk;
}

static struct gs_chunk *detach(struct gs_pool *pool, enum gs_bin_kind kind,
                               struct gs_bin_entry *entry, struct gs_chunk *onto)
{
    struct gs_chunk *chunk = ((struct gs_block *)entry)->chunk;

    gs_bins_remove(&pool->bins[kind], entry);
    gs_block_record_free(pool, (struct gs_block *)entry);
    gs_map_remove(pool->shared->map, &chunk->span);
    if (chunk->next)
        chunk->next->prev = chunk->prev;
    if (chunk->prev)
        chunk->prev->next = chunk->next;
    else
        pool->chunks = chunk->next;
    __atomic_store_n(&chunk->pool, NULL, __ATOMIC_RELAXED);
    pool->reserved -= chunk->span.size;
    pool->ready -= chunk->span.size;
    pool->left += chunk->span.size;
    if (pool->ready < pool->ready_low)
        pool->ready_low = pool->ready;
    GS_COUNT(pool->counts.trims);
    chunk->next = onto;
    return chunk;
}

/* Chunks of about `bytes` together, in as few pieces as it takes. */
static struct gs_chunk *detach_bytes(struct gs_pool *pool, size_t bytes)
{
    static const enum gs_bin_kind kinds[] = {GS_BIN_LARGE_WHOLE, GS_BIN_SMALL_WHOLE};
    struct gs_bin_entry *staying[2] = {NULL, NULL};
    struct gs_chunk *detached = NULL;

    for (int i = 0; i < 2; i++)
        while (bytes > 0) {
            struct gs_bins *bins = &pool->bins[kinds[i]];
            struct gs_bin_entry *entry = gs_bins_find(bins, bytes, SIZE_MAX);

            if (!entry)
                entry = gs_bins_largest(bins);
            if (!entry)
                break;
            bytes -= entry->size < bytes ? entry->size : bytes;
            if (gs_regcache_doom(pool->shared->regcache, chunk_of(entry)->span.base, entry->size)) {
                detached = detach(pool, kinds[i], entry, detached);
                continue;
            }
            /* Something is registered there and in use: it stays. */
            gs_bins_remove(bins, entry);
            entry->next = staying[i];
            staying[i] = entry;
        }
    for (int i = 0; i < 2; i++)
        while (staying[i]) {
            struct gs_bin_entry *next = staying[i]->next;

            gs_bins_insert(&pool->bins[kinds[i]], staying[i]);
            staying[i] = next;
        }
    return detached;
}

struct gs_chunk *gs_pool_detach_ready(struct gs_pool *pool, size_t keep)
{
    if (pool->ready <= keep)
        return NULL;
    gs_pool_settle(pool);
    return detach_bytes(pool, pool->ready - keep);
}

/* At a program's start chunks are made whatever is kept, so the first second counts for nothing. */
void gs_pool_weigh(struct gs_pool *pool)
{
    uint64_t now = gs_now_ns(), passed = now - pool->seen_ns;
    uint64_t mapping = pool->counts.map_ns - pool->seen_map_ns;

    if (passed < WEIGHED_NS)
        return;
    if (now - pool->made_ns > START_NS && mapping > passed / FELT_PART) {
        if (pool->spare_percent < GS_SPARE_PERCENT_MAX)
            pool->spare_percent += 4;
    } else if (mapping < passed / UNFELT_PART && pool->spare_percent > GS_SPARE_PERCENT_MIN &&
               passed > UNFELT_NS) {
        pool->spare_percent--;
    }
    pool->seen_ns = now;
    pool->seen_map_ns = pool->counts.map_ns;
}

struct gs_chunk *gs_pool_detach_excess(struct gs_pool *pool, size_t size)
{
    size_t peak = pool->live_peak > pool->live + size ? pool->live_peak : pool->live + size;
    size_t most = peak + peak / 100 * pool->spare_percent;
    size_t behind = gs_pool_behind_bytes(pool);
    size_t held = pool->live + pool->ready + behind + pool->ordered + size;

    /* What retires now is ready soon, and so much will retire again; but an epoch or two are no
     * sign of a GPU that is behind. */
    if (behind > pool->behind_high + 2 * pool->epoch_limit)
        pool->behind_high = behind - 2 * pool->epoch_limit;
    most += pool->behind_high + pool->ordered;
    if (most < HELD_MIN)
        most = HELD_MIN;
    return held > most ? detach_bytes(pool, held - most) : NULL;
}

size_t gs_chunks_release(struct gs_pool_shared *shared, struct gs_chunk *chunks)
{
    size_t bytes = 0;

    while (chunks) {
        struct gs_chunk *next = chunks->next;
        void (*unmapping)(uint64_t, size_t) =
            __atomic_load_n(&shared->unmapping, __ATOMIC_ACQUIRE);

        if (unmapping)
            unmapping(chunks->span.base, chunks->span.size);
        /* What could not be unpinned keeps its memory: it is lost, but nobody else's. */
        if (gs_regcache_settle(shared->regcache, chunks->span.base, chunks->span.size)) {
            gs_share_chunk_gone(shared->share, chunks->id);
            gs_device_unmap(shared->driver, chunks->handle, chunks->span.base,
                            chunks->span.size);
            bytes += chunks->span.size;
        }
        gs_chunk_record_free(chunks);
        chunks = next;
    }
    return bytes;
}

/* ---- All pools of a device, no lock held ------------------------------------------------ */

/* What one pool can give up of `bytes`; with `wait`, also what has to be waited for. */
static size_t release_pool(struct gs_core *core, struct gs_pool *pool, bool wait, size_t bytes)
{
    struct gs_chunk *chunks;

    gs_latch_take(&pool->lock);
    gs_pool_flush_streams(pool, 0);
    gs_pool_collect(pool);
    while (wait && gs_pool_wait_oldest(pool, UINT64_MAX))
        continue;
    gs_pool_collect_limbo(pool, wait);
    chunks = gs_pool_detach_ready(pool, pool->ready > bytes ? pool->ready - bytes : 0);
    gs_latch_release(&pool->lock);
    return gs_chunks_release(&core->shared, chunks);
}

static size_t release_pools(struct gs_core *core, const struct gs_device *device, bool wait,
                            size_t bytes)
{
    struct gs_pool *pools[POOLS_MAX];
    unsigned count = 0;
    size_t released = 0;

    /* A pool found under the contexts' lock stays a pool after it (records are recycled, not
     * freed); one that dies meanwhile has nothing to give. */
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS && count < POOLS_MAX; i++)
            if (context->pools[i] && context->pools[i]->device == device)
                pools[count++] = context->pools[i];
    gs_lock_release(&core->lock);
    for (unsigned i = 0; i < count && released < bytes; i++)
        released += release_pool(core, pools[i], wait, bytes - released);
    gs_context_bury_dead(core);
    return released;
}

size_t gs_device_release(struct gs_core *core, const struct gs_device *device, bool wait)
{
    return release_pools(core, device, wait, SIZE_MAX);
}

size_t gs_device_yield(struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    return release_pools(core, device, false, bytes);
}

void gs_pool_release(struct gs_core *core, struct gs_pool *pool, struct gs_chunk *chunks)
{
    uint64_t began = gs_now_ns();

    gs_chunks_release(&core->shared, chunks);
    gs_latch_take(&pool->lock);
    GS_ADD(pool->counts.map_ns, gs_now_ns() - began);
    gs_latch_release(&pool->lock);
}

/* Now and then; what the pools of other contexts and processes do shows here. */
static void look_at_device(struct gs_core *core, struct gs_pool *pool)
{
    size_t left, total;
    CUcontext popped;

    if (!core->driver.mem_get_info || gs_fences_capturing(&core->fences) ||
        __atomic_load_n(&pool->counts.grown, __ATOMIC_RELAXED) % GROWN_PER_LOOK != 0 ||
        core->driver.ctx_push_current(pool->context) != CUDA_SUCCESS)
        return;
    if (core->driver.mem_get_info(&left, &total) == CUDA_SUCCESS) {
        gs_latch_take(&pool->lock);
        pool->left = left;
        gs_latch_release(&pool->lock);
    }
    core->driver.ctx_pop_current(&popped);
}

gs_status gs_pool_grow(struct gs_core *core, struct gs_pool *pool, size_t size,
                       struct gs_block **ret_block)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    bool small;
    size_t chunk_size = gs_pool_round(pool, size, &small), reserved;
    uint64_t began = gs_now_ns();
    gs_status status;

    chunk_size = (chunk_size + GS_PAGE_SIZE - 1) & ~(GS_PAGE_SIZE - 1);
    if (small && pool->grown_first)
        chunk_size = GROWN_FIRST;
    look_at_device(core, pool);
    status = gs_device_map(&core->driver, pool->device, chunk_size, &handle, &address);
    if (status != GS_OK)
        return status;
    gs_latch_take(&pool->lock);
    status = gs_pool_add_chunk(pool, address, chunk_size, small, handle);
    if (status == GS_OK)
        *ret_block = gs_pool_take(pool, size);
    reserved = pool->reserved;
    GS_ADD(pool->counts.map_ns, gs_now_ns() - began);
    gs_latch_release(&pool->lock);
    if (status == GS_OK)
        gs_reach_admit(core, address);
    else
        gs_device_unmap(&core->driver, handle, address, chunk_size);
    gs_decay_grown(core, reserved);
    return status;
}

/* Waits for this pool's epochs one by one, until the block can be had. */
static struct gs_block *wait_for_block(struct gs_pool *pool, size_t size)
{
    struct gs_block *block = NULL;
    bool more = true;

    gs_latch_take(&pool->lock);
    gs_pool_flush_streams(pool, 0);
    while (!block && more) {
        more = gs_pool_wait_oldest(pool, UINT64_MAX);
        gs_pool_settle(pool);
        block = gs_pool_take_any(pool, size);
    }
    gs_latch_release(&pool->lock);
    return block;
}

gs_status gs_pool_reclaim(struct gs_core *core, struct gs_pool *pool, size_t size,
                          struct gs_block **ret_block)
{
    gs_status status = GS_NO_MEMORY;

    gs_latch_take(&pool->lock);
    *ret_block = gs_pool_take_any(pool, size);
    gs_latch_release(&pool->lock);
    if (*ret_block)
        return GS_OK;
    if (gs_device_release(core, pool->device, false) > 0) {
        gs_share_await_unmapped(core->share, UNMAPPED_NS);
        status = gs_pool_grow(core, pool, size, ret_block);
        if (status != (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
            return status;
    }
    *ret_block = wait_for_block(pool, size);
    if (*ret_block)
        return GS_OK;
    gs_device_release(core, pool->device, true);
    gs_share_await_unmapped(core->share, UNMAPPED_NS);
    status = gs_pool_grow(core, pool, size, ret_block);
    /* Twice: others may take what one gave. */
    for (int i = 0; i < 2 && status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY &&
                    gs_neighbour_ask(core, pool->device, pool->context, size);
         i++)
        status = gs_pool_grow(core, pool, size, ret_block);
    return status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY ? GS_NO_MEMORY : status;
}
