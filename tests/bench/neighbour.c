/*
 * A process that needs memory which others only cache: how long its allocation takes, or whether it
 * fails.
 *
 *   neighbour                 both sides: --cachers processes fill --percent of the device and free
 *                             it again, then this one allocates --percent
 *   neighbour --cache         one such process: prints a line when it has freed, and stays until
 *                             its standard input ends; with --churn it allocates and frees all the
 *                             time until then, with --fork each byte that comes makes a child that
 *                             stays until it is killed, and whose pid is printed
 *   neighbour --take          the other side alone; --tries times where it fails
 *
 * Natively nothing stays cached, so what is measured is the allocation alone.
 */
#include "bench.h"
#include "tests/system.h"

static const char usage[] =
    "neighbour [--percent N] [--cachers N] [--pieces N] [--takes N]\n"
    "          [--cache [--capture] [--churn] [--fork] | --take [--tries N]]";

static uint64_t percent = 60, cachers = 1, pieces = 1, takes = 1, tries = 1;

static uint64_t device_memory(void)
{
    size_t left, total;

    MUST(cuMemGetInfo(&left, &total));
    return total;
}

/* Fills a part of the device in pieces, and frees it. */
static void fill_and_free(uint64_t bytes)
{
    CUdeviceptr *blocks = bench_array(pieces, sizeof *blocks);
    const struct timespec settled = {.tv_nsec = 50000000}; /* a thread has started meanwhile */

    for (uint64_t i = 0; i < pieces; i++)
        MUST(cuMemAlloc(&blocks[i], bytes / pieces));
    for (uint64_t i = 0; i < pieces; i++)
        MUST(cuMemFree(blocks[i]));
    MUST(cuCtxSynchronize());
    nanosleep(&settled, NULL);
    free(blocks);
}

