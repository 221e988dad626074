/*
 * Giving chunks back to the driver in the background. Unmapping and releasing one takes 30 us and
 * more with its size, which an allocation that makes room for another size need not wait for: it
 * leaves them to the purge thread (core/process/purge.h). Where the arena would hold more by what is
 * left than it did at some time before, and a little, it gives back one after the other itself until it
 * does not: several in one allocation were its longest ones. The one that the thread is at it waits for, as one
 * may be a third of a program's memory. Who runs out of memory, and who asks how much is free, gives back what is
 * left of them itself.
 */
#ifndef GS_CORE_PROCESS_RELEASE_H
#define GS_CORE_PROCESS_RELEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/base/turn.h"

struct gs_chunk;
struct gs_core;
struct gs_arena;

struct gs_releases {
    struct gs_lock lock; /* rank RELEASES; protects first and last */
    struct gs_chunk *first, *last; /* detached chunks, the oldest first */
    size_t bytes;   /* atomic: of those, and of what a thread is at */
    unsigned taken; /* atomic: chunks that threads are at */
    struct gs_turn turn; /* the program's threads that make chunks or give some back go first */
};

void gs_releases_init(struct gs_core *core);
/* Nothing is left. */
void gs_releases_destroy(struct gs_core *core);

/*
 * Detached chunks of the arena, or NULL, which is about to grow by `size`: leaves them to the background or,
 * where there is none, gives them back. Where the arena would hold too much beside all that is left, the
 * oldest of that are given back first, and what other threads are at is waited for, 20 ms. Counts as the arena's
 * what the calling thread does. No lock is held.
 */
void gs_arena_make_room(struct gs_core *core, struct gs_arena *arena, struct gs_chunk *chunks,
                        size_t size);

/* Gives back all that is left, and waits for what other threads are at. Returns bytes that the
 * driver has got meanwhile; 0 at once where the thread is giving back already, and a listener or
 * pinner that this called has called. No lock is held. */
size_t gs_releases_finish(struct gs_core *core);

/* Waits for what other threads have taken out of the arenas and are giving back; whether there was
 * any. They end it, after calls of the driver and of the program's listeners; one of those may wait
 * for this thread, so `limit_ns` is the most. Pauses count, not the clock: where all stood still, so
 * did they. */
bool gs_releases_await(const struct gs_core *core, uint64_t limit_ns);
/* When the driver last got a chunk; 0: never. */
uint64_t gs_released_ns(const struct gs_core *core);

/* The purge thread: gives back what is left, until `stop` (atomic) is set. */
void gs_releases_run(struct gs_core *core, const bool *stop);

#endif
