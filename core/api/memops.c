/* SYNC_MEMOPS (core/api/memops.h). */
#include "core/api/memops.h"

#include "core/process/context.h"

static gs_status synchronise(struct gs_core *core, CUcontext context)
{
    const struct gs_driver *driver = &core->driver;
    unsigned flags = 0;
    CUcontext popped;
    CUresult result = driver->ctx_push_current(context);

    if (result != CUDA_SUCCESS)
        return result;
    result = driver->ctx_get_flags(&flags);
    if (result == CUDA_SUCCESS && !(flags & CU_CTX_SYNC_MEMOPS))
        result = driver->ctx_set_flags(flags | CU_CTX_SYNC_MEMOPS);
    driver->ctx_pop_current(&popped);
    return result;
}

/* A capture of a blocking stream would be broken by it: it is made true when none is open any more,
 * which the program's own calls end. Until then it hears that it is true, as it does natively. */
static void synchronise_later(struct gs_core *core, CUcontext handle)
{
    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context; context = context->next)
        if (context->handle == handle && !context->detached)
            context->memops_due = true;
    gs_lock_release(&core->lock);
}

static CUcontext take_due(struct gs_core *core)
{
    CUcontext handle = NULL;

    gs_lock_take(&core->lock);
    for (struct gs_context *context = core->contexts; context && !handle; context = context->next) {
        if (context->memops_due && !context->detached)
            handle = context->handle;
        context->memops_due = false;
    }
    gs_lock_release(&core->lock);
    return handle;
}

void gs_core_sync_memops_due(struct gs_core *core)
{
    CUcontext context;
    gs_status status;

    while (!gs_core_capturing(core) && (context = take_due(core))) {
        status = synchronise(core, context);
        if (status != GS_OK)
            gs_log_line(
                &core->options.log, GS_LOG_WARNING,
                "copies and fills of memory that was to synchronise them (SYNC_MEMOPS, set while a "
                "stream captured) may be under way when they return: the driver's error was %d; "
                "set it again when no stream captures",
                (int)status);
    }
}

/* What is read back, until the block is freed. */
static void note(struct gs_core *core, CUdeviceptr address, uint64_t id, bool on)
{
    struct gs_piece *piece;
    struct gs_block *block;

    if (gs_context_lock_piece(core, address, &piece) != GS_OK)
        return;
    block = gs_piece_find_locked(piece, address);
    if (block->id == id)
        block->memops = on ? id : 0;
    gs_latch_release(&piece->arena->lock);
}

gs_status gs_core_sync_memops(struct gs_core *core, CUdeviceptr address, bool on)
{
    struct gs_block_info info;
    gs_status status = gs_core_find(core, address, &info);

    if (status == GS_OK && on) /* so GPUDirect's users begin */
        gs_single_drain(&core->single, "memory is made ready for other devices");
    if (status == GS_OK && on && info.context) {
        if (!core->driver.ctx_get_flags || !core->driver.ctx_set_flags)
            status = GS_NOT_OFFERED;
        else if (gs_core_capturing(core))
            synchronise_later(core, info.context);
        else
            status = synchronise(core, info.context);
    }
    if (status == GS_OK)
        note(core, address, info.id, on);
    return status;
}
