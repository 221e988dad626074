/*
 * Giving memory back to the driver: what is too much before a pool grows, what other pools of a
 * full device can spare, and how an allocation on a full device still succeeds.
 *
 * A pool holds no more than a little above what was live lately, what retires apart: a chunk that
 * is ready as a whole goes when a new one of another size comes. Without that, a program whose
 * sizes change holds several times what it uses.
 */
#include "core/process/reclaim.h"

#include <string.h>
#include <time.h>

#include "core/process/context.h"
#include "core/process/shortage.h"

#define GROWN_FIRST ((size_t)16 << 20) /* a chunk of small blocks in a pool of few threads, */
#define SEVERAL_MOST ((size_t)48 << 20) /* for several blocks of one size, */
#define SEVERAL_PART 4 /* of which all but one take no more than this part of what is live, */
#define FEWER_PART 64 /* or that where one alone wastes nothing */
#define LOOKED_AGAIN 16 /* when a pool has grown by this part of what the device had left */
#define RELEASED_NS UINT64_C(1000000000) /* for what other threads are giving back */
#define COUNTED_NS UINT64_C(100000000)   /* the same, where it is only to be counted */
#define POOLS_MAX 1024 /* of one device, asked for memory when it is full */
#define UNMAPPED_NS UINT64_C(500000000) /* for peers that are to give back and unmap what was freed */
#define CLEARED_NS UINT64_C(500000000) /* for the driver to clear what it got back */
#define CLEARED_STEP_NS 25000000
#define ROOM_NS UINT64_C(1000000000) /* for GPU work, which may wait for the call that wants room */
#define GRAPH_MORE 64 /* a graph's memory takes this part more, and */
#define GRAPH_MORE_MIN ((size_t)64 << 20)

static bool is_out(gs_status status)
{
    return status == GS_NO_MEMORY || status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
}

static size_t page_round(size_t size)
{
    return (size + GS_PAGE_SIZE - 1) & ~(GS_PAGE_SIZE - 1);
}

/* ---- All pools of a device, no lock held ------------------------------------------------ */

/* As often at most gs_pool_wait_oldest has something to wait for that was freed by now: other
 * threads may free as fast as the GPU goes. */
static size_t waits_for_all(const struct gs_pool *pool)
{
    size_t count = 2; /* the open epoch, and who finds out first */

    for (const struct gs_epoch *epoch = pool->oldest; epoch; epoch = epoch->next)
        count++;
    for (const struct gs_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
        count += !gs_fence_passed(&chunk->freed);
    return count;
}

/* Waits as long as is right for each (core/pool/pool.h). The lock is held, and let go at times. */
static void wait_for_all(struct gs_pool *pool, const struct gs_patience *patience)
{
    size_t left = waits_for_all(pool);

    while (left-- > 0 && gs_pool_wait_oldest(pool, patience))
        continue;
    while (gs_pool_wait_apart(pool, patience))
        continue;
}

/* Takes back what has come back, also what has to be waited for (NULL: nothing). The lock is held,
 * and let go at times. */
static void collect_locked(struct gs_core *core, struct gs_pool *pool,
                           const struct gs_patience *patience)
{
    gs_pool_part_streams(pool);
    gs_pool_collect(pool);
    if (patience)
        wait_for_all(pool, patience);
    gs_pool_collect_limbo(pool, patience != NULL);
    if (pool->unwiped.first) {
        gs_latch_release(&pool->lock);
        gs_pool_wipe(core, pool);
        gs_latch_take(&pool->lock);
        if (patience)
            wait_for_all(pool, patience);
    }
}

/* What one pool can give up of `bytes`. */
static size_t release_pool(struct gs_core *core, struct gs_pool *pool,
                           const struct gs_patience *patience, size_t bytes)
{
    struct gs_chunk *chunks;

    gs_latch_take(&pool->lock);
    collect_locked(core, pool, patience);
    chunks = gs_pool_detach_ready(pool, pool->ready > bytes ? pool->ready - bytes : 0);
    gs_latch_release(&pool->lock);
    if (core->shared.wipe)
        gs_pool_wipe(core, pool);
    return gs_chunks_release(core, chunks);
}

/* A pool found under the contexts' lock stays a pool after it (records are recycled, not freed);
 * one that dies meanwhile has nothing to give. */
static unsigned pools_of(struct gs_core *core, const struct gs_device *device,
                         struct gs_pool *ret_pools[POOLS_MAX])
{
    unsigned count = 0;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS && count < POOLS_MAX; i++)
            if (context->pools[i] && context->pools[i]->device == device)
                ret_pools[count++] = context->pools[i];
    gs_lock_release(&core->lock);
    return count;
}

