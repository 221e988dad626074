/* Sets of events (core/gpu/told.h): one in each stream of a context that is due. */
#include "core/gpu/line.h"

#include "core/base/cancel.h"

#include <stdlib.h>
#include <time.h>

/* ---- What sets lack ---------------------------------------------------------------------- */

/* Atomic for who looks without the line. */
static void count_lacks(struct gs_fence_line *line)
{
    uint64_t first = 0;

    for (const struct gs_fence_lack *lack = line->lacks; lack; lack = lack->next)
        if (!first || lack->first < first)
            first = lack->first;
    __atomic_store_n(&line->lacking, first, __ATOMIC_RELAXED);
}

/* From this set on the stream is lacking; key 0: for good. */
static gs_status lacks(struct gs_fence_line *line, uint64_t key, uint64_t number)
{
    struct gs_fence_lack *lack = line->lacks;

    while (lack && lack->key != key)
        lack = lack->next;
    if (lack) {
        lack->last = number;
        return GS_OK;
    }
    lack = malloc(sizeof *lack);
    if (!lack)
        return GS_NO_HOST_MEMORY;
    *lack = (struct gs_fence_lack){line->lacks, key, number, number};
    line->lacks = lack;
    count_lacks(line);
    return GS_OK;
}

/* Sets up to this one lack nothing any more. */
static void lacks_no_more(struct gs_fence_line *line, uint64_t number)
{
    struct gs_fence_lack **link = &line->lacks, *lack;

    while ((lack = *link)) {
        if (lack->last > number) {
            lack->first = lack->first > number ? lack->first : number + 1;
            link = &lack->next;
            continue;
        }
        *link = lack->next;
        free(lack);
    }
    count_lacks(line);
}

void gs_told_orphan(struct gs_fence_line *line, uint64_t own)
{
    for (struct gs_fence_lack *lack = line->lacks; lack; lack = lack->next)
        if (lack->key == own)
            lack->key = 0;
}

void gs_told_line_over(struct gs_fence_line *line)
{
    lacks_no_more(line, UINT64_MAX);
    line->legacy = NULL;
    __atomic_store_n(&line->legacy_due, false, __ATOMIC_RELAXED);
    line->covered = line->legacy_covered = 0;
}

/* ---- Recording --------------------------------------------------------------------------- */

static void insert(struct gs_fence_line *line, struct gs_fence_event *event)
{
    struct gs_fence_event **link = &line->oldest;

    if (line->newest && line->newest->number <= event->number)
        link = &line->newest->next;
    while (*link && (*link)->number <= event->number)
        link = &(*link)->next;
    event->next = *link;
    *link = event;
    if (!event->next)
        line->newest = event;
}

/* The line's context is current. */
static gs_status record_in(struct gs_fence_line *line, CUstream stream, uint64_t number,
                           struct gs_fence_event **ret)
{
    struct gs_fence_event *event;
    gs_status status = gs_line_event_take(line, &event);

    if (status != GS_OK)
        return status;
    status = (gs_status)line->fences->driver->event_record(event->event, stream);
    if (status != GS_OK) {
        gs_line_event_give(line, event);
        return status;
    }
    event->number = number;
    insert(line, event);
    *ret = event;
    return GS_OK;
}

static bool is_legacy(const struct gs_fence_line *line, const struct gs_told_stream *stream)
{
    return stream == &line->fences->told.legacy;
}

/* Whether work of the stream may not be behind an event of the line. The lock of `told` is held. */
static bool is_due_locked(const struct gs_fence_line *line, const struct gs_told_stream *stream)
{
    gs_lock_assert_held(&line->fences->told.lock);
    return stream->threads > 0 ||
           stream->told > (is_legacy(line, stream) ? line->legacy_covered : line->covered);
}

/* An event in the stream for the set, or a note that it is lacking. A stream that the driver does
 * not know was destroyed by ways that nobody sees. */
