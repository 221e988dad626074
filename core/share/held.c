/*
 * Exporter: who has memory that the program has freed, in words for its log. Clients are the share
 * thread's, so that tells: whoever asks waits for it, GS_SHARE_TELL_NS at most.
 */
#include "core/share/afar.h"

#include <string.h>

/* `chunk_id`: of that alone, whatever the device; 0: of all. */
static void look_at(struct gs_share *share, const struct gs_client *client,
                    const unsigned char *uuid, uint64_t chunk_id, uint64_t now,
                    struct gs_share_holder *ret)
{
    const uint64_t count = ++share->clients.counts;
    const struct gs_reference *reference;

    *ret = (struct gs_share_holder){.pid = client->pid};
    memcpy(ret->name, client->said.name, sizeof ret->name);
    for (reference = client->references; reference; reference = reference->hh.next) {
        const struct gs_export *export = reference->export;

        if (!__atomic_load_n(&export->freed_ns, __ATOMIC_RELAXED) ||
            !gs_is_of_device(uuid, export->source.uuid) ||
            (chunk_id && export->source.chunk_id != chunk_id))
            continue;
        ret->bytes += gs_export_bytes(export, count);
        if (now - reference->since_ns > ret->held_ns)
            ret->held_ns = now - reference->since_ns;
    }
    if (!chunk_id)
        ret->mapped = gs_mapping_unanswered(share, client, uuid);
}

static void enter(struct gs_share_held *held, const struct gs_share_holder *holder)
{
    unsigned at = held->holders < GS_SHARE_HOLDERS ? held->holders : GS_SHARE_HOLDERS;

    held->holders++;
    held->bytes += holder->bytes;
    held->mapped += holder->mapped;
    held->any_stopped |= holder->stopped;
    while (at > 0 && held->most[at - 1].bytes + held->most[at - 1].mapped <
                         holder->bytes + holder->mapped) {
        if (at < GS_SHARE_HOLDERS)
            held->most[at] = held->most[at - 1];
        at--;
    }
    if (at < GS_SHARE_HOLDERS)
        held->most[at] = *holder;
}

/* What the broker has it hold for other machines, whichever: gpushim cluster tells. */
static void look_afar(struct gs_share *share, const unsigned char *uuid, uint64_t now,
                      struct gs_share_holder *ret)
{
    const struct gs_export *export;

    *ret = (struct gs_share_holder){.name = "other machines"};
    gs_lock_take(&share->lock);
    for (export = gs_export_oldest(share, GS_EXPORT_LIMBO); export; export = export->newer) {
        if (!export->far || !export->far->held || !gs_is_of_device(uuid, export->source.uuid))
            continue;
        ret->bytes += export->source.size;
        if (now - export->freed_ns > ret->held_ns)
            ret->held_ns = now - export->freed_ns;
    }
    gs_lock_release(&share->lock);
}

void gs_held_work(struct gs_share *share, uint64_t now)
{
    struct gs_share_held held = {0};
    const struct gs_client *client;
    unsigned char uuid[16];
    uint64_t wanted, chunk_id;
    bool any_device;

    gs_lock_take(&share->lock);
    wanted = share->asked.held_wanted;
    any_device = share->asked.held_any_device;
    chunk_id = share->asked.held_chunk_id;
    memcpy(uuid, share->asked.held_uuid, sizeof uuid);
    gs_lock_release(&share->lock);
    if (wanted == share->asked.held_told)
        return;
    for (client = share->clients.first; client; client = client->hh.next) {
        struct gs_share_holder holder;

        look_at(share, client, any_device ? NULL : uuid, chunk_id, now, &holder);
        if (holder.bytes == 0 && holder.mapped == 0)
            continue;
        holder.stopped = client->is_seen && gs_alive_is_stopped(client->pid);
        enter(&held, &holder);
    }
    if (share->options.cluster) {
        struct gs_share_holder afar;

        look_afar(share, any_device ? NULL : uuid, now, &afar);
        if (afar.bytes > 0)
            enter(&held, &afar);
    }
    gs_lock_take(&share->lock);
    share->asked.held = held;
    share->asked.held_told = wanted;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
}

/* Called with the lock held. Else there is nothing to be told, nor to wait for. */
static bool has_any_locked(const struct gs_share *share, const unsigned char *uuid)
{
    const struct gs_export *export = gs_export_oldest(share, GS_EXPORT_LIMBO);

    while (export && (!export->limbo_held || !gs_is_of_device(uuid, export->source.uuid)))
        export = export->newer;
    return export || gs_mapping_any_asked_locked(share, uuid);
}

static void ask(struct gs_share *share, const unsigned char *uuid, uint64_t chunk_id,
                struct gs_share_held *ret_held)
{
    uint64_t end = gs_now_ns() + GS_SHARE_TELL_NS, wanted;
    bool more;

    memset(ret_held, 0, sizeof *ret_held);
    gs_lock_take(&share->lock);
    more = share->thread_start == GS_STARTED && has_any_locked(share, uuid) &&
           !gs_background_is_this(&share->loop.background);
    if (more) {
        wanted = ++share->asked.held_wanted;
        share->asked.held_any_device = uuid == NULL;
        share->asked.held_chunk_id = chunk_id;
        if (uuid)
            memcpy(share->asked.held_uuid, uuid, sizeof share->asked.held_uuid);
        gs_thread_wake(share);
        while (share->asked.held_told < wanted && more)
            more = gs_wait_given_back_locked(share, end);
        if (share->asked.held_told >= wanted)
            *ret_held = share->asked.held;
    }
    gs_lock_release(&share->lock);
}

void gs_share_held(struct gs_share *share, const unsigned char uuid[16],
                   struct gs_share_held *ret_held)
{
    ask(share, uuid, 0, ret_held);
}

void gs_share_held_of(struct gs_share *share, uint64_t chunk_id, struct gs_share_held *ret_held)
{
    ask(share, NULL, chunk_id, ret_held);
}
