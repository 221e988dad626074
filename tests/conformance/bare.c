/*
 * Nodes of graphs that name no context. A fill of memory of cuMemAlloc is done in the context that
 * owns it, whichever is current, or none; of memory of a pool, and of the program's own mappings,
 * it is refused. What is changed stays in its context, and a copy needs none.
 */
#include "nodes.h"

#include <criterion/criterion.h>

TestSuite(bare, .init = conform_start, .timeout = 60);

/* A change by the call for fills alone, whose native answer was not measured. */
static void change_by_kind(CUgraphExec exec, CUgraphNode node, CUdeviceptr dst, unsigned int value)
{
    CUgraphNodeParams params = a_fill(dst, value, WORDS, NULL);
    CUresult r = change_exec(FORM_KIND, exec, node, &params);

    probe("fill_changed_without_a_context", "%s", result_name(r));
    if (r != CUDA_SUCCESS && !under_shim() && !software_driver())
        return;
    OK(r);
    OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    cr_assert_eq(words_other(dst, value, WORDS), 0);
}

/* Adds such a fill in every form, launches it, and changes it. */
static void fills(CUdeviceptr dst, CUcontext during)
{
    for (enum form form = 0; form < FORMS; form++) {
        const unsigned int value = 10 * (unsigned int)form;
        CUgraphNodeParams params = a_fill(dst, value + 1, WORDS, NULL);
        CUgraphNode node = NULL;
        CUgraphExec exec = NULL;
        CUgraph graph = NULL;

        if (!form_exists(form))
            continue;
        OK(cuGraphCreate(&graph, 0));
        OK(cuCtxSetCurrent(during));
        OK(add(form, &node, graph, NULL, &params));
        cr_assert_null(params.memset.ctx, "what the program gave was changed");
        OK(cuCtxSetCurrent(context));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        cr_assert_eq(words_other(dst, value + 1, WORDS), 0, "form %d", form_versions[form]);
        params = a_fill(dst, value + 2, WORDS, NULL);
        OK(cuGraphExecNodeSetParams(exec, node, &params));
        OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        cr_assert_eq(words_other(dst, value + 2, WORDS), 0, "form %d", form_versions[form]);
        cr_assert_null(params.memset.ctx, "what the program gave was changed");
        OK(cuGraphNodeSetParams(node, &params));
        change_by_kind(exec, node, dst, value + 3);
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
    }
}

Test(bare, fills_of_plain_memory_are_done_in_its_owner)
{
    CUcontext second = context_create(device);
    CUdeviceptr small = 0, large = 0, others = 0;

    OK(cuMemAlloc(&others, BYTES));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&small, 3 * BYTES));
    OK(cuMemAlloc(&large, 4 * MIB));
    fills(small, context);
    fills(small + BYTES, context);
    fills(large + 2 * MIB, context);
    fills(others, context);
    fills(small, second);
    fills(small, NULL);
    fills(others, NULL);
}

/* It can be changed to, though not added. */
static void is_refused(CUdeviceptr dst)
{
    for (enum form form = 0; form < FORMS; form++) {
        CUgraphNodeParams params = a_fill(dst, 1, WORDS, NULL), good = a_fill(dst, 1, WORDS, NULL);
        CUgraphNode node = NULL, other = NULL;
        CUgraphExec exec = NULL;
        CUgraph graph = NULL;

        if (!form_exists(form))
            continue;
        OK(cuGraphCreate(&graph, 0));
        CHECK(CUDA_ERROR_INVALID_VALUE, add(form, &node, graph, NULL, &params));
        good.memset.ctx = context;
        if (form != FORM_KIND) {
            OK(add(form, &other, graph, NULL, &good));
            OK(cuGraphNodeSetParams(other, &params));
            OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
            OK(cuGraphExecNodeSetParams(exec, other, &params));
            OK(cuGraphExecDestroy(exec));
        }
        OK(cuGraphDestroy(graph));
    }
}

Test(bare, fills_of_memory_of_a_pool_are_refused)
{
    CUdeviceptr ptr = 0;

    OK(cuMemAllocAsync(&ptr, BYTES, CU_STREAM_LEGACY));
    OK(cuCtxSynchronize());
    is_refused(ptr);
}

Test(bare, fills_of_mappings_of_ones_own_are_refused)
{
    const CUmemAllocationProp prop = device_memory(CU_MEM_HANDLE_TYPE_NONE);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr = 0;

    OK(cuMemCreate(&handle, 2 * MIB, &prop, 0));
    OK(cuMemAddressReserve(&ptr, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(ptr, 2 * MIB, 0, handle, 0));
    access_set(ptr, 2 * MIB, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    is_refused(ptr);
}

Test(bare, copies_need_no_context)
{
    for (int kind = MEMORY_PLAIN; kind <= MEMORY_ASYNC; kind++) {
        CUDA_MEMCPY3D copy;
        CUdeviceptr from = 0, to = 0;
        CUgraphNode node = NULL;
        CUgraphExec exec = NULL;
        CUgraph graph = NULL;

        OK(memory_alloc((enum memory_kind)kind, &from, BYTES));
        OK(memory_alloc((enum memory_kind)kind, &to, BYTES));
        OK(cuCtxSynchronize());
        OK(fill_now(from, 5, WORDS));
        copy = box_copy(to, from, BYTES, 1, 1);
        OK(cuGraphCreate(&graph, 0));
        OK(cuCtxSetCurrent(NULL));
        OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, NULL));
        OK(cuCtxSetCurrent(context));
        OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        OK(cuGraphExecMemcpyNodeSetParams(exec, node, &copy, NULL));
        OK(cuGraphLaunch(exec, CU_STREAM_PER_THREAD));
        OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
        cr_assert_eq(words_other(to, 5, WORDS), 0);
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(graph));
        OK(memory_free((enum memory_kind)kind, from));
        OK(memory_free((enum memory_kind)kind, to));
    }
}
