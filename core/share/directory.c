/* The runtime directory and the sockets in it (core/share/directory.h). */
#include "core/share/directory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/share/discard.h"
#include "core/share/internal.h"

#define BACKLOG       128
#define LOCK_TRIES    100 /* of the directory, for a broker: */
#define LOCK_WAIT_US  10000
#define MAKE_TRIES    50

void gs_broker_name(char ret_name[GS_BROKER_NAME_SIZE])
{
    char boot[GS_BOOT_SIZE];

    gs_boot_id(boot);
    snprintf(ret_name, GS_BROKER_NAME_SIZE, GS_BROKER_NAME "%s%s", boot[0] ? "." : "", boot);
}

/* By the directory's path; false where that is too long. */
static bool path_of(const char *folder, const char *name, struct sockaddr_un *ret_address)
{
    size_t dir = strlen(folder), length = strlen(name);

    memset(ret_address, 0, sizeof *ret_address);
    ret_address->sun_family = AF_UNIX;
    if (dir == 0 || dir + 1 + length >= sizeof ret_address->sun_path)
        return false;
    memcpy(ret_address->sun_path, folder, dir);
    ret_address->sun_path[dir] = '/';
    memcpy(ret_address->sun_path + dir + 1, name, length);
    return true;
}

/*
 * The address of `name` in the directory. Through /proc it is short and means the directory that
 * was checked; without /proc the path has to do, if it fits.
 */
static int address_of(int directory, const struct gs_share_options *options, const char *name,
                      struct sockaddr_un *ret_address)
{
    char by_fd[40], path[GS_FOLDER_SIZE];
    int length;

    memset(ret_address, 0, sizeof *ret_address);
    ret_address->sun_family = AF_UNIX;
    snprintf(by_fd, sizeof by_fd, "/proc/self/fd/%d", directory);
    if (access(by_fd, X_OK) != 0)
        gs_directory_path(options, directory, path);
    else
        memcpy(path, by_fd, sizeof by_fd);
    length = snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "%s/%s", path, name);
    return length < (int)sizeof ret_address->sun_path ? 0 : -ENAMETOOLONG;
}

/* Binds under a first name, listens, and only then gives the socket its own name. 0 or an errno. */
static int put_up(int fd, int directory, const struct gs_share_options *options, const char *name)
{
    char first[GS_BROKER_NAME_SIZE + sizeof GS_NEW_SUFFIX];
    struct sockaddr_un address;
    mode_t mode = options->uid_count + options->gid_count > 0 ? 0666 : 0600;
    int error;

    snprintf(first, sizeof first, "%s" GS_NEW_SUFFIX, name);
    error = -address_of(directory, options, first, &address);
    if (error)
        return error;
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0)
        return errno;
    if (fchmodat(directory, first, mode, 0) == 0 && listen(fd, BACKLOG) == 0 &&
        renameat(directory, first, directory, name) == 0)
        return 0;
    error = errno;
    unlinkat(directory, first, 0);
    return error;
}

int gs_directory_listen(int directory, const struct gs_share_options *options, const char *name,
                        char ret_reason[GS_REASON_SIZE])
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = fd < 0 ? errno : put_up(fd, directory, options, name);
    char path[GS_FOLDER_SIZE];

    if (error == 0)
        return fd;
    gs_directory_path(options, directory, path);
    snprintf(ret_reason, GS_REASON_SIZE, "no socket can be made in %s: %s%s",
             path[0] ? path : gs_directory_words(options), strerror(error),
             error == EACCES || error == EROFS ? "; name a directory you can write to" : "");
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

/* The kernel counts the time anew with each call, and a program's signals may end one after the
 * other. */
static int connect_to(int fd, const struct sockaddr_un *address, uint64_t end_ns)
{
    uint64_t now = gs_now_ns();

    do {
        uint64_t us = now < end_ns ? (end_ns - now) / 1000 : 0;
        struct timeval limit = {.tv_sec = (time_t)(us / 1000000),
                                .tv_usec = (suseconds_t)(us % 1000000)};

        if (us == 0)
            limit.tv_usec = 1; /* zero would mean to wait for ever */
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
            return 0;
        if (errno != EINTR)
            return -errno;
        now = gs_now_ns();
    } while (now < end_ns);
    return -EAGAIN;
}

int gs_directory_connect(int directory, const struct gs_share_options *options, const char *name,
                         uint64_t limit_ns)
{
    const uint64_t end_ns = gs_now_ns() + limit_ns;
    struct sockaddr_un address;
    int error, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    error = path_of(options->dir, name, &address) ? connect_to(fd, &address, end_ns) : -ENOENT;
    if (error == -ENOENT || error == -ENOTDIR || error == -EACCES) { /* seen from another root */
        error = address_of(directory, options, name, &address);
        if (!error)
            error = connect_to(fd, &address, end_ns);
    }
    if (error) {
        close(fd);
        return error;
    }
    return fd;
}

/* -EAGAIN: not there, or not now. */
static int connect_through(const struct gs_share_options *options, const char *folder,
                           const char *name)
{
    struct sockaddr_un address;
    int fd;

    if (folder[0] != '/' || !path_of(folder, name, &address))
        return -EAGAIN;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -EAGAIN;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        gs_directory_is_good(options, folder))
        return fd;
    gs_hang_up(fd);
    return -EAGAIN;
}

int gs_directory_connect_at_once(const struct gs_share_options *options, const char *name)
{
    char folder[GS_FOLDER_SIZE];
    int fd = -EAGAIN;

    if (!memchr(options->dir, 0, sizeof options->dir))
        return -EAGAIN;
    for (unsigned n = 0; fd < 0 && gs_directory_likely(options, n, folder); n++)
        fd = connect_through(options, folder, name);
    return fd;
}

