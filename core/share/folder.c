/* The folder of the sockets: where it may be, which one this process uses
 * (core/share/directory.h). */
#include "core/share/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/fd.h"

#define TMP          "/tmp"
#define UNMAPPED     65534 /* kernel.overflowuid */
#define OWN_SIZE     24    /* a name with a number, and a zero */
#define OWN_TRIES    8     /* names of one's own in a directory that others may write to */
#define OTHERS_MAX   1024  /* that are looked at in such a directory, */
#define LIST_ENTRIES 4096  /* among so many entries */

uid_t gs_user_own(void)
{
    return geteuid();
}

/* By /proc/self/uid_map: lines of the first inside, the first outside, and how many. */
static bool namespace_has_all(void)
{
    char text[4096];
    const int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    uint64_t all = 0;
    unsigned count;
    int length;

    gs_fd_drop(fd);
    text[size > 0 ? size : 0] = 0;
    for (char *line = text; sscanf(line, "%*u %*u %u%n", &count, &length) == 1; line += length)
        all += count;
    return all >= UINT32_MAX;
}

bool gs_user_is_one(uid_t uid)
{
    return uid != UNMAPPED || namespace_has_all();
}

bool gs_user_is_own(uid_t uid)
{
    return uid == geteuid() && gs_user_is_one(uid);
}

bool gs_user_is_listed(const struct gs_share_options *options, uid_t uid)
{
    if (gs_user_is_own(uid))
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
                 STATX_TYPE | STATX_MODE | STATX_UID | STATX_GID | STATX_INO, ret_info);
}

static bool is_same(const struct statx *a, const struct statx *b)
{
    return a->stx_ino == b->stx_ino && a->stx_dev_major == b->stx_dev_major &&
           a->stx_dev_minor == b->stx_dev_minor;
}

static bool has_others(const struct gs_share_options *options)
{
    return options->uid_count + options->gid_count > 0;
}

/* Others may put things there, and take away what is. */
static bool is_open_to_all(const struct statx *info)
{
    return info->stx_mode & (S_IWGRP | S_IWOTH);
}

bool gs_directory_place(const struct gs_share_options *options, unsigned n,
                        char ret_path[GS_FOLDER_SIZE])
{
    if (options->dir[0])
        snprintf(ret_path, GS_FOLDER_SIZE, "%.*s", (int)sizeof options->dir, options->dir);
    else if (n == 0)
        snprintf(ret_path, GS_FOLDER_SIZE, "/run/user/%lu/gpushim", (unsigned long)geteuid());
    else
        snprintf(ret_path, GS_FOLDER_SIZE, TMP "/" GS_OWN_PREFIX "%lu", (unsigned long)geteuid());
    return n < (options->dir[0] ? 1 : 2);
}

/* What is opened for it: in /tmp each user has one of their own, as in any folder that is open to
 * all. */
static bool place(const struct gs_share_options *options, unsigned n, char *ret_path,
                  bool *ret_in_tmp)
{
    *ret_in_tmp = !options->dir[0] && n == 1;
    if (!gs_directory_place(options, n, ret_path))
        return false;
    if (*ret_in_tmp)
        strcpy(ret_path, TMP);
    return true;
}

const char *gs_directory_words(const struct gs_share_options *options)
{
    return options->dir[0] ? options->dir : "the ones without share.dir";
}

/* The name of one's own in a directory that is open to all. */
static void own_name(unsigned attempt, char *ret_name)
{
    int length = snprintf(ret_name, OWN_SIZE, GS_OWN_PREFIX "%lu", (unsigned long)geteuid());

    if (attempt > 0)
        snprintf(ret_name + length, OWN_SIZE - (size_t)length, ".%u", attempt);
}

