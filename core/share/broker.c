/*
 * Exports published to a broker: a daemon of the same user that has a descriptor of each exported
 * chunk and serves its openers once the exporter has ended.
 *
 *   exporter (publish.c)                          broker (this file; shim/command/broker.c)
 *   first export: connects, starts one if need be
 *   PUBLISH users (+ memfd)        ------->       of whose users it is, and where it confirms
 *   SHARE handle (+ descriptor)    ------->       keeps it; openers go to the exporter meanwhile
 *   SHARE_PIECE + descriptor, each ------->       of a block that lies across pieces: it is kept with the last
 *   strikes it out of the memfd
 *   UNSHARE, when that goes        ------->       drops it
 *   ends, in order or killed       - - - ->       serves what stands in the memfd, for keep_ns
 *                                                 beyond its last opener, to those users
 *
 * What must hold: the broker never serves bytes that have been given to another block, and no
 * exporter ever waits for the broker, which may be stopped. So what may be served is what the
 * exporter confirms in its own memory (confirm.c): struck out there before the block may be used
 * again, and read by the broker once the exporter's end is proven (lives.c), however long that takes.
 * One that has lost its connection and lives on confirms nothing any more as soon as it sees that, and
 * what it does not confirm is dropped.
 *
 * A broker that ends takes nobody down: exporters go on by themselves, say so, and leave all they
 * export with the next one, which they start if need be. A new broker has nothing of an exporter's,
 * and the same one that has hung up on it has dropped it: either is told everything anew.
 */
#include "core/share/afar.h"
#include "core/share/discard.h"
#include "core/share/opener.h"

#include <stdlib.h>
#include <string.h>

#define SCAN_MIN_NS (10 * GS_NS_PER_MS)

const struct gs_driver gs_broker_driver = {0};

static struct gs_published_chunk *chunk_of(const struct gs_export *export)
{
    return (struct gs_published_chunk *)(uintptr_t) export->source.handle;
}

static void chunk_drop(struct gs_share *share, struct gs_published_chunk *chunk)
{
    if (--chunk->exports > 0)
        return;
    HASH_DEL(share->store.published_chunks, chunk);
    for (uint32_t i = 0; i < chunk->came; i++)
        gs_discard(chunk->fds[i], chunk->user->uid); /* nobody knows what it is of */
    chunk->user->fds -= chunk->fd_count;
    share->store.published_fds -= chunk->fd_count;
    gs_user_reap(share, chunk->user);
    gs_share_strip_unref(chunk->strip);
    free(chunk);
}

/* NULL: no memory. */
static struct gs_published_chunk *chunk_new(struct gs_share *share, const struct gs_export_key *key,
                                            uint32_t pieces)
{
    uint32_t fd_count = pieces ? pieces : 1;
    struct gs_published_chunk *chunk = calloc(1, sizeof *chunk + fd_count * sizeof *chunk->fds);

    if (!chunk)
        return NULL;
    chunk->key = *key;
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
    if (chunk->hh.tbl)
        return chunk;
    gs_share_strip_unref(chunk->strip);
    free(chunk);
    return NULL;
}

/* The chunk's record with one export more; *fd becomes -1 where it is kept. NULL: no memory; or it is told of as
 * something else than before. */
static struct gs_published_chunk *chunk_take(struct gs_share *share,
                                             const struct gs_export_key *key, struct gs_user *user,
                                             uint32_t pieces, int *fd)
{
    struct gs_published_chunk *chunk;

    HASH_FIND(hh, share->store.published_chunks, key, sizeof *key, chunk);
    if (chunk && (pieces || chunk->strip))
        return NULL;
    if (!chunk) {
        chunk = chunk_new(share, key, pieces);
        if (!chunk)
            return NULL;
        chunk->user = user;
        user->fds += chunk->fd_count;
        share->store.published_fds += chunk->fd_count;
        if (!pieces) {
            chunk->fds[chunk->came++] = *fd;
            *fd = -1;
        }
    }
    chunk->exports++;
    return chunk;
}

/* Out of the table; nobody holds it. The share thread alone has exports of a broker in its
 * hands. */
static void export_drop(struct gs_share *share, struct gs_export *export)
{
    gs_lock_take(&share->lock);
    gs_export_told_locked(share, export);
    gs_names_end_locked(share, export);
    HASH_DEL(share->exporter.exports, export);
    gs_lock_release(&share->lock);
    gs_lend_export_gone(share, export);
    chunk_drop(share, chunk_of(export));
    gs_publisher_user(export->publisher)->exports--;
    gs_publisher_unref(share, export->publisher);
    free(export);
}

