/*
 * Opener: connections to exporters, one for each that this process has opened memory of.
 *
 * A connection is this process's lease, so it is kept while anything is held over it, whatever
 * else goes wrong with it: an answer that comes too late is taken when it comes and its hold given
 * back. Only the exporter's hang-up or exit ends it.
 */
#include "core/share/discard.h"
#include "core/share/opener.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGES_MAX 64 /* of one exporter in one round */

/* Who opens many blocks one after the other is not disturbed at each answer, which wakes the share
 * thread too: only this long after one it looks what else there is. */
#define LOOK_NS GS_NS_PER_MS
#define ASTRAY_NS      GS_NS_PER_S /* connections are looked at, and tried again, after this; */
#define ASTRAY_WAIT_NS (20 * GS_NS_PER_MS) /* the thread waits for so long, as others wait for it */
#define ABSENT_NS (30 * GS_NS_PER_S) /* who is not there is given up after this, though he runs */
#define HEARD_NS (10 * GS_NS_PER_S)  /* by then what was said over a new connection has been heard */
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
    peer->fd = peer->pidfd = -1;
    HASH_ADD(hh, share->opener.peers, instance, sizeof peer->instance, peer);
    if (peer->hh.tbl)
        return peer;
    free(peer);
    return NULL;
}

static void forget_pidfd(struct gs_peer *peer)
{
    gs_fd_close(&peer->kept_pidfd);
    peer->kept_pidfd = (struct gs_fd){0};
    peer->pidfd = -1;
}

static void forget_connection(struct gs_peer *peer)
{
    peer->fd = -1;
    peer->kept_fd = (struct gs_fd){0};
    peer->watched = false;
    peer->abandoned = 0;
}

/* What was held over it is lost. */
static void set_disconnected(struct gs_peer *peer)
{
    forget_connection(peer);
    forget_pidfd(peer);
    peer->astray = false;
    peer->absent_ns = 0;
    peer->connection++;
}

/* One who passes something on is asked once, and holds are nobody's there. */
void gs_peer_look(struct gs_peer *peer)
{
    if (peer->fd >= 0 && !gs_fd_is_there(&peer->kept_fd)) {
        forget_connection(peer);
        peer->astray = peer->id != 0;
        if (!peer->astray)
            forget_pidfd(peer);
    } else if (peer->pidfd >= 0 && !gs_fd_is_there(&peer->kept_pidfd))
        peer->pidfd = -1;
}

/* An answer that was not waited for may have come with a hold. */
static void say_bye(const struct gs_peer *peer)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_BYE, 0);
    if (peer->greeted && peer->opened_count == 0)
        gs_wire_send(peer->fd, &message, -1);
}

void gs_peer_disconnect(struct gs_share *share, struct gs_peer *peer)
{
    gs_peer_look(peer);
    if (peer->astray)
        set_disconnected(peer);
    if (peer->fd < 0)
        return;
    if (peer->watched)
        gs_unwatch(share, peer->fd);
    say_bye(peer);
    gs_hang_up(peer->fd); /* a forked child may hold the socket: the exporter must know */
    set_disconnected(peer);
}

void gs_peer_note_refused(struct gs_peer *peer, const union gs_wire_message *message)
{
    peer->refused |= peer->resumed && message->head.type == GS_WIRE_REFUSE &&
                     message->head.request == 0;
}

/* Whether nothing was taken up over it: what it said last may not be read yet. */
static bool is_refused(struct gs_peer *peer)
{
    union gs_wire_message message;

    while (peer->resumed && gs_wire_receive(peer->fd, &message, NULL) == 0)
        gs_peer_note_refused(peer, &message);
    return peer->refused;
}

/* Whether he who has the memory runs, whatever he does with connections: one that is about to exit has
 * no stack any more, and another program has another. Where that cannot be seen (another PID
 * namespace, another user) his hang-up is taken for his end. */
static bool is_running(const struct gs_peer *peer)
{
    uint64_t stack;

    if (peer->pid <= 0 || !gs_alive_runs(peer->pid) ||
        (gs_fd_is_there(&peer->kept_pidfd) && gs_alive_exited(peer->pidfd)))
        return false;
    stack = gs_alive_stack(peer->pid);
    return stack && (!peer->stack || stack == peer->stack);
}

/* Whether he may think that more is held than is: he granted something over this connection, or may
 * not have heard what was taken up over it. */
static bool may_err(const struct gs_peer *peer)
{
    return peer->asked || (peer->resumed && gs_now_ns() - peer->connected_ns < HEARD_NS);
}

