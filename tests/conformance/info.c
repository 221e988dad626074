/* cuMemGetInfo, cuPointerGetAttribute(s), cuMemRetainAllocationHandle. */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(info, .init = conform_start, .timeout = 60);

/* ---- memory info ---- */

/* Other processes on a real device allocate too: a few tries, each with its own before and after.
 */
Test(info, free_memory_drops_by_an_allocation_and_comes_back)
{
    size_t before = 0, during = 0, after = 0;
    CUdeviceptr ptr = 0;

    for (int i = 0; i < 5; i++) {
        before = memory_free_bytes();
        OK(cuMemAlloc(&ptr, 64 * MIB));
        during = memory_free_bytes();
        OK(cuMemFree(ptr));
        OK(cuCtxSynchronize());
        after = memory_free_bytes();
        if (before - during == 64 * MIB && after == before)
            break;
    }
    cr_assert_eq(before - during, 64 * MIB, "dropped by %zd", (ssize_t)(before - during));
    cr_assert_eq(after, before, "%zd after the free", (ssize_t)(after - before));
}

Test(info, freed_memory_counts_as_free_when_its_work_is_done)
{
    CUdeviceptr ptr[16];
    size_t before = 0, after = 0;
    CUstream stream = new_stream();

    OK(launch_spin(stream, MILLISECOND)); /* loads the kernels, which takes memory */
    OK(cuCtxSynchronize());
    before = memory_free_bytes();
    for (int i = 0; i < 16; i++)
        OK(cuMemAlloc(&ptr[i], 8 * MIB));
    OK(launch_spin_fill(stream, ptr[3], 1, 100, 20 * MILLISECOND));
    for (int i = 0; i < 16; i++)
        OK(cuMemFree(ptr[i]));
    OK(cuCtxSynchronize());
    after = memory_free_bytes();
    cr_assert_geq(after + 2 * MIB, before, "%zd bytes missing", (ssize_t)(before - after));
}

Test(info, memory_comes_back_after_async_frees)
{
    CUstream stream = new_stream();
    CUmemoryPool pool = NULL;
    CUdeviceptr ptr[8];
    size_t before, after;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    OK(cuMemAllocAsync(&ptr[0], MIB, stream));
    OK(cuMemFreeAsync(ptr[0], stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolTrimTo(pool, 0));
    before = memory_free_bytes();
    for (int i = 0; i < 8; i++)
        OK(cuMemAllocAsync(&ptr[i], 16 * MIB, stream));
    cr_assert_leq(memory_free_bytes(), before - 96 * MIB);
    for (int i = 0; i < 8; i++)
        OK(cuMemFreeAsync(ptr[i], stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuCtxSynchronize());
    after = memory_free_bytes();
    probe("async_memory_missing_after_trim", "%zd KiB", (ssize_t)(before - after) / 1024);
    cr_assert_geq(after + 32 * MIB, before);
}

/* ---- attributes ---- */

static CUresult attribute(CUpointer_attribute which, CUdeviceptr ptr, unsigned long long *ret)
{
    unsigned long long data[4] = {0};
    CUresult r = cuPointerGetAttribute(data, which, ptr);

    *ret = data[0];
    return r;
}

/* As many bytes are written as natively: programs pass larger variables than the header's types. */
Test(info, attributes_fill_what_the_driver_fills)
{
    static const struct {
        CUpointer_attribute which;
        size_t bytes;
    } asked[] = {{CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 8},
                 {CU_POINTER_ATTRIBUTE_BUFFER_ID, 8},
                 {CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8},
                 {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4}};

    for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++) {
        CUdeviceptr ptr = 0;

        OK(memory_alloc((enum memory_kind)kind, &ptr, 100000));
        for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
            unsigned char ones[16], zeros[16] = {0};
            size_t filled = 16;

            memset(ones, 0xff, sizeof ones);
            OK(cuPointerGetAttribute(ones, asked[i].which, ptr));
            OK(cuPointerGetAttribute(zeros, asked[i].which, ptr));
            while (filled > 0 && ones[filled - 1] == 0xff && zeros[filled - 1] == 0)
                filled--;
            cr_assert_eq(filled, asked[i].bytes, "kind %d, attribute %d: %zu bytes", kind,
                         (int)asked[i].which, filled);
        }
        OK(memory_free((enum memory_kind)kind, ptr));
    }
}

