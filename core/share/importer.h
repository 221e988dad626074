/*
 * Importer: what importer.c, remote.c, connect.c, request.c, import.c and closing.c have in common.
 * All is under `importer.lock` of the share. Functions named _locked are called with it held;
 * others are called without it, by the thread that has marked the remote busy.
 */
#ifndef GS_CORE_SHARE_IMPORTER_H
#define GS_CORE_SHARE_IMPORTER_H

#include "core/share/internal.h"

/* The socket to an exporter, or to who serves what it had shared, and what goes over it. */
struct gs_connection {
    int fd;                           /* -1: not connected */
    int pidfd;                        /* the exporter's, where the kernel tells; or -1 */
    pid_t pid;                        /* the same; 0 or less: of another PID namespace */
    struct gs_fd kept_fd, kept_pidfd; /* what they are: the program may close them */
    uint64_t sent_ns;                 /* when it was asked last */
    uint32_t request;
    /* So much may come unasked: answers that were not waited for, a RECALL across each CLOSE, and one
     * of each block that was named. */
    unsigned owed;
    bool by_broker; /* connected to the broker that has its memory, itself having ended */
    bool deaf;      /* it has said more than that: nothing but answers is read any more */
    bool greeted;   /* HELLO was sent, */
    bool may_hold;  /* as far as the exporter knows: asked, no BYE since; kept over connections */
    bool resumed, refused; /* it is another one; and that was refused */
    bool watched;          /* the thread watches the connection */
    bool fork_told;        /* the exporter knows that this process has forked */
};

/* An exporter. While it is busy only the thread that made it so reads or writes anything here but
 * `busy`, `noticed` and the links of the table. */
struct gs_remote {
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t id; /* of its watch */
    struct gs_connection conn;
    uint64_t connection;  /* counts connections: a reference belongs to the one it was made over */
    uint64_t deadline_ns; /* of the call that has made it busy: whatever it waits for, together */
    uint64_t known;       /* the connection that the blocks' `orphan` was last looked at for */
    bool astray;          /* the program has closed the connection, over which things are held: */
    uint64_t astray_ns;   /* it is to be told over another; when that was tried last */
    uint64_t absent_ns;   /* since when nobody is there to tell; 0: somebody was */
    bool busy;            /* one thread works with it, without the lock */
    uint64_t visited;     /* the last round that was at it (let_go.c) */
    bool noticed;         /* something came while it was busy: the thread looks again */
    bool cluster; /* the last grant was of another machine's chunk, of this fabric handle: */
    unsigned char fabric[GS_FABRIC_SIZE];
    /* Under the lock, busy or not: */
    uint64_t flush_number; /* of the FLUSH that is not answered; 0: none */
    uint64_t flushed_ns;   /* when one was answered last */
    unsigned opened_count;
    pid_t owner_pid;  /* its, not a broker's; 0 or less: of another PID namespace, or never seen; */
    bool owner_ended; /* and whether it has, as of when it was busy last: both under the lock */
    uint64_t owner_started; /* as this process let go of what it has of it (let_go.c); 0: that was
                             * never, or it cannot be seen */
    struct gs_import *imports;
    struct gs_opened *unsent; /* also references that nobody saw, whose CLOSE did not go yet */
    UT_hash_handle hh;
};

/* A chunk of another process, mapped here. */
struct gs_import {
    struct gs_span span; /* first: what the map points at */
    struct gs_remote *remote;
    uint64_t connection;
    uint64_t chunk_id;
    unsigned char uuid[16];
    CUcontext context; /* of the host's memory: in which it is registered; NULL: that has gone, */
    size_t host_size;  /* and how much of it */
    bool strip, host;
    bool read_only;
    bool ends; /* it may go at its exporter's, open here or not: what it has was given once */
    bool away; /* not mapped, while this process sleeps; the remote is busy who changes it */
    bool lost; /* and never will be: its exporter has ended */
    /* Atomic. Bit d: device d has access; and has opened a block (of the host's memory: all, or none
     * while it is not registered). */
    uint64_t devices, homes;
    struct gs_opened **sorted; /* by address; of a strip as they came */
    unsigned count, room;
    struct gs_import *next;
};

/* Addresses for a chunk that is about to be mapped; size 0: none. */
struct gs_room {
    CUdeviceptr base;
    size_t size;
};

