/* Stream-ordered memory: cuMemAllocAsync, cuMemAllocFromPoolAsync, cuMemFreeAsync. */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(async, .init = conform_start, .timeout = 60);

static const size_t sizes[] = {4, 512, 64 * KIB, MIB, 2 * MIB, 9 * MIB};
#define SIZES (sizeof sizes / sizeof sizes[0])

Test(async, memory_is_usable_in_stream_order)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;

    for (size_t i = 0; i < SIZES; i++) {
        OK(cuMemAllocAsync(&ptr, sizes[i], stream));
        cr_assert_eq(ptr % 256, 0);
        OK(launch_fill(stream, ptr, 9, sizes[i] / 4));
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(ptr, 9, sizes[i] / 4), 0);
        OK(cuMemFreeAsync(ptr, stream));
        OK(cuStreamSynchronize(stream));
    }
}

Test(async, bad_calls)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;

    FAILS(cuMemAllocAsync(NULL, 64, stream));
    FAILS(cuMemFreeAsync(NOWHERE, stream));
    probe("async_free_unknown", "%s", result_name(cuMemFreeAsync(NOWHERE, stream)));
    probe("async_free_null", "%s", result_name(cuMemFreeAsync(0, stream)));
    probe("async_alloc_zero", "%s", result_name(cuMemAllocAsync(&ptr, 0, stream)));
    OK(cuMemAllocAsync(&ptr, 4096, stream));
    FAILS(cuMemFreeAsync(ptr + 256, stream));
    probe("async_free_interior", "%s", result_name(cuMemFreeAsync(ptr + 256, stream)));
    OK(launch_fill(stream, ptr, 3, 1024));
    OK(cuStreamSynchronize(stream));
    cr_assert_eq(words_other(ptr, 3, 1024), 0, "a refused free changed the block");
    OK(cuMemFreeAsync(ptr, stream));
    probe("async_double_free", "%s", result_name(cuMemFreeAsync(ptr, stream)));
    OK(cuStreamSynchronize(stream));
    probe("async_double_free_later", "%s", result_name(cuMemFreeAsync(ptr, stream)));
}

Test(async, either_free_takes_either_memory)
{
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0;

    for (size_t i = 0; i < SIZES; i++) {
        OK(cuMemAllocAsync(&ptr, sizes[i], stream));
        OK(launch_fill(stream, ptr, 1, sizes[i] / 4));
        OK(cuStreamSynchronize(stream)); /* cuMemFree does not wait for async memory */
        OK(cuMemFree(ptr));
        FAILS(cuMemFree(ptr));
        OK(cuMemAlloc(&ptr, sizes[i]));
        OK(launch_fill(stream, ptr, 1, sizes[i] / 4));
        OK(cuMemFreeAsync(ptr, stream));
        OK(cuStreamSynchronize(stream));
        FAILS(cuMemFree(ptr));
    }
}

/* ---- the forms for the per-thread default stream ---- */

typedef CUresult (*async_alloc_fn)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*async_pool_fn)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult (*async_free_fn)(CUdeviceptr, CUstream);

Test(async, default_streams_of_every_form)
{
    static const cuuint64_t flags[] = {CU_GET_PROC_ADDRESS_DEFAULT,
                                       CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                       CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM};
    CUmemoryPool pool = NULL;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    for (int i = 0; i < 3; i++) {
        async_alloc_fn alloc = (async_alloc_fn)driver_lookup("cuMemAllocAsync", 12000, flags[i]);
        async_pool_fn from =
            (async_pool_fn)driver_lookup("cuMemAllocFromPoolAsync", 12000, flags[i]);
        async_free_fn release = (async_free_fn)driver_lookup("cuMemFreeAsync", 12000, flags[i]);
        CUstream own = i == 2 ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
        CUdeviceptr a = 0, b = 0, owner = 0;

        cr_assert(alloc && from && release, "flags %d: an entry point is missing", i);
        OK(alloc(&a, 64 * KIB, NULL));
        OK(from(&b, 64 * KIB, pool, NULL));
        OK(launch_spin_fill(own, a, 1, 16 * KIB, 10 * MILLISECOND));
        OK(launch_spin_fill(own, b, 2, 16 * KIB, 10 * MILLISECOND));
        OK(release(a, NULL));
        OK(release(b, NULL));
        /* Freed behind the kernels on the default stream of this form: the kernels' late words
         * must not meet a new owner on another stream. */
        OK(cuMemAlloc(&owner, 64 * KIB));
        OK(launch_fill(own == CU_STREAM_LEGACY ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY, owner, 3,
                       16 * KIB));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(owner, 3, 16 * KIB), 0, "flags %d", i);
        OK(cuMemFree(owner));
    }
}

/* ---- pools ---- */

Test(async, memory_of_the_default_pool)
{
    CUstream stream = new_stream();
    CUmemoryPool pool = NULL, current = NULL, seen = NULL;
    CUdeviceptr ptr = 0;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    OK(cuDeviceGetMemPool(&current, device));
    cr_assert_eq(pool, current);
    OK(cuMemAllocFromPoolAsync(&ptr, 3 * MIB, pool, stream));
    OK(launch_fill(stream, ptr, 4, 3 * MIB / 4));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(seen, pool);
    OK(cuStreamSynchronize(stream));
    cr_assert_eq(words_other(ptr, 4, 3 * MIB / 4), 0);
    OK(cuMemFreeAsync(ptr, stream));
    FAILS(cuMemAllocFromPoolAsync(&ptr, 64, NULL, stream));
    OK(cuStreamSynchronize(stream));
}

