/*
 * A broker and two clients of it that say anything: one mostly shares, one mostly opens. Everything
 * is as in fuzz_exporter.c, pidfds by the kernel are not to be had (tests/fuzz/meson.build), and
 * each client is a process that is not there, so that its hang-up is its end, and what it left is
 * served. After that an honest process still leaves a block and another still gets it.
 */
#include "message.h"

#include "../unit/share/by_hand.h"
#include "../unit/share/side.h"
#include "core/share/cluster.h"
#include "core/share/instance.h"
#include "core/share/wire.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define ROUNDS  512   /* with one broker */
#define SOON    20000 /* ms */
#define CHUNK   (2 * MIB)
#define KEEP_NS (1000 * UINT64_C(1000000)) /* a busy machine may be slower than that */

static struct gs_map map;
static struct gs_fences fences;
static struct gs_share *broker;
static char dir[64];
static unsigned honest, served; /* times that honest ones came, and those that were soon enough */

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size);

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    int result;

    if (level == SOL_SOCKET && name == SO_PEERPIDFD) {
        errno = ENOPROTOOPT;
        return -1;
    }
    result = __real_getsockopt(fd, level, name, value, size);
    if (result == 0 && level == SOL_SOCKET && name == SO_PEERCRED)
        ((struct ucred *)value)->pid = INT_MAX; /* no process has it */
    return result;
}

static void nothing_to_do(void *arg, uint64_t address)
{
}

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    char shown[4096]; /* as the log does with it (shim/log.c) */

    gs_printable(text, strlen(text), shown, sizeof shown);
    CHECK(fuzz_is_printable(shown));
}

static void stop(void)
{
    gs_share_destroy(broker);
    gs_fences_destroy(&fences);
    gs_map_destroy(&map);
}

static void clean_up(void)
{
    stop();
    CHECK(served > 0 || honest == 0);
    side_dir_remove(dir);
}

static void start(void)
{
    const struct gs_share_events events = {.lease_ended = nothing_to_do};
    const struct gs_log log = {.line = log_line};
    struct gs_share_options options;

    if (!dir[0]) {
        side_dir_new(dir, sizeof dir);
        atexit(clean_up);
    } else {
        stop();
    }
    side_options(&options, dir);
    options.settle_ns = 0;
    options.keep_ns = KEEP_NS;
    options.is_broker = true;
    options.listen_fd = -1;
    options.published_max = 40;
    gs_map_init(&map);
    gs_fences_init(&fences, &gs_broker_driver);
    CHECK(gs_share_create(&gs_broker_driver, &map, &fences, &log, &options, &events, &broker) ==
          GS_OK);
    CHECK(gs_share_serve(broker) == GS_OK);
}

static int dial(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(address.sun_path, sizeof address.sun_path, "%.60s/%s", dir, side_broker_name());
    return fuzz_dial(&address);
}

/* One of a few handles, so that clients meet in them; the last byte is the secret's. */
static void make_ipc_handle(uint8_t choice, unsigned char *ret_bytes)
{
    struct gs_ipc_handle ipc_handle = {.block_id = choice % 5,
                                       .chunk_id = choice / 5 % 3,
                                       .size = (choice & 0x40) ? 4096 : CHUNK};

    memset(ipc_handle.instance, 1 + choice / 128, sizeof ipc_handle.instance);
    ipc_handle.secret[0] = choice / 15 % 2;
    gs_ipc_handle_write(&ipc_handle, ret_bytes);
}

/* Of other machines: what an agent, or who shares with them, may say, so that it is believed at
 * times. */
static void fit_cluster(struct fuzz_input *input, union gs_wire_message *message)
{
    uint8_t choice = fuzz_byte(input), small = choice % 4;

    switch (message->head.type) {
    case GS_WIRE_HELLO:
        message->hello.agent = small < 3;
        break;
    case GS_WIRE_SHARE:
        make_ipc_handle(choice, message->share.ipc_handle);
        message->share.slot = choice % 5;
        message->share.far = small > 0;
        message->share.held = small % 2;
        message->share.pieces = choice / 64;
        message->share.chunk_size = (choice / 128 + 1) * CHUNK;
        message->share.piece = small / 2;
        message->share.piece_size = CHUNK;
        break;
    case GS_WIRE_CLOSE:
    case GS_WIRE_RECALL:
        memset(message->close.instance, 1 + choice / 128, GS_INSTANCE_SIZE);
        message->close.block_id = choice % 5;
        break;
    case GS_WIRE_GRANT: /* of an agent, or of who is asked to hold */
        message->head.request = 1 + small;
        message->grant.block_id = choice % 5;
        message->grant.chunk_size = CHUNK;
        message->grant.offset = 0;
        message->grant.read_only = 0;
        message->grant.far = 1;
        break;
    case GS_WIRE_OPEN:
        make_ipc_handle(choice, message->open.ipc_handle);
        message->open.want_fd = 0;
        message->open.cluster = 1;
        message->open.uid = getuid();
        break;
    }
}

