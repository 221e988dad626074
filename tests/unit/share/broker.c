/* Memory that is left with a broker: opened when its process has ended, and never a stale byte. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "leave_by_hand.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, "keep=60000");
}

TestSuite(share_broker, .init = setup, .fini = scene_end, .timeout = 120);

/* Its share thread may be at the export just now. */
Test(share_broker, serves_what_a_killed_process_shared)
{
    unsigned char ipc_handle[2][GS_IPC_HANDLE_SIZE];
    CUdeviceptr address, second;

    export_and_leave(0, ipc_handle[0]);
    export_and_leave(1, ipc_handle[1]);
    other_kill(&other);
    cr_assert_eq(open_it(ipc_handle[0], &address), GS_OK);
    cr_assert_eq(*(char *)address, 70);
    cr_assert_eq(open_it(ipc_handle[1], &second), GS_OK);
    cr_assert_eq(*(char *)second, 71);
    cr_assert_eq(second, address + 512, "one mapping");
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_eq(gs_share_close(side.share, second), GS_OK);
}

Test(share_broker, serves_what_a_process_that_exited_shared_and_others_pass_on)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], passed_on[GS_IPC_HANDLE_SIZE];
    struct other third;
    unsigned long there;
    CUdeviceptr address;
    int status;

    export_and_leave(0, ipc_handle);
    cr_assert_eq(open_it(ipc_handle, &address), GS_OK);
    other_ask(&other, "exit");
    waitpid(other.pid, &status, 0);
    other.pid = 0;
    cr_assert_eq(gs_share_pass_on(side.share, address, passed_on), GS_OK);
    other_start(&third, dir, NULL);
    cr_assert_eq(other_open(&third, passed_on, &there), GS_OK);
    cr_assert_str_eq(other_ask(&third, "read %lx", there), "ok 70");
    cr_assert_eq(other_stop(&third), 0);
    cr_assert_eq(*(char *)address, 70);
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

Test(share_broker, a_child_that_holds_the_connection_does_not_keep_it_from_serving)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    int child;

    export_and_leave(0, ipc_handle);
    child = atoi(other_ask(&other, "fork") + 3);
    other_kill(&other);
    cr_assert_eq(open_it(ipc_handle, &address), GS_OK);
    cr_assert_eq(*(char *)address, 70);
    kill(child, SIGKILL);
}

/* The socket of a process that lives, so far, has gone. Its importer, refused for now, stands still
 * for longer than it waits, and the process is killed only then. */
Test(share_broker, an_importer_that_stood_still_waits_on_for_an_end)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    char path[128], hex[2 * GS_IPC_HANDLE_SIZE + 1];
    struct other third;
    uint64_t goes_on;

    export_and_leave(0, ipc_handle);
    ipc_handle_to_hex(ipc_handle, hex);
    snprintf(path, sizeof path, "%s/%.*s", dir, 2 * GS_INSTANCE_SIZE, hex + 16);
    cr_assert_eq(unlink(path), 0);
    other_start(&third, dir, NULL);
    fprintf(third.in, "open %s\n", hex);
    fflush(third.in);
    cr_assert(all_rest(third.pid));
    halt(third.pid);
    usleep(1100000);
    goes_on = side_now();
    kill(third.pid, SIGCONT);
    usleep(50000);
    other_kill(&other);
    cr_assert_not_null(fgets(third.answer, sizeof third.answer, third.out));
    cr_assert(!strncmp(third.answer, "ok ", 3) || !side_within(goes_on, 500 * MS), "%s",
              third.answer);
    cr_assert_eq(other_stop(&third), 0);
}

/* The same, and the socket is there again: who is refused by the broker asks its owner. */
Test(share_broker, an_importer_asks_a_process_whose_socket_was_away_for_a_moment)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    char away[sizeof((struct sockaddr_un *)0)->sun_path + 8], hex[2 * GS_IPC_HANDLE_SIZE + 1];
    struct sockaddr_un at;
    struct other third;

    export_and_leave(0, ipc_handle);
    ipc_handle_to_hex(ipc_handle, hex);
    side_path_of(dir, ipc_handle, &at);
    snprintf(away, sizeof away, "%s.away", at.sun_path);
    halt(other.pid); /* or it puts up another */
    cr_assert_eq(rename(at.sun_path, away), 0);
    other_start(&third, dir, NULL);
    fprintf(third.in, "open %s\n", hex);
    fflush(third.in);
    cr_assert(all_rest(third.pid));
    cr_assert_eq(rename(away, at.sun_path), 0);
    kill(other.pid, SIGCONT);
    cr_assert_not_null(fgets(third.answer, sizeof third.answer, third.out));
    cr_assert(!strncmp(third.answer, "ok ", 3), "%s", third.answer);
    cr_assert_eq(other_stop(&third), 0);
}

