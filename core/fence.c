/* Fences (core/fence.h): context events, and the count of open captures that forbids them. */
#include "core/fence.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define YIELDS 100           /* looks without a pause: most waits are short */
#define WAIT_FIRST_NS 5000   /* then between two looks; doubled up to */
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
    free(fences->capture);
    gs_lock_destroy(&fences->lock);
}

/* Handles are pointers, so a number that is 2 modulo 8 is none, and neither is 1. */
uint64_t gs_stream_key(CUstream stream)
{
    static uint64_t threads;
    static _Thread_local uint64_t thread;

    if (stream == CU_STREAM_PER_THREAD) {
        if (!thread)
            thread = __atomic_add_fetch(&threads, 1, __ATOMIC_RELAXED);
        return thread << 3 | 2;
    }
    return (uint64_t)(uintptr_t)(stream ? stream : CU_STREAM_LEGACY);
}

static void set_count(struct gs_fences *fences, unsigned count)
{
    __atomic_store_n(&fences->captures, count, __ATOMIC_SEQ_CST);
}

/* Called with the lock held, after the count was raised: what any pool records from here on has
 * seen it. No driver call that is waited for blocks. */
static void wait_for_busy_pools(struct gs_fences *fences)
{
    for (struct gs_fence_pool *pool = fences->pools; pool; pool = pool->next)
        while (__atomic_load_n(&pool->busy, __ATOMIC_SEQ_CST))
            sched_yield();
}

gs_status gs_fences_capture_begin(struct gs_fences *fences, uint64_t stream_key, CUcontext context)
{
    gs_status status = GS_OK;

    gs_lock_take(&fences->lock);
    if (fences->captures == fences->room) {
        unsigned room = fences->room + 16;
        struct gs_capture *grown = realloc(fences->capture, room * sizeof *grown);

        if (grown) {
            fences->capture = grown;
            fences->room = room;
        } else {
            status = GS_NO_HOST_MEMORY;
        }
    }
    if (status == GS_OK) {
        fences->capture[fences->captures] = (struct gs_capture){stream_key, context};
        set_count(fences, fences->captures + 1);
        wait_for_busy_pools(fences);
    }
    gs_lock_release(&fences->lock);
    return status;
}

/* Called with the lock held. */
static void capture_remove(struct gs_fences *fences, unsigned i)
{
    fences->capture[i] = fences->capture[fences->captures - 1];
    set_count(fences, fences->captures - 1);
}

void gs_fences_capture_end(struct gs_fences *fences, uint64_t stream_key)
{
    gs_lock_take(&fences->lock);
    for (unsigned i = 0; i < fences->captures; i++)
        if (fences->capture[i].stream == stream_key) {
            capture_remove(fences, i);
            break;
        }
    gs_lock_release(&fences->lock);
}

void gs_fences_capture_context_gone(struct gs_fences *fences, CUcontext context)
{
    gs_lock_take(&fences->lock);
    for (unsigned i = fences->captures; i > 0; i--)
        if (fences->capture[i - 1].context == context)
            capture_remove(fences, i - 1);
    gs_lock_release(&fences->lock);
}

bool gs_fences_capturing(struct gs_fences *fences)
{
    return __atomic_load_n(&fences->captures, __ATOMIC_RELAXED) > 0;
}

void gs_fence_pool_init(struct gs_fences *fences, struct gs_fence_pool *pool, CUcontext context)
{
    *pool = (struct gs_fence_pool){.fences = fences, .context = context};
    gs_lock_take(&fences->lock);
    pool->next = fences->pools;
    if (pool->next)
        pool->next->prev = pool;
    fences->pools = pool;
    gs_lock_release(&fences->lock);
}

void gs_fence_pool_destroy(struct gs_fences *fences, struct gs_fence_pool *pool)
{
    for (unsigned i = 0; i < pool->count; i++)
        fences->driver->event_destroy(pool->spare[i]);
    gs_fence_pool_forget(pool);
}

void gs_fence_pool_forget(struct gs_fence_pool *pool)
{
    struct gs_fences *fences = pool->fences;

    if (!fences)
        return;
    gs_lock_take(&fences->lock);
    if (pool->next)
        pool->next->prev = pool->prev;
    if (pool->prev)
        pool->prev->next = pool->next;
    else
        fences->pools = pool->next;
    gs_lock_release(&fences->lock);
    free(pool->spare);
    *pool = (struct gs_fence_pool){.context = pool->context};
}

