/* Memory that is left with a broker: opened when its process has ended, and never a stale byte. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/share/wire.h"
#include "leave_by_hand.h"
#include "scene.h"
#include "tests/children.h"

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, "keep=60000");
}

TestSuite(share_broker, .init = setup, .fini = scene_end, .timeout = 120);

static gs_status open_it(const unsigned char *token, CUdeviceptr *ret_address)
{
    return gs_share_open(side.share, token, SIDE_CONTEXT, 0, ret_address);
}

static void offer_and_leave(unsigned long number, unsigned char *ret_token)
{
    other_offer(&other, number * 512, 512, (int)(70 + number), ret_token);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == number + 1), "the broker has %llu", side_broker_left(dir));
}

/* Its share thread may be at the offer just now. */
Test(share_broker, serves_what_a_killed_process_shared)
{
    unsigned char token[2][GS_TOKEN_SIZE];
    CUdeviceptr address, second;

    offer_and_leave(0, token[0]);
    offer_and_leave(1, token[1]);
    other_kill(&other);
    cr_assert_eq(open_it(token[0], &address), GS_OK);
    cr_assert_eq(*(char *)address, 70);
    cr_assert_eq(open_it(token[1], &second), GS_OK);
    cr_assert_eq(*(char *)second, 71);
    cr_assert_eq(second, address + 512, "one mapping");
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_eq(gs_share_close(side.share, second), GS_OK);
}

Test(share_broker, serves_what_a_process_that_exited_shared_and_others_pass_on)
{
    unsigned char token[GS_TOKEN_SIZE], passed_on[GS_TOKEN_SIZE];
    struct other third;
    unsigned long there;
    CUdeviceptr address;
    int status;

    offer_and_leave(0, token);
    cr_assert_eq(open_it(token, &address), GS_OK);
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
    unsigned char kept[GS_TOKEN_SIZE], back[GS_TOKEN_SIZE];
    CUdeviceptr address;

    offer_and_leave(0, kept);
    offer_and_leave(1, back);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    other_kill(&other); /* at once: what it said before counts */
    cr_assert_eq(open_it(back, &address), GS_STALE);
    cr_assert_eq(open_it(kept, &address), GS_OK);
}

Test(share_broker, a_child_that_holds_the_connection_does_not_keep_it_from_serving)
{
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    int child;

    offer_and_leave(0, token);
    child = atoi(other_ask(&other, "fork") + 3);
    other_kill(&other);
    cr_assert_eq(open_it(token, &address), GS_OK);
    cr_assert_eq(*(char *)address, 70);
    kill(child, SIGKILL);
}

/* The socket of a process that lives, so far, has gone. Its opener, refused for now, stands still
 * for longer than it waits, and the process is killed only then. */
Test(share_broker, an_opener_that_stood_still_waits_on_for_an_end)
{
    unsigned char token[GS_TOKEN_SIZE];
    char path[128], hex[2 * GS_TOKEN_SIZE + 1];
    struct other third;
    uint64_t goes_on;

    offer_and_leave(0, token);
    token_to_hex(token, hex);
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

/* Nor is a broker slow that had no time to read. */
Test(share_broker, a_process_that_stood_still_waits_on_for_room)
{
    enum { MANY = 500 }; /* more than the socket takes, and what one may leave */
    unsigned char token[GS_TOKEN_SIZE];
    uint64_t goes_on;
    pid_t broker;
    bool in_time, said;

    offer_and_leave(0, token);
    broker = side_broker_pid(dir);
    halt(broker);
    for (unsigned i = 1; i < MANY; i++)
        other_offer(&other, i * 512, 512, 1, token);
    cr_assert(all_rest(other.pid));
    halt(other.pid);
    usleep(700000);
    goes_on = side_now();
    kill(other.pid, SIGCONT);
    usleep(30000);
    kill(broker, SIGCONT);
    in_time = side_broker_left(dir) > 0 && side_within(goes_on, 400 * MS); /* it reads */
    cr_assert(SIDE_WAIT(side_broker_left(dir) == MANY), "it has %llu", side_broker_left(dir));
    said = !strcmp(other_ask(&other, "said without"), "ok");
    cr_assert(!said || !in_time);
}

Test(share_broker, killed_itself_takes_nobody_down)
{
    unsigned char before[GS_TOKEN_SIZE], after[GS_TOKEN_SIZE];
    struct gs_share_options brokered = options;
    struct side_chunk piece;
    struct gs_offer *offer;
    unsigned long there;

    side_stop(&side);
    brokered.broker = true;
    brokered.keep_ns = 1000000000;
    snprintf(brokered.broker_program, sizeof brokered.broker_program, "%s", BROKER_PROGRAM);
    side_start(&side, &brokered);
    piece = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(side_offer(&side, &piece, 0, 512, &offer), GS_OK);
    gs_offer_token(offer, before);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    cr_assert_eq(waitpid(-1, NULL, WNOHANG | __WALL) >= 0 || errno == ECHILD, 1);
    kill(side_broker_pid(dir), SIGKILL);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "the broker has ended") != NULL));
    cr_assert_eq(other_open(&other, before, &there), GS_OK);
    other_ask(&other, "close %lx", there);
    cr_assert(side_gets_back(&side, offer));
    cr_assert_eq(side_offer(&side, &piece, 0, 512, &offer), GS_OK);
    gs_offer_token(offer, after);
    cr_assert_eq(other_open(&other, after, &there), GS_OK);
    other_ask(&other, "close %lx", there);
    cr_assert(side_gets_back(&side, offer));
    side_chunk_free(&side, &piece);
}

Test(share_broker, killed_itself_it_is_replaced_by_one_that_has_all)
{
    unsigned char token[4][GS_TOKEN_SIZE];
    CUdeviceptr address;

    for (unsigned i = 0; i < 3; i++)
        offer_and_leave(i, token[i]);
    cr_assert(SIDE_WAIT(other_withdraws(&other))); /* the last one */
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 2));
    kill(side_broker_pid(dir), SIGKILL);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 2), "it has %llu", side_broker_left(dir));
    other_offer(&other, 8192, 512, 73, token[3]);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 3));
    other_kill(&other);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(open_it(token[i], &address), i == 2 ? GS_STALE : GS_OK, "block %d", i);
        if (i != 2)
            cr_assert_eq(*(char *)address, 70 + i);
    }
}

/* What is freed before the next one is there must not be left with it. */
Test(share_broker, the_next_one_is_not_left_what_was_freed)
{
    unsigned char kept[GS_TOKEN_SIZE], freed[GS_TOKEN_SIZE];
    CUdeviceptr address;

    offer_and_leave(0, kept);
    offer_and_leave(1, freed);
    kill(side_broker_pid(dir), SIGKILL);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "said broker"), "ok")));
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1), "it has %llu", side_broker_left(dir));
    other_kill(&other);
    cr_assert_eq(open_it(freed, &address), GS_STALE);
    cr_assert_eq(open_it(kept, &address), GS_OK);
}

static volatile sig_atomic_t children_ended;

static void on_child(int number)
{
    children_ended++;
}

