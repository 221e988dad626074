/*
 * Exports published to a broker: a daemon of the same user that has a descriptor of each exported
 * chunk and serves its openers once the exporter has ended.
 *
 *   exporter (publish.c)                          broker (this file; shim/command/broker.c)
 *   first export: connects, starts one if need be
 *   PUBLISH users (+ memfd)        ------->       of whose users it is, and where it confirms
 *   SHARE handle (+ descriptor)    ------->       keeps it; openers go to the exporter meanwhile
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
    gs_discard(chunk->fd, chunk->user->uid); /* nobody knows what it is of */
    chunk->user->chunks--;
    gs_user_reap(share, chunk->user);
    free(chunk);
}

/* The chunk's record with one export more; *fd becomes -1 where it is kept. NULL: no memory. */
static struct gs_published_chunk *
chunk_take(struct gs_share *share, const struct gs_export_key *key, struct gs_user *user, int *fd)
{
    struct gs_published_chunk *chunk;

    HASH_FIND(hh, share->store.published_chunks, key, sizeof *key, chunk);
    if (!chunk) {
        chunk = calloc(1, sizeof *chunk);
        if (!chunk)
            return NULL;
        chunk->key = *key;
        HASH_ADD(hh, share->store.published_chunks, key, sizeof chunk->key, chunk);
        if (!chunk->hh.tbl) {
            free(chunk);
            return NULL;
        }
        chunk->fd = *fd;
        chunk->user = user;
        user->chunks++;
        *fd = -1;
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

/* How many chunks' descriptors are kept: what the clients may need stays free, or half of all. */
static unsigned chunks_max(const struct gs_share *share)
{
    uint64_t all = gs_fd_limit(), clients = 2 * (uint64_t)share->options.max_clients + 64;

    if (clients > all / 2)
        clients = all / 2;
    return all - clients < UINT32_MAX ? (unsigned)(all - clients) : UINT32_MAX;
}

/* Whether there is room for one more; one client takes half of all at most, and so does another
 * user of what is left. */
static bool has_room(struct gs_share *share, const struct gs_client *client, int fd)
{
    unsigned most = share->options.published_max, chunks = chunks_max(share);
    const struct gs_user *user = client->user;
    bool may = gs_user_may(user, user->exports, HASH_COUNT(share->exporter.exports), most) &&
               gs_user_may(user, user->chunks, HASH_COUNT(share->store.published_chunks), chunks);
    bool has = may && fd >= 0 && HASH_COUNT(share->exporter.exports) < most &&
               client->published < (most + 1) / 2 &&
               HASH_COUNT(share->store.published_chunks) < chunks &&
               client->published_chunks < (chunks + 1) / 2;

    if (has)
        return true;
    gs_log_line(&share->log, share->store.published_said ? GS_LOG_DEBUG : GS_LOG_WARNING,
                "a block of process %d (%.15s) is not kept: %u of at most %u are "
                "(share.broker_blocks), in %u chunks of at most %u (ulimit -n)",
                (int)client->pid, client->said.name, HASH_COUNT(share->exporter.exports), most,
                HASH_COUNT(share->store.published_chunks), chunks);
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
    bool entered;

    if (!share->options.is_broker || !client->publisher)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    if (gs_ipc_handle_read(message->ipc_handle, &ipc_handle) != GS_OK ||
        !gs_broker_is_sound(message->chunk_size, message->offset, ipc_handle.size,
                            message->read_only))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (memcmp(ipc_handle.instance, client->instance, GS_INSTANCE_SIZE) != 0 ||
        !is_sharer(share, client))
        return gs_client_fault(client, "it shares in the name of another process");
    memcpy(chunk_key.instance, ipc_handle.instance, sizeof chunk_key.instance);
    chunk_key.id = ipc_handle.chunk_id;
    /* Where a limit is met the block is not kept: it can be opened while its exporter lives. */
    if (!has_room(share, client, *fd))
        return true;
    export = export_new(client, message, &ipc_handle);
    if (!export)
        return true;
    if (gs_export_find(share, &export->key)) {
        free(export);
        return gs_client_fault(client, "it shared one block twice");
    }
    chunk = chunk_take(share, &chunk_key, client->user, fd);
    if (!chunk) {
        free(export);
        return true;
    }
    export->source.handle = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
    export->publisher = gs_publisher_ref(client->publisher);
    client->user->exports++;
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->exporter.exports, key, sizeof export->key, export);
    entered = export->hh.tbl != NULL;
    gs_lock_release(&share->lock);
    if (entered) {
        client->published++;
        client->published_chunks += *fd < 0;
    } else {
        chunk_drop(share, chunk);
        client->user->exports--;
        gs_publisher_unref(share, export->publisher);
        free(export);
    }
    return true;
}

/* One that the client left here. */
static void drop_of(struct gs_share *share, struct gs_client *client, struct gs_export *export)
{
    unsigned chunks = HASH_COUNT(share->store.published_chunks);

    export_drop(share, export);
    client->published--;
    client->published_chunks -= chunks - HASH_COUNT(share->store.published_chunks);
}

bool gs_broker_on_unshare(struct gs_share *share, struct gs_client *client,
                          const struct gs_wire_unshare *message)
{
    struct gs_export_key key;
    struct gs_export *export;

    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    memcpy(key.instance, client->instance, sizeof key.instance);
    key.id = message->block_id;
    export = gs_export_find(share, &key);
    if (!export || export->owner != client->id) /* one that found no room here */
        return true;
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
        if (!ended || !gs_publisher_confirms(export->publisher, export)) {
            export_drop(share, export);
            continue;
        }
        gs_lock_take(&share->lock);
        export->owner = 0;
        export->keep_until_ns = now + share->options.keep_ns;
        gs_lock_release(&share->lock);
        gs_lend_owner_gone(share, export);
    }
    client->published = client->published_chunks = 0;
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
