/*
 * A program that calls the driver without having it, which the exported hooks make possible: where
 * there is no libcuda it hears what the driver says before cuInit, and where one can be found it is
 * loaded. An entry point that the driver lacks says so.
 *
 * usage: without_driver none|found
 */
#include "../../shim/cuda_exact.h"
#include "check.h"

int main(int argc, char **argv)
{
    CUdeviceptr pointer = 0;
    size_t free_bytes, total;
    CHECK(argc == 2, "usage: without_driver none|found");
    if (strcmp(argv[1], "none") == 0) {
        if (dlopen("libcuda.so.1", RTLD_NOW))
            return 77; /* this machine has a driver */
        CHECK(cuMemAlloc_v2(&pointer, 100) == CUDA_ERROR_NOT_INITIALIZED, "cuMemAlloc_v2");
        CHECK(cuMemGetInfo_v2(&free_bytes, &total) == CUDA_ERROR_NOT_INITIALIZED, "cuMemGetInfo");
        return 0;
    }
    CHECK(cuMemAlloc_v2(&pointer, 100) == CUDA_SUCCESS && pointer, "cuMemAlloc_v2");
    CHECK(cuMemFree_v2(pointer) == CUDA_SUCCESS, "cuMemFree_v2");
    CHECK(cuMemSetMemPool(NULL, 0, NULL) == CUDA_ERROR_NOT_SUPPORTED, "cuMemSetMemPool");
    return 0;
}
