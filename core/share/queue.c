/* Exporter: the lists that an offer is in. All of it with the lock held. */
#include "core/share/exporter.h"

/* The share thread is at it, or will be: until then the block cannot be withdrawn. */
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

    if (offer->in_grace)
        return;
    while (older && older->freed_ns > offer->freed_ns)
        older = older->grace_older;
    offer->in_grace = true;
    offer->grace_older = older;
    offer->grace_newer = older ? older->grace_newer : share->exporter.grace_oldest;
    *(older ? &older->grace_newer : &share->exporter.grace_oldest) = offer;
    *(offer->grace_newer ? &offer->grace_newer->grace_older : &share->exporter.grace_newest) =
        offer;
}

void gs_grace_stop_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (!offer->in_grace)
        return;
    *(offer->grace_older ? &offer->grace_older->grace_newer : &share->exporter.grace_oldest) =
        offer->grace_newer;
    *(offer->grace_newer ? &offer->grace_newer->grace_older : &share->exporter.grace_newest) =
        offer->grace_older;
    offer->in_grace = false;
}

void gs_offer_ended_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (offer->ended)
        return;
    offer->ended = true;
    offer->ended_newer = NULL;
    offer->ended_older = share->exporter.ended_newest;
    *(offer->ended_older ? &offer->ended_older->ended_newer : &share->exporter.ended_oldest) =
        offer;
    share->exporter.ended_newest = offer;
}

void gs_offer_told_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (!offer->ended)
        return;
    offer->ended = false;
    *(offer->ended_older ? &offer->ended_older->ended_newer : &share->exporter.ended_oldest) =
        offer->ended_newer;
    *(offer->ended_newer ? &offer->ended_newer->ended_older : &share->exporter.ended_newest) =
        offer->ended_older;
}
