/* The share thread's loop, and what is told to it (core/share/watch.c and loop.c). */
#include <errno.h>

#include "core/share/exporter.h"
#include "core/share/importer.h"
#include "simulation.h"

#define ROUND 8 /* events at once */

/* What one descriptor of a process is watched for. */
struct watch {
    uint64_t file; /* its id; 0: none */
    unsigned events;
    enum gs_watch kind;
    uint64_t id;
    bool disarmed;
};

bool gs_epoll_is_there(const struct gs_share *share)
{
    return process_here()->watches != NULL;
}

int gs_watch(struct gs_share *share, enum gs_watch_op op, int fd, unsigned events,
             enum gs_watch kind, uint64_t id)
{
    struct process *process = process_here();
    struct file *file = fd >= 0 ? process->fds[fd].file : NULL;
    struct watch *watch;

    if (!process->watches || !file)
        return -EBADF;
    watch = &process->watches[fd];
    if ((op == GS_WATCH_ADD) == (watch->file == file->id))
        return op == GS_WATCH_ADD ? -EEXIST : -ENOENT;
    *watch = (struct watch){file->id, events, kind, id & GS_WATCH_ID, false};
    file_changed(file);
    fibre_wake_all(process, process);
    return 0;
}

void gs_unwatch(struct gs_share *share, int fd)
{
    struct process *process = process_here();

    if (process->watches && fd >= 0)
        process->watches[fd].file = 0;
}

void watches_free(struct process *process)
{
    sim_free(process->watches);
    process->watches = NULL;
}

void thread_wake(struct process *process)
{
    process->woken = true;
    fibre_wake_all(process, process);
}

void gs_thread_wake(struct gs_share *share)
{
    struct process *process = process_here();

    for (unsigned i = 0; !process && i < PROCESSES_MAX; i++) /* a fork comes from outside */
        if (world.processes[i].share == share)
            process = &world.processes[i];
    thread_wake(process);
}

void gs_thread_expect(struct gs_share *share, uint64_t until)
{
}

bool gs_loop_may_spin(void)
{
    return false;
}

void gs_loop_close(struct gs_share *share)
{
    gs_spare_give(share);
    gs_fd_close(&share->place.listener_is);
    gs_fd_close(&share->place.directory_is);
    share->place.listener_is = share->place.directory_is = (struct gs_fd){0};
    share->place.listener = share->place.directory = -1;
    gs_fd_close(&share->loop.wake_kept);
    share->loop.wake_kept = share->loop.woken_kept = (struct gs_fd){0};
    share->loop.wake = share->loop.woken = -1;
    watches_free(process_here());
}

/* ---- Its start ------------------------------------------------------------------------------ */

static gs_status thread_start(struct gs_share *share)
{
    struct process *process = process_here();
    int wake = fd_new(process, file_new(FILE_OTHER));

    if (wake < 0) {
        gs_say_not_exported(share, "no descriptor is left for its thread");
        return GS_UNREACHABLE;
    }
    gs_lock_take(&share->importer.lock);
    process->watches = sim_alloc(FDS_MAX * sizeof *process->watches);
    share->loop.wake = share->loop.woken = wake; /* nothing is written into it */
    share->loop.wake_kept = share->loop.woken_kept = gs_fd_keep(wake);
    gs_lock_release(&share->importer.lock);
    gs_background_start(&share->loop.background, share->loop.run, share);
    return GS_OK;
}

gs_status gs_thread_start(struct gs_share *share)
{
    return gs_start_once(share, &share->thread_start, thread_start);
}

/* ---- The thread ----------------------------------------------------------------------------- */

/* Whether there is something to be told of it, as epoll tells. */
static bool is_ready(const struct watch *watch, const struct file *file)
{
    if (watch->disarmed)
        return false;
    if (file->kind == FILE_PIDFD)
        return file->life->exited;
    if (file->kind == FILE_LISTENER)
        return watch->events & GS_WATCH_READ && file->first_caller;
    if (!file->peer || file->shut)
        return true;
    return (watch->events & GS_WATCH_READ && file->first) ||
           (watch->events & GS_WATCH_WRITE && 4 * file->peer->unread <= file->limit);
}

/* All that is ready is found first and told of then, as by epoll_wait: what one does may be the end
 * of another. In any order. */
static unsigned find_ready(struct process *process, struct watch *ret_ready)
{
    unsigned count = 0, first = (unsigned)(world.now_ns / 1000) % FDS_MAX;

    for (unsigned i = 0; i < FDS_MAX && count < ROUND; i++) {
        unsigned fd = (first + i) % FDS_MAX;
        struct watch *watch = &process->watches[fd];
        struct file *file = process->fds[fd].file;

        if (!watch->file || (file && watch->file == file->id && !is_ready(watch, file)))
            continue;
        if (!file || watch->file != file->id) { /* the program has closed it */
            watch->file = 0;
            continue;
        }
        watch->disarmed = watch->events & GS_WATCH_ONCE;
        ret_ready[count++] = *watch;
    }
    return count;
}

void *gs_loop_run(void *arg)
{
    struct gs_share *share = arg;
    struct process *process = process_here();
    struct watch ready[ROUND];

    while (!__atomic_load_n(&share->loop.stop, __ATOMIC_ACQUIRE)) {
        uint64_t due = gs_thread_tick(share, gs_now_ns());
        unsigned count = find_ready(process, ready);

        if (count == 0 && !process->woken) {
            rule_sleeps_until(process, due);
            fibre_wait(process, due > gs_now_ns() ? due : gs_now_ns() + 1000);
            count = find_ready(process, ready);
        }
        if (process->woken)
            gs_thread_event(share, GS_WATCH_WAKE, 0);
        process->woken = false;
        sim_point();
        for (unsigned i = 0; i < count; i++)
            gs_thread_event(share, ready[i].kind, ready[i].id);
    }
    return NULL;
}