Test(share_broker, the_program_does_not_see_its_start)
{
    struct gs_share_options brokered = options;
    struct side_chunk piece;
    struct gs_offer *offer;
    struct side second;
    int children;

    signal(SIGCHLD, on_child);
    children = children_ended;
    brokered.broker = true;
    brokered.keep_ns = 1000000000;
    snprintf(brokered.broker_program, sizeof brokered.broker_program, "%s", BROKER_PROGRAM);
    side_start(&second, &brokered);
    piece = side_chunk_new(&second, 2 * MIB);
    cr_assert_eq(side_offer(&second, &piece, 0, 512, &offer), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    cr_assert_eq(children_ended, children);
    cr_assert(side_gets_back(&second, offer));
    side_stop(&second);
    side_chunk_free(&second, &piece);
}

/* A launcher takes the orphans of what it starts, as PID 1 of a container does, and waits for all.
 * While its worker runs it sees nothing of the broker that the worker has started; when nothing else
 * is left that does not keep it for as long as the broker keeps what was shared. */
Test(share_broker, a_launcher_that_waits_for_all_its_children_is_not_kept)
{
    struct gs_share_options brokered = options;
    int told[2], go[2];
    pid_t launcher;
    char seen[2];

    cr_assert_eq(pipe(told), 0);
    cr_assert_eq(pipe(go), 0);
    launcher = fork_child();
    if (launcher == 0) {
        pid_t worker, ended;
        int strangers = 0;

        prctl(PR_SET_CHILD_SUBREAPER, 1);
        worker = fork_child();
        if (worker == 0) {
            struct side_chunk its;
            struct gs_offer *offer;
            struct side second;

            brokered.broker = true;
            brokered.keep_ns = 3600 * UINT64_C(1000000000);
            snprintf(brokered.broker_program, sizeof brokered.broker_program, "%s", BROKER_PROGRAM);
            side_start(&second, &brokered);
            its = side_chunk_new(&second, 2 * MIB);
            if (side_offer(&second, &its, 0, 512, &offer) != GS_OK ||
                !SIDE_WAIT(side_broker_left(dir) == 1) || write(told[1], "", 1) != 1 ||
                read(go[0], seen, 1) != 1)
                _exit(1);
            _exit(0);
        }
        if (read(told[0], seen, 1) != 1)
            _exit(1);
        ended = waitpid(-1, NULL, WNOHANG); /* the worker runs, and so does the broker */
        if (ended != 0)
            strangers = 100;
        if (write(go[1], "", 1) != 1)
            _exit(1);
        while ((ended = wait(NULL)) > 0)
            strangers += ended != worker;
        _exit(strangers);
    }
    close(told[0]);
    close(told[1]);
    close(go[0]);
    close(go[1]);
    for (int status, i = 0;; i++) {
        pid_t ended = waitpid(launcher, &status, WNOHANG);

        cr_assert_lt(i, 40000, "it waits for the broker");
        if (ended == launcher) {
            cr_assert(WIFEXITED(status));
            cr_assert_leq(WEXITSTATUS(status), 1, "the broker is one process, seen at its end");
            break;
        }
        usleep(1000);
    }
}

/* Whether the broker was started with that in its environment. */
static bool was_told(const char *words)
{
    char path[64], bytes[4096];
    size_t size;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/environ", (int)side_broker_pid(dir));
    file = fopen(path, "re");
    cr_assert_not_null(file);
    size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return memmem(bytes, size, words, strlen(words) + 1) != NULL;
}

Test(share_broker, that_a_process_starts_has_the_limits_of_that_process)
{
    struct gs_share_options brokered = options;
    struct side_chunk piece;
    struct gs_offer *offer;
    struct side second;

    brokered.broker = true;
    brokered.keep_ns = 1000000001;
    brokered.settle_ns = 2000002;
    brokered.timeout_ns = 3000000003;
    brokered.max_clients = 44;
    brokered.left_max = 555;
    brokered.uids[brokered.uid_count++] = 66;
    brokered.uids[brokered.uid_count++] = 77;
    brokered.gids[brokered.gid_count++] = 88;
    snprintf(brokered.broker_program, sizeof brokered.broker_program, "%s", BROKER_PROGRAM);
    side_start(&second, &brokered);
    piece = side_chunk_new(&second, 2 * MIB);
    cr_assert_eq(side_offer(&second, &piece, 0, 512, &offer), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    cr_assert(was_told("GPUSHIM_SHARE_KEEP=1000000001ns"));
    cr_assert(was_told("GPUSHIM_SHARE_SETTLE=2000002ns"));
    cr_assert(was_told("GPUSHIM_SHARE_TIMEOUT=3000000003ns"));
    cr_assert(was_told("GPUSHIM_SHARE_MAX_CLIENTS=44"));
    cr_assert(was_told("GPUSHIM_SHARE_BROKER_BLOCKS=555"));
    cr_assert(was_told("GPUSHIM_SHARE_UIDS=66,77"));
    cr_assert(was_told("GPUSHIM_SHARE_GIDS=88"));
    cr_assert(side_gets_back(&second, offer));
    side_stop(&second);
    side_chunk_free(&second, &piece);
}

Test(share_broker, that_cannot_be_started_is_said_and_done_without)
{
    struct gs_share_options brokered = options;
    unsigned char token[GS_TOKEN_SIZE];
    struct side_chunk piece;
    struct gs_offer *offer;
    unsigned long there;

    side_stop(&side);
    brokered.broker = true;
    snprintf(brokered.broker_program, sizeof brokered.broker_program, "/nonexistent/broker");
    side_start(&side, &brokered);
    piece = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(side_offer(&side, &piece, 0, 512, &offer), GS_OK);
    gs_offer_token(offer, token);
    cr_assert_eq(other_open(&other, token, &there), GS_OK);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "no broker (") != NULL));
    cr_assert_eq(side_log_lines(), 1);
    other_ask(&other, "close %lx", there);
    cr_assert(side_gets_back(&side, offer));
    side_chunk_free(&side, &piece);
}

Test(share_broker, keeps_what_is_open_and_ends_when_nobody_needs_it)
{
    unsigned char token[GS_TOKEN_SIZE];
    gs_status status = GS_UNREACHABLE;
    CUdeviceptr address;

    cr_assert_eq(other_stop(&other), 0);
    for (int i = 0; i < 10 && status != GS_OK; i++) {
        uint64_t killed;

        other_start(&other, dir, "keep=300");
        offer_and_leave(0, token);
        killed = side_now();
        other_kill(&other);
        status = open_it(token, &address);
        cr_assert(status == GS_OK || !side_within(killed, 300 * MS), "%d", status);
    }
    cr_assert_eq(status, GS_OK, "it is never opened in time");
    usleep(1000000);
    cr_assert_neq(side_broker_pid(dir), 0, "it ended under its opener");
    cr_assert_eq(side_broker_left(dir), 1, "what is open was dropped");
    side_stop(&side);
    cr_assert(side_broker_gone(dir), "it does not end");
    side_start(&side, &options);
    cr_assert_eq(open_it(token, &address), GS_UNREACHABLE);
}

Test(share_broker, keeps_what_is_opened_now_and_then)
{
    unsigned char token[GS_TOKEN_SIZE];
    gs_status status = GS_UNREACHABLE;
    CUdeviceptr address;

    side_stop(&side);
    options.idle_ns = 0;
    side_start(&side, &options);
    cr_assert_eq(other_stop(&other), 0);
    for (int i = 0; i < 5 && status != GS_OK; i++) { /* what was opened too late is gone */
        uint64_t begin, last;

        other_start(&other, dir, "keep=400");
        offer_and_leave(0, token);
        begin = last = side_now();
        other_kill(&other);
        do {
            uint64_t now = side_now();

            status = open_it(token, &address);
            cr_assert(status == GS_OK || !side_within(last, 400 * MS), "%d", status);
            if (status == GS_OK)
                cr_assert_eq(gs_share_close(side.share, address), GS_OK);
            last = now;
            usleep(20000);
        } while (status == GS_OK && side_within(begin, 1500 * MS));
    }
}

/* ---- By hand -------------------------------------------------------------------------------- */

