/* Regions grow by pieces, and give pieces back; blocks lie across them (core/pool/region.c,
 * trim.c). */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/reclaim.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/process/sums.h"

static struct fixture f;

static void start(const char *memory)
{
    setenv("SOFTCUDA_MEMORY", memory, 1);
    fixture_options(&f);
    fixture_start(&f);
}

static void end(void)
{
    must_add_up(&f);
    fixture_end(&f);
}

static size_t reserved(void)
{
    return fixture_arena(&f).reserved;
}

static struct gs_piece *piece_at(CUdeviceptr address)
{
    return (struct gs_piece *)gs_map_find(&f.core->map, address);
}

static unsigned pieces_of(CUdeviceptr block)
{
    struct gs_arena *arena = fixture_lock_pool(&f, block);
    const struct gs_block *found = gs_piece_find_locked(piece_at(block), block);
    unsigned pieces = 0;

    for (const struct gs_piece *piece = found->piece; piece;
         piece = gs_block_next_piece(found, piece))
        pieces++;
    gs_latch_release(&arena->lock);
    return pieces;
}

/* It is freed and has come back. */
static void give(CUdeviceptr block)
{
    MUST(gs_core_free(f.core, block));
    fixture_drain(&f);
}

/* The highest piece that is free goes. */
static void detach_one(void)
{
    struct gs_arena *arena = fixture_home(&f);
    struct gs_piece *piece;

    gs_latch_take(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    piece = gs_arena_detach_locked(arena, 1, SIZE_MAX);
    gs_latch_release(&arena->lock);
    cr_assert_not_null(piece);
    cr_assert_gt(gs_pieces_unmap(f.core, piece), 0);
}

/* Its memory is the driver's: a hole. */
static void take_out(CUdeviceptr block)
{
    give(block);
    detach_one();
    cr_assert_null(piece_at(block));
}

/* ---- How large pieces are ---------------------------------------------------------------- */

Test(regions, a_large_block_lies_in_pieces_side_by_side)
{
    CUdeviceptr block;
    struct gs_block_info info;

    start("1G");
    block = must_alloc(&f, 21 * MIB);
    cr_assert_eq(reserved(), 22 * MIB);
    cr_assert_eq(fixture_counts(&f).grown, 6, "each is a 256th of the device at most");
    cr_assert_eq(pieces_of(block), 6);
    for (size_t at = 0; at < 21 * MIB; at += MIB) {
        MUST(gs_core_find(f.core, block + at, &info));
        cr_assert_eq(info.base, block);
    }
    cr_assert_eq(gs_core_find(f.core, block + 21 * MIB, &info), GS_NOT_LIVE);
    cr_assert_eq(gs_core_free(f.core, block + 8 * MIB), GS_NOT_LIVE, "where a piece begins");
    MUST(gs_core_free(f.core, block));
    end();
}

/* So much is reserved by now; the next piece that is made for 2 MiB. */
static size_t next_piece(size_t before)
{
    if (before > reserved())
        must_alloc(&f, before - reserved());
    cr_assert_eq(reserved(), before);
    must_alloc(&f, 2 * MIB);
    cr_assert_gt(reserved(), before);
    return reserved() - before;
}

Test(regions, pieces_are_of_32_to_128_mib_a_16th_of_what_is_reserved)
{
    start("64G");
    must_alloc(&f, 2 * MIB);
    cr_assert_eq(reserved(), 32 * MIB);
    must_alloc(&f, 30 * MIB);
    cr_assert_eq(next_piece(512 * MIB), 32 * MIB);
    must_alloc(&f, 30 * MIB);
    cr_assert_eq(next_piece(1024 * MIB), 64 * MIB);
    must_alloc(&f, 62 * MIB);
    cr_assert_eq(next_piece(8192 * MIB), 128 * MIB, "and no more than that");
    end();
}

Test(regions, pieces_are_no_more_than_an_eighth_of_what_the_device_has_left)
{
    size_t free_bytes, total;
    CUdeviceptr others;

    start("64G");
    MUST(cuMemGetInfo(&free_bytes, &total));
    MUST(cuMemAlloc(&others, free_bytes - 160 * MIB));
    must_alloc(&f, 2 * MIB);
    cr_assert_eq(reserved(), 20 * MIB);
    MUST(cuMemFree(others));
    end();
}

/* As the first that is missing is beside it: then a whole page of it is wanted. */
Test(regions, what_the_device_has_left_is_asked_for_again_when_an_arena_has_grown)
{
    size_t free_bytes, total, left;
    CUdeviceptr others;

    start("64G");
    MUST(cuMemGetInfo(&free_bytes, &total));
    MUST(cuMemAlloc(&others, free_bytes - 800 * MIB));
    must_alloc(&f, 32 * MIB); /* 768 are left, and were 800 */
    left = 768 * MIB;
    while (left > 400 * MIB) {
        must_alloc(&f, 32 * MIB);
        left -= 32 * MIB;
    }
    cr_assert_eq(next_piece(reserved()), 32 * MIB);
    must_alloc(&f, 30 * MIB);
    for (left -= 32 * MIB; left > 100 * MIB; left -= 32 * MIB)
        must_alloc(&f, 32 * MIB);
    cr_assert_lt(next_piece(reserved()), 20 * MIB);
    MUST(cuMemFree(others));
    end();
}

Test(regions, a_piece_that_is_not_to_be_had_is_made_as_small_as_is_missing)
{
    size_t free_bytes, total;
    CUdeviceptr others, block;

    start("64G");
    block = must_alloc(&f, 32 * MIB);
    MUST(cuMemGetInfo(&free_bytes, &total));
    MUST(cuMemAlloc(&others, free_bytes - 6 * MIB));
    softcuda_reset();
    cr_assert_eq(must_alloc(&f, 5 * MIB), block + 32 * MIB);
    cr_assert_eq(softcuda_calls("cuMemCreate"), 2, "the same place is tried again at once");
    cr_assert_eq(reserved(), 38 * MIB);
    MUST(cuMemFree(others));
    end();
}

Test(regions, pieces_for_small_blocks_are_of_2_mib)
{
    CUdeviceptr block;

    start("64G");
    for (int i = 0; i < 3; i++)
        must_alloc(&f, 700 << 10);
    cr_assert_eq(reserved(), 4 * MIB, "two in a piece, and none across");
    block = must_alloc(&f, 600 << 10);
    cr_assert_eq(reserved(), 4 * MIB);
    cr_assert_eq(pieces_of(block), 1);
    end();
}

/* Theirs are made behind each other's back, and so are larger. */
Test(regions, pieces_for_small_blocks_of_further_arenas_are_of_16_mib)
{
    start("64G");
    fixture_home(&f)->first = false;
    must_alloc(&f, 700 << 10);
    cr_assert_eq(reserved(), 16 * MIB);
    for (int i = 1; i < 22; i++)
        must_alloc(&f, 700 << 10);
    cr_assert_eq(reserved(), 16 * MIB);
    f.core->figures.left[0] = 120 * MIB;
    f.core->figures.grown[0] = 0; /* it is not asked for anew */
    for (int i = 0; i < 2; i++)
        must_alloc(&f, 700 << 10);
    cr_assert_eq(reserved(), 18 * MIB, "but of little that is left");
    fixture_home(&f)->first = true;
    end();
}

/* ---- Where they go ----------------------------------------------------------------------- */

/* Four blocks side by side, each in a piece of its own. */
static void start_four(CUdeviceptr *block)
{
    start("16G");
    for (int i = 0; i < 4; i++) {
        block[i] = must_alloc(&f, 64 * MIB);
        cr_assert_eq(pieces_of(block[i]), 1);
        cr_assert(i == 0 || block[i] == block[i - 1] + 64 * MIB);
    }
    cr_assert_eq(reserved(), 256 * MIB);
}

/* Of the four: which one is out, which are free, and what is then had where, in so many pieces. */
static const struct place {
    const char *name;
    int out; /* -1: none */
    unsigned free;
    size_t size;
    int at; /* 4: behind them all */
    unsigned pieces;
    size_t reserved;
} places[] = {
    {"free at the end counts", -1, 8, 100 * MIB, 3, 2, (256 + 36) * MIB},
    {"a hole is filled before one is left above it", 1, 0, 64 * MIB, 1, 1, 256 * MIB},
    {"free above a hole counts", 1, 4, 128 * MIB, 1, 2, 256 * MIB},
    {"free below a hole counts, 26 are missing", 1, 1, 90 * MIB, 0, 2, (192 + 32) * MIB},
    {"free on both sides counts", 1, 5, 192 * MIB, 0, 3, 256 * MIB},
    {"too small a hole is left", 1, 0, 66 * MIB, 4, 2, (192 + 66) * MIB},
    {"the first addresses are a hole too", 0, 2, 120 * MIB, 0, 2, 256 * MIB},
    {"one grows by 2 MiB rather than by 66", 0, 8, 66 * MIB, 3, 2, (192 + 32) * MIB},
};

Test(regions, one_grows_where_the_least_is_missing)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *place = &places[i];
        CUdeviceptr block[5], got;

        start_four(block);
        block[4] = block[3] + 64 * MIB;
        if (place->out >= 0)
            take_out(block[place->out]);
        for (int j = 0; j < 4; j++)
            if (place->free >> j & 1)
                give(block[j]);
        got = must_alloc(&f, place->size);
        cr_assert_eq(got, block[place->at], "%s", place->name);
        cr_assert_eq(pieces_of(got), place->pieces, "%s: %u", place->name, pieces_of(got));
        cr_assert_eq(reserved(), place->reserved, "%s: %zu MiB", place->name, reserved() / MIB);
        end();
    }
}

