/*
 * What other machines open here (agent.h): publishing exports, and asking the broker for whom a
 * machine asks. Who may open it the broker decides; that the importer has the handle is seen to
 * before it is asked.
 */
#include "shim/agent/agent.h"

#include <stdlib.h>

#include <sodium.h>
#include <utlist.h>

#include "core/share/conn.h"

#define TAKES_MAX 256 /* of one machine, that the broker has not answered: more come again */

/* ---- Exports -------------------------------------------------------------------------------- */

struct export *exporter_find(const struct agent *agent, const struct lease_block *block)
{
    struct export *export;

    HASH_FIND(hh, agent->exports, block, sizeof *block, export);
    return export;
}

/* NULL: no memory. */
static struct export *find_or_make(struct agent *agent, const struct lease_block *block)
{
    struct export *export = exporter_find(agent, block);

    if (!export && (export = calloc(1, sizeof *export))) {
        export->block = *block;
        HASH_ADD(hh, agent->exports, block, sizeof export->block, export);
    }
    return export;
}

/* The broker holds it no more for other machines, where none has it. */
static void let_go(struct agent *agent, const struct lease_block *block)
{
    union gs_wire_message close;

    if (leases_of_block(&agent->leases, block)) /* or is to have it as the broker answers */
        return;
    gs_wire_start(&close, GS_WIRE_CLOSE, 0);
    memcpy(close.close.instance, block->instance, GS_INSTANCE_SIZE);
    close.close.block_id = block->block_id;
    broker_send(agent, &close);
}

static void end_lease(struct agent *agent, struct lease *lease)
{
    const struct lease_block block = lease->block;

    lease->is_over = true;
    if (lease->request) /* it ends when the broker has answered */
        return;
    leases_end(&agent->leases, lease);
    find_or_make(agent, &block);
    let_go(agent, &block);
}

static void write_export(struct agent *agent, const struct export *export)
{
    struct known_export known;

    memcpy(known.machine, agent->machine, sizeof known.machine);
    seal(&export->handle, &export->sealed, known.sealed);
    jobs_write(agent->jobs, DIRECTORY_EXPORTS, export->id, &known, sizeof known);
}

void exporter_write_all(struct agent *agent)
{
    struct export *export, *next;

    HASH_ITER(by_id, agent->exports_by_id, export, next)
        write_export(agent, export);
}

/* It is held, and nobody is known to have it. The last one has ended while there was no broker; or
 * the file of leases was lost, and it stays until people say that it is over. False: no memory. */
static bool on_held(struct agent *agent, const struct lease_block *block)
{
    struct lease model = {.block = *block, .named = true};

    if (leases_of_block(&agent->leases, block))
        return true;
    if (exporter_find(agent, block)) {
        let_go(agent, block);
        return true;
    }
    memcpy(model.key.machine, agent_unknown, GS_MACHINE_SIZE);
    randombytes_buf(&model.key.lease, sizeof model.key.lease);
    return leases_add(&agent->leases, &model) != NULL;
}

static void add(struct agent *agent, struct export *export, const struct gs_wire_share *shared,
                const struct gs_ipc_handle *handle)
{
    export->is_there = true;
    export->handle = *handle;
    export->sealed = (struct sealed){.size = handle->size,
                                     .offset = shared->offset,
                                     .chunk_size = shared->chunk_size,
                                     .read_only = shared->read_only};
    memcpy(export->sealed.uuid, shared->uuid, sizeof shared->uuid);
    memcpy(export->sealed.fabric, shared->fabric, GS_FABRIC_SIZE);
    seal_id(handle, export->id);
    HASH_ADD(by_id, agent->exports_by_id, id, SEAL_ID, export);
    write_export(agent, export);
}

void exporter_share(struct agent *agent, const struct gs_wire_share *shared)
{
    struct gs_ipc_handle handle;
    struct lease_block block;
    struct export *export;

    if (gs_ipc_handle_read(shared->ipc_handle, &handle) != GS_OK)
        return;
    block = lease_block_of(handle.instance, handle.block_id);
    export = !shared->held || on_held(agent, &block) ? find_or_make(agent, &block) : NULL;
    if (!export)
        gs_conn_shut(agent->broker.fd); /* it says all anew */
    else if (!export->is_there)
        add(agent, export, shared, &handle);
}

static void take_back(struct agent *agent, struct export *export, bool goes)
{
    if (export->is_there) {
        jobs_write(agent->jobs, DIRECTORY_EXPORTS, export->id, NULL, 0);
        HASH_DELETE(by_id, agent->exports_by_id, export);
        sodium_memzero(&export->handle, sizeof export->handle);
        sodium_memzero(&export->sealed, sizeof export->sealed);
    }
    export->is_there = false;
    if (!goes)
        return;
    HASH_DEL(agent->exports, export);
    free(export);
}

void exporter_unshare(struct agent *agent, const struct gs_wire_close *unshared)
{
    const struct lease_block block = lease_block_of(unshared->instance, unshared->block_id);
    struct export *export = exporter_find(agent, &block);

    if (export)
        take_back(agent, export, true);
}

