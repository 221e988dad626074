/*
 * Calls that have to come back although the GPU stands still until this very thread goes on: a
 * stream is held by a host function that the test lets go after the call. It lets itself go after a
 * while, so that a driver that waits for it is found out and does not hang: soon where that is a
 * real one, which may; late where it is the library, whose machine may be busy.
 */
#include "conform.h"

#include <criterion/criterion.h>

TestSuite(waits, .init = conform_start, .timeout = 180);

#define LATE_NS (45 * 1000 * MILLISECOND)
#define SOON_NS (1000 * MILLISECOND)
#define OLD     0x01d01d01u
#define NEW     0x2e2e2e2eu
#define WORDS   (MIB / 4)

struct gate {
    uint64_t ns;    /* how long it holds */
    bool open;      /* atomic: by the test, */
    bool by_itself; /* atomic: or by itself */
};

static void CUDA_CB wait_at(void *arg)
{
    struct gate *gate = arg;
    uint64_t end = now_ns() + gate->ns;

    while (!__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE) && now_ns() < end)
        sleep_ms(1);
    if (!__atomic_load_n(&gate->open, __ATOMIC_ACQUIRE))
        __atomic_store_n(&gate->by_itself, true, __ATOMIC_RELEASE);
}

static void hold(CUstream stream, struct gate *gate)
{
    *gate = (struct gate){.ns = under_shim() || software_driver() ? LATE_NS : SOON_NS};
    OK(cuLaunchHostFunc(stream, wait_at, gate));
}

/* Lets go, and everything be done. What failed before is said by who asks afterwards. */
static bool let_go(struct gate *gate)
{
    bool held = !__atomic_load_n(&gate->by_itself, __ATOMIC_ACQUIRE);

    __atomic_store_n(&gate->open, true, __ATOMIC_RELEASE);
    return held;
}

static size_t part(unsigned tenths)
{
    return memory_free_bytes() / 10 * tenths & ~(2 * MIB - 1);
}

/* Most of the memory, freed in the order of a stream behind work: a host function or, without a
 * gate, a kernel. Returns what is more than there is beside it. */
static size_t free_behind(CUstream stream, struct gate *gate)
{
    size_t size = part(7), wanted = part(6);
    CUdeviceptr ptr = 0;

    OK(cuMemAllocAsync(&ptr, size, stream));
    OK(launch_fill(stream, ptr, OLD, 4096));
    OK(cuStreamSynchronize(stream));
    if (gate)
        hold(stream, gate);
    else
        OK(launch_spin(stream, 200 * MILLISECOND));
    OK(launch_fill(stream, ptr, OLD, 4096));
    OK(cuMemFreeAsync(ptr, stream));
    return wanted;
}

Test(waits, an_allocation_in_another_stream_comes_behind_the_free)
{
    CUstream s1 = new_stream(), s2 = new_stream();
    size_t wanted = free_behind(s1, NULL);
    CUdeviceptr ptr = 0;

    OK(cuMemAllocAsync(&ptr, wanted, s2));
    OK(launch_fill(s2, ptr, NEW, 4096));
    OK(cuStreamSynchronize(s2));
    OK(cuStreamSynchronize(s1));
    cr_assert_eq(words_other(ptr, NEW, 4096), 0, "the old owner's words");
}

Test(waits, an_allocation_in_no_streams_order_fails_rather_than_wait)
{
    CUstream s1 = new_stream();
    CUdeviceptr ptr = 0;
    struct gate gate;
    size_t wanted = free_behind(s1, &gate);
    uint64_t began = now_ns();
    CUresult r = cuMemAlloc(&ptr, wanted);
    uint64_t took = now_ns() - began;
    bool held = let_go(&gate);

    probe("alloc_behind_a_host_function_ms", "%llu", (unsigned long long)(took / MILLISECOND));
    if (r == CUDA_SUCCESS) /* under the library, as all work goes to one stream */
        OK(cuMemFree(ptr));
    else
        CHECK(CUDA_ERROR_OUT_OF_MEMORY, r);
    cr_assert(held, "it waited for the host function");
    OK(cuCtxSynchronize());
    OK(cuMemAlloc(&ptr, wanted));
}

