/* The runtime directory and the sockets in it (core/share/directory.h). */
#include "core/share/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/share/discard.h"
#include "core/share/token.h"

#define BACKLOG       128
#define NEW_SUFFIX    ".new" /* a socket that does not listen yet */
#define NEW_AGE_S     60     /* older than this, its maker was killed in between */
#define SWEEP_ENTRIES 4096
#define LOCK_TRIES    100 /* of the directory, for a broker: */
#define LOCK_WAIT_US  10000
#define RELAY_ENTRIES 65536
#define SWEEP_SOCKETS 2048 /* connected to, to see whether they live; 10 us each */

bool gs_user_is_listed(const struct gs_share_options *options, uid_t uid)
{
    if (uid == geteuid())
        return true;
    for (unsigned i = 0; i < options->uid_count; i++)
        if (options->uids[i] == uid)
            return true;
    return false;
}

bool gs_process_is_listed(const struct gs_share_options *options, uid_t uid, gid_t gid)
{
    for (unsigned i = 0; i < options->gid_count; i++)
        if (options->gids[i] == gid)
            return true;
    return gs_user_is_listed(options, uid);
}

/* statx, since the stat family of a new libc is not found in an older one. */
static int look(int directory, const char *name, struct statx *ret_info)
{
    return statx(directory, name, AT_SYMLINK_NOFOLLOW | (*name ? 0 : AT_EMPTY_PATH),
                 STATX_TYPE | STATX_MODE | STATX_UID | STATX_MTIME, ret_info);
}

void gs_directory_default(char *ret_dir, size_t size)
{
    unsigned long uid = geteuid();
    struct statx run;

    snprintf(ret_dir, size, "/run/user/%lu", uid);
    if (look(AT_FDCWD, ret_dir, &run) == 0 && S_ISDIR(run.stx_mode) && run.stx_uid == uid)
        snprintf(ret_dir, size, "/run/user/%lu/gpushim", uid);
    else
        snprintf(ret_dir, size, "/tmp/gpushim-%lu", uid);
}

/* Whether a directory may be used; the reason if not. */
static bool check(const struct statx *info, const struct gs_share_options *options,
                  char *ret_reason)
{
    if (info->stx_uid != 0 && !gs_user_is_listed(options, info->stx_uid)) {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "%s belongs to user %u, who is not to be trusted with shared memory; name a "
                 "directory of your own",
                 options->dir, (unsigned)info->stx_uid);
        return false;
    }
    if (info->stx_mode & (S_IWGRP | S_IWOTH)) {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "%s has mode %04o, others may write to it; take that right away (chmod go-w)",
                 options->dir, (unsigned)info->stx_mode & 07777);
        return false;
    }
    return true;
}

static bool is_path(const struct gs_share_options *options)
{
    return options->dir[0] == '/' && memchr(options->dir, 0, sizeof options->dir);
}

int gs_directory_open(const struct gs_share_options *options, bool make,
                      char ret_reason[GS_REASON_SIZE])
{
    struct statx info;
    int directory;

    if (!is_path(options)) {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "the runtime directory has no absolute path of at most %zu bytes; name one",
                 sizeof options->dir - 1);
        return -1;
    }
    if (make && mkdir(options->dir, 0700) != 0 && errno != EEXIST) {
        snprintf(ret_reason, GS_REASON_SIZE, "%s cannot be made: %s; make it, with mode 0700",
                 options->dir, strerror(errno));
        return -1;
    }
    directory = open(options->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0) {
        int cause = errno;
        bool is_link = (cause == ELOOP || cause == ENOTDIR) &&
                       look(AT_FDCWD, options->dir, &info) == 0 && S_ISLNK(info.stx_mode);

        snprintf(ret_reason, GS_REASON_SIZE, "%s cannot be opened: %s; name a directory you own",
                 options->dir, is_link ? "it is a symbolic link" : strerror(cause));
        return -1;
    }
    if (look(directory, "", &info) != 0)
        snprintf(ret_reason, GS_REASON_SIZE, "%s cannot be looked at: %s", options->dir,
                 strerror(errno));
    else if (check(&info, options, ret_reason))
        return directory;
    close(directory);
    return -1;
}

