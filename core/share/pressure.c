/*
 * Memory pressure: processes of one user that share a GPU. Who finds it full asks the others to
 * give back what they only keep for later.
 *
 *   full process                             process that keeps idle memory
 *   gs_share_ask ── ORDER to trim ────────► share thread ── asked ──► a thread of core/process
 *               ◄── DONE: it is seen to ────                gs_share_purge: what is asked for
 *               ◄── DONE: it takes longer ───            ◄─ gs_share_purge_is_long
 *               ◄── DONE, bytes ────────────             ◄─ gs_share_purged: what was given
 *
 * The share thread calls no driver for that and waits for nobody. What several ask for of one
 * device is given in one go, and all of them are told: so who asks over many connections delays
 * nobody more than over one. How often anything is given is core/process's to say. Other users are
 * refused.
 */
#include "core/share/exporter.h"

#include <string.h>

static bool tell(struct gs_client *client, uint64_t given, uint32_t more)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_DONE, client->plea.request);
    message.done.given = given;
    message.done.more = more;
    return gs_wire_send(client->fd, &message, -1) == 0;
}

bool gs_plea_came(struct gs_share *share, struct gs_client *client,
                  const struct gs_wire_order *order)
{
    if (client->plea.state)
        return gs_client_fault(client, "it asks for memory again before it was answered");
    client->plea = (struct gs_plea){.state = GS_PLEA_DUE,
                                    .request = order->head.request,
                                    .wanted = order->value};
    memcpy(client->plea.uuid, order->uuid, sizeof client->plea.uuid);
    share->asked.pressure.pleas++;
    return tell(client, 0, 1);
}

void gs_plea_gone(struct gs_share *share, struct gs_client *client)
{
    share->asked.pressure.pleas -= client->plea.state != GS_PLEA_NONE;
    client->plea.state = GS_PLEA_NONE;
}

/* To all that are under way. Who does not read waits in vain. */
static void tell_all(struct gs_share *share, uint64_t given, uint32_t more)
{
    struct gs_client *client, *next;

    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->plea.state != GS_PLEA_UNDER_WAY)
            continue;
        if (client->fd >= 0 && !gs_client_is_lost(client))
            tell(client, given, more);
        if (!more)
            gs_plea_gone(share, client);
    }
}

/* What is asked for of the first one's device becomes what core/process is asked for. */
static void gather(struct gs_share *share)
{
    const struct gs_client *first = share->clients.first;
    struct gs_client *client, *next;
    uint64_t wanted = 0;

    while (first->plea.state != GS_PLEA_DUE)
        first = first->hh.next;
    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->plea.state != GS_PLEA_DUE ||
            memcmp(client->plea.uuid, first->plea.uuid, sizeof first->plea.uuid) != 0)
            continue;
        wanted =
            client->plea.wanted < UINT64_MAX - wanted ? wanted + client->plea.wanted : UINT64_MAX;
        client->plea.state = GS_PLEA_UNDER_WAY;
    }
    GS_HOLDING(&share->lock);
    memcpy(share->asked.pressure.uuid, first->plea.uuid, sizeof share->asked.pressure.uuid);
    share->asked.pressure.wanted = wanted;
    share->asked.pressure.given = 0;
    share->asked.pressure.state = GS_ASKED;
}

/* Whether nothing is under way; then *ret_given is what was given last. Else *ret_long, once: it
 * takes longer. */
static bool is_done(struct gs_share *share, uint64_t *ret_given, bool *ret_long)
{
    GS_HOLDING(&share->lock);

    *ret_long = share->asked.pressure.is_long;
    share->asked.pressure.is_long = false;
    if (share->asked.pressure.state == GS_ASKED_DONE)
        share->asked.pressure.state = GS_ASKED_NOTHING;
    *ret_given = share->asked.pressure.given;
    return share->asked.pressure.state == GS_ASKED_NOTHING;
}

void gs_pleas_work(struct gs_share *share)
{
    uint64_t given;
    bool done, is_long;

    if (share->asked.pressure.pleas == 0)
        return;
    done = is_done(share, &given, &is_long);
    if (is_long && !done)
        tell_all(share, 0, 2);
    if (!done)
        return;
    tell_all(share, given, 0);
    while (share->asked.pressure.pleas > 0) {
        gather(share);
        if (share->events.asked && share->events.asked(share->events.arg, GS_ASKED_MEMORY, 0, NULL))
            return;
        gs_share_purged(share, 0);
        is_done(share, &given, &is_long);
        tell_all(share, 0, 0);
    }
}

bool gs_share_purge(struct gs_share *share, unsigned char ret_uuid[16], uint64_t *ret_wanted)
{
    GS_HOLDING(&share->lock);

    if (share->asked.pressure.state != GS_ASKED)
        return false;
    share->asked.pressure.state = GS_ASKED_TAKEN;
    memcpy(ret_uuid, share->asked.pressure.uuid, sizeof share->asked.pressure.uuid);
    *ret_wanted = share->asked.pressure.wanted;
    return true;
}

void gs_share_purge_is_long(struct gs_share *share)
{
    gs_lock_take(&share->lock);
    share->asked.pressure.is_long = true;
    gs_lock_release(&share->lock);
    gs_thread_wake_any(share);
}

void gs_share_purged(struct gs_share *share, uint64_t given)
{
    gs_lock_take(&share->lock);
    share->asked.pressure.given = given;
    share->asked.pressure.state = GS_ASKED_DONE;
    gs_lock_release(&share->lock);
    gs_thread_wake_any(share);
}
