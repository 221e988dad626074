/* Attackers that come as clients, to an exporter or a broker (siege.h). */
#include "siege.h"
#include "tests/children.h" /* SYS_pidfd_open */
#include "tests/system.h"

#define MANY   300 /* connections, or as many as go */
#define CLAIMS 40  /* each keeps a place for as long as the attacker lives */
#define NO_IMPORTERS \
    (SAYS(GRANT) | SAYS(REFUSE) | SAYS(RECALL) | SAYS(REPORT) | SAYS(FLUSH) | SAYS(DONE))

/* Whether it was hung up on; looks for a millisecond. */
static bool is_over(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLRDHUP};

    return poll(&look, 1, 1) > 0;
}

/* As many as it has descriptors for, and made anew where it was hung up on. */
static void connections(bool asks)
{
    int fds[MANY];

    memset(fds, -1, sizeof fds);
    for (unsigned i = 0;; i++) {
        int *fd = &fds[i % MANY];

        /* One who says nothing gives none back: for a moment there would be room for others. */
        if (i >= MANY && !asks && *fd >= 0 && !is_over(*fd)) {
            if (i >= 2 * MANY)
                siege_holds();
            continue;
        }
        if (*fd >= 0)
            close(*fd);
        *fd = asks ? siege_greeted() : siege_dial();
        if (*fd >= 0 && asks)
            siege_ask(*fd, 1);
        if (i >= 2 * MANY)
            siege_holds();
    }
}

static void silent(void)
{
    connections(false);
}

static void greets_and_asks(void)
{
    connections(true);
}

/* Asks for what it has no handle of as fast as it goes, and reads nothing. */
static void guess(int fd, unsigned round)
{
    for (int i = 0; i < 100 && siege_ask(fd, 1) == 0; i++)
        continue;
}

/* Asks who holds what, for which all exports are looked through. */
static void look_for_blocks(int fd, unsigned round)
{
    union gs_wire_message message = MESSAGE(QUERY, 1);

    for (unsigned i = 0; i < 200; i++) {
        message.query.index = i;
        if (siege_say(fd, message, -1) != 0)
            break;
    }
}

/* So many that the last ones are not read; each connection stays, and where it was hung up on what
 * is unread stays too. */
static void ask_unread(enum gs_wire_type type, unsigned times)
{
    for (unsigned i = 0; i < MANY; i++) {
        int fd = siege_greeted();
        struct pollfd answer = {.fd = fd, .events = POLLIN};

        if (fd < 0)
            continue;
        for (unsigned j = 0; j < times; j++)
            type == GS_WIRE_OPEN ? siege_ask(fd, 1) : siege_say_type(fd, type);
        poll(&answer, 1, 1000);
    }
    siege_stays();
}

static void questions_unread(void)
{
    ask_unread(GS_WIRE_QUERY, 4);
}

static void opens_unread(void)
{
    ask_unread(GS_WIRE_OPEN, 4);
}

/* One answer unread each, and then hung up on: what was sent stays under way. */
static void opens_unread_and_ends(void)
{
    for (unsigned i = 0; i < MANY; i++) {
        int fd = siege_greeted();
        struct pollfd answer = {.fd = fd, .events = POLLIN};

        if (fd < 0)
            continue;
        siege_ask(fd, 1);
        poll(&answer, 1, 1000);
        siege_say_type(fd, GS_WIRE_CLOSE);
        shutdown(fd, SHUT_WR);
    }
    siege_stays();
}

/* Every connection that it may have, with the block open. */
static void opens_with_all(void)
{
    union gs_wire_message message;

    for (unsigned i = 0; i < MANY; i++) {
        int fd = siege_greeted();

        if (fd < 0)
            continue;
        siege_ask(fd, 0);
        siege_hear(fd, &message);
    }
    siege_stays();
}

/* Opens and gives back without a pause. */
static void churns(void)
{
    union gs_wire_message message;
    int fd = siege_greeted();

    for (unsigned i = 0;; i++) {
        int arrived = -1;
        struct pollfd answer = {.fd = fd, .events = POLLIN};

        siege_ask(fd, i % 2);
        while (poll(&answer, 1, -1) == 1 && gs_wire_receive(fd, &message, &arrived) == 0 &&
               message.head.type != GS_WIRE_GRANT)
            continue;
        if (arrived >= 0)
            close(arrived);
        if (siege_say_type(fd, GS_WIRE_CLOSE) != 0) {
            close(fd);
            fd = siege_greeted();
        }
        if (i >= 200)
            siege_holds();
    }
}

