/* CUDA IPC between two processes: contents, addresses, counts and errors. Lifetimes: lifetime.c. */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(ipc, .init = conform_start, .timeout = 60);

#define HERE  0x11111111u
#define THERE 0x22222222u

static const size_t sizes[] = {512, 64 * KIB, MIB, 2 * MIB, 10 * MIB};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void share_both_ways(struct peer *peer, enum memory_kind kind, size_t size)
{
    CUdeviceptr ptr = 0, opened = 0;

    OK(memory_alloc(kind, &ptr, size));
    OK(fill_now(ptr, HERE, size / 4));
    opened = peer_opens(peer, ptr);
    cr_assert_eq(peer_other(peer, opened, HERE, size / 4), 0, "the importer reads something else");
    OK(peer_fill(peer, opened, THERE, size / 4));
    cr_assert_eq(words_other(ptr, THERE, size / 4), 0, "the importer's writes are not seen");
    OK(fill_now(ptr, HERE + 1, size / 4));
    cr_assert_eq(peer_other(peer, opened, HERE + 1, size / 4), 0, "later writes are not seen");
    OK(peer_close(peer, opened));
    cr_assert_eq(words_other(ptr, HERE + 1, size / 4), 0, "closing changed the memory");
    OK(memory_free(kind, ptr));
    OK(cuCtxSynchronize());
}

Test(ipc, contents_are_shared_both_ways)
{
    struct peer *peer = peer_start(-1);

    for (size_t i = 0; i < SIZES; i++) {
        share_both_ways(peer, MEMORY_PLAIN, sizes[i]);
        if (sizes[i] >= 64 * KIB)
            share_both_ways(peer, MEMORY_PITCH, sizes[i]);
    }
    peer_quit(peer);
}

Test(ipc, async_memory_is_shared_under_the_shim_only)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0;
    CUipcMemHandle handle;

    for (size_t i = 0; i < SIZES; i++) {
        if (under_shim_with_events()) {
            share_both_ways(peer, MEMORY_ASYNC, sizes[i]);
            continue;
        }
        OK(cuMemAllocAsync(&ptr, sizes[i], CU_STREAM_LEGACY));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, ptr));
        OK(cuMemFreeAsync(ptr, CU_STREAM_LEGACY));
    }
    peer_quit(peer);
}

Test(ipc, neighbours_keep_their_own_words)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr[5], opened = 0;

    for (uint32_t i = 0; i < 5; i++) {
        OK(cuMemAlloc(&ptr[i], 512));
        OK(fill_now(ptr[i], i, 128));
    }
    opened = peer_opens(peer, ptr[2]);
    cr_assert_eq(peer_other(peer, opened, 2, 128), 0);
    OK(peer_fill(peer, opened, 77, 128));
    for (uint32_t i = 0; i < 5; i++)
        cr_assert_eq(words_other(ptr[i], i == 2 ? 77 : i, 128), 0, "block %u", i);
    peer_quit(peer);
}

Test(ipc, an_interior_pointer_gives_the_whole_block)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, opened = 0, whole = 0;
    CUipcMemHandle inner, outer;

    for (size_t i = 0; i < SIZES; i++) {
        size_t words = sizes[i] / 4;

        OK(cuMemAlloc(&ptr, sizes[i]));
        OK(fill_now(ptr, HERE, words / 2));
        OK(fill_now(ptr + words / 2 * 4, THERE, words / 2));
        OK(cuIpcGetMemHandle(&outer, ptr));
        OK(cuIpcGetMemHandle(&inner, ptr + sizes[i] / 2));
        probe("ipc_interior_handle_equals_base_handle", "%d",
              memcmp(&inner, &outer, sizeof inner) == 0);
        OK(peer_open(peer, &inner, &opened));
        cr_assert_eq(peer_other(peer, opened, HERE, words / 2), 0);
        cr_assert_eq(peer_other(peer, opened + words / 2 * 4, THERE, words / 2), 0);
        OK(peer_open(peer, &outer, &whole));
        cr_assert_eq(whole, opened);
        OK(peer_close(peer, opened));
        OK(peer_close(peer, opened));
        OK(cuMemFree(ptr));
    }
    peer_quit(peer);
}

Test(ipc, the_same_block_has_the_same_handle)
{
    CUdeviceptr ptr = allocated(4 * MIB), other = allocated(4 * MIB);
    CUipcMemHandle a, b;

    OK(cuIpcGetMemHandle(&a, ptr));
    OK(cuIpcGetMemHandle(&b, ptr));
    probe("ipc_handle_repeats", "%d", memcmp(&a, &b, sizeof a) == 0);
    if (under_shim())
        cr_assert_eq(memcmp(&a, &b, sizeof a), 0);
    OK(cuIpcGetMemHandle(&b, other));
    cr_assert_neq(memcmp(&a, &b, sizeof a), 0);
}