/* One context whose work may be at a block, and its fence behind the last close. */
struct gs_use {
    CUcontext context;
    bool has_opened; /* the block, and so keeps it open */
    struct gs_fence fence;
    enum {
        GS_FENCE_NONE = 0,
        GS_FENCE_WANTED,  /* is to be recorded once `fence` has passed and no capture is open */
        GS_FENCE_SYNCING, /* a driver without fences: the thread is to wait for the context, */
        GS_FENCE_WAITING  /* and has begun to */
    } next;
};

/* A block of another process that this one has opened. */
struct gs_opened {
    struct gs_ipc_key key;
    struct gs_remote *remote;
    struct gs_import *import;
    uint64_t connection; /* over which it was granted, or named */
    uint32_t generation; /* of its grant */
    struct gs_ipc_handle ipc_handle;
    CUdeviceptr address;
    size_t size;
    CUdeviceptr start; /* what its program was told: of a strip the piece, else the address */
    uint64_t id;
    uint64_t count; /* opens minus closes; 0: kept or closing */
    bool kept;      /* it stays for the next open (cache.c), since: */
    uint64_t kept_ns;
    struct gs_opened *older, *newer; /* in the list of those */
    bool recalled;                   /* the exporter wants it back */
    bool orphan; /* the exporter was given up since: it is asked before the block is opened again */
    bool leaving; /* its fences have passed, it cannot be revived */
    bool held;    /* a registration of it was in use when it was to be given back */
    struct gs_use *uses;
    unsigned use_count;
    struct gs_external *external; /* that it is, of this process's; NULL: of another's */
    struct gs_opened *next;       /* in `closing`, or in `unsent` */
    UT_hash_handle hh;
};

static inline struct gs_opened *
gs_opened_find_locked(struct gs_share *share, const unsigned char *instance, uint64_t block_id)
{
    const struct gs_ipc_key key = gs_ipc_key(instance, block_id);
    struct gs_opened *opened;

    HASH_FIND(hh, share->importer.opened, &key, sizeof key, opened);
    return opened;
}

struct gs_importer_context {
    CUcontext context;
    bool leaving; /* the driver may be destroying it: it is asked nothing about its fences */
    struct gs_fence_pool pool;
    UT_hash_handle hh;
};

/* Said of memory whose process has ended. */
#define GS_BROKER_HELPS \
    "; with share.strategy = broker there its memory can be opened after its end, for share.keep"

/* connect.c */
/* Connects. GS_UNREACHABLE, or CUDA_ERROR_OPERATING_SYSTEM without a descriptor for it. */
gs_status gs_remote_connect(struct gs_share *share, struct gs_remote *remote);
/* Connects to the same one again: 0, or a negative errno. Where it has ended what was held is
 * lost. */
int gs_remote_connect_again(struct gs_share *share, struct gs_remote *remote);
/* Hangs up without a word; what is held is named over another connection. */
void gs_remote_hang_up(struct gs_remote *remote);
/* Takes note of it where the program has closed the connection, whose number may be another file's:
 * then there is none. */
void gs_remote_look(struct gs_remote *remote);
/* Whether it runs whose memory this process let go of, as far as that shows. */
bool gs_remote_owner_runs(const struct gs_remote *remote);
void gs_remote_disconnect(struct gs_share *share, struct gs_remote *remote);
/* Takes note where a connection is refused over which it was to be told what is held, and where it
 * says that this is nothing. */
void gs_remote_note_end(struct gs_remote *remote, const union gs_wire_message *message);
/* Its connection has ended, and by nothing that was done here. */
void gs_remote_lost(struct gs_share *share, struct gs_remote *remote);

/* remote.c */
/* Made where there is none; NULL: no host memory. */
struct gs_remote *gs_remote_of_locked(struct gs_share *share, const unsigned char *instance);
/* Gives back what was granted and nobody has seen. */
void gs_remote_return(struct gs_share *share, struct gs_remote *remote,
                      const struct gs_wire_grant *grant);
/* Takes a message that is no answer to the last request; `fd` came with it and is closed. */
void gs_remote_take_other(struct gs_share *share, struct gs_remote *remote,
                          const union gs_wire_message *message, int fd);
/* Waits, the lock held, until some remote is no longer busy; false: `deadline_ns` has come. Who has
 * made it busy ends it, at its own deadline at the latest; natively an open waits for nobody, and
 * one that fails here after debug.timeout has met a process that is stopped or gone. */
