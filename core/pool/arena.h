/*
 * Memory of one context: regions of pieces, cut into blocks (core/pool/README.md).
 *
 *      take            retire               epoch's fence passed         no lease, no grace
 *   free ───► live ──► retired ────────────────────────────────► held ───────────────► free
 *                        │ (stream-ordered frees: free at once for the same stream)
 *
 * Everything here is called with the arena's lock held unless it says otherwise. No driver call is
 * made under it but those that core/gpu/driver.h says to wait for no work.
 */
#ifndef GS_CORE_POOL_ARENA_H
#define GS_CORE_POOL_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/clock.h"
#include "core/base/latch.h"
#include "core/base/log.h"
#include "core/gpu/device.h"
#include "core/gpu/single.h"
#include "core/pool/block.h"

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

#define GS_QUICK_CLASSES  2048 /* of 512 bytes: sizes below 1 MiB */
#define GS_STREAM_BUCKETS 64

/* Blocks retired together behind one fence. */
struct gs_epoch {
    struct gs_epoch *next;
    struct gs_fence fence;
    struct gs_block_list blocks;
    uint64_t wait_ns; /* a full device waits for it so long at most; UINT64_MAX: without end */
};

/* For what was recorded late (gs_arena_wait_oldest_locked), or freed in the order of a stream. */
#define GS_LATER_WAIT_NS UINT64_C(10000000000)

/* How long somebody waits for the GPU: since when, and at most. */
struct gs_patience {
    uint64_t began_ns, most_ns;
    bool lightly; /* that it was in vain says nothing of the GPU */
};

/* Blocks freed in the order of one stream: free for it, for others after an epoch. */
struct gs_stream_list {
    struct gs_stream_list *next; /* in its bucket */
    uint64_t key;
    struct gs_block *last_freed; /* the last one freed, not merged; may be NULL */
    size_t bytes;                /* of all */
    struct gs_bins bins[2];      /* of large ones, and of small */
};

struct gs_arena_shared { /* what all arenas of a process use */
    const struct gs_driver *driver;
    const struct gs_log *log;
    struct gs_map *map;
    struct gs_fences *fences;
    struct gs_single *single;
    struct gs_guard guard;
    uint64_t next_id;             /* atomic */
    struct gs_async_count *async; /* by device */
    size_t *left; /* what a device had left when an arena last looked, and 1; 0: unknown; atomic */
    uint64_t detached; /* atomic: pieces that were detached; core/process counts those that went, */
    size_t *leaving;   /* and takes their bytes from these, by device; atomic */
    struct gs_piece *spent; /* atomic: of them, those that nobody is at yet (gs_spent_unmap) */
    size_t small_limit, epoch_bytes;
    unsigned retiring_percent;
    size_t cache_limit; /* atomic, as cache_percent: they may change (gs_arena_limit_locked) */
    unsigned cache_percent;
    bool isolates;     /* what was shared goes to the driver before it is used again */
    bool whole_pieces; /* a large block has its piece alone, for good */
    bool crosses;    /* atomic: large blocks may lie across pieces, in regions made from now on; */
    bool by_address; /* where the device has dma-bufs alone */
    void (*activity)(void *arg); /* called now and then while memory is freed; cheap, never NULL */
    void *activity_arg;
};

/* Blocks that are free for whoever comes first, beside those in their regions' bins. */
struct gs_arena_free {
    size_t quick_bytes;
    struct gs_block *spare; /* records */
    struct gs_block *last;  /* the large one that came back last, not merged, or NULL */
    struct gs_block *quick[GS_QUICK_CLASSES]; /* by size in units, linked by entry.next */
};

/* Blocks that GPU work may still touch. */
struct gs_arena_epochs {
    struct gs_block_list open;
    size_t limit;                     /* bytes at which it closes, */
    unsigned blocks;                  /* or blocks */
    bool plain;                       /* the open one has something of cuMemFree */
    unsigned polls;                   /* times a stream could have looked at the oldest */
    struct gs_epoch *oldest, *newest; /* closed ones */
    struct gs_epoch *spare;
    struct gs_fence stalled; /* was waited for in vain; it is again once it has */
    size_t stalled_most;     /* passed, or beyond so many reserved bytes */
};

/* Blocks that were freed in the order of a stream. */
struct gs_arena_order {
    size_t bytes;          /* free for one stream each */
    struct gs_fence freed; /* of the last that was free for all at once */
    struct gs_stream_list *streams[GS_STREAM_BUCKETS];
};

/* How much an arena keeps, and what it goes by. */
struct gs_arena_kept {
    size_t limit;                /* free bytes beyond which a free has some given back */
    size_t live_high, live_peak; /* most that was live since the last look, and lately */
    size_t free_low;             /* fewest free bytes since the last look of the trimmer */
    uint64_t seen_hits;          /* allocations up to the last look */
};