/*
 * What is held over it is taken up over another one, if whoever has the memory lives: he may have lost
 * this one as a program loses it, which closes what it does not know, or have thought that nobody
 * reads here. That it is nothing he is told as well.
 */
void gs_peer_lost(struct gs_share *share, struct gs_peer *peer)
{
    gs_peer_look(peer);
    if (peer->astray)
        return;
    if (!peer->id || peer->fd < 0 ||
        (peer->opened_count == 0 && !is_refused(peer) && !(may_err(peer) && is_running(peer)))) {
        gs_peer_disconnect(share, peer);
        return;
    }
    if (peer->watched)
        gs_unwatch(share, peer->fd);
    gs_hang_up(peer->fd);
    forget_connection(peer);
    peer->astray = true;
}

/* A connection is kept for the next open; but not to a broker, which has one for each process that
 * has ended, and of those there may be any number. */
void gs_peer_reap_locked(struct gs_share *share, struct gs_peer *peer)
{
    if (peer->busy || peer->opened_count > 0 || peer->imports || peer->unsent || peer->unmapped ||
        peer->astray)
        return;
    if (peer->by_broker)
        gs_peer_disconnect(share, peer);
    if (peer->fd >= 0)
        return;
    if (peer->passes_on)
        gs_relay_leave(share, peer);
    HASH_DEL(share->opener.peers, peer);
    free(peer);
}

/* A hang-up is always reported. What nobody waits for is read by the thread: RECALLs, and answers
 * to requests that were given up. */
static int watch(struct gs_share *share, const struct gs_peer *peer, int op)
{
    return gs_watch(share, op, peer->fd, GS_WATCH_ONCE | (peer->deaf ? 0 : GS_WATCH_READ), GS_WATCH_PEER,
                    peer->id);
}

/* Where the kernel has no room for that, it is tried again with the next use of the peer. */
static void watch_on(struct gs_share *share, struct gs_peer *peer)
{
    peer->watched = watch(share, peer, GS_WATCH_ADD) == 0;
}

void gs_peer_watch(struct gs_share *share, struct gs_peer *peer)
{
    if (!peer->watched && gs_thread_start(share) == GS_OK)
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
        if (!peer->busy && peer->fd >= 0 && !peer->watched)
            watch_on(share, peer);
    }
    gs_lock_release(&share->opener.lock);
}

bool gs_opener_has_thread(struct gs_share *share)
{
    return __atomic_load_n(&share->opener.peers_watched, __ATOMIC_ACQUIRE) ||
           __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE) || gs_thread_start(share) == GS_OK;
}

/* ---- Connecting ----------------------------------------------------------------------------- */

static gs_status connect_failed(struct gs_share *share, int error)
{
    char reason[GS_REASON_SIZE];

    if (error == -ENOENT || error == -ECONNREFUSED)
        snprintf(reason, sizeof reason,
                 "the process that shared it has ended, or uses another directory than %s",
                 gs_directory_words(&share->options));
    else if (error == -EACCES || error == -EPERM)
        snprintf(reason, sizeof reason,
                 "its socket is another user's; name this user in the other's share.uids or "
                 "share.gids, and the other here");
    else
        snprintf(reason, sizeof reason, "no connection: %s", strerror(-error));
    gs_say_unreachable(share, reason);
    return error == -EMFILE || error == -ENFILE ? (gs_status)CUDA_ERROR_OPERATING_SYSTEM
                                                : GS_UNREACHABLE;
}

/* Whether the process at the other end is one to take memory from, and alive: a child that it
 * forked may hold its socket. Finds its pidfd where the kernel gives one. */
static int check_exporter(struct gs_share *share, int fd, int *ret_pidfd)
{
    const struct gs_conn_who who = gs_conn_who(fd);
    int error;

    *ret_pidfd = -1;
    if (who.uid == (uid_t)-1 || !gs_process_is_listed(&share->options, who.uid, who.gid)) {
        gs_say_unreachable(share, "it is another user's; name him in share.uids, or his group in "
                                  "share.gids");
        return -EPERM;
    }
    *ret_pidfd = gs_conn_pidfd(fd, &error);
    if (*ret_pidfd < 0)
        return error == -ESRCH ? -ECONNREFUSED : 0;
    if (!gs_alive_exited(*ret_pidfd))
        return 0;
    gs_fd_drop(*ret_pidfd);
    *ret_pidfd = -1;
    return -ECONNREFUSED;
}

