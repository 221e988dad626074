/*
 * Allocations of the software driver: what calls return, attributes, limit, pools, peers.
 */
#include "softdriver.h"

#include <stdlib.h>

/* cuCtxAttach and cuCtxDetach still have to work. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

TestSuite(softdriver_memory, .init = sd_start, .timeout = 60);

Test(softdriver_memory, calls_return_what_the_real_ones_do)
{
    CUdeviceptr ptr, async, pitched, base;
    CUipcMemHandle handle;
    size_t pitch, size, before, after, total;

    GIVES(cuMemAlloc(&ptr, 0), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemAlloc(&ptr, (size_t)1 << 50), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree(0));
    OK(cuMemAlloc(&ptr, 1024));
    GIVES(cuMemFree(ptr + 512), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD8(ptr, 0, 1025), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcGetMemHandle(&handle, ptr + 8));
    GIVES(cuIpcOpenMemHandle(&base, handle, 1), CUDA_ERROR_INVALID_CONTEXT);
    GIVES(cuIpcGetMemHandle(&handle, 4096), CUDA_ERROR_INVALID_VALUE);
    memset(&handle, 0x5A, sizeof handle);
    GIVES(cuIpcOpenMemHandle(&base, handle, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuIpcCloseMemHandle(ptr), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(ptr));
    GIVES(cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD8(ptr, 0, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyDtoH(&total, ptr, 8), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemGetAddressRange(&base, &size, ptr), CUDA_ERROR_NOT_FOUND);
    OK(cuMemAllocAsync(&async, 512, NULL));
    GIVES(cuIpcGetMemHandle(&handle, async), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(async));
    OK(cuMemAlloc(&ptr, 512));
    OK(cuMemFreeAsync(ptr, NULL));
    OK(cuMemAllocPitch(&pitched, &pitch, 1000, 10, 4));
    cr_assert_eq(pitch, 1024);
    OK(cuMemGetAddressRange(NULL, &size, pitched + 5000));
    cr_assert_eq(size, 10240);
    OK(cuMemGetInfo(&before, &total));
    OK(cuMemAlloc(&ptr, 64 * MIB));
    OK(cuMemGetInfo(&after, &total));
    cr_assert_eq(before - after, 64 * MIB);
}

Test(softdriver_memory, small_blocks_lie_side_by_side)
{
    CUdeviceptr a, b, large;

    OK(cuMemAlloc(&a, 512));
    OK(cuMemAlloc(&b, 512));
    cr_assert_eq(b - a, 512);
    GIVES(cuMemsetD8(a, 0, 513), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&large, MIB));
    cr_assert_eq(large % (2 * MIB), 0);
}

static uint64_t attribute(CUdeviceptr ptr, CUpointer_attribute which)
{
    uint64_t value = 0;

    OK(cuPointerGetAttribute(&value, which, ptr));
    return value;
}

Test(softdriver_memory, attributes_tell_the_kinds_apart)
{
    CUpointer_attribute several[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    uint64_t context = 9, sync = 9, size = 9;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    CUdeviceptr plain, async, vmm;
    unsigned on = 1;

    OK(cuMemAlloc(&plain, 512));
    OK(cuMemAllocAsync(&async, 512, NULL));
    vmm = sd_map_new(4 * MIB, &handle);
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    cr_assert_eq(attribute(plain + 5, CU_POINTER_ATTRIBUTE_CONTEXT), (uint64_t)sd_ctx);
    cr_assert_eq(attribute(async, CU_POINTER_ATTRIBUTE_CONTEXT), 0);
    cr_assert_eq(attribute(vmm, CU_POINTER_ATTRIBUTE_CONTEXT), 0);
    cr_assert_eq(attribute(plain, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 1);
    cr_assert_eq(attribute(vmm, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE), 0);
    cr_assert_eq(attribute(async, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), (uint64_t)pool);
    cr_assert_eq(attribute(plain, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE), 0);
    cr_assert_eq(attribute(vmm + 9, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR), vmm);
    cr_assert_eq(attribute(vmm + 9, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 4 * MIB);
    cr_assert_eq(attribute(vmm, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES), 1);
    cr_assert_neq(attribute(plain, CU_POINTER_ATTRIBUTE_BUFFER_ID),
                  attribute(async, CU_POINTER_ATTRIBUTE_BUFFER_ID));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, plain));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, async));
    GIVES(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, vmm),
          CUDA_ERROR_NOT_SUPPORTED);
    OK(cuPointerGetAttributes(3, several, (void *[]){&context, &sync, &size}, vmm));
    cr_assert_eq(context, 0);
    cr_assert_eq((unsigned)sync, 0, "an item that fails is zero");
    cr_assert_eq(size, 4 * MIB);
    GIVES(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, 4096),
          CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemRetainAllocationHandle(&handle, (void *)plain), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemRetainAllocationHandle(&handle, (void *)async), CUDA_ERROR_INVALID_VALUE);
}

Test(softdriver_memory, the_limit_counts_what_is_held_in_any_way)
{
    CUmemAllocationProp prop = sd_prop(0);
    CUmemGenericAllocationHandle handle, over;
    CUdeviceptr ptr;
    size_t free_bytes, total;

    OK(cuMemGetInfo(&free_bytes, &total));
    GIVES(cuMemCreate(&over, total + 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    ptr = sd_map_new(free_bytes, &handle);
    GIVES(cuMemAlloc(&(CUdeviceptr){0}, 512), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemRelease(handle));
    GIVES(cuMemCreate(&over, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemRetainAllocationHandle(&handle, (void *)ptr));
    OK(cuMemUnmap(ptr, free_bytes));
    GIVES(cuMemCreate(&over, 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemRelease(handle));
    GIVES(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&over, 2 * MIB, &prop, 0));
}

Test(softdriver_memory, a_stream_gets_its_freed_block_back_at_once_and_others_later)
{
    CUstream a = sd_stream_new(CU_STREAM_NON_BLOCKING), b = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr first, again, other;

    OK(cuMemAllocAsync(&first, 4096, a));
    softcuda_hold(1);
    OK(sd_spin(a, 1));
    OK(cuMemFreeAsync(first, a));
    OK(cuMemAllocAsync(&other, 4096, b));
    cr_assert_neq(other, first, "another stream got memory that work may still use");
    OK(cuMemAllocAsync(&again, 4096, a));
    cr_assert_eq(again, first);
    OK(cuMemFreeAsync(again, a));
    softcuda_hold(0);
    OK(cuStreamSynchronize(a));
    OK(cuMemAllocAsync(&again, 4096, b));
    cr_assert_eq(again, first);
}

Test(softdriver_memory, a_pool_keeps_up_to_its_threshold)
{
    CUmemoryPool pool;
    CUdeviceptr ptr;
    cuuint64_t value = 0;

    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&ptr, 4 * MIB, NULL));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    cr_assert_eq(value, 4 * MIB);
    OK(cuMemFreeAsync(ptr, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    cr_assert_eq(value, 0, "the threshold is 0: a synchronisation empties the pool");
    value = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
    OK(cuMemAllocAsync(&ptr, 4 * MIB, NULL));
    OK(cuMemFreeAsync(ptr, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    cr_assert_eq(value, 4 * MIB);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    cr_assert_eq(value, 0);
}

Test(softdriver_memory, a_destroyed_pool_lives_on_in_its_blocks)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    struct softcuda_census census;
    CUmemoryPool pool;
    CUdeviceptr ptr;

    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&ptr, 4096, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    GIVES(cuMemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemsetD32(ptr, 7, 1024));
    OK(cuCtxSynchronize());
    OK(cuMemFreeAsync(ptr, NULL));
    softcuda_census(&census);
    cr_assert_eq(census.device_bytes, 0);
}

Test(softdriver_memory, devices_reach_each_others_memory_as_measured)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr plain, vmm, own;
    CUcontext second;
    uint32_t word;

    OK(cuMemAlloc(&plain, 4096));
    vmm = sd_map_new(2 * MIB, &handle);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&own, 4096));
    OK(cuMemcpyDtoD(own, plain, 4096));
    GIVES(cuMemcpyDtoD(own, vmm, 4096), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemcpyPeer(own, second, plain, sd_ctx, 4096));
    OK(cuMemcpyPeer(own, second, vmm, sd_ctx, 4096));
    OK(cuMemcpyDtoH(&word, plain, 4));
    GIVES(cuMemcpyDtoH(&word, vmm, 4), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD8(plain, 0, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(sd_ctx, 0));
    GIVES(cuCtxEnablePeerAccess(sd_ctx, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(cuMemsetD8(plain, 0, 1));
    GIVES(cuMemcpyDtoD(own, vmm, 4096), CUDA_ERROR_INVALID_VALUE);
    OK(sd_access(vmm, 2 * MIB, 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemcpyDtoD(own, vmm, 4096));
    OK(cuCtxDisablePeerAccess(sd_ctx));
    GIVES(cuCtxDisablePeerAccess(sd_ctx), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

/* Measured on two H200s. */
Test(softdriver_memory, peer_access_is_of_one_context_to_another)
{
    CUcontext near, second, far;
    CUdeviceptr ptr, others;

    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&ptr, 4096));
    OK(cuCtxCreate_v4(&far, NULL, 0, 1));
    OK(cuMemAlloc(&others, 4096));
    OK(cuCtxCreate_v4(&near, NULL, 0, 0));
    OK(cuCtxSetCurrent(sd_ctx));
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(cuMemsetD8(ptr, 0, 1));
    GIVES(cuMemsetD8(others, 0, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(far, 0));
    OK(cuMemsetD8(others, 0, 1));
    OK(cuCtxSetCurrent(near));
    GIVES(cuMemsetD8(ptr, 0, 1), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuCtxDisablePeerAccess(second), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(cuMemsetD8(ptr, 0, 1));
    OK(cuCtxDisablePeerAccess(second));
    OK(cuCtxSetCurrent(sd_ctx));
    OK(cuMemsetD8(ptr, 0, 1));
    OK(cuCtxSynchronize()); /* a reset waits for the work of its own context alone */
    OK(cuDevicePrimaryCtxReset(1)); /* what was enabled to it has gone with it */
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&ptr, 4096));
    OK(cuCtxSetCurrent(sd_ctx));
    GIVES(cuMemsetD8(ptr, 0, 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(cuMemsetD8(ptr, 0, 1));
    OK(cuMemsetD8(others, 0, 1));
}

Test(softdriver_memory, pageable_memory_is_read_at_the_call_and_pinned_memory_later)
{
    uint32_t pageable = 1, *pinned;
    CUstream stream = sd_stream_new(CU_STREAM_NON_BLOCKING);
    CUdeviceptr a, b;

    OK(cuMemAlloc(&a, 4));
    OK(cuMemAlloc(&b, 4));
    OK(cuMemAllocHost((void **)&pinned, sizeof *pinned));
    *pinned = 1;
    softcuda_hold(1);
    OK(cuMemcpyHtoDAsync(a, &pageable, 4, stream));
    OK(cuMemcpyHtoDAsync(b, pinned, 4, stream));
    pageable = *pinned = 2;
    softcuda_hold(0);
    cr_assert_eq(sd_word(a, stream), 1);
    cr_assert_eq(sd_word(b, stream), 2);
    OK(cuMemFreeHost(pinned));
    GIVES(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
}

/* Nothing of the program's own is ever where device memory was: such an address is refused, and no
 * byte of the host's is read or written. */
Test(softdriver_memory, memory_that_was_freed_is_no_host_memory)
{
    CUdeviceptr dead, live;
    char bytes[64] = "";

    OK(cuMemAlloc(&dead, 4 * MIB));
    OK(cuMemAlloc(&live, 4096));
    OK(cuMemFree(dead));
    GIVES(cuMemcpy(dead, live, 64), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpy(live, dead, 64), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyAsync(dead, (CUdeviceptr)bytes, 64, NULL), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyHtoD(live, (void *)dead, 64), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyDtoH((void *)dead, live, 64), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemHostRegister((void *)dead, 4096, 0), CUDA_ERROR_INVALID_VALUE);
    for (int i = 0; i < 64; i++) {
        void *own = malloc(2 * MIB);
        OK(cuMemcpyHtoD(live, own, 64));
        GIVES(cuMemcpy(dead, live, 64), CUDA_ERROR_INVALID_VALUE);
    }
    OK(cuCtxSynchronize());
}

Test(softdriver_memory, every_byte_of_an_odd_copy_arrives)
{
    unsigned char in[1000], out[1000] = {0};
    CUdeviceptr a, b;

    for (size_t i = 0; i < sizeof in; i++)
        in[i] = i * 7;
    OK(cuMemAlloc(&a, 2048));
    OK(cuMemAlloc(&b, 2048));
    OK(cuMemcpyHtoD(a + 3, in, sizeof in));
    OK(cuMemcpyDtoD(b + 8, a + 3, sizeof in));
    OK(cuMemcpyDtoH(out, b + 8, sizeof out));
    cr_assert_arr_eq(in, out, sizeof in);
}

Test(softdriver_memory, rows_at_a_pitch_are_copied_and_filled_and_nothing_between_them)
{
    unsigned char in[4 * 10], out[4 * 16];
    CUDA_MEMCPY2D to = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = 10,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstPitch = 16,
                        .dstXInBytes = 2,
                        .WidthInBytes = 10,
                        .Height = 4};
    CUdeviceptr ptr;

    memset(in, 7, sizeof in);
    OK(cuMemAlloc(&ptr, sizeof out));
    OK(cuMemsetD2D8(ptr, 16, 1, 16, 4));
    to.dstDevice = ptr;
    OK(cuMemcpy2D(&to));
    OK(cuMemcpyDtoH(out, ptr, sizeof out));
    for (int i = 0; i < 4 * 16; i++)
        cr_assert_eq(out[i], i % 16 >= 2 && i % 16 < 12 ? 7 : 1, "byte %d", i);
    to.dstXInBytes = 7; /* the last row would end one byte behind the block */
    GIVES(cuMemcpy2D(&to), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemsetD2D32(ptr, 16, 0, 4, 5), CUDA_ERROR_INVALID_VALUE);
}

Test(softdriver_memory, memory_of_a_destroyed_context_is_gone)
{
    struct softcuda_census before, after;
    CUdeviceptr small, large;
    CUcontext context, attached;

    softcuda_census(&before);
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&context, NULL, 0, 0));
#else
    OK(cuCtxCreate(&context, 0, 0));