static void write_one(struct fuzz_input *input, uint8_t kind, union gs_wire_message *message)
{
    switch (kind % 8) {
    case 0:
        gs_wire_start(message, GS_WIRE_HELLO, 0);
        memset(message->hello.instance, 1 + fuzz_byte(input) % 2, GS_INSTANCE_SIZE);
        fuzz_bytes(input, message->hello.name, sizeof message->hello.name);
        break;
    case 1:
    case 2:
        gs_wire_start(message, GS_WIRE_SHARE, 0);
        make_ipc_handle(fuzz_byte(input), message->share.ipc_handle);
        message->share.chunk_size = CHUNK;
        message->share.offset = fuzz_byte(input) % 4 * 4096;
        message->share.slot = fuzz_byte(input) % 5; /* where its id may stand */
        break;
    case 3:
        gs_wire_start(message, GS_WIRE_RING, fuzz_byte(input) % 2);
        break;
    case 4:
        gs_wire_start(message, GS_WIRE_OPEN, 1);
        make_ipc_handle(fuzz_byte(input), message->open.ipc_handle);
        message->open.want_fd = fuzz_byte(input) % 3;
        break;
    case 5:
        gs_wire_start(message, GS_WIRE_CLOSE, fuzz_byte(input) % 4 > 0);
        message->close.block_id = fuzz_byte(input) % 6;
        break;
    case 6:
        gs_wire_start(message, GS_WIRE_QUERY, 1);
        message->query.index = fuzz_byte(input);
        message->query.device = message->query.index % 20;
        message->query.about = message->query.index % (GS_ABOUT_NEXT_NAME + 1);
        break;
    default:
        gs_wire_start(message, GS_WIRE_HELLO + fuzz_byte(input) % (GS_WIRE_TYPES - 1), 0);
        fuzz_fill(input, message);
        fit_cluster(input, message);
        break;
    }
}

static void send_one(int fd, struct fuzz_input *input, uint8_t kind)
{
    union gs_wire_message message;
    uint8_t bytes[FUZZ_BYTES] = {0}, damage = fuzz_byte(input);
    struct fuzz_fds fds = {.count = 0};
    size_t size;

    memset(&message, 0, sizeof message);
    write_one(input, kind, &message);
    size = message.head.size;
    memcpy(bytes, &message, sizeof message);
    if (damage & 1)
        fuzz_damage(input, bytes, sizeof message);
    if (damage & 2)
        size = fuzz_length(input);
    if (damage & 4)
        fds = fuzz_fds_make(input);
    else if (message.head.type == GS_WIRE_SHARE)
        fds = fuzz_fds_make(&(struct fuzz_input){(const uint8_t *)"\1\0", 2});
    else if (message.head.type == GS_WIRE_PUBLISH)
        fds = fuzz_confirmed_make(input);
    fuzz_send(fd, bytes, size, &fds);
    fuzz_fds_close(&fds);
    if (message.head.type == GS_WIRE_HELLO && !damage) /* or it says that itself, or not at all */
        leave_by_hand(fd);
}

/* Reads all there is, until the other side hangs up. Returns why it refused something last; 0: it
 * did not. */
static uint32_t drain(int fd)
{
    union gs_wire_message message;
    int got_fd, error = 0;
    uint32_t refused = 0;

    while (error != -ENOTCONN && error != -EPIPE) {
        CHECK(fuzz_readable(fd, SOON));
        error = fuzz_receive(fd, &message, &got_fd);
        if (got_fd >= 0)
            close(got_fd);
        /* A broker says nothing that is not valid. */
        CHECK(error == 0 || error == -EAGAIN || error == -ENOTCONN || error == -ECONNRESET ||
              error == -EPIPE);
        if (error == 0 && message.head.type == GS_WIRE_REFUSE)
            refused = message.refuse.reason;
    }
    return refused;
}

