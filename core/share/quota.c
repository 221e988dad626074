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

#include <linux/sockios.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define UNREAD_PART    16 /* of the limit of descriptors: other users have so many unread */
#define UNREAD_LOOK_NS GS_NS_PER_S

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

    HASH_FIND(hh, share->users, &uid, sizeof uid, user);
    if (user)
        return user;
    user = calloc(1, sizeof *user);
    if (!user)
        return NULL;
    user->uid = uid;
    HASH_ADD(hh, share->users, uid, sizeof user->uid, user);
    if (user->hh.tbl)
        return user;
    free(user);
    return NULL;
}

void gs_user_reap(struct gs_share *share, struct gs_user *user)
{
    if (user->refs + user->clients + user->offers + user->chunks > 0)
        return;
    HASH_DEL(share->users, user);
    free(user);
}

bool gs_user_may(const struct gs_user *user, uint64_t has, uint64_t all, uint64_t most)
{
    uint64_t others = all > has ? all - has : 0;

    return user->uid == geteuid() || (others < most && has < (most - others + 1) / 2);
}

/* ---- Descriptors under way ------------------------------------------------------------------ */

static bool is_all_read(const struct gs_fd *fd)
{
    int unread = 0;

    return !gs_fd_is_there(fd) || ioctl(fd->fd, SIOCOUTQ, &unread) != 0 || unread == 0;
}

static void count_read(struct gs_user *user, unsigned *count)
{
    user->unread -= *count;
    *count = 0;
}

/* Gives up the connections of which all has been read, or all of them. */
static void unread_drop(struct gs_share *share, bool all)
{
    for (struct gs_unread **link = &share->unread; *link;) {
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

    for (user = share->users; user; user = user->hh.next)
        count += user->unread;
    return count;
}

/* Whether one descriptor more may go to the other user. */
static bool may_send(struct gs_share *share, const struct gs_user *user)
{
    struct rlimit limit = {.rlim_cur = 0};
    struct gs_client *client, *next;
    uint64_t most;

    getrlimit(RLIMIT_NOFILE, &limit);
    most = limit.rlim_cur / UNREAD_PART + 1;
    if (gs_user_may(user, user->unread, count_unread(share), most))
        return true;
    HASH_ITER(hh, share->clients, client, next)
    {
        if (client->unread && is_all_read(&client->kept_fd))
            count_read(client->user, &client->unread);
    }
    unread_drop(share, false);
    return gs_user_may(user, user->unread, count_unread(share), most);
}

int gs_client_send(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message, int fd)
{
    bool counts = fd >= 0 && client->uid != geteuid();
    int error;

    if (counts && !may_send(share, client->user))
        return -ETOOMANYREFS;
    error = gs_wire_send(client->fd, message, fd);
    if (!error && counts) {
        client->unread++;
        client->user->unread++;
    }
    return error;
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
        *unread = (struct gs_unread){client->kept_fd, client->unread, client->user, share->unread};
        if (!share->unread)
            share->unread_look_ns = gs_now_ns() + UNREAD_LOOK_NS;
        share->unread = unread;
        client->user->unread += unread->count;
        client->user->refs++;
        shutdown(client->fd, SHUT_RDWR);
    } else {
        gs_hang_up(client->fd);
    }
    gs_client_lost(client);
}

uint64_t gs_unread_tick(struct gs_share *share, uint64_t now)
{
    if (share->unread && share->unread_look_ns <= now) {
        unread_drop(share, false);
        share->unread_look_ns = now + UNREAD_LOOK_NS;
    }
    return share->unread ? share->unread_look_ns : GS_NEVER;
}

void gs_unread_free(struct gs_share *share)
{
    unread_drop(share, true);
}
