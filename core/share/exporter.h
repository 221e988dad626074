/*
 * Exporter: what its files, exports.c, clients.c and others (internal.h), have in common. Exports
 * are under the share's lock. Clients belong to the share thread, which also takes the lock where
 * it changes what others look at: the table of clients, who each is, its references and FLUSHes.
 */
#ifndef GS_CORE_SHARE_EXPORTER_H
#define GS_CORE_SHARE_EXPORTER_H

#include "core/share/internal.h"

struct gs_export {
    struct gs_ipc_key key; /* ours; in a broker, of who left it there */
    struct gs_share_source source;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t references; /* holders, */
    uint64_t let_go;     /* and of these who do not map it (GS_OPEN_LETS_GO) */
    unsigned asleep;     /* pieces of it are off the GPU: nobody is given any */
    unsigned pins; /* by the share thread: while it serves an open, while `work` is not done */
    bool opened;   /* somebody has held it: no grace any more */
    /* In the list of what a broker is to have; NULL: not in it. */
    struct gs_export *offered_before, *offered_behind;
    uint32_t slot; /* in what a broker reads, which may serve it later; 0: none was told of it */
    struct gs_publisher *publisher; /* in a broker: who left it there */
    uint64_t owner;         /* in a broker: the client that left it there; 0: that has ended, */
    uint64_t keep_until_ns; /* and nobody has had it open since keep_ns before this */
    bool wanted;            /* a withdrawal was refused: who comes to hold it is asked at once */
    bool recalled;          /* whoever holds it is asked to give it back */
    /* In the lists of what the share thread is to do; NULL: not in it. */
    struct gs_export *work_before[GS_WORKS], *work_behind[GS_WORKS];
    uint64_t made_ns;  /* when its handle was asked for */
    uint64_t freed_ns; /* 0: the program has it */
    bool in_grace;     /* until that is over, or it was opened */
    enum gs_export_state state;
    struct gs_export *older, *newer; /* in the list of its state */
    bool limbo_held;                 /* freed, and held by others: counted in the limbo */
    struct gs_name *names;           /* that it is published under */
    struct gs_far *far;              /* with other machines (cluster.h); NULL: nothing */
    UT_hash_handle hh;
};

static inline struct gs_export *gs_export_find_locked(const struct gs_share *share,
                                                      const unsigned char *instance,
                                                      uint64_t block_id)
{
    const struct gs_ipc_key key = gs_ipc_key(instance, block_id);
    struct gs_export *export;

    HASH_FIND(hh, share->exporter.exports, &key, sizeof key, export);
    return export;
}

/* names.c: what is published here, or was left with this broker, under a name. */
/* The lock is held. The export's names end; true: the broker is to be told. */
bool gs_names_end_locked(struct gs_share *share, struct gs_export *export);
/* One that the broker does not know as it is, and what it is to be told; NULL: there is none. It
 * was told that; and has answered. */
struct gs_name *gs_names_next_locked(struct gs_share *share, union gs_wire_message *ret_message);
void gs_names_told_locked(struct gs_share *share, struct gs_name *name);
void gs_names_answered_locked(struct gs_share *share, bool kept);
/* The broker is lost, with all that it knew. */
void gs_names_forget_locked(struct gs_share *share);
/* Answers, as gs_client_serve; of a NAME, whether it is kept. */
bool gs_name_came(struct gs_share *share, struct gs_client *client,
                  const struct gs_wire_name *message, bool *ret_kept);
bool gs_look_up_came(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_query *query);
bool gs_unname_came(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_order *order);
void gs_names_free(struct gs_share *share);

/* event.c: asked about events, answers as gs_client_serve; at the very end. */
bool gs_events_came(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_query *query);
void gs_events_free(struct gs_share *share);

/* queue.c: the state of an export, and what the share thread is to do. All with the lock held. */
/* It was freed, held, pinned or let go of since, or its grace is over: enters the list where it
 * belongs. */
