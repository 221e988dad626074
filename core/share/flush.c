/*
 * Exporter: memory that others have closed, and that is wanted back.
 *
 * An exporter whose GPU is full must not fail beside memory that is on its way: freed by its own
 * program and closed by the importer's, but not given back yet, since the importer's thread has GPU
 * work to see end before.
 *
 *   exporter: the GPU is full                    importer
 *   FLUSH ────── behind all RECALLs ───────────► what is recalled and closed goes back: CLOSE
 *   has all of it        ◄─── FLUSHED ────────── when none of it is on its way
 *
 * An allocation that finds the GPU full waits for that, and who is to sleep, which recalls all that
 * others have; nothing else does. What the importer's program has open is not waited for. One that
 * has hung up is waited for until its lease has ended, or GS_LOOK_NS. One that did not answer in
 * time (it is stopped, or means harm) is not waited for again before it does. So a wait here is
 * ended by the importer's thread or by its end, and is SILENT_NS long at most, or ENDING_NS beside
 * one that has hung up. What has ended and the arenas have not been told of is waited for until the
 * share thread has told, or as long as the caller says.
 */
#include "core/share/exporter.h"
#include "core/share/let_go.h"

#include <string.h>

#define SILENT_NS (GS_NS_PER_S / 2)
#define ENDING_NS (2 * GS_NS_PER_S)

bool gs_is_of_device(const unsigned char uuid[16], const unsigned char device[16])
{
    return !uuid || memcmp(uuid, device, 16) == 0;
}

/* ---- Asking: the share thread ---------------------------------------------------------------- */

static bool holds_recalled_locked(const struct gs_client *client)
{
    const struct gs_reference *reference = client->references;

    while (reference && !reference->export->recalled)
        reference = reference->hh.next;
    return reference != NULL;
}

bool gs_flush_send(struct gs_client *client)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_FLUSH, 0);
    message.flush.number = client->flush.number;
    return gs_client_call_back(client, &message);
}

/* It is to be sent FLUSH, behind what is due already. */
static void ask_locked(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    struct gs_flush *flush = &client->flush;

    flush->number = ++share->asked.flushes_sent;
    flush->open = flush->due = true;
    flush->again = false;
    flush->since_ns = now;
    client->recalls_due++;
}

/* One question at a time: where there is one, the next follows its answer. */
static void look_at_locked(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    if (client->over.late || !holds_recalled_locked(client))
        return;
    client->flush.awaited = true;
    if (client->flush.open)
        client->flush.again = true;
    else if (client->fd >= 0)
        ask_locked(share, client, now);
}

void gs_flush_work(struct gs_share *share, uint64_t now)
{
    struct gs_client *client, *next;
    bool wanted;

    gs_lock_take(&share->lock);
    /* RECALLs come first: again in the next round. */
    wanted = share->asked.flush_wanted != share->asked.flush_begun &&
             !share->exporter.work[GS_WORK_RECALL];
    if (!wanted) {
        gs_lock_release(&share->lock);
        return;
    }
    for (client = share->clients.first; client; client = client->hh.next)
        look_at_locked(share, client, now);
    share->asked.flush_begun = share->asked.flush_wanted;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
    HASH_ITER(hh, share->clients.first, client, next) {
        if (client->flush.due)
            gs_client_send_due(share, client);
    }
}

bool gs_flush_answered(struct gs_share *share, struct gs_client *client,
                       const struct gs_wire_flush *answer)
{
    struct gs_flush *flush = &client->flush;

    if (!flush->open || flush->due || answer->number != flush->number)
        return gs_client_fault(client, "it answers what it was not asked");
    gs_lock_take(&share->lock);
    flush->open = false;
    flush->awaited = flush->again;
    if (flush->again)
        ask_locked(share, client, gs_now_ns());
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
    if (flush->due)
        gs_client_send_due(share, client);
    return true;
}

