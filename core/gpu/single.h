/*
 * Single-stream mode. A program whose GPU work all goes to one stream orders it by that: what uses
 * a block after its free comes behind what used it before. So what such a program frees is free at
 * once (core/pool/retire.c), without an epoch, and its arena holds no more than a stream-ordered
 * allocator would.
 *
 *   unused ──► single ──► draining ──► multi
 *
 * unused: no work was submitted yet. single: all work went to one stream, whose key is kept.
 * draining: work goes, or may go, to another stream as well; frees retire again (epochs), and until
 * the single stream has passed the last free, every other stream waits for that before its work.
 * multi: that is so; for good.
 *
 * What holds: every way to submit work that can touch device memory tells this first
 * (gs_single_submits), or ends it (gs_single_drain): captures, other contexts, memory that other
 * processes, network cards or the host can reach beside the GPU's streams, launches that may
 * overtake the one before. And no stream waits for work that was submitted after the last free:
 * where anything was freed since, a mark (an event) is recorded before the next work is submitted,
 * and it is the mark that is waited for. Otherwise a kernel that never ends, on a stream that was
 * alone, would stop all others; so would what stops a stream without touching memory, on any
 * stream, since an event is behind all of them (gs_single_stalls). Where no mark can be made, it
 * ends.
 *
 * For what was submitted before the last free other streams do wait here, once the mode ends or a
 * copy passes by it. The driver's own free waits for that itself, and as long as it does, what
 * other threads submit in that context does not get to the GPU either (measured on an H200: a copy
 * and a launch on another stream, while a host function holds the first one, come back when the
 * free does). So a thread that is to let the GPU go on after it has submitted something waits in
 * both cases; what it can still do natively, and here as well, is to let go first.
 *
 * On a driver without cuCtxRecordEvent a mark is an event in the single stream, and once the mode
 * is over a free waits as the driver's does. Where no mark can be had, its end waits for the
 * context.
 *
 * What is free may still be touched by the single stream's work, so a piece goes back to the driver
 * only when the fence of the last free in it has passed (core/pool/trim.c).
 */
#ifndef GS_CORE_GPU_SINGLE_H
#define GS_CORE_GPU_SINGLE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/gpu/fence.h"
#include "core/base/lock.h"

/* Values of `stream` that are no key (gs_stream_key). Those with the bit 4 are of the mode's
 * end. */
#define GS_SINGLE_UNUSED   0
#define GS_SINGLE_DRAINING 4
#define GS_SINGLE_MULTI    12
#define GS_SINGLE_OVER     4
/*
 * Takes the lock of each arena for a moment: a free that is under way there has been at once then,
 * or sees what has changed. With `closes` what cuMemFree freed there gets its event now: what stops
 * the GPU is about to be submitted. May hold single-stream mode's lock.
 */
typedef void gs_single_arenas_fn(void *arg, bool closes);

struct gs_single {
    uint64_t stream; /* atomic: its key, or one of the above */
    bool unmarked;   /* atomic: something was freed at once and no mark is behind it */
    bool retires; /* atomic, in any state: a free may be in an epoch that no event is behind yet */
    CUstream stalled; /* atomic, for messages: where the last went that may stall; NULL: nowhere, or
                         to all. The stream may have gone */
    struct gs_fences *fences;
    const struct gs_log *log;
    gs_single_arenas_fn *arenas;
    void *arg;
    struct gs_lock lock;         /* rank SINGLE; protects what is below, and changes of `stream` */
    uint64_t was;                /* draining: the key that was alone */
    CUcontext context;           /* the only one so far; NULL: none */
    bool leaving;                /* it may be about to go: no event is made or looked at in it; */
    bool waited_for;             /* and somebody has waited long enough for that */
    struct gs_fence_pool events; /* of that context */
    struct gs_fence mark;        /* the last */
    uint64_t marks;              /* atomic; written with the lock held: how many were tried */
    uint64_t in_order; /* atomic: so many, when a launch was made that was not to overtake and that
                          the driver took */
};

/* `wanted`: false means multi from the start. `fences` and `log` outlive it. */
void gs_single_init(struct gs_single *single, struct gs_fences *fences, const struct gs_log *log,
                    gs_single_arenas_fn *arenas, void *arg, bool wanted);
void gs_single_destroy(struct gs_single *single);

/* Its key, or one of the values above. */
static inline uint64_t gs_single_state(const struct gs_single *single)
{
    return __atomic_load_n(&single->stream, __ATOMIC_RELAXED);
}

/* Whether what is freed is free at once, in a context that is not about to go. An arena's lock is
 * held, which whoever ends it takes after that. */
