/* Closing what other processes sent (core/share/discard.h). */
#include "core/share/discard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/base/background.h"
#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/lock.h"
#include "core/share/conn.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#define CLOSERS      8
#define WAITING_MAX  256 /* of one user; then no more is taken from him for the moment */
#define CROWD        32
#define STUCK_NS     GS_NS_PER_S /* a close that takes longer */
#define IDLE_S       5 /* then a closer that has nothing to do ends */
#define MESSAGES_MAX 64
#define FDS_MAX      253 /* in one message: SCM_MAX_FD */

struct discard {
    struct gs_fd kept; /* the program may close it, as any */
    int fd;
    uid_t from;
    bool has_unread;
    struct discard *next;
};

struct closer {
    struct gs_background background;
    bool runs, busy;
    uid_t at;
    uint64_t since_ns, held_up_ns; /* of this, what counts */
};

static struct gs_lock lock = GS_LOCK_INITIALIZER(GS_RANK_DISCARDS);
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct discard *first, **last = &first; /* all of them wait */
static struct closer closers[CLOSERS];
static uint64_t looked_ns;

bool gs_socket_takes_rights(int socket)
{
    socklen_t size = sizeof(int);
    int value = 0;

    return getsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &value, &size) == 0 && value;
}

void gs_socket_take_rights(int socket, bool takes)
{
    const int value = takes;

    setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &value, sizeof value);
}

/* ---- What may take long --------------------------------------------------------------------- */

/* Who sent a socket may have it still and let it linger again. Then that is waited for. */
static void close_quickly(int fd)
{
    const struct linger none = {0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
}

/* Takes the descriptors out of a connection that is shut down: the kernel would let each linger. */
static void take_unread(int socket)
{
    char control[CMSG_SPACE(FDS_MAX * sizeof(int))]
        __attribute__((aligned(sizeof(struct cmsghdr))));

    for (int i = 0; i < MESSAGES_MAX; i++) { /* its end and an empty message look the same */
        struct msghdr header = {.msg_control = control, .msg_controllen = sizeof control};

        if (recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0) {
            if (errno != EINTR && errno != ECONNRESET)
                return;
            continue; /* nothing came: what the buffer has is the last message's */
        }
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c; c = CMSG_NXTHDR(&header, c))
            for (size_t at = CMSG_LEN(0);
                 c->cmsg_type == SCM_RIGHTS && at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
                int fd;

                memcpy(&fd, (char *)c + at, sizeof fd);
                close_quickly(fd);
            }
    }
}

static void finish(const struct discard *discard)
{
    if (discard->kept.any && !gs_fd_is_there(&discard->kept))
        return;
    if (discard->has_unread)
        take_unread(discard->fd);
    close_quickly(discard->fd);
}

/* ---- Closers -------------------------------------------------------------------------------- */

static unsigned count_at_locked(uid_t user, uint64_t held_up_ns)
{
    unsigned count = 0;

    for (unsigned i = 0; i < CLOSERS; i++)
        count += closers[i].busy && closers[i].at == user && closers[i].held_up_ns >= held_up_ns;
    return count;
}

/* Time in which this process stood still is nobody's doing. Whoever asks often asks because of what
 * waits; who asks seldom finds them stuck later. */
static void look_locked(void)
{
    uint64_t counts = gs_look_counts(&looked_ns);

    for (unsigned i = 0; i < CLOSERS; i++) {
        uint64_t took = looked_ns - closers[i].since_ns;

        if (closers[i].busy)
            closers[i].held_up_ns += took < counts ? took : counts;
    }
}

/* Where the first one is whose user has a closer left for it; NULL: there is none. */
static struct discard **find_locked(void)
{
    for (struct discard **link = &first; *link; link = &(*link)->next)
        if (count_at_locked((*link)->from, 0) < GS_DISCARDS_USER)
            return link;
    return NULL;
}

static struct discard *unlink_locked(struct discard **link)
{
    struct discard *discard = *link;

    *link = discard->next;
    if (!discard->next)
        last = link;
    return discard;
}

/* False: nothing has come for a while. */
static bool await_locked(void)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += IDLE_S;
    return pthread_cond_timedwait(&more, &lock.mutex, &end) == 0;
}

/* Called with the lock held. One that would do nothing but wait is not started. */
static struct closer *closer_wanted_locked(void)
{
    struct closer *spare = NULL;

    for (unsigned i = 0; i < CLOSERS; i++) {
        if (closers[i].runs && !closers[i].busy)
            return NULL; /* and is woken */
        if (!closers[i].runs)
            spare = &closers[i];
    }
    if (spare)
        spare->runs = true;
    return spare;
}

static void *run(void *arg);

/* The lock is released. True: it runs, or none was wanted. */
static bool start_closer(struct closer *closer)
{
    if (!closer || gs_background_start(&closer->background, run, closer) == 0)
        return true;
    gs_lock_take(&lock);
    closer->runs = false;
    gs_lock_release(&lock);
    return false;
}

