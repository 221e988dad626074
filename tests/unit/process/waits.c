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
#include "core/share/directory.h"
#include "core/share/exporter.h"
#include "core/share/importer.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/fixture.h"

#define LOOK_NS 1000 /* that a look at the clock takes */
#define SECOND  GS_NS_PER_S

static uint64_t clock_ns = 3600 * SECOND;

uint64_t __wrap_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void)
{
    return clock_ns += LOOK_NS;
}

static void (*meanwhile)(void); /* what others do while one rests */

void __wrap_gs_rest_ns(uint64_t ns);
void __wrap_gs_rest_ns(uint64_t ns)
{
    clock_ns += ns;
    if (meanwhile)
        meanwhile();
}

/* Nobody answers. */
void __wrap_gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns);
void __wrap_gs_conn_wait_any(const int *sockets, unsigned count, uint64_t ns)
{
    clock_ns += ns;
}

static __thread bool nobody_wakes; /* this thread, which waits for others */

bool __real_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns);
bool __wrap_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns);
bool __wrap_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns)
{
    if (!nobody_wakes)
        return __real_gs_cond_wait_until(cond, lock, until_ns);
    clock_ns = until_ns;
    return false;
}

FIXTURE_SUITE(waits)

static struct gs_share *start_share(void)
{
    fixture_start(&f);
    return f.core->share;
}

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
    fixture_free_behind_work(&f, block);
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
    fixture_free_behind_work(&f, block);
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
    fixture_free_behind_work(&f, block);
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
    gs_core_refused(f.core, GS_DEVICES_MAX, MIB);
    cr_assert_eq(said, 0, "of memory of the host nothing is said");
    gs_core_refused(f.core, 0, MIB);
    gs_core_refused(f.core, 0, MIB);
    cr_assert_eq(said, 1);
    clock_ns += 1100 * MS;
    gs_core_refused(f.core, 0, MIB);
    cr_assert_eq(said, 2);
    cr_assert_eq(f.core->figures.refused[0], 3, "counted each time");
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

/* It is asked for so much, on a device that it has. */
static void answer(uint64_t wanted)
{
    struct gs_pressure *pressure = &f.core->share->asked.pressure;

    memcpy(pressure->uuid, f.core->device[0].uuid, sizeof pressure->uuid);
    pressure->wanted = wanted;
    pressure->state = GS_ASKED;
    begin();
    gs_neighbour_answer(f.core);
    cr_assert_eq(pressure->state, GS_ASKED_DONE);
}

/* It has given a moment ago, and is asked again: for nothing. */
static void answer_again(uint64_t pause_ns)
{
    struct gs_neighbour *neighbour = &f.core->neighbour;

    neighbour->gave_grown = UINT64_MAX;
    neighbour->pause_ns = pause_ns;
    neighbour->gave_ns = clock_ns;
    answer(0);
}

Test(waits, who_is_asked_again_rests_for_20_to_400_milliseconds)
{
    fixture_start(&f);
    must_alloc(&f, MIB);
    answer_again(0);
    must_take(0, 10000);
    answer_again(10 * MS);
    must_take(20000, 30000);
    cr_assert_eq(f.core->neighbour.pause_ns, 20 * MS);
    answer_again(300 * MS);
    must_take(400000, 410000);
    f.core->neighbour.counts.asked++;
    answer_again(300 * MS);
    must_take(20000, 30000);
}

static void gpu_goes_on(void)
{
    meanwhile = NULL;
    go_on();
}

Test(waits, what_was_freed_just_now_is_given_where_the_gpu_is_done_with_it_in_20_milliseconds)
{
    fixture_start(&f);
    fixture_free_behind_work(&f, must_alloc(&f, 8 * MIB));
    answer(8 * MIB);
    must_take(20000, 22000);
    cr_assert_eq(f.core->neighbour.counts.given, 0);
    meanwhile = gpu_goes_on;
    answer(8 * MIB);
    must_take(1000, 10000); /* there is a moment between any two answers */
    cr_assert_eq(f.core->neighbour.counts.given, 8 * MIB);
}

static unsigned orders[GS_SLEEP_GOES_IDLE + 1];
static enum gs_sleep_verb refused;

