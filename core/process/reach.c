/* Copies, fills and peers (core/process/reach.h). */
#include "core/process/reach.h"

#include <stdlib.h>

#include "core/process/context.h"

#define DISABLED_NS UINT64_C(1000000000) /* for the work of who had access */

/* ---- One chunk, locked ------------------------------------------------------------------- */

static void unlock(struct gs_chunk *chunk)
{
    gs_latch_release(&chunk->pool->lock);
}

/* The devices that were given access to all memory of a context, by `from` (NULL: any context of
 * theirs). The peers' lock is held. */
static uint64_t let_in(const struct gs_peers *peers, CUcontext context, CUcontext from)
{
    uint64_t devices = 0;

    for (unsigned i = 0; i < peers->count; i++)
        if (peers->pair[i].to == context && (!from || peers->pair[i].from == from))
            devices |= UINT64_C(1) << peers->pair[i].device;
    return devices;
}

/* The devices that have access to all memory of the chunk's context, or of its device. The chunk
 * is locked. */
static uint64_t wanted(struct gs_core *core, const struct gs_chunk *chunk)
{
    const struct gs_peers *peers = &core->peers;
    uint64_t devices = 0;

    if (__atomic_load_n(&peers->used, __ATOMIC_ACQUIRE) == 0)
        return 0;
    gs_lock_take(&core->peers.lock);
    devices = peers->pool_access[chunk->pool->device->ordinal];
    if (!chunk->pool->dead) /* its handle may be another's */
        devices |= let_in(peers, chunk->pool->context, NULL);
    gs_lock_release(&core->peers.lock);
    return devices & ~(UINT64_C(1) << chunk->pool->device->ordinal);
}

/* Whether `from` may touch a block of another device's without its being made to. A context enables
 * the access to memory of another one for itself alone (measured on two H200s); a pool lets devices
 * in. The chunk is locked. */
static bool enabled(struct gs_core *core, const struct gs_chunk *chunk,
                    const struct gs_block *block, CUcontext from, CUdevice device)
{
    const struct gs_peers *peers = &core->peers;
    uint64_t devices;

    if (block->async)
        return wanted(core, chunk) >> device & 1;
    gs_lock_take(&core->peers.lock);
    devices = let_in(peers, chunk->pool->context, from);
    gs_lock_release(&core->peers.lock);
    return devices >> device & 1;
}

struct asking {
    struct gs_core *core;
    CUcontext from;
    uint64_t devices;
};

static void ask(CUcontext context, void *arg)
{
    struct asking *asking = arg;

    gs_lock_take(&asking->core->peers.lock);
    asking->devices |= let_in(&asking->core->peers, context, asking->from);
    gs_lock_release(&asking->core->peers.lock);
}

/* The same for imported memory, which is its openers'. `from` as above. Nothing is locked. */
static uint64_t wanted_import(struct gs_core *core, CUdeviceptr address, CUcontext from)
{
    struct asking asking = {core, from, 0};

    if (__atomic_load_n(&core->peers.used, __ATOMIC_ACQUIRE))
        gs_share_contexts(core->share, address, ask, &asking);
    return asking.devices;
}

static gs_status set_access(struct gs_core *core, struct gs_chunk *chunk, CUdevice device,
                            bool access)
{
    const CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };
    uint64_t bit = UINT64_C(1) << device;
    gs_status status;

    if (!!(chunk->reach & bit) == access)
        return GS_OK;
    status = core->driver.mem_set_access(chunk->span.base, chunk->span.size, &desc, 1);
    if (status == GS_OK)
        chunk->reach ^= bit;
    return status;
}

/* An import only gains access: a mapping more than wanted does no harm, and that memory is another
 * process's to unmap. */
