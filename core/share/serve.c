/*
 * Exporter: answers to an opener's messages. Runs on the share thread and waits for nobody: what
 * cannot be sent at once is not sent, and the client that did not read is let go. Functions that
 * return false mean that.
 */
#include "core/share/exporter.h"

#include <stdlib.h>
#include <string.h>

#define ROW_NS GS_NS_PER_MS /* opens that follow each other within this are a row */

static bool on_hello(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_hello *hello, int *fd)
{
    if (client->greeted)
        return gs_client_fault(client, "it greeted twice");
    if (!share->options.is_broker &&
        memcmp(hello->instance, share->instance, GS_INSTANCE_SIZE) != 0 &&
        !gs_relay_knows(share, hello->instance))
        return gs_client_fault(client, "it wants another process");
    client->greeted = true;
    memcpy(client->instance, hello->instance, sizeof client->instance);
    client->due_ns = gs_now_ns() + GS_IDLE_NS;
    if (client->pid <= 0) /* of another PID namespace */
        client->pid = (pid_t)hello->pid;
    memcpy(client->said.from, hello->from, sizeof client->said.from);
    client->said.stack = hello->stack;
    memcpy(client->said.name, hello->name, sizeof client->said.name - 1);
    gs_wire_printable(client->said.name);
    /* The pidfd that an opener sent is used where the kernel has none for us. It can harm its
     * sender alone: by it, only his own lease ends. */
    if (client->pidfd < 0 && *fd >= 0 && gs_alive_is_pidfd(*fd)) {
        client->pidfd = *fd;
        *fd = -1;
        gs_client_watch_exit(share, client);
    }
    return true;
}

/* One hold more of the offer, or NULL without host memory. */
static struct gs_hold *hold_add(struct gs_client *client, struct gs_offer *offer)
{
    struct gs_hold *hold;

    uint64_t block_id = offer->key.id;

    HASH_FIND(hh, client->holds, &block_id, sizeof block_id, hold);
    if (!hold) {
        hold = calloc(1, sizeof *hold);
        if (!hold)
            return NULL;
        hold->block_id = block_id;
        hold->offer = offer;
        hold->since_ns = gs_now_ns();
        HASH_ADD(hh, client->holds, block_id, sizeof hold->block_id, hold);
        if (!hold->hh.tbl) {
            free(hold);
            return NULL;
        }
    }
    if (hold->recall == GS_RECALL_DUE)
        client->recalls_due--;
    hold->recall = GS_RECALL_NONE; /* with the new hold it is to be asked anew */
    hold->count++;
    return hold;
}

static void hold_remove(struct gs_client *client, struct gs_hold *hold)
{
    if (--hold->count > 0)
        return;
    if (hold->recall == GS_RECALL_DUE)
        client->recalls_due--;
    HASH_DEL(client->holds, hold);
    free(hold);
}

static enum gs_wire_reason reason_of(int error)
{
    if (error == -ETOOMANYREFS)
        return GS_REFUSED_FLIGHT;
    return error == -EMFILE || error == -ENFILE ? GS_REFUSED_FDS : GS_REFUSED_MEMORY;
}

/* A descriptor of the chunk for sending, -1 if none was asked for; or why there is none. */
static enum gs_wire_reason export_chunk(struct gs_share *share, const struct gs_offer *offer,
                                        bool wanted, int *ret_fd, bool *ret_fresh,
                                        CUresult *ret_error)
{
    *ret_fd = -1;
    *ret_fresh = false;
    *ret_error = CUDA_SUCCESS;
    if (!wanted)
        return 0;
    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
        return GS_REFUSED_ENDING;
    *ret_error = gs_export(share, offer, ret_fd, ret_fresh);
    return *ret_error == CUDA_SUCCESS ? 0 : GS_REFUSED_DRIVER;
}

static int send_grant(struct gs_share *share, struct gs_client *client,
                      const struct gs_offer *offer, uint32_t request, int fd)
{
    const struct gs_share_source *source = &offer->source;
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_GRANT, request);
    message.grant.block_id = offer->key.id;
    message.grant.chunk_id = source->chunk_id;
    message.grant.chunk_size = source->chunk_size;
    message.grant.offset = source->offset;
    message.grant.size = source->size;
    message.grant.read_only = offer->read_only;
    message.grant.strict = share->options.isolate;
    memcpy(message.grant.uuid, source->uuid, sizeof message.grant.uuid);
    return gs_client_send(share, client, &message, fd);
}

/*
 * The pin keeps the offer from being withdrawn while the driver exports its chunk, without a lock.
 * A grant that could not be sent leaves no hold behind. False: the client is to go.
 */
static bool grant(struct gs_share *share, struct gs_client *client, struct gs_offer *offer,
                  const struct gs_wire_open *open)
{
    enum gs_wire_reason reason;
    struct gs_hold *hold = NULL;
    CUresult driver_error;
    bool fresh;
    uint64_t begun = gs_now_ns(), exported;
    int fd, error = 0;

    reason = export_chunk(share, offer, open->want_fd != 0, &fd, &fresh, &driver_error);
    exported = gs_now_ns();
    if (!reason) {
        hold = hold_add(client, offer);
        if (hold) {
            gs_offer_hold(share, offer);
            error = send_grant(share, client, offer, open->head.request, fd);
        } else {
            reason = GS_REFUSED_MEMORY;
        }
    }
    if (fresh)
        gs_export_keep(share, offer, fd);
    if (error) {
        gs_offer_drop(share, offer, 1);
        hold_remove(client, hold);
        hold = NULL;
        reason = reason_of(error);
    }
    if (hold)
        gs_keep_remove(share, client, offer->source.chunk_id);
    if (hold)
        gs_log_line(&share->log, GS_LOG_DEBUG,
                    "block %llu granted to %d (%s): export %llu us, answer %llu, begun at %llu us",
                    (unsigned long long)offer->key.id, (int)client->pid, client->said.name,
                    (unsigned long long)(exported - begun) / 1000,
                    (unsigned long long)(gs_now_ns() - exported) / 1000,
                    (unsigned long long)begun / 1000);
    if (exported - share->exporter.served_ns < ROW_NS)
        gs_thread_expect(share, exported);
    share->exporter.served_ns = exported;
    gs_offer_unpin(share, offer, hold != NULL);
    if (error == -EAGAIN || error == -EPIPE || error == -ECONNRESET)
        return false;
    return !reason ||
           gs_client_refuse(share, client, open->head.request, reason, (uint32_t)driver_error);
}

