/*
 * The directory as a folder on a file system that all machines see (directory.h): for small
 * clusters, and for tests.
 *
 *   FOLDER/leases/OWNER     written again and again by its owner, who writes all anew where it has gone
 *   FOLDER/agents/...       a line with the owner, then the value
 *   FOLDER/exports/...
 *
 * Files appear whole (renamed). No lease dies here: what an agent wrote that is gone for good
 * stays, and leads to nobody who answers. Its owner clears it when it comes back.
 *
 * The three folders are this user's, and nobody else writes in them; they are opened once. What
 * else lies there than files is passed over, and nobody waits for it.
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

#define OWNER 64

enum part { LEASES, AGENTS, EXPORTS, PARTS };
static const char *const part_names[PARTS] = {"leases", "agents", "exports"};

struct directory {
    struct directory_head head;
    int folder, parts[PARTS];
    bool held; /* the lease, by this handle */
    char owner[OWNER];
};

static bool fails(struct directory *directory, const char *what)
{
    snprintf(directory->head.reason, sizeof directory->head.reason,
             "the directory's folder: %s: %s; see that it is mounted, and this user's to write to",
             what, strerror(errno));
    return false;
}

static void close_folder(struct directory *directory)
{
    for (int i = 0; i < PARTS; i++) {
        if (directory->parts[i] >= 0)
            close(directory->parts[i]);
    }
    if (directory->folder >= 0)
        close(directory->folder);
    free(directory);
}

