/*
 * Memory of the device's pool outlives the context that it was allocated in: it is the device's.
 * Another context reads, fills and frees it; memory of cuMemAlloc beside it is gone.
 */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(outlives, .init = conform_start, .timeout = 60);

#define SIZES 3
static const size_t sizes[SIZES] = {1000, 64 * KIB, 4 * MIB};

enum how { DESTROYED, RESET, RELEASED, HOWS };

/* Ends the current context, and makes another one current. */
static void end_context(enum how how, CUcontext other)
{
    CUcontext current = NULL;

    OK(cuCtxGetCurrent(&current));
    kernels_forget();
    if (how == DESTROYED) {
        OK(cuCtxDestroy(current));
    } else {
        OK(how == RESET ? cuDevicePrimaryCtxReset(device) : cuDevicePrimaryCtxRelease(device));
        OK(cuDevicePrimaryCtxRetain(&context, device));
    }
    OK(cuCtxSetCurrent(how == DESTROYED ? other : context));
}

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool = NULL;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    return pool;
}

static uint64_t used(void)
{
    cuuint64_t value = 0;

    OK(cuMemPoolGetAttribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    return value;
}

static uint64_t buffer_id(CUdeviceptr ptr)
{
    unsigned long long id = 0;

    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr));
    return id;
}

struct memory {
    CUdeviceptr async[SIZES], plain[SIZES];
    uint64_t id[SIZES];
};

/* Side by side, and with something in it. */
static void allocate(struct memory *memory)
{
    CUstream stream = new_stream();

    for (int i = 0; i < SIZES; i++) {
        OK(cuMemAlloc(&memory->plain[i], sizes[i]));
        OK(cuMemAllocAsync(&memory->async[i], sizes[i], stream));
        OK(cuMemsetD32Async(memory->async[i], 7 + (unsigned)i, sizes[i] / 4, stream));
        memory->id[i] = buffer_id(memory->async[i]);
    }
    OK(cuStreamSynchronize(stream));
}

static void is_there(const struct memory *memory)
{
    for (int i = 0; i < SIZES; i++) {
        const CUdeviceptr ptr = memory->async[i];
        CUcontext owner = (CUcontext)5;
        CUmemoryPool pool = NULL;
        CUdeviceptr base = 0;
        unsigned int type = 0;
        size_t size = 0;

        OK(cuMemGetAddressRange(&base, &size, ptr + 100));
        cr_assert_eq(base, ptr);
        cr_assert_eq(size, sizes[i]);
        OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
        cr_assert_null(owner);
        OK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr));
        cr_assert_eq(pool, default_pool());
        OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
        cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
        cr_assert_eq(buffer_id(ptr), memory->id[i]);
        cr_assert_eq(words_other(ptr, 7 + (unsigned)i, sizes[i] / 4), 0, "changed");
        OK(fill_now(ptr, 9, sizes[i] / 4));
        cr_assert_eq(words_other(ptr, 9, sizes[i] / 4), 0);
        OK(cuMemsetD8(ptr, 1, sizes[i]));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(ptr, 1, sizes[i] + 1));
        FAILS(cuMemGetAddressRange(&base, &size, memory->plain[i]));
        /* On a real GPU seen to succeed at times (H100s, driver 580), natively, and with the
         * library on a machine of two: something else was there. */
        if (software_driver())
            FAILS(cuMemsetD8(memory->plain[i], 1, 4));
        FAILS(cuMemFree(memory->plain[i]));
    }
}

static void lives_on(enum how how)
{
    CUcontext other = context;
    struct memory memory;
    CUstream stream;
    uint64_t before;

    if (how == DESTROYED)
        context_create(device);
    allocate(&memory);
    before = used();
    end_context(how, other);
    cr_assert_eq(used(), before);
    is_there(&memory);
    stream = new_stream();
    OK(cuMemFreeAsync(memory.async[0], stream));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(memory.async[0], stream));
    OK(cuMemFreeAsync(memory.async[1], CU_STREAM_LEGACY));
    OK(cuCtxSynchronize());
    OK(cuMemFree(memory.async[2]));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(memory.async[2]));
    for (int i = 0; i < SIZES; i++)
        FAILS(cuMemsetD8(memory.async[i], 1, 4));
    OK(cuStreamDestroy(stream));
}

