/* What the tests of the broker have in common (broker_scene.h). */
#include <criterion/criterion.h>

#include "broker_scene.h"
#include "tests/children.h"
#include "leave_by_hand.h"
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
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    union gs_wire_message message;

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, instance, GS_INSTANCE_SIZE);
    cr_assert_eq(side_send(fd, &message, pidfd), 0);
    return fd;
}

int dial_broker(const unsigned char *instance, int pidfd)
{
    int fd = greet_broker(instance, pidfd);

    leave_by_hand(fd);
    return fd;
}

void send_open(int fd, const unsigned char *ipc_handle)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    gs_wire_send(fd, &message, -1);
}

int answer_to_open(int fd)
{
    union gs_wire_message message;

    do /* who shares is asked, too */
        for (int tries = 0; recv(fd, &message, sizeof message, 0) <= 0; tries++)
            if (tries || errno != ECONNRESET) /* a reset comes before the last words */
                return -1;
    while (message.head.type == GS_WIRE_PULL);
    return message.head.type == GS_WIRE_GRANT ? 0 : (int)message.refuse.reason;
}

int ask_open(int fd, const unsigned char *ipc_handle)
{
    send_open(fd, ipc_handle);
    return answer_to_open(fd);
}

void ipc_handle_by_hand(unsigned char instance, uint64_t block, unsigned char *ret_ipc_handle)
{
    struct gs_ipc_handle ipc_handle = {.block_id = block, .chunk_id = 1, .size = 512};

    memset(ipc_handle.instance, instance, sizeof ipc_handle.instance);
    gs_ipc_handle_write(&ipc_handle, ret_ipc_handle);
}

void share_by_hand(int fd, const unsigned char *ipc_handle, int memory)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    memcpy(message.share.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    memcpy(&message.share.slot, ipc_handle + offsetof(struct gs_ipc_handle, block_id),
           sizeof message.share.slot);
    message.share.chunk_size = 2 * MIB;
    cr_assert_eq(side_send(fd, &message, memory), 0);
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
    char path[128];
    pid_t child = fork_child();

    if (child == 0) {
        setenv("GPUSHIM_SHARE_DIR", dir, 1);
        setenv("GPUSHIM_CONFIG", "", 1);
        setenv(name, value, 1);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    snprintf(path, sizeof path, "%s/%s", dir, side_broker_name());
    cr_assert(SIDE_WAIT(access(path, F_OK) == 0));
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
    kill(broker, SIGTERM);
    waitpid(broker, NULL, 0);
}

void end_process(pid_t process)
{
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
}