static int dial_broker(const unsigned char *instance, int pidfd)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    union gs_wire_message message;

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, instance, GS_INSTANCE_SIZE);
    cr_assert_eq(side_send(fd, &message, pidfd), 0);
    leave_by_hand(fd);
    return fd;
}

static void send_open(int fd, const unsigned char *token)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.token, token, GS_TOKEN_SIZE);
    gs_wire_send(fd, &message, -1);
}

/* The reason of the refusal, 0 for a grant, -1 for a hang-up without a word. */
static int answer_to_open(int fd)
{
    union gs_wire_message message;

    for (int tries = 0; recv(fd, &message, sizeof message, 0) <= 0; tries++)
        if (tries || errno != ECONNRESET) /* a reset comes before the last words */
            return -1;
    return message.head.type == GS_WIRE_GRANT ? 0 : (int)message.refuse.reason;
}

static int ask_open(int fd, const unsigned char *token)
{
    send_open(fd, token);
    return answer_to_open(fd);
}

static void token_by_hand(unsigned char instance, uint64_t block, unsigned char *ret_token)
{
    struct gs_token token = {.block_id = block, .chunk_id = 1, .size = 512};

    memset(token.instance, instance, sizeof token.instance);
    gs_token_write(&token, ret_token);
}

static void share_by_hand(int fd, const unsigned char *token, int memory)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    memcpy(message.share.token, token, GS_TOKEN_SIZE);
    memcpy(&message.share.slot, token + offsetof(struct gs_token, block_id),
           sizeof message.share.slot);
    message.share.chunk_size = 2 * MIB;
    cr_assert_eq(side_send(fd, &message, memory), 0);
}

Test(share_broker, serves_nobody_while_the_process_that_shares_lives)
{
    unsigned char token[GS_TOKEN_SIZE];
    int fd;

    offer_and_leave(0, token);
    fd = dial_broker(token + 8, -1);
    cr_assert_eq(ask_open(fd, token), GS_REFUSED_EARLY);
    close(fd);
}

Test(share_broker, drops_what_a_living_process_left_whose_connection_was_lost)
{
    unsigned char real[GS_TOKEN_SIZE], token[GS_TOKEN_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY), reason;
    uint64_t closed;

    offer_and_leave(0, real); /* so that a broker runs */
    token_by_hand(9, 1, token);
    fd = dial_broker(token + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
    share_by_hand(fd, token, memory);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 2));
    closed = side_now();
    close(fd);
    fd = dial_broker(token + 8, -1);
    reason = ask_open(fd, token);
    cr_assert(reason == GS_REFUSED_EARLY || !side_within(closed, 1000 * MS), "%d", reason);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    cr_assert_eq(ask_open(fd, token), GS_REFUSED_TOKEN);
    close(fd);
    close(memory);
}

Test(share_broker, takes_back_for_the_owner_alone_and_believes_nothing_unsound)
{
    unsigned char real[GS_TOKEN_SIZE], token[GS_TOKEN_SIZE];
    union gs_wire_message message;
    int fd, memory = open("/dev/null", O_RDONLY);

    offer_and_leave(0, real);
    fd = dial_broker(real + 8, -1); /* says that it is the other one */
    gs_wire_start(&message, GS_WIRE_UNSHARE, 0);
    memcpy(&message.unshare.block_id, real + 24, sizeof message.unshare.block_id);
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    share_by_hand(fd, real, memory); /* again: refused, and so is its sender */
    cr_assert_eq(ask_open(fd, real), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_left(dir), 1);
    close(fd);
    token_by_hand(9, 1, token);
    fd = dial_broker(real + 8, -1); /* another's token */
    share_by_hand(fd, token, memory);
    cr_assert_eq(ask_open(fd, real), GS_REFUSED_MESSAGE);
    close(fd);
    fd = dial_broker(token + 8, -1); /* a block beyond its chunk */
    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    memcpy(message.share.token, token, GS_TOKEN_SIZE);
    message.share.chunk_size = 2 * MIB;
    message.share.offset = 2 * MIB - 511;
    cr_assert_eq(side_send(fd, &message, memory), 0);
    cr_assert_eq(ask_open(fd, token), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_left(dir), 1);
    close(fd);
    close(memory);
}

static int run_broker(const char *argument, char *ret_text, size_t size)
{
    char command[512];
    FILE *out;
    size_t got;

    snprintf(command, sizeof command, "GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR=%s timeout 20 %s %s 2>&1",
             dir, BROKER_PROGRAM, argument);
    out = popen(command, "r");
    got = fread(ret_text, 1, size - 1, out);
    ret_text[got] = 0;
    return pclose(out);
}

Test(share_broker, there_is_one_for_a_directory)
{
    unsigned char token[GS_TOKEN_SIZE];
    char said[512];
    pid_t first;

    offer_and_leave(0, token);
    first = side_broker_pid(dir);
    cr_assert_neq(run_broker("", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "a broker runs"), "%s", said);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0);
    cr_assert_eq(side_broker_pid(dir), first);
    kill(first, SIGKILL); /* its socket stays behind, and is no hindrance */
    cr_assert(SIDE_WAIT(side_broker_pid(dir) != first));
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
    cr_assert_neq(side_broker_pid(dir), 0);
}

