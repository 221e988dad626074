/*
 * How long is waited at most, as core/README.md promises: by a clock that goes on only while
 * somebody looks at it or rests. Whoever waits for what never comes takes no longer here than to
 * count.
 */
#include <criterion/criterion.h>

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/share/cluster.h"
#include "tests/driver/softcuda.h"
#include "tests/system.h"
#include "tests/unit/fixture.h"

#define LOOK_NS 1000 /* that a look at the clock takes */
#define SECOND  GS_NS_PER_S

static uint64_t clock_ns = 3600 * SECOND;

uint64_t __wrap_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void)
{
    return clock_ns += LOOK_NS;
}

void __wrap_gs_rest_ns(uint64_t ns);
void __wrap_gs_rest_ns(uint64_t ns)
{
    clock_ns += ns;
}

FIXTURE_SUITE(waits)

static uint64_t began_ns;

static void begin(void)
{
    began_ns = clock_ns;
}

/* Since then between so many microseconds. */
static void must_take(uint64_t least_us, uint64_t most_us)
{
    uint64_t took_us = (clock_ns - began_ns) / 1000;

    cr_assert_geq(took_us, least_us, "it takes %llu us", (unsigned long long)took_us);
    cr_assert_leq(took_us, most_us, "it takes %llu us", (unsigned long long)took_us);
}

/* The GPU stands still before a block's free. */
static void free_behind_work(CUdeviceptr block)
{
    softcuda_hold(1);
    fixture_spin_fill(&f, f.stream, block, 1, 1, 0);
    MUST(gs_core_free(f.core, block));
}

static void go_on(void)
{
    softcuda_hold(0);
    MUST(cuStreamSynchronize(f.stream));
}

/* ---- A GPU that is behind -------------------------------------------------------------------- */

Test(waits, a_little_behind_an_allocation_waits_a_tenth_of_a_millisecond)
{
    CUdeviceptr block;

    f.options.retiring_percent = 15;
    fixture_start(&f);
    must_alloc(&f, 600 * MIB);
    block = must_alloc(&f, 100 * MIB);
    free_behind_work(block);
    begin();
    must_alloc(&f, 100 * MIB);
    must_take(100, 300);
    go_on();
}

Test(waits, far_behind_it_waits_200_milliseconds)
{
    CUdeviceptr block;

    fixture_start(&f);
    block = must_alloc(&f, 128 * MIB);
    free_behind_work(block);
    begin();
    must_alloc(&f, 128 * MIB);
    must_take(200000, 210000);
    go_on();
}

/* ---- A full GPU ------------------------------------------------------------------------------ */

static void start_small(void)
{
    setenv("SOFTCUDA_MEMORY", "256M", 1);
    f.options.retiring_percent = 0;
    fixture_start(&f);
}

static void must_be_refused(size_t size)
{
    CUdeviceptr block;

    begin();
    cr_assert_eq(gs_core_alloc(f.core, size, &block), GS_NO_MEMORY);
}

Test(waits, what_a_stream_freed_a_full_gpu_waits_for_10_s)
{
    CUdeviceptr block;

    start_small();
    MUST(gs_core_alloc_async(f.core, 200 * MIB, NULL, f.stream, &block));
    softcuda_hold(1);
    fixture_spin_fill(&f, f.stream, block, 1, 1, 0);
    MUST(gs_core_free_async(f.core, block, f.stream));
    must_be_refused(220 * MIB);
    must_take(10 * 1000000, 21 * 1000000);
    go_on();
}

/* Each time a second, and three times. */
Test(waits, what_another_thread_gives_back_is_waited_for_a_second)
{
    start_small();
    must_alloc(&f, 200 * MIB);
    f.core->shared.detached++;
    must_be_refused(100 * MIB);
    must_take(1000000, 5 * 1000000);
    f.core->shared.detached--;
}

Test(waits, who_counts_what_is_free_waits_for_a_piece_a_tenth_of_a_second)
{
    fixture_start(&f);
    f.core->releases.begun++;
    begin();
    gs_core_begin_count(f.core);
    must_take(100000, 110000);
    f.core->releases.begun--;
}

Test(waits, idle_memory_goes_a_millisecond_after_who_grows_at_most)
{
    struct gs_arena *arena;
    struct gs_piece *pieces;

    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 2 * MIB)));
    fixture_drain(&f);
    arena = fixture_home(&f);
    gs_latch_take(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    pieces = gs_arena_detach_locked(arena, 1, SIZE_MAX);
    gs_latch_release(&arena->lock);
    cr_assert(pieces && !pieces->after);
    f.core->releases.growths_begun++;
    gs_releasing_goes_after(true);
    begin();
    gs_pieces_unmap(f.core, pieces);
    must_take(2000, 4000); /* unmapped, and released */
    gs_releasing_goes_after(false);
    f.core->releases.growths_begun--;
}

/* A call of the driver's that wants room. */
Test(waits, for_the_drivers_own_need_gpu_work_is_waited_for_a_second)
{
    CUdeviceptr block;
    unsigned step = 0;

    start_small();
    block = must_alloc(&f, 200 * MIB);
    free_behind_work(block);
    begin();
    while (gs_core_make_room(f.core, 0, 0, &step))
        continue;
    must_take(1000000, 2 * 1000000);
    go_on();
}

static unsigned said;

static void count_refusals(enum gs_log_level level, const void *place, const char *text)
{
    said += level <= GS_LOG_WARNING;
}

