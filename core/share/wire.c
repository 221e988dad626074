/* Messages between openers and exporters (core/share/wire.h): building, checking, moving. */
#include "core/share/wire.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WIRE_MAGIC   0x67707368u
#define WIRE_VERSION 1

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
};

void gs_wire_start(union gs_wire_message *message, enum gs_wire_type type, uint32_t request)
{
    memset(message, 0, sizeof *message);
    message->head = (struct gs_wire_head){
        .magic = WIRE_MAGIC,
        .version = WIRE_VERSION,
        .type = (uint16_t)type,
        .size = sizes[type],
        .request = request,
    };
}

bool gs_wire_valid(const union gs_wire_message *message, size_t length)
{
    const struct gs_wire_head *head = &message->head;

    return length >= sizeof *head && head->magic == WIRE_MAGIC && head->version == WIRE_VERSION &&
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
    return sent < 0 ? -errno : 0;
}

/* Takes the descriptors out of a received message: the only one, or -1. More than one is not in
 * the protocol; they are closed and *ret_many is set. */
static int take_fds(struct msghdr *header, bool *ret_many)
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
                close(fd);
        }
    }
    *ret_many = seen > 1;
    if (seen > 1) {
        close(kept);
        kept = -1;
    }
    return kept;
}

int gs_wire_receive(int socket, union gs_wire_message *ret_message, int *ret_fd)
{
    char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(sizeof(struct cmsghdr))));
    struct iovec part = {.iov_base = ret_message, .iov_len = sizeof *ret_message};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control};
    ssize_t got;
    bool many;
    int fd;

    *ret_fd = -1;
    do
        got = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return -errno;
    fd = take_fds(&header, &many);
    /* No message of ours is empty, so nothing is lost by taking an empty one for the end. */
    if (got == 0 || many || header.msg_flags & MSG_TRUNC ||
        !gs_wire_valid(ret_message, (size_t)got)) {
        if (fd >= 0)
            close(fd);
        return got == 0 ? -ENOTCONN : -EPROTO;
    }
    if (header.msg_flags & MSG_CTRUNC) {
        if (fd >= 0)
            close(fd);
        return -EMFILE;
    }
    *ret_fd = fd;
    return 0;
}
