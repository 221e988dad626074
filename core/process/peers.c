/* Peer access (core/process/peers.h). */
#include "core/process/peers.h"

#include <stdlib.h>

#include "core/process/context.h"

/* ---- One piece, locked ------------------------------------------------------------------- */

/* The devices that were given access to all memory of a context, by `from` (NULL: any context of
 * theirs). The peers' lock is held. */
static uint64_t let_in_locked(const struct gs_peers *peers, CUcontext context, CUcontext from)
{
    uint64_t devices = 0;

    gs_lock_assert_held(&peers->lock);
    for (unsigned i = 0; i < peers->count; i++)
        if (peers->pair[i].to == context && (!from || peers->pair[i].from == from))
            devices |= UINT64_C(1) << peers->pair[i].device;
    return devices;
}

/* The devices that have access to all memory of the piece's context, or of its device. The piece
 * is locked. */
static uint64_t wanted(struct gs_core *core, const struct gs_piece *piece)
{
    const struct gs_peers *peers = &core->peers;
    uint64_t devices = 0;

    if (__atomic_load_n(&peers->used, __ATOMIC_ACQUIRE) == 0)
        return 0;
    gs_lock_take(&core->peers.lock);
    devices = peers->pool_access[piece->arena->device->ordinal];
    if (!piece->arena->dead) /* its handle may be another's */
        devices |= let_in_locked(peers, piece->arena->context, NULL);
    gs_lock_release(&core->peers.lock);
    return devices & ~(UINT64_C(1) << piece->arena->device->ordinal);
}

bool gs_peers_let_in(struct gs_core *core, const struct gs_piece *piece,
                     const struct gs_block *block, CUcontext from, CUdevice device)
{
    const struct gs_peers *peers = &core->peers;
    uint64_t devices;

    if (block->async)
        return wanted(core, piece) >> device & 1;
    gs_lock_take(&core->peers.lock);
    devices = let_in_locked(peers, piece->arena->context, from);
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
    asking->devices |= let_in_locked(&asking->core->peers, context, asking->from);
    gs_lock_release(&asking->core->peers.lock);
}

uint64_t gs_peers_of_import(struct gs_core *core, CUdeviceptr address, CUcontext from)
{
    struct asking asking = {core, from, 0};

    if (__atomic_load_n(&core->peers.used, __ATOMIC_ACQUIRE))
        gs_share_contexts(core->share, address, ask, &asking);
    return asking.devices;
}

static gs_status set_piece_access(struct gs_core *core, struct gs_piece *piece, CUdevice device)
{
    const CUmemAccessDesc desc = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    uint64_t bit = UINT64_C(1) << device;
    gs_status status;

    if (piece->peer_access & bit)
        return GS_OK;
    status = core->driver.mem_set_access(piece->span.base, piece->span.size, &desc, 1);
    if (status == GS_OK)
        piece->peer_access |= bit;
    return status;
}

gs_status gs_block_set_access(struct gs_core *core, const struct gs_block *block, CUdevice device)
{
    gs_status status = GS_OK;

    for (struct gs_piece *piece = block->piece; piece && status == GS_OK;
         piece = gs_block_next_piece(block, piece))
        status = set_piece_access(core, piece, device);
    return status;
}

static gs_status admit_import(struct gs_core *core, CUdeviceptr address)
{
    uint64_t devices = gs_peers_of_import(core, address, NULL);
    gs_status refused = GS_OK;

    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++) {
        gs_status status = GS_OK;

        if (devices >> device & 1)
            status = gs_share_give(core->share, address, device);
        if (status == GS_OK || status == GS_NOT_OURS)
            continue;
        gs_log_line(&core->options.log, GS_LOG_WARNING,
                    "device %d could not be given access to another process's memory: driver "
                    "error %d",
                    device, (int)status);
        refused = status;
    }
    return refused;
}

/* What is enabled from here on finds the piece in the map. */
gs_status gs_peers_admit_locked(struct gs_core *core, struct gs_piece *piece)
{
    uint64_t devices = wanted(core, piece);
    gs_status status = GS_OK;

    gs_latch_assert_held(&piece->arena->lock);
    for (CUdevice device = 0; devices && status == GS_OK; device++, devices >>= 1)
        if (devices & 1)
            status = set_piece_access(core, piece, device);
    return status;
}

