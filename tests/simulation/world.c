/* One world: its settings, its days, and how it comes to rest, when nothing may be left of it. */
#include "simulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/gpu/map.h"

#define RUN_NS      1000               /* that a thread runs */
#define REST_NS     (15 * GS_NS_PER_S) /* then all that was closed has come back */
#define SOON_NS     (5 * GS_NS_PER_S)
#define LATER_NS    (40 * GS_NS_PER_S) /* whoever is there no more is given up by then */
#define GIVEN_UP_NS (25 * GS_NS_PER_S) /* before core/share/connect.c gives up who is not there */
#define BROKER_NS   (40 * GS_NS_PER_S)
#define LEFT_NS     (100 * GS_NS_PER_S) /* a broker is looked for by then: core/share/publish.c */
#define CALM_STEPS  200000              /* more are a thread that never rests */

struct world world;

/* ---- Chance --------------------------------------------------------------------------------- */

uint64_t sim_random(void)
{
    uint64_t x = world.random += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

unsigned sim_below(unsigned limit)
{
    return (unsigned)((sim_random() >> 32) * limit >> 32);
}

/* ---- What is said --------------------------------------------------------------------------- */

/* The first one counts; whoever runs then never runs again. */
void sim_fail(const char *format, ...)
{
    va_list arguments;

    if (!world.failed) {
        va_start(arguments, format);
        vsnprintf(world.failure, sizeof world.failure, format, arguments);
        va_end(arguments);
        world.rule = format;
        sim_trace("*** %s", world.failure);
    }
    world.failed = true;
    if (world.current)
        fibre_wait(NULL, NEVER);
}

void sim_trace_line(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

/* ---- Time ----------------------------------------------------------------------------------- */

static bool may_run(const struct process *process, unsigned thread)
{
    return process->threads[thread].state == FIBRE_READY && !process->life->stopped;
}

/* When something comes by itself; NEVER. */
uint64_t world_due(void)
{
    uint64_t due = processes_due();

    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        const struct process *process = &world.processes[i];

        for (unsigned k = 0; process->state == PROCESS_RUNS && k < THREADS; k++)
            if (process->threads[k].state == FIBRE_WAITING && !process->life->stopped &&
                process->threads[k].until_ns < due)
                due = process->threads[k].until_ns;
    }
    return due;
}

static void starve(struct process *process, uint64_t ns)
{
    bool starves = process->life->stopped;

    for (unsigned k = 0; k < THREADS; k++)
        starves |= may_run(process, k);
    process->starved_ns += starves ? ns : 0;
    world.starved_ns += starves ? ns : 0;
    process->still_ns = starves ? process->still_ns + ns : 0;
    if (world.closed_ns && process->still_ns > GIVEN_UP_NS)
        world.given_up = true;
    if (starves && ns > GS_NS_PER_MS)
        world.stalled_ns = world.now_ns;
}

void world_advance(uint64_t to_ns)
{
    uint64_t ns = to_ns - world.now_ns;

    if (to_ns == NEVER || to_ns < world.now_ns)
        ns = 0;
    world.now_ns += ns;
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        struct process *process = &world.processes[i];

        if (process->state != PROCESS_RUNS)
            continue;
        starve(process, ns);
        for (unsigned k = 0; k < THREADS; k++) {
            struct fibre *fibre = &process->threads[k];

            if (fibre->state == FIBRE_WAITING && fibre->until_ns <= world.now_ns)
                fibre->state = FIBRE_READY;
        }
    }
}

static void step_over(void)
{
    world.steps++;
    world_advance(world.now_ns + RUN_NS);
    processes_tick();
}

/* ---- Its settings --------------------------------------------------------------------------- */

/* Worlds of each 32 that have no test of their own either. */
#define LONG_GRACES UINT32_C(0x84924008)

static bool has_long_graces(void)
{
    return LONG_GRACES >> world.seed % 32 & 1;
}

