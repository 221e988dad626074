/* Chunks that stay mapped with nothing of them held, and how their memory comes back. */
#include <criterion/criterion.h>

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

/* Exports bytes of the chunk, has them opened, closed, and taken back: where they were mapped. With
 * `at_once` the importer's close and the exporter's call meet. */
static unsigned long go_round(size_t offset, int byte, bool at_once)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address = 0;
    char want[16];

    *(char *)(chunk.base + offset) = (char)byte;
    export = scene_export(offset, 512, ipc_handle);
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
    return address - offset;
}

static unsigned long round_trip(size_t offset, int byte)
{
    return go_round(offset, byte, false);
}

/* Handles, mappings and events that the importer has. */
static int census(void)
{
    return atoi(other_ask(&other, "census") + 3);
}

static bool is_mapped(void)
{
    return !strcmp(other_ask(&other, "mapped"), "ok 1");
}

Test(share_cached, when_the_chunk_goes_it_is_unmapped_and_that_is_waited_for)
{
    uint64_t begin;

    other_start(&other, dir, NULL);
    round_trip(0, 1);
    cr_assert(is_mapped());
    begin = side_now();
    gs_share_chunk_gone(side.share, chunk.id);
    gs_share_await_unmapped(side.share, NULL, SIDE_PATIENCE_MS * MS);
    cr_assert(side_within(begin, SIDE_PATIENCE_MS * MS / 2));
    cr_assert_not(is_mapped());
    cr_assert_leq(census(), 1, "a handle is left"); /* a spare event */
    /* And once more from the start. */
    chunk.id = ++side.next_id;
    round_trip(512, 2);
    cr_assert(is_mapped());
}

Test(share_cached, its_importer_does_not_answer_and_the_wait_ends)
{
    uint64_t begin;

    other_start(&other, dir, NULL);
    round_trip(0, 1);
    halt(other.pid);
    gs_share_chunk_gone(side.share, chunk.id);
    begin = side_now();
    gs_share_await_unmapped(side.share, NULL, 200 * MS);
    cr_assert_not(side_within(begin, 200 * MS), "nothing was waited for");
    gs_share_await_unmapped(side.share, NULL, SIDE_PATIENCE_MS * MS);
    cr_assert(side_within(begin, SIDE_PATIENCE_MS * MS / 2), "it was waited for again");
    kill(other.pid, SIGCONT);
    cr_assert(SIDE_WAIT(!is_mapped()));
}

/* The wait that would be one in vain ends with the test's time. */
Test(share_cached, one_gpu_does_not_wait_for_what_is_unmapped_of_another)
{
    other_start(&other, dir, NULL);
    round_trip(0, 1);
    halt(other.pid);
    gs_share_chunk_gone(side.share, chunk.id);
    gs_share_await_unmapped(side.share, side_other_gpu, SIDE_HOUR);
    kill(other.pid, SIGCONT);
    gs_share_await_unmapped(side.share, side_gpu, SIDE_HOUR);
    cr_assert(SIDE_WAIT(!is_mapped()));
}

Test(share_cached, with_idle_off_nothing_is_kept)
{
    other_start(&other, dir, "idle=0");
    round_trip(0, 1);
    cr_assert_not(is_mapped());
}

Test(share_cached, under_isolation_it_is_unmapped_before_any_reuse)
{
    struct gs_share_options strict = options;

    side_stop(&side);
    strict.isolate = true;
    side_start(&side, &strict);
    other_start(&other, dir, NULL);
    round_trip(0, 1);
    cr_assert_not(is_mapped());
    cr_assert_null(strstr(side_logged(), "is hung up on"), "it wanted to keep it: %s",
                   side_logged());
}

Test(share_cached, beyond_the_bound_the_oldest_goes)
{
    struct side_chunk more[2] = {side_chunk_new(&side, 2 * MIB), side_chunk_new(&side, 2 * MIB)};
    struct side_chunk first = chunk;

    other_start2(&other, dir, "blocks=2", NULL);
    round_trip(0, 1);
    for (int i = 0; i < 2; i++) {
        chunk = more[i];
        round_trip(0, 2 + i);
    }
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "mapped"), "ok 2")));
    chunk = more[0];
    round_trip(512, 9);
    cr_assert_str_eq(other_ask(&other, "maps"), "ok 3", "the newer ones stayed");
    for (int i = 0; i < 2; i++) {
        gs_share_chunk_gone(side.share, more[i].id);
        side_chunk_free(&side, &more[i]);
    }
    chunk = first;
}

