/*
 * Importer: what stays here for its program's next open.
 *
 *   block, at its last close ─► kept ─► opened again: counting; no message, no fence, no system call
 *                                └─ called back, its time over, too many, exporter gone ─► closing.c
 *
 * A kept block is a full reference of the lease, so the exporter never reuses its bytes under it;
 * it is called back when the exporter's program frees it. No fence is recorded at the close: the
 * one that is recorded when the block starts its way back is later and so covers more.
 *
 * The chunk that it lies in is mapped for as long as any block of it is held, and no longer: what
 * goes back to the driver nobody has mapped. An exporter whose GPU is full asks when all that was
 * recalled and closed has gone back (FLUSH, core/share/flush.c).
 */
#include "core/base/list.h"
#include "core/share/importer.h"

#include <string.h>

#define AGAIN_NS GS_NS_PER_MS /* a FLUSH is answered once in this at most */

void gs_cache_take_locked(struct gs_share *share, struct gs_opened *opened)
{
    DL_DELETE2(share->importer.kept, opened, older, newer);
    share->importer.kept_count--;
    opened->kept = false;
}

static void drop_locked(struct gs_share *share, struct gs_opened *opened)
{
    gs_cache_take_locked(share, opened);
    gs_closing_start_locked(share, opened);
}

/* As many as may be are kept: the oldest makes room. */
void gs_cache_closed_locked(struct gs_share *share, struct gs_opened *opened)
{
    if (share->options.idle_blocks == 0 || share->options.idle_ns == 0 || opened->recalled ||
        opened->orphan) {
        gs_closing_start_locked(share, opened);
        return;
    }
    if (share->importer.kept_count >= share->options.idle_blocks)
        drop_locked(share, share->importer.kept);
    opened->kept = true;
    opened->kept_ns = gs_now_ns();
    DL_APPEND2(share->importer.kept, opened, older, newer);
    share->importer.kept_count++;
    if (share->importer.kept_armed)
        return;
    share->importer.kept_armed = true;
    gs_thread_wake(share);
}

/* ---- What the exporter says, or cannot any more ---------------------------------------------- */

bool gs_cache_recall_locked(struct gs_share *share, struct gs_remote *remote,
                            const struct gs_wire_close *recall)
{
    struct gs_opened *opened = gs_opened_find_locked(share, remote->instance, recall->block_id);

    if (!opened || opened->generation != recall->head.request || opened->recalled)
        return false;
    opened->recalled = true;
    if (opened->kept)
        drop_locked(share, opened);
    return true;
}

bool gs_cache_flush_came_locked(struct gs_share *share, struct gs_remote *remote,
                                const struct gs_wire_flush *flush)
{
    if (!flush->number || remote->flush_number)
        return false;
    remote->flush_number = flush->number;
    gs_thread_wake(share);
    return true;
}

void gs_cache_lost_locked(struct gs_share *share, struct gs_remote *remote)
{
    struct gs_opened *opened, *next;

    if (remote->known == remote->connection)
        return;
    remote->known = remote->connection;
    HASH_ITER(hh, share->importer.opened, opened, next) {
        if (opened->remote != remote || opened->connection == remote->connection)
            continue;
        opened->orphan = true;
        if (opened->kept)
            drop_locked(share, opened);
    }
}

/* ---- The share thread ------------------------------------------------------------------------ */

uint64_t gs_cache_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_opened *oldest;

    while ((oldest = share->importer.kept) && now >= oldest->kept_ns &&
           now - oldest->kept_ns >= share->options.idle_ns)
        drop_locked(share, oldest);
    share->importer.kept_armed = oldest != NULL;
    return oldest ? oldest->kept_ns + share->options.idle_ns : GS_NEVER;
}

void gs_cache_collect_locked(struct gs_share *share, uint64_t *count, uint64_t *bytes)
{
    while (share->importer.kept) {
        *count += 1;
        *bytes += share->importer.kept->size;
        drop_locked(share, share->importer.kept);
    }
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

/* When there may be something to say; GS_NEVER: it was said, or nobody is there to hear it. */
static uint64_t answer_locked(struct gs_share *share, struct gs_remote *remote, uint64_t now)
{
    union gs_wire_message message;

    if (now < remote->flushed_ns + AGAIN_NS)
        return remote->flushed_ns + AGAIN_NS;
    if (remote->busy || is_closing_locked(share, remote))
        return now + AGAIN_NS;
    gs_wire_start(&message, GS_WIRE_FLUSHED, 0);
    message.flush.number = remote->flush_number;
    gs_remote_look(remote);
    if (remote->conn.fd >= 0 && gs_wire_goes_later(gs_wire_send(remote->conn.fd, &message, -1)))
        return now + AGAIN_NS;
    remote->flushed_ns = now;
    remote->flush_number = 0;
    return GS_NEVER;
}

uint64_t gs_flush_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote, *next;
    uint64_t due = GS_NEVER;

    HASH_ITER(hh, share->importer.remotes, remote, next) {
        if (remote->flush_number)
            gs_sooner(&due, answer_locked(share, remote, now));
    }
    return due;
}