Test(waits, physical_memory_is_refused_rather_than_waited_for)
{
    CUstream s1 = new_stream();
    struct gate gate;
    size_t wanted = free_behind(s1, &gate);
    CUresult r = physical_memory(wanted);
    bool held = let_go(&gate);

    probe("create_behind_a_host_function", "%s", result_name(r));
    cr_assert(held, "it waited for the host function");
    OK(cuCtxSynchronize());
    OK(physical_memory(wanted));
}

/* What cuMemFree freed before the host function is there: natively that call waited for what came
 * before it, and for nothing that came later. */
static void freed_before(CUstream held_stream, CUstream user)
{
    size_t size = part(7), wanted = part(6);
    CUdeviceptr ptr = allocated(size);
    struct gate gate;
    CUresult r;
    bool held;

    OK(launch_spin_fill(user, ptr, OLD, 4096, 20 * MILLISECOND));
    OK(cuMemFree(ptr));
    hold(held_stream, &gate);
    r = cuMemAlloc(&ptr, wanted);
    held = let_go(&gate);
    OK(r);
    cr_assert(held, "it waited for the host function");
    OK(cuCtxSynchronize());
    OK(cuMemFree(ptr));
}

Test(waits, memory_freed_before_the_host_function_is_there)
{
    CUstream s1 = new_stream(), s2 = new_stream();

    freed_before(s1, s1);
    freed_before(s1, s2);
    OK(launch_spin(s1, 1));
    OK(launch_spin(s2, 1));
    freed_before(s1, s2);
}

/* What is freed while something captures, and a host function that becomes a part of the graph. */
static void free_in_a_capture(CUdeviceptr ptr)
{
    static struct gate never;
    CUstream stream = new_stream();

    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemFree(ptr));
    hold(stream, &never);
    end_capture(stream);
}

/* Frees one block among many on a device that is full, for which alone the library records no
 * event when it is freed. */
static void one_freed_before(bool after_capture)
{
    enum { MOST = 1024 };
    const size_t size = 3 * MIB;
    CUstream s1 = new_stream(), s2 = new_stream();
    static CUdeviceptr ptr[MOST];
    struct gate gate;
    int count = 0;
    CUresult r;
    bool held;

    if (!software_driver())
        cr_skip_test("fills the whole device");
    OK(launch_spin(s1, 1));
    OK(launch_spin(s2, 1));
    while (count < MOST && (r = cuMemAlloc(&ptr[count], size)) == CUDA_SUCCESS)
        count++;
    CHECK(CUDA_ERROR_OUT_OF_MEMORY, r);
    if (after_capture)
        free_in_a_capture(ptr[--count]);
    OK(launch_spin_fill(s2, ptr[0], OLD, 4096, 20 * MILLISECOND));
    OK(cuMemFree(ptr[0]));
    hold(s1, &gate);
    r = cuMemAlloc(&ptr[0], size);
    held = let_go(&gate);
    OK(r);
    cr_assert(held, "it waited for the host function");
    OK(cuCtxSynchronize());
    for (int i = 0; i < count; i++)
        OK(cuMemFree(ptr[i]));
}

Test(waits, one_block_freed_before_the_host_function_is_there)
{
    one_freed_before(false);
}

Test(waits, one_block_freed_after_a_capture_with_a_host_function_is_there)
{
    one_freed_before(true);
}

/* ---- Other threads ----------------------------------------------------------------------- */

struct other {
    pthread_t thread;
    CUdeviceptr ptr;
    struct gate *gate;
    bool begins; /* atomic */
    CUresult result;
};

static void *frees(void *arg)
{
    struct other *other = arg;

    other->result = cuCtxSetCurrent(context);
    __atomic_store_n(&other->begins, true, __ATOMIC_RELEASE);
    if (other->result == CUDA_SUCCESS)
        other->result = cuMemFree(other->ptr);
    return NULL;
}

static void *lets_go(void *arg)
{
    struct other *other = arg;

    sleep_ms(500);
    let_go(other->gate);
    return NULL;
}

/* A free that may wait, and what other threads do meanwhile; they may wait as well (a real driver
 * does not submit what comes from them), but all goes on when the host function ends. */
