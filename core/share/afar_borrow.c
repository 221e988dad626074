/*
 * Broker: blocks of other machines that processes of here open (core/share/afar.h).
 *
 *   OPEN ─► the agent is asked, once for all who wait ─► an export without an owner, borrowed
 *                                                 └─► REFUSE, to all of them
 *
 * From then on it is served like what was left here; with its last reference it goes. Only processes of
 * the broker's own user are served so: he could take such memory from any of them.
 */
#include "core/base/list.h"
#include "core/share/afar.h"
#include "core/share/instance.h"

#include <stdlib.h>
#include <string.h>

#define WAITING_MAX 16 /* opens of one connection, most of them given up */

/* An open that waits. */
struct gs_waiting {
    uint64_t client;
    uint32_t before; /* it has asked over the connection behind so many */
    uint32_t request;
    struct gs_waiting *next;
};

/* What the agent was asked for. */
struct gs_opening {
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    uint64_t lease;
    uint32_t request;
    struct gs_waiting *waiting;
    struct gs_opening *next;
};

static struct gs_client *client_of(struct gs_share *share, const struct gs_waiting *waiting)
{
    struct gs_client *client;

    HASH_FIND(hh, share->clients.first, &waiting->client, sizeof waiting->client, client);
    return client && client->over.before == waiting->before && client->fd >= 0 &&
                   !gs_client_is_lost(client)
               ? client
               : NULL;
}

static void tell_ended(struct gs_share *share, uint64_t lease)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_ENDED_AFAR, 0);
    message.ended_afar.lease = lease;
    gs_agent_tell(share, &message, -1);
}

static void tell_holder(struct gs_share *share, struct gs_client *client)
{
    union gs_wire_message message;

    if (client->said.told_agent == share->store.afar.agent)
        return;
    client->said.told_agent = share->store.afar.agent;
    gs_wire_start(&message, GS_WIRE_HOLDER_AFAR, 0);
    message.holder_afar.holder = client->id;
    message.holder_afar.pid = (uint64_t)client->pid;
    gs_agent_tell(share, &message, gs_fd_is_there(&client->kept_pidfd) ? client->pidfd : -1);
}

/* ---- Asking ------------------------------------------------------------------------------------ */

static void opening_free(struct gs_opening *opening)
{
    while (opening->waiting) {
        struct gs_waiting *waiting = opening->waiting;

        opening->waiting = waiting->next;
        free(waiting);
    }
    free(opening);
}

static unsigned count_waiting(struct gs_share *share, uint64_t client)
{
    unsigned count = 0;

    for (const struct gs_opening *opening = share->store.afar.openings; opening;
         opening = opening->next)
        for (const struct gs_waiting *waiting = opening->waiting; waiting; waiting = waiting->next)
            count += waiting->client == client;
    return count;
}

/* The one that was asked for, or a new one; NULL: no memory. */
static struct gs_opening *opening_of(struct gs_share *share, struct gs_client *client,
                                     const unsigned char *ipc_handle)
{
    struct gs_opening *opening = share->store.afar.openings;
    union gs_wire_message message;

    while (opening && !gs_bytes_equal(opening->ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE))
        opening = opening->next;
    if (opening)
        return opening;
    opening = calloc(1, sizeof *opening);
    if (!opening || !gs_random(&opening->lease, sizeof opening->lease) || !opening->lease) {
        free(opening);
        return NULL;
    }
    memcpy(opening->ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    opening->request = ++share->store.afar.last_request;
    opening->next = share->store.afar.openings;
    share->store.afar.openings = opening;
    tell_holder(share, client);
    gs_wire_start(&message, GS_WIRE_OPEN_AFAR, opening->request);
    memcpy(message.open_afar.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open_afar.lease = opening->lease;
    message.open_afar.holder = client->id;
    message.open_afar.uid = (uint32_t)client->uid;
    message.open_afar.gid = (uint32_t)client->gid;
    gs_agent_tell(share, &message, -1);
    return opening;
}

bool gs_borrow_open(struct gs_share *share, struct gs_client *client, const struct gs_wire_open *open)
{
    struct gs_waiting *waiting;
    struct gs_opening *opening;

    if (!gs_user_is_own(client->uid))
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_HANDLE, 0);
    if (!share->store.afar.agent)
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_ALONE, 0);
    if (count_waiting(share, client->id) >= WAITING_MAX)
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_BUSY, 0);
    waiting = calloc(1, sizeof *waiting);
    opening = waiting ? opening_of(share, client, open->ipc_handle) : NULL;
    if (!opening) {
        free(waiting);
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_MEMORY, 0);
    }
    *waiting = (struct gs_waiting){client->id, client->over.before, open->head.request, NULL};
    LL_APPEND(opening->waiting, waiting); /* the newest grant is the last one */
    return true;
}