/* Of a connection to one who may be believed the descriptor, else a negative errno; -EPERM: it is
 * another user's (logged), -ECONNREFUSED: it has ended. `fd` may be such an errno already. */
static int checked(struct gs_share *share, int fd, int *ret_pidfd)
{
    int error = fd < 0 ? 0 : check_exporter(share, fd, ret_pidfd);

    if (error) {
        gs_hang_up(fd);
        return error;
    }
    return fd;
}

static int connect_checked(struct gs_share *share, int directory, const char *name,
                           uint64_t deadline_ns, int *ret_pidfd)
{
    uint64_t now = gs_now_ns(), limit = now < deadline_ns ? deadline_ns - now : 0;

    return checked(share, gs_directory_connect(directory, &share->options, name, limit), ret_pidfd);
}

/* What the last connection was asked, nobody waits for any more; the thread looks at that of busy
 * peers too. */
static void set_connected(struct gs_share *share, struct gs_peer *peer, int fd, int pidfd)
{
    peer->fd = fd;
    peer->pidfd = pidfd;
    peer->pid = gs_conn_who(fd).pid;
    peer->stack = 0;
    peer->kept_fd = gs_fd_keep(fd);
    peer->kept_pidfd = gs_fd_keep(pidfd);
    peer->greeted = peer->asked = peer->resumed = peer->refused = false;
    peer->deaf = false;
    peer->crossing = 0;
    peer->absent_ns = 0;
    peer->connected_ns = gs_now_ns();
    gs_lock_take(&share->opener.lock);
    peer->flush = 0;
    gs_lock_release(&share->opener.lock);
}

bool gs_peer_connect_to(struct gs_share *share, int directory, const char *name,
                        struct gs_peer *peer)
{
    int pidfd, fd = connect_checked(share, directory, name, peer->deadline_ns, &pidfd);

    if (fd < 0)
        return false;
    set_connected(share, peer, fd, pidfd);
    return true;
}

static bool is_absent(int error)
{
    return error == -ENOENT || error == -ECONNREFUSED;
}

/* In one directory: the exporter, or who serves what it left. The descriptor, or why there is none
 * there. *ret_passed_on: somebody passes it on. */
static int connect_in(struct gs_share *share, int directory, struct gs_peer *peer,
                      const char *name, int *ret_pidfd, bool *ret_passed_on)
{
    char relay[1][GS_RELAY_NAME_SIZE], broker_name[GS_BROKER_NAME_SIZE];
    int fd = connect_checked(share, directory, name, peer->deadline_ns, ret_pidfd);

    if (is_absent(fd)) {
        int broker;

        gs_broker_name(broker_name);
        broker = connect_checked(share, directory, broker_name, peer->deadline_ns, ret_pidfd);
        peer->by_broker = broker >= 0;
        fd = broker >= 0 ? broker : fd;
    }
    if (is_absent(fd) && gs_directory_relays(directory, name, relay, 1) > 0)
        *ret_passed_on = true;
    return fd;
}

/* The same with all patience, in all directories. As gs_peer_connect. */
static gs_status connect_patiently(struct gs_share *share, struct gs_peer *peer, const char *name)
{
    char reason[GS_REASON_SIZE];
    bool passed_on = false;
    unsigned place = 0;
    int fd = -ENOENT, pidfd, directory, looked = 0;

    while (is_absent(fd) &&
           (directory = gs_directory_next(&share->options, &place, reason)) >= 0) {
        struct gs_fd kept = gs_fd_keep(directory); /* that may take a while */

        fd = connect_in(share, directory, peer, name, &pidfd, &passed_on);
        gs_fd_close(&kept);
        looked++;
    }
    if (!looked) {
        gs_say_unreachable(share, reason);
        return GS_UNREACHABLE;
    }
    if (is_absent(fd) && passed_on) /* nothing to say yet */
        return GS_UNREACHABLE;
    if (fd == -EPERM)
        return GS_UNREACHABLE;
    if (fd < 0)
        return connect_failed(share, fd);
    set_connected(share, peer, fd, pidfd);
    return GS_OK;
}

/* To whom it was connected to, and nobody else: he knows what is held. A descriptor or an errno. */
static int connect_again(struct gs_share *share, struct gs_peer *peer, int *ret_pidfd)
{
    char name[GS_SOCKET_NAME_SIZE], broker_name[GS_BROKER_NAME_SIZE], reason[GS_REASON_SIZE];
    unsigned place = 0;
    int fd = -ENOENT, directory;

    gs_instance_name(peer->instance, name);
    gs_broker_name(broker_name);
    while (is_absent(fd) &&
           (directory = gs_directory_next(&share->options, &place, reason)) >= 0) {
        struct gs_fd kept = gs_fd_keep(directory);

        fd = connect_checked(share, directory, peer->by_broker ? broker_name : name,
                             peer->deadline_ns, ret_pidfd);
        gs_fd_close(&kept);
    }
    return fd;
}

