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
