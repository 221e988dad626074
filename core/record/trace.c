/* Recording: the threads' buffers (core/record/trace.h). */
#include "core/record/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/base/cancel.h"
#include "core/base/clock.h"
#include "core/base/latch.h"
#include "core/record/trace_file.h"

#define OLD_NS GS_NS_PER_S /* what is in a buffer for so long is written with the next event */
#define BEGIN  ((uint32_t)sizeof(struct gs_trace_block)) /* where events begin */

#define LOAD(field)         __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)

/* One block as it fills. A record is never given back: who looks at all of them takes no lock. */
struct buffer {
    struct buffer *next;  /* of all there are */
    struct gs_latch lock; /* rank TRACE; protects all that follows */
    pid_t owner;          /* atomic: the thread whose it is; 0: nobody's */
    volatile bool inside; /* the owner's alone: it is in here, whatever a signal handler calls */
    uint32_t number;      /* atomic: of the block that it fills; 0 is none's */
    uint32_t used;        /* atomic: bytes, with the block's own struct */
    uint64_t first_ns;    /* when the first event was put there */
    uint64_t waited_ns;   /* what the block says */
    _Alignas(8) unsigned char bytes[GS_TRACE_BUFFER];
};

bool gs_trace_on;
_Thread_local unsigned char gs_trace_outcome;

static _Thread_local struct buffer *mine;
static struct buffer *buffers; /* atomic: all of them, the newest first */

static struct {
    uint64_t began_ns; /* the header's moment */
    bool frames;
    bool exiting;       /* atomic: what is recorded is written at once */
    bool later;         /* atomic: the file is made at the first event */
    bool every_process; /* its name has %p */
    const struct gs_log *log;
    char path[4096];
} trace;

static struct gs_latch opening = {0, GS_RANK_TRACE}; /* of a child's file, by its first thread */

static pthread_key_t thread_end;
static bool thread_end_known;

/* ---- Buffers -------------------------------------------------------------------------------- */

/* To the file. The buffer is the caller's by its lock, or by there being no other thread. */
static void write_locked(struct buffer *buffer, bool exiting)
{
    uint32_t used = LOAD(buffer->used);
    struct gs_trace_block *block = (struct gs_trace_block *)buffer->bytes;
    uint64_t began = gs_now_ns();

    if (used == BEGIN)
        return;
    *block = (struct gs_trace_block){.magic = GS_TRACE_BLOCK_MAGIC,
                                     .size = used,
                                     .kind = GS_TRACE_EVENTS,
                                     .thread = (uint32_t)LOAD(buffer->owner),
                                     .waited_ns = buffer->waited_ns};
    GS_UNCANCELLED;
    if (trace.frames)
        gs_trace_modules_put(exiting);
    if (!gs_trace_file_put(block, exiting))
        STORE(gs_trace_on, false);
    STORE(buffer->used, BEGIN);
    __atomic_store_n(&buffer->number, buffer->number + 1 ? buffer->number + 1 : 1,
                     __ATOMIC_RELEASE);
    buffer->waited_ns = gs_now_ns() - began;
}

/* The thread ends. */
static void leave(void *arg)
{
    struct buffer *buffer = arg;

    if (LOAD(buffer->owner) != (pid_t)syscall(SYS_gettid)) /* the parent's, in a forked child */
        return;
    gs_latch_take(&buffer->lock);
    write_locked(buffer, false);
    buffer->waited_ns = 0;
    gs_latch_release(&buffer->lock);
    mine = NULL;
    __atomic_store_n(&buffer->owner, 0, __ATOMIC_RELEASE);
}

static void make_thread_end(void)
{
    thread_end_known = pthread_key_create(&thread_end, leave) == 0;
}

static struct buffer *left_by_another(pid_t thread)
{
    struct buffer *buffer = __atomic_load_n(&buffers, __ATOMIC_ACQUIRE);
    pid_t nobody = 0;

    while (buffer && !__atomic_compare_exchange_n(&buffer->owner, &nobody, thread, false,
                                                  __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        buffer = buffer->next;
        nobody = 0;
    }
    return buffer;
}

static struct buffer *make_buffer(pid_t thread)
{
    struct buffer *buffer =
        mmap(NULL, sizeof *buffer, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (buffer == MAP_FAILED)
        return NULL;
    gs_latch_init(&buffer->lock, GS_RANK_TRACE);
    buffer->owner = thread;
    buffer->number = 1;
    buffer->used = BEGIN;
    buffer->next = LOAD(buffers);
    while (!__atomic_compare_exchange_n(&buffers, &buffer->next, buffer, false, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED))
        ;
    return buffer;
}

static void open_now(void);

/* The calling thread's; NULL without host memory, of which recording ends. */
__attribute__((noinline)) static struct buffer *get_buffer(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pid_t thread = (pid_t)syscall(SYS_gettid);

    if (LOAD(trace.later))
        open_now();
    if (!gs_tracing())
        return NULL;
    pthread_once(&once, make_thread_end);
    mine = left_by_another(thread);
    if (!mine)
        mine = make_buffer(thread);
    if (mine && thread_end_known)
        pthread_setspecific(thread_end, mine);
    if (!mine) {
        STORE(gs_trace_on, false);
        gs_log_line(trace.log, GS_LOG_WARNING, "the recording ends: no host memory");
    }
    return mine;
}

/* ---- Events --------------------------------------------------------------------------------- */

struct gs_trace_mark gs_trace_begin(void)
{
    const struct buffer *buffer = mine;
    struct gs_trace_mark mark = {.at = BEGIN};

