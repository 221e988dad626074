/* Default memory pools (core/api/mempool.h). */
#include "core/api/mempool.h"

#include <time.h>

#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"

#define TRIM_LOOKS 20

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

struct survey {
    struct gs_core *core;
    CUdevice device;
    bool cached; /* chunks that nothing is live in count */
    uint64_t reserved, in_use;
};

/* Called for each chunk and import. Memory of cuMemAlloc alone is no pool's. */
static void survey_chunk(uint64_t address, void *arg)
{
    struct survey *survey = arg;
    bool live = false, async = false;
    struct gs_chunk *chunk;

    if (gs_context_lock_chunk(survey->core, address, &chunk) != GS_OK)
        return;
    if (chunk->arena->device->ordinal == survey->device) {
        for (const struct gs_block *block = chunk->lowest; block; block = block->above) {
            live = live || block->state == GS_BLOCK_LIVE;
            async = async || (block->state == GS_BLOCK_LIVE && block->async);
        }
        if (async || (survey->cached && !live))
            survey->reserved += chunk->span.size;
        if (async)
            survey->in_use += chunk->span.size;
    }
    gs_latch_release(&chunk->arena->lock);
}

void gs_core_mempool_figures(struct gs_core *core, CUdevice device,
                             struct gs_mempool_figures *ret_figures)
{
    struct gs_async_count *count = &core->async[device];
    struct survey survey = {.core = core, .device = device};
    uint64_t high;

    gs_async_read(core, device, &ret_figures->used, &ret_figures->used_high);
    survey.cached = __atomic_load_n(&count->ever, __ATOMIC_RELAXED);
    if (survey.cached)
        gs_map_each(&core->map, survey_chunk, &survey);
    ret_figures->reserved = survey.reserved;
    ret_figures->in_use = survey.in_use;
    high = gs_page_round(ret_figures->used_high);
    if (high < survey.reserved)
        high = survey.reserved;
    if (high < __atomic_load_n(&count->reserved_high, __ATOMIC_RELAXED))
        high = __atomic_load_n(&count->reserved_high, __ATOMIC_RELAXED);
    __atomic_store_n(&count->reserved_high, high, __ATOMIC_RELAXED);
    ret_figures->reserved_high = high;
}

void gs_core_mempool_reset_reserved_high(struct gs_core *core, CUdevice device)
{
    __atomic_store_n(&core->async[device].reserved_high, 0, __ATOMIC_RELAXED);
}

void gs_core_mempool_reset_used_high(struct gs_core *core, CUdevice device)
{
    gs_async_forget_peak(core, device);
}

/* No more than that many free bytes stay in each arena. */
static void trim_arenas(struct gs_core *core, CUdevice device, uint64_t keep)
{
    struct gs_arena *arena;

    for (unsigned at = 0; (arena = gs_next_pool(core, &core->device[device], &at));) {
        struct gs_chunk *released;

        gs_latch_take(&arena->lock);
        gs_arena_flush_streams_locked(arena, 0);
        gs_arena_collect_locked(arena);
        released = gs_arena_detach_ready_locked(arena, keep);
        gs_latch_release(&arena->lock);
        gs_chunks_unmap(core, released);
    }
}

void gs_core_mempool_trim(struct gs_core *core, CUdevice device, uint64_t keep)
{
    const struct timespec moment = {.tv_nsec = 20000};
    struct gs_mempool_figures figures;
    uint64_t used;

    gs_core_mempool_figures(core, device, &figures);
    used = figures.used;
    if (figures.reserved <= keep)
        return;
    /* An event that was just recorded needs a moment even where the GPU is idle. */
    for (int i = 0; i < TRIM_LOOKS && figures.reserved > keep; i++) {
        if (i)
            nanosleep(&moment, NULL);
        trim_arenas(core, device, keep > used ? keep - used : 0);
        gs_core_mempool_figures(core, device, &figures);
        if (figures.reserved == figures.in_use)
            break;
    }
}
