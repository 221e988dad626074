/*
 * Memory that is not the arena's: managed, host, a module's, arrays, a pool that the program made.
 * Beside memory that is ours they do what they do without it, and told of our memory they answer as
 * for the driver's own. Events of several processes are tests/share/events.py's, also on a GPU.
 */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(other, .init = conform_start, .timeout = 60);

/* The entry point, or the test is skipped: the software driver has few of these. */
static void *need(const char *name, int version)
{
    void *function = driver_lookup(name, version, 0);

    if (!function)
        cr_skip_test("the driver has no %s", name);
    return function;
}

static size_t host_words_other(const uint32_t *words, uint32_t value, size_t count)
{
    size_t other = 0;

    for (size_t i = 0; i < count; i++)
        other += words[i] != value;
    return other;
}

/* ---- managed memory ---- */

Test(other, managed_memory_is_written_by_both_sides_beside_plain_memory)
{
    CUdeviceptr managed = 0, plain = 0;

    OK(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAlloc(&plain, MIB));
    OK(fill_now(managed, 1, MIB / 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(host_words_other((const uint32_t *)(uintptr_t)managed, 1, MIB / 4), 0);
    memset((void *)(uintptr_t)managed, 0x22, MIB);
    OK(cuMemcpyDtoD(plain, managed, MIB));
    cr_assert_eq(words_other(plain, 0x22222222, MIB / 4), 0);
    OK(fill_now(plain, 3, MIB / 4));
    OK(cuMemcpyDtoD(managed, plain, MIB));
    OK(cuCtxSynchronize());
    cr_assert_eq(host_words_other((const uint32_t *)(uintptr_t)managed, 3, MIB / 4), 0);
}

/* ---- host memory ---- */

Test(other, pinned_memory_is_reached_by_the_device_and_is_no_device_memory)
{
    CUdeviceptr there = 0, plain = 0;
    unsigned int flags = 0;
    void *pinned = NULL;

    OK(cuMemHostAlloc(&pinned, MIB, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetFlags(&flags, pinned));
    cr_assert_eq(flags & 3, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    OK(cuMemHostGetDevicePointer(&there, pinned, 0));
    OK(cuMemAlloc(&plain, MIB));
    OK(fill_now(there, 7, MIB / 4));
    cr_assert_eq(host_words_other(pinned, 7, MIB / 4), 0);
    OK(cuMemcpyHtoD(plain, pinned, MIB));
    cr_assert_eq(words_other(plain, 7, MIB / 4), 0);
    OK(fill_now(plain, 8, MIB / 4));
    OK(cuMemcpyDtoHAsync(pinned, plain, MIB, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    cr_assert_eq(host_words_other(pinned, 8, MIB / 4), 0);
    probe("host_pointer_of_plain", "%s",
          result_name(cuMemHostGetDevicePointer(&there, (void *)(uintptr_t)plain, 0)));
}

Test(other, the_programs_own_memory_is_registered_and_unregistered)
{
    const size_t size = 64 * KIB;
    CUdeviceptr there = 0;
    uint32_t *own = aligned_alloc(64 * KIB, size);

    cr_assert(own, "out of host memory");
    memset(own, 0, size);
    OK(cuMemHostRegister(own, size, CU_MEMHOSTREGISTER_DEVICEMAP));
    CHECK(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
          cuMemHostRegister(own, size, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&there, own, 0));
    OK(fill_now(there, 9, size / 4));
    cr_assert_eq(host_words_other(own, 9, size / 4), 0);
    OK(cuMemHostUnregister(own));
    FAILS(cuMemHostUnregister(own));
    OK(cuMemHostRegister(own, size, CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuCtxSetCurrent(NULL)); /* it is of no context that must be current */
    OK(cuMemHostUnregister(own));
}

/* ---- a module's memory, arrays, a pool of the program's ---- */

/* 4 KiB, called `table`, is written and read as any memory, and is no block of ours. */
static void is_its_own(CUdeviceptr table, size_t bytes)
{
    CUdeviceptr plain = filled(4096, 10), base = 0;
    size_t size = 0;

    cr_assert_eq(bytes, 4096);
    OK(cuMemcpyDtoD(table, plain, 4096));
    OK(fill_now(table, 11, 512));
    OK(cuMemcpyDtoD(plain, table, 4096));
    cr_assert_eq(words_other(plain, 11, 512), 0);
    cr_assert_eq(words_other(plain + 2048, 10, 512), 0);
    if (cuMemGetAddressRange(&base, &size, table + 100) == CUDA_SUCCESS)
        cr_assert(base <= table && base + size >= table + 4096);
}

static const char with_table[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                                 ".visible .global .align 16 .b8 table[4096];\n";

Test(other, a_modules_variable_is_its_own)
{
    __typeof__(&cuModuleGetGlobal) get = (__typeof__(get))need("cuModuleGetGlobal", 3020);
    CUmodule module = NULL;
    CUdeviceptr table = 0;
    size_t bytes = 0;

    OK(cuModuleLoadData(&module, with_table));
    OK(get(&table, &bytes, module, "table"));
    is_its_own(table, bytes);
}

Test(other, a_librarys_variable_is_its_own)
{
    __typeof__(&cuLibraryLoadData) load = (__typeof__(load))need("cuLibraryLoadData", 12000);
    __typeof__(&cuLibraryGetGlobal) get = (__typeof__(get))need("cuLibraryGetGlobal", 12000);
    __typeof__(&cuLibraryUnload) unload = (__typeof__(unload))need("cuLibraryUnload", 12000);
    CUdeviceptr table = 0, again = 0, nothing = 0;
    CUlibrary library = NULL;
    size_t bytes = 0;

    OK(load(&library, with_table, NULL, NULL, 0, NULL, NULL, 0));
    OK(get(&table, &bytes, library, "table"));
    OK(get(&again, NULL, library, "table"));
    cr_assert_eq(again, table);
    CHECK(CUDA_ERROR_NOT_FOUND, get(&nothing, NULL, library, "no_table"));
    is_its_own(table, bytes);
    OK(unload(library));
}

Test(other, arrays_are_copied_from_and_to_plain_memory)
{
    __typeof__(&cuArrayCreate) create = (__typeof__(create))need("cuArrayCreate", 3020);
    __typeof__(&cuArrayDestroy) destroy = (__typeof__(destroy))need("cuArrayDestroy", 2000);
    const CUDA_ARRAY_DESCRIPTOR shape = {.Width = 64,
                                         .Height = 32,
                                         .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                                         .NumChannels = 1};
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcPitch = 256,
                        .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                        .WidthInBytes = 256,
                        .Height = 32};
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstPitch = 256,
                         .WidthInBytes = 256,
                         .Height = 32};
    CUdeviceptr from = 0, to = 0;
    CUarray array = NULL;

    OK(create(&array, &shape));
    OK(cuMemAlloc(&from, 8192));
    OK(cuMemAlloc(&to, 8192));
    OK(fill_now(from, 11, 2048));
    OK(fill_now(to, 0, 2048));
    in.srcDevice = from;
    in.dstArray = out.srcArray = array;
    out.dstDevice = to;
    OK(cuMemcpy2D(&in));
    OK(cuMemcpy2D(&out));
    cr_assert_eq(words_other(to, 11, 2048), 0);
    in.Height = 33; /* one row more than there is */
    FAILS(cuMemcpy2D(&in));
    OK(destroy(array));
}

/* In one dimension, by the calls of before there were rectangles. */
Test(other, rows_of_arrays_are_copied_from_and_to_plain_memory)
{
    __typeof__(&cuArrayCreate) create = (__typeof__(create))need("cuArrayCreate", 3020);
    const CUDA_ARRAY_DESCRIPTOR shape = {.Width = 256,
                                         .Height = 0,
                                         .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                                         .NumChannels = 1};
    CUdeviceptr from = 0, to = 0;
    CUarray array = NULL;

    OK(create(&array, &shape));
    OK(cuMemAlloc(&from, 1024));
    OK(cuMemAlloc(&to, 1024));
    for (int i = 0; i < 2; i++) {
        __typeof__(&cuMemcpyDtoA) into =
            (__typeof__(into))driver_lookup("cuMemcpyDtoA", 12000, default_streams[i]);
        __typeof__(&cuMemcpyAtoD) out_of =
            (__typeof__(out_of))driver_lookup("cuMemcpyAtoD", 12000, default_streams[i]);
        CUresult in, out;

        cr_assert(into && out_of);
        OK(fill_now(from, 15, 256));
        OK(fill_now(to, 0, 256));
        OK(into(array, 0, from, 1024));
        OK(out_of(to + 512, array, 256, 512));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(to, 0, 128), 0);
        cr_assert_eq(words_other(to + 512, 15, 128), 0);
        in = into(array, 0, from + 1, 1024);
        out = out_of(to + 1, array, 0, 1024);
        probe("array_row_past_the_end_of_plain_memory", "%s %s", result_name(in), result_name(out));
        if (under_shim() || software_driver())
            cr_assert(in == CUDA_ERROR_INVALID_VALUE && out == CUDA_ERROR_INVALID_VALUE, "%s %s",
                      result_name(in), result_name(out));
    }
}

/* A box of 16 x 8 x 4 words between an array and plain memory that is exactly as large. */
static CUDA_MEMCPY3D array_box(CUarray array, CUdeviceptr plain, bool into_the_array)
{
    CUDA_MEMCPY3D box = {.WidthInBytes = 64, .Height = 8, .Depth = 4};

    if (into_the_array) {
        box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        box.srcDevice = plain, box.srcPitch = 64, box.srcHeight = 8;
        box.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        box.dstArray = array;
    } else {
        box.srcMemoryType = CU_MEMORYTYPE_ARRAY;
        box.srcArray = array;
        box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        box.dstDevice = plain, box.dstPitch = 64, box.dstHeight = 8;
    }
    return box;
}

/* Natively such a copy is judged as any other is. */
static void past_the_end(const CUDA_MEMCPY3D *box)
{
    CUresult r = cuMemcpy3D(box);

    probe("array_copy_past_the_end_of_plain_memory", "%s", result_name(r));
    if (under_shim() || software_driver())
        cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "%s", result_name(r));
}

static void copy_through(CUarray array, CUdeviceptr from, CUdeviceptr to, uint32_t value)
{
    CUDA_MEMCPY3D box = array_box(array, from, true);

    OK(fill_now(from, value, 512));
    OK(fill_now(to, 0, 512));
    OK(cuMemcpy3D(&box));
    box.srcDevice = from + 64;
    past_the_end(&box);
    box = array_box(array, to, false);
    OK(cuMemcpy3DAsync(&box, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    cr_assert_eq(words_other(to, value, 512), 0);
    box.dstDevice = to + 64;
    past_the_end(&box);
}

Test(other, boxes_of_arrays_are_copied_from_and_to_plain_memory)
{
    __typeof__(&cuArray3DCreate) create = (__typeof__(create))need("cuArray3DCreate", 3020);
    __typeof__(&cuMipmappedArrayCreate) create_levels =
        (__typeof__(create_levels))need("cuMipmappedArrayCreate", 5000);
    CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 16,
                                     .Height = 8,
                                     .Depth = 4,
                                     .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                                     .NumChannels = 1};
    CUdeviceptr from = allocated(2048), to = allocated(2048);
    CUarray array = NULL, level = NULL;
    CUmipmappedArray levels = NULL;
    size_t before;

    OK(create(&array, &shape));
    copy_through(array, from, to, 13);
    memset(&shape, 0, sizeof shape);
    OK(cuArray3DGetDescriptor(&shape, array));
    cr_assert(shape.Width == 16 && shape.Height == 8 && shape.Depth == 4);
    OK(cuArrayDestroy(array));
    shape.Width *= 2, shape.Height *= 2, shape.Depth *= 2;
    OK(create_levels(&levels, &shape, 2));
    OK(cuMipmappedArrayGetLevel(&level, levels, 1));
    copy_through(level, from, to, 14);
    OK(cuMipmappedArrayDestroy(levels));
    /* An array is memory that is not free, and is so again. */
    before = memory_free_bytes();
    shape = (CUDA_ARRAY3D_DESCRIPTOR){.Width = 2048,
                                      .Height = 2048,
                                      .Depth = 4,
                                      .Format = CU_AD_FORMAT_UNSIGNED_INT32,
                                      .NumChannels = 1};
    OK(create(&array, &shape));
    if (software_driver()) /* elsewhere others use the device too */
        cr_assert_eq(before - memory_free_bytes(), 64 * MIB);
}

typedef CUresult set_pool_fn(CUmemLocation *, CUmemAllocationType, CUmemoryPool);

Test(other, a_pool_made_current_for_a_location_serves_the_allocations)
{
    set_pool_fn *set = (set_pool_fn *)need("cuMemSetMemPool", 13000);
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_NONE), before = NULL, seen = NULL;
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;

    OK(cuDeviceGetMemPool(&before, device));
    OK(set(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    OK(cuMemAllocAsync(&ptr, 4096, stream));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(seen, pool);
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamSynchronize(stream));
    OK(set(&here, CU_MEM_ALLOCATION_TYPE_PINNED, before));
    OK(cuMemAllocAsync(&ptr, 4096, stream));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(seen, before);
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolDestroy(pool));
}

/* The pool that is the device's, by either way to ask for it. */
Test(other, default_pools_of_a_location_are_the_devices)
{
    typedef CUresult get_fn(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
    get_fn *get_default = (get_fn *)need("cuMemGetDefaultMemPool", 13000);
    get_fn *get = (get_fn *)need("cuMemGetMemPool", 13000);
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemoryPool default_pool = NULL, pool = NULL, seen = NULL;
    CUdeviceptr ptr = 0;

    OK(cuDeviceGetDefaultMemPool(&default_pool, device));
    OK(get_default(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    cr_assert_eq(pool, default_pool);
    OK(get(&pool, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    cr_assert_eq(pool, default_pool);
    OK(cuMemAllocFromPoolAsync(&ptr, MIB, pool, CU_STREAM_LEGACY));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(seen, default_pool);
}

/* A pool of the program's own is the driver's on both sides; a default one is not shared. */
Test(other, memory_of_a_programs_own_pool_is_used_by_another_process)
{
    __typeof__(&cuMemPoolExportToShareableHandle) export =
        (__typeof__(export))need("cuMemPoolExportToShareableHandle", 11020);
    struct peer *peer = peer_start(-1);
    CUdeviceptr first = 0, ptr = 0, there = 0;
    CUmemPoolPtrExportData data;
    CUmemoryPool own = NULL, default_pool = NULL;
    int fd = -1;

    OK(cuDeviceGetDefaultMemPool(&default_pool, device));
    FAILS(export(&fd, default_pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    own = new_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(export(&fd, own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemAllocFromPoolAsync(&first, 4096, own, CU_STREAM_LEGACY));
    OK(cuMemAllocFromPoolAsync(&ptr, MIB, own, CU_STREAM_LEGACY));
    OK(fill_now(first, 19, 1024));
    OK(fill_now(ptr, 20, MIB / 4));
    OK(cuMemPoolExportPointer(&data, ptr));
    OK(peer_import_pool(peer, fd, &data, &there));
    close(fd);
    cr_assert_eq(peer_other(peer, there, 20, MIB / 4), 0);
    OK(peer_fill(peer, there, 21, MIB / 4));
    cr_assert_eq(words_other(ptr, 21, MIB / 4), 0);
    cr_assert_eq(words_other(first, 19, 1024), 0);
    OK(peer_free(peer, MEMORY_PLAIN, there)); /* must come before the exporter's */
    cr_assert_eq(words_other(ptr, 21, MIB / 4), 0);
    peer_quit(peer);
}

/* ---- work on memory by other means than copies and kernels ---- */

/* Natively an H200 refuses it for one of the kinds; VMM memory takes it. */
Test(other, a_stream_writes_a_value)
{
    __typeof__(&cuStreamWriteValue32) write_value =
        (__typeof__(write_value))need("cuStreamWriteValue32", 11070);
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;
    CUresult r;

    for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++) {
        OK(memory_alloc((enum memory_kind)kind, &ptr, 4096));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
        OK(fill_now(ptr, 1, 1024));
        r = write_value(stream, ptr + 4092, 16, 0);
        probe("stream_writes_a_value", "%s: %s",
              kind == MEMORY_PLAIN ? "cuMemAlloc" : "cuMemAllocAsync", result_name(r));
        if (software_driver() || under_shim())
            OK(r);
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(ptr, 1, 1023), 0);
        cr_assert_eq(words_other(ptr + 4092, r == CUDA_SUCCESS ? 16 : 1, 1), 0);
        OK(memory_free((enum memory_kind)kind, ptr));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    }
}

/* A texture over memory names it as it was named. */
Test(other, a_texture_lies_over_memory)
{
    __typeof__(&cuTexObjectCreate) create = (__typeof__(create))need("cuTexObjectCreate", 5000);
    __typeof__(&cuTexObjectGetResourceDesc) describe =
        (__typeof__(describe))need("cuTexObjectGetResourceDesc", 5000);
    __typeof__(&cuTexObjectDestroy) destroy = (__typeof__(destroy))need("cuTexObjectDestroy", 5000);
    CUDA_TEXTURE_DESC texture = {.maxAnisotropy = 0};
    CUDA_RESOURCE_DESC resource, seen;
    CUtexObject object = 0;
    CUdeviceptr ptr = 0;
    CUresult r;

    for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++) {
        OK(memory_alloc((enum memory_kind)kind, &ptr, 64 * KIB));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
        memset(&resource, 0, sizeof resource);
        memset(&seen, 0, sizeof seen);
        resource.resType = CU_RESOURCE_TYPE_LINEAR;
        resource.res.linear.devPtr = ptr;
        resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT32;
        resource.res.linear.numChannels = 1;
        resource.res.linear.sizeInBytes = 64 * KIB;
        r = create(&object, &resource, &texture, NULL);
        probe("texture_over_memory", "%s: %s",
              kind == MEMORY_PLAIN ? "cuMemAlloc" : "cuMemAllocAsync", result_name(r));
        if (kind == MEMORY_PLAIN || software_driver() || under_shim())
            OK(r);
        if (r == CUDA_SUCCESS) {
            OK(describe(&seen, object));
            cr_assert_eq(seen.resType, CU_RESOURCE_TYPE_LINEAR);
            cr_assert_eq(seen.res.linear.devPtr, ptr);
            cr_assert_eq(seen.res.linear.format, CU_AD_FORMAT_UNSIGNED_INT32);
            cr_assert_eq(seen.res.linear.numChannels, 1);
            cr_assert_eq(seen.res.linear.sizeInBytes, 64 * KIB);
            OK(destroy(object));
        }
        resource.res.linear.sizeInBytes = 64 * KIB + 4; /* what it reaches nobody asks */
        OK(create(&object, &resource, &texture, NULL));
        OK(destroy(object));
        OK(memory_free((enum memory_kind)kind, ptr));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    }
}