struct gs_arena {
    struct gs_latch lock; /* first; rank ARENA; protects all below, and its pieces and blocks */
    bool dead;            /* the context is gone: nothing is handed out, what is left is held */
    bool leaving;         /* the context may be about to go: no event is recorded or queried */
    bool first; /* of its context: it has all large blocks, others are for threads that met, or */
    unsigned char tag; /* for what bears that (core/process/context.h); 0: none */
    struct gs_arena_shared *shared;
    const struct gs_device *device;
    CUcontext context;
    size_t reserved, live, free_bytes; /* bytes of pieces; of live blocks; of free blocks */
    uint64_t made_ns;                  /* when the arena began */
    uint64_t id;                       /* the next, of some taken from the process's */
    struct gs_fence freed;             /* of the last of cuMemFree's that was free at once */
    struct gs_fence_pool events;
    struct {
        size_t live, high;
    } async;     /* stream-ordered bytes; read by anyone */
    size_t held; /* bytes of blocks that somebody else has: in no list, their guard knows them */
    struct gs_arena_kept kept;
    struct gs_arena_epochs epochs;
    struct gs_arena_order order;
    struct gs_arena_free free;
    struct gs_region small, large;
    struct gs_arena_counts counts; /* of all contexts that had the record, */
    struct gs_piece *spare_pieces; /* and records of theirs: a reader of the map may hold one for a
                                    * moment longer than it lives (core/gpu/map.h) */
    unsigned line, turn;   /* so too: allocations that wait without events, how many have come, been
                          * there */
    struct gs_arena *next; /* of the process's; set once */
} __attribute__((aligned(128))); /* arenas of several threads share no cache line */
#define GS_LINE_OF(type, field) (offsetof(type, field) / 64)
_Static_assert(offsetof(struct gs_arena, async) <= 128, "every call reads what is before that");
_Static_assert(GS_LINE_OF(struct gs_arena, live) == GS_LINE_OF(struct gs_arena, lock) &&
                   GS_LINE_OF(struct gs_arena, free_bytes) == GS_LINE_OF(struct gs_arena, lock),
               "every call writes these, and has the lock's line");
_Static_assert(offsetof(struct gs_arena_kept, free_low) < 64, "an allocation looks before that");
_Static_assert(offsetof(struct gs_arena_epochs, oldest) < 64,
               "a free looks at what is before that");
_Static_assert(offsetof(struct gs_arena_free, quick) < 64, "so do both at this");

/* A record, of no context yet; NULL: no host memory. It stays the device's, for one context after
 * the other. Another one than a context's `first` is there because threads met, or for a tag: it
 * closes fewer epochs, since those are where threads meet next, and holds more memory for it. */
struct gs_arena *gs_arena_new(struct gs_arena_shared *shared, const struct gs_device *device,
                              bool first, unsigned tag);
/* It is the context's. Lock not held. `events`: those of the context's first arena, or NULL for
 * that one. */
void gs_arena_init(struct gs_arena *arena, CUcontext context, const struct gs_fence_pool *events);
/* It is no context's. It has no pieces. Lock not held. And the record goes, with the core. */
void gs_arena_fini(struct gs_arena *arena);
void gs_arena_free(struct gs_arena *arena);

/* ---- Blocks (block.c) ------------------------------------------------------------------- */

size_t gs_arena_round(const struct gs_arena *arena, size_t size, bool *ret_small);
/* A live block from what is free, or NULL. For a large one it looks at what has come back. */
struct gs_block *gs_arena_take_locked(struct gs_arena *arena, size_t size);
/* A live block from either region: memory is out. */
struct gs_block *gs_arena_take_any_locked(struct gs_arena *arena, size_t size);

/* Puts a block that nothing can touch any more back among the free ones. */
void gs_arena_give_locked(struct gs_arena *arena, struct gs_block *block);
/* Puts it back without merging, where its size allows. */
void gs_arena_give_quick_locked(struct gs_arena *arena, struct gs_block *block);
/* Merges what is in the quick lists, and the rest that is apart; false: nothing was. */
bool gs_arena_merge_quick_locked(struct gs_arena *arena);

/* The region of a size, and that of a block. */
static inline struct gs_region *gs_arena_region_locked(struct gs_arena *arena, bool small)
{
    return small ? &arena->small : &arena->large;
}

/* Of a block in no bin: makes it live; cuts it to `size`, and what is left, or NULL, is as it was,
 * in no bin; joins it with its neighbour above, where they may be one. */
