/* Several contexts and devices, and memory whose context dies. */
#include "conform.h"

#include <criterion/criterion.h>

#include "shim/gpushim.h"

TestSuite(contexts, .init = conform_start, .timeout = 60);

Test(contexts, memory_belongs_to_the_context_that_was_current)
{
    CUcontext second = context_create(device), owner = NULL;
    CUdeviceptr ptr = 0, first = 0;

    OK(cuMemAlloc(&ptr, 4096));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
    cr_assert_eq(owner, second);
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&first, 4096));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, first));
    cr_assert_eq(owner, context);
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr + 100));
    cr_assert_eq(owner, second);
}

Test(contexts, another_context_may_free)
{
    CUcontext second = context_create(device);
    CUdeviceptr ptr[6];

    for (int i = 0; i < 6; i++)
        OK(cuMemAlloc(&ptr[i], (size_t)4096 << 2 * i));
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 6; i++) {
        OK(cuMemFree(ptr[i]));
        CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(ptr[i]));
    }
    OK(cuCtxDestroy(second));
}

/* The free covers the owner's work even where another context is current. */
Test(contexts, a_free_from_another_context_still_waits_for_the_owners_kernels)
{
    struct turn turn = {.has = PLAINLY, .frees = PLAINLY, .takes = PLAINLY, .fills = new_stream()};

    turn.owner = turn.worker = context_create(device);
    turn.works = new_stream();
    turns_over(&turn, 12);
}

/* A question to the driver, and no demand: what becomes of a copy in another context whose memory
 * is freed under it. */
Test(contexts, a_free_under_another_contexts_copy)
{
    enum { WORDS = MIB / 4, NEXT = 64 };
    CUcontext other = context_create(device);
    CUstream stream = new_stream();
    CUdeviceptr words = allocated(MIB), ptr = 0, fresh[NEXT] = {0};
    CUresult queried, worked;
    size_t foreign = 0;
    bool again = false;

    OK(fill_now(words, 1, WORDS)); /* loads the kernels */
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&ptr, MIB));
    OK(cuCtxSetCurrent(other));
    OK(launch_spin_fill(stream, words, 1, WORDS, 200 * MILLISECOND));
    OK(cuMemcpyDtoDAsync(ptr, words, MIB, stream));
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(ptr));
    OK(cuCtxSetCurrent(other));
    queried = cuStreamQuery(stream);
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < NEXT; i++) {
        OK(cuMemAlloc(&fresh[i], MIB));
        OK(fill_now(fresh[i], 2, WORDS));
        again |= fresh[i] == ptr;
    }
    OK(cuCtxSetCurrent(other));
    worked = cuStreamSynchronize(stream);
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < NEXT; i++)
        foreign += words_other(fresh[i], 2, WORDS);
    probe("free_under_another_contexts_copy",
          "at its return the copy %s, then %s; had again %d, %zu foreign words",
          result_name(queried), result_name(worked), again, foreign);
}

static void check_gone(CUdeviceptr ptr, const char *how)
{
    unsigned int type = 0;
    CUdeviceptr base = 0;
    CUresult range = cuMemGetAddressRange(&base, NULL, ptr);
    CUresult attribute = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
    CUresult freed = cuMemFree(ptr);

    probe("memory_of_a_dead_context", "%s: range %s attribute %s free %s", how, result_name(range),
          result_name(attribute), result_name(freed));
    FAILS(range);
    FAILS(attribute);
    FAILS(freed);
}

