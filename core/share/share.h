/*
 * Sharing: blocks of this process that others open (exports), blocks of others that this process
 * has opened (imports), and the lease that ties the two.
 *
 *   exporter                                       importer
 *   cuIpcGetMemHandle -> gs_share_export           cuIpcOpenMemHandle -> gs_share_open
 *        handle ------------ by the program's own means --------------> handle
 *        share thread <---- seqpacket socket in the runtime directory --- connect, hello, open
 *                     ----- the chunk's descriptor by SCM_RIGHTS -------> import, map
 *   arena: gs_share_withdraw at the free           cuIpcCloseMemHandle -> gs_share_close
 *
 * One connection joins an importer with an exporter; each block open over it is one reference of
 * that lease. All of them end by proof that the importer's program is over, however long that takes
 * (lives.c): the GPU work of a killed process outlives its sockets until the kernel has taken the
 * GPU from it, and its exit is reported after that (measured: hang-up after 0.3 ms, last write at
 * 11 ms, exit at 60 ms, or 480 with 2 GiB of pinned memory). No counter lives in memory that a
 * remote can touch.
 *
 * Nothing exists (no socket, no thread, no file) before the first export or open, or before the
 * process can be asked for memory (core/share/pressure.c).
 */
#ifndef GS_CORE_SHARE_SHARE_H
#define GS_CORE_SHARE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include "core/gpu/driver.h"
#include "core/gpu/fence.h"
#include "core/base/fd.h"
#include "core/base/log.h"
#include "core/gpu/map.h"
#include "core/base/status.h"

#define GS_IPC_HANDLE_SIZE 64 /* sizeof(CUipcMemHandle) */

#define GS_IDS_MAX 64

struct gs_share_options {
    bool enable; /* false: exports are refused with GS_NOT_OFFERED, handles not opened */
    /* The runtime directory; made with mode 0700 if its parent is there. "": the first of several
     * (core/share/directory.h) that can be had. */
    char dir[80];
    uint64_t grace_ns;       /* how long an unopened export keeps its block after the free, */
    uint64_t grace_least_ns; /* and, where that is not more, however little memory is free */
    uint64_t settle_ns;      /* rest where a lease's end does not prove that its GPU work is over */
    uint64_t timeout_ns;     /* how long an importer waits for an exporter */
    uint64_t idle_ns;        /* how long a block that was closed stays mapped for the next open */
    uint32_t idle_blocks;    /* how many such blocks at most */
    uint32_t max_clients;    /* connections an exporter serves at once */
    bool read_only; /* importers of our blocks may read them only, and we those of others */
    bool isolate;   /* a block that shares its chunk with others is not exported */
    /* How much is freed and held by others from which on a line of log tells; 0: no such bound. */
    uint64_t limbo_warning; /* bytes */
    uint64_t limbo_warning_blocks;
    uint64_t limbo_warning_ns; /* of one block, since its free */
    uint64_t limbo_limit;      /* bytes from which on nothing is added to that; 0: none */
    bool broker;    /* exports are published to a broker too, which outlives this process */
    bool cluster;   /* other machines may open what is published to it; theirs is opened here */
    bool is_broker; /* this is one: its exports are those that others published to it */
    uint32_t published_max;   /* of a broker: exports that are published to it, by all together */
    int listen_fd;            /* of a broker: a listening socket that it was started with, or -1 */
    char broker_program[256]; /* started where no broker runs; empty: none is */
    uint64_t keep_ns;  /* how long a broker keeps what nobody has open and whose process ended */
    bool export_ahead; /* a chunk's descriptor is made at its first export, not at an open */
    uid_t uids[GS_IDS_MAX]; /* further users to share with, besides our own: they may open, and
                             what they export may be opened */
    unsigned uid_count;
    gid_t gids[GS_IDS_MAX]; /* further groups: processes whose primary group is one of them */
    unsigned gid_count;
};

/* What a process's arenas have of one device, as core/process/stats.h counts it: bytes now and at
 * most, and since the start of the process. */