void gs_block_live_locked(struct gs_arena *arena, struct gs_block *block, size_t size);
struct gs_block *gs_block_cut_locked(struct gs_arena *arena, struct gs_block *block, size_t size);
void gs_block_merge_locked(struct gs_arena *arena, struct gs_block *lower, struct gs_block *upper);
bool gs_blocks_may_merge_locked(const struct gs_block *lower, const struct gs_block *upper);
/* Into bins of its class, merged with its neighbours that are there; returns what it is part of.
 * And out of those that it is in. */
struct gs_block *gs_block_bin_locked(struct gs_arena *arena, struct gs_block *block,
                                     struct gs_bins *bins);
void gs_block_unbin_locked(struct gs_block *block);
/* Best fit. Where each large block has its piece alone, a piece of the very size. */
struct gs_bin_entry *gs_arena_find_locked(const struct gs_arena *arena, const struct gs_bins *bins,
                                          size_t need);
/* Out of its bins, where what is more than `need` stays. */
struct gs_block *gs_block_take_out_locked(struct gs_arena *arena, struct gs_bin_entry *entry,
                                          size_t need);
/* What is free, and counted so, comes into its region's bins; returns what it is part of. And so
 * many bytes are free no more. */
struct gs_block *gs_block_put_locked(struct gs_arena *arena, struct gs_block *block);
static inline void gs_arena_free_less_locked(struct gs_arena *arena, size_t bytes)
{
    GS_SUB(arena->free_bytes, bytes);
    if (arena->free_bytes < arena->kept.free_low)
        arena->kept.free_low = arena->free_bytes;
}

/* A number that never comes again. */
uint64_t gs_arena_next_id_locked(struct gs_arena *arena);

/* A record, zeroed, or NULL: no host memory (index.c); and it is free for the next. */
struct gs_block *gs_block_record_new_locked(struct gs_arena *arena);
void gs_block_record_free_locked(struct gs_arena *arena, struct gs_block *block);

/* ---- Pieces come (region.c) and go (trim.c) ----------------------------------------------- */

/* Pieces that are to be made for one block, side by side. */
struct gs_growth {
    struct gs_piece *place; /* takes the addresses of those that are not made yet; or NULL */
    struct gs_piece *piece; /* the last that was made; NULL: it was not mapped */
    size_t least;           /* bytes that are missing still */
    struct gs_block *block; /* what is there of it, and nobody else's meanwhile; or NULL */
    struct gs_block *above; /* the same behind the place */
};

/* Where a block of `size` bytes needs the fewest of new pieces. Its place and what is free beside
 * it are taken until gs_arena_grown_locked. GS_NO_HOST_MEMORY; GS_NO_MEMORY: no place. The region
 * is there. */
gs_status gs_arena_grow_locked(struct gs_arena *arena, size_t size, struct gs_growth *ret);
/* Where the next piece is to be mapped; `scarce`: of no more than what is missing.
 * GS_NO_HOST_MEMORY. Then it was mapped, so large: it is in the map, and nobody's until it has
 * joined, under the same hold of the lock. Else, and after GS_NO_HOST_MEMORY of either, it leaves
 * as one that is detached. */
gs_status gs_growth_next_locked(struct gs_arena *arena, struct gs_growth *growth, bool scarce,
                                struct gs_span *ret);
gs_status gs_growth_mapped_locked(struct gs_arena *arena, struct gs_growth *growth, size_t size,
                                  CUmemGenericAllocationHandle handle);
gs_status gs_growth_join_locked(struct gs_arena *arena, struct gs_growth *growth);
/* No more are made: what there is is free, and what it was for can be taken if all was made. */
void gs_arena_grown_locked(struct gs_arena *arena, struct gs_growth *growth);

/* Detaches pieces that are free from end to end, and that no work touches any more, from the map
 * and the arena: of about `bytes` together, none larger than `largest`, the highest ones. What was
 * quick is merged first. They are then the caller's, to unmap without the lock
 * (gs_pieces_unmap). */
struct gs_piece *gs_arena_detach_locked(struct gs_arena *arena, size_t bytes, size_t largest);
/* One leaves the map. From now on until its end others may wait for it. */
void gs_piece_leaves_locked(struct gs_arena *arena, struct gs_piece *piece);
/* Free bytes beyond the target: what was live lately, and a slack that is smaller where the device
 * has less left. */
size_t gs_arena_surplus_locked(const struct gs_arena *arena);
/* Detaches a piece that is free from end to end for who unmaps next. One that is guarded, or not
 * free, stays. */
void gs_arena_spend_locked(struct gs_arena *arena, struct gs_piece *piece);

/* ---- The way back (retire.c) ------------------------------------------------------------ */

/* A live block was freed: retired, behind all GPU work of the context; or free at once, where
 * all of that is in one stream. */