void gs_limbo_note_locked(struct gs_share *share, struct gs_export *export);
/* Its end was told, or it goes: it is in no list. */
void gs_export_told_locked(struct gs_share *share, struct gs_export *export);
/* What was freed first, or came first, of those in a state; NULL: there is none. */
static inline struct gs_export *gs_export_oldest(const struct gs_share *share,
                                                 enum gs_export_state state)
{
    return share->exporter.states[state];
}
/* The share thread is at it, or will be: until then the block cannot be withdrawn. */
void gs_export_pin_locked(struct gs_share *share, struct gs_export *export);
/* Leaves the export pinned until the share thread has done it. */
void gs_export_ask_locked(struct gs_share *share, struct gs_export *export, enum gs_work work);

/* chunk_fds.c: descriptors of chunks, kept for the next importer; the least recently used go
 * first. */
/* A descriptor of one of its pieces; the export is pinned by the share thread, which calls this. It
 * is good until the next call, unless *ret_fresh: then it is the caller's, who hands it to
 * gs_piece_fd_keep when it has been used. CUDA_ERROR_INVALID_HANDLE: what is mapped there is not
 * the piece any more. */
CUresult gs_piece_fd(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                     struct gs_fd *ret_fd, bool *ret_fresh);
/* Takes `fd`: that of memory of the library's is kept for the next importer; or it is closed. */
void gs_piece_fd_keep(struct gs_share *share, const struct gs_export *export, uint32_t piece,
                      const struct gs_fd *fd);
/* Whether a descriptor made ahead of the first open would be kept, and there is none. */
bool gs_chunk_fd_wanted(struct gs_share *share, const struct gs_export *export);
void gs_chunk_fds_free(struct gs_share *share);

/* strip.c */
static inline bool gs_export_is_strip(const struct gs_export *export)
{
    return export->source.strip != NULL;
}
/* The program's own mapping, which it unmaps as it likes. */
static inline bool gs_export_is_own(const struct gs_export *export)
{
    return gs_export_is_strip(export) && !export->source.strip->is_block;
}
/* Lock held. It is not to be opened, nor is any more of it to be given: it has gone, or is about to.
 * So is external memory, also while others have it. */
static inline bool gs_strip_is_stale_locked(const struct gs_export *export)
{
    return (gs_export_is_own(export) || export->source.behind) && export->freed_ns;
}
/* Lock held. Whether the broker was given all of it. */
static inline bool gs_export_is_brokered(const struct gs_share *share,
                                         const struct gs_export *export)
{
    return export->slot && share->link.given != export;
}
/* Lock held. In a count of several, which has the next number of share->exporter.counts: a strip's
 * bytes count once, of however many pieces there are handles. */
static inline uint64_t gs_export_bytes_locked(const struct gs_export *export, uint64_t count)
{
    struct gs_share_strip *strip = export->source.strip;

    if (strip && strip->counted == count)
        return 0;
    if (strip)
        strip->counted = count;
    return export->source.size;
}
static inline uint32_t gs_export_pieces(const struct gs_export *export)
{
    return export->source.strip ? export->source.strip->pieces : 1;
}
/* So many pieces at once: the importer maps them while descriptors of the next ones are made. */
#define GS_BATCH 8

/* Descriptors of some pieces on their way: the program may close them at any moment. */
struct gs_batch {
    uint32_t first;
    struct gs_wire_fds fds;
    struct gs_fd is[GS_BATCH];
    bool fresh[GS_BATCH];
};
/* From the `first` piece on, as many as there are to be had and go at once, one at least;
 * the export is pinned. Or why there is none, and the driver's error where it is that. */
enum gs_wire_reason gs_batch_make(struct gs_share *share, struct gs_client *client,
                                  const struct gs_export *export, uint32_t first,
                                  struct gs_batch *ret_batch, CUresult *ret_driver_error);
void gs_batch_write(const struct gs_export *export, const struct gs_batch *batch,
                    struct gs_wire_batch *ret);
void gs_batch_end(struct gs_share *share, const struct gs_export *export, struct gs_batch *batch);