struct gs_figures {
    uint64_t reserved, live, cached, retired, ordered, limbo, reserved_peak, live_peak;
    uint64_t hits, misses, grown, trims, waits, late, wait_ns, map_ns;
    uint64_t slow;    /* calls that took a millisecond or more */
    uint64_t refused; /* calls that found no memory */
    unsigned char uuid[16];
};

/* What others ask the process for, over its socket; and what sharing asks. */
enum gs_question {
    GS_ASKED_MEMORY,
    GS_ASKED_FIGURES,
    GS_ASKED_TO_SET,
    GS_ASKED_TO_SLEEP,
    GS_ASKED_LEFT,
    GS_ASKED_CONTEXTS
};

/* An option that is to have another value. */
enum gs_set_outcome { GS_SET_DONE, GS_SET_UNKNOWN, GS_SET_WRONG /* it cannot have this value */ };
struct gs_setting {
    const char *name;
    uint64_t value;         /* as GS_ORDER_SET has it */
    uint64_t before, after; /* told */
    enum gs_set_outcome outcome;
};

/* The process is to sleep, or to wake: what it is asked, and what it tells. */
#define GS_SLEEP_DIRECTORY 256
#define GS_SLEEP_TAG       64
#define GS_SLEEP_STAYS     5
struct gs_sleep_order {
    enum gs_sleep_verb {
        GS_SLEEP_STATE,
        GS_SLEEP_GOES,
        GS_SLEEP_WAKES,
        /* Of several, whose work may wait for each other's: nothing of it is submitted any more
         * for some seconds, if nothing follows; and what it would submit is, call by call, until
         * `timeout_ns` or until its work waits. EINPROGRESS: its work has not ended. */
        GS_SLEEP_STOPS,
        GS_SLEEP_PASSES,
        /* Of several that share among themselves, before any of them does the same to the end: */
        GS_SLEEP_LETS_GO, /* it has nothing of others' mapped, */
        GS_SLEEP_RETURNS, /* its own memory is back */
        /* Of core's own: where the program has made no call for as long as the options say (else
         * `error`), whether it may; and it goes, before the answer. */
        GS_SLEEP_MAY_IDLE,
        GS_SLEEP_GOES_IDLE
    } verb;
    unsigned order; /* GS_SLEEP_STATE: the one that is asked about, as `busy` was told */
    uint64_t timeout_ns;
    const char *directory; /* where the contents go to a file; "": to memory */
    const char *discard;   /* the tag of what is not kept; "": all is */
    unsigned busy;         /* told: the number of the order, which it is at; 0: what came of it: */
    int error;             /* 0, or an errno, */
    char text[320];        /* and why */
    uint64_t asleep_ns;    /* how long it sleeps; 0: it is awake */
    uint64_t away, copied, stays[GS_SLEEP_STAYS]; /* bytes, as gpushim.h has them */
};

/* Those that a process has, but for who may be about to go. */
struct gs_contexts {
    CUcontext of[64]; /* what is in others is not waited for */
    unsigned count;
};

union gs_told {
    size_t left;
    struct gs_contexts contexts;
    struct gs_sleep_order sleep;
    struct gs_figures figures;
    struct gs_setting setting;
};

/* Called with no lock held, from the share thread but where it is said otherwise. */
struct gs_share_events {
    /* The last lease of a block, or its grace, has ended: it may go, if it is freed. `address` is
     * that of its source. From any thread. */
    void (*lease_ended)(void *arg, uint64_t address);
    /* Whether a device has memory of another process that was closed here: then it stays, and the
     * end of that is said by gs_share_look_again. May not wait. With `going` it is about to be
     * unmapped, or given back: what a device has of it ends before, and no lock is held. May be
     * NULL. */
    bool (*in_use)(void *arg, uint64_t base, size_t size, bool going);
    /* Others ask. For memory: whether somebody will take what they ask for (gs_share_purge), soon
     * and in another thread. For the figures of a device (its number in CUDA): whether it, or a
     * later one, has any. To set an option, to sleep: whether there was an answer. Nobody but the
     * share thread: how much of a device could be allocated. Any thread, with the importer's lock:
     * which contexts the process has. May not wait. NULL: nobody answers. */
    bool (*asked)(void *arg, enum gs_question question, unsigned device, union gs_told *told);
    void *arg;
};

