/*
 * gpu.h on the CUDA driver API, linked with -lcuda as any such program is.
 */
#include "gpu.h"

#include <cuda.h>
#include <string.h>

const char gpu_alloc_async_name[] = "cuMemAllocAsync";
const char gpu_share_name[] = "cuIpcGetMemHandle";

static CUdevice device;
static CUstream stream;

static const char *error_name(CUresult result)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return NULL;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "an error without a name";
    return name;
}

const char *gpu_start(char *ret_name, size_t size)
{
    CUcontext context;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGet(&device, 0);
    if (result == CUDA_SUCCESS)
        result = cuDeviceGetName(ret_name, (int)size, device);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRetain(&context, device);
    if (result == CUDA_SUCCESS)
        result = cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS)
        result = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    return error_name(result);
}

const char *gpu_stop(void)
{
    CUresult result = cuStreamDestroy(stream);
    if (result == CUDA_SUCCESS)
        result = cuDevicePrimaryCtxRelease(device);
    return error_name(result);
}

const char *gpu_alloc(size_t bytes, gpu_address *ret)
{
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAlloc(&pointer, bytes);
    if (result == CUDA_SUCCESS)
        *ret = (gpu_address)pointer;
    return error_name(result);
}

const char *gpu_free(gpu_address address)
{
    return error_name(cuMemFree(address));
}

const char *gpu_alloc_async(size_t bytes, gpu_address *ret)
{
    CUdeviceptr pointer = 0;
    CUresult result = cuMemAllocAsync(&pointer, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(stream);
    if (result == CUDA_SUCCESS)
        *ret = (gpu_address)pointer;
    return error_name(result);
}

const char *gpu_free_async(gpu_address address)
{
    CUresult result = cuMemFreeAsync(address, stream);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(stream);
    return error_name(result);
}

const char *gpu_fill(gpu_address address, unsigned char byte, size_t bytes)
{
    CUresult result = cuMemsetD8Async(address, byte, bytes, stream);
    if (result == CUDA_SUCCESS)
        result = cuStreamSynchronize(stream);
    return error_name(result);
}

const char *gpu_read(gpu_address address, void *ret, size_t bytes)
{
    return error_name(cuMemcpyDtoH(ret, address, bytes));
}

const char *gpu_share(gpu_address address, struct gpu_handle *ret)
{
    CUipcMemHandle handle;
    _Static_assert(sizeof(handle) == sizeof(*ret), "an IPC handle is 64 bytes");
    CUresult result = cuIpcGetMemHandle(&handle, address);
    if (result == CUDA_SUCCESS)
        memcpy(ret, &handle, sizeof(handle));
    return error_name(result);
}

const char *gpu_open(const struct gpu_handle *handle, gpu_address *ret)
{
    CUipcMemHandle cuda_handle;
    CUdeviceptr pointer = 0;
    memcpy(&cuda_handle, handle, sizeof(cuda_handle));
    CUresult result = cuIpcOpenMemHandle(&pointer, cuda_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result == CUDA_SUCCESS)
        *ret = (gpu_address)pointer;
    return error_name(result);
}

const char *gpu_close(gpu_address address)
{
    return error_name(cuIpcCloseMemHandle(address));
}

const char *gpu_memory_free(size_t *ret)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CUresult result = cuMemGetInfo(&free_bytes, &total_bytes);
    if (result == CUDA_SUCCESS)
        *ret = free_bytes;
    return error_name(result);
}
