/*
 * Broker: blocks that were left here and that other machines may open (core/share/afar.h).
 *
 *   TAKE_AFAR ─► pending ── the process holds it, or has ended ─► OPENED_AFAR: a lease ─► ENDED_AFAR
 *                   └─ it is free already ─► REFUSE
 *
 * A lease whose block is not here waits for its process to leave that anew, as it does when it has lost
 * its connection.
 */
#include "core/share/afar.h"

#include <stdlib.h>
#include <string.h>

#define LEASES_PART 4 /* so many for each block that a broker may keep */
#define RETRY_NS    (10 * GS_NS_PER_MS)

/* ---- What its process is told ----------------------------------------------------------------- */

static struct gs_client *owner_of(struct gs_share *share, const struct gs_export *export)
{
    struct gs_client *client = NULL;

    if (export->owner)
        HASH_FIND(hh, share->clients.first, &export->owner, sizeof export->owner, client);
    return client;
}

/* One question at a time; what it is to know in the end is whether there is a lease. */
static void tell_owner(struct gs_share *share, struct gs_export *export)
{
    struct gs_far *far = export->far;
    struct gs_client *client = owner_of(share, export);
    bool hold = far->leases > 0;
    union gs_wire_message message;

    if (!client || client->fd < 0 || gs_client_is_lost(client) || far->asked || hold == far->held)
        return;
    gs_wire_start(&message, GS_WIRE_HOLD_AFAR, 0);
    message.hold_afar.block_id = export->key.id;
    message.hold_afar.hold = hold;
    if (gs_client_send(share, client, &message, -1) != 0) {
        far->hold_due = share->store.afar.holds_due = true;
        return;
    }
    far->hold_due = false;
    far->asked = hold;
    far->held = false;
}

uint64_t gs_lend_tick(struct gs_share *share, uint64_t now)
{
    struct gs_export *export, *next;

    if (!share->store.afar.holds_due)
        return GS_NEVER;
    share->store.afar.holds_due = false;
    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (export->far && export->far->hold_due)
            tell_owner(share, export);
    }
    return share->store.afar.holds_due ? now + RETRY_NS : GS_NEVER;
}

/* ---- Leases ------------------------------------------------------------------------------------ */

struct gs_lease *gs_lease_find(struct gs_share *share, const struct gs_lease_key *key)
{
    struct gs_lease *lease;

    HASH_FIND(hh, share->store.afar.leases, key, sizeof *key, lease);
    return lease;
}

static void link_in(struct gs_lease **list, struct gs_lease *lease)
{
    lease->next = *list;
    lease->at = list;
    if (*list)
        (*list)->at = &lease->next;
    *list = lease;
}

static void unlink_it(struct gs_lease *lease)
{
    *lease->at = lease->next;
    if (lease->next)
        lease->next->at = lease->at;
}

static void attach(struct gs_share *share, struct gs_lease *lease, struct gs_export *export)
{
    lease->export = export;
    link_in(&export->far->first, lease);
    export->far->leases++;
    gs_export_reference(share, export);
}

struct gs_lease *gs_lease_new(struct gs_share *share, const struct gs_lease_key *key,
                              const struct gs_export_key *block)
{
    struct gs_export *export = gs_export_find(share, block);
    struct gs_lease *lease = NULL;

    if (HASH_COUNT(share->store.afar.leases) / LEASES_PART < share->options.published_max)
        lease = calloc(1, sizeof *lease);
    if (!lease)
        return NULL;
    lease->key = *key;
    lease->block = *block;
    lease->since_ns = gs_now_ns();
    lease->kept = true;
    HASH_ADD(hh, share->store.afar.leases, key, sizeof lease->key, lease);
    if (!lease->hh.tbl) {
        free(lease);
        return NULL;
    }
    if (export && export->far && !gs_export_is_borrowed(export)) {
        attach(share, lease, export);
        tell_owner(share, export);
    } else {
        link_in(&share->store.afar.adrift, lease);
    }
    return lease;
}

void gs_lease_end(struct gs_share *share, struct gs_lease *lease)
{
    struct gs_export *export = lease->export;

    HASH_DEL(share->store.afar.leases, lease);
    unlink_it(lease);
    free(lease);
    if (!export)
        return;
    export->far->leases--;
    gs_export_drop(share, export);
    tell_owner(share, export);
}

static void refuse(struct gs_share *share, uint32_t request, enum gs_wire_reason reason)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_REFUSE, request);
    message.refuse.reason = reason;
    gs_agent_tell(share, &message, -1);
}

