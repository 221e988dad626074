/* What the plain programs of this folder begin with: the driver, and ends that say why. */
#ifndef GS_TESTS_SHARE_PROGRAM_H
#define GS_TESTS_SHARE_PROGRAM_H

#include <cuda.h>

#include "tests/children.h"
#include "tests/system.h"

static inline _Noreturn void fail(const char *what, int value)
{
    fprintf(stderr, "%s: %s: %d\n", program_invocation_short_name, what, value);
    exit(1);
}

static inline void must(const char *call, CUresult result)
{
    if (result != CUDA_SUCCESS)
        fail(call, (int)result);
}

/* The first device's primary context is current afterwards. */
static inline void start_driver(void)
{
    CUdevice device;
    CUcontext context;

    must("cuInit", cuInit(0));
    must("cuDeviceGet", cuDeviceGet(&device, 0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
}

#endif
