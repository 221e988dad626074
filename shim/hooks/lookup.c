/*
 * The driver's own look-up. The driver answers first, by its rules for name, version and flags; the
 * address that it gives says which variant it chose, and leads to that one's hook.
 */
#include "hook.h"
#include "shim/log.h"
#include "shim/lookup/lookup.h"

/* CUDA 2's forms, with 32-bit addresses, are passed on without a word. */
#define FIRST_OURS 3020

/* A form that is newer than the table reaches the driver: it would not be safe to guess what its
 * parameters mean. */
static void *lead(const char *symbol, void *found, int version)
{
    void *led = gs_lookup_lead(found);

    if (led != found || !found || version < FIRST_OURS ||
        atomic_load_explicit(&gs_state, memory_order_acquire) != GS_STATE_READY ||
        !gs_lookup_is_ours(symbol))
        return led;
    GS_KEEP_ERRNO;
    gs_log(GS_LOG_WARNING,
           "this driver's %s for CUDA %d.%d is newer than this library: such calls go to the driver "
           "alone; install a newer libgpushim",
           symbol, version / 1000, version % 1000 / 10);
    return led;
}

GS_HOOK CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion,
                                          cuuint64_t flags)
{
    gs_state_enter();
    CUresult result = gs_real.cuGetProcAddress(symbol, pfn, cudaVersion, flags);
    if (result == CUDA_SUCCESS && pfn)
        *pfn = lead(symbol, *pfn, cudaVersion);
    return result;
}

GS_HOOK CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                             cuuint64_t flags,
                                             CUdriverProcAddressQueryResult *symbolStatus)
{
    gs_state_enter();
    CUresult result = gs_real.cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, symbolStatus);
    if (result == CUDA_SUCCESS && pfn)
        *pfn = lead(symbol, *pfn, cudaVersion);
    return result;
}
