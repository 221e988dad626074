/* Memory that is left with a broker: opened when its process has ended, and never a stale byte. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "by_hand.h"
#include "core/share/conn.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, "keep=60000");
}

TestSuite(share_broker, .init = setup, .fini = scene_end, .timeout = 120);

/* What other machines hold is left anew with who has no room for it, so its process is to hear that
 * there is none. */
Test(share_broker, hangs_up_where_it_has_no_room_for_what_others_hold)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int fd, confirmed = leave_memory();
    pid_t broker = broker_by_hand("GPUSHIM_DEBUG_BROKER_BLOCKS", "1");

    ipc_handle_by_hand(60, 1, 512, ipc_handle);
    fd = greet_broker(ipc_handle + 8, -1);
    leave_by_hand_in(fd, confirmed);
    share_by_hand(fd, ipc_handle, fd);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_EARLY);
    for (uint32_t held = 0; held < 2; held++) {
        union gs_wire_message message;

        ipc_handle_by_hand(60, 2 + held, 512, ipc_handle);
        message = message_share(ipc_handle);
        message.share.far = 1;
        message.share.held = held;
        cr_assert_eq(say_with(fd, message, fd), 0);
        cr_assert_eq(ask_open(fd, ipc_handle), held ? GS_REFUSED_MESSAGE : GS_REFUSED_HANDLE);
    }
    close(fd);
    close(confirmed);
    end_broker(broker);
}

Test(share_broker, does_not_serve_what_was_taken_back)
{
    unsigned char kept[GS_IPC_HANDLE_SIZE], back[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    export_and_leave(0, kept);
    export_and_leave(1, back);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    other_kill(&other); /* at once: what it said before counts */
    cr_assert_eq(open_it(back, &address), GS_STALE);
    cr_assert_not_null(strstr(side_logged(), "has ended, and the broker does not have it"), "%s",
                       side_logged());
    cr_assert_eq(open_it(kept, &address), GS_OK);
}

Test(share_broker, keeps_what_is_open_and_ends_when_nobody_needs_it)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status = GS_UNREACHABLE;
    CUdeviceptr address;

    cr_assert_eq(other_stop(&other), 0);
    for (int i = 0; i < 10 && status != GS_OK; i++) {
        uint64_t killed;

        other_start(&other, dir, "keep=300");
        export_and_leave(0, ipc_handle);
        killed = side_now();
        other_kill(&other);
        status = open_it(ipc_handle, &address);
        cr_assert(status == GS_OK || !side_within(killed, 300 * MS), "%d", status);
    }
    cr_assert_eq(status, GS_OK, "it is never opened in time");
    usleep(1000000);
    cr_assert_neq(side_broker_pid(dir), 0, "it ended under its importer");
    cr_assert_eq(side_broker_published(dir), 1, "what is open was dropped");
    side_stop(&side);
    cr_assert(side_broker_gone(dir), "it does not end");
    side_start(&side, &options);
    cr_assert_eq(open_it(ipc_handle, &address), GS_UNREACHABLE);
}

/* ---- By hand -------------------------------------------------------------------------------- */

/* It runs, and may have lost it as a program does that closes what it does not know. */
Test(share_broker, keeps_what_a_living_process_confirms_whose_connection_was_lost)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], ipc_handle[GS_IPC_HANDLE_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY), confirmed = leave_memory();
    uint64_t closed, none = 0;

    export_and_leave(0, real); /* so that a broker runs */
    ipc_handle_by_hand(9, 1, 512, ipc_handle);
    fd = greet_broker(ipc_handle + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
    leave_by_hand_in(fd, confirmed);
    share_by_hand(fd, ipc_handle, memory);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2));
    closed = side_now();
    close(fd);
    fd = greet_broker(ipc_handle + 8, -1);
    while (side_within(closed, 2500 * MS)) {
        cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_EARLY);
        usleep(50000);
    }
    cr_assert_eq(side_broker_published(dir), 2);
    cr_assert_eq(pwrite(confirmed, &none, sizeof none, sizeof none), (ssize_t)sizeof none);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1), "it is not confirmed any more");
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_HANDLE);
    close(fd);
    close(memory);
    close(confirmed);
}

Test(share_broker, takes_back_for_the_owner_alone_and_believes_nothing_unsound)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int fd, memory = open("/dev/null", O_RDONLY);

    export_and_leave(0, real);
    fd = dial_broker(real + 8, -1); /* says that it is the other one */
    cr_assert_eq(answer_to_open(fd), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_published(dir), 1);
    close(fd);
    ipc_handle_by_hand(9, 1, 512, ipc_handle);
    fd = dial_broker(ipc_handle + 8, -1);
    share_by_hand(fd, real, memory); /* another's handle */
    cr_assert_eq(ask_open(fd, real), GS_REFUSED_MESSAGE);
    close(fd);
    fd = dial_broker(ipc_handle + 8, -1); /* a block beyond its chunk */
    message = message_share(ipc_handle);
    message.share.offset = 2 * MIB - 511;
    cr_assert_eq(say_with(fd, message, memory), 0);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_published(dir), 1);
    close(fd);
    close(memory);
}