Test(waits, a_free_behind_a_host_function_ends_with_it)
{
    CUstream s1 = new_stream(), s2 = new_stream();
    struct gate gate;
    struct other frees_it = {.gate = &gate}, opens = {.gate = &gate};
    CUdeviceptr mine = allocated(MIB);
    bool early;

    OK(cuMemAlloc(&frees_it.ptr, MIB));
    OK(launch_fill(s1, frees_it.ptr, OLD, WORDS));
    hold(s1, &gate);
    cr_assert_eq(pthread_create(&frees_it.thread, NULL, frees, &frees_it), 0);
    while (!__atomic_load_n(&frees_it.begins, __ATOMIC_ACQUIRE))
        sleep_ms(1);
    cr_assert_eq(pthread_create(&opens.thread, NULL, lets_go, &opens), 0);
    OK(launch_fill(s2, mine, NEW, WORDS));
    OK(cuStreamSynchronize(s2));
    early = !__atomic_load_n(&gate.open, __ATOMIC_ACQUIRE);
    probe("a_launch_beside_a_free_that_waits", "%s", early ? "goes on" : "waits");
    pthread_join(frees_it.thread, NULL);
    pthread_join(opens.thread, NULL);
    OK(frees_it.result);
    cr_assert_not(gate.by_itself);
    OK(cuCtxSynchronize());
    cr_assert_eq(words_other(mine, NEW, WORDS), 0);
}

/* Where the driver's own call waits, so does this, natively alone. */
Test(waits, access_is_taken_from_a_peer_that_stands_still)
{
    CUcontext peer = second_device();
    struct gate gate;
    CUstream stream;
    CUdeviceptr ptr;
    CUresult r;
    bool held;

    OK(cuMemAlloc(&ptr, MIB));
    OK(cuCtxSetCurrent(context));
    r = cuCtxEnablePeerAccess(peer, 0);
    if (r == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
        cr_skip_test("the devices do not reach each other");
    OK(r);
    stream = new_stream();
    OK(cuMemsetD32Async(ptr, NEW, WORDS, stream));
    hold(stream, &gate);
    r = cuCtxDisablePeerAccess(peer);
    held = let_go(&gate);
    OK(r);
    probe("disabled_under_a_host_function", "%s", held ? "at once" : "when it had ended");
    if (under_shim())
        cr_assert(held, "it waited for the host function");
    OK(cuCtxSynchronize());
}

/* ---- A stream of another context --------------------------------------------------------- */

/* Not the next owner's before their stream has got there. */
Test(waits, a_free_in_another_contexts_stream_is_behind_its_work)
{
    CUstream own = new_stream(), theirs;
    CUdeviceptr ptr = 0, fresh = 0;
    CUcontext second;

    OK(cuMemAllocAsync(&ptr, MIB, own));
    OK(cuStreamSynchronize(own));
    second = context_create(device);
    theirs = new_stream();
    OK(launch_spin_fill(theirs, ptr, OLD, WORDS, 20 * MILLISECOND));
    OK(cuMemFreeAsync(ptr, theirs));
    FAILS(cuMemFreeAsync(ptr, theirs));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync(&fresh, MIB, own));
    OK(cuMemsetD32Async(fresh, NEW, WORDS, own));
    OK(cuStreamSynchronize(own));
    OK(cuCtxSetCurrent(second));
    OK(cuStreamSynchronize(theirs));
    kernels_forget();
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(context));
    cr_assert_eq(words_other(fresh, NEW, WORDS), 0, "the old owner's words");
}

/* It comes back in the end, whoever of the two contexts goes first. */
Test(waits, memory_freed_in_another_contexts_stream_comes_back)
{
    for (int first = 0; first < 2; first++) {
        CUstream own = new_stream(), theirs;
        size_t size = part(7), wanted = part(6);
        CUdeviceptr ptr = 0;
        CUcontext second;

        OK(cuMemAllocAsync(&ptr, size, own));
        OK(cuStreamSynchronize(own));
        second = context_create(device);
        theirs = new_stream();
        OK(cuMemFreeAsync(ptr, theirs));
        if (first)
            OK(cuCtxDestroy(second));
        else
            OK(cuStreamSynchronize(theirs));
        OK(cuCtxSetCurrent(context));
        OK(cuMemAllocAsync(&ptr, wanted, own));
        OK(cuMemFreeAsync(ptr, own));
        OK(cuStreamSynchronize(own));
        if (!first)
            OK(cuCtxDestroy(second));
    }
}
