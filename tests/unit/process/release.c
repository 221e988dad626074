/* What an arena holds too much of goes back to the driver in the background
 * (core/process/trimmer.h). */
#include <criterion/criterion.h>

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

FIXTURE_SUITE(release)

static void *give_back(void *core)
{
    struct gs_core *of = core;

    gs_device_trim(of, &of->device[0], NULL, SIZE_MAX);
    return NULL;
}

/* What is on its way to the driver, the thread that gives idle memory back may have it, is as good
 * as free. */
Test(release, what_another_thread_gives_back_is_waited_for)
{
    CUdeviceptr block;
    pthread_t thread;

    setenv("SOFTCUDA_MEMORY", "256M", 1);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 200 * MIB)));
    fixture_drain(&f);
    MUST(softcuda_delay("cuMemUnmap", 2000)); /* of each of its pieces */
    MUST(pthread_create(&thread, NULL, give_back, f.core));
    for (int i = 0; i < 10000 && softcuda_calls("cuMemUnmap") == 0; i++)
        usleep(1000); /* until it is at it */
    MUST(gs_core_alloc(f.core, 220 * MIB, &block));
    MUST(pthread_join(thread, NULL));
}

/* 400 MiB live and 200 in four pieces free, of an arena that had `lately` live at most, and a
 * thread that trims. */
static struct gs_arena *make_spare(size_t lately)
{
    CUdeviceptr block[4];
    struct gs_arena *arena;

    fixture_options(&f);
    f.options.decay_ns = 3600 * 1000 * MS;
    fixture_start(&f);
    arena = fixture_home(&f);
    must_alloc(&f, 400 * MIB);
    for (int i = 0; i < 4; i++)
        block[i] = must_alloc(&f, 50 * MIB);
    for (int i = 0; i < 4; i++)
        MUST(gs_core_free(f.core, block[i]));
    fixture_drain(&f);
    gs_latch_take(&arena->lock);
    arena->kept.live_peak = arena->kept.live_high = lately; /* the thread's first look may be now */
    gs_latch_release(&arena->lock);
    return arena;
}

static void trim(void)
{
    cr_assert(gs_trimmer_wake(f.core));
    while (__atomic_load_n(&f.core->trimmer.surplus, __ATOMIC_SEQ_CST))
        usleep(1000);
    while (__atomic_load_n(&f.core->trimmer.busy, __ATOMIC_SEQ_CST))
        usleep(1000);
}

Test(release, what_an_arena_has_beyond_its_target_goes_back_in_the_background, .timeout = 60)
{
    struct gs_arena *arena;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    arena = make_spare(400 * MIB);
    cr_assert_geq(arena->reserved, 600 * MIB);
    trim();
    cr_assert_gt(fixture_counts(&f).later, 0);
    cr_assert_leq(arena->reserved, 400 * MIB / 100 * 116 + 50 * MIB,
                  "a piece that is smaller stays");
    cr_assert_geq(arena->reserved, 400 * MIB);
}

Test(release, what_was_live_lately_is_kept, .timeout = 60)
{
    struct gs_arena *arena;
    size_t reserved;

    setenv("SOFTCUDA_MEMORY", "16G", 1);
    arena = make_spare(600 * MIB);
    reserved = arena->reserved;
    trim();
    cr_assert_eq(arena->reserved, reserved);
}

/* Where free memory does not serve a block, an arena that grows has more than it may. */
Test(release, what_is_beyond_the_target_when_an_arena_has_grown_goes_back, .timeout = 60)
{
    CUdeviceptr block[4];
    struct gs_arena *arena;
    size_t most;

    setenv("SOFTCUDA_MEMORY", "4G", 1); /* of pieces of 16 MiB */
    f.options.decay_ns = 3600 * 1000 * MS;
    fixture_start(&f);
    arena = fixture_home(&f);
    must_alloc(&f, 400 * MIB);
    for (int i = 0; i < 4; i++) {
        block[i] = must_alloc(&f, 64 * MIB);
        must_alloc(&f, 16 * MIB);
    }
    for (int i = 0; i < 4; i++)
        MUST(gs_core_free(f.core, block[i]));
    fixture_drain(&f);
    gs_latch_take(&arena->lock);
    arena->kept.live_peak = arena->kept.live_high = 0;
    gs_latch_release(&arena->lock);
    must_alloc(&f, 100 * MIB);
    most = 564 * MIB / 100 * 116 + 16 * MIB;
    for (int i = 0; i < 10000 && fixture_arena(&f).reserved > most; i++)
        usleep(1000);
    cr_assert_leq(fixture_arena(&f).reserved, most);
}