static gs_status mark_locked(struct gs_fence_line *line, struct gs_told_stream *stream,
                             uint64_t number)
{
    struct gs_tellings *told = &line->fences->told;
    struct gs_fence_event *event;
    gs_status status;
    CUstream handle;

    if (!gs_stream_of_key(stream->key, &handle)) {
        status = lacks(line, stream->key, number);
        if (status == GS_OK)
            gs_told_want_locked(told, stream->key);
        return status;
    }
    status = record_in(line, handle, number, &event);
    if (status != (gs_status)CUDA_ERROR_INVALID_HANDLE)
        return status;
    status = lacks(line, 0, number);
    if (status == GS_OK) {
        gs_told_forget_locked(told, stream);
        stream->told = 0;
    }
    return status;
}

/* At most one event in the legacy default stream stands for the next set: the last covers more. */
static gs_status mark_legacy_locked(struct gs_fence_line *line, uint64_t number)
{
    const struct gs_driver *driver = line->fences->driver;
    gs_status status;

    if (line->legacy && line->legacy->number == number)
        status = (gs_status)driver->event_record(line->legacy->event, CU_STREAM_LEGACY);
    else
        status = record_in(line, CU_STREAM_LEGACY, number, &line->legacy);
    if (status == GS_OK) {
        line->legacy_covered = line->fences->told.serial;
        __atomic_store_n(&line->legacy_due, false, __ATOMIC_RELAXED);
    }
    return status;
}

static gs_status mark_all_locked(struct gs_fence_line *line, uint64_t number)
{
    struct gs_tellings *told = &line->fences->told;
    gs_status status = GS_OK;

    for (unsigned i = 0; i < GS_TOLD_BUCKETS; i++)
        for (struct gs_told_stream *stream = told->streams[i]; stream && status == GS_OK;
             stream = stream->next)
            if (stream->context == line->context && is_due_locked(line, stream))
                status = mark_locked(line, stream, number);
    if (status == GS_OK && is_due_locked(line, &told->legacy) &&
        (line->legacy_too || __atomic_load_n(&line->legacy_due, __ATOMIC_RELAXED)))
        status = mark_legacy_locked(line, number);
    return status;
}

/* A set that fails has its number, and events that are in vain; the next has all that is due. */
gs_status gs_told_record(struct gs_fence_line *line, const struct gs_fence_pool *pool)
{
    const struct gs_driver *driver = line->fences->driver;
    struct gs_tellings *told = &line->fences->told;
    CUcontext popped;
    gs_status status;
    uint64_t number;

    if (!line->context)
        return (gs_status)CUDA_ERROR_CONTEXT_IS_DESTROYED;
    status = (gs_status)driver->ctx_push_current(line->context);
    if (status != GS_OK)
        return status;
    number = __atomic_add_fetch(&line->begun, 1, __ATOMIC_SEQ_CST); /* then look who was told */
    gs_lock_take(&told->lock);
    status = mark_all_locked(line, number);
    if (status == GS_OK)
        line->covered = told->serial;
    gs_lock_release(&told->lock);
    driver->ctx_pop_current(&popped);
    if (status != GS_OK)
        return status;
    __atomic_store_n(&line->recorded, number, __ATOMIC_RELAXED);
    __atomic_store_n(&line->recorder, pool, __ATOMIC_RELAXED);
    return GS_OK;
}

void gs_told_serve(struct gs_fence_line *line)
{
    const struct gs_driver *driver = line->fences->driver;
    struct gs_fence_lack **link = &line->lacks, *lack;
    struct gs_fence_event *event;
    CUcontext popped;

    while ((lack = *link) && lack->key != gs_thread_key)
        link = &lack->next;
    if (!lack || !line->context || driver->ctx_push_current(line->context) != CUDA_SUCCESS)
        return;
    if (record_in(line, CU_STREAM_PER_THREAD, lack->first, &event) == GS_OK) {
        *link = lack->next;
        free(lack);
        count_lacks(line);
    }
    driver->ctx_pop_current(&popped);
}

