/*
 * What importer and exporter say to each other: fixed messages over a SOCK_SEQPACKET socket.
 *
 *   importer                               exporter
 *   HELLO (+ own pidfd)      ------->    who opens; no answer unless it is refused
 *   OPEN handle, want_fd     ------->
 *                            <-------    GRANT (+ descriptors of its first pieces), or REFUSE reason
 *   OPEN handle, first       ------->    there are more:
 *                            <-------    GRANT (+ descriptors from that piece on), or REFUSE; and so on
 *   CLOSE block              ------->    one reference less; no answer
 *                            <-------    RECALL block: its program has freed it. Answered by CLOSE
 *                                        as soon as the importer's program does not have it open
 *                            <-------    FLUSH: give back what was closed (core/share/flush.c)
 *   FLUSHED                  ------->    what its program had closed by then has been given back
 *
 * What is opened is the importer's, whatever connection it has: it has one at a time, the newest.
 * Where it has lost one it connects again, and says HELLO with the number of blocks that it holds
 * still, and RESUME block for each: all else that it held is given back. One that hangs up by
 * itself says BYE before: it uses nothing of what it may hold. One that has forked says FORKED,
 * behind HELLO or as soon as it has: the child has its descriptors of the GPU, and so its exit is
 * no proof that its GPU work is over.
 *
 * An exporter that publishes its exports to a broker says HELLO to it and PUBLISH users (+ a
 * memfd), in which it confirms what may be served after its end (core/share/confirm.c). From then
 * on the broker asks: each PULL is answered once, when there is something (core/share/publish.c),
 *
 *   SHARE handle (+ a descriptor)      the next block, in the order in which handles were given out; or of
 *                                      the last one the piece that PULL names
 *   NAME name, block; or NAME name, 0  published; taken back. The next PULL says whether it is kept
 *   GRANT, CLOSE, RECALL block         for other machines (core/share/wire_cluster.h)
 *   RING                               nothing of these
 *
 * and each answer's `request` is 1 where something was taken back since the last one: then the
 * broker reads the memfd. Once the exporter has ended the broker serves its importers in the same
 * words as it did.
 *
 * Whoever asks a process anything says QUERY, what about, and which one of several, and is answered
 * by one REPORT: the same user, or root, about the n-th client and the n-th owner of what is open;
 * anybody about names of its own user (names.c); the same user about the file that an event lies
 * in, whose descriptor comes along (event.h).
 *
 * The same user, or root, may ORDER a process to set an option, sleep or wake (order.c); the same
 * user to end a name that was published before some time, and to give memory back (pressure.c). The
 * answer is one DONE, at once. Where memory is to be given back that says that this is seen to, one
 * more that it takes longer, where the process goes to sleep for it, and the last one how many bytes
 * went back. One such order is under way on a connection at a time.
 *
 * An importer has one OPEN under way at a time; `request` ties the answer to it. An OPEN's is also
 * the generation of what it is granted: RECALL, CLOSE and RESUME name it, and where the block was
 * granted anew since, or is not held, they come late and mean nothing. A message that is not
 * exactly of its type's length, of another version or of a type the receiver does not take is
 * refused, and so is its sender. (An agent passes over what is not its broker's to say: that is of
 * its own installation.)
 *
 * The version counts the whole protocol: with any change of a message's length, fields or meaning,
 * or a type more, it goes up by one (a test has the shape of each message of this version). There
 * is no talking down: two versions share nothing, so that none has to be tested with another, and
 * what they have to say is that. Therefore the head and the fields of REFUSE, with its numbers, do
 * not change with the version, and a message of another version is answered by a REFUSE of the
 * refuser's own version, for GS_REFUSED_VERSION. Importers, exporters, brokers and `gpushim-broker
 * ps` name the two versions and go on with others.
 *
 * Version 1 is that of builds before the first release, which differed among themselves.
 */
#ifndef GS_CORE_SHARE_WIRE_H
#define GS_CORE_SHARE_WIRE_H

