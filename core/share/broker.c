/*
 * Exports published to a broker: a daemon of the same user that has a descriptor of each exported
 * chunk and serves its importers once the exporter has ended.
 *
 *   exporter (publish.c)                          broker (this file; shim/command/broker.c)
 *   first export: connects, starts one if need be
 *   PUBLISH users (+ memfd)        ------->       of whose users it is, and where it confirms
 *                                  <-------       PULL: what is next?
 *   SHARE handle (+ descriptor)    ------->       keeps it; importers go to the exporter meanwhile
 *                                  <-------       PULL block, piece: where it lies across pieces
 *   SHARE handle (+ descriptor)    ------->       it is kept when all of them are here
 *                                  <-------       PULL: what is next?
 *   strikes a block out of the memfd, and then, or with its next answer:
 *   RING                           ------->       reads the memfd: what is not there any more it drops
 *                                  <-------       PULL, and so on
 *   ends, in order or killed       - - - ->       serves what stands in the memfd, for keep_ns
 *                                                 beyond its last importer, to those users
 *
 * What must hold: the broker never serves bytes that have been given to another block, and no
 * exporter ever waits for the broker, which may be stopped. So what may be served is what the
 * exporter confirms in its own memory (confirm.c): struck out there before the block may be used
 * again, and read by the broker once the exporter's end is proven (lives.c), however long that
 * takes. One that has lost its connection and lives on confirms nothing any more as soon as it sees
 * that, and what it does not confirm is dropped. Nothing of a broker that does not ask piles up: it
 * is told one thing at a time, and what the others are is looked for when it asks.
 *
 * A broker that ends takes nobody down: exporters go on by themselves, say so, and leave all they
 * export with the next one, which they start if need be. A new broker has nothing of an exporter's,
 * and the same one that has hung up on it has dropped it: either is told everything anew.
 */
#include "core/share/cluster.h"
#include "core/share/discard.h"
#include "core/share/memory.h"
#include "core/share/importer.h"

#include <stdlib.h>
#include <string.h>

#define SCAN_MIN_NS (10 * GS_NS_PER_MS)
#define READ_MAX    512 /* words of a memfd at once */

const struct gs_driver gs_broker_driver = {0};

static struct gs_published_chunk *chunk_of(const struct gs_export *export)
{
    return (struct gs_published_chunk *)(uintptr_t)export->source.handle;
}

static void chunk_drop(struct gs_share *share, struct gs_published_chunk *chunk)
{
    if (--chunk->exports > 0)
        return;
    HASH_DEL(share->store.published_chunks, chunk);
    for (uint32_t i = 0; i < chunk->came; i++)
        gs_discard(chunk->fds[i]); /* nobody knows what it is of */
    chunk->user->fds -= chunk->fd_count;
    share->store.published_fds -= chunk->fd_count;
    gs_user_reap(share, chunk->user);
    gs_share_strip_unref(chunk->strip);
    free(chunk);
}

/* NULL: no memory. */
static struct gs_published_chunk *chunk_new(struct gs_share *share, struct gs_user *user,
                                            struct gs_ipc_key key, uint32_t pieces)
{
    uint32_t fd_count = pieces ? pieces : 1;
    struct gs_published_chunk *chunk = calloc(1, sizeof *chunk + fd_count * sizeof *chunk->fds);

    if (!chunk)
        return NULL;
    chunk->key = key;
    chunk->fd_count = fd_count;
    if (pieces)
        chunk->strip = calloc(1, sizeof *chunk->strip + pieces * sizeof *chunk->strip->sizes);
    if (chunk->strip) {
        chunk->strip->references = 1;
        chunk->strip->is_block = true;
        chunk->strip->pieces = pieces;
    }
    if (!pieces || chunk->strip)
        HASH_ADD(hh, share->store.published_chunks, key, sizeof chunk->key, chunk);
    if (!chunk->hh.tbl) {
        gs_share_strip_unref(chunk->strip);
        free(chunk);
        return NULL;
    }
    chunk->user = user;
    user->fds += fd_count;
    share->store.published_fds += fd_count;
    return chunk;
}

