/*
 * Each driver call failing in turn: a program that allocates, frees, maps memory of its own,
 * attaches what others made, shares, opens, trims, captures and destroys a context is run again and
 * again, and each time another one of all the driver calls that it and the library make fails.
 * Whatever it was, afterwards every block that is live can be freed, once; the figures of memory
 * are what they were at the beginning; and with the context everything goes back to the driver.
 *
 *   faults [--errors N] [--from N] [--to N]
 *
 * Runs under the library on the software driver. Each run is a process of its own, with one more
 * that it shares with and that nothing fails for. --errors: how many of the errors each call gives,
 * one after the other where it is 1 (default), all of them in turn where it is 3. The last line is
 * "faults: ok N calls in N runs", or what went wrong and at which call.
 */
#include <cuda.h>

#include "../driver/softcuda.h"
#include "shim/gpushim.h"
#include "tests/system.h"

#define MIB         ((size_t)1 << 20)
#define BLOCKS      64
#define OWN_PIECES  3
#define RUN_SECONDS 60
#define DETACH_NS   UINT64_C(10000000000)
#define BACK_MS     15000 /* until all memory is back: other processes' leases end meanwhile */

static struct {
    __typeof__(&gpushim_attach) attach;
    __typeof__(&gpushim_detach) detach;
} gpushim;

static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                  CUDA_ERROR_NOT_SUPPORTED};
#define ERRORS (sizeof errors / sizeof *errors)

struct run {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUdeviceptr block[BLOCKS]; /* live */
    bool ordered[BLOCKS];
    unsigned count;
    int peer; /* socket to the process that it shares with */
};

static void wrong(const char *what, long long a, long long b)
{
    printf("faults: wrong: %s (%lld, %lld), %s had failed\n", what, a, b, softcuda_last_failed());
    fflush(stdout);
    _exit(1);
}

static void must(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        wrong(call, result, 0);
}
#define MUST(call) must((call), #call)

/* One that fails now goes when nothing fails any more. */
#define MUST_END(call)                \
    do {                              \
        if ((call) != CUDA_SUCCESS) { \
            softcuda_reset();         \
            MUST(call);               \
        }                             \
    } while (0)

/* ---- the other process ---- */

static bool tell(int socket, const void *data, size_t size)
{
    return send(socket, data, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool hear(int socket, void *data, size_t size)
{
    return recv(socket, data, size, MSG_WAITALL) == (ssize_t)size;
}

/* Maps memory of its own; its pieces. */
static CUdeviceptr own_pieces(CUdevice device)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle made;
    CUdeviceptr base;

    MUST(cuMemAddressReserve(&base, OWN_PIECES * 2 * MIB, 0, 0, 0));
    for (int i = 0; i < OWN_PIECES; i++) {
        MUST(cuMemCreate(&made, 2 * MIB, &prop, 0));
        MUST(cuMemMap(base + (size_t)i * 2 * MIB, 2 * MIB, 0, made, 0));
        MUST(cuMemRelease(made));
    }
    MUST(cuMemSetAccess(base, OWN_PIECES * 2 * MIB, &access, 1));
    return base;
}

/* Shares one block, and memory that it maps itself; opens, touches and closes each one whose handle
 * it is told. */
static void peer(int socket)
{
    CUipcMemHandle handle;
    CUcontext context;
    CUdeviceptr own, opened;
    CUdevice device;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc(&own, 64 << 10));
    MUST(cuIpcGetMemHandle(&handle, own));
    tell(socket, &handle, sizeof handle);
    MUST(cuIpcGetMemHandle(&handle, own_pieces(device)));
    tell(socket, &handle, sizeof handle);
    while (hear(socket, &handle, sizeof handle)) {
        char done = 0;

        if (cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ==
            CUDA_SUCCESS) {
            MUST(cuMemsetD8(opened, 1, 512));
            MUST(cuIpcCloseMemHandle(opened));
            done = 1;
        }
        tell(socket, &done, 1);
    }
    _exit(0);
}

/* ---- the steps; any call may fail ---- */

static void allocate(struct run *run, size_t size, bool ordered)
{
    CUdeviceptr *block = &run->block[run->count];

    if ((ordered ? cuMemAllocAsync(block, size, run->stream) : cuMemAlloc(block, size)) !=
        CUDA_SUCCESS)
        return;
    run->ordered[run->count++] = ordered;
    cuMemsetD8Async(*block, 7, size, run->stream);
}

