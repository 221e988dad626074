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

/* A capture of a blocking stream would be broken by it: it is made true when none is open any more, which
 * the program's own calls end. Until then it hears that it is true, as it does natively. */
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
            gs_log_line(&core->options.log, GS_LOG_WARNING,
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
        block->memops = id << 1 | on;
    gs_latch_release(&piece->arena->lock);
}

static bool per_thread_stream_is_free(struct gs_core *core)
{
    CUstreamCaptureStatus status;

    return gs_core_stream_status(core, CU_STREAM_PER_THREAD, &status) == CUDA_SUCCESS &&
           status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* A capture that is open refuses it where it refuses an allocation, and is broken by the one as by
 * the other (measured on an H200): the driver is asked for one. Of memory that has outlived its context
 * (NULL) in the one that is current. */
static gs_status allowed(struct gs_core *core, CUcontext context)
{
    const struct gs_driver *driver = &core->driver;
    CUdeviceptr block;
    CUcontext popped;
    gs_status status;

    if (!gs_core_capturing(core) || !driver->mem_alloc || !driver->mem_free_async ||
        (context && driver->ctx_push_current(context) != CUDA_SUCCESS))
        return GS_OK;
    if (per_thread_stream_is_free(core)) {
        status = driver->mem_alloc(&block, 512);
        if (status == GS_OK)
            driver->mem_free_async(block, CU_STREAM_PER_THREAD);
    } else {
        status = GS_OK;
    }
    if (context)
        driver->ctx_pop_current(&popped);
    return status == (gs_status)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? status : GS_OK;
}

gs_status gs_core_sync_memops(struct gs_core *core, CUdeviceptr address, bool on)
{
    struct gs_block_info info;
    gs_status status = gs_core_find(core, address, &info);

    if (status == GS_OK)
        status = allowed(core, info.context);
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

/* The context is current. -1: it cannot be said now. A capture that is open, of whatever mode, does
 * not see this: the thread's mode is RELAXED meanwhile, and its own stream does not capture. The
 * block is freed in the order of that stream, as cuMemFree would wait for all that the GPU does. */
static int ask_driver(struct gs_core *core)
{
    const struct gs_driver *driver = &core->driver;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr block;
    int on = 0;
    CUresult result;

    if (!driver->mem_alloc || !driver->mem_free_async || !driver->pointer_get_attribute ||
        !driver->exchange_capture_mode ||
        !per_thread_stream_is_free(core) ||
        driver->exchange_capture_mode(&mode) != CUDA_SUCCESS)
        return -1;
    result = driver->mem_alloc(&block, 512);
    if (result == CUDA_SUCCESS) {
        result = driver->pointer_get_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block);
        driver->mem_free_async(block, CU_STREAM_PER_THREAD);
    }
    driver->exchange_capture_mode(&mode);
    return result == CUDA_SUCCESS ? on != 0 : -1;
}

int gs_core_sync_memops_at_first(struct gs_core *core, CUcontext context)
{
    const struct gs_driver *driver = &core->driver;
    CUdevice ordinal = -1;
    CUcontext popped;
    int said = 0;

    if (!context || driver->ctx_push_current(context) != CUDA_SUCCESS)
        return 0;
    if (driver->ctx_get_device(&ordinal) == CUDA_SUCCESS && ordinal >= 0 &&
        ordinal < GS_DEVICES_MAX) {
        int *known = &core->device[ordinal].sync_memops;

        said = __atomic_load_n(known, __ATOMIC_RELAXED);
        if (!said) {
            int answer = ask_driver(core);

            said = (answer > 0) + 1;
            __atomic_store_n(known, said, __ATOMIC_RELAXED);
        }
    }
    driver->ctx_pop_current(&popped);
    return said == 2;
}
