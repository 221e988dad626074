/* Strips: what an importer by hand is given of them and when not. */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/exporter.h"
#include "core/share/internal.h"
#include "scene.h"
#include "tests/system.h"

#define PIECE  (2 * MIB)
#define PIECES 12 /* more than one message brings */

/* ---- The exporter's memory ------------------------------------------------------------------- */

static CUmemGenericAllocationHandle handles[PIECES];
static CUdeviceptr base;
static struct gs_export *export;

static void map_pieces(void)
{
    cr_assert_eq(side.driver.mem_address_reserve(&base, PIECES * PIECE, 0, 0, 0), CUDA_SUCCESS);
    for (unsigned i = 0; i < PIECES; i++) {
        cr_assert_eq(side.driver.mem_create(&handles[i], PIECE, NULL, 0), CUDA_SUCCESS);
        cr_assert_eq(side.driver.mem_map(base + i * PIECE, PIECE, 0, handles[i], 0), CUDA_SUCCESS);
    }
}

/* `ids`: of a block of the library's, the chunks that it lies across. */
static void export_strip(struct gs_share_source source, unsigned pieces, const uint64_t *ids)
{
    struct gs_share_strip *strip = calloc(1, sizeof *strip + pieces * sizeof *strip->sizes);

    *strip = (struct gs_share_strip){.references = 1, .is_block = ids != NULL, .ids = ids};
    for (; strip->pieces < pieces; strip->pieces++)
        strip->sizes[strip->pieces] = PIECE;
    source.alone = true;
    source.strip = strip;
    memcpy(source.uuid, side_gpu, sizeof source.uuid);
    cr_assert_eq(gs_share_export(side.share, &source, &export), GS_OK);
    gs_share_strip_unref(strip);
}

static void export_pieces(void)
{
    export_strip((struct gs_share_source){.chunk_id = GS_STRIP_IDS | 7,
                                          .chunk_size = PIECES * PIECE,
                                          .offset = 3 * PIECE,
                                          .size = PIECES * PIECE,
                                          .address = base},
                 PIECES, NULL);
}

static void setup(void)
{
    scene_new();
    scene_side();
    map_pieces();
    export_pieces();
}

static void teardown(void)
{
    side.driver.mem_unmap(base, PIECES * PIECE);
    side.driver.mem_address_free(base, PIECES * PIECE);
    for (unsigned i = 0; i < PIECES; i++)
        side.driver.mem_release(handles[i]);
    scene_end();
}

TestSuite(share_strip, .init = setup, .fini = teardown, .timeout = 120);

static struct gs_share_stats stats(void)
{
    struct gs_share_stats now;

    gs_share_stats(side.share, &now);
    return now;
}

/* ---- An importer by hand --------------------------------------------------------------------- */

static int connect_by_hand(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    gs_export_handle(export, ipc_handle);
    return side_connect_by_hand(dir, ipc_handle);
}

static union gs_wire_message message_fetch(const struct gs_export *of, uint32_t request,
                                           uint32_t first)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;

    gs_export_handle(of, ipc_handle);
    message = message_open(ipc_handle, request, GS_OPEN_WANTS);
    message.open.first = first;
    return message;
}

static void say_fetch(int fd, const struct gs_export *of, uint32_t first)
{
    cr_assert_eq(say(fd, message_fetch(of, 2, first)), 0);
}

static int fetch(int fd, uint32_t first, union gs_wire_message *ret_message)
{
    unsigned came;
    int type;

    say_fetch(fd, export, first);
    type = hear_fds(fd, ret_message, &came);
    if (type == GS_WIRE_GRANT)
        cr_assert_eq(came, ret_message->grant.batch.count);
    return type;
}

static bool is_refused(int fd, enum gs_wire_reason reason)
{
    union gs_wire_message message;

    return fetch(fd, 0, &message) == GS_WIRE_REFUSE && message.refuse.reason == reason;
}

/* With `want_fd` its first pieces come with it. */
static void ask_for_it(int fd, bool want_fd)
{
    const unsigned came = want_fd ? GS_BATCH : 0;
    union gs_wire_message message = message_fetch(export, 1, 0);
    unsigned fds;

    message.open.want_fd = want_fd;
    cr_assert_eq(say(fd, message), 0);
    cr_assert_eq(hear_fds(fd, &message, &fds), GS_WIRE_GRANT);
    cr_assert_eq(fds, came);
    cr_assert_eq(message.grant.batch.first, 0);
    cr_assert_eq(message.grant.batch.count, came);
    for (unsigned i = 0; i < GS_PIECES_MAX; i++)
        cr_assert_eq(message.grant.batch.sizes[i], i < came ? PIECE : 0);
    cr_assert_eq(message.grant.own, 1);
    cr_assert_eq(message.grant.pieces, PIECES);
    cr_assert_eq(message.grant.chunk_size, PIECES * PIECE);
    cr_assert_eq(message.grant.offset, 3 * PIECE);
    cr_assert_eq(message.grant.ends, 1);
}

