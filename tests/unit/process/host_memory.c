/* Host memory that is out: at each place where an arena asks for some, nothing is lost or left half
 * made. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/own.h"
#include "tests/driver/softcuda.h"
#include "tests/unit/process/sums.h"

static struct fixture f;
static unsigned until_out; /* calls of this thread; 0: there is enough */
static _Thread_local bool counted;
static uint64_t *changes; /* one more of those at that call, if set */
static long kept;         /* what is malloc's to get back, but for the driver's; atomic */

/* A sanitizer's library links only with those that can be seen. */
void *__real_calloc(size_t count, size_t size);
__attribute__((visibility("default"))) void *__wrap_calloc(size_t count, size_t size);
void *__real_malloc(size_t size);
__attribute__((visibility("default"))) void *__wrap_malloc(size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
__attribute__((visibility("default"))) void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *memory);
__attribute__((visibility("default"))) void __wrap_free(void *memory);

static void *counts(void *memory)
{
    if (memory)
        __atomic_add_fetch(&kept, 1, __ATOMIC_RELAXED);
    return memory;
}

static bool is_out(void)
{
    if (!counted || until_out == 0 || --until_out > 0)
        return false;
    if (changes)
        ++*changes;
    return !changes;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return is_out() ? NULL : counts(__real_calloc(count, size));
}

