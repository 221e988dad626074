/*
 * A program that closes descriptors which are not its own, and whose own files get their numbers.
 *
 *   closed files    everything but the driver's, in a process that shares: its files stay as they are
 *   closed export   the one that stands for its shared memory: who opens that gets the memory
 *   closed socket   the connection to whom it has opened memory of: its own socket is not read from,
 *                   nor written to, and it opens on
 *   closed reader   the same, and it goes on reading while its exporter frees and allocates
 *   closed exporter, closed importer, closed reading   the other process
 *
 * The library is preloaded, and the software driver's descriptors are told by their names.
 */
#include "party.h"
#include "tests/system.h"

#define SIZE    ((size_t)4 << 20)
#define FDS_MAX 256
#define TEXT    "a line of the program's own\n"

static struct party other;

/* Whether the descriptor is one of the library's: a kind of file, or memory; never the driver's. */
static bool is_of_library(int fd, const char *kind)
{
    char path[64], target[256];
    ssize_t length;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    length = readlink(path, target, sizeof target - 1);
    if (length < 0 || fd <= 2)
        return false;
    target[length] = 0;
    return kind ? strstr(target, kind) != NULL
                : !strstr(target, "softcuda") && !strstr(target, "machine");
}

/* Those that were opened since. */
static int find(const bool *had, const char *kind, int *ret_fds)
{
    int count = 0;

    for (int fd = 3; fd < FDS_MAX; fd++)
        if (!had[fd] && is_of_library(fd, kind))
            ret_fds[count++] = fd;
    return count;
}

static void note(bool *ret_had)
{
    for (int fd = 0; fd < FDS_MAX; fd++)
        ret_had[fd] = fcntl(fd, F_GETFD) >= 0;
}

static int file_at(int number)
{
    char path[] = "/tmp/gs-closed-XXXXXX";
    int fd = mkstemp(path);

    unlink(path);
    if (fd < 0 || write(fd, TEXT, sizeof TEXT) != (ssize_t)sizeof TEXT)
        fail("a file", errno);
    if (fd != number) {
        dup2(fd, number);
        close(fd);
    }
    return number;
}

static void check_file(int fd)
{
    char text[2 * sizeof TEXT] = "";
    struct stat info;

    if (fstat(fd, &info) != 0)
        fail("the program's file was closed, number", fd);
    if (!S_ISREG(info.st_mode) || info.st_size != (off_t)sizeof TEXT ||
        pread(fd, text, sizeof text, 0) != (ssize_t)sizeof TEXT || strcmp(text, TEXT) != 0)
        fail("the program's file was written to, number", fd);
}

static CUdeviceptr share(CUipcMemHandle *ret_handle)
{
    CUdeviceptr block;

    must("cuMemAlloc", cuMemAlloc(&block, SIZE));
    must("cuMemsetD8", cuMemsetD8(block, 77, SIZE));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(ret_handle, block));
    return block;
}

static void files(void)
{
    CUipcMemHandle handle;
    bool had[FDS_MAX];
    int fds[FDS_MAX], count;
    CUdeviceptr block, next;

    start_driver();
    must("cuMemAlloc", cuMemAlloc(&next, SIZE));
    note(had);
    block = share(&handle);
    usleep(100000); /* the share thread sleeps by then, or not: either must do */
    count = find(had, NULL, fds);
    if (count < 3)
        fail("it has no descriptors to close", count);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    for (int i = 0; i < count; i++)
        file_at(fds[i]);
    must("cuMemFree", cuMemFree(block));
    cuIpcGetMemHandle(&handle, next); /* it may fail now */
    must("cuMemFree", cuMemFree(next));
    for (int i = 0; i < 20; i++) {
        CUdeviceptr more;

        must("cuMemAlloc", cuMemAlloc(&more, SIZE));
        cuIpcGetMemHandle(&handle, more);
        must("cuMemFree", cuMemFree(more));
        usleep(10000);
    }
    for (int i = 0; i < count; i++)
        check_file(fds[i]);
}

static int importer(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    unsigned char byte = 0;

    start_driver();
    hear(PARTY_SOCKET, &handle, sizeof handle);
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    must("cuMemcpyDtoH", cuMemcpyDtoH(&byte, block, 1));
    return byte != 77;
}

static void export(void)
{
    CUipcMemHandle handle;
    bool had[FDS_MAX];
    int fds[FDS_MAX], count = 0, status;
    CUdeviceptr block;

    start_driver();
    must("cuMemAlloc", cuMemAlloc(&block, SIZE));
    must("cuMemsetD8", cuMemsetD8(block, 77, SIZE));
    must("cuCtxSynchronize",
         cuCtxSynchronize()); /* or the other process reads what was there before */
    note(had);
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    for (int i = 0; i < 10000 && (count = find(had, "softcuda", fds)) == 0; i++)
        usleep(1000); /* it is exported ahead */
    if (count == 0)
        fail("nothing is exported", 0);
    for (int i = 0; i < count; i++) {
        close(fds[i]);
        file_at(fds[i]);
    }
    other = party_start("importer", NULL);
    say(other.socket, &handle, sizeof handle);
    status = party_end(&other);
    if (status != 0)
        fail("the other process did not get the memory", status);
    for (int i = 0; i < count; i++)
        check_file(fds[i]);
}

