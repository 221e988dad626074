/*
 * What is opened is reached by a peer that was let in, or is not opened: the driver may have no
 * memory for the peer's page tables.
 *
 *   peer_open            the driver refuses that once
 *   peer_open exporter   shares a block
 */
#include <string.h>

#include "party.h"
#include "softcuda.h"

#define PEER 1

static uint32_t mappings(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.mappings;
}

int main(int argc, char **argv)
{
    CUcontext here, there;
    CUipcMemHandle handle;
    struct party exporter;
    CUdeviceptr block;
    uint32_t before;

    if (argc > 1) {
        start_driver();
        party_share(0);
        return 0;
    }
    surroundings_new();
    exporter = party_start("exporter", NULL);
    handle = party_tell(&exporter, 's');
    start_driver();
    use_memory();
    must("cuCtxGetCurrent", cuCtxGetCurrent(&here));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&there, PEER));
    must("cuCtxSetCurrent", cuCtxSetCurrent(there));
    must("cuCtxEnablePeerAccess", cuCtxEnablePeerAccess(here, 0));
    must("cuCtxSetCurrent", cuCtxSetCurrent(here));
    before = mappings();
    softcuda_reset();
    softcuda_fail("cuMemSetAccess", 2,
                  CUDA_ERROR_OUT_OF_MEMORY); /* the first is the importer's own */
    if (cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) !=
        CUDA_ERROR_OUT_OF_MEMORY) {
        printf("opened, and the peer may not touch it\n");
        return 1;
    }
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    must("cuCtxSetCurrent", cuCtxSetCurrent(there));
    must("cuMemsetD32Async", cuMemsetD32Async(block, 0, 1, CU_STREAM_LEGACY));
    must("cuCtxSynchronize, of the peer", cuCtxSynchronize());
    must("cuCtxSetCurrent", cuCtxSetCurrent(here));
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    if (!AWAIT(mappings() == before)) {
        printf("what was refused is still mapped\n");
        return 1;
    }
    return party_end(&exporter);
}
