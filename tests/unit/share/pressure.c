/* Asking other processes for memory, and being asked (core/share/pressure.c): what is said by whom,
 * and those who do it wrongly. What is given, and how often, is tests/neighbour's. */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/internal.h"
#include "patience.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define WAIT_MS   50    /* who does not answer is waited for so long, */
#define GIVING_MS 1000  /* who is at it so long, */
#define SLEEPS_MS 10000 /* and who goes to sleep; none of them is as long as a look more */
#define LOOK_MS   5

static void setup(void)
{
    scene_new();
    scene_side();
}

static void teardown(void)
{
    side_stop(&side);
    CHECK(side_dir_count(dir) <= 0);
    side_dir_remove(dir);
}

TestSuite(share_pressure, .init = setup, .fini = teardown, .timeout = 120);

/* ---- By hand -------------------------------------------------------------------------------- */

/* By its name, or the next one that there is. */
static int dial(const char *name)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, name);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* A process of another user's, which answers that it gives all there is. */
static void poses_as_one_of_ours(void *path)
{
    int listener = side_listen(path);

    if (fork_child() != 0)
        return;
    for (;;) {
        union gs_wire_message message;
        int fd = accept(listener, NULL, NULL);

        if (fd >= 0 && recv(fd, &message, sizeof message, 0) > 0)
            say(fd, MESSAGE(DONE, message.head.request, .done = {.given = UINT64_MAX}));
    }
}

static void only_socket(char ret_name[GS_SOCKET_NAME_SIZE])
{
    char (*names)[GS_SOCKET_NAME_SIZE];
    int directory = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    cr_assert_eq(gs_directory_exporters(directory, "", &names), 1);
    close(directory);
    memcpy(ret_name, names[0], GS_SOCKET_NAME_SIZE);
    free(names);
}

static void plead(int fd, const unsigned char *uuid, uint64_t wanted, uint32_t request)
{
    union gs_wire_message message =
        MESSAGE(ORDER, request, .order = {.kind = GS_ORDER_TRIM, .value = wanted});

    memcpy(message.order.uuid, uuid, sizeof message.order.uuid);
    say(fd, message);
}

/* `more` of its answer: */
enum told { GIVEN, SEEN_TO, TAKES_LONGER };

static void assert_told(int fd, uint32_t request, enum told told, uint64_t given)
{
    union gs_wire_message message;

    cr_assert_eq(hear(fd, &message), GS_WIRE_DONE);
    cr_assert_eq(message.head.request, request);
    cr_assert_eq(message.done.more, told);
    cr_assert_eq(message.done.given, given);
}

/* The side's program, which takes what it is asked for by gs_share_purge when the test likes. */
static unsigned asked; /* atomic: times it was woken */
static bool gives;

static bool is_asked(void *arg, enum gs_question question, unsigned device, union gs_told *told)
{
    __atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST);
    return gives;
}

static void can_be_asked(bool gives_then)
{
    gives = gives_then;
    side.share->events.asked = is_asked;
    cr_assert_eq(gs_share_serve(side.share), GS_OK);
}

static uint64_t taken(const unsigned char *uuid)
{
    unsigned char of[16] = "";
    uint64_t wanted = 0;

    cr_assert(SIDE_WAIT(gs_share_purge(side.share, of, &wanted)));
    cr_assert_eq(memcmp(of, uuid, sizeof of), 0);
    return wanted;
}

/* ---- Being asked ---------------------------------------------------------------------------- */

/* Those whose plea is under way, and once. */
Test(share_pressure, who_goes_to_sleep_for_it_says_that_this_takes_longer)
{
    int fds[2];

    can_be_asked(true);
    for (uint32_t i = 0; i < 2; i++) {
        fds[i] = dial(side.share->name);
        plead(fds[i], i ? side_other_gpu : side_gpu, MIB, i);
        assert_told(fds[i], i, SEEN_TO, 0);
    }
    cr_assert_eq(taken(side_gpu), MIB);
    gs_share_purge_is_long(side.share);
    assert_told(fds[0], 0, TAKES_LONGER, 0);
    gs_share_purged(side.share, 5 * MIB);
    assert_told(fds[0], 0, GIVEN, 5 * MIB);
    cr_assert_eq(taken(side_other_gpu), MIB);
    gs_share_purged(side.share, 0);
    assert_told(fds[1], 1, GIVEN, 0);
    for (unsigned i = 0; i < 2; i++)
        close(fds[i]);
}

