/* When what a process left is served and dropped: ends of processes whose connection others hold,
 * and of those that the kernel tells no pidfd of. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "by_hand.h"
#include "tests/children.h"
#include "tests/system.h"

/* A process leaves a block, and ends. Its connection is the test's then. */
static int connection_left_behind(const unsigned char *ipc_handle, int memory)
{
    union gs_wire_message message;
    int pair[2], fd = -1;
    pid_t sharer, test = getpid();

    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    sharer = fork_child();
    if (sharer == 0) {
        fd = greet_broker(ipc_handle + 8, (int)syscall(SYS_pidfd_open, getpid(), 0));
        leave_by_hand_in(fd, memory);
        share_by_hand(fd, ipc_handle, memory);
        message = MESSAGE(BYE, 0);
        gs_wire_send(pair[1], &message, fd);
        stay_until_end_of(test);
    }
    cr_assert(SIDE_WAIT(gs_wire_receive(pair[0], &message, &fd) == 0));
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    end_process(sharer);
    close(pair[0]);
    close(pair[1]);
    return fd;
}

/* Whoever has that one takes it back, and then breaks the protocol. */
Test(share_broker, what_it_serves_is_not_taken_back_over_a_connection_that_was_left_behind)
{
    pid_t broker = broker_by_hand("GPUSHIM_LOG", "debug");
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], more[GS_IPC_HANDLE_SIZE];
    int memory = leave_memory(), fd, importer;

    ipc_handle_by_hand(9, 1, 512, ipc_handle);
    ipc_handle_by_hand(9, 2, 512, more);
    fd = connection_left_behind(ipc_handle, memory);
    importer = greet_broker(ipc_handle + 8, -1);
    cr_assert(SIDE_WAIT(ask_open(importer, ipc_handle) == 0));
    ring_by_hand(fd, memory, 1);
    for (int i = 0; i < 3; i++) /* behind what it was sent before, too */
        cr_assert(is_asked_by_hand(fd));
    cr_assert_eq(ask_open(importer, ipc_handle), 0, "it was taken back from under who holds it");
    halt(broker);
    share_by_hand(fd, more, memory);
    share_by_hand(fd, more, memory); /* twice: hung up on */
    kill(broker, SIGCONT);
    while (is_asked_by_hand(fd))
        continue;
    cr_assert_eq(ask_open(importer, ipc_handle), 0, "it was dropped from under who holds it");
    cr_assert_eq(ask_open(importer, more), GS_REFUSED_HANDLE);
    close(fd);
    close(importer);
    close(memory);
    end_process(broker);
}

/* ---- A process of which the kernel tells no pidfd, and that sends none ----------------------- */

/* A process that left a block and has closed its connection since, and stays. */
static pid_t leave_unseen(const unsigned char *ipc_handle)
{
    int go[2];
    pid_t sharer;

    cr_assert_eq(pipe2(go, O_CLOEXEC), 0);
    sharer = fork_child();
    if (sharer == 0) {
        int fd = dial_broker(ipc_handle + 8, -1);

        share_by_hand(fd, ipc_handle, open("/dev/null", O_RDONLY));
        close(go[1]);
        if (read(go[0], go, 1) == 0)
            close(fd);
        for (;;)
            pause();
    }
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    close(go[0]);
    close(go[1]);
    return sharer;
}

/* Also where nobody has waited for it. */
Test(share_broker, serves_what_one_left_that_it_has_no_pidfd_of_when_it_has_ended)
{
    pid_t broker = program_by_hand(OLD_BROKER_PROGRAM, "GPUSHIM_LOG", "debug"), sharer;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t left;
    int fd;

    ipc_handle_by_hand(9, 1, 512, ipc_handle);
    sharer = leave_unseen(ipc_handle);
    left = side_now();
    fd = greet_broker(ipc_handle + 8, -1);
    while (side_within(left, 2500 * MS)) {
        cr_assert_eq(ask_open(fd, ipc_handle), GS_REFUSED_EARLY,
                     "served while it may use the memory for something else, or dropped");
        usleep(50000);
    }
    kill(sharer, SIGKILL);
    cr_assert(SIDE_WAIT(ask_open(fd, ipc_handle) == 0));
    waitpid(sharer, NULL, 0);
    close(fd);
    end_process(broker);
}