static void settle_import(struct gs_core *core, CUdeviceptr address)
{
    uint64_t devices = wanted_import(core, address, NULL);

    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++) {
        gs_status status = GS_OK;

        if (devices >> device & 1)
            status = gs_share_give(core->share, address, device);
        if (status != GS_OK && status != GS_NOT_OURS)
            gs_log_line(&core->options.log, GS_LOG_WARNING,
                        "device %d could not be given access to another process's memory: driver "
                        "error %d",
                        device, (int)status);
    }
}

/* The chunk at an address gets access for those that are to have it, and loses `taken`. */
static void settle(struct gs_core *core, CUdeviceptr address, uint64_t taken)
{
    struct gs_chunk *chunk;
    uint64_t devices;
    gs_status status = gs_context_lock_chunk(core, address, &chunk);

    if (status == GS_NOT_LIVE)
        settle_import(core, address);
    if (status != GS_OK)
        return;
    devices = wanted(core, chunk);
    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++) {
        bool access = devices >> device & 1;

        if (!access && !(taken >> device & 1))
            continue;
        if (set_access(core, chunk, device, access) != GS_OK)
            gs_log_line(&core->options.log, GS_LOG_WARNING,
                        "device %d could not be %s memory of device %d: the driver refused",
                        device, access ? "given access to" : "kept from",
                        chunk->pool->device->ordinal);
    }
    unlock(chunk);
}

void gs_reach_admit(struct gs_core *core, CUdeviceptr address)
{
    if (__atomic_load_n(&core->peers.used, __ATOMIC_ACQUIRE))
        settle(core, address, 0);
}

struct settling {
    struct gs_core *core;
    uint64_t taken;
};

static void settle_one(uint64_t address, void *arg)
{
    const struct settling *settling = arg;

    settle(settling->core, address, settling->taken);
}

static void settle_all(struct gs_core *core, uint64_t taken)
{
    struct settling settling = {core, taken};

    gs_map_each(&core->map, settle_one, &settling);
}

/* ---- Copies and fills -------------------------------------------------------------------- */

static bool several_devices(struct gs_core *core)
{
    int count = __atomic_load_n(&core->device_count, __ATOMIC_RELAXED);

    if (count == 0) {
        if (!core->driver.device_get_count || core->driver.device_get_count(&count) != CUDA_SUCCESS)
            return false;
        __atomic_store_n(&core->device_count, count, __ATOMIC_RELAXED);
    }
    return count > 1;
}

/* False: the driver will say what is wrong. */
static bool device_of_context(struct gs_core *core, CUcontext handle, CUdevice *ret_device)
{
    const struct gs_driver *driver = &core->driver;
    CUcontext current = NULL;
    bool known;

    if (driver->ctx_get_current(&current) == CUDA_SUCCESS && current == handle)
        return driver->ctx_get_device(ret_device) == CUDA_SUCCESS;
    if (driver->ctx_push_current(handle) != CUDA_SUCCESS)
        return false;
    known = driver->ctx_get_device(ret_device) == CUDA_SUCCESS;
    driver->ctx_pop_current(&current);
    return known;
}

/* The device whose engines do the work of a stream; false as above. */
static bool device_of(struct gs_core *core, CUstream stream, CUdevice *ret_device)
{
    CUcontext handle;

    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return core->driver.ctx_get_device(ret_device) == CUDA_SUCCESS;
    return core->driver.stream_get_ctx(stream, &handle) == CUDA_SUCCESS &&
           device_of_context(core, handle, ret_device);
}

/* The context that does the work of a stream; NULL: the driver will say what is wrong. */
static CUcontext context_of(struct gs_core *core, CUstream stream)
{
    CUcontext handle = NULL;
    CUresult result = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD
                          ? core->driver.ctx_get_current(&handle)
                          : core->driver.stream_get_ctx(stream, &handle);

    return result == CUDA_SUCCESS && handle ? gs_context_owner(core, handle) : NULL;
}

