/*
 * Memory that is shared with other machines of an NVLink domain (wire_cluster.h has the messages):
 * what the files have in common.
 *
 *   cluster_publish.c   process that shares: its fabric handles, and what its broker has it hold
 *   cluster_export.c      broker: blocks of here that its agent holds for other machines
 *   cluster_import.c    broker: blocks of other machines that processes of here open
 *   cluster_agent.c     broker: its agent, which all of that is told and says; its line is cluster_line.c
 *
 * What must hold: a block that a machine has open is not used again. All machines' leases of it are
 * the agent's, which is one holder for the broker, and a durable one: what it has is lent, which is
 * one reference of the broker's export, and one of the process's own, which the broker asks for
 * before it answers the agent. Both end as an agent says CLOSE, by nothing else, whichever of
 * process, broker and agent ends. A broker that is new is told by the processes what they hold, and
 * tells the agent.
 *
 * A borrowed block is an export of the broker's like any other: references, recalls and their ends
 * are those of clients.c. With its last reference it goes, and the lease with it.
 *
 * All of it is the share thread's alone, but for `far` of an export that this process shares: under
 * the lock.
 */
#ifndef GS_CORE_SHARE_CLUSTER_H
#define GS_CORE_SHARE_CLUSTER_H

#include <string.h>

#include "core/base/list.h"
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
    bool lent;     /* the agent has it, or is to have it as its process answers */
    bool asked;    /* an OPEN is under way */
    bool recalled; /* its process wants it back */
    uint32_t take; /* the agent's newest OPEN, which is not answered; 0: all are */
    /* Of a block of another machine: */
    uint64_t lease; /* not 0 */
    bool done;      /* in the list of those that nobody may hold any more */
    struct gs_export *next_done;
};

static inline bool gs_export_is_imported(const struct gs_export *export)
{
    return export->far && export->far->lease;
}

/* ---- cluster_publish.c: of the process that shares ---- */

/* The share thread, which has it pinned: its fabric handle, where it is to have one. */
void gs_cluster_prepare(struct gs_share *share, struct gs_export *export);
/* OPEN, CLOSE of its broker's. */
void gs_cluster_hold_came(struct gs_share *share, const union gs_wire_message *message);
/* What the broker is to know next: false, there is nothing; and it was told that. */
bool gs_cluster_next_locked(struct gs_share *share, union gs_wire_message *ret_message);
void gs_cluster_told_locked(struct gs_share *share);
/* All with the lock held. The broker is to be told something of it; and is not any more, since it
 * goes. */
static inline void gs_cluster_due_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->far->is_due)
        return;
    export->far->is_due = true;
    LL_PREPEND2(share->exporter.cluster_due, export, far->next_due);
}

static inline void gs_cluster_gone_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->far || !export->far->is_due)
        return;
    LL_DELETE2(share->exporter.cluster_due, export, far->next_due);
    export->far->is_due = false;
}

/* If other machines hold it, it is to be given back, and the broker is told so. */
static inline void gs_cluster_recall_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->far || !export->far->held)
        return;
    export->far->recall_due = true;
    gs_cluster_due_locked(share, export);
}

/* ---- cluster_agent.c ---- */

/* A client says that it is the agent; and what that says, as gs_client_serve. */
bool gs_agent_came(struct gs_share *share, struct gs_client *client,
                   const struct gs_wire_hello *hello);
bool gs_agent_serve(struct gs_share *share, struct gs_client *client,
                    const union gs_wire_message *message);
/* QUERY about machines, as gs_client_serve. */
bool gs_machines_asked(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_query *query);
/* A client has gone, that is the agent or may be known to it as a holder. */
void gs_cluster_client_gone(struct gs_share *share, struct gs_client *client);
/* Does what is due; when to come again. */
uint64_t gs_cluster_tick(struct gs_share *share, uint64_t now);

/* ---- cluster_line.c ---- */

