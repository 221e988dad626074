/* Fences (core/gpu/fence.h): lines of context events. */
#include "core/gpu/fence.h"

#include "core/base/cancel.h"
#include "core/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* Looks without a pause: most waits are short, and the system adds some 50 us to each pause. */
#define SPIN_NS         60000
#define WAIT_PART       8 /* of what was waited, then between two looks, up to */
#define WAIT_LONGEST_NS 200000

void gs_fences_init(struct gs_fences *fences, const struct gs_driver *driver)
{
    memset(fences, 0, sizeof *fences);
    fences->driver = driver;
    gs_lock_init(&fences->lock, GS_RANK_CAPTURE);
}

bool gs_fences_probe(struct gs_fences *fences, CUcontext context)
{
    const struct gs_driver *driver = fences->driver;
    CUresult result = CUDA_SUCCESS;
    CUevent event;

    if (!driver->ctx_record_event)
        return false;
    if (driver->event_create(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return true; /* nothing was learnt; a failing driver is met where it matters */
    gs_lock_take(&fences->lock);
    if (fences->captures == 0)
        result = driver->ctx_record_event(context, event);
    gs_lock_release(&fences->lock);
    driver->event_destroy(event);
    return result != CUDA_ERROR_NOT_SUPPORTED;
}

void gs_fences_destroy(struct gs_fences *fences)
{
    struct gs_fence_line *line;
    struct gs_fence_event *event;

    while ((line = fences->lines)) {
        fences->lines = line->next;
        while ((event = line->spare)) {
            line->spare = event->next;
            free(event);
        }
        free(line);
    }
    free(fences->capture);
    gs_lock_destroy(&fences->lock);
}

/* A thread's default stream that a thread never asked the key of. */
#define GS_NO_THREAD 2

/* Handles are pointers, so a number that is 2 modulo 8 (GS_NO_THREAD) is none, and neither is one
 * that is 1 modulo 8. */

_Thread_local uint64_t gs_thread_key = GS_NO_THREAD;

uint64_t gs_stream_key(CUstream stream)
{
    static uint64_t threads;

    if (stream == CU_STREAM_PER_THREAD && gs_thread_key == GS_NO_THREAD)
        gs_thread_key = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED) << 3 | GS_NO_THREAD;
    return gs_stream_key_known(stream);
}

/* By a name that is good in this thread and any context of its device. False: it has none, a
 * default stream of another thread or of a green context. */
static bool stream_of_key(uint64_t key, CUstream *ret)
{
    const bool per_thread = key % 8 == GS_NO_THREAD;
    const bool green = key % 8 == 1 && key != (uint64_t)(uintptr_t)CU_STREAM_LEGACY;

    if (green || (per_thread && key != gs_thread_key))
        return false;
    *ret = per_thread ? CU_STREAM_PER_THREAD : (CUstream)(uintptr_t)key;
    return true;
}

/* ---- Lines ------------------------------------------------------------------------------ */

/* Called with the lock of `fences` held. A spare one, or a new one; NULL without host memory. */
static struct gs_fence_line *line_new_locked(struct gs_fences *fences, CUcontext context)
{
    struct gs_fence_line *line = fences->lines;

    gs_lock_assert_held(&fences->lock);
    while (line && line->users)
        line = line->next;
    if (!line) {
        line = aligned_alloc(_Alignof(struct gs_fence_line), sizeof *line);
        if (!line)
            return NULL;
        *line = (struct gs_fence_line){.next = fences->lines, .fences = fences};
        gs_latch_init(&line->taken, GS_RANK_LINE);
        fences->lines = line;
    }
    gs_latch_take(&line->taken); /* a late waiter may be looking */
    line->context = context;
    line->of_stream = false;
    __atomic_store_n(&line->leaving, false, __ATOMIC_RELAXED);
    __atomic_store_n(&line->recorder, NULL, __ATOMIC_RELAXED);
    gs_latch_release(&line->taken);
    return line;
}

void gs_fence_pool_init(struct gs_fences *fences, struct gs_fence_pool *pool, CUcontext context,
                        const struct gs_fence_pool *like)
{
    GS_HOLDING(&fences->lock);

    pool->line = like ? like->line : line_new_locked(fences, context);
    if (pool->line)
        pool->line->users++;
}

void gs_fence_pool_follow(struct gs_fence_pool *pool, uint64_t stream_key)
{
    struct gs_fence_line *line = pool->line;

    if (!line || line->fences->driver->ctx_record_event)
        return;
    GS_HOLDING_LATCH(&line->taken);
    line->of_stream = stream_key != 0;
    line->stream_key = stream_key;
}

/* The line is taken. All fences have passed, those too that no event was recorded for. */
static void line_over(struct gs_fence_line *line)
{
    uint64_t number;

    line->context = NULL;
    while (line->oldest) {
        struct gs_fence_event *event = line->oldest;

        line->oldest = event->next;
        event->next = line->spare;
        line->spare = event;
    }
    line->newest = NULL;
    for (struct gs_fence_event *event = line->spare; event; event = event->next)
        event->event = NULL;
    number = __atomic_add_fetch(&line->begun, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&line->recorded, number, __ATOMIC_RELAXED);
    __atomic_store_n(&line->passed, number, __ATOMIC_RELEASE);
}

static void events_destroy(const struct gs_driver *driver, const struct gs_fence_event *event)
{
    for (; event; event = event->next)
        if (event->event)
            driver->event_destroy(event->event);
}

/* `gone`: the context is, and its events. */
static void pool_leave(struct gs_fence_pool *pool, bool gone)
{
    struct gs_fence_line *line = pool->line;

    if (!line)
        return;
    GS_HOLDING(&line->fences->lock);
    pool->line = NULL;
    line->users--;
    if (!gone && line->users > 0)
        return;
    GS_HOLDING_LATCH(&line->taken);
    if (!gone) {
        events_destroy(line->fences->driver, line->oldest);
        events_destroy(line->fences->driver, line->spare);
    }
    line_over(line);
}

void gs_fence_pool_destroy(struct gs_fence_pool *pool)
{
    pool_leave(pool, false);
}

void gs_fence_pool_forget(struct gs_fence_pool *pool)
{
    pool_leave(pool, true);
}

/* Waits for the thread that has the line; one that takes it later sees that it is leaving. */
void gs_fence_pool_leaving(struct gs_fence_pool *pool, bool leaving)
{
    struct gs_fence_line *line = pool->line;

    if (!line)
        return;
    __atomic_store_n(&line->leaving, leaving, __ATOMIC_SEQ_CST);
    if (leaving) {
        gs_latch_take(&line->taken);
        gs_latch_release(&line->taken);
    }
}

/* ---- Recording -------------------------------------------------------------------------- */

/* A spare event, or a new one. The line is taken. */
__attribute__((always_inline)) static inline gs_status event_take(struct gs_fence_line *line,
                                                                  struct gs_fence_event **ret)
{
    const struct gs_driver *driver = line->fences->driver;
    struct gs_fence_event *event = line->spare;
    CUcontext popped;
    gs_status status;

    if (!event && !(line->spare = event = calloc(1, sizeof *event)))
        return GS_NO_HOST_MEMORY;
    if (!event->event) {
        status = driver->ctx_push_current(line->context);
        if (status != GS_OK)
            return status;
        status = driver->event_create(&event->event, CU_EVENT_DISABLE_TIMING);
        driver->ctx_pop_current(&popped);
        if (status != GS_OK) {
            event->event = NULL;
            return status;
        }
    }
    line->spare = event->next;
    event->next = NULL;
    *ret = event;
    return GS_OK;
}

__attribute__((always_inline)) static inline void event_give(struct gs_fence_line *line,
                                                             struct gs_fence_event *event)
{
    event->next = line->spare;
    line->spare = event;
}

/* A default stream is the current context's. */
static gs_status record_in_stream(const struct gs_fence_line *line, CUevent event)
{
    const struct gs_driver *driver = line->fences->driver;
    gs_status status;
    CUstream stream;

    if (!stream_of_key(line->stream_key, &stream))
        return GS_NOT_OFFERED;
    GS_ENTER(entered, driver, line->context);
    if (entered.result)
        return entered.result;
    status = (gs_status)driver->event_record(event, stream);
    return status == (gs_status)CUDA_ERROR_INVALID_HANDLE ? GS_NOT_OFFERED : status;
}

/* The line is taken and no capture is open. */
static gs_status record(struct gs_fence_line *line, const struct gs_fence_pool *pool)
{
    const struct gs_driver *driver = line->fences->driver;
    struct gs_fence_event *event;
    gs_status status;

    if (!line->of_stream && !driver->ctx_record_event)
        return GS_NOT_OFFERED;
    if (!line->context)
        return (gs_status)CUDA_ERROR_CONTEXT_IS_DESTROYED;
    status = event_take(line, &event);
    if (status != GS_OK)
        return status;
    event->number = __atomic_add_fetch(&line->begun, 1, __ATOMIC_SEQ_CST);
    status = line->of_stream ? record_in_stream(line, event->event)
                             : (gs_status)driver->ctx_record_event(line->context, event->event);
    if (status != GS_OK) {
        event_give(line, event);
        return status;
    }
    if (line->newest)
        line->newest->next = event;
    else
        line->oldest = event;
    line->newest = event;
    __atomic_store_n(&line->recorded, event->number, __ATOMIC_RELAXED);
    __atomic_store_n(&line->recorder, pool, __ATOMIC_RELAXED);
    return GS_OK;
}

/* With the line taken: a capture that begins, or a context that leaves, is seen here, or waits for
 * the line. */
static inline bool captures(const struct gs_fence_line *line)
{
    return __atomic_load_n(&line->fences->captures, __ATOMIC_SEQ_CST) > 0;
}

/* With the line taken: whether an event may be recorded. NOT_READY: the context may be about to go,
 * and the driver is asked nothing. */
static inline gs_status may_record(const struct gs_fence_line *line)
{
    if (__atomic_load_n(&line->leaving, __ATOMIC_SEQ_CST))
        return (gs_status)CUDA_ERROR_NOT_READY;
    return captures(line) ? GS_CAPTURING : GS_OK;
}

/* The line is taken where an event may be recorded. NOT_READY too where another thread has it. */
__attribute__((always_inline)) static inline gs_status line_enter(struct gs_fence_line *line)
{
    gs_status status;

    if (!gs_latch_try(&line->taken))
        return (gs_status)CUDA_ERROR_NOT_READY;
    status = may_record(line);
    if (status != GS_OK)
        gs_latch_release(&line->taken);
    return status;
}

gs_status gs_fence_record(struct gs_fence_pool *pool, struct gs_fence *ret)
{
    struct gs_fence_line *line = pool->line;
    const struct gs_fence_pool *recorder;
    gs_status status;
    uint64_t number;

    if (!line)
        return GS_NO_HOST_MEMORY;
    if (gs_fences_capturing(line->fences))
        return GS_CAPTURING;
    /* Whoever counts up after this sees, by reading what is written here, all that this thread has
     * submitted. */
    number = __atomic_add_fetch(&line->begun, 0, __ATOMIC_SEQ_CST) + 1;
    recorder = __atomic_load_n(&line->recorder, __ATOMIC_RELAXED);
    if (!recorder || recorder == pool) {
        status = line_enter(line);
        if (status == GS_OK) {
            status = record(line, pool);
            gs_latch_release(&line->taken);
        }
        if (status != GS_OK && status != (gs_status)CUDA_ERROR_NOT_READY)
            return status;
    }
    *ret = (struct gs_fence){line, number};
    return GS_OK;
}

/* ---- Looking ---------------------------------------------------------------------------- */

bool gs_fences_relax(struct gs_fences *fences, CUstreamCaptureMode *ret_mode)
{
    *ret_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return fences->driver->exchange_capture_mode &&
           fences->driver->exchange_capture_mode(ret_mode) == CUDA_SUCCESS;
}

void gs_fences_restore(struct gs_fences *fences, CUstreamCaptureMode mode)
{
    fences->driver->exchange_capture_mode(&mode);
}

static gs_status event_query(struct gs_fence_line *line, const struct gs_fence_event *event)
{
    CUstreamCaptureMode mode;
    gs_status status;

    if (__builtin_expect(!captures(line), 1)) {
        status = (gs_status)line->fences->driver->event_query(event->event);
        if (__builtin_expect(status != (gs_status)CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 1))
            return status;
    } /* or one that outlives its context, as a green one's does (measured on an H100) */
    if (!gs_fences_relax(line->fences, &mode))
        return GS_CAPTURING;
    status = (gs_status)line->fences->driver->event_query(event->event);
    gs_fences_restore(line->fences, mode);
    return status;
}

/* The line is taken: takes the oldest events out while they have passed, up to the fence's. */
static gs_status advance(struct gs_fence_line *line, const struct gs_fence *fence)
{
    gs_status status = GS_OK;

    while (line->oldest && !gs_fence_passed(fence)) {
        struct gs_fence_event *event = line->oldest;

        status = event_query(line, event);
        if (status != GS_OK)
            return status;
        line->oldest = event->next;
        if (!line->oldest)
            line->newest = NULL;
        __atomic_store_n(&line->passed, event->number, __ATOMIC_RELEASE);
        event_give(line, event);
    }
    return status;
}

/* While a capture is open no event is recorded, but those that are can be asked for. */
static gs_status look(const struct gs_fence *fence, const struct gs_fence_pool *pool)
{
    struct gs_fence_line *line = fence->line;
    gs_status status;

    if (gs_fence_passed(fence))
        return GS_OK;
    if (!gs_latch_try(&line->taken))
        return (gs_status)CUDA_ERROR_NOT_READY;
    status = may_record(line);
    if (line->recorded >= fence->number || gs_fence_passed(fence))
        status = status == GS_CAPTURING ? GS_OK : status;
    else if (status == GS_OK)
        status = record(line, pool);
    if (status == GS_OK)
        status = advance(line, fence);
    gs_latch_release(&line->taken);
    return status;
}

gs_status gs_fence_query(struct gs_fence_pool *pool, struct gs_fence *fence)
{
    gs_status status = look(fence, pool);

    if (status == GS_OK)
        *fence = (struct gs_fence){0};
    return status;
}

gs_status gs_fence_mark(struct gs_fence_pool *pool, struct gs_fence *ret)
{
    struct gs_fence_line *line = pool->line;
    gs_status status;

    if (!line)
        return GS_NO_HOST_MEMORY;
    GS_HOLDING_LATCH(&line->taken);
    status = may_record(line);
    if (status != GS_OK)
        return status;
    advance(line, &(struct gs_fence){line, line->recorded});
    status = record(line, pool);
    if (status == GS_OK)
        *ret = (struct gs_fence){line, line->recorded};
    return status;
}

bool gs_fence_order(const struct gs_fence *fence, CUstream stream)
{
    struct gs_fence_line *line = fence->line;
    const struct gs_fence_event *event;

    if (gs_fence_passed(fence))
        return true;
    GS_HOLDING_LATCH(&line->taken);
    if (may_record(line) != GS_OK)
        return false;
    if (line->recorded < fence->number)
        record(line, NULL);
    advance(line, fence);
    event = line->oldest;
    while (event && event->number < fence->number)
        event = event->next;
    return gs_fence_passed(fence) ||
           (event &&
            line->fences->driver->stream_wait_event(stream, event->event, 0) == CUDA_SUCCESS);
}

static bool is_over(uint64_t deadline_ns)
{
    return deadline_ns != UINT64_MAX && gs_now_ns() >= deadline_ns;
}

/* The GPU ends this, or another thread that ends the context; the caller says for how long. */
gs_status gs_fence_wait(const struct gs_fence *fence, uint64_t deadline_ns)
{
    GS_UNCANCELLED;
    const uint64_t began_ns = gs_now_ns();
    uint64_t leaving_ns = 0, waited_ns, pause_ns;
    gs_status status;

    while ((status = look(fence, NULL)) == (gs_status)CUDA_ERROR_NOT_READY &&
           !is_over(deadline_ns)) {
        waited_ns = gs_now_ns() - began_ns;
        if (waited_ns < SPIN_NS) {
            gs_yield();
            continue;
        }
        pause_ns = waited_ns / WAIT_PART;
        if (pause_ns > WAIT_LONGEST_NS)
            pause_ns = WAIT_LONGEST_NS;
        /* The call that ends it may wait for GPU work, and that for this thread. */
        if (__atomic_load_n(&fence->line->leaving, __ATOMIC_RELAXED) &&
            (leaving_ns += pause_ns) > GS_GOING_NS)
            return (gs_status)CUDA_ERROR_CONTEXT_IS_DESTROYED;
        gs_rest_ns(pause_ns);
    }
    return status;
}
