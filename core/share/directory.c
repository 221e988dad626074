/* The folder of the sockets: putting them up, connecting to them, clearing it of those that killed
 * processes left (core/share/directory.h). */
#include "core/share/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/share/discard.h"
#include "core/share/internal.h"

#define BACKLOG       128
#define UNSEEN_AGE_S  3600  /* not touched for so long: of another PID namespace, */
#define FOREIGN_AGE_S 86400 /* and of another kernel, which shows no more than that */
#define LIST_ENTRIES  16384 /* each is looked at by its name, 1 us */
#define NAMES_STEP    64    /* there is room for so many more names at a time */

void gs_broker_name(char ret_name[GS_BROKER_NAME_SIZE])
{
    char boot[GS_BOOT_SIZE];

    gs_boot_id(boot);
    snprintf(ret_name, GS_BROKER_NAME_SIZE, GS_BROKER_NAME "%s%s", boot[0] ? "." : "", boot);
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
    if (faccessat(AT_FDCWD, by_fd, X_OK, 0) != 0)
        gs_directory_path(options, directory, path);
    else
        memcpy(path, by_fd, sizeof by_fd);
    length = snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "%s/%s", path, name);
    return length < (int)sizeof ret_address->sun_path ? 0 : -ENAMETOOLONG;
}

/* A socket that does not wait; or a negative errno. */
static int new_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    return fd < 0 ? -errno : fd;
}

/* ---- Putting one up ------------------------------------------------------------------------- */

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
    int fd = new_socket(), error = fd < 0 ? -fd : put_up(fd, directory, options, name);
    char path[GS_FOLDER_SIZE];

    if (error == 0)
        return fd;
    gs_directory_path(options, directory, path);
    snprintf(ret_reason, GS_REASON_SIZE, "no socket can be made in %s: %s%s",
             path[0] ? path : gs_directory_words(options), strerror(error),
             error == EACCES || error == EROFS ? "; name a directory you can write to" : "");
    gs_fd_drop(fd);
    return -1;
}

/* Two brokers that start at once: one of them is it. Anybody who may read the directory can lock
 * it, for as long as they like: nobody waits for that. */
