/*
 * Fences: "all GPU work submitted to this context so far is done", by cuCtxRecordEvent.
 *
 * Measured on an H200: the event covers non-blocking, per-thread and destroyed streams, costs
 * 0.16 us, and does not wait for later work. While any stream of the context captures a graph it
 * fails and breaks the capture, so captures are counted (process-wide: simple, and captures are
 * short), and no event is recorded between a look at the count and a capture's begin: who records
 * or queries says so first and then looks, a capture counts itself first and then waits for all who
 * said so. Each says so in its own fence pool, so pools of several threads write nothing in common.
 */
#ifndef GS_CORE_FENCE_H
#define GS_CORE_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/driver.h"
#include "core/lock.h"
#include "core/status.h"

struct gs_capture {
    uint64_t stream;   /* its key (gs_stream_key) */
    CUcontext context; /* current when it began */
};

struct gs_fences {
    const struct gs_driver *driver;
    struct gs_lock lock; /* rank CAPTURE; protects what is below, held while one is waited for */
    struct gs_fence_pool *pools; /* all there are */
    struct gs_capture *capture; /* captures that have begun, or are about to, and have not ended */
    unsigned captures;          /* how many; atomic for readers without the lock */
    unsigned room;
};

/*
 * Spare events of one context. Not locked: the owner's lock covers it. Dies with the context:
 * after the context is destroyed the events are gone and only gs_fence_pool_forget is called.
 */
struct gs_fence_pool {
    struct gs_fences *fences;           /* NULL: forgotten */
    struct gs_fence_pool *prev, *next;  /* in fences->pools */
    bool busy; /* atomic: its owner may be recording or querying an event */
    CUcontext context;
    CUevent *spare;
    unsigned count, room;
};

/* One point in a context's work. Zeroed: passed. */
struct gs_fence {
    CUevent event;
};

void gs_fences_init(struct gs_fences *fences, const struct gs_driver *driver);
void gs_fences_destroy(struct gs_fences *fences);

/*
 * Whether the driver records context events, found by recording one in the context that is current.
 * One that lacks the call, or has it and answers NOT_SUPPORTED, does not.
 */
bool gs_fences_probe(struct gs_fences *fences, CUcontext context);

/* What tells streams apart: the handle; for per-thread default streams the thread as well. */
uint64_t gs_stream_key(CUstream stream);

/*
 * A hook of cuStreamBeginCapture* calls begin before the driver's call, and end when that failed or
 * when the capture is over; end does nothing for a stream that does not capture. Neither blocks.
 * begin fails with GS_NO_HOST_MEMORY: the capture must not begin then.
 */
gs_status gs_fences_capture_begin(struct gs_fences *fences, uint64_t stream_key, CUcontext context);
void gs_fences_capture_end(struct gs_fences *fences, uint64_t stream_key);
/* The context was destroyed: so were its captures. */
void gs_fences_capture_context_gone(struct gs_fences *fences, CUcontext context);
bool gs_fences_capturing(struct gs_fences *fences);

/* Stays where it is until it is destroyed or forgotten. */
void gs_fence_pool_init(struct gs_fences *fences, struct gs_fence_pool *pool, CUcontext context);
/* Destroys the spare events; the context is alive. */
void gs_fence_pool_destroy(struct gs_fences *fences, struct gs_fence_pool *pool);
/* The context is gone and its events with it; nothing is recorded any more. Twice is once. */
void gs_fence_pool_forget(struct gs_fence_pool *pool);

/*
 * Records a fence behind all work submitted so far in the pool's context. Never waits for the
 * GPU. GS_CAPTURING: a capture is open, try later. GS_NOT_OFFERED: the driver has no
 * cuCtxRecordEvent. A driver's error: the context is broken or going away. On any failure
 * *ret is untouched.
 */
gs_status gs_fence_record(struct gs_fences *fences, struct gs_fence_pool *pool,
                          struct gs_fence *ret);

/* GS_OK: passed, and the event went back to the pool. GS_CAPTURING, or CUDA_ERROR_NOT_READY:
 * not yet. Another driver's error (a broken context): the work will never run any more. */
gs_status gs_fence_query(struct gs_fences *fences, struct gs_fence_pool *pool,
                         struct gs_fence *fence);

/* Waits until the fence has passed, by looking again and again: a blocking driver call could not
 * be kept apart from a capture that begins meanwhile. As gs_fence_query; NOT_READY when
 * `deadline_ns` (of CLOCK_MONOTONIC; UINT64_MAX: none) has come.
 * No lock is held by the caller but what protects this fence alone; the event stays in *fence
 * until the caller queries it once more under the pool's lock. */
gs_status gs_fence_wait(struct gs_fences *fences, const struct gs_fence *fence,
                        uint64_t deadline_ns);

#endif
