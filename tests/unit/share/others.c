/*
 * Asking more of the user's processes than are asked at once, and those who answer without an end,
 * or what they were not asked (core/share/ask.c). One process plays them all.
 */
#include <criterion/criterion.h>

#include "core/share/conn.h"
#include "core/share/internal.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define MANY (2 * GS_CONN_ANY + 44u) /* of whom the last round has less than the others */
#define ROOM (4 * MANY)
#define LONG (UINT64_C(30) * 1000 * MS) /* nothing here is ended by the time */

enum play { ANSWERS, HAS_ALWAYS_ONE_MORE, ANSWERS_ANOTHER };

/* Of the process that plays: questions that it was asked. */
static unsigned *questions;

static void answer(int fd, enum play play, const union gs_wire_message *asked)
{
    union gs_wire_message message;

    __atomic_add_fetch(questions, 1, __ATOMIC_SEQ_CST);
    if (asked->head.type == GS_WIRE_ORDER) {
        gs_wire_start(&message, GS_WIRE_DONE, asked->head.request);
        message.done.given = 1;
    } else {
        gs_wire_start(&message, GS_WIRE_REPORT, asked->head.request + (play == ANSWERS_ANOTHER));
        message.report.has_figures = 1;
        message.report.figures.reserved = MIB;
        memcpy(message.report.figures.uuid, play == HAS_ALWAYS_ONE_MORE ? side_other_gpu : side_gpu,
               16);
        strcpy(message.report.name, "player");
    }
    gs_wire_send(fd, &message, -1);
}

static _Noreturn void play_all(const int *listeners, unsigned count, enum play play, int told)
{
    static struct pollfd fds[ROOM];
    unsigned last = count; /* behind it the connections: each asks once before it is hung up */

    for (unsigned i = 0; i < count; i++)
        fds[i] = (struct pollfd){.fd = listeners[i], .events = POLLIN};
    if (write(told, "", 1) != 1)
        _exit(1);
    for (;;) {
        unsigned polled = last;

        poll(fds, polled, -1);
        for (unsigned i = 0; i < polled; i++) {
            union gs_wire_message message;

            if (!fds[i].revents || (i < count && last == ROOM))
                continue;
            if (i < count) {
                fds[last].fd = accept(fds[i].fd, NULL, NULL);
                fds[last++].events = POLLIN;
            } else if (recv(fds[i].fd, &message, sizeof message, 0) > 0) {
                answer(fds[i].fd, play, &message);
            } else {
                close(fds[i].fd);
                fds[i].fd = -1;
            }
        }
        while (last > count && fds[last - 1].fd < 0)
            last--;
    }
}

static pid_t player;

static void end(void)
{
    kill(player, SIGKILL);
    waitpid(player, NULL, 0);
}

/* So many processes of this user's, as far as their sockets say. */
static void start(unsigned count, enum play play)
{
    static int listeners[MANY];
    struct rlimit limit;
    int told[2];
    char byte;

    mkdir(dir, 0700);
    cr_assert_eq(pipe(told), 0);
    player = fork_child();
    if (player == 0) {
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        for (unsigned i = 0; i < count; i++) {
            char path[128];

            side_path_named(dir, i + 1, path);
            listeners[i] = side_listen(path);
        }
        play_all(listeners, count, play, told[1]);
    }
    close(told[1]);
    cr_assert_eq(read(told[0], &byte, 1), 1);
    close(told[0]);
}

static void setup(void)
{
    questions =
        mmap(NULL, sizeof *questions, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    scene_new();
    scene_side();
}

static void teardown(void)
{
    side_stop(&side);
    end();
    side_dir_remove(dir);
}

TestSuite(share_others, .init = setup, .fini = teardown, .timeout = 120);

static unsigned asked(void)
{
    return __atomic_load_n(questions, __ATOMIC_SEQ_CST);
}

/* As many as are asked at once, one more, and many. */
Test(share_others, all_are_asked_for_idle_memory)
{
    unsigned counts[] = {GS_CONN_ANY, GS_CONN_ANY + 1, MANY}, before = 0;

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct gs_share_answers answers;
        int fds = side_open_fds();

        start(counts[i], ANSWERS);
        gs_share_ask(side.share, side_gpu, MIB, &answers);
        while (answers.silent > 0) /* a busy machine holds one up; it is asked again */
            gs_share_ask(side.share, side_gpu, MIB, &answers);
        cr_assert_eq(answers.given, counts[i], "%llu of %u", (unsigned long long)answers.given,
                     counts[i]);
        cr_assert_eq(side_open_fds(), fds);
        before = asked();
        gs_share_ask(side.share, side_gpu, 1,
                     &answers); /* one is enough: the next round is not asked */
        cr_assert_eq(answers.given, 1);
        cr_assert_leq(asked() - before, GS_CONN_ANY);
        end();
        side_dir_remove(dir);
    }
}

Test(share_others, all_are_asked_for_their_figures)
{
    unsigned counts[] = {GS_CONN_ANY, GS_CONN_ANY + 1, MANY};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct gs_share_others found;

        start(counts[i], ANSWERS);
        gs_share_others(side.share, side_gpu, LONG, &found);
        cr_assert_eq(found.answered, counts[i]);
        cr_assert_eq(found.silent, 0);
        cr_assert_eq(found.reserved, counts[i] * MIB);
        end();
        side_dir_remove(dir);
    }
}

/* Those who were asked are waited for then, and the others asked with their descriptors. */
Test(share_others, few_descriptors_are_enough_for_idle_memory)
{
    struct gs_share_answers answers;
    struct rlimit limit, before;

    start(GS_CONN_ANY, ANSWERS);
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)dup(0) + 20; /* a folder, and what an asking needs for a moment, too */
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    gs_share_ask(side.share, side_gpu, MIB, &answers);
    while (answers.silent > 0)
        gs_share_ask(side.share, side_gpu, MIB, &answers);
    cr_assert_eq(answers.given, GS_CONN_ANY);
    setrlimit(RLIMIT_NOFILE, &before);
}

/* It is asked for one device after the other, up to the last number that there may be. */
Test(share_others, one_that_has_always_one_more_device_is_not_asked_for_ever)
{
    struct gs_share_others found;

    start(1, HAS_ALWAYS_ONE_MORE);
    gs_share_others(side.share, side_gpu, LONG, &found);
    cr_assert_eq(asked(), 256);
    cr_assert_eq(found.silent, 0);
    cr_assert_eq(found.answered, 0, "what it has of another is counted");
}

/* A late answer to what was asked before is of another device. */
Test(share_others, what_was_not_asked_is_no_answer)
{
    struct gs_share_others found;

    start(1, ANSWERS_ANOTHER);
    gs_share_others(side.share, side_gpu, LONG, &found);
    cr_assert_eq(found.silent, 1);
    cr_assert_eq(found.answered, 0);
    cr_assert_eq(found.reserved, 0);
}
