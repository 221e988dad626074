/* What tests say by hand, and what they hear (by_hand.h). */
#include "by_hand.h"
#include "tests/children.h"
#include "tests/system.h"

/* ---- Messages ------------------------------------------------------------------------------- */

union gs_wire_message message_of(enum gs_wire_type type, uint32_t request,
                                 union gs_wire_message message)
{
    union gs_wire_message started;

    gs_wire_start(&started, type, request);
    message.head = started.head;
    return message;
}

union gs_wire_message message_hello(const unsigned char *instance)
{
    union gs_wire_message message = MESSAGE(HELLO, 0);

    memcpy(message.hello.instance, instance, GS_INSTANCE_SIZE);
    return message;
}

union gs_wire_message message_open(const unsigned char *ipc_handle, uint32_t request,
                                   enum gs_open_wants wants)
{
    union gs_wire_message message = MESSAGE(OPEN, request, .open = {.want_fd = wants});

    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    return message;
}

union gs_wire_message message_share(const unsigned char *ipc_handle)
{
    union gs_wire_message message = MESSAGE(SHARE, 0, .share = {.chunk_size = 2 * MIB});

    memcpy(message.share.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    memcpy(&message.share.slot, ipc_handle + offsetof(struct gs_ipc_handle, block_id),
           sizeof message.share.slot);
    return message;
}

void ipc_handle_by_hand(unsigned char instance, uint64_t block_id, uint64_t size,
                        unsigned char *ret_ipc_handle)
{
    struct gs_ipc_handle made = {.block_id = block_id, .chunk_id = 1, .size = size};

    memset(made.instance, instance, sizeof made.instance);
    gs_ipc_handle_write(&made, ret_ipc_handle);
}

int say(int fd, union gs_wire_message message)
{
    return gs_wire_send(fd, &message, -1);
}

int say_with(int fd, union gs_wire_message message, int attached)
{
    return side_send(fd, &message, attached);
}

int hear_fds(int fd, union gs_wire_message *ret_message, unsigned *ret_fds)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    struct gs_wire_fds fds = {0};
    int error;

    *ret_fds = 0;
    if (poll(&ready, 1, SIDE_PATIENCE_MS) != 1)
        return -1;
    error = gs_wire_receive_all(fd, ret_message, &fds);
    *ret_fds = fds.count;
    for (unsigned i = 0; i < fds.count; i++)
        close(fds.fd[i]);
    return error ? 0 : ret_message->head.type;
}

int hear(int fd, union gs_wire_message *ret_message)
{
    unsigned fds;

    return hear_fds(fd, ret_message, &fds);
}

int refusal_and_end(int fd)
{
    union gs_wire_message message;
    int reason = -1, type;

    while ((type = hear(fd, &message)) > 0)
        if (type == GS_WIRE_REFUSE)
            reason = (int)message.refuse.reason;
    return type == 0 ? reason : -1;
}

bool is_hung_up_on(int fd)
{
    union gs_wire_message message;
    int type;

    do
        type = hear(fd, &message);
    while (type > 0);
    return type == 0;
}

/* ---- A holder with a name ------------------------------------------------------------------- */

int connect_by_name(const char *dir, const unsigned char *ipc_handle, uint32_t number,
                    uint32_t holds)
{
    union gs_wire_message message = message_hello(ipc_handle + 8);
    int fd = side_dial(dir, ipc_handle);

    memset(message.hello.from, 7, sizeof message.hello.from);
    message.hello.pid = (uint64_t)getpid();
    message.hello.holds = holds;
    message.hello.number = number;
    CHECK(say(fd, message) == 0);
    return fd;
}

void say_of_block(int fd, enum gs_wire_type type, uint32_t generation, uint64_t block_id)
{
    CHECK(say(fd, message_of(type, generation,
                             (union gs_wire_message){.close = {.block_id = block_id}})) == 0);
}

uint64_t open_again(int fd, const unsigned char *ipc_handle, uint32_t generation)
{
    union gs_wire_message message;

    CHECK(say(fd, message_open(ipc_handle, generation, GS_OPEN_HAS_IT)) == 0);
    CHECK(side_next_message(fd, &message) == GS_WIRE_GRANT);
    CHECK(message.head.request == generation);
    return message.grant.block_id;
}

/* ---- Who leaves something ------------------------------------------------------------------- */

int leave_memory(void)
{
    int memory = memfd_create("confirmed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    for (uint64_t id = 0; id < PUBLISH_SLOTS; id++)
        CHECK(write(memory, &id, sizeof id) == (ssize_t)sizeof id);
    CHECK(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return memory;
}

void leave_by_hand_in(int fd, int memory)
{
    union gs_wire_message message = MESSAGE(PUBLISH, 0);

    gs_wire_send(fd, &message, memory);
}

void leave_by_hand(int fd)
{
    int memory = leave_memory();

    leave_by_hand_in(fd, memory);
    close(memory);
}

void share_by_hand(int fd, const unsigned char *ipc_handle, int memory)
{
    CHECK(say_with(fd, message_share(ipc_handle), memory) == 0);
}

void ring_by_hand(int fd, int memory, uint64_t slot)
{
    const uint64_t none = 0;

    CHECK(pwrite(memory, &none, sizeof none, (off_t)(slot * sizeof none)) == (ssize_t)sizeof none);
    say(fd, MESSAGE(RING, 1));
}

bool is_asked_by_hand(int fd)
{
    union gs_wire_message message;

    do
        if (recv(fd, &message, sizeof message, 0) <= 0)
            return false;
    while (message.head.type != GS_WIRE_PULL);
    return true;
}

/* ---- Who listens ---------------------------------------------------------------------------- */

void player_start(struct player *player, const char *path, void (*play)(int listener, void *arg),
                  void *arg)
{
    int listener = side_listen(path);

    snprintf(player->path, sizeof player->path, "%s", path);
    player->pid = fork_child();
    CHECK(player->pid >= 0);
    if (player->pid == 0) {
        alarm(2 * SIDE_PATIENCE_MS / 1000);
        play(listener, arg);
        _exit(0);
    }
    close(listener);
}

void player_start_for(struct player *player, const char *dir, const unsigned char *ipc_handle,
                      void (*play)(int listener, void *arg), void *arg)
{
    struct sockaddr_un at;

    side_path_of(dir, ipc_handle, &at);
    player_start(player, at.sun_path, play, arg);
}

void player_start_named(struct player *player, const char *dir, unsigned number,
                        void (*play)(int listener, void *arg), void *arg)
{
    char path[128];

    side_path_named(dir, number, path);
    player_start(player, path, play, arg);
}

int player_wait(struct player *player)
{
    int status = -1;

    waitpid(player->pid, &status, 0);
    unlink(player->path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void player_kill(struct player *player)
{
    kill(player->pid, SIGKILL);
    player_wait(player);
}
