/* Exporter: the lists that an offer is in, but for that of limbo.c. All of it with the lock held. */
#include "core/share/exporter.h"

void gs_offer_pin_locked(struct gs_share *share, struct gs_offer *offer)
{
    offer->pins++;
    gs_limbo_note_locked(share, offer);
}

void gs_offer_ask_locked(struct gs_share *share, struct gs_offer *offer, enum gs_work work)
{
    struct gs_work_queue *queue = &share->exporter.work[work];
    bool first = !queue->first;

    if (offer->queued[work])
        return;
    offer->queued[work] = true;
    gs_offer_pin_locked(share, offer);
    offer->next_work[work] = NULL;
    *(first ? &queue->first : &queue->last->next_work[work]) = offer;
    queue->last = offer;
    if (first)
        gs_thread_wake(share);
}

/* The list is by the time of the free: threads that free at once come a little out of order. */
void gs_grace_start_locked(struct gs_share *share, struct gs_offer *offer)
{
    struct gs_offer *older = share->exporter.grace_newest;

    if (offer->grace.is_in)
        return;
    while (older && older->freed_ns > offer->freed_ns)
        older = older->grace.older;
    offer->grace.is_in = true;
    offer->grace.older = older;
    offer->grace.newer = older ? older->grace.newer : share->exporter.grace_oldest;
    *(older ? &older->grace.newer : &share->exporter.grace_oldest) = offer;
    *(offer->grace.newer ? &offer->grace.newer->grace.older : &share->exporter.grace_newest) =
        offer;
}

void gs_grace_stop_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (!offer->grace.is_in)
        return;
    *(offer->grace.older ? &offer->grace.older->grace.newer : &share->exporter.grace_oldest) =
        offer->grace.newer;
    *(offer->grace.newer ? &offer->grace.newer->grace.older : &share->exporter.grace_newest) =
        offer->grace.older;
    offer->grace.is_in = false;
}

void gs_offer_ended_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (offer->ended.is_in)
        return;
    offer->ended.is_in = true;
    offer->ended.newer = NULL;
    offer->ended.older = share->exporter.ended_newest;
    *(offer->ended.older ? &offer->ended.older->ended.newer : &share->exporter.ended_oldest) =
        offer;
    share->exporter.ended_newest = offer;
}

void gs_offer_told_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (!offer->ended.is_in)
        return;
    offer->ended.is_in = false;
    *(offer->ended.older ? &offer->ended.older->ended.newer : &share->exporter.ended_oldest) =
        offer->ended.newer;
    *(offer->ended.newer ? &offer->ended.newer->ended.older : &share->exporter.ended_newest) =
        offer->ended.older;
}
