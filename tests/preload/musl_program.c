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
    /* Statements of their own: the next failure frees the text that dlerror gave. */
    void *nothing = dlsym(RTLD_DEFAULT, "no_such_symbol");
    printf("nothing %d: %s\n", !nothing, dlerror());
    void *no_driver = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    printf("no driver %d: %s\n", !no_driver, dlerror());
    return 0;
}
