/* A block that lies across pieces is left with a broker a piece at a time: opened when its process
 * has ended, whole or not at all. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "by_hand.h"
#include "tests/children.h"
#include "tests/system.h"

#define PIECE (2 * MIB)
#define MANY \
    40 /* more than one message brings to an importer, and than the broker's socket takes */

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, "keep=60000");
}

TestSuite(share_broker_pieces, .init = setup, .fini = scene_end, .timeout = 120);

/* Of so many pieces: what lies in them but for 512 bytes at either end. */
static void export_across(unsigned pieces, unsigned char *ret_ipc_handle)
{
    const char *answer = other_ask(&other, "across %u 70", pieces);

    cr_assert_eq(strncmp(answer, "ok ", 3), 0, "%s", answer);
    ipc_handle_from_hex(answer + 3, ret_ipc_handle);
}

/* Once it is asked for an end, the broker has heard all that was said before. */
static void opens_all(const unsigned char *ipc_handle, unsigned pieces)
{
    CUdeviceptr address;

    cr_assert_eq(open_it(ipc_handle, &address), GS_OK, "%s", side_logged());
    for (unsigned i = 0; i < pieces; i++) {
        cr_assert_eq(((unsigned char *)address)[i * PIECE], (unsigned char)(70 + i));
        cr_assert_eq(((unsigned char *)address)[(i + 1) * PIECE - 1025], (unsigned char)(70 + i));
    }
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

Test(share_broker_pieces, all_of_it_opens_when_its_process_has_ended)
{
    unsigned char two[GS_IPC_HANDLE_SIZE], many[GS_IPC_HANDLE_SIZE];

    export_across(2, two);
    export_across(MANY, many);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "left"), "ok")));
    other_kill(&other);
    opens_all(two, 2);
    opens_all(many, MANY);
    opens_all(many, MANY);
}

/* What the broker was sent of it before that one is not asked for by the next; and what was left
 * before is left again. */
Test(share_broker_pieces, the_next_broker_has_all_of_it)
{
    unsigned char two[GS_IPC_HANDLE_SIZE], many[GS_IPC_HANDLE_SIZE];
    pid_t broker;

    export_across(2, two);
    export_across(MANY, many);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2));
    broker = side_broker_pid(dir);
    cr_assert_eq(kill(broker, SIGKILL), 0);
    cr_assert(SIDE_WAIT(side_broker_pid(dir) != 0 && side_broker_pid(dir) != broker));
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "left"), "ok")));
    other_kill(&other);
    opens_all(two, 2);
    opens_all(many, MANY);
}

/* It is stopped with a part of it, and its process takes it back: at once, and nothing of it is
 * served. */
Test(share_broker_pieces, a_broker_that_has_a_part_keeps_nobody_waiting)
{
    unsigned char many[GS_IPC_HANDLE_SIZE], two[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    pid_t broker;

    export_across(2, two);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "left"), "ok")));
    broker = side_broker_pid(dir);
    halt(broker);
    export_across(MANY, many);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    kill(broker, SIGCONT);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&other);
    cr_assert_eq(open_it(many, &address), GS_STALE);
    opens_all(two, 2);
}

/* So many descriptors its process has made. */
static int made(void)
{
    return atoi(other_ask(&other, "exports") + 3);
}

/* Each piece takes the driver 20 ms, and the first ones are made. */
static void export_slowly(unsigned char *ret_ipc_handle)
{
    other_ask(&other, "delay 20000");
    export_across(MANY, ret_ipc_handle);
    cr_assert(SIDE_WAIT(made() > 1));
}

/* From the begin of the exit on the driver may go at any time. */
Test(share_broker_pieces, none_is_made_for_it_at_an_exit)
{
    unsigned char many[GS_IPC_HANDLE_SIZE];
    int then;

    export_slowly(many);
    other_ask(&other, "ends");
    then = made();
    usleep(300000);
    cr_assert_leq(made(), then + 1, "one was under way");
    other_kill(&other);
}

Test(share_broker_pieces, what_is_freed_meanwhile_is_not_left)
{
    unsigned char many[GS_IPC_HANDLE_SIZE];

    export_slowly(many);
    other_ask(&other, "freed");
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    cr_assert_lt(made(), MANY);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 0));
    other_kill(&other);
}

