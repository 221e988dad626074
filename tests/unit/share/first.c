/* The first use of another process's memory: it takes the share thread, and what that takes can be
 * had or not; and the socket for those who ask this process, which comes later. The program is
 * linked with its own pthread_create. */
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
static bool refuses; /* pthread_create does; */
static bool lingers; /* not before there is an answer */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *arg)
{
    if (!refuses)
        return __real_pthread_create(thread, attributes, run, arg);
    if (lingers)
        poll(&(struct pollfd){.fd = side.share->importer.remotes->conn.fd, .events = POLLIN}, 1,
             -1);
    errno = ENOMEM; /* what it takes for a stack may be refused */
    return EAGAIN;
}

static void setup(void)
{
    scene_new();
    scene_side();
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 7, ipc_handle);
}

TestSuite(share_first, .init = setup, .fini = scene_end, .timeout = 120);

Test(share_first, open_takes_a_thread)
{
    CUdeviceptr address;
    int fds = side_open_fds();

    refuses = true;
    errno = 4711;
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_UNREACHABLE);
    cr_assert_eq(errno, 4711);
    cr_assert_not_null(strstr(side_logged(), "cannot be opened: this process can have no thread"));
    cr_assert_eq(side_open_fds(), fds);
    refuses = false;
    cr_assert_eq(gs_share_close(side.share, scene_open(ipc_handle)), GS_OK);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

/* It is granted before that shows. */
Test(share_first, open_without_a_thread_leaves_no_hold)
{
    CUdeviceptr address;

    refuses = lingers = true;
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_UNREACHABLE);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

/* ---- The socket ------------------------------------------------------------------------------ */

Test(share_first, socket_is_put_up_by_the_share_thread)
{
    int threads = side_threads();

    gs_share_serve_soon(side.share);
    cr_assert_eq(side_threads(), threads, "nothing is shared");
    cr_assert_eq(side_dir_put_up(dir), 1);
    scene_open(ipc_handle);
    cr_assert(SIDE_WAIT(side_dir_put_up(dir) == 2));
}

Test(share_first, socket_comes_where_the_share_thread_sleeps)
{
    cr_assert_eq(gs_thread_start(side.share), GS_OK);
    usleep(100000); /* what comes of that */
    gs_share_serve_soon(side.share);
    cr_assert(SIDE_WAIT(side_dir_put_up(dir) == 2));
}

static bool has_tried(void)
{
    return __atomic_load_n(&side.share->place.serve_ns, __ATOMIC_ACQUIRE) == GS_NEVER;
}

Test(share_first, socket_that_cannot_be_had_comes_with_the_next_open)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, side.share->name);
    cr_assert_eq(mkdir(path, 0700), 0);
    gs_share_serve_soon(side.share);
    scene_open(ipc_handle);
    cr_assert(SIDE_WAIT(has_tried()));
    cr_assert_eq(rmdir(path), 0);
    cr_assert_eq(side_dir_put_up(dir), 1);
    gs_share_serve_soon(side.share);
    cr_assert(SIDE_WAIT(side_dir_put_up(dir) == 2));
}

/* Others may have it at once. */
Test(share_first, handle_is_given_out_when_its_socket_is_there)
{
    struct gs_export *export;

    chunk = side_chunk_new(&side, 2 * MIB);
    gs_share_serve_soon(side.share);
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    cr_assert_eq(side_dir_put_up(dir), 2);
    cr_assert(side_gets_back(&side, export));
}

Test(share_first, process_at_its_end_puts_none_up)
{
    gs_share_at_exit(side.share);
    cr_assert_eq(gs_share_serve(side.share), GS_NOT_OFFERED);
    cr_assert_eq(side_dir_count(dir), 1);
}

/* Whoever is at it may have been killed. */
Test(share_first, exit_does_not_wait_for_ever_for_a_socket)
{
    __atomic_store_n(&side.share->socket_start, GS_STARTING, __ATOMIC_SEQ_CST);
    gs_share_at_exit(side.share);
    __atomic_store_n(&side.share->socket_start, GS_NOT_STARTED, __ATOMIC_SEQ_CST);
}

/* ---- Opens, and what comes of them ----------------------------------------------------------- */

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
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

static bool holds; /* a registration, what was opened */

static bool is_held(void *arg, uint64_t base, size_t size, bool going)
{
    (void)arg, (void)base, (void)size;
    return holds && !going;
}

Test(share_first, block_that_was_registered_goes_back_when_that_ends)
{
    CUdeviceptr address = scene_open(ipc_handle);

    side.share->options.idle_ns = 0;
    side.share->events.in_use = is_held;
    holds = true;
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_not(other_withdraws(&other));
    holds = false;
    gs_share_look_again(side.share);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

static bool is_connected(void)
{
    bool connected;

    gs_lock_take(&side.share->importer.lock);
    connected = gs_fd_is_there(&side.share->importer.remotes->conn.kept_fd);
    gs_lock_release(&side.share->importer.lock);
    return connected;
}

/* One that the program has closed, as soon as the library does anything. */
Test(share_first, connection_that_was_closed_is_made_anew)
{
    scene_open(ipc_handle);
    usleep(100000); /* what comes of the open */
    cr_assert_eq(close(side.share->importer.remotes->conn.fd), 0);
    cr_assert_not(is_connected());
    gs_share_look_again(side.share);
    cr_assert(SIDE_WAIT(is_connected()));
}

/* The driver may have ended before the program's last exit handlers run. */
Test(share_first, close_at_the_process_end_asks_the_driver_nothing)
{
    CUdeviceptr address = scene_open(ipc_handle);
    int alive = memdriver_alive();

    gs_share_at_exit(side.share);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert_eq(memdriver_alive(), alive);
}

int __real_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event);

static bool is_ending; /* the process, as its socket is put up */
static bool is_full;   /* what the kernel watches for a user (fs.epoll.max_user_watches) */

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

int __wrap_epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    if (is_ending && op == EPOLL_CTL_ADD && event->data.u64 >> 56 == GS_WATCH_LISTENER)
        __atomic_store_n(&side.share->ending, true, __ATOMIC_SEQ_CST);
    if (is_full && op == EPOLL_CTL_ADD && has_no_room_for(event->data.u64)) {
        if (is_closing)
            swap(fd);
        errno = ENOSPC;
        return -1;
    }
    return __real_epoll_ctl(epoll, op, fd, event);
}

Test(share_first, a_socket_that_cannot_be_watched_is_not_closed_for_the_programs_file)
{
    struct gs_export *export;
    char byte;

    chunk = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(pipe2(its_pipe, O_CLOEXEC), 0);
    is_full = is_closing = true;
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_NOT_OFFERED);
    is_full = is_closing = false;
    close(its_pipe[1]); /* the other number of it is left */
    cr_assert_eq(fcntl(its_pipe[0], F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(read(its_pipe[0], &byte, 1), -1, "it was closed");
    cr_assert_eq(errno, EAGAIN);
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    cr_assert(side_gets_back(&side, export));
}

Test(share_first, socket_that_an_exit_did_not_wait_for_is_taken_down)
{
    is_ending = true;
    cr_assert_eq(gs_share_serve(side.share), GS_OK);
    cr_assert_eq(side_dir_count(dir), 1);
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
