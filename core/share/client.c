/* Exporter: what is said to an importer, and watched of it. */
#include "core/share/cluster.h"
#include "core/share/discard.h"

bool gs_client_refuse(struct gs_share *share, struct gs_client *client, uint32_t request,
                      enum gs_wire_reason reason, uint32_t driver_error)
{
    union gs_wire_message message;
    int error;

    gs_log_line(&share->log, GS_LOG_DEBUG, "importer %d (%.15s) of user %u was refused: %s",
                (int)client->pid, client->said.name, (unsigned)client->uid,
                gs_wire_reason_text(reason));
    if (driver_error)
        gs_log_line(&share->log, GS_LOG_DEBUG, "the driver's error was %u", (unsigned)driver_error);
    gs_wire_start(&message, GS_WIRE_REFUSE, request);
    message.refuse.reason = reason;
    message.refuse.driver_error = driver_error;
    error = gs_wire_send(client->fd, &message, -1);
    /* Where the kernel has no memory left for it, a client that holds something waits in vain: hung
     * up on, it would lose that. Of one that has hung up, what it gave back before that may lie
     * there. */
    return error == 0 || ((error == -ENOBUFS || error == -ENOMEM) && client->references) ||
           gs_client_has_gone(error);
}

void gs_client_say_bye(const struct gs_client *client)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_BYE, 0);
    gs_wire_send(client->fd, &message, -1);
}

bool gs_client_fault(struct gs_client *client, const char *fault)
{
    client->fault = fault;
    return false;
}

bool gs_client_is_lost(struct gs_client *client)
{
    if (client->fd < 0 || gs_fd_is_there(&client->kept_fd))
        return false;
    client->fd = -1;
    client->due_ns = gs_now_ns() + GS_LOOK_NS;
    client->said.forked = true; /* as far as anybody knows: it may have said so, unheard */
    return true;
}

void gs_client_watch_exit(struct gs_share *share, struct gs_client *client)
{
    client->kept_pidfd = gs_fd_keep(client->pidfd);
    if (client->pidfd >= 0 && gs_watch(share, GS_WATCH_ADD, client->pidfd, GS_WATCH_READ,
                                       GS_WATCH_PIDFD, client->id) != 0) {
        gs_fd_drop(client->pidfd);
        client->pidfd = -1;
    }
}

static void watch_messages(struct gs_share *share, struct gs_client *client)
{
    bool awaits = client->recalls_due > 0 || client->pull.due;

    if (awaits == client->awaits_room)
        return;
    client->awaits_room = awaits;
    gs_watch(share, GS_WATCH_CHANGE, client->fd, GS_WATCH_READ | (awaits ? GS_WATCH_WRITE : 0),
             GS_WATCH_CLIENT, client->id);
}

bool gs_client_call_back(struct gs_client *client, const union gs_wire_message *message)
{
    return !gs_client_is_lost(client) && gs_conn_has_room(client->fd) &&
           gs_wire_send(client->fd, message, -1) == 0;
}

static bool send_recall(struct gs_client *client, const struct gs_reference *reference)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_RECALL, reference->generation);
    message.recall.block_id = reference->block_id;
    return gs_client_call_back(client, &message);
}

static void pull(struct gs_share *share, struct gs_client *client)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_PULL, 0);
    message.pull.kept = client->pull.kept;
    message.pull.block_id = client->pull.block_id;
    message.pull.piece = client->pull.block_id ? client->pull.piece : 0;
    client->pull.due = gs_client_send(share, client, &message, -1) != 0;
    client->pull.asked = !client->pull.due;
}

/*
 * Sends the RECALLs that are due, and then the FLUSH, as many as leave most of the
 * socket's buffer free: an answer must always fit, since a client that does not take its answers is
 * let go. The rest follows when the client has read.
 */
void gs_client_send_due(struct gs_share *share, struct gs_client *client)
{
    struct gs_reference *reference, *next;

    if (client->said.is_agent)
        gs_agent_flush(share, client);
    if (client->pull.due)
        pull(share, client);
    HASH_ITER(hh, client->references, reference, next) {
        if (client->recalls_due == 0)
            break;
        if (reference->recall != GS_RECALL_DUE)
            continue;
        if (!send_recall(client, reference))
            break;
        reference->recall = GS_RECALL_SENT;
        client->recalls_due--;
    }
    if (client->flush.due && client->recalls_due == 1 && gs_flush_send(client)) {
        client->flush.due = false;
        client->recalls_due--;
    }
    watch_messages(share, client);
}

void gs_clients_recall(struct gs_share *share, struct gs_export *export)
{
    struct gs_client *client, *next;
    struct gs_reference *reference;
    uint64_t id = export->key.id;

    HASH_ITER(hh, share->clients.first, client, next) {
        HASH_FIND(hh, client->references, &id, sizeof id, reference);
        if (!reference || reference->export != export || reference->recall != GS_RECALL_NONE ||
            client->fd < 0)
            continue;
        reference->recall = GS_RECALL_DUE;
        if (client->recalls_due++ == 0)
            gs_client_send_due(share, client);
    }
    if (!export->far || share->options.is_broker)
        return;
    GS_HOLDING(&share->lock);
    gs_cluster_recall_locked(share, export);
}

void gs_clients_part(struct gs_share *share)
{
    struct gs_client *client, *next;

    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->fd >= 0 && client->greeted && !client->references && !gs_client_is_lost(client))
            gs_client_say_bye(client); /* else it would look for somebody to say that to */
        gs_client_close_socket(share, client);
    }
}

void gs_client_poke(struct gs_share *share, const struct gs_client *client)
{
    char name[GS_SOCKET_NAME_SIZE];
    int fd;

    gs_instance_name(client->published ? client->instance : client->said.from, name);
    fd = gs_directory_connect_at_once(&share->options, name);
    if (fd >= 0)
        gs_hang_up(fd);
}
