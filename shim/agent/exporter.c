/*
 * What other machines open here (agent.h): publishing exports, and asking the broker for whom a machine
 * asks. Who may open it the broker decides; that he has the handle, and who he is here, is seen to
 * before it is asked.
 */
#include "shim/agent/agent.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>
#include <sodium.h>
#include <utlist.h>

#define TAKES_MAX 256 /* of one machine, that the broker has not answered: more come again */

/* ---- Exports -------------------------------------------------------------------------------- */

static struct export *find(const struct agent *agent, const unsigned char *instance, uint64_t block_id)
{
    struct lease_block block = {.block_id = block_id};
    struct export *export;

    memcpy(block.instance, instance, sizeof block.instance);
    HASH_FIND(hh, agent->exports, &block, sizeof block, export);
    return export;
}

static void write_export(struct agent *agent, const struct export *export)
{
    unsigned char sealed[SEALED_SIZE];
    char machine[HEX_SIZE(GS_MACHINE_SIZE)], text[2 * SEALED_SIZE], key[DIRECTORY_KEY];
    char value[DIRECTORY_VALUE];

    seal(&export->handle, &export->sealed, sealed);
    gs_text_hex(agent->machine, GS_MACHINE_SIZE, machine);
    sodium_bin2base64(text, sizeof text, sealed, sizeof sealed, sodium_base64_VARIANT_ORIGINAL);
    agent_key(JOBS_EXPORTS, export->id, key);
    snprintf(value, sizeof value, "{\"machine\":\"%s\",\"sealed\":\"%s\"}", machine, text);
    jobs_write(agent->jobs, key, value, strlen(value));
}

void exporter_write_all(struct agent *agent)
{
    struct export *export, *next;

    HASH_ITER(hh, agent->exports, export, next)
        write_export(agent, export);
}

void exporter_share(struct agent *agent, const struct gs_wire_shared_afar *shared)
{
    struct export *export;
    struct gs_ipc_handle handle;

    if (gs_ipc_handle_read(shared->ipc_handle, &handle) != GS_OK)
        return;
    export = find(agent, handle.instance, handle.block_id);
    if (export) { /* said again, by another broker */
        export->named = true;
        return;
    }
    export = calloc(1, sizeof *export);
    if (!export)
        return;
    export->handle = handle;
    memcpy(export->block.instance, handle.instance, GS_INSTANCE_SIZE);
    export->block.block_id = handle.block_id;
    export->sealed = (struct sealed){.size = handle.size,
                                     .offset = shared->offset,
                                     .chunk_size = shared->chunk_size,
                                     .read_only = shared->read_only};
    memcpy(export->sealed.uuid, shared->uuid, sizeof shared->uuid);
    memcpy(export->sealed.fabric, shared->fabric, GS_FABRIC_SIZE);
    export->named = true;
    seal_id(&handle, export->id);
    HASH_ADD(hh, agent->exports, block, sizeof export->block, export);
    HASH_ADD(by_id, agent->exports_by_id, id, SEAL_ID, export);
    write_export(agent, export);
}

static void take_back(struct agent *agent, struct export *export)
{
    char key[DIRECTORY_KEY];

    agent_key(JOBS_EXPORTS, export->id, key);
    jobs_write(agent->jobs, key, NULL, 0);
    HASH_DEL(agent->exports, export);
    HASH_DELETE(by_id, agent->exports_by_id, export);
    sodium_memzero(export, sizeof *export);
    free(export);
}

void exporter_unshare(struct agent *agent, const struct gs_wire_block_afar *unshared)
{
    struct export *export = find(agent, unshared->instance, unshared->block_id);

    if (export)
        take_back(agent, export);
}

/* What the broker before this one served, and nobody said again. */
void exporter_look(struct agent *agent, uint64_t now_ns)
{
    struct export *export, *next;

    if (!agent->sweep_ns || now_ns < agent->sweep_ns)
        return;
    agent->sweep_ns = 0;
    HASH_ITER(hh, agent->exports, export, next) {
        if (!export->named)
            take_back(agent, export);
    }
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
        link_send(&agent->links, peer->in, &refused);
}

/* Who he is here. False: nobody of that name. As in opener.c, all waits for the database of users. */
static bool find_user(const struct agent *agent, const struct talk_take *take, uint32_t *ret_uid,
                      uint32_t *ret_gid)
{
    const struct passwd *user;
    const struct group *group;

    *ret_uid = take->uid;
    *ret_gid = take->gid;
    if (agent->has_secret)
        return true;
    if (!memchr(take->user, 0, TALK_NAME) || !memchr(take->group, 0, TALK_NAME))
        return false;
    user = take->user[0] ? getpwnam(take->user) : NULL;
    if (!user)
        return false;
    *ret_uid = user->pw_uid;
    group = take->group[0] ? getgrnam(take->group) : NULL;
    *ret_gid = group ? group->gr_gid : (uint32_t)-1;
    return true;
}

