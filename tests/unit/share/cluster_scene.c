/* Two machines and the agents that the test plays (cluster_scene.h). */
#include <criterion/criterion.h>

#include "cluster_scene.h"
#include "tests/system.h"

char far_dir[64];
static pid_t near_broker;

void cluster_setup(void)
{
    scene_new();
    side_dir_new(far_dir, sizeof far_dir);
    near_broker = broker_by_hand("GPUSHIM_SHARE_KEEP", "60s");
    options.cluster = true;
    scene_side();
    other_start(&other, far_dir, "keep=60000 reach=1");
}

void cluster_teardown(void)
{
    if (other.pid)
        cr_assert_eq(other_stop(&other), 0);
    other.pid = 0;
    if (side_broker_pid(far_dir))
        cr_assert(side_broker_end(far_dir));
    side_dir_remove(far_dir);
    scene_stop();
    cr_assert_eq(memdriver_alive(), 0);
    end_process(near_broker);
    side_dir_remove(dir);
}

int agent_dial(const char *at)
{
    int fd = -1;

    cr_assert(SIDE_WAIT((fd = side_broker_dial(at)) >= 0));
    agent_say(fd, MESSAGE(HELLO, 0, .hello = {.name = "agent", .agent = 1}));
    return fd;
}

void agent_say(int fd, union gs_wire_message message)
{
    cr_assert_eq(say_with(fd, message, -1), 0);
}

static int hears(int fd, union gs_wire_message *ret_message)
{
    struct pollfd what = {.fd = fd, .events = POLLIN};
    int attached = -1;

    do { /* who shares is asked, too */
        cr_assert_eq(poll(&what, 1, SIDE_PATIENCE_MS), 1, "nothing is said to the agent");
        cr_assert_eq(gs_wire_receive(fd, ret_message, &attached), 0, "the agent is hung up on");
    } while (ret_message->head.type == GS_WIRE_PULL);
    return attached;
}

int agent_hears(int fd, enum gs_wire_type type, union gs_wire_message *ret_message)
{
    int attached = hears(fd, ret_message);

    cr_assert_eq(ret_message->head.type, type, "%d in place of %d", ret_message->head.type, type);
    return attached;
}

int agent_awaits(int fd, enum gs_wire_type type, union gs_wire_message *ret_message)
{
    int attached;

    while ((attached = hears(fd, ret_message)), ret_message->head.type != type)
        if (attached >= 0)
            close(attached);
    return attached;
}

/* Whatever it would have been told comes before a question, which the broker passes on to its
 * agent. */
bool agent_hears_nothing(int fd)
{
    union gs_wire_message message;
    int attached;

    agent_say(fd, MESSAGE(QUERY, 77, .query = {.about = GS_ABOUT_MACHINE}));
    attached = hears(fd, &message);
    if (attached >= 0)
        close(attached);
    return message.head.type == GS_WIRE_QUERY;
}

void take_say(int fd, const unsigned char *ipc_handle, uint32_t request)
{
    union gs_wire_message message = message_open(ipc_handle, request, GS_OPEN_HAS_IT);

    message.open.uid = getuid();
    message.open.gid = getgid();
    agent_say(fd, message);
}

int take(int fd, const unsigned char *ipc_handle, uint32_t request,
         union gs_wire_message *ret_answer)
{
    take_say(fd, ipc_handle, request);
    do
        hears(fd, ret_answer);
    while (ret_answer->head.request != request);
    return ret_answer->head.type;
}

void say_of(int fd, enum gs_wire_type type, const unsigned char *ipc_handle)
{
    union gs_wire_message message;
    struct gs_ipc_handle read;

    cr_assert_eq(gs_ipc_handle_read(ipc_handle, &read), GS_OK);
    gs_wire_start(&message, type, 0);
    memcpy(message.close.instance, read.instance, GS_INSTANCE_SIZE);
    message.close.block_id = read.block_id;
    agent_say(fd, message);
}

int ask_at(const char *at, const char *forget)
{
    union gs_wire_message message = MESSAGE(QUERY, 3, .query = {.about = GS_ABOUT_MACHINE});
    int fd = -1;

    cr_assert(SIDE_WAIT((fd = side_broker_dial(at)) >= 0)); /* after another was killed, say */
    agent_say(fd, MESSAGE(HELLO, 0));
    strcpy(message.query.name, forget);
    agent_say(fd, message);
    return fd;
}

struct gs_wire_machine told_at(const char *at)
{
    union gs_wire_message message;
    int fd = ask_at(at, "");

    agent_hears(fd, GS_WIRE_REPORT, &message);
    close(fd);
    return message.report.machine;
}

static void *open_run(void *arg)
{
    struct opening *opening = arg;

    opening->status = open_it(opening->ipc_handle, &opening->address);
    return NULL;
}

void open_begin(struct opening *opening, const unsigned char *ipc_handle)
{
    memcpy(opening->ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    cr_assert_eq(pthread_create(&opening->thread, NULL, open_run, opening), 0);
}

gs_status open_end(struct opening *opening)
{
    pthread_join(opening->thread, NULL);
    return opening->status;
}