/* Its process has no descriptor left in the midst of it, and then some again. */
Test(share_broker_pieces, all_of_it_is_left_where_descriptors_were_out_for_a_while)
{
    unsigned char many[GS_IPC_HANDLE_SIZE];

    export_slowly(many);
    other_ask(&other, "nofile 4");
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "left"), "no")));
    usleep(100000); /* five pieces' time */
    cr_assert_str_eq(other_ask(&other, "left"), "no");
    other_ask(&other, "nofile 1000");
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "left"), "ok")));
    other_kill(&other);
    opens_all(many, MANY);
}

/* ---- By hand --------------------------------------------------------------------------------- */

/* Of a chunk of three pieces, if it has not more. */
static void say_share(int fd, const unsigned char *ipc_handle, uint32_t pieces, uint32_t piece,
                      uint64_t size, int memory)
{
    union gs_wire_message message = message_share(ipc_handle);

    message.share.slot = 1;
    message.share.chunk_size = (pieces > 60 ? pieces : 3) * PIECE;
    message.share.pieces = pieces;
    message.share.piece = piece;
    message.share.piece_size = size;
    cr_assert_eq(say_with(fd, message, memory), 0);
}

/* A process by hand leaves a block of three pieces and is killed; the sizes end with a 0. What an
 * open then says. */
static int left_and_opened(const uint64_t *sizes)
{
    static unsigned char instance = 20;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int memory = open("/dev/null", O_RDONLY), fd, reason;
    pid_t child;

    ipc_handle_by_hand(++instance, 1, 512, ipc_handle);
    child = fork_child();
    if (child == 0) {
        fd = dial_broker(ipc_handle + 8, -1);
        for (unsigned i = 0; sizes[i]; i++)
            say_share(fd, ipc_handle, 3, i, sizes[i], memory);
        ask_open(fd, ipc_handle); /* it has read them all */
        _exit(0);
    }
    cr_assert_eq(waitpid(child, NULL, 0), child);
    do {
        fd = greet_broker(ipc_handle + 8, -1);
        reason = ask_open(fd, ipc_handle);
        close(fd);
    } while (reason == GS_REFUSED_EARLY); /* its end is not seen yet */
    close(memory);
    return reason;
}

Test(share_broker_pieces, a_part_of_it_is_not_served)
{
    unsigned char kept[GS_IPC_HANDLE_SIZE];

    export_and_leave(0, kept); /* so there is a broker */
    cr_assert_eq(left_and_opened((uint64_t[]){PIECE, PIECE, PIECE, 0}), 0);
    cr_assert_eq(left_and_opened((uint64_t[]){PIECE, PIECE, 0}), GS_REFUSED_HANDLE);
    cr_assert_eq(left_and_opened((uint64_t[]){PIECE, 0}), GS_REFUSED_HANDLE);
}

/* By all, as the broker says. */
static uint64_t left_with_broker(void)
{
    uint64_t left = 0, clients = 1;
    union gs_wire_message message;
    int fd = side_broker_dial(dir);

    for (unsigned i = 0; i < clients; i++) {
        cr_assert_eq(say(fd, MESSAGE(QUERY, 1, .query = {.index = i})), 0);
        cr_assert_eq(hear(fd, &message), GS_WIRE_REPORT);
        clients = message.report.clients;
        left += message.report.left;
    }
    close(fd);
    return left;
}

Test(share_broker_pieces, a_part_of_it_is_not_said_to_be_left)
{
    unsigned char kept[GS_IPC_HANDLE_SIZE], ipc_handle[GS_IPC_HANDLE_SIZE];
    int memory = open("/dev/null", O_RDONLY), fd;
    uint64_t before;

    export_and_leave(0, kept);
    before = left_with_broker();
    ipc_handle_by_hand(40, 1, 512, ipc_handle);
    fd = dial_broker(ipc_handle + 8, -1);
    for (unsigned i = 0; i < 3; i++) {
        say_share(fd, ipc_handle, 3, i, PIECE, memory);
        ask_open(fd, ipc_handle); /* it has read that */
        cr_assert_eq(left_with_broker(), before + (i == 2), "piece %u", i);
    }
    close(fd);
    close(memory);
}

/* What a broker says to who leaves these pieces of one block, from that one on: it hangs up where
 * they cannot be. */
static int faulty(const uint64_t *sizes, uint32_t pieces, uint32_t first)
{
    static unsigned char instance = 40;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int memory = open("/dev/null", O_RDONLY), fd, reason;

    ipc_handle_by_hand(++instance, 1, 512, ipc_handle);
    fd = dial_broker(ipc_handle + 8, -1);
    for (unsigned i = 0; sizes[i]; i++)
        say_share(fd, ipc_handle, pieces, first + i, sizes[i], memory);
    reason = ask_open(fd, ipc_handle);
    close(fd);
    close(memory);
    return reason;
}

