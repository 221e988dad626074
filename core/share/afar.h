/*
 * Memory that is shared with other machines of an NVLink domain (wire_afar.h has the messages): what the
 * files have in common.
 *
 *   afar_publish.c, afar_hold.c
 *                    process that shares: its fabric handles, and what its broker has it hold
 *   afar_lend.c      broker: blocks of here, and leases that other machines have of them
 *   afar_machines.c  broker: those machines, what they say they have, and when all of it ends
 *   afar_borrow.c    broker: blocks of other machines that processes of here open
 *   afar_agent.c     broker: its agent, which all of that is told and says; its line is afar_line.c
 *
 * What must hold: a block that a machine has a lease of is not used again. The lease is one reference of
 * its export in the broker, and all leases of a block are one reference of the process's own export,
 * which the broker asks for (HOLD_AFAR) before it tells the agent of the first. Both end by ENDED_AFAR, or
 * by what is said of the whole machine (wire_afar.h): by nothing else, whichever of process, broker and
 * agent ends. A broker that is new is told by the processes what they hold; what its agent does not
 * account for then is the lease of "unknown", until the agent has said that this was all.
 *
 * A borrowed block is an export of the broker's like any other: references, recalls and their ends are
 * those of clients.c. With its last reference it goes, and the lease with it.
 *
 * All of it is the share thread's alone, but for `far` of an export that this process shares: under the
 * lock.
 */
#ifndef GS_CORE_SHARE_AFAR_H
#define GS_CORE_SHARE_AFAR_H

#include <string.h>

#include "core/share/exporter.h"

/* Of an export that other machines may open, or of one that is another machine's. */
struct gs_far {
    unsigned char fabric[GS_FABRIC_SIZE];
    /* Of the process that shares: */
    bool answer_due, recall_due; /* its broker is to be told; `held`: it has one reference */
    bool is_due;                 /* in the list of those */
    struct gs_export *next_due;
    /* Of both: */
    bool held;
    /* Of a broker, of a block of here: */
    struct gs_lease *first; /* the leases of it, and how many there are */
    unsigned leases;
    bool asked;    /* HOLD_AFAR 1 is under way */
    bool hold_due; /* a HOLD_AFAR did not go */
    bool recalled; /* its process wants it back */
    /* Of a block of another machine: */
    uint64_t lease; /* not 0 */
    bool done;      /* in the list of those that nobody may hold any more */
    struct gs_export *next_done;
};

static inline bool gs_export_is_borrowed(const struct gs_export *export)
{
    return export->far && export->far->lease;
}

/* ---- afar_publish.c, afar_hold.c: of the process that shares ---- */

/* The share thread, which has it pinned: its fabric handle, where it is to have one. */
void gs_afar_prepare(struct gs_share *share, struct gs_export *export);
/* The broker said HOLD_AFAR. */
void gs_afar_hold_came(struct gs_share *share, const struct gs_wire_hold_afar *message);
/* What the broker is to know next: false, there is nothing; and it was told that. */
bool gs_afar_next_locked(struct gs_share *share, union gs_wire_message *ret_message);
void gs_afar_told_locked(struct gs_share *share);
/* All with the lock held. The broker is to be told something of it; and is not any more, since it goes. */
static inline void gs_afar_due_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->far->is_due)
        return;
    export->far->is_due = true;
    export->far->next_due = share->exporter.afar_due;
    share->exporter.afar_due = export;
}

static inline void gs_afar_gone_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_export **link = &share->exporter.afar_due;

    if (!export->far || !export->far->is_due)
        return;
    while (*link != export)
        link = &(*link)->far->next_due;
    *link = export->far->next_due;
    export->far->is_due = false;
}

/* If other machines hold it, it is to be given back, and the broker is told so. */
static inline void gs_afar_recall_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->far || !export->far->held)
        return;
    export->far->recall_due = true;
    gs_afar_due_locked(share, export);
}

/* ---- afar_agent.c ---- */

/* AGENT; and all else of other machines that a client says, as gs_client_serve. */
bool gs_afar_serve(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message);
/* A client has gone, that is the agent or may be known to it as a holder. */
void gs_afar_client_gone(struct gs_share *share, struct gs_client *client);
/* Does what is due; when to come again. */
uint64_t gs_afar_tick(struct gs_share *share, uint64_t now);
void gs_afar_free(struct gs_share *share);

/* ---- afar_line.c ---- */

/* NULL: there is none. */
struct gs_client *gs_agent_of(struct gs_share *share);
/* Tells the agent as soon as it reads; `fd` stays the caller's. False: there is none, or it ends. */
bool gs_agent_tell(struct gs_share *share, const union gs_wire_message *message, int fd);
/* It has read; and is gone. */
void gs_agent_flush(struct gs_share *share, struct gs_client *client);
void gs_agent_forget(struct gs_share *share);

/* ---- afar_lend.c ---- */

