/*
 * Another tool's dlsym, the classic way: exports dlsym, has its own wrapper for one driver name,
 * and finds the real dlsym by dlvsym(RTLD_NEXT, ...).
 */
#include "../../shim/cuda_exact.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int other_dlsym_calls(void);
EXPORT int other_free_calls(void);

static int calls, free_calls;
static void *(*real)(void *, const char *);
static CUresult (*real_free)(CUdeviceptr);

static CUresult CUDAAPI wrapped_free(CUdeviceptr dptr)
{
    free_calls++;
    return real_free(dptr);
}

EXPORT void *dlsym(void *handle, const char *name)
{
    calls++;
    if (!real)
        real = dlvsym(RTLD_NEXT, "dlsym", OLDEST_GLIBC);
    void *found = real(handle, name);
    if (!found || strcmp(name, "cuMemFree_v2") != 0)
        return found;
    real_free = found;
    return wrapped_free;
}

int other_dlsym_calls(void)
{
    return calls;
}

int other_free_calls(void)
{
    return free_calls;
}
