/* How much memory an arena holds: sharing pieces, giving back, waiting for a GPU that is behind. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"
#include "tests/system.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

Test(memory, large_blocks_share_what_a_larger_one_left)
{
    struct fixture f;
    CUdeviceptr a, b, c;
    struct gs_block_info info;

    fixture_options(&f);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 8 * MIB)));
    fixture_drain(&f);
    a = must_alloc(&f, 5 * MIB);
    b = must_alloc(&f, 2 * MIB - 100);
    c = must_alloc(&f, MIB);
    cr_assert_eq(fixture_arena(&f).reserved, 8 * MIB);
    cr_assert(b >= a + 5 * MIB || b + 2 * MIB <= a);
    cr_assert(c % (64 << 10) == 0 && c != a && c != b);
    MUST(gs_core_find(f.core, b + MIB, &info));
    cr_assert_eq(info.base, b);
    cr_assert_eq(info.size, 2 * MIB - 100);
    MUST(gs_core_free(f.core, b));
    MUST(gs_core_free(f.core, a));
    MUST(gs_core_free(f.core, c));
    fixture_drain(&f);
    cr_assert_eq(must_alloc(&f, 8 * MIB) % (2 * MIB), 0, "the whole merged again");
    cr_assert_eq(fixture_arena(&f).reserved, 8 * MIB);
    fixture_end(&f);
}

/* Far into a large block both levels of the index are looked at. */
Test(memory, interior_addresses_of_a_cut_piece_lead_to_their_blocks)
{
    struct fixture f;
    CUdeviceptr first, far, near;
    struct gs_block_info info;

    setenv("SOFTCUDA_MEMORY", "64G", 1); /* a small device has no large piece with a small block */
    fixture_options(&f);
    fixture_start(&f);
    must_alloc(&f, 2000 * MIB); /* nor has a program of little memory */
    MUST(gs_core_free(f.core, must_alloc(&f, 600 * MIB)));
    fixture_drain(&f);
    first = must_alloc(&f, 590 * MIB);
    near = must_alloc(&f, MIB);
    far = must_alloc(&f, 6 * MIB);
    cr_assert_eq(fixture_arena(&f).reserved, 2600 * MIB);
    MUST(gs_core_find(f.core, first + 589 * MIB, &info));
    cr_assert_eq(info.base, first);
    MUST(gs_core_find(f.core, near + MIB - 1, &info));
    cr_assert_eq(info.base, near);
    MUST(gs_core_find(f.core, far + 5 * MIB, &info));
    cr_assert_eq(info.base, far);
    cr_assert_eq(gs_core_free(f.core, first + (64 << 10)), GS_NOT_LIVE);
    fixture_end(&f);
}

Test(memory, a_small_block_does_not_keep_a_large_piece_from_a_small_device)
{
    struct fixture f;
    CUdeviceptr large;

    fixture_options(&f);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 600 * MIB)));
    fixture_drain(&f);
    large = must_alloc(&f, 595 * MIB);
    MUST(gs_core_free(f.core, large));
    fixture_drain(&f);
    /* Otherwise this one would keep the piece from the driver, and nothing of 900 MiB could be. */
    must_alloc(&f, 4 * MIB);
    MUST(gs_core_free(f.core, must_alloc(&f, 900 * MIB)));
    fixture_end(&f);
}

