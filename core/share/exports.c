/* Exporter: the blocks of this process that others may open (core/share/share.h). */
#include "core/base/list.h"
#include "core/share/cluster.h"
#include "core/share/let_go.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORK_MAX  64 /* in one round */
#define CALM_NS   GS_NS_PER_MS
#define PINNED_NS (GS_NS_PER_MS / 5) /* between looks at what the share thread is at */

static bool write_ipc_handle(struct gs_share *share, struct gs_export *export)
{
    struct gs_ipc_handle ipc_handle = {.block_id = export->key.id,
                                       .chunk_id = export->source.chunk_id,
                                       .size = export->source.size};

    memcpy(ipc_handle.instance, share->instance, sizeof ipc_handle.instance);
    if (!gs_random(ipc_handle.secret, sizeof ipc_handle.secret))
        return false;
    gs_ipc_handle_write(&ipc_handle, export->ipc_handle);
    return true;
}

/* Makes a descriptor of the chunk for whoever opens it first. False: it had been. */
static bool prepare(struct gs_share *share, struct gs_export *export)
{
    bool fresh;
    struct gs_fd fd;

    if (__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE) || !gs_chunk_fd_wanted(share, export) ||
        gs_piece_fd(share, export, 0, &fd, &fresh) != CUDA_SUCCESS || !fresh)
        return false;
    gs_piece_fd_keep(share, export, 0, &fd);
    return true;
}

static struct gs_export *next_work(struct gs_share *share, enum gs_work work)
{
    struct gs_export **first = &share->exporter.work[work], *export;
    GS_HOLDING(&share->lock);

    export = *first;
    if (export) {
        DL_DELETE2(*first, export, work_before[work], work_behind[work]);
        export->work_before[work] = NULL; /* it can be asked again; the pin is ours */
    }
    return export;
}

/*
 * Makes a descriptor of one chunk, which takes tens of microseconds in the driver: who asks comes
 * in between. And the driver's calls of one process hold up those of another (measured on an H200:
 * an open takes 153 us beside such calls and 86 us without), so while somebody opens there is one
 * after each open, most likely of what is opened next (1,000 in a row take 99 us each so, and 114
 * where each waits for its own). A broker does not wait: its process may be killed.
 */
static uint64_t make_next_fd(struct gs_share *share, uint64_t now)
{
    struct gs_export *export;
    bool exported = false;

    if (now - share->exporter.served_ns < CALM_NS && now - share->exporter.ahead_ns < CALM_NS &&
        share->exporter.ahead_ns >= share->exporter.served_ns)
        return share->exporter.ahead_ns + CALM_NS;
    for (int i = 0; i < WORK_MAX && !exported; i++) {
        export = next_work(share, GS_WORK_CHUNK_FD);
        if (!export)
            return GS_NEVER;
        gs_thread_expect(share, now + GS_EXPORTED_NS);
        exported = prepare(share, export);
        gs_export_unpin(share, export, false);
    }
    if (exported)
        share->exporter.ahead_ns = now;
    return now;
}

uint64_t gs_exports_work(struct gs_share *share, uint64_t now)
{
    struct gs_export *export;

    for (int i = 0; i < WORK_MAX; i++) {
        export = next_work(share, GS_WORK_RECALL);
        if (!export)
            return make_next_fd(share, now);
        gs_clients_recall(share, export);
        gs_export_unpin(share, export, false);
    }
    return now;
}

static void export_free(struct gs_export *export)
{
    gs_share_strip_unref(export->source.strip);
    free(export->far);
    free(export);
}

void gs_export_recall_locked(struct gs_share *share, struct gs_export *export)
{
    if (export->recalled || export->references == 0)
        return;
    export->recalled = true;
    gs_export_ask_locked(share, export, GS_WORK_RECALL);
}

static gs_status no_host_memory(struct gs_share *share)
{
    gs_say_not_exported(share, "no host memory is left");
    return GS_NO_HOST_MEMORY;
}

gs_status gs_share_export(struct gs_share *share, const struct gs_share_source *source,
                          struct gs_export **ret_export)
{
    int saved = errno;
    char reason[GS_REASON_SIZE];
    struct gs_export *export;
    gs_status status;

