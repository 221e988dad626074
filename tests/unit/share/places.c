/* The runtime directory goes and comes back, and where it is when nobody has named one. */
#include <criterion/criterion.h>
#include <sys/mount.h>

#include "core/share/internal.h"
#include "other.h"
#include "side.h"
#include "tests/children.h"
#include "tests/system.h"

#define NOBODY 65533

static char dir[64];
static struct other giver, taker;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
static unsigned long address;

static void setup(void)
{
    side_dir_new(dir, sizeof dir);
}

static void teardown(void)
{
    side_dir_remove(dir);
}

TestSuite(share_places, .init = setup, .fini = teardown, .timeout = 120);

static void give(int byte)
{
    other_export(&giver, 0, 512, byte, ipc_handle);
}

/* A process that has just started opens what was shared, and sees it. */
static bool opens(const char *where)
{
    gs_status status;

    other_start(&taker, where, NULL);
    status = other_open(&taker, ipc_handle, &address);
    other_stop(&taker);
    return status == GS_OK;
}

/* A process that shares is told when its socket goes: not while it is stopped. */
static void giver_stands(void)
{
    halt(giver.pid);
}

static void giver_goes_on(void)
{
    kill(giver.pid, SIGCONT);
}

/* ---- One that was named --------------------------------------------------------------------- */

Test(share_places, one_that_is_removed_is_made_again_and_all_can_be_opened)
{
    other_start(&giver, dir, NULL);
    give(1);
    cr_assert(opens(dir));
    giver_stands();
    side_dir_remove(dir);
    cr_assert_not(opens(dir));
    giver_goes_on();
    cr_assert(SIDE_WAIT(side_dir_put_up(dir) == 1), "by itself");
    cr_assert(opens(dir), "what was shared before");
    giver_stands();
    side_dir_remove(dir);
    giver_goes_on();
    give(2);
    cr_assert(opens(dir), "at once with the next block");
    cr_assert_str_eq(other_ask(&giver, "said had been removed"), "ok");
    cr_assert_eq(other_stop(&giver), 0);
    cr_assert_eq(side_dir_count(dir), 0);
}

/* It goes as the socket is put up, before it is watched. */
Test(share_places, one_that_is_removed_meanwhile_is_made_again)
{
    struct gs_share_options options = {0};
    char reason[GS_REASON_SIZE];
    int directory, listener;
    struct side side;

    side_options(&options, dir);
    side_start(&side, &options);
    cr_assert_eq(gs_thread_start(side.share), GS_OK);
    listener =
        gs_directory_put_up(&side.share->options, side.share->name, false, &directory, reason);
    cr_assert_geq(listener, 0, "%s", reason);
    side_dir_remove(dir);
    cr_assert_eq(gs_socket_adopt(side.share, directory, listener), 0);
    __atomic_store_n(&side.share->socket_start, GS_STARTED, __ATOMIC_RELEASE);
    __atomic_store_n(&side.share->place.sweep_ns, side_now(), __ATOMIC_RELEASE);
    gs_thread_wake_any(side.share);
    cr_assert(SIDE_WAIT(side_dir_put_up(dir) == 1));
    side_stop(&side);
}

Test(share_places, one_that_is_replaced_gets_the_socket_too)
{
    char away[96];

    snprintf(away, sizeof away, "%s.away", dir);
    other_start(&giver, dir, NULL);
    give(1);
    giver_stands();
    cr_assert_eq(rename(dir, away), 0);
    cr_assert_eq(mkdir(dir, 0700), 0);
    giver_goes_on();
    give(2);
    cr_assert(opens(dir));
    cr_assert_eq(side_dir_count(away), 0, "a socket that nobody looks for is left");
    cr_assert_eq(other_stop(&giver), 0);
    rmdir(away);
}

Test(share_places, a_broker_puts_its_socket_up_again_and_serves_what_it_has)
{
    other_start(&giver, dir, "keep=60000");
    give(6);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&giver);
    side_dir_remove(dir);
    cr_assert(SIDE_WAIT(side_broker_pid(dir) > 0));
    cr_assert(opens(dir));
    cr_assert(side_broker_end(dir));
}

