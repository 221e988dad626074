/* Neighbours that do everything wrong: clients by hand, other users, full tables.
 * For exporters by hand: hostile_exporters.c. */
#include <criterion/criterion.h>

#include "core/share/directory.h"
#include "core/share/internal.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define AT_ONCE_MS 20000 /* less than options.timeout_ns: that was not waited for */

static struct gs_export *export;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

static void setup(void)
{
    scene_new();
    scene_block(&export, ipc_handle);
    other_start(&other, dir, NULL);
}

static void teardown(void)
{
    if (other.pid)
        CHECK(other_stop(&other) == 0);
    scene_stop();
    CHECK(side_dir_count(dir) <= 0);
    side_dir_remove(dir);
}

TestSuite(share_hostile, .init = setup, .fini = teardown, .timeout = 120);

/* An honest importer is served, promptly, and nothing of anybody is left held. */
static void assert_serves(void)
{
    uint64_t begin = side_now();
    unsigned long address;

    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert(side_within(begin, AT_ONCE_MS * MS), "others had to wait");
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, export));
    export = scene_export(0, 512, ipc_handle);
}

static uint64_t references(void)
{
    struct gs_share_stats stats;

    gs_share_stats(side.share, &stats);
    return stats.references;
}

static int dial(void)
{
    struct sockaddr_un to;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    side_path_of(dir, ipc_handle, &to);
    while (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        if (errno != EINTR && errno != EAGAIN)
            return -1;
    return fd;
}

static void hello(int fd)
{
    side_greet(fd, ipc_handle + 8);
}

static int ask_open(int fd, uint32_t want_fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = want_fd;
    return gs_wire_send(fd, &message, -1);
}

static bool is_hung_up_on(int fd)
{
    char rest[512];
    struct pollfd end = {.fd = fd, .events = POLLIN};

    while (poll(&end, 1, AT_ONCE_MS) > 0) {
        ssize_t got = recv(fd, rest, sizeof rest, MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno != ECONNRESET)) /* a reset comes before the last words */
            return true;
    }
    return false;
}

/* ---- Clients -------------------------------------------------------------------------------- */

Test(share_hostile, garbage_is_hung_up_on)
{
    unsigned seed = 1;

    for (int i = 0; i < 300; i++) {
        unsigned char junk[600];
        int fd = dial();
        size_t length = 1 + (size_t)rand_r(&seed) % sizeof junk;

        for (size_t j = 0; j < length; j++)
            junk[j] = (unsigned char)rand_r(&seed);
        send(fd, junk, length, MSG_NOSIGNAL);
        cr_assert(is_hung_up_on(fd));
        close(fd);
    }
    assert_serves();
}

/* The reason of the refusal; -1: nothing was said. Then it must have been hung up on. */
static int refusal(int fd)
{
    union gs_wire_message message;
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    int reason = -1;

    for (int i = 0; i < 3 && reason < 0 && poll(&answer, 1, AT_ONCE_MS) > 0; i++)
        if (recv(fd, &message, sizeof message, MSG_DONTWAIT) > 0)
            reason = (int)message.refuse.reason;
    cr_assert(is_hung_up_on(fd));
    close(fd);
    return reason;
}

Test(share_hostile, other_versions_are_answered_with_the_reason)
{
    for (int step = -1; step <= 1; step += 2) {
        union gs_wire_message message;
        int fd = dial();

        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        message.head.version = (uint16_t)(message.head.version + step);
        memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
        gs_wire_send(fd, &message, -1);
        cr_assert_eq(refusal(fd), GS_REFUSED_VERSION);
    }
    cr_assert_not_null(strstr(side_logged(), "another version of the protocol"));
    assert_serves();
}

Test(share_hostile, every_fault_is_named_in_the_log)
{
    static const char *const words[] = {"it did not greet first",
                                        "it wants another process",
                                        "it greeted twice",
                                        "fields that make no sense",
                                        "names more than it said that it holds",
                                        "that it was not asked for",
                                        "for a broker",
                                        "something that is no message",
                                        "answers what it was not asked",
                                        "not an importer's to send"};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        union gs_wire_message message;
        int fd = dial();

        if (i > 1)
            hello(fd);
        gs_wire_start(&message,
                      i == 4   ? GS_WIRE_RESUME
                      : i == 5 ? GS_WIRE_GRANT
                      : i == 8 ? GS_WIRE_FLUSHED
                      : i == 9 ? GS_WIRE_DONE
                               : GS_WIRE_PUBLISH,
                      0);
        if (i == 0 || i == 3)
            ask_open(fd, (uint32_t)i);
        else if (i == 1)
            side_greet(fd, ipc_handle + 9);
        else if (i == 2)
            hello(fd);
        else if (i == 7)
            send(fd, "x", 1, MSG_NOSIGNAL);
        else
            gs_wire_send(fd, &message, -1);
        cr_assert_eq(refusal(fd), GS_REFUSED_MESSAGE, "%s", words[i]);
        cr_assert_not_null(strstr(side_logged(), words[i]), "%s", words[i]);
    }
    cr_assert_eq(side_log_lines(), 0, "what an attacker causes is no warning");
    assert_serves();
}

