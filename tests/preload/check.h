/* Whose code an address is in. */
#ifndef GPUSHIM_TESTS_PRELOAD_CHECK_H
#define GPUSHIM_TESTS_PRELOAD_CHECK_H

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "../check.h"

/* The last component of the file of the object that an address lies in. */
static inline const char *object_of(const void *address)
{
    Dl_info info;
    if (!address || !dladdr(address, &info))
        return "(none)";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static inline bool is_hook(const void *address)
{
    return strcmp(object_of(address), "libgpushim.so") == 0;
}

static inline bool is_driver(const void *address)
{
    return strstr(object_of(address), "libcuda.so") != NULL;
}

#endif
