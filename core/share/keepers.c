/*
 * Exporter: chunks that openers keep mapped though they hold nothing of them, for their next open.
 *
 *   KEEP ─► kept ─► opened again (a hold)
 *            └─ the chunk's memory goes ─► UNMAP sent ─► UNMAPPED, or the opener is gone
 *
 * Such a mapping protects nothing: the chunk's bytes are handed out again under it, as they are
 * beside a block that is open. It only keeps the memory from the driver, so it is called back when
 * the chunk goes there. An allocation that finds the GPU full waits for that; nothing else does.
 * Under share.isolate nothing is kept.
 */
#include "core/share/exporter.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEEPS_MAX 65536 /* chunks that one client keeps: more than that it gives back at once */

struct gs_kept_chunk {
    uint64_t chunk_id;
    unsigned char uuid[16]; /* of the device that holds it */
    size_t size;
    unsigned keepers; /* clients */
    bool gone; /* its memory is to go: among share->exporter.unmaps, unless waited for in vain */
    bool asked;       /* and they have been asked */
    struct gs_kept_chunk *next;
    UT_hash_handle hh;
};

static struct gs_kept_chunk *chunk_locked(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_kept_chunk *chunk;

    HASH_FIND(hh, share->exporter.kept_chunks, &chunk_id, sizeof chunk_id, chunk);
    return chunk;
}

/* One keeper more, for whom there may be no record yet. */
static bool count_locked(struct gs_share *share, const struct gs_share_source *source)
{
    struct gs_kept_chunk *chunk = chunk_locked(share, source->chunk_id);

    if (!chunk) {
        chunk = calloc(1, sizeof *chunk);
        if (!chunk)
            return false;
        chunk->chunk_id = source->chunk_id;
        memcpy(chunk->uuid, source->uuid, sizeof chunk->uuid);
        chunk->size = source->chunk_size;
        HASH_ADD(hh, share->exporter.kept_chunks, chunk_id, sizeof chunk->chunk_id, chunk);
        if (!chunk->hh.tbl) {
            free(chunk);
            return false;
        }
    }
    chunk->keepers++;
    return true;
}

static void uncount_locked(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_kept_chunk *chunk = chunk_locked(share, chunk_id), **link = &share->exporter.unmaps;

    if (--chunk->keepers > 0)
        return;
    if (chunk->gone) {
        while (*link != chunk)
            link = &(*link)->next;
        *link = chunk->next;
        gs_cond_wake_all(&share->asked.given_back);
    }
    HASH_DEL(share->exporter.kept_chunks, chunk);
    free(chunk);
}

static struct gs_keep *keep_of(struct gs_client *client, uint64_t chunk_id)
{
    struct gs_keep *keep;

    HASH_FIND(hh, client->keeps, &chunk_id, sizeof chunk_id, keep);
    return keep;
}

/* False: no host memory. */
static bool note(struct gs_share *share, struct gs_client *client, const struct gs_offer *offer)
{
    struct gs_keep *keep = calloc(1, sizeof *keep);
    bool counted;

    if (!keep)
        return false;
    keep->chunk_id = offer->source.chunk_id;
    HASH_ADD(hh, client->keeps, chunk_id, sizeof keep->chunk_id, keep);
    if (!keep->hh.tbl) {
        free(keep);
        return false;
    }
    gs_lock_take(&share->lock);
    counted = count_locked(share, &offer->source);
    gs_lock_release(&share->lock);
    if (!counted) {
        HASH_DEL(client->keeps, keep);
        free(keep);
    }
    return counted;
}

bool gs_keep_add(struct gs_share *share, struct gs_client *client, const struct gs_offer *offer)
{
    if (share->options.isolate || share->options.is_broker)
        return false;
    if (keep_of(client, offer->source.chunk_id))
        return true;
    /* Hung up on, it would lose what else it holds. If this does not go its time ends it. */
    if (HASH_COUNT(client->keeps) >= KEEPS_MAX || !note(share, client, offer))
        gs_client_call_back(client, GS_WIRE_UNMAP, offer->source.chunk_id);
    return true;
}

static void drop(struct gs_share *share, struct gs_client *client, struct gs_keep *keep)
{
    gs_lock_take(&share->lock);
    uncount_locked(share, keep->chunk_id);
    gs_lock_release(&share->lock);
    if (keep->unmap == GS_UNMAP_DUE)
        client->recalls_due--;
    HASH_DEL(client->keeps, keep);
    free(keep);
}

void gs_keep_remove(struct gs_share *share, struct gs_client *client, uint64_t chunk_id)
{
    struct gs_keep *keep = keep_of(client, chunk_id);

    if (keep)
        drop(share, client, keep);
}

