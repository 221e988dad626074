/*
 * Copies and fills that are told to the driver other than one by one: as nodes added to a graph by
 * hand, as batches of boxes, with attributes. They do what the plain calls do, and stay inside one
 * allocation.
 */
#include "nodes.h"
#include "two.h"

#include <criterion/criterion.h>

TestSuite(nodes, .init = conform_start, .timeout = 60);

/* ---- nodes ---- */

static void launch(CUgraphExec exec)
{
    OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

/* A fill and a copy of what it filled, changed before and after the graph is instantiated. */
static void fill_and_copy(enum form form, CUdeviceptr from, CUdeviceptr to)
{
    CUgraphNodeParams fill = a_fill(from, 1, WORDS, context), copy = a_copy(to, from, BYTES);
    CUgraphNode filling = NULL, copying = NULL;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    OK(fill_now(to, 0, 3 * WORDS));
    OK(cuGraphCreate(&graph, 0));
    OK(add(form, &filling, graph, NULL, &fill));
    OK(add(form, &copying, graph, filling, &copy));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    launch(exec);
    cr_assert_eq(words_other(to, 1, WORDS), 0);
    cr_assert_eq(words_other(to + BYTES, 0, 2 * WORDS), 0);
    fill = a_fill(from, 2, WORDS, context);
    copy = a_copy(to + BYTES, from, BYTES);
    OK(change_exec(form, exec, filling, &fill));
    OK(change_exec(form, exec, copying, &copy));
    launch(exec);
    cr_assert_eq(words_other(to, 1, WORDS), 0);
    cr_assert_eq(words_other(to + BYTES, 2, WORDS), 0);
    OK(cuGraphExecDestroy(exec));
    fill = a_fill(from, 3, WORDS, context);
    copy = a_copy(to + 2 * BYTES, from, BYTES);
    OK(change(form, filling, &fill));
    OK(change(form, copying, &copy));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    launch(exec);
    cr_assert_eq(words_other(to + BYTES, 2, WORDS), 0);
    cr_assert_eq(words_other(to + 2 * BYTES, 3, WORDS), 0);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

Test(nodes, added_by_hand_they_fill_and_copy_in_every_form)
{
    CUdeviceptr from = allocated(BYTES), to = allocated(3 * BYTES);

    for (enum form form = 0; form < FORMS; form++)
        if (form_exists(form))
            fill_and_copy(form, from, to);
}

/* Natively such a node may be refused or taken, by what the driver makes of it. */
static void is_past_the_end(const char *name, CUresult r)
{
    probe(name, "%s", result_name(r));
    if (under_shim() || software_driver())
        cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "%s: %s", name, result_name(r));
}

/* Adds such a node, and makes a good one such, here and in an instance; nothing is launched. */
static void never_past(enum form form, CUgraphNodeParams *good, CUgraphNodeParams *bad)
{
    const bool fills = good->type == CU_GRAPH_NODE_TYPE_MEMSET;
    CUgraphNode node = NULL, wrong = NULL;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    OK(cuGraphCreate(&graph, 0));
    OK(add(form, &node, graph, NULL, good));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    is_past_the_end(fills ? "fill_node_past_the_end" : "copy_node_past_the_end",
                    add(form, &wrong, graph, node, bad));
    is_past_the_end(fills ? "fill_node_set_past_the_end" : "copy_node_set_past_the_end",
                    change(form, node, bad));
    is_past_the_end(fills ? "fill_node_of_an_instance_set_past_the_end"
                          : "copy_node_of_an_instance_set_past_the_end",
                    change_exec(form, exec, node, bad));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

Test(nodes, they_stay_inside_one_allocation)
{
    CUdeviceptr small = allocated(BYTES), other;

    allocated(BYTES); /* the neighbour */
    other = allocated(MIB);
    for (enum form form = 0; form < FORMS; form++) {
        CUgraphNodeParams fill = a_fill(small, 1, WORDS, context),
                          long_fill = a_fill(small, 1, WORDS + 1, context);
        CUgraphNodeParams to = a_copy(small, other, BYTES),
                          too_far = a_copy(small, other, BYTES + 1);
        CUgraphNodeParams from = a_copy(other, small, BYTES);
        CUgraphNodeParams too_much = a_copy(other, small + 4, BYTES);

        if (!form_exists(form))
            continue;
        never_past(form, &fill, &long_fill);
        never_past(form, &to, &too_far);
        never_past(form, &from, &too_much);
        /* Rows: the last one's end counts. */
        fill.memset.pitch = long_fill.memset.pitch = BYTES / 4;
        fill.memset.height = 4, fill.memset.width = WORDS / 4;
        long_fill.memset.height = 5, long_fill.memset.width = 1;
        never_past(form, &fill, &long_fill);
    }
}

Test(nodes, freed_memory_is_not_for_them)
{
    CUdeviceptr freed = allocated(MIB), other = allocated(MIB);
    CUgraph graph = NULL;

    OK(cuMemFree(freed));
    OK(cuGraphCreate(&graph, 0));
    for (enum form form = 0; form < FORMS; form++) {
        CUgraphNodeParams fill = a_fill(freed, 1, WORDS, context),
                          copy = a_copy(other, freed, BYTES);
        CUgraphNode node = NULL;

        if (!form_exists(form))
            continue;
        is_past_the_end("fill_node_of_freed_memory", add(form, &node, graph, NULL, &fill));
        is_past_the_end("copy_node_of_freed_memory", add(form, &node, graph, NULL, &copy));
    }
}

/* A node of two copies (CUDA 13.5), of which the second leaves its allocation. */
Test(nodes, batches_of_copies_in_a_node_stay_inside_as_well)
{
    CUdeviceptr small = allocated(BYTES), other = allocated(MIB);
    CUgraphNodeParams params;
    CUgraphNode node = NULL;
    CUgraph graph = NULL;
    CUresult r;

    OK(cuGraphCreate(&graph, 0));
    for (enum form form = FORM_12020; form < FORMS; form++) {
        CUdeviceptr dsts[] = {other, small}, srcs[] = {small, other};
        size_t sizes[] = {BYTES, BYTES + 1}, first = 0;
        CUmemcpyAttributes order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
        const struct {
            size_t count;
            CUdeviceptr *dsts, *srcs;
            size_t *sizes;
            CUmemcpyAttributes *order;
            size_t *first, orders;
            CUcontext context;
        } batch = {2, dsts, srcs, sizes, &order, &first, 1, context};

        if (!form_exists(form))
            continue;
        memset(&params, 0, sizeof params);
        params.type = (CUgraphNodeType)14;
        memcpy(params.reserved1, &batch, sizeof batch);
        r = add(form, &node, graph, NULL, &params);
        probe("batch_node_past_the_end", "%s", result_name(r));
        if (under_shim())
            cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "%s", result_name(r));
    }
}

/* False: the driver does not let nodes do this, which it may natively. */
static bool is_done(const char *name, CUresult r)
{
    probe(name, "%s", result_name(r));
    if (software_driver() || under_shim())
        OK(r);
    return r == CUDA_SUCCESS;
}

static void copy_from_far(enum form form, CUdeviceptr here)
{
    CUgraphNodeParams copy = a_copy(near, far, MIB);
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    OK(fill_now(near, 1, MIB / 2));
    OK(fill_now(here, 4, MIB / 2));
    OK(cuGraphCreate(&graph, 0));
    if (is_done("node_between_devices", add(form, &node, graph, NULL, &copy))) {
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        launch(exec);
        cr_assert_eq(words_other(near, 2, MIB / 4), 0);
        cr_assert_eq(words_other(near + MIB, 1, MIB / 4), 0);
        copy = a_copy(near + MIB, far + MIB, MIB);
        if (is_done("node_changed_between_devices", change_exec(form, exec, node, &copy))) {
            launch(exec);
            cr_assert_eq(words_other(near + MIB, 2, MIB / 4), 0);
        }
        OK(cuGraphExecDestroy(exec));
        copy.memcpy.copyParams.dstDevice = here;
        OK(change(form, node, &copy));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        launch(exec);
        cr_assert_eq(words_other(here, 2, MIB / 4), 0);
        OK(cuGraphExecDestroy(exec));
    }
    OK(cuGraphDestroy(graph));
}

Test(nodes, memory_of_another_device_is_copied_by_them)
{
    CUdeviceptr here = 0;

    two_devices(2 * MIB);
    need_reach();
    for (enum form form = 0; form < FORMS; form++) {
        if (!form_exists(form))
            continue;
        far_anew(32 * MIB);
        OK(cuMemAlloc(&here, 2 * MIB));
        copy_from_far(form, here);
        OK(cuMemFree(here));
    }
}

/* Memory of the other device, 2, that no copy has made reachable yet: of one more allocation. */
static CUdeviceptr unreached(CUdeviceptr *held)
{
    OK(cuCtxSetCurrent(context));
    OK(fill_now(near, 1, WORDS));
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(held, 32 * MIB));
    OK(fill_now(*held, 2, WORDS));
    return *held; /* and its context is current */
}