/* One that cannot be freed now stays; it is tried again in the end. */
static void release(struct run *run, unsigned i)
{
    if (i >= run->count)
        return;
    if ((run->ordered[i] ? cuMemFreeAsync(run->block[i], run->stream) : cuMemFree(run->block[i])) !=
        CUDA_SUCCESS)
        return;
    run->count--;
    run->block[i] = run->block[run->count];
    run->ordered[i] = run->ordered[run->count];
}

static void many(struct run *run)
{
    CUdeviceptr rows;
    size_t pitch;

    for (int i = 0; i < 12; i++) {
        allocate(run, i % 4 == 3 ? 3 * MIB : (size_t)(i + 1) * 5000, i % 2);
        if (i % 3 == 2)
            release(run, (unsigned)i / 2);
    }
    if (cuMemAllocPitch(&rows, &pitch, 1000, 16, 4) == CUDA_SUCCESS) {
        run->block[run->count] = rows;
        run->ordered[run->count++] = false;
    }
    for (int i = 0; i < 6; i++) {
        allocate(run, 64 << 10, false);
        release(run, run->count - 1);
    }
    cuStreamSynchronize(run->stream);
}

/* The other process opens it, and closes it again. False: it has no handle. */
static bool lend(struct run *run, CUdeviceptr block)
{
    CUipcMemHandle handle;
    char done;

    if (cuIpcGetMemHandle(&handle, block) != CUDA_SUCCESS)
        return false;
    if (!tell(run->peer, &handle, sizeof handle) || !hear(run->peer, &done, 1))
        wrong("the other process has ended", 0, 0);
    return true;
}

static void share(struct run *run)
{
    CUipcMemHandle handle;

    if (run->count > 2 && cuIpcGetMemHandle(&handle, run->block[0]) == CUDA_SUCCESS &&
        lend(run, run->block[1]))
        release(run, 1);
}

/* Memory that the program makes and maps itself, shared as any other. */
static void own(struct run *run)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = run->device};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = here};
    CUmemAccessDesc access = {.location = here, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle made;
    size_t mapped = 0;
    CUdeviceptr base;

    if (cuMemAddressReserve(&base, OWN_PIECES * 2 * MIB, 0, 0, 0) != CUDA_SUCCESS)
        return;
    for (int i = 0; i < OWN_PIECES; i++) {
        if (cuMemCreate(&made, 2 * MIB, &prop, 0) != CUDA_SUCCESS)
            break;
        if (cuMemMap(base + mapped, 2 * MIB, 0, made, 0) == CUDA_SUCCESS)
            mapped += 2 * MIB;
        MUST_END(cuMemRelease(made));
    }
    if (mapped > 0 && cuMemSetAccess(base, mapped, &access, 1) == CUDA_SUCCESS)
        lend(run, base);
    if (mapped > 0)
        MUST_END(cuMemUnmap(base, mapped));
    MUST_END(cuMemAddressFree(base, OWN_PIECES * 2 * MIB));
}

static unsigned attached, deleted;

static void count_deleted(void *arg)
{
    __atomic_add_fetch(&deleted, 1, __ATOMIC_SEQ_CST);
}

/* Attached, shared and detached; the deleter of what was attached is called, once. */
static void external(struct run *run, struct gpushim_external external)
{
    uint64_t address;

    external.size = sizeof external;
    external.access = GPUSHIM_MUTABLE;
    external.device = run->device;
    external.deleter = count_deleted;
    if (gpushim.attach(&external, &address) != 0)
        return;
    attached++;
    cuMemsetD8Async(address, 7, 4096, run->stream);
    if (external.kind != GPUSHIM_ADDRESS)
        lend(run, address);
    if (gpushim.detach(address, DETACH_NS) != 0) {
        softcuda_reset();
        if (gpushim.detach(address, DETACH_NS) == EBUSY)
            wrong("external memory does not end", external.kind, 0);
    }
    if (__atomic_load_n(&deleted, __ATOMIC_SEQ_CST) != attached)
        wrong("deleters were not called once each", deleted, attached);
}

