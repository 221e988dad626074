/* Calls of any kind, one after the other, in any order: what the arenas say of their memory adds
 * up. */
#include <criterion/criterion.h>

#include "core/api/core.h"
#include "core/gpu/single.h"
#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/reclaim.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/process/sums.h"

#define SLOTS   48
#define STREAMS 3

static struct fixture f;
static CUdeviceptr slot[SLOTS];
static size_t size_of[SLOTS];
static unsigned home[SLOTS]; /* the stream of all its work */
static CUstream stream[STREAMS];
static unsigned seed, streams = STREAMS;
static bool may_fail; /* driver calls do */
static unsigned depth;

static unsigned below(unsigned limit)
{
    return (unsigned)rand_r(&seed) % limit;
}

static size_t any_size(void)
{
    switch (below(8)) {
    case 0:
        return 1 + below(4096);
    case 1:
    case 2:
        return 1 + below((unsigned)MIB);
    case 3:
    case 4:
        return MIB + below((unsigned)(8 * MIB));
    case 5:
        return (1 + below(16)) * 2 * MIB;
    case 6:
        return MIB + below((unsigned)(60 * MIB));
    default:
        return 6 * MIB;
    }
}

/* No block is where another one is. */
static void is_nobody_elses(unsigned own)
{
    for (unsigned i = 0; i < SLOTS; i++)
        cr_assert(i == own || !slot[i] || slot[i] >= slot[own] + size_of[own] ||
                      slot[i] + size_of[i] <= slot[own],
                  "two blocks of the same memory");
}

static void take(void)
{
    unsigned i = below(SLOTS), own = below(streams);
    size_t size = any_size();
    gs_status status;
    CUdeviceptr address;

    if (slot[i])
        return;
    status = below(3) ? gs_core_alloc(f.core, size, &address)
                      : gs_core_alloc_async(f.core, size, NULL, stream[own], &address);
    cr_assert(status == GS_OK || gs_is_out(status) || (may_fail && (int)status > 0), "%d", status);
    if (status != GS_OK)
        return;
    if (slot[i]) { /* meanwhile */
        MUST(gs_core_free(f.core, address));
        return;
    }
    slot[i] = address;
    size_of[i] = size;
    home[i] = own;
    is_nobody_elses(i);
}

static void put(void)
{
    unsigned i = below(SLOTS);
    CUdeviceptr address = slot[i];

    if (!address)
        return;
    slot[i] = 0;
    if (below(3))
        MUST(gs_core_free(f.core, address));
    else
        MUST(gs_core_free_async(f.core, address, stream[home[i]]));
}

static void work(void)
{
    unsigned i = below(SLOTS);

    if (!slot[i])
        return;
    gs_single_submits(gs_core_single(f.core), stream[home[i]]);
    fixture_spin_fill(&f, stream[home[i]], slot[i], 1, 1, below(4) ? 0 : 200000);
}

static void other_things(void)
{
    struct gs_arena *arena = fixture_home(&f);
    struct gs_piece *piece;

    switch (below(8)) {
    case 0:
        fixture_drain(&f);
        break;
    case 1:
        fixture_release(&f, below(2));
        break;
    case 2:
        gs_core_mempool_trim(f.core, 0, below(200) * MIB);
        break;
    case 3: {
        CUstream gone = stream[2];

        if (depth > 0) /* it may be the one that is allocated for */
            break;
        MUST(cuStreamSynchronize(gone));
        gs_core_stream_gone(f.core, gone);
        MUST(cuStreamDestroy(gone));
        MUST(cuStreamCreate(&stream[2], CU_STREAM_NON_BLOCKING));
        break;
    }
    case 4:
        gs_device_yield(f.core, &f.core->device[0], below(64) * MIB);
        break;
    default:
        gs_latch_take(&arena->lock);
        gs_arena_merge_quick_locked(arena);
        piece = gs_arena_detach_locked(arena, 1, below(2) ? SIZE_MAX : below(40) * MIB);
        gs_latch_release(&arena->lock);
        gs_pieces_unmap(f.core, piece);
    }
}

static void step(void)
{
    unsigned what = below(100);

    if (what < 45)
        take();
    else if (what < 85)
        put();
    else if (what < 95)
        work();
    else
        other_things();
}