static struct gs_export *export_new(const struct gs_client *client,
                                    const struct gs_wire_share *message,
                                    const struct gs_ipc_handle *ipc_handle)
{
    struct gs_export *export = calloc(1, sizeof *export);

    if (!export)
        return NULL;
    memcpy(export->key.instance, ipc_handle->instance, sizeof export->key.instance);
    export->key.id = ipc_handle->block_id;
    memcpy(export->ipc_handle, message->ipc_handle, GS_IPC_HANDLE_SIZE);
    export->owner = client->id;
    export->slot = message->slot;
    export->read_only = message->read_only != 0;
    export->source = (struct gs_share_source){.chunk_id = ipc_handle->chunk_id,
                                              .chunk_size = message->chunk_size,
                                              .block_id = ipc_handle->block_id,
                                              .offset = message->offset,
                                              .size = ipc_handle->size};
    memcpy(export->source.uuid, message->uuid, sizeof export->source.uuid);
    return export;
}

/* Whether the socket of the client's instance is the client's, as far as the kernel tells: of its
 * user, and where process ids can be seen of that process. Of this broker's own user it is believed:
 * his processes could end each other. */
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
static bool is_sharer(struct gs_share *share, struct gs_client *client)
{
    struct gs_client *other, *next;

    if (client->shares)
        return true;
    HASH_ITER(hh, share->clients.first, other, next)
    {
        if (!other->shares || memcmp(other->instance, client->instance, GS_INSTANCE_SIZE) != 0)
            continue;
        if (other->id > client->id || other->uid != client->uid ||
            (other->fd >= 0 && !gs_conn_hung_up(other->fd)))
            return false;
        gs_broker_client_gone(share, other, false);
        other->shares = false;
    }
    client->shares = is_its_name(share, client);
    return client->shares;
}

/* How many descriptors are kept: what the clients may need stays free, or half of all. */
static unsigned fds_max(const struct gs_share *share)
{
    uint64_t all = gs_fd_limit(), clients = 2 * (uint64_t)share->options.max_clients + 64;

    if (clients > all / 2)
        clients = all / 2;
    return all - clients < UINT32_MAX ? (unsigned)(all - clients) : UINT32_MAX;
}

/* Whether there is room for one more, with so many descriptors; one client takes half of all at most, and
 * so does another user of what is left. */
static bool has_room(struct gs_share *share, const struct gs_client *client, uint32_t fds)
{
    unsigned most = share->options.published_max, fd_most = fds_max(share);
    uint64_t before = share->store.published_fds + (uint64_t)fds - 1; /* as one asks for the last of them */
    const struct gs_user *user = client->user;
    bool may = gs_user_may(user, user->exports, HASH_COUNT(share->exporter.exports), most) &&
               before < fd_most &&
               gs_user_may(user, user->fds + fds - 1, (unsigned)before, fd_most);
    bool has = may && HASH_COUNT(share->exporter.exports) < most &&
               client->published < (most + 1) / 2 &&
               client->published_fds + fds - 1 < (fd_most + 1) / 2;

    if (has)
        return true;
    gs_log_line(&share->log, share->store.published_said ? GS_LOG_DEBUG : GS_LOG_WARNING,
                "a block of process %d (%.15s), with %u descriptors, is not kept: %u of at most %u are "
                "(share.broker_blocks), with %u descriptors of at most %u (ulimit -n)",
                (int)client->pid, client->said.name, fds, HASH_COUNT(share->exporter.exports), most,
                share->store.published_fds, fd_most);
    share->store.published_said = true;
    return false;
}

bool gs_broker_on_share(struct gs_share *share, struct gs_client *client,
                        const struct gs_wire_share *message, int *fd)
{
    struct gs_export_key chunk_key;
    struct gs_published_chunk *chunk;
    struct gs_ipc_handle ipc_handle;
    struct gs_export *export;
    unsigned fds;
    bool entered;

    if (!share->options.is_broker || !client->publisher)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    if (gs_ipc_handle_read(message->ipc_handle, &ipc_handle) != GS_OK ||
        !gs_broker_is_sound(message->chunk_size, message->offset, ipc_handle.size,
                            message->read_only) ||
        message->zero || message->pieces > message->chunk_size / GS_PAGE_SIZE ||
        (message->pieces && *fd >= 0))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (memcmp(ipc_handle.instance, client->instance, GS_INSTANCE_SIZE) != 0 ||
        !is_sharer(share, client))
        return gs_client_fault(client, "it shares in the name of another process");
    memcpy(chunk_key.instance, ipc_handle.instance, sizeof chunk_key.instance);
    chunk_key.id = ipc_handle.chunk_id;
    /* Where a limit is met the block is not kept: it can be opened while its exporter lives. */
    if (!message->pieces && *fd < 0) /* there was no room for its descriptor */
        return true;
    if (!has_room(share, client, message->pieces ? message->pieces : 1))
        return true;
    export = export_new(client, message, &ipc_handle);
    if (!export)
        return true;
    if (gs_export_find(share, &export->key)) {
        free(export);
        return gs_client_fault(client, "it shared one block twice");
    }
    fds = share->store.published_fds;
    chunk = chunk_take(share, &chunk_key, client->user, message->pieces, fd);
    if (!chunk) {
        free(export);
        return true;
    }
    export->source.handle = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
    export->source.strip = chunk->strip; /* as long as the chunk */
    export->publisher = gs_publisher_ref(client->publisher);
    client->user->exports++;
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->exporter.exports, key, sizeof export->key, export);
    entered = export->hh.tbl != NULL;
    gs_lock_release(&share->lock);
    if (entered) {
        client->published++;
        client->published_fds += share->store.published_fds - fds;
    } else {
        chunk_drop(share, chunk);
        client->user->exports--;
        gs_publisher_unref(share, export->publisher);
        free(export);
    }
    return true;
}

