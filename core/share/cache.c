/*
 * Importer: what stays here for its program's next open.
 *
 *   block, at its last close ─► kept ─► opened again: counting; no message, no fence, no system call
 *                                └─ called back, its time over, too many, exporter gone ─► closing.c
 *   chunk, when its last block  ─► kept ─► a block of it is opened: one message, no driver call
 *   was called back and given        └─ gone, its time over, too many, exporter gone ─► unmapped
 *   back
 *
 * A kept block is a full reference of the lease, so the exporter never reuses its bytes under it;
 * it is called back when the exporter's program frees it. No fence is recorded at the close: the
 * one that is recorded when the block starts its way back is later and so covers more.
 *
 * A kept chunk is this process's affair alone. No GPU work of it touches the chunk: the fences of
 * its last block have passed. The exporter hands the chunk's bytes out again under the mapping, and
 * says that the memory is to go to whoever may have it mapped (FLUSH, core/share/flush.c). It is
 * answered when what it named is unmapped, and, where it asks for that, once more when nothing is
 * on its way back.
 */
#include "core/base/list.h"
#include "core/share/importer.h"

#include <string.h>

#define BUSY_NS  GS_NS_PER_MS /* an exporter that a thread works with is looked at again after */
#define AGAIN_NS GS_NS_PER_MS /* a FLUSH is answered once in this at most */

void gs_cache_take_locked(struct gs_share *share, struct gs_kept *kept)
{
    bool stays = kept->state == GS_KEPT;
    struct gs_kept **list = stays ? &share->importer.kept : &share->importer.to_go;

    DL_DELETE2(*list, kept, older, newer);
    share->importer.kept_count -= stays;
    kept->state = GS_KEPT_NOT;
}

/* It is to go. A block starts its way back, a chunk is unmapped by the thread. */
static void drop_locked(struct gs_share *share, struct gs_kept *kept)
{
    struct gs_opened *opened = kept->opened;

    gs_cache_take_locked(share, kept);
    if (opened) {
        gs_closing_start_locked(share, opened);
        return;
    }
    kept->state = GS_KEPT_TO_GO;
    DL_APPEND2(share->importer.to_go, kept, older, newer);
    gs_thread_wake(share);
}

/* As many as may be are kept: the oldest makes room. */
static void keep_locked(struct gs_share *share, struct gs_kept *kept)
{
    if (share->importer.kept_count >= share->options.idle_blocks)
        drop_locked(share, share->importer.kept);
    kept->state = GS_KEPT;
    kept->since_ns = gs_now_ns();
    DL_APPEND2(share->importer.kept, kept, older, newer);
    share->importer.kept_count++;
    if (share->importer.kept_armed)
        return;
    share->importer.kept_armed = true;
    gs_thread_wake(share);
}

static bool keeps_any(const struct gs_share *share)
{
    return share->options.idle_blocks > 0 && share->options.idle_ns > 0;
}

void gs_cache_closed_locked(struct gs_share *share, struct gs_opened *opened)
{
    if (!keeps_any(share) || opened->recalled || opened->orphan) {
        gs_closing_start_locked(share, opened);
        return;
    }
    opened->kept.opened = opened;
    keep_locked(share, &opened->kept);
}

/* The exporter alone can say that a chunk's memory is to go: it must be there to say it, and be
 * heard. */
bool gs_cache_keeps_locked(struct gs_share *share, struct gs_import *import,
                           const struct gs_opened *last)
{
    const struct gs_remote *remote = import->remote;

    if (!keeps_any(share) || !last->recalled || last->orphan || import->strict ||
        remote->conn.deaf || remote->conn.fd < 0 || !remote->conn.watched ||
        import->connection != remote->connection || last->connection != remote->connection)
        return false;
    import->kept.import = import;
    keep_locked(share, &import->kept);
    return true;
}

/* ---- What the exporter says, or cannot any more ---------------------------------------------- */

bool gs_cache_recall_locked(struct gs_share *share, struct gs_remote *remote,
                            const struct gs_wire_close *recall)
{
    struct gs_opened_key key = {.block_id = recall->block_id};
    struct gs_opened *opened;

    memcpy(key.instance, remote->instance, sizeof key.instance);
    HASH_FIND(hh, share->importer.opened, &key, sizeof key, opened);
    if (!opened || opened->generation != recall->head.request || opened->recalled)
        return false;
    opened->recalled = true;
    if (opened->kept.state == GS_KEPT)
        drop_locked(share, &opened->kept);
    return true;
}

static bool is_named(const struct gs_wire_flush *flush, uint64_t chunk_id)
{
    bool named = flush->chunks > GS_FLUSH_CHUNKS;

    for (uint32_t i = 0; !named && i < flush->chunks; i++)
        named = flush->chunk_ids[i] == chunk_id;
    return named;
}

/* Of the chunks of the remote's that are kept those that it names go; NULL: all. */
static void drop_chunks_locked(struct gs_share *share, struct gs_remote *remote,
                               const struct gs_wire_flush *flush)
{
    for (struct gs_import *import = remote->imports; import; import = import->next)
        if (import->kept.state == GS_KEPT && (!flush || is_named(flush, import->chunk_id)))
            drop_locked(share, &import->kept);
}

