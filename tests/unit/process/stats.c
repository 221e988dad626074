/* Statistics count exactly what happened, once. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/regcache/internal.h"
#include "core/process/stats.h"
#include "tests/children.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

FIXTURE_SUITE(stats)

static struct gs_stats stats_of(void)
{
    struct gs_stats stats;

    gs_stats_read(f.core, 0, &stats);
    return stats;
}

static uint64_t timed(const struct gs_stats *stats)
{
    uint64_t calls = 0;

    for (unsigned i = 0; i < GS_TOOK; i++)
        calls += stats->took[i];
    return calls;
}

/* With the context go its arenas, and what they counted stays. */
Test(stats, outlive_a_context)
{
    struct gs_stats stats;
    CUcontext context;
    CUdeviceptr a;

    fixture_start(&f);
    context = fixture_context_new();
    MUST(gs_core_alloc(f.core, 4 * MIB, &a));
    fixture_context_end(&f, context);
    stats = stats_of();
    cr_assert_eq(stats.counts.misses, 1);
    cr_assert_eq(stats.counts.trims, 1);
    cr_assert_eq(timed(&stats), 1);
    cr_assert_eq(stats.reserved, 0);
    cr_assert_eq(stats.live, 0);
    MUST(cuCtxSetCurrent(f.context));
}

static void *says_at_exit(void *arg)
{
    gs_stats_log(arg);
    return NULL;
}

/* A signal's handler may end the process while its thread has any of the locks. */
Test(stats, are_said_at_the_end_without_waiting_for_a_lock)
{
    pthread_t thread;

    fixture_start(&f);
    gs_lock_take(&f.core->lock);
    gs_lock_take(&f.core->regcache->lock);
    MUST(pthread_create(&thread, NULL, says_at_exit, f.core));
    MUST(pthread_join(thread, NULL));
    gs_lock_release(&f.core->regcache->lock);
    gs_lock_release(&f.core->lock);
}

static unsigned lines, of_others;

static void count_lines(enum gs_log_level level, const void *place, const char *text)
{
    lines += strstr(text, " allocations from memory that was there") != NULL;
    of_others += strstr(text, "were asked for memory") != NULL;
}

/* Of what nothing happened to nothing is said. */
Test(stats, are_said_of_each_device_that_was_used)
{
    f.options.log.line = count_lines;
    fixture_start(&f);
    gs_stats_log(f.core);
    cr_assert_eq(lines + of_others, 0);
    must_alloc(&f, MIB);
    f.core->neighbour.counts.answered = 1;
    gs_stats_log(f.core);
    cr_assert(lines == 1 && of_others == 1);
    f.core->neighbour.counts.answered = 0;
    f.core->neighbour.counts.asked = 1;
    gs_stats_log(f.core);
    cr_assert(lines == 2 && of_others == 2);
    cr_assert(gs_lock_try(&f.core->lock));
    gs_lock_release(&f.core->lock);
}

static struct {
    pid_t thread; /* atomic */
    bool done;    /* atomic */
    bool told;
} other;

static void *tells(void *arg)
{
    struct gs_figures figures;

    __atomic_store_n(&other.thread, gettid(), __ATOMIC_SEQ_CST);
    other.told = gs_stats_tell(arg, 1, &figures);
    __atomic_store_n(&other.done, true, __ATOMIC_SEQ_CST);
    return NULL;
}

/* It is with the lock that a device has no number for a moment (gs_device_probe). */
Test(stats, of_a_device_that_is_being_tried_are_told_afterwards)
{
    pthread_t thread;
    CUcontext second;
    pid_t its;

    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_start(&f);
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxSetCurrent(second));
    MUST(gs_core_free(f.core, must_alloc(&f, MIB)));
    gs_lock_take(&f.core->lock);
    f.core->device[1].ordinal = 0;
    MUST(pthread_create(&thread, NULL, tells, f.core));
    while (!__atomic_load_n(&other.done, __ATOMIC_SEQ_CST) &&
           (!(its = __atomic_load_n(&other.thread, __ATOMIC_SEQ_CST)) ||
            thread_state(getpid(), its) != 'S'))
        sched_yield();
    f.core->device[1].ordinal = 1;
    gs_lock_release(&f.core->lock);
    MUST(pthread_join(thread, NULL));
    cr_assert(other.told);
    MUST(cuCtxSetCurrent(f.context));
    gs_core_destroy(f.core);
    f.core = NULL;
    MUST(cuDevicePrimaryCtxRelease(1));
}
