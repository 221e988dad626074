/* Copies, fills and peers (core/api/peer_access.h). */
#include "core/api/peer_access.h"

#include "core/api/core.h"
#include "core/process/context.h"
#include "core/process/peers.h"

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

/* That of a context (NULL: the current one); below 0: there is one device alone, or the driver will
 * say what is wrong. */
static CUdevice far_device_in(struct gs_core *core, CUcontext context)
{
    CUdevice device;
    bool known =
        several_devices(core) && (context ? gs_context_device(core, context, &device)
                                          : core->driver.ctx_get_device(&device) == CUDA_SUCCESS);

    return known ? device : -1;
}

/* The one whose engines do the work of a stream. */
static CUdevice far_device(struct gs_core *core, CUstream stream)
{
    CUcontext context = NULL;

    if (!gs_stream_is_default(stream) && several_devices(core) &&
        core->driver.stream_get_ctx(stream, &context) != CUDA_SUCCESS)
        return -1;
    return far_device_in(core, context);
}

/* What has to be so for memory of another device. */
enum far_rule {
    FAR_ENABLED, /* peer access was enabled, or it is refused */
    FAR_GIVEN,   /* access is given */
    FAR_APART,   /* it is GS_UNREACHABLE */
};

/* Of an open import; what is only mapped, for the next open, is nobody's. */
static gs_status check_import(struct gs_core *core, struct gs_access_range range, CUdevice device,
                              enum far_rule rule)
{
    struct gs_import_info import;

    if (gs_share_find(core->share, range.address, &import) != GS_OK ||
        range.size > import.size - (range.address - import.base))
        return GS_NOT_LIVE;
    if (!gs_is_device(device) || gs_share_is_home(core->share, range.address, device))
        return GS_OK;
    if (rule == FAR_ENABLED)
        return gs_peers_of_import(core, range.address) >> device & 1 ? GS_OK : GS_NOT_LIVE;
    return rule == FAR_GIVEN && gs_share_give(core->share, range.address, device) == GS_OK
               ? GS_OK
               : GS_UNREACHABLE;
}

/* `device` below 0: which one does not matter. */
static gs_status check(struct gs_core *core, struct gs_access_range range, CUdevice device,
                       enum far_rule rule)
{
    struct gs_arena *arena;
    struct gs_block *block;
    gs_status status;

    if (range.size == 0)
        return GS_OK;
    status = gs_context_lock_around(core, range.address, &block);
    if (status == GS_NOT_OURS)
        return GS_OK;
    if (status == GS_NOT_LIVE)
        return check_import(core, range, device, rule);
    if (status != GS_OK)
        return GS_NOT_LIVE;
    arena = block->piece->arena;
    if (range.size > block->size - (range.address - block->base))
        status = GS_NOT_LIVE;
    else if (!gs_is_device(device) || device == arena->device->ordinal)
        status = GS_OK;
    else if (rule == FAR_APART)
        status = GS_UNREACHABLE;
    else if (rule == FAR_ENABLED)
        status = gs_peers_of(core, arena->device->ordinal) >> device & 1 ? GS_OK : GS_NOT_LIVE;
    else
        status = gs_block_set_access(core, block, device) == GS_OK ? GS_OK : GS_UNREACHABLE;
    gs_latch_release(&arena->lock);
    return status;
}

/* That no context is current comes before anything about the memory: then the driver says so. */
static gs_status refused(struct gs_core *core, CUstream stream)
{
    return gs_stream_is_default(stream) && gs_core_in_context(core) != GS_OK ? GS_OK : GS_NOT_LIVE;
}

gs_status gs_core_may_fill(struct gs_core *core, struct gs_access_range range, CUstream stream)
{
    gs_status status = check(core, range, far_device(core, stream), FAR_ENABLED);

    return status == GS_NOT_LIVE ? refused(core, stream) : status;
}

gs_status gs_core_may_copy(struct gs_core *core, struct gs_access_range dst,
                           struct gs_access_range src, CUstream stream, bool async)
{
    const enum far_rule rule = async ? FAR_GIVEN : FAR_APART;
    CUdevice device = far_device(core, stream);
    gs_status to = check(core, dst, device, rule);
    gs_status from = check(core, src, device, rule);

    if (to == GS_NOT_LIVE || from == GS_NOT_LIVE)
        return refused(core, stream);
    return to == GS_OK ? from : to;
}

gs_status gs_core_may_do_later(struct gs_core *core, struct gs_access_range dst,
                               struct gs_access_range src, CUcontext context)
{
    CUdevice device = far_device_in(core, context);
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

bool gs_core_within(struct gs_core *core, struct gs_access_range range)
{
    return check(core, range, -1, FAR_GIVEN) == GS_OK;
}

/* A capture of another stream, one that begins meanwhile too, refuses a wait and is broken by it,
 * but neither by a synchronous copy (measured on an H200): the thread's mode is RELAXED then. */
static CUresult wait_beside_captures(struct gs_core *core, CUstream stream)
{
    CUstreamCaptureMode mode;
    bool relaxed = gs_fences_relax(&core->fences, &mode);
    CUresult result = core->driver.stream_synchronize(stream);

    if (relaxed)
        gs_fences_restore(&core->fences, mode);
    return result;
}

CUresult gs_core_owner_enter(struct gs_core *core, CUdeviceptr address, CUstream stream)
{
    CUcontext owner = gs_core_copy_context(core, address);
    CUresult result = owner ? wait_beside_captures(core, stream) : CUDA_ERROR_INVALID_CONTEXT;

    return result ? result : core->driver.ctx_push_current(owner);
}

CUresult gs_core_owner_leave(struct gs_core *core, CUresult copied)
{
    CUresult result = copied ? copied : wait_beside_captures(core, CU_STREAM_PER_THREAD);
    CUcontext popped;

    core->driver.ctx_pop_current(&popped);
    return result;
}