static void is_copied(CUgraphExec exec)
{
    OK(cuCtxSetCurrent(context));
    launch(exec);
    cr_assert_eq(words_other(near, 2, WORDS), 0);
}

static void copy_while_another_is_current(enum form form)
{
    CUdeviceptr held[3] = {0};
    CUgraphNodeParams copy = a_copy(near, unreached(&held[0]), BYTES);
    CUgraphNode node = NULL;
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    OK(cuGraphCreate(&graph, 0));
    if (is_done("node_between_devices", add(form, &node, graph, NULL, &copy))) {
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        is_copied(exec);
        copy = a_copy(near, unreached(&held[1]), BYTES);
        if (is_done("node_changed_between_devices", change_exec(form, exec, node, &copy)))
            is_copied(exec);
        OK(cuGraphExecDestroy(exec));
        copy = a_copy(near, unreached(&held[2]), BYTES);
        OK(change(form, node, &copy));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        is_copied(exec);
        OK(cuGraphExecDestroy(exec));
    }
    OK(cuCtxSetCurrent(context));
    OK(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++)
        if (held[i])
            OK(cuMemFree(held[i]));
}

/* The device that copies is that of the node's context, whichever one is current when the node is
 * said. */
Test(nodes, copies_are_done_in_the_nodes_own_context)
{
    two_devices(2 * MIB);
    need_reach();
    for (enum form form = 0; form < FORMS; form++)
        if (form_exists(form))
            copy_while_another_is_current(form);
}

