/*
 * A library that looks the driver's names up in the scopes that depend on who asks. It links to the
 * driver and is loaded by itself, so only its own scope has it.
 */
#include "../../shim/cuda_exact.h"

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT void *third_linked(void);
EXPORT void *third_default(const char *name);
EXPORT void *third_next(const char *name);

void *third_linked(void)
{
    return (void *)&cuMemAlloc_v2;
}

/* Built at -O0, so that these are no tail calls: the address to return to is here. */
void *third_default(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    return found;
}

void *third_next(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    return found;
}
