/*
 * Every refusal to share names its reason in the log and gives the driver's error to the caller.
 *
 *   refused on|off|isolate   under the library, with sharing so; the last line is "ok"
 *   refused exporter         shares a block, writes its handle, and ends when it is told to
 *
 * The log is this program's stderr, which is a file meanwhile.
 */
#include "program.h"
#include "tests/folder.h"
#include "tests/system.h"

static off_t said; /* of the log, before the call */

static off_t log_size(void)
{
    struct stat info;

    return fstat(STDERR_FILENO, &info) == 0 ? info.st_size : 0;
}

/* What is in the log since then. */
static void read_log(char *ret_text, size_t size)
{
    ssize_t got = pread(STDERR_FILENO, ret_text, size - 1, said);

    ret_text[got < 0 ? 0 : got] = '\0';
}

static void begin(void)
{
    said = log_size();
}

/* The call that has just been made gave `result`, was to give `wanted`, and said so in words. */
static void refused(const char *call, CUresult result, CUresult wanted, const char *words)
{
    char text[4096];

    read_log(text, sizeof text);
    if (result == wanted && strstr(text, words))
        return;
    printf("%s gave %d, not %d, and said, without '%s':\n%s", call, (int)result, (int)wanted, words,
           text);
    exit(1);
}

#define REFUSED(call, wanted, words)         \
    do {                                     \
        begin();                             \
        refused(#call, call, wanted, words); \
    } while (0)

static int exporter(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    char end;

    start_driver();
    must("cuMemAlloc", cuMemAlloc(&block, 4096));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    if (write(STDOUT_FILENO, &handle, sizeof handle) != (ssize_t)sizeof handle)
        return 1;
    while (read(STDIN_FILENO, &end, 1) > 0)
        continue;
    return 0;
}

/* Another process's handle. It ends when *ret_end is closed. */
static pid_t start_exporter(CUipcMemHandle *ret_handle, int *ret_end)
{
    int in[2], out[2];
    pid_t child;

    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || (child = fork_child()) < 0)
        fail("no process", errno);
    if (child == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        unsetenv("GPUSHIM_SHARE_ENABLE");
        unsetenv("GPUSHIM_SHARE_ISOLATE");
        execl("/proc/self/exe", "refused", "exporter", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    *ret_end = in[1];
    if (read(out[0], ret_handle, sizeof *ret_handle) != (ssize_t)sizeof *ret_handle)
        fail("no handle", errno);
    close(out[0]);
    return child;
}

static void handles_are_not_given(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;

    must("cuMemAlloc", cuMemAlloc(&block, 4096));
    must("cuMemFree", cuMemFree(block));
    REFUSED(cuIpcGetMemHandle(&handle, block), CUDA_ERROR_INVALID_VALUE, "no block in use lies at");
}

static void handles_are_not_opened(const CUipcMemHandle *theirs)
{
    CUipcMemHandle own, changed = *theirs;
    CUdeviceptr block, opened = 0;
    CUcontext context;

    must("cuMemAlloc", cuMemAlloc(&block, 4096));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&own, block));
    REFUSED(cuIpcOpenMemHandle(&opened, own, 1), CUDA_ERROR_INVALID_CONTEXT,
            "opened in the process that made it");
    REFUSED(cuIpcOpenMemHandle(&opened, *theirs, 0), CUDA_ERROR_INVALID_VALUE, "flags 0, and 1");
    REFUSED(cuIpcOpenMemHandle(NULL, *theirs, 1), CUDA_ERROR_INVALID_VALUE, "nowhere to write");
    changed.reserved[40] ^= 1;
    REFUSED(cuIpcOpenMemHandle(&opened, changed, 1), CUDA_ERROR_INVALID_VALUE,
            "was changed on its way");
    must("cuCtxPopCurrent", cuCtxPopCurrent(&context));
    REFUSED(cuIpcOpenMemHandle(&opened, *theirs, 1), CUDA_ERROR_INVALID_CONTEXT,
            "no context of a GPU");
    must("cuCtxPushCurrent", cuCtxPushCurrent(context));
    REFUSED(cuIpcCloseMemHandle(block), CUDA_ERROR_INVALID_VALUE, "no IPC memory was closed");
    must("cuIpcOpenMemHandle", cuIpcOpenMemHandle(&opened, *theirs, 1));
    REFUSED(cuIpcCloseMemHandle(opened + 256), CUDA_ERROR_INVALID_VALUE, "does not begin at");
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(opened));
    must("cuMemFree", cuMemFree(block));
}

/* One that had been opened would be open still: this one is new. */
static void a_dead_ones_handle_is_not_opened(void)
{
    CUipcMemHandle theirs;
    CUdeviceptr opened = 0;
    pid_t child;
    int end;

    child = start_exporter(&theirs, &end);
    close(end);
    waitpid(child, NULL, 0);
    REFUSED(cuIpcOpenMemHandle(&opened, theirs, 1), CUDA_ERROR_INVALID_VALUE, "has ended");
}

/* Said the first time and every time. */
static void nothing_is_shared(size_t size, const char *words)
{
    CUipcMemHandle handle;
    CUdeviceptr block;

    must("cuMemAlloc", cuMemAlloc(&block, size));
    for (int i = 0; i < 2; i++)
        REFUSED(cuIpcGetMemHandle(&handle, block), CUDA_ERROR_NOT_SUPPORTED, words);
    must("cuMemFree", cuMemFree(block));
}

int main(int argc, char **argv)
{
    char file[] = "/tmp/gpushim-refused-XXXXXX";
    const char *how = argc == 2 ? argv[1] : "";
    CUipcMemHandle theirs;
    CUdeviceptr opened;
    pid_t child;
    int fd, end;

    if (strcmp(how, "exporter") == 0)
        return exporter();
    setenv("GPUSHIM_LOG", "debug", 1);
    setenv("GPUSHIM_SHARE_ENABLE", strcmp(how, "off") == 0 ? "off" : "on", 1);
    setenv("GPUSHIM_SHARE_ISOLATE", strcmp(how, "isolate") == 0 ? "refuse" : "off", 1);
    folder_new("refused"); /* a broker of others in the common one would answer for who has ended */
    fd = mkstemp(file);
    if (fd < 0 || unlink(file) != 0)
        fail("no file", errno);
    dup2(fd, STDERR_FILENO);
    fcntl(STDERR_FILENO, F_SETFL, O_APPEND);
    start_driver();
    child = start_exporter(&theirs, &end);
    if (strcmp(how, "on") == 0) {
        handles_are_not_given();
        handles_are_not_opened(&theirs);
        a_dead_ones_handle_is_not_opened();
    } else if (strcmp(how, "off") == 0) {
        nothing_is_shared(4096, "share.enable is off");
        REFUSED(cuIpcOpenMemHandle(&opened, theirs, 1), CUDA_ERROR_NOT_SUPPORTED,
                "sharing is off here");
    } else {
        nothing_is_shared(4096, "share.isolate is on");
    }
    close(end);
    waitpid(child, NULL, 0);
    puts("ok");
    return 0;
}
