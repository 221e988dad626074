/*
 * How it ends that all GPU work goes to one stream (core/gpu/single.h), again and again, with
 * threads that race: many short lives, each with a core of its own. In each, threads allocate,
 * stamp, check and free blocks through one stream, which is behind them all the time, with fills on
 * other streams; from a random moment on some of them use streams of their own, while one of them
 * does what else ends it. No check, which
 * comes behind the stamp in the block's stream, ever finds another owner's words. A plain program,
 * so that TSan can watch it too.
 *
 *   race_single [--seconds N] [--threads N] [--seed N] [--broken 1|2]
 *
 * --broken: 1, no stream waits for another one; 2, all that is looked at seems to have passed. This
 * program must fail then, by a foreign word or by an access to memory that is gone, else it proves
 * nothing.
 */
#include "core/gpu/single.h"
#include "tests/system.h"
#include "tests/unit/fixture.h"
#include "tests/clock.h"

#define THREADS_MAX 32
#define LIVE        6
#define SHARED      4
#define STEPS       40
#define DELAY_NS    60000

/* What one thread does when the moment has come. */
enum act {
    NOTHING,
    SETTLES,
    CAPTURES,
    LETS_THE_CONTEXT_STAY,
    GIVES_MEMORY_BACK,
    ENDS_THE_STREAM, /* and makes a new one */
    ACTS,
};

struct block {
    CUdeviceptr address; /* 0: none */
    size_t words;
    unsigned stamp;
    CUstream home; /* where all its work goes */
};

struct life {
    struct fixture fixture;
    CUstream single;
    enum act act;
    bool turn; /* atomic: the moment has come */
    pthread_barrier_t all;
    pthread_mutex_t lock;        /* of: */
    struct block shared[SHARED]; /* blocks that go from thread to thread */
};

struct worker {
    pthread_t thread;
    struct life *life;
    unsigned number, seed, stamp;
    unsigned alone_for; /* steps of the first thread before the moment */
    bool leaves;        /* uses a stream of its own from then on */
    CUstream stream, own;
    CUevent order;
    CUdeviceptr found; /* foreign words: kernels count here */
    struct block block[LIVE];
    unsigned checks, foreign;
};

static bool one_in(struct worker *worker, int n)
{
    return rand_r(&worker->seed) % n == 0;
}

/* ---- Work, told of as hooks tell --------------------------------------------------------- */

static void fill(struct worker *worker, const struct block *block, unsigned value, bool late)
{
    struct fixture *f = &worker->life->fixture;

    gs_single_submits(gs_core_single(f->core), block->home);
    fixture_spin_fill(f, block->home, block->address, value, block->words,
                      late ? (unsigned)rand_r(&worker->seed) % DELAY_NS : 0);
}

static void check(struct worker *worker, struct block *block)
{
    struct fixture *f = &worker->life->fixture;
    unsigned long long words = block->words;
    void *parameters[] = {&block->address, &block->stamp, &words, &worker->found};

    gs_single_submits(gs_core_single(f->core), block->home);
    MUST(cuLaunchKernel(f->count_other, 1, 1, 1, 1, 1, 1, 0, block->home, parameters, NULL));
    worker->checks++;
}

/* On the thread's own stream, which its block's waits for only if it comes back. */
static void fill_beside(struct worker *worker, struct block *block, bool back)
{
    unsigned value = back ? block->stamp : 0xbad;

    MUST(cuEventRecord(worker->order, block->home));
    MUST(cuStreamWaitEvent(worker->own, worker->order, 0));
    gs_core_touches(worker->life->fixture.core, worker->own, block->address, 0);
    MUST(cuMemsetD32Async(block->address, value, block->words, worker->own));
    if (back) {
        MUST(cuEventRecord(worker->order, worker->own));
        MUST(cuStreamWaitEvent(block->home, worker->order, 0));
    }
}

/* The kernel that is still to come must not hit the next owner. */
static void end(struct worker *worker, struct block *block)
{
    check(worker, block);
    if (one_in(worker, 2))
        fill(worker, block, 0xdead, true);
    else if (one_in(worker, 4))
        fill_beside(worker, block, false);
    MUST(gs_core_free(worker->life->fixture.core, block->address));
    block->address = 0;
}

static void begin(struct worker *worker, struct block *block)
{
    size_t size = one_in(worker, 8) ? ((size_t)1 + one_in(worker, 2)) << 20
                                    : (size_t)(1 + rand_r(&worker->seed) % 64) << 9;

    MUST(gs_core_alloc(worker->life->fixture.core, size, &block->address));
    block->words = size / 4;
    block->stamp = ++worker->stamp;
    block->home = worker->stream;
    fill(worker, block, block->stamp, one_in(worker, 4));
}

