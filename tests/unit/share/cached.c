/* Chunks are mapped for as long as something of them is held; and what is closed is asked for. */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/internal.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_chunk();
}

/* One of them takes long with a sanitizer on a busy machine; a test's own limit beside its suite's
 * leaks in Criterion 2.4.1. */
TestSuite(share_cached, .init = setup, .fini = scene_end, .timeout = 600);

/* Exports bytes of the chunk, has them opened, closed, and taken back. With `at_once` the
 * importer's close and the exporter's call meet. */
static void go_round(size_t offset, int byte, bool at_once)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address = 0;
    char want[16];

    *(char *)(chunk.base + offset) = (char)byte;
    cr_assert_eq(side_export(&side, &chunk, offset, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    snprintf(want, sizeof want, "ok %d", byte);
    cr_assert_str_eq(other_ask(&other, "read %lx", address), want);
    if (at_once)
        halt(other.pid);
    gs_share_freed(side.share, export, side_now());
    fprintf(other.in, "close %lx\n", address);
    fflush(other.in);
    if (at_once) {
        usleep(3000); /* it is called back */
        kill(other.pid, SIGCONT);
    }
    cr_assert_not_null(fgets(other.answer, sizeof other.answer, other.out));
    cr_assert_str_eq(other.answer, "status 0\n");
    cr_assert(side_gets_back(&side, export));
}

static bool is_mapped(void)
{
    return !strcmp(other_ask(&other, "mapped"), "ok 1");
}

Test(share_cached, with_its_last_block_it_is_unmapped_before_that_is_back)
{
    other_start(&other, dir, NULL);
    for (int i = 1; i <= 40; i++) {
        go_round((size_t)i % 7 * 512, i, i % 2);
        cr_assert_not(is_mapped());
    }
    cr_assert_leq(atoi(other_ask(&other, "census") + 3), 1, "a handle is left"); /* a spare event */
    cr_assert_eq(memdriver_exports(), 1, "its descriptor is kept");
}

/* A connection by hand that has something open, which is freed; and is asked for it. */
static int asked_by_hand(struct gs_export **ret_held, uint64_t *ret_number)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int fd;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, ret_held), GS_OK);
    gs_export_handle(*ret_held, ipc_handle);
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
