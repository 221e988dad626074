/* Opener: the answer to FLUSH (core/share/flush.c). */
#include "core/share/opener.h"

#define AGAIN_NS GS_NS_PER_MS /* an opener answers once in this at most */

bool gs_flush_wanted_locked(struct gs_share *share, struct gs_peer *peer, uint64_t number)
{
    if (peer->flush || !number)
        return false;
    peer->flush = number;
    gs_thread_wake(share);
    return true;
}

/* Something of the peer's is on its way back. What a device of this machine has registered is not:
 * that ends when its owner says so. */
static bool is_closing_locked(const struct gs_share *share, const struct gs_peer *peer)
{
    const struct gs_opened *opened = share->opener.closing;

    while (opened && (opened->peer != peer || opened->held))
        opened = opened->next;
    return opened || peer->busy || peer->unsent;
}

uint64_t gs_flush_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_peer *peer, *next;
    uint64_t due = GS_NEVER;

    HASH_ITER(hh, share->opener.peers, peer, next)
    {
        union gs_wire_message message;
        uint64_t at = peer->flushed_ns + AGAIN_NS;

        if (!peer->flush)
            continue;
        if (is_closing_locked(share, peer))
            at = now + AGAIN_NS;
        if (at > now) {
            due = at < due ? at : due;
            continue;
        }
        gs_wire_start(&message, GS_WIRE_FLUSHED, 0);
        message.flushed.number = peer->flush;
        gs_peer_look(peer);
        if (peer->conn.fd >= 0 && gs_wire_goes_later(gs_wire_send(peer->conn.fd, &message, -1))) {
            due = now + AGAIN_NS;
            continue;
        }
        peer->flush = 0;
        peer->flushed_ns = now;
    }
    return due;
}
