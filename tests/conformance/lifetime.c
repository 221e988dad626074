/*
 * Who owns shared memory when one side frees it, leaves or is killed. What an importer reads stays
 * what was there; what nobody holds any more comes back.
 */
#include "peer.h"

#include <criterion/criterion.h>

TestSuite(lifetime, .init = conform_start, .timeout = 60);

#define HERE  0x33333333u
#define THERE 0x44444444u

#define COMES_BACK_MS 25000 /* soon; but the machine may be busy */

/* Waits until free memory is at least `bytes`; 0 where it came, else what is missing. */
static size_t wait_for_free(size_t bytes, unsigned int ms)
{
    uint64_t end = now_ns() + ms * MILLISECOND;
    size_t seen;

    while ((seen = memory_free_bytes()) < bytes && now_ns() < end)
        sleep_ms(20);
    return seen < bytes ? bytes - seen : 0;
}

static void exporter_frees(struct peer *peer, enum memory_kind kind, size_t size)
{
    CUdeviceptr ptr = 0, opened = 0, again[6];

    OK(memory_alloc(kind, &ptr, size));
    OK(fill_now(ptr, HERE, size / 4));
    opened = peer_opens(peer, ptr);
    OK(memory_free(kind, ptr));
    cr_assert_eq(peer_other(peer, opened, HERE, size / 4), 0, "%zu bytes changed by the free",
                 size);
    /* New owners: none may be given what the peer still reads and writes. */
    for (int i = 0; i < 6; i++) {
        OK(memory_alloc(i % 2 ? kind : MEMORY_PLAIN, &again[i], size));
        OK(fill_now(again[i], 0xbadu + (uint32_t)i, size / 4));
    }
    cr_assert_eq(peer_other(peer, opened, HERE, size / 4), 0, "%zu bytes: a new owner's words",
                 size);
    OK(peer_fill(peer, opened, THERE, size / 4));
    for (int i = 0; i < 6; i++) {
        cr_assert_eq(words_other(again[i], 0xbadu + (uint32_t)i, size / 4), 0,
                     "%zu bytes: the importer writes into a new owner's block", size);
        OK(memory_free(i % 2 ? kind : MEMORY_PLAIN, again[i]));
    }
    OK(peer_close(peer, opened));
    OK(cuCtxSynchronize());
}

/* Large memory natively too: the importer's mapping keeps it. */
Test(lifetime, large_memory_outlives_the_exporters_free)
{
    struct peer *peer = peer_start(-1);

    exporter_frees(peer, MEMORY_PLAIN, 4 * MIB);
    exporter_frees(peer, MEMORY_PLAIN, 2 * MIB);
    exporter_frees(peer, MEMORY_PITCH, 8 * MIB);
    peer_quit(peer);
}

Test(lifetime, small_and_async_memory_outlives_the_exporters_free_under_the_shim)
{
    struct peer *peer;

    if (!under_shim())
        cr_skip_test("natively a freed small block is given to the next owner");
    peer = peer_start(-1);
    exporter_frees(peer, MEMORY_PLAIN, 512);
    exporter_frees(peer, MEMORY_PLAIN, 64 * KIB);
    if (under_shim_with_events()) {
        exporter_frees(peer, MEMORY_ASYNC, 512);
        exporter_frees(peer, MEMORY_ASYNC, 3 * MIB);
    }
    peer_quit(peer);
}

/* What the shim is for: natively the next owner's words turn up at the importer. */
Test(lifetime, a_freed_small_block_natively_goes_to_the_next_owner)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, opened = 0, neighbour = 0;
    uint32_t foreign;

    OK(cuMemAlloc(&neighbour,
                  4096)); /* keeps the driver from giving back what small blocks share */
    ptr = filled(4096, HERE);
    opened = peer_opens(peer, ptr);
    OK(cuMemFree(ptr));
    filled(4096, 0xbad); /* the next owner */
    foreign = peer_other(peer, opened, HERE, 1024);
    probe("foreign_words_at_the_importer", "%u", foreign);
    if (under_shim())
        cr_assert_eq(foreign, 0);
    peer_quit(peer);
}