/* exports.c */
/* With the lock held: its holders are to give it back as soon as they can. */
void gs_export_recall_locked(struct gs_share *share, struct gs_export *export);
/* The share thread: does a part of the work that exports ask for; when to come again. */
uint64_t gs_exports_work(struct gs_share *share, uint64_t now);
struct gs_export *gs_export_find(struct gs_share *share, const unsigned char *instance,
                                 uint64_t block_id);
/* The export that these bytes are the handle of, pinned, or NULL. */
struct gs_export *gs_export_pin(struct gs_share *share,
                                const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE]);
/* A grant of all that is to be known of the export; `far`: to another machine. */
void gs_grant_start(union gs_wire_message *message, const struct gs_export *export, bool far,
                    uint32_t request);
/* A SHARE of it, without pieces; `held`: by other machines. */
void gs_share_message_start(union gs_wire_message *message, const struct gs_export *export,
                            bool held);
/* Into the table. False: no host memory. */
bool gs_export_enter(struct gs_share *share, struct gs_export *export);
/* One reference more, of nobody's here; and one less. */
void gs_export_reference(struct gs_share *share, struct gs_export *export);
void gs_export_drop(struct gs_share *share, struct gs_export *export);
/* Takes the pin away; `granted`: with a reference in its place. */
void gs_export_unpin(struct gs_share *share, struct gs_export *export, bool granted);
/* The client holds what is pinned, before it hears of that; *ret_fresh: it did not before. NULL: no
 * host memory. And holds it no more: the reference is freed. */
struct gs_reference *gs_reference_add(struct gs_share *share, struct gs_client *client,
                                      struct gs_export *export, bool *ret_fresh);
void gs_reference_drop(struct gs_share *share, struct gs_client *client,
                       struct gs_reference *reference);
/* Its holder maps it, or does no more. */
void gs_reference_let_go(struct gs_share *share, struct gs_reference *reference, bool let_go);
/* All that it holds; or what it did not name. */
void gs_references_drop(struct gs_share *share, struct gs_client *client, bool all);
/* Tells of leases and graces that are over (lease_ended); true: there are more. */
bool gs_exports_tell(struct gs_share *share);
void gs_exports_free(struct gs_share *share);

/* graces.c: announces those that are over at `now`; when the next one may be, or GS_NEVER. */
uint64_t gs_graces_tick(struct gs_share *share, uint64_t now);

/* clients.c: called by the share thread only. */
void gs_clients_accept(struct gs_share *share);
void gs_client_readable(struct gs_share *share, uint64_t id);
void gs_client_exited(struct gs_share *share, uint64_t id);
/* Does what is due at `now`; when to come again, or GS_NEVER. */
uint64_t gs_clients_tick(struct gs_share *share, uint64_t now);
/* All are hung up on, and keep what they hold: nobody is here to answer any more. */
void gs_clients_part(struct gs_share *share);
/* At the very end, without a thread. */
void gs_clients_free(struct gs_share *share);

#define GS_IDLE_NS (30 * GS_NS_PER_S) /* then a client without references is hung up on */

struct gs_reference {
    uint64_t block_id;
    struct gs_export *export;
    uint32_t generation; /* of the last grant: a CLOSE of another one is late */
    uint64_t since_ns;
    bool named;  /* by its holder, since that came back */
    bool let_go; /* its holder does not map it */
    enum { GS_RECALL_NONE = 0, GS_RECALL_DUE, GS_RECALL_SENT } recall;
    UT_hash_handle hh;
};

/* The FLUSH that a client is asked. The share thread writes it, with the lock. */
struct gs_flush {
    uint64_t number; /* of the last FLUSH */
    bool due;        /* it is not sent yet: counted in recalls_due */
    bool open;       /* it is not answered, since: */
    uint64_t since_ns;
    bool again;   /* it is to be asked once more then */
    bool awaited; /* it is to answer that, or to end */
    bool hung_up;
};

