/* What happens while an arena grows: its lock is let go for each piece that is made, and each may
 * fail. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/reclaim.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/process/sums.h"

static struct fixture f;
static unsigned warnings;

static void count_warnings(enum gs_log_level level, const void *place, const char *text)
{
    warnings += level <= GS_LOG_WARNING && strstr(text, "no addresses could be reserved");
}

static void prepare(const char *memory)
{
    setenv("SOFTCUDA_MEMORY", memory, 1);
    fixture_options(&f);
    f.options.log.line = count_warnings;
}

static void end(void)
{
    must_add_up(&f);
    fixture_end(&f);
}

/* Access is refused to what was mapped, and then the mapping's end. */
Test(growing, addresses_that_the_driver_keeps_are_had_by_nobody)
{
    CUdeviceptr address;
    size_t before;

    prepare("1G");
    fixture_start(&f);
    must_alloc(&f, 4 * MIB);
    before = gs_limit_used(f.core, 0);
    cr_assert_eq(softcuda_fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN), 0);
    cr_assert_eq(softcuda_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN), 0);
    cr_assert_eq(gs_core_alloc(f.core, 40 * MIB, &address), (gs_status)CUDA_ERROR_UNKNOWN);
    cr_assert_gt(gs_limit_used(f.core, 0), before);
    must_alloc(&f, 40 * MIB); /* elsewhere */
}

/* ---- Others in between --------------------------------------------------------------------- */

static CUresult (*real_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                               unsigned long long);
static void (*moment)(unsigned nth);
static unsigned creates;

static CUresult create_with_a_moment(CUmemGenericAllocationHandle *handle, size_t size,
                                     const CUmemAllocationProp *properties,
                                     unsigned long long flags)
{
    void (*now)(unsigned) = moment;

    if (now) {
        moment = NULL; /* what it does itself has none */
        now(++creates);
        moment = now;
    }
    return real_create(handle, size, properties, flags);
}

static void start_with(void (*what)(unsigned nth), const char *memory)
{
    prepare(memory);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 512))); /* the device was tried before */
    real_create = fixture_driver(&f)->mem_create;
    fixture_driver(&f)->mem_create = create_with_a_moment;
    creates = 0;
    moment = what;
}

static CUdeviceptr block[8], other;

static void give(CUdeviceptr address)
{
    MUST(gs_core_free(f.core, address));
    fixture_drain(&f);
}

static void fill(unsigned count, size_t size)
{
    void (*kept)(unsigned) = moment;

    moment = NULL;
    for (unsigned i = 0; i < count; i++) {
        block[i] = must_alloc(&f, size);
        cr_assert(i == 0 || block[i] == block[i - 1] + size);
    }
    moment = kept;
}

static void take_as_much(unsigned nth)
{
    if (nth == 1)
        other = must_alloc(&f, 64 * MIB);
}

Test(growing, what_is_free_beside_the_place_is_nobodys_meanwhile)
{
    start_with(take_as_much, "16G");
    fill(2, 64 * MIB);
    give(block[1]);
    cr_assert_eq(must_alloc(&f, 100 * MIB), block[1]);
    cr_assert(other < block[0] || other >= block[1] + 100 * MIB);
    end();
}

/* Their memory is the driver's: holes. */
static void take_out(unsigned first, unsigned count, size_t size)
{
    struct gs_arena *arena = fixture_home(&f);
    struct gs_piece *pieces;

    for (unsigned i = first; i < first + count; i++)
        give(block[i]);
    gs_latch_take(&arena->lock);
    gs_arena_merge_quick_locked(arena);
    pieces = gs_arena_detach_locked(arena, count * size, SIZE_MAX);
    gs_latch_release(&arena->lock);
    cr_assert_eq(gs_pieces_unmap(f.core, pieces), count * size);
}

