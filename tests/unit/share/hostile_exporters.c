/* Exporters that do everything wrong, in the suite of hostile.c. */
#include <criterion/criterion.h>

#include "core/share/directory.h"
#include "core/share/internal.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

enum lie {
    HONEST,
    OTHER_BLOCK,
    OTHER_CHUNK,
    ODD_CHUNK,
    HUGE_CHUNK,
    WRONG_CHUNK,
    BEYOND,
    OVERFLOW,
    OTHER_SIZE,
    NO_FD,
    NOT_MEMORY,
    GARBAGE,
    SILENCE,
    HANG_UP,
    LATE,
    OTHER_VERSION,
    ODD_HOST,
    HOST_UNSEALED,
    HOST_SMALL,
    HOST_ODD_OFFSET,
    HOST_FAR_OFFSET,
    HOST_ENDS_NEVER,
    HOST_INSIDE,
    HOST_PIECES,
    OFFSET_OF_NO_HOST,
    LIES
};

/* Memory of the host that would do, but for the lie. */
static void lie_of_host(enum lie lie, struct gs_wire_grant *grant, int memory)
{
    grant->host = 1 + (lie == ODD_HOST);
    grant->ends = lie != HOST_ENDS_NEVER;
    grant->fd_offset = lie == HOST_ODD_OFFSET   ? 8
                       : lie == HOST_FAR_OFFSET ? UINT64_MAX & ~UINT64_C(4095)
                       : lie == HOST_SMALL      ? 2 * MIB
                                                : 0;
    grant->offset = lie == HOST_INSIDE ? 4096 : 0;
    grant->chunk_size <<= lie == HOST_PIECES;
    if (lie != HOST_UNSEALED && fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        _exit(1);
}

static int late[2]; /* a pipe: its answer goes when that is told */

static void lie_once(int fd, enum lie lie, const struct gs_ipc_handle *asked, uint32_t request)
{
    union gs_wire_message message;
    int memory = memfd_create("evil", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    char go;

    if (ftruncate(memory, 2 * MIB) != 0)
        _exit(1);
    gs_wire_start(&message, GS_WIRE_GRANT, request);
    message.grant.block_id = asked->block_id + (lie == OTHER_BLOCK);
    message.grant.chunk_id = asked->chunk_id + (lie == OTHER_CHUNK);
    message.grant.chunk_size = 2 * MIB;
    message.grant.size = asked->size;
    switch (lie) {
    case ODD_CHUNK:
        message.grant.chunk_size++;
        break;
    case HUGE_CHUNK:
        message.grant.chunk_size = UINT64_MAX & ~(2 * MIB - 1);
        break;
    case WRONG_CHUNK:
        message.grant.chunk_size = 4 * MIB;
        break;
    case BEYOND:
        message.grant.offset = 2 * MIB - 511;
        break;
    case OVERFLOW:
        message.grant.offset = UINT64_MAX - 8;
        break;
    case OTHER_SIZE:
        message.grant.size--;
        break;
    case GARBAGE:
        message.head.magic = 0;
        break;
    case OTHER_VERSION:
        message.head.version++;
        break;
    case NOT_MEMORY:
        dup2(fd, memory);
        break;
    case OFFSET_OF_NO_HOST:
        message.grant.fd_offset = 4096;
        break;
    default:
        if (lie > OTHER_VERSION)
            lie_of_host(lie, &message.grant, memory);
        break;
    }
    message.grant.pieces = 1 + (lie == HOST_PIECES);
    message.grant.batch.count = 1;
    message.grant.batch.sizes[0] = message.grant.chunk_size >> (lie == HOST_PIECES);
    if (lie == LATE && read(late[0], &go, 1) != 1)
        _exit(1);
    if (lie != SILENCE && lie != HANG_UP)
        gs_wire_send(fd, &message, lie == NO_FD ? -1 : memory);
    close(memory);
}

/* A process that listens at the handle's exporter's place: its pid, and 0 in it. */
static pid_t exporter_fork(const unsigned char *at, int *ret_listener)
{
    struct sockaddr_un address;
    pid_t child;

    side_path_of(dir, at, &address);
    *ret_listener = side_listen(address.sun_path);
    cr_assert_geq(*ret_listener, 0);
    child = fork_child();
    if (child == 0)
        alarm(2 * SIDE_PATIENCE_MS / 1000);
    else
        close(*ret_listener);
    return child;
}

/* An exporter by hand, which lies to the first that says something; exit status 42 if a CLOSE came
 * back. */
static pid_t liar(enum lie lie, const unsigned char *at)
{
    int listener;
    pid_t child = exporter_fork(at, &listener);

    if (child == 0) {
        union gs_wire_message message;
        bool spoken = false, closed = false;
        int fd = -1;

        while (!closed) {
            struct gs_ipc_handle asked;

            if (fd < 0)
                fd = accept(listener, NULL, NULL);
            if (recv(fd, &message, sizeof message, 0) <= 0) {
                if (spoken)
                    break;
                close(fd); /* whoever shares looks who lives */
                fd = -1;
                continue;
            }
            spoken = true;
            closed = message.head.type == GS_WIRE_CLOSE;
            if (message.head.type != GS_WIRE_OPEN)
                continue;
            gs_ipc_handle_read(message.open.ipc_handle, &asked);
            lie_once(fd, lie, &asked, message.head.request);
            if (lie == HANG_UP)
                break;
        }
        _exit(closed ? 42 : 0);
    }
    return child;
}

static void make_ipc_handle(unsigned char *ret, unsigned char instance, uint64_t size)
{
    struct gs_ipc_handle made = {.block_id = 5, .chunk_id = 6, .size = size};

    memset(made.instance, instance, sizeof made.instance);
    gs_ipc_handle_write(&made, ret);
}

Test(share_hostile, an_exporter_that_lies_is_refused_and_nothing_is_left)
{
    cr_assert_eq(pipe2(late, O_CLOEXEC), 0);
    for (int lie = HONEST; lie < LIES; lie++) {
        unsigned char asked[GS_IPC_HANDLE_SIZE];
        int alive = memdriver_alive(), fds = side_open_fds(), exit_status;
        struct gs_share_options quick = options;
        struct sockaddr_un address;
        CUdeviceptr opened = 7;
        struct side victim;
        size_t said;
        gs_status status;
        pid_t child;

        if (lie == SILENCE || lie == LATE || lie == HANG_UP) /* who has hung up may listen again */
            quick.timeout_ns = 200 * MS;
        make_ipc_handle(asked, (unsigned char)(0x80 + lie), lie > OTHER_VERSION ? 4096 : 512);
        child = liar(lie, asked);
        side_start(&victim, &quick);
        said = strlen(side_logged());
        status = gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened);
        cr_assert(lie == HONEST || strlen(side_logged()) > said, "nothing is said of lie %d", lie);
        if (lie == HONEST)
            cr_assert_eq(status, GS_OK, "the lies prove nothing: %d", status);
        else
            cr_assert(status == GS_UNREACHABLE || status > 0, "lie %d: %d", lie, status);
        cr_assert_eq(opened == 7, lie != HONEST);
        if (lie == LATE) { /* the answer comes, and the thread returns it */
            cr_assert_eq(write(late[1], "", 1), 1);
            waitpid(child, &exit_status, 0);
        }
        side_stop(&victim);
        if (lie != LATE)
            waitpid(child, &exit_status, 0);
        /* What was granted was given back. */
        if (lie == HONEST || lie == LATE || lie == ODD_CHUNK || lie == NOT_MEMORY ||
            lie == WRONG_CHUNK || lie == NO_FD || lie == BEYOND)
            cr_assert_eq(WEXITSTATUS(exit_status), 42, "lie %d", lie);
        if (lie == OTHER_VERSION)
            cr_assert_not_null(strstr(side_logged(), "has another version of this library"));
        cr_assert_eq(memdriver_alive(), alive, "lie %d", lie);
        cr_assert(SIDE_WAIT(side_open_fds() <= fds), "lie %d", lie);
        side_path_of(dir, asked, &address);
        unlink(address.sun_path);
    }
}

/* An honest exporter by hand. Exit status 43 where it heard of a fork before it was asked for
 * anything, 42 afterwards. */
static pid_t hearer(const unsigned char *at)
{
    int listener;
    pid_t child = exporter_fork(at, &listener);

    if (child == 0) {
        int fd = accept(listener, NULL, NULL), heard = 0, asks = 0;
        union gs_wire_message message;
        struct gs_ipc_handle asked;

        while (recv(fd, &message, sizeof message, 0) > 0) {
            if (message.head.type == GS_WIRE_FORKED)
                heard = asks ? 42 : 43;
            if (message.head.type != GS_WIRE_OPEN)
                continue;
            asks++;
            gs_ipc_handle_read(message.open.ipc_handle, &asked);
            lie_once(fd, HONEST, &asked, message.head.request);
        }
        _exit(heard);
    }
    return child;
}

/* Whoever forks says so to those whose memory he has, and from then on to each before he asks. */
Test(share_hostile, who_has_forked_says_so)
{
    struct sockaddr_un at[2];
    struct side victim;
    pid_t exporters[2];

    side_start(&victim, &options);
    for (int i = 0; i < 2; i++) {
        unsigned char asked[GS_IPC_HANDLE_SIZE];
        CUdeviceptr opened;

        make_ipc_handle(asked, (unsigned char)(0x70 + i), 512);
        side_path_of(dir, asked, &at[i]);
        exporters[i] = hearer(asked);
        cr_assert_eq(gs_share_open(victim.share, asked, SIDE_CONTEXT, 0, &opened), GS_OK);
        gs_share_forking(victim.share);
    }
    side_stop(&victim);
    for (int i = 0; i < 2; i++) {
        int status;

        cr_assert_eq(waitpid(exporters[i], &status, 0), exporters[i]);
        cr_assert_eq(WEXITSTATUS(status), 42 + i, "%d", i);
        unlink(at[i].sun_path);
    }
}

/* Says the same again and again; 42 when nobody reads it any more, 0 when all of it was read. */
static int say_for_ever(int fd, enum gs_wire_type type, uint64_t id)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    union gs_wire_message message;
    int said = 0, error = 0;

    gs_wire_start(&message, type, type == GS_WIRE_RECALL ? 1 : 0);
    message.recall.block_id = id;
    while (said < 20000 && (error == 0 || (error == -EAGAIN && poll(&room, 1, 1000) == 1))) {
        error = gs_wire_send(fd, &message, -1);
        said += error == 0;
    }
    return error == -EAGAIN ? 42 : 0;
}

