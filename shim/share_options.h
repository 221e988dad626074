/* What core/share has of the configuration in every program: the library, the command, the
 * agent. */
#ifndef GS_SHIM_SHARE_OPTIONS_H
#define GS_SHIM_SHARE_OPTIONS_H

#include <string.h>

#include "config/config.h"
#include "core/share/share.h"

_Static_assert(GS_CONFIG_IDS_MAX <= GS_IDS_MAX, "every id that the options take has room");

/* False: share.dir is too long for a socket, and then the options have none that there can be. */
static inline bool share_options_fill(struct gs_share_options *options,
                                      const struct gs_config *config)
{
    const char *dir = config->share.dir.text;
    const bool fits = strlen(dir) < sizeof options->dir;

    options->listen_fd = -1;
    options->settle_ns = config->debug.settle;
    options->timeout_ns = config->debug.timeout;
    options->keep_ns = config->share.keep;
    options->published_max = (uint32_t)config->debug.broker_blocks;
    options->max_clients = (uint32_t)config->debug.max_clients;
    for (size_t i = 0; i < config->share.gids.count; i++)
        options->gids[options->gid_count++] = (gid_t)config->share.gids.ids[i];
    for (size_t i = 0; i < config->share.uids.count; i++)
        options->uids[options->uid_count++] = (uid_t)config->share.uids.ids[i];
    dir = fits ? dir : "too long";
    memcpy(options->dir, dir, strlen(dir) + 1);
    return fits;
}

#endif
