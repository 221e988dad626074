/* Messages: only exact ones are taken, descriptors travel once and are never left over. */
#include <criterion/criterion.h>
#include <ctype.h>

#include "core/share/conn.h"
#include "by_hand.h"
#include "tests/system.h"

static int pair[2];

static void setup(void)
{
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static void teardown(void)
{
    close(pair[0]);
    close(pair[1]);
}

/* Numbers of messages that there were are no others'. */
static bool is_type(int type)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, 0);
    return message.head.size > 0;
}

TestSuite(share_wire, .init = setup, .fini = teardown);

/* Sends raw bytes with `count` copies of a descriptor. */
static void send_raw(const void *bytes, size_t size, int fd, unsigned count)
{
    char control[CMSG_SPACE((GS_PIECES_MAX + 1) * sizeof(int))] = {0};
    struct iovec part = {(void *)bytes, size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (count > 0) {
        struct cmsghdr *c;

        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        for (unsigned i = 0; i < count; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof fd);
    }
    cr_assert_eq(sendmsg(pair[0], &header, 0), (ssize_t)size);
}

Test(share_wire, any_other_length_is_refused)
{
    for (int type = GS_WIRE_HELLO; type < GS_WIRE_TYPES; type++) {
        union gs_wire_message message;
        char bytes[sizeof message + 1] = {0};

        gs_wire_start(&message, type, 1);
        memcpy(bytes, &message, sizeof message);
        for (size_t length = 0; length <= sizeof bytes; length++)
            cr_assert_eq(gs_wire_valid((const union gs_wire_message *)bytes, length),
                         length == message.head.size && is_type(type));
        message.head.size++;
        cr_assert_not(gs_wire_valid(&message, message.head.size));
    }
}

Test(share_wire, foreign_heads_are_refused)
{
    union gs_wire_message good, bad;

    gs_wire_start(&good, GS_WIRE_CLOSE, 1);
    for (size_t i = 0; i < 12; i++) { /* magic, version, type, size */
        bad = good;
        ((unsigned char *)&bad)[i] ^= 0xff;
        cr_assert_not(gs_wire_valid(&bad, good.head.size), "byte %zu", i);
    }
    bad = good;
    bad.head.type = 0;
    bad.head.size = 0;
    cr_assert_not(gs_wire_valid(&bad, sizeof bad.head));
    bad.head.type = GS_WIRE_TYPES;
    cr_assert_not(gs_wire_valid(&bad, sizeof bad.head));
}

Test(share_wire, a_descriptor_travels_and_is_close_on_exec)
{
    union gs_wire_message message = MESSAGE(SHARE, 1);
    int before = side_open_fds(), fd;

    cr_assert_eq(gs_wire_send(pair[0], &message, pair[1]), 0);
    cr_assert_eq(gs_wire_receive(pair[1], &message, &fd), 0);
    cr_assert_geq(fd, 0);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    cr_assert_eq(side_open_fds(), before);
}

/* As many as are allowed come to who expects them. */
Test(share_wire, pieces_bring_several_descriptors)
{
    union gs_wire_message message = MESSAGE(GRANT, 1), got;
    struct gs_wire_fds sent = {.count = GS_PIECES_MAX}, fds;
    int before = side_open_fds();

    for (unsigned i = 0; i < sent.count; i++)
        sent.fd[i] = pair[i % 2];
    cr_assert_eq(gs_wire_send_all(pair[0], &message, &sent), 0);
    cr_assert_eq(gs_wire_receive_all(pair[1], &got, &fds), 0);
    cr_assert_eq(fds.count, GS_PIECES_MAX);
    for (unsigned i = 0; i < fds.count; i++) {
        cr_assert(fcntl(fds.fd[i], F_GETFD) & FD_CLOEXEC);
        close(fds.fd[i]);
    }
    cr_assert_eq(side_open_fds(), before);
}

/* What may bring several brings none to who waits for no such message any more. */
Test(share_wire, descriptors_that_nobody_expects_are_closed)
{
    static const struct {
        enum gs_wire_type type; /* or so many bytes that are none: */
        size_t junk;
        unsigned sent;
        bool expects; /* several */
        int error;
    } cases[] = {
        {GS_WIRE_SHARE, 0, 2, false, -EPROTO},
        {GS_WIRE_SHARE, 0, 7, false, -EPROTO},
        {GS_WIRE_SHARE, 0, GS_PIECES_MAX, true, -EPROTO},
        {GS_WIRE_GRANT, 0, 2, false, 0},
        {GS_WIRE_GRANT, 0, GS_PIECES_MAX, false, 0},
        {GS_WIRE_GRANT, 0, GS_PIECES_MAX + 1, true, -EPROTO},
        {0, 1, 1, false, -EPROTO},
        {0, 4096, 1, false, -EPROTO},
    };
    static const char junk[4096] = "x";
    int before = side_open_fds();

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        union gs_wire_message message = message_of(cases[i].type, 1, (union gs_wire_message){}),
                              got;
        struct gs_wire_fds fds = {.count = 0};
        int fd = -1;

        if (cases[i].junk)
            send_raw(junk, cases[i].junk, pair[1], cases[i].sent);
        else
            send_raw(&message, message.head.size, pair[1], cases[i].sent);
        cr_assert_eq(cases[i].expects ? gs_wire_receive_all(pair[1], &got, &fds)
                                      : gs_wire_receive(pair[1], &got, &fd),
                     cases[i].error, "%zu", i);
        cr_assert_eq(fd, -1, "%zu", i);
        cr_assert_eq(fds.count, 0, "%zu", i);
        cr_assert(SIDE_WAIT(side_open_fds() == before), "%zu", i);
    }
}

