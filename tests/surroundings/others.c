/*
 * What happens to the processes that share.
 *
 *   others stops SEED  each of them is stopped and goes on at random instants: all goes on
 *   others stopped     each in turn is stopped until the others have done what they want
 *   others daemon      forks twice and closes all descriptors before it calls the driver
 *   others closes      a thread closes all descriptors of the library at a random moment while
 *                      another shares, and has files of its own under their numbers: that one allocates
 *                      and frees on, and the process ends. (That such files stay as they are cannot be
 *                      had where a number is closed between two system calls of another thread.)
 *   others full        the folder lies on a file system that is full
 */
#include "tests/share/party.h"
#include "tests/system.h"

#include <stdatomic.h>
#include <sys/mount.h>

#define ROUNDS  150
#define NUMBERS 64
#define CLOSERS 12
#define FILES   8
#define TEXT    "a line of the program's own\n"
#define KEPT    ((size_t)64 << 20) /* of a GPU of 128 MiB: what cannot be had twice */

/* ---- Parties that do as they are told ------------------------------------------------------- */

static int exporter(void)
{
    start_driver();
    party_share(KEPT);
    return 0;
}

/* Each handle is opened, looked at and closed, and answered by the result. */
static int importer(void)
{
    CUipcMemHandle handle;
    CUresult result;

    start_driver();
    while (hear_or_end(PARTY_SOCKET, &handle, sizeof handle)) {
        result = try_open(&handle);
        say(PARTY_SOCKET, &result, sizeof result);
    }
    return 0;
}

static CUresult let_open(const struct party *party, const CUipcMemHandle *handle)
{
    CUresult result;

    say(party->socket, handle, sizeof *handle);
    hear(party->socket, &result, sizeof result);
    return result;
}

/* ---- Stopped at random ---------------------------------------------------------------------- */

static struct party parties[3];
static pid_t broker;
static atomic_bool over;

static void nap(unsigned microseconds)
{
    struct timespec time = {.tv_nsec = microseconds * 1000L};

    nanosleep(&time, NULL);
}

static void *stop_at_random(void *arg)
{
    unsigned seed = *(const unsigned *)arg;

    while (!atomic_load(&over)) {
        unsigned which = (unsigned)rand_r(&seed) % 4;
        pid_t pid = which < 3 ? parties[which].pid : broker;

        nap((unsigned)rand_r(&seed) % 3000);
        kill(pid, SIGSTOP);
        nap((unsigned)rand_r(&seed) % 20000);
        kill(pid, SIGCONT);
    }
    return NULL;
}

static void stops(unsigned seed, const char *program)
{
    pthread_t thread;
    CUdeviceptr large;

    setenv("GPUSHIM_SHARE_STRATEGY", "broker", 1);
    setenv("GPUSHIM_SHARE_BROKER", program, 1);
    setenv("GPUSHIM_SHARE_KEEP", "0", 1);
    broker = broker_start(program);
    start_driver();
    parties[0] = party_start("exporter", NULL);
    parties[1] = party_start("importer", NULL);
    parties[2] = party_start("exporter", NULL);
    if (pthread_create(&thread, NULL, stop_at_random, &seed) != 0)
        fail("pthread_create", errno);
    for (int i = 0; i < ROUNDS; i++) {
        CUipcMemHandle handle = party_tell(&parties[0], 's');

        if (!AWAIT(let_open(&parties[1], &handle) == CUDA_SUCCESS))
            fail("a block is never opened, round", i);
        party_tell(&parties[0], 'f');
        if (i % 50 == 0) {
            party_tell(&parties[2], 'k');
            if (!AWAIT(cuMemAlloc(&large, KEPT) == CUDA_SUCCESS))
                fail("what another keeps is never given, round", i);
            must("cuMemFree", cuMemFree(large));
        }
    }
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++)
        if (party_end(&parties[i]) != 0)
            fail("one ended badly", i);
    if (!broker_end(broker))
        fail("the broker ended badly", 0);
}

