/*
 * Fences: "all GPU work submitted to this context so far is done", by cuCtxRecordEvent. Drivers
 * before CUDA 12.5 have no such call: there only the line of single-stream mode has fences, by
 * events in that stream; what would need another waits as the driver does.
 *
 * Measured on an H200: the event covers non-blocking, per-thread and destroyed streams, costs 0.16
 * us, and does not wait for later work. While any stream of the context captures a graph it fails
 * and breaks the capture, so captures are counted (process-wide: simple, and captures are short),
 * and no event is recorded between a look at the count and a capture's begin: who records or
 * queries takes the context's line first and then looks, a capture counts itself first and then
 * waits for every line that is taken. What was recorded before is asked for while a capture is open
 * as well, in a mode of the thread in which that breaks none.
 *
 * An event covers all of its context, whoever asked for it. So the events of a context stand in one
 * line, numbered as their recording began, and a fence is a number: it has passed when an event of
 * that number or a later one has. A pool whose neighbour keeps recording needs no event of its own,
 * and nobody waits for the line: who finds it taken looks again later.
 */
#ifndef GS_CORE_GPU_FENCE_H
#define GS_CORE_GPU_FENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/gpu/driver.h"
#include "core/base/latch.h"
#include "core/base/status.h"

struct gs_capture {
    uint64_t stream;          /* its key (gs_stream_key) */
    CUcontext context, owner; /* its stream's; of a green one the primary one too, else the same */
};

struct gs_fences {
    const struct gs_driver *driver;
    struct gs_lock lock; /* rank CAPTURE; protects what is below, held while lines are waited for */
    struct gs_fence_line *lines; /* all there are, in use or spare; never freed before `fences` */
    struct gs_capture *capture;  /* captures that have begun, or are about to, and have not ended */
    unsigned captures;           /* how many; atomic for readers without the lock */
    unsigned room;
    unsigned waits; /* atomic: threads that wait for a context */
};

struct gs_fence_event {
    struct gs_fence_event *next;
    CUevent event;
    uint64_t number;
};

/* One context's events. Numbers go on when the line serves another. */
struct gs_fence_line {
    struct gs_fence_line *next;
    struct gs_fences *fences;
    unsigned users;        /* fence pools; 0: spare. Protected by the lock of `fences` */
    struct gs_latch taken; /* rank LINE; its holder is in calls of the driver that wait for no work.
                              Protects what is below; the numbers and `recorder` are read without */
    bool leaving;          /* atomic: the context may be about to go, the driver is asked nothing */
    const struct gs_fence_pool *recorder; /* who recorded last; NULL: nobody yet */
    uint64_t begun, recorded, passed;     /* the last event of which that is true */
    CUcontext context;                    /* NULL: it is gone, and its events with it */
    bool of_stream;                       /* its events are recorded in a stream of that context */
    uint64_t stream_key;
    struct gs_fence_event *oldest, *newest, *spare;
} __attribute__((aligned(128)));

/* Who uses a context's line; at one address until it is destroyed or forgotten. */
struct gs_fence_pool {
    struct gs_fence_line *line; /* NULL: none, nothing is recorded */
};

/* One point in a context's work. Zeroed: passed. */
struct gs_fence {
    struct gs_fence_line *line;
    uint64_t number;
};

void gs_fences_init(struct gs_fences *fences, const struct gs_driver *driver);
void gs_fences_destroy(struct gs_fences *fences);

/*
 * Whether the driver records context events, found by recording one in the context that is current.
 * One that lacks the call, or has it and answers NOT_SUPPORTED, does not.
 */
bool gs_fences_probe(struct gs_fences *fences, CUcontext context);

/* The key of the calling thread's default stream, or of none as long as nobody has asked for it. */
extern _Thread_local uint64_t gs_thread_key;

/* What tells the streams of a context apart: the handle; for per-thread default streams the thread
 * as well. */
uint64_t gs_stream_key(CUstream stream);
/* One that each context has. */
static inline bool gs_stream_is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}
/* Of a green context's default stream, beside those of its primary one. */
static inline uint64_t gs_stream_key_green(CUcontext green)
{
    return (uint64_t)(uintptr_t)green | (uint64_t)(uintptr_t)CU_STREAM_LEGACY;
}
/* A stream's key in a few instructions: of a per-thread default stream gs_thread_key. */
static inline uint64_t gs_stream_key_known(CUstream stream)
{
    if (stream == CU_STREAM_PER_THREAD)
        return gs_thread_key;
    return (uint64_t)(uintptr_t)(stream ? stream : CU_STREAM_LEGACY);
}

/*
 * A hook of cuStreamBeginCapture* calls begin before the driver's call, and end when that failed or
 * when the capture is over; end does nothing for a stream that does not capture. Neither blocks,
 * but for who waits for a context in between (gs_fences_wait_begins). begin fails with
 * GS_NO_HOST_MEMORY: the capture must not begin then.
 */
gs_status gs_fences_capture_begin(struct gs_fences *fences, uint64_t stream_key, CUcontext context,
                                  CUcontext owner);
