/*
 * What the arenas of a device have done so far, counted under their locks and read without. A call
 * that takes a block which is there, or puts one where it waits for the GPU, takes a
 * fraction of a microsecond and is counted, not timed: a clock would cost a good part of it. Timed
 * is every other one: an allocation that had to look further, a free that waited or gave memory
 * back.
 */
#ifndef GS_CORE_PROCESS_STATS_H
#define GS_CORE_PROCESS_STATS_H

#include <stddef.h>
#include <stdint.h>

#include "core/pool/arena.h"

#define GS_TOOK 24 /* the last one is for all above 4 s */

struct gs_core;
struct gs_figures;

struct gs_stats {
    size_t reserved, live, cached, ordered, limbo, retired; /* bytes now; cached: free for any */
    struct gs_arena_counts
        counts;             /* of all arenas, in all contexts that had their records; the peaks
                                     are sums of the arenas' own */
    uint64_t took[GS_TOOK]; /* calls that did more than take or put a block, by how long they took:
                               below 1 us, 2, 4, ... */
};

/* A call to an arena of the device that began then (gs_now_ns) and did more is done. No lock is
 * needed. */
void gs_stats_took(struct gs_core *core, CUdevice device, uint64_t began_ns);

/* Stream-ordered bytes of one device, live and at most at a time: where threads have arenas of
 * their own, or there are several contexts, the sum of what each had. With `forget` the most begins
 * again at what is live now. No lock is held. */
void gs_async_read(struct gs_core *core, CUdevice device, bool forget, uint64_t *ret_live,
                   uint64_t *ret_high);

/* Of one device; all 0 of one that there is not. Takes the contexts' lock. */
void gs_stats_read(struct gs_core *core, CUdevice device, struct gs_stats *ret_stats);
/* Of one device, waiting for nobody. False: a thread holds the contexts' lock. */
bool gs_stats_try_read(struct gs_core *core, CUdevice device, struct gs_stats *ret_stats);
/* The figures for other processes, which ask for them (struct gs_share_events). False: neither that
 * device nor a later one has had memory of this process. */
bool gs_stats_tell(struct gs_core *core, unsigned device, struct gs_figures *ret_figures);

/* A line of log or two for each device that was used. Waits for nobody: says nothing where a thread
 * holds the contexts' lock. */
void gs_stats_log(struct gs_core *core);

#endif
