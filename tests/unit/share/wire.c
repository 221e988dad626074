/* Messages: only exact ones are taken, descriptors travel once and are never left over. */
#include <criterion/criterion.h>

#include "core/share/conn.h"
#include "core/share/wire.h"
#include "side.h"
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
    char control[CMSG_SPACE(8 * sizeof(int))] = {0};
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

Test(share_wire, every_type_arrives_as_sent)
{
    for (int type = GS_WIRE_HELLO; type < GS_WIRE_TYPES; type++) {
        union gs_wire_message sent, got;
        int fd;

        if (!is_type(type))
            continue;
        gs_wire_start(&sent, type, 77);
        memset((char *)&sent + sizeof sent.head, type, sent.head.size - sizeof sent.head);
        cr_assert_eq(gs_wire_send(pair[0], &sent, -1), 0);
        cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), 0);
        cr_assert_eq(fd, -1);
        cr_assert_eq(memcmp(&sent, &got, sent.head.size), 0);
    }
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
    union gs_wire_message message;
    int before = side_open_fds(), fd;

    gs_wire_start(&message, GS_WIRE_SHARE, 1);
    cr_assert_eq(gs_wire_send(pair[0], &message, pair[1]), 0);
    cr_assert_eq(gs_wire_receive(pair[1], &message, &fd), 0);
    cr_assert_geq(fd, 0);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    cr_assert_eq(side_open_fds(), before);
}

Test(share_wire, too_many_descriptors_are_closed_and_refused)
{
    union gs_wire_message message, got;
    int before = side_open_fds(), fd;

    gs_wire_start(&message, GS_WIRE_SHARE, 1);
    for (unsigned count = 2; count < 8; count++) {
        send_raw(&message, message.head.size, pair[1], count);
        cr_assert_lt(gs_wire_receive(pair[1], &got, &fd), 0);
        cr_assert_eq(fd, -1);
        cr_assert(SIDE_WAIT(side_open_fds() == before));
    }
}

/* As many as are allowed, and to nobody but who expects them. */
Test(share_wire, pieces_bring_several_descriptors)
{
    union gs_wire_message message, got;
    struct gs_wire_fds sent = {.count = GS_PIECES_MAX}, fds;
    int before = side_open_fds(), fd;

    gs_wire_start(&message, GS_WIRE_GRANT, 1);
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
    cr_assert_eq(gs_wire_send_all(pair[0], &message, &sent), 0);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), 0);
    cr_assert_eq(fd, -1);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
    gs_wire_start(&message, GS_WIRE_SHARE, 1);
    cr_assert_eq(gs_wire_send_all(pair[0], &message, &sent), 0);
    cr_assert_eq(gs_wire_receive_all(pair[1], &got, &fds), -EPROTO);
    cr_assert_eq(fds.count, 0);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
}

Test(share_wire, more_pieces_than_there_may_be_are_refused)
{
    static char control[CMSG_SPACE((GS_PIECES_MAX + 1) * sizeof(int))];
    union gs_wire_message message, got;
    struct gs_wire_fds fds;
    struct iovec part = {&message, 0};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    int before = side_open_fds();

    gs_wire_start(&message, GS_WIRE_GRANT, 1);
    part.iov_len = message.head.size;
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((GS_PIECES_MAX + 1) * sizeof(int));
    for (unsigned i = 0; i <= GS_PIECES_MAX; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &pair[1], sizeof(int));
    cr_assert_eq(sendmsg(pair[0], &header, 0), (ssize_t)message.head.size);
    cr_assert_eq(gs_wire_receive_all(pair[1], &got, &fds), -EPROTO);
    cr_assert_eq(fds.count, 0);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
}

Test(share_wire, garbage_and_its_descriptor_are_dropped)
{
    union gs_wire_message got;
    char junk[4096];
    int before = side_open_fds(), fd;

    memset(junk, 'x', sizeof junk);
    send_raw(junk, 1, pair[1], 1);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EPROTO);
    send_raw(junk, sizeof junk, pair[1], 1);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EPROTO);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
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

/* Every place in the messages of this version, and their lengths. Who has to change a number here
 * has to count the version up. */
