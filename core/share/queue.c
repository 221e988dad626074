/* Exporter: the state of an export, and what the share thread is to do about it. All of it with the
 * lock held. */
#include "core/base/list.h"
#include "core/share/exporter.h"

/* What waits keeps a page at least from going back to the driver. */
static void count_grace_locked(struct gs_share *share, const struct gs_export *export, int sign)
{
    const unsigned device = export->source.device;
    const uint64_t size = export->source.size;

    share->exporter.grace_bytes[device] +=
        (uint64_t)sign * (size < GS_PAGE_SIZE ? GS_PAGE_SIZE : size);
    share->exporter.grace_wanted[device] += export->wanted ? (uint64_t)sign * size : 0;
}

void gs_export_told_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->state == GS_EXPORT_GRACE)
        count_grace_locked(share, export, -1);
    if (export->state != GS_EXPORT_IN_USE)
        DL_DELETE2(share->exporter.states[export->state], export, older, newer);
    if (export->state == GS_EXPORT_LIMBO)
        gs_cond_wake_all(&share->asked.given_back);
    export->state = GS_EXPORT_IN_USE;
}

/* By the time of the free: threads that free at once come a little out of order, and what was
 * pinned in its grace comes back. */
static void enter_grace(struct gs_share *share, struct gs_export *export)
{
    struct gs_export *oldest = gs_export_oldest(share, GS_EXPORT_GRACE);
    struct gs_export *older = oldest ? oldest->older : NULL; /* that is, the newest */
    uint64_t look = export->freed_ns + share->options.grace_least_ns;

    while (older && older->freed_ns > export->freed_ns)
        older = older == oldest ? NULL : older->older;
    DL_APPEND_ELEM2(share->exporter.states[GS_EXPORT_GRACE], older, export, older, newer);
    count_grace_locked(share, export, 1);
    if (look < share->exporter.grace_due_ns) {
        share->exporter.grace_due_ns = look;
        gs_thread_wake(share);
    }
}

static void enter(struct gs_share *share, struct gs_export *export, enum gs_export_state state)
{
    if (state == export->state)
        return;
    gs_export_told_locked(share, export);
    export->state = state;
    if (state == GS_EXPORT_GRACE)
        enter_grace(share, export);
    else if (state != GS_EXPORT_IN_USE)
        DL_APPEND2(share->exporter.states[state], export, older, newer);
}

void gs_limbo_note_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->freed_ns)
        return;
    if (export->references > 0 || export->pins > 0)
        enter(share, export, GS_EXPORT_LIMBO);
    else if (export->in_grace && !export->opened)
        enter(share, export, GS_EXPORT_GRACE);
    else if (export->state != GS_EXPORT_IN_USE)
        enter(share, export, GS_EXPORT_ENDED);
    gs_limbo_count_locked(share, export);
}

void gs_export_pin_locked(struct gs_share *share, struct gs_export *export)
{
    export->pins++;
    gs_limbo_note_locked(share, export);
}

void gs_export_ask_locked(struct gs_share *share, struct gs_export *export, enum gs_work work)
{
    const bool is_first = !share->exporter.work[work];

    if (export->work_before[work])
        return;
    gs_export_pin_locked(share, export);
    DL_APPEND2(share->exporter.work[work], export, work_before[work], work_behind[work]);
    if (is_first)
        gs_thread_wake(share);
}
