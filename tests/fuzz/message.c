/* Sending for the fuzz targets (message.h). */
#include "message.h"

#include "core/share/ipc_handle.h"

static int some_fd(uint8_t kind)
{
    int fd;

    switch (kind % 4) {
    case 0: /* what an honest exporter sends */
        fd = memfd_create("chunk", MFD_CLOEXEC);
        CHECK(fd >= 0 && ftruncate(fd, 2 << 20) == 0);
        return fd;
    case 1:
        return memfd_create("empty", MFD_CLOEXEC);
    case 2:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    default:
        return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    }
}

struct fuzz_fds fuzz_fds_make(struct fuzz_input *input)
{
    struct fuzz_fds made = {.count = fuzz_byte(input) % (FUZZ_FDS + 1)};

    for (unsigned i = 0; i < made.count; i++) {
        made.fds[i] = some_fd(fuzz_byte(input));
        CHECK(made.fds[i] >= 0);
    }
    return made;
}

size_t fuzz_length(struct fuzz_input *input)
{
    size_t high = fuzz_byte(input);

    return (high * 256 + fuzz_byte(input)) % (FUZZ_BYTES + 1);
}

static void fill_publish(struct fuzz_input *input, struct gs_wire_publish *leave)
{
    leave->uid_count = fuzz_byte(input);
    leave->gid_count = fuzz_byte(input);
    for (unsigned i = 0; i < leave->uid_count % 4; i++)
        leave->uids[i] = fuzz_byte(input);
    for (unsigned i = 0; i < leave->gid_count % 4; i++)
        leave->gids[i] = fuzz_byte(input);
}

static void fill_order(struct fuzz_input *input, struct gs_wire_order *order)
{
    static const char *const names[] = {"log", "pool.decay", "pool.cache_limit", "nothing"};
    uint8_t kind = fuzz_byte(input), name = fuzz_byte(input);

    order->kind = kind % 8;
    order->verb = kind / 8 % 4;
    order->number = kind == 255;
    if (name == 255)
        memset(order->name, 'x', sizeof order->name); /* does not end */
    else if (order->kind == GS_ORDER_SET)
        strcpy(order->name, names[name % 4]);
    else if (order->kind == GS_ORDER_UNNAME)
        order->name[0] = (char)('a' + name % 4);
    order->uuid[0] = name % 3;
    order->value = fuzz_byte(input) * UINT64_C(0x0101010101010101); /* little, or all there is */
}

static void fill_done(struct fuzz_input *input, struct gs_wire_done *done)
{
    done->given = fuzz_byte(input) * UINT64_C(0x0101010101010101);
    done->more = fuzz_byte(input) % 3;
    done->outcome = fuzz_byte(input) % 16 == 15;
}

/* Often what fits memory of two pieces of 2 MiB. */
static void fill_batch(struct fuzz_input *input, struct gs_wire_batch *batch)
{
    uint8_t kind = fuzz_byte(input);

    batch->first = kind & 2 ? fuzz_byte(input) : 0;
    batch->count = kind & 4 ? fuzz_byte(input) : 1 + kind / 128;
    for (unsigned i = 0; i < 3; i++)
        batch->sizes[i] = kind & 8 ? fuzz_byte(input) * UINT64_C(0x0101010101010101)
                                   : (UINT64_C(1) + (kind >> 4) % 3) << 21;
}

/* One of few names, so that they meet each other; or none. */
static void fill_text(struct fuzz_input *input, char *text, size_t size)
{
    uint8_t kind = fuzz_byte(input);

    if (kind == 255)
        memset(text, 'x', size); /* does not end */
    else if (kind == 254)
        text[size - 2] = 'x'; /* nor begins */
    else
        text[0] = (char)('a' + kind % 4);
}

