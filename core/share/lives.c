/*
 * Exporter: what proves that a client's program is over, and with it what it had open. Its pidfd
 * reports the exit; without one the process table does, for a process that is in it. Nothing else
 * does: a program may close the library's connection like any descriptor that it does not know, and
 * read on what it has mapped, and a process that is going down has neither connection nor memory,
 * and its GPU work runs on. That one has called exec is not looked for: what it had open stays its
 * own until it exits.
 */
#include "core/share/exporter.h"

#include <string.h>

/* The program may have closed it, and its number may be another file's. */
bool gs_client_has_pidfd(const struct gs_client *client)
{
    return client->pidfd >= 0 && gs_fd_is_there(&client->kept_pidfd);
}

/* A number of the process table that is another process's by now keeps it from being seen: then
 * that one's end is. */
bool gs_client_has_ended(const struct gs_client *client)
{
    if (client->over.ended)
        return true;
    if (gs_client_has_pidfd(client))
        return gs_alive_exited(client->pidfd);
    return client->is_seen && !gs_alive_runs(client->pid);
}

bool gs_client_end_shows(const struct gs_client *client)
{
    return client->over.ended || gs_client_has_pidfd(client) || client->is_seen;
}

static bool has_name(const struct gs_client *client)
{
    static const unsigned char none[GS_INSTANCE_SIZE];

    return memcmp(client->said.from, none, sizeof none) != 0;
}

/* Where the kernel does not tell who a caller is, one of them that is connected is not taken for
 * another. */
bool gs_client_is_same(const struct gs_client *client, const struct gs_client *newer)
{
    return has_name(client) && client->uid == newer->uid && client->pid == newer->pid &&
           memcmp(client->said.from, newer->said.from, sizeof client->said.from) == 0 &&
           memcmp(client->instance, newer->instance, sizeof client->instance) == 0 &&
           (newer->is_seen || client->fd < 0 || gs_conn_hung_up(client->fd) ||
            (gs_client_has_pidfd(client) && gs_client_has_pidfd(newer) &&
             gs_alive_is_same(client->pidfd, newer->pidfd)));
}
