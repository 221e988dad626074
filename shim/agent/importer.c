/*
 * What processes here open of other machines (agent.h). An open looks the export up, finds its
 * machine, asks that machine's agent, and answers the broker; each step is done as an answer comes,
 * and all of them are over after AGENT_OPEN_NS, by importer_look, with a refusal that the process
 * sees as the driver's error for a handle of memory that cannot be reached.
 */
#include "shim/agent/agent.h"

#include <stdlib.h>

#include <utlist.h>

/* A program may send a handle before its agent has published it, or before the two agents have
 * heard of each other. So what is not known is asked for again, for as long as one write of the
 * directory may take and some more; then the handle is refused as one that is stale. Natively it
 * would be so at once. */
#define UNHEARD_NS  ((DIRECTORY_WAIT_S + 1) * GS_NS_PER_S)
#define WAIT_NS     (10 * GS_NS_PER_MS)
#define WAIT_MAX_NS (160 * GS_NS_PER_MS)

static void say_refused(struct agent *agent, uint32_t request, uint32_t reason,
                        uint32_t driver_error)
{
    union gs_wire_message answer;

    gs_wire_start(&answer, GS_WIRE_REFUSE, request);
    answer.refuse.reason = reason;
    answer.refuse.driver_error = driver_error;
    broker_send(agent, &answer);
}

/* Says that it is over, where that can be heard; else the next list does. */
static void say_ended(const struct peer *peer, uint64_t lease)
{
    union talk ended;

    if (!peer || !peer->out || !peer->out->is_ready)
        return;
    talk_start(&ended, TALK_ENDED);
    ended.ended.lease = lease;
    link_send(peer->out, &ended);
}

static void end_open(struct agent *agent, struct open *open)
{
    if (open->state == OPEN_ASKED)
        say_ended(open->peer, open->lease);
    HASH_DEL(agent->opens, open);
    free(open);
}

static void refuse(struct agent *agent, struct open *open, uint32_t reason, uint32_t driver_error)
{
    say_refused(agent, open->request, reason, driver_error);
    end_open(agent, open);
}

/* ---- Looking it up -------------------------------------------------------------------------- */

/* It is not known, or not reached: by now. */
static void later(struct agent *agent, struct open *open, uint32_t reason)
{
    const uint64_t now = gs_now_ns();

    if (now - open->since_ns >= UNHEARD_NS) {
        refuse(agent, open, reason, 0);
        return;
    }
    if (!open->wait_ns)
        AGENT_LOG(agent, GS_LOG_DEBUG, "an open waits, and is tried again: %s",
                  gs_wire_reason_text(reason));
    open->state = OPEN_WAITS;
    open->peer = NULL;
    open->wait_ns = !open->wait_ns                    ? WAIT_NS
                    : open->wait_ns * 2 < WAIT_MAX_NS ? open->wait_ns * 2
                                                      : WAIT_MAX_NS;
    open->again_ns = now + open->wait_ns;
}

static void look_up(struct agent *agent, struct open *open)
{
    if (!jobs_is_good(agent->jobs)) {
        later(agent, open, GS_REFUSED_DIRECTORY);
        return;
    }
    open->state = OPEN_LOOKS_UP;
    jobs_ask(agent->jobs, DIRECTORY_EXPORTS, open->id);
}

void importer_ask(struct agent *agent, const struct gs_wire_open *ask)
{
    struct open *open, *other,
        model = {.lease = ask->lease,
                 .request = ask->head.request,
                 .since_ns = gs_now_ns(),
                 .uid = ask->uid,
                 .gid = ask->gid};

    HASH_FIND(hh, agent->opens, &ask->lease, sizeof ask->lease, other);
    open = ask->lease && !other && !leases_find(&agent->leases, agent_nobody, ask->lease)
               ? malloc(sizeof *open)
               : NULL;
    if (!open) {
        say_refused(agent, ask->head.request, GS_REFUSED_MESSAGE, 0);
        return;
    }
    *open = model;
    HASH_ADD(hh, agent->opens, lease, sizeof open->lease, open);
    if (gs_ipc_handle_read(ask->ipc_handle, &open->handle) != GS_OK) {
        refuse(agent, open, GS_REFUSED_HANDLE, 0);
        return;
    }
    seal_id(&open->handle, open->id);
    look_up(agent, open);
}

/* What the directory has of an export: whose it is, and the seal. */
static bool read_export(struct open *open, const struct jobs_event *event,
                        struct known_export *ret_known)
{
    memcpy(ret_known, event->value, sizeof *ret_known);
    return event->size == sizeof *ret_known &&
           unseal(&open->handle, ret_known->sealed, &open->sealed) &&
           open->sealed.size == open->handle.size &&
           open->sealed.offset < open->sealed.chunk_size &&
           open->sealed.size <= open->sealed.chunk_size - open->sealed.offset;
}

