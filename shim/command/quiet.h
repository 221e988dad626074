/*
 * A process with the library that has no socket in the folders that were looked at: by its own environment
 * and configuration that is as it should be, or it has another folder.
 */
#ifndef GS_SHIM_COMMAND_QUIET_H
#define GS_SHIM_COMMAND_QUIET_H

#include "config/config.h"
#include "core/share/share.h"

/* The environment that it was started with, which free ends, and its strings; NULL: it may not be read. */
char **quiet_environment(long pid);
/* The configuration that it has by that, its files read as its user. False: that one cannot be. */
bool quiet_config(long pid, char *const *environment, struct gs_config *ret_config);

/* Why it is not asked. `here` has the folder that was looked at. */
#define QUIET_WHY 256
void quiet_say(long pid, const struct gs_share_options *here, char ret_why[QUIET_WHY]);

#endif
