/* The memory of the arenas goes off the GPU, and comes back as it was (core/process/sleep.h). */
#include <criterion/criterion.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "core/process/context.h"
#include "tests/forbid.h"
#include "tests/unit/process/sleeping.h"

#define BLOCKS 5

/* Small ones, one within a piece, one across several. */
static size_t sizes[BLOCKS] = {512, 70000, 3 * MIB, 20 * MIB, 150 * MIB};

static struct blocks {
    CUdeviceptr at[BLOCKS];
} blocks;

static struct fixture f;
static struct gs_sleep_why why;

static void make(struct fixture *of, struct blocks *ret)
{
    for (unsigned i = 0; i < BLOCKS; i++) {
        ret->at[i] = must_alloc(of, sizes[i]);
        fill(ret->at[i], sizes[i], i);
    }
}

static bool are_right(const struct blocks *made)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        if (!is_filled(made->at[i], sizes[i], i))
            return false;
    return true;
}

static void end(struct fixture *of, const struct blocks *made)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        MUST(gs_core_free(of->core, made->at[i]));
    fixture_drain(of);
    fixture_end(of);
}

static void begin(void)
{
    sleeping_start(&f, "1G");
    make(&f, &blocks);
}

static void is_over(void)
{
    end(&f, &blocks);
}

TestSuite(sleep, .init = begin, .fini = is_over);

static unsigned counts_that_are_wrong;

static void count(void)
{
    const uint64_t begun = __atomic_load_n(&f.core->releases.begun, __ATOMIC_SEQ_CST) +
                           __atomic_load_n(&f.core->shared.detached, __ATOMIC_SEQ_CST);

    counts_that_are_wrong += gs_core_count_is_right(f.core, begun);
}

static CUresult release_counted(CUmemGenericAllocationHandle handle)
{
    count();
    return cuMemRelease(handle);
}

static CUresult create_counted(CUmemGenericAllocationHandle *handle, size_t size,
                               const CUmemAllocationProp *properties, unsigned long long flags)
{
    count();
    return cuMemCreate(handle, size, properties, flags);
}

/* The driver's figure and ours change one after the other. */
Test(sleep, what_is_free_is_counted_again_where_it_changes_meanwhile, .timeout = 60)
{
    fixture_driver(&f)->mem_release = release_counted;
    fixture_driver(&f)->mem_create = create_counted;
    cr_assert(gs_core_sleep(f.core, NULL, NULL, UINT64_MAX, &why), "%s", why.text);
    cr_assert(gs_core_wake(f.core, UINT64_MAX, &why), "%s", why.text);
    cr_assert_eq(counts_that_are_wrong, 0);
    cr_assert(are_right(&blocks));
}

Test(sleep, memory_goes_and_comes_back_as_it_was, .timeout = 60)
{
    size_t before;

    before = device_bytes();
    for (int round = 0; round < 3; round++) {
        cr_assert(goes(&f, &why), "%s", why.text);
        cr_assert_eq(device_bytes(), 0);
        cr_assert_neq(asleep(&f).since_ns, 0);
        cr_assert_geq(asleep(&f).away, asleep(&f).copied);
        cr_assert_geq(asleep(&f).copied, 173 * MIB);
        cr_assert_leq(asleep(&f).copied, 175 * MIB, "what is free is not copied");
        cr_assert_eq(gs_core_away(f.core, 0), asleep(&f).away);
        cr_assert_not(goes(&f, &why));
        cr_assert_eq(why.error, EALREADY);
        cr_assert(comes(&f, &why), "%s", why.text);
        cr_assert(are_right(&blocks));
        cr_assert_eq(asleep(&f).since_ns, 0);
        cr_assert_eq(asleep(&f).away, 0);
        cr_assert_leq(device_bytes(), before);
        cr_assert_not(comes(&f, &why));
        cr_assert_eq(why.error, EALREADY);
    }
}

/* Of the store, which is as large as what was copied, and of the window of one in a file. */
Test(sleep, the_host_has_its_memory_back, .timeout = 60)
{
    struct gs_sleep_store store;
    unsigned char page;

    for (int in_file = 0; in_file < 2; in_file++) {
        cr_assert(gs_core_sleep(f.core, in_file ? "/tmp" : NULL, NULL, gs_now_ns() + SECOND, &why),
                  "%s", why.text);
        store = f.core->sleep.store;
        cr_assert_eq(mincore(store.base, 1, &page), 0);
        cr_assert_eq(store.window != store.base, in_file);
        cr_assert(comes(&f, &why), "%s", why.text);
        gs_core_await_freed(f.core);
        cr_assert_eq(mincore(store.base, 1, &page), -1, "%d: the store stays", in_file);
        cr_assert_eq(mincore(store.window, 1, &page), -1, "%d: the window stays", in_file);
    }
}