/* Holds one block, has had another, and heeds nothing. */
static void heeds_nothing(void)
{
    union gs_wire_message message;
    int keeps = siege_greeted(), holds = siege_greeted();

    siege_ask(keeps, 0);
    siege_hear(keeps, &message);
    siege_say_type(keeps, GS_WIRE_CLOSE);
    siege_ask(holds, 0);
    siege_hear(holds, &message);
    siege_holds();
    for (;;) {
        struct pollfd both[2] = {{.fd = keeps, .events = POLLIN}, {.fd = holds, .events = POLLIN}};

        poll(both, 2, -1);
        for (int i = 0; i < 2; i++)
            if (both[i].revents && siege_hear(both[i].fd, &message) == 0)
                _exit(1); /* it was hung up on */
    }
}

/* Says what is not its to say, each time over a connection that has greeted. */
static void say_what_others_say(int fd, unsigned round)
{
    static const enum gs_wire_type types[] = {GS_WIRE_GRANT,   GS_WIRE_REFUSE, GS_WIRE_CLOSE,
                                              GS_WIRE_RECALL,  GS_WIRE_SHARE,  GS_WIRE_RING,
                                              GS_WIRE_REPORT,  GS_WIRE_FLUSH,  GS_WIRE_FLUSHED,
                                              GS_WIRE_PUBLISH, GS_WIRE_HELLO,  GS_WIRE_ORDER,
                                              GS_WIRE_DONE,    GS_WIRE_FORKED, GS_WIRE_NAME,
                                              GS_WIRE_PULL};

    siege_say_type(fd, types[round % (sizeof types / sizeof *types)]);
}

/* Opens what it has the handle of, gives back what it has not, tells of machines which nobody asked
 * about; reads nothing. */
static void say_as_agent(int fd, unsigned round)
{
    union gs_wire_message open = message_open(siege->ipc_handle, 0, GS_OPEN_HAS_IT);

    siege_say(fd, MESSAGE(HELLO, 1, .hello = {.agent = 1}), -1);
    open.open.uid = getuid();
    for (unsigned i = 1; i < 200; i++) {
        const unsigned number = (round + 1) * 200 + i;
        union gs_wire_message close = MESSAGE(CLOSE, 0, .close = {.block_id = number});

        open.head.request = number;
        siege_say(fd, open, -1);
        memset(close.close.instance, 0x66, GS_INSTANCE_SIZE);
        siege_say(fd, close, -1);
        siege_say(fd, MESSAGE(REPORT, number, .report = {.machine = {.client = number}}), -1);
    }
}

static int say_publish(int fd, int memory)
{
    return siege_say(fd, MESSAGE(PUBLISH, 0), memory);
}

/* A chunk; or one of many pieces, of which the last never comes. */
static int say_share(int fd, const struct gs_ipc_handle *of, uint32_t pieces, uint32_t piece,
                     int attached)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    union gs_wire_message message;

    gs_ipc_handle_write(of, ipc_handle);
    message = message_share(ipc_handle);
    message.share.chunk_size *= pieces ? pieces : 1;
    message.share.pieces = pieces;
    message.share.piece = piece;
    message.share.piece_size = 2 << 20;
    message.share.slot %= PUBLISH_SLOTS;
    return siege_say(fd, message, attached);
}

/* Returns when all that was said to a broker has been read: it answers in turn. */
static void is_read(int fd)
{
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    union gs_wire_message message;
    int type;

    while (siege_say_type(fd, GS_WIRE_QUERY) == -EAGAIN)
        poll(&room, 1, 10);
    while ((type = siege_hear(fd, &message)) != GS_WIRE_REPORT)
        if (type == 0)
            _exit(1); /* it was hung up on */
}

/* Waits to be asked; of which block for a piece, 0: for what is next. */
static uint64_t is_asked(int fd)
{
    union gs_wire_message message;
    int type;

    while ((type = siege_hear(fd, &message)) != GS_WIRE_PULL)
        if (type == 0)
            _exit(1); /* it was hung up on */
    return message.pull.block_id;
}

/* Leaves as much as goes, each block with a descriptor of its own, and every other one across many
 * pieces; goes on when nothing does. */
