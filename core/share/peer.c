/*
 * Opener: exporters, each of whom this process has opened memory of, and what comes from them.
 *
 * A connection (connect.c) is this process's lease, so it is kept while anything is held over it,
 * whatever else goes wrong with it: an answer that comes too late is taken when it comes and its
 * hold given back. Only the exporter's hang-up or exit ends it.
 */
#include "core/share/discard.h"
#include "core/share/opener.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 64 /* of one exporter in one round */

/* Who opens many blocks one after the other is not disturbed at each answer, which wakes the share
 * thread too: only this long after one it looks what else there is. */
#define LOOK_NS GS_NS_PER_MS
#define ASTRAY_NS      GS_NS_PER_S /* connections are looked at, and tried again, after this; */
#define ASTRAY_WAIT_NS (20 * GS_NS_PER_MS) /* the thread waits for so long, as others wait for it */
#define ROOM_NS (50 * GS_NS_PER_MS) /* for a descriptor is looked for again after this */

struct gs_peer *gs_peer_find_locked(struct gs_share *share, const unsigned char *instance)
{
    struct gs_peer *peer;

    HASH_FIND(hh, share->opener.peers, instance, GS_INSTANCE_SIZE, peer);
    return peer;
}

struct gs_peer *gs_peer_new_locked(struct gs_share *share, const unsigned char *instance)
{
    struct gs_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return NULL;
    memcpy(peer->instance, instance, sizeof peer->instance);
    peer->id = ++share->opener.next_peer;
    peer->conn.fd = peer->conn.pidfd = -1;
    HASH_ADD(hh, share->opener.peers, instance, sizeof peer->instance, peer);
    if (peer->hh.tbl)
        return peer;
    free(peer);
    return NULL;
}

/* A connection is kept for the next open; but not to a broker, which has one for each process that
 * has ended, and of those there may be any number. */
void gs_peer_reap_locked(struct gs_share *share, struct gs_peer *peer)
{
    if (peer->busy || peer->opened_count > 0 || peer->imports || peer->unsent || peer->unmapped ||
        peer->astray)
        return;
    if (peer->conn.by_broker)
        gs_peer_disconnect(share, peer);
    if (peer->conn.fd >= 0)
        return;
    HASH_DEL(share->opener.peers, peer);
    free(peer);
}

/* A hang-up is always reported. What nobody waits for is read by the thread: RECALLs, and answers
 * to requests that were given up. */
static int watch(struct gs_share *share, const struct gs_peer *peer, enum gs_watch_op op)
{
    return gs_watch(share, op, peer->conn.fd, GS_WATCH_ONCE | (peer->conn.deaf ? 0 : GS_WATCH_READ),
                    GS_WATCH_PEER, peer->id);
}

/* Where the kernel has no room for that, it is tried again with the next use of the peer. */
static void watch_on(struct gs_share *share, struct gs_peer *peer)
{
    gs_peer_look(peer); /* its number may be another connection's */
    peer->conn.watched = peer->conn.fd >= 0 && watch(share, peer, GS_WATCH_ADD) == 0;
}

void gs_peer_watch(struct gs_share *share, struct gs_peer *peer)
{
    if (!peer->conn.watched && gs_thread_start(share) == GS_OK)
        watch_on(share, peer);
}

/* Those that are busy are watched when they are not any more. */
void gs_peers_watch(struct gs_share *share)
{
    struct gs_peer *peer, *next;

    gs_lock_take(&share->opener.lock);
    __atomic_store_n(&share->opener.peers_watched, true, __ATOMIC_RELEASE);
    HASH_ITER(hh, share->opener.peers, peer, next)
    {
        if (!peer->busy && peer->conn.fd >= 0 && !peer->conn.watched)
            watch_on(share, peer);
    }
    gs_lock_release(&share->opener.lock);
}

bool gs_opener_has_thread(struct gs_share *share)
{
    return __atomic_load_n(&share->opener.peers_watched, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE) || gs_thread_start(share) == GS_OK;
}

/* ---- Between requests ----------------------------------------------------------------------- */

