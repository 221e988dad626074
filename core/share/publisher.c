/*
 * Of a broker: processes that leave something here. What one said first (whom it shares with, and
 * the memory in which it confirms what may be served) stays for as long as anything of it is here.
 */
#include "core/base/list.h"
#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/memory.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_FIRST 64

/* Whether the block lies within the chunk as every exporter's does. */
bool gs_broker_is_sound(uint64_t chunk_size, uint64_t offset, uint64_t size, uint32_t read_only)
{
    return size > 0 && chunk_size > 0 && chunk_size % GS_PAGE_SIZE == 0 &&
           chunk_size <= UINT64_C(1) << GS_MAP_ADDRESS_BITS && size <= chunk_size &&
           offset <= chunk_size - size && read_only <= 1;
}

static void take_ids(struct gs_listed *listed, const struct gs_wire_publish *message)
{
    _Static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "ids");
    listed->uid_count = message->uid_count;
    listed->gid_count = message->gid_count;
    memcpy(listed->uids, message->uids, message->uid_count * sizeof *listed->uids);
    memcpy(listed->gids, message->gids, message->gid_count * sizeof *listed->gids);
}

/* Those whom the exporter lets in come to this socket, whatever this broker was started with. */
static void let_in(struct gs_share *share, const struct gs_publisher *publisher)
{
    int error;

    if (publisher->listed.uid_count + publisher->listed.gid_count > 0 &&
        !gs_socket_is_given(share) &&
        (error = gs_directory_let_all(share->place.directory, share->name)) != 0)
        gs_log_line(&share->log, GS_LOG_INFO, "other users cannot come to the broker's socket: %s",
                    strerror(-error));
}

bool gs_publisher_on_publish(struct gs_share *share, struct gs_client *client,
                             const struct gs_wire_publish *message, int *fd)
{
    struct gs_publisher *publisher;

    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    if (client->publisher)
        return gs_client_fault(client, "it said twice whom it shares with");
    if (message->uid_count > GS_IDS_MAX || message->gid_count > GS_IDS_MAX)
        return gs_client_fault(client, "its message has fields that make no sense");
    if (!gs_process_is_listed(&share->options, client->uid, client->gid) ||
        !gs_user_is_one(client->uid))
        return gs_client_fault(client, "it is of a user who may open here, and leave nothing");
    if (!gs_memory_is_sound(*fd))
        return gs_client_fault(client, "it confirms nothing in memory that can be relied upon");
    publisher = calloc(1, sizeof *publisher);
    if (!publisher)
        return gs_client_fault(client, "no host memory is left for what it leaves");
    publisher->refs = 1;
    publisher->user = client->user;
    publisher->user->refs++;
    publisher->memory = *fd;
    *fd = -1;
    take_ids(&publisher->listed, message);
    DL_PREPEND2(share->store.publishers, publisher, previous, next);
    client->publisher = publisher;
    let_in(share, publisher);
    return true;
}

bool gs_publisher_confirms(const struct gs_publisher *publisher, const struct gs_export *export)
{
    uint64_t id;

    gs_memory_read(publisher->memory, export->slot, &id, 1);
    return id == export->key.id;
}

bool gs_publisher_has_room(const struct gs_share *share, struct gs_publisher *publisher,
                           uint32_t slot)
{
    uint32_t room = publisher->room ? publisher->room : SLOTS_FIRST;
    struct gs_export **left;

    if (slot < publisher->room)
        return !publisher->left[slot];
    if (slot > share->options.published_max)
        return false;
    while (room <= slot)
        room *= 2;
    left = realloc(publisher->left, room * sizeof *left);
    if (!left)
        return false;
    memset(left + publisher->room, 0, (room - publisher->room) * sizeof *left);
    publisher->left = left;
    publisher->room = room;
    return true;
}

static bool listed_has(const struct gs_listed *listed, uid_t uid, gid_t gid)
{
    for (unsigned i = 0; i < listed->uid_count; i++)
        if (listed->uids[i] == uid)
            return true;
    for (unsigned i = 0; i < listed->gid_count; i++)
        if (listed->gids[i] == gid)
            return true;
    return false;
}

bool gs_publisher_lets(const struct gs_publisher *publisher, uid_t uid, gid_t gid)
{
    return uid == publisher->user->uid || listed_has(&publisher->listed, uid, gid);
}

bool gs_publishers_let(const struct gs_share *share, uid_t uid, gid_t gid)
{
    for (const struct gs_publisher *publisher = share->store.publishers; publisher;
         publisher = publisher->next)
        if (gs_publisher_lets(publisher, uid, gid))
            return true;
    return false;
}

struct gs_publisher *gs_publisher_ref(struct gs_publisher *publisher)
{
    publisher->refs++;
    return publisher;
}

void gs_publisher_unref(struct gs_share *share, struct gs_publisher *publisher)
{
    if (!publisher || --publisher->refs > 0)
        return;
    DL_DELETE2(share->store.publishers, publisher, previous, next);
    gs_discard(publisher->memory); /* what it is of was seen, not what its close does */
    publisher->user->refs--;
    gs_user_reap(share, publisher->user);
    free(publisher->left);
    free(publisher);
}
