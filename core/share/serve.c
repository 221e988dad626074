/*
 * Exporter: answers to an importer's messages. Runs on the share thread and waits for nobody: what
 * cannot be sent at once is not sent, and the client that did not read is let go. Functions that
 * return false mean that.
 */
#include "core/share/cluster.h"

#include <stdlib.h>
#include <string.h>

#define ROW_NS GS_NS_PER_MS /* opens that follow each other within this are a row */

static bool on_hello(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_hello *hello, int *fd)
{
    if (client->greeted)
        return gs_client_fault(client, "it greeted twice");
    if (!share->options.is_broker &&
        memcmp(hello->instance, share->instance, GS_INSTANCE_SIZE) != 0)
        return gs_client_fault(client, "it wants another process");
    client->greeted = true;
    memcpy(client->instance, hello->instance, sizeof client->instance);
    client->due_ns = gs_now_ns() + GS_IDLE_NS;
    gs_lock_take(&share->lock);
    if (client->pid <= 0) /* of another PID namespace */
        client->pid = (pid_t)hello->pid;
    memcpy(client->said.name, hello->name, sizeof client->said.name - 1);
    gs_lock_release(&share->lock);
    memcpy(client->said.from, hello->from, sizeof client->said.from);
    client->said.holds = hello->holds;
    client->said.number = hello->number;
    /* The pidfd that an importer sent is used where the kernel has none for us. It can harm its
     * sender alone: by it, only the sender's own lease ends. */
    if (client->pidfd < 0 && *fd >= 0 && gs_alive_is_pidfd(*fd)) {
        client->pidfd = *fd;
        *fd = -1;
        gs_client_watch_exit(share, client);
    }
    return !hello->agent || gs_agent_came(share, client, hello);
}

/* What is granted anew is asked for anew, behind the grant. */
static void ask_anew(struct gs_reference *reference)
{
    if (reference->recall == GS_RECALL_SENT)
        reference->recall = GS_RECALL_NONE;
}

enum gs_wire_reason gs_reason_of_send(int error)
{
    if (error == -ETOOMANYREFS)
        return GS_REFUSED_FLIGHT;
    return error == -EMFILE || error == -ENFILE ? GS_REFUSED_FDS : GS_REFUSED_MEMORY;
}

static int send_grant(struct gs_share *share, struct gs_client *client,
                      const struct gs_export *export, uint32_t request,
                      const struct gs_batch *batch)
{
    union gs_wire_message message;

    gs_grant_start(&message, export, gs_export_is_imported(export), request);
    message.grant.ends =
        share->options.isolate || gs_export_is_own(export) || export->source.behind != NULL;
    gs_batch_write(export, batch, &message.grant.batch);
    return gs_client_send_all(share, client, &message, &batch->fds);
}

/* It is pinned, and so does not fall asleep. */
static bool is_asleep(struct gs_share *share, const struct gs_export *export)
{
    GS_HOLDING(&share->lock);

    return export->asleep > 0;
}

/*
 * The pin keeps the export from being withdrawn while the driver makes descriptors of its pieces,
 * without a lock. A grant that could not be sent leaves all as it was. False: the client is
 * to go.
 */
bool gs_client_grant(struct gs_share *share, struct gs_client *client, struct gs_export *export,
                     const struct gs_wire_open *open)
{
    enum gs_wire_reason reason = 0;
    struct gs_reference *reference = NULL;
    CUresult driver_error = CUDA_SUCCESS;
    bool is_new = false;
    uint64_t exported;
    struct gs_batch batch;
    int error = 0;

    batch.first = batch.fds.count = 0;
    if (open->want_fd != GS_OPEN_LETS_GO && is_asleep(share, export))
        reason = GS_REFUSED_ASLEEP;
    else if (open->want_fd == GS_OPEN_WANTS && !gs_export_is_imported(export))
        reason = gs_batch_make(share, client, export, open->first, &batch, &driver_error);
    exported = gs_now_ns();
    if (!reason) {
        reference = gs_reference_add(share, client, export, &is_new);
        if (reference)
            error = send_grant(share, client, export, open->head.request, &batch);
        else
            reason = GS_REFUSED_MEMORY;
    }
    gs_batch_end(share, export, &batch);
    if (error) {
        if (is_new) /* else it holds what was granted before */
            gs_reference_drop(share, client, reference);
        reference = NULL;
        reason = gs_reason_of_send(error);
    }
    if (reference) {
        reference->generation = open->head.request;
        gs_reference_let_go(share, reference, open->want_fd == GS_OPEN_LETS_GO);
        ask_anew(reference);
        gs_cluster_import_held(share, client, export);
        gs_log_line(&share->log, GS_LOG_DEBUG, "block %llu granted to %d (%s)",
                    (unsigned long long)export->key.id, (int)client->pid, client->said.name);
    }
    if (exported - share->exporter.served_ns < ROW_NS)
        gs_thread_expect(share, exported + GS_ANSWERED_NS);
    share->exporter.served_ns = exported;
    gs_export_unpin(share, export, reference != NULL);
    if (error == -EAGAIN)
        return false;
    if (gs_client_has_gone(error))
        return true;
    return !reason ||
           gs_client_refuse(share, client, open->head.request, reason, (uint32_t)driver_error);
}

/* Whom it is not given to, for what holds it would become more. */
static bool is_freed_for(struct gs_share *share, const struct gs_client *client,
                         const struct gs_export *export)
{
    const struct gs_reference *reference;
    GS_HOLDING(&share->lock);

    HASH_FIND(hh, client->references, &export->key.id, sizeof export->key.id, reference);
    return export->freed_ns != 0 && (!reference || reference->export != export);
}