static void tell_of(struct gs_share *share, enum gs_wire_type type, const struct gs_export *export)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, 0);
    memcpy(message.block_afar.instance, export->key.instance, GS_INSTANCE_SIZE);
    message.block_afar.block_id = export->key.id;
    gs_agent_tell(share, &message, -1);
}

void gs_lease_recall_again(struct gs_share *share, const struct gs_lease *lease)
{
    if (lease->export && lease->export->far->recalled)
        tell_of(share, GS_WIRE_RECALL_AFAR, lease->export);
}

static void answer(struct gs_share *share, struct gs_lease *lease)
{
    const struct gs_export *export = lease->export;
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPENED_AFAR, lease->request);
    message.opened_afar.lease = lease->key.lease;
    message.opened_afar.chunk_size = export->source.chunk_size;
    message.opened_afar.offset = export->source.offset;
    message.opened_afar.read_only = export->read_only;
    memcpy(message.opened_afar.uuid, export->source.uuid, sizeof message.opened_afar.uuid);
    memcpy(message.opened_afar.fabric, export->far->fabric, GS_FABRIC_SIZE);
    lease->pending = !gs_agent_tell(share, &message, -1); /* it ends with the agent then */
    gs_lease_recall_again(share, lease); /* the newest holder was not asked */
}

/* Those of a block that wait for an answer. */
static void answer_all(struct gs_share *share, const struct gs_export *export)
{
    for (struct gs_lease *lease = export->far->first; lease; lease = lease->next)
        if (lease->pending)
            answer(share, lease);
}

/* ---- What processes say ----------------------------------------------------------------------- */

static void tell_shared(struct gs_share *share, const struct gs_export *export)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_SHARED_AFAR, 0);
    memcpy(message.shared_afar.ipc_handle, export->ipc_handle, GS_IPC_HANDLE_SIZE);
    message.shared_afar.chunk_size = export->source.chunk_size;
    message.shared_afar.offset = export->source.offset;
    memcpy(message.shared_afar.uuid, export->source.uuid, sizeof message.shared_afar.uuid);
    memcpy(message.shared_afar.fabric, export->far->fabric, GS_FABRIC_SIZE);
    message.shared_afar.uid = export->publisher->user->uid;
    message.shared_afar.read_only = export->read_only;
    gs_agent_tell(share, &message, -1);
    if (export->far->recalled)
        tell_of(share, GS_WIRE_RECALL_AFAR, export);
}

/* Its process holds it for somebody whom nobody here knows. False: no memory, or too many are. */
static bool hold_for_unknown(struct gs_share *share, const struct gs_export *export)
{
    struct gs_lease_key key = {.lease = ++share->store.afar.last_unknown};

    return export->far->leases > 0 || share->store.afar.listed ||
           gs_lease_new(share, &key, &export->key);
}

/* What nobody here knows of would be held for as long as its process runs. He comes again, and leaves
 * all of it anew, ever later where that is of no use (core/share/publish.c). */
static bool comes_again(struct gs_client *client, const struct gs_wire_share *message)
{
    return !message->held ||
           gs_client_fault(client, "no room is left for what it holds for other machines");
}

bool gs_lend_share_came(struct gs_share *share, struct gs_client *client,
                        const struct gs_wire_share *message)
{
    struct gs_export_key key;
    struct gs_ipc_handle read;
    struct gs_export *export;
    struct gs_lease *lease, *next;

    gs_ipc_handle_read(message->ipc_handle, &read);
    memcpy(key.instance, read.instance, sizeof key.instance);
    key.id = read.block_id;
    export = gs_export_find(share, &key);
    if (export && (export->owner != client->id || export->far))
        return true;
    if (!export || !(export->far = calloc(1, sizeof *export->far)))
        return comes_again(client, message);
    memcpy(export->far->fabric, message->fabric, GS_FABRIC_SIZE);
    for (lease = share->store.afar.adrift; lease; lease = next) {
        next = lease->next;
        if (memcmp(&lease->block, &key, sizeof key) != 0)
            continue;
        unlink_it(lease);
        attach(share, lease, export);
    }
    export->far->held = message->held != 0;
    if (message->held && !hold_for_unknown(share, export))
        return comes_again(client, message);
    tell_shared(share, export);
    tell_owner(share, export);
    return true;
}