/* Nobody is where his socket was. He puts it up again within a second, if he gets the CPU. */
static bool has_ended(struct gs_peer *peer)
{
    if (!peer->absent_ns)
        peer->absent_ns = gs_now_ns();
    return !is_running(peer) || gs_now_ns() - peer->absent_ns >= ABSENT_NS;
}

/* The program has closed the connection: another one takes its place, or he who has the memory has
 * ended and all is lost. */
static gs_status resume(struct gs_share *share, struct gs_peer *peer)
{
    int pidfd, error, fd = connect_again(share, peer, &pidfd);

    if (is_absent(fd) && has_ended(peer))
        set_disconnected(peer);
    if (fd < 0)
        return GS_UNREACHABLE;
    forget_pidfd(peer);
    set_connected(share, peer, fd, pidfd);
    error = gs_peer_take_up(share, peer);
    if (error) {
        gs_hang_up(peer->fd);
        forget_connection(peer);
        return GS_UNREACHABLE;
    }
    peer->astray = false;
    peer->resumed = true;
    gs_log_line(&share->log, GS_LOG_DEBUG,
                "the program has closed a connection of the library's: there is another");
    return GS_OK;
}

gs_status gs_peer_connect(struct gs_share *share, struct gs_peer *peer)
{
    char name[GS_SOCKET_NAME_SIZE];
    int fd, pidfd;

    if (peer->astray) {
        gs_status status = resume(share, peer);

        if (status == GS_OK || peer->astray)
            return status;
    }
    gs_instance_name(peer->instance, name);
    peer->by_broker = false;
    fd = checked(share, gs_directory_connect_at_once(&share->options, name), &pidfd);
    if (fd == -EPERM)
        return GS_UNREACHABLE;
    if (fd < 0)
        return connect_patiently(share, peer, name);
    set_connected(share, peer, fd, pidfd);
    return GS_OK;
}

/* ---- Between requests ----------------------------------------------------------------------- */

void gs_peer_return(struct gs_peer *peer, uint64_t block_id)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_CLOSE, 0);
    message.close.block_id = block_id;
    gs_peer_look(peer);
    if (peer->fd < 0 || peer->relayed)
        return;
    gs_wire_send(peer->fd, &message, -1);
    peer->crossing++;
}

/* An answer to a request that was given up. One that nobody asked for makes the peer deaf. */
static void take_late(struct gs_peer *peer, const union gs_wire_message *message)
{
    if (peer->abandoned > 0)
        peer->abandoned--;
    else
        peer->deaf = true;
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
        gs_discard(fd, gs_conn_who(peer->fd).uid);
    gs_peer_note_refused(peer, message);
    if (message->head.type == GS_WIRE_FLUSH)
        peer->deaf |= !gs_flush_wanted_locked(share, peer, message->flush.number);
    else if (message->head.type != GS_WIRE_RECALL && message->head.type != GS_WIRE_UNMAP)
        take_late(peer, message);
    else if (message->head.type == GS_WIRE_UNMAP
                 ? gs_kept_call_back_locked(share, peer, message->unmap.chunk_id)
                 : gs_idle_recall_locked(share, peer, message->recall.block_id))
        return;
    else if (peer->crossing > 0)
        peer->crossing--;
    else
        peer->deaf = true;
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
    return gs_conn_hung_up(peer->fd);
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
    if (peer->fd >= 0 && !peer->watched) {
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

    for (int i = 0; i < MESSAGES_MAX && !peer->deaf; i++) {
        error = gs_wire_receive(peer->fd, &message, &fd);
        if (error == -EPROTO || error == -EPROTONOSUPPORT)
            peer->deaf = true;
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
    if (peer->fd < 0) {
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
        if (peer->fd >= 0 && peer->pid > 0 && !peer->stack)
            peer->stack = gs_alive_stack(peer->pid); /* not while a program waits for its open */
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
        resume(share, peer);
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
        if (peer->fd >= 0 && opened->connection == peer->connection &&
            gs_wire_goes_later(gs_wire_send(peer->fd, &message, -1)))
            return false;
        peer->crossing++;
        peer->unsent = opened->next;
        free(opened);
    }
    return true;
}