bool gs_keep_any_asked_locked(const struct gs_share *share, const unsigned char *uuid)
{
    const struct gs_kept_chunk *chunk = share->exporter.kept_chunks;

    while (chunk && (!chunk->asked || !gs_is_of_device(uuid, chunk->uuid)))
        chunk = chunk->hh.next;
    return chunk != NULL;
}

size_t gs_keep_unanswered(struct gs_share *share, const struct gs_client *client,
                          const unsigned char *uuid)
{
    const struct gs_keep *keep;
    size_t bytes = 0;

    gs_lock_take(&share->lock);
    for (keep = client->keeps; keep; keep = keep->hh.next) {
        const struct gs_kept_chunk *chunk = chunk_locked(share, keep->chunk_id);

        if (keep->unmap != GS_UNMAP_NONE && chunk && gs_is_of_device(uuid, chunk->uuid))
            bytes += chunk->size;
    }
    gs_lock_release(&share->lock);
    return bytes;
}

void gs_keep_client_gone(struct gs_share *share, struct gs_client *client)
{
    struct gs_keep *keep, *next;

    HASH_ITER(hh, client->keeps, keep, next)
    drop(share, client, keep);
}

void gs_keep_chunk_gone_locked(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_kept_chunk *chunk = chunk_locked(share, chunk_id);

    if (!chunk || chunk->gone)
        return;
    chunk->gone = true;
    chunk->next = share->exporter.unmaps;
    share->exporter.unmaps = chunk;
    share->exporter.unmaps_new = true;
    gs_thread_wake(share);
}

/* The next chunk whose keepers are to be asked; false: there is none. */
static bool next_gone(struct gs_share *share, uint64_t *ret_chunk_id)
{
    struct gs_kept_chunk *chunk = NULL;

    gs_lock_take(&share->lock);
    if (share->exporter.unmaps_new)
        for (chunk = share->exporter.unmaps; chunk && chunk->asked; chunk = chunk->next)
            continue;
    if (chunk) {
        chunk->asked = true;
        *ret_chunk_id = chunk->chunk_id;
    } else {
        share->exporter.unmaps_new = false;
    }
    gs_lock_release(&share->lock);
    return chunk != NULL;
}

void gs_keep_work(struct gs_share *share)
{
    struct gs_client *client, *next;
    uint64_t chunk_id;

    while (next_gone(share, &chunk_id))
        HASH_ITER(hh, share->clients.first, client, next)
        {
            struct gs_keep *keep = keep_of(client, chunk_id);

            if (!keep || keep->unmap != GS_UNMAP_NONE || client->fd < 0)
                continue;
            keep->unmap = GS_UNMAP_DUE;
            if (client->recalls_due++ == 0)
                gs_client_send_due(share, client);
        }
}

bool gs_is_of_device(const unsigned char uuid[16], const unsigned char device[16])
{
    return !uuid || memcmp(uuid, device, 16) == 0;
}

static bool is_due_locked(const struct gs_share *share, const unsigned char *uuid)
{
    const struct gs_kept_chunk *chunk = share->exporter.unmaps;

    while (chunk && !gs_is_of_device(uuid, chunk->uuid))
        chunk = chunk->next;
    return chunk != NULL;
}

/* Whoever has been asked and does not answer is not waited for again. */
static void give_up_locked(struct gs_share *share, const unsigned char *uuid)
{
    struct gs_kept_chunk **link = &share->exporter.unmaps;

    while (*link) {
        struct gs_kept_chunk *chunk = *link;

        if (!chunk->asked || !gs_is_of_device(uuid, chunk->uuid)) {
            link = &chunk->next;
            continue;
        }
        *link = chunk->next;
        chunk->gone = false;
    }
}

/* The share thread ends it, by what other processes say. */
bool gs_wait_given_back_locked(struct gs_share *share, uint64_t until_ns)
{
    return gs_cond_wait_until(&share->asked.given_back, &share->lock, until_ns);
}

void gs_share_await_unmapped(struct gs_share *share, const unsigned char uuid[16],
                             uint64_t limit_ns)
{
    uint64_t end = gs_now_ns() + limit_ns;
    bool more = true;

    gs_lock_take(&share->lock);
    while (is_due_locked(share, uuid) && more)
        more = gs_wait_given_back_locked(share, end);
    if (!more)
        give_up_locked(share, uuid);
    gs_lock_release(&share->lock);
}

void gs_keeps_free(struct gs_share *share)
{
    struct gs_kept_chunk *chunk, *next;

    HASH_ITER(hh, share->exporter.kept_chunks, chunk, next)
    {
        HASH_DEL(share->exporter.kept_chunks, chunk);
        free(chunk);
    }
}
