/* What other processes sent is closed by a thread that nobody waits for, as long as not too much
 * waits for it. The program is linked with its own setsockopt, by which closes are counted. */
#include <criterion/criterion.h>

#include "bombs.h"
#include "core/share/discard.h"
#include "core/share/wire.h"
#include "side.h"
#include "tests/system.h"

#define WAITING 64

static unsigned begun; /* closes: atomic */

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    int result = __real_setsockopt(fd, level, name, value, size);

    if (level == SOL_SOCKET && name == SO_LINGER)
        __atomic_add_fetch(&begun, 1, __ATOMIC_SEQ_CST);
    return result;
}

TestSuite(share_discard, .timeout = 120);

/* The closer is at this one for as long as the bombs last. */
static void hold_up(void)
{
    int bomb = bomb_new(BOMB_NESTED);

    __atomic_store_n(&begun, 0, __ATOMIC_SEQ_CST);
    gs_discard(bomb);
    cr_assert(SIDE_WAIT(__atomic_load_n(&begun, __ATOMIC_SEQ_CST) == 1));
}

static int file_new(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

    cr_assert_geq(fd, 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

Test(share_discard, who_hands_something_over_does_not_wait_and_all_of_it_is_closed)
{
    int fds[WAITING];

    hold_up();
    for (int i = 0; i < WAITING; i++) {
        fds[i] = file_new();
        gs_discard(fds[i]);
    }
    for (int i = 0; i < WAITING; i++)
        cr_assert(is_open(fds[i]), "it does not wait for its turn");
    bombs_end();
    for (int i = 0; i < WAITING; i++)
        cr_assert(SIDE_WAIT(!is_open(fds[i])));
}

Test(share_discard, a_forked_child_closes_what_it_has_by_itself)
{
    int status;
    pid_t child;

    hold_up();
    child = fork();
    if (child == 0) {
        int fd = file_new();

        gs_discard(fd);
        _exit(is_open(fd));
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    bombs_end();
}

/* Else whoever sends such fills the table of descriptors. */
Test(share_discard, beyond_a_quarter_of_the_descriptors_who_has_more_closes_it)
{
    struct rlimit before, few;
    int fd;

    hold_up();
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 4 * WAITING;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 1; i < WAITING; i++)
        gs_discard(file_new());
    fd = file_new();
    gs_discard(fd);
    cr_assert_not(is_open(fd));
    bombs_end();
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* What lies in a connection is closed with it, by the closer; one with none is closed at once. */
Test(share_discard, a_connection_with_descriptors_in_it_waits_and_one_without_does_not)
{
    union gs_wire_message message;
    int with[2], without[2], sent = file_new();

    hold_up();
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, with), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, without), 0);
    gs_wire_start(&message, GS_WIRE_REFUSE, 0);
    cr_assert_eq(gs_wire_send(with[0], &message, sent), 0);
    cr_assert_eq(gs_wire_send(without[0], &message, -1), 0);
    gs_hang_up(with[1]);
    gs_hang_up(without[1]);
    cr_assert(is_open(with[1]));
    cr_assert_not(is_open(without[1]));
    bombs_end();
    cr_assert(SIDE_WAIT(!is_open(with[1])));
}
