/* Growing an arena, and what is done when the device is full. No lock is held by the caller. */
#ifndef GS_CORE_PROCESS_RECLAIM_H
#define GS_CORE_PROCESS_RECLAIM_H

#include "core/process/process.h"
#include "core/pool/arena.h"

#define GS_RELEASED_NS UINT64_C(1000000000) /* for what other threads are giving back */
#define GS_RETURNED_NS UINT64_C(500000000)  /* for processes that are to give back what was freed */

/* Unmaps detached pieces and gives their memory to the driver; returns bytes. */
size_t gs_pieces_unmap(struct gs_core *core, struct gs_piece *pieces);
/* As gs_pieces_unmap, of what other processes had (share.isolate). */
size_t gs_spent_unmap(struct gs_core *core);

/* Waits for pieces that other threads have taken out of the arenas and are giving back; whether
 * there were any. They end it, after calls of the driver and of the program's listeners; one of
 * those may wait for this thread, so `limit_ns` is the most. Pauses count, not the clock: where all
 * stood still, so did they. */
bool gs_releases_await(struct gs_core *core, uint64_t limit_ns);
/* What the driver has free changes, and the count of that: who counts what is free meanwhile does
 * so again (gs_core_begin_count). */
void gs_change_is(struct gs_core *core, bool begun);
/* From its begin to its end what is free beside the place of a growth is nobody's. */
void gs_growth_is(struct gs_core *core, bool begun);
/* Waits for those that other threads are at, in calls of the driver, `limit_ns` at most; whether
 * there were any. */
bool gs_growths_await(const struct gs_core *core, uint64_t limit_ns);

static inline bool gs_is_out(gs_status status)
{
    return status == GS_NO_MEMORY || status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY;
}

/* The context has ended since, and the record may be another's: lock held. */
static inline bool gs_arena_is_over_locked(const struct gs_arena *arena, uint64_t life)
{
    return arena->dead || arena->made_ns != life;
}

static inline struct gs_patience gs_patience_of(uint64_t most_ns)
{
    return (struct gs_patience){gs_now_ns(), most_ns};
}

/* A new piece for `size` bytes, and a live block out of it. GS_NO_HOST_MEMORY or the driver's
 * error; nothing was changed then. `life` is the arena's made_ns when its context was current: a
 * record that another context has by now is left alone (GS_NO_CONTEXT). */
gs_status gs_arena_grow(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                        CUdeviceptr *ret_address);

/* The device is full: what is held back is given up step by step, the cheapest first. GS_NO_MEMORY:
 * even then there is not enough. */
gs_status gs_arena_reclaim(struct gs_core *core, struct gs_arena *arena, uint64_t life, size_t size,
                           CUdeviceptr *ret_address);

/* The driver's wait for all work of the context: then what was freed has passed, or retires on. The
 * lock is held, and let go meanwhile. */
gs_status gs_arena_synchronize_locked(struct gs_core *core, struct gs_arena *arena,
                                      struct gs_block_list *freed);

/* All arenas of a device (NULL: any) take back what has come back; with `patience` (NULL: none)
 * also what they have to wait for. */
void gs_arenas_collect(struct gs_core *core, const struct gs_device *device,
                       const struct gs_patience *patience);
/* An arena gives up all but `keep` of what it has free, and no more than `most` or a piece beyond;
 * with `patience` (NULL: none) also what it has to wait for. Returns bytes given to the driver. */
size_t gs_arena_trim(struct gs_core *core, struct gs_arena *arena,
                     const struct gs_patience *patience, size_t keep, size_t most);
/* All arenas of the device give up what is free, and the device what else it has, until it is
 * `bytes`. */
size_t gs_device_trim(struct gs_core *core, const struct gs_device *device,
                      const struct gs_patience *patience, size_t bytes);

/* Gives up memory for another process, without waiting: of what is free, if there is so much, or
 * else waits for a first open longer than it must. */
size_t gs_device_yield(struct gs_core *core, const struct gs_device *device, size_t bytes);

/* Whether what the calling thread gives back from now on comes after what the program's threads ask
 * of the driver. */
void gs_releasing_goes_after(bool after);

#endif