static void start_capture(void)
{
    CUstream stream;

    for (int i = 0; i < 2; i++) { /* what was freed is seen to be idle before */
        device_memory();
        MUST(cuCtxSynchronize());
    }
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

#define CHURNED  ((size_t)96 << 20)
#define CHURN_NS 500000

static void churn(void)
{
    const struct timespec pause = {.tv_nsec = CHURN_NS};
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

    while (poll(&input, 1, 0) == 0) {
        CUdeviceptr block;

        if (cuMemAlloc(&block, CHURNED) == CUDA_SUCCESS)
            MUST(cuMemFree(block));
        nanosleep(&pause, NULL);
    }
}

static void make_child(void)
{
    pid_t child = fork();

    while (child == 0)
        pause();
    printf("%d\n", (int)child);
    fflush(stdout);
}

static int cache(bool capture, bool churns, bool forks)
{
    char byte;

    bench_start();
    fill_and_free(device_memory() / 100 * percent);
    if (capture)
        start_capture();
    json_begin("neighbour");
    json_number("percent", (double)percent);
    json_end();
    fflush(stdout);
    if (churns)
        churn();
    while (read(STDIN_FILENO, &byte, 1) > 0)
        if (forks)
            make_child();
    return 0;
}

/* The first and the longest of the allocations that make up the part, and how they ended; of those
 * that were tried again the shortest. */
struct taken {
    CUresult result;
    uint64_t all_ns, most_ns, again_ns;
};

static struct taken take(void)
{
    uint64_t bytes = device_memory() / 100 * percent, begun;
    CUdeviceptr *blocks = bench_array(takes, sizeof *blocks);
    struct taken taken = {0};
    uint64_t count = 0;

    begun = bench_now();
    while (count < takes && taken.result == CUDA_SUCCESS) {
        uint64_t began = bench_now(), took;

        taken.result = cuMemAlloc(&blocks[count], bytes / takes);
        took = bench_now() - began;
        if (took > taken.most_ns)
            taken.most_ns = took;
        if (taken.result == CUDA_SUCCESS)
            count++;
    }
    taken.all_ns = bench_now() - begun;
    while (count > 0)
        MUST(cuMemFree(blocks[--count]));
    free(blocks);
    return taken;
}

#define REST_NS 150000000 /* nobody asks for memory more often than that who gets none */

static struct taken take_again(void)
{
    const struct timespec rest = {.tv_nsec = REST_NS};
    struct taken taken = take();

    for (uint64_t i = 1; i < tries && taken.result != CUDA_SUCCESS; i++) {
        struct taken again;

        nanosleep(&rest, NULL);
        again = take();
        taken.result = again.result;
        if (i == 1 || again.most_ns < taken.again_ns)
            taken.again_ns = again.most_ns;
    }
    return taken;
}

static void print(const struct taken *taken, uint64_t memory)
{
    json_begin("neighbour");
    json_count("memory", memory);
    json_number("percent", (double)percent);
    json_count("cachers", cachers);
    json_text("result", taken->result == CUDA_SUCCESS ? "success" : bench_error(taken->result));
    json_number("all_ms", (double)taken->all_ns / 1e6);
    json_number("most_ms", (double)taken->most_ns / 1e6);
    if (tries > 1)
        json_number("again_ms", (double)taken->again_ns / 1e6);
    json_end();
}

/* A copy that caches, its own part of what all of them do. Returns the socket that ends it. */
static int spawn_cacher(uint64_t part, pid_t *ret_pid)
{
    char percents[24], count[24];
    const char *arguments[] = {"--of-many", percents, "--pieces", count, NULL};
    uint64_t done;

    snprintf(percents, sizeof percents, "%llu", (unsigned long long)part);
    snprintf(count, sizeof count, "%llu", (unsigned long long)pieces);
    int socket = bench_spawn_self(arguments, true, ret_pid);
    bench_receive(socket, &done, sizeof done);
    return socket;
}

static int cache_for(uint64_t part)
{
    uint64_t done = 0;
    char byte;

    bench_start();
    fill_and_free(device_memory() / 100 * part);
    bench_send(BENCH_SOCKET, &done, sizeof done);
    while (read(BENCH_SOCKET, &byte, 1) > 0)
        continue;
    return 0;
}

static int both(void)
{
    pid_t *pids = bench_array(cachers, sizeof *pids);
    int *sockets = bench_array(cachers, sizeof *sockets);
    char machine[] = "/tmp/bench-machine-XXXXXX";
    struct taken taken;
    uint64_t memory;

    if (bench_software_driver()) { /* one device for all */
        close(mkstemp(machine));
        setenv("SOFTCUDA_MACHINE", machine, 1);
    }
    bench_start();
    memory = device_memory();
    for (uint64_t i = 0; i < cachers; i++)
        sockets[i] = spawn_cacher(percent / cachers, &pids[i]);
    taken = take();
    for (uint64_t i = 0; i < cachers; i++)
        bench_wait(pids[i], sockets[i]);
    if (bench_software_driver())
        unlink(machine);
    print(&taken, memory);
    free(sockets);
    free(pids);
    return 0;
}

int main(int argc, char **argv)
{
    bool caches = false, takes_only = false, capture = false, churns = false, forks = false;
    uint64_t part = 0;
    const struct bench_option options[] = {
        {"percent", BENCH_NUMBER, &percent}, {"cachers", BENCH_NUMBER, &cachers},
        {"pieces", BENCH_NUMBER, &pieces},   {"takes", BENCH_NUMBER, &takes},
        {"cache", BENCH_FLAG, &caches},      {"capture", BENCH_FLAG, &capture},
        {"churn", BENCH_FLAG, &churns},      {"fork", BENCH_FLAG, &forks},
        {"tries", BENCH_NUMBER, &tries},     {"take", BENCH_FLAG, &takes_only},
        {"of-many", BENCH_NUMBER, &part},    {NULL}};
    struct taken taken;
    uint64_t memory;

    if (bench_options(argv, options, usage) || percent > 100 || !cachers || !pieces || !takes ||
        !tries)
        bench_die("nothing to do\nusage: %s", usage);
    if (part)
        return cache_for(part);
    if (caches)
        return cache(capture, churns, forks);
    if (!takes_only)
        return both();
    bench_start();
    memory = device_memory();
    taken = take_again();
    print(&taken, memory);
    return 0;
}