#include <stdint.h>

#include "core/share/ipc_handle.h"

#define GS_WIRE_VERSION 1

/* So many pieces come in one message at most: the kernel would take 253, but a process that may
 * have 256 descriptors has others too. */
#define GS_PIECES_MAX 32

/* Who may say a message to whom. */
enum gs_wire_ways {
    GS_ASKS = 1,      /* who opens, or asks, to an exporter or a broker; */
    GS_ANSWERS = 2,   /* and these to it */
    GS_LEAVES = 4,    /* who shares, to its broker; */
    GS_PULLS = 8,     /* and that to it */
    GS_AGENTS = 16,   /* an agent, to its broker; */
    GS_TO_AGENT = 32, /* and that to it */
};

/* All messages: a number, which no other one ever gets, the struct gs_wire_… that it is, and its
 * ways. What of it goes between broker and agent is in core/share/wire_cluster.h. */
#define GS_WIRE_MESSAGES(M)                                                              \
    M(GS_WIRE_HELLO, 1, hello, GS_ASKS | GS_LEAVES | GS_TO_AGENT)                        \
    M(GS_WIRE_OPEN, 2, open, GS_ASKS | GS_PULLS | GS_AGENTS | GS_TO_AGENT)               \
    M(GS_WIRE_GRANT, 3, grant, GS_ANSWERS | GS_LEAVES | GS_AGENTS | GS_TO_AGENT)         \
    M(GS_WIRE_REFUSE, 4, refuse, GS_ANSWERS | GS_PULLS | GS_AGENTS | GS_TO_AGENT)        \
    M(GS_WIRE_CLOSE, 5, close, GS_ASKS | GS_LEAVES | GS_PULLS | GS_AGENTS | GS_TO_AGENT) \
    M(GS_WIRE_RECALL, 6, close, GS_ANSWERS | GS_LEAVES | GS_AGENTS | GS_TO_AGENT)        \
    M(GS_WIRE_SHARE, 7, share, GS_LEAVES | GS_TO_AGENT)                                  \
    M(GS_WIRE_QUERY, 8, query, GS_ASKS | GS_AGENTS | GS_TO_AGENT)                        \
    M(GS_WIRE_REPORT, 9, report, GS_ANSWERS | GS_AGENTS)                                 \
    M(GS_WIRE_FLUSH, 10, flush, GS_ANSWERS)                                              \
    M(GS_WIRE_FLUSHED, 11, flush, GS_ASKS)                                               \
    M(GS_WIRE_PUBLISH, 12, publish, GS_LEAVES)                                           \
    M(GS_WIRE_RESUME, 13, close, GS_ASKS | GS_TO_AGENT)                                  \
    M(GS_WIRE_BYE, 14, head, GS_ASKS | GS_ANSWERS | GS_PULLS)                            \
    M(GS_WIRE_ORDER, 15, order, GS_ASKS)                                                 \
    M(GS_WIRE_DONE, 16, done, GS_ANSWERS)                                                \
    M(GS_WIRE_FORKED, 17, head, GS_ASKS)                                                 \
    M(GS_WIRE_NAME, 18, name, GS_LEAVES)                                                 \
    M(GS_WIRE_PULL, 19, pull, GS_PULLS)                                                  \
    M(GS_WIRE_RING, 20, head, GS_LEAVES)

#define GS_WIRE_NUMBER(name, number, shape, ways) name = number,
enum gs_wire_type { GS_WIRE_MESSAGES(GS_WIRE_NUMBER) GS_WIRE_TYPES };
#undef GS_WIRE_NUMBER