Test(ipc, opened_again_it_is_the_same_address_and_counts)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, first = 0, again = 0;
    CUipcMemHandle handle;

    ptr = filled(4 * MIB, HERE);
    OK(cuIpcGetMemHandle(&handle, ptr));
    OK(peer_open(peer, &handle, &first));
    for (int i = 0; i < 3; i++) {
        OK(peer_open(peer, &handle, &again));
        cr_assert_eq(again, first);
    }
    for (int i = 0; i < 3; i++) {
        OK(peer_close(peer, first));
        cr_assert_eq(peer_other(peer, first, HERE, MIB), 0, "closed too early");
    }
    OK(peer_close(peer, first));
    FAILS(peer_close(peer, first));
    /* The importer's context may be broken by now natively, so nothing but the open is tried. */
    OK(peer_open(peer, &handle, &again));
    cr_assert_eq(peer_other(peer, again, HERE, MIB), 0);
    peer_quit(peer);
}

Test(ipc, several_importers_at_once)
{
    struct peer *peer[3];
    CUdeviceptr ptr = allocated(MIB), opened[3];
    CUipcMemHandle handle;

    OK(cuIpcGetMemHandle(&handle, ptr));
    for (int i = 0; i < 3; i++) {
        peer[i] = peer_start(-1);
        OK(peer_open(peer[i], &handle, &opened[i]));
    }
    for (uint32_t i = 0; i < 3; i++) {
        OK(peer_fill(peer[i], opened[i], 100 + i, MIB / 4));
        for (int k = 0; k < 3; k++)
            cr_assert_eq(peer_other(peer[k], opened[k], 100 + i, MIB / 4), 0);
        cr_assert_eq(words_other(ptr, 100 + i, MIB / 4), 0);
    }
    OK(peer_close(peer[0], opened[0]));
    cr_assert_eq(peer_other(peer[1], opened[1], 102, MIB / 4), 0);
    for (int i = 0; i < 3; i++)
        peer_quit(peer[i]);
}

Test(ipc, both_processes_share_with_each_other)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr mine = allocated(3 * MIB), theirs = 0, mine_there = 0, theirs_here = 0;

    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 3 * MIB));
    mine_there = peer_opens(peer, mine);
    theirs_here = opened_from(peer, theirs);
    OK(fill_now(theirs_here, 5, 1000));
    cr_assert_eq(peer_other(peer, theirs, 5, 1000), 0);
    OK(peer_fill(peer, mine_there, 6, 1000));
    cr_assert_eq(words_other(mine, 6, 1000), 0);
    peer_quit(peer);
}

/* Copies reach what was opened from every context; fills and the range are the opening one's. */
Test(ipc, another_context_than_the_one_that_opened)
{
    const CUresult fills = under_shim() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE,
                   ranges = under_shim() ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
    static const size_t bytes[] = {3, 4 * MIB};
    struct peer *peer = peer_start(-1);
    CUcontext other = context_create(device);
    CUdeviceptr theirs = 0, opened = 0;
    unsigned char byte;
    CUstream stream;
    size_t size;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(context));
        OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, bytes[i]));
        opened = opened_from(peer, theirs);
        OK(cuMemsetD8(opened, 5, 3));
        OK(cuCtxSynchronize());
        OK(cuMemGetAddressRange(NULL, &size, opened));
        OK(cuCtxSetCurrent(other));
        CHECK(fills, cuMemsetD8(opened, 5, 3));
        CHECK(fills, cuMemsetD8Async(opened, 5, 3, stream));
        CHECK(fills, cuMemsetD2D8(opened, 2, 5, 1, 1));
        OK(cuStreamSynchronize(stream));
        CHECK(ranges, cuMemGetAddressRange(NULL, &size, opened));
        OK(cuMemcpyDtoH(&byte, opened + 2, 1));
        cr_assert_eq(byte, 5);
        OK(cuMemcpyHtoD(opened + 2, &byte, 1));
        OK(cuCtxSetCurrent(context));
        OK(cuIpcCloseMemHandle(opened));
        OK(peer_free(peer, MEMORY_PLAIN, theirs));
    }
    peer_quit(peer);
}

/* From its middle on, too; small blocks lie side by side there. */
Test(ipc, what_is_opened_ends_where_the_block_does)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr theirs = 0, opened = 0;
    unsigned char bytes[1000];

    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, sizeof bytes));
    opened = opened_from(peer, theirs);
    OK(cuMemcpyDtoH(bytes, opened + 600, 400));
    if (under_shim()) { /* natively there is all of the page */
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(bytes, opened + 600, 1000));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(opened + 600, 5, 1000));
    }
    peer_quit(peer);
}