/* As large as its piece, which is of as much as there is room for: 32 of the hole's 64 MiB. */
Test(regions, what_is_left_of_a_hole_is_filled_next)
{
    CUdeviceptr block[4];

    start_four(block);
    take_out(block[1]);
    give(block[0]);
    must_alloc(&f, 90 * MIB);
    cr_assert_eq(must_alloc(&f, 38 * MIB), block[0] + 90 * MIB);
    cr_assert_eq(reserved(), 256 * MIB, "32 of them");
    end();
}

Test(regions, a_hole_that_is_smaller_than_the_best_piece_is_filled)
{
    CUdeviceptr block[4], small;

    start_four(block);
    must_alloc(&f, 512 * MIB);
    small = must_alloc(&f, 48 * MIB); /* a 16th */
    must_alloc(&f, 64 * MIB);
    take_out(small);
    must_alloc(&f, 64 * MIB);
    f.core->figures.left[0] = (size_t)12 << 30;
    cr_assert_eq(must_alloc(&f, 2 * MIB), small);
    cr_assert_eq(must_alloc(&f, 46 * MIB), small + 2 * MIB);
    end();
}

/* ---- Blocks ------------------------------------------------------------------------------ */

Test(regions, neighbours_merge_across_pieces_and_serve_any_size)
{
    CUdeviceptr block[4];

    start_four(block);
    give(block[1]);
    give(block[3]);
    give(block[2]);
    cr_assert_eq(must_alloc(&f, 192 * MIB), block[1]);
    give(block[1]);
    for (unsigned i = 0; i < 32; i++)
        cr_assert_eq(must_alloc(&f, 6 * MIB), block[1] + i * 6 * MIB);
    cr_assert_eq(reserved(), 256 * MIB);
    end();
}