enum gs_wire_reason {
    GS_REFUSED_HANDLE = 1,  /* unknown, stale or changed */
    GS_REFUSED_USER = 2,    /* another user's process */
    GS_REFUSED_BUSY = 3,    /* max_clients are being served */
    GS_REFUSED_FDS = 4,     /* the exporter has no descriptor left */
    GS_REFUSED_DRIVER = 5,  /* the driver did not export: see driver_error */
    GS_REFUSED_MEMORY = 6,  /* the exporter has no host memory left */
    GS_REFUSED_ENDING = 7,  /* the exporter is ending */
    GS_REFUSED_MESSAGE = 8, /* a message that the protocol does not have, or not at this point */
    GS_REFUSED_VERSION = 9, /* another version of the protocol; the head has the refuser's */
    GS_REFUSED_FLIGHT = 11, /* too many descriptors of the user's are under way, for the moment */
    GS_REFUSED_LIMBO = 12,  /* it is freed, and too much of that is held (debug.limbo_limit) */
    GS_REFUSED_EARLY = 10,  /* by a broker: the process still runs and serves it itself */
    GS_REFUSED_ALONE = 13,  /* it may lie in another machine, and there is no agent here */
    GS_REFUSED_DIRECTORY = 14, /* by an agent: it cannot reach its directory, or is not let in */
    GS_REFUSED_MACHINE = 15,   /* by an agent: the other machine's agent cannot be reached */
    GS_REFUSED_UNHEARD = 16,   /* by an agent: no machine has it under this handle, by now */
    GS_REFUSED_ASLEEP = 17,    /* the exporter sleeps, and the memory is away: for now */
    GS_REFUSED_AGENT = 18,     /* an agent: the broker has another one */
};

struct gs_wire_head {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t size; /* of the whole message */
    uint32_t request;
};

#include "core/share/wire_cluster.h" /* whose messages begin with the head, too */

struct gs_wire_hello {
    struct gs_wire_head head;
    unsigned char instance[GS_INSTANCE_SIZE]; /* of the exporter that is meant */
    unsigned char from[GS_INSTANCE_SIZE]; /* of the importer; zero: it hangs up when it is done */
    uint64_t holder;                      /* between broker and agent: its number */
    uint64_t pid;                         /* as the importer sees itself: for people */
    char name[16];                        /* of the program: for people */
    uint32_t holds;  /* so many RESUMEs follow: all else that it held before is over */
    uint32_t number; /* of its program's HELLOs: one that is heard behind the next comes late */
    uint32_t agent;  /* 1: it is this machine's agent, or its broker says it to that */
    uint32_t zero;
};

enum gs_open_wants {
    GS_OPEN_HAS_IT,  /* the importer has the chunk mapped already */
    GS_OPEN_WANTS,   /* descriptors are to come along */
    GS_OPEN_LETS_GO, /* it has the block still, and its chunk mapped no more: it sleeps */
    GS_OPEN_WANTED
};

struct gs_wire_open {
    struct gs_wire_head head;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint32_t want_fd; /* enum gs_open_wants */
    uint32_t cluster; /* 1: of a broker, and it may lie in another machine */
    /* Between broker and agent: */
    uint32_t uid, gid; /* of who opens: this machine's numbers of that user's name; */
    uint64_t lease;    /* to the agent: random, not 0; with this machine's it names the lease */
    uint32_t first;    /* descriptors are to come along, of the chunk's pieces from this one on */
    uint32_t zero;
};

/* Some pieces, whose descriptors come along. */
struct gs_wire_batch {
    uint32_t first, count;
    uint64_t sizes[GS_PIECES_MAX]; /* bytes; behind them zeros */
};

struct gs_wire_grant {
    struct gs_wire_head head;
    uint64_t block_id;
    uint64_t chunk_id;
    uint64_t chunk_size;
    uint64_t offset, size;  /* of the block within the chunk */
    unsigned char uuid[16]; /* of the device that holds the memory */
    uint32_t read_only;     /* 1: the importer is to map the chunk for reading */
    uint32_t ends;          /* 1: its memory may go though it is open */
    uint32_t pieces;        /* that the chunk is of, one after the other */
    uint32_t host;          /* 1: the host's, behind a memfd, which the importer maps and */
    uint64_t fd_offset;     /* registers from this byte on */
    /* 1: a strip, that the program mapped itself: the block is all of the chunk, and what the handle
     * is of begins at `offset`. */
    uint32_t own;
    uint32_t far; /* 1: a chunk of another machine, that this opens; no descriptor comes along: */
    unsigned char fabric[GS_FABRIC_SIZE];
    struct gs_wire_batch batch; /* none, if not wanted; else the rest is to be asked for */
};