void gs_peer_return(struct gs_peer *peer, uint64_t block_id)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    message.close.block_id = block_id;
    gs_peer_look(peer);
    if (peer->conn.fd < 0)
        return;
    gs_wire_send(peer->conn.fd, &message, -1);
    peer->conn.crossing++;
}

/* An answer to a request that was given up. One that nobody asked for makes the peer deaf. */
static void take_late(struct gs_peer *peer, const union gs_wire_message *message)
{
    if (peer->conn.abandoned > 0)
        peer->conn.abandoned--;
    else
        peer->conn.deaf = true;
    if (message->head.type == GS_WIRE_GRANT)
        gs_peer_return(peer, message->grant.block_id);
}

/* A RECALL or UNMAP of what is not here, or a second one, is fine where its answer may have crossed
 * it; an exporter that goes on talking beyond that is not listened to any more, or it could keep
 * this process busy. */
void gs_peer_take_other_locked(struct gs_share *share, struct gs_peer *peer,
                               const union gs_wire_message *message, int fd)
{
    if (fd >= 0)
        gs_discard(fd, gs_conn_who(peer->conn.fd).uid);
    gs_peer_note_refused(peer, message);
    if (message->head.type == GS_WIRE_FLUSH)
        peer->conn.deaf |= !gs_flush_wanted_locked(share, peer, message->flush.number);
    else if (message->head.type != GS_WIRE_RECALL && message->head.type != GS_WIRE_UNMAP)
        take_late(peer, message);
    else if (message->head.type == GS_WIRE_UNMAP
                 ? gs_kept_call_back_locked(share, peer, message->unmap.chunk_id)
                 : gs_idle_recall_locked(share, peer, message->recall.block_id))
        return;
    else if (peer->conn.crossing > 0)
        peer->conn.crossing--;
    else
        peer->conn.deaf = true;
}

void gs_peer_take_other(struct gs_share *share, struct gs_peer *peer,
                        const union gs_wire_message *message, int fd)
{
    gs_lock_take(&share->opener.lock);
    gs_peer_take_other_locked(share, peer, message, fd);
    gs_lock_release(&share->opener.lock);
}

bool gs_peer_hung_up(const struct gs_peer *peer)
{
    return gs_conn_hung_up(peer->conn.fd);
}

bool gs_peer_await_locked(struct gs_share *share, uint64_t deadline_ns)
{
    if (gs_now_ns() >= deadline_ns)
        return false;
    gs_cond_wait_until(&share->opener.changed, &share->opener.lock, deadline_ns);
    return true;
}

void gs_peer_release_locked(struct gs_share *share, struct gs_peer *peer)
{
    gs_peer_look(peer);
    if (peer->conn.fd >= 0 && !peer->conn.watched) {
        if (share->opener.peers_watched) {
            gs_lock_release(
                &share->opener.lock); /* a thread killed in it does not die with the lock */
            watch_on(share, peer);
            gs_lock_take(&share->opener.lock);
        } else if (peer->opened_count == 0) { /* or nobody would see the exporter hang up on it */
            gs_peer_disconnect(share, peer);
        }
    }
    gs_idle_lost_locked(share, peer);
    peer->busy = false;
    gs_cond_wake_all(&share->opener.changed);
    gs_peer_reap_locked(share, peer);
}

/* False: there is no room for the descriptor of a late answer; later there may be. */
static bool drain_locked(struct gs_share *share, struct gs_peer *peer)
{
    union gs_wire_message message;
    int fd, error;

    for (int i = 0; i < MESSAGES_MAX && !peer->conn.deaf; i++) {
        error = gs_wire_receive(peer->conn.fd, &message, &fd);
        if (error == -EPROTO || error == -EPROTONOSUPPORT)
            peer->conn.deaf = true;
        if (error)
            return error != -EMFILE;
        gs_peer_take_other_locked(share, peer, &message, fd);
    }
    return true;
}