static void exporter_leaves(bool killed, size_t size)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr theirs = 0, opened = 0;

    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, size));
    OK(peer_fill(peer, theirs, THERE, size / 4));
    opened = opened_from(peer, theirs);
    cr_assert_eq(words_other(opened, THERE, size / 4), 0);
    if (killed)
        peer_kill(peer);
    else
        peer_quit(peer);
    cr_assert_eq(words_other(opened, THERE, size / 4), 0, "%zu bytes", size);
    OK(fill_now(opened, HERE, size / 4));
    cr_assert_eq(words_other(opened, HERE, size / 4), 0);
    OK(cuIpcCloseMemHandle(opened));
}

Test(lifetime, memory_outlives_the_exporters_exit)
{
    exporter_leaves(false, 4 * MIB);
    exporter_leaves(false, 4 * KIB);
}

Test(lifetime, memory_outlives_the_exporters_death)
{
    exporter_leaves(true, 4 * MIB);
    exporter_leaves(true, 4 * KIB);
}

static bool with_broker(void)
{
    const char *strategy = getenv("GPUSHIM_SHARE_STRATEGY");

    return under_shim() && strategy && strcmp(strategy, "broker") == 0;
}

Test(lifetime, a_dead_exporters_handle_is_refused)
{
    CUdeviceptr theirs = 0, opened = 0;
    CUipcMemHandle handle;
    struct peer *peer;

    if (with_broker())
        cr_skip_test("the broker may have it");
    peer = peer_start(-1);
    OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 4 * MIB));
    OK(peer_share(peer, theirs, &handle));
    peer_kill(peer);
    FAILS(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

/* It gets the memory some time after its handle was made, sooner than it is killed at one try. */
Test(lifetime, a_dead_exporters_handle_opens_with_a_broker)
{
    CUresult result = CUDA_ERROR_UNKNOWN;
    CUdeviceptr theirs = 0, opened = 0;
    CUipcMemHandle handle;

    if (!with_broker())
        cr_skip_test("no broker");
    for (unsigned ms = 1; result != CUDA_SUCCESS && ms <= 10000; ms *= 10) {
        struct peer *peer = peer_start(-1);

        OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, 4 * MIB));
        OK(peer_fill(peer, theirs, THERE, MIB));
        OK(peer_share(peer, theirs, &handle));
        usleep(ms * 1000);
        peer_kill(peer);
        result = cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    }
    OK(result);
    cr_assert_eq(words_other(opened, THERE, MIB), 0);
}

/* A freed block that an importer held comes back when the importer is gone, however it went. */
static void importer_leaves(bool killed, bool busy)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, opened = 0, warm = allocated(MIB);
    size_t before, missing;

    OK(fill_now(warm, 1, 16));
    OK(peer_alloc(peer, MEMORY_PLAIN, &opened, MIB)); /* the peer's context is up */
    OK(peer_fill(peer, opened, 1, 16));
    OK(peer_free(peer, MEMORY_PLAIN, opened));
    OK(cuMemAlloc(&ptr, 128 * MIB));
    opened = peer_opens(peer, ptr);
    before = memory_free_bytes();
    if (busy)
        OK(peer_spin_fill(peer, opened, THERE, MIB, 50 * MILLISECOND));
    OK(cuMemFree(ptr));
    OK(cuCtxSynchronize());
    probe("freed_memory_an_importer_holds_counts_as_free", "%d",
          memory_free_bytes() >= before + 126 * MIB);
    if (under_shim())
        cr_assert_lt(memory_free_bytes(), before + 126 * MIB, "free while a peer holds it");
    if (killed)
        peer_kill(peer);
    else
        peer_quit(peer);
    missing = wait_for_free(before + 126 * MIB, COMES_BACK_MS);
    cr_assert_eq(missing, 0, "%zu bytes did not come back", missing);
    OK(cuMemFree(warm));
}

Test(lifetime, memory_comes_back_when_the_importer_exits)
{
    importer_leaves(false, false);
}

Test(lifetime, memory_comes_back_when_the_importer_is_killed)
{
    importer_leaves(true, false);
    importer_leaves(true, true);
}

