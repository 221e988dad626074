/* Sockets, and who is at their other ends (core/share/conn.h); messages on their way. */
#include "core/share/conn.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "core/base/clock.h"
#include "core/share/discard.h"
#include "core/share/wire.h"

#ifndef SO_PEERPIDFD /* newer than the C libraries that the library is built with */
#define SO_PEERPIDFD 77
#endif

#define FDS_MAX 253 /* in one message: SCM_MAX_FD */

/* ---- Who is at the other end ---------------------------------------------------------------- */

struct gs_conn_who gs_conn_who(int socket)
{
    struct ucred who = {.uid = (uid_t)-1, .gid = (gid_t)-1};
    socklen_t size = sizeof who;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
        return (struct gs_conn_who){.uid = (uid_t)-1, .gid = (gid_t)-1};
    return (struct gs_conn_who){.pid = who.pid, .uid = who.uid, .gid = who.gid};
}

int gs_conn_pidfd(int socket, int *ret_error)
{
    socklen_t size = sizeof(int);
    int pidfd = -1;

    *ret_error = 0;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0)
        return pidfd;
    if (errno == EINVAL || errno == ESRCH || errno == ENODATA)
        *ret_error = -ESRCH;
    else
        *ret_error = errno == EMFILE || errno == ENFILE ? -EMFILE : -ENOTSUP;
    return -1;
}

int gs_conn_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    return fd < 0 ? -errno : fd;
}

/* ---- How it is with a connection ------------------------------------------------------------ */

/* What of these, or of a hang-up or an error, there is now. */
static short look(int socket, short events)
{
    struct pollfd now = {.fd = socket, .events = events};

    return poll(&now, 1, 0) == 1 ? now.revents : 0;
}

void gs_conn_limit(int socket, int bytes)
{
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

bool gs_conn_has_room(int socket)
{
    return look(socket, POLLOUT) & POLLOUT;
}

bool gs_conn_has_more(int socket)
{
    return look(socket, POLLIN);
}

bool gs_conn_hung_up(int socket)
{
    return look(socket, 0);
}

bool gs_conn_is_read(int socket)
{
    int unread = 0;

    return ioctl(socket, SIOCOUTQ, &unread) != 0 || unread == 0;
}

void gs_conn_shut(int socket)
{
    shutdown(socket, SHUT_RDWR);
}

/* A program's signals end a poll; it begins again with what is left of the time. */
enum gs_conn_event gs_conn_wait(int socket, int pidfd, bool to_send, uint64_t deadline_ns)
{
    struct pollfd both[2] = {{.fd = socket, .events = to_send ? POLLOUT : POLLIN},
                             {.fd = pidfd, .events = POLLIN}};
    uint64_t now;

    while ((now = gs_now_ns()) < deadline_ns) {
        uint64_t ms = (deadline_ns - now + GS_NS_PER_MS - 1) / GS_NS_PER_MS;
        int count = poll(both, 2, ms < INT32_MAX ? (int)ms : INT32_MAX);

        if (count > 0)
            return both[0].revents ? GS_CONN_READY : GS_CONN_EXITED;
    }
    return GS_CONN_OVER;
}

void gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns)
{
    struct pollfd any[GS_CONN_ANY];

    for (unsigned i = 0; i < count; i++)
        any[i] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
    poll(any, count, (int)(ns / GS_NS_PER_MS));
}

/* ---- Messages ------------------------------------------------------------------------------- */

int gs_wire_send_all(int socket, const union gs_wire_message *message,
                     const struct gs_wire_fds *fds)
{
    char control[CMSG_SPACE(GS_PIECES_MAX * sizeof(int))]
        __attribute__((aligned(sizeof(struct cmsghdr)))) = {0};
    struct iovec part = {.iov_base = (void *)message, .iov_len = message->head.size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    size_t size = fds->count * sizeof *fds->fd;
    ssize_t sent;

    if (fds->count > 0) {
        struct cmsghdr *attached;

        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(size);
        attached = CMSG_FIRSTHDR(&header);
        attached->cmsg_level = SOL_SOCKET;
        attached->cmsg_type = SCM_RIGHTS;
        attached->cmsg_len = CMSG_LEN(size);
        memcpy(CMSG_DATA(attached), fds->fd, size);
    }
    do
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && fds->count > 0 && errno == EPERM) /* the other side takes none, or not yet */
        return -ETOOMANYREFS;
    return sent < 0 ? -errno : 0;
}

