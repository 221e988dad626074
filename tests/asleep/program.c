/*
 * What a program meets that sleeps: each case is a process of its own.
 *
 * usage: asleep CASE, under the library; under-way and unknown want the software driver
 */
#include <cuda.h>
#include <stdatomic.h>

#include "../../shim/gpushim.h"
#include "../conformance/kernels.h"
#include "../conformance/plain.h"
#include "../driver/softcuda.h"
#include "../forbid.h"
#include "tests/system.h"

#define MIB      ((size_t)1 << 20)
#define SIZE     (5 * MIB)
#define WORDS    (SIZE / 4)
#define LONG_NS  UINT64_C(30000000000)
#define SHORT_NS UINT64_C(20000000)
#define WORKERS  3
#define ROUNDS   60

static CUcontext context;
static CUfunction fill, copy_words;

static void *driver_function(const char *name)
{
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);

    if (!found)
        FAIL("the driver has no %s", name);
    return found;
}

static void begin(void)
{
    CUmodule module;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&fill, module, "fill"));
    OK(cuModuleGetFunction(&copy_words, module, "copy_words"));
}

static CUdeviceptr alloc(void)
{
    CUdeviceptr block;

    OK(cuMemAlloc(&block, SIZE));
    return block;
}

static int try_sleep(uint64_t timeout_ns, struct gpushim_asleep *ret)
{
    const struct gpushim_sleep_how how = {.size = sizeof how, .timeout_ns = timeout_ns};

    *ret = (struct gpushim_asleep){.size = sizeof *ret};
    return gpushim_sleep(&how, ret);
}

static void must_sleep(void)
{
    struct gpushim_asleep state;

    if (try_sleep(LONG_NS, &state))
        FAIL("not put to sleep: %s", state.text);
    if (!state.since_ns || state.away == 0)
        FAIL("it says that nothing is away");
}

static void must_wake(void)
{
    struct gpushim_asleep state = {.size = sizeof state};

    if (gpushim_wake(LONG_NS, &state))
        FAIL("not woken: %s", state.text);
    if (state.since_ns || state.away)
        FAIL("it says that something is away");
}

static void must_be(CUdeviceptr block, unsigned value)
{
    unsigned *host = malloc(SIZE);

    OK(cuMemcpyDtoH(host, block, SIZE));
    for (size_t i = 0; i < WORDS; i++)
        if (host[i] != value)
            FAIL("word %zu is %x and not %x", i, host[i], value);
    free(host);
}

