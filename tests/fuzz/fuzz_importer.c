/*
 * An importer and an exporter that answers anything: grants for other blocks, of other sizes,
 * without a descriptor or with three, twice, cut off, or nothing; and that asks for blocks, chunks
 * and what was closed whenever it likes. Opens must end in time with an error or with a block as
 * its handle says, and leave nothing behind. Now and then it is asked for memory before that. Now
 * and then it is asked for memory before.
 */
#include "message.h"

#include "../unit/share/side.h"
#include "core/share/event.h"
#include "core/share/wire.h"

#define BLOCKS     4
#define STRIP      3 /* one of them is a strip of two pieces */
#define STRIP_SIZE (4 * MIB)
#define BLOCK_SIZE 4096
#define TIMEOUT_NS (50 * UINT64_C(1000000))

static const unsigned char instance[GS_INSTANCE_SIZE] = "a false exporter";
static char dir[64];
static int listener;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct fuzz_input answers; /* under the mutex */

/* What an exporter says unasked. The bits of *asked are the FLUSHes that may be answered;
 * all: any number may. */
static void say_unasked(int fd, uint64_t *asked)
{
    static const enum gs_wire_type types[] = {GS_WIRE_FLUSH, GS_WIRE_RECALL};
    struct fuzz_fds none = {.count = 0};
    union gs_wire_message message;

    gs_wire_start(&message, types[fuzz_byte(&answers) % 2], 0);
    fuzz_fill(&answers, &message);
    if (message.head.type == GS_WIRE_FLUSH)
        *asked |= UINT64_C(1) << message.flush.number;
    fuzz_send(fd, &message, message.head.size, &none);
}

/* One answer to an open, as the input says. False: hang up. */
static bool answer(int fd, const struct gs_wire_open *open, uint64_t *asked)
{
    union gs_wire_message message;
    struct fuzz_fds fds = {.count = 0};
    uint8_t bytes[FUZZ_BYTES] = {0}, kind = fuzz_byte(&answers);
    struct gs_ipc_handle ipc_handle;
    size_t size;

    if (gs_ipc_handle_read(open->ipc_handle, &ipc_handle) != GS_OK)
        return false;
    if (kind & 64)
        say_unasked(fd, asked);
    gs_wire_start(&message, kind & 1 ? GS_WIRE_REFUSE : GS_WIRE_GRANT, open->head.request);
    if (kind & 1) {
        message.refuse.reason = fuzz_byte(&answers);
        message.refuse.driver_error = fuzz_byte(&answers);
    } else {
        message.grant.block_id = ipc_handle.block_id;
        message.grant.chunk_id = ipc_handle.chunk_id;
        message.grant.chunk_size = 2 * MIB;
        message.grant.offset = ipc_handle.block_id * BLOCK_SIZE;
        message.grant.size = BLOCK_SIZE;
        if (ipc_handle.block_id == STRIP) {
            message.grant.chunk_size = message.grant.size = STRIP_SIZE;
            message.grant.offset = 2 * MIB;
            message.grant.ends = message.grant.own = 1;
        }
        message.grant.pieces = ipc_handle.block_id == STRIP ? 2 : 1;
        message.grant.batch.first = open->first;
        message.grant.batch.count = open->want_fd;
        message.grant.batch.sizes[0] = open->want_fd ? 2 * MIB : 0;
        memcpy(message.grant.uuid, "softdevice00000", 16);
    }
    size = message.head.size;
    memcpy(bytes, &message, sizeof message);
    if (kind & 2)
        fuzz_damage(&answers, bytes, sizeof message);
    memcpy(&message, bytes, sizeof message);
    if (message.head.type == GS_WIRE_FLUSH) /* by the damage */
        *asked = UINT64_MAX;
    if (kind & 4)
        fds = fuzz_fds_make(&answers);
    else if (open->want_fd)
        fds = fuzz_fds_make(&(struct fuzz_input){(const uint8_t *)"\1\0", 2});
    if (kind & 8)
        size = fuzz_length(&answers);
    if (kind & 16)
        fuzz_send(fd, bytes, size, &fds);
    fuzz_send(fd, bytes, size, &fds);
    if (kind & 128)
        say_unasked(fd, asked);
    fuzz_fds_close(&fds);
    return !(kind & 32);
}