bool gs_directory_likely(const struct gs_share_options *options, unsigned n,
                         char ret_path[GS_FOLDER_SIZE])
{
    size_t length;

    if (!options->dir[0] || n != 1)
        return gs_directory_place(options, n, ret_path);
    gs_directory_place(options, 0, ret_path);
    length = strlen(ret_path);
    ret_path[length] = '/';
    own_name(0, ret_path + length + 1);
    return true;
}

bool gs_directory_is_good(const struct gs_share_options *options, const char *path)
{
    struct statx info;

    return look(AT_FDCWD, path, &info) == 0 && S_ISDIR(info.stx_mode) && !is_open_to_all(&info) &&
           (info.stx_uid == 0 || gs_user_is_listed(options, info.stx_uid));
}

void gs_directory_path(const struct gs_share_options *options, int directory,
                       char ret_path[GS_FOLDER_SIZE])
{
    struct statx info, there;

    ret_path[0] = 0;
    if (look(directory, "", &info) != 0)
        return;
    for (unsigned n = 0; gs_directory_likely(options, n, ret_path); n++)
        if (look(AT_FDCWD, ret_path, &there) == 0 && is_same(&info, &there))
            return;
    ret_path[0] = 0;
}

/* Opens a directory that is one and no link; -1 with errno. */
static int open_plain(int parent, const char *name, struct statx *ret_info)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 || look(fd, "", ret_info) == 0)
        return fd;
    gs_fd_drop(fd);
    return -1;
}

static bool is_link(const char *path)
{
    struct statx info;

    return look(AT_FDCWD, path, &info) == 0 && S_ISLNK(info.stx_mode);
}

/* One's own in a directory that is open to all. Others may take it away, and that is all they can:
 * it is made again. */
static int open_own(const struct gs_share_options *options, int parent, bool make, const char *path,
                    char *ret_reason)
{
    const mode_t mode = has_others(options) ? 0755 : 0700;
    struct statx info;
    char name[OWN_SIZE];
    int error = 0;

    for (unsigned i = 0; i < OWN_TRIES; i++) {
        int fd;

        own_name(i, name);
        if (make && mkdirat(parent, name, mode) != 0 && errno != EEXIST) {
            error = errno;
            break;
        }
        fd = open_plain(parent, name, &info);
        if (fd >= 0 && info.stx_uid == geteuid()) {
            /* The umask it was made with was another, or its user shared with nobody else. */
            if ((info.stx_mode & 0777) != mode && (has_others(options) || is_open_to_all(&info)) &&
                fchmod(fd, mode) != 0)
                error = errno; /* read-only: it is as it is */
            return fd;
        }
        error = fd < 0 ? errno : EEXIST;
        gs_fd_drop(fd);
        if (error == ENOENT)
            break;
    }
    if (ret_reason)
        snprintf(ret_reason, GS_REASON_SIZE,
                 "others may write to %s, and none of one's own %s in it (%s): %s", path,
                 make ? "can be made" : "is", name, strerror(error));
    errno = error;
    return -1;
}

int gs_directory_open_place(const struct gs_share_options *options, unsigned n, bool make,
                            char ret_reason[GS_REASON_SIZE])
{
    char path[GS_FOLDER_SIZE];
    struct statx info;
    int directory, own, cause;
    bool in_tmp;

    if (!place(options, n, path, &in_tmp))
        return -ENOENT;
    if (path[0] != '/' || !memchr(options->dir, 0, sizeof options->dir)) {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "the runtime directory has no absolute path of at most %zu bytes; name one",
                 sizeof options->dir - 1);
        return -1;
    }
    if (make && !in_tmp && mkdirat(AT_FDCWD, path, 0700) != 0 && errno != EEXIST) {
        snprintf(ret_reason, GS_REASON_SIZE, "%s cannot be made: %s; make it, with mode 0700", path,
                 strerror(errno));
        return -1;
    }
    directory = open_plain(AT_FDCWD, path, &info);
    if (directory < 0) {
        cause = errno;
        snprintf(ret_reason, GS_REASON_SIZE, "%s cannot be opened: %s; %s", path,
                 is_link(path) ? "it is a symbolic link" : strerror(cause),
                 cause == EMFILE ? "raise the limit of descriptors (ulimit -n)"
                                 : "name a directory you own");
        errno = cause;
        return -1;
    }
    if (in_tmp || is_open_to_all(&info)) {
        own = open_own(options, directory, make, path, ret_reason);
        cause = errno;
    } else if (info.stx_uid == 0 || gs_user_is_listed(options, info.stx_uid)) {
        return directory;
    } else {
        snprintf(ret_reason, GS_REASON_SIZE,
                 "%s belongs to user %u, who is not to be trusted with shared memory; name a "
                 "directory of your own",
                 path, (unsigned)info.stx_uid);
        own = -1;
        cause = EACCES;
    }
    close(directory);
    errno = cause;
    return own;
}