void gs_fence_legacy(struct gs_fence_pool *pool)
{
    struct gs_fence_line *line = pool->line;
    struct gs_tellings *told;
    CUcontext popped;
    gs_status status;

    if (!line || !line->fences->tells)
        return;
    told = &line->fences->told;
    gs_told_rests(line->fences);
    if (!__atomic_load_n(&told->legacy.told, __ATOMIC_RELAXED))
        return;
    status = gs_line_enter_waiting(line);
    if (status == GS_OK) {
        gs_lock_take(&told->lock);
        if (line->context && is_due_locked(line, &told->legacy)) {
            status = (gs_status)line->fences->driver->ctx_push_current(line->context);
            if (status == GS_OK) {
                status = mark_legacy_locked(
                    line, __atomic_load_n(&line->begun, __ATOMIC_RELAXED) + 1);
                line->fences->driver->ctx_pop_current(&popped);
            }
        }
        gs_lock_release(&told->lock);
        gs_line_release(line);
    }
    if (status != GS_OK)
        __atomic_store_n(&line->legacy_due, true, __ATOMIC_RELAXED);
}

/* A thread that ends may have got a new default stream by that name, for the driver has ended its own
 * already. The stream's context is current. */
static bool is_same(const struct gs_driver *driver, const struct gs_told_stream *stream)
{
    unsigned long long id;

    if (stream->key != gs_thread_key)
        return true;
    return stream->id != 0 && driver->stream_get_id(CU_STREAM_PER_THREAD, &id) == CUDA_SUCCESS &&
           id == stream->id;
}

void gs_told_leave(struct gs_fence_line *line, struct gs_told_stream *stream)
{
    struct gs_fences *fences = line->fences;
    const uint64_t number = __atomic_load_n(&line->begun, __ATOMIC_RELAXED) + 1;
    gs_status status = GS_CAPTURING;
    CUcontext popped;

    gs_lock_assert_held(&fences->lock);
    if (fences->captures == 0 && !__atomic_load_n(&line->leaving, __ATOMIC_SEQ_CST))
        status = (gs_status)fences->driver->ctx_push_current(line->context);
    if (status == GS_OK && !is_same(fences->driver, stream)) {
        fences->driver->ctx_pop_current(&popped);
        status = (gs_status)CUDA_ERROR_INVALID_HANDLE;
    }
    gs_lock_take(&fences->told.lock);
    if (status == GS_OK && stream->key == gs_thread_key)
        gs_told_serve(line);
    if (is_due_locked(line, stream)) {
        gs_status marked = status == GS_OK ? mark_locked(line, stream, number) : status;

        if (marked != GS_OK && lacks(line, 0, number) != GS_OK)
            __atomic_store_n(&fences->blind, true, __ATOMIC_SEQ_CST);
    }
    gs_lock_release(&fences->told.lock);
    if (status == GS_OK)
        fences->driver->ctx_pop_current(&popped);
}

/* ---- Looking ----------------------------------------------------------------------------- */

static void count_passed(struct gs_fence_line *line)
{
    uint64_t passed = line->recorded;

    if (line->oldest && line->oldest->number <= passed)
        passed = line->oldest->number - 1;
    if (line->lacking && line->lacking <= passed)
        passed = line->lacking - 1;
    if (passed > line->passed)
        __atomic_store_n(&line->passed, passed, __ATOMIC_RELEASE);
}

static void take_oldest(struct gs_fence_line *line)
{
    struct gs_fence_event *event = line->oldest;

    line->oldest = event->next;
    if (!line->oldest)
        line->newest = NULL;
    if (event == line->legacy)
        line->legacy = NULL;
    gs_line_event_give(line, event);
}

