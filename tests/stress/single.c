/*
 * single [--seconds N] [--threads N] [--jobs N] [--seed N] [--find]
 *
 * Programs that begin with all their GPU work in one stream, which allocate and free memory in its
 * order alone, and then use several. That happens once in a process. So this one forks children
 * again and again, some at a time, and uses no CUDA itself. In a child threads work on blocks
 * (stress.h) through one stream, which falls behind; from a random moment on they use streams of
 * their own, capture, hand blocks over, destroy streams, and one of them does what else may end
 * such an order. A plain CUDA program on the driver API, as stress is.
 *
 * The last line is "single: ok CHILDREN children CHECKS checks", or what went wrong. With --find it
 * is the other way round: success is memory that was given to two, or taken away under a kernel.
 *
 * Exit status: 0 as said, 1 otherwise, 2 when called wrongly.
 */
#include "stress.h"

#define HANG_SECONDS 120 /* of one time in a context */
#define FOUND        3   /* exit status of a child */
#define ALONE_STEPS  60
#define STEPS        80
#define WORDS        ((size_t)1 << 16)

static unsigned jobs = 2;

/* Of all children; in memory that they share with this process. */
static struct counts {
    uint64_t checks, blocks; /* atomic */
} *counts;

/* What one thread does when the moment has come. */
enum act {
    NOTHING,
    COPIES, /* and fills: synchronous ones, on the legacy stream */
    CAPTURES,
    EXPORTS,          /* an IPC handle */
    MAKES_A_CONTEXT,  /* beside the one there is */
    LETS_GO,          /* of a primary context, which stays where it is the one there is */
    ENDS_THE_STREAM,  /* and makes a new one; all wait for that */
    STOPS_THE_STREAM, /* by work that ends when others are done; all wait */
    ACTS,
};

/* What a child lives, chosen before its threads start. */
static struct life {
    CUstream stream; /* the one */
    enum act act;
    unsigned alone_steps; /* of the first thread */
    bool come;            /* atomic: the moment has */
    bool all_turn;        /* and all threads go to several streams */
    pthread_barrier_t all;
} life;

struct thread {
    pthread_t id;
    CUcontext context;
    struct world world;
    bool turns;
};
static struct thread threads[STRESS_THREADS];

static _Thread_local bool alone; /* this thread uses the one stream */

/* The first thread ends its time by its steps. */
bool stress_over(void)
{
    return alone && __atomic_load_n(&life.come, __ATOMIC_RELAXED);
}

void stress_verdict(bool found, const char *what)
{
    char line[700];
    int length = snprintf(line, sizeof line, "single: child %d: %s: %s\n", (int)getpid(),
                          found && options.find ? "found, as it should" : "wrong", what);

    if (write(STDOUT_FILENO, line, (size_t)length) != length)
        found = false;
    _exit(found ? FOUND : 1);
}

static bool chance(struct world *world, uint32_t of)
{
    return stress_below(&world->random, of) == 0;
}

/* ---- The moment -------------------------------------------------------------------------- */

/* A block that is stamped on a stream, checked, and freed. */
static void use_block(struct world *world, CUstream stream)
{
    struct block block = {.words = WORDS, .tag = UINT32_MAX - world->thread};

    MUST(cuMemAlloc(&block.address, block.words * 4));
    world_stamp(world, &block, stream, true);
    world_check(world, &block, stream, false);
    MUST(cuMemFree(block.address));
}

static void copy(struct world *world)
{
    struct block block = {.words = STRESS_PAGE / 4, .tag = 0xc0b1e5};

    MUST(cuMemAlloc(&block.address, block.words * 4));
    if (chance(world, 2)) {
        for (size_t i = 0; i < block.words; i++)
            world->page[i] = block.tag;
        MUST(cuMemcpyHtoD(block.address, world->page, block.words * 4));
    } else {
        MUST(cuMemsetD32(block.address, block.tag, block.words));
        MUST(cuStreamSynchronize(CU_STREAM_LEGACY));
    }
    world_check(world, &block, life.stream, true);
    world_read(world, &block);
    MUST(cuMemFree(block.address));
}

static void capture(struct world *world)
{
    CUstream stream = world->stream[STREAMS - 1];
    struct block block = {.words = WORDS, .tag = 0xcab1e};
    CUgraphExec exec;
    CUgraph graph;

    MUST(cuMemAlloc(&block.address, block.words * 4));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    world_stamp(world, &block, stream, true);
    world_check(world, &block, stream, false);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuGraphLaunch(exec, life.stream));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
    MUST(cuMemFree(block.address));
}