/* What happened on a connection that nobody works with. May free the peer. */
static void look_locked(struct gs_share *share, struct gs_peer *peer)
{
    peer->noticed = false;
    gs_peer_look(peer);
    if (peer->conn.fd < 0) {
        gs_idle_lost_locked(share, peer);
        return;
    }
    if (gs_peer_hung_up(peer)) {
        gs_peer_lost(share, peer);
        share->opener.astray_ns = 0;
        gs_idle_lost_locked(share, peer);
        gs_peer_flush_locked(share, peer);
        gs_peer_reap_locked(share, peer);
        return;
    }
    if (drain_locked(share, peer)) {
        watch(share, peer, GS_WATCH_CHANGE);
        return;
    }
    peer->noticed = true;
    share->opener.look_ns = gs_now_ns() + ROOM_NS;
}

void gs_peer_event(struct gs_share *share, uint64_t id)
{
    struct gs_peer *peer, *next;

    gs_lock_take(&share->opener.lock);
    HASH_ITER(hh, share->opener.peers, peer, next)
    {
        if (peer->id != id)
            continue;
        if (peer->busy) { /* most likely with the answer that has come */
            peer->noticed = true;
            share->opener.look_ns = gs_now_ns() + LOOK_NS;
        } else {
            look_locked(share, peer);
        }
        break;
    }
    gs_lock_release(&share->opener.lock);
}

static struct gs_peer *next_astray_locked(struct gs_share *share, uint64_t now)
{
    struct gs_peer *peer, *next;

    HASH_ITER(hh, share->opener.peers, peer, next)
    {
        if (peer->busy)
            continue;
        gs_peer_look(peer);
        if (peer->conn.fd >= 0 && peer->conn.pid > 0 && !peer->conn.stack)
            peer->conn.stack = gs_alive_stack(peer->conn.pid); /* not while a program waits */
        if (peer->astray && now - peer->astray_ns >= ASTRAY_NS)
            return peer;
    }
    return NULL;
}

/* That the program has closed a connection is seen by looking alone. Lets go of the lock. */
static uint64_t astray_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_peer *peer;

    if (!share->opener.peers)
        return GS_NEVER;
    if (now < share->opener.astray_ns)
        return share->opener.astray_ns;
    while ((peer = next_astray_locked(share, now))) {
        peer->busy = true;
        peer->astray_ns = now;
        peer->deadline_ns = gs_now_ns() + ASTRAY_WAIT_NS;
        gs_lock_release(&share->opener.lock);
        gs_peer_resume(share, peer);
        gs_lock_take(&share->opener.lock);
        gs_peer_release_locked(share, peer);
    }
    share->opener.astray_ns = now + ASTRAY_NS;
    return share->opener.astray_ns;
}

static uint64_t noticed_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_peer *peer, *next;

    if (share->opener.look_ns > now)
        return share->opener.look_ns;
    share->opener.look_ns = GS_NEVER;
    HASH_ITER(hh, share->opener.peers, peer, next)
    {
        if (!peer->noticed)
            continue;
        if (!peer->busy)
            look_locked(share, peer);
        else if (share->opener.look_ns > now + LOOK_NS)
            share->opener.look_ns = now + LOOK_NS;
    }
    return share->opener.look_ns;
}

uint64_t gs_peers_tick_locked(struct gs_share *share, uint64_t now)
{
    uint64_t astray = astray_tick_locked(share, now), noticed = noticed_tick_locked(share, now);

    return astray < noticed ? astray : noticed;
}

bool gs_peer_flush_locked(struct gs_share *share, struct gs_peer *peer)
{
    gs_peer_look(peer);
    if (!gs_kept_flush_locked(share, peer))
        return false;
    while (peer->unsent) {
        struct gs_opened *opened = peer->unsent;
        union gs_wire_message message;

        gs_wire_start(&message, opened->keeps ? GS_WIRE_KEEP : GS_WIRE_CLOSE, 0);
        message.close.block_id = opened->key.block_id;
        if (peer->conn.fd >= 0 && opened->connection == peer->connection &&
            gs_wire_goes_later(gs_wire_send(peer->conn.fd, &message, -1)))
            return false;
        peer->conn.crossing++;
        peer->unsent = opened->next;
        free(opened);
    }
    return true;
}
