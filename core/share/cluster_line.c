/*
 * Broker: what its agent is told (core/share/cluster.h). What does not fit into its socket waits in
 * a line, and an agent that reads too little of that is hung up on: it comes again, and is told all
 * anew.
 */
#include "core/share/cluster.h"

#include <stdlib.h>
#include <string.h>

#define LINE_MAX 65536 /* messages, beyond what is shared here */

struct gs_agent_line {
    struct gs_agent_line *prev, *next;
    int fd;
    union gs_wire_message message; /* as much of it as it is long */
};

struct gs_client *gs_agent_of(struct gs_share *share)
{
    struct gs_client *client = NULL;

    if (share->store.cluster.agent)
        HASH_FIND(hh, share->clients.first, &share->store.cluster.agent,
                  sizeof share->store.cluster.agent, client);
    return client;
}

static void line_free(struct gs_agent_line *line)
{
    gs_fd_drop(line->fd);
    free(line);
}

static void hang_up(struct gs_share *share, struct gs_client *client, const char *why)
{
    gs_log_line(&share->log, GS_LOG_WARNING, "the agent (process %d) is hung up on: %s",
                (int)client->pid, why);
    client->over.shut = true; /* and it is dismissed when its hang-up is seen */
    gs_conn_shut(client->fd);
}

/* A line that has room for all that is shared here once, and for more. */
static bool enqueue(struct gs_share *share, struct gs_client *client,
                    const union gs_wire_message *message, int fd)
{
    struct gs_cluster *cluster = &share->store.cluster;
    struct gs_agent_line *line;

    if (client->over.shut)
        return false;
    if (cluster->waiting >= LINE_MAX + HASH_COUNT(share->exporter.exports)) {
        hang_up(share, client, "it does not read what it is told");
        return false;
    }
    line = malloc(offsetof(struct gs_agent_line, message) + message->head.size);
    if (!line) {
        hang_up(share, client, "no host memory is left for what it is to be told");
        return false;
    }
    memcpy(&line->message, message, message->head.size);
    line->fd = fd < 0 ? -1 : gs_fd_copy(fd);
    DL_APPEND(cluster->line, line);
    if (cluster->waiting++ == 0) {
        client->recalls_due++;
        gs_client_send_due(share, client);
    }
    return true;
}

/* Where no descriptor goes now it is said without: what it is of is then kept until its end is
 * told. */
static int send_to(struct gs_share *share, struct gs_client *client,
                   const union gs_wire_message *message, int fd)
{
    int error = gs_client_send(share, client, message, fd);

    return error == -ETOOMANYREFS ? gs_client_send(share, client, message, -1) : error;
}

bool gs_agent_tell(struct gs_share *share, const union gs_wire_message *message, int fd)
{
    struct gs_client *client = gs_agent_of(share);
    int error;

    if (!client || client->fd < 0 || gs_client_is_lost(client))
        return false;
    error = share->store.cluster.line ? -EAGAIN : send_to(share, client, message, fd);
    return !error || (gs_wire_goes_later(error) && enqueue(share, client, message, fd));
}

void gs_agent_flush(struct gs_share *share, struct gs_client *client)
{
    struct gs_cluster *cluster = &share->store.cluster;
    struct gs_agent_line *line;

    while ((line = cluster->line)) {
        if (gs_wire_goes_later(send_to(share, client, &line->message, line->fd)))
            return;
        DL_DELETE(cluster->line, line);
        if (--cluster->waiting == 0)
            client->recalls_due--;
        line_free(line);
    }
}

void gs_agent_forget(struct gs_share *share)
{
    struct gs_cluster *cluster = &share->store.cluster;
    struct gs_agent_line *line, *next;

    DL_FOREACH_SAFE(cluster->line, line, next) {
        DL_DELETE(cluster->line, line);
        line_free(line);
    }
    cluster->waiting = 0;
}

void gs_agent_tell_of(struct gs_share *share, enum gs_wire_type type,
                      const struct gs_export *export)
{
    union gs_wire_message message;

    gs_wire_start(&message, type, 0);
    memcpy(message.close.instance, export->key.instance, GS_INSTANCE_SIZE);
    message.close.block_id = export->key.id;
    message.close.lease = export->far->lease;
    gs_agent_tell(share, &message, -1);
}