static void export_block(struct world *world)
{
    struct block block = {.words = WORDS, .tag = 0x1bc};
    CUipcMemHandle handle;

    MUST(cuMemAlloc(&block.address, block.words * 4));
    MUST(cuIpcGetMemHandle(&handle, block.address));
    world_stamp(world, &block, world->stream[STREAMS - 1], false);
    world_check(world, &block, world->stream[STREAMS - 1], true);
    MUST(cuMemFree(block.address));
}

/* With work and memory of its own, under which it ends. */
static void visit(const struct world *world)
{
    struct world other = {.random = world->random, .thread = world->thread};
    CUdevice device;
    CUcontext context;

    MUST(cuCtxGetDevice(&device));
    context = stress_context(device);
    world_open(&other);
    use_block(&other, other.stream[STREAM_OWN]);
    world_close(&other);
    MUST(cuCtxDestroy(context));
}

/* A call that may end the context, and does not where others have it. */
static void let_go(void)
{
    CUdevice device;
    CUcontext context;

    MUST(cuCtxGetDevice(&device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuDevicePrimaryCtxRelease(device));
}

static void CUDA_CB wait_for_post(void *semaphore)
{
    sem_wait(semaphore);
}

static void CUDA_CB callback(CUstream stream, CUresult status, void *semaphore)
{
    sem_wait(semaphore);
}

/* Work that never ends by itself, behind the last free and on whatever stream: another one goes on,
 * with memory that the first has had. */
static void stop_stream(struct world *world)
{
    CUstream stream = world->stream[STREAMS - 1];
    struct block block = {.words = WORDS, .tag = 0x57095};
    sem_t end;

    sem_init(&end, 0, 0);
    use_block(world, life.stream); /* all kernels are loaded, which may wait for a context */
    use_block(world, life.stream);
    MUST(cuMemAlloc(&block.address, block.words * 4));
    if (chance(world, 3))
        MUST(cuStreamAddCallback(life.stream, callback, &end, 0));
    else
        MUST(cuLaunchHostFunc(chance(world, 2) ? life.stream : world->stream[STREAMS - 2],
                              wait_for_post, &end));
    world_stamp(world, &block, stream, true);
    world_check(world, &block, stream, false);
    MUST(cuStreamSynchronize(stream));
    sem_post(&end);
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(block.address));
    sem_destroy(&end);
}

static void act(struct world *world)
{
    switch (life.act) {
    case COPIES:
        copy(world);
        break;
    case CAPTURES:
        capture(world);
        break;
    case EXPORTS:
        export_block(world);
        break;
    case MAKES_A_CONTEXT:
        visit(world);
        break;
    case LETS_GO:
        let_go();
        break;
    case ENDS_THE_STREAM:
        MUST(cuStreamDestroy(life.stream));
        MUST(cuStreamCreate(&life.stream, CU_STREAM_NON_BLOCKING));
        break;
    case STOPS_THE_STREAM:
        stop_stream(world);
        break;
    default:
        break;
    }
}

static bool all_wait(void)
{
    return life.act == ENDS_THE_STREAM || life.act == STOPS_THE_STREAM;
}

static void moment(struct thread *thread, bool is_first)
{
    struct world *world = &thread->world;

    alone = false;
    __atomic_store_n(&life.come, true, __ATOMIC_RELAXED);
    stress_calls("waiting for the other threads");
    if (all_wait())
        pthread_barrier_wait(&life.all);
    if (is_first)
        act(world);
    stress_calls("waiting for the first thread");
    if (all_wait())
        pthread_barrier_wait(&life.all);
    world->stream[0] = life.stream;
    if (thread->turns)
        world->streams = STREAMS;
}

/* ---- A child ----------------------------------------------------------------------------- */

static void *work(void *argument)
{
    struct thread *thread = argument;
    struct world *world = &thread->world;
    bool is_first = thread == threads;

    stress_thread(world->thread, true);
    MUST(cuCtxSetCurrent(thread->context));
    world_open(world);
    world->stream[0] = life.stream;
    world->streams = 1;
    alone = true;
    worker_live(world, is_first ? life.alone_steps : UINT32_MAX, true);
    moment(thread, is_first);
    world->plain = world->plain && chance(world, 2);
    worker_live(world, stress_below(&world->random, STEPS), !chance(world, 4));
    world_close(world);
    MUST(cuCtxSetCurrent(NULL));
    stress_thread(world->thread, false);
    return NULL;
}