Test(share_broker, one_killed_before_it_listened_is_no_hindrance)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    char said[512];

    cr_assert_eq(mkdir(dir, 0700), 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s.new", dir, side_broker_name());
    cr_assert_eq(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
    close(fd);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
    cr_assert_neq(side_broker_pid(dir), 0);
    cr_assert_eq(access(to.sun_path, F_OK), -1);
}

Test(share_broker, a_locked_directory_is_not_waited_for_for_ever)
{
    char said[512];
    int fd;

    cr_assert_eq(mkdir(dir, 0700), 0);
    fd = open(dir, O_RDONLY | O_CLOEXEC); /* as anybody may who can read it */
    cr_assert_eq(flock(fd, LOCK_EX), 0);
    cr_assert_neq(run_broker("", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "cannot be locked"), "%s", said);
    close(fd);
    cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
}

Test(share_broker, nobody_shares_in_the_name_of_another)
{
    unsigned char real[GS_TOKEN_SIZE], squat[GS_TOKEN_SIZE], next[GS_TOKEN_SIZE];
    int fd, memory = open("/dev/null", O_RDONLY);
    struct gs_token token;
    CUdeviceptr address;

    offer_and_leave(0, real);
    memcpy(&token, real, sizeof token);
    token.block_id++; /* what it will share next */
    gs_token_write(&token, squat);
    fd = dial_broker(real + 8, -1);
    share_by_hand(fd, squat, memory);
    cr_assert_eq(ask_open(fd, squat), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_left(dir), 1);
    offer_and_leave(1, next);
    other_kill(&other);
    cr_assert_eq(open_it(next, &address), GS_OK);
    cr_assert_eq(*(char *)address, 71);
    close(fd);
    close(memory);
}

/* In a child of fork_child, which ends where it is not so, saying why. */
#define CHILD_MUST(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s; the broker has %llu; logged: %s\n", __FILE__,      \
                    __LINE__, #condition, side_broker_left(dir), side_logged());                   \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static pid_t program_by_hand(const char *program, const char *name, const char *value)
{
    char path[128];
    pid_t child = fork_child();

    if (child == 0) {
        setenv("GPUSHIM_SHARE_DIR", dir, 1);
        setenv("GPUSHIM_CONFIG", "", 1);
        setenv(name, value, 1);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    cr_assert(SIDE_WAIT(access(path, F_OK) == 0));
    return child;
}

static pid_t broker_by_hand(const char *name, const char *value)
{
    return program_by_hand(BROKER_PROGRAM, name, value);
}

/* A process that leaves what it offers with a broker, where there is one. */
static struct side_chunk sharer_start(struct side *sharer)
{
    struct gs_share_options brokered = options;

    brokered.broker = true;
    side_start(sharer, &brokered);
    return side_chunk_new(sharer, 2 * MIB);
}

static void sharer_stop(struct side *sharer, struct side_chunk *piece, pid_t broker)
{
    side_stop(sharer);
    side_chunk_free(sharer, piece);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* ---- Nobody waits for it -------------------------------------------------------------------- */

#define LEFT_MANY 900u

/* Stopped, it is told nothing; what it was left is used again all the same, and it serves none of
 * that when it goes on, though its process has ended by then. */
Test(share_broker, stopped_it_keeps_no_memory_from_its_process_and_serves_none_of_it_later)
{
    pid_t broker = broker_by_hand("GPUSHIM_SHARE_BROKER_BLOCKS", "4000"), child;
    unsigned char token[2][GS_TOKEN_SIZE];
    int told[2], go[2];
    CUdeviceptr address;
    char byte = 0;

    cr_assert_eq(pipe(told), 0);
    cr_assert_eq(pipe(go), 0);
    child = fork_child();
    if (child == 0) {
        static struct gs_offer *offers[LEFT_MANY];
        struct side sharer;
        struct side_chunk piece;

        options.left_max = 4000;
        piece = sharer_start(&sharer);
        for (unsigned i = 0; i < LEFT_MANY; i++)
            CHILD_MUST(side_offer(&sharer, &piece, i * 512, 512, &offers[i]) == GS_OK);
        CHILD_MUST(SIDE_WAIT(side_broker_left(dir) == LEFT_MANY));
        halt(broker);
        gs_offer_token(offers[0], token[0]);
        gs_offer_token(offers[1], token[1]);
        for (unsigned i = 1; i < LEFT_MANY; i++)
            CHILD_MUST(side_gets_back(&sharer, offers[i]));
        CHILD_MUST(SIDE_WAIT(strstr(side_logged(), "reads nothing: ") != NULL));
        CHILD_MUST(write(told[1], token, sizeof token) == (ssize_t)sizeof token &&
                   read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    close(told[1]);
    cr_assert_eq(read(told[0], token, sizeof token), (ssize_t)sizeof token);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    kill(broker, SIGCONT);
    cr_assert_eq(open_it(token[0], &address), GS_OK, "what was not taken back");
    cr_assert_eq(open_it(token[1], &address), GS_STALE);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    close(told[0]);
    close(go[0]);
    close(go[1]);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* It is told when it reads again. */
Test(share_broker, that_goes_on_after_a_stop_gives_up_what_was_taken_back)
{
    pid_t broker = broker_by_hand("GPUSHIM_SHARE_BROKER_BLOCKS", "4000");
    static struct gs_offer *offers[LEFT_MANY];
    struct side sharer;
    struct side_chunk piece;

    options.left_max = 4000;
    piece = sharer_start(&sharer);
    for (unsigned i = 0; i < LEFT_MANY; i++)
        cr_assert_eq(side_offer(&sharer, &piece, i * 512, 512, &offers[i]), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == LEFT_MANY));
    halt(broker);
    for (unsigned i = 0; i < LEFT_MANY; i++)
        cr_assert(side_gets_back(&sharer, offers[i]));
    for (unsigned i = 0; i < LEFT_MANY; i++)
        cr_assert_eq(side_offer(&sharer, &piece, i * 512, 512, &offers[i]), GS_OK);
    kill(broker, SIGCONT);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == LEFT_MANY));
    for (unsigned i = 0; i < LEFT_MANY; i++)
        cr_assert(side_gets_back(&sharer, offers[i]));
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 0));
    sharer_stop(&sharer, &piece, broker);
}

/* ---- Whose it is ---------------------------------------------------------------------------- */

static void need_two_users(void)
{
    if (geteuid() != 0)
        cr_skip_test("only root can be two users");
    mkdir(dir, 0755);
    cr_assert_eq(chmod(dir, 0755), 0);
}

/* Whoever started the broker let another user in; who left the block with it did not. */
Test(share_broker, serves_those_whom_the_process_that_shared_named_and_nobody_else)
{
    unsigned char token[GS_TOKEN_SIZE];
    struct other sharer, third;
    unsigned long address;
    pid_t broker;

    need_two_users();
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    other_start(&sharer, dir, "keep=60000");
    other_offer(&sharer, 0, 512, 7, token);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    other_kill(&sharer);
    other_start2(&third, dir, "uid=65534", "trust=0");
    cr_assert_neq(other_open(&third, token, &address), GS_OK);
    cr_assert_eq(other_stop(&third), 0);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);

    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "");
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_offer(&sharer, 0, 512, 7, token);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    other_kill(&sharer);
    other_start2(&third, dir, "uid=65534", "trust=0");
    cr_assert_eq(other_open(&third, token, &address), GS_OK);
    cr_assert_str_eq(other_ask(&third, "read %lx", address), "ok 7");
    cr_assert_eq(other_stop(&third), 0);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

static void claim(void *arg)
{
    unsigned char token[GS_TOKEN_SIZE];
    struct gs_token made = {.block_id = 900, .chunk_id = 1, .size = 512};
    int fd, memory = open("/dev/null", O_RDONLY);

    memcpy(made.instance, arg, sizeof made.instance);
    gs_token_write(&made, token);
    fd = dial_broker(made.instance, -1);
    share_by_hand(fd, token, memory);
    ask_open(fd, token); /* by now it was looked at */
}

Test(share_broker, another_user_does_not_share_in_the_name_of_a_process_before_it_does)
{
    unsigned char first[GS_TOKEN_SIZE], second[GS_TOKEN_SIZE];
    struct other sharer;
    pid_t broker, thief;

    need_two_users();
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    other_start2(&sharer, dir, "trust=65534", NULL); /* its socket is there, and no broker's business */
    other_offer(&sharer, 0, 512, 7, first);
    thief = other_user_start(claim, first + 8);
    cr_assert_eq(side_broker_left(dir), 0, "it was believed");
    other_kill(&sharer);
    other_user_end(thief);
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_offer(&sharer, 0, 512, 7, second);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    other_kill(&sharer);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* Each of its connections has the block open. */
static void take_all(void *arg)
{
    const unsigned char *token = arg;

    for (unsigned i = 0; i < 40; i++) { /* served or turned away */
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        union gs_wire_message message;

        snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
        connect(fd, (struct sockaddr *)&to, sizeof to);
        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        memcpy(message.hello.instance, token + 8, GS_INSTANCE_SIZE);
        gs_wire_send(fd, &message, -1);
        ask_open(fd, token);
    }
}

Test(share_broker, another_user_takes_no_more_than_half_of_what_it_serves)
{
    unsigned char token[GS_TOKEN_SIZE];
    struct other sharer;
    pid_t broker, thief;

    need_two_users();
    setenv("GPUSHIM_SHARE_MAX_CLIENTS", "16", 1);
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    unsetenv("GPUSHIM_SHARE_MAX_CLIENTS");
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_offer(&sharer, 0, 512, 7, token);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    other_kill(&sharer);
    thief = other_user_start(take_all, token);
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_offer(&sharer, 0, 512, 7, token);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 2));
    other_kill(&sharer);
    other_user_end(thief);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

