/*
 * Orders to the software driver from inside, and its answers to cuGetProcAddress.
 */
#include "softdriver.h"

#include <dlfcn.h>
#include <time.h>

TestSuite(softdriver_faults, .init = sd_start, .timeout = 60);

Test(softdriver_faults, the_nth_call_from_now_fails_whatever_its_variant)
{
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 512));
    cr_assert_eq(softcuda_fail("cuMemAlloc", 2, CUDA_ERROR_UNKNOWN), 0);
    OK(cuMemAlloc(&ptr, 512));
    GIVES(cuMemAlloc(&ptr, 512), CUDA_ERROR_UNKNOWN);
    OK(cuMemAlloc(&ptr, 512));
    cr_assert_eq(softcuda_fail("cuMemAlloc_v2", 0, CUDA_ERROR_OUT_OF_MEMORY), 0);
    GIVES(cuMemAlloc(&ptr, 512), CUDA_ERROR_OUT_OF_MEMORY);
    GIVES(cuMemAlloc(&ptr, 512), CUDA_ERROR_OUT_OF_MEMORY);
    softcuda_reset();
    OK(cuMemAlloc(&ptr, 512));
    cr_assert_eq(softcuda_fail("cuMem", 1, CUDA_ERROR_UNKNOWN), -1);
}

static void *address(const char *name, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status)
{
    void *p = (void *)1;
    CUresult result = cuGetProcAddress(name, &p, version, flags, status);

    GIVES(result, p ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
    return p;
}

Test(softdriver_faults, features_can_be_missing)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUmemGenericAllocationHandle handle;
    CUdriverProcAddressQueryResult status;
    CUdeviceptr ptr;
    CUevent event;
    int value;

    OK(cuEventCreate(&event, 0));
    cr_assert_eq(softcuda_without("nonsense"), -1);
    cr_assert_eq(softcuda_without("ctx_record_event, async"), 0);
    GIVES(cuCtxRecordEvent(sd_ctx, event), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_null(address("cuCtxRecordEvent", 13000, 0, &status));
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    GIVES(cuMemAllocAsync(&ptr, 512, NULL), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
    cr_assert_eq(value, 0);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    cr_assert_eq(softcuda_without("posix_fd"), 0);
    GIVES(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    cr_assert_eq(softcuda_without("rdma"), 0);
    prop.allocFlags.gpuDirectRDMACapable = 1;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
    cr_assert_eq(prop.allocFlags.gpuDirectRDMACapable, 0);
    cr_assert_eq(softcuda_without("vmm"), 0);
    GIVES(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    cr_assert_eq(value, 0);
    cr_assert_eq(softcuda_without(""), 0);
    OK(cuCtxRecordEvent(sd_ctx, event));
    cr_assert_not_null(address("cuCtxRecordEvent", 13000, 0, NULL));
}

Test(softdriver_faults, nothing_works_before_cuInit_and_nothing_is_left_in_the_end)
{
    struct softcuda_census census;

    OK(cuModuleUnload(sd_mod));
    OK(cuDevicePrimaryCtxRelease(0));
    softcuda_census(&census);
    for (size_t i = 0; i < sizeof census; i++)
        cr_assert_eq(((unsigned char *)&census)[i], 0, "byte %zu of the census", i);
}

Test(softdriver_uninitialised, calls_are_refused_before_cuInit, .timeout = 60)
{
    CUdeviceptr ptr;
    CUcontext context;
    int version = 0;

    GIVES(cuMemAlloc(&ptr, 512), CUDA_ERROR_NOT_INITIALIZED);
    GIVES(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuDriverGetVersion(&version));
    cr_assert_eq(version, 13040);
    cr_assert_not_null(address("cuMemAlloc", 13000, 0, NULL));
    OK(cuInit(0));
    GIVES(cuMemAlloc(&ptr, 512), CUDA_ERROR_INVALID_CONTEXT);
}
