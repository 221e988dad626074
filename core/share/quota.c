/*
 * What each user takes (core/share/exporter.h): nobody takes all there is from the others.
 *
 * One thing is not this process's alone: descriptors that were sent and not read. The kernel counts
 * them for the user who sent them, and none is sent where they are more than the sender's limit
 * (but root's): another user who lets them lie would end the sharing of all this user's processes.
 * So he is sent no more than a part of that, and a connection that is hung up on is kept until what
 * lies there has been read, or it has been closed: by it alone can that be seen.
 */
#include "core/share/discard.h"
#include "core/share/exporter.h"

#include <stdlib.h>

#define UNREAD_PART    16 /* of the limit of descriptors: other users have so many unread */
#define UNREAD_LOOK_NS GS_NS_PER_S
#define CROWDED_LOOK_NS (50 * GS_NS_PER_MS)

/* A connection that is over, with descriptors that the other side has not read. */
struct gs_unread {
    struct gs_fd fd; /* the program may close it */
    unsigned count;
    struct gs_user *user;
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

static bool is_all_read(const struct gs_fd *fd)
{
    return !gs_fd_is_there(fd) || gs_conn_is_read(fd->fd);
}

static void count_read(struct gs_user *user, unsigned *count)
{
    user->unread -= *count;
    *count = 0;
}

/* Gives up the connections of which all has been read, or all of them. */
static void unread_drop(struct gs_share *share, bool all)
{
    for (struct gs_unread **link = &share->clients.unread; *link;) {
        struct gs_unread *unread = *link;

        if (!all && !is_all_read(&unread->fd)) {
            link = &unread->next;
            continue;
        }
        *link = unread->next;
        if (gs_fd_is_there(&unread->fd))
            gs_hang_up(unread->fd.fd);
        count_read(unread->user, &unread->count);
        unread->user->refs--;
        gs_user_reap(share, unread->user);
        free(unread);
    }
}

static uint64_t count_unread(const struct gs_share *share)
{
    const struct gs_user *user;
    uint64_t count = 0;

    for (user = share->clients.users; user; user = user->hh.next)
        count += user->unread;
    return count;
}

/* Whether `more` descriptors, one at least, may go to the other user. */
static bool may_get(const struct gs_share *share, const struct gs_user *user, unsigned more)
{
    return gs_user_may(user, user->unread + more - 1, count_unread(share) + more - 1,
                       gs_fd_limit() / UNREAD_PART + 1);
}

/* The same when what he has read was looked for. */
static bool may_send(struct gs_share *share, const struct gs_user *user, unsigned more)
{
    struct gs_client *client, *next;

    if (may_get(share, user, more))
        return true;
    HASH_ITER(hh, share->clients.first, client, next)
    {
        if (client->unread && is_all_read(&client->kept_fd))
            count_read(client->user, &client->unread);
    }
    unread_drop(share, false);
    return may_get(share, user, more);
}

unsigned gs_client_may_send(struct gs_share *share, struct gs_client *client, unsigned most)
{
    while (most > 0 && !gs_user_is_own(client->uid) && !may_send(share, client->user, most))
        most /= 2;
    return most;
}

int gs_client_send_all(struct gs_share *share, struct gs_client *client,
                       const union gs_wire_message *message, const struct gs_wire_fds *fds)
{
    bool counts = fds->count > 0 && !gs_user_is_own(client->uid);
    int error;

    if (counts && !may_send(share, client->user, fds->count))
        return -ETOOMANYREFS;
    error = gs_wire_send_all(client->fd, message, fds);
    if (!error && counts) {
        client->unread += fds->count;
        client->user->unread += fds->count;
    }
    return error;
}

int gs_client_send(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message, int fd)
{
    return gs_client_send_all(share, client, message,
                              &(struct gs_wire_fds){.count = fd >= 0, .fd = {fd}});
}

void gs_client_lost(struct gs_client *client)
{
    client->fd = -1;
    count_read(client->user, &client->unread);
}

void gs_client_hang_up(struct gs_share *share, struct gs_client *client)
{
    struct gs_unread *unread = NULL;

    if (client->unread && !is_all_read(&client->kept_fd))
        unread = malloc(sizeof *unread);
    if (unread) {
        *unread = (struct gs_unread){client->kept_fd, client->unread, client->user,
                                     share->clients.unread};
        if (!share->clients.unread)
            share->clients.unread_look_ns = gs_now_ns() + UNREAD_LOOK_NS;
        share->clients.unread = unread;
        client->user->unread += unread->count;
        client->user->refs++;
        gs_conn_shut(client->fd);
    } else {
        gs_hang_up(client->fd);
    }
    gs_client_lost(client);
}

uint64_t gs_unread_tick(struct gs_share *share, uint64_t now)
{
    if (share->clients.unread && share->clients.unread_look_ns <= now) {
        unread_drop(share, false);
        share->clients.unread_look_ns = now + UNREAD_LOOK_NS;
    }
    return share->clients.unread ? share->clients.unread_look_ns : GS_NEVER;
}

void gs_unread_free(struct gs_share *share)
{
    unread_drop(share, true);
}

/* ---- Places ---------------------------------------------------------------------------------- */

/* Who comes back for what it holds has its place already, though there are max_clients: its new
 * connection is let in uncounted, one for each that its process has lost, and takes that one's place as it says hello. */

static bool is_process(const struct gs_client *client, uid_t uid, pid_t pid)
{
    return client->is_seen && client->uid == uid && client->pid == pid;
}

bool gs_user_has_place(const struct gs_share *share, const struct gs_conn_who *who)
{
    struct gs_client *client, *next;
    int places = 0;

    HASH_ITER(hh, share->clients.first, client, next)
    {
        if (!is_process(client, who->uid, who->pid))
            continue;
        if (client->over.uncounted)
            places--;
        else if (client->fd < 0 && client->references)
            places++;
    }
    return who->pid > 0 && places > 0;
}

void gs_client_take_place(struct gs_share *share, struct gs_client *client, bool counts)
{
    client->over.uncounted = !counts;
    share->clients.count += counts;
    client->user->clients += counts;
}

void gs_client_leave_place(struct gs_share *share, struct gs_client *client)
{
    share->clients.count -= !client->over.uncounted;
    client->user->clients -= !client->over.uncounted;
}

/* ---- Descriptors that come ------------------------------------------------------------------ */

/* With its greeting a client may send its pidfd, though the kernel may have told who it is; after
 * that nothing but a broker wants a descriptor. */
static bool wants_fd(const struct gs_share *share, const struct gs_client *client)
{
    return share->options.is_broker || !client->greeted;
}

/* A user of whose descriptors hundreds wait to be closed is not read for the moment, as somebody
 * who does nothing else would have to close them. A broker that has no room for a descriptor waits
 * for those that it does not keep to be closed, as long as that goes on: the message lies in the
 * socket. Then it gives its spare one up. */
static int receive_fd(struct gs_share *share, struct gs_client *client,
                      union gs_wire_message *ret_message, int *ret_fd)
{
    int error;

