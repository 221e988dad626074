/*
 * Exporter: chunks that openers keep mapped though they hold nothing of them, for their next open.
 *
 *   CACHE ─► mapped ─► opened again (a reference)
 *            └─ the chunk's memory goes ─► UNMAP sent ─► UNMAPPED, or the opener is gone
 *
 * Such a mapping protects nothing: the chunk's bytes are handed out again under it, as they are
 * beside a block that is open. It only keeps the memory from the driver, so it is called back when
 * the chunk goes there. An allocation that finds the GPU full waits for that; nothing else does.
 * Under share.isolate nothing is kept.
 */
#include "core/base/list.h"
#include "core/share/exporter.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAPPINGS_MAX 65536 /* chunks that one client keeps: more than that it gives back at once */

struct gs_mapped_chunk {
    uint64_t chunk_id;
    unsigned char uuid[16]; /* of the device that holds it */
    size_t size;
    unsigned mappings; /* clients */
    bool gone; /* its memory is to go: among share->exporter.unmaps, unless waited for in vain */
    bool asked;       /* and they have been asked */
    struct gs_mapped_chunk *next;
    UT_hash_handle hh;
};

static struct gs_mapped_chunk *chunk_locked(const struct gs_share *share, uint64_t chunk_id)
{
    struct gs_mapped_chunk *chunk;

    HASH_FIND(hh, share->exporter.mapped_chunks, &chunk_id, sizeof chunk_id, chunk);
    return chunk;
}

/* One mapping more, for whom there may be no record yet. */
static bool count_locked(struct gs_share *share, const struct gs_share_source *source)
{
    struct gs_mapped_chunk *chunk = chunk_locked(share, source->chunk_id);

    if (!chunk) {
        chunk = calloc(1, sizeof *chunk);
        if (!chunk)
            return false;
        chunk->chunk_id = source->chunk_id;
        memcpy(chunk->uuid, source->uuid, sizeof chunk->uuid);
        chunk->size = source->chunk_size;
        HASH_ADD(hh, share->exporter.mapped_chunks, chunk_id, sizeof chunk->chunk_id, chunk);
        if (!chunk->hh.tbl) {
            free(chunk);
            return false;
        }
    }
    chunk->mappings++;
    return true;
}

static void uncount_locked(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_mapped_chunk *chunk = chunk_locked(share, chunk_id);

    if (--chunk->mappings > 0)
        return;
    if (chunk->gone) {
        LL_DELETE(share->exporter.unmaps, chunk);
        gs_cond_wake_all(&share->asked.given_back);
    }
    HASH_DEL(share->exporter.mapped_chunks, chunk);
    free(chunk);
}

static struct gs_mapping *mapping_of(struct gs_client *client, uint64_t chunk_id)
{
    struct gs_mapping *mapping;

    HASH_FIND(hh, client->mappings, &chunk_id, sizeof chunk_id, mapping);
    return mapping;
}

/* False: no host memory. */
static bool note(struct gs_share *share, struct gs_client *client, const struct gs_export *export)
{
    struct gs_mapping *mapping = calloc(1, sizeof *mapping);
    bool counted;

    if (!mapping)
        return false;
    mapping->chunk_id = export->source.chunk_id;
    gs_lock_take(&share->lock);
    HASH_ADD(hh, client->mappings, chunk_id, sizeof mapping->chunk_id, mapping);
    counted = mapping->hh.tbl && count_locked(share, &export->source);
    if (!counted && mapping->hh.tbl)
        HASH_DEL(client->mappings, mapping);
    gs_lock_release(&share->lock);
    if (!counted)
        free(mapping);
    return counted;
}

bool gs_mapping_add(struct gs_share *share, struct gs_client *client,
                    const struct gs_export *export)
{
    if (share->options.isolate || share->options.is_broker)
        return false;
    if (mapping_of(client, export->source.chunk_id))
        return true;
    /* Hung up on, it would lose what else it holds. If this does not go its time ends it. */
    if (HASH_COUNT(client->mappings) >= MAPPINGS_MAX || !note(share, client, export))
        gs_client_call_back(client, GS_WIRE_UNMAP, export->source.chunk_id);
    return true;
}

static void drop(struct gs_share *share, struct gs_client *client, struct gs_mapping *mapping)
{
    gs_lock_take(&share->lock);
    uncount_locked(share, mapping->chunk_id);
    HASH_DEL(client->mappings, mapping);
    gs_lock_release(&share->lock);
    client->recalls_due -= mapping->unmap == GS_UNMAP_DUE;
    free(mapping);
}

void gs_mapping_remove(struct gs_share *share, struct gs_client *client, uint64_t chunk_id)
{
    struct gs_mapping *mapping = mapping_of(client, chunk_id);

    if (mapping)
        drop(share, client, mapping);
}

size_t gs_mapping_unanswered_locked(const struct gs_share *share, const struct gs_client *client,
                                    const unsigned char *uuid)
{
    const struct gs_mapping *mapping;
    size_t bytes = 0;

    for (mapping = client->mappings; mapping; mapping = mapping->hh.next) {
        const struct gs_mapped_chunk *chunk = chunk_locked(share, mapping->chunk_id);

        if (chunk->asked && gs_is_of_device(uuid, chunk->uuid))
            bytes += chunk->size;
    }
    return bytes;
}

void gs_mapping_client_gone(struct gs_share *share, struct gs_client *client)
{
    struct gs_mapping *mapping, *next;

    HASH_ITER(hh, client->mappings, mapping, next)
    drop(share, client, mapping);
}

void gs_mapping_chunk_gone_locked(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_mapped_chunk *chunk = chunk_locked(share, chunk_id);

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
    struct gs_mapped_chunk *chunk = NULL;

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

void gs_mapping_work(struct gs_share *share)
{
    struct gs_client *client, *next;
    uint64_t chunk_id;

    while (next_gone(share, &chunk_id))
        HASH_ITER(hh, share->clients.first, client, next)
        {
            struct gs_mapping *mapping = mapping_of(client, chunk_id);

            if (!mapping || mapping->unmap != GS_UNMAP_NONE || client->fd < 0)
                continue;
            mapping->unmap = GS_UNMAP_DUE;
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
    const struct gs_mapped_chunk *chunk = share->exporter.unmaps;

    while (chunk && !gs_is_of_device(uuid, chunk->uuid))
        chunk = chunk->next;
    return chunk != NULL;
}

/* Whoever has been asked and does not answer is not waited for again. */
static void give_up_locked(struct gs_share *share, const unsigned char *uuid)
{
    struct gs_mapped_chunk *chunk, *next;

    LL_FOREACH_SAFE(share->exporter.unmaps, chunk, next) {
        if (!chunk->asked || !gs_is_of_device(uuid, chunk->uuid))
            continue;
        LL_DELETE(share->exporter.unmaps, chunk);
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

void gs_mappings_free(struct gs_share *share)
{
    struct gs_mapped_chunk *chunk, *next;

    HASH_ITER(hh, share->exporter.mapped_chunks, chunk, next)
    {
        HASH_DEL(share->exporter.mapped_chunks, chunk);
        free(chunk);
    }
}
