/* Exporter: the lists that an export is in, but for that of limbo.c. All of it with the lock
 * held. */
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
    struct gs_export *older = share->exporter.grace_newest;

    if (export->grace.is_in)
        return;
    while (older && older->freed_ns > export->freed_ns)
        older = older->grace.older;
    export->grace.is_in = true;
    export->grace.older = older;
    export->grace.newer = older ? older->grace.newer : share->exporter.grace_oldest;
    *(older ? &older->grace.newer : &share->exporter.grace_oldest) = export;
    *(export->grace.newer ? &export->grace.newer->grace.older : &share->exporter.grace_newest) =
        export;
}

void gs_grace_stop_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->grace.is_in)
        return;
    *(export->grace.older ? &export->grace.older->grace.newer : &share->exporter.grace_oldest) =
        export->grace.newer;
    *(export->grace.newer ? &export->grace.newer->grace.older : &share->exporter.grace_newest) =
        export->grace.older;
    export->grace.is_in = false;
}

void gs_export_ended_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->ended.is_in)
        return;
    export->ended.is_in = true;
    export->ended.newer = NULL;
    export->ended.older = share->exporter.ended_newest;
    *(export->ended.older ? &export->ended.older->ended.newer : &share->exporter.ended_oldest) =
        export;
    share->exporter.ended_newest = export;
}

void gs_export_told_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->ended.is_in)
        return;
    export->ended.is_in = false;
    *(export->ended.older ? &export->ended.older->ended.newer : &share->exporter.ended_oldest) =
        export->ended.newer;
    *(export->ended.newer ? &export->ended.newer->ended.older : &share->exporter.ended_newest) =
        export->ended.older;
}
