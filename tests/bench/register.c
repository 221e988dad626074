/*
 * What the cache of registrations costs by itself, over a device that does nothing:
 *
 *   register [--ranges N] [--threads N] [--milliseconds N]
 *
 * Prints one JSON line a row. A time is the thread's own on its core, so that a busy machine does
 * not spoil it, and the middle one of five. Rows:
 *
 *   hit          finding a kept registration among so many and giving it back, and the instructions
 *                of that: of ranges in no order ("any"), and of 64 of them again and again ("few"),
 *                which is what programs do
 *   threads      hits of all threads together over those of one, on ranges of their own; each thread
 *                needs a core for this to mean anything
 *   miss         making one and, as the cache is full, ending the oldest: what it costs beside the
 *                device's own work
 *   memory       bytes of host memory that each takes
 *
 * A time decides nothing.
 */
#include <sys/ptrace.h>

#include "bench.h"
#include "core/regcache/regcache.h"
#include "tests/system.h"

#define FIRST   UINT64_C(0x7f0000000000)
#define RANGE   ((uint64_t)64 << 10)
#define COUNTED 200 /* hits under single steps */
#define SAMPLES 20000
#define REPEATS 5
#define FEW     64

static struct gs_regcache *cache;
static uint64_t ranges = 100000;
static bool go, stop;

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    *ret_handle = (void *)(uintptr_t)(base >> 8);
    return 0;
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    return 0;
}

static const struct gs_reg_backend backend = {.name = "none",
                                              .lends = true,
                                              .pin = pin,
                                              .unpin = unpin};

static void log_line(enum gs_log_level level, const void *place, const char *text)
{
    fprintf(stderr, "register: %s\n", text);
}

static struct gs_reg_request ask(uint64_t index)
{
    uint64_t base = FIRST + index * RANGE;

    return (struct gs_reg_request){.key = {.backend = &backend, .domain = 1, .access = 1},
                                   .base = base + 512,
                                   .size = 4096,
                                   .keep = true,
                                   .cover = base,
                                   .cover_size = RANGE};
}

static void make(uint64_t index)
{
    struct gs_reg_request request = ask(index);
    struct gs_reg *reg;
    bool hit;

    if (gs_regcache_begin(cache, &request, &reg, &hit) != GS_OK || hit ||
        gs_regcache_complete(cache, reg, NULL) != 0)
        bench_die("range %llu could not be registered", (unsigned long long)index);
    gs_regcache_release(cache, reg);
}

static void use(uint64_t index)
{
    struct gs_reg_request request = ask(index);
    struct gs_reg *reg = gs_regcache_hit(cache, &request);

    if (!reg)
        bench_die("range %llu is not found", (unsigned long long)index);
    gs_regcache_release(cache, reg);
}

/* A range that is not near the last one. */
static uint64_t next_range(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % ranges;
}

/* So that the compiler makes it. */
__attribute__((noinline)) static void take_request(struct gs_reg_request request)
{
    __asm__ volatile("" : : "r"(&request) : "memory");
}

/* Instructions of one hit and its release; 0 where this cannot be counted. */
static unsigned long hit_instructions(void)
{
    pid_t child = fork();
    unsigned long steps[4] = {0}; /* before, asking alone, between, asking and hitting */
    unsigned part = 0;
    int status;

    if (child < 0)
        return 0;
    if (child == 0) {
        uint64_t state = 1;

        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(1);
        use(next_range(&state));
        raise(SIGUSR1);
        for (int i = 0; i < COUNTED; i++)
            take_request(ask((uint64_t)i * 37 % ranges));
        raise(SIGUSR1);
        raise(SIGUSR1);
        for (int i = 0; i < COUNTED; i++)
            use((uint64_t)i * 37 % ranges);
        raise(SIGUSR1);
        _exit(0);
    }
    while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        if (WSTOPSIG(status) == SIGUSR1 && part < 4)
            part++;
        if (part == 1 || part == 3)
            steps[part]++;
        if (ptrace(part == 1 || part == 3 ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, NULL) !=
            0)
            break;
    }
    return (steps[3] - steps[1]) / COUNTED;
}

