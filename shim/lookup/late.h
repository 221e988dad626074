/*
 * What happens where the library was loaded too late to take part (start.c).
 */
#ifndef GPUSHIM_SHIM_LATE_H
#define GPUSHIM_SHIM_LATE_H

/* Says so in the log, by the options of the configuration. */
void gs_shim_too_late(void);

#endif
