/* The first open of another process's memory does without the share thread: what comes after it
 * starts one, and where none can be had memory is given back all the same. The program is linked
 * with its own pthread_create. */
#include <criterion/criterion.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "core/share/exporter.h"
#include "core/share/importer.h"
#include "scene.h"
#include "tests/children.h"
#include "wrapped_thread.h"
#include "tests/system.h"

static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
static int threads;       /* of this process before it opens anything */
static bool refuses;      /* pthread_create does, */
static bool waits;        /* and before that it waits until somebody is: */
static bool starts;       /* atomic: it waits */
static int looks_at = -1; /* atomic: what is to be written there is late by so much: */
static bool late;         /* atomic: it is */
#define LATE_US 200000

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg)
{
    if (waits) {
        __atomic_store_n(&starts, true, __ATOMIC_SEQ_CST);
        while (!__atomic_load_n(&late, __ATOMIC_SEQ_CST))
            usleep(500);
    }
    return refuses ? EAGAIN : __real_pthread_create(thread, attributes, run, arg);
}

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 7, ipc_handle);
    threads = side_threads();
}

TestSuite(share_first, .init = setup, .fini = scene_end, .timeout = 120);

Test(share_first, open_starts_no_thread_and_the_next_one_does)
{
    unsigned char next[GS_IPC_HANDLE_SIZE];

    scene_open(ipc_handle);
    cr_assert_eq(side_threads(), threads);
    other_export(&other, 512, 512, 8, next);
    scene_open(next);
    cr_assert_gt(side_threads(), threads);
}

/* There is one for the epoll, and none for the pipe: it may try again as often as it likes. */
Test(share_first, a_thread_that_cannot_start_leaves_no_descriptor_behind)
{
    int lowest = fcntl(0, F_DUPFD_CLOEXEC, 0);
    struct rlimit before, few;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)lowest + 1;
    close(lowest);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    cr_assert_eq(gs_thread_start(side.share), GS_UNREACHABLE);
    cr_assert_eq(fcntl(0, F_DUPFD_CLOEXEC, 0), lowest);
    close(lowest);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(gs_thread_start(side.share), GS_OK);
}

Test(share_first, close_starts_the_thread)
{
    CUdeviceptr address = scene_open(ipc_handle);

    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_gt(side_threads(), threads);
    cr_assert_eq(scene_open(ipc_handle), address, "it was kept");
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "it was not called back");
}

Test(share_first, what_was_called_back_before_there_is_a_thread_goes_back_at_the_close)
{
    CUdeviceptr address = scene_open(ipc_handle);

    cr_assert_not(other_withdraws(&other));
    cr_assert(all_rest(other.pid));
    cr_assert_eq(side_threads(), threads);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

Test(share_first, open_outlives_its_exporter)
{
    CUdeviceptr address = scene_open(ipc_handle);

    other_kill(&other);
    cr_assert(all_rest(0));
    cr_assert_eq(memdriver_mapped(), 1);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(memdriver_mapped() == 0));
    other_start(&other, dir, NULL);
}

/* Nobody would see that the exporter hangs up on such a connection. */
Test(share_first, open_that_is_refused_leaves_no_connection)
{
    int fds = side_open_fds();
    CUdeviceptr address;

    cr_assert(other_withdraws(&other));
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_STALE);
    cr_assert_eq(side_open_fds(), fds);
    cr_assert_eq(side_threads(), threads);
}

Test(share_first, open_of_a_context_that_ends_goes_back)
{
    scene_open(ipc_handle);
    gs_share_context_leaving(side.share, SIDE_CONTEXT);
    gs_share_context_gone(side.share, SIDE_CONTEXT);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

static void open_in_vain(void)
{
    CUdeviceptr address;

    side.share->options.timeout_ns = 100 * MS;
    halt(other.pid);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_UNREACHABLE);
    kill(other.pid, SIGCONT);
    cr_assert(all_rest(other.pid)); /* it is answered, and may be in vain */
}