/* ---- Being asked ---------------------------------------------------------------------------- */

static void refuse(struct agent *agent, struct peer *peer, uint64_t lease, uint32_t reason,
                   uint32_t driver_error)
{
    union talk refused;

    talk_start(&refused, TALK_REFUSED);
    refused.refused.lease = lease;
    refused.refused.reason = reason;
    refused.refused.driver_error = driver_error;
    if (peer->in)
        link_send(peer->in, &refused);
}

/* Its leases of a block. */
static unsigned count_of(const struct agent *agent, const struct peer *peer,
                         const struct lease_block *block)
{
    const struct lease *lease;
    unsigned count = 0;

    DL_FOREACH(leases_of_block(&agent->leases, block), lease)
        count += memcmp(lease->key.machine, peer->machine, GS_MACHINE_SIZE) == 0;
    return count;
}

static const struct export *check(const struct agent *agent, const struct peer *peer,
                                  const struct talk_take *take, uint32_t *ret_reason)
{
    unsigned char proof[SEAL_PROOF];
    const struct export *export;

    *ret_reason = GS_REFUSED_UNHEARD; /* a new agent may be told of it in a moment */
    HASH_FIND(by_id, agent->exports_by_id, take->id, SEAL_ID, export);
    if (!export)
        return NULL;
    *ret_reason = GS_REFUSED_HANDLE;
    seal_proof(&export->handle, SEAL_IMPORTER, peer->machine, agent->machine, take->lease, proof);
    if (!gs_bytes_equal(proof, take->proof, sizeof proof))
        return NULL;
    *ret_reason = GS_REFUSED_MESSAGE;
    if (!take->lease || leases_find(&agent->leases, peer->machine, take->lease))
        return NULL;
    *ret_reason = GS_REFUSED_MEMORY;
    if (!leases_has_room(&agent->leases, peer->machine) ||
        count_of(agent, peer, &export->block) >= LEASES_OF_BLOCK)
        return NULL;
    if (!jobs_is_good(agent->jobs)) { /* cut off from the rest: nobody knows of what it hands out */
        *ret_reason = GS_REFUSED_DIRECTORY;
        return NULL;
    }
    *ret_reason = GS_REFUSED_MACHINE;
    return broker_is_there(agent) && agent->is_synced && peer->takes < TAKES_MAX ? export : NULL;
}

static void on_take(struct agent *agent, struct peer *peer, const struct talk_take *take)
{
    struct lease model = {.key.lease = take->lease, .named = true, .request = ++agent->requests},
                 *lease = NULL;
    union gs_wire_message ask;
    const struct export *export;
    uint32_t reason;

    export = check(agent, peer, take, &reason);
    if (export) {
        memcpy(model.key.machine, peer->machine, GS_MACHINE_SIZE);
        memcpy(model.exporter, peer->file, sizeof peer->file);
        model.block = export->block;
        lease = leases_add(&agent->leases, &model);
    }
    if (!lease) {
        refuse(agent, peer, take->lease, reason, 0);
        return;
    }
    leases_note(&agent->leases, LEASES_BOOT, peer->machine,
                peer->boot); /* with which it ends, as the next agent is to know */
    peer->takes++;
    HASH_ADD(by_request, agent->takes, request, sizeof lease->request, lease);
    gs_wire_start(&ask, GS_WIRE_OPEN, lease->request);
    gs_ipc_handle_write(&export->handle, ask.open.ipc_handle);
    ask.open.uid = take->uid;
    ask.open.gid = take->gid;
    broker_send(agent, &ask);
}

/* It is given, where `grant` says so and its machine waits still; else it ends. */
static void answer(struct agent *agent, struct lease *lease, const struct gs_wire_grant *grant,
                   uint32_t reason, uint32_t driver_error)
{
    struct peer *peer = peers_find(agent, lease->key.machine, false);
    const struct export *export = exporter_find(agent, &lease->block);
    union talk taken;

    HASH_DELETE(by_request, agent->takes, lease);
    lease->request = 0;
    peer->takes--;
    if (!grant || !export || lease->is_over) {
        if (!lease->is_over)
            refuse(agent, peer, lease->key.lease, reason, driver_error);
        leases_end(&agent->leases, lease);
        return;
    }
    talk_start(&taken, TALK_TAKEN);
    taken.taken.lease = lease->key.lease;
    seal_proof(&export->handle, SEAL_EXPORTER, peer->machine, agent->machine, lease->key.lease,
               taken.taken.proof);
    taken.taken.read_only = grant->read_only;
    if (peer->in)
        link_send(peer->in, &taken);
}

void exporter_answer(struct agent *agent, const union gs_wire_message *said)
{
    const struct gs_wire_grant *grant = said->head.type == GS_WIRE_GRANT ? &said->grant : NULL;
    const bool of_all = grant || said->refuse.reason == GS_REFUSED_ENDING;
    const uint32_t number = said->head.request;
    struct lease *lease, *next;
    struct lease_block block;

    HASH_FIND(by_request, agent->takes, &number, sizeof number, lease);
    if (!lease)
        return;
    block = lease->block;
    DL_FOREACH_SAFE(leases_of_block(&agent->leases, &block), lease, next) {
        if (lease->request &&
            (of_all ? (int32_t)(lease->request - number) <= 0 : lease->request == number))
            answer(agent, lease, grant, grant || of_all ? GS_REFUSED_HANDLE : said->refuse.reason,
                   grant ? 0 : said->refuse.driver_error);
    }
    let_go(agent, &block); /* or others of it have ended meanwhile */
}