/* ---- Names: what they are (names.c) */

#define GS_NAME_SIZE  64 /* with the zero behind it; then all zeros */
#define GS_LABEL_SIZE 64
#define GS_NOTE_SIZE  256
#define GS_NAMES_MAX  1024 /* of a process; and that a broker keeps of all */

/* What a publisher says of a block. */
struct gs_naming {
    char name[GS_NAME_SIZE];   /* a letter, a figure or one of ._-+:@/ each */
    char label[GS_LABEL_SIZE]; /* for people */
    uint32_t note_size, zero;
    unsigned char note[GS_NOTE_SIZE]; /* for programs; zeros behind note_size */
};

/* What a look-up finds. */
struct gs_found {
    struct gs_naming naming;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t offset, size;  /* of what is named within the block; of the block */
    uint64_t address;       /* of what is named, in the process that published it; else 0 */
    uint64_t age_ns, pid;   /* since it was published; by which process, as who answers sees it */
    char process[16];       /* its name */
    unsigned char uuid[16]; /* of the device that holds the memory */
    uint32_t uid;           /* whose it is */
    uint32_t kept;          /* 1: a broker has it too */
};

struct gs_share;

/* Makes the sharing state; opens nothing. `driver`, `map`, `fences` and `log` outlive it.
 * GS_NO_RANDOM (logged), GS_NO_HOST_MEMORY. */
gs_status gs_share_create(const struct gs_driver *driver, struct gs_map *map,
                          struct gs_fences *fences, const struct gs_log *log,
                          const struct gs_share_options *options,
                          const struct gs_share_events *events, struct gs_share **ret_share);

/*
 * Ends the thread, closes sockets, removes this process's file from the runtime directory,
 * unmaps imports. For tests and orderly shutdown; every fence has passed, no other call is under
 * way.
 */
void gs_share_destroy(struct gs_share *share);

/* Exit handler: removes this process's file from the runtime directory and nothing else; waits 20
 * ms at most where that is just being put up. No driver call, no lock. Safe in a forked child (it
 * then does nothing). */
void gs_share_at_exit(struct gs_share *share);

/* The process is about to fork: whoever it has opened memory of is told, soon. No lock, no wait.
 * Safe in a signal handler. */
void gs_share_forking(struct gs_share *share);

/* ---- Exporter ------------------------------------------------------------------------------- */

/*
 * A strip: memory that the program mapped itself, in pieces that lie side by side, each of one
 * handle. A handle is of a piece, and its importer gets the strip around it, once, whichever of its
 * pieces it opens: cuIpcOpenMemHandle gives it the place of the piece. So what a program adds to
 * it, which it has counted from the beginning of the piece (cuMemGetAddressRange tells no other),
 * leads to the right byte, and on into the pieces behind.
 */
struct gs_share_strip {
    uint32_t references; /* atomic: exports, and whoever makes one */
    uint32_t pieces;
    uint64_t id;         /* never reused within this process, and no chunk's: GS_STRIP_IDS */
    bool is_block;       /* of the library's own memory, across pieces of it: */
    const uint64_t *ids; /* theirs as chunks, or NULL */
    /* Under the share's lock: */
    uint64_t counted; /* the last count that had it (gs_export_bytes_locked) */
    uint64_t limbo;   /* exports of it that others keep */
    uint64_t sizes[];
};
#define GS_STRIP_IDS (UINT64_C(1) << 63) /* chunks count up from 1 */

static inline void gs_share_strip_ref(struct gs_share_strip *strip)
{
    __atomic_add_fetch(&strip->references, 1, __ATOMIC_RELAXED);
}

/* Frees it with the last one; NULL is fine. */
static inline void gs_share_strip_unref(struct gs_share_strip *strip)
{
    if (strip && __atomic_sub_fetch(&strip->references, 1, __ATOMIC_ACQ_REL) == 0)
        free(strip);
}