/* A connection by hand that has something open, and hears of chunks that go. */
static int by_hand(struct gs_export **ret_held)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int fd;

    cr_assert_eq(side_export(&side, &chunk, 0, 512, ret_held), GS_OK);
    gs_export_handle(*ret_held, ipc_handle);
    fd = side_connect_by_hand(dir, ipc_handle);
    cr_assert_eq(side_open_by_hand(fd, *ret_held), GS_WIRE_GRANT);
    return fd;
}

static void say_flushed(int fd, uint64_t number, uint32_t closing)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_FLUSHED, 0);
    message.flushed.number = number;
    message.flushed.closing = closing;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
}

/* Something of each is granted, over another connection, and then they go. */
static void go_many(uint64_t first_id, int count)
{
    struct gs_share_source source = {.handle = chunk.handle,
                                     .chunk_size = chunk.size,
                                     .size = 512,
                                     .alone = true};
    struct gs_export *export;
    int fd = -1;

    for (int i = 0; i < count; i++) {
        unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

        source.chunk_id = first_id + (uint64_t)i;
        cr_assert_eq(gs_share_export(side.share, &source, &export), GS_OK);
        gs_export_handle(export, ipc_handle);
        if (fd < 0)
            fd = side_connect_by_hand(dir, ipc_handle);
        cr_assert_eq(side_open_by_hand(fd, export), GS_WIRE_GRANT);
    }
    side_leave(fd);
    for (int i = 0; i < count; i++)
        gs_share_chunk_gone(side.share, first_id + (uint64_t)i);
}

/* One FLUSH at a time: what goes meanwhile is in the next one. */
Test(share_cached, chunks_that_go_are_told_together_and_each_once)
{
    union gs_wire_message message;
    struct gs_export *held;
    int fd = by_hand(&held);
    uint64_t number;

    go_many(1000, 1);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.chunks, 1);
    cr_assert_eq(message.flush.chunk_ids[0], 1000);
    cr_assert_eq(message.flush.closed, 0, "nobody waits for what is closed");
    number = message.flush.number;
    go_many(2000, GS_FLUSH_CHUNKS);
    say_flushed(fd, number, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.chunks, GS_FLUSH_CHUNKS);
    for (uint64_t i = 0; i < GS_FLUSH_CHUNKS; i++)
        cr_assert_eq(message.flush.chunk_ids[i], 2000 + i);
    number = message.flush.number;
    go_many(3000, GS_FLUSH_CHUNKS + 1);
    say_flushed(fd, number, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.chunks, GS_FLUSH_CHUNKS + 1, "these are too many to be named");
    number = message.flush.number;
    say_flushed(fd, number, 0);
    gs_share_await_unmapped(side.share, NULL, SIDE_HOUR);
    side_leave(fd);
    cr_assert(side_gets_back(&side, held));
}

/* Chunks are not noted without end for who does not answer: it loses all that it keeps. */
Test(share_cached, who_does_not_answer_is_told_that_any_may_have_gone)
{
    union gs_wire_message message;
    struct gs_export *held;
    int fd = by_hand(&held);
    uint64_t number;

    go_many(1000, 1);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    number = message.flush.number;
    go_many(2000, 1024 + 1);
    cr_assert_eq(side.share->exporter.gone_listed, 1024);
    say_flushed(fd, number, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.chunks, GS_FLUSH_CHUNKS + 1);
    say_flushed(fd, message.flush.number, 0);
    cr_assert(SIDE_WAIT(side.share->exporter.gone_listed == 0));
    side_leave(fd);
    cr_assert(side_gets_back(&side, held));
}