/* The export that the client shares under this number, with all that is afar of it. */
static struct gs_export *shared_by(struct gs_share *share, const struct gs_client *client,
                                   uint64_t block_id)
{
    struct gs_export_key key = {.id = block_id};
    struct gs_export *export;

    memcpy(key.instance, client->instance, sizeof key.instance);
    export = gs_export_find(share, &key);
    return export && export->owner == client->id && export->far ? export : NULL;
}

bool gs_lend_held_came(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_hold_afar *message)
{
    struct gs_export *export = shared_by(share, client, message->block_id);
    struct gs_lease *lease, *next;

    if (message->zero || message->hold > 1)
        return gs_client_fault(client, "its message has fields that make no sense");
    if (!export) /* taken back meanwhile */
        return true;
    if (!export->far->asked)
        return gs_client_fault(client, "it answers what it was not asked");
    export->far->held = message->hold != 0;
    if (message->hold) {
        export->far->asked = false;
        answer_all(share, export);
        tell_owner(share, export); /* or all leases have ended meanwhile */
        return true;
    }
    for (lease = export->far->first; lease; lease = next) {
        next = lease->next;
        if (lease->pending)
            refuse(share, lease->request, GS_REFUSED_HANDLE);
        gs_lease_end(share, lease);
    }
    export->far->asked = false; /* not before: nothing is to be asked of what goes */
    return true;
}

void gs_lend_recall_came(struct gs_share *share, struct gs_client *client, uint64_t block_id)
{
    struct gs_export *export = shared_by(share, client, block_id);

    if (!export)
        return;
    export->far->recalled = true;
    tell_of(share, GS_WIRE_RECALL_AFAR, export);
}

void gs_lend_owner_gone(struct gs_share *share, struct gs_export *export)
{
    if (!export->far || gs_export_is_borrowed(export))
        return;
    export->far->asked = export->far->held = export->far->hold_due = false;
    answer_all(share, export);
}

void gs_lend_export_gone(struct gs_share *share, struct gs_export *export)
{
    struct gs_lease *lease, *next;

    if (!export->far)
        return;
    for (lease = export->far->first; lease; lease = next) {
        next = lease->next;
        unlink_it(lease);
        lease->export = NULL;
        link_in(&share->store.afar.adrift, lease);
        if (!lease->pending)
            continue;
        refuse(share, lease->request, GS_REFUSED_HANDLE);
        gs_lease_end(share, lease);
    }
    tell_of(share, GS_WIRE_UNSHARED_AFAR, export);
    free(export->far);
    export->far = NULL;
}

/* ---- What the agent says ----------------------------------------------------------------------- */

static enum gs_wire_reason judge_take(const struct gs_export *export,
                                      const struct gs_wire_take_afar *message)
{
    if (!export || !export->far || gs_export_is_borrowed(export))
        return GS_REFUSED_HANDLE;
    if (!gs_publisher_lets(export->publisher, message->uid, message->gid))
        return GS_REFUSED_USER;
    return 0;
}

bool gs_lend_take_came(struct gs_share *share, struct gs_client *agent,
                       const struct gs_wire_take_afar *message)
{
    struct gs_lease_key key = {.lease = message->lease};
    enum gs_wire_reason reason;
    struct gs_lease *lease = NULL;
    struct gs_export *export;

    memcpy(key.machine, message->machine, sizeof key.machine);
    if (!message->lease || gs_machine_is_nobody(key.machine) || gs_lease_find(share, &key))
        return gs_client_fault(agent, "it takes a lease that is none, or that there is");
    export = gs_export_pin(share, message->ipc_handle);
    reason = judge_take(export, message);
    if (!reason && gs_machine_of(share, key.machine))
        lease = gs_lease_new(share, &key, &export->key);
    if (!reason && !lease)
        reason = GS_REFUSED_MEMORY;
    if (lease) {
        lease->pending = true;
        lease->request = message->head.request;
        if (!export->owner || export->far->held)
            answer(share, lease);
    }
    if (export)
        gs_export_unpin(share, export, lease != NULL);
    if (reason)
        refuse(share, message->head.request, reason);
    return true;
}

void gs_lend_tell_all(struct gs_share *share)
{
    struct gs_export *export, *next;

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (export->far && !gs_export_is_borrowed(export))
            tell_shared(share, export);
    }
}

void gs_lend_agent_gone(struct gs_share *share)
{
    struct gs_lease *lease, *next;

    HASH_ITER(hh, share->store.afar.leases, lease, next)
    {
        if (lease->pending)
            gs_lease_end(share, lease);
    }
}