static void settle_settings(void)
{
    struct gs_share_options *options = &world.options;

    *options = (struct gs_share_options){
        .enable = true,
        .dir = "/simulation",
        .grace_ns = (has_long_graces() ? 300 : 50) * GS_NS_PER_MS,
        .grace_least_ns = 50 * GS_NS_PER_MS,
        .settle_ns = 100 * GS_NS_PER_MS,
        .timeout_ns = 300 * GS_NS_PER_MS,
        .idle_ns = sim_below(4) == 0 ? 0
                   : sim_below(2)    ? 10 * GS_NS_PER_MS
                                     : 100 * GS_NS_PER_S,
        .idle_blocks = 1 + sim_below(6),
        .max_clients = sim_below(4) == 0 && !world.cluster ? 3 : 64, /* an agent takes one */
        .isolate = sim_below(6) == 0,
        .limbo_limit = sim_below(6) == 0 ? GS_PAGE_SIZE : 0,
        .published_max = 64,
        .listen_fd = -1,
        .broker_program = "broker",
        .keep_ns = 2 * GS_NS_PER_S,
        .export_ahead = sim_below(2),
    };
    world.fault_rate = (unsigned[]){0, 4, 40, 40}[sim_below(4)];
}

/* Those worlds of each 16 that have no test of their own (meson.build): they are what they were. */
#define SLOW_WORLDS   0x7019
#define SPACES_WORLDS 0x5008

static void settle_system(void)
{
    world.slow = SLOW_WORLDS >> world.seed % 16 & 1;
    world.spaces = SPACES_WORLDS >> world.seed % 16 & 1;
    world.kernel = !world.slow || (world.spaces && world.cluster)
                       ? KERNEL_PEER_PIDFDS /* README.md */
                   : world.seed / 16 % 8 == 6 ? KERNEL_OWN_PIDFDS
                   : world.seed / 16 % 8 == 7 ? KERNEL_NO_PIDFDS
                                              : KERNEL_PEER_PIDFDS;
}

/* ---- Its rest ------------------------------------------------------------------------------- */

/* In turns. */
static bool run_next(void)
{
    for (unsigned i = 0; i < PROCESSES_MAX * THREADS; i++) {
        unsigned at = world.turn = (world.turn + 1) % (PROCESSES_MAX * THREADS);
        struct process *process = &world.processes[at / THREADS];

        if (process->state != PROCESS_RUNS || !may_run(process, at % THREADS))
            continue;
        fibre_resume(&process->threads[at % THREADS], 0);
        return true;
    }
    return false;
}

/* As soon as there is room for a process. */
static bool agents_stay;
static void start_agents(void)
{
    for (unsigned i = 0; i < 2 && agents_stay; i++)
        if (!machine_has_agent(i))
            process_start(false, true, i);
}

/* All run as they can until that is so; false: it is not in that time. */
static bool run_until(bool (*is_so)(void), uint64_t limit_ns)
{
    uint64_t end = world.now_ns + limit_ns, begun = world.steps;

    while (!world.failed && !is_so()) {
        start_agents();
        if (!run_next()) {
            if (world_due() > end)
                return false;
            world_advance(world_due());
        }
        step_over();
        if (world.steps - begun > CALM_STEPS)
            sim_fail("liveness: threads run on and on, and nothing comes of it");
    }
    return true;
}

static bool is_idle(void)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        const struct process *process = &world.processes[i];

        for (unsigned k = 1; process->state == PROCESS_RUNS && !process->is_broker &&
                             !process->is_agent && k < ENDS_THREAD;
             k++)
            if (process->threads[k].state != FIBRE_IDLE)
                return false;
    }
    return true;
}

/* Whether nobody who shares ever learns of the end of a process of another PID namespace: without a
 * pidfd, or where its program has closed that. */
static bool may_end_unseen(const struct image *maker)
{
    return world.spaces && (world.kernel == KERNEL_NO_PIDFDS || !maker->clean ||
                            (world.kernel == KERNEL_OWN_PIDFDS && world.short_of_memory));
}

/* Whether programs that are over have blocks for all that their maker can know: their processes
 * have not exited. */
