/* Exporters that do everything wrong, in the suite of hostile.c. */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/let_go.h"
#include "scene.h"
#include "tests/system.h"

#define PIECE (2 * MIB)

/* What an exporter by hand is asked for. */
enum asked {
    BLOCK,   /* in a chunk */
    OF_HOST, /* memory of the host */
    STRIP,   /* of three pieces, of which the first comes with the grant */
    FETCHED, /* the other two */
    ASKED
};

enum manner { SAYS, IS_LATE, IS_FULL, SAYS_ONCE, RECALLS, IS_SILENT, HANGS_UP };

/* What is added to a field of the answer that would do. */
struct change {
    size_t at, size;
    uint64_t by;
};

struct lie {
    const char *name;
    enum asked asked;
    struct change changes[3];
    int fds;         /* more of them, or fewer */
    bool gives_back; /* the importer does, what it was granted */
    bool no_memory;  /* the last descriptor is something else, */
    bool unsealed;   /* may get smaller, */
    bool large;      /* or larger than is said */
    enum manner manner;
};

#define CHANGE(field, by)                                                             \
    {offsetof(union gs_wire_message, field), sizeof((union gs_wire_message){}.field), \
     (uint64_t)(by)}
#define HUGE_SIZE (UINT64_MAX & ~(PIECE - 1))

/* clang-format off */
static const struct lie honest = {"nothing", BLOCK, .gives_back = true}, lies[] = {
    {"another block", BLOCK, {CHANGE(grant.block_id, 1)}},
    {"another chunk", BLOCK, {CHANGE(grant.chunk_id, 1)}},
    {"an odd chunk", BLOCK, {CHANGE(grant.chunk_size, 1), CHANGE(grant.batch.sizes[0], 1)}, .gives_back = true},
    {"a huge chunk", BLOCK, {CHANGE(grant.chunk_size, HUGE_SIZE - PIECE), CHANGE(grant.batch.sizes[0], HUGE_SIZE - PIECE)}},
    {"a chunk of another size", BLOCK, {CHANGE(grant.chunk_size, PIECE), CHANGE(grant.batch.sizes[0], PIECE)}, .gives_back = true},
    {"a block beyond its chunk", BLOCK, {CHANGE(grant.offset, PIECE - 511)}, .gives_back = true},
    {"a place that overflows", BLOCK, {CHANGE(grant.offset, -9)}},
    {"another size", BLOCK, {CHANGE(grant.size, -1)}},
    {"no descriptor", BLOCK, .fds = -1, .gives_back = true},
    {"a first piece of other memory", STRIP, .large = true, .gives_back = true},
    {"a first piece of no memory", STRIP, .no_memory = true, .gives_back = true},
    {"a descriptor of no memory", BLOCK, .no_memory = true, .gives_back = true},
    {"garbage", BLOCK, {CHANGE(head.magic, 1)}},
    {"silence", BLOCK, .manner = IS_SILENT},
    {"a hang-up", BLOCK, .manner = HANGS_UP},
    {"an answer that comes late", BLOCK, .manner = IS_LATE, .gives_back = true},
    {"another version", BLOCK, {CHANGE(head.version, 1)}},
    {"a place in a file that is not of the host", BLOCK, {CHANGE(grant.fd_offset, 4096)}},
    {"more than a host", OF_HOST, {CHANGE(grant.host, 1)}},
    {"a file that may get smaller", OF_HOST, .unsealed = true},
    {"a file that is too small", OF_HOST, {CHANGE(grant.fd_offset, PIECE)}},
    {"an odd place in a file", OF_HOST, {CHANGE(grant.fd_offset, 8)}},
    {"a far place in a file", OF_HOST, {CHANGE(grant.fd_offset, UINT64_MAX & ~UINT64_C(4095))}},
    {"host memory that never goes", OF_HOST, {CHANGE(grant.ends, -1)}},
    {"a block inside of host memory", OF_HOST, {CHANGE(grant.offset, 4096)}},
    {"host memory in pieces", OF_HOST, {CHANGE(grant.chunk_size, PIECE), CHANGE(grant.pieces, 1)}},
    {"pieces without room", STRIP, {CHANGE(grant.pieces, 1)}, .gives_back = true},
    {"no piece", STRIP, {CHANGE(grant.pieces, -3)}, .gives_back = true},
    {"an odd place", STRIP, {CHANGE(grant.offset, 4096 - PIECE)}, .gives_back = true},
    {"a place behind the end", STRIP, {CHANGE(grant.offset, 2 * PIECE)}, .gives_back = true},
    {"a strip that never goes", STRIP, {CHANGE(grant.ends, -1)}, .gives_back = true},
    {"nothing with the grant", STRIP, {CHANGE(grant.batch.count, -1)}, .fds = -1, .gives_back = true},
    {"two for one", STRIP, .fds = 1, .gives_back = true},
    {"a first piece of all and more", STRIP, {CHANGE(grant.batch.sizes[0], 3 * PIECE)}, .gives_back = true},
    {"more than its own", STRIP, {CHANGE(grant.own, 1)}, .gives_back = true},
    {"pieces of another block", FETCHED, {CHANGE(grant.block_id, 1)}, .gives_back = true},
    {"other pieces", FETCHED, {CHANGE(grant.batch.first, 1)}, .gives_back = true},
    {"none of the pieces", FETCHED, {CHANGE(grant.batch.count, -2)}, .fds = -2, .gives_back = true},
    {"a piece too many", FETCHED, {CHANGE(grant.batch.count, 1)}, .fds = 1, .gives_back = true},
    {"a descriptor less", FETCHED, .fds = -1, .gives_back = true},
    {"a piece of nothing", FETCHED, {CHANGE(grant.batch.sizes[0], -PIECE)}, .gives_back = true},
    {"an odd piece", FETCHED, {CHANGE(grant.batch.sizes[0], 4096)}, .gives_back = true},
    {"pieces that overflow", FETCHED, {CHANGE(grant.batch.sizes[0], HUGE_SIZE - PIECE), CHANGE(grant.batch.sizes[1], 2 * PIECE)}, .gives_back = true},
    {"pieces that end too early", FETCHED, {CHANGE(grant.batch.count, -1)}, .fds = -1, .manner = SAYS_ONCE, .gives_back = true},
    {"pieces of other memory", FETCHED, .large = true, .gives_back = true},
    {"a piece of no memory", FETCHED, .no_memory = true, .gives_back = true},
    {"a piece that went meanwhile", FETCHED, .manner = RECALLS, .gives_back = true},
    {"a hang-up between pieces", FETCHED, .manner = HANGS_UP},
    {"silence between pieces", FETCHED, .manner = IS_SILENT, .gives_back = true},
};
/* clang-format on */

