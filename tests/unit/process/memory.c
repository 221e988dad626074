/* How much memory an arena holds: sharing pieces, giving back, waiting for a GPU that is behind. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/reclaim.h"
#include "core/process/stats.h"
#include "tests/children.h"
#include "tests/unit/process/sums.h"
#include "tests/driver/softcuda.h"

FIXTURE_SUITE(memory)

/* Whatever sizes a device is filled with in turn, natively it is enough. */
Test(memory, a_device_is_filled_with_blocks_of_any_size_in_turn)
{
    static const unsigned percent[] = {45, 30, 90, 45, 30, 90, 15, 8, 30, 11, 45, 90, 3, 22, 90};
    CUdeviceptr block[40];
    size_t free_bytes, total;

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
}

/* Each in its place, whatever order they go in. */
Test(memory, a_million_blocks_lie_side_by_side_and_all_go, .timeout = 120)
{
    enum { COUNT = 1000000, FAR = 618033 }; /* apart from each other, prime to the count */
    const size_t size = 512;
    CUdeviceptr *block = calloc(COUNT, sizeof *block);
    struct gs_arena_counts counts;

    cr_assert_not_null(block);
    fixture_start(&f);
    for (size_t i = 0; i < COUNT; i++)
        block[i] = must_alloc(&f, size);
    cr_assert_eq(fixture_arena(&f).live, COUNT * size);
    cr_assert_eq(fixture_arena(&f).reserved, (COUNT * size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
    must_add_up(&f);
    for (size_t i = 0, at = 0; i < COUNT; i++, at = (at + FAR) % COUNT) {
        MUST(gs_core_free(f.core, block[at]));
        if (i == COUNT / 2)
            must_add_up(&f);
    }
    MUST(cuCtxSynchronize());
    MUST(gs_core_free(f.core, must_alloc(&f, COUNT / 2 * size)));
    must_add_up(&f);
    cr_assert_eq(fixture_arena(&f).live, 0);
    fixture_release(&f, true);
    cr_assert_eq(fixture_arena(&f).reserved, 0);
    counts = fixture_counts(&f);
    cr_assert_eq(counts.trims, counts.grown);
    free(block);
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
    CUdeviceptr block;

    fixture_start(&f);
    block = must_alloc(&f, 128 * MIB);
    fixture_free_behind_work(&f, block);
    moves_when_waited_for = true;
    cr_assert_eq(must_alloc(&f, 128 * MIB), block, "the arena grew rather than wait");
    cr_assert_not(moves_when_waited_for);
    cr_assert_eq(fixture_counts(&f).waits, 1);
    cr_assert_eq(fixture_counts(&f).late, 0);
    MUST(cuStreamSynchronize(f.stream));
}

/* One that does not move is waited for each time that the arena has grown a good deal. */
Test(memory, an_allocation_does_not_wait_for_ever)
{
    CUdeviceptr block;

    fixture_start(&f);
    block = must_alloc(&f, 128 * MIB);
    fixture_free_behind_work(&f, block);
    cr_assert_neq(must_alloc(&f, 128 * MIB), block);
    cr_assert_eq(fixture_counts(&f).late, 1);
    must_alloc(&f, 64 * MIB);
    cr_assert_eq(fixture_counts(&f).late, 2, "it has doubled since");
    must_alloc(&f, 64 * MIB);
    cr_assert_eq(fixture_counts(&f).late, 2);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(f.stream));
    cr_assert_eq(must_alloc(&f, 128 * MIB), block);
}

Test(memory, where_any_may_retire_no_allocation_waits)
{
    CUdeviceptr block;

    f.options.retiring_percent = 0;
    fixture_start(&f);
    block = must_alloc(&f, 128 * MIB);
    fixture_free_behind_work(&f, block);
    cr_assert_neq(must_alloc(&f, 128 * MIB), block);
    cr_assert_eq(fixture_counts(&f).waits, 0);
    softcuda_hold(0);
    MUST(cuStreamSynchronize(f.stream));
}

/* Room is made for the memory of the graph that is made last, not for all that ever were. */
Test(memory, graphs_that_are_made_one_after_the_other_need_room_for_one)
{
    size_t left, total, bytes;

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
    cr_assert_gt(gs_core_graph_waits(f.core), 0);
    gs_core_graph_launched(f.core);
    cr_assert_eq(gs_core_graph_waits(f.core), 0);
    gs_core_graph_node(f.core, left);
    gs_core_graph_room(f.core);
    /* A graph takes a 64th more, and 64 MiB; pieces are of 4. */
    cr_assert_eq(fixture_arena(&f).reserved,
                 200 * MIB - (left / 64 + 68 * MIB - 1) / (4 * MIB) * (4 * MIB));
}

static void free_two(const CUdeviceptr block[2])
{
    MUST(gs_core_free(f.core, block[0]));
    MUST(gs_core_free(f.core, block[1]));
}

/* Where only a little more retires than may, and several streams have work, it waits for about as
 * long as making a piece takes, and that this was in vain says nothing of the GPU. */
Test(memory, a_little_behind_it_waits_for_a_moment)
{
    CUdeviceptr block[5];
    CUstream stream;

    fixture_options(&f);
    f.options.retiring_percent = 15;
    fixture_start(&f);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    must_alloc(&f, 600 * MIB);
    for (int i = 0; i < 5; i++)
        block[i] = must_alloc(&f, 50 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, stream, block[0], 1, 1, 0);
    MUST(gs_core_free(f.core, block[0]));
    must_alloc(&f, 50 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 0);
    free_two(&block[1]);
    must_alloc(&f, 50 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 1);
    cr_assert_eq(fixture_counts(&f).late, 0);
    free_two(&block[3]);
    must_alloc(&f, 50 * MIB);
    cr_assert_eq(fixture_counts(&f).waits, 2, "the GPU may have moved since");
    cr_assert_eq(fixture_counts(&f).late, 1, "that is far behind");
    softcuda_hold(0);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
}

Test(memory, statistics_add_up)
{
    struct gs_figures before, figures;
    struct gs_stats stats;
    CUdeviceptr block[100];
    uint64_t *took;

    fixture_start(&f);
    for (int i = 0; i < 100; i++)
        block[i] = must_alloc(&f, 40000);
    for (int i = 0; i < 50; i++)
        MUST(gs_core_free(f.core, block[i]));
    fixture_drain(&f);
    gs_stats_read(f.core, 0, &stats);
    cr_assert(gs_stats_tell(f.core, 0, &before));
    took = f.core->figures.took[0];
    took[10]++; /* of less than 1,024 us (core/process/stats.h), */
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
}

/* Its memory is rounded up; the byte behind what was asked for is nobody's. */
Test(memory, the_byte_behind_a_block_is_not_its_own)
{
    struct gs_block_info info;
    CUdeviceptr block;

    fixture_start(&f);
    block = must_alloc(&f, 1000);
    MUST(gs_core_find(f.core, block + 999, &info));
    cr_assert_eq(info.size, 1000);
    cr_assert_eq(gs_core_find(f.core, block + 1000, &info), GS_NOT_LIVE);
}

/* Also where the thread's last stream was of another context, in which it was found just now. */
Test(memory, a_streams_memory_is_of_its_own_context)
{
    CUcontext contexts[2] = {NULL};
    struct gs_block_info info;
    CUstream streams[2];
    CUdeviceptr block;

    fixture_start(&f);
    contexts[0] = f.context;
    contexts[1] = fixture_context_new();
    for (int i = 0; i < 2; i++) {
        MUST(cuCtxSetCurrent(contexts[i]));
        MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    for (int i = 0; i < 4; i++) {
        MUST(gs_core_alloc_async(f.core, 4 * MIB, NULL, streams[i % 2], &block));
        MUST(gs_core_find(f.core, block, &info));
        cr_assert_eq(info.context, contexts[i % 2], "%d", i);
        MUST(gs_core_free_async(f.core, block, streams[i % 2]));
    }
    MUST(cuStreamDestroy(streams[1]));
    fixture_context_end(&f, contexts[1]);
    MUST(cuCtxSetCurrent(f.context));
    MUST(cuStreamDestroy(streams[0]));
}

/* Who was at work in the first, which it does not know to have ended. */
Test(memory, a_context_with_the_record_of_another_is_not_taken_for_it)
{
    CUcontext contexts[2];
    struct gs_arena *arena;
    uint64_t life;

    fixture_start(&f);
    contexts[0] = fixture_context_new();
    MUST(gs_core_free(f.core, must_alloc(&f, MIB)));
    arena = fixture_home(&f);
    life = arena->made_ns;
    fixture_context_end(&f, contexts[0]);
    contexts[1] = fixture_context_new();
    MUST(gs_core_free(f.core, must_alloc(&f, MIB)));
    cr_assert_eq(fixture_home(&f), arena);
    gs_latch_take(&arena->lock);
    cr_assert(gs_arena_is_over_locked(arena, life) &&
              !gs_arena_is_over_locked(arena, arena->made_ns));
    gs_latch_release(&arena->lock);
    fixture_context_end(&f, contexts[1]);
}

Test(memory, no_two_blocks_of_a_process_have_one_id)
{
    struct gs_block_info info[3];
    CUcontext second;

    fixture_start(&f);
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            second = fixture_context_new();
        MUST(gs_core_find(f.core, must_alloc(&f, MIB), &info[i]));
        cr_assert_neq(info[i].id, 0);
    }
    cr_assert(info[0].id != info[1].id && info[0].id != info[2].id && info[1].id != info[2].id);
    fixture_context_end(&f, second);
}

Test(memory, who_attaches_where_no_context_is_current_has_no_turn_afterwards)
{
    const struct gs_external_memory memory = {.fd = -1};
    CUdeviceptr address;
    CUcontext context;

    fixture_start(&f);
    MUST(cuCtxSetCurrent(NULL));
    cr_assert_neq(gs_core_attach(f.core, &memory, 0, 1, &address, &context), GS_OK);
    cr_assert(gs_core_primary_turn(f.core, 0));
    gs_core_primary_turn_end(f.core, 0);
    MUST(cuCtxSetCurrent(f.context));
}

Test(memory, what_is_no_device_has_no_turn)
{
    fixture_start(&f);
    cr_assert(gs_core_primary_turn(f.core, 0));
    cr_assert_not(gs_core_primary_turn(f.core, 0), "it is this thread's already");
    gs_core_primary_turn_end(f.core, 0);
    cr_assert(gs_core_primary_turn(f.core, 0), "it was nobody's");
    cr_assert_not(gs_core_primary_turn(f.core, -1));
    cr_assert_not(gs_core_primary_turn(f.core, GS_DEVICES_MAX));
}

/* From one context after the other, and no more than that. */
Test(memory, a_device_gives_back_what_is_wanted)
{
    struct gs_device *device;
    CUcontext other;

    setenv("SOFTCUDA_MEMORY", "1G", 1); /* of pieces of 4 MiB */
    fixture_start(&f);
    device = &f.core->device[0];
    MUST(gs_core_free(f.core, must_alloc(&f, 32 * MIB)));
    fixture_drain(&f);
    other = fixture_context_new();
    MUST(gs_core_free(f.core, must_alloc(&f, 32 * MIB)));
    fixture_drain(&f);
    cr_assert_eq(gs_device_trim(f.core, device, NULL, 40 * MIB), 40 * MIB);
    cr_assert_eq(gs_device_trim(f.core, device, NULL, SIZE_MAX), 24 * MIB);
    fixture_context_end(&f, other);
}

static CUresult is_out(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Also in the order of the stream that was refused. */
Test(memory, a_device_that_was_too_full_to_be_tried_is_tried_again)
{
    CUdeviceptr block;

    fixture_start(&f);
    fixture_driver(&f)->mem_create = is_out;
    cr_assert_eq(gs_core_alloc_async(f.core, MIB, NULL, f.stream, &block), GS_NO_MEMORY);
    cr_assert_eq(gs_core_alloc(f.core, MIB, &block), GS_NO_MEMORY);
    cr_assert_eq(f.core->device[0].mode, GS_MODE_UNKNOWN);
    fixture_driver(&f)->mem_create = cuMemCreate;
    MUST(gs_core_alloc_async(f.core, MIB, NULL, f.stream, &block));
    MUST(gs_core_free_async(f.core, block, f.stream));
}

/* Of the current device where none is named, and not more often than it helps. */
Test(memory, the_driver_has_what_is_kept)
{
    unsigned step = 0;

    fixture_start(&f);
    cr_assert_not(gs_core_make_room(f.core, -1, 8 * MIB, &step), "nothing was allocated here");
    MUST(gs_core_free(f.core, must_alloc(&f, 32 * MIB)));
    fixture_drain(&f);
    step = 0;
    cr_assert_not(gs_core_make_room(f.core, -1, f.core->device[0].total + 1, &step));
    step = 0;
    cr_assert(gs_core_make_room(f.core, -1, 8 * MIB, &step));
    cr_assert_eq(step, 1);
    cr_assert(fixture_arena(&f).reserved >= 16 * MIB && fixture_arena(&f).reserved <= 24 * MIB);
    cr_assert(gs_core_make_room(f.core, 0, 64 * MIB, &step));
    cr_assert_eq(fixture_arena(&f).reserved, 0);
}

Test(memory, a_default_streams_order_is_its_contexts)
{
    const CUstream streams[] = {NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    struct gs_context *context;
    uint64_t key;

    fixture_start(&f);
    for (unsigned i = 0; i < 3; i++) {
        key = 7;
        MUST(gs_context_of_stream(f.core, streams[i], &context, &key));
        cr_assert_eq(key, gs_stream_key(streams[i]));
        cr_assert_eq(context->handle, f.context);
    }
}

/* Each allocation looks them up, with no lock. */
Test(memory, the_driver_is_asked_for_a_context_once, .timeout = 60)
{
    struct gs_context *context;
    unsigned long asked;
    uint64_t key;

    fixture_start(&f);
    MUST(gs_context_current(f.core, &context));
    gs_lock_take(&f.core->lock);
    MUST(gs_context_current(f.core, &context));
    MUST(gs_context_of_stream(f.core, f.stream, &context, &key));
    gs_lock_release(&f.core->lock);
    asked = softcuda_calls("cuStreamGetCtx");
    context = NULL;
    MUST(gs_context_of_stream(f.core, f.stream, &context, &key));
    cr_assert_eq(softcuda_calls("cuStreamGetCtx"), asked);
    cr_assert_eq(context->handle, f.context);
}

/* ---- While another thread has the arena --------------------------------------------------- */

static struct gs_arena *home;
static CUdeviceptr inside;

static void trims(void)
{
    gs_arena_trim(f.core, home, NULL, 0, MIB);
}

static void asks_for_too_much(void)
{
    CUdeviceptr block;

    cr_assert_eq(gs_arena_reclaim(f.core, home, home->made_ns, 1024 * MIB, &block), GS_NO_MEMORY);
}

static void grows(void)
{
    CUdeviceptr block;

    MUST(gs_arena_grow(f.core, home, home->made_ns, 64 * MIB, &block));
}

static void grows_and_looks(void)
{
    f.core->figures.left[0] = 0;
    grows();
}

static void gives_surplus(void)
{
    f.core->trimmer.surplus = true;
    gs_trimmer_surplus(f.core);
}

static void finds(void)
{
    struct gs_piece *piece;

    MUST(gs_context_lock_piece(f.core, inside, &piece));
    gs_latch_release(&home->lock);
}

static void awaits_work(void)
{
    struct gs_context *context;

    MUST(gs_context_current(f.core, &context));
    MUST(gs_context_await_work(context, UINT64_MAX));
}

static void leaves_and_stays(void)
{
    gs_core_context_stays(f.core, f.context, gs_core_context_detach(f.core, f.context));
}

static struct {
    void (*does)(void);
    pid_t thread;
    bool is_done;
} comer;

static void *come(void *arg)
{
    MUST(cuCtxSetCurrent(f.context));
    __atomic_store_n(&comer.thread, gettid(), __ATOMIC_SEQ_CST);
    comer.does();
    __atomic_store_n(&comer.is_done, true, __ATOMIC_SEQ_CST);
    return NULL;
}

static pthread_t comes(void (*does)(void))
{
    pthread_t thread;

    comer.does = does;
    comer.is_done = false;
    comer.thread = 0;
    MUST(pthread_create(&thread, NULL, come, NULL));
    return thread;
}

static bool is_done(void)
{
    return __atomic_load_n(&comer.is_done, __ATOMIC_SEQ_CST);
}

/* Who comes waits for it. */
static void waits_for_the_arena(void (*does)(void))
{
    pthread_t thread;

    gs_latch_take(&home->lock);
    thread = comes(does);
    while (!is_done() && __atomic_load_n(&home->lock.state, __ATOMIC_SEQ_CST) != 2)
        sched_yield();
    MUST(is_done());
    gs_latch_release(&home->lock);
    MUST(pthread_join(thread, NULL));
    MUST(__atomic_load_n(&home->lock.state, __ATOMIC_SEQ_CST));
}

/* Or for the contexts. */
static void waits_for_the_contexts(void (*does)(void))
{
    pthread_t thread;
    pid_t its;

    gs_lock_take(&f.core->lock);
    thread = comes(does);
    while (!is_done() && (!(its = __atomic_load_n(&comer.thread, __ATOMIC_SEQ_CST)) ||
                          thread_state(getpid(), its) != 'S'))
        sched_yield();
    MUST(is_done());
    gs_lock_release(&f.core->lock);
    MUST(pthread_join(thread, NULL));
    MUST(!gs_lock_try(&f.core->lock));
    gs_lock_release(&f.core->lock);
}

Test(memory, is_looked_at_by_one_thread_at_a_time, .timeout = 60)
{
    f.options.limit.bytes = 512 * MIB;
    fixture_start(&f);
    home = fixture_home(&f);
    inside = must_alloc(&f, 4 * MIB);
    waits_for_the_arena(trims);
    waits_for_the_arena(asks_for_too_much);
    waits_for_the_arena(grows);
    waits_for_the_arena(grows_and_looks);
    waits_for_the_arena(gives_surplus);
    waits_for_the_arena(finds);
    waits_for_the_arena(awaits_work);
    waits_for_the_arena(leaves_and_stays);
}

static void looks_for_the_next(void)
{
    CUcontext handle;

    gs_context_next(f.core, NULL, &handle);
}

static void looks_for_one(void)
{
    gs_context_of_device(f.core, 0);
}

static void looks_for_the_device(void)
{
    gs_core_device_of_uuid(f.core, f.core->device[0].uuid);
}

static void looks_for_the_owner(void)
{
    gs_context_owner(f.core, f.context);
}

static void tries_the_device(void)
{
    gs_context_device_mode(f.core, 0);
}

static void reads_figures(void)
{
    struct gs_stats stats;

    gs_stats_read(f.core, 0, &stats);
}

static void forgets_green_ones(void)
{
    gs_greens_forget(f.core, NULL, f.context);
}

static void stays(void)
{
    gs_core_context_stays(f.core, f.context, f.core->contexts);
}

static void passes_arenas(void)
{
    gs_context_pass_arenas(f.core, false);
}

static void gives_back_of_the_dead(void)
{
    f.core->gone.dead = 1;
    gs_context_trim_dead(f.core);
    f.core->gone.dead = 0;
}

Test(memory, of_contexts_is_looked_for_by_one_thread_at_a_time, .timeout = 60)
{
    fixture_start(&f);
    must_alloc(&f, 4 * MIB);
    waits_for_the_contexts(looks_for_the_next);
    waits_for_the_contexts(looks_for_one);
    waits_for_the_contexts(looks_for_the_device);
    waits_for_the_contexts(looks_for_the_owner);
    waits_for_the_contexts(tries_the_device);
    waits_for_the_contexts(reads_figures);
    waits_for_the_contexts(forgets_green_ones);
    waits_for_the_contexts(leaves_and_stays);
    waits_for_the_contexts(stays);
    waits_for_the_contexts(passes_arenas);
    waits_for_the_contexts(gives_back_of_the_dead);
}

/* Others allocate while the GPU is waited for. */
Test(memory, who_waits_for_all_work_has_the_arena_again)
{
    struct gs_block_list freed = {0};
    struct gs_arena *arena;

    fixture_start(&f);
    arena = fixture_home(&f);
    gs_latch_take(&arena->lock);
    MUST(gs_arena_synchronize_locked(f.core, arena, &freed));
    cr_assert_eq(arena->lock.state, 1);
    gs_latch_release(&arena->lock);
}

/* Behind which no event is recorded while a capture is open. */
Test(memory, what_a_capture_keeps_back_is_the_drivers_when_it_is_waited_for)
{
    CUdeviceptr block;
    CUgraph graph;

    fixture_start(&f);
    block = must_alloc(&f, 64 * MIB);
    softcuda_hold(1);
    fixture_spin_fill(&f, f.stream, block, 1, 1, 0);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    MUST(gs_core_free(f.core, block));
    softcuda_hold(0);
    cr_assert_geq(fixture_release(&f, true), 64 * MIB);
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
}
