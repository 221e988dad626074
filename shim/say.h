/*
 * What the library says of a process: one line at the start, when the GPUs are known, and figures
 * at its end, whichever way that comes. Both at level info. No handler of a signal is installed for
 * it.
 */
#ifndef GPUSHIM_SHIM_SAY_H
#define GPUSHIM_SHIM_SAY_H

#include "config/config.h"

/* The configuration was read: keeps what the line at the start says of it. Where the library is
 * switched off that line is all there is, and comes now. Calls nothing of the driver. */
void gs_say_configured(const struct gs_config *config);

/* A context was made, so the driver is ready: the line, the first time. */
void gs_say_started(void);

/* The process ends, by exit or by return from main: the line, where no context was made; and
 * nothing more is said by what follows. Core says the figures. */
void gs_say_exit(void);

#endif