/* Its leases of a block. */
static unsigned count_of(const struct agent *agent, const struct peer *peer, const struct lease_block *block)
{
    const struct lease_group *group = leases_of_block(&agent->leases, block->instance, block->block_id);
    const struct lease *lease;
    unsigned count = 0;

    DL_FOREACH(group ? group->leases : NULL, lease)
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
    seal_proof(&export->handle, SEAL_OPENER, peer->machine, agent->machine, take->lease, proof);
    if (!gs_bytes_equal(proof, take->proof, sizeof proof))
        return NULL;
    *ret_reason = GS_REFUSED_MESSAGE;
    if (!take->lease || leases_find(&agent->leases, peer->machine, take->lease))
        return NULL;
    *ret_reason = GS_REFUSED_MEMORY;
    if (!leases_has_room(&agent->leases, peer->machine, false) ||
        count_of(agent, peer, &export->block) >= LEASES_OF_BLOCK)
        return NULL;
    if (!jobs_is_good(agent->jobs)) { /* cut off from the rest: nobody knows of what it hands out */
        *ret_reason = GS_REFUSED_DIRECTORY;
        return NULL;
    }
    *ret_reason = GS_REFUSED_MACHINE;
    return broker_is_there(agent) && agent->is_synced && peer->takes < TAKES_MAX ? export : NULL;
}

/* What it has here ends with its boot: the next agent is to know which that was. */
static void note_holder(struct agent *agent, const struct peer *peer)
{
    leases_note(&agent->leases, LEASES_BOOT, peer->machine, peer->boot);
}

static void on_take(struct agent *agent, struct peer *peer, const struct talk_take *take)
{
    struct lease model = {.key.lease = take->lease, .named = true, .request = agent->requests + 1};
    union gs_wire_message ask;
    const struct export *export;
    struct take *asked;
    uint32_t reason, uid, gid;

    export = check(agent, peer, take, &reason);
    if (export && !find_user(agent, take, &uid, &gid)) {
        export = NULL;
        reason = GS_REFUSED_USER;
    }
    asked = export ? calloc(1, sizeof *asked) : NULL;
    if (asked) {
        memcpy(model.key.machine, peer->machine, GS_MACHINE_SIZE);
        model.block = export->block;
    }
    if (!asked || !leases_add(&agent->leases, &model)) {
        free(asked);
        refuse(agent, peer, take->lease, reason, 0);
        return;
    }
    note_holder(agent, peer);
    asked->request = ++agent->requests;
    asked->peer = peer;
    peer->takes++;
    asked->lease = take->lease;
    seal_proof(&export->handle, SEAL_EXPORTER, peer->machine, agent->machine, take->lease, asked->proof);
    HASH_ADD(hh, agent->takes, request, sizeof asked->request, asked);
    gs_wire_start(&ask, GS_WIRE_TAKE_AFAR, asked->request);
    gs_ipc_handle_write(&export->handle, ask.take_afar.ipc_handle);
    memcpy(ask.take_afar.machine, peer->machine, GS_MACHINE_SIZE);
    ask.take_afar.lease = take->lease;
    ask.take_afar.uid = uid;
    ask.take_afar.gid = gid;
    broker_send(agent, &ask);
}

static void tell_ended(struct agent *agent, const unsigned char *machine, uint64_t lease)
{
    union gs_wire_message ended;

    gs_wire_start(&ended, GS_WIRE_ENDED_AFAR, 0);
    memcpy(ended.ended_afar.machine, machine, GS_MACHINE_SIZE);
    ended.ended_afar.lease = lease;
    broker_send(agent, &ended);
}

static void end_take(struct agent *agent, struct take *take)
{
    take->peer->takes--;
    HASH_DEL(agent->takes, take);
    free(take);
}

