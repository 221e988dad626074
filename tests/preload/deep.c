/*
 * A library that is loaded with RTLD_DEEPBIND: it prefers what it and its own dependencies define,
 * libcuda among them, to what was preloaded.
 */
#include "../../shim/cuda_exact.h"

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void *deep_linked(void);
EXPORT void *deep_found(void *handle);
EXPORT int whose(void);

/* What its direct link to the driver comes to. */
void *deep_linked(void)
{
    return (void *)&cuMemFree_v2;
}

/* What its dlsym finds. */
void *deep_found(void *handle)
{
    return dlsym(handle, "cuMemAlloc_v2");
}

int whose(void)
{
    return 1;
}

EXPORT int deep_whose(void);
/* Its own, or the program's of the same name. */
int deep_whose(void)
{
    extern int whose(void) __attribute__((visibility("default")));
    return whose();
}
