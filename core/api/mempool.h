/*
 * The devices' default memory pools as programs see them. Our stream-ordered memory takes the place
 * of theirs, so their figures include it, beside what the driver has there (of graphs).
 */
#ifndef GS_CORE_API_MEMPOOL_H
#define GS_CORE_API_MEMPOOL_H

#include "core/api/core.h"

struct gs_mempool_figures {           /* bytes, of ours */
    uint64_t reserved, reserved_high; /* in use, in whole pages, and what is free or will be */
    uint64_t retired;                 /* of reserved, what waits for the GPU */
    uint64_t used, used_high;         /* what the program asked for and has not freed */
};

/* The device whose default pool this is; -1 if it is none's. */
CUdevice gs_core_mempool_device(struct gs_core *core, CUmemoryPool pool);

void gs_core_mempool_figures(struct gs_core *core, CUdevice device,
                             struct gs_mempool_figures *ret_figures);
/* The high marks begin again at what is there now. */
void gs_core_mempool_reset_reserved_high(struct gs_core *core, CUdevice device);
void gs_core_mempool_reset_used_high(struct gs_core *core, CUdevice device);

/* Gives back to the driver what is free, as long as more than `keep` bytes are reserved. */
void gs_core_mempool_trim(struct gs_core *core, CUdevice device, uint64_t keep);

#endif
