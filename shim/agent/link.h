/*
 * A connection between two agents: TCP with TLS 1.3, both ends with a certificate of their own, which each
 * agent makes for itself when it starts. Who is at the other end its fingerprint says, which the
 * directory has (agents/MACHINE): no authority signs anything, and who may write there may be an agent.
 *
 * Never waits. What the other end sends counts only as messages of talk.h, each of its size. A link that
 * is dead says so once, by `down`, and is freed when the loop comes round.
 */
#ifndef GS_SHIM_AGENT_LINK_H
#define GS_SHIM_AGENT_LINK_H

#include <stddef.h>

#include "shim/agent/loop.h"
#include "shim/agent/talk.h"

#define LINK_FINGERPRINT 32
#define LINK_ADDRESS     64
#define LINK_REASON      256
#define LINK_BEGIN_S     5          /* until it has said who it is */
#define LINK_UNSENT      (8u << 20) /* who reads so little is hung up on */

struct link;

struct link_events {
    /* TLS is up, and the other end's certificate is known, but nobody has looked at it. */
    void (*up)(struct link *link);
    void (*message)(struct link *link, const union talk *message);
    void (*down)(struct link *link, const char *why);
};

struct link {
    struct source source;
    const struct link_events *events;
    void *owner;
    bool is_out;   /* made here */
    bool is_up;
    bool is_ready; /* its owner knows who is there; till then it has LINK_BEGIN_S */
    bool is_held;  /* its messages wait */
    bool is_dead;
    const char *doom; /* why it fails when the loop comes round; NULL: it does not */
    uint64_t made_ns;
    unsigned char fingerprint[LINK_FINGERPRINT]; /* of who is there */
    char peer[LINK_ADDRESS];                     /* for people */
    struct link *prev, *next;
    struct ssl_st *ssl;
    unsigned char *out;
    size_t out_size, out_room;
    size_t in_size;
    unsigned char in[4096];
};

struct links {
    int epoll;
    struct ssl_ctx_st *tls;
    unsigned char fingerprint[LINK_FINGERPRINT]; /* our own */
    struct link *all, *dead;
};

/* With a new key and certificate. */
bool links_start(struct links *links, int epoll, char ret_reason[LINK_REASON]);
/* NULL, and the reason: it cannot be; what fails later is told by `down`. `address` is a number. */
struct link *link_connect(struct links *links, const char *address, unsigned port,
                          const struct link_events *events, void *owner,
                          char ret_reason[LINK_REASON]);
/* Takes the socket. */
struct link *link_accept(struct links *links, int fd, const struct link_events *events);
/* The message is copied, and goes when the loop comes round. So nothing fails in here: `down` is never
 * called from it. */
void link_send(struct links *links, struct link *link, const union talk *message);
void talk_start(union talk *message, enum talk_type type);
/* Tells nobody. */
void link_close(struct links *links, struct link *link);
/* Hangs up, and says why. */
void link_fail(struct links *links, struct link *link, const char *why);
/* Goes on with messages that waited: any link may be closed meanwhile, and what is said be done. */
void link_release(struct links *links, struct link *link);
/* 32 bytes that both ends of this link have, and nobody else has; false: it is not up. */
bool link_binding(struct link *link, unsigned char ret_bytes[32]);
/* Once a round of the loop: ends those that did not begin or cannot go on, frees the dead. */
void links_look(struct links *links, uint64_t now_ns);
/* A listening socket, or -1 with the reason. *port: 0 is any, and is told. */
int link_listen(const char *address, unsigned *port, char ret_reason[LINK_REASON]);

#endif
