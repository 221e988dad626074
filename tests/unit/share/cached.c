/* What is closed and freed is asked for, and what may be answered. */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/internal.h"
#include "core/share/let_go.h"
#include "scene.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_chunk();
}

TestSuite(share_cached, .init = setup, .fini = scene_end, .timeout = 120);

/* A connection by hand that has something open, which is freed; and is asked for it. */
static int asked_by_hand(struct gs_export **ret_held, uint64_t *ret_number)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int fd;

    *ret_held = scene_export(0, 512, ipc_handle);
    fd = side_connect_by_hand(dir, ipc_handle);
    cr_assert_eq(side_open_by_hand(fd, *ret_held), GS_WIRE_GRANT);
    gs_share_freed(side.share, *ret_held, side_now());
    gs_share_await_given_back(side.share, NULL, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    *ret_number = message.flush.number;
    return fd;
}

static void say_flushed(int fd, uint64_t number)
{
    cr_assert_eq(say(fd, MESSAGE(FLUSHED, 0, .flush = {.number = number})), 0);
}

/* Whoever answers what it was not asked, or twice, is hung up on. */
Test(share_cached, a_false_answer_ends_the_connection)
{
    for (int lie = 0; lie < 2; lie++) {
        union gs_wire_message message;
        struct gs_export *held;
        uint64_t number;
        int fd = asked_by_hand(&held, &number);

        say_flushed(fd, number + (lie == 0));
        if (lie == 1)
            say_flushed(fd, number);
        cr_assert_eq(side_next_message(fd, &message), GS_WIRE_REFUSE, "lie %d", lie);
        cr_assert_eq(side_next_message(fd, &message), 0);
        close(fd);
        cr_assert_not_null(strstr(side_logged(), "answers what it was not asked"));
    }
}

/* Until it answers it is waited for once; who waits meanwhile has it asked again then. */
Test(share_cached, what_is_on_its_way_for_long_is_waited_for_once_and_asked_for_again)
{
    union gs_wire_message message;
    struct gs_export *held;
    uint64_t number, begun = side_now();
    int fd = asked_by_hand(&held, &number);

    while (side_within(begun, 600 * MS)) /* it has not answered for so long */
        gs_share_await_given_back(side.share, NULL, 0);
    begun = side_now();
    for (int i = 0; i < 20; i++)
        gs_share_await_given_back(side.share, NULL, 0);
    cr_assert(side_within(begun, 8000 * MS), "it was waited for each time");
    say_flushed(fd, number);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH, "it was to be asked again");
    cr_assert_gt(message.flush.number, number);
    side_leave(fd);
    cr_assert(side_gets_back(&side, held));
}

/* Who is to sleep wants back what others keep of what it has not freed. One that says nothing is
 * waited for, for so long. */
Test(share_cached, what_is_not_freed_is_recalled_for_who_sleeps)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *held = scene_export(0, 512, ipc_handle);
    union gs_wire_message message;
    uint64_t begun;
    int fd;

    cr_assert_not(gs_share_recall_all(side.share), "nobody has anything yet");
    fd = side_connect_by_hand(dir, ipc_handle);
    cr_assert_eq(side_open_by_hand(fd, held), GS_WIRE_GRANT);
    begun = side_now();
    cr_assert(gs_share_recall_all(side.share));
    gs_share_await_recalled(side.share);
    cr_assert_not(side_within(begun, 400 * MS), "it was not waited for");
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    say_flushed(fd, message.flush.number);
    side_leave(fd);
    gs_share_freed(side.share, held, side_now());
    cr_assert(side_gets_back(&side, held));
}