/* GS_ORDER_TRIM, that it waits for an answer to. */
struct gs_plea {
    enum { GS_PLEA_NONE = 0, GS_PLEA_DUE, GS_PLEA_UNDER_WAY } state;
    uint32_t request;
    unsigned char uuid[16];
    uint64_t wanted;
};

/* What a broker asks a client that shares. */
struct gs_pull {
    bool due;          /* it is to be asked, as soon as there is room */
    bool asked;        /* and has not answered yet */
    bool kept;         /* what it said last was a name, and is kept */
    uint64_t block_id; /* that it shared last, of which this piece is wanted; 0: none */
    uint32_t piece;
};

/* Who a client says it is. */
struct gs_said {
    char name[16];
    unsigned char from[GS_INSTANCE_SIZE]; /* its own instance; zero: none */
    uint32_t number;                      /* of its last hello */
    uint32_t holds;                       /* blocks that it names still, having come back */
    bool forked;         /* or it may have: its exit is no proof that its GPU work is over */
    bool is_agent;       /* it is this machine's (cluster_agent.c) */
    uint64_t told_agent; /* the agent that knows it as a holder; 0: none does */
};

/* What is over of a client. */
struct gs_over {
    bool ended;      /* its program's end was proven (lives.c) */
    bool rests;      /* that, and hung up; due_ns is settle_ns after that was seen */
    bool late;       /* hung up, and not over GS_LOOK_NS later: nobody waits for it any more */
    bool shut;       /* it was hung up on, and its hang-up is not seen yet */
    uint32_t before; /* connections, before this one */
    bool uncounted;  /* let in where there was no room: to come back, and for nothing else */
};

/* An open of another machine's block, which the agent is asked for (cluster_import.c). */
struct gs_asks {
    uint32_t number;  /* of that question; 0: none */
    uint32_t request; /* of the client's own, */
    uint32_t before;  /* over the connection behind so many */
    uint64_t lease;   /* that it is to become */
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
};

/* A holder, and its connection. */
struct gs_client {
    uint64_t id;
    int fd;                           /* -1: hung up */
    int pidfd;                        /* -1: not to be had, or its end was seen */
    struct gs_fd kept_fd, kept_pidfd; /* what they are: the program may close them */
    bool greeted;
    unsigned char instance[GS_INSTANCE_SIZE]; /* whose memory it wants, or publishes to a broker */
    struct gs_publisher *publisher; /* of a broker: it alone leaves something for its instance */
    struct gs_pull pull;
    bool shares;            /* it has left some here */
    bool was_sent_fd;       /* of another user, and it may not have read it */
    uint64_t published;     /* exports that it has published to this broker */
    unsigned published_fds; /* with so many descriptors */
    struct gs_over over;
    uid_t uid;
    gid_t gid;
    struct gs_user *user;
    pid_t pid;    /* for people: who holds what */
    bool is_seen; /* the kernel told pid; else the process did, of its own PID namespace */
    struct gs_said said;
    uint64_t since_ns;
    uint64_t due_ns; /* when its silence, idleness or lease ends; GS_NEVER */
    struct gs_reference *references;
    struct gs_flush flush;
    struct gs_plea plea;
    struct gs_asks asks;
    unsigned recalls_due; /* references whose RECALL is not sent yet, and a FLUSH */
    bool awaits_room;     /* the thread is told when it has read: some of these did not go */
    const char *fault;    /* why it is hung up on, in words; NULL: it does not read its answers */
    UT_hash_handle hh;
};

/* publish.c, all with the lock held: the export is to be left with a broker; before all others; and
 * not any more, since it goes: never waits, whatever the broker does. */
void gs_broker_offer_locked(struct gs_share *share, struct gs_export *export);
void gs_broker_offer_first_locked(struct gs_share *share, struct gs_export *export);
void gs_broker_take_back_locked(struct gs_share *share, struct gs_export *export);
/* The broker's connection has something to say, or has ended; true: what it is to hold for other
 * machines, or no more. */
bool gs_broker_event(struct gs_share *share, union gs_wire_message *ret_message);
/* Answers the broker, and looks for one where there is none; when to come again. */
uint64_t gs_broker_look(struct gs_share *share, uint64_t now);

