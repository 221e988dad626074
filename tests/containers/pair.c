/*
 * Two plain CUDA programs that know of each other only a folder, one in each container:
 *
 *   pair give FOLDER           allocates, stamps, writes its handle to the folder, waits for the
 *                              taker's answer in the memory itself, frees, wants its memory back
 *   pair give-held FOLDER      the same, and the taker keeps the memory open: the freed memory
 *                              must not come back before the taker has been killed
 *   pair give-refused FOLDER   the same, and the taker says that it was refused
 *   pair give-own FOLDER       the same of memory that it makes and maps itself, in several pieces,
 *                              which is its driver's at once when it is unmapped
 *   pair give-external FOLDER, give-external-held FOLDER
 *                              the same of memory of a memfd, which it attaches and detaches
 *   pair give-left FOLDER      shares, and ends when it is told to; the broker has its memory
 *   pair take FOLDER           opens, checks the stamp, answers in the memory, closes
 *   pair take-kept FOLDER      the same, and has it until the giver has its memory back
 *   pair take-held FOLDER      never closes; waits to be killed
 *   pair take-refused FOLDER   must be refused with the driver's error
 *   pair take-left FOLDER      opens when the giver is gone, and checks the stamp
 *   pair take-lost FOLDER      must be refused soon when the giver is gone
 *
 * The last line says "ok", or what went wrong; the exit status agrees.
 */
#include <cuda.h>

#include "shim/gpushim.h"
#include "tests/system.h"

#define WORDS   ((size_t)10 << 18) /* 10 MiB: the device has no room for two */
#define PIECE   ((size_t)2 << 20)
#define WAIT_MS 40000
#define WAIT_NS (UINT64_C(1000000) * WAIT_MS)
#define SOON_S  15 /* less than debug.timeout: who has ended is not waited for */
#define STAMP   0x5ca1ab1eu
#define ANSWER  0x0ddba11u

static const char *folder;

static _Noreturn void fail(const char *what, const char *why)
{
    printf("pair: %s: %s\n", what, why);
    exit(1);
}

static void must(const char *call, CUresult result)
{
    const char *name = "an unknown error";

    if (result == CUDA_SUCCESS)
        return;
    cuGetErrorName(result, &name);
    fail(call, name);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void path_of(const char *name, char ret_path[512])
{
    snprintf(ret_path, 512, "%s/%s", folder, name);
}

/* Whole or not at all. */
static void put(const char *name, const void *bytes, size_t size)
{
    char made[512], path[512];
    int fd;

    path_of("made", made);
    path_of(name, path);
    fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size || close(fd) || rename(made, path))
        fail("a file cannot be written", path);
}

static void get(const char *name, void *ret_bytes, size_t size)
{
    char path[512];

    path_of(name, path);
    for (int waited = 0; waited < WAIT_MS; waited += 5) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        if (fd >= 0 && read(fd, ret_bytes, size) == (ssize_t)size) {
            close(fd);
            return;
        }
        pause_ms(5);
    }
    fail("the other container says nothing", name);
}

static void expect_words(CUdeviceptr ptr, uint32_t first, uint32_t rest)
{
    uint32_t *host = malloc(WORDS * 4);

    if (!host)
        fail("the host's memory", "there is not enough");
    must("cuMemcpyDtoH", cuMemcpyDtoH(host, ptr, WORDS * 4));
    for (size_t i = 0; i < WORDS; i++)
        if (host[i] != (i ? rest : first))
            fail("the shared memory", "it does not hold what was written");
    free(host);
}

/* The device is too small for two blocks: another can only have the same bytes. */
static void want_back(bool held)
{
    CUdeviceptr ptr;
    CUresult r;

    if (held) {
        pause_ms(300);
        if (cuMemAlloc(&ptr, WORDS * 4) == CUDA_SUCCESS)
            fail("the freed memory", "it came back while the other container has it open");
    }
    put("freed", "f", 1);
    r = cuMemAlloc(&ptr, WORDS * 4);
    for (int ms = 0; r == CUDA_ERROR_OUT_OF_MEMORY && ms < WAIT_MS; ms += 5) {
        pause_ms(5);
        r = cuMemAlloc(&ptr, WORDS * 4);
    }
    must("allocating the freed memory again", r);
    must("cuMemFree", cuMemFree(ptr));
}

/* ---- The three kinds of memory --------------------------------------------------------------- */

static CUdeviceptr map_own(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = properties.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle made;
    CUdeviceptr base;

    must("cuMemAddressReserve", cuMemAddressReserve(&base, WORDS * 4, 0, 0, 0));
    for (size_t at = 0; at < WORDS * 4; at += PIECE) {
        must("cuMemCreate", cuMemCreate(&made, PIECE, &properties, 0));
        must("cuMemMap", cuMemMap(base + at, PIECE, 0, made, 0));
        must("cuMemRelease", cuMemRelease(made));
    }
    must("cuMemSetAccess", cuMemSetAccess(base, WORDS * 4, &access, 1));
    return base;
}

