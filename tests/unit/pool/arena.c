/* Allocating and freeing: placement, packing, reuse only after the GPU is done, giving back. */
#include <criterion/criterion.h>

#include "core/pool/arena.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

FIXTURE_SUITE(arena)

/* Everything retired becomes free: the GPU is idle and a miss looks. */
static void drain(void)
{
    MUST(cuCtxSynchronize());
    /* One more piece than there is makes the arena look for what has come back. */
    MUST(gs_core_free(f.core, must_alloc(&f, 512)));
    MUST(cuCtxSynchronize());
}

Test(arena, only_the_start_of_a_live_block_can_be_freed)
{
    CUdeviceptr a, large;
    CUdeviceptr foreign;

    fixture_start(&f);
    MUST(cuMemAlloc(&foreign, 512));
    a = must_alloc(&f, 4096);
    large = must_alloc(&f, 4 * MIB);
    cr_assert_eq(gs_core_free(f.core, foreign), GS_NOT_OURS);
    cr_assert_eq(gs_core_free(f.core, 0x1000), GS_NOT_OURS);
    cr_assert_eq(gs_core_free(f.core, a + 512), GS_NOT_LIVE);
    cr_assert_eq(gs_core_free(f.core, a + 1), GS_NOT_LIVE);
    cr_assert_eq(gs_core_free(f.core, a + 511), GS_NOT_LIVE);
    cr_assert_eq(gs_core_free(f.core, large + 2 * MIB), GS_NOT_LIVE);
    cr_assert_eq(gs_core_free(f.core, a), GS_OK);
    cr_assert_eq(gs_core_free(f.core, a), GS_NOT_LIVE);
    cr_assert_eq(gs_core_free(f.core, large), GS_OK);
    cr_assert_eq(gs_core_free(f.core, large), GS_NOT_LIVE);
    cr_assert_eq(fixture_arena(&f).live, 0);
    MUST(cuMemFree(foreign));
}

/* The one around an address is found by looking backwards over many that begin nowhere. */
Test(arena, a_block_is_found_from_far_within_after_others_before_it_merged)
{
    struct gs_block_info info;
    struct gs_arena *arena;
    CUdeviceptr few[3], large, after;

    fixture_start(&f);
    for (int i = 0; i < 3; i++)
        few[i] = must_alloc(&f, 512);
    large = must_alloc(&f, 256 << 10);
    after = must_alloc(&f, 512);
    cr_assert_eq(large, few[0] + 3 * 512);
    MUST(gs_core_free(f.core, few[1]));
    MUST(gs_core_free(f.core, few[2]));
    MUST(cuCtxSynchronize());
    arena = fixture_lock_pool(&f, large);
    gs_arena_collect_locked(arena);
    gs_arena_merge_quick_locked(arena);
    gs_latch_release(&arena->lock);
    for (size_t at = 0; at < 256 << 10; at += 5000) {
        MUST(gs_core_find(f.core, large + at, &info));
        cr_assert_eq(info.base, large);
    }
    MUST(gs_core_find(f.core, after, &info));
    cr_assert_eq(info.base, after);
    MUST(gs_core_find(f.core, few[0] + 511, &info));
    cr_assert_eq(info.base, few[0]);
    cr_assert_eq(gs_core_find(f.core, few[2], &info), GS_NOT_LIVE);
    MUST(gs_core_free(f.core, large));
    MUST(gs_core_free(f.core, after));
    MUST(gs_core_free(f.core, few[0]));
}

static CUdeviceptr ordered_alloc(size_t size)
{
    CUdeviceptr block;

    MUST(gs_core_alloc_async(f.core, size, NULL, f.stream, &block));
    return block;
}

/* On a GPU that stands still from the first free on where `behind`. */
static void ordered_start(bool behind)
{
    setenv("SOFTCUDA_MEMORY", "64G", 1); /* of which a piece may waste much */
    fixture_start(&f);
    if (!behind)
        return;
    softcuda_hold(1);
    fixture_spin_fill(&f, f.stream, ordered_alloc(4096), 1, 1, 0);
}

static void ordered_end(void)
{
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
}

Test(arena, a_stream_that_is_alone_keeps_what_a_gpu_that_is_behind_would_not_give_back)
{
    CUdeviceptr block[8];
    size_t reserved;

    ordered_start(true);
    for (int i = 0; i < 8; i++)
        block[i] = ordered_alloc(32 * MIB);
    reserved = fixture_arena(&f).reserved;
    for (int i = 0; i < 8; i++)
        MUST(gs_core_free_async(f.core, block[i], f.stream));
    /* The first three, which are much, went to an epoch. */
    for (int i = 0; i < 5; i++)
        block[i] = ordered_alloc(32 * MIB);
    cr_assert_eq(fixture_arena(&f).reserved, reserved, "the others do not follow");
    ordered_end();
}