/* What external memory lies behind (core/share/external.c). */
struct gs_share_behind {
    struct gs_fd fd; /* that CUDA exported; or of a memfd, */
    bool host;
    uint64_t offset; /* from this byte on */
};

struct gs_share_source {
    CUmemGenericAllocationHandle handle; /* stays valid until the export is withdrawn */
    uint64_t chunk_id;                   /* never reused within this process */
    size_t chunk_size;                   /* bytes, a multiple of 2 MiB */
    uint64_t block_id;                   /* never reused within this process; for people */
    size_t offset, size;                 /* of the block within the chunk */
    uint64_t address;                    /* of the block in this process, for lease_ended */
    bool alone;                          /* no other block ever lies in the chunk beside it */
    unsigned char uuid[16];              /* of the device that holds the memory, */
    unsigned device; /* and, of a block of the library's, its number in CUDA here */
    /* A strip: `size` and `chunk_size` are that of all of it, `address` is where it begins, and a
     * piece lies at `offset`. There is no handle, for none is kept (core/share/strip.c). Of a block
     * across pieces of the library's, `address`, `offset` and `size` are the block's, and it is
     * held and given back as others are. NULL: it is none. */
    struct gs_share_strip *strip;
    const struct gs_share_behind *behind; /* external memory's, in place of `handle` */
    bool read_only;                       /* whoever opens it may read it only */
};

struct gs_export;

/* The driver of a broker, which calls none: it has what was published to it. */
extern const struct gs_driver gs_broker_driver;
/* Broker: since when (CLOCK_MONOTONIC), from its creation on, nobody has needed it; 0: somebody
 * does. */
uint64_t gs_share_unneeded_since(struct gs_share *share);
/* Broker: if nobody has needed it since then it takes nobody in any more, and is to be destroyed;
 * else false. */
bool gs_share_end_unneeded(struct gs_share *share, uint64_t since);
/* Whether this process could export anything at all: tries, and leaves nothing behind. If not, why
 * not. */
bool gs_share_can(struct gs_share *share, char *ret_reason);
/* Starts the share thread, and puts up the socket that others connect to; where that has gone,
 * another. GS_NOT_OFFERED: it cannot be had, or another broker has it (logged once). */
gs_status gs_share_serve(struct gs_share *share);
/* The share thread does it, where there is one, in a millisecond: who is about to open memory does
 * not wait for that. */
void gs_share_serve_soon(struct gs_share *share);

/*
 * Exports one block. The same export always writes the same handle; no descriptor is made yet. The
 * first call starts the share thread and its socket. GS_NOT_OFFERED: sharing is off, or the
 * runtime directory cannot be used (said once in the log, with the reason).
 */
gs_status gs_share_export(struct gs_share *share, const struct gs_share_source *source,
                          struct gs_export **ret_export);
/* The export is the block's: its chunk gets a descriptor for its first importer, and published to
 * the broker. Before that it can be withdrawn at any time. May be called with rank ARENA held. */
void gs_share_given_out(struct gs_share *share, struct gs_export *export);
void gs_export_handle(const struct gs_export *export,
                      unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE]);

/*
 * The program has freed the block: from `freed_ns` (CLOCK_MONOTONIC) on the grace runs, and when it
 * is over the handle is stale and lease_ended is called. May be called with rank ARENA held. It is
 * over grace_least_ns after the free where more than a part of what the device has left waits so,
 * what was freed first before the rest; else after grace_ns, or gs_share_end_graces.
 * Or the program's own mapping is about to go, which ends the export and its names: from now on nobody
 * gets any of it, and who has it open keeps that. An export has a reference of its strip of its own.
 */
void gs_share_freed(struct gs_share *share, struct gs_export *export, uint64_t freed_ns);

/*
 * Asks whether a freed block may be used again. True: no lease and no grace covers it, the export
 * is gone and its handle is stale from now on. False: ask again after lease_ended, which says when
 * the last lease, or the grace, is over. Never blocks; may be called with rank ARENA held.
 */
