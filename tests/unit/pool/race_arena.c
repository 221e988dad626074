/*
 * Threads that allocate, stamp, free and check against each other, with kernels that run late: a
 * block never shows another owner's stamp. Meanwhile streams come and go, captures open and close,
 * contexts are made and destroyed, and idle memory is purged. A plain program, so that TSan can
 * watch it too.
 *
 *   race_arena [--seconds N] [--threads N] [--broken 1]
 *
 * --broken: every epoch seems to have passed at once. This program must fail then, by a stamp or by
 * an access to memory that is gone, else it proves nothing.
 */
#include "tests/system.h"
#include "tests/unit/fixture.h"
#include "tests/clock.h"

#define LIVE 24

struct worker {
    pthread_t thread;
    struct fixture *fixture;
    unsigned number;
    unsigned rounds, foreign;
    uint64_t end_ns;
    bool broken; /* ends with the first foreign word */
};

static bool found; /* atomic: a foreign word, by anyone */

static CUresult CUDAAPI always_passed(CUevent event)
{
    return CUDA_SUCCESS;
}

static size_t random_size(unsigned *seed)
{
    return rand_r(seed) % 8 == 0 ? (size_t)(1 + rand_r(seed) % 40) << 17
                                 : (size_t)(1 + rand_r(seed) % 200) << 9;
}

/* What a program does around its allocations: now and then a graph, or a new stream. */
static void live_a_little(struct fixture *f, CUstream *stream, unsigned *seed)
{
    CUdeviceptr block;
    CUgraph graph;

    if (rand_r(seed) % 32 == 0) {
        MUST(gs_core_capture_begin(f->core, *stream));
        MUST(cuStreamBeginCapture(*stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        MUST(gs_core_alloc(f->core, random_size(seed), &block));
        MUST(gs_core_free(f->core, block));
        MUST(cuStreamEndCapture(*stream, &graph)); /* nothing has broken it */
        gs_core_capture_end(f->core, *stream);
        MUST(cuGraphDestroy(graph));
    }
    if (rand_r(seed) % 64 == 0) {
        gs_core_stream_gone(f->core, *stream);
        MUST(cuStreamDestroy(*stream));
        MUST(cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    }
}

/* Makes contexts, uses memory in them, and destroys them with all that is live. */
static void *come_and_go(void *arg)
{
    struct worker *worker = arg;
    struct fixture *f = worker->fixture;
    unsigned seed = 4711;

    while (now_ns() < worker->end_ns) {
        CUcontext context = fixture_context_new();
        struct gs_context *detached;
        CUdeviceptr block;
        CUstream stream;

        MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        for (int i = 0; i < 20; i++) {
            size_t size = random_size(&seed);

            /* What is freed in no stream's order ends with its context, the arena's memory does
             * not. */
            MUST(i % 4 ? gs_core_alloc_async(f->core, size, NULL, stream, &block)
                       : gs_core_alloc(f->core, size, &block));
            MUST(cuMemsetD32Async(block, 0xbad, size / 4, stream));
            if (i % 4)
                MUST(i % 2 ? gs_core_free(f->core, block)
                           : gs_core_free_async(f->core, block, stream));
        }
        detached = gs_core_context_detach(f->core, context);
        MUST(cuCtxDestroy(context));
        gs_core_context_gone(f->core, context, detached);
        worker->rounds++;
    }
    return NULL;
}

/* Allocates on one of two streams or on none, stamps at both ends behind a delay, and checks and
 * frees an older block. */
static void *work(void *arg)
{
    struct worker *worker = arg;
    struct fixture *f = worker->fixture;
    struct {
        CUdeviceptr address;
        size_t words;
        unsigned stamp;
        int stream;
    } live[LIVE] = {0};
    unsigned seed = worker->number + 1, stamp = worker->number << 20;
    CUstream stream[2];

    MUST(cuCtxSetCurrent(f->context));
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    while (now_ns() < worker->end_ns &&
           !(worker->broken && __atomic_load_n(&found, __ATOMIC_RELAXED))) {
        int slot = rand_r(&seed) % LIVE;
        size_t size = random_size(&seed);

        if (live[slot].address) {
            CUstream at = stream[live[slot].stream];

            worker->foreign +=
                fixture_count_other(f, at, live[slot].address, live[slot].stamp, live[slot].words);
            if (worker->foreign)
                __atomic_store_n(&found, true, __ATOMIC_RELAXED);
            /* The kernel that is still to come must not hit the next owner. */
            fixture_spin_fill(f, at, live[slot].address, 0xdead, live[slot].words, 20000);
            MUST(rand_r(&seed) % 2 ? gs_core_free(f->core, live[slot].address)
                                   : gs_core_free_async(f->core, live[slot].address, at));
            live[slot].address = 0;
        }
        live_a_little(f, &stream[rand_r(&seed) % 2], &seed);
        live[slot].stream = rand_r(&seed) % 2;
        live[slot].words = size / 4;
        live[slot].stamp = ++stamp;
        MUST(rand_r(&seed) % 2 ? gs_core_alloc(f->core, size, &live[slot].address)
                               : gs_core_alloc_async(f->core, size, NULL, stream[live[slot].stream],
                                                     &live[slot].address));
        fixture_spin_fill(f, stream[live[slot].stream], live[slot].address, stamp, live[slot].words,
                          0);
        worker->rounds++;
    }
    for (int i = 0; i < LIVE; i++)
        if (live[i].address)
            MUST(gs_core_free(f->core, live[i].address));
    for (int i = 0; i < 2; i++) {
        MUST(cuStreamSynchronize(stream[i]));
        gs_core_stream_gone(f->core, stream[i]);
        MUST(cuStreamDestroy(stream[i]));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct worker worker[64] = {0};
    struct fixture f;
    unsigned seconds = 5, threads = 4, tasks, rounds = 0, foreign = 0;
    bool broken = false;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = (unsigned)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--threads") == 0)
            threads = (unsigned)atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--broken") == 0)
            broken = atoi(argv[i + 1]) != 0;
    }
    if (threads < 1 || threads > 63)
        return 2;
    fixture_options(&f);
    f.options.epoch_bytes = 1 << 20;
    f.options.purge_ns = broken ? 0 : 20000000; /* unmapped too early, memory has no stamps */
    fixture_start(&f);
    if (broken)
        fixture_driver(&f)->event_query = always_passed;
    tasks = broken ? threads : threads + 1;
    for (unsigned i = 0; i < tasks; i++) {
        worker[i] = (struct worker){.fixture = &f,
                                    .number = i,
                                    .broken = broken,
                                    .end_ns = now_ns() + seconds * UINT64_C(1000000000)};
        MUST(pthread_create(&worker[i].thread, NULL, i < threads ? work : come_and_go, &worker[i]));
    }
    for (unsigned i = 0; i < tasks; i++) {
        MUST(pthread_join(worker[i].thread, NULL));
        rounds += worker[i].rounds;
        foreign += worker[i].foreign;
    }
    MUST((int)fixture_arena(&f).live);
    fixture_end(&f);
    printf("%u rounds, %u foreign words\n", rounds, foreign);
    return foreign || !rounds;
}
