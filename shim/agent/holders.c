/*
 * Processes here that have memory of other machines open (agent.h). While their broker runs, it
 * says when they hold nothing more, and nothing here counts. When it has ended, what it had is
 * theirs until all of them have ended, which their pidfds say; then it rests for the settling time,
 * as the broker would let it. Which of them held what is not kept: it was the broker's to know.
 */
#include "shim/agent/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <utlist.h>

#include "core/share/alive.h"
#include "core/share/conn.h"

static bool is_same(const struct process *process, const struct process *other)
{
    return memcmp(process, other, sizeof *process) == 0;
}

/* In the file it has its broker's pid with it: it may have leases by several. */
static void key_of(const struct holder *holder, unsigned char ret_key[GS_MACHINE_SIZE])
{
    struct process key = holder->process;

    _Static_assert(sizeof key == GS_MACHINE_SIZE, "in a machine's place");
    key.zero = (uint32_t)holder->broker.pid;
    memcpy(ret_key, &key, sizeof key);
}

/* Takes the pidfd. */
static struct holder *add(struct agent *agent, int pidfd, struct process process,
                          struct process broker)
{
    struct holder *holder = calloc(1, sizeof *holder);

    if (holder) {
        *holder = (struct holder){.pidfd = pidfd, .process = process, .broker = broker};
        DL_APPEND(agent->holders, holder);
    } else if (pidfd >= 0) {
        close(pidfd);
    }
    return holder;
}

static void end(struct agent *agent, struct holder *holder)
{
    const struct holder *other;
    unsigned char key[GS_MACHINE_SIZE];

    key_of(holder, key);
    DL_FOREACH(agent->holders, other) { /* it has a connection for each that it imports from */
        if (other != holder && is_same(&other->process, &holder->process) &&
            is_same(&other->broker, &holder->broker))
            break;
    }
    if (holder->process.pid && !other) /* else there may be another */
        leases_unnote(&agent->leases, LEASES_HOLDER, key);
    if (holder->pidfd >= 0)
        close(holder->pidfd);
    DL_DELETE(agent->holders, holder);
    free(holder);
}

static void on_new(struct agent *agent, uint64_t number, int pidfd)
{
    const struct process broker = broker_process(agent),
                         process = process_of(gs_alive_pid_of(pidfd));
    struct holder *holder = add(agent, pidfd, process, broker), *old;
    unsigned char key[GS_MACHINE_SIZE];

    if (!holder) {
        gs_conn_shut(agent->broker.fd); /* it says all anew */
        return;
    }
    DL_FOREACH(agent->holders, old) { /* as the file has it */
        if (process.pid && !old->number && old != holder && is_same(&old->process, &process) &&
            is_same(&old->broker, &broker)) {
            end(agent, old);
            break;
        }
    }
    holder->number = number;
    key_of(holder, key);
    if (leases_note(&agent->leases, LEASES_HOLDER, key, &broker))
        return;
    end(agent, holder);
    gs_conn_shut(agent->broker.fd);
}

void holders_note(struct agent *agent, const struct gs_wire_hello *told, int *pidfd)
{
    const uint64_t number = told->holder;
    struct holder *holder;

    DL_FOREACH(agent->holders, holder) {
        if (number && holder->number == number)
            break;
    }
    if (!told->holds && holder) {
        end(agent, holder);
    } else if (told->holds && !holder && number) {
        on_new(agent, number, *pidfd);
        *pidfd = -1;
    }
}

void holders_orphan(struct agent *agent)
{
    struct lease *lease, *next;
    struct holder *holder;

    DL_FOREACH(agent->holders, holder)
        holder->number = 0;
    HASH_ITER(hh, agent->leases.all, lease, next) {
        if (lease_is_ours(lease))
            lease->named = false;
    }
}

void holders_restore(struct agent *agent)
{
    struct leases_note *note, *next;

    HASH_ITER(hh, agent->leases.notes, note, next) {
        struct process process, broker;
        struct holder *holder;
        int pidfd;

        if (note->key.mark != LEASES_HOLDER)
            continue;
        memcpy(&process, note->key.machine, sizeof process);
        memcpy(&broker, note->value, sizeof broker);
        process.zero = 0;
        pidfd = process_open(&process);
        holder = add(agent, pidfd, process, broker);
        if (holder && pidfd == -ESRCH)
            holder->exited_ns = gs_now_ns();
    }
}

/* Nobody of that broker's is left, and no broker has what it had. */
static void end_leases_of(struct agent *agent, const struct process *broker)
{
    const struct holder *holder;
    struct lease *lease, *next;

    DL_FOREACH(agent->holders, holder) {
        if (is_same(&holder->broker, broker))
            return;
    }
    HASH_ITER(hh, agent->leases.all, lease, next) {
        if (lease_is_ours(lease) && !lease->named && is_same(&lease->broker, broker))
            importer_end(agent, lease);
    }
}

void holders_look(struct agent *agent, uint64_t now_ns)
{
    struct holder *holder, *next;

    if (broker_is_there(agent) && !agent->is_synced)
        return; /* it has not said what it has */
    DL_FOREACH_SAFE(agent->holders, holder, next) {
        const struct process broker = holder->broker;

        if (holder->number)
            continue;
        if (!holder->exited_ns && holder->pidfd >= 0 && gs_alive_exited(holder->pidfd))
            holder->exited_ns = now_ns;
        if (!holder->exited_ns || now_ns - holder->exited_ns < agent->share->settle_ns)
            continue;
        end(agent, holder);
        end_leases_of(agent, &broker);
    }
}
