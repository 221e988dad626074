/* Single-stream mode (core/gpu/single.h). */
#include "core/gpu/single.h"

#include <errno.h>
#include <string.h>

#include "core/base/cancel.h"
#include "core/base/clock.h"
#include "core/base/log.h"

#define PAUSE_FIRST_NS   5000 /* between two looks at the mark; doubled up to */
#define PAUSE_LONGEST_NS 200000
#define UNMARKED_NS      100000000 /* a driver without memory for an event is asked again so long */

void gs_single_init(struct gs_single *single, struct gs_fences *fences, const struct gs_log *log,
                    gs_single_arenas_fn *arenas, void *arg, bool wanted)
{
    memset(single, 0, sizeof *single);
    gs_lock_init(&single->lock, GS_RANK_SINGLE);
    single->fences = fences;
    single->log = log;
    single->arenas = arenas;
    single->arg = arg;
    single->stream = wanted ? GS_SINGLE_UNUSED : GS_SINGLE_MULTI;
}

void gs_single_destroy(struct gs_single *single)
{
    gs_lock_destroy(&single->lock);
}

static void become_locked(struct gs_single *single, uint64_t stream)
{
    __atomic_store_n(&single->stream, stream, __ATOMIC_SEQ_CST);
}

static bool is_multi(const struct gs_single *single)
{
    return __atomic_load_n(&single->stream, __ATOMIC_SEQ_CST) == GS_SINGLE_MULTI;
}

/* ---- With the lock held ------------------------------------------------------------------ */

/* The flag is set back first: what is freed from then on sets it again. Before that, no launch is
 * in order behind the mark. */
static gs_status mark_locked(struct gs_single *single)
{
    gs_status status;

    gs_lock_assert_held(&single->lock);
    if (single->leaving)
        return (gs_status)CUDA_ERROR_NOT_READY;
    if (!__atomic_load_n(&single->unmarked, __ATOMIC_SEQ_CST))
        return GS_OK;
    __atomic_store_n(&single->marks, single->marks + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&single->unmarked, false, __ATOMIC_SEQ_CST);
    status = gs_fence_mark(&single->events, &single->mark);
    if (status != GS_OK)
        __atomic_store_n(&single->unmarked, true, __ATOMIC_RELAXED);
    return status;
}

/* From here on frees retire. One that is under way holds its arena's lock, and has been at once or
 * sees this. */
static void end_locked(struct gs_single *single, const char *why)
{
    gs_lock_assert_held(&single->lock);
    gs_log_line(single->log, GS_LOG_INFO,
                "what is freed waits for the GPU from now on: %s; until then all its work went to "
                "one stream",
                why);
    single->was = gs_single_state(single);
    become_locked(single, GS_SINGLE_DRAINING);
    single->arenas(single->arg, false);
    mark_locked(single);
}

/* A mark that cannot be made (no memory for an event, a line without one) leaves what was freed
 * behind whatever is submitted next; so frees retire from here on. Not where the context is about
 * to go: nothing may be asked there, and what was freed goes with it or is marked when it stays. */
static void mark_or_end_locked(struct gs_single *single)
{
    if (mark_locked(single) != GS_OK && !single->leaving && gs_single_is(single))
        end_locked(single, "no event could be recorded");
}

/* Draining: whether the single stream has passed the last free. A driver that has no memory for an
 * event may have some later. Other errors are those of a context that is broken: nothing runs there
 * any more. */
