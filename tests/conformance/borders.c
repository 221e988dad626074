/*
 * What works on a block works across the borders of the driver's allocations that it may lie in:
 * nodes of graphs, captures, batches, peers, and the figures of a pool. Copies and fills one by one
 * are in forms.c.
 */
#include "crossing.h"
#include "two.h"

TestSuite(borders, .init = conform_start, .timeout = 120);

/* ---- Graphs ---------------------------------------------------------------------------------- */

#define PITCH ((size_t)1536 << 10) /* rows that borders cut */

static void run(CUgraph graph)
{
    run_graph(graph, CU_STREAM_LEGACY);
    OK(cuGraphDestroy(graph));
}

/* A fill of all of it, a copy to another block, a fill of rows in that, and copies back. */
Test(borders, nodes_added_by_hand_pass_them)
{
    CUdeviceptr block[SIZES], other;
    CUgraphNode node[4];
    CUgraph graph;

    blocks_start(block);
    OK(cuMemAlloc(&other, LARGEST));
    for (size_t i = 0; i < SIZES; i++) {
        const size_t rows = sizes[i] / PITCH, words = rows * PITCH / 4;
        CUDA_MEMSET_NODE_PARAMS fill = {
            .dst = block[i], .value = SEED, .elementSize = 4, .width = sizes[i] / 4, .height = 1};
        CUDA_MEMCPY3D copy = box_copy(other, block[i], sizes[i], 1, 1);

        OK(fill_now(other, 0, LARGEST / 4));
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddMemsetNode(&node[0], graph, NULL, 0, &fill, context));
        OK(cuGraphAddMemcpyNode(&node[1], graph, &node[0], 1, &copy, context));
        if (rows) {
            fill = (CUDA_MEMSET_NODE_PARAMS){.dst = other,
                                             .value = 7,
                                             .elementSize = 1,
                                             .pitch = PITCH,
                                             .width = PITCH,
                                             .height = rows};
            copy = box_copy(block[i], other, PITCH, rows, 1);
            OK(cuGraphAddMemsetNode(&node[2], graph, &node[1], 1, &fill, context));
            OK(cuGraphAddMemcpyNode(&node[3], graph, &node[2], 1, &copy, context));
        }
        run(graph);
        cr_assert_eq(words_other(block[i], 0x07070707, words), 0);
        cr_assert_eq(words_other(block[i] + 4 * words, SEED, sizes[i] / 4 - words), 0);
        cr_assert_eq(words_other(other + 4 * words, SEED, sizes[i] / 4 - words), 0);
        cr_assert_eq(words_other(other + sizes[i], 0, (LARGEST - sizes[i]) / 4), 0);
    }
}

/* Memory that a graph allocates is the driver's. */
Test(borders, nodes_copy_to_and_from_memory_of_the_graphs_own)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = LARGEST};
    CUdeviceptr block[SIZES];
    CUgraphNode node[4];
    CUDA_MEMCPY3D copy;
    CUgraph graph;

    blocks_start(block);
    for (size_t i = 0; i + 1 < SIZES; i++) {
        const size_t size = sizes[i];

        OK(fill_now(block[i], SEED + (unsigned)i, size / 4));
        OK(fill_now(block[SIZES - 1], 0, LARGEST / 4));
        OK(cuGraphCreate(&graph, 0));
        params.dptr = 0;
        OK(cuGraphAddMemAllocNode(&node[0], graph, NULL, 0, &params));
        copy = box_copy(params.dptr, block[i], size, 1, 1);
        OK(cuGraphAddMemcpyNode(&node[1], graph, &node[0], 1, &copy, context));
        copy = box_copy(block[SIZES - 1], params.dptr, size, 1, 1);
        OK(cuGraphAddMemcpyNode(&node[2], graph, &node[1], 1, &copy, context));
        OK(cuGraphAddMemFreeNode(&node[3], graph, &node[2], 1, params.dptr));
        run(graph);
        cr_assert_eq(words_other(block[SIZES - 1], SEED + (unsigned)i, size / 4), 0);
        cr_assert_eq(words_other(block[SIZES - 1] + size, 0, (LARGEST - size) / 4), 0);
    }
}

/* Kernels, fills and copies of a stream that captures; the graph is launched twice. */
Test(borders, what_was_captured_passes_them)
{
    CUdeviceptr block[SIZES], other;
    CUstream stream = new_stream();
    CUgraphExec exec;
    CUgraph graph;

    blocks_start(block);
    OK(cuMemAlloc(&other, LARGEST));
    OK(launch_fill(stream, other, 0, 1)); /* loads the kernels */
    OK(launch_copy(stream, other, block[0], 1));
    OK(cuStreamSynchronize(stream));
    for (size_t i = 0; i < SIZES; i++) {
        const size_t words = sizes[i] / 4;

        OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(launch_fill(stream, block[i], SEED + (unsigned)i, words));
        OK(cuMemcpyDtoDAsync(other, block[i], sizes[i], stream));
        OK(cuMemsetD32Async(block[i], 3, words, stream));
        OK(launch_copy(stream, block[i], other, words / 2));
        OK(cuStreamEndCapture(stream, &graph));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        for (int twice = 0; twice < 2; twice++) {
            OK(cuGraphLaunch(exec, stream));
            OK(cuStreamSynchronize(stream));
            cr_assert_eq(words_other(other, SEED + (unsigned)i, words), 0);
            cr_assert_eq(words_other(block[i], SEED + (unsigned)i, words / 2), 0);
            cr_assert_eq(words_other(block[i] + words / 2 * 4, 3, words - words / 2), 0);
            OK(fill_now(other, 0, words));
            OK(fill_now(block[i], 0, words));
        }
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
    }
}

