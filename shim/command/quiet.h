/*
 * A process with the library that has no socket in the folders that were looked at: by its own environment
 * and configuration that is as it should be, or it has another folder.
 */
#ifndef GS_SHIM_COMMAND_QUIET_H
#define GS_SHIM_COMMAND_QUIET_H

#include "core/share/share.h"

/* Why it is not asked. `here` has the folder that was looked at. */
#define QUIET_WHY 256
void quiet_say(long pid, const struct gs_share_options *here, char ret_why[QUIET_WHY]);

#endif