Test(async, memory_of_the_programs_own_pool_stays_there)
{
    CUstream stream = new_stream();
    CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_NONE), seen = NULL, others = NULL;
    CUdeviceptr ptr = 0, of_default = 0;
    cuuint64_t used = 0, before = 0;

    OK(cuDeviceGetDefaultMemPool(&others, device));
    OK(cuMemAllocFromPoolAsync(&of_default, 5 * MIB, others, stream));
    OK(cuMemPoolGetAttribute(others, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &before));
    OK(cuMemAllocFromPoolAsync(&ptr, 3 * MIB, pool, stream));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(seen, pool);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    cr_assert_eq(used, 3 * MIB);
    OK(cuMemPoolGetAttribute(others, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    cr_assert_eq(used, before);
    OK(launch_fill(stream, ptr, 6, 3 * MIB / 4));
    OK(cuStreamSynchronize(stream));
    cr_assert_eq(words_other(ptr, 6, 3 * MIB / 4), 0);
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    cr_assert_eq(used, 0);
    OK(cuMemFreeAsync(of_default, stream));
    OK(cuStreamSynchronize(stream));
}

Test(async, a_pool_made_current_serves_the_allocations)
{
    CUstream stream = new_stream();
    CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_NONE), before = NULL, seen = NULL;
    CUdeviceptr ptr = 0;

    OK(cuDeviceGetMemPool(&before, device));
    OK(cuDeviceSetMemPool(device, pool));
    OK(cuMemAllocAsync(&ptr, 4096, stream));
    OK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
    cr_assert_eq(seen, pool);
    OK(cuMemFreeAsync(ptr, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuDeviceSetMemPool(device, before));
}

/* ---- stream order ---- */

Test(async, same_stream_reuse_keeps_the_order)
{
    CUstream stream = new_stream();
    CUdeviceptr kept = allocated(MIB), a = 0, b = 0;

    for (int i = 0; i < 50; i++) {
        size_t words = sizes[(size_t)i % 4] / 4;

        OK(cuMemAllocAsync(&a, words * 4, stream));
        OK(launch_spin_fill(stream, a, 100u + (uint32_t)i, words, MILLISECOND / 2));
        OK(launch_copy(stream, kept, a, words));
        OK(cuMemFreeAsync(a, stream));
        OK(cuMemAllocAsync(&b, words * 4, stream));
        OK(launch_fill(stream, b, 7, words));
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(kept, 100u + (uint32_t)i, words), 0, "round %d", i);
        cr_assert_eq(words_other(b, 7, words), 0, "round %d", i);
        OK(cuMemFreeAsync(b, stream));
    }
    OK(cuStreamSynchronize(stream));
}

Test(async, another_streams_block_is_never_overwritten_late)
{
    CUstream s1 = new_stream(), s2 = new_stream();

    turns_over(&(struct turn){.has = s1, .works = s1, .frees = s1, .takes = s2, .fills = s2}, 24);
}

/* Used on one stream, freed on another that an event made wait: the free is behind the use. */
Test(async, a_free_on_another_stream_is_behind_what_the_stream_waits_for)
{
    CUstream s1 = new_stream(), s2 = new_stream(), s3 = new_stream();
    CUdeviceptr a = 0, b = 0, c = 0;
    CUevent used = new_event();

    for (int i = 0; i < 16; i++) {
        size_t words = sizes[(size_t)i % SIZES] / 4;

        OK(cuMemAllocAsync(&a, words * 4, s1));
        OK(launch_spin_fill(s1, a, 1, words, 5 * MILLISECOND));
        OK(cuEventRecord(used, s1));
        OK(cuStreamWaitEvent(s2, used, 0));
        OK(cuMemFreeAsync(a, s2));
        OK(cuMemAllocAsync(&b, words * 4, s2));
        OK(launch_fill(s2, b, 2, words));
        OK(cuMemAllocAsync(&c, words * 4, s3));
        OK(launch_fill(s3, c, 3, words));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(b, 2, words), 0, "round %d", i);
        cr_assert_eq(words_other(c, 3, words), 0, "round %d", i);
        OK(cuMemFreeAsync(b, s2));
        OK(cuMemFreeAsync(c, s3));
    }
    OK(cuCtxSynchronize());
}

/* The legacy stream waits for blocking streams and they for it; a block freed there follows. */
Test(async, the_legacy_stream_orders_blocking_streams)
{
    struct turn turn = {.frees = CU_STREAM_LEGACY,
                        .takes = CU_STREAM_LEGACY,
                        .fills = CU_STREAM_LEGACY};

    OK(cuStreamCreate(&turn.works, CU_STREAM_DEFAULT));
    turn.has = turn.works;
    turns_over(&turn, 8);
}

Test(async, a_stream_destroyed_after_its_frees)
{
    CUdeviceptr a = 0, b = 0;

    for (int i = 0; i < 12; i++) {
        CUstream s = new_stream(), other = new_stream();
        size_t words = sizes[(size_t)i % SIZES] / 4;

        OK(cuMemAllocAsync(&a, words * 4, s));
        OK(launch_spin_fill(s, a, 1, words, 5 * MILLISECOND));
        OK(cuMemFreeAsync(a, s));
        OK(cuStreamDestroy(s));
        OK(cuMemAllocAsync(&b, words * 4, other));
        OK(launch_fill(other, b, 2, words));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(b, 2, words), 0, "round %d", i);
        OK(cuMemFreeAsync(b, other));
    }
}