static CUdeviceptr attach(void)
{
    __typeof__(&gpushim_attach) call = (__typeof__(call))dlsym(RTLD_DEFAULT, "gpushim_attach");
    int fd = memfd_create("external", MFD_CLOEXEC | MFD_ALLOW_SEALING), error;
    struct gpushim_external external = {.size = sizeof external,
                                        .kind = GPUSHIM_MEMFD,
                                        .access = GPUSHIM_MUTABLE,
                                        .fd = fd,
                                        .bytes = WORDS * 4};
    uint64_t address;

    if (!call || fd < 0 || ftruncate(fd, WORDS * 4) != 0)
        fail("gpushim_attach", "it is not there, or there is no memfd");
    error = call(&external, &address);
    if (error)
        fail("gpushim_attach", strerror(error));
    close(fd);
    return address;
}

static int detach(CUdeviceptr address, uint64_t timeout_ns)
{
    __typeof__(&gpushim_detach) call = (__typeof__(call))dlsym(RTLD_DEFAULT, "gpushim_detach");

    return call ? call(address, timeout_ns) : ENOSYS;
}

static CUdeviceptr make(const char *role)
{
    CUdeviceptr ptr;

    if (strstr(role, "-own"))
        return map_own();
    if (strstr(role, "-external"))
        return attach();
    must("cuMemAlloc", cuMemAlloc(&ptr, WORDS * 4));
    return ptr;
}

/* What is attached is the device's at no time: whether somebody has it is for gpushim_detach to
 * say. */
static void end_external(CUdeviceptr ptr, bool held)
{
    if (held && detach(ptr, WAIT_NS / 100) != EBUSY)
        fail("what was attached", "it ended while the other container has it open");
    put("freed", "f", 1);
    if (detach(ptr, WAIT_NS) != 0)
        fail("what was attached", "it does not end");
}

static void end(const char *role, CUdeviceptr ptr, bool held)
{
    if (strstr(role, "-external")) {
        end_external(ptr, held);
        return;
    }
    if (strstr(role, "-own"))
        must("cuMemUnmap", cuMemUnmap(ptr, WORDS * 4));
    else
        must("cuMemFree", cuMemFree(ptr));
    want_back(held);
}

static void give(const char *role, bool held, bool refused)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr = make(role);
    char word;

    must("cuMemsetD32", cuMemsetD32(ptr, STAMP, WORDS));
    must("cuCtxSynchronize", cuCtxSynchronize());
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, ptr));
    put("handle", &handle, sizeof handle);
    get("taken", &word, 1);
    expect_words(ptr, refused ? STAMP : ANSWER, STAMP);
    end(role, ptr, held);
}

static void give_left(void)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    char word;

    must("cuMemAlloc", cuMemAlloc(&ptr, WORDS * 4));
    must("cuMemsetD32", cuMemsetD32(ptr, STAMP, WORDS));
    must("cuCtxSynchronize", cuCtxSynchronize());
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, ptr));
    put("handle", &handle, sizeof handle);
    get("leave", &word, 1);
}

static void take_left(bool lost)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    struct timespec began, ended;
    CUresult r;
    char word;

    get("handle", &handle, sizeof handle);
    get("gone", &word, 1);
    clock_gettime(CLOCK_MONOTONIC, &began);
    r = cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if (ended.tv_sec - began.tv_sec > SOON_S)
        fail("cuIpcOpenMemHandle", "it took too long");
    if (lost) {
        if (r == CUDA_SUCCESS)
            fail("the memory of a dead process", "it was opened, with no broker there");
        return;
    }
    must("cuIpcOpenMemHandle of what a dead process shared", r);
    expect_words(ptr, STAMP, STAMP);
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(ptr));
}

static void take(bool held, bool kept, bool refused)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    CUresult r;
    char word;

    get("handle", &handle, sizeof handle);
    r = cuIpcOpenMemHandle(&ptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (refused) {
        if (r == CUDA_SUCCESS)
            fail("another user's memory", "it was opened");
        put("taken", "r", 1);
        return;
    }
    must("cuIpcOpenMemHandle", r);
    expect_words(ptr, STAMP, STAMP);
    must("cuMemsetD32", cuMemsetD32(ptr, ANSWER, 1));
    must("cuCtxSynchronize", cuCtxSynchronize());
    put("taken", "t", 1);
    if (held) {
        pause_ms(120000);
        fail("the taker", "nobody killed it");
    }
    if (kept) {
        get("freed", &word, 1);
        expect_words(ptr, ANSWER, STAMP);
    }
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(ptr));
}

int main(int argc, char **argv)
{
    const char *role = argc == 3 ? argv[1] : "";
    bool held = strstr(role, "-held"), refused = strstr(role, "-refused");
    CUcontext context;
    CUdevice device;

    if (argc != 3)
        fail(
            "usage",
            "pair give[-own|-external][-held|-refused|-left]|take[-held|-kept|-refused|-left|-lost] FOLDER");
    folder = argv[2];
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(180);
    must("cuInit", cuInit(0));
    must("cuDeviceGet", cuDeviceGet(&device, 0));
    must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, device));
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    if (strcmp(role, "give-left") == 0)
        give_left();
    else if (strcmp(role, "take-left") == 0 || strcmp(role, "take-lost") == 0)
        take_left(strcmp(role, "take-lost") == 0);
    else if (strncmp(role, "give", 4) == 0)
        give(role, held, refused);
    else
        take(held, strstr(role, "-kept"), refused);
    printf("ok\n");
    return 0;
}