/* By the directory's path; false where that is too long. */
static bool path_of(const struct gs_share_options *options, const char *name,
                    struct sockaddr_un *ret_address)
{
    size_t dir = strlen(options->dir), length = strlen(name);

    memset(ret_address, 0, sizeof *ret_address);
    ret_address->sun_family = AF_UNIX;
    if (dir + 1 + length >= sizeof ret_address->sun_path)
        return false;
    memcpy(ret_address->sun_path, options->dir, dir);
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
    char by_fd[40];
    int length;

    memset(ret_address, 0, sizeof *ret_address);
    ret_address->sun_family = AF_UNIX;
    snprintf(by_fd, sizeof by_fd, "/proc/self/fd/%d", directory);
    length = snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "%s/%s",
                      access(by_fd, X_OK) == 0 ? by_fd : options->dir, name);
    return length < (int)sizeof ret_address->sun_path ? 0 : -ENAMETOOLONG;
}

/* Binds under a first name, listens, and only then gives the socket its own name. 0 or an errno. */
static int put_up(int fd, int directory, const struct gs_share_options *options, const char *name)
{
    char first[GS_RELAY_NAME_SIZE + sizeof NEW_SUFFIX];
    struct sockaddr_un address;
    mode_t mode = options->uid_count + options->gid_count > 0 ? 0666 : 0600;
    int error;

    snprintf(first, sizeof first, "%s" NEW_SUFFIX, name);
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

    if (error == 0)
        return fd;
    snprintf(ret_reason, GS_REASON_SIZE, "no socket can be made in %s: %s%s", options->dir,
             strerror(error),
             error == EACCES || error == EROFS ? "; name a directory you can write to" : "");
    if (fd >= 0)
        close(fd);
    return -1;
}

static int connect_to(int fd, const struct sockaddr_un *address)
{
    while (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        if (errno != EINTR)
            return -errno;
    return 0;
}

int gs_directory_connect(int directory, const struct gs_share_options *options, const char *name,
                         uint64_t limit_ns)
{
    struct timeval limit = {.tv_sec = (time_t)(limit_ns / 1000000000),
                            .tv_usec = (suseconds_t)(limit_ns / 1000 % 1000000)};
    struct sockaddr_un address;
    int error, fd;

    if (limit.tv_sec == 0 && limit.tv_usec == 0)
        limit.tv_usec = 1; /* zero would mean to wait for ever */
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    error = path_of(options, name, &address) ? connect_to(fd, &address) : -ENOENT;
    if (error == -ENOENT || error == -ENOTDIR || error == -EACCES) { /* seen from another root */
        error = address_of(directory, options, name, &address);
        if (!error)
            error = connect_to(fd, &address);
    }
    if (error) {
        close(fd);
        return error;
    }
    return fd;
}

int gs_directory_connect_at_once(const struct gs_share_options *options, const char *name)
{
    char ignored[GS_REASON_SIZE];
    struct sockaddr_un address;
    struct statx info;
    int fd;

    if (!is_path(options) || !path_of(options, name, &address))
        return -EAGAIN;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -EAGAIN;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        look(AT_FDCWD, options->dir, &info) == 0 && S_ISDIR(info.stx_mode) &&
        check(&info, options, ignored))
        return fd;
    gs_hang_up(fd);
    return -EAGAIN;
}

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

bool gs_directory_is_gone(int directory, const struct gs_share_options *options, const char *name)
{
    struct sockaddr_un address;
    struct pollfd exit = {.fd = -1, .events = POLLIN};
    socklen_t size = sizeof exit.fd;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool gone = false;

    if (fd < 0 || address_of(directory, options, name, &address) != 0) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        gone = errno == ECONNREFUSED || errno == ENOENT;
    else if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &exit.fd, &size) != 0)
        gone = errno == EINVAL || errno == ESRCH || errno == ENODATA;
    else
        gone = poll(&exit, 1, 0) > 0;
    if (exit.fd >= 0)
        close(exit.fd);
    gs_hang_up(fd); /* who listens there may have said something */
    return gone;
}