/* The second and third come while the first is under way. */
Test(share_pressure, those_who_ask_for_one_device_are_told_together)
{
    int fds[5];

    can_be_asked(true);
    for (unsigned i = 0; i < 5; i++) {
        fds[i] = dial(side.share->name);
        plead(fds[i], i == 3 ? side_other_gpu : side_gpu, i == 4 ? UINT64_MAX : (i + 1) * MIB, i);
        assert_told(fds[i], i, SEEN_TO, 0);
        if (i == 0)
            cr_assert_eq(taken(side_gpu), MIB);
    }
    gs_share_purged(side.share, 7);
    assert_told(fds[0], 0, GIVEN, 7);
    cr_assert_eq(taken(side_gpu), UINT64_MAX);
    gs_share_purged(side.share, 8);
    assert_told(fds[1], 1, GIVEN, 8);
    assert_told(fds[2], 2, GIVEN, 8);
    assert_told(fds[4], 4, GIVEN, 8);
    cr_assert_eq(taken(side_other_gpu), 4 * MIB);
    gs_share_purged(side.share, 9);
    assert_told(fds[3], 3, GIVEN, 9);
    for (unsigned i = 0; i < 5; i++)
        close(fds[i]);
}

Test(share_pressure, who_ends_while_it_asks_delays_nobody)
{
    int gone, due, fd;

    can_be_asked(true);
    gone = dial(side.share->name);
    plead(gone, side_gpu, MIB, 1);
    assert_told(gone, 1, SEEN_TO, 0);
    cr_assert_eq(taken(side_gpu), MIB);
    due = dial(side.share->name);
    plead(due, side_other_gpu, MIB, 1);
    assert_told(due, 1, SEEN_TO, 0);
    close(gone);
    close(due);
    fd = dial(side.share->name);
    plead(fd, side_gpu, 5 * MIB, 1);
    assert_told(fd, 1, SEEN_TO, 0);
    cr_assert(SIDE_WAIT(side.share->clients.count == 1));
    gs_share_purged(side.share, 1);
    cr_assert_eq(taken(side_gpu), 5 * MIB);
    gs_share_purged(side.share, 2);
    assert_told(fd, 1, GIVEN, 2);
    close(fd);
}

