/*
 * How the share thread waits: asleep, but where a message is expected, for a moment without that.
 * What it does with what has come is thread.c's. It is never woken only to look whether all is as
 * it was.
 */
#include "core/share/exporter.h"
#include "core/share/importer.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#define EVENTS_MAX 32

/* Falling asleep and being woken takes 17 to 70 us (measured on an H200), as long as all else of an
 * open. So it looks for a moment where a message is expected (README.md has what that is): */
#define SPIN_PART  16                  /* of the time, one part at most goes into looking, */
#define SPINS_MOST (64 * GS_NS_PER_MS) /* after a time without as much at once */

static void wake_clear(struct gs_share *share)
{
    char many[512];

    while (gs_fd_is_there(&share->loop.woken_kept) &&
           read(share->loop.woken, many, sizeof many) == (ssize_t)sizeof many)
        continue;
}

static void dispatch(struct gs_share *share, const struct epoll_event *event)
{
    enum gs_watch kind = (enum gs_watch)(event->data.u64 >> GS_WATCH_SHIFT);

    if (kind == GS_WATCH_WAKE)
        wake_clear(share);
    gs_thread_event(share, kind, event->data.u64 & GS_WATCH_ID);
}

/* Does what is due; for how long there is nothing to do, GS_NEVER: until something comes. */
static uint64_t tick(struct gs_share *share)
{
    uint64_t due = gs_thread_tick(share, gs_now_ns()), now = gs_now_ns();

    return due == GS_NEVER ? GS_NEVER : due > now ? due - now : 0;
}

/* Whoever makes the thread look again and again, and nothing comes, gets a part of the time
 * only. */
static bool may_spin(struct gs_share *share, uint64_t now)
{
    uint64_t over = (now - share->loop.spin_ns) / SPIN_PART;

    share->loop.spun_ns = share->loop.spun_ns > over ? share->loop.spun_ns - over : 0;
    share->loop.spin_ns = now;
    return share->loop.spun_ns < SPINS_MOST;
}

/* Looks for events without sleeping while a message is expected; how many there are. */
static int spin(struct gs_share *share, struct epoll_event *events)
{
    uint64_t begun = gs_now_ns(), now = begun;
    int count = 0;

    if (begun >= share->loop.expected_ns || !may_spin(share, begun))
        return 0;
    while (count == 0 && now < share->loop.expected_ns) {
        count = epoll_wait(share->loop.epoll, events, EVENTS_MAX, 0);
        if (count == 0)
            gs_yield(); /* who is looked for may wait for this very CPU */
        now = gs_now_ns();
    }
    share->loop.spun_ns += now - begun;
    return count;
}

/*
 * Until something comes, or for so long. False: the program has closed the pipe. It is told of
 * that, since what is polled stays for as long as it is, and the other ends of the pipe do not: in
 * epoll_wait it would sleep on.
 */
static bool sleep_for(struct gs_share *share, uint64_t limit_ns)
{
    const struct timespec limit = {.tv_sec = (time_t)(limit_ns / GS_NS_PER_S),
                                   .tv_nsec = (long)(limit_ns % GS_NS_PER_S)};
    struct pollfd fds[] = {{.fd = share->loop.epoll, .events = POLLIN},
                           {.fd = share->loop.woken, .events = POLLIN}};

    if (!gs_epoll_is_there(share))
        return false;
    return ppoll(fds, 2, limit_ns == GS_NEVER ? NULL : &limit, NULL) < 0 ||
           !((fds[0].revents | fds[1].revents) & (POLLHUP | POLLERR | POLLNVAL));
}

static int wait_for_events(struct gs_share *share, struct epoll_event *events)
{
    uint64_t limit = tick(share);
    int count = 0;

    /* The program may have another file of its number. */
    if (gs_epoll_is_there(share) && share->spins && limit != 0)
        count = spin(share, events);
    if (count || (sleep_for(share, limit) && gs_epoll_is_there(share)))
        return count ? count : epoll_wait(share->loop.epoll, events, EVENTS_MAX, 0);
    errno = EBADF;
    return -1;
}

/*
 * The program has closed what it does not know. Where nothing is shared yet it is made again, under
 * numbers that are free now, and so is the socket; else what was open over it is lost, and sharing
 * ends. A thread that begins to share meanwhile waits (gs_start_once) or finds what is new.
 */
static bool goes_on(struct gs_share *share)
{
    if (__atomic_load_n(&share->exporter.used, __ATOMIC_SEQ_CST))
        return false;
    gs_clients_free(share); /* who asks for memory */
    gs_lock_take(&share->importer.lock);
    gs_loop_close(share);
    gs_lock_release(&share->importer.lock);
    if (gs_loop_open(share) != 0)
        return false;
    gs_share_serve(share); /* it is lost: another is put up */
    return true;
}

void *gs_loop_run(void *arg)
{
    struct gs_share *share = arg;
    struct epoll_event events[EVENTS_MAX];

    pthread_setname_np(pthread_self(), "gpushim-share");
    while (!__atomic_load_n(&share->loop.stop, __ATOMIC_ACQUIRE)) {
        int count = wait_for_events(share, events);

        if (count < 0 && errno != EINTR && !goes_on(share)) {
            gs_log_line(&share->log, GS_LOG_ERROR,
                        "sharing has ended: the program closed its descriptors");
            gs_socket_take_down(share); /* nobody waits for an answer */
            gs_clients_part(share);
            break;
        }
        for (int i = 0; i < count; i++)
            dispatch(share, &events[i]);
    }
    return NULL;
}
