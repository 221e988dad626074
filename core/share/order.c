/*
 * What the user of a process tells it over its socket, by `gpushim set`, `sleep` and `wake`:
 *
 *   ORDER to set option, value ──► asked (core/process/settings.c) ──► DONE: what it was, what it is
 *   ORDER to sleep ──► asked (shim/sleep.c) ──► DONE: a thread is at it, or what came of the order
 *
 * All are answered at once, by the share thread, which waits for nobody. Other users are refused,
 * whoever they are let in for; root is not, whom nothing would keep from doing the same by other
 * means. (To trim takes its time, and is for processes of one user alone: pressure.c; so is the end
 * of a name: names.c.)
 */
#include "core/share/exporter.h"
#include "core/share/importer.h"

#include <errno.h>
#include <string.h>

static bool ask(struct gs_share *share, enum gs_question question, union gs_told *told)
{
    return share->events.asked && share->events.asked(share->events.arg, question, 0, told);
}

static void set(struct gs_share *share, const struct gs_client *client,
                const struct gs_wire_order *order, struct gs_wire_done *done)
{
    union gs_told told = {.setting = {.name = order->name, .value = order->value}};
    struct gs_setting *setting = &told.setting;

    if (!ask(share, GS_ASKED_TO_SET, &told))
        setting->outcome = GS_SET_UNKNOWN;
    if (setting->outcome == GS_SET_DONE)
        gs_log_line(&share->log, GS_LOG_INFO, "%s is %llu now, and was %llu, as process %d has it",
                    setting->name, (unsigned long long)setting->after,
                    (unsigned long long)setting->before, (int)client->pid);
    done->set.before = setting->before;
    done->set.after = setting->after;
    done->outcome = setting->outcome;
}

static void put_to_sleep(struct gs_share *share, const struct gs_wire_order *order,
                         struct gs_wire_done *done)
{
    union gs_told told = {.sleep = {.verb = order->verb,
                                    .order = order->number,
                                    .timeout_ns = order->value,
                                    .directory = order->name,
                                    .discard = order->discard}};
    struct gs_sleep_order *sleep = &told.sleep;

    if (!ask(share, GS_ASKED_TO_SLEEP, &told))
        sleep->error = ENOTSUP;
    done->more = sleep->busy;
    done->outcome = (uint32_t)sleep->error;
    done->sleep.ns = sleep->asleep_ns;
    done->sleep.away = sleep->away;
    done->sleep.copied = sleep->copied;
    memcpy(done->sleep.stays, sleep->stays, sizeof done->sleep.stays);
    memcpy(done->text, sleep->text, strnlen(sleep->text, sizeof done->text - 1));
}

static bool may_order(const struct gs_share *share, const struct gs_client *client, uint32_t kind)
{
    if (kind == GS_ORDER_UNNAME && share->options.is_broker)
        return true; /* it has names of all users: each ends their own */
    return kind == GS_ORDER_TRIM || kind == GS_ORDER_UNNAME ? gs_user_is_own(client->uid)
                                                            : gs_client_is_own(client);
}

bool gs_order_came(struct gs_share *share, struct gs_client *client,
                   const struct gs_wire_order *order)
{
    union gs_wire_message message;

    if (share->options.is_broker && order->kind != GS_ORDER_UNNAME)
        return gs_client_fault(client, "it gives an order to a broker");
    if (!may_order(share, client, order->kind))
        return gs_client_refuse(share, client, order->head.request, GS_REFUSED_USER, 0);
    if (order->kind >= GS_ORDERS || order->verb >= GS_SLEEP_MAY_IDLE ||
        !memchr(order->name, 0, sizeof order->name) ||
        !memchr(order->discard, 0, sizeof order->discard))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (order->kind == GS_ORDER_TRIM)
        return gs_plea_came(share, client, order);
    if (order->kind == GS_ORDER_UNNAME)
        return gs_unname_came(share, client, order);
    client->due_ns = gs_now_ns() + GS_IDLE_NS; /* it asks again what came of it */
    gs_wire_start(&message, GS_WIRE_DONE, order->head.request);
    if (order->kind == GS_ORDER_SET)
        set(share, client, order, &message.done);
    else
        put_to_sleep(share, order, &message.done);
    return gs_client_send(share, client, &message, -1) == 0;
}
