/*
 * Idle memory goes from one process to another as it is, by descriptor. Through the driver it takes
 * as long as clearing it: of an H200's memory 84 GiB are released in 55 ms and, just after, created
 * in 275; handed over and mapped they are in 6, and overwritten in 20 (tests/gpu/big_costs.c).
 *
 *   full process (core/neighbour.h)                   process that caches
 *   listens ───── its socket's name ───► page ───►    takes an idle chunk that fits, overwrites it
 *   imports and maps it ◄────── descriptor ───────    and unmaps it, and sends
 *
 * Both are processes of one user that could look into each other anyway: in one pid and one user
 * namespace. Others give what they keep to the driver. What is handed over is in one process at a
 * time: registrations over it have ended, and it was never known outside by an IPC handle or a
 * dma-buf. With share.isolate nothing is handed over either way.
 *
 * An imported handle cannot be exported again, but its descriptor can be duplicated (measured): so
 * that comes with the chunk and stays with it. Programs that close descriptors which are not theirs
 * can still use the memory, and cannot share it.
 */
#ifndef GS_CORE_HANDOVER_H
#define GS_CORE_HANDOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda.h>

#include "core/fd.h"
#include "core/page.h"

#define GS_HANDED_MAX      16                 /* chunks in answer to one request */
#define GS_HANDED_SIZE_MIN ((size_t)64 << 20) /* smaller ones are as fast through the driver */

struct gs_core;
struct gs_device;

/* A chunk that came, mapped. */
struct gs_handed {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;
    size_t size;
    struct gs_fd fd;
};

struct gs_handed_list {
    size_t chunk; /* bytes that one of them has to have at least; 0: nothing is to be handed over */
    unsigned count;
    struct gs_handed one[GS_HANDED_MAX];
};

/* ---- Who asks --------------------------------------------------------------------------- */

/* Listens, and says in the request where and for what: nowhere, where nothing is to be handed over
 * or that cannot be. The socket, or -1. */
int gs_handover_listen(struct gs_core *core, int directory, const struct gs_handed_list *list,
                       struct gs_page_request *request);
/* Maps what has come by now, and ends the listening. */
void gs_handover_receive(struct gs_core *core, const struct gs_device *device, int directory,
                         const struct gs_page_request *request, int listener,
                         struct gs_handed_list *list);
/* Gives one back to the driver. */
void gs_handed_release(struct gs_core *core, struct gs_handed *handed);

/* ---- Who is asked ----------------------------------------------------------------------- */

/* The decay thread: hands over idle chunks that the request is for, while the GPU has nothing else
 * to do for their contexts. Returns the bytes that are gone, which are *ret_handed and what could
 * not be sent after all. */
uint64_t gs_handover_give(struct gs_core *core, const struct gs_device *device,
                          const struct gs_page_request *request, uint64_t *ret_handed);

#endif
