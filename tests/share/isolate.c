/*
 * What an importer sees that ignores this library: it asks for the descriptor of a handle's chunk
 * by hand, maps the whole of it with the driver's own calls and looks for other blocks' bytes, and
 * it keeps that mapping when it has given its lease back.
 *
 *   isolate off|refuse|alone      under the library, with share.isolate so; the last line is "ok"
 *   isolate thief                 the importer, without the library; told what to do line by line
 */
#include "core/share/ipc_handle.h"
#include "core/share/wire.h"
#include "program.h"
#include "tests/folder.h"
#include "tests/system.h"

#define SECRET 0x5ec2e755u
#define STAMP  0x57a3b1e5u
#define THEFT  0x7be47be4u
#define ROUNDS 100 /* 1 s: the lease is over long before */
#define SMALL  ((size_t)4096)
#define LARGE  ((size_t)5 << 19) /* 2.5 MiB: half a megabyte of its chunk is left */

/* How many words there are, of `value` or (0) that are not zero. */
static unsigned count(CUdeviceptr ptr, size_t size, uint32_t value)
{
    uint32_t *words = malloc(size);
    unsigned found = 0;

    must("cuMemcpyDtoH", cuMemcpyDtoH(words, ptr, size));
    for (size_t i = 0; i < size / 4; i++)
        found += value ? words[i] == value : words[i] != 0;
    free(words);
    return found;
}

/* ---- The thief ------------------------------------------------------------------------------ */

static int thief_fd = -1;
static struct gs_wire_grant granted;
static CUdeviceptr mapped;

static void take(const char *hex)
{
    union gs_wire_message message;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    struct gs_wire_fds fds;
    int error;

    for (int i = 0; i < GS_IPC_HANDLE_SIZE; i++)
        sscanf(hex + 2 * i, "%2hhx", &ipc_handle[i]);
    if (thief_fd >= 0)
        close(thief_fd);
    thief_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%.70s/%.32s", getenv("GPUSHIM_SHARE_DIR"),
             hex + 16); /* its instance */
    if (connect(thief_fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail("no connection", errno);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
    gs_wire_send(thief_fd, &message, -1);
    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = 1;
    gs_wire_send(thief_fd, &message, -1);
    while ((error = gs_wire_receive_all(thief_fd, &message, &fds)) == -EAGAIN)
        usleep(1000);
    if (error || message.head.type != GS_WIRE_GRANT || fds.count != 1)
        fail("not granted", error);
    granted = message.grant;
    must("cuMemImportFromShareableHandle",
         cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fds.fd[0],
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fds.fd[0]);
    must("cuMemAddressReserve", cuMemAddressReserve(&mapped, granted.chunk_size, 0, 0, 0));
    must("cuMemMap", cuMemMap(mapped, granted.chunk_size, 0, handle, 0));
    must("cuMemSetAccess", cuMemSetAccess(mapped, granted.chunk_size, &access, 1));
}

/* Writes over the block and gives the hold back, but keeps the mapping. */
static void leave(void)
{
    union gs_wire_message message;

    must("cuMemsetD32", cuMemsetD32(mapped + granted.offset, THEFT, granted.size / 4));
    must("cuCtxSynchronize", cuCtxSynchronize());
    gs_wire_start(&message, GS_WIRE_CLOSE, granted.head.request);
    message.close.block_id = granted.block_id;
    gs_wire_send(thief_fd, &message, -1);
}

static int thief(void)
{
    char line[256];

    start_driver();
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        unsigned answer = 0;

        if (!strncmp(line, "take ", 5))
            take(line + 5);
        else if (!strncmp(line, "leave", 5))
            leave();
        else if (!strncmp(line, "secrets", 7))
            answer = count(mapped, granted.chunk_size, SECRET);
        else
            answer = count(mapped + granted.offset, granted.size, STAMP);
        printf("%u\n", answer);
    }
    return 0;
}

/* ---- The owner ------------------------------------------------------------------------------ */

static FILE *to_thief, *from_thief;