static void leaves_all_it_can(void)
{
    int fd = siege_dial(), memory = leave_memory(), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct gs_ipc_handle ipc_handle = {.size = 512};

    memset(ipc_handle.instance, 0x55, sizeof ipc_handle.instance);
    siege_greet(fd, ipc_handle.instance, NULL);
    say_publish(fd, memory);
    is_asked(fd);
    for (unsigned i = 0;; i++) {
        ipc_handle.block_id = ipc_handle.chunk_id = i + 1;
        say_share(fd, &ipc_handle, i % 2 * 100, 0, null);
        for (unsigned piece = 1; is_asked(fd) == ipc_handle.block_id && piece < 99; piece++)
            say_share(fd, &ipc_handle, 100, piece, null);
        if (i == 1000) { /* more than there is room for */
            is_read(fd);
            siege_holds();
        }
    }
}

/* From each of many connections, in names that are not its own. */
static void leaves_from_many(void)
{
    int fds[MANY], memory = leave_memory(), null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    memset(fds, -1, sizeof fds);
    for (unsigned i = 0;; i++) {
        int *fd = &fds[i % MANY];
        struct gs_ipc_handle ipc_handle = {.block_id = 1, .chunk_id = 1, .size = 512};

        if (*fd >= 0)
            close(*fd);
        *fd = siege_dial();
        memcpy(ipc_handle.instance, &i, sizeof i);
        if (*fd < 0)
            continue;
        siege_greet(*fd, ipc_handle.instance, NULL);
        say_publish(*fd, memory);
        say_share(*fd, &ipc_handle, 0, 0, null);
        siege_say_type(*fd, GS_WIRE_RING);
        if (i >= 2 * MANY)
            siege_holds();
    }
}

/* The blocks that another one will leave next. */
static void leave_in_anothers_name(int fd, unsigned round)
{
    struct gs_ipc_handle ipc_handle = {.chunk_id = 99, .size = 512};
    int memory = leave_memory(), null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    memcpy(ipc_handle.instance, siege->other, sizeof ipc_handle.instance);
    siege_greet(fd, ipc_handle.instance, NULL);
    say_publish(fd, memory);
    for (ipc_handle.block_id = 2; ipc_handle.block_id < 5; ipc_handle.block_id++)
        say_share(fd, &ipc_handle, 0, 0, null);
    close(memory);
    close(null);
}

/* In the name of an honest importer: what it has open, which then is not its any more. */
static void resume_what_another_has(int fd, unsigned round)
{
    siege_greet(fd, siege->ipc_handle + 8, siege->other);
    for (uint64_t id = 8; id-- > 0;)
        siege_say(fd, MESSAGE(RESUME, 1, .close = {.block_id = id}), -1);
}

/* As an honest importer, by its number and its pidfd: what ends with that is not the honest one's
 * lease. */
static void claims_to_be_another(void)
{
    int pidfd = (int)syscall(SYS_pidfd_open, siege->honest, 0);
    union gs_wire_message message;

    for (unsigned i = 0; i < CLAIMS; i++) {
        int fd = siege_dial();

        message = message_hello(siege->ipc_handle + 8);
        message.hello.pid = (uint64_t)siege->honest;
        siege_say(fd, message, pidfd);
        siege_ask(fd, 1);
        siege_hear(fd, &message);
        close(fd);
    }
    siege_stays();
}

/* With each connection goes what it held. */
static void leave_with_a_bye(int fd, unsigned round)
{
    union gs_wire_message message;

    siege_ask(fd, 0);
    siege_hear(fd, &message);
    siege_say_type(fd, GS_WIRE_BYE);
    siege_ask(fd, 0);
}

/* For all there is, over and over: one answer is read, the others are not waited for. */
static void ask_for_memory(int fd, unsigned round)
{
    union gs_wire_message message;

    siege_say_type(fd, GS_WIRE_ORDER);
    siege_hear(fd, &message);
    for (int i = 0; i < 10 && siege_say_type(fd, GS_WIRE_ORDER) == 0; i++)
        continue;
}

