/*
 * A library that wraps the driver the simple way: exports cuMemAlloc_v2 and finds the one behind it
 * by RTLD_NEXT. Preloaded before and after the shim it must reach the driver, once a call.
 */
#include "../../shim/cuda_exact.h"

#include <dlfcn.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int next_cu_calls(void);
EXPORT void *next_cu_find(const char *name);

static int calls;

EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    calls++;
    if (calls > 100)
        return CUDA_ERROR_UNKNOWN; /* a loop: the test then fails instead of the stack */
    CUresult (*next)(CUdeviceptr *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return next ? next(dptr, bytesize) : CUDA_ERROR_NOT_FOUND;
}

int next_cu_calls(void)
{
    return calls;
}

void *next_cu_find(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    return found;
}
