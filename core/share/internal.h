/*
 * What the files of core/share have in common. (What each has: README.md.)
 *
 * Who may touch what: exports, who holds them, and the starting of thread and socket, are under
 * `lock`. All else of clients is the share thread's alone. Remotes, imports and opened blocks are
 * under `importer.lock`; what takes long (messages, driver calls) is done without it by the one
 * thread that has marked the remote busy, and nobody else changes that remote or its imports
 * meanwhile.
 */
#ifndef GS_CORE_SHARE_INTERNAL_H
#define GS_CORE_SHARE_INTERNAL_H

#include <errno.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/base/background.h"
#include "core/base/clock.h"
#include "core/base/fd.h"
#include "core/base/lock.h"
#include "core/gpu/device.h"
#include "core/share/alive.h"
#include "core/share/conn.h"
#include "core/share/directory.h"
#include "core/share/ipc_handle.h"
#include "core/share/share.h"
#include "core/share/wire.h"

/* A table that cannot grow leaves the new entry out (hh.tbl stays NULL); it never exits. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define GS_NEVER UINT64_MAX
static inline void gs_sooner(uint64_t *due, uint64_t at)
{
    *due = at < *due ? at : *due;
}

/* What nobody announces is looked at again after this: who has hung up, whether the program has
 * closed a connection, whether the socket is there. */
#define GS_LOOK_NS GS_NS_PER_S
/* What there was no room for, among descriptors or in a socket, is tried again after this. */
#define GS_ROOM_NS (20 * GS_NS_PER_MS)

/* What the share thread does about an export: asks its holders for it, makes a descriptor of its
 * chunk ahead. */
enum gs_work { GS_WORK_RECALL, GS_WORK_CHUNK_FD, GS_WORKS };

/*
 * What has become of a block that was freed:
 *
 *   IN_USE ── freed, and nobody has opened it ──► GRACE ── that is over ─────────────► ENDED ── told ──► IN_USE
 *     └────── freed, and held or pinned ────────► LIMBO ── neither held nor pinned ──────┘
 *
 * From GRACE to LIMBO and back it may go as well. One that is told of may be withdrawn, which ends
 * it.
 */
enum gs_export_state {
    GS_EXPORT_IN_USE,
    GS_EXPORT_GRACE,
    GS_EXPORT_LIMBO,
    GS_EXPORT_ENDED,
    GS_EXPORT_STATES
};

/* ---- The parts of struct gs_share ----------------------------------------------------------- */

/* This process's place in the runtime directory (place.c, socket.c). */
struct gs_share_place {
    struct gs_seat {
        char path[GS_FOLDER_SIZE + GS_BROKER_NAME_SIZE]; /* "": not known, or none of ours */
        uint64_t inode, device;                          /* what was put up there */
    } seat;
    struct gs_fd directory_is, listener_is;
    int directory, listener; /* written before that is watched; then what they are is exchanged */
    /* The share thread's own. */
    int spare_fd;        /* given up for a moment to refuse a caller when no other is left */
    bool spare_given;    /* a message has got it: another is to be had */
    uint64_t sweep_ns;   /* atomic: when to clear the directory; GS_NEVER */
    uint64_t serve_ns;   /* atomic: when to put the socket up; GS_NEVER */
    uint64_t touch_ns;   /* when to say in the directory that this process lives */
    struct gs_fd notify; /* an inotify of the socket and its folder; none: none is left, say */
    uint64_t look_ns;    /* when it is looked whether the socket is there; GS_NEVER */
};

/* The share thread, and what it is told (watch.c, loop.c). */
struct gs_loop {
    /* Written before it starts, then read only. */
    struct gs_background background;
    void *(*run)(void *share); /* gs_loop_run */
    int epoll;
    int wake, woken; /* ends of a pipe, which is nobody else's; of an eventfd that cannot be told */
    struct gs_fd wake_kept, woken_kept;
    bool stop; /* atomic */
    /* Its own. */
    uint64_t expected_ns; /* until then the next message is looked for before the thread sleeps */
    uint64_t spun_ns, spin_ns; /* how long that went on lately, and when it was last counted */
};

