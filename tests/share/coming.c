/*
 * Memory that is on its way back counts as there: a program frees what another one reads, that one
 * reads on for a while, and as soon as it has closed it, exited or been killed, and this is known
 * here, the first one needs the memory. Natively it has it.
 *
 *   coming close | busy | exit | kill    how the other one lets go; busy: it closes while GPU work of
 *                                        its own still runs
 *   coming reader                        that other one
 */
#include "party.h"
#include "tests/clock.h"
#include "tests/folder.h"
#include "tests/system.h"

#define MIB     ((size_t)1 << 20)
#define SHARED  (40 * MIB) /* of 64 MiB */
#define NEEDED  (45 * MIB)
#define WORK_US 20000

static const unsigned reads_on_ms[] = {0, 300, 600, 900, 1500};

/* ---- Who reads ------------------------------------------------------------------------------ */

static void CUDA_CB work(void *arg)
{
    usleep(WORK_US);
    (void)arg;
}

static int reader(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    CUstream stream;
    char how;

    start_driver();
    must("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    hear(PARTY_SOCKET, &handle, sizeof handle);
    must("cuIpcOpenMemHandle",
         cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    say(PARTY_SOCKET, "o", 1);
    hear(PARTY_SOCKET, &how, 1);
    if (how == 'b')
        must("cuLaunchHostFunc", cuLaunchHostFunc(stream, work, NULL));
    if (how == 'e')
        return 0;
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    say(PARTY_SOCKET, "c", 1);
    hear_or_end(PARTY_SOCKET, &how, 1);
    return 0;
}

/* ---- Whose memory it is --------------------------------------------------------------------- */

/* Returns when the caller has every reason to know that the memory is free. */
static void let_go(char how, const struct party *other)
{
    char said;

    if (how == 'k')
        kill(other->pid, SIGKILL);
    else
        say(other->socket, &how, 1);
    if (how == 'k' || how == 'e')
        waitpid(other->pid, NULL, 0);
    else
        hear(other->socket, &said, 1);
}

static void need(char how, unsigned after_ms)
{
    CUdeviceptr shared, needed;
    CUipcMemHandle handle;
    struct party other = party_start("reader", NULL);
    CUresult result;
    uint64_t before;
    char said;

    must("cuMemAlloc", cuMemAlloc(&shared, SHARED));
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, shared));
    say(other.socket, &handle, sizeof handle);
    hear(other.socket, &said, 1);
    must("cuMemFree", cuMemFree(shared));
    usleep(after_ms * 1000); /* it reads on */
    let_go(how, &other);
    before = now_ns();
    result = cuMemAlloc(&needed, NEEDED);
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "after %u ms of reading on: %d after %u ms\n", after_ms, (int)result,
                (unsigned)((now_ns() - before) / 1000000));
        fail("memory that has come back is not to be had", how);
    }
    must("cuMemFree", cuMemFree(needed));
    if (how == 'k' || how == 'e')
        close(other.socket);
    else
        party_end(&other);
}

int main(int argc, char **argv)
{
    const char *dir;
    char machine[64];
    int status = 0;
    pid_t child;

    if (argc == 2 && !strcmp(argv[1], "reader"))
        return reader();
    if (argc != 2)
        fail("one word", argc);
    dir = folder_new("coming");
    snprintf(machine, sizeof machine, "%s.machine", dir);
    setenv("SOFTCUDA_MACHINE", machine, 1);
    child = fork_child(); /* its end takes all with it that it keeps there */
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