/* The broker has answered a TAKE_AFAR. */
void exporter_answer(struct agent *agent, const union gs_wire_message *answer)
{
    const bool is_given = answer->head.type == GS_WIRE_OPENED_AFAR;
    struct lease *lease;
    struct take *take;
    union talk taken;

    HASH_FIND(hh, agent->takes, &answer->head.request, sizeof answer->head.request, take);
    if (!take)
        return;
    lease = leases_find(&agent->leases, take->peer->machine, take->lease);
    if (lease)
        lease->request = 0;
    if (lease && (!is_given || take->is_over))
        leases_end(&agent->leases, lease);
    if (is_given && (take->is_over || !lease)) {
        tell_ended(agent, take->peer->machine, take->lease);
    } else if (is_given) {
        talk_start(&taken, TALK_TAKEN);
        taken.taken.lease = take->lease;
        memcpy(taken.taken.proof, take->proof, SEAL_PROOF);
        taken.taken.read_only = answer->opened_afar.read_only;
        if (take->peer->in)
            link_send(&agent->links, take->peer->in, &taken);
    } else if (!take->is_over) {
        refuse(agent, take->peer, take->lease, answer->refuse.reason, answer->refuse.driver_error);
    }
    end_take(agent, take);
}

static void on_ended(struct agent *agent, struct peer *peer, uint64_t number)
{
    struct lease *lease = leases_find(&agent->leases, peer->machine, number);
    struct take *take = NULL;

    if (!lease)
        return;
    if (lease->request)
        HASH_FIND(hh, agent->takes, &lease->request, sizeof lease->request, take);
    if (take) {
        take->is_over = true; /* and ends when it is answered */
        return;
    }
    leases_end(&agent->leases, lease);
    tell_ended(agent, peer->machine, number);
}

/* ---- What a machine has --------------------------------------------------------------------- */

static struct lease *first_of(const struct agent *agent, const struct peer *peer)
{
    const struct lease_side *side = leases_side(&agent->leases, peer->machine);

    return side ? side->theirs : NULL;
}

static void tell_machine(struct agent *agent, const struct peer *peer, enum gs_machine_state state)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_MACHINE_AFAR, 0);
    memcpy(message.machine_afar.machine, peer->machine, GS_MACHINE_SIZE);
    memcpy(message.machine_afar.boot, peer->boot, GS_BOOT_BYTES);
    snprintf(message.machine_afar.name, sizeof message.machine_afar.name, "%s", peer->name);
    message.machine_afar.state = state;
    broker_send(agent, &message);
}

/* All that it has, as the broker is to know it. How many leases. */
static unsigned tell_list(struct agent *agent, const struct peer *peer)
{
    const struct lease *lease;
    union gs_wire_message kept;
    unsigned count = 0;

    tell_machine(agent, peer, GS_MACHINE_LISTING);
    DL_FOREACH2(first_of(agent, peer), lease, next_there) {
        gs_wire_start(&kept, GS_WIRE_KEPT_AFAR, 0);
        memcpy(kept.kept_afar.instance, lease->block.instance, GS_INSTANCE_SIZE);
        kept.kept_afar.block_id = lease->block.block_id;
        memcpy(kept.kept_afar.machine, peer->machine, GS_MACHINE_SIZE);
        kept.kept_afar.lease = lease->key.lease;
        broker_send(agent, &kept);
        count++;
    }
    tell_machine(agent, peer, GS_MACHINE_LISTED);
    return count;
}

static void say_recall(struct agent *agent, struct peer *peer, const struct lease_block *block)
{
    union talk recall;

    talk_start(&recall, TALK_RECALL);
    memcpy(recall.recall.instance, block->instance, GS_INSTANCE_SIZE);
    recall.recall.block_id = block->block_id;
    if (peer && peer->in && peer->in->is_ready)
        link_send(&agent->links, peer->in, &recall);
}

/* Its list is whole: others of its leases are over. */
static void on_listed(struct agent *agent, struct peer *peer)
{
    struct lease *lease, *next;
    unsigned before = 0, after;

    DL_FOREACH_SAFE2(first_of(agent, peer), lease, next, next_there) {
        before++;
        if (!lease->named)
            leases_end(&agent->leases, lease);
        else if (lease->recalled)
            say_recall(agent, peer, &lease->block);
    }
    peer->has_told = peer->has_listed = true;
    peer->is_lost = false;
    after = tell_list(agent, peer);
    PEER_LOG(agent, peer, GS_LOG_INFO, "machine %s is here, with %u of %u leases", peer_name(peer), after, before);
}

static void on_kept(struct agent *agent, struct peer *peer, const struct talk_kept *kept)
{
    struct lease *lease = leases_find(&agent->leases, peer->machine, kept->lease);
    struct lease model = {.key.lease = kept->lease, .block.block_id = kept->block_id, .said = true};

    memcpy(model.key.machine, peer->machine, GS_MACHINE_SIZE);
    memcpy(model.block.instance, kept->instance, GS_INSTANCE_SIZE);
    if (!lease && !agent->knows) { /* the file was lost; the broker knows whether there is one */
        if (!leases_has_room(&agent->leases, peer->machine, true)) {
            link_fail(&agent->links, peer->in, "it says that it has more here than there can be");
            return;
        }
        lease = leases_add(&agent->leases, &model);
        note_holder(agent, peer);
    }
    if (lease)
        lease->named = true;
}