bool world_is_kept_open(const struct image *maker)
{
    for (unsigned i = 0; i < world.image_count; i++)
        if (world.images[i]->over && world.images[i] != maker &&
            (may_end_unseen(maker) || !world.images[i]->life->exited))
            return true;
    return false;
}

static const struct block *limbo(bool any)
{
    const struct block *block = world.blocks;

    while (block && (block->state != BLOCK_LIMBO || block->image->over ||
                     (!any && world_is_kept_open(block->image))))
        block = block->next;
    return block;
}

static bool is_no_limbo(void)
{
    return !limbo(true);
}

/* What others keep of memory that its maker or anybody has given back, in the order in which it is
 * to go. */
enum kept {
    KEPT_ASKED, /* its maker runs, and asks for it */
    KEPT_ANY,   /* or has ended */
};

static const struct phys *kept(enum kept most)
{
    const struct phys *phys = world.memory;

    while (phys && (!phys->released || phys->refs == 0 || (most < KEPT_ANY && phys->maker->over)))
        phys = phys->next;
    return phys;
}

static bool is_none_kept_that_was_asked_for(void)
{
    return !kept(KEPT_ASKED);
}

static bool is_nothing_kept(void)
{
    return !kept(KEPT_ANY);
}

static bool is_nobody_left(void)
{
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state != PROCESS_NONE)
            return false;
    return true;
}

static const struct process *ending;

static bool is_all_left(void)
{
    return !rule_not_left();
}

static bool is_never(void)
{
    return false;
}

static bool has_ended(void)
{
    return ending->state == PROCESS_NONE;
}

static void await_idle(void)
{
    if (!run_until(is_idle, SOON_NS + SLOW * LINGER_NS)) /* one may be at an exec */
        sim_fail("liveness: a call of a program does not end");
}

static void all_do(enum operation_kind kind)
{
    for (unsigned i = 0; i < PROCESSES_MAX && !world.failed; i++) {
        struct process *process = &world.processes[i];

        if (!process->is_broker && !process->is_agent && program_is_idle(process, 1))
            program_do(process, 1, kind, 0);
    }
    await_idle();
}

static void await_no_limbo(uint64_t limit_ns)
{
    if (run_until(is_no_limbo, limit_ns) || world.given_up || !limbo(false))
        return;
    sim_fail("liveness: block %llu of process %u was freed and everybody has closed it, and it "
             "does not come back",
             (unsigned long long)limbo(false)->id, (unsigned)limbo(false)->image->life->pid);
}

static void end_faults(void)
{
    world.calm = true;
    world.calm_ns = world.now_ns;
    machines_cut(false);
    agents_stay = world.cluster;
    while (world.children)
        process_child_ends(world.children, 0);
    for (unsigned i = 0; i < PROCESSES_MAX; i++) {
        struct process *process = &world.processes[i];

        process->fd_limit = FDS_MAX;
        process->allocations_left = process->driver_left = 0;
        process->no_flight = false;
        if (process->state == PROCESS_RUNS) {
            process->life->stopped = false;
            thread_wake(
                process); /* it looks what its program has closed as soon as it does anything */
        }
    }
}

/* Whoever shares is served, and what is closed and freed comes back soon. */
static void serve_once_more(void)
{
    world.settled = true;
    all_do(OP_EXPORT);
    if (world.broker && !world.failed && !world.short_of_memory &&
        world.options.max_clients > PROCESSES_MAX && !run_until(is_all_left, LEFT_NS))
        sim_fail("liveness: block %llu of process %u is shared, and no broker has it",
                 (unsigned long long)rule_not_left()->id,
                 (unsigned)rule_not_left()->image->life->pid);
    all_do(OP_OPEN_ALL);
    all_do(OP_CLOSE_ALL);
    all_do(OP_FREE_ALL);
    if (!world.failed)
        await_no_limbo(SOON_NS);
    all_do(OP_TRIM_ALL);
    if (!world.failed && (!run_until(is_none_kept_that_was_asked_for, SOON_NS) ||
                          !run_until(is_nothing_kept, LATER_NS)))
        sim_fail("liveness: memory %llu of process %u went back to the driver, and others keep it",
                 (unsigned long long)kept(KEPT_ANY)->id,
                 (unsigned)kept(KEPT_ANY)->maker->life->pid);
}

