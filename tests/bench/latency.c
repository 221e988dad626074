/*
 * How long each allocation and each free takes, in mixes of them: see latency.h.
 *
 *   latency MIX|TRACE [--async] [--calls N] [--milliseconds N] [--seed N] [--streams N]
 *           [--with ALLOCATOR]
 *                     [--rounds N] [--kernel MICROSECONDS] [--idle MILLISECONDS]
 *
 * MIX is mixed, server, training or threads; a name with a slash in it is the file of a trace.
 * The run ends with --calls calls of all threads, or after --milliseconds; that of a trace, which
 * is played twice or so many --rounds, at its end. --async allocates and frees in stream order,
 * --with by another allocator (other.h). Of a trace alone: how long its kernels take (5 us, 0:
 * there are none), and how long at most each round waits, before what the program never frees is
 * freed, for the library to give back what it holds for nothing.
 */
#include "../conformance/kernels.h"
#include "latency.h"
#include "other.h"
#include "shim/gpushim.h"

#define STREAMS       4
#define KERNELS_AHEAD 64   /* of a thread: at some point a program waits for what it started */
#define LOOK_EVERY    1024 /* calls of a thread, at the driver's memory */
#define ALL_CALLS     UINT64_MAX /* as many as the mix has by itself */
#define CALLS         100000
#define IDLE_KEPT     (UINT64_C(64) << 20) /* what the library keeps of memory that is idle, */
#define IDLE_BESIDE   12 /* and one part in so many of the peak: in a piece with what is live */
#define IDLE_LOOK_MS  20
#define FIRST_NS      200000000 /* of a program, whose calls are told by themselves as well */

static const char usage[] =
    "latency mixed|server|training|threads|TRACE [--async] [--calls N] [--milliseconds N]\n"
    "               [--seed N] [--streams N] [--with mempool|torch:LIBRARY|KIND:LIBRARY]\n"
    "               [--rounds N] [--kernel MICROSECONDS] [--idle MILLISECONDS]   of a trace";

struct run {
    const struct latency_mix *mix;
    const struct trace *trace; /* NULL: it is none */
    bool async;
    const char *with;          /* NULL: the driver's own calls */
    const struct other *other; /* the allocator of that name */
    uint64_t calls, milliseconds, seed, streams;
    uint64_t rounds, kernel_us, idle_ms; /* of a trace */
    CUcontext context;
    CUfunction kernel;
    pthread_barrier_t begins;
    uint64_t began_ns;
    uint64_t live, live_peak;
    /* Natively. Under the library its own figures are better: they miss no peak. */
    bool under_library;
    uint64_t free_at_start, reserved_peak;
    uint64_t reserved_idle, idle_most; /* what was held when it waited no more, and might be */
    struct gpushim_memory before;      /* the library's figures when the mix's start was over */
};

struct latency_actor {
    struct run *run;
    pthread_t thread;
    uint64_t random;
    CUstream stream[STREAMS];
    unsigned turn;
    CUevent ended[KERNELS_AHEAD];
    uint64_t kernels;
    bool counting;
    uint64_t calls_left, bytes, ended_ns;
    struct latency_counts counts[LATENCY_KINDS];
    uint64_t first_end_ns;
    struct latency_counts first; /* calls up to then, those of the mix's start too */
};

/* ---- what a mix asks ---- */

uint64_t latency_random(struct latency_actor *actor, uint64_t below)
{
    uint64_t x = actor->random += 0x9e3779b97f4a7c15u; /* splitmix64 */

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x ^ x >> 31) % below;
}

unsigned latency_threads(const struct latency_actor *actor)
{
    return actor->run->mix->threads;
}

void latency_begin(struct latency_actor *actor)
{
    struct run *run = actor->run;

    latency_finish(actor);
    if (pthread_barrier_wait(&run->begins) == PTHREAD_BARRIER_SERIAL_THREAD) {
        bench_library_memory(&run->before);
        run->began_ns = bench_now();
    }
    pthread_barrier_wait(&run->begins);
    actor->counting = true;
}

bool latency_is_done(const struct latency_actor *actor)
{
    return !actor->counting;
}

void latency_stream(struct latency_actor *actor, unsigned nth)
{
    const struct run *run = actor->run;

    actor->turn = nth % (unsigned)run->streams;
    if (run->other && run->other->use)
        run->other->use(actor->stream[actor->turn]);
}

