/*
 * An exporter and a client that says anything: whole and broken messages in any order, handles that
 * are right and nearly right, descriptors nobody asked for. The last block is freed now and then by
 * a program that is short of memory, so the client is asked what it gives back, and answers or not.
 * The exporter is asked for memory as well, and gives half of it. The exporter is one as programs
 * have it, with its thread and its socket. The client shuts its side down at the end, and must be
 * hung up on soon: an exporter that is stuck fails here. After that an honest client is still
 * served.
 */
#include "message.h"

#include "../unit/share/side.h"
#include "core/share/event.h"
#include "core/share/internal.h"

#define ROUNDS 200 /* with one exporter: clients that did not give back rest there for a while */
#define BLOCKS 3
#define SOON   20000 /* ms */
#define LAST   (BLOCKS - 1)
#define FREES  3  /* questions of one input at most, */
#define ASKED  10 /* each of which the client waits for for so long, in ms */

static struct side side;
static struct side_chunk chunk;
static struct gs_export *exports[BLOCKS];
static unsigned char ipc_handles[BLOCKS][GS_IPC_HANDLE_SIZE];
static struct sockaddr_un address;
static char dir[64];
static struct gs_event_handle event; /* of a file of events */

/* Another thread of the exporter's program is short of memory: it waits for what others have. */
static sem_t is_short, has_waited;
static bool freed, waits; /* the last block; that thread */
static unsigned frees;    /* of this input */
static uint64_t question; /* the last FLUSH that the client has seen */

static void *be_short(void *arg)
{
    for (;;) {
        while (sem_wait(&is_short) != 0)
            continue;
        gs_share_await_given_back(side.share, NULL, 0);
        sem_post(&has_waited);
    }
    return arg;
}

static bool give_half(void *arg, enum gs_question asked, unsigned device, union gs_told *told)
{
    unsigned char uuid[16];
    uint64_t wanted;

    if (asked == GS_ASKED_TO_SET) {
        CHECK(memchr(told->setting.name, 0, GS_SLEEP_DIRECTORY));
        told->setting.after = told->setting.value;
        return told->setting.value % 2;
    }
    if (asked != GS_ASKED_MEMORY)
        return false;
    CHECK(gs_share_purge(side.share, uuid, &wanted));
    if (wanted > 0)
        gs_share_purged(side.share, wanted / 2);
    return wanted > 0; /* what is not to be given is told by who has asked */
}

static void stop(void)
{
    while (waits && sem_wait(&has_waited) != 0)
        continue;
    waits = freed = false;
    side_stop(&side);
    side_chunk_free(&side, &chunk);
}

static void clean_up(void)
{
    stop();
    side_dir_remove(dir);
}

static void export(unsigned block)
{
    CHECK(side_export(&side, &chunk, block * 4096, 4096, &exports[block]) == GS_OK);
    gs_export_handle(exports[block], ipc_handles[block]);
}

static void export_event(void)
{
    static struct gs_fd file;

    if (!file.any)
        file = gs_fd_keep(memfd_create("events", MFD_CLOEXEC));
    event = (struct gs_event_handle){.pid = 1, .number = 3};
    CHECK(gs_event_export(side.share, &file, &event) == GS_OK);
}

/* The last block is there again as soon as nobody holds it. */
static void export_again(void)
{
    if (!freed || !gs_share_withdraw(side.share, exports[LAST]))
        return;
    freed = false;
    export(LAST);
}

static void start(void)
{
    struct gs_share_options options;
    pthread_t thread;

    if (!dir[0]) {
        side_dir_new(dir, sizeof dir);
        CHECK(sem_init(&is_short, 0, 0) == 0 && sem_init(&has_waited, 0, 0) == 0);
        CHECK(pthread_create(&thread, NULL, be_short, NULL) == 0);
        atexit(clean_up);
    } else {
        stop();
    }
    side_options(&options, dir);
    options.settle_ns = 0;
    options.max_clients = 1024;
    side_start(&side, &options);
    side.share->events.asked = give_half;
    chunk = side_chunk_new(&side, 2 * MIB);
    for (unsigned i = 0; i < BLOCKS; i++)
        export(i);
    export_event();
    address = fuzz_address(dir, ipc_handles[0] + offsetof(struct gs_ipc_handle, instance));
}

static void write_hello(union gs_wire_message *message)
{
    gs_wire_start(message, GS_WIRE_HELLO, 0);
    memcpy(message->hello.instance, ipc_handles[0] + offsetof(struct gs_ipc_handle, instance),
           GS_INSTANCE_SIZE);
    message->hello.pid = 1;
    memcpy(message->hello.name, "fuzz", 5);
}

