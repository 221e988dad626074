/*
 * Asking other processes (core/share/ask.h): the sockets in all folders, and who listens there.
 * Each who is asked costs a descriptor: so GS_CONN_ANY are asked at once, or as many as there are
 * descriptors for, and the next ones when those have answered or their time is over.
 */
#include "core/share/ask.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/list.h"
#include "core/share/discard.h"

#define LOOK_NS (5 * GS_NS_PER_MS)

void gs_peer_forget(struct gs_peer *peer)
{
    if (gs_fd_is_there(&peer->socket))
        gs_hang_up(peer->socket.fd);
    free(peer);
}

/* ---- Their answers -------------------------------------------------------------------------- */

static void set_state(struct gs_asking *asking, struct gs_peer *peer, enum gs_peer_state state)
{
    asking->silent += state == GS_SILENT;
    peer->state = state;
}

static bool is_awaited(const struct gs_asking *asking, const struct gs_peer *peer)
{
    return peer->state == GS_AWAITED &&
           (asking->waits ? asking->waits(asking, peer) : gs_now_ns() < asking->deadline_ns);
}

/* Until one of those that are awaited says something, or it is time to look. False: none is. */
static bool wait_for_any(const struct gs_asking *asking)
{
    const struct gs_peer *peer;
    int sockets[GS_CONN_ANY];
    unsigned count = 0;

    LL_FOREACH(asking->peers, peer)
        if (is_awaited(asking, peer) && count < GS_CONN_ANY) /* all are heard in any case */
            sockets[count++] = peer->socket.fd;
    if (count > 0)
        gs_conn_wait_any(sockets, count, LOOK_NS);
    return count > 0;
}

void gs_ask_hear(struct gs_asking *asking, struct gs_peer *peer)
{
    while (peer->state == GS_AWAITED) {
        union gs_wire_message message;
        int error = gs_fd_is_there(&peer->socket) ? gs_wire_receive(peer->socket.fd, &message, NULL)
                                                  : -EBADF;

        if (error == -EAGAIN)
            return;
        set_state(asking, peer, asking->hear(asking, peer, error, &message));
    }
}

/* Ended by the others' share threads and by those that they ask, by their ends, or by the time. */
static void await_answers(struct gs_asking *asking)
{
    uint64_t looked = gs_now_ns();
    struct gs_peer *peer;

    while (!asking->enough && wait_for_any(asking)) {
        asking->waited_ns += gs_look_counts(&looked);
        LL_FOREACH(asking->peers, peer)
            gs_ask_hear(asking, peer);
    }
}

/* Who has answered, or is not needed any more, is parted with; whose time is over is silent. */
static void end_round(struct gs_asking *asking)
{
    struct gs_peer *peer, *next;

    await_answers(asking);
    LL_FOREACH_SAFE(asking->peers, peer, next) {
        if (peer->state == GS_AWAITED && !is_awaited(asking, peer))
            set_state(asking, peer, GS_SILENT);
        if (peer->state == GS_SILENT && asking->keeps)
            continue;
        LL_DELETE(asking->peers, peer);
        gs_peer_forget(peer);
    }
    asking->waited_ns = asking->count = 0;
}

/* ---- Whom ----------------------------------------------------------------------------------- */

/* A child may hold the socket of one that has ended. */
static bool has_ended(int fd)
{
    int error, pidfd = gs_conn_pidfd(fd, &error);
    bool ended = pidfd >= 0 ? gs_alive_exited(pidfd) : error == -ESRCH;

    gs_fd_drop(pidfd);
    return ended;
}

/* A connection to who listens there, lives and may be asked; or a negative errno. Does not wait. */
static int reach(struct gs_asking *asking, int directory, const char *name,
                 struct gs_conn_who *ret_who)
{
    int fd;

    if (asking->keeps && asking->silent >= GS_CONN_ANY)
        return -EMFILE; /* they have cost enough */
    fd = gs_directory_connect(directory, &asking->share->options, name, 0);
    if (fd < 0)
        return fd;
    *ret_who = gs_conn_who(fd);
    if ((!asking->own || gs_user_is_own(ret_who->uid)) && !has_ended(fd))
        return fd;
    gs_hang_up(fd);
    return -ENOENT;
}

/* One who was silent before. */
static bool is_kept(const struct gs_asking *asking, const char *name)
{
    const struct gs_peer *peer = asking->keeps ? asking->peers : NULL;

    while (peer && strcmp(peer->name, name) != 0)
        peer = peer->next;
    return peer != NULL;
}

static void ask_one(struct gs_asking *asking, int directory, const char *name, bool is_broker)
{
    struct gs_conn_who who;
    struct gs_peer *peer;
    int fd;

    if (asking->count == GS_CONN_ANY)
        end_round(asking);
    if (asking->enough || is_kept(asking, name))
        return;
    fd = reach(asking, directory, name, &who);
    if (fd == -EMFILE && asking->count > 0) {
        end_round(asking);
        fd = reach(asking, directory, name, &who);
    }
    asking->unasked += fd == -EMFILE || fd == -EAGAIN;
    if (fd < 0)
        return;
    peer = calloc(1, sizeof *peer);
    if (!peer) {
        gs_hang_up(fd);
        asking->unasked++;
        return;
    }
    strncpy(peer->name, name, sizeof peer->name - 1);
    peer->is_broker = is_broker;
    peer->who = who;
    peer->socket = gs_fd_keep(fd);
    set_state(asking, peer, asking->say(asking, peer));
    LL_PREPEND(asking->peers, peer);
    asking->count++;
}

static void ask_exporters(struct gs_asking *asking, int directory)
{
    char (*names)[GS_SOCKET_NAME_SIZE];
    int count = gs_directory_exporters(directory, asking->share->name, &names);

    for (int i = 0; i < count; i++)
        ask_one(asking, directory, names[i], false);
    asking->unasked += count < 0;
    free(names);
}

/* Which folder a process has is its own matter. A program that is refused memory asks, and may do
 * so on a small stack: the options are large. */
void gs_ask_all(struct gs_asking *asking)
{
    const struct gs_share_options *options = &asking->share->options;
    struct gs_share_options *own = NULL;
    char broker[GS_BROKER_NAME_SIZE];
    unsigned place = 0;
    int directory;

    if (asking->own && (options->uid_count > 0 || options->gid_count > 0) &&
        (own = malloc(sizeof *own))) {
        *own = *options;
        own->uid_count = own->gid_count = 0; /* nobody else's folders */
        options = own;
    }
    gs_broker_name(broker);
    while ((directory = gs_directory_next(options, &place, NULL)) >= 0) {
        ask_exporters(asking, directory);
        if (!asking->own)
            ask_one(asking, directory, broker, true);
        gs_fd_drop(directory);
    }
    free(own);
    end_round(asking);
}
