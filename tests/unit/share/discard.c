/* Descriptors that lie unread in a connection which is hung up on are closed, and no others; and when
 * their closes count as held up. The program is linked with its own recvmsg, and with a clock that it
 * can put on. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bombs.h"
#include "core/share/discard.h"
#include "core/share/wire.h"
#include "side.h"

static int error;   /* what recvmsg fails with after a descriptor has come, once: atomic */
static int another; /* what has that descriptor's number then: atomic */
static int its_number = -1; /* atomic */

ssize_t __real_recvmsg(int socket, struct msghdr *header, int flags);
ssize_t __wrap_recvmsg(int socket, struct msghdr *header, int flags);

/* The descriptor that came with the message, or -1. */
static int number_in(struct msghdr *header)
{
    int number = -1;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c))
        if (c->cmsg_type == SCM_RIGHTS)
            memcpy(&number, CMSG_DATA(c), sizeof number);
    return number;
}

ssize_t __wrap_recvmsg(int socket, struct msghdr *header, int flags)
{
    static int came = -1; /* of the one thread that closes */
    ssize_t got;

    if (came >= 0) {
        dup2(__atomic_load_n(&another, __ATOMIC_SEQ_CST), came);
        __atomic_store_n(&its_number, came, __ATOMIC_SEQ_CST);
        came = -1;
        errno = __atomic_load_n(&error, __ATOMIC_SEQ_CST);
        return -1;
    }
    got = __real_recvmsg(socket, header, flags);
    if (got >= 0 && !(flags & MSG_PEEK) && __atomic_load_n(&its_number, __ATOMIC_SEQ_CST) < 0)
        came = number_in(header);
    return got;
}

/* The connection was reset, or a signal came, when the first of what lies there had been closed. */
static void assert_closes_its_own(int with)
{
    union gs_wire_message message;
    int pair[2], sent, number;

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_geq(another = open("/dev/null", O_RDWR | O_CLOEXEC), 0);
    cr_assert_geq(sent = open("/dev/zero", O_RDWR | O_CLOEXEC), 0);
    __atomic_store_n(&error, with, __ATOMIC_SEQ_CST);
    gs_wire_start(&message, GS_WIRE_REFUSE, 0);
    cr_assert_eq(gs_wire_send(pair[0], &message, sent), 0);
    gs_hang_up(pair[1]);
    cr_assert(SIDE_WAIT(fcntl(pair[1], F_GETFD) < 0), "what was hung up on stays open");
    number = __atomic_load_n(&its_number, __ATOMIC_SEQ_CST);
    cr_assert_geq(number, 0, "nothing was taken out");
    cr_assert_geq(fcntl(number, F_GETFD), 0, "another file was closed");
}

TestSuite(share_discard, .timeout = 120);

Test(share_discard, what_was_taken_out_before_a_reset_is_closed_once)
{
    assert_closes_its_own(ECONNRESET);
}

Test(share_discard, what_was_taken_out_before_a_signal_is_closed_once)
{
    assert_closes_its_own(EINTR);
}

/* ---- Closes that are held up ---------------------------------------------------------------- */

#define WAITING 64

static uint64_t ahead_ns; /* the clock: atomic */
static unsigned begun;    /* closes: atomic */

uint64_t __real_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void)
{
    return __real_gs_now_ns() + __atomic_load_n(&ahead_ns, __ATOMIC_SEQ_CST);
}

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    int result = __real_setsockopt(fd, level, name, value, size);

    if (level == SOL_SOCKET && name == SO_LINGER)
        __atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
    return result;
}

static void put_clock_on(uint64_t ns)
{
    __atomic_add_fetch(&ahead_ns, ns, __ATOMIC_SEQ_CST);
}

/* Both closers of this user are stuck, and more waits than may. */
static void hold_up(void)
{
    int fds[WAITING];

    for (int i = 0; i < WAITING; i++)
        fds[i] = bomb_new(BOMB_NESTED);
    __atomic_store_n(&begun, 0, __ATOMIC_SEQ_CST);
    gs_discards_crowded(geteuid());
    for (int i = 0; i < WAITING; i++)
        gs_discard(fds[i], geteuid());
    cr_assert(SIDE_WAIT(__atomic_load_n(&begun, __ATOMIC_SEQ_CST) == GS_DISCARDS_USER),
              "%u closers are at them", begun);
}

Test(share_discard, time_in_which_the_process_stood_still_holds_nothing_up)
{
    hold_up();
    for (int i = 0; i < 10; i++) {
        put_clock_on(UINT64_C(60) * 1000000000);
        cr_assert_not(gs_discards_crowded(geteuid()));
        cr_assert(gs_discards_go_on());
    }
    bombs_end(BOMB_NESTED);
}

Test(share_discard, time_in_which_it_looks_does)
{
    hold_up();
    for (int i = 0; i < 400; i++) { /* two seconds: twice what it takes */
        put_clock_on(UINT64_C(5) * 1000000);
        gs_discards_crowded(geteuid());
    }
    cr_assert(gs_discards_crowded(geteuid()));
    cr_assert_not(gs_discards_go_on());
    bombs_end(BOMB_NESTED);
    cr_assert(SIDE_WAIT(!gs_discards_crowded(geteuid())));
}
