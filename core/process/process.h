/* How a process is to behave, its contexts, and room on a full device. */
#ifndef GS_CORE_PROCESS_PROCESS_H
#define GS_CORE_PROCESS_PROCESS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/gpu/driver.h"
#include "core/regcache/regcache.h"
#include "core/share/share.h"

/* The most that a process takes of a device: bytes, or percent of what it has; 0 and 0: any. */
struct gs_limit {
    size_t bytes;
    unsigned percent;
};

/* Of a device that has so much (SIZE_MAX: not known); SIZE_MAX: any. */
static inline size_t gs_limit_of_total(const struct gs_limit *limit, size_t total)
{
    if (limit->bytes > 0)
        return limit->bytes;
    if (limit->percent == 0 || total == SIZE_MAX)
        return SIZE_MAX;
    return total / 100 * limit->percent + total % 100 * limit->percent / 100;
}

struct gs_core_options {
    bool free_native;   /* a free waits for the GPU, as the driver's does */
    bool single_stream; /* what is freed is free at once while all work goes to one stream */
    bool cross;         /* a large block may lie across pieces, */
    bool by_address;    /* but not of a GPU without dma-bufs: cards here register by its address */
    bool whole_pieces;  /* no block of small_limit or more ever shares a piece with another */
    size_t small_limit; /* blocks below this share pieces; at most 2 MiB */
    size_t epoch_bytes; /* an epoch closes when this much was freed into it */
    unsigned retiring_percent; /* of what is live may retire before an allocation waits; 0: any */
    uint64_t decay_ns;         /* what was free for this long goes back to the driver; 0: never */
    size_t cache_limit;        /* free bytes kept for one context; more goes back to the driver */
    unsigned cache_percent;    /* the same, of the device's memory; 0: any */
    struct gs_limit limit;
    /* The log gets each report of a refused allocation (core/process/shortage.h) also as a line of
     * JSON, with its newline, at GS_LOG_REPORT. */
    bool reports;
    bool user_vmm;   /* memory that the program maps itself is made shareable, and shared */
    bool neighbours; /* on a full device, other processes are asked for memory and give it */
    struct gs_share_options share;
    struct gs_regcache_options registrations;
    /* Others have it sleep, or wake, or ask whether it does: begins with it in a thread of its own,
     * and tells. NULL: it does not sleep. */
    void (*sleeps)(struct gs_sleep_order *order);
    struct gs_log log;
};

struct gs_core;
struct gs_context;

/* Options that can be changed while the process runs, those that config/options.h calls LIVE: gives
 * one its value, and says what it was and is. One thread at a time, with no lock held; waits for
 * nothing but locks. */
void gs_settings_set(struct gs_core *core, struct gs_setting *setting);

/* GS_OK where a context is current on this thread, and there; else the driver's error. */
gs_status gs_core_in_context(struct gs_core *core);

/* What this thread allocates bears that tag from now on (core/process/context.h); "": none. Before
 * any core is there, too. */
void gs_core_tag(const char *label);

/* ---- Memory that is kept, and a full device ----------------------------------------------- */

/* Bytes of the current context's device that are held but that the program has freed, also those on
 * their way to the driver. */
size_t gs_core_cached(struct gs_core *core);
/* Around a look at what is free, the driver's count and gs_core_cached's: whether no piece has gone
 * from one to the other meanwhile, so that both are right. */
uint64_t gs_core_begin_count(const struct gs_core *core);
bool gs_core_count_is_right(const struct gs_core *core, uint64_t begun);

/*
 * A call by which the driver takes `bytes` (0: not known) for something of its own, or of the
 * program's, found the device full (below 0: the current one). Step by step, from *step 0 on, the
 * driver gets what is kept here. True: the call is worth another try, and this may be asked again.
 * False: no more can be had; gs_core_refused says so. From *step GS_ROOM_AFTER_REFUSAL on, where an
 * allocation here was refused just before: only what the driver has just got. It clears that in the
 * background, 84 GiB in 250 ms (measured on an H200), and calls that make physical memory wait for
 * it, but a graph's memory was refused meanwhile once in two tries.
 */
#define GS_ROOM_AFTER_REFUSAL 3
bool gs_core_make_room(struct gs_core *core, CUdevice device, size_t bytes, unsigned *step);

