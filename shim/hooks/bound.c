/*
 * The memory that a device has, to a program that is bounded (bound.h); cuMemGetInfo_v2 is in
 * memory.c.
 */
#include "bound.h"

#include "shim/start.h"

void gs_bound_info(size_t *free, size_t *total)
{
    if (gs_bounded)
        gs_core_bound(gs_core, -1, free, total);
}

/* ---- Before the shim has started ---------------------------------------------------------- */

/* Threads that come together read the same. */
static struct {
    atomic_bool known;
    _Atomic size_t bytes;
    _Atomic unsigned percent;
} ahead;

static void read_limit(void)
{
    struct gs_limit limit;

    if (atomic_load(&ahead.known))
        return;
    gs_shim_limit(&limit);
    atomic_store(&ahead.bytes, limit.bytes);
    atomic_store(&ahead.percent, limit.percent);
    atomic_store(&ahead.known, true);
}

bool gs_bound_applies(void)
{
    if (gs_state_enter_lookup())
        return gs_bounded;
    if (atomic_load(&gs_state) != GS_STATE_UNBORN)
        return false;
    read_limit();
    return ahead.bytes > 0 || ahead.percent > 0;
}

void gs_bound_ahead(size_t *free, size_t *total)
{
    const struct gs_limit set = {.bytes = ahead.bytes, .percent = ahead.percent};
    size_t limit = gs_limit_of_total(&set, *total);

    if (*total > limit)
        *total = limit;
    if (*free > limit)
        *free = limit;
}

/* ---- The hooks: the forms with 32 bits tell what fits ------------------------------------- */

/* Whether there is something to be told differently. */
static bool enter(void)
{
    return gs_state_enter() && gs_bounded;
}

static size_t bounded_total(CUdevice device, size_t total)
{
    size_t free = 0;
    GS_KEEP_CALLER;

    gs_core_bound(gs_core, device, &free, &total);
    return total;
}

GS_HOOK CUresult CUDAAPI cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    bool bounded = enter();
    CUresult result = gs_real.cuDeviceTotalMem_v2(bytes, dev);

    if (bounded && result == CUDA_SUCCESS)
        *bytes = bounded_total(dev, *bytes);
    return result;
}

GS_HOOK CUresult CUDAAPI cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
    bool bounded = enter();
    CUresult result = gs_real.cuDeviceTotalMem(bytes, dev);
    size_t total = 0;

    if (bounded && result == CUDA_SUCCESS && cuDeviceTotalMem_v2(&total, dev) == CUDA_SUCCESS &&
        total < *bytes)
        *bytes = (unsigned int)total;
    return result;
}

GS_HOOK CUresult CUDAAPI cuMemGetInfo(unsigned int *free, unsigned int *total)
{
    bool bounded = enter();
    CUresult result = gs_real.cuMemGetInfo(free, total);
    size_t free_bytes, total_bytes;

    if (!bounded || result != CUDA_SUCCESS ||
        cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
        return result;
    if (free && free_bytes < *free)
        *free = (unsigned int)free_bytes;
    if (total && total_bytes < *total)
        *total = (unsigned int)total_bytes;
    return result;
}