static void is_ordered(struct gs_sleep_order *order)
{
    orders[order->verb]++;
    order->error = order->verb == refused ? EAGAIN : 0;
}

/* What it would be worth asking for, and who goes. */
Test(waits, who_does_not_use_what_it_has_sleeps_for_others)
{
    CUdeviceptr block;

    f.options.sleeps = is_ordered;
    fixture_start(&f);
    block = must_alloc(&f, 4 * MIB);
    f.core->sleep.away[0] = 5 * MIB;
    refused = GS_SLEEP_MAY_IDLE;
    answer(64 * MIB);
    cr_assert(orders[GS_SLEEP_MAY_IDLE] == 1 && orders[GS_SLEEP_GOES_IDLE] == 0);
    refused = GS_SLEEP_GOES_IDLE;
    answer(64 * MIB);
    cr_assert(orders[GS_SLEEP_MAY_IDLE] == 2 && orders[GS_SLEEP_GOES_IDLE] == 1);
    cr_assert_eq(f.core->neighbour.counts.given, 0);
    refused = GS_SLEEP_STATE;
    answer(64 * MIB);
    cr_assert_eq(f.core->neighbour.counts.given, 5 * MIB);
    MUST(gs_core_free(f.core, block));
    fixture_drain(&f);
    answer(64 * MIB);
    cr_assert(orders[GS_SLEEP_MAY_IDLE] == 3 && orders[GS_SLEEP_GOES_IDLE] == 2, "it has nothing");
    f.core->sleep.away[0] = 0;
}

/* What nobody waits for gives way to who grows. */
Test(waits, who_is_asked_gives_beside_who_grows_and_notes_that)
{
    struct gs_neighbour *neighbour;

    fixture_start(&f);
    neighbour = &f.core->neighbour;
    MUST(gs_core_free(f.core, must_alloc(&f, 8 * MIB)));
    fixture_drain(&f);
    neighbour->counts.asked = 3;
    f.core->releases.growths_begun++;
    gs_releasing_goes_after(true);
    answer(8 * MIB);
    must_take(0, 1000);
    cr_assert_eq(neighbour->counts.answered, 1);
    cr_assert_eq(neighbour->counts.given, 8 * MIB);
    cr_assert_geq(neighbour->gave_ns, began_ns);
    cr_assert_eq(neighbour->gave_grown, fixture_counts(&f).grown);
    cr_assert_eq(neighbour->gave_asked, 3);
    MUST(gs_core_free(f.core, must_alloc(&f, 8 * MIB)));
    fixture_drain(&f);
    begin();
    cr_assert_gt(fixture_release(&f, false), 0);
    must_take(2000, 100000);
    gs_releasing_goes_after(false);
    f.core->releases.growths_begun--;
}

Test(waits, who_gives_nothing_is_not_asked)
{
    fixture_neighbours(&f);
    fixture_start(&f);
    f.core->options.neighbours = false;
    gs_neighbour_join(f.core);
    cr_assert_not(f.core->neighbour.joined);
    must_alloc(&f, MIB);
    cr_assert_not(gs_neighbour_ask(f.core, &f.core->device[0], f.context, MIB));
    cr_assert_eq(f.core->neighbour.counts.asked, 0, "nor does it ask");
    f.core->options.neighbours = true;
    gs_neighbour_join(f.core);
    cr_assert(f.core->neighbour.joined);
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
    cr_assert_eq(neighbour->wanted, 256 * MIB);
    clock_ns += 110 * MS;
    cr_assert_not(gs_neighbour_ask(f.core, &f.core->device[0], f.context, MIB));
    cr_assert_eq(neighbour->counts.asked, 2);
    cr_assert_eq(neighbour->wanted, 512 * MIB, "who grows wants more");
    clock_ns += 1100 * MS;
    cr_assert_not(gs_neighbour_ask(f.core, &f.core->device[0], f.context, MIB));
    cr_assert_eq(neighbour->wanted, 256 * MIB);
}