void *__wrap_malloc(size_t size)
{
    return is_out() ? NULL : counts(__real_malloc(size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_out() ? NULL : counts(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *memory)
{
    if (memory)
        __atomic_sub_fetch(&kept, 1, __ATOMIC_RELAXED);
    __real_free(memory);
}

struct held {
    unsigned handles, mappings;
    size_t used;
};

static struct held held(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return (struct held){census.handles, census.mappings, gs_limit_used(f.core, 0)};
}

/* From this one on, of which each is run without the nth memory that it asks for. True: it asks for
 * no more. */
static bool fails_at(unsigned nth, gs_status (*call)(CUdeviceptr *ret))
{
    CUdeviceptr address = 0;
    struct held before = held(), after;
    gs_status status;
    bool all;

    until_out = nth;
    counted = true;
    status = call(&address);
    counted = false;
    all = until_out > 0;
    until_out = 0;
    must_add_up(&f);
    after = held();
    cr_assert(status == GS_OK || status == GS_NO_HOST_MEMORY, "%u: %d", nth, status);
    cr_assert_eq(after.handles, after.mappings, "%u", nth);
    cr_assert_eq(after.used, fixture_arena(&f).reserved, "%u", nth);
    if (status == GS_OK)
        MUST(gs_core_free(f.core, address));
    else if (!address) /* of one call */
        cr_assert(after.mappings == before.mappings && after.used == before.used, "%u", nth);
    fixture_drain(&f);
    must_add_up(&f);
    return all;
}

static gs_status across(CUdeviceptr *ret)
{
    return gs_core_alloc(f.core, 40 * MIB, ret);
}

static gs_status small(CUdeviceptr *ret)
{
    return gs_core_alloc(f.core, 300 << 10, ret);
}

static gs_status ordered(CUdeviceptr *ret)
{
    gs_status status = gs_core_alloc_async(f.core, 10 * MIB, NULL, NULL, ret);

    if (status != GS_OK)
        return status;
    MUST(gs_core_free_async(f.core, *ret, NULL));
    return gs_core_alloc_async(f.core, 6 * MIB, NULL, NULL, ret);
}

static gs_status freed(CUdeviceptr *ret)
{
    gs_status status = gs_core_alloc(f.core, 12 * MIB, ret);

    if (status != GS_OK)
        return status;
    MUST(gs_core_free(f.core, *ret));
    return gs_core_alloc(f.core, 20 * MIB, ret);
}

/* An arena of which each has its pieces still to be made, beside what is free and what is not. */
static void each(gs_status (*call)(CUdeviceptr *ret))
{
    CUdeviceptr block[3];
    unsigned nth = 1;
    bool all = false;

    while (!all) {
        setenv("SOFTCUDA_MEMORY", "1G", 1);
        fixture_options(&f);
        f.options.epoch_bytes = 1; /* one for each free */
        fixture_start(&f);
        for (int i = 0; i < 3; i++)
            block[i] = must_alloc(&f, 6 * MIB);
        MUST(gs_core_free(f.core, block[2]));
        fixture_drain(&f);
        all = fails_at(nth++, call);
        MUST(gs_core_free(f.core, block[0]));
        MUST(gs_core_free(f.core, block[1]));
        fixture_end(&f);
    }
    cr_assert_gt(nth, 2, "some was asked for");
}

Test(host_memory, out_while_a_block_is_made_across_pieces, .timeout = 60)
{
    each(across);
}

Test(host_memory, out_while_a_small_block_is_made, .timeout = 60)
{
    each(small);
}

Test(host_memory, out_while_memory_is_freed_in_the_order_of_a_stream, .timeout = 60)
{
    each(ordered);
}

Test(host_memory, out_while_memory_is_freed, .timeout = 60)
{
    each(freed);
}

Test(host_memory, out_while_a_context_is_seen_first, .timeout = 60)
{
    unsigned nth = 1;

    do {
        if (nth > 1)
            fixture_end(&f);
        fixture_options(&f);
        fixture_start(&f);
    } while (!fails_at(nth++, small));
    cr_assert_gt(nth, 5, "a context, an arena and its first piece");
    fixture_end(&f);
    cr_assert_eq(kept, 0);
}

Test(host_memory, out_while_a_core_is_made, .timeout = 60)
{
    struct gs_core *core;
    gs_status status;
    long before;

    fixture_options(&f);
    fixture_start(&f);
    f.options.share.enable = f.options.user_vmm = true;
    snprintf(f.options.share.dir, sizeof f.options.share.dir, "/tmp/gpushim-kept-%d",
             (int)getpid());
    before = kept;
    for (unsigned nth = 1; until_out == 0; nth++) {
        until_out = nth;
        counted = true;
        status = gs_core_create(fixture_driver(&f), &f.options, &core);
        counted = false;
        cr_assert_eq(status, until_out > 0 ? GS_OK : GS_NO_HOST_MEMORY, "%u", nth);
        if (status == GS_OK)
            gs_core_destroy(core);
        cr_assert_eq(kept, before, "%u", nth);
    }
    until_out = 0;
    fixture_end(&f);
    rmdir(f.options.share.dir);
}

/* A piece leaves out of the midst of what is free: the rests need records. */
Test(host_memory, out_while_pieces_leave, .timeout = 60)
{
    for (unsigned nth = 1; nth < 8; nth++) {
        CUdeviceptr block[6];
        struct gs_arena *arena;

        setenv("SOFTCUDA_MEMORY", "1G", 1);
        fixture_options(&f);
        fixture_start(&f);
        for (int i = 0; i < 6; i++)
            block[i] = must_alloc(&f, 7 * MIB); /* the last begins within a piece */
        for (int i = 1; i < 5; i++)
            MUST(gs_core_free(f.core, block[i]));
        fixture_drain(&f);
        arena = fixture_home(&f);
        gs_latch_take(&arena->lock);
        gs_arena_merge_quick_locked(arena);
        for (struct gs_block *record = arena->free.spare; record; record = arena->free.spare) {
            arena->free.spare = record->above;
            free(record);
        }
        gs_latch_release(&arena->lock);
        until_out = nth;
        counted = true;
        fixture_release(&f, false);
        counted = false;
        until_out = 0;
        must_add_up(&f);
        MUST(gs_core_free(f.core, block[0]));
        MUST(gs_core_free(f.core, block[5]));
        fixture_release(&f, true);
        cr_assert_eq(fixture_arena(&f).reserved, 0);
        fixture_end(&f);
    }
}

static const CUmemAccessDesc everybody = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

/* A program's own 2 MiB at so many places, one behind the other, of which none is noted yet. */
static CUdeviceptr map_own(unsigned places, CUmemGenericAllocationHandle *ret_made)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = everybody.location};
    const struct gs_own_memory memory = {.size = 2 * MIB, .properties = prop};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;

    f.core->programs.own = gs_own_new(f.core->share, false);
    MUST(cuMemCreate(&handle, memory.size, &prop, 0));
    MUST(cuMemAddressReserve(&base, places * memory.size, 0, 0, 0));
    gs_own_reserved(f.core->programs.own, base, places * memory.size);
    for (unsigned i = 0; i < places; i++)
        MUST(cuMemMap(base + i * memory.size, memory.size, 0, handle, 0));
    MUST(cuMemSetAccess(base, places * memory.size, &everybody, 1));
    *ret_made = gs_own_made(f.core->programs.own, handle, &memory);
    return base;
}

/* Memory of which one place is not known would be another there after a wake: it stays, though a
 * second place is known. */
Test(host_memory, out_while_a_mapping_is_noted, .timeout = 60)
{
    CUmemGenericAllocationHandle made;
    struct gs_sleep_why why;
    struct gs_own *own;
    CUdeviceptr base;

    fixture_options(&f);
    fixture_start(&f);
    must_alloc(&f, MIB);
    base = map_own(2, &made);
    own = f.core->programs.own;
    until_out = 1;
    counted = true;
    gs_own_mapped(own, base, 2 * MIB, 0, made);
    counted = false;
    cr_assert_eq(until_out, 0);
    gs_own_mapped(own, base + 2 * MIB, 2 * MIB, 0, made);
    gs_own_access_set(own, base, 4 * MIB, &everybody, 1);
    cr_assert(gs_core_sleep(f.core, NULL, NULL, gs_now_ns() + 1000 * MS, &why), "%s", why.text);
    cr_assert_eq(f.core->sleep.figures.stays[GS_STAYS_OWN], 2 * MIB);
    cr_assert(gs_core_wake(f.core, gs_now_ns(), &why), "%s", why.text);
    fixture_end(&f);
}

/* What could not be kept of a strip's export, or is one of what has changed meanwhile, is none. */
Test(host_memory, out_while_a_strip_is_exported, .timeout = 60)
{
    const CUmemAccessDesc nobody = {.location = everybody.location};
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUmemGenericAllocationHandle made;
    struct gs_share_stats stats;
    gs_status status;
    struct gs_own *own;
    CUdeviceptr base;

    fixture_options(&f);
    f.options.share.enable = true;
    snprintf(f.options.share.dir, sizeof f.options.share.dir, "/tmp/gpushim-strip-%d",
             (int)getpid());
    fixture_start(&f);
    must_alloc(&f, MIB);
    base = map_own(1, &made);
    own = f.core->programs.own;
    gs_own_mapped(own, base, 2 * MIB, 0, made);
    gs_own_access_set(own, base, 2 * MIB, &everybody, 1);
    for (unsigned nth = 1, last = 0; last < 2; nth++) {
        cr_assert_lt(nth, 50);
        until_out = nth;
        counted = true;
        status = gs_core_own_ipc_handle(f.core, base, ipc_handle);
        counted = false;
        gs_share_stats(f.core->share, &stats);
        cr_assert_eq(stats.exports, status == GS_OK, "%u", nth);
        if (status == GS_OK && until_out > 0) {
            last++;
            nth = 0;
            changes = &own->changes; /* and no memory is missing: another thread maps meanwhile */
        }
        until_out = 0;
        gs_own_access_set(own, base, 2 * MIB, &nobody, 1);
        gs_own_access_set(own, base, 2 * MIB, &everybody, 1);
    }
    changes = NULL;
    for (size_t part = 0; part < 2; part++) { /* of a handle: a driver might well map one */
        gs_own_mapped(own, base, part ? 2 * MIB : MIB, part * MIB, made);
        gs_own_access_set(own, base, 2 * MIB, &everybody, 1);
        cr_assert_eq(gs_core_own_ipc_handle(f.core, base, ipc_handle), GS_NOT_OURS);
    }
    fixture_end(&f);
    rmdir(f.options.share.dir);
}

/* Whichever of it is missing. */
Test(host_memory, of_what_was_mapped_is_given_back, .timeout = 60)
{
    const struct gs_own_memory memory = {.size = 2 * MIB, .added = true};
    CUmemGenericAllocationHandle made;
    struct gs_own *own;
    long before;

    for (unsigned i = 0; i < 16; i++) {
        before = kept;
        own = gs_own_new(NULL, false);
        until_out = i;
        counted = true;
        gs_own_reserved(own, 1024 * MIB, 4 * MIB);
        gs_own_made(own, 1, &memory); /* it ended where nobody saw it, and so did the next */
        made = gs_own_made(own, 1, &memory);
        cr_assert_eq(made, HASH_COUNT(own->handles), "nobody knows what has no record");
        gs_own_mapped(own, 1024 * MIB, 2 * MIB, 0, made);
        made = gs_own_made(own, 1, &memory);
        cr_assert_eq(made, HASH_COUNT(own->handles));
        gs_own_unmapped(own, gs_own_unmapping(own, 1024 * MIB, 2 * MIB), true);
        gs_own_mapped(own, 1026 * MIB, 2 * MIB, 0, made);
        gs_own_mapped(own, UINT64_C(1) << 60, 2 * MIB, 0, made); /* where no device's memory is */
        counted = false;
        gs_own_free(own);
        cr_assert_eq(kept, before, "%u", i);
    }
}

/* It falls asleep as a whole, or not at all. */
Test(host_memory, out_while_it_falls_asleep, .timeout = 60)
{
    CUmemGenericAllocationHandle made;
    struct gs_sleep_why why = {.error = 0};
    unsigned refused = 0;
    bool is_over = false;
    CUdeviceptr base;
    size_t away = 0;

    fixture_options(&f);
    fixture_start(&f);
    must_alloc(&f, MIB);
    must_alloc(&f, 40 * MIB);
    base = map_own(1, &made);
    gs_own_mapped(f.core->programs.own, base, 2 * MIB, 0, made);
    gs_own_access_set(f.core->programs.own, base, 2 * MIB, &everybody, 1);
    for (unsigned nth = 0; !is_over; nth++) {
        until_out = nth;
        counted = nth > 0;
        if (gs_core_sleep(f.core, NULL, NULL, gs_now_ns() + 1000 * MS, &why)) {
            counted = false;
            is_over = until_out > 0;
            away = nth > 0 ? away : f.core->sleep.figures.away;
            cr_assert_eq(f.core->sleep.figures.away, away, "%u", nth);
            cr_assert(gs_core_wake(f.core, gs_now_ns(), &why), "%s", why.text);
        }
        counted = false;
        if (why.error)
            cr_assert_eq(why.error, ENOMEM, "%s", why.text);
        refused += why.error != 0;
        why.error = 0;
        cr_assert_null(f.core->sleep.pieces);
    }
    cr_assert_geq(refused, 4);
    fixture_end(&f);
}

/* Each way that blocks, epochs, streams' lists, pieces and exports of blocks across these go. */
static void come_and_go(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr block[12];
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 12; i++)
        MUST(gs_core_alloc_async(f.core, i % 2 ? 100 << 10 : 6 * MIB, NULL, stream, &block[i]));
    MUST(gs_core_ipc_handle(f.core, block[2], ipc_handle));
    for (int i = 0; i < 12; i++)
        MUST(i % 3 ? gs_core_free_async(f.core, block[i], stream) : gs_core_free(f.core, block[i]));
    gs_core_stream_gone(f.core, stream);
    MUST(cuStreamDestroy(stream));
    fixture_drain(&f);
    fixture_release(&f, true);
    cr_assert_eq(fixture_arena(&f).reserved, 0);
}

/* The next has records that are there. */
Test(host_memory, of_what_came_and_went_is_given_back, .timeout = 60)
{
    struct softcuda_census census;
    long before;

    setenv("SOFTCUDA_MEMORY", "1G", 1);
    fixture_options(&f);
    f.options.epoch_bytes = 1; /* one for each free */
    f.options.share.enable = true;
    snprintf(f.options.share.dir, sizeof f.options.share.dir, "/tmp/gpushim-kept-%d",
             (int)getpid());
    for (int life = 0; life < 2; life++) {
        f.options.share.isolate = f.options.whole_pieces = life == 1;
        fixture_start(&f);
        come_and_go();
        before = kept;
        come_and_go();
        cr_assert_eq(kept, before);
        fixture_end(&f);
        cr_assert_eq(kept, 0);
        softcuda_census(&census);
        cr_assert(census.events == 0 && census.reservations == 0 && census.handles == 0);
    }
    rmdir(f.options.share.dir);
}
