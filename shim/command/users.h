/* Whose processes there may be to ask, and being one of them for a while. */
#ifndef GS_SHIM_COMMAND_USERS_H
#define GS_SHIM_COMMAND_USERS_H

#include <stdbool.h>
#include <sys/types.h>

#include "config/config.h"
#include "core/share/share.h"

#define USERS_MAX 4096

struct user {
    uid_t uid;
    gid_t gid; /* of what he has there; never root's but for root */
};

struct users {
    struct user of[USERS_MAX];
    unsigned count;
};

/* Everybody but this user who has a folder where sockets may be. */
void users_find(const struct gs_share_options *options, struct users *ret_users);
/* Whose process that is; false: there is none. */
bool user_of_process(long pid, struct user *ret_user);
/* From now on this is that user, with that group and no other; who is it already stays as he is.
 * False: it cannot be (this is not root, or a user namespace does not have him). In each case
 * user_back comes next. */
bool user_become(const struct user *user);
void user_back(void);

/*
 * A process with the library that has no socket in the folders that were looked at: by its own
 * environment and configuration that is as it should be, or it has another folder.
 */

/* The environment that it was started with, which free ends, and its strings; NULL: it may not be
 * read. */
char **quiet_environment(long pid);
/* The configuration that it has by that, its files read as its user. False: that one cannot be. */
bool quiet_config(long pid, char *const *environment, struct gs_config *ret_config);

/* Why it is not asked. `here` has the folder that was looked at. */
#define QUIET_WHY 256
void quiet_say(long pid, const struct gs_share_options *here, char ret_why[QUIET_WHY]);

#endif
