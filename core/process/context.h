/*
 * The contexts this process allocates in, and the devices behind them. The driver uses handles
 * again, so a context that is about to go is detached first: from then on its handle means a new
 * record. Records are recycled, not freed: who goes through their lists needs no lock.
 *
 * A green context is a part of a primary one, in which its memory is: an event of the primary one
 * covers the work of all its green ones, and one of theirs covers their own alone. So their handles
 * lead to the primary one's record.
 */
#ifndef GS_CORE_PROCESS_CONTEXT_H
#define GS_CORE_PROCESS_CONTEXT_H

#include "core/gpu/single.h"
#include "core/pool/arena.h"
#include "core/process/neighbour.h"
#include "core/process/peers.h"
#include "core/process/process.h"
#include "core/process/trimmer.h"
#include "core/process/sleep.h"
#include "core/process/stats.h"

#define GS_THREAD_ARENAS  16 /* for whoever has no tag; then one of each tag that there is here */
#define GS_TAGS           16
#define GS_CONTEXT_ARENAS (GS_THREAD_ARENAS + GS_TAGS)

/* A tag is a label that a thread gives to what it allocates from then on. Such memory is apart, in
 * arenas of the tag's own: a process that falls asleep may discard it. */
#define GS_TAG_SIZE 64
/* Its number; 0: it is none, and none is made of it. */
unsigned gs_tag_find(const char *label, bool makes);
/* This thread's; 0: it has none. */
unsigned gs_tag_here(void);

struct gs_context {
    struct gs_context *next; /* in core->contexts */
    CUcontext handle;
    CUdevice ordinal;
    bool detached;                  /* its handle is not looked up any more */
    bool spare;                     /* it is no context's; for the next one of its device */
    const struct gs_device *device; /* asked here: an arena's line is written by its threads */
    struct gs_low_stack stack;
    /* The first always exists and has all large blocks; the others are made for threads that wait
     * for each other there, and for tags. Atomic: set once, under the contexts' lock. */
    struct gs_arena *arenas[GS_CONTEXT_ARENAS];
} __attribute__((aligned(128))); /* every thread reads it: nothing that is written lies beside it */

/* By device; atomic. */
struct gs_device_figures {
    size_t used[GS_DEVICES_MAX];            /* core/process/limit.h */
    bool no_region;                         /* was said */
    uint64_t shortage_ns;                   /* when core/process/shortage.h said something last */
    size_t leaving[GS_DEVICES_MAX];         /* of pieces that are no arena's any more */
    uint64_t refused[GS_DEVICES_MAX];       /* calls that found no memory */
    uint64_t took[GS_DEVICES_MAX][GS_TOOK]; /* core/process/stats.h */
    size_t left[GS_DEVICES_MAX], grown[GS_DEVICES_MAX]; /* the latter since the former */
};

/* Bytes of graphs' memory nodes; atomic. */
struct gs_graph_memory {
    size_t nodes; /* since a graph was instantiated last, */
    size_t made;  /* and of those before, until one is launched */
};

/* Pieces on their way to the driver (core/process/unmap.c), and from it. The counts are atomic. */
struct gs_releases {
    uint64_t begun, done; /* calls that release a piece */
    uint64_t gone;        /* detached pieces that were */
    uint64_t last_ns;     /* when; 0: never */
    uint64_t growths_begun, growths_ended;
};

/* A green context that is there. */
struct gs_green {
    struct gs_green *next;
    CUcontext handle, primary; /* the owner of its memory */
    unsigned long long id;     /* the handle is another context's as soon as it has ended */
};

/* What the program does by itself. */
struct gs_programs {
    void (*unmapping)(uint64_t address, size_t size); /* its listener; atomic; may be NULL */
    struct gs_own *own; /* the memory that it maps; NULL: not followed */
    struct gs_green *greens;
    bool memops_due; /* atomic: core/api/memops.c */
};

/* Contexts that are gone. */
struct gs_gone {
    unsigned dead; /* those that have memory still; atomic for readers */
    bool ever;     /* atomic: some context has ended, of ours or not, a green one too */
};

struct gs_core {
    struct gs_driver driver;
    struct gs_core_options options;
    struct gs_fences fences;
    struct gs_single single;
    struct gs_share *share;
    struct gs_regcache *regcache;
    struct gs_arena_shared shared;
    struct gs_lock lock; /* rank CONTEXTS; protects all below but `generation` */
    struct gs_context *contexts;
    struct gs_arena *arenas; /* all that there are, and were; atomic for readers */
    struct gs_trimmer trimmer;
    struct gs_neighbour neighbour;
    struct gs_releases releases;
    struct gs_gone gone;
    struct gs_device device[GS_DEVICES_MAX];
    CUmemoryPool current_pool[GS_DEVICES_MAX]; /* NULL: never set; atomic for readers */
    /* Whether memory of one's own can be shared here; asked before the first allocation, once. */
    enum { GS_SHARES_UNKNOWN = 0, GS_SHARES, GS_SHARES_NOT } shares;
    bool probed; /* whether the driver records context events was found out, once and for all */
    uint64_t generation; /* atomic: another one whenever a handle changes its meaning */
    struct gs_map map;
    uint64_t let_in[GS_DEVICES_MAX]; /* by device, atomic: those that may touch its memory, one bit
                                      * each (core/process/peers.h) */
    struct gs_programs programs;
    struct gs_async_count async[GS_DEVICES_MAX]; /* by device */
    struct gs_device_figures figures;
    int device_count;                         /* atomic; 0: not asked yet */
    const void *primary_turn[GS_DEVICES_MAX]; /* atomic: the thread whose it is; NULL: nobody's */
    struct gs_graph_memory graphs;
    struct gs_sleep sleep;
};