Test(arena, a_stream_keeps_its_own_through_a_miss)
{
    CUdeviceptr block, large;

    ordered_start(true);
    block = ordered_alloc(32 * MIB);
    MUST(gs_core_free_async(f.core, block, f.stream));
    large = ordered_alloc(64 * MIB);
    cr_assert_eq(ordered_alloc(32 * MIB), block, "it retires behind a GPU that stands still");
    MUST(gs_core_free(f.core, block));
    MUST(gs_core_free(f.core, large));
    ordered_end();
}

Test(arena, a_stream_takes_what_fits_best_of_its_own_and_of_what_is_free)
{
    CUdeviceptr free_for_all, its_own, fence[2];

    ordered_start(false);
    free_for_all = must_alloc(&f, 8 * MIB);
    fence[0] = must_alloc(&f, 4 * MIB);
    its_own = ordered_alloc(32 * MIB);
    fence[1] = must_alloc(&f, 4 * MIB);
    MUST(gs_core_free(f.core, free_for_all));
    fixture_drain(&f);
    MUST(gs_core_free_async(f.core, its_own, f.stream));
    cr_assert_eq(ordered_alloc(8 * MIB), free_for_all);
    cr_assert_eq(ordered_alloc(32 * MIB), its_own, "and is whole");
    for (int i = 0; i < 2; i++)
        MUST(gs_core_free(f.core, fence[i]));
    ordered_end();
}

Test(arena, a_destroyed_streams_blocks_are_not_a_new_streams)
{
    CUdeviceptr first, again;
    CUstream stream, next;

    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_alloc_async(f.core, 65536, NULL, stream, &first));
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, first, 1, 1, 0);
    MUST(gs_core_free_async(f.core, first, stream));
    gs_core_stream_gone(f.core, stream);
    next = stream; /* the worst case: the handle comes again */
    MUST(gs_core_alloc_async(f.core, 65536, NULL, next, &again));
    cr_assert_neq(again, first);
    softcuda_hold(0);
    MUST(cuCtxSynchronize());
    MUST(cuStreamDestroy(stream));
}

/* Also where they are too little for an epoch. */
Test(arena, small_blocks_that_have_passed_are_had_before_memory_is_made)
{
    CUdeviceptr block[8];
    size_t reserved;

    fixture_start(&f);
    for (int i = 0; i < 8; i++)
        block[i] = must_alloc(&f, 256 << 10);
    reserved = fixture_arena(&f).reserved;
    for (int i = 0; i < 8; i++)
        MUST(gs_core_free(f.core, block[i]));
    MUST(cuCtxSynchronize());
    must_alloc(&f, 200 << 10);
    cr_assert_eq(fixture_arena(&f).reserved, reserved);
}