/* start_broker.c: starts one, which puts its socket up: 0, or a negative errno. */
int gs_broker_start(const struct gs_share *share);

/* confirm.c: what a broker may serve after this process's end, said in memory that it reads then.
 * For a new connection: a descriptor for the broker, the caller's, or a negative errno. */
int gs_confirm_start(struct gs_share *share);
void gs_confirm_end_locked(struct gs_share *share);
bool gs_confirm_has_room_locked(const struct gs_share *share);
void gs_confirm_locked(struct gs_share *share, struct gs_export *export);
/* Never fails, never waits. */
void gs_confirm_revoke_locked(struct gs_share *share, struct gs_export *export);

/* publisher.c, of a broker: whether what it is told of a block's place in a chunk makes sense. */
bool gs_broker_is_sound(uint64_t chunk_size, uint64_t offset, uint64_t size, uint32_t read_only);
struct gs_listed {
    uid_t uids[GS_IDS_MAX];
    gid_t gids[GS_IDS_MAX];
    unsigned uid_count, gid_count;
};
/* Who publishes something, and for whom. */
struct gs_publisher {
    unsigned refs;
    struct gs_user *user;    /* that it runs as, */
    struct gs_listed listed; /* and whom it shares with besides */
    int memory;              /* the ids of what may be served */
    struct gs_export **left; /* here, by their slots; and how many of these there is room for */
    uint32_t room;
    struct gs_publisher *next, *previous;
};
/* As gs_client_serve. */
bool gs_publisher_on_publish(struct gs_share *share, struct gs_client *client,
                             const struct gs_wire_publish *message, int *fd);
/* Whether something may be in this slot. */
bool gs_publisher_has_room(const struct gs_share *share, struct gs_publisher *publisher,
                           uint32_t slot);
/* Whether its process confirmed the export. Once it has ended that is for ever. */
bool gs_publisher_confirms(const struct gs_publisher *publisher, const struct gs_export *export);
bool gs_publisher_lets(const struct gs_publisher *publisher, uid_t uid, gid_t gid);
/* Whether any of them lets a process open, so that it may connect. */
bool gs_publishers_let(const struct gs_share *share, uid_t uid, gid_t gid);
struct gs_publisher *gs_publisher_ref(struct gs_publisher *publisher);
void gs_publisher_unref(struct gs_share *share, struct gs_publisher *publisher);

/* quota.c: what each user takes of what this process has for all. Another user takes at most half
 * of what the others leave; this process's own user as much as there is. */
struct gs_user {
    uid_t uid;
    unsigned clients;             /* connections */
    unsigned exports, fds, names; /* that they published to this broker */
    unsigned refs;                /* it stays for these, too */
    UT_hash_handle hh;
};
/* NULL: no host memory. */
struct gs_user *gs_user_of(struct gs_share *share, uid_t uid);
/* Frees it where it has nothing. */
void gs_user_reap(struct gs_share *share, struct gs_user *user);
/* Whether one that has `has` of the `all` that are taken, of `most`, may take one more. */
bool gs_user_may(const struct gs_user *user, uint64_t has, uint64_t all, uint64_t most);
/* Whether a connection of the process may be let in beyond what is counted: quota.c says when. */
bool gs_user_has_place(const struct gs_share *share, const struct gs_conn_who *who);
void gs_client_take_place(struct gs_share *share, struct gs_client *client, bool counts);
void gs_client_leave_place(struct gs_share *share, struct gs_client *client);
/* Its next message, as gs_wire_receive. */
int gs_client_receive(struct gs_share *share, struct gs_client *client,
                      union gs_wire_message *ret_message, int *ret_fd);
/* Sends the client a message, with `fd` unless that is -1. As gs_wire_send; -ETOOMANYREFS also
 * where that is another user's than this process's and has not read all that was sent before. */
