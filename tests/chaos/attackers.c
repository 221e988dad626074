/*
 * The neighbours of hostile.c: plain programs without the shim and without CUDA that speak the
 * protocol by hand and wrongly. Each runs in processes of its own until its time is over.
 */
#include "hostile.h"

#include "../unit/share/leave_by_hand.h"
#include "core/share/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define CONNECTIONS     10000
#define CONNECT_LIMIT_S 60
#define KEPT_OPEN       900 /* by one attacker at a time */
#define SENT_MOST       400 /* descriptors under way, where the kernel limits them */
#define ANY_USER        65534
#define ANSWER_MS       20000
/* Each keeps a place (debug.max_clients) for as long as the attacker lives: two of these take fewer than there are. */
#define CLAIMS          400

/* -1: it is not taken within that time (0: whatever that takes), or refused. */
static int dial_within(long us)
{
    const struct timeval limit = {us / 1000000, us % 1000000};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char broker[GS_BROKER_NAME_SIZE] = "";
    struct gs_ipc_handle ipc_handle;
    int n;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (board->by_broker)
        gs_broker_name(broker);
    n = snprintf(to.sun_path, sizeof to.sun_path, "%.60s/%s", hostile_dir, broker);
    memcpy(&ipc_handle, board->ipc_handle, sizeof ipc_handle);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE && !board->by_broker; i++)
        n += sprintf(to.sun_path + n, "%02x", ipc_handle.instance[i]);
    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
        connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
        atomic_fetch_add(&board->connected, 1);
        return fd;
    }
    n = errno;
    close(fd);
    errno = n;
    return -1;
}

int dial(void)
{
    return dial_within(0);
}

/* With the instance of a handle, and as another process: its number, its pidfd. */
static void hello_as(int fd, const unsigned char *ipc_handle, pid_t pid, int pidfd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle + offsetof(struct gs_ipc_handle, instance),
           GS_INSTANCE_SIZE);
    message.hello.pid = (uint64_t)pid;
    memset(message.hello.name, 'x', sizeof message.hello.name);
    if (gs_wire_send(fd, &message, pidfd) == -ETOOMANYREFS) /* it takes none */
        gs_wire_send(fd, &message, -1);
}

static void hello(int fd)
{
    hello_as(fd, board->ipc_handle, 1, -1);
}

static void send_open(int fd, bool good, uint32_t want_fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, board->ipc_handle, GS_IPC_HANDLE_SIZE);
    if (!good)
        message.open.ipc_handle[GS_IPC_HANDLE_SIZE - 1] ^= 1;
    message.open.want_fd = want_fd;
    gs_wire_send(fd, &message, -1);
}

static bool time_is_up(void)
{
    return atomic_load(&board->over) || atomic_load(&board->is_wrong);
}

/* Opens as fast as it can with a secret that is wrong, and reads nothing. */
static void flood(void)
{
    while (!time_is_up()) {
        int fd = dial();

        hello(fd);
        for (int i = 0; i < 2000 && !time_is_up(); i++)
            send_open(fd, false, 1);
        close(fd);
    }
}

/* What is under way is counted for the user, and beyond the limit of descriptors the kernel sends none of its
 * processes' any more, honest or not. Nothing but a privilege helps against that. */
static bool is_limited_by_kernel(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct has[_LINUX_CAPABILITY_U32S_3] = {{0}};

    syscall(SYS_capget, &head, has);
    return !(has[0].effective & (1u << CAP_SYS_ADMIN | 1u << CAP_SYS_RESOURCE));
}

/* Asks for the real block and takes none of the descriptors; keeps hundreds of connections, or as many
 * as are taken: two of these may fill what the exporter has room for before either has all. */
static void stall(void)
{
    const unsigned opens = is_limited_by_kernel() ? 1 : 8;
    int fds[KEPT_OPEN / 2];
    unsigned count = 0;

    while (count < KEPT_OPEN / 2 && !time_is_up()) {
        fds[count] = dial_within(100000);
        if (fds[count] < 0)
            continue;
        hello(fds[count]);
        for (unsigned i = 0; i < opens; i++)
            send_open(fds[count], true, 1);
        count++;
    }
    while (!time_is_up())
        sleep_us(10000);
    while (count)
        close(fds[--count]);
}

