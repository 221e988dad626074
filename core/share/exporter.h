/*
 * Exporter: what offers.c, clients.c and serve.c have in common. Offers are under the share's
 * lock; clients belong to the share thread.
 */
#ifndef GS_CORE_SHARE_EXPORTER_H
#define GS_CORE_SHARE_EXPORTER_H

#include "core/share/internal.h"

struct gs_offer {
    uint64_t id; /* what tokens and messages call the block: two threads may offer one at once */
    struct gs_share_source source;
    unsigned char token[GS_TOKEN_SIZE];
    uint64_t holds; /* by all clients together */
    unsigned pins;  /* 1 while the share thread exports it */
    bool opened;    /* somebody has held it: no grace any more */
    uint64_t freed_ns; /* 0: the program has it */
    UT_hash_handle hh;
};

/* The offer that these bytes are the token of, pinned, or NULL. */
struct gs_offer *gs_offer_pin(struct gs_share *share, const unsigned char token[GS_TOKEN_SIZE]);
/* Takes the pin away and leaves `holds` (0 or 1) holds in its place. */
void gs_offer_unpin(struct gs_share *share, struct gs_offer *offer, unsigned holds);
void gs_offer_drop(struct gs_share *share, struct gs_offer *offer, uint64_t holds);
/* Announces graces that are over at `now`; when the next one is, or GS_NEVER. */
uint64_t gs_offers_tick(struct gs_share *share, uint64_t now);
void gs_offers_free(struct gs_share *share);

/* Called by the share thread only. */
void gs_clients_accept(struct gs_share *share);
void gs_client_readable(struct gs_share *share, uint64_t id);
void gs_client_exited(struct gs_share *share, uint64_t id);
/* Does what is due at `now`; when to come again, or GS_NEVER. */
uint64_t gs_clients_tick(struct gs_share *share, uint64_t now);
/* At the very end, without a thread. */
void gs_clients_free(struct gs_share *share);

#define GS_IDLE_NS (30 * GS_NS_PER_S) /* then a client without holds is hung up on */

struct gs_hold {
    uint64_t block_id;
    struct gs_offer *offer;
    uint64_t count;
    UT_hash_handle hh;
};

struct gs_client {
    uint64_t id;
    int fd;    /* -1: hung up */
    int pidfd; /* -1: not to be had, or the exit was seen */
    bool greeted;
    bool exited; /* the exit was seen */
    uid_t uid;
    pid_t pid; /* for people: who holds what */
    char name[16];
    uint64_t since_ns;
    uint64_t due_ns; /* when its silence, idleness or lease ends; GS_NEVER */
    struct gs_hold *holds;
    UT_hash_handle hh;
};

/* Does what a message asks for. *fd came with it; where it is taken it becomes -1. False: the
 * client is to go, it broke the protocol or does not read. */
bool gs_client_serve(struct gs_share *share, struct gs_client *client,
                     const union gs_wire_message *message, int *fd);
bool gs_client_refuse(struct gs_share *share, struct gs_client *client, uint32_t request,
                      enum gs_wire_reason reason, uint32_t driver_error);
void gs_client_watch_exit(struct gs_share *share, struct gs_client *client);

#endif
