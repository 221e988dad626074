/*
 * What a program is told of a device's memory where the option pool.limit bounds it: no more than
 * that. Where it does not, look-ups of what is hooked for this alone get the driver's own
 * functions.
 */
#ifndef GPUSHIM_SHIM_BOUND_H
#define GPUSHIM_SHIM_BOUND_H

#include "hook.h"

/* gs_bounded (process.h) at any time, also before the shim has started: then the configuration is
 * read for it, once. False in a forked child, and where the library is switched off. */
bool gs_bound_applies(void);
/* In a process in which the shim has not started. */
void gs_bound_ahead(size_t *free, size_t *total);

/* Of the current device, what is free and what there is: as they are, or bounded. */
void gs_bound_info(size_t *free, size_t *total);

#endif
