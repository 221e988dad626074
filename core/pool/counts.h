/* What an arena counts, and how figures are written that others read without its lock. */
#ifndef GS_CORE_POOL_COUNTS_H
#define GS_CORE_POOL_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* Counted from the arena's start. Written with its lock held, read by anyone. Each is a uint64_t,
 * and what several arenas counted is the sum of each (core/process/stats.c). */
struct gs_arena_counts {
    uint64_t hits;    /* allocations served by memory that was there */
    uint64_t misses;  /* those that had to look for what has come back, or grow */
    uint64_t grown;   /* pieces made */
    uint64_t trims;   /* pieces given back to the driver, */
    uint64_t later;   /* and those of them that were given in the background */
    uint64_t at_once; /* frees of what was free at once */
    uint64_t events;  /* epochs closed */
    uint64_t waits;   /* times an allocation waited for the GPU */
    uint64_t late;    /* waits given up because the GPU took too long */
    uint64_t wait_ns; /* in those */
    uint64_t map_ns;  /* in making pieces and giving them back, of the program's threads */
    uint64_t reserved_peak, live_peak; /* bytes */
};
#define GS_ADD(field, n) __atomic_store_n(&(field), (field) + (n), __ATOMIC_RELAXED)
#define GS_SUB(field, n) __atomic_store_n(&(field), (field) - (n), __ATOMIC_RELAXED)
#define GS_COUNT(field)  GS_ADD(field, 1)

/* Stream-ordered memory of one device, as asked for. */
struct gs_async_count {
    uint64_t high;          /* the most of that that was seen; atomic, as all of it */
    uint64_t reserved_high; /* core/api/mempool.c */
    bool ever;              /* there was any */
};

#endif
