/*
 * What one allocation and its free cost, in a loop, whatever allocator is underneath.
 *
 * Each thread frees what it allocated at once; the live blocks are of the same size, allocated
 * before and freed after. No GPU work runs: this is the cost of the calls alone.
 */
#include "bench.h"

#define BATCHES 32 /* at most; the median is over the batches of all threads */

static const char usage[] = "pair [--size BYTES] [--pairs N] [--threads N] [--live N] [--async] "
                            "[--warmup N]   (K, M, G: 2^10, 2^20, 2^30)";

struct plan {
    uint64_t size, pairs, threads, live, warmup;
    bool async;
    uint64_t batches;
    CUcontext context;
    pthread_barrier_t start;
};

struct worker {
    struct plan *plan;
    pthread_t thread;
    CUstream stream;
    uint64_t *batch_ns; /* a pair's nanoseconds * 1000, one for each batch */
    uint64_t began, ended;
};

static void allocate(const struct plan *plan, CUstream stream, CUdeviceptr *ret_block)
{
    if (plan->async)
        MUST(cuMemAllocAsync(ret_block, plan->size, stream));
    else
        MUST(cuMemAlloc(ret_block, plan->size));
}

static void release(const struct plan *plan, CUstream stream, CUdeviceptr block)
{
    if (plan->async)
        MUST(cuMemFreeAsync(block, stream));
    else
        MUST(cuMemFree(block));
}

static void batch_sync(size_t size, uint64_t pairs)
{
    CUdeviceptr block;

    for (uint64_t i = 0; i < pairs; i++) {
        MUST(cuMemAlloc(&block, size));
        MUST(cuMemFree(block));
    }
}

static void batch_async(size_t size, uint64_t pairs, CUstream stream)
{
    CUdeviceptr block;

    for (uint64_t i = 0; i < pairs; i++) {
        MUST(cuMemAllocAsync(&block, size, stream));
        MUST(cuMemFreeAsync(block, stream));
    }
}

static void batch(const struct worker *worker, uint64_t pairs)
{
    if (worker->plan->async)
        batch_async(worker->plan->size, pairs, worker->stream);
    else
        batch_sync(worker->plan->size, pairs);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct plan *plan = worker->plan;
    uint64_t pairs = plan->pairs / plan->batches;

    MUST(cuCtxSetCurrent(plan->context));
    batch(worker, plan->warmup);
    pthread_barrier_wait(&plan->start);
    worker->began = worker->ended = bench_now();
    for (uint64_t i = 0; i < plan->batches; i++) {
        uint64_t began = worker->ended;
        batch(worker, pairs);
        worker->ended = bench_now();
        worker->batch_ns[i] = (worker->ended - began) * 1000 / pairs;
    }
    return NULL;
}

/* The first worker is this thread, so that a profile of one thread is a profile of the loop. */
static struct worker *run(struct plan *plan)
{
    struct worker *workers = bench_array(plan->threads, sizeof *workers);
    uint64_t *batch_ns = bench_array(plan->threads * plan->batches, sizeof *batch_ns);

    pthread_barrier_init(&plan->start, NULL, (unsigned)plan->threads);
    for (uint64_t i = 0; i < plan->threads; i++) {
        workers[i].plan = plan;
        workers[i].batch_ns = batch_ns + i * plan->batches;
        MUST(cuStreamCreate(&workers[i].stream, CU_STREAM_NON_BLOCKING));
    }
    for (uint64_t i = 1; i < plan->threads; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0)
            bench_die("cannot start thread %llu", (unsigned long long)i);
    work(&workers[0]);
    for (uint64_t i = 1; i < plan->threads; i++)
        pthread_join(workers[i].thread, NULL);
    for (uint64_t i = 0; i < plan->threads; i++) {
        MUST(cuStreamSynchronize(workers[i].stream));
        MUST(cuStreamDestroy(workers[i].stream));
    }
    pthread_barrier_destroy(&plan->start);
    return workers;
}

static void print(const struct plan *plan, const struct worker *workers)
{
    uint64_t pairs = plan->pairs / plan->batches * plan->batches;
    uint64_t began = workers[0].began, ended = workers[0].ended;

    for (uint64_t i = 1; i < plan->threads; i++) {
        began = workers[i].began < began ? workers[i].began : began;
        ended = workers[i].ended > ended ? workers[i].ended : ended;
    }
    json_begin("pair");
    json_count("size", plan->size);
    json_bool("async", plan->async);
    json_count("threads", plan->threads);
    json_count("live", plan->live);
    json_count("calls", 2 * pairs * plan->threads);
    uint64_t median = bench_median(workers[0].batch_ns, plan->threads * plan->batches);
    json_number("ns_per_pair", (double)median / 1000);
    json_number("ns_per_pair_mean", (double)(ended - began) / (double)pairs);
    json_number("pairs_per_second",
                (double)(pairs * plan->threads) * 1e9 / (double)(ended - began));
    json_end();
}

int main(int argc, char **argv)
{
    struct plan plan = {.size = 64 << 10, .pairs = 10000, .threads = 1, .warmup = 100};
    const struct bench_option options[] = {{"size", BENCH_NUMBER, &plan.size},
                                           {"pairs", BENCH_NUMBER, &plan.pairs},
                                           {"threads", BENCH_NUMBER, &plan.threads},
                                           {"live", BENCH_NUMBER, &plan.live},
                                           {"async", BENCH_FLAG, &plan.async},
                                           {"warmup", BENCH_NUMBER, &plan.warmup},
                                           {NULL}};

    const char *other = bench_options(argv, options, usage);
    if (other || plan.pairs == 0 || plan.threads == 0 || plan.threads > 1024)
        bench_die("nothing to do\nusage: %s", usage);
    plan.batches = plan.pairs < BATCHES ? plan.pairs : BATCHES;
    plan.context = bench_start();

    CUdeviceptr *live = bench_array(plan.live, sizeof *live);
    for (uint64_t i = 0; i < plan.live; i++)
        allocate(&plan, CU_STREAM_LEGACY, &live[i]);
    struct worker *workers = run(&plan);
    for (uint64_t i = 0; i < plan.live; i++)
        release(&plan, CU_STREAM_LEGACY, live[i]);
    MUST(cuCtxSynchronize());
    print(&plan, workers);
    free(live);
    free(workers[0].batch_ns);
    free(workers);
    return 0;
}