Test(contexts, destroying_a_context_takes_its_memory)
{
    CUdeviceptr large = 0, small = 0, kept = 0;
    CUcontext second;
    size_t before;

    kept = filled(4096, 3);
    for (int i = 0; i < 4; i++) {
        OK(cuCtxSetCurrent(context));
        before = memory_free_bytes();
        second = context_create(device);
        OK(cuMemAlloc(&large, 64 * MIB));
        OK(cuMemAlloc(&small, 512));
        OK(fill_now(large, 1, 16 * MIB));
        kernels_forget();
        OK(cuCtxDestroy(second));
        OK(cuCtxSetCurrent(context));
        check_gone(large, "destroyed");
        check_gone(small, "destroyed");
        if (i > 0) /* the first context may leave the driver something to keep */
            cr_assert_geq(memory_free_bytes() + 8 * MIB, before, "round %d", i);
        cr_assert_eq(words_other(kept, 3, 1024), 0, "another context's memory changed");
    }
}

Test(contexts, destroying_a_context_with_work_under_way)
{
    CUstream filler = new_stream();
    CUdeviceptr old = 0;

    OK(launch_spin(filler, 1));
    for (int i = 0; i < 4; i++) {
        CUcontext second = context_create(device);
        CUstream user = new_stream();

        OK(cuMemAlloc(&old, 2 * MIB));
        OK(launch_spin_fill(user, old, 1, MIB / 2, 10 * MILLISECOND));
        kernels_forget();
        OK(cuCtxDestroy(second));
        OK(cuCtxSetCurrent(context));
        next_owners(4, 2 * MIB, filler, 20);
    }
}

/* The forms without a version end memory just the same. */
Test(contexts, a_reset_and_the_last_release_of_the_primary_context_take_its_memory)
{
    static const struct {
        const char *name;
        int version;
    } calls[] = {{"cuDevicePrimaryCtxRelease", 11000},
                 {"cuDevicePrimaryCtxRelease", 7000},
                 {"cuDevicePrimaryCtxReset", 11000},
                 {"cuDevicePrimaryCtxReset", 7000}};

    for (int i = 0; i < 4; i++) {
        CUresult (*call)(CUdevice) =
            (CUresult (*)(CUdevice))driver_lookup(calls[i].name, calls[i].version, 0);
        CUdeviceptr large = filled(8 * MIB, 1), small = allocated(512), fresh;

        cr_assert(call, "%s is missing", calls[i].name);
        kernels_forget();
        OK(call(device));
        OK(cuDevicePrimaryCtxRetain(&context, device));
        OK(cuCtxSetCurrent(context));
        check_gone(large, calls[i].name);
        check_gone(small, calls[i].name);
        fresh = filled(8 * MIB, 9);
        cr_assert_eq(words_other(fresh, 9, 2 * MIB), 0);
        OK(cuMemFree(fresh));
    }
}

Test(contexts, older_forms_of_the_destroy)
{
    static const char *const names[] = {"cuCtxDestroy", "cuCtxDetach"};

    for (int i = 0; i < 2; i++) {
        CUresult (*destroy)(CUcontext) = (CUresult (*)(CUcontext))driver_lookup(names[i], 2000, 0);
        CUcontext second;
        CUdeviceptr ptr;

        if (!destroy && i)
            cr_skip_test("the driver detaches no contexts");
        cr_assert(destroy, "cuCtxDestroy is missing");
        second = context_create(device);
        ptr = allocated(8 * MIB);
        OK(destroy(second));
        OK(cuCtxSetCurrent(context));
        check_gone(ptr, names[i]);
    }
}

Test(contexts, a_release_that_is_not_the_last_takes_nothing)
{
    CUdeviceptr ptr = 0;
    CUcontext again = NULL;

    OK(cuDevicePrimaryCtxRetain(&again, device));
    cr_assert_eq(again, context);
    ptr = filled(8 * MIB, 4);
    OK(cuDevicePrimaryCtxRelease(device));
    cr_assert_eq(words_other(ptr, 4, 2 * MIB), 0);
}

/* ---- several devices ---- */

