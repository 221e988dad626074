/*
 * From core's findings to what the driver returns in the same situation. Hooks use this and never
 * hand a gs_status to a program.
 */
#ifndef GPUSHIM_SHIM_RESULT_H
#define GPUSHIM_SHIM_RESULT_H

#include "cuda_exact.h"

#include "core/base/status.h"

static inline CUresult gs_result(gs_status status)
{
    switch (status) {
    case GS_NO_MEMORY:
    case GS_NO_HOST_MEMORY:
    case GS_TOO_MANY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case GS_CAPTURING:
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case GS_NOT_OFFERED:
    case GS_NO_RANDOM:
        return CUDA_ERROR_NOT_SUPPORTED;
    case GS_SAME_PROCESS:
    case GS_NO_CONTEXT:
        return CUDA_ERROR_INVALID_CONTEXT;
    case GS_STALE: /* measured on an H200 with a handle of freed memory */
        return CUDA_ERROR_NOT_PERMITTED;
    case GS_NOT_OURS:
    case GS_NOT_LIVE:
    case GS_BAD_HANDLE:
    case GS_UNREACHABLE:
    case GS_INVALID:
        return CUDA_ERROR_INVALID_VALUE;
    default:
        return (CUresult)status; /* the driver's own */
    }
}

#endif
