/*
 * VMM memory of the software driver, and what happens to work whose memory vanishes.
 */
#include "softdriver.h"

#include <fcntl.h>
#include <sys/resource.h>

TestSuite(softdriver_vmm, .init = sd_start, .timeout = 60);

Test(softdriver_vmm, a_mapping_takes_a_whole_handle)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    size_t granularity;

    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    cr_assert_eq(granularity, 2 * MIB);
    GIVES(cuMemCreate(&handle, MIB, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&handle, 4 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&ptr, 8 * MIB, 0, 0, 0));
    GIVES(cuMemMap(ptr, 2 * MIB, 2 * MIB, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    GIVES(cuMemMap(ptr, 2 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemMap(ptr + 6 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(ptr, 4 * MIB, 0, handle, 0));
    GIVES(cuMemMap(ptr + 2 * MIB, 4 * MIB, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemUnmap(ptr, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemAddressFree(ptr, 8 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(ptr, 4 * MIB));
    OK(cuMemMap(ptr, 4 * MIB, 0, handle, 0));
    OK(cuMemUnmap(ptr, (size_t)1 << 60)); /* what is behind it does not matter */
    GIVES(cuMemUnmap(ptr, (size_t)1 << 60), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressFree(ptr, 8 * MIB));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    GIVES(cuMemCreate(&handle, 2 * MIB, &prop, 0), CUDA_ERROR_NOT_PERMITTED);
}

Test(softdriver_vmm, neighbouring_mappings_are_one_range)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    OK(cuMemAddressReserve(&ptr, 6 * MIB, 0, 0, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        OK(cuMemMap(ptr + i * 2 * MIB, 2 * MIB, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    GIVES(cuMemsetD8(ptr, 1, 4 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(sd_access(ptr, 4 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemsetD8(ptr, 1, 4 * MIB));
    GIVES(cuMemsetD8(ptr, 1, 4 * MIB + 1), CUDA_ERROR_INVALID_VALUE);
    OK(sd_fill(NULL, ptr, 3, MIB));
    cr_assert_eq(sd_word(ptr + 4 * MIB - 4, NULL), 3);
}

Test(softdriver_vmm, unmapping_does_not_wait_and_the_work_faults_for_good)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(2 * MIB, &handle), other;
    uint64_t count = 1024, ns = 0;
    uint32_t value = 1;
    CUstream stream;
    CUcontext second;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    softcuda_hold(1);
    OK(sd_launch("spin_fill", stream, (void *[]){&vmm, &value, &count, &ns}));
    OK(cuMemUnmap(vmm, 2 * MIB));
    GIVES(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    softcuda_hold(0);
    GIVES(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    GIVES(cuMemAlloc(&other, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&other, 512));
}

Test(softdriver_vmm, a_running_kernel_notices_the_unmapping)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(4 * MIB, &handle);
    uint64_t count = MIB, ns = 5000 * MS;

    OK(sd_launch("scribble", NULL, (void *[]){&vmm, &count, &ns}));
    while (!*(volatile uint32_t *)vmm)
        usleep(1000);
    OK(cuMemUnmap(vmm, 4 * MIB));
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(softdriver_vmm, freed_memory_faults_too)
{
    CUdeviceptr ptr;

    OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(cuMemFree(ptr));
    OK(sd_fill(NULL, ptr, 1, 1));
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(softdriver_vmm, a_read_only_mapping_refuses_copies_and_faults_kernels)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(2 * MIB, &handle), out;
    uint64_t count = 16;
    uint32_t value = 4;

    OK(cuMemAlloc(&out, 4));
    OK(cuMemsetD32(out, 0, 1));
    OK(sd_fill(NULL, vmm, 4, 16));
    OK(cuCtxSynchronize());
    OK(sd_access(vmm, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    GIVES(cuMemcpyHtoD(vmm, &value, 4), CUDA_ERROR_INVALID_VALUE);
    OK(sd_launch("count_other", NULL, (void *[]){&vmm, &value, &count, &out}));
    cr_assert_eq(sd_word(out, NULL), 0);
    OK(sd_fill(NULL, vmm, 5, 1));
    GIVES(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

Test(softdriver_vmm, an_exported_handle_is_the_same_memory)
{
    CUmemGenericAllocationHandle handle, imported;
    CUdeviceptr vmm = sd_map_new(2 * MIB, &handle), second;
    CUmemAllocationProp prop;
    struct softcuda_census census;
    int fd = -1, junk;

    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    softcuda_census(&census);
    cr_assert_eq(census.exported_fds, 1);
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    softcuda_census(&census);
    cr_assert_eq(census.exported_fds, 0);
    GIVES(cuMemExportToShareableHandle(&fd, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemGetAllocationPropertiesFromHandle(&prop, imported));
    cr_assert_eq(prop.location.id, 0);
    OK(cuMemAddressReserve(&second, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(second, 2 * MIB, 0, imported, 0));
    OK(sd_access(second, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(sd_fill(NULL, vmm, 8, 1));
    cr_assert_eq(sd_word(second, NULL), 8);
    junk = open("/dev/null", O_RDWR | O_CLOEXEC);
    GIVES(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)junk,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
}

Test(softdriver_vmm, mappings_survive_a_reset_of_the_primary_context)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr vmm = sd_map_new(2 * MIB, &handle);

    OK(cuMemsetD32(vmm, 9, 1));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&sd_ctx, 0));
    OK(cuCtxSetCurrent(sd_ctx));
    cr_assert_eq(sd_word(vmm, NULL), 9);
    OK(cuMemUnmap(vmm, 2 * MIB));
}

Test(softdriver_vmm, memory_costs_the_program_no_descriptor)
{
    struct rlimit limit;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    int fd, next;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 256;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while ((next = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        fd = next;
    cr_assert_eq(fd, 255);
    ptr = sd_map_new(2 * MIB, &handle);
    OK(cuMemAlloc(&ptr, 4 * MIB));
    GIVES(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          CUDA_ERROR_OPERATING_SYSTEM);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(limit.rlim_cur, 256);
}

static CUdeviceptr map_whole(CUmemGenericAllocationHandle handle)
{
    CUdeviceptr ptr;

    OK(cuMemAddressReserve(&ptr, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(ptr, 2 * MIB, 0, handle, 0));
    OK(sd_access(ptr, 2 * MIB, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    return ptr;
}

/* By whoever sees the domain's folder, and as long as anybody has it. */
Test(softdriver_vmm, in_an_nvlink_domain_a_fabric_handle_opens_the_same_memory)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUmemGenericAllocationHandle handle, opened, by_descriptor;
    char folder[] = "/dev/shm/softcuda-domain-XXXXXX";
    CUmemFabricHandle fabric, changed;
    CUdeviceptr here, there;
    int fd;

    cr_assert(mkdtemp(folder));
    setenv("SOFTCUDA_FABRIC", folder, 1);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    GIVES(cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    prop.requestedHandleTypes = (CUmemAllocationHandleType)(
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC);
    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&opened, &fabric, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(cuMemImportFromShareableHandle(&by_descriptor, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    here = map_whole(handle);
    there = map_whole(opened);
    OK(cuMemsetD8(here, 7, MIB));
    OK(cuCtxSynchronize());
    cr_assert_eq(*(unsigned char *)there, 7);
    changed = fabric;
    changed.data[20] ^= 1;
    GIVES(cuMemImportFromShareableHandle(&opened, &changed, CU_MEM_HANDLE_TYPE_FABRIC),
          CUDA_ERROR_INVALID_VALUE);
    memcpy(changed.data, "softcuda-/../x", 15);
    GIVES(cuMemImportFromShareableHandle(&opened, &changed, CU_MEM_HANDLE_TYPE_FABRIC),
          CUDA_ERROR_INVALID_VALUE);
    unsetenv("SOFTCUDA_FABRIC");
    GIVES(cuMemImportFromShareableHandle(&opened, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
          CUDA_ERROR_NOT_PERMITTED);
    close(fd);
    OK(cuMemUnmap(there, 2 * MIB));
    OK(cuMemUnmap(here, 2 * MIB));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(opened));
    OK(cuMemRelease(by_descriptor));
    cr_assert_eq(rmdir(folder), 0, "its file goes with the last that has it");
}
