/*
 * Exporter: the holders, each a program of a process that opens memory of this one. What it has
 * opened are its references. The share thread alone touches clients.
 *
 *   accept ─► silent ── HELLO ─► greeted ── OPEN, CLOSE … ─► hung up ─► gone
 *               └─ timeout  │       └─ idle without references └─ its program's end is proven
 *                           └─ of a holder that is here: this is its connection now, what it holds stays its own
 *
 * One without references costs nothing to lose: it is dropped when it is silent or idle for too
 * long, and the oldest such one makes room when there are too many; an importer connects again by
 * itself. One with references is kept until it ends, by proof alone (lives.c):
 *   it says BYE                   at once: it uses nothing
 *   hung up, then exited          at once: its GPU work is over; settle_ns more where it has forked:
 *                                 a child that was killed with it may let go of the GPU last
 *   exited, then hung up          a forked child held the socket: settle_ns more
 * No time that passes ends one: a process that is killed hangs up first, its GPU work runs on until
 * the kernel has taken its memory and its descriptors, and its exit is reported then, seconds later
 * perhaps. Where it lives on, its program has closed the socket and may use what it holds on: it
 * comes back, and says what that is.
 */
#include "core/share/cluster.h"
#include "core/share/discard.h"

#include <stdlib.h>

#define ACCEPTS_MAX  16   /* in one round */
#define MESSAGES_MAX 16   /* of one client in one round */
#define SEND_BUFFER  4096 /* a client that does not read holds up this much, and then itself */
#define LATE_NS      (5 * GS_NS_PER_S) /* one that nobody waits for is looked at again after this */

static struct gs_client *client_find(struct gs_share *share, uint64_t id)
{
    struct gs_client *client;

    HASH_FIND(hh, share->clients.first, &id, sizeof id, client);
    return client;
}

static void client_forget_exit(struct gs_share *share, struct gs_client *client)
{
    if (client->pidfd < 0)
        return;
    if (gs_fd_is_there(&client->kept_pidfd)) {
        gs_unwatch(share, client->pidfd);
        gs_fd_drop(client->pidfd);
    }
    client->pidfd = -1;
}

/* It holds something, or has left something here, and may again, over this very connection; or its
 * hang-up proves something. */
static bool is_needed(const struct gs_client *client)
{
    return client->references || client->published > 0 || (client->shares && !client->over.ended);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

/* What it left here is served from now on, if it can be seen to have ended. */
static void end_published(struct gs_share *share, struct gs_client *client)
{
    bool ended = gs_client_has_ended(client);

    if (!ended && client->fd < 0)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "what process %d (%.15s) left here is dropped: its connection has ended, %s",
                    (int)client->pid, client->said.name,
                    gs_client_end_shows(client)
                        ? "and it runs on"
                        : "and whether it has cannot be seen from here on this kernel (it sent no "
                          "pidfd); run the broker in its PID namespace");
    gs_broker_client_gone(share, client, ended);
}

static void client_free(struct gs_share *share, struct gs_client *client)
{
    gs_references_drop(share, client, true);
    gs_flush_client_gone(share, client);
    gs_plea_gone(share, client);
    if (client->published)
        end_published(share, client);
    gs_cluster_client_gone(share, client);
    gs_client_close_socket(share, client);
    client_forget_exit(share, client);
    gs_lock_take(&share->lock);
    HASH_DEL(share->clients.first, client);
    gs_lock_release(&share->lock);
    gs_client_leave_place(share, client);
    gs_user_reap(share, client->user);
    gs_publisher_unref(share, client->publisher);
    free(client);
}

/* Frees a client, and one that has nothing is told so: else it would come back to say that. */
static void dismiss(struct gs_share *share, struct gs_client *client)
{
    if (client->fd >= 0 && client->greeted && !client->references && !gs_client_is_lost(client))
        gs_client_say_bye(client);
    client_free(share, client);
}

/* All that an exporter said comes before its end. A child that it forked may hold its connection,
 * and as long as that talks on without a pause nobody gets what was left: it harms its own. */
static void end_sharing(struct gs_share *share, struct gs_client *client)
{
    if (client->over.ended && client->published &&
        (client->fd < 0 || !gs_conn_has_more(client->fd)))
        gs_broker_client_gone(share, client, true);
}

/* Of one that has hung up: its lease is over, and for a while the GPU may be at it still. */
static void rest(struct gs_share *share, struct gs_client *client)
{
    client->over.rests = true;
    client->due_ns = gs_now_ns() + share->options.settle_ns;
    gs_flush_hung_up(share, client);
}

