/* Which machines have what here, for people (agent.h; gpushim cluster), and who of them is to be
 * forgotten. */
#include "shim/agent/agent.h"

#include <stdio.h>
#include <string.h>

#include <utlist.h>

static enum gs_machine_state state_of(const struct peer *peer)
{
    if (peer->in)
        return peer->has_listed ? GS_MACHINE_LISTED : GS_MACHINE_LISTING;
    return peer->has_told ? GS_MACHINE_LOST : 0;
}

static void tell(const struct agent *agent, const unsigned char *machine, const char *name,
                 struct gs_wire_machine *told)
{
    const struct lease_side *side = leases_side(&agent->leases, machine);
    const uint64_t now = gs_now_ns();
    const struct lease *lease;

    memcpy(told->machine, machine, GS_MACHINE_SIZE);
    snprintf(told->name, sizeof told->name, "%s", name);
    DL_FOREACH2(side ? side->theirs : NULL, lease, next_there) {
        const struct export *export = exporter_find(agent, &lease->block);
        const uint64_t size = export ? export->handle.size : 0;

        if (lease->request)
            continue;
        told->leases++;
        told->bytes += size;
        told->limbo += lease->recalled;
        told->limbo_bytes += lease->recalled ? size : 0;
        if (now - lease->since_ns > told->age_ns)
            told->age_ns = now - lease->since_ns;
    }
}

/* Those that are here, or have something; the one with the index is told of. */
static void tell_machines(const struct agent *agent, uint32_t index, struct gs_wire_machine *told)
{
    const struct lease_side *unknown = leases_side(&agent->leases, agent_unknown);
    struct peer *peer, *next;

    HASH_ITER(hh, agent->peers, peer, next) {
        if ((!peer->in && !leases_side(&agent->leases, peer->machine)) || told->machines++ != index)
            continue;
        tell(agent, peer->machine, peer->known.name, told);
        told->state = state_of(peer);
    }
    if (unknown && told->machines++ == index)
        tell(agent, agent_unknown, "unknown", told);
}

static void forget(struct agent *agent, const char *name, struct gs_wire_machine *told)
{
    char id[HEX_SIZE(GS_MACHINE_SIZE)];
    struct peer *peer, *next;

    HASH_ITER(hh, agent->peers, peer, next) {
        gs_text_hex(peer->machine, GS_MACHINE_SIZE, id);
        if (strcmp(name, id) != 0 && strcmp(name, peer->known.name) != 0)
            continue;
        told->machines++;
        told->leases += exporter_end_all(agent, peer->machine);
    }
    if (strcmp(name, "unknown") == 0) {
        told->machines++;
        told->leases += exporter_end_all(agent, agent_unknown);
    }
    AGENT_LOG(agent, GS_LOG_WARNING, "machine %s is forgotten, as people say: %llu leases ended",
              name, (unsigned long long)told->leases);
}

void told_ask(struct agent *agent, const struct gs_wire_query *query)
{
    union gs_wire_message answer;

    gs_wire_start(&answer, GS_WIRE_REPORT, query->head.request);
    answer.report.machine.client = query->number;
    answer.report.machine.lease_ns = jobs_left_ns(agent->jobs);
    snprintf(answer.report.machine.directory, sizeof answer.report.machine.directory, "%s",
             agent->trouble);
    if (query->name[0])
        forget(agent, query->name, &answer.report.machine);
    else
        tell_machines(agent, query->index, &answer.report.machine);
    broker_send(agent, &answer);
}
