/*
 * Descriptors that are sent to do harm (bombs.h), to an exporter, an importer and a broker. Each
 * time an honest importer is served while the attack goes on: what holds up a close does so for
 * longer than a test may take, and is let go of only afterwards. With OLDER_KERNEL nothing keeps
 * such from being sent (before Linux 6.16).
 */
#include <criterion/criterion.h>

#include "bombs.h"
#include "by_hand.h"
#include "scene.h"
#include "tests/system.h"

#define EACH     3 /* attacks of each kind at once */
#define MANY     300
#define AGAIN_MS 100 /* what was sent is read by then, or never before it does harm */

#ifdef OLDER_KERNEL
int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    if (level != SOL_SOCKET || name != 83) /* SO_PASSRIGHTS */
        return __real_setsockopt(fd, level, name, value, size);
    errno = ENOPROTOOPT;
    return -1;
}
#endif

static void setup(void)
{
    scene_new();
    scene_side();
}

TestSuite(share_descriptors, .init = setup, .fini = scene_end, .timeout = 120);

/* A message with that bomb, which the attacker lets go of at once. */
static void throw(int fd, union gs_wire_message message, enum bomb kind, int bomb, bool waits)
{
    int error = waits ? say_with(fd, message, bomb) : gs_wire_send(fd, &message, bomb);

    if (error) /* who takes none is not harmed */
        bomb_unsent(bomb);
    else
        bomb_gone(kind, bomb);
}

static void throw_bomb(int fd, union gs_wire_message message, enum bomb kind, bool waits)
{
    throw(fd, message, kind, bomb_new(kind), waits);
}

static void say_served(const char *who, enum bomb kind, uint64_t since)
{
    printf("%s, %s: an honest importer is served in %llu ms\n", who, bomb_names[kind],
           (unsigned long long)((side_now() - since) / MS));
    fflush(stdout);
}

/* ---- An exporter ---------------------------------------------------------------------------- */

/* With the greeting; with a question after it; and behind something that is hung up on unread. */
static void attack_exporter(const unsigned char *ipc_handle, enum bomb kind, int *ret_fds)
{
    for (int i = 0; i < EACH; i++) {
        int fd = side_dial(dir, ipc_handle);

        cr_assert_geq(fd, 0);
        if (i == 0)
            throw_bomb(fd, message_hello(ipc_handle + 8), kind, false);
        else if (i == 1)
            side_greet(fd, ipc_handle + 8);
        else
            send(fd, "garbage", 7, MSG_NOSIGNAL);
        throw_bomb(fd, MESSAGE(QUERY, 1), kind, false);
        ret_fds[i] = fd;
    }
}

Test(share_descriptors, sent_to_an_exporter_hold_nobody_up)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;

    chunk = side_chunk_new(&side, 2 * MIB);
    export = scene_export(0, 512, ipc_handle);
    other_start(&other, dir, NULL);
    for (enum bomb kind = 0; kind < BOMBS; kind++) {
        int fds[EACH], before = side_open_fds();
        unsigned long address;
        uint64_t since;

        attack_exporter(ipc_handle, kind, fds);
        usleep(AGAIN_MS * 1000);
        since = side_now();
        cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
        say_served("exporter", kind, since);
        other_ask(&other, "close %lx", address);
        for (int i = 0; i < EACH; i++)
            close(fds[i]);
        since = side_now();
        cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
        say_served("exporter that was hung up on", kind, since);
        other_ask(&other, "close %lx", address);
        bombs_end();
        cr_assert(SIDE_WAIT(side_open_fds() <= before + 4), "%d, %d before", side_open_fds(),
                  before);
    }
    cr_assert(side_gets_back(&side, export));
}

/* ---- An importer ----------------------------------------------------------------------------- */

struct liar {
    pthread_t thread;
    enum bomb kind;
    int listener;
    bool end; /* atomic */
};

