/* Messages between openers and exporters (core/share/wire.h): building, checking, moving. */
#include "core/share/wire.h"

#include "core/share/discard.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define WIRE_MAGIC 0x67707368u
#define FDS_MAX    253 /* in one message: SCM_MAX_FD */

static const uint32_t sizes[GS_WIRE_TYPES] = {
    [GS_WIRE_HELLO] = sizeof(struct gs_wire_hello),
    [GS_WIRE_OPEN] = sizeof(struct gs_wire_open),
    [GS_WIRE_GRANT] = sizeof(struct gs_wire_grant),
    [GS_WIRE_REFUSE] = sizeof(struct gs_wire_refuse),
    [GS_WIRE_CLOSE] = sizeof(struct gs_wire_close),
    [GS_WIRE_RECALL] = sizeof(struct gs_wire_recall),
    [GS_WIRE_SHARE] = sizeof(struct gs_wire_share),
    [GS_WIRE_UNSHARE] = sizeof(struct gs_wire_unshare),
    [GS_WIRE_QUERY] = sizeof(struct gs_wire_query),
    [GS_WIRE_REPORT] = sizeof(struct gs_wire_report),
    [GS_WIRE_KEEP] = sizeof(struct gs_wire_keep),
    [GS_WIRE_UNMAP] = sizeof(struct gs_wire_unmap),
    [GS_WIRE_UNMAPPED] = sizeof(struct gs_wire_unmapped),
    [GS_WIRE_FLUSH] = sizeof(struct gs_wire_flush),
    [GS_WIRE_FLUSHED] = sizeof(struct gs_wire_flushed),
    [GS_WIRE_LEAVE] = sizeof(struct gs_wire_leave),
    [GS_WIRE_BYE] = sizeof(struct gs_wire_bye),
    [GS_WIRE_TAKE_UP] = sizeof(struct gs_wire_take_up),
    [GS_WIRE_PURGE] = sizeof(struct gs_wire_purge),
    [GS_WIRE_PURGED] = sizeof(struct gs_wire_purged),
};

void gs_wire_start(union gs_wire_message *message, enum gs_wire_type type, uint32_t request)
{
    memset(message, 0, sizeof *message);
    message->head = (struct gs_wire_head){
        .magic = WIRE_MAGIC,
        .version = GS_WIRE_VERSION,
        .type = (uint16_t)type,
        .size = sizes[type],
        .request = request,
    };
}

const char *gs_wire_reason_text(uint32_t reason)
{
    static const char *const texts[] = {
        [GS_REFUSED_TOKEN] = "the handle is stale or was changed",
        [GS_REFUSED_USER] = "another user, whom share.uids and share.gids do not name",
        [GS_REFUSED_BUSY] = "it serves as many as it may (share.max_clients)",
        [GS_REFUSED_FDS] = "no descriptor is left there (ulimit -n)",
        [GS_REFUSED_DRIVER] = "the driver there does not export the memory",
        [GS_REFUSED_MEMORY] = "no host memory is left there",
        [GS_REFUSED_ENDING] = "the process that shared it is ending",
        [GS_REFUSED_MESSAGE] = "a message out of place",
        [GS_REFUSED_VERSION] = "another version of this library",
        [GS_REFUSED_FLIGHT] = "too many descriptors of its user are under way (ulimit -n)",
        [GS_REFUSED_LIMBO] = "it is freed, and this user holds too much of what is (share.limbo_limit "
                             "there)",
        [GS_REFUSED_EARLY] = "the process that shared it runs, and is to be asked itself",
    };

    if (reason >= sizeof texts / sizeof *texts || !texts[reason])
        return "for a reason that this version does not know";
    return texts[reason];
}

/* A message of ours, as far as can be told, that another version wrote. */
static bool is_of_another_version(const union gs_wire_message *message, size_t length)
{
    return length >= sizeof message->head && message->head.magic == WIRE_MAGIC &&
           message->head.version != GS_WIRE_VERSION;
}

bool gs_wire_valid(const union gs_wire_message *message, size_t length)
{
    const struct gs_wire_head *head = &message->head;

    return length >= sizeof *head && head->magic == WIRE_MAGIC && head->version == GS_WIRE_VERSION &&
           head->type < GS_WIRE_TYPES && head->size == sizes[head->type] && length == head->size;
}

int gs_wire_send(int socket, const union gs_wire_message *message, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] __attribute__((aligned(sizeof(struct cmsghdr)))) = {0};
    struct iovec part = {.iov_base = (void *)message, .iov_len = message->head.size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (fd >= 0) {
        struct cmsghdr *attached;

        header.msg_control = control;
        header.msg_controllen = sizeof control;
        attached = CMSG_FIRSTHDR(&header);
        attached->cmsg_level = SOL_SOCKET;
        attached->cmsg_type = SCM_RIGHTS;
        attached->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(attached), &fd, sizeof fd);
    }
    do
        sent = sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && fd >= 0 && errno == EPERM) /* the other side takes none, or not yet */
        return -ETOOMANYREFS;
    return sent < 0 ? -errno : 0;
}

void gs_wire_printable(char name[16])
{
    name[15] = 0;
    for (char *c = name; *c; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
}

bool gs_wire_goes_later(int error)
{
    return error == -EAGAIN || error == -ENOBUFS || error == -ENOMEM;
}

/* What came with a message: the only descriptor, or -1. More than one is not in the protocol; then
 * all of them go and *ret_many is set. */
static int take_fds(struct msghdr *header, int socket, bool *ret_many)
{
    int kept = -1, seen = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        size_t count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (seen++ == 0)
                kept = fd;
            else
                gs_discard(fd, gs_socket_user(socket));
        }
    }
    *ret_many = seen > 1;
    if (seen > 1) {
        gs_discard(kept, gs_socket_user(socket));
        kept = -1;
    }
    return kept;
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
 * already, it does not.
 */
int gs_wire_receive(int socket, union gs_wire_message *ret_message, int *ret_fd)
{
    char control[CMSG_SPACE(FDS_MAX * sizeof(int))]
        __attribute__((aligned(sizeof(struct cmsghdr))));
    struct iovec part = {.iov_base = ret_message, .iov_len = sizeof *ret_message};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = ret_fd ? control : NULL,
                            .msg_controllen = ret_fd ? sizeof control : 0};
    struct msghdr none = {0};
    ssize_t got = receive(socket, &header, MSG_PEEK);
    bool many, lacks, sound;
    int fd;

    if (ret_fd)
        *ret_fd = -1;
    if (got < 0)
        return (int)got;
    fd = take_fds(&header, socket, &many);
    lacks = header.msg_flags & MSG_CTRUNC;
    /* No message of ours is empty, so nothing is lost by taking an empty one for the end. */
    sound = !many && !(header.msg_flags & MSG_TRUNC) && gs_wire_valid(ret_message, (size_t)got);
    if (!lacks)
        receive(socket, &none, 0);
    if (fd >= 0 && (lacks || !sound)) {
        gs_discard(fd, gs_socket_user(socket));
        fd = -1;
    }
    if (!sound && got > 0 && is_of_another_version(ret_message, (size_t)got))
        return -EPROTONOSUPPORT;
    if (!sound)
        return got == 0 && !lacks && !many ? -ENOTCONN : -EPROTO;
    if (lacks)
        return ret_fd ? -EMFILE : -EPROTO;
    if (ret_fd)
        *ret_fd = fd;
    return 0;
}
