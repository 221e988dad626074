/*
 * Memory that somebody else made: what the driver does with it natively, on which external memory
 * rests (gpushim_attach), and under the shim that itself, with another process that opens it.
 */
#include "peer.h"
#include "two.h"

#include <criterion/criterion.h>

#include "shim/gpushim.h"

TestSuite(external, .init = conform_start, .timeout = 60);

#define SIZE  (4 * MIB)
#define WORDS (SIZE / 4)
#define AT    ((off_t)4096) /* where in a memfd it begins */
#define LONG  UINT64_C(30000000000)

static int memfd_new(void)
{
    int fd = memfd_create("external", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd >= 0 && ftruncate(fd, AT + (off_t)SIZE) == 0);
    return fd;
}

static int exported_new(CUmemGenericAllocationHandle *ret_handle)
{
    const CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    int fd = -1;

    OK(cuMemCreate(ret_handle, SIZE, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, *ret_handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    return fd;
}

/* ---- Natively: what it rests on -------------------------------------------------------------- */

static uint32_t word_in(int fd, size_t word)
{
    uint32_t value = 0;

    cr_assert_eq(pread(fd, &value, sizeof value, AT + (off_t)(4 * word)), (ssize_t)sizeof value);
    return value;
}

Test(external, a_mapped_memfd_is_registered_at_its_own_address)
{
    int fd = memfd_new(), same = 0;
    void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, AT);
    CUdeviceptr address = 0;
    CUmemorytype type = 0;

    OK(cuDeviceGetAttribute(&same, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0));
    OK(cuMemHostRegister(memory, SIZE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address, memory, 0));
    cr_assert_eq(address == (uintptr_t)memory, same);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    cr_assert_eq((int)type, CU_MEMORYTYPE_HOST);
    OK(fill_now(address, 7, WORDS));
    cr_assert_eq(word_in(fd, WORDS - 1), 7);
    close(fd); /* the mapping is enough */
    OK(fill_now(address, 8, WORDS));
    cr_assert_eq(((uint32_t *)memory)[5], 8);
    OK(cuMemHostUnregister(memory));
    FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
}

Test(external, registering_for_reading)
{
    int fd = memfd_new(), supported = 0;
    void *memory = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, AT);
    CUdeviceptr block;
    CUresult result;

    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 0));
    probe("read_only_host_register_supported", "%d", supported);
    result =
        cuMemHostRegister(memory, SIZE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    probe("register_what_is_mapped_for_reading", "%s", result_name(result));
    if (result == CUDA_SUCCESS)
        OK(cuMemHostUnregister(memory));
    result = cuMemHostRegister(memory, SIZE,
                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                   CU_MEMHOSTREGISTER_READ_ONLY);
    probe("register_it_for_reading", "%s", result_name(result));
    cr_assert_eq(result == CUDA_SUCCESS, supported);
    if (result == CUDA_SUCCESS) {
        OK(cuMemAlloc(&block, SIZE));
        OK(cuMemcpyDtoD(block, (uintptr_t)memory, SIZE));
        result = cuMemsetD32((uintptr_t)memory, 1, 1);
        probe("fill_what_is_registered_for_reading", "%s", result_name(result));
        OK(cuMemFree(block));
        OK(cuMemHostUnregister(memory));
    }
}

/* ---- Under the shim -------------------------------------------------------------------------- */

static __typeof__(&gpushim_attach) attach;
static __typeof__(&gpushim_detach) detach;

static void find_functions(void)
{
    if (!under_shim())
        cr_skip("the function is the library's");
    attach = (__typeof__(attach))dlsym(RTLD_DEFAULT, "gpushim_attach");
    detach = (__typeof__(detach))dlsym(RTLD_DEFAULT, "gpushim_detach");
    cr_assert(attach && detach);
}

static unsigned deleted; /* atomic */
static CUcontext deleted_in;
static CUresult deleter_called;

/* Calls CUDA. */
static void count_deleted(void *arg)
{
    CUdeviceptr block;

    cuCtxGetCurrent(&deleted_in);
    deleter_called = cuMemAlloc(&block, 512);
    if (deleter_called == CUDA_SUCCESS)
        deleter_called = cuMemFree(block);
    __atomic_add_fetch(&deleted, 1, __ATOMIC_SEQ_CST);
}

static struct gpushim_external external_of(int fd, bool host)
{
    return (struct gpushim_external){.size = sizeof(struct gpushim_external),
                                     .kind = host ? GPUSHIM_MEMFD : GPUSHIM_EXPORTED,
                                     .access = GPUSHIM_MUTABLE,
                                     .fd = fd,
                                     .offset = host ? (uint64_t)AT : 0,
                                     .bytes = SIZE,
                                     .deleter = count_deleted};
}