Test(lifetime, memory_comes_back_when_the_importer_closes)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = allocated(128 * MIB), opened = 0;
    size_t before, missing;

    opened = peer_opens(peer, ptr);
    before = memory_free_bytes();
    OK(cuMemFree(ptr));
    OK(peer_close(peer, opened));
    missing = wait_for_free(before + 126 * MIB, COMES_BACK_MS);
    cr_assert_eq(missing, 0, "%zu bytes did not come back", missing);
    peer_quit(peer);
}

/* A killed importer's kernel goes on for a moment: nobody may have the memory until it is over. */
Test(lifetime, a_killed_importers_kernel_never_writes_into_a_new_owner)
{
    CUdeviceptr ptr = 0, opened = 0;

    for (int round = 0; round < 3; round++) {
        size_t size = round == 0 ? 64 * KIB : 2 * MIB;
        struct peer *peer = peer_start(-1);

        if (!under_shim() && size < MIB) {
            peer_quit(peer);
            continue; /* natively a small block has its next owner at once */
        }
        OK(cuMemAlloc(&ptr, size));
        opened = peer_opens(peer, ptr);
        OK(peer_fill(peer, opened, 1, size / 4)); /* loads the kernels */
        OK(peer_spin_fill(peer, opened, THERE, size / 4, 30 * MILLISECOND));
        OK(cuMemFree(ptr));
        peer_kill(peer);
        next_owners(8, size, CU_STREAM_LEGACY, 120);
    }
}

/* Closing does not end the importer's kernels: what they still write must meet no new owner. */
Test(lifetime, a_kernel_behind_the_importers_close_never_writes_into_a_new_owner)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr = 0, opened = 0;

    for (int round = 0; round < 2; round++) {
        size_t size = round == 0 ? 2 * MIB : 64 * KIB;
        CUresult closed;

        if (!under_shim() && size < MIB)
            continue; /* natively a small block has its next owner at once */
        OK(cuMemAlloc(&ptr, size));
        opened = peer_opens(peer, ptr);
        OK(peer_fill(peer, opened, 1, size / 4)); /* loads the kernels */
        OK(peer_spin_fill(peer, opened, THERE, size / 4, 200 * MILLISECOND));
        OK(cuMemFree(ptr));
        closed = peer_close(peer, opened);
        probe("close_behind_a_kernel", "%s", result_name(closed));
        if (under_shim())
            CHECK(CUDA_SUCCESS, closed);
        next_owners(8, size, CU_STREAM_LEGACY, 300);
    }
    peer_quit(peer);
}

/* A copy in another context than the one that opened it: that context lives. */
Test(lifetime, a_close_is_behind_the_work_of_other_contexts)
{
    enum { WORDS = 1024 };
    struct peer *peer = peer_start(-1);
    CUcontext other = context_create(device);
    CUstream stream = new_stream();
    CUdeviceptr words = allocated(4 * WORDS), theirs = 0, opened = 0;

    OK(fill_now(words, HERE, WORDS)); /* loads the kernels */
    for (int i = 0; i < 4; i++) {
        size_t size = i % 2 == 0 ? 4 * WORDS : 4 * MIB;
        CUresult closed, worked;

        OK(cuCtxSetCurrent(context));
        OK(peer_alloc(peer, MEMORY_PLAIN, &theirs, size));
        opened = opened_from(peer, theirs);
        OK(cuCtxSetCurrent(other));
        OK(launch_spin_fill(stream, words, HERE, WORDS, 100 * MILLISECOND));
        OK(cuMemcpyDtoDAsync(opened, words, 4 * WORDS, stream));
        OK(cuCtxSetCurrent(context));
        closed = cuIpcCloseMemHandle(opened);
        OK(cuCtxSetCurrent(other));
        probe("close_behind_another_contexts_copy", "%s, then the copy: %s", result_name(closed),
              result_name(cuStreamQuery(stream)));
        OK(peer_free(peer, MEMORY_PLAIN, theirs));
        worked = cuStreamSynchronize(stream);
        probe("work_of_another_context_at_the_close", "%s", result_name(worked));
        cr_assert(worked == CUDA_SUCCESS || !under_shim(), "%s", result_name(worked));
        if (worked != CUDA_SUCCESS)
            break;
    }
    peer_quit(peer);
}

