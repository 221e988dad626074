/* The runtime directory: clearing it of what killed processes left, and the names that stand there
 * (core/share/directory.h). */
#include "core/share/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NEW_AGE_S     60 /* a socket that does not listen yet and is older: its maker was killed */
#define UNSEEN_AGE_S  3600  /* not touched for so long: of another PID namespace, */
#define FOREIGN_AGE_S 86400 /* and of another kernel, which shows no more than that */
#define SWEEP_ENTRIES 16384 /* each is looked at by its name, 1 us */
#define NAMES_STEP    64    /* there is room for so many more names at a time */

enum entry_kind { FOREIGN, SOCKET, NEW_SOCKET };

static enum entry_kind kind_of(const char *name)
{
    const char *rest = name + GS_SOCKET_NAME_SIZE - 1;

    if (strspn(name, "0123456789abcdef") != GS_SOCKET_NAME_SIZE - 1)
        return FOREIGN;
    if (*rest == 0)
        return SOCKET;
    return strcmp(rest, GS_NEW_SUFFIX) == 0 ? NEW_SOCKET : FOREIGN;
}

/* A socket of another name than ours never comes back under the same name: instances are random.
 * So what was dead when it was looked at is dead when it is removed. */
static void sweep_entry(int directory, const struct gs_share_options *options, const char *name,
                        enum entry_kind kind, enum gs_whereabouts where)
{
    struct statx info;
    int64_t age;
    bool dead;

    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MTIME, &info) != 0 ||
        !S_ISSOCK(info.stx_mode))
        return;
    age = time(NULL) - info.stx_mtime.tv_sec;
    if (where == GS_ELSEWHERE)
        dead = age > FOREIGN_AGE_S;
    else if (kind == NEW_SOCKET)
        dead = age > NEW_AGE_S;
    else
        dead = (where == GS_BESIDE_GONE || age > UNSEEN_AGE_S) &&
               gs_directory_is_dead(directory, options, name);
    if (dead)
        unlinkat(directory, name, 0);
}

static DIR *list_of(int directory)
{
    int again = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = again < 0 ? NULL : fdopendir(again);

    if (!list && again >= 0)
        close(again);
    return list;
}

int gs_directory_exporters(int directory, const char *own,
                           char (**ret_names)[GS_SOCKET_NAME_SIZE])
{
    DIR *list = list_of(directory);
    const struct dirent *entry;
    struct gs_home home;
    unsigned seen = 0;
    int count = 0;

    *ret_names = NULL;
    if (!list)
        return 0;
    gs_home_find(&home);
    while (count >= 0 && seen++ < SWEEP_ENTRIES && (entry = readdir(list))) {
        void *names = *ret_names;

        if (kind_of(entry->d_name) != SOCKET || strcmp(entry->d_name, own) == 0 ||
            gs_home_whereabouts(&home, entry->d_name) == GS_BESIDE_GONE)
            continue;
        if (count % NAMES_STEP == 0)
            names = realloc(names, (size_t)(count + NAMES_STEP) * sizeof **ret_names);
        if (names) {
            *ret_names = names;
            memcpy((*ret_names)[count++], entry->d_name, GS_SOCKET_NAME_SIZE);
        } else {
            count = -ENOMEM;
        }
    }
    closedir(list);
    return count;
}

void gs_directory_sweep(int directory, const struct gs_share_options *options)
{
    DIR *list = list_of(directory);
    const struct dirent *entry;
    struct gs_home home;
    unsigned seen = 0;

    if (!list)
        return;
    gs_home_find(&home);
    while (seen++ < SWEEP_ENTRIES && (entry = readdir(list))) {
        enum entry_kind kind = kind_of(entry->d_name);

        if (kind != FOREIGN)
            sweep_entry(directory, options, entry->d_name, kind,
                        gs_home_whereabouts(&home, entry->d_name));
    }
    closedir(list);
}

void gs_directory_touch(int directory, const char *name)
{
    utimensat(directory, name, NULL, AT_SYMLINK_NOFOLLOW);
}
