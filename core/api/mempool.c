/* Default memory pools (core/api/core.h). */
#include "core/api/core.h"

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

#define TRIM_LOOKS 20
#define MOMENT_NS  20000 /* between two of them */

CUdevice gs_core_mempool_device(struct gs_core *core, CUmemoryPool pool)
{
    CUmemoryPool its;
    int count = 0;

    if (!core->driver.device_get_default_pool || !core->driver.device_get_count ||
        core->driver.device_get_count(&count) != CUDA_SUCCESS)
        return -1;
    for (CUdevice device = 0; device < count && device < GS_DEVICES_MAX; device++)
        if (core->driver.device_get_default_pool(&its, device) == CUDA_SUCCESS && its == pool)
            return device;
    return -1;
}

void gs_core_mempool_figures(struct gs_core *core, CUdevice device,
                             struct gs_mempool_figures *ret_figures)
{
    struct gs_async_count *count = &core->async[device];
    struct gs_stats stats;
    uint64_t high;

    gs_async_read(core, device, false, &ret_figures->used, &ret_figures->used_high);
    gs_stats_read(core, device, &stats);
    ret_figures->retired = stats.retired + stats.ordered;
    ret_figures->reserved = gs_page_round(ret_figures->used) + stats.cached + ret_figures->retired;
    if (!__atomic_load_n(&count->ever, __ATOMIC_RELAXED))
        ret_figures->reserved = 0;
    high = gs_page_round(ret_figures->used_high);
    if (high < ret_figures->reserved)
        high = ret_figures->reserved;
    if (high < __atomic_load_n(&count->reserved_high, __ATOMIC_RELAXED))
        high = __atomic_load_n(&count->reserved_high, __ATOMIC_RELAXED);
    __atomic_store_n(&count->reserved_high, high, __ATOMIC_RELAXED);
    ret_figures->reserved_high = high;
}

void gs_core_mempool_reset_high(struct gs_core *core, CUdevice device, bool reserved)
{
    uint64_t live, high;

    if (reserved)
        __atomic_store_n(&core->async[device].reserved_high, 0, __ATOMIC_RELAXED);
    else
        gs_async_read(core, device, true, &live, &high);
}

void gs_core_mempool_trim(struct gs_core *core, CUdevice device, uint64_t keep)
{
    struct gs_mempool_figures figures;
    struct gs_arena *arena = NULL;
    uint64_t used;

    gs_core_mempool_figures(core, device, &figures);
    used = figures.used;
    if (figures.reserved <= keep)
        return;
    /* An event that was just recorded needs a moment even where the GPU is idle. */
    for (int i = 0; i < TRIM_LOOKS && figures.reserved > keep; i++) {
        if (i)
            gs_rest_ns(MOMENT_NS);
        while ((arena = gs_next_arena(core, &core->device[device], arena)))
            gs_arena_trim(core, arena, NULL, keep > used ? keep - used : 0, SIZE_MAX);
        gs_core_mempool_figures(core, device, &figures);
        if (figures.retired == 0)
            break;
    }
}