Test(share_first, open_that_was_given_up_leaves_no_hold)
{
    open_in_vain();
    cr_assert_gt(side_threads(), threads);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

Test(share_first, open_that_was_given_up_leaves_no_hold_without_a_thread)
{
    int fds = side_open_fds();

    refuses = true;
    open_in_vain();
    cr_assert_eq(side_open_fds(), fds);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    refuses = false;
}

/* Opens the first block that was exported, and another beside it, without a thread. */
static CUdeviceptr open_two(CUdeviceptr *ret_second)
{
    unsigned char next[GS_IPC_HANDLE_SIZE];
    CUdeviceptr first;

    refuses = true;
    first = scene_open(ipc_handle);
    other_export(&other, 512, 512, 8, next);
    *ret_second = scene_open(next);
    return first;
}

Test(share_first, blocks_go_back_without_a_thread)
{
    CUdeviceptr second, first = open_two(&second);

    cr_assert_eq(gs_share_close(side.share, second), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    cr_assert_eq(memdriver_mapped(), 1);
    cr_assert_eq(gs_share_close(side.share, first), GS_OK);
    cr_assert_eq(memdriver_mapped(), 0);
    cr_assert_neq(strstr(side_logged(), "ulimit -u"), NULL);
    refuses = false;
}

/* What the GPU still uses goes back with what is closed later, by then also with a thread. */
Test(share_first, blocks_in_use_go_back_later_without_a_thread)
{
    CUdeviceptr second, first = open_two(&second);

    memdriver_hold(true);
    cr_assert_eq(gs_share_close(side.share, second), GS_OK);
    cr_assert(all_rest(other.pid));
    cr_assert_not(other_withdraws(&other));
    memdriver_hold(false);
    refuses = false;
    cr_assert_eq(gs_share_close(side.share, first), GS_OK);
    cr_assert_gt(side_threads(), threads);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

/* A chunk that stays mapped without a reference is called back: there is nobody to hear that. */
Test(share_first, no_chunk_is_kept_without_a_thread)
{
    unsigned char next[GS_IPC_HANDLE_SIZE];
    CUdeviceptr first, second;

    refuses = true;
    first = scene_open(ipc_handle);
    cr_assert_not(other_withdraws(&other));
    other_export(&other, 512, 512, 8, next);
    second = scene_open(next); /* with its answer the call for the first is read */
    cr_assert_eq(gs_share_close(side.share, second), GS_OK);
    cr_assert_eq(gs_share_close(side.share, first), GS_OK);
    cr_assert_eq(memdriver_mapped(), 0);
    refuses = false;
}

/* An exporter in this process, with two chunks. */
struct exporter {
    struct side side;
    struct side_chunk chunk[2];
};

static void exporter_start(struct exporter *exporter)
{
    side_start(&exporter->side, &options);
    for (int i = 0; i < 2; i++)
        exporter->chunk[i] = side_chunk_new(&exporter->side, 2 * MIB);
}

static void exporter_stop(struct exporter *exporter)
{
    side_stop(&exporter->side);
    for (int i = 0; i < 2; i++)
        side_chunk_free(&exporter->side, &exporter->chunk[i]);
}

static struct gs_export *must_export(struct exporter *exporter, int which, size_t offset,
                                     unsigned char *ret_ipc_handle)
{
    struct gs_export *export;

    cr_assert_eq(side_export(&exporter->side, &exporter->chunk[which], offset, 512, &export),
                 GS_OK);
    gs_export_handle(export, ret_ipc_handle);
    return export;
}

static bool has_message(void)
{
    struct pollfd message = {.fd = side.share->importer.remotes->conn.fd, .events = POLLIN};

    return poll(&message, 1, 0) == 1;
}

/* Nor while the connection stays, for another chunk of the same exporter. */
Test(share_first, no_chunk_is_kept_beside_another_without_a_thread)
{
    static struct exporter exporter;
    unsigned char its[3][GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    CUdeviceptr address;
    unsigned mapped;

    exporter_start(&exporter);
    export = must_export(&exporter, 0, 0, its[0]);
    must_export(&exporter, 1, 0, its[1]);
    must_export(&exporter, 1, 512, its[2]);
    refuses = true;
    address = scene_open(its[0]);
    scene_open(its[1]);
    gs_share_freed(exporter.side.share, export, side_now());
    cr_assert(SIDE_WAIT(has_message()));
    scene_open(its[2]); /* with its answer the call is read */
    mapped = memdriver_mapped();
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_eq(memdriver_mapped(), mapped - 1);
    cr_assert(side_gets_back(&exporter.side, export));
    refuses = false;
    exporter_stop(&exporter);
}

static void *open_next(void *arg)
{
    static CUdeviceptr opened;
    gs_status status = gs_share_open(side.share, arg, SIDE_CONTEXT, 0, &opened);

    return status == GS_OK ? &opened : NULL;
}

static bool is_busy(void)
{
    bool busy;

    gs_lock_take(&side.share->importer.lock);
    busy = side.share->importer.remotes && side.share->importer.remotes->busy;
    gs_lock_release(&side.share->importer.lock);
    return busy;
}

/* One thread opens, which takes a while, and another closes meanwhile. */
static void close_while_busy(CUdeviceptr address, unsigned char *opens)
{
    pthread_t importer;
    void *opened;

    halt(other.pid);
    cr_assert_eq(__real_pthread_create(&importer, NULL, open_next, opens), 0);
    cr_assert(SIDE_WAIT(is_busy()));
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    kill(other.pid, SIGCONT);
    pthread_join(importer, &opened);
    cr_assert_not_null(opened);
}

Test(share_first, block_closed_while_its_exporter_is_busy_goes_back_without_a_thread)
{
    unsigned char next[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    refuses = true;
    other_export(&other, 512, 512, 8, next);
    address = scene_open(next);
    close_while_busy(address, ipc_handle);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    refuses = false;
}

/* Nobody would give it back for it to be opened anew. */
Test(share_first, block_closed_while_its_exporter_is_busy_can_be_opened_again_without_a_thread)
{
    unsigned char next[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    refuses = true;
    address = scene_open(ipc_handle);
    other_export(&other, 512, 512, 8, next);
    close_while_busy(address, next);
    cr_assert_eq(scene_open(ipc_handle), address);
    refuses = false;
}

static bool holds; /* a registration, what was opened */

static bool is_held(void *arg, uint64_t base, size_t size, bool going)
{
    (void)arg, (void)base, (void)size;
    return holds && !going;
}

Test(share_first, block_that_was_registered_goes_back_without_a_thread)
{
    CUdeviceptr address = scene_open(ipc_handle);

    refuses = true;
    side.share->events.in_use = is_held;
    holds = true;
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_not(other_withdraws(&other));
    holds = false;
    gs_share_look_again(side.share);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    refuses = false;
}

/* The driver may have ended before the program's last exit handlers run. */
Test(share_first, close_at_the_process_end_asks_the_driver_nothing)
{
    CUdeviceptr address = scene_open(ipc_handle);
    int alive = memdriver_alive();

    gs_share_at_exit(side.share);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_eq(memdriver_alive(), alive);
    cr_assert_eq(side_threads(), threads);
}

/* A child that was forked meanwhile has the connection too. */
Test(share_first, open_that_was_given_up_leaves_no_hold_where_a_child_was_forked)
{
    pthread_t importer;
    void *opened;
    pid_t child;

    refuses = true;
    side.share->options.timeout_ns = 300 * MS;
    halt(other.pid);
    cr_assert_eq(__real_pthread_create(&importer, NULL, open_next, ipc_handle), 0);
    cr_assert(SIDE_WAIT(is_busy()));
    usleep(100000);
    child = fork_child();
    if (child == 0)
        for (;;)
            pause();
    pthread_join(importer, &opened);
    cr_assert_null(opened);
    kill(other.pid, SIGCONT);
    cr_assert(all_rest(other.pid)); /* it is answered */
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    refuses = false;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* A connection that is closed before all was read is reset: what went out before counts. */
Test(share_first, block_that_was_called_back_goes_back_at_once_without_a_thread)
{
    static struct exporter exporter;
    struct gs_export *export;
    unsigned char its[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    options.settle_ns = SIDE_HOUR;
    exporter_start(&exporter);
    export = must_export(&exporter, 0, 0, its);
    refuses = true;
    address = scene_open(its);
    gs_share_freed(exporter.side.share, export, side_now());
    cr_assert(SIDE_WAIT(has_message()));
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(side_gets_back(&exporter.side, export));
    refuses = false;
    exporter_stop(&exporter);
}

int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);

static bool is_full; /* what the kernel watches for a user (fs.epoll.max_user_watches) */

static bool has_no_room_for(uint64_t watch)
{
    return watch >> 56 == GS_WATCH_REMOTE || watch >> 56 == GS_WATCH_LISTENER;
}

/* The program closes what it does not know, and has files of its own under these numbers. */
static bool is_closing;
static int its_pipe[2];

static void swap(int listener)
{
    cr_assert_eq(dup2(its_pipe[0], listener), listener);
    cr_assert_eq(dup2(its_pipe[1], side.share->place.directory), side.share->place.directory);
}

static bool stays; /* atomic: whoever has a connection watched stays in that call until */
static bool
    others_went;   /* atomic: another thread has had the lock, or for as long as it is waited for */
static bool is_in; /* atomic: he is in it */

int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    if (op == EPOLL_CTL_ADD && event->data.u64 >> 56 == GS_WATCH_REMOTE &&
        __atomic_exchange_n(&stays, false, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&is_in, true, __ATOMIC_SEQ_CST);
        SIDE_WAIT(__atomic_load_n(&others_went, __ATOMIC_SEQ_CST));
    }
    if (is_full && op == EPOLL_CTL_ADD && has_no_room_for(event->data.u64)) {
        if (is_closing)
            swap(fd);
        errno = ENOSPC;
        return -1;
    }
    return __real_epoll_ctl(epoll, op, fd, event);
}

Test(share_first, connection_that_could_not_be_watched_is_watched_later)
{
    unsigned char next[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    scene_open(ipc_handle);
    other_export(&other, 512, 512, 8, next);
    is_full = true;
    scene_open(next);
    cr_assert(SIDE_WAIT(__atomic_load_n(&side.share->importer.remotes_watched, __ATOMIC_ACQUIRE)));
    is_full = false;
    other_export(&other, 1024, 512, 9, next);
    address = scene_open(next);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "nobody heard that it was called back");
}

/* The thread begins to run while another one waits for an answer. A thread that a filter of system
 * calls kills there must leave no lock behind. */
Test(share_first, connection_is_watched_without_a_lock)
{
    pthread_t importer;
    void *opened;
    uint64_t since;

    halt(other.pid);
    cr_assert_eq(__real_pthread_create(&importer, NULL, open_next, ipc_handle), 0);
    cr_assert(SIDE_WAIT(is_busy()));
    cr_assert(all_rest(0)); /* it has looked for a thread, and waits */
    __atomic_store_n(&stays, true, __ATOMIC_SEQ_CST);
    cr_assert_eq(gs_thread_start(side.share), GS_OK);
    cr_assert(SIDE_WAIT(__atomic_load_n(&side.share->importer.remotes_watched, __ATOMIC_ACQUIRE)));
    kill(other.pid, SIGCONT);
    cr_assert(SIDE_WAIT(__atomic_load_n(&is_in, __ATOMIC_SEQ_CST)), "it was not watched");
    since = side_now();
    cr_assert(is_busy(), "it was over before another thread had the lock");
    cr_assert(side_within(since, SIDE_PATIENCE_MS / 2 * MS), "that waits for the lock");
    __atomic_store_n(&others_went, true, __ATOMIC_SEQ_CST);
    pthread_join(importer, &opened);
    cr_assert_not_null(opened);
}

Test(share_first, exports_whose_socket_could_not_be_watched_leave_nothing_behind)
{
    struct side_chunk piece = side_chunk_new(&side, 2 * MIB);
    struct gs_export *export;
    int fds = 0;

    is_full = true;
    for (int i = 0; i < 20; i++) {
        cr_assert_eq(side_export(&side, &piece, 0, 512, &export), GS_NOT_OFFERED);
        if (i == 0)
            fds = side_open_fds();
    }
    cr_assert(SIDE_WAIT(side_open_fds() <= fds));
    is_full = false;
    cr_assert_eq(side_export(&side, &piece, 0, 512, &export), GS_OK);
    cr_assert(side_gets_back(&side, export));
    side_chunk_free(&side, &piece);
}

Test(share_first, a_socket_that_cannot_be_watched_is_not_closed_for_the_programs_file)
{
    struct side_chunk piece = side_chunk_new(&side, 2 * MIB);
    struct gs_export *export;
    char byte;

    cr_assert_eq(pipe2(its_pipe, O_CLOEXEC), 0);
    is_full = is_closing = true;
    cr_assert_eq(side_export(&side, &piece, 0, 512, &export), GS_NOT_OFFERED);
    is_full = is_closing = false;
    close(its_pipe[1]); /* the other number of it is left */
    cr_assert_eq(fcntl(its_pipe[0], F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(read(its_pipe[0], &byte, 1), -1, "it was closed");
    cr_assert_eq(errno, EAGAIN);
    cr_assert_eq(side_export(&side, &piece, 0, 512, &export), GS_OK);
    cr_assert(side_gets_back(&side, export));
    side_chunk_free(&side, &piece);
}

ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    if (fd >= 0 && fd == __atomic_load_n(&looks_at, __ATOMIC_SEQ_CST) &&
        !__atomic_exchange_n(&late, true, __ATOMIC_SEQ_CST))
        usleep(LATE_US);
    return __real_write(fd, bytes, size);
}

static void *close_it(void *arg)
{
    gs_share_close(side.share, *(CUdeviceptr *)arg);
    return NULL;
}

static void *end_context(void *arg)
{
    gs_share_context_gone(side.share, arg);
    return NULL;
}

/* One thread tries to start the share thread and gives what was for it back, another wakes it. */
Test(share_first, thread_that_could_not_be_started_is_not_woken_through_another_file)
{
    CUdeviceptr address = scene_open(ipc_handle);
    pthread_t closes, ends;
    int its = -1, wake;
    uint64_t written;

    refuses = waits = true;
    cr_assert_eq(__real_pthread_create(&closes, NULL, close_it, &address), 0);
    cr_assert(SIDE_WAIT(__atomic_load_n(&starts, __ATOMIC_SEQ_CST)));
    wake = side.share->loop.wake;
    __atomic_store_n(&looks_at, wake, __ATOMIC_SEQ_CST);
    cr_assert_eq(__real_pthread_create(&ends, NULL, end_context, SIDE_CONTEXT), 0);
    cr_assert(SIDE_WAIT(fcntl(wake, F_GETFD) < 0));
    while (its < wake)
        cr_assert_geq(its = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), 0);
    pthread_join(closes, NULL);
    pthread_join(ends, NULL);
    cr_assert_eq(read(its, &written, sizeof written), -1, "file %d was written to", its);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    refuses = waits = false;
}

/* It was given up for a moment, and another socket, which came with one, was put up meanwhile. */
Test(share_first, the_spare_descriptor_is_made_again_where_there_is_none)
{
    static struct gs_share bare;
    int fds = side_open_fds(), kept;

    bare.loop.woken = eventfd(0, EFD_CLOEXEC);
    bare.loop.woken_kept = gs_fd_keep(bare.loop.woken);
    bare.place.spare_fd = -1;
    bare.place.spare_given = true;
    bare.clients.lost_look_ns = GS_NEVER;
    gs_clients_tick(&bare, gs_now_ns());
    kept = bare.place.spare_fd;
    cr_assert_geq(kept, 0);
    cr_assert_not(bare.place.spare_given);
    bare.place.spare_given = true;
    gs_clients_tick(&bare, gs_now_ns());
    cr_assert_eq(bare.place.spare_fd, kept);
    close(kept);
    close(bare.loop.woken);
    cr_assert_eq(side_open_fds(), fds);
}