Test(sleep, what_is_free_goes_for_good, .timeout = 60)
{
    MUST(gs_core_free(f.core, must_alloc(&f, 300 * MIB)));
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert_leq(asleep(&f).away, 180 * MIB);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert_leq(device_bytes(), 180 * MIB);
}

static size_t pages_in_memory(const struct gs_sleep_store *store)
{
    const size_t pages = (store->size + 4095) / 4096;
    unsigned char *is_in = calloc(pages, 1);
    size_t in = 0;

    cr_assert_eq(mincore(store->base, store->size, is_in), 0);
    for (size_t i = 0; i < pages; i++)
        in += is_in[i] & 1;
    free(is_in);
    return in;
}

/* The kernel keeps no copy of it: but for the last pages, and where memory is all that there is. */
static void is_on_a_disk(const struct gs_sleep_store *store)
{
    struct statfs where;

    cr_assert_eq(statfs("/tmp", &where), 0);
    if (where.f_type != TMPFS_MAGIC)
        cr_assert_lt(pages_in_memory(store), store->size / 4096 / 4);
}

/* Nothing may be left of the host's copy. */
Test(sleep, a_file_holds_the_contents, .timeout = 60)
{
    char folder[] = "/tmp/gpushim-sleep-XXXXXX";
    sigset_t before, after;

    cr_assert(mkdtemp(folder));
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    cr_assert_not(gs_core_sleep(f.core, "/nowhere", NULL, gs_now_ns() + SECOND, &why));
    cr_assert_eq(why.error, ENOENT);
    cr_assert(strstr(why.text, "/nowhere"));
    cr_assert(gs_core_sleep(f.core, folder, NULL, gs_now_ns() + SECOND, &why), "%s", why.text);
    cr_assert_eq(rmdir(folder), 0, "a file without a name");
    is_on_a_disk(&f.core->sleep.store);
    cr_assert_eq(device_bytes(), 0);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert(are_right(&blocks));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int signal = 1; signal < NSIG; signal++)
        cr_assert_eq(sigismember(&after, signal), sigismember(&before, signal), "%d", signal);
}

/* As on the disks that make none without a name. */
Test(sleep, a_file_loses_its_name_at_once, .timeout = 60)
{
    char folder[] = "/tmp/gpushim-sleep-XXXXXX";

    cr_assert(mkdtemp(folder));
    cr_assert(forbid_bits(SYS_openat, 2, O_TMPFILE & ~O_DIRECTORY, SECCOMP_RET_ERRNO | EOPNOTSUPP));
    cr_assert_eq(open(folder, O_TMPFILE | O_RDWR, 0600), -1);
    cr_assert(gs_core_sleep(f.core, folder, NULL, gs_now_ns() + SECOND, &why), "%s", why.text);
    cr_assert_eq(rmdir(folder), 0);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert(are_right(&blocks));
}

/* The disk fails, or what was a file is none any more: that is no end of the process. */
Test(sleep, a_file_that_cannot_be_read_leaves_it_asleep, .timeout = 60)
{
    const struct gs_sleep_store *store;
    char *aside;
    int empty;

    cr_assert(gs_core_sleep(f.core, "/tmp", NULL, gs_now_ns() + SECOND, &why), "%s", why.text);
    store = &f.core->sleep.store;
    aside = mmap(NULL, store->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(aside, MAP_FAILED);
    cr_assert_eq(mremap(store->base, store->size, store->size, MREMAP_MAYMOVE | MREMAP_FIXED,
                        aside),
                 aside);
    empty = memfd_create("empty", MFD_CLOEXEC);
    cr_assert_eq(mmap(store->base, store->size, PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0),
                 store->base);
    cr_assert_not(comes(&f, &why));
    cr_assert_eq(why.error, EIO);
    cr_assert(strstr(why.text, "could not be read"), "%s", why.text);
    cr_assert_eq(device_bytes(), 0);
    cr_assert_neq(asleep(&f).since_ns, 0);
    cr_assert_eq(mremap(aside, store->size, store->size, MREMAP_MAYMOVE | MREMAP_FIXED,
                        store->base),
                 store->base);
    close(empty);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert(are_right(&blocks));
}

/* Nothing has moved. */
static void is_refused(const char *directory, int error)
{
    cr_assert_not(gs_core_sleep(f.core, directory, NULL, gs_now_ns() + SECOND, &why));
    cr_assert_eq(why.error, error, "%s", why.text);
    cr_assert_eq(asleep(&f).since_ns, 0);
    cr_assert_null(f.core->sleep.store.base);
    cr_assert(are_right(&blocks));
}

Test(sleep, without_a_call_of_the_drivers_it_stays_awake, .timeout = 60)
{
    struct gs_driver *driver = fixture_driver(&f);
    const struct gs_driver before = *driver;

    driver->memcpy_dtoh_async = NULL;
    is_refused(NULL, ENOTSUP);
    *driver = before;
    driver->memcpy_htod_async = NULL;
    is_refused(NULL, ENOTSUP);
    *driver = before;
}

/* The kernel's signal for that would end the process. */
Test(sleep, a_file_larger_than_the_process_may_make_is_none, .timeout = 60)
{
    const struct rlimit little = {MIB, RLIM_INFINITY};

    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &little), 0);
    is_refused("/tmp", EFBIG);
}

