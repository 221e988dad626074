/*
 * A library that loads another by its bare name: only this one's RUNPATH finds that, so dlopen must
 * see who really calls it.
 */
#include <dlfcn.h>

__attribute__((visibility("default"))) void *deep_load(const char *name, int flags);

void *deep_load(const char *name, int flags)
{
    void *loaded = dlopen(name, flags);
    return loaded; /* not a tail call: the address to return to is here */
}