/* The arenas of a context, one after the other; *at is 0 at first. NULL: those were all. */
static inline struct gs_arena *gs_context_next_arena(const struct gs_context *context, unsigned *at)
{
    struct gs_arena *arena = NULL;

    while (!arena && *at < GS_CONTEXT_ARENAS)
        arena = context->arenas[(*at)++];
    return arena;
}

/* Behind one (NULL: the first) the next of all arenas of a device (NULL: any); NULL: there are no
 * more. One that is dead, or no context's, has nothing to give. Needs no lock. */
struct gs_arena *gs_next_arena(const struct gs_core *core, const struct gs_device *device,
                               const struct gs_arena *arena);
/* As gs_next_arena, with its lock taken and that of the one before let go; `alive`: of those whose
 * context is there, and not about to go. */
struct gs_arena *gs_next_locked(const struct gs_core *core, const struct gs_device *device,
                                struct gs_arena *arena, bool alive);

/* What a device can, found out here if it was not before; it needs no context, but a driver that is
 * initialised. GS_MODE_UNKNOWN: it could not be tried. */
enum gs_device_mode gs_context_device_mode(struct gs_core *core, CUdevice ordinal);

/* The record of the current context, made when it is first seen. GS_NO_CONTEXT,
 * GS_NO_HOST_MEMORY, or the driver's error. The hot path: one driver call, no lock. */
gs_status gs_context_current(struct gs_core *core, struct gs_context **ret_context);

/* As gs_context_current, where nothing is to be allocated: the device may not be probed yet. */
gs_status gs_context_current_unprobed(struct gs_core *core, struct gs_context **ret_context);

/* The context whose memory is allocated under a handle: it, or a green one's primary one. */
CUcontext gs_context_owner(struct gs_core *core, CUcontext handle);

/* The first record. The contexts' lock is held. */
static inline struct gs_context *gs_contexts_locked(const struct gs_core *core)
{
    gs_lock_assert_held(&core->lock);
    return core->contexts;
}

/* The record of a handle, NULL: there is none that is not detached. The contexts' lock is held. */
struct gs_context *gs_context_find_locked(struct gs_core *core, CUcontext handle);

/* From now on no thread relies on what it looked up before. */
void gs_context_handles_changed(struct gs_core *core);

/* The arena for a block of `size` bytes of this thread's, locked, of the context that this thread
 * has just looked up. NULL: a handle has changed its meaning since, and the record may be
 * another's. */
struct gs_arena *gs_context_lock_arena(struct gs_core *core, struct gs_context *context,
                                       size_t size);

/* The record of the context that a stream belongs to, and what tells apart the streams in whose
 * order its memory is: there a green context's default stream is beside the primary one's. An error
 * of the driver's: no such stream. */
gs_status gs_context_of_stream(struct gs_core *core, CUstream stream,
                               struct gs_context **ret_context, uint64_t *ret_key);

/* Locks the arena of the piece that covers an address. GS_NOT_OURS: none does; no lock is held
 * then. GS_NOT_LIVE: an import does; no lock. */
gs_status gs_context_lock_piece(struct gs_core *core, CUdeviceptr address,
                                struct gs_piece **ret_piece);
/* Locks the arena of the live block that covers an address. GS_INVALID: ours, but of no live block;
 * no lock. */
gs_status gs_context_lock_around(struct gs_core *core, CUdeviceptr address,
                                 struct gs_block **ret_block);

/* What its arenas ask (core/process/guard.c). Sharing and registrations are there. */
struct gs_guard gs_guard_of(struct gs_core *core);
/* What held a range does so no more (struct gs_regcache_events, struct gs_share_events); `core` is
 * the argument. No lock is held. */
void gs_guard_ended(void *core, uint64_t base, size_t size);
void gs_guard_lease_ended(void *core, uint64_t address);

/* Single-stream mode's callback (core/gpu/single.h); `core` is the argument. */
gs_single_arenas_fn gs_context_pass_arenas;
/* A capture is about to begin: what was freed so far can be had again while it is open. */
void gs_context_before_capture(struct gs_core *core);

/* A dead context has no work any more, but may have memory that others hold: gives back what is not
 * held any more. Takes all locks it needs; none is held. */
void gs_context_trim_dead(struct gs_core *core);

/* The next of those that are not about to go, behind one (NULL: the first), and its handle; NULL:
 * there are no more. Its record may be another one's at any time. */
struct gs_context *gs_context_next(struct gs_core *core, const struct gs_context *context,
                                   CUcontext *ret_handle);
/* A green one has ended, or all that were part of a primary one, by a reset (NULL: none). */
void gs_greens_forget(struct gs_core *core, CUcontext handle, CUcontext primary);

/* A context of the device that is not about to go; NULL: there is none. */
CUcontext gs_context_of_device(struct gs_core *core, CUdevice ordinal);
/* Waits, until `until_ns` at most, for all that was submitted to a context; captures begin
 * meanwhile. GS_OK where it has ended, GS_NO_CONTEXT where it may be about to; else as
 * gs_fence_mark and gs_fence_wait. */
gs_status gs_context_await_work(struct gs_context *context, uint64_t until_ns);
/* The device of a context; false: the driver will say what is wrong with that. */
bool gs_context_device(struct gs_core *core, CUcontext handle, CUdevice *ret_device);
/* What the driver has free of it, and in all; false: it cannot be asked there (NULL: nowhere). */
bool gs_context_mem_info(struct gs_core *core, CUcontext handle, size_t *ret_free,
                         size_t *ret_total);

#endif
