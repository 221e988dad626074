/*
 * Memory that the program makes and maps by itself and of which it asks for no descriptors. The
 * library has them made, so that CUDA IPC shares it; of that alone the program may see anything.
 */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(own, .init = conform_start, .timeout = 60);

#define PIECE (2 * MIB)
#define WORDS (PIECE / 4)

static CUdeviceptr map_pieces(unsigned count, const CUmemAllocationProp *prop,
                              CUmemGenericAllocationHandle *handles)
{
    CUdeviceptr base = 0;

    OK(cuMemAddressReserve(&base, count * PIECE, 0, 0, 0));
    for (unsigned i = 0; i < count; i++) {
        OK(cuMemCreate(&handles[i], PIECE, prop, 0));
        OK(cuMemMap(base + i * PIECE, PIECE, 0, handles[i], 0));
    }
    access_set(base, count * PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return base;
}

static void end_pieces(CUdeviceptr base, unsigned count,
                       const CUmemGenericAllocationHandle *handles)
{
    OK(cuMemUnmap(base, count * PIECE));
    for (unsigned i = 0; i < count; i++)
        OK(cuMemRelease(handles[i]));
    OK(cuMemAddressFree(base, count * PIECE));
}

static void is_told_as_asked(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp told;
    int fd = -1;

    memset(&told, 0xff, sizeof told);
    OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
    cr_assert_eq((int)told.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
    cr_assert_eq((int)told.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    cr_assert_eq((int)told.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    cr_assert_eq(told.location.id, 0);
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    cr_assert_eq(fd, -1);
}

Test(own, it_has_the_properties_that_were_asked_for)
{
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle, retained;
    CUdeviceptr ptr = map_pieces(1, &prop, &handle);
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                   CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    unsigned long long types = 77;
    unsigned char legacy[8] = {0}; /* a byte on real drivers */
    size_t size = 0;
    void *answers[] = {&types, &size};

    is_told_as_asked(handle);
    OK(cuMemRetainAllocationHandle(&retained, (void *)(uintptr_t)ptr));
    is_told_as_asked(retained);
    OK(cuMemRelease(retained));
    is_told_as_asked(handle);
    types = 0;
    OK(cuPointerGetAttribute(&types, asked[0], ptr + 5));
    cr_assert_eq(types, 0);
    OK(cuPointerGetAttribute(legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr));
    cr_assert_eq(legacy[0], under_shim());
    types = 0;
    OK(cuPointerGetAttributes(2, asked, answers, ptr));
    cr_assert_eq(types, 0);
    cr_assert_eq(size, PIECE);
}

/* Also when the library has added nothing that is known: the numbers of handles come again. */
Test(own, what_was_asked_for_with_descriptors_has_them)
{
    CUmemAllocationProp none = device_memory(CU_MEM_HANDLE_TYPE_NONE),
                        some = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), told;
    CUmemGenericAllocationHandle handle;
    int fd;

    for (int i = 0; i < 4; i++) {
        OK(cuMemCreate(&handle, PIECE, i % 2 ? &some : &none, 0));
        if (i % 2) {
            OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
            cr_assert_eq((int)told.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                            0));
            close(fd);
        } else {
            is_told_as_asked(handle);
        }
        OK(cuMemRelease(handle));
    }
}

Test(own, a_handle_that_was_released_is_no_handle)
{
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE), told;
    CUmemGenericAllocationHandle handle;
    int fd;

    OK(cuMemCreate(&handle, PIECE, &prop, 0));
    OK(cuMemRelease(handle));
    if (!software_driver())
        cr_skip_test("what becomes of it on a GPU is not documented");
    FAILS(cuMemRelease(handle));
    FAILS(cuMemGetAllocationPropertiesFromHandle(&told, handle));
    FAILS(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

Test(own, it_has_an_ipc_handle_under_the_shim_only)
{
    struct peer *peer = peer_start(-1);
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handles[3];
    CUdeviceptr base = map_pieces(3, &prop, handles), there = 0, start = 0;
    CUipcMemHandle handle, middle;
    size_t size = 0;

    OK(cuMemGetAddressRange(&start, &size, base + PIECE + 5));
    cr_assert_eq(start, base + PIECE);
    cr_assert_eq(size, PIECE);
    if (!under_shim()) {
        CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, base));
        peer_quit(peer);
        return;
    }
    for (uint32_t i = 0; i < 3; i++)
        OK(fill_now(base + i * PIECE, i + 1, WORDS));
    OK(cuIpcGetMemHandle(&handle, base));
    OK(cuIpcGetMemHandle(&middle, base + PIECE + 77));
    OK(peer_open(peer, &handle, &start));
    OK(peer_open(peer, &middle, &there));
    cr_assert_eq(there, start + PIECE, "it does not lie where its address range says");
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(peer_other(peer, start + i * PIECE, i + 1, WORDS), 0, "piece %u", i);
    }
    OK(peer_fill(peer, start, 9, 3 * WORDS)); /* over all pieces at once */
    cr_assert_eq(words_other(base, 9, 3 * WORDS), 0);
    OK(cuMemUnmap(base, 3 * PIECE));
    for (int i = 0; i < 3; i++)
        OK(cuMemRelease(handles[i]));
    cr_assert_eq(peer_other(peer, start, 9, 3 * WORDS), 0,
                 "the importer lost it with the exporter's unmap");
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, base));
    peer_quit(peer);
}