static void start_thief(void)
{
    int in[2], out[2];

    if (pipe(in) != 0 || pipe(out) != 0)
        fail("pipe", errno);
    if (fork_child() == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        unsetenv("LD_PRELOAD");
        execl("/proc/self/exe", "isolate", "thief", (char *)NULL);
        _exit(127);
    }
    to_thief = fdopen(in[1], "w");
    from_thief = fdopen(out[0], "r");
}

static unsigned ask(const char *what, const CUipcMemHandle *handle)
{
    unsigned answer = 0;

    fputs(what, to_thief);
    for (int i = 0; handle && i < GS_IPC_HANDLE_SIZE; i++)
        fprintf(to_thief, "%02x", (unsigned char)handle->reserved[i]);
    fputc('\n', to_thief);
    fflush(to_thief);
    if (fscanf(from_thief, "%u", &answer) != 1)
        fail("the thief is gone", 0);
    return answer;
}

static CUdeviceptr new_block(size_t size, uint32_t value)
{
    CUdeviceptr ptr = 0;

    must("cuMemAlloc", cuMemAlloc(&ptr, size));
    must("cuMemsetD32", cuMemsetD32(ptr, value, size / 4));
    must("cuCtxSynchronize", cuCtxSynchronize());
    return ptr;
}

/* Blocks of `size` that are made from now on: none may have a word of the thief's, or be seen by
 * it. */
static void look_at_new_blocks(size_t size)
{
    unsigned seen = 0;

    for (int round = 0; round < ROUNDS; round++) {
        CUdeviceptr ptr[4];

        for (int i = 0; i < 4; i++) {
            must("cuMemAlloc", cuMemAlloc(&ptr[i], size));
            seen += count(ptr[i], size, THEFT) > 0;
            must("cuMemsetD32", cuMemsetD32(ptr[i], SECRET, size / 4));
        }
        must("cuCtxSynchronize", cuCtxSynchronize());
        if (ask("secrets", NULL) > 0)
            fail("who kept the memory sees the next block in it", 0);
        for (int i = 0; i < 4; i++)
            must("cuMemFree", cuMemFree(ptr[i]));
        usleep(10000);
    }
    if (seen)
        fail("a new block has what an importer of the last one wrote", (int)seen);
}

/* A block among secrets, shared with the thief. */
static void check(size_t size, bool isolated, bool refused)
{
    CUdeviceptr secret[2], block;
    CUipcMemHandle handle;
    unsigned secrets;
    CUresult result;

    secret[0] = new_block(size, SECRET);
    block = new_block(size, STAMP);
    secret[1] = new_block(size, SECRET);
    result = cuIpcGetMemHandle(&handle, block);
    if (refused != (result != CUDA_SUCCESS))
        fail("cuIpcGetMemHandle", (int)result);
    if (!refused) {
        ask("take ", &handle);
        if (ask("stamps", NULL) != size / 4)
            fail("the thief has another block", 0);
        secrets = ask("secrets", NULL);
        if (isolated && secrets > 0)
            fail("an isolated block's handle shows others", (int)secrets);
        if (!isolated && size == SMALL && secrets == 0)
            fail("nothing is to be seen where it must be: this test sees nothing", 0);
        ask("leave", NULL);
    }
    must("cuMemFree", cuMemFree(block));
    if (!refused && isolated)
        look_at_new_blocks(size);
    must("cuMemFree", cuMemFree(secret[0]));
    must("cuMemFree", cuMemFree(secret[1]));
}

int main(int argc, char **argv)
{
    const char *dir;
    bool isolated;
    pid_t child;
    int status;

    if (argc != 2)
        fail("one word", argc);
    if (!strcmp(argv[1], "thief"))
        return thief();
    dir = folder_new("isolate");
    child = fork_child();
    if (child > 0) {
        waitpid(child, &status, 0);
        if (rmdir(dir) != 0)
            fail("something is left in the directory", errno);
        return status == 0 ? 0 : 1;
    }
    isolated = strcmp(argv[1], "off") != 0;
    setenv("GPUSHIM_SHARE_ISOLATE", argv[1], 1);
    start_thief();
    start_driver();
    check(SMALL, isolated, !strcmp(argv[1], "refuse"));
    if (isolated) /* else it lies across pieces, which come one by one (tests/unit/share/strip.c) */
        check(LARGE, true, false);
    printf("ok\n");
    return 0;
}
