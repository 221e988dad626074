/*
 * Offers left with a broker: a daemon of the same user that has a descriptor of each chunk on offer
 * and serves its openers once the exporter has ended.
 *
 *   exporter (leave.c)                            broker (this file; shim/broker/main.c)
 *   first offer: connects, starts one if need be
 *   SHARE token (+ descriptor)     ------->       keeps it; openers go to the exporter meanwhile
 *   UNSHARE, before any reuse      ------->       drops it
 *   ends, in order or killed       - - - ->       serves it, for keep_ns beyond its last opener
 *
 * What must hold: the broker never serves bytes that have been given to another block. So an
 * UNSHARE is in the broker's socket before the block may be used again, the broker reads all that
 * an exporter said before it takes note of its end, and one that has lost its connection and lives
 * on is not trusted to have said everything: what it left is dropped.
 *
 * A broker that ends takes nobody down: exporters go on by themselves, say so, and leave all they
 * offer with the next one, which they start if need be. A new broker has nothing of an exporter's,
 * and the same one that has hung up on it has dropped it: either is told everything anew.
 */
#include "core/share/discard.h"
#include "core/share/exporter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define SCAN_MIN_NS (10 * GS_NS_PER_MS)

/* A chunk of which something was left here. */
struct gs_left_chunk {
    struct gs_offer_key key; /* of the chunk: the exporter's instance and the chunk's id */
    int fd;
    uid_t from; /* who left it */
    unsigned offers;
    UT_hash_handle hh;
};

const struct gs_driver gs_broker_driver = {0};

static struct gs_left_chunk *chunk_of(const struct gs_offer *offer)
{
    return (struct gs_left_chunk *)(uintptr_t)offer->source.handle;
}

int gs_broker_fd(const struct gs_offer *offer)
{
    return chunk_of(offer)->fd;
}

static void chunk_drop(struct gs_share *share, struct gs_left_chunk *chunk)
{
    if (--chunk->offers > 0)
        return;
    HASH_DEL(share->left_chunks, chunk);
    gs_discard(chunk->fd, chunk->from); /* nobody knows what it is of */
    free(chunk);
}

/* The chunk's record with one offer more; *fd becomes -1 where it is kept. NULL: no memory. */
static struct gs_left_chunk *chunk_take(struct gs_share *share, const struct gs_offer_key *key,
                                        uid_t from, int *fd)
{
    struct gs_left_chunk *chunk;

    HASH_FIND(hh, share->left_chunks, key, sizeof *key, chunk);
    if (!chunk) {
        chunk = calloc(1, sizeof *chunk);
        if (!chunk)
            return NULL;
        chunk->key = *key;
        HASH_ADD(hh, share->left_chunks, key, sizeof chunk->key, chunk);
        if (!chunk->hh.tbl) {
            free(chunk);
            return NULL;
        }
        chunk->fd = *fd;
        chunk->from = from;
        *fd = -1;
    }
    chunk->offers++;
    return chunk;
}

static struct gs_offer *offer_of(struct gs_share *share, const struct gs_offer_key *key)
{
    struct gs_offer *offer;

    gs_lock_take(&share->lock);
    HASH_FIND(hh, share->offers, key, sizeof *key, offer);
    gs_lock_release(&share->lock);
    return offer;
}

/* Out of the table; nobody holds it. The share thread alone has offers of a broker in its hands. */
static void offer_drop(struct gs_share *share, struct gs_offer *offer)
{
    gs_lock_take(&share->lock);
    HASH_DEL(share->offers, offer);
    gs_lock_release(&share->lock);
    chunk_drop(share, chunk_of(offer));
    free(offer);
}

/* Whether the block lies within the chunk as every exporter's does. */
static bool is_sound(const struct gs_wire_share *message, const struct gs_token *token)
{
    return token->size > 0 && message->chunk_size > 0 && message->chunk_size % GS_PAGE_SIZE == 0 &&
           message->chunk_size <= UINT64_C(1) << GS_MAP_ADDRESS_BITS &&
           token->size <= message->chunk_size &&
           message->offset <= message->chunk_size - token->size && message->read_only <= 1 &&
           !message->zero;
}