/* False: a capture is open. True: none begins until the pool is let go. */
static bool keep_captures_out(struct gs_fences *fences, struct gs_fence_pool *pool)
{
    __atomic_store_n(&pool->busy, true, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&fences->captures, __ATOMIC_SEQ_CST) == 0)
        return true;
    __atomic_store_n(&pool->busy, false, __ATOMIC_RELEASE);
    return false;
}

static void let_captures_in(struct gs_fence_pool *pool)
{
    __atomic_store_n(&pool->busy, false, __ATOMIC_RELEASE);
}

/* Room for one more spare event is made before an event is made, so giving it back cannot fail. */
static gs_status event_take(struct gs_fences *fences, struct gs_fence_pool *pool, CUevent *ret)
{
    const struct gs_driver *driver = fences->driver;
    CUcontext popped;
    gs_status status;

    if (pool->count > 0) {
        *ret = pool->spare[--pool->count];
        return GS_OK;
    }
    CUevent *grown = realloc(pool->spare, (pool->room + 1) * sizeof *grown);
    if (!grown)
        return GS_NO_HOST_MEMORY;
    pool->spare = grown;
    status = driver->ctx_push_current(pool->context);
    if (status != GS_OK)
        return status;
    status = driver->event_create(ret, CU_EVENT_DISABLE_TIMING);
    driver->ctx_pop_current(&popped);
    if (status == GS_OK)
        pool->room++;
    return status;
}

static void event_give(struct gs_fence_pool *pool, CUevent event)
{
    pool->spare[pool->count++] = event;
}

gs_status gs_fence_record(struct gs_fences *fences, struct gs_fence_pool *pool,
                          struct gs_fence *ret)
{
    CUevent event;
    gs_status status;

    if (!fences->driver->ctx_record_event)
        return GS_NOT_OFFERED;
    if (!pool->fences)
        return (gs_status)CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (gs_fences_capturing(fences))
        return GS_CAPTURING;
    status = event_take(fences, pool, &event);
    if (status != GS_OK)
        return status;
    status = GS_CAPTURING;
    if (keep_captures_out(fences, pool)) {
        status = (gs_status)fences->driver->ctx_record_event(pool->context, event);
        let_captures_in(pool);
    }
    if (status != GS_OK)
        event_give(pool, event);
    else
        ret->event = event;
    return status;
}

gs_status gs_fence_query(struct gs_fences *fences, struct gs_fence_pool *pool,
                         struct gs_fence *fence)
{
    gs_status status;

    if (!pool->fences) /* the event went with the context */
        fence->event = NULL;
    if (!fence->event)
        return GS_OK;
    if (!keep_captures_out(fences, pool))
        return GS_CAPTURING;
    status = (gs_status)fences->driver->event_query(fence->event);
    let_captures_in(pool);
    if (status == GS_OK) {
        event_give(pool, fence->event);
        fence->event = NULL;
    }
    return status;
}

/* No pool's: captures are kept out by the lock that they begin under. */
static gs_status query(struct gs_fences *fences, CUevent event)
{
    gs_status status;

    gs_lock_take(&fences->lock);
    status = fences->captures > 0 ? GS_CAPTURING : (gs_status)fences->driver->event_query(event);
    gs_lock_release(&fences->lock);
    return status;
}

static bool is_over(uint64_t deadline_ns)
{
    struct timespec now;

    if (deadline_ns == UINT64_MAX)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec >= deadline_ns;
}

gs_status gs_fence_wait(struct gs_fences *fences, const struct gs_fence *fence,
                        uint64_t deadline_ns)
{
    struct timespec pause = {.tv_nsec = WAIT_FIRST_NS};
    unsigned yields = 0;
    gs_status status;

    if (!fence->event)
        return GS_OK;
    while ((status = query(fences, fence->event)) == (gs_status)CUDA_ERROR_NOT_READY &&
           !is_over(deadline_ns)) {
        if (yields++ < YIELDS) {
            sched_yield();
            continue;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < WAIT_LONGEST_NS)
            pause.tv_nsec *= 2;
    }
    return status;
}
