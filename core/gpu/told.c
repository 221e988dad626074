/* Streams that were told of work, and the threads that told them (core/gpu/told.h). */
#include "core/gpu/told.h"

#include "core/base/cancel.h"
#include "core/gpu/line.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static struct gs_told_thread nobody;
_Thread_local struct gs_told_thread *gs_told_here = &nobody;

/* Held while a thread ends, and while fences do: each may be the other's last. No driver call that
 * blocks is made meanwhile, and no lock of core's held before. */
static pthread_mutex_t ends = PTHREAD_MUTEX_INITIALIZER;

/* It ends a thread before those of pthread_key_create do, one of which may be the driver's. */
extern int __cxa_thread_atexit_impl(void (*function)(void *), void *arg, void *dso)
    __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

/* ---- Streams ----------------------------------------------------------------------------- */

static bool is_per_thread(uint64_t key)
{
    return key % 8 == GS_NO_THREAD;
}

static struct gs_told_stream **bucket(struct gs_tellings *told, uint64_t key)
{
    return &told->streams[(key >> 4 ^ key >> 12 ^ key << 1) % GS_TOLD_BUCKETS];
}

/* The context says which one of a per-thread default stream's. */
static struct gs_told_stream *find_locked(struct gs_tellings *told, uint64_t key, CUcontext context)
{
    struct gs_told_stream *stream = *bucket(told, key);

    gs_lock_assert_held(&told->lock);
    if (key == (uint64_t)(uintptr_t)CU_STREAM_LEGACY)
        return &told->legacy;
    while (stream &&
           (stream->key != key || (is_per_thread(key) && stream->context != context)))
        stream = stream->next;
    return stream;
}

static void remove_locked(struct gs_tellings *told, struct gs_told_stream *stream)
{
    struct gs_told_stream **link = bucket(told, stream->key);

    gs_told_forget_locked(told, stream);
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    free(stream);
}

/* ---- Threads ----------------------------------------------------------------------------- */

static void set_key(struct gs_told_thread *thread, uint64_t key)
{
    __atomic_store_n(&thread->key, key, __ATOMIC_RELAXED);
}

static void drop_last_locked(struct gs_told_thread *thread)
{
    set_key(thread, 0);
    thread->last->threads--;
    thread->last = NULL;
}

/* What the thread told of last has been submitted. */
static void leave_last_locked(struct gs_tellings *told, struct gs_told_thread *thread)
{
    gs_lock_assert_held(&told->lock);
    set_key(thread, 0);
    if (!thread->last)
        return;
    __atomic_store_n(&thread->last->told, ++told->serial, __ATOMIC_RELAXED);
    drop_last_locked(thread);
}

void gs_told_forget_locked(struct gs_tellings *told, struct gs_told_stream *stream)
{
    gs_lock_assert_held(&told->lock);
    for (struct gs_told_thread *thread = told->threads; thread; thread = thread->next)
        if (thread->last == stream)
            leave_last_locked(told, thread);
}

void gs_told_want_locked(struct gs_tellings *told, uint64_t own)
{
    gs_lock_assert_held(&told->lock);
    for (struct gs_told_thread *thread = told->threads; thread; thread = thread->next)
        if (thread->own == own) {
            __atomic_store_n(&thread->wanted, true, __ATOMIC_RELAXED);
            set_key(thread, 0);
        }
}

static void unlink_locked(struct gs_tellings *told, struct gs_told_thread *thread)
{
    struct gs_told_thread **link = &told->threads;

    leave_last_locked(told, thread);
    while (*link != thread)
        link = &(*link)->next;
    *link = thread->next;
}

/* The line's context is alive, or it has none. The lock of `fences` is held. */
static bool may_record(const struct gs_fences *fences, const struct gs_fence_line *line)
{
    return fences->captures == 0 && !__atomic_load_n(&line->leaving, __ATOMIC_SEQ_CST);
}

/* What sets lack of this thread. Where that cannot be recorded now it is when the thread comes by
 * again. */
static void serve(struct gs_fences *fences, struct gs_told_thread *here)
{
    __atomic_store_n(&here->wanted, false, __ATOMIC_RELAXED);
    gs_lock_take(&fences->lock);
    for (struct gs_fence_line *line = fences->lines; line; line = line->next) {
        if (!gs_line_tells(line))
            continue;
        gs_line_take(line);
        if (line->lacks && may_record(fences, line))
            gs_told_serve(line);
        for (const struct gs_fence_lack *lack = line->lacks; lack; lack = lack->next)
            if (lack->key == gs_thread_key)
                __atomic_store_n(&here->wanted, true, __ATOMIC_RELAXED);
        gs_line_release(line);
    }
    gs_lock_release(&fences->lock);
}