static struct gs_offer *offer_new(const struct gs_client *client,
                                  const struct gs_wire_share *message,
                                  const struct gs_token *token)
{
    struct gs_offer *offer = calloc(1, sizeof *offer);

    if (!offer)
        return NULL;
    memcpy(offer->key.instance, token->instance, sizeof offer->key.instance);
    offer->key.id = token->block_id;
    memcpy(offer->token, message->token, GS_TOKEN_SIZE);
    offer->owner = client->id;
    offer->read_only = message->read_only != 0;
    offer->source = (struct gs_share_source){.chunk_id = token->chunk_id,
                                             .chunk_size = message->chunk_size,
                                             .block_id = token->block_id,
                                             .offset = message->offset,
                                             .size = token->size};
    memcpy(offer->source.uuid, message->uuid, sizeof offer->source.uuid);
    return offer;
}

/* Whether the client is who shares under its instance: the first one that said so, for as long as
 * it is here. Else a neighbour that knows a token could leave others of the same name. */
static bool is_sharer(struct gs_share *share, struct gs_client *client)
{
    struct gs_client *other, *next;

    if (client->shares)
        return true;
    HASH_ITER(hh, share->clients, other, next)
    {
        if (other->shares && memcmp(other->instance, client->instance, GS_INSTANCE_SIZE) == 0)
            return false;
    }
    client->shares = true;
    return true;
}

/* How many chunks' descriptors are kept: what the clients may need stays free, or half of all. */
static unsigned chunks_max(const struct gs_share *share)
{
    struct rlimit limit = {.rlim_cur = 0};
    rlim_t clients = 2 * (rlim_t)share->options.max_clients + 64;

    getrlimit(RLIMIT_NOFILE, &limit);
    if (clients > limit.rlim_cur / 2)
        clients = limit.rlim_cur / 2;
    return limit.rlim_cur - clients < UINT32_MAX ? (unsigned)(limit.rlim_cur - clients)
                                                 : UINT32_MAX;
}

/* Whether there is room for one more; one client takes half of all at most. */
static bool has_room(struct gs_share *share, const struct gs_client *client, int fd)
{
    unsigned most = share->options.left_max, chunks = chunks_max(share);
    bool has = fd >= 0 && HASH_COUNT(share->offers) < most && client->left < (most + 1) / 2 &&
               HASH_COUNT(share->left_chunks) < chunks && client->left_chunks < (chunks + 1) / 2;

    if (has)
        return true;
    gs_log_line(&share->log, share->left_said ? GS_LOG_DEBUG : GS_LOG_WARNING,
                "a block of process %d (%.15s) is not kept: %u of at most %u are "
                "(share.broker_blocks), in %u chunks of at most %u (ulimit -n)",
                (int)client->pid, client->name, HASH_COUNT(share->offers), most,
                HASH_COUNT(share->left_chunks), chunks);
    share->left_said = true;
    return false;
}