static void answer(int fd, enum bomb kind, const union gs_wire_message *open)
{
    struct gs_ipc_handle asked;

    gs_ipc_handle_read(open->open.ipc_handle, &asked);
    throw_bomb(fd, MESSAGE(RECALL, 0), kind, true);
    throw_bomb(fd,
               MESSAGE(GRANT, open->head.request,
                       .grant = {.block_id = asked.block_id,
                                 .chunk_id = asked.chunk_id,
                                 .chunk_size = 2 * MIB,
                                 .size = asked.size,
                                 .pieces = 1,
                                 .batch = {.count = 1, .sizes = {2 * MIB}}}),
               kind, true);
    for (int i = 0; i < 3; i++) /* they lie there unread in the end */
        throw_bomb(fd, MESSAGE(FLUSH, 0), kind, true);
}

static void *lie(void *arg)
{
    struct liar *liar = arg;
    union gs_wire_message message;
    int fd = accept4(liar->listener, NULL, NULL, SOCK_CLOEXEC);

    while (recv(fd, &message, sizeof message, 0) > 0)
        if (message.head.type == GS_WIRE_OPEN) {
            answer(fd, liar->kind, &message);
            break;
        }
    while (!__atomic_load_n(&liar->end, __ATOMIC_ACQUIRE))
        usleep(1000);
    close(fd);
    return NULL;
}

static void liar_start(struct liar *liar, enum bomb kind, const unsigned char *ipc_handle)
{
    struct sockaddr_un at;

    side_path_of(dir, ipc_handle, &at);
    *liar = (struct liar){.kind = kind, .listener = side_listen(at.sun_path)};
    cr_assert_eq(pthread_create(&liar->thread, NULL, lie, liar), 0);
}

Test(share_descriptors, sent_to_an_importer_hold_nobody_up)
{
    for (enum bomb kind = 0; kind < BOMBS; kind++) {
        unsigned char bad[GS_IPC_HANDLE_SIZE], good[GS_IPC_HANDLE_SIZE];
        int before = side_open_fds();
        CUdeviceptr address = 0;
        struct liar liar;
        gs_status status;
        uint64_t since;

        other_start(&other, dir, NULL);
        other_export(&other, 0, 512, 71, good);
        ipc_handle_by_hand((unsigned char)(kind + 1), 5, 512, bad);
        liar_start(&liar, kind, bad);
        since = side_now();
        status = gs_share_open(side.share, bad, SIDE_CONTEXT, 0, &address);
        say_served("importer, the open itself", kind, since);
        /* Memory that shrinks may have been what it was said to be when it was looked at. */
        cr_assert(status != GS_OK || kind == BOMB_MEMORY, "%s is no memory", bomb_names[kind]);
        if (status == GS_OK)
            cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        since = side_now();
        cr_assert_eq(gs_share_open(side.share, good, SIDE_CONTEXT, 0, &address), GS_OK);
        cr_assert_eq(*(char *)address, 71);
        say_served("importer", kind, since);
        __atomic_store_n(&liar.end, true, __ATOMIC_RELEASE);
        pthread_join(liar.thread, NULL);
        close(liar.listener);
        /* The share thread, which sees it hang up, works on: the exporter gets its block back. */
        cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        since = side_now();
        cr_assert(SIDE_WAIT(other_withdraws(&other)));
        say_served("importer that was hung up on", kind, since);
        other_stop(&other);
        bombs_end();
        cr_assert(SIDE_WAIT(side_open_fds() <= before + 8), "%d, %d before", side_open_fds(),
                  before);
    }
}

/* ---- A broker ------------------------------------------------------------------------------- */

/* It has greeted, and said what it confirms. */
static int greet_broker(unsigned char instance, int memory)
{
    unsigned char whole[GS_INSTANCE_SIZE];
    int fd = side_broker_dial(dir);

    cr_assert_geq(fd, 0);
    memset(whole, instance, sizeof whole);
    side_greet(fd, whole);
    leave_by_hand_in(fd, memory);
    return fd;
}