/* ---- What a machine has --------------------------------------------------------------------- */

static struct lease *first_of(const struct agent *agent,
                              const unsigned char machine[GS_MACHINE_SIZE])
{
    const struct lease_side *side = leases_side(&agent->leases, machine);

    return side ? side->theirs : NULL;
}

static void say_recall(struct agent *agent, struct peer *peer, const struct lease_block *block)
{
    union talk recall;

    talk_start(&recall, TALK_RECALL);
    memcpy(recall.recall.instance, block->instance, GS_INSTANCE_SIZE);
    recall.recall.block_id = block->block_id;
    if (peer && peer->in && peer->in->is_ready)
        link_send(peer->in, &recall);
}

/* Its list is whole: others of its leases are over, but for those that its file may not have. Who
 * has them there nobody can say: they stay until it starts anew, or is forgotten. */
static void on_listed(struct agent *agent, struct peer *peer)
{
    struct lease *lease, *next;
    unsigned before = 0, after = 0, lost = 0;

    DL_FOREACH_SAFE2(first_of(agent, peer->machine), lease, next, next_there) {
        before++;
        after += lease->named;
        if (lease->named && lease->recalled)
            say_recall(agent, peer, &lease->block);
        else if (!lease->named && memcmp(lease->exporter, peer->file, sizeof peer->file) == 0)
            end_lease(agent, lease);
        else
            lost += !lease->named;
    }
    if (lost > 0)
        PEER_LOG(
            agent, peer, GS_LOG_WARNING,
            "machine %s has %u leases here that were in another file of its agent's: "
            "they stay until it is started anew, or gpushim cluster forget says that they are over",
            peer_name(peer), lost);
    peer->has_told = peer->has_listed = true;
    PEER_LOG(agent, peer, GS_LOG_INFO, "machine %s is here, with %u of %u leases", peer_name(peer),
             after, before);
}

void exporter_message(struct agent *agent, struct peer *peer, const union talk *message)
{
    const bool lists = message->head.type == TALK_KEPT || message->head.type == TALK_LISTED;
    struct lease *lease;

    if (message->head.type != TALK_HELLO && lists == peer->has_listed) {
        link_fail(peer->in, "its list is not what it says first, and once");
        return;
    }
    switch (message->head.type) {
    case TALK_HELLO: /* the list begins with the link */
        peer->has_listed = false;
        DL_FOREACH2(first_of(agent, peer->machine), lease, next_there)
            lease->named = false;
        break;
    case TALK_KEPT:
        lease = leases_find(&agent->leases, peer->machine, message->kept.lease);
        if (lease)
            lease->named = true;
        break;
    case TALK_LISTED:
        on_listed(agent, peer);
        break;
    case TALK_TAKE:
        on_take(agent, peer, &message->take);
        break;
    case TALK_ENDED:
        lease = leases_find(&agent->leases, peer->machine, message->ended.lease);
        if (lease)
            end_lease(agent, lease);
        break;
    default:
        link_fail(peer->in, "it says what is not its to say");
        break;
    }
}

void exporter_link_down(struct agent *agent, struct peer *peer)
{
    struct lease *lease;

    DL_FOREACH2(first_of(agent, peer->machine), lease, next_there)
        lease->is_over |= lease->request != 0;
}

unsigned exporter_end_all(struct agent *agent, const unsigned char machine[GS_MACHINE_SIZE])
{
    struct lease *lease, *next;
    unsigned count = 0;

    DL_FOREACH_SAFE2(first_of(agent, machine), lease, next, next_there) {
        end_lease(agent, lease);
        count++;
    }
    return count;
}

/* A block is freed: who has it only mapped gives it back. */
void exporter_recall(struct agent *agent, const struct gs_wire_close *recall)
{
    const struct lease_block block = lease_block_of(recall->instance, recall->block_id);
    struct lease *lease;

    DL_FOREACH(leases_of_block(&agent->leases, &block), lease) {
        if (lease_is_ours(lease))
            continue;
        lease->recalled = true;
        say_recall(agent, peers_find(agent, lease->key.machine, false), &lease->block);
    }
}

/* ---- The broker ----------------------------------------------------------------------------- */

void exporter_broker_gone(struct agent *agent)
{
    struct export *export, *next_export;
    struct lease *lease, *next;

    HASH_ITER(by_request, agent->takes, lease, next)
        answer(agent, lease, NULL, GS_REFUSED_MACHINE, 0);
    /* The next one says anew what there is; what this one did not is forgotten beyond a number. */
    HASH_ITER(hh, agent->exports, export, next_export)
        take_back(agent, export,
                  !export->is_there && HASH_COUNT(agent->exports) > agent->share->published_max);
}