/* Before anything is written. */
Test(sleep, a_full_disk_is_no_place, .timeout = 60)
{
    cr_assert(forbid_call(SYS_fallocate, SECCOMP_RET_ERRNO | ENOSPC));
    is_refused("/tmp", ENOSPC);
}

/* As it is written. */
Test(sleep, a_disk_that_fails_leaves_it_awake, .timeout = 60)
{
    cr_assert(forbid_call(SYS_process_vm_writev, SECCOMP_RET_ERRNO | EIO));
    is_refused("/tmp", EIO);
}

Test(sleep, a_disk_that_takes_less_leaves_it_awake, .timeout = 60)
{
    cr_assert(
        forbid_call(SYS_process_vm_writev, SECCOMP_RET_ERRNO | 0)); /* nothing, and no error */
    is_refused("/tmp", EIO);
}

/* What the kernel has taken is on no disk yet. */
Test(sleep, a_disk_that_fails_late_leaves_it_awake, .timeout = 60)
{
#ifdef __SANITIZE_ADDRESS__
    cr_skip("it needs the call itself");
#endif
    cr_assert(forbid_call(SYS_msync, SECCOMP_RET_ERRNO | EIO));
    is_refused("/tmp", EIO);
}

/* Else the window had what was copied before. */
Test(sleep, a_copy_to_a_files_window_that_fails_is_none, .timeout = 60)
{
    MUST(softcuda_fail("cuMemcpyDtoHAsync", 2, CUDA_ERROR_UNKNOWN));
    is_refused("/tmp", EIO);
    softcuda_reset();
    cr_assert(gs_core_sleep(f.core, "/tmp", NULL, gs_now_ns() + SECOND, &why), "%s", why.text);
    MUST(softcuda_fail("cuMemcpyHtoDAsync", 2, CUDA_ERROR_UNKNOWN));
    cr_assert_not(comes(&f, &why));
    cr_assert_eq(why.error, EIO);
    softcuda_reset();
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert(are_right(&blocks));
}

Test(sleep, work_that_does_not_end_is_waited_for_so_long, .timeout = 60)
{
    softcuda_hold(1);
    MUST(cuMemsetD8Async(blocks.at[2], 7, MIB, NULL));
    cr_assert_not(gs_core_sleep(f.core, NULL, NULL, gs_now_ns() + 10 * MS, &why));
    cr_assert_eq(why.error, EBUSY);
    cr_assert(strstr(why.text, "GPU 0"), "%s", why.text);
    cr_assert_eq(asleep(&f).since_ns, 0);
    softcuda_hold(0);
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    for (size_t i = 0; i < MIB; i += 64)
        cr_assert_eq(((unsigned char *)blocks.at[2])[i], 7, "work came before the copy");
}

Test(sleep, a_capture_refuses_it_and_goes_on, .timeout = 60)
{
    CUstream stream;
    CUgraph graph;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_capture_begin(f.core, stream));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    cr_assert_not(goes(&f, &why));
    cr_assert_eq(why.error, EBUSY);
    cr_assert(strstr(why.text, "captures"));
    MUST(cuStreamEndCapture(stream, &graph));
    gs_core_capture_end(f.core, stream);
    MUST(cuGraphDestroy(graph));
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    MUST(cuStreamDestroy(stream));
}

