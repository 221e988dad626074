/*
 * A connection between two agents: TCP with TLS 1.3, both ends with a certificate of their own,
 * which each agent makes for itself when it starts. Who is at the other end its fingerprint says,
 * which the directory has (agents/MACHINE): no authority signs anything, and who may write there
 * may be an agent.
 *
 * Never waits. What the other end sends counts only as messages of talk.h, each of its size. A link
 * that is dead says so once, by `down`, and is freed when the loop comes round.
 *
 * Each has one turn a round of the loop: LINK_TURN bytes are read, whatever lies there, and the
 * rest stays in the kernel until the others have had theirs. Who was called reads nothing more of a
 * caller that does not read the answers; the caller reads always, so the two never wait for each
 * other.
 */
#ifndef GS_SHIM_AGENT_LINK_H
#define GS_SHIM_AGENT_LINK_H

#include <stddef.h>

#include "shim/agent/loop.h"
#include "shim/agent/talk.h"

#define LINK_FINGERPRINT 32
#define LINK_ADDRESS     64
#define LINK_REASON      256
#define LINK_BEGIN_S     5 /* until it has said who it is */
/* For a call to be taken. A kernel drops those for which there is no room, and is asked again by
 * this one's after a second, then two: too late where strangers take all room. */
#define LINK_CALL_NS     (GS_NS_PER_S / 4)
#define LINK_UNSENT      (6u << 20)  /* who reads so little is hung up on */
#define LINK_ANSWERS     (64u << 10) /* unsent to a caller: it is not read from */
#define LINK_TURN        (16u << 10)
#define LINK_KEYS        16          /* that it changes to */
#define LINK_UNKNOWN     (16u << 10) /* bytes of an unnamed caller, then it is hung up on */

struct x509_st;
struct link;

struct link_events {
    /* TLS is up, and the other end's certificate is known, but nobody has looked at it. Or NULL. */
    void (*up)(struct link *link);
    void (*message)(struct link *link, const union talk *message);
    void (*down)(struct link *link, const char *why);
};

struct link {
    struct source source;
    const struct link_events *events;
    void *owner;
    bool is_out; /* made here */
    bool is_up;
    bool is_ready; /* its owner knows who is there; till then it has LINK_BEGIN_S */
    bool is_held;  /* its messages wait */
    bool is_dead;
    const char *doom;        /* why it fails when the loop comes round; NULL: it does not */
    struct talk_hello hello; /* of who called, for its owner; and whether the directory is asked */
    bool is_asked;           /* about it */
    uint64_t made_ns;
    unsigned char fingerprint[LINK_FINGERPRINT]; /* of who is there */
    char peer[LINK_ADDRESS];                     /* for people */
    struct links *links;
    struct link *prev, *next;
    struct ssl_st *ssl;
    size_t heard;  /* bytes, until it was known who it is */
    unsigned keys; /* that it changed to */
    size_t in_size;
    union talk in;
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
/* It has called, and not said yet who it is. */
static inline bool link_is_caller(const struct link *link)
{
    return !link->is_out && !link->is_ready;
}
/* Of those that called and have not said who they are: how many, and which gives way for one more:
 * the oldest that has sent nothing, or else the oldest. */
struct link *link_to_give_way(const struct links *links, unsigned *ret_callers);
/* The message is copied, and goes when the loop comes round. So nothing fails in here: `down` is
 * never called from it. */
void link_send(struct link *link, const union talk *message);
void talk_start(union talk *message, enum talk_type type);
/* Tells nobody. */
void link_close(struct link *link);
/* Hangs up, and says why. */
void link_fail(struct link *link, const char *why);
/* Goes on with messages that waited: any link may be closed meanwhile, and what is said be done. */
void link_release(struct link *link);
/* Once a round of the loop: those end that did not begin or cannot go on; the dead are freed. */
void links_look(struct links *links, uint64_t now_ns);
/* tls.c */
bool tls_fingerprint(const struct x509_st *certificate, unsigned char ret[LINK_FINGERPRINT]);
/* A listening socket, or -1 with the reason. *port: 0 is any, and is told. */
int link_listen(const char *address, unsigned *port, char ret_reason[LINK_REASON]);

#endif