/* The attribute's value; the test fails where the driver has none. */
static unsigned long long value_of(CUpointer_attribute which, CUdeviceptr ptr)
{
    unsigned long long value = 0;
    CUresult r = attribute(which, ptr, &value);

    cr_assert_eq(r, CUDA_SUCCESS, "attribute %d: %s", (int)which, result_name(r));
    return value;
}

/* Where an address is from another one: in every process the same only when they are near. */
static int describe_address(char *out, size_t size, unsigned long long value, CUdeviceptr ptr)
{
    long long apart = (long long)(value - ptr);

    if (value && apart > -(long long)(64 * MIB) && apart < (long long)(64 * MIB))
        return snprintf(out, size, "ptr%+lld", apart);
    return snprintf(out, size, value ? "elsewhere" : "null");
}

static unsigned int memops(CUdeviceptr ptr)
{
    return value_of(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr) & 0xffffffff;
}

/* All results, and of the values what is the same in every process, on one line. */
static void probe_attributes(const char *what, CUdeviceptr ptr)
{
    char line[900];
    size_t at = 0;

    for (int which = CU_POINTER_ATTRIBUTE_CONTEXT; which <= 21; which++) {
        unsigned long long value = 0;
        CUresult r = attribute((CUpointer_attribute)which, ptr, &value);

        at += (size_t)snprintf(line + at, sizeof line - at, " %d:", which);
        if (r != CUDA_SUCCESS) {
            at += (size_t)snprintf(line + at, sizeof line - at, "e%d", (int)r);
            continue;
        }
        switch (which) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            at += (size_t)snprintf(line + at, sizeof line - at,
                                   value == (uintptr_t)context ? "current"
                                   : value                     ? "other"
                                                               : "null");
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            at += (size_t)describe_address(line + at, sizeof line - at, value, ptr);
            break;
        case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            at += (size_t)snprintf(line + at, sizeof line - at, value ? "some" : "none");
            break;
        default:
            at += (size_t)snprintf(line + at, sizeof line - at, "%llu", value);
        }
    }
    probe(what, "%s", line);
}

static void check_plain_attributes(CUdeviceptr ptr, CUdeviceptr base, size_t size)
{
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_CONTEXT, ptr), (uintptr_t)context);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr), CU_MEMORYTYPE_DEVICE);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr), ptr);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr), 0);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr), 0);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr), 1);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr), base);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr), size);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_MAPPED, ptr), 1);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr), 0);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr), 0);
    cr_assert_neq(value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr), 0);
}

Test(info, attributes_of_plain_memory)
{
    static const size_t size[] = {4096, 512, 2 * MIB, 5 * MIB};
    unsigned long long host;
    CUdeviceptr before = 0;

    OK(cuMemAlloc(&before, 512)); /* so that a small block is not the first of its piece */
    for (int i = 0; i < 4; i++) {
        CUdeviceptr ptr = allocated(size[i]);

        check_plain_attributes(ptr, ptr, size[i]);
        check_plain_attributes(ptr + size[i] - 4, ptr, size[i]);
        cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr),
                     value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr + size[i] - 4));
        CHECK(CUDA_ERROR_INVALID_VALUE, attribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr, &host));
        probe_attributes(size[i] < MIB ? "attributes_plain_small" : "attributes_plain_large", ptr);
        OK(cuMemFree(ptr));
    }
}

Test(info, attributes_of_pitched_memory)
{
    CUdeviceptr ptr = 0;
    size_t pitch = 0, size = 0;

    OK(cuMemAllocPitch(&ptr, &pitch, 1000, 10, 4));
    OK(cuMemGetAddressRange(NULL, &size, ptr));
    check_plain_attributes(ptr + 1024, ptr, size);
    probe_attributes("attributes_pitch", ptr);
}

Test(info, attributes_of_async_memory)
{
    CUmemoryPool pool = NULL;
    CUdeviceptr ptr = 0, plain = 0;
    unsigned long long rdma;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    OK(cuMemAllocAsync(&ptr, 8192, CU_STREAM_LEGACY));
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_CONTEXT, ptr), 0);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr), CU_MEMORYTYPE_DEVICE);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr), 0);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr), 0);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr), (uintptr_t)pool);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr + 4), ptr + 4);
    probe_attributes("attributes_async", ptr);
    /* What it can do under the shim and not natively: CUDA IPC, and network cards where they can
     * reach plain memory. The mapping around it (18) is the shim's piece, not the driver's. */
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr),
                 under_shim_with_events());
    OK(cuMemAlloc(&plain, 8192));
    rdma = value_of(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, ptr);
    if (under_shim_with_events())
        cr_assert_eq(rdma, value_of(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, plain));
}

