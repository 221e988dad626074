/* What happens next in a world: drawn from its seed, or read from a file. */
#include "simulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[DECIDE_KINDS] = {[DECIDE_RUN] = "run",
                                                [DECIDE_DO] = "do",
                                                [DECIDE_TIME] = "time",
                                                [DECIDE_START] = "start",
                                                [DECIDE_KILL] = "kill",
                                                [DECIDE_STOP] = "stop",
                                                [DECIDE_GO_ON] = "go-on",
                                                [DECIDE_EXEC] = "exec",
                                                [DECIDE_FORK] = "fork",
                                                [DECIDE_CHILD_ENDS] = "child-ends",
                                                [DECIDE_CLOSE] = "close-descriptor",
                                                [DECIDE_FDS] = "few-descriptors",
                                                [DECIDE_MEMORY] = "no-memory",
                                                [DECIDE_DRIVER] = "driver-fails",
                                                [DECIDE_FLIGHT] = "none-in-flight",
                                                [DECIDE_CLEAR] = "clear-folder",
                                                [DECIDE_AGENT] = "agent",
                                                [DECIDE_CUT] = "cut",
                                                [DECIDE_BOOT] = "boot",
                                                [DECIDE_WATCH] = "watch"};

/* How often each is drawn; each world has one of them more often. */
#define MORE 12
static const struct {
    uint8_t kind, weight;
} faults[] = {{DECIDE_KILL, 14},  {DECIDE_STOP, 14},      {DECIDE_GO_ON, 28}, {DECIDE_EXEC, 5},
              {DECIDE_FORK, 7},   {DECIDE_CHILD_ENDS, 9}, {DECIDE_CLOSE, 9},  {DECIDE_FDS, 5},
              {DECIDE_MEMORY, 3}, {DECIDE_DRIVER, 4},     {DECIDE_FLIGHT, 3}, {DECIDE_CLEAR, 1}};

#define FAULTS (sizeof faults / sizeof *faults)

static const uint8_t operations[] = {OP_EXPORT, OP_EXPORT, OP_EXPORT, OP_EXPORT,  OP_EXPORT,
                                     OP_EXPORT, OP_OPEN,   OP_OPEN,   OP_OPEN,    OP_OPEN,
                                     OP_OPEN,   OP_OPEN,   OP_OPEN,   OP_OPEN,    OP_USE,
                                     OP_USE,    OP_USE,    OP_USE,    OP_CLOSE,   OP_CLOSE,
                                     OP_CLOSE,  OP_CLOSE,  OP_CLOSE,  OP_FREE,    OP_FREE,
                                     OP_FREE,   OP_FREE,   OP_FREE,   OP_PASS_ON, OP_TRIM,
                                     OP_TRIM,   OP_SHORT,  OP_ASK};

/* Of each five worlds one has names, and of those with strips (strips.c) another one; the others
 * are what they were before there were any: those in which something was found are still run
 * (meson.build). */
static bool has_names(void)
{
    return (world.seed % 5 == 1 || world.seed % 50 == 4) && !world.cluster;
}

static unsigned draw_name(void)
{
    unsigned rare = sim_below(10);

    return rare < 4 ? OP_PUBLISH : rare < 9 ? OP_LOOK_UP : OP_UNPUBLISH;
}

/* ---- Drawing -------------------------------------------------------------------------------- */

static bool is_ready(const struct process *process, unsigned thread)
{
    return process->state == PROCESS_RUNS && !process->life->stopped &&
           process->threads[thread].state == FIBRE_READY;
}

static unsigned weight_of(unsigned fault)
{
    return faults[fault].weight * (world.seed % (FAULTS + 4) == fault ? MORE : 1);
}

static struct decision draw_fault(void)
{
    unsigned all = 0, at, i;

    for (i = 0; i < FAULTS; i++)
        all += weight_of(i);
    at = sim_below(all);
    for (i = 0; at >= weight_of(i); i++)
        at -= weight_of(i);
    return (struct decision){.kind = faults[i].kind,
                             .process = (uint8_t)sim_below(PROCESSES_MAX),
                             .arg = (uint16_t)sim_random()};
}

