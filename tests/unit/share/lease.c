/*
 * When a lease ends. The other process opens a block and then ends in every way there is; what
 * counts is from when on the block can be withdrawn.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/share/wire.h"
#include "other.h"
#include "side.h"

#define SETTLE_MS 300

static char dir[64];
static struct gs_share_options options;
static struct side side;
static struct side_chunk chunk;
static struct gs_offer *offer;
static unsigned char token[GS_TOKEN_SIZE];
static struct other other;
static unsigned long address;

static void setup(void)
{
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
    options.settle_ns = SETTLE_MS * 1000000ull;
    side_start(&side, &options);
    chunk = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(side_offer(&side, &chunk, 0, 512, &offer), GS_OK);
    gs_offer_token(offer, token);
    other_start(&other, dir, NULL);
    cr_assert_eq(other_open(&other, token, &address), GS_OK);
}

static void teardown(void)
{
    if (other.pid)
        other_kill(&other);
    side_stop(&side);
    side_chunk_free(&side, &chunk);
    cr_assert(side_broker_end(dir));
    side_dir_remove(dir);
}

TestSuite(share_lease, .init = setup, .fini = teardown, .timeout = 60);

static bool withdraw(void)
{
    return gs_share_withdraw(side.share, offer, 0, side_now(), true);
}

Test(share_lease, holds_while_its_holder_lives)
{
    cr_assert_eq(side_withdraw_ms(&side, offer, 300), -1);
}

Test(share_lease, of_a_killed_process_ends_and_says_so)
{
    unsigned before = side.leases_ended;

    other_kill(&other);
    cr_assert(SIDE_WAIT(__atomic_load_n(&side.leases_ended, __ATOMIC_SEQ_CST) > before, 2000));
    cr_assert(withdraw());
}

Test(share_lease, of_a_process_that_exits_without_closing_ends)
{
    int status;

    other_ask(&other, "exit");
    waitpid(other.pid, &status, 0);
    other.pid = 0;
    cr_assert_geq(side_withdraw_ms(&side, offer, 2000), 0);
}

Test(share_lease, stays_with_a_forked_child_and_rests_after_it)
{
    int child = atoi(other_ask(&other, "fork") + 3);
    long took;

    cr_assert_gt(child, 0);
    other_kill(&other);
    cr_assert_eq(side_withdraw_ms(&side, offer, 600), -1, "the child still has it");
    kill(child, SIGKILL);
    took = side_withdraw_ms(&side, offer, 5000);
    cr_assert_geq(took, SETTLE_MS - 5, "after %ld ms", took);
    cr_assert_leq(took, SETTLE_MS + 500);
}

Test(share_lease, stays_when_only_a_forked_child_ends)
{
    int child = atoi(other_ask(&other, "fork") + 3);

    kill(child, SIGKILL);
    cr_assert_eq(side_withdraw_ms(&side, offer, 600), -1);
    other_kill(&other);
    cr_assert_geq(side_withdraw_ms(&side, offer, 2000), 0);
}

Test(share_lease, of_a_process_that_becomes_another_program_ends_after_a_second)
{
    long took;

    cr_assert_str_eq(other_ask(&other, "exec"), "ok");
    took = side_withdraw_ms(&side, offer, 5000);
    cr_assert_geq(took, 900 + SETTLE_MS, "after %ld ms", took);
    cr_assert_leq(took, 1500 + SETTLE_MS);
    cr_assert_eq(kill(other.pid, 0), 0, "it lives on");
}

Test(share_lease, of_a_stopped_process_stays)
{
    kill(other.pid, SIGSTOP);
    cr_assert_eq(side_withdraw_ms(&side, offer, 500), -1);
    kill(other.pid, SIGCONT);
}

Test(share_lease, one_of_two_holders_is_enough)
{
    struct other second;
    unsigned long there;

    other_start(&second, dir, NULL);
    cr_assert_eq(other_open(&second, token, &there), GS_OK);
    other_kill(&other);
    cr_assert_eq(side_withdraw_ms(&side, offer, 500), -1);
    other_kill(&second);
    cr_assert_geq(side_withdraw_ms(&side, offer, 2000), 0);
}

Test(share_lease, outlives_many_silent_seconds_of_its_exporter)
{
    /* The connection is not idle while something is held over it, whatever the time-outs. */
    other_ask(&other, "hold 1");
    other_ask(&other, "close %lx", address);
    cr_assert_eq(side_withdraw_ms(&side, offer, 2500), -1);
    other_ask(&other, "hold 0");
    cr_assert_geq(side_withdraw_ms(&side, offer, 2000), 0);
}