Test(growing, what_is_free_above_the_place_is_nobodys_meanwhile)
{
    start_with(take_as_much, "16G");
    fill(4, 64 * MIB);
    take_out(1, 1, 64 * MIB);
    give(block[2]);
    cr_assert_eq(must_alloc(&f, 128 * MIB), block[1]);
    cr_assert(other < block[1] || other >= block[1] + 128 * MIB);
    end();
}

Test(growing, what_is_free_above_the_place_is_anybodys_where_it_is_not_needed)
{
    start_with(take_as_much, "16G");
    fill(5, 64 * MIB);
    take_out(1, 2, 64 * MIB);
    give(block[3]);
    cr_assert_eq(must_alloc(&f, 100 * MIB), block[1]);
    cr_assert_eq(other, block[3]);
    end();
}

static bool is_over;

static void *take_what_is_aside(void *unused)
{
    (void)unused;
    cr_assert_eq(cuCtxSetCurrent(f.context), CUDA_SUCCESS);
    other = must_alloc(&f, 64 * MIB);
    __atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
    return NULL;
}

static pthread_t second;

/* Until the second thread has failed, or waits for this one. */
static void let_another_try(unsigned nth)
{
    if (nth > 1)
        return;
    softcuda_fail("cuMemCreate", 0, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(pthread_create(&second, NULL, take_what_is_aside, NULL), 0);
    for (int i = 0; i < 200 && !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
}

Test(growing, what_a_growth_had_aside_that_failed_serves_another_that_was_refused)
{
    struct gs_arena *arena;

    start_with(let_another_try, "1G");
    arena = fixture_home(&f);
    fill(2, 64 * MIB);
    give(block[1]);
    cr_assert_eq(gs_arena_grow(f.core, arena, arena->made_ns, 100 * MIB, &block[2]),
                 (gs_status)CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(pthread_join(second, NULL), 0);
    cr_assert_eq(other, block[1]);
    softcuda_reset();
    end();
}

static void free_beside(unsigned nth)
{
    if (nth == 1)
        give(block[1]);
}

Test(growing, what_becomes_free_beside_it_meanwhile_is_one_with_the_rest)
{
    start_with(free_beside, "16G");
    fill(2, 64 * MIB);
    cr_assert_eq(must_alloc(&f, 40 * MIB), block[1]);
    moment = NULL;
    give(block[1]);
    cr_assert_eq(must_alloc(&f, 104 * MIB), block[1], "all of it");
    end();
}

static void free_all_around(unsigned nth)
{
    give(block[nth - 1]);
}

Test(growing, what_becomes_free_around_a_hole_meanwhile_is_one_with_the_rest)
{
    start_with(free_all_around, "1G"); /* of pieces of 4 MiB */
    fill(4, 4 * MIB);
    take_out(1, 2, 4 * MIB);
    block[1] = block[3];
    cr_assert_eq(must_alloc(&f, 8 * MIB), block[0], "from where it begins now");
    cr_assert_eq(creates, 2);
    moment = NULL;
    must_add_up(&f);
    give(block[0]);
    cr_assert_eq(must_alloc(&f, 16 * MIB), block[0]);
    end();
}

static void grow_as_well(unsigned nth)
{
    if (nth <= 4)
        block[nth] = must_alloc(&f, 9 * MIB);
}

Test(growing, several_grow_at_once_each_in_a_place_of_its_own)
{
    start_with(grow_as_well, "1G");
    block[0] = must_alloc(&f, 16 * MIB);
    moment = NULL;
    cr_assert_geq(creates, 4);
    for (int i = 1; i <= 4; i++) {
        cr_assert(block[i] >= block[0] + 16 * MIB || block[i] + 9 * MIB <= block[0]);
        for (int j = 1; j < i; j++)
            cr_assert(block[i] >= block[j] + 9 * MIB || block[i] + 9 * MIB <= block[j]);
    }
    must_add_up(&f);
    for (int i = 0; i <= 4; i++)
        give(block[i]);
    end();
}

/* All that can leave leaves: not what a block that is being made will lie in. */
static void let_all_go(unsigned nth)
{
    fixture_release(&f, true);
}

Test(growing, what_is_made_does_not_leave_before_the_block_is_there)
{
    start_with(let_all_go, "1G");
    block[0] = must_alloc(&f, 30 * MIB);
    MUST(gs_core_find(f.core, block[0] + 30 * MIB - 1, &(struct gs_block_info){0}));
    cr_assert_eq(fixture_arena(&f).live, 30 * MIB);
    moment = NULL;
    end();
}

static size_t waits_behind;

static void ask_what_is_behind(unsigned nth)
{
    struct gs_arena *arena = fixture_home(&f);

    gs_latch_take(&arena->lock);
    waits_behind += gs_arena_behind_locked(arena, 2 * MIB, 1);
    gs_latch_release(&arena->lock);
}

/* Else other threads would wait for the GPU on account of it. */
Test(growing, what_is_beside_the_place_does_not_count_as_behind_the_gpu)
{
    start_with(ask_what_is_behind, "64G");
    fill(2, 512 * MIB);
    give(block[1]);
    cr_assert_eq(must_alloc(&f, 600 * MIB), block[1]);
    moment = NULL;
    cr_assert_gt(creates, 0);
    cr_assert_eq(waits_behind, 0);
    end();
}

static CUcontext ending;

static void end_the_context(unsigned nth)
{
    struct gs_context *detached;
    CUcontext popped;

    if (nth != 3)
        return;
    detached = gs_core_context_detach(f.core, ending);
    cr_assert_not_null(detached);
    MUST(cuCtxPopCurrent(&popped));
    MUST(cuCtxDestroy(ending));
    gs_core_context_gone(f.core, ending, detached);
    MUST(cuCtxSetCurrent(f.context));
}

Test(growing, a_context_may_end_under_it)
{
    struct softcuda_census before, after;

    start_with(NULL, "1G");
    softcuda_census(&before);
    for (int beside = 0; beside < 2; beside++) {
        ending = fixture_context_new();
        fill(3, 10 * MIB);
        if (beside) /* what is set aside goes as well */
            give(block[2]);
        creates = 0;
        moment = end_the_context;
        cr_assert_eq(gs_core_alloc(f.core, 40 * MIB, &block[3]), GS_NO_CONTEXT);
        moment = NULL;
        must_add_up(&f);
        gs_context_trim_dead(f.core);
        softcuda_census(&after);
        cr_assert_eq(after.handles, before.handles);
        cr_assert_eq(after.mappings, before.mappings);
        cr_assert_eq(after.reservations, before.reservations);
        cr_assert_eq(gs_core_find(f.core, block[0], &(struct gs_block_info){0}), GS_NOT_OURS);
    }
    end();
}

/* ---- Calls that fail ------------------------------------------------------------------------ */

struct seen {
    struct softcuda_census census;
    struct fixture_arena arena;
    size_t used;
};

static struct seen look(void)
{
    struct seen seen = {.arena = fixture_arena(&f), .used = gs_limit_used(f.core, 0)};

    softcuda_census(&seen.census);
    return seen;
}

static void must_be_as_before(const struct seen *before, const char *call, unsigned nth)
{
    struct seen after = look();

    cr_assert_eq(after.census.handles, before->census.handles, "%s %u", call, nth);
    cr_assert_eq(after.census.mappings, before->census.mappings, "%s %u", call, nth);
    cr_assert_eq(after.census.reservations, before->census.reservations, "%s %u", call, nth);
    cr_assert_eq(after.census.device_bytes, before->census.device_bytes, "%s %u", call, nth);
    cr_assert_eq(after.arena.reserved, before->arena.reserved, "%s %u", call, nth);
    cr_assert_eq(after.arena.live, before->arena.live, "%s %u", call, nth);
    cr_assert_eq(after.arena.free_bytes, before->arena.free_bytes, "%s %u", call, nth);
    cr_assert_eq(after.used, before->used, "%s %u", call, nth);
}

static const char *const making[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess"};

/* Ten pieces, or what is missing of them beside what is free already. */
static void fails_at(const char *call, unsigned nth, bool beside, bool hole)
{
    struct seen before;

    prepare("1G");
    fixture_start(&f);
    fill(hole ? 5 : 2, 12 * MIB);
    if (hole)
        give(block[2]), fixture_release(&f, false);
    if (beside)
        give(block[1]);
    before = look();
    cr_assert_eq(softcuda_fail(call, nth, CUDA_ERROR_UNKNOWN), 0);
    cr_assert_eq(gs_core_alloc(f.core, 40 * MIB, &other), (gs_status)CUDA_ERROR_UNKNOWN, "%s %u",
                 call, nth);
    softcuda_reset();
    must_add_up(&f);
    must_be_as_before(&before, call, nth);
    other = must_alloc(&f, 40 * MIB);
    MUST(gs_core_free(f.core, other));
    for (int i = 0; i < 2 - beside; i++)
        MUST(gs_core_free(f.core, block[i]));
    end();
}

Test(growing, a_call_that_fails_leaves_nothing_and_its_error_is_the_programs, .timeout = 60)
{
    for (size_t i = 0; i < sizeof making / sizeof *making; i++)
        for (unsigned nth = 1; nth <= 7; nth++)
            for (int how = 0; how < 4; how++)
                fails_at(making[i], nth, how & 1, how & 2);
}

/* Memory that is out for a moment is asked for again. */
Test(growing, a_call_that_lacks_memory_once_is_made_again, .timeout = 60)
{
    for (size_t i = 0; i < sizeof making / sizeof *making; i++)
        for (unsigned nth = 1; nth <= 10; nth++) {
            prepare("1G");
            fixture_start(&f);
            fill(2, 12 * MIB);
            give(block[1]);
            cr_assert_eq(softcuda_fail(making[i], nth, CUDA_ERROR_OUT_OF_MEMORY), 0);
            other = must_alloc(&f, 52 * MIB);
            softcuda_reset();
            cr_assert_eq(fixture_arena(&f).live, 64 * MIB);
            end();
        }
}

Test(growing, memory_that_is_out_leaves_what_there_was, .timeout = 60)
{
    for (size_t i = 0; i < sizeof making / sizeof *making; i++) {
        struct seen before;

        prepare("1G");
        fixture_start(&f);
        fill(2, 12 * MIB);
        before = look();
        cr_assert_eq(softcuda_fail(making[i], 0, CUDA_ERROR_OUT_OF_MEMORY), 0);
        cr_assert_eq(gs_core_alloc(f.core, 40 * MIB, &other), GS_NO_MEMORY);
        softcuda_reset();
        must_add_up(&f);
        must_be_as_before(&before, making[i], 0);
        end();
    }
}

/* Of a limit that a part of the pieces would keep. */
Test(growing, a_limit_lets_in_all_of_a_block_or_none_of_it)
{
    struct seen before;

    prepare("1G");
    f.options.limit.bytes = 64 * MIB;
    fixture_start(&f);
    other = must_alloc(&f, 20 * MIB);
    before = look();
    cr_assert_eq(gs_core_alloc(f.core, 46 * MIB, &block[0]), GS_NO_MEMORY);
    must_be_as_before(&before, "limit", 0);
    cr_assert_eq(fixture_counts(&f).grown, 5, "no piece was made in vain");
    must_alloc(&f, 44 * MIB);
    end();
}

/* ---- Addresses ------------------------------------------------------------------------------- */

Test(growing, where_no_addresses_are_to_be_had_memory_is_the_drivers_which_is_said_once)
{
    prepare("1G");
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 512)));
    cr_assert_eq(softcuda_fail("cuMemAddressReserve", 0, CUDA_ERROR_OUT_OF_MEMORY), 0);
    warnings = 0;
    for (int i = 0; i < 3; i++)
        cr_assert_eq(gs_core_alloc(f.core, 4 * MIB, &other), GS_NOT_OFFERED);
    cr_assert_eq(warnings, 1);
    softcuda_reset();
    MUST(gs_core_alloc(f.core, 4 * MIB, &other));
    end();
}

/* As `ulimit -v` has it: a 64th of what is wanted is beyond that. */
Test(growing, a_bound_of_addresses_leaves_memory_to_the_driver_which_is_said_once)
{
    struct rlimit before, little;
    unsigned long pages;
    FILE *file;

#ifdef __SANITIZE_ADDRESS__
    cr_skip("it needs addresses itself");
#endif
    prepare("1G");
    file = fopen("/proc/self/statm", "re");
    cr_assert(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    cr_assert_eq(getrlimit(RLIMIT_AS, &before), 0);
    little = (struct rlimit){pages * (rlim_t)sysconf(_SC_PAGESIZE) + 24 * MIB, before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_AS, &little), 0);
    fixture_start(&f);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(gs_core_alloc(f.core, i == 1 ? 512 : 4 * MIB, &other), GS_NOT_OFFERED);
    cr_assert_eq(setrlimit(RLIMIT_AS, &before), 0);
    cr_assert_eq(warnings, 1);
    MUST(gs_core_alloc(f.core, 4 * MIB, &other));
    end();
}

/* A 64th of what is wanted will do; what does not fit there is the driver's. */
Test(growing, fewer_addresses_serve_until_they_are_all_used)
{
    static const size_t region = 2 * 1024 * MIB / 8;
    size_t had = 0;
    gs_status status;

    prepare("1G");
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 512)));
    for (unsigned nth = 1; nth <= 3; nth++)
        cr_assert_eq(softcuda_fail("cuMemAddressReserve", nth, CUDA_ERROR_OUT_OF_MEMORY), 0);
    while ((status = gs_core_alloc(f.core, 20 * MIB, &other)) == GS_OK)
        had += 20 * MIB;
    cr_assert_eq(status, GS_NOT_OFFERED);
    cr_assert_eq(had, region / (20 * MIB) * (20 * MIB));
    MUST(gs_core_alloc(f.core, 2 * MIB, &other));
    end();
}