static void take(struct agent *agent, struct open *open)
{
    union talk take;

    talk_start(&take, TALK_TAKE);
    memcpy(take.take.id, open->id, SEAL_ID);
    seal_proof(&open->handle, SEAL_IMPORTER, agent->machine, open->peer->machine, open->lease,
               take.take.proof);
    take.take.lease = open->lease;
    take.take.uid = open->uid;
    take.take.gid = open->gid;
    open->state = OPEN_ASKED;
    open->peer->asked = true;
    leases_note(&agent->leases, LEASES_ASKED, open->peer->machine, agent_nobody);
    link_send(open->peer->out, &take);
}

static void go_on(struct agent *agent, struct open *open, const struct jobs_event *event)
{
    struct known_export known;
    struct peer *peer;

    if (event->found == DIRECTORY_FAILED) {
        say_line(agent, &agent->log.directory, GS_LOG_WARNING, "an open fails: %s",
                 (const char *)event->value);
        later(agent, open, GS_REFUSED_DIRECTORY);
        return;
    }
    if (event->found == DIRECTORY_NONE) {
        later(agent, open, GS_REFUSED_UNHEARD);
        return;
    }
    if (!read_export(open, event, &known) ||
        memcmp(known.machine, agent->machine, GS_MACHINE_SIZE) == 0) {
        refuse(agent, open, GS_REFUSED_UNHEARD, 0);
        return;
    }
    peer = peers_find(agent, known.machine, true);
    if (!peer) {
        refuse(agent, open, GS_REFUSED_MACHINE, 0);
        return;
    }
    open->peer = peer;
    open->state = OPEN_CONNECTS;
    if (peer->out && peer->out->is_ready)
        take(agent, open);
    else if (!open->wait_ns)
        peer->retry_ns =
            0; /* peers_look connects: where that fails at once, opens end that others go through */
}

void importer_found(struct agent *agent, const struct jobs_event *event)
{
    struct open *open, *next;

    HASH_ITER(hh, agent->opens, open, next) {
        if (open->state == OPEN_LOOKS_UP && memcmp(open->id, event->key.id, SEAL_ID) == 0)
            go_on(agent, open, event);
    }
}

/* ---- The other machine's agent -------------------------------------------------------------- */

/* First all that we have there, then what waits. What is recalled there it says again. */
void importer_link_up(struct agent *agent, struct peer *peer)
{
    struct open *open, *next;
    struct lease *lease, *next_lease;
    union talk message;

    HASH_ITER(hh, agent->leases.all, lease, next_lease) {
        if (!lease_is_ours(lease) || memcmp(lease->exporter, peer->machine, GS_MACHINE_SIZE) != 0)
            continue;
        lease->recalled = false;
        talk_start(&message, TALK_KEPT);
        message.kept.lease = lease->key.lease;
        link_send(peer->out, &message);
    }
    talk_start(&message, TALK_LISTED);
    link_send(peer->out, &message);
    HASH_ITER(hh, agent->opens, open, next) {
        if (open->state == OPEN_CONNECTS && open->peer == peer && peer->out && !peer->out->is_dead)
            take(agent, open);
    }
}

/* What was asked for may have been given: the next list does not have it. Who was not asked yet may
 * only not have heard of this machine. */
void importer_link_down(struct agent *agent, struct peer *peer)
{
    struct open *open, *next;

    HASH_ITER(hh, agent->opens, open, next) {
        if (open->state == OPEN_CONNECTS && open->peer == peer)
            later(agent, open, GS_REFUSED_MACHINE);
        else if (open->state == OPEN_ASKED && open->peer == peer)
            refuse(agent, open, GS_REFUSED_MACHINE, 0);
    }
}

/* Whoever may write to the directory can put one machine in the place of another. That machine has
 * no lease of the memory to give, and the memory would be used again under the process that opens
 * it. */
static bool is_of_who_shared_it(const struct agent *agent, const struct open *open,
                                const struct talk_taken *taken)
{
    unsigned char proof[SEAL_PROOF];

    seal_proof(&open->handle, SEAL_EXPORTER, agent->machine, open->peer->machine, open->lease,
               proof);
    return gs_bytes_equal(proof, taken->proof, sizeof proof);
}