static int open_by_hand(void)
{
    int fd = connect_by_hand();

    ask_for_it(fd, false);
    return fd;
}

Test(share_strip, its_pieces_come_some_at_a_time)
{
    union gs_wire_message message;
    int fd = open_by_hand(), fds = side_open_fds();

    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    cr_assert_eq(message.grant.batch.count, GS_BATCH);
    cr_assert_eq(message.grant.batch.sizes[GS_BATCH - 1], PIECE);
    cr_assert_eq(fetch(fd, GS_BATCH, &message), GS_WIRE_GRANT);
    cr_assert_eq(message.grant.batch.first, GS_BATCH);
    cr_assert_eq(message.grant.batch.count, PIECES - GS_BATCH);
    cr_assert_eq(message.grant.batch.sizes[PIECES - GS_BATCH], 0);
    cr_assert(SIDE_WAIT(side_open_fds() == fds), "the exporter keeps descriptors");
    cr_assert_eq(memdriver_alive(), 2 * PIECES + 1, "the exporter keeps handles");
    ask_for_it(fd, true);
    cr_assert(SIDE_WAIT(side_open_fds() == fds), "the exporter keeps descriptors");
    cr_assert_eq(memdriver_alive(), 2 * PIECES + 1, "the exporter keeps handles");
    close(fd);
}

/* A chunk's descriptor is kept for its next importer, whatever part of it a block has. The block is
 * given also when it is freed, to who has it. */
Test(share_strip, descriptors_of_a_blocks_pieces_are_kept_until_these_go)
{
    static const uint64_t ids[] = {101, 102, 103};
    union gs_wire_message message;
    unsigned fds;
    int fd;

    export_strip((struct gs_share_source){.chunk_id = GS_STRIP_IDS | 8,
                                          .chunk_size = 3 * PIECE,
                                          .offset = 512,
                                          .size = 3 * PIECE - 1024,
                                          .address = base + 512},
                 3, ids);
    fd = connect_by_hand();
    for (unsigned round = 0; round < 3; round++) {
        cr_assert_eq(say(fd, message_fetch(export, 1, 0)), 0);
        do
            cr_assert_gt(hear_fds(fd, &message, &fds), 0);
        while (message.head.type == GS_WIRE_RECALL);
        cr_assert_eq(message.head.type, GS_WIRE_GRANT);
        cr_assert_eq(fds, 3);
        cr_assert_eq(message.grant.own, 0);
        cr_assert_eq(message.grant.pieces, 3);
        cr_assert_eq(memdriver_exports(), round == 2 ? 4 : 3, "round %u", round);
        if (round == 1) {
            gs_share_chunk_gone(side.share, 102);
            gs_share_freed(side.share, export, side_now());
        }
    }
    side_leave(fd);
    cr_assert(side_gets_back(&side, export));
    for (unsigned i = 0; i < 3; i++)
        gs_share_chunk_gone(side.share, ids[i]);
}

