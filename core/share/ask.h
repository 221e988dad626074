/*
 * Asking other processes of this machine something, each over its socket and many at once: for idle
 * memory (pressure_ask.c), for their figures (others.c), for a name (look_up.c).
 *
 *   gs_ask_all ── each socket in the folders ── connected ── say ──► the process
 *                                                          hear ◄── until that was all, or the time is over
 */
#ifndef GS_CORE_SHARE_ASK_H
#define GS_CORE_SHARE_ASK_H

#include "core/share/internal.h"

enum gs_peer_state {
    GS_AWAITED,
    GS_HEARD, /* that was all of it */
    GS_SILENT /* or nothing comes of it */
};

/* A process that is asked. */
struct gs_peer {
    char name[GS_BROKER_NAME_SIZE]; /* of its socket */
    bool is_broker;
    struct gs_conn_who who;
    struct gs_fd socket; /* the program may close it */
    uint32_t step;       /* how far who asks is with it; at first 0 */
    enum gs_peer_state state;
    struct gs_peer *next;
};

struct gs_asking {
    struct gs_share *share;
    void *arg;  /* of who asks */
    bool own;   /* this user's processes and folders alone; else brokers, and others' too */
    bool keeps; /* who is silent stays in `peers`: GS_CONN_ANY of them at most */
    /* Says what is asked: GS_AWAITED; or it is done with the process. */
    enum gs_peer_state (*say)(struct gs_asking *asking, struct gs_peer *peer);
    /* It has said something; or `error`, as of gs_wire_receive. */
    enum gs_peer_state (*hear)(struct gs_asking *asking, struct gs_peer *peer, int error,
                               const union gs_wire_message *message);
    /* Whether there is time for it. NULL: until deadline_ns. */
    bool (*waits)(const struct gs_asking *asking, const struct gs_peer *peer);
    uint64_t deadline_ns;
    bool enough; /* nothing more is wanted */
    /* What came of it. */
    struct gs_peer *peers;
    uint64_t waited_ns; /* for those who are asked at once (gs_look_counts): so many */
    unsigned count;
    unsigned silent;  /* did not answer; */
    unsigned unasked; /* could not be asked: no descriptor, no memory, or they take no connection */
};

void gs_ask_all(struct gs_asking *asking);
/* What a peer that was silent has said since, when it had been asked. */
void gs_ask_hear(struct gs_asking *asking, struct gs_peer *peer);
/* Hangs up on it, and frees it. */
void gs_peer_forget(struct gs_peer *peer);

#endif