/* ---- How much it keeps, and of whom ---------------------------------------------------------- */

/* Where each confirms what is its own. */
Test(share_broker, two_in_one_place_are_not_both_kept)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], first[GS_IPC_HANDLE_SIZE], second[GS_IPC_HANDLE_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY);
    union gs_wire_message message;

    export_and_leave(0, real); /* so that a broker runs */
    ipc_handle_by_hand(9, 1, 512, first);
    ipc_handle_by_hand(9, 2, 512, second);
    fd = dial_broker(first + 8, -1);
    share_by_hand(fd, first, memory);
    message = message_share(second);
    message.share.slot = 1;
    cr_assert_eq(say_with(fd, message, memory), 0);
    cr_assert_eq(ask_open(fd, first), GS_REFUSED_EARLY);
    cr_assert_eq(ask_open(fd, second), GS_REFUSED_HANDLE);
    close(fd);
    close(memory);
}

/* Each answer is to one question. */
Test(share_broker, who_reads_nothing_that_it_is_asked_is_hung_up_on)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], instance[GS_INSTANCE_SIZE] = {9};
    int fd, error, sent = 0;

    export_and_leave(0, real);
    fd = dial_broker(instance, -1);
    while ((error = say(fd, MESSAGE(RING, 1))) != -EPIPE) {
        sent += error == 0;
        cr_assert_lt(sent, 1000, "it goes on reading");
        usleep(error ? 500 : 0);
    }
    close(fd);
}

static int listen_as_broker(void)
{
    mkdir(dir, 0700);
    return side_listen(side_broker_path(dir));
}

/* The other process ends, and the broker by hand. */
static void end_both(int listener, int fd)
{
    other_kill(&other);
    close(fd);
    close(listener);
    unlink(side_broker_path(dir));
}

/* A broker by hand, as soon as somebody has something for it. Who asks for figures, as a gpushim
 * top of root's does that runs beside the tests, has nothing. */
static int be_broker(int listener)
{
    union gs_wire_message message;
    int fd, first;

    while ((first = side_next_message(fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC),
                                      &message)) == GS_WIRE_QUERY)
        close(fd);
    cr_assert_eq(first, GS_WIRE_HELLO);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_PUBLISH);
    return fd;
}

static void pull(int fd, uint64_t block_id, uint32_t piece)
{
    cr_assert_eq(say(fd, MESSAGE(PULL, 0, .pull = {.block_id = block_id, .piece = piece})), 0);
}

static uint64_t next_shared(int fd)
{
    union gs_wire_message message;
    struct gs_ipc_handle ipc_handle;

    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_SHARE);
    cr_assert_eq(gs_ipc_handle_read(message.share.ipc_handle, &ipc_handle), GS_OK);
    return ipc_handle.block_id;
}

/* Nor is anything lost where one asks twice. */
Test(share_broker, who_asks_for_a_piece_that_there_is_not_is_hung_up_on)
{
    static const uint32_t unsound[] = {0, 3, UINT32_MAX};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int listener = listen_as_broker(), fd;

    cr_assert_eq(strncmp(other_ask(&other, "across 3 70"), "ok ", 3), 0);
    for (unsigned i = 0; i < 3; i++) {
        fd = be_broker(listener);
        pull(fd, 0, 0);
        pull(fd, next_shared(fd), unsound[i]);
        cr_assert_eq(side_next_message(fd, &message), 0, "piece %u", unsound[i]);
        close(fd);
    }
    fd = be_broker(listener);
    pull(fd, 0, 0);
    pull(fd, 0, 0);
    cr_assert_eq(next_shared(fd), 1);
    other_export(&other, 0, 512, 70, ipc_handle);
    cr_assert_eq(next_shared(fd), 2);
    end_both(listener, fd);
}

/* Who shares is asked, and told what to hold for other machines: whatever else its broker says ends
 * the connection, also what is another's to say. */