void gs_flush_hung_up(struct gs_share *share, struct gs_client *client)
{
    gs_lock_take(&share->lock);
    client->flush.hung_up = true;
    gs_lock_release(&share->lock);
}

void gs_flush_client_gone(struct gs_share *share, struct gs_client *client)
{
    gs_lock_take(&share->lock);
    client->flush.awaited = false;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
}

/* ---- Who waits: any other thread, the lock held ---------------------------------------------- */

/* What somebody waits for. */
struct wait {
    const unsigned char *uuid;
    uint64_t begun_ns, limit_ns;
    uint64_t number; /* in flush_wanted */
};

/* Those who hold what was recalled. */
static uint64_t holders_until_locked(const struct gs_share *share, const struct wait *wait)
{
    const struct gs_client *client;
    uint64_t until = 0;

    if (share->asked.flush_begun < wait->number)
        return wait->begun_ns + SILENT_NS;
    for (client = share->clients.first; client; client = client->hh.next) {
        const struct gs_flush *flush = &client->flush;
        bool is_asked = flush->open && flush->since_ns < wait->begun_ns;
        uint64_t at = flush->hung_up ? wait->begun_ns + ENDING_NS
                                     : (is_asked ? flush->since_ns : wait->begun_ns) + SILENT_NS;

        if (flush->awaited && at > until)
            until = at;
    }
    return until;
}

/* How long the blocks themselves are waited for: what was freed a moment ago, what the share thread
 * is at, and whose end is being told or is still to be told of. 0: not at all. */
static uint64_t blocks_until_locked(const struct gs_share *share, const struct wait *wait,
                                    uint64_t now, bool *ret_any)
{
    const struct gs_export *oldest = gs_export_oldest(share, GS_EXPORT_LIMBO);
    const struct gs_export *export = oldest ? oldest->older : NULL; /* that is, the newest */
    uint64_t end = wait->begun_ns + wait->limit_ns, until;

    *ret_any = share->exporter.telling > 0 || gs_export_oldest(share, GS_EXPORT_ENDED);
    if (*ret_any && end > now)
        return end;
    for (; export; export = export == oldest ? NULL : export->older) {
        if (!gs_is_of_device(wait->uuid, export->source.uuid))
            continue;
        *ret_any = true;
        until = export->pins > 0 ? end : export->freed_ns + wait->limit_ns;
        if (until > now)
            return until < end ? until : end;
    }
    return 0;
}

void gs_share_await_given_back(struct gs_share *share, const unsigned char uuid[16],
                               uint64_t limit_ns)
{
    struct wait wait = {.uuid = uuid, .begun_ns = gs_now_ns(), .limit_ns = limit_ns};
    uint64_t now = wait.begun_ns, blocks, holders;
    bool any;
    GS_HOLDING(&share->lock);

    blocks_until_locked(share, &wait, now, &any);
    if (share->thread_start == GS_STARTED && gs_background_is_this(&share->loop.background))
        any = false; /* the thread that others wait for here */
    if (any) {
        wait.number = ++share->asked.flush_wanted;
        gs_thread_wake(share);
    }
    while (any) {
        blocks = blocks_until_locked(share, &wait, now, &any);
        holders = holders_until_locked(share, &wait);
        if (holders > blocks)
            blocks = holders;
        any = any && blocks > now;
        if (any) /* the share thread ends it, by what other processes say */
            gs_cond_wait_until(&share->asked.given_back, &share->lock, blocks);
        now = gs_now_ns();
    }
}

void gs_share_await_recalled(struct gs_share *share)
{
    struct wait wait = {.begun_ns = gs_now_ns()};
    uint64_t until;
    GS_HOLDING(&share->lock);

    wait.number = ++share->asked.flush_wanted;
    gs_thread_wake(share);
    while ((until = holders_until_locked(share, &wait)) > gs_now_ns())
        gs_cond_wait_until(&share->asked.given_back, &share->lock, until);
}