/* Beginnings of messages, and messages of every length. */
static void halves(void)
{
    unsigned seed = 2;

    while (!time_is_up()) {
        union gs_wire_message message;
        int fd = dial();

        hello(fd);
        gs_wire_start(&message, GS_WIRE_OPEN, 1);
        send(fd, &message, 1 + (unsigned)rand_r(&seed) % (message.head.size - 1),
             MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
}

static void garbage(void)
{
    unsigned seed = 3;
    unsigned char junk[4096];

    while (!time_is_up()) {
        int fd = dial();

        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (unsigned char)rand_r(&seed);
        if (rand_r(&seed) % 2)
            hello(fd);
        send(fd, junk, (unsigned)rand_r(&seed) % sizeof junk, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
}

/* Good messages with many descriptors, which would fill the exporter's table. */
static void descriptors(void)
{
    char control[CMSG_SPACE(200 * sizeof(int))] __attribute__((aligned(8)));
    const struct rlimit few = {SENT_MOST, SENT_MOST};
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (is_limited_by_kernel())
        setrlimit(RLIMIT_NOFILE, &few);
    while (!time_is_up()) {
        union gs_wire_message message;
        struct iovec part = {&message, 0};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                                .msg_controllen = sizeof control};
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        int fd = dial();

        memset(control, 0, sizeof control);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(200 * sizeof(int));
        for (size_t i = 0; i < 200; i++)
            memcpy(CMSG_DATA(c) + i * sizeof null, &null, sizeof null);
        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        memcpy(message.hello.instance, board->ipc_handle + offsetof(struct gs_ipc_handle, instance),
               GS_INSTANCE_SIZE);
        part.iov_len = message.head.size;
        sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    close(null);
}

/* Ten thousand connections that say nothing; as many of them as the table holds stay open. */
static void many(void)
{
    static int fds[KEPT_OPEN];
    uint64_t limit = now_ns() + CONNECT_LIMIT_S * UINT64_C(1000000000);
    unsigned made = 0;

    memset(fds, -1, sizeof fds);
    while (made < CONNECTIONS && now_ns() < limit && !atomic_load(&board->is_wrong)) {
        int fd = dial();

        if (fd < 0)
            continue;
        if (fds[made % KEPT_OPEN] >= 0)
            close(fds[made % KEPT_OPEN]);
        fds[made++ % KEPT_OPEN] = fd;
    }
    if (made < CONNECTIONS)
        wrong("only %u connections could be made in %d s", made, CONNECT_LIMIT_S);
    for (unsigned i = 0; i < KEPT_OPEN; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Asks who holds what, as fast as it reads the answers. */
static void questions(void)
{
    union gs_wire_message message;
    int fd = dial(), extra;

    while (!time_is_up()) {
        gs_wire_start(&message, GS_WIRE_QUERY, 1);
        message.query.index = 7;
        if (gs_wire_send(fd, &message, -1) == -EPIPE) {
            close(fd);
            fd = dial();
        }
        while (gs_wire_receive(fd, &message, &extra) == 0)
            continue;
    }
    close(fd);
}

/* Says that it is the honest opener: takes a reference under that name and ends. If that ended the
 * honest one's lease, its memory would be handed out under it. */
static void identities(void)
{
    int pidfds[2] = {(int)syscall(SYS_pidfd_open, board->honest, 0),
                     (int)syscall(SYS_pidfd_open, getppid(), 0)};

    for (unsigned i = 0; i < CLAIMS && !time_is_up(); i++) {
        int fd = dial();
        struct pollfd answer = {.fd = fd, .events = POLLIN};

        hello_as(fd, board->ipc_handle, board->honest, pidfds[i % 2]);
        send_open(fd, i % 3, 1);
        poll(&answer, 1, ANSWER_MS);
        close(fd);
    }
    close(pidfds[0]);
    close(pidfds[1]);
}

/* Every other version must be answered in words. */
static void versions(void)
{
    for (unsigned i = 0; !time_is_up(); i++) {
        union gs_wire_message message;
        int fd = dial(), reason = 0;
        struct pollfd answer = {.fd = fd, .events = POLLIN};

        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        message.head.version = (uint16_t)(i % 2 ? 0 : message.head.version + 1 + i);
        gs_wire_send(fd, &message, -1);
        /* A reset comes before the last words. */
        for (int tries = 0; tries < 2 && !reason && poll(&answer, 1, ANSWER_MS) == 1; tries++)
            if (recv(fd, &message, sizeof message, MSG_DONTWAIT) > 0)
                reason = (int)message.refuse.reason;
        if (reason != GS_REFUSED_VERSION)
            wrong("version %u was answered with %d", (unsigned)message.head.version, reason);
        close(fd);
    }
}

static void send_share(int fd, const struct gs_ipc_handle *ipc_handle, int memory, uint64_t offset)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    gs_ipc_handle_write(ipc_handle, message.share.ipc_handle);
    message.share.chunk_size = 2 << 20;
    message.share.offset = offset;
    message.share.slot = (uint32_t)ipc_handle->block_id;
    for (int error = -EAGAIN; error == -EAGAIN || error == -ETOOMANYREFS;) {
        error = gs_wire_send(fd, &message, memory);
        if (error)
            sleep_us(200);
        if (time_is_up())
            break;
    }
}

/* Whether it is asked for what is next; not by a broker that is stopped. */
static bool is_asked(int fd)
{
    struct pollfd asked = {.fd = fd, .events = POLLIN};

    return poll(&asked, 1, 1000) == 1 && is_asked_by_hand(fd);
}

/* Leaves as many blocks with the broker as it can, each with a descriptor. */
static void fill(void)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC), fd = dial();
    struct gs_ipc_handle ipc_handle = {.size = 512};

    gs_random(ipc_handle.instance, sizeof ipc_handle.instance);
    hello_as(fd, (const unsigned char *)&ipc_handle, 1, -1);
    leave_by_hand(fd);
    while (is_asked(fd) && !time_is_up()) {
        ipc_handle.block_id++;
        ipc_handle.chunk_id = ipc_handle.block_id < 8000 ? ipc_handle.block_id : 1;
        send_share(fd, &ipc_handle, null, 0);
    }
    close(fd);
    close(null);
}

/* Leaves blocks in the exporter's name, before it does; unsound ones; takes its blocks back. */
static void squat(void)
{
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct gs_ipc_handle ipc_handle;

    for (uint64_t i = 0; !time_is_up(); i++) {
        union gs_wire_message message;
        int fd = dial();

        gs_ipc_handle_read(board->own, &ipc_handle);
        hello_as(fd, board->own, 1, -1);
        if (i % 4)
            leave_by_hand(fd);
        gs_wire_start(&message, GS_WIRE_RING, 1);
        gs_wire_send(fd, &message, -1);
        ipc_handle.block_id += i % 1000;
        send_share(fd, &ipc_handle, null, i % 3 ? 0 : UINT64_MAX - 5);
        close(fd);
    }
    close(null);
}

/* Another user, whom nobody has listed: the folder or the socket is closed to him. */
static void other_user(void)
{
    if (setgid(ANY_USER) != 0 || setuid(ANY_USER) != 0)
        return; /* not root: there is no other user to be had */
    while (!time_is_up()) {
        int fd = dial();
        char byte;

        if (fd >= 0) {
            hello(fd);
            send_open(fd, true, 1);
            if (recv(fd, &byte, 1, 0) > 0)
                wrong("another user got an answer");
            close(fd);
        } else if (errno == EACCES) {
            atomic_fetch_add(&board->turned_away, 1);
        }
        sleep_us(100);
    }
}

const struct phase phases[] = {
    {.name = "nobody"},
    {"a flood of wrong handles", flood, 2},
    {"stalled clients that asked for hundreds of descriptors", stall, 2},
    {"halves of messages", halves, 2},
    {"garbage", garbage, 2},
    {"messages with 200 descriptors", descriptors, 2},
    {"10,000 connections", many, 1, .is_many = true},
    {"another user", other_user, 1, .is_other_user = true},
    {"a flood of questions", questions, 2},
    {"claimed identities", identities, 2},
    {"other versions", versions, 2},
    {"as many blocks as one can leave", fill, 1, .for_broker = true},
    {"blocks in another's name", squat, 2, .for_broker = true},
};
const unsigned phase_count = sizeof phases / sizeof *phases;
