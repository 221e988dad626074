/*
 * What simulated programs do with the library: they share blocks, open each other's by the handles
 * that go round, have the GPU work on them, close and free. A program is honest: it uses nothing
 * that it has closed, and frees nothing twice. operations.c has what it does one at a time.
 */
#include "simulation.h"

#include "core/gpu/fence.h"
#include "core/gpu/map.h"

#define BROKER_LOOK_NS (250 * GS_NS_PER_MS) /* as shim/command/broker.c */

static void log_nothing(enum gs_log_level level, const void *place, const char *text)
{
}

static int level = GS_LOG_INFO;
static const struct gs_log quiet = {.line = log_nothing, .level = &level};

#define LEFT_NS (50 * GS_NS_PER_MS) /* so long it is the same */

/* Enough for a few blocks to wait for a first open. */
static bool asked(void *arg, enum gs_question question, unsigned device, union gs_told *told)
{
    struct process *process = arg;

    if (question == GS_ASKED_CONTEXTS) { /* it has one, or none just now */
        told->contexts.of[0] = program_context(process);
        told->contexts.count = !process->context_gone;
        return true;
    }
    if (question != GS_ASKED_LEFT)
        return false;
    told->left = process->left = (world.now_ns / LEFT_NS + process->index) % 4 * 8 * GS_PAGE_SIZE;
    rule_little_is_left(process);
    return true;
}

static void share_begin(struct process *process)
{
    struct gs_share_options options = world.options;
    const struct gs_share_events events = {.lease_ended = program_lease_ended,
                                           .asked = asked,
                                           .arg = process};

    options.is_broker = process->is_broker;
    options.broker = world.broker && !process->is_broker;
    options.cluster = world.cluster && !process->is_broker;
    gs_share_create(process->is_broker ? &gs_broker_driver : &sim_driver, &sim_map, process->fences,
                    &quiet, &options, &events, &process->share);
}

CUcontext program_context(const struct process *process)
{
    return (CUcontext)(uintptr_t)(0x10000 + 256 * process->index + process->contexts);
}

void *program_run(void *arg)
{
    struct process *process = arg;
    unsigned thread = (unsigned)(world.current - process->threads);

    for (;;) {
        fibre_idle();
        if (!process->share && thread == 1)
            share_begin(process);
        if (process->share && process->ends == ENDS_NOT)
            program_perform(process, &process->operations[thread]);
    }
    return NULL;
}

bool program_is_idle(const struct process *process, unsigned thread)
{
    return process->state == PROCESS_RUNS && process->threads[thread].state == FIBRE_IDLE &&
           !process->life->stopped && process->ends == ENDS_NOT && !process->alone &&
           (process->share || thread == 1);
}

void program_do(struct process *process, unsigned thread, enum operation_kind kind, unsigned arg)
{
    process->operations[thread] = (struct operation){kind, arg};
    process->threads[thread].state = FIBRE_READY;
}

bool program_may_close(const struct process *process)
{
    for (unsigned i = 0; i < THREADS; i++)
        if (process->threads[i].state == FIBRE_READY && process->threads[i].midway)
            return false;
    return true;
}

/* ---- The broker's program ------------------------------------------------------------------- */

static bool is_unneeded(struct gs_share *share, uint64_t *since, unsigned *looks)
{
    uint64_t now_since = gs_share_unneeded_since(share);

    *looks = now_since == *since ? *looks + 1 : 0;
    *since = now_since;
    return now_since && *looks * BROKER_LOOK_NS >= world.options.keep_ns &&
           gs_share_end_unneeded(share, now_since);
}

void *broker_run(void *arg)
{
    struct process *process = arg;
    uint64_t since = 0;
    unsigned looks = 0;

    share_begin(process);
    if (process->share && gs_share_serve(process->share) == GS_OK)
        while (!is_unneeded(process->share, &since, &looks))
            gs_rest_ns(BROKER_LOOK_NS);
    if (process->share)
        gs_share_destroy(process->share);
    process->share = NULL;
    gs_fences_destroy(process->fences);
    process->ends = ENDS_EMPTY;
    return NULL;
}
