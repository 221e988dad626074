/* The CUDA calls of the chaos program (chaos.h): the plain driver API. */
#include "chaos.h"
#include "../conformance/kernels.h"

#define START_TRIES 5

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

/* The first call that fails. */
static CUresult start(struct gpu *gpu, const char **ret_call)
{
    CUresult r;

    if ((r = cuInit(0)) != CUDA_SUCCESS)
        *ret_call = "cuInit";
    else if ((r = cuDeviceGet(&gpu->device, 0)) != CUDA_SUCCESS)
        *ret_call = "cuDeviceGet";
    else if ((r = cuDevicePrimaryCtxRetain(&gpu->context, gpu->device)) != CUDA_SUCCESS)
        *ret_call = "cuDevicePrimaryCtxRetain";
    else if ((r = cuCtxSetCurrent(gpu->context)) != CUDA_SUCCESS)
        *ret_call = "cuCtxSetCurrent";
    else if ((r = cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING)) != CUDA_SUCCESS)
        *ret_call = "cuStreamCreate";
    else if ((r = kernels_load(gpu)) != CUDA_SUCCESS)
        *ret_call = "cuModuleLoadData";
    return r;
}

/* On a real GPU about one start in a hundred beside processes that are being killed ends with
 * OPERATING_SYSTEM (H200, driver 580): that process's bad luck, no finding. */
CUresult gpu_start(struct gpu *ret_gpu)
{
    const char *call = NULL;
    CUresult r;

    ret_gpu->software = dlsym(RTLD_DEFAULT, "softcuda_version") != NULL;
    for (unsigned tries = 1;; tries++) {
        r = start(ret_gpu, &call);
        if (r == CUDA_SUCCESS)
            return r;
        fprintf(stderr, "chaos: CUDA does not start: %s: %s\n", call, gpu_error(r));
        if (r != CUDA_ERROR_OPERATING_SYSTEM || ret_gpu->software || tries == START_TRIES)
            return r;
        chaos_sleep_us(100000);
    }
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
