/*
 * stress [--seconds N] [--threads N] [--seed N] [--find]
 *
 * See stress.h. The last line is "stress: ok BLOCKS blocks CHECKS checks", or what went wrong. With
 * --find it is the other way round: success is memory that was given to two (or taken away under a
 * kernel), and to find nothing in the whole time is failure.
 *
 * Exit status: 0 as said, 1 otherwise, 2 when called wrongly.
 */
#include "stress.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ERA_MS 1500 /* the longest */
#define THREADS_MAX 256
#define VISIT_STEPS 150 /* what a context lives that comes and goes */
#define HANG_SECONDS 60 /* beyond the time given */

struct options options = {.seconds = 10, .threads = 4, .seed = 1};

struct worker {
    pthread_t thread;
    CUcontext context; /* NULL: makes its own ones, again and again */
    CUdevice device;
    struct world world;
    unsigned contexts; /* made */
    bool tidy;
    const struct doing *doing; /* atomic: its stress_doing while it runs, NULL otherwise */
};

static struct worker workers[THREADS_MAX];
static uint64_t era_end_ns;
static unsigned era_number;

_Thread_local struct doing stress_doing = {.call = "nothing yet"};

uint64_t stress_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void stress_calls(const char *call)
{
    stress_doing.call = call;
    stress_doing.since_ns = stress_now();
    stress_doing.calls++;
}

bool stress_over(void)
{
    return stress_now() >= era_end_ns;
}

/* splitmix64 */
uint32_t stress_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(x >> 32);
}

uint32_t stress_below(uint64_t *state, uint32_t below)
{
    return (uint32_t)((uint64_t)stress_random(state) * below >> 32);
}

/* ---- the verdict ---- */

/* Other threads are in the middle of things: the process ends here. */
__attribute__((noreturn)) static void verdict(bool found, const char *what)
{
    printf("stress: %s: %s\n", found && options.find ? "found, as it should" : "wrong", what);
    fflush(stdout);
    _exit(found && options.find ? 0 : 1);
}

void stress_wrong(const char *format, ...)
{
    char what[600];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    verdict(true, what);
}

void stress_failed(CUresult result, const char *call)
{
    const char *name = NULL;
    char what[300];

    cuGetErrorName(result, &name);
    snprintf(what, sizeof what, "%s: %s", call, name ? name : "an unknown error");
    /* Memory that went away under a kernel. */
    verdict(result == CUDA_ERROR_ILLEGAL_ADDRESS, what);
}

static void say_doing(const char *who, unsigned number, const struct doing *doing)
{
    char line[300];
    int length = snprintf(line, sizeof line, "stress: %s %u: %s, for %llu ms, its call %llu\n", who,
                          number, doing->call,
                          (unsigned long long)(stress_now() - doing->since_ns) / 1000000,
                          (unsigned long long)doing->calls);
    ssize_t ignored = write(STDOUT_FILENO, line, (size_t)length);

    (void)ignored;
}

static const struct doing *main_doing;

/* A signal's handler, and the end. */
static void hung(int signal_number)
{
    static const char text[] = "stress: wrong: it hangs\n";
    ssize_t ignored;

    say_doing("main thread in era", era_number, main_doing);
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        const struct doing *doing = __atomic_load_n(&workers[i].doing, __ATOMIC_RELAXED);

        if (doing)
            say_doing("thread", i, doing);
    }
    ignored = write(STDOUT_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(1);
}

/* ---- one era ---- */

static CUcontext context_new(CUdevice device)
{
    CUcontext context;

#if CUDA_VERSION >= 13000
    MUST(cuCtxCreate(&context, NULL, 0, device));
#else
    MUST(cuCtxCreate(&context, 0, device));
#endif
    return context;
}

/* Contexts that live for a moment, and end with blocks live and kernels to come. */
static void visit(struct worker *worker)
{
    while (!stress_over()) {
        CUcontext context = context_new(worker->device);

        world_open(&worker->world);
        worker_live(&worker->world, VISIT_STEPS, stress_below(&worker->world.random, 2));
        if (stress_below(&worker->world.random, 2))
            world_close(&worker->world);
        else
            world_look(&worker->world);
        MUST(cuCtxDestroy(context));
        worker->contexts++;
    }
}

static void live(struct worker *worker)
{
    MUST(cuCtxSetCurrent(worker->context));
    world_open(&worker->world);
    worker_live(&worker->world, UINT32_MAX, worker->tidy);
    if (worker->tidy)
        world_close(&worker->world);
    else
        world_look(&worker->world);
    MUST(cuCtxSetCurrent(NULL));
}

