/* Exporter: the blocks of this process that others may open (core/share/share.h). */
#include "core/share/exporter.h"

#include <stdlib.h>
#include <string.h>

static bool write_token(struct gs_share *share, struct gs_offer *offer)
{
    struct gs_token token = {
        .block_id = offer->id, .chunk_id = offer->source.chunk_id, .size = offer->source.size};

    memcpy(token.instance, share->instance, sizeof token.instance);
    if (!gs_random(token.secret, sizeof token.secret))
        return false;
    gs_token_write(&token, offer->token);
    return true;
}

gs_status gs_share_offer(struct gs_share *share, const struct gs_share_source *source,
                         struct gs_offer **ret_offer)
{
    int saved = errno;
    struct gs_offer *offer;
    gs_status status;
    bool entered;

    if (!share->options.enable)
        return GS_NOT_OFFERED;
    status = gs_socket_start(share);
    offer = status == GS_OK ? calloc(1, sizeof *offer) : NULL;
    errno = saved;
    if (!offer)
        return status == GS_OK ? GS_NO_HOST_MEMORY : status;
    offer->source = *source;
    offer->id = __atomic_add_fetch(&share->next_offer, 1, __ATOMIC_RELAXED);
    if (!write_token(share, offer)) {
        free(offer);
        errno = saved;
        return GS_NOT_OFFERED;
    }
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->offers, id, sizeof offer->id, offer);
    entered = offer->hh.tbl != NULL;
    gs_lock_release(&share->lock);
    if (!entered) {
        free(offer);
        return GS_NO_HOST_MEMORY;
    }
    *ret_offer = offer;
    return GS_OK;
}

void gs_offer_token(const struct gs_offer *offer, unsigned char ret_token[GS_TOKEN_SIZE])
{
    memcpy(ret_token, offer->token, GS_TOKEN_SIZE);
}

void gs_share_freed(struct gs_share *share, struct gs_offer *offer, uint64_t freed_ns)
{
    uint64_t end = freed_ns + share->options.grace_ns;
    bool sooner = false;

    gs_lock_take(&share->lock);
    offer->freed_ns = freed_ns;
    if (!offer->opened && end < share->grace_due_ns) {
        share->grace_due_ns = end;
        sooner = true;
    }
    gs_lock_release(&share->lock);
    if (sooner)
        gs_thread_wake(share);
}

uint64_t gs_offers_tick(struct gs_share *share, uint64_t now)
{
    struct gs_offer *offer, *next;
    uint64_t due;

    gs_lock_take(&share->lock);
    if (share->grace_due_ns <= now) {
        share->grace_due_ns = GS_NEVER;
        share->lease_ended = true;
        HASH_ITER(hh, share->offers, offer, next)
        {
            uint64_t end = offer->freed_ns + share->options.grace_ns;

            if (offer->freed_ns && !offer->opened && end > now && end < share->grace_due_ns)
                share->grace_due_ns = end;
        }
    }
    due = share->grace_due_ns;
    gs_lock_release(&share->lock);
    return due;
}

bool gs_share_withdraw(struct gs_share *share, struct gs_offer *offer, uint64_t freed_ns,
                       uint64_t now_ns, bool no_grace)
{
    bool held, in_grace;

    gs_lock_take(&share->lock);
    held = offer->holds > 0 || offer->pins > 0;
    in_grace = !no_grace && !offer->opened &&
               (now_ns < freed_ns || now_ns - freed_ns < share->options.grace_ns);
    if (!held && !in_grace)
        HASH_DEL(share->offers, offer);
    gs_lock_release(&share->lock);
    if (held || in_grace)
        return false;
    free(offer);
    return true;
}

/* Called with the lock held. A freed block that nobody holds can be opened within its grace only:
 * from then on its memory may be handed out at any moment. */
static bool is_stale(const struct gs_share *share, const struct gs_offer *offer)
{
    if (!offer->freed_ns || offer->holds > 0 || offer->pins > 0)
        return false;
    return offer->opened || gs_now() - offer->freed_ns >= share->options.grace_ns;
}

struct gs_offer *gs_offer_pin(struct gs_share *share, const unsigned char token[GS_TOKEN_SIZE])
{
    struct gs_offer *offer = NULL;
    struct gs_token read;

    if (gs_token_read(token, &read) != GS_OK)
        return NULL;
    gs_lock_take(&share->lock);
    HASH_FIND(hh, share->offers, &read.block_id, sizeof read.block_id, offer);
    if (offer && (!gs_bytes_equal(token, offer->token, GS_TOKEN_SIZE) || is_stale(share, offer)))
        offer = NULL;
    if (offer)
        offer->pins++;
    gs_lock_release(&share->lock);
    return offer;
}

/* Called with the lock held. A withdrawal may have met what is gone now. */
static void note_unheld(struct gs_share *share, const struct gs_offer *offer)
{
    if (offer->holds == 0 && offer->pins == 0)
        share->lease_ended = true;
}

void gs_offer_unpin(struct gs_share *share, struct gs_offer *offer, unsigned holds)
{
    gs_lock_take(&share->lock);
    offer->pins--;
    offer->holds += holds;
    if (holds)
        offer->opened = true;
    note_unheld(share, offer);
    gs_lock_release(&share->lock);
}

void gs_offer_drop(struct gs_share *share, struct gs_offer *offer, uint64_t holds)
{
    gs_lock_take(&share->lock);
    offer->holds -= holds;
    note_unheld(share, offer);
    gs_lock_release(&share->lock);
}

void gs_offers_free(struct gs_share *share)
{
    struct gs_offer *offer, *next;

    HASH_ITER(hh, share->offers, offer, next)
    {
        HASH_DEL(share->offers, offer);
        free(offer);
    }
}
