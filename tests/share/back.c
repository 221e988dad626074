/*
 * Memory that is freed while another process has it mapped. Where that one only keeps it for its
 * next open, its mapping is called back and no descriptor keeps the memory from the driver; where
 * it has it open, the log tells.
 *
 *   back full      the program needs the memory: an allocation that finds the GPU full
 *   back create    the same by a call of another kind, cuMemCreate
 *   back decay     it lies idle, and neither program does anything
 *   back LIMBO_WARNING=VALUE   the other process has all open still: the log tells of what is freed;
 *                  also LIMBO_WARNING_BLOCKS, LIMBO_WARNING_AGE
 *   back opener    opens and closes what it is told, and then says how much it has mapped; with one
 *                  word more it closes nothing
 *
 * The library is preloaded; what is mapped and exported is asked of the software driver.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"
#include "softcuda.h"

#define BLOCKS 40
#define SIZE   ((size_t)2 << 20)
#define MOST   ((size_t)104 << 20) /* of 128 MiB */
#define WAITS  20000              /* of a millisecond */
#define SOCKET 3

static struct softcuda_census census(void)
{
    struct softcuda_census now;

    softcuda_census(&now);
    return now;
}

/* ---- The opener ----------------------------------------------------------------------------- */

static int opener(bool closes)
{
    CUipcMemHandle handle[BLOCKS];
    CUdeviceptr block[BLOCKS];
    uint32_t mapped, before;
    char ask;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_driver();
    before = census().mappings;
    if (recv(SOCKET, handle, sizeof handle, MSG_WAITALL) != (ssize_t)sizeof handle)
        fail("no handles", errno);
    for (int i = 0; i < BLOCKS; i++)
        must("cuIpcOpenMemHandle",
             cuIpcOpenMemHandle(&block[i], handle[i], CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    for (int i = 0; i < BLOCKS && closes; i++)
        must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block[i]));
    do {
        mapped = census().mappings - before;
        send(SOCKET, &mapped, sizeof mapped, MSG_NOSIGNAL);
    } while (recv(SOCKET, &ask, 1, 0) == 1);
    return 0;
}

static pid_t opener_start(const char *more, int *ret_socket)
{
    int pair[2];
    pid_t child;

    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || (child = fork()) < 0)
        fail("socketpair, fork", errno);
    if (child == 0) {
        close(pair[0]);
        if (pair[1] != SOCKET) {
            dup2(pair[1], SOCKET);
            close(pair[1]);
        }
        execl("/proc/self/exe", "back", "opener", more, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    *ret_socket = pair[0];
    return child;
}

static uint32_t mapped_there(int socket)
{
    uint32_t mapped;

    if (recv(socket, &mapped, sizeof mapped, MSG_WAITALL) != (ssize_t)sizeof mapped)
        fail("the opener is gone", errno);
    return mapped;
}

/* ---- The owner ------------------------------------------------------------------------------ */

#define ANCHOR 1 /* a descriptor of what the device was probed with */

/* Some chunks went to the driver, and nobody keeps more than there are left. */
static bool is_back(uint32_t mapped)
{
    struct softcuda_census now = census();

    return now.handles < BLOCKS && mapped <= now.handles &&
           now.exported_fds <= now.handles + ANCHOR;
}

/* Whether the library has said so: its log's lines are short. */
static bool is_said(const char *path, const char *text)
{
    char line[1024];
    FILE *log = fopen(path, "r");
    bool said = false;

    while (log && !said && fgets(line, sizeof line, log))
        said = strstr(line, text) != NULL;
    if (log)
        fclose(log);
    return said;
}

/* Told by their age they may be as many as were freed before the machine stood still. */
static void await_said(const char *path, pid_t other, bool all)
{
    char text[64];
    int length = snprintf(text, sizeof text, "most by process %d (back): ", (int)other);

    if (all)
        snprintf(text + length, sizeof text - (size_t)length, "%d blocks", BLOCKS);
    for (int i = 0; i < WAITS && !is_said(path, text); i++)
        usleep(1000);
    if (!is_said(path, text))
        fail("the log does not say what is freed and still held, by process", (int)other);
}

static void share(const char *how, int socket, const char *log, pid_t other)
{
    CUipcMemHandle handle[BLOCKS];
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle made = 0;
    CUdeviceptr block[BLOCKS], large = 0;
    uint32_t mapped;

    for (int i = 0; i < BLOCKS; i++) {
        must("cuMemAlloc", cuMemAlloc(&block[i], SIZE));
        must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle[i], block[i]));
    }
    send(socket, handle, sizeof handle, MSG_NOSIGNAL);
    mapped = mapped_there(socket);
    if (mapped < BLOCKS)
        fail("nothing stays mapped: this test shows nothing", (int)mapped);
    for (int i = 0; i < BLOCKS; i++)
        must("cuMemFree", cuMemFree(block[i]));
    if (log) {
        await_said(log, other, strncmp(how, "LIMBO_WARNING_AGE", 17));
        return;
    }
    if (!strcmp(how, "full")) /* at once: the opener has not heard of it yet */
        must("cuMemAlloc, of most", cuMemAlloc(&large, MOST));
    else if (!strcmp(how, "create"))
        must("cuMemCreate, of most", cuMemCreate(&made, MOST, &prop, 0));
    for (int i = 0; i < WAITS && !is_back(mapped); i++) {
        usleep(1000);
        send(socket, "?", 1, MSG_NOSIGNAL);
        mapped = mapped_there(socket);
    }
    printf("%u chunks are left, %u mapped by others, %u descriptors\n", census().handles, mapped,
           census().exported_fds);
    if (!is_back(mapped))
        fail("memory that went back is kept", (int)mapped);
    if (large)
        must("cuMemFree", cuMemFree(large));
    if (made)
        must("cuMemRelease", cuMemRelease(made));
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/gpushim-back-XXXXXX", log[64], name[64] = "GPUSHIM_SHARE_";
    const char *value = argc == 2 ? strchr(argv[1], '=') : NULL;
    int socket, status;
    pid_t child;

    if (argc >= 2 && !strcmp(argv[1], "opener"))
        return opener(argc == 2);
    if (argc != 2)
        fail("one word", argc);
    if (!mkdtemp(dir))
        fail("no directory", errno);
    setenv("GPUSHIM_SHARE_DIR", dir, 1);
    snprintf(log, sizeof log, "%s.log", dir);
    if (value) {
        strncat(name, argv[1], (size_t)(value - argv[1]));
        setenv(name, value + 1, 1);
        setenv("GPUSHIM_LOG_TARGET", log, 1);
    }
    setenv("GPUSHIM_SHARE_IDLE", "10 min", 1);
    setenv("GPUSHIM_POOL_DECAY", strcmp(argv[1], "decay") ? "0" : "300 ms", 1);
    child = fork(); /* its end takes all with it that it keeps there */
    if (child == 0) {
        pid_t other = opener_start(value ? "holds" : NULL, &socket);

        start_driver();
        share(argv[1], socket, value ? log : NULL, other);
        close(socket);
        waitpid(other, &status, 0);
        return status == 0 ? 0 : 1;
    }
    waitpid(child, &status, 0);
    unlink(log);
    if (rmdir(dir) != 0)
        fail("something is left in the directory", errno);
    if (status == 0)
        printf("ok\n");
    return status == 0 ? 0 : 1;
}