/* Its program's end is proven; `rests`: that of its GPU work is not quite. May free it. */
static void client_ended(struct gs_share *share, struct gs_client *client, bool rests)
{
    client->over.ended = true;
    client_forget_exit(share, client);
    end_sharing(share, client);
    rests |= gs_client_is_lost(client); /* nothing may wake the thread again to look */
    client->due_ns = gs_now_ns() + LATE_NS;
    if (client->fd >= 0) /* a forked child has the connection */
        return;
    if (rests)
        rest(share, client);
    else
        client_free(share, client);
}

/* A broker hands no memory out: that of its own machine it need not hold for one whose end never
 * shows, which would keep it for ever. What that one left may change still. */
static void drop_unseen(struct gs_share *share, struct gs_client *client)
{
    struct gs_reference *reference, *next;

    HASH_ITER(hh, client->references, reference, next) {
        if (!gs_export_is_imported(reference->export))
            gs_reference_drop(share, client, reference);
    }
    if (client->published)
        end_published(share, client);
}

/* The connection is over, by either side's doing. The client may be freed. */
static void client_hang_up(struct gs_share *share, struct gs_client *client)
{
    if (!is_needed(client)) {
        client_free(share, client);
        return;
    }
    gs_client_close_socket(share, client);
    client->due_ns = gs_now_ns() + GS_LOOK_NS;
    /* An exit that has happened by now may have come first: only the rest proves the lease over. */
    if (gs_client_has_ended(client)) {
        client_ended(share, client, true);
    } else {
        if (share->options.is_broker && !gs_client_end_shows(client))
            drop_unseen(share, client);
        gs_client_poke(share, client);
        gs_flush_hung_up(share, client);
    }
}

/* A client that is to go is told why, unless it went by itself. */
static void send_off(struct gs_share *share, struct gs_client *client, int error,
                     const union gs_wire_message *message)
{
    enum gs_wire_reason reason = 0;

    if (error == -ENOTCONN)
        return;
    if (error == -EPROTONOSUPPORT) {
        client->fault = "it speaks another version of the protocol";
        reason = GS_REFUSED_VERSION;
    } else if (error == -EPROTO) {
        client->fault = "it sent something that is no message";
        reason = GS_REFUSED_MESSAGE;
    } else if (error == -EMFILE && !client->fault) {
        client->fault = "no descriptor is left for what it sent (ulimit -n)";
        reason = GS_REFUSED_FDS;
    } else if (client->fault) {
        reason = GS_REFUSED_MESSAGE;
    }
    gs_log_line(&share->log, GS_LOG_DEBUG, "importer %d (%.15s) is hung up on: %s",
                (int)client->pid, client->said.name,
                client->fault ? client->fault : "it does not read its answers");
    if (reason)
        gs_client_refuse(share, client, error == 0 || error == -EMFILE ? message->head.request : 0,
                         reason, 0);
}

/* One message. False: there is none, or the client has gone. */
static bool serve_one(struct gs_share *share, struct gs_client *client)
{
    union gs_wire_message message;
    bool stays = false;
    int fd = -1, error;

    if (gs_client_is_lost(client))
        return false;
    error = gs_client_receive(share, client, &message, &fd);
    if (error == -EAGAIN)
        return false;
    if (error == 0)
        stays = gs_client_serve(share, client, &message, &fd);
    if (fd >= 0)
        gs_discard(fd);
    if (stays && message.head.type == GS_WIRE_HELLO && gs_client_comes_back(share, client)) {
        client_free(share, client);
        return false;
    }
    if (stays && gs_client_is_let_in(share, client))
        return true;
    client->said.forked |= error != -ENOTCONN; /* it may have said so behind this, unheard */
    send_off(share, client, error, &message);
    if (client->published && error != -ENOTCONN) /* it lives on, unheard */
        gs_broker_client_gone(share, client, false);
    client_hang_up(share, client);
    return false;
}

/* What is due of one that has hung up, and of which nothing is proven. False: it has nothing. */
static bool goes_on(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    client->due_ns = now + LATE_NS;
    gs_client_poke(share, client);
    gs_flush_client_gone(share, client);
    if (client->published)
        gs_broker_drop_revoked(share, client);
    if (client->references && !client->over.late)
        gs_log_line(&share->log, GS_LOG_INFO,
                    "process %d (%.15s) has hung up, and %s: what it has open is its own until it "
                    "connects again or ends",
                    (int)client->pid, client->said.name,
                    gs_client_end_shows(client)
                        ? "has not ended"
                        : "its end cannot be seen from here on this kernel (it sent no pidfd)");
    client->over.late = true;
    return client->references || client->published;
}