#ifdef OLD_KERNEL
/* The same leases on a kernel that tells nothing about a socket's other end: what the opener sent
 * of itself has to do. */
int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size);

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    if (level == SOL_SOCKET && name == 77) { /* SO_PEERPIDFD */
        errno = ENOPROTOOPT;
        return -1;
    }
    return __real_getsockopt(fd, level, name, value, size);
}
#endif

/* ---- An opener by hand: what no opener of ours does ----------------------------------------- */

static int connect_by_hand(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(to.sun_path, sizeof to.sun_path, "%s/", dir);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        sprintf(to.sun_path + strlen(to.sun_path), "%02x", token[8 + i]);
    return connect(fd, (struct sockaddr *)&to, sizeof to) == 0 ? fd : -1;
}

static int own_pidfd(void)
{
    return (int)syscall(SYS_pidfd_open, getpid(), 0);
}

static int open_by_hand(int fd, int pidfd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, token + 8, GS_INSTANCE_SIZE);
    gs_wire_send(fd, &message, pidfd);
    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.token, token, GS_TOKEN_SIZE);
    message.open.want_fd = 0;
    gs_wire_send(fd, &message, -1);
    return recv(fd, &message, sizeof message, 0) > 0 && message.head.type == GS_WIRE_GRANT;
}

Test(share_lease, of_a_process_that_only_closed_its_socket_ends_after_a_second)
{
    int fd = connect_by_hand();
    long took;

    other_kill(&other);
    cr_assert(open_by_hand(fd, own_pidfd()));
    close(fd);
    took = side_withdraw_ms(&side, offer, 5000);
    cr_assert_geq(took, 900 + SETTLE_MS, "after %ld ms", took);
}

#ifdef OLD_KERNEL
Test(share_lease, without_any_pidfd_it_rests_after_the_hang_up)
{
    long took;
    int fd = connect_by_hand();

    other_kill(&other);
    cr_assert(open_by_hand(fd, -1));
    close(fd);
    took = side_withdraw_ms(&side, offer, 5000);
    cr_assert(took >= SETTLE_MS - 5 && took < 900, "after %ld ms", took);
}

Test(share_lease, a_descriptor_that_is_no_pidfd_is_not_believed)
{
    int fd = connect_by_hand(), pipes[2];
    long took;

    cr_assert_eq(pipe2(pipes, O_CLOEXEC), 0);
    other_kill(&other);
    cr_assert(open_by_hand(fd, pipes[0]));
    close(pipes[1]); /* readable, as a pidfd after the exit */
    close(fd);
    took = side_withdraw_ms(&side, offer, 5000);
    cr_assert(took >= SETTLE_MS - 5 && took < 900, "after %ld ms", took);
    close(pipes[0]);
}
#endif

/* The kernel tells about the exit only once it is over, the socket hangs up before: as a process
 * whose GPU work goes on meanwhile (measured: 60 ms) the child hangs up and stays a while. */
Test(share_lease, hung_up_and_still_exiting_is_not_over)
{
    uint64_t hung_up, exits, over;
    int told[2];
    pid_t child;

    cr_assert_eq(pipe(told), 0);
    child = fork();
    if (child == 0) {
        int fd = connect_by_hand();

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!open_by_hand(fd, own_pidfd()))
            _exit(1);
        close(fd);
        hung_up = side_now();
        if (write(told[1], &hung_up, sizeof hung_up) != (ssize_t)sizeof hung_up)
            _exit(1);
        usleep(600000);
        exits = side_now();
        _exit(write(told[1], &exits, sizeof exits) != (ssize_t)sizeof exits);
    }
    cr_assert_eq(read(told[0], &hung_up, sizeof hung_up), (ssize_t)sizeof hung_up);
    other_kill(&other);
    cr_assert_geq(side_withdraw_ms(&side, offer, 10000), 0, "the exit was not seen");
    over = side_now();
    cr_assert_eq(read(told[0], &exits, sizeof exits), (ssize_t)sizeof exits);
    cr_assert_geq(over, exits, "it was over with its holder alive");
    waitpid(child, NULL, 0);
    close(told[0]);
    close(told[1]);
}