/* Who else may write there could have this user's files written over. */
static bool open_part(struct directory *directory, enum part part, const char *path,
                      char *ret_reason)
{
    const char *name = part_names[part];
    struct stat info;
    int fd;

    if (mkdirat(directory->folder, name, 0700) != 0 && errno != EEXIST) {
        snprintf(ret_reason, DIRECTORY_REASON, "the directory's folder %s: %s", path,
                 strerror(errno));
        return false;
    }
    fd = openat(directory->folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    directory->parts[part] = fd;
    if (fd < 0 || fstat(fd, &info) != 0) {
        snprintf(ret_reason, DIRECTORY_REASON, "the directory's folder %s/%s: %s", path, name,
                 strerror(errno));
        return false;
    }
    if (info.st_uid == geteuid() && (info.st_mode & 022) == 0)
        return true;
    snprintf(
        ret_reason, DIRECTORY_REASON,
        "the directory's folder %s/%s is user %u's with mode %04o: remove it, or give another folder, "
        "in which agents of one user alone write",
        path, name, (unsigned)info.st_uid, (unsigned)info.st_mode & 07777);
    return false;
}

static struct directory *open_folder(const struct directory_options *options, char *ret_reason)
{
    const char *path = strchr(options->place, ':') + 1;
    struct directory *directory = calloc(1, sizeof *directory);

    if (!directory)
        return NULL;
    *directory = (struct directory){.head.ops = &directory_folder,
                                    .folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                                    .parts = {-1, -1, -1}};
    snprintf(directory->owner, sizeof directory->owner, "%s", options->owner);
    if (directory->folder < 0)
        snprintf(ret_reason, DIRECTORY_REASON, "the directory's folder %s: %s", path,
                 strerror(errno));
    for (int i = 0; i < PARTS; i++) {
        if (directory->folder < 0 || !open_part(directory, i, path, ret_reason)) {
            close_folder(directory);
            return NULL;
        }
    }
    return directory;
}

/* The folder that a key, or the beginning of keys, is of, and the name in it; -1, with errno:
 * none. */
static int part_of(const struct directory *directory, const char *key, const char **ret_name)
{
    for (int i = 0; i < PARTS; i++) {
        const size_t length = strlen(part_names[i]);

        if (strncmp(key, part_names[i], length) != 0 || key[length] != '/')
            continue;
        *ret_name = key + length + 1;
        if (!strchr(*ret_name, '/'))
            return directory->parts[i];
    }
    return errno = EINVAL, -1;
}

/* Writes a file as a whole: `first`, a newline, then the rest. */
static bool write_whole(struct directory *directory, const char *key, const char *first,
                        const void *value, size_t size)
{
    const int leases = directory->parts[LEASES];
    char before[OWNER + 1];
    const char *name = "";
    int part = part_of(directory, key, &name), fd;
    bool good;

    snprintf(before, sizeof before, ".%s", directory->owner);
    unlinkat(leases, before, 0); /* one that ended may have left it */
    fd = part < 0
             ? -1
             : openat(leases, before, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fails(directory, key);
    good = dprintf(fd, "%s\n", first) > 0 && write(fd, value, size) == (ssize_t)size;
    if (close(fd) != 0 || !good || renameat(leases, before, part, name) != 0)
        return fails(directory, key);
    return true;
}

/* What the file has behind its first line, which goes to ret_first; -1 with errno. */
static ssize_t read_whole(const struct directory *directory, const char *key, char ret_first[OWNER],
                          void *ret_value)
{
    char text[DIRECTORY_VALUE + OWNER];
    const char *end, *name;
    const int part = part_of(directory, key, &name);
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    const int fd = part < 0 ? -1 : openat(part, name, flags);
    struct stat info;
    ssize_t got = -1, rest;

    if (fd >= 0) {
        int error;

        if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
            got = read(fd, text, sizeof text);
        else
            errno = EBADMSG;
        error = errno;
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

static int stat_of(const struct directory *directory, const char *key, struct stat *ret_info)
{
    const char *name;
    const int part = part_of(directory, key, &name);

    return part < 0 ? -1 : fstatat(part, name, ret_info, AT_SYMLINK_NOFOLLOW);
}

static int remove_key(const struct directory *directory, const char *key)
{
    const char *name;
    const int part = part_of(directory, key, &name);

    return part < 0 ? -1 : unlinkat(part, name, 0);
}

/* NULL: it cannot be read. */
static DIR *open_list(const struct directory *directory, const char *prefix)
{
    const char *name;
    const int part = part_of(directory, prefix, &name);
    const int fd = part < 0 ? -1 : openat(part, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);

    if (!list && fd >= 0)
        close(fd);
    return list;
}

/* Takes away what its owner wrote before. */
static void clear(struct directory *directory)
{
    static const char *const prefixes[] = {"agents/", "exports/"};

    for (int i = 0; i < 2; i++) {
        DIR *list = open_list(directory, prefixes[i]);
        const struct dirent *entry;

        while (list && (entry = readdir(list))) {
            char key[DIRECTORY_KEY], owner[OWNER], none[DIRECTORY_VALUE];

            if (entry->d_name[0] == '.' ||
                snprintf(key, sizeof key, "%s%s", prefixes[i], entry->d_name) >= (int)sizeof key)
                continue;
            if (read_whole(directory, key, owner, none) >= 0 &&
                strcmp(owner, directory->owner) == 0)
                remove_key(directory, key);
        }
        if (list)
            closedir(list);
    }
}

static bool keep(struct directory *directory, bool *ret_anew)
{
    char path[OWNER + 16];
    struct stat info;

    snprintf(path, sizeof path, "leases/%s", directory->owner);
    *ret_anew = !directory->held || stat_of(directory, path, &info) != 0;
    if (*ret_anew)
        clear(directory);
    directory->held = write_whole(directory, path, "", "", 0);
    return directory->held;
}

/* Not all of them or none where it fails in between: whoever writes does so again. */
static bool write_changes(struct directory *directory, const struct directory_change *changes,
                          unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const struct directory_change *change = &changes[i];

        if (!change->value) {
            if (remove_key(directory, change->key) != 0 && errno != ENOENT)
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

    if (got < 0 && errno == ENOENT && faccessat(directory->folder, "leases", F_OK, 0) == 0)
        return DIRECTORY_NONE;
    if (got < 0) {
        fails(directory, key);
        return DIRECTORY_FAILED;
    }
    *ret_size = (size_t)got;
    return DIRECTORY_FOUND;
}

static void give_up(struct directory *directory)
{
    char path[OWNER + 16];

    clear(directory);
    snprintf(path, sizeof path, "leases/%s", directory->owner);
    remove_key(directory, path);
}

const struct directory_ops directory_folder = {.open = open_folder,
                                               .close = close_folder,
                                               .keep = keep,
                                               .write = write_changes,
                                               .get = get,
                                               .give_up = give_up};
