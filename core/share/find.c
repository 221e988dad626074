/* Exporter: one shared block, by its handle or an address in it, and who has it, in answer to FIND. */
#include "core/share/exporter.h"

#include <string.h>

#define FIND_PART 20 /* of the time, one part at most goes into looking through the exports */

static bool covers(const struct gs_export *export, uint64_t address)
{
    return address - export->source.address < export->source.size;
}

/* There is one at most: where handles are not stale nothing else is allocated. But strips may overlap, and
 * what others keep of one may have gone from here: then what lies there now is meant. */
static const struct gs_export *at_address_locked(const struct gs_share *share, uint64_t address)
{
    const struct gs_export *export, *next, *gone = NULL;

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        if (!covers(export, address) || gs_export_is_stale(share, export))
            continue;
        if (!gs_export_is_own(export) || !export->freed_ns)
            return export;
        gone = export;
    }
    return gone;
}

/* As gs_report's figures: whoever asks again and again does not keep the lock from the program. */
static const struct gs_export *look_locked(struct gs_share *share, uint64_t address,
                                           struct gs_wire_found *found)
{
    const struct gs_export *export = NULL;
    uint64_t now = gs_now_ns();

    found->is_early = now < share->clients.find_due_ns;
    if (!found->is_early) {
        export = at_address_locked(share, address);
        share->clients.find_due_ns = gs_now_ns() + FIND_PART * (gs_now_ns() - now);
    }
    return export;
}

static void describe(const struct gs_export *export, uint64_t now, struct gs_wire_found *found)
{
    found->block_id = export->key.id;
    memcpy(found->instance, export->key.instance, sizeof found->instance);
    found->size = export->source.size;
    found->is_freed = export->freed_ns != 0;
    found->freed_ns = export->freed_ns && now > export->freed_ns ? now - export->freed_ns : 0;
}

/* Who has a strip open has it by a handle of any piece of it, or of a strip that shares pieces with it as
 * long as all of either is mapped. */
static bool is_same_memory(const struct gs_export *export, const struct gs_share_source *strip,
                           const struct gs_wire_found *found)
{
    if (!gs_export_is_own(export))
        return false;
    if (export->source.chunk_id == strip->chunk_id)
        return true;
    return !found->is_freed && !export->freed_ns &&
           export->source.address < strip->address + strip->size &&
           strip->address < export->source.address + export->source.size;
}

static const struct gs_reference *part_of_strip(const struct gs_client *client,
                                                const struct gs_share_source *strip,
                                                const struct gs_wire_found *found)
{
    const struct gs_reference *reference, *first = NULL;

    for (reference = client->references; reference; reference = reference->hh.next)
        if (is_same_memory(reference->export, strip, found) &&
            (!first || reference->since_ns < first->since_ns))
            first = reference;
    return first;
}

/* What a client has of the block; NULL: nothing. */
static const struct gs_reference *part_of(const struct gs_client *client,
                                          const struct gs_share_source *source,
                                          const struct gs_wire_found *found)
{
    const struct gs_reference *reference;

    if (source->strip && !source->strip->is_block)
        return part_of_strip(client, source, found);
    HASH_FIND(hh, client->references, &found->block_id, sizeof found->block_id, reference);
    if (reference && memcmp(reference->export->key.instance, found->instance, GS_INSTANCE_SIZE) != 0)
        return NULL; /* of another process that left something at this broker */
    return reference;
}

/* The first client with this index or a later one that has the block. */
static int describe_holder(struct gs_share *share, const struct gs_share_source *source,
                           uint32_t index, uint64_t now, struct gs_wire_found *found)
{
    const struct gs_reference *reference = NULL;
    struct gs_client *client, *next;
    uint32_t i = 0;

    HASH_ITER(hh, share->clients.first, client, next)
    {
        reference = i++ >= index ? part_of(client, source, found) : NULL;
        if (reference)
            break;
    }
    if (!reference)
        return -1;
    found->next = i;
    found->held_ns = now - reference->since_ns;
    found->client_pid = (uint64_t)client->pid;
    found->client_seen = client->is_seen;
    memcpy(found->client_name, client->said.name, sizeof found->client_name);
    return gs_fd_is_there(&client->kept_pidfd) ? client->pidfd : -1;
}

bool gs_find(struct gs_share *share, struct gs_client *client, const struct gs_wire_find *find)
{
    union gs_wire_message message;
    struct gs_export_key key = {.id = find->number};
    const struct gs_export *export = NULL;
    uint64_t now = gs_now_ns();
    int pidfd = -1, error;

    gs_wire_start(&message, GS_WIRE_FOUND, find->head.request);
    message.found.pid = (uint64_t)gs_alive_own_pid();
    message.found.is_broker = share->options.is_broker;
    strncpy(message.found.name, program_invocation_short_name, sizeof message.found.name - 1);
    memcpy(key.instance, find->instance, sizeof key.instance);
    gs_lock_take(&share->lock);
    if (!find->by_address)
        HASH_FIND(hh, share->exporter.exports, &key, sizeof key, export);
    else if (!share->options.is_broker) /* whose addresses are those of others */
        export = look_locked(share, find->number, &message.found);
    if (export && !gs_export_is_stale(share, export)) {
        describe(export, now, &message.found);
        pidfd = describe_holder(share, &export->source, find->index, now, &message.found);
    }
    gs_lock_release(&share->lock);
    error = gs_client_send(share, client, &message, pidfd);
    if (error == -ETOOMANYREFS)
        error = gs_client_send(share, client, &message, -1);
    return error == 0;
}