/* ---- None was named ------------------------------------------------------------------------- */

static void cover(const char *path, const char *options)
{
    if (mount("none", path, "tmpfs", 0, options) != 0)
        cr_skip_test("no tmpfs can be mounted here");
}

/* This process and its children see empty places of their own. */
static void empty_places(void)
{
    if (geteuid() != 0)
        cr_skip_test("only root can have places of its own");
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        cr_skip_test("no mounts of one's own here");
    other_keep();
    cover("/run", "mode=755");
    cover("/tmp", "mode=1777");
    cover("/dev/shm", "mode=1777");
    mkdir("/run/user", 0755);
}

static void log_in(void)
{
    cr_assert_eq(mkdir("/run/user/0", 0700), 0);
}

static void log_out(void)
{
    side_dir_remove("/run/user/0/gpushim");
    cr_assert_eq(rmdir("/run/user/0"), 0);
}

Test(share_places, who_logs_in_finds_what_was_shared_before)
{
    empty_places();
    other_start(&giver, "", NULL);
    give(1);
    cr_assert_eq(side_dir_count("/tmp/gpushim-0"), 1);
    cr_assert(opens(""));
    log_in();
    cr_assert(opens(""));
    give(2);
    cr_assert(opens(""));
    cr_assert_eq(other_stop(&giver), 0);
}

Test(share_places, what_was_shared_outlasts_the_session)
{
    empty_places();
    log_in();
    other_start(&giver, "", NULL);
    give(1);
    cr_assert_eq(side_dir_count("/run/user/0/gpushim"), 1);
    cr_assert(opens(""));
    giver_stands();
    log_out();
    giver_goes_on();
    cr_assert(SIDE_WAIT(side_dir_put_up("/tmp/gpushim-0") == 1));
    cr_assert(opens(""));
    give(2);
    cr_assert(opens(""));
    cr_assert_eq(other_stop(&giver), 0);
}

/* Whoever was there first keeps nobody from sharing, nor do they by going away later. */
Test(share_places, what_another_user_put_in_tmp_first_is_passed_by)
{
    empty_places();
    cr_assert_eq(mkdir("/tmp/gpushim-0", 0700), 0);
    cr_assert_eq(chown("/tmp/gpushim-0", NOBODY, NOBODY), 0);
    cr_assert_eq(symlink("/dev", "/tmp/gpushim-0.1"), 0);
    other_start(&giver, "", NULL);
    give(1);
    cr_assert_eq(side_dir_count("/tmp/gpushim-0.2"), 1);
    cr_assert(opens(""));
    rmdir("/tmp/gpushim-0");
    cr_assert(opens(""));
    mkdir("/tmp/gpushim-0", 0700); /* by another process of this user's */
    cr_assert(opens(""));
    cr_assert_eq(other_stop(&giver), 0);
}

/* A container's may be its user's alone. */
Test(share_places, in_tmp_each_user_has_their_own_whatever_its_mode)
{
    empty_places();
    cr_assert_eq(chmod("/tmp", 0755), 0);
    other_start(&giver, "", NULL);
    give(1);
    cr_assert_eq(side_dir_count("/tmp"), 1);
    cr_assert_eq(side_dir_count("/tmp/gpushim-0"), 1);
    cr_assert(opens(""));
    cr_assert_eq(other_stop(&giver), 0);
}

Test(share_places, two_users_who_name_each_other_meet_in_tmp)
{
    empty_places();
    other_start2(&giver, "", "uid=65533", "trust=0");
    give(1);
    cr_assert_eq(side_dir_count("/tmp/gpushim-65533"), 1);
    other_start(&taker, "", "trust=65533");
    cr_assert_eq(other_open(&taker, ipc_handle, &address), GS_OK);
    cr_assert_eq(other_stop(&taker), 0);
    cr_assert_not(opens(""), "root did not name them");
    cr_assert_eq(other_stop(&giver), 0);
}

/* ---- Whether there is any ------------------------------------------------------------------- */

