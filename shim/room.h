/*
 * A full device. What the library keeps is free memory to the program, and the driver must find it
 * free too: a call that takes device memory and is refused for want of it is made again when the
 * driver has got some back.
 */
#ifndef GPUSHIM_SHIM_ROOM_H
#define GPUSHIM_SHIM_ROOM_H

#include "hook.h"
#include "start.h"

/* Whether a call with this result is to be made again. *step is 0 at first; `device` below 0 is the
 * current one, `bytes` 0 where they are not known. */
static inline bool gs_room_again(CUresult result, CUdevice device, size_t bytes, unsigned *step)
{
    if (__builtin_expect(result != CUDA_ERROR_OUT_OF_MEMORY, 1) || !gs_state_enter())
        return false;
    GS_KEEP_ERRNO;
    while (*step < GS_ROOM_STEPS)
        if (gs_core_make_room(gs_core, device, bytes, (*step)++))
            return true;
    return false;
}

#endif
