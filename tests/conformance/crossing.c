/*
 * A block is one allocation, whatever lies under it: in one piece of the driver's memory, across
 * the border of two, across many. Which it is no program can tell; what makes a library lay them so
 * is only how blocks come and go. Natively they are allocations as others.
 */
#include "crossing.h"
#include "peer.h"

TestSuite(crossing, .init = conform_start, .timeout = 120);

static void ask(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    OK(cuPointerGetAttribute(value, attribute, address));
}

/* Wherever in it one asks. */
static void is_one(CUdeviceptr block, size_t asked, size_t wanted)
{
    unsigned long long id, first_id;
    CUdeviceptr base, start;
    size_t size, length;
    int ordinal, type;

    ask(&first_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block);
    for (size_t at = 0; at < asked; at = next_place(at, asked)) {
        OK(cuMemGetAddressRange(&base, &size, block + at));
        cr_assert_eq(base, block);
        cr_assert_eq(size, wanted);
        ask(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, block + at);
        cr_assert_eq(id, first_id);
        ask(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + at);
        ask(&length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + at);
        cr_assert_eq(start, block);
        cr_assert_eq(length, wanted);
        ask(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block + at);
        cr_assert_eq(ordinal, 0);
        ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + at);
        cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
    }
}

Test(crossing, is_one_allocation_to_who_asks_about_it)
{
    CUdeviceptr block[SIZES];

    blocks_start(block);
    for (size_t i = 0; i < SIZES; i++)
        is_one(block[i], sizes[i], sizes[i]);
}

/* What the driver says of an address, but for where that is. */
static unsigned long long describe(CUpointer_attribute which, CUdeviceptr ptr, CUdeviceptr base,
                                   size_t size, CUresult *ret_result)
{
    unsigned long long data[4] = {0};

    *ret_result = cuPointerGetAttribute(data, which, ptr);
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return data[0] - ptr;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return under_shim() ? data[0] - base : 0; /* natively asked above */
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return under_shim() ? data[0] - size : 0;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return data[0] != 0;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: /* below */
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return 0;
    default:
        return data[0];
    }
}

/* By the call for several as by that for one. */
static void same_by_either_call(CUpointer_attribute which, CUdeviceptr ptr)
{
    unsigned long long one[4] = {0}, several[4] = {0};
    void *data = several;

    if (which != CU_POINTER_ATTRIBUTE_P2P_TOKENS &&
        cuPointerGetAttribute(one, which, ptr) == CUDA_SUCCESS) {
        OK(cuPointerGetAttributes(1, &which, &data, ptr));
        cr_assert_eq(one[0], several[0], "attribute %d: %llx by one call, %llx by the other",
                     (int)which, one[0], several[0]);
    }
}

#define ATTRIBUTES_END 22

/* One that has 2 MiB of the driver's at most is as any other one. */
static void attributes_are_those_of_any(enum memory_kind kind)
{
    CUdeviceptr block[SIZES], plain;

    blocks_start_of(kind, block);
    OK(memory_alloc(kind, &plain, 2 * MIB));
    OK(cuCtxSynchronize());
    for (int which = CU_POINTER_ATTRIBUTE_CONTEXT; which < ATTRIBUTES_END; which++) {
        CUresult plain_result, r;
        unsigned long long is, should = describe((CUpointer_attribute)which, plain + 64, plain,
                                                 2 * MIB, &plain_result);

        for (size_t i = 0; i < SIZES; i++)
            for (size_t at = 0; at < sizes[i]; at = next_place(at, sizes[i])) {
                is = describe((CUpointer_attribute)which, block[i] + at, block[i], sizes[i], &r);
                cr_assert(r == plain_result && is == should,
                          "attribute %d at %zu of %zu bytes: %s, %llx; of any block: %s, %llx",
                          which, at, sizes[i], result_name(r), is, result_name(plain_result),
                          should);
                same_by_either_call((CUpointer_attribute)which, block[i] + at);
            }
    }
    OK(memory_free(kind, plain));
    blocks_end_of(kind, block);
}

