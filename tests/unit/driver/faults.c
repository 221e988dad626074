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

Test(softdriver_faults, calls_are_counted)
{
    CUcontext context;

    softcuda_reset();
    for (int i = 0; i < 3; i++)
        OK(cuCtxGetCurrent(&context));
    cr_assert_eq(softcuda_calls("cuCtxGetCurrent"), 3);
    cr_assert_eq(softcuda_calls("cuMemAlloc"), 0);
    softcuda_reset();
    cr_assert_eq(softcuda_calls("cuCtxGetCurrent"), 0);
}

Test(softdriver_faults, a_call_can_be_slow)
{
    struct timespec a, b;
    CUcontext context;

    cr_assert_eq(softcuda_delay("cuCtxGetCurrent", 30000), 0);
    clock_gettime(CLOCK_MONOTONIC, &a);
    OK(cuCtxGetCurrent(&context));
    clock_gettime(CLOCK_MONOTONIC, &b);
    cr_assert_geq((b.tv_sec - a.tv_sec) * 1000000000l + b.tv_nsec - a.tv_nsec, 30000000l);
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

Test(softdriver_faults, names_versions_and_flags_choose_the_exported_symbol)
{
    static const struct {
        const char *name;
        int version;
        cuuint64_t flags;
        const char *symbol;
    } rows[] = {
        {"cuMemAlloc", 13000, 0, "cuMemAlloc_v2"},
        {"cuMemAlloc", 3010, 0, "cuMemAlloc"},
        {"cuMemcpyDtoD", 13000, 2, "cuMemcpyDtoD_v2_ptds"},
        {"cuMemcpyDtoD", 13000, 1, "cuMemcpyDtoD_v2"},
        {"cuMemcpyDtoD", 6050, 2, "cuMemcpyDtoD_v2"},
        {"cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"},
        {"cuMemAllocAsync", 12000, 0, "cuMemAllocAsync"},
        {"cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture"},
        {"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
        {"cuStreamGetCaptureInfo", 12020, 0, "cuStreamGetCaptureInfo_v2"},
        {"cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz"},
        {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3"},
        {"cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"},
        {"cuGraphInstantiateWithFlags", 11040, 0, "cuGraphInstantiateWithFlags"},
        {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
        {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
        {"cuCtxRecordEvent", 12050, 2, "cuCtxRecordEvent"},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    CUdriverProcAddressQueryResult status;
    void *p;

    cr_assert_not_null(library);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(address(rows[i].name, rows[i].version, rows[i].flags, &status),
                     dlsym(library, rows[i].symbol), "%s %d", rows[i].name, rows[i].version);
        cr_assert_eq(status, CU_GET_PROC_ADDRESS_SUCCESS);
    }
    cr_assert_null(address("cuMemAlloc_v2", 13000, 0, &status));
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    cr_assert_null(address("cuCtxRecordEvent", 12040, 0, &status));
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    GIVES(cuGetProcAddress("cuInit", &p, 99000, 0, NULL), CUDA_ERROR_INVALID_VALUE);
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