/* The list begins with the link. */
static void begin_list(struct agent *agent, struct peer *peer)
{
    struct lease *lease;

    peer->has_listed = false;
    DL_FOREACH2(first_of(agent, peer), lease, next_there)
        lease->named = false;
}

void exporter_message(struct agent *agent, struct peer *peer, const union talk *message)
{
    const bool lists = message->head.type == TALK_KEPT || message->head.type == TALK_LISTED;

    if (message->head.type != TALK_HELLO && lists == peer->has_listed) {
        link_fail(&agent->links, peer->in, "its list is not what it says first, and once");
        return;
    }
    switch (message->head.type) {
    case TALK_HELLO:
        begin_list(agent, peer);
        if (message->hello.asks) {
            peers_say_kept(agent, peer->in, first_of(agent, peer));
            peers_say_listed(agent, peer->in);
        }
        break;
    case TALK_KEPT:
        on_kept(agent, peer, &message->kept);
        break;
    case TALK_LISTED:
        on_listed(agent, peer);
        break;
    case TALK_TAKE:
        on_take(agent, peer, &message->take);
        break;
    case TALK_ENDED:
        on_ended(agent, peer, message->ended.lease);
        break;
    default:
        link_fail(&agent->links, peer->in, "it says what is not its to say");
        break;
    }
}

void exporter_link_down(struct agent *agent, struct peer *peer)
{
    struct take *take, *next;

    HASH_ITER(hh, agent->takes, take, next) {
        if (take->peer == peer)
            take->is_over = true;
    }
    if (!first_of(agent, peer))
        return;
    peer->is_lost = true;
    tell_machine(agent, peer, GS_MACHINE_LOST);
}

static void end_all_of(struct agent *agent, struct peer *peer)
{
    struct lease *lease, *next;

    DL_FOREACH_SAFE2(first_of(agent, peer), lease, next, next_there)
        leases_end(&agent->leases, lease);
}

void exporter_new_boot(struct agent *agent, struct peer *peer)
{
    end_all_of(agent, peer);
    tell_list(agent, peer);
}

void exporter_forget(struct agent *agent, struct peer *peer)
{
    end_all_of(agent, peer);
    peer->is_lost = false;
    PEER_LOG(agent, peer, GS_LOG_WARNING, "machine %s is forgotten, as the broker was told", peer_name(peer));
}

/* A block is freed: who has it only mapped gives it back. */
void exporter_recall(struct agent *agent, const struct gs_wire_block_afar *recall)
{
    const struct lease_group *group = leases_of_block(&agent->leases, recall->instance, recall->block_id);
    struct lease *lease;

    for (lease = group ? group->leases : NULL; lease; lease = lease->next) {
        if (memcmp(lease->key.machine, agent_nobody, GS_MACHINE_SIZE) == 0)
            continue;
        lease->recalled = true;
        say_recall(agent, peers_find(agent, lease->key.machine, false), &lease->block);
    }
}

/* ---- The broker ----------------------------------------------------------------------------- */

void exporter_tell_broker(struct agent *agent)
{
    struct peer *peer, *next;
    union gs_wire_message all;

    HASH_ITER(hh, agent->peers, peer, next) {
        if ((!agent->knows && !peer->has_told) || (!peer->in && !first_of(agent, peer)))
            continue;
        tell_list(agent, peer);
        peer->is_lost = !peer->in;
        if (peer->is_lost)
            tell_machine(agent, peer, GS_MACHINE_LOST);
    }
    if (!agent->knows)
        return;
    gs_wire_start(&all, GS_WIRE_MACHINE_AFAR, 0);
    all.machine_afar.state = GS_MACHINE_LISTED;
    broker_send(agent, &all);
}

void exporter_broker_gone(struct agent *agent)
{
    struct export *export, *next_export;
    struct take *take, *next;

    HASH_ITER(hh, agent->takes, take, next) {
        struct lease *lease = leases_find(&agent->leases, take->peer->machine, take->lease);

        if (lease)
            leases_end(&agent->leases, lease);
        if (!take->is_over)
            refuse(agent, take->peer, take->lease, GS_REFUSED_MACHINE, 0);
        end_take(agent, take);
    }
    HASH_ITER(hh, agent->exports, export, next_export)
        export->named = false;
}
