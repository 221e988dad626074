/* Steps with the program's own virtual memory, beside and against that of cuMemAlloc. */
#include "world.h"

#include <string.h>
#include <unistd.h>

/* What the driver says of a block, and the same memory at a second address. */
void step_vmm(void)
{
    int slot = any_block(1u << VMM);
    struct block *block = &world.block[slot < 0 ? 0 : slot];
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    unsigned long long flags = 77;
    CUdeviceptr second;

    if (slot < 0 || !world_settle(slot))
        return;
    access.location.id = block->device;
    say(" b%d", slot);
    if (CALL(cuMemRetainAllocationHandle, &handle, (void *)(block->ptr + 5)) == CUDA_SUCCESS) {
        say(" %d", handle == block->handle);
        memset(&prop, 0, sizeof prop);
        if (CALL(cuMemGetAllocationPropertiesFromHandle, &prop, handle) == CUDA_SUCCESS)
            say(" %d %d", (int)prop.requestedHandleTypes, prop.location.id);
        CALL(cuMemRelease, handle);
    }
    if (CALL(cuMemGetAccess, &flags, &access.location, block->ptr) == CUDA_SUCCESS)
        say(" %llu", flags);
    if (CALL(cuMemAddressReserve, &second, block->size, 0, 0, 0))
        return;
    if (CALL(cuMemMap, second, block->size, 0, block->handle, 0) == CUDA_SUCCESS) {
        CALL(cuMemSetAccess, second, block->size, &access, 1);
        CALL(cuMemsetD8, second + 100, (unsigned char)pick(256), 50);
        CALL(cuCtxSynchronize);
        CALL(cuMemUnmap, second, block->size);
    }
    CALL(cuMemAddressFree, second, block->size);
}

/* Calls that memory of the other kinds, or no memory, is not for. */
void step_bad_vmm(void)
{
    int slot = any_block(1u << PLAIN | 1u << PITCH);
    CUdeviceptr ptr = slot < 0 ? 0x1234000 : world.block[slot].ptr, base = ptr & ~(2 * MIB - 1);
    CUmemGenericAllocationHandle handle = 0;
    CUmemAllocationProp prop;
    CUdeviceptr range;
    size_t size = 0;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    say(" b%d", slot);
    switch (pick(7)) {
    case 0:
        CALL(cuMemRetainAllocationHandle, &handle, (void *)ptr);
        break;
    case 1:
        CALL(cuMemUnmap, base, 2 * MIB);
        break;
    case 2:
        CALL(cuMemAddressFree, base, 2 * MIB);
        break;
    case 3:
        CALL(cuMemCreate, &handle, MIB, &prop, 0);
        break;
    case 4:
        CALL(cuMemCreate, &handle, (size_t)1 << 50, &prop, 0);
        break;
    case 5:
        CALL(cuMemAddressReserve, &range, 2 * MIB + 1, 0, 0, 0);
        break;
    default:
        if (CALL(cuMemGetAllocationGranularity, &size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) ==
            CUDA_SUCCESS)
            say(" %zu", size);
    }
}