    gs_say_used(share);
    if (!share->options.enable)
        return gs_say_not_exported(share, "share.enable is off");
    if (share->options.isolate && !source->alone) {
        snprintf(
            reason, sizeof reason,
            "a block of %zu bytes lies with others in one chunk and share.isolate is on; place "
            "blocks alone (share.isolate = alone)",
            source->size);
        return gs_say_not_exported(share, reason);
    }
    status = gs_share_serve(share); /* where it is lost it is put up again, refused or not */
    if (status == GS_OK && gs_limbo_is_full(share))
        status = gs_say_not_exported(
            share, "as much memory is freed and still held by other processes as may be "
                   "(debug.limbo_limit); have them close it, or end them");
    export = status == GS_OK ? calloc(1, sizeof *export) : NULL;
    errno = saved;
    if (!export)
        return status == GS_OK ? no_host_memory(share) : status;
    export->source = *source;
    export->source.read_only |= share->options.read_only;
    export->made_ns = gs_now_ns();
    export->key = gs_ipc_key(share->instance,
                             __atomic_add_fetch(&share->exporter.next_export, 1, __ATOMIC_RELAXED));
    if (!write_ipc_handle(share, export)) {
        gs_say_not_exported(share, "the kernel gives no random bytes for its handle (getrandom); "
                                   "allow that call (seccomp)");
        free(export);
        errno = saved;
        return GS_NO_RANDOM;
    }
    if (!gs_export_enter(share, export)) {
        free(export);
        return no_host_memory(share);
    }
    if (gs_export_is_strip(export))
        gs_share_strip_ref(export->source.strip);
    *ret_export = export;
    return GS_OK;
}

void gs_share_given_out(struct gs_share *share, struct gs_export *export)
{
    int saved = errno;

    bool ahead = share->options.export_ahead && !gs_export_is_strip(export);

    if ((!ahead && !share->options.broker) || gs_export_is_own(export))
        return;
    gs_lock_take(&share->lock);
    if (ahead)
        gs_export_ask_locked(share, export, GS_WORK_CHUNK_FD);
    if (share->options.broker)
        gs_broker_offer_locked(share, export);
    gs_lock_release(&share->lock);
    errno = saved;
}

void gs_export_handle(const struct gs_export *export,
                      unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    memcpy(ret_ipc_handle, export->ipc_handle, GS_IPC_HANDLE_SIZE);
}

void gs_grant_start(union gs_wire_message *message, const struct gs_export *export, bool far,
                    uint32_t request)
{
    const struct gs_share_source *source = &export->source;
    struct gs_wire_grant *grant = &message->grant;

    gs_wire_start(message, GS_WIRE_GRANT, request);
    grant->block_id = export->key.id;
    grant->chunk_id = source->chunk_id;
    grant->chunk_size = source->chunk_size;
    grant->offset = source->offset;
    grant->size = source->size;
    grant->read_only = source->read_only;
    grant->pieces = gs_export_pieces(export);
    grant->own = gs_export_is_own(export);
    if (source->behind) {
        grant->host = source->behind->host;
        grant->fd_offset = source->behind->offset;
    }
    memcpy(grant->uuid, source->uuid, sizeof grant->uuid);
    grant->far = far;
    if (far)
        memcpy(grant->fabric, export->far->fabric, GS_FABRIC_SIZE);
}

void gs_share_message_start(union gs_wire_message *message, const struct gs_export *export,
                            bool held)
{
    struct gs_wire_share *shared = &message->share;

    gs_wire_start(message, GS_WIRE_SHARE, 0);
    memcpy(shared->ipc_handle, export->ipc_handle, GS_IPC_HANDLE_SIZE);
    shared->chunk_size = export->source.chunk_size;
    shared->offset = export->source.offset;
    memcpy(shared->uuid, export->source.uuid, sizeof shared->uuid);
    shared->read_only = export->source.read_only;
    if (!export->far)
        return;
    shared->far = 1;
    shared->held = held;
    memcpy(shared->fabric, export->far->fabric, GS_FABRIC_SIZE);
}

bool gs_export_enter(struct gs_share *share, struct gs_export *export)
{
    GS_HOLDING(&share->lock);

    HASH_ADD(hh, share->exporter.exports, key, sizeof export->key, export);
    return export->hh.tbl != NULL;
}

/* False: there is none. */
static bool next_ended(struct gs_share *share, uint64_t *ret_address)
{
    struct gs_export *export;
    GS_HOLDING(&share->lock);

    export = gs_export_oldest(share, GS_EXPORT_ENDED);
    if (!export)
        return false;
    *ret_address = export->source.address; /* the export may go as soon as the lock is let go */
    gs_export_told_locked(share, export);
    share->exporter.telling++;
    return true;
}

static void is_told(struct gs_share *share)
{
    gs_lock_take(&share->lock);
    share->exporter.telling--;
    gs_cond_wake_all(&share->asked.given_back);
    gs_lock_release(&share->lock);
}

