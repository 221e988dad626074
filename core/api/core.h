/* The public face of core: what the hooks call (core/api/README.md says what always holds). */
#ifndef GS_CORE_API_CORE_H
#define GS_CORE_API_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/gpu/map.h"
#include "core/process/process.h"

/* `driver` and `options` are copied. Calls nothing of the driver. GS_NO_HOST_MEMORY, GS_NO_RANDOM
 * (logged). */
gs_status gs_core_create(const struct gs_driver *driver, const struct gs_core_options *options,
                         struct gs_core **ret_core);

/* For tests: waits for all GPU work, gives everything back to the driver. No block may be shared
 * or in use, and no other call under way. */
void gs_core_destroy(struct gs_core *core);

/* Before this process forks: those whose memory it has open are to know, since a child keeps its
 * GPU work alive. No lock, no wait; safe in a signal handler. */
void gs_core_forking(struct gs_core *core);

/* In a child just forked, which uses nothing else of core: closes what it would keep memory by. */
void gs_core_forked(struct gs_core *core);

/* Removes what this process left in the runtime directory. No driver call, no lock. */
void gs_core_at_exit(struct gs_core *core);

/* ---- Allocate and free ------------------------------------------------------------------ */

/*
 * A block of `size` (> 0) bytes in the current context, aligned to 512 bytes at least.
 * GS_NOT_OFFERED: this device's memory stays the driver's. GS_NO_CONTEXT. GS_NO_MEMORY: even
 * after everything held back was given up. Other: the driver's error.
 */
gs_status gs_core_alloc(struct gs_core *core, size_t size, CUdeviceptr *ret_address);

/*
 * As gs_core_alloc, in the order of `stream`: a handle of any context, or for the current context
 * NULL (legacy default stream), CU_STREAM_LEGACY or CU_STREAM_PER_THREAD. The stream must not be
 * capturing. `pool` is the program's choice, NULL for the device's current pool. GS_NOT_OFFERED
 * also where that is not the device's default pool: a program's own pool stays its own.
 */
gs_status gs_core_alloc_async(struct gs_core *core, size_t size, CUmemoryPool pool, CUstream stream,
                              CUdeviceptr *ret_address);

/* Frees the live block that starts at `address`. GS_NOT_OURS: ask the driver. GS_NOT_LIVE: our
 * memory, but not the start of a live block; nothing was changed. */
gs_status gs_core_free(struct gs_core *core, CUdeviceptr address);

/* Frees in the order of `stream`, as above; the stream may be of any context. */
gs_status gs_core_free_async(struct gs_core *core, CUdeviceptr address, CUstream stream);

/* ---- Ask -------------------------------------------------------------------------------- */

struct gs_block_info {
    CUdeviceptr base;
    size_t size;       /* bytes the program asked for */
    uint64_t id;       /* unique for each allocation and import of this process */
    CUcontext context; /* that owns it, or that opened it */
    bool async;        /* allocated in stream order: its pool is the device's default pool */
    bool imported;
    bool sync_memops; /* the program set it; or it is imported */
    CUmemoryPool default_pool;
};

/* The live block, or import, that covers `address`. GS_NOT_OURS, GS_NOT_LIVE. */
gs_status gs_core_find(struct gs_core *core, CUdeviceptr address, struct gs_block_info *ret_info);

/* Others may have what lies there, by a descriptor of it or an object of the driver's, from now
 * on. */
void gs_core_lent(struct gs_core *core, CUdeviceptr base, size_t size);

/* The map that it looks at, for who asks on every call. Lives as long as core. */
const struct gs_map *gs_core_map(const struct gs_core *core);

/* Single-stream mode, for who tells on every call. Lives as long as core. */
struct gs_single *gs_core_single(struct gs_core *core);

/* A copy or a fill is about to be submitted to a stream (NULL: the legacy default one). Where that
 * is not the single stream nothing ends: the blocks at the addresses (0: none of ours) retire when
 * they are freed. */
void gs_core_touches(struct gs_core *core, CUstream stream, CUdeviceptr dst, CUdeviceptr src);