static bool is_over_locked(struct gs_single *single)
{
    gs_status status = mark_locked(single);

    if (status == GS_OK)
        status = gs_fence_query(&single->events, &single->mark);
    if (status == (gs_status)CUDA_ERROR_NOT_READY || status == GS_CAPTURING ||
        status == GS_NOT_OFFERED || status == GS_NO_HOST_MEMORY ||
        status == (gs_status)CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    gs_fence_pool_destroy(&single->events);
    become_locked(single, GS_SINGLE_MULTI);
    return true;
}

/* The stream comes behind the last free. False: no mark says where that is, or the driver takes no
 * wait for it. Nothing is waited for here: what the GPU does may need a thread that wants the lock.
 */
static bool order_locked(struct gs_single *single, CUstream stream)
{
    gs_lock_assert_held(&single->lock);
    if (single->leaving || __atomic_load_n(&single->unmarked, __ATOMIC_RELAXED))
        return false;
    return gs_fence_order(&single->mark, stream ? stream : CU_STREAM_LEGACY);
}

/* What is about to go for so long will be gone, with all that was freed in it. That call may wait
 * for GPU work, and that for this thread. Pauses count, not the clock: where the process stood
 * still, so did that call. */
static bool is_as_good_as_gone(struct gs_single *single, uint64_t waited_ns)
{
    single->waited_for |= single->leaving && waited_ns > GS_GOING_NS;
    return single->waited_for;
}

/* ---- Submitting -------------------------------------------------------------------------- */

void gs_single_work(struct gs_single *single, CUstream stream)
{
    const uint64_t key = gs_stream_key(stream);
    const int saved = errno;
    bool ordered = true;
    uint64_t only;

    if (is_multi(single))
        return;
    gs_lock_take(&single->lock);
    only = gs_single_state(single);
    if (only == GS_SINGLE_UNUSED) {
        become_locked(single, only = key);
        gs_fence_pool_follow(&single->events, key);
    }
    if (only == key)
        mark_or_end_locked(single);
    else if (gs_single_is(single))
        end_locked(single, "work goes to another stream");
    if (gs_single_state(single) == GS_SINGLE_DRAINING && !is_over_locked(single) &&
        key != single->was)
        ordered = order_locked(single, stream);
    gs_lock_release(&single->lock);
    if (!ordered)
        gs_single_drain(single, "work goes to another stream");
    errno = saved;
}

bool gs_single_may_overtake(struct gs_single *single, CUstream stream, uint64_t *ret_marks)
{
    if (gs_single_state(single) == gs_stream_key(stream) &&
        !__atomic_load_n(&single->unmarked, __ATOMIC_ACQUIRE) &&
        __atomic_load_n(&single->in_order, __ATOMIC_ACQUIRE) ==
            __atomic_load_n(&single->marks, __ATOMIC_RELAXED))
        return true;
    gs_single_work(single, stream);
    gs_lock_take(&single->lock); /* a mark that is being made sees what was freed until it is */
    *ret_marks = single->marks;
    gs_lock_release(&single->lock);
    return is_multi(single);
}

void gs_single_in_order(struct gs_single *single, uint64_t marks)
{
    __atomic_store_n(&single->in_order, marks, __ATOMIC_RELEASE);
}

void gs_single_mark(struct gs_single *single)
{
    const int saved = errno;

    gs_lock_take(&single->lock);
    if (gs_single_state(single) != GS_SINGLE_MULTI)
        mark_or_end_locked(single);
    gs_lock_release(&single->lock);
    if (__atomic_exchange_n(&single->retires, false, __ATOMIC_RELAXED))
        single->arenas(single->arg, true);
    errno = saved;
}

bool gs_single_passes_by(struct gs_single *single, CUstream stream)
{
    const uint64_t key = gs_stream_key(stream);
    const int saved = errno;
    bool passes;

    gs_lock_take(&single->lock);
    passes = gs_single_state(single) != key && gs_single_is(single);
    if (passes) {
        mark_locked(single);
        passes = order_locked(single, stream);
    }
    gs_lock_release(&single->lock);
    errno = saved;
    return passes;
}

/* There is no event to look at, and may never be one: this thread may be the one that has the
 * memory which the driver lacks. So it waits as the driver's own free would have, once; other
 * threads may submit meanwhile, but what they free retires. */
static bool wait_without_mark(struct gs_single *single)
{
    CUcontext context;
    bool over;

    gs_lock_take(&single->lock);
    context = single->leaving || !__atomic_load_n(&single->unmarked, __ATOMIC_RELAXED)
                  ? NULL
                  : single->context;
    gs_lock_release(&single->lock);
    over = context && gs_fences_synchronize(single->fences, context) == GS_OK;
    gs_lock_take(&single->lock);
    if (over && gs_single_state(single) == GS_SINGLE_DRAINING && single->context == context) {
        gs_fence_pool_destroy(&single->events);
        become_locked(single, GS_SINGLE_MULTI);
    }
    over = gs_single_state(single) == GS_SINGLE_MULTI;
    gs_lock_release(&single->lock);
    return over;
}

/* The GPU ends this, when it has passed what came before the last free; where another thread ends
 * the context meanwhile, that does. */
void gs_single_drain(struct gs_single *single, const char *why)
{
    GS_UNCANCELLED;
    uint64_t pause = PAUSE_FIRST_NS, waited = 0;
    const int saved = errno;
    bool over;

    if (is_multi(single))
        return;
    for (;;) {
        gs_lock_take(&single->lock);
        if (gs_single_is(single))
            end_locked(single, why);
        over = gs_single_state(single) == GS_SINGLE_MULTI || is_over_locked(single) ||
               is_as_good_as_gone(single, waited);
        gs_lock_release(&single->lock);
        if (over || ((waited > UNMARKED_NS || !single->fences->driver->ctx_record_event) &&
                     wait_without_mark(single)))
            break;
        gs_rest_ns(pause);
        waited += pause;
        if (pause < PAUSE_LONGEST_NS)
            pause *= 2;
    }
    errno = saved;
}

void gs_single_context(struct gs_single *single, CUcontext context)
{
    bool first, known;

    if (is_multi(single))
        return;
    gs_lock_take(&single->lock);
    first = !single->context;
    if (first) {
        single->context = context;
        gs_fence_pool_init(single->fences, &single->events, context, NULL);
        gs_fence_pool_follow(&single->events, gs_single_is(single) ? gs_single_state(single) : 0);
    }
    /* A primary one has its handle again when it is reset, maybe before that call is back. */
    known = single->context == context && !single->leaving && single->events.line;
    gs_lock_release(&single->lock);
    if (!known)
        gs_single_drain(single, "there is another context");
}

/* A new stream may get its handle, and waits as any other. */
void gs_single_stream_gone(struct gs_single *single, CUstream stream)
{
    const uint64_t key = gs_stream_key(stream);

    if (is_multi(single))
        return;
    GS_HOLDING(&single->lock);
    if (gs_single_state(single) == key)
        end_locked(single, "the stream is destroyed");
    if (gs_single_state(single) == GS_SINGLE_DRAINING && single->was == key) {
        single->was = GS_SINGLE_UNUSED;
        gs_fence_pool_follow(&single->events, 0);
    }
}

void gs_single_context_leaving(struct gs_single *single, CUcontext context, bool leaving)
{
    GS_HOLDING(&single->lock);

    if (single->context != context || gs_single_state(single) == GS_SINGLE_MULTI)
        return;
    if (leaving)
        mark_locked(single);
    single->leaving = leaving;
    gs_fence_pool_leaving(&single->events, leaving);
    single->waited_for = false;
}

/* Its work is over, and so there is none. */
void gs_single_context_gone(struct gs_single *single, CUcontext context)
{
    GS_HOLDING(&single->lock);

    if (single->context != context)
        return;
    gs_fence_pool_forget(&single->events);
    single->mark = (struct gs_fence){0};
    __atomic_store_n(&single->unmarked, false, __ATOMIC_RELAXED);
    single->leaving = single->waited_for = false;
    single->context = NULL;
    if (gs_single_state(single) != GS_SINGLE_MULTI)
        become_locked(single, gs_single_state(single) == GS_SINGLE_DRAINING ? GS_SINGLE_MULTI
                                                                            : GS_SINGLE_UNUSED);
}
