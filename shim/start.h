/*
 * The one thing that hooks share: this process's core.
 */
#ifndef GPUSHIM_SHIM_START_H
#define GPUSHIM_SHIM_START_H

#include "cuda_exact.h"

#include "core/core.h"

/* Set by gs_shim_start before gs_state_enter() first returns true, and never changed afterwards. */
extern struct gs_core *gs_core;

#endif
