/*
 * Asks the driver of a GPU machine what the entry points of the shim have to answer: ranges of
 * copies and fills, pools, SYNC_MEMOPS, VMM calls on memory that is none, and, on two GPUs, what
 * reaches the other's memory. Prints lines "FACT name = answer", asserts nothing.
 *
 *   cc -O1 -o native_facts native_facts.c -ldl && ./native_facts
 *
 * Natively it says what the shim has to give; under the shim what it gives.
 */
#include "ask.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static void fact(const char *name, const char *format, ...)
{
    va_list args;
    printf("FACT %s = ", name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}
#define SAY(name, call) fact(name, "%s", name_of(call))
#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult must = (call);                                                                    \
        if (must) {                                                                                \
            printf("FACT stopped = %s: %s\n", #call, name_of(must));                               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static CUcontext ctx[2];
static CUstream stream;
static char host[64 << 10];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* ---- extents ---- */

static CUresult touch(int how, CUdeviceptr p, size_t n, CUdeviceptr other)
{
    switch (how) {
    case 0: return D(cuMemsetD8_v2)(p, 1, n);
    case 1: return D(cuMemsetD8Async)(p, 1, n, stream);
    case 2: return D(cuMemcpyDtoDAsync_v2)(p, other, n, stream);
    case 3: return D(cuMemcpyDtoD_v2)(other, p, n);
    case 4: return D(cuMemcpyAsync)(p, other, n, stream);
    default: return D(cuMemcpy)(other, p, n);
    }
}

static void extents_of(const char *what, CUdeviceptr p, size_t size, CUdeviceptr big)
{
    static const char *hows[] = {"set", "setA", "DtoDA-dst", "DtoD-src", "cpyA-dst", "cpy-src"};
    for (int how = 0; how < 6; how++) {
        size_t low = 1, high = size + 8 * MIB; /* low passes, high is unknown */
        if (touch(how, p, high, big) == CUDA_SUCCESS) {
            fact("extent", "%s of %zu, %s: more than 8 MiB past", what, size, hows[how]);
            continue;
        }
        while (high - low > 1) {
            size_t middle = low + (high - low) / 2;
            if (touch(how, p, middle, big) == CUDA_SUCCESS)
                low = middle;
            else
                high = middle;
        }
        MUST(D(cuCtxSynchronize)());
        fact("extent", "%s of %zu, %s: %zu bytes pass (%+zd), then %s", what, size, hows[how], low,
             (ssize_t)(low - size), name_of(touch(how, p, high, big)));
    }
}

static void extents(void)
{
    static const size_t sizes[] = {1000, 512, 5000, MIB - 100, MIB + 1000, 4 * MIB, 3 * MIB + 100};
    CUdeviceptr big, p, q, first;
    size_t pitch, n;

    MUST(D(cuMemAlloc_v2)(&big, 64 * MIB));
    MUST(D(cuMemAlloc_v2)(&first, 512));
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        MUST(D(cuMemAlloc_v2)(&p, sizes[i]));
        MUST(D(cuMemAlloc_v2)(&q, sizes[i]));
        MUST(D(cuMemGetAddressRange_v2)(NULL, &n, p));
        fact("range_size", "%zu of %zu, next at %+zd", n, sizes[i], (ssize_t)(q - p));
        extents_of("alloc", p, sizes[i], big);
        MUST(D(cuMemFree_v2)(p));
        SAY("set_after_free", D(cuMemsetD8_v2)(p, 1, 16));
        SAY("setasync_after_free", D(cuMemsetD8Async)(p, 1, 16, stream));
        SAY("dtod_after_free", D(cuMemcpyDtoD_v2)(big, p, 16));
        SAY("dtoh_after_free", D(cuMemcpyDtoH_v2)(host, p, 16));
        SAY("htod_after_free", D(cuMemcpyHtoD_v2)(p, host, 16));
        MUST(D(cuMemFree_v2)(q));
    }
    MUST(D(cuMemAllocPitch_v2)(&p, &pitch, 1000, 3, 4));
    MUST(D(cuMemGetAddressRange_v2)(NULL, &n, p));
    fact("pitch", "%zu, range %zu", pitch, n);
    extents_of("pitch", p, 3072, big);
    {
        CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = 1024,
            .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = big, .dstPitch = 1024,
            .WidthInBytes = 1000, .Height = 3};
        SAY("2d_inside", D(cuMemcpy2D_v2)(&c));
        c.Height = 4;
        SAY("2d_a_row_past", D(cuMemcpy2D_v2)(&c));
        c.Height = 3, c.WidthInBytes = 1024;
        SAY("2d_full_pitch", D(cuMemcpy2D_v2)(&c));
        c.srcY = 1;
        SAY("2d_y1_past", D(cuMemcpy2DAsync_v2)(&c, stream));
        c.srcY = 0, c.Height = 5000;
        SAY("2d_far_past", D(cuMemcpy2DAsync_v2)(&c, stream));
        c.Height = 0;
        c.srcDevice = 0x1234000;
        SAY("2d_nothing_nowhere", D(cuMemcpy2DAsync_v2)(&c, stream));
        SAY("set2d_past", D(cuMemsetD2D8_v2)(p, 1024, 1, 1000, 5));
        SAY("set2d_far", D(cuMemsetD2D8_v2)(p, 1024, 1, 1000, 5000));
    }
    MUST(D(cuMemAllocAsync)(&q, 5000, stream));
    MUST(D(cuStreamSynchronize)(stream));
    MUST(D(cuMemGetAddressRange_v2)(NULL, &n, q));
    fact("async_range", "%zu of 5000", n);
    extents_of("async", q, 5000, big);
    MUST(D(cuMemFreeAsync)(q, stream));
    SAY("async_after_freeasync_set", D(cuMemsetD8Async)(q, 1, 16, stream));
    SAY("async_after_freeasync_range", D(cuMemGetAddressRange_v2)(NULL, &n, q));
    MUST(D(cuStreamSynchronize)(stream));
    SAY("async_after_sync_set", D(cuMemsetD8Async)(q, 1, 16, stream));
    SAY("async_after_sync_range", D(cuMemGetAddressRange_v2)(NULL, &n, q));
    MUST(D(cuMemAlloc_v2)(&q, 5000));
    MUST(D(cuMemFreeAsync)(q, stream));
    SAY("plain_after_freeasync_set", D(cuMemsetD8Async)(q, 1, 16, stream));
    MUST(D(cuStreamSynchronize)(stream));
    SAY("plain_after_sync_set", D(cuMemsetD8Async)(q, 1, 16, stream));
    SAY("set_nothing_nowhere", D(cuMemsetD8_v2)(0x1234000, 1, 0));
    SAY("dtod_nothing_nowhere", D(cuMemcpyDtoD_v2)(0x1234000, big, 0));
    SAY("set32_misaligned", D(cuMemsetD32_v2)(big + 2, 1, 16));
    SAY("peer_self_past", D(cuMemcpyPeer)(big, ctx[0], first, ctx[0], 64 * MIB));
    MUST(D(cuCtxSynchronize)());
    MUST(D(cuMemFree_v2)(p));
    MUST(D(cuMemFree_v2)(first));
    MUST(D(cuMemFree_v2)(big));
}

static void in_capture(void)
{
    CUdeviceptr p, q;
    CUgraph graph = NULL;
    CUgraphExec exec = NULL;
    CUresult r;

    MUST(D(cuMemAlloc_v2)(&p, 2 * MIB));
    MUST(D(cuMemAlloc_v2)(&q, 2 * MIB));
    for (int i = 0; i < 3; i++) {
        MUST(D(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        if (i == 0) r = D(cuMemsetD8Async)(p, 1, 4 * MIB, stream);
        if (i == 1) r = D(cuMemcpyDtoDAsync_v2)(p, q, 4 * MIB, stream);
        if (i == 2) r = D(cuMemcpyPeerAsync)(p, ctx[0], q, ctx[0], 4096, stream);
        fact("capture_bad", "%d: %s", i, name_of(r));
        r = D(cuStreamEndCapture)(stream, &graph);
        fact("capture_bad_end", "%d: %s", i, name_of(r));
        if (r == CUDA_SUCCESS) {
            r = D(cuGraphInstantiateWithFlags)(&exec, graph, 0);
            fact("capture_bad_instantiate", "%d: %s", i, name_of(r));
            D(cuGraphDestroy)(graph);
            if (!r)
                D(cuGraphExecDestroy)(exec);
        }
    }
    MUST(D(cuMemFree_v2)(p));
    MUST(D(cuMemFree_v2)(q));
}

/* ---- pools ---- */

static void figures(CUmemoryPool pool, const char *when)
{
    cuuint64_t v[5] = {0};
    for (int a = 0; a < 5; a++)
        D(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD + a, &v[a]);
    fact("pool", "%s: threshold %llu reserved %llu high %llu used %llu high %llu", when,
         (unsigned long long)v[0], (unsigned long long)v[1], (unsigned long long)v[2],
         (unsigned long long)v[3], (unsigned long long)v[4]);
}

static void pools(void)
{
    CUmemoryPool pool;
    CUdeviceptr p, q, r;
    cuuint64_t v = 0;
    int reuse = -1;
    CUmemPoolPtrExportData data;
    size_t before, after, total;
    int fd = -1;
    CUmemAccess_flags flags;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAccessDesc desc = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_NONE};

    MUST(D(cuDeviceGetDefaultMemPool)(&pool, 0));
    MUST(D(cuMemPoolTrimTo)(pool, 0));
    MUST(D(cuCtxSynchronize)());
    figures(pool, "start");
    MUST(D(cuMemGetInfo_v2)(&before, &total));
    MUST(D(cuMemAllocAsync)(&p, 1000, stream));
    figures(pool, "1000 allocated");
    MUST(D(cuMemAllocAsync)(&q, 48 * MIB + 5, stream));
    figures(pool, "48 MiB + 5 more");
    MUST(D(cuMemAllocAsync)(&r, 100, stream));
    figures(pool, "100 more");
    MUST(D(cuMemGetInfo_v2)(&after, &total));
    fact("pool_mem_info", "%zd less free", (ssize_t)(before - after));
    SAY("trim_in_use", D(cuMemPoolTrimTo)(pool, 0));
    figures(pool, "trimmed in use");
    MUST(D(cuMemFreeAsync)(q, stream));
    figures(pool, "48 MiB freed");
    SAY("trim_pending", D(cuMemPoolTrimTo)(pool, 0));
    figures(pool, "trimmed pending");
    MUST(D(cuStreamSynchronize)(stream));
    figures(pool, "synchronised");
    MUST(D(cuMemFreeAsync)(p, stream));
    MUST(D(cuMemFreeAsync)(r, stream));
    MUST(D(cuStreamSynchronize)(stream));
    figures(pool, "all freed, synchronised");
    MUST(D(cuMemGetInfo_v2)(&after, &total));
    fact("pool_mem_info", "%zd less free at the end", (ssize_t)(before - after));
    v = 0;
    SAY("set_used_high_0", D(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &v));
    SAY("set_reserved_high_0", D(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &v));
    figures(pool, "high marks reset");
    v = 5;
    SAY("set_used_high_5", D(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &v));
    SAY("set_used", D(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &v));
    SAY("set_unknown", D(cuMemPoolSetAttribute)(pool, 4711, &v));
    SAY("get_unknown", D(cuMemPoolGetAttribute)(pool, 4711, &v));
    SAY("get_null", D(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, NULL));
    for (int a = 1; a <= 3; a++) {
        D(cuMemPoolGetAttribute)(pool, a, &reuse);
        fact("pool_reuse", "%d: %d", a, reuse);
    }
    v = 256 * MIB;
    SAY("set_threshold", D(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &v));
    MUST(D(cuMemAllocAsync)(&q, 64 * MIB, stream));
    MUST(D(cuMemFreeAsync)(q, stream));
    MUST(D(cuStreamSynchronize)(stream));
    figures(pool, "threshold 256 MiB, 64 MiB freed and synchronised");
    SAY("trim_to_40", D(cuMemPoolTrimTo)(pool, 40 * MIB));
    figures(pool, "trimmed to 40 MiB");
    SAY("trim_to_0", D(cuMemPoolTrimTo)(pool, 0));
    figures(pool, "trimmed to 0");
    v = 0;
    D(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &v);
    MUST(D(cuMemAllocAsync)(&q, MIB, stream));
    MUST(D(cuStreamSynchronize)(stream));
    SAY("export_pointer", D(cuMemPoolExportPointer)(&data, q));
    SAY("export_pointer_interior", D(cuMemPoolExportPointer)(&data, q + 100));
    SAY("export_pool", D(cuMemPoolExportToShareableHandle)(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(D(cuMemAlloc_v2)(&p, MIB));
    SAY("export_pointer_plain", D(cuMemPoolExportPointer)(&data, p));
    SAY("export_pointer_unknown", D(cuMemPoolExportPointer)(&data, 0x1234000));
    SAY("get_access", D(cuMemPoolGetAccess)(&flags, pool, &here));
    fact("get_access_flags", "%d", (int)flags);
    SAY("set_access_none", D(cuMemPoolSetAccess)(pool, &desc, 1));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    SAY("set_access_read", D(cuMemPoolSetAccess)(pool, &desc, 1));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    SAY("set_access_readwrite", D(cuMemPoolSetAccess)(pool, &desc, 1));
    desc.location.id = 99;
    SAY("set_access_no_device", D(cuMemPoolSetAccess)(pool, &desc, 1));
    MUST(D(cuMemFree_v2)(p));
    MUST(D(cuMemFreeAsync)(q, stream));
    MUST(D(cuStreamSynchronize)(stream));
}

/* ---- pointers ---- */

static void memops_of(const char *what, CUdeviceptr p)
{
    unsigned on = 1, off = 0, got = 77;
    CUresult r = D(cuPointerGetAttribute)(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    fact("memops", "%s: at first %s %u", what, name_of(r), got);
    fact("memops", "%s: set 1 %s", what, name_of(D(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p)));
    fact("memops", "%s: set 1 inside %s", what, name_of(D(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p + 8)));
    D(cuPointerGetAttribute)(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    fact("memops", "%s: reads %u", what, got);
    fact("memops", "%s: set 0 %s", what, name_of(D(cuPointerSetAttribute)(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p)));
    D(cuPointerGetAttribute)(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    fact("memops", "%s: reads %u", what, got);
    fact("memops", "%s: set null %s", what, name_of(D(cuPointerSetAttribute)(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p)));
    fact("memops", "%s: set buffer id %s", what, name_of(D(cuPointerSetAttribute)(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, p)));
    fact("memops", "%s: set 4711 %s", what, name_of(D(cuPointerSetAttribute)(&on, 4711, p)));
}

static CUresult vmm(int usage, size_t size, CUdeviceptr *p, CUmemGenericAllocationHandle *h, int dev)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev}};
    CUmemAccessDesc desc = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult r;
    prop.allocFlags.gpuDirectRDMACapable = 1;
    prop.allocFlags.usage = usage;
    r = D(cuMemCreate)(h, size, &prop, 0);
    if (!r) r = D(cuMemAddressReserve)(p, size, 2 * MIB, 0, 0);
    if (!r) r = D(cuMemMap)(*p, size, 0, *h, 0);
    if (!r) r = D(cuMemSetAccess)(*p, size, &desc, 1);
    return r;
}

static void decompress(void)
{
    CUmemGenericAllocationHandle h, again;
    CUdeviceptr p;
    int capable = -1, fd = -1, supported = -1;
    for (int usage = 0; usage <= 2; usage += 2) {
        CUresult r = vmm(usage, 2 * MIB, &p, &h, 0);
        fact("decompress", "usage %d: made %s", usage, name_of(r));
        if (r)
            continue;
        r = D(cuPointerGetAttribute)(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, p);
        fact("decompress", "usage %d: %s %d", usage, name_of(r), capable);
        r = D(cuMemExportToShareableHandle)(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        fact("decompress", "usage %d: export %s", usage, name_of(r));
        if (!r) {
            r = D(cuMemImportFromShareableHandle)(&again, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
            fact("decompress", "usage %d: import %s", usage, name_of(r));
            D(cuMemRelease)(again);
            close(fd);
        }
        MUST(D(cuMemUnmap)(p, 2 * MIB));
        MUST(D(cuMemAddressFree)(p, 2 * MIB));
        MUST(D(cuMemRelease)(h));
    }
    D(cuDeviceGetAttribute)(&supported, 136, 0);
    fact("decompress_algorithms", "%d", supported);
}

static void dmabuf_of(const char *what, CUdeviceptr p, size_t size)
{
    CUresult r;
    int fd = -1;
    r = D(cuMemGetHandleForAddressRange)(&fd, p, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    fact("dmabuf", "%s, size %zu: %s", what, size, name_of(r));
    if (!r) {
        fact("dmabuf_size", "%lld", (long long)lseek(fd, 0, SEEK_END));
        close(fd);
    }
}

static void vmm_calls_on(const char *what, CUdeviceptr p, size_t size)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle h;
    unsigned long long flags = 77;
    CUdeviceptr q;
    CUresult r;
    r = D(cuMemGetAccess)(&flags, &desc.location, p);
    fact("vmm_on", "%s: get access %s %llu", what, name_of(r), flags);
    fact("vmm_on", "%s: set access %s", what, name_of(D(cuMemSetAccess)(p, size, &desc, 1)));
    fact("vmm_on", "%s: unmap %s", what, name_of(D(cuMemUnmap)(p, size)));
    fact("vmm_on", "%s: unmap odd %s", what, name_of(D(cuMemUnmap)(p + 512, 512)));
    fact("vmm_on", "%s: address free %s", what, name_of(D(cuMemAddressFree)(p, size)));
    fact("vmm_on", "%s: retain %s", what, name_of(D(cuMemRetainAllocationHandle)(&h, (void *)p)));
    MUST(vmm(0, 2 * MIB, &q, &h, 0));
    fact("vmm_on", "%s: map %s", what, name_of(D(cuMemMap)(p, 2 * MIB, 0, h, 0)));
    fact("vmm_on", "%s: map array %s", what, name_of(D(cuMemMapArrayAsync)(NULL, 0, stream)));
    MUST(D(cuMemUnmap)(q, 2 * MIB));
    MUST(D(cuMemAddressFree)(q, 2 * MIB));
    MUST(D(cuMemRelease)(h));
}

/* Managed memory's calls, on memory that is not managed. */
static void managed_calls_on(const char *what, CUdeviceptr p)
{
    typedef CUresult (*prefetch_fn)(CUdeviceptr, size_t, CUdevice, CUstream);
    typedef CUresult (*advise_fn)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
    prefetch_fn prefetch = (prefetch_fn)find("cuMemPrefetchAsync");
    advise_fn advise = (advise_fn)find("cuMemAdvise");
    int value = 77;
    fact("managed_on", "%s: prefetch %s", what, name_of(prefetch(p, MIB, 0, stream)));
    fact("managed_on", "%s: advise %s", what, name_of(advise(p, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0)));
    fact("managed_on", "%s: attach %s", what, name_of(D(cuStreamAttachMemAsync)(stream, p, 0, CU_MEM_ATTACH_SINGLE)));
    fact("managed_on", "%s: range attribute %s", what, name_of(D(cuMemRangeGetAttribute)(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, MIB)));
}

static void pointers(void)
{
    CUdeviceptr plain, small, async, p, q;
    CUmemGenericAllocationHandle h;
    CUcontext other;
    unsigned flags = 0, kept = 0;
    void *pinned;
    typedef CUresult (*create_fn)(CUcontext *, unsigned, CUdevice);
    create_fn create = (create_fn)find("cuCtxCreate_v2");

    MUST(D(cuMemAlloc_v2)(&plain, 4 * MIB));
    MUST(D(cuMemAlloc_v2)(&p, 4 * MIB));
    MUST(D(cuMemAlloc_v2)(&small, 8192));
    MUST(D(cuMemAlloc_v2)(&q, 8192));
    MUST(D(cuMemAllocAsync)(&async, 4 * MIB, stream));
    MUST(D(cuStreamSynchronize)(stream));
    memops_of("plain", plain);
    memops_of("async", async);
    memops_of("unknown", 0x1234000);
    MUST(D(cuMemAllocHost_v2)(&pinned, 4096));
    memops_of("host", (CUdeviceptr)(uintptr_t)pinned);
    MUST(D(cuMemFreeHost)(pinned));
    D(cuCtxGetFlags)(&kept);
    fact("ctx_flags", "%#x", kept);
    SAY("ctx_set_flags", D(cuCtxSetFlags)(kept | CU_CTX_SYNC_MEMOPS));
    D(cuCtxGetFlags)(&flags);
    fact("ctx_flags", "%#x", flags);
    SAY("ctx_set_flags_back", D(cuCtxSetFlags)(kept));
    D(cuCtxGetFlags)(&flags);
    fact("ctx_flags", "%#x", flags);
    MUST(create(&other, CU_CTX_SCHED_YIELD, 0));
    D(cuCtxGetFlags)(&flags);
    fact("ctx_flags_created", "%#x", flags);
    SAY("ctx_set_flags_created", D(cuCtxSetFlags)(flags | CU_CTX_SYNC_MEMOPS));
    D(cuCtxGetFlags)(&flags);
    fact("ctx_flags_created", "%#x", flags);
    MUST(D(cuCtxDestroy_v2)(other));
    MUST(D(cuCtxSetCurrent)(ctx[0]));
    decompress();
    {
        int capable = -1;
        SAY("decompress_plain", D(cuPointerGetAttribute)(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, plain));
        fact("decompress_plain", "%d", capable);
        SAY("decompress_async", D(cuPointerGetAttribute)(&capable, CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, async));
        fact("decompress_async", "%d", capable);
    }
    dmabuf_of("plain whole", plain, 4 * MIB);
    dmabuf_of("plain half", plain + 2 * MIB, 2 * MIB);
    dmabuf_of("plain page", plain + 4096, 4096);
    dmabuf_of("plain 64K", plain + 64 * KIB, 64 * KIB);
    dmabuf_of("plain odd size", plain, 1000);
    dmabuf_of("plain past", plain + 2 * MIB, 4 * MIB);
    dmabuf_of("plain nothing", plain, 0);
    fact("small_at", "%#llx", (unsigned long long)(small & (2 * MIB - 1)));
    dmabuf_of("small itself", small, 8192);
    dmabuf_of("small aligned 4K", (small + 4095) & ~(CUdeviceptr)4095, 4096);
    dmabuf_of("small to neighbour", (small + 4095) & ~(CUdeviceptr)4095, 16384);
    dmabuf_of("small's 64K", small & ~(CUdeviceptr)(64 * KIB - 1), 64 * KIB);
    dmabuf_of("small's 2M", small & ~(CUdeviceptr)(2 * MIB - 1), 2 * MIB);
    dmabuf_of("async", async, 4 * MIB);
    dmabuf_of("unknown", 0x1234000, 4096);
    MUST(D(cuMemFree_v2)(p));
    dmabuf_of("freed", p, 4 * MIB);
    MUST(vmm(0, 4 * MIB, &p, &h, 0));
    dmabuf_of("vmm", p, 4 * MIB);
    dmabuf_of("vmm page", p + 4096, 4096);
    managed_calls_on("plain", plain);
    managed_calls_on("async", async);
    managed_calls_on("vmm", p);
    managed_calls_on("unknown", 0x1234000);
    MUST(D(cuMemUnmap)(p, 4 * MIB));
    MUST(D(cuMemAddressFree)(p, 4 * MIB));
    MUST(D(cuMemRelease)(h));
    vmm_calls_on("plain", plain, 4 * MIB);
    vmm_calls_on("async", async, 4 * MIB);
    vmm_calls_on("unknown", 0x40000000, 4 * MIB);
    SAY("plain_still_there", D(cuMemsetD8_v2)(plain, 1, 4 * MIB));
    SAY("async_still_there", D(cuMemsetD8_v2)(async, 1, 4 * MIB));
    MUST(D(cuCtxSynchronize)());
    MUST(D(cuMemFree_v2)(plain));
    MUST(D(cuMemFree_v2)(small));
    MUST(D(cuMemFree_v2)(q));
    MUST(D(cuMemFreeAsync)(async, stream));
    MUST(D(cuStreamSynchronize)(stream));
}

/* ---- two GPUs ---- */

static void copies(const char *what, CUdeviceptr near, CUdeviceptr far, CUcontext at, CUstream s)
{
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = far, .srcPitch = 1024,
        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = near, .dstPitch = 1024,
        .WidthInBytes = 1000, .Height = 3};
    CUDA_MEMCPY3D solid = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = far, .srcPitch = 1024,
        .srcHeight = 3, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = near, .dstPitch = 1024,
        .dstHeight = 3, .WidthInBytes = 1000, .Height = 3, .Depth = 2};
    CUDA_MEMCPY3D_PEER peer = {.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = far, .srcPitch = 1024,
        .srcHeight = 3, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = near, .dstPitch = 1024,
        .dstHeight = 3, .WidthInBytes = 1000, .Height = 3, .Depth = 2,
        .srcContext = ctx[1], .dstContext = at == ctx[0] ? ctx[0] : ctx[1]};
    fact("far", "%s: DtoD from %s", what, name_of(D(cuMemcpyDtoD_v2)(near, far, 4096)));
    fact("far", "%s: DtoD to %s", what, name_of(D(cuMemcpyDtoD_v2)(far, near, 4096)));
    fact("far", "%s: DtoD within %s", what, name_of(D(cuMemcpyDtoD_v2)(far, far + 8192, 4096)));
    fact("far", "%s: DtoDAsync from %s", what, name_of(D(cuMemcpyDtoDAsync_v2)(near, far, 4096, s)));
    fact("far", "%s: cuMemcpy from %s", what, name_of(D(cuMemcpy)(near, far, 4096)));
    fact("far", "%s: cuMemcpyAsync from %s", what, name_of(D(cuMemcpyAsync)(near, far, 4096, s)));
    fact("far", "%s: cuMemcpy to host %s", what, name_of(D(cuMemcpy)((CUdeviceptr)(uintptr_t)host, far, 4096)));
    fact("far", "%s: cuMemcpy from host %s", what, name_of(D(cuMemcpy)(far, (CUdeviceptr)(uintptr_t)host, 4096)));
    fact("far", "%s: cuMemcpyAsync to host %s", what, name_of(D(cuMemcpyAsync)((CUdeviceptr)(uintptr_t)host, far, 4096, s)));
    fact("far", "%s: DtoH %s", what, name_of(D(cuMemcpyDtoH_v2)(host, far, 4096)));
    fact("far", "%s: HtoD %s", what, name_of(D(cuMemcpyHtoD_v2)(far, host, 4096)));
    fact("far", "%s: set %s", what, name_of(D(cuMemsetD8_v2)(far, 1, 4096)));
    fact("far", "%s: setasync %s", what, name_of(D(cuMemsetD8Async)(far, 1, 4096, s)));
    fact("far", "%s: 2D from %s", what, name_of(D(cuMemcpy2D_v2)(&flat)));
    fact("far", "%s: 2DAsync from %s", what, name_of(D(cuMemcpy2DAsync_v2)(&flat, s)));
    flat.srcMemoryType = flat.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    fact("far", "%s: 2D unified %s", what, name_of(D(cuMemcpy2D_v2)(&flat)));
    fact("far", "%s: 2D unaligned %s", what, name_of(D(cuMemcpy2DUnaligned_v2)(&flat)));
    fact("far", "%s: 3D from %s", what, name_of(D(cuMemcpy3D_v2)(&solid)));
    fact("far", "%s: 3DAsync from %s", what, name_of(D(cuMemcpy3DAsync_v2)(&solid, s)));
    fact("far", "%s: 3DPeer %s", what, name_of(D(cuMemcpy3DPeer)(&peer)));
    fact("far", "%s: Peer %s", what, name_of(D(cuMemcpyPeer)(near, peer.dstContext, far, ctx[1], 4096)));
    fact("far", "%s: PeerAsync %s", what, name_of(D(cuMemcpyPeerAsync)(near, peer.dstContext, far, ctx[1], 4096, s)));
    fact("far", "%s: PeerAsync wrong contexts %s", what, name_of(D(cuMemcpyPeerAsync)(near, ctx[0], far, ctx[0], 4096, s)));
    fact("far", "%s: synchronised %s", what, name_of(D(cuCtxSynchronize)()));
    for (int i = 0; i < 2; i++) {
        CUgraph graph = NULL;
        CUgraphExec exec = NULL;
        CUresult r = D(cuStreamBeginCapture_v2)(s, CU_STREAM_CAPTURE_MODE_RELAXED);
        if (!r)
            r = i ? D(cuMemcpyPeerAsync)(near, peer.dstContext, far, ctx[1], 4096, s)
                  : D(cuMemcpyDtoDAsync_v2)(near, far, 4096, s);
        fact("far", "%s: captured %s %s", what, i ? "PeerAsync" : "DtoDAsync", name_of(r));
        r = D(cuStreamEndCapture)(s, &graph);
        if (!r)
            r = D(cuGraphInstantiateWithFlags)(&exec, graph, 0);
        fact("far", "%s: instantiated %s", what, name_of(r));
        if (!r) {
            fact("far", "%s: launched %s", what, name_of(D(cuGraphLaunch)(exec, s)));
            fact("far", "%s: run %s", what, name_of(D(cuStreamSynchronize)(s)));
            D(cuGraphExecDestroy)(exec);
        }
        if (graph)
            D(cuGraphDestroy)(graph);
    }
}

static void two(void)
{
    CUdeviceptr near, far, farvmm, farasync, nearvmm;
    CUmemGenericAllocationHandle h, hn;
    CUstream far_stream;
    CUmemoryPool pool;
    CUmemAccess_flags flags = 77;
    CUmemLocation zero = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAccessDesc desc = {.location = zero, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    unsigned access = 77;
    double t;

    MUST(D(cuDevicePrimaryCtxRetain)(&ctx[1], 1));
    MUST(D(cuMemAlloc_v2)(&near, 4 * MIB));
    MUST(vmm(0, 4 * MIB, &nearvmm, &hn, 0));
    MUST(D(cuCtxSetCurrent)(ctx[1]));
    MUST(D(cuStreamCreate)(&far_stream, CU_STREAM_NON_BLOCKING));
    MUST(D(cuMemAlloc_v2)(&far, 4 * MIB));
    MUST(vmm(0, 4 * MIB, &farvmm, &h, 1));
    MUST(D(cuMemAllocAsync)(&farasync, 4 * MIB, far_stream));
    MUST(D(cuStreamSynchronize)(far_stream));
    MUST(D(cuCtxSetCurrent)(ctx[0]));
    copies("plain", near, far, ctx[0], stream);
    copies("async", near, farasync, ctx[0], stream);
    copies("vmm", nearvmm, farvmm, ctx[0], stream);
    copies("vmm to plain", near, farvmm, ctx[0], stream);
    fact("far", "stream of the other context, plain: %s", name_of(D(cuMemcpyDtoDAsync_v2)(near, far, 4096, far_stream)));
    fact("far", "stream of the other context, set: %s", name_of(D(cuMemsetD8Async)(far, 1, 4096, far_stream)));
    fact("far", "stream of the other context, set vmm: %s", name_of(D(cuMemsetD8Async)(farvmm, 1, 4096, far_stream)));
    fact("far", "stream of the other context, vmm: %s", name_of(D(cuMemcpyDtoDAsync_v2)(nearvmm, farvmm, 4096, far_stream)));
    D(cuPointerGetAttribute)(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, far);
    fact("access_flags_plain", "%u", access);
    SAY("enable_flags", D(cuCtxEnablePeerAccess)(ctx[1], 1));
    SAY("enable_self", D(cuCtxEnablePeerAccess)(ctx[0], 0));
    SAY("enable_null", D(cuCtxEnablePeerAccess)(NULL, 0));
    SAY("disable_not_enabled", D(cuCtxDisablePeerAccess)(ctx[1]));
    SAY("disable_self", D(cuCtxDisablePeerAccess)(ctx[0]));
    t = now();
    SAY("enable", D(cuCtxEnablePeerAccess)(ctx[1], 0));
    fact("enable_took_us", "%.0f", now() - t);
    SAY("enable_again", D(cuCtxEnablePeerAccess)(ctx[1], 0));
    D(cuPointerGetAttribute)(&access, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, far);
    fact("access_flags_plain_enabled", "%u", access);
    copies("plain enabled", near, far, ctx[0], stream);
    copies("async enabled", near, farasync, ctx[0], stream);
    copies("vmm enabled", nearvmm, farvmm, ctx[0], stream);
    MUST(D(cuDeviceGetDefaultMemPool)(&pool, 1));
    SAY("pool_get_access_peer", D(cuMemPoolGetAccess)(&flags, pool, &zero));
    fact("pool_get_access_peer", "%d", (int)flags);
    SAY("pool_set_access_peer", D(cuMemPoolSetAccess)(pool, &desc, 1));
    SAY("pool_get_access_peer", D(cuMemPoolGetAccess)(&flags, pool, &zero));
    fact("pool_get_access_peer", "%d", (int)flags);
    fact("pool", "set with access: %s", name_of(D(cuMemsetD8_v2)(farasync, 1, 4096)));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    SAY("pool_set_access_peer_read", D(cuMemPoolSetAccess)(pool, &desc, 1));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    SAY("pool_set_access_peer_none", D(cuMemPoolSetAccess)(pool, &desc, 1));
    fact("pool", "set without access: %s", name_of(D(cuMemsetD8_v2)(farasync, 1, 4096)));
    SAY("disable", D(cuCtxDisablePeerAccess)(ctx[1]));
    SAY("disable_again", D(cuCtxDisablePeerAccess)(ctx[1]));
    fact("far", "set after disable: %s", name_of(D(cuMemsetD8_v2)(far, 1, 4096)));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    t = now();
    SAY("vmm_set_access_peer", D(cuMemSetAccess)(farvmm, 4 * MIB, &desc, 1));
    fact("vmm_set_access_us", "%.0f", now() - t);
    fact("far", "vmm set with access: %s", name_of(D(cuMemsetD8_v2)(farvmm, 1, 4096)));
    fact("far", "vmm DtoH with access: %s", name_of(D(cuMemcpyDtoH_v2)(host, farvmm, 4096)));
    fact("far", "vmm DtoD with access: %s", name_of(D(cuMemcpyDtoD_v2)(near, farvmm, 4096)));
    MUST(D(cuCtxSetCurrent)(ctx[1]));
    for (int i = 0; i < 20000; i++)
        MUST(D(cuMemsetD8Async)(farvmm, 1, 4 * MIB, far_stream));
    desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    t = now();
    SAY("vmm_set_access_none", D(cuMemSetAccess)(farvmm, 4 * MIB, &desc, 1));
    fact("vmm_set_access_none_us", "%.0f", now() - t);
    SAY("vmm_set_access_none_under_work", D(cuStreamQuery)(far_stream));
    t = now();
    MUST(D(cuStreamSynchronize)(far_stream));
    fact("vmm_work_left_us", "%.0f", now() - t);
    MUST(D(cuCtxSetCurrent)(ctx[0]));
    fact("far", "vmm set without access: %s", name_of(D(cuMemsetD8_v2)(farvmm, 1, 4096)));
    MUST(D(cuCtxSynchronize)());
    /* A context of its own on the far device: whose peer is it? */
    {
        typedef CUresult (*create_fn)(CUcontext *, unsigned, CUdevice);
        create_fn create = (create_fn)find("cuCtxCreate_v2");
        CUcontext third;
        CUdeviceptr its;
        MUST(create(&third, 0, 1));
        MUST(D(cuMemAlloc_v2)(&its, 4 * MIB));
        MUST(D(cuCtxSetCurrent)(ctx[0]));
        SAY("enable_third", D(cuCtxEnablePeerAccess)(third, 0));
        SAY("enable_primary_after_third", D(cuCtxEnablePeerAccess)(ctx[1], 0));
        fact("third", "its memory: %s", name_of(D(cuMemsetD8_v2)(its, 1, 4096)));
        SAY("disable_third", D(cuCtxDisablePeerAccess)(third));
        fact("third", "its memory after disable: %s, the primary's: %s", name_of(D(cuMemsetD8_v2)(its, 1, 4096)),
             name_of(D(cuMemsetD8_v2)(far, 1, 4096)));
        SAY("disable_primary", D(cuCtxDisablePeerAccess)(ctx[1]));
        MUST(D(cuCtxDestroy_v2)(third));
        MUST(D(cuCtxSetCurrent)(ctx[0]));
    }
}

/* What each call says while the current context is a green one that has ended. */
static void ended(void)
{
    CUdevResourceDesc description;
    CUdevResource processors;
    CUdeviceptr async, plain, base;
    CUcontext made, found;
    CUgreenCtx green;
    CUdevice device;
    unsigned long long id;
    size_t size;

    MUST(D(cuDeviceGetDevResource)(0, &processors, CU_DEV_RESOURCE_TYPE_SM));
    MUST(D(cuDevResourceGenerateDesc)(&description, &processors, 1));
    MUST(D(cuGreenCtxCreate)(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    MUST(D(cuCtxFromGreenCtx)(&made, green));
    MUST(D(cuCtxSetCurrent)(made));
    MUST(D(cuMemAlloc_v2)(&plain, 4096));
    MUST(D(cuMemAllocAsync)(&async, 4096, NULL));
    MUST(D(cuCtxSynchronize)());
    MUST(D(cuGreenCtxDestroy)(green));
    SAY("ended_get_device", D(cuCtxGetDevice)(&device));
    SAY("ended_get_current", D(cuCtxGetCurrent)(&found));
    SAY("ended_get_id", D(cuCtxGetId)(NULL, &id));
    SAY("ended_get_id_of_it", D(cuCtxGetId)(made, &id));
    SAY("ended_stream_get_ctx", D(cuStreamGetCtx)(NULL, &found));
    SAY("ended_stream_get_id", D(cuStreamGetId)(NULL, &id));
    SAY("ended_stream_query", D(cuStreamQuery)(NULL));
    SAY("ended_push", D(cuCtxPushCurrent_v2)(made));
    SAY("ended_get_device_pushed", D(cuCtxGetDevice)(&device));
    SAY("ended_pop", D(cuCtxPopCurrent_v2)(&found));
    SAY("ended_range", D(cuMemGetAddressRange_v2)(&base, &size, plain));
    SAY("ended_free_async", D(cuMemFreeAsync)(async, NULL));
    SAY("ended_ipc_close", D(cuIpcCloseMemHandle)(plain));
    SAY("ended_alloc", D(cuMemAlloc_v2)(&base, 4096));
    SAY("ended_alloc_async", D(cuMemAllocAsync)(&base, 4096, NULL));
    SAY("ended_free", D(cuMemFree_v2)(plain));
    SAY("ended_memset", D(cuMemsetD8_v2)(async, 1, 4096));
    SAY("ended_set_current", D(cuCtxSetCurrent)(ctx[0]));
    SAY("ended_free_later", D(cuMemFree_v2)(plain));
}

int main(void)
{
    int count = 0;
    libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda) {
        printf("FACT stopped = %s\n", dlerror());
        return 1;
    }
    MUST(D(cuInit)(0));
    MUST(D(cuDeviceGetCount)(&count));
    MUST(D(cuDevicePrimaryCtxRetain)(&ctx[0], 0));
    MUST(D(cuCtxSetCurrent)(ctx[0]));
    MUST(D(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    extents();
    in_capture();
    pools();
    pointers();
    ended();
    if (count > 1)
        two();
    printf("FACT end = %d devices\n", count);
    return 0;
}
