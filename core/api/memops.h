/*
 * CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: copies and fills of this memory are done when they return.
 * Network libraries ask for it before they register memory. VMM memory refuses it, so it is made
 * true for the whole context that owns the memory.
 */
#ifndef GS_CORE_API_MEMOPS_H
#define GS_CORE_API_MEMOPS_H

#include "core/api/core.h"

/* Switches it on or off for the live block that covers the address; off is noted for who asks, and
 * the context goes on synchronising. GS_NOT_OURS, GS_NOT_LIVE. GS_NOT_OFFERED: this driver cannot
 * change the flags of a context (before CUDA 12.1). */
gs_status gs_core_sync_memops(struct gs_core *core, CUdeviceptr address, bool on);

/* A capture has ended, or the context in which it was. Where it was set while one was open all
 * contexts synchronise once none is any more, which the program's own calls end; until then it
 * hears that it is true, as it does natively. */
void gs_core_sync_memops_due(struct gs_core *core);

#endif