/* The connection to a broker (publish.c). */
struct gs_link {
    int fd; /* or -1; what it is: */
    struct gs_fd fd_is;
    /* The share thread's own: since when there is one; when to look for another, and how long after
     * the last look that is (0: there was none). */
    uint64_t found_ns, retry_ns, pause_ns;
    uint64_t awaited_ns; /* since when one is that was started, or takes no connection; 0: not */
    uint64_t again_ns;   /* an answer did not go: the next attempt; 0: it did */
    uint64_t silent_ns;  /* when it is told of that it asks nothing */
    /* Under the lock: */
    bool absent;                    /* there is none, as far as was looked */
    bool asks;                      /* a PULL is not answered yet */
    bool revoked;                   /* something was taken back, and it does not know that */
    struct gs_export *next;         /* of `offered`, the first that it was not told of */
    struct gs_export *given;        /* that it was told of last and has not done with, */
    uint32_t piece;                 /* of which it asks for this */
    struct gs_name *named;          /* that it was told of last, likewise */
    struct gs_confirmed *confirmed; /* what it may serve when this process has ended */
};

/* Of a broker: other machines (cluster.h). The share thread's own. */
struct gs_cluster {
    uint64_t agent;             /* the client that is the agent; 0: there is none */
    struct gs_agent_line *line; /* what it could not be told yet */
    unsigned waiting;
    bool holds_due;         /* processes could not be told what they are to hold */
    uint32_t last_request;  /* that it was asked */
    struct gs_export *done; /* borrowed, and perhaps not held by anybody */
};

/* Of a broker: what was published to it (broker.c, publisher.c). */
struct gs_store {
    uint64_t unneeded_since; /* atomic; GS_NEVER: it takes nobody in any more */
    /* The share thread's own. */
    struct gs_published_chunk *published_chunks;
    unsigned published_fds; /* of all of these, also those that are still to come */
    struct gs_publisher *publishers;
    uint64_t published_due_ns;
    bool published_said; /* a limit was met */
    struct gs_cluster cluster;
};

/* What is freed, and held by others or pinned (limbo.c). */
struct gs_limbo {
    uint64_t count, bytes; /* of those that are held */
    uint64_t due_ns;       /* when to look whether that is too much; GS_NEVER */
    bool said;             /* it is, and was said */
};

/* Events of several processes (event.c). */
struct gs_ipc_events {
    struct gs_event_file *files;     /* of this process's, that were given out */
    struct gs_event_import *imports; /* of others */
    uint32_t last;                   /* so many of them had a pid of their own */
};

/* What is exported (exports.c, queue.c, chunk_fds.c). */
struct gs_exporter {
    struct gs_export *exports;
    uint64_t next_export;                       /* atomic */
    struct gs_export *work[GS_WORKS];           /* lists */
    struct gs_export *states[GS_EXPORT_STATES]; /* lists; of those in use there is none */
    uint64_t grace_due_ns; /* when the next grace may end, or earlier; GS_NEVER: none runs */
    /* Of what waits for a first open: what it keeps from the driver, and what its owner would have
     * back already. */
    uint64_t grace_bytes[GS_DEVICES_MAX], grace_wanted[GS_DEVICES_MAX];
    unsigned telling;              /* threads that are at telling of one */
    struct gs_chunk_fd *chunk_fds; /* the share thread adds and uses; others remove */
    uint64_t chunk_fd_uses;
    struct gs_ipc_events ipc_events;
    struct gs_name *names;         /* what is published under a name */
    struct gs_export *offered;     /* to a broker: a list, in the order of their handles */
    struct gs_export *cluster_due; /* that other machines hold, and the broker is to hear of */
    struct gs_cond names_told;     /* the broker has answered to one, or is lost */
    int64_t clock_ahead_ns;        /* atomic, as gs_clock_ahead_ns says, once that is: */
    bool clock_known;              /* atomic */
    bool ever_opened;              /* atomic: some handle of this process's was */
    bool unopened_said;            /* atomic: or none was, and that was said */
    uint64_t counts;               /* of bytes, so far (gs_export_bytes_locked) */
    bool used; /* atomic: this process shares; before that it can only be asked for memory */
    bool refusal_said; /* atomic: why something is not exported was logged as a warning */
    /* The share thread's own. */
    uint64_t served_ns, ahead_ns; /* the last open, and descriptor made ahead */
};