/* NULL: there is none. */
struct gs_client *gs_agent_of(struct gs_share *share);
/* Tells the agent as soon as it reads; `fd` stays the caller's. False: there is none, or it
 * ends. */
bool gs_agent_tell(struct gs_share *share, const union gs_wire_message *message, int fd);
/* CLOSE, RECALL, RESUME. */
void gs_agent_tell_of(struct gs_share *share, enum gs_wire_type type,
                      const struct gs_export *export);
/* It has read; and is gone. */
void gs_agent_flush(struct gs_share *share, struct gs_client *client);
void gs_agent_forget(struct gs_share *share);
/* The block that a message of its is about; NULL: it is not here. */
static inline struct gs_export *gs_export_of(struct gs_share *share, const struct gs_wire_close *of)
{
    return gs_export_find(share, of->instance, of->block_id);
}

/* ---- cluster_export.c ---- */

/* Of what the broker has taken; as gs_client_serve. */
bool gs_cluster_export_share_came(struct gs_share *share, struct gs_client *client,
                                  const struct gs_wire_share *message);
/* Its process has answered an OPEN; likewise. */
bool gs_cluster_export_held_came(struct gs_share *share, struct gs_client *client,
                                 uint64_t block_id, bool held);
void gs_cluster_export_recall_came(struct gs_share *share, struct gs_client *client,
                                   uint64_t block_id);
/* Of the agent. */
void gs_cluster_export_open_came(struct gs_share *share, const struct gs_wire_open *open);
void gs_cluster_export_close_came(struct gs_share *share, const struct gs_wire_close *close);
/* The agent is new: it is told what is shared. */
void gs_cluster_export_tell_all(struct gs_share *share);
/* And is gone. */
void gs_cluster_export_agent_gone(struct gs_share *share);
/* The process that shared it has ended, and the broker has the memory from now on. */
void gs_cluster_export_owner_gone(struct gs_share *share, struct gs_export *export);
/* The export is dropped, ours or theirs: what it has of other machines goes. */
void gs_cluster_export_export_gone(struct gs_share *share, struct gs_export *export);
/* Tells processes what could not be told. */
uint64_t gs_cluster_export_tick(struct gs_share *share, uint64_t now);

/* ---- cluster_import.c ---- */

/* OPEN of what is not here: the agent is asked, or the importer is refused. */
bool gs_cluster_import_open(struct gs_share *share, struct gs_client *client,
                            const struct gs_wire_open *open);
/* Of the agent. */
void gs_cluster_import_grant_came(struct gs_share *share, const struct gs_wire_grant *grant);
void gs_cluster_import_refused_came(struct gs_share *share, const struct gs_wire_refuse *message);
void gs_cluster_import_recall_came(struct gs_share *share, const struct gs_wire_close *recall);
/* Of what is here the client may hold its first, where the agent hears of it at once: else that
 * could be lost with this broker, and be used again under it. 0: it may. */
enum gs_wire_reason gs_cluster_import_refusal(const struct gs_share *share,
                                              const struct gs_client *client);
/* The client came to hold it: the agent is told; and is gone. */
void gs_cluster_import_held(struct gs_share *share, struct gs_client *client,
                            const struct gs_export *export);
void gs_cluster_import_client_gone(struct gs_share *share, struct gs_client *client);
/* Nobody may hold it any more: looked at by gs_cluster_import_tick. */
static inline void gs_cluster_import_unheld(struct gs_share *share, struct gs_export *export)
{
    struct gs_far *far = export->far;

    if (!far || !far->lease || far->done)
        return;
    far->done = true;
    LL_PREPEND2(share->store.cluster.done, export, far->next_done);
}
void gs_cluster_import_tick(struct gs_share *share);
/* The agent is new: it is told what is borrowed, and by whom; and is gone. */
void gs_cluster_import_tell_all(struct gs_share *share);
void gs_cluster_import_agent_gone(struct gs_share *share);

#endif