/* Which it then unmaps. */
Test(share_cached, where_any_may_have_gone_all_are_unmapped)
{
    struct side_chunk more = side_chunk_new(&side, 2 * MIB);
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *held;
    unsigned long address;

    other_start(&other, dir, NULL);
    cr_assert_eq(side_export(&side, &more, 0, 512, &held), GS_OK);
    gs_export_handle(held, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address),
                 GS_OK); /* else it is hung up on in the end */
    round_trip(0, 1);
    cr_assert_str_eq(other_ask(&other, "mapped"), "ok 2");
    halt(other.pid);
    go_many(1000, 1); /* this it is told alone, and answers later */
    gs_share_await_unmapped(side.share, NULL, 100 * MS);
    go_many(2000, GS_FLUSH_CHUNKS + 1);
    gs_share_chunk_gone(side.share, chunk.id);
    kill(other.pid, SIGCONT);
    cr_assert(SIDE_WAIT(is_mapped()), "it keeps more than what it has open");
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, held));
    side_chunk_free(&side, &more);
    chunk.id = ++side.next_id;
}

/* Nor is a chunk told of that nothing was ever granted of, or to who came after it had gone. */
Test(share_cached, nobody_hears_of_what_it_cannot_have)
{
    union gs_wire_message message;
    struct gs_export *held;
    int fd;

    go_many(1000, 3);
    fd = by_hand(&held);
    gs_share_chunk_gone(side.share, 555);
    go_many(2000, 1);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.chunks, 1);
    cr_assert_eq(message.flush.chunk_ids[0], 2000);
    side_leave(fd);
    cr_assert(side_gets_back(&side, held));
}

/* Whoever answers what it was not asked, or twice, or that it gives back what it was not asked for,
 * is hung up on. */
Test(share_cached, a_false_answer_ends_the_connection)
{
    for (int lie = 0; lie < 4; lie++) {
        union gs_wire_message message;
        struct gs_export *held;
        int fd = by_hand(&held);

        go_many(1000 + 10 * (uint64_t)lie, 1);
        cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
        say_flushed(fd, message.flush.number + (lie == 0), lie == 1 ? 2 : 0);
        if (lie >= 2)
            say_flushed(fd, message.flush.number, lie == 3);
        cr_assert_eq(side_next_message(fd, &message), GS_WIRE_REFUSE, "lie %d", lie);
        cr_assert_eq(side_next_message(fd, &message), 0);
        close(fd);
        cr_assert_not_null(strstr(side_logged(), "answers what it was not asked"));
    }
}

/* What it closed is waited for until it says that nothing is on its way; chunks that go meanwhile
 * are told at once. */
Test(share_cached, while_closed_blocks_are_on_their_way_chunks_are_unmapped)
{
    union gs_wire_message message;
    struct gs_export *held;
    int fd = by_hand(&held);
    uint64_t number, begun;

    gs_share_freed(side.share, held, side_now());
    gs_share_await_given_back(side.share, NULL, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.closed, 1);
    cr_assert_eq(message.flush.chunks, 0);
    say_flushed(fd, message.flush.number, 1);
    go_many(1000, 1);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
    cr_assert_eq(message.flush.chunks, 1);
    cr_assert_eq(message.flush.closed, 1, "it is still to say when nothing is on its way");
    number = message.flush.number;
    say_flushed(fd, number, 1);
    gs_share_await_unmapped(side.share, NULL, SIDE_HOUR);
    begun = side_now();
    while (side_within(begun, 600 * MS)) /* it has not said it for so long */
        gs_share_await_given_back(side.share, NULL, 0);
    begun = side_now();
    for (int i = 0; i < 20; i++) {
        go_many(2000 + (uint64_t)i, 1);
        cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH);
        number = message.flush.number;
        say_flushed(fd, number, 1);
        gs_share_await_given_back(side.share, NULL, 0);
    }
    cr_assert(side_within(begun, 8000 * MS), "it was waited for each time");
    say_flushed(fd, number, 0);
    cr_assert_eq(side_next_message(fd, &message), GS_WIRE_FLUSH, "it was to be asked again");
    side_leave(fd);
    cr_assert(side_gets_back(&side, held));
}