/* What has to be so for memory of another device. */
enum far_rule {
    FAR_TOLD,    /* it is GS_UNREACHABLE, and nothing is done about it */
    FAR_ENABLED, /* peer access is enabled, or it is refused */
    FAR_GIVEN,   /* access is given */
    FAR_APART,   /* it is GS_UNREACHABLE */
};

/* Of an open import; what is only mapped, for the next open, is nobody's. */
static gs_status check_import(struct gs_core *core, struct gs_reach_range range, CUdevice device,
                              enum far_rule rule, CUcontext from)
{
    struct gs_import_info import;

    if (gs_share_find(core->share, range.address, &import) != GS_OK ||
        range.size > import.size - (range.address - import.base))
        return GS_NOT_LIVE;
    if (device < 0 || device >= GS_DEVICES_MAX ||
        gs_share_is_home(core->share, range.address, device))
        return GS_OK;
    if (rule == FAR_ENABLED)
        return wanted_import(core, range.address, from) >> device & 1 ? GS_OK : GS_NOT_LIVE;
    return rule == FAR_GIVEN && gs_share_give(core->share, range.address, device) == GS_OK
               ? GS_OK
               : GS_UNREACHABLE;
}

/* `device` below 0: which one does not matter. `from`: its context, where FAR_ENABLED asks. */
static gs_status check_from(struct gs_core *core, struct gs_reach_range range, CUdevice device,
                            enum far_rule rule, CUcontext from)
{
    struct gs_chunk *chunk;
    const struct gs_block *block;
    gs_status status;

    if (range.size == 0)
        return GS_OK;
    status = gs_context_lock_chunk(core, range.address, &chunk);
    if (status == GS_NOT_OURS)
        return GS_OK;
    if (status != GS_OK)
        return check_import(core, range, device, rule, from);
    block = gs_chunk_find(chunk, range.address);
    if (!gs_pool_usable(chunk->pool, block) || range.address - block->base >= block->size ||
        range.size > block->size - (range.address - block->base))
        status = GS_NOT_LIVE;
    else if (device < 0 || device >= GS_DEVICES_MAX || device == chunk->pool->device->ordinal)
        status = GS_OK;
    else if (rule == FAR_TOLD || (rule == FAR_APART && !chunk->pool->dead))
        status = GS_UNREACHABLE; /* of a dead context's, there may be no other one of the device */
    else if (rule == FAR_ENABLED)
        status = enabled(core, chunk, block, from, device) ? GS_OK : GS_NOT_LIVE;
    else
        status = set_access(core, chunk, device, true) == GS_OK ? GS_OK : GS_UNREACHABLE;
    unlock(chunk);
    return status;
}

static gs_status check(struct gs_core *core, struct gs_reach_range range, CUdevice device,
                       enum far_rule rule)
{
    return check_from(core, range, device, rule, NULL);
}

static CUdevice far_device(struct gs_core *core, CUstream stream)
{
    CUdevice device;

    return several_devices(core) && device_of(core, stream, &device) ? device : -1;
}

/* That no context is current comes before anything about the memory: then the driver says so. */
static gs_status refused(struct gs_core *core, CUstream stream)
{
    bool of_current = !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;

    return of_current && gs_core_in_context(core) != GS_OK ? GS_OK : GS_NOT_LIVE;
}

gs_status gs_core_may_fill(struct gs_core *core, struct gs_reach_range range, CUstream stream)
{
    CUdevice device = far_device(core, stream);
    gs_status status = check(core, range, device, FAR_TOLD);

    if (status == GS_UNREACHABLE)
        status = check_from(core, range, device, FAR_ENABLED, context_of(core, stream));
    return status == GS_NOT_LIVE ? refused(core, stream) : status;
}

bool gs_core_far(struct gs_core *core, CUdeviceptr address)
{
    const struct gs_reach_range byte = {address, 1};

    return gs_core_may_fill(core, byte, NULL) != GS_OK;
}

