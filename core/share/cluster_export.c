/*
 * Broker: blocks that were left here and that its agent holds for other machines
 * (core/share/cluster.h).
 *
 *   OPEN ─► lent, asked ── the process holds it, or has ended ─► GRANT ─► CLOSE
 *                 └─ it is free already ─► REFUSE
 *
 * The agent's holder is durable: what is lent is one reference, whatever becomes of agents, until
 * one says CLOSE. A process that leaves a block with its next broker says itself that it holds it.
 */
#include "core/share/cluster.h"

#include <stdlib.h>

/* ---- What its process is told ---------------------------------------------------------------- */

static struct gs_client *owner_of(struct gs_share *share, const struct gs_export *export)
{
    struct gs_client *client = NULL;

    if (export->owner)
        HASH_FIND(hh, share->clients.first, &export->owner, sizeof export->owner, client);
    return client;
}

/* One question at a time; what it is to know in the end is whether it is lent. */
static void tell_owner(struct gs_share *share, struct gs_export *export)
{
    struct gs_far *far = export->far;
    struct gs_client *client = owner_of(share, export);
    bool hold = far->lent;
    union gs_wire_message message;

    if (!client || client->fd < 0 || gs_client_is_lost(client) || far->asked || hold == far->held)
        return;
    gs_wire_start(&message, hold ? GS_WIRE_OPEN : GS_WIRE_CLOSE, 0);
    if (hold)
        memcpy(message.open.ipc_handle, export->ipc_handle, GS_IPC_HANDLE_SIZE);
    else
        message.close.block_id = export->key.id;
    if (gs_client_send(share, client, &message, -1) != 0) {
        share->store.cluster.holds_due = true;
        return;
    }
    far->asked = hold;
    far->held = false;
}

uint64_t gs_cluster_export_tick(struct gs_share *share, uint64_t now)
{
    struct gs_export *export, *next;

    if (!share->store.cluster.holds_due)
        return GS_NEVER;
    share->store.cluster.holds_due = false;
    HASH_ITER(hh, share->exporter.exports, export, next) {
        if (export->far)
            tell_owner(share, export);
    }
    return share->store.cluster.holds_due ? now + GS_ROOM_NS : GS_NEVER;
}

static void set_lent(struct gs_share *share, struct gs_export *export, bool lent)
{
    if (export->far->lent == lent)
        return;
    export->far->lent = lent;
    if (lent)
        gs_export_reference(share, export);
    else
        gs_export_drop(share, export);
    tell_owner(share, export);
}

/* ---- What the agent is told ------------------------------------------------------------------ */

static void refuse(struct gs_share *share, uint32_t request, enum gs_wire_reason reason)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_REFUSE, request);
    message.refuse.reason = reason;
    gs_agent_tell(share, &message, -1);
}

/* The newest OPEN that is not answered, and with it all before it. */
static void refuse_all(struct gs_share *share, struct gs_export *export)
{
    if (export->far->take)
        refuse(share, export->far->take, GS_REFUSED_ENDING);
    export->far->take = 0;
}

static void answer_all(struct gs_share *share, struct gs_export *export)
{
    union gs_wire_message message;

    if (!export->far->take)
        return;
    gs_grant_start(&message, export, true, export->far->take);
    export->far->take = 0;
    gs_agent_tell(share, &message, -1);
    if (export->far->recalled) /* the newest holder was not asked */
        gs_agent_tell_of(share, GS_WIRE_RECALL, export);
}

static void tell_shared(struct gs_share *share, const struct gs_export *export)
{
    union gs_wire_message message;

    gs_share_message_start(&message, export, export->far->lent);
    gs_agent_tell(share, &message, -1);
    if (export->far->recalled)
        gs_agent_tell_of(share, GS_WIRE_RECALL, export);
}

void gs_cluster_export_tell_all(struct gs_share *share)
{
    struct gs_export *export, *next;

    HASH_ITER(hh, share->exporter.exports, export, next) {
        if (export->far && !gs_export_is_imported(export))
            tell_shared(share, export);
    }
}

/* ---- What processes say ---------------------------------------------------------------------- */