Test(contexts, each_device_has_its_own_memory)
{
    CUcontext primary[2] = {context, second_device()}, owner = NULL;
    CUdeviceptr ptr[2][3];
    int ordinal = -1;

    for (int d = 0; d < 2; d++) {
        OK(cuCtxSetCurrent(primary[d]));
        for (int i = 0; i < 3; i++) {
            OK(cuMemAlloc(&ptr[d][i], (size_t)4096 << 5 * i));
            OK(fill_now(ptr[d][i], (uint32_t)(d * 10 + i), 1024));
        }
    }
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            OK(cuCtxSetCurrent(primary[d]));
            cr_assert_eq(words_other(ptr[d][i], (uint32_t)(d * 10 + i), 1024), 0);
            OK(cuCtxSetCurrent(primary[!d]));
            OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr[d][i]));
            cr_assert_eq(ordinal, d);
            OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr[d][i]));
            cr_assert_eq(owner, primary[d]);
            OK(cuMemFree(ptr[d][i])); /* with the other device current */
        }
}

Test(contexts, free_memory_is_counted_per_device)
{
    CUcontext second = second_device();
    CUdeviceptr ptr = 0;
    size_t here, there;

    there = memory_free_bytes();
    OK(cuCtxSetCurrent(context));
    here = memory_free_bytes();
    OK(cuMemAlloc(&ptr, 64 * MIB));
    cr_assert_leq(memory_free_bytes(), here - 64 * MIB);
    OK(cuCtxSetCurrent(second));
    cr_assert_eq(memory_free_bytes(), there);
}

/* On the software driver what is asked for is counted, and on a GPU it shows in what is free. */
Test(contexts, to_ask_for_free_memory_takes_none)
{
    const struct software *driver = software();
    unsigned long before;
    size_t there;

    second_device();
    before = driver ? driver->calls("cuMemCreate") : 0;
    there = memory_free_bytes();
    cr_assert_eq(memory_free_bytes(), there);
    cr_assert_eq(driver ? driver->calls("cuMemCreate") : 0, before);
}

/* A free does not wait for another device's kernels, with or without the shim. */
Test(contexts, a_free_does_not_wait_for_another_device)
{
    CUcontext second = second_device();
    CUdeviceptr ptr = 0;
    CUstream stream;
    bool busy = false;

    stream = new_stream();
    OK(launch_spin(stream, MILLISECOND));
    OK(cuStreamSynchronize(stream));
    for (int i = 0; i < BUSY_TRIES && !busy; i++) {
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc(&ptr, 4 * MIB));
        OK(cuCtxSetCurrent(second));
        OK(launch_spin(stream, 600 * MILLISECOND));
        OK(cuCtxSetCurrent(context));
        OK(cuMemFree(ptr));
        OK(cuCtxSetCurrent(second));
        busy = is_busy(stream);
        OK(cuCtxSynchronize());
    }
    cr_assert(busy, "the free ends with the kernel");
}

/* ---- green contexts: some of a device's processors, and the memory of its primary context ---- */

typedef CUresult describe_fn(CUdevResourceDesc *, CUdevResource *, unsigned int);
typedef CUresult get_resource_fn(CUdevice, CUdevResource *, CUdevResourceType);
typedef CUresult green_create_fn(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned int);
typedef CUresult green_destroy_fn(CUgreenCtx);
typedef CUresult from_green_fn(CUcontext *, CUgreenCtx);

/* What makes a green context, and what one of all processors is; skips the test where the driver
 * has none. */
static green_create_fn *green_described(CUdevResourceDesc *ret_description)
{
    get_resource_fn *get = (get_resource_fn *)driver_lookup("cuDeviceGetDevResource", 12040, 0);
    describe_fn *describe = (describe_fn *)driver_lookup("cuDevResourceGenerateDesc", 12040, 0);
    green_create_fn *create = (green_create_fn *)driver_lookup("cuGreenCtxCreate", 12040, 0);
    CUdevResource processors;

    if (!get || !describe || !create)
        cr_skip_test("the driver has no green contexts");
    OK(get(device, &processors, CU_DEV_RESOURCE_TYPE_SM));
    OK(describe(ret_description, &processors, 1));
    return create;
}

