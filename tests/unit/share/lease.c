/*
 * When a lease ends. The other process opens a block and then ends in every way there is; what
 * counts is from when on the block can be withdrawn.
 */
#include <criterion/criterion.h>
#include <sys/eventfd.h>

#include "core/share/exporter.h"
#include "by_hand.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define SETTLE_MS 300
#define LATE_MS \
    (1500 + SETTLE_MS) /* nobody waits for a client after a second (core/share/clients.c) */

static struct gs_export *export;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
static unsigned long address;

static void stop_other(void)
{
    if (other.pid)
        other_kill(&other);
}

/* The block is exported, and the other process has it open. */
static void begin(void)
{
    stop_other();
    export = scene_export(0, 512, ipc_handle);
    other_start(&other, dir, NULL);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
}

static void setup(void)
{
    scene_new();
    options.settle_ns = SETTLE_MS * MS;
    options.timeout_ns = 2000 * MS;
    scene_chunk();
    begin();
}

static void teardown(void)
{
    stop_other();
    scene_end();
}

TestSuite(share_lease, .init = setup, .fini = teardown, .timeout = 120);

/* As a program does that closes what it does not know. */
static unsigned close_connections(void)
{
    unsigned count = 0;

    for (int fd = 3; fd < 256; fd++) {
        int type = 0, listens = 1;

        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){sizeof type});
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &(socklen_t){sizeof listens});
        count += type == SOCK_SEQPACKET && !listens && close(fd) == 0;
    }
    return count;
}

/* The program that shares closes the connection, and does nothing with the library from then on.
 * What the thread has to do by itself, a while after its start, is done by then. */
Test(share_lease, of_a_killed_process_ends_though_its_connection_was_closed_here)
{
    unsigned before = side.leases_ended;

    gs_share_freed(side.share, export, side_now());
    usleep(2500000);
    scene_export(1024, 512, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_gt(close_connections(), 0);
    other_kill(&other);
    cr_assert(SIDE_WAIT(__atomic_load_n(&side.leases_ended, __ATOMIC_SEQ_CST) > before));
    cr_assert(side_withdraws(&side, export));
}

/* Nobody tells its thread, but that the exporter which it has this from comes to it. */
Test(share_lease, who_has_closed_its_connection_resumes_what_it_has)
{
    other_ask(&other, "close %lx", address);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert_str_eq(other_ask(&other, "serve 1"), "ok"); /* as of the whole library's importers */
    usleep(1500000); /* its thread has looked at what there was */
    cr_assert_str_eq(other_ask(&other, "lose"), "ok 1");
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "connections"), "ok 1")));
    cr_assert(side_stays_held(&side, export, 100));
    other_ask(&other, "close %lx", address);
    cr_assert(side_gets_back(&side, export));
}

/* The other's program closes its connection, which a child that it forked has still, and it resumes
 * over another what it has open. That there is a child is seen by the connection that was lost, and
 * by nothing else. The lease rests after its holder's end, and no time-out is what ends it: there
 * is none. */
Test(share_lease, that_was_resumed_rests_where_a_child_has_the_connection_before)
{
    unsigned char another[GS_IPC_HANDLE_SIZE];
    uint64_t ended, took;
    int child;

    stop_other();
    scene_stop();
    options.timeout_ns = SIDE_HOUR;
    scene_chunk();
    begin();
    other_ask(&other, "close %lx", address); /* from here on its thread looks after them */
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    child = atoi(other_ask(&other, "fork unheard") + 3);
    cr_assert_gt(child, 0);
    cr_assert_str_eq(other_ask(&other, "lose"), "ok 1");
    /* Nobody sees that; its thread looks as soon as it does anything. */
    other_export(&other, 0, 512, 1, another);
    cr_assert(SIDE_WAIT(!strcmp(other_ask(&other, "connections"), "ok 1")));
    /* What is answered over the new one is behind what it said first. */
    scene_export(512, 512, another);
    cr_assert_eq(other_open(&other, another, &address), GS_OK);
    ended = side_now();
    other_kill(&other);
    cr_assert(side_gets_back(&side, export));
    took = side_now() - ended;
    cr_assert_geq(took, SETTLE_MS * MS, "after %llu ms", (unsigned long long)(took / MS));
    cr_assert_lt(took, 10 * SETTLE_MS * MS, "after %llu ms", (unsigned long long)(took / MS));
    kill(child, SIGKILL);
}

