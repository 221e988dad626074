/*
 * Exporter: memory that others have closed, or keep mapped, and that is wanted back.
 *
 * Importers keep a chunk mapped when they hold nothing of it any more, for their next open. Such a
 * mapping protects nothing: the chunk's bytes are handed out again under it, as they are beside a
 * block that is open. It only keeps the memory from the driver. Who has which chunk mapped is their
 * affair: when one goes that was ever granted, all are told that have had anything open. Under
 * share.isolate nothing is kept.
 *
 * And an exporter whose GPU is full must not fail beside memory that is on its way: freed by its
 * own program and closed by the importer's, but not given back yet, since the importer's thread has
 * GPU work to see end before.
 *
 *   exporter: a chunk goes, or the GPU is full    importer
 *   FLUSH ────── behind all RECALLs ────────────► what it names is unmapped; and of a full GPU's what is
 *                                                 recalled and closed goes back: CLOSE
 *   not mapped any more  ◄─── FLUSHED, closing ── at once; what the program has open is not waited for
 *   has all of it        ◄─── FLUSHED ─────────── then
 *
 * An allocation that finds the GPU full waits for that; nothing else does. One that has hung up is
 * waited for until its lease has ended, or GS_LOOK_NS. One that did not answer in time (it is
 * stopped, or means harm) is not waited for again before it does. So a wait here is ended by the
 * importer's thread or by its end, and is SILENT_NS long at most, or ENDING_NS beside one that has
 * hung up. What has ended and the arenas have not been told of is waited for until the share thread
 * has told, or as long as the caller says.
 */
#include "core/base/list.h"
#include "core/share/exporter.h"
#include "core/share/let_go.h"

#include <stdlib.h>
#include <string.h>

#define SILENT_NS (GS_NS_PER_S / 2)
#define ENDING_NS (2 * GS_NS_PER_S)
#define GONE_MAX  1024 /* who has not heard of so many is told that any may have gone */

/* A chunk of which something was granted. */
struct gs_granted_chunk {
    uint64_t chunk_id;
    unsigned char uuid[16]; /* of the device that holds it */
    size_t size;
    uint64_t gone;                          /* it was the n-th that has; 0: it is there */
    struct gs_granted_chunk *older, *newer; /* among those that have */
    UT_hash_handle hh;
};

/* ---- Chunks that go: any thread, the lock held ----------------------------------------------- */

bool gs_flush_note_granted(struct gs_share *share, const struct gs_share_source *source)
{
    struct gs_granted_chunk *chunk;

    gs_lock_take(&share->lock);
    HASH_FIND(hh, share->exporter.granted, &source->chunk_id, sizeof source->chunk_id, chunk);
    if (!chunk && (chunk = calloc(1, sizeof *chunk))) {
        chunk->chunk_id = source->chunk_id;
        memcpy(chunk->uuid, source->uuid, sizeof chunk->uuid);
        chunk->size = source->chunk_size;
        HASH_ADD(hh, share->exporter.granted, chunk_id, sizeof chunk->chunk_id, chunk);
        if (!chunk->hh.tbl) {
            free(chunk);
            chunk = NULL;
        }
    }
    gs_lock_release(&share->lock);
    return chunk != NULL;
}

static void forget_locked(struct gs_share *share, struct gs_granted_chunk *chunk)
{
    DL_DELETE2(share->exporter.gone, chunk, older, newer);
    share->exporter.gone_listed--;
    free(chunk);
}

/* What all have unmapped. */
static void forget_flushed_locked(struct gs_share *share)
{
    const struct gs_client *client;
    uint64_t flushed = share->exporter.gone_count;

    for (client = share->clients.first; client; client = client->hh.next)
        if (client->flush.maps && client->flush.flushed < flushed)
            flushed = client->flush.flushed;
    while (share->exporter.gone && share->exporter.gone->gone <= flushed)
        forget_locked(share, share->exporter.gone);
    gs_cond_wake_all(&share->asked.given_back);
}