bool gs_remote_await_locked(struct gs_share *share, uint64_t deadline_ns);
/* It is no longer busy; may free it. Lets go of the lock meanwhile. */
void gs_remote_release_locked(struct gs_share *share, struct gs_remote *remote);
/* Sends what CLOSE messages there are; false while some are left. */
bool gs_remote_flush_locked(struct gs_share *share, struct gs_remote *remote);
/* The share thread: something happened on the connection. */
void gs_remote_event(struct gs_share *share, uint64_t id);
/* Looks at those that were busy then; when to come again. */
uint64_t gs_remotes_tick_locked(struct gs_share *share, uint64_t now);
/* Tells those who do not know it that this process has forked; when to come again. */
uint64_t gs_fork_tick_locked(struct gs_share *share, uint64_t now);
/* Frees a remote that nothing refers to any more. */
void gs_remote_reap_locked(struct gs_share *share, struct gs_remote *remote);

/* fetch.c: what came of a grant's pieces and is not mapped yet. */
struct gs_pieces {
    const struct gs_wire_batch *batch;
    struct gs_wire_fds *fds; /* none: it is */
    CUdeviceptr base;
    size_t mapped; /* bytes, from the base on */
    gs_status status;
};
/* Maps it, where it is not; the descriptors are closed. */
void gs_pieces_map(struct gs_share *share, struct gs_remote *remote, struct gs_pieces *pieces);

/* request.c */
/* What is asked for. */
struct gs_request {
    struct gs_ipc_handle ipc_handle;
    enum gs_open_wants wants;
    uint32_t first;           /* the pieces from this one on, which are, of all the chunk, */
    uint64_t left;            /* so many bytes; 0 with the first: whatever there are */
    struct gs_pieces *pieces; /* to be mapped while the answer is waited for; NULL: none */
    struct gs_room room; /* where it has none it may have some afterwards, also without success */
};
/* Asks for one block, or anew for one that it has; with success one reference is this process's,
 * and must go back by a CLOSE over the same connection. Descriptors of its pieces are the caller's,
 * none if they were not wanted. */
gs_status gs_remote_request(struct gs_share *share, struct gs_remote *remote,
                            struct gs_request *request, struct gs_wire_grant *ret_grant,
                            struct gs_wire_fds *ret_fds);
/* Closes what the exporter sent, used or not: then it is the driver's, which has taken it. There is
 * none afterwards. */
void gs_fds_done(struct gs_wire_fds *fds, bool used);
/* The program has closed the connection: another one takes its place, or the process that has
 * the memory has ended and all is lost. */
gs_status gs_remote_resume(struct gs_share *share, struct gs_remote *remote);

/* owners.c */
/* It is not busy any more, and its connection as it is: whether its owner has ended. */
void gs_owner_note_locked(struct gs_remote *remote);

/* fetch.c */
/* Maps a granted chunk, in the room if that is of its size; descriptors stay the caller's. Nothing
 * is left behind on failure. The import is not in the map nor with its remote yet; NULL: it is of
 * no exporter, who would be named in the log. The grant is that of the last pieces afterwards. */
gs_status gs_import_map(struct gs_share *share, struct gs_remote *remote,
                        struct gs_request *request, struct gs_wire_grant *grant,
                        struct gs_wire_fds *fds, CUdevice device, struct gs_import **ret_import);
/* What is away is mapped where it was, by what it was granted anew. */
gs_status gs_import_map_again(struct gs_share *share, struct gs_remote *remote,
                              struct gs_request *request, struct gs_wire_grant *grant,
                              struct gs_wire_fds *fds, struct gs_import *import);

/* import.c */
struct gs_import *gs_import_find(struct gs_remote *remote, uint64_t chunk_id);
/* Reserves addresses for the chunk of a block of `size` bytes, as far as that tells: for one that
 * is alone in it, or small. Who waits for a grant has the time, and it wakes the driver's
 * caches. */
void gs_room_make(struct gs_share *share, uint64_t size, struct gs_room *room);
void gs_room_free(struct gs_share *share, struct gs_room *room);
/* The room, if that is of the span's size, or others. */
gs_status gs_room_take(struct gs_share *share, struct gs_room *room, struct gs_span *span);
/* A record for what was granted, without an address; NULL: no host memory. */
struct gs_import *gs_import_new(struct gs_share *share, const struct gs_wire_grant *grant);
/* Maps it, where that is memory of the host. */
gs_status gs_import_map_host(struct gs_share *share, const struct gs_wire_grant *grant, int fd,
                             struct gs_import *import);
/* Access for a device; and that for one which opens a block, the context current, the remote busy
 * by this thread. */
gs_status gs_import_give(struct gs_share *share, struct gs_import *import, CUdevice device);
gs_status gs_import_allow(struct gs_share *share, struct gs_import *import, CUdevice device);
/* The context is gone, and with it what memory of the host was registered in it: who opens it next
 * registers it anew. */