static const uint64_t sizes[ASKED] = {
    [BLOCK] = 512, [OF_HOST] = 4096, [STRIP] = 3 * PIECE, [FETCHED] = 3 * PIECE};

/* What would do for what is asked, and its descriptors. */
static union gs_wire_message grant(enum asked asked, const struct gs_wire_open *open,
                                   unsigned *ret_fds)
{
    struct gs_ipc_handle of;
    union gs_wire_message message = MESSAGE(GRANT, open->head.request);
    struct gs_wire_batch *batch = &message.grant.batch;

    gs_ipc_handle_read(open->ipc_handle, &of);
    message.grant.block_id = of.block_id;
    message.grant.chunk_id = of.chunk_id;
    message.grant.size = of.size;
    message.grant.chunk_size = asked < STRIP ? PIECE : of.size;
    message.grant.host = asked == OF_HOST;
    message.grant.ends = asked != BLOCK;
    message.grant.own = asked >= STRIP;
    message.grant.offset = asked >= STRIP ? PIECE : 0;
    message.grant.pieces = asked >= STRIP ? 3 : 1;
    *batch = (struct gs_wire_batch){.first = open->first, .count = asked == FETCHED ? 2 : 1};
    for (unsigned i = 0; i < batch->count; i++)
        batch->sizes[i] = PIECE;
    *ret_fds = batch->count;
    return message;
}