static int listen_broker(int directory, const struct gs_share_options *options,
                         char ret_reason[GS_REASON_SIZE])
{
    char name[GS_BROKER_NAME_SIZE], unborn[GS_BROKER_NAME_SIZE + sizeof GS_NEW_SUFFIX];
    int fd;

    if (options->listen_fd >= 0)
        return options->listen_fd;
    gs_broker_name(name);
    if (flock(directory, LOCK_EX | LOCK_NB) != 0) {
        snprintf(
            ret_reason, GS_REASON_SIZE,
            "%s cannot be locked: %s; another broker starts there, or see who has it open (fuser)",
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

int gs_directory_put_up(const struct gs_share_options *options, const char *name, bool broker,
                        int *ret_directory, char ret_reason[GS_REASON_SIZE])
{
    char reason[GS_REASON_SIZE];
    int directory, listener;

    ret_reason[0] = 0;
    for (unsigned n = 0; (directory = gs_directory_open_place(options, n, true, reason)) != -ENOENT;
         n++) {
        listener = directory < 0 ? -1
                   : !name       ? directory
                   : broker      ? listen_broker(directory, options, reason)
                                 : gs_directory_listen(directory, options, name, reason);
        *ret_directory = directory;
        if (listener >= 0)
            return listener;
        gs_fd_drop(directory);
        gs_reason_add(ret_reason, reason);
    }
    return -1;
}

int gs_directory_open(const struct gs_share_options *options, char ret_reason[GS_REASON_SIZE])
{
    int directory;

    return gs_directory_put_up(options, NULL, false, &directory, ret_reason);
}

bool gs_directory_try(const struct gs_share_options *options, const char *name,
                      char ret_path[GS_FOLDER_SIZE], char ret_reason[GS_REASON_SIZE])
{
    int directory, listener = gs_directory_put_up(options, name, false, &directory, ret_reason);

    if (listener < 0)
        return false;
    gs_directory_path(options, directory, ret_path);
    gs_directory_unlink(directory, name);
    close(listener);
    close(directory);
    return true;
}

void gs_directory_unlink(int directory, const char *name)
{
    unlinkat(directory, name, 0);
}

int gs_directory_let_all(int directory, const char *name)
{
    return fchmodat(directory, name, 0666, 0) == 0 ? 0 : -errno;
}

void gs_directory_touch(int directory, const char *name)
{
    utimensat(directory, name, NULL, AT_SYMLINK_NOFOLLOW);
}

/* ---- Connecting ----------------------------------------------------------------------------- */

/* Where its queue is full it is tried again until then. */
static int connect_to(const struct sockaddr_un *address, uint64_t end_ns)
{
    int error, fd = new_socket();

    if (fd < 0)
        return fd;
    while ((error =
                connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : -errno) ==
               -EAGAIN &&
           gs_now_ns() < end_ns)
        gs_rest_ns(GS_NS_PER_MS);
    if (!error)
        return fd;
    close(fd);
    return error;
}

int gs_directory_connect(int directory, const struct gs_share_options *options, const char *name,
                         uint64_t limit_ns)
{
    const uint64_t end_ns = gs_now_ns() + limit_ns;
    struct sockaddr_un address;
    int error = address_of(directory, options, name, &address);

    return error ? error : connect_to(&address, end_ns);
}

int gs_directory_connect_at_once(const struct gs_share_options *options, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[GS_FOLDER_SIZE];

    for (unsigned n = 0; gs_directory_likely(options, n, folder); n++) {
        int fd, length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", folder, name);

        if (folder[0] != '/' || length >= (int)sizeof address.sun_path)
            continue;
        fd = connect_to(&address, 0);
        if (fd >= 0 && gs_directory_is_good(options, folder))
            return fd;
        if (fd >= 0)
            gs_hang_up(fd);
    }
    return -EAGAIN;
}

bool gs_directory_may_connect(int directory, const char *name)
{
    return faccessat(directory, name, W_OK, AT_EACCESS) == 0;
}

bool gs_directory_is_of(int directory, const struct gs_share_options *options, const char *name,
                        uid_t uid, pid_t pid)
{
    struct gs_conn_who who;
    struct statx info;
    int fd;

    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_UID, &info) != 0 ||
        !S_ISSOCK(info.stx_mode) || info.stx_uid != uid)
        return false;
    fd = gs_directory_connect(directory, options, name, 0);
    if (fd < 0) /* busy, or not to be come to: its user alone made it */
        return true;
    who = gs_conn_who(fd);
    gs_hang_up(fd); /* who listens there may have said something */
    return who.uid == uid && (pid <= 0 || who.pid <= 0 || who.pid == pid);
}

/* Whether nobody listens there any more. Does not wait; in doubt somebody does. */
static bool is_dead(int directory, const struct gs_share_options *options, const char *name)
{
    int fd = gs_directory_connect(directory, options, name, 0);

    if (fd >= 0)
        gs_hang_up(fd);
    return fd == -ECONNREFUSED;
}

/* ---- All that are there --------------------------------------------------------------------- */

/* Of a folder, as many as are looked at, with where their processes live. */
struct listing {
    DIR *list;
    struct gs_home home;
    unsigned seen;
};

static void begin(struct listing *listing, int directory)
{
    int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    *listing = (struct listing){.list = again < 0 ? NULL : fdopendir(again)};
    if (!listing->list)
        gs_fd_drop(again);
    gs_home_find(&listing->home);
}

/* The next name of a socket, one that does not listen yet too; NULL: it was the last one. */
static const char *next(struct listing *listing, enum gs_whereabouts *ret_where, bool *ret_listens)
{
    const struct dirent *entry;

    while (listing->list && listing->seen++ < LIST_ENTRIES && (entry = readdir(listing->list))) {
        const char *rest = entry->d_name + GS_SOCKET_NAME_SIZE - 1;

        if (strspn(entry->d_name, "0123456789abcdef") != GS_SOCKET_NAME_SIZE - 1 ||
            (*rest && strcmp(rest, GS_NEW_SUFFIX) != 0))
            continue;
        *ret_where = gs_home_whereabouts(&listing->home, entry->d_name);
        *ret_listens = *rest == 0;
        return entry->d_name;
    }
    if (listing->list)
        closedir(listing->list);
    return NULL;
}

int gs_directory_exporters(int directory, const char *own, char (**ret_names)[GS_SOCKET_NAME_SIZE])
{
    enum gs_whereabouts where;
    struct listing listing;
    const char *name;
    bool listens;
    int count = 0;

    *ret_names = NULL;
    begin(&listing, directory);
    while ((name = next(&listing, &where, &listens))) {
        void *names = *ret_names;

        if (count < 0 || !listens || strcmp(name, own) == 0 || where == GS_BESIDE_GONE)
            continue;
        if (count % NAMES_STEP == 0)
            names = realloc(names, (size_t)(count + NAMES_STEP) * sizeof **ret_names);
        if (names) {
            *ret_names = names;
            memcpy((*ret_names)[count++], name, GS_SOCKET_NAME_SIZE);
        } else {
            count = -ENOMEM;
        }
    }
    return count;
}

/* A socket of another name than ours never comes back under the same name: instances are random.
 * So what was dead when it was looked at is dead when it is removed. */
void gs_directory_sweep(int directory, const struct gs_share_options *options)
{
    enum gs_whereabouts where;
    struct listing listing;
    struct timespec now;
    struct statx info;
    const char *name;
    bool ignored;

    begin(&listing, directory);
    while ((name = next(&listing, &where, &ignored))) {
        int64_t age;

        if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MTIME, &info) != 0 ||
            !S_ISSOCK(info.stx_mode))
            continue;
        clock_gettime(CLOCK_REALTIME, &now);
        age = now.tv_sec - info.stx_mtime.tv_sec;
        if (where == GS_ELSEWHERE ? age > FOREIGN_AGE_S
                                  : (where == GS_BESIDE_GONE || age > UNSEEN_AGE_S) &&
                                        is_dead(directory, options, name))
            unlinkat(directory, name, 0);
    }
}
