/* Neighbours that do everything wrong: clients by hand, other users, full tables.
 * For exporters by hand: hostile_exporters.c. */
#include <criterion/criterion.h>

#include "by_hand.h"
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
    int fd;

    CHECK(SIDE_WAIT((fd = side_dial(dir, ipc_handle)) >= 0));
    return fd;
}

/* ---- Clients -------------------------------------------------------------------------------- */

/* Over a connection of its own; without a size it is no message. */
static int refused_for(const union gs_wire_message *message, bool greets)
{
    int fd = dial(), reason;

    if (greets)
        side_greet(fd, ipc_handle + 8);
    send(fd, message, message->head.size ? message->head.size : 1, MSG_NOSIGNAL);
    reason = refusal_and_end(fd);
    close(fd);
    return reason;
}

Test(share_hostile, every_fault_is_named_in_the_log)
{
    const struct {
        const char *words;
        bool greets;
        union gs_wire_message message;
    } faults[] = {
        {"it did not greet first", false, message_open(ipc_handle, 1, GS_OPEN_HAS_IT)},
        {"it wants another process", false, message_hello(ipc_handle + 9)},
        {"it greeted twice", true, message_hello(ipc_handle + 8)},
        {"fields that make no sense", true, message_open(ipc_handle, 1, GS_OPEN_WANTED)},
        {"names more than it said that it holds", true, MESSAGE(RESUME, 0)},
        {"that it was not asked for", true, MESSAGE(GRANT, 0)},
        {"for a broker", true, MESSAGE(PUBLISH, 0)},
        {"something that is no message", true, {.head = {0}}},
        {"answers what it was not asked", true, MESSAGE(FLUSHED, 0)},
        {"not its to send", true, MESSAGE(DONE, 0)},
    };

    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        cr_assert_eq(refused_for(&faults[i].message, faults[i].greets), GS_REFUSED_MESSAGE, "%s",
                     faults[i].words);
        cr_assert_not_null(strstr(side_logged(), faults[i].words), "%s", faults[i].words);
    }
    cr_assert_eq(side_log_lines(), 0, "what an attacker causes is no warning");
    assert_serves();
}

Test(share_hostile, other_versions_are_answered_with_the_reason)
{
    for (int step = -1; step <= 1; step += 2) {
        union gs_wire_message message = message_hello(ipc_handle + 8);

        message.head.version = (uint16_t)(message.head.version + step);
        cr_assert_eq(refused_for(&message, false), GS_REFUSED_VERSION);
    }
    cr_assert_not_null(strstr(side_logged(), "another version of the protocol"));
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
    union gs_wire_message message = message_hello(ipc_handle + 8);

    memset(message.hello.from, 1 + holder, sizeof message.hello.from);
    *ret_fd = dial();
    say(*ret_fd, message);
    say(*ret_fd, message_open(ipc_handle, 1, GS_OPEN_HAS_IT));
    return hear(*ret_fd, &message);
}

/* It goes on with what it has, so that its place is taken; nobody else is let in, and it once. */
Test(share_hostile, who_lost_its_connection_comes_back_to_one_who_has_no_room)
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
        side_leave(fds[i]);
    side_leave(back);
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

static void is_refused_as_another(void *arg)
{
    int fd = dial();

    side_greet(fd, ipc_handle + 8);
    say(fd, message_open(ipc_handle, 1, GS_OPEN_WANTS));
    if (refusal_and_end(fd) != GS_REFUSED_USER)
        _exit(3);
}

Test(share_hostile, another_users_connection_is_refused_by_its_credentials)
{
    struct sockaddr_un at;

    need_root();
    side_path_of(dir, ipc_handle, &at);
    chmod(dir, 0711);
    chmod(at.sun_path, 0666);
    other_user_end(other_user_start(is_refused_as_another, NULL));
    cr_assert_not_null(strstr(side_logged(), "of user 65533 was refused: another user"), "%s",
                       side_logged());
    cr_assert_eq(side_log_lines(), 0, "what an attacker causes is no warning");
    cr_assert_eq(memdriver_exports(), 0);
    assert_serves();
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
    if (!become_user(65533, 65533) ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        _exit(1);
    for (unsigned i = 0; i < count; i++) {
        union gs_wire_message message = MESSAGE(REFUSE, 0);

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
    options.uids[options.uid_count++] = 65533;
    options.idle_ns = 0;
    scene_block(&export, ipc_handle);
    cr_assert_eq(chmod(dir, 0755), 0);
    cr_assert_eq(chown(dir, 65533, 65533), 0);
}

/* The kernel counts those under way for each user and holds a process's own limit against them (but
 * not root's). */
Test(share_hostile, descriptors_under_way_delay_an_open_and_do_not_refuse_it)
{
    unsigned char theirs[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    begin_in_anothers_folder();
    other_start2(&other, dir, "uid=65533", "trust=0");
    other_export(&other, 0, 512, 3, theirs);
    cr_assert_str_eq(other_ask(&other, "nofile 20"), "ok");
    fly_descriptors(40);
    cr_assert_eq(gs_share_open(side.share, theirs, SIDE_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(rests, 3, "there was room, and this proves nothing: %u", rests);
    cr_assert_eq(*(char *)address, 3);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

/* What an OPEN is answered. */
static int open_of(int fd, const unsigned char *theirs, uint32_t request)
{
    union gs_wire_message message;

    cr_assert_eq(say(fd, message_open(theirs, request, GS_OPEN_WANTS)), 0);
    return hear(fd, &message);
}

/* An importer that is asked more often than it holds something listens no more
 * (core/share/remote.c). */
Test(share_hostile, who_was_refused_is_not_asked_again_for_what_it_holds)
{
    unsigned char theirs[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int fd, newer;

    begin_in_anothers_folder();
    other_start2(&other, dir, "uid=65533", "trust=0");
    other_export(&other, 0, 512, 3, theirs);
    fd = side_connect_by_hand(dir, theirs);
    cr_assert_eq(open_of(fd, theirs, 1), GS_WIRE_GRANT);
    cr_assert(!other_withdraws(&other));
    cr_assert_eq(hear(fd, &message), GS_WIRE_RECALL);
    cr_assert_str_eq(other_ask(&other, "nofile 20"), "ok");
    fly_descriptors(40);
    cr_assert_eq(open_of(fd, theirs, 2), GS_WIRE_REFUSE, "there was room, and this proves nothing");
    land_descriptors();
    cr_assert(!other_withdraws(&other), "what it was granted before is lost");
    newer = side_connect_by_hand(dir, theirs);
    cr_assert_eq(open_of(newer, theirs, 1), GS_WIRE_GRANT);
    cr_assert_eq(hear(newer, &message), GS_WIRE_RECALL, "who came last is asked");
    cr_assert_eq(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0), 0);
    close(newer);
    close(fd);
}
