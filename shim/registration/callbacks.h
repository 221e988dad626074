/*
 * Telling listeners (gpushim.h) what becomes of memory: called by the hooks that allocate and free.
 */
#ifndef GPUSHIM_SHIM_CALLBACKS_H
#define GPUSHIM_SHIM_CALLBACKS_H

#include <stddef.h>
#include <stdint.h>

extern unsigned gs_listeners; /* how many; atomic */

void gs_listeners_allocated(uint64_t address, size_t size);
void gs_listeners_freeing(uint64_t address);

/* A block of an arena was allocated, and is not the program's yet. */
static inline void gs_tell_allocated(uint64_t address, size_t size)
{
    if (__builtin_expect(__atomic_load_n(&gs_listeners, __ATOMIC_RELAXED) != 0, 0))
        gs_listeners_allocated(address, size);
}

/* One is about to be freed. */
static inline void gs_tell_freeing(uint64_t address)
{
    if (__builtin_expect(__atomic_load_n(&gs_listeners, __ATOMIC_RELAXED) != 0, 0))
        gs_listeners_freeing(address);
}

#endif
