/* Peer access (core/process/peers.h). */
#include "core/process/peers.h"

#include "core/process/context.h"

uint64_t gs_peers_of(const struct gs_core *core, CUdevice device)
{
    return __atomic_load_n(&core->let_in[device], __ATOMIC_SEQ_CST);
}

uint64_t gs_peers_of_import(struct gs_core *core, CUdeviceptr address)
{
    uint64_t devices = 0, its;

    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++)
        if ((its = gs_peers_of(core, device)) && gs_share_is_home(core->share, address, device))
            devices |= its;
    return devices;
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

gs_status gs_peers_admit_import(struct gs_core *core, CUdeviceptr address)
{
    uint64_t devices = gs_peers_of_import(core, address);
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
    uint64_t devices = gs_peers_of(core, piece->arena->device->ordinal);
    gs_status status = GS_OK;

    gs_latch_assert_held(&piece->arena->lock);
    for (CUdevice device = 0; devices && status == GS_OK; device++, devices >>= 1)
        if (devices & 1)
            status = set_piece_access(core, piece, device);
    return status;
}

/* What is mapped at an address, a piece or an import. */
static gs_status admit(struct gs_core *core, uint64_t address)
{
    struct gs_piece *piece;
    gs_status status = gs_context_lock_piece(core, address, &piece);

    if (status == GS_NOT_LIVE)
        return gs_peers_admit_import(core, address);
    if (status != GS_OK)
        return GS_OK; /* it has gone */
    status = gs_peers_admit_locked(core, piece);
    gs_latch_release(&piece->arena->lock);
    return status;
}

static struct gs_lock letting = GS_LOCK_INITIALIZER(GS_RANK_PEERS);

/* All of its memory or nothing; who comes meanwhile waits for that. */
gs_status gs_core_mempool_access(struct gs_core *core, CUdevice device, CUdevice peer)
{
    uint64_t bit, at = GS_MAP_NONE;
    gs_status status = GS_OK;
    GS_HOLDING(&letting);

    if (!gs_is_device(device) || !gs_is_device(peer))
        return GS_OK;
    bit = UINT64_C(1) << peer;
    if (__atomic_fetch_or(&core->let_in[device], bit, __ATOMIC_SEQ_CST) & bit)
        return GS_OK;
    while (status == GS_OK && (at = gs_map_after(&core->map, at)) != GS_MAP_NONE)
        status = admit(core, at);
    if (status != GS_OK)
        __atomic_fetch_and(&core->let_in[device], ~bit, __ATOMIC_SEQ_CST);
    return status;
}

gs_status gs_core_peer_enabled(struct gs_core *core, CUcontext peer)
{
    CUdevice device, from;

    if (core->driver.ctx_get_device(&from) != CUDA_SUCCESS ||
        !gs_context_device(core, peer, &device))
        return GS_OK;
    return gs_core_mempool_access(core, device, from);
}
