/*
 * Messages about memory of other machines (core/share/wire.h has those of one, and what holds of all).
 * A process speaks to its own broker alone, that to the agent of its machine (gpushim-agent), which
 * connects to its socket, and the agents to each other, in words of their own.
 *
 *   agent                        broker                    process that shared
 *   HELLO, AGENT   ------->                                who it is; one agent a broker. The instance of
 *                                                          its HELLO counts nothing
 *                  <-------      KEPT_AFAR ...             what this broker's openers have of other machines,
 *                  <-------      MACHINE_AFAR 0, LISTED    and that was all
 *                  <-------      SHARED_AFAR       <----   SHARE with a fabric handle
 *                  <-------      UNSHARED_AFAR             it is not confirmed any more, or its process ends
 *                                                          without the memory
 *   TAKE_AFAR      ------->      (one lease of a machine)
 *                                HOLD_AFAR 1       ---->   while it runs: the block is held, as by an opener
 *                                                  <----   HELD_AFAR 1, or 0: it is free already
 *                  <-------      OPENED_AFAR, or REFUSE
 *   ENDED_AFAR     ------->      the lease is over
 *                                HOLD_AFAR 0       ---->   with the last lease; no answer
 *                  <-------      RECALL_AFAR       <----   RECALL block: it is freed
 *
 *   agent                        broker                    opener
 *                                                  <----   OPEN with `afar`
 *                  <-------      HOLDER_AFAR               once for each opener (+ his pidfd, if it is known)
 *                  <-------      OPEN_AFAR                 his handle, and the lease that it is to become
 *   OPENED_AFAR    ------->      GRANT_AFAR        ---->   or REFUSE, and that to him
 *                  <-------      HOLDS_AFAR                another opener holds it as well: no agent is asked
 *   RECALL_AFAR    ------->      RECALL            ---->
 *                  <-------      ENDED_AFAR        <----   the last reference has ended: CLOSE, or his exit
 *                  <-------      HOLDER_AFAR gone          nothing of other machines is held by him any more
 *
 * Answers have the `request` of the question. OPEN_AFAR is answered when the agent can; the openers
 * wait for debug.timeout at most, and what comes later is ended at once.
 *
 * What the agent says of other machines' agents:
 *   MACHINE_AFAR machine, boot, LISTING    it is there, and what follows is all that it has. Leases of
 *                                          another boot of it end
 *   KEPT_AFAR block, machine, lease        it has this one
 *   MACHINE_AFAR machine, boot, LISTED     leases of that machine that were not named since end
 *   MACHINE_AFAR machine, boot, LOST       it cannot be reached: nothing ends, and people are told
 *   MACHINE_AFAR 0, 0, LISTED              to a broker that was started anew: what its processes say is
 *                                          held, and no machine was said to have, is not. Only by an
 *                                          agent that knew all leases of the broker before (`knows`)
 *
 * No lease ends by the end of an agent, a broker, or a connection. What a broker had of other machines
 * when it ended, its agent keeps until the processes of HOLDER_AFAR have exited, as it sees by their
 * pidfds, or for good where there are none; and what the agent had, it keeps in a file.
 * An operator may say FORGET_AFAR (`gpushim cluster forget`), in the socket of the broker; the same
 * user or root may. The agent is told by MACHINE_AFAR machine, 0, FORGOTTEN.
 * Whoever may open may also ASK_AFAR for the n-th machine that has leases here: TOLD_AFAR.
 */
#ifndef GS_CORE_SHARE_WIRE_AFAR_H
#define GS_CORE_SHARE_WIRE_AFAR_H

#include <stdint.h>

#include "core/share/ipc_handle.h"

#define GS_MACHINE_SIZE      16
#define GS_MACHINE_NAME_SIZE 32 /* for people; with a zero behind it */
#define GS_BOOT_BYTES        16
#define GS_FABRIC_SIZE       64 /* sizeof(CUmemFabricHandle) */

struct gs_wire_agent {
    struct gs_wire_head head;
    unsigned char machine[GS_MACHINE_SIZE]; /* not all zero */
    unsigned char boot[GS_BOOT_BYTES];
    char name[GS_MACHINE_NAME_SIZE];
    uint32_t knows; /* 1: all leases of the broker before this one */
    uint32_t zero;
};

