/*
 * The directory as a folder on a file system that all machines see (directory.h): for small clusters,
 * and for tests.
 *
 *   FOLDER/leases/OWNER     touched by its owner; it lives while that was not longer ago than it says
 *   FOLDER/agents/...       a line with the owner, then the value
 *   FOLDER/exports/...
 *
 * How long ago is counted by the file system's clock alone: who asks touches a file of his own, and
 * compares. Files appear whole (renamed), and what lies there of a dead lease is not seen, and cleared
 * by its owner when he comes back.
 */
#include "shim/agent/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"

#define LOOK_MS 200 /* how often a watch looks */
#define OWNER   64

struct directory {
    struct directory_head head;
    int folder;
    bool held; /* the lease was kept once by this handle */
    unsigned lease_s;
    char owner[OWNER];
    uint64_t seen; /* of what was listed last */
};

static bool fails(struct directory *directory, const char *what)
{
    snprintf(directory->head.reason, sizeof directory->head.reason,
             "the directory's folder: %s: %s; see that it is mounted, and this user's to write to", what,
             strerror(errno));
    return false;
}

static struct directory *open_folder(const struct directory_options *options, char *ret_reason)
{
    static const char *const parts[] = {"leases", "agents", "exports"};
    const char *path = strchr(options->place, ':') + 1;
    struct directory *directory = calloc(1, sizeof *directory);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (int i = 0; folder >= 0 && i < 3; i++) {
        if (mkdirat(folder, parts[i], 0700) != 0 && errno != EEXIST) {
            close(folder);
            folder = -1;
        }
    }
    if (!directory || folder < 0) {
        snprintf(ret_reason, DIRECTORY_REASON, "the directory's folder %s: %s", path, strerror(errno));
        free(directory);
        return NULL;
    }
    directory->head.ops = &directory_folder;
    directory->folder = folder;
    directory->lease_s = options->lease_s;
    snprintf(directory->owner, sizeof directory->owner, "%s", options->owner);
    return directory;
}

static void close_folder(struct directory *directory)
{
    close(directory->folder);
    free(directory);
}

static int64_t ns_of(const struct timespec *time)
{
    return time->tv_sec * INT64_C(1000000000) + time->tv_nsec;
}