    /* In that order: with another thread's write in between, the number is of no block to come. */
    if (buffer) {
        mark.block = __atomic_load_n(&buffer->number, __ATOMIC_ACQUIRE);
        mark.at = LOAD(buffer->used);
    }
    mark.began_ns = gs_now_ns();
    return mark;
}

/* Before what was recorded since the mark: a call's pieces, say. */
static void insert_locked(struct buffer *buffer, const struct gs_trace_mark *mark,
                          const struct gs_trace_event *event, const uint64_t *frames)
{
    uint32_t size = (uint32_t)(sizeof *event + event->frames * sizeof *frames);
    uint32_t used = buffer->used, at = mark->block == buffer->number ? mark->at : BEGIN;
    unsigned char *place = buffer->bytes + at;

    if (at < used)
        memmove(place + size, place, used - at);
    memcpy(place, event, sizeof *event);
    if (event->frames)
        memcpy(place + sizeof *event, frames, event->frames * sizeof *frames);
    if (used == BEGIN)
        buffer->first_ns = mark->began_ns;
    STORE(buffer->used, used + size);
}

void gs_trace_put(const struct gs_trace_mark *mark, struct gs_trace_event *event,
                  const uint64_t *frames)
{
    const uint64_t now = gs_now_ns();
    struct buffer *buffer = mine ? mine : get_buffer();
    size_t size = sizeof *event + event->frames * sizeof *frames;
    uint64_t began, took;

    if (!buffer || buffer->inside)
        return;
    began = mark->began_ns > trace.began_ns ? mark->began_ns : trace.began_ns;
    took = now > began ? now - began : 0; /* a child's first call began before its file */
    event->time_ns = began - trace.began_ns;
    if (!event->took_ns)
        event->took_ns = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    buffer->inside = true;
    gs_latch_take(&buffer->lock);
    if (buffer->used + size > GS_TRACE_BUFFER)
        write_locked(buffer, false);
    insert_locked(buffer, mark, event, frames);
    if (now - buffer->first_ns >= OLD_NS || LOAD(trace.exiting))
        write_locked(buffer, false);
    gs_latch_release(&buffer->lock);
    buffer->inside = false;
}

void gs_trace_put_now(const struct gs_trace_block *block)
{
    if (LOAD(trace.later))
        open_now();
    if (gs_tracing() && !gs_trace_file_put(block, false))
        STORE(gs_trace_on, false);
}

void gs_trace_device(const struct gs_trace_device *device)
{
    struct {
        struct gs_trace_block block;
        struct gs_trace_device device;
    } all = {.block = {.magic = GS_TRACE_BLOCK_MAGIC,
                       .size = sizeof all,
                       .kind = GS_TRACE_DEVICES,
                       .thread = (uint32_t)syscall(SYS_gettid)},
             .device = *device};

    gs_trace_put_now(&all.block);
}

/* ---- The process ---------------------------------------------------------------------------- */

const char *gs_trace_start(const char *path, bool frames, const struct gs_log *log)
{
    const char *wrong;

    if (snprintf(trace.path, sizeof trace.path, "%s", path) >= (int)sizeof trace.path)
        return "its name is too long";
    trace.every_process = strstr(path, "%p") != NULL;
    trace.frames = frames;
    trace.log = log;
    wrong = gs_trace_file_open(path, frames, log, &trace.began_ns);
    if (!wrong)
        STORE(gs_trace_on, true);
    return wrong;
}

void gs_trace_at_exit(void)
{
    struct gs_trace_block end = {.magic = GS_TRACE_BLOCK_MAGIC,
                                 .size = sizeof end,
                                 .kind = GS_TRACE_END,
                                 .thread = (uint32_t)syscall(SYS_gettid)};

    if (!gs_tracing())
        return;
    __atomic_store_n(&trace.exiting, true, __ATOMIC_SEQ_CST);
    for (struct buffer *buffer = __atomic_load_n(&buffers, __ATOMIC_ACQUIRE); buffer;
         buffer = buffer->next) {
        /* Up to `used` it is whole, wherever its owner was interrupted. */
        bool taken = gs_trace_take(&buffer->lock, &buffer->owner);

        write_locked(buffer, true);
        if (buffer == mine)
            end.waited_ns = buffer->waited_ns;
        if (taken)
            gs_latch_release(&buffer->lock);
    }
    if (!gs_trace_file_put(&end, true))
        STORE(gs_trace_on, false);
}

/* What the parent's threads had there is the parent's to write. */
void gs_trace_forked(void)
{
    if (!gs_tracing())
        return;
    gs_trace_file_forked();
    for (struct buffer *buffer = buffers; buffer; buffer = buffer->next) {
        buffer->lock.state = 0;
        buffer->inside = false;
        buffer->used = BEGIN;
        buffer->waited_ns = 0;
        buffer->owner = 0;
    }
    mine = NULL;
    opening.state = 0;
    gs_trace_modules_forget();
    gs_trace_names_forget();
    STORE(trace.exiting, false);
    STORE(trace.later, trace.every_process);
    STORE(gs_trace_on, trace.every_process);
}

/* A forked child's own file. */
static void open_now(void)
{
    const char *wrong = NULL;

    gs_latch_take(&opening);
    if (LOAD(trace.later))
        wrong = gs_trace_file_open(trace.path, trace.frames, trace.log, &trace.began_ns);
    if (wrong)
        STORE(gs_trace_on, false);
    STORE(trace.later, false);
    gs_latch_release(&opening);
    if (wrong)
        gs_log_line(trace.log, GS_LOG_WARNING, "a forked child is not recorded: %s", wrong);
}
