/*
 * What gpushim-agent says of itself and of its directory, from the file that it writes beside the sockets
 * (shim/agent/jobs.c): a line says what it is of, ok or fail, and what was found. Only a file of this user's or root's
 * is read, and as others' words.
 */
#include "shim/command/health.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/base/regular.h"
#include "core/share/directory.h"

#define HEALTH_MAX 8192

static bool read_file(int folder, char ret_text[HEALTH_MAX])
{
    struct stat info;
    int fd = gs_regular_open(folder, HEALTH_NAME, O_NOFOLLOW, &info);
    size_t got = 0;

    if (fd < 0)
        return false;
    if (gs_user_is_own(info.st_uid) || info.st_uid == 0)
        got = gs_regular_read(fd, ret_text, HEALTH_MAX - 1, 0);
    close(fd);
    ret_text[got] = 0;
    return strncmp(ret_text, HEALTH_HEAD, strlen(HEALTH_HEAD)) == 0;
}

/* The lease of the directory, by this machine's steady clock. */
static void say_lease(const char *until, health_row_fn *row, void *arg)
{
    const uint64_t until_ns = strtoull(until, NULL, 10), now = gs_now_ns();
    char text[160];

    if (until_ns > now)
        snprintf(text, sizeof text, "the agent's lease of the directory has %.1f s left",
                 (double)(until_ns - now) / (double)GS_NS_PER_S);
    else
        snprintf(text, sizeof text, "the agent has no lease of the directory: nothing is opened from other machines "
                 "or handed out to them until it has; or it does not run");
    row(arg, until_ns > now, "lease", text);
}

static void say_all(char *text, health_row_fn *row, void *arg)
{
    char *rest = NULL;

    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *state = strchr(line, ' '), *found = state ? strchr(state + 1, ' ') : NULL;

        if (!found)
            continue; /* not a line of ours */
        *state++ = *found++ = 0;
        if (strcmp(line, "lease") == 0)
            say_lease(found, row, arg);
        else if (strcmp(line, "directory") == 0)
            row(arg, strcmp(state, "ok") == 0, line, found);
    }
}

unsigned health_tell(const struct gs_share_options *options, health_row_fn *row, void *arg)
{
    char reason[GS_REASON_SIZE], text[HEALTH_MAX];
    unsigned place = 0, found = 0;
    int folder;

    while ((folder = gs_directory_next(options, &place, reason)) >= 0) {
        if (read_file(folder, text)) {
            found++;
            say_all(text + strlen(HEALTH_HEAD), row, arg);
        }
        close(folder);
    }
    return found;
}
