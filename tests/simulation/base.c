/* core/base as simulated processes have it: clock, locks, conditions, threads, the log. */
#include "simulation.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/background.h"
#include "core/base/log.h"

#define LOOKS_MOST 20000 /* at the clock, without a wait in between */

/* ---- The clock ------------------------------------------------------------------------------ */

uint64_t gs_now_ns(void)
{
    if (world.current && ++world.clock_looks > LOOKS_MOST)
        sim_fail("a thread of process %u looks at the clock again and again and never waits",
                 process_here()->index);
    return world.now_ns;
}

void gs_rest_ns(uint64_t ns)
{
    if (world.current->held_count > 0)
        sim_fail("locks: process %u rests with one held", process_here()->index);
    fibre_wait(NULL, world.now_ns + ns);
}

void gs_yield(void)
{
    fibre_wait(NULL, world.now_ns + 1000);
}

/* ---- Locks ---------------------------------------------------------------------------------- */

/* Lies where core has its mutex. */
struct sim_lock {
    struct fibre *holder;
};

_Static_assert(sizeof(struct sim_lock) <= sizeof(pthread_mutex_t), "it lies in that");

static struct sim_lock *inside(struct gs_lock *lock)
{
    return (struct sim_lock *)(void *)&lock->mutex;
}

void gs_lock_init(struct gs_lock *lock, enum gs_rank rank)
{
    memset(&lock->mutex, 0, sizeof lock->mutex);
    lock->rank = rank;
}

void gs_lock_destroy(struct gs_lock *lock)
{
    if (inside(lock)->holder)
        sim_fail("locks: process %u destroys one that is held", process_here()->index);
}

static void hold(struct gs_lock *lock)
{
    struct fibre *fibre = world.current;

    if (!fibre)
        return;
    if (fibre->held_count > 0 && fibre->held[fibre->held_count - 1]->rank >= lock->rank)
        sim_fail("locks: process %u takes rank %d while it holds rank %d", process_here()->index,
                 (int)lock->rank, (int)fibre->held[fibre->held_count - 1]->rank);
    fibre->held[fibre->held_count++] = lock;
    inside(lock)->holder = fibre;
}

void gs_lock_take(struct gs_lock *lock)
{
    sim_point();
    while (inside(lock)->holder)
        fibre_wait(lock, NEVER);
    hold(lock);
}

int gs_lock_try(struct gs_lock *lock)
{
    if (!world.current || inside(lock)->holder) /* from outside, as from a handler of a signal */
        return 0;
    hold(lock);
    return 1;
}

void gs_lock_release(struct gs_lock *lock)
{
    struct fibre *fibre = world.current;

    if (!fibre)
        return;
    if (fibre->held_count == 0 || fibre->held[fibre->held_count - 1] != lock)
        sim_fail("locks: process %u lets go of one that is not the last one it took",
                 process_here()->index);
    fibre->held_count--;
    inside(lock)->holder = NULL;
    fibre_wake_all(fibre->process, lock);
}

#ifdef GS_CHECK_LOCKS
/* Locks of other kinds are nowhere waited for here. */
void gs_rank_taken(enum gs_rank rank)
{
}

void gs_rank_released(enum gs_rank rank)
{
}

void gs_rank_assert_held(enum gs_rank rank)
{
    const struct fibre *fibre = world.current;
    bool held = !fibre || (rank != GS_RANK_IMPORTER && rank != GS_RANK_SHARE);

    for (unsigned i = 0; !held && i < fibre->held_count; i++)
        held = fibre->held[i]->rank == rank;
    if (!held)
        sim_fail("locks: process %u is without the one of rank %d, which must be held here",
                 process_here()->index, (int)rank);
}
#endif

/* ---- Conditions ----------------------------------------------------------------------------- */

void gs_cond_init(struct gs_cond *cond)
{
    memset(cond, 0, sizeof *cond);
}

void gs_cond_destroy(struct gs_cond *cond)
{
}

bool gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns)
{
    bool woken;

    if (world.current->held_count != 1)
        sim_fail("locks: process %u waits for a condition with another one held",
                 process_here()->index);
    gs_lock_release(lock);
    woken = fibre_wait(cond, until_ns);
    while (inside(lock)->holder)
        fibre_wait(lock, NEVER);
    hold(lock);
    return woken;
}

void gs_cond_wake_all(struct gs_cond *cond)
{
    if (world.current)
        fibre_wake_all(process_here(), cond);
}

/* ---- Threads -------------------------------------------------------------------------------- */

static struct fibre *fibre_of(const struct gs_background *background)
{
    struct fibre *fibre;

    memcpy(&fibre, &background->thread, sizeof fibre);
    return fibre;
}

/* The share thread; a process has no other. */
int gs_background_start(struct gs_background *background, void *(*run)(void *arg), void *arg)
{
    struct process *process = process_here();
    struct fibre *fibre = &process->threads[0];

    fibre_start(fibre, process, run, arg);
    memcpy(&background->thread, &fibre, sizeof fibre);
    return 0;
}

void gs_background_join(struct gs_background *background)
{
    while (fibre_of(background)->state != FIBRE_NONE)
        fibre_wait(fibre_of(background), NEVER);
}

bool gs_background_is_this(const struct gs_background *background)
{
    return fibre_of(background) == world.current;
}

/* ---- The log -------------------------------------------------------------------------------- */

/* What one process says of another. All here keep to the protocol, so there is nothing to say but
 * that a process has run out of something, does not read, wants what is not passed on any more, or
 * is heard over a connection that it has replaced. */
static bool accuses(const char *format, const char *text)
{
    static const char *const fine[] = {"it wants another process", "does not read its answers",
                                       "no descriptor is left",    "no host memory is left",
                                       "no room is left",          "in the name of another"};

    if (strstr(format, "makes no sense") || strstr(format, "does not fit"))
        return true;
    if (!strstr(format, "is hung up on"))
        return false;
    for (unsigned i = 0; i < sizeof fine / sizeof *fine; i++)
        if (strstr(text, fine[i]))
            return false;
    return true;
}

void gs_log_line(const struct gs_log *log, enum gs_log_level level, const char *format, ...)
{
    char text[512];
    va_list arguments;

    if (!world.trace && !strstr(format, "makes no sense") && !strstr(format, "does not fit") &&
        !strstr(format, "is hung up on"))
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sim_trace("    log of %u: %s", process_here() ? process_here()->index : 0, text);
    if (accuses(format, text))
        sim_fail("answers make sense: process %u says: %s", process_here()->index, text);
}
