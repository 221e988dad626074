/*
 * Broker: other machines that have leases of blocks here, what they say that they have, and how all of a
 * machine's end: by its own word, a new boot of it, or an operator's (core/share/afar.h).
 */
#include "core/base/text.h"
#include "core/share/afar.h"

#include <stdlib.h>
#include <string.h>

#define MACHINES_MAX 65536

static const unsigned char nobody[GS_MACHINE_SIZE]; /* whose leases nobody knows */

static struct gs_machine *find(struct gs_share *share, const unsigned char *id)
{
    struct gs_machine *machine;

    HASH_FIND(hh, share->store.afar.machines, id, GS_MACHINE_SIZE, machine);
    return machine;
}

struct gs_machine *gs_machine_of(struct gs_share *share, const unsigned char *id)
{
    struct gs_machine *machine = find(share, id);

    if (machine)
        return machine;
    if (HASH_COUNT(share->store.afar.machines) < MACHINES_MAX)
        machine = calloc(1, sizeof *machine);
    if (!machine)
        return NULL;
    memcpy(machine->id, id, sizeof machine->id);
    HASH_ADD(hh, share->store.afar.machines, id, sizeof machine->id, machine);
    if (machine->hh.tbl)
        return machine;
    free(machine);
    return NULL;
}

/* Ends the machine's leases, or those that it has not named lately; how many. */
static unsigned end_leases(struct gs_share *share, const unsigned char *id, bool all)
{
    struct gs_lease *lease, *next;
    unsigned count = 0;

    HASH_ITER(hh, share->store.afar.leases, lease, next)
    {
        if (memcmp(lease->key.machine, id, GS_MACHINE_SIZE) != 0 || (!all && lease->kept))
            continue;
        gs_lease_end(share, lease);
        count++;
    }
    return count;
}

static void begin_list(struct gs_share *share, const unsigned char *id)
{
    struct gs_lease *lease, *next;

    HASH_ITER(hh, share->store.afar.leases, lease, next)
    {
        if (memcmp(lease->key.machine, id, GS_MACHINE_SIZE) == 0)
            lease->kept = false;
    }
}

static void take_name(struct gs_machine *machine, const char *name)
{
    memcpy(machine->name, name, sizeof machine->name - 1);
}

static void note_boot(struct gs_share *share, struct gs_machine *machine, const unsigned char *boot)
{
    unsigned count;

    if (memcmp(machine->boot, nobody, sizeof machine->boot) != 0 &&
        memcmp(machine->boot, boot, sizeof machine->boot) != 0) {
        count = end_leases(share, machine->id, true);
        gs_log_line(&share->log, GS_LOG_INFO,
                    "machine %s was started anew: the %u blocks that it had open are not any more",
                    machine->name, count);
    }
    memcpy(machine->boot, boot, sizeof machine->boot);
}

/* All that there is was named: what is held for nobody whom a machine has named is held no more. */
static void end_unknown(struct gs_share *share)
{
    if (!share->store.afar.knows)
        return;
    share->store.afar.listed = true;
    end_leases(share, nobody, true);
}

bool gs_machine_came(struct gs_share *share, const struct gs_wire_machine_afar *message)
{
    struct gs_machine *machine;

    if (message->zero || message->state < GS_MACHINE_LISTING || message->state > GS_MACHINE_LOST)
        return false;
    if (gs_machine_is_nobody(message->machine)) {
        if (message->state == GS_MACHINE_LISTED)
            end_unknown(share);
        return message->state == GS_MACHINE_LISTED;
    }
    machine = gs_machine_of(share, message->machine);
    if (!machine)
        return true; /* what it has stays as it is */
    take_name(machine, message->name);
    if (message->state == GS_MACHINE_LISTING) {
        note_boot(share, machine, message->boot);
        begin_list(share, machine->id);
    } else if (message->state == GS_MACHINE_LISTED && machine->state == GS_MACHINE_LISTING) {
        end_leases(share, machine->id, false);
    } else if (message->state == GS_MACHINE_LOST && machine->state != GS_MACHINE_LOST) {
        gs_log_line(&share->log, GS_LOG_INFO,
                    "machine %s cannot be reached: what it has open stays its own until it is back, "
                    "or gpushim cluster forget says that it is gone",
                    machine->name);
    }
    machine->state = message->state;
    return true;
}

bool gs_kept_came(struct gs_share *share, const struct gs_wire_kept_afar *message)
{
    struct gs_lease_key key = {.lease = message->lease};
    struct gs_export_key block = {.id = message->block_id};
    struct gs_lease *lease;

    memcpy(key.machine, message->machine, sizeof key.machine);
    memcpy(block.instance, message->instance, sizeof block.instance);
    if (!key.lease || gs_machine_is_nobody(key.machine))
        return false;
    lease = gs_lease_find(share, &key);
    if (lease && memcmp(&lease->block, &block, sizeof block) != 0)
        return false;
    if (!lease && gs_machine_of(share, key.machine))
        lease = gs_lease_new(share, &key, &block);
    if (lease) {
        lease->kept = true;
        gs_lease_recall_again(share, lease);
        return true;
    }
    gs_log_line(&share->log, GS_LOG_WARNING,
                "a lease of another machine cannot be noted: no memory is left, or there are too "
                "many (debug.broker_blocks)");
    return true;
}

/* ---- What people ask and say ------------------------------------------------------------------ */

