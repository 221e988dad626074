/*
 * Opener: chunks of which nothing is held any more and that stay mapped for the next open, which
 * then is one message and no driver call. A program that shares a new block for every message,
 * in memory that it uses again and again, is what this is for.
 *
 *   last block called back and given back ─► kept ─► a block of it is opened
 *                                             └─ idle_ns over, too many, UNMAP, exporter gone ─►
 *                                                unmapped ─► UNMAPPED sent
 *
 * No GPU work of this process touches a kept chunk: the fences of its last block have passed. The
 * exporter knows who keeps what and hands the chunk's bytes out again under the mapping; it calls
 * the mapping back when the memory is to go. It says `strict` where it wants nothing kept.
 */
#include "core/share/opener.h"


#define BUSY_NS GS_NS_PER_MS /* an exporter that a thread works with is looked at again after */

static void leave_list(struct gs_share *share, struct gs_import *import)
{
    if (import->kept_older)
        import->kept_older->kept_newer = import->kept_newer;
    else
        share->opener.kept_oldest = import->kept_newer;
    if (import->kept_newer)
        import->kept_newer->kept_older = import->kept_older;
    else
        share->opener.kept_newest = import->kept_older;
    import->kept_older = import->kept_newer = NULL;
    import->kept = false;
    share->opener.kept_count -= !import->unwanted;
}

static void set_unwanted(struct gs_share *share, struct gs_import *import)
{
    share->opener.kept_count -= import->kept && !import->unwanted; /* another may take its place */
    import->unwanted = true;
    if (!import->kept)
        return;
    share->opener.kept_unwanted = true;
    gs_thread_wake(share);
}

/* Nobody but the exporter can call it back, so he must be there to do it, and be heard. */
static bool may_be_kept(const struct gs_share *share, const struct gs_import *import,
                        const struct gs_opened *last)
{
    const struct gs_peer *peer = import->peer;

    return last->recalled && !last->orphan && !import->strict && !import->unwanted &&
           !peer->conn.by_broker && !peer->conn.deaf && peer->conn.fd >= 0 && peer->conn.watched &&
           import->connection == peer->connection && last->connection == peer->connection &&
           share->options.idle_ns > 0;
}

bool gs_kept_evict_locked(struct gs_share *share)
{
    struct gs_import *oldest = share->opener.kept_oldest;

    while (oldest && oldest->unwanted)
        oldest = oldest->kept_newer;
    if (oldest)
        set_unwanted(share, oldest);
    return oldest != NULL;
}

bool gs_kept_start_locked(struct gs_share *share, struct gs_import *import,
                          const struct gs_opened *last)
{
    if (!may_be_kept(share, import, last))
        return false;
    if (share->opener.idle_count + share->opener.kept_count >= share->options.idle_blocks &&
        !gs_kept_evict_locked(share))
        return false;
    import->kept = true;
    import->kept_ns = gs_now_ns();
    import->kept_newer = NULL;
    import->kept_older = share->opener.kept_newest;
    if (import->kept_older)
        import->kept_older->kept_newer = import;
    else
        share->opener.kept_oldest = import;
    share->opener.kept_newest = import;
    share->opener.kept_count++;
    return true;
}

void gs_kept_stop_locked(struct gs_share *share, struct gs_import *import)
{
    leave_list(share, import);
    import->unwanted = false;
}

void gs_kept_doubt_locked(struct gs_share *share, struct gs_import *import)
{
    if (import->kept)
        set_unwanted(share, import);
}

bool gs_kept_call_back_locked(struct gs_share *share, struct gs_peer *peer, uint64_t chunk_id)
{
    struct gs_import *import = gs_import_find(peer, chunk_id);

    if (!import || import->unwanted)
        return false;
    set_unwanted(share, import);
    return true;
}

void gs_kept_lost_locked(struct gs_share *share)
{
    if (!share->opener.kept_oldest)
        return;
    share->opener.kept_unwanted = true;
    gs_thread_wake(share);
}

static void unmap_locked(struct gs_share *share, struct gs_import *import)
{
    struct gs_peer *peer = import->peer;

    peer->busy = true;
    leave_list(share, import);
    gs_import_leave_locked(share, import);
    gs_lock_release(&share->opener.lock);
    gs_import_unmap(share, import);
    gs_lock_take(&share->opener.lock);
    import->next = peer->unmapped;
    peer->unmapped = import;
    gs_peer_flush_locked(share, peer);
    gs_peer_release_locked(share, peer);
}

static bool is_to_go(const struct gs_share *share, const struct gs_import *import, uint64_t now)
{
    return import->unwanted || import->connection != import->peer->connection ||
           (now >= import->kept_ns && now - import->kept_ns >= share->options.idle_ns);
}

/* The oldest one that is to go and whose exporter no thread works with. */
static struct gs_import *next_to_go(struct gs_share *share, uint64_t now, bool *ret_busy)
{
    struct gs_import *import = share->opener.kept_oldest;

    *ret_busy = false;
    for (; import; import = import->kept_newer) {
        if (!is_to_go(share, import, now)) {
            if (!share->opener.kept_unwanted)
                return NULL; /* and the newer ones' time is not over either */
        } else if (!import->peer->busy) {
            return import;
        } else {
            *ret_busy = true;
        }
    }
    return NULL;
}

uint64_t gs_kept_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_import *import;
    bool busy;

    while ((import = next_to_go(share, now, &busy)))
        unmap_locked(share, import);
    share->opener.kept_unwanted = busy;
    if (busy)
        return now + BUSY_NS;
    return share->opener.kept_oldest ? share->opener.kept_oldest->kept_ns + share->options.idle_ns
                                     : GS_NEVER;
}

bool gs_kept_flush_locked(struct gs_share *share, struct gs_peer *peer)
{
    while (peer->unmapped) {
        struct gs_import *import = peer->unmapped;
        union gs_wire_message message;

        gs_wire_start(&message, GS_WIRE_UNMAPPED, 0);
        message.unmapped.chunk_id = import->chunk_id;
        if (peer->conn.fd >= 0 && import->connection == peer->connection &&
            gs_wire_goes_later(gs_wire_send(peer->conn.fd, &message, -1)))
            return false;
        peer->conn.crossing++;
        peer->unmapped = import->next;
        gs_import_recycle_locked(share, import);
    }
    return true;
}

void gs_kept_finish_locked(struct gs_share *share)
{
    while (share->opener.kept_oldest)
        unmap_locked(share, share->opener.kept_oldest);
}