/* Nor is a broker slow that had no time to read. */
Test(share_broker, a_process_that_stood_still_waits_on_for_room)
{
    enum { MANY = 500 }; /* more than the socket takes, and what one may leave */
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t goes_on;
    pid_t broker;
    bool in_time, said;

    export_and_leave(0, ipc_handle);
    broker = side_broker_pid(dir);
    halt(broker);
    for (unsigned i = 1; i < MANY; i++)
        other_export(&other, i * 512, 512, 1, ipc_handle);
    cr_assert(all_rest(other.pid));
    halt(other.pid);
    usleep(700000);
    goes_on = side_now();
    kill(other.pid, SIGCONT);
    usleep(30000);
    kill(broker, SIGCONT);
    in_time = side_broker_published(dir) > 0 && side_within(goes_on, 400 * MS); /* it reads */
    cr_assert(SIDE_WAIT(side_broker_published(dir) == MANY), "it has %llu",
              side_broker_published(dir));
    said = !strcmp(other_ask(&other, "said without"), "ok");
    cr_assert(!said || !in_time);
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

Test(share_broker, keeps_what_is_opened_now_and_then)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    gs_status status = GS_UNREACHABLE;
    CUdeviceptr address;

    side_stop(&side);
    options.idle_ns = 0;
    side_start(&side, &options);
    cr_assert_eq(other_stop(&other), 0);
    for (int i = 0; i < 5 && status != GS_OK; i++) { /* what was opened too late is gone */
        uint64_t begin, last;

        other_start(&other, dir, "keep=400");
        export_and_leave(0, ipc_handle);
        begin = last = side_now();
        other_kill(&other);
        do {
            uint64_t now = side_now();

            status = open_it(ipc_handle, &address);
            cr_assert(status == GS_OK || !side_within(last, 400 * MS), "%d", status);
            if (status == GS_OK)
                cr_assert_eq(gs_share_close(side.share, address), GS_OK);
            last = now;
            usleep(20000);
        } while (status == GS_OK && side_within(begin, 1500 * MS));
    }
}

/* ---- By hand -------------------------------------------------------------------------------- */

Test(share_broker, serves_nobody_while_the_process_that_shares_lives)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int fd;

    export_and_leave(0, ipc_handle);
    fd = greet_broker(ipc_handle + 8, -1);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_EARLY);
    close(fd);
}

/* It runs, and may have lost it as a program does that closes what it does not know. */
Test(share_broker, keeps_what_a_living_process_confirms_whose_connection_was_lost)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], ipc_handle[GS_IPC_HANDLE_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY), confirmed = leave_memory();
    uint64_t closed, none = 0;

    export_and_leave(0, real); /* so that a broker runs */
    ipc_handle_by_hand(9, 1, ipc_handle);
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
    ipc_handle_by_hand(9, 1, ipc_handle);
    fd = dial_broker(ipc_handle + 8, -1);
    share_by_hand(fd, real, memory); /* another's handle */
    cr_assert_eq(ask_open(fd, real), GS_REFUSED_MESSAGE);
    close(fd);
    fd = dial_broker(ipc_handle + 8, -1); /* a block beyond its chunk */
    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    memcpy(message.share.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.share.chunk_size = 2 * MIB;
    message.share.offset = 2 * MIB - 511;
    cr_assert_eq(side_send(fd, &message, memory), 0);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_published(dir), 1);
    close(fd);
    close(memory);
}

/* In a child of fork_child, which ends where it is not so, saying why. */
#define CHILD_MUST(condition)                                                                 \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: not so: %s; the broker has %llu; logged: %s\n", __FILE__, \
                    __LINE__, #condition, side_broker_published(dir), side_logged());         \
            _exit(1);                                                                         \
        }                                                                                     \
    } while (0)

/* ---- Nobody waits for it -------------------------------------------------------------------- */