/* ---- An importer by hand: what no importer of ours does -------------------------------------- */

static int own_pidfd(void)
{
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

static int open_by_hand(int fd, int pidfd)
{
    union gs_wire_message message;

    message = message_hello(ipc_handle + 8);
    if (gs_wire_send(fd, &message, pidfd) == -ETOOMANYREFS) /* it is not wanted */
        say(fd, message);
    say(fd, message_open(ipc_handle, 1, GS_OPEN_HAS_IT));
    return recv(fd, &message, sizeof message, 0) > 0 && message.head.type == GS_WIRE_GRANT;
}

/* It says that it is the process that has the block open: who it is, the kernel tells. */
Test(share_lease, is_not_resumed_by_another_process)
{
    unsigned char others[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;
    int fd;

    other_export(&other, 0, 512, 5, others);
    fd = side_dial(dir, ipc_handle);
    message = message_hello(ipc_handle + 8);
    memcpy(message.hello.from, others + 8, GS_INSTANCE_SIZE);
    message.hello.holds = 1;
    cr_assert_eq(say(fd, message), 0);
    say_of_block(fd, GS_WIRE_RESUME, 1, export->key.id);
    cr_assert_eq(side_open_by_hand(fd, export), GS_WIRE_GRANT);
    cr_assert_eq(export->references, 2, "%llu, and not the other's and this open's",
                 (unsigned long long)export->references);
    close(fd);
}

/* A process that has opened the block by hand, with that descriptor of itself, and hung up. */
static pid_t hung_up_with(int own_fd(void))
{
    pid_t child;
    char done;
    int told[2];

    cr_assert_eq(pipe2(told, O_CLOEXEC), 0);
    child = fork_child();
    if (child == 0) {
        int fd = side_dial(dir, ipc_handle);

        if (!open_by_hand(fd, own_fd()))
            _exit(1);
        close(fd);
        if (write(told[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(told[1]);
    cr_assert_eq(read(told[0], &done, 1), 1);
    close(told[0]);
    return child;
}

/* Its exit alone ends it, whatever it has sent. */
static void assert_stays_until_its_exit(int own_fd(void))
{
    pid_t child = hung_up_with(own_fd);

    stop_other();
    cr_assert(side_stays_held(&side, export, LATE_MS));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert(side_gets_back(&side, export));
}

Test(share_lease, of_a_process_that_only_closed_its_socket_stays_until_its_exit)
{
    assert_stays_until_its_exit(own_pidfd);
}

/* It does not exit before it is let to, as one whose teardown takes long: it is a zombie then. */
Test(share_lease, of_a_process_that_nobody_has_waited_for_is_over)
{
    pid_t child = hung_up_with(own_pidfd);

    stop_other();
    kill(child, SIGKILL);
    cr_assert(side_gets_back(&side, export));
    waitpid(child, NULL, 0);
}

/* The program may wait for it still. */
Test(share_lease, of_a_child_that_has_exited_is_looked_at_and_its_status_left_to_the_program)
{
    pid_t child = hung_up_with(own_pidfd);
    int pidfd = (int)syscall(SYS_pidfd_open, child, 0), status = 0;

    cr_assert_geq(pidfd, 0);
    kill(child, SIGKILL);
    cr_assert(SIDE_WAIT(gs_alive_exited(pidfd)));
    cr_assert(gs_alive_is_pidfd(pidfd));
    cr_assert_eq(waitpid(child, &status, WNOHANG), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cr_assert(gs_alive_is_pidfd(pidfd), "of one that was waited for, too");
    close(pidfd);
}

static void *wait_for_ever(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static bool has_memory(pid_t pid)
{
    char path[32], byte;
    bool has;
    int fd;

    snprintf(path, sizeof path, "/proc/%d/auxv", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    has = fd >= 0 && read(fd, &byte, 1) == 1;
    close(fd);
    return has;
}

/* In /proc it looks as a process that is going down, whose GPU work runs on: it has hung up, there
 * is no memory of it, and its exit is not reported. */
Test(share_lease, of_a_process_whose_memory_cannot_be_seen_any_more_stays_until_its_exit)
{
    pid_t child;
    char done;
    int told[2];

    cr_assert_eq(pipe2(told, O_CLOEXEC), 0);
    child = fork_child();
    if (child == 0) {
        int fd = connect_by_name(dir, ipc_handle, 0, 0);
        pthread_t thread;

        open_again(fd, ipc_handle, 1);
        close(fd);
        if (pthread_create(&thread, NULL, wait_for_ever, NULL) != 0 || write(told[1], "", 1) != 1)
            _exit(1);
        syscall(SYS_exit, 0); /* of this thread alone */
    }
    cr_assert_eq(read(told[0], &done, 1), 1);
    stop_other();
    cr_assert(SIDE_WAIT(!has_memory(child)));
    cr_assert(side_stays_held(&side, export, LATE_MS));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert(side_gets_back(&side, export));
    close(told[0]);
    close(told[1]);
}

#ifndef OLD_KERNEL
/* Where a pidfd was is something else: how many. */
static unsigned replace_pidfds(int by)
{
    char path[32], link[64];
    unsigned count = 0;

    for (int fd = 0; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        memset(link, 0, sizeof link);
        if (readlink(path, link, sizeof link - 1) > 0 && strstr(link, "pidfd"))
            count += dup2(by, fd) == fd;
    }
    return count;
}

/* The process of the exporter's first client, as it tells who asks; and the descriptor with
 * that. */
static pid_t first_client(int asks, int *ret_got)
{
    union gs_wire_message message;

    cr_assert_eq(say(asks, MESSAGE(QUERY, 1)), 0);
    cr_assert(SIDE_WAIT(gs_wire_receive(asks, &message, ret_got) == 0));
    return (pid_t)message.report.client_pid;
}

static bool is_first_client(int asks)
{
    int got;
    pid_t first = first_client(asks, &got);

    if (got >= 0)
        close(got);
    return first == getpid();
}

/* A program may close what it does not know, and have a file of the same number then: that is told
 * to nobody, and says nothing of a process that lives. */
Test(share_lease, stays_where_the_program_has_closed_the_pidfd)
{
    int fd = connect_by_name(dir, ipc_handle, 0, 0), asks, got, ends[2];

    stop_other();
    open_again(fd, ipc_handle, 1);
    asks = side_dial(dir, ipc_handle);
    cr_assert(SIDE_WAIT(is_first_client(asks)), "the one before it stays");
    close(asks);
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    close(ends[1]); /* readable, as a pidfd after the exit */
    cr_assert_gt(replace_pidfds(ends[0]), 0);
    asks = side_dial(dir, ipc_handle);
    cr_assert_eq(first_client(asks, &got), getpid());
    cr_assert_eq(got, -1, "a file of the program's was given away");
    close(asks);
    close(fd);
    cr_assert(side_stays_held(&side, export, LATE_MS));
}

/* Only its pidfd tells there. */
Test(share_lease, of_a_process_of_another_pid_namespace_stays_until_its_exit)
{
    unsigned char there[GS_IPC_HANDLE_SIZE];
    struct other exporter;
    pid_t child;

    if (!other_start_apart(&exporter, dir, NULL)) {
        teardown();
        cr_skip("no PID namespace can be made here");
    }
    other_export(&exporter, 0, 512, 3, there);
    memcpy(ipc_handle, there, sizeof ipc_handle);
    child = hung_up_with(own_pidfd);
    usleep(LATE_MS * 1000);
    cr_assert_not(other_withdraws(&exporter));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    cr_assert(SIDE_WAIT(other_withdraws(&exporter)));
    other_kill(&exporter);
}
#endif

#ifdef OLD_KERNEL
static int no_fd(void)
{
    return -1;
}

Test(share_lease, without_any_pidfd_stays_until_the_process_table_shows_the_exit)
{
    assert_stays_until_its_exit(no_fd);
}

/* Readable, as a pidfd after the exit. */
static int ended_pipe(void)
{
    int pipes[2];

    if (pipe2(pipes, O_CLOEXEC) != 0)
        _exit(1);
    close(pipes[1]);
    return pipes[0];
}

Test(share_lease, a_descriptor_that_is_no_pidfd_ends_nothing)
{
    assert_stays_until_its_exit(ended_pipe);
}

static int silent_fd(void)
{
    return eventfd(0, EFD_CLOEXEC); /* as a pidfd of one that never ends */
}

Test(share_lease, a_descriptor_that_is_no_pidfd_keeps_nothing)
{
    assert_stays_until_its_exit(silent_fd);
}

/* Until Linux 6.15 the kernel has no pidfd of one that was gone when it was taken in, and says
 * that: what it had asked for before is nobody's. (It is seen here as this process, which goes
 * on.) */
Test(share_lease, of_a_process_that_was_gone_when_it_was_taken_in_is_over)
{
    extern int old_kernel_error;
    const int errors[] = {ESRCH, EINVAL};

    for (int i = 0; i < 2; i++) {
        int fd;

        export = scene_export(1024, 512, ipc_handle);
        __atomic_store_n(&old_kernel_error, errors[i], __ATOMIC_SEQ_CST);
        fd = side_connect_by_hand(dir, ipc_handle);
        cr_assert_eq(side_open_by_hand(fd, export), GS_WIRE_GRANT);
        close(fd);
        cr_assert(side_gets_back(&side, export));
        __atomic_store_n(&old_kernel_error, ENOPROTOOPT, __ATOMIC_SEQ_CST);
    }
}
#endif

/* A process that opens the block says that it has forked, and exits a while after it has hung up:
 * from its exit on the block rests. Where it is not heard, what it says before is no message, and
 * nothing is heard of it from then on. */
static void assert_rests_after_its_exit(bool heard)
{
    uint64_t exits = 0, over;
    int told[2];
    pid_t child;

    cr_assert_eq(pipe(told), 0);
    child = fork_child();
    if (child == 0) {
        int fd = side_dial(dir, ipc_handle);
        char opened = open_by_hand(fd, own_pidfd()) ? 'y' : 'n';

        if (!heard && send(fd, "?", 1, MSG_NOSIGNAL) != 1)
            _exit(1);
        if ((say(fd, MESSAGE(FORKED, 0)) != 0 && heard) || write(told[1], &opened, 1) != 1)
            _exit(1);
        close(fd);
        usleep(100000);
        exits = side_now();
        _exit(write(told[1], &exits, sizeof exits) != (ssize_t)sizeof exits);
    }
    close(told[1]);
    cr_assert_eq(read(told[0], &exits, 1), 1);
    cr_assert_eq((char)exits, 'y');
    other_kill(&other);
    cr_assert(side_gets_back(&side, export));
    over = side_now();
    cr_assert_eq(read(told[0], &exits, sizeof exits), (ssize_t)sizeof exits);
    cr_assert_geq(over - exits, SETTLE_MS * MS);
    waitpid(child, NULL, 0);
    close(told[0]);
}

/* Its exit is no proof where it has forked: the child, killed with it, may let go of the GPU
 * last. */
Test(share_lease, of_a_process_that_has_forked_rests_after_its_exit)
{
    assert_rests_after_its_exit(true);
}

Test(share_lease, of_a_process_that_was_not_listened_to_any_more_may_have_forked_and_rests)
{
    assert_rests_after_its_exit(false);
}
