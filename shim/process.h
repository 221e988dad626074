/*
 * What this process has: set by the start, and looked at by every hook.
 */
#ifndef GPUSHIM_SHIM_PROCESS_H
#define GPUSHIM_SHIM_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>

/* For variables that every call looks at: they are of this library, so no look at the GOT, which an
 * extern declaration means otherwise. */
#define GS_INSIDE __attribute__((visibility("hidden")))

struct gs_core;
struct gs_single;
struct gs_map;

/* A state of state.h. */
GS_INSIDE extern _Atomic int gs_state;
/* The one that it has where nothing is in the way: ready, or watched. */
GS_INSIDE extern int gs_state_open;

/* Set by gs_shim_start before gs_state_enter() first returns true, and never changed afterwards. */
GS_INSIDE extern struct gs_core *gs_core;
GS_INSIDE extern const struct gs_map *gs_map;
GS_INSIDE extern struct gs_single *gs_single;
/* Whether pool.limit is set (hooks/bound.h). */
GS_INSIDE extern bool gs_bounded;
/* What is kept of registrations (the option registrations.keep). */
enum gs_pin_keep { GS_PIN_KEEP_NONE, GS_PIN_KEEP_LOCAL, GS_PIN_KEEP_ALL };
GS_INSIDE extern enum gs_pin_keep gs_pin_keep;

#endif