/* More names than there may be, each again and again, of a block that it has left. */
static void names_without_end(void)
{
    int fd = siege_dial(), memory = leave_memory(), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct gs_ipc_handle ipc_handle = {.block_id = 1, .chunk_id = 1, .size = 512};

    memset(ipc_handle.instance, 0x66, sizeof ipc_handle.instance);
    siege_greet(fd, ipc_handle.instance, NULL);
    say_publish(fd, memory);
    say_share(fd, &ipc_handle, 0, 0, null);
    for (unsigned i = 0;; i++) {
        union gs_wire_message message =
            MESSAGE(NAME, 0, .name = {.block_id = 1, .since_ns = UINT64_MAX}); /* the newest */

        is_asked(fd);
        snprintf(message.name.naming.name, GS_NAME_SIZE, "name-%u", i % 3000);
        siege_say(fd, message, -1);
        if (i >= 4000)
            siege_holds();
    }
}

/* Asks for names, and has them end, as fast as it goes; reads nothing. */
static void ask_for_names(int fd, unsigned round)
{
    bool goes = true;

    for (unsigned i = 0; i < 40 && goes; i++)
        goes = siege_say(fd,
                         i % 2 ? MESSAGE(QUERY, i, .query = {.about = GS_ABOUT_NEXT_NAME})
                               : MESSAGE(ORDER, i,
                                         .order = {.kind = GS_ORDER_UNNAME, .name = "name-1"}),
                         -1) == 0;
}

/* Asks for files of events, and reads nothing. */
static void ask_for_events(int fd, unsigned round)
{
    union gs_wire_message message = MESSAGE(QUERY, 0, .query = {.about = GS_ABOUT_EVENTS});

    for (unsigned i = 0; i < 40; i++) {
        message.head.request = i;
        message.query.number = i % 3;
        if (siege_say(fd, message, -1) != 0)
            break;
    }
}

/* Connects again and again, and then: struct siege_words. */
#define AGAIN(...)  \
    NULL,           \
    {               \
        __VA_ARGS__ \
    }
#define GUESSES  AGAIN(guess, 20, .greets = true)
#define LOOKS    AGAIN(look_for_blocks, 20, .greets = true)
#define MEMORY   AGAIN(ask_for_memory, 2 * MANY)
#define NAMES    AGAIN(ask_for_names, 2 * MANY)
#define EVENTS   AGAIN(ask_for_events, 2 * MANY)
#define MISTAKES AGAIN(say_what_others_say, 48, .greets = true)
#define BYES     AGAIN(leave_with_a_bye, 200, .greets = true)
#define RESUMES  AGAIN(resume_what_another_has, 20, .reads = true)
#define OTHERS   AGAIN(leave_in_anothers_name, 20, .reads = true)
#define AS_AGENT AGAIN(say_as_agent, 60)

