/* What an arena holds too much of goes back to the driver in the background (core/process/release.h). */
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

static void *give_back(void *core)
{
    struct gs_core *of = core;

    gs_device_purge(of, &of->device[0], false);
    return NULL;
}

/* What is on its way to the driver, the thread that gives idle memory back may have it, is as good
 * as free. */
Test(release, what_another_thread_gives_back_is_waited_for)
{
    struct fixture f;
    CUdeviceptr block;
    pthread_t thread;

    setenv("SOFTCUDA_MEMORY", "256M", 1);
    fixture_options(&f);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 200 * MIB)));
    fixture_drain(&f);
    MUST(softcuda_delay("cuMemUnmap", 200000));
    MUST(pthread_create(&thread, NULL, give_back, f.core));
    for (int i = 0; i < 10000 && softcuda_calls("cuMemUnmap") == 0; i++)
        usleep(1000); /* until it is at it */
    MUST(gs_core_alloc(f.core, 220 * MIB, &block));
    MUST(pthread_join(thread, NULL));
    fixture_end(&f);
}

/* 400 MiB live and 200 in so many chunks free, in an arena that held `peak` at some time; giving one
 * back takes a while. */
static struct gs_arena *make_spare(struct fixture *f, int chunks, size_t peak, unsigned back_us)
{
    struct gs_context *context;
    CUdeviceptr block[2];

    fixture_options(f);
    f->options.purge_ns = 3600 * 1000 * MS;
    fixture_start(f);
    MUST(gs_context_current(f->core, &context));
    must_alloc(f, 400 * MIB);
    for (int i = 0; i < chunks; i++)
        block[i] = must_alloc(f, 200 * MIB / (size_t)chunks);
    for (int i = 0; i < chunks; i++)
        MUST(gs_core_free(f->core, block[i]));
    fixture_drain(f);
    gs_latch_take(&context->arenas[0]->lock);
    context->arenas[0]->counts.reserved_peak = peak;
    gs_latch_release(&context->arenas[0]->lock);
    MUST(softcuda_delay("cuMemUnmap", back_us));
    return context->arenas[0];
}

/* What is too much where an arena grows is given back by another thread, and whoever needs it or
 * asks for what is free has it. */
Test(release, what_makes_room_goes_back_in_the_background)
{
    struct fixture f;
    struct gs_arena *arena;
    size_t free_bytes, total, before;

    setenv("SOFTCUDA_MEMORY", "900M", 1);
    arena = make_spare(&f, 2, 800 * MIB, 50000);
    MUST(cuMemGetInfo(&before, &total));
    must_alloc(&f, 150 * MIB);
    cr_assert_eq(fixture_counts(&f).later, 2);
    cr_assert_eq(arena->reserved, 550 * MIB);
    gs_core_finish_releases(f.core);
    MUST(cuMemGetInfo(&free_bytes, &total));
    cr_assert_eq(free_bytes, before + 200 * MIB - 150 * MIB);
    fixture_end(&f);
}

Test(release, what_goes_back_in_the_background_is_there_for_who_needs_it)
{
    struct fixture f;

    setenv("SOFTCUDA_MEMORY", "900M", 1);
    make_spare(&f, 2, 1200 * MIB, 50000);
    must_alloc(&f, 150 * MIB);
    cr_assert_eq(fixture_counts(&f).later, 2);
    must_alloc(&f, 300 * MIB); /* 750 are in use or on their way */
    fixture_end(&f);
}

/* An arena does not hold more than ever because of it, but for a little. */
Test(release, what_goes_back_in_the_background_is_given_back_at_once_where_it_is_too_much)
{
    struct fixture f;
    struct gs_arena *arena;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    arena = make_spare(&f, 2, 800 * MIB, 50000);
    must_alloc(&f, 150 * MIB);
    cr_assert_eq(fixture_counts(&f).later, 2);
    must_alloc(&f, 80 * MIB); /* and 750 */
    cr_assert_leq(__atomic_load_n(&f.core->releases.bytes, __ATOMIC_SEQ_CST), 100 * MIB);
    cr_assert_eq(arena->reserved, 630 * MIB);
    fixture_end(&f);
}

/* A third of what it holds, say, which the thread is at: it is waited for, 20 ms at most. */
Test(release, what_the_background_is_at_is_waited_for_where_it_is_too_much)
{
    struct fixture f;
    uint64_t began;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    make_spare(&f, 1, 800 * MIB, 10000);
    must_alloc(&f, 210 * MIB);
    cr_assert_eq(fixture_counts(&f).later, 1);
    while (__atomic_load_n(&f.core->releases.taken, __ATOMIC_SEQ_CST) == 0 &&
           __atomic_load_n(&f.core->releases.bytes, __ATOMIC_SEQ_CST) > 0)
        continue;
    began = gs_now_ns();
    must_alloc(&f, 20 * MIB); /* and 810 */
    cr_assert(__atomic_load_n(&f.core->releases.bytes, __ATOMIC_SEQ_CST) == 0 ||
              gs_now_ns() - began >= 20 * MS);
    fixture_end(&f);
}

Test(release, what_makes_room_goes_back_at_once_where_the_arena_never_held_as_much)
{
    struct fixture f;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    make_spare(&f, 2, 600 * MIB, 50000);
    must_alloc(&f, 150 * MIB);
    cr_assert_leq(__atomic_load_n(&f.core->releases.bytes, __ATOMIC_SEQ_CST), 100 * MIB);
    cr_assert_leq(fixture_counts(&f).later, 1);
    cr_assert_eq(fixture_counts(&f).trims, 2);
    fixture_end(&f);
}
