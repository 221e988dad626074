/*
 * The socket that this process's openers connect to: put up at the first export, and again wherever
 * it can be when it has gone. Folders go: /run/user/UID when its user logs out, one in /tmp when
 * somebody clears that.
 *
 * The numbers of descriptor stay, what is behind them changes at once: other threads may be at
 * them. What was connected by then goes on.
 */
#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/opener.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SWEEP_AFTER_NS (20 * GS_NS_PER_MS) /* the first openers are served before */
#define LOOK_NS        GS_NS_PER_S

/* Whether the socket belongs to whoever started this broker. */
bool gs_socket_is_given(const struct gs_share *share)
{
    return share->options.is_broker && share->options.listen_fd >= 0;
}

/* ---- Where it is ---------------------------------------------------------------------------- */

static int look_at(const char *path, struct statx *ret_info)
{
    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_INO, ret_info);
}

static uint64_t device_of(const struct statx *info)
{
    return (uint64_t)info->stx_dev_major << 32 | info->stx_dev_minor;
}

/* Called with the lock held. Where the folder has no path that is known it is not looked for. */
static void remember_locked(struct gs_share *share, int directory)
{
    char folder[GS_FOLDER_SIZE];
    struct statx info;

    gs_directory_path(&share->options, directory, folder);
    snprintf(share->place.path, sizeof share->place.path, "%s/%s", folder, share->name);
    if (folder[0] == 0 || look_at(share->place.path, &info) != 0) {
        share->place.path[0] = 0;
        return;
    }
    share->place.inode = info.stx_ino;
    share->place.device = device_of(&info);
}

/* By the path that openers use; where the program has closed the socket, nobody can. Whoever cannot
 * be seen from here any more (this process has another user or root now) may be there. */
static bool is_lost(struct gs_share *share)
{
    char path[sizeof share->place.path];
    uint64_t inode, device;
    struct statx info;
    bool any, closed;

    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE)) /* it was taken down */
        return false;
    gs_lock_take(&share->lock);
    any = share->socket_start == GS_STARTED && share->place.path[0];
    closed = any && !gs_fd_is_there(&share->place.listener_is);
    memcpy(path, share->place.path, sizeof path);
    inode = share->place.inode;
    device = share->place.device;
    gs_lock_release(&share->lock);
    if (!any || closed)
        return closed;
    if (look_at(path, &info) != 0)
        return errno == ENOENT || errno == ENOTDIR;
    return info.stx_ino != inode || device_of(&info) != device;
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

/* Whether the kernel tells who a client is, as it does here of the listener itself. */
static bool tells_who(int listener)
{
    int error, pidfd = gs_conn_pidfd(listener, &error);

    gs_fd_drop(pidfd);
    return pidfd >= 0;
}

/* The new directory and listener are the share's from now on. */
static int adopt(struct gs_share *share, int directory, int listener)
{
    const struct gs_fd now = gs_fd_keep(directory);
    const struct gs_fd *before = &share->place.directory_is;
    int error;

    gs_lock_take(&share->lock);
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
        remember_locked(share, share->place.directory);
    gs_lock_release(&share->lock);
    return error;
}

/* What cannot be watched. That may be so because the program has closed what it does not know: these
 * numbers are its own then. */
static void take_down(struct gs_share *share)
{
    gs_lock_take(&share->lock);
    if (gs_fd_is_there(&share->place.directory_is))
        unlinkat(share->place.directory, share->name, 0);
    gs_fd_close(&share->place.directory_is);
    gs_fd_close(&share->place.listener_is);
    share->place.directory = -1;
    __atomic_store_n(&share->place.listener, -1, __ATOMIC_RELEASE);
    gs_lock_release(&share->lock);
}

static void say_again(struct gs_share *share)
{
    bool used = __atomic_load_n(&share->exporter.used, __ATOMIC_RELAXED);

    gs_log_line(&share->log, used ? GS_LOG_WARNING : GS_LOG_DEBUG,
                "the socket for those who open this process's memory had been removed: there is "
                "another now, %s",
                share->place.path);
}