static int exporter(void)
{
    CUipcMemHandle handles[2];
    char end;

    start_driver();
    share(&handles[0]);
    share(&handles[1]);
    say(PARTY_SOCKET, handles, sizeof handles);
    return hear_or_end(PARTY_SOCKET, &end, 1);
}

static void connection(void)
{
    CUipcMemHandle handles[2];
    CUdeviceptr block;
    bool had[FDS_MAX];
    int fds[FDS_MAX], pair[2], count;
    char text[2 * sizeof TEXT];

    other = party_start("exporter", NULL);
    hear(other.socket, handles, sizeof handles);
    start_driver();
    note(had);
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handles[0], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    count = find(had, "socket:", fds);
    if (count != 1)
        fail("connections", count);
    close(fds[0]);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        fail("socketpair", errno);
    if (pair[0] != fds[0]) {
        dup2(pair[0], fds[0]);
        close(pair[0]);
    }
    if (send(pair[1], TEXT, sizeof TEXT, 0) != (ssize_t)sizeof TEXT)
        fail("send", errno);
    must("cuIpcOpenMemHandle of another block",
         cuIpcOpenMemHandle(&block, handles[1], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    if (recv(pair[1], text, sizeof text, MSG_DONTWAIT) >= 0 || errno != EAGAIN)
        fail("the program's socket was written to, or shut down", errno);
    if (recv(fds[0], text, sizeof text, MSG_DONTWAIT) != (ssize_t)sizeof TEXT)
        fail("what was sent to the program was read", errno);
}

/* Reads on without the connection, whose number is a file of its own; told, it closes the block. */
static int reading(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    bool had[FDS_MAX];
    int fds[FDS_MAX], count;
    unsigned char byte = 0;
    char order;

    start_driver();
    note(had);
    hear(PARTY_SOCKET, &handle, sizeof handle);
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    count = find(had, "socket:", fds);
    if (count != 1)
        fail("connections", count);
    close(fds[0]);
    file_at(fds[0]);
    while (send(PARTY_SOCKET, &byte, 1, MSG_NOSIGNAL) == 1 && hear_or_end(PARTY_SOCKET, &order, 1))
        if (order == 'r')
            must("cuMemcpyDtoH", cuMemcpyDtoH(&byte, block, 1));
        else
            must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    check_file(fds[0]);
    return 0;
}

static unsigned char order(char what)
{
    unsigned char answer;

    say(other.socket, &what, 1);
    hear(other.socket, &answer, 1);
    return answer;
}

/* Whether the bytes at `block` are handed out again within so many hundredths of a second. Other
 * free memory may come first: where the machine is busy, and frees wait for it, there is a lot of
 * that. So what comes is held until as much was had as is ever free beside it. */
static bool comes_back(CUdeviceptr block, int tries)
{
    CUdeviceptr held[64];
    int count = 0;
    bool came = false;

    for (int i = 0; i < tries && !came; i++) {
        usleep(10000);
        must("cuMemAlloc", cuMemAlloc(&held[count], SIZE));
        must("cuMemsetD8", cuMemsetD8(held[count], 90, SIZE));
        came = held[count++] == block;
        if (count == 64)
            while (count > 0)
                must("cuMemFree", cuMemFree(held[--count]));
    }
    while (count > 0)
        must("cuMemFree", cuMemFree(held[--count]));
    return came;
}

static void reader(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    unsigned char ready;

    setenv("GPUSHIM_DEBUG_SETTLE", "50ms", 1);
    setenv("GPUSHIM_DEBUG_GRACE", "0", 1);
    setenv("GPUSHIM_POOL_DECAY", "60min", 1); /* the block stays at its address */
    other = party_start("reading", NULL);
    start_driver();
    block = share(&handle);
    say(other.socket, &handle, sizeof handle);
    hear(other.socket, &ready, 1);
    must("cuMemFree", cuMemFree(block));
    if (comes_back(block, 250)) /* a hang-up rests for a second and the time set above */
        fail("memory that a living process has open was handed out again", order('r'));
    if (order('r') != 77)
        fail("the reader sees another's bytes", order('r'));
    order('c');
    if (!comes_back(block, 3000))
        fail("what the reader has closed does not come back", 0);
}

int main(int argc, char **argv)
{
    const char *how = argc == 2 ? argv[1] : "";

    if (strcmp(how, "files") == 0)
        files();
    else if (strcmp(how, "export") == 0)
        export();
    else if (strcmp(how, "socket") == 0)
        connection();
    else if (strcmp(how, "reader") == 0)
        reader();
    else if (strcmp(how, "reading") == 0)
        return reading();
    else if (strcmp(how, "importer") == 0)
        return importer();
    else if (strcmp(how, "exporter") == 0)
        return exporter();
    else
        fail("how?", 0);
    return 0;
}