static void *work(void *argument)
{
    struct worker *worker = argument;

    __atomic_store_n(&worker->doing, &stress_doing, __ATOMIC_RELAXED);
    if (worker->context)
        live(worker);
    else
        visit(worker);
    __atomic_store_n(&worker->doing, NULL, __ATOMIC_RELAXED);
    return NULL;
}

struct totals {
    uint64_t blocks, checks, refused;
    unsigned eras, resets, contexts;
};

/* `threads` in the primary context, and beside them one that makes its own for each device. */
static void era(uint64_t *random, CUdevice device, int devices, struct totals *totals)
{
    unsigned threads = options.threads, visitors = (unsigned)(devices < 2 ? devices : 2);
    bool tidy = stress_below(random, 2);
    CUcontext context;

    era_number = totals->eras;
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < threads + visitors; i++) {
        struct worker *worker = &workers[i];

        memset(worker, 0, sizeof *worker);
        worker->tidy = tidy;
        worker->context = i < threads ? context : NULL;
        worker->device = (CUdevice)(i < threads ? 0 : i - threads);
        worker->world.thread = i;
        worker->world.shared = i < threads;
        worker->world.random = ((uint64_t)stress_random(random) << 32) | stress_random(random);
        if (pthread_create(&worker->thread, NULL, work, worker) != 0)
            verdict(false, "a thread cannot be started");
    }
    stress_calls("waiting for the threads");
    for (unsigned i = 0; i < threads + visitors; i++) {
        pthread_join(workers[i].thread, NULL);
        totals->blocks += workers[i].world.blocks;
        totals->checks += workers[i].world.checks;
        totals->refused += workers[i].world.refused;
        totals->contexts += workers[i].contexts;
    }
    stress_calls("ending the era");
    exchange_clear(tidy);
    if (tidy) {
        MUST(cuDevicePrimaryCtxRelease(device));
    } else { /* which takes what was retained with it */
        MUST(cuDevicePrimaryCtxReset(device));
        totals->resets++;
    }
    totals->eras++;
}

/* ---- options ---- */

static bool number_of(const char *text, uint64_t *ret_number)
{
    char *end;

    *ret_number = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end;
}

static bool read_options(char **argv)
{
    uint64_t number;

    for (char **at = argv + 1; *at; at++) {
        if (strcmp(*at, "--find") == 0) {
            options.find = true;
            continue;
        }
        if (!at[1] || !number_of(at[1], &number))
            return false;
        if (strcmp(*at, "--seconds") == 0 && number < 1000000)
            options.seconds = (unsigned)number;
        else if (strcmp(*at, "--threads") == 0 && number > 0 && number <= THREADS_MAX - 2)
            options.threads = (unsigned)number;
        else if (strcmp(*at, "--seed") == 0)
            options.seed = number;
        else
            return false;
        at++;
    }
    return true;
}

int main(int argc, char **argv)
{
    uint64_t end_ns, random;
    struct totals totals = {0};
    CUdevice device;
    int devices;

    if (!read_options(argv)) {
        fputs("usage: stress [--seconds N] [--threads N] [--seed N] [--find]\n", stderr);
        return 2;
    }
    main_doing = &stress_doing;
    signal(SIGALRM, hung);
    signal(SIGTERM, hung); /* whoever runs it has waited long enough */
    alarm(options.seconds + HANG_SECONDS);
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    MUST(cuDeviceGet(&device, 0));
    random = options.seed;
    end_ns = stress_now() + options.seconds * UINT64_C(1000000000);
    while (stress_now() < end_ns) {
        uint64_t ms = ERA_MS / 4 + stress_below(&random, ERA_MS * 3 / 4);

        era_end_ns = stress_now() + ms * 1000000;
        if (era_end_ns > end_ns)
            era_end_ns = end_ns;
        era(&random, device, devices, &totals);
    }
    stress_calls("ending the process");
    printf("stress: %u eras, %u of them ended by a reset, %u contexts destroyed, %llu allocations "
           "refused for memory\n",
           totals.eras, totals.resets, totals.contexts, (unsigned long long)totals.refused);
    if (options.find) {
        printf("stress: wrong: nothing was found in %llu checks\n",
               (unsigned long long)totals.checks);
        return 1;
    }
    if (totals.checks == 0)
        verdict(false, "nothing was checked");
    printf("stress: ok %llu blocks %llu checks\n", (unsigned long long)totals.blocks,
           (unsigned long long)totals.checks);
    fflush(stdout);
    return 0;
}
