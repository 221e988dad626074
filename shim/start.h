/*
 * The one thing that hooks share: this process's core.
 */
#ifndef GPUSHIM_SHIM_START_H
#define GPUSHIM_SHIM_START_H

#include "cuda_exact.h"
#include "state.h"

#include "core/api/core.h"
#include "core/gpu/map.h"
#include "core/gpu/single.h"

/* The option pool.limit, in a process in which the shim has not started: none where it is switched
 * off. */
void gs_shim_limit(struct gs_limit *ret_limit);

/* Whether an address is in memory of ours; the state was entered. The first question of every hook
 * that is given a pointer: a program's other memory pays for a few instructions. */
static inline bool gs_ours(CUdeviceptr address)
{
    return __builtin_expect(gs_map_find(gs_map, address) != NULL, 0);
}

#endif
