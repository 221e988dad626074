/*
 * Exporter: blocks that the program has freed and other processes still hold. They are memory that
 * no allocation gets, so a line of log tells of them when one has been held for as long as the
 * option says, and again only of what is freed after that. What only the share thread is at is
 * waited for as they are, but nothing to speak of.
 */
#include "core/share/exporter.h"

/* Called with the lock held. The first that others hold, and that nothing was said of. */
static const struct gs_export *untold_locked(const struct gs_share *share)
{
    const struct gs_export *export = gs_export_oldest(share, GS_EXPORT_LIMBO);

    while (export && (export->references == 0 || export->freed_ns <= share->limbo.told_ns))
        export = export->newer;
    return export;
}

void gs_limbo_held_locked(struct gs_share *share, const struct gs_export *export)
{
    const uint64_t age = share->options.limbo_warning_ns;

    if (export->pins == 0)
        gs_cond_wake_all(&share->asked.given_back); /* the share thread is not at it any more */
    if (!age || export->freed_ns <= share->limbo.told_ns ||
        export->freed_ns + age >= share->limbo.due_ns)
        return;
    share->limbo.due_ns = export->freed_ns + age;
    gs_thread_wake(share);
}

uint64_t gs_share_freed_held(struct gs_share *share, const unsigned char uuid[16])
{
    const struct gs_export *export;
    uint64_t held = 0;

    gs_lock_take(&share->lock);
    for (export = gs_export_oldest(share, GS_EXPORT_LIMBO); export; export = export->newer)
        if (export->references > 0 && gs_is_of_device(uuid, export->source.uuid))
            held += export->source.size;
    gs_lock_release(&share->lock);
    return held;
}

/* What is told of: how much is held, and what of that was freed first. */
struct told {
    unsigned long long count, bytes, id, size, freed_ns;
};

static struct told look_locked(struct gs_share *share)
{
    const uint64_t counted = ++share->exporter.counts;
    const struct gs_export *export;
    struct told told = {0};

    for (export = gs_export_oldest(share, GS_EXPORT_LIMBO); export; export = export->newer) {
        if (export->references == 0)
            continue;
        if (told.count++ == 0) {
            told.id = export->key.id;
            told.size = export->source.size;
            told.freed_ns = export->freed_ns;
        }
        told.bytes += gs_export_bytes_locked(export, counted);
    }
    return told;
}

static void say(struct gs_share *share, uint64_t now, const struct told *told)
{
    struct gs_share_held held;
    const struct gs_share_holder *most = held.most;

    gs_share_held(share, NULL, &held);
    if (held.holders == 0 || most->pid == 0)
        gs_log_line(
            &share->log, GS_LOG_WARNING,
            "%llu blocks, %llu KiB, are freed and still held by other machines, which gpushim cluster "
            "names, or by processes that have just ended",
            told->count, (told->bytes + 1023) >> 10);
    else
        gs_log_line(
            &share->log, GS_LOG_WARNING,
            "%llu blocks, %llu KiB, are freed and still held by other processes; most by process %d "
            "(%s): %llu KiB, for %llu s; the oldest, block %llu of %llu KiB, was freed %llu s ago",
            told->count, (told->bytes + 1023) >> 10, (int)most->pid, most->name,
            (unsigned long long)(most->bytes + 1023) >> 10,
            (unsigned long long)(most->held_ns / GS_NS_PER_S), told->id, (told->size + 1023) >> 10,
            (now - told->freed_ns) / GS_NS_PER_S);
}

uint64_t gs_limbo_tick(struct gs_share *share, uint64_t now)
{
    struct told told = {0};
    uint64_t due;
    bool is_old = false;

    gs_lock_take(&share->lock);
    if (share->limbo.due_ns <= now) {
        const struct gs_export *first = untold_locked(share);

        due = first ? first->freed_ns + share->options.limbo_warning_ns : GS_NEVER;
        is_old = due <= now;
        if (is_old) {
            told = look_locked(share);
            share->limbo.told_ns = now;
        }
        share->limbo.due_ns = is_old ? GS_NEVER : due;
    }
    due = share->limbo.due_ns;
    gs_lock_release(&share->lock);
    if (is_old)
        say(share, now, &told);
    return due;
}