Test(share_pressure, who_asks_again_before_it_was_answered_is_hung_up_on)
{
    union gs_wire_message message;
    int fd;

    can_be_asked(true);
    fd = dial(side.share->name);
    plead(fd, side_gpu, MIB, 1);
    plead(fd, side_gpu, MIB, 2);
    assert_told(fd, 1, SEEN_TO, 0);
    cr_assert_eq(hear(fd, &message), GS_WIRE_REFUSE);
    cr_assert_eq(message.refuse.reason, GS_REFUSED_MESSAGE);
    cr_assert_eq(hear(fd, &message), 0);
    cr_assert_not_null(strstr(side_logged(), "it asks for memory again before it was answered"));
    cr_assert_eq(side_log_lines(), 0, "what an attacker causes is no warning");
    close(fd);
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

/* Asks as often as it likes, and is told each time. */
static void asks_as_it_is(void *arg)
{
    int fd = dial(arg);

    for (int i = 0; i < 3; i++) {
        union gs_wire_message message;

        plead(fd, side_gpu, UINT64_MAX, 1);
        if (hear(fd, &message) != GS_WIRE_REFUSE || message.refuse.reason != GS_REFUSED_USER)
            _exit(1);
    }
}

Test(share_pressure, another_user_gets_nothing_though_they_may_open)
{
    need_root();
    side_stop(&side);
    options.uids[options.uid_count++] = 65533;
    side_start(&side, &options);
    can_be_asked(true);
    cr_assert_eq(chmod(dir, 0755), 0);
    other_user_end(other_user_start(asks_as_it_is, side.share->name));
    cr_assert_eq(asked, 0);
}

/* Wherever their socket lies: in a folder of theirs, which is not looked into, or in ours. We may
 * open what they share in both. */
Test(share_pressure, another_user_is_not_asked_though_they_share)
{
    char theirs[sizeof dir + 8], path[128], ours[128];
    struct gs_share_answers answers;
    pid_t child;

    need_root();
    snprintf(theirs, sizeof theirs, "%s.theirs", dir);
    cr_assert_eq(mkdir(theirs, 0755), 0);
    cr_assert_eq(chown(theirs, 65533, 65533), 0);
    side_path_named(theirs, 7, path);
    child = other_user_start(poses_as_one_of_ours, path);
    options.uids[options.uid_count++] = 65533;
    for (int i = 0; i < 2; i++) {
        side_stop(&side);
        strcpy(options.dir, i ? dir : theirs);
        if (i) {
            side_path_named(dir, 7, ours);
            cr_assert_eq(mkdir(dir, 0755), 0);
            cr_assert_eq(rename(path, ours), 0);
            cr_assert_eq(rmdir(theirs), 0);
        }
        side_start(&side, &options);
        gs_share_ask(side.share, side_gpu, MIB, &answers);
        cr_assert_eq(answers.given, 0);
        cr_assert_eq(answers.silent, 0);
    }
    other_user_end(child);
    unlink(ours);
}

/* ---- Asking --------------------------------------------------------------------------------- */

Test(share_pressure, all_are_asked_and_what_they_give_is_told)
{
    struct gs_share_answers answers;
    struct other others[3];

    gs_share_ask(side.share, side_gpu, MIB, &answers); /* there is nobody, and no folder */
    cr_assert_eq(answers.given, 0);
    for (int i = 0; i < 3; i++) {
        other_start(&others[i], dir, NULL);
        cr_assert_str_eq(other_ask(&others[i], "serve %d", 10 + i), "ok");
    }
    cr_assert_eq(gs_share_serve(side.share), GS_OK); /* it does not ask itself */
    gs_share_ask(side.share, side_gpu, MIB, &answers);
    cr_assert_eq(answers.given, 33);
    cr_assert_eq(answers.silent, 0);
    cr_assert_not(answers.ended);
    gs_share_ask(side.share, side_gpu, 25, &answers); /* two do not have that */
    cr_assert_eq(answers.given, 25, "no more than it wanted is believed");
    for (int i = 0; i < 3; i++)
        cr_assert_eq(other_stop(&others[i]), 0);
}

static void *asks(void *arg)
{
    struct gs_share_answers *answers = arg;

    gs_share_ask(side.share, side_gpu, MIB, answers);
    return NULL;
}

static void assert_waits(unsigned took, unsigned ms)
{
    cr_assert(took >= ms && took <= ms + LOOK_MS, "it waited for %u ms", took);
}

/* The test is that process, which says nothing more then. */
Test(share_pressure, who_goes_to_sleep_is_waited_for_longer)
{
    const unsigned begun = patience_waits();
    char path[128];
    union gs_wire_message message;
    struct gs_share_answers answers;
    pthread_t thread;
    int listener, fd;

    mkdir(dir, 0700);
    side_path_named(dir, 7, path);
    listener = side_listen(path);
    patience_took();
    cr_assert_eq(pthread_create(&thread, NULL, asks, &answers), 0);
    fd = accept(listener, NULL, NULL);
    cr_assert_eq(hear(fd, &message), GS_WIRE_ORDER);
    for (uint32_t more = 1; more <= 2; more++) {
        cr_assert_eq(say(fd, MESSAGE(DONE, message.head.request, .done = {.more = more})), 0);
        cr_assert(SIDE_WAIT(patience_waits() == begun + 1 + more));
    }
    patience_for(0);
    pthread_join(thread, NULL);
    patience_for(-1);
    assert_waits((unsigned)(patience_took() / MS), SLEEPS_MS);
    cr_assert_eq(answers.silent, 1);
    close(fd);
    close(listener);
    unlink(path);
}

/* How long it waits, in milliseconds, where nothing is said to it but so many times (-1: whatever
 * there is). */
static unsigned asking_waits(struct gs_share_answers *ret_answers, int answers)
{
    patience_for(answers);
    patience_took();
    gs_share_ask(side.share, side_gpu, MIB, ret_answers);
    patience_for(-1);
    return (unsigned)(patience_took() / MS);
}

Test(share_pressure, who_is_stopped_is_waited_for_once_and_asked_again_when_it_goes_on)
{
    struct gs_share_answers answers;
    int fds;

    other_start(&other, dir, NULL);
    cr_assert_str_eq(other_ask(&other, "serve 5"), "ok");
    kill(other.pid, SIGSTOP);
    waitpid(other.pid, NULL, WUNTRACED);
    assert_waits(asking_waits(&answers, 0), WAIT_MS);
    fds = side_open_fds();
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(asking_waits(&answers, 0), 0, "it was waited for again");
        cr_assert_eq(answers.silent, 1);
        cr_assert_eq(answers.silent_pid, other.pid);
        cr_assert_eq(answers.given, 0);
    }
    cr_assert_eq(side_open_fds(), fds, "one connection is kept");
    kill(other.pid, SIGCONT);
    cr_assert(SIDE_WAIT((asking_waits(&answers, -1), answers.given == 5)));
    cr_assert_eq(answers.silent, 0);
    cr_assert_eq(side_open_fds(), fds - 1);
    cr_assert_eq(other_stop(&other), 0);
}

