/* Whose a broker is: whom it serves, and in whose name nobody else shares. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "tests/children.h"
#include "tests/system.h"

Test(share_broker, nobody_shares_in_the_name_of_another)
{
    unsigned char real[GS_IPC_HANDLE_SIZE], next[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    int fd;

    export_and_leave(0, real);
    fd = dial_broker(real + 8, -1);
    cr_assert_eq(answer_to_open(fd), GS_REFUSED_MESSAGE);
    cr_assert_eq(side_broker_published(dir), 1);
    export_and_leave(1, next);
    other_kill(&other);
    cr_assert_eq(open_it(next, &address), GS_OK);
    cr_assert_eq(*(char *)address, 71);
    close(fd);
}

static void need_two_users(void)
{
    if (geteuid() != 0)
        cr_skip_test("only root can be two users");
    mkdir(dir, 0755);
    cr_assert_eq(chmod(dir, 0755), 0);
}

/* Whoever started the broker let another user in; who left the block with it did not. */
Test(share_broker, serves_those_whom_the_process_that_shared_named_and_nobody_else)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct other sharer, third;
    unsigned long address;
    pid_t broker;

    need_two_users();
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    other_start(&sharer, dir, "keep=60000");
    other_export(&sharer, 0, 512, 7, ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&sharer);
    other_start2(&third, dir, "uid=65534", "trust=0");
    cr_assert_neq(other_open(&third, ipc_handle, &address), GS_OK);
    cr_assert_eq(other_stop(&third), 0);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);

    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "");
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_export(&sharer, 0, 512, 7, ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&sharer);
    other_start2(&third, dir, "uid=65534", "trust=0");
    cr_assert_eq(other_open(&third, ipc_handle, &address), GS_OK);
    cr_assert_str_eq(other_ask(&third, "read %lx", address), "ok 7");
    cr_assert_eq(other_stop(&third), 0);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

static void claim(void *arg)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_ipc_handle made = {.block_id = 900, .chunk_id = 1, .size = 512};

    memcpy(made.instance, arg, sizeof made.instance);
    gs_ipc_handle_write(&made, ipc_handle);
    if (ask_open(dial_broker(made.instance, -1), ipc_handle) != GS_REFUSED_MESSAGE)
        _exit(3); /* it was believed */
}

Test(share_broker, another_user_does_not_share_in_the_name_of_a_process_before_it_does)
{
    unsigned char first[GS_IPC_HANDLE_SIZE], second[GS_IPC_HANDLE_SIZE];
    struct other sharer;
    pid_t broker, thief;

    need_two_users();
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    other_start2(&sharer, dir, "trust=65534",
                 NULL); /* its socket is there, and no broker's business */
    other_export(&sharer, 0, 512, 7, first);
    thief = other_user_start(claim, first + 8);
    cr_assert_eq(side_broker_published(dir), 0, "it was believed");
    other_kill(&sharer);
    other_user_end(thief);
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_export(&sharer, 0, 512, 7, second);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&sharer);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* Each of its connections has the block open. */
static void take_all(void *arg)
{
    const unsigned char *ipc_handle = arg;

    for (unsigned i = 0; i < 40; i++) { /* served or turned away */
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        union gs_wire_message message;

        snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
        connect(fd, (struct sockaddr *)&to, sizeof to);
        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
        gs_wire_send(fd, &message, -1);
        ask_open(fd, ipc_handle);
    }
}

Test(share_broker, another_user_takes_no_more_than_half_of_what_it_serves)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct other sharer;
    pid_t broker, thief;

    need_two_users();
    setenv("GPUSHIM_DEBUG_MAX_CLIENTS", "16", 1);
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    unsetenv("GPUSHIM_DEBUG_MAX_CLIENTS");
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_export(&sharer, 0, 512, 7, ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&sharer);
    thief = other_user_start(take_all, ipc_handle);
    other_start2(&sharer, dir, "keep=60000", "trust=65534");
    other_export(&sharer, 0, 512, 7, ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 2));
    other_kill(&sharer);
    other_user_end(thief);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

/* Ends without a word where it is told anything. */
static void ask_of_machines(void *arg)
{
    static const unsigned char instance[GS_INSTANCE_SIZE] = {1};
    union gs_wire_message message;
    int fd = greet_broker(instance, -1);

    gs_wire_start(&message, GS_WIRE_QUERY, 7);
    message.query.about = GS_ABOUT_MACHINE;
    if (gs_wire_send(fd, &message, -1) != 0 || answer_to_open(fd) != GS_REFUSED_USER)
        _exit(3);
}

/* Who is let in for memory is told nothing of other machines. */
Test(share_broker, another_user_is_not_told_of_other_machines)
{
    pid_t broker, curious;

    need_two_users();
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65534");
    curious = other_user_start(ask_of_machines, NULL);
    other_user_end(curious);
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}
