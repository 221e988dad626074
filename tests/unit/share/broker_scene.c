/* What the tests of the broker have in common (broker_scene.h). */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "tests/children.h"
#include "by_hand.h"
#include "tests/system.h"

gs_status open_it(const unsigned char *ipc_handle, CUdeviceptr *ret_address)
{
    return gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, ret_address);
}

void export_and_leave(unsigned long number, unsigned char *ret_ipc_handle)
{
    other_export(&other, number * 512, 512, (int)(70 + number), ret_ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == number + 1), "the broker has %llu",
              side_broker_published(dir));
}

int greet_broker(const unsigned char *instance, int pidfd)
{
    int fd = side_broker_dial(dir);

    cr_assert_geq(fd, 0);
    cr_assert_eq(say_with(fd, message_hello(instance), pidfd), 0);
    return fd;
}

int dial_broker(const unsigned char *instance, int pidfd)
{
    int fd = greet_broker(instance, pidfd);

    leave_by_hand(fd);
    return fd;
}

int answer_to_open(int fd)
{
    union gs_wire_message message;
    int type;

    do /* who shares is asked, too */
        type = hear(fd, &message);
    while (type == GS_WIRE_PULL);
    return type == GS_WIRE_GRANT ? 0 : type > 0 ? (int)message.refuse.reason : -1;
}

int ask_open(int fd, const unsigned char *ipc_handle)
{
    say(fd, message_open(ipc_handle, 1, GS_OPEN_HAS_IT));
    return answer_to_open(fd);
}

int run_broker(const char *argument, char *ret_text, size_t size)
{
    char command[512];
    FILE *out;
    size_t got;

    snprintf(command, sizeof command, "GPUSHIM_CONFIG= GPUSHIM_SHARE_DIR=%s timeout 20 %s %s 2>&1",
             dir, BROKER_PROGRAM, argument);
    out = popen(command, "r");
    got = fread(ret_text, 1, size - 1, out);
    ret_text[got] = 0;
    return pclose(out);
}

pid_t program_by_hand(const char *program, const char *name, const char *value)
{
    pid_t child = fork_child();

    if (child == 0) {
        setenv("GPUSHIM_SHARE_DIR", dir, 1);
        setenv("GPUSHIM_CONFIG", "", 1);
        setenv(name, value, 1);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    cr_assert(SIDE_WAIT(access(side_broker_path(dir), F_OK) == 0));
    return child;
}

pid_t broker_by_hand(const char *name, const char *value)
{
    return program_by_hand(BROKER_PROGRAM, name, value);
}

struct side_chunk sharer_start(struct side *sharer)
{
    struct gs_share_options brokered = options;

    brokered.broker = true;
    side_start(sharer, &brokered);
    return side_chunk_new(sharer, 2 * MIB);
}

void sharer_stop(struct side *sharer, struct side_chunk *piece, pid_t broker)
{
    side_stop(sharer);
    side_chunk_free(sharer, piece);
    end_broker(broker);
}

void end_broker(pid_t broker)
{
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

void end_process(pid_t process)
{
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
}