Test(crossing, has_every_attribute_as_any_block)
{
    attributes_are_those_of_any(MEMORY_PLAIN);
}

Test(crossing, has_every_attribute_as_any_block_of_the_pool)
{
    attributes_are_those_of_any(MEMORY_ASYNC);
}

/* The mapping that it lies in is no smaller. */
Test(crossing, lies_in_one_mapping)
{
    CUdeviceptr block[SIZES], start;
    size_t length;

    blocks_start(block);
    for (size_t i = 0; i < SIZES; i++)
        for (size_t at = 0; at < sizes[i]; at = next_place(at, sizes[i])) {
            ask(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, block[i] + at);
            ask(&length, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, block[i] + at);
            cr_assert_leq(start, block[i]);
            cr_assert_geq(start + length, block[i] + sizes[i]);
        }
}

Test(crossing, copies_fills_and_kernels_pass_every_border)
{
    CUdeviceptr block[SIZES], copy;

    blocks_start(block);
    OK(cuMemAlloc(&copy, sizes[SIZES - 1]));
    for (size_t i = 0; i < SIZES; i++) {
        size_t words = sizes[i] / 4;

        OK(fill_now(block[i], SEED + (unsigned)i, words));
        cr_assert_eq(words_other(block[i], SEED + (unsigned)i, words), 0);
        OK(cuMemcpyDtoD(copy, block[i], sizes[i]));
        cr_assert_eq(words_other(copy, SEED + (unsigned)i, words), 0);
        OK(cuMemsetD32(block[i], 7, words));
        cr_assert_eq(words_other(block[i], 7, words), 0);
        OK(cuMemcpyDtoD(block[i], copy, sizes[i]));
        cr_assert_eq(words_other(block[i], SEED + (unsigned)i, words), 0);
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(block[i], 0, sizes[i] + 1));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(copy, block[i] + 512, sizes[i]));
    }
    for (size_t i = 0; i < SIZES; i++) /* no neighbour was written */
        cr_assert_eq(words_other(block[i], SEED + (unsigned)i, sizes[i] / 4), 0);
}

Test(crossing, is_shared_as_one)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr block[SIZES], opened[SIZES];

    blocks_start(block);
    for (size_t i = 0; i < SIZES; i++) {
        OK(fill_now(block[i], SEED + (unsigned)i, sizes[i] / 4));
        opened[i] = peer_opens(peer, block[i] + sizes[i] / 2);
    }
    for (size_t i = 0; i < SIZES; i++) {
        cr_assert_eq(peer_other(peer, opened[i], SEED + (unsigned)i, sizes[i] / 4), 0);
        OK(peer_fill(peer, opened[i], (unsigned)i, sizes[i] / 4));
        cr_assert_eq(words_other(block[i], (unsigned)i, sizes[i] / 4), 0);
    }
    for (size_t i = 0; i < SIZES; i++)
        OK(peer_close(peer, opened[i]));
    for (size_t i = 0; i < SIZES; i++)
        cr_assert_eq(words_other(block[i], (unsigned)i, sizes[i] / 4), 0);
    peer_quit(peer);
}

/* It is one allocation where it is opened as well. */
Test(crossing, is_one_allocation_to_who_opened_it)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr first[4], theirs, opened;
    size_t size;

    for (int i = 0; i < 4; i++)
        OK(peer_alloc(peer, MEMORY_PLAIN, &first[i], STEP));
    for (int i = 0; i < 4; i++)
        OK(peer_free(peer, MEMORY_PLAIN, first[i]));
    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, LARGEST));
    OK(peer_fill(peer, theirs, SEED, LARGEST / 4));
    opened = opened_from(peer, theirs);
    OK(cuMemGetAddressRange(NULL, &size, opened));
    cr_assert_geq(size, LARGEST);
    is_one(opened, LARGEST, size);
    cr_assert_eq(words_other(opened, SEED, LARGEST / 4), 0);
    OK(fill_now(opened, 1, LARGEST / 4));
    OK(cuMemsetD32(opened, 2, LARGEST / 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(opened, 2, LARGEST / 4), 0);
    peer_quit(peer);
}