static size_t release_pools(struct gs_core *core, const struct gs_device *device,
                            const struct gs_patience *patience, size_t bytes)
{
    struct gs_pool *pools[POOLS_MAX];
    unsigned count = pools_of(core, device, pools);
    size_t finished = gs_releases_finish(core); /* of any device */
    size_t released = 0;

    for (unsigned i = 0; i < count && released < bytes; i++)
        released += release_pool(core, pools[i], patience, bytes - released);
    if (released < bytes)
        released += gs_device_let_go(&core->device[device->ordinal]);
    gs_context_bury_dead(core);
    return finished + released;
}

static struct gs_patience patience_of(uint64_t most_ns)
{
    return (struct gs_patience){gs_now_ns(), most_ns};
}

size_t gs_device_release(struct gs_core *core, const struct gs_device *device, bool wait)
{
    struct gs_patience patience = patience_of(UINT64_MAX);

    return release_pools(core, device, wait ? &patience : NULL, SIZE_MAX);
}

size_t gs_device_yield(struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    return release_pools(core, device, NULL, bytes);
}

/* What the device has left decides what chunks may owe (gs_pool_may_owe). Looking takes some
 * microseconds, so it is done when what grew since may have changed the answer. */
static void look_at_left(struct gs_core *core, CUdevice device, CUcontext context, size_t grown)
{
    size_t *since = &core->grown[device], *known = &core->left[device], left, total;
    CUcontext popped;

    left = __atomic_load_n(known, __ATOMIC_RELAXED);
    grown += __atomic_load_n(since, __ATOMIC_RELAXED);
    __atomic_store_n(since, grown, __ATOMIC_RELAXED);
    if ((left > 0 && grown < left / LOOKED_AGAIN) || !core->driver.mem_get_info ||
        gs_fences_capturing(&core->fences) ||
        core->driver.ctx_push_current(context) != CUDA_SUCCESS)
        return;
    if (core->driver.mem_get_info(&left, &total) == CUDA_SUCCESS) {
        __atomic_store_n(known, left | 1, __ATOMIC_RELAXED);
        __atomic_store_n(since, 0, __ATOMIC_RELAXED);
    }
    core->driver.ctx_pop_current(&popped);
}

/* Whether a chunk was made for a block of that size lately; from now on there was. */
static bool grows_again(struct gs_pool *pool, size_t need)
{
    bool again = false;

    for (unsigned i = 0; i < GS_GROWN_FOR; i++)
        again |= pool->grown_for[i] == need;
    pool->grown_for[pool->grown_at++ % GS_GROWN_FOR] = need;
    return again;
}

static size_t wasted(size_t need)
{
    return page_round(need) - need;
}

/* Less of its pages is wasted; or nothing, as before, and there are fewer chunks: each takes calls
 * of the driver to make, to share and to open. */
static bool is_better(const struct gs_pool *pool, size_t need, size_t best, size_t all)
{
    if (wasted(best) == 0)
        return wasted(all) == 0 && all - need <= pool->live / FEWER_PART;
    return wasted(all) * best < wasted(best) * all;
}

/*
 * A program that holds more than it did lately, and for which a chunk of that size was made before,
 * goes on: layers of a network, say. So the chunk is made for the number of such blocks that is
 * best. Only the first may ever come, which must be within bounds.
 */
static size_t size_for_several(struct gs_pool *pool, size_t need)
{
    bool again = grows_again(pool, need);
    size_t best = need;

    if (!again || pool->live + need <= pool->live_peak || pool->shared->whole_chunks)
        return page_round(need);
    for (size_t all = 2 * need; all <= GS_MIXED_TIMES * need && all <= SEVERAL_MOST &&
                                page_round(all) - need <= pool->live / SEVERAL_PART;
         all += need)
        if (is_better(pool, need, best, all))
            best = all;
    /* Half of what may be owed is for those that waste less by it. */
    if (!gs_pool_may_owe(pool, page_round(best) - page_round(need), wasted(need) ? 1 : 2))
        best = need;
    return page_round(best);
}

