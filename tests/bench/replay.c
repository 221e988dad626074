/*
 * Replays the allocations of a real program: what they cost, and how much device memory the
 * allocator underneath takes for them.
 *
 * Time and memory are measured in a process each, both of which start afresh: asking for the memory
 * in use takes longer than most allocations.
 *
 * --limit leaves the device that much free memory. A number with x at its end is a multiple of
 * what the trace needs at its peak, every block of 1 MiB and more rounded to 2 MiB. On a real
 * device a third process without the shim holds the rest; on the software driver the device is
 * made that small.
 *
 * --kernel submits kernels of that length all the while, so that the GPU runs behind the calls: by
 * as many launches at most as the driver's queue takes, if each stands for those that a program
 * makes beside so many calls.
 */
#include "../conformance/kernels.h"
#include "bench.h"
#include "trace.h"
#include "usage.h"
#include "tests/system.h"

#define PIECE            (2ull << 20)
#define CALLS_PER_KERNEL 16
#define KERNELS_AHEAD    64

static const char usage[] = "replay TRACE [--limit BYTES|FACTORx] [--async] "
                            "[--loops N] [--idle MILLISECONDS] [--kernel MICROSECONDS]";

struct plan {
    const char *path, *limit_text;
    bool async, memory_process;
    uint64_t limit, loops, idle_ms, kernel_us;
    CUfunction spin;
    CUevent ended[KERNELS_AHEAD];
    unsigned kernels;
    unsigned calls; /* since the last kernel */
    struct trace trace;
    CUdeviceptr *blocks; /* by slot; 0: not live, or it could not be allocated */
    CUstream stream;
};

struct times {
    uint64_t *loop_ns;     /* in the calls, a loop each */
    uint64_t failed;       /* of all loops */
    uint64_t driver_calls; /* of the first loop */
};

/* What the process that measures memory tells the one that prints. */
struct memory {
    bool known; /* where not, the rest is 0 */
    uint64_t reserved_peak, reserved_idle, failed;
};

/* ---- the other user of the device ---- */

/* Takes all free memory but what it is told, says so, and holds it until the other side ends. */
static int hold_memory(void)
{
    uint64_t leave;
    size_t available, total;
    CUdeviceptr block;
    char done = 0;

    bench_start();
    bench_receive(BENCH_SOCKET, &leave, sizeof leave);
    for (uint64_t step = 1ull << 30; step >= PIECE;) {
        MUST(cuMemGetInfo(&available, &total));
        if (available < leave + step || cuMemAlloc(&block, step) != CUDA_SUCCESS)
            step /= 2;
    }
    bench_send(BENCH_SOCKET, &done, 1);
    if (read(BENCH_SOCKET, &done, 1) < 0)
        bench_die("the other process is gone");
    return 0;
}

struct holder {
    pid_t pid;
    int socket;
};

/* After bench_start, so that this process's own context is in already. */
static struct holder holder_start(const struct plan *plan)
{
    static const char *const arguments[] = {"--hold", NULL};
    struct holder holder = {0};
    char done;

    if (!plan->limit || bench_software_driver())
        return holder;
    holder.socket = bench_spawn_self(arguments, false, &holder.pid);
    bench_send(holder.socket, &plan->limit, sizeof plan->limit);
    bench_receive(holder.socket, &done, 1);
    return holder;
}

static void holder_end(const struct holder *holder)
{
    if (holder->pid)
        bench_wait(holder->pid, holder->socket);
}

/* ---- replaying ---- */

static bool allocate(struct plan *plan, const struct trace_op *op)
{
    CUdeviceptr *block = &plan->blocks[op->slot];
    CUresult result =
        plan->async ? cuMemAllocAsync(block, op->size, plan->stream) : cuMemAlloc(block, op->size);

    if (result == CUDA_SUCCESS)
        return true;
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        bench_failed(result, "allocating");
    *block = 0;
    return false;
}

