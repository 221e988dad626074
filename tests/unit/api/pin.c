/* Registrations over core: whose memory it is each time, and what they end. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/api/pin.h"
#include "core/process/reclaim.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

#define KIB ((size_t)1 << 10)

FIXTURE_SUITE(pin)

static unsigned pins, unpins;
static size_t pinned_bytes; /* by the last one */

static int pin(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle)
{
    *ret_handle = (void *)(uintptr_t)(8 * ++pins);
    pinned_bytes = size;
    return 0;
}

static int unpin(const struct gs_reg_key *key, void *handle)
{
    unpins++;
    return 0;
}

static const struct gs_reg_backend device = {.name = "test",
                                             .lends = true,
                                             .pin = pin,
                                             .unpin = unpin};

static void start(bool single)
{
    fixture_options(&f);
    f.options.single_stream = single;
    f.options.registrations = (struct gs_regcache_options){.count = 64, .bytes = UINT64_MAX};
    fixture_start(&f);
}

static struct gs_pin request(CUdeviceptr base, size_t size)
{
    return (struct gs_pin){.key = {.backend = &device, .domain = 1},
                           .base = base,
                           .size = size,
                           .keep = true};
}

static struct gs_reg *must_pin(CUdeviceptr base, size_t size)
{
    struct gs_pin wanted = request(base, size);
    struct gs_reg *reg;

    MUST(gs_core_pin(f.core, &wanted, &reg));
    return reg;
}

static gs_status use_once_in(uintptr_t domain, CUdeviceptr base, size_t size)
{
    struct gs_pin wanted = request(base, size);
    struct gs_reg *reg;
    gs_status status;

    wanted.key.domain = domain;
    status = gs_core_pin(f.core, &wanted, &reg);
    if (status == GS_OK)
        MUST(gs_regcache_release(f.core->regcache, reg));
    return status;
}

static gs_status use_once(CUdeviceptr base, size_t size)
{
    return use_once_in(1, base, size);
}

/* Memory of the driver's own, mapped where the caller says. */
static CUmemGenericAllocationHandle map_at(CUdeviceptr address)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = prop.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;

    MUST(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    MUST(cuMemMap(address, 2 * MIB, 0, handle, 0));
    MUST(cuMemSetAccess(address, 2 * MIB, &access, 1));
    return handle;
}

