/* Who holds what: answers to QUERY, and the line of log when limbo has grown large. */
#include "core/share/exporter.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What one client holds; the offers it holds stay while the share thread is here. */
static void count_holds(struct gs_share *share, const struct gs_client *client,
                        struct gs_wire_report *report)
{
    struct gs_hold *hold, *next;

    gs_lock_take(&share->lock);
    HASH_ITER(hh, client->holds, hold, next)
    {
        report->holds++;
        report->hold_bytes += hold->offer->source.size;
        if (!hold->offer->freed_ns)
            continue;
        report->limbo_holds++;
        report->limbo_hold_bytes += hold->offer->source.size;
    }
    gs_lock_release(&share->lock);
}

static void describe(struct gs_share *share, const struct gs_client *client, uint64_t now,
                     struct gs_wire_report *report)
{
    report->client_pid = (uint64_t)client->pid;
    report->client_age_ns = now - client->since_ns;
    report->left = client->left;
    memcpy(report->client_name, client->name, sizeof report->client_name);
    count_holds(share, client, report);
}

bool gs_report(struct gs_share *share, struct gs_client *client, const struct gs_wire_query *query)
{
    union gs_wire_message message;
    struct gs_client *other, *next;
    struct gs_share_stats stats;
    uint64_t now = gs_now();
    uint32_t index = 0;

    if (query->zero)
        return gs_client_fault(client, "its message has fields that make no sense");
    gs_share_stats(share, &stats);
    gs_wire_start(&message, GS_WIRE_REPORT, query->head.request);
    message.report.pid = (uint64_t)getpid();
    message.report.offers = stats.offers;
    message.report.bytes = stats.bytes;
    message.report.limbo = stats.limbo;
    message.report.limbo_bytes = stats.limbo_bytes;
    message.report.limbo_age_ns = stats.limbo_ns ? now - stats.limbo_ns : 0;
    message.report.is_broker = share->options.is_broker;
    message.report.clients = share->client_count;
    strncpy(message.report.name, program_invocation_short_name, sizeof message.report.name - 1);
    HASH_ITER(hh, share->clients, other, next)
    {
        if (index++ == query->index)
            describe(share, other, now, &message.report);
    }
    return gs_wire_send(client->fd, &message, -1) == 0;
}

void gs_limbo_check(struct gs_share *share)
{
    struct gs_client *client, *next;
    struct gs_share_stats stats;
    struct gs_wire_report most = {0};
    uint64_t now = gs_now();

    gs_share_stats(share, &stats);
    if (stats.limbo_bytes < share->options.limbo_warning) {
        if (stats.limbo_bytes < share->options.limbo_warning / 2)
            share->limbo_said = false;
        return;
    }
    if (share->limbo_said)
        return;
    share->limbo_said = true;
    HASH_ITER(hh, share->clients, client, next)
    {
        struct gs_wire_report report = {0};

        describe(share, client, now, &report);
        if (report.limbo_hold_bytes > most.limbo_hold_bytes)
            most = report;
    }
    gs_log_line(&share->log, GS_LOG_WARNING,
                "%llu MiB are freed and still held by other processes (%llu blocks, the oldest for "
                "%llu s); most by process %llu (%s), connected for %llu s: %llu blocks, %llu MiB",
                (unsigned long long)stats.limbo_bytes >> 20, (unsigned long long)stats.limbo,
                (unsigned long long)((now - stats.limbo_ns) / GS_NS_PER_S),
                (unsigned long long)most.client_pid, most.client_name,
                (unsigned long long)(most.client_age_ns / GS_NS_PER_S),
                (unsigned long long)most.limbo_holds,
                (unsigned long long)most.limbo_hold_bytes >> 20);
}