/* Then the process sleeps on, whole, and holds nothing of what it did get. */
Test(sleep, a_gpu_that_another_has_filled_is_waited_for, .timeout = 60)
{
    CUdeviceptr other;
    size_t left, total;

    fixture_driver(&f)->mem_release = release_what_is_had;
    cr_assert(goes(&f, &why), "%s", why.text);
    MUST(cuMemGetInfo(&left, &total));
    left -= 100 * MIB;
    MUST(cuMemAlloc(&other, left));
    cr_assert_not(gs_core_wake(f.core, gs_now_ns() + 20 * MS, &why));
    cr_assert_eq(why.error, ENOMEM);
    cr_assert(strstr(why.text, "GPU 0"), "%s", why.text);
    cr_assert_eq(device_bytes(), left);
    cr_assert_neq(asleep(&f).since_ns, 0);
    MUST(cuMemFree(other));
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert(are_right(&blocks));
}

Test(sleep, a_stack_is_low_meanwhile, .timeout = 60)
{
    size_t before, now;

    MUST(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    MUST(cuCtxGetLimit(&before, CU_LIMIT_STACK_SIZE));
    for (int i = 0; i < 2; i++) {
        cr_assert(goes(&f, &why), "%s", why.text);
        MUST(cuCtxGetLimit(&now, CU_LIMIT_STACK_SIZE));
        cr_assert_lt(now, before, "%d", i);
        cr_assert(comes(&f, &why), "%s", why.text);
        MUST(cuCtxGetLimit(&now, CU_LIMIT_STACK_SIZE));
        cr_assert_eq(now, before, "%d", i);
    }
}

/* What looks for idle memory meanwhile finds none there. */
Test(sleep, what_is_away_or_about_to_go_is_not_trimmed, .timeout = 60)
{
    struct gs_arena *arena;
    size_t reserved;

    MUST(gs_core_free(f.core, must_alloc(&f, 100 * MIB)));
    fixture_drain(&f);
    arena = fixture_home(&f);
    reserved = arena->reserved;
    cr_assert_gt(reserved, 0);
    for (struct gs_piece *piece = arena->large.lowest; piece; piece = piece->next)
        piece->asleep = true;
    fixture_release(&f, true);
    cr_assert_eq(arena->reserved, reserved);
    for (struct gs_piece *piece = arena->large.lowest; piece; piece = piece->next)
        piece->asleep = false;
    cr_assert(goes(&f, &why), "%s", why.text);
    MUST(gs_core_free(f.core, blocks.at[4])); /* as others do that held it */
    fixture_release(&f, true);
    cr_assert(comes(&f, &why), "%s", why.text);
    reserved = arena->reserved;
    fixture_release(&f, true);
    cr_assert_lt(arena->reserved, reserved);
    blocks.at[4] = must_alloc(&f, sizes[4]);
}

/* Nothing can be copied there, and the driver ends what it has. */
Test(sleep, what_is_of_a_context_about_to_end_stays, .timeout = 60)
{
    CUcontext second = fixture_context_new();
    CUdeviceptr block = must_alloc(&f, 3 * MIB);
    struct gs_context *detached;

    fill(block, 3 * MIB, 9);
    detached = gs_core_context_detach(f.core, second);
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert_geq(asleep(&f).stays[GS_STAYS_ENDING], 3 * MIB);
    cr_assert_eq(device_bytes(), asleep(&f).stays[GS_STAYS_ENDING]);
    cr_assert(comes(&f, &why), "%s", why.text);
    gs_core_context_stays(f.core, second, detached);
    cr_assert(is_filled(block, 3 * MIB, 9));
    MUST(gs_core_free(f.core, block));
    fixture_context_end(&f, second);
    cr_assert(are_right(&blocks));
}

/* Before anything has moved. */
Test(sleep, without_room_on_the_host_nothing_moves, .timeout = 60)
{
    struct rlimit before, little;
    size_t bytes;

#ifdef __SANITIZE_ADDRESS__
    cr_skip("it needs addresses itself");
#endif
    bytes = device_bytes();
    cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
    little = (struct rlimit){1, before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_AS, &little), 0);
    cr_assert_not(goes(&f, &why));
    cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
    cr_assert_eq(why.error, ENOMEM, "%s", why.text);
    cr_assert_eq(asleep(&f).since_ns, 0);
    cr_assert_leq(device_bytes(), bytes);
    cr_assert(are_right(&blocks));
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
}