/* The symbol without a version is the form of before CUDA 11. */
Test(ipc, both_forms_of_the_open)
{
    typedef CUresult (*open_fn)(CUdeviceptr *, CUipcMemHandle, unsigned int);
    static const int versions[] = {4010, 11000};
    struct peer *peer = peer_start(-1);
    CUdeviceptr theirs = 0, opened = 0;
    CUipcMemHandle handle;

    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 4 * MIB));
    OK(peer_fill(peer, theirs, THERE, MIB));
    OK(peer_share(peer, theirs, &handle));
    for (int i = 0; i < 2; i++) {
        open_fn open_handle = (open_fn)driver_lookup("cuIpcOpenMemHandle", versions[i], 0);

        cr_assert(open_handle, "version %d is missing", versions[i]);
        OK(open_handle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        cr_assert_eq(words_other(opened, THERE, MIB), 0);
        OK(cuIpcCloseMemHandle(opened));
    }
    peer_quit(peer);
}

/* What a program may ask about memory that it opened. */
Test(ipc, attributes_of_opened_memory)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr theirs = 0, opened = 0, base = 0;
    CUipcMemHandle handle;
    unsigned int type = 0;
    unsigned long long id = 0;
    size_t size = 0;
    CUcontext owner = NULL;
    int ordinal = -1;

    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 4 * MIB));
    opened = opened_from(peer, theirs);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, opened + 64));
    cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, opened));
    cr_assert_eq(ordinal, 0);
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, opened));
    cr_assert_neq(id, 0);
    OK(cuMemGetAddressRange(&base, &size, opened + 64));
    cr_assert_eq(base, opened);
    probe("opened_range", "size %zu", size);
    probe("opened_context", "%s",
          result_name(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, opened)));
    probe("opened_context_is_current", "%d", owner == context);
    probe("opened_shared_again", "%s", result_name(cuIpcGetMemHandle(&handle, opened)));
    probe("opened_freed", "%s", result_name(cuMemFree(opened)));
    peer_quit(peer);
}

/* ---- errors ---- */

Test(ipc, handles_of_no_block)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr = 0;

    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, NOWHERE));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, 0x1234));
    FAILS(cuIpcGetMemHandle(&handle, 0));
    OK(cuMemAlloc(&ptr, 4 * MIB));
    FAILS(cuIpcGetMemHandle(NULL, ptr));
    OK(cuMemFree(ptr));
    FAILS(cuIpcGetMemHandle(&handle, ptr));
    OK(cuMemAlloc(&ptr, 512));
    OK(cuMemFree(ptr));
    FAILS(cuIpcGetMemHandle(&handle, ptr));
    OK(cuMemAllocManaged(&ptr, 4096, CU_MEM_ATTACH_GLOBAL));
    FAILS(cuIpcGetMemHandle(&handle, ptr));
    probe("ipc_of_managed", "%s", result_name(cuIpcGetMemHandle(&handle, ptr)));
}

Test(ipc, junk_is_refused)
{
    static const int junk[] = {0xab, 0x00, 0xff};
    CUdeviceptr opened = 0;
    CUipcMemHandle handle;
    CUresult r;

    for (int i = 0; i < 3; i++) {
        memset(&handle, junk[i], sizeof handle);
        r = cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
        probe("ipc_junk", "%02x: %s", junk[i], result_name(r));
        FAILS(r);
        if (junk[i] == 0xab)
            CHECK(CUDA_ERROR_INVALID_VALUE, r);
    }
}

Test(ipc, the_exporter_itself_cannot_open)
{
    CUdeviceptr ptr = 0, opened = 0;
    CUipcMemHandle handle;

    for (size_t i = 0; i < SIZES; i++) {
        OK(cuMemAlloc(&ptr, sizes[i]));
        OK(cuIpcGetMemHandle(&handle, ptr));
        CHECK(CUDA_ERROR_INVALID_CONTEXT,
              cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        OK(cuMemFree(ptr));
    }
}

Test(ipc, only_opened_memory_can_be_closed)
{
    CUdeviceptr ptr = 0;

    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(NOWHERE));
    OK(cuMemAlloc(&ptr, 4096));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(ptr));
    OK(fill_now(ptr, 1, 1024));
    cr_assert_eq(words_other(ptr, 1, 1024), 0);
    OK(cuMemFree(ptr));
    probe("ipc_close_null", "%s", result_name(cuIpcCloseMemHandle(0)));
}

/* Natively a handle with a changed byte may open something else; the shim's handle carries a secret
 * over all that it says. */
Test(ipc, a_changed_token_is_refused)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, opened = 0;
    CUipcMemHandle handle, changed;
    CUresult r;

    if (!under_shim())
        cr_skip_test("natively handles have no secret");
    ptr = filled(4 * MIB, HERE);
    OK(cuIpcGetMemHandle(&handle, ptr));
    for (size_t i = 0; i < sizeof handle.reserved; i++) {
        changed = handle;
        changed.reserved[i] = (char)(changed.reserved[i] ^ 0x10);
        r = peer_open(peer, &changed, &opened);
        cr_expect_neq(r, CUDA_SUCCESS, "byte %zu does not matter", i);
    }
    OK(peer_open(peer, &handle, &opened));
    cr_assert_eq(peer_other(peer, opened, HERE, MIB), 0);
    peer_quit(peer);
}