static void say_grant(int fd, const struct lie *lie, enum asked asked,
                      const struct gs_wire_open *open)
{
    int memory = memfd_create("evil", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct gs_wire_fds fds = {.fd = {memory, memory, memory}};
    union gs_wire_message message = grant(asked, open, &fds.count);

    if (ftruncate(memory, lie->large ? 2 * PIECE : PIECE) != 0 ||
        (!lie->unsealed && fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) != 0))
        _exit(1);
    for (unsigned i = 0; i < 3; i++) {
        const struct change *change = &lie->changes[i];
        uint64_t value = 0;

        memcpy(&value, (char *)&message + change->at, change->size);
        value += change->by;
        memcpy((char *)&message + change->at, &value, change->size);
    }
    fds.count += (unsigned)lie->fds;
    if (lie->no_memory)
        fds.fd[fds.count - 1] = fd;
    gs_wire_send_all(fd, &message, &fds);
    close(memory);
}

static int late[2]; /* a pipe: its answer goes when that is told */

/* False: it has hung up. */
static bool answers(int fd, const struct lie *lie, const struct gs_wire_open *open)
{
    enum asked asked = open->first > 0 ? FETCHED : lie->asked == FETCHED ? STRIP : lie->asked;
    char go;

    if (lie->asked != asked) {
        say_grant(fd, &honest, asked, open);
        return true;
    }
    if (lie->manner == IS_LATE && read(late[0], &go, 1) != 1)
        _exit(1);
    if (lie->manner == IS_FULL && open->head.request < 3) {
        say(fd, MESSAGE(REFUSE, open->head.request, .refuse = {.reason = GS_REFUSED_FLIGHT}));
    } else if (lie->manner == RECALLS) {
        say_of_block(fd, GS_WIRE_RECALL, 0, 5);
        say(fd, MESSAGE(REFUSE, open->head.request, .refuse = {.reason = GS_REFUSED_HANDLE}));
    } else if (lie->manner < RECALLS && (lie->manner != SAYS_ONCE || open->first == 1)) {
        say_grant(fd, lie, asked, open);
    }
    return lie->manner != HANGS_UP;
}

/* Lies to the first that says something; exit status 42 if a CLOSE came back. */
static void liar(int listener, void *lie)
{
    union gs_wire_message message;
    bool spoken = false;
    int fd = -1;

    for (;;) {
        if (fd < 0)
            fd = accept(listener, NULL, NULL);
        if (recv(fd, &message, sizeof message, 0) > 0) {
            spoken = true;
            if (message.head.type == GS_WIRE_CLOSE)
                _exit(42);
            if (message.head.type == GS_WIRE_OPEN && !answers(fd, lie, &message.open))
                _exit(0);
        } else if (spoken) {
            _exit(0);
        } else {
            close(fd); /* whoever shares looks who lives */
            fd = -1;
        }
    }
}

static void beside_a_liar(const struct lie *lie, unsigned char instance)
{
    /* Some of it the driver alone can see. */
    const bool is_honest = !lie->name, drivers = lie->asked < STRIP || lie->large;
    unsigned char asked[GS_IPC_HANDLE_SIZE];
    int alive = memdriver_alive(), fds = side_open_fds(), exit_status = -1;
    struct gs_share_options quick = options;
    CUdeviceptr opened = 7;
    struct player player;
    struct side victim;
    size_t said;
    gs_status status;

    quick.idle_ns = 0;
    if (lie->manner != SAYS && lie->manner != RECALLS) /* who has hung up may listen again */
        quick.timeout_ns = 200 * MS;
    ipc_handle_by_hand(instance, 5, sizes[lie->asked], asked);
    player_start_for(&player, dir, asked, liar, (void *)lie);
    side_start(&victim, &quick);
    said = strlen(side_logged());
    status = gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened);
    if (is_honest) {
        cr_assert_eq(status, GS_OK, "the lies prove nothing: %d", status);
        cr_assert_eq(gs_share_close(victim.share, opened), GS_OK);
    } else {
        cr_assert_gt(strlen(side_logged()), said, "nothing is said of %s", lie->name);
        cr_assert(lie->manner == RECALLS ? status == GS_STALE
                                         : status == GS_UNREACHABLE || (drivers && status > 0),
                  "%s: %d", lie->name, status);
        cr_assert_eq(opened, 7);
    }
    if (lie->manner == IS_LATE) /* the answer comes, and the thread returns it */
        cr_assert_eq(write(late[1], "", 1), 1);
    if (is_honest || lie->manner == IS_LATE)
        exit_status = player_wait(&player);
    side_stop(&victim);
    if (exit_status < 0)
        exit_status = player_wait(&player);
    if (lie->gives_back)
        cr_assert_eq(exit_status, 42, "%s", lie->name);
    cr_assert_eq(memdriver_alive(), alive, "%s", lie->name);
    cr_assert(SIDE_WAIT(side_open_fds() <= fds), "%s", lie->name);
}

