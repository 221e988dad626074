/*
 * Exporter: blocks that the program has freed and other processes still hold. They are memory that
 * no allocation gets, so a line of log tells of them when they have become too many, too large or
 * too old for the options' bounds, and again only after they were half that. What only the share
 * thread is at is waited for as they are, but nothing to speak of.
 */
#include "core/share/exporter.h"

/* What was only kept for the next open is given back within milliseconds of its free: that is
 * nothing to speak of, so one looks this long after. */
#define LOOK_NS (100 * GS_NS_PER_MS)

static bool has_bound(const struct gs_share_options *options)
{
    return options->limbo_warning || options->limbo_warning_blocks || options->limbo_warning_ns;
}

/* Called with the lock held. The first of those that others hold. */
static const struct gs_export *oldest_held_locked(const struct gs_share *share)
{
    const struct gs_export *export = gs_export_oldest(share, GS_EXPORT_LIMBO);

    while (export && !export->limbo_held)
        export = export->newer;
    return export;
}

/* Called with the lock held. Whether a bound, divided by `part`, is met. */
static bool is_much_locked(const struct gs_share *share, uint64_t now, uint64_t part)
{
    const struct gs_share_options *options = &share->options;
    const struct gs_export *oldest = oldest_held_locked(share);

    if (!oldest)
        return false;
    return (options->limbo_warning && share->limbo.bytes >= options->limbo_warning / part) ||
           (options->limbo_warning_blocks &&
            share->limbo.count >= (options->limbo_warning_blocks + part - 1) / part) ||
           (options->limbo_warning_ns && now > oldest->freed_ns &&
            now - oldest->freed_ns >= options->limbo_warning_ns / part);
}

/* Called with the lock held: look at `due` at the latest. Others than the share thread wake it. */
static void look_by_locked(struct gs_share *share, uint64_t due)
{
    if (due >= share->limbo.due_ns)
        return;
    share->limbo.due_ns = due;
    gs_thread_wake(share);
}

/* A strip's bytes are kept by the first of its exports that is, until the last. */
void gs_limbo_count_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_share_strip *strip = export->source.strip;
    bool held = export->references > 0, has_bytes, again;

    if (held && export->pins == 0)
        gs_cond_wake_all(&share->asked.given_back); /* the share thread is not at it any more */
    if (held == export->limbo_held)
        return;
    export->limbo_held = held;
    has_bytes = !strip || (held ? strip->limbo++ : --strip->limbo) == 0;
    share->limbo.count = held ? share->limbo.count + 1 : share->limbo.count - 1;
    if (has_bytes && held)
        share->limbo.bytes += export->source.size;
    else if (has_bytes)
        share->limbo.bytes -= export->source.size;
    again = !held && share->limbo.said && !is_much_locked(share, gs_now_ns(), 2);
    share->limbo.said &= !again;
    if (again || (held && !share->limbo.said && has_bound(&share->options)))
        look_by_locked(share, gs_now_ns() + LOOK_NS);
}

uint64_t gs_share_freed_held(struct gs_share *share, const unsigned char uuid[16])
{
    const struct gs_export *export;
    uint64_t held = 0;
    GS_HOLDING(&share->lock);

    for (export = gs_export_oldest(share, GS_EXPORT_LIMBO); export; export = export->newer)
        if (export->limbo_held && gs_is_of_device(uuid, export->source.uuid))
            held += export->source.size;
    return held;
}

bool gs_limbo_is_full(struct gs_share *share)
{
    GS_HOLDING(&share->lock);

    return share->options.limbo_limit && share->limbo.bytes >= share->options.limbo_limit;
}

/* Who holds most of it, and who has held what was freed first. */
static void find_holders(struct gs_share *share, uint64_t now, struct gs_wire_report *ret_most,
                         struct gs_wire_report *ret_first)
{
    const struct gs_client *client;
    const struct gs_which all = {.freed = false};

    *ret_most = *ret_first = (struct gs_wire_report){0};
    gs_lock_take(&share->lock);
    for (client = share->clients.first; client; client = client->hh.next) {
        struct gs_wire_report report = {0};

        gs_report_row_locked(share, client, &all, now, &report);
        if (report.limbo_reference_bytes > ret_most->limbo_reference_bytes)
            *ret_most = report;
        if (report.limbo_references &&
            (!ret_first->limbo_references ||
             report.limbo_block.freed_ns > ret_first->limbo_block.freed_ns))
            *ret_first = report;
    }
    gs_lock_release(&share->lock);
}

static void say(struct gs_share *share, uint64_t now, uint64_t count, uint64_t bytes)
{
    struct gs_wire_report most, first;

    find_holders(share, now, &most, &first);
    if (!first.limbo_references) {
        gs_log_line(
            &share->log, GS_LOG_WARNING,
            "%llu blocks, %llu KiB, are freed and still held by other machines, which gpushim cluster "
            "names, or by processes that have just ended",
            (unsigned long long)count, (unsigned long long)(bytes + 1023) >> 10);
        return;
    }
    gs_log_line(
        &share->log, GS_LOG_WARNING,
        "%llu blocks, %llu KiB, are freed and still held by other processes; most by process "
        "%llu (%s): %llu blocks, %llu KiB; the oldest, block %llu of %llu KiB, was freed "
        "%llu s ago, process %llu (%s) has held it for %llu s",
        (unsigned long long)count, (unsigned long long)(bytes + 1023) >> 10,
        (unsigned long long)most.client_pid, most.client_name,
        (unsigned long long)most.limbo_references,
        (unsigned long long)(most.limbo_reference_bytes + 1023) >> 10,
        (unsigned long long)first.limbo_block.id,
        (unsigned long long)(first.limbo_block.size + 1023) >> 10,
        (unsigned long long)(first.limbo_block.freed_ns / GS_NS_PER_S),
        (unsigned long long)first.client_pid, first.client_name,
        (unsigned long long)(first.limbo_block.held_ns / GS_NS_PER_S));
}

uint64_t gs_limbo_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due, age = share->options.limbo_warning_ns, count, bytes;
    bool much = false;

    gs_lock_take(&share->lock);
    if (share->limbo.due_ns <= now) {
        const struct gs_export *oldest = oldest_held_locked(share);

        much = is_much_locked(share, now, 1);
        share->limbo.said |= much;
        share->limbo.due_ns = much || !age || !oldest ? GS_NEVER : oldest->freed_ns + age;
    }
    due = share->limbo.due_ns;
    count = share->limbo.count;
    bytes = share->limbo.bytes;
    gs_lock_release(&share->lock);
    if (much)
        say(share, now, count, bytes);
    return due;
}