/* Of several places the reasons, as many as there is room for. */
void gs_reason_add(char reason[GS_REASON_SIZE], const char *more)
{
    size_t length = strlen(reason);

    snprintf(reason + length, GS_REASON_SIZE - length, "%s%s", length ? "; " : "", more);
}

/* "gpushim-" and a number, or more of that user's ("gpushim-0.1"): another one in each user
 * namespace. What else begins so is somebody's files. */
static bool is_own_name(const char *name)
{
    const size_t prefix = strlen(GS_OWN_PREFIX);

    return strncmp(name, GS_OWN_PREFIX, prefix) == 0 && name[prefix] &&
           name[prefix + strspn(name + prefix, "0123456789.")] == 0;
}

/* The k-th in the n-th place, which is open to all, that is of a user who may be trusted and not
 * this process's own; -1: there is none. Whoever looks at places alone may have a small stack. */
static __attribute__((noinline)) int open_others(const struct gs_share_options *options, unsigned n,
                                                 unsigned k)
{
    char path[GS_FOLDER_SIZE];
    int parent, own, found = -1;
    struct statx info, mine = {0};
    struct dirent *entry;
    bool in_tmp;
    DIR *list;

    place(options, n, path, &in_tmp);
    parent = open_plain(AT_FDCWD, path, &info);
    list = parent < 0 || !(in_tmp || is_open_to_all(&info)) ? NULL : fdopendir(parent);
    if (!list) {
        gs_fd_drop(parent);
        return -1;
    }
    own = open_own(options, parent, false, path, NULL);
    if (own >= 0) {
        look(own, "", &mine);
        close(own);
    }
    for (unsigned seen = 0; found < 0 && seen < LIST_ENTRIES && (entry = readdir(list)); seen++) {
        if (!is_own_name(entry->d_name))
            continue;
        found = open_plain(parent, entry->d_name, &info);
        if (found < 0 || ((own < 0 || !is_same(&info, &mine)) && !is_open_to_all(&info) &&
                          gs_process_is_listed(options, info.stx_uid, info.stx_gid) && k-- == 0))
            continue;
        close(found);
        found = -1;
    }
    closedir(list);
    return found;
}

int gs_directory_next(const struct gs_share_options *options, unsigned *place_number,
                      char ret_reason[GS_REASON_SIZE])
{
    char reason[GS_REASON_SIZE];
    int none = -1;

    if (*place_number == 0 && ret_reason)
        ret_reason[0] = 0;
    for (;;) {
        unsigned n = *place_number / OTHERS_MAX, k = *place_number % OTHERS_MAX;
        int directory = k == 0 ? gs_directory_open_place(options, n, false, reason)
                               : open_others(options, n, k - 1);

        if (directory == -ENOENT)
            return none;
        if (k == 0 && directory < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
                none = -errno;
            if (ret_reason)
                gs_reason_add(ret_reason, reason);
        }
        *place_number = directory >= 0 || k == 0 ? *place_number + 1 : (n + 1) * OTHERS_MAX;
        if (directory >= 0)
            return directory;
    }
}