/* A handle of what was freed by a program that has ended then, as far as a few looks find one: a
 * broker must not serve it. */
static uint16_t draw_stale(void)
{
    unsigned count = world.handle_count < HANDLES_MAX ? world.handle_count : HANDLES_MAX, at = 0;

    for (unsigned i = 0; i < 4 && count > 0; i++) {
        at = sim_below(count);
        if (world.handles[at]->state == BLOCK_GONE && world.handles[at]->image->over)
            break;
    }
    return (uint16_t)at;
}

static struct decision draw_operation(unsigned process, unsigned thread)
{
    unsigned operation = operations[sim_below(sizeof operations)], rare = sim_below(1000);

    if (world.broker && operation == OP_OPEN && rare < 500)
        return (struct decision){.kind = DECIDE_DO,
                                 .process = (uint8_t)process,
                                 .thread = (uint8_t)thread,
                                 .operation = OP_OPEN,
                                 .arg = draw_stale()};
    if (has_names() && sim_below(4) == 0)
        operation = draw_name();
    if (has_sleepers() && (operation == OP_ASK || operation == OP_TRIM))
        operation = OP_SLEEP;
    if (rare < 6)
        operation = rare < 2 ? OP_CONTEXT : rare < 4 ? OP_EXIT : OP_END;
    return (struct decision){.kind = DECIDE_DO,
                             .process = (uint8_t)process,
                             .thread = (uint8_t)thread,
                             .operation = (uint8_t)operation,
                             .arg = (uint16_t)sim_random()};
}

/* One of the threads that can run, or of the programs that wait for what to do. */
static bool draw_thread(struct decision *ret)
{
    uint8_t ready[PROCESSES_MAX * THREADS], idle[PROCESSES_MAX * THREADS];
    unsigned ready_count = 0, idle_count = 0, at;

    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        for (unsigned k = 0; k < THREADS; k++) {
            if (is_ready(&world.processes[i], k))
                ready[ready_count++] = (uint8_t)(i * THREADS + k);
            else if (program_is_idle(&world.processes[i], k))
                idle[idle_count++] = (uint8_t)(i * THREADS + k);
        }
    if (ready_count > 0 && (idle_count == 0 || sim_below(100) < 75)) {
        at = ready[sim_below(ready_count)];
        *ret = (struct decision){.kind = DECIDE_RUN,
                                 .process = (uint8_t)(at / THREADS),
                                 .thread = (uint8_t)(at % THREADS),
                                 .arg = sim_below(2) ? (uint16_t)(1 + sim_below(12)) : 0};
        return true;
    }
    if (idle_count == 0 || sim_below(100) < 10)
        return false;
    at = idle[sim_below(idle_count)];
    *ret = draw_operation(at / THREADS, at % THREADS);
    return true;
}

static unsigned running(void)
{
    unsigned count = 0;

    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        count += world.processes[i].state == PROCESS_RUNS && !world.processes[i].is_broker &&
                 !world.processes[i].is_agent;
    return count;
}

/* An agent where there is none, the link cut or mended, or, each in one world of four, a machine
 * started anew or an agent that hears late; false: none of these. */
static bool draw_machines(struct decision *ret)
{
    unsigned rare = sim_below(1000), machine = rare % 2;

    ret->arg = (uint16_t)sim_random();
    if (rare < 30 && !machine_has_agent(machine))
        *ret = (struct decision){.kind = DECIDE_AGENT, .arg = (uint16_t)machine};
    else if (rare == 995 && world.fault_rate && world.seed % 4 == 1)
        *ret = (struct decision){.kind = DECIDE_BOOT, .arg = ret->arg};
    else if ((rare == 993 || rare == 994) && world.fault_rate && world.seed % 4 == 2)
        *ret = (struct decision){.kind = DECIDE_WATCH, .arg = ret->arg};
    else if (rare >= 996 && world.fault_rate)
        *ret = (struct decision){.kind = DECIDE_CUT, .arg = (uint16_t)(ret->arg % 3 == 0)};
    else
        return false;
    return true;
}

