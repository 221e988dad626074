/*
 * What the shim costs where it has nothing to do: hooked calls on memory that is not its own, the
 * first CUDA calls of a process, and processes that never use CUDA. And on the software driver,
 * whose own part is the same each time, what a warm allocation and its free take.
 *
 * Run under the shim (LD_PRELOAD) it measures each thing in second processes with it and without
 * it, in turns; run without, it gives the native figures and null for the shim's. Instructions are
 * those of the calling thread, single-stepped from outside; null where the system does not permit
 * tracing. --whole counts those of whole programs too, which takes half a minute.
 */
#include "../conformance/copies.h"
#include "../steps.h"
#include "bench.h"

#include <spawn.h>

#define SELF       "/proc/self/exe"
#define STEP_LIMIT 30000000 /* about a minute */

static const char usage[] = "overhead [--runs N] [--starts N] [--whole]";

/* ---- in the second process ---- */

struct foreign {
    CUdeviceptr managed[2], pooled[2];
    void *host, *libc, *driver;
    const char *volatile name;  /* of a function of libc */
    const char *volatile known; /* of the driver, and no hook's: found among those that are known */
    CUcontext context;
    CUDA_MEMCPY2D rows;
    CUDA_MEMCPY3D box;
    CUDA_MEMCPY3D_PEER peer;
    CUlaunchAttribute attribute;
    CUlaunchConfig config;
};

static bool launch_in_turns(int round)
{
    CUstream stream = round % 2 ? NULL : CU_STREAM_PER_THREAD;

    return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL) != CUDA_SUCCESS;
}

/*
 * CALL(name, whether it worked)
 *
 * Copies and fills are of nothing, so that no work is submitted, whose cost varies: the way there
 * is the same. Kernels are none: the driver refuses them.
 */
/* clang-format off */
#define CALLS_OF(CALL) \
    CALL(pointer_attribute, !cuPointerGetAttribute(&(CUmemorytype){0}, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)its->host)) \
    CALL(pointer_attributes, !cuPointerGetAttributes(2, (CUpointer_attribute[]){CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_CONTEXT}, (void *[]){&(CUmemorytype){0}, &(CUcontext){0}}, its->managed[0])) \
    CALL(address_range, !cuMemGetAddressRange(&(CUdeviceptr){0}, &(size_t){0}, its->managed[1])) \
    CALL(free, !cuMemFree(its->managed[round])) \
    CALL(free_from_pool, !cuMemFreeAsync(its->pooled[round], NULL)) \
    CALL(copy, !cuMemcpyDtoDAsync(its->managed[0], its->managed[1], 0, NULL)) \
    CALL(copy_from_host, !cuMemcpyHtoDAsync(its->managed[0], its->host, 0, NULL)) \
    CALL(copy_rows, !cuMemcpy2DAsync(&its->rows, NULL)) \
    CALL(copy_volume, !cuMemcpy3DAsync(&its->box, NULL)) \
    CALL(copy_peer, !cuMemcpyPeerAsync(its->managed[0], its->context, its->managed[1], its->context, 0, NULL)) \
    CALL(copy_peer_volume, !cuMemcpy3DPeerAsync(&its->peer, NULL)) \
    CALL(fill, !cuMemsetD32Async(its->managed[0], 1, 0, NULL)) \
    CALL(fill_rows, !cuMemsetD2D8Async(its->managed[0], 1024, 1, 0, 0, NULL)) \
    CALL(launch, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)) \
    CALL(launch_per_thread, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, CU_STREAM_PER_THREAD, NULL, NULL)) \
    CALL(launch_in_turns, launch_in_turns(round)) \
    CALL(launch_config, cuLaunchKernelEx(&(CUlaunchConfig){0}, NULL, NULL, NULL)) \
    CALL(launch_attribute, cuLaunchKernelEx(&its->config, NULL, NULL, NULL)) \
    CALL(launch_graph, cuGraphLaunch(NULL, NULL)) \
    CALL(dlsym, dlsym(its->libc, its->name)) \
    CALL(dlsym_known, dlsym(its->driver, its->known))
/* clang-format on */

#define CALL(name, worked)                                  \
    static bool call_##name(struct foreign *its, int round) \
    {                                                       \
        return worked;                                      \
    }
