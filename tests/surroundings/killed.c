/*
 * A thread that a filter of system calls kills (SECCOMP_RET_KILL_THREAD) within a call of this
 * library: the others allocate and free on, and the process ends.
 *
 *   killed            each system call of calls[] within each of the deeds[]
 *   killed DEED CALL  one of them, by its place in the list
 */
#include "party.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned number;
} calls[] = {
    {"socket", SYS_socket}, {"bind", SYS_bind}, {"listen", SYS_listen}, {"connect", SYS_connect},
    {"sendmsg", SYS_sendmsg}, {"recvmsg", SYS_recvmsg}, {"openat", SYS_openat},
    {"getrandom", SYS_getrandom}, {"fcntl", SYS_fcntl}, {"dup", SYS_dup}, {"mmap", SYS_mmap}, {"munmap", SYS_munmap},
    {"eventfd2", SYS_eventfd2}, {"epoll_create1", SYS_epoll_create1}, {"epoll_ctl", SYS_epoll_ctl},
    {"write", SYS_write}, {"close", SYS_close}, {"clone3", SYS_clone3}, {"poll", SYS_poll},
    {"memfd_create", SYS_memfd_create}, {"newfstatat", SYS_newfstatat}, {"statx", SYS_statx},
    {"mprotect", SYS_mprotect}, {"getdents64", SYS_getdents64}, {"rt_sigprocmask", SYS_rt_sigprocmask},
    {"ftruncate", SYS_ftruncate}, {"prlimit64", SYS_prlimit64},
};

static void deed_share(void), deed_open(void), deed_allocate(void), deed_free(void);
static const struct {
    const char *name;
    void (*run)(void);
} deeds[] = {{"share", deed_share}, {"open", deed_open}, {"allocate", deed_allocate},
             {"free", deed_free}};

static CUdeviceptr mine, large;
static CUipcMemHandle theirs;
static unsigned call;
static atomic_int task, done;
static CUcontext context;

static void deed_share(void)
{
    CUipcMemHandle handle;

    cuIpcGetMemHandle(&handle, mine);
}

static void deed_open(void)
{
    try_open(&theirs);
}

static void deed_allocate(void)
{
    CUdeviceptr block;

    cuMemAlloc(&block, (size_t)48 << 20);
}

static void deed_free(void)
{
    cuMemFree(large);
    cuMemFree(mine);
}

static void forbid(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[call].number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        fail("no filter of calls", errno);
}

static void *be_killed(void *arg)
{
    void (*const *deed)(void) = arg;

    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    atomic_store(&task, (int)syscall(SYS_gettid));
    forbid();
    (*deed)();
    atomic_store(&done, 1);
    for (;;)
        pause();
    return NULL;
}

static bool has_gone(void)
{
    char path[64];

    if (atomic_load(&done))
        return true;
    snprintf(path, sizeof path, "/proc/self/task/%d", atomic_load(&task));
    return atomic_load(&task) && access(path, F_OK) != 0;
}

static int victim(unsigned deed)
{
    pthread_t thread;
    char stage;

    hear(PARTY_SOCKET, &theirs, sizeof theirs);
    start_driver();
    must("cuCtxGetCurrent", cuCtxGetCurrent(&context));
    must("cuMemAlloc", cuMemAlloc(&large, (size_t)32 << 20));
    mine = block_new();
    use_memory();
    if (pthread_create(&thread, NULL, be_killed, (void *)&deeds[deed].run) != 0)
        fail("pthread_create", errno);
    if (!AWAIT(has_gone()))
        fail("neither killed nor done", 0);
    stage = atomic_load(&done) ? 'd' : 'k';
    say(PARTY_SOCKET, &stage, 1);
    use_memory();
    say(PARTY_SOCKET, "u", 1);
    if (deed == 0)
        must("cuMemFree", cuMemFree(mine));
    for (int i = 0; i < 3; i++)
        use_memory();
    say(PARTY_SOCKET, "f", 1);
    return 0;
}

static int exporter(void)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    char end;

    start_driver();
    block = block_new();
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block));
    say(PARTY_SOCKET, &handle, sizeof handle);
    hear_or_end(PARTY_SOCKET, &end, 1);
    return 0;
}

/* What it had got to when it stood still, or 0. */
static char stands_after(unsigned deed, char *ret_how)
{
    char name[16], stage = 0;
    int status;
    struct party party;

    snprintf(name, sizeof name, "%u %u", deed, call);
    party = party_start("victim", name);
    say(party.socket, &theirs, sizeof theirs);
    *ret_how = '?';
    while (stage != 'f') {
        if (!hear_within(party.socket, &stage, 1, 4000)) {
            party_kill(&party);
            return stage ? stage : '0';
        }
        if (stage == 'k' || stage == 'd')
            *ret_how = stage;
    }
    for (int i = 0; i < 4000 && waitpid(party.pid, &status, WNOHANG) == 0; i++)
        usleep(1000);
    if (kill(party.pid, 0) == 0 && waitpid(party.pid, &status, WNOHANG) == 0) {
        party_kill(&party);
        return 'x';
    }
    close(party.socket);
    return 0;
}

int main(int argc, char **argv)
{
    struct party party;
    unsigned deed, stood = 0;

    if (argc == 3 && strcmp(argv[1], "victim") == 0) {
        sscanf(argv[2], "%u %u", &deed, &call);
        return victim(deed);
    }
    if (argc == 2 && strcmp(argv[1], "exporter") == 0)
        return exporter();
    surroundings_new();
    party = party_start("exporter", NULL);
    hear(party.socket, &theirs, sizeof theirs);
    for (deed = 0; deed < sizeof deeds / sizeof *deeds; deed++)
        for (call = 0; call < sizeof calls / sizeof *calls; call++) {
            char how, stands = stands_after(deed, &how);

            if (how == 'k' || stands)
                printf("%s, %s: %s %c\n", deeds[deed].name, calls[call].name,
                       stands ? "STANDS after" : "goes on", stands ? stands : ' ');
            fflush(stdout);
            stood += stands != 0;
        }
    party_end(&party);
    return stood > 0;
}
