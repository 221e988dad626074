/* What is heard of this machine's gpushim-agent: for gpushim cluster and doctor. */
#ifndef GS_SHIM_COMMAND_HEALTH_H
#define GS_SHIM_COMMAND_HEALTH_H

#include <stdbool.h>

#include "core/share/share.h"

#define HEALTH_NAME "agent.health" /* in the folder of the sockets */
#define HEALTH_HEAD "gpushim-agent 1\n"

/* `what`: lease, or directory. */
typedef void health_row_fn(void *arg, bool good, const char *what, const char *found);

/* How many agents have said something. */
unsigned health_tell(const struct gs_share_options *options, health_row_fn *row, void *arg);

#endif
