/* SYNC_MEMOPS (core/memops.h). */
#include "core/memops.h"

#include "core/context.h"

static gs_status synchronise(struct gs_core *core, CUcontext context)
{
    const struct gs_driver *driver = &core->driver;
    unsigned flags = 0;
    CUcontext popped;
    CUresult result;

    if (!driver->ctx_get_flags || !driver->ctx_set_flags)
        return GS_NOT_OFFERED;
    result = driver->ctx_push_current(context);
    if (result != CUDA_SUCCESS)
        return result;
    result = driver->ctx_get_flags(&flags);
    if (result == CUDA_SUCCESS && !(flags & CU_CTX_SYNC_MEMOPS))
        result = driver->ctx_set_flags(flags | CU_CTX_SYNC_MEMOPS);
    driver->ctx_pop_current(&popped);
    return result;
}

/* What is read back, until the block is freed. */
static void note(struct gs_core *core, CUdeviceptr address, uint64_t id, bool on)
{
    struct gs_chunk *chunk;
    struct gs_block *block;

    if (gs_context_lock_chunk(core, address, &chunk) != GS_OK)
        return;
    block = gs_chunk_find(chunk, address);
    if (block->id == id)
        block->unsynced = on ? 0 : id;
    gs_latch_release(&chunk->pool->lock);
}

gs_status gs_core_sync_memops(struct gs_core *core, CUdeviceptr address, bool on)
{
    struct gs_block_info info;
    gs_status status = gs_core_find(core, address, &info);

    if (status == GS_OK && on)
        status = synchronise(core, info.context);
    if (status == GS_OK)
        note(core, address, info.id, on);
    return status;
}