Test(share_wire, another_version_is_told_from_garbage)
{
    union gs_wire_message message, got;
    int before = side_open_fds(), fd;

    for (int type = GS_WIRE_HELLO; type <= GS_WIRE_TYPES; type++) {
        gs_wire_start(&message, GS_WIRE_HELLO, 1);
        message.head.type = (uint16_t)type;
        message.head.version++;
        send_raw(&message, sizeof message.head + (size_t)type, pair[1], 1);
        cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EPROTONOSUPPORT);
        cr_assert_eq(got.head.version, message.head.version);
        send_raw(&message, sizeof message.head - 1, pair[1], 0);
        cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EPROTO);
    }
    cr_assert(SIDE_WAIT(side_open_fds() == before));
}

/* The structs of all messages as wire.h has them, but for comments and white space: FNV-1a. */
static uint64_t messages_as_written(void)
{
    static char text[1 << 16];
    uint64_t hash = 0xcbf29ce484222325;
    FILE *file = fopen(WIRE_H, "re");
    const char *at, *end;

    cr_assert_not_null(file);
    cr_assert_gt(fread(text, 1, sizeof text - 1, file), 0);
    fclose(file);
    at = strstr(text, "struct gs_wire_head {");
    end = strstr(text, "union gs_wire_message {");
    while (at < end) {
        if (strncmp(at, "/*", 2) == 0)
            at = strstr(at, "*/") + 2;
        else if (!isspace((unsigned char)*at++))
            hash = (hash ^ (unsigned char)at[-1]) * 0x100000001b3;
    }
    return hash;
}

/* Every field, and all lengths. Who has to change a number here has to count the version up. */
Test(share_wire, a_version_is_its_messages)
{
    static const uint32_t lengths[] = {0,  96,  112, 432, 24,  48,  48, 208, 120, 568, 24,
                                       24, 536, 48,  16,  376, 408, 16, 432, 32,  16};
    union gs_wire_message message;

    cr_assert_eq(GS_WIRE_VERSION, 1);
    cr_assert_eq(messages_as_written(), 0xb525ef6fb64ef17a, "%#" PRIx64, messages_as_written());
    cr_assert_eq((size_t)GS_WIRE_TYPES, sizeof lengths / sizeof *lengths);
    for (int type = GS_WIRE_HELLO; type < GS_WIRE_TYPES; type++) {
        gs_wire_start(&message, type, 0);
        cr_assert_eq(message.head.version, GS_WIRE_VERSION);
        cr_assert_eq(message.head.size, lengths[type], "type %d has %u bytes", type,
                     message.head.size);
    }
}