/* It has answered long ago, and is asked anew. */
Test(share_pressure, what_was_given_before_it_was_asked_for_is_not_counted)
{
    char name[GS_SOCKET_NAME_SIZE];
    struct gs_share_answers answers;
    int fd;

    other_start(&other, dir, NULL);
    cr_assert_str_eq(other_ask(&other, "serve %d", 4 << 20), "ok");
    kill(other.pid, SIGSTOP);
    waitpid(other.pid, NULL, WUNTRACED);
    asking_waits(&answers, 0);
    cr_assert_eq(answers.silent, 1);
    kill(other.pid, SIGCONT);
    only_socket(name);
    fd = dial(name);
    plead(fd, side_gpu, MIB, 1);
    assert_told(fd, 1, SEEN_TO, 0);
    assert_told(fd, 1, GIVEN, 4 << 20); /* with this at the latest it has answered */
    close(fd);
    other_kill(&other);
    asking_waits(&answers, -1);
    cr_assert_eq(answers.given, 0);
    cr_assert_eq(gs_share_serve(side.share), GS_OK);
}

/* The only socket there gets a name as of a process that lives, or is of another PID namespace. */
static void rename_socket(char *ret_path)
{
    char old[GS_SOCKET_NAME_SIZE], before[128];

    only_socket(old);
    snprintf(before, sizeof before, "%.63s/%.32s", dir, old);
    side_path_named(dir, 7, ret_path);
    cr_assert_eq(rename(before, ret_path), 0);
}

/* Its child has its socket, and answers nobody: by the name that is seen, or by the connection. */
Test(share_pressure, a_child_of_who_has_ended_is_not_asked)
{
    for (int i = 0; i < 2; i++) {
        struct gs_share_answers answers;
        char path[128] = "";
        int child;

        other_start(&other, dir, NULL);
        cr_assert_str_eq(other_ask(&other, "serve 5"), "ok");
        child = atoi(other_ask(&other, "fork") + 3);
        cr_assert_gt(child, 0);
        if (i == 1)
            rename_socket(path);
        other_kill(&other);
        asking_waits(&answers, 0);
        cr_assert_eq(answers.silent, 0);
        cr_assert_not(answers.ended);
        kill(child, SIGKILL);
        cr_assert(SIDE_WAIT(kill(child, 0) != 0));
        unlink(path);
    }
    cr_assert_eq(gs_share_serve(side.share), GS_OK); /* which clears up after the first */
}

/* ---- Who answers wrongly -------------------------------------------------------------------- */

enum lie {
    SILENCE,
    HANG_UP,
    JUNK,
    OTHER_TYPE,
    OTHER_REQUEST,
    FIELDS,
    MORE_AND_MORE,
    MORE_AND_SILENCE,
    TWICE,
    SLEEPS_FIRST,
    SLEEPS_AND_SLEEPS,
    LIES
};

static void lie_to(int fd, enum lie lie, uint32_t request)
{
    union gs_wire_message message;

    gs_wire_start(&message, lie == OTHER_TYPE ? GS_WIRE_FLUSH : GS_WIRE_DONE,
                  request + (lie == OTHER_REQUEST));
    message.done.more = lie == MORE_AND_MORE || lie == MORE_AND_SILENCE || lie == SLEEPS_AND_SLEEPS;
    if (lie == SLEEPS_FIRST)
        message.done.more = 2;
    message.done.given = UINT64_MAX;
    message.done.outcome = lie == FIELDS;
    if (lie == HANG_UP)
        shutdown(fd, SHUT_RDWR);
    else if (lie == JUNK)
        send(fd, "x", 1, MSG_NOSIGNAL);
    else if (lie != SILENCE)
        gs_wire_send(fd, &message, -1);
    for (int i = 0; lie == TWICE && i < 2; i++)
        gs_wire_send(fd, &message, -1);
    message.done.more++;
    for (int i = 0; lie == SLEEPS_AND_SLEEPS && i < 2; i++)
        gs_wire_send(fd, &message, -1);
    message.done.more--;
    while (lie == MORE_AND_MORE && gs_wire_send(fd, &message, -1) != -EPIPE)
        continue;
}

static void lies(int listener, void *lie)
{
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        union gs_wire_message message;
        int fd = accept(listener, NULL, NULL);

        if (recv(fd, &message, sizeof message, 0) > 0)
            lie_to(fd, *(int *)lie, message.head.request);
    }
}