/* Whatever sizes a device is filled with in turn, natively it is enough. */
Test(memory, a_device_is_filled_with_blocks_of_any_size_in_turn)
{
    static const unsigned percent[] = {45, 30, 90, 45, 30, 90, 15, 8, 30, 11, 45, 90, 3, 22, 90};
    struct fixture f;
    CUdeviceptr block[40];
    size_t free_bytes, total;

    fixture_options(&f);
    fixture_start(&f);
    MUST(cuMemGetInfo(&free_bytes, &total));
    for (size_t i = 0; i < sizeof percent / sizeof *percent; i++) {
        size_t size = free_bytes / 100 * percent[i] / (2 * MIB) * (2 * MIB);
        unsigned count = 90 / percent[i];

        for (unsigned j = 0; j < count; j++)
            block[j] = must_alloc(&f, size);
        /* Every second one goes: one of the size of all of them fits, as no address is its own. */
        for (unsigned j = 0; j < count; j += 2)
            MUST(gs_core_free(f.core, block[j]));
        if (count >= 2)
            MUST(gs_core_free(f.core, must_alloc(&f, (count + 1) / 2 * size)));
        for (unsigned j = 1; j < count; j += 2)
            MUST(gs_core_free(f.core, block[j]));
    }
    fixture_end(&f);
}

#define MEETINGS 40

struct meeting {
    struct fixture *f;
    int wanted, made; /* atomic: allocations of 64 KiB by the thread */
};