void latency_finish(struct latency_actor *actor)
{
    for (unsigned i = 0; i < actor->run->streams; i++)
        MUST(cuStreamSynchronize(actor->stream[i]));
}

void latency_pause(uint64_t milliseconds)
{
    struct timespec pause = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000)};

    while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
        continue;
}

void latency_idle(struct latency_actor *actor)
{
    struct run *run = actor->run;
    uint64_t waited_ms = 0;
    struct gpushim_memory memory;

    run->idle_most = run->live + IDLE_KEPT + run->live_peak / IDLE_BESIDE;
    /* Who ends it: the trimmer's thread, or --idle. */
    while (waited_ms < run->idle_ms && bench_library_memory(&memory)) {
        run->reserved_idle = memory.reserved;
        if (memory.reserved <= run->idle_most)
            return;
        latency_pause(IDLE_LOOK_MS);
        waited_ms += IDLE_LOOK_MS;
    }
}

void latency_kernel(struct latency_actor *actor, const struct latency_block *block, uint64_t ns)
{
    uint64_t count = 1, address = block->address;
    uint32_t value = (uint32_t)actor->kernels;
    void *arguments[] = {&address, &value, &count, &ns};
    CUevent ended = actor->ended[actor->kernels++ % KERNELS_AHEAD];

    MUST(cuEventSynchronize(ended));
    MUST(cuLaunchKernel(actor->run->kernel, 1, 1, 1, 1, 1, 1, 0, block->stream, arguments, NULL));
    MUST(cuEventRecord(ended, block->stream));
}

/* ---- timed calls ---- */

