/* Statistics count exactly what happened, once. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <pthread.h>

#include "core/process/context.h"
#include "core/regcache/internal.h"
#include "core/process/stats.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

static struct gs_stats stats_of(struct fixture *f)
{
    struct gs_stats stats;

    gs_stats_read(f->core, 0, &stats);
    return stats;
}

static uint64_t timed(const struct gs_stats *stats)
{
    uint64_t calls = 0;

    for (unsigned i = 0; i < GS_TOOK; i++)
        calls += stats->counts.took[i];
    return calls;
}

Test(stats, count_each_call_and_byte_once)
{
    struct gs_stats stats;
    struct fixture f;
    CUdeviceptr a, b;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    fixture_options(&f);
    f.options.epoch_bytes = 0; /* one event for every free */
    fixture_start(&f);
    MUST(gs_core_alloc(f.core, 32 * MIB, &a));                   /* a piece is made */
    MUST(gs_core_alloc_async(f.core, 32 * MIB, NULL, NULL, &b)); /* another one */
    stats = stats_of(&f);
    cr_assert_eq(stats.counts.misses, 2);
    cr_assert_eq(stats.counts.hits, 0);
    cr_assert_eq(stats.counts.grown, 2);
    cr_assert_eq(timed(&stats), 2);
    cr_assert_eq(stats.reserved, 64 * MIB);
    cr_assert_eq(stats.live, 64 * MIB);
    cr_assert_eq(stats.cached + stats.retired + stats.ordered + stats.limbo, 0);
    MUST(gs_core_free(f.core, a));
    stats = stats_of(&f);
    cr_assert_eq(stats.counts.events, 1);
    cr_assert_eq(stats.live, 32 * MIB);
    cr_assert_eq(stats.retired + stats.cached, 32 * MIB);
    gs_core_cached(f.core); /* takes back what has passed: the GPU is idle */
    cr_assert_eq(stats_of(&f).cached, 32 * MIB);
    MUST(gs_core_alloc(f.core, 32 * MIB, &a)); /* from there */
    stats = stats_of(&f);
    cr_assert_eq(stats.counts.hits, 1);
    cr_assert_eq(stats.counts.misses, 2);
    cr_assert_eq(timed(&stats), 2, "what is there at once is not timed");
    cr_assert_eq(stats.counts.live_peak, 64 * MIB);
    cr_assert_eq(stats.counts.reserved_peak, 64 * MIB);
    MUST(gs_core_free_async(f.core, b, NULL));
    stats = stats_of(&f);
    cr_assert_eq(stats.ordered, 32 * MIB);
    cr_assert_eq(stats.live, 32 * MIB);
    MUST(gs_core_free(f.core, a));
    cr_assert_eq(stats_of(&f).counts.trims, 0);
    fixture_end(&f);
}

Test(stats, say_how_long_calls_took)
{
    struct gs_stats stats;
    unsigned slow = 0;
    struct fixture f;
    CUdeviceptr a;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    fixture_options(&f);
    fixture_start(&f);
    MUST(gs_core_alloc(f.core, 32 * MIB, &a)); /* the device was tried before: not this one */
    cr_assert_eq(softcuda_delay("cuMemCreate", 40000), 0);
    MUST(gs_core_alloc(f.core, 32 * MIB, &a));
    softcuda_reset();
    stats = stats_of(&f);
    cr_assert_eq(timed(&stats), 2);
    for (unsigned i = 16; i < GS_TOOK; i++) /* 32 ms and more */
        slow += (unsigned)stats.counts.took[i];
    cr_assert_geq(slow, 1);
    fixture_end(&f);
}

/* With the context go its arenas, and what they counted stays. */
Test(stats, outlive_a_context)
{
    struct gs_context *detached;
    struct gs_stats stats;
    struct fixture f;
    CUcontext context;
    CUdeviceptr a;

    fixture_options(&f);
    fixture_start(&f);
    context = fixture_context_new();
    MUST(gs_core_alloc(f.core, 4 * MIB, &a));
    detached = gs_core_context_detach(f.core, context);
    MUST(cuCtxDestroy(context));
    gs_core_context_gone(f.core, context, detached);
    stats = stats_of(&f);
    cr_assert_eq(stats.counts.misses, 1);
    cr_assert_eq(stats.counts.trims, 1);
    cr_assert_eq(timed(&stats), 1);
    cr_assert_eq(stats.reserved, 0);
    cr_assert_eq(stats.live, 0);
    MUST(cuCtxSetCurrent(f.context));
    fixture_end(&f);
}

static void *says_at_exit(void *arg)
{
    gs_stats_log(arg);
    return NULL;
}

/* A signal's handler may end the process while its thread has any of the locks. */
Test(stats, are_said_at_the_end_without_waiting_for_a_lock)
{
    struct fixture f;
    pthread_t thread;

    fixture_options(&f);
    fixture_start(&f);
    gs_lock_take(&f.core->lock);
    gs_lock_take(&f.core->regcache->lock);
    MUST(pthread_create(&thread, NULL, says_at_exit, f.core));
    MUST(pthread_join(thread, NULL));
    gs_lock_release(&f.core->regcache->lock);
    gs_lock_release(&f.core->lock);
    fixture_end(&f);
}