/* Left with it and taken back, left and hung up on, and with what is none of that. */
static void attack_broker(enum bomb kind, int *ret_fds)
{
    for (int i = 0; i < EACH; i++) {
        const unsigned char instance = (unsigned char)((int)kind * EACH + i + 100);
        unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
        union gs_wire_message message;
        int memory = leave_memory(), fd = greet_broker(instance, memory);

        ipc_handle_by_hand(instance, 1, 512, ipc_handle);
        message = message_share(ipc_handle);
        message.share.slot = 2; /* which says something else: it goes with the connection */
        throw_bomb(fd, message, kind, true);
        if (i == 0) {
            ring_by_hand(fd, memory, 2);
        } else if (i == 1) {
            throw_bomb(fd, MESSAGE(QUERY, 1), kind, true);
        } else {
            send(fd, "garbage", 7, MSG_NOSIGNAL);
            throw_bomb(fd, message, kind, false);
        }
        close(memory);
        ret_fds[i] = fd;
    }
}

/* Of which the broker serves a block. */
static void leave_and_die(unsigned char *ret_ipc_handle)
{
    other_start(&other, dir, "keep=60000");
    other_export(&other, 0, 512, 72, ret_ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&other);
}

static void is_served(const char *who, enum bomb kind, const unsigned char *ipc_handle)
{
    const uint64_t since = side_now();
    CUdeviceptr address = scene_open(ipc_handle);

    cr_assert_eq(*(char *)address, 72);
    say_served(who, kind, since);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

Test(share_descriptors, sent_to_a_broker_hold_nobody_up)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    leave_and_die(ipc_handle);
    for (enum bomb kind = 0; kind < BOMBS; kind++) {
        uint64_t since;
        int fds[EACH];

        attack_broker(kind, fds);
        usleep(AGAIN_MS * 1000);
        is_served("broker", kind, ipc_handle);
        for (int i = 0; i < EACH; i++)
            close(fds[i]);
        since = side_now();
        cr_assert(
            SIDE_WAIT(side_broker_published(dir) <= 2)); /* it goes on, and has dropped the rest */
        say_served("broker that was hung up on", kind, since);
        bombs_end();
    }
}

/* False: it is not read any more. */
static bool is_asked_soon(int fd)
{
    struct pollfd asked = {.fd = fd, .events = POLLIN};

    return poll(&asked, 1, 10000) == 1 && is_asked_by_hand(fd);
}

/* Hundreds before anybody can see that the closer is stuck: all that are left when it breaks the
 * protocol, and others taken back one by one before. */
static void attack_closers(void)
{
    static int bombs[MANY]; /* they take longer to make than to send */
    struct gs_ipc_handle made = {.size = 512};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    int memory = leave_memory(), fd;
    bool asked = true;

    memset(made.instance, 99, sizeof made.instance);
    for (int i = 0; i < MANY; i++)
        bombs[i] = bomb_new(BOMB_NESTED);
    fd = greet_broker(99, memory);
    for (int i = 0; i < MANY; i++) {
        asked = asked && is_asked_soon(fd);
        made.block_id = made.chunk_id = 1 + (uint64_t)i; /* with a descriptor each */
        gs_ipc_handle_write(&made, ipc_handle);
        throw(fd, message_share(ipc_handle), BOMB_NESTED, bombs[i], true);
        if (i < MANY / 2)
            continue;
        asked = asked && is_asked_soon(fd);
        ring_by_hand(fd, memory, 1 + (uint64_t)i);
    }
    close(memory);
    send(fd, "?", 1, MSG_NOSIGNAL); /* else what it left is kept until it ends */
    close(fd);
}

Test(share_descriptors, sent_to_a_broker_by_hundreds_hold_nobody_up)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    leave_and_die(ipc_handle);
    attack_closers();
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1), "what the attacker left is not dropped");
    is_served("broker, hundreds", BOMB_NESTED, ipc_handle);
    bombs_end();
}
