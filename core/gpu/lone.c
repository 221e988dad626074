/* The lone stream (core/gpu/lone.h). */
#include "core/gpu/lone.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "core/base/cancel.h"
#include "core/base/log.h"

#define PAUSE_FIRST_NS 5000 /* between two looks at the mark; doubled up to */
#define PAUSE_LONGEST_NS 200000
#define UNMARKED_NS 100000000 /* a driver without memory for an event is asked again for so long */

void gs_lone_init(struct gs_lone *lone, struct gs_fences *fences, const struct gs_log *log,
                  gs_lone_pools_fn *pools, void *arg, bool wanted)
{
    memset(lone, 0, sizeof *lone);
    gs_lock_init(&lone->lock, GS_RANK_LONE);
    lone->driver = fences->driver;
    lone->fences = fences;
    lone->log = log;
    lone->pools = pools;
    lone->arg = arg;
    lone->stream = wanted ? GS_LONE_NONE : GS_LONE_SEVERAL;
}

void gs_lone_destroy(struct gs_lone *lone)
{
    gs_lock_destroy(&lone->lock);
}

static uint64_t state(const struct gs_lone *lone)
{
    return __atomic_load_n(&lone->stream, __ATOMIC_RELAXED);
}

static bool is_lone(const struct gs_lone *lone)
{
    return state(lone) != GS_LONE_PENDING && state(lone) != GS_LONE_SEVERAL;
}

static void become_locked(struct gs_lone *lone, uint64_t stream)
{
    __atomic_store_n(&lone->stream, stream, __ATOMIC_SEQ_CST);
}

/* ---- With the lock held ------------------------------------------------------------------ */

/* The flag is set back first: what is freed from then on sets it again. Before that, no launch is
 * in order behind the mark. */
static gs_status mark_locked(struct gs_lone *lone)
{
    gs_status status;

    gs_lock_assert_held(&lone->lock);
    if (lone->leaving)
        return (gs_status)CUDA_ERROR_NOT_READY;
    if (!__atomic_load_n(&lone->unmarked, __ATOMIC_SEQ_CST))
        return GS_OK;
    __atomic_store_n(&lone->marks, lone->marks + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&lone->unmarked, false, __ATOMIC_SEQ_CST);
    status = gs_fence_mark(&lone->events, &lone->mark);
    if (status != GS_OK)
        __atomic_store_n(&lone->unmarked, true, __ATOMIC_RELAXED);
    return status;
}

/* From here on frees retire. One that is under way holds its pool's lock, and has been at once or
 * sees this. */
static void end_locked(struct gs_lone *lone, const char *why)
{
    gs_lock_assert_held(&lone->lock);
    gs_log_line(lone->log, GS_LOG_INFO,
                "frees wait for the GPU from now on: %s; until then all its work went to one "
                "stream",
                why);
    lone->was = state(lone);
    become_locked(lone, GS_LONE_PENDING);
    lone->pools(lone->arg, false);
    mark_locked(lone);
}

/* A mark that cannot be made (no memory for an event, a line without one) leaves what was freed
 * behind whatever is submitted next; so frees retire from here on. Not where the context is about
 * to go: nothing may be asked there, and what was freed goes with it or is marked when it stays. */
static void mark_or_end_locked(struct gs_lone *lone)
{
    if (mark_locked(lone) != GS_OK && !lone->leaving && is_lone(lone))
        end_locked(lone, "no event could be recorded");
}

/* Pending: whether the lone stream has passed the last free. A driver that has no memory for an
 * event may have some later. Other errors are those of a context that is broken: nothing runs there
 * any more. */
