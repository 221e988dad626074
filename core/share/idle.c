/*
 * Opener: blocks that the program has closed and that stay held and mapped for its next open, which
 * then is a matter of counting: no message, no fence, no system call.
 *
 *   last close ─► idle ─► opened again
 *                  └─ idle_ns over, too many of them, called back, exporter gone ─► closing.c
 *
 * An idle block is a full reference of the lease, so the exporter never reuses its bytes under it;
 * the exporter calls it back when its program frees the block. No fence is recorded at the close:
 * the one that is recorded when the block starts its way back is later and so covers more.
 */
#include "core/base/list.h"
#include "core/share/opener.h"

#include <string.h>

void gs_idle_stop_locked(struct gs_share *share, struct gs_opened *opened)
{
    DL_DELETE2(share->opener.idle_oldest, opened, older, next);
    opened->next = opened->older = NULL;
    opened->idle = false;
    share->opener.idle_count--;
}

static bool may_stay(const struct gs_share *share, const struct gs_opened *opened)
{
    return !opened->recalled && !opened->orphan && share->options.idle_blocks > 0 &&
           share->options.idle_ns > 0;
}

static void end_locked(struct gs_share *share, struct gs_opened *opened)
{
    gs_idle_stop_locked(share, opened);
    gs_closing_start_locked(share, opened);
}

void gs_idle_start_locked(struct gs_share *share, struct gs_opened *opened)
{
    if (!may_stay(share, opened)) {
        gs_closing_start_locked(share, opened);
        return;
    }
    if (share->opener.idle_count + share->opener.cached_count >= share->options.idle_blocks &&
        !gs_cached_evict_locked(share) && share->opener.idle_oldest)
        end_locked(share, share->opener.idle_oldest);
    opened->idle = true;
    opened->idle_ns = gs_now_ns();
    DL_APPEND2(share->opener.idle_oldest, opened, older, next);
    share->opener.idle_count++;
    if (share->opener.idle_armed)
        return;
    share->opener.idle_armed = true;
    gs_thread_wake(share);
}

bool gs_idle_recall_locked(struct gs_share *share, struct gs_remote *remote, uint64_t block_id)
{
    struct gs_opened_key key = {.block_id = block_id};
    struct gs_opened *opened;

    memcpy(key.instance, remote->instance, sizeof key.instance);
    HASH_FIND(hh, share->opener.opened, &key, sizeof key, opened);
    if (!opened || opened->recalled)
        return false;
    opened->recalled = true;
    if (opened->idle)
        end_locked(share, opened);
    return true;
}

void gs_idle_lost_locked(struct gs_share *share, struct gs_remote *remote)
{
    struct gs_opened *opened, *next;

    if (remote->known == remote->connection)
        return;
    remote->known = remote->connection;
    gs_cached_lost_locked(share);
    HASH_ITER(hh, share->opener.opened, opened, next)
    {
        if (opened->remote != remote || opened->connection == remote->connection)
            continue;
        opened->orphan = true;
        if (opened->idle)
            end_locked(share, opened);
    }
}

uint64_t gs_idle_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_opened *oldest;

    while ((oldest = share->opener.idle_oldest) && now >= oldest->idle_ns &&
           now - oldest->idle_ns >= share->options.idle_ns)
        end_locked(share, oldest);
    share->opener.idle_armed = oldest != NULL;
    return oldest ? oldest->idle_ns + share->options.idle_ns : GS_NEVER;
}

void gs_idle_collect_locked(struct gs_share *share, uint64_t *count, uint64_t *bytes)
{
    while (share->opener.idle_oldest) {
        *count += 1;
        *bytes += share->opener.idle_oldest->size;
        end_locked(share, share->opener.idle_oldest);
    }
}

void gs_idle_finish_locked(struct gs_share *share)
{
    while (share->opener.idle_oldest)
        end_locked(share, share->opener.idle_oldest);
}
