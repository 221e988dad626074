/*
 * What each user takes (core/share/exporter.h): nobody takes all there is from the others.
 *
 * One thing is not this process's alone: descriptors that were sent and not read. The kernel counts
 * them for the user who sent them, and none is sent where they are more than the sender's limit
 * (but root's): another user who lets them lie would end the sharing of all this user's processes.
 * So over each connection he is sent one at a time, when he has read all that was sent before. What
 * he leaves unread in one that he is hung up on counts until he closes it: whoever is listed is
 * trusted not to.
 */
#include "core/share/exporter.h"

#include <stdlib.h>

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

/* ---- Descriptors that go -------------------------------------------------------------------- */

int gs_client_send_all(const struct gs_client *client, const union gs_wire_message *message,
                       const struct gs_wire_fds *fds)
{
    if (fds->count > 0 && !gs_user_is_own(client->uid) && !gs_conn_is_read(client->fd))
        return -ETOOMANYREFS;
    return gs_wire_send_all(client->fd, message, fds);
}

int gs_client_send(const struct gs_client *client, const union gs_wire_message *message, int fd)
{
    return gs_client_send_all(client, message, &(struct gs_wire_fds){.count = fd >= 0, .fd = {fd}});
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
