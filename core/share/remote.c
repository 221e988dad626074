/*
 * Importer: exporters, each of whom this process has opened memory of, and what comes from them.
 *
 * A connection (connect.c) is this process's lease, so it is kept while anything is held over it,
 * whatever else goes wrong with it: an answer that comes too late is taken when it comes and its
 * reference given back. Only the exporter's hang-up or exit ends it.
 */
#include "core/share/discard.h"
#include "core/share/importer.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 64 /* of one exporter in one round */

/* Who opens many blocks one after the other is not disturbed at each answer, which wakes the share
 * thread too: only this long after one it looks what else there is. */
#define LOOK_NS        GS_NS_PER_MS
#define ASTRAY_WAIT_NS (20 * GS_NS_PER_MS) /* the thread waits for so long, as others wait for it */

struct gs_remote *gs_remote_of_locked(struct gs_share *share, const unsigned char *instance)
{
    struct gs_remote *remote;

    HASH_FIND(hh, share->importer.remotes, instance, GS_INSTANCE_SIZE, remote);
    if (remote)
        return remote;
    remote = calloc(1, sizeof *remote);
    if (!remote)
        return NULL;
    memcpy(remote->instance, instance, sizeof remote->instance);
    remote->id = ++share->importer.next_remote;
    remote->conn.fd = remote->conn.pidfd = -1;
    HASH_ADD(hh, share->importer.remotes, instance, sizeof remote->instance, remote);
    if (remote->hh.tbl)
        return remote;
    free(remote);
    return NULL;
}

/* Where that is not the thread's own word it is to be woken. */
static void look_later(struct gs_share *share, struct gs_remote *remote, uint64_t ns)
{
    remote->noticed = true;
    gs_sooner(&share->importer.look_ns, gs_now_ns() + ns);
}

/* Whether a broker has heard what was named over this connection and given back. That it has hung
 * up is looked at last: what it had not read is gone then, and looks as if it were read. */
static bool has_heard(const struct gs_remote *remote)
{
    return !remote->conn.refused && (!remote->conn.resumed || gs_conn_is_read(remote->conn.fd)) &&
           !gs_conn_hung_up(remote->conn.fd);
}

/* A connection is kept for the next open; but not to a broker, which has one for each process that
 * has ended, and of those there may be any number. A broker may refuse it unread: then it is looked
 * at again. */
void gs_remote_reap_locked(struct gs_share *share, struct gs_remote *remote)
{
    if (remote->busy || remote->opened_count > 0 || remote->unsent || remote->astray)
        return;
    if (remote->conn.by_broker && remote->conn.fd >= 0) {
        if (has_heard(remote)) {
            gs_remote_disconnect(share, remote);
        } else {
            look_later(share, remote, GS_ROOM_NS);
            gs_thread_wake(share);
        }
    }
    if (remote->conn.fd >= 0)
        return;
    HASH_DEL(share->importer.remotes, remote);
    free(remote);
}

/* A hang-up is always reported. What nobody waits for is read by the thread: RECALLs, and answers
 * to requests that were given up. */
static int watch(struct gs_share *share, const struct gs_remote *remote, enum gs_watch_op op)
{
    return gs_watch(share, op, remote->conn.fd,
                    GS_WATCH_ONCE | (remote->conn.deaf ? 0 : GS_WATCH_READ), GS_WATCH_REMOTE,
                    remote->id);
}

/* Where the kernel has no room for that, it is tried again with the next use of the remote. */
static void watch_on(struct gs_share *share, struct gs_remote *remote)
{
    gs_remote_look(remote); /* its number may be another connection's */
    remote->conn.watched = remote->conn.fd >= 0 && watch(share, remote, GS_WATCH_ADD) == 0;
}

/* ---- Between requests ----------------------------------------------------------------------- */

/* Where the exporter reads nothing it goes later, as any CLOSE. What was granted to a record that
 * its GPU work uses still, of before the exporter was given up, goes back with that; and so does
 * what it has, and asked for anew. */
static void return_locked(struct gs_share *share, struct gs_remote *remote,
                          const struct gs_wire_grant *grant)
{
    struct gs_opened *opened = gs_opened_find_locked(share, remote->instance, grant->block_id);

    gs_remote_look(remote);
    if (remote->conn.fd < 0)
        return;
    if (opened && (opened->orphan || opened->import->away)) {
        opened->generation = grant->head.request;
        opened->recalled = false; /* that was the one before */
        return;
    }
    opened = calloc(1, sizeof *opened);
    if (!opened) { /* only what is held is named over the next connection */
        gs_conn_shut(remote->conn.fd);
        return;
    }
    opened->key = gs_ipc_key(remote->instance, grant->block_id);
    opened->generation = grant->head.request;
    opened->connection = remote->connection;
    opened->next = remote->unsent;
    remote->unsent = opened;
    if (!gs_remote_flush_locked(share, remote))
        gs_thread_wake(share);
}

