/* The CUDA calls of the chaos program (chaos.h): the plain driver API. */
#include "chaos.h"
#include "../conformance/kernels.h"

#include <dlfcn.h>
#include <stdio.h>

const char *gpu_error(CUresult result)
{
    const char *name = NULL;

    return cuGetErrorName(result, &name) == CUDA_SUCCESS && name ? name : "an unknown error";
}

static CUresult kernels_load(struct gpu *gpu)
{
    CUmodule module;
    CUresult r = cuModuleLoadData(&module, kernels_ptx);

    if (r == CUDA_SUCCESS)
        r = cuModuleGetFunction(&gpu->spin_fill, module, "spin_fill");
    if (r == CUDA_SUCCESS)
        r = cuModuleGetFunction(&gpu->scribble, module, "scribble");
    if (r == CUDA_SUCCESS)
        r = cuModuleGetFunction(&gpu->count_other, module, "count_other");
    return r;
}

CUresult gpu_start(struct gpu *ret_gpu)
{
    struct gpu *gpu = ret_gpu;
    CUresult r = cuInit(0);

    if (r == CUDA_SUCCESS)
        r = cuDeviceGet(&gpu->device, 0);
    if (r == CUDA_SUCCESS)
        r = cuDevicePrimaryCtxRetain(&gpu->context, gpu->device);
    if (r == CUDA_SUCCESS)
        r = cuCtxSetCurrent(gpu->context);
    if (r == CUDA_SUCCESS)
        r = cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS)
        r = kernels_load(gpu);
    gpu->software = dlsym(RTLD_DEFAULT, "softcuda_version") != NULL;
    if (r != CUDA_SUCCESS)
        fprintf(stderr, "chaos: CUDA does not start: %s\n", gpu_error(r));
    return r;
}

CUresult gpu_stamp(const struct gpu *gpu, CUdeviceptr ptr, uint32_t stamp, uint64_t words)
{
    CUresult r = cuMemsetD32Async(ptr, stamp, words, gpu->stream);

    return r == CUDA_SUCCESS ? cuStreamSynchronize(gpu->stream) : r;
}

static CUresult launch(const struct gpu *gpu, CUfunction function, uint64_t words, void **args)
{
    unsigned blocks = words >= 262144 ? 1024 : (unsigned)((words + 255) / 256);

    return cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, gpu->stream, args, NULL);
}

CUresult gpu_stamp_late(const struct gpu *gpu, CUdeviceptr ptr, uint32_t stamp, uint64_t words,
                        uint64_t ns)
{
    return launch(gpu, gpu->spin_fill, words, (void *[]){&ptr, &stamp, &words, &ns});
}

CUresult gpu_scribble(const struct gpu *gpu, CUdeviceptr ptr, uint64_t words, uint64_t ns)
{
    return launch(gpu, gpu->scribble, words, (void *[]){&ptr, &words, &ns});
}

CUresult gpu_count_other(const struct gpu *gpu, CUdeviceptr ptr, uint32_t stamp, uint64_t words,
                         CUdeviceptr counter, uint32_t *ret_count)
{
    CUresult r = gpu_stamp(gpu, counter, 0, 1);

    if (r == CUDA_SUCCESS)
        r = launch(gpu, gpu->count_other, words, (void *[]){&ptr, &stamp, &words, &counter});
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(gpu->stream);
    return r == CUDA_SUCCESS ? cuMemcpyDtoH(ret_count, counter, sizeof *ret_count) : r;
}

size_t gpu_free_bytes(void)
{
    size_t free_bytes = 0, total = 0;

    return cuMemGetInfo(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}