struct decision decide(void)
{
    struct decision decision = {.kind = DECIDE_TIME};
    unsigned rare = sim_below(1000);

    if (world.cluster && draw_machines(&decision))
        return decision;
    decision = (struct decision){.kind = DECIDE_TIME};

    if (running() < 2 || (rare < 10 && running() < world.process_count)) {
        decision.kind = DECIDE_START;
        decision.arg = world.cluster ? (uint16_t)sim_below(2) : 0;
        if (world.spaces)
            decision.arg = (uint16_t)(decision.arg + 2 * sim_below(3));
        return decision;
    }
    if (rare < world.fault_rate)
        return draw_fault();
    if (rare < 980)
        draw_thread(&decision);
    return decision;
}

/* ---- Doing ---------------------------------------------------------------------------------- */

static void end_child(unsigned arg)
{
    struct child *child = world.children;

    for (unsigned i = arg % 4; child && child->next && i > 0; i--)
        child = child->next;
    if (child)
        process_child_ends(child, arg % 61 * GS_NS_PER_MS);
}

static void fail_for(struct process *process, const struct decision *decision)
{
    unsigned soon = 1 + decision->arg % 32;

    if (decision->kind == DECIDE_FLIGHT && world.broker && decision->arg % 4 == 1) {
        process->sends_left = 1 + decision->arg / 4 % 8;
        return;
    }
    world.short_of_memory = true;
    if (decision->kind == DECIDE_MEMORY)
        process->allocations_left = soon;
    else if (decision->kind == DECIDE_DRIVER)
        process->driver_left = soon;
    else if (decision->kind == DECIDE_FLIGHT)
        process->no_flight = !process->no_flight;
    else
        process->fd_limit =
            process->fd_limit < FDS_MAX ? FDS_MAX : process->fd_count + 3 + decision->arg % 4;
    if (process->fd_limit > FDS_MAX)
        process->fd_limit = FDS_MAX;
}

static void close_unknown(struct process *process, unsigned which)
{
    if (!program_may_close(process))
        return;
    process->image->clean = false;
    world.closed_ns = process->lost_ns = world.now_ns;
    fd_close_unknown(process, which);
}

/* All of a group, as a container is ended. The children have the GPU last, and their parent, which
 * has nothing to wait for, may have exited before. */
static void kill_with_children(struct process *process, uint64_t linger_ns, uint64_t exit_ns)
{
    const struct image *image = process->image;

    process_kill(process, 0, exit_ns);
    if (image)
        process_children_end(image, linger_ns);
}

static void disturb(struct process *process, const struct decision *decision)
{
    uint64_t linger = decision->arg % 61 * GS_NS_PER_MS;
    bool slow = world.slow && decision->arg / 2440 % 3 == 0;

    world.disturbed = true;
    switch (decision->kind) {
    case DECIDE_KILL:
        if (decision->arg / 7 % 3 == 0)
            return kill_with_children(process, linger,
                                      decision->arg / 61 % 8 * (slow ? SLOW : 1) * GS_NS_PER_MS);
        linger *= slow ? SLOW : 1;
        return process_kill(process, linger, linger + decision->arg / 61 % 40 * GS_NS_PER_MS);
    case DECIDE_STOP:
        return process_stop(process, true);
    case DECIDE_GO_ON:
        return process_stop(process, false);
    case DECIDE_CLOSE:
        return process->is_broker || process->is_agent ? (void)0
                                                       : close_unknown(process, decision->arg);
    case DECIDE_EXEC:
        return process->is_broker ? (void)0 : process_exec(process, linger * (slow ? SLOW : 1));
    case DECIDE_FORK:
        return process->is_broker || process->is_agent ? (void)0 : process_fork(process);
    default:
        return fail_for(process, decision);
    }
}