bool gs_exports_tell(struct gs_share *share)
{
    uint64_t address;

    for (int i = 0; i < WORK_MAX; i++) {
        if (!next_ended(share, &address))
            return false;
        if (!__atomic_load_n(&share->ending, __ATOMIC_ACQUIRE))
            share->events.lease_ended(share->events.arg, address);
        is_told(share);
    }
    return true;
}

/* Each is there once at the time of the call: others' ends that come meanwhile are not waited
 * for. */
void gs_share_tell(struct gs_share *share)
{
    unsigned rounds;

    gs_lock_take(&share->lock);
    rounds = gs_export_oldest(share, GS_EXPORT_ENDED)
                 ? HASH_COUNT(share->exporter.exports) / WORK_MAX + 1
                 : 0;
    gs_lock_release(&share->lock);
    while (rounds-- > 0 && gs_exports_tell(share))
        continue;
}

/* Frees a strip that has gone, and that nobody holds or is at any more. */
static void end_own_locked(struct gs_share *share, struct gs_export *export)
{
    if (!export->freed_ns || export->references > 0 || export->pins > 0)
        return;
    gs_export_told_locked(share, export);
    HASH_DEL(share->exporter.exports, export);
    export_free(export);
}

void gs_share_freed(struct gs_share *share, struct gs_export *export, uint64_t freed_ns)
{
    GS_HOLDING(&share->lock);

    export->freed_ns = freed_ns;
    export->in_grace = share->options.grace_ns > 0;
    gs_export_recall_locked(share, export);
    gs_limbo_note_locked(share, export);
    if (gs_names_end_locked(share, export))
        gs_thread_wake(share);
    if (gs_export_is_own(export))
        end_own_locked(share, export);
}

bool gs_share_recall_all(struct gs_share *share)
{
    struct gs_export *export, *next;
    bool any = false;
    GS_HOLDING(&share->lock);

    HASH_ITER(hh, share->exporter.exports, export, next) {
        if (export->references == export->let_go)
            continue;
        gs_export_recall_locked(share, export);
        any = true;
    }
    return any;
}

bool gs_share_withdraw(struct gs_share *share, struct gs_export *export)
{
    bool held, in_grace, unopened;

    gs_lock_take(&share->lock);
    held = export->references > 0 || export->pins > 0;
    in_grace = export->state == GS_EXPORT_GRACE;
    unopened = export->freed_ns && !export->opened;
    if (in_grace && !export->wanted)
        share->exporter.grace_wanted[export->source.device] += export->source.size;
    export->wanted |= held || in_grace;
    if (held)
        gs_export_recall_locked(share, export);
    else if (!in_grace) {
        gs_names_end_locked(share, export);
        gs_broker_take_back_locked(share, export);
        gs_export_told_locked(share, export);
        gs_cluster_gone_locked(share, export);
        HASH_DEL(share->exporter.exports, export);
    }
    gs_lock_release(&share->lock);
    if (held || in_grace)
        return false;
    if (unopened)
        gs_say_unopened(share);
    export_free(export);
    return true;
}

bool gs_share_export_sleeps(struct gs_share *share, struct gs_export *export)
{
    GS_HOLDING(&share->lock);

    if (share->options.broker || share->options.isolate || export->pins > 0 ||
        export->references > export->let_go)
        return false;
    export->asleep++;
    return true;
}

void gs_share_export_wakes(struct gs_share *share, struct gs_export *export,
                           CUmemGenericAllocationHandle handle)
{
    gs_lock_take(&share->lock);
    export->asleep--;
    if (!export->source.strip)
        export->source.handle = handle;
    gs_lock_release(&share->lock);
}

static bool is_any_pinned_locked(const struct gs_share *share)
{
    const struct gs_export *export = share->exporter.exports;

    while (export && export->pins == 0)
        export = export->hh.next;
    return export;
}

void gs_share_await_unpinned(struct gs_share *share, uint64_t until_ns)
{
    bool pinned;

    do {
        gs_lock_take(&share->lock);
        pinned = is_any_pinned_locked(share);
        gs_lock_release(&share->lock);
        if (pinned)
            gs_rest_ns(PINNED_NS);
    } while (pinned && gs_now_ns() < until_ns);
}

struct gs_export *gs_export_find(struct gs_share *share, const unsigned char *instance,
                                 uint64_t block_id)
{
    GS_HOLDING(&share->lock);

    return gs_export_find_locked(share, instance, block_id);
}

