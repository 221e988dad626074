/*
 * Descriptors that are sent to do harm (bombs.h), to an exporter, an importer and a broker. Each
 * time an honest importer is served while the attack goes on: what holds up a close does so for
 * longer than a test may take, and is let go of only afterwards. With OLDER_KERNEL nothing keeps
 * such from being sent (before Linux 6.16).
 */
#include <criterion/criterion.h>

#include "bombs.h"
#include "core/share/discard.h"
#include "core/share/internal.h"
#include "leave_by_hand.h"
#include "memdriver.h"
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
static void throw(int fd, const union gs_wire_message *message, enum bomb kind, int bomb,
                  bool waits)
{
    int error = waits ? side_send(fd, message, bomb) : gs_wire_send(fd, message, bomb);

    if (error) /* who takes none is not harmed */
        bomb_unsent(bomb);
    else
        bomb_gone(kind, bomb);
}

static void throw_bomb(int fd, const union gs_wire_message *message, enum bomb kind, bool waits)
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

static int dial_anew(const unsigned char *ipc_handle)
{
    int fd = side_dial(dir, ipc_handle);

    cr_assert_geq(fd, 0);
    return fd;
}

/* With the greeting; with a question after it; and behind something that is hung up on unread. */
static void attack_exporter(const unsigned char *ipc_handle, enum bomb kind, int *ret_fds)
{
    for (int i = 0; i < EACH; i++) {
        union gs_wire_message hello, query;
        int fd = dial_anew(ipc_handle);

        gs_wire_start(&hello, GS_WIRE_HELLO, 0);
        memcpy(hello.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
        gs_wire_start(&query, GS_WIRE_QUERY, 1);
        if (i == 0)
            throw_bomb(fd, &hello, kind, false);
        else if (i == 1)
            gs_wire_send(fd, &hello, -1);
        else
            send(fd, "garbage", 7, MSG_NOSIGNAL);
        throw_bomb(fd, &query, kind, false);
        ret_fds[i] = fd;
    }
}

Test(share_descriptors, sent_to_an_exporter_hold_nobody_up)
{
    struct side_chunk piece = side_chunk_new(&side, 2 * MIB);
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;

    cr_assert_eq(side_export(&side, &piece, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
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
    side_chunk_free(&side, &piece);
}

/* The closer that is held up is waited for by what may hold it up, and by nothing else. */
Test(share_descriptors, hold_up_no_end_of_a_connection_that_came_without_any)
{
    struct side_chunk piece = side_chunk_new(&side, 2 * MIB);
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;
    int before;

    cr_assert_eq(side_export(&side, &piece, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
    other_start(&other, dir, NULL);
    for (int i = 0; i < EACH; i++)
        gs_discard(bomb_new(BOMB_NESTED));
    before = side_open_fds();
    for (int i = 0; i < 100; i++) {
        int fd = dial_anew(ipc_handle);

        for (int j = 0; j < 3; j++) /* one is read, and the others lie there */
            send(fd, "garbage", j, MSG_NOSIGNAL);
        close(fd);
    }
    /* They are taken in one after the other: until then they are nobody's descriptors. */
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    cr_assert(SIDE_WAIT(side_open_fds() <= before + 4), "%d, %d before", side_open_fds(), before);
    other_ask(&other, "close %lx", address);
    bombs_end();
    cr_assert(side_gets_back(&side, export));
    side_chunk_free(&side, &piece);
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
    union gs_wire_message message;
    struct gs_ipc_handle asked;

    gs_ipc_handle_read(open->open.ipc_handle, &asked);
    gs_wire_start(&message, GS_WIRE_RECALL, 0);
    throw_bomb(fd, &message, kind, true);
    gs_wire_start(&message, GS_WIRE_GRANT, open->head.request);
    message.grant.block_id = asked.block_id;
    message.grant.chunk_id = asked.chunk_id;
    message.grant.chunk_size = 2 * MIB;
    message.grant.size = asked.size;
    message.grant.pieces = message.grant.batch.count = 1;
    message.grant.batch.sizes[0] = message.grant.chunk_size;
    throw_bomb(fd, &message, kind, true);
    gs_wire_start(&message, GS_WIRE_FLUSH, 0); /* lies there unread in the end */
    for (int i = 0; i < 3; i++)
        throw_bomb(fd, &message, kind, true);
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

static void make_ipc_handle(unsigned char *ret, unsigned char instance)
{
    struct gs_ipc_handle made = {.block_id = 5, .chunk_id = 6, .size = 512};

    memset(made.instance, instance, sizeof made.instance);
    gs_ipc_handle_write(&made, ret);
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
        make_ipc_handle(bad, (unsigned char)(kind + 1));
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

static int dial_broker(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(to.sun_path, sizeof to.sun_path, "%s/%s", dir, side_broker_name());
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* Left with it and taken back, left and hung up on, and with what is none of that. */
static void attack_broker(enum bomb kind, int *ret_fds)
{
    for (int i = 0; i < EACH; i++) {
        struct gs_ipc_handle ipc_handle = {.block_id = 1, .chunk_id = 1, .size = 512};
        int fd = dial_broker(), memory = leave_memory();
        union gs_wire_message message;

        memset(ipc_handle.instance, (int)kind * EACH + i + 100, sizeof ipc_handle.instance);
        gs_wire_start(&message, GS_WIRE_HELLO, 0);
        memcpy(message.hello.instance, ipc_handle.instance, sizeof ipc_handle.instance);
        gs_wire_send(fd, &message, -1);
        leave_by_hand_in(fd, memory);
        gs_wire_start(&message, GS_WIRE_SHARE, 0);
        gs_ipc_handle_write(&ipc_handle, message.share.ipc_handle);
        message.share.chunk_size = 2 * MIB;
        message.share.slot = 2; /* which says something else: it goes with the connection */
        throw_bomb(fd, &message, kind, true);
        if (i == 0) {
            ring_by_hand(fd, memory, 2);
        } else if (i == 1) {
            gs_wire_start(&message, GS_WIRE_QUERY, 1);
            throw_bomb(fd, &message, kind, true);
        } else {
            send(fd, "garbage", 7, MSG_NOSIGNAL);
            throw_bomb(fd, &message, kind, false);
        }
        close(memory);
        ret_fds[i] = fd;
    }
}

Test(share_descriptors, sent_to_a_broker_hold_nobody_up)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    other_start(&other, dir, "keep=60000");
    other_export(&other, 0, 512, 72, ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&other);
    for (enum bomb kind = 0; kind < BOMBS; kind++) {
        CUdeviceptr address;
        uint64_t since;
        int fds[EACH];

        attack_broker(kind, fds);
        usleep(AGAIN_MS * 1000);
        since = side_now();
        cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
        cr_assert_eq(*(char *)address, 72);
        say_served("broker", kind, since);
        for (int i = 0; i < EACH; i++)
            close(fds[i]);
        since = side_now();
        cr_assert(
            SIDE_WAIT(side_broker_published(dir) <= 2)); /* it goes on, and has dropped the rest */
        say_served("broker that was hung up on", kind, since);
        cr_assert_eq(gs_share_close(side.share, address), GS_OK);
        bombs_end();
    }
}

static int greet_broker(unsigned char instance)
{
    union gs_wire_message message;
    int fd = dial_broker();

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memset(message.hello.instance, instance, sizeof message.hello.instance);
    cr_assert_eq(gs_wire_send(fd, &message, -1), 0);
    return fd;
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
    struct gs_ipc_handle ipc_handle = {.size = 512};
    union gs_wire_message message;
    int fd = greet_broker(99), memory = leave_memory();
    bool asked = true;

    memset(ipc_handle.instance, 99, sizeof ipc_handle.instance);
    for (int i = 0; i < MANY; i++)
        bombs[i] = bomb_new(BOMB_NESTED);
    leave_by_hand_in(fd, memory);
    for (int i = 0; i < MANY; i++) {
        asked = asked && is_asked_soon(fd);
        ipc_handle.block_id = ipc_handle.chunk_id = 1 + (uint64_t)i;
        gs_wire_start(&message, GS_WIRE_SHARE, 0);
        gs_ipc_handle_write(&ipc_handle, message.share.ipc_handle);
        message.share.chunk_size = 2 * MIB;
        message.share.slot = 1 + (uint32_t)i;
        throw(fd, &message, BOMB_NESTED, bombs[i], true);
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
    CUdeviceptr address;
    uint64_t since;

    other_start(&other, dir, "keep=60000");
    other_export(&other, 0, 512, 73, ipc_handle);
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1));
    other_kill(&other);
    attack_closers();
    cr_assert(SIDE_WAIT(side_broker_published(dir) == 1), "what the attacker left is not dropped");
    since = side_now();
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(*(char *)address, 73);
    say_served("broker, hundreds", BOMB_NESTED, since);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    bombs_end();
}