static void swap(struct worker *worker, struct block *block)
{
    struct block *shared = &worker->life->shared[rand_r(&worker->seed) % SHARED], kept;

    pthread_mutex_lock(&worker->life->lock);
    kept = *shared;
    *shared = *block;
    *block = kept;
    pthread_mutex_unlock(&worker->life->lock);
}

/* ---- The moment -------------------------------------------------------------------------- */

static void capture(struct fixture *f, CUstream stream)
{
    CUgraph graph;

    MUST(gs_core_capture_begin(f->core, stream));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(cuStreamEndCapture(stream, &graph)); /* nothing has broken it */
    gs_core_capture_end(f->core, stream);
    MUST(cuGraphDestroy(graph));
}

/* As around a call of the driver that may end it, which takes a while. */
static void let_context_stay(struct fixture *f)
{
    const struct timespec moment = {.tv_nsec = 300000};
    struct gs_context *context = gs_core_context_detach(f->core, f->context);

    nanosleep(&moment, NULL);
    gs_core_context_stays(f->core, f->context, context);
}

static void give_memory_back(struct fixture *f)
{
    fixture_release(f, true);
}

/* The new one may get its handle. */
static void end_stream(struct worker *worker)
{
    struct life *life = worker->life;

    gs_core_stream_gone(life->fixture.core, life->single);
    MUST(cuStreamDestroy(life->single));
    MUST(cuStreamCreate(&life->single, CU_STREAM_NON_BLOCKING));
}

static void act(struct worker *worker)
{
    struct fixture *f = &worker->life->fixture;

    switch (worker->life->act) {
    case SETTLES:
        gs_single_drain(gs_core_single(f->core), "the test wants it");
        break;
    case CAPTURES:
        capture(f, worker->own);
        break;
    case LETS_THE_CONTEXT_STAY:
        let_context_stay(f);
        break;
    case GIVES_MEMORY_BACK:
        give_memory_back(f);
        break;
    default:
        break;
    }
}

/* Frees what lives on the stream that ends, while its work goes on. */
static void leave_stream(struct worker *worker)
{
    struct life *life = worker->life;

    for (int i = 0; i < LIVE; i++)
        if (worker->block[i].address)
            end(worker, &worker->block[i]);
    pthread_barrier_wait(&life->all);
    if (worker->number == 0) {
        for (int i = 0; i < SHARED; i++)
            if (life->shared[i].address)
                end(worker, &life->shared[i]);
        end_stream(worker);
    }
    pthread_barrier_wait(&life->all);
}

static void turn(struct worker *worker)
{
    if (worker->life->act == ENDS_THE_STREAM)
        leave_stream(worker);
    else if (worker->number == 0)
        act(worker);
    worker->stream = worker->leaves ? worker->own : worker->life->single;
}

/* ---- A life ------------------------------------------------------------------------------ */

static bool has_come(struct worker *worker, unsigned step)
{
    if (worker->number == 0 && step == worker->alone_for)
        __atomic_store_n(&worker->life->turn, true, __ATOMIC_RELAXED);
    return __atomic_load_n(&worker->life->turn, __ATOMIC_RELAXED);
}

static void *work(void *arg)
{
    struct worker *worker = arg;
    bool turned = false;

    MUST(cuCtxSetCurrent(worker->life->fixture.context));
    for (unsigned step = 0; step < STEPS || !turned; step++) {
        struct block *block = &worker->block[rand_r(&worker->seed) % LIVE];

        if (!turned && has_come(worker, step)) {
            turn(worker);
            turned = true;
        }
        if (one_in(worker, 16))
            swap(worker, block);
        else if (!block->address)
            begin(worker, block);
        else if (one_in(worker, 8))
            fill_beside(worker, block, true);
        else if (one_in(worker, 4))
            check(worker, block);
        else
            end(worker, block);
        if (step >= STEPS) /* the others are still to come */
            MUST(cuStreamSynchronize(worker->stream));
    }
    for (int i = 0; i < LIVE; i++)
        if (worker->block[i].address)
            end(worker, &worker->block[i]);
    return NULL;
}