int gs_client_send(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message, int fd);
/* As gs_client_send, with several descriptors; with one where the client is another user's. */
int gs_client_send_all(struct gs_share *share, struct gs_client *client,
                       const union gs_wire_message *message, const struct gs_wire_fds *fds);
/* Ends its connection. */
void gs_client_close_socket(struct gs_share *share, struct gs_client *client);
/* Connections that are over and were kept for what lies there unread; when to come again. */
uint64_t gs_unread_tick(struct gs_share *share, uint64_t now);
void gs_unread_free(struct gs_share *share);

/* broker.c: whether the client may share under its instance; and it answers to a PULL, as
 * gs_client_serve. */
bool gs_broker_takes_from(struct gs_share *share, struct gs_client *client);
bool gs_broker_answered(struct gs_share *share, struct gs_client *client,
                        const union gs_wire_message *message, int *fd);
/* A chunk of which something was left here; or the pieces that a block lies across. */
struct gs_published_chunk {
    struct gs_ipc_key key; /* of the chunk: the exporter's instance and the chunk's id */
    uint32_t fd_count;     /* that there will be, and */
    uint32_t came;         /* that there are */
    unsigned exports;
    struct gs_share_strip *strip; /* of pieces: their sizes; or NULL */
    struct gs_user *user;         /* whose process left it here */
    UT_hash_handle hh;
    int fds[];
};

/* The descriptor that the export's chunk, or the piece, was published with. */
static inline int gs_broker_fd(const struct gs_export *export, uint32_t piece)
{
    return ((const struct gs_published_chunk *)(uintptr_t)export->source.handle)->fds[piece];
}
/* The client that published exports here has ended (then they are served), or lives on without its
 * connection (then nobody knows what it does with the memory: they are dropped). */
void gs_broker_client_gone(struct gs_share *share, struct gs_client *client, bool ended);
/* What its process does not confirm any more is dropped. */
void gs_broker_drop_revoked(struct gs_share *share, struct gs_client *client);
/* Nobody holds it. */
void gs_broker_export_drop(struct gs_share *share, struct gs_export *export);
uint64_t gs_broker_tick(struct gs_share *share, uint64_t now);
/* Whether it takes in who comes now: then it is needed. */
bool gs_broker_may_accept(struct gs_share *share);
void gs_broker_free(struct gs_share *share);

/* flush.c */
/* The share thread: asks who holds something freed whether all that was closed has come back, where
 * somebody waits for that. */
void gs_flush_work(struct gs_share *share, uint64_t now);
/* As gs_client_call_back. */
bool gs_flush_send(struct gs_client *client);
/* FLUSHED, as gs_client_serve. */
bool gs_flush_answered(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_flush *answer);
/* The client has hung up; and is gone, or nobody waits for it any more. */
void gs_flush_hung_up(struct gs_share *share, struct gs_client *client);
void gs_flush_client_gone(struct gs_share *share, struct gs_client *client);
/* Whether memory of a device with one UUID is meant where the other is; NULL means all. */
bool gs_is_of_device(const unsigned char uuid[16], const unsigned char device[16]);

/* pressure.c: being asked for memory, answers as gs_client_serve; has what was asked for taken, and
 * tells what was given; the client is gone. */
bool gs_plea_came(struct gs_share *share, struct gs_client *client,
                  const struct gs_wire_order *order);
void gs_pleas_work(struct gs_share *share);
void gs_plea_gone(struct gs_share *share, struct gs_client *client);

/* Whether the client is of this user, or root, whom nothing would keep from doing the same by other
 * means: it is told who holds what, and obeyed. */
static inline bool gs_client_is_own(const struct gs_client *client)
{
    return gs_user_is_own(client->uid) || client->uid == 0;
}

/* order.c: answers, as gs_client_serve. */
bool gs_order_came(struct gs_share *share, struct gs_client *client,
                   const struct gs_wire_order *order);

/* lives.c: whether the client's program has ended, as far as is proven here; and whether anything
 * ever shows that. */
