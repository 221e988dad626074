/*
 * The directory as a folder on a file system that all machines see (directory.h): for small
 * clusters, and for tests.
 *
 *   PLACE/gpushim/leases.OWNER     written again and again by its owner, which writes all anew
 *                                  where it has gone
 *   PLACE/gpushim/agents.MACHINE   a line with the owner, then the value
 *   PLACE/gpushim/exports.ID
 *
 * Files appear whole (renamed). No lease dies here: what an agent wrote that is gone for good
 * stays, and leads to nobody who answers. Its owner clears it when it comes back.
 *
 * The folder is this user's, and nobody else writes in it; it is opened once. What else lies there
 * than files is passed over, and nobody waits for it.
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

#include "core/base/regular.h"

#define OWNER 64

struct directory {
    struct directory_head head;
    int folder;
    bool held; /* the lease, by this handle */
    const char *owner;
    char lease[OWNER + 16], before[OWNER + 1]; /* files: renamed to what they are */
};

static bool fails(struct directory *directory, const char *what)
{
    snprintf(directory->head.reason, sizeof directory->head.reason,
             "the directory's folder: %s: %s; see that it is mounted, and this user's to write to",
             what, strerror(errno));
    return false;
}

/* Who else may write there could have this user's files written over. -1, and the reason. */
static int open_own(const char *place, char ret_reason[DIRECTORY_REASON])
{
    char path[DIRECTORY_REASON / 2];
    struct stat info;
    int fd = -1;

    if (snprintf(path, sizeof path, "%s/gpushim", place) >= (int)sizeof path)
        errno = ENAMETOOLONG;
    else if (mkdir(path, 0700) == 0 || errno == EEXIST)
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &info) != 0) {
        snprintf(ret_reason, DIRECTORY_REASON, "the directory's folder %.*s: %s",
                 DIRECTORY_REASON / 2, path, strerror(errno));
        return -1;
    }
    if (info.st_uid == geteuid() && (info.st_mode & 022) == 0)
        return fd;
    snprintf(
        ret_reason, DIRECTORY_REASON,
        "the directory's folder %s is user %u's with mode %04o: remove it, or give another place, "
        "in which agents of one user alone write",
        path, (unsigned)info.st_uid, (unsigned)info.st_mode & 07777);
    close(fd);
    return -1;
}

static struct directory *open_folder(const struct directory_options *options, char *ret_reason)
{
    const int folder = open_own(strchr(options->place, ':') + 1, ret_reason);
    struct directory *directory = folder < 0 ? NULL : calloc(1, sizeof *directory);

    if (!directory)
        return NULL;
    directory->head.ops = &directory_folder;
    directory->folder = folder;
    directory->owner = options->owner;
    snprintf(directory->lease, sizeof directory->lease, "leases.%s", options->owner);
    snprintf(directory->before, sizeof directory->before, ".%s", options->owner);
    return directory;
}

/* Writes a file as a whole: its owner, a newline, then the value. */
static bool write_whole(struct directory *directory, const char *name, const void *value,
                        size_t size)
{
    int fd;
    bool good;

    unlinkat(directory->folder, directory->before, 0); /* one that ended may have left it */
    fd = openat(directory->folder, directory->before,
                O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return fails(directory, name);
    good = dprintf(fd, "%s\n", directory->owner) > 0 && write(fd, value, size) == (ssize_t)size;
    if (close(fd) != 0 || !good ||
        renameat(directory->folder, directory->before, directory->folder, name) != 0)
        return fails(directory, name);
    return true;
}

/* What the file has behind its first line, which goes to ret_first; -1 with errno. */
static ssize_t read_whole(const struct directory *directory, const char *name,
                          char ret_first[OWNER], void *ret_value)
{
    char text[DIRECTORY_VALUE + OWNER];
    const char *end;
    struct stat info;
    const int fd = gs_regular_open(directory->folder, name, O_NOFOLLOW, &info);
    ssize_t got, rest;

    if (fd < 0)
        return -1;
    got = (ssize_t)gs_regular_read(fd, text, sizeof text, 0);
    close(fd);
    end = memchr(text, '\n', (size_t)got);
    rest = end ? got - (end + 1 - text) : -1;
    if (!end || end - text >= OWNER || rest > DIRECTORY_VALUE)
        return errno = EBADMSG, -1;
    memcpy(ret_first, text, (size_t)(end - text));
    ret_first[end - text] = 0;
    memcpy(ret_value, end + 1, (size_t)rest);
    return rest;
}

/* Takes away what its owner wrote before, and its lease. */
static void clear(struct directory *directory)
{
    struct dirent **entries = NULL;
    const int count = scandirat(directory->folder, ".", &entries, NULL, NULL);
    char owner[OWNER], none[DIRECTORY_VALUE];

    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;

        if (name[0] != '.' && read_whole(directory, name, owner, none) >= 0 &&
            strcmp(owner, directory->owner) == 0)
            unlinkat(directory->folder, name, 0);
        free(entries[i]);
    }
    free(entries);
}

static bool keep(struct directory *directory, bool *ret_anew)
{
    *ret_anew = !directory->held || faccessat(directory->folder, directory->lease, F_OK, 0) != 0;
    if (*ret_anew)
        clear(directory);
    directory->held = write_whole(directory, directory->lease, "", 0);
    return directory->held;
}

/* Not all of them or none where it fails in between: whoever writes does so again. */
static bool write_changes(struct directory *directory, const struct directory_change *changes,
                          unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char name[DIRECTORY_NAME];

        directory_name(&changes[i].key, "", '.', name);
        if (changes[i].value) {
            if (!write_whole(directory, name, changes[i].value, changes[i].size))
                return false;
        } else if (unlinkat(directory->folder, name, 0) != 0 && errno != ENOENT) {
            return fails(directory, name);
        }
    }
    return true;
}

static enum directory_found get(struct directory *directory, const struct directory_key *key,
                                void *ret_value, size_t *ret_size)
{
    char name[DIRECTORY_NAME], owner[OWNER];
    struct stat folder;
    ssize_t got;

    directory_name(key, "", '.', name);
    got = read_whole(directory, name, owner, ret_value);
    if (got < 0 && errno == ENOENT && fstat(directory->folder, &folder) == 0 && folder.st_nlink > 0)
        return DIRECTORY_NONE;
    if (got < 0) {
        fails(directory, name);
        return DIRECTORY_FAILED;
    }
    *ret_size = (size_t)got;
    return DIRECTORY_FOUND;
}

const struct directory_ops directory_folder = {
    .open = open_folder, .keep = keep, .write = write_changes, .get = get, .give_up = clear};