Test(borders, batches_of_copies_pass_them)
{
    CUdeviceptr block[SIZES], other;

    blocks_start(block);
    OK(cuMemAlloc(&other, LARGEST));
    for (size_t i = 0; i < SIZES; i++) {
        CUdeviceptr to[2] = {other, other + LARGEST / 8 * 4}, from[2] = {block[i], block[i]};
        const size_t bytes = sizes[i] < LARGEST / 2 ? sizes[i] : LARGEST / 8 * 4;
        size_t both[2] = {bytes, bytes}, failed = 0;

        OK(fill_now(block[i], SEED + (unsigned)i, sizes[i] / 4));
        for (int form = 0; form < 2; form++) {
            CUstream stream = new_stream();
            CUresult r;

            OK(fill_now(other, 0, LARGEST / 4));
            r = copy_batch(form, to, from, both, &failed, stream);
            if (r != CUDA_ERROR_NOT_FOUND) {
                OK(r);
                OK(cuStreamSynchronize(stream));
                cr_assert_eq(words_other(to[0], SEED + (unsigned)i, bytes / 4), 0);
                cr_assert_eq(words_other(to[1], SEED + (unsigned)i, bytes / 4), 0);
            }
            OK(cuStreamDestroy(stream));
        }
    }
}

/* ---- Peers ----------------------------------------------------------------------------------- */

Test(borders, copies_between_devices_pass_them)
{
    CUdeviceptr block[SIZES], there;

    two_devices(2 * MIB);
    blocks_start(block);
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&there, LARGEST));
    OK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < SIZES; i++) {
        const size_t words = sizes[i] / 4;

        OK(fill_now(block[i], SEED + (unsigned)i, words));
        OK(cuMemcpyPeer(there, second, block[i], context, sizes[i]));
        OK(cuMemsetD32(block[i], 0, words));
        OK(cuMemcpyPeerAsync(block[i], context, there, second, sizes[i], CU_STREAM_LEGACY));
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(block[i], SEED + (unsigned)i, words), 0);
        OK(cuMemsetD32(block[i], 0, words));
        OK(cuMemcpyDtoDAsync(block[i], there, sizes[i],
                             CU_STREAM_LEGACY)); /* without peer access */
        OK(cuCtxSynchronize());
        cr_assert_eq(words_other(block[i], SEED + (unsigned)i, words), 0);
    }
}

/* Blocks of the other device, some from before the access was given and some from later. */
Test(borders, peer_access_is_to_all_of_a_block)
{
    CUdeviceptr before[SIZES], later[SIZES];

    two_devices(2 * MIB);
    need_reach();
    OK(cuCtxSetCurrent(second));
    blocks_start(before);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(cuCtxSetCurrent(second));
    blocks_start(later);
    OK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < SIZES; i++) {
        OK(fill_now(before[i], SEED + (unsigned)i, sizes[i] / 4));
        OK(fill_now(later[i], (unsigned)i, sizes[i] / 4));
        OK(cuMemsetD8(later[i] + sizes[i] - 4, 0, 4));
    }
    OK(cuCtxSynchronize());
    for (size_t i = 0; i < SIZES; i++) {
        cr_assert_eq(words_other(before[i], SEED + (unsigned)i, sizes[i] / 4), 0);
        cr_assert_eq(words_other(later[i], (unsigned)i, sizes[i] / 4 - 1), 0);
    }
}

/* ---- A pool ---------------------------------------------------------------------------------- */

static uint64_t figure(CUmemoryPool pool, CUmemPool_attribute which)
{
    cuuint64_t value = 0;

    OK(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

Test(borders, a_pool_counts_what_was_asked_for)
{
    uint64_t used, all = 0;
    CUdeviceptr block[SIZES];
    CUmemoryPool pool;

    OK(cuDeviceGetDefaultMemPool(&pool, device));
    used = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    blocks_start_of(MEMORY_ASYNC, block);
    for (size_t i = 0; i < SIZES; i++)
        all += sizes[i];
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) - used, all);
    cr_assert_geq(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), used + all);
    blocks_end_of(MEMORY_ASYNC, block);
    OK(cuCtxSynchronize());
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used);
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), used);
}

Test(borders, a_pool_lets_a_peer_into_all_of_a_block)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr before[SIZES], later[SIZES];
    CUmemoryPool pool;

    two_devices(2 * MIB);
    need_reach();
    OK(cuDeviceGetDefaultMemPool(&pool, device));
    blocks_start_of(MEMORY_ASYNC, before);
    OK(cuCtxSynchronize());
    OK(cuMemPoolSetAccess(pool, &access, 1));
    blocks_start_of(MEMORY_ASYNC, later);
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(second));
    for (size_t i = 0; i < SIZES; i++) {
        OK(fill_now(before[i], SEED + (unsigned)i, sizes[i] / 4));
        OK(fill_now(later[i], (unsigned)i, sizes[i] / 4));
    }
    OK(cuMemFree(far));
    OK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < SIZES; i++) {
        cr_assert_eq(words_other(before[i], SEED + (unsigned)i, sizes[i] / 4), 0);
        cr_assert_eq(words_other(later[i], (unsigned)i, sizes[i] / 4), 0);
    }
}
