/* What lies idle goes back to the driver by itself (core/process/trimmer.h). */
#include <criterion/criterion.h>

#include "core/base/clock.h"
#include "core/process/context.h"
#include "core/process/trimmer.h"
#include "core/process/reclaim.h"
#include "core/share/internal.h"
#include "tests/unit/fixture.h"

FIXTURE_SUITE(trimmer)

static size_t wait_until_reserved(size_t most)
{
    const struct timespec pause = {.tv_nsec = 5000000};

    for (int i = 0; i < 4000 && fixture_arena(&f).reserved > most; i++)
        nanosleep(&pause, NULL);
    return fixture_arena(&f).reserved;
}

static CUresult (*real_unmap)(CUdeviceptr, size_t);
static bool several_leave; /* atomic */

/* Who counts what is free waits for what is on its way. */
static CUresult unmap_alone(CUdeviceptr base, size_t size)
{
    if (__atomic_load_n(&f.core->figures.leaving[0], __ATOMIC_SEQ_CST) > size)
        __atomic_store_n(&several_leave, true, __ATOMIC_SEQ_CST);
    return real_unmap(base, size);
}

Test(trimmer, idle_memory_goes_back_piece_by_piece_and_again_after_a_sleep)
{
    CUdeviceptr block[16], kept;

    f.options.decay_ns = 40 * MS;
    fixture_start(&f);
    real_unmap = fixture_driver(&f)->mem_unmap;
    fixture_driver(&f)->mem_unmap = unmap_alone;
    kept = must_alloc(&f, 8 * MIB);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 16; i++)
            block[i] = must_alloc(&f, 16 * MIB);
        for (int i = 0; i < 16; i++)
            MUST(gs_core_free(f.core, block[i]));
        cr_assert_leq(wait_until_reserved(72 * MIB), 72 * MIB);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); /* the thread sleeps now */
    }
    cr_assert_gt(fixture_counts(&f).trims, 20);
    cr_assert_not(__atomic_load_n(&several_leave, __ATOMIC_SEQ_CST));
    MUST(gs_core_free(f.core, kept));
}

/* Neither of the two arenas is worth a thread by itself. */
Test(trimmer, what_all_arenas_hold_together_is_worth_a_thread)
{
    CUcontext other;

    f.options.decay_ns = 40 * MS;
    fixture_start(&f);
    must_alloc(&f, 40 * MIB);
    cr_assert_not(gs_trimmer_is_there(f.core));
    cr_assert_not(gs_trimmer_wake(f.core), "who asks is not to wait for it");
    other = fixture_context_new();
    must_alloc(&f, 40 * MIB);
    cr_assert(gs_trimmer_is_there(f.core));
    cr_assert(gs_trimmer_wake(f.core));
    cr_assert_not(gs_trimmer_is_this(f.core));
    MUST(cuCtxSetCurrent(f.context));
    gs_core_context_gone(f.core, other, gs_core_context_detach(f.core, other));
}

/* Looks of the trimmer, which wait at their end until they may go on. All atomic. */
static bool looks_wait;
static unsigned looks_come, looks_go;

struct gs_arena *__real_gs_next_arena(const struct gs_core *core, const struct gs_device *device,
                                      const struct gs_arena *last);
struct gs_arena *__wrap_gs_next_arena(const struct gs_core *core, const struct gs_device *device,
                                      const struct gs_arena *last);

struct gs_arena *__wrap_gs_next_arena(const struct gs_core *core, const struct gs_device *device,
                                      const struct gs_arena *last)
{
    struct gs_arena *arena = __real_gs_next_arena(core, device, last);
    char name[16] = "";
    unsigned number;

    if (arena || !__atomic_load_n(&looks_wait, __ATOMIC_SEQ_CST))
        return arena;
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "gpushim-trim") != 0)
        return arena;
    number = __atomic_add_fetch(&looks_come, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&looks_wait, __ATOMIC_SEQ_CST) &&
           __atomic_load_n(&looks_go, __ATOMIC_SEQ_CST) < number)
        usleep(200);
    return arena;
}

/* False: the thread sleeps, it seems. */
static bool look_comes(unsigned number)
{
    for (int i = 0; i < 500 && __atomic_load_n(&looks_come, __ATOMIC_SEQ_CST) < number; i++)
        usleep(1000);
    return __atomic_load_n(&looks_come, __ATOMIC_SEQ_CST) >= number;
}

/* The next one is at its end, and the thread waits there. */
static void must_look(bool works)
{
    unsigned number = __atomic_load_n(&looks_come, __ATOMIC_SEQ_CST) + 1;

    if (works) /* else it may sleep */
        MUST(gs_core_free(f.core, must_alloc(&f, 512)));
    __atomic_store_n(&looks_go, number - 1, __ATOMIC_SEQ_CST);
    cr_assert(look_comes(number));
}

static void start_looking(const char *memory)
{
    setenv("SOFTCUDA_MEMORY", memory, 1);
    fixture_options(&f);
    f.options.decay_ns = 20 * MS;
    looks_wait = true;
    fixture_start(&f);
}

static void end_looking(void)
{
    __atomic_store_n(&looks_wait, false, __ATOMIC_SEQ_CST);
    fixture_end(&f);
}

static void use_a_lot(void)
{
    CUdeviceptr block[16];

    for (int i = 0; i < 16; i++)
        block[i] = must_alloc(&f, 16 * MIB);
    for (int i = 0; i < 16; i++)
        MUST(gs_core_free(f.core, block[i]));
}

