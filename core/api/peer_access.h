/*
 * What copies, fills and peers may reach of our memory.
 *
 * Memory of cuMemAlloc and memory of VMM differ in three ways that a program sees, measured on an
 * H200: the driver takes a copy or a fill only inside one allocation, to the byte, and VMM memory
 * is as large as its mapping; it copies to, from and between cuMemAlloc memory of any device
 * without peer access being enabled (also by host copies, and while a stream captures), and VMM
 * memory only where access was set; and cuCtxEnablePeerAccess says nothing to VMM memory. So ranges
 * are checked here against the blocks, and a piece gets access for another device when that has
 * peer access, or copies.
 */
#ifndef GS_CORE_API_PEER_ACCESS_H
#define GS_CORE_API_PEER_ACCESS_H

#include "core/process/peers.h"

struct gs_access_range {
    CUdeviceptr address;
    size_t size; /* bytes; 0 is always allowed */
};

/* GS_OK: the call may go to the driver as it is. GS_NOT_LIVE: the driver would refuse it, had it
 * made this memory. Ranges that are not ours are the driver's to judge. `stream` as in
 * gs_core_alloc_async. */
gs_status gs_core_may_fill(struct gs_core *core, struct gs_access_range range, CUstream stream);

/*
 * As gs_core_may_fill, for a copy, from and to the host (that side has size 0) or between two
 * ranges. GS_UNREACHABLE: the copy is to be made between the contexts that gs_core_copy_context
 * names, or in the owner's. It is for the memory of another device where the call is not
 * asynchronous, since then the driver orders it with the work of both devices, and where that
 * device cannot be reached.
 */
gs_status gs_core_may_copy(struct gs_core *core, struct gs_access_range dst,
                           struct gs_access_range src, CUstream stream, bool async);
/* As both, for what a graph will do later, in a context (NULL: the current one), by nodes: copies,
 * and fills (without a source), whose nodes the driver takes for memory of another device, though
 * not the calls. Where that cannot be reached, the driver says so. */
gs_status gs_core_may_do_later(struct gs_core *core, struct gs_access_range dst,
                               struct gs_access_range src, CUcontext context);
/* The context that owns the block at an address of ours; else the current one. */
CUcontext gs_core_copy_context(struct gs_core *core, CUdeviceptr address);

/* Whether the range is inside one live block, or not ours at all. */
bool gs_core_within(struct gs_core *core, struct gs_access_range range);

/* Waits for the stream's work, as the copy itself would, and makes the owner of the memory at an
 * address current, for a copy that is not made from here. Otherwise what the copy is answered. */
CUresult gs_core_owner_enter(struct gs_core *core, CUdeviceptr address, CUstream stream);
/* Waits for the copy in the owner's per-thread stream, where it went well. What it is answered. */
CUresult gs_core_owner_leave(struct gs_core *core, CUresult copied);

#endif