/* Writes a file as a whole: `first`, a newline, then the rest. */
static bool write_whole(struct directory *directory, const char *path, const char *first,
                        const void *value, size_t size)
{
    char name[DIRECTORY_KEY + OWNER];
    int fd;
    bool good;

    /* Two handles of one owner, the worker's and the watcher's, do not write under one name. */
    snprintf(name, sizeof name, "leases/.%s.%p", directory->owner, (void *)directory);
    fd = openat(directory->folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return fails(directory, name);
    good = dprintf(fd, "%s\n", first) > 0 && write(fd, value, size) == (ssize_t)size;
    if (close(fd) != 0 || !good || renameat(directory->folder, name, directory->folder, path) != 0)
        return fails(directory, path);
    return true;
}

/* What the file has behind its first line, which goes to ret_first; -1 with errno. */
static ssize_t read_whole(struct directory *directory, const char *path, char ret_first[OWNER],
                          void *ret_value)
{
    char text[DIRECTORY_VALUE + OWNER];
    int fd = openat(directory->folder, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text), rest;
    const char *end;

    if (fd >= 0) {
        int error = errno;

        close(fd);
        errno = error;
    }
    if (got < 0)
        return -1;
    end = memchr(text, '\n', (size_t)got);
    rest = end ? got - (end + 1 - text) : -1;
    if (!end || end - text >= OWNER || rest > DIRECTORY_VALUE)
        return errno = EBADMSG, -1;
    memcpy(ret_first, text, (size_t)(end - text));
    ret_first[end - text] = 0;
    memcpy(ret_value, end + 1, (size_t)rest);
    return rest;
}

/* The file system's time now. */
static bool time_there(struct directory *directory, int64_t *ret_ns)
{
    char name[OWNER + 32];
    struct stat info;

    snprintf(name, sizeof name, "leases/.now.%s.%p", directory->owner, (void *)directory);
    if (!write_whole(directory, name, "", "", 0) ||
        fstatat(directory->folder, name, &info, 0) != 0)
        return fails(directory, name);
    unlinkat(directory->folder, name, 0);
    *ret_ns = ns_of(&info.st_mtim);
    return true;
}

/* Whether the lease of `owner` lives at that time. */
static bool lives(struct directory *directory, const char *owner, int64_t now_ns)
{
    char path[OWNER + 16], seconds[OWNER], none[DIRECTORY_VALUE];
    struct stat info;
    int64_t age;
    long lease_s;

    if (strchr(owner, '/') || !owner[0])
        return false;
    snprintf(path, sizeof path, "leases/%s", owner);
    if (fstatat(directory->folder, path, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
        read_whole(directory, path, seconds, none) < 0)
        return false;
    age = now_ns - ns_of(&info.st_mtim);
    lease_s = strtol(seconds, NULL, 10); /* of whoever wrote it */
    return lease_s > 0 && lease_s <= DIRECTORY_LEASE_MAX_S && age < lease_s * INT64_C(1000000000);
}

/* Takes away what was written under the lease that has died. */
static void clear(struct directory *directory)
{
    static const char *const parts[] = {"agents", "exports"};

    for (int i = 0; i < 2; i++) {
        int fd = openat(directory->folder, parts[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *list = fd < 0 ? NULL : fdopendir(fd);
        const struct dirent *entry;

        if (!list && fd >= 0)
            close(fd);
        while (list && (entry = readdir(list))) {
            char path[DIRECTORY_KEY], owner[OWNER], none[DIRECTORY_VALUE];

            if (entry->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", parts[i],
                                                    entry->d_name) >= (int)sizeof path)
                continue;
            if (read_whole(directory, path, owner, none) >= 0 &&
                strcmp(owner, directory->owner) == 0)
                unlinkat(directory->folder, path, 0);
        }
        if (list)
            closedir(list);
    }
}

static bool keep(struct directory *directory, bool *ret_anew)
{
    char path[OWNER + 16], seconds[OWNER];
    int64_t now;

    if (!time_there(directory, &now))
        return false;
    *ret_anew = !directory->held || !lives(directory, directory->owner, now);
    if (*ret_anew)
        clear(directory);
    snprintf(path, sizeof path, "leases/%s", directory->owner);
    snprintf(seconds, sizeof seconds, "%u", directory->lease_s);
    if (!write_whole(directory, path, seconds, "", 0))
        return false;
    directory->held = true;
    return true;
}

/* Not all of them or none where it fails in between: whoever writes does so again. */
static bool write_changes(struct directory *directory, const struct directory_change *changes,
                          unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct directory_change *change = &changes[i];

        if (!change->value) {
            if (unlinkat(directory->folder, change->key, 0) != 0 && errno != ENOENT)
                return fails(directory, change->key);
        } else if (!write_whole(directory, change->key, directory->owner, change->value,
                                change->size)) {
            return false;
        }
    }
    return true;
}

static enum directory_found get(struct directory *directory, const char *key, void *ret_value,
                                size_t *ret_size)
{
    char owner[OWNER];
    ssize_t got = read_whole(directory, key, owner, ret_value);
    int64_t now;

    if (got < 0 && errno == ENOENT && faccessat(directory->folder, "leases", F_OK, 0) == 0)
        return DIRECTORY_NONE;
    if (got < 0) {
        fails(directory, key);
        return DIRECTORY_FAILED;
    }
    if (!time_there(directory, &now))
        return DIRECTORY_FAILED;
    *ret_size = (size_t)got;
    return lives(directory, owner, now) ? DIRECTORY_FOUND : DIRECTORY_NONE;
}

/* Visits what is there of living leases; returns what it looks like, or 0 where it cannot be read. */
static uint64_t walk(struct directory *directory, const char *prefix, directory_visit_fn *visit,
                     void *arg)
{
    int fd = openat(directory->folder, prefix, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    uint64_t look = 1;
    int64_t now;

    if (!list && fd >= 0)
        close(fd);
    if (!list || !time_there(directory, &now)) {
        fails(directory, prefix);
        if (list)
            closedir(list);
        return 0;
    }
    while ((entry = readdir(list))) {
        char key[DIRECTORY_KEY], owner[OWNER], value[DIRECTORY_VALUE];
        struct stat info;
        ssize_t size;

        if (entry->d_name[0] == '.' || snprintf(key, sizeof key, "%s%s", prefix, entry->d_name) >=
                                           (int)sizeof key ||
            (size = read_whole(directory, key, owner, value)) < 0 ||
            !lives(directory, owner, now) || fstatat(directory->folder, key, &info, 0) != 0)
            continue;
        look += (uint64_t)info.st_ino * 31 + (uint64_t)ns_of(&info.st_mtim);
        if (visit)
            visit(arg, key, value, (size_t)size);
    }
    closedir(list);
    return look ? look : 1;
}

static bool list_all(struct directory *directory, const char *prefix, directory_visit_fn *visit,
                     void *arg)
{
    uint64_t look = walk(directory, prefix, visit, arg);

    if (look)
        directory->seen = look;
    return look != 0;
}

static bool watch(struct directory *directory, const char *prefix, unsigned limit_s)
{
    const uint64_t end = gs_now_ns() + limit_s * GS_NS_PER_S;

    for (;;) {
        uint64_t look = walk(directory, prefix, NULL, NULL);

        if (look != directory->seen || gs_now_ns() >= end)
            return look != 0;
        gs_rest_ns(LOOK_MS * GS_NS_PER_MS);
    }
}

static void give_up(struct directory *directory)
{
    char path[OWNER + 16];

    clear(directory);
    snprintf(path, sizeof path, "leases/%s", directory->owner);
    unlinkat(directory->folder, path, 0);
}

static void health(struct directory *directory, directory_say_fn *say, void *arg)
{
    char text[DIRECTORY_REASON + 64];
    int64_t now;
    const bool good = time_there(directory, &now);

    snprintf(text, sizeof text, "a folder, %s", good ? "written to just now" : directory->head.reason);
    say(arg, good, text);
}

const struct directory_ops directory_folder = {.open = open_folder,
                                               .health = health,
                                               .close = close_folder,
                                               .keep = keep,
                                               .write = write_changes,
                                               .get = get,
                                               .list = list_all,
                                               .watch = watch,
                                               .give_up = give_up};