Test(share_places, whether_there_is_one_is_tried_and_leaves_the_folder_alone)
{
    struct gs_share_options options;
    char reason[GS_REASON_SIZE];
    struct side side;
    int fds;

    side_options(&options, dir);
    side_start(&side, &options);
    fds = side_open_fds();
    for (int i = 0; i < 2; i++) {
        cr_assert(gs_share_can(side.share, reason));
        cr_assert_eq(side_dir_count(dir), 0);
    }
    cr_assert_eq(side_open_fds(), fds);
    side_stop(&side);
    strcat(options.dir, "/there/is/none");
    side_start(&side, &options);
    cr_assert_not(gs_share_can(side.share, reason));
    cr_assert_not_null(strstr(reason, "cannot be made: No such file"), "%s", reason);
    cr_assert_eq(side_open_fds(), fds);
    side_stop(&side);
}

/* A process that shares the beginning of a chunk. */
static struct gs_export *share_some(struct side *side, struct side_chunk *chunk)
{
    struct gs_share_options options;
    struct gs_export *export;

    side_options(&options, dir);
    side_start(side, &options);
    *chunk = side_chunk_new(side, 2 * MIB);
    cr_assert_eq(side_export(side, chunk, 0, 512, &export), GS_OK);
    return export;
}

/* Which the share thread sleeps on. What comes is not to wait until its patience is over. */
Test(share_places, a_program_that_closes_what_the_thread_sleeps_on_keeps_no_importer_waiting)
{
    struct side_chunk chunk;
    unsigned long other_address;
    struct side side = {0};
    struct gs_export *export = share_some(&side, &chunk), *more;

    gs_export_handle(export, ipc_handle);
    other_start(&taker, dir, "timeout=1000000");
    cr_assert_eq(other_open(&taker, ipc_handle, &address), GS_OK);
    other_start(&giver, dir, "timeout=1000000");
    close(side.share->loop.epoll);
    cr_assert_eq(other_open(&giver, ipc_handle, &other_address), GS_UNREACHABLE);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "sharing has ended")));
    cr_assert_leq(side_dir_put_up(dir), 2, "its socket is there still"); /* of the two others */
    cr_assert_eq(side_export(&side, &chunk, 512, 512, &more), GS_NOT_OFFERED);
    cr_assert_not(gs_share_withdraw(side.share, export), "who has it open has lost it");
    other_stop(&taker);
    other_stop(&giver);
    side_stop(&side);
    side_chunk_free(&side, &chunk);
}

/* Which alone wakes the thread for what this process does itself. It sleeps on else, nothing that
 * was closed is given back, and the end of sharing waits for it. */
Test(share_places, a_program_that_closes_the_end_that_wakes_the_thread_is_noticed)
{
    struct side_chunk chunk;
    struct side side = {0};

    share_some(&side, &chunk);
    close(side.share->loop.wake);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "sharing has ended")));
    side_stop(&side);
    side_chunk_free(&side, &chunk);
}

/* A pipe that nobody reads any more ends by a signal who writes into it. */
Test(share_places, a_program_that_closes_the_end_that_is_read_is_not_ended_by_the_next_wake)
{
    struct side_chunk chunk;
    struct side side = {0};

    share_some(&side, &chunk);
    close(side.share->loop.woken);
    gs_thread_wake(side.share);
    cr_assert(SIDE_WAIT(strstr(side_logged(), "sharing has ended")));
    gs_thread_wake(side.share);
    side_stop(&side);
    side_chunk_free(&side, &chunk);
}

/* The number of the spare one is another file's by then. */
Test(share_places, a_file_that_got_the_number_of_the_spare_descriptor_stays_open)
{
    struct gs_share_options options;
    struct side side = {0};
    int spare, own[2];

    side_options(&options, dir);
    side_start(&side, &options);
    cr_assert_eq(gs_share_serve(side.share), GS_OK);
    spare = side.share->place.spare_fd;
    cr_assert_eq(pipe(own), 0);
    cr_assert_eq(dup2(own[0], spare), spare);
    gs_spare_give(side.share);
    cr_assert_neq(fcntl(spare, F_GETFD), -1);
    side_stop(&side);
    cr_assert_neq(fcntl(spare, F_GETFD), -1);
    close(spare);
    close(own[0]);
    close(own[1]);
}