    if (gs_discards_full(client->uid)) {
        gs_yield();
        return -EAGAIN;
    }
    error = gs_wire_receive(client->fd, ret_message, ret_fd);
    if (error == -EMFILE && share->options.is_broker && gs_discards_go_on()) {
        gs_yield();
        return -EAGAIN;
    }
    if (error != -EMFILE || !share->options.is_broker || share->place.spare_fd < 0)
        return error;
    gs_spare_give(share);
    share->place.spare_given = true;
    return gs_wire_receive(client->fd, ret_message, ret_fd);
}

int gs_client_receive(struct gs_share *share, struct gs_client *client,
                      union gs_wire_message *ret_message, int *ret_fd)
{
    bool crowded;
    int error;

    *ret_fd = -1;
    if (!wants_fd(share, client))
        return gs_wire_receive(client->fd, ret_message, NULL);
    crowded = gs_discards_crowded(client->uid);
    error = crowded ? gs_wire_receive(client->fd, ret_message, NULL)
                    : receive_fd(share, client, ret_message, ret_fd);
    return crowded && error == -EPROTO ? -ETOOMANYREFS : error;
}

void gs_client_crowd(struct gs_client *client)
{
    client->crowded = gs_discards_crowded(client->uid) && gs_socket_takes_rights(client->fd);
    if (client->crowded)
        gs_socket_take_rights(client->fd, false);
}

uint64_t gs_client_uncrowd(struct gs_client *client, uint64_t now)
{
    if (!client->crowded || client->fd < 0)
        return GS_NEVER;
    if (gs_discards_crowded(client->uid))
        return now + CROWDED_LOOK_NS;
    client->crowded = false;
    if (gs_fd_is_there(&client->kept_fd)) /* the program may have closed it */
        gs_socket_take_rights(client->fd, true);
    return GS_NEVER;
}
