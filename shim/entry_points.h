/*
 * The one table of the driver's entry points that are ours: a row is an exact exported symbol of
 * libcuda, what the shim does there, and the CUDA version that brought it.
 *
 *   OURS  the shim answers for its own memory; anything else goes to the driver
 *   NOTE  the shim notes the call and passes it on
 *   FIND  the driver's own look-up: its answers are led to the hooks
 *
 * Adding a row takes a hook of that name in a hooks_*.c (without one the library does not link,
 * with a wrong prototype it does not compile), and nothing else: the struct of real functions, the
 * names that dlsym knows and the map from the driver's addresses to the hooks all come from here.
 *
 * cuMemAlloc, cuMemAllocPitch, cuMemFree, cuMemGetInfo and cuMemGetAddressRange without _v2 are not
 * here on purpose. They are CUDA 2's forms with 32-bit addresses: our addresses never fit in one,
 * so such a call is never about our memory and an answer of ours could not be returned.
 */
#ifndef GPUSHIM_SHIM_ENTRY_POINTS_H
#define GPUSHIM_SHIM_ENTRY_POINTS_H

/* clang-format off */
#define GS_ENTRIES(GS_ENTRY)                                    \
    GS_ENTRY(cuMemAlloc_v2,                         OURS,  3020) \
    GS_ENTRY(cuMemAllocPitch_v2,                    OURS,  3020) \
    GS_ENTRY(cuMemFree_v2,                          OURS,  3020) \
    GS_ENTRY(cuMemAllocAsync,                       OURS, 11020) \
    GS_ENTRY(cuMemAllocAsync_ptsz,                  OURS, 11020) \
    GS_ENTRY(cuMemAllocFromPoolAsync,               OURS, 11020) \
    GS_ENTRY(cuMemAllocFromPoolAsync_ptsz,          OURS, 11020) \
    GS_ENTRY(cuMemFreeAsync,                        OURS, 11020) \
    GS_ENTRY(cuMemFreeAsync_ptsz,                   OURS, 11020) \
    GS_ENTRY(cuMemGetInfo_v2,                       OURS,  3020) \
    GS_ENTRY(cuMemGetAddressRange_v2,               OURS,  3020) \
    GS_ENTRY(cuPointerGetAttribute,                 OURS,  4000) \
    GS_ENTRY(cuPointerGetAttributes,                OURS,  7000) \
    GS_ENTRY(cuMemRetainAllocationHandle,           OURS, 11000) \
    GS_ENTRY(cuMemGetHandleForAddressRange,         NOTE, 11070) \
    GS_ENTRY(cuIpcGetMemHandle,                     OURS,  4010) \
    GS_ENTRY(cuIpcOpenMemHandle,                    OURS,  4010) \
    GS_ENTRY(cuIpcOpenMemHandle_v2,                 OURS, 11000) \
    GS_ENTRY(cuIpcCloseMemHandle,                   OURS,  4010) \
    GS_ENTRY(cuStreamBeginCapture,                  NOTE, 10000) \
    GS_ENTRY(cuStreamBeginCapture_ptsz,             NOTE, 10000) \
    GS_ENTRY(cuStreamBeginCapture_v2,               NOTE, 10010) \
    GS_ENTRY(cuStreamBeginCapture_v2_ptsz,          NOTE, 10010) \
    GS_ENTRY(cuStreamBeginCaptureToGraph,           NOTE, 12030) \
    GS_ENTRY(cuStreamBeginCaptureToGraph_ptsz,      NOTE, 12030) \
    GS_ENTRY(cuStreamBeginCaptureToCig,             NOTE, 13010) \
    GS_ENTRY(cuStreamBeginCaptureToCig_ptsz,        NOTE, 13010) \
    GS_ENTRY(cuStreamBeginRecaptureToGraph,         NOTE, 13030) \
    GS_ENTRY(cuStreamBeginRecaptureToGraph_ptsz,    NOTE, 13030) \
    GS_ENTRY(cuStreamEndCapture,                    NOTE, 10000) \
    GS_ENTRY(cuStreamEndCapture_ptsz,               NOTE, 10000) \
    GS_ENTRY(cuStreamEndCaptureToCig,               NOTE, 13010) \
    GS_ENTRY(cuStreamEndCaptureToCig_ptsz,          NOTE, 13010) \
    GS_ENTRY(cuStreamDestroy,                       NOTE,  2000) \
    GS_ENTRY(cuStreamDestroy_v2,                    NOTE,  4000) \
    GS_ENTRY(cuCtxDestroy,                          NOTE,  2000) \
    GS_ENTRY(cuCtxDestroy_v2,                       NOTE,  4000) \
    GS_ENTRY(cuCtxDetach,                           NOTE,  2000) \
    GS_ENTRY(cuDevicePrimaryCtxReset,               NOTE,  7000) \
    GS_ENTRY(cuDevicePrimaryCtxReset_v2,            NOTE, 11000) \
    GS_ENTRY(cuDevicePrimaryCtxRelease,             NOTE,  7000) \
    GS_ENTRY(cuDevicePrimaryCtxRelease_v2,          NOTE, 11000) \
    GS_ENTRY(cuDeviceSetMemPool,                    NOTE, 11020) \
    GS_ENTRY(cuMemSetMemPool,                       NOTE, 13000) \
    GS_ENTRY(cuGetProcAddress,                      FIND, 11030) \
    GS_ENTRY(cuGetProcAddress_v2,                   FIND, 12000)
/* clang-format on */

#endif
