/* Memory that a test's program makes and maps by itself: pieces side by side in one reservation. */
#ifndef GS_TESTS_MAPPED_H
#define GS_TESTS_MAPPED_H

#include "program.h"

#define PIECE ((size_t)2 << 20)

static inline CUmemAllocationProp properties(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static inline CUdeviceptr reserve(unsigned pieces)
{
    CUdeviceptr base;

    must("cuMemAddressReserve", cuMemAddressReserve(&base, pieces * PIECE, 0, 0, 0));
    return base;
}

static inline void access_set(CUdeviceptr address, size_t size, CUmemAccess_flags flags)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, .flags = flags};

    must("cuMemSetAccess", cuMemSetAccess(address, size, &access, 1));
}

/* The handle is released at once: the mapping has the memory. */
static inline void map_stamped(CUdeviceptr base, unsigned piece, uint32_t stamp)
{
    CUdeviceptr address = base + piece * PIECE;
    CUmemAllocationProp prop = properties();
    CUmemGenericAllocationHandle handle;

    must("cuMemCreate", cuMemCreate(&handle, PIECE, &prop, 0));
    must("cuMemMap", cuMemMap(address, PIECE, 0, handle, 0));
    must("cuMemRelease", cuMemRelease(handle));
    access_set(address, PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    must("cuMemsetD32", cuMemsetD32(address, stamp, 1));
    must("cuCtxSynchronize", cuCtxSynchronize());
}

static inline CUdeviceptr map_all(unsigned pieces)
{
    CUdeviceptr base = reserve(pieces);

    for (unsigned i = 0; i < pieces; i++)
        map_stamped(base, i, i + 1);
    return base;
}

static inline void unmap(CUdeviceptr base, unsigned first, unsigned pieces)
{
    must("cuMemUnmap", cuMemUnmap(base + first * PIECE, pieces * PIECE));
}

static inline void end_all(CUdeviceptr base, unsigned pieces)
{
    unmap(base, 0, pieces);
    must("cuMemAddressFree", cuMemAddressFree(base, pieces * PIECE));
}

#endif