/* ---- Stopped for long ------------------------------------------------------------------------ */

static void stopped(void)
{
    CUipcMemHandle handle, next;
    CUdeviceptr large;
    struct party keeper;

    start_driver();
    parties[0] = party_start("exporter", NULL);
    parties[1] = party_start("importer", NULL);
    handle = party_tell(&parties[0], 's');
    halt(parties[0].pid);
    if (let_open(&parties[1], &handle) == CUDA_SUCCESS)
        fail("a stopped process shared memory", 0);
    kill(parties[0].pid, SIGCONT);
    if (!AWAIT(let_open(&parties[1], &handle) == CUDA_SUCCESS))
        fail("a process that went on does not share", 0);

    halt(parties[1]
             .pid); /* it keeps the block mapped for its next open, and does not give it back */
    party_tell(&parties[0], 'f');
    next = party_tell(&parties[0], 's');
    must_open(&next);
    party_tell(&parties[0], 'f');
    kill(parties[1].pid, SIGCONT);
    if (!AWAIT(let_open(&parties[1], &handle) != CUDA_SUCCESS))
        fail("what was freed can be opened", 0);

    keeper = party_start("exporter", NULL);
    party_tell(&keeper, 'k');
    halt(keeper.pid);
    if (cuMemAlloc(&large, KEPT) == CUDA_SUCCESS)
        fail("a stopped process gave memory", 0);
    kill(keeper.pid, SIGCONT);
    if (!AWAIT(cuMemAlloc(&large, KEPT) == CUDA_SUCCESS))
        fail("a process that went on gives nothing", 0);
    must("cuMemFree", cuMemFree(large));
    if (party_end(&keeper) != 0 || party_end(&parties[0]) != 0 || party_end(&parties[1]) != 0)
        fail("one ended badly", 0);
}

/* ---- Descriptors ----------------------------------------------------------------------------- */

/* It has no descriptor but the socket, and its parents have ended. */
static int daemonised(void)
{
    CUipcMemHandle handle;
    char end;

    if (fork() != 0 || setsid() < 0 || fork() != 0)
        _exit(0);
    if (syscall(SYS_close_range, 0u, PARTY_SOCKET - 1u, 0u) != 0 ||
        syscall(SYS_close_range, PARTY_SOCKET + 1u, ~0u, 0u) != 0)
        _exit(1);
    start_driver();
    must("cuIpcGetMemHandle", cuIpcGetMemHandle(&handle, block_new()));
    say(PARTY_SOCKET, &handle, sizeof handle);
    hear_or_end(PARTY_SOCKET, &end, 1);
    return 0;
}

static void try_daemon(void)
{
    struct party party = party_start("daemon", NULL);
    CUipcMemHandle handle;

    start_driver();
    hear(party.socket, &handle, sizeof handle);
    must_open(&handle);
    if (party_end(&party) != 0)
        fail("it ended badly", 0);
}

static void *share_on(void *arg)
{
    CUcontext context = arg;
    CUipcMemHandle handle;
    CUdeviceptr block;

    must("cuCtxSetCurrent", cuCtxSetCurrent(context));
    for (int i = 0; i < 30; i++) {
        must("cuMemAlloc", cuMemAlloc(&block, BLOCK_SIZE));
        cuIpcGetMemHandle(&handle, block); /* it may fail from some time on */
        must("cuMemFree", cuMemFree(block));
    }
    return NULL;
}

