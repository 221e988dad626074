/*
 * Whether this process's driver calls are ours.
 *
 *   unborn ──► loading ──► ready ◄──► closed ───► child (from ready as well)
 *                             watched: in place of ready
 *                    └───► disabled
 *
 * unborn: nothing was done yet, or libcuda was not there when last asked. loading: one thread has
 * the driver's addresses and starts the shim. ready: hooks do their work. disabled:
 * GPUSHIM_ENABLE=0, or loading failed; everything goes straight to the driver. child: forked from a
 * process that was loading, ready or closed; everything goes straight to the driver and no lock of
 * ours is taken. closed: as ready, but calls that stop at the gate wait there (gate.h). watched: as
 * ready, but when they come is noted there.
 *
 * Holds always: nothing happens before the first look-up of a name of ours or the first call of an
 * exported hook. No thread waits for another while either of them is in the dynamic linker on our
 * account: each that arrives finds the driver for itself, and only gs_shim_start() is waited for.
 */
#ifndef GPUSHIM_SHIM_STATE_H
#define GPUSHIM_SHIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "process.h"

enum gs_state {
    GS_STATE_UNBORN,
    GS_STATE_LOADING,
    GS_STATE_DISABLED,
    GS_STATE_CHILD,
    GS_STATE_READY, /* from here on hooks do their work */
    GS_STATE_CLOSED,
    GS_STATE_WATCHED,
};

/* Whether they do. */
static inline bool gs_state_is_on(void)
{
    return atomic_load_explicit(&gs_state, memory_order_acquire) >= GS_STATE_READY;
}

/* The slow half of gs_state_enter(). Preserves errno. */
bool gs_state_enter_slow(void);

/* The first line of every hook: true when the hook is to do its work, false when it is to pass the
 * call on to gs_real, which then is filled. Loads on the first call. */
static inline bool gs_state_enter(void)
{
    return __builtin_expect(gs_state_is_on(), 1) || gs_state_enter_slow();
}

/* Enters for a look-up: never loads libcuda, only finds one that is loaded. True when hooks are
 * to be handed out. Preserves errno. */
bool gs_state_enter_lookup(void);

/* True once gs_real holds the driver's addresses (all but unborn and loading). */
bool gs_state_has_driver(void);

/*
 * Starts the shim, called once a process when the driver was found and before any hook does work.
 * Reads the configuration. Returns whether the shim is enabled; false, with one line of log where
 * the cause is a failure, makes everything pass on to the driver.
 *
 * Other threads wait in it, possibly while they hold the dynamic linker's lock: it must not call
 * the driver, dlopen, dlsym, dl_iterate_phdr or anything else that takes that lock. Driver calls
 * belong to the first hook that needs them. gs_real is filled.
 */
bool gs_shim_start(void);

/* When the process ends, by exit handlers: leaves the runtime directory, says the figures. */
void gs_shim_at_exit(void);

/* Before an enabled process forks, in the thread that does. No lock, no wait. */
void gs_shim_forking(void);

/* In a child forked of an enabled process, before it goes on: the child then passes all on. */
void gs_shim_forked(void);

#endif