static void externals(struct run *run)
{
    const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = run->device};
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = here,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    int memfd = memfd_create("external", MFD_CLOEXEC | MFD_ALLOW_SEALING), fd;
    void *plain = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUmemGenericAllocationHandle made;

    if (memfd < 0 || ftruncate(memfd, 2 * MIB) != 0 || plain == MAP_FAILED)
        wrong("no memory of the host", memfd, 0);
    external(run, (struct gpushim_external){.kind = GPUSHIM_MEMFD, .fd = memfd, .bytes = 2 * MIB});
    external(run, (struct gpushim_external){.kind = GPUSHIM_ADDRESS,
                                            .address = (uintptr_t)plain,
                                            .bytes = 2 * MIB});
    if (cuMemCreate(&made, 2 * MIB, &prop, 0) == CUDA_SUCCESS) {
        if (cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
            CUDA_SUCCESS) {
            external(run, (struct gpushim_external){.kind = GPUSHIM_EXPORTED,
                                                    .fd = fd,
                                                    .bytes = 2 * MIB});
            close(fd);
        }
        MUST_END(cuMemRelease(made));
    }
    close(memfd);
    munmap(plain, 2 * MIB);
}

static void import(const CUipcMemHandle *handle)
{
    CUdeviceptr opened;

    if (cuIpcOpenMemHandle(&opened, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS)
        return;
    cuMemsetD8(opened, 2, 512);
    MUST_END(cuIpcCloseMemHandle(opened));
}

static void ask(struct run *run)
{
    CUmemoryPool pool;
    CUdeviceptr base;
    size_t free_bytes, total;
    unsigned long long id;

    cuMemGetInfo(&free_bytes, &total);
    if (run->count) {
        cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, run->block[0]);
        cuMemGetAddressRange(&base, &total, run->block[0]);
    }
    if (cuDeviceGetDefaultMemPool(&pool, run->device) == CUDA_SUCCESS)
        cuMemPoolTrimTo(pool, 0);
}

static void capture(struct run *run)
{
    CUgraph graph = NULL;
    CUstream stream;

    if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return;
    if (cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS) {
        allocate(run, 9000, false);
        release(run, run->count - 1);
        MUST_END(cuStreamEndCapture(stream, &graph));
        MUST_END(cuGraphDestroy(graph));
    }
    MUST_END(cuStreamDestroy(stream));
}

/* A context that ends with what is live in it. */
static void visit(struct run *run)
{
    CUcontext context, popped;
    CUdeviceptr block;

#if CUDA_VERSION >= 13000
    if (cuCtxCreate(&context, NULL, 0, run->device) != CUDA_SUCCESS)
        return;
#else
    if (cuCtxCreate(&context, 0, run->device) != CUDA_SUCCESS)
        return;
#endif
    for (int i = 0; i < 4; i++)
        if (cuMemAlloc(&block, i % 2 ? 3 * MIB : 8192) == CUDA_SUCCESS && i == 3)
            cuMemFree(block);
    /* The driver's own stream-ordered memory does not go with its context. */
    if (cuMemAllocAsync(&block, 3 * MIB, NULL) == CUDA_SUCCESS)
        MUST_END(cuMemFreeAsync(block, NULL));
    MUST_END(cuCtxDestroy(context));
    if (cuCtxGetCurrent(&popped) != CUDA_SUCCESS || popped != run->context)
        cuCtxSetCurrent(run->context);
}

/* ---- one run ---- */

static uint64_t used(const struct run *run)
{
    cuuint64_t bytes;
    CUmemoryPool pool;

    MUST(cuDeviceGetDefaultMemPool(&pool, run->device));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
}

static size_t free_bytes(void)
{
    size_t bytes, total;

    MUST(cuMemGetInfo(&bytes, &total));
    return bytes;
}

static void pause_ms(unsigned ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};

    nanosleep(&time, NULL);
}

/* A driver that does not take something back keeps it: one of it. */
static bool was_not_taken_back(void)
{
    static const char *const calls[] = {"cuMemRelease", "cuMemUnmap", "cuMemAddressFree",
                                        "cuEventDestroy", "cuMemHostUnregister"};

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(calls[i], softcuda_last_failed()))
            return true;
    return false;
}

static bool is_clear(const struct softcuda_census *census)
{
    unsigned most = was_not_taken_back();

    /* What is mapped in pieces is unmapped by one call. An arena keeps both its regions as long as
     * a piece lies in one. */
    return census->handles <= most && census->mappings <= most * OWN_PIECES &&
           census->reservations <= most * 2 && census->host_blocks <= most &&
           census->device_bytes <= most * 32 * MIB;
}