/* Does what is due of one that has hung up, whatever is proven of it. May free it. */
static void look_after(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    if (client->over.rests)
        client_free(share, client);
    else if (gs_client_has_ended(client))
        client_ended(share, client, client->over.ended || client->said.forked);
    else if (!goes_on(share, client, now))
        client_free(share, client);
}

void gs_client_exited(struct gs_share *share, uint64_t id)
{
    struct gs_client *client = client_find(share, id);

    if (client && client->pidfd >= 0)
        client_ended(share, client, client->said.forked);
}

void gs_client_readable(struct gs_share *share, uint64_t id)
{
    struct gs_client *client = client_find(share, id);

    /* Also where it has given all of them back meanwhile: else its room is told of without end. */
    if (client && client->fd >= 0 && client->awaits_room)
        gs_client_send_due(share, client);

    for (int i = 0; client && client->fd >= 0 && i < MESSAGES_MAX; i++)
        if (!serve_one(share, client))
            client = NULL;
    client = share->options.is_broker ? client_find(share, id) : NULL;
    if (client)
        end_sharing(share, client);
}

/* ---- Connections ---------------------------------------------------------------------------- */

/* Tells a connection that it will not be served. */
static void turn_away(struct gs_share *share, int fd, enum gs_wire_reason reason)
{
    struct gs_conn_who who = gs_conn_who(fd);
    struct gs_client caller = {.fd = fd, .pid = who.pid, .uid = who.uid, .said.name = "not served"};

    gs_client_refuse(share, &caller, 0, reason, 0);
    gs_client_say_bye(&caller); /* else it would come back for what it may have asked for by now */
    gs_hang_up(fd);
}

/* Makes room for one more client of the user's; false if all have holds. Users that have as many as
 * they may make room themselves. */
static bool make_room(struct gs_share *share, const struct gs_user *user)
{
    struct gs_client *client, *next, *oldest = NULL;
    bool over = !gs_user_may(user, user->clients, share->clients.count, share->options.max_clients);

    if (!over && share->clients.count < share->options.max_clients)
        return true;
    HASH_ITER(hh, share->clients.first, client, next) {
        if (is_needed(client) || client->said.is_agent || (over && client->user != user))
            continue;
        if (!oldest || client->due_ns < oldest->due_ns)
            oldest = client;
    }
    if (!oldest)
        return false;
    dismiss(share, oldest);
    return true;
}

/* Takes a connection of the user's in as a client, or says why not. */
static enum gs_wire_reason admit(struct gs_share *share, int fd, const struct gs_conn_who *caller,
                                 struct gs_user *user)
{
    bool counts = make_room(share, user);
    struct gs_client *client;
    int error;

    if (!counts && !gs_user_has_place(share, caller))
        return GS_REFUSED_BUSY;
    client = calloc(1, sizeof *client);
    if (!client)
        return GS_REFUSED_MEMORY;
    client->pidfd = gs_conn_pidfd(fd, &error);
    if (error == -EMFILE) {
        free(client);
        return GS_REFUSED_FDS;
    }
    gs_conn_limit(fd, SEND_BUFFER);
    client->id = ++share->clients.next_id;
    client->fd = fd;
    client->kept_fd = gs_fd_keep(fd);
    client->uid = caller->uid;
    client->gid = caller->gid;
    client->pid = caller->pid;
    client->user = user;
    client->is_seen = caller->pid > 0;
    client->over.ended = error == -ESRCH; /* it had exited before it was taken in */
    client->since_ns = gs_now_ns();
    client->due_ns = client->since_ns + share->options.timeout_ns;
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->clients.first, id, sizeof client->id, client);
    gs_lock_release(&share->lock);
    if (!client->hh.tbl) {
        gs_fd_drop(client->pidfd);
        free(client);
        return GS_REFUSED_MEMORY;
    }
    gs_client_take_place(share, client, counts);
    gs_client_watch_exit(share, client);
    if (gs_watch(share, GS_WATCH_ADD, fd, GS_WATCH_READ, GS_WATCH_CLIENT, client->id) != 0) {
        client->fd = -1; /* the caller's again */
        client_free(share, client);
        return GS_REFUSED_MEMORY;
    }
    gs_thread_expect(share, client->since_ns + GS_ANSWERED_NS);
    gs_client_readable(share, client->id); /* one that has spoken is not evicted for silence */
    return 0;
}