const struct siege_attack siege_clients[] = {
    {"makes connections without end", EXPORTER, UNINVITED, SAYS(HELLO) | SAYS(OPEN),
     TAKES(CONNECTIONS), greets_and_asks},
    {"makes connections without end", EXPORTER, LISTED, SAYS(HELLO) | SAYS(OPEN),
     TAKES(CONNECTIONS) | TAKES(TURNS), greets_and_asks},
    {"makes silent connections without end", EXPORTER, SAME_USER, 0, TAKES(CONNECTIONS), silent},
    {"guesses without end", EXPORTER, SAME_USER, SAYS(HELLO) | SAYS(OPEN),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), GUESSES},
    {"looks for blocks without end", EXPORTER, LISTED, SAYS(QUERY),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), LOOKS},
    {"reads no answer to its questions", EXPORTER, LISTED, SAYS(QUERY),
     TAKES(SOCKET_MEMORY) | TAKES(UNDER_WAY), questions_unread},
    {"takes no descriptor", EXPORTER, LISTED_HOLDER, SAYS(OPEN),
     TAKES(UNDER_WAY) | TAKES(SOCKET_MEMORY), opens_unread},
    {"takes no descriptor and hangs up", EXPORTER, LISTED_HOLDER, SAYS(OPEN) | SAYS(CLOSE),
     TAKES(UNDER_WAY), opens_unread_and_ends},
    {"opens with all connections", EXPORTER, LISTED_HOLDER, SAYS(OPEN), TAKES(CONNECTIONS),
     opens_with_all},
    {"says bye and comes again", EXPORTER, LISTED_HOLDER, SAYS(OPEN) | SAYS(BYE),
     TAKES(CONNECTIONS), BYES},
    {"opens and closes without end", EXPORTER, HOLDER, SAYS(OPEN) | SAYS(CLOSE), TAKES(TURNS),
     churns},
    {"gives nothing back", EXPORTER, HOLDER, SAYS(OPEN) | SAYS(CLOSE) | SAYS(RECALL) | SAYS(FLUSH),
     TAKES(LIMBO), heeds_nothing},
    {"resumes what another has open", EXPORTER, HOLDER, SAYS(HELLO) | SAYS(RESUME), TAKES(LEASES),
     RESUMES},
    {"claims to be another", EXPORTER, HOLDER, SAYS(HELLO) | SAYS(OPEN), TAKES(CONNECTIONS),
     claims_to_be_another},
    {"asks for memory without end", EXPORTER, LISTED, SAYS(ORDER) | SAYS(REFUSE), TAKES(TURNS),
     MEMORY},
    {"asks for memory without end", EXPORTER, SAME_USER, SAYS(ORDER) | SAYS(DONE),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), MEMORY},
    {"says what is not its to say", EXPORTER, SAME_USER,
     NO_IMPORTERS | SAYS(CLOSE) | SAYS(FLUSHED) | SAYS(HELLO) | SAYS(SHARE) | SAYS(RING) |
         SAYS(PUBLISH) | SAYS(ORDER) | SAYS(PULL) | SAYS(FORKED) | SAYS(NAME),
     TAKES(TURNS), MISTAKES},
    {"asks for names without end", EXPORTER, LISTED, SAYS(QUERY) | SAYS(ORDER),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), NAMES},
    {"asks for names without end", EXPORTER, SAME_USER, SAYS(QUERY) | SAYS(ORDER),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), NAMES},
    {"asks for events without end", EXPORTER, LISTED, SAYS(QUERY),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), EVENTS},
    {"asks for events without end", EXPORTER, SAME_USER, SAYS(QUERY),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), EVENTS},
    {"makes connections without end", BROKER, UNINVITED, SAYS(HELLO) | SAYS(OPEN),
     TAKES(CONNECTIONS), greets_and_asks},
    {"leaves all it can", BROKER, SAME_USER, SAYS(PUBLISH) | SAYS(SHARE), TAKES(EXPORTS),
     leaves_all_it_can},
    {"leaves from many connections", BROKER, LISTED,
     SAYS(HELLO) | SAYS(PUBLISH) | SAYS(SHARE) | SAYS(RING),
     TAKES(CONNECTIONS) | TAKES(EXPORTS) | TAKES(UNDER_WAY), leaves_from_many},
    {"names what it left without end", BROKER, SAME_USER,
     SAYS(HELLO) | SAYS(PUBLISH) | SAYS(SHARE) | SAYS(NAME), TAKES(TURNS) | TAKES(EXPORTS),
     names_without_end},
    {"asks for names without end", BROKER, LISTED, SAYS(QUERY) | SAYS(ORDER),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), NAMES},
    {"asks for events without end", BROKER, SAME_USER, SAYS(QUERY),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), EVENTS},
    {"leaves in another's name", BROKER, LISTED, SAYS(HELLO) | SAYS(PUBLISH) | SAYS(SHARE),
     TAKES(EXPORTS), OTHERS},
    {"looks for blocks without end", BROKER, LISTED, SAYS(QUERY),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY), LOOKS},
    {"reads no answer to its questions", BROKER, LISTED, SAYS(QUERY),
     TAKES(SOCKET_MEMORY) | TAKES(UNDER_WAY), questions_unread},
    {"takes no descriptor", BROKER, LISTED_HOLDER, SAYS(OPEN), TAKES(UNDER_WAY), opens_unread},
    {"opens and closes without end", BROKER, HOLDER, SAYS(OPEN) | SAYS(CLOSE), TAKES(TURNS),
     churns},
    {"says what is not its to say", BROKER, SAME_USER,
     NO_IMPORTERS | SAYS(CLOSE) | SAYS(FLUSHED) | SAYS(ORDER), TAKES(TURNS), MISTAKES},
    {"is an agent of machines without end", BROKER, SAME_USER,
     SAYS(HELLO) | SAYS(OPEN) | SAYS(CLOSE) | SAYS(REPORT),
     TAKES(TURNS) | TAKES(SOCKET_MEMORY) | TAKES(LEASES), AS_AGENT},
};
const size_t siege_client_count = sizeof siege_clients / sizeof *siege_clients;