bool gs_client_has_ended(const struct gs_client *client);
bool gs_client_has_pidfd(const struct gs_client *client);
bool gs_client_end_shows(const struct gs_client *client);
/* Whether the newer one is of the same holder: one program of one process, for the same memory. */
bool gs_client_is_same(const struct gs_client *client, const struct gs_client *newer);

/* resume.c */
/* The client has said hello. True: its connection is its holder's, and it is to go, with that one's
 * before. */
bool gs_client_comes_back(struct gs_share *share, struct gs_client *client);
/* It names a block that it holds; as gs_client_serve. */
bool gs_client_resumes(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_close *resume);
/* Whether there is a place for it; it is told. */
bool gs_client_is_let_in(struct gs_share *share, struct gs_client *client);

/* limbo.c */
/* Called with the lock held: others have come to hold the freed block, or hold it no more. */
void gs_limbo_count_locked(struct gs_share *share, struct gs_export *export);
/* Whether as much is held as may be (limbo_limit). */
bool gs_limbo_is_full(struct gs_share *share);
/* The share thread: says so when more is in limbo than the options' bounds; when to look again. */
uint64_t gs_limbo_tick(struct gs_share *share, uint64_t now);

/* report.c */
/* A freed block that nobody holds can be opened within its grace only: from then on its memory may
 * be handed out at any moment. The lock is held. */
bool gs_export_is_stale(const struct gs_share *share, const struct gs_export *export);
/* Which of what a client holds is counted: of one device (NULL: of all), of one chunk (0: of all),
 * and what was freed alone. */
struct gs_which {
    const unsigned char *uuid;
    uint64_t chunk_id;
    bool freed;
};
/* Lock held. The client's row, added to the report: who it is, what it holds, and what of it is
 * freed. */
void gs_report_row_locked(struct gs_share *share, const struct gs_client *client,
                          const struct gs_which *which, uint64_t now, struct gs_wire_report *row);
/* Answers, as gs_client_serve. */
bool gs_report(struct gs_share *share, struct gs_client *client, const struct gs_wire_query *query);

/* serve.c: does what a message asks for. *fd came with it; where it is taken it becomes -1. False:
 * the client is to go, it broke the protocol or does not read. */
bool gs_client_serve(struct gs_share *share, struct gs_client *client,
                     const union gs_wire_message *message, int *fd);
/* Why something could not be sent with a descriptor, for who is told so. */
enum gs_wire_reason gs_reason_of_send(int error);
/* Grants what is pinned, and lets go of that; as gs_client_serve. */
bool gs_client_grant(struct gs_share *share, struct gs_client *client, struct gs_export *export,
                     const struct gs_wire_open *open);

/* client.c: what is said to a client, and watched of it. */
/* Whether an error of a send says that it has hung up: what it said before that is read still. */
static inline bool gs_client_has_gone(int error)
{
    return error == -EPIPE || error == -ECONNRESET;
}
bool gs_client_refuse(struct gs_share *share, struct gs_client *client, uint32_t request,
                      enum gs_wire_reason reason, uint32_t driver_error);
/* Tells it that it holds nothing over this connection, which is about to be closed. */
void gs_client_say_bye(const struct gs_client *client);
/* Notes what a client did wrong. Always false: it is to go. */
bool gs_client_fault(struct gs_client *client, const char *fault);
/* Sends a RECALL or a FLUSH; false where it does not go now. */
bool gs_client_call_back(struct gs_client *client, const union gs_wire_message *message);
/* Sends those that are due. */
void gs_client_send_due(struct gs_share *share, struct gs_client *client);
/* Asks every holder to give it back. */
void gs_clients_recall(struct gs_share *share, struct gs_export *export);
void gs_client_watch_exit(struct gs_share *share, struct gs_client *client);
/* The program has closed the connection, and its number may be another file's. */
bool gs_client_is_lost(struct gs_client *client);
/* Who lives and was hung up on may not know: a program that closes a connection tells nobody. Its
 * share thread looks when somebody comes to its socket. */
void gs_client_poke(struct gs_share *share, const struct gs_client *client);

#endif
