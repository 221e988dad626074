/*
 * Exporter: whether the process of a client has ended, or goes on with what it has open. A program
 * may close the library's connection like any descriptor that it does not know, and read on what it
 * has mapped; one that calls exec loses connection and memory alike. The process table tells these
 * apart, where it shows the process: by where the stack begins, which the opener says of itself.
 */
#include "core/share/exporter.h"

#include <string.h>

/* The program may have closed it, and its number may be another file's. */
static bool has_pidfd(const struct gs_client *client)
{
    return client->pidfd >= 0 && gs_fd_is_there(&client->kept_pidfd);
}

bool gs_client_has_exited(const struct gs_client *client)
{
    return client->over.exited || (has_pidfd(client) && gs_alive_exited(client->pidfd));
}

/* Without a pidfd (before Linux 5.3, and 6.5 where HELLO came without one) the process table tells,
 * if the process is in it: one of another PID namespace may go on. */
bool gs_client_has_ended(const struct gs_client *client)
{
    if (client->over.exited || has_pidfd(client))
        return gs_client_has_exited(client);
    return client->is_seen && !gs_alive_runs(client->pid);
}

/* Where that cannot be told (another PID namespace, another user), the hang-up is taken for the end
 * of what was open, as of a program that called exec: it would be held until the process ends. */
static bool runs_the_same_program(const struct gs_client *client)
{
    return client->said.stack && client->is_seen &&
           gs_alive_stack(client->pid) == client->said.stack;
}

static bool has_name(const struct gs_client *client)
{
    static const unsigned char none[GS_INSTANCE_SIZE];

    return memcmp(client->said.from, none, sizeof none) != 0;
}

bool gs_client_lives(const struct gs_client *client)
{
    return has_name(client) && !gs_client_has_ended(client) && runs_the_same_program(client);
}

bool gs_client_rests(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    struct gs_over *over = &client->over;

    if (client->fd >= 0 || !client->references || over->done || over->rested || over->exited ||
        !has_name(client) || !client->said.stack || !client->is_seen ||
        (gs_client_has_ended(client) && !client->said.forked))
        return false;
    over->rested = true;
    client->due_ns = now + share->options.settle_ns;
    gs_flush_hung_up(share, client);
    return true;
}

bool gs_client_is_same(const struct gs_client *client, const struct gs_client *other)
{
    return has_name(client) && client->uid == other->uid && client->pid == other->pid &&
           memcmp(client->said.from, other->said.from, sizeof client->said.from) == 0 &&
           memcmp(client->instance, other->instance, sizeof client->instance) == 0;
}