/* The chunk's record with one export more. NULL: no memory; or it is told of as something else than
 * before. */
static struct gs_published_chunk *chunk_take(struct gs_share *share, struct gs_user *user,
                                             struct gs_ipc_key key, uint32_t pieces)
{
    struct gs_published_chunk *chunk;

    HASH_FIND(hh, share->store.published_chunks, &key, sizeof key, chunk);
    if (chunk && (pieces || chunk->strip))
        return NULL;
    if (!chunk)
        chunk = chunk_new(share, user, key, pieces);
    if (chunk)
        chunk->exports++;
    return chunk;
}

/* Out of the table; nobody holds it. The share thread alone has exports of a broker in its
 * hands. */
void gs_broker_export_drop(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    gs_export_told_locked(share, export);
    gs_names_end_locked(share, export);
    HASH_DEL(share->exporter.exports, export);
    gs_lock_release(&share->lock);
    gs_cluster_export_export_gone(share, export);
    if (export->publisher) { /* else it is another machine's */
        chunk_drop(share, chunk_of(export));
        export->publisher->left[export->slot] = NULL;
        export->publisher->user->exports--;
        gs_publisher_unref(share, export->publisher);
    }
    free(export);
}

static struct gs_export *export_new(const struct gs_client *client,
                                    const struct gs_wire_share *message,
                                    const struct gs_ipc_handle *ipc_handle)
{
    struct gs_export *export = calloc(1, sizeof *export);

    if (!export)
        return NULL;
    export->key = gs_ipc_key(ipc_handle->instance, ipc_handle->block_id);
    memcpy(export->ipc_handle, message->ipc_handle, GS_IPC_HANDLE_SIZE);
    export->owner = client->id;
    export->slot = message->slot;
    export->source = (struct gs_share_source){.chunk_id = ipc_handle->chunk_id,
                                              .chunk_size = message->chunk_size,
                                              .block_id = ipc_handle->block_id,
                                              .offset = message->offset,
                                              .size = ipc_handle->size,
                                              .read_only = message->read_only != 0};
    memcpy(export->source.uuid, message->uuid, sizeof export->source.uuid);
    return export;
}

/* Whether the socket of the client's instance is the client's, as far as the kernel tells: of its
 * user, and where process ids can be seen of that process. Of this broker's own user it is
 * believed: that user's processes could end each other. */
static bool is_its_name(struct gs_share *share, const struct gs_client *client)
{
    char name[GS_SOCKET_NAME_SIZE], reason[GS_REASON_SIZE];
    unsigned place = 0;
    bool is = gs_user_is_own(client->uid);
    int directory;

    gs_instance_name(client->instance, name);
    while (!is && (directory = gs_directory_next(&share->options, &place, reason)) >= 0) {
        is = gs_directory_is_of(directory, &share->options, name, client->uid,
                                client->is_seen ? client->pid : 0);
        gs_fd_drop(directory);
    }
    return is;
}

/* Whether the client is who shares under its instance: the first one that said so, for as long as
 * it is here. Else a neighbour that knows a handle could leave others of the same name. One that
 * has lost its connection comes again, and leaves all of it anew. */
bool gs_broker_takes_from(struct gs_share *share, struct gs_client *client)
{
    struct gs_client *other, *next;

    HASH_ITER(hh, share->clients.first, other, next) {
        if (!other->publisher || memcmp(other->instance, client->instance, GS_INSTANCE_SIZE) != 0)
            continue;
        if (other->id > client->id || other->uid != client->uid ||
            (other->fd >= 0 && !gs_conn_hung_up(other->fd)))
            return false;
        gs_broker_client_gone(share, other, false);
        gs_publisher_unref(share, other->publisher);
        other->publisher = NULL;
    }
    return is_its_name(share, client);
}

