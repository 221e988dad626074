/* Strips: what an importer by hand is given of them and when not, and what an exporter by hand may
 * say. */
#include <criterion/criterion.h>

#include "core/share/internal.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define PIECE  (2 * MIB)
#define PIECES 40 /* more than one message brings */

TestSuite(share_strip, .init = scene_new, .timeout = 120);

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

static void unmap_pieces(void)
{
    side.driver.mem_unmap(base, PIECES * PIECE);
    side.driver.mem_address_free(base, PIECES * PIECE);
    for (unsigned i = 0; i < PIECES; i++)
        side.driver.mem_release(handles[i]);
}

static void export_pieces(void)
{
    struct gs_share_strip *strip = calloc(1, sizeof *strip + PIECES * sizeof *strip->sizes);
    struct gs_share_source source = {.chunk_id = GS_STRIP_IDS | 7,
                                     .chunk_size = PIECES * PIECE,
                                     .offset = 3 * PIECE,
                                     .size = PIECES * PIECE,
                                     .address = base,
                                     .alone = true,
                                     .strip = strip};

    strip->references = 1;
    strip->pieces = PIECES;
    for (unsigned i = 0; i < PIECES; i++)
        strip->sizes[i] = PIECE;
    memcpy(source.uuid, side_gpu, sizeof source.uuid);
    cr_assert_eq(gs_share_export(side.share, &source, &export), GS_OK);
    gs_share_strip_unref(strip);
}

static uint64_t exports(void)
{
    struct gs_share_stats stats;

    gs_share_stats(side.share, &stats);
    return stats.exports;
}

static uint64_t references(void)
{
    struct gs_share_stats stats;

    gs_share_stats(side.share, &stats);
    return stats.references;
}

/* A block of the library's across three of them, which are chunks 101 to 103. */
static void export_across(void)
{
    static const uint64_t ids[] = {101, 102, 103};
    struct gs_share_strip *strip = calloc(1, sizeof *strip + 3 * sizeof *strip->sizes);
    struct gs_share_source source = {.chunk_id = GS_STRIP_IDS | 8,
                                     .chunk_size = 3 * PIECE,
                                     .offset = 512,
                                     .size = 3 * PIECE - 1024,
                                     .address = base + 512,
                                     .alone = true,
                                     .strip = strip};

    strip->references = 1;
    strip->is_block = true;
    strip->ids = ids;
    for (; strip->pieces < 3; strip->pieces++)
        strip->sizes[strip->pieces] = PIECE;
    memcpy(source.uuid, side_gpu, sizeof source.uuid);
    cr_assert_eq(gs_share_export(side.share, &source, &export), GS_OK);
    gs_share_strip_unref(strip);
}

/* ---- An importer by hand --------------------------------------------------------------------- */

static int connect_by_hand(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    gs_export_handle(export, ipc_handle);
    return side_connect_by_hand(dir, ipc_handle);
}

static uint64_t block_id_of(const struct gs_export *of)
{
    unsigned char bytes[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle ipc_handle;

    gs_export_handle(of, bytes);
    cr_assert_eq(gs_ipc_handle_read(bytes, &ipc_handle), GS_OK);
    return ipc_handle.block_id;
}

static uint64_t block_id(void)
{
    return block_id_of(export);
}

static void say_fetch(int fd, const struct gs_export *of, uint32_t first)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 2);
    gs_export_handle(of, message.open.ipc_handle);
    message.open.want_fd = 1;
    message.open.first = first;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
}

/* The type of the next message, 0: hung up. What came along is closed. */
static int hear(int fd, union gs_wire_message *ret_message, unsigned *ret_fds)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    struct gs_wire_fds fds = {0};
    int error;

    cr_assert_eq(poll(&ready, 1, SIDE_PATIENCE_MS), 1);
    error = gs_wire_receive_all(fd, ret_message, &fds);
    *ret_fds = fds.count;
    for (unsigned i = 0; i < fds.count; i++)
        close(fds.fd[i]);
    return error ? 0 : ret_message->head.type;
}