gs_status gs_core_may_copy(struct gs_core *core, struct gs_reach_range dst,
                           struct gs_reach_range src, CUstream stream, bool async)
{
    const enum far_rule rule = async ? FAR_GIVEN : FAR_APART;
    CUdevice device = far_device(core, stream);
    gs_status to = check(core, dst, device, rule);
    gs_status from = check(core, src, device, rule);

    if (to == GS_NOT_LIVE || from == GS_NOT_LIVE)
        return refused(core, stream);
    return to == GS_OK ? from : to;
}

static CUdevice far_device_later(struct gs_core *core, CUcontext context)
{
    CUdevice device;
    bool known = several_devices(core) &&
                 (context ? device_of_context(core, context, &device)
                          : core->driver.ctx_get_device(&device) == CUDA_SUCCESS);

    return known ? device : -1;
}

gs_status gs_core_may_do_later(struct gs_core *core, struct gs_reach_range dst,
                               struct gs_reach_range src, CUcontext context)
{
    CUdevice device = far_device_later(core, context);
    gs_status to = check(core, dst, device, FAR_GIVEN);
    gs_status from = check(core, src, device, FAR_GIVEN);

    return to == GS_NOT_LIVE || from == GS_NOT_LIVE ? GS_NOT_LIVE : GS_OK;
}

CUcontext gs_core_copy_context(struct gs_core *core, CUdeviceptr address)
{
    struct gs_block_info info;
    CUcontext current = NULL;

    if (gs_core_find(core, address, &info) == GS_OK && info.context)
        return info.context;
    core->driver.ctx_get_current(&current);
    return current;
}

bool gs_core_within(struct gs_core *core, struct gs_reach_range range)
{
    return check(core, range, -1, FAR_GIVEN) == GS_OK;
}

/* A capture of another stream refuses a wait and is broken by it, but neither by a synchronous copy
 * (measured on an H200): the thread's mode is RELAXED meanwhile. */
static CUresult wait_beside_captures(struct gs_core *core, CUstream stream)
{
    const struct gs_driver *driver = &core->driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = gs_core_capturing(core) && driver->exchange_capture_mode &&
                     driver->exchange_capture_mode(&mode) == CUDA_SUCCESS;
    CUresult result = driver->stream_synchronize(stream);

    if (exchanged)
        driver->exchange_capture_mode(&mode);
    return result;
}

CUresult gs_core_owner_enter(struct gs_core *core, CUdeviceptr address, CUstream stream)
{
    CUcontext owner = gs_core_copy_context(core, address);
    CUresult result = owner ? wait_beside_captures(core, stream) : CUDA_ERROR_INVALID_CONTEXT;

    return result ? result : core->driver.ctx_push_current(owner);
}

void gs_core_owner_leave(struct gs_core *core)
{
    CUcontext popped;

    core->driver.ctx_pop_current(&popped);
}

bool gs_core_overlaps(struct gs_core *core, CUdeviceptr address, size_t size)
{
    return gs_map_overlaps(&core->map, address, size);
}

/* ---- Peers ------------------------------------------------------------------------------- */

void gs_reach_init(struct gs_core *core)
{
    gs_lock_init(&core->peers.lock, GS_RANK_PEERS);
}

void gs_reach_destroy(struct gs_core *core)
{
    free(core->peers.pair);
    gs_lock_destroy(&core->peers.lock);
}

/* Called with the peers' lock held. */
static bool add_pair(struct gs_peers *peers, const struct gs_peer_pair *pair)
{
    if (peers->count == peers->room) {
        unsigned room = peers->room ? 2 * peers->room : 8;
        struct gs_peer_pair *grown = realloc(peers->pair, room * sizeof *grown);

        if (!grown)
            return false;
        peers->pair = grown;
        peers->room = room;
    }
    peers->pair[peers->count++] = *pair;
    __atomic_store_n(&peers->used, true, __ATOMIC_RELEASE);
    return true;
}