CALLS_OF(CALL)
#undef CALL

static const struct {
    const char *name;
    bool (*call)(struct foreign *its, int round);
} calls[] = {
#define CALL(name, worked) {#name, call_##name},
    CALLS_OF(CALL)};
#define CALLS (sizeof calls / sizeof *calls)

/* Memory of a pool of the program's own, and some that is the shim's. */
static void start_pool(struct foreign *foreign)
{
    CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemoryPool pool;
    CUdeviceptr ours;

    MUST(cuMemPoolCreate(&pool, &properties));
    for (int i = 0; i < 2; i++)
        MUST(cuMemAllocFromPoolAsync(&foreign->pooled[i], 1 << 20, pool, NULL));
    MUST(cuStreamSynchronize(NULL));
    MUST(cuMemAlloc(&ours, 64 << 20));
}

/* The call once to bind and load what it needs, and once more between the two signals. */
static int step_call(const char *name)
{
    struct foreign foreign = {.name = "getenv", .known = "cuDriverGetVersion"};
    size_t which = 0;

    while (which < CALLS && strcmp(calls[which].name, name) != 0)
        which++;
    if (which == CALLS)
        bench_die("there is no call %s", name);
    bench_start();
    foreign.libc = dlopen("libc.so.6", RTLD_NOW);
    foreign.driver = dlopen("libcuda.so.1", RTLD_NOW);
    MUST(cuCtxGetCurrent(&foreign.context));
    MUST(cuMemAllocHost(&foreign.host, 4096));
    for (int i = 0; i < 2; i++)
        MUST(cuMemAllocManaged(&foreign.managed[i], 1 << 20, CU_MEM_ATTACH_GLOBAL));
    foreign.rows = rectangle_copy(foreign.managed[1], foreign.managed[0], 1024, 0);
    foreign.box = box_copy(foreign.managed[1], foreign.managed[0], 1024, 1, 0);
    foreign.peer = peer_copy(foreign.managed[1], foreign.context, foreign.managed[0],
                             foreign.context, 1024, 1, 0);
    foreign.attribute.id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
    foreign.config = (CUlaunchConfig){.attrs = &foreign.attribute, .numAttrs = 1};
    start_pool(&foreign);
    bool worked = calls[which].call(&foreign, 0);
    raise(SIGUSR1);
    worked &= calls[which].call(&foreign, 1);
    raise(SIGUSR2);
    if (!worked)
        bench_die("the call %s failed", name);
    return 0;
}

/* ---- warm pairs of an allocation and its free ---- */

#define WARM  500
#define PAIRS 16

static const struct pair_kind {
    const char *name;
    size_t size;
    bool ordered;
    unsigned live; /* others in its piece */
    bool several;  /* as in a program of several streams, where freed memory waits for the GPU */
} pair_kinds[] = {
    {"pair_64k", 64 << 10, false, 0, false},
    {"pair_64k_ordered", 64 << 10, true, 0, false},
    {"pair_256m", 256 << 20, false, 0, false},
    {"pair_1m", 1 << 20, false, 301, false},
    {"pair_64k_several", 64 << 10, false, 0, true},
    {"pair_256m_several", 256 << 20, false, 0, true},
};
#define PAIR_KINDS (sizeof pair_kinds / sizeof *pair_kinds)

static void pairs(const struct pair_kind *kind, CUstream stream, unsigned count)
{
    CUdeviceptr block;

    for (unsigned i = 0; i < count; i++)
        if (kind->ordered) {
            MUST(cuMemAllocAsync(&block, kind->size, stream));
            MUST(cuMemFreeAsync(block, stream));
        } else {
            MUST(cuMemAlloc(&block, kind->size));
            MUST(cuMemFree(block));
        }
}

static int step_pairs(const char *name)
{
    const struct pair_kind *kind = pair_kinds;
    CUdeviceptr live;
    CUstream stream;

    while (strcmp(kind->name, name) != 0)
        kind++;
    bench_start();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < kind->live; i++)
        MUST(cuMemAlloc(&live, kind->size));
    pairs(kind, stream, WARM);
    raise(SIGUSR1);
    pairs(kind, stream, PAIRS);
    raise(SIGUSR2);
    return 0;
}

