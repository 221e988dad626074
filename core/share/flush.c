/*
 * Whether what a program has closed has been given back. An exporter whose GPU is full must not
 * fail beside memory that is on its way: freed by its own program and closed by the opener's, but
 * not given back yet, since the opener's thread has GPU work to see end before.
 *
 *   exporter: the GPU is full          opener
 *   FLUSH ──── behind all RECALLs ───► what is recalled and closed goes back: CLOSE, or CACHE
 *   has all of it  ◄──── FLUSHED ───── then; what the program still has open is not waited for
 *
 * Who holds something freed is asked, and waited for; one that has hung up until its lease has
 * ended, or GS_LOOK_NS. One that did not answer in time (it is stopped, or means harm) is not waited for again
 * before it does. So a wait here is ended by the opener's thread or by its end, and is SILENT_NS
 * long at most, or what the rest after a hang-up takes, but no more than ENDING_NS. What has ended and
 * the arenas have not been told of is waited for until the share thread has told, or as long as the
 * caller says.
 */
#include "core/share/exporter.h"

#define SILENT_NS (GS_NS_PER_S / 2)
#define ENDING_NS (2 * GS_NS_PER_S)

/* ---- Exporter: the share thread ------------------------------------------------------------- */

static bool references_freed(struct gs_share *share, const struct gs_client *client)
{
    const struct gs_reference *reference = client->references;

    gs_lock_take(&share->lock);
    while (reference && !reference->export->freed_ns)
        reference = reference->hh.next;
    gs_lock_release(&share->lock);
    return reference != NULL;
}

/* Called with the lock held. */
static void set_awaited_locked(struct gs_share *share, struct gs_client *client, bool awaited)
{
    if (client->flush.awaited == awaited)
        return;
    client->flush.awaited = awaited;
    share->asked.flush_awaited += awaited ? 1 : -1;
    if (!awaited)
        gs_cond_wake_all(&share->asked.given_back);
}

static void set_awaited(struct gs_share *share, struct gs_client *client, bool awaited)
{
    gs_lock_take(&share->lock);
    set_awaited_locked(share, client, awaited);
    gs_lock_release(&share->lock);
}

/* Sends FLUSH, behind what is due already. Whether the client can be expected to answer. */
static bool ask(struct gs_share *share, struct gs_client *client, uint64_t now)
{
    if (client->flush.number) {
        client->flush.again = true;
        return now - client->flush.since_ns < SILENT_NS;
    }
    client->flush.number = ++share->asked.flushes_sent;
    client->flush.again = false;
    client->flush.since_ns = now;
    client->flush.due = true;
    client->recalls_due++;
    gs_client_send_due(share, client);
    return true;
}

void gs_flush_work(struct gs_share *share, uint64_t now)
{
    struct gs_client *client, *next;
    uint64_t wanted, ends = now;
    bool recalling;

    gs_lock_take(&share->lock);
    wanted = share->asked.flush_wanted;
    recalling = share->exporter.work[GS_WORK_RECALL].first != NULL;
    gs_lock_release(&share->lock);
    if (wanted == share->asked.flush_begun ||
        recalling) /* those come first: again in the next round */
        return;
    HASH_ITER(hh, share->clients.first, client, next)
    {
        if (client->over.late || !references_freed(share, client))
            continue;
        if (client->fd >= 0) {
            set_awaited(share, client, ask(share, client, now));
        } else {
            set_awaited(share, client, true);
            ends = client->due_ns > ends ? client->due_ns : ends;
        }
    }
    gs_lock_take(&share->lock);
    share->asked.flush_begun = wanted;
    share->asked.flush_ends_ns = ends;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
}

bool gs_flush_answered(struct gs_share *share, struct gs_client *client, uint64_t number)
{
    bool again = client->flush.again;

    if (!client->flush.number || number != client->flush.number)
        return gs_client_fault(client, "it answers what it was not asked");
    client->flush.number = 0;
    set_awaited(share, client, again && ask(share, client, gs_now_ns()));
    return true;
}

void gs_flush_hung_up(struct gs_share *share, struct gs_client *client)
{
    gs_lock_take(&share->lock);
    if (client->flush.awaited && client->due_ns > share->asked.flush_ends_ns)
        share->asked.flush_ends_ns = client->due_ns;
    gs_lock_release(&share->lock);
}

void gs_flush_client_gone(struct gs_share *share, struct gs_client *client)
{
    if (client->flush.awaited)
        set_awaited(share, client, false);
}

/* ---- Exporter: who waits -------------------------------------------------------------------- */

/* What somebody waits for. */
struct wait {
    const unsigned char *uuid;
    uint64_t begun_ns, limit_ns;
    uint64_t number; /* in flush_wanted */
};

/* Called with the lock held. How long the blocks themselves are waited for: what was freed a moment
 * ago, what the share thread is at, and whose end is being told or is still to be told of. 0: not at
 * all. */
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

/* The same for those who hold them. */
static uint64_t holders_until_locked(const struct gs_share *share, const struct wait *wait)
{
    uint64_t until = wait->begun_ns + SILENT_NS;

    if (share->asked.flush_begun >= wait->number && share->asked.flush_awaited == 0)
        return 0;
    if (share->asked.flush_begun >= wait->number && share->asked.flush_ends_ns + SILENT_NS > until)
        until = share->asked.flush_ends_ns + SILENT_NS;
    return until < wait->begun_ns + ENDING_NS ? until : wait->begun_ns + ENDING_NS;
}

void gs_share_await_given_back(struct gs_share *share, const unsigned char uuid[16],
                               uint64_t limit_ns)
{
    struct wait wait = {.uuid = uuid, .begun_ns = gs_now_ns(), .limit_ns = limit_ns};
    uint64_t now = wait.begun_ns, blocks, holders;
    bool any;

    gs_lock_take(&share->lock);
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
        if (any)
            gs_wait_given_back_locked(share, blocks);
        now = gs_now_ns();
    }
    gs_lock_release(&share->lock);
}