static uint32_t end(int *fd)
{
    uint32_t refused;

    shutdown(*fd, SHUT_WR);
    refused = drain(*fd);
    close(*fd);
    *fd = -1;
    return refused;
}

static void send_whole(int fd, const union gs_wire_message *message, struct fuzz_fds *fds)
{
    CHECK(fuzz_send(fd, message, message->head.size, fds));
    fuzz_fds_close(fds);
}

/* What another machine has, until its agent says that it is over; this one's have gone. */
static unsigned count_lent(void)
{
    struct gs_export *export, *next;
    unsigned count = 0;

    gs_lock_take(&broker->lock);
    HASH_ITER(hh, broker->exporter.exports, export, next)
        count += export->far && export->far->lent;
    gs_lock_release(&broker->lock);
    return count;
}

/* What the others left is gone at last. False: but for what is lent, which stays. */
static bool wait_for_room(void)
{
    uint64_t limit = side_now() + KEEP_NS + SOON * UINT64_C(1000000);
    struct gs_share_stats stats;
    unsigned lent;

    do {
        CHECK(side_now() < limit);
        usleep(1000);
        lent = count_lent();
        gs_share_stats(broker, &stats);
    } while (stats.exports > lent);
    return lent == 0;
}

/* Two processes that the others knew nothing of: one leaves a block and ends, one opens it. Where
 * that came too late nothing is proven. */
static void honest_ones(void)
{
    struct gs_ipc_handle ipc_handle = {.block_id = 1, .chunk_id = 1, .size = 4096};
    struct fuzz_fds none = {.count = 0}, memory;
    union gs_wire_message message;
    int fd = dial(), got_fd = -1;
    uint64_t left_ns;
    uint32_t refused;

    if (!wait_for_room()) {
        end(&fd);
        return;
    }
    gs_random(ipc_handle.instance, sizeof ipc_handle.instance);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle.instance, GS_INSTANCE_SIZE);
    send_whole(fd, &message, &none);
    leave_by_hand(fd);
    gs_wire_start(&message, GS_WIRE_SHARE, 0);
    message.share.slot = 1;
    gs_ipc_handle_write(&ipc_handle, message.share.ipc_handle);
    message.share.chunk_size = CHUNK;
    memory = fuzz_fds_make(&(struct fuzz_input){(const uint8_t *)"\1\0", 2});
    send_whole(fd, &message, &memory);
    left_ns = side_now();
    refused = end(&fd);
    fd = dial();
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle.instance, GS_INSTANCE_SIZE);
    send_whole(fd, &message, &none);
    do {
        /* as gs_remote_request: the broker may hang up on the exporter a moment before it takes it
         * for ended */
        gs_wire_start(&message, GS_WIRE_OPEN, 1);
        gs_ipc_handle_write(&ipc_handle, message.open.ipc_handle);
        message.open.want_fd = 1;
        send_whole(fd, &message, &none);
        CHECK(fuzz_readable(fd, SOON) && fuzz_receive(fd, &message, &got_fd) == 0);
    } while (message.head.type == GS_WIRE_REFUSE && message.refuse.reason == GS_REFUSED_EARLY &&
             side_now() - left_ns < KEEP_NS);
    if (message.head.type == GS_WIRE_REFUSE)
        fprintf(stderr, "refused: who opens: %s; who shared: %s\n",
                gs_wire_reason_text(message.refuse.reason),
                refused ? gs_wire_reason_text(refused) : "no");
    CHECK((message.head.type == GS_WIRE_GRANT && got_fd >= 0) || side_now() - left_ns >= KEEP_NS);
    if (got_fd >= 0)
        close(got_fd);
    end(&fd);
    honest++;
    served += message.head.type == GS_WIRE_GRANT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned round;
    struct fuzz_input input = {data, size};
    int fds[2] = {-1, -1};

    if (round++ % ROUNDS == 0)
        start();
    for (unsigned i = 0; i < 64 && input.left; i++) {
        uint8_t kind = fuzz_byte(&input);
        int *fd = &fds[kind >> 7];

        if (*fd < 0)
            *fd = dial();
        if ((kind & 0x7f) < 4)
            end(fd);
        else
            send_one(*fd, &input, kind);
    }
    for (unsigned i = 0; i < 2; i++)
        if (fds[i] >= 0)
            end(&fds[i]);
    if (round % 256 == 0)
        honest_ones();
    return 0;
}