static void fill_name(struct fuzz_input *input, struct gs_wire_name *name)
{
    uint8_t kind = fuzz_byte(input);

    fill_text(input, name->naming.name, sizeof name->naming.name);
    name->block_id = kind % 4;
    name->offset = kind & 4 ? 700 : 0;
    name->since_ns = kind & 8 ? UINT64_MAX : kind / 16;
    name->naming.note_size = kind & 16 ? fuzz_byte(input) * 2 : 0;
    memset(name->naming.label, kind & 32 ? 'l' : 0, kind & 64 ? 64 : 3);
}

static void fill_query(struct fuzz_input *input, struct gs_wire_query *query)
{
    uint8_t kind = fuzz_byte(input);

    query->about = kind % 8;
    query->index = kind / 16;
    query->number = fuzz_byte(input) % 4;
    memset(query->secret, fuzz_byte(input), sizeof query->secret);
    if (kind & 8)
        fill_text(input, query->name, sizeof query->name);
}

void fuzz_fill(struct fuzz_input *input, union gs_wire_message *message)
{
    _Static_assert(FUZZ_BYTES >= sizeof *message, "any message");
    if (message->head.type == GS_WIRE_PUBLISH)
        fill_publish(input, &message->publish);
    else if (message->head.type == GS_WIRE_ORDER)
        fill_order(input, &message->order);
    else if (message->head.type == GS_WIRE_DONE)
        fill_done(input, &message->done);
    else if (message->head.type == GS_WIRE_GRANT)
        fill_batch(input, &message->grant.batch);
    else if (message->head.type == GS_WIRE_NAME)
        fill_name(input, &message->name);
    else if (message->head.type == GS_WIRE_QUERY)
        fill_query(input, &message->query);
    else if (message->head.size == sizeof message->close) /* and of all that carry one number */
        message->close.block_id = fuzz_byte(input) % 8;
}

struct fuzz_fds fuzz_confirmed_make(struct fuzz_input *input)
{
    struct fuzz_fds made = {.count = 1};
    uint8_t kind = fuzz_byte(input);

    if (kind & 1)
        return fuzz_fds_make(input);
    made.fds[0] = memfd_create("confirmed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(made.fds[0] >= 0);
    for (uint64_t id = 0; id < kind / 16; id++)
        CHECK(write(made.fds[0], &id, sizeof id) == (ssize_t)sizeof id);
    if (!(kind & 2))
        CHECK(fcntl(made.fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    return made;
}

void fuzz_fds_close(const struct fuzz_fds *fds)
{
    for (unsigned i = 0; i < fds->count; i++)
        close(fds->fds[i]);
}

bool fuzz_send(int socket, const void *bytes, size_t size, const struct fuzz_fds *fds)
{
    char control[CMSG_SPACE(FUZZ_FDS * sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

    if (fds->count) {
        struct cmsghdr *attached;

        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fds->count * sizeof(int));
        attached = CMSG_FIRSTHDR(&header);
        attached->cmsg_level = SOL_SOCKET;
        attached->cmsg_type = SCM_RIGHTS;
        attached->cmsg_len = CMSG_LEN(fds->count * sizeof(int));
        memcpy(CMSG_DATA(attached), fds->fds, fds->count * sizeof(int));
    }
    return sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)size;
}

int fuzz_dial(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(fd >= 0);
    while (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        CHECK(errno == EINTR);
    return fd;
}

bool fuzz_readable(int fd, int limit_ms)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int got;

    do
        got = poll(&ready, 1, limit_ms);
    while (got < 0 && errno == EINTR);
    return got > 0;
}

struct sockaddr_un fuzz_address(const char *dir, const unsigned char *instance)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path, sizeof address.sun_path, "%.60s/", dir);

    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        n += sprintf(address.sun_path + n, "%02x", instance[i]);
    return address;
}

int fuzz_receive(int fd, union gs_wire_message *ret_message, int *ret_fd)
{
    struct gs_wire_fds fds;
    int error = gs_wire_receive_all(fd, ret_message, &fds);

    *ret_fd = fds.count > 0 ? fds.fd[0] : -1;
    for (unsigned i = 1; i < fds.count; i++)
        close(fds.fd[i]);
    return error;
}