Test(share_broker, one_that_is_started_later_is_found)
{
    unsigned char token[GS_TOKEN_SIZE];
    struct side_chunk piece;
    struct gs_offer *offer;
    CUdeviceptr address;
    pid_t broker;
    struct side sharer;

    piece = sharer_start(&sharer);
    cr_assert_eq(side_offer(&sharer, &piece, 0, 512, &offer), GS_OK);
    gs_offer_token(offer, token);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "no broker (") != NULL));
    broker = broker_by_hand("GPUSHIM_LOG", "debug");
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1), "nothing was left with it");
    cr_assert(side_gets_back(&sharer, offer));
    cr_assert_eq(open_it(token, &address), GS_STALE);
    cr_assert_eq(side_log_lines(), 1);
    sharer_stop(&sharer, &piece, broker);
}

/* Nothing is on offer when it comes: the next offer looks for it, and is left there once. */
Test(share_broker, one_that_is_started_later_is_found_by_the_next_offer)
{
    struct gs_offer *offer[2];
    struct side_chunk piece;
    pid_t broker;
    struct side sharer;

    piece = sharer_start(&sharer);
    cr_assert_eq(side_offer(&sharer, &piece, 0, 512, &offer[0]), GS_OK);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "no broker (") != NULL));
    cr_assert(side_gets_back(&sharer, offer[0]));
    broker = broker_by_hand("GPUSHIM_LOG", "debug");
    usleep(2500000); /* it could have been looked for */
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(side_offer(&sharer, &piece, 4096 * i, 512, &offer[i]), GS_OK);
        cr_assert(SIDE_WAIT(side_broker_left(dir) == i + 1));
    }
    cr_assert(all_rest(broker));
    cr_assert_eq(side_broker_left(dir), 2);
    cr_assert_eq(side_log_lines(), 1, "%s", side_logged());
    sharer_stop(&sharer, &piece, broker);
}

/* An offer that is not the block's yet, nor ever will be where another thread was first: it can be
 * withdrawn at any time, since nothing else keeps its memory. */
Test(share_broker, one_that_is_started_later_gets_only_what_was_given_out)
{
    struct gs_offer *offer, *early;
    struct side_chunk piece;
    pid_t broker;
    struct side sharer;

    piece = sharer_start(&sharer);
    cr_assert_eq(gs_share_offer(sharer.share,
                                &(struct gs_share_source){.handle = piece.handle,
                                                          .chunk_id = piece.id,
                                                          .chunk_size = piece.size,
                                                          .block_id = 77,
                                                          .offset = 4096,
                                                          .size = 512},
                                &early),
                 GS_OK);
    cr_assert_eq(side_offer(&sharer, &piece, 0, 512, &offer), GS_OK);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "no broker (") != NULL));
    broker = broker_by_hand("GPUSHIM_LOG", "debug");
    cr_assert(SIDE_WAIT(side_broker_left(dir) > 0));
    cr_assert(all_rest(broker));
    cr_assert_eq(side_broker_left(dir), 1);
    cr_assert(gs_share_withdraw(sharer.share, early));
    cr_assert(side_gets_back(&sharer, offer));
    sharer_stop(&sharer, &piece, broker);
}

/* The number of this process's connection to a broker. */
static int broker_connection(void)
{
    struct sockaddr_un at;

    for (int fd = 3; fd < 256; fd++) {
        socklen_t size = sizeof at;

        memset(&at, 0, sizeof at);
        if (getpeername(fd, (struct sockaddr *)&at, &size) == 0 &&
            strstr(at.sun_path, side_broker_name()))
            return fd;
    }
    return -1;
}

/* What it was to be told would come to the program, memory and all. */
Test(share_broker, a_connection_that_the_program_has_closed_is_made_anew)
{
    pid_t broker = broker_by_hand("GPUSHIM_LOG", "debug");
    struct gs_offer *offers[3];
    struct side_chunk piece;
    struct side sharer;
    int fd, pair[2];
    char byte;

    piece = sharer_start(&sharer);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(side_offer(&sharer, &piece, i * 512, 512, &offers[i]), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 2));
    fd = broker_connection();
    cr_assert_geq(fd, 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(dup2(pair[0], fd), fd);
    close(pair[0]);
    cr_assert(side_gets_back(&sharer, offers[1]));
    cr_assert_eq(side_offer(&sharer, &piece, 1024, 512, &offers[2]), GS_OK);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 2), "it has %llu", side_broker_left(dir));
    cr_assert_eq(recv(pair[1], &byte, 1, MSG_DONTWAIT), -1, "the program's socket was written to");
    cr_assert_eq(errno, EAGAIN);
    cr_assert(side_gets_back(&sharer, offers[0]));
    cr_assert(side_gets_back(&sharer, offers[2]));
    sharer_stop(&sharer, &piece, broker);
    cr_assert_eq(recv(pair[1], &byte, 1, MSG_DONTWAIT), -1, "the program's socket was shut down");
    cr_assert_eq(errno, EAGAIN);
}

Test(share_broker, keeps_as_many_as_it_may_and_half_of_one)
{
    int fds[3], memory = open("/dev/null", O_RDONLY);
    pid_t child = broker_by_hand("GPUSHIM_SHARE_BROKER_BLOCKS", "5");

    for (int i = 0; i < 3; i++) {
        unsigned char token[GS_TOKEN_SIZE];

        for (uint64_t block = 1; block <= 4; block++) {
            token_by_hand((unsigned char)(i + 1), block, token);
            if (block == 1)
                fds[i] = dial_broker(token + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
            share_by_hand(fds[i], token, memory);
        }
        cr_assert_eq(ask_open(fds[i], token), GS_REFUSED_TOKEN); /* it has read them all */
        cr_assert_eq(side_broker_left(dir), i == 0 ? 3 : 5, "%llu", side_broker_left(dir));
    }
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    close(memory);
}

Test(share_broker, who_shares_stays_connected_with_nothing_left_there)
{
    pid_t broker = broker_by_hand("GPUSHIM_SHARE_MAX_CLIENTS", "3");
    int fd, others[6], memory = open("/dev/null", O_RDONLY);
    struct pollfd end;
    unsigned char token[GS_TOKEN_SIZE];
    union gs_wire_message message;

    token_by_hand(9, 1, token);
    fd = dial_broker(token + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
    share_by_hand(fd, token, memory);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    gs_wire_start(&message, GS_WIRE_UNSHARE, 0);
    message.unshare.block_id = 1;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 0));
    for (int i = 0; i < 6; i++)
        others[i] = dial_broker(token + 8, -1); /* more than there is room for */
    end = (struct pollfd){.fd = fd, .events = POLLIN};
    cr_assert_eq(poll(&end, 1, 300), 0, "it was hung up on to make room");
    for (int i = 0; i < 6; i++)
        close(others[i]);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
    close(fd);
    close(memory);
}