static size_t choose_chunk_size(struct gs_pool *pool, size_t need, bool small)
{
    if (small)
        return pool->grown_first && gs_pool_may_owe(pool, GROWN_FIRST, 1) ? GROWN_FIRST
                                                                       : page_round(need);
    return size_for_several(pool, need);
}

/* The context has ended since, and the record may be another's: lock held. */
static bool is_over(const struct gs_pool *pool, uint64_t life)
{
    return pool->dead || pool->made_ns != life;
}

gs_status gs_pool_grow(struct gs_core *core, struct gs_pool *pool, uint64_t life, size_t size,
                       CUdeviceptr *ret_address)
{
    CUmemGenericAllocationHandle handle;
    struct gs_block *block;
    CUdeviceptr address;
    uint64_t began = gs_now_ns();
    size_t need, chunk_size, reserved;
    const struct gs_device *device;
    CUcontext context;
    gs_status status;
    bool small, again;

    /* Without the lock nothing of the pool may be read: its context may end, and another begin. */
    gs_latch_take(&pool->lock);
    device = pool->device;
    context = pool->context;
    need = gs_pool_round(pool, size, &small);
    chunk_size = choose_chunk_size(pool, need, small);
    status = is_over(pool, life) ? GS_NO_CONTEXT : GS_OK;
    gs_latch_release(&pool->lock);
    if (status != GS_OK)
        return status;
    status = gs_device_map(&core->driver, device, chunk_size, &handle, &address);
    if (is_out(status) && chunk_size > page_round(need)) {
        chunk_size = page_round(need);
        status = gs_device_map(&core->driver, device, chunk_size, &handle, &address);
    }
    if (status != GS_OK)
        return status;
    gs_latch_take(&pool->lock);
    /* With what it held once it would not have had to. */
    again = pool->reserved + chunk_size <= pool->counts.reserved_peak;
    status = is_over(pool, life) ? GS_NO_CONTEXT
                        : gs_pool_add_chunk(pool, address, chunk_size, small, handle, &block);
    if (status == GS_OK)
        *ret_address = gs_pool_take_from(pool, block, size)->base;
    reserved = pool->reserved;
    gs_pool_felt(pool, gs_now_ns() - began, again);
    gs_latch_release(&pool->lock);
    if (status == GS_OK) {
        gs_reach_admit(core, address);
        look_at_left(core, device->ordinal, context, chunk_size);
    } else {
        gs_device_unmap(&core->driver, handle, address, chunk_size);
    }
    gs_decay_grown(core, reserved);
    return status;
}

/* Asks other processes, twice: others may take what one gave. */
static gs_status take_from_neighbours(struct gs_core *core, struct gs_pool *pool, uint64_t life,
                                      const struct gs_device *device, CUcontext context,
                                      size_t size, CUdeviceptr *ret_address)
{
    gs_status status = GS_NO_MEMORY;

    for (int i = 0; i < 2 && is_out(status); i++) {
        if (!gs_neighbour_ask(core, device, context, size))
            break;
        status = gs_pool_grow(core, pool, life, size, ret_address);
    }
    return status;
}

/* Of what this pool has ready, as much as the block needs, or all, becomes the driver's and then
 * the block. GS_NO_MEMORY: nothing was ready. */
static gs_status exchange(struct gs_core *core, struct gs_pool *pool, uint64_t life, size_t size,
                          bool all, CUdeviceptr *ret_address)
{
    struct gs_chunk *chunks;

    gs_latch_take(&pool->lock);
    gs_pool_settle(pool);
    chunks = gs_pool_detach_bytes(pool, all ? pool->ready : size + GS_PAGE_SIZE);
    gs_latch_release(&pool->lock);
    if (!chunks)
        return GS_NO_MEMORY;
    gs_chunks_release(core, chunks);
    return gs_pool_grow(core, pool, life, size, ret_address);
}

