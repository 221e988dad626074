/* What a process may take of a device's memory (core/process/limit.h). */
#include "core/process/limit.h"

#include <stdint.h>
#include <string.h>

#include "core/process/context.h"
#include "core/process/stats.h"

size_t gs_limit_of(const struct gs_core *core, const struct gs_device *device)
{
    return gs_limit_of_total(&core->options.limit, device->total);
}

size_t gs_limit_used(const struct gs_core *core, CUdevice device)
{
    return __atomic_load_n(&core->figures.used[device], __ATOMIC_SEQ_CST);
}

bool gs_limit_is_beyond(const struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    size_t limit = gs_limit_of(core, device), used = gs_limit_used(core, device->ordinal);

    if (limit == SIZE_MAX)
        return false;
    return used > limit || bytes > (limit - used) / GS_PAGE_SIZE * GS_PAGE_SIZE;
}

bool gs_limit_take(struct gs_core *core, const struct gs_device *device, size_t bytes)
{
    size_t *used = &core->figures.used[device->ordinal], limit = gs_limit_of(core, device);
    size_t seen = __atomic_load_n(used, __ATOMIC_SEQ_CST);

    /* Nothing is counted for a moment that another thread's request would then not fit beside. */
    do
        if (seen > limit || bytes > limit - seen)
            return false;
    while (!__atomic_compare_exchange_n(used, &seen, seen + bytes, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST));
    return true;
}

void gs_limit_give(struct gs_core *core, CUdevice device, size_t bytes)
{
    __atomic_sub_fetch(&core->figures.used[device], bytes, __ATOMIC_SEQ_CST);
}

size_t gs_limit_left(struct gs_core *core, CUdevice device)
{
    size_t left, used, total;
    struct gs_stats stats;

    /* Where the driver does not say what it has, what is free here is left all the same. */
    if (!gs_context_mem_info(core, gs_context_of_device(core, device), &left, &total)) {
        left = 0;
        total = core->device[device].total;
    }
    gs_stats_read(core, device, &stats);
    used = stats.live + stats.limbo; /* of a process that sleeps, more than it has there */
    left += (stats.reserved > used ? stats.reserved - used : 0) +
            gs_share_would_go(core->share, (unsigned)device);
    gs_core_bound(core, device, &left, &total);
    return left;
}

/* ---- What a bounded program is told ------------------------------------------------------- */

void gs_core_bound(struct gs_core *core, CUdevice device, size_t *free, size_t *total)
{
    size_t limit = gs_limit_of_total(&core->options.limit, *total), used, would_go = 0;
    struct gs_stats stats = {0};

    if (limit >= *total)
        limit = *total;
    if (device < 0 && core->driver.ctx_get_device(&device) != CUDA_SUCCESS)
        device = GS_NO_DEVICE;
    if (device < GS_DEVICES_MAX) {
        would_go = gs_share_would_go(core->share, (unsigned)device);
        gs_stats_read(core, device, &stats);
    }
    /* What is free in the arenas is free to the program, and what waits for others to come. */
    used = stats.live + stats.limbo - (would_go < stats.limbo ? would_go : stats.limbo);
    *total = limit;
    if (used >= limit)
        *free = 0;
    else if (*free > limit - used)
        *free = limit - used;
}

CUdevice gs_core_device_of_uuid(struct gs_core *core, const unsigned char uuid[16])
{
    GS_HOLDING(&core->lock);

    for (const struct gs_context *context = gs_contexts_locked(core); context;
         context = context->next)
        if (!context->spare && memcmp(context->device->uuid, uuid, 16) == 0)
            return context->ordinal;
    return GS_NO_DEVICE;
}
