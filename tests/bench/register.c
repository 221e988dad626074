/*
 * What the cache of registrations costs by itself, over a device that does nothing:
 *
 *   register [--ranges N]
 *
 * Prints one JSON line: the nanoseconds of finding a kept registration among so many and giving it
 * back, of ranges in no order ("any") and of 64 of them again and again ("few"), which is what
 * programs do; the instructions of that, null where nobody may trace; and the bytes of host memory
 * that each takes. A time is the thread's own on its core, so that a busy machine does not spoil
 * it, and the middle one of five; it decides nothing.
 */
#include "../steps.h"
#include "bench.h"
#include "core/regcache/regcache.h"

#define FIRST   UINT64_C(0x7f0000000000)
#define RANGE   ((uint64_t)64 << 10)
#define COUNTED 200 /* hits under single steps */
#define SAMPLES 20000
#define REPEATS 5
#define FEW     64

static struct gs_regcache *cache;
static uint64_t ranges = 100000;

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

/* Of so many requests, and of their hits and releases where `hits`. -1: nobody may trace. */
static long steps_of(bool hits)
{
    long steps;
    int status;
    pid_t child = fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(STEPS_NOT_PERMITTED);
        use(0);
        raise(SIGUSR1);
        for (uint64_t i = 0; i < COUNTED; i++)
            if (hits)
                use(i * 37 % ranges);
            else
                take_request(ask(i * 37 % ranges));
        raise(SIGUSR2);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        bench_die("no child: %s", strerror(errno));
    steps = WIFSTOPPED(status) ? steps_run(child, &status, false, COUNTED * 100000L) : -1;
    if (WIFSTOPPED(status)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    return steps;
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

int main(int argc, char **argv)
{
    const struct bench_option options[] = {{"ranges", BENCH_NUMBER, &ranges}, {NULL}};
    struct gs_log log = {.line = log_line};
    struct gs_regcache_stats stats;
    struct gs_regcache_options limits;
    long asking, hitting;
    uint64_t empty;

    bench_options(argv, options, "register [--ranges N]");
    if (ranges < 1000 || ranges > 1000000)
        bench_die("--ranges is from 1000 to 1000000");
    limits = (struct gs_regcache_options){.count = ranges, .bytes = UINT64_MAX};
    if (gs_regcache_create(&limits, NULL, &log, &cache) != GS_OK)
        bench_die("no memory");
    gs_regcache_stats(cache, &stats);
    empty = stats.host_bytes;
    for (uint64_t i = 0; i < ranges; i++)
        make(i);
    gs_regcache_stats(cache, &stats);
    asking = steps_of(false);
    hitting = steps_of(true);
    json_begin("register");
    json_count("ranges", ranges);
    json_number("ns_any", (double)hit_ps(ranges) / 1000);
    json_number("ns_few", (double)hit_ps(FEW) / 1000);
    if (asking < 0 || hitting < 0)
        json_null("instructions");
    else
        json_count("instructions", (uint64_t)(hitting - asking) / COUNTED);
    json_count("bytes", (stats.host_bytes - empty) / ranges);
    json_end();
    gs_regcache_destroy(cache);
    return 0;
}