/* A program that shares by descriptor itself, as PyTorch does, may do both. */
Test(own, memory_with_descriptors_of_the_programs_own_is_shared_either_way)
{
    struct peer *peer = peer_start(-1);
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle own;
    CUdeviceptr base = map_pieces(1, &prop, &own), by_fd = 0, by_handle = 0;
    int fd = -1;

    OK(fill_now(base, 5, WORDS));
    OK(cuMemExportToShareableHandle(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(peer_import(peer, fd, PIECE, false, &by_fd));
    close(fd);
    cr_assert_eq(peer_other(peer, by_fd, 5, WORDS), 0);
    if (under_shim()) {
        by_handle = peer_opens(peer, base);
        OK(peer_fill(peer, by_handle, 6, WORDS));
        cr_assert_eq(peer_other(peer, by_fd, 6, WORDS), 0);
        OK(peer_close(peer, by_handle));
    }
    peer_quit(peer);
}

/* The attribute decides whether it is tried. */
Test(own, compressible_memory_is_as_it_was_asked_for)
{
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE), told;
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle ipc;
    CUdeviceptr ptr;
    int supported = 0;

    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED, 0));
    probe("generic_compression_supported", "%d", supported);
    if (!supported)
        cr_skip_test("no compressible memory here");
    prop.allocFlags.compressionType = CU_MEM_ALLOCATION_COMP_GENERIC;
    ptr = map_pieces(1, &prop, &handle);
    OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
    probe("compressible_memory_is", "%d", told.allocFlags.compressionType);
    if (software_driver())
        cr_assert_eq(told.allocFlags.compressionType, CU_MEM_ALLOCATION_COMP_GENERIC);
    is_told_as_asked(handle);
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, ptr));
}

/* Multicast objects are the driver's alone: what is bound to one stays as the program made it, and
 * what the driver refuses changes nothing. None is made here: others use the machine's too. */
Test(own, multicast_objects_are_the_drivers)
{
    const CUmulticastObjectProp object = {.numDevices = 1, .size = PIECE};
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr = map_pieces(1, &prop, &handle);
    CUipcMemHandle ipc;
    size_t granularity = 0;
    int supported = 0;

    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0));
    probe("multicast_supported", "%d", supported);
    probe("multicast_granularity", "%s",
          result_name(
              cuMulticastGetGranularity(&granularity, &object, CU_MULTICAST_GRANULARITY_MINIMUM)));
    FAILS(cuMulticastBindAddr(0, 0, ptr, PIECE, 0));
    is_told_as_asked(handle);
    OK(fill_now(ptr, 3, WORDS));
    if (under_shim())
        OK(cuIpcGetMemHandle(&ipc, ptr));
    else
        CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, ptr));
}

/* Memory of the host, and of types that are none of ours: the driver's answer, whatever it is. */
Test(own, other_kinds_of_memory_have_no_ipc_handle)
{
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle ipc;
    CUdeviceptr ptr = 0;
    CUresult made;

    prop.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
    made = cuMemCreate(&handle, PIECE, &prop, 0);
    probe("create_of_host_memory", "%s", result_name(made));
    if (made == CUDA_SUCCESS) {
        OK(cuMemAddressReserve(&ptr, PIECE, 0, 0, 0));
        OK(cuMemMap(ptr, PIECE, 0, handle, 0));
        access_set(ptr, PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, ptr));
        end_pieces(ptr, 1, &handle);
    }
    prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    prop.location.id = 4711;
    FAILS(cuMemCreate(&handle, PIECE, &prop, 0));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, PIECE, NULL, 0));
}

Test(own, calls_that_the_driver_refuses_change_nothing)
{
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr base = map_pieces(2, &prop, handles);
    CUipcMemHandle ipc;

    OK(fill_now(base, 3, 2 * WORDS));
    if (under_shim())
        OK(cuIpcGetMemHandle(&ipc, base));
    FAILS(cuMemUnmap(base, PIECE / 2));
    FAILS(cuMemUnmap(base + PIECE / 2, PIECE));
    FAILS(cuMemAddressFree(base, 2 * PIECE)); /* mapped */
    FAILS(cuMemAddressFree(base, PIECE));
    FAILS(cuMemMap(base, PIECE, 0, handles[1], 0)); /* something is there */
    if (under_shim())
        FAILS(cuIpcGetMemHandle(&ipc, base)); /* it is not known any more what lies there */
    cr_assert_eq(words_other(base, 3, 2 * WORDS), 0);
}

static bool is_mapped(CUdeviceptr ptr)
{
    CUdeviceptr start;
    size_t size;

    return cuMemGetAddressRange(&start, &size, ptr) == CUDA_SUCCESS;
}

/* The driver takes an unmap that goes on behind the mappings (measured on an H200). What it says of
 * them afterwards is what holds. */
Test(own, an_unmap_may_go_on_behind_the_mappings)
{
    CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr base = map_pieces(2, &prop, handles);
    CUipcMemHandle ipc;
    bool left[2];

    if (under_shim())
        OK(cuIpcGetMemHandle(&ipc, base));
    OK(cuMemUnmap(base, (size_t)1 << 60));
    for (int i = 0; i < 2; i++)
        left[i] = is_mapped(base + (CUdeviceptr)i * PIECE);
    probe("an_unmap_behind_the_mappings", "leaves the first %d, the second %d", left[0], left[1]);
    for (int i = 0; i < 2; i++) {
        if (left[i] && !software_driver())
            continue;
        cr_assert_not(left[i]);
        FAILS(cuIpcGetMemHandle(&ipc, base + (CUdeviceptr)i * PIECE));
        OK(cuMemMap(base + (CUdeviceptr)i * PIECE, PIECE, 0, handles[i], 0));
    }
    access_set(base, 2 * PIECE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(fill_now(base, 4, 2 * WORDS));
    cr_assert_eq(words_other(base, 4, 2 * WORDS), 0);
    if (under_shim() && !left[0])
        OK(cuIpcGetMemHandle(&ipc, base));
}