/* Now and then it has one thread, whose stream may be the one of its thread. */
static unsigned choose(uint64_t *random, CUstream *ret_stream)
{
    unsigned number = stress_below(random, 4) == 0 ? 1 : options.threads;
    uint32_t kind = stress_below(random, 4);

    memset(&life, 0, sizeof life);
    life.act = (enum act)stress_below(random, ACTS);
    life.alone_steps = stress_below(random, ALONE_STEPS);
    pthread_barrier_init(&life.all, NULL, number);
    *ret_stream = kind == 0 ? NULL : CU_STREAM_PER_THREAD;
    if (life.act == ENDS_THE_STREAM || kind > 1 || (kind == 1 && number > 1))
        MUST(cuStreamCreate(ret_stream, kind == 2 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    return number;
}

/* One time of threads in a context. */
static void live(uint64_t *random, CUcontext context)
{
    unsigned number = choose(random, &life.stream);

    for (unsigned i = 0; i < number; i++) {
        struct thread *thread = &threads[i];

        memset(thread, 0, sizeof *thread);
        thread->context = context;
        thread->turns = stress_below(random, 3) > 0;
        thread->world.thread = i;
        thread->world.shared = number > 1;
        thread->world.plain = stress_below(random, 4) > 0;
        thread->world.random = ((uint64_t)stress_random(random) << 32) | stress_random(random);
        if (pthread_create(&thread->id, NULL, work, thread) != 0)
            stress_verdict(false, "a thread cannot be started");
    }
    stress_calls("waiting for the threads");
    for (unsigned i = 0; i < number; i++) {
        pthread_join(threads[i].id, NULL);
        __atomic_add_fetch(&counts->checks, threads[i].world.checks, __ATOMIC_RELAXED);
        __atomic_add_fetch(&counts->blocks, threads[i].world.blocks, __ATOMIC_RELAXED);
    }
    stress_calls("ending the context");
    exchange_clear(stress_below(random, 2));
    pthread_barrier_destroy(&life.all);
}

/* Ends it with what is left in it. */
static void live_in_context(uint64_t *random, CUdevice device)
{
    bool primary = stress_below(random, 4) > 0;
    CUcontext context;

    if (primary) {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
    } else {
        context = stress_context(device);
    }
    live(random, context);
    MUST(primary ? cuDevicePrimaryCtxReset(device) : cuCtxDestroy(context));
}

__attribute__((noreturn)) static void child(uint64_t seed)
{
    uint64_t random = seed;
    CUdevice device;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    stress_watch(HANG_SECONDS);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    do {
        stress_watch(HANG_SECONDS);
        live_in_context(&random, device);
    } while (stress_below(&random, 4) == 0);
    exit(0);
}

/* ---- The parent -------------------------------------------------------------------------- */

/* The last line, and the exit status. */
static int say(const char *format, unsigned children, int status)
{
    printf(format, children, (unsigned long long)counts->checks);
    return status;
}

/* Waits for one. 0: it ended well; FOUND: it found what it looks for; else it went wrong. */
static int ended(void)
{
    int status;
    pid_t pid = wait(&status);

    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    printf("single: child %d was killed by signal %d\n", (int)pid, WTERMSIG(status));
    /* The software driver's kernels are the host's: memory that was taken away. */
    return WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS ? FOUND : 1;
}

static int run(void)
{
    uint64_t end_ns = now_ns() + options.seconds * UINT64_C(1000000000);
    unsigned started = 0, running = 0;
    int worst = 0;

    while (running > 0 || (worst == 0 && now_ns() < end_ns)) {
        if (worst == 0 && running < jobs && now_ns() < end_ns) {
            uint64_t seed = options.seed * 1000003 + started;
            pid_t pid = fork();

            if (pid == 0)
                child(seed);
            if (pid < 0)
                worst = 1;
            running += pid > 0;
            started += pid > 0;
        } else {
            int status = ended();

            running--;
            if (status != 0 && worst != 1)
                worst = status;
        }
    }
    if (worst == FOUND)
        return say(options.find
                       ? "single: found, as it should, in %u children %llu checks\n"
                       : "single: wrong: memory of two owners in %u children %llu checks\n",
                   started, !options.find);
    if (worst != 0)
        return say("single: wrong: see above; %u children %llu checks\n", started, 1);
    if (options.find || counts->checks == 0)
        return say("single: wrong: nothing was found in %u children %llu checks\n", started, 1);
    return say("single: ok %u children %llu checks\n", started, 0);
}

int main(int argc, char **argv)
{
    if (!stress_options(argv, &jobs)) {
        fputs("usage: single [--seconds N] [--threads N] [--jobs N] [--seed N] [--find]\n", stderr);
        return 2;
    }
    setvbuf(stdout, NULL, _IONBF, 0); /* a child has no lines of its parent's */
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED)
        return 1;
    return run();
}
