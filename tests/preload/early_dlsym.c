/*
 * A preloaded library whose constructor looks names up, foreign ones and the driver's, before the
 * program and, when it comes after the shim in LD_PRELOAD, before the shim is initialised.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void early(void)
{
    if (dlsym(RTLD_DEFAULT, "getenv") != (void *)getenv || !dlsym(RTLD_NEXT, "malloc"))
        _exit(90);
    if (dlvsym(RTLD_DEFAULT, "getenv", OLDEST_GLIBC) != (void *)getenv)
        _exit(91);
    if (!getenv("EARLY_DLSYM_HAS_DRIVER") && dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"))
        _exit(92);
}