Test(outlives, a_destroyed_context)
{
    for (int i = 0; i < 3; i++)
        lives_on(DESTROYED);
}

Test(outlives, a_reset_of_the_primary_context)
{
    for (int i = 0; i < 3; i++)
        lives_on(RESET);
}

Test(outlives, the_last_release_of_the_primary_context)
{
    for (int i = 0; i < 3; i++)
        lives_on(RELEASED);
}

/* Contexts come and go, and may have the handles of those before them. */
Test(outlives, many_contexts)
{
    CUdeviceptr kept[4]; /* contexts take their time where others are made beside them */

    for (int i = 0; i < 4; i++) {
        CUstream stream;

        context_create(device);
        stream = new_stream();
        OK(cuMemAllocAsync(&kept[i], MIB, stream));
        OK(cuMemsetD32Async(kept[i], (unsigned)i, MIB / 4, stream));
        OK(cuStreamSynchronize(stream));
        end_context(DESTROYED, context);
    }
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(words_other(kept[i], (unsigned)i, MIB / 4), 0, "%d", i);
        context_create(device);
        OK(cuMemFreeAsync(kept[i], CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        end_context(DESTROYED, context);
    }
}

/* It goes back, though nobody allocates any more. What a first context leaves is kept. */
Test(outlives, its_memory_comes_back)
{
    cuuint64_t none = 0;
    size_t before = 0;

    OK(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &none));
    for (int i = 0; i < 4; i++) {
        CUdeviceptr async = 0, plain = 0;

        before = i > 1 ? before : memory_free_bytes();
        context_create(device);
        OK(cuMemAlloc(&plain, 64 * MIB));
        OK(cuMemAllocAsync(&async, 128 * MIB, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        end_context(DESTROYED, context);
        cr_assert_leq(memory_free_bytes(), before - 120 * MIB);
        OK(cuMemFreeAsync(async, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        OK(cuMemPoolTrimTo(default_pool(), 0));
        if (i > 0)
            cr_assert_geq(memory_free_bytes() + 16 * MIB, before, "round %d: %zd bytes missing", i,
                          (ssize_t)(before - memory_free_bytes()));
    }
}

enum { FRESH = 4 };

/* Memory of a context that is gone is used in the current one, freed, and may be had again at once.
 * What the driver says in the end; ret_other is how much of the next owners' changed. */
static CUresult used_and_freed(CUstream user, CUstream filler, bool plainly, size_t *ret_other)
{
    CUdeviceptr old = 0, fresh[FRESH];
    CUresult r;

    context_create(device);
    OK(cuMemAllocAsync(&old, 2 * MIB, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    end_context(DESTROYED, context);
    OK(launch_spin_fill(user, old, 1, MIB / 2, 20 * MILLISECOND));
    r = plainly ? cuMemFree(old) : cuMemFreeAsync(old, user);
    for (int k = 0; k < FRESH && r == CUDA_SUCCESS; k++) {
        r = cuMemAlloc(&fresh[k], 2 * MIB);
        if (r == CUDA_SUCCESS)
            r = launch_fill(filler, fresh[k], 2, MIB / 2);
    }
    if (r == CUDA_SUCCESS)
        r = cuCtxSynchronize();
    *ret_other = 0;
    for (int k = 0; k < FRESH && r == CUDA_SUCCESS; k++) {
        *ret_other += words_other(fresh[k], 2, MIB / 2);
        r = cuMemFree(fresh[k]);
    }
    return r;
}

/* What frees it is behind the work of who used it. Natively it is not: the kernel's memory goes
 * under it, a sticky ILLEGAL_ADDRESS (measured on an H200). */
Test(outlives, it_is_not_reused_under_another_contexts_work)
{
    CUstream user = new_stream(), filler = new_stream();

    OK(launch_spin(user, 1));
    OK(launch_spin(filler, 1));
    for (int i = 0; i < 6; i++) {
        size_t other;
        CUresult r = used_and_freed(user, filler, i % 2, &other);

        if (r != CUDA_SUCCESS && !under_shim() && !software_driver()) {
            probe("used_after_its_context", "freed by %s in round %d: %s",
                  i % 2 ? "cuMemFree" : "cuMemFreeAsync", i, result_name(r));
            cr_skip_test("natively its memory goes under the work");
        }
        OK(r);
        cr_assert_eq(other, 0, "round %d", i);
    }
    OK(cuStreamDestroy(user));
    OK(cuStreamDestroy(filler));
}

/* Nor does the free of what lives on wait, or hurt a capture. */
Test(outlives, it_is_freed_while_a_stream_captures)
{
    CUstream stream = new_stream();
    CUdeviceptr old = 0;
    CUgraph graph = NULL;

    OK(launch_spin(stream, 1));
    context_create(device);
    OK(cuMemAllocAsync(&old, 2 * MIB, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    end_context(DESTROYED, context);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch_spin(stream, 1));
    OK(cuMemFreeAsync(old, CU_STREAM_PER_THREAD));
    OK(launch_spin(stream, 1));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphDestroy(graph));
    FAILS(cuMemsetD8(old, 1, 4));
    OK(cuStreamDestroy(stream));
}

/* Natively a capture that refuses an allocation refuses what sets an attribute, also of what lives
 * on. */
static void sets_attributes(enum how how)
{
    CUcontext other = context;
    CUdeviceptr old = 0;
    CUgraph graph = NULL;
    unsigned int on = 1;
    CUstream stream;

    if (how == DESTROYED)
        context_create(device);
    OK(cuMemAllocAsync(&old, 2 * MIB, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    end_context(how, other);
    stream = new_stream();
    OK(launch_spin(stream, 1));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(launch_spin(stream, 1));
    CHECK(under_shim_with_events() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, old));
    CHECK(under_shim_with_events() ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
          cuStreamEndCapture(stream, &graph));
    if (graph)
        OK(cuGraphDestroy(graph));
    OK(cuMemFree(old));
    OK(cuStreamDestroy(stream));
}

Test(outlives, its_attributes_are_set_while_a_stream_captures)
{
    sets_attributes(DESTROYED);
    sets_attributes(RESET);
}

/* No context of its device is left. */
Test(outlives, all_contexts_of_its_device)
{
    CUdeviceptr there = 0;
    uint32_t word = 0;
    int count = 0;

    OK(cuDeviceGetCount(&count));
    if (count < 2)
        cr_skip_test("one device");
    context_create(1);
    OK(cuMemAllocAsync(&there, MIB, CU_STREAM_PER_THREAD));
    OK(cuMemsetD32Async(there, 6, MIB / 4, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    end_context(DESTROYED, context);
    probe("copy_of_pool_memory_without_a_context", "%s",
          result_name(cuMemcpyDtoH(&word, there, 4)));
    OK(cuMemFree(there));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(there));
}

/* What is shared stays shared, and what another process holds stays with it. */
Test(outlives, another_process_that_has_it_open)
{
    struct peer *peer;
    CUipcMemHandle handle;
    CUdeviceptr ptr = 0, opened = 0;
    uint32_t other = 1;

    if (!under_shim_with_events())
        cr_skip_test("natively memory of a pool has no handle");
    peer = peer_start(-1);
    context_create(device);
    OK(cuMemAllocAsync(&ptr, 4 * MIB, CU_STREAM_PER_THREAD));
    OK(cuMemsetD32Async(ptr, 5, MIB, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    OK(cuIpcGetMemHandle(&handle, ptr));
    end_context(DESTROYED, context);
    OK(peer_open(peer, &handle, &opened));
    OK(peer_count_other(peer, opened, 5, MIB, &other));
    cr_assert_eq(other, 0);
    OK(cuMemFree(ptr));
    for (int i = 0; i < 8; i++) {
        CUdeviceptr fresh = 0;

        OK(cuMemAlloc(&fresh, 4 * MIB));
        OK(fill_now(fresh, 6, MIB));
        OK(cuMemFree(fresh));
    }
    OK(peer_count_other(peer, opened, 5, MIB, &other));
    cr_assert_eq(other, 0, "reused under its reader");
    OK(peer_close(peer, opened));
    peer_quit(peer);
}
