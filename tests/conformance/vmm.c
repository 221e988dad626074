/* The program's own virtual memory management: the driver's, untouched by the shim, but that it has
 * IPC handles (own.c). */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(vmm, .init = conform_start, .timeout = 60);

struct mapping {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;
    size_t size;
};

static struct mapping map_new(size_t size)
{
    CUmemAllocationProp p = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    struct mapping m = {.size = size};

    OK(cuMemCreate(&m.handle, size, &p, 0));
    OK(cuMemAddressReserve(&m.ptr, size, 0, 0, 0));
    OK(cuMemMap(m.ptr, size, 0, m.handle, 0));
    access_set(m.ptr, size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return m;
}

static void unmap(struct mapping *m)
{
    OK(cuMemUnmap(m->ptr, m->size));
    OK(cuMemRelease(m->handle));
    OK(cuMemAddressFree(m->ptr, m->size));
}

Test(vmm, granularity_is_2_mib)
{
    CUmemAllocationProp p = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    size_t least = 0, best = 0;

    OK(cuMemGetAllocationGranularity(&least, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemGetAllocationGranularity(&best, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    cr_assert_eq(least, 2 * MIB);
    cr_assert_eq(best, 2 * MIB);
}

Test(vmm, mapped_memory_works_beside_plain_memory)
{
    struct mapping m[4];
    CUdeviceptr ptr[4];

    for (int i = 0; i < 4; i++) {
        m[i] = map_new((size_t)(i + 1) * 2 * MIB);
        OK(cuMemAlloc(&ptr[i], m[i].size));
        OK(fill_now(m[i].ptr, 100u + (uint32_t)i, m[i].size / 4));
        OK(fill_now(ptr[i], 200u + (uint32_t)i, m[i].size / 4));
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(words_other(m[i].ptr, 100u + (uint32_t)i, m[i].size / 4), 0);
        cr_assert_eq(words_other(ptr[i], 200u + (uint32_t)i, m[i].size / 4), 0);
        unmap(&m[i]);
        OK(cuMemFree(ptr[i]));
    }
}

Test(vmm, what_the_driver_says_of_it)
{
    struct mapping m = map_new(4 * MIB);
    CUmemGenericAllocationHandle handle = 0;
    CUcontext owner = context;
    CUdeviceptr base = 0;
    CUipcMemHandle ipc;
    unsigned int on = 1, legacy = 1;
    unsigned long long types = 0, id = 0;
    size_t size = 0;

    CHECK(CUDA_ERROR_NOT_SUPPORTED,
          cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, m.ptr));
    OK(cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, m.ptr));
    cr_assert_eq(on, 0);
    OK(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, m.ptr));
    cr_assert_eq(legacy & 0xff, 0);
    CHECK(under_shim() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, m.ptr));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, m.ptr));
    cr_assert_null(owner);
    OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, m.ptr + 5));
    cr_assert_eq(base, m.ptr);
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, m.ptr + 5));
    cr_assert_eq(size, m.size);
    OK(cuMemGetAddressRange(&base, &size, m.ptr + 3 * MIB));
    cr_assert_eq(base, m.ptr);
    cr_assert_eq(size, m.size);
    OK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, m.ptr));
    cr_assert_eq(types & 1, 1);
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, m.ptr));
    cr_assert_neq(id, 0);
    OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(m.ptr + MIB)));
    probe("retained_handle_is_the_creators", "%d", handle == m.handle);
    OK(cuMemRelease(handle));
    probe("free_of_vmm_memory", "%s", result_name(cuMemFree(m.ptr)));
    probe("async_free_of_vmm_memory", "%s", result_name(cuMemFreeAsync(m.ptr, CU_STREAM_LEGACY)));
    OK(fill_now(m.ptr, 1, m.size / 4));
}

Test(vmm, a_mapping_takes_a_whole_handle)
{
    CUmemAllocationProp p = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range = 0;
    CUresult half;

    OK(cuMemCreate(&handle, 4 * MIB, &p, 0));
    OK(cuMemAddressReserve(&range, 8 * MIB, 0, 0, 0));
    CHECK(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(range, 2 * MIB, 2 * MIB, handle, 0));
    half = cuMemMap(range, 2 * MIB, 0, handle, 0);
    probe("map_half_a_handle", "%s", result_name(half));
    if (half == CUDA_SUCCESS)
        OK(cuMemUnmap(range, 2 * MIB));
    CHECK(CUDA_ERROR_NOT_SUPPORTED, cuMemMap(range, 8 * MIB, 0, handle, 0));
    FAILS(cuMemMap(range, 4 * MIB + 512, 0, handle, 0));
    OK(cuMemMap(range, 4 * MIB, 0, handle, 0));
    FAILS(cuMemMap(range, 4 * MIB, 0, handle, 0));
}

