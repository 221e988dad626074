/*
 * Processes here that have memory of other machines open (agent.h). While their broker runs, it says
 * when they hold nothing more, and nothing here counts. When it has ended, what they held is theirs
 * until they have ended, which their pidfds say; then it rests for the settling time, as the broker
 * would let it.
 */
#include "shim/agent/agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <utlist.h>

/* As this process sees him: 0: it does not. */
static pid_t pid_of(int pidfd)
{
    char path[64], line[128];
    long pid = 0;
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "Pid: %ld", &pid) == 1)
            break;
    }
    if (file)
        fclose(file);
    return pid > 0 ? (pid_t)pid : 0;
}

/* The broker sent the pidfd and may have it still: then a close alone leaves its place in the epoll, which would
 * tell of a holder that has been freed. */
static void stop_watching(struct holder *holder)
{
    if (holder->source.fd >= 0) {
        epoll_ctl(holder->agent->epoll, EPOLL_CTL_DEL, holder->source.fd, NULL);
        close(holder->source.fd);
    }
    holder->source.fd = -1;
}

static void on_exit_of(struct source *source, uint32_t events)
{
    struct holder *holder = (struct holder *)source;

    holder->exited_ns = gs_now_ns();
    stop_watching(holder);
}

/* Takes the pidfd. */
static struct holder *add(struct agent *agent, uint64_t number, int pidfd, struct process process)
{
    struct holder *holder = calloc(1, sizeof *holder);

    if (!holder) {
        if (pidfd >= 0)
            close(pidfd);
        return NULL;
    }
    *holder = (struct holder){.source = {.fd = pidfd, .ready = on_exit_of},
                              .id = ++agent->holder_ids,
                              .number = number,
                              .process = process,
                              .agent = agent};
    if (pidfd >= 0 && !loop_add(agent->epoll, &holder->source, EPOLLIN))
        stop_watching(holder);
    DL_APPEND(agent->holders, holder);
    return holder;
}

static struct holder *of_number(const struct agent *agent, uint64_t number)
{
    struct holder *holder;

    DL_FOREACH(agent->holders, holder) {
        if (number && holder->number == number)
            return holder;
    }
    return NULL;
}

void holders_note(struct agent *agent, const struct gs_wire_holder_afar *told, int pidfd)
{
    struct holder *holder = of_number(agent, told->holder);

    if (told->gone && holder) {
        stop_watching(holder); /* what the kernel said of it may lie there: holders_look frees it */
        holder->number = 0;
        holder->is_gone = true;
    } else if (!told->gone && !holder && told->holder) {
        add(agent, told->holder, pidfd, process_of(pidfd < 0 ? 0 : pid_of(pidfd)));
        return;
    }
    if (pidfd >= 0)
        close(pidfd);
}

struct lease_held holders_find(const struct agent *agent, uint64_t number)
{
    const struct holder *holder = of_number(agent, number);

    return holder ? (struct lease_held){.holder = holder->id, .process = holder->process}
                  : (struct lease_held){0};
}

void holders_orphan(struct agent *agent)
{
    struct lease *lease, *next;
    struct holder *holder;

    DL_FOREACH(agent->holders, holder)
        holder->number = 0;
    HASH_ITER(hh, agent->leases.all, lease, next) {
        if (memcmp(lease->key.machine, agent_nobody, GS_MACHINE_SIZE) == 0)
            lease->named = false;
    }
}

void holders_restore(struct agent *agent)
{
    struct lease *lease, *next;

    HASH_ITER(hh, agent->leases.all, lease, next) {
        for (unsigned i = 0; i < lease->held_count; i++) {
            struct lease_held *held = &lease->held[i];
            struct holder *holder;
            bool unknown;
            int pidfd;

            DL_FOREACH(agent->holders, holder) {
                if (held->process.pid && holder->process.pid == held->process.pid &&
                    holder->process.started == held->process.started)
                    break;
            }
            if (!holder) {
                pidfd = process_open(&held->process, &unknown);
                holder = unknown ? NULL : add(agent, 0, pidfd, held->process);
                if (holder && pidfd < 0)
                    holder->exited_ns = gs_now_ns();
            }
            held->holder = holder ? holder->id : 0;
        }
    }
}

/* What he alone held, and no broker has, is over. */
static void end_leases_of(struct agent *agent, const struct holder *holder)
{
    struct lease *lease, *next;

    HASH_ITER(hh, agent->leases.all, lease, next) {
        const bool is_ours = memcmp(lease->key.machine, agent_nobody, GS_MACHINE_SIZE) == 0;
        const unsigned before = lease->held_count;

        for (unsigned i = 0; is_ours && !lease->named && i < lease->held_count;) {
            if (lease->held[i].holder == holder->id)
                leases_drop(&agent->leases, lease, i);
            else
                i++;
        }
        if (is_ours && !lease->named && before > 0 && lease->held_count == 0)
            opener_end(agent, lease);
    }
}

void holders_look(struct agent *agent, uint64_t now_ns)
{
    struct holder *holder, *next;
    /* Whether a broker has it is known when that has said what it has. */
    const bool is_known = !broker_is_there(agent) || agent->is_synced;

    DL_FOREACH_SAFE(agent->holders, holder, next) {
        const bool is_over = is_known && !holder->number && holder->exited_ns &&
                             now_ns - holder->exited_ns >= agent->share->settle_ns;

        if (!is_over && !holder->is_gone)
            continue;
        if (!holder->is_gone)
            end_leases_of(agent, holder);
        DL_DELETE(agent->holders, holder);
        free(holder);
    }
}