Test(info, attributes_of_host_memory)
{
    void *host = NULL;
    CUdeviceptr ptr;

    OK(cuMemAllocHost(&host, 8192));
    ptr = (CUdeviceptr)(uintptr_t)host;
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr), CU_MEMORYTYPE_HOST);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr), ptr);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_CONTEXT, ptr), (uintptr_t)context);
    probe_attributes("attributes_host", ptr);
}

Test(info, attributes_of_managed_memory)
{
    CUdeviceptr ptr = 0;

    OK(cuMemAllocManaged(&ptr, 8192, CU_MEM_ATTACH_GLOBAL));
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr), 1);
    cr_assert_eq(value_of(CU_POINTER_ATTRIBUTE_CONTEXT, ptr), (uintptr_t)context);
    cr_assert_eq(memops(ptr), 1);
    probe_attributes("attributes_managed", ptr);
}

Test(info, attributes_of_no_memory)
{
    unsigned long long value;
    CUdeviceptr ptr = 0;

    CHECK(CUDA_ERROR_INVALID_VALUE, attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, NOWHERE, &value));
    CHECK(CUDA_ERROR_INVALID_VALUE, attribute(CU_POINTER_ATTRIBUTE_CONTEXT, NOWHERE, &value));
    probe_attributes("attributes_unknown", NOWHERE);
    probe_attributes("attributes_null", 0);
    OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(cuMemFree(ptr));
    CHECK(CUDA_ERROR_INVALID_VALUE, attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr, &value));
    CHECK(CUDA_ERROR_INVALID_VALUE, attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr, &value));
    probe_attributes("attributes_freed", ptr);
    OK(cuMemAlloc(&ptr, 512));
    OK(cuMemFree(ptr));
    CHECK(CUDA_ERROR_INVALID_VALUE, attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr, &value));
    probe_attributes("attributes_freed_small", ptr);
}

Test(info, bad_attribute_calls)
{
    CUdeviceptr ptr = allocated(4096);
    unsigned long long value;

    CHECK(CUDA_ERROR_INVALID_VALUE, attribute((CUpointer_attribute)4711, ptr, &value));
    CHECK(CUDA_ERROR_INVALID_VALUE, attribute((CUpointer_attribute)0, ptr, &value));
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
}

Test(info, every_allocation_has_its_own_buffer_id)
{
    enum { BLOCKS = 200 };
    unsigned long long seen[BLOCKS];

    for (int i = 0; i < BLOCKS; i++) {
        CUdeviceptr ptr = allocated(i % 2 ? 4096 : 2 * MIB);

        seen[i] = value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
        for (int k = 0; k < i; k++)
            cr_assert_neq(seen[k], seen[i], "allocations %d and %d", k, i);
        OK(cuMemFree(ptr));
    }
}

Test(info, blocks_that_live_together_have_their_own_buffer_ids)
{
    CUdeviceptr plain = allocated(512), other = allocated(512), async = 0, managed = 0;

    OK(cuMemAllocAsync(&async, 512, CU_STREAM_LEGACY));
    OK(cuMemAllocManaged(&managed, 512, CU_MEM_ATTACH_GLOBAL));
    cr_assert_neq(value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, plain),
                  value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
    cr_assert_neq(value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, plain),
                  value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, async));
    cr_assert_neq(value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, plain),
                  value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, managed));
}

/* ---- the plural form ---- */

struct several {
    CUcontext owner;
    unsigned int type;
    CUdeviceptr device_pointer;
    void *host_pointer;
    unsigned long long id;
    unsigned int managed;
    int ordinal;
    CUdeviceptr start;
    size_t size;
    unsigned int mapped, legacy;
    unsigned long long handle_types; /* 64 bits, or 32 of them */
    CUmemoryPool pool;
};