static bool on_open(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_open *open)
{
    struct gs_offer *offer;

    if (!client->greeted || open->want_fd > 1 || open->zero)
        return gs_client_fault(client, client->greeted ? "its message has fields that make no sense"
                                                       : "it did not greet first");
    client->due_ns = gs_now_ns() + GS_IDLE_NS;
    if (memcmp(open->token + offsetof(struct gs_token, instance), client->instance,
               GS_INSTANCE_SIZE) != 0)
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_TOKEN, 0);
    if (!share->options.is_broker &&
        memcmp(client->instance, share->instance, GS_INSTANCE_SIZE) != 0)
        return gs_relay_serve(share, client, open);
    offer = gs_offer_pin(share, open->token);
    if (offer && offer->owner) { /* it serves itself; the opener comes again if it has just ended */
        gs_offer_unpin(share, offer, false);
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_EARLY, 0);
    }
    if (offer && offer->leaver && !gs_leaver_lets(offer->leaver, client->uid, client->gid)) {
        gs_offer_unpin(share, offer, false);
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_USER, 0);
    }
    if (offer && gs_limbo_refuses(share, client, offer)) {
        gs_offer_unpin(share, offer, false);
        return gs_client_refuse(share, client, open->head.request, GS_REFUSED_LIMBO, 0);
    }
    return offer ? grant(share, client, offer, open)
                 : gs_client_refuse(share, client, open->head.request, GS_REFUSED_TOKEN, 0);
}

/* With `keeps` the chunk stays mapped there, which is noted before the block may go. */
static bool on_close(struct gs_share *share, struct gs_client *client, uint64_t block_id,
                     bool keeps)
{
    struct gs_hold *hold;

    HASH_FIND(hh, client->holds, &block_id, sizeof block_id, hold);
    if (!hold)
        return client->over.has_lost ||
               gs_client_fault(client, "it closed a block that it does not hold");
    if (keeps && !gs_keep_add(share, client, hold->offer))
        return gs_client_fault(client, "it keeps mapped what it may not");
    gs_offer_drop(share, hold->offer, 1);
    hold_remove(client, hold);
    client->due_ns = gs_now_ns() + GS_IDLE_NS;
    return true;
}

/* One hold more for what an earlier connection of its process holds. That one keeps its own until
 * all is told, so nothing can go in between. */
static bool take_up_one(struct gs_share *share, struct gs_client *client, uint64_t block_id)
{
    struct gs_client *other, *next;
    struct gs_hold *hold;

    HASH_ITER(hh, share->clients.first, other, next)
    {
        if (other == client || !gs_client_is_same(client, other))
            continue;
        HASH_FIND(hh, other->holds, &block_id, sizeof block_id, hold);
        if (!hold)
            continue;
        if (!hold_add(client, hold->offer))
            return gs_client_fault(client, "no host memory is left for what it takes up");
        gs_offer_take_up(share, hold->offer);
        return true;
    }
    client->over.has_lost = true; /* its lease had ended: this kernel does not tell who lives */
    return true;
}

static bool on_take_up(struct gs_share *share, struct gs_client *client, uint64_t block_id)
{
    struct gs_client *other, *next;

    if (!client->greeted)
        return gs_client_fault(client, "it did not greet first");
    if (block_id)
        return take_up_one(share, client, block_id);
    HASH_ITER(hh, share->clients.first, other, next)
    {
        if (other != client && gs_client_is_same(client, other))
            gs_client_end(share, other);
    }
    return true;
}

bool gs_client_serve(struct gs_share *share, struct gs_client *client,
                     const union gs_wire_message *message, int *fd)
{
    switch (message->head.type) {
    case GS_WIRE_HELLO:
        return on_hello(share, client, &message->hello, fd);
    case GS_WIRE_OPEN:
        return on_open(share, client, &message->open);
    case GS_WIRE_CLOSE:
        return on_close(share, client, message->close.block_id, false);
    case GS_WIRE_KEEP:
        return on_close(share, client, message->keep.block_id, true);
    case GS_WIRE_UNMAPPED:
        gs_keep_remove(share, client, message->unmapped.chunk_id);
        return client->greeted;
    case GS_WIRE_LEAVE:
        return gs_leaver_on_leave(share, client, &message->leave, fd);
    case GS_WIRE_BYE:
        client->over.done = true;
        return client->greeted;
    case GS_WIRE_TAKE_UP:
        return on_take_up(share, client, message->take_up.block_id);
    case GS_WIRE_FLUSHED:
        return gs_flush_answered(share, client, message->flushed.number);
    case GS_WIRE_SHARE:
        return gs_broker_on_share(share, client, &message->share, fd);
    case GS_WIRE_UNSHARE:
        return gs_broker_on_unshare(share, client, &message->unshare);
    case GS_WIRE_PURGE:
        return gs_plea_came(share, client, &message->purge);
    case GS_WIRE_QUERY:
        return gs_report(share, client, &message->query);
    default:
        return gs_client_fault(client, "it sent a message that is not an opener's to send");
    }
}
