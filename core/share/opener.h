/*
 * Opener: what opener.c, peer.c, request.c, import.c and closing.c have in common. Everything is
 * under the share's opener_lock. Functions named _locked are called with it held; others are
 * called without it, by the thread that has marked the peer busy.
 */
#ifndef GS_CORE_SHARE_OPENER_H
#define GS_CORE_SHARE_OPENER_H

#include "core/share/internal.h"

/* A connection to one exporter. While it is busy only the thread that made it so reads or writes
 * anything here but `busy`, `noticed` and the links of the table. */
struct gs_peer {
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t id;         /* for epoll */
    int fd;              /* -1: not connected */
    int pidfd;           /* the exporter's, where the kernel tells; or -1 */
    uint64_t connection; /* counts connections: a hold belongs to the one it was made over */
    uint64_t connected_ns, sent_ns; /* for people */
    uint32_t request;
    uint64_t known;     /* the connection that the blocks' `orphan` was last looked at for */
    unsigned crossing;  /* CLOSEs sent: a RECALL of the same block may have come across */
    bool by_broker;     /* connected to the broker that has its memory, itself having ended */
    bool deaf;          /* it talks without being asked: nothing but answers is read any more */
    unsigned abandoned; /* requests whose answers were not waited for */
    bool greeted;       /* HELLO was sent */
    bool busy;          /* one thread works with it, without the lock */
    bool watched;       /* the thread watches the connection */
    bool noticed;       /* something came while it was busy: the thread looks again */
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
    bool read_only;
    uint64_t devices;          /* atomic; bit d: device d has access */
    struct gs_opened **sorted; /* by address */
    unsigned count, room;
    struct gs_import *next;
};

/* When each step of opening a block for the first time was done, for those who look at the log. */
struct gs_open_steps {
    uint64_t begun, answered, imported, mapped;
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
    uint64_t count; /* opens minus closes; 0: idle or closing */
    bool idle;      /* in the list of idle ones, since: */
    uint64_t idle_ns;
    bool recalled;  /* the exporter wants it back */
    bool orphan;    /* the exporter has hung up */
    bool leaving;   /* its fences have passed, it cannot be revived */
    bool held;      /* a registration of it was in use when it was to be given back */
    bool replaced;  /* not in the table any more: its connection was lost */
    struct gs_use *uses;
    unsigned use_count;
    struct gs_opened *next; /* in `closing`, in `unsent`, or of the idle ones the next newer */
    struct gs_opened *older;
    UT_hash_handle hh;
};

struct gs_opener_context {
    CUcontext context;
    bool leaving; /* the driver may be destroying it: it is asked nothing about its fences */
    struct gs_fence_pool pool;
    UT_hash_handle hh;
};

/* peer.c */
struct gs_peer *gs_peer_find_locked(struct gs_share *share, const unsigned char *instance);
struct gs_peer *gs_peer_new_locked(struct gs_share *share, const unsigned char *instance);
/* Connects. GS_UNREACHABLE, or CUDA_ERROR_OPERATING_SYSTEM without a descriptor for it. */
gs_status gs_peer_connect(struct gs_share *share, struct gs_peer *peer);
/* Says why another process's memory cannot be had: the first time for all to see. */
void gs_say_unreachable(struct gs_share *share, const char *reason);
/* Gives a hold back that nobody has seen. */
void gs_peer_return(struct gs_peer *peer, uint64_t block_id);
/* Takes a message that is no answer to the last request; `fd` came with it and is closed. */
void gs_peer_take_other(struct gs_share *share, struct gs_peer *peer,
                        const union gs_wire_message *message, int fd);
void gs_peer_take_other_locked(struct gs_share *share, struct gs_peer *peer,
                               const union gs_wire_message *message, int fd);
/* It is no longer busy; may free it. */
void gs_peer_release_locked(struct gs_share *share, struct gs_peer *peer);
/* Sends what CLOSE messages there are; false while some are left. */
bool gs_peer_flush_locked(struct gs_share *share, struct gs_peer *peer);
/* From now on the share thread, which it starts, sees what comes over the connection. */
gs_status gs_peer_watch(struct gs_share *share, struct gs_peer *peer);
/* The share thread: something happened on the connection. */
void gs_peer_event(struct gs_share *share, uint64_t id);
/* Looks at those that were busy then; when to come again. */
uint64_t gs_peers_tick_locked(struct gs_share *share, uint64_t now);
void gs_peer_disconnect(struct gs_share *share, struct gs_peer *peer);
/* Frees a peer that nothing refers to any more. */
void gs_peer_reap_locked(struct gs_share *share, struct gs_peer *peer);

/* request.c */
/* Asks for one block; with success one hold is this process's, and must go back by a CLOSE over
 * the same connection. *ret_fd is the caller's, or -1 if it was not wanted. */
gs_status gs_peer_request(struct gs_share *share, struct gs_peer *peer,
                          const struct gs_token *token, const unsigned char *bytes, bool want_fd,
                          struct gs_wire_grant *ret_grant, int *ret_fd);
/* import.c */
struct gs_import *gs_import_find(struct gs_peer *peer, uint64_t chunk_id);
/* Maps a granted chunk; `fd` stays the caller's. Nothing is left behind on failure. The import is
 * not in the map nor with its peer yet. */
gs_status gs_import_map(struct gs_share *share, const struct gs_wire_grant *grant, int fd,
                        CUdevice device, struct gs_open_steps *steps,
                        struct gs_import **ret_import);
gs_status gs_import_allow(struct gs_share *share, struct gs_import *import, CUdevice device);
/* Unmaps and gives the driver's things back; the import is not in the map any more. */
void gs_import_unmap(struct gs_share *share, struct gs_import *import);
gs_status gs_import_enter_locked(struct gs_share *share, struct gs_peer *peer,
                                 struct gs_import *import);
void gs_import_leave_locked(struct gs_share *share, struct gs_import *import);
void gs_import_recycle_locked(struct gs_share *share, struct gs_import *import);
/* Adds a block to the import's. GS_UNREACHABLE: it covers a byte of another, which no sound
 * exporter would say. GS_NO_HOST_MEMORY. */
gs_status gs_import_add_locked(struct gs_import *import, struct gs_opened *opened);
void gs_import_remove_locked(struct gs_import *import, struct gs_opened *opened);
struct gs_opened *gs_import_at_locked(const struct gs_import *import, CUdeviceptr address);

/* idle.c */
/* The last count is gone: kept for the next open, or on its way back. */
void gs_idle_start_locked(struct gs_share *share, struct gs_opened *opened);
/* Opened again. */
void gs_idle_stop_locked(struct gs_share *share, struct gs_opened *opened);
/* The exporter wants a block back. False: there is no such block. */
bool gs_idle_recall_locked(struct gs_share *share, struct gs_peer *peer, uint64_t block_id);
/* Nobody will call the peer's blocks back any more, if its connection was lost. */
void gs_idle_lost_locked(struct gs_share *share, struct gs_peer *peer);
/* Sends the ones back whose time is over; when the next one's is. */
uint64_t gs_idle_tick_locked(struct gs_share *share, uint64_t now);
/* At the very end: all. */
void gs_idle_finish_locked(struct gs_share *share);

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