/* A fill of the other device's memory by a node, added without peer access. */
static CUresult fill_far(enum form form, CUgraph *ret_graph, CUgraphExec *ret_exec)
{
    CUgraphNodeParams fill = a_fill(far, 5, WORDS, context);
    CUgraphNode node = NULL;
    CUresult r;

    *ret_exec = NULL;
    OK(cuGraphCreate(ret_graph, 0));
    r = add(form, &node, *ret_graph, NULL, &fill);
    if (is_done("far_fill_node", r))
        OK(cuGraphInstantiateWithFlags(ret_exec, *ret_graph, 0));
    return r;
}

/* Unlike the call, which takes peer access: measured on two H200s. */
Test(nodes, fills_of_memory_of_another_device_can_be_added)
{
    two_devices(2 * MIB);
    need_reach();
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(far, 5, WORDS));
    for (enum form form = 0; form < FORMS; form++) {
        CUgraphExec exec = NULL;
        CUgraph graph = NULL;

        if (!form_exists(form))
            continue;
        fill_far(form, &graph, &exec);
        if (exec)
            OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
    }
    CHECK(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(far, 5, WORDS));
}

/* What comes of them natively is not known, and may be the end of the context: once, and last. */
Test(nodes, fills_of_memory_of_another_device_are_launched)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;
    CUresult r;

    two_devices(2 * MIB);
    need_reach();
    if (fill_far(FORM_KIND, &graph, &exec) != CUDA_SUCCESS)
        cr_skip_test("the driver makes no such node");
    r = cuGraphLaunch(exec, CU_STREAM_PER_THREAD);
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(CU_STREAM_PER_THREAD);
    probe("far_fill_node_launched", "%s", result_name(r));
    if (!software_driver() && !under_shim())
        cr_skip_test("natively what it does is only printed");
    OK(r);
    far_words(5, WORDS);
}

Test(nodes, fills_of_memory_of_another_device_with_peer_access)
{
    CUgraphExec exec = NULL;
    CUgraph graph = NULL;

    two_devices(2 * MIB);
    need_reach();
    OK(cuCtxEnablePeerAccess(second, 0));
    if (fill_far(FORM_KIND, &graph, &exec) == CUDA_SUCCESS) {
        launch(exec);
        far_words(5, WORDS);
        OK(cuGraphExecDestroy(exec));
    }
}

/* ---- boxes, and copies with attributes ---- */

typedef CUresult boxes_fn(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream);
typedef CUresult boxes_v2_fn(size_t, CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream);
typedef CUresult box_fn(CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream);
typedef CUresult with_fn(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *, CUstream);

/* The ways to copy a box of two slices, or with one attribute what fills it. */
enum way { BOXES, BOXES_V2, BOX, WITH, WAYS };
static const struct {
    const char *name;
    int version;
} ways[WAYS] = {{"cuMemcpy3DBatchAsync", 12080},
                {"cuMemcpy3DBatchAsync", 13000},
                {"cuMemcpy3DWithAttributesAsync", 13020},
                {"cuMemcpyWithAttributesAsync", 13020}};

static bool way_exists(enum way way)
{
    return driver_lookup(ways[way].name, ways[way].version, 0) != NULL;
}

static CUDA_MEMCPY3D_BATCH_OP a_box(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    CUDA_MEMCPY3D_BATCH_OP box = {.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                          .op.ptr = {.ptr = src}},
                                  .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                                          .op.ptr = {.ptr = dst}},
                                  .extent = {.width = bytes / 4, .height = 2, .depth = 2},
                                  .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

    return box;
}

