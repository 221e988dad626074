/*
 * Broker: blocks of other machines that processes of here open (core/share/cluster.h).
 *
 *   OPEN ─► the agent is asked, once for all who wait ─► an export without an owner, borrowed
 *                                                 └─► REFUSE, to all of them
 *
 * From then on it is served like what was left here; with its last reference it goes. Only
 * processes of the broker's own user are served so: that user could take such memory from any of
 * them.
 */
#include "core/share/cluster.h"
#include "core/share/instance.h"

#include <stdlib.h>

static void tell_holder(struct gs_share *share, struct gs_client *client, bool gone)
{
    union gs_wire_message message;

    if ((client->said.told_agent == share->store.cluster.agent) != gone)
        return;
    client->said.told_agent = share->store.cluster.agent;
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    message.hello.holder = client->id;
    message.hello.pid = (uint64_t)client->pid;
    message.hello.holds = !gone;
    gs_agent_tell(share, &message,
                  !gone && gs_fd_is_there(&client->kept_pidfd) ? client->pidfd : -1);
}

enum gs_wire_reason gs_cluster_import_refusal(const struct gs_share *share,
                                              const struct gs_client *client)
{
    if (client->references) /* an agent was told of it with the first */
        return 0;
    if (!share->store.cluster.agent)
        return GS_REFUSED_ALONE;
    return share->store.cluster.line ? GS_REFUSED_EARLY : 0; /* it comes again */
}

/* ---- Asking ---------------------------------------------------------------------------------- */

/* A client that waits for the answer with this number, behind the one before; NULL: there is
 * none. */
static struct gs_client *who_waits(struct gs_share *share, struct gs_client *before,
                                   uint32_t number)
{
    struct gs_client *client = before ? before->hh.next : share->clients.first;

    while (client && client->asks.number != number)
        client = client->hh.next;
    return client;
}

static const struct gs_asks *asked_for(struct gs_share *share, const unsigned char *ipc_handle)
{
    const struct gs_client *client;

    for (client = share->clients.first; client; client = client->hh.next)
        if (client->asks.number &&
            gs_bytes_equal(client->asks.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE))
            return &client->asks;
    return NULL;
}

static void tell_ended(struct gs_share *share, const unsigned char *ipc_handle, uint64_t lease)
{
    union gs_wire_message message;
    struct gs_ipc_handle read;

    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    message.close.lease = lease;
    if (gs_ipc_handle_read(ipc_handle, &read) == GS_OK) {
        memcpy(message.close.instance, read.instance, GS_INSTANCE_SIZE);
        message.close.block_id = read.block_id;
    }
    gs_agent_tell(share, &message, -1);
}

/* The client waits no more; if nobody else does the agent need not answer, and what it has by now
 * goes back. */
static void give_up(struct gs_share *share, struct gs_client *client)
{
    const struct gs_asks asks = client->asks;

    client->asks.number = 0;
    if (asks.number && !who_waits(share, NULL, asks.number))
        tell_ended(share, asks.ipc_handle, asks.lease);
}

static bool ask(struct gs_share *share, struct gs_client *client, struct gs_asks *asks)
{
    union gs_wire_message message;

    if (!gs_random(&asks->lease, sizeof asks->lease) || !asks->lease)
        return false;
    asks->number = ++share->store.cluster.last_request;
    gs_wire_start(&message, GS_WIRE_OPEN, asks->number);
    memcpy(message.open.ipc_handle, asks->ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.uid = (uint32_t)client->uid;
    message.open.gid = (uint32_t)client->gid;
    message.open.lease = asks->lease;
    gs_agent_tell(share, &message, -1); /* where it ends, that is told to all who wait */
    return true;
}

bool gs_cluster_import_open(struct gs_share *share, struct gs_client *client,
                            const struct gs_wire_open *open)
{
    const struct gs_asks *same = asked_for(share, open->ipc_handle);
    struct gs_asks asks = same ? *same : (struct gs_asks){0};

    if (!gs_user_is_own(client->uid))
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_HANDLE, 0);
    if (!share->store.cluster.agent)
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_ALONE, 0);
    memcpy(asks.ipc_handle, open->ipc_handle, GS_IPC_HANDLE_SIZE);
    tell_holder(share, client, false);
    if (!same && !ask(share, client, &asks))
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_MEMORY, 0);
    asks.request = open->head.request;
    asks.before = client->over.before;
    if (client->asks.number != asks.number) /* it waits for that no more */
        give_up(share, client);
    client->asks = asks;
    return true;
}

/* ---- Answers --------------------------------------------------------------------------------- */

static void refuse_all(struct gs_share *share, uint32_t number, enum gs_wire_reason reason)
{
    struct gs_client *client = NULL;

    while ((client = who_waits(share, client, number))) {
        client->asks.number = 0;
        if (client->over.before == client->asks.before && client->fd >= 0 &&
            !gs_client_is_lost(client))
            gs_client_refuse(share, client, client->asks.request, reason, 0);
    }
}

