/*
 * A full device. What the library keeps is free memory to the program, and the driver must find it
 * free too: a call that takes device memory and is refused for want of it is made again when the
 * driver has got some back.
 */
#ifndef GPUSHIM_SHIM_ROOM_H
#define GPUSHIM_SHIM_ROOM_H

#include "hook.h"
#include "shim/start.h"

/* Room for a call that was refused for want of memory (gs_core_make_room), in steps: `step` is what
 * this returned last, 0 at first. Returns 0 when the call is not to be made again. Preserves errno.
 */
__attribute__((cold)) unsigned gs_room_step(CUdevice device, size_t bytes, unsigned step);

/* The program gets no memory: says so. `bytes`: of the call, 0 where they are not known. Preserves
 * errno. */
__attribute__((cold)) void gs_room_refused(CUdevice device, size_t bytes);

/* Whether the driver is not to be asked for what core has not given: memory of its own would be
 * beyond the limit that the process has. */
__attribute__((cold)) bool gs_room_is_bounded(gs_status status);

/* The result of a call of the driver that was refused so, and is made again as long as that may
 * help. `device` below 0: the current one; `bytes` 0: not known, or not to be waited for without
 * end. */
#define GS_AGAIN_WITH_ROOM_FROM(from, device, bytes, asked, call)    \
    ({                                                               \
        CUresult gs_result = CUDA_ERROR_OUT_OF_MEMORY;               \
        unsigned gs_step = (from);                                   \
                                                                     \
        while (gs_result == CUDA_ERROR_OUT_OF_MEMORY &&              \
               (gs_step = gs_room_step(device, bytes, gs_step)) > 0) \
            gs_result = (call);                                      \
        if (gs_result == CUDA_ERROR_OUT_OF_MEMORY)                   \
            gs_room_refused(device, asked);                          \
        gs_result;                                                   \
    })
#define GS_AGAIN_WITH_ROOM(device, bytes, call) \
    GS_AGAIN_WITH_ROOM_FROM(0, device, bytes, bytes, call)

/* The call with room, from the first try on; made again only if it `may` be. `asked`: what the call
 * is for, which is said, also where it is not waited for. */
#define GS_WITH_ROOM_FROM(may, from, device, bytes, asked, call)                  \
    ({                                                                            \
        CUresult gs_first = (call);                                               \
                                                                                  \
        if (__builtin_expect(gs_first == CUDA_ERROR_OUT_OF_MEMORY, 0) && (may))   \
            gs_first = GS_AGAIN_WITH_ROOM_FROM(from, device, bytes, asked, call); \
        gs_first;                                                                 \
    })
#define GS_WITH_ROOM_IF(may, device, bytes, call) \
    GS_WITH_ROOM_FROM(may, 0, device, bytes, bytes, call)
/* In a hook that was not refused at the gate; and in one, by hand, that may have been. */
#define GS_MADE_WITH_ROOM(device, call) GS_WITH_ROOM_IF(true, device, 0, call)
#define GS_WITH_ROOM(device, bytes, call)                   \
    (gs_gate_refuses(gs_entered) ? CUDA_ERROR_OUT_OF_MEMORY \
                                 : GS_WITH_ROOM_IF(true, device, bytes, call))

/* The driver's answer to what core itself has answered with `status`, where it may be asked. */
#define GS_UNLESS_BOUNDED(status, asked, call)                                               \
    ({                                                                                       \
        CUresult gs_answer = gs_room_is_bounded(status) ? CUDA_ERROR_OUT_OF_MEMORY : (call); \
                                                                                             \
        if (gs_answer == CUDA_ERROR_OUT_OF_MEMORY)                                           \
            gs_room_refused(-1, asked);                                                      \
        gs_answer;                                                                           \
    })

/* A call for memory in the order of a stream, with room for it. What the driver is asked for may
 * be of another device than the current one, to whose work it owes nothing: so the bytes are not
 * said to who makes room, and a full device is not waited for without end. */
#define GS_WITH_ROOM_AFTER(status, asked, call)                                                   \
    ({                                                                                            \
        CUresult gs_after = CUDA_ERROR_OUT_OF_MEMORY;                                             \
                                                                                                  \
        if (gs_room_is_bounded(status))                                                           \
            gs_room_refused(-1, asked);                                                           \
        else                                                                                      \
            gs_after =                                                                            \
                GS_WITH_ROOM_FROM(true, (status) == GS_NO_MEMORY ? GS_ROOM_AFTER_REFUSAL : 0, -1, \
                                  0, asked, call);                                                \
        gs_after;                                                                                 \
    })

/* Before a graph is instantiated, uploaded or launched. */
static inline void gs_graph_room(void)
{
    if (gs_state_enter() && __builtin_expect(gs_core_graph_waits(gs_core) > 0, 0)) {
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
