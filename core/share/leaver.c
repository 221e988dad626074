/*
 * Of a broker: processes that leave something here. What one said first (whom it shares with, and
 * the memory in which it confirms what may be served) stays for as long as anything of it is here.
 */
#include "core/share/discard.h"
#include "core/share/exporter.h"
#include "core/share/memory.h"

#include <stdlib.h>
#include <string.h>

struct gs_leaver {
    unsigned refs;
    struct gs_user *user;
    uid_t uids[GS_IDS_MAX];
    gid_t gids[GS_IDS_MAX];
    unsigned uid_count, gid_count;
    int memory; /* its ids of what may be served */
    uint32_t slots;
    struct gs_leaver *next, *previous;
};

static void take_ids(struct gs_leaver *leaver, const struct gs_wire_leave *message)
{
    _Static_assert(sizeof(uid_t) == sizeof(uint32_t) && sizeof(gid_t) == sizeof(uint32_t), "ids");
    leaver->uid_count = message->uid_count;
    leaver->gid_count = message->gid_count;
    memcpy(leaver->uids, message->uids, message->uid_count * sizeof *leaver->uids);
    memcpy(leaver->gids, message->gids, message->gid_count * sizeof *leaver->gids);
}

/* Those whom the exporter lets in come to this socket, whatever this broker was started with. */
static void let_in(struct gs_share *share, const struct gs_leaver *leaver)
{
    int error;

    if (leaver->uid_count + leaver->gid_count > 0 && !gs_socket_is_given(share) &&
        (error = gs_directory_let_all(share->place.directory, share->name)) != 0)
        gs_log_line(&share->log, GS_LOG_INFO, "other users cannot come to the broker's socket: %s",
                    strerror(-error));
}

bool gs_leaver_on_leave(struct gs_share *share, struct gs_client *client,
                        const struct gs_wire_leave *message, int *fd)
{
    struct gs_leaver *leaver;

    if (!share->options.is_broker || !client->greeted)
        return gs_client_fault(client, client->greeted ? "it takes this process for a broker"
                                                       : "it did not greet first");
    if (client->leaver)
        return gs_client_fault(client, "it said twice whom it shares with");
    if (message->zero || message->uid_count > GS_IDS_MAX || message->gid_count > GS_IDS_MAX)
        return gs_client_fault(client, "its message has fields that make no sense");
    if (!gs_process_is_listed(&share->options, client->uid, client->gid))
        return gs_client_fault(client, "it is of a user who may open here, and leave nothing");
    if (!gs_memory_is_sound(*fd))
        return gs_client_fault(client, "it confirms nothing in memory that can be relied upon");
    leaver = calloc(1, sizeof *leaver);
    if (!leaver)
        return gs_client_fault(client, "no host memory is left for what it leaves");
    leaver->refs = 1;
    leaver->user = client->user;
    leaver->user->refs++;
    leaver->memory = *fd;
    leaver->slots = message->slots;
    *fd = -1;
    take_ids(leaver, message);
    leaver->next = share->store.leavers;
    if (leaver->next)
        leaver->next->previous = leaver;
    share->store.leavers = leaver;
    client->leaver = leaver;
    let_in(share, leaver);
    return true;
}

bool gs_leaver_confirms(const struct gs_leaver *leaver, const struct gs_offer *offer)
{
    uint64_t id = 0;

    return offer->slot < leaver->slots &&
           gs_memory_read(leaver->memory, offer->slot * sizeof id, &id) && id == offer->key.id;
}

bool gs_leaver_lets(const struct gs_leaver *leaver, uid_t uid, gid_t gid)
{
    if (uid == leaver->user->uid)
        return true;
    for (unsigned i = 0; i < leaver->uid_count; i++)
        if (leaver->uids[i] == uid)
            return true;
    for (unsigned i = 0; i < leaver->gid_count; i++)
        if (leaver->gids[i] == gid)
            return true;
    return false;
}

bool gs_leavers_let(const struct gs_share *share, uid_t uid, gid_t gid)
{
    for (const struct gs_leaver *leaver = share->store.leavers; leaver; leaver = leaver->next)
        if (gs_leaver_lets(leaver, uid, gid))
            return true;
    return false;
}

struct gs_user *gs_leaver_user(const struct gs_leaver *leaver)
{
    return leaver->user;
}

struct gs_leaver *gs_leaver_ref(struct gs_leaver *leaver)
{
    leaver->refs++;
    return leaver;
}

void gs_leaver_unref(struct gs_share *share, struct gs_leaver *leaver)
{
    if (!leaver || --leaver->refs > 0)
        return;
    if (leaver->next)
        leaver->next->previous = leaver->previous;
    if (leaver->previous)
        leaver->previous->next = leaver->next;
    else
        share->store.leavers = leaver->next;
    gs_discard(leaver->memory, leaver->user->uid); /* what it is of was seen, not what its close does */
    leaver->user->refs--;
    gs_user_reap(share, leaver->user);
    free(leaver);
}