Test(share_pressure, who_answers_wrongly_is_believed_nothing_and_not_waited_for)
{
    for (int lie = SILENCE; lie < LIES; lie++) {
        bool silent = lie == SILENCE || lie == MORE_AND_SILENCE;
        struct gs_share_answers answers;
        int fds = side_open_fds();
        struct player player;

        mkdir(dir, 0700);
        player_start_named(&player, dir, 7, lies, &lie);
        /* Who is silent is waited for once, and whoever is at it longer. */
        for (int i = 0; i < 2; i++) {
            unsigned took = asking_waits(&answers, lie == SILENCE            ? 0
                                                   : lie == MORE_AND_SILENCE ? 1
                                                                             : -1);

            assert_waits(took, !silent || i == 1 ? 0 : lie == SILENCE ? WAIT_MS : GIVING_MS);
            cr_assert_leq(answers.given, lie == TWICE ? MIB : 0, "lie %d: %llu", lie,
                          (unsigned long long)answers.given);
            cr_assert_eq(answers.silent, silent, "lie %d", lie);
            cr_assert_eq(answers.ended, lie == HANG_UP, "lie %d", lie);
        }
        cr_assert(SIDE_WAIT(side_open_fds() <= fds + 1), "lie %d",
                  lie); /* closed by another thread, perhaps */
        player_kill(&player);
        asking_waits(&answers, -1);
        cr_assert(SIDE_WAIT(side_open_fds() <= fds), "lie %d", lie);
    }
    cr_assert_eq(side_log_lines(), 0, "what an attacker causes is no warning");
}

/* More sockets than are asked at once, of which none is served: who comes behind them is not asked,
 * and that is said. */
Test(share_pressure, a_folder_full_of_silent_sockets_costs_no_more_than_one)
{
    struct gs_share_answers answers;
    int listeners[150];

    mkdir(dir, 0700);
    for (unsigned i = 0; i < 150; i++) {
        char path[128];

        side_path_named(dir, i, path);
        listeners[i] = side_listen(path);
    }
    assert_waits(asking_waits(&answers, 0), WAIT_MS);
    cr_assert_eq(answers.silent, 128);
    cr_assert_not_null(strstr(side_logged(), "22 processes were not asked"), "%s", side_logged());
    cr_assert_eq(asking_waits(&answers, 0), 0);
    cr_assert_eq(answers.silent, 128);
    for (unsigned i = 0; i < 150; i++)
        close(listeners[i]);
    other_start(&other, dir, NULL);
    cr_assert_str_eq(other_ask(&other, "serve 5"), "ok");
    cr_assert(SIDE_WAIT((asking_waits(&answers, -1), answers.given == 5)));
    cr_assert_eq(other_stop(&other), 0);
    side_dir_remove(dir);
}

/* ---- A program that closes what it does not know -------------------------------------------- */

/* All that came since, but for one. */
static void close_since(const bool *had, int keep)
{
    for (int fd = 3; fd < 256; fd++)
        if (!had[fd] && fd != keep)
            close(fd);
}

Test(share_pressure, who_shares_nothing_yet_can_be_asked_again_and_shares_then)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;
    bool had[256];
    int asker;

    other_start(&other, dir, "timeout=20000");
    chunk = side_chunk_new(&side, 2 * MIB);
    for (int fd = 0; fd < 256; fd++)
        had[fd] = fcntl(fd, F_GETFD) >= 0;
    side_serve(&side, 6);
    cr_assert_str_eq(other_ask(&other, "ask 1000000"), "ok 6 0 0");
    asker = dial(side.share->name);
    close_since(had, asker);
    cr_assert(SIDE_WAIT(
        !strcmp(other_ask(&other, "ask 1000000"), "ok 6 0 0"))); /* once it listens anew */
    cr_assert_eq(side_log_lines(), 0, "%s", side_logged());
    export = scene_export(0, 512, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    close(asker);
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, export));
    cr_assert_eq(other_stop(&other), 0);
    side_chunk_free(&side, &chunk);
}

/* It is asked over what is made anew, and its thread does not look at what is closed without
 * end. */
Test(share_pressure, who_has_lost_the_end_that_wakes_it_is_asked_again_and_rests)
{
    other_start(&other, dir, NULL);
    side_serve(&side, 6);
    cr_assert_str_eq(other_ask(&other, "ask 1000000"), "ok 6 0 0");
    close(side.share->loop.wake);
    cr_assert(all_rest(0));
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "ask 1000000"), "ok 6 0 0")));
    cr_assert_eq(other_stop(&other), 0);
}
