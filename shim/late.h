/*
 * What happens where the library was loaded too late to take part (start.c).
 */
#ifndef GPUSHIM_SHIM_LATE_H
#define GPUSHIM_SHIM_LATE_H

/* Says so in the log, by the options of the configuration. path: this library's. */
void gs_shim_too_late(const char *path);

#endif