static void launch_fill(CUdeviceptr block, unsigned value, CUstream stream)
{
    unsigned long long count = WORDS;
    void *arguments[] = {&block, &value, &count};

    OK(cuLaunchKernel(fill, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

/* ---- Work on several threads ----------------------------------------------------------------- */

static atomic_bool stop;
static atomic_uint rounds;

/* Allocates, fills, copies, launches and frees, and looks at each result. */
static void *work(void *number)
{
    const unsigned seed = (unsigned)(uintptr_t)number << 16;
    CUdeviceptr kept = 0;
    CUstream stream;

    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    kept = alloc();
    OK(cuMemsetD32Async(kept, seed, WORDS, stream));
    for (unsigned i = 1; !atomic_load(&stop); i++) {
        CUdeviceptr a = alloc(), b;
        unsigned long long count = WORDS;
        void *arguments[] = {&b, &a, &count};

        OK(cuMemAllocAsync(&b, SIZE, stream));
        launch_fill(a, seed + i, stream);
        OK(cuLaunchKernel(copy_words, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
        OK(cuMemcpyDtoDAsync(a, kept, SIZE / 2, stream));
        OK(cuStreamSynchronize(stream));
        must_be(b, seed + i);
        must_be(kept, seed);
        OK(cuMemFreeAsync(b, stream));
        OK(cuMemFree(a));
        atomic_fetch_add(&rounds, 1);
    }
    OK(cuStreamSynchronize(stream));
    return NULL;
}

/* Sleeps and wakes while they work; each time they have gone on. */
static void among_workers(void (*sleep_and_wake)(void))
{
    pthread_t workers[WORKERS];

    for (uintptr_t i = 0; i < WORKERS; i++)
        if (pthread_create(&workers[i], NULL, work, (void *)(i + 1)))
            FAIL("no thread");
    for (int i = 0; i < ROUNDS; i++) {
        const unsigned before = atomic_load(&rounds);

        while (atomic_load(&rounds) < before + 2)
            usleep(100);
        sleep_and_wake();
    }
    atomic_store(&stop, true);
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
}

static void by_order(void)
{
    must_sleep();
    must_wake();
}

static void case_work(void)
{
    among_workers(by_order);
}

static void by_use(void)
{
    struct gpushim_asleep state;
    int error;

    do {
        error = try_sleep(LONG_NS, &state);
    } while (error == EBUSY || error == EALREADY); /* a worker is at waking it still */
    if (error)
        FAIL("error %d: %s", error, state.text);
}

/* With sleep.wake = use nobody else wakes it. */
static void case_use(void)
{
    among_workers(by_use);
}

static bool stands(pid_t thread)
{
    char path[64], text[32] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", (int)thread);
    file = fopen(path, "re");
    if (!file)
        return false;
    if (!fgets(text, sizeof text, file))
        text[0] = 0;
    fclose(file);
    return text[0] != 'r' && strtol(text, NULL, 10) == SYS_futex;
}

static _Atomic pid_t waiter;

static CUdeviceptr to_be_freed;

static void *free_it(void *unused)
{
    OK(cuCtxSetCurrent(context));
    atomic_store(&waiter, (pid_t)syscall(SYS_gettid));
    OK(cuMemFree(to_be_freed));
    return NULL;
}

/* With sleep.wake = use, where it cannot be woken: calls that have no memory natively say so, a
 * free waits. Once it can be, all is as it was. */
static void case_refused(void)
{
    __typeof__(&softcuda_fail) fail = (__typeof__(&softcuda_fail))driver_function("softcuda_fail");
    __typeof__(&softcuda_reset) reset =
        (__typeof__(&softcuda_reset))driver_function("softcuda_reset");
    struct gpushim_asleep state = {.size = sizeof state};
    CUdeviceptr block = alloc(), more;
    static char host[SIZE];
    pthread_t thread;

    to_be_freed = alloc();
    OK(cuMemsetD32(block, 6, WORDS));
    must_sleep();
    fail("cuMemMap", 0, CUDA_ERROR_UNKNOWN);
    if (pthread_create(&thread, NULL, free_it, NULL))
        FAIL("no thread");
    for (int i = 0; i < 20; i++)
        if (cuMemcpyDtoH(host, block, SIZE) != CUDA_ERROR_OUT_OF_MEMORY ||
            cuMemsetD32Async(block, 7, WORDS, NULL) != CUDA_ERROR_OUT_OF_MEMORY ||
            cuMemAlloc(&more, SIZE) != CUDA_ERROR_OUT_OF_MEMORY)
            FAIL("not refused");
    while (!stands(atomic_load(&waiter)))
        usleep(100);
    OK(cuMemGetInfo(&(size_t){0}, &(size_t){0}));
    if (gpushim_asleep(&state) || !state.since_ns)
        FAIL("it does not sleep");
    reset();
    must_be(block, 6);
    pthread_join(thread, NULL);
    OK(cuMemsetD32(block, 8, WORDS));
    must_be(block, 8);
}

/* A graph that was made before is launched after. */
static void case_graph(void)
{
    CUdeviceptr a = alloc(), b = alloc();
    CUgraphExec exec;
    CUstream stream;
    CUgraph graph;

    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    launch_fill(a, 77, stream);
    OK(cuMemcpyDtoDAsync(b, a, SIZE, stream));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; i++) {
        OK(cuMemsetD32(a, 1, WORDS));
        OK(cuMemsetD32(b, 2, WORDS));
        must_sleep();
        must_wake();
        must_be(b, 2);
        OK(cuGraphLaunch(exec, stream));
        OK(cuStreamSynchronize(stream));
        must_be(a, 77);
        must_be(b, 77);
    }
}

/* ---- What the program maps itself ------------------------------------------------------------ */

#define PIECE  (2 * MIB)
#define PIECES 6

static CUmemAllocationProp of_gpu(CUmemAllocationHandleType types)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .requestedHandleTypes = types,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
}

static void map_piece(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
    const CUmemAccessDesc access = {of_gpu(CU_MEM_HANDLE_TYPE_NONE).location,
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    OK(cuMemMap(at, PIECE, 0, handle, 0));
    OK(cuMemSetAccess(at, PIECE, &access, 1));
}

static void pieces_must_be(CUdeviceptr base, unsigned value)
{
    unsigned *host = malloc(PIECE);

    for (unsigned i = 0; i < PIECES; i++) {
        OK(cuMemcpyDtoH(host, base + i * PIECE, PIECE));
        for (size_t k = 0; k < PIECE / 4; k++)
            if (host[k] != value + i)
                FAIL("word %zu of piece %u is %x", k, i, host[k]);
    }
    free(host);
}

/* Also while it sleeps. */
static void is_told(CUmemGenericAllocationHandle handle)
{
    CUmemAllocationProp told;

    OK(cuMemGetAllocationPropertiesFromHandle(&told, handle));
    if (told.requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE || told.location.id != 0)
        FAIL("it is told otherwise than it was made");
}

/* Every other piece is made anew after a wake, by numbers that the driver gives again. */
static void case_own(void)
{
    const CUmemAllocationProp prop = of_gpu(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handles[PIECES], retained;
    CUdeviceptr base;

    alloc();
    OK(cuMemAddressReserve(&base, PIECES * PIECE, 0, 0, 0));
    for (unsigned i = 0; i < PIECES; i++) {
        OK(cuMemCreate(&handles[i], PIECE, &prop, 0));
        map_piece(base + i * PIECE, handles[i]);
        OK(cuMemsetD32(base + i * PIECE, i, PIECE / 4));
    }
    for (unsigned round = 0; round < 4; round++) {
        must_sleep();
        is_told(handles[1]);
        must_wake();
        is_told(handles[1]);
        pieces_must_be(base, 100 * round);
        for (unsigned i = round % 2; i < PIECES; i += 2) {
            OK(cuMemUnmap(base + i * PIECE, PIECE));
            OK(cuMemRelease(handles[i]));
        }
        for (unsigned i = round % 2; i < PIECES; i += 2) {
            OK(cuMemCreate(&handles[i], PIECE, &prop, 0));
            map_piece(base + i * PIECE, handles[i]);
        }
        for (unsigned i = 0; i < PIECES; i++) {
            OK(cuMemsetD32(base + i * PIECE, 100 * (round + 1) + i, PIECE / 4));
            OK(cuMemRetainAllocationHandle(&retained, (void *)(base + i * PIECE)));
            if (retained != handles[i])
                FAIL("piece %u has another handle", i);
            OK(cuMemRelease(retained));
        }
    }
    OK(cuMemUnmap(base, PIECES * PIECE));
    for (unsigned i = 0; i < PIECES; i++)
        OK(cuMemRelease(handles[i]));
    if (cuMemRelease(handles[0]) == CUDA_SUCCESS)
        FAIL("a handle is released once too often");
    OK(cuMemAddressFree(base, PIECES * PIECE));
}

/* After a wake it is given away as before; from then on it stays. */
static void case_lent(void)
{
    const CUmemAllocationProp prop = of_gpu(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUmemGenericAllocationHandle handle, imported, mapped;
    struct gpushim_asleep state;
    unsigned word = 0;
    CUdeviceptr base;
    int fd, dma_buf;

    alloc();
    OK(cuMemAddressReserve(&base, 3 * PIECE, 0, 0, 0));
    OK(cuMemCreate(&handle, PIECE, &prop, 0));
    map_piece(base, handle);
    OK(cuMemsetD32(base, 5, PIECE / 4));
    must_sleep();
    must_wake();
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    map_piece(base + PIECE, imported);
    OK(cuMemCreate(&mapped, PIECE, &prop, 0));
    map_piece(base + 2 * PIECE, mapped);
    OK(cuMemGetHandleForAddressRange(&dma_buf, base + 2 * PIECE, PIECE,
                                     CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    if (try_sleep(LONG_NS, &state))
        FAIL("not put to sleep: %s", state.text);
    if (state.shared != 3 * PIECE || state.own != 0)
        FAIL("%zu bytes are shared", (size_t)state.shared);
    must_wake();
    OK(cuMemsetD32(base, 6, PIECE / 4));
    OK(cuMemcpyDtoH(&word, base + PIECE, sizeof word));
    if (word != 6)
        FAIL("what was given away is other memory");
    close(dma_buf);
    close(fd);
}

/* It stays: else the descriptor had other memory than its address, after a wake. */
static void case_dma_buf(void)
{
    const size_t size = 200 * MIB; /* of several pieces */
    struct gpushim_asleep state;
    CUdeviceptr block;
    int fd;

    OK(cuMemAlloc(&block, size));
    OK(cuMemsetD32(block, 5, WORDS));
    OK(cuMemGetHandleForAddressRange(&fd, block, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    if (try_sleep(LONG_NS, &state))
        FAIL("not put to sleep: %s", state.text);
    if (state.shared < size || state.away)
        FAIL("%zu bytes are shared, and %zu away", (size_t)state.shared, (size_t)state.away);
    must_wake();
    must_be(block, 5);
    close(fd);
    OK(cuMemFree(block));
}

/* Of either kind of memory: what is discarded is there again, and anything. */
static void case_tag(void)
{
    const struct gpushim_sleep_how how = {.size = sizeof how,
                                          .timeout_ns = LONG_NS,
                                          .discard = "kv"};
    const CUmemAllocationProp prop = of_gpu(CU_MEM_HANDLE_TYPE_NONE);
    struct gpushim_asleep state = {.size = sizeof state};
    CUmemGenericAllocationHandle handles[2];
    CUdeviceptr kept = alloc(), block, base;

    OK(cuMemAddressReserve(&base, 2 * PIECE, 0, 0, 0));
    if (gpushim_tag("kv"))
        FAIL("no tag");
    block = alloc();
    OK(cuMemCreate(&handles[0], PIECE, &prop, 0));
    if (gpushim_tag(NULL))
        FAIL("it stays");
    OK(cuMemCreate(&handles[1], PIECE, &prop, 0));
    for (unsigned i = 0; i < 2; i++) {
        map_piece(base + i * PIECE, handles[i]);
        OK(cuMemsetD32(base + i * PIECE, 7, PIECE / 4));
    }
    OK(cuMemsetD32(kept, 8, WORDS));
    OK(cuMemsetD32(block, 9, WORDS));
    if (gpushim_sleep(&how, &state))
        FAIL("not put to sleep: %s", state.text);
    if (state.away < 2 * SIZE + 2 * PIECE || state.copied > SIZE + PIECE + MIB)
        FAIL("of %zu bytes %zu are kept", (size_t)state.away, (size_t)state.copied);
    must_wake();
    must_be(kept, 8);
    OK(cuMemsetD32(block, 10, WORDS));
    must_be(block, 10);
    OK(cuMemsetD32(base, 11, PIECE / 4));
    must_sleep();
    must_wake();
    must_be(block, 10);
}

/* ---- Who is waited for, and who waits -------------------------------------------------------- */

static CUdeviceptr shared_block;
static atomic_bool began, done;

static void *read_back(void *unused)
{
    static char host[SIZE];

    OK(cuCtxSetCurrent(context));
    atomic_store(&began, true);
    OK(cuMemcpyDtoH(host, shared_block, SIZE));
    atomic_store(&done, true);
    return NULL;
}

/* A call that does not return is named, and the gate opens again. */
static void case_under_way(void)
{
    __typeof__(&softcuda_hold) hold;
    struct gpushim_asleep state;
    pthread_t thread;
    int error;

    shared_block = alloc();
    hold = (__typeof__(&softcuda_hold))driver_function("softcuda_hold");
    hold(1);
    launch_fill(shared_block, 5, NULL);
    if (pthread_create(&thread, NULL, read_back, NULL))
        FAIL("no thread");
    while (!atomic_load(&began))
        usleep(100);
    do { /* it may be on its way to the call still */
        error = try_sleep(SHORT_NS, &state);
        if (error != EBUSY)
            FAIL("error %d: %s", error, state.text);
    } while (!strstr(state.text, "cuMemcpyDtoH_v2"));
    if (state.since_ns)
        FAIL("it is said to sleep");
    hold(0);
    pthread_join(thread, NULL);
    must_sleep();
    must_wake();
    must_be(shared_block, 5);
}

static atomic_uint signals;

static void count_signal(int number)
{
    atomic_fetch_add(&signals, 1);
}

/* What is answered of an address. */
static void ask(CUdeviceptr at)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUpointer_attribute what = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    unsigned long long flags;
    CUmemorytype type = 0;
    void *answers[] = {&type};
    CUdeviceptr base;
    size_t size;

    OK(cuMemGetAddressRange(&base, &size, at));
    OK(cuMemGetAccess(&flags, &here, at));
    OK(cuPointerGetAttribute(&type, what, at));
    if (type != CU_MEMORYTYPE_DEVICE || base != at)
        FAIL("it is said to be of kind %u", (unsigned)type);
    type = 0;
    OK(cuPointerGetAttributes(1, &what, answers, at));
    if (type != CU_MEMORYTYPE_DEVICE)
        FAIL("it is said to be of kind %u among others", (unsigned)type);
}

static void *ask_of_shared_block(void *unused)
{
    OK(cuCtxSetCurrent(context));
    atomic_store(&waiter, (pid_t)syscall(SYS_gettid));
    ask(shared_block);
    atomic_store(&done, true);
    return NULL;
}

/* Questions about what is away wait for it; others are answered. */
static void case_asks(void)
{
    const CUmemAllocationProp prop = of_gpu(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle;
    CUpointer_attribute what = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    CUdeviceptr blocks[2] = {alloc()};
    CUmemorytype type;
    pthread_t thread;

    OK(cuMemAddressReserve(&blocks[1], PIECE, 0, 0, 0));
    OK(cuMemCreate(&handle, PIECE, &prop, 0));
    map_piece(blocks[1], handle);
    for (int i = 0; i < 2; i++) {
        shared_block = blocks[i];
        atomic_store(&waiter, 0);
        atomic_store(&done, false);
        must_sleep();
        if (pthread_create(&thread, NULL, ask_of_shared_block, NULL))
            FAIL("no thread");
        while (!atomic_load(&waiter) || !stands(atomic_load(&waiter)))
            usleep(100);
        if (atomic_load(&done))
            FAIL("what is away was told of");
        if (cuPointerGetAttribute(&type, what, (CUdeviceptr)&type) != CUDA_ERROR_INVALID_VALUE)
            FAIL("the host's memory is told of");
        must_wake();
        pthread_join(thread, NULL);
    }
}

static void *fill_and_free(void *unused)
{
    OK(cuCtxSetCurrent(context));
    atomic_store(&waiter, (pid_t)syscall(SYS_gettid));
    errno = 4711;
    OK(cuMemsetD32(shared_block, 9, WORDS));
    if (errno != 4711)
        FAIL("errno is %d after the wait", errno);
    atomic_store(&done, true);
    return NULL;
}

/* With sleep.wake = use: whoever calls wakes it on the stack that it has, also where the GPU is
 * full at first and others are asked. */
static void case_small(void)
{
    __typeof__(&softcuda_fail) fail = (__typeof__(&softcuda_fail))driver_function("softcuda_fail");
    pthread_attr_t attributes;
    pthread_t thread;

    shared_block = alloc();
    pthread_attr_init(&attributes);
    for (int i = 0; i < 2; i++) {
        must_sleep();
        if (i == 1)
            fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
        if (pthread_attr_setstacksize(&attributes, 16384) ||
            pthread_create(&thread, &attributes, fill_and_free, NULL))
            FAIL("no thread");
        pthread_join(thread, NULL);
        must_be(shared_block, 9);
    }
    pthread_attr_destroy(&attributes);
}

/* Signals are the program's: their handlers run, and the call goes on afterwards. */
static void case_signals(void)
{
    struct sigaction action = {.sa_handler = count_signal};
    pthread_t thread;

    sigaction(SIGUSR1, &action, NULL);
    shared_block = alloc();
    must_sleep();
    if (pthread_create(&thread, NULL, fill_and_free, NULL))
        FAIL("no thread");
    for (unsigned i = 1; i <= 20; i++) {
        while (!atomic_load(&waiter) || !stands(atomic_load(&waiter)))
            usleep(100);
        pthread_kill(thread, SIGUSR1);
        while (atomic_load(&signals) < i)
            usleep(100);
    }
    if (atomic_load(&done))
        FAIL("the call is done");
    must_wake();
    pthread_join(thread, NULL);
    must_be(shared_block, 9);
}

/* What the program is told of free memory does not change while it sleeps. */
static void case_info(void)
{
    size_t free_before, free_now, total_before, total_now;

    alloc();
    must_sleep();
    must_wake();
    OK(cuMemGetInfo(&free_before, &total_before));
    must_sleep();
    OK(cuMemGetInfo(&free_now, &total_now));
    if (free_now != free_before || total_now != total_before)
        FAIL("%zu of %zu are free, and were %zu of %zu", free_now, total_now, free_before,
             total_before);
    must_wake();
}

static int within;

static void freed(void *unused, uint64_t address, size_t size)
{
    struct gpushim_asleep state;

    within = try_sleep(SHORT_NS, &state);
}

static void case_within(void)
{
    static const struct gpushim_listener listener = {.size = sizeof listener, .freed = freed};
    CUdeviceptr block = alloc();

    if (gpushim_listen(&listener))
        FAIL("no listener");
    OK(cuMemFree(block));
    if (within != EDEADLK)
        FAIL("within a call: error %d", within);
    alloc();
    must_sleep();
    must_wake();
}

/* ---- Calls that nobody knows ----------------------------------------------------------------- */

static void case_unknown(void)
{
    struct gpushim_asleep state;
    CUresult (*look_up)(const char *, void **, int, cuuint64_t, void *) =
        (CUresult (*)(const char *, void **, int, cuuint64_t, void *))dlsym(RTLD_DEFAULT,
                                                                            "cuGetProcAddress_v2");
    void *found;
    int error;

    alloc();
    OK(look_up("cuLaunchKernelNext", &found, 14000, 0, NULL));
    error = try_sleep(LONG_NS, &state);
    if (error != ENOTSUP || !strstr(state.text, "cuLaunchKernelNext"))
        FAIL("error %d: %s", error, state.text);
}

/* ---- What the system forbids ----------------------------------------------------------------- */

struct forbidden {
    unsigned call;
    const char *word;
};

static void *sleep_without(void *arg)
{
    const struct forbidden *forbidden = arg;
    struct gpushim_asleep state;
    int error;

    OK(cuCtxSetCurrent(context));
    if (!forbid_call(forbidden->call, SECCOMP_RET_ERRNO | ENOSYS))
        FAIL("no filter of calls");
    error = try_sleep(LONG_NS, &state);
    if (error != ENOTSUP || !strstr(state.text, forbidden->word))
        FAIL("without %s: error %d: %s", forbidden->word, error, state.text);
    OK(cuMemsetD32(shared_block, 5, WORDS)); /* the gate is open */
    return NULL;
}

/* Where threads cannot be looked at, or be told, no gate is closed for good. */
static void case_forbidden(void)
{
    static struct forbidden calls[] = {{SYS_membarrier, "membarrier"},
                                       {SYS_get_robust_list, "get_robust_list"},
                                       {SYS_process_vm_readv, "process_vm_readv"}};
    pthread_t thread;

    shared_block = alloc();
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (pthread_create(&thread, NULL, sleep_without, &calls[i]))
            FAIL("no thread");
        pthread_join(thread, NULL);
    }
    must_sleep();
    must_wake();
    must_be(shared_block, 5);
}

/* ---- Ends ------------------------------------------------------------------------------------ */

/* A child that is forked meanwhile passes all on, and so does what it becomes. */
static void case_fork(void)
{
    CUdeviceptr block = alloc();
    pid_t child;
    int status;

    OK(cuMemsetD32(block, 3, WORDS));
    must_sleep();
    child = fork();
    if (child == 0) {
        struct gpushim_asleep state = {.size = sizeof state};

        cuMemFree(block); /* of the parent's: whatever it says, it does not wait */
        _exit(gpushim_asleep(&state) == ENODEV ? 7 : 1);
    }
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        FAIL("the child ended with %x", status);
    child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "program", "work", (char *)NULL);
        _exit(1);
    }
    if (waitpid(child, &status, 0) != child || status != 0)
        FAIL("what the child became ended with %x", status);
    must_wake();
    must_be(block, 3);
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {
    {"work", case_work},       {"graph", case_graph},     {"under-way", case_under_way},
    {"signals", case_signals}, {"info", case_info},       {"within", case_within},
    {"unknown", case_unknown}, {"fork", case_fork},       {"forbidden", case_forbidden},
    {"use", case_use},         {"refused", case_refused}, {"small", case_small},
    {"own", case_own},         {"lent", case_lent},       {"dma-buf", case_dma_buf},
    {"tag", case_tag},         {"asks", case_asks},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) {
            begin();
            return cases[i].run(), 0;
        }
    FAIL("usage: asleep CASE");
}