Test(regions, without_crossing_each_block_is_in_a_piece_of_its_size)
{
    CUdeviceptr block[3];

    setenv("SOFTCUDA_MEMORY", "1G", 1);
    fixture_options(&f);
    f.options.cross = false;
    fixture_start(&f);
    for (int i = 0; i < 3; i++) {
        block[i] = must_alloc(&f, 21 * MIB);
        cr_assert_eq(pieces_of(block[i]), 1);
    }
    cr_assert_eq(reserved(), 66 * MIB);
    cr_assert_eq(fixture_counts(&f).grown, 3);
    for (int i = 0; i < 3; i++)
        give(block[i]);
    must_alloc(&f, 23 * MIB); /* two of the three together would do */
    cr_assert_eq(reserved(), (66 + 24) * MIB);
    end();
}

Test(regions, whole_pieces_are_for_one_block_of_about_their_size)
{
    CUdeviceptr block;

    setenv("SOFTCUDA_MEMORY", "1G", 1);
    fixture_options(&f);
    f.options.cross = false;
    f.options.whole_pieces = true;
    fixture_start(&f);
    block = must_alloc(&f, 21 * MIB);
    give(block);
    cr_assert_eq(must_alloc(&f, 20 * MIB + 1), block);
    cr_assert_neq(must_alloc(&f, MIB), block + 21 * MIB, "nobody is beside it");
    give(block);
    cr_assert_neq(must_alloc(&f, 20 * MIB), block, "its piece would be smaller");
    end();
}