/* Whether all its memory is here. */
static bool is_whole(const struct gs_export *export)
{
    return chunk_of(export)->came == chunk_of(export)->fd_count;
}

/* Whether so many bytes may be the next piece: all of them together are the chunk. */
static bool piece_fits(const struct gs_published_chunk *chunk, uint64_t chunk_size, uint64_t size)
{
    uint64_t left = chunk_size;

    for (uint32_t i = 0; i < chunk->came; i++)
        left -= chunk->strip->sizes[i];
    return size > 0 && size % GS_PAGE_SIZE == 0 && size <= left &&
           (size == left) == (chunk->came + 1 == chunk->fd_count);
}

/* The export that the client left under this number, or NULL. */
static struct gs_export *left_by(struct gs_share *share, const struct gs_client *client,
                                 uint64_t block_id)
{
    struct gs_export_key key = {.id = block_id};
    struct gs_export *export;

    memcpy(key.instance, client->instance, sizeof key.instance);
    export = gs_export_find(share, &key);
    return export && export->owner == client->id ? export : NULL;
}

bool gs_broker_on_share_piece(struct gs_share *share, struct gs_client *client,
                              const struct gs_wire_share_piece *message, int *fd)
{
    struct gs_export *export = left_by(share, client, message->block_id);
    struct gs_published_chunk *chunk;

    if (!export || *fd < 0) /* one that found no room here; or its descriptor found none */
        return client->greeted;
    chunk = chunk_of(export);
    if (is_whole(export) || !piece_fits(chunk, export->source.chunk_size, message->size))
        return gs_client_fault(client, "its message has fields that make no sense");
    chunk->strip->sizes[chunk->came] = message->size;
    chunk->fds[chunk->came++] = *fd;
    *fd = -1;
    return true;
}

/* One that the client left here. */
static void drop_of(struct gs_share *share, struct gs_client *client, struct gs_export *export)
{
    unsigned fds = share->store.published_fds;

    export_drop(share, export);
    client->published--;
    client->published_fds -= fds - share->store.published_fds;
}

bool gs_broker_on_unshare(struct gs_share *share, struct gs_client *client,
                          const struct gs_wire_unshare *message)
{
    struct gs_export *export;

    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    export = left_by(share, client, message->block_id);
    if (export) /* else it found no room here */
        drop_of(share, client, export);
    return true;
}

void gs_broker_drop_revoked(struct gs_share *share, struct gs_client *client)
{
    struct gs_export *export, *next;

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (export->owner == client->id && !gs_publisher_confirms(export->publisher, export))
            drop_of(share, client, export);
    }
}

void gs_broker_client_gone(struct gs_share *share, struct gs_client *client, bool ended)
{
    struct gs_export *export, *next;
    uint64_t now = gs_now_ns();

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (export->owner != client->id)
            continue;
        if (!ended || !is_whole(export) || !gs_publisher_confirms(export->publisher, export)) {
            export_drop(share, export);
            continue;
        }
        gs_lock_take(&share->lock);
        export->owner = 0;
        export->keep_until_ns = now + share->options.keep_ns;
        gs_lock_release(&share->lock);
        gs_lend_owner_gone(share, export);
    }
    client->published = client->published_fds = 0;
    share->store.published_due_ns = now;
}

/* Drops what nobody has had open for long enough; whether something like it is left. */
static bool drop_old(struct gs_share *share, uint64_t now)
{
    struct gs_export *export, *next;
    bool left = false;

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (export->owner || gs_export_is_borrowed(export))
            continue;
        if (export->references == 0 && export->pins == 0 && export->keep_until_ns <= now)
            export_drop(share, export);
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
    uint64_t period = share->options.keep_ns / 4, farewells_ns;

    if (share->store.published_due_ns <= now) {
        period = period < SCAN_MIN_NS ? SCAN_MIN_NS : period > GS_NS_PER_S ? GS_NS_PER_S : period;
        share->store.published_due_ns = drop_old(share, now) ? now + period : GS_NEVER;
    }
    farewells_ns = gs_farewells_tick(share, now);
    note_needed(share, share->clients.count > 0 || HASH_COUNT(share->exporter.exports) > 0, now);
    return farewells_ns < share->store.published_due_ns ? farewells_ns
                                                        : share->store.published_due_ns;
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
    export_drop(share, export);
    gs_farewells_free(share);
}