Test(share_hostile, an_exporter_that_lies_is_refused_and_nothing_is_left)
{
    unsigned char instance = 0x80;

    cr_assert_eq(pipe2(late, O_CLOEXEC), 0);
    for (enum asked asked = BLOCK; asked < ASKED; asked++)
        if (asked != OF_HOST)
            beside_a_liar(&(struct lie){NULL, asked, .gives_back = true}, instance++);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        beside_a_liar(&lies[i], instance++);
    cr_assert_not_null(strstr(side_logged(), "has another version of this library"));
}

static void opens_the_pieces_of(const struct lie *lie, unsigned char instance,
                                CUresult (*map)(CUdeviceptr, size_t, size_t,
                                                CUmemGenericAllocationHandle, unsigned long long))
{
    unsigned char asked[GS_IPC_HANDLE_SIZE];
    struct player player;
    struct side victim;
    CUdeviceptr opened;

    ipc_handle_by_hand(instance, 5, sizes[FETCHED], asked);
    player_start_for(&player, dir, asked, liar, (void *)lie);
    side_start(&victim, &options);
    victim.driver.mem_map = map;
    cr_assert_eq(gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened), GS_OK);
    side_stop(&victim);
    player_wait(&player);
}

static CUresult map_aloud(CUdeviceptr address, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    cr_assert_eq(write(late[1], "", 1), 1);
    return side.driver.mem_map(address, size, offset, handle, flags);
}

/* The exporter has no more of them until it hears that these are. */
Test(share_hostile, pieces_that_came_are_mapped_before_the_next_ones_come)
{
    cr_assert_eq(pipe2(late, O_CLOEXEC), 0);
    opens_the_pieces_of(&(struct lie){NULL, FETCHED, .manner = IS_LATE}, 0x60, map_aloud);
}

/* It has none for the moment. */
Test(share_hostile, pieces_that_are_asked_for_again_come_behind_those_that_are_mapped)
{
    opens_the_pieces_of(&(struct lie){NULL, FETCHED, .manner = IS_FULL}, 0x61, side.driver.mem_map);
}

/* An honest exporter by hand. Exit status 43 where it heard of a fork before it was asked for
 * anything, 42 afterwards. */
static void hears_of_a_fork(int listener, void *arg)
{
    int fd = accept(listener, NULL, NULL), heard = 0, asks = 0;
    union gs_wire_message message;

    while (recv(fd, &message, sizeof message, 0) > 0) {
        if (message.head.type == GS_WIRE_FORKED)
            heard = asks ? 42 : 43;
        if (message.head.type != GS_WIRE_OPEN)
            continue;
        asks++;
        say_grant(fd, &honest, BLOCK, &message.open);
    }
    _exit(heard);
}

/* A process that forks says so to those whose memory it has, and from then on to each before it
 * asks. */
Test(share_hostile, who_has_forked_says_so)
{
    struct player exporters[2];
    struct side victim;

    side_start(&victim, &options);
    for (int i = 0; i < 2; i++) {
        unsigned char asked[GS_IPC_HANDLE_SIZE];
        CUdeviceptr opened;

        ipc_handle_by_hand((unsigned char)(0x70 + i), 5, 512, asked);
        player_start_for(&exporters[i], dir, asked, hears_of_a_fork, NULL);
        cr_assert_eq(gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened), GS_OK);
        gs_share_forking(victim.share);
    }
    side_stop(&victim);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(player_wait(&exporters[i]), 42 + i, "%d", i);
}