/* Whether all its memory is here. */
static bool is_whole(const struct gs_export *export)
{
    return chunk_of(export)->came == chunk_of(export)->fd_count;
}

/* How many descriptors are kept: what the clients may need stays free, or half of all. */
static unsigned fds_max(const struct gs_share *share)
{
    uint64_t all = gs_fd_limit(), clients = 2 * (uint64_t)share->options.max_clients + 64;

    if (clients > all / 2)
        clients = all / 2;
    return all - clients < UINT32_MAX ? (unsigned)(all - clients) : UINT32_MAX;
}

/* Whether there is room for one more, with so many descriptors; one client takes half of all at
 * most, and so does another user of what is left. */
static bool has_room(struct gs_share *share, const struct gs_client *client, uint32_t fds)
{
    unsigned most = share->options.published_max, fd_most = fds_max(share);
    uint64_t before =
        share->store.published_fds + (uint64_t)fds - 1; /* as one asks for the last of them */
    const struct gs_user *user = client->user;
    bool may = gs_user_may(user, user->exports, HASH_COUNT(share->exporter.exports), most) &&
               before < fd_most &&
               gs_user_may(user, user->fds + fds - 1, (unsigned)before, fd_most);
    bool has = may && HASH_COUNT(share->exporter.exports) < most &&
               client->published < (most + 1) / 2 &&
               client->published_fds + fds - 1 < (fd_most + 1) / 2;

    if (has)
        return true;
    gs_log_line(
        &share->log, share->store.published_said ? GS_LOG_DEBUG : GS_LOG_WARNING,
        "a block of process %d (%.15s), with %u descriptors, is not kept: %u of at most %u are "
        "(debug.broker_blocks), with %u descriptors of at most %u (ulimit -n)",
        (int)client->pid, client->said.name, fds, HASH_COUNT(share->exporter.exports), most,
        share->store.published_fds, fd_most);
    share->store.published_said = true;
    return false;
}

static bool is_sound(const struct gs_wire_share *message, const struct gs_ipc_handle *ipc_handle)
{
    return ipc_handle->block_id && message->far <= 1 && message->held <= message->far &&
           gs_broker_is_sound(message->chunk_size, message->offset, ipc_handle->size,
                              message->read_only) &&
           message->pieces <= message->chunk_size / GS_PAGE_SIZE &&
           message->piece < (message->pieces ? message->pieces : 1);
}

/* One that the client left here. */
static void drop_of(struct gs_share *share, struct gs_client *client, struct gs_export *export)
{
    unsigned fds = share->store.published_fds;

    gs_broker_export_drop(share, export);
    client->published--;
    client->published_fds -= fds - share->store.published_fds;
}

/* NULL: no memory, or its chunk is something else. */
static struct gs_export *enter(struct gs_share *share, struct gs_client *client,
                               const struct gs_wire_share *message,
                               const struct gs_ipc_handle *ipc_handle)
{
    struct gs_export *export = export_new(client, message, ipc_handle);
    struct gs_published_chunk *chunk = NULL;
    unsigned fds = share->store.published_fds;

    if (export)
        chunk = chunk_take(share, client->user,
                           gs_ipc_key(ipc_handle->instance, ipc_handle->chunk_id), message->pieces);
    if (!chunk) {
        free(export);
        return NULL;
    }
    export->source.handle = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
    export->source.strip = chunk->strip; /* as long as the chunk */
    if (!gs_export_enter(share, export)) {
        chunk_drop(share, chunk);
        free(export);
        return NULL;
    }
    export->publisher = gs_publisher_ref(client->publisher);
    export->publisher->left[export->slot] = export;
    client->user->exports++;
    client->shares = true;
    client->published++;
    client->published_fds += share->store.published_fds - fds;
    return export;
}

/* The descriptor of the next piece, or of a chunk that has none yet. Pieces are all of the chunk
 * together. False: it does not fit. */