/* A handle whose block was freed: within the grace it opens the old words, later nothing; and
 * never the words of the block that is at that address now. */
Test(lifetime, a_stale_handle_never_opens_somebody_elses_memory)
{
    static const size_t sizes[] = {4 * KIB, 4 * MIB};
    struct peer *peer = peer_start(-1);

    for (int i = 0; i < 2; i++) {
        size_t words = sizes[i] / 4;
        CUdeviceptr ptr = 0, next = 0, opened = 0;
        CUipcMemHandle handle;
        uint64_t freed;
        CUresult r;

        OK(cuMemAlloc(&ptr, sizes[i]));
        OK(fill_now(ptr, HERE, words));
        OK(cuIpcGetMemHandle(&handle, ptr));
        freed = now_ns();
        OK(cuMemFree(ptr));
        OK(cuMemAlloc(&next, sizes[i]));
        OK(fill_now(next, 0xbad, words));
        r = peer_open(peer, &handle, &opened);
        probe("stale_handle", "%zu bytes, same address %d: %s", sizes[i], next == ptr,
              result_name(r));
        if (under_shim()) {
            /* An importer that was on its way when the block was freed still gets what was
             * meant. */
            if (now_ns() - freed < 500 * MILLISECOND)
                CHECK(CUDA_SUCCESS, r);
            if (r == CUDA_SUCCESS) {
                cr_assert_eq(peer_other(peer, opened, HERE, words), 0, "the grace lost the words");
                OK(peer_close(peer, opened));
            }
        }
        OK(cuMemFree(next));
    }
    peer_quit(peer);
}

/* Grace is over at an allocation that the arena cannot serve from what it has: then what nobody can
 * open any more is looked for. */
static void end_grace(void)
{
    CUdeviceptr ptr = 0;

    sleep_ms(1500); /* the suite runs with a grace of a second */
    OK(cuMemAlloc(&ptr, 256 * MIB));
    OK(cuMemFree(ptr));
    OK(cuCtxSynchronize());
}

Test(lifetime, a_stale_handle_is_refused_after_the_grace)
{
    static const size_t sizes[] = {4 * KIB, 4 * MIB};
    struct peer *peer = peer_start(-1);
    CUdeviceptr ptr[2] = {0, 0}, opened = 0;
    CUipcMemHandle handle[2];

    for (int i = 0; i < 2; i++) {
        OK(cuMemAlloc(&ptr[i], sizes[i]));
        OK(cuIpcGetMemHandle(&handle[i], ptr[i]));
        OK(cuMemFree(ptr[i]));
    }
    end_grace();
    for (int i = 0; i < 2; i++) {
        CUresult r = peer_open(peer, &handle[i], &opened);

        probe("stale_handle_after_the_grace", "%zu bytes: %s", sizes[i], result_name(r));
        /* The driver's own may still open the piece that a small block lay in. Where it refuses,
         * it says NOT_PERMITTED on most H200 machines, INVALID_VALUE of one size on one of them. */
        if (under_shim() || software_driver())
            CHECK(CUDA_ERROR_NOT_PERMITTED, r);
        else if (r == CUDA_SUCCESS)
            OK(peer_close(peer, opened));
        else
            cr_assert(r == CUDA_ERROR_NOT_PERMITTED || r == CUDA_ERROR_INVALID_VALUE, "%s",
                      result_name(r));
    }
    peer_quit(peer);
}

Test(lifetime, memory_comes_back_when_nobody_opened_it)
{
    CUdeviceptr ptr = allocated(MIB);
    CUipcMemHandle handle;
    size_t before, missing;

    before = memory_free_bytes();
    OK(cuMemFree(ptr));
    OK(cuMemAlloc(&ptr, 128 * MIB));
    OK(cuIpcGetMemHandle(&handle, ptr));
    OK(cuMemFree(ptr));
    missing = wait_for_free(before, 2000);
    probe("grace_ends_when_memory_is_only_asked_for", "%d", missing == 0);
    end_grace();
    missing = wait_for_free(before, COMES_BACK_MS);
    cr_assert_eq(missing, 0, "%zu bytes did not come back", missing);
}
