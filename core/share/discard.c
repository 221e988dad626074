/* Closing what other processes sent (core/share/discard.h). */
#include "core/share/discard.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/base/background.h"
#include "core/base/fd.h"
#include "core/base/list.h"
#include "core/base/lock.h"

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#define IDLE_S       5 /* then the closer ends, when it has nothing to do */
#define MESSAGES_MAX 64

struct discard {
    struct gs_fd kept; /* the program may close it, as any */
    struct discard *next;
};

static struct gs_lock lock = GS_LOCK_INITIALIZER(GS_RANK_DISCARDS);
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static struct discard *waiting;
static uint64_t count; /* of those, and the one that is about to be closed */
static struct gs_background closer;
static bool runs;
static pid_t
    owner; /* atomic: the process that it runs in, or ran; 0: none. A child of that has it not */

/* Who sent a socket may have it still and let it linger again. Then that is waited for. */
static void close_quickly(int fd)
{
    const struct linger none = {0};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(fd);
}

/* Called with the lock held, which it releases meanwhile. */
static void close_all_locked(void)
{
    while (waiting) {
        struct discard *discard = waiting;

        LL_DELETE(waiting, discard);
        gs_lock_release(&lock);
        if (gs_fd_is_there(&discard->kept))
            close_quickly(discard->kept.fd);
        free(discard);
        gs_lock_take(&lock);
        count--;
    }
}

static void *run(void *arg)
{
    struct timespec end;

    (void)arg;
    pthread_setname_np(pthread_self(), "gpushim-close");
    pthread_detach(pthread_self());
    GS_HOLDING(&lock);
    do {
        close_all_locked();
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += IDLE_S;
    } while (waiting || pthread_cond_timedwait(&more, &lock.mutex, &end) == 0);
    runs = false;
    return NULL;
}

/* False: it is to be closed here and now. */
static bool hand_over(int fd)
{
    const pid_t its = __atomic_load_n(&owner, __ATOMIC_RELAXED);
    struct discard *discard;

    if (its && its != getpid())
        return false;
    discard = malloc(sizeof *discard);
    gs_lock_take(&lock);
    if (!discard || count >= gs_fd_limit() / 4 || !(discard->kept = gs_fd_keep(fd)).any) {
        gs_lock_release(&lock);
        free(discard);
        return false;
    }
    LL_APPEND(waiting, discard);
    count++;
    pthread_cond_broadcast(&more);
    if (!runs) {
        runs = gs_background_start(&closer, run, NULL) == 0;
        __atomic_store_n(&owner, getpid(), __ATOMIC_RELAXED);
        if (!runs)
            close_all_locked();
    }
    gs_lock_release(&lock);
    return true;
}

void gs_discard(int fd)
{
    int saved = errno;

    if (!hand_over(fd))
        close_quickly(fd);
    errno = saved;
}

/*
 * Whether descriptors lie unread in a connection that is shut down; looking puts none into this
 * process, and messages without any are taken out, which closes nothing. The end of a connection
 * and an empty message look the same but for the sender's ids, which come with messages alone, and
 * for which alone there is room: what else came along is cut off.
 */
static bool has_descriptors(int socket)
{
    char control[CMSG_SPACE(sizeof(struct ucred))] __attribute__((aligned(sizeof(struct cmsghdr))));
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
    if (!has_descriptors(socket) || !hand_over(socket))
        close(socket);
    errno = saved;
}

void gs_socket_take_no_rights(int socket)
{
    const int none = 0;

    setsockopt(socket, SOL_SOCKET, SO_PASSRIGHTS, &none, sizeof none);
}