static bool take_fd(const struct gs_export *export, const struct gs_wire_share *message, int *fd)
{
    struct gs_published_chunk *chunk = chunk_of(export);
    uint64_t left = export->source.chunk_size, size = message->piece_size;

    for (uint32_t i = 0; chunk->strip && i < chunk->came; i++)
        left -= chunk->strip->sizes[i];
    if (chunk->strip && (message->piece != chunk->came || size == 0 || size % GS_PAGE_SIZE != 0 ||
                         size > left || (size == left) != (chunk->came + 1 == chunk->fd_count)))
        return false;
    if (is_whole(export))
        return true;
    if (chunk->strip)
        chunk->strip->sizes[chunk->came] = size;
    chunk->fds[chunk->came++] = *fd;
    *fd = -1;
    return true;
}

/* Where a limit is met the block is not kept: it can be opened while its exporter lives. */
static bool on_share(struct gs_share *share, struct gs_client *client,
                     const struct gs_wire_share *message, int *fd)
{
    uint64_t block_id = client->pull.block_id;
    struct gs_ipc_handle ipc_handle;
    struct gs_export *export;

    client->pull.block_id = 0;
    if (gs_ipc_handle_read(message->ipc_handle, &ipc_handle) != GS_OK ||
        !is_sound(message, &ipc_handle))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (memcmp(ipc_handle.instance, client->instance, GS_INSTANCE_SIZE) != 0)
        return gs_client_fault(client, "it shares in the name of another process");
    export = gs_export_find(share, client->instance, ipc_handle.block_id);
    if (message->piece ? ipc_handle.block_id != block_id : export != NULL)
        return gs_client_fault(client,
                               "it shared one block twice, or a piece that was not asked for");
    if (*fd < 0) { /* there was no room for its descriptor */
        if (export)
            drop_of(share, client, export);
        return true;
    }
    if (!message->piece && has_room(share, client, message->pieces ? message->pieces : 1) &&
        gs_publisher_has_room(share, client->publisher, message->slot))
        export = enter(share, client, message, &ipc_handle);
    if (!export) /* or it was taken back since this was sent */
        return true;
    if (!take_fd(export, message, fd))
        return gs_client_fault(client, "its message has fields that make no sense");
    client->pull.block_id = is_whole(export) ? 0 : export->key.id;
    client->pull.piece = chunk_of(export)->came;
    return true;
}

/* ---- Answers --------------------------------------------------------------------------------- */

bool gs_broker_answered(struct gs_share *share, struct gs_client *client,
                        const union gs_wire_message *message, int *fd)
{
    bool stays = true;

    if (!client->pull.asked)
        return gs_client_fault(client, "it sent a message that it was not asked for");
    if (!client->publisher) /* its process has come again, and this lay here unread */
        return true;
    client->pull.asked = client->pull.kept = false;
    client->pull.due = true;
    if (message->head.request)
        gs_broker_drop_revoked(share, client);
    if (message->head.type == GS_WIRE_SHARE)
        stays =
            on_share(share, client, &message->share, fd) &&
            (!message->share.far || gs_cluster_export_share_came(share, client, &message->share));
    else if (message->head.type == GS_WIRE_NAME)
        stays = gs_name_came(share, client, &message->name, &client->pull.kept);
    else if (message->head.type == GS_WIRE_GRANT)
        stays = gs_cluster_export_held_came(share, client, message->grant.block_id, true);
    else if (message->head.type == GS_WIRE_CLOSE)
        stays = gs_cluster_export_held_came(share, client, message->close.block_id, false);
    else if (message->head.type == GS_WIRE_RECALL)
        gs_cluster_export_recall_came(share, client, message->recall.block_id);
    if (stays)
        gs_client_send_due(share, client);
    return stays;
}

