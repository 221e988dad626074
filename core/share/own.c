/* The user's other processes: the sockets in all folders that are this user's, and who listens
 * there. */
#include <errno.h>
#include <stdlib.h>

#include "core/share/alive.h"
#include "core/share/conn.h"
#include "core/share/directory.h"
#include "core/share/discard.h"
#include "core/share/internal.h"

/* A child may hold the socket of one that has ended. */
static bool has_ended(int fd)
{
    int error, pidfd = gs_conn_pidfd(fd, &error);
    bool ended = pidfd >= 0 ? gs_alive_exited(pidfd) : error == -ESRCH;

    gs_fd_drop(pidfd);
    return ended;
}

/* Of those that the options name; nobody's id: none of them. */
static uid_t whose(const struct gs_share *share, int directory, const char *name)
{
    for (unsigned i = 0; i < share->options.uid_count; i++)
        if (gs_directory_is_of(directory, &share->options, name, share->options.uids[i], 0))
            return share->options.uids[i];
    return (uid_t)-1;
}

int gs_peer_connect(const struct gs_share *share, int directory, const char *name,
                    struct gs_conn_who *ret_who)
{
    int fd = gs_directory_connect(directory, &share->options, name, 0);

    if (fd == -EACCES)
        ret_who->uid = whose(share, directory, name);
    if (fd < 0)
        return fd == -EMFILE ? -EAGAIN : fd == -EAGAIN || fd == -EACCES ? fd : -ENOENT;
    *ret_who = gs_conn_who(fd);
    if (!has_ended(fd))
        return fd;
    gs_hang_up(fd);
    return -ENOENT;
}

int gs_own_connect(const struct gs_share *share, int directory, const char *name, pid_t *ret_pid)
{
    int fd = gs_directory_connect(directory, &share->options, name, 0);
    struct gs_conn_who who;

    if (fd < 0)
        return fd;
    who = gs_conn_who(fd);
    *ret_pid = who.pid;
    if (gs_user_is_own(who.uid) && !has_ended(fd))
        return fd;
    gs_hang_up(fd);
    return -ENOENT;
}

/* False: there is no host memory. */
static bool each(const struct gs_share *share, int directory,
                 void (*visit)(void *arg, int directory, const char *name), void *arg)
{
    char(*names)[GS_SOCKET_NAME_SIZE];
    int count = gs_directory_exporters(directory, share->name, &names);

    for (int i = 0; i < count; i++)
        visit(arg, directory, names[i]);
    free(names);
    return count >= 0;
}

/* Which folder a process has is its own matter. */
void gs_own_each(const struct gs_share *share,
                 void (*visit)(void *arg, int directory, const char *name), void *arg)
{
    char reason[GS_REASON_SIZE];
    int directory = -1;

    for (unsigned n = 0; directory != -ENOENT; n++) {
        directory = gs_directory_open_place(&share->options, n, false, reason);
        if (directory >= 0) {
            each(share, directory, visit, arg);
            gs_fd_drop(directory);
        }
    }
}

bool gs_peers_each(const struct gs_share *share,
                   void (*visit)(void *arg, int directory, const char *name), void *arg)
{
    char reason[GS_REASON_SIZE], broker[GS_BROKER_NAME_SIZE];
    unsigned place = 0;
    bool all = true;
    int directory;

    gs_broker_name(broker);
    while ((directory = gs_directory_next(&share->options, &place, reason)) >= 0) {
        all &= each(share, directory, visit, arg);
        visit(arg, directory, broker);
        gs_fd_drop(directory);
    }
    return all;
}