/* ---- Pieces that leave --------------------------------------------------------------------- */

/* What is free is so from end to end of that many of the highest pieces. */
static size_t let_go(size_t bytes)
{
    struct gs_arena *arena = fixture_home(&f);
    struct gs_piece *pieces;

    gs_latch_take(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    pieces = gs_arena_detach_locked(arena, bytes, SIZE_MAX);
    gs_latch_release(&arena->lock);
    return gs_pieces_unmap(f.core, pieces);
}

Test(regions, a_piece_leaves_out_of_the_midst_of_what_is_free)
{
    CUdeviceptr block[4], low, high;

    start_four(block);
    for (int i = 0; i < 4; i++)
        give(block[i]);
    low = must_alloc(&f, 16 * MIB);
    cr_assert_eq(low, block[0]);
    MUST(gs_core_free(f.core, must_alloc(&f, 240 * MIB)));
    high = must_alloc(&f, 224 * MIB);
    must_alloc(&f, 16 * MIB); /* at the end */
    give(high);
    cr_assert_eq(let_go(1), 64 * MIB);
    cr_assert_null(piece_at(block[2]));
    must_add_up(&f);
    cr_assert_eq(let_go(SIZE_MAX), 64 * MIB, "in the others something lies");
    must_add_up(&f);
    cr_assert_eq(fixture_arena(&f).free_bytes, (48 + 48) * MIB);
    cr_assert_eq(must_alloc(&f, 48 * MIB), low + 16 * MIB);
    end();
}

Test(regions, so_many_bytes_leave_and_about_no_more)
{
    CUdeviceptr block[4];

    start_four(block);
    for (int i = 0; i < 4; i++)
        give(block[i]);
    cr_assert_eq(let_go(65 * MIB), 128 * MIB);
    cr_assert(!piece_at(block[3]) && !piece_at(block[2]) && piece_at(block[1]), "the highest");
    cr_assert_eq(let_go(0), 0);
    cr_assert_eq(fixture_counts(&f).trims, 2);
    end();
}

Test(regions, of_a_surplus_no_piece_leaves_that_is_larger)
{
    struct gs_piece *pieces;
    struct gs_arena *arena;
    CUdeviceptr block[4];

    start_four(block);
    for (int i = 0; i < 4; i++)
        give(block[i]);
    arena = fixture_home(&f);
    gs_latch_take(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    cr_assert_null(gs_arena_detach_locked(arena, 1, 62 * MIB));
    pieces = gs_arena_detach_locked(arena, 1, 130 * MIB);
    gs_latch_release(&arena->lock);
    cr_assert_eq(gs_pieces_unmap(f.core, pieces), 64 * MIB, "and one alone");
    end();
}

static uint64_t guarded;

static bool may_unmap(void *arg, uint64_t base, size_t size)
{
    return base != guarded;
}

Test(regions, a_piece_that_is_guarded_stays_among_others_that_leave)
{
    CUdeviceptr block[4];

    start_four(block);
    for (int i = 0; i < 4; i++)
        give(block[i]);
    guarded = block[2];
    f.core->shared.guard.may_unmap = may_unmap;
    cr_assert_eq(let_go(SIZE_MAX), 192 * MIB);
    cr_assert_not_null(piece_at(block[2]));
    must_add_up(&f);
    cr_assert_eq(must_alloc(&f, 128 * MIB), block[2], "and is grown behind");
    guarded = 0;
    end();
}

Test(regions, no_piece_leaves_under_a_block_that_lies_in_it_in_part)
{
    CUdeviceptr block[4], across;

    start_four(block);
    give(block[0]);
    give(block[1]);
    give(block[2]);
    must_alloc(&f, 60 * MIB);
    across = must_alloc(&f, 72 * MIB); /* of three pieces */
    cr_assert_eq(pieces_of(across), 3);
    cr_assert_eq(let_go(SIZE_MAX), 0);
    MUST(gs_core_free(f.core, across)); /* and retires */
    softcuda_hold(1);
    cr_assert_eq(let_go(SIZE_MAX), 0);
    softcuda_hold(0);
    end();
}

/* Whose unmapping is under way: nobody grows there before it is done. */
static CUresult (*real_unmap)(CUdeviceptr, size_t);
static CUdeviceptr beside, meanwhile;

static CUresult unmap_slowly(CUdeviceptr address, size_t size)
{
    if (!meanwhile) {
        meanwhile = 1;
        meanwhile = must_alloc(&f, 64 * MIB);
    }
    return real_unmap(address, size);
}

Test(regions, what_is_on_its_way_to_the_driver_is_no_place_to_grow)
{
    CUdeviceptr block[4];

    for (int high = 0; high < 2; high++) {
        start_four(block);
        beside = block[high ? 3 : 1];
        give(beside);
        real_unmap = fixture_driver(&f)->mem_unmap;
        fixture_driver(&f)->mem_unmap = unmap_slowly;
        meanwhile = 0;
        cr_assert_eq(let_go(1), 64 * MIB);
        cr_assert_eq(meanwhile, block[3] + 64 * MIB);
        cr_assert_eq(must_alloc(&f, 64 * MIB), beside, "now it is one");
        end();
    }
}

static CUresult no_unmap(CUdeviceptr address, size_t size)
{
    return CUDA_ERROR_UNKNOWN;
}

/* It is lost, and nobody grows where it is still mapped. */
Test(regions, what_the_driver_does_not_unmap_is_no_place_to_grow)
{
    CUdeviceptr block[4];
    size_t used;

    start_four(block);
    give(block[1]);
    used = gs_limit_used(f.core, 0);
    real_unmap = fixture_driver(&f)->mem_unmap;
    fixture_driver(&f)->mem_unmap = no_unmap;
    cr_assert_eq(let_go(1), 0);
    fixture_driver(&f)->mem_unmap = real_unmap;
    cr_assert_eq(gs_limit_used(f.core, 0), used, "it is in use");
    cr_assert_eq(__atomic_load_n(&f.core->figures.leaving[0], __ATOMIC_SEQ_CST), 0);
    cr_assert_not(gs_releases_await(f.core, 0), "it is not waited for");
    cr_assert_eq(must_alloc(&f, 64 * MIB), block[3] + 64 * MIB);
}

/* The next context gets other addresses: these are mapped still. */
Test(regions, of_a_context_whose_memory_the_driver_does_not_unmap_are_nobodys)
{
    struct gs_context *record;
    CUcontext context;

    start("512M");
    context = fixture_context_new();
    must_alloc(&f, 4 * MIB);
    MUST(gs_context_current(f.core, &record));
    real_unmap = fixture_driver(&f)->mem_unmap;
    fixture_driver(&f)->mem_unmap = no_unmap;
    fixture_context_end(&f, context);
    fixture_driver(&f)->mem_unmap = real_unmap;
    cr_assert_gt(record->arenas[0]->large.size, 0);
}

/* ---- How much is kept ---------------------------------------------------------------------- */

/* With so much of the device left. */
static size_t surplus(size_t left)
{
    struct gs_arena *arena = fixture_home(&f);
    size_t bytes;

    f.core->figures.left[0] = left;
    gs_latch_take(&arena->lock);
    bytes = gs_arena_surplus_locked(arena);
    gs_latch_release(&arena->lock);
    return bytes;
}

Test(regions, what_was_live_lately_is_kept_and_a_slack_that_a_full_device_has_less_of)
{
    struct gs_arena *arena;
    CUdeviceptr block;

    start("64G");
    arena = fixture_home(&f);
    must_alloc(&f, 1000 * MIB);
    block = must_alloc(&f, 3000 * MIB);
    give(block);
    cr_assert_eq(surplus(0), 0);
    arena->kept.live_peak = 2000 * MIB;
    cr_assert_eq(surplus((size_t)60 << 30), reserved() - 2000 * MIB - 2000 * MIB / 100 * 16);
    cr_assert_eq(surplus((size_t)32 << 30), reserved() - 2000 * MIB - 2000 * MIB / 100 * 16);
    cr_assert_eq(surplus((size_t)16 << 30), reserved() - 2000 * MIB - 2000 * MIB / 100 * 10);
    cr_assert_eq(surplus(MIB), reserved() - 2000 * MIB - 2000 * MIB / 100 * 4);
    cr_assert_eq(surplus(0), reserved() - 2000 * MIB - 2000 * MIB / 100 * 16, "not known");
    arena->kept.live_peak = 0;
    cr_assert_eq(surplus(MIB), reserved() - 1000 * MIB - 1000 * MIB / 100 * 4,
                 "what is live counts");
    end();
}

Test(regions, what_streams_have_for_themselves_is_held_and_does_not_leave)
{
    struct gs_arena *arena;
    CUdeviceptr block, ordered[2];
    CUstream stream;

    start("64G");
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    arena = fixture_home(&f);
    must_alloc(&f, 1024 * MIB);
    MUST(gs_core_alloc_async(f.core, 32 * MIB, NULL, stream, &ordered[0]));
    MUST(gs_core_alloc_async(f.core, 96 * MIB, NULL, stream, &ordered[1]));
    block = must_alloc(&f, 256 * MIB);
    give(block);
    MUST(gs_core_free_async(f.core, ordered[0], stream));
    cr_assert_eq(arena->order.bytes, 32 * MIB);
    arena->kept.live_peak = 0;
    cr_assert_eq(surplus(MIB), reserved() - 1120 * MIB - 1120 * MIB / 100 * 4);
    MUST(gs_core_free_async(f.core, ordered[1], stream));
    cr_assert_eq(surplus(MIB), fixture_arena(&f).free_bytes, "and no more than is free");
    MUST(cuStreamDestroy(stream));
    end();
}

Test(regions, of_little_memory_all_is_kept)
{
    CUdeviceptr block;

    start("64G");
    block = must_alloc(&f, 64 * MIB);
    must_alloc(&f, 4096);
    give(block);
    fixture_home(&f)->kept.live_peak = 0;
    cr_assert_eq(surplus(MIB), 2 * MIB, "64 MiB and the live ones' piece");
    end();
}
