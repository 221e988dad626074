/* Exporter: who holds what, in answer to QUERY. (What this process has of others: owners.c.) */
#include "core/share/exporter.h"

#include <string.h>

#define STATS_PART 20 /* of the time, one part at most goes into looking through the exports */

static void count_locked(const struct gs_reference *reference, uint64_t now, uint64_t bytes,
                         struct gs_wire_report *report)
{
    const struct gs_export *export = reference->export;
    uint64_t freed_age = now > export->freed_ns ? now - export->freed_ns : 0;

    report->references++;
    report->reference_bytes += bytes;
    if (now - reference->since_ns > report->reference_age_ns)
        report->reference_age_ns = now - reference->since_ns;
    if (!export->freed_ns)
        return;
    report->limbo_references++;
    report->limbo_reference_bytes += bytes;
    if (report->limbo_references > 1 && freed_age <= report->limbo_block_freed_ns)
        return;
    report->limbo_block_id = export->key.id;
    report->limbo_block_size = export->source.size;
    report->limbo_block_freed_ns = freed_age;
    report->limbo_block_held_ns = now - reference->since_ns;
}

bool gs_export_is_stale(const struct gs_share *share, const struct gs_export *export)
{
    if (!export->freed_ns || export->references > 0 || export->pins > 0)
        return false;
    return export->opened || gs_now_ns() - export->freed_ns >= share->options.grace_ns;
}

void gs_share_stats(struct gs_share *share, struct gs_share_stats *ret_stats)
{
    struct gs_share_stats stats = {0};
    struct gs_export *export, *next;
    uint64_t count;

    gs_lock_take(&share->lock);
    count = ++share->exporter.counts;
    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        uint64_t bytes = gs_export_bytes_locked(export, count);

        stats.exports++;
        stats.bytes += bytes;
        stats.references += export->references;
        if (!export->freed_ns || gs_export_is_stale(share, export))
            continue;
        stats.limbo++;
        stats.limbo_bytes += bytes;
        if (!stats.limbo_ns || export->freed_ns < stats.limbo_ns)
            stats.limbo_ns = export->freed_ns;
    }
    gs_lock_release(&share->lock);
    *ret_stats = stats;
}

/* Looking through thousands of exports keeps their lock from the program. So whoever asks again and
 * again is told what was found before. */
static const struct gs_share_stats *stats_of(struct gs_share *share, uint64_t now)
{
    if (now >= share->clients.stats_due_ns) {
        gs_share_stats(share, &share->clients.stats);
        share->clients.stats_due_ns = now + STATS_PART * (gs_now_ns() - now);
    }
    return &share->clients.stats;
}

void gs_report_client_locked(struct gs_share *share, const struct gs_client *client, uint64_t now,
                             struct gs_wire_report *report)
{
    const uint64_t count = ++share->exporter.counts;
    const struct gs_reference *reference;

    report->client_pid = (uint64_t)client->pid;
    report->client_age_ns = now - client->since_ns;
    report->client_seen = client->is_seen;
    report->client_hung_up = client->fd < 0;
    report->left = client->published;
    memcpy(report->client_name, client->said.name, sizeof report->client_name);
    for (reference = client->references; reference; reference = reference->hh.next)
        count_locked(reference, now, gs_export_bytes_locked(reference->export, count), report);
}

bool gs_report(struct gs_share *share, struct gs_client *client, const struct gs_wire_query *query)
{
    union gs_wire_message message;
    union gs_told told = {.figures = {0}};
    struct gs_client *other, *next;
    const struct gs_share_stats *stats;
    uint64_t now = gs_now_ns();
    uint32_t index = 0;
    int pidfd = -1, error;

    stats = stats_of(share, now);
    gs_wire_start(&message, GS_WIRE_REPORT, query->head.request);
    message.report.pid = (uint64_t)gs_alive_own_pid();
    message.report.exports = stats->exports;
    message.report.bytes = stats->bytes;
    message.report.limbo = stats->limbo;
    message.report.limbo_bytes = stats->limbo_bytes;
    if (stats->limbo_ns && now > stats->limbo_ns) /* or it was freed just now */
        message.report.limbo_age_ns = now - stats->limbo_ns;
    message.report.is_broker = share->options.is_broker;
    message.report.clients = share->clients.count;
    strncpy(message.report.name, program_invocation_short_name, sizeof message.report.name - 1);
    message.report.has_figures =
        !query->farewell && share->events.asked &&
        share->events.asked(share->events.arg, GS_ASKED_FIGURES, query->device, &told);
    message.report.figures = told.figures;
    if (query->farewell)
        gs_farewell_tell(share, client, query, &message.report);
    HASH_ITER(hh, share->clients.first, other, next)
    {
        if (index++ != query->index || query->farewell)
            continue;
        gs_lock_take(&share->lock);
        gs_report_client_locked(share, other, now, &message.report);
        gs_lock_release(&share->lock);
        if (gs_fd_is_there(&other->kept_pidfd))
            pidfd = other->pidfd; /* who asks sees by it what number the process has for him */
    }
    if (!query->farewell)
        gs_owners_tell(share, query->index, &message.report.opened);
    error = gs_client_send(share, client, &message, pidfd);
    if (error == -ETOOMANYREFS)
        error = gs_client_send(share, client, &message, -1);
    return error == 0;
}
