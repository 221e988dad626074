/*
 * What the files of core/share have in common.
 *
 *   share.c    make, end, start on first use        directory.c  sockets in the runtime directory
 *   thread.c   the share thread: one epoll loop     wire.c       messages
 *   offers.c   exporter: blocks that are offered    token.c      tokens
 *   clients.c  exporter: connections and leases
 *   opener.c   opener: open, close, find            peer.c       connections to exporters
 *   import.c   opener: chunks mapped here           closing.c    holds on their way back
 *
 * Who may touch what: offers, and the starting of thread and socket, are under `lock`. Clients are
 * the share thread's alone. Peers, imports and opened blocks are under `opener_lock`; what takes
 * long (messages, driver calls) is done without it by the one thread that has marked the peer
 * busy, and nobody else changes that peer or its imports meanwhile.
 */
#ifndef GS_CORE_SHARE_INTERNAL_H
#define GS_CORE_SHARE_INTERNAL_H

#include <errno.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/lock.h"
#include "core/share/directory.h"
#include "core/share/share.h"
#include "core/share/token.h"
#include "core/share/wire.h"

/* A table that cannot grow leaves the new entry out (hh.tbl stays NULL); it never exits. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define GS_NS_PER_S UINT64_C(1000000000)
#define GS_NS_PER_MS UINT64_C(1000000)
#define GS_NEVER UINT64_MAX

struct gs_client;
struct gs_offer;
struct gs_peer;
struct gs_opened;
struct gs_opener_context;

struct gs_share {
    const struct gs_driver *driver;
    struct gs_map *map;
    struct gs_fences *fences;
    struct gs_log log;
    struct gs_share_options options;
    struct gs_share_events events;
    pid_t pid; /* of the process that made this: a forked child keeps away */
    unsigned char instance[GS_INSTANCE_SIZE];
    char name[GS_SOCKET_NAME_SIZE];
    bool ending; /* atomic: the process ends, the driver is not called any more */

    struct gs_lock lock; /* rank SHARE: from here to the blank line */
    pthread_cond_t started;
    enum gs_start { GS_NOT_STARTED = 0, GS_STARTING, GS_STARTED } thread_start, socket_start;
    bool refusal_said; /* why the runtime directory cannot be used was logged */
    struct gs_offer *offers;
    uint64_t next_offer; /* atomic */

    /* Written before the thread starts (listener: before it is watched), then read only. */
    pthread_t thread;
    int epoll, wake;
    int directory, listener;
    bool stop; /* atomic */

    /* The share thread's own. */
    struct gs_client *clients;
    unsigned client_count;
    uint64_t next_client;
    int spare_fd; /* given up for a moment to refuse a caller when no other is left */
    uint64_t listener_pause; /* when to listen again; 0: listening */
    bool lease_ended;        /* the pool is to be told at the end of this round */

    struct gs_lock opener_lock; /* rank OPENER: from here on */
    pthread_cond_t opener_changed; /* a peer is no longer busy */
    struct gs_peer *peers;
    struct gs_opened *opened;
    struct gs_opened *closing; /* list of opened blocks whose last count is gone */
    struct gs_opener_context *contexts;
    struct gs_import *spare_imports; /* records that the map may still lead to: never freed */
    uint64_t next_import, next_peer;
    bool polling; /* the thread looks at `closing` by itself, again after: */
    uint64_t poll_ns;
    bool unreachable_said;
};

uint64_t gs_now(void);

/* ---- share.c, thread.c ------------------------------------------------------------------- */

/* What a watched descriptor is; in the upper bits of its epoll data, an id in the lower. */
enum gs_watch { GS_WATCH_WAKE, GS_WATCH_LISTENER, GS_WATCH_CLIENT, GS_WATCH_PIDFD, GS_WATCH_PEER };