static uint64_t own_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Of `of` ranges that lie apart from each other. */
static uint64_t hit_ps(uint64_t of)
{
    uint64_t step = ranges / of, state = 1, took[REPEATS];

    for (int repeat = -1; repeat < REPEATS; repeat++) { /* the first one warms up */
        uint64_t begin = own_ns();

        for (uint64_t i = 0; i < 5 * SAMPLES; i++)
            use(next_range(&state) % of * step);
        if (repeat >= 0)
            took[repeat] = (own_ns() - begin) * 1000 / (5 * SAMPLES);
    }
    return bench_median(took, REPEATS);
}

struct worker {
    pthread_t thread;
    uint64_t seed, hits, first, count;
};

static void *work(void *arg)
{
    struct worker *worker = arg;
    uint64_t state = worker->seed, hits = 0;

    while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
        usleep(100);
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        use(worker->first + next_range(&state) % worker->count);
        hits++;
    }
    worker->hits = hits;
    return NULL;
}

/* Hits a second of the first `threads` of so many threads, each on its own part of the ranges. */
static double hits_of(unsigned threads, unsigned parts, uint64_t milliseconds)
{
    struct worker worker[64] = {0};
    uint64_t begin, took, hits = 0;

    go = stop = false;
    for (unsigned i = 0; i < threads; i++) {
        worker[i] =
            (struct worker){.seed = i + 1, .count = ranges / parts, .first = ranges / parts * i};
        if (pthread_create(&worker[i].thread, NULL, work, &worker[i]) != 0)
            bench_die("no thread: %s", strerror(errno));
    }
    usleep(20000);
    begin = bench_now();
    __atomic_store_n(&go, true, __ATOMIC_RELEASE);
    usleep((useconds_t)(milliseconds * 1000));
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(worker[i].thread, NULL);
        hits += worker[i].hits;
    }
    took = bench_now() - begin;
    return (double)hits * 1e9 / (double)took;
}

static uint64_t miss_ns(void)
{
    uint64_t took[REPEATS];

    for (int repeat = 0; repeat < REPEATS; repeat++) {
        uint64_t begin = own_ns();

        for (uint64_t i = 0; i < SAMPLES; i++)
            make(ranges + (uint64_t)repeat * SAMPLES + i);
        took[repeat] = (own_ns() - begin) / SAMPLES;
    }
    return bench_median(took, REPEATS);
}

static void row(const char *name)
{
    json_begin("register");
    json_text("row", name);
    json_count("ranges", ranges);
}

int main(int argc, char **argv)
{
    uint64_t threads = 16, milliseconds = 500, empty;
    const struct bench_option options[] = {{"ranges", BENCH_NUMBER, &ranges},
                                           {"threads", BENCH_NUMBER, &threads},
                                           {"milliseconds", BENCH_NUMBER, &milliseconds},
                                           {NULL}};
    struct gs_log log = {.line = log_line};
    struct gs_regcache_stats stats;
    struct gs_regcache_options limits;
    unsigned long instructions;
    double one, all;

    bench_options(argv, options, "register [--ranges N] [--threads N] [--milliseconds N]");
    if (ranges < 1000 || ranges > 1000000 || threads < 1 || threads > 64)
        bench_die("--ranges is from 1000 to 1000000, --threads from 1 to 64");
    limits = (struct gs_regcache_options){.count = ranges, .bytes = UINT64_MAX};
    if (gs_regcache_create(&limits, NULL, &log, &cache) != GS_OK)
        bench_die("no memory");
    gs_regcache_stats(cache, &stats);
    empty = stats.host_bytes;
    for (uint64_t i = 0; i < ranges; i++)
        make(i);
    gs_regcache_stats(cache, &stats);
    instructions = hit_instructions();
    row("hit");
    json_text("pattern", "any");
    json_number("ns", (double)hit_ps(ranges) / 1000);
    json_count("instructions", instructions);
    json_end();
    row("hit");
    json_text("pattern", "few");
    json_number("ns", (double)hit_ps(FEW) / 1000);
    json_count("instructions", instructions);
    json_end();
    one = hits_of(1, (unsigned)threads, milliseconds);
    all = hits_of((unsigned)threads, (unsigned)threads, milliseconds);
    row("threads");
    json_count("threads", threads);
    json_count("cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    json_number("speedup", all / one);
    json_end();
    row("miss");
    json_count("ns", miss_ns());
    json_end();
    row("memory");
    json_count("bytes", (stats.host_bytes - empty) / ranges);
    json_end();
    gs_regcache_destroy(cache);
    return 0;
}