/* A block is another thread's to look at once its lock is let go: its address is all that leaves. */
static gs_status found(const struct gs_block *block, CUdeviceptr *ret_address)
{
    if (!block)
        return GS_NO_MEMORY;
    *ret_address = block->base;
    return GS_OK;
}

/* From what is ready in any pool of the context; with `any`, whatever it strands. */
static gs_status take_anywhere(struct gs_core *core, const struct gs_device *device,
                               CUcontext context, size_t size, bool any, CUdeviceptr *ret_address)
{
    struct gs_pool *pools[POOLS_MAX];
    unsigned count = pools_of(core, device, pools);
    gs_status status = GS_NO_MEMORY;

    for (unsigned i = 0; i < count && status != GS_OK; i++) {
        gs_latch_take(&pools[i]->lock);
        if (pools[i]->context == context && !pools[i]->dead && !pools[i]->leaving) {
            gs_pool_settle(pools[i]);
            status = found(any ? gs_pool_take_any(pools[i], size) : gs_pool_take(pools[i], size),
                           ret_address);
        }
        gs_latch_release(&pools[i]->lock);
    }
    return status;
}

/*
 * The same once all pools of the device have taken back what has come back, `patience` as above.
 * What of it fits is not given to the driver first, which takes its time to clear it, and cannot
 * have it before a process that ended has let go of it (100 ms on an H200, where its exit is seen
 * after 60).
 */
static gs_status take_returned(struct gs_core *core, const struct gs_device *device,
                               CUcontext context, size_t size,
                               const struct gs_patience *patience, CUdeviceptr *ret_address)
{
    struct gs_pool *pools[POOLS_MAX];
    unsigned count = pools_of(core, device, pools);

    for (unsigned i = 0; i < count; i++) {
        gs_latch_take(&pools[i]->lock);
        collect_locked(core, pools[i], patience);
        gs_latch_release(&pools[i]->lock);
    }
    return take_anywhere(core, device, context, size, false, ret_address);
}

/* Puts back what take_in_order took; the context may have ended meanwhile. */
static void put_back(struct gs_core *core, CUdeviceptr address)
{
    struct gs_chunk *chunk;
    struct gs_block *block;

    if (gs_context_lock_chunk(core, address, &chunk) != GS_OK)
        return;
    block = gs_chunk_start(chunk, address);
    if (block && block->state == GS_BLOCK_LIVE) {
        gs_pool_unlive(chunk->pool, block);
        gs_pool_retire_more(chunk->pool, block);
    }
    gs_latch_release(&chunk->pool->lock);
}

/* False: not behind all of them. */
static bool put_behind(CUstream stream, const struct gs_behind *behind)
{
    bool ordered = true;

    for (unsigned i = 0; i < behind->count && ordered; i++)
        ordered = gs_fence_order(&behind->fence[i], stream);
    return ordered;
}

/*
 * What retires in any pool of the context, for a stream that comes behind its free. Nothing is
 * waited for: the GPU does, as with the driver's own stream-ordered memory (measured on an H200:
 * an allocation in one stream, while what would serve it was freed in another one behind a host
 * function, is back after 57 ms). While a capture is open no stream is made to wait.
 */
static gs_status take_in_order(struct gs_core *core, const struct gs_device *device,
                               CUcontext context, size_t size, CUstream stream,
                               CUdeviceptr *ret_address)
{
    struct gs_pool *pools[POOLS_MAX];
    unsigned count = pools_of(core, device, pools);
    gs_status status = GS_NO_MEMORY;

    for (unsigned i = 0; i < count && status != GS_OK; i++) {
        struct gs_behind behind = {.count = 0};

        gs_latch_take(&pools[i]->lock);
        if (pools[i]->context == context && !pools[i]->dead && !pools[i]->leaving) {
            gs_pool_part_streams(pools[i]);
            gs_pool_collect(pools[i]);
            status = found(gs_pool_take_in_order(pools[i], size, &behind), ret_address);
        }
        gs_latch_release(&pools[i]->lock);
        if (status == GS_OK && !put_behind(stream, &behind)) {
            put_back(core, *ret_address);
            status = GS_NO_MEMORY;
        }
    }
    return status;
}