/* Out of the list; NULL: there is none. */
static struct gs_opening *opening_take(struct gs_share *share, uint32_t request)
{
    struct gs_opening *opening;

    LL_SEARCH_SCALAR(share->store.afar.openings, opening, request, request);
    if (opening)
        LL_DELETE(share->store.afar.openings, opening);
    return opening;
}

/* ---- Answers ----------------------------------------------------------------------------------- */

static void refuse_all(struct gs_share *share, struct gs_opening *opening,
                       enum gs_wire_reason reason)
{
    for (const struct gs_waiting *waiting = opening->waiting; waiting; waiting = waiting->next) {
        struct gs_client *client = client_of(share, waiting);

        if (client)
            gs_client_refuse(share, client, waiting->request, reason, 0);
    }
    opening_free(opening);
}

/* Entered where all are; NULL: no memory. */
static struct gs_export *export_new(struct gs_share *share, const struct gs_opening *opening,
                                    const struct gs_ipc_handle *read,
                                    const struct gs_wire_opened_afar *message)
{
    struct gs_export *export = calloc(1, sizeof *export);
    bool entered;

    if (!export || !(export->far = calloc(1, sizeof *export->far))) {
        free(export);
        return NULL;
    }
    memcpy(export->key.instance, read->instance, sizeof export->key.instance);
    export->key.id = read->block_id;
    memcpy(export->ipc_handle, opening->ipc_handle, GS_IPC_HANDLE_SIZE);
    export->read_only = message->read_only != 0;
    export->source = (struct gs_share_source){.chunk_id = read->chunk_id,
                                              .chunk_size = message->chunk_size,
                                              .block_id = read->block_id,
                                              .offset = message->offset,
                                              .size = read->size};
    memcpy(export->source.uuid, message->uuid, sizeof export->source.uuid);
    memcpy(export->far->fabric, message->fabric, GS_FABRIC_SIZE);
    export->far->lease = opening->lease;
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->exporter.exports, key, sizeof export->key, export);
    entered = export->hh.tbl != NULL;
    gs_lock_release(&share->lock);
    if (entered)
        return export;
    free(export->far);
    free(export);
    return NULL;
}

/* To all who wait for it still. */
static void grant_all(struct gs_share *share, struct gs_opening *opening)
{
    for (const struct gs_waiting *waiting = opening->waiting; waiting; waiting = waiting->next) {
        struct gs_client *client = client_of(share, waiting);
        union gs_wire_message open;
        struct gs_export *export;

        if (!client)
            continue;
        gs_wire_start(&open, GS_WIRE_OPEN, waiting->request);
        open.open.afar = 1;
        export = gs_export_pin(share, opening->ipc_handle);
        if (!gs_client_grant(share, client, export, &open.open))
            gs_log_line(&share->log, GS_LOG_DEBUG, "opener %d does not read its answer",
                        (int)client->pid); /* what he says next, or his hang-up, ends it */
    }
    opening_free(opening);
}

bool gs_borrow_opened_came(struct gs_share *share, const struct gs_wire_opened_afar *message)
{
    struct gs_opening *opening = opening_take(share, message->head.request);
    struct gs_ipc_handle read;
    struct gs_export *export = NULL;

    if (!opening) { /* everybody has gone, or another agent was asked: a refusal told them */
        tell_ended(share, message->lease);
        return true;
    }
    if (message->lease != opening->lease || message->zero ||
        gs_ipc_handle_read(opening->ipc_handle, &read) != GS_OK ||
        !gs_broker_is_sound(message->chunk_size, message->offset, read.size, message->read_only))
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "the agent gave an answer that makes no sense; refused");
    else
        export = export_new(share, opening, &read, message);
    if (!export) {
        tell_ended(share, opening->lease);
        refuse_all(share, opening, GS_REFUSED_MEMORY);
        return true;
    }
    grant_all(share, opening);
    gs_borrow_unheld(share, export); /* where nobody took it */
    return true;
}