bool gs_share_withdraw(struct gs_share *share, struct gs_export *export);

/* Memory is out. What has ended and is not told yet is told now, by lease_ended in the calling
 * thread; and after the second, the graces of a device's blocks (`uuid`; NULL: any device's) are
 * over as well: all of them, or those that have had grace_least_ns. No lock is held. */
enum gs_graces { GS_GRACES_LONG, GS_GRACES_ALL };
void gs_share_tell(struct gs_share *share);
void gs_share_end_graces(struct gs_share *share, const unsigned char uuid[16],
                         enum gs_graces which);
/* Bytes of the device's that gs_share_withdraw was refused, and the latter would end that. */
size_t gs_share_would_go(struct gs_share *share, unsigned device);

/* What is exported, and what of it the program has freed and others keep. */
struct gs_share_stats {
    uint64_t exports, bytes;     /* handles given out, and their blocks; a strip counts once */
    uint64_t references;         /* by other processes */
    uint64_t limbo, limbo_bytes; /* freed, and held or in their grace */
    uint64_t limbo_ns;           /* when the first of them was freed, CLOCK_MONOTONIC; 0: none */
};

/* Looks through all exports. */
void gs_share_stats(struct gs_share *share, struct gs_share_stats *ret_stats);
/* Bytes of the device's that are freed and that other processes hold. */
uint64_t gs_share_freed_held(struct gs_share *share, const unsigned char uuid[16]);

/* The chunk's memory is about to go back to the driver and nothing of it is exported: closes the
 * descriptor that was kept of it, which would keep the memory. No lock held; waits for nobody. */
void gs_share_chunk_gone(struct gs_share *share, uint64_t chunk_id);

/* A device's memory is out (`uuid`; NULL: any device's): waits until no block of it is held by
 * others, or a descriptor is just being made, that was freed less than `limit_ns` ago, and until
 * whatever they have closed, or held when they ended, has come back (core/share/flush.c). */
void gs_share_await_given_back(struct gs_share *share, const unsigned char uuid[16],
                               uint64_t limit_ns);

/* Who has memory of a device (`uuid`; NULL: any device's) that the program has freed. */
struct gs_share_holder {
    pid_t pid;
    char name[16];
    bool stopped;     /* as far as can be seen from here */
    size_t bytes;     /* held, */
    uint64_t held_ns; /* the first of it for so long */
};

#define GS_SHARE_HOLDERS 3
#define GS_SHARE_TELL_NS UINT64_C(200000000) /* for other processes to say what they have */

struct gs_share_held {
    unsigned holders;
    bool any_stopped; /* of those who have most */
    size_t bytes;     /* by all of them; what several hold counts for each */
    struct gs_share_holder most[GS_SHARE_HOLDERS]; /* those who have most */
};

/* Looks through all leases, of one chunk (0: of all); waits for nobody. */
void gs_share_held(struct gs_share *share, const unsigned char uuid[16], uint64_t chunk_id,
                   struct gs_share_held *ret_held);

/* ---- Names ---------------------------------------------------------------------------------- */

/* Whether all of it is as it is said there. */
bool gs_naming_is_good(const struct gs_naming *naming);
/*
 * Publishes what lies `offset` bytes into an exported block under a name, which ends with the
 * block's free; or so far into the piece that the handle of a strip is of, until that has gone. In
 * place of what this process had under it before; *ret_since_ns is for gs_share_named. May be
 * called with rank ARENA, or OWN, held, by which the export stays. GS_INVALID: freed; GS_TOO_MANY,
 * GS_NO_HOST_MEMORY.
 */
gs_status gs_share_name(struct gs_share *share, struct gs_export *export,
                        const struct gs_naming *naming, uint64_t offset, uint64_t *ret_since_ns);
/*
 * Then, without a lock: with a broker this waits until that is told of it, or there is none:
 * GS_NAME_KEPT_NS at most; and the user's other processes give the name up. Those who do not answer
 * are waited for GS_SHARE_TELL_NS in all, and debug.timeout is the most of either.
 */