/* Waits for this pool's epochs one by one, and then for what is apart, until the block can be had. */
static gs_status wait_for_block(struct gs_core *core, struct gs_pool *pool, uint64_t life,
                                size_t size, const struct gs_patience *patience,
                                CUdeviceptr *ret_address)
{
    gs_status status = GS_NO_MEMORY;
    bool more = true;
    size_t left;

    gs_latch_take(&pool->lock);
    gs_pool_part_streams(pool);
    left = waits_for_all(pool);
    gs_latch_release(&pool->lock);
    while (more && is_out(status) && left-- > 0) {
        gs_latch_take(&pool->lock);
        more = gs_pool_wait_oldest(pool, patience) || gs_pool_wait_apart(pool, patience);
        gs_pool_settle(pool);
        status = is_over(pool, life) ? GS_NO_CONTEXT
                                     : found(gs_pool_take(pool, size), ret_address);
        gs_latch_release(&pool->lock);
        if (more && is_out(status))
            status = exchange(core, pool, life, size, true, ret_address);
    }
    return status;
}

static bool is_releasing(const struct gs_core *core)
{
    return __atomic_load_n(&core->shared.releasing, __ATOMIC_SEQ_CST) > 0;
}

/* Waits for what other threads have taken out of the pools and are giving back; whether there was
 * any. They end it, after calls of the driver and of the program's listeners; one of those may wait
 * for this thread, so `limit_ns` is the most. Pauses count, not the clock: where all stood still, so
 * did they. */
static bool await_released(const struct gs_core *core, uint64_t limit_ns)
{
    struct timespec pause = {.tv_nsec = 20000};
    uint64_t waited = 0;
    bool any = false;

    if (gs_releasing_here()) /* one of them is this thread's */
        return false;
    while (is_releasing(core) && waited < limit_ns) {
        any = true;
        nanosleep(&pause, NULL);
        waited += (uint64_t)pause.tv_nsec;
        if (pause.tv_nsec < 1000000)
            pause.tv_nsec *= 2;
    }
    return any;
}

static uint64_t released_ns(const struct gs_core *core)
{
    return __atomic_load_n(&core->shared.released_ns, __ATOMIC_SEQ_CST);
}

uint64_t gs_core_finish_releases(struct gs_core *core)
{
    gs_releases_finish(core);
    await_released(core, COUNTED_NS);
    return released_ns(core);
}

bool gs_core_released_since(const struct gs_core *core, uint64_t finished)
{
    return is_releasing(core) || released_ns(core) != finished;
}

/*
 * Each step leaves the pool holding no more than the driver would for the same blocks, but for the
 * last one of its own, a block in the midst of a larger chunk. Only then are others asked.
 *
 * What is waited for, each only where there is any, and by whom it ends:
 *
 *   GPU work before a cuMemFree       the GPU, as long as the driver's own free would have waited
 *   other freed blocks                the GPU, or 10 s; those freed in stream order 1 s of them
 *   chunks on their way back          the threads that are at it, or 1 s, five times
 *   blocks that openers have closed   the openers, their end, or 2 s (core/share/flush.c)
 *   idle mappings of them             the openers, or 0.5 s, twice
 *   what other processes keep         they answer, or 1.05 s, twice (core/process/neighbour_ask.c)
 *
 * So it is refused after some 20 s where all others stand still and the GPU has passed what
 * cuMemFree freed.
 */