struct gs_wire_refuse {
    struct gs_wire_head head;
    uint32_t reason;
    uint32_t driver_error;
};

/* CLOSE, RECALL, RESUME. */
struct gs_wire_close {
    struct gs_wire_head head;
    uint64_t block_id;
    unsigned char instance[GS_INSTANCE_SIZE]; /* between broker and agent: whose block it is, */
    uint64_t lease; /* and this machine's lease of it, where it is another's */
};

/* Heads alone: BYE, either side's last word: nothing is held over this connection; FORKED: a child
 * of the importer's may have what keeps its GPU work alive; RING. */

/* FLUSH, not before the one before it was answered; and FLUSHED. */
struct gs_wire_flush {
    struct gs_wire_head head;
    uint64_t number; /* of the question; not 0 */
};

/* Comes with a sealed memfd of block ids, 8 bytes each. */
struct gs_wire_publish {
    struct gs_wire_head head;
    uint32_t uid_count, gid_count; /* whom the exporter shares with besides its own user */
    uint32_t uids[GS_IDS_MAX], gids[GS_IDS_MAX];
};

struct gs_wire_share {
    struct gs_wire_head head;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t chunk_size;
    uint64_t offset;        /* of the block within the chunk */
    unsigned char uuid[16]; /* of the device that holds the memory */
    uint32_t read_only;
    uint32_t slot; /* which holds the block's id for as long as it may be served */
    /* 0: the chunk's descriptor comes along. Else it lies across so many pieces, all of the chunk, each
     * of which is asked for, and there comes that of `piece`. */
    uint32_t pieces;
    uint32_t piece;
    uint64_t piece_size;
    uint32_t far;                         /* 1: other machines may open it, and below is */
    uint32_t held;                        /* 1: a broker before this one said that they hold it */
    unsigned char fabric[GS_FABRIC_SIZE]; /* of the chunk */
};

struct gs_wire_pull {
    struct gs_wire_head head;
    uint64_t block_id; /* shared last, of which a piece is wanted; 0: the broker has done with it */
    uint32_t piece;    /* not the first */
    uint32_t kept;     /* 1: the last answer was a NAME, and is kept */
};

enum gs_order { GS_ORDER_TRIM, GS_ORDER_SET, GS_ORDER_SLEEP, GS_ORDER_UNNAME, GS_ORDERS };

struct gs_wire_order {
    struct gs_wire_head head;
    uint32_t kind;   /* enum gs_order */
    uint32_t verb;   /* SLEEP: enum gs_sleep_verb; */
    uint32_t number; /* of GS_SLEEP_STATE: the order that is asked about */
    uint32_t zero;
    /* TRIM: bytes; SLEEP: the timeout, in ns; SET: bytes, nanoseconds, a number, which of the words,
     * or percent from 1 << 63 on, UINT64_MAX: unlimited; UNNAME: it was published then or before. */
    uint64_t value;
    unsigned char uuid[16]; /* TRIM: of the device that is full */
    /* They end in zeros. SET: the option, as config has it: "pool.decay"; SLEEP: the directory;
     * UNNAME: the name. And what is discarded. */
    char name[GS_SLEEP_DIRECTORY], discard[GS_SLEEP_TAG];
};