void gs_broker_drop_revoked(struct gs_share *share, struct gs_client *client)
{
    const struct gs_publisher *publisher = client->publisher;
    uint64_t ids[READ_MAX];

    for (uint32_t slot = 0; slot < publisher->room; slot++) {
        struct gs_export *export = publisher->left[slot];

        if (slot % READ_MAX == 0)
            gs_memory_read(publisher->memory, slot, ids, READ_MAX);
        if (export && export->owner && ids[slot % READ_MAX] != export->key.id)
            drop_of(share, client, export);
    }
}

void gs_broker_client_gone(struct gs_share *share, struct gs_client *client, bool ended)
{
    const struct gs_publisher *publisher = client->publisher;
    uint64_t now = gs_now_ns();

    for (uint32_t slot = 0; slot < publisher->room; slot++) {
        struct gs_export *export = publisher->left[slot];

        if (!export || !export->owner) /* that is others' by now */
            continue;
        if (!ended || !is_whole(export) || !gs_publisher_confirms(export->publisher, export)) {
            gs_broker_export_drop(share, export);
            continue;
        }
        gs_lock_take(&share->lock);
        export->owner = 0;
        export->keep_until_ns = now + share->options.keep_ns;
        gs_lock_release(&share->lock);
        gs_cluster_export_owner_gone(share, export);
    }
    client->published = client->published_fds = 0;
    share->store.published_due_ns = now;
}

/* Drops what nobody has had open for long enough; whether something like it is left. */
static bool drop_old(struct gs_share *share, uint64_t now)
{
    struct gs_export *export, *next;
    bool left = false;

    HASH_ITER(hh, share->exporter.exports, export, next) {
        if (export->owner || gs_export_is_imported(export))
            continue;
        if (export->references == 0 && export->pins == 0 && export->keep_until_ns <= now)
            gs_broker_export_drop(share, export);
        else
            left = true;
    }
    return left;
}

/* Once it has been told that it ends it does. */
static void note_needed(struct gs_share *share, bool needed, uint64_t now)
{
    uint64_t since = __atomic_load_n(&share->store.unneeded_since, __ATOMIC_ACQUIRE);

    if (since != GS_NEVER && needed != (since == 0))
        __atomic_compare_exchange_n(&share->store.unneeded_since, &since, needed ? 0 : now, false,
                                    __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

uint64_t gs_broker_tick(struct gs_share *share, uint64_t now)
{
    uint64_t period = share->options.keep_ns / 4;

    if (share->store.published_due_ns <= now) {
        period = period < SCAN_MIN_NS ? SCAN_MIN_NS : period > GS_NS_PER_S ? GS_NS_PER_S : period;
        share->store.published_due_ns = drop_old(share, now) ? now + period : GS_NEVER;
    }
    note_needed(share, share->clients.count > 0 || HASH_COUNT(share->exporter.exports) > 0, now);
    return share->store.published_due_ns;
}

bool gs_broker_may_accept(struct gs_share *share)
{
    note_needed(share, true, 0);
    return __atomic_load_n(&share->store.unneeded_since, __ATOMIC_ACQUIRE) == 0;
}

bool gs_share_end_unneeded(struct gs_share *share, uint64_t since)
{
    return __atomic_compare_exchange_n(&share->store.unneeded_since, &since, GS_NEVER, false,
                                       __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

uint64_t gs_share_unneeded_since(struct gs_share *share)
{
    return __atomic_load_n(&share->store.unneeded_since, __ATOMIC_ACQUIRE);
}

void gs_broker_free(struct gs_share *share)
{
    struct gs_export *export, *next;

    if (share->link.fd >= 0 && gs_fd_is_there(&share->link.fd_is))
        gs_hang_up(share->link.fd);
    share->link.fd = -1;
    gs_lock_take(&share->lock);
    gs_confirm_end_locked(share);
    gs_lock_release(&share->lock);
    if (!share->options.is_broker)
        return;
    HASH_ITER(hh, share->exporter.exports, export, next)
        gs_broker_export_drop(share, export);
}