gs_status gs_pool_reclaim(struct gs_core *core, struct gs_pool *pool, uint64_t life, size_t size,
                          uint64_t stream_key, CUdeviceptr *ret_address)
{
    struct gs_patience patience;
    const struct gs_device *device;
    CUcontext context;
    gs_status status;
    CUstream stream;

    gs_latch_take(&pool->lock);
    device = pool->device;
    context = pool->context;
    status = is_over(pool, life) ? GS_NO_CONTEXT : GS_NO_MEMORY;
    gs_latch_release(&pool->lock);

    if (is_out(status) && gs_releases_finish(core) > 0)
        status = gs_pool_grow(core, pool, life, size, ret_address);
    if (is_out(status))
        status = take_returned(core, device, context, size, NULL, ret_address);
    if (is_out(status))
        status = exchange(core, pool, life, size, false, ret_address);
    if (is_out(status) && gs_device_release(core, device, false) > 0) {
        gs_share_await_unmapped(core->share, device->uuid, UNMAPPED_NS);
        status = gs_pool_grow(core, pool, life, size, ret_address);
    }
    if (is_out(status) && await_released(core, RELEASED_NS))
        status = gs_pool_grow(core, pool, life, size, ret_address);
    if (is_out(status))
        status = take_anywhere(core, device, context, size, false, ret_address);
    if (is_out(status) && stream_key && gs_stream_of_key(stream_key, &stream))
        status = take_in_order(core, device, context, size, stream, ret_address);
    patience = patience_of(UINT64_MAX);
    if (is_out(status))
        status = wait_for_block(core, pool, life, size, &patience, ret_address);
    if (is_out(status)) {
        gs_share_await_given_back(core->share, device->uuid, UNMAPPED_NS);
        status = take_returned(core, device, context, size, &patience, ret_address);
    }
    if (is_out(status)) {
        release_pools(core, device, &patience, SIZE_MAX);
        await_released(core, RELEASED_NS); /* what waited for the same work may have been faster */
        gs_share_await_unmapped(core->share, device->uuid, UNMAPPED_NS);
        status = gs_pool_grow(core, pool, life, size, ret_address);
    }
    if (is_out(status))
        status = take_anywhere(core, device, context, size, true, ret_address);
    if (is_out(status))
        status = take_from_neighbours(core, pool, life, device, context, size, ret_address);
    if (!is_out(status))
        return status;
    gs_shortage_say(core, device, size);
    return GS_NO_MEMORY;
}

/* A device that memory was allocated of here, and a context of it. */
static const struct gs_device *known_device(struct gs_core *core, CUdevice ordinal,
                                            CUcontext *ret_context)
{
    *ret_context = gs_context_of_device(core, ordinal);
    return *ret_context ? &core->device[ordinal] : NULL;
}

/* False: the driver got nothing from here lately. The driver ends it, which is given half a second in
 * all; natively the call would have failed. */
static bool await_cleared(struct gs_core *core)
{
    const struct timespec pause = {.tv_nsec = CLEARED_STEP_NS};
    uint64_t released = released_ns(core);

    if (!released || gs_now_ns() - released > CLEARED_NS)
        return false;
    nanosleep(&pause, NULL);
    return true;
}

/* What gs_core_make_room does, one after the other. */
enum room_step {
    ROOM_READY,     /* what can go at once */
    ROOM_WAITED,    /* what can be waited for */
    ROOM_NEIGHBOUR, /* what other processes keep */
    /* And what the driver is still clearing, again and again. */
    ROOM_CLEARED = GS_ROOM_AFTER_REFUSAL,
};

static bool release_some(struct gs_core *core, const struct gs_device *device,
                         const struct gs_patience *patience, size_t most)
{
    size_t released = gs_releases_finish(core);

    released += release_pools(core, device, patience, most);
    if (released > 0)
        gs_share_await_unmapped(core->share, device->uuid, UNMAPPED_NS);
    return await_released(core, RELEASED_NS) || released > 0;
}

static bool make_room_of(struct gs_core *core, const struct gs_device *device, CUcontext context,
                         size_t bytes, enum room_step step)
{
    struct gs_patience patience = patience_of(bytes ? UINT64_MAX : ROOM_NS);

    switch (step) {
    case ROOM_READY:
        return release_some(core, device, NULL, bytes ? bytes : SIZE_MAX);
    case ROOM_WAITED:
        gs_share_await_given_back(core->share, device->uuid, UNMAPPED_NS);
        release_some(core, device, &patience, SIZE_MAX);
        /* In any case: another thread may have given back what was missing, after the call was
         * refused and before this one looked. */
        return true;
    case ROOM_NEIGHBOUR:
        return gs_neighbour_ask(core, device, context, bytes ? bytes : GS_PAGE_SIZE);
    default:
        return bytes == 0 && await_cleared(core);
    }
}

static bool make_room(struct gs_core *core, CUdevice device, size_t bytes, enum room_step step)
{
    struct gs_device unknown = {.ordinal = device};
    const struct gs_device *known;
    CUcontext context = NULL;
    CUuuid uuid;

    if (device < 0 && core->driver.ctx_get_device(&device) != CUDA_SUCCESS)
        return false;
    known = known_device(core, device, &context);
    if (known)
        return bytes <= known->total && make_room_of(core, known, context, bytes, step);
    if (step != ROOM_NEIGHBOUR || !core->driver.device_get_uuid ||
        core->driver.device_get_uuid(&uuid, device) != CUDA_SUCCESS)
        return false;
    memcpy(unknown.uuid, uuid.bytes, sizeof unknown.uuid);
    return make_room_of(core, &unknown, NULL, bytes, step);
}

