/*
 * What the arenas of this process take of each device's memory, and the most that they may (the
 * option pool.limit). Pieces count until they are the driver's again. What the driver takes for
 * itself or gives to the program beside the arenas is not bounded.
 */
#ifndef GS_CORE_PROCESS_LIMIT_H
#define GS_CORE_PROCESS_LIMIT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/gpu/device.h"

struct gs_core;

/* The most of a device; SIZE_MAX: as much as there is. */
size_t gs_limit_of(const struct gs_core *core, const struct gs_device *device);
/* Bytes that the arenas have of it now. */
size_t gs_limit_used(const struct gs_core *core, CUdevice device);
/* Whether a piece for so many bytes would be beyond the limit, whatever else is given back: then no
 * other process can help. */
bool gs_limit_is_beyond(const struct gs_core *core, const struct gs_device *device, size_t bytes);

/* A piece is about to be made; false: it would be beyond, and nothing was counted. Or one is the
 * driver's again, or was not made after all. Any lock may be held. */
bool gs_limit_take(struct gs_core *core, const struct gs_device *device, size_t bytes);
void gs_limit_give(struct gs_core *core, CUdevice device, size_t bytes);

/* Bytes of the device that could be allocated: what the driver has left, and what is free here. */
size_t gs_limit_left(struct gs_core *core, CUdevice device);

#endif
