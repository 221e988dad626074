/* Exporter: who has memory that the program has freed, in words for its log. */
#include "core/share/cluster.h"

#include <string.h>

/* Of what is freed; with a chunk, of that alone, whatever the device. */
static struct gs_share_holder look_at_locked(struct gs_share *share, const struct gs_client *client,
                                             const struct gs_which *which)
{
    struct gs_share_holder holder;
    struct gs_wire_report row = {0};

    gs_report_row_locked(share, client, which, gs_now_ns(), &row);
    holder = (struct gs_share_holder){.pid = client->pid,
                                      .bytes = row.reference_bytes,
                                      .held_ns = row.reference_age_ns,
                                      /* Whether it is is not known yet: none of another PID
                                       * namespace. */
                                      .stopped = client->is_seen};
    memcpy(holder.name, row.client_name, sizeof holder.name);
    return holder;
}

/* What the broker has it hold for other machines, whichever: gpushim cluster tells. */
static struct gs_share_holder look_cluster_locked(const struct gs_share *share,
                                                  const unsigned char *uuid, uint64_t chunk_id)
{
    struct gs_share_holder cluster = {.name = "other machines"};
    const uint64_t now = gs_now_ns();
    const struct gs_export *export = gs_export_oldest(share, GS_EXPORT_LIMBO);

    for (; export; export = export->newer) {
        if (!export->far || !export->far->held || !gs_is_of_device(uuid, export->source.uuid) ||
            (chunk_id && export->source.chunk_id != chunk_id))
            continue;
        cluster.bytes += export->source.size;
        if (now - export->freed_ns > cluster.held_ns)
            cluster.held_ns = now - export->freed_ns;
    }
    return cluster;
}

static void enter(struct gs_share_held *held, const struct gs_share_holder *holder)
{
    unsigned at = held->holders < GS_SHARE_HOLDERS ? held->holders : GS_SHARE_HOLDERS;

    if (holder->bytes == 0)
        return;
    held->holders++;
    held->bytes += holder->bytes;
    while (at > 0 && held->most[at - 1].bytes < holder->bytes) {
        if (at < GS_SHARE_HOLDERS)
            held->most[at] = held->most[at - 1];
        at--;
    }
    if (at < GS_SHARE_HOLDERS)
        held->most[at] = *holder;
}

void gs_share_held(struct gs_share *share, const unsigned char uuid[16], uint64_t chunk_id,
                   struct gs_share_held *ret_held)
{
    const struct gs_which which = {.uuid = uuid, .chunk_id = chunk_id, .freed = true};
    struct gs_share_holder holder;
    const struct gs_client *client;

    *ret_held = (struct gs_share_held){.holders = 0};
    gs_lock_take(&share->lock);
    for (client = share->clients.first; client; client = client->hh.next) {
        holder = look_at_locked(share, client, &which);
        enter(ret_held, &holder);
    }
    holder = look_cluster_locked(share, uuid, chunk_id);
    enter(ret_held, &holder);
    gs_lock_release(&share->lock);
    for (unsigned i = 0; i < GS_SHARE_HOLDERS; i++) {
        struct gs_share_holder *most = &ret_held->most[i];

        most->stopped = most->stopped && gs_alive_is_stopped(most->pid);
        ret_held->any_stopped |= most->stopped;
    }
}