/* The share thread's own: who is connected (clients.c, quota.c, report.c). */
struct gs_clients {
    struct gs_client *first;
    unsigned count; /* of those that count (quota.c) */
    uint64_t next_id;
    struct gs_user *users;
    struct gs_unread *unread; /* and when they are looked at, if there are any */
    uint64_t unread_look_ns;
    uint64_t listener_pause;     /* when to listen again; 0: listening */
    uint64_t lost_look_ns;       /* when to look whether the program has closed connections */
    struct gs_share_stats stats; /* as they were told last, */
    uint64_t stats_due_ns;       /* and are told until then */
};

/* Other processes on a full GPU, and this one (pressure.c, pressure_ask.c). */
struct gs_pressure {
    /* What others ask for: of one device at a time, all of them together. */
    enum { GS_ASKED_NOTHING = 0, GS_ASKED, GS_ASKED_TAKEN, GS_ASKED_DONE } state;
    unsigned char uuid[16];
    uint64_t wanted, given;
    bool is_long;           /* they are to be told that it takes longer */
    unsigned pleas;         /* the share thread's own: clients that wait for an answer */
    struct gs_peer *silent; /* whom this process has asked, and who has not answered yet */
};

/* What threads of this process ask the share thread (flush.c), and others for. */
struct gs_asked {
    struct gs_cond given_back;          /* there is less in limbo */
    uint64_t flush_wanted, flush_begun; /* who waits for what comes back counts one; seen to */
    uint64_t flushes_sent;              /* the share thread's own */
    struct gs_pressure pressure;
};

/* What this process has opened (importer.h). */
struct gs_importer {
    struct gs_lock lock;    /* rank IMPORTER; protects all of it */
    struct gs_cond changed; /* a remote is no longer busy; external memory is over */
    struct gs_remote *remotes;
    struct gs_opened *opened;
    struct gs_opened *closing; /* list of opened blocks whose last count is gone */
    struct gs_opened *kept;    /* what stays for the next open, the oldest first (cache.c) */
    unsigned kept_count;
    bool kept_armed; /* the thread comes by itself when the oldest one's time is over */
    struct gs_external *externals; /* as long as the driver may know of them */
    struct gs_importer_context *contexts;
    struct gs_import *spare_imports; /* records that the map may still lead to: never freed */
    uint64_t next_import, next_remote, rounds;
    uint32_t hellos;    /* atomic: said so far */
    bool astray;        /* the thread is to look whether the program has closed connections: */
    uint64_t astray_ns; /* not before this */
    uint64_t look_ns; /* when the thread looks at remotes that were busy when they had something */
    bool polling;     /* the thread looks at `closing` by itself, again after: */
    uint64_t poll_ns;
    bool unreachable_said;   /* atomic */
    bool forked;             /* atomic: this process has a child, or had, */
    bool fork_told;          /* and all to whom it was connected by then know it */
    uint64_t sleep_until_ns; /* atomic: until then no looks for answers, which were in vain */
};

