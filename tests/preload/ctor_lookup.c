/*
 * A library whose constructor looks up a driver name: it then runs under the dynamic linker's lock.
 */
#include <dlfcn.h>
#include <stddef.h>

__attribute__((visibility("default"))) void *ctor_lookup_found(void);

static void *found;

__attribute__((constructor)) static void look_up(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    found = driver ? dlsym(driver, "cuMemAlloc_v2") : NULL;
}

void *ctor_lookup_found(void)
{
    return found;
}
