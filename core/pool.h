/*
 * One context's device memory: chunks cut into blocks, and the way of a block from its free to its
 * next use.
 *
 *      take            retire               epoch's fence passed         no lease, no grace
 *   ready ──► live ──► retiring ───────────────────────────────► limbo ──────────────► ready
 *                        │ (stream-ordered frees: ready at once for the same stream)
 *
 * A small block lies in a 2 MiB chunk with others, a large one has a chunk of its own; no block
 * crosses a chunk. Blocks of a chunk form a list in address order, and free neighbours merge.
 *
 * Everything here is called with the pool's lock held unless it says otherwise. No driver call is
 * made under it but those that core/driver.h says never block.
 */
#ifndef GS_CORE_POOL_H
#define GS_CORE_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/bins.h"
#include "core/device.h"
#include "core/fence.h"
#include "core/lock.h"
#include "core/map.h"
#include "core/regcache/regcache.h"
#include "core/share/share.h"

#define GS_UNIT_SHIFT 9 /* small blocks are multiples of 512 bytes, as the driver's are */
#define GS_UNIT_SIZE ((size_t)1 << GS_UNIT_SHIFT)
#define GS_UNITS_PER_PAGE (GS_PAGE_SIZE >> GS_UNIT_SHIFT)

enum gs_block_state {
    GS_BLOCK_READY,
    GS_BLOCK_LIVE,
    GS_BLOCK_RETIRING,
    GS_BLOCK_LIMBO,
};

struct gs_block {
    struct gs_bin_entry entry;        /* first; entry.size is the bytes covered. While not ready,
                                         prev and next are the links of the list it is in */
    uint64_t base;
    size_t size;                      /* bytes the program asked for */
    uint64_t id;                      /* never reused; given when it becomes live */
    struct gs_chunk *chunk;
    struct gs_block *below, *above;   /* neighbours in the chunk */
    struct gs_offer *offer;           /* not NULL: a token of it was given out */
    uint64_t freed_ns;
    enum gs_block_state state;
    bool async;
};

/* Blocks linked through entry.prev and entry.next. */
struct gs_block_list {
    struct gs_block *first, *last;
    size_t bytes;
    unsigned count;
};

struct gs_chunk {
    struct gs_span span; /* first */
    struct gs_pool *pool; /* atomic: read before the pool's lock is taken */
    CUmemGenericAllocationHandle handle;
    uint64_t id;
    struct gs_block *lowest;
    struct gs_chunk *prev, *next; /* in the pool's list */
    struct gs_small_index *small; /* NULL: a large block has it alone */
};

/* Blocks retired together behind one fence. */
struct gs_epoch {
    struct gs_epoch *next;
    struct gs_fence fence;
    struct gs_block_list blocks;
};

/* Blocks freed in the order of one stream: ready for it, for others after an epoch. */
struct gs_stream_list {
    struct gs_stream_list *next;
    uint64_t key;
    struct gs_block_list blocks;
};

struct gs_pool_shared { /* what all pools of a process use */
    const struct gs_driver *driver;
    const struct gs_log *log;
    struct gs_map *map;
    struct gs_fences *fences;
    struct gs_share *share;
    struct gs_regcache *regcache; /* what devices have registered: asked before memory goes */
    uint64_t next_id; /* atomic */
    size_t small_limit, epoch_bytes, cache_limit;
};

struct gs_pool {
    struct gs_lock lock; /* first; rank POOL; protects all below, and its chunks and blocks */
    struct gs_pool_shared *shared;
    const struct gs_device *device;
    CUcontext context;
    bool dead; /* the context is gone: nothing is handed out, what is left waits in limbo */
    struct gs_fence_pool events;
    struct gs_bins small, large;
    struct gs_chunk *chunks;
    struct gs_block_list retiring;         /* the open epoch */
    struct gs_epoch *oldest, *newest;      /* closed epochs */
    struct gs_epoch *spare_epochs;
    struct gs_stream_list *streams;
    struct gs_block_list limbo;
    struct gs_block *spare_blocks;
    size_t reserved, live, ready; /* bytes of chunks; of live blocks; of ready blocks */
};

/* Everything but the lock, which is made once for a record and kept when it is recycled. */
void gs_pool_init(struct gs_pool *pool, struct gs_pool_shared *shared,
                  const struct gs_device *device, CUcontext context);
/* The pool has no chunks. Lock not held. */
void gs_pool_fini(struct gs_pool *pool);

/* ---- Blocks (block.c) ------------------------------------------------------------------- */

size_t gs_pool_round(const struct gs_pool *pool, size_t size, bool *ret_small);

/* The block, in any state, that covers an address within the chunk. */
struct gs_block *gs_chunk_find(const struct gs_chunk *chunk, uint64_t address);

/* A live block from what is ready, or NULL. Driver calls: none. */
struct gs_block *gs_pool_take(struct gs_pool *pool, size_t size);

/* Puts a block that nothing can touch any more back among the ready ones. */
void gs_pool_give(struct gs_pool *pool, struct gs_block *block);

/* Enters a chunk whose memory is mapped; its whole is one ready block. GS_NO_HOST_MEMORY. */
gs_status gs_pool_add_chunk(struct gs_pool *pool, CUdeviceptr address, size_t size, bool small,
                            CUmemGenericAllocationHandle handle);

/* Detaches chunks that are ready from end to end from the map and the pool, until no more than
 * `keep` ready bytes are left. They are then the caller's, to unmap without the lock. */
struct gs_chunk *gs_pool_detach_ready(struct gs_pool *pool, size_t keep);
/* Unmaps detached chunks and gives their memory to the driver. Lock not held; returns bytes. */
size_t gs_chunks_release(struct gs_pool_shared *shared, struct gs_chunk *chunks);

/* ---- The way back (retire.c) ------------------------------------------------------------ */

void gs_block_list_push(struct gs_block_list *list, struct gs_block *block);
void gs_block_list_remove(struct gs_block_list *list, struct gs_block *block);

/* A live block was freed: retiring, behind all GPU work of the context. */
void gs_pool_retire(struct gs_pool *pool, struct gs_block *block);
/* A live block was freed in the order of a stream. */
void gs_pool_retire_stream(struct gs_pool *pool, struct gs_block *block, uint64_t stream_key);
/* A live block from what was freed in the order of the stream, or NULL. */
struct gs_block *gs_pool_take_stream(struct gs_pool *pool, size_t size, uint64_t stream_key);
/* The stream's list joins the open epoch; key 0: every stream's. */
void gs_pool_flush_streams(struct gs_pool *pool, uint64_t stream_key);

/* Closes the open epoch, if a fence can be recorded now, and takes back what passed. Does not
 * wait. */
void gs_pool_collect(struct gs_pool *pool);
/* Looks through limbo. `no_grace`: memory is out. */
void gs_pool_collect_limbo(struct gs_pool *pool, bool no_grace);
/* Closes the open epoch and lets the lock go while it waits for the GPU to pass the oldest one.
 * False: there is none, or it cannot be waited for now (a capture is open). */
bool gs_pool_wait_oldest(struct gs_pool *pool);
/* A live block is no longer the program's: retiring, in no list yet. */
void gs_pool_unlive(struct gs_pool *pool, struct gs_block *block);
/* All GPU work before the free of a retiring block in no list is known to be done. */
void gs_pool_pass(struct gs_pool *pool, struct gs_block *block);
/* The context was destroyed: its work is over and its events are gone. What retires is ready, or
 * in limbo. */
void gs_pool_context_over(struct gs_pool *pool);

uint64_t gs_now_ns(void);

#endif
