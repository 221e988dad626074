/*
 * RTLD_DEEPBIND under the preload.
 *
 * usage: deepbind LIBDEEP_LOADER (led|native)
 */
#include "../../shim/cuda_exact.h"
#include "check.h"
#include "stub_libcuda.h"

#include <stdlib.h>
#include <unistd.h>

__attribute__((visibility("default"))) int whose(void);

int whose(void)
{
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: deepbind LIBDEEP_LOADER (led|native)");
    /* The test harness names its folders there; only a RUNPATH is to find libdeep. */
    if (getenv("LD_LIBRARY_PATH")) {
        unsetenv("LD_LIBRARY_PATH");
        execv("/proc/self/exe", argv);
    }
    bool led = strcmp(argv[2], "led") == 0;
    void *loader = dlopen(argv[1], RTLD_NOW);
    CHECK(loader, "%s", dlerror());
    void *(*load)(const char *, int) = (void *(*)(const char *, int))dlsym(loader, "deep_load");
    void *deep = load("libdeep.so", RTLD_NOW | RTLD_DEEPBIND);
    CHECK(deep, "%s", dlerror());
    CHECK(load("libdeep.so", RTLD_LAZY) == deep, "the second handle is another");
    void *(*linked)(void) = (void *(*)(void))dlsym(deep, "deep_linked");
    void *(*found)(void *) = (void *(*)(void *))dlsym(deep, "deep_found");
    int (*deep_whose)(void) = (int (*)(void))dlsym(deep, "deep_whose");
    CHECK(linked && found && deep_whose, "%s", dlerror());
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CHECK(driver, "libdeep.so brought no driver");
    CHECK(is_hook(linked()) == led, "its link goes to %s", object_of(linked()));
    CHECK(is_hook(found(driver)) == led, "its dlsym goes to %s", object_of(found(driver)));
    CHECK(deep_whose() == (led ? 0 : 1), "it calls %s whose", deep_whose() ? "its own" : "our");
    dlerror();
    CHECK(!load("libnowhere.so", RTLD_NOW | RTLD_DEEPBIND), "what is not there was loaded");
    const char *error = dlerror();
    CHECK(error && strstr(error, "libnowhere.so"), "the error is %s", error);
    return 0;
}