Test(vmm, one_handle_at_two_addresses)
{
    struct mapping m = map_new(2 * MIB);
    CUdeviceptr alias = 0;

    OK(cuMemAddressReserve(&alias, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(alias, 2 * MIB, 0, m.handle, 0));
    access_set(alias, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(fill_now(m.ptr, 77, MIB / 2));
    cr_assert_eq(words_other(alias, 77, MIB / 2), 0);
}

Test(vmm, sizes_that_are_no_multiple_are_refused)
{
    CUmemAllocationProp p = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr range = 0;

    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, MIB, &p, 0));
    FAILS(cuMemCreate(&handle, 0, &p, 0));
    FAILS(cuMemAddressReserve(&range, 0, 0, 0, 0));
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&handle, (size_t)1 << 50, &p, 0));
}

Test(vmm, exported_and_imported_in_this_process)
{
    struct mapping m = map_new(2 * MIB), other = {.size = 2 * MIB};
    int fd = -1, again = -1;

    OK(cuMemExportToShareableHandle(&fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    cr_assert_geq(fd, 0);
    OK(cuMemImportFromShareableHandle(&other.handle, (void *)(uintptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(cuMemAddressReserve(&other.ptr, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(other.ptr, 2 * MIB, 0, other.handle, 0));
    access_set(other.ptr, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(fill_now(m.ptr, 5, MIB / 2));
    cr_assert_eq(words_other(other.ptr, 5, MIB / 2), 0);
    probe("export_of_an_import_in_one_process", "%s",
          result_name(cuMemExportToShareableHandle(&again, other.handle,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
    if (again >= 0)
        close(again);
    close(fd);
    unmap(&m);
    cr_assert_eq(words_other(other.ptr, 5, MIB / 2), 0, "gone with the exporter's mapping");
}

Test(vmm, exported_to_another_process)
{
    struct peer *peer = peer_start(-1);
    struct mapping m = map_new(4 * MIB);
    CUdeviceptr there = 0;
    int fd = -1;

    OK(fill_now(m.ptr, 6, MIB));
    OK(cuMemExportToShareableHandle(&fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(peer_import(peer, fd, m.size, false, &there));
    close(fd);
    cr_assert_eq(peer_other(peer, there, 6, MIB), 0);
    OK(peer_fill(peer, there, 7, MIB));
    cr_assert_eq(words_other(m.ptr, 7, MIB), 0);
    unmap(&m);
    cr_assert_eq(peer_other(peer, there, 7, MIB), 0,
                 "the importer lost it with the exporter's release");
    peer_quit(peer);
}

Test(vmm, a_read_only_mapping_refuses_copies_into_it)
{
    struct peer *peer = peer_start(-1);
    struct mapping m = map_new(2 * MIB);
    CUdeviceptr there = 0;
    int fd = -1;

    OK(fill_now(m.ptr, 8, MIB / 2));
    OK(cuMemExportToShareableHandle(&fd, m.handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(peer_import(peer, fd, m.size, true, &there));
    close(fd);
    cr_assert_eq(peer_other(peer, there, 8, MIB / 2), 0);
    CHECK(CUDA_ERROR_INVALID_VALUE, peer_store(peer, there, 9));
    cr_assert_eq(words_other(m.ptr, 8, MIB / 2), 0);
    peer_quit(peer);
}

Test(vmm, mappings_survive_a_reset_of_the_primary_context)
{
    struct mapping m = map_new(2 * MIB);

    OK(fill_now(m.ptr, 11, MIB / 2));
    kernels_forget();
    OK(cuDevicePrimaryCtxReset(device));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(words_other(m.ptr, 11, MIB / 2), 0);
}

Test(vmm, a_range_may_be_reserved_before_and_after_plain_memory)
{
    CUdeviceptr range = 0, ptr = 0;

    OK(cuMemAddressReserve(&range, 512 * MIB, 0, 0, 0));
    OK(cuMemAlloc(&ptr, 4 * MIB));
    cr_assert(ptr + 4 * MIB <= range || ptr >= range + 512 * MIB);
    FAILS(cuMemFree(range));
}

/* Memory of cuMemAlloc and of pools is not for these calls, and is none the worse for them. */
static void refuses_vmm_calls(CUdeviceptr ptr, size_t size)
{
    CUmemAllocationProp p = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemAccessDesc access = {.location = p.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle = 0;
    unsigned long long flags = 77;

    OK(cuMemCreate(&handle, 2 * MIB, &p, 0));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemMap(ptr, 2 * MIB, 0, handle, 0));
    OK(cuMemRelease(handle));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr, size));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(ptr & ~(CUdeviceptr)(2 * MIB - 1), 2 * MIB));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(ptr, size));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(ptr, size, &access, 1));
    OK(cuMemGetAccess(&flags, &access.location, ptr));
    cr_assert_eq(flags, 0);
    OK(fill_now(ptr, 3, 1024));
    cr_assert_eq(words_other(ptr, 3, 1024), 0);
}

Test(vmm, allocations_are_not_for_vmm_calls)
{
    CUdeviceptr plain = allocated(4 * MIB), async = 0, small = 0;

    refuses_vmm_calls(plain, 4 * MIB);
    OK(cuMemAlloc(&small, 4096));
    refuses_vmm_calls(small, 4096);
    OK(cuMemAllocAsync(&async, 4 * MIB, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    refuses_vmm_calls(async, 4 * MIB);
}
