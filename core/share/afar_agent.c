/*
 * Broker: its agent, by whom it speaks to other machines (core/share/afar.h): it comes and goes, and so do
 * its messages. It is one client.
 */
#include "core/share/afar.h"

#include <stdlib.h>
#include <string.h>

#define AGENT_BUFFER (64 << 10)

/* ---- Coming and going ------------------------------------------------------------------------ */

static bool on_agent(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_agent *message)
{
    if (!share->options.is_broker || !client->greeted || client->said.is_agent)
        return gs_client_fault(client, "it takes this process for a broker, or did not greet first");
    if (!gs_user_is_own(client->uid) && client->uid != 0)
        return gs_client_refuse(share, client, message->head.request, GS_REFUSED_USER, 0);
    if (message->zero || message->knows > 1 || gs_machine_is_nobody(message->machine))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (gs_agent_of(share))
        return gs_client_refuse(share, client, message->head.request, GS_REFUSED_BUSY, 0);
    client->said.is_agent = true;
    share->store.afar.agent = client->id;
    share->store.afar.knows = message->knows != 0;
    gs_conn_limit(client->fd, AGENT_BUFFER);
    gs_log_line(&share->log, GS_LOG_INFO, "process %d (%.15s) is the agent of this machine",
                (int)client->pid, client->said.name);
    gs_borrow_tell_all(share);
    gs_lend_tell_all(share);
    return true;
}

void gs_afar_client_gone(struct gs_share *share, struct gs_client *client)
{
    union gs_wire_message message;

    if (client->said.is_agent) {
        share->store.afar.agent = 0;
        gs_agent_forget(share);
        gs_log_line(&share->log, GS_LOG_WARNING,
                    "the agent of this machine has ended: what other machines have open stays "
                    "theirs, and nothing more is opened afar until there is another");
        gs_borrow_agent_gone(share);
        gs_lend_agent_gone(share);
        gs_machines_agent_gone(share);
        return;
    }
    gs_borrow_tick(share); /* what it had was told before */
    if (client->said.told_agent && client->said.told_agent == share->store.afar.agent) {
        gs_wire_start(&message, GS_WIRE_HOLDER_AFAR, 0);
        message.holder_afar.holder = client->id;
        message.holder_afar.pid = (uint64_t)client->pid;
        message.holder_afar.gone = 1;
        gs_agent_tell(share, &message, -1);
    }
}

uint64_t gs_afar_tick(struct gs_share *share, uint64_t now)
{
    gs_borrow_tick(share);
    return gs_lend_tick(share, now);
}

void gs_afar_free(struct gs_share *share)
{
    gs_agent_forget(share);
    gs_borrow_free(share);
    gs_machines_free(share);
}

/* ---- Messages -------------------------------------------------------------------------------- */

static bool on_ended(struct gs_share *share, const struct gs_wire_ended_afar *message)
{
    struct gs_lease_key key = {.lease = message->lease};
    struct gs_lease *lease;

    memcpy(key.machine, message->machine, sizeof key.machine);
    lease = gs_machine_is_nobody(key.machine) ? NULL : gs_lease_find(share, &key);
    if (lease)
        gs_lease_end(share, lease);
    return true;
}

static bool agent_serve(struct gs_share *share, struct gs_client *client,
                        const union gs_wire_message *message)
{
    switch (message->head.type) {
    case GS_WIRE_TAKE_AFAR:
        return gs_lend_take_came(share, client, &message->take_afar);
    case GS_WIRE_ENDED_AFAR:
        return on_ended(share, &message->ended_afar);
    case GS_WIRE_MACHINE_AFAR:
        return gs_machine_came(share, &message->machine_afar) ||
               gs_client_fault(client, "its message has fields that make no sense");
    case GS_WIRE_KEPT_AFAR:
        return gs_kept_came(share, &message->kept_afar) ||
               gs_client_fault(client, "its message has fields that make no sense");
    case GS_WIRE_OPENED_AFAR:
        return gs_borrow_opened_came(share, &message->opened_afar);
    case GS_WIRE_REFUSE:
        return gs_borrow_refused_came(share, &message->refuse);
    case GS_WIRE_RECALL_AFAR:
        return gs_borrow_recall_came(share, &message->block_afar);
    default:
        return gs_client_fault(client, "it sent a message that is not an agent's to send");
    }
}

bool gs_afar_serve(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message)
{
    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, "it sent a message that is not an opener's to send");
    switch (message->head.type) {
    case GS_WIRE_AGENT:
        return on_agent(share, client, &message->agent);
    case GS_WIRE_FORGET_AFAR:
        return gs_forget_came(share, client, &message->forget_afar);
    case GS_WIRE_ASK_AFAR:
        return gs_ask_afar_came(share, client, &message->ask_afar);
    default:
        return client->said.is_agent
                   ? agent_serve(share, client, message)
                   : gs_client_fault(client, "it sent a message that is not an opener's to send");
    }
}
