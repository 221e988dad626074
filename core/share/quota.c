/*
 * What each user takes (core/share/exporter.h): nobody takes all there is from the others.
 *
 * One thing is not this process's alone: descriptors that were sent and not read. The kernel counts
 * them for the user who sent them, and none is sent where they are more than the sender's limit
 * (but root's): another user who lets them lie would end the sharing of all this user's processes.
 * So over each connection that user is sent one at a time, when all is read that was sent before;
 * and a connection that is hung up on is kept until what lies there has been read, or it has been
 * closed: by it alone can that be seen. Where many are kept no other user is sent any for the
 * moment.
 */
#include "core/base/list.h"
#include "core/share/discard.h"
#include "core/share/exporter.h"

#include <stdlib.h>

#define UNREAD_PART 16 /* of the limit of descriptors: so many connections are kept for that */

/* A connection that is over, and of which the other side has not read all. */
struct gs_unread {
    struct gs_fd fd; /* the program may close it */
    struct gs_unread *next;
};

struct gs_user *gs_user_of(struct gs_share *share, uid_t uid)
{
    struct gs_user *user;

    HASH_FIND(hh, share->clients.users, &uid, sizeof uid, user);
    if (user)
        return user;
    user = calloc(1, sizeof *user);
    if (!user)
        return NULL;
    user->uid = uid;
    HASH_ADD(hh, share->clients.users, uid, sizeof user->uid, user);
    if (user->hh.tbl)
        return user;
    free(user);
    return NULL;
}

void gs_user_reap(struct gs_share *share, struct gs_user *user)
{
    if (user->refs + user->clients + user->exports + user->fds > 0)
        return;
    HASH_DEL(share->clients.users, user);
    free(user);
}

bool gs_user_may(const struct gs_user *user, uint64_t has, uint64_t all, uint64_t most)
{
    uint64_t others = all > has ? all - has : 0;

    return gs_user_is_own(user->uid) || (others < most && has < (most - others + 1) / 2);
}

/* ---- Descriptors under way ------------------------------------------------------------------ */

/* Gives up the connections of which all has been read, or all of them. */
static void unread_drop(struct gs_share *share, bool all)
{
    struct gs_unread *unread, *next;

    LL_FOREACH_SAFE(share->clients.unread, unread, next) {
        bool there = gs_fd_is_there(&unread->fd);

        if (!all && there && !gs_conn_is_read(unread->fd.fd))
            continue;
        LL_DELETE(share->clients.unread, unread);
        if (there)
            gs_hang_up(unread->fd.fd);
        free(unread);
    }
}

/* Whether another connection that is hung up on may be kept. */
static bool may_leave_more(struct gs_share *share)
{
    const struct gs_unread *unread;
    unsigned count;

    LL_COUNT(share->clients.unread, unread, count);
    if (count >= gs_fd_limit() / UNREAD_PART)
        unread_drop(share, false);
    LL_COUNT(share->clients.unread, unread, count);
    return count < gs_fd_limit() / UNREAD_PART;
}

int gs_client_send_all(struct gs_share *share, struct gs_client *client,
                       const union gs_wire_message *message, const struct gs_wire_fds *fds)
{
    if (fds->count > 0 && !gs_user_is_own(client->uid)) {
        if (!gs_conn_is_read(client->fd) || !may_leave_more(share))
            return -ETOOMANYREFS;
        client->was_sent_fd = true;
    }
    return gs_wire_send_all(client->fd, message, fds);
}

int gs_client_send(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message, int fd)
{
    return gs_client_send_all(share, client, message,
                              &(struct gs_wire_fds){.count = fd >= 0, .fd = {fd}});
}

void gs_client_close_socket(struct gs_share *share, struct gs_client *client)
{
    struct gs_unread *unread = NULL;

    if (client->fd < 0 || gs_client_is_lost(client))
        return;
    gs_unwatch(share, client->fd);
    if (client->was_sent_fd && !gs_conn_is_read(client->fd))
        unread = malloc(sizeof *unread);
    if (unread) {
        *unread = (struct gs_unread){.fd = client->kept_fd};
        if (!share->clients.unread)
            share->clients.unread_look_ns = gs_now_ns() + GS_LOOK_NS;
        LL_PREPEND(share->clients.unread, unread);
        gs_conn_shut(client->fd);
    } else {
        gs_hang_up(client->fd);
    }
    client->fd = -1;
}

uint64_t gs_unread_tick(struct gs_share *share, uint64_t now)
{
    if (share->clients.unread && share->clients.unread_look_ns <= now) {
        unread_drop(share, false);
        share->clients.unread_look_ns = now + GS_LOOK_NS;
    }
    return share->clients.unread ? share->clients.unread_look_ns : GS_NEVER;
}

void gs_unread_free(struct gs_share *share)
{
    unread_drop(share, true);
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* Who comes back for what it holds has its place already, though there are max_clients: its new
 * connection is let in uncounted, one for each that its process has lost, and takes that one's
 * place as it says hello. Those of a user who show no pid (of other PID namespaces) are told apart
 * only then. */
bool gs_user_has_place(const struct gs_share *share, const struct gs_conn_who *who)
{
    struct gs_client *client, *next;
    int places = 0;

    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->uid != who->uid || (client->is_seen ? client->pid : 0) != who->pid)
            continue;
        if (client->over.uncounted)
            places--;
        else if (client->fd < 0 && client->references)
            places++;
    }
    return places > 0;
}

/* Who is let in uncounted may be the last of its user. */
void gs_client_take_place(struct gs_share *share, struct gs_client *client, bool counts)
{
    client->user->refs++;
    client->over.uncounted = !counts;
    share->clients.count += counts;
    client->user->clients += counts;
}

void gs_client_leave_place(struct gs_share *share, struct gs_client *client)
{
    client->user->refs--;
    share->clients.count -= !client->over.uncounted;
    client->user->clients -= !client->over.uncounted;
}

/* ---- Descriptors that come ------------------------------------------------------------------ */

/* With its greeting a client may send its pidfd, though the kernel may have told who it is; after
 * that nothing but a broker wants a descriptor, which gives its spare one up where none is left. */
int gs_client_receive(struct gs_share *share, struct gs_client *client,
                      union gs_wire_message *ret_message, int *ret_fd)
{
    int error;

    *ret_fd = -1;
    if (!share->options.is_broker && client->greeted)
        return gs_wire_receive(client->fd, ret_message, NULL);
    error = gs_wire_receive(client->fd, ret_message, ret_fd);
    if (error != -EMFILE || !share->options.is_broker || share->place.spare_fd < 0)
        return error;
    gs_spare_give(share);
    share->place.spare_given = true;
    return gs_wire_receive(client->fd, ret_message, ret_fd);
}