static inline bool gs_single_is(const struct gs_single *single)
{
    return !(__atomic_load_n(&single->stream, __ATOMIC_SEQ_CST) & GS_SINGLE_OVER);
}

/* Something was freed at once. The same lock is held. Returns the fence behind which no work
 * touches it but its next owner's. */
static inline struct gs_fence gs_single_freed(struct gs_single *single)
{
    if (__atomic_load_n(&single->stream, __ATOMIC_RELAXED) == GS_SINGLE_UNUSED)
        return (struct gs_fence){0};
    if (!__atomic_load_n(&single->unmarked, __ATOMIC_SEQ_CST))
        __atomic_store_n(&single->unmarked, true, __ATOMIC_SEQ_CST);
    return gs_fence_next(&single->events);
}

/* The slow half of gs_single_submits. */
void gs_single_work(struct gs_single *single, CUstream stream);

/* The short question: whether work for a stream (NULL: the legacy default one) needs no telling. */
static inline bool gs_single_knows(const struct gs_single *single, CUstream stream)
{
    uint64_t only = __atomic_load_n(&single->stream, __ATOMIC_RELAXED);

    return __builtin_expect(only == GS_SINGLE_MULTI ||
                                (only == gs_stream_key_known(stream) &&
                                 !__atomic_load_n(&single->unmarked, __ATOMIC_RELAXED)),
                            1);
}

/* Work is about to be submitted to a stream. The first thing that a hook of such a call does; errno
 * is preserved. */
static inline void gs_single_submits(struct gs_single *single, CUstream stream)
{
    if (!gs_single_knows(single, stream))
        gs_single_work(single, stream);
}

/*
 * As gs_single_submits, of a launch that may begin before the work before it in its stream has
 * ended (programmatic dependent launch). False: it must not, for what was freed since the last
 * launch that did not may be its own now; when the driver has taken it, gs_single_in_order is to be
 * told, with *ret_marks. What the driver refuses, or makes nothing of (a copy of no bytes), keeps
 * nobody in order.
 */
bool gs_single_may_overtake(struct gs_single *single, CUstream stream, uint64_t *ret_marks);
void gs_single_in_order(struct gs_single *single, uint64_t marks);

/* The slow half of gs_single_stalls. */
void gs_single_mark(struct gs_single *single);

/* What touches no memory and may end late, or never, is about to be submitted to any stream: the
 * host's functions, waits for events. NULL: to all of a context. As gs_single_submits. So what was
 * freed before is waited for without it, also where frees retire (core/pool/arena.h,
 * gs_arena_wait_oldest_locked). */
static inline void gs_single_stalls(struct gs_single *single, CUstream stream)
{
    bool unmarked = __atomic_load_n(&single->unmarked, __ATOMIC_RELAXED);
    bool retires = __atomic_load_n(&single->retires, __ATOMIC_RELAXED);

    __atomic_store_n(&single->stalled, stream, __ATOMIC_RELAXED);
    if (__builtin_expect(unmarked | retires, 0)) /* one branch for both */
        gs_single_mark(single);
}

/* Something that cuMemFree freed retires. Its arena's lock is held. */
static inline void gs_single_retires(struct gs_single *single)
{
    if (!__atomic_load_n(&single->retires, __ATOMIC_RELAXED))
        __atomic_store_n(&single->retires, true, __ATOMIC_RELAXED);
}

/* As gs_single_work, of work that touches nothing but blocks that the caller sees to (they retire
 * when they are freed): the stream waits for the last mark, and nothing ends. False: it goes to the
 * single stream, there is none, or no mark can be made; not told yet. No lock is held. */
bool gs_single_passes_by(struct gs_single *single, CUstream stream);

/* Ends it, and waits for the single stream to pass the last free: for as long as the driver's own
 * free would have, and where the context is about to go, not longer than a call takes that does not
 * end it. No lock is held. `why`: for the log, what the program did. */
void gs_single_drain(struct gs_single *single, const char *why);
/* A context is there: ends it if it is not the first. No lock is held. */
void gs_single_context(struct gs_single *single, CUcontext context);
/* A stream is being destroyed: ends it if it is that. No lock is held. */
void gs_single_stream_gone(struct gs_single *single, CUstream stream);
/* The context may be about to go, its arenas are told and the driver is not called yet; or it stays
 * after all, and they do not know yet; or it is gone, and nobody has forgotten it yet. No lock is
 * held. */
void gs_single_context_leaving(struct gs_single *single, CUcontext context, bool leaving);
void gs_single_context_gone(struct gs_single *single, CUcontext context);

#endif