/* To a QUERY about events, of which each connection has one. */
static void give_file(int fd, uint32_t request)
{
    uint8_t kind = fuzz_byte(&answers);
    struct fuzz_fds fds =
        fuzz_fds_make(kind & 1 ? &answers : &(struct fuzz_input){(const uint8_t *)"\1\0", 2});
    union gs_wire_message message;

    gs_wire_start(&message, kind & 2 ? GS_WIRE_REFUSE : GS_WIRE_REPORT, request + (kind > 250));
    if (kind & 2)
        message.refuse.reason = fuzz_byte(&answers) % 16;
    if (kind & 4)
        fuzz_damage(&answers, &message, message.head.size);
    if (kind & 8)
        fuzz_send(fd, &message, message.head.size % sizeof message, &fds);
    fuzz_send(fd, &message,
              kind & 16                 ? fuzz_length(&answers) % sizeof message
              : kind & 2 && !(kind & 4) ? sizeof message.refuse
                                        : sizeof message.report,
              &fds);
    fuzz_fds_close(&fds);
}

/* To an ORDER. It hangs up then: one that is silent is waited for. */
static void give(int fd, uint32_t request)
{
    uint8_t kind = fuzz_byte(&answers);

    for (unsigned i = 0; i <= kind % 4u; i++) {
        struct fuzz_fds fds = {.count = 0};
        union gs_wire_message message;

        gs_wire_start(&message, kind & 4 ? GS_WIRE_REFUSE : GS_WIRE_DONE, request + (kind > 250));
        fuzz_fill(&answers, &message);
        if (kind & 8)
            fuzz_damage(&answers, &message, sizeof message);
        if (kind & 16)
            fds = fuzz_fds_make(&answers);
        fuzz_send(fd, &message,
                  kind & 32 ? fuzz_length(&answers) % sizeof message : sizeof message.done, &fds);
        fuzz_fds_close(&fds);
    }
}

static void serve(int fd)
{
    union gs_wire_message message;
    uint64_t asked = 0;
    bool stays = true;

    while (stays) {
        ssize_t got = recv(fd, &message, sizeof message, 0);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return;
        CHECK(
            gs_wire_valid(&message, (size_t)got)); /* an importer says nothing that is not valid */
        if (message.head.type == GS_WIRE_FLUSHED)
            CHECK(asked == UINT64_MAX ||
                  (message.flush.number < 8 && asked >> message.flush.number & 1));
        if (message.head.type == GS_WIRE_ORDER) {
            pthread_mutex_lock(&mutex);
            give(fd, message.head.request);
            pthread_mutex_unlock(&mutex);
            return;
        }
        if (message.head.type == GS_WIRE_QUERY) {
            pthread_mutex_lock(&mutex);
            give_file(fd, message.head.request);
            pthread_mutex_unlock(&mutex);
            return;
        }
        if (message.head.type != GS_WIRE_OPEN)
            continue;
        pthread_mutex_lock(&mutex);
        stays = answers.left && answer(fd, &message.open, &asked);
        pthread_mutex_unlock(&mutex);
    }
}

static void *serve_all(void *arg)
{
    int fd;

    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == EINTR) {
        if (fd < 0)
            continue;
        serve(fd);
        close(fd);
    }
    return arg;
}

static void clean_up(void)
{
    side_dir_remove(dir);
}

static void start(void)
{
    struct sockaddr_un address;
    pthread_t thread;

    side_dir_new(dir, sizeof dir);
    atexit(clean_up);
    address = fuzz_address(dir, instance);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && mkdir(dir, 0700) == 0);
    CHECK(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(listener, 16) == 0 && pthread_create(&thread, NULL, serve_all, NULL) == 0);
}