#endif
    OK(cuCtxAttach(&attached, 0));
    cr_assert_eq(attached, context);
    OK(cuMemAlloc(&small, 512));
    OK(cuMemAlloc(&large, 4 * MIB));
    OK(cuCtxDetach(context));
    OK(cuMemsetD8(small, 0, 1));
    OK(cuCtxDetach(context));
    GIVES(cuMemFree(small), CUDA_ERROR_INVALID_VALUE);
    softcuda_census(&after);
    cr_assert_eq(before.device_bytes, after.device_bytes);
    cr_assert_eq(before.contexts, after.contexts);
}

/* Of host memory that was registered for reading no call may change a byte. */
Test(softdriver_memory, what_is_registered_for_reading_is_not_written)
{
    CUdeviceptr block;
    char *own = aligned_alloc(4096, 4096);

    OK(cuMemAlloc(&block, 4096));
    memset(own, 7, 4096);
    OK(cuMemHostRegister(own, 4096, CU_MEMHOSTREGISTER_READ_ONLY));
    OK(cuMemcpyDtoD(block, (CUdeviceptr)own, 4096));
    GIVES(cuMemsetD8((CUdeviceptr)own, 1, 4096), CUDA_ERROR_INVALID_VALUE);
    GIVES(cuMemcpyDtoD((CUdeviceptr)own, block, 4096), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostUnregister(own));
    OK(cuMemFree(block));
    free(own);
}
