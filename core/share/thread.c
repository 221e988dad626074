/*
 * The share thread: serves importers, sees leases end, and carries back what this process has
 * closed. It sleeps in its loop (loop.c) unless something is due; a busy client gets a bounded
 * share of each round, so none can keep the others waiting.
 */
#include "core/share/cluster.h"
#include "core/share/importer.h"

/* Whether the program has closed something: nothing is told of that, so it is looked for now and
 * then while there is something to do in any case. */
static void look(struct gs_share *share)
{
    gs_remotes_look(share);
    gs_socket_look(share);
}

void gs_thread_event(struct gs_share *share, enum gs_watch kind, uint64_t id)
{
    union gs_wire_message message;

    switch (kind) {
    case GS_WATCH_WAKE:
        look(share);
        break; /* what it is about is done in the tick */
    case GS_WATCH_LISTENER:
        look(share);
        gs_clients_accept(share);
        break;
    case GS_WATCH_PLACE:
        gs_socket_event(share);
        break;
    case GS_WATCH_CLIENT:
        gs_client_readable(share, id);
        break;
    case GS_WATCH_PIDFD:
        gs_client_exited(share, id);
        break;
    case GS_WATCH_BROKER:
        if (gs_broker_event(share, &message))
            gs_cluster_hold_came(share, &message);
        break;
    case GS_WATCH_REMOTE:
        gs_remote_event(share, id);
        break;
    }
}

uint64_t gs_thread_tick(struct gs_share *share, uint64_t now)
{
    uint64_t due = gs_exports_work(share, now);

    gs_flush_work(share, now);
    gs_pleas_work(share);
    gs_sooner(&due, gs_clients_tick(share, now));
    gs_sooner(&due, gs_closing_tick(share, now));
    gs_sooner(&due, gs_graces_tick(share, now));
    gs_sooner(&due, gs_limbo_tick(share, now));
    gs_sooner(&due, gs_socket_tick(share, now));
    if (share->options.is_broker) {
        gs_sooner(&due, gs_broker_tick(share, now));
        gs_sooner(&due, gs_cluster_tick(share, now));
    }
    if (share->options.broker)
        gs_sooner(&due, gs_broker_look(share, now));
    return gs_exports_tell(share) ? now : due;
}
