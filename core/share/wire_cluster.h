/*
 * Memory of other machines (core/share/wire.h has the messages, and what holds of all). A process
 * speaks to its own broker alone, that to the agent of its machine (gpushim-agent), which connects
 * to its socket, and the agents to each other, in words of their own.
 *
 * Where the memory is, the agent opens it like an importer, once for all machines; who of them has
 * it is its own affair:
 *
 *   agent                        broker                    process that shared
 *   HELLO agent    ------->                                one agent a broker
 *                  <-------      RESUME ..., HELLO agent   these blocks of other machines are open here, and no more
 *                  <-------      SHARE             <----   SHARE with a fabric handle. `held`: for other machines
 *                  <-------      CLOSE                     it is not there any more
 *   OPEN           ------->      OPEN              ---->   while it runs: the block is held, as by an importer
 *                                                  <----   GRANT; or CLOSE: it is free already
 *                  <-------      GRANT, or REFUSE
 *                  <-------      RECALL            <----   RECALL: it is freed
 *   CLOSE          ------->      CLOSE             ---->   no machine has it any more; no answer
 *
 * And where it is wanted:
 *
 *   agent                        broker                    importer
 *                                                  <----   OPEN with `cluster`
 *                  <-------      HELLO of an importer        once for each, first: its number, which no other has, in
 *                                                          `holder`, its pid, `holds` 1 (+ its pidfd, if it is known)
 *                                                          Without an agent that hears so nobody new comes to hold anything
 *                  <-------      OPEN                      its handle, and the lease that it is to become
 *   GRANT          ------->      GRANT             ---->   or REFUSE, and that to it
 *   RECALL         ------->      RECALL            ---->
 *                  <-------      CLOSE             <----   the last reference has ended: CLOSE, or its exit;
 *                                                          or nobody waits for the answer any more
 *                  <-------      HELLO, `holds` 0          it holds nothing of other machines any more
 *
 * Answers have the `request` of the question. What the agent asked of one block is answered at once
 * for all: by GRANT, and by REFUSE where it is ENDING; any other REFUSE is of that question alone.
 * An OPEN of the broker's is answered when the agent can; the importers wait for debug.timeout at
 * most.
 *
 * Nothing ends by the end of an agent, a broker, or a connection. The agent's holder is durable:
 * what it has stays held until an agent says CLOSE, this one or the next, which SHARE tells of it.
 * When a broker ends, the processes tell the next one what they hold for other machines; and what
 * it had of theirs its agent keeps until all of whom it said HELLO have exited, as it sees by their
 * pidfds, or for good where one has none. What the agent knows is in a file.
 *
 * A QUERY about machines, and with a name that of one which is to be forgotten, is of the same user
 * or root: it is passed on to the agent, and its REPORT back (`gpushim cluster`; `gpushim cluster
 * forget`).
 */
#ifndef GS_CORE_SHARE_WIRE_CLUSTER_H
#define GS_CORE_SHARE_WIRE_CLUSTER_H

#include <stdint.h>

#include "core/share/ipc_handle.h"

#define GS_MACHINE_SIZE      16
#define GS_MACHINE_NAME_SIZE 32 /* for people; with a zero behind it */
#define GS_BOOT_BYTES        16
#define GS_FABRIC_SIZE       64 /* sizeof(CUmemFabricHandle) */

enum gs_machine_state {
    GS_MACHINE_LISTING = 1, /* it says what it has */
    GS_MACHINE_LISTED,
    GS_MACHINE_LOST,
};

/* About machines, in a REPORT. */
struct gs_wire_machine {
    uint64_t client; /* who asks, as the broker's question to the agent has it for its `number` */
    uint32_t has_agent; /* 1: one is connected, which is: */
    uint32_t agent_pid;
    uint64_t shared; /* blocks of here that may be opened on other machines; */
    uint64_t opened; /* blocks of other machines that are open here */
    uint64_t opened_bytes;
    uint32_t machines; /* that have leases here, below one; or were forgotten */
    uint32_t state;    /* enum gs_machine_state; 0: its agent was not heard of yet */
    unsigned char machine[GS_MACHINE_SIZE];
    char name[GS_MACHINE_NAME_SIZE];
    uint64_t leases, bytes; /* and of these of freed blocks: */
    uint64_t limbo, limbo_bytes;
    uint64_t age_ns; /* of its oldest lease */
    /* Of the agent: for how long it has its lease of the directory still, and what is wrong with
     * that; "": nothing. */
    uint64_t lease_ns;
    char directory[384];
};

#endif