static void write_open(union gs_wire_message *message, unsigned block, uint32_t want_fd)
{
    gs_wire_start(message, GS_WIRE_OPEN, 1);
    memcpy(message->open.ipc_handle, ipc_handles[block % BLOCKS], GS_IPC_HANDLE_SIZE);
    message->open.want_fd = want_fd;
}

/* Reads all there is; whether the other side has hung up within `limit_ms`. */
static bool drain(int fd, int limit_ms)
{
    union gs_wire_message message;
    int got_fd, error;

    while (fuzz_readable(fd, limit_ms)) {
        error = fuzz_receive(fd, &message, &got_fd);
        if (got_fd >= 0)
            close(got_fd);
        if (error == 0 && message.head.type == GS_WIRE_FLUSH)
            question = message.flush.number;
        if (error == -ENOTCONN || error == -ECONNRESET || error == -EPIPE)
            return true;
        CHECK(error == 0 || error == -EAGAIN); /* an exporter says nothing that is not valid */
    }
    return false;
}

/* The last block is freed and the memory short; the client hears of it, if it holds that. */
static void free_last(int fd)
{
    if (!freed)
        gs_share_freed(side.share, exports[LAST], side_now());
    freed = true;
    if (++frees > FREES || (waits && sem_trywait(&has_waited) != 0))
        return;
    waits = true;
    sem_post(&is_short);
    drain(fd, ASKED);
}

static void send_one(int fd, struct fuzz_input *input)
{
    uint8_t bytes[FUZZ_BYTES] = {0}, kind = fuzz_byte(input);
    union gs_wire_message message;
    size_t size;
    struct fuzz_fds fds;

    memset(&message, 0, sizeof message);
    switch (kind % 6) {
    case 0:
        write_hello(&message);
        break;
    case 1:
        write_open(&message, fuzz_byte(input), fuzz_byte(input) % 3);
        break;
    case 2:
        gs_wire_start(&message, GS_WIRE_CLOSE, fuzz_byte(input) % 4 > 0);
        message.close.block_id = fuzz_byte(input) % (BLOCKS + 2);
        break;
    case 3:
        gs_wire_start(&message, GS_WIRE_HELLO + fuzz_byte(input) % (GS_WIRE_TYPES - 1), 0);
        fuzz_fill(input, &message);
        if (message.head.type == GS_WIRE_FLUSHED && message.flush.number == 0)
            message.flush.number = question;
        if (message.head.type == GS_WIRE_QUERY && message.query.about == GS_ABOUT_EVENTS &&
            message.query.number == event.number)
            memcpy(message.query.secret, event.secret, sizeof event.secret);
        break;
    case 5:
        free_last(fd);
        return;
    default:
        break;
    }
    size = message.head.size;
    memcpy(bytes, &message, sizeof message);
    if (kind % 6 == 4)
        size = fuzz_bytes(input, bytes, fuzz_byte(input) * (size_t)2);
    if (kind & 0x40)
        fuzz_damage(input, bytes, sizeof message);
    if (kind & 0x80)
        size = fuzz_length(input);
    memset(&fds, 0, sizeof fds);
    if (kind & 0x20)
        fds = fuzz_fds_make(input);
    fuzz_send(fd, bytes, size, &fds);
    fuzz_fds_close(&fds);
}

static void honest_client(void)
{
    union gs_wire_message message;
    struct fuzz_fds none = {.count = 0};
    int fd = fuzz_dial(&address), got_fd;

    write_hello(&message);
    CHECK(fuzz_send(fd, &message, message.head.size, &none));
    write_open(&message, 0, 1);
    CHECK(fuzz_send(fd, &message, message.head.size, &none));
    CHECK(fuzz_readable(fd, SOON) && fuzz_receive(fd, &message, &got_fd) == 0);
    CHECK(message.head.type == GS_WIRE_GRANT && got_fd >= 0);
    close(got_fd);
    gs_wire_start(&message, GS_WIRE_CLOSE, 1);
    message.close.block_id = 1;
    CHECK(fuzz_send(fd, &message, message.head.size, &none));
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned round;
    struct fuzz_input input = {data, size};
    int fd;

    if (round++ % ROUNDS == 0)
        start();
    export_again();
    frees = 0;
    fd = fuzz_dial(&address);
    for (unsigned i = 0; i < 64 && input.left; i++)
        send_one(fd, &input);
    shutdown(fd, SHUT_WR);
    CHECK(drain(fd, SOON));
    close(fd);
    if (round % 16 == 0)
        honest_client();
    return 0;
}