static int fetch(int fd, uint32_t first, union gs_wire_message *ret_message)
{
    unsigned came;
    int type;

    say_fetch(fd, export, first);
    type = hear(fd, ret_message, &came);
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
    const unsigned came = want_fd ? GS_PIECES_MAX : 0;
    union gs_wire_message message;
    unsigned fds;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    gs_export_handle(export, message.open.ipc_handle);
    message.open.want_fd = want_fd;
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    cr_assert_eq(hear(fd, &message, &fds), GS_WIRE_GRANT);
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

static void open_by_hand(int fd)
{
    ask_for_it(fd, false);
}

static void scene_strip(void)
{
    scene_side();
    map_pieces();
    export_pieces();
}

static void scene_strip_end(void)
{
    unmap_pieces();
    scene_end();
}

Test(share_strip, its_pieces_come_some_at_a_time)
{
    union gs_wire_message message;
    int fd, fds;

    scene_strip();
    fd = connect_by_hand();
    open_by_hand(fd);
    fds = side_open_fds();
    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    cr_assert_eq(message.grant.batch.count, GS_PIECES_MAX);
    cr_assert_eq(message.grant.batch.sizes[GS_PIECES_MAX - 1], PIECE);
    cr_assert_eq(fetch(fd, GS_PIECES_MAX, &message), GS_WIRE_GRANT);
    cr_assert_eq(message.grant.batch.first, GS_PIECES_MAX);
    cr_assert_eq(message.grant.batch.count, PIECES - GS_PIECES_MAX);
    cr_assert_eq(message.grant.batch.sizes[PIECES - GS_PIECES_MAX], 0);
    cr_assert(SIDE_WAIT(side_open_fds() == fds), "the exporter keeps descriptors");
    cr_assert_eq(memdriver_alive(), 2 * PIECES + 1, "the exporter keeps handles");
    ask_for_it(fd, true);
    cr_assert(SIDE_WAIT(side_open_fds() == fds), "the exporter keeps descriptors");
    cr_assert_eq(memdriver_alive(), 2 * PIECES + 1, "the exporter keeps handles");
    close(fd);
    scene_strip_end();
}

/* A chunk's descriptor is kept for its next importer, whatever part of it a block has. */
Test(share_strip, descriptors_of_a_blocks_pieces_are_kept_until_these_go)
{
    union gs_wire_message message;
    unsigned fds;
    int fd;

    scene_side();
    map_pieces();
    export_across();
    fd = connect_by_hand();
    for (unsigned round = 0; round < 3; round++) {
        gs_wire_start(&message, GS_WIRE_OPEN, 1);
        gs_export_handle(export, message.open.ipc_handle);
        message.open.want_fd = 1;
        cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
        cr_assert_eq(hear(fd, &message, &fds), GS_WIRE_GRANT);
        cr_assert_eq(fds, 3);
        cr_assert_eq(message.grant.own, 0);
        cr_assert_eq(message.grant.pieces, 3);
        cr_assert_eq(memdriver_exports(), round == 2 ? 4 : 3, "round %u", round);
        if (round == 1)
            gs_share_chunk_gone(side.share, 102);
    }
    side_leave(fd);
    cr_assert(side_gets_back(&side, export));
    for (uint64_t id = 101; id <= 103; id++)
        gs_share_chunk_gone(side.share, id);
    scene_strip_end();
}

Test(share_strip, what_has_gone_is_given_no_more_of)
{
    union gs_wire_message message;
    int fd;

    scene_strip();
    fd = connect_by_hand();
    open_by_hand(fd);
    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    cr_assert_eq(fetch(fd, 1, &message), GS_WIRE_GRANT);
    cr_assert_eq(references(), 1);
    /* It has gone: its holder is told, and until he has closed it, it is known who he is. */
    gs_share_strip_gone(side.share, export);
    cr_assert_eq(exports(), 1);
    cr_assert(SIDE_WAIT(gs_wire_receive_all(fd, &message, &(struct gs_wire_fds){0}) == 0));
    cr_assert_eq(message.head.type, GS_WIRE_RECALL);
    cr_assert(is_refused(fd, GS_REFUSED_HANDLE));
    gs_wire_start(&message, GS_WIRE_CLOSE, 2);
    message.close.block_id = block_id();
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    cr_assert(SIDE_WAIT(exports() == 0));
    close(fd);
    scene_strip_end();
}

Test(share_strip, what_has_gone_and_nobody_holds_is_no_export)
{
    scene_strip();
    cr_assert_eq(exports(), 1);
    gs_share_strip_gone(side.share, export);
    cr_assert_eq(exports(), 0);
    export_pieces();
    gs_share_withdraw(side.share, export);
    cr_assert_eq(exports(), 0);
    scene_strip_end();
}

static gs_status name_as(const char *name, uint64_t offset)
{
    struct gs_naming naming = {.note_size = 0};
    uint64_t since_ns;

    snprintf(naming.name, sizeof naming.name, "%s", name);
    return gs_share_name(side.share, export, &naming, offset, &since_ns);
}

static gs_status name_it(uint64_t offset)
{
    return name_as("strip", offset);
}

static bool has_name(struct gs_found *ret_found)
{
    return gs_share_look_up(side.share, "strip", ret_found) == GS_LOOK_FOUND;
}

Test(share_strip, a_name_of_it_leads_to_its_piece_until_it_has_gone)
{
    const uint64_t rest = (PIECES - 3) * PIECE; /* from the piece on that the handle is of */
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_found found;
    int fd;

    scene_strip();
    cr_assert_eq(name_it(rest), GS_INVALID);
    cr_assert_eq(name_it(rest - 1), GS_OK);
    cr_assert(has_name(&found));
    cr_assert_eq(found.address, base + PIECES * PIECE - 1);
    cr_assert_eq(name_it(PIECE + 100), GS_OK);
    cr_assert(has_name(&found));
    gs_export_handle(export, ipc_handle);
    cr_assert_eq(memcmp(found.ipc_handle, ipc_handle, sizeof ipc_handle), 0);
    cr_assert_eq(found.offset, PIECE + 100);
    cr_assert_eq(found.size, rest);
    cr_assert_eq(found.address, base + 4 * PIECE + 100);
    cr_assert_eq(found.kept, 0);
    fd = connect_by_hand();
    open_by_hand(fd);
    gs_share_strip_gone(side.share, export);
    cr_assert_eq(exports(), 1, "it is held");
    cr_assert_not(has_name(&found));
    cr_assert_eq(name_it(0), GS_INVALID, "what has gone gets no name");
    close(fd);
    export_pieces();
    cr_assert_eq(name_it(0), GS_OK);
    gs_share_strip_gone(side.share, export); /* and nobody holds it */
    cr_assert_not(has_name(&found));
    scene_strip_end();
}

/* Also while others hold it. */
Test(share_strip, names_of_what_has_gone_take_no_place)
{
    char name[GS_NAME_SIZE];
    int fd;

    scene_strip();
    for (int i = 0; i < GS_NAMES_MAX; i++) {
        snprintf(name, sizeof name, "strip%d", i);
        cr_assert_eq(name_as(name, 0), GS_OK);
    }
    cr_assert_eq(name_it(0), GS_TOO_MANY);
    fd = connect_by_hand();
    open_by_hand(fd);
    gs_share_strip_gone(side.share, export);
    export_pieces();
    cr_assert_eq(name_it(0), GS_OK);
    close(fd);
    scene_strip_end();
}

static bool is_hung_up_on(int fd)
{
    union gs_wire_message message;
    unsigned fds;
    int type = GS_WIRE_REFUSE;

    while (type == GS_WIRE_REFUSE || type == GS_WIRE_BYE)
        type = hear(fd, &message, &fds);
    return type == 0;
}

Test(share_strip, who_wants_what_he_may_not_is_hung_up_on)
{
    const uint32_t wrong[] = {PIECES, UINT32_MAX};
    struct gs_export *plain;
    int fd;

    scene_chunk();
    map_pieces();
    export_pieces();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fd = connect_by_hand();
        open_by_hand(fd);
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
    cr_assert_eq(exports(), 2, "the exporter is there");
    close(fd);
    scene_strip_end();
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
    int fd, next;

    scene_strip();
    fd = connect_by_hand();
    open_by_hand(fd);
    next = dup(fd);
    close(next);
    getrlimit(RLIMIT_NOFILE, &limit);
    low = (struct rlimit){(rlim_t)next + 6, limit.rlim_max};
    cr_assert(SIDE_WAIT(gets_pieces(fd, &low, &limit, &message)));
    /* What other threads had open when the limit was reckoned may be closed by now. */
    cr_assert(message.grant.batch.count > 0 && message.grant.batch.count < 12, "%u",
              message.grant.batch.count);
    memdriver_fail_export(CUDA_ERROR_OPERATING_SYSTEM);
    cr_assert(is_refused(fd, GS_REFUSED_FDS));
    memdriver_fail_export(CUDA_ERROR_UNKNOWN);
    cr_assert(is_refused(fd, GS_REFUSED_DRIVER));
    memdriver_fail_export(CUDA_SUCCESS);
    cr_assert_eq(fetch(fd, 0, &message), GS_WIRE_GRANT);
    cr_assert_eq(memdriver_alive(), 2 * PIECES + 1, "handles are left");
    close(fd);
    scene_strip_end();
}

/* ---- An exporter by hand --------------------------------------------------------------------- */

enum lie {
    HONEST,
    MANY,     /* pieces, in a chunk that has room for fewer */
    NO_PIECE, /* a grant of none, and no descriptor */
    ODD_PLACE,
    FAR_PLACE,
    ENDS_NEVER,
    WITH_NO_FD, /* no descriptor with the grant */
    TWO_FDS,
    LARGE_FIRST,
    OTHER_OWN,
    OTHER_BLOCK,
    OTHER_FIRST,
    NONE,
    TOO_MANY,
    FEWER_FDS,
    ZERO_SIZE,
    ODD_SIZE,
    TOO_LARGE,
    TOO_SMALL, /* all together */
    OTHER_MEMORY,
    NOT_MEMORY,
    RECALLED, /* and refused */
    HANG_UP,
    SILENCE,
    LIES
};

static void start_grant(union gs_wire_message *message, enum lie lie,
                        const struct gs_ipc_handle *asked, uint32_t request)
{
    gs_wire_start(message, GS_WIRE_GRANT, request);
    message->grant.block_id = asked->block_id;
    message->grant.chunk_id = asked->chunk_id;
    message->grant.chunk_size = message->grant.size = asked->size;
    message->grant.offset = lie == ODD_PLACE ? 4096 : lie == FAR_PLACE ? asked->size : PIECE;
    message->grant.ends = lie != ENDS_NEVER;
    message->grant.pieces = lie == MANY ? 4 : lie == NO_PIECE ? 0 : 3;
    message->grant.own = 1 + (lie == OTHER_OWN);
}

static void lie_in_grant(int fd, enum lie lie, const struct gs_ipc_handle *asked, uint32_t request)
{
    union gs_wire_message message;
    int memory = memfd_create("piece", MFD_CLOEXEC);
    struct gs_wire_fds fds = {.fd = {memory, memory}};

    if (ftruncate(memory, PIECE) != 0)
        _exit(1);
    start_grant(&message, lie, asked, request);
    message.grant.batch.count = lie != WITH_NO_FD;
    message.grant.batch.sizes[0] = lie == LARGE_FIRST ? 4 * PIECE : PIECE;
    fds.count = message.grant.batch.count + (lie == TWO_FDS);
    gs_wire_send_all(fd, &message, &fds);
    close(memory);
}

static void lie_in_pieces(int fd, enum lie lie, const struct gs_wire_open *open,
                          const struct gs_ipc_handle *asked)
{
    union gs_wire_message message;
    struct gs_wire_fds fds;
    int memory = memfd_create("piece", MFD_CLOEXEC);

    if (ftruncate(memory, lie == OTHER_MEMORY ? 2 * PIECE : PIECE) != 0)
        _exit(1);
    if (lie == RECALLED) {
        gs_wire_start(&message, GS_WIRE_RECALL, 0);
        message.recall.block_id = asked->block_id;
        gs_wire_send(fd, &message, -1);
        gs_wire_start(&message, GS_WIRE_REFUSE, open->head.request);
        message.refuse.reason = GS_REFUSED_HANDLE;
        gs_wire_send(fd, &message, -1);
        close(memory);
        return;
    }
    start_grant(&message, HONEST, asked, open->head.request);
    message.grant.block_id += lie == OTHER_BLOCK;
    message.grant.batch.first = open->first + (lie == OTHER_FIRST);
    message.grant.batch.count = lie == NONE ? 0 : lie == TOO_MANY ? 3 : 2;
    message.grant.batch.sizes[0] = lie == ZERO_SIZE   ? 0
                                   : lie == ODD_SIZE  ? PIECE + 4096
                                   : lie == TOO_LARGE ? UINT64_MAX & ~(PIECE - 1)
                                                      : PIECE;
    message.grant.batch.sizes[1] = lie == TOO_LARGE ? 3 * PIECE : PIECE;
    if (lie == TOO_SMALL)
        message.grant.batch.count = 1;
    fds = (struct gs_wire_fds){message.grant.batch.count - (lie == FEWER_FDS),
                               {memory, lie == NOT_MEMORY ? fd : memory, memory}};
    gs_wire_send_all(fd, &message, &fds);
    close(memory);
}

/* Exit status 42 where what was granted was given back. TOO_SMALL: the second one is never sent. */
static void lie_until_closed(int listener, enum lie lie)
{
    union gs_wire_message message;
    struct gs_ipc_handle asked;
    bool closed = false;
    int fd = accept(listener, NULL, NULL), fetches = 0;

    while (!closed && recv(fd, &message, sizeof message, 0) > 0) {
        closed = message.head.type == GS_WIRE_CLOSE;
        if (message.head.type == GS_WIRE_OPEN) {
            gs_ipc_handle_read(message.open.ipc_handle, &asked);
            if (message.open.first == 0)
                lie_in_grant(fd, lie, &asked, message.head.request);
            else if (lie == HANG_UP)
                break;
            else if (lie != SILENCE && (lie != TOO_SMALL || fetches++ == 0))
                lie_in_pieces(fd, lie, &message.open, &asked);
        }
    }
    _exit(closed ? 42 : 0);
}

Test(share_strip, an_exporter_that_lies_is_refused_and_nothing_is_left)
{
    cr_assert_eq(mkdir(dir, 0700), 0);
    for (int lie = HONEST; lie < LIES; lie++) {
        struct gs_ipc_handle made = {.block_id = 5, .chunk_id = 6, .size = 3 * PIECE};
        int alive = memdriver_alive(), fds = side_open_fds(), listener, status;
        struct gs_share_options quick = options;
        unsigned char asked[GS_IPC_HANDLE_SIZE];
        struct sockaddr_un address;
        CUdeviceptr opened = 7;
        struct side victim;
        gs_status got;
        pid_t child;

        if (lie == SILENCE || lie == TOO_SMALL || lie == HANG_UP)
            quick.timeout_ns = 200 * MS;
        quick.idle_ns = 0;
        memset(made.instance, 0x40 + lie, sizeof made.instance);
        gs_ipc_handle_write(&made, asked);
        side_start(&victim, &quick);
        side_path_of(dir, asked, &address);
        listener = side_listen(address.sun_path);
        cr_assert_geq(listener, 0);
        child = fork_child();
        if (child == 0) {
            alarm(2 * SIDE_PATIENCE_MS / 1000);
            lie_until_closed(listener, lie);
        }
        close(listener);
        got = gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened);
        if (lie == HONEST) {
            cr_assert_eq(got, GS_OK, "the lies prove nothing: %d", got);
            cr_assert_eq(gs_share_close(victim.share, opened), GS_OK);
        } else if (lie == RECALLED) {
            cr_assert_eq(got, GS_STALE);
        } else {
            cr_assert(lie == OTHER_MEMORY ? got > 0 : got == GS_UNREACHABLE, "lie %d: %d", lie,
                      got);
            cr_assert_eq(opened, 7);
        }
        if (lie == HONEST)
            cr_assert_eq(waitpid(child, &status, 0), child);
        side_stop(&victim);
        if (lie != HONEST)
            cr_assert_eq(waitpid(child, &status, 0), child);
        cr_assert_eq(WEXITSTATUS(status), lie == HANG_UP ? 0 : 42, "lie %d", lie);
        cr_assert_eq(memdriver_alive(), alive, "lie %d", lie);
        cr_assert(SIDE_WAIT(side_open_fds() <= fds), "lie %d", lie);
        unlink(address.sun_path);
    }
    side_dir_remove(dir);
}