static void end_all(void)
{
    unsigned first = sim_below(PROCESSES_MAX);

    for (unsigned i = 0; i < PROCESSES_MAX && !world.failed; i++) {
        struct process *process = &world.processes[(first + i) % PROCESSES_MAX];

        if (process->is_broker || process->is_agent || !program_is_idle(process, 1) ||
            !process->share)
            continue;
        program_do(process, 1, OP_END, 0);
        ending = process;
        if (!run_until(has_ended, SOON_NS + SLOW * LINGER_NS))
            sim_fail("liveness: process %u does not end", (unsigned)process->life->pid);
    }
}

static void rest(void)
{
    end_faults();
    await_idle();
    all_do(OP_CLOSE_ALL);
    all_do(OP_FREE_ALL);
    if (!world.failed)
        await_no_limbo(REST_NS);
    serve_once_more();
    end_all();
    if (world.cluster) /* what agents were told they have passed on */
        run_until(is_never, SOON_NS + SLOW * LINGER_NS);
    agents_stay = false;
    for (unsigned i = 0; i < PROCESSES_MAX && !world.failed; i++)
        if (world.processes[i].state == PROCESS_RUNS && !world.processes[i].is_broker)
            process_kill(&world.processes[i], 0, 0); /* that never shared */
    if (!world.failed && !run_until(is_nobody_left, BROKER_NS))
        sim_fail("liveness: a broker that nobody needs does not end");
}

/* ---- From its begin to its end -------------------------------------------------------------- */

static void world_free(void)
{
    while (world.children)
        process_child_ends(world.children, 0);
    for (unsigned i = 0; i < PROCESSES_MAX; i++)
        if (world.processes[i].state != PROCESS_NONE) {
            process_kill(&world.processes[i], 0, 0);
            world.processes[i].state = PROCESS_NONE;
        }
    folder_clear();
    if (!world.failed && world.file_count > 0)
        sim_fail("nothing is left: there are %u files that nobody has", world.file_count);
    for (struct phys *phys = world.memory; phys; phys = phys->next)
        if (!world.failed && phys->refs > 0)
            sim_fail("nothing is left: there is memory that nobody has");
    while (world.memory) {
        struct phys *phys = world.memory;

        world.memory = phys->next;
        sim_free(phys);
    }
    while (world.blocks) {
        struct block *block = world.blocks;

        world.blocks = block->next;
        while (block->uses) {
            struct use *use = block->uses;

            block->uses = use->next;
            sim_free(use);
        }
        sim_free(block);
    }
    while (world.image_count > 0)
        sim_free(world.images[--world.image_count]);
    if (world.lives)
        memset(world.lives, 0, world.life_count * sizeof *world.lives);
    world.life_count = 0;
}

static void world_begin(uint64_t seed)
{
    world.seed = seed;
    world.random = seed * 2 + world.broker + (world.cluster ? UINT64_C(1) << 60 : 0);
    machines_begin();
    events_begin();
    agents_stay = false;
    world.now_ns = GS_NS_PER_S;
    world.stalled_ns = world.closed_ns = world.starved_ns = 0;
    world.given_up = false;
    world.calm = world.settled = world.failed = world.short_of_memory = world.disturbed = false;
    world.handle_count = world.file_count = world.turn = 0;
    world.next_number = world.next_address = world.next_file = 0;
    memset(world.handles, 0, sizeof world.handles);
    settle_settings();
    settle_system();
}

bool world_run(uint64_t seed, unsigned steps, struct decisions *decisions, bool replay)
{
    world_begin(seed);
    for (size_t i = 0; i < (replay ? decisions->count : steps) && !world.failed; i++) {
        struct decision decision = replay ? decisions->list[i] : decide();

        if (!replay)
            decisions_add(decisions, &decision);
        if (world.trace)
            decision_trace(&decision);
        decision_apply(&decision);
        step_over();
    }
    if (!world.failed)
        rest();
    world_free();
    return !world.failed;
}