/* A stream goes whose handle, or thread, will be nobody's. The lock of `fences` is held. */
static void leave_stream_locked(struct gs_fences *fences, struct gs_told_stream *stream)
{
    gs_lock_assert_held(&fences->lock);
    for (struct gs_fence_line *line = fences->lines; line; line = line->next) {
        if (!gs_line_tells(line))
            continue;
        gs_line_take(line);
        if (line->context && line->context == stream->context)
            gs_told_leave(line, stream);
        gs_line_release(line);
    }
    gs_lock_take(&fences->told.lock);
    remove_locked(&fences->told, stream);
    gs_lock_release(&fences->told.lock);
}

/* Its default streams have their events now. What of that fails is lacking for good. */
static void leave_own(struct gs_fences *fences, const struct gs_told_thread *here)
{
    struct gs_tellings *told = &fences->told;
    struct gs_told_stream *stream;

    gs_lock_take(&fences->lock);
    do {
        gs_lock_take(&told->lock);
        stream = *bucket(told, here->own);
        while (stream && stream->key != here->own)
            stream = stream->next;
        gs_lock_release(&told->lock);
        if (stream)
            leave_stream_locked(fences, stream);
    } while (stream);
    for (struct gs_fence_line *line = fences->lines; line; line = line->next) {
        if (!gs_line_tells(line))
            continue;
        gs_line_take(line);
        gs_told_orphan(line, here->own);
        gs_line_release(line);
    }
    gs_lock_release(&fences->lock);
}

/* The thread ends, or begins to tell other fences. */
static void leave(struct gs_told_thread *here)
{
    struct gs_fences *fences = here->fences;

    if (!fences || here->process != getpid()) /* a forked child asks the driver nothing */
        return;
    if (is_per_thread(here->own) && here->own != GS_NO_THREAD)
        leave_own(fences, here);
    gs_lock_take(&fences->told.lock);
    unlink_locked(&fences->told, here);
    gs_lock_release(&fences->told.lock);
    here->fences = NULL;
}

static void thread_ends(void *arg)
{
    GS_UNCANCELLED;
    const int saved = errno;

    gs_told_here = &nobody;
    pthread_mutex_lock(&ends);
    leave(arg);
    pthread_mutex_unlock(&ends);
    free(arg);
    errno = saved;
}

/* This thread's, of these fences. NULL: no host memory, or a libc that says nothing of its end. */
static struct gs_told_thread *here_of(struct gs_fences *fences)
{
    struct gs_told_thread *here = gs_told_here;

    if (here->fences == fences)
        return here;
    if (here == &nobody) {
        here = __cxa_thread_atexit_impl ? calloc(1, sizeof *here) : NULL;
        if (!here)
            return NULL;
        if (__cxa_thread_atexit_impl(thread_ends, here, &__dso_handle) != 0) {
            free(here);
            return NULL;
        }
        here->process = getpid();
        gs_told_here = here;
    } else {
        pthread_mutex_lock(&ends);
        leave(here);
        pthread_mutex_unlock(&ends);
    }
    here->own = gs_thread_key;
    gs_lock_take(&fences->told.lock);
    here->next = fences->told.threads;
    fences->told.threads = here;
    here->fences = fences;
    gs_lock_release(&fences->told.lock);
    return here;
}

/* ---- Telling ----------------------------------------------------------------------------- */

static bool is_blind(struct gs_fences *fences)
{
    __atomic_store_n(&fences->blind, true, __ATOMIC_SEQ_CST);
    return false;
}

static struct gs_told_stream *add_locked(struct gs_tellings *told, uint64_t key, CUcontext context,
                                         unsigned long long id)
{
    struct gs_told_stream *stream = find_locked(told, key, context); /* another thread's, meanwhile */

    if (!stream && (stream = calloc(1, sizeof *stream))) {
        stream->key = key;
        stream->context = context;
        stream->id = id;
        stream->next = *bucket(told, key);
        *bucket(told, key) = stream;
    }
    return stream;
}

static void tell_locked(struct gs_tellings *told, struct gs_told_thread *here,
                        struct gs_told_stream *stream)
{
    if (here->last != stream) {
        leave_last_locked(told, here);
        here->last = stream;
        stream->threads++;
    }
    __atomic_store_n(&stream->told, ++told->serial, __ATOMIC_RELAXED);
    if (__atomic_load_n(&here->wanted, __ATOMIC_RELAXED) ||
        (told->several && is_per_thread(stream->key)))
        set_key(here, 0);
    else
        set_key(here, stream->key);
}