/* What came of an order. */
struct gs_wire_done {
    struct gs_wire_head head;
    /* TRIM: 1: it is seen to, and another answer comes; 2, then: it goes to sleep, which takes longer.
     * SLEEP: the number of the order, which it is at still. */
    uint32_t more;
    uint32_t
        outcome; /* SET: enum gs_set_outcome, and but for DONE nothing changed; SLEEP: an errno */
    union {
        uint64_t given; /* TRIM: bytes that went back to the driver */
        uint64_t ended; /* UNNAME: 1: it was here */
        struct {
            uint64_t before, after;
        } set;
        struct gs_asleep_for { /* as struct gs_sleep_order */
            uint64_t ns, away, copied, stays[GS_SLEEP_STAYS];
        } sleep;
    };
    char text[320]; /* SLEEP: why there is that errno */
};

enum gs_about {
    GS_ABOUT_ALL,       /* that it shares */
    GS_ABOUT_NAME,      /* that of this name; */
    GS_ABOUT_NEXT_NAME, /* the next behind this name */
    GS_ABOUT_EVENTS,    /* a file of events */
    GS_ABOUT_MACHINE, /* the n-th other one, or that of this name, which is to be forgotten (wire_cluster.h) */
    GS_ABOUTS
};

struct gs_wire_query {
    struct gs_wire_head head;
    uint32_t index;  /* of the client that is asked about, */
    uint32_t device; /* and the device whose figures are */
    uint32_t about;  /* enum gs_about */
    uint32_t zero;
    uint64_t number;                      /* which file of events, as the driver has it, */
    unsigned char secret[GS_SECRET_SIZE]; /* and as a handle has it */
    char name[GS_NAME_SIZE];
};

/* What is open of others. */
struct gs_wire_opened {
    uint64_t bytes, ended_bytes; /* that are mapped; of these, of who has ended */
    uint32_t owners; /* whose they are; below: the one that was asked for, if there is */
    uint32_t owner_ended;
    uint64_t owner_pid; /* as who answers sees it; 0: it does not */
    /* What is open of it; with what lies around that. */
    uint64_t owner_blocks, owner_bytes, owner_mapped;
};

struct gs_wire_limbo_block {
    uint64_t id, size, freed_ns, held_ns; /* how long ago, and how long it is held */
};

/* About a name. */
struct gs_wire_named {
    uint32_t is_here; /* 0: there is none */
    uint32_t zero;
    uint64_t since_ns; /* by gs_names_now */
    struct gs_found found;
};

struct gs_wire_asleep {
    uint64_t ns, bytes; /* how long, 0: it is awake; of all GPUs that are away */
};

struct gs_wire_report {
    struct gs_wire_head head;
    union {
        struct gs_wire_named named;
        struct gs_wire_machine machine;
        struct {          /* about all else */
            uint64_t pid; /* of who answers */
            uint64_t exports, bytes, limbo, limbo_bytes, limbo_age_ns;
            uint32_t clients; /* how many; below: the one that was asked about, if there is */
            uint32_t is_broker;
            uint64_t client_pid;
            uint64_t client_age_ns;               /* since it connected; or since it ended */
            uint64_t references, reference_bytes; /* of this client */
            uint64_t reference_age_ns; /* since it came to hold what it has held longest */
            uint64_t limbo_references, limbo_reference_bytes; /* that keep a freed block; */
            struct gs_wire_limbo_block limbo_block;           /* of them, freed first */
            uint64_t left; /* exports published to this broker, whole */
            char name[16]; /* of who answers */
            char client_name[16];
            uint32_t has_figures; /* 1: below, of the device; 0: none, nor of a later one */
            uint32_t zero;
            struct gs_figures figures;
            uint32_t client_seen;    /* 1: client_pid is as who answers sees it; 0: the client */
            uint32_t client_hung_up; /* 1: it has, and its end is not proven */
            struct gs_wire_opened opened;
            struct gs_wire_asleep asleep;
        };
    };
};

struct gs_wire_name {
    struct gs_wire_head head;
    uint64_t block_id; /* of a block that was left here; 0: the name ends, if it was published */
    uint64_t since_ns; /* then (gs_names_now), or before */
    uint64_t offset;   /* of what is named within the block */
    struct gs_naming naming;
};

