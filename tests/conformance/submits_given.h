/*
 * Part of submits.c: memory that is bound, presented or copied where others than the GPU's streams
 * reach it.
 */
#ifndef TESTS_CONFORMANCE_SUBMITS_GIVEN_H
#define TESTS_CONFORMANCE_SUBMITS_GIVEN_H

/* Memory of the device's pool may be bound, within one block; the driver then looks at the object,
 * which is none. */
static void run_bind(const struct task *task)
{
    CUdeviceptr address;

    prepare(true);
    OK(cuMemAllocAsync(&address, BLOCK, NULL));
    if (cuMulticastBindAddr)
        FAILS(cuMulticastBindAddr(0, 0, address, BLOCK, 0));
}

static void run_bind_v2(const struct task *task)
{
    CUdeviceptr address;

    prepare(true);
    only_software();
    OK(cuMemAllocAsync(&address, BLOCK, NULL));
    FAILS(cuMulticastBindAddr_v2(0, 0, 0, address, BLOCK, 0));
}

/* More than a block, memory of cuMemAlloc, and freed memory are refused before the driver sees
 * them, and end nothing. */
static void run_bind_more(const struct task *task)
{
    struct material *m = prepare(true);
    CUdeviceptr address;

    only_software();
    OK(cuMemAllocAsync(&address, BLOCK / 2, NULL));
    FAILS(cuMulticastBindAddr(0, 0, address, BLOCK, 0));
    FAILS(cuMulticastBindAddr(0, 0, address + BLOCK / 4, BLOCK / 2, 0));
    FAILS(cuMulticastBindAddr_v2(0, 0, 0, m->dst, BLOCK, 0));
    OK(cuMemFreeAsync(address, NULL));
    FAILS(cuMulticastBindAddr(0, 0, address, BLOCK / 2, 0));
    if (shim && calls("cuMulticastBindAddr") + calls("cuMulticastBindAddr_v2") > 0)
        FAIL("the driver was asked");
}

static void run_bind_endpoint(const struct task *task)
{
    CUdeviceptr address;

    prepare(true);
    only_software();
    OK(cuMemAllocAsync(&address, BLOCK, NULL));
    if (cuLogicalEndpointBindAddr)
        FAILS(cuLogicalEndpointBindAddr(0, 0, 0, (void *)address, BLOCK, 0));
}

/* No driver here has endpoints or copies over a fabric: what it says is not what the library
 * says. */
static void run_bind_endpoint_more(const struct task *task)
{
    CUdeviceptr address;

    prepare(true);
    only_software();
    OK(cuMemAllocAsync(&address, BLOCK / 2, NULL));
    if (shim &&
        cuLogicalEndpointBindAddr(0, 0, 0, (void *)address, BLOCK, 0) != CUDA_ERROR_INVALID_VALUE)
        FAIL("more than a block is bound");
}

static CUresult copy_over_fabric(struct material *m, CUdeviceptr from, size_t size)
{
    CUDA_FABRIC_COPY_BATCH_OP copy[2] = {
        {.src = {.type = 2}, .dst = {CU_FABRIC_COPY_OPERAND_TYPE_POINTER}, .size = 64},
        {.src = {CU_FABRIC_COPY_OPERAND_TYPE_POINTER}, .dst = {.type = 2}, .size = size}};

    copy[0].dst.op.ptr.ptr = m->dst;
    copy[1].src.op.ptr.ptr = from;
    return cuFabricCpyBatchAsync(2, copy, 0, m->a);
}

static void run_fabric_more(const struct task *task)
{
    struct material *m = prepare(true);

    only_software();
    if (!shim)
        return;
    if (copy_over_fabric(m, m->src, BLOCK) != CUDA_ERROR_NOT_SUPPORTED)
        FAIL("the driver was not asked");
    if (copy_over_fabric(m, m->src, BLOCK + 1) != CUDA_ERROR_INVALID_VALUE)
        FAIL("it reads past a block's end");
    OK(cuMemFree_v2(m->src));
    if (copy_over_fabric(m, m->src, 64) != CUDA_ERROR_INVALID_VALUE)
        FAIL("it reads freed memory");
}

/* A copy over fabric by a node of a graph. */
static void run_fabric_node(const struct task *task)
{
    struct material *m = prepare(true);
    CUDA_FABRIC_COPY_BATCH_OP copy = {.src = {.type = 2},
                                      .dst = {CU_FABRIC_COPY_OPERAND_TYPE_POINTER},
                                      .size = BLOCK + 1};
    CUgraphNodeParams params = {.type = (CUgraphNodeType)18};
    CUgraphNode node;
    CUgraph graph;

    only_software();
    copy.dst.op.ptr.ptr = m->dst;
    params.reserved1[0] = 1;
    params.reserved1[1] = (long long)(uintptr_t)&copy;
    OK(cuGraphCreate(&graph, 0));
    FAILS(cuGraphAddNode(&node, graph, NULL, 0, &params));
    if (shim && calls("cuGraphAddNode") > 0)
        FAIL("the driver was asked");
    copy.size = BLOCK;
    cuGraphAddNode(&node, graph, NULL, 0, &params);
    if (calls("cuGraphAddNode") == 0)
        FAIL("the driver was not asked");
}

static CUresult present(CUdeviceptr address)
{
    struct gs_egl_frame frame = {.plane = {(void *)address},
                                 .width = 64,
                                 .height = 64,
                                 .pitch = 64,
                                 .plane_count = 1,
                                 .frame_type = GS_EGL_FRAME_TYPE_PITCH};
    CUstream stream = NULL;

    return cuEGLStreamProducerPresentFrame(NULL, frame, &stream);
}

static void run_present(const struct task *task)
{
    struct material *m = prepare(true);

    only_software();
    FAILS(present(m->dst));
    if (calls("cuEGLStreamProducerPresentFrame") != 1)
        FAIL("the driver was not asked");
}

static void run_present_freed(const struct task *task)
{
    struct material *m = prepare(true);

    only_software();
    OK(cuMemFree_v2(m->dst));
    FAILS(present(m->dst));
    if (shim && calls("cuEGLStreamProducerPresentFrame") > 0)
        FAIL("the driver was asked");
}

#endif
