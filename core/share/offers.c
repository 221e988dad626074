/* Exporter: the blocks of this process that others may open (core/share/share.h). */
#include "core/share/exporter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORK_MAX 64 /* in one round */
#define CALM_NS  GS_NS_PER_MS
#define GRACES_NS (10 * GS_NS_PER_MS) /* those that end within it are told of together */

static bool write_token(struct gs_share *share, struct gs_offer *offer)
{
    struct gs_token token = {
        .block_id = offer->key.id, .chunk_id = offer->source.chunk_id, .size = offer->source.size};

    memcpy(token.instance, share->instance, sizeof token.instance);
    if (!gs_random(token.secret, sizeof token.secret))
        return false;
    gs_token_write(&token, offer->token);
    return true;
}

/* Exports the chunk for whoever opens it first, and for the broker. False: it had been. */
static bool prepare(struct gs_share *share, struct gs_offer *offer)
{
    uint64_t begun = gs_now_ns();
    bool leaves = gs_broker_takes(share, offer), fresh;
    int fd;

    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE) ||
        (!leaves && !gs_export_wanted(share, offer)) ||
        gs_export(share, offer, &fd, &fresh) != CUDA_SUCCESS)
        return false;
    if (leaves)
        gs_broker_leave(share, offer, fd);
    if (!fresh)
        return false;
    gs_export_keep(share, offer, fd);
    gs_log_line(&share->log, GS_LOG_DEBUG, "block %llu exported ahead in %llu us, begun at %llu us",
                (unsigned long long)offer->key.id, (unsigned long long)(gs_now_ns() - begun) / 1000,
                (unsigned long long)begun / 1000);
    return true;
}

static struct gs_offer *next_work(struct gs_share *share, enum gs_work work)
{
    struct gs_work_queue *queue = &share->exporter.work[work];
    struct gs_offer *offer;

    gs_lock_take(&share->lock);
    offer = queue->first;
    if (offer) {
        queue->first = offer->next_work[work];
        offer->queued[work] = false; /* from now on it can be asked again; the pin is ours */
    }
    gs_lock_release(&share->lock);
    return offer;
}

/*
 * Exports one chunk, which takes tens of microseconds in the driver: who asks comes in between. And
 * the driver's calls of one process hold up those of another (measured on an H200: an open takes
 * 153 us beside exports and 86 us without), so while somebody opens there is one after each open,
 * most likely of what is opened next (1,000 in a row take 99 us each so, and 114 where each waits for
 * its own). What a broker is to have does not wait: its process may be killed.
 */
static uint64_t export_next(struct gs_share *share, uint64_t now)
{
    struct gs_offer *offer;
    bool exported = false;

    if (!share->options.broker && now - share->exporter.served_ns < CALM_NS &&
        now - share->exporter.exported_ns < CALM_NS &&
        share->exporter.exported_ns >= share->exporter.served_ns)
        return share->exporter.exported_ns + CALM_NS;
    if (!share->options.broker && !gs_export_has_room(share))
        return GS_NEVER; /* the thread is woken when there is */
    for (int i = 0; i < WORK_MAX && !exported; i++) {
        offer = next_work(share, GS_WORK_EXPORT);
        if (!offer)
            return GS_NEVER;
        gs_thread_offered(share, now);
        exported = prepare(share, offer);
        gs_offer_unpin(share, offer, false);
    }
    if (exported)
        share->exporter.exported_ns = now;
    return now;
}

uint64_t gs_offers_work(struct gs_share *share, uint64_t now)
{
    struct gs_offer *offer;

    for (int i = 0; i < WORK_MAX; i++) {
        offer = next_work(share, GS_WORK_RECALL);
        if (!offer)
            return export_next(share, now);
        gs_clients_recall(share, offer);
        gs_offer_unpin(share, offer, false);
    }
    return now;
}

/* Called with the lock held: its holders are to give it back as soon as they can. */
static void recall_locked(struct gs_share *share, struct gs_offer *offer)
{
    if (offer->recalled || offer->holds == 0)
        return;
    offer->recalled = true;
    gs_offer_ask_locked(share, offer, GS_WORK_RECALL);
}

static gs_status no_host_memory(struct gs_share *share)
{
    gs_say_not_offered(share, "no host memory is left");
    return GS_NO_HOST_MEMORY;
}

gs_status gs_share_offer(struct gs_share *share, const struct gs_share_source *source,
                         struct gs_offer **ret_offer)
{
    int saved = errno;
    char reason[GS_REASON_SIZE];
    struct gs_offer *offer;
    gs_status status;
    bool entered;

