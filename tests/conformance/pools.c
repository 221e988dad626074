/* The devices' default pools: their figures, what acts on them, and who may come in. */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(pools, .init = conform_start, .timeout = 60);

static CUmemoryPool pool;
static CUstream stream;

static uint64_t figure(CUmemPool_attribute which)
{
    cuuint64_t value = 0;

    OK(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static uint64_t used(void)
{
    return figure(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
}

static uint64_t reserved(void)
{
    return figure(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
}

static void default_pool(void)
{
    cuuint64_t zero = 0;

    stream = new_stream();
    OK(cuDeviceGetDefaultMemPool(&pool, device));
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
}

Test(pools, figures_of_the_default_pool_count_what_was_asked_for)
{
    CUdeviceptr small = 0, large = 0, tiny = 0;
    uint64_t start;
    cuuint64_t zero = 0;

    default_pool();
    start = used();
    OK(cuMemAllocAsync(&small, 1000, stream));
    cr_assert_eq(used() - start, 1000);
    OK(cuMemAllocAsync(&large, 48 * MIB + 5, stream));
    OK(cuMemAllocAsync(&tiny, 100, stream));
    cr_assert_eq(used() - start, 48 * MIB + 1105);
    cr_assert_geq(reserved(), used());
    cr_assert_eq(figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH) - start, 48 * MIB + 1105);
    cr_assert_geq(figure(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), reserved());
    OK(cuMemFreeAsync(large, stream));
    cr_assert_eq(used() - start, 1100);
    cr_assert_eq(figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH) - start, 48 * MIB + 1105);
    OK(cuMemFreeAsync(tiny, stream));
    OK(cuMemFreeAsync(small, stream));
    OK(cuStreamSynchronize(stream));
    cr_assert_eq(used(), start);
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(reserved(), 0);
    cr_assert_geq(figure(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 48 * MIB);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
    cr_assert_eq(figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH), start);
    cr_assert_eq(figure(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 0);
}

/* The most that was used is `size`, natively; here no less, since it is the sum of what each
 * context had at most. */
static void high_is(uint64_t size)
{
    uint64_t high = figure(CU_MEMPOOL_ATTR_USED_MEM_HIGH);

    cr_assert(under_shim() ? high >= size : high == size);
}

Test(pools, the_high_mark_is_of_all_contexts_together)
{
    CUcontext of[3] = {context, NULL, NULL};
    CUdeviceptr ptr[24] = {0};
    size_t size[24], live = 0, high = 0;
    uint32_t random = 4711;
    cuuint64_t zero = 0;
    CUstream streams[3];
    uint64_t start;

    default_pool();
    start = used();
    for (int i = 0; i < 3; i++) {
        if (i > 0)
            of[i] = context_create(device);
        OK(cuCtxSetCurrent(of[i]));
        streams[i] = new_stream();
        OK(cuMemAllocAsync(&ptr[0], MIB, streams[i]));
        OK(cuMemFreeAsync(ptr[0], streams[i]));
        OK(cuStreamSynchronize(streams[i]));
        high_is(start + MIB);
    }
    ptr[0] = 0;
    for (int step = 0; step < 600; step++) {
        int which, at;

        random = random * 1664525 + 1013904223;
        which = (int)(random >> 8) % 3, at = (int)(random >> 16) % 24;
        OK(cuCtxSetCurrent(of[which]));
        if (ptr[at]) {
            OK(cuMemFreeAsync(ptr[at], streams[at % 3]));
            OK(cuStreamSynchronize(streams[at % 3]));
            live -= size[at];
            ptr[at] = 0;
        } else {
            size[at] = 1 + (random >> 4) % (at < 12 ? 4000 : 3000000);
            OK(cuMemAllocAsync(&ptr[at], size[at], streams[at % 3]));
            live += size[at];
        }
        high = live > high ? live : high;
        if (step == 0)
            high = high > MIB ? high : MIB;
        if (step % 10 == 0)
            high_is(start + high);
        cr_assert_eq(used() - start, live, "step %d", step);
        if (step % 150 == 149) {
            OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
            high = live;
        }
    }
    for (int at = 0; at < 24; at++)
        if (ptr[at])
            OK(cuMemFreeAsync(ptr[at], streams[at % 3]));
    for (int i = 0; i < 3; i++)
        OK(cuStreamSynchronize(streams[i]));
    cr_assert_eq(used(), start);
    OK(cuCtxDestroy(of[1]));
    OK(cuCtxDestroy(of[2]));
    high_is(start + high);
}

Test(pools, memory_of_cumemalloc_is_not_the_pools)
{
    CUdeviceptr plain = 0;
    uint64_t before;

    default_pool();
    before = used();
    OK(cuMemAlloc(&plain, 32 * MIB));
    cr_assert_eq(used(), before);
    cr_assert_eq(reserved(), 0);
    OK(cuMemFree(plain));
    cr_assert_eq(used(), before);
    cr_assert_eq(reserved(), 0);
}

Test(pools, a_trim_keeps_what_it_is_told_and_what_is_in_use)
{
    cuuint64_t keep_all = UINT64_MAX, none = 0;
    CUdeviceptr live = 0, freed = 0;
    size_t before;

    default_pool();
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_all));
    OK(cuMemAllocAsync(&live, 40 * MIB, stream));
    OK(cuMemAllocAsync(&freed, 200 * MIB, stream));
    OK(launch_fill(stream, live, 4, 10 * MIB));
    OK(cuStreamSynchronize(stream));
    OK(cuMemFreeAsync(freed, stream));
    OK(cuStreamSynchronize(stream));
    cr_assert_geq(reserved(), 240 * MIB);
    OK(cuMemPoolTrimTo(pool, 400 * MIB));
    cr_assert_geq(reserved(), 240 * MIB);
    before = memory_free_bytes();
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_geq(reserved(), 40 * MIB);
    cr_assert_lt(reserved(), 200 * MIB);
    if (!under_shim()) /* where cached memory counts as free */
        cr_assert_geq(memory_free_bytes(), before + 150 * MIB);
    cr_assert_eq(words_other(live, 4, 10 * MIB), 0);
    OK(cuMemFreeAsync(live, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
    cr_assert_eq(figure(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 0);
    if (under_shim_with_events()) /* the driver looks at it with its next synchronization */
        cr_assert_eq(reserved(), 0);
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(reserved(), 0);
}

Test(pools, bad_calls_about_the_default_pool)
{
    cuuint64_t five = 5;
    CUmemPoolPtrExportData data;
    CUdeviceptr ptr = 0;

    default_pool();
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &five));
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &five));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, (CUmemPool_attribute)4711, &five));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(pool, (CUmemPool_attribute)4711, &five));
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, NULL));
    OK(cuMemAllocAsync(&ptr, MIB, stream));
    OK(cuStreamSynchronize(stream));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, ptr));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data, NOWHERE));
}