/* An exporter by hand that grants what it is asked for, and then talks on. */
static pid_t talker(enum gs_wire_type type, uint64_t id, const unsigned char *at)
{
    int listener;
    pid_t child = exporter_fork(at, &listener);

    if (child == 0) {
        union gs_wire_message message;
        struct gs_ipc_handle asked;
        int fd;

        fd = accept(listener, NULL, NULL);
        while (recv(fd, &message, sizeof message, 0) > 0 && message.head.type != GS_WIRE_OPEN)
            continue;
        gs_ipc_handle_read(message.open.ipc_handle, &asked);
        lie_once(fd, HONEST, &asked, message.head.request);
        _exit(say_for_ever(fd, type, id));
    }
    return child;
}

Test(share_hostile, an_exporter_that_talks_without_end_is_not_listened_to)
{
    static const struct {
        enum gs_wire_type type;
        uint64_t id;
    } says[] = {{GS_WIRE_RECALL, UINT64_MAX}, {GS_WIRE_GRANT, UINT64_MAX},
                {GS_WIRE_REFUSE, UINT64_MAX}, {GS_WIRE_HELLO, UINT64_MAX},
                {GS_WIRE_FLUSH, UINT64_MAX},  {GS_WIRE_RECALL, 5}}; /* the last: of what is open */

    usleep(100000); /* whoever shares has connected to all there are */
    for (size_t i = 0; i < sizeof says / sizeof *says; i++) {
        unsigned char asked[GS_IPC_HANDLE_SIZE];
        struct sockaddr_un address;
        CUdeviceptr opened;
        int exit_status;
        pid_t child;

        make_ipc_handle(asked, (unsigned char)(0x50 + i), 512);
        child = talker(says[i].type, says[i].id, asked);
        cr_assert_eq(gs_share_open(side.share, asked, SIDE_CONTEXT, 0, &opened), GS_OK);
        cr_assert_eq(waitpid(child, &exit_status, 0), child);
        cr_assert(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 42,
                  "type %d of %llu is read for ever", (int)says[i].type,
                  (unsigned long long)says[i].id);
        cr_assert_eq(gs_share_close(side.share, opened), GS_OK);
        side_path_of(dir, asked, &address);
        unlink(address.sun_path);
    }
}