/* Nothing fails any more. What was freed and another process had open comes back a little later. */
static void account(struct run *run, size_t free_before)
{
    struct softcuda_census census;
    size_t now = 0;

    MUST(cuCtxSetCurrent(run->context));
    while (run->count > 0) {
        unsigned before = run->count;

        release(run, before - 1);
        if (run->count == before)
            wrong("a live block cannot be freed", before, run->ordered[before - 1]);
    }
    MUST(cuStreamSynchronize(run->stream));
    if (used(run) != 0)
        wrong("stream-ordered memory is counted that is not there", (long long)used(run), 0);
    for (unsigned i = 0;
         i < BACK_MS / 10 && (now = free_bytes()) != free_before && !was_not_taken_back(); i++)
        pause_ms(10);
    if (now != free_before && !was_not_taken_back())
        wrong("free memory is not what it was", (long long)now, (long long)free_before);
    MUST(cuStreamDestroy(run->stream));
    MUST(cuDevicePrimaryCtxRelease(run->device));
    for (unsigned i = 0; i < BACK_MS / 10; i++) {
        softcuda_census(&census);
        if (is_clear(&census))
            break;
        pause_ms(10);
    }
    if (!is_clear(&census))
        wrong("memory is left when its context is gone: bytes, and handles, mappings, reservations "
              "in digits",
              (long long)census.device_bytes,
              100LL * census.handles + 10LL * census.mappings + census.reservations);
    if (census.blocks || census.events > was_not_taken_back() || census.exported_fds)
        wrong("blocks or events, and descriptors are left", census.blocks + census.events,
              census.exported_fds);
}

/* Returns how many driver calls there were. nth: the one that fails; 0: none. */
static unsigned long steps(int peer_socket, unsigned long nth, CUresult error)
{
    struct run run = {.peer = peer_socket};
    CUipcMemHandle theirs[2];
    unsigned long calls;
    size_t before;

    if (!hear(peer_socket, theirs, sizeof theirs))
        wrong("the other process has not started", 0, 0);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&run.device, 0));
    MUST(cuDevicePrimaryCtxRetain(&run.context, run.device));
    MUST(cuCtxSetCurrent(run.context));
    MUST(cuStreamCreate(&run.stream, CU_STREAM_NON_BLOCKING));
    before = free_bytes();
    softcuda_reset();
    if (nth && softcuda_fail("*", (unsigned)nth, error) != 0)
        wrong("the software driver takes no order", 0, 0);
    many(&run);
    share(&run);
    own(&run);
    externals(&run);
    import(&theirs[0]);
    import(&theirs[1]);
    ask(&run);
    capture(&run);
    visit(&run);
    many(&run);
    calls = softcuda_calls("*");
    softcuda_reset();
    account(&run, before);
    return calls;
}

static unsigned long run(unsigned long nth, CUresult error)
{
    unsigned long calls = 0;
    int result[2], pair[2], status = 0;
    pid_t pid;

    if (pipe(result) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        wrong(strerror(errno), 0, 0);
    pid = fork();
    if (pid == 0) {
        alarm(RUN_SECONDS);
        if (fork() == 0) {
            close(pair[0]);
            peer(pair[1]);
        }
        close(pair[1]);
        calls = steps(pair[0], nth, error);
        _exit(write(result[1], &calls, sizeof calls) != sizeof calls);
    }
    close(pair[0]);
    close(pair[1]);
    close(result[1]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0 ||
        read(result[0], &calls, sizeof calls) != sizeof calls) {
        printf("faults: wrong: that was call %lu failing with %d, status 0x%x\n", nth, (int)error,
               status);
        exit(1);
    }
    close(result[0]);
    return calls;
}

int main(int argc, char **argv)
{
    unsigned long count = 1, from = 1, to = 0, runs = 0, calls;

    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned long *value = !strcmp(argv[i], "--errors") ? &count
                               : !strcmp(argv[i], "--from") ? &from
                               : !strcmp(argv[i], "--to")   ? &to
                                                            : NULL;
        if (!value) {
            fputs("usage: faults [--errors N] [--from N] [--to N]\n", stderr);
            return 2;
        }
        *value = strtoul(argv[i + 1], NULL, 10);
    }
    gpushim.attach = (__typeof__(gpushim.attach))dlsym(RTLD_DEFAULT, "gpushim_attach");
    gpushim.detach = (__typeof__(gpushim.detach))dlsym(RTLD_DEFAULT, "gpushim_detach");
    if (!gpushim.attach || !gpushim.detach)
        wrong("the library is not there", 0, 0);
    calls = run(0, CUDA_SUCCESS);
    for (unsigned long nth = from; nth <= (to ? to : calls); nth++)
        for (unsigned long e = 0; e < count && e < ERRORS; e++, runs++)
            run(nth, errors[(nth + e) % ERRORS]);
    printf("faults: ok %lu calls in %lu runs\n", calls, runs);
    return runs == 0;
}
