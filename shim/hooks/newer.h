/*
 * Calls of a driver that is newer than this library.
 */
#ifndef GPUSHIM_SHIM_NEWER_H
#define GPUSHIM_SHIM_NEWER_H

#include <stdbool.h>

/* A look-up has found a call of the driver's that is in no list, or a form of one that is not;
 * hooks are handed out. `version`: the one that was asked for, 0 for none. `per_thread`: by stream
 * 0 it means the thread's. Returns what to give the program for it. Preserves errno. */
void *gs_newer_found(const char *symbol, int version, void *found, bool per_thread);

#endif
