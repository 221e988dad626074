/* What lies at an address, and what the program does beside (core/api/core.h). */
#include "core/api/core.h"

#include "core/process/context.h"

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
        .sync_memops = true,
        .imported = true,
    };
    return GS_OK;
}

gs_status gs_core_find(struct gs_core *core, CUdeviceptr address, struct gs_block_info *ret_info)
{
    struct gs_block *block;
    struct gs_arena *arena;
    gs_status status = gs_context_lock_around(core, address, &block);

    if (status == GS_NOT_LIVE)
        return find_import(core, address, ret_info);
    if (status != GS_OK)
        return status == GS_INVALID ? GS_NOT_LIVE : status;
    arena = block->piece->arena;
    *ret_info = (struct gs_block_info){
        .base = block->base,
        .size = block->size,
        .id = block->id,
        .context = arena->context,
        .async = block->async,
        .sync_memops = block->memops == block->id,
        .default_pool = arena->device->default_pool,
    };
    gs_latch_release(&arena->lock);
    return GS_OK;
}

void gs_core_lent(struct gs_core *core, CUdeviceptr base, size_t size)
{
    const CUdeviceptr end = base + size;
    struct gs_piece *piece;

    while (base < end && gs_context_lock_piece(core, base, &piece) == GS_OK) {
        base = gs_piece_end(piece);
        piece->lent = true;
        gs_latch_release(&piece->arena->lock);
    }
}

struct gs_single *gs_core_single(struct gs_core *core)
{
    return &core->single;
}

/* False: no live block is there. */
static bool touch(struct gs_core *core, CUdeviceptr address)
{
    struct gs_block *block;
    gs_status status = gs_context_lock_around(core, address, &block);

    if (status != GS_OK)
        return status != GS_INVALID; /* then it is not the arenas' */
    block->multi_stream = true;
    gs_latch_release(&block->piece->arena->lock);
    return true;
}

void gs_core_touches(struct gs_core *core, CUstream stream, CUdeviceptr dst, CUdeviceptr src)
{
    const uint64_t only = gs_single_state(&core->single);

    if (only == gs_stream_key(stream) || only == GS_SINGLE_MULTI || (dst && !touch(core, dst)) ||
        (src && !touch(core, src)) || !gs_single_passes_by(&core->single, stream))
        gs_single_submits(&core->single, stream);
}

const struct gs_map *gs_core_map(const struct gs_core *core)
{
    return &core->map;
}

/* The stream's; the program may have another one current. */
static CUcontext context_of(struct gs_core *core, CUstream stream)
{
    CUcontext current = NULL, its;

    core->driver.ctx_get_current(&current);
    if (gs_stream_is_default(stream) || core->driver.stream_get_ctx(stream, &its) != CUDA_SUCCESS)
        return current;
    return its;
}

gs_status gs_core_capture_begin(struct gs_core *core, CUstream stream)
{
    CUcontext context;

    gs_single_drain(&core->single, "a capture begins");
    gs_context_before_capture(core);
    context = context_of(core, stream);
    return gs_fences_capture_begin(&core->fences, gs_stream_key(stream), context,
                                   context ? gs_context_owner(core, context) : NULL);
}

void gs_core_capture_end(struct gs_core *core, CUstream stream)
{
    gs_fences_capture_end(&core->fences, gs_stream_key(stream),
                          gs_stream_is_default(stream) ? context_of(core, stream) : NULL);
    gs_core_sync_memops_due(core);
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
