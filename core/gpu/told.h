/*
 * Streams that were told of work: what stands in for cuCtxRecordEvent on drivers that have none
 * (before CUDA 12.5). There an "event" of a context's line (core/gpu/fence.h) is a set: one event in
 * each stream of the context that was told of work since the set before.
 *
 *   a hook tells ──► the stream is due ──► an event in it, with the next set ──► not due
 *
 * Who tells has not submitted yet. So the stream that a thread told of last is due as long as it is
 * that: the thread comes by again when it has submitted, and not before. That is also the short way:
 * a thread that tells the same stream again says nothing new.
 *
 * What no event can be had in at that time is lacking, and the set is not complete:
 *
 *   a default stream of another thread  its thread records it when it comes by next (it tells,
 *                                       frees, misses), or ends
 *   a stream that was destroyed,        before, while no capture was open, it had its event; one
 *   or whose thread has ended           that could not is lacking for good. A default stream has
 *                                       it where the driver says that it is still the same one
 *
 * A set that lacks something has passed when the context was waited for after it began
 * (gs_fence_over): a free does that, as the driver's own does, and who waits without a bound.
 *
 * An event in the legacy default stream is behind, and before, what all blocking streams of the
 * context do, so it orders those. It is recorded where the driver's own free would have waited for
 * them all: at a free (gs_fence_legacy), and with a set that says so (`legacy_too`).
 */
#ifndef GS_CORE_GPU_TOLD_H
#define GS_CORE_GPU_TOLD_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/lock.h"

#define GS_TOLD_BUCKETS 64

struct gs_fences;

struct gs_told_stream {
    struct gs_told_stream *next;
    uint64_t key;      /* gs_stream_key */
    CUcontext context; /* NULL: of every context, the legacy default stream */
    uint64_t told;     /* serial number of the last telling that a thread does not stand for */
    unsigned threads;  /* that told it of work last, and may be about to submit that */
    unsigned long long id; /* the driver's, of a thread's default stream; 0: not known */
};

/* A thread that tells. It is its thread's until that ends; `fences` NULL: they are gone. */
struct gs_told_thread {
    struct gs_told_thread *next;
    struct gs_fences *fences;
    uint64_t key;    /* atomic: work for this stream needs no telling */
    uint64_t own;    /* of its per-thread default stream; that of no thread: it has none */
    struct gs_told_stream *last;
    bool wanted;     /* atomic: a set lacks its default stream */
    pid_t process;
};

struct gs_tellings {
    struct gs_lock lock; /* rank TOLD; protects all of it */
    uint64_t serial;     /* of tellings */
    struct gs_told_stream legacy, *streams[GS_TOLD_BUCKETS];
    struct gs_told_thread *threads;
    CUcontext context; /* the first that has a line */
    bool several;      /* there were others: a default stream is told of with its context */
};

/* This thread's; one of nobody before it first tells. */
extern _Thread_local struct gs_told_thread *gs_told_here;

/* The short way: this stream (by its key) is the one that the thread told of work last. */
static inline bool gs_told_knows(const struct gs_fences *fences, uint64_t key)
{
    const struct gs_told_thread *here = gs_told_here;

    return __atomic_load_n(&here->key, __ATOMIC_RELAXED) == key && here->fences == fences;
}

/*
 * Work is about to be submitted to a stream, or is ordered by it. No lock above rank CAPTURE is held.
 * False: it cannot be remembered: the fences are blind from here on (gs_fences_blind).
 */
bool gs_told_work(struct gs_fences *fences, CUstream stream);

/* This thread is in a call that submits nothing: its default streams are due no longer than to the
 * next set, and what sets lack of it is recorded. */
void gs_told_rests(struct gs_fences *fences);

/* A stream is about to be destroyed: its event is recorded now, where it is due. */
void gs_told_stream_gone(struct gs_fences *fences, CUstream stream);

/* ---- For core/gpu/fence.c ---------------------------------------------------------------- */

void gs_told_init(struct gs_fences *fences);
void gs_told_destroy(struct gs_fences *fences);
/* With the lock of `fences` held: a line begins to serve the context; it was destroyed. */
void gs_told_context_locked(struct gs_fences *fences, CUcontext context);
void gs_told_context_gone_locked(struct gs_fences *fences, CUcontext context);
/* With the lock of `told` held: nobody is about to submit to it. */
void gs_told_forget_locked(struct gs_tellings *told, struct gs_told_stream *stream);
/* With that lock held: the thread is to come by. */
void gs_told_want_locked(struct gs_tellings *told, uint64_t own);

#endif