bool gs_borrow_refused_came(struct gs_share *share, const struct gs_wire_refuse *message)
{
    struct gs_opening *opening = opening_take(share, message->head.request);

    if (opening)
        refuse_all(share, opening, (enum gs_wire_reason)message->reason);
    return true;
}

/* ---- While it is borrowed ----------------------------------------------------------------------- */

bool gs_borrow_recall_came(struct gs_share *share, const struct gs_wire_block_afar *message)
{
    struct gs_export_key key = {.id = message->block_id};
    struct gs_export *export;

    memcpy(key.instance, message->instance, sizeof key.instance);
    export = gs_export_find(share, &key);
    if (!export || !gs_export_is_borrowed(export))
        return true; /* it is on its way back */
    gs_lock_take(&share->lock);
    export->wanted = true; /* who comes to hold it is asked at once */
    gs_export_recall_locked(share, export);
    gs_lock_release(&share->lock);
    return true;
}

static void tell_held(struct gs_share *share, struct gs_client *client,
                      const struct gs_export *export)
{
    union gs_wire_message message;

    tell_holder(share, client);
    gs_wire_start(&message, GS_WIRE_HOLDS_AFAR, 0);
    message.holds_afar.lease = export->far->lease;
    message.holds_afar.holder = client->id;
    gs_agent_tell(share, &message, -1);
}

void gs_borrow_held(struct gs_share *share, struct gs_client *client,
                    const struct gs_export *export)
{
    if (gs_export_is_borrowed(export) && share->store.afar.agent)
        tell_held(share, client, export);
}

/* Out of the table; nobody holds it. */
static void export_drop(struct gs_share *share, struct gs_export *export)
{
    tell_ended(share, export->far->lease);
    gs_lock_take(&share->lock);
    gs_export_told_locked(share, export);
    HASH_DEL(share->exporter.exports, export);
    gs_lock_release(&share->lock);
    free(export->far);
    free(export);
}

void gs_borrow_tick(struct gs_share *share)
{
    struct gs_export *export;

    while ((export = share->store.afar.done)) {
        share->store.afar.done = export->far->next_done;
        export->far->done = false;
        if (export->references == 0 && export->pins == 0)
            export_drop(share, export);
    }
}

void gs_borrow_free(struct gs_share *share)
{
    struct gs_export *export, *next;

    gs_borrow_agent_gone(share);
    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (gs_export_is_borrowed(export))
            export_drop(share, export);
    }
}

/* ---- The agent ---------------------------------------------------------------------------------- */

static void tell_kept(struct gs_share *share, const struct gs_export *export)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_KEPT_AFAR, 0);
    memcpy(message.kept_afar.instance, export->key.instance, GS_INSTANCE_SIZE);
    message.kept_afar.block_id = export->key.id;
    message.kept_afar.lease = export->far->lease;
    gs_agent_tell(share, &message, -1);
}

void gs_borrow_tell_all(struct gs_share *share)
{
    struct gs_export *export, *next;
    struct gs_client *client, *next_client;
    struct gs_reference *reference, *after;
    union gs_wire_message message;

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (gs_export_is_borrowed(export))
            tell_kept(share, export);
    }
    HASH_ITER(hh, share->clients.first, client, next_client)
    {
        HASH_ITER(hh, client->references, reference, after)
        {
            if (gs_export_is_borrowed(reference->export))
                tell_held(share, client, reference->export);
        }
    }
    gs_wire_start(&message, GS_WIRE_MACHINE_AFAR, 0);
    message.machine_afar.state = GS_MACHINE_LISTED;
    gs_agent_tell(share, &message, -1);
}

void gs_borrow_agent_gone(struct gs_share *share)
{
    while (share->store.afar.openings) {
        struct gs_opening *opening = share->store.afar.openings;

        share->store.afar.openings = opening->next;
        refuse_all(share, opening, GS_REFUSED_ALONE);
    }
}