/* What every version has to understand of every other. */
Test(share_wire, the_head_and_the_refusal_are_those_of_all_versions)
{
    const unsigned char old[] = {0x68, 0x73, 0x70, 0x67, 1, 0, 4, 0, 24, 0, 0, 0,
                                 7,    0,    0,    0,    9, 0, 0, 0, 3,  0, 0, 0};
    union gs_wire_message message = MESSAGE(REFUSE, 7);

    message.head.version = 1;
    message.refuse.reason = GS_REFUSED_VERSION;
    message.refuse.driver_error = 3;
    cr_assert_eq(message.head.size, sizeof old);
    cr_assert_eq(memcmp(&message, old, sizeof old), 0);
    cr_assert_eq((int)GS_REFUSED_VERSION, 9);
}

/* They stay where they are: the kernel would close what it drops. */
Test(share_wire, descriptors_that_nobody_wants_are_not_taken)
{
    union gs_wire_message message = MESSAGE(HELLO, 1), got;
    int before = side_open_fds(), fd;

    send_raw(&message, message.head.size, pair[1], 7);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(gs_wire_receive(pair[1], &got, NULL), -EPROTO);
    cr_assert_eq(side_open_fds(), before);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EPROTO);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EAGAIN);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
}

Test(share_wire, without_room_for_its_descriptor_a_message_comes_again)
{
    union gs_wire_message message = MESSAGE(SHARE, 1), got;
    struct rlimit limit, none;
    int before = side_open_fds(), fd;

    cr_assert_eq(gs_wire_send(pair[0], &message, pair[1]), 0);
    getrlimit(RLIMIT_NOFILE, &limit);
    none = (struct rlimit){0, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EMFILE);
        cr_assert_eq(fd, -1);
        cr_assert_eq(got.head.type, GS_WIRE_SHARE);
    }
    setrlimit(RLIMIT_NOFILE, &limit);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), 0);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(side_open_fds(), before);
}

Test(share_wire, every_reason_has_words)
{
    for (uint32_t reason = GS_REFUSED_HANDLE; reason <= GS_REFUSED_MACHINE; reason++)
        cr_assert_str_neq(gs_wire_reason_text(reason), gs_wire_reason_text(UINT32_MAX));
    cr_assert_str_eq(gs_wire_reason_text(0), gs_wire_reason_text(UINT32_MAX));
}

static volatile sig_atomic_t pipe_signals;

static void count_signal(int number)
{
    pipe_signals++;
}

Test(share_wire, hang_up_and_silence_are_told_apart)
{
    union gs_wire_message got;
    int fd;

    signal(SIGPIPE, count_signal);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EAGAIN);
    shutdown(pair[0], SHUT_RDWR);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -ENOTCONN);
    gs_wire_start(&got, GS_WIRE_CLOSE, 1);
    cr_assert_eq(gs_wire_send(pair[1], &got, -1), -EPIPE);
    cr_assert_eq(pipe_signals, 0);
}

/* The kernel tells of that before it gives what was said. */
Test(share_wire, what_was_said_before_a_hang_up_with_something_unread_is_received)
{
    union gs_wire_message message = MESSAGE(RECALL, 0);
    int fd;

    cr_assert_eq(gs_wire_send(pair[1], &message, -1), 0);
    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    cr_assert_eq(gs_wire_send(pair[0], &message, -1), 0);
    close(pair[0]);
    pair[0] = -1;
    cr_assert_eq(gs_wire_receive(pair[1], &message, &fd), 0);
    cr_assert_eq(message.head.type, GS_WIRE_CLOSE);
    cr_assert_eq(gs_wire_receive(pair[1], &message, &fd), -ENOTCONN);
}
