/*
 * A small libcuda.so.1 for the look-up tests: the entry points that they call, each counting its
 * calls, and the driver's cuGetProcAddress. It is a driver of CUDA 12.0 that has nothing newer, so
 * what the shim does about missing entry points shows here too. Memory is the host's.
 *
 * Its constructor does what a driver may do while it is being loaded: it looks up names and calls
 * what it finds.
 */
#include "../../shim/cuda_exact.h"
#include "stub_libcuda.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_int calls[STUB_CALLS];

EXPORT int stub_calls(enum stub_call call)
{
    return atomic_load(&calls[call]);
}

static CUresult count(enum stub_call call)
{
    atomic_fetch_add(&calls[call], 1);
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuInit(unsigned int Flags)
{
    return count(STUB_INIT);
}

EXPORT CUresult CUDAAPI cuDriverGetVersion(int *driverVersion)
{
    *driverVersion = 12000;
    return CUDA_SUCCESS;
}

/* What the library needs to start with a driver. There is never a current context here, so every
 * allocation stays this driver's own. */
#define REFUSED(name, parameters)           \
    EXPORT CUresult CUDAAPI name parameters \
    {                                       \
        return CUDA_ERROR_INVALID_CONTEXT;  \
    }
REFUSED(cuCtxGetDevice, (CUdevice * device))
REFUSED(cuCtxPushCurrent_v2, (CUcontext ctx))
REFUSED(cuCtxPopCurrent_v2, (CUcontext * pctx))
REFUSED(cuCtxSynchronize, (void))
REFUSED(cuCtxGetApiVersion, (CUcontext ctx, unsigned int *version))
REFUSED(cuDevicePrimaryCtxGetState, (CUdevice dev, unsigned int *flags, int *active))
REFUSED(cuDevicePrimaryCtxRetain, (CUcontext * pctx, CUdevice dev))
REFUSED(cuDevicePrimaryCtxRelease_v2, (CUdevice dev))
REFUSED(cuDeviceGetAttribute, (int *pi, CUdevice_attribute attrib, CUdevice dev))
REFUSED(cuDeviceTotalMem_v2, (size_t *bytes, CUdevice dev))
REFUSED(cuEventCreate, (CUevent * phEvent, unsigned int Flags))
REFUSED(cuEventDestroy_v2, (CUevent hEvent))
REFUSED(cuEventRecord, (CUevent hEvent, CUstream hStream))
REFUSED(cuEventQuery, (CUevent hEvent))
REFUSED(cuStreamSynchronize, (CUstream hStream))
REFUSED(cuStreamCreate, (CUstream * phStream, unsigned int Flags))
REFUSED(cuStreamDestroy_v2, (CUstream hStream))
REFUSED(cuStreamGetCtx, (CUstream hStream, CUcontext *pctx))
REFUSED(cuStreamWaitEvent, (CUstream hStream, CUevent hEvent, unsigned int Flags))

EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext *pctx)
{
    *pctx = NULL;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *dptr, size_t bytesize)
{
    *dptr = (CUdeviceptr)malloc(bytesize);
    return *dptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdeviceptr dptr)
{
    free((void *)dptr);
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    count(STUB_ALLOC);
    return allocate(dptr, bytesize);
}

/* A form of the future. */
EXPORT CUresult CUDAAPI cuMemAlloc_v3(CUdeviceptr *dptr, size_t bytesize, unsigned int Flags);
EXPORT CUresult CUDAAPI cuMemAlloc_v3(CUdeviceptr *dptr, size_t bytesize, unsigned int Flags)
{
    return Flags == 7 ? allocate(dptr, bytesize) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr)
{
    count(STUB_FREE);
    return release(dptr);
}

EXPORT CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    count(STUB_ALLOC_ASYNC);
    return allocate(dptr, bytesize);
}

EXPORT CUresult CUDAAPI cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    count(STUB_ALLOC_ASYNC_PTSZ);
    return allocate(dptr, bytesize);
}

EXPORT CUresult CUDAAPI cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    *free_bytes = 1 << 20;
    *total = 2 << 20;
    return count(STUB_GET_INFO);
}

/* The CUDA 2 form, which is not ours. */
EXPORT CUresult CUDAAPI cuMemGetInfo(unsigned int *free_bytes, unsigned int *total)
{
    *free_bytes = *total = 1 << 20;
    return CUDA_SUCCESS;
}

/* By value and large, so that a hook's passing on of the stack is seen. */
EXPORT CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle,
                                              unsigned int Flags)
{
    for (size_t i = 0; i < sizeof(handle.reserved); i++) {
        if (handle.reserved[i] != (char)i)
            return CUDA_ERROR_INVALID_VALUE;
    }
    *pdptr = Flags;
    return CUDA_SUCCESS;
}

/* Nobody asks for these. Of one name the older version comes first in the library's table, of the
 * other the newer one. */
#ifdef OLD_VERSIONS
__asm__(".symver old_alloc, cuMemAlloc_v2@STUB_0");
__asm__(".symver old_free, cuMemFree_v2@STUB_0");
EXPORT CUresult CUDAAPI old_alloc(CUdeviceptr *dptr, size_t bytesize);
EXPORT CUresult CUDAAPI old_alloc(CUdeviceptr *dptr, size_t bytesize)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult CUDAAPI old_free(CUdeviceptr dptr);
EXPORT CUresult CUDAAPI old_free(CUdeviceptr dptr)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}
#endif

static CUresult find(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct {
        const char *name;
        int since;
        void *function;
    } functions[] = {
        {"cuInit", 2000, (void *)cuInit},
        {"cuMemAlloc", 99000, (void *)cuMemAlloc_v3},
        {"cuMemAlloc", 3020, (void *)cuMemAlloc_v2},
        {"cuMemFree", 3020, (void *)cuMemFree_v2},
        {"cuMemGetInfo", 3020, (void *)cuMemGetInfo_v2},
        {"cuMemGetInfo", 2000, (void *)cuMemGetInfo},
        {"cuDeviceTotalMem", 3020, (void *)cuDeviceTotalMem_v2},
        {"cuMemAllocAsync", 11020,
         per_thread ? (void *)cuMemAllocAsync_ptsz : (void *)cuMemAllocAsync},
        {"cuIpcOpenMemHandle", 11000, (void *)cuIpcOpenMemHandle_v2},
        {"cuGetProcAddress", 12000, (void *)cuGetProcAddress_v2},
        {"cuGetProcAddress", 11030, (void *)cuGetProcAddress},
    };
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (strcmp(functions[i].name, symbol) == 0 && functions[i].since <= version) {
            *pfn = functions[i].function;
            return CUDA_SUCCESS;
        }
    }
    *pfn = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion,
                                         cuuint64_t flags)
{
    return find(symbol, pfn, cudaVersion, flags);
}

EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion,
                                            cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *symbolStatus)
{
    CUresult result = find(symbol, pfn, cudaVersion, flags);
    if (symbolStatus)
        *symbolStatus = result == CUDA_SUCCESS ? CU_GET_PROC_ADDRESS_SUCCESS
                                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result;
}

__attribute__((constructor)) static void loaded(void)
{
    size_t free_bytes, total;
    dlsym(RTLD_DEFAULT, "cuInit");
    __typeof__(&cuMemGetInfo_v2) get_info =
        (__typeof__(&cuMemGetInfo_v2))dlsym(RTLD_DEFAULT, "cuMemGetInfo_v2");
    if (get_info && get_info(&free_bytes, &total) != CUDA_SUCCESS)
        abort();
}
