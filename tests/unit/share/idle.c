/* Blocks that were closed and stay held for the next open, until the exporter calls them back. */
#include <criterion/criterion.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

#include "core/share/importer.h"
#include "core/share/wire.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, NULL);
}

TestSuite(share_idle, .init = setup, .fini = scene_end, .timeout = 120);

struct reopening {
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    bool done; /* atomic */
};

/* Any system call but these two ends the thread. */
static void *reopen_without_calls(void *arg)
{
    struct sock_filter allow[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0), /* mostly the vDSO's */
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = sizeof allow / sizeof *allow, .filter = allow};
    struct reopening *reopening = arg;
    CUdeviceptr address;

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0)
        for (int i = 0; i < 1000; i++)
            if (gs_share_open(side.share, reopening->ipc_handle, SIDE_CONTEXT, 0, &address) !=
                    GS_OK ||
                gs_share_close(side.share, address) != GS_OK)
                syscall(SYS_getppid);
    __atomic_store_n(&reopening->done, true, __ATOMIC_SEQ_CST);
    syscall(SYS_exit, 0);
    return NULL;
}

Test(share_idle, reopening_makes_no_system_call)
{
    static struct reopening reopening;
    CUdeviceptr address;
    pthread_t thread;

    other_export(&other, 0, 512, 7, reopening.ipc_handle);
    address = scene_open(reopening.ipc_handle);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    halt(other.pid);
    for (int i = 0; i < 10 && !__atomic_load_n(&reopening.done, __ATOMIC_SEQ_CST); i++) {
        usleep(50000); /* the thread is told once that something is idle */
        cr_assert_eq(pthread_create(&thread, NULL, reopen_without_calls, &reopening), 0);
        pthread_join(thread, NULL);
    }
    kill(other.pid, SIGCONT);
    cr_assert(__atomic_load_n(&reopening.done, __ATOMIC_SEQ_CST), "there was one each time");
}

#define THIRD ((CUcontext)0x3000)

static bool three(void *arg, enum gs_question question, unsigned device, union gs_told *told)
{
    told->contexts = (struct gs_contexts){{SIDE_CONTEXT, (CUcontext)0x2000, THIRD}, 3};
    return question == GS_ASKED_CONTEXTS;
}

/* A context that has opened nothing is waited for after the last close; it keeps nothing open, and the
 * block is not its own. */
Test(share_idle, a_context_that_opened_nothing_keeps_nothing_open)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_import_info info;
    CUdeviceptr address;

    side.share->events.asked = three;
    other_export(&other, 0, 512, 7, ipc_handle);
    for (int i = 0; i < 2; i++) {
        address = scene_open(ipc_handle);
        cr_assert_eq(gs_share_open(side.share, ipc_handle, THIRD, 0, &address), GS_OK);
        if (i == 0) {
            cr_assert_eq(gs_share_close(side.share, address), GS_OK);
            cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        }
    }
    gs_share_context_gone(side.share, SIDE_CONTEXT);
    cr_assert_eq(gs_share_find(side.share, address, &info), GS_OK);
    cr_assert_eq(info.context, THIRD);
    gs_share_context_gone(side.share, THIRD);
    cr_assert_eq(gs_share_find(side.share, address, &info), GS_NOT_OURS);
    cr_assert(SIDE_WAIT(gs_map_find(&side.map, address) == NULL));
}

Test(share_idle, its_time_ends)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    uint64_t closed;
    bool is_there;

    options.idle_ns = 100 * MS;
    scene_side_anew();
    other_export(&other, 0, 512, 7, ipc_handle);
    address = scene_open(ipc_handle);
    closed = side_now();
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(all_rest(other.pid));
    is_there = gs_map_find(&side.map, address) != NULL;
    cr_assert(is_there || !side_within(closed, options.idle_ns));
    cr_assert(SIDE_WAIT(gs_map_find(&side.map, address) == NULL));
    /* Once more: the thread has gone to sleep meanwhile. */
    address = scene_open(ipc_handle);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(gs_map_find(&side.map, address) == NULL));
}

Test(share_idle, beyond_the_bound_the_oldest_goes)
{
    unsigned char ipc_handle[3][GS_IPC_HANDLE_SIZE];
    CUdeviceptr address[3];

    options.idle_blocks = 2;
    scene_side_anew();
    for (int i = 0; i < 3; i++) {
        other_export(&other, (size_t)i * 512, 512, i, ipc_handle[i]);
        address[i] = scene_open(ipc_handle[i]);
    }
    /* The last export is closed first, so it is the one that goes; only it can be withdrawn
     * here. */
    cr_assert_eq(gs_share_close(side.share, address[2]), GS_OK);
    cr_assert_eq(gs_share_close(side.share, address[1]), GS_OK);
    cr_assert(all_rest(other.pid));
    cr_assert_str_eq(other_ask(&other, "holds"), "ok 3");
    cr_assert_eq(gs_share_close(side.share, address[0]), GS_OK);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "holds"), "ok 2")));
    cr_assert(other_withdraws(&other));
}

/* How many of the blocks that were closed could not be given back for want of room; -1: the thread
 * is at one still, or not so many are open. */
