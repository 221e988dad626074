/*
 * A holder that comes back over another connection: what it names is its own, all else that it held
 * is over, and what comes late means nothing (core/share/resume.c).
 */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/exporter.h"
#include "core/share/importer.h"
#include "scene.h"
#include "tests/system.h"

#define LATE_MS 1500 /* nobody waits for a client after a second (core/share/clients.c) */

static struct gs_export *export;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

static void setup(void)
{
    scene_new();
    options.settle_ns = 0;
    options.timeout_ns = 2000 * MS;
    scene_block(&export, ipc_handle);
}

TestSuite(share_resume, .init = setup, .fini = scene_end, .timeout = 120);

/* As the library's own do, whose program may have closed the connection. It has not heard of the
 * newest grant, and goes on with the one before. */
Test(share_resume, of_a_process_that_says_who_it_is_stays_without_a_connection)
{
    uint64_t block_id;
    int fd = connect_by_name(dir, ipc_handle, 0, 0);

    block_id = open_again(fd, ipc_handle, 1);
    open_again(fd, ipc_handle, 2);
    close(fd);
    cr_assert(side_stays_held(&side, export, LATE_MS));
    fd = connect_by_name(dir, ipc_handle, 0, 1);
    say_of_block(fd, GS_WIRE_RESUME, 1, block_id);
    cr_assert(side_stays_held(&side, export, 100));
    say_of_block(fd, GS_WIRE_CLOSE, 1, block_id);
    cr_assert(side_gets_back(&side, export));
    close(fd);
}

/* What is granted behind the HELLO shows that it was heard. */
static void open_of_another(int fd)
{
    unsigned char another[GS_IPC_HANDLE_SIZE];

    scene_export(1024, 512, another);
    open_again(fd, another, 9);
}

/* What was freed is called back from an importer that comes back, when that has named it, and
 * once. */
Test(share_resume, is_called_back_once_from_who_comes_back)
{
    union gs_wire_message message;
    uint64_t block_id;
    int fd = connect_by_name(dir, ipc_handle, 0, 0), got;

    block_id = open_again(fd, ipc_handle, 3);
    close(fd);
    fd = connect_by_name(dir, ipc_handle, 0, 1);
    open_of_another(fd); /* it has been heard */
    gs_share_freed(side.share, export, side_now());
    cr_assert_not(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 200),
                  "it has not named it");
    say_of_block(fd, GS_WIRE_RESUME, 4, block_id);
    cr_assert(SIDE_WAIT(gs_wire_receive(fd, &message, &got) == 0));
    cr_assert_eq(message.head.type, GS_WIRE_RECALL);
    cr_assert_eq(message.head.request, 4);
    cr_assert_not(poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 100), "once is enough");
    close(fd);
}

/* Two connections may be heard in either order, and numbers begin anew after the last one. */
Test(share_resume, is_not_ended_by_a_hello_that_is_heard_behind_the_next)
{
    int fd[3];

    for (int i = 0; i < 3; i++) {
        fd[i] = connect_by_name(dir, ipc_handle, (uint32_t[]){UINT32_MAX, 1, 0}[i], 0);
        if (i < 2)
            open_again(fd[i], ipc_handle, 1);
    }
    cr_assert(side_stays_held(&side, export, 100));
    for (int i = 0; i < 3; i++)
        close(fd[i]);
}

/* The process has another connection since, and a child may have this one: it has no say. */
Test(share_resume, is_not_ended_with_the_connection_before_the_newest)
{
    int before = connect_by_name(dir, ipc_handle, 0, 0), fd;
    uint64_t block_id = open_again(before, ipc_handle, 1);

    fd = connect_by_name(dir, ipc_handle, 0, 1);
    say_of_block(fd, GS_WIRE_RESUME, 1, block_id);
    cr_assert(SIDE_WAIT(gs_conn_hung_up(before)), "nothing is heard over it any more");
    cr_assert(side_stays_held(&side, export, 100));
    cr_assert_eq(export->references, 1);
    say_of_block(fd, GS_WIRE_CLOSE, 1, block_id);
    cr_assert(side_gets_back(&side, export));
    close(before);
    close(fd);
}

/* Hangs up on two, and ends with 42 where the second says that it comes later. */
static void hangs_up_twice(int listener, void *arg)
{
    uint32_t numbers[2];
    int seen = 0;

    (void)arg;
    while (seen < 2) {
        union gs_wire_message message;
        int fd = accept(listener, NULL, NULL);

        if (hear(fd, &message) == GS_WIRE_HELLO) /* whoever shares looks who lives */
            numbers[seen++] = message.hello.number;
        close(fd);
    }
    _exit(numbers[1] == numbers[0] + 1 ? 42 : 0);
}

Test(share_resume, is_told_by_its_number_which_hello_is_the_newest)
{
    unsigned char asked[GS_IPC_HANDLE_SIZE];
    struct player player;
    CUdeviceptr address;

    ipc_handle_by_hand(70, 5, 512, asked);
    player_start_for(&player, dir, asked, hangs_up_twice, NULL);
    cr_assert_eq(gs_share_open(side.share, asked, SIDE_CONTEXT, 0, &address), GS_UNREACHABLE);
    cr_assert_eq(player_wait(&player), 42);
}