Test(growing, no_fewer_than_a_64th_of_the_addresses_are_taken)
{
    prepare("1G");
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 512)));
    softcuda_reset();
    cr_assert_eq(softcuda_fail("cuMemAddressReserve", 0, CUDA_ERROR_OUT_OF_MEMORY), 0);
    cr_assert_eq(gs_core_alloc(f.core, 2 * MIB, &other), GS_NOT_OFFERED);
    cr_assert_eq(softcuda_calls("cuMemAddressReserve"), 7, "2048, 1024, 512, 256, 128, 64, 32 MiB");
    softcuda_reset();
    end();
}

static CUresult (*real_info)(size_t *, size_t *);
static CUcontext looked_in;

static CUresult info_of(size_t *left, size_t *total)
{
    if (!looked_in)
        MUST(cuCtxGetCurrent(&looked_in));
    return real_info(left, total);
}

/* Any other one may be ended by a thread of the program's, or have an error. */
Test(growing, what_is_left_is_looked_at_in_the_arenas_own_context)
{
    CUcontext own;

    prepare("1G");
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 512))); /* the first one's arena is there */
    own = fixture_context_new();
    real_info = fixture_driver(&f)->mem_get_info;
    fixture_driver(&f)->mem_get_info = info_of;
    f.core->figures.left[0] = 0;
    MUST(gs_core_free(f.core, must_alloc(&f, 4 * MIB)));
    cr_assert_eq(looked_in, own);
    fixture_context_end(&f, own);
    end();
}