/* The default one is the current one again, whose memory the library gives. */
Test(pools, the_end_of_the_current_pool_makes_the_default_one_current)
{
    CUmemoryPool own = NULL, now = NULL;
    CUdeviceptr of_own = 0, ptr = 0;
    CUipcMemHandle handle;

    default_pool();
    own = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    OK(cuDeviceSetMemPool(device, own));
    OK(cuMemAllocAsync(&of_own, MIB, stream));
    OK(cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, of_own));
    cr_assert_eq(now, own);
    OK(cuMemPoolDestroy(own));
    OK(cuDeviceGetMemPool(&now, device));
    cr_assert_eq(now, pool);
    OK(cuMemAllocAsync(&ptr, MIB, stream));
    OK(cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(now, pool);
    if (under_shim_with_events())
        OK(cuIpcGetMemHandle(&handle, ptr));
}

/* A default pool stays, and a pool that is not the current one changes nothing. */
Test(pools, the_end_of_another_pool_leaves_the_current_one)
{
    CUmemoryPool own = NULL, other = NULL, now = NULL;
    CUdeviceptr ptr = 0;

    default_pool();
    FAILS(cuMemPoolDestroy(pool));
    own = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    other = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    OK(cuDeviceSetMemPool(device, own));
    OK(cuMemPoolDestroy(other));
    FAILS(cuMemPoolDestroy(pool));
    OK(cuMemAllocAsync(&ptr, MIB, stream));
    OK(cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(now, own);
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuDeviceSetMemPool(device, pool));
}

/* Nothing that a program asked for is known to be refused so, but a driver may. */
Test(pools, one_whose_end_fails_is_the_current_one_still)
{
    CUmemoryPool own = NULL, now = NULL;
    CUdeviceptr ptr = 0;

    if (!software())
        cr_skip_test("only the software driver fails when it is told to");
    default_pool();
    own = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    OK(cuDeviceSetMemPool(device, own));
    cr_assert_eq(software()->fail("cuMemPoolDestroy", 1, CUDA_ERROR_SYSTEM_NOT_READY), 0);
    CHECK(CUDA_ERROR_SYSTEM_NOT_READY, cuMemPoolDestroy(own));
    OK(cuMemAllocAsync(&ptr, MIB, stream));
    OK(cuPointerGetAttribute(&now, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(now, own);
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuMemPoolDestroy(own));
}

Test(pools, a_default_pool_lets_a_peer_in)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccess_flags flags = (CUmemAccess_flags)77;
    CUcontext second = NULL;
    CUdeviceptr before = 0, after = 0;
    int count = 0, can = 0;

    OK(cuDeviceGetCount(&count));
    if (count > 1)
        OK(cuDeviceCanAccessPeer(&can, 1, 0));
    if (!can)
        cr_skip_test("no second device that reaches the first");
    default_pool();
    OK(cuMemAllocAsync(&before, 4 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolGetAccess(&flags, pool, &access.location));
    cr_assert_eq((int)flags, 0);
    OK(cuMemPoolSetAccess(pool, &access, 1));
    OK(cuMemPoolGetAccess(&flags, pool, &access.location));
    cr_assert_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemAllocAsync(&after, 64 * MIB, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(fill_now(before, 5, MIB));
    OK(fill_now(after, 6, 16 * MIB));
    OK(cuMemsetD8(before, 1, 16));
    OK(cuCtxSynchronize());
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolSetAccess(pool, &access, 1));
    CHECK(under_shim_with_events() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
          cuMemsetD8(before, 1, 16));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(words_other(after, 6, 16 * MIB), 0);
    access.location.id = 0;
    CHECK(CUDA_ERROR_INVALID_DEVICE, cuMemPoolSetAccess(pool, &access, 1));
}
