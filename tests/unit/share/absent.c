/*
 * An exporter that runs and is nowhere to be found is given up; it comes back, and has all that
 * this process has of it on its books still. What was opened before is then given back as what is
 * opened after.
 */
#include <criterion/criterion.h>

#include "core/share/importer.h"
#include "core/share/let_go.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define OTHER_CONTEXT ((CUcontext)0x2000)

static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], another[GS_IPC_HANDLE_SIZE];

static void setup(void)
{
    scene_new();
    options.idle_blocks = 0;
    scene_side();
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 7, ipc_handle);
    other_export(&other, 512, 512, 8, another);
}

TestSuite(share_absent, .init = setup, .fini = scene_end, .timeout = 120);

static struct sockaddr_un path;
static char away[128];

/* Its socket is away and the connection closed by the program. */
static void go_away(bool for_long)
{
    side_path_of(dir, ipc_handle, &path);
    snprintf(away, sizeof away, "%s-away", dir);
    halt(other.pid);
    cr_assert_eq(rename(path.sun_path, away), 0);
    gs_lock_take(&side.share->importer.lock);
    cr_assert_eq(side_connections(true), 1);
    side.share->importer.remotes->absent_ns = for_long;
    gs_lock_release(&side.share->importer.lock);
}

static void come_back(void)
{
    cr_assert_eq(rename(away, path.sun_path), 0);
    kill(other.pid, SIGCONT);
}

/* Something else is opened meanwhile. */
static void open_while_it_is_away(bool for_long)
{
    CUdeviceptr address;

    go_away(for_long);
    cr_assert_eq(gs_share_open(side.share, another, OTHER_CONTEXT, 0, &address), GS_UNREACHABLE);
    come_back();
}

/* Nobody has been there for long: it is given up. */
static void give_up(void)
{
    open_while_it_is_away(true);
}

static CUdeviceptr open_elsewhere(const unsigned char *handle)
{
    CUdeviceptr address = 0;

    cr_assert_eq(gs_share_open(side.share, handle, OTHER_CONTEXT, 0, &address), GS_OK);
    return address;
}

/* All but the block itself has gone back, as what is closed last goes last. */
static void only_it_is_held(void)
{
    cr_assert_eq(gs_share_close(side.share, open_elsewhere(another)), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "what was closed last has not gone back");
    cr_assert_str_eq(other_ask(&other, "holds"), "ok 1", "its bytes are handed out");
}

static void nothing_is_held(void)
{
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "holds"), "ok 0")), "%s", other.answer);
}

/* Work of the context that had it open before runs on over the mapping of then. */
Test(share_absent, what_was_closed_is_opened_again_when_work_on_the_first_mapping_has_ended)
{
    CUdeviceptr address = scene_open(ipc_handle), again;
    uint64_t timeout_ns = side.share->options.timeout_ns;

    memdriver_busy(SIDE_CONTEXT);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    give_up();
    side.share->options.timeout_ns = 100 * MS;
    cr_assert_eq(gs_share_open(side.share, ipc_handle, OTHER_CONTEXT, 0, &again), GS_UNREACHABLE);
    side.share->options.timeout_ns = timeout_ns;
    only_it_is_held();
    memdriver_busy(NULL);
    cr_assert_eq(gs_share_close(side.share, open_elsewhere(ipc_handle)), GS_OK);
    nothing_is_held();
}

Test(share_absent, what_was_open_meanwhile_goes_back_to_who_comes_back)
{
    CUdeviceptr address = scene_open(ipc_handle);

    give_up();
    only_it_is_held();
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    nothing_is_held();
}

static bool is_connected(void)
{
    bool connected;

    gs_lock_take(&side.share->importer.lock);
    connected = side.share->importer.remotes->conn.fd >= 0;
    gs_lock_release(&side.share->importer.lock);
    return connected;
}

/* Or what it frees meanwhile would be called back from nobody. */
Test(share_absent, who_was_away_for_a_moment_is_looked_for_though_nothing_else_is_opened)
{
    scene_open(ipc_handle);
    side.share->options.timeout_ns = 100 * MS;
    open_while_it_is_away(false);
    cr_assert(SIDE_WAIT(is_connected()));
    cr_assert_str_eq(other_ask(&other, "holds"), "ok 1");
}

/* What it has is not lost. */
Test(share_absent, who_is_away_as_this_process_wakes_has_not_ended)
{
    CUdeviceptr address = scene_open(ipc_handle);
    struct gs_untaken untaken;

    cr_assert_gt(gs_share_let_go(side.share), 0);
    go_away(true);
    cr_assert_not(gs_share_take_back(side.share, gs_now_ns() + 100 * MS, &untaken));
    cr_assert_eq(untaken.pid, other.pid);
    come_back();
    cr_assert(gs_share_take_back(side.share, gs_now_ns() + SIDE_HOUR, &untaken));
    cr_assert_null(strstr(side_logged(), "has ended while both slept"));
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

/* Whichever process that is, it is not looked for then. */
Test(share_absent, who_cannot_be_looked_for_without_a_descriptor_is_not_given_up)
{
    struct rlimit before, none;
    CUdeviceptr address;

    scene_open(ipc_handle);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3;
    gs_lock_take(&side.share->importer.lock);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    cr_assert_eq(side_connections(true), 1);
    side.share->importer.remotes->absent_ns = 1;
    gs_lock_release(&side.share->importer.lock);
    cr_assert_neq(gs_share_open(side.share, another, OTHER_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(side.share->importer.remotes->connection, 0);
    cr_assert(SIDE_WAIT(is_connected()));
    cr_assert_str_eq(other_ask(&other, "holds"), "ok 1");
}

/* A number that the program closed is of whoever has it now. */
Test(share_absent, what_has_the_number_of_a_connection_is_not_hung_up)
{
    struct gs_remote remote = {0};
    int theirs[2], ours[2];
    char byte;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, theirs), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ours), 0);
    remote.conn.fd = ours[0];
    remote.conn.kept_fd = gs_fd_keep(ours[0]);
    cr_assert_eq(dup2(theirs[0], ours[0]), ours[0]);
    gs_remote_hang_up(&remote);
    cr_assert_eq(remote.conn.fd, -1);
    cr_assert_eq(write(theirs[0], "", 1), 1);
    cr_assert_eq(read(theirs[1], &byte, 1), 1);
}
