/* Programs of several processes (party.h). */
#include "party.h"

#include "tests/folder.h"
#include "tests/system.h"

#define SKIPPED 77

const char *surroundings_folder;
static int log_file = -1;
static pid_t first;

static void at_end(void)
{
    static char text[1 << 20];
    ssize_t got;

    if (getpid() != first)
        return;
    got = pread(log_file, text, sizeof text, 0);
    fwrite(text, 1, got > 0 ? (size_t)got : 0, stdout);
    folder_remove(surroundings_folder);
}

void surroundings_new(void)
{
    log_file = memfd_create("log", MFD_CLOEXEC);
    if (log_file < 0)
        fail("no log", errno);
    fcntl(log_file, F_SETFL, O_APPEND);
    surroundings_folder = folder_new("around");
    setenv("GPUSHIM_DEBUG_RECLAIM_FROM_PEERS", "on",
           1); /* tests have it off, as they share no folder */
    dup2(log_file, STDERR_FILENO);
    first = getpid();
    atexit(at_end);
}

_Noreturn void skip(const char *why)
{
    printf("skipped: %s\n", why);
    exit(SKIPPED);
}

unsigned times_logged(const char *words)
{
    static char text[1 << 20];
    ssize_t got = pread(log_file, text, sizeof text - 1, 0);
    unsigned times = 0;

    text[got < 0 ? 0 : got] = '\0';
    for (const char *at = text; (at = strstr(at, words)); at++)
        times++;
    return times;
}

struct party party_start_in(const char *role, const char *more, void (*in_child)(void))
{
    struct party party;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0 ||
        (party.pid = fork_child()) < 0)
        fail("socketpair, fork", errno);
    if (party.pid == 0) {
        if (pair[1] == PARTY_SOCKET)
            fcntl(PARTY_SOCKET, F_SETFD, 0);
        else
            dup2(pair[1], PARTY_SOCKET);
        if (in_child)
            in_child();
        execl("/proc/self/exe", program_invocation_short_name, role, more, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    party.socket = pair[0];
    return party;
}

struct party party_start(const char *role, const char *more)
{
    return party_start_in(role, more, NULL);
}

int party_end(struct party *party)
{
    int status = -1;

    close(party->socket);
    if (waitpid(party->pid, &status, 0) != party->pid)
        fail("waitpid", errno);
    return status;
}

void party_kill(struct party *party)
{
    kill(party->pid, SIGKILL);
    party_end(party);
}

void party_share(size_t kept)
{
    CUdeviceptr block = 0, idle;
    CUipcMemHandle handle;
    char order;

    while (hear_or_end(PARTY_SOCKET, &order, 1)) {
        if (order == 's') {
            block = block_new();
            must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
        } else if (order == 'f') {
            must("cuMemFree", cuMemFree(block));
            use_memory();
        } else if (order == 'k') {
            must("cuMemAlloc", cuMemAlloc(&idle, kept));
            must("cuMemFree", cuMemFree(idle));
        }
        say(PARTY_SOCKET, &handle, sizeof handle);
    }
}

CUipcMemHandle party_tell(const struct party *party, char order)
{
    CUipcMemHandle handle;

    say(party->socket, &order, 1);
    hear(party->socket, &handle, sizeof handle);
    return handle;
}

static bool broker_listens(void)
{
    DIR *entries = opendir(surroundings_folder);
    const struct dirent *entry;
    bool listens = false;

    while (entries && (entry = readdir(entries)))
        listens |= strncmp(entry->d_name, "broker", 6) == 0 && !strstr(entry->d_name, "lock") &&
                   !strstr(entry->d_name, "new");
    if (entries)
        closedir(entries);
    return listens;
}

/* Its socket is there before it has opened all that it keeps: a test that counts descriptors found
 * one too many later. Its first thread sleeps when it has. */
pid_t broker_start(const char *program)
{
    pid_t child = fork_child();

    if (child == 0) {
        unsetenv("LD_PRELOAD");
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || !AWAIT(broker_listens()) || !AWAIT(thread_state(child, child) == 'S'))
        fail("no broker", errno);
    return child;
}

bool broker_end(pid_t broker)
{
    int status;

    kill(broker, SIGTERM);
    return waitpid(broker, &status, 0) == broker && status == 0;
}

void say(int socket, const void *bytes, size_t size)
{
    if (send(socket, bytes, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("send", errno);
}

bool hear_within(int socket, void *ret_bytes, size_t size, int ms)
{
    struct pollfd ready = {.fd = socket, .events = POLLIN};

    return poll(&ready, 1, ms) > 0 && recv(socket, ret_bytes, size, MSG_WAITALL) == (ssize_t)size;
}

bool hear_or_end(int socket, void *ret_bytes, size_t size)
{
    struct pollfd ready = {.fd = socket, .events = POLLIN};

    if (poll(&ready, 1, PATIENCE_MS) == 0)
        fail("the other process says nothing", 0);
    return hear_within(socket, ret_bytes, size, PATIENCE_MS);
}

void hear(int socket, void *ret_bytes, size_t size)
{
    if (!hear_or_end(socket, ret_bytes, size))
        fail("the other process has ended", errno);
}

uint64_t cpu_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

uint64_t cpu_of(pid_t pid)
{
    clockid_t clock;
    struct timespec time;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0)
        return 0;
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

unsigned open_files(pid_t pid)
{
    char path[64];
    DIR *entries;
    unsigned count = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    entries = opendir(path);
    if (!entries)
        return 0;
    while (readdir(entries))
        count++;
    closedir(entries);
    return count - 2;
}

CUdeviceptr block_new(void)
{
    CUdeviceptr block;

    must("cuMemAlloc", cuMemAlloc(&block, BLOCK_SIZE));
    must("cuMemsetD32", cuMemsetD32(block, STAMP, BLOCK_SIZE / 4));
    must("cuCtxSynchronize", cuCtxSynchronize());
    return block;
}

bool block_has_stamp(CUdeviceptr block)
{
    uint32_t word;

    must("cuMemcpyDtoH", cuMemcpyDtoH(&word, block + BLOCK_SIZE - sizeof word, sizeof word));
    return word == STAMP;
}

void use_memory(void)
{
    for (int i = 0; i < 10; i++) {
        CUdeviceptr small, large;

        must("cuMemAlloc of a small block", cuMemAlloc(&small, 4096));
        must("cuMemAlloc of a large one", cuMemAlloc(&large, BLOCK_SIZE));
        must("cuMemsetD8", cuMemsetD8(small, 7, 4096));
        must("cuMemFree", cuMemFree(small));
        must("cuMemFree", cuMemFree(large));
    }
}

CUresult try_open(const CUipcMemHandle *handle)
{
    CUdeviceptr block;
    CUresult result = cuIpcOpenMemHandle(&block, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

    if (result != CUDA_SUCCESS)
        return result;
    if (!block_has_stamp(block))
        fail("what was opened is not the block", 0);
    must("cuIpcCloseMemHandle", cuIpcCloseMemHandle(block));
    return CUDA_SUCCESS;
}

void must_open(const CUipcMemHandle *handle)
{
    CUresult last = CUDA_SUCCESS;

    if (!AWAIT((last = try_open(handle)) == CUDA_SUCCESS))
        must("cuIpcOpenMemHandle", last);
}