Test(share_broker_pieces, nothing_unsound_is_believed)
{
    unsigned char kept[GS_IPC_HANDLE_SIZE];

    export_and_leave(0, kept);
    cr_assert_eq(faulty((uint64_t[]){PIECE, PIECE, 0}, 3, 0), GS_REFUSED_EARLY,
                 "nothing is wrong yet");
    cr_assert_eq(faulty((uint64_t[]){PIECE, 0}, 4, 0), GS_REFUSED_MESSAGE,
                 "more than it has pages");
    cr_assert_eq(faulty((uint64_t[]){PIECE, 0}, 3, 1), GS_REFUSED_MESSAGE, "not the first of all");
    cr_assert_eq(faulty((uint64_t[]){PIECE, 0}, 3, 3), GS_REFUSED_MESSAGE, "beyond the last");
    cr_assert_eq(faulty((uint64_t[]){PIECE / 2, 0}, 3, 0), GS_REFUSED_MESSAGE, "half a page");
    cr_assert_eq(faulty((uint64_t[]){2 * PIECE, PIECE, 0}, 3, 0), GS_REFUSED_MESSAGE, "all in two");
    cr_assert_eq(faulty((uint64_t[]){PIECE, PIECE, 2 * PIECE, 0}, 3, 0), GS_REFUSED_MESSAGE,
                 "more than all");
    cr_assert_eq(faulty((uint64_t[]){PIECE, PIECE, PIECE, PIECE, 0}, 3, 0), GS_REFUSED_MESSAGE,
                 "a fourth");
    cr_assert_eq(faulty((uint64_t[]){PIECE, 0}, 1, 0), GS_REFUSED_MESSAGE, "not all in the last");
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2), "the first one's process goes on");
}

/* What is told of as pieces is no chunk in which another block lies, nor the other way round. */
Test(share_broker_pieces, a_chunk_is_told_of_in_one_way)
{
    unsigned char across[GS_IPC_HANDLE_SIZE], within[GS_IPC_HANDLE_SIZE], kept[GS_IPC_HANDLE_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY), confirmed = leave_memory();

    export_and_leave(0, kept);
    ipc_handle_by_hand(61, 1, 512, across);
    ipc_handle_by_hand(61, 2, 512, within);
    fd = greet_broker(across + 8, -1);
    leave_by_hand_in(fd, confirmed);
    say_share(fd, across, 3, 0, PIECE, memory);
    share_by_hand(fd, within, memory);
    cr_assert_eq(ask_open(fd, across), GS_REFUSED_EARLY);
    cr_assert_eq(ask_open(fd, within), GS_REFUSED_HANDLE);
    ring_by_hand(fd, confirmed, 1);
    share_by_hand(fd, within, memory);
    say_share(fd, across, 3, 0, PIECE, memory);
    cr_assert_eq(ask_open(fd, within), GS_REFUSED_EARLY);
    cr_assert_eq(ask_open(fd, across), GS_REFUSED_HANDLE);
    close(fd);
    close(memory);
}

/* Each piece is a descriptor of the broker's, and is counted before it comes: of 200, 66 are for
 * clients, and one process has half of the rest. */
Test(share_broker_pieces, they_count_as_descriptors)
{
    const struct rlimit few = {200, 200};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int fd, confirmed = leave_memory();
    pid_t broker;

    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    broker = broker_by_hand("GPUSHIM_DEBUG_MAX_CLIENTS", "1");
    ipc_handle_by_hand(60, 1, 512, ipc_handle);
    fd = greet_broker(ipc_handle + 8, -1);
    leave_by_hand_in(fd, confirmed);
    say_share(fd, ipc_handle, 68, 0, PIECE, fd);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_HANDLE);
    say_share(fd, ipc_handle, 67, 0, PIECE, fd);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_EARLY);
    ipc_handle_by_hand(60, 2, 512, ipc_handle);
    share_by_hand(fd, ipc_handle, fd);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_HANDLE);
    ring_by_hand(fd, confirmed, 1);
    ipc_handle_by_hand(60, 1, 512, ipc_handle);
    say_share(fd, ipc_handle, 67, 0, PIECE, fd);
    cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_EARLY, "there is room again");
    close(fd);
    end_broker(broker);
}
