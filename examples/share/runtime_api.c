/*
 * gpu.h on the CUDA runtime API, with the static runtime library as nvcc links it by default.
 * Runs on machines with a GPU only.
 */
#include "gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

const char gpu_alloc_async_name[] = "cudaMallocAsync";
const char gpu_share_name[] = "cudaIpcGetMemHandle";

static cudaStream_t stream;

static const char *error_name(cudaError_t result)
{
    return result == cudaSuccess ? NULL : cudaGetErrorName(result);
}

const char *gpu_start(char *ret_name, size_t size)
{
    struct cudaDeviceProp properties;
    cudaError_t result = cudaSetDevice(0);
    if (result == cudaSuccess)
        result = cudaGetDeviceProperties(&properties, 0);
    if (result == cudaSuccess)
        result = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (result == cudaSuccess)
        snprintf(ret_name, size, "%s", properties.name);
    return error_name(result);
}

const char *gpu_stop(void)
{
    return error_name(cudaStreamDestroy(stream));
}

const char *gpu_alloc(size_t bytes, gpu_address *ret)
{
    void *pointer = NULL;
    cudaError_t result = cudaMalloc(&pointer, bytes);
    if (result == cudaSuccess)
        *ret = (gpu_address)pointer;
    return error_name(result);
}

const char *gpu_free(gpu_address address)
{
    return error_name(cudaFree((void *)address));
}

const char *gpu_alloc_async(size_t bytes, gpu_address *ret)
{
    void *pointer = NULL;
    cudaError_t result = cudaMallocAsync(&pointer, bytes, stream);
    if (result == cudaSuccess)
        result = cudaStreamSynchronize(stream);
    if (result == cudaSuccess)
        *ret = (gpu_address)pointer;
    return error_name(result);
}

const char *gpu_free_async(gpu_address address)
{
    cudaError_t result = cudaFreeAsync((void *)address, stream);
    if (result == cudaSuccess)
        result = cudaStreamSynchronize(stream);
    return error_name(result);
}

const char *gpu_fill(gpu_address address, unsigned char byte, size_t bytes)
{
    cudaError_t result = cudaMemsetAsync((void *)address, byte, bytes, stream);
    if (result == cudaSuccess)
        result = cudaStreamSynchronize(stream);
    return error_name(result);
}

const char *gpu_read(gpu_address address, void *ret, size_t bytes)
{
    return error_name(cudaMemcpy(ret, (void *)address, bytes, cudaMemcpyDeviceToHost));
}

const char *gpu_share(gpu_address address, struct gpu_handle *ret)
{
    cudaIpcMemHandle_t handle;
    _Static_assert(sizeof(handle) == sizeof(*ret), "an IPC handle is 64 bytes");
    cudaError_t result = cudaIpcGetMemHandle(&handle, (void *)address);
    if (result == cudaSuccess)
        memcpy(ret, &handle, sizeof(handle));
    return error_name(result);
}

const char *gpu_open(const struct gpu_handle *handle, gpu_address *ret)
{
    cudaIpcMemHandle_t cuda_handle;
    void *pointer = NULL;
    memcpy(&cuda_handle, handle, sizeof(cuda_handle));
    cudaError_t result =
        cudaIpcOpenMemHandle(&pointer, cuda_handle, cudaIpcMemLazyEnablePeerAccess);
    if (result == cudaSuccess)
        *ret = (gpu_address)pointer;
    return error_name(result);
}

const char *gpu_close(gpu_address address)
{
    return error_name(cudaIpcCloseMemHandle((void *)address));
}

const char *gpu_memory_free(size_t *ret)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    cudaError_t result = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (result == cudaSuccess)
        *ret = free_bytes;
    return error_name(result);
}
