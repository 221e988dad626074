/* A device that is full: what is waited for before an allocation fails, and what is given back. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/api/core.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

#define LOOKS 50 /* at the GPU's work, of whoever waits for it */

FIXTURE_SUITE(full)

static bool over; /* atomic: nobody waits any more */

/* Lets the GPU go on as soon as somebody has looked again and again whether it has. */
static void *go_on_when_waited_for(void *arg)
{
    unsigned long before = softcuda_calls("cuEventQuery");

    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST) &&
           softcuda_calls("cuEventQuery") < before + LOOKS)
        usleep(1000);
    softcuda_hold(0);
    return NULL;
}

/* As the driver's own free of it would have waited for its work. */
Test(full, what_another_context_has_freed_behind_its_work_is_waited_for, .timeout = 60)
{
    CUdeviceptr theirs, ours = 0;
    CUcontext second;
    CUstream stream;
    pthread_t thread;
    gs_status status;

    setenv("SOFTCUDA_MEMORY", "96M", 1);
    fixture_start(&f);
    second = fixture_context_new();
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_alloc(f.core, 64 * MIB, &theirs));
    softcuda_hold(1);
    MUST(cuMemsetD8Async(theirs, 1, 64 * MIB, stream));
    MUST(gs_core_free(f.core, theirs));
    MUST(cuCtxSetCurrent(f.context));
    cr_assert_eq(pthread_create(&thread, NULL, go_on_when_waited_for, NULL), 0);
    status = gs_core_alloc(f.core, 64 * MIB, &ours);
    __atomic_store_n(&over, true, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    cr_assert_eq(status, GS_OK, "it gave %d", (int)status);
    MUST(gs_core_free(f.core, ours));
    MUST(cuCtxSetCurrent(second));
    MUST(cuStreamDestroy(stream));
    MUST(cuCtxSetCurrent(f.context));
    fixture_end(&f);
    MUST(cuCtxDestroy(second));
}

/* ---- Of the default memory pool ------------------------------------------------------------ */

static struct gs_mempool_figures figures(void)
{
    struct gs_mempool_figures now;

    gs_core_mempool_figures(f.core, 0, &now);
    return now;
}

static void use_async(CUstream stream, size_t size, int count)
{
    CUdeviceptr block[16];

    for (int i = 0; i < count; i++)
        MUST(gs_core_alloc_async(f.core, size, NULL, stream, &block[i]));
    for (int i = 0; i < count; i++)
        MUST(gs_core_free_async(f.core, block[i], stream));
    MUST(cuStreamSynchronize(stream));
}

Test(full, a_trim_keeps_as_much_as_it_is_told_and_no_more, .timeout = 60)
{
    CUdeviceptr live;

    setenv("SOFTCUDA_MEMORY", "512M", 1); /* of pieces of 2 MiB */
    fixture_start(&f);
    use_async(f.stream, 16 * MIB, 8);
    cr_assert_eq(figures().reserved, 128 * MIB);
    gs_core_mempool_trim(f.core, 0, 96 * MIB);
    cr_assert_eq(figures().reserved, 96 * MIB);
    gs_core_mempool_trim(f.core, 0, 112 * MIB);
    cr_assert_eq(figures().reserved, 96 * MIB);
    MUST(gs_core_alloc_async(f.core, 16 * MIB, NULL, f.stream, &live));
    gs_core_mempool_trim(f.core, 0, 48 * MIB);
    cr_assert_eq(figures().reserved, 48 * MIB, "what is in use is part of it");
    gs_core_mempool_trim(f.core, 0, 0);
    cr_assert_eq(figures().reserved, 16 * MIB);
    MUST(gs_core_free_async(f.core, live, f.stream));
    MUST(cuStreamSynchronize(f.stream));
    gs_core_mempool_trim(f.core, 0, 0);
    cr_assert_eq(figures().reserved, 0);
}

/* Nobody asks meanwhile: what was used then was reserved. */
Test(full, the_most_that_was_reserved_is_no_less_than_the_most_that_was_used)
{
    CUdeviceptr plain;

    fixture_start(&f);
    use_async(f.stream, 48 * MIB, 1);
    MUST(gs_core_alloc(f.core, 48 * MIB,
                       &plain)); /* the same memory, which is not the arena's now */
    cr_assert_eq(figures().reserved, 0);
    cr_assert_eq(figures().used, 0);
    cr_assert_eq(figures().used_high, 48 * MIB);
    cr_assert_eq(figures().reserved_high, 48 * MIB);
    gs_core_mempool_reset_high(f.core, 0, false);
    gs_core_mempool_reset_high(f.core, 0, true);
    cr_assert_eq(figures().used_high, 0);
    cr_assert_eq(figures().reserved_high, 0);
    MUST(gs_core_free(f.core, plain));
}

/* ---- In the order of streams --------------------------------------------------------------- */

/* Each is free for its own stream alone, and neither stream has got there. */
Test(full, neighbours_that_were_freed_on_two_streams_are_not_one_block, .timeout = 60)
{
    enum { SIZE = 64 << 10 };
    CUdeviceptr block[6], next;
    CUstream stream[2];

    fixture_start(&f);
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 6; i++)
        MUST(gs_core_alloc_async(f.core, SIZE, NULL, stream[0], &block[i]));
    cr_assert_eq(block[1], block[0] + SIZE);
    softcuda_hold(1);
    for (int i = 0; i < 2; i++)
        MUST(cuMemsetD8Async(block[i], 1, SIZE, stream[i]));
    MUST(gs_core_free_async(f.core, block[1], stream[1]));
    MUST(
        gs_core_free_async(f.core, block[5], stream[1])); /* the last one of a stream stays apart */
    MUST(gs_core_free_async(f.core, block[0], stream[0]));
    MUST(gs_core_free_async(f.core, block[3], stream[0]));
    MUST(gs_core_alloc_async(f.core, 2 * SIZE, NULL, stream[0], &next));
    cr_assert_neq(next, block[0]);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    MUST(gs_core_free_async(f.core, next, stream[0]));
    MUST(gs_core_free_async(f.core, block[2], stream[0]));
    MUST(gs_core_free_async(f.core, block[4], stream[0]));
    for (int i = 0; i < 2; i++)
        MUST(cuStreamDestroy(stream[i]));
}
