/* Who holds what: answers to QUERY, and the line of log when limbo has grown large. */
#include "core/share/exporter.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STATS_PART 20 /* of the time, one part at most goes into looking through the offers */

/* What one client holds; the offers it holds stay while the share thread is here. */
static void count_holds(const struct gs_client *client, struct gs_wire_report *report)
{
    struct gs_hold *hold, *next;

    HASH_ITER(hh, client->holds, hold, next)
    {
        report->holds++;
        report->hold_bytes += hold->offer->source.size;
        if (!__atomic_load_n(&hold->offer->freed_ns, __ATOMIC_RELAXED))
            continue;
        report->limbo_holds++;
        report->limbo_hold_bytes += hold->offer->source.size;
    }
}

/* Looking through thousands of offers keeps their lock from the program. So whoever asks again and
 * again is told what was found before. */
static const struct gs_share_stats *stats_of(struct gs_share *share, uint64_t now)
{
    if (now >= share->stats_due_ns) {
        gs_share_stats(share, &share->stats);
        share->stats_due_ns = now + STATS_PART * (gs_now() - now);
    }
    return &share->stats;
}

static void describe(const struct gs_client *client, uint64_t now, struct gs_wire_report *report)
{
    report->client_pid = (uint64_t)client->pid;
    report->client_age_ns = now - client->since_ns;
    report->left = client->left;
    memcpy(report->client_name, client->name, sizeof report->client_name);
    count_holds(client, report);
}

bool gs_report(struct gs_share *share, struct gs_client *client, const struct gs_wire_query *query)
{
    union gs_wire_message message;
    struct gs_client *other, *next;
    const struct gs_share_stats *stats;
    uint64_t now = gs_now();
    uint32_t index = 0;

    if (query->zero)
        return gs_client_fault(client, "its message has fields that make no sense");
    stats = stats_of(share, now);
    gs_wire_start(&message, GS_WIRE_REPORT, query->head.request);
    message.report.pid = (uint64_t)getpid();
    message.report.offers = stats->offers;
    message.report.bytes = stats->bytes;
    message.report.limbo = stats->limbo;
    message.report.limbo_bytes = stats->limbo_bytes;
    message.report.limbo_age_ns = stats->limbo_ns ? now - stats->limbo_ns : 0;
    message.report.is_broker = share->options.is_broker;
    message.report.clients = share->client_count;
    strncpy(message.report.name, program_invocation_short_name, sizeof message.report.name - 1);
    HASH_ITER(hh, share->clients, other, next)
    {
        if (index++ == query->index)
            describe(other, now, &message.report);
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

        describe(client, now, &report);
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