/* Nanoseconds from the first call until the end of cuInit, of the context's start, and of the first
 * allocation. */
struct starts {
    uint64_t init, context, alloc;
};

static struct starts start_cuda(void)
{
    struct starts starts;
    CUcontext context;
    CUdeviceptr block;
    uint64_t began = bench_now();

    MUST(cuInit(0));
    starts.init = bench_now() - began;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    starts.context = bench_now() - began;
    MUST(cuMemAlloc(&block, 1 << 20));
    starts.alloc = bench_now() - began;
    return starts;
}

static int second_process(char **argv)
{
    if (strcmp(argv[1], "--call") == 0)
        return step_call(argv[2]);
    if (strcmp(argv[1], "--pair") == 0)
        return step_pairs(argv[2]);
    if (strcmp(argv[1], "--step-start") == 0) {
        raise(SIGUSR1);
        start_cuda();
        raise(SIGUSR2);
        return 0;
    }
    struct starts starts = start_cuda();
    bench_send(BENCH_SOCKET, &starts, sizeof starts);
    return 0;
}

/* ---- instructions ---- */

__attribute__((noreturn)) static void exec_traced(const char *path, char **argv, char **env)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(STEPS_NOT_PERMITTED);
    execve(path, argv, env);
    _exit(1);
}

/*
 * Instructions of the program between its SIGUSR1 and SIGUSR2, or all of them. -1 where tracing is
 * not permitted or it takes more than STEP_LIMIT.
 */
static long instructions(const char *path, char **argv, bool preload, bool all)
{
    char **env = preload ? environ : bench_environment_without_preload();
    long steps = 0;
    int status;
    pid_t pid = fork();

    if (pid == 0)
        exec_traced(path, argv, env);
    if (pid < 0)
        bench_die("fork: %s", strerror(errno));
    if (waitpid(pid, &status, 0) != pid)
        bench_die("waitpid: %s", strerror(errno));
    if (WIFSTOPPED(status))
        steps = steps_run(pid, &status, all, STEP_LIMIT);
    if (WIFSTOPPED(status) && steps < STEP_LIMIT && steps_run(pid, &status, false, STEP_LIMIT) < 0)
        bench_die("ptrace: %s", strerror(errno));
    if (env != environ)
        free(env);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return -1;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == STEPS_NOT_PERMITTED)
        return -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        bench_die("the traced process '%s %s' failed", argv[0], argv[1] ? argv[1] : "");
    return steps;
}

/* ---- the figures: NAME_native, NAME_shim, NAME_more ---- */

static void print_pair(const char *name, bool known, double native, bool shim_known, double shim)
{
    static const char *const suffixes[] = {"native", "shim", "more"};
    const double values[] = {native, shim, shim - native};
    const bool there[] = {known, shim_known, known && shim_known};
    char key[96];

    for (int i = 0; i < 3; i++) {
        snprintf(key, sizeof key, "%s_%s", name, suffixes[i]);
        if (there[i])
            json_number(key, values[i]);
        else
            json_null(key);
    }
}

static void print_instructions(const char *name, const char *path, char **argv, bool preloaded,
                               bool all)
{
    char key[64];
    long native = instructions(path, argv, false, all);
    long shim = preloaded ? instructions(path, argv, true, all) : -1;

    snprintf(key, sizeof key, "%s_instructions", name);
    print_pair(key, native >= 0, (double)native, shim >= 0, (double)shim);
}

static void print_calls(bool preloaded)
{
    for (size_t i = 0; i < CALLS; i++) {
        char *argv[] = {program_invocation_name, (char *)"--call", (char *)(uintptr_t)calls[i].name,
                        NULL};
        print_instructions(calls[i].name, SELF, argv, preloaded, false);
    }
}

/* Under the shim; those of the driver alone are not the same on any other. */
static void print_pairs(void)
{
    for (size_t i = 0; i < PAIR_KINDS; i++) {
        const struct pair_kind *kind = &pair_kinds[i];
        char *argv[] = {program_invocation_name, (char *)"--pair", (char *)(uintptr_t)kind->name,
                        NULL};

        char key[64];

        setenv("GPUSHIM_DEBUG_SINGLE_STREAM", kind->several ? "off" : "on", 1);
        long steps = instructions(SELF, argv, true, false);
        snprintf(key, sizeof key, "%s_instructions", kind->name);
        if (steps < 0)
            json_null(key);
        else
            json_number(key, (double)steps / PAIRS);
    }
    unsetenv("GPUSHIM_DEBUG_SINGLE_STREAM");
}