/* Attached, asked, written from both ends, detached while it is open and while the GPU is at it. */
static void is_shared(struct gpushim_external external)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr base = 0, there = 0;
    uint64_t address = 0;
    CUipcMemHandle handle;
    CUmemorytype type = 0;
    size_t size = 0;

    cr_assert_eq(attach(&external, &address), 0);
    OK(cuMemGetAddressRange(&base, &size, address + 5));
    cr_assert(base == address && size == SIZE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    cr_assert_eq((int)type,
                 external.kind == GPUSHIM_MEMFD ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    OK(fill_now(address, 3, WORDS));
    OK(cuIpcGetMemHandle(&handle, address));
    OK(peer_open(peer, &handle, &there));
    cr_assert_eq(peer_other(peer, there, 3, WORDS), 0);
    OK(peer_fill(peer, there, 4, WORDS));
    cr_assert_eq(words_other(address, 4, WORDS), 0);
    OK(launch_spin_fill(NULL, address, 5, WORDS, 20 * MILLISECOND));
    cr_assert_eq(detach(address, 0), EBUSY);
    cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), 0);
    OK(cuCtxSynchronize());
    cr_assert_eq(peer_other(peer, there, 5, WORDS), 0, "work that was under way did not get there");
    cr_assert_eq(detach(address, 20 * MILLISECOND), EBUSY, "it ends while it is open");
    OK(peer_close(peer, there));
    cr_assert(detach(address, LONG) == 0 || __atomic_load_n(&deleted, __ATOMIC_SEQ_CST) == 1);
    cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), 1);
    cr_assert_eq(deleted_in, context);
    OK(deleter_called);
    FAILS(peer_open(peer, &handle, &there));
    FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    peer_quit(peer);
}

Test(external, what_cuda_exported_is_attached_and_shared)
{
    CUmemGenericAllocationHandle handle;
    int fd;

    find_functions();
    fd = exported_new(&handle);
    is_shared(external_of(fd, false));
}

/* The driver has no memory for its page tables. */
Test(external, what_a_peer_may_not_touch_is_not_attached)
{
    const struct software *driver = software();
    CUmemGenericAllocationHandle handle;
    struct gpushim_external external;
    uint64_t address = 77;

    if (!driver)
        cr_skip_test("a real driver refuses when it must, not when it is told to");
    two_devices(2 * MIB);
    find_functions();
    OK(cuCtxSetCurrent(second));
    OK(cuCtxEnablePeerAccess(context, 0));
    OK(cuCtxSetCurrent(context));
    external = external_of(exported_new(&handle), false);
    driver->fail("cuMemSetAccess", 2,
                 CUDA_ERROR_OUT_OF_MEMORY); /* the first one is its own device's */
    cr_assert_neq(attach(&external, &address), 0);
    cr_assert_eq(address, 77);
    cr_assert_eq(attach(&external, &address), 0, "something is left of it");
    OK(fill_now(address, 3, WORDS));
    cr_assert_eq(detach(address, LONG), 0);
    cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), 1,
                 "once, by the one that was attached");
}

Test(external, a_memfd_is_attached_and_shared)
{
    int fd;

    find_functions();
    fd = memfd_new();
    is_shared(external_of(fd, true));
    cr_assert_eq(word_in(fd, 0), 5);
    cr_assert_eq(word_in(fd, WORDS - 1), 5);
}

/* A dma-buf of a device's memory is one more descriptor to it: the driver's import says. A refusal
 * leaves nothing. */
Test(external, a_dma_buf_is_attached_where_the_driver_imports_it)
{
    struct gpushim_external external;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    uint64_t address = 0;
    CUdeviceptr base;
    CUresult result;
    int dma_buf = -1, error;

    find_functions();
    exported_new(&handle);
    OK(cuMemAddressReserve(&base, SIZE, 0, 0, 0));
    OK(cuMemMap(base, SIZE, 0, handle, 0));
    OK(cuMemSetAccess(base, SIZE, &access, 1));
    result =
        cuMemGetHandleForAddressRange(&dma_buf, base, SIZE, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (result == CUDA_SUCCESS) {
        external = external_of(dma_buf, false);
        error = attach(&external, &address);
        probe("attach_a_dma_buf", "%d", error);
        cr_assert(error == 0 || error == ENOTSUP || error == EINVAL, "%d", error);
        OK(fill_now(base, 8, WORDS));
        if (error == 0) {
            cr_assert_eq(words_other(address, 8, WORDS), 0);
            cr_assert_eq(detach(address, LONG), 0);
        }
        cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), error == 0);
        close(dma_buf);
    }
}

/* A holder that is killed holds no longer than its process lives; one that stays keeps what it
 * has. */