/* Starts the share thread where there is none. GS_UNREACHABLE: it cannot be had (logged). */
gs_status gs_thread_start(struct gs_share *share);
/* The same, and the socket that openers connect to. GS_NOT_OFFERED (logged once). */
gs_status gs_socket_start(struct gs_share *share);
void gs_thread_wake(struct gs_share *share);
/* Adds or changes (`op`) a watch; 0 or a negative errno. */
int gs_watch(struct gs_share *share, int op, int fd, uint32_t events, enum gs_watch kind,
             uint64_t id);
/* Must come before the close: a forked child may keep the descriptor's file open. */
void gs_unwatch(struct gs_share *share, int fd);
/* The body of the thread. */
void *gs_thread_run(void *share);

/* ---- Exporter ---------------------------------------------------------------------------- */

struct gs_offer {
    uint64_t id; /* what tokens and messages call the block: two threads may offer one at once */
    struct gs_share_source source;
    unsigned char token[GS_TOKEN_SIZE];
    uint64_t holds;   /* by all clients together */
    unsigned pins;    /* 1 while the share thread exports it */
    bool opened;      /* somebody has held it: no grace any more */
    UT_hash_handle hh;
};

/* The offer that these bytes are the token of, pinned, or NULL. */
struct gs_offer *gs_offer_pin(struct gs_share *share, const unsigned char token[GS_TOKEN_SIZE]);
/* Takes the pin away and leaves `holds` (0 or 1) holds in its place. */
void gs_offer_unpin(struct gs_share *share, struct gs_offer *offer, unsigned holds);
void gs_offer_drop(struct gs_share *share, struct gs_offer *offer, uint64_t holds);
void gs_offers_free(struct gs_share *share);

/* Called by the share thread only. */
void gs_clients_accept(struct gs_share *share);
void gs_client_readable(struct gs_share *share, uint64_t id);
void gs_client_exited(struct gs_share *share, uint64_t id);
/* Does what is due at `now`; when to come again, or GS_NEVER. */
uint64_t gs_clients_tick(struct gs_share *share, uint64_t now);
/* At the very end, without a thread. */
void gs_clients_free(struct gs_share *share);

/* ---- Opener ------------------------------------------------------------------------------ */

/* A connection to one exporter. While it is busy only the thread that made it so reads or writes
 * anything here but `busy`, `lost` and the links of the table. */
struct gs_peer {
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t id;        /* for epoll */
    int fd;             /* -1: not connected */
    int pidfd;          /* the exporter's, where the kernel tells; or -1 */
    uint64_t connection; /* counts connections: a hold belongs to the one it was made over */
    uint32_t request;
    unsigned abandoned; /* requests whose answers were not waited for */
    bool greeted;       /* HELLO was sent */
    bool busy;          /* one thread works with it, without the lock */
    bool lost;          /* hung up while busy */
    unsigned opened_count;
    struct gs_import *imports;
    struct gs_opened *unsent; /* blocks whose CLOSE did not fit into the socket yet */
    UT_hash_handle hh;
};

/* A chunk of another process, mapped here. */
struct gs_import {
    struct gs_span span; /* first: what the map points at */
    struct gs_peer *peer;
    uint64_t connection;
    uint64_t chunk_id;
    unsigned char uuid[16];
    CUmemGenericAllocationHandle handle;
    uint64_t devices; /* atomic; bit d: device d has access */
    struct gs_opened **sorted; /* by address */
    unsigned count, room;
    struct gs_import *next;
};

/* One context that has opened a block, and its fence behind the last close. */
struct gs_use {
    CUcontext context;
    struct gs_fence fence;
    enum {
        GS_FENCE_NONE = 0,
        GS_FENCE_WANTED, /* is to be recorded once `fence` has passed and no capture is open */
        GS_FENCE_SYNCING /* a driver without fences: the thread waits for the context */
    } next;
};

struct gs_opened_key {
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t block_id;
};