/* Skips the test where the driver has none of the kind. */
static CUcontext green_create_with(unsigned flags, CUgreenCtx *ret_green)
{
    CUdevResourceDesc description = NULL;
    green_create_fn *create = green_described(&description);
    from_green_fn *from = (from_green_fn *)driver_lookup("cuCtxFromGreenCtx", 12040, 0);
    CUcontext created = NULL;

    if (!flags && create(ret_green, description, device, flags) == CUDA_ERROR_INVALID_VALUE)
        cr_skip_test("all green contexts of the driver have a default stream");
    if (flags)
        OK(create(ret_green, description, device, flags));
    OK(from(&created, *ret_green));
    return created;
}

static CUcontext green_create(CUgreenCtx *ret_green)
{
    return green_create_with(CU_GREEN_CTX_DEFAULT_STREAM, ret_green);
}

static CUresult green_destroy(CUgreenCtx green)
{
    return ((green_destroy_fn *)driver_lookup("cuGreenCtxDestroy", 12040, 0))(green);
}

/* Calls while the current context is one that has ended. */
static void check_ended(CUdeviceptr async, CUdeviceptr plain)
{
    CUipcMemHandle handle;
    CUdeviceptr base;
    size_t size;

    memset(&handle, 0, sizeof handle);
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFreeAsync(async, NULL));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuIpcCloseMemHandle(plain));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemGetAddressRange(&base, &size, plain));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc(&base, 4096));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAllocAsync(&base, 4096, NULL));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED,
          cuMemFree(plain)); /* and stays, where its own context does */
    if (!software_driver())
        return; /* the rest was not measured */
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFreeAsync(plain, NULL));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuIpcGetMemHandle(&handle, plain));
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuIpcOpenMemHandle(&base, handle, 1));
}

Test(contexts, one_that_has_ended_is_said_to_be_destroyed)
{
    CUgreenCtx green = NULL;
    CUcontext made = green_create(&green);
    CUdeviceptr async = 0, plain = 0;

    OK(cuCtxSetCurrent(made));
    OK(cuMemAlloc(&plain, 4096));
    OK(cuMemAllocAsync(&async, 4096, NULL));
    OK(cuCtxSynchronize());
    OK(green_destroy(green));
    check_ended(async, plain);
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(plain));
    OK(cuMemFree(async));
    OK(cuMemAlloc(&plain, 4096));
    OK(cuMemAllocAsync(&async, 4096, NULL));
    OK(cuCtxSynchronize());
    kernels_forget();
    OK(cuDevicePrimaryCtxReset(device));
    check_ended(async, plain);
}

static void *destroy(void *ended)
{
    return (void *)(uintptr_t)cuCtxDestroy(ended);
}

/* Another one that is current here, and that another thread ends: it stays current. */
static void have_one_ended(void)
{
    pthread_t thread;
    void *result;

    cr_assert_eq(pthread_create(&thread, NULL, destroy, context_create(device)), 0);
    pthread_join(thread, &result);
    OK((CUresult)(uintptr_t)result);
}

Test(contexts, one_that_another_thread_destroyed_is_said_to_be)
{
    CUdeviceptr async = 0;

    OK(cuMemAllocAsync(&async, 4096, NULL));
    OK(cuCtxSynchronize());
    have_one_ended();
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFreeAsync(async, NULL));
}

Test(contexts, memory_of_a_green_context_is_the_primary_ones)
{
    CUgreenCtx green = NULL;
    CUcontext made = green_create(&green), owner = NULL;
    CUdeviceptr there = 0, here = 0;

    here = filled(MIB, 1);
    OK(cuCtxSetCurrent(made));
    OK(cuMemAlloc(&there, MIB));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, there));
    probe("owner_of_memory_of_a_green_context", "%s",
          owner == context ? "primary"
          : owner == made  ? "green"
                           : "other");
    if (under_shim() || software_driver())
        cr_assert_eq(owner, context);
    OK(fill_now(there, 2, MIB / 4));
    OK(fill_now(here, 3, MIB / 4));
    cr_assert_eq(words_other(here, 3, MIB / 4), 0);
    OK(cuMemFree(here));
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(words_other(there, 2, MIB / 4), 0);
    OK(cuCtxSetCurrent(NULL));
    OK(green_destroy(green));
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(words_other(there, 2, MIB / 4), 0, "gone with the green context");
}