static const struct {
    CUpointer_attribute which;
    size_t at;
} parts[] = {
#define PART(which, member) {CU_POINTER_ATTRIBUTE_##which, offsetof(struct several, member)}
    PART(CONTEXT, owner),
    PART(MEMORY_TYPE, type),
    PART(DEVICE_POINTER, device_pointer),
    PART(HOST_POINTER, host_pointer),
    PART(BUFFER_ID, id),
    PART(IS_MANAGED, managed),
    PART(DEVICE_ORDINAL, ordinal),
    PART(RANGE_START_ADDR, start),
    PART(RANGE_SIZE, size),
    PART(MAPPED, mapped),
    PART(IS_LEGACY_CUDA_IPC_CAPABLE, legacy),
    PART(ALLOWED_HANDLE_TYPES, handle_types),
    PART(MEMPOOL_HANDLE, pool),
};
#define PARTS (sizeof parts / sizeof *parts)

static CUresult ask_several(CUdeviceptr ptr, struct several *ret)
{
    CUpointer_attribute which[PARTS];
    void *data[PARTS];

    memset(ret, 0xff, sizeof *ret);
    ret->managed = ret->mapped = ret->legacy = 0;
    ret->handle_types = 0;
    for (size_t i = 0; i < PARTS; i++) {
        which[i] = parts[i].which;
        data[i] = (char *)ret + parts[i].at;
    }
    return cuPointerGetAttributes(PARTS, which, data, ptr);
}

static void probe_several(const char *name, CUresult r, const struct several *s)
{
    probe(name,
          "%s owner %d type %u device %d host %d id %d managed %u ordinal %d start %d size %zd"
          " mapped %u legacy %u handles %llu pool %d",
          result_name(r), s->owner == context ? 2 : s->owner != NULL, s->type,
          s->device_pointer != 0, s->host_pointer != NULL, s->id != 0, s->managed & 0xff,
          s->ordinal, s->start != 0, (ssize_t)s->size, s->mapped & 0xff, s->legacy & 0xff,
          s->handle_types, s->pool != NULL);
}

Test(info, several_attributes_of_plain_memory)
{
    CUdeviceptr ptr = allocated(12000);
    struct several s;

    OK(ask_several(ptr + 40, &s));
    cr_assert_eq(s.owner, context);
    cr_assert_eq(s.type, CU_MEMORYTYPE_DEVICE);
    cr_assert_eq(s.device_pointer, ptr + 40);
    cr_assert_null(s.host_pointer, "a failed item is not zeroed");
    cr_assert_eq(s.id, value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    cr_assert_eq(s.managed & 0xff, 0);
    cr_assert_eq(s.ordinal, 0);
    cr_assert_eq(s.start, ptr);
    cr_assert_eq(s.size, 12000);
    cr_assert_eq(s.mapped & 0xff, 1);
    cr_assert_eq(s.legacy & 0xff, 1);
    cr_assert_eq(s.handle_types, 0);
    cr_assert_null(s.pool);
}

Test(info, several_attributes_of_other_memory)
{
    CUdeviceptr ptr = 0;
    struct several s;
    CUresult r;

    r = ask_several(NOWHERE, &s);
    probe_several("several_unknown", r, &s);
    CHECK(CUDA_SUCCESS, r);
    cr_assert_null(s.owner);
    cr_assert_eq(s.type, 0);
    OK(cuMemAlloc(&ptr, 4 * MIB));
    OK(cuMemFree(ptr));
    r = ask_several(ptr, &s);
    probe_several("several_freed", r, &s);
    CHECK(CUDA_SUCCESS, r);
    cr_assert_null(s.owner);
    cr_assert_eq(s.type, 0);
    OK(cuMemAllocManaged(&ptr, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(ask_several(ptr, &s));
    cr_assert_eq(s.owner, context);
    cr_assert_eq(s.managed & 0xff, 1);
    OK(cuMemFree(ptr));
    OK(cuMemAllocAsync(&ptr, 4096, CU_STREAM_LEGACY));
    OK(ask_several(ptr, &s));
    cr_assert_null(s.owner);
    cr_assert_eq(s.type, CU_MEMORYTYPE_DEVICE);
    cr_assert_not_null(s.pool);
    probe_several("several_async", CUDA_SUCCESS, &s);
}

Test(info, bad_calls_for_several_attributes)
{
    CUpointer_attribute none = (CUpointer_attribute)4711;
    CUpointer_attribute which = CU_POINTER_ATTRIBUTE_BUFFER_ID;
    unsigned long long id = 0;
    void *data[] = {&id};
    CUdeviceptr ptr = allocated(4096);

    probe("several_none", "%s", result_name(cuPointerGetAttributes(0, &which, data, ptr)));
    probe("several_unknown_attribute", "%s",
          result_name(cuPointerGetAttributes(1, &none, data, ptr)));
    FAILS(cuPointerGetAttributes(1, NULL, data, ptr));
    FAILS(cuPointerGetAttributes(1, &which, NULL, ptr));
    OK(cuPointerGetAttributes(1, &which, data, ptr));
    cr_assert_eq(id, value_of(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
}

/* ---- retain, sync_memops, dma-buf ---- */

Test(info, allocation_handles_are_for_vmm_memory_only)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr plain = allocated(4096), large = allocated(4 * MIB), async = 0;

    OK(cuMemAllocAsync(&async, 4 * MIB, CU_STREAM_LEGACY));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)plain));
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(large + 2 * MIB)));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)async));
    FAILS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)NOWHERE));
    OK(cuMemFree(plain));
    OK(cuMemFree(large));
    FAILS(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)large));
}