void gs_arena_retire_locked(struct gs_arena *arena, struct gs_block *block);
/* A live block was freed in the order of a stream: retired or free at once, as above. */
void gs_arena_retire_in_order_locked(struct gs_arena *arena, struct gs_block *block);
/* What a stream held back joins the open epoch; free at once as above. */
void gs_arena_retire_held_locked(struct gs_arena *arena, struct gs_block *block);

/* Closes the open epoch, if a fence can be recorded now, and takes back what passed. Does not
 * wait. */
void gs_arena_collect_locked(struct gs_arena *arena);
/* A capture is about to begin: what was freed so far is behind an event. */
void gs_arena_before_capture_locked(struct gs_arena *arena);
/* What may be kept free has changed for all arenas. */
void gs_arena_limit_locked(struct gs_arena *arena);
/* As gs_arena_collect_locked, but leaves the epoch open where the GPU has not passed the one
 * before: it has not passed this either, and each event is a stop for the GPU. */
void gs_arena_look_locked(struct gs_arena *arena);
/* Takes back what passed; returns whether anything did. */
bool gs_arena_poll_locked(struct gs_arena *arena);
/* Bytes that retire. */
static inline size_t gs_arena_behind_bytes_locked(const struct gs_arena *arena)
{
    return arena->reserved - arena->live - arena->free_bytes - arena->held - arena->order.bytes;
}
/* What held the block around an address in the piece may do so no more: it goes, unless something
 * else holds it, and the piece may be spent afterwards. Returns where the block ended. */
uint64_t gs_arena_unguard_locked(struct gs_arena *arena, struct gs_piece *piece, uint64_t address);
/* What stops the GPU is about to be submitted: closes the open epoch if cuMemFree's is in it. */
void gs_arena_close_locked(struct gs_arena *arena);
/* A live block that the program does not know yet is its device's stream-ordered memory. */
void gs_arena_count_async_locked(struct gs_arena *arena, struct gs_block *block);
/* With how many bytes and blocks the next one closes. */
void gs_epoch_choose_limits_locked(struct gs_arena *arena);
/* Closes the open epoch, if a fence can be recorded now. `at_free`: nothing was submitted since the
 * last block came into it. */
void gs_epoch_close_locked(struct gs_arena *arena, bool at_free);
/* A live block is no longer the program's: retired, in no list yet. */
void gs_arena_unlive_locked(struct gs_arena *arena, struct gs_block *block);
/* What is in the open epoch, and in no list any more. False: nothing of cuMemFree's. Then: whether
 * the context was waited for since. The list is empty afterwards. */
bool gs_arena_take_open_locked(struct gs_arena *arena, struct gs_block_list *ret);
void gs_arena_waited_locked(struct gs_arena *arena, struct gs_block_list *freed, bool over);
/* The context was destroyed: its work is over and its events are gone. What retires is free, or
 * held. */
void gs_arena_context_over_locked(struct gs_arena *arena);

/* ---- Waiting for the GPU (wait.c) -------------------------------------------------------- */

/* Whether work may still touch what was free at once, behind which events are recorded. */
bool gs_arena_touched_locked(struct gs_arena *arena);
/*
 * Closes the open epoch and lets the lock go while it waits for the GPU to pass the oldest one, or
 * else what was free at once. False: there is none, it did not pass in time, or it cannot be waited
 * for now (a capture is open).
 *
 * What cuMemFree freed may be waited for without end: natively that call would have waited for the
 * same work, in the same thread, while nobody else could submit any (measured on an H200). So that
 * it is the same, the fence is recorded at the free or before anything is submitted that can stop
 * the GPU (gs_single_stalls). Where it was recorded later, it may be behind a kernel that waits for
 * this very thread; and what was freed in the order of a stream may be behind anything. Both are
 * waited for so long and no longer (GS_LATER_WAIT_NS).
 */
bool gs_arena_wait_oldest_locked(struct gs_arena *arena, const struct gs_patience *patience);
/* Whether an allocation should wait rather than grow the arena by `size`: so many times as much
 * retires as is too much. */
bool gs_arena_behind_locked(struct gs_arena *arena, size_t size, unsigned times);

/* ---- Stream order (order.c) -------------------------------------------------------------- */

/* A live block was freed in the order of a stream. */
void gs_arena_retire_stream_locked(struct gs_arena *arena, struct gs_block *block,
                                   uint64_t stream_key);
/* A live block from what was freed in the order of the stream. NULL: there is none, or what is free
 * for all fits better. */
struct gs_block *gs_arena_take_stream_locked(struct gs_arena *arena, size_t size,
                                             uint64_t stream_key);
/* The list of that stream (0, which is no key: of every one) but `keep` joins the open epoch, or is
 * free where all work is in one stream. */
void gs_arena_flush_streams_locked(struct gs_arena *arena, uint64_t only, uint64_t keep);

#endif