Test(waits, where_memory_is_is_said_once_a_second)
{
    f.options.log.line = count_refusals;
    fixture_start(&f);
    gs_core_refused(f.core, 0, MIB);
    gs_core_refused(f.core, 0, MIB);
    cr_assert_eq(said, 1);
    clock_ns += 1100 * MS;
    gs_core_refused(f.core, 0, MIB);
    cr_assert_eq(said, 2);
}

/* ---- Contexts -------------------------------------------------------------------------------- */

Test(waits, a_context_that_may_be_ending_is_waited_for_a_second)
{
    struct gs_context *detached;
    CUdeviceptr block;

    fixture_start(&f);
    must_alloc(&f, MIB);
    detached = gs_core_context_detach(f.core, f.context);
    begin();
    cr_assert_eq(gs_core_alloc(f.core, MIB, &block), GS_OK);
    must_take(1000000, 1100000);
    MUST(gs_core_free(f.core, block));
    gs_core_context_stays(f.core, f.context, detached);
}

Test(waits, who_is_at_a_primary_context_is_waited_for_a_second)
{
    fixture_start(&f);
    f.core->primary_turn[0] = &f;
    begin();
    cr_assert_not(gs_core_primary_turn(f.core, 0));
    must_take(1000000, 1100000);
    gs_core_primary_turn_end(f.core, 0);
}

/* ---- Other processes ------------------------------------------------------------------------- */

/* It has given a moment ago, and is asked again: for nothing, on a device that it has. */
static void answer_again(uint64_t pause_ns)
{
    struct gs_neighbour *neighbour = &f.core->neighbour;
    struct gs_pressure *pressure = &f.core->share->asked.pressure;

    neighbour->gave_grown = UINT64_MAX;
    neighbour->pause_ns = pause_ns;
    memcpy(pressure->uuid, f.core->device[0].uuid, sizeof pressure->uuid);
    pressure->wanted = 0;
    pressure->state = GS_ASKED;
    begin();
    neighbour->gave_ns = began_ns;
    gs_neighbour_answer(f.core);
    cr_assert_eq(pressure->state, GS_ASKED_DONE);
}

Test(waits, who_is_asked_again_rests_for_20_to_400_milliseconds)
{
    fixture_start(&f);
    must_alloc(&f, MIB);
    answer_again(0);
    must_take(0, 10000);
    answer_again(10 * MS);
    must_take(20000, 30000);
    answer_again(300 * MS);
    must_take(400000, 410000);
    f.core->neighbour.counts.asked++;
    answer_again(300 * MS);
    must_take(20000, 30000);
}

Test(waits, who_asked_in_vain_asks_again_after_a_tenth_of_a_second)
{
    struct gs_neighbour *neighbour;

    fixture_neighbours(&f);
    fixture_start(&f);
    neighbour = &f.core->neighbour;
    must_alloc(&f, MIB);
    for (unsigned i = 0; i < 2; i++)
        cr_assert_not(gs_neighbour_ask(f.core, &f.core->device[0], f.context, MIB));
    cr_assert_eq(neighbour->counts.asked, 1);
    clock_ns += 110 * MS;
    cr_assert_not(gs_neighbour_ask(f.core, &f.core->device[0], f.context, MIB));
    cr_assert_eq(neighbour->counts.asked, 2);
}

/* Twice as late each time, and who lost it with others half as late again. */
Test(waits, a_broker_that_is_not_there_is_looked_for_once_in_96_seconds)
{
    struct gs_export offered = {.freed_ns = 0};
    struct gs_share *share;
    uint64_t due = 0, longest = 0;

    fixture_start(&f);
    share = f.core->share;
    share->exporter.offered = &offered;
    for (unsigned i = 0; i < 20; i++) {
        begin();
        due = gs_broker_look(share, began_ns);
        longest = due - began_ns > longest ? due - began_ns : longest;
        clock_ns = due;
    }
    cr_assert(longest >= 64 * SECOND && longest <= 97 * SECOND, "%llu s",
              (unsigned long long)(longest / SECOND));
    share->exporter.offered = NULL;
}

/* ---- Ends, and sleep ------------------------------------------------------------------------- */

Test(waits, an_exit_waits_half_a_second_for_the_thread_that_gives_back)
{
    fixture_start(&f);
    f.core->trimmer.busy = true;
    begin();
    gs_trimmer_at_exit(f.core);
    must_take(500000, 510000);
    f.core->trimmer.busy = false;
}

/* Who wakes on a full GPU rests longer and longer, and is not late for that. */
Test(waits, a_wake_that_finds_no_room_ends_in_its_time)
{
    struct gs_sleep_why why;
    CUdeviceptr block, other;
    size_t left, total;

    start_small();
    block = must_alloc(&f, 100 * MIB);
    cr_assert(gs_core_sleep(f.core, NULL, NULL, clock_ns + SECOND, &why), "%s", why.text);
    MUST(cuMemGetInfo(&left, &total));
    MUST(cuMemAlloc(&other, left - 50 * MIB));
    begin();
    cr_assert_not(gs_core_wake(f.core, clock_ns + 3 * SECOND, &why));
    must_take(3 * 1000000, 3 * 1000000 + 170000);
    MUST(cuMemFree(other));
    cr_assert(gs_core_wake(f.core, clock_ns + SECOND, &why), "%s", why.text);
    MUST(gs_core_free(f.core, block));
}