static void raise_to(uint64_t *most, uint64_t value)
{
    uint64_t before = __atomic_load_n(most, __ATOMIC_RELAXED);

    while (value > before && !__atomic_compare_exchange_n(most, &before, value, false,
                                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
}

static void look_at_memory(struct run *run)
{
    size_t left, total;

    MUST(cuMemGetInfo(&left, &total));
    if (left < run->free_at_start)
        raise_to(&run->reserved_peak, run->free_at_start - left);
}

/* At each new peak, and now and then. */
static void watch_memory(struct latency_actor *actor, uint64_t live)
{
    struct run *run = actor->run;
    bool peak = live > __atomic_load_n(&run->live_peak, __ATOMIC_RELAXED);

    if (peak)
        raise_to(&run->live_peak, live);
    if (!run->under_library && (peak || actor->calls_left % LOOK_EVERY == 0))
        look_at_memory(run);
}

static void count_call(struct latency_actor *actor, enum latency_kind kind, size_t size,
                       uint64_t began, uint64_t ended)
{
    struct run *run = actor->run;

    latency_count(&actor->counts[kind], ended - began);
    if (kind == LATENCY_ALLOC)
        actor->bytes += size;
    if (--actor->calls_left == 0 ||
        (run->milliseconds && ended - run->began_ns > run->milliseconds * 1000000)) {
        actor->counting = false;
        actor->ended_ns = ended;
    }
}

static inline CUresult call(const struct run *run, enum latency_kind kind,
                            struct latency_block *block)
{
    if (run->other)
        return kind == LATENCY_ALLOC
                   ? run->other->allocate(&block->address, block->size, block->stream)
                   : run->other->release(block->address, block->size, block->stream);
    if (kind == LATENCY_ALLOC)
        return run->async ? cuMemAllocAsync(&block->address, block->size, block->stream)
                          : cuMemAlloc(&block->address, block->size);
    return run->async ? cuMemFreeAsync(block->address, block->stream) : cuMemFree(block->address);
}

/* The call itself is between the two clocks, and nothing else is. */
static CUresult timed(struct latency_actor *actor, enum latency_kind kind,
                      struct latency_block *block)
{
    uint64_t began = bench_now();
    CUresult result = call(actor->run, kind, block);
    uint64_t ended = bench_now();

    if (ended < actor->first_end_ns)
        latency_count(&actor->first, ended - began);
    if (actor->counting)
        count_call(actor, kind, block->size, began, ended);
    return result;
}

void latency_allocate(struct latency_actor *actor, struct latency_block *block, size_t size)
{
    *block = (struct latency_block){.size = size, .stream = actor->stream[actor->turn]};
    bench_must(timed(actor, LATENCY_ALLOC, block), "allocating");
    watch_memory(actor, __atomic_add_fetch(&actor->run->live, size, __ATOMIC_RELAXED));
}

void latency_free(struct latency_actor *actor, struct latency_block *block)
{
    if (!block->address)
        return;
    bench_must(timed(actor, LATENCY_FREE, block), "freeing");
    __atomic_sub_fetch(&actor->run->live, block->size, __ATOMIC_RELAXED);
    block->address = 0;
}

/* ---- a run ---- */

/* The first kernel and the first event of a stream load and make what later ones find. */
static void warm(struct latency_actor *actor)
{
    struct latency_block block = {.size = 4096};

    for (unsigned i = 0; i < KERNELS_AHEAD; i++)
        MUST(cuEventCreate(&actor->ended[i], CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc(&block.address, block.size));
    for (unsigned i = 0; i < actor->run->streams; i++) {
        MUST(cuStreamCreate(&actor->stream[i], CU_STREAM_NON_BLOCKING));
        block.stream = actor->stream[i];
        latency_kernel(actor, &block, 1000);
    }
    latency_finish(actor);
    MUST(cuMemFree(block.address));
}

static void *act(void *argument)
{
    struct latency_actor *actor = argument;
    struct run *run = actor->run;

    MUST(cuCtxSetCurrent(run->context));
    warm(actor);
    latency_stream(actor, 0);
    actor->first_end_ns = bench_now() + FIRST_NS;
    run->mix->play(actor);
    latency_finish(actor);
    return NULL;
}

static struct latency_actor *play(struct run *run)
{
    unsigned threads = run->mix->threads;
    struct latency_actor *actors = bench_array(threads, sizeof *actors);

    pthread_barrier_init(&run->begins, NULL, threads);
    for (unsigned i = 0; i < threads; i++) {
        actors[i] = (struct latency_actor){.run = run};
        actors[i].random = run->seed * 1000 + i;
        actors[i].calls_left = run->calls / threads + (i < run->calls % threads);
    }
    for (unsigned i = 1; i < threads; i++)
        if (pthread_create(&actors[i].thread, NULL, act, &actors[i]) != 0)
            bench_die("cannot start thread %u", i);
    act(&actors[0]);
    for (unsigned i = 1; i < threads; i++)
        pthread_join(actors[i].thread, NULL);
    pthread_barrier_destroy(&run->begins);
    return actors;
}

static void start(struct run *run)
{
    CUmodule module; /* goes with the process */
    size_t total, left;

    /* The software driver's kernels sleep: as exactly as the system can, so that short ones are. */
    prctl(PR_SET_TIMERSLACK, 1);
    run->under_library = bench_under_shim();
    run->context = bench_start();
    MUST(cuModuleLoadData(&module, kernels_ptx));
    MUST(cuModuleGetFunction(&run->kernel, module, "spin_fill"));
    MUST(cuMemGetInfo(&left, &total));
    run->free_at_start = left;
    if (run->with)
        run->other = other_open(run->with);
}

/* ---- printing ---- */

/* The library's own figures, of all of the run and of the calls that count. */
static uint64_t print_library(const struct run *run)
{
    struct gpushim_memory memory;

    if (!bench_library_memory(&memory))
        bench_die("the library does not tell what it holds");
    json_object("library");
    json_count("live_peak", memory.live_peak);
    json_count("reserved_peak", memory.reserved_peak);
    json_count("hits", memory.hits);
    json_count("misses", memory.misses);
    json_count("pieces_made", memory.pieces_made);
    json_count("pieces_given_back", memory.pieces_given_back);
    json_count("in_background", memory.in_background);
    json_count("at_once", memory.at_once);
    json_count("events", memory.events);
    json_count("waits", memory.waits);
    json_count("wait_ns", memory.wait_ns);
    json_count("map_ns", memory.map_ns);
    json_close();
    json_object("library_since_start");
    json_count("pieces_made", memory.pieces_made - run->before.pieces_made);
    json_count("wait_ns", memory.wait_ns - run->before.wait_ns);
    json_count("map_ns", memory.map_ns - run->before.map_ns);
    json_close();
    return memory.reserved_peak;
}

/* What two clocks take that nothing lies between: every time has as much too much. */
static uint64_t clock_ns(void)
{
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 1000; i++) {
        uint64_t began = bench_now(), took = bench_now() - began;
        least = took < least ? took : least;
    }
    return least;
}

static void print_memory(const struct run *run)
{
    uint64_t reserved = run->under_library ? print_library(run) : run->reserved_peak;

    json_count("live_peak", run->live_peak);
    json_count("reserved_peak", reserved);
    json_number("ratio", (double)reserved / (double)run->live_peak);
    if (run->trace) {
        json_count("needs", run->trace->live_peak_rounded);
        json_count("live_end", run->trace->live_end);
        json_count("reserved_idle", run->reserved_idle);
        json_count("idle_most", run->idle_most);
    }
}

static void print_calls(const struct run *run, struct latency_actor *actors)
{
    struct latency_counts *all = bench_array(LATENCY_KINDS + 1, sizeof *all);
    struct latency_counts *first = bench_array(1, sizeof *first);

    for (unsigned i = 0; i < run->mix->threads; i++) {
        latency_counts_add(first, &actors[i].first);
        for (unsigned kind = 0; kind < LATENCY_KINDS; kind++) {
            latency_counts_add(&all[kind], &actors[i].counts[kind]);
            latency_counts_add(&all[LATENCY_KINDS], &actors[i].counts[kind]);
        }
    }
    latency_counts_print("alloc", &all[LATENCY_ALLOC]);
    latency_counts_print("free", &all[LATENCY_FREE]);
    latency_counts_print("all", &all[LATENCY_KINDS]);
    latency_counts_print("first", first);
    free(all);
    free(first);
}

static void print(const struct run *run, struct latency_actor *actors)
{
    uint64_t calls = 0, bytes = 0, ended = run->began_ns;

    for (unsigned i = 0; i < run->mix->threads; i++) {
        for (unsigned kind = 0; kind < LATENCY_KINDS; kind++)
            calls += actors[i].counts[kind].calls;
        bytes += actors[i].bytes;
        ended = actors[i].ended_ns > ended ? actors[i].ended_ns : ended;
    }
    json_begin("latency");
    json_text("mix", run->mix->name);
    json_bool("async", run->async);
    if (run->with)
        json_text("with", run->with);
    json_count("seed", run->seed);
    json_count("threads", run->mix->threads);
    json_count("streams", run->streams);
    json_count("calls", calls);
    json_count("bytes", bytes);
    json_number("seconds", (double)(ended - run->began_ns) / 1e9);
    json_count("clock_ns", clock_ns());
    print_memory(run);
    print_calls(run, actors);
    json_end();
}

/* Fills in which mix it is, and what it has where nothing else was said. */
static void choose_mix(struct run *run, const char *name)
{
    if (name && strchr(name, '/')) {
        uint64_t calls;

        run->mix = latency_trace(name, run->kernel_us * 1000, &run->trace, &calls);
        run->calls = run->calls == ALL_CALLS ? run->rounds * calls : run->calls;
    } else {
        for (run->mix = latency_mixes; name && run->mix->name; run->mix++)
            if (strcmp(run->mix->name, name) == 0)
                break;
        if (!name || !run->mix->name)
            bench_die("no such mix\nusage: %s", usage);
        run->calls = run->calls == ALL_CALLS ? CALLS : run->calls;
    }
    run->streams = run->streams ? run->streams : run->mix->streams;
}

int main(int argc, char **argv)
{
    struct run run = {.calls = ALL_CALLS, .seed = 1, .rounds = 2, .kernel_us = 5};
    const struct bench_option options[] = {{"async", BENCH_FLAG, &run.async},
                                           {"calls", BENCH_NUMBER, &run.calls},
                                           {"milliseconds", BENCH_NUMBER, &run.milliseconds},
                                           {"seed", BENCH_NUMBER, &run.seed},
                                           {"streams", BENCH_NUMBER, &run.streams},
                                           {"with", BENCH_TEXT, &run.with},
                                           {"rounds", BENCH_NUMBER, &run.rounds},
                                           {"kernel", BENCH_NUMBER, &run.kernel_us},
                                           {"idle", BENCH_NUMBER, &run.idle_ms},
                                           {NULL}};
    const char *name = bench_options(argv, options, usage);

    choose_mix(&run, name);
    if (run.calls < run.mix->threads || run.streams > STREAMS)
        bench_die("a call for each thread at least, and %u streams at most\nusage: %s", STREAMS,
                  usage);
    start(&run);
    struct latency_actor *actors = play(&run);
    print(&run, actors);
    free(actors);
    return 0;
}