    gs_say_used(share);
    if (!share->options.enable) {
        gs_say_not_offered(share, "share.enable is off");
        return GS_NOT_OFFERED;
    }
    if (share->options.isolate && !source->alone) {
        snprintf(reason, sizeof reason,
                 "a block of %zu bytes lies with others in one chunk and share.isolate is on; place "
                 "blocks alone (share.isolate = alone)",
                 source->size);
        gs_say_not_offered(share, reason);
        return GS_NOT_OFFERED;
    }
    if (gs_limbo_is_full(share)) {
        gs_say_not_offered(share, "as much memory is freed and still held by other processes as may "
                                  "be (share.limbo_limit); have them close it, or end them");
        return GS_NOT_OFFERED;
    }
    status = gs_socket_start(share);
    offer = status == GS_OK ? calloc(1, sizeof *offer) : NULL;
    errno = saved;
    if (!offer)
        return status == GS_OK ? no_host_memory(share) : status;
    offer->source = *source;
    offer->read_only = share->options.read_only;
    offer->key.id = __atomic_add_fetch(&share->exporter.next_offer, 1, __ATOMIC_RELAXED);
    memcpy(offer->key.instance, share->instance, sizeof offer->key.instance);
    if (!write_token(share, offer)) {
        gs_say_not_offered(share, "the kernel gives no random bytes for its handle (getrandom); "
                                  "allow that call (seccomp)");
        free(offer);
        errno = saved;
        return GS_NO_RANDOM;
    }
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->exporter.offers, key, sizeof offer->key, offer);
    entered = offer->hh.tbl != NULL;
    gs_lock_release(&share->lock);
    if (!entered) {
        free(offer);
        return no_host_memory(share);
    }
    *ret_offer = offer;
    return GS_OK;
}

void gs_share_given_out(struct gs_share *share, struct gs_offer *offer)
{
    int saved = errno;

    if (!share->options.export_ahead && !share->options.broker)
        return;
    gs_lock_take(&share->lock);
    offer->given_out = true;
    gs_offer_ask_locked(share, offer, GS_WORK_EXPORT);
    gs_lock_release(&share->lock);
    errno = saved;
}

void gs_offer_token(const struct gs_offer *offer, unsigned char ret_token[GS_TOKEN_SIZE])
{
    memcpy(ret_token, offer->token, GS_TOKEN_SIZE);
}

/* False: there is none. */
static bool next_ended(struct gs_share *share, uint64_t *ret_address)
{
    struct gs_offer *offer;

    gs_lock_take(&share->lock);
    offer = share->exporter.ended_oldest;
    if (offer) {
        *ret_address = offer->source.address; /* the offer may go as soon as the lock is let go */
        gs_offer_told_locked(share, offer);
        share->exporter.telling++;
    }
    gs_lock_release(&share->lock);
    return offer != NULL;
}

static void is_told(struct gs_share *share)
{
    gs_lock_take(&share->lock);
    share->exporter.telling--;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
}

bool gs_offers_tell(struct gs_share *share)
{
    uint64_t address;

    for (int i = 0; i < WORK_MAX; i++) {
        if (!next_ended(share, &address))
            return false;
        if (!__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
            share->events.lease_ended(share->events.arg, address);
        is_told(share);
    }
    return true;
}

/* Each is there once at the time of the call: others' ends that come meanwhile are not waited for. */
void gs_share_tell(struct gs_share *share)
{
    unsigned rounds;

    gs_lock_take(&share->lock);
    rounds = share->exporter.ended_oldest ? HASH_COUNT(share->exporter.offers) / WORK_MAX + 1 : 0;
    gs_lock_release(&share->lock);
    while (rounds-- > 0 && gs_offers_tell(share))
        continue;
}

void gs_share_freed(struct gs_share *share, struct gs_offer *offer, uint64_t freed_ns)
{
    uint64_t end = freed_ns + share->options.grace_ns;
    bool sooner = false;

    gs_lock_take(&share->lock);
    __atomic_store_n(&offer->freed_ns, freed_ns, __ATOMIC_RELAXED); /* gs_report looks unlocked */
    recall_locked(share, offer);
    gs_limbo_note_locked(share, offer);
    if (!offer->opened && share->options.grace_ns > 0)
        gs_grace_start_locked(share, offer);
    if (offer == share->exporter.grace_oldest && end < share->exporter.grace_due_ns) {
        share->exporter.grace_due_ns = end;
        sooner = true;
    }
    gs_lock_release(&share->lock);
    if (sooner)
        gs_thread_wake(share);
}

static void grace_over_locked(struct gs_share *share, struct gs_offer *offer)
{
    gs_grace_stop_locked(share, offer);
    gs_offer_ended_locked(share, offer);
}

uint64_t gs_offers_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due;

    gs_lock_take(&share->lock);
    if (share->exporter.grace_due_ns <= now) {
        struct gs_offer *oldest;

        while ((oldest = share->exporter.grace_oldest) &&
               (oldest->opened || oldest->freed_ns + share->options.grace_ns <= now)) {
            grace_over_locked(share, oldest);
        }
        share->exporter.grace_due_ns =
            oldest ? oldest->freed_ns + share->options.grace_ns : GS_NEVER;
        if (share->exporter.grace_due_ns < now + GRACES_NS)
            share->exporter.grace_due_ns = now + GRACES_NS;
    }
    due = share->exporter.grace_due_ns;
    gs_lock_release(&share->lock);
    return due;
}