bool gs_broker_on_share(struct gs_share *share, struct gs_client *client,
                        const struct gs_wire_share *message, int *fd)
{
    struct gs_offer_key chunk_key;
    struct gs_left_chunk *chunk;
    struct gs_token token;
    struct gs_offer *offer;
    bool entered;

    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    if (gs_token_read(message->token, &token) != GS_OK || !is_sound(message, &token))
        return gs_client_fault(client, "its message has fields that make no sense");
    if (memcmp(token.instance, client->instance, GS_INSTANCE_SIZE) != 0 ||
        !is_sharer(share, client))
        return gs_client_fault(client, "it shares in the name of another process");
    memcpy(chunk_key.instance, token.instance, sizeof chunk_key.instance);
    chunk_key.id = token.chunk_id;
    /* Where a limit is met the block is not kept: it can be opened while its exporter lives. */
    if (!has_room(share, client, *fd))
        return true;
    offer = offer_new(client, message, &token);
    if (!offer)
        return true;
    if (offer_of(share, &offer->key)) {
        free(offer);
        return gs_client_fault(client, "it shared one block twice");
    }
    chunk = chunk_take(share, &chunk_key, client->uid, fd);
    if (!chunk) {
        free(offer);
        return true;
    }
    offer->source.handle = (CUmemGenericAllocationHandle)(uintptr_t)chunk;
    gs_lock_take(&share->lock);
    HASH_ADD(hh, share->offers, key, sizeof offer->key, offer);
    entered = offer->hh.tbl != NULL;
    gs_lock_release(&share->lock);
    if (entered) {
        client->left++;
        client->left_chunks += *fd < 0;
    } else {
        chunk_drop(share, chunk);
        free(offer);
    }
    return true;
}

bool gs_broker_on_unshare(struct gs_share *share, struct gs_client *client,
                          const struct gs_wire_unshare *message)
{
    struct gs_offer_key key;
    struct gs_offer *offer;
    unsigned chunks;

    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    memcpy(key.instance, client->instance, sizeof key.instance);
    key.id = message->block_id;
    offer = offer_of(share, &key);
    if (!offer || offer->owner != client->id) /* one that found no room here */
        return true;
    chunks = HASH_COUNT(share->left_chunks);
    offer_drop(share, offer);
    client->left--;
    client->left_chunks -= chunks - HASH_COUNT(share->left_chunks);
    return true;
}

void gs_broker_client_gone(struct gs_share *share, struct gs_client *client, bool ended)
{
    struct gs_offer *offer, *next;
    uint64_t now = gs_now();

    HASH_ITER(hh, share->offers, offer, next)
    {
        if (offer->owner != client->id)
            continue;
        if (!ended) {
            offer_drop(share, offer);
            continue;
        }
        gs_lock_take(&share->lock);
        offer->owner = 0;
        offer->keep_until_ns = now + share->options.keep_ns;
        gs_lock_release(&share->lock);
    }
    client->left = client->left_chunks = 0;
    share->left_due_ns = now;
}

/* Drops what nobody has had open for long enough; whether something like it is left. */
static bool drop_old(struct gs_share *share, uint64_t now)
{
    struct gs_offer *offer, *next;
    bool left = false;

    HASH_ITER(hh, share->offers, offer, next)
    {
        if (offer->owner)
            continue;
        if (offer->holds == 0 && offer->pins == 0 && offer->keep_until_ns <= now)
            offer_drop(share, offer);
        else
            left = true;
    }
    return left;
}

uint64_t gs_broker_tick(struct gs_share *share, uint64_t now)
{
    uint64_t period = share->options.keep_ns / 4;

    if (share->left_due_ns <= now) {
        period = period < SCAN_MIN_NS ? SCAN_MIN_NS : period > GS_NS_PER_S ? GS_NS_PER_S : period;
        share->left_due_ns = drop_old(share, now) ? now + period : GS_NEVER;
    }
    if (share->client_count > 0 || HASH_COUNT(share->offers) > 0)
        __atomic_store_n(&share->unneeded_since, 0, __ATOMIC_RELEASE);
    else if (share->unneeded_since == 0)
        __atomic_store_n(&share->unneeded_since, now, __ATOMIC_RELEASE);
    return share->left_due_ns;
}

uint64_t gs_share_unneeded_since(struct gs_share *share)
{
    return __atomic_load_n(&share->unneeded_since, __ATOMIC_ACQUIRE);
}

void gs_broker_free(struct gs_share *share)
{
    struct gs_offer *offer, *next;

    if (share->broker_fd >= 0)
        gs_hang_up(share->broker_fd);
    share->broker_fd = -1;
    if (!share->options.is_broker)
        return;
    HASH_ITER(hh, share->offers, offer, next)
    offer_drop(share, offer);
}