struct gs_export *gs_export_pin(struct gs_share *share,
                                const unsigned char ipc_handle[GS_IPC_HANDLE_SIZE])
{
    struct gs_export *export;
    struct gs_ipc_handle read;

    if (gs_ipc_handle_read(ipc_handle, &read) != GS_OK)
        return NULL;
    GS_HOLDING(&share->lock);
    export = gs_export_find_locked(share, read.instance, read.block_id);
    if (export && (!gs_bytes_equal(ipc_handle, export->ipc_handle, GS_IPC_HANDLE_SIZE) ||
                   gs_export_is_stale(share, export) || gs_strip_is_stale_locked(export)))
        export = NULL;
    if (export)
        gs_export_pin_locked(share, export);
    return export;
}

/* Called with the lock held. A withdrawal may have met what is gone now. */
static void note_unheld(struct gs_share *share, struct gs_export *export)
{
    if (gs_export_is_own(export)) {
        end_own_locked(share, export);
        return;
    }
    if (export->references > 0 || export->pins > 0)
        return;
    if (share->options.is_broker) {
        export->keep_until_ns = gs_now_ns() + share->options.keep_ns;
        gs_cluster_import_unheld(share, export);
    }
}

void gs_export_reference(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    export->references++;
    gs_limbo_note_locked(share, export);
    gs_lock_release(&share->lock);
}

void gs_export_unpin(struct gs_share *share, struct gs_export *export, bool granted)
{
    gs_lock_take(&share->lock);
    export->pins--;
    gs_limbo_note_locked(share, export);
    if (granted) {
        export->opened = true;
        __atomic_store_n(&share->exporter.ever_opened, true, __ATOMIC_RELAXED);
    }
    note_unheld(share, export);
    gs_lock_release(&share->lock);
}

static void drop_locked(struct gs_share *share, struct gs_export *export)
{
    export->references--;
    gs_limbo_note_locked(share, export);
    note_unheld(share, export);
}

void gs_export_drop(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    drop_locked(share, export);
    gs_lock_release(&share->lock);
}

/* ---- Who holds it ---------------------------------------------------------------------------- */

/* The client's reference of it. NULL: no host memory. */
static struct gs_reference *reference_locked(struct gs_client *client, struct gs_export *export,
                                             bool *ret_fresh)
{
    uint64_t block_id = export->key.id;
    struct gs_reference *reference;

    HASH_FIND(hh, client->references, &block_id, sizeof block_id, reference);
    *ret_fresh = !reference;
    if (reference)
        return reference;
    reference = calloc(1, sizeof *reference);
    if (!reference)
        return NULL;
    reference->block_id = block_id;
    reference->export = export;
    reference->since_ns = gs_now_ns();
    HASH_ADD(hh, client->references, block_id, sizeof reference->block_id, reference);
    if (!reference->hh.tbl) {
        free(reference);
        return NULL;
    }
    export->references++;
    return reference;
}

struct gs_reference *gs_reference_add(struct gs_share *share, struct gs_client *client,
                                      struct gs_export *export, bool *ret_fresh)
{
    struct gs_reference *reference;
    GS_HOLDING(&share->lock);

    reference = reference_locked(client, export, ret_fresh);
    if (reference) {
        reference->named = true;
        gs_limbo_note_locked(share, export);
        export->recalled = false; /* the newest holder was not asked */
        if (export->freed_ns || export->wanted)
            gs_export_recall_locked(share, export);
    }
    return reference;
}

void gs_reference_let_go(struct gs_share *share, struct gs_reference *reference, bool let_go)
{
    gs_lock_take(&share->lock);
    reference->export->let_go += let_go;
    reference->export->let_go -= reference->let_go;
    reference->let_go = let_go;
    gs_lock_release(&share->lock);
}

void gs_reference_drop(struct gs_share *share, struct gs_client *client,
                       struct gs_reference *reference)
{
    struct gs_export *export = reference->export;
    GS_HOLDING(&share->lock);

    export->let_go -= reference->let_go;
    client->recalls_due -= reference->recall == GS_RECALL_DUE;
    HASH_DEL(client->references, reference);
    free(reference);
    drop_locked(share, export);
}

void gs_references_drop(struct gs_share *share, struct gs_client *client, bool all)
{
    struct gs_reference *reference, *next;

    HASH_ITER(hh, client->references, reference, next) {
        if (all || !reference->named)
            gs_reference_drop(share, client, reference);
    }
}

void gs_exports_free(struct gs_share *share)
{
    struct gs_export *export, *next;

    HASH_ITER(hh, share->exporter.exports, export, next) {
        HASH_DEL(share->exporter.exports, export);
        export_free(export);
    }
}