void gs_share_end_graces(struct gs_share *share, const unsigned char uuid[16])
{
    struct gs_offer *offer, *newer;
    unsigned count = 0;

    gs_lock_take(&share->lock);
    for (offer = share->exporter.grace_oldest; offer; offer = newer) {
        newer = offer->grace.newer;
        if (!gs_is_of_device(uuid, offer->source.uuid))
            continue;
        count += !offer->opened;
        grace_over_locked(share, offer);
    }
    gs_lock_release(&share->lock);
    if (count > 0)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "the GPU is out of memory: %u freed block%s whose handle%s nobody has opened "
                    "yet may be used again before share.grace is over",
                    count, count == 1 ? "" : "s", count == 1 ? "" : "s");
    gs_share_tell(share);
}

bool gs_share_withdraw(struct gs_share *share, struct gs_offer *offer)
{
    bool held, in_grace, unopened;

    gs_lock_take(&share->lock);
    held = offer->holds > 0 || offer->pins > 0;
    in_grace = offer->grace.is_in && !offer->opened;
    unopened = offer->freed_ns && !offer->opened;
    offer->wanted |= held;
    if (held)
        recall_locked(share, offer);
    else if (!in_grace) {
        gs_broker_take_back_locked(share, offer);
        gs_grace_stop_locked(share, offer); /* it was opened in it */
        gs_offer_told_locked(share, offer);
        HASH_DEL(share->exporter.offers, offer);
    }
    gs_lock_release(&share->lock);
    if (held || in_grace)
        return false;
    if (unopened)
        gs_say_unopened(share);
    free(offer);
    return true;
}

struct gs_offer *gs_offer_pin(struct gs_share *share, const unsigned char token[GS_TOKEN_SIZE])
{
    struct gs_offer *offer = NULL;
    struct gs_offer_key key;
    struct gs_token read;

    if (gs_token_read(token, &read) != GS_OK)
        return NULL;
    memcpy(key.instance, read.instance, sizeof key.instance);
    key.id = read.block_id;
    gs_lock_take(&share->lock);
    HASH_FIND(hh, share->exporter.offers, &key, sizeof key, offer);
    if (offer && (!gs_bytes_equal(token, offer->token, GS_TOKEN_SIZE) ||
                  gs_offer_is_stale(share, offer)))
        offer = NULL;
    if (offer)
        gs_offer_pin_locked(share, offer);
    gs_lock_release(&share->lock);
    return offer;
}

/* Called with the lock held. A withdrawal may have met what is gone now. */
static void note_unheld(struct gs_share *share, struct gs_offer *offer)
{
    if (offer->holds > 0 || offer->pins > 0)
        return;
    gs_offer_ended_locked(share, offer);
    if (share->options.is_broker)
        offer->keep_until_ns = gs_now_ns() + share->options.keep_ns;
}

void gs_offer_hold(struct gs_share *share, struct gs_offer *offer)
{
    gs_lock_take(&share->lock);
    offer->holds++;
    gs_limbo_note_locked(share, offer);
    gs_lock_release(&share->lock);
}

void gs_offer_take_up(struct gs_share *share, struct gs_offer *offer)
{
    gs_lock_take(&share->lock);
    offer->holds++;
    gs_limbo_note_locked(share, offer);
    offer->recalled = false;
    if (offer->freed_ns || offer->wanted)
        recall_locked(share, offer);
    gs_lock_release(&share->lock);
}

void gs_offer_unpin(struct gs_share *share, struct gs_offer *offer, bool granted)
{
    gs_lock_take(&share->lock);
    offer->pins--;
    gs_limbo_note_locked(share, offer);
    if (granted) {
        offer->opened = true;
        __atomic_store_n(&share->exporter.ever_opened, true, __ATOMIC_RELAXED);
        offer->recalled = false; /* the newest holder was not asked */
    }
    if (offer->freed_ns || offer->wanted)
        recall_locked(share, offer);
    note_unheld(share, offer);
    gs_lock_release(&share->lock);
}

void gs_offer_drop(struct gs_share *share, struct gs_offer *offer, uint64_t holds)
{
    gs_lock_take(&share->lock);
    offer->holds -= holds;
    gs_limbo_note_locked(share, offer);
    note_unheld(share, offer);
    gs_lock_release(&share->lock);
}

void gs_offers_free(struct gs_share *share)
{
    struct gs_offer *offer, *next;

    HASH_ITER(hh, share->exporter.offers, offer, next)
    {
        HASH_DEL(share->exporter.offers, offer);
        free(offer);
    }
}