static void write_ipc_handle(unsigned block, unsigned char ret_bytes[GS_IPC_HANDLE_SIZE])
{
    struct gs_ipc_handle ipc_handle = {.block_id = block,
                                       .chunk_id = block == STRIP ? 7 : 1 + block / 2,
                                       .size = block == STRIP ? STRIP_SIZE : BLOCK_SIZE};

    memcpy(ipc_handle.instance, instance, sizeof ipc_handle.instance);
    gs_ipc_handle_write(&ipc_handle, ret_bytes);
}

/* What was opened is a whole block inside a mapping that is there. */
static void look_at(struct side *side, CUdeviceptr address)
{
    struct gs_import_info info;

    CHECK(gs_share_find(side->share, address, &info) == GS_OK);
    CHECK((info.base == address && info.size == BLOCK_SIZE) ||
          (info.base + 2 * MIB == address && info.size == STRIP_SIZE));
}

/* It is believed as far as it was asked, and waited for as long as it may be. */
static void ask(struct side *side)
{
    struct gs_share_answers got;
    uint64_t began = side_now();

    gs_share_ask(side->share, side_gpu, MIB, &got);
    CHECK(got.given <= MIB);
    CHECK(side_now() - began < 400 * TIMEOUT_NS);
}

/* What it is led to is a file of memory, and only that; and any bytes for a handle. */
static void open_event(struct side *side)
{
    struct gs_event_handle handle = {.pid = 5, .number = 1, .magic = GS_EVENT_MAGIC}, led;
    uint64_t began = side_now();
    const char *reason;
    gs_status status;
    int fd = -1;

    memcpy(handle.instance, instance, sizeof instance);
    pthread_mutex_lock(&mutex);
    if (fuzz_byte(&answers) & 1)
        fuzz_damage(&answers, &handle.magic,
                    sizeof handle - offsetof(struct gs_event_handle, magic));
    pthread_mutex_unlock(&mutex);
    led = handle;
    status = gs_event_open(side->share, false, &led, &fd, &reason);
    CHECK(status == GS_OK || memcmp(&led, &handle, sizeof led) == 0);
    CHECK(status == GS_OK || (status == GS_UNREACHABLE && reason) || status == GS_NOT_OURS);
    if (status == GS_OK) {
        struct stat info;

        CHECK(led.pid > 0x7f000000 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode));
        CHECK(info.st_size >= GS_EVENT_FILE_SIZE);
        close(fd);
    }
    CHECK(side_now() - began < 400 * TIMEOUT_NS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    CUdeviceptr opened[8] = {0};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_share_options options;
    struct side side;
    uint8_t tries;

    if (!dir[0])
        start();
    side_options(&options, dir);
    options.timeout_ns = TIMEOUT_NS;
    pthread_mutex_lock(&mutex);
    answers = (struct fuzz_input){data, size};
    tries = fuzz_byte(&answers);
    pthread_mutex_unlock(&mutex);
    side_start(&side, &options);
    if (tries % 4 == 3)
        ask(&side);
    for (unsigned i = 0; i <= tries % 8; i++) {
        uint64_t began = side_now();

        write_ipc_handle((tries >> 3) * i % BLOCKS, ipc_handle);
        if (gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &opened[i]) == GS_OK)
            look_at(&side, opened[i]);
        else
            opened[i] = 0;
        CHECK(side_now() - began < 400 * TIMEOUT_NS);
    }
    if (tries % 2)
        open_event(&side);
    for (unsigned i = 0; i < 8; i++)
        if (opened[i])
            CHECK(gs_share_close(side.share, opened[i]) == GS_OK);
    side_stop(&side);
    CHECK(memdriver_alive() == 0);
    pthread_mutex_lock(&mutex);
    answers.left = 0;
    pthread_mutex_unlock(&mutex);
    return 0;
}
