/*
 * A full device. What the library keeps is free memory to the program, and the driver must find it
 * free too: a call that takes device memory and is refused for want of it is made again when the
 * driver has got some back.
 */
#ifndef GPUSHIM_SHIM_ROOM_H
#define GPUSHIM_SHIM_ROOM_H

#include "hook.h"
#include "start.h"

/* Whether a call with this result is to be made again; the rest is gs_core_make_room's. */
static inline bool gs_room_again(CUresult result, CUdevice device, size_t bytes, unsigned *step)
{
    if (__builtin_expect(result != CUDA_ERROR_OUT_OF_MEMORY, 1) || !gs_state_enter())
        return false;
    GS_KEEP_ERRNO;
    return gs_core_make_room(gs_core, device, bytes, step);
}

/* The result of a call of the driver, which is made again as long as that may help and `may`.
 * `device` below 0: the current one; `bytes` 0: not known, or not to be waited for without end. */
#define GS_WITH_ROOM_IF(may, device, bytes, call)                                                  \
    ({                                                                                             \
        unsigned gs_step = 0;                                                                      \
        CUresult gs_result;                                                                        \
                                                                                                   \
        do                                                                                         \
            gs_result = (call);                                                                    \
        while ((may) && gs_room_again(gs_result, device, bytes, &gs_step));                        \
        gs_result;                                                                                 \
    })
#define GS_WITH_ROOM(device, bytes, call) GS_WITH_ROOM_IF(true, device, bytes, call)

/* Before a graph is instantiated, uploaded or launched. */
static inline void gs_graph_room(void)
{
    if (gs_state_enter() && __builtin_expect(gs_core_graph_waits(gs_core), 0)) {
        GS_KEEP_ERRNO;
        gs_core_graph_room(gs_core);
    }
}

/* A memory node is about to be added. */
static inline void gs_graph_node(size_t bytes)
{
    if (!gs_state_enter())
        return;
    GS_KEEP_ERRNO;
    gs_core_graph_node(gs_core, bytes);
    gs_core_graph_room(gs_core);
}

#endif