void gs_remote_return(struct gs_share *share, struct gs_remote *remote,
                      const struct gs_wire_grant *grant)
{
    gs_lock_take(&share->importer.lock);
    return_locked(share, remote, grant);
    gs_lock_release(&share->importer.lock);
}

/* An exporter that goes on talking beyond what it owes is not listened to any more, or it could
 * keep this process busy. */
static void take_owed(struct gs_remote *remote)
{
    if (remote->conn.owed > 0)
        remote->conn.owed--;
    else
        remote->conn.deaf = true;
}

/* An answer to a request that was given up. */
static void take_late_locked(struct gs_share *share, struct gs_remote *remote,
                             const union gs_wire_message *message)
{
    take_owed(remote);
    if (message->head.type == GS_WIRE_GRANT)
        return_locked(share, remote, &message->grant);
}

/* A RECALL of what is not here, or a second one, is fine where its answer may have crossed it. */
static void take_other_locked(struct gs_share *share, struct gs_remote *remote,
                              const union gs_wire_message *message, int fd)
{
    if (fd >= 0)
        gs_discard(fd);
    gs_remote_note_end(remote, message);
    if (!gs_wire_goes(message, GS_ANSWERS))
        remote->conn.deaf = true;
    else if (message->head.type == GS_WIRE_FLUSH)
        remote->conn.deaf |= !gs_cache_flush_came_locked(share, remote, &message->flush);
    else if (message->head.type == GS_WIRE_BYE)
        remote->conn.deaf = true; /* there is nothing else to say but the hang-up */
    else if (message->head.type != GS_WIRE_RECALL)
        take_late_locked(share, remote, message);
    else if (!gs_cache_recall_locked(share, remote, &message->recall))
        take_owed(remote);
}

void gs_remote_take_other(struct gs_share *share, struct gs_remote *remote,
                          const union gs_wire_message *message, int fd)
{
    gs_lock_take(&share->importer.lock);
    take_other_locked(share, remote, message, fd);
    gs_lock_release(&share->importer.lock);
}

bool gs_remote_await_locked(struct gs_share *share, uint64_t deadline_ns)
{
    if (gs_now_ns() >= deadline_ns)
        return false;
    gs_cond_wait_until(&share->importer.changed, &share->importer.lock, deadline_ns);
    return true;
}

void gs_remote_release_locked(struct gs_share *share, struct gs_remote *remote)
{
    gs_remote_look(remote);
    if (remote->conn.fd >= 0 && !remote->conn.watched) {
        gs_lock_release(
            &share->importer.lock); /* a thread killed in it does not die with the lock */
        watch_on(share, remote);
        gs_lock_take(&share->importer.lock);
    }
    if (remote->astray) { /* the thread tells it later what is held */
        share->importer.astray = true;
        gs_thread_wake(share);
    }
    gs_cache_lost_locked(share, remote);
    gs_owner_note_locked(remote);
    remote->busy = false;
    gs_cond_wake_all(&share->importer.changed);
    gs_remote_reap_locked(share, remote);
}

/* False: there is no room for the descriptor of a late answer; later there may be. */
static bool drain_locked(struct gs_share *share, struct gs_remote *remote)
{
    union gs_wire_message message;
    int fd, error;

    for (int i = 0; i < MESSAGES_MAX && !remote->conn.deaf; i++) {
        error = gs_wire_receive(remote->conn.fd, &message, &fd);
        if (error == -EPROTO || error == -EPROTONOSUPPORT)
            remote->conn.deaf = true;
        if (error)
            return error != -EMFILE;
        take_other_locked(share, remote, &message, fd);
    }
    return true;
}

/* What happened on a connection that nobody works with: it may be lost. May free the remote. */
static void look_locked(struct gs_share *share, struct gs_remote *remote)
{
    remote->noticed = false;
    share->importer.astray = true;
    gs_remote_look(remote);
    if (remote->conn.fd < 0) {
        gs_cache_lost_locked(share, remote);
        return;
    }
    if (gs_conn_hung_up(remote->conn.fd)) {
        gs_remote_lost(share, remote);
        share->importer.astray_ns = 0;
        gs_cache_lost_locked(share, remote);
        gs_remote_flush_locked(share, remote);
        gs_remote_reap_locked(share, remote);
        return;
    }
    if (!drain_locked(share, remote)) {
        look_later(share, remote, GS_ROOM_NS);
        return;
    }
    watch(share, remote, GS_WATCH_CHANGE);
    gs_remote_reap_locked(share, remote);
}

void gs_remotes_look(struct gs_share *share)
{
    gs_lock_take(&share->importer.lock);
    share->importer.astray = true;
    gs_lock_release(&share->importer.lock);
}