static char refusal[1024];

static void keep_refusal(enum gs_log_level level, const void *place, const char *text)
{
    if (strstr(text, "are outside of that"))
        snprintf(refusal, sizeof refusal, "%s", text);
}

/* MiB of the device that the library has not, as a refusal says it. */
static unsigned long long refuse(void)
{
    const char *at;

    refusal[0] = 0;
    f.core->figures.shortage_ns = 0; /* else it says so once a second */
    gs_core_refused(f.core, 0, 4096 * MIB);
    at = strstr(refusal, " MiB are outside");
    cr_assert(at, "%s", refusal);
    while (at > refusal && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return strtoull(at, NULL, 10);
}

Test(release, what_is_on_its_way_to_the_driver_is_not_outside)
{
    struct gs_arena *arena;
    struct gs_piece *pieces;
    unsigned long long outside;

    f.options.log.line = keep_refusal;
    fixture_start(&f);
    arena = fixture_home(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 100 * MIB)));
    fixture_drain(&f);
    outside = refuse();
    gs_latch_take(&arena->lock);
    pieces = gs_arena_detach_locked(arena, SIZE_MAX, SIZE_MAX);
    gs_latch_release(&arena->lock);
    cr_assert_eq(refuse(), outside, "%s", refusal);
    cr_assert(strstr(refusal, ", 100 on their way to the driver"), "%s", refusal);
    cr_assert_geq(gs_pieces_unmap(f.core, pieces), 100 * MIB);
    cr_assert_eq(refuse(), outside, "%s", refusal);
}

/* It may have ended when its turn comes. */
Test(release, what_is_beyond_the_target_stays_in_a_context_that_may_be_about_to_go)
{
    struct gs_context *detached;
    struct gs_arena *arena;
    size_t reserved;

    fixture_start(&f);
    arena = fixture_home(&f);
    must_alloc(&f, 100 * MIB);
    MUST(gs_core_free(f.core, must_alloc(&f, 400 * MIB)));
    fixture_drain(&f);
    arena->kept.live_peak = arena->kept.live_high = 0;
    reserved = arena->reserved;
    detached = gs_core_context_detach(f.core, f.context);
    f.core->trimmer.surplus = true;
    gs_trimmer_surplus(f.core);
    cr_assert_eq(arena->reserved, reserved);
    gs_core_context_stays(f.core, f.context, detached);
    f.core->trimmer.surplus = true;
    gs_trimmer_surplus(f.core);
    cr_assert_lt(arena->reserved, reserved);
}

/* What has left an arena, and is not the driver's yet, is in neither count. */
Test(release, who_counts_what_is_free_knows_that_a_piece_went_meanwhile)
{
    struct gs_arena *arena;
    struct gs_piece *pieces;
    uint64_t begun;

    fixture_start(&f);
    arena = fixture_home(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 4 * MIB)));
    fixture_drain(&f);
    begun = gs_core_begin_count(f.core);
    cr_assert(gs_core_count_is_right(f.core, begun));
    gs_latch_take(&arena->lock);
    pieces = gs_arena_detach_locked(arena, SIZE_MAX, SIZE_MAX);
    gs_latch_release(&arena->lock);
    cr_assert_not(gs_core_count_is_right(f.core, begun));
    begun = gs_core_begin_count(f.core);
    gs_pieces_unmap(f.core, pieces);
    cr_assert_not(gs_core_count_is_right(f.core, begun));
    begun = gs_core_begin_count(f.core);
    cr_assert(gs_core_count_is_right(f.core, begun));
    gs_change_is(f.core, true);
    begun++;
    cr_assert_not(gs_core_count_is_right(f.core, begun), "one is on its way");
    gs_change_is(f.core, false);
    cr_assert(gs_core_count_is_right(f.core, begun));
}
