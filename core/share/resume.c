/*
 * Exporter: a holder that has another connection. It says hello over that, names what it holds
 * still, and all else that it held is over. The connection before is hung up on: what comes late
 * over it means nothing. Where somebody has it still, that is a child that its process has forked.
 */
#include "core/share/exporter.h"

static struct gs_client *holder_of(struct gs_share *share, const struct gs_client *client)
{
    struct gs_client *other, *next;

    HASH_ITER(hh, share->clients.first, other, next) {
        if (other == client)
            continue;
        gs_client_is_lost(other);
        if (gs_client_is_same(other, client))
            return other;
    }
    return NULL;
}

/* What was said to it may be lost. It is asked for nothing before it has named what it holds. */
static void forget_said(struct gs_share *share, struct gs_client *holder)
{
    struct gs_reference *reference;

    for (reference = holder->references; reference; reference = reference->hh.next) {
        reference->recall = GS_RECALL_SENT;
        reference->named = false;
    }
    gs_flush_client_gone(share, holder);
    holder->over.before++;
    gs_lock_take(&share->lock);
    holder->flush = (struct gs_flush){0};
    gs_lock_release(&share->lock);
    holder->recalls_due = 0;
    holder->awaits_room = false;
}

static void watch(struct gs_share *share, const struct gs_client *client)
{
    if (client->fd >= 0)
        gs_watch(share, GS_WATCH_CHANGE, client->fd, GS_WATCH_READ, GS_WATCH_CLIENT, client->id);
}

static void swap_connections(struct gs_share *share, struct gs_client *holder,
                             struct gs_client *client)
{
    const struct gs_client was = *holder;

    holder->fd = client->fd;
    holder->kept_fd = client->kept_fd;
    holder->was_sent_fd = client->was_sent_fd;
    client->fd = was.fd;
    client->kept_fd = was.kept_fd;
    client->was_sent_fd = was.was_sent_fd;
    watch(share, holder);
    watch(share, client);
    if (gs_client_has_pidfd(holder) || client->pidfd < 0)
        return;
    holder->pidfd = client->pidfd; /* the program may have closed the other one */
    holder->kept_pidfd = client->kept_pidfd;
    client->pidfd = -1;
    gs_watch(share, GS_WATCH_CHANGE, holder->pidfd, GS_WATCH_READ, GS_WATCH_PIDFD, holder->id);
}

static void drop_unnamed(struct gs_share *share, struct gs_client *holder)
{
    if (holder->said.holds == 0)
        gs_references_drop(share, holder, false);
}

static void take_over(struct gs_share *share, struct gs_client *holder, struct gs_client *client)
{
    forget_said(share, holder);
    swap_connections(share, holder, client);
    holder->due_ns = client->due_ns;
    holder->over.late = false;
    holder->said.number = client->said.number;
    holder->said.holds = client->said.holds;
    drop_unnamed(share, holder);
}

bool gs_client_comes_back(struct gs_share *share, struct gs_client *client)
{
    struct gs_client *holder = holder_of(share, client);

    if (!holder)
        return false;
    if ((int32_t)(client->said.number - holder->said.number) >= 0)
        take_over(share, holder, client);
    holder->said.forked |= client->fd >= 0 && !gs_conn_hung_up(client->fd);
    return true;
}

bool gs_client_resumes(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_close *resume)
{
    struct gs_reference *reference;
    bool is_new;

    if (!client->greeted || client->said.holds == 0)
        return gs_client_fault(client, "it names more than it said that it holds");
    HASH_FIND(hh, client->references, &resume->block_id, sizeof resume->block_id, reference);
    if (reference) { /* else it is another user's by now, say, and the lease that one's */
        reference->generation = resume->head.request;
        reference->recall = GS_RECALL_NONE;
        gs_reference_add(share, client, reference->export, &is_new);
    }
    client->said.holds--;
    drop_unnamed(share, client);
    return true;
}

bool gs_client_is_let_in(struct gs_share *share, struct gs_client *client)
{
    if (!client->over.uncounted)
        return true;
    gs_client_refuse(share, client, 0, GS_REFUSED_BUSY, 0);
    gs_client_say_bye(client);
    return false;
}
