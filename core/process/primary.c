/* Primary contexts, whose turn it is to retain or end them, and green ones
 * (core/process/process.h). */
#include "core/base/list.h"
#include "core/process/context.h"

#include <stdlib.h>

#define TURN_STEP_NS 50000

static _Thread_local char self; /* its address is this thread's name */

bool gs_core_primary_active(struct gs_core *core, CUdevice device)
{
    unsigned flags;
    int active = 0;

    return core->driver.primary_ctx_get_state(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUdevice gs_core_green_device(struct gs_core *core, CUgreenCtx green, CUcontext *ret_handle)
{
    const struct gs_driver *driver = &core->driver;
    CUdevice device;

    if (!driver->ctx_from_green || driver->ctx_from_green(ret_handle, green) != CUDA_SUCCESS ||
        !gs_context_device(core, *ret_handle, &device))
        return -1;
    return device;
}

struct gs_green *gs_core_green_new(void)
{
    return calloc(1, sizeof(struct gs_green));
}

void gs_core_green_made(struct gs_core *core, struct gs_green *note, CUgreenCtx green,
                        CUdevice device)
{
    if (!green || !core->driver.ctx_from_green || !core->driver.ctx_get_id ||
        core->driver.ctx_from_green(&note->handle, green) != CUDA_SUCCESS ||
        core->driver.ctx_get_id(note->handle, &note->id) != CUDA_SUCCESS ||
        !(note->primary = gs_core_primary(core, device))) { /* it keeps that active */
        free(note);
        return;
    }
    GS_HOLDING(&core->lock);
    LL_PREPEND(core->programs.greens, note);
}

/* The oldest, for the handle may be another's already; or all of a primary context. */
void gs_greens_forget(struct gs_core *core, CUcontext handle, CUcontext primary)
{
    struct gs_green *green, *next, *oldest = NULL;
    GS_HOLDING(&core->lock);

    LL_FOREACH_SAFE(core->programs.greens, green, next) {
        if (green->handle == handle)
            oldest = green;
        if (green->primary == primary) {
            LL_DELETE(core->programs.greens, green);
            free(green);
        }
    }
    if (oldest)
        LL_DELETE(core->programs.greens, oldest);
    free(oldest);
}

void gs_core_green_gone(struct gs_core *core, CUcontext handle)
{
    __atomic_store_n(&core->gone.ever, true, __ATOMIC_RELAXED);
    if (!handle)
        return;
    gs_fences_capture_context_gone(&core->fences, handle);
    gs_greens_forget(core, handle, NULL);
}

bool gs_core_primary_turn(struct gs_core *core, CUdevice device)
{
    const void *whose = NULL;
    uint64_t began;

    if (!gs_is_device(device))
        return false;
    began = gs_now_ns();
    while (!__atomic_compare_exchange_n(&core->primary_turn[device], &whose, &self, false,
                                        __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        if (whose == &self || gs_now_ns() - began > GS_GOING_NS)
            return false;
        gs_rest_ns(TURN_STEP_NS);
        whose = NULL;
    }
    return true;
}

void gs_core_primary_turn_end(struct gs_core *core, CUdevice device)
{
    __atomic_store_n(&core->primary_turn[device], NULL, __ATOMIC_RELEASE);
}

CUcontext gs_core_primary(struct gs_core *core, CUdevice device)
{
    CUcontext handle = NULL;

    if (!gs_core_primary_active(core, device) ||
        core->driver.primary_ctx_retain(&handle, device) != CUDA_SUCCESS)
        return NULL;
    core->driver.primary_ctx_release(device);
    return handle;
}