/* ---- Share ------------------------------------------------------------------------------ */

/* The handle of the live block or import that covers `address`. GS_NOT_OFFERED: sharing is off or
 * cannot be had (the log said why). */
gs_status gs_core_ipc_handle(struct gs_core *core, CUdeviceptr address,
                             unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE]);
/* As gs_share_open, in the current context. */
gs_status gs_core_open(struct gs_core *core, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE],
                       CUdeviceptr *ret_address);

/* Publishes the live block that covers the address under a name; as gs_share_name and
 * gs_share_named. GS_NOT_LIVE: no live block of this process's, but perhaps one that it has
 * opened. */
gs_status gs_core_publish(struct gs_core *core, CUdeviceptr address,
                          const struct gs_naming *naming);
/* Memory that somebody else made, as memory of ours (core/share/external.c): as gs_share_attach, on
 * a device, in the current context where that is of it, else in its primary one. *ret_context is
 * the one. GS_NO_CONTEXT: there is neither, or no such device. And for the log: what uses it. */
gs_status gs_core_attach(struct gs_core *core, const struct gs_external_memory *memory,
                         CUdevice device, uint64_t owner, CUdeviceptr *ret_address,
                         CUcontext *ret_context);
void gs_core_external_say(struct gs_core *core, CUdeviceptr address);
/* debug.settle. */
uint64_t gs_core_settle_ns(const struct gs_core *core);
/* For what concerns no memory of the arenas. */
struct gs_share *gs_core_share(struct gs_core *core);

/* ---- Default memory pools ---------------------------------------------------------------- */

/* As programs see them: our stream-ordered memory takes the place of theirs, so their figures
 * include it, beside what the driver has there (of graphs). */
struct gs_mempool_figures {           /* bytes, of ours */
    uint64_t reserved, reserved_high; /* in use, in whole pages, and what is free or will be */
    uint64_t retired;                 /* of reserved, what waits for the GPU */
    uint64_t used, used_high;         /* what the program asked for and has not freed */
};

/* The device whose default pool this is; -1 if it is none's. */
CUdevice gs_core_mempool_device(struct gs_core *core, CUmemoryPool pool);

void gs_core_mempool_figures(struct gs_core *core, CUdevice device,
                             struct gs_mempool_figures *ret_figures);
/* A high mark, of what is reserved or used, begins again at what is there now. */
void gs_core_mempool_reset_high(struct gs_core *core, CUdevice device, bool reserved);

/* Gives back to the driver what is free, as long as more than `keep` bytes are reserved. */
void gs_core_mempool_trim(struct gs_core *core, CUdevice device, uint64_t keep);

/* ---- What the program does beside ------------------------------------------------------- */

/* A capture is about to begin on the stream (GS_NO_HOST_MEMORY: it must not), or is over, or did
 * not begin after all. */
gs_status gs_core_capture_begin(struct gs_core *core, CUstream stream);
void gs_core_capture_end(struct gs_core *core, CUstream stream);
/* Whether any stream of this process captures. */
bool gs_core_capturing(struct gs_core *core);
/* CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: copies and fills of this memory are done when they return. VMM
 * memory refuses it, so it is made true for the whole context that owns the memory. On or off for
 * the live block that covers the address; off is noted for who asks, and the context goes on
 * synchronising. GS_NOT_OURS, GS_NOT_LIVE. GS_NOT_OFFERED: this driver cannot change the flags of a
 * context (before CUDA 12.1). */
gs_status gs_core_sync_memops(struct gs_core *core, CUdeviceptr address, bool on);
/* A capture has ended, or the context in which it was. Where it was set while one was open all
 * contexts synchronise once none is any more, which the program's own calls end; until then it
 * hears that it is true, as it does natively. */
void gs_core_sync_memops_due(struct gs_core *core);
/* The driver's answer for one stream; a driver without captures says that it does not. */
CUresult gs_core_stream_status(struct gs_core *core, CUstream stream,
                               CUstreamCaptureStatus *ret_status);

#endif
