/* Whose a broker is: whom it serves, and in whose name nobody else shares. */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "tests/children.h"
#include "tests/system.h"

static void need_two_users(void)
{
    if (geteuid() != 0)
        cr_skip_test("only root can be two users");
    mkdir(dir, 0755);
    cr_assert_eq(chmod(dir, 0755), 0);
}

/* Whoever started the broker let another user in, and who left the block with it did not; and the
 * other way round. */
Test(share_broker, serves_those_whom_the_process_that_shared_named_and_nobody_else)
{
    for (int named = 0; named < 2; named++) {
        unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
        struct other sharer, third;
        unsigned long address;
        pid_t broker;

        need_two_users();
        broker = broker_by_hand("GPUSHIM_SHARE_UIDS", named ? "" : "65533");
        other_start2(&sharer, dir, "keep=60000", named ? "trust=65533" : NULL);
        other_export(&sharer, 0, 512, 7, ipc_handle);
        cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
        other_kill(&sharer);
        other_start2(&third, dir, "uid=65533", "trust=0");
        cr_assert_eq(other_open(&third, ipc_handle, &address) == GS_OK, named);
        if (named)
            cr_assert_str_eq(other_ask(&third, "read %lx", address), "ok 7");
        cr_assert_eq(other_stop(&third), 0);
        end_broker(broker);
    }
}

/* Ends without a word where it is told anything. */
static void ask_of_machines(void *arg)
{
    static const unsigned char instance[GS_INSTANCE_SIZE] = {1};
    int fd = greet_broker(instance, -1);

    if (say(fd, MESSAGE(QUERY, 7, .query = {.about = GS_ABOUT_MACHINE})) != 0 ||
        answer_to_open(fd) != GS_REFUSED_USER)
        _exit(3);
}

/* Who is let in for memory is told nothing of other machines. */
Test(share_broker, another_user_is_not_told_of_other_machines)
{
    pid_t broker, curious;

    need_two_users();
    broker = broker_by_hand("GPUSHIM_SHARE_UIDS", "65533");
    curious = other_user_start(ask_of_machines, NULL);
    other_user_end(curious);
    end_broker(broker);
}