void gs_flush_chunk_gone_locked(struct gs_share *share, uint64_t chunk_id)
{
    struct gs_granted_chunk *chunk;

    HASH_FIND(hh, share->exporter.granted, &chunk_id, sizeof chunk_id, chunk);
    if (!chunk)
        return;
    HASH_DEL(share->exporter.granted, chunk);
    chunk->gone = ++share->exporter.gone_count;
    DL_APPEND2(share->exporter.gone, chunk, older, newer);
    if (++share->exporter.gone_listed > GONE_MAX)
        forget_locked(share, share->exporter.gone);
    forget_flushed_locked(share);
    gs_thread_wake(share);
}

void gs_flush_maps_locked(struct gs_share *share, struct gs_client *client)
{
    if (client->flush.maps || share->options.is_broker)
        return;
    client->flush.maps = true;
    client->flush.flushed = share->exporter.gone_count;
}

bool gs_is_of_device(const unsigned char uuid[16], const unsigned char device[16])
{
    return !uuid || memcmp(uuid, device, 16) == 0;
}

size_t gs_flush_unanswered_locked(const struct gs_share *share, const struct gs_client *client,
                                  const unsigned char *uuid)
{
    const struct gs_granted_chunk *chunk;
    size_t bytes = 0;

    for (chunk = share->exporter.gone; chunk && client->flush.maps; chunk = chunk->newer)
        if (chunk->gone > client->flush.flushed && chunk->gone <= client->flush.told &&
            gs_is_of_device(uuid, chunk->uuid))
            bytes += chunk->size;
    return bytes;
}

void gs_flush_free(struct gs_share *share)
{
    struct gs_granted_chunk *chunk, *next;

    HASH_ITER(hh, share->exporter.granted, chunk, next) {
        HASH_DEL(share->exporter.granted, chunk);
        free(chunk);
    }
    while (share->exporter.gone)
        forget_locked(share, share->exporter.gone);
}

/* ---- Asking: the share thread ---------------------------------------------------------------- */

static bool references_freed_locked(const struct gs_client *client)
{
    const struct gs_reference *reference = client->references;

    while (reference && !reference->export->freed_ns)
        reference = reference->hh.next;
    return reference != NULL;
}

static void write_locked(const struct gs_share *share, struct gs_client *client,
                         struct gs_wire_flush *flush)
{
    const struct gs_granted_chunk *chunk = share->exporter.gone;
    bool all = client->flush.flushed < share->exporter.gone_count &&
               (!chunk || chunk->gone > client->flush.flushed + 1);

    flush->number = client->flush.number;
    flush->closed = client->flush.awaited;
    for (; chunk && client->flush.maps; chunk = chunk->newer) {
        if (chunk->gone <= client->flush.flushed)
            continue;
        if (flush->chunks < GS_FLUSH_CHUNKS)
            flush->chunk_ids[flush->chunks] = chunk->chunk_id;
        if (flush->chunks <= GS_FLUSH_CHUNKS)
            flush->chunks++;
    }
    if (all && client->flush.maps)
        flush->chunks = GS_FLUSH_CHUNKS + 1;
    client->flush.told = share->exporter.gone_count;
}

bool gs_flush_send(struct gs_share *share, struct gs_client *client)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_FLUSH, 0);
    gs_lock_take(&share->lock);
    write_locked(share, client, &message.flush);
    gs_lock_release(&share->lock);
    return gs_client_call_back(client, &message);
}

/* It is to be sent FLUSH, behind what is due already. */
static void ask_locked(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    struct gs_flush *flush = &client->flush;

    if (!flush->closing)
        flush->closing_ns = now;
    flush->number = ++share->asked.flushes_sent;
    flush->open = flush->due = true;
    flush->again = false;
    flush->since_ns = now;
    client->recalls_due++;
}

static bool has_unheard_locked(const struct gs_share *share, const struct gs_client *client)
{
    return client->flush.maps && client->flush.flushed < share->exporter.gone_count;
}

