/*
 * Exporter: who holds what, in rows, one a client: for QUERY (`gpushim who`, `ls`), for the log and
 * for what is said of a full GPU (held.c, limbo.c). What a row counts may be that of one device or
 * chunk alone. (What this process has of others: owners.c.)
 */
#include "core/share/exporter.h"

#include <string.h>

#define LOOK_NS 1000 /* for each export, until all are looked through again: many times the work */

/* ---- Rows ----------------------------------------------------------------------------------- */

static bool counts(const struct gs_export *export, const struct gs_which *which)
{
    return (!which->freed || export->freed_ns) &&
           gs_is_of_device(which->uuid, export->source.uuid) &&
           (!which->chunk_id || export->source.chunk_id == which->chunk_id);
}

static void count_locked(const struct gs_reference *reference, uint64_t now, uint64_t bytes,
                         struct gs_wire_report *row)
{
    const struct gs_export *export = reference->export;
    uint64_t freed_age = now > export->freed_ns ? now - export->freed_ns : 0;

    row->references++;
    row->reference_bytes += bytes;
    if (now - reference->since_ns > row->reference_age_ns)
        row->reference_age_ns = now - reference->since_ns;
    if (!export->freed_ns)
        return;
    row->limbo_references++;
    row->limbo_reference_bytes += bytes;
    if (row->limbo_references > 1 && freed_age <= row->limbo_block.freed_ns)
        return;
    row->limbo_block.id = export->key.id;
    row->limbo_block.size = export->source.size;
    row->limbo_block.freed_ns = freed_age;
    row->limbo_block.held_ns = now - reference->since_ns;
}

void gs_report_row_locked(struct gs_share *share, const struct gs_client *client,
                          const struct gs_which *which, uint64_t now, struct gs_wire_report *row)
{
    const uint64_t count = ++share->exporter.counts;
    const struct gs_reference *reference;

    row->client_pid = (uint64_t)client->pid;
    row->client_age_ns = now - client->since_ns;
    row->client_seen = client->is_seen;
    memcpy(row->client_name, client->said.name, sizeof row->client_name);
    for (reference = client->references; reference; reference = reference->hh.next)
        if (counts(reference->export, which))
            count_locked(reference, now, gs_export_bytes_locked(reference->export, count), row);
}

/* ---- All exports ---------------------------------------------------------------------------- */

bool gs_export_is_stale(const struct gs_share *share, const struct gs_export *export)
{
    if (!export->freed_ns || export->references > 0 || export->pins > 0)
        return false;
    return export->opened || !export->in_grace;
}

void gs_share_stats(struct gs_share *share, struct gs_share_stats *ret_stats)
{
    struct gs_share_stats stats = {0};
    struct gs_export *export, *next;
    uint64_t count;

    gs_lock_take(&share->lock);
    count = ++share->exporter.counts;
    HASH_ITER(hh, share->exporter.exports, export, next) {
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

/* ---- Answers -------------------------------------------------------------------------------- */

/* Looking through thousands of exports keeps their lock from the program. So whoever asks again and
 * again is told what was found before. */
static void tell_stats(struct gs_share *share, uint64_t now, struct gs_wire_report *report)
{
    const struct gs_share_stats *stats = &share->clients.stats;

    if (now >= share->clients.stats_due_ns) {
        gs_share_stats(share, &share->clients.stats);
        share->clients.stats_due_ns = gs_now_ns() + LOOK_NS * stats->exports;
    }
    report->exports = stats->exports;
    report->bytes = stats->bytes;
    report->limbo = stats->limbo;
    report->limbo_bytes = stats->limbo_bytes;
    if (stats->limbo_ns && now > stats->limbo_ns) /* or it was freed just now */
        report->limbo_age_ns = now - stats->limbo_ns;
}

/* One of which pieces are to come is not left yet. */
static uint64_t left_locked(const struct gs_share *share, const struct gs_client *client)
{
    const uint64_t coming = client->pull.block_id;

    return client->published -
           (coming && gs_export_find_locked(share, client->instance, coming) != NULL);
}

/* The n-th client; its pidfd, or -1. By that the asker sees which number the client has in the
 * asker's own PID namespace. */
static int tell_client_locked(struct gs_share *share, uint32_t index, uint64_t now,
                              struct gs_wire_report *report)
{
    const struct gs_which all = {.freed = false};
    const struct gs_client *client = share->clients.first;

    for (uint32_t i = 0; client && i < index; i++)
        client = client->hh.next;
    if (!client)
        return -1;
    gs_report_row_locked(share, client, &all, now, report);
    report->client_hung_up = client->fd < 0;
    report->left = left_locked(share, client);
    return gs_fd_is_there(&client->kept_pidfd) ? client->pidfd : -1;
}

bool gs_report(struct gs_share *share, struct gs_client *client, const struct gs_wire_query *query)
{
    union gs_wire_message message;
    struct gs_wire_report *report = &message.report;
    union gs_told told = {.figures = {0}}, sleep = {.sleep = {.verb = GS_SLEEP_STATE}};
    uint64_t now = gs_now_ns();
    int pidfd, error;

    if (!gs_client_is_own(client))
        return gs_client_refuse(share, client, query->head.request, GS_REFUSED_USER, 0);
    gs_wire_start(&message, GS_WIRE_REPORT, query->head.request);
    report->pid = (uint64_t)gs_alive_own_pid();
    report->is_broker = share->options.is_broker;
    report->clients = share->clients.count;
    strncpy(report->name, program_invocation_short_name, sizeof report->name - 1);
    tell_stats(share, now, report);
    report->has_figures =
        share->events.asked &&
        share->events.asked(share->events.arg, GS_ASKED_FIGURES, query->device, &told);
    report->figures = told.figures;
    if (report->has_figures &&
        share->events.asked(share->events.arg, GS_ASKED_TO_SLEEP, 0, &sleep)) {
        report->asleep.ns = sleep.sleep.asleep_ns;
        report->asleep.bytes = sleep.sleep.away;
    }
    gs_owners_tell(share, query->index, &report->opened);
    gs_lock_take(&share->lock);
    pidfd = tell_client_locked(share, query->index, now, report);
    gs_lock_release(&share->lock);
    error = gs_client_send(share, client, &message, pidfd);
    if (error == -ETOOMANYREFS)
        error = gs_client_send(share, client, &message, -1);
    return error == 0;
}