/* Of 173 MiB in parts of 64: those before one that is refused are registered, and none stays so. */
Test(sleep, the_store_is_registered_part_by_part, .timeout = 60)
{
    for (unsigned refused = 1; refused <= 4; refused++) {
        softcuda_reset();
        MUST(softcuda_fail("cuMemHostRegister", refused, CUDA_ERROR_OUT_OF_MEMORY));
        cr_assert(goes(&f, &why), "%s", why.text);
        cr_assert_eq(softcuda_calls("cuMemHostRegister"), refused < 4 ? refused : 3);
        cr_assert(comes(&f, &why), "%s", why.text);
        cr_assert_eq(softcuda_calls("cuMemHostUnregister"), refused - 1);
        cr_assert(are_right(&blocks));
    }
}

/* It is none of what its program waits for; the next sleep does. */
Test(sleep, the_hosts_copy_goes_behind_a_wake, .timeout = 60)
{
    for (int i = 0; i < 3; i++) {
        cr_assert(goes(&f, &why), "%s", why.text);
        cr_assert_not(f.core->sleep.freeing.started);
        cr_assert(comes(&f, &why), "%s", why.text);
        cr_assert(f.core->sleep.freeing.started);
        cr_assert(are_right(&blocks));
    }
    gs_core_await_freed(f.core);
    cr_assert_null(f.core->sleep.freeing.store.base);
}

/* What cannot be waited for by its stream is by its context: nothing is at memory that goes. */
Test(sleep, copies_whose_stream_fails_are_waited_for, .timeout = 60)
{
    unsigned long waits;

    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    softcuda_reset();
    cr_assert(goes(&f, &why), "%s", why.text);
    waits = softcuda_calls("cuCtxSynchronize");
    cr_assert(comes(&f, &why), "%s", why.text);
    softcuda_reset();
    MUST(softcuda_fail("cuStreamSynchronize", 1, CUDA_ERROR_UNKNOWN));
    cr_assert_not(goes(&f, &why));
    cr_assert_eq(softcuda_calls("cuCtxSynchronize"), waits + 1);
    softcuda_reset();
    cr_assert(are_right(&blocks));
}

static unsigned by_the_threads_own;

static CUresult copy_out(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    by_the_threads_own += stream == CU_STREAM_PER_THREAD;
    return cuMemcpyDtoHAsync(to, from, size, stream);
}

static CUresult copy_back(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    by_the_threads_own += stream == CU_STREAM_PER_THREAD;
    return cuMemcpyHtoDAsync(to, from, size, stream);
}

static unsigned streams(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.streams;
}

/* Nothing of the driver's is left for the end of the thread, but where it refused. */
Test(sleep, copies_go_by_a_stream_that_goes_with_them, .timeout = 60)
{
    const unsigned before = streams();

    fixture_driver(&f)->memcpy_dtoh_async = copy_out;
    fixture_driver(&f)->memcpy_htod_async = copy_back;
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert_eq(by_the_threads_own, 0);
    cr_assert_eq(streams(), before);
    MUST(softcuda_fail("cuStreamCreate", 0, CUDA_ERROR_NOT_SUPPORTED));
    cr_assert(goes(&f, &why), "%s", why.text);
    cr_assert(comes(&f, &why), "%s", why.text);
    cr_assert_neq(by_the_threads_own, 0);
    cr_assert(are_right(&blocks));
    softcuda_reset();
}

/* While it is filled. */
Test(sleep, host_memory_that_runs_out_leaves_it_awake, .timeout = 60)
{
#ifdef __SANITIZE_ADDRESS__
    cr_skip("it needs the call itself");
#endif
    cr_assert(forbid_call(SYS_madvise, SECCOMP_RET_ERRNO | ENOMEM));
    is_refused(NULL, ENOMEM);
}

static struct blocks tried;

static void make_tried(struct fixture *of)
{
    sizes[3] = 9 * MIB;
    sizes[4] = 5 * MIB;
    make(of, &tried);
}

static bool tried_are_right(void)
{
    return are_right(&tried);
}

static void end_tried(struct fixture *of)
{
    end(of, &tried);
}

static const struct slept blocks_slept = {make_tried, tried_are_right, end_tried};

Test(sleep_fails, each_call_of_a_sleep_fails_in_turn, .timeout = 120)
{
    cr_assert_gt(fail_each(&blocks_slept, false, CUDA_ERROR_UNKNOWN), 20);
}

Test(sleep_fails, each_call_of_a_wake_fails_in_turn, .timeout = 120)
{
    cr_assert_gt(fail_each(&blocks_slept, true, CUDA_ERROR_UNKNOWN), 20);
    cr_assert_gt(fail_each(&blocks_slept, true, CUDA_ERROR_OUT_OF_MEMORY), 20);
}
