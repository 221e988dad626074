/*
 * A library that wraps malloc and finds the one behind it by RTLD_NEXT, as many profilers do. Were
 * the caller of dlsym mistaken, it would find itself and never return.
 */
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((visibility("default"))) int wrap_malloc_calls(void);

static int calls;

__attribute__((visibility("default"))) void *malloc(size_t size)
{
    static void *(*next)(size_t);
    if (!next)
        next = dlsym(RTLD_NEXT, "malloc");
    calls++;
    return next(size);
}

int wrap_malloc_calls(void)
{
    return calls;
}