/* Whether nobody listens there any more. In doubt it lives. */
static bool is_dead(int directory, const struct gs_share_options *options, const char *name)
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

enum entry_kind { FOREIGN, SOCKET, NEW_SOCKET };

/* What follows an instance, or what takes its place; NULL: there is none. */
static const char *past_instance(const char *name)
{
    return strspn(name, "0123456789abcdef") == GS_SOCKET_NAME_SIZE - 1
               ? name + GS_SOCKET_NAME_SIZE - 1
               : NULL;
}

static enum entry_kind kind_of(const char *name)
{
    const char *rest = past_instance(name), *more;

    if (!rest)
        return FOREIGN;
    if (*rest == '.' && (more = past_instance(rest + 1)))
        rest = more;
    if (*rest == 0)
        return SOCKET;
    return strcmp(rest, NEW_SUFFIX) == 0 ? NEW_SOCKET : FOREIGN;
}

/* A socket of another name than ours never comes back under the same name: instances are random.
 * So what was dead when it was looked at is dead when it is removed. */
static void sweep_entry(int directory, const struct gs_share_options *options, const char *name,
                        enum entry_kind kind)
{
    struct statx info;

    if (look(directory, name, &info) != 0 || !S_ISSOCK(info.stx_mode))
        return;
    if (kind == NEW_SOCKET ? time(NULL) - info.stx_mtime.tv_sec > NEW_AGE_S
                           : is_dead(directory, options, name))
        unlinkat(directory, name, 0);
}

int gs_directory_relays(int directory, const char *instance,
                        char ret_names[][GS_RELAY_NAME_SIZE], int max)
{
    int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    const struct dirent *entry;
    unsigned seen = 0;
    int count = 0;

    if (!list) {
        if (again >= 0)
            close(again);
        return 0;
    }
    while (count < max && seen++ < RELAY_ENTRIES && (entry = readdir(list)))
        if (strlen(entry->d_name) == GS_RELAY_NAME_SIZE - 1 &&
            strncmp(entry->d_name, instance, GS_SOCKET_NAME_SIZE - 1) == 0 &&
            kind_of(entry->d_name) == SOCKET)
            memcpy(ret_names[count++], entry->d_name, GS_RELAY_NAME_SIZE);
    closedir(list);
    return count;
}

void gs_directory_sweep(int directory, const struct gs_share_options *options)
{
    int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    const struct dirent *entry;
    unsigned seen = 0, sockets = 0;

    if (!list) {
        if (again >= 0)
            close(again);
        return;
    }
    while (seen++ < SWEEP_ENTRIES && sockets < SWEEP_SOCKETS && (entry = readdir(list))) {
        enum entry_kind kind = kind_of(entry->d_name);

        if (kind == FOREIGN)
            continue;
        sockets++;
        sweep_entry(directory, options, entry->d_name, kind);
    }
    closedir(list);
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
    int fd;

    if (options->listen_fd >= 0)
        return options->listen_fd;
    if (!lock_for_broker(directory)) {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "%s cannot be locked: %s; see who else has it open (fuser)", options->dir,
                 strerror(errno));
        return -1;
    }
    fd = gs_directory_connect(directory, options, GS_BROKER_NAME, 0); /* busy or not, it is there */
    if (fd >= 0 || (fd != -ENOENT && fd != -ECONNREFUSED)) {
        snprintf(ret_reason, GS_REASON_SIZE, "a broker runs for %s already", options->dir);
        if (fd >= 0)
            gs_hang_up(fd);
        fd = -1;
    } else {
        /* Whoever made one has the lock until it has its own name: this one's maker was killed. */
        unlinkat(directory, GS_BROKER_NAME NEW_SUFFIX, 0);
        fd = gs_directory_listen(directory, options, GS_BROKER_NAME, ret_reason);
    }
    flock(directory, LOCK_UN);
    return fd;
}