bool gs_cache_flush_came_locked(struct gs_share *share, struct gs_remote *remote,
                                const struct gs_wire_flush *flush)
{
    if (!flush->number || (remote->flush.number && !remote->flush.answered))
        return false;
    remote->flush = (struct gs_flush_asked){.number = flush->number,
                                            .closed = flush->closed,
                                            .answered_ns = remote->flush.answered_ns};
    drop_chunks_locked(share, remote, flush);
    gs_thread_wake(share);
    return true;
}

void gs_cache_doubt_locked(struct gs_share *share, struct gs_remote *remote)
{
    drop_chunks_locked(share, remote, NULL);
}

void gs_cache_lost_locked(struct gs_share *share, struct gs_remote *remote)
{
    struct gs_opened *opened, *next;

    if (remote->known == remote->connection)
        return;
    remote->known = remote->connection;
    drop_chunks_locked(share, remote, NULL);
    HASH_ITER(hh, share->importer.opened, opened, next) {
        if (opened->remote != remote || opened->connection == remote->connection)
            continue;
        opened->orphan = true;
        if (opened->kept.state == GS_KEPT)
            drop_locked(share, &opened->kept);
    }
}

/* ---- The share thread ------------------------------------------------------------------------ */

/* Lets go of the lock meanwhile. */
static void unmap_locked(struct gs_share *share, struct gs_import *import)
{
    struct gs_remote *remote = import->remote;

    remote->busy = true;
    gs_cache_take_locked(share, &import->kept);
    gs_import_leave_locked(share, import);
    gs_lock_release(&share->importer.lock);
    gs_import_unmap(share, import);
    gs_lock_take(&share->importer.lock);
    gs_import_recycle_locked(share, import);
    gs_remote_release_locked(share, remote);
}

/* One whose exporter no thread works with. */
static struct gs_import *next_to_go(const struct gs_share *share)
{
    const struct gs_kept *kept = share->importer.to_go;

    while (kept && kept->import->remote->busy)
        kept = kept->newer;
    return kept ? kept->import : NULL;
}

uint64_t gs_cache_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_kept *oldest;
    struct gs_import *import;

    while ((oldest = share->importer.kept) && now >= oldest->since_ns &&
           now - oldest->since_ns >= share->options.idle_ns)
        drop_locked(share, oldest);
    while ((import = next_to_go(share)))
        unmap_locked(share, import);
    oldest = share->importer.kept;
    share->importer.kept_armed = oldest != NULL;
    if (share->importer.to_go)
        return now + BUSY_NS;
    return oldest ? oldest->since_ns + share->options.idle_ns : GS_NEVER;
}

void gs_cache_collect_locked(struct gs_share *share, uint64_t *count, uint64_t *bytes)
{
    struct gs_kept *kept;

    while ((kept = share->importer.kept)) {
        *count += 1;
        *bytes += kept->opened ? kept->opened->size : kept->import->span.size;
        drop_locked(share, kept);
    }
}

void gs_cache_finish_locked(struct gs_share *share)
{
    while (share->importer.kept)
        drop_locked(share, share->importer.kept);
    while (share->importer.to_go)
        unmap_locked(share, share->importer.to_go->import);
}

/* ---- The answer to FLUSH --------------------------------------------------------------------- */

/* Something of the remote's is on its way back. What a device of this machine has registered is
 * not: that ends when its owner says so. */
static bool is_closing_locked(const struct gs_share *share, const struct gs_remote *remote)
{
    const struct gs_opened *opened = share->importer.closing;

    while (opened && (opened->remote != remote || opened->held))
        opened = opened->next;
    return opened || remote->unsent;
}

static bool is_mapped_locked(const struct gs_share *share, const struct gs_remote *remote)
{
    const struct gs_kept *kept = share->importer.to_go;

    while (kept && kept->import->remote != remote)
        kept = kept->newer;
    return kept || remote->busy;
}

/* When there may be something to say; 0: it was said, or nobody is there to hear it. */
static uint64_t answer_locked(struct gs_share *share, struct gs_remote *remote, uint64_t now)
{
    struct gs_flush_asked *flush = &remote->flush;
    bool closing = flush->closed && is_closing_locked(share, remote);
    union gs_wire_message message;

    if (now < flush->answered_ns + AGAIN_NS)
        return flush->answered_ns + AGAIN_NS;
    if (is_mapped_locked(share, remote) || (closing && flush->answered))
        return now + AGAIN_NS;
    gs_wire_start(&message, GS_WIRE_FLUSHED, 0);
    message.flushed.number = flush->number;
    message.flushed.closing = closing;
    gs_remote_look(remote);
    if (remote->conn.fd >= 0 && gs_wire_goes_later(gs_wire_send(remote->conn.fd, &message, -1)))
        return now + AGAIN_NS;
    flush->answered = true;
    flush->answered_ns = now;
    if (!closing)
        flush->number = 0;
    return closing ? now + AGAIN_NS : 0;
}

uint64_t gs_flush_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote, *next;
    uint64_t due = GS_NEVER;

    HASH_ITER(hh, share->importer.remotes, remote, next) {
        uint64_t at = remote->flush.number ? answer_locked(share, remote, now) : 0;

        due = at && at < due ? at : due;
    }
    return due;
}
