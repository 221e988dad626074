/* Attackers that pose as exporters or brokers (siege.h). */
#include "siege.h"
#include "tests/system.h"

/* Never takes the connections that are made to it, and there is room for none more. */
static void takes_none(enum siege_position position)
{
    struct sockaddr_un own = {.sun_family = AF_UNIX};
    int error = 0;

    siege_listen_as(position, own.sun_path);
    while (error == 0) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        error = connect(fd, (struct sockaddr *)&own, sizeof own) ? errno : 0;
    }
    if (error != EAGAIN)
        _exit(1);
    siege_stays();
}

static void exporter_takes_none(void)
{
    takes_none(FAKE_EXPORTER);
}

static void broker_takes_none(void)
{
    takes_none(FAKE_BROKER);
}

/* Reads until it was told that, and then nothing more. */
static int hears_until(enum siege_position position, enum gs_wire_type last)
{
    char path[108];
    int listener = siege_listen_as(position, path), fd = -1, type = 0;
    union gs_wire_message message;

    while (type != (int)last) {
        if (fd < 0) /* some only look who lives */
            fd = accept(listener, NULL, NULL);
        type = siege_hear(fd, &message);
        if (type == 0) {
            close(fd);
            fd = -1;
        }
        if (type == GS_WIRE_PUBLISH)
            siege_say_type(fd, GS_WIRE_PULL);
        if (type == GS_WIRE_OPEN)
            memcpy(siege->ipc_handle, message.open.ipc_handle, GS_IPC_HANDLE_SIZE);
    }
    return fd;
}

static void exporter_is_silent(void)
{
    hears_until(FAKE_EXPORTER, GS_WIRE_OPEN);
    siege_stays();
}

static void broker_reads_no_more(void)
{
    hears_until(FAKE_BROKER, GS_WIRE_SHARE);
    siege_stays();
}

static void broker_is_silent_to_importers(void)
{
    hears_until(FAKE_BROKER, GS_WIRE_OPEN);
    siege_stays();
}

static void grant(int fd)
{
    int memory = memfd_create("grant", MFD_CLOEXEC);
    struct gs_ipc_handle asked;

    if (ftruncate(memory, 2 << 20) != 0 || gs_ipc_handle_read(siege->ipc_handle, &asked) != GS_OK)
        _exit(1);
    siege_say(fd,
              MESSAGE(GRANT, 1,
                      .grant = {.block_id = asked.block_id,
                                .chunk_id = asked.chunk_id,
                                .chunk_size = 2 << 20,
                                .size = asked.size,
                                .pieces = 1,
                                .batch = {.count = 1, .sizes = {2 << 20}}}),
              memory);
    close(memory);
}

/* Says all that one can say, in turn from the first and without end, and reads nothing. */
static void talks(int fd, enum gs_wire_type first)
{
    for (unsigned i = 0;; i++) {
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        enum gs_wire_type type = 1 + (first - 1 + i) % (GS_WIRE_TYPES - 1);
        int error;

        if (i >= 20 * GS_WIRE_TYPES)
            siege_holds();
        while ((error = siege_say_type(fd, type)) == -EAGAIN) {
            siege_holds(); /* nobody reads it any more */
            poll(&room, 1, 50);
        }
        if (error == -EPIPE || error == -ECONNRESET) /* hung up on, for what came before it */
            siege_tried(type);
    }
}

static void exporter_talks(void)
{
    int fd = hears_until(FAKE_EXPORTER, GS_WIRE_OPEN);

    grant(fd);
    talks(fd, GS_WIRE_HELLO);
}

static void exporter_talks_and_grants_nothing(void)
{
    talks(hears_until(FAKE_EXPORTER, GS_WIRE_OPEN), GS_WIRE_RECALL);
}

static void broker_talks(void)
{
    talks(hears_until(FAKE_BROKER, GS_WIRE_SHARE), GS_WIRE_RECALL);
}

/* And reads none of the answers. */
static void broker_asks(void)
{
    int fd = hears_until(FAKE_BROKER, GS_WIRE_SHARE);

    for (unsigned i = 0;; i++) {
        struct pollfd room = {.fd = fd, .events = POLLOUT};

        while (siege_say_type(fd, GS_WIRE_PULL) == -EAGAIN)
            poll(&room, 1, 50);
        if (i == 1000)
            siege_holds();
    }
}

#define TO_IMPORTERS (SAYS(GRANT) | SAYS(REFUSE) | SAYS(RECALL) | SAYS(FLUSH) | SAYS(REPORT))

const struct siege_attack siege_posers[] = {
    {"takes no connection", IMPORTER, FAKE_EXPORTER, 0, TAKES(CONNECTIONS), exporter_takes_none},
    {"is silent", IMPORTER, FAKE_EXPORTER, SAYS(HELLO) | SAYS(OPEN), TAKES(TURNS),
     exporter_is_silent},
    {"grants and talks without end", IMPORTER, FAKE_EXPORTER, TO_IMPORTERS,
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), exporter_talks},
    {"talks without end", IMPORTER, FAKE_EXPORTER, TO_IMPORTERS,
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), exporter_talks_and_grants_nothing},
    {"takes no connection", IMPORTER, FAKE_BROKER, 0, TAKES(CONNECTIONS), broker_takes_none},
    {"is silent", IMPORTER, FAKE_BROKER, SAYS(HELLO) | SAYS(OPEN), TAKES(TURNS),
     broker_is_silent_to_importers},
    {"takes no connection", PUBLISHER, FAKE_BROKER, 0, TAKES(CONNECTIONS), broker_takes_none},
    {"reads nothing more", PUBLISHER, FAKE_BROKER, SAYS(HELLO) | SAYS(PUBLISH) | SAYS(SHARE),
     TAKES(EXPORTS) | TAKES(SOCKET_MEMORY) | TAKES(UNDER_WAY), broker_reads_no_more},
    {"talks without end", PUBLISHER, FAKE_BROKER,
     SAYS(GRANT) | SAYS(REFUSE) | SAYS(REPORT) | SAYS(QUERY) | SAYS(RECALL),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), broker_talks},
    {"asks without end", PUBLISHER, FAKE_BROKER, SAYS(PULL),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY) | TAKES(UNDER_WAY), broker_asks},
};
const size_t siege_poser_count = sizeof siege_posers / sizeof *siege_posers;