Test(share_broker, what_is_not_a_brokers_to_say_is_refused)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int listener = listen_as_broker();

    for (unsigned type = 1; type < GS_WIRE_TYPES; type++) {
        bool is_its = type == GS_WIRE_PULL || type == GS_WIRE_OPEN || type == GS_WIRE_CLOSE;
        struct other sharer = {.pid = 0}; /* each has lost no broker yet, and looks at once */
        int fd;

        other_start(&sharer, dir, "keep=60000");
        other_export(&sharer, 0, 512, 70, ipc_handle);
        while (gs_conn_who(fd = be_broker(listener)).pid != sharer.pid)
            close(fd); /* of the one before, which has looked again meanwhile */
        say(fd, message_of((enum gs_wire_type)type, 0, (union gs_wire_message){0}));
        say(fd, MESSAGE(PULL, 0));
        cr_assert_eq(side_next_message(fd, &message), is_its ? GS_WIRE_SHARE : 0, "type %u", type);
        close(fd);
        cr_assert_eq(other_stop(&sharer), 0, "type %u", type);
    }
    close(listener);
    unlink(side_broker_path(dir));
}

/* Nor is what a broker says, or what is said to it or to an agent by others, an answer to it. */
Test(share_broker, what_is_not_its_to_say_is_no_answer)
{
    static const enum gs_wire_type others[] = {GS_WIRE_REFUSE, GS_WIRE_REPORT, GS_WIRE_FLUSH,
                                               GS_WIRE_DONE, GS_WIRE_PULL};
    unsigned char real[GS_IPC_HANDLE_SIZE], instance[GS_INSTANCE_SIZE] = {9};

    export_and_leave(0, real);
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        int fd = dial_broker(instance, -1);

        cr_assert(is_asked_by_hand(fd));
        say(fd, message_of(others[i], 0, (union gs_wire_message){0}));
        cr_assert_eq(refusal_and_end(fd), GS_REFUSED_MESSAGE, "type %d", others[i]);
        close(fd);
    }
}

/* Its program waits for the broker to have it, five seconds at most: not the test. */
static void publish_last(void)
{
    fputs("name w 0 1\n", other.in);
    fflush(other.in);
}

static bool is_published(void)
{
    struct gs_found found;

    return gs_share_look_up(side.share, "w", &found) == GS_LOOK_FOUND;
}

Test(share_broker, what_got_a_name_is_left_before_what_got_none)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int listener = listen_as_broker(), fd;

    for (unsigned i = 0; i < 4; i++)
        other_export(&other, i * 512, 512, 70, ipc_handle);
    fd = be_broker(listener);
    publish_last();
    cr_assert(SIDE_WAIT(is_published()));
    pull(fd, 0, 0);
    cr_assert_eq(next_shared(fd), 4);
    pull(fd, 0, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_NAME);
    for (unsigned i = 1; i < 4; i++) {
        pull(fd, 0, 0);
        cr_assert_eq(next_shared(fd), i);
    }
    end_both(listener, fd);
}

/* The one before it takes the driver so long meanwhile. All of them come, and none twice. */
Test(share_broker, what_got_a_name_while_another_one_is_told_is_left_too)
{
    int listener = listen_as_broker(), fd, names = 0;
    union gs_wire_message message;
    struct gs_ipc_handle ipc_handle;
    unsigned shared = 0;

    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(strncmp(other_ask(&other, "across 3 70"), "ok ", 3), 0);
    other_ask(&other, "delay 200000");
    fd = be_broker(listener);
    pull(fd, 0, 0);
    usleep(100000);
    publish_last();
    for (unsigned i = 0; i < 4; i++, pull(fd, 0, 0)) {
        if (side_next_message(fd, &message) == GS_WIRE_NAME) {
            names++;
            continue;
        }
        cr_assert_eq(message.head.type, GS_WIRE_SHARE);
        cr_assert_eq(gs_ipc_handle_read(message.share.ipc_handle, &ipc_handle), GS_OK);
        shared |= 1u << ipc_handle.block_id;
    }
    cr_assert_eq(names, 1);
    cr_assert_eq(shared, 2 | 4 | 8);
    end_both(listener, fd);
}

/* What a process shared that the broker hung up on is not served when that process ends next. */
Test(share_broker, what_a_faulty_process_left_is_dropped_at_once)
{
    pid_t broker = broker_by_hand("GPUSHIM_LOG", "debug"), child;
    int fd, memory = open("/dev/null", O_RDONLY);
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    ipc_handle_by_hand(9, 1, 512, ipc_handle);
    child = fork_child();
    if (child == 0) {
        fd = dial_broker(ipc_handle + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
        share_by_hand(fd, ipc_handle, memory);
        share_by_hand(fd, ipc_handle, memory); /* twice: hung up on */
        _exit(ask_open(fd, ipc_handle) != GS_REFUSED_MESSAGE);
    }
    cr_assert_eq(waitpid(child, NULL, 0), child);
    fd = greet_broker(ipc_handle + 8, -1);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_HANDLE);
    close(fd);
    end_broker(broker);
    close(memory);
}