/* An honest exporter by hand of two blocks, 5 and 6, whose importer sleeps. As that wakes, 6 is
 * refused at first, and 5 is asked back right behind its grant. Tells by the pipe that it is back. */
static void asks_back_at_once(int listener, void *arg)
{
    static const struct lie mapped[] = {
        {"", BLOCK, {CHANGE(grant.batch.count, -1)}, .fds = -1},
        {"", BLOCK, {CHANGE(grant.batch.count, -1), CHANGE(grant.offset, 512)}, .fds = -1}};
    int fd = accept(listener, NULL, NULL), refusals = 0;
    union gs_wire_message message;
    bool sleeps = false;

    while (recv(fd, &message, sizeof message, 0) > 0) {
        const enum gs_open_wants wants = message.open.want_fd;
        const uint32_t request = message.head.request;
        struct gs_ipc_handle of;

        if (message.head.type == GS_WIRE_CLOSE && message.close.block_id == 5)
            cr_assert_eq(write(late[1], "", 1), 1);
        if (message.head.type != GS_WIRE_OPEN)
            continue;
        sleeps |= wants == GS_OPEN_LETS_GO;
        if (sleeps && wants == GS_OPEN_HAS_IT && refusals++ == 0) {
            say(fd, MESSAGE(REFUSE, request, .refuse = {.reason = GS_REFUSED_HANDLE}));
            continue;
        }
        gs_ipc_handle_read(message.open.ipc_handle, &of);
        say_grant(fd, wants == GS_OPEN_WANTS ? &honest : &mapped[of.block_id - 5], BLOCK,
                  &message.open);
        if (sleeps && wants == GS_OPEN_WANTS)
            say_of_block(fd, GS_WIRE_RECALL, request, 5);
    }
    _exit(refusals == 2 ? 0 : 1);
}

/* It is closed after that, and goes back as what was asked for before. */
Test(share_hostile, what_is_asked_back_as_it_is_taken_back_goes_back)
{
    unsigned char asked[2][GS_IPC_HANDLE_SIZE];
    struct gs_share_options keeps = options;
    struct gs_untaken untaken;
    struct player player;
    struct side victim;
    CUdeviceptr opened[2];

    cr_assert_eq(pipe2(late, O_CLOEXEC), 0);
    keeps.idle_ns = SIDE_HOUR;
    for (unsigned i = 0; i < 2; i++)
        ipc_handle_by_hand(0x64, 5 + i, 512, asked[i]);
    player_start_for(&player, dir, asked[0], asks_back_at_once, NULL);
    side_start(&victim, &keeps);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_eq(gs_share_open(victim.share, asked[i], SIDE_CONTEXT, 0, &opened[i]), GS_OK);
    cr_assert_gt(gs_share_let_go(victim.share), 0);
    cr_assert(gs_share_take_back(victim.share, side_now() + SIDE_HOUR, &untaken));
    cr_assert_eq(gs_share_close(victim.share, opened[0]), GS_OK);
    cr_assert_eq(poll(&(struct pollfd){.fd = late[0], .events = POLLIN}, 1, 30000), 1);
    side_stop(&victim);
    cr_assert_eq(player_wait(&player), 0);
}

struct talk {
    enum gs_wire_type type;
    uint64_t id;
};

/* Says the same again and again; 42 when nobody reads it any more, 0 when all of it was read. */
static int say_for_ever(int fd, const struct talk *talk)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    union gs_wire_message message;
    int said = 0, error = 0;

    gs_wire_start(&message, talk->type, talk->type == GS_WIRE_RECALL ? 1 : 0);
    message.recall.block_id = talk->id;
    while (said < 20000 && (error == 0 || (error == -EAGAIN && poll(&room, 1, 1000) == 1))) {
        error = gs_wire_send(fd, &message, -1);
        said += error == 0;
    }
    return error == -EAGAIN ? 42 : 0;
}

/* Grants what it is asked for, and then talks on. */
static void talks(int listener, void *talk)
{
    union gs_wire_message message;
    int fd = accept(listener, NULL, NULL);

    while (recv(fd, &message, sizeof message, 0) > 0 && message.head.type != GS_WIRE_OPEN)
        continue;
    say_grant(fd, &honest, BLOCK, &message.open);
    _exit(say_for_ever(fd, talk));
}