#define GS_NAME_KEPT_NS   UINT64_C(5000000000) /* a broker may have to start */
#define GS_NAME_ANSWER_NS UINT64_C(1000000000) /* for those who do not answer a look-up, in all */
void gs_share_named(struct gs_share *share, const char *name, uint64_t since_ns);

/* How a name was looked for. */
enum gs_look_up {
    GS_LOOK_FOUND,
    GS_LOOK_NONE,
    GS_LOOK_SILENT /* nobody has it who has answered, and some have not, within GS_NAME_ANSWER_NS */
};

/* The newest of this user's processes that have it, and of brokers. Asks them all, together. */
enum gs_look_up gs_share_look_up(struct gs_share *share, const char *name,
                                 struct gs_found *ret_found);
/* Ends this user's name, whichever process published it. As above. */
enum gs_look_up gs_share_unname(struct gs_share *share, const char *name);

/* ---- External memory (external.c) ------------------------------------------------------------ */

enum gs_external_kind {
    GS_EXTERNAL_EXPORTED, /* behind a descriptor that CUDA exported */
    GS_EXTERNAL_MEMFD,    /* of the host, behind a memfd from `offset` on */
    GS_EXTERNAL_ADDRESS,  /* whatever lies at an address of the program's */
};

struct gs_external_memory {
    enum gs_external_kind kind;
    int fd; /* stays the caller's */
    uint64_t offset;
    CUdeviceptr address;
    size_t size;
    bool read_only;
};

/*
 * Makes it memory of ours, in the context that is current, on its device (with that uuid). `owner`
 * is what the caller knows it by, never 0. GS_INVALID, GS_NOT_OFFERED, GS_NO_HOST_MEMORY, or the
 * driver's error: nothing is changed then, and the log says why.
 */
gs_status gs_share_attach(struct gs_share *share, const struct gs_external_memory *memory,
                          CUcontext context, CUdevice device, const unsigned char uuid[16],
                          uint64_t owner, CUdeviceptr *ret_address);
/* What was attached at the address just now, and nobody knows of, is not. */
void gs_share_attach_undo(struct gs_share *share, CUdeviceptr address);
/* Begins its end, which waits for GPU work that was submitted in any context by now; or that has
 * begun. GS_NOT_OURS: there is none. GS_NO_HOST_MEMORY: nothing was begun. */
gs_status gs_share_detach(struct gs_share *share, CUdeviceptr address);
/* Waits for one whose end has come, unmaps it and returns its owner; 0: there was none. Others end
 * it: the GPU, devices, and those who have it open; until then the caller's `until_ns` is the
 * bound. No lock is held; of memory of the host this waits for the GPU. */
uint64_t gs_share_external_next(struct gs_share *share, uint64_t until_ns);
/* Its size, and which processes have it open, as gs_share_held tells; 0: nothing is attached
 * there. */
size_t gs_share_external_held(struct gs_share *share, CUdeviceptr address,
                              struct gs_share_held *ret_held);
/* As gs_share_name, of external memory that covers the address and has an IPC handle.
 * GS_NOT_LIVE. */
gs_status gs_share_name_external(struct gs_share *share, CUdeviceptr address,
                                 const struct gs_naming *naming, uint64_t *ret_since_ns);

/* ---- Memory pressure ------------------------------------------------------------------------ */

/* After `asked`: the device and the bytes that others ask for now, all of them together; false:
 * there is nothing. Then gs_share_purged tells them how much has gone back to the driver; before it
 * they may be told that this takes longer. */
bool gs_share_purge(struct gs_share *share, unsigned char ret_uuid[16], uint64_t *ret_wanted);
void gs_share_purge_is_long(struct gs_share *share);
void gs_share_purged(struct gs_share *share, uint64_t given);

struct gs_share_answers {
    uint64_t given;   /* bytes, as they say */
    bool ended;       /* one of them has, with all that it held */
    unsigned silent;  /* so many did not answer, */
    pid_t silent_pid; /* and one of them, 0: not seen from here */
};

