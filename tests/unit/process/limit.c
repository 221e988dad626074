/* What a process takes of a device at most (core/process/limit.h). */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/reclaim.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/fixture.h"

#define LIMIT   (64 * MIB)
#define THREADS 4
#define ROUNDS  400
#define ASKED   10000000

static struct fixture f;

static void start(size_t bytes, unsigned percent)
{
    setenv("SOFTCUDA_MEMORY", "256M", 1);
    fixture_options(&f);
    f.options.limit = (struct gs_limit){bytes, percent};
    fixture_start(&f);
}

Test(limit, what_the_arenas_have_counts_until_it_is_the_drivers_again, .timeout = 60)
{
    CUdeviceptr block;

    start(LIMIT, 0);
    cr_assert_eq(gs_limit_used(f.core, 0), 0);
    MUST(gs_core_alloc(f.core, 24 * MIB, &block));
    cr_assert_eq(gs_limit_of(f.core, &f.core->device[0]), LIMIT);
    cr_assert_eq(gs_limit_used(f.core, 0), 24 * MIB);
    MUST(gs_core_free(f.core, block));
    MUST(cuCtxSynchronize());
    cr_assert_eq(gs_limit_used(f.core, 0), 24 * MIB, "it is kept");
    gs_device_purge(f.core, &f.core->device[0], true);
    cr_assert_eq(gs_limit_used(f.core, 0), 0);
    cr_assert(gs_limit_take(f.core, &f.core->device[0], LIMIT));
    cr_assert_not(gs_limit_take(f.core, &f.core->device[0], 1));
    gs_limit_give(f.core, 0, LIMIT);
    fixture_end(&f);
}

Test(limit, what_the_driver_refuses_is_not_counted, .timeout = 60)
{
    CUdeviceptr block;
    size_t used;

    start(0, 100);
    MUST(gs_core_alloc(f.core, 2 * MIB, &block));
    used = gs_limit_used(f.core, 0);
    cr_assert_eq(gs_core_alloc(f.core, 255 * MIB, &(CUdeviceptr){0}), GS_NO_MEMORY);
    cr_assert_eq(gs_limit_used(f.core, 0), used);
    MUST(gs_core_free(f.core, block));
    fixture_end(&f);
}

Test(limit, none_is_none, .timeout = 60)
{
    CUdeviceptr block;

    start(0, 0);
    MUST(gs_core_alloc(f.core, 128 * MIB, &block));
    cr_assert_eq(gs_limit_of(f.core, &f.core->device[0]), SIZE_MAX);
    MUST(gs_core_free(f.core, block));
    fixture_end(&f);
}

Test(limit, figures_are_the_smaller_ones, .timeout = 60)
{
    size_t left = 200 * MIB, total = 256 * MIB;
    CUdeviceptr block;

    start(LIMIT, 0);
    MUST(gs_core_alloc(f.core, 20 * MIB, &block));
    gs_core_bound(f.core, 0, &left, &total);
    cr_assert_eq(total, LIMIT);
    cr_assert_eq(left, LIMIT - 20 * MIB);
    left = 3 * MIB;
    total = 256 * MIB;
    gs_core_bound(f.core, -1, &left, &total);
    cr_assert_eq(left, 3 * MIB, "the device has less");
    left = total = 256 * MIB;
    gs_core_bound(f.core, GS_NO_DEVICE, &left, &total);
    cr_assert_eq(left, LIMIT, "of a device that it has nothing of");
    cr_assert_eq(gs_core_device_of_uuid(f.core, f.core->device[0].uuid), 0);
    cr_assert_eq(gs_core_device_of_uuid(f.core, (const unsigned char[16]){1}), GS_NO_DEVICE);
    MUST(gs_core_free(f.core, block));
    fixture_end(&f);
}

static CUresult does_not_say(size_t *bytes, CUdevice device)
{
    return CUDA_ERROR_UNKNOWN;
}

/* A part of it is nothing, and what is larger than it cannot be refused. */
Test(limit, a_device_that_does_not_say_what_it_has_is_left_to_the_driver, .timeout = 60)
{
    start(0, 50);
    fixture_driver(&f)->device_total_mem = does_not_say;
    cr_assert_eq(gs_core_alloc(f.core, MIB, &(CUdeviceptr){0}), GS_NOT_OFFERED);
    cr_assert_eq(f.core->device[0].mode, GS_MODE_NATIVE);
    fixture_end(&f);
}

/* ---- Threads ------------------------------------------------------------------------------- */

#define LOOKS 10 /* at what the threads have */

static bool over;            /* atomic */
static size_t before, most;  /* bytes that are in use: by nobody here; seen */
static size_t seen, refused; /* atomic */

static void *take_and_give(void *arg)
{
    unsigned seed = (unsigned)(size_t)arg;
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(f.context));
    for (int i = 0; i < ROUNDS || __atomic_load_n(&seen, __ATOMIC_RELAXED) < LOOKS; i++) {
        if (gs_core_alloc(f.core, (size_t)(rand_r(&seed) % 40 + 1) * MIB, &block) == GS_OK)
            MUST(gs_core_free(f.core, block));
        else
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* As the driver counts it: nothing else is allocated meanwhile. */
static void *look(void *arg)
{
    size_t left, total;

    MUST(cuCtxSetCurrent(f.context));
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        MUST(cuMemGetInfo(&left, &total));
        if (total - left > most)
            most = total - left;
        __atomic_add_fetch(&seen, total - left > before, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *ask_for_too_much(void *arg)
{
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST))
        if (!gs_limit_take(f.core, &f.core->device[0], LIMIT + 1))
            __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
    return NULL;
}

Test(limit, what_is_refused_takes_nothing_from_others, .timeout = 60)
{
    pthread_t thread;

    start(LIMIT, 0);
    MUST(gs_core_alloc(f.core, MIB, &(CUdeviceptr){0})); /* the device is known */
    cr_assert_eq(pthread_create(&thread, NULL, ask_for_too_much, NULL), 0);
    while (__atomic_load_n(&refused, __ATOMIC_RELAXED) < ASKED) {
        cr_assert(gs_limit_take(f.core, &f.core->device[0], LIMIT / 2));
        gs_limit_give(f.core, 0, LIMIT / 2);
    }
    __atomic_store_n(&over, true, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    fixture_end(&f);
}

Test(limit, threads_never_have_more_together, .timeout = 120)
{
    pthread_t thread[THREADS], looker;
    size_t left, total;

    start(LIMIT, 0);
    MUST(cuMemGetInfo(&left, &total));
    before = total - left;
    cr_assert_eq(pthread_create(&looker, NULL, look, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, take_and_give, (void *)(i + 1)), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    __atomic_store_n(&over, true, __ATOMIC_SEQ_CST);
    pthread_join(looker, NULL);
    cr_assert_gt(most, before, "nothing was seen");
    cr_assert_leq(most - before, LIMIT, "%zu MiB", (most - before) / MIB);
    gs_device_purge(f.core, &f.core->device[0], true);
    cr_assert_eq(gs_limit_used(f.core, 0), 0);
    fixture_end(&f);
}