Test(info, sync_memops_can_be_set)
{
    const char *without = getenv("SOFTCUDA_WITHOUT");
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    unsigned int on = 1, off = 0;

    for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++) {
        CUdeviceptr ptr = 0;

        OK(memory_alloc((enum memory_kind)kind, &ptr, 4096));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
        probe("sync_memops_at_first", "%u", memops(ptr));
        if (software_driver())
            cr_assert_eq(memops(ptr),
                         !(kind == MEMORY_PLAIN ? under_shim() : under_shim_with_events()) &&
                             (!without || !strstr(without, "sync_memops")));
        OK(cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, ptr));
        probe("sync_memops_after_p2p_tokens", "%u", memops(ptr)); /* may set it natively */
        OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
        cr_assert_eq(memops(ptr), 1);
        OK(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr + 100));
        cr_assert_eq(memops(ptr), 0);
        OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr + 100));
        cr_assert_eq(memops(ptr), 1);
        CHECK(CUDA_ERROR_INVALID_VALUE,
              cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
        CHECK(CUDA_ERROR_INVALID_VALUE,
              cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuPointerSetAttribute(&on, (CUpointer_attribute)4711, ptr));
        OK(memory_free((enum memory_kind)kind, ptr));
        OK(cuStreamSynchronize(CU_STREAM_LEGACY));
        CHECK(CUDA_ERROR_INVALID_VALUE,
              cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
    }
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, NOWHERE));
}

/* VMM memory cannot synchronise by itself, so its context does. */
Test(info, sync_memops_is_made_true)
{
    unsigned int on = 1, flags = 0;
    CUcontext none = NULL;
    CUdeviceptr ptr = allocated(4096);

    OK(cuCtxSetCurrent(none)); /* legal without a context */
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
    OK(cuCtxGetCurrent(&none));
    cr_assert_null(none);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetFlags(&flags));
    cr_assert_eq(!!(flags & CU_CTX_SYNC_MEMOPS), under_shim());
}

static CUresult export_range(CUdeviceptr ptr, size_t size)
{
    int fd = -1;
    CUresult r =
        cuMemGetHandleForAddressRange(&fd, ptr, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

    if (r == CUDA_SUCCESS)
        close(fd);
    return r;
}

Test(info, ranges_of_a_block_are_exported_and_no_neighbour_with_them)
{
    CUdeviceptr large = allocated(4 * MIB), small = allocated(8192);

    allocated(64 * KIB); /* the neighbour */
    OK(export_range(large, 4 * MIB));
    OK(export_range(large + 2 * MIB, 2 * MIB));
    OK(export_range(large + 4096, 4096));
    OK(export_range((small + 4095) & ~(CUdeviceptr)4095, 4096));
    CHECK(CUDA_ERROR_INVALID_VALUE, export_range(large, 1000));
    CHECK(CUDA_ERROR_INVALID_VALUE, export_range(large, 0));
    CHECK(CUDA_ERROR_INVALID_VALUE, export_range(NOWHERE & ~(CUdeviceptr)4095, 4096));
    if (under_shim()) { /* the driver gives the neighbour as well */
        CHECK(CUDA_ERROR_INVALID_VALUE, export_range(small & ~(CUdeviceptr)4095, 64 * KIB));
        CHECK(CUDA_ERROR_INVALID_VALUE, export_range(large + 2 * MIB, 4 * MIB));
    }
    OK(cuMemFree(large));
    CHECK(CUDA_ERROR_INVALID_VALUE, export_range(large, 4 * MIB));
}