#define PUBLISHED_MANY 900u

/* Stopped, it is told nothing; what it was left is used again all the same, and it serves none of
 * that when it goes on, though its process has ended by then. */
Test(share_broker, stopped_it_keeps_no_memory_from_its_process_and_serves_none_of_it_later)
{
    pid_t broker = broker_by_hand("GPUSHIM_DEBUG_BROKER_BLOCKS", "4000"), child;
    unsigned char ipc_handle[2][GS_IPC_HANDLE_SIZE];
    int told[2], go[2];
    CUdeviceptr address;
    char byte = 0;

    cr_assert_eq(pipe(told), 0);
    cr_assert_eq(pipe(go), 0);
    child = fork_child();
    if (child == 0) {
        static struct gs_export *exports[PUBLISHED_MANY];
        struct side sharer;
        struct side_chunk piece;

        options.published_max = 4000;
        piece = sharer_start(&sharer);
        for (unsigned i = 0; i < PUBLISHED_MANY; i++)
            CHILD_MUST(side_export(&sharer, &piece, i * 512, 512, &exports[i]) == GS_OK);
        CHILD_MUST(SIDE_WAIT(side_broker_published(dir) == PUBLISHED_MANY));
        halt(broker);
        gs_export_handle(exports[0], ipc_handle[0]);
        gs_export_handle(exports[1], ipc_handle[1]);
        for (unsigned i = 1; i < PUBLISHED_MANY; i++)
            CHILD_MUST(side_gets_back(&sharer, exports[i]));
        CHILD_MUST(SIDE_WAIT(strstr(side_logged(), "reads nothing: ") != NULL));
        CHILD_MUST(write(told[1], ipc_handle, sizeof ipc_handle) == (ssize_t)sizeof ipc_handle &&
                   read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    close(told[1]);
    cr_assert_eq(read(told[0], ipc_handle, sizeof ipc_handle), (ssize_t)sizeof ipc_handle);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    kill(broker, SIGCONT);
    cr_assert_eq(open_it(ipc_handle[0], &address), GS_OK, "what was not taken back");
    cr_assert_eq(open_it(ipc_handle[1], &address), GS_STALE);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    close(told[0]);
    close(go[0]);
    close(go[1]);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* It is told when it reads again. */
Test(share_broker, that_goes_on_after_a_stop_gives_up_what_was_taken_back)
{
    pid_t broker = broker_by_hand("GPUSHIM_DEBUG_BROKER_BLOCKS", "4000");
    static struct gs_export *exports[PUBLISHED_MANY];
    struct side sharer;
    struct side_chunk piece;

    options.published_max = 4000;
    piece = sharer_start(&sharer);
    for (unsigned i = 0; i < PUBLISHED_MANY; i++)
        cr_assert_eq(side_export(&sharer, &piece, i * 512, 512, &exports[i]), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == PUBLISHED_MANY));
    halt(broker);
    for (unsigned i = 0; i < PUBLISHED_MANY; i++)
        cr_assert(side_gets_back(&sharer, exports[i]));
    for (unsigned i = 0; i < PUBLISHED_MANY; i++)
        cr_assert_eq(side_export(&sharer, &piece, i * 512, 512, &exports[i]), GS_OK);
    kill(broker, SIGCONT);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == PUBLISHED_MANY));
    for (unsigned i = 0; i < PUBLISHED_MANY; i++)
        cr_assert(side_gets_back(&sharer, exports[i]));
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 0));
    sharer_stop(&sharer, &piece, broker);
}

/* ---- How much it keeps, and of whom ---------------------------------------------------------- */