/* Why it is not granted; 0: it is. */
static enum gs_wire_reason refusal_of(struct gs_share *share, const struct gs_client *client,
                                      const struct gs_wire_open *open,
                                      const struct gs_export *export)
{
    const enum gs_wire_reason unheard =
        export && gs_export_is_imported(export) ? gs_cluster_import_refusal(share, client) : 0;

    if (!export)
        return GS_REFUSED_HANDLE;
    if (gs_export_is_imported(export) && (!open->cluster || !gs_user_is_own(client->uid)))
        return GS_REFUSED_USER;
    if (unheard)
        return unheard;
    if (export->owner) /* it serves itself; the importer comes again if it has just ended */
        return GS_REFUSED_EARLY;
    if (export->publisher && !gs_publisher_lets(export->publisher, client->uid, client->gid))
        return GS_REFUSED_USER;
    if (is_freed_for(share, client, export) && gs_limbo_is_full(share))
        return GS_REFUSED_LIMBO;
    return 0;
}

static bool on_open(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_open *open)
{
    struct gs_export *export;
    enum gs_wire_reason reason;

    if (!client->greeted)
        return gs_client_fault(client, "it did not greet first");
    if (open->want_fd >= GS_OPEN_WANTED || open->cluster > 1 ||
        (open->first > 0 && open->want_fd != GS_OPEN_WANTS))
        return gs_client_fault(client, "its message has fields that make no sense");
    client->due_ns = gs_now_ns() + GS_IDLE_NS;
    if (memcmp(open->ipc_handle + offsetof(struct gs_ipc_handle, instance), client->instance,
               GS_INSTANCE_SIZE) != 0)
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_HANDLE, 0);
    export = gs_export_pin(share, open->ipc_handle);
    if (!export && open->cluster && share->options.is_broker)
        return gs_cluster_import_open(share, client, open);
    reason = refusal_of(share, client, open, export);
    if (!reason && open->first < gs_export_pieces(export))
        return gs_client_grant(share, client, export, open);
    if (export)
        gs_export_unpin(share, export, false);
    return reason ? gs_client_refuse(share, client, open->head.request, reason, 0)
                  : gs_client_fault(client, "it wants pieces that there are not");
}

/* Of what is not held, or was granted anew, it comes late. */
static bool on_close(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_close *close)
{
    struct gs_reference *reference;

    HASH_FIND(hh, client->references, &close->block_id, sizeof close->block_id, reference);
    if (!reference || reference->generation != close->head.request)
        return client->greeted || gs_client_fault(client, "it did not greet first");
    gs_reference_drop(share, client, reference);
    client->due_ns = gs_now_ns() + GS_IDLE_NS;
    return true;
}

/* It uses nothing of what it may hold. */
static bool on_bye(struct gs_share *share, struct gs_client *client)
{
    gs_references_drop(share, client, true);
    gs_flush_client_gone(share, client);
    return client->greeted;
}

static bool on_query(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_query *query)
{
    switch (query->about) {
    case GS_ABOUT_NAME:
    case GS_ABOUT_NEXT_NAME:
        return gs_look_up_came(share, client, query);
    case GS_ABOUT_EVENTS:
        return gs_events_came(share, client, query);
    case GS_ABOUT_MACHINE:
        return gs_machines_asked(share, client, query);
    default:
        return query->about < GS_ABOUTS
                   ? gs_report(share, client, query)
                   : gs_client_fault(client, "its message has fields that make no sense");
    }
}

static bool on_publish(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_publish *message, int *fd)
{
    if (!gs_broker_takes_from(share, client))
        return gs_client_fault(client, "it shares in the name of another process");
    if (!gs_publisher_on_publish(share, client, message, fd))
        return false;
    client->pull.due = true;
    gs_client_send_due(share, client);
    return true;
}

bool gs_client_serve(struct gs_share *share, struct gs_client *client,
                     const union gs_wire_message *message, int *fd)
{
    if (!gs_wire_goes(message, client->said.is_agent ? GS_AGENTS : GS_ASKS | GS_LEAVES))
        return gs_client_fault(client, "it sent a message that is not its to send");
    if (client->said.is_agent)
        return gs_agent_serve(share, client, message);
    switch (message->head.type) {
    case GS_WIRE_HELLO:
        return on_hello(share, client, &message->hello, fd);
    case GS_WIRE_OPEN:
        return on_open(share, client, &message->open);
    case GS_WIRE_CLOSE:
        return client->publisher ? gs_broker_answered(share, client, message, fd)
                                 : on_close(share, client, &message->close);
    case GS_WIRE_PUBLISH:
        return on_publish(share, client, &message->publish, fd);
    case GS_WIRE_BYE:
        return on_bye(share, client);
    case GS_WIRE_FORKED:
        client->said.forked = true;
        return client->greeted;
    case GS_WIRE_RESUME:
        return gs_client_resumes(share, client, &message->resume);
    case GS_WIRE_FLUSHED:
        return gs_flush_answered(share, client, &message->flush);
    case GS_WIRE_ORDER:
        return gs_order_came(share, client, &message->order);
    case GS_WIRE_QUERY:
        return on_query(share, client, &message->query);
    default: /* of who shares, to its broker alone */
        return gs_broker_answered(share, client, message, fd);
    }
}