/*
 * Asks this user's other processes for memory of a device, and waits until they have given it: for
 * 50 ms until one says that it is at it, and for a second until it is done. Who did not answer is
 * not waited for again until it has. A wait in which this process itself stood still does not
 * count.
 */
void gs_share_ask(struct gs_share *share, const unsigned char uuid[16], uint64_t wanted,
                  struct gs_share_answers *ret_answers);

/* What the figures of another process say about a device. */
struct gs_share_other {
    pid_t pid; /* 0: not seen from here */
    char name[16];
    uint64_t reserved, live, cached;
};

struct gs_share_others {
    unsigned answered; /* processes, */
    unsigned silent; /* and those that did not answer in time, are stopped or of another version */
    uint64_t reserved, cached;                    /* of all that answered */
    struct gs_share_other most[GS_SHARE_HOLDERS]; /* those who have most */
};

/* Asks this user's other processes for their figures of a device (QUERY), all at once, and waits no
 * longer than `limit_ns` in all. Those that have nothing of it are not counted. */
void gs_share_others(struct gs_share *share, const unsigned char uuid[16], uint64_t limit_ns,
                     struct gs_share_others *ret_others);

/* ---- Importer -------------------------------------------------------------------------------- */

/* Whether these 64 bytes claim to be a handle of ours, of whatever version; any other is the
 * driver's. */
bool gs_ipc_handle_is_ours(const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE]);

/*
 * Opens a block of another process for `context` (current in the calling thread) on `device`, and
 * returns its address. Opened again: the same address, one count more. GS_BAD_HANDLE, GS_STALE,
 * GS_SAME_PROCESS, GS_UNREACHABLE, or the driver's error; nothing is changed then.
 */
gs_status gs_share_open(struct gs_share *share, const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE],
                        CUcontext context, CUdevice device, CUdeviceptr *ret_address);

/*
 * Takes back one count of the block opened at exactly `address`. After the last one the block stays
 * idle: mapped and held for the next open, until idle_ns are over or the exporter calls it back,
 * which it does when its program frees the block. Then the reference is given back once the GPU
 * work is done that was submitted by then in any context of the process; no call waits for that.
 * GS_NOT_OURS: nothing of ours was opened there. GS_NO_HOST_MEMORY: nothing is changed.
 */
gs_status gs_share_close(struct gs_share *share, CUdeviceptr address);

/*
 * The handle of the imported block that covers `address`, the one it was opened by, to be passed
 * on: it is opened at the process that shared it, or its broker, not here. Of external memory one
 * of this process's. GS_NOT_OURS, or why there is none (gs_share_export).
 */
gs_status gs_share_pass_on(struct gs_share *share, CUdeviceptr address,
                           unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE]);

/* What held a closed block may hold it no more. No lock is held. */
void gs_share_look_again(struct gs_share *share);

struct gs_import_info {
    CUdeviceptr base;  /* of the block */
    size_t size;       /* bytes the exporter's program asked for */
    uint64_t id;       /* of this import, never reused within this process */
    CUcontext context; /* that opened it */
};

/* The imported block that covers `address` (open, not only mapped); GS_NOT_OURS if none does. */
gs_status gs_share_find(struct gs_share *share, CUdeviceptr address,
                        struct gs_import_info *ret_info);

/* Of the mapping that covers `address`. Whether the device has opened something of it. */
bool gs_share_is_home(struct gs_share *share, CUdeviceptr address, CUdevice device);
/* Gives a device access to it. GS_NOT_OURS: there is none. Or the driver's error. */
gs_status gs_share_give(struct gs_share *share, CUdeviceptr address, CUdevice device);

/*
 * Around the driver's destruction of a context: it is leaving, since the share thread asks the
 * driver about the context's events; then `gone` (its work is over: what it had opened is closed),
 * or, where the driver refused, it is not leaving.
 */
void gs_share_context_leaving(struct gs_share *share, CUcontext context, bool leaving);
void gs_share_context_gone(struct gs_share *share, CUcontext context);

#endif