/* Entered where all are; NULL: no memory, or there is one. */
static struct gs_export *export_new(struct gs_share *share, const struct gs_asks *asks,
                                    const struct gs_ipc_handle *read,
                                    const struct gs_wire_grant *grant)
{
    struct gs_export *export = calloc(1, sizeof *export);

    if (!export || !(export->far = calloc(1, sizeof *export->far))) {
        free(export);
        return NULL;
    }
    export->key = gs_ipc_key(read->instance, read->block_id);
    memcpy(export->ipc_handle, asks->ipc_handle, GS_IPC_HANDLE_SIZE);
    export->source = (struct gs_share_source){.chunk_id = read->chunk_id,
                                              .chunk_size = grant->chunk_size,
                                              .block_id = read->block_id,
                                              .offset = grant->offset,
                                              .size = read->size,
                                              .read_only = grant->read_only != 0};
    memcpy(export->source.uuid, grant->uuid, sizeof export->source.uuid);
    memcpy(export->far->fabric, grant->fabric, GS_FABRIC_SIZE);
    export->far->lease = asks->lease;
    if (gs_export_enter(share, export))
        return export;
    free(export->far);
    free(export);
    return NULL;
}

/* To all who wait for it still. */
static void grant_all(struct gs_share *share, uint32_t number)
{
    struct gs_client *client = NULL;

    while ((client = who_waits(share, client, number))) {
        union gs_wire_message open;

        client->asks.number = 0;
        if (client->over.before != client->asks.before || client->fd < 0 ||
            gs_client_is_lost(client))
            continue;
        gs_wire_start(&open, GS_WIRE_OPEN, client->asks.request);
        open.open.cluster = 1;
        if (!gs_client_grant(share, client, gs_export_pin(share, client->asks.ipc_handle),
                             &open.open))
            gs_log_line(&share->log, GS_LOG_DEBUG, "importer %d does not read its answer",
                        (int)client->pid); /* what it says next, or its hang-up, ends it */
    }
}

void gs_cluster_import_grant_came(struct gs_share *share, const struct gs_wire_grant *grant)
{
    const struct gs_client *client =
        grant->head.request ? who_waits(share, NULL, grant->head.request) : NULL;
    struct gs_export *export = NULL;
    struct gs_ipc_handle read;
    struct gs_asks asks;

    if (!client) /* and that it is over was said */
        return;
    asks = client->asks;
    if (grant->far != 1 || gs_ipc_handle_read(asks.ipc_handle, &read) != GS_OK ||
        !gs_broker_is_sound(grant->chunk_size, grant->offset, read.size, grant->read_only)) {
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "the agent gave an answer that makes no sense; refused");
    } else if (!gs_export_find(share, read.instance, read.block_id)) {
        export = export_new(share, &asks, &read, grant);
    }
    if (!export) {
        tell_ended(share, asks.ipc_handle, asks.lease);
        refuse_all(share, grant->head.request, GS_REFUSED_MEMORY);
        return;
    }
    grant_all(share, grant->head.request);
    gs_cluster_import_unheld(share, export); /* where nobody took it */
}

void gs_cluster_import_refused_came(struct gs_share *share, const struct gs_wire_refuse *message)
{
    if (message->head.request)
        refuse_all(share, message->head.request, (enum gs_wire_reason)message->reason);
}

/* ---- While it is borrowed -------------------------------------------------------------------- */

void gs_cluster_import_recall_came(struct gs_share *share, const struct gs_wire_close *recall)
{
    struct gs_export *export = gs_export_of(share, recall);

    if (!export || !gs_export_is_imported(export))
        return; /* it is on its way back */
    GS_HOLDING(&share->lock);
    export->wanted = true; /* who comes to hold it is asked at once */
    gs_export_recall_locked(share, export);
}

void gs_cluster_import_held(struct gs_share *share, struct gs_client *client,
                            const struct gs_export *export)
{
    if (gs_export_is_imported(export))
        tell_holder(share, client, false);
}

void gs_cluster_import_tick(struct gs_share *share)
{
    struct gs_export *export;

    while ((export = share->store.cluster.done)) {
        LL_DELETE2(share->store.cluster.done, export, far->next_done);
        export->far->done = false;
        if (export->references == 0 && export->pins == 0)
            gs_broker_export_drop(share, export);
    }
}

void gs_cluster_import_client_gone(struct gs_share *share, struct gs_client *client)
{
    give_up(share, client);
    gs_cluster_import_tick(share); /* what it had is told before */
    if (client->said.told_agent)
        tell_holder(share, client, true);
}

/* ---- The agent ------------------------------------------------------------------------------- */

void gs_cluster_import_tell_all(struct gs_share *share)
{
    struct gs_export *export, *next;
    struct gs_client *client, *next_client;
    struct gs_reference *reference, *after;

    HASH_ITER(hh, share->clients.first, client, next_client) {
        HASH_ITER(hh, client->references, reference, after)
            gs_cluster_import_held(share, client, reference->export);
    }
    HASH_ITER(hh, share->exporter.exports, export, next) {
        if (gs_export_is_imported(export))
            gs_agent_tell_of(share, GS_WIRE_RESUME, export);
    }
}

void gs_cluster_import_agent_gone(struct gs_share *share)
{
    struct gs_client *client, *next;

    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->asks.number)
            refuse_all(share, client->asks.number, GS_REFUSED_ALONE);
    }
}