Test(share_hostile, silent_ones_are_hung_up_on_in_time)
{
    uint64_t begin;
    int fd;

    scene_stop();
    options.timeout_ns = 1000 * MS;
    scene_block(&export, ipc_handle);
    begin = side_now();
    fd = dial();
    cr_assert(is_hung_up_on(fd));
    cr_assert_not(side_within(begin, options.timeout_ns));
    close(fd);
}

/* A connection of this process, for one of the holders in it, and what an open over it is
 * answered. */
static enum gs_wire_type dial_and_open(int *ret_fd, int holder)
{
    union gs_wire_message message;
    int got;

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
    memset(message.hello.from, 1 + holder, sizeof message.hello.from);
    *ret_fd = dial();
    gs_wire_send(*ret_fd, &message, -1);
    ask_open(*ret_fd, 0);
    cr_assert(SIDE_WAIT(gs_wire_receive(*ret_fd, &message, &got) == 0));
    return message.head.type;
}

static void leave(int fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_BYE, 0);
    gs_wire_send(fd, &message, -1);
    close(fd);
}

/* It goes on with what it has, so that its place is taken; nobody else is let in, and it once. */
Test(share_hostile, who_lost_his_connection_comes_back_to_one_who_has_no_room)
{
    unsigned long address;
    int fds[64], back, more;

    for (int i = 0; i < 64; i++)
        cr_assert_eq(dial_and_open(&fds[i], i), GS_WIRE_GRANT);
    cr_assert_eq(dial_and_open(&back, 64), GS_WIRE_REFUSE);
    close(back);
    for (int i = 0; i < 3; i++) {
        close(i == 0 ? fds[0] : back);
        cr_assert_eq(dial_and_open(&more, 64), GS_WIRE_REFUSE, "the place is another's");
        close(more);
        cr_assert(SIDE_WAIT(dial_and_open(&back, 0) == GS_WIRE_GRANT || close(back)));
        cr_assert_eq(other_open(&other, ipc_handle, &address), GS_UNREACHABLE);
        cr_assert_eq(dial_and_open(&more, 64), GS_WIRE_REFUSE);
        close(more);
    }
    for (int i = 1; i < 64; i++)
        leave(fds[i]);
    leave(back);
    cr_assert(SIDE_WAIT(references() == 0));
    assert_serves();
}

/* ---- Other users ---------------------------------------------------------------------------- */

/* A skipped test does not come to its suite's teardown. */
static void need_root(void)
{
    if (geteuid() == 0)
        return;
    teardown();
    cr_skip("only root can be two users");
}

static void start_as_nobody(const char *extra)
{
    need_root();
    if (other.pid)
        other_stop(&other);
    chmod(dir, 0711);
    other_start(&other, dir, extra);
}

static void run_as_nobody_by_hand(int *ret_reason)
{
    int pipes[2];
    pid_t child;

    cr_assert_eq(pipe(pipes), 0);
    child = fork_child();
    if (child == 0) {
        union gs_wire_message message;
        int fd, reason = -1;

        if (become_user(65534, 65534) && (fd = dial()) >= 0) {
            hello(fd);
            ask_open(fd, 1);
            for (int i = 0; i < 3; i++) /* a reset comes before what was said */
                if (recv(fd, &message, sizeof message, 0) > 0) {
                    reason = (int)message.refuse.reason;
                    break;
                }
        }
        _exit(write(pipes[1], &reason, sizeof reason) < 0);
    }
    cr_assert_eq(read(pipes[0], ret_reason, sizeof *ret_reason), sizeof *ret_reason);
    waitpid(child, NULL, 0);
    close(pipes[0]);
    close(pipes[1]);
}

Test(share_hostile, another_users_connection_is_refused_by_its_credentials)
{
    struct sockaddr_un at;
    int reason;

    need_root();
    side_path_of(dir, ipc_handle, &at);
    chmod(dir, 0711);
    chmod(at.sun_path, 0666);
    run_as_nobody_by_hand(&reason);
    cr_assert_eq(reason, GS_REFUSED_USER);
    cr_assert_not_null(strstr(side_logged(), "of user 65534 was refused: another user"), "%s",
                       side_logged());
    cr_assert_eq(side_log_lines(), 0, "what an attacker causes is no warning");
    cr_assert_eq(memdriver_exports(), 0);
    assert_serves();
}

Test(share_hostile, a_user_that_is_named_gets_through)
{
    unsigned long address;

    scene_stop();
    options.uids[options.uid_count++] = 65534;
    scene_block(&export, ipc_handle);
    start_as_nobody("uid=65534");
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_UNREACHABLE, "he does not name us");
    other_stop(&other);
    other_start(&other, dir, "trust=0");
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
}

/* ---- Full tables of descriptors ------------------------------------------------------------- */

static pid_t flier; /* has descriptors under way; 0: none are */
static int lands;   /* what it reads them after */

/* Its child sends itself more descriptors than the exporter's limit. They are under way when this
 * returns, and until land_descriptors. */
