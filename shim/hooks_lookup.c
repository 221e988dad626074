/*
 * The driver's own look-up. The driver answers first, by its rules for name, version and flags; the
 * address that it gives says which variant it chose, and leads to that one's hook.
 */
#include "hook.h"
#include "lookup.h"

GS_HOOK CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion,
                                          cuuint64_t flags)
{
    gs_state_enter();
    CUresult result = gs_real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && pfn)
        *pfn = gs_lookup_lead(*pfn);
    return result;
}

GS_HOOK CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                             cuuint64_t flags,
                                             CUdriverProcAddressQueryResult *symbolStatus)
{
    gs_state_enter();
    CUresult result = gs_real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && pfn)
        *pfn = gs_lookup_lead(*pfn);
    return result;
}
