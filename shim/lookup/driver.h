/*
 * libcuda, and which of its functions are at which address.
 */
#ifndef GPUSHIM_SHIM_DRIVER_H
#define GPUSHIM_SHIM_DRIVER_H

#include <stdbool.h>

/* Finds libcuda.so.1, loading it if that is allowed, and keeps it loaded for the life of the
 * process: the addresses stay good. row: GS_DRIVER_ROWS places, NULL where the driver lacks the
 * symbol. False if there is no libcuda; row is untouched then. */
bool gs_driver_find(bool may_load, void **row);

/* A function of the driver that was found, by exact symbol name; NULL where it has none. Takes no
 * lock and calls no libc function. */
void *gs_driver_symbol(const char *name);

/* Takes the addresses over into gs_real and the map from address to hook. Called before hooks are
 * handed out; calling it again, with the same addresses, changes nothing. */
void gs_driver_adopt(void *const *row);

/* Whether the driver that was found has the row's function. */
bool gs_driver_has(int row);

/* The row whose function is at an address, or -1. Only when hooks are handed out. */
int gs_driver_row(const void *address);

#endif