/* It goes and comes by calls that core is not told of, as some do. */
Test(pin, other_memory_at_the_same_address_is_registered_anew)
{
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;

    start(false);
    MUST(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
    for (unsigned i = 1; i <= 3; i++) {
        handle = map_at(address);
        MUST(use_once(address, 64 * KIB));
        MUST(use_once(address, 64 * KIB));
        cr_assert_eq(pins, i);
        MUST(cuMemUnmap(address, 2 * MIB));
        MUST(cuMemRelease(handle));
    }
    MUST(cuMemAddressFree(address, 2 * MIB));
    gs_core_context_going(f.core);
    cr_assert_eq(unpins, 3);
}

Test(pin, what_goes_ends_its_own_registrations_and_none_beside_it)
{
    CUmemGenericAllocationHandle handles[3];
    CUdeviceptr address;

    start(false);
    MUST(cuMemAddressReserve(&address, 6 * MIB, 0, 0, 0));
    for (unsigned i = 0; i < 3; i++) {
        handles[i] = map_at(address + i * 2 * MIB);
        MUST(use_once(address + i * 2 * MIB, 2 * MIB));
    }
    gs_core_foreign_going(f.core, address + 2 * MIB, 2 * MIB);
    cr_assert_eq(unpins, 1);
    MUST(use_once(address, 2 * MIB));
    MUST(use_once(address + 4 * MIB, 2 * MIB));
    cr_assert_eq(pins, 3);
    for (unsigned i = 0; i < 3; i++) {
        gs_core_foreign_going(f.core, address + i * 2 * MIB, 2 * MIB);
        MUST(cuMemUnmap(address + i * 2 * MIB, 2 * MIB));
        MUST(cuMemRelease(handles[i]));
    }
    cr_assert_eq(unpins, 3);
    MUST(cuMemAddressFree(address, 6 * MIB));
}

Test(pin, what_goes_by_its_address_goes_with_all_of_its_allocation)
{
    CUdeviceptr memory;

    start(false);
    MUST(cuMemAlloc(&memory, 2 * MIB));
    MUST(use_once(memory, 64 * KIB));
    MUST(use_once(memory + MIB, 64 * KIB));
    cr_assert_eq(pins, 2);
    gs_core_foreign_going(f.core, memory, 0);
    cr_assert_eq(unpins, 2);
    MUST(cuMemFree(memory));
}

/* Another device reaches the memory beside the GPU's streams. */
Test(pin, registering_memory_ends_the_order_of_the_single_stream)
{
    CUdeviceptr block;

    start(true);
    MUST(gs_core_alloc(f.core, 64 * KIB, &block));
    gs_single_submits(gs_core_single(f.core), CU_STREAM_LEGACY);
    cr_assert(gs_single_is(gs_core_single(f.core)));
    MUST(use_once(block, 64 * KIB));
    cr_assert_not(gs_single_is(gs_core_single(f.core)));
    MUST(gs_core_free(f.core, block));
}

Test(pin, of_a_block_its_pages_are_registered_and_none_of_another)
{
    CUdeviceptr low, high, large;

    start(false);
    MUST(gs_core_alloc(f.core, 128 * KIB, &low));
    MUST(gs_core_alloc(f.core, 128 * KIB, &high));
    cr_assert_eq(high, low + 128 * KIB);
    MUST(gs_core_alloc(f.core, 4 * MIB, &large));
    MUST(use_once(low, 128 * KIB));
    cr_assert_eq(pins, 1, "all of their piece, for both");
    MUST(use_once(high, 128 * KIB));
    cr_assert_eq(pins, 1);
    cr_assert_eq(use_once(low, 128 * KIB + 1), GS_NOT_LIVE);
    cr_assert_eq(use_once(high - 1, 2), GS_NOT_LIVE);
    MUST(use_once(large + 64 * KIB, 1));
    MUST(use_once(large + 64 * KIB, 64 * KIB));
    cr_assert_eq(pins, 2, "the rest of its page");
    MUST(use_once(large + 64 * KIB, 64 * KIB + 1));
    cr_assert_eq(pins, 3);
    MUST(use_once(low, 128 * KIB));
    MUST(gs_core_free(f.core, low));
    cr_assert_eq(use_once(low, 128 * KIB), GS_NOT_LIVE, "though what is kept covers it");
    MUST(use_once(high, 128 * KIB));
    MUST(gs_core_free(f.core, high));
    MUST(gs_core_free(f.core, large));
    fixture_end(&f);
    cr_assert_eq(unpins, pins);
}

Test(pin, of_a_block_across_pieces_every_part_is_known_to_be_freed)
{
    CUdeviceptr low, block, again;

    start(false);
    MUST(gs_core_alloc(f.core, 4 * MIB, &low));
    MUST(gs_core_free(f.core, low));
    MUST(cuCtxSynchronize());
    MUST(gs_core_alloc(f.core, 8 * MIB, &block));
    cr_assert_eq(block, low);
    cr_assert(gs_core_pin_crosses(f.core, block, 8 * MIB));
    cr_assert_not(gs_core_pin_crosses(f.core, block + 64 * KIB, MIB));
    for (int i = 0; i < 2; i++) {
        MUST(use_once(block, 8 * MIB));
        MUST(use_once(block + 4 * MIB - 1, 2));
        MUST(use_once(block + 6 * MIB, MIB));
        MUST(use_once_in(2, block + 6 * MIB, MIB));
        cr_assert_eq(pins, 2, "one of all of it, one in the upper piece");
    }
    MUST(gs_core_free(f.core, block));
    cr_assert_eq(use_once_in(2, block + 6 * MIB, MIB), GS_NOT_LIVE);
    cr_assert_eq(use_once(block + 6 * MIB, MIB), GS_NOT_LIVE);
    cr_assert_eq(use_once(block, MIB), GS_NOT_LIVE);
    cr_assert_eq(use_once(block, 8 * MIB), GS_NOT_LIVE);
    MUST(cuCtxSynchronize());
    MUST(gs_core_alloc(f.core, 8 * MIB, &again));
    cr_assert_eq(again, block);
    MUST(use_once(again + 6 * MIB, MIB));
    cr_assert_eq(pins, 2);
    MUST(gs_core_free(f.core, again));
    fixture_end(&f);
    cr_assert_eq(unpins, pins);
}

/* What happens before the end of a registration is told. */
static void (*before)(void);

void __real_gs_guard_ended(void *core, uint64_t base, size_t size);
void __wrap_gs_guard_ended(void *core, uint64_t base, size_t size);

void __wrap_gs_guard_ended(void *core, uint64_t base, size_t size)
{
    void (*now)(void) = before;

    before = NULL;
    if (now)
        now();
    __real_gs_guard_ended(core, base, size);
}

static void give_back(void)
{
    fixture_release(&f, true);
}

/* Of two pieces the lower one goes just then: a block in the upper one, which the registration of
 * both held, is told all the same. */
Test(pin, that_ends_over_a_piece_that_goes_holds_nothing_in_the_next)
{
    struct gs_reg *reg;
    struct gs_pin upper;
    CUdeviceptr both, low, high;

    start(false);
    MUST(gs_core_alloc(f.core, 4 * MIB, &low));
    MUST(gs_core_free(f.core, low));
    MUST(cuCtxSynchronize());
    MUST(gs_core_alloc(f.core, 8 * MIB, &both));
    cr_assert(gs_core_pin_crosses(f.core, both, 8 * MIB));
    MUST(use_once(both, 8 * MIB));
    MUST(gs_core_free(f.core, both));
    MUST(cuCtxSynchronize());
    MUST(gs_core_alloc(f.core, 4 * MIB, &low));
    MUST(gs_core_alloc(f.core, 4 * MIB, &high));
    cr_assert(low == both && high == both + 4 * MIB);
    upper = request(high, 4 * MIB);
    MUST(gs_core_pin(f.core, &upper, &reg));
    cr_assert_eq(pins, 1, "that of both serves");
    MUST(gs_core_free(f.core, low));
    MUST(gs_core_free(f.core, high));
    MUST(cuCtxSynchronize());
    fixture_drain(&f);
    cr_assert_eq(fixture_arena(&f).limbo, 4 * MIB);
    before = give_back;
    MUST(gs_regcache_release(f.core->regcache, reg));
    cr_assert_null(before);
    cr_assert_eq(fixture_arena(&f).limbo, 0);
}

static bool crosses(void)
{
    CUdeviceptr first, block;
    bool does;

    MUST(gs_core_alloc(f.core, MIB, &first)); /* leaves part of a piece */
    MUST(gs_core_alloc(f.core, 8 * MIB, &block));
    does = gs_core_pin_crosses(f.core, block, 8 * MIB);
    MUST(gs_core_free(f.core, first));
    MUST(gs_core_free(f.core, block));
    return does;
}

/* Cards that take no dma-buf, as the GPU has none: they register memory by its address, a piece at
 * a time. */
Test(pin, blocks_lie_inside_pieces_where_cards_register_memory_by_its_address)
{
    for (int i = 0; i < 4; i++) {
        bool by_address = i & 1, dma_bufs = i & 2;

        fixture_options(&f);
        f.options.by_address = by_address;
        fixture_start(&f);
        cr_assert_eq(softcuda_without(dma_bufs ? "" : "dma_buf"), 0);
        cr_assert_eq(crosses(), dma_bufs || !by_address, "%d", i);
        fixture_end(&f);
        cr_assert_eq(softcuda_without(""), 0);
    }
}

/* Where memory is scarce a piece is of 2 MiB, and of those what is pinned is all, but a block may
 * be more. */
Test(pin, of_a_block_across_small_pieces_all_of_it_is_pinned)
{
    CUdeviceptr rest, first, block;
    struct gs_reg *reg;
    size_t left, total;

    start(false);
    MUST(cuMemGetInfo(&left, &total));
    MUST(gs_core_alloc(f.core, (left - 8 * MIB) & ~(2 * MIB - 1), &rest));
    MUST(gs_core_alloc(f.core, 2 * MIB, &first));
    MUST(gs_core_free(f.core, first));
    MUST(cuCtxSynchronize());
    MUST(gs_core_alloc(f.core, 3 * MIB, &block));
    cr_assert_eq(block, first);
    cr_assert(gs_core_pin_crosses(f.core, block, 2 * MIB + 1));
    reg = must_pin(block, 3 * MIB);
    cr_assert_eq(pinned_bytes, 3 * MIB);
    MUST(gs_regcache_release(f.core->regcache, reg));
    MUST(gs_core_free(f.core, block));
    MUST(gs_core_free(f.core, rest));
}

Test(pin, what_is_registered_is_not_handed_out_before_that_ends)
{
    struct gs_reg *reg;
    CUdeviceptr block, next;

    start(false);
    MUST(gs_core_alloc(f.core, 8 * MIB, &block));
    reg = must_pin(block, 8 * MIB);
    MUST(gs_core_free(f.core, block));
    MUST(cuCtxSynchronize());
    MUST(gs_core_alloc(f.core, 8 * MIB, &next));
    cr_assert_neq(next, block);
    fixture_drain(&f);
    cr_assert_eq(fixture_arena(&f).limbo, 8 * MIB);
    MUST(gs_regcache_release(f.core->regcache, reg));
    cr_assert_eq(fixture_arena(&f).limbo, 0, "its end is heard of at once");
    MUST(gs_core_free(f.core, next));
}

/* Users that share a registration have all of its pages in use, and what else lies there. */
Test(pin, all_that_one_registration_held_goes_with_it)
{
    static const struct gs_reg_backend shared = {.name = "shared", .pin = pin, .unpin = unpin};
    CUdeviceptr block[3];
    struct gs_pin wanted;
    struct gs_reg *reg;

    start(false);
    for (int i = 0; i < 3; i++)
        MUST(gs_core_alloc(f.core, 16 * KIB, &block[i]));
    cr_assert_eq(block[0] / (64 * KIB), block[2] / (64 * KIB), "one page");
    wanted = request(block[1], 16 * KIB);
    wanted.key.backend = &shared;
    MUST(gs_core_pin(f.core, &wanted, &reg));
    for (int i = 0; i < 3; i++)
        MUST(gs_core_free(f.core, block[i]));
    MUST(cuCtxSynchronize());
    gs_core_cached(f.core);
    cr_assert_eq(fixture_arena(&f).limbo, 48 * KIB);
    MUST(gs_regcache_release(f.core->regcache, reg));
    cr_assert_eq(fixture_arena(&f).limbo, 0);
}

Test(pin, one_that_was_moved_holds_the_new_range)
{
    struct gs_pin wanted;
    struct gs_reg *reg;
    CUdeviceptr from, to;

    start(true);
    MUST(gs_core_alloc(f.core, 8 * MIB, &from));
    MUST(gs_core_alloc(f.core, 8 * MIB, &to));
    reg = must_pin(from, 8 * MIB);
    wanted = request(to, 8 * MIB);
    MUST(gs_core_repin(f.core, reg, &wanted));
    MUST(gs_core_free(f.core, from));
    MUST(gs_core_free(f.core, to));
    MUST(cuCtxSynchronize());
    gs_core_cached(f.core);
    cr_assert_eq(fixture_arena(&f).limbo, 8 * MIB);
    MUST(gs_regcache_release(f.core->regcache, reg));
    cr_assert_eq(fixture_arena(&f).limbo, 0);
}

/* The program frees what is registered, and then moves the registration elsewhere. */
Test(pin, what_one_that_moves_leaves_is_free_at_once)
{
    struct gs_pin wanted;
    struct gs_reg *reg;
    CUdeviceptr from, to;

    start(false);
    MUST(gs_core_alloc(f.core, 8 * MIB, &from));
    MUST(gs_core_alloc(f.core, 8 * MIB, &to));
    reg = must_pin(from, 8 * MIB);
    MUST(gs_core_free(f.core, from));
    MUST(cuCtxSynchronize());
    gs_core_cached(f.core);
    cr_assert_eq(fixture_arena(&f).limbo, 8 * MIB);
    wanted = request(to, 8 * MIB);
    MUST(gs_core_repin(f.core, reg, &wanted));
    cr_assert_eq(fixture_arena(&f).limbo, 0);
    MUST(gs_regcache_release(f.core->regcache, reg));
    MUST(gs_core_free(f.core, to));
}

/* Once to memory of the driver's own, then to the host's. */
Test(pin, one_that_was_moved_off_the_gpu_holds_nothing)
{
    CUdeviceptr from, driver;
    struct gs_pin wanted;
    struct gs_reg *reg;

    start(false);
    MUST(gs_core_alloc(f.core, 8 * MIB, &from));
    MUST(cuMemAlloc(&driver, 2 * MIB));
    reg = must_pin(from, 8 * MIB);
    wanted = request(driver, 2 * MIB);
    MUST(gs_core_repin(f.core, reg, &wanted));
    wanted = request(from, 8 * MIB);
    MUST(gs_core_repin(f.core, reg, &wanted));
    wanted = request((CUdeviceptr)(uintptr_t)&wanted, sizeof wanted);
    cr_assert_eq(gs_core_repin(f.core, reg, &wanted), GS_NOT_OURS);
    MUST(gs_core_free(f.core, from));
    MUST(cuCtxSynchronize());
    gs_core_cached(f.core);
    cr_assert_eq(fixture_arena(&f).limbo, 0);
    MUST(cuMemFree(driver));
}