/* After each of the looks, from the first to the one before the thread's sleep, in turn. */
Test(trimmer, what_is_freed_between_the_last_look_and_the_sleep_goes_back_too)
{
    bool asleep = false;

    f.options.decay_ns = 20 * MS;
    fixture_start(&f);
    for (unsigned last = 1; !asleep && last < 20; last++) {
        unsigned number = __atomic_load_n(&looks_come, __ATOMIC_SEQ_CST);

        __atomic_store_n(&looks_go, number, __ATOMIC_SEQ_CST);
        __atomic_store_n(&looks_wait, true, __ATOMIC_SEQ_CST);
        use_a_lot();
        for (unsigned i = 1; !asleep && i <= last; i++) {
            asleep = !look_comes(number + i);
            if (!asleep && i == last)
                use_a_lot();
            __atomic_store_n(&looks_go, number + i, __ATOMIC_SEQ_CST);
        }
        __atomic_store_n(&looks_wait, false, __ATOMIC_SEQ_CST);
        cr_assert_leq(wait_until_reserved(64 * MIB), 64 * MIB, "freed after look %u", last);
    }
    cr_assert(asleep);
}

Test(trimmer, each_look_forgets_an_eighth_of_what_was_live_at_most)
{
    struct gs_arena *arena;
    size_t peak;

    start_looking("16G");
    arena = fixture_home(&f);
    must_alloc(&f, 256 * MIB);
    MUST(gs_core_free(f.core, must_alloc(&f, 1024 * MIB)));
    must_look(true); /* what was live since the one before is not forgotten */
    must_look(true);
    peak = arena->kept.live_peak;
    cr_assert(peak <= 1280 * MIB && peak >= 1280 * MIB / 8 * 7);
    for (int i = 0; i < 5; i++) {
        must_look(true);
        cr_assert_eq(arena->kept.live_peak, peak - peak / 8);
        peak = arena->kept.live_peak;
    }
    for (int i = 0; i < 40; i++)
        must_look(true);
    cr_assert_geq(arena->kept.live_peak, arena->live);
    cr_assert_leq(arena->kept.live_peak, arena->live + 2 * 512);
    end_looking();
}

Test(trimmer, of_idle_memory_an_arena_keeps_48_mib)
{
    start_looking("1G"); /* of pieces of 4 MiB */
    must_alloc(&f, 32 * MIB);
    MUST(gs_core_free(f.core, must_alloc(&f, 256 * MIB)));
    for (int i = 0; i < 8; i++)
        must_look(true);
    cr_assert(__atomic_load_n(&f.core->trimmer.busy, __ATOMIC_SEQ_CST), "an exit waits for it");
    cr_assert_leq(fixture_arena(&f).free_bytes, 48 * MIB);
    cr_assert_geq(fixture_arena(&f).free_bytes, 44 * MIB);
    end_looking();
}

Test(trimmer, what_a_stream_has_for_itself_is_idle_with_it)
{
    CUstream stream;
    CUdeviceptr block;

    start_looking("16G");
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must_alloc(&f, 1024 * MIB);
    MUST(gs_core_alloc_async(f.core, 128 * MIB, NULL, stream, &block));
    MUST(gs_core_free_async(f.core, block, stream));
    cr_assert_eq(fixture_home(&f)->order.bytes, 128 * MIB);
    for (int i = 0; i < 4 && fixture_home(&f)->order.bytes > 0; i++)
        must_look(false);
    cr_assert_eq(fixture_home(&f)->order.bytes, 0);
    MUST(cuStreamDestroy(stream));
    end_looking();
}

Test(trimmer, what_is_free_beyond_a_limit_goes_back_in_the_background)
{
    f.options.decay_ns = 3600 * 1000 * MS;
    f.options.cache_limit = 100 * MIB;
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 400 * MIB)));
    fixture_drain(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 512))); /* which looks at what is free */
    cr_assert_leq(wait_until_reserved(102 * MIB), 102 * MIB);
    cr_assert_gt(fixture_arena(&f).reserved, 96 * MIB);
    cr_assert_gt(fixture_counts(&f).later, 0);
}

static bool is_answered(struct gs_share *share)
{
    bool done;

    gs_lock_take(&share->lock);
    done = share->asked.pressure.state == GS_ASKED_DONE;
    gs_lock_release(&share->lock);
    return done;
}

/* It has given a moment ago, and is asked again: for nothing, on a device that it has. */
static void ask_too_soon(void)
{
    struct gs_neighbour *neighbour = &f.core->neighbour;
    struct gs_pressure *pressure = &f.core->share->asked.pressure;

    neighbour->gave_grown = UINT64_MAX;
    neighbour->pause_ns = 400 * MS;
    neighbour->gave_ns = gs_now_ns();
    gs_lock_take(&f.core->share->lock);
    memcpy(pressure->uuid, f.core->device[0].uuid, sizeof pressure->uuid);
    pressure->wanted = 0;
    pressure->state = GS_ASKED;
    gs_lock_release(&f.core->share->lock);
}

Test(trimmer, what_is_beyond_a_limit_goes_while_an_answer_rests)
{
    f.options.decay_ns = 3600 * 1000 * MS;
    f.options.cache_limit = 100 * MIB;
    fixture_neighbours(&f);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 400 * MIB)));
    fixture_drain(&f);
    ask_too_soon();
    cr_assert(gs_trimmer_wake(f.core));
    for (int i = 0; i < 4000 && fixture_arena(&f).reserved > 102 * MIB; i++) {
        /* It rests on. */
        __atomic_store_n(&f.core->neighbour.gave_ns, gs_now_ns(), __ATOMIC_SEQ_CST);
        usleep(5000);
    }
    cr_assert_leq(fixture_arena(&f).reserved, 102 * MIB);
    for (int i = 0; i < 4000 && !is_answered(f.core->share); i++)
        usleep(5000);
    cr_assert(is_answered(f.core->share));
}