static bool is_over_locked(struct gs_lone *lone)
{
    gs_status status = mark_locked(lone);

    if (status == GS_OK)
        status = gs_fence_query(&lone->events, &lone->mark);
    if (status == (gs_status)CUDA_ERROR_NOT_READY || status == GS_CAPTURING ||
        status == GS_NO_HOST_MEMORY || status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    gs_fence_pool_destroy(&lone->events);
    become_locked(lone, GS_LONE_SEVERAL);
    return true;
}

/* The stream comes behind the last free. False: no mark says where that is, or the driver takes no
 * wait for it. Nothing is waited for here: what the GPU does may need a thread that wants the lock.
 */
static bool order_locked(struct gs_lone *lone, CUstream stream)
{
    gs_lock_assert_held(&lone->lock);
    if (lone->leaving || __atomic_load_n(&lone->unmarked, __ATOMIC_RELAXED))
        return false;
    return gs_fence_order(&lone->mark, stream ? stream : CU_STREAM_LEGACY);
}

/* What is about to go for so long will be gone, with all that was freed in it. That call may wait
 * for GPU work, and that for this thread. Pauses count, not the clock: where the process stood
 * still, so did that call. */
static bool is_as_good_as_gone(struct gs_lone *lone, uint64_t waited_ns)
{
    lone->waited_for |= lone->leaving && waited_ns > GS_GOING_NS;
    return lone->waited_for;
}

/* ---- Submitting -------------------------------------------------------------------------- */

void gs_lone_work(struct gs_lone *lone, CUstream stream)
{
    const uint64_t key = gs_stream_key(stream);
    const int saved = errno;
    bool ordered = true;
    uint64_t only;

    gs_lock_take(&lone->lock);
    only = state(lone);
    if (only == GS_LONE_NONE)
        become_locked(lone, only = key);
    if (only == key)
        mark_or_end_locked(lone);
    else if (is_lone(lone))
        end_locked(lone, "work goes to another stream");
    if (state(lone) == GS_LONE_PENDING && !is_over_locked(lone) && key != lone->was)
        ordered = order_locked(lone, stream);
    gs_lock_release(&lone->lock);
    if (!ordered)
        gs_lone_settle(lone, "work goes to another stream");
    errno = saved;
}

bool gs_lone_may_overtake(struct gs_lone *lone, CUstream stream, uint64_t *ret_marks)
{
    if (state(lone) == gs_stream_key(stream) &&
        !__atomic_load_n(&lone->unmarked, __ATOMIC_ACQUIRE) &&
        __atomic_load_n(&lone->in_order, __ATOMIC_ACQUIRE) ==
            __atomic_load_n(&lone->marks, __ATOMIC_RELAXED))
        return true;
    gs_lone_work(lone, stream);
    gs_lock_take(&lone->lock); /* a mark that is being made sees what was freed until it is */
    *ret_marks = lone->marks;
    gs_lock_release(&lone->lock);
    return __atomic_load_n(&lone->stream, __ATOMIC_SEQ_CST) == GS_LONE_SEVERAL;
}

void gs_lone_in_order(struct gs_lone *lone, uint64_t marks)
{
    __atomic_store_n(&lone->in_order, marks, __ATOMIC_RELEASE);
}

void gs_lone_mark(struct gs_lone *lone)
{
    const int saved = errno;

    gs_lock_take(&lone->lock);
    if (state(lone) != GS_LONE_SEVERAL)
        mark_or_end_locked(lone);
    gs_lock_release(&lone->lock);
    if (__atomic_exchange_n(&lone->retires, false, __ATOMIC_RELAXED))
        lone->pools(lone->arg, true);
    errno = saved;
}

bool gs_lone_passes_by(struct gs_lone *lone, CUstream stream)
{
    const uint64_t key = gs_stream_key(stream);
    const int saved = errno;
    bool passes;

    gs_lock_take(&lone->lock);
    passes = state(lone) != key && is_lone(lone);
    if (passes) {
        mark_locked(lone);
        passes = order_locked(lone, stream);
    }
    gs_lock_release(&lone->lock);
    errno = saved;
    return passes;
}

/* There is no event to look at, and may never be one: this thread may be the one that has the memory
 * which the driver lacks. So it waits as the driver's own free would have, once; other threads may
 * submit meanwhile, but what they free retires. */
static bool wait_without_mark(struct gs_lone *lone)
{
    const struct gs_driver *driver = lone->driver;
    CUcontext context, popped;
    bool over;

    gs_lock_take(&lone->lock);
    context = lone->leaving || !__atomic_load_n(&lone->unmarked, __ATOMIC_RELAXED) ? NULL
                                                                               : lone->context;
    gs_lock_release(&lone->lock);
    if (!context || driver->ctx_push_current(context) != CUDA_SUCCESS)
        return false;
    over = driver->ctx_synchronize() == CUDA_SUCCESS;
    driver->ctx_pop_current(&popped);
    gs_lock_take(&lone->lock);
    if (over && state(lone) == GS_LONE_PENDING && lone->context == context) {
        gs_fence_pool_destroy(&lone->events);
        become_locked(lone, GS_LONE_SEVERAL);
    }
    over = state(lone) == GS_LONE_SEVERAL;
    gs_lock_release(&lone->lock);
    return over;
}

/* The GPU ends this, when it has passed what came before the last free; where another thread ends
 * the context meanwhile, that does. */
void gs_lone_settle(struct gs_lone *lone, const char *why)
{
    GS_UNCANCELLED;
    struct timespec pause = {.tv_nsec = PAUSE_FIRST_NS};
    const int saved = errno;
    uint64_t waited = 0;
    bool over;

    if (__atomic_load_n(&lone->stream, __ATOMIC_SEQ_CST) == GS_LONE_SEVERAL)
        return;
    for (;;) {
        gs_lock_take(&lone->lock);
        if (is_lone(lone))
            end_locked(lone, why);
        over = state(lone) == GS_LONE_SEVERAL || is_over_locked(lone) ||
               is_as_good_as_gone(lone, waited);
        gs_lock_release(&lone->lock);
        if (over || (waited > UNMARKED_NS && wait_without_mark(lone)))
            break;
        nanosleep(&pause, NULL);
        waited += (uint64_t)pause.tv_nsec;
        if (pause.tv_nsec < PAUSE_LONGEST_NS)
            pause.tv_nsec *= 2;
    }
    errno = saved;
}

void gs_lone_context(struct gs_lone *lone, CUcontext context)
{
    bool first, known;

    if (__atomic_load_n(&lone->stream, __ATOMIC_SEQ_CST) == GS_LONE_SEVERAL)
        return;
    gs_lock_take(&lone->lock);
    first = !lone->context;
    if (first) {
        lone->context = context;
        gs_fence_pool_init(lone->fences, &lone->events, context, NULL);
    }
    /* A primary one has its handle again when it is reset, maybe before that call is back. */
    known = lone->context == context && !lone->leaving && lone->events.line;
    gs_lock_release(&lone->lock);
    if (!known)
        gs_lone_settle(lone, "there is another context");
}

/* A new stream may get its handle, and waits as any other. */
void gs_lone_stream_gone(struct gs_lone *lone, CUstream stream)
{
    const uint64_t key = gs_stream_key(stream);

    if (__atomic_load_n(&lone->stream, __ATOMIC_SEQ_CST) == GS_LONE_SEVERAL)
        return;
    gs_lock_take(&lone->lock);
    if (state(lone) == key)
        end_locked(lone, "the stream is destroyed");
    if (state(lone) == GS_LONE_PENDING && lone->was == key)
        lone->was = GS_LONE_NONE;
    gs_lock_release(&lone->lock);
}

void gs_lone_context_leaving(struct gs_lone *lone, CUcontext context, bool leaving)
{
    gs_lock_take(&lone->lock);
    if (lone->context == context && state(lone) != GS_LONE_SEVERAL) {
        if (leaving)
            mark_locked(lone);
        lone->leaving = leaving;
        gs_fence_pool_leaving(&lone->events, leaving);
        lone->waited_for = false;
    }
    gs_lock_release(&lone->lock);
}

/* Its work is over, and so there is none. */
void gs_lone_context_gone(struct gs_lone *lone, CUcontext context)
{
    gs_lock_take(&lone->lock);
    if (lone->context == context) {
        gs_fence_pool_forget(&lone->events);
        lone->mark = (struct gs_fence){0};
        __atomic_store_n(&lone->unmarked, false, __ATOMIC_RELAXED);
        lone->leaving = lone->waited_for = false;
        lone->context = NULL;
        if (state(lone) != GS_LONE_SEVERAL)
            become_locked(lone, state(lone) == GS_LONE_PENDING ? GS_LONE_SEVERAL : GS_LONE_NONE);
    }
    gs_lock_release(&lone->lock);
}