/* What a process shared that the broker hung up on is not served when that process ends next. */
Test(share_broker, what_a_faulty_process_left_is_dropped_at_once)
{
    pid_t broker = broker_by_hand("GPUSHIM_LOG", "debug"), child;
    int fd, memory = open("/dev/null", O_RDONLY);
    unsigned char token[GS_TOKEN_SIZE];

    token_by_hand(9, 1, token);
    child = fork_child();
    if (child == 0) {
        fd = dial_broker(token + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
        share_by_hand(fd, token, memory);
        share_by_hand(fd, token, memory); /* twice: hung up on */
        _exit(ask_open(fd, token) != GS_REFUSED_MESSAGE);
    }
    cr_assert_eq(waitpid(child, NULL, 0), child);
    fd = dial_broker(token + 8, -1);
    cr_assert_eq(ask_open(fd, token), GS_REFUSED_TOKEN);
    close(fd);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
    close(memory);
}

/* One for each process that ended, and of those there may be any number. */
Test(share_broker, connections_to_it_go_with_the_last_block)
{
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    int before = 0;

    side_stop(&side);
    options.idle_ns = 0;
    side_start(&side, &options);
    for (int i = 0; i < 5; i++) {
        if (!other.pid)
            other_start(&other, dir, "keep=60000");
        other_offer(&other, 0, 512, 70, token);
        cr_assert(SIDE_WAIT(side_broker_left(dir) == (unsigned)i + 1));
        other_kill(&other);
        cr_assert_eq(open_it(token, &address), GS_OK);
        cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        if (i == 0) {
            cr_assert(all_rest(0));
            before = side_open_fds();
        }
    }
    cr_assert(SIDE_WAIT(side_open_fds() <= before), "%d, %d before", side_open_fds(), before);
}

Test(share_broker, ends_at_a_signal_and_takes_its_socket_along)
{
    unsigned char token[GS_TOKEN_SIZE];

    offer_and_leave(0, token);
    kill(side_broker_pid(dir), SIGTERM);
    cr_assert(side_broker_gone(dir));
}

Test(share_broker, ps_tells_who_holds_what)
{
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    char said[2048], expected[128];

    offer_and_leave(0, token);
    cr_assert_eq(open_it(token, &address), GS_OK);
    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    snprintf(expected, sizeof expected, "process pid %d (share_other): 1 blocks shared, 1 KiB",
             (int)other.pid);
    cr_assert_not_null(strstr(said, expected), "%s", said);
    snprintf(expected, sizeof expected, "held by pid %d (", (int)getpid());
    cr_assert_not_null(strstr(said, expected), "%s", said);
    cr_assert_not_null(strstr(said, "broker pid "), "%s", said);
    snprintf(expected, sizeof expected, "from pid %d (share_other) for ", (int)other.pid);
    cr_assert_not_null(strstr(said, expected), "%s", said);
    cr_assert_not_null(strstr(strstr(said, expected), " s: 1 blocks left here"), "%s", said);
}

/* Seen from elsewhere a process has another number, or none: that it gives itself is marked. */
Test(share_broker, ps_prints_the_numbers_that_its_reader_sees)
{
    char said[4096], expected[128], command[512];
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    FILE *out;
    size_t got;

    if (geteuid() != 0)
        cr_skip_test("only root makes a PID namespace");
    offer_and_leave(0, token);
    cr_assert_eq(open_it(token, &address), GS_OK);
    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    snprintf(expected, sizeof expected, "held by pid %d (", (int)getpid());
    cr_assert_not_null(strstr(said, expected), "%s", said);
    cr_assert_null(strstr(said, "another PID namespace"), "%s", said);
    snprintf(command, sizeof command,
             "GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR=%s timeout 20 unshare --pid --fork --mount-proc %s ps "
             "2>&1",
             dir, BROKER_PROGRAM);
    out = popen(command, "r");
    got = fread(said, 1, sizeof said - 1, out);
    said[got] = 0;
    if (pclose(out) != 0 && strstr(said, "unshare"))
        cr_skip_test("no PID namespace can be made here");
    snprintf(expected, sizeof expected, "held by pid %d of another PID namespace (", (int)getpid());
    cr_assert_not_null(strstr(said, expected), "%s", said);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

Test(share_broker, ps_tells_what_is_freed_and_kept_since_when_and_by_whom)
{
    unsigned char token[2][GS_TOKEN_SIZE];
    CUdeviceptr address;
    char said[2048], expected[128];
    long freed, first, second;

    offer_and_leave(0, token[0]);
    cr_assert_eq(open_it(token[0], &address), GS_OK);
    usleep(2100000);
    other_offer(&other, 4096, 2048, 7, token[1]);
    cr_assert_eq(open_it(token[1], &address), GS_OK);
    usleep(1100000);
    cr_assert_str_eq(other_ask(&other, "freed"), "ok");
    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "freed and kept 1, 2 KiB, the oldest for "), "%s", said);
    freed = atol(strstr(said, ", the oldest for ") + strlen(", the oldest for "));
    snprintf(expected, sizeof expected, "held by pid %d (", (int)getpid());
    cr_assert_not_null(strstr(said, expected), "%s", said);
    cr_assert_not_null(strstr(said, "): 2 blocks, 3 KiB, the longest for "), "%s", said);
    first = atol(strstr(said, ", the longest for ") + strlen(", the longest for "));
    cr_assert_not_null(strstr(said, " s; of freed ones 1, 2 KiB\n"), "%s", said);
    cr_assert_not_null(strstr(said, "block 2 of 2 KiB: held for "), "%s", said);
    second = atol(strstr(said, " KiB: held for ") + strlen(" KiB: held for "));
    cr_assert(second >= freed + 1 && first >= second + 2, "%s", said);
}

/* How somebody answers who is not of this version, or not well. */
enum manner { OLDER, OTHER_SHAPE, TURNS_AWAY, HANGS_UP, SILENT, MANNERS, PAINTS };

static void answer_by_hand(int fd, enum manner manner)
{
    union gs_wire_message asked, answer;
    struct pollfd gone = {.fd = fd};

    if (recv(fd, &asked, sizeof asked, 0) <= 0 || manner == HANGS_UP)
        return;
    if (manner == SILENT) {
        poll(&gone, 1, -1);
        return;
    }
    if (manner == PAINTS) {
        gs_wire_start(&answer, GS_WIRE_REPORT, 0);
        strcpy(answer.report.name, "\033[2Jred\r\nx");
        strcpy(answer.report.client_name, "\033[1A\a\x9bgreen");
        answer.report.clients = answer.report.holds = 1;
        gs_wire_send(fd, &answer, -1);
        return;
    }
    gs_wire_start(&answer, manner == OTHER_SHAPE ? GS_WIRE_REPORT : GS_WIRE_REFUSE, 0);
    if (manner == OLDER)
        answer.head.version--;
    else if (manner == OTHER_SHAPE)
        answer.head.size -= 8; /* of a build that had one figure less */
    answer.refuse.reason = manner == OLDER ? GS_REFUSED_VERSION : GS_REFUSED_BUSY;
    gs_wire_send(fd, &answer, -1);
}

