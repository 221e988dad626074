/*
 * What agents say to each other, over a link (link.h). Of a pair, each connects to the other for
 * the memory that it opens there: so one link has an importer's agent at the one end, which made
 * it, and an exporter's at the other, and every message is of one of the two.
 *
 *   importer's agent                    exporter's agent
 *   HELLO             ----->
 *                     <-----          HELLO          it is who the directory says
 *   KEPT ..., LISTED  ----->                         all leases that its machine has there, always
 *                                                    first: others of it there, by this file, end
 *   TAKE              ----->
 *                     <-----          TAKEN, or REFUSED
 *   ENDED             ----->                         a lease is over; no answer. Where it is lost
 *                                                    with the link, the next list says so
 *                     <-----          RECALL         the block is freed; said again after each list
 *
 * Messages are these structs as they are, little-endian and without padding, as all machines with
 * such GPUs have them. Each has its type's size. What does not fit ends the link.
 */
#ifndef GS_SHIM_AGENT_TALK_H
#define GS_SHIM_AGENT_TALK_H

#include "shim/agent/seal.h"

#define TALK_VERSION 4
#define LEASES_FILE  16 /* bytes that name a file of leases */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as other machines'");

enum talk_type {
    TALK_HELLO = 1,
    TALK_KEPT,
    TALK_LISTED,
    TALK_TAKE,
    TALK_TAKEN,
    TALK_REFUSED,
    TALK_ENDED,
    TALK_RECALL,
    TALK_TYPES
};

/* What the directory has of an agent and of an export, likewise. */
struct known_agent {
    uint32_t version, port; /* TALK_VERSION */
    char name[GS_MACHINE_NAME_SIZE],
        address[64]; /* with a zero behind them; the address in numbers */
    unsigned char fingerprint[32], boot[GS_BOOT_BYTES];
};

struct known_export {
    unsigned char machine[GS_MACHINE_SIZE], sealed[SEALED_SIZE];
};

struct talk_head {
    uint16_t version, type;
    uint32_t size; /* of the whole message */
};

struct talk_hello {
    struct talk_head head;
    unsigned char machine[GS_MACHINE_SIZE], boot[GS_BOOT_BYTES];
    unsigned char
        file[LEASES_FILE]; /* of its leases: what its machine had by another is not known there */
};

struct talk_take {
    struct talk_head head;
    unsigned char id[SEAL_ID], proof[SEAL_PROOF];
    uint64_t lease;
    uint32_t uid, gid;
};

struct talk_taken {
    struct talk_head head;
    uint64_t lease;
    unsigned char proof[SEAL_PROOF];
    uint32_t read_only, zero;
};

struct talk_refused {
    struct talk_head head;
    uint64_t lease;
    uint32_t reason, driver_error; /* as GS_WIRE_REFUSE has them */
};

/* KEPT, ENDED. */
struct talk_ended {
    struct talk_head head;
    uint64_t lease;
};

struct talk_recall {
    struct talk_head head;
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t block_id;
};

union talk {
    struct talk_head head;
    struct talk_hello hello;
    struct talk_take take;
    struct talk_taken taken;
    struct talk_refused refused;
    struct talk_ended kept, ended;
    struct talk_recall recall;
};

#endif