int gs_wire_send(int socket, const union gs_wire_message *message, int fd)
{
    return gs_wire_send_all(socket, message, &(struct gs_wire_fds){.count = fd >= 0, .fd = {fd}});
}

/* What came with a message; returns how many. */
static unsigned take_fds(struct msghdr *header, int ret_fds[FDS_MAX])
{
    unsigned taken = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (count > FDS_MAX - taken) /* there is room for no more */
            count = FDS_MAX - taken;
        memcpy(&ret_fds[taken], CMSG_DATA(c), count * sizeof(int));
        taken += (unsigned)count;
    }
    return taken;
}

static void discard_all(const int *fds, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        gs_discard(fds[i]);
}

/* As recvmsg, without waiting, and with what the other side said before it hung up. */
static ssize_t receive(int socket, struct msghdr *header, int flags)
{
    bool reset = false;
    ssize_t got;

    for (;;) {
        got = recvmsg(socket, header, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got >= 0 || (errno != EINTR && (errno != ECONNRESET || reset)))
            return got < 0 ? -errno : got;
        reset |= errno == ECONNRESET; /* told once, before what the other side had said */
    }
}

/*
 * A message is looked at before it is taken. The kernel closes what came along and found no room
 * here, and that may take as long as its sender likes; what is still in the socket, or is here
 * already, it does not. `ret_fds` NULL: none is wanted, nor made room for.
 */
static int receive_message(int socket, union gs_wire_message *ret_message,
                           struct gs_wire_fds *ret_fds)
{
    char control[CMSG_SPACE(FDS_MAX * sizeof(int))]
        __attribute__((aligned(sizeof(struct cmsghdr))));
    struct iovec part = {.iov_base = ret_message, .iov_len = sizeof *ret_message};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = ret_fds ? control : NULL,
                            .msg_controllen = ret_fds ? sizeof control : 0};
    struct msghdr none = {0};
    ssize_t got = receive(socket, &header, MSG_PEEK);
    bool many, lacks, sound;
    int fds[FDS_MAX];
    unsigned count;

    if (got < 0)
        return (int)got;
    count = take_fds(&header, fds);
    lacks = header.msg_flags & MSG_CTRUNC;
    sound = !(header.msg_flags & MSG_TRUNC) && gs_wire_valid(ret_message, (size_t)got);
    many = count > (sound && ret_message->head.type == GS_WIRE_GRANT ? GS_PIECES_MAX : 1);
    sound &= !many;
    if (!lacks)
        receive(socket, &none, 0);
    if (lacks || !sound) {
        discard_all(fds, count);
        count = 0;
    }
    if (!sound && got > 0 && gs_wire_is_of_another_version(ret_message, (size_t)got))
        return -EPROTONOSUPPORT;
    /* No message of ours is empty, so nothing is lost by taking an empty one for the end. */
    if (!sound)
        return got == 0 && !lacks && !many ? -ENOTCONN : -EPROTO;
    if (lacks)
        return ret_fds ? -EMFILE : -EPROTO;
    if (ret_fds) {
        ret_fds->count = count;
        memcpy(ret_fds->fd, fds, count * sizeof *fds);
    }
    return 0;
}

int gs_wire_receive_all(int socket, union gs_wire_message *ret_message, struct gs_wire_fds *ret_fds)
{
    ret_fds->count = 0;
    return receive_message(socket, ret_message, ret_fds);
}

int gs_wire_receive(int socket, union gs_wire_message *ret_message, int *ret_fd)
{
    struct gs_wire_fds fds = {0};
    int error = receive_message(socket, ret_message, ret_fd ? &fds : NULL);

    if (!ret_fd)
        return error;
    if (fds.count > 0 && ret_message->head.type == GS_WIRE_GRANT) {
        discard_all(fds.fd, fds.count);
        fds.count = 0;
    }
    *ret_fd = fds.count > 0 ? fds.fd[0] : -1;
    return error;
}