/* A process of the user that listens under the name and answers in that manner, until it is killed. */
static pid_t stand_in(const char *name, enum manner manner, uid_t user)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int ready[2], fd;
    pid_t child;
    char byte;

    mkdir(dir, 0700);
    snprintf(at.sun_path, sizeof at.sun_path, "%s/%s", dir, name);
    cr_assert_eq(pipe2(ready, O_CLOEXEC), 0);
    child = fork_child();
    if (child == 0) {
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || !become_user(user, getegid()) ||
            listen(fd, 8) != 0 ||
            write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;) {
            int caller = accept4(fd, NULL, NULL, SOCK_CLOEXEC);

            answer_by_hand(caller, manner);
            close(caller);
        }
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void stand_down(pid_t child, const char *name)
{
    char path[128];

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

Test(share_broker, ps_prints_no_names_that_the_terminal_would_obey)
{
    static const char name[] = "0123456789abcdef0123456789abcdef";
    pid_t child = stand_in(name, PAINTS, getuid());
    char said[4096];

    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    cr_assert_not_null(strstr(said, "(?[2Jred??x)"), "%s", said);
    cr_assert_not_null(strstr(said, "(?[1A??green)"), "%s", said);
    for (const char *c = said; *c; c++)
        cr_assert(*c == '\n' || (*c >= ' ' && *c <= '~'), "byte %d", *c);
    stand_down(child, name);
}

Test(share_broker, ps_tells_of_those_that_do_not_answer_in_this_version)
{
    static const char *const said_of[MANNERS] = {
        [OLDER] = "is of another version of this library (protocol %u, here %u)",
        [OTHER_SHAPE] = "gives an answer that this version does not know\n",
        [TURNS_AWAY] = "does not tell: it serves as many as it may (share.max_clients)\n",
        [HANGS_UP] = "hangs up\n",
        [SILENT] = "does not answer\n",
    };
    char said[4096], names[MANNERS][40], text[128], expected[192];
    unsigned char token[GS_TOKEN_SIZE];
    pid_t child[MANNERS];

    for (int manner = 0; manner < MANNERS; manner++) {
        snprintf(names[manner], sizeof names[manner], "%032x", manner);
        child[manner] = stand_in(names[manner], manner, getuid());
    }
    offer_and_leave(0, token);
    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    for (int manner = 0; manner < MANNERS; manner++) {
        snprintf(text, sizeof text, said_of[manner], GS_WIRE_VERSION - 1, GS_WIRE_VERSION);
        snprintf(expected, sizeof expected, "process pid %d: %s", (int)child[manner], text);
        cr_expect_not_null(strstr(said, expected), "no '%s' in:\n%s", expected, said);
        stand_down(child[manner], names[manner]);
    }
    snprintf(expected, sizeof expected, "process pid %d (share_other): 1 blocks", (int)other.pid);
    cr_expect_not_null(strstr(said, expected), "%s", said);
    cr_expect_not_null(strstr(said, "broker pid "), "%s", said);
}

Test(share_broker, one_of_another_version_is_named_by_those_who_would_leave_memory)
{
    pid_t child = stand_in(side_broker_name(), OLDER, getuid());
    struct side_chunk piece;
    struct gs_offer *offer;
    char expected[160], said[1024];

    cr_assert_eq(run_broker("ps", said, sizeof said), 0);
    snprintf(expected, sizeof expected, "broker pid %d: is of another version", (int)child);
    cr_assert_not_null(strstr(said, expected), "%s", said);
    side_stop(&side);
    options.broker = true;
    side_start(&side, &options);
    piece = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(side_offer(&side, &piece, 0, 512, &offer), GS_OK);
    snprintf(expected, sizeof expected,
             "the broker has another version of this library (protocol %u, here %u): memory is "
             "shared as long as this process runs",
             GS_WIRE_VERSION - 1, GS_WIRE_VERSION);
    cr_assert(SIDE_WAIT(strstr(side_logged(), expected) != NULL), "%s", side_logged());
    stand_down(child, side_broker_name());
    cr_assert(side_gets_back(&side, offer));
    side_chunk_free(&side, &piece);
}

Test(share_broker, one_of_another_user_is_given_nothing)
{
    struct side_chunk piece;
    struct gs_offer *offer;
    pid_t child;

    if (geteuid() != 0)
        cr_skip_test("only root can be another user");
    child = stand_in(side_broker_name(), SILENT, 65534);
    side_stop(&side);
    options.broker = true;
    side_start(&side, &options);
    piece = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(side_offer(&side, &piece, 0, 512, &offer), GS_OK);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "the broker is of user 65534, who is not to be "
                                              "trusted with memory") != NULL),
              "%s", side_logged());
    stand_down(child, side_broker_name());
    cr_assert(side_gets_back(&side, offer));
    side_chunk_free(&side, &piece);
}

/* As systemd does for a socket unit: listens, starts the broker when somebody connects, and
 * listens again when it has ended. */
struct activator {
    pid_t pid;
    struct activity {
        unsigned starts; /* atomic, after: */
        pid_t broker;    /* atomic; 0: none runs */
    } *activity;
};

static _Noreturn void activate_always(int listener, struct activity *activity)
{
    for (;;) {
        struct pollfd somebody = {.fd = listener, .events = POLLIN};
        char pid[16];
        pid_t child;

        while (poll(&somebody, 1, -1) != 1)
            continue;
        child = fork_child();
        if (child == 0) {
            if (listener == 3)
                fcntl(3, F_SETFD, 0);
            else
                dup2(listener, 3);
            snprintf(pid, sizeof pid, "%d", (int)getpid());
            setenv("LISTEN_PID", pid, 1);
            setenv("LISTEN_FDS", "1", 1);
            setenv("GPUSHIM_SHARE_DIR", dir, 1);
            setenv("GPUSHIM_SHARE_KEEP", "400 ms", 1);
            setenv("GPUSHIM_CONFIG", "", 1);
            execl(BROKER_PROGRAM, BROKER_PROGRAM, (char *)NULL);
            _exit(127);
        }
        __atomic_store_n(&activity->broker, child, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&activity->starts, 1, __ATOMIC_SEQ_CST);
        waitpid(child, NULL, 0);
        __atomic_store_n(&activity->broker, 0, __ATOMIC_SEQ_CST);
    }
}

static void activator_start(struct activator *activator)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    activator->activity = mmap(NULL, sizeof *activator->activity, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_eq(mkdir(dir, 0700), 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
    cr_assert_eq(listen(fd, 8), 0);
    activator->pid = fork_child();
    if (activator->pid == 0)
        activate_always(fd, activator->activity);
    close(fd);
}

#define STARTS(activator) __atomic_load_n(&(activator).activity->starts, __ATOMIC_SEQ_CST)
#define BROKER(activator) __atomic_load_n(&(activator).activity->broker, __ATOMIC_SEQ_CST)

Test(share_broker, an_activator_starts_it_when_it_is_needed_and_again)
{
    struct activator activator;
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    char path[128];

    activator_start(&activator);
    for (unsigned round = 1; round <= 3; round++) {
        unsigned starts = STARTS(activator);
        gs_status status;
        uint64_t killed;

        if (!other.pid)
            other_start(&other, dir, "keep=400");
        cr_assert(all_rest(other.pid));
        cr_assert_eq(STARTS(activator), starts, "nobody needs it yet");
        offer_and_leave(0, token); /* which asks it how much it has, and so may start it twice */
        cr_assert(SIDE_WAIT(STARTS(activator) > starts)); /* it may serve before it counts */
        if (round == 2) { /* under those who use it: they get a new one */
            starts = STARTS(activator);
            kill(BROKER(activator), SIGKILL);
            cr_assert(SIDE_WAIT(STARTS(activator) > starts));
            cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
        }
        killed = side_now();
        other_kill(&other);
        status = open_it(token, &address);
        cr_assert(status == GS_OK || !side_within(killed, 400 * MS), "%d", status);
        cr_assert(status != GS_OK || *(char *)address == 70);
        side_stop(&side);
        cr_assert(SIDE_WAIT(BROKER(activator) == 0), "it does not end");
        side_start(&side, &options);
    }
    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(access(path, F_OK), 0, "the socket is the activator's");
    kill(activator.pid, SIGKILL);
    waitpid(activator.pid, NULL, 0);
}

/* It was about to end, and stood still: those who came meanwhile wait for it. */
Test(share_broker, that_stood_still_does_not_end_before_it_looked_who_needs_it)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char said[512];

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    setenv("GPUSHIM_SHARE_KEEP", "1 s", 1); /* and so long it runs unneeded */
    for (int round = 0; round < 5; round++) {
        union gs_wire_message message;
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        pid_t broker;

        cr_assert_eq(run_broker("--detach", said, sizeof said), 0, "%s", said);
        broker = side_broker_pid(dir);
        usleep(100000); /* it finds that nobody is there any more */
        halt(broker);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) { /* else it had its time before */
            gs_wire_start(&message, GS_WIRE_QUERY, 1);
            cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
            usleep(1500000);
            kill(broker, SIGCONT);
            cr_assert_eq(side_next_message(fd, &message), GS_WIRE_REPORT, "round %d", round);
        }
        close(fd);
    }
    unsetenv("GPUSHIM_SHARE_KEEP");
}

