/*
 * A program of another libc in whose environment the shim is preloaded: it must run as without.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    printf("getenv %d\n", dlsym(RTLD_DEFAULT, "getenv") == (void *)getenv);
    printf("next getenv %d\n", dlsym(RTLD_NEXT, "getenv") == (void *)getenv);
    printf("nothing %d: %s\n", !dlsym(RTLD_DEFAULT, "no_such_symbol"), dlerror());
    printf("no driver %d: %s\n", !dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlerror());
    return 0;
}