/* Neither look does for the other: it may go between them. */
Test(share_strip, what_has_gone_is_given_no_more_of)
{
    unsigned char asked[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int fd = open_by_hand();
    struct gs_fd piece;
    bool fresh;

    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    cr_assert_eq(fetch(fd, 1, &message), GS_WIRE_GRANT);
    cr_assert_eq(stats().references, 1);
    /* It has gone: its holder is told, and until that has closed it, it is known who holds it. */
    gs_share_freed(side.share, export, gs_now_ns());
    cr_assert_eq(stats().exports, 1);
    cr_assert(SIDE_WAIT(gs_wire_receive_all(fd, &message, &(struct gs_wire_fds){0}) == 0));
    cr_assert_eq(message.head.type, GS_WIRE_RECALL);
    cr_assert(is_refused(fd, GS_REFUSED_HANDLE));
    gs_export_handle(export, asked);
    cr_assert_null(gs_export_pin(side.share, asked));
    cr_assert_eq(gs_piece_fd(side.share, export, 0, &piece, &fresh), CUDA_ERROR_INVALID_HANDLE);
    say_of_block(fd, GS_WIRE_CLOSE, 2, export->key.id);
    cr_assert(SIDE_WAIT(stats().exports == 0));
    close(fd);
}

Test(share_strip, what_has_gone_and_nobody_holds_is_no_export)
{
    cr_assert_eq(stats().exports, 1);
    gs_share_freed(side.share, export, gs_now_ns());
    cr_assert_eq(stats().exports, 0);
    export_pieces();
    gs_share_withdraw(side.share, export);
    cr_assert_eq(stats().exports, 0);
}

static void await_limbo(size_t bytes, unsigned count)
{
    cr_assert(SIDE_WAIT(side.share->limbo.count == count));
    cr_assert_eq(side.share->limbo.bytes, bytes);
}

/* However many handles of it there are, until the last is given back. */
Test(share_strip, what_has_gone_and_is_held_has_its_bytes_once)
{
    struct gs_share_source source = export->source;
    union gs_wire_message message;
    struct gs_export *second;
    unsigned came;
    int fd = open_by_hand();

    source.offset += PIECE;
    cr_assert_eq(gs_share_export(side.share, &source, &second), GS_OK);
    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    say_fetch(fd, second, 0);
    cr_assert_eq(hear_fds(fd, &message, &came), GS_WIRE_GRANT);
    gs_share_freed(side.share, export, gs_now_ns());
    gs_share_freed(side.share, second, gs_now_ns());
    await_limbo(PIECES * PIECE, 2);
    say_of_block(fd, GS_WIRE_CLOSE, 2, export->key.id);
    await_limbo(PIECES * PIECE, 1);
    say_of_block(fd, GS_WIRE_CLOSE, 2, second->key.id);
    await_limbo(0, 0);
    close(fd);
}

static gs_status name_as(const char *name)
{
    struct gs_naming naming = {.note_size = 0};
    uint64_t since_ns;

    snprintf(naming.name, sizeof naming.name, "%s", name);
    return gs_share_name(side.share, export, &naming, 0, &since_ns);
}

/* Also while others hold it. */
Test(share_strip, names_of_what_has_gone_take_no_place)
{
    char name[GS_NAME_SIZE];
    int fd;

    for (int i = 0; i < GS_NAMES_MAX; i++) {
        snprintf(name, sizeof name, "strip%d", i);
        cr_assert_eq(name_as(name), GS_OK);
    }
    cr_assert_eq(name_as("strip"), GS_TOO_MANY);
    fd = open_by_hand();
    gs_share_freed(side.share, export, gs_now_ns());
    export_pieces();
    cr_assert_eq(name_as("strip"), GS_OK);
    close(fd);
}

Test(share_strip, who_wants_what_it_may_not_is_hung_up_on)
{
    const uint32_t wrong[] = {PIECES, UINT32_MAX};
    struct gs_export *plain;
    int fd;

    chunk = side_chunk_new(&side, PIECE);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fd = open_by_hand();
        say_fetch(fd, export, wrong[i]);
        cr_assert(is_hung_up_on(fd), "%zu", i);
        close(fd);
    }
    /* A block in a chunk has no pieces. */
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &plain), GS_OK);
    fd = connect_by_hand();
    cr_assert_eq(side_open_by_hand(fd, plain), GS_WIRE_GRANT);
    say_fetch(fd, plain, 1);
    cr_assert(is_hung_up_on(fd));
    cr_assert_eq(stats().exports, 2, "the exporter is there");
    close(fd);
}

/* Whether pieces are sent with that limit: none are while the user's other processes have as many
 * descriptors under way. One of the six is the handle's, as this driver has it; and this process is
 * both sides. */
static bool gets_pieces(int fd, const struct rlimit *low, const struct rlimit *limit,
                        union gs_wire_message *ret_message)
{
    int next;

    setrlimit(RLIMIT_NOFILE, low);
    say_fetch(fd, export, 0);
    cr_assert(SIDE_WAIT(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1));
    setrlimit(RLIMIT_NOFILE, limit);
    cr_assert_eq(gs_wire_receive(fd, ret_message, &next), 0);
    if (ret_message->head.type == GS_WIRE_REFUSE && ret_message->refuse.reason == GS_REFUSED_FLIGHT)
        return false;
    cr_assert_eq(ret_message->head.type, GS_WIRE_GRANT);
    return true;
}

/* Where only some descriptors are left, some pieces come; where none is, that is said. */
Test(share_strip, an_exporter_with_few_descriptors_gives_few)
{
    union gs_wire_message message;
    struct rlimit limit, low;
    int fd = open_by_hand(), next = dup(fd);

    close(next);
    getrlimit(RLIMIT_NOFILE, &limit);
    low = (struct rlimit){(rlim_t)next + 6, limit.rlim_max};
    cr_assert(SIDE_WAIT(gets_pieces(fd, &low, &limit, &message)));
    /* What other threads had open when the limit was reckoned may be closed by now. */
    cr_assert(message.grant.batch.count > 0 && message.grant.batch.count < GS_BATCH, "%u",
              message.grant.batch.count);
    memdriver_fail_export(CUDA_ERROR_OPERATING_SYSTEM);
    cr_assert(is_refused(fd, GS_REFUSED_FDS));
    memdriver_fail_export(CUDA_ERROR_UNKNOWN);
    cr_assert(is_refused(fd, GS_REFUSED_DRIVER));
    memdriver_fail_export(CUDA_SUCCESS);
    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    cr_assert_eq(memdriver_alive(), 2 * PIECES + 1, "handles are left");
    close(fd);
}
