/* Whose processes there may be to ask (ask.h). */
#include "shim/command/ask.h"

#include <argz.h>
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sys/stat.h>

#include "core/share/directory.h"

#define NOBODYS 65534

static struct user user_of(const struct statx *owner)
{
    return (struct user){owner->stx_uid,
                         owner->stx_gid || !owner->stx_uid ? owner->stx_gid : NOBODYS};
}

static void add_owner(struct users *users, int directory, const char *name)
{
    struct statx info;
    struct user user;

    if (statx(directory, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_UID | STATX_GID, &info) !=
            0 ||
        !S_ISDIR(info.stx_mode))
        return;
    user = user_of(&info);
    if (user.uid == (uid_t)-1 || user.uid == geteuid() || users->count == USERS_MAX)
        return;
    for (unsigned i = 0; i < users->count; i++)
        if (users->of[i].uid == user.uid)
            return;
    users->of[users->count++] = user;
}

/* Adds those whose something there is that is named by a number after `prefix`: the owner's, but in
 * a container with users of its own it is the one that they have inside. */
static void add_users(struct users *users, const char *folder, const char *prefix)
{
    const size_t length = strlen(prefix);
    DIR *names = opendir(folder);
    const struct dirent *entry;

    while (names && (entry = readdir(names)))
        if (strncmp(entry->d_name, prefix, length) == 0 && entry->d_name[length] >= '0' &&
            entry->d_name[length] <= '9')
            add_owner(users, dirfd(names), entry->d_name);
    if (names)
        closedir(names);
}

void users_find(const struct gs_share_options *options, struct users *ret_users)
{
    ret_users->count = 0;
    if (options->dir[0])
        add_owner(ret_users, AT_FDCWD, options->dir); /* it may be one user's alone */
    add_users(ret_users, "/run/user", "");
    add_users(ret_users, options->dir[0] ? options->dir : "/tmp", GS_OWN_PREFIX);
}

bool user_of_process(long pid, struct user *ret_user)
{
    struct statx owner;
    char path[32];

    snprintf(path, sizeof path, "/proc/%ld", pid);
    if (statx(AT_FDCWD, path, 0, STATX_UID | STATX_GID, &owner) != 0)
        return false;
    *ret_user = user_of(&owner);
    return true;
}

/* What root was before. */
static struct {
    bool is_another;
    gid_t gid, groups[NGROUPS_MAX];
    int count;
} before;

bool user_become(const struct user *user)
{
    if (user->uid == geteuid() || geteuid() != 0)
        return user->uid == geteuid();
    before.gid = getegid();
    before.count = getgroups(NGROUPS_MAX, before.groups);
    /* A container may not permit it; who has no groups needs none taken away. */
    if (before.count < 0 || (before.count > 0 && setgroups(0, NULL) != 0))
        return false;
    before.is_another = true;
    return setegid(user->gid) == 0 && seteuid(user->uid) == 0;
}

void user_back(void)
{
    if (before.is_another &&
        (seteuid(0) != 0 || setegid(before.gid) != 0 ||
         (before.count > 0 && setgroups((size_t)before.count, before.groups) != 0)))
        abort(); /* the rest would be done as another */
    before.is_another = false;
}

/* ---- Without a socket here ------------------------------------------------------------------- */

#define ENVIRONMENT_MOST (4u << 20) /* bytes */

char **quiet_environment(long pid)
{
    char *text = command_need(malloc(ENVIRONMENT_MOST + 1)), **entries = NULL;
    size_t size = command_read_of(pid, "environ", text, ENVIRONMENT_MOST + 1);

    size += size && text[size - 1]; /* with the zero behind what was cut */
    if (size) {
        const size_t count = argz_count(text, size);

        entries = command_need(malloc((count + 1) * sizeof *entries + size));
        argz_extract(memcpy(entries + count + 1, text, size), size, entries);
    }
    free(text);
    return entries;
}

static void say(long pid, bool apart, const struct gs_config *config, const char *here,
                char ret_why[QUIET_WHY])
{
    const char *dir = config->share.dir.text;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "/proc/%ld/root%s", pid, dir);
    if (apart && (!dir[0] || !command_is_same_file(here, path)))
        snprintf(ret_why, QUIET_WHY,
                 "is not known: it is in another container, with another folder than this: ask "
                 "there");
    else if (!apart && strcmp(dir, here) != 0)
        snprintf(ret_why, QUIET_WHY,
                 "is not known: it has another folder; ask with GPUSHIM_SHARE_DIR=%.*s",
                 (int)sizeof((struct gs_share_options *)NULL)->dir, /* longer ones are none */
                 dir[0] ? dir : "'', for none is set there");
    else if (!config->debug.reclaim_from_peers)
        snprintf(
            ret_why, QUIET_WHY,
            "cannot be asked: debug.reclaim_from_peers is off there, and it neither shares nor opens "
            "memory");
    else
        snprintf(ret_why, QUIET_WHY,
                 "holds too little to be asked, and neither shares nor opens memory");
}

bool quiet_config(long pid, char *const *environment, struct gs_config *ret_config)
{
    const struct gs_config_sources sources = {.environment = environment,
                                              .system_files = gs_config_system_files};
    struct user user;
    const bool is = user_of_process(pid, &user) && user_become(&user);

    if (is)
        gs_config_load(ret_config, &sources, NULL, NULL);
    user_back();
    return is;
}

void quiet_say(long pid, char ret_why[QUIET_WHY])
{
    static struct gs_config config;
    struct gs_share_options *here;
    char **environment = quiet_environment(pid), mounts[40];
    bool apart;

    snprintf(mounts, sizeof mounts, "/proc/%ld/ns/mnt", pid);
    apart = !command_is_same_file("/proc/self/ns/mnt", mounts);
    command_share_options(&here);
    if (environment && quiet_config(pid, environment, &config))
        say(pid, apart, &config, here->dir, ret_why);
    else
        snprintf(ret_why, QUIET_WHY, "is not known: its environment may not be read");
    free(environment);
}