static CUresult CUDAAPI always_passed(CUevent event)
{
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI never_waits(CUstream stream, CUevent event, unsigned flags)
{
    return CUDA_SUCCESS;
}

static void start(struct life *life, unsigned *seed, unsigned threads, int broken)
{
    struct fixture *f = &life->fixture;

    memset(life, 0, sizeof *life);
    fixture_options(f);
    f->options.lone_stream = true;
    f->options.epoch_bytes = 1 << 20;
    f->options.purge_ns = rand_r(seed) % 4 == 0 && !broken ? 1000000 : 0;
    fixture_start(f);
    if (broken == 1)
        fixture_driver(f)->stream_wait_event = never_waits;
    else if (broken == 2)
        fixture_driver(f)->event_query = always_passed;
    life->act = broken == 1 ? NOTHING : (enum act)(rand_r(seed) % ACTS);
    if (rand_r(seed) % 4 > 0 || life->act == ENDS_THE_STREAM)
        MUST(cuStreamCreate(&life->single, CU_STREAM_NON_BLOCKING));
    MUST(pthread_barrier_init(&life->all, NULL, threads));
    MUST(pthread_mutex_init(&life->lock, NULL));
}

static void finish(struct life *life)
{
    for (int i = 0; i < SHARED; i++)
        if (life->shared[i].address)
            MUST(gs_core_free(life->fixture.core, life->shared[i].address));
    MUST(cuCtxSynchronize());
    if (life->single)
        MUST(cuStreamDestroy(life->single));
    pthread_barrier_destroy(&life->all);
    pthread_mutex_destroy(&life->lock);
    MUST((int)fixture_arena(&life->fixture).live);
    fixture_end(&life->fixture);
}

/* What a thread needs, and what it leaves when all work is done. */
static void equip(struct worker *worker, struct life *life, unsigned number, unsigned *seed)
{
    *worker = (struct worker){.life = life,
                              .number = number,
                              .seed = (unsigned)rand_r(seed),
                              .stamp = (number + 1) << 20,
                              .stream = life->single,
                              .leaves = rand_r(seed) % 2,
                              .alone_for = (unsigned)rand_r(seed) % STEPS};
    MUST(cuStreamCreate(&worker->own, CU_STREAM_NON_BLOCKING));
    MUST(cuEventCreate(&worker->order, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc(&worker->found, sizeof(unsigned)));
    MUST(cuMemsetD32(worker->found, 0, 1));
}

static void look(struct worker *worker)
{
    MUST(cuMemcpyDtoH(&worker->foreign, worker->found, sizeof worker->foreign));
    MUST(cuMemFree(worker->found));
    MUST(cuEventDestroy(worker->order));
    MUST(cuStreamDestroy(worker->own));
}

static unsigned live(unsigned *seed, unsigned threads, int broken, unsigned long *checks)
{
    static struct worker worker[THREADS_MAX];
    struct life life;
    unsigned foreign = 0;

    start(&life, seed, threads, broken);
    for (unsigned i = 0; i < threads; i++)
        equip(&worker[i], &life, i, seed);
    for (unsigned i = 0; i < threads; i++)
        MUST(pthread_create(&worker[i].thread, NULL, work, &worker[i]));
    for (unsigned i = 0; i < threads; i++)
        MUST(pthread_join(worker[i].thread, NULL));
    MUST(cuCtxSynchronize());
    for (unsigned i = 0; i < threads; i++) {
        look(&worker[i]);
        foreign += worker[i].foreign;
        *checks += worker[i].checks;
    }
    if (foreign)
        printf("%u foreign words in a life that ended by act %d\n", foreign, (int)life.act);
    finish(&life);
    return foreign;
}

int main(int argc, char **argv)
{
    unsigned seconds = 5, threads = 4, seed = 1, lives = 0;
    unsigned long checks = 0;
    uint64_t end_ns;
    int broken = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seconds") == 0)
            seconds = (unsigned)atoi(argv[i + 1]);
        if (strcmp(argv[i], "--threads") == 0)
            threads = (unsigned)atoi(argv[i + 1]);
        if (strcmp(argv[i], "--seed") == 0)
            seed = (unsigned)atoi(argv[i + 1]);
        if (strcmp(argv[i], "--broken") == 0)
            broken = atoi(argv[i + 1]);
    }
    if (threads < 1 || threads > THREADS_MAX)
        return 2;
    end_ns = now_ns() + seconds * UINT64_C(1000000000);
    while (now_ns() < end_ns) {
        lives++;
        if (live(&seed, threads, broken, &checks) > 0)
            return 1;
    }
    printf("%u lives, %lu checks\n", lives, checks);
    return checks == 0;
}
