/* Sharing: a token of a block, and what others have shared (core/api/core.h). */
#include "core/api/core.h"

#include <string.h>

#include "core/process/context.h"

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
        .address = block->base,
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
    gs_share_withdraw(core->share, offer);
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
        gs_peers_admit(core, *ret_address);
    return status;
}

gs_status gs_core_close(struct gs_core *core, CUdeviceptr address)
{
    return gs_share_close(core->share, address);
}
