/*
 * What the user of a process tells it over its socket, by `gpushim set`, `collect`, `sleep` and `wake`:
 *
 *   SET option, value ──► asked (core/process/settings.c) ──► SET_TO what it was, what it is
 *   SLEEP ──► asked (shim/sleep.c) ──► ASLEEP that a thread is at it, or what came of the order
 *   COLLECT ──► what is closed and kept goes back; ends are told; holders are asked ──► COLLECTED
 *
 * Both are answered at once, by the share thread, which waits for nobody: what COLLECT sets going
 * comes back when the GPU work is done that was submitted before. Other users are refused, whoever
 * they are let in for; root is not, whom nothing would keep from doing the same by other means.
 */
#include "core/share/exporter.h"
#include "core/share/opener.h"

#include <errno.h>
#include <string.h>

bool gs_set_came(struct gs_share *share, struct gs_client *client, const struct gs_wire_set *set)
{
    union gs_told told = {.setting = {.name = set->name, .value = set->value}};
    struct gs_setting *setting = &told.setting;
    union gs_wire_message message;

    if (share->options.is_broker)
        return gs_client_fault(client, "it would set an option of a broker");
    if (!gs_client_is_own(client))
        return gs_client_refuse(share, client, set->head.request, GS_REFUSED_USER, 0);
    if (!memchr(set->name, 0, sizeof set->name))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (!share->events.asked ||
        !share->events.asked(share->events.arg, GS_ASKED_TO_SET, 0, &told))
        setting->outcome = GS_SET_UNKNOWN;
    if (setting->outcome == GS_SET_DONE)
        gs_log_line(&share->log, GS_LOG_INFO, "%s is %llu now, and was %llu, as process %d has it",
                    set->name, (unsigned long long)setting->after,
                    (unsigned long long)setting->before, (int)client->pid);
    gs_wire_start(&message, GS_WIRE_SET_TO, set->head.request);
    message.set_to.before = setting->before;
    message.set_to.after = setting->after;
    message.set_to.outcome = setting->outcome;
    return gs_client_send(share, client, &message, -1) == 0;
}

bool gs_sleep_came(struct gs_share *share, struct gs_client *client, const struct gs_wire_sleep *sleep)
{
    union gs_told told = {.sleep = {.verb = sleep->verb,
                                    .order = sleep->order,
                                    .timeout_ns = sleep->timeout_ns,
                                    .directory = sleep->directory,
                                    .discard = sleep->discard}};
    const struct gs_sleep_order *order = &told.sleep;
    union gs_wire_message message;

    if (share->options.is_broker)
        return gs_client_fault(client, "it would have a broker sleep");
    if (!gs_client_is_own(client))
        return gs_client_refuse(share, client, sleep->head.request, GS_REFUSED_USER, 0);
    if (sleep->verb > GS_SLEEP_WAKES || !memchr(sleep->directory, 0, sizeof sleep->directory) ||
        !memchr(sleep->discard, 0, sizeof sleep->discard))
        return gs_client_fault(client, "its message has fields that make no sense");
    gs_wire_start(&message, GS_WIRE_ASLEEP, sleep->head.request);
    if (!share->events.asked || !share->events.asked(share->events.arg, GS_ASKED_TO_SLEEP, 0, &told)) {
        message.asleep.error = ENOTSUP;
        return gs_client_send(share, client, &message, -1) == 0;
    }
    message.asleep.busy = order->busy;
    message.asleep.error = (uint32_t)order->error;
    message.asleep.asleep_ns = order->asleep_ns;
    message.asleep.away = order->away;
    message.asleep.copied = order->copied;
    memcpy(message.asleep.stays, order->stays, sizeof message.asleep.stays);
    memcpy(message.asleep.text, order->text, strnlen(order->text, sizeof message.asleep.text - 1));
    return gs_client_send(share, client, &message, -1) == 0;
}

/* What others have given back is told of, and whoever still holds something is asked for it. */
static void collect_exports(struct gs_share *share, struct gs_wire_collected *collected)
{
    const struct gs_export *export;

    gs_graces_tick(share, gs_now_ns());
    gs_lock_take(&share->lock);
    for (export = gs_export_oldest(share, GS_EXPORT_ENDED); export; export = export->newer) {
        collected->ended++;
        collected->ended_bytes += export->source.size;
    }
    collected->limbo = share->limbo.count;
    collected->limbo_bytes = share->limbo.bytes;
    share->asked.flush_wanted++;
    gs_lock_release(&share->lock);
    gs_share_tell(share);
}

bool gs_collect_came(struct gs_share *share, struct gs_client *client, uint32_t request)
{
    union gs_wire_message message;
    struct gs_wire_collected *collected = &message.collected;

    if (share->options.is_broker)
        return gs_client_fault(client, "it has a broker collect");
    if (!gs_client_is_own(client))
        return gs_client_refuse(share, client, request, GS_REFUSED_USER, 0);
    gs_wire_start(&message, GS_WIRE_COLLECTED, request);
    gs_lock_take(&share->opener.lock);
    gs_cache_collect_locked(share, &collected->given, &collected->given_bytes);
    gs_lock_release(&share->opener.lock);
    collect_exports(share, collected);
    return gs_client_send(share, client, &message, -1) == 0;
}