/* What nobody here knows of would be held for as long as its process runs. That process comes
 * again, and leaves all of it anew, ever later where that is of no use (core/share/publish.c). */
static bool comes_again(struct gs_client *client, const struct gs_wire_share *message)
{
    return !message->held ||
           gs_client_fault(client, "no room is left for what it holds for other machines");
}

bool gs_cluster_export_share_came(struct gs_share *share, struct gs_client *client,
                                  const struct gs_wire_share *message)
{
    struct gs_ipc_handle read;
    struct gs_export *export;

    gs_ipc_handle_read(message->ipc_handle, &read);
    export = gs_export_find(share, read.instance, read.block_id);
    if (export && (export->owner != client->id || export->far))
        return true;
    if (!export || !(export->far = calloc(1, sizeof *export->far)))
        return comes_again(client, message);
    memcpy(export->far->fabric, message->fabric, GS_FABRIC_SIZE);
    export->far->held = message->held != 0;
    set_lent(share, export, export->far->held);
    tell_shared(share, export);
    return true;
}

/* The export that the client shares under this number, with all that is of it on other machines. */
static struct gs_export *shared_by(struct gs_share *share, const struct gs_client *client,
                                   uint64_t block_id)
{
    struct gs_export *export = gs_export_find(share, client->instance, block_id);

    return export && export->owner == client->id && export->far ? export : NULL;
}

bool gs_cluster_export_held_came(struct gs_share *share, struct gs_client *client,
                                 uint64_t block_id, bool held)
{
    struct gs_export *export = shared_by(share, client, block_id);

    if (!export) /* taken back meanwhile */
        return true;
    if (!export->far->asked)
        return gs_client_fault(client, "it answers what it was not asked");
    export->far->held = held;
    if (!held) {
        refuse_all(share, export);
        set_lent(share, export,
                 false); /* nothing is to be asked of what goes: it is `asked` still */
        export->far->asked = false;
        return true;
    }
    export->far->asked = false;
    answer_all(share, export);
    tell_owner(share, export); /* or the agent has let it go meanwhile */
    return true;
}

void gs_cluster_export_recall_came(struct gs_share *share, struct gs_client *client,
                                   uint64_t block_id)
{
    struct gs_export *export = shared_by(share, client, block_id);

    if (!export)
        return;
    export->far->recalled = true;
    gs_agent_tell_of(share, GS_WIRE_RECALL, export);
}

void gs_cluster_export_owner_gone(struct gs_share *share, struct gs_export *export)
{
    if (!export->far || gs_export_is_imported(export))
        return;
    export->far->asked = export->far->held = false;
    answer_all(share, export);
}

void gs_cluster_export_export_gone(struct gs_share *share, struct gs_export *export)
{
    if (!export->far)
        return;
    refuse_all(share, export);
    gs_agent_tell_of(share, GS_WIRE_CLOSE, export);
    free(export->far);
    export->far = NULL;
}

/* ---- What the agent says --------------------------------------------------------------------- */

void gs_cluster_export_open_came(struct gs_share *share, const struct gs_wire_open *open)
{
    struct gs_export *export = gs_export_pin(share, open->ipc_handle);
    const bool is_here = export && export->far && !gs_export_is_imported(export);
    const bool lends = is_here && gs_publisher_lets(export->publisher, open->uid, open->gid);

    if (lends) {
        export->far->take = open->head.request;
        set_lent(share, export, true);
        if (!export->owner || export->far->held)
            answer_all(share, export);
    } else {
        refuse(share, open->head.request, is_here ? GS_REFUSED_USER : GS_REFUSED_HANDLE);
    }
    if (export)
        gs_export_unpin(share, export, lends);
}

/* No machine has it any more: nor does one wait for it. */
void gs_cluster_export_close_came(struct gs_share *share, const struct gs_wire_close *close)
{
    struct gs_export *export = gs_export_of(share, close);

    if (!export || !export->far || gs_export_is_imported(export))
        return;
    refuse_all(share, export);
    set_lent(share, export, false);
}

void gs_cluster_export_agent_gone(struct gs_share *share)
{
    struct gs_export *export, *next;

    HASH_ITER(hh, share->exporter.exports, export, next) {
        if (export->far)
            export->far->take = 0;
    }
}