/* Takes a connection in, or says why not: its caller has to be one that may open something here. */
static enum gs_wire_reason admit_listed(struct gs_share *share, int fd)
{
    const struct gs_conn_who who = gs_conn_who(fd);
    enum gs_wire_reason reason;
    struct gs_user *user;

    if (who.uid == (uid_t)-1 || (!gs_process_is_listed(&share->options, who.uid, who.gid) &&
                                 !gs_publishers_let(share, who.uid, who.gid)))
        return GS_REFUSED_USER;
    user = gs_user_of(share, who.uid);
    if (!user)
        return GS_REFUSED_MEMORY;
    user->refs++; /* it stays while room is made for it */
    reason = admit(share, fd, &who, user);
    user->refs--;
    gs_user_reap(share, user);
    return reason;
}

/* No descriptor is left for a caller: the spare one is given up for as long as it takes to tell
 * it. False if that does not help: then the listener rests, or it would be ready for ever. */
static bool turn_away_without_fd(struct gs_share *share)
{
    int fd;

    if (share->place.spare_fd < 0)
        return false;
    gs_spare_give(share);
    fd = gs_conn_accept(share->place.listener);
    if (fd >= 0)
        turn_away(share, fd, GS_REFUSED_FDS);
    gs_spare_take(share);
    return fd >= 0;
}

/* The program may have closed it, and its number may be another file's: there is another soon. */
static bool has_listener(struct gs_share *share)
{
    GS_HOLDING(&share->lock);

    return gs_fd_is_there(&share->place.listener_is);
}

static void listen_for(struct gs_share *share, unsigned events)
{
    if (has_listener(share))
        gs_watch(share, GS_WATCH_CHANGE, share->place.listener, events, GS_WATCH_LISTENER, 0);
}

static void listener_rest(struct gs_share *share)
{
    listen_for(share, 0);
    share->clients.listener_pause = gs_now_ns() + GS_ROOM_NS;
}

void gs_clients_accept(struct gs_share *share)
{
    if (!has_listener(share))
        return;
    if (share->options.is_broker && !gs_broker_may_accept(share)) {
        listener_rest(share);
        return;
    }
    for (int i = 0; i < ACCEPTS_MAX; i++) {
        int fd = gs_conn_accept(share->place.listener);
        enum gs_wire_reason reason;

        if ((fd == -EMFILE || fd == -ENFILE) && turn_away_without_fd(share))
            continue;
        if (fd < 0) {
            if (fd != -EAGAIN && fd != -EINTR && fd != -ECONNABORTED)
                listener_rest(share);
            return;
        }
        reason = admit_listed(share, fd);
        if (reason)
            turn_away(share, fd, reason);
    }
}

/* The program here may have closed connections: nothing is told of those any more. Looked at when
 * the thread does something else. */
static void look_for_lost(struct gs_share *share, uint64_t now)
{
    struct gs_client *client, *next;

    if (now < share->clients.lost_look_ns)
        return;
    HASH_ITER(hh, share->clients.first, client, next)
        gs_client_is_lost(client);
    share->clients.lost_look_ns = now + GS_LOOK_NS;
}

uint64_t gs_clients_tick(struct gs_share *share, uint64_t now)
{
    struct gs_client *client, *next;
    uint64_t due = gs_unread_tick(share, now);

    look_for_lost(share, now);
    if (share->place.spare_given) {
        gs_spare_take(share);
        share->place.spare_given = share->place.spare_fd < 0;
    }
    if (share->clients.listener_pause && share->clients.listener_pause <= now) {
        share->clients.listener_pause = 0;
        gs_spare_take(share);
        listen_for(share, GS_WATCH_READ);
    }
    if (share->clients.listener_pause && share->clients.listener_pause < due)
        due = share->clients.listener_pause;
    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->fd >= 0 && (is_needed(client) || client->said.is_agent))
            continue; /* nothing but its hang-up ends this lease */
        if (client->due_ns <= now && client->fd < 0)
            look_after(share, client, now);
        else if (client->due_ns <= now)
            dismiss(share, client);
    }
    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->due_ns < due &&
            (client->fd < 0 || !(is_needed(client) || client->said.is_agent)))
            due = client->due_ns;
    }
    return due;
}

void gs_clients_free(struct gs_share *share)
{
    struct gs_client *client, *next;

    HASH_ITER(hh, share->clients.first, client, next)
        client_free(share, client);
    gs_unread_free(share);
}