/* `context`: the stream's, where its key is the same in each, a default stream's; else NULL. */
void gs_fences_capture_end(struct gs_fences *fences, uint64_t stream_key, CUcontext context);
/* The context was destroyed, a green one too: so were its captures. */
void gs_fences_capture_context_gone(struct gs_fences *fences, CUcontext context);
bool gs_fences_capturing(struct gs_fences *fences);
/* One of the streams that capture, by its key; false: none does. */
bool gs_fences_captured(struct gs_fences *fences, uint64_t *ret_stream_key);
/* Around calls for which the driver breaks a capture of another mode or thread, but where this
 * thread's own mode is RELAXED: it is, meanwhile. False: it cannot be, and nothing has changed. */
bool gs_fences_relax(struct gs_fences *fences, CUstreamCaptureMode *ret_mode);
void gs_fences_restore(struct gs_fences *fences, CUstreamCaptureMode mode);

/* `like`: a pool of the same context whose line it shares; NULL: a line of its own. Without host
 * memory it has none, and recording fails. */
void gs_fence_pool_init(struct gs_fences *fences, struct gs_fence_pool *pool, CUcontext context,
                        const struct gs_fence_pool *like);
/* On a driver without cuCtxRecordEvent: all that is submitted to the context goes to one stream, in
 * which the pool's events are recorded from now on; 0: to no one stream, and none can be. In a
 * thread that has no name for the stream none can be either. */
void gs_fence_pool_follow(struct gs_fence_pool *pool, uint64_t stream_key);
/* Destroys the line's events if it has no other user; the context is alive. */
void gs_fence_pool_destroy(struct gs_fence_pool *pool);
/* The context is gone and its events with it: all fences have passed. Twice is once. */
void gs_fence_pool_forget(struct gs_fence_pool *pool);

#define GS_GOING_NS UINT64_C(1000000000) /* a call that may end a context is waited for so long */

/* The context may be about to go: from the return on no event of its line is recorded or queried,
 * nor by who waits already; or it stays after all. */
void gs_fence_pool_leaving(struct gs_fence_pool *pool, bool leaving);

/*
 * A fence behind all work submitted so far in the pool's context. An event is recorded now if this
 * pool recorded the last one, and otherwise when the fence is looked at and no other pool has
 * recorded one meanwhile. Never waits for the GPU. GS_CAPTURING: a capture is open, try later.
 * GS_NOT_OFFERED: the driver has no cuCtxRecordEvent. GS_NO_HOST_MEMORY. A driver's error: the
 * context is broken or going away. On any failure *ret is untouched.
 */
gs_status gs_fence_record(struct gs_fence_pool *pool, struct gs_fence *ret);

/* A fence with an event that is recorded now, waiting for who has the line; also takes back events
 * that have passed. NOT_READY: the context may be about to go. */
gs_status gs_fence_mark(struct gs_fence_pool *pool, struct gs_fence *ret);

/* The fence of the next event that is recorded, or of one when it is looked at. */
static inline struct gs_fence gs_fence_next(const struct gs_fence_pool *pool)
{
    return (struct gs_fence){pool->line, __atomic_load_n(&pool->line->begun, __ATOMIC_SEQ_CST) + 1};
}

/* Whether an event that covers it has been recorded. */
static inline bool gs_fence_is_recorded(const struct gs_fence *fence)
{
    return !fence->line ||
           fence->number <= __atomic_load_n(&fence->line->recorded, __ATOMIC_RELAXED);
}

/* Whether it is known to have passed. */
static inline bool gs_fence_passed(const struct gs_fence *fence)
{
    return !fence->line || fence->number <= __atomic_load_n(&fence->line->passed, __ATOMIC_ACQUIRE);
}

/* Around a wait for a context. False: a capture is open, which that would break. One that begins
 * meanwhile waits, as it does for a cuMemFree of the driver's. */
bool gs_fences_wait_begins(struct gs_fences *fences);
void gs_fences_wait_ends(struct gs_fences *fences);
/* Waits for all work of a context, as long as the driver's own free does, also while a capture is
 * open. GS_CAPTURING: there was no host memory for that. No lock is held. */
gs_status gs_fences_synchronize(struct gs_fences *fences, CUcontext context);

/* The stream's work from now on waits for a fence. False: it does not, a capture is open or the
 * fence's context may be about to go. */
bool gs_fence_order(const struct gs_fence *fence, CUstream stream);

/* GS_OK: passed, and the fence is zeroed. GS_CAPTURING, or CUDA_ERROR_NOT_READY: not yet. Another
 * error (a broken context): the work will never run any more. */
gs_status gs_fence_query(struct gs_fence_pool *pool, struct gs_fence *fence);

/* Waits until the fence has passed, by looking again and again: a blocking driver call could not
 * be kept apart from a capture that begins meanwhile. As gs_fence_query, but leaves the fence as it
 * is; NOT_READY when `deadline_ns` (of CLOCK_MONOTONIC; UINT64_MAX: none) has come;
 * CONTEXT_IS_DESTROYED when the context has been about to go for a second. No lock that protects
 * more than this fence is held by the caller. */
gs_status gs_fence_wait(const struct gs_fence *fence, uint64_t deadline_ns);

#endif