/* Copies as many bytes to dst, and where the way takes several, as many to `also` before. */
static CUresult copy(enum way way, CUdeviceptr dst, CUdeviceptr also, CUdeviceptr src, size_t bytes,
                     size_t also_bytes, size_t *ret_fail, CUstream stream)
{
    CUDA_MEMCPY3D_BATCH_OP boxes[] = {a_box(also, src, also_bytes), a_box(dst, src, bytes)};
    CUmemcpyAttributes order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    void *function = driver_lookup(ways[way].name, ways[way].version, 0);

    *ret_fail = 77;
    switch (way) {
    case BOXES:
        return ((boxes_fn *)function)(2, boxes, ret_fail, 0, stream);
    case BOXES_V2:
        return ((boxes_v2_fn *)function)(2, boxes, 0, stream);
    case BOX:
        return ((box_fn *)function)(&boxes[1], 0, stream);
    default:
        return ((with_fn *)function)(dst, src, bytes, &order, stream);
    }
}

Test(nodes, boxes_and_copies_with_attributes_stay_inside_one_allocation)
{
    CUdeviceptr small = allocated(BYTES), neighbour = allocated(BYTES), also = allocated(BYTES),
                other = 0;
    CUstream stream = new_stream();

    other = filled(MIB, 7);
    OK(fill_now(neighbour, 3, WORDS));
    for (enum way way = 0; way < WAYS; way++) {
        size_t failed;
        CUresult r;

        if (!way_exists(way))
            continue;
        OK(fill_now(small, 0, WORDS));
        OK(fill_now(also, 0, WORDS));
        OK(copy(way, small, also, other, BYTES, BYTES, &failed, stream));
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(small, 7, WORDS), 0, "way %d", (int)way);
        if (way < BOX)
            cr_assert_eq(words_other(also, 7, WORDS), 0, "way %d", (int)way);
        if (!under_shim() && !software_driver())
            continue; /* of batches past the end a real driver's process may die */
        OK(fill_now(also, 0, WORDS));
        r = copy(way, small, also, other, BYTES + 16, BYTES, &failed, stream);
        cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "way %d: %s", (int)way, result_name(r));
        cr_assert(way != BOXES || failed == 1, "%zu", failed);
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(neighbour, 3, WORDS), 0);
        if (under_shim()) /* none of a batch is made where one is refused */
            cr_assert_eq(words_other(also, 0, WORDS), 0, "way %d", (int)way);
    }
}

Test(nodes, boxes_may_have_room_between_their_rows_and_slices)
{
    CUDA_MEMCPY3D_BATCH_OP box;
    CUstream stream = new_stream();
    CUdeviceptr ptr = 0, other = 0;
    boxes_v2_fn *boxes = (boxes_v2_fn *)driver_lookup("cuMemcpy3DBatchAsync", 13000, 0);

    if (!boxes)
        cr_skip_test("the driver copies no batches of boxes");
    OK(cuMemAlloc(&ptr, 64 * 9 + 48));
    OK(cuMemAlloc(&other, MIB));
    OK(fill_now(ptr, 0, 156));
    OK(fill_now(other, 9, MIB / 4));
    /* Two slices of three rows, of which a fourth is room, as a fourth of each row is: the last row
     * ends where the block does. */
    box = a_box(ptr + 64 * 3, other, 64);
    box.dst.op.ptr.rowLength = 64;
    box.dst.op.ptr.layerHeight = 4;
    box.extent = (CUextent3D){.width = 48, .height = 3, .depth = 2};
    OK(boxes(1, &box, 0, stream));
    OK(cuStreamSynchronize(stream));
    for (int row = 0; row < 10; row++) {
        cr_assert_eq(words_other(ptr + 64 * row, row < 3 || row == 6 ? 0 : 9, 12), 0, "row %d",
                     row);
        if (row < 9)
            cr_assert_eq(words_other(ptr + 64 * row + 48, 0, 4), 0, "behind row %d", row);
    }
    box.dst.op.ptr.ptr += 64;
    if (under_shim() || software_driver())
        CHECK(CUDA_ERROR_INVALID_VALUE, boxes(1, &box, 0, stream));
}

Test(nodes, boxes_and_copies_with_attributes_reach_memory_of_another_device)
{
    CUstream stream;

    two_devices(2 * MIB);
    need_reach();
    stream = new_stream();
    for (enum way way = 0; way < WAYS; way++) {
        size_t failed;

        if (!way_exists(way))
            continue;
        far_anew(32 * MIB);
        OK(fill_now(near, 1, MIB / 2));
        if (!is_done("box_between_devices",
                     copy(way, near, near + MIB, far, MIB, MIB, &failed, stream)))
            continue;
        OK(cuStreamSynchronize(stream));
        cr_assert_eq(words_other(near, 2, MIB / 4), 0, "way %d", (int)way);
    }
}