/* A full device gives a large block where small ones lay, and one that just fits. */
Test(arena, what_just_fits_is_taken_of_either_class)
{
    CUdeviceptr small[8];
    struct gs_block *block;
    struct gs_arena *arena;

    fixture_start(&f);
    for (int i = 0; i < 8; i++)
        small[i] = must_alloc(&f, 256 << 10);
    for (int i = 0; i < 8; i++)
        MUST(gs_core_free(f.core, small[i]));
    fixture_drain(&f);
    arena = fixture_home(&f);
    gs_latch_take(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    cr_assert_null(gs_arena_take_any_locked(arena, 2 * MIB + 1));
    block = gs_arena_take_any_locked(arena, 2 * MIB);
    gs_latch_release(&arena->lock);
    cr_assert(block && block->base == small[0]);
    MUST(gs_core_free(f.core, small[0]));
}

/* What is free in the end of 64 MiB that were freed, on a device of 256 MiB. */
static size_t kept(size_t limit_bytes, unsigned limit_percent)
{
    CUdeviceptr block[16];
    size_t free_bytes;

    setenv("SOFTCUDA_MEMORY", "256M", 1);
    fixture_options(&f);
    f.options.cache_limit = limit_bytes;
    f.options.cache_percent = limit_percent;
    fixture_start(&f);
    for (int i = 0; i < 16; i++)
        block[i] = must_alloc(&f, 4 * MIB);
    for (int i = 0; i < 15; i++)
        MUST(gs_core_free(f.core, block[i]));
    drain();
    MUST(gs_core_free(f.core, block[15]));
    for (int i = 0; i < 3; i++)
        drain();
    free_bytes = fixture_arena(&f).free_bytes;
    fixture_end(&f);
    return free_bytes;
}

Test(arena, cache_limit_gives_free_memory_back)
{
    const size_t bytes = kept(8 * MIB, 0);

    cr_assert(4 * MIB <= bytes && bytes <= 12 * MIB, "%zu", bytes);
}

Test(arena, cache_limit_is_also_a_share_of_the_device)
{
    cr_assert_leq(kept(SIZE_MAX, 10), 32 * MIB);
}

Test(arena, without_a_cache_limit_so_little_is_kept)
{
    cr_assert_geq(kept(SIZE_MAX, 0), 56 * MIB);
}

/* Sums that are kept, rather than counted when they are wanted. */
Test(arena, figures_are_what_they_stand_for_when_all_is_back)
{
    static const size_t sizes[] = {512, 4096, 200 << 10, MIB, 3 * MIB, 7 * MIB, 24 * MIB};
    CUdeviceptr block[40] = {0}, stays;
    struct gs_arena *arena;
    unsigned seed = 7;

    f.options.single_stream = true;
    fixture_start(&f);
    stays = must_alloc(&f, 512);
    for (int i = 0; i < 100; i++)
        MUST(gs_core_free(f.core, must_alloc(&f, 64 << 10)));
    arena = fixture_lock_pool(&f, stays);
    cr_assert_null(gs_arena_detach_locked(arena, 0, SIZE_MAX));
    cr_assert_eq(arena->free.quick_bytes, 64 << 10);
    gs_latch_release(&arena->lock);
    for (int i = 0; i < 2000; i++) {
        CUdeviceptr *one = &block[rand_r(&seed) % 40];

        if (*one)
            MUST(gs_core_free(f.core, *one));
        *one = *one ? 0 : must_alloc(&f, sizes[rand_r(&seed) % 7]);
    }
    for (int i = 0; i < 40; i++)
        if (block[i])
            MUST(gs_core_free(f.core, block[i]));
    arena = fixture_lock_pool(&f, stays);
    gs_arena_collect_locked(arena);
    gs_arena_merge_quick_locked(arena);
    cr_assert_eq(arena->live, 512);
    cr_assert_eq(arena->free_bytes, arena->reserved - 512);
    cr_assert_eq(arena->free.quick_bytes, 0);
    gs_latch_release(&arena->lock);
    MUST(gs_core_free(f.core, stays));
}

/* Nobody allocates meanwhile. */
Test(arena, an_epoch_that_closes_looks_at_those_before_it)
{
    CUdeviceptr block[2];
    size_t before;

    f.options.epoch_bytes = 1;
    fixture_start(&f);
    for (int i = 0; i < 2; i++)
        block[i] = must_alloc(&f, 2 * MIB);
    before = fixture_arena(&f).free_bytes;
    MUST(gs_core_free(f.core, block[0]));
    MUST(cuCtxSynchronize());
    MUST(gs_core_free(f.core, block[1]));
    cr_assert_geq(fixture_arena(&f).free_bytes, before + 2 * MIB);
}

/* The driver's own free would have waited for what was submitted before it, not for what came
 * later. */
Test(arena, what_closes_at_a_free_is_waited_for_without_end_and_else_for_10_s)
{
    struct gs_arena *arena;
    CUdeviceptr block[2];

    fixture_start(&f);
    for (int i = 0; i < 2; i++)
        block[i] = must_alloc(&f, 2 * MIB);
    fixture_free_behind_work(&f, block[0]);
    arena = fixture_lock_pool(&f, block[1]);
    cr_assert_null(arena->epochs.oldest, "it is too little for an epoch");
    arena->shared->epoch_bytes = 1; /* from the next that closes on */
    gs_arena_collect_locked(arena);
    cr_assert_eq(arena->epochs.oldest->wait_ns, GS_LATER_WAIT_NS);
    gs_latch_release(&arena->lock);
    MUST(gs_core_free(f.core, block[1]));
    cr_assert_neq(arena->epochs.newest, arena->epochs.oldest);
    cr_assert_eq(arena->epochs.newest->wait_ns, UINT64_MAX);
    ordered_end();
}

/* So are waits for the oldest. */
Test(arena, epochs_are_smaller_while_the_gpu_is_behind)
{
    CUdeviceptr block[4];
    struct gs_arena *arena;

    setenv("SOFTCUDA_MEMORY", "64G", 1);
    fixture_start(&f);
    must_alloc(&f, 2048 * MIB);
    for (int i = 0; i < 4; i++)
        block[i] = must_alloc(&f, 70 * MIB);
    arena = fixture_home(&f);
    MUST(gs_core_free(f.core, block[0]));
    cr_assert_eq(arena->epochs.blocks, 128);
    cr_assert_eq(arena->epochs.limit, 64 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, f.stream, block[1], 1, 1, 0);
    for (int i = 1; i < 3; i++)
        MUST(gs_core_free(f.core, block[i]));
    cr_assert_eq(arena->epochs.blocks, 128 / 8);
    cr_assert_eq(arena->epochs.limit, 64 * MIB / 8);
    ordered_end();
    MUST(gs_core_free(f.core, block[3]));
    cr_assert_eq(arena->epochs.blocks, 128);
}
