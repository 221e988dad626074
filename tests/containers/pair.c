/*
 * Two plain CUDA programs that know of each other only a folder, one in each container:
 *
 *   pair give FOLDER           allocates, stamps, writes its handle to the folder, waits for the
 *                              taker's answer in the memory itself, frees, wants its memory back
 *   pair give-held FOLDER      the same, and the taker keeps the memory open: the freed memory
 *                              must not come back before the taker has been killed
 *   pair give-refused FOLDER   the same, and the taker says that it was refused
 *   pair give-left FOLDER      shares, and ends when it is told to; the broker has its memory
 *   pair take FOLDER           opens, checks the stamp, answers in the memory, closes
 *   pair take-held FOLDER      never closes; waits to be killed
 *   pair take-refused FOLDER   must be refused with the driver's error
 *   pair take-left FOLDER      opens when the giver is gone, and checks the stamp
 *   pair take-lost FOLDER      must be refused soon when the giver is gone
 *
 * The last line says "ok", or what went wrong; the exit status agrees.
 */
#include <cuda.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORDS   ((size_t)10 << 18) /* 10 MiB: the device has no room for two */
#define WAIT_MS 40000
#define SOON_S  15 /* less than share.timeout: who has ended is not waited for */
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

static void give(bool held, bool refused)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    char word;

    must("cuMemAlloc", cuMemAlloc(&ptr, WORDS * 4));
    must("cuMemsetD32", cuMemsetD32(ptr, STAMP, WORDS));
    must("cuCtxSynchronize", cuCtxSynchronize());
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, ptr));
    put("handle", &handle, sizeof handle);
    get("taken", &word, 1);
    expect_words(ptr, refused ? STAMP : ANSWER, STAMP);
    must("cuMemFree", cuMemFree(ptr));
    want_back(held);
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

static void take(bool held, bool refused)
{
    CUipcMemHandle handle;
    CUdeviceptr ptr;
    CUresult r;

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
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(ptr));
}

int main(int argc, char **argv)
{
    const char *role = argc == 3 ? argv[1] : "";
    bool held = strstr(role, "-held"), refused = strstr(role, "-refused");
    CUcontext context;
    CUdevice device;

    if (argc != 3)
        fail("usage", "pair give[-held|-refused|-left]|take[-held|-refused|-left|-lost] FOLDER");
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
        give(held, refused);
    else
        take(held, refused);
    printf("ok\n");
    return 0;
}