Test(waits, others_are_asked_for_what_is_missing_and_not_for_what_is_free)
{
    size_t left, total;

    fixture_neighbours(&f);
    fixture_start(&f);
    must_alloc(&f, MIB);
    MUST(cuMemGetInfo(&left, &total));
    cr_assert_not(gs_neighbour_ask(f.core, &f.core->device[0], f.context, left + 300 * MIB));
    cr_assert_eq(f.core->neighbour.wanted, 300 * MIB);
}

/* Twice as late each time, and who lost it with others half as late again. */
Test(waits, a_broker_that_is_not_there_is_looked_for_once_in_96_seconds)
{
    struct gs_export offered = {.freed_ns = 0};
    struct gs_share *share = start_share();
    uint64_t due = 0, longest = 0;

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

/* It was started a moment ago, or takes no connection. */
Test(waits, a_broker_that_does_not_come_is_awaited_for_3_seconds)
{
    struct gs_share *share = start_share();
    uint64_t due;

    share->place.directory = open("/", O_PATH | O_CLOEXEC); /* there is none */
    begin();
    share->link.awaited_ns = began_ns;
    while ((due = gs_broker_look(share, clock_ns)) && share->link.pause_ns == 0) {
        cr_assert_leq(due - clock_ns, 2 * MS + (clock_ns - began_ns) / 8);
        clock_ns = due;
    }
    must_take(3 * 1000000, 3 * 1000000 + 400000);
    cr_assert_leq(due - clock_ns, 3 * SECOND / 2); /* and is looked for again */
    close(share->place.directory);
    share->place.directory = -1;
}

Test(waits, a_broker_that_does_not_take_a_name_is_waited_for_5_seconds)
{
    struct gs_export export = {.source.size = MIB};
    struct gs_naming naming = {.name = "w"};
    struct gs_share *share = start_share();
    uint64_t since_ns;

    share->options.timeout_ns = 60 * SECOND;
    share->options.broker = true;
    MUST(gs_share_name(share, &export, &naming, 0, &since_ns));
    begin();
    nobody_wakes = true;
    cr_assert_not(gs_names_await_kept(share, "w", since_ns));
    nobody_wakes = false;
    must_take(5 * 1000000, 5 * 1000000 + 100);
    share->options.broker = false;
    cr_assert(gs_names_end(share, gs_user_own(), "w", since_ns));
}

/* Another process, as its socket shows it, which takes nobody in. */
static struct {
    unsigned char instance[GS_INSTANCE_SIZE];
    char name[GS_SOCKET_NAME_SIZE];
    int directory, listener;
} silent;

static struct gs_share *start_silent(void)
{
    char reason[GS_REASON_SIZE];
    struct gs_share *share;

    fixture_neighbours(&f);
    share = start_share();
    gs_instance_new(getpid(), silent.instance);
    gs_instance_name(silent.instance, silent.name);
    silent.listener =
        gs_directory_put_up(&share->options, silent.name, false, &silent.directory, reason);
    cr_assert(silent.listener >= 0, "%s", reason);
    return share;
}

static void end_silent(void)
{
    gs_directory_unlink(silent.directory, silent.name);
    close(silent.directory);
    close(silent.listener);
}

static void ask_for_a_name(struct gs_share *share, uint64_t timeout_ns)
{
    struct gs_found found;

    share->options.timeout_ns = timeout_ns;
    begin();
    cr_assert_eq(gs_share_look_up(share, "w", &found), GS_LOOK_SILENT);
}

Test(waits, a_name_is_asked_about_for_a_second_and_told_of_for_200_milliseconds)
{
    struct gs_share *share = start_silent();

    ask_for_a_name(share, 60 * SECOND);
    must_take(1000000, 1006000);
    begin();
    cr_assert_eq(gs_share_unname(share, "w"), GS_LOOK_SILENT);
    must_take(200000, 206000);
    ask_for_a_name(share, 3 * MS);
    must_take(3000, 9000);
    end_silent();
}

/* By the share thread, for which others wait. */
Test(waits, who_is_lost_and_takes_no_connection_is_waited_for_20_milliseconds)
{
    struct gs_share *share = start_silent();
    struct gs_remote *lost;
    int first;

    MUST(listen(silent.listener, 0));
    first = gs_directory_connect(silent.directory, &share->options, silent.name, 0);
    cr_assert(first >= 0);
    gs_lock_take(&share->importer.lock);
    lost = gs_remote_of_locked(share, silent.instance);
    lost->astray = share->importer.astray = true;
    begin();
    gs_remotes_tick_locked(share, clock_ns);
    must_take(20000, 22000);
    lost->astray = false;
    gs_remote_reap_locked(share, lost);
    gs_lock_release(&share->importer.lock);
    close(first);
    end_silent();
}

/* ---- What a share thread looks at ------------------------------------------------------------ */

Test(waits, what_comes_while_somebody_asks_is_looked_at_a_millisecond_later)
{
    const unsigned char instance[GS_INSTANCE_SIZE] = {1};
    struct gs_share *share = start_share();
    struct gs_remote *asked;

    asked = gs_remote_of_locked(share, instance);
    asked->busy = true;
    begin();
    gs_remote_event(share, asked->id);
    cr_assert_leq(share->importer.look_ns - began_ns, MS + 100000);
    asked->busy = false;
    gs_remote_reap_locked(share, asked);
}

Test(waits, what_is_held_is_looked_at_after_a_tenth_of_a_second)
{
    struct gs_export held = {.source.size = MIB, .references = 1};
    struct gs_share *share = start_share();

    share->options.limbo_warning_blocks = 2;
    begin();
    gs_limbo_count_locked(share, &held);
    cr_assert_leq(gs_limbo_tick(share, clock_ns) - began_ns, 101 * MS);
    held.references = 0;
    gs_limbo_count_locked(share, &held);
}

/* However short or long it is to be kept. */
Test(waits, what_was_left_with_a_broker_is_looked_at_within_a_second)
{
    struct gs_export left = {.references = 1};
    struct gs_share *share = start_share();

    HASH_ADD(hh, share->exporter.exports, key, sizeof left.key, &left);
    share->options.keep_ns = 0;
    cr_assert_leq(gs_broker_tick(share, clock_ns) - clock_ns, 10 * MS);
    clock_ns += SECOND;
    share->options.keep_ns = 60 * SECOND;
    cr_assert_leq(gs_broker_tick(share, clock_ns) - clock_ns, SECOND);
    HASH_DEL(share->exporter.exports, &left);
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
    cr_assert(gs_trimmer_is_ending(f.core), "it begins nothing any more");
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

static size_t theirs; /* what another takes that comes before memory of others is waited for */

void __wrap_gs_share_await_given_back(struct gs_share *share, const unsigned char uuid[16],
                                      uint64_t limit_ns);
void __wrap_gs_share_await_given_back(struct gs_share *share, const unsigned char uuid[16],
                                      uint64_t limit_ns)
{
    struct gs_arena *arena = fixture_home(&f);

    if (theirs == 0)
        return;
    gs_latch_take(&arena->lock);
    gs_arena_take_locked(arena, theirs);
    gs_latch_release(&arena->lock);
}

Test(waits, behind_which_nobody_takes_what_they_were_for, .timeout = 60)
{
    CUdeviceptr block;
    CUgraph graph;
    size_t left, total;

    fixture_start(&f);
    MUST(cuMemGetInfo(&left, &total));
    block = must_alloc(&f, left / 4 * 3);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(gs_core_free(f.core, block));
    theirs = left / 4 * 3;
    cr_assert_eq(must_alloc(&f, theirs), block);
    theirs = 0;
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
}

static unsigned later; /* those that have come since */

static void one_has_been_and_another_comes(void)
{
    fixture_home(&f)->turn++;
    fixture_home(&f)->line++;
    later++;
}

Test(waits, for_allocations_that_came_before_and_for_none_that_comes_later, .timeout = 60)
{
    CUdeviceptr block;
    size_t left, total;

    fixture_start(&f);
    MUST(cuMemGetInfo(&left, &total));
    must_alloc(&f, left / 4 * 3);
    fixture_home(&f)->line = 3;
    meanwhile = one_has_been_and_another_comes;
    cr_assert_eq(gs_core_alloc(f.core, left / 2, &block), GS_NO_MEMORY);
    meanwhile = NULL;
    cr_assert_geq(later, 3, "it waits for those before it");
}