static struct starts start_once(bool preload)
{
    static const char *const arguments[] = {"--start", NULL};
    struct starts starts;
    pid_t pid;
    int socket = bench_spawn_self(arguments, preload, &pid);

    bench_receive(socket, &starts, sizeof starts);
    bench_wait(pid, socket);
    return starts;
}

static void print_starts(uint64_t runs, bool preloaded)
{
    static const char *const names[] = {"init_us", "context_us", "first_alloc_us"};
    uint64_t *ns[2][3];

    for (int how = 0; how < 2; how++)
        for (int what = 0; what < 3; what++)
            ns[how][what] = bench_array(runs, sizeof **ns);
    for (uint64_t i = 0; i < runs; i++)
        for (int how = 0; how <= preloaded; how++) {
            struct starts starts = start_once(how == 1);
            ns[how][0][i] = starts.init;
            ns[how][1][i] = starts.context;
            ns[how][2][i] = starts.alloc;
        }
    for (int what = 0; what < 3; what++) {
        print_pair(names[what], true, (double)bench_median(ns[0][what], runs) / 1000, preloaded,
                   (double)bench_median(ns[1][what], runs) / 1000);
        free(ns[0][what]);
        free(ns[1][what]);
    }
}

static uint64_t time_process(char **argv, char **env)
{
    uint64_t began = bench_now();
    int status;
    pid_t pid;

    errno = posix_spawn(&pid, argv[0], NULL, NULL, argv, env);
    if (errno)
        bench_die("cannot run %s: %s", argv[0], strerror(errno));
    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_die("%s failed", argv[0]);
    return bench_now() - began;
}

static char *true_program(void)
{
    return (char *)(access("/bin/true", X_OK) == 0 ? "/bin/true" : "/usr/bin/true");
}

static void print_true(uint64_t runs, bool preloaded)
{
    char *argv[] = {true_program(), NULL};
    char **without = bench_environment_without_preload();
    uint64_t *native = bench_array(runs, sizeof *native), *shim = bench_array(runs, sizeof *shim);

    for (uint64_t i = 0; i < runs; i++) {
        native[i] = time_process(argv, without);
        if (preloaded)
            shim[i] = time_process(argv, environ);
    }
    print_pair("true_us", true, (double)bench_median(native, runs) / 1000, preloaded,
               (double)bench_median(shim, runs) / 1000);
    free(native);
    free(shim);
    free(without);
}

/* The first calls on the software driver alone: a real cuInit is too long to be stepped. */
static void print_whole(bool preloaded)
{
    char *start[] = {program_invocation_name, (char *)"--step-start", NULL};
    char *nothing[] = {true_program(), NULL};

    if (bench_software_driver())
        print_instructions("start", SELF, start, preloaded, false);
    print_instructions("true", nothing[0], nothing, preloaded, true);
}

int main(int argc, char **argv)
{
    uint64_t runs = 200, starts = 11;
    bool whole = false, preloaded = bench_under_shim();
    const struct bench_option options[] = {{"runs", BENCH_NUMBER, &runs},
                                           {"starts", BENCH_NUMBER, &starts},
                                           {"whole", BENCH_FLAG, &whole},
                                           {NULL}};

    if (argc > 1 && (strcmp(argv[1], "--call") == 0 || strcmp(argv[1], "--pair") == 0 ||
                     strcmp(argv[1], "--start") == 0 || strcmp(argv[1], "--step-start") == 0))
        return second_process(argv);
    if (bench_options(argv, options, usage) || runs == 0 || starts == 0)
        bench_die("nothing to do\nusage: %s", usage);
    json_begin("overhead");
    json_count("runs", runs);
    json_count("starts", starts);
    print_calls(preloaded);
    if (preloaded && bench_software_driver())
        print_pairs();
    print_starts(starts, preloaded);
    print_true(runs, preloaded);
    if (whole)
        print_whole(preloaded);
    json_end();
    return 0;
}