/*
 * A call for `bytes` (0: not known) of a device (below 0: the current one) is refused for want of
 * memory: says so (core/process/shortage.h). No lock is held.
 */
void gs_core_refused(struct gs_core *core, CUdevice device, size_t bytes);

/* Makes the memory that a device (below 0: the current one) has free, and in all, what a bounded
 * program is told. GS_NO_DEVICE: one that this process has nothing of. */
#define GS_NO_DEVICE INT_MAX
void gs_core_bound(struct gs_core *core, CUdevice device, size_t *free, size_t *total);
/* The device of that uuid, of which this process has a context, or GS_NO_DEVICE. */
CUdevice gs_core_device_of_uuid(struct gs_core *core, const unsigned char uuid[16]);

/*
 * Graphs with memory of their own. The driver takes it when a graph is instantiated or first
 * launched; one that is refused leaves what it has got with the graphs, of no use to the next try,
 * and no trim brings it back (measured on an H200). So room is made before: for the nodes that were
 * added since a graph was instantiated last, and for that one's until any is launched, from what is
 * kept of the current device. Not while a capture is open.
 */
void gs_core_graph_node(struct gs_core *core, size_t bytes);
void gs_core_graph_room(struct gs_core *core);
void gs_core_graph_made(struct gs_core *core);
void gs_core_graph_launched(struct gs_core *core);
/* Bytes of such nodes. */
size_t gs_core_graph_waits(const struct gs_core *core);

/* ---- Pools, contexts, streams ------------------------------------------------------------ */

/* The device's current stream-ordered pool was set (cuDeviceSetMemPool). */
void gs_core_mempool_set(struct gs_core *core, CUdevice device, CUmemoryPool pool);
/* A pool is about to go: of the device whose current one it is, and that is returned, the default
 * one is so from now on. -1: it is none's. Where it stays: gs_core_mempool_set. */
CUdevice gs_core_mempool_going(struct gs_core *core, CUmemoryPool pool);

/* A context is about to go: from here on its handle means a new context. Then either the driver
 * destroyed it, or it stays. Both take NULL, which detach returns where nothing was allocated in
 * it. */
struct gs_context *gs_core_context_detach(struct gs_core *core, CUcontext handle);
void gs_core_context_gone(struct gs_core *core, CUcontext handle, struct gs_context *context);
void gs_core_context_stays(struct gs_core *core, CUcontext handle, struct gs_context *context);
/* The driver has made a context, or says that it is there. What is asked of it once in a process is
 * asked of the first one here, where it is lost in what making it takes. */
void gs_core_context_made(struct gs_core *core, CUcontext handle);
/* Whether a handle is still a context. */
bool gs_core_context_exists(struct gs_core *core, CUcontext handle);
/*
 * Threads take turns at the calls that retain a device's primary context, or may end it: only
 * whether it is there afterwards tells what such a call has done, and it may be a new one, with the
 * same handle. Waits for another thread's, but not for ever. False: it has not become this
 * thread's, which has it already, or waited too long.
 */
bool gs_core_primary_turn(struct gs_core *core, CUdevice device);
void gs_core_primary_turn_end(struct gs_core *core, CUdevice device);
/* The primary context of a device; NULL: it is not active. */
CUcontext gs_core_primary(struct gs_core *core, CUdevice device);
bool gs_core_primary_active(struct gs_core *core, CUdevice device);
/* The device whose primary context a green one is part of, and its handle; -1 where it is none. */
CUdevice gs_core_green_device(struct gs_core *core, CUgreenCtx green, CUcontext *ret_handle);
/* A green context's memory is its primary one's: a note of that is made before the driver makes one
 * (NULL: no host memory), and core's from then on that it has, or has not (`green` NULL). */
struct gs_green *gs_core_green_new(void);
void gs_core_green_made(struct gs_core *core, struct gs_green *note, CUgreenCtx green,
                        CUdevice device);
/* The driver has destroyed it, its streams and their captures. */
void gs_core_green_gone(struct gs_core *core, CUcontext handle);

/* A stream is being destroyed: what was free for it alone is free for the context's next
 * epoch, since a new stream may get the same handle. */
void gs_core_stream_gone(struct gs_core *core, CUstream stream);

#endif