bool gs_directory_may_connect(int directory, const char *name)
{
    return faccessat(directory, name, W_OK, AT_EACCESS) == 0;
}

bool gs_directory_is_of(int directory, const struct gs_share_options *options, const char *name,
                        uid_t uid, pid_t pid)
{
    struct sockaddr_un address;
    struct gs_conn_who who = {.uid = uid};
    struct statx info;
    int fd;

    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_UID, &info) != 0 ||
        !S_ISSOCK(info.stx_mode) || info.stx_uid != uid ||
        address_of(directory, options, name, &address) != 0)
        return false;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        who = gs_conn_who(fd);
    if (fd >= 0)
        gs_hang_up(fd); /* who listens there may have said something */
    return who.uid == uid && (pid <= 0 || who.pid <= 0 || who.pid == pid);
}

bool gs_directory_is_dead(int directory, const struct gs_share_options *options,
                          const char *name)
{
    struct sockaddr_un address;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool dead = false;

    if (fd < 0)
        return false;
    if (address_of(directory, options, name, &address) == 0)
        dead =
            connect(fd, (struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
    gs_hang_up(fd);
    return dead;
}

void gs_directory_unlink(int directory, const char *name)
{
    unlinkat(directory, name, 0);
}

int gs_directory_let_all(int directory, const char *name)
{
    return fchmodat(directory, name, 0666, 0) == 0 ? 0 : -errno;
}

/* Two brokers that start at once have it for a moment each. Anybody who may read the directory can
 * lock it, for as long as he likes: so it is not waited for longer than that takes. */
static bool lock_for_broker(int directory)
{
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(directory, LOCK_EX | LOCK_NB) == 0)
            return true;
        if (errno != EWOULDBLOCK && errno != EINTR)
            return false;
        usleep(LOCK_WAIT_US);
    }
    errno = EWOULDBLOCK;
    return false;
}

int gs_directory_listen_broker(int directory, const struct gs_share_options *options,
                               char ret_reason[GS_REASON_SIZE])
{
    char name[GS_BROKER_NAME_SIZE], unborn[GS_BROKER_NAME_SIZE + sizeof GS_NEW_SUFFIX];
    int fd;

    if (options->listen_fd >= 0)
        return options->listen_fd;
    gs_broker_name(name);
    if (!lock_for_broker(directory)) {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "%s cannot be locked: %s; see who else has it open (fuser)",
                 gs_directory_words(options), strerror(errno));
        return -1;
    }
    fd = gs_directory_connect(directory, options, name, 0); /* busy or not, it is there */
    if (fd >= 0 || (fd != -ENOENT && fd != -ECONNREFUSED)) {
        snprintf(ret_reason, GS_REASON_SIZE, "a broker runs for %s already",
                 gs_directory_words(options));
        if (fd >= 0)
            gs_hang_up(fd);
        fd = -1;
    } else {
        /* Whoever made one has the lock until it has its own name: this one's maker was killed. */
        snprintf(unborn, sizeof unborn, "%s" GS_NEW_SUFFIX, name);
        unlinkat(directory, unborn, 0);
        fd = gs_directory_listen(directory, options, name, ret_reason);
    }
    flock(directory, LOCK_UN);
    return fd;
}

static int listen_in(int directory, const struct gs_share_options *options, const char *name,
                     bool broker, char *ret_reason)
{
    return broker ? gs_directory_listen_broker(directory, options, ret_reason)
                  : gs_directory_listen(directory, options, name, ret_reason);
}

/* In the n-th place; as gs_directory_put_up. Whoever only tried it may have made the directory, and
 * removes it again just now: then it is made again. */
static int put_up_in(const struct gs_share_options *options, unsigned n, const char *name,
                     bool broker, int *ret_directory, char *ret_reason)
{
    for (int i = 0; i < MAKE_TRIES; i++) {
        int error, listener, directory = gs_directory_open_place(options, n, true, ret_reason);

        if (directory == -ENOENT)
            return -ENOENT;
        listener =
            directory < 0 ? -1 : listen_in(directory, options, name, broker, ret_reason);
        error = errno;
        if (listener >= 0) {
            *ret_directory = directory;
            return listener;
        }
        if (directory >= 0)
            close(directory);
        if (error != ENOENT)
            break;
    }
    return -1;
}

int gs_directory_put_up(const struct gs_share_options *options, const char *name, bool broker,
                        int *ret_directory, char ret_reason[GS_REASON_SIZE])
{
    char reason[GS_REASON_SIZE];

    ret_reason[0] = 0;
    for (unsigned n = 0;; n++) {
        int listener = put_up_in(options, n, name, broker, ret_directory, reason);

        if (listener >= 0)
            return listener;
        if (listener == -ENOENT)
            return -1;
        gs_reason_add(ret_reason, reason);
    }
}

bool gs_directory_try(const struct gs_share_options *options, const char *name,
                      char ret_reason[GS_REASON_SIZE])
{
    char path[GS_FOLDER_SIZE];
    uint64_t absent = 0;
    int directory, listener;

    for (unsigned n = 0; gs_directory_likely(options, n, path); n++)
        absent |= (uint64_t)(access(path, F_OK) != 0) << n;
    listener = gs_directory_put_up(options, name, false, &directory, ret_reason);
    if (listener >= 0) {
        unlinkat(directory, name, 0);
        close(listener);
        close(directory);
    }
    for (unsigned n = 0; absent && gs_directory_likely(options, n, path); n++)
        if (absent >> n & 1)
            rmdir(path); /* unless somebody uses it by now */
    return listener >= 0;
}