static void release(struct plan *plan, uint32_t slot)
{
    if (plan->blocks[slot] && plan->async)
        MUST(cuMemFreeAsync(plan->blocks[slot], plan->stream));
    else if (plan->blocks[slot])
        MUST(cuMemFree(plan->blocks[slot]));
    plan->blocks[slot] = 0;
}

static void release_all(struct plan *plan)
{
    for (uint32_t slot = 0; slot < plan->trace.slots; slot++)
        release(plan, slot);
}

static void load_kernel(struct plan *plan)
{
    CUmodule module; /* goes with the process */

    if (!plan->kernel_us)
        return;
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&plan->spin, module, "spin"));
    for (unsigned i = 0; i < KERNELS_AHEAD; i++)
        MUST(cuEventCreate(&plan->ended[i], CU_EVENT_DISABLE_TIMING));
}

static void work(struct plan *plan)
{
    unsigned long long ns = plan->kernel_us * 1000;
    void *arguments[] = {&ns};

    CUevent ended;

    if (!plan->spin || ++plan->calls < CALLS_PER_KERNEL)
        return;
    plan->calls = 0;
    ended = plan->ended[plan->kernels++ % KERNELS_AHEAD];
    MUST(cuEventSynchronize(ended));
    MUST(cuLaunchKernel(plan->spin, 1, 1, 1, 1, 1, 1, 0, plan->stream, arguments, NULL));
    MUST(cuEventRecord(ended, plan->stream));
}

/* Returns whether the call worked. */
static bool play(struct plan *plan, const struct trace_op *op)
{
    work(plan);
    if (op->alloc)
        return allocate(plan, op);
    release(plan, op->slot);
    return true;
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
    }
}

/* Returns the nanoseconds spent in the calls. */
static uint64_t play_all(struct plan *plan, uint64_t *failed)
{
    uint64_t began = bench_now();

    for (size_t i = 0; i < plan->trace.count; i++)
        *failed += !play(plan, &plan->trace.ops[i]);
    return bench_now() - began;
}

static void measure_time(struct plan *plan, struct times *times)
{
    bench_start();
    struct holder holder = holder_start(plan);
    if (plan->async)
        MUST(cuStreamCreate(&plan->stream, CU_STREAM_NON_BLOCKING));
    load_kernel(plan);
    uint64_t before = bench_software_driver() ? usage_driver_calls() : 0;
    for (uint64_t i = 0; i < plan->loops; i++) {
        times->loop_ns[i] = play_all(plan, &times->failed);
        if (i == 0 && bench_software_driver())
            times->driver_calls = usage_driver_calls() - before;
        release_all(plan);
    }
    MUST(cuCtxSynchronize());
    holder_end(&holder);
}

static uint64_t used_since(uint64_t before)
{
    uint64_t now = usage_bytes();

    return now > before ? now - before : 0;
}

static void watch_memory(struct plan *plan, struct memory *memory)
{
    uint64_t before = usage_bytes();

    for (size_t i = 0; i < plan->trace.count; i++) {
        const struct trace_op *op = &plan->trace.ops[i];
        memory->failed += !play(plan, op);
        uint64_t used = op->alloc ? used_since(before) : 0;
        if (used > memory->reserved_peak)
            memory->reserved_peak = used;
    }
    if (plan->idle_ms) {
        sleep_until(bench_now() + plan->idle_ms * 1000000);
        memory->reserved_idle = used_since(before);
    }
    release_all(plan);
}

/* The process that measures memory: the same calls, with a look after each allocation. */
static void measure_memory(struct plan *plan)
{
    struct memory memory = {0};

    bench_start();
    struct holder holder = holder_start(plan);
    if (plan->async)
        MUST(cuStreamCreate(&plan->stream, CU_STREAM_NON_BLOCKING));
    load_kernel(plan);
    memory.known = usage_start();
    if (memory.known)
        watch_memory(plan, &memory);
    MUST(cuCtxSynchronize());
    holder_end(&holder);
    bench_send(BENCH_SOCKET, &memory, sizeof memory);
}

static struct memory ask_memory_process(char **argv)
{
    const char *arguments[16] = {"--memory"};
    struct memory memory;
    pid_t pid;