static void *allocate_when_told(void *arg)
{
    struct meeting *meeting = arg;

    MUST(cuCtxSetCurrent(meeting->f->context));
    while (meeting->made < MEETINGS) {
        while (__atomic_load_n(&meeting->wanted, __ATOMIC_ACQUIRE) <= meeting->made)
            usleep(100);
        must_alloc(meeting->f, 64 << 10);
        __atomic_store_n(&meeting->made, meeting->made + 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* A thread that met others at the first arena too often has small blocks in one of its own. */
static void make_second_arena(struct fixture *f)
{
    struct meeting meeting = {.f = f};
    struct gs_context *context;
    pthread_t thread;

    MUST(gs_context_current(f->core, &context));
    MUST(pthread_create(&thread, NULL, allocate_when_told, &meeting));
    for (int i = 0; i < MEETINGS; i++) {
        gs_latch_take(&context->arenas[0]->lock);
        __atomic_store_n(&meeting.wanted, i + 1, __ATOMIC_RELEASE);
        for (int look = 0; look < 10000; look++) {
            if (__atomic_load_n(&context->arenas[0]->lock.state, __ATOMIC_RELAXED) == 2 ||
                __atomic_load_n(&context->arenas[1], __ATOMIC_ACQUIRE))
                break; /* it waits there, or has moved on */
            usleep(100);
        }
        gs_latch_release(&context->arenas[0]->lock);
        while (__atomic_load_n(&meeting.made, __ATOMIC_ACQUIRE) <= i)
            usleep(100);
    }
    MUST(pthread_join(thread, NULL));
    cr_assert_not_null(context->arenas[1], "the thread moved on");
}

Test(memory, a_full_device_has_what_is_left_in_another_threads_arena)
{
    struct fixture f;
    CUdeviceptr block;
    size_t held, blocks = 0;

    setenv("SOFTCUDA_MEMORY", "64M", 1);
    fixture_options(&f);
    fixture_start(&f);
    must_alloc(&f, 64 << 10);
    make_second_arena(&f);
    held = fixture_arena(&f).reserved;
    cr_assert_leq(held, 6 * MIB, "a thread's arena takes no more of a small device than it needs");
    while (gs_core_alloc(f.core, 2 * MIB, &block) == GS_OK)
        continue;
    while (gs_core_alloc(f.core, 64 << 10, &block) == GS_OK)
        blocks++;
    cr_assert_eq(blocks * (64 << 10), held - (MEETINGS + 1) * (64 << 10),
                 "not a byte is out of reach");
    fixture_end(&f);
}

/* ... and counts it where it lies, for that is where its free is counted. */
Test(memory, stream_ordered_memory_of_another_threads_arena_is_counted_there)
{
    struct fixture f;
    struct gs_context *context;
    struct gs_piece *piece;
    CUdeviceptr block;
    size_t there = 0;

    setenv("SOFTCUDA_MEMORY", "64M", 1);
    fixture_options(&f);
    fixture_start(&f);
    must_alloc(&f, 64 << 10);
    make_second_arena(&f);
    MUST(gs_context_current(f.core, &context));
    while (gs_core_alloc(f.core, 2 * MIB, &block) == GS_OK)
        continue;
    while (gs_core_alloc_async(f.core, 64 << 10, NULL, CU_STREAM_LEGACY, &block) == GS_OK) {
        MUST(gs_context_lock_piece(f.core, block, &piece));
        there += piece->arena == context->arenas[1] ? 64 << 10 : 0;
        gs_latch_release(&piece->arena->lock);
    }
    cr_assert_gt(there, 0);
    cr_assert_eq(context->arenas[1]->async.live, there);
    fixture_end(&f);
}

Test(memory, sizes_that_change_do_not_pile_up)
{
    struct fixture f;

    fixture_options(&f);
    fixture_start(&f);
    for (size_t i = 0; i < 100; i++) {
        CUdeviceptr block = must_alloc(&f, (100 + i * 37 % 101) * MIB);

        MUST(gs_core_free(f.core, block));
        fixture_drain(&f);
    }
    cr_assert_leq(fixture_arena(&f).reserved, 230 * MIB);
    fixture_end(&f);
}

Test(memory, stream_order_merges_and_cuts_without_the_gpu)
{
    struct fixture f;
    CUdeviceptr a, b, both;
    CUstream stream;
    size_t reserved;

    fixture_options(&f);
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(gs_core_alloc_async(f.core, MIB - 512, NULL, stream, &a));
    MUST(gs_core_alloc_async(f.core, MIB - 512, NULL, stream, &b));
    reserved = fixture_arena(&f).reserved;
    cr_assert_eq(reserved, 2 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, a, 1, 1, 0);
    for (int i = 0; i < 100; i++) {
        MUST(gs_core_free_async(f.core, b, stream));
        MUST(gs_core_free_async(f.core, a, stream));
        MUST(gs_core_alloc_async(f.core, 700 << 10, NULL, stream, &a));
        MUST(gs_core_alloc_async(f.core, 500 << 10, NULL, stream, &both));
        MUST(gs_core_alloc_async(f.core, 800 << 10, NULL, stream, &b));
        MUST(gs_core_free_async(f.core, both, stream));
    }
    cr_assert_eq(fixture_arena(&f).reserved, reserved);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    gs_core_stream_gone(f.core, stream);
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

/* The GPU, which is held, gets on as soon as the library waits for it, and is waited for as long as
 * that takes. */
static bool moves_when_waited_for;
gs_status __real_gs_fence_wait(const struct gs_fence *fence, uint64_t deadline_ns);
gs_status __wrap_gs_fence_wait(const struct gs_fence *fence, uint64_t deadline_ns);

gs_status __wrap_gs_fence_wait(const struct gs_fence *fence, uint64_t deadline_ns)
{
    if (!moves_when_waited_for)
        return __real_gs_fence_wait(fence, deadline_ns);
    moves_when_waited_for = false;
    softcuda_hold(0);
    return __real_gs_fence_wait(fence, UINT64_MAX);
}

/* A block whose GPU work is under way is waited for and had again. */
Test(memory, an_allocation_waits_for_a_gpu_that_is_behind)
{
    struct fixture f;
    CUdeviceptr block;
    CUstream stream;

    fixture_options(&f);
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 128 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block, 1, 1, 0);
    MUST(gs_core_free(f.core, block));
    moves_when_waited_for = true;
    cr_assert_eq(must_alloc(&f, 128 * MIB), block, "the arena grew rather than wait");
    cr_assert_not(moves_when_waited_for);
    cr_assert_eq(fixture_counts(&f).waits, 1);
    cr_assert_eq(fixture_counts(&f).late, 0);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

/* One that does not move is waited for each time that the arena has grown a good deal. */
Test(memory, an_allocation_does_not_wait_for_ever)
{
    struct fixture f;
    CUdeviceptr block;
    CUstream stream;

    fixture_options(&f);
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 128 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block, 1, 1, 0);
    MUST(gs_core_free(f.core, block));
    cr_assert_neq(must_alloc(&f, 128 * MIB), block);
    cr_assert_eq(fixture_counts(&f).late, 1);
    must_alloc(&f, 64 * MIB);
    cr_assert_eq(fixture_counts(&f).late, 2, "it has doubled since");
    must_alloc(&f, 64 * MIB);
    cr_assert_eq(fixture_counts(&f).late, 2);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(must_alloc(&f, 128 * MIB), block);
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

/* Room is made for the memory of the graph that is made last, not for all that ever were. */
Test(memory, graphs_that_are_made_one_after_the_other_need_room_for_one)
{
    struct fixture f;
    size_t left, total, bytes;

    fixture_options(&f);
    fixture_start(&f);
    MUST(gs_core_free(f.core, must_alloc(&f, 200 * MIB)));
    fixture_drain(&f);
    MUST(cuMemGetInfo(&left, &total));
    bytes = left / 8;
    for (int i = 0; i < 20; i++) {
        gs_core_graph_node(f.core, bytes);
        gs_core_graph_room(f.core);
        gs_core_graph_made(f.core);
        gs_core_graph_room(f.core);
    }
    cr_assert_eq(fixture_arena(&f).reserved, 200 * MIB);
    cr_assert(gs_core_graph_waits(f.core));
    gs_core_graph_launched(f.core);
    cr_assert_not(gs_core_graph_waits(f.core));
    gs_core_graph_node(f.core, left);
    gs_core_graph_room(f.core);
    /* A graph takes a 64th more, and 64 MiB; pieces are of 4. */
    cr_assert_eq(fixture_arena(&f).reserved,
                 200 * MIB - (left / 64 + 68 * MIB - 1) / (4 * MIB) * (4 * MIB));
    fixture_end(&f);
}

/* 600 MiB live, beyond which it may have little; a stream. */
static CUstream begin_with_much(struct fixture *f)
{
    CUstream stream;

    fixture_options(f);
    f->options.retiring_percent = 15;
    fixture_start(f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must_alloc(f, 600 * MIB);
    return stream;
}

/* What comes late leaves no hole that only its like would fill: an arena that has more than was
 * live waits for that, and for nothing else. */
Test(memory, beyond_what_was_live_the_like_of_a_block_is_waited_for)
{
    struct fixture f;
    CUdeviceptr block[2], again;
    CUstream stream = begin_with_much(&f);

    block[0] = must_alloc(&f, 40 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block[0], 1, 1, 0);
    MUST(gs_core_free(f.core, block[0]));
    block[1] = must_alloc(&f, 40 * MIB);
    cr_assert_neq(block[1], block[0], "so little it may have more");
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    cr_assert_eq(must_alloc(&f, 40 * MIB), block[0]);

    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block[0], 1, 1, 0);
    MUST(gs_core_free(f.core, block[0]));
    MUST(gs_core_free(f.core, block[1]));
    must_alloc(&f, 36 * MIB);
    must_alloc(&f, 36 * MIB); /* far beyond */
    cr_assert_eq(fixture_counts(&f).waits, 0);
    moves_when_waited_for = true;
    again = must_alloc(&f, 40 * MIB);
    cr_assert(again == block[0] || again == block[1], "it is not waited for");
    cr_assert_eq(fixture_counts(&f).waits, 1);

    softcuda_hold(1);
    fixture_spin_fill(&f, stream, again, 1, 1, 0);
    MUST(gs_core_free(f.core, again));
    must_alloc(&f, 44 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 1, "nothing of that size retires");
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

/* Where it has only a little more, and several streams have work, it waits for about as long as
 * making a piece takes, and that this was in vain says nothing of the GPU. */
Test(memory, a_little_beyond_what_was_live_it_waits_for_a_moment)
{
    struct fixture f;
    CUdeviceptr block[2];
    CUstream stream = begin_with_much(&f);

    block[0] = must_alloc(&f, 40 * MIB);
    block[1] = must_alloc(&f, 40 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block[0], 1, 1, 0);
    MUST(gs_core_free(f.core, block[0]));
    MUST(gs_core_free(f.core, block[1]));
    must_alloc(&f, 36 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 0);
    must_alloc(&f, 40 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 1);
    cr_assert_eq(fixture_counts(&f).late, 0);
    must_alloc(&f, 40 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 2, "the GPU may have moved since");
    cr_assert_eq(fixture_counts(&f).late, 1, "that is far beyond");
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

struct wish {
    struct fixture *f;
    gs_status status;
};

static void *allocate_wish(void *arg)
{
    struct wish *wish = arg;
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(wish->f->context));
    wish->status = gs_core_alloc(wish->f->core, 96 * MIB, &block);
    return NULL;
}

/* One epoch has all the memory, and two threads want some of it while the GPU is behind. */
Test(memory, two_threads_wait_for_the_same_epoch_on_a_full_device)
{
    struct fixture f;
    struct wish wishes[2] = {{&f, GS_INVALID}, {&f, GS_INVALID}};
    pthread_t threads[2];
    CUdeviceptr block;
    CUstream stream;

    setenv("SOFTCUDA_MEMORY", "256M", 1);
    fixture_options(&f);
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 200 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block, 1, 1, 0);
    MUST(gs_core_free(f.core, block));
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, allocate_wish, &wishes[i]));
    usleep(700000); /* longer than is waited before the arena would grow */
    softcuda_hold(0);
    for (int i = 0; i < 2; i++) {
        MUST(pthread_join(threads[i], NULL));
        cr_assert_eq(wishes[i].status, GS_OK);
    }
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

/* Each event is a stop for the GPU: none is recorded behind one that it has not passed, however
 * often memory is looked for. */
Test(memory, looking_for_memory_records_one_event_while_the_gpu_is_behind)
{
    struct fixture f;
    CUdeviceptr block;
    CUstream stream;
    uint64_t before;

    fixture_options(&f);
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    block = must_alloc(&f, 3 * MIB / 2);
    before = fixture_counts(&f).events;
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block, 1, 1, 0);
    /* Less than what closes an epoch by itself. */
    for (int i = 0; i < 3; i++) {
        MUST(gs_core_free(f.core, block));
        block = must_alloc(&f, 3 * MIB / 2);
    }
    cr_assert_eq(fixture_counts(&f).events, before + 1);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
    fixture_end(&f);
}

Test(memory, statistics_add_up)
{
    struct fixture f;
    struct gs_figures before, figures;
    struct gs_stats stats;
    CUdeviceptr block[100];
    uint64_t *took;

    fixture_options(&f);
    fixture_start(&f);
    for (int i = 0; i < 100; i++)
        block[i] = must_alloc(&f, 40000);
    for (int i = 0; i < 50; i++)
        MUST(gs_core_free(f.core, block[i]));
    fixture_drain(&f);
    gs_stats_read(f.core, 0, &stats);
    cr_assert(gs_stats_tell(f.core, 0, &before));
    took = f.core->contexts->arenas[0]->counts.took;
    took[10]++; /* of less than 1,024 us (core/pool/counts.h), */
    took[11]++; /* and of more */
    cr_assert(gs_stats_tell(f.core, 0, &figures));
    cr_assert_eq(figures.slow, before.slow + 1);
    cr_assert_eq(figures.live, stats.live);
    cr_assert_not(gs_stats_tell(f.core, 1, &figures), "there is no such device");
    cr_assert_eq(stats.counts.hits + stats.counts.misses, 100);
    cr_assert_eq(stats.counts.grown, 2);
    cr_assert_eq(stats.live, 50 * 40448);
    cr_assert_eq(stats.reserved, stats.live + stats.cached + stats.retired);
    cr_assert_eq(stats.counts.live_peak, 100 * 40448);
    cr_assert_eq(stats.counts.reserved_peak, 4 * MIB);
    cr_assert_geq(stats.counts.events, 1);
    fixture_end(&f);
}
