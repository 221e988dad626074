/* Opener: the answer to FLUSH (core/share/flush.c). */
#include "core/share/opener.h"

#define AGAIN_NS GS_NS_PER_MS /* an opener answers once in this at most */

bool gs_flush_wanted_locked(struct gs_share *share, struct gs_remote *remote, uint64_t number)
{
    if (remote->flush || !number)
        return false;
    remote->flush = number;
    gs_thread_wake(share);
    return true;
}

/* Something of the remote's is on its way back. What a device of this machine has registered is
 * not: that ends when its owner says so. */
static bool is_closing_locked(const struct gs_share *share, const struct gs_remote *remote)
{
    const struct gs_opened *opened = share->opener.closing;

    while (opened && (opened->remote != remote || opened->held))
        opened = opened->next;
    return opened || remote->busy || remote->unsent;
}

uint64_t gs_flush_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote, *next;
    uint64_t due = GS_NEVER;

    HASH_ITER(hh, share->opener.remotes, remote, next)
    {
        union gs_wire_message message;
        uint64_t at = remote->flushed_ns + AGAIN_NS;

        if (!remote->flush)
            continue;
        if (is_closing_locked(share, remote))
            at = now + AGAIN_NS;
        if (at > now) {
            due = at < due ? at : due;
            continue;
        }
        gs_wire_start(&message, GS_WIRE_FLUSHED, 0);
        message.flushed.number = remote->flush;
        gs_remote_look(remote);
        if (remote->conn.fd >= 0 &&
            gs_wire_goes_later(gs_wire_send(remote->conn.fd, &message, -1))) {
            due = now + AGAIN_NS;
            continue;
        }
        remote->flush = 0;
        remote->flushed_ns = now;
    }
    return due;
}