void gs_import_leave_context_locked(struct gs_import *import, CUcontext context);
/* Makes memory of the host known to the driver, in the current context; and ends that. */
gs_status gs_host_register(struct gs_share *share, void *memory, size_t size, bool read_only);
bool gs_host_unregister(struct gs_share *share, CUcontext context, void *memory);
/* Unmaps and gives the driver's things back; the import is not in the map any more. Memory of the
 * host waits for work of the context that it is registered in. */
void gs_import_unmap(struct gs_share *share, struct gs_import *import);
void gs_import_leave_locked(struct gs_share *share, struct gs_import *import);
void gs_import_recycle_locked(struct gs_share *share, struct gs_import *import);
void gs_import_remove_locked(struct gs_import *import, struct gs_opened *opened);
/* The block that covers the address; of a strip, whose blocks all are the strip, one that is open
 * if any is. And the open one that was told to the program to be there. */
struct gs_opened *gs_import_at_locked(const struct gs_import *import, CUdeviceptr address);
struct gs_opened *gs_import_started_locked(const struct gs_import *import, CUdeviceptr start);
/* Enters what was opened everywhere, its mapping too where that is fresh, or nowhere. GS_UNREACHABLE:
 * it covers a byte of another, which no sound exporter would say. GS_NO_HOST_MEMORY. */
gs_status gs_opened_enter_locked(struct gs_share *share, struct gs_opened *opened, bool fresh);

/* cache.c */
/* The block's last count is gone: kept for the next open, or on its way back. */
void gs_cache_closed_locked(struct gs_share *share, struct gs_opened *opened);
/* It is kept, and is not any more. */
void gs_cache_take_locked(struct gs_share *share, struct gs_opened *opened);
/* The exporter wants a block back. False: that came late, or it has said so before. */
bool gs_cache_recall_locked(struct gs_share *share, struct gs_remote *remote,
                            const struct gs_wire_close *recall);
/* The exporter asks. False: once more before it was answered. */
bool gs_cache_flush_came_locked(struct gs_share *share, struct gs_remote *remote,
                                const struct gs_wire_flush *flush);
/* Nobody will call anything of the remote's back any more, if its connection was lost. */
void gs_cache_lost_locked(struct gs_share *share, struct gs_remote *remote);
/* Does away with what has had its time; when to come again. */
uint64_t gs_cache_tick_locked(struct gs_share *share, uint64_t now);
/* Answers FLUSHes, where that can be; when to come again. */
uint64_t gs_flush_tick_locked(struct gs_share *share, uint64_t now);
/* All goes back; how many blocks, and their bytes, are added. */
void gs_cache_collect_locked(struct gs_share *share, uint64_t *count, uint64_t *bytes);

/* remote.c: the share thread looks whether the program has closed connections. */
void gs_remotes_look(struct gs_share *share);

/* external.c */
/* Its handle is stale, and who has it open is asked for it. */
void gs_external_ends_locked(struct gs_share *share, struct gs_external *external);
/* Whether another process has it still. */
bool gs_external_is_held_locked(struct gs_share *share, struct gs_external *external);
/* Nobody uses it, nor can: it leaves all tables. */
void gs_external_over_locked(struct gs_share *share, struct gs_external *external);
/* A context is gone, with what was registered in it: begins the end of what was attached in it, as
 * gs_share_detach does. */
void gs_externals_end_locked(struct gs_share *share, CUcontext gone);
/* As gs_share_pass_on, of external memory. */
gs_status gs_external_handle(struct gs_share *share, CUdeviceptr address,
                             unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE]);

/* closing.c */
/* The first context that has opened the block, of those that there are; NULL: none. */
CUcontext gs_opener(const struct gs_opened *opened);
/* The context opens the block: a fence in it will be behind the last close. */
gs_status gs_use_add_locked(struct gs_share *share, struct gs_opened *opened, CUcontext context);
/* So will one in each other context that there is, which may work with what one has opened. */
gs_status gs_uses_add_locked(struct gs_share *share, struct gs_opened *opened);
/* The last count is gone: fences are recorded, the thread will do the rest. */
void gs_closing_start_locked(struct gs_share *share, struct gs_opened *opened);
/* Opened again before its fences had passed. They are left to pass. */
void gs_closing_stop_locked(struct gs_share *share, struct gs_opened *opened);
/* The share thread: what is due; when to come again. */
uint64_t gs_closing_tick(struct gs_share *share, uint64_t now);
/* At the very end, without a thread. */
void gs_closing_finish(struct gs_share *share);

#endif