static size_t graph_bytes(const struct gs_core *core)
{
    return __atomic_load_n(&core->graph_nodes, __ATOMIC_RELAXED) +
           __atomic_load_n(&core->graph_made, __ATOMIC_RELAXED);
}

bool gs_core_graph_waits(const struct gs_core *core)
{
    return graph_bytes(core) > 0;
}

void gs_core_graph_node(struct gs_core *core, size_t bytes)
{
    __atomic_add_fetch(&core->graph_nodes, bytes, __ATOMIC_RELAXED);
}

void gs_core_graph_room(struct gs_core *core)
{
    size_t bytes = graph_bytes(core), left, total;
    const size_t more = bytes / GRAPH_MORE + GRAPH_MORE_MIN;
    const struct gs_device *device;
    struct gs_patience patience;
    CUcontext context = NULL;
    CUdevice ordinal;

    if (!core->driver.mem_get_info || gs_fences_capturing(&core->fences) ||
        core->driver.ctx_get_device(&ordinal) != CUDA_SUCCESS)
        return;
    device = known_device(core, ordinal, &context);
    for (int wait = 0; device && wait < 2; wait++) {
        if (core->driver.mem_get_info(&left, &total) != CUDA_SUCCESS || left >= bytes + more)
            return;
        patience = patience_of(ROOM_NS);
        release_some(core, device, wait ? &patience : NULL, bytes + more - left);
    }
}

/* What earlier ones have not got yet is forgotten: many are made and never launched. */
void gs_core_graph_made(struct gs_core *core)
{
    size_t bytes = __atomic_exchange_n(&core->graph_nodes, 0, __ATOMIC_RELAXED);

    if (bytes > 0)
        __atomic_store_n(&core->graph_made, bytes, __ATOMIC_RELAXED);
}

void gs_core_graph_launched(struct gs_core *core)
{
    __atomic_store_n(&core->graph_made, 0, __ATOMIC_RELAXED);
}

static void log_room(struct gs_core *core, unsigned step)
{
    size_t left = 0, total = 0;

    if (core->options.log.no_debug || !core->driver.mem_get_info)
        return;
    if (!gs_fences_capturing(&core->fences))
        core->driver.mem_get_info(&left, &total);
    gs_log_line(&core->options.log, GS_LOG_DEBUG,
                "a call found the GPU full and is made again (%u), %zu MiB are free now", step,
                left >> 20);
}

/* The call fails. */
static void say_room(struct gs_core *core, CUdevice device, size_t bytes)
{
    const struct gs_device *known = NULL;
    CUcontext context;

    if (device >= 0 || core->driver.ctx_get_device(&device) == CUDA_SUCCESS)
        known = known_device(core, device, &context);
    if (known)
        gs_shortage_say(core, known, bytes);
}

bool gs_core_make_room(struct gs_core *core, CUdevice device, size_t bytes, unsigned *step)
{
    bool again = false;

    while (!again && *step < ROOM_CLEARED)
        again = make_room(core, device, bytes, (*step)++);
    if (!again && (*step)++ < ROOM_CLEARED + CLEARED_NS / CLEARED_STEP_NS)
        again = make_room(core, device, bytes, ROOM_CLEARED);
    if (again)
        log_room(core, *step);
    else
        say_room(core, device, bytes);
    return again;
}

void gs_core_wipe(struct gs_core *core)
{
    struct gs_pool *pools[POOLS_MAX];
    unsigned count = 0;

    if (!core->shared.wipe)
        return;
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        for (unsigned i = 0; i < GS_CONTEXT_POOLS && count < POOLS_MAX; i++)
            if (context->pools[i] && !context->detached)
                pools[count++] = context->pools[i];
    gs_lock_release(&core->lock);
    for (unsigned i = 0; i < count; i++)
        gs_pool_wipe(core, pools[i]);
}