Test(share_wire, a_version_is_its_messages)
{
#define AT(type, field) offsetof(struct gs_wire_##type, field)
    static const size_t places[][2] = {
        {AT(head, magic), 0},
        {AT(head, version), 4},
        {AT(head, type), 6},
        {AT(head, size), 8},
        {AT(head, request), 12},
        {AT(hello, instance), 16},
        {AT(hello, from), 32},
        {AT(hello, stack), 48},
        {AT(hello, pid), 56},
        {AT(hello, name), 64},
        {AT(hello, holds), 80},
        {AT(hello, number), 84},
        {AT(hello, agent), 88},
        {AT(hello, zero), 92},
        {AT(open, ipc_handle), 16},
        {AT(open, want_fd), 80},
        {AT(open, cluster), 84},
        {AT(open, uid), 88},
        {AT(open, gid), 92},
        {AT(open, lease), 96},
        {AT(open, first), 104},
        {AT(open, zero), 108},
        {AT(grant, block_id), 16},
        {AT(grant, chunk_id), 24},
        {AT(grant, chunk_size), 32},
        {AT(grant, offset), 40},
        {AT(grant, size), 48},
        {AT(grant, uuid), 56},
        {AT(grant, read_only), 72},
        {AT(grant, strict), 76},
        {AT(grant, pieces), 80},
        {AT(grant, host), 84},
        {AT(grant, fd_offset), 88},
        {AT(grant, own), 96},
        {AT(grant, far), 100},
        {AT(grant, fabric), 104},
        {AT(grant, batch.first), 168},
        {AT(grant, batch.count), 172},
        {AT(grant, batch.sizes), 176},
        {AT(refuse, reason), 16},
        {AT(refuse, driver_error), 20},
        {AT(close, block_id), 16},
        {AT(close, instance), 24},
        {AT(close, lease), 40},
        {AT(flush, number), 16},
        {AT(flush, closed), 24},
        {AT(flush, chunks), 28},
        {AT(flush, chunk_ids), 32},
        {AT(flushed, number), 16},
        {AT(flushed, closing), 24},
        {AT(flushed, zero), 28},
        {AT(share, ipc_handle), 16},
        {AT(share, chunk_size), 80},
        {AT(share, offset), 88},
        {AT(share, uuid), 96},
        {AT(share, read_only), 112},
        {AT(share, slot), 116},
        {AT(query, index), 16},
        {AT(query, device), 20},
        {AT(query, about), 24},
        {AT(query, zero), 28},
        {AT(query, number), 32},
        {AT(query, instance), 40},
        {AT(query, secret), 40},
        {AT(query, name), 56},
        {AT(report, pid), 16},
        {AT(report, exports), 24},
        {AT(report, bytes), 32},
        {AT(report, limbo), 40},
        {AT(report, limbo_bytes), 48},
        {AT(report, limbo_age_ns), 56},
        {AT(report, clients), 64},
        {AT(report, is_broker), 68},
        {AT(report, client_pid), 72},
        {AT(report, client_age_ns), 80},
        {AT(report, references), 88},
        {AT(report, reference_bytes), 96},
        {AT(report, reference_age_ns), 104},
        {AT(report, limbo_references), 112},
        {AT(report, limbo_reference_bytes), 120},
        {AT(report, limbo_block.id), 128},
        {AT(report, limbo_block.size), 136},
        {AT(report, limbo_block.freed_ns), 144},
        {AT(report, limbo_block.held_ns), 152},
        {AT(report, left), 160},
        {AT(report, name), 168},
        {AT(report, client_name), 184},
        {AT(report, has_figures), 200},
        {AT(report, farewell), 204},
        {AT(report, figures), 208},
        {AT(report, client_seen), 368},
        {AT(report, client_hung_up), 372},
        {AT(report, opened.bytes), 376},
        {AT(report, opened.ended_bytes), 384},
        {AT(report, opened.owners), 392},
        {AT(report, opened.owner_ended), 396},
        {AT(report, opened.owner_pid), 400},
        {AT(report, opened.owner_blocks), 408},
        {AT(report, opened.owner_bytes), 416},
        {AT(report, opened.owner_mapped), 424},
        {AT(report, block.id), 432},
        {AT(report, block.instance), 440},
        {AT(report, block.size), 456},
        {AT(report, block.freed_ns), 464},
        {AT(report, block.is_freed), 472},
        {AT(report, block.is_early), 476},
        {AT(report, asleep.ns), 480},
        {AT(report, asleep.bytes), 488},
        {AT(farewell, device), 16},
        {AT(farewell, zero), 20},
        {AT(farewell, figures), 24},
        {AT(publish, uid_count), 16},
        {AT(publish, gid_count), 20},
        {AT(publish, uids), 24},
        {AT(publish, gids), 280},
        {AT(order, kind), 16},
        {AT(order, verb), 20},
        {AT(order, number), 24},
        {AT(order, zero), 28},
        {AT(order, value), 32},
        {AT(order, uuid), 40},
        {AT(order, name), 56},
        {AT(order, discard), 312},
        {AT(done, more), 16},
        {AT(done, outcome), 20},
        {AT(done, given), 24},
        {AT(done, ended), 24},
        {AT(done, set.before), 24},
        {AT(done, set.after), 32},
        {AT(done, collected.given), 24},
        {AT(done, collected.given_bytes), 32},
        {AT(done, collected.ended), 40},
        {AT(done, collected.ended_bytes), 48},
        {AT(done, collected.limbo), 56},
        {AT(done, collected.limbo_bytes), 64},
        {AT(done, sleep.ns), 24},
        {AT(done, sleep.away), 32},
        {AT(done, sleep.copied), 40},
        {AT(done, sleep.stays), 48},
        {AT(done, text), 88},
        {AT(name, block_id), 16},
        {AT(name, since_ns), 24},
        {AT(name, offset), 32},
        {AT(name, naming.name), 40},
        {AT(name, naming.label), 104},
        {AT(name, naming.note_size), 168},
        {AT(name, naming.zero), 172},
        {AT(name, naming.note), 176},
        {AT(report, named.state), 16},
        {AT(report, named.zero), 20},
        {AT(report, named.since_ns), 24},
        {AT(report, named.found.naming), 32},
        {AT(report, named.found.ipc_handle), 424},
        {AT(report, named.found.offset), 488},
        {AT(report, named.found.size), 496},
        {AT(report, named.found.address), 504},
        {AT(report, named.found.age_ns), 512},
        {AT(report, named.found.pid), 520},
        {AT(report, named.found.process), 528},
        {AT(report, named.found.uuid), 544},
        {AT(report, named.found.uid), 560},
        {AT(report, named.found.kept), 564},
        {AT(pull, block_id), 16},
        {AT(pull, piece), 24},
        {AT(pull, kept), 28},
        {AT(report, machine.client), 16},
        {AT(report, machine.has_agent), 24},
        {AT(report, machine.agent_pid), 28},
        {AT(report, machine.shared), 32},
        {AT(report, machine.opened), 40},
        {AT(report, machine.opened_bytes), 48},
        {AT(report, machine.machines), 56},
        {AT(report, machine.state), 60},
        {AT(report, machine.machine), 64},
        {AT(report, machine.name), 80},
        {AT(report, machine.leases), 112},
        {AT(report, machine.bytes), 120},
        {AT(report, machine.limbo), 128},
        {AT(report, machine.limbo_bytes), 136},
        {AT(report, machine.age_ns), 144},
        {AT(share, pieces), 120},
        {AT(share, piece), 124},
        {AT(share, piece_size), 128},
        {AT(share, far), 136},
        {AT(share, held), 140},
        {AT(share, fabric), 144},
    };
#undef AT
    static const uint32_t lengths[] = {0,  96,  112, 432, 24,  48,  48,  208, 120, 568, 256,
                                       32, 536, 48,  16,  376, 408, 184, 16,  432, 32,  16};
    union gs_wire_message message;

    cr_assert_eq(GS_WIRE_VERSION, 1);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        cr_assert_eq(places[i][0], places[i][1], "field %zu is at %zu", i, places[i][0]);
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
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_REFUSE, 7);
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
    union gs_wire_message message, got;
    int before = side_open_fds(), fd;

    gs_wire_start(&message, GS_WIRE_HELLO, 1);
    send_raw(&message, message.head.size, pair[1], 7);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(gs_wire_receive(pair[1], &got, NULL), -EPROTO);
    cr_assert_eq(side_open_fds(), before);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EPROTO);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), -EAGAIN);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
}