/* The driver's memory is above the soft limit of numbers. */
static int closer(unsigned seed)
{
    struct rlimit limit;
    CUcontext context;
    pthread_t thread;
    int files[FILES];

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        fail("getrlimit", errno);
    limit.rlim_cur = NUMBERS;
    setrlimit(RLIMIT_NOFILE, &limit);
    start_driver();
    must("cuCtxGetCurrent", cuCtxGetCurrent(&context));
    use_memory();
    if (pthread_create(&thread, NULL, share_on, context) != 0)
        fail("pthread_create", errno);
    nap((unsigned)rand_r(&seed) % 3000);
    syscall(SYS_close_range, PARTY_SOCKET + 1u, NUMBERS - 1u, 0u);
    for (int i = 0; i < FILES; i++) {
        char path[] = "/tmp/gpushim-others-XXXXXX";

        files[i] = mkstemp(path);
        unlink(path);
        if (files[i] < 0)
            fail("no file", errno);
        if (write(files[i], TEXT, sizeof TEXT) < 0 && errno != EBADF && errno != EINVAL)
            fail("the file cannot be written", errno); /* closed behind us: see above */
    }
    pthread_join(thread, NULL);
    use_memory();
    return 0;
}

static void try_closers(void)
{
    for (unsigned i = 1; i <= CLOSERS; i++) {
        char seed[16], end;
        struct party party;

        snprintf(seed, sizeof seed, "%u", i);
        party = party_start("closer", seed);
        hear_or_end(party.socket, &end, 1);
        if (party_end(&party) != 0)
            fail("it ended badly, seed", (int)i);
    }
}

/* ---- A full disk ----------------------------------------------------------------------------- */

static void try_full(void)
{
    char path[128];
    CUipcMemHandle handle;
    CUdeviceptr block;
    struct party party;
    CUresult result;
    int fd;

    if ((unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
         mount("none", surroundings_folder, "tmpfs", 0, "size=4k,nr_inodes=3,mode=0700") != 0))
        skip("no file system can be mounted here");
    for (int i = 0; i < 2; i++) { /* the folder is the first of three */
        snprintf(path, sizeof path, "%s/full%d", surroundings_folder, i);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        while (fd >= 0 && write(fd, path, sizeof path) > 0)
            ;
        close(fd);
    }
    start_driver();
    block = block_new();
    use_memory();
    result = cuIpcGetMemHandle(&handle, block);
    party = party_start("importer", NULL);
    printf("a handle on a full disk: %d\n", (int)result);
    if (result == CUDA_SUCCESS)
        must("another process's cuIpcOpenMemHandle", let_open(&party, &handle));
    else if (times_logged("No space left on device") == 0)
        fail("nobody said why", (int)result);
    unlink(path);
    use_memory();
    must("cuMemFree", cuMemFree(block));
    block = block_new();
    must("cuIpcGetMemHandle on a disk with room", cuIpcGetMemHandle(&handle, block));
    must("another process's cuIpcOpenMemHandle", let_open(&party, &handle));
    if (party_end(&party) != 0)
        fail("it ended badly", 0);
}

static void play(const char *how, const char *more, const char *program)
{
    char machine[80];

    if (strcmp(how, "daemon") == 0)
        try_daemon();
    else if (strcmp(how, "closes") == 0)
        try_closers();
    else if (strcmp(how, "full") == 0)
        try_full();
    else {
        snprintf(machine, sizeof machine, "%s/machine", surroundings_folder);
        setenv("SOFTCUDA_MACHINE", machine, 1);
        setenv("SOFTCUDA_MEMORY", "128M", 1);
        setenv("GPUSHIM_POOL_DECAY", "10min", 1);
        if (strcmp(how, "stops") == 0)
            stops((unsigned)atoi(more), program);
        else
            stopped();
    }
}

int main(int argc, char **argv)
{
    const char *how = argc >= 2 ? argv[1] : "";

    if (strcmp(how, "exporter") == 0)
        return exporter();
    if (strcmp(how, "importer") == 0)
        return importer();
    if (strcmp(how, "closer") == 0)
        return closer((unsigned)atoi(argv[2]));
    if (strcmp(how, "daemon") == 0 && getenv("OTHERS_PARTY"))
        return daemonised();
    surroundings_new();
    setenv("OTHERS_PARTY", "1", 1);
    play(how, argc >= 3 ? argv[2] : "", argc >= 4 ? argv[3] : "");
    puts("ok");
    return 0;
}