Test(share_broker, takes_the_socket_it_is_started_with)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    char path[128];
    pid_t child;

    mkdir(dir, 0700);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
    cr_assert_eq(listen(fd, 8), 0);
    child = fork_child();
    if (child == 0) {
        char pid[16];

        if (fd != 3)
            dup2(fd, 3);
        else
            fcntl(3, F_SETFD, 0);
        snprintf(pid, sizeof pid, "%d", (int)getpid());
        snprintf(path, sizeof path, "%s", dir);
        setenv("LISTEN_PID", pid, 1);
        setenv("LISTEN_FDS", "1", 1);
        setenv("GPUSHIM_SHARE_DIR", path, 1);
        setenv("GPUSHIM_CONFIG", "", 1);
        execl(BROKER_PROGRAM, BROKER_PROGRAM, (char *)NULL);
        _exit(127);
    }
    close(fd);
    offer_and_leave(0, token);
    other_kill(&other);
    cr_assert_eq(open_it(token, &address), GS_OK);
    kill(child, SIGTERM);
    waitpid(child, NULL, 0);
    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(access(path, F_OK), 0, "the socket is its starter's");
}

/* One that is stopped, say, and has been asked by many. */
Test(share_broker, that_takes_no_connection_keeps_no_opener_waiting)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int broker = socket(AF_UNIX, SOCK_SEQPACKET, 0), full[8], count = 0;
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    uint64_t began;

    cr_assert_eq(mkdir(dir, 0700), 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(bind(broker, (struct sockaddr *)&to, sizeof to), 0);
    cr_assert_eq(listen(broker, 1), 0);
    do
        full[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    while (connect(full[count++], (struct sockaddr *)&to, sizeof to) == 0 && count < 8);
    cr_assert_lt(count, 8, "its queue takes two");
    other_offer(&other, 0, 512, 70, token);
    began = side_now();
    cr_assert_eq(open_it(token, &address), GS_OK);
    cr_assert(side_within(began, options.timeout_ns / 2));
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "said no broker"), "ok")));
    while (count > 0)
        close(full[--count]);
    close(broker);
    unlink(to.sun_path);
}

/* ---- Ends ----------------------------------------------------------------------------------- */

/* A process that leaves a block with the broker after `before` other messages, and a child of it
 * that holds its connection. Both are killed with the test; *ret_child is the child. */
static pid_t sharer_with_child(const unsigned char *token, int before, pid_t *ret_child)
{
    int told[2], memory = open("/dev/null", O_RDONLY | O_CLOEXEC);
    union gs_wire_message message;
    pid_t sharer, child = 0, test = getpid();

    cr_assert_eq(pipe2(told, O_CLOEXEC), 0);
    sharer = fork_child();
    if (sharer == 0) {
        int fd = dial_broker(token + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));

        gs_wire_start(&message, GS_WIRE_UNSHARE, 0);
        for (int i = 0; i < before; i++)
            gs_wire_send(fd, &message, -1);
        share_by_hand(fd, token, memory);
        child = fork();
        if (child && write(told[1], &child, sizeof child) != sizeof child)
            _exit(1);
        stay_until_end_of(test);
    }
    cr_assert_eq(read(told[0], &child, sizeof child), sizeof child);
    close(told[0]);
    close(told[1]);
    close(memory);
    *ret_child = child;
    return sharer;
}

static void end(pid_t process)
{
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
}

/* With share.keep 0 a block goes with its last hold, not under it. */
Test(share_broker, that_keeps_nothing_keeps_what_is_held)
{
    pid_t broker = broker_by_hand("GPUSHIM_SHARE_KEEP", "0"), sharer, child;
    unsigned char token[GS_TOKEN_SIZE];
    union gs_wire_message message;
    int fd, answer = GS_REFUSED_EARLY;

    /* It is to learn of the end and of the next open at once, in this order. A broker that was
     * stopped before it slept reads this connection first: then it goes again. */
    for (unsigned char tries = 1; tries < 50 && answer == GS_REFUSED_EARLY; tries++) {
        token_by_hand(tries, 1, token);
        sharer = sharer_with_child(token, 0, &child);
        cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
        fd = dial_broker(token + 8, -1);
        cr_assert_eq(ask_open(fd, token), GS_REFUSED_EARLY);
        usleep(10000);
        halt(broker);
        end(sharer);
        send_open(fd, token);
        kill(broker, SIGCONT);
        answer = answer_to_open(fd);
        if (answer == GS_REFUSED_EARLY) {
            close(fd);
            kill(child, SIGKILL);
            cr_assert(SIDE_WAIT(side_broker_left(dir) == 0));
        }
    }
    cr_assert_eq(answer, 0, "refused: %d", answer);
    cr_assert(all_rest(broker));
    cr_assert_eq(side_broker_left(dir), 1, "dropped while it is held");
    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    message.close.block_id = 1;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 0));
    close(fd);
    kill(child, SIGKILL);
    end(broker);
}

/* More than is read in one round lies before it when the end is seen. */
Test(share_broker, serves_what_a_process_said_last_though_its_child_holds_the_connection)
{
    pid_t broker = broker_by_hand("GPUSHIM_LOG", "debug"), sharer, child;
    unsigned char token[GS_TOKEN_SIZE];
    int fd;

    token_by_hand(9, 1, token);
    halt(broker);
    sharer = sharer_with_child(token, 40, &child);
    end(sharer);
    kill(broker, SIGCONT);
    fd = dial_broker(token + 8, -1);
    cr_assert(SIDE_WAIT(ask_open(fd, token) == 0));
    close(fd);
    kill(child, SIGKILL);
    end(broker);
}

/* ---- A process of which the kernel tells no pidfd, and that sends none ----------------------- */

/* A process that left a block and has closed its connection since. It stays if it `stays`. */
static pid_t leave_unseen(const unsigned char *token, bool stays)
{
    int go[2];
    pid_t sharer;

    cr_assert_eq(pipe2(go, O_CLOEXEC), 0);
    sharer = fork_child();
    if (sharer == 0) {
        int fd = dial_broker(token + 8, -1);

        share_by_hand(fd, token, open("/dev/null", O_RDONLY));
        close(go[1]);
        if (read(go[0], go, 1) == 0)
            close(fd);
        while (stays)
            pause();
        _exit(0);
    }
    cr_assert(SIDE_WAIT(side_broker_left(dir) == 1));
    close(go[0]);
    close(go[1]);
    return sharer;
}

Test(share_broker, drops_what_a_living_process_left_that_it_has_no_pidfd_of)
{
    pid_t broker = program_by_hand(OLD_BROKER_PROGRAM, "GPUSHIM_LOG", "debug"), sharer;
    unsigned char token[GS_TOKEN_SIZE];
    int fd, answer;

    token_by_hand(9, 1, token);
    sharer = leave_unseen(token, true);
    fd = dial_broker(token + 8, -1);
    while ((answer = ask_open(fd, token)) == GS_REFUSED_EARLY || side_broker_left(dir) > 0)
        cr_assert_neq(answer, 0, "served while it may use the memory for something else");
    close(fd);
    end(sharer);
    end(broker);
}

Test(share_broker, serves_what_one_left_that_it_has_no_pidfd_of_and_that_nobody_has_waited_for)
{
    pid_t broker = program_by_hand(OLD_BROKER_PROGRAM, "GPUSHIM_LOG", "debug"), sharer;
    unsigned char token[GS_TOKEN_SIZE];
    int fd;

    token_by_hand(9, 1, token);
    sharer = leave_unseen(token, false);
    fd = dial_broker(token + 8, -1);
    cr_assert(SIDE_WAIT(ask_open(fd, token) == 0));
    close(fd);
    waitpid(sharer, NULL, 0);
    end(broker);
}