/* A free waits for work of both, whichever of them allocated. */
Test(contexts, memory_used_by_a_green_context_and_the_primary_one)
{
    CUgreenCtx green = NULL;
    CUcontext of[2] = {context, green_create(&green)};
    CUstream user[2];

    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(of[i]));
        user[i] = new_stream();
    }
    for (int i = 0; i < 4; i++) {
        CUcontext allocates = of[i % 2];

        turns_over(&(struct turn){.owner = allocates,
                                  .worker = of[i / 2],
                                  .freer = allocates,
                                  .taker = allocates,
                                  .has = PLAINLY,
                                  .works = user[i / 2],
                                  .frees = PLAINLY,
                                  .takes = PLAINLY,
                                  .fills = user[i % 2]},
                   6);
    }
}

/* Freed in the order of its stream, memory is free for others when the stream gets there. */
Test(contexts, async_memory_of_a_green_contexts_stream)
{
    CUgreenCtx green = NULL;
    CUcontext made = green_create(&green);
    CUstream there, here = new_stream();

    OK(cuCtxSetCurrent(made));
    there = new_stream();
    for (int i = 0; i < 2; i++)
        turns_over(&(struct turn){.owner = i ? made : context,
                                  .worker = made,
                                  .freer = made,
                                  .has = there,
                                  .works = there,
                                  .frees = there,
                                  .takes = here,
                                  .fills = here},
                   5);
}

/* Its default stream is its own, beside the primary context's; it has none for threads. */
Test(contexts, async_memory_of_a_green_contexts_default_stream)
{
    CUgreenCtx green = NULL;
    CUcontext made = green_create(&green);
    CUdeviceptr ptr = 0, other = 0;

    OK(cuCtxSetCurrent(made));
    OK(cuMemAllocAsync(&ptr, 64 * KIB, NULL));
    CHECK(CUDA_ERROR_INVALID_HANDLE, cuMemFreeAsync(ptr, CU_STREAM_PER_THREAD));
    CHECK(CUDA_ERROR_INVALID_HANDLE, cuMemAllocAsync(&other, 64 * KIB, CU_STREAM_PER_THREAD));
    OK(cuMemFreeAsync(ptr, NULL));
    for (int i = 0; i < 4; i++) {
        CUcontext frees = i % 2 ? context : made;
        CUstream stream = i < 2 ? NULL : CU_STREAM_LEGACY;

        turns_over(&(struct turn){.owner = frees,
                                  .worker = frees,
                                  .freer = frees,
                                  .taker = i % 2 ? made : context,
                                  .has = stream,
                                  .works = stream,
                                  .frees = stream,
                                  .takes = stream,
                                  .fills = stream},
                   4);
    }
}

/* From CUDA 13.4 on it may have none. */
Test(contexts, memory_of_a_green_context_without_a_default_stream)
{
    struct turn turn = {.works = new_stream(), .has = PLAINLY, .frees = PLAINLY, .takes = PLAINLY};
    CUgreenCtx green = NULL;
    CUcontext owner = NULL;
    CUdeviceptr ptr = 0;

    turn.owner = turn.freer = turn.taker = green_create_with(0, &green);
    OK(cuCtxSetCurrent(turn.owner));
    turn.fills = new_stream();
    OK(cuMemAlloc(&ptr, MIB));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
    if (under_shim() || software_driver())
        cr_assert_eq(owner, context);
    OK(cuMemFree(ptr));
    turns_over(&turn, 5);
}

