/*
 * Regions, pieces and blocks (core/pool/arena.h has what becomes of them). Of an arena's everything
 * is under the arena's lock, and so it is called with that held.
 */
#ifndef GS_CORE_POOL_BLOCK_H
#define GS_CORE_POOL_BLOCK_H

#include "core/base/bins.h"
#include "core/gpu/fence.h"
#include "core/gpu/map.h"

#define GS_UNIT_SHIFT  9 /* small blocks are multiples of 512 bytes, as the driver's are */
#define GS_UNIT_SIZE   ((size_t)1 << GS_UNIT_SHIFT)
#define GS_LARGE_SHIFT 16 /* large ones of 64 KiB, the GPU's own page and a network card's */

struct gs_export;

enum gs_block_state {
    GS_BLOCK_FREE,  /* in its region's bins, merged with its neighbours there */
    GS_BLOCK_QUICK, /* free as well, in a quick list or its arena's free.last, not merged */
    GS_BLOCK_LIVE,
    GS_BLOCK_RETIRED,
    GS_BLOCK_ORDERED,    /* free for one stream: the same in that stream's bins */
    GS_BLOCK_LAST_FREED, /* the same, and the last that was freed there: in no bin */
    GS_BLOCK_HELD,
};

struct gs_block {
    struct gs_bin_entry entry; /* first; its size: the bytes covered; next: of any list, too */
    uint64_t base;
    size_t size;                    /* bytes the program asked for */
    uint64_t id;                    /* never reused; given when it becomes live */
    struct gs_piece *piece;         /* in which it begins */
    struct gs_block *below, *above; /* neighbours in the region; NULL where nothing is mapped */
    struct gs_export *export;       /* not NULL: a handle of it was given out */
    struct gs_bins *bins;           /* in which it is, its region's or a stream's; NULL: in none */
    uint64_t memops;                /* its id, where the program set SYNC_MEMOPS */
    enum gs_block_state state;
    bool async;
    bool multi_stream; /* another stream than the single one has work on it */
};

/* Who may have a block beyond its free, and memory beyond its last block: another process that has
 * a lease of it, a device that has it registered. The arena knows neither of them. It asks here,
 * with its lock held; what answers waits for nobody, and takes locks of higher ranks alone. */
struct gs_guard {
    const uint64_t *registered; /* atomic: how many registrations there are */
    /* The program has freed an exported block. */
    void (*freed)(void *arg, struct gs_block *block);
    /* Whether nobody has the block, nor may come for it. It is not exported any more then. Else
     * whoever looks after it says so when that has ended (gs_arena_unguard_locked). */
    bool (*may_go)(void *arg, struct gs_block *block);
    /* Whether a range in which no block lies may be unmapped: nothing will use it any more. */
    bool (*may_unmap)(void *arg, uint64_t base, size_t size);
    void *arg;
};

/* As guard->may_go; of what cannot be guarded nobody is asked. */
static inline bool gs_block_may_go_locked(const struct gs_guard *guard, struct gs_block *block)
{
    return (!block->export && __atomic_load_n(guard->registered, __ATOMIC_ACQUIRE) == 0) ||
           guard->may_go(guard->arg, block);
}

/* Blocks linked through entry.next. */
struct gs_block_list {
    struct gs_block *first, *last;
    size_t bytes;
    unsigned count;
};

/* A block in no list becomes its last (retire.c). */
void gs_block_list_push(struct gs_block_list *list, struct gs_block *block);

/* One physical allocation, mapped into a region. */
struct gs_piece {
    struct gs_span span;    /* first */
    struct gs_arena *arena; /* atomic: read before the arena's lock is taken */
    CUmemGenericAllocationHandle handle;
    uint64_t id;
    struct gs_region *region;
    struct gs_piece *prev, *next; /* in the region, by address, until its memory is unmapped */
    struct gs_piece *after;       /* in a list of detached ones, or of spare records */
    uint64_t peer_access;         /* devices besides its own that have access, one bit each */
    bool mapped; /* false: it is being made, or was detached, and only its place is taken */
    bool asleep; /* its memory is away, or about to go or come: it stays where it is */
    bool lent;   /* others may have it by other ways than handles of blocks: it does not sleep */
    unsigned char device;  /* atomic: its number, also when it is no arena's any more */
    struct gs_fence freed; /* of the last block in it that was free at once */
    struct gs_block **at;  /* by unit: the block that begins there, or NULL; */
    uint64_t *starts;      /* the same, a bit each */
    unsigned shift;        /* log2 of the unit its blocks are multiples of */
};

/* An address reservation, for all pieces of an arena's large blocks, or of its small ones. */
struct gs_region {
    struct gs_arena *arena;
    uint64_t base;
    size_t size;        /* 0: there is none yet */
    bool crosses;       /* a block may lie across pieces */
    bool short_of_room; /* more addresses were not to be had: what does not fit is the driver's */
    struct gs_piece *lowest, *highest;
    size_t taken;        /* bytes that those have: less than up to the highest's end is a hole */
    struct gs_bins free; /* blocks that are free for whoever comes first, by size */
};

static inline uint64_t gs_piece_end(const struct gs_piece *piece)
{
    return piece->span.base + piece->span.size;
}

static inline uint64_t gs_block_end(const struct gs_block *block)
{
    return block->base + block->entry.size;
}

static inline bool gs_block_is_large(const struct gs_block *block)
{
    return block->piece->shift == GS_LARGE_SHIFT;
}

/* The pieces that a block lies in, from block->piece on: the one after another; NULL: that was
 * all. */
static inline struct gs_piece *gs_block_next_piece(const struct gs_block *block,
                                                   const struct gs_piece *piece)
{
    return gs_piece_end(piece) < gs_block_end(block) ? piece->next : NULL;
}

/* ---- Records, and where blocks start (index.c) ------------------------------------------- */

/* A record; NULL: no host memory. And it is no piece of its region any more, and free for the
 * next. */
struct gs_piece *gs_piece_record_new_locked(struct gs_arena *arena);
void gs_piece_record_free_locked(struct gs_piece *piece);
/* A detached one is unmapped, and its addresses are for others. Lock not held. */
void gs_piece_gone(struct gs_piece *piece);
/* The index of the blocks that will begin in a piece. False: no host memory. And one begins at an
 * address, or (NULL) the one that did so is no more. */
bool gs_index_make(struct gs_piece *piece);
void gs_index_set_locked(struct gs_piece *piece, uint64_t base, struct gs_block *block);

/* The block, in any state, that covers an address within the piece, and may begin in one before it;
 * and the one that starts at an address, or NULL. */
struct gs_block *gs_piece_find_locked(const struct gs_piece *piece, uint64_t address);
struct gs_block *gs_piece_start_locked(const struct gs_piece *piece, uint64_t address);
static inline struct gs_block *gs_piece_first_locked(const struct gs_piece *piece)
{
    return gs_piece_find_locked(piece, piece->span.base);
}

#endif
