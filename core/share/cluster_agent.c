/*
 * Broker: its agent, by whom it speaks to other machines (core/share/cluster.h): it comes and goes,
 * and so do its messages. It is one client.
 */
#include "core/share/cluster.h"

#include <stdlib.h>

#define AGENT_BUFFER (64 << 10)

/* ---- Coming and going ------------------------------------------------------------------------ */

/* It is told what of other machines is open here; that this was all; and what of here they may
 * open. */
static void tell_all(struct gs_share *share)
{
    union gs_wire_message message;

    gs_cluster_import_tell_all(share);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    message.hello.agent = 1;
    gs_agent_tell(share, &message, -1);
    gs_cluster_export_tell_all(share);
}

bool gs_agent_came(struct gs_share *share, struct gs_client *client,
                   const struct gs_wire_hello *hello)
{
    if (!share->options.is_broker || hello->agent > 1 || hello->zero)
        return gs_client_fault(client, "it takes this process for a broker");
    if (!gs_client_is_own(client))
        return gs_client_refuse(share, client, hello->head.request, GS_REFUSED_USER, 0);
    if (gs_agent_of(share))
        return gs_client_refuse(share, client, hello->head.request, GS_REFUSED_AGENT, 0);
    client->said.is_agent = true;
    share->store.cluster.agent = client->id;
    gs_conn_limit(client->fd, AGENT_BUFFER);
    gs_log_line(&share->log, GS_LOG_INFO, "process %d (%.15s) is the agent of this machine",
                (int)client->pid, client->said.name);
    tell_all(share);
    return true;
}

void gs_cluster_client_gone(struct gs_share *share, struct gs_client *client)
{
    if (!client->said.is_agent) {
        gs_cluster_import_client_gone(share, client);
        return;
    }
    share->store.cluster.agent = 0;
    gs_agent_forget(share);
    gs_log_line(&share->log, GS_LOG_WARNING,
                "the agent of this machine has ended: what other machines have open stays "
                "theirs, and nothing more is opened on other machines until there is another");
    gs_cluster_import_agent_gone(share);
    gs_cluster_export_agent_gone(share);
}

uint64_t gs_cluster_tick(struct gs_share *share, uint64_t now)
{
    gs_cluster_import_tick(share);
    return gs_cluster_export_tick(share, now);
}

/* ---- gpushim cluster ------------------------------------------------------------------------- */

/* What the agent says of machines, and this broker of the rest. */
static bool tell(struct gs_share *share, struct gs_client *client, union gs_wire_message *message)
{
    const struct gs_client *agent = gs_agent_of(share);
    struct gs_wire_machine *told = &message->report.machine;
    const struct gs_export *export, *next;

    told->has_agent = agent != NULL;
    told->agent_pid = agent ? (uint32_t)agent->pid : 0;
    told->shared = told->opened = told->opened_bytes = 0;
    HASH_ITER(hh, share->exporter.exports, export, next) {
        told->shared += export->far && !gs_export_is_imported(export);
        told->opened += gs_export_is_imported(export);
        told->opened_bytes += gs_export_is_imported(export) ? export->source.size : 0;
    }
    return gs_client_send(share, client, message, -1) == 0;
}

bool gs_machines_asked(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_query *query)
{
    union gs_wire_message message = {.query = *query};

    if (!share->options.is_broker || !client->greeted ||
        !memchr(query->name, 0, sizeof query->name))
        return gs_client_fault(client, "it asks what is not its to ask");
    if (!gs_client_is_own(client))
        return gs_client_refuse(share, client, query->head.request, GS_REFUSED_USER, 0);
    message.query.number = client->id;
    if (gs_agent_tell(share, &message, -1))
        return true;
    if (query->name[0])
        return gs_client_refuse(share, client, query->head.request, GS_REFUSED_ALONE, 0);
    gs_wire_start(&message, GS_WIRE_REPORT, query->head.request);
    return tell(share, client, &message);
}

static void told_came(struct gs_share *share, const struct gs_wire_report *report)
{
    union gs_wire_message message = {.report = *report};
    struct gs_client *client;

    HASH_FIND(hh, share->clients.first, &report->machine.client, sizeof report->machine.client,
              client);
    if (client && client->fd >= 0 && !gs_client_is_lost(client))
        tell(share, client, &message); /* who does not read it ends its wait by itself */
}

/* ---- Messages -------------------------------------------------------------------------------- */

bool gs_agent_serve(struct gs_share *share, struct gs_client *client,
                    const union gs_wire_message *message)
{
    switch (message->head.type) {
    case GS_WIRE_OPEN:
        gs_cluster_export_open_came(share, &message->open);
        return true;
    case GS_WIRE_CLOSE:
        gs_cluster_export_close_came(share, &message->close);
        return true;
    case GS_WIRE_GRANT:
        gs_cluster_import_grant_came(share, &message->grant);
        return true;
    case GS_WIRE_REFUSE:
        gs_cluster_import_refused_came(share, &message->refuse);
        return true;
    case GS_WIRE_RECALL:
        gs_cluster_import_recall_came(share, &message->close);
        return true;
    case GS_WIRE_QUERY:
        return gs_machines_asked(share, client, &message->query);
    case GS_WIRE_REPORT:
        told_came(share, &message->report);
        return true;
    default: /* it has a way in the table, and nothing takes it */
        return gs_client_fault(client, "it sent a message that is not its to send");
    }
}