static void on_taken(struct agent *agent, struct open *open, const struct talk_taken *taken)
{
    struct lease model = {.key.lease = open->lease,
                          .block = lease_block_of(open->handle.instance, open->handle.block_id),
                          .named = true};
    struct lease *lease;
    union gs_wire_message answer;

    if (!is_of_who_shared_it(agent, open, taken)) {
        PEER_LOG(agent, open->peer, GS_LOG_WARNING,
                 "machine %s gives memory that it did not share: that is "
                 "refused; see who may write to the directory",
                 peer_name(open->peer));
        refuse(agent, open, GS_REFUSED_MACHINE, 0);
        return;
    }
    memcpy(model.exporter, open->peer->machine, GS_MACHINE_SIZE);
    model.broker = broker_process(agent);
    lease = leases_add(&agent->leases, &model);
    if (!lease) {
        refuse(agent, open, GS_REFUSED_MACHINE, 0);
        return;
    }
    gs_wire_start(&answer, GS_WIRE_GRANT, open->request);
    answer.grant.far = 1;
    answer.grant.chunk_size = open->sealed.chunk_size;
    answer.grant.offset = open->sealed.offset;
    memcpy(answer.grant.uuid, open->sealed.uuid, sizeof answer.grant.uuid);
    memcpy(answer.grant.fabric, open->sealed.fabric, GS_FABRIC_SIZE);
    answer.grant.read_only = open->sealed.read_only || taken->read_only;
    broker_send(agent, &answer);
    HASH_DEL(agent->opens, open);
    free(open);
}

/* One lease may be of a broker that has ended, and have been recalled then: another is of this
 * one. */
static void on_recall(struct agent *agent, struct peer *peer, const struct talk_recall *recall)
{
    const struct lease_block block = lease_block_of(recall->instance, recall->block_id);
    struct lease *lease;
    union gs_wire_message message;
    bool is_new = false;

    DL_FOREACH(leases_of_block(&agent->leases, &block), lease) {
        if (!lease_is_ours(lease) || memcmp(lease->exporter, peer->machine, GS_MACHINE_SIZE) != 0)
            continue;
        is_new |= !lease->recalled;
        lease->recalled = true;
    }
    if (!is_new)
        return;
    gs_wire_start(&message, GS_WIRE_RECALL, 0);
    memcpy(message.recall.instance, recall->instance, GS_INSTANCE_SIZE);
    message.recall.block_id = recall->block_id;
    broker_send(agent, &message);
}

void importer_message(struct agent *agent, struct peer *peer, const union talk *message)
{
    const uint64_t number =
        message->head.type == TALK_TAKEN ? message->taken.lease : message->refused.lease;
    struct open *open = NULL;

    if (message->head.type == TALK_RECALL) {
        on_recall(agent, peer, &message->recall);
        return;
    }
    if (message->head.type != TALK_TAKEN && message->head.type != TALK_REFUSED) {
        link_fail(peer->out, "it says what is not its to say");
        return;
    }
    HASH_FIND(hh, agent->opens, &number, sizeof number, open);
    if (!open || open->state != OPEN_ASKED || open->peer != peer)
        return; /* it came too late, and that it is over was said */
    if (message->head.type == TALK_TAKEN)
        on_taken(agent, open, &message->taken);
    else if (message->refused.reason == GS_REFUSED_UNHEARD ||
             message->refused.reason == GS_REFUSED_MACHINE ||
             message->refused.reason == GS_REFUSED_DIRECTORY)
        later(agent, open,
              message->refused.reason); /* its agent does not know it yet, or its broker */
    else
        refuse(agent, open,
               message->refused.reason == GS_REFUSED_HANDLE ? GS_REFUSED_UNHEARD
                                                            : message->refused.reason,
               message->refused.driver_error);
}

/* ---- The end -------------------------------------------------------------------------------- */

void importer_end(struct agent *agent, struct lease *lease)
{
    say_ended(peers_find(agent, lease->exporter, false), lease->key.lease);
    leases_end(&agent->leases, lease);
}

void importer_ended(struct agent *agent, uint64_t number)
{
    struct lease *lease = leases_find(&agent->leases, agent_nobody, number);
    struct open *open;

    HASH_FIND(hh, agent->opens, &number, sizeof number, open);
    if (lease)
        importer_end(agent, lease);
    else if (open)
        end_open(agent, open);
}

void importer_broker_gone(struct agent *agent)
{
    struct open *open, *next;

    HASH_ITER(hh, agent->opens, open, next)
        end_open(agent, open);
}

bool importer_look(struct agent *agent, uint64_t now_ns)
{
    struct open *open, *next;
    bool waits = false;

    HASH_ITER(hh, agent->opens, open, next) {
        if (open->state == OPEN_WAITS) {
            waits = true;
            if (now_ns >= open->again_ns)
                look_up(agent, open);
            continue;
        }
        if (now_ns - open->since_ns < AGENT_OPEN_NS)
            continue;
        refuse(agent, open,
               open->state == OPEN_LOOKS_UP ? GS_REFUSED_DIRECTORY : GS_REFUSED_MACHINE, 0);
    }
    return waits;
}
