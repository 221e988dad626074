/*
 * A thread that a filter of system calls kills (SECCOMP_RET_KILL_THREAD) within a call of this
 * library: the other threads allocate, free, share and open on, or are refused, and the process
 * ends. Where the driver makes the call the thread dies with the driver's lock, natively as well,
 * and where the library makes it with a lock held (write, to its own pipe) with that: such are not
 * tried.
 */
#include "tests/forbid.h"
#include "tests/share/party.h"
#include "tests/system.h"

#include <stdatomic.h>

static void share(void), open_theirs(void);

#define CALL(name) {#name, SYS_##name}
static const struct {
    const char *name;
    void (*run)(void);
    struct {
        const char *name;
        unsigned number;
    } calls[16];
} deeds[] = {
    /* For the first time; what the share thread calls as well is left out: it has the filter
     * too. */
    {"begin", share, {CALL(socket), CALL(listen), CALL(epoll_create1), CALL(clone3)}},
    {"open",
     open_theirs,
     {CALL(socket), CALL(connect), CALL(sendmsg), CALL(recvmsg), CALL(poll), CALL(epoll_ctl)}},
};

static CUdeviceptr mine;
static CUipcMemHandle theirs;
static unsigned deed, call;
static atomic_int task, done;
static CUcontext context;

static void share(void)
{
    CUipcMemHandle handle;

    cuIpcGetMemHandle(&handle, mine);
}

static void open_theirs(void)
{
    try_open(&theirs);
}

static void *be_killed(void *arg)
{
    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    atomic_store(&task, (int)syscall(SYS_gettid));
    if (!forbid_call(deeds[deed].calls[call].number, SECCOMP_RET_KILL_THREAD))
        fail("no filter of calls", errno);
    deeds[deed].run();
    atomic_store(&done, 1);
    for (;;)
        pause();
    return arg;
}

static bool has_gone(void)
{
    char path[64];

    if (atomic_load(&done))
        return true;
    snprintf(path, sizeof path, "/proc/self/task/%d", atomic_load(&task));
    return atomic_load(&task) && access(path, F_OK) != 0;
}

/* Says what it has got to. */
static int victim(void)
{
    pthread_t thread;

    hear(PARTY_SOCKET, &theirs, sizeof theirs);
    start_driver();
    must("cuCtxGetCurrent", cuCtxGetCurrent(&context));
    mine = block_new();
    use_memory();
    if (deeds[deed].run != share)
        share();
    if (pthread_create(&thread, NULL, be_killed, NULL) != 0)
        fail("pthread_create", errno);
    if (!AWAIT(has_gone()))
        fail("neither killed nor done", 0);
    say(PARTY_SOCKET, atomic_load(&done) ? "d" : "k", 1);
    use_memory();
    say(PARTY_SOCKET, "a", 1);
    must("cuMemFree", cuMemFree(mine));
    use_memory();
    say(PARTY_SOCKET, "f", 1);
    mine = block_new();
    share();
    say(PARTY_SOCKET, "s", 1);
    open_theirs();
    say(PARTY_SOCKET, "e", 1);
    return 0;
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
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

/* Whether a thread was killed. */
static bool try_killed(void)
{
    static const char *const next[] = {"being killed", "allocating", "freeing", "sharing",
                                       "opening"};
    const char *name = deeds[deed].calls[call].name;
    char argument[32], stages[5], what[96];
    struct party party;

    snprintf(argument, sizeof argument, "%u %u", deed, call);
    party = party_start("victim", argument);
    say(party.socket, &theirs, sizeof theirs);
    for (unsigned i = 0; i < 5; i++) {
        snprintf(what, sizeof what, "%s, killed at %s: stands in %s", deeds[deed].name, name,
                 next[i]);
        if (!hear_within(party.socket, &stages[i], 1, PATIENCE_MS / 2))
            fail(what, 0);
    }
    snprintf(what, sizeof what, "%s, killed at %s: does not end", deeds[deed].name, name);
    if (!AWAIT(has_ended(party.pid)))
        fail(what, 0);
    if (party_end(&party) != 0)
        fail("it ended badly", 0);
    printf("%s, %s: %s\n", deeds[deed].name, name, stages[0] == 'k' ? "killed" : "not called");
    return stages[0] == 'k';
}

int main(int argc, char **argv)
{
    struct party party;
    unsigned killed = 0;

    if (argc == 3 && strcmp(argv[1], "victim") == 0 && sscanf(argv[2], "%u %u", &deed, &call) == 2)
        return victim();
    if (argc == 2 && strcmp(argv[1], "exporter") == 0)
        return exporter();
    surroundings_new();
    party = party_start("exporter", NULL);
    hear(party.socket, &theirs, sizeof theirs);
    for (deed = 0; deed < sizeof deeds / sizeof *deeds; deed++)
        for (call = 0; deeds[deed].calls[call].name; call++)
            killed += try_killed();
    if (killed < 8)
        fail("too few were killed", (int)killed);
    if (party_end(&party) != 0)
        fail("the exporter ended badly", 0);
    puts("ok");
    return 0;
}
