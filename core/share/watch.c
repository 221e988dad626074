/*
 * The share thread's descriptors, and what is told to it: what it is to watch, and when it is to
 * look. How it waits is loop.c's, what it does thread.c's.
 */
#include "core/base/cancel.h"
#include "core/share/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Puts the pipe into the epoll. Any epoll looks like any other, but in ours alone is that pipe. */
static bool watch_pipe(int epoll, int op, int woken)
{
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)GS_WATCH_WAKE << GS_WATCH_SHIFT};

    return epoll_ctl(epoll, op, woken, &event) == 0;
}

bool gs_epoll_is_there(const struct gs_share *share)
{
    return gs_fd_is_there(&share->loop.woken_kept) &&
           watch_pipe(share->loop.epoll, EPOLL_CTL_MOD, share->loop.woken);
}

int gs_watch(struct gs_share *share, enum gs_watch_op op, int fd, unsigned events,
             enum gs_watch kind, uint64_t id)
{
    struct epoll_event event = {.events = (events & GS_WATCH_READ ? EPOLLIN : 0) |
                                          (events & GS_WATCH_WRITE ? EPOLLOUT : 0) |
                                          (events & GS_WATCH_ONCE ? EPOLLONESHOT : 0),
                                .data.u64 = (uint64_t)kind << GS_WATCH_SHIFT | (id & GS_WATCH_ID)};
    int how = op == GS_WATCH_ADD ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;

    if (!gs_epoll_is_there(share))
        return -EBADF;
    return epoll_ctl(share->loop.epoll, how, fd, &event) == 0 ? 0 : -errno;
}

void gs_unwatch(struct gs_share *share, int fd)
{
    if (gs_epoll_is_there(share))
        epoll_ctl(share->loop.epoll, EPOLL_CTL_DEL, fd, NULL);
}

void gs_thread_wake(struct gs_share *share)
{
    GS_UNCANCELLED;
    ssize_t ignored = gs_fd_is_there(&share->loop.wake_kept) ? write(share->loop.wake, "", 1) : 0;

    (void)ignored; /* it fails only when the thread has many wake-ups to come already */
}

void gs_thread_expect(struct gs_share *share, uint64_t until)
{
    if (share->loop.expected_ns < until)
        share->loop.expected_ns = until;
}

bool gs_loop_may_spin(void)
{
    cpu_set_t cpus;

    /* It fails where there are more than the set has room for. */
    return sched_getaffinity(0, sizeof cpus, &cpus) != 0 || CPU_COUNT(&cpus) > 1;
}

void gs_loop_close(struct gs_share *share)
{
    gs_spare_give(share);
    gs_fd_close(&share->place.listener_is);
    gs_fd_close(&share->place.directory_is);
    gs_fd_close(&share->place.notify);
    share->place.listener_is = share->place.directory_is = share->place.notify = (struct gs_fd){0};
    share->place.listener = share->place.directory = -1;
    if (share->loop.epoll >= 0 && gs_epoll_is_there(share))
        close(share->loop.epoll);
    gs_fd_close(&share->loop.wake_kept);
    gs_fd_close(&share->loop.woken_kept);
    share->loop.wake_kept = share->loop.woken_kept = (struct gs_fd){0};
    share->loop.epoll = share->loop.wake = share->loop.woken = -1;
}

/* The epoll, and the pipe in it, or an errno and none of them. */
static int make_descriptors(int *ret_epoll, int ret_ends[2])
{
    int error;

    *ret_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (*ret_epoll < 0)
        return errno;
    if (pipe2(ret_ends, O_CLOEXEC | O_NONBLOCK) == 0) {
        if (watch_pipe(*ret_epoll, EPOLL_CTL_ADD, ret_ends[0]))
            return 0;
        error = errno;
        close(ret_ends[0]);
        close(ret_ends[1]);
    } else {
        error = errno;
    }
    close(*ret_epoll);
    return error;
}

/* Some wake the thread also where there may be none, with the importer's lock held: without that they
 * would write into whatever file gets the number of one that is closed here. */
int gs_loop_open(struct gs_share *share)
{
    int epoll, ends[2], error = make_descriptors(&epoll, ends);

    if (error)
        return error;
    GS_HOLDING(&share->importer.lock);
    share->loop.epoll = epoll;
    share->loop.woken = ends[0];
    share->loop.wake = ends[1];
    share->loop.woken_kept = gs_fd_keep(share->loop.woken);
    share->loop.wake_kept = gs_fd_keep(share->loop.wake);
    return 0;
}

static gs_status thread_start(struct gs_share *share)
{
    char reason[GS_REASON_SIZE];
    int error = gs_loop_open(share);

    if (!error)
        error = gs_background_start(&share->loop.background, share->loop.run, share);
    if (!error)
        return GS_OK;
    gs_lock_take(&share->importer.lock);
    gs_loop_close(share);
    gs_lock_release(&share->importer.lock);
    snprintf(reason, sizeof reason, "no thread for it: %s; raise the limit of %s", strerror(error),
             error == EMFILE ? "descriptors (ulimit -n)" : "threads (ulimit -u), or of memory");
    gs_say_not_exported(share, reason);
    return GS_UNREACHABLE;
}

gs_status gs_thread_start(struct gs_share *share)
{
    return gs_start_once(share, &share->thread_start, thread_start);
}
