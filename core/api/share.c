/* Sharing: a handle of a block, and what others have shared (core/api/core.h). */
#include "core/api/core.h"

#include <stdlib.h>
#include <string.h>

#include "core/process/context.h"

/* Of the pieces that a block lies across. NULL: no host memory. */
static struct gs_share_strip *strip_of(const struct gs_block *block)
{
    const struct gs_piece *piece = block->piece;
    struct gs_share_strip *strip;
    uint32_t pieces = 0;

    for (; piece; piece = gs_block_next_piece(block, piece))
        pieces++;
    strip = calloc(1, sizeof *strip + 2 * pieces * sizeof *strip->sizes);
    if (!strip)
        return NULL;
    strip->references = 1;
    strip->is_block = true;
    strip->id = GS_STRIP_IDS | GS_STRIP_IDS >> 1 | block->id;
    strip->ids = &strip->sizes[pieces];
    for (piece = block->piece; piece; piece = gs_block_next_piece(block, piece)) {
        strip->sizes[pieces + strip->pieces] = piece->id;
        strip->sizes[strip->pieces++] = piece->span.size;
    }
    return strip;
}

/* GS_NO_HOST_MEMORY. The strip, or NULL, is the caller's. */
static gs_status source_of(const struct gs_block *block, struct gs_share_source *ret)
{
    const struct gs_piece *piece = block->piece;

    *ret = (struct gs_share_source){
        .handle = piece->handle,
        .chunk_id = piece->id,
        .chunk_size = piece->span.size,
        .block_id = block->id,
        .offset = block->base - piece->span.base,
        .size = block->size,
        .address = block->base,
        .alone = gs_block_is_large(block) && piece->arena->shared->whole_pieces,
    };
    memcpy(ret->uuid, piece->arena->device->uuid, sizeof ret->uuid);
    ret->device = (unsigned)piece->arena->device->ordinal;
    if (block->base + block->size <= gs_piece_end(piece))
        return GS_OK;
    ret->strip = strip_of(block);
    if (!ret->strip)
        return GS_NO_HOST_MEMORY;
    ret->handle = 0;
    ret->chunk_id = ret->strip->id;
    ret->chunk_size = 0;
    for (uint32_t i = 0; i < ret->strip->pieces; i++)
        ret->chunk_size += ret->strip->sizes[i];
    return GS_OK;
}

/* The handle of what is there, or, where that has none yet, what it is to be of: *ret_exported
 * tells. The source's strip, or NULL, is the caller's. */
static gs_status look_for(struct gs_core *core, CUdeviceptr address, bool *ret_exported,
                          unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE],
                          struct gs_share_source *ret_source)
{
    struct gs_block *block;
    gs_status status = gs_context_lock_around(core, address, &block);

    *ret_exported = true;
    if (status == GS_NOT_LIVE) {
        gs_status passed = gs_share_pass_on(core->share, address, ret_ipc_handle);

        if (passed != GS_NOT_OURS)
            return passed;
    }
    if (status == GS_NOT_LIVE || status == GS_INVALID)
        gs_log_line(&core->options.log, GS_LOG_DEBUG, "no IPC handle: no block in use lies at %llx",
                    (unsigned long long)address);
    if (status != GS_OK)
        return status == GS_NOT_LIVE ? GS_INVALID : status;
    *ret_exported = block->export != NULL;
    if (block->export)
        gs_export_handle(block->export, ret_ipc_handle);
    else
        status = source_of(block, ret_source);
    gs_latch_release(&block->piece->arena->lock);
    return status;
}

/* From now on the export is the block's. False: another thread was first, or freed the block. */
static bool enter(struct gs_core *core, const struct gs_share_source *source,
                  struct gs_export *export, unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct gs_block *block;
    bool entered;

    if (gs_context_lock_around(core, source->address, &block) != GS_OK)
        return false;
    entered = block->id == source->block_id && !block->export;
    if (entered) {
        block->export = export;
        gs_export_handle(export, ret_ipc_handle);
        gs_share_given_out(core->share, export);
    }
    gs_latch_release(&block->piece->arena->lock);
    return entered;
}

gs_status gs_core_ipc_handle(struct gs_core *core, CUdeviceptr address,
                             unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct gs_share_source source;
    struct gs_export *export;
    gs_status status;
    bool exported;

    gs_single_drain(&core->single, "memory is shared");
    for (;;) {
        status = look_for(core, address, &exported, ret_ipc_handle, &source);
        if (status != GS_OK || exported)
            return status;
        /* The first of a process starts a thread and a socket: not under the arena's lock. */
        status = gs_share_export(core->share, &source, &export);
        gs_share_strip_unref(source.strip);
        if (status != GS_OK || enter(core, &source, export, ret_ipc_handle))
            return status;
        gs_share_withdraw(core->share, export);
    }
}

gs_status gs_core_publish(struct gs_core *core, CUdeviceptr address, const struct gs_naming *naming)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status = gs_core_ipc_handle(core, address, ipc_handle);
    struct gs_block *block;
    uint64_t since_ns;

    if (status != GS_OK)
        return status == GS_INVALID ? GS_NOT_LIVE : status;
    status = gs_context_lock_around(core, address, &block);
    if (status == GS_OK) {
        status = block->export ? gs_share_name(core->share, block->export, naming,
                                               address - block->base, &since_ns)
                               : GS_NOT_LIVE; /* another thread has freed and allocated it */
        gs_latch_release(&block->piece->arena->lock);
    } else if (status == GS_NOT_LIVE) {
        status = gs_share_name_external(core->share, address, naming, &since_ns);
    }
    if (status == GS_OK)
        gs_share_named(core->share, naming->name, since_ns);
    return status == GS_INVALID ? GS_NOT_LIVE : status;
}

struct gs_share *gs_core_share(struct gs_core *core)
{
    return core->share;
}

gs_status gs_core_open(struct gs_core *core, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE],
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
    if (core->options.neighbours) /* soon others can ask, and the open does not wait for that */
        gs_share_serve_soon(core->share);
    status = gs_share_open(core->share, ipc_handle, context->handle, context->ordinal, ret_address);
    if (status != GS_OK)
        return status;
    status = gs_peers_admit_import(core, *ret_address);
    if (status != GS_OK)
        gs_share_close(core->share, *ret_address);
    return status;
}
