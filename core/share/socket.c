/*
 * How the socket that this process's importers connect to is put up and taken down (place.c says
 * when).
 *
 * The numbers of descriptor stay, what is behind them changes at once: other threads may be at
 * them. What was connected by then goes on.
 */
#include "core/share/discard.h"
#include "core/share/internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

bool gs_socket_is_given(const struct gs_share *share)
{
    return share->options.is_broker && share->options.listen_fd >= 0;
}

/* ---- Where it is ---------------------------------------------------------------------------- */

/* Of a path: what lies there now. */
static bool seat_of(const char *path, struct gs_seat *ret_seat)
{
    struct statx info;

    if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_INO, &info) != 0)
        return false;
    snprintf(ret_seat->path, sizeof ret_seat->path, "%s", path);
    ret_seat->inode = info.stx_ino;
    ret_seat->device = (uint64_t)info.stx_dev_major << 32 | info.stx_dev_minor;
    return true;
}

/* Of a folder: it was removed. */
static bool is_removed(int directory)
{
    struct statx info;

    return statx(directory, "", AT_EMPTY_PATH, STATX_NLINK, &info) == 0 && info.stx_nlink == 0;
}

/* What cannot be seen from here any more (this process has another user or root now) may be
 * there. */
bool gs_socket_is_lost(struct gs_share *share)
{
    struct gs_seat seat, now;
    bool any, known, lost = false;

    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE)) /* it was taken down */
        return false;
    gs_lock_take(&share->lock);
    any = share->socket_start == GS_STARTED;
    known = any && share->place.seat.path[0];
    if (known)
        lost = !gs_fd_is_there(&share->place.listener_is);
    else if (any) /* its folder may have gone before it was known where that is */
        lost = gs_fd_is_there(&share->place.directory_is) && is_removed(share->place.directory);
    seat = share->place.seat;
    gs_lock_release(&share->lock);
    if (!known || lost)
        return lost;
    if (!seat_of(seat.path, &now))
        return errno == ENOENT || errno == ENOTDIR;
    return now.inode != seat.inode || now.device != seat.device;
}

/* ---- Putting it up -------------------------------------------------------------------------- */

/* Called with the lock held. `fd` takes the place of what is there, under its number if that still
 * is this library's. */
static int exchange_locked(int *number, struct gs_fd *kept, int fd)
{
    if (*number >= 0 && gs_fd_is_there(kept) && dup3(fd, *number, O_CLOEXEC) == *number)
        close(fd);
    else
        __atomic_store_n(number, fd, __ATOMIC_RELEASE);
    *kept = gs_fd_keep(*number);
    return *number;
}

/* Called with the lock held. Where it is now; the thread is told when it is removed or moved, alone
 * or with its folder. What becomes of the folders above is seen at the next export, as all is where
 * nothing is told. A folder whose path is not known is not looked for. */
static void sit_down_locked(struct gs_share *share)
{
    char folder[GS_FOLDER_SIZE], path[sizeof share->place.seat.path];
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    gs_fd_close(&share->place.notify);
    share->place.notify = gs_fd_keep(fd);
    share->place.seat.path[0] = 0;
    gs_directory_path(&share->options, share->place.directory, folder);
    snprintf(path, sizeof path, "%s/%s", folder, share->name);
    if (folder[0] && !seat_of(path, &share->place.seat)) {
        share->place.seat = (struct gs_seat){.inode = 0};
        if (errno == ENOENT) /* it has gone already, and is lost */
            snprintf(share->place.seat.path, sizeof share->place.seat.path, "%s", path);
    }
    if (fd < 0 || !share->place.seat.path[0] ||
        inotify_add_watch(fd, path, IN_DONT_FOLLOW | IN_ATTRIB | IN_MOVE_SELF) < 0 ||
        inotify_add_watch(fd, folder, IN_ONLYDIR | IN_MOVE_SELF | IN_DELETE_SELF) < 0 ||
        gs_watch(share, GS_WATCH_ADD, fd, GS_WATCH_READ, GS_WATCH_PLACE, 0) != 0)
        gs_log_line(
            &share->log, GS_LOG_DEBUG,
            "the socket is not watched: %s; where it is removed it is put up again with the "
            "next handle",
            strerror(errno));
}

void gs_socket_event(struct gs_share *share)
{
    char many[4096];

    while (gs_fd_is_there(&share->place.notify) &&
           read(share->place.notify.fd, many, sizeof many) > 0)
        continue;
    gs_socket_look(share);
}

/* Whether the kernel tells who a client is, as it does here of the listener itself. */
static bool tells_who(int listener)
{
    int error, pidfd = gs_conn_pidfd(listener, &error);

    gs_fd_drop(pidfd);
    return pidfd >= 0;
}

int gs_socket_adopt(struct gs_share *share, int directory, int listener)
{
    const struct gs_fd now = gs_fd_keep(directory);
    const struct gs_fd *before = &share->place.directory_is;
    int error;

    /* Then nobody has to send its pidfd. A broker takes more, also what is sent to it while it is
     * stopped. */
    if (!share->options.is_broker && tells_who(listener))
        gs_socket_take_no_rights(listener);
    GS_HOLDING(&share->lock);
    if (share->place.listener >= 0 && gs_fd_is_there(&share->place.listener_is))
        gs_unwatch(share, share->place.listener);
    if (share->place.directory >= 0 && gs_fd_is_there(before) &&
        (before->inode != now.inode || before->device != now.device))
        unlinkat(share->place.directory, share->name,
                 0); /* it may have been moved away with its folder */
    exchange_locked(&share->place.directory, &share->place.directory_is, directory);
    exchange_locked(&share->place.listener, &share->place.listener_is, listener);
    error =
        gs_watch(share, GS_WATCH_ADD, share->place.listener, GS_WATCH_READ, GS_WATCH_LISTENER, 0);
    if (!error && !gs_socket_is_given(share))
        sit_down_locked(share);
    return error;
}

/* The program may have closed what it does not know: these numbers are its own then. */
void gs_socket_take_down(struct gs_share *share)
{
    gs_lock_take(&share->lock);
    if (gs_fd_is_there(&share->place.directory_is))
        unlinkat(share->place.directory, share->name, 0);
    gs_fd_close(&share->place.directory_is);
    gs_fd_close(&share->place.listener_is);
    gs_fd_close(&share->place.notify);
    __atomic_store_n(&share->place.directory, -1, __ATOMIC_RELEASE);
    __atomic_store_n(&share->place.listener, -1, __ATOMIC_RELEASE);
    gs_lock_release(&share->lock);
}

bool gs_share_can(struct gs_share *share, char *ret_reason)
{
    char path[GS_FOLDER_SIZE];

    return gs_directory_try(&share->options, share->name, path, ret_reason);
}