gs_status gs_peers_admit_import(struct gs_core *core, CUdeviceptr address)
{
    return __atomic_load_n(&core->peers.used, __ATOMIC_ACQUIRE) ? admit_import(core, address)
                                                                : GS_OK;
}

struct admitting {
    struct gs_core *core;
    gs_status refused;
};

/* What is mapped at an address, a piece or an import. */
static void admit_one(uint64_t address, void *arg)
{
    struct admitting *admitting = arg;
    struct gs_piece *piece;
    gs_status status = gs_context_lock_piece(admitting->core, address, &piece);

    if (status == GS_NOT_LIVE) {
        status = admit_import(admitting->core, address);
    } else if (status == GS_OK) {
        status = gs_peers_admit_locked(admitting->core, piece);
        gs_latch_release(&piece->arena->lock);
    } else {
        return; /* it has gone */
    }
    if (status != GS_OK)
        admitting->refused = status;
}

/* GS_OK, or what the driver refused to give. */
static gs_status admit_all(struct gs_core *core)
{
    struct admitting admitting = {core, GS_OK};

    gs_map_each(&core->map, admit_one, &admitting);
    return admitting.refused;
}

/* ---- Peers ------------------------------------------------------------------------------- */

void gs_peers_init(struct gs_core *core)
{
    gs_lock_init(&core->peers.lock, GS_RANK_PEERS);
}

void gs_peers_destroy(struct gs_core *core)
{
    free(core->peers.pair);
    gs_lock_destroy(&core->peers.lock);
}

static bool add_pair_locked(struct gs_peers *peers, const struct gs_peer_pair *pair)
{
    gs_lock_assert_held(&peers->lock);
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

static void remove_pairs(struct gs_core *core, CUcontext from, CUcontext to, bool either)
{
    struct gs_peers *peers = &core->peers;
    unsigned kept = 0;

    gs_lock_take(&peers->lock);
    for (unsigned i = 0; i < peers->count; i++) {
        const struct gs_peer_pair *pair = &peers->pair[i];
        bool match =
            either ? pair->from == from || pair->to == to : pair->from == from && pair->to == to;

        if (!match)
            peers->pair[kept++] = *pair;
    }
    peers->count = kept;
    gs_lock_release(&peers->lock);
}

gs_status gs_core_peer_enabled(struct gs_core *core, CUcontext peer)
{
    struct gs_peer_pair pair = {.to = gs_context_owner(core, peer)};
    gs_status status;
    bool added;

    if (!current(core, &pair.from, &pair.device))
        return GS_OK;
    gs_lock_take(&core->peers.lock);
    added = add_pair_locked(&core->peers, &pair);
    gs_lock_release(&core->peers.lock);
    if (!added)
        return GS_NO_HOST_MEMORY;
    status = admit_all(core);
    if (status != GS_OK)
        remove_pairs(core, pair.from, pair.to, false);
    return status;
}

void gs_core_peer_disabled(struct gs_core *core, CUcontext peer)
{
    CUcontext from;
    CUdevice device;

    if (current(core, &from, &device))
        remove_pairs(core, from, gs_context_owner(core, peer), false);
}

void gs_core_peers_gone(struct gs_core *core, CUcontext context)
{
    if (context && __atomic_load_n(&core->peers.used, __ATOMIC_ACQUIRE))
        remove_pairs(core, context, context, true);
}

/* Whether it had. */
static bool set_pool_access(struct gs_peers *peers, CUdevice device, uint64_t bit, bool access)
{
    bool had;

    gs_lock_take(&peers->lock);
    had = peers->pool_access[device] & bit;
    if (access)
        peers->pool_access[device] |= bit;
    else
        peers->pool_access[device] &= ~bit;
    __atomic_store_n(&peers->used, true, __ATOMIC_RELEASE);
    gs_lock_release(&peers->lock);
    return had;
}

gs_status gs_core_mempool_access(struct gs_core *core, CUdevice device, CUdevice peer, bool access)
{
    gs_status status;
    uint64_t bit;

    if (device < 0 || device >= GS_DEVICES_MAX || peer < 0 || peer >= GS_DEVICES_MAX)
        return GS_OK;
    bit = UINT64_C(1) << peer;
    if (set_pool_access(&core->peers, device, bit, access) || !access)
        return GS_OK;
    status = admit_all(core);
    if (status != GS_OK)
        set_pool_access(&core->peers, device, bit, false);
    return status;
}