/* It retains the primary context, whose memory goes with the last of those that do. */
Test(contexts, the_end_of_a_green_context_may_end_the_primary_one)
{
    CUgreenCtx green = NULL;
    CUcontext made = green_create(&green);
    unsigned int flags;
    CUdeviceptr ptr = allocated(4 * MIB);
    int active = 0;

    OK(cuDevicePrimaryCtxRelease(device));
    OK(cuCtxSetCurrent(made));
    OK(cuMemsetD8(ptr, 1, 4 * MIB));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(NULL));
    OK(green_destroy(green));
    OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    probe("primary_context_is_active_after_its_green_one", "%d", active);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    if (active)
        OK(cuMemFree(ptr));
    else
        check_gone(ptr, "green");
    ptr = filled(4 * MIB, 1);
}

struct beginning {
    green_create_fn *create;
    CUdevResourceDesc description;
    CUgreenCtx green;
};

/* As soon as the context has ended. */
static void *begin_anew(void *arg)
{
    struct beginning *beginning = arg;
    CUdevice current;

    cuCtxSetCurrent(context);
    while (cuCtxGetDevice(&current) == CUDA_SUCCESS)
        sched_yield();
    return (void *)(uintptr_t)beginning->create(&beginning->green, beginning->description, device,
                                                CU_GREEN_CTX_DEFAULT_STREAM);
}

Test(contexts, a_reset_takes_memory_though_another_thread_begins_anew)
{
    struct beginning beginning = {NULL};
    CUdeviceptr ptr = 0;
    pthread_t thread;
    void *result;

    if (!software())
        cr_skip_test("how long a real driver takes is its own matter");
    beginning.create = green_described(&beginning.description);
    OK(cuMemAlloc(&ptr, 8 * MIB));
    software()->delay("cuDevicePrimaryCtxGetState",
                      100000); /* who asks whether it is active still, asks too late */
    cr_assert_eq(pthread_create(&thread, NULL, begin_anew, &beginning), 0);
    OK(cuDevicePrimaryCtxReset(device));
    pthread_join(thread, &result);
    OK((CUresult)(uintptr_t)result);
    OK(cuCtxSetCurrent(context));
    check_gone(ptr, "reset, and active again");
}

Test(contexts, memory_of_another_is_not_freed_in_one_that_has_ended)
{
    CUdeviceptr plain = allocated(4096);

    have_one_ended();
    CHECK(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree(plain));
    OK(cuCtxSetCurrent(context));
    OK(fill_now(plain, 7, 16));
    OK(cuMemFree(plain));
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemFree(plain));
}

/* Natively the capture is nobody's then: who asks for it is told that its context has ended
 * (measured on an H100). */
Test(contexts, a_green_one_ends_with_its_captures)
{
    struct gpushim_memory memory = {.size = sizeof memory}; /* all 0 where the driver's is given */
    unsigned int on = 1, flags = 0;
    CUgreenCtx green = NULL;
    CUdeviceptr ptr = 0;
    CUgraph graph = NULL;
    size_t room, total;
    CUstream stream;

    OK(cuCtxSetCurrent(green_create(&green)));
    stream = new_stream();
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&ptr, 4096));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                             ptr)); /* is made true when no capture is open */
    OK(green_destroy(green));
    OK(cuCtxGetFlags(&flags));
    gpushim_memory(device, &memory);
    cr_assert_eq(!!(flags & CU_CTX_SYNC_MEMOPS), memory.live > 0);
    OK(cuMemFree(ptr));
    cr_assert_neq(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    OK(cuMemGetInfo(&room, &total));
    for (int i = 0; i < 3; i++) {
        OK(cuMemAlloc(&ptr, room / 3 * 2));
        OK(fill_now(ptr, i, 4096));
        OK(cuMemFree(ptr));
        OK(cuCtxSynchronize());
    }
}