Test(share_broker, keeps_as_many_as_it_may_and_half_of_one)
{
    int fds[3], memory = open("/dev/null", O_RDONLY);
    pid_t child = broker_by_hand("GPUSHIM_DEBUG_BROKER_BLOCKS", "5");

    for (int i = 0; i < 3; i++) {
        unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

        for (uint64_t block = 1; block <= 4; block++) {
            ipc_handle_by_hand((unsigned char)(i + 1), block, ipc_handle);
            if (block == 1)
                fds[i] = dial_broker(ipc_handle + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
            share_by_hand(fds[i], ipc_handle, memory);
        }
        cr_assert_eq(ask_open(fds[i], ipc_handle), GS_REFUSED_HANDLE); /* it has read them all */
        cr_assert_eq(side_broker_published(dir), i == 0 ? 3 : 5, "%llu",
                     side_broker_published(dir));
    }
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close(memory);
}

Test(share_broker, who_shares_stays_connected_with_nothing_left_there)
{
    pid_t broker = broker_by_hand("GPUSHIM_DEBUG_MAX_CLIENTS", "3");
    int fd, others[6], memory = open("/dev/null", O_RDONLY), confirmed = leave_memory();
    struct pollfd end;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    ipc_handle_by_hand(9, 1, ipc_handle);
    fd = greet_broker(ipc_handle + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
    leave_by_hand_in(fd, confirmed);
    share_by_hand(fd, ipc_handle, memory);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    ring_by_hand(fd, confirmed, 1);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 0));
    for (int i = 0; i < 3; i++)
        cr_assert(is_asked_by_hand(fd));
    for (int i = 0; i < 6; i++)
        others[i] = greet_broker(ipc_handle + 8, -1); /* more than there is room for */
    end = (struct pollfd){.fd = fd, .events = POLLIN};
    cr_assert_eq(poll(&end, 1, 300), 0, "it was hung up on to make room");
    for (int i = 0; i < 6; i++)
        close(others[i]);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
    close(fd);
    close(memory);
}

/* Where each confirms what is its own. */
Test(share_broker, two_in_one_place_are_not_both_kept)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], first[GS_IPC_HANDLE_SIZE], second[GS_IPC_HANDLE_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY);
    union gs_wire_message message;

    export_and_leave(0, real); /* so that a broker runs */
    ipc_handle_by_hand(9, 1, first);
    ipc_handle_by_hand(9, 2, second);
    fd = dial_broker(first + 8, -1);
    share_by_hand(fd, first, memory);
    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    memcpy(message.share.ipc_handle, second, GS_IPC_HANDLE_SIZE);
    message.share.slot = 1;
    message.share.chunk_size = 2 * MIB;
    cr_assert_eq(side_send(fd, &message, memory), 0);
    cr_assert_eq(ask_open(fd, first), GS_REFUSED_EARLY);
    cr_assert_eq(ask_open(fd, second), GS_REFUSED_HANDLE);
    close(fd);
    close(memory);
}

/* Each answer is to one question. */
Test(share_broker, who_reads_nothing_that_it_is_asked_is_hung_up_on)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], instance[GS_INSTANCE_SIZE] = {9};
    union gs_wire_message message;
    int fd, error, sent = 0;

    export_and_leave(0, real);
    fd = dial_broker(instance, -1);
    gs_wire_start(&message, GS_WIRE_RING, 1);
    while ((error = gs_wire_send(fd, &message, -1)) != -EPIPE) {
        sent += error == 0;
        cr_assert_lt(sent, 1000, "it goes on reading");
        usleep(error ? 500 : 0);
    }
    close(fd);
}

static const char *broker_path(void)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    return path;
}

static int listen_as_broker(void)
{
    mkdir(dir, 0700);
    return side_listen(broker_path());
}

/* The other process ends, and the broker by hand. */
static void end_both(int listener, int fd)
{
    other_kill(&other);
    close(fd);
    close(listener);
    unlink(broker_path());
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
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_PULL, 0);
    message.pull.block_id = block_id;
    message.pull.piece = piece;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
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

    ipc_handle_by_hand(9, 1, ipc_handle);
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
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
    close(memory);
}

/* One for each process that ended, and of those there may be any number. */
Test(share_broker, connections_to_it_go_with_the_last_block)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    int before = 0;

    side_stop(&side);
    options.idle_ns = 0;
    side_start(&side, &options);
    for (int i = 0; i < 5; i++) {
        if (!other.pid)
            other_start(&other, dir, "keep=60000");
        other_export(&other, 0, 512, 70, ipc_handle);
        cr_assert(SIDE_WAIT(side_broker_published(dir) == (unsigned)i + 1));
        other_kill(&other);
        cr_assert_eq(open_it(ipc_handle, &address), GS_OK);
        cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        if (i == 0) {
            cr_assert(all_rest(0));
            before = side_open_fds();
        }
    }
    cr_assert(SIDE_WAIT(side_open_fds() <= before), "%d, %d before", side_open_fds(), before);
}