void decision_apply(const struct decision *decision)
{
    struct process *process = &world.processes[decision->process % PROCESSES_MAX];
    unsigned thread = decision->thread % THREADS;

    switch (decision->kind) {
    case DECIDE_TIME:
        return world_advance(world_due());
    case DECIDE_START:
        process = process_start(false, false, decision->arg % 2);
        if (process)
            process->life->space = decision->arg / 2;
        return;
    case DECIDE_AGENT:
        if (!machine_has_agent(decision->arg % 2))
            process_start(false, true, decision->arg % 2);
        return;
    case DECIDE_CUT:
        world.disturbed = true;
        return machines_cut(decision->arg % 2);
    case DECIDE_BOOT:
        world.disturbed = true;
        return machine_boots(decision->arg % 2, decision->arg / 2 % 2);
    case DECIDE_WATCH:
        world.disturbed = true;
        return machine_hears_late(decision->arg % 2);
    case DECIDE_CHILD_ENDS:
        return end_child(decision->arg);
    case DECIDE_CLEAR:
        if (world.cluster) /* two brokers of one machine, and an agent of one: README.md */
            return;
        world.disturbed = true;
        return folder_clear();
    case DECIDE_RUN:
        if (is_ready(process, thread))
            fibre_resume(&process->threads[thread], decision->arg);
        return;
    case DECIDE_DO:
        if (!program_is_idle(process, thread))
            return;
        program_do(process, thread, decision->operation % OP_KINDS, decision->arg);
        fibre_resume(&process->threads[thread], decision->arg % 3 ? 0 : 1 + decision->arg / 3 % 8);
        return;
    default:
        if (process->state == PROCESS_RUNS)
            disturb(process, decision);
    }
}

/* ---- Keeping -------------------------------------------------------------------------------- */

void decisions_add(struct decisions *decisions, const struct decision *decision)
{
    if (decisions->count == decisions->room) {
        decisions->room = decisions->room ? 2 * decisions->room : 4096;
        decisions->list = realloc(decisions->list, decisions->room * sizeof *decisions->list);
        if (!decisions->list)
            abort();
    }
    decisions->list[decisions->count++] = *decision;
}

static void print(FILE *file, const struct decision *decision)
{
    fprintf(file, "%s %u %u %s %u\n", names[decision->kind], decision->process, decision->thread,
            decision->kind == DECIDE_DO ? operation_names[decision->operation % OP_KINDS] : "-",
            decision->arg);
}

void decision_trace(const struct decision *decision)
{
    printf("%8llu us  ", (unsigned long long)world.now_ns / 1000);
    print(stdout, decision);
}

bool decisions_write(const struct decisions *decisions, const char *path)
{
    FILE *file = fopen(path, "w");

    if (!file)
        return false;
    fprintf(file, "seed %llu %s %u\n", (unsigned long long)world.seed,
            world.cluster  ? "cluster"
            : world.broker ? "broker"
                           : "embedded",
            world.process_count);
    for (size_t i = 0; i < decisions->count; i++)
        print(file, &decisions->list[i]);
    return fclose(file) == 0;
}

static bool find(const char *const *list, unsigned count, const char *word, uint8_t *ret)
{
    for (unsigned i = 0; i < count; i++)
        if (strcmp(list[i], word) == 0) {
            *ret = (uint8_t)i;
            return true;
        }
    return false;
}

bool decisions_read(struct decisions *decisions, const char *path, uint64_t *ret_seed)
{
    FILE *file = fopen(path, "r");
    char kind[32], operation[32], strategy[32];
    unsigned process, thread, arg;
    unsigned long long seed;
    bool good;

    if (!file)
        return false;
    good = fscanf(file, "seed %llu %31s %u", &seed, strategy, &world.process_count) == 3;
    while (good &&
           fscanf(file, "%31s %u %u %31s %u", kind, &process, &thread, operation, &arg) == 5) {
        struct decision decision = {.process = (uint8_t)process,
                                    .thread = (uint8_t)thread,
                                    .arg = (uint16_t)arg};

        good = find(names, DECIDE_KINDS, kind, &decision.kind) &&
               (decision.kind != DECIDE_DO ||
                find(operation_names, OP_KINDS, operation, &decision.operation));
        decisions_add(decisions, &decision);
    }
    fclose(file);
    *ret_seed = seed;
    world.cluster = strcmp(strategy, "cluster") == 0;
    world.broker = world.cluster || strcmp(strategy, "broker") == 0;
    return good;
}
