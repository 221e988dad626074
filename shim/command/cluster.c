/* gpushim cluster: what brokers have to do with other machines (core/share/cluster.h), and that one
 * of these is gone for good. */

#include "core/base/clock.h"
#include "core/base/text.h"
#include "shim/command/ask.h"

struct cluster {
    const char *forget; /* a machine; NULL: tells */
    struct json *json;
    unsigned brokers, machines, leases; /* and what was forgotten */
    bool failed;
};

/* What one message says of all, and of the machine that was asked for. What tell_broker begins in
 * JSON tell ends. */
static void tell_broker(struct json *json, const struct gs_wire_machine *told, long pid)
{
    char agent[32] = "no agent";

    json_open(json, NULL, '{');
    json_number(json, "pid", (uint64_t)pid);
    json_number(json, "agent_pid", told->has_agent ? told->agent_pid : 0);
    json_bool(json, "has_agent", told->has_agent != 0);
    json_thousandths(json, "lease_seconds", told->lease_ns / 1000000);
    json_text(json, "directory", told->directory[0] ? told->directory : NULL);
    json_number(json, "shared_blocks", told->shared);
    json_number(json, "opened_blocks", told->opened);
    json_number(json, "opened_bytes", told->opened_bytes);
    json_open(json, "machines", '[');
    if (json)
        return;
    if (told->has_agent)
        snprintf(agent, sizeof agent, "agent pid %u", told->agent_pid);
    command_say(
        "broker pid %ld: %s; %llu blocks may be opened on other machines; %llu of other machines, %s, are open "
        "here; %u machines have something of it",
        pid, agent, (unsigned long long)told->shared, (unsigned long long)told->opened,
        show_size(told->opened_bytes).text, told->machines);
    if (told->lease_ns)
        command_say("  lease: the agent's lease of the directory has %.1f s left",
                    (double)told->lease_ns / (double)GS_NS_PER_S);
    else if (told->has_agent)
        command_say(
            "  lease, WRONG: the agent has no lease of the directory: nothing is opened from "
            "other machines or handed out to them until it has");
    if (told->has_agent)
        command_say("  directory%s: %s", told->directory[0] ? ", WRONG" : "",
                    told->directory[0] ? told->directory : "the agent is heard by it");
}

static void tell_machine(struct json *json, const struct gs_wire_machine *told)
{
    const char *state = told->state == GS_MACHINE_LISTED    ? "there"
                        : told->state == GS_MACHINE_LOST    ? "lost"
                        : told->state == GS_MACHINE_LISTING ? "comes back"
                                                            : "not heard of";
    char id[2 * GS_MACHINE_SIZE + 1];

    gs_text_hex(told->machine, GS_MACHINE_SIZE, id);
    json_open(json, NULL, '{');
    json_text(json, "id", id);
    json_text(json, "name", told->name);
    json_text(json, "state", state);
    json_number(json, "leases", told->leases);
    json_number(json, "bytes", told->bytes);
    json_number(json, "freed_leases", told->limbo);
    json_number(json, "freed_bytes", told->limbo_bytes);
    json_thousandths(json, "age_seconds", told->age_ns / 1000000);
    json_close(json, '}');
    if (!json)
        command_say(
            "  machine %s (%s), %s: %llu leases, %s, the oldest for %s; of freed blocks %llu, %s",
            told->name[0] ? told->name : "without a name", id, state,
            (unsigned long long)told->leases, show_size(told->bytes).text,
            show_age(told->age_ns).text, (unsigned long long)told->limbo,
            show_size(told->limbo_bytes).text);
}

/* `forget`: it is to be forgotten; or NULL. */
static int ask_machine(int fd, uint32_t index, const char *forget,
                       union gs_wire_message *ret_answer)
{
    struct gs_wire_query query = {.index = index, .about = GS_ABOUT_MACHINE};
    int error;

    if (forget)
        strncpy(query.name, forget, sizeof query.name - 1);
    error = ask_about(fd, &query, ret_answer, NULL);
    ret_answer->report.machine.name[GS_MACHINE_NAME_SIZE - 1] = 0;
    ret_answer->report.machine.directory[sizeof ret_answer->report.machine.directory - 1] = 0;
    return error;
}

static int tell(struct cluster *cluster, int fd, long pid, union gs_wire_message *ret_answer)
{
    const struct gs_wire_machine *told = &ret_answer->report.machine;
    uint32_t machines = 0;
    int error;

    for (uint32_t i = 0; i == 0 || i < machines; i++) {
        error = ask_machine(fd, i, NULL, ret_answer);
        if (error)
            break;
        if (i == 0)
            tell_broker(cluster->json, told, pid);
        machines = told->machines;
        if (i < machines)
            tell_machine(cluster->json, told);
    }
    if (!error || machines) {
        json_close(cluster->json, ']');
        json_close(cluster->json, '}');
    }
    return error;
}

static int forget(struct cluster *cluster, int fd, union gs_wire_message *ret_answer)
{
    int error = ask_machine(fd, 0, cluster->forget, ret_answer);

    if (!error) {
        cluster->machines += ret_answer->report.machine.machines;
        cluster->leases += (unsigned)ret_answer->report.machine.leases;
    }
    return error;
}

static int greet(int fd)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    strcpy(message.hello.name, "gpushim");
    message.hello.pid = (uint64_t)getpid();
    return gs_wire_send(fd, &message, -1);
}

static void look_at(void *arg, int fd, const char *name, struct who *who)
{
    struct cluster *cluster = arg;
    union gs_wire_message answer = {.head = {0}};
    char reason[128];
    int error;

    if (!ask_is_broker(name))
        return;
    cluster->brokers++;
    error = greet(fd);
    if (!error)
        error =
            cluster->forget ? forget(cluster, fd, &answer) : tell(cluster, fd, who->pid, &answer);
    if (error) {
        cluster->failed = true;
        ask_order_silence(reason, sizeof reason, error, &answer);
        command_complain("the broker, process %ld: %s", who->pid, reason);
    }
}

static int say_forgotten(const struct cluster *cluster)
{
    if (cluster->machines && !cluster->failed)
        return command_say("machine %s is forgotten: %u leases ended", cluster->forget,
                           cluster->leases);
    if (!cluster->failed)
        command_complain(
            "no broker here has anything to do with a machine '%s' (gpushim cluster lists them)",
            cluster->forget);
    return COMMAND_WRONG;
}

int command_cluster(const struct call *call)
{
    struct cluster cluster = {.forget = call->argc ? call->argv[1] : NULL};
    const char *wrong;

    if (call->argc && (call->argc != 2 || strcmp(call->argv[0], "forget") != 0))
        return call_wrong(call, "cluster knows 'forget MACHINE' alone");
    if (call->argc && call_has(call, "json"))
        return call_wrong(call, "cluster forget has nothing for --json");
    cluster.json = call_json(call, true);
    wrong = ask_each(NULL, look_at, &cluster);
    if (cluster.forget)
        return say_forgotten(&cluster);
    json_end(cluster.json);
    if (wrong)
        command_complain("%s", wrong);
    else if (!cluster.brokers && !cluster.json)
        command_say("no broker runs here: memory stays on this machine (share.strategy)");
    return cluster.failed || wrong ? COMMAND_WRONG : COMMAND_WELL;
}