bool gs_told_work(struct gs_fences *fences, CUstream stream)
{
    const struct gs_driver *driver = fences->driver;
    const uint64_t key = gs_stream_key(stream);
    struct gs_tellings *told = &fences->told;
    struct gs_told_thread *here = here_of(fences);
    struct gs_told_stream *known;
    unsigned long long id = 0;
    CUcontext context = NULL;

    if (!here)
        return is_blind(fences);
    if (__atomic_load_n(&here->wanted, __ATOMIC_RELAXED))
        serve(fences, here);
    if (is_per_thread(key) && (driver->ctx_get_current(&context) != CUDA_SUCCESS || !context))
        return true; /* the driver refuses it */
    gs_lock_take(&told->lock);
    here->own = gs_thread_key;
    known = find_locked(told, key, context);
    if (!known) {
        gs_lock_release(&told->lock);
        if (driver->stream_get_ctx(stream, &context) != CUDA_SUCCESS || !context)
            return true; /* the driver refuses work for it as well */
        if (is_per_thread(key) && driver->stream_get_id &&
            driver->stream_get_id(CU_STREAM_PER_THREAD, &id) != CUDA_SUCCESS)
            id = 0;
        gs_lock_take(&told->lock);
        known = add_locked(told, key, context, id);
    }
    if (known)
        tell_locked(told, here, known);
    gs_lock_release(&told->lock);
    return known || is_blind(fences);
}

/* The thread's default stream has all its events now, and is not due any more. False: not so. */
static bool mark_own(struct gs_fences *fences, struct gs_told_stream *own)
{
    bool marked = true;

    gs_lock_take(&fences->lock);
    for (struct gs_fence_line *line = fences->lines; line; line = line->next) {
        if (!gs_line_tells(line))
            continue;
        gs_line_take(line);
        if (line->context == own->context) {
            marked &= may_record(fences, line);
            if (marked)
                gs_told_leave(line, own);
        }
        gs_line_release(line);
    }
    gs_lock_release(&fences->lock);
    return marked;
}

void gs_told_rests(struct gs_fences *fences)
{
    struct gs_told_thread *here = gs_told_here;
    const bool wanted = __atomic_load_n(&here->wanted, __ATOMIC_RELAXED);
    struct gs_told_stream *last = here->last;
    bool marked;

    if (here->fences != fences)
        return;
    if (wanted)
        serve(fences, here);
    if (!last || (last != &fences->told.legacy && !is_per_thread(last->key)))
        return;
    marked = wanted && last != &fences->told.legacy && mark_own(fences, last);
    gs_lock_take(&fences->told.lock);
    if (marked && here->last)
        drop_last_locked(here);
    else
        leave_last_locked(&fences->told, here);
    gs_lock_release(&fences->told.lock);
}

void gs_told_stream_gone(struct gs_fences *fences, CUstream stream)
{
    struct gs_told_stream *known;

    if (!fences->tells)
        return;
    gs_lock_take(&fences->lock);
    gs_lock_take(&fences->told.lock);
    known = find_locked(&fences->told, gs_stream_key(stream), NULL);
    gs_lock_release(&fences->told.lock);
    if (known && known != &fences->told.legacy)
        leave_stream_locked(fences, known);
    gs_lock_release(&fences->lock);
}

/* ---- Contexts ---------------------------------------------------------------------------- */

void gs_told_init(struct gs_fences *fences)
{
    gs_lock_init(&fences->told.lock, GS_RANK_TOLD);
    fences->told.legacy.key = (uint64_t)(uintptr_t)CU_STREAM_LEGACY;
}

void gs_told_destroy(struct gs_fences *fences)
{
    struct gs_tellings *told = &fences->told;
    struct gs_told_stream *stream;

    pthread_mutex_lock(&ends);
    for (struct gs_told_thread *thread = told->threads; thread; thread = thread->next) {
        set_key(thread, 0);
        thread->fences = NULL;
        thread->last = NULL;
    }
    told->threads = NULL;
    pthread_mutex_unlock(&ends);
    for (unsigned i = 0; i < GS_TOLD_BUCKETS; i++)
        while ((stream = told->streams[i])) {
            told->streams[i] = stream->next;
            free(stream);
        }
    gs_lock_destroy(&told->lock);
}

void gs_told_context_locked(struct gs_fences *fences, CUcontext context)
{
    struct gs_tellings *told = &fences->told;

    gs_lock_take(&told->lock);
    if (!told->context)
        told->context = context;
    if (told->context != context && !told->several) {
        told->several = true;
        for (struct gs_told_thread *thread = told->threads; thread; thread = thread->next)
            set_key(thread, 0);
    }
    gs_lock_release(&told->lock);
}

void gs_told_context_gone_locked(struct gs_fences *fences, CUcontext context)
{
    struct gs_tellings *told = &fences->told;
    struct gs_told_stream *stream, *next;

    gs_lock_take(&told->lock);
    for (unsigned i = 0; i < GS_TOLD_BUCKETS; i++)
        for (stream = told->streams[i]; stream; stream = next) {
            next = stream->next;
            if (stream->context == context)
                remove_locked(told, stream);
        }
    gs_lock_release(&told->lock);
}
