/*
 * A program linked with -lcuda: its calls meet the exported hooks, and reach the driver once each.
 *
 * usage: direct [native | versioned], versioned where libcuda gives its symbols versions
 */
#include "../../shim/cuda_exact.h"
#include "check.h"
#include "stub_libcuda.h"

#include <errno.h>

int main(int argc, char **argv)
{
    bool native = argc > 1 && strcmp(argv[1], "native") == 0;
    bool versioned = argc > 1 && strcmp(argv[1], "versioned") == 0;
    CUdeviceptr pointer = 0;
    errno = 77;
    CHECK(cuMemAlloc_v2(&pointer, 100) == CUDA_SUCCESS && pointer, "cuMemAlloc_v2");
    CHECK(errno == 77, "the first call set errno to %d", errno);
    CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS, "cuMemFree_v2");
    CHECK(stub_calls(STUB_ALLOC) == 1, "%d allocations", stub_calls(STUB_ALLOC));
    CHECK(stub_calls(STUB_FREE) == 1, "%d frees", stub_calls(STUB_FREE));
    CHECK(cuMemAllocAsync_ptsz(&pointer, 100, NULL) == CUDA_SUCCESS, "cuMemAllocAsync_ptsz");
    CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS, "cuMemFree_v2");
    CHECK(stub_calls(STUB_ALLOC_ASYNC_PTSZ) == 1, "its own variant");
    CHECK(stub_calls(STUB_ALLOC_ASYNC) == 0, "no other");

    if (versioned) {
        void *linked = (void *)cuMemAlloc_v2;
        CHECK(is_hook(linked), "linked to the one in %s", object_of(linked));
    }
    void *found = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    CHECK(native ? is_driver(found) : is_hook(found), "RTLD_DEFAULT is in %s", object_of(found));
    void *function = NULL;
    CHECK(cuGetProcAddress("cuMemAlloc", &function, 12000, 0) == CUDA_SUCCESS, "cuGetProcAddress");
    CHECK(native ? is_driver(function) : is_hook(function), "it is in %s", object_of(function));
    return 0;
}
