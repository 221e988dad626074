/*
 * Programs that sleep and wake, as core/process/sleep.c has it: in three worlds of fifty, at random
 * moments, each by itself. What others share is let go; then chunks whose blocks nobody has mapped
 * go, with their handles and leases, and come back as other memory. That all comes back shows by
 * the rules that hold always: what is open is its block. Blocks across pieces stay.
 */
#include "simulation.h"

#include "core/share/internal.h"
#include "core/share/let_go.h"

#define TRY_NS (50 * GS_NS_PER_MS)
#define TRIES  20

bool has_sleepers(void)
{
    const unsigned last = world.seed % 50;

    return last == 3 || last == 13 || last == 33 ||
           world.seed % 200 == 73; /* the last have external memory, too */
}

/* ---- Its own memory -------------------------------------------------------------------------- */

static void exports_wake(struct process *process, const struct chunk *chunk, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (chunk->phys->slots[i] && chunk->phys->slots[i]->export)
            gs_share_export_wakes(process->share, chunk->phys->slots[i]->export, chunk->handle);
}

static bool exports_sleep(struct process *process, const struct chunk *chunk)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        const struct block *block = chunk->phys->slots[i];

        if (block && block->export && !gs_share_export_sleeps(process->share, block->export)) {
            exports_wake(process, chunk, i);
            return false;
        }
    }
    return true;
}

/* Its bytes are in the new memory from here on: nobody can see when that is filled. */
static void move(struct chunk *chunk, struct phys *phys, uint64_t handle)
{
    struct phys *before = chunk->phys;
    const uint64_t handle_before = chunk->handle;

    rule_sleeps(before);
    for (unsigned i = 0; i < SLOTS; i++) {
        phys->slots[i] = before->slots[i];
        before->slots[i] = NULL;
        if (phys->slots[i])
            phys->slots[i]->phys = phys;
    }
    chunk->phys = phys;
    chunk->handle = handle;
    before->released = true;
    before->released_ns = world.now_ns;
    driver_release(handle_before);
}

/* Bits of those that have gone. */
static unsigned chunks_sleep(struct process *process)
{
    unsigned asleep = 0;

    gs_share_await_unpinned(process->share, gs_now_ns() + TRY_NS);
    gs_lock_take(&process->arena);
    for (unsigned i = 0; i < CHUNKS_MAX; i++)
        if (process->chunks[i].id && exports_sleep(process, &process->chunks[i]))
            asleep |= 1u << i;
    gs_lock_release(&process->arena);
    for (unsigned i = 0; i < CHUNKS_MAX; i++)
        if (asleep >> i & 1)
            gs_share_chunk_gone(process->share, process->chunks[i].id);
    for (unsigned i = 0; i < CHUNKS_MAX; i++) {
        struct phys *phys;
        uint64_t handle;

        if (!(asleep >> i & 1))
            continue;
        phys = phys_new(&handle);
        gs_lock_take(&process->arena);
        if (phys) {
            move(&process->chunks[i], phys, handle);
            sim_trace("    memory %llu of process %u is away",
                      (unsigned long long)process->chunks[i].id, process->index);
        } else { /* it stays */
            exports_wake(process, &process->chunks[i], SLOTS);
            asleep &= ~(1u << i);
        }
        gs_lock_release(&process->arena);
    }
    return asleep;
}

static void chunks_wake(struct process *process, unsigned asleep)
{
    gs_lock_take(&process->arena);
    for (unsigned i = 0; i < CHUNKS_MAX; i++)
        if (asleep >> i & 1)
            exports_wake(process, &process->chunks[i], SLOTS);
    gs_lock_release(&process->arena);
}

/* ---- What it has open ------------------------------------------------------------------------ */

/* What it is to have again, and has not; what has ended with its exporter it does not touch any
 * more, nor what an exporter keeps that serves as many as it may. */
static bool is_lost(const struct process *process, const struct opened *opened)
{
    uint64_t offset;

    return opened->block && !opened->block->is_external &&
           !(opened->block->piece_count && !opened->block->crosses) &&
           (opened->block->image->over || world.options.max_clients <= PROCESSES_MAX) &&
           !phys_at(process, opened->address, &offset);
}

static void close_lost(struct process *process)
{
    for (unsigned i = 0; i < OPENS_MAX; i++)
        if (is_lost(process, &process->opened[i]))
            program_close(process, &process->opened[i]);
}

static void look_at_opened(const struct process *process)
{
    for (unsigned i = 0; i < OPENS_MAX; i++)
        if (process->opened[i].block)
            rule_used(process, process->opened[i].block, process->opened[i].address);
}

void program_sleeps(struct process *process, unsigned arg)
{
    struct gs_untaken untaken;
    unsigned asleep;

    sim_driver.ctx_synchronize();
    process->lets_go = true;
    gs_share_let_go(process->share);
    asleep = chunks_sleep(process);
    gs_rest_ns(arg % 64 * GS_NS_PER_MS);
    chunks_wake(process, asleep);
    /* Whether a process has ended, or called exec, is not always seen: who sleeps on is not told to
     * wake again. */
    for (unsigned tries = 0; !gs_share_take_back(process->share, gs_now_ns() + TRY_NS, &untaken);
         tries++) {
        if (tries >= TRIES)
            close_lost(process);
        gs_rest_ns(GS_NS_PER_MS);
    }
    process->lets_go = false;
    close_lost(process);
    look_at_opened(process);
}
