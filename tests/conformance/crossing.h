/*
 * Blocks of many sizes, of which a library may lay some across the driver's allocations: what is
 * free came from blocks of one size, and what is wanted is none of it. Natively they are
 * allocations as others.
 */
#ifndef CONFORMANCE_CROSSING_H
#define CONFORMANCE_CROSSING_H

#include <criterion/criterion.h>

#include "conform.h"

#define STEP    (24 * MIB)
#define SEED    0x5eed0000u
#define SIZES   5
#define LARGEST (3 * STEP + 512)

static const size_t sizes[SIZES] = {MIB, 5 * MIB, STEP - 64 * KIB, 2 * STEP - 3 * MIB, LARGEST};

static inline void blocks_start_of(enum memory_kind kind, CUdeviceptr block[SIZES])
{
    CUdeviceptr first[8];

    for (int i = 0; i < 8; i++)
        OK(memory_alloc(kind, &first[i], STEP));
    for (int i = 0; i < 8; i++)
        OK(memory_free(kind, first[i]));
    OK(cuCtxSynchronize());
    for (size_t i = 0; i < SIZES; i++)
        OK(memory_alloc(kind, &block[i], sizes[i]));
}

static inline void blocks_end_of(enum memory_kind kind, CUdeviceptr block[SIZES])
{
    for (size_t i = 0; i < SIZES; i++)
        OK(memory_free(kind, block[i]));
}

static inline void blocks_start(CUdeviceptr block[SIZES])
{
    blocks_start_of(MEMORY_PLAIN, block);
}

static inline void blocks_end(CUdeviceptr block[SIZES])
{
    blocks_end_of(MEMORY_PLAIN, block);
}

/* Of the first and the last byte, and at each MiB between. */
static inline size_t next_place(size_t at, size_t size)
{
    return at == size - 1 ? size : at + MIB < size - 1 ? at + MIB : size - 1;
}

/* The driver's allocations begin and end at such addresses alone: the next one that is a page or
 * more inside the block, or 0. */
static inline CUdeviceptr next_border(CUdeviceptr block, size_t size, CUdeviceptr after)
{
    CUdeviceptr least = after > block + 4095 ? after : block + 4095;
    CUdeviceptr next = (least / (2 * MIB) + 1) * (2 * MIB);

    return next + 4096 <= block + size ? next : 0;
}

#endif
