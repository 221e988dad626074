/* Steps with the program's own virtual memory. */
#include "world.h"

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