struct gs_wire_shared_afar {
    struct gs_wire_head head;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE]; /* instance, number, size and secret */
    uint64_t chunk_size;
    uint64_t offset; /* of the block within the chunk */
    unsigned char uuid[16];
    unsigned char fabric[GS_FABRIC_SIZE]; /* of the chunk */
    uint32_t uid; /* whose process shared it */
    uint32_t read_only;
};

/* UNSHARED_AFAR, RECALL_AFAR. */
struct gs_wire_block_afar {
    struct gs_wire_head head;
    unsigned char instance[GS_INSTANCE_SIZE];
    uint64_t block_id;
};

struct gs_wire_open_afar {
    struct gs_wire_head head;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t lease;  /* random, not 0: this machine's and this number together name it */
    uint64_t holder; /* of HOLDER_AFAR */
    uint32_t uid, gid; /* of the opener */
};

/* Of an OPEN_AFAR to the broker, of a TAKE_AFAR to the agent. */
struct gs_wire_opened_afar {
    struct gs_wire_head head;
    uint64_t lease;
    uint64_t chunk_size;
    uint64_t offset;
    unsigned char uuid[16];
    unsigned char fabric[GS_FABRIC_SIZE];
    uint32_t read_only;
    uint32_t zero;
};

struct gs_wire_take_afar {
    struct gs_wire_head head;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    unsigned char machine[GS_MACHINE_SIZE]; /* of the opener */
    uint64_t lease;
    uint32_t uid, gid; /* of the opener, as this machine calls him by his name */
};

struct gs_wire_ended_afar {
    struct gs_wire_head head;
    unsigned char machine[GS_MACHINE_SIZE]; /* of the opener; from a broker: zero, its own */
    uint64_t lease;
};

struct gs_wire_holder_afar {
    struct gs_wire_head head;
    uint64_t holder; /* never used again by this broker */
    uint64_t pid;    /* for people */
    uint32_t gone;   /* 1: it holds nothing more, and comes to hold nothing */
    uint32_t zero;
};

struct gs_wire_holds_afar {
    struct gs_wire_head head;
    uint64_t lease;
    uint64_t holder;
};

enum gs_machine_state {
    GS_MACHINE_LISTING = 1,
    GS_MACHINE_LISTED,
    GS_MACHINE_LOST,
    GS_MACHINE_FORGOTTEN, /* by a broker */
};

struct gs_wire_machine_afar {
    struct gs_wire_head head;
    unsigned char machine[GS_MACHINE_SIZE];
    unsigned char boot[GS_BOOT_BYTES];
    char name[GS_MACHINE_NAME_SIZE];
    uint32_t state; /* enum gs_machine_state */
    uint32_t zero;
};

struct gs_wire_kept_afar {
    struct gs_wire_head head;
    unsigned char instance[GS_INSTANCE_SIZE]; /* of the block */
    uint64_t block_id;
    unsigned char machine[GS_MACHINE_SIZE]; /* that holds it; from a broker: zero, its own */
    uint64_t lease;
};

struct gs_wire_forget_afar {
    struct gs_wire_head head;
    char machine[40]; /* its name, or its id as 32 hex digits; then zeros */
};

struct gs_wire_forgotten_afar {
    struct gs_wire_head head;
    uint32_t machines, leases; /* 0, 0: there is no such machine here */
};

/* HOLD_AFAR, and HELD_AFAR: whether it is. */
struct gs_wire_hold_afar {
    struct gs_wire_head head;
    uint64_t block_id;
    uint32_t hold;
    uint32_t zero;
};

struct gs_wire_ask_afar {
    struct gs_wire_head head;
    uint32_t index; /* of the machine */
    uint32_t zero;
};

struct gs_wire_told_afar {
    struct gs_wire_head head;
    uint32_t has_agent; /* 1: one is connected, which is: */
    uint32_t agent_pid;
    uint64_t shared; /* blocks of here that may be opened afar; */
    uint64_t opened; /* blocks of other machines that are open here */
    uint64_t opened_bytes;
    uint32_t machines; /* that have leases here; below: the one that was asked about, if there is */
    uint32_t state;    /* enum gs_machine_state; 0: its agent was not heard of yet */
    unsigned char machine[GS_MACHINE_SIZE];
    char name[GS_MACHINE_NAME_SIZE];
    uint64_t leases, bytes; /* and of these of freed blocks: */
    uint64_t limbo, limbo_bytes;
    uint64_t age_ns; /* of its oldest lease */
};

#endif