/* Whoever handed something over while this closer was on its way did not start another: it does, as
 * it may be held up. */
static void close_all_locked(struct closer *closer)
{
    struct discard **link;

    while ((link = find_locked())) {
        struct discard *discard = unlink_locked(link);
        struct closer *another;

        closer->busy = true;
        closer->at = discard->from;
        closer->since_ns = gs_now_ns();
        closer->held_up_ns = 0;
        another = find_locked() ? closer_wanted_locked() : NULL;
        gs_lock_release(&lock);
        start_closer(another);
        finish(discard);
        free(discard);
        gs_lock_take(&lock);
        closer->busy = false;
    }
}

static void *run(void *arg)
{
    struct closer *closer = arg;

    pthread_setname_np(pthread_self(), "gpushim-close");
    pthread_detach(pthread_self());
    gs_lock_take(&lock);
    do
        close_all_locked(closer);
    while (await_locked());
    closer->runs = false;
    gs_lock_release(&lock);
    return NULL;
}

static unsigned count_waiting_locked(uid_t user)
{
    unsigned count = 0;

    for (const struct discard *discard = first; discard; discard = discard->next)
        count += discard->from == user;
    return count;
}

/* False: there is nobody else to close it. */
static bool hand_over(struct discard *discard)
{
    struct closer *closer;
    bool waits = false;

    gs_lock_take(&lock);
    closer = closer_wanted_locked();
    discard->next = NULL;
    *last = discard;
    last = &discard->next;
    pthread_cond_signal(&more);
    gs_lock_release(&lock);
    if (start_closer(closer))
        return true;
    gs_lock_take(&lock);
    for (struct discard **link = &first; *link; link = &(*link)->next)
        if (*link == discard) { /* or another closer has come by */
            waits = true;
            unlink_locked(link);
            break;
        }
    gs_lock_release(&lock);
    return !waits;
}

static void discard_fd(int fd, uid_t from, bool has_unread)
{
    struct discard *discard = malloc(sizeof *discard);
    struct discard at_once = {.fd = fd, .has_unread = has_unread};
    int saved = errno;

    if (discard) {
        *discard = (struct discard){gs_fd_keep(fd), fd, from, has_unread, NULL};
        if (hand_over(discard)) {
            errno = saved;
            return;
        }
        free(discard);
    }
    finish(&at_once);
    errno = saved;
}

void gs_discard(int fd, uid_t from)
{
    discard_fd(fd, from, false);
}

/*
 * Whether descriptors lie unread in a connection that is shut down; looking puts none into this
 * process, and messages without any are taken out, which closes nothing. The end of a connection
 * and an empty message look the same but for the sender's ids, which come with messages alone, and
 * for which alone there is room: what else came along is cut off.
 */
static bool has_descriptors(int socket)
{
    char control[CMSG_SPACE(sizeof(struct ucred))]
        __attribute__((aligned(sizeof(struct cmsghdr))));
    const int on = 1;

    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    for (int i = 0; i < MESSAGES_MAX; i++) {
        struct msghdr header = {.msg_control = control, .msg_controllen = sizeof control};
        ssize_t got = recvmsg(socket, &header, MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

        if (got < 0 && errno != ECONNRESET && errno != EINTR) /* told once, before what was said */
            return false;
        if (got < 0)
            continue;
        if (header.msg_flags & MSG_CTRUNC)
            return true;
        if (!header.msg_controllen)
            return false;
        recv(socket, NULL, 0, MSG_DONTWAIT);
    }
    return true;
}

void gs_hang_up(int socket)
{
    int saved = errno;

    shutdown(socket, SHUT_RDWR); /* a forked child may hold it; and nothing more can be sent */
    if (has_descriptors(socket))
        discard_fd(socket, gs_conn_who(socket).uid, true);
    else
        close(socket);
    errno = saved;
}

bool gs_discards_crowded(uid_t from)
{
    bool crowded;

    gs_lock_take(&lock);
    look_locked();
    crowded = first && count_waiting_locked(from) >= CROWD &&
              count_at_locked(from, STUCK_NS) >= GS_DISCARDS_USER;
    gs_lock_release(&lock);
    return crowded;
}

bool gs_discards_full(uid_t from)
{
    bool full;

    gs_lock_take(&lock);
    full = first && count_waiting_locked(from) >= WAITING_MAX;
    gs_lock_release(&lock);
    return full && !gs_discards_crowded(from);
}

bool gs_discards_go_on(void)
{
    bool goes_on = false, busy = false;

    gs_lock_take(&lock);
    look_locked();
    for (unsigned i = 0; i < CLOSERS; i++) {
        busy |= closers[i].busy;
        goes_on |= closers[i].busy && closers[i].held_up_ns < STUCK_NS;
    }
    goes_on |= first && !busy; /* a closer is on its way to them */
    gs_lock_release(&lock);
    return goes_on;
}