/* While a driver's call is made for one, others go on. */
static CUresult (*real_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                               unsigned long long);
static CUresult (*real_unmap)(CUdeviceptr, size_t);

static void meanwhile(void)
{
    if (depth >= 3)
        return;
    depth++;
    for (unsigned steps = below(4); steps > 0; steps--)
        step();
    depth--;
}

static CUresult create_and_more(CUmemGenericAllocationHandle *handle, size_t size,
                                const CUmemAllocationProp *properties, unsigned long long flags)
{
    meanwhile();
    return real_create(handle, size, properties, flags);
}

static CUresult unmap_and_more(CUdeviceptr address, size_t size)
{
    meanwhile();
    return real_unmap(address, size);
}

static void fail_something(void)
{
    static const char *const calls[] = {"cuMemCreate",   "cuMemMap",         "cuMemSetAccess",
                                        "cuEventCreate", "cuCtxRecordEvent", "cuMemGetInfo"};

    softcuda_reset();
    cr_assert_eq(softcuda_fail(calls[below(6)], 1 + below(3),
                               below(2) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN),
                 0);
}

static void live(unsigned number, unsigned steps, const char *memory)
{
    struct softcuda_census census;

    seed = number;
    memset(slot, 0, sizeof slot);
    setenv("SOFTCUDA_MEMORY", memory, 1);
    for (unsigned i = 0; i < STREAMS; i++)
        stream[i] = NULL;
    fixture_start(&f);
    for (unsigned i = 1; i < STREAMS; i++)
        MUST(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    MUST(gs_core_free(f.core, must_alloc(&f, 512))); /* the device was tried before */
    real_create = fixture_driver(&f)->mem_create;
    real_unmap = fixture_driver(&f)->mem_unmap;
    fixture_driver(&f)->mem_create = create_and_more;
    fixture_driver(&f)->mem_unmap = unmap_and_more;
    for (unsigned i = 0; i < steps; i++) {
        if (may_fail && i % 16 == 0)
            fail_something();
        step();
        if (i % 16 == 15)
            must_add_up(&f);
    }
    softcuda_reset();
    depth = 3; /* nothing more */
    for (unsigned i = 0; i < SLOTS; i++)
        if (slot[i])
            MUST(gs_core_free(f.core, slot[i]));
    fixture_release(&f, true);
    must_add_up(&f);
    cr_assert_eq(fixture_arena(&f).reserved, 0, "all goes in the end");
    cr_assert_eq(gs_limit_used(f.core, 0), 0);
    depth = 0;
    for (unsigned i = 1; i < STREAMS; i++)
        MUST(cuStreamDestroy(stream[i]));
    fixture_end(&f);
    softcuda_census(&census);
    cr_assert_eq(census.handles + census.mappings + census.reservations + census.events, 0);
    cr_assert_eq(census.device_bytes, 0);
}

static void lives(const char *memory)
{
    for (unsigned number = 1; number <= 12; number++)
        live(number, 500, memory);
}

Test(anything, adds_up, .timeout = 120)
{
    fixture_options(&f);
    lives("16G");
}

Test(anything, adds_up_in_pieces_of_4_mib, .timeout = 120)
{
    fixture_options(&f);
    lives("1G");
}

Test(anything, adds_up_on_a_full_device, .timeout = 120)
{
    fixture_options(&f);
    lives("300M");
}

Test(anything, adds_up_with_one_stream, .timeout = 120)
{
    fixture_options(&f);
    f.options.single_stream = true;
    streams = 1;
    lives("1G");
}

Test(anything, adds_up_with_a_limit, .timeout = 120)
{
    fixture_options(&f);
    f.options.limit.bytes = 200 * MIB;
    lives("1G");
}

Test(anything, adds_up_where_calls_fail, .timeout = 120)
{
    fixture_options(&f);
    may_fail = true;
    lives("1G");
}

Test(anything, adds_up_without_crossing, .timeout = 120)
{
    fixture_options(&f);
    f.options.cross = false;
    lives("1G");
}

Test(anything, adds_up_with_whole_pieces, .timeout = 120)
{
    fixture_options(&f);
    f.options.cross = false;
    f.options.whole_pieces = true;
    lives("1G");
}
