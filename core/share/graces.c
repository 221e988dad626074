/*
 * Exporter: blocks that were freed before anybody opened them, whose handles may be on their way.
 * Each waits for grace_least_ns, whatever memory there is, and then up to grace_ns: as long as what
 * waits of its device is no more than a part of what could be allocated there, else what was freed
 * first is over first; and until an allocation of this process would fail.
 */
#include "core/share/exporter.h"

#include <string.h>

#define GRACES_NS (10 * GS_NS_PER_MS) /* those that end within it are told of together */
#define GRACES_PART \
    8 /* of what a device has left: as much as an arena takes at once to be faster later */

static void grace_over_locked(struct gs_share *share, struct gs_export *export)
{
    export->in_grace = false;
    gs_limbo_note_locked(share, export);
}

/* From what waits of each device to how much may. */
static void look_at_left(struct gs_share *share, uint64_t bytes[GS_DEVICES_MAX])
{
    for (unsigned device = 0; device < GS_DEVICES_MAX; device++) {
        const bool any = bytes[device] > 0 && !__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE);
        union gs_told told;

        bytes[device] = UINT64_MAX;
        if (any && share->events.asked &&
            share->events.asked(share->events.arg, GS_ASKED_LEFT, device, &told))
            bytes[device] = told.left / GRACES_PART;
    }
}

static uint64_t age_of(const struct gs_export *export, uint64_t now)
{
    return now > export->freed_ns ? now - export->freed_ns : 0;
}

/* What ended before its time: how much, and the oldest of it. */
struct ended {
    unsigned count;
    struct gs_export oldest;
};

static void end_early_locked(struct gs_share *share, struct gs_export *export, struct ended *ended)
{
    if (!export->opened && ended->count++ == 0)
        ended->oldest = *export;
    grace_over_locked(share, export);
}

static void say_ended(struct gs_share *share, const struct ended *ended, enum gs_log_level level,
                      const char *why)
{
    const struct gs_export *oldest = &ended->oldest;
    const uint64_t now = gs_now_ns();

    if (ended->count == 0)
        return;
    gs_log_line(
        &share->log, level,
        "%s: freed blocks whose handles nobody has opened yet (%u) may be used again before "
        "debug.grace is over; the oldest, block %llu of %llu KiB, was freed %llu ms ago, and its "
        "handle asked for %llu ms ago",
        why, ended->count, (unsigned long long)oldest->key.id,
        (unsigned long long)(oldest->source.size + 1023) >> 10,
        (unsigned long long)(age_of(oldest, now) / GS_NS_PER_MS),
        (unsigned long long)((now - oldest->made_ns) / GS_NS_PER_MS));
}

/* The oldest first. When to come again. */
static uint64_t end_old_locked(struct gs_share *share, uint64_t now,
                               const uint64_t most[GS_DEVICES_MAX], struct ended *ended)
{
    const uint64_t least_ns = share->options.grace_least_ns, most_ns = share->options.grace_ns;
    struct gs_export *export = gs_export_oldest(share, GS_EXPORT_GRACE), *newer;
    uint64_t due = GS_NEVER;

    for (; export && age_of(export, now) >= least_ns; export = newer) {
        newer = export->newer;
        if (age_of(export, now) >= most_ns)
            grace_over_locked(share, export);
        else if (share->exporter.grace_bytes[export->source.device] > most[export->source.device])
            end_early_locked(share, export, ended);
    }
    if (export)
        due = export->freed_ns + least_ns;
    export = gs_export_oldest(share, GS_EXPORT_GRACE);
    if (export)
        gs_sooner(&due, export->freed_ns + most_ns);
    return due < now + GRACES_NS ? now + GRACES_NS : due;
}

uint64_t gs_graces_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due, most[GS_DEVICES_MAX];
    struct ended ended = {0};

    gs_lock_take(&share->lock);
    due = share->exporter.grace_due_ns;
    if (due <= now)
        memcpy(most, share->exporter.grace_bytes, sizeof most);
    gs_lock_release(&share->lock);
    if (due > now)
        return due;
    look_at_left(share, most);
    gs_lock_take(&share->lock);
    due = share->exporter.grace_due_ns = end_old_locked(share, now, most, &ended);
    gs_lock_release(&share->lock);
    say_ended(share, &ended, GS_LOG_DEBUG, "little memory is left");
    return due;
}

static void end_graces_locked(struct gs_share *share, const unsigned char *uuid,
                              enum gs_graces which, enum gs_export_state state, struct ended *ended)
{
    const uint64_t now = gs_now_ns(),
                   least_ns = which == GS_GRACES_LONG ? share->options.grace_least_ns : 0;
    struct gs_export *export, *newer;

    for (export = gs_export_oldest(share, state); export; export = newer) {
        newer = export->newer;
        if (gs_is_of_device(uuid, export->source.uuid) && export->in_grace &&
            age_of(export, now) >= least_ns)
            end_early_locked(share, export, ended);
    }
}

void gs_share_end_graces(struct gs_share *share, const unsigned char uuid[16], enum gs_graces which)
{
    struct ended ended = {0};

    gs_lock_take(&share->lock);
    end_graces_locked(share, uuid, which, GS_EXPORT_GRACE, &ended);
    end_graces_locked(share, uuid, which, GS_EXPORT_LIMBO,
                      &ended); /* what the share thread is just at */
    gs_lock_release(&share->lock);
    say_ended(share, &ended, GS_LOG_INFO, "memory is needed");
    gs_share_tell(share);
}

size_t gs_share_would_go(struct gs_share *share, unsigned device)
{
    GS_HOLDING(&share->lock);

    return share->exporter.grace_wanted[device];
}
