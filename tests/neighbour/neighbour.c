/*
 * A process that needs memory which others only cache: how long its allocation takes, or whether it
 * fails (neighbour.py).
 *
 *   neighbour --cache         fills --percent of the device and frees it again, prints a line then, and stays until
 *                             its standard input ends; with --churn it allocates and frees all the
 *                             time until then, with --fork each byte that comes makes a child that
 *                             stays until it is killed, and whose pid is printed
 *   neighbour --take          allocates --percent; --tries times where it fails
 */
#include "../bench/bench.h"
#include "tests/system.h"

static const char usage[] =
    "neighbour --cache [--percent N] [--pieces N] [--capture] [--churn] [--fork]\n"
    "neighbour --take [--percent N] [--tries N]";

static uint64_t percent = 60, pieces = 1, tries = 1;

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

/* How long it took, and how it ended; of those that were tried again the shortest. */
struct taken {
    CUresult result;
    uint64_t most_ns, again_ns;
};

static struct taken take(void)
{
    uint64_t bytes = device_memory() / 100 * percent, began = bench_now();
    struct taken taken = {0};
    CUdeviceptr block;

    taken.result = cuMemAlloc(&block, bytes);
    taken.most_ns = bench_now() - began;
    if (taken.result == CUDA_SUCCESS)
        MUST(cuMemFree(block));
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

static void print(const struct taken *taken)
{
    json_begin("neighbour");
    json_text("result", taken->result == CUDA_SUCCESS ? "success" : bench_error(taken->result));
    json_number("most_ms", (double)taken->most_ns / 1e6);
    if (tries > 1)
        json_number("again_ms", (double)taken->again_ns / 1e6);
    json_end();
}

int main(int argc, char **argv)
{
    bool caches = false, takes = false, capture = false, churns = false, forks = false;
    const struct bench_option options[] = {{"percent", BENCH_NUMBER, &percent},
                                           {"pieces", BENCH_NUMBER, &pieces},
                                           {"cache", BENCH_FLAG, &caches},
                                           {"capture", BENCH_FLAG, &capture},
                                           {"churn", BENCH_FLAG, &churns},
                                           {"fork", BENCH_FLAG, &forks},
                                           {"tries", BENCH_NUMBER, &tries},
                                           {"take", BENCH_FLAG, &takes},
                                           {NULL}};
    struct taken taken;

    if (bench_options(argv, options, usage) || percent > 100 || !pieces || !tries ||
        caches == takes)
        bench_die("nothing to do\nusage: %s", usage);
    if (caches)
        return cache(capture, churns, forks);
    bench_start();
    taken = take_again();
    print(&taken);
    return 0;
}
