/*
 * Memory that is on its way back counts as there: a program frees what another one reads, that one
 * reads on for a while, and as soon as it has closed it, exited or been killed, and this is known
 * here, the first one needs the memory. Natively it has it.
 *
 *   coming close | busy | exit | kill    how the other one lets go; busy: it closes while GPU work of
 *                                        its own still runs
 *   coming reader                        that other one
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "program.h"

#define MIB    ((size_t)1 << 20)
#define SHARED (40 * MIB) /* of 64 MiB */
#define NEEDED (45 * MIB)
#define SOCKET 3
#define WORK_US 20000

static const unsigned reads_on_ms[] = {0, 300, 600, 900, 1500};

/* ---- Who reads ------------------------------------------------------------------------------ */

static void CUDA_CB work(void *arg)
{
    usleep(WORK_US);
    (void)arg;
}

static void hear(int socket, void *bytes, size_t size)
{
    if (recv(socket, bytes, size, MSG_WAITALL) != (ssize_t)size)
        fail("the other process is gone", errno);
}

static int reader(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    CUstream stream;
    char how;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    start_driver();
    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    hear(SOCKET, &handle, sizeof handle);
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    send(SOCKET, "o", 1, MSG_NOSIGNAL);
    hear(SOCKET, &how, 1);
    if (how == 'b')
        must("cuLaunchHostFunc", cuLaunchHostFunc(stream, work, NULL));
    if (how == 'e')
        return 0;
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    send(SOCKET, "c", 1, MSG_NOSIGNAL);
    hear(SOCKET, &how, 1);
    return 0;
}

static pid_t reader_start(int *ret_socket)
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
        execl("/proc/self/exe", "coming", "reader", (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    *ret_socket = pair[0];
    return child;
}

/* ---- Whose memory it is --------------------------------------------------------------------- */

/* Returns when the caller has every reason to know that the memory is free. */
static void let_go(char how, pid_t other, int socket)
{
    int status;
    char said;

    if (how == 'k') {
        kill(other, SIGKILL);
        waitpid(other, &status, 0);
        return;
    }
    send(socket, &how, 1, MSG_NOSIGNAL);
    if (how == 'e')
        waitpid(other, &status, 0);
    else
        hear(socket, &said, 1);
}

static void need(char how, unsigned after_ms)
{
    CUdeviceptr shared, needed;
    CUipcMemHandle handle;
    int socket, status;
    pid_t other = reader_start(&socket);
    CUresult result;
    char said;

    must("cuMemAlloc", cuMemAlloc(&shared, SHARED));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
    send(socket, &handle, sizeof handle, MSG_NOSIGNAL);
    hear(socket, &said, 1);
    must("cuMemFree", cuMemFree(shared));
    usleep(after_ms * 1000); /* it reads on */
    let_go(how, other, socket);
    result = cuMemAlloc(&needed, NEEDED);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "after %u ms of reading on: %d\n", after_ms, (int)result);
        fail("memory that has come back is not to be had", how);
    }
    must("cuMemFree", cuMemFree(needed));
    close(socket);
    if (how != 'k' && how != 'e')
        waitpid(other, &status, 0);
}

int main(int argc, char **argv)
{
    char dir[] = "/tmp/gpushim-coming-XXXXXX", machine[64];
    int status = 0;
    pid_t child;

    if (argc == 2 && !strcmp(argv[1], "reader"))
        return reader();
    if (argc != 2 || !mkdtemp(dir))
        fail("one word, and a directory", errno);
    setenv("GPUSHIM_SHARE_DIR", dir, 1);
    snprintf(machine, sizeof machine, "%s.machine", dir);
    setenv("SOFTCUDA_MACHINE", machine, 1);
    child = fork(); /* its end takes all with it that it keeps there */
    if (child == 0) {
        start_driver();
        for (unsigned i = 0; i < sizeof reads_on_ms / sizeof *reads_on_ms; i++)
            need(argv[1][0], reads_on_ms[i]);
        return 0;
    }
    waitpid(child, &status, 0);
    unlink(machine);
    if (rmdir(dir) != 0)
        fail("something is left in the directory", errno);
    if (status == 0)
        printf("ok\n");
    return status == 0 ? 0 : 1;
}
