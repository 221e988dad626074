/* Why a process without a socket here has none (quiet.h). */
#include "shim/command/quiet.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/command/command.h"
#include "shim/command/users.h"

#define ENVIRONMENT_MOST (4u << 20) /* bytes */

char **quiet_environment(long pid)
{
    char **entries = NULL, *text = command_need(malloc(ENVIRONMENT_MOST + 1));
    const size_t got = command_read_of(pid, "environ", text, ENVIRONMENT_MOST + 1);
    size_t count = 0;

    for (size_t i = 0; i < got; i++)
        count += text[i] == 0;
    if (got) {
        char *at;

        entries = command_need(malloc((count + 2) * sizeof *entries + got + 1));
        at = memcpy(entries + count + 2, text, got);

        at[got] = 0;
        for (size_t i = 0; i <= count; i++, at += strlen(at) + 1)
            entries[i] = at; /* behind the last zero there is an empty one */
        entries[count + 1] = NULL;
    }
    free(text);
    return entries;
}

static bool has_own_mounts(long pid)
{
    char path[40];

    snprintf(path, sizeof path, "/proc/%ld/ns/mnt", pid);
    return !command_is_same_file("/proc/self/ns/mnt", path);
}

static void say(long pid, bool apart, const struct gs_config *config, const char *here, char ret_why[QUIET_WHY])
{
    const char *dir = config->share.dir.text;
    char path[PATH_MAX];

    snprintf(path, sizeof path, "/proc/%ld/root%s", pid, dir);
    if (apart && (!dir[0] || !command_is_same_file(here, path)))
        snprintf(ret_why, QUIET_WHY, "is not known: it is in another container, with another folder than this: ask "
                                     "there");
    else if (!apart && strcmp(dir, here) != 0)
        snprintf(ret_why, QUIET_WHY, "is not known: it has another folder; ask with GPUSHIM_SHARE_DIR=%.*s",
                 (int)sizeof((struct gs_share_options *)NULL)->dir, /* longer ones are none */
                 dir[0] ? dir : "'', for none is set there");
    else if (!config->debug.reclaim_from_peers)
        snprintf(ret_why, QUIET_WHY, "cannot be asked: debug.reclaim_from_peers is off there, and it neither shares nor opens "
                                     "memory");
    else
        snprintf(ret_why, QUIET_WHY, "holds too little to be asked, and neither shares nor opens memory");
}

bool quiet_config(long pid, char *const *environment, struct gs_config *ret_config)
{
    const struct gs_config_sources sources = {.environment = environment, .system_files = gs_config_system_files};
    struct user user;
    const bool is = user_of_process(pid, &user) && user_become(&user);

    if (is)
        gs_config_load(ret_config, &sources, NULL, NULL);
    user_back();
    return is;
}

void quiet_say(long pid, const struct gs_share_options *here, char ret_why[QUIET_WHY])
{
    static struct gs_config config;
    char **environment = quiet_environment(pid);
    const bool apart = has_own_mounts(pid);

    if (environment && quiet_config(pid, environment, &config))
        say(pid, apart, &config, here->dir, ret_why);
    else
        snprintf(ret_why, QUIET_WHY, "is not known: its environment may not be read");
    free(environment);
}
