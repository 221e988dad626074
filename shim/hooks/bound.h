/*
 * What a program is told of a device's memory where the option pool.limit bounds it: no more than
 * that. Where it does not, look-ups of what is hooked for this alone get the driver's own functions.
 */
#ifndef GPUSHIM_SHIM_BOUND_H
#define GPUSHIM_SHIM_BOUND_H

#include "hook.h"

/* Whether pool.limit is set. Written before the shim is ready. */
GS_INSIDE extern bool gs_bounded;

/* Of the current device, what is free and what there is: as they are, or bounded. */
void gs_bound_info(size_t *free, size_t *total);

#endif