/* Nobody waits for what may bring several: whoever takes it for what it says has none of them. */
Test(share_wire, what_comes_too_late_brings_nothing)
{
    union gs_wire_message message, got;
    struct gs_wire_fds fds = {2, {pair[0], pair[1]}}, came;
    int before = side_open_fds(), fd;

    gs_wire_start(&message, GS_WIRE_GRANT, 1);
    cr_assert_eq(gs_wire_send_all(pair[0], &message, &fds), 0);
    cr_assert_eq(gs_wire_receive(pair[1], &got, &fd), 0);
    cr_assert_eq(fd, -1);
    cr_assert(SIDE_WAIT(side_open_fds() == before));
    cr_assert_eq(gs_wire_send_all(pair[0], &message, &fds), 0);
    cr_assert_eq(gs_wire_receive_all(pair[1], &got, &came), 0);
    cr_assert_eq(came.count, 2);
    close(came.fd[0]);
    close(came.fd[1]);
}

Test(share_wire, without_room_for_its_descriptor_a_message_comes_again)
{
    union gs_wire_message message, got;
    struct rlimit limit, none;
    int before = side_open_fds(), fd;

    gs_wire_start(&message, GS_WIRE_SHARE, 1);
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
    union gs_wire_message message;
    int fd;

    gs_wire_start(&message, GS_WIRE_RECALL, 0);
    cr_assert_eq(gs_wire_send(pair[1], &message, -1), 0);
    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    cr_assert_eq(gs_wire_send(pair[0], &message, -1), 0);
    close(pair[0]);
    pair[0] = -1;
    cr_assert_eq(gs_wire_receive(pair[1], &message, &fd), 0);
    cr_assert_eq(message.head.type, GS_WIRE_CLOSE);
    cr_assert_eq(gs_wire_receive(pair[1], &message, &fd), -ENOTCONN);
}

Test(share_wire, a_reader_that_sleeps_never_holds_up_the_sender)
{
    union gs_wire_message message;
    int error = 0, sent = 0;

    gs_wire_start(&message, GS_WIRE_REFUSE, 1);
    while (!error && sent++ < 100000)
        error = gs_wire_send(pair[0], &message, -1);
    cr_assert_eq(error, -EAGAIN);
}