struct gs_share {
    const struct gs_driver *driver;
    struct gs_map *map;
    struct gs_fences *fences;
    struct gs_log log;
    struct gs_share_options options;
    struct gs_share_events events;
    pid_t pid; /* of the process that made this: a forked child keeps away */
    unsigned char instance[GS_INSTANCE_SIZE];
    char name[GS_BROKER_NAME_SIZE]; /* of its socket */
    bool ending; /* atomic: the process ends, the driver is not called any more */
    bool spins;  /* there are CPUs enough to look for an answer for a moment before one sleeps */
    struct gs_lock lock; /* rank SHARE: what is below, not the thread's own, nor the importer's */
    struct gs_cond started;
    /* Written with the lock, atomically. GS_GIVEN_UP: the thread that was at it was killed. */
    enum gs_start {
        GS_NOT_STARTED = 0,
        GS_STARTING,
        GS_STARTED,
        GS_GIVEN_UP
    } thread_start,
        socket_start;
    pid_t starter; /* the thread that is at it: of both at a time one at most is starting */
    struct gs_share_place place;
    struct gs_loop loop;
    struct gs_link link;
    struct gs_store store;
    struct gs_limbo limbo;
    struct gs_exporter exporter;
    struct gs_clients clients;
    struct gs_asked asked;
    struct gs_importer importer;
};

/* ---- watch.c -------------------------------------------------------------------------------- */

/* What an event of the loop is about: a kind, and in the bits below GS_WATCH_SHIFT an id. */
#define GS_WATCH_SHIFT 56
#define GS_WATCH_ID    ((UINT64_C(1) << GS_WATCH_SHIFT) - 1)
enum gs_watch {
    GS_WATCH_WAKE,
    GS_WATCH_LISTENER,
    GS_WATCH_CLIENT,
    GS_WATCH_PIDFD,
    GS_WATCH_REMOTE,
    GS_WATCH_BROKER,
    GS_WATCH_PLACE
};
enum gs_watch_op { GS_WATCH_ADD, GS_WATCH_CHANGE };
/* What is told of; a hang-up always is. Once: then nothing more until it is changed. */
enum { GS_WATCH_READ = 1, GS_WATCH_WRITE = 2, GS_WATCH_ONCE = 4 };

/* Who was refused for now (GS_REFUSED_FLIGHT, GS_REFUSED_EARLY) asks again after this, up to its
 * deadline. */
#define GS_REFUSED_NS (5 * GS_NS_PER_MS)

/* Starts the share thread where there is none. GS_UNREACHABLE: it cannot be had (logged). */
gs_status gs_thread_start(struct gs_share *share);
void gs_thread_wake(struct gs_share *share);
/* Whether the program has left the share thread its epoll. */
bool gs_epoll_is_there(const struct gs_share *share);
/* Adds or changes (`op`) a watch; 0 or a negative errno. */
int gs_watch(struct gs_share *share, enum gs_watch_op op, int fd, unsigned events,
             enum gs_watch kind, uint64_t id);
/* Must come before the close: a forked child may keep the descriptor's file open. */
void gs_unwatch(struct gs_share *share, int fd);
/* The share thread: a message is likely to come by then. After an answer, since the next of a row
 * comes when the last is mapped; after a handle was given out, which is to be sent to its first
 * importer. */
void gs_thread_expect(struct gs_share *share, uint64_t until);
#define GS_ANSWERED_NS (150 * GS_NS_PER_MS / 1000)
#define GS_EXPORTED_NS (2 * GS_NS_PER_MS)
/* Makes what the share thread uses, or an errno. */
int gs_loop_open(struct gs_share *share);
/* Closes what the share thread used; it is not running. What the program has closed is not ours. */
void gs_loop_close(struct gs_share *share);
/* Whether the process waited for can run while one looks for what it says. */
bool gs_loop_may_spin(void);

/* loop.c: the body of the thread. */
void *gs_loop_run(void *share);

/* ---- thread.c ------------------------------------------------------------------------------- */

/* The share thread: what is watched has something to say; the id is that of its watch. */
void gs_thread_event(struct gs_share *share, enum gs_watch kind, uint64_t id);
/* Does what is due at `now`; when to come again, if nothing happens before, or GS_NEVER. */
uint64_t gs_thread_tick(struct gs_share *share, uint64_t now);

/* ---- place.c -------------------------------------------------------------------------------- */