void gs_remote_event(struct gs_share *share, uint64_t id)
{
    struct gs_remote *remote, *next;
    GS_HOLDING(&share->importer.lock);

    share->importer.astray = true;
    HASH_ITER(hh, share->importer.remotes, remote, next) {
        if (remote->id != id)
            continue;
        if (remote->busy) /* most likely with the answer that has come */
            look_later(share, remote, LOOK_NS);
        else
            look_locked(share, remote);
        break;
    }
}

static struct gs_remote *next_astray_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote, *next;

    HASH_ITER(hh, share->importer.remotes, remote, next) {
        share->importer.astray |= remote->busy;
        if (remote->busy)
            continue;
        gs_remote_look(remote);
        share->importer.astray |= remote->astray;
        if (remote->astray && now - remote->astray_ns >= GS_LOOK_NS)
            return remote;
    }
    return NULL;
}

/* That the program has closed a connection is seen by looking alone: where something came, or the
 * other side does, to say that it was hung up on (clients.c). Lets go of the lock. */
static uint64_t astray_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote;

    if (!share->importer.astray || !share->importer.remotes)
        return GS_NEVER;
    if (now < share->importer.astray_ns)
        return share->importer.astray_ns;
    share->importer.astray = false;
    while ((remote = next_astray_locked(share, now))) {
        remote->busy = true;
        remote->astray_ns = now;
        remote->deadline_ns = gs_now_ns() + ASTRAY_WAIT_NS;
        gs_lock_release(&share->importer.lock);
        gs_remote_resume(share, remote);
        gs_lock_take(&share->importer.lock);
        gs_remote_release_locked(share, remote);
    }
    share->importer.astray_ns = now + GS_LOOK_NS;
    return share->importer.astray ? share->importer.astray_ns : GS_NEVER;
}

static void noticed_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote, *next;

    if (share->importer.look_ns > now)
        return;
    share->importer.look_ns = GS_NEVER;
    HASH_ITER(hh, share->importer.remotes, remote, next) {
        if (!remote->noticed)
            continue;
        if (!remote->busy)
            look_locked(share, remote);
        else
            gs_sooner(&share->importer.look_ns, now + LOOK_NS);
    }
}

uint64_t gs_remotes_tick_locked(struct gs_share *share, uint64_t now)
{
    uint64_t due;

    noticed_tick_locked(share, now); /* first: a connection that it finds lost is astray */
    due = astray_tick_locked(share, now);
    gs_sooner(&due, share->importer.look_ns);
    return due;
}

static bool tell_fork(struct gs_remote *remote)
{
    union gs_wire_message message;

    gs_remote_look(remote);
    if (remote->conn.fd < 0 || remote->conn.fork_told) /* the next connection begins with it */
        return true;
    gs_wire_start(&message, GS_WIRE_FORKED, 0);
    remote->conn.fork_told = !gs_wire_goes_later(gs_wire_send(remote->conn.fd, &message, -1));
    return remote->conn.fork_told;
}

uint64_t gs_fork_tick_locked(struct gs_share *share, uint64_t now)
{
    struct gs_remote *remote, *next;
    bool told = true;

    if (share->importer.fork_told || !__atomic_load_n(&share->importer.forked, __ATOMIC_SEQ_CST))
        return GS_NEVER;
    HASH_ITER(hh, share->importer.remotes, remote, next)
        told = !remote->busy && tell_fork(remote) && told;
    share->importer.fork_told = told;
    return told ? GS_NEVER : now + GS_ROOM_NS;
}

/* Where the lock is taken, maybe by this very thread below a handler of a signal, the share thread
 * tells them. */
void gs_share_forking(struct gs_share *share)
{
    if (__atomic_exchange_n(&share->importer.forked, true, __ATOMIC_SEQ_CST))
        return;
    if (gs_lock_try(&share->importer.lock)) {
        gs_fork_tick_locked(share, gs_now_ns());
        gs_lock_release(&share->importer.lock);
    }
    gs_thread_wake(share);
}

bool gs_remote_flush_locked(struct gs_share *share, struct gs_remote *remote)
{
    gs_remote_look(remote);
    while (remote->unsent) {
        struct gs_opened *opened = remote->unsent;
        /* What is not named over a new connection goes back without a word. */
        bool is_old = opened->connection != remote->connection;
        union gs_wire_message message;

        gs_wire_start(&message, GS_WIRE_CLOSE, opened->generation);
        message.close.block_id = opened->key.id;
        if (remote->conn.fd >= 0 && !is_old &&
            gs_wire_goes_later(gs_wire_send(remote->conn.fd, &message, -1)))
            return false;
        remote->conn.owed += !is_old;
        remote->unsent = opened->next;
        free(opened);
    }
    return true;
}
