/* SYNC_MEMOPS (core/api/core.h). */
#include "core/api/core.h"

#include "core/process/context.h"

static gs_status synchronise(struct gs_core *core, CUcontext context)
{
    const struct gs_driver *driver = &core->driver;
    unsigned flags = 0;
    GS_ENTER(entered, driver, context);
    CUresult result = entered.result;

    if (result == CUDA_SUCCESS)
        result = driver->ctx_get_flags(&flags);
    if (result == CUDA_SUCCESS && !(flags & CU_CTX_SYNC_MEMOPS))
        result = driver->ctx_set_flags(flags | CU_CTX_SYNC_MEMOPS);
    return result;
}

void gs_core_sync_memops_due(struct gs_core *core)
{
    struct gs_context *context = NULL;
    gs_status status = GS_OK, one;
    CUcontext handle;

    if (!__atomic_load_n(&core->programs.memops_due, __ATOMIC_SEQ_CST) ||
        !gs_fences_wait_begins(&core->fences))
        return;
    if (__atomic_exchange_n(&core->programs.memops_due, false, __ATOMIC_SEQ_CST))
        while ((context = gs_context_next(core, context, &handle)))
            if ((one = synchronise(core, handle)) != GS_OK)
                status = one;
    gs_fences_wait_ends(&core->fences);
    if (status != GS_OK)
        gs_log_line(
            &core->options.log, GS_LOG_WARNING,
            "copies and fills of memory that was to synchronise them (SYNC_MEMOPS, set while a "
            "stream captured) may be under way when they return: the driver's error was %d; "
            "set it again when no stream captures",
            (int)status);
}

/* What is read back, until the block is freed. */
static void note(struct gs_core *core, CUdeviceptr address, uint64_t id, bool on)
{
    struct gs_block *block;

    if (gs_context_lock_around(core, address, &block) != GS_OK)
        return;
    if (block->id == id)
        block->memops = on ? id : 0;
    gs_latch_release(&block->piece->arena->lock);
}

gs_status gs_core_sync_memops(struct gs_core *core, CUdeviceptr address, bool on)
{
    struct gs_block_info info;
    gs_status status = gs_core_find(core, address, &info);

    if (status == GS_OK && on) /* so GPUDirect's users begin */
        gs_single_drain(&core->single, "memory is made ready for other devices");
    if (status == GS_OK && on && info.context) {
        if (!core->driver.ctx_get_flags || !core->driver.ctx_set_flags) {
            status = GS_NOT_OFFERED;
        } else if (gs_fences_wait_begins(&core->fences)) {
            status = synchronise(core, info.context);
            gs_fences_wait_ends(&core->fences);
        } else { /* a capture of a blocking stream would be broken by it */
            __atomic_store_n(&core->programs.memops_due, true, __ATOMIC_SEQ_CST);
            gs_core_sync_memops_due(core); /* the last may just have ended */
        }
    }
    if (status == GS_OK)
        note(core, address, info.id, on);
    return status;
}