gs_status gs_told_advance(struct gs_fence_line *line, const struct gs_fence *fence)
{
    const bool capturing = gs_fences_capturing(line->fences);
    gs_status status = GS_OK;

    if (line->lacks && !capturing)
        gs_told_serve(line);
    while (line->oldest && line->oldest->number <= fence->number) {
        status = gs_line_event_query(line, line->oldest);
        if (status != GS_OK)
            break;
        take_oldest(line);
    }
    count_passed(line);
    if (status != GS_OK || gs_fence_passed(fence))
        return status;
    return capturing ? GS_CAPTURING : (gs_status)CUDA_ERROR_NOT_READY; /* it lacks something */
}

bool gs_told_order(struct gs_fence_line *line, const struct gs_fence *fence, CUstream stream)
{
    const struct gs_driver *driver = line->fences->driver;

    if (line->recorded < fence->number || (line->lacking && line->lacking <= fence->number))
        return false;
    for (struct gs_fence_event *event = line->oldest; event && event->number <= fence->number;
         event = event->next)
        if (driver->stream_wait_event(stream, event->event, 0) != CUDA_SUCCESS)
            return false;
    return true;
}

/* ---- Waiting as the driver does ---------------------------------------------------------- */

void gs_fence_over(const struct gs_fence *fence)
{
    struct gs_fence_line *line = fence->line;

    if (!line || !line->fences->tells)
        return;
    gs_line_take(line);
    if (line->context) {
        while (line->oldest && line->oldest->number <= fence->number)
            take_oldest(line);
        lacks_no_more(line, fence->number);
        if (line->recorded < fence->number)
            __atomic_store_n(&line->recorded, fence->number, __ATOMIC_RELAXED);
        count_passed(line);
    }
    gs_line_release(line);
}

bool gs_fences_wait_begins(struct gs_fences *fences)
{
    __atomic_add_fetch(&fences->waits, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&fences->captures, __ATOMIC_SEQ_CST) == 0)
        return true;
    gs_fences_wait_ends(fences);
    return false;
}

void gs_fences_wait_ends(struct gs_fences *fences)
{
    __atomic_sub_fetch(&fences->waits, 1, __ATOMIC_SEQ_CST);
}

/* The GPU ends it, for nobody begins another wait; the driver's own begin of a capture would wait for
 * a cuMemFree that waits (core/gpu/driver.h). */
void gs_fences_await_waits(struct gs_fences *fences)
{
    const struct timespec pause = {.tv_nsec = 20000};

    while (__atomic_load_n(&fences->waits, __ATOMIC_SEQ_CST) > 0)
        nanosleep(&pause, NULL);
}

bool gs_told_synchronize(struct gs_fence_line *line)
{
    GS_UNCANCELLED;
    const struct gs_driver *driver = line->fences->driver;
    struct gs_fence before = {.line = line};
    CUcontext context, popped;
    bool over;

    if (!__atomic_load_n(&line->lacking, __ATOMIC_RELAXED) ||
        __atomic_load_n(&line->leaving, __ATOMIC_SEQ_CST))
        return false;
    gs_line_take(line);
    context = line->context;
    before.number = __atomic_load_n(&line->begun, __ATOMIC_SEQ_CST);
    gs_line_release(line);
    over = context && driver->ctx_push_current(context) == CUDA_SUCCESS;
    if (over) {
        over = gs_fences_synchronize(line->fences) == GS_OK;
        driver->ctx_pop_current(&popped);
    }
    if (over)
        gs_fence_over(&before);
    return over;
}

void gs_fence_wait_for_lacking(struct gs_fence_line *line)
{
    gs_told_synchronize(line);
}

#define LACKING_SETS 2 /* so many have begun since the first that lacks something, and it still does */

bool gs_fence_lacks(const struct gs_fence_pool *pool)
{
    uint64_t first = pool->line ? __atomic_load_n(&pool->line->lacking, __ATOMIC_RELAXED) : 0;

    return first && __atomic_load_n(&pool->line->begun, __ATOMIC_RELAXED) >= first + LACKING_SETS &&
           !gs_fences_capturing(pool->line->fences);
}
