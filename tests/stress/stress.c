/*
 * stress [--seconds N] [--threads N] [--seed N] [--find] [--one-context]
 *
 * See stress.h. The last line is "stress: ok BLOCKS blocks CHECKS checks", or what went wrong. With
 * --find it is the other way round: success is memory that was given to two (or taken away under a
 * kernel), and to find nothing in the whole time is failure. With --one-context no context comes
 * and goes: where several programs make and destroy contexts at once, the driver hangs by itself.
 *
 * Exit status: 0 as said, 1 otherwise, 2 when called wrongly.
 */
#include "stress.h"

#define ERA_MS       1500 /* the longest */
#define VISIT_STEPS  150  /* what a context lives that comes and goes */
#define HANG_SECONDS 60   /* beyond the time given */

struct worker {
    pthread_t thread;
    CUcontext context; /* NULL: makes its own ones, again and again */
    CUdevice device;
    struct world world;
    unsigned contexts; /* made */
    bool tidy;
};

static struct worker workers[STRESS_THREADS];
static uint64_t era_end_ns;

bool stress_over(void)
{
    return now_ns() >= era_end_ns;
}

/* ---- the verdict ---- */

/* Other threads are in the middle of things, this one maybe in a signal's handler. */
void stress_verdict(bool found, const char *what)
{
    char line[700];
    bool right = found && options.find;
    int length = snprintf(line, sizeof line, "stress: %s: %s\n",
                          right ? "found, as it should" : "wrong", what);

    _exit(write(STDOUT_FILENO, line, (size_t)length) == length && right ? 0 : 1);
}

/* ---- one era ---- */

/* Contexts that live for a moment, and end with blocks live and kernels to come. */
static void visit(struct worker *worker)
{
    while (!stress_over()) {
        CUcontext context = stress_context(worker->device);

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

    stress_thread(worker->world.thread, true);
    if (worker->context)
        live(worker);
    else
        visit(worker);
    stress_thread(worker->world.thread, false);
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

    if (options.one_context)
        visitors = 0;
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
            stress_verdict(false, "a thread cannot be started");
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

int main(int argc, char **argv)
{
    uint64_t end_ns, random;
    struct totals totals = {0};
    CUdevice device;
    int devices;

    if (!stress_options(argv, NULL)) {
        fputs("usage: stress [--seconds N] [--threads N] [--seed N] [--find] [--one-context]\n",
              stderr);
        return 2;
    }
    stress_watch(options.seconds + HANG_SECONDS);
    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    MUST(cuDeviceGet(&device, 0));
    random = options.seed;
    end_ns = now_ns() + options.seconds * UINT64_C(1000000000);
    while (now_ns() < end_ns) {
        uint64_t ms = ERA_MS / 4 + stress_below(&random, ERA_MS * 3 / 4);

        era_end_ns = now_ns() + ms * 1000000;
        if (era_end_ns > end_ns || options.one_context)
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
        stress_verdict(false, "nothing was checked");
    printf("stress: ok %llu blocks %llu checks\n", (unsigned long long)totals.blocks,
           (unsigned long long)totals.checks);
    fflush(stdout);
    return 0;
}