Test(share_hostile, an_exporter_that_talks_without_end_is_not_listened_to)
{
    static const struct talk said[] = {{GS_WIRE_RECALL, UINT64_MAX}, {GS_WIRE_GRANT, UINT64_MAX},
                                       {GS_WIRE_REFUSE, UINT64_MAX}, {GS_WIRE_HELLO, UINT64_MAX},
                                       {GS_WIRE_FLUSH, UINT64_MAX},  {GS_WIRE_RECALL, 5}};

    usleep(100000); /* whoever shares has connected to all there are */
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        unsigned char asked[GS_IPC_HANDLE_SIZE];
        struct player player;
        CUdeviceptr opened;

        ipc_handle_by_hand((unsigned char)(0x50 + i), 5, 512, asked);
        player_start_for(&player, dir, asked, talks, (void *)&said[i]);
        cr_assert_eq(gs_share_open(side.share, asked, SIDE_CONTEXT, 0, &opened), GS_OK);
        cr_assert_eq(player_wait(&player), 42, "type %d of %llu is read for ever", said[i].type,
                     (unsigned long long)said[i].id);
        cr_assert_eq(gs_share_close(side.share, opened), GS_OK);
    }
}

/* The answer to the next request lies there already, and no request goes any more. */
static void foresees(int listener, void *arg)
{
    union gs_wire_message message;
    int fd = accept(listener, NULL, NULL);

    (void)arg;
    while (recv(fd, &message, sizeof message, 0) > 0)
        if (message.head.type == GS_WIRE_OPEN) {
            say_grant(fd, &honest, STRIP, &message.open);
            message.open.head.request++;
            message.open.first = 1;
            say_grant(fd, &honest, FETCHED, &message.open);
            shutdown(fd, SHUT_RD);
            pause();
        }
}

Test(share_hostile, an_answer_before_its_request_leaves_out_no_piece)
{
    const int alive = memdriver_alive(), fds = side_open_fds();
    const unsigned mapped = memdriver_mapped();
    struct gs_share_options quick = options;
    unsigned char asked[GS_IPC_HANDLE_SIZE];
    CUdeviceptr opened;
    struct player player;
    struct side victim;
    gs_status status;

    quick.timeout_ns = 500 * MS;
    ipc_handle_by_hand(0x62, 5, sizes[FETCHED], asked);
    player_start_for(&player, dir, asked, foresees, NULL);
    side_start(&victim, &quick);
    status = gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened);
    cr_assert(status != GS_OK || memdriver_mapped() == mapped + 3, "%u", memdriver_mapped());
    player_kill(&player);
    side_stop(&victim);
    cr_assert_eq(memdriver_alive(), alive);
    cr_assert_eq(side_open_fds(), fds);
}

/* It has a broker's name, and its second answer is of another machine. */
static void is_far_later(int listener, void *arg)
{
    union gs_wire_message message, more;
    int fd = accept(listener, NULL, NULL);
    unsigned ignored;

    while (recv(fd, &message, sizeof message, 0) > 0) {
        if (message.head.type != GS_WIRE_OPEN)
            continue;
        if (message.open.first == 0) {
            say_grant(fd, &honest, STRIP, &message.open);
            continue;
        }
        more = grant(FETCHED, &message.open, &ignored);
        more.grant.far = 1;
        more.grant.own = 0;
        more.grant.offset = 0;
        more.grant.pieces = 1;
        more.grant.batch.count = *(const unsigned *)arg;
        say(fd, more);
    }
}

Test(share_hostile, a_later_answer_is_of_no_other_machine)
{
    unsigned counts[] = {0, 100000000};
    unsigned char asked[GS_IPC_HANDLE_SIZE];
    char path[256];
    CUdeviceptr opened;

    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    ipc_handle_by_hand(0x63, 5, sizes[FETCHED], asked);
    for (int i = 0; i < 2; i++) {
        struct player player;
        struct side victim;

        player_start(&player, path, is_far_later, &counts[i]);
        side_start(&victim, &options);
        cr_assert_eq(gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened), GS_UNREACHABLE);
        player_kill(&player);
        side_stop(&victim);
    }
}
