/* For programs that ask a driver, each function by its exact name, and write its answers. */
#ifndef GPUSHIM_TESTS_GPU_ASK_H
#define GPUSHIM_TESTS_GPU_ASK_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <dlfcn.h>
#include <string.h>

static void *libcuda; /* from dlopen */

/* One that there is not answers NOT_FOUND. */
static CUresult missing(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static void *find(const char *name)
{
    void *found = dlsym(libcuda, name);
    return found ? found : (void *)missing;
}
#define D(name) ((__typeof__(&name))find(#name))

static const char *name_of(CUresult r)
{
    const char *name = NULL;
    D(cuGetErrorName)(r, &name);
    return name ? (strncmp(name, "CUDA_", 5) ? name : name + 5) : "?";
}

#endif
