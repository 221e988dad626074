/* The user's other processes: the sockets in all folders that are this user's, and who listens
 * there. */
#include <errno.h>
#include <stdlib.h>

#include "core/share/alive.h"
#include "core/share/conn.h"
#include "core/share/directory.h"
#include "core/share/discard.h"
#include "core/share/internal.h"

#define NAMES_MAX 1024 /* sockets in a folder that are looked at */

/* Whether a process of this user listens there: a child may hold the socket of one that has ended.
 */
static bool is_own(int fd, pid_t *ret_pid)
{
    const struct gs_conn_who who = gs_conn_who(fd);
    int error, pidfd;
    bool ended;

    *ret_pid = who.pid;
    if (!gs_user_is_own(who.uid))
        return false;
    pidfd = gs_conn_pidfd(fd, &error);
    ended = pidfd >= 0 ? gs_alive_exited(pidfd) : error == -ESRCH;
    gs_fd_drop(pidfd);
    return !ended;
}

int gs_own_connect(const struct gs_share *share, int directory, const char *name, pid_t *ret_pid)
{
    int fd = gs_directory_connect(directory, &share->options, name, 0);

    if (fd >= 0 && !is_own(fd, ret_pid)) {
        gs_hang_up(fd);
        fd = -1;
    }
    return fd < 0 ? -1 : fd;
}

/* Which folder a process has is its own matter. */
void gs_own_each(const struct gs_share *share,
                 void (*visit)(void *arg, int directory, const char *name), void *arg)
{
    char(*names)[GS_SOCKET_NAME_SIZE] = calloc(NAMES_MAX, sizeof *names);
    char reason[GS_REASON_SIZE];
    int directory = -1;

    for (unsigned n = 0; names && directory != -ENOENT; n++) {
        int count = 0;

        directory = gs_directory_open_place(&share->options, n, false, reason);
        if (directory >= 0)
            count = gs_directory_exporters(directory, share->name, names, NAMES_MAX);
        for (int i = 0; i < count; i++)
            visit(arg, directory, names[i]);
        if (directory >= 0)
            gs_fd_drop(directory);
    }
    free(names);
}