    for (int i = 1; argv[i] && i < 14; i++)
        arguments[i] = argv[i];
    int socket = bench_spawn_self(arguments, true, &pid);
    bench_receive(socket, &memory, sizeof memory);
    bench_wait(pid, socket);
    return memory;
}

/* ---- main ---- */

static uint64_t read_limit(const struct plan *plan)
{
    uint64_t limit;
    char *end;

    if (bench_number(plan->limit_text, &limit))
        return limit;
    double factor = strtod(plan->limit_text, &end);
    if (end == plan->limit_text || strcmp(end, "x") != 0 || !(factor > 0 && factor < 1000))
        bench_die("--limit %s is neither bytes nor a factor such as 1.02x", plan->limit_text);
    limit = (uint64_t)((double)plan->trace.live_peak_rounded * factor);
    return (limit + PIECE - 1) / PIECE * PIECE;
}

static void print_memory(const struct plan *plan, const struct memory *memory)
{
    if (!memory->known) {
        json_null("reserved_peak");
        json_null("ratio");
        return;
    }
    json_count("reserved_peak", memory->reserved_peak);
    json_number("ratio", (double)memory->reserved_peak / (double)plan->trace.live_peak);
    if (plan->idle_ms) {
        json_count("live_end", plan->trace.live_end);
        json_count("reserved_idle", memory->reserved_idle);
    }
}

static void print(const struct plan *plan, const struct times *times, const struct memory *memory)
{
    const char *slash = strrchr(plan->path, '/');

    json_begin("replay");
    json_text("trace", slash ? slash + 1 : plan->path);
    json_bool("async", plan->async);
    json_count("calls", plan->trace.count);
    json_count("loops", plan->loops);
    json_number("ns_per_call_first", (double)times->loop_ns[0] / (double)plan->trace.count);
    json_number("ns_per_call",
                (double)bench_median(times->loop_ns, plan->loops) / (double)plan->trace.count);
    json_count("failed", times->failed + memory->failed);
    if (plan->limit)
        json_count("limit", plan->limit);
    else
        json_null("limit");
    json_count("live_peak", plan->trace.live_peak);
    json_count("live_peak_rounded", plan->trace.live_peak_rounded);
    print_memory(plan, memory);
    if (bench_software_driver())
        json_count("driver_calls", times->driver_calls);
    else
        json_null("driver_calls");
    json_end();
}

static void measure(struct plan *plan, char **argv)
{
    struct memory memory = ask_memory_process(argv);
    struct times times = {.loop_ns = bench_array(plan->loops, sizeof *times.loop_ns)};

    measure_time(plan, &times);
    print(plan, &times, &memory);
    free(times.loop_ns);
}

int main(int argc, char **argv)
{
    struct plan plan = {.loops = 3};
    const struct bench_option options[] = {{"limit", BENCH_TEXT, &plan.limit_text},
                                           {"async", BENCH_FLAG, &plan.async},
                                           {"loops", BENCH_NUMBER, &plan.loops},
                                           {"idle", BENCH_NUMBER, &plan.idle_ms},
                                           {"kernel", BENCH_NUMBER, &plan.kernel_us},
                                           {"memory", BENCH_FLAG, &plan.memory_process},
                                           {NULL}};
    char number[32];

    if (argc == 2 && strcmp(argv[1], "--hold") == 0)
        return hold_memory();
    plan.path = bench_options(argv, options, usage);
    if (!plan.path || plan.loops == 0)
        bench_die("nothing to do\nusage: %s", usage);
    trace_read(&plan.trace, plan.path);
    plan.blocks = bench_array(plan.trace.slots, sizeof *plan.blocks);
    if (plan.limit_text) {
        plan.limit = read_limit(&plan);
        snprintf(number, sizeof number, "%llu", (unsigned long long)plan.limit);
        setenv("SOFTCUDA_MEMORY", number, 1);
    }
    if (plan.memory_process)
        measure_memory(&plan);
    else
        measure(&plan, argv);
    free(plan.blocks);
    trace_free(&plan.trace);
    return 0;
}