static gs_status socket_start(struct gs_share *share)
{
    char reason[GS_REASON_SIZE];
    bool again = share->place.listener >= 0;
    int directory = -1, error;
    int listener = gs_directory_put_up(&share->options, share->name, share->options.is_broker,
                                       &directory, reason);

    if (listener < 0) {
        gs_say_not_exported(share, reason);
        return GS_NOT_OFFERED;
    }
    if (share->place.spare_fd < 0) /* an attempt before this one may have failed below */
        share->place.spare_fd = fcntl(share->loop.wake, F_DUPFD_CLOEXEC, 0);
    /* Then nobody has to send his pidfd. A broker takes more, also what is sent to it while it is
     * stopped. */
    if (!share->options.is_broker && tells_who(listener))
        gs_socket_take_rights(listener, false);
    error = adopt(share, directory, listener);
    if (error) {
        snprintf(reason, sizeof reason, "its socket cannot be watched: %s", strerror(-error));
        take_down(share);
        gs_say_not_exported(share, reason);
        return GS_NOT_OFFERED;
    }
    if (again && __atomic_load_n(&share->ending, __ATOMIC_ACQUIRE)) /* nobody else takes it down */
        gs_directory_unlink(share->place.directory, share->name);
    else if (again)
        say_again(share);
    __atomic_store_n(&share->place.sweep_ns, gs_now_ns() + SWEEP_AFTER_NS, __ATOMIC_RELEASE);
    gs_thread_wake(share); /* or it sleeps until somebody connects */
    return GS_OK;
}

gs_status gs_socket_start(struct gs_share *share)
{
    gs_status status = gs_thread_start(share);

    if (status != GS_OK)
        return GS_NOT_OFFERED;
    if (is_lost(share)) {
        gs_lock_take(&share->lock);
        if (share->socket_start == GS_STARTED)
            share->socket_start = GS_NOT_STARTED;
        __atomic_store_n(&share->exporter.refusal_said, false, __ATOMIC_RELAXED);
        gs_lock_release(&share->lock);
    }
    return gs_start_once(share, &share->socket_start, socket_start);
}

gs_status gs_share_serve(struct gs_share *share)
{
    return gs_socket_start(share);
}

bool gs_share_can(struct gs_share *share, char *ret_reason)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool can = epoll >= 0 && wake >= 0;

    if (!can)
        snprintf(ret_reason, GS_REASON_SIZE, "no thread can serve it: %s", strerror(errno));
    if (wake >= 0)
        close(wake);
    if (epoll >= 0)
        close(epoll);
    return can && gs_directory_try(&share->options, share->name, ret_reason);
}

/* ---- The share thread ----------------------------------------------------------------------- */

/* Who exits while the share thread is at it sweeps as well: what that has begun ends with it. */
void gs_sweep(struct gs_share *share)
{
    if (__atomic_load_n(&share->place.sweep_ns, __ATOMIC_ACQUIRE) == GS_NEVER)
        return;
    if (!share->options.is_broker)
        gs_directory_sweep(share->place.directory, &share->options);
    __atomic_store_n(&share->place.sweep_ns, GS_NEVER, __ATOMIC_RELEASE);
}

uint64_t gs_socket_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due = __atomic_load_n(&share->place.sweep_ns, __ATOMIC_ACQUIRE);

    if (due <= now) {
        gs_sweep(share);
        due = GS_NEVER;
    }
    if (__atomic_load_n(&share->place.listener, __ATOMIC_ACQUIRE) < 0 || gs_socket_is_given(share))
        return due;
    if (share->place.touch_ns == 0)
        share->place.touch_ns = now + GS_TOUCH_S * GS_NS_PER_S;
    if (now >= share->place.touch_ns) {
        share->place.touch_ns = now + GS_TOUCH_S * GS_NS_PER_S;
        gs_directory_touch(share->place.directory, share->name);
        __atomic_store_n(&share->place.sweep_ns, now, __ATOMIC_RELEASE);
        due = now;
    }
    if (now >= share->place.look_ns) {
        gs_socket_start(share);
        share->place.look_ns = gs_now_ns() + LOOK_NS;
    }
    return due < share->place.look_ns ? due : share->place.look_ns;
}