/* What a peer has open is not handed out again, however much lies beside it. */
Test(crossing, stays_its_importers_until_that_is_closed)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr block[SIZES], opened, next[4];
    const size_t last = SIZES - 1;

    blocks_start(block);
    OK(fill_now(block[last], SEED, sizes[last] / 4));
    opened = peer_opens(peer, block[last]);
    blocks_end(block);
    for (int i = 0; i < 4; i++) {
        OK(cuMemAlloc(&next[i], STEP));
        OK(fill_now(next[i], 0, STEP / 4));
    }
    cr_assert_eq(peer_other(peer, opened, SEED, sizes[last] / 4), 0);
    OK(peer_close(peer, opened));
    for (int i = 0; i < 4; i++)
        OK(cuMemFree(next[i]));
    peer_quit(peer);
}

Test(crossing, is_no_memory_of_the_programs_own)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr block[SIZES];

    blocks_start(block);
    for (size_t i = 0; i < SIZES; i++)
        for (size_t at = 0; at < sizes[i]; at = next_place(at, sizes[i]))
            CHECK(CUDA_ERROR_INVALID_VALUE,
                  cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(block[i] + at)));
}

Test(crossing, is_exported_as_one_dma_buf)
{
    CUdeviceptr block[SIZES];
    int fd, supported = 0;

    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device));
    if (!supported)
        cr_skip_test("no dma-buf");
    blocks_start(block);
    for (size_t i = 0; i < SIZES; i++) {
        fd = -1;
        OK(cuMemGetHandleForAddressRange(&fd, block[i], sizes[i] & ~(64 * KIB - 1),
                                         CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
        close(fd);
        for (CUdeviceptr at = next_border(block[i], sizes[i], 0); at;
             at = next_border(block[i], sizes[i], at)) {
            OK(cuMemGetHandleForAddressRange(&fd, at - 4096, 8192,
                                             CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
            cr_assert_geq(lseek(fd, 0, SEEK_END), 8192);
            close(fd);
            CHECK(CUDA_ERROR_INVALID_VALUE,
                  cuMemGetHandleForAddressRange(&fd, at - 512, 4096,
                                                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
        }
        if (under_shim()) /* the driver gives what lies beside it as well */
            CHECK(CUDA_ERROR_INVALID_VALUE,
                  cuMemGetHandleForAddressRange(&fd, block[i],
                                                (sizes[i] & ~(64 * KIB - 1)) + 64 * KIB,
                                                CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    }
}

Test(crossing, copies_and_fills_can_be_made_synchronous)
{
    CUdeviceptr block[SIZES];
    int on = 1, is = 0;

    blocks_start(block);
    for (size_t i = 0; i < SIZES; i++) {
        OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block[i]));
        OK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block[i] + sizes[i] - 1));
        cr_assert_eq(is, 1);
    }
}

/* Memory that the program maps itself: of handles side by side one dma-buf is made, up to where
 * nothing is mapped (measured on an H100). */
Test(crossing, one_dma_buf_is_of_handles_side_by_side)
{
    const CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    const CUmemRangeHandleType type = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    int fd = -1, supported = 0;

    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device));
    if (!supported)
        cr_skip_test("no dma-buf");
    OK(cuMemAddressReserve(&base, 6 * MIB, 0, 0, 0));
    for (size_t i = 0; i < 2; i++) {
        OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
        OK(cuMemMap(base + i * 2 * MIB, 2 * MIB, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    access_set(base, 4 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemGetHandleForAddressRange(&fd, base + MIB, 2 * MIB, type, 0));
    close(fd);
    CHECK(CUDA_ERROR_INVALID_VALUE,
          cuMemGetHandleForAddressRange(&fd, base + MIB, 4 * MIB, type, 0));
}