union gs_wire_message {
    struct gs_wire_head head;
    struct gs_wire_hello hello;
    struct gs_wire_open open;
    struct gs_wire_grant grant;
    struct gs_wire_refuse refuse;
    struct gs_wire_close close, recall, resume;
    struct gs_wire_share share;
    struct gs_wire_pull pull;
    struct gs_wire_query query;
    struct gs_wire_report report;
    struct gs_wire_flush flush;
    struct gs_wire_publish publish;
    struct gs_wire_order order;
    struct gs_wire_done done;
    struct gs_wire_name name;
};

/* Fills in the head for a message of `type`, whose other bytes become zero. */
void gs_wire_start(union gs_wire_message *message, enum gs_wire_type type, uint32_t request);
/* HELLO of this process to that exporter, or of that one to its broker. */
void gs_wire_hello(union gs_wire_message *message, const unsigned char instance[GS_INSTANCE_SIZE]);

#define GS_WIRE_VERSION_TEXT "another version of this library (protocol %u, here %u)"

/* In words, for the log: also of a number that is no reason. */
const char *gs_wire_reason_text(uint32_t reason);

/* Whether `length` received bytes are a message of this version, exactly as long as its type. */
bool gs_wire_valid(const union gs_wire_message *message, size_t length);
/* Whether a message that is valid may be said in one of these ways. */
bool gs_wire_goes(const union gs_wire_message *message, unsigned ways);
/* Whether they are one of ours, as far as can be told, that another version wrote. */
bool gs_wire_is_of_another_version(const union gs_wire_message *message, size_t length);
/* Whether an error of gs_wire_send says that the same may go later: the other side does not read,
 * or the kernel has no memory for it now. */
bool gs_wire_goes_later(int error);

/* What comes with a GRANT. */
struct gs_wire_fds {
    unsigned count;
    int fd[GS_PIECES_MAX];
};
/* Whether they are some of so many pieces, from the `first` on, that fit into the `left` bytes. */
bool gs_wire_batch_is_valid(const struct gs_wire_batch *batch, const struct gs_wire_fds *fds,
                            uint32_t pieces, uint32_t first, uint64_t left);

/* ---- conn.c --------------------------------------------------------------------------------- */

/*
 * Sends one message, with `fd` unless that is -1 (it stays the caller's). Never waits, never
 * signals. 0, or a negative errno; -EAGAIN: the other side does not read; -ETOOMANYREFS: no
 * descriptor goes now, since too many of this user's are under way, or the other side takes none.
 */
int gs_wire_send(int socket, const union gs_wire_message *message, int fd);
/* As gs_wire_send, with several descriptors: of GRANT. */
int gs_wire_send_all(int socket, const union gs_wire_message *message,
                     const struct gs_wire_fds *fds);

/*
 * Receives one message without waiting. 0; -EAGAIN: nothing there; -ENOTCONN: the other side has
 * hung up, and all it said was received, also where it had not read all itself; -EPROTO: not a
 * message; -EPROTONOSUPPORT: one of another version (of *ret_message the head counts); -EMFILE: it
 * came with a descriptor for which this process has no room (the message is in *ret_message, and
 * comes again with the next call); another negative errno. *ret_fd is the descriptor that came
 * along, close-on-exec and the caller's, or -1; -1 on every failure. Where ret_fd is NULL a message
 * with a descriptor is -EPROTO. After -EPROTO and -EPROTONOSUPPORT the same may come again: nothing
 * more is to be read there. Whatever else came along is closed, by nobody who could be held up
 * (discard.h).
 */
int gs_wire_receive(int socket, union gs_wire_message *ret_message, int *ret_fd);
/* As gs_wire_receive, for who expects GRANT, which alone may bring more than one: all are the
 * caller's. (To the others these bring none: they are too late, and closed.) */
int gs_wire_receive_all(int socket, union gs_wire_message *ret_message,
                        struct gs_wire_fds *ret_fds);

#endif
