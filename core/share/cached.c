/*
 * Opener: chunks of which nothing is held any more and that stay mapped for the next open, which
 * then is one message and no driver call. A program that shares a new block for every message,
 * in memory that it uses again and again, is what this is for.
 *
 *   last block called back and given back ─► cached ─► a block of it is opened
 *                                             └─ idle_ns over, too many, UNMAP, exporter gone ─►
 *                                                unmapped ─► UNMAPPED sent
 *
 * No GPU work of this process touches a cached chunk: the fences of its last block have passed. The
 * exporter knows who keeps what and hands the chunk's bytes out again under the mapping; it calls
 * the mapping back when the memory is to go. It says `strict` where it wants nothing kept.
 */
#include "core/base/list.h"
#include "core/share/opener.h"

#define BUSY_NS GS_NS_PER_MS /* an exporter that a thread works with is looked at again after */

static void leave_list(struct gs_share *share, struct gs_import *import)
{
    DL_DELETE2(share->opener.cached_oldest, import, cached_older, cached_newer);
    import->cached = false;
    share->opener.cached_count -= !import->unwanted;
}

static void set_unwanted(struct gs_share *share, struct gs_import *import)
{
    share->opener.cached_count -=
        import->cached && !import->unwanted; /* another may take its place */
    import->unwanted = true;
    if (!import->cached)
        return;
    share->opener.cached_unwanted = true;
    gs_thread_wake(share);
}

/* Nobody but the exporter can call it back, so he must be there to do it, and be heard. */
static bool may_be_cached(const struct gs_share *share, const struct gs_import *import,
                          const struct gs_opened *last)
{
    const struct gs_remote *remote = import->remote;

    return last->recalled && !last->orphan && !import->strict && !import->unwanted &&
           !remote->conn.by_broker && !remote->conn.deaf && remote->conn.fd >= 0 &&
           remote->conn.watched && import->connection == remote->connection &&
           last->connection == remote->connection && share->options.idle_ns > 0;
}

bool gs_cached_evict_locked(struct gs_share *share)
{
    struct gs_import *oldest = share->opener.cached_oldest;

    while (oldest && oldest->unwanted)
        oldest = oldest->cached_newer;
    if (oldest)
        set_unwanted(share, oldest);
    return oldest != NULL;
}

bool gs_cached_start_locked(struct gs_share *share, struct gs_import *import,
                            const struct gs_opened *last)
{
    if (!may_be_cached(share, import, last))
        return false;
    if (share->opener.idle_count + share->opener.cached_count >= share->options.idle_blocks &&
        !gs_cached_evict_locked(share))
        return false;
    import->cached = true;
    import->cached_ns = gs_now_ns();
    DL_APPEND2(share->opener.cached_oldest, import, cached_older, cached_newer);
    share->opener.cached_count++;
    return true;
}

void gs_cached_stop_locked(struct gs_share *share, struct gs_import *import)
{
    leave_list(share, import);
    import->unwanted = false;
}

void gs_cached_doubt_locked(struct gs_share *share, struct gs_import *import)
{
    if (import->cached)
        set_unwanted(share, import);
}

bool gs_cached_call_back_locked(struct gs_share *share, struct gs_remote *remote, uint64_t chunk_id)
{
    struct gs_import *import = gs_import_find(remote, chunk_id);

    if (!import || import->unwanted)
        return false;
    set_unwanted(share, import);
    return true;
}

void gs_cached_lost_locked(struct gs_share *share)
{
    if (!share->opener.cached_oldest)
        return;
    share->opener.cached_unwanted = true;
    gs_thread_wake(share);
}

static void unmap_locked(struct gs_share *share, struct gs_import *import)
{
    struct gs_remote *remote = import->remote;

    remote->busy = true;
    leave_list(share, import);
    gs_import_leave_locked(share, import);
    gs_lock_release(&share->opener.lock);
    gs_import_unmap(share, import);
    gs_lock_take(&share->opener.lock);
    LL_PREPEND(remote->unmapped, import);
    gs_remote_flush_locked(share, remote);
    gs_remote_release_locked(share, remote);
}

static bool is_to_go(const struct gs_share *share, const struct gs_import *import, uint64_t now)
{
    return import->unwanted || import->connection != import->remote->connection ||
           (now >= import->cached_ns && now - import->cached_ns >= share->options.idle_ns);
}

/* The oldest one that is to go and whose exporter no thread works with. */
static struct gs_import *next_to_go(struct gs_share *share, uint64_t now, bool *ret_busy)
{
    struct gs_import *import = share->opener.cached_oldest;

    *ret_busy = false;
    for (; import; import = import->cached_newer) {
        if (!is_to_go(share, import, now)) {
            if (!share->opener.cached_unwanted)
                return NULL; /* and the newer ones' time is not over either */
        } else if (!import->remote->busy) {
            return import;
        } else {
            *ret_busy = true;
        }
    }
    return NULL;
}

uint64_t gs_cached_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_import *import;
    bool busy;

    while ((import = next_to_go(share, now, &busy)))
        unmap_locked(share, import);
    share->opener.cached_unwanted = busy;
    if (busy)
        return now + BUSY_NS;
    return share->opener.cached_oldest
               ? share->opener.cached_oldest->cached_ns + share->options.idle_ns
               : GS_NEVER;
}

void gs_cached_collect_locked(struct gs_share *share, uint64_t *count, uint64_t *bytes)
{
    struct gs_import *import;

    for (import = share->opener.cached_oldest; import; import = import->cached_newer) {
        if (import->unwanted)
            continue;
        *count += 1;
        *bytes += import->span.size;
        set_unwanted(share, import);
    }
}

bool gs_cached_flush_locked(struct gs_share *share, struct gs_remote *remote)
{
    while (remote->unmapped) {
        struct gs_import *import = remote->unmapped;
        union gs_wire_message message;

        gs_wire_start(&message, GS_WIRE_UNMAPPED, 0);
        message.unmapped.chunk_id = import->chunk_id;
        if (remote->conn.fd >= 0 && import->connection == remote->connection &&
            gs_wire_goes_later(gs_wire_send(remote->conn.fd, &message, -1)))
            return false;
        remote->conn.crossing++;
        remote->unmapped = import->next;
        gs_import_recycle_locked(share, import);
    }
    return true;
}

void gs_cached_finish_locked(struct gs_share *share)
{
    while (share->opener.cached_oldest)
        unmap_locked(share, share->opener.cached_oldest);
}