/* One question at a time: where there is one, what else there is to ask follows its answer. */
static void look_at_locked(struct gs_share *share, struct gs_client *client, bool wanted,
                           uint64_t now)
{
    bool closed = wanted && references_freed_locked(client);

    if (client->over.late)
        return;
    client->flush.awaited |= closed;
    if (closed && (client->flush.open || client->flush.closing))
        client->flush.again = true;
    else if (client->fd >= 0 && !client->flush.open &&
             (closed || has_unheard_locked(share, client)))
        ask_locked(share, client, now);
}

void gs_flush_work(struct gs_share *share, uint64_t now)
{
    struct gs_client *client, *next;
    bool wanted;

    gs_lock_take(&share->lock);
    wanted = share->asked.flush_wanted != share->asked.flush_begun;
    if ((!wanted && share->asked.gone_begun == share->exporter.gone_count) ||
        share->exporter.work[GS_WORK_RECALL]
            .first) { /* those come first: again in the next round */
        gs_lock_release(&share->lock);
        return;
    }
    for (client = share->clients.first; client; client = client->hh.next)
        look_at_locked(share, client, wanted, now);
    share->asked.flush_begun = share->asked.flush_wanted;
    share->asked.gone_begun = share->exporter.gone_count;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->flush.due)
            gs_client_send_due(share, client);
    }
}

bool gs_flush_answered(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_flushed *answer)
{
    struct gs_flush *flush = &client->flush;
    bool first =
        flush->open && !flush->due && answer->number == flush->number && answer->closing <= 1;

    /* A second answer may have crossed the next question, which asks for the same. */
    if (!first && (!flush->closing || answer->number != flush->closing || answer->closing))
        return gs_client_fault(client, "it answers what it was not asked");
    gs_lock_take(&share->lock);
    if (first)
        flush->flushed = flush->told;
    flush->open &= !first;
    flush->closing = answer->closing ? answer->number : 0;
    flush->awaited &= flush->open || flush->closing || flush->again;
    if (!flush->open && ((!flush->closing && flush->again) || has_unheard_locked(share, client)))
        ask_locked(share, client, gs_now_ns());
    forget_flushed_locked(share);
    gs_lock_release(&share->lock);
    if (flush->due)
        gs_client_send_due(share, client);
    return true;
}

void gs_flush_hung_up(struct gs_share *share, struct gs_client *client)
{
    gs_lock_take(&share->lock);
    client->flush.hung_up = true;
    gs_lock_release(&share->lock);
}

void gs_flush_client_gone(struct gs_share *share, struct gs_client *client)
{
    gs_lock_take(&share->lock);
    client->flush.awaited = client->flush.maps = false;
    forget_flushed_locked(share);
    gs_lock_release(&share->lock);
}

/* ---- Who waits: any other thread, the lock held ---------------------------------------------- */

/* What somebody waits for. */
struct wait {
    const unsigned char *uuid;
    uint64_t begun_ns, limit_ns;
    uint64_t number; /* in flush_wanted */
};

/* The share thread ends it, by what other processes say. */
static void wait_locked(struct gs_share *share, uint64_t until_ns)
{
    gs_cond_wait_until(&share->asked.given_back, &share->lock, until_ns);
}

/* How long a client is waited for, that was asked then if it was. */
static uint64_t client_until_locked(const struct gs_client *client, const struct wait *wait,
                                    bool asked, uint64_t asked_ns)
{
    if (client->flush.hung_up)
        return wait->begun_ns + ENDING_NS;
    return (asked && asked_ns < wait->begun_ns ? asked_ns : wait->begun_ns) + SILENT_NS;
}