static void fly_descriptors(unsigned count)
{
    int pair[2], told[2], landing[2], arrived;
    char fly = 0;

    cr_assert_eq(pipe2(told, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(landing, O_CLOEXEC), 0);
    flier = fork_child();
    if (flier) {
        cr_assert_eq(read(told[0], &fly, 1), 1);
        close(told[0]);
        close(told[1]);
        close(landing[0]);
        lands = landing[1];
        return;
    }
    close(landing[1]);
    if (!become_user(65534, 65534) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        _exit(1);
    for (unsigned i = 0; i < count; i++) {
        union gs_wire_message message;

        gs_wire_start(&message, GS_WIRE_REFUSE, 0);
        if (gs_wire_send(pair[0], &message, pair[0]) != 0)
            _exit(2);
    }
    if (write(told[1], &fly, 1) != 1)
        _exit(3);
    if (read(landing[0], &fly, 1) != 0)
        _exit(4);
    for (union gs_wire_message message; gs_wire_receive(pair[1], &message, &arrived) == 0;)
        close(arrived);
    _exit(0);
}

static void land_descriptors(void)
{
    int status;

    close(lands);
    cr_assert_eq(waitpid(flier, &status, 0), flier);
    cr_assert_eq(status, 0);
    flier = 0;
}

void __real_gs_rest_ns(uint64_t ns);
void __wrap_gs_rest_ns(uint64_t ns);

static unsigned rests; /* with descriptors under way; they land in the third */

void __wrap_gs_rest_ns(uint64_t ns)
{
    if (flier && ++rests == 3)
        land_descriptors();
    __real_gs_rest_ns(ns);
}

/* Anew, in a folder of another user's; what is opened comes with a descriptor each time. */
static void begin_in_anothers_folder(void)
{
    need_root();
    cr_assert_eq(other_stop(&other), 0);
    scene_stop();
    side_dir_remove(dir);
    options.uids[options.uid_count++] = 65534;
    options.idle_ns = 0;
    scene_block(&export, ipc_handle);
    cr_assert_eq(chmod(dir, 0755), 0);
    cr_assert_eq(chown(dir, 65534, 65534), 0);
}

/* The kernel counts those under way for each user and holds a process's own limit against them (but
 * not root's). */
Test(share_hostile, descriptors_under_way_delay_an_open_and_do_not_refuse_it)
{
    unsigned char theirs[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    begin_in_anothers_folder();
    other_start2(&other, dir, "uid=65534", "trust=0");
    other_export(&other, 0, 512, 3, theirs);
    cr_assert_str_eq(other_ask(&other, "nofile 20"), "ok");
    fly_descriptors(40);
    cr_assert_eq(gs_share_open(side.share, theirs, SIDE_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(rests, 3, "there was room, and this proves nothing: %u", rests);
    cr_assert_eq(*(char *)address, 3);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

/* Of whom an answer is awaited; a RECALL too. */
static int next_of(int fd)
{
    union gs_wire_message message;

    return recv(fd, &message, sizeof message, 0) > 0 ? message.head.type : 0;
}

static int open_of(int fd, const unsigned char *theirs, uint32_t request)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, request);
    memcpy(message.open.ipc_handle, theirs, sizeof message.open.ipc_handle);
    message.open.want_fd = 1;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    return next_of(fd);
}

/* An importer that is asked more often than it holds something listens no more
 * (core/share/remote.c). */
Test(share_hostile, who_was_refused_is_not_asked_again_for_what_he_holds)
{
    unsigned char theirs[GS_IPC_HANDLE_SIZE];
    int fd, newer;

    begin_in_anothers_folder();
    other_start2(&other, dir, "uid=65534", "trust=0");
    other_export(&other, 0, 512, 3, theirs);
    fd = side_connect_by_hand(dir, theirs);
    cr_assert_eq(open_of(fd, theirs, 1), GS_WIRE_GRANT);
    cr_assert(!other_withdraws(&other));
    cr_assert_eq(next_of(fd), GS_WIRE_RECALL);
    cr_assert_str_eq(other_ask(&other, "nofile 20"), "ok");
    fly_descriptors(40);
    cr_assert_eq(open_of(fd, theirs, 2), GS_WIRE_REFUSE, "there was room, and this proves nothing");
    land_descriptors();
    cr_assert(!other_withdraws(&other), "what it was granted before is lost");
    newer = side_connect_by_hand(dir, theirs);
    cr_assert_eq(open_of(newer, theirs, 1), GS_WIRE_GRANT);
    cr_assert_eq(next_of(newer), GS_WIRE_RECALL, "who came last is asked");
    cr_assert_eq(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0), 0);
    close(newer);
    close(fd);
}

Test(share_hostile, a_driver_that_does_not_export_is_passed_on)
{
    unsigned long address;

    memdriver_fail_export(CUDA_ERROR_NOT_PERMITTED);
    cr_assert_eq(other_open(&other, ipc_handle, &address), (gs_status)CUDA_ERROR_NOT_PERMITTED);
    memdriver_fail_export(CUDA_SUCCESS);
    assert_serves();
}