/* A block of another process that this one has opened. */
struct gs_opened {
    struct gs_opened_key key;
    struct gs_peer *peer;
    struct gs_import *import;
    uint64_t connection;
    unsigned char token[GS_TOKEN_SIZE];
    CUdeviceptr address;
    size_t size;
    uint64_t id;
    uint64_t count; /* opens minus closes; 0: closing */
    bool leaving;   /* its fences have passed, it cannot be revived */
    bool replaced;  /* not in the table any more: its connection was lost */
    struct gs_use *uses;
    unsigned use_count;
    struct gs_opened *next; /* in `closing` or in `unsent` */
    UT_hash_handle hh;
};

struct gs_opener_context {
    CUcontext context;
    struct gs_fence_pool pool;
    UT_hash_handle hh;
};

/* peer.c. Functions named _locked are called with opener_lock held, the others without it by the
 * thread that has marked the peer busy. */
struct gs_peer *gs_peer_find_locked(struct gs_share *share, const unsigned char *instance);
struct gs_peer *gs_peer_new_locked(struct gs_share *share, const unsigned char *instance);
/* Asks for one block; with success one hold is this process's, and must go back by a CLOSE over
 * the same connection. *ret_fd is the caller's, or -1 if it was not wanted. */
gs_status gs_peer_request(struct gs_share *share, struct gs_peer *peer,
                          const struct gs_token *token, const unsigned char *bytes, bool want_fd,
                          struct gs_wire_grant *ret_grant, int *ret_fd);
/* Gives a hold back that nobody has seen. */
void gs_peer_return(struct gs_peer *peer, uint64_t block_id);
void gs_peer_release_locked(struct gs_share *share, struct gs_peer *peer);
/* Sends what CLOSE messages there are; false while some are left. */
bool gs_peer_flush_locked(struct gs_share *share, struct gs_peer *peer);
/* The share thread: something happened on the connection. */
void gs_peer_event(struct gs_share *share, uint64_t id);
void gs_peer_disconnect(struct gs_share *share, struct gs_peer *peer);
/* Frees a peer that nothing refers to any more. */
void gs_peer_reap_locked(struct gs_share *share, struct gs_peer *peer);

/* import.c */
struct gs_import *gs_import_find(struct gs_peer *peer, uint64_t chunk_id);
/* Maps a granted chunk; `fd` stays the caller's. Nothing is left behind on failure. The import is
 * not in the map nor with its peer yet. */
gs_status gs_import_map(struct gs_share *share, const struct gs_wire_grant *grant, int fd,
                        CUdevice device, struct gs_import **ret_import);
gs_status gs_import_allow(struct gs_share *share, struct gs_import *import, CUdevice device);
/* Unmaps and gives the driver's things back; the import is not in the map any more. */
void gs_import_unmap(struct gs_share *share, struct gs_import *import);
gs_status gs_import_enter_locked(struct gs_share *share, struct gs_peer *peer,
                                 struct gs_import *import);
void gs_import_leave_locked(struct gs_share *share, struct gs_import *import);
void gs_import_recycle_locked(struct gs_share *share, struct gs_import *import);
/* Adds a block to the import's. GS_UNREACHABLE: it covers a byte of another, which no sound exporter
 * would say. GS_NO_HOST_MEMORY. */
gs_status gs_import_add_locked(struct gs_import *import, struct gs_opened *opened);
void gs_import_remove_locked(struct gs_import *import, struct gs_opened *opened);
struct gs_opened *gs_import_at_locked(const struct gs_import *import, CUdeviceptr address);

/* closing.c */
/* Notes that the context uses the block: a fence in it will be behind the last close. */
gs_status gs_use_add_locked(struct gs_share *share, struct gs_opened *opened, CUcontext context);
/* The last count is gone: fences are recorded, the thread will do the rest. */
void gs_closing_start_locked(struct gs_share *share, struct gs_opened *opened);
/* Opened again before its fences had passed. They are left to pass. */
void gs_closing_stop_locked(struct gs_share *share, struct gs_opened *opened);
/* The share thread: what is due; when to come again. */
uint64_t gs_closing_tick(struct gs_share *share, uint64_t now);
/* At the very end, without a thread. */
void gs_closing_finish(struct gs_share *share);

#endif