/* Runs `start` once for all callers; where it failed, again for the next. */
gs_status gs_start_once(struct gs_share *share, enum gs_start *state,
                        gs_status (*start)(struct gs_share *));
/* gs_thread_wake for who does not know whether there is a thread; no lock of core/share is held. */
void gs_thread_wake_any(struct gs_share *share);
/* Waits, shortly, where it is just being put up: who ends this process knows its name then. */
void gs_socket_await(struct gs_share *share);
/* The share thread: puts the socket up where that is due, sees that it is there and clears the
 * directory; when to come again. */
uint64_t gs_socket_tick(struct gs_share *share, uint64_t now);
/* The share thread, which is awake: has the socket looked at soon. */
void gs_socket_look(struct gs_share *share);
/* Clears the directory of what killed processes left, once and not before the socket is there. */
void gs_sweep(struct gs_share *share);

/* The share thread's spare descriptor, given up for a moment where no other is left: sees that there
 * is one, as far as it is to be had; gives it up. */
void gs_spare_take(struct gs_share *share);
void gs_spare_give(struct gs_share *share);

/* ---- socket.c ------------------------------------------------------------------------------- */

/* Whether the socket belongs to whoever started this broker. */
bool gs_socket_is_given(const struct gs_share *share);
/* Whether it is not there any more, by the path that importers use, or closed by the program. */
bool gs_socket_is_lost(struct gs_share *share);
/* The new directory and listener, made by gs_directory_put_up, are the share's from now on, in
 * place of those before. 0, or a negative errno: they cannot be watched, and are to be taken
 * down. */
int gs_socket_adopt(struct gs_share *share, int directory, int listener);
void gs_socket_take_down(struct gs_share *share);
/* Something was done to the socket or its folder: it is looked at. */
void gs_socket_event(struct gs_share *share);

/* names.c: when something was published, in all processes by one clock, whatever their time
 * namespaces. */
uint64_t gs_names_now(struct gs_share *share);
/* Of this user. Waits until the broker has it, as gs_share_named; false: it has not. */
bool gs_names_await_kept(struct gs_share *share, const char *name, uint64_t since_ns);
/* What this process has published under the name; ends it, if that was at that time or before.
 * False: it has nothing. */
bool gs_names_own(struct gs_share *share, const char *name, uint64_t *ret_since_ns,
                  struct gs_found *ret_found);
bool gs_names_end(struct gs_share *share, uint32_t uid, const char *name, uint64_t since_ns);

/* owners.c: whose memory is open here; of the one with the index, how much, and whether it has
 * ended. */
void gs_owners_tell(struct gs_share *share, uint32_t index, struct gs_wire_opened *ret);

/* connect.c: to the socket of the name, in whichever folder, by then: a descriptor, or an errno;
 * with the reason where there was no folder. -EACCES: it is another user's; -EPERM: it may be
 * connected to, and that is forbidden. */
int gs_connect_anywhere(struct gs_share *share, const char *name, uint64_t deadline_ns,
                        char ret_reason[GS_REASON_SIZE]);

/* pressure_ask.c: at the very end. */
void gs_others_free(struct gs_share *share);

/* ---- say.c ---------------------------------------------------------------------------------- */

/* From now on this process shares: what does not go is said aloud. */
void gs_say_used(struct gs_share *share);
/* Memory is not exported, and why: a warning the first time, and a line for debugging later.
 * GS_NOT_OFFERED. */
gs_status gs_say_not_exported(struct gs_share *share, const char *reason);
/* Nobody is left to open a handle of this process's, or those of a freed block: says so once where
 * nobody ever opened any. Who has not the library gets an error from the driver and cannot tell. */
void gs_say_unopened(struct gs_share *share);
/* Says why another process's memory cannot be had: the first time for all to see. GS_UNREACHABLE. */
gs_status gs_say_unreachable(struct gs_share *share, const char *reason);
/* What an exporter said is none of what it could say. GS_UNREACHABLE. */
gs_status gs_say_senseless(struct gs_share *share);

#endif
