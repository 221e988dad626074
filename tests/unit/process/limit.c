/* What a process takes of a device at most (core/process/limit.h). */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/fixture.h"

#define LIMIT (64 * MIB)
#define ASKED 10000000

FIXTURE_SUITE(limit)

static void start(size_t bytes, unsigned percent)
{
    setenv("SOFTCUDA_MEMORY", "256M", 1);
    f.options.limit = (struct gs_limit){bytes, percent};
    fixture_start(&f);
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
}

/* Of the current device, too; more of it than the driver has free is nobody's. */
Test(limit, what_a_program_is_told_is_what_it_may_have, .timeout = 60)
{
    size_t left, total;

    start(LIMIT, 0);
    must_alloc(&f, 16 * MIB);
    MUST(gs_core_free(f.core, must_alloc(&f, 16 * MIB)));
    fixture_drain(&f);
    for (CUdevice device = -1; device <= 0; device++) {
        left = total = 256 * MIB;
        gs_core_bound(f.core, device, &left, &total);
        cr_assert(left == LIMIT - 16 * MIB && total == LIMIT);
        left = 2 * MIB;
        gs_core_bound(f.core, device, &left, &total);
        cr_assert_eq(left, 2 * MIB);
    }
    left = total = 256 * MIB;
    gs_core_bound(f.core, GS_NO_DEVICE, &left, &total);
    cr_assert(left == LIMIT && total == LIMIT);
    must_alloc(&f, 48 * MIB);
    gs_core_bound(f.core, 0, &left, &total);
    cr_assert(left == 0 && total == LIMIT);
}

/* What is kept gives way to it. */
Test(limit, a_block_may_have_all_of_it, .timeout = 60)
{
    start(LIMIT, 0);
    MUST(gs_core_free(f.core, must_alloc(&f, 512)));
    fixture_drain(&f);
    cr_assert_gt(fixture_arena(&f).reserved, 0);
    must_alloc(&f, LIMIT);
}

/* ---- Threads ------------------------------------------------------------------------------- */

static bool over;      /* atomic */
static size_t refused; /* atomic */

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
}