/* Those who may have chunks mapped that have gone. 0: nobody. */
static uint64_t unmapped_until_locked(const struct gs_share *share, const struct wait *wait)
{
    const uint64_t end = wait->begun_ns + wait->limit_ns;
    const struct gs_granted_chunk *chunk;
    const struct gs_client *client;
    uint64_t gone = 0, until = 0;

    for (chunk = share->exporter.gone; chunk; chunk = chunk->newer)
        if (gs_is_of_device(wait->uuid, chunk->uuid))
            gone = chunk->gone;
    for (client = share->clients.first; client; client = client->hh.next) {
        const struct gs_flush *flush = &client->flush;
        uint64_t at = client_until_locked(client, wait, flush->open, flush->since_ns);

        if (flush->maps && flush->flushed < gone && at > until)
            until = at;
    }
    return until < end ? until : end;
}

/* Those who hold what was freed. */
static uint64_t holders_until_locked(const struct gs_share *share, const struct wait *wait)
{
    const struct gs_client *client;
    uint64_t until = 0;

    if (share->asked.flush_begun < wait->number)
        return wait->begun_ns + SILENT_NS;
    for (client = share->clients.first; client; client = client->hh.next) {
        const struct gs_flush *flush = &client->flush;
        uint64_t at =
            client_until_locked(client, wait, flush->open || flush->closing, flush->closing_ns);

        if (flush->awaited && at > until)
            until = at;
    }
    return until;
}

/* How long the blocks themselves are waited for: what was freed a moment ago, what the share thread
 * is at, and whose end is being told or is still to be told of. 0: not at all. */
static uint64_t blocks_until_locked(const struct gs_share *share, const struct wait *wait,
                                    uint64_t now, bool *ret_any)
{
    const struct gs_export *oldest = gs_export_oldest(share, GS_EXPORT_LIMBO);
    const struct gs_export *export = oldest ? oldest->older : NULL; /* that is, the newest */
    uint64_t end = wait->begun_ns + wait->limit_ns, until;

    *ret_any = share->exporter.telling > 0 || gs_export_oldest(share, GS_EXPORT_ENDED);
    if (*ret_any && end > now)
        return end;
    for (; export; export = export == oldest ? NULL : export->older) {
        if (!gs_is_of_device(wait->uuid, export->source.uuid))
            continue;
        *ret_any = true;
        until = export->pins > 0 ? end : export->freed_ns + wait->limit_ns;
        if (until > now)
            return until < end ? until : end;
    }
    return 0;
}

void gs_share_await_unmapped(struct gs_share *share, const unsigned char uuid[16],
                             uint64_t limit_ns)
{
    struct wait wait = {.uuid = uuid, .begun_ns = gs_now_ns(), .limit_ns = limit_ns};
    uint64_t until;

    gs_lock_take(&share->lock);
    while ((until = unmapped_until_locked(share, &wait)) > gs_now_ns())
        wait_locked(share, until);
    gs_lock_release(&share->lock);
}

bool gs_share_is_unmapped(struct gs_share *share)
{
    const struct gs_client *client;

    gs_lock_take(&share->lock);
    client = share->clients.first;
    while (client && !has_unheard_locked(share, client))
        client = client->hh.next;
    gs_lock_release(&share->lock);
    return !client;
}

void gs_share_await_given_back(struct gs_share *share, const unsigned char uuid[16],
                               uint64_t limit_ns)
{
    struct wait wait = {.uuid = uuid, .begun_ns = gs_now_ns(), .limit_ns = limit_ns};
    uint64_t now = wait.begun_ns, blocks, holders;
    bool any;

    gs_lock_take(&share->lock);
    blocks_until_locked(share, &wait, now, &any);
    if (share->thread_start == GS_STARTED && gs_background_is_this(&share->loop.background))
        any = false; /* the thread that others wait for here */
    if (any) {
        wait.number = ++share->asked.flush_wanted;
        gs_thread_wake(share);
    }
    while (any) {
        blocks = blocks_until_locked(share, &wait, now, &any);
        holders = holders_until_locked(share, &wait);
        if (holders > blocks)
            blocks = holders;
        any = any && blocks > now;
        if (any)
            wait_locked(share, blocks);
        now = gs_now_ns();
    }
    gs_lock_release(&share->lock);
}