Test(external, importers_that_end_let_it_go)
{
    struct peer *peer;
    struct gpushim_external external;
    uint64_t address;

    find_functions();
    peer = peer_start(-1);
    external = external_of(memfd_new(), true);
    cr_assert_eq(attach(&external, &address), 0);
    peer_opens(peer, address);
    cr_assert_eq(detach(address, 0), EBUSY);
    peer_kill(peer);
    cr_assert(detach(address, LONG) == 0 || __atomic_load_n(&deleted, __ATOMIC_SEQ_CST) == 1);
    cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), 1);
}

/* Where the GPU takes host memory for reading alone. */
static void is_for_reading(struct gpushim_external external)
{
    struct peer *peer = peer_start(-1);
    CUdeviceptr there = 0;
    uint64_t address;
    uint32_t other = 1;
    int error;

    external.access = GPUSHIM_READ_ONLY;
    error = attach(&external, &address);
    probe(external.kind == GPUSHIM_MEMFD ? "attach_a_memfd_for_reading" : "attach_for_reading",
          "%d", error);
    if (error == 0) {
        there = peer_opens(peer, address);
        OK(peer_count_other(peer, there, 0, 1, &other));
        OK(peer_close(peer, there));
        cr_assert_eq(detach(address, LONG), 0);
    } else {
        cr_assert(external.kind == GPUSHIM_MEMFD && error == ENOTSUP);
    }
    peer_quit(peer);
}

Test(external, it_is_attached_for_reading)
{
    CUmemGenericAllocationHandle handle;
    int fd, memfd;

    find_functions();
    fd = exported_new(&handle);
    memfd = memfd_new();
    is_for_reading(external_of(fd, false));
    is_for_reading(external_of(memfd, true));
}

Test(external, memory_of_the_programs_own_is_attached_where_it_is)
{
    void *plain = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct gpushim_external external;
    CUdeviceptr managed;
    uint64_t address;
    CUmemorytype type;

    find_functions();
    external = external_of(-1, false);
    external.kind = GPUSHIM_ADDRESS;
    external.address = (uintptr_t)plain;
    cr_assert_eq(attach(&external, &address), 0);
    cr_assert_eq(address, (uintptr_t)plain);
    OK(fill_now(address, 6, WORDS));
    cr_assert_eq(*(uint32_t *)plain, 6);
    cr_assert_eq(detach(address, LONG), 0);
    FAILS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    munmap(plain, SIZE);
    OK(cuMemAllocManaged(&managed, SIZE, CU_MEM_ATTACH_GLOBAL));
    external.address = managed;
    cr_assert_eq(attach(&external, &address), 0);
    cr_assert_eq(detach(address, LONG), 0);
    cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), 2);
}

/* To register is what a capture of this thread is broken by, and so is the end of it, which comes
 * when the GPU is done. */
Test(external, a_capture_is_left_whole)
{
    CUstream stream = new_stream();
    struct gpushim_external external;
    uint64_t before, within;
    CUgraph graph;

    find_functions();
    external = external_of(memfd_new(), true);
    cr_assert_eq(attach(&external, &before), 0);
    OK(launch_spin_fill(NULL, before, 5, WORDS, 20 * MILLISECOND));
    cr_assert_eq(detach(before, 0), EBUSY);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    external.fd = memfd_new();
    cr_assert_eq(attach(&external, &within), 0);
    if (under_shim_with_events()) /* others wait for the context, and so until it ends */
        cr_assert_eq(detach(before, LONG), 0);
    cr_assert_eq(detach(within, 0), EBUSY);
    OK(cuStreamEndCapture(stream, &graph));
    cr_assert_eq(detach(within, LONG), 0);
    OK(cuGraphDestroy(graph));
}

Test(external, it_ends_with_its_context)
{
    struct gpushim_external external;
    uint64_t address;
    CUcontext other;
    int fd;

    find_functions();
    fd = memfd_new();
    other = context_create(device);
    external = external_of(fd, true);
    cr_assert_eq(attach(&external, &address), 0);
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(context));
    cr_assert(detach(address, LONG) != EBUSY);
    cr_assert_eq(__atomic_load_n(&deleted, __ATOMIC_SEQ_CST), 1);
    cr_assert_eq(deleted_in, context, "not in the primary context");
}

Test(external, what_does_not_fit_is_refused)
{
    CUmemGenericAllocationHandle handle;
    struct gpushim_external external;
    uint64_t address = 1;
    int fd;

    find_functions();
    fd = exported_new(&handle);
    external = external_of(fd, false);
    external.bytes = 2 * SIZE;
    cr_assert_eq(attach(&external, &address), EINVAL);
    external.bytes = SIZE / 2;
    cr_assert_eq(attach(&external, &address), EINVAL);
    external = external_of(fd, true);
    probe("attach_what_cuda_exported_as_a_memfd", "%d", attach(&external, &address));
    cr_assert_eq(attach(&external, &address), EINVAL);
    cr_assert_eq(address, 1);
}
