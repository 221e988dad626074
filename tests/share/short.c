/*
 * An allocation that fails says where memory is that nobody uses, and who has it: one line of log.
 *
 *   short open      another process has open what was freed
 *   short stopped   it has closed it and is stopped, so that it does not give its idle mapping back
 *   short idle0     the same under debug.idle 0: it keeps nothing, and the allocation succeeds
 *   short work      GPU work that does not end is before what was freed
 *   short often     the allocation is tried without end: one line a second
 *   short reader    the other process; with a number more it closes what it opened, and says so when
 *                   that has gone, so many milliseconds later
 */
#include "party.h"
#include "softcuda.h"
#include "tests/folder.h"
#include "tests/system.h"

#define MIB    ((size_t)1 << 20)
#define SHARED (40 * MIB) /* of 64 MiB */
#define NEEDED (45 * MIB)
#define WAITS  20000 /* of a millisecond */

static uint32_t mappings(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.mappings;
}

static bool keeps_nothing(void)
{
    return !strcmp(getenv("GPUSHIM_DEBUG_IDLE"), "0");
}

/* ---- Who has it ----------------------------------------------------------------------------- */

static int reader(const char *closes)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    uint32_t before;
    char end;

    start_driver();
    before = mappings();
    hear(PARTY_SOCKET, &handle, sizeof handle);
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    if (closes)
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    for (int i = 0; closes && keeps_nothing() && mappings() != before && i < WAITS; i++)
        usleep(1000);
    usleep(closes ? (useconds_t)atoi(closes) * 1000 : 0);
    say(PARTY_SOCKET, "o", 1);
    recv(PARTY_SOCKET, &end, 1, 0);
    return 0;
}

/* ---- Who needs it --------------------------------------------------------------------------- */

static char log_path[64];

/* How many lines say it; such a line says all of it. */
static unsigned count_said(const char *text)
{
    char line[2048];
    FILE *log = fopen(log_path, "r");
    unsigned count = 0;

    while (log && fgets(line, sizeof line, log))
        count += strstr(line, "warning: no 45 MiB are left on device 0; ") && strstr(line, text);
    if (log)
        fclose(log);
    return count;
}

static CUresult need(void)
{
    CUdeviceptr needed;
    CUresult result = cuMemAlloc(&needed, NEEDED);

    if (result == CUDA_SUCCESS)
        must("cuMemFree", cuMemFree(needed));
    return result;
}

static void must_fail(CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        fail("the memory was to be had: this test shows nothing", (int)result);
}

/* It is said once a second, and who has it when the library's thread has had the time to look. */
static void must_say(const char *text)
{
    if (!AWAIT(count_said(text) > 0 || (must_fail(need()), count_said(text) > 0)))
        fail(text, 0);
}

static struct party share(const char *closes)
{
    struct party other = party_start("reader", closes);
    CUipcMemHandle handle;
    CUdeviceptr shared;
    char said;

    must("cuMemAlloc", cuMemAlloc(&shared, SHARED));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
    say(other.socket, &handle, sizeof handle);
    hear(other.socket, &said, 1);
    if (closes)
        halt(other.pid);
    must("cuMemFree", cuMemFree(shared));
    return other;
}

static void await_memory(void)
{
    for (int i = 0; i < WAITS && need() != CUDA_SUCCESS; i++)
        usleep(1000);
    must("cuMemAlloc, when it has come back", need());
}

static void be_held(bool stopped)
{
    struct party other = share(stopped ? "0" : NULL);
    char text[128];

    must_fail(need());
    snprintf(text, sizeof text,
             "40 MiB are freed and with 1 other processes: process %d (short)%s has 40 MiB for ",
             (int)other.pid, stopped ? ", stopped," : "");
    must_say(text);
    if (stopped)
        kill(other.pid, SIGCONT);
    else
        say(other.socket, "e", 1); /* it ends, and gives it back so */
    await_memory();
    party_end(&other);
}

/* What it does not keep it has given back a moment after it was unmapped, if it was not stopped
 * before. */
static void be_kept_by_nobody(void)
{
    static const char *const after_ms[] = {"1", "10", "100", "1000", "5000"};
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    for (size_t i = 0; result != CUDA_SUCCESS && i < sizeof after_ms / sizeof *after_ms; i++) {
        struct party other = share(after_ms[i]);

        result = need();
        kill(other.pid, SIGCONT);
        party_end(&other);
    }
    must("cuMemAlloc, of what nobody keeps", result);
}

static void be_often(void)
{
    struct timespec begun, now;
    struct party other = share(NULL);

    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        must_fail(need());
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (count_said("") < 2);
    if (now.tv_sec - begun.tv_sec + 1 < (long)count_said("") - 1)
        fail("it is said more than once a second", (int)count_said(""));
    party_end(&other);
}

static void be_behind_work(void)
{
    CUdeviceptr block;
    CUstream stream;

    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must("cuMemAllocAsync", cuMemAllocAsync(&block, SHARED, stream));
    must("cuStreamSynchronize", cuStreamSynchronize(stream));
    softcuda_hold(1);
    must("cuMemsetD8Async", cuMemsetD8Async(block, 1, SHARED, stream));
    must("cuMemFreeAsync", cuMemFreeAsync(block, stream));
    must_fail(need());
    must_say("40 MiB are freed behind GPU work that has not ended");
    softcuda_hold(0);
    await_memory();
}

static void show_log(void)
{
    char line[2048];
    FILE *log = fopen(log_path, "r");

    while (log && fgets(line, sizeof line, log))
        fputs(line, stderr);
    if (log)
        fclose(log);
}

int main(int argc, char **argv)
{
    const char *dir;
    int status;
    pid_t child;

    if (argc >= 2 && !strcmp(argv[1], "reader"))
        return reader(argv[2]);
    if (argc != 2)
        fail("one word", argc);
    dir = folder_new("short");
    setenv("GPUSHIM_DEBUG_IDLE", strcmp(argv[1], "idle0") ? "10 min" : "0", 1);
    snprintf(log_path, sizeof log_path, "%s.log", dir);
    setenv("GPUSHIM_LOG_TARGET", log_path, 1);
    child = fork_child(); /* its end takes all with it that it keeps there */
    if (child == 0) {
        start_driver();
        if (!strcmp(argv[1], "idle0"))
            be_kept_by_nobody();
        else if (!strcmp(argv[1], "work"))
            be_behind_work();
        else if (!strcmp(argv[1], "often"))
            be_often();
        else
            be_held(!strcmp(argv[1], "stopped"));
        return 0;
    }
    waitpid(child, &status, 0);
    if (status != 0)
        show_log();
    unlink(log_path);
    if (rmdir(dir) != 0)
        fail("something is left in the directory", errno);
    if (status == 0)
        printf("ok\n");
    return status == 0 ? 0 : 1;
}