struct gs_lease_key {
    unsigned char machine[GS_MACHINE_SIZE]; /* zero: nobody knows whose */
    uint64_t lease;
};

struct gs_lease {
    struct gs_lease_key key;
    struct gs_export_key block;
    struct gs_export *export; /* NULL: its process has not left it here, or has taken it away */
    uint64_t since_ns;
    uint32_t request; /* of its TAKE_AFAR, which is */
    bool pending;     /* not answered yet */
    bool kept;        /* its machine has named it since it began to */
    struct gs_lease *next, **at; /* of the same block; where it is not here, of those that wait for theirs */
    UT_hash_handle hh;
};

/* Of what the broker has taken; as gs_client_serve. */
bool gs_lend_share_came(struct gs_share *share, struct gs_client *client,
                        const struct gs_wire_share *message);
bool gs_lend_take_came(struct gs_share *share, struct gs_client *agent,
                       const struct gs_wire_take_afar *message);
bool gs_lend_held_came(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_hold_afar *message);
void gs_lend_recall_came(struct gs_share *share, struct gs_client *client, uint64_t block_id);
/* The agent is new: it is told what is shared. */
void gs_lend_tell_all(struct gs_share *share);
/* And is gone: what it waits for ends. */
void gs_lend_agent_gone(struct gs_share *share);
/* The process that shared it has ended, and the broker has the memory from now on. */
void gs_lend_owner_gone(struct gs_share *share, struct gs_export *export);
/* The export is dropped: what it has of other machines goes. */
void gs_lend_export_gone(struct gs_share *share, struct gs_export *export);
/* Tells processes what could not be told. */
uint64_t gs_lend_tick(struct gs_share *share, uint64_t now);
/* A lease of a block, of which the caller knows that the machine has it; NULL: no memory, or too many. */
struct gs_lease *gs_lease_new(struct gs_share *share, const struct gs_lease_key *key,
                              const struct gs_export_key *block);
struct gs_lease *gs_lease_find(struct gs_share *share, const struct gs_lease_key *key);
void gs_lease_end(struct gs_share *share, struct gs_lease *lease);
/* Its machine has it still, and may not have heard that it is to be given back. */
void gs_lease_recall_again(struct gs_share *share, const struct gs_lease *lease);

/* ---- afar_machines.c ---- */

/* The machine of leases that nobody knows. */
static inline bool gs_machine_is_nobody(const unsigned char id[GS_MACHINE_SIZE])
{
    static const unsigned char nobody[GS_MACHINE_SIZE];

    return memcmp(id, nobody, sizeof nobody) == 0;
}

struct gs_machine {
    unsigned char id[GS_MACHINE_SIZE];
    unsigned char boot[GS_BOOT_BYTES]; /* zero: not known */
    char name[GS_MACHINE_NAME_SIZE];
    uint32_t state;
    UT_hash_handle hh;
};

/* NULL: no memory, or too many. */
struct gs_machine *gs_machine_of(struct gs_share *share, const unsigned char *id);
bool gs_machine_came(struct gs_share *share, const struct gs_wire_machine_afar *message);
bool gs_kept_came(struct gs_share *share, const struct gs_wire_kept_afar *message);
bool gs_forget_came(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_forget_afar *message);
bool gs_ask_afar_came(struct gs_share *share, struct gs_client *client,
                      const struct gs_wire_ask_afar *message);
void gs_machines_agent_gone(struct gs_share *share);
void gs_machines_free(struct gs_share *share);

/* ---- afar_borrow.c ---- */

/* OPEN of what is not here: the agent is asked, or the opener is refused. */
bool gs_borrow_open(struct gs_share *share, struct gs_client *client, const struct gs_wire_open *open);
bool gs_borrow_opened_came(struct gs_share *share, const struct gs_wire_opened_afar *message);
bool gs_borrow_refused_came(struct gs_share *share, const struct gs_wire_refuse *message);
bool gs_borrow_recall_came(struct gs_share *share, const struct gs_wire_block_afar *message);
/* The client came to hold it: the agent is told. */
void gs_borrow_held(struct gs_share *share, struct gs_client *client,
                    const struct gs_export *export);
/* Nobody may hold it any more: looked at by gs_borrow_tick. */
static inline void gs_borrow_unheld(struct gs_share *share, struct gs_export *export)
{
    struct gs_far *far = export->far;

    if (!far || !far->lease || far->done)
        return;
    far->done = true;
    far->next_done = share->store.afar.done;
    share->store.afar.done = export;
}
void gs_borrow_tick(struct gs_share *share);
/* All of it goes, at the very end. */
void gs_borrow_free(struct gs_share *share);
/* The agent is new: it is told what is borrowed, and by whom; and is gone. */
void gs_borrow_tell_all(struct gs_share *share);
void gs_borrow_agent_gone(struct gs_share *share);

#endif
