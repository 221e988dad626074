/*
 * Other tools in the same process: next_cu.c's wrapper and other_dlsym.c's dlsym, preloaded before
 * or after the shim. Whatever their order, a call reaches the driver exactly once.
 *
 * usage: interposers LIBCUDA EXPECT...: next-found-hook, next-called, other-dlsym
 */
#include "../../shim/cuda_exact.h"
#include "check.h"
#include "stub_libcuda.h"

typedef int calls_fn(void);

static int number(const char *name)
{
    calls_fn *function = (calls_fn *)dlsym(RTLD_DEFAULT, name);
    CHECK(function, "%s", dlerror());
    return function();
}

int main(int argc, char **argv)
{
    CHECK(argc > 2, "usage: interposers LIBCUDA EXPECT...");
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
    CHECK(handle, "%s", dlerror());
    stub_calls_fn *calls = (stub_calls_fn *)dlsym(handle, "stub_calls");
    __typeof__(&cuMemFree_v2) release = (__typeof__(&cuMemFree_v2))dlsym(handle, "cuMemFree_v2");
    __typeof__(&cuMemAlloc_v2) ways[] = {
        (__typeof__(&cuMemAlloc_v2))dlsym(handle, "cuMemAlloc_v2"),
        (__typeof__(&cuMemAlloc_v2))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"),
        (__typeof__(&cuMemAlloc_v2))dlsym(RTLD_NEXT, "cuMemAlloc_v2"),
    };
    for (int i = 0; i < 3; i++) {
        CUdeviceptr pointer = 0;
        CHECK(ways[i], "way %d finds nothing", i);
        CHECK(ways[i](&pointer, 100) == CUDA_SUCCESS, "way %d", i);
        CHECK(calls(STUB_ALLOC) == i + 1, "way %d: %d allocations", i, calls(STUB_ALLOC));
        CHECK(release(pointer) == CUDA_SUCCESS && calls(STUB_FREE) == i + 1, "way %d: free", i);
    }
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "next-found-hook") == 0) {
            void *(*find)(const char *) =
                (void *(*)(const char *))dlsym(RTLD_DEFAULT, "next_cu_find");
            CHECK(find && is_hook(find("cuMemFree_v2")), "found %s",
                  object_of(find("cuMemFree_v2")));
        } else if (strcmp(argv[i], "next-called") == 0) {
            CHECK(number("next_cu_calls") > 0, "next_cu was passed by");
        } else if (strcmp(argv[i], "other-dlsym") == 0) {
            CHECK(number("other_dlsym_calls") > 0, "the other dlsym was passed by");
            CHECK(number("other_free_calls") == 3, "the other's wrapper was passed by");
        } else {
            CHECK(false, "unknown expectation %s", argv[i]);
        }
    }
    return 0;
}
