/* Exporter: the lists that an export is in, but for that of limbo.c. All of it with the lock
 * held. */
#include "core/base/list.h"
#include "core/share/exporter.h"

void gs_export_pin_locked(struct gs_share *share, struct gs_export *export)
{
    export->pins++;
    gs_limbo_note_locked(share, export);
}

void gs_export_ask_locked(struct gs_share *share, struct gs_export *export, enum gs_work work)
{
    struct gs_work_queue *queue = &share->exporter.work[work];
    bool first = !queue->first;

    if (export->queued[work])
        return;
    export->queued[work] = true;
    gs_export_pin_locked(share, export);
    export->next_work[work] = NULL;
    *(first ? &queue->first : &queue->last->next_work[work]) = export;
    queue->last = export;
    if (first)
        gs_thread_wake(share);
}

/* The list is by the time of the free: threads that free at once come a little out of order. */
void gs_grace_start_locked(struct gs_share *share, struct gs_export *export)
{
    struct gs_export *oldest = share->exporter.grace_oldest;
    struct gs_export *older = oldest ? oldest->grace.older : NULL; /* that is, the newest */

    if (export->grace.is_in)
        return;
    while (older && older->freed_ns > export->freed_ns)
        older = older == oldest ? NULL : older->grace.older;
    export->grace.is_in = true;
    DL_APPEND_ELEM2(share->exporter.grace_oldest, older, export, grace.older, grace.newer);
}

void gs_grace_stop_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->grace.is_in)
        return;
    DL_DELETE2(share->exporter.grace_oldest, export, grace.older, grace.newer);
    export->grace.is_in = false;
}

void gs_export_ended_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->ended.is_in)
        return;
    export->ended.is_in = true;
    DL_APPEND2(share->exporter.ended_oldest, export, ended.older, ended.newer);
}

void gs_export_told_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->ended.is_in)
        return;
    export->ended.is_in = false;
    DL_DELETE2(share->exporter.ended_oldest, export, ended.older, ended.newer);
}