static void tell_forgotten(struct gs_share *share, const struct gs_machine *machine)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_MACHINE_AFAR, 0);
    memcpy(message.machine_afar.machine, machine->id, GS_MACHINE_SIZE);
    memcpy(message.machine_afar.name, machine->name, GS_MACHINE_NAME_SIZE);
    message.machine_afar.state = GS_MACHINE_FORGOTTEN;
    gs_agent_tell(share, &message, -1);
}

static bool is_called(const struct gs_machine *machine, const char *name)
{
    char text[2 * GS_MACHINE_SIZE + 1];

    gs_text_hex(machine->id, GS_MACHINE_SIZE, text);
    return strcmp(name, text) == 0 || (*name && strcmp(name, machine->name) == 0);
}

bool gs_forget_came(struct gs_share *share, struct gs_client *client,
                    const struct gs_wire_forget_afar *message)
{
    struct gs_machine *machine, *next;
    union gs_wire_message answer;

    if (!gs_user_is_own(client->uid) && client->uid != 0)
        return gs_client_refuse(share, client, message->head.request, GS_REFUSED_USER, 0);
    if (!memchr(message->machine, 0, sizeof message->machine))
        return gs_client_fault(client, "its message has fields that make no sense");
    gs_wire_start(&answer, GS_WIRE_FORGOTTEN_AFAR, message->head.request);
    HASH_ITER(hh, share->store.afar.machines, machine, next)
    {
        if (!is_called(machine, message->machine))
            continue;
        answer.forgotten_afar.machines++;
        answer.forgotten_afar.leases += end_leases(share, machine->id, true);
        tell_forgotten(share, machine);
        HASH_DEL(share->store.afar.machines, machine);
        free(machine);
    }
    if (strcmp(message->machine, "unknown") == 0) {
        answer.forgotten_afar.machines++;
        answer.forgotten_afar.leases += end_leases(share, nobody, true);
    }
    gs_log_line(&share->log, GS_LOG_WARNING, "process %d has machine %s forgotten: %u leases ended",
                (int)client->pid, message->machine, answer.forgotten_afar.leases);
    return gs_client_send(share, client, &answer, -1) == 0;
}

static void count_leases(struct gs_share *share, const unsigned char *id,
                         struct gs_wire_told_afar *told)
{
    const struct gs_lease *lease, *next;
    uint64_t now = gs_now_ns();

    HASH_ITER(hh, share->store.afar.leases, lease, next)
    {
        if (memcmp(lease->key.machine, id, GS_MACHINE_SIZE) != 0 || lease->pending)
            continue;
        told->leases++;
        if (now - lease->since_ns > told->age_ns)
            told->age_ns = now - lease->since_ns;
        if (!lease->export)
            continue;
        told->bytes += lease->export->source.size;
        told->limbo += lease->export->far->recalled;
        told->limbo_bytes += lease->export->far->recalled ? lease->export->source.size : 0;
    }
}

static void count_blocks(struct gs_share *share, struct gs_wire_told_afar *told)
{
    const struct gs_export *export, *next;

    HASH_ITER(hh, share->exporter.exports, export, next)
    {
        told->shared += export->far && !gs_export_is_borrowed(export);
        told->opened += gs_export_is_borrowed(export);
        told->opened_bytes += gs_export_is_borrowed(export) ? export->source.size : 0;
    }
}

static void tell_machine(struct gs_share *share, const unsigned char *id,
                         const char name[GS_MACHINE_NAME_SIZE], uint32_t state,
                         struct gs_wire_told_afar *told)
{
    memcpy(told->machine, id, sizeof told->machine);
    memcpy(told->name, name, sizeof told->name);
    told->state = state;
    count_leases(share, id, told);
}

bool gs_ask_afar_came(struct gs_share *share, struct gs_client *client,
                      const struct gs_wire_ask_afar *message)
{
    struct gs_wire_told_afar unknown = {.name = "unknown"};
    struct gs_machine *machine, *next;
    union gs_wire_message answer;
    struct gs_wire_told_afar *told = &answer.told_afar;
    const struct gs_client *agent = gs_agent_of(share);
    uint32_t index = 0;

    if (!gs_user_is_own(client->uid) && client->uid != 0)
        return gs_client_refuse(share, client, message->head.request, GS_REFUSED_USER, 0);
    gs_wire_start(&answer, GS_WIRE_TOLD_AFAR, message->head.request);
    told->has_agent = agent != NULL;
    told->agent_pid = agent ? (uint32_t)agent->pid : 0;
    told->machines = HASH_COUNT(share->store.afar.machines);
    count_blocks(share, told);
    HASH_ITER(hh, share->store.afar.machines, machine, next)
    {
        if (index++ == message->index)
            tell_machine(share, machine->id, machine->name, machine->state, told);
    }
    count_leases(share, nobody, &unknown);
    told->machines += unknown.leases > 0;
    if (unknown.leases > 0 && index == message->index)
        tell_machine(share, nobody, unknown.name, 0, told);
    return gs_client_send(share, client, &answer, -1) == 0;
}

void gs_machines_agent_gone(struct gs_share *share)
{
    struct gs_machine *machine, *next;

    HASH_ITER(hh, share->store.afar.machines, machine, next)
    machine->state = 0;
}

void gs_machines_free(struct gs_share *share)
{
    struct gs_machine *machine, *next;
    struct gs_lease *lease, *next_lease;

    HASH_ITER(hh, share->store.afar.leases, lease, next_lease)
    {
        HASH_DEL(share->store.afar.leases, lease);
        free(lease);
    }
    HASH_ITER(hh, share->store.afar.machines, machine, next)
    {
        HASH_DEL(share->store.afar.machines, machine);
        free(machine);
    }
}