static int unsent(unsigned open)
{
    const struct gs_opened *opened;
    struct gs_importer *importer = &side.share->importer;
    int count = 0;

    gs_lock_take(&importer->lock);
    for (opened = importer->remotes->unsent; opened; opened = opened->next)
        count++;
    if (importer->remotes->opened_count != open)
        count = -1;
    gs_lock_release(&importer->lock);
    return count;
}

/* The tries to give back what does not go have become as rare as they do, and the last one was a
 * moment ago, or a multiple of that time. */
static bool tries_rarely(void)
{
    struct gs_importer *importer = &side.share->importer;
    bool rarely;

    gs_lock_take(&importer->lock);
    rarely = importer->poll_ns >= 16 * GS_NS_PER_MS;
    gs_lock_release(&importer->lock);
    return rarely;
}

/* The exporter goes on when it has been connected to anew. */
static void *go_on_when_connected(void *arg)
{
    (void)arg;
    if (SIDE_WAIT(side_connections(false) == 1))
        kill(other.pid, SIGCONT);
    return NULL;
}

/* The first block that does not go back is opened again, so that its end waits to be said while the
 * block is open over another connection. */
Test(share_idle,
     what_did_not_go_back_over_a_lost_connection_ends_nothing_that_is_opened_over_the_next)
{
    enum { BLOCKS = 2000 };
    static unsigned char ipc_handles[BLOCKS][GS_IPC_HANDLE_SIZE];
    static CUdeviceptr addresses[BLOCKS];
    unsigned open = BLOCKS - 1; /* the last one is not opened before the end */
    unsigned char last;
    char expected[32];
    pthread_t thread;

    options.idle_blocks = 0;
    scene_side_anew();
    for (unsigned i = 0; i < BLOCKS; i++) {
        other_export(&other, (size_t)i * 512, 512, 7, ipc_handles[i]);
        if (i < BLOCKS - 1)
            addresses[i] = scene_open(ipc_handles[i]);
    }
    halt(other.pid);
    while (unsent(open) == 0) {
        cr_assert_gt(open, 1, "all of it went");
        cr_assert_eq(gs_share_close(side.share, addresses[--open]), GS_OK);
        cr_assert(SIDE_WAIT(unsent(open) >= 0));
    }
    cr_assert_eq(unsent(open), 1);
    /* The next try would forget it, where it comes between the connection's end and the open. */
    cr_assert(SIDE_WAIT(tries_rarely()));
    cr_assert_eq(side_connections(true), 1);
    cr_assert_eq(pthread_create(&thread, NULL, go_on_when_connected, NULL), 0);
    addresses[open] = scene_open(ipc_handles[open]);
    pthread_join(thread, NULL);
    cr_assert(SIDE_WAIT(unsent(open + 1) == 0));
    last = *(volatile unsigned char *)scene_open(
        ipc_handles[BLOCKS - 1]); /* behind all that was said */
    cr_assert_eq(last, 7);
    snprintf(expected, sizeof expected, "ok %u", open + 2);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "holds"), expected)), "%s, not %s", other.answer,
              expected);
}

/* A broker that has not heard all yet is looked at later than who was busy when something came.
 * Nothing runs here yet that would look. */
Test(share_idle, who_is_looked_at_later_puts_off_nobody)
{
    const unsigned char names[2][GS_INSTANCE_SIZE] = {{1}, {2}};
    struct gs_remote *remotes[2];
    uint64_t due, later;
    bool noticed;

    gs_lock_take(&side.share->importer.lock);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_not_null(remotes[i] = gs_remote_of_locked(side.share, names[i]));
    remotes[0]->busy = true;
    gs_lock_release(&side.share->importer.lock);
    gs_remote_event(side.share, remotes[0]->id);
    due = side.share->importer.look_ns;
    cr_assert_neq(due, GS_NEVER);
    gs_lock_take(&side.share->importer.lock);
    remotes[1]->conn.by_broker = remotes[1]->conn.refused = true;
    remotes[1]->conn.fd = 0;
    gs_remote_reap_locked(side.share, remotes[1]);
    noticed = remotes[1]->noticed;
    later = side.share->importer.look_ns;
    for (unsigned i = 0; i < 2; i++) {
        HASH_DEL(side.share->importer.remotes, remotes[i]);
        free(remotes[i]);
    }
    gs_lock_release(&side.share->importer.lock);
    cr_assert(noticed);
    cr_assert_eq(later, due);
}

/* ---- What is not kept for the next open ------------------------------------------------------ */

/* The other's block is opened and closed, and does not go back yet. */
static void opens_and_closes_in_vain(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_close(side.share, scene_open(ipc_handle)), GS_OK);
    cr_assert(all_rest(other.pid));
    cr_assert_str_eq(other_ask(&other, "withdraw"), "held");
}

Test(share_idle, while_a_capture_is_open_nothing_is_given_back)
{
    options.idle_blocks = 0;
    scene_side_anew();
    gs_fences_capture_begin(&side.fences, 1, SIDE_CONTEXT, SIDE_CONTEXT);
    opens_and_closes_in_vain();
    gs_fences_capture_end(&side.fences, 1, NULL);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

Test(share_idle, a_driver_without_context_events_is_waited_for)
{
    options.idle_blocks = 0;
    scene_side_anew();
    side.driver.ctx_record_event = NULL;
    memdriver_hold(true);
    opens_and_closes_in_vain();
    memdriver_hold(false);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}