/* A holder has lost its connection, or, `uncounted`, is let in as one who may have. */
static void enter(struct gs_share *share, struct gs_client *client, pid_t pid, bool uncounted)
{
    static struct gs_reference held;

    *client = (struct gs_client){.id = ++share->clients.next_id,
                                 .fd = uncounted ? 0 : -1,
                                 .uid = 7,
                                 .pid = pid,
                                 .is_seen = pid > 0,
                                 .references = uncounted ? NULL : &held,
                                 .over.uncounted = uncounted};
    HASH_ADD(hh, share->clients.first, id, sizeof client->id, client);
}

/* One of another PID namespace, which shows no pid: it is not known yet who it is. */
Test(share_resume, has_its_place_though_it_shows_no_pid)
{
    struct gs_share *share = calloc(1, sizeof *share);
    const struct gs_conn_who none = {.pid = 0, .uid = 7}, seen = {.pid = 9, .uid = 7},
                             another = {.pid = 0, .uid = 8};
    struct gs_client clients[3];

    enter(share, &clients[0], 9, false);
    cr_assert(gs_user_has_place(share, &seen));
    cr_assert_not(gs_user_has_place(share, &none));
    enter(share, &clients[1], 0, false);
    cr_assert(gs_user_has_place(share, &none));
    cr_assert_not(gs_user_has_place(share, &another));
    enter(share, &clients[2], 0, true);
    cr_assert_not(gs_user_has_place(share, &none), "there was one place");
    cr_assert(gs_user_has_place(share, &seen));
    HASH_CLEAR(hh, share->clients.first);
    free(share);
}

/* Of who hangs up the refusal does not go: what it said behind that is heard. */
Test(share_resume, what_was_said_before_a_hang_up_is_heard_though_an_answer_does_not_go)
{
    unsigned char stale[GS_IPC_HANDLE_SIZE];
    uint64_t block_id;
    int fd = connect_by_name(dir, ipc_handle, 0, 0);

    block_id = open_again(fd, ipc_handle, 1);
    memcpy(stale, ipc_handle, sizeof stale);
    stale[sizeof stale - 1] ^= 1;
    gs_lock_take(&side.share->lock); /* nothing is answered meanwhile */
    cr_assert_eq(say(fd, message_open(stale, 2, GS_OPEN_WANTS)), 0);
    say_of_block(fd, GS_WIRE_CLOSE, 1, block_id);
    close(fd);
    gs_lock_release(&side.share->lock);
    cr_assert(side_gets_back(&side, export));
}

static bool has_remote(void)
{
    bool has;

    gs_lock_take(&side.share->importer.lock);
    has = side.share->importer.remotes != NULL;
    gs_lock_release(&side.share->importer.lock);
    return has;
}

/* A connection to somebody, and the other end. */
static struct gs_remote *connect_pair(bool by_broker, int ends[2])
{
    static const unsigned char instance[GS_INSTANCE_SIZE] = {1};
    struct gs_remote *remote;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    cr_assert_eq(say(ends[0], message_hello(instance)), 0);
    gs_lock_take(&side.share->importer.lock);
    remote = gs_remote_of_locked(side.share, instance);
    remote->conn.fd = ends[0];
    remote->conn.kept_fd = gs_fd_keep(ends[0]);
    remote->conn.by_broker = remote->conn.resumed = by_broker;
    gs_lock_release(&side.share->importer.lock);
    return remote;
}

/* A broker may refuse unread the connection over which it is told what is held. */
Test(share_resume, with_a_broker_is_not_over_before_that_has_read_it)
{
    union gs_wire_message message;
    int ends[2];
    struct gs_remote *remote = connect_pair(true, ends);

    gs_lock_take(&side.share->importer.lock);
    gs_remote_reap_locked(side.share, remote);
    gs_lock_release(&side.share->importer.lock);
    cr_assert(has_remote());
    cr_assert_eq(hear(ends[1], &message), GS_WIRE_HELLO);
    cr_assert(SIDE_WAIT(!has_remote()));
    close(ends[1]);
}

Test(share_resume, what_goes_back_over_a_full_connection_goes_later)
{
    union gs_wire_message message, grant = MESSAGE(GRANT, 4, .grant = {.block_id = 9});
    int ends[2], type;
    struct gs_remote *remote = connect_pair(false, ends);

    while (say(ends[0], message_hello(remote->instance)) == 0)
        continue;
    gs_remote_return(side.share, remote, &grant.grant);
    do
        type = hear(ends[1], &message);
    while (type == GS_WIRE_HELLO);
    cr_assert(type == GS_WIRE_CLOSE && message.close.block_id == 9, "%d", type);
    close(ends[1]);
}

/* It was given up, or is away: what is granted late is its own, and nobody has called it back. */
Test(share_resume, of_what_is_granted_late_is_not_the_one_that_was_called_back)
{
    union gs_wire_message grant = MESSAGE(GRANT, 4, .grant = {.block_id = 9});
    int ends[2];
    struct gs_remote *remote = connect_pair(false, ends);
    struct gs_importer *importer = &side.share->importer;
    struct gs_opened opened = {
        .key.id = 9, .remote = remote, .generation = 3, .recalled = true, .orphan = true};

    memcpy(opened.key.instance, remote->instance, sizeof opened.key.instance);
    gs_lock_take(&importer->lock);
    HASH_ADD(hh, importer->opened, key, sizeof opened.key, &opened);
    gs_lock_release(&importer->lock);
    gs_remote_return(side.share, remote, &grant.grant);
    gs_lock_take(&importer->lock);
    HASH_DELETE(hh, importer->opened, &opened);
    gs_lock_release(&importer->lock);
    cr_assert(opened.generation == 4 && !opened.recalled);
    close(ends[1]);
}