/* The current context, or its owner, and its device. */
static bool current(struct gs_core *core, CUcontext *ret_context, CUdevice *ret_device)
{
    if (core->driver.ctx_get_current(ret_context) != CUDA_SUCCESS || !*ret_context ||
        core->driver.ctx_get_device(ret_device) != CUDA_SUCCESS || *ret_device < 0 ||
        *ret_device >= GS_DEVICES_MAX)
        return false;
    *ret_context = gs_context_owner(core, *ret_context);
    return true;
}

void gs_core_peer_enabled(struct gs_core *core, CUcontext peer)
{
    struct gs_peer_pair pair = {.to = gs_context_owner(core, peer)};
    bool added;

    if (!current(core, &pair.from, &pair.device))
        return;
    gs_lock_take(&core->peers.lock);
    added = add_pair(&core->peers, &pair);
    gs_lock_release(&core->peers.lock);
    if (added)
        settle_all(core, 0);
    else
        gs_log_line(&core->options.log, GS_LOG_WARNING,
                    "no host memory to note peer access: the peer will not reach our memory");
}

/* Takes away the pairs that `match` says; returns the devices that may have lost access. */
static uint64_t remove_pairs(struct gs_core *core, CUcontext from, CUcontext to, bool either)
{
    struct gs_peers *peers = &core->peers;
    uint64_t devices = 0;
    unsigned kept = 0;

    gs_lock_take(&peers->lock);
    for (unsigned i = 0; i < peers->count; i++) {
        const struct gs_peer_pair *pair = &peers->pair[i];
        bool match = either ? pair->from == from || pair->to == to
                            : pair->from == from && pair->to == to;

        if (match)
            devices |= UINT64_C(1) << pair->device;
        else
            peers->pair[kept++] = *pair;
    }
    peers->count = kept;
    gs_lock_release(&peers->lock);
    return devices;
}

/* Waits for what the current context was given to do so far: for the GPU, or for a second, since what
 * keeps the GPU may be this thread's to end. Whether the driver's own call waits was not measured. */
static bool is_done_soon(struct gs_core *core)
{
    struct gs_context *context;
    struct gs_fence fence;
    struct gs_pool *pool;
    gs_status status;

    if (gs_context_current_unprobed(core, &context) != GS_OK)
        return false;
    pool = context->pools[0];
    gs_latch_take(&pool->lock);
    status = pool->leaving ? GS_NO_CONTEXT : gs_fence_record(&pool->events, &fence);
    gs_latch_release(&pool->lock);
    return status == GS_OK && gs_fence_wait(&fence, gs_now_ns() + DISABLED_NS) == GS_OK;
}

void gs_core_peer_disabled(struct gs_core *core, CUcontext peer)
{
    uint64_t devices;
    CUcontext from;
    CUdevice device;

    if (!current(core, &from, &device))
        return;
    devices = remove_pairs(core, from, gs_context_owner(core, peer), false);
    /* Where the work cannot be waited for, a mapping more than wanted does no harm. */
    if (!devices || !is_done_soon(core))
        return;
    settle_all(core, devices);
}

void gs_core_peers_gone(struct gs_core *core, CUcontext context)
{
    if (context && __atomic_load_n(&core->peers.used, __ATOMIC_ACQUIRE))
        remove_pairs(core, context, context, true);
}

void gs_core_pool_access(struct gs_core *core, CUdevice device, CUdevice peer, bool access)
{
    struct gs_peers *peers = &core->peers;
    uint64_t bit;

    if (device < 0 || device >= GS_DEVICES_MAX || peer < 0 || peer >= GS_DEVICES_MAX)
        return;
    bit = UINT64_C(1) << peer;
    gs_lock_take(&peers->lock);
    if (access)
        peers->pool_access[device] |= bit;
    else
        peers->pool_access[device] &= ~bit;
    __atomic_store_n(&peers->used, true, __ATOMIC_RELEASE);
    gs_lock_release(&peers->lock);
    settle_all(core, access ? 0 : bit);
}
