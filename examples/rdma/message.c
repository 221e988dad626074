/*
 * Sends messages out of GPU memory to itself over a queue pair, as codes do that know nothing of
 * registration caches: for each message it allocates GPU memory, registers it, sends, deregisters
 * and frees. A plain program on the driver API and libibverbs.
 *
 *   message [ROUNDS [BYTES]]
 *
 * The last line says how many messages arrived and what a round cost. Needs a network card that
 * libibverbs lists first and whose first port can talk to itself.
 */
#include <cuda.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { port = 1 };

struct wire {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
};

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "message: %s failed\n", what);
    exit(1);
}

static void must(CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS)
        fail(what);
}

static void open_card(struct wire *wire)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};

    if (!list || !list[0] || !(wire->context = ibv_open_device(list[0])))
        fail("opening a network card");
    ibv_free_device_list(list);
    wire->pd = ibv_alloc_pd(wire->context);
    wire->cq = ibv_create_cq(wire->context, 16, NULL, NULL, 0);
    if (!wire->pd || !wire->cq)
        fail("setting up the card");
    attr.send_cq = attr.recv_cq = wire->cq;
    wire->qp = ibv_create_qp(wire->pd, &attr);
    if (!wire->qp)
        fail("ibv_create_qp");
}

static void connect_to_self(struct wire *wire)
{
    struct ibv_port_attr port_attr;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = port,
                               .qp_access_flags = IBV_ACCESS_LOCAL_WRITE};

    if (ibv_query_port(wire->context, port, &port_attr) ||
        ibv_modify_qp(wire->qp, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
        fail("bringing the queue pair up");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .path_mtu = IBV_MTU_1024,
                                .dest_qp_num = wire->qp->qp_num,
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 12,
                                .ah_attr = {.dlid = port_attr.lid, .port_num = port}};
    if (ibv_modify_qp(wire->qp, &attr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
        fail("making the queue pair ready to receive");
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    if (ibv_modify_qp(wire->qp, &attr,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                          IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
        fail("making the queue pair ready to send");
}

/* Sends the region whole into `target`, and waits until it is there. */
static int send_message(struct wire *wire, const struct ibv_mr *source, const struct ibv_mr *target)
{
    struct ibv_sge from = {(uintptr_t)source->addr, (uint32_t)source->length, source->lkey};
    struct ibv_sge to = {(uintptr_t)target->addr, (uint32_t)target->length, target->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &from,
                               .num_sge = 1,
                               .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED},
                       *bad_send;
    struct ibv_wc done;

    if (ibv_post_recv(wire->qp, &receive, &bad_receive) ||
        ibv_post_send(wire->qp, &send, &bad_send))
        fail("posting");
    for (int completions = 0; completions < 2;) {
        int found = ibv_poll_cq(wire->cq, 1, &done);

        if (found < 0 || (found > 0 && done.status != IBV_WC_SUCCESS))
            return -1;
        completions += found;
    }
    return 0;
}

/* One message, the way of a code that registers where it sends. True: it arrived as it was. */
static int round_trip(struct wire *wire, unsigned number, size_t bytes, struct ibv_mr *target)
{
    unsigned *received = target->addr;
    struct ibv_mr *region;
    CUdeviceptr memory;
    int arrived;

    must(cuMemAlloc(&memory, bytes), "cuMemAlloc");
    must(cuMemsetD32(memory, number, bytes / 4), "cuMemsetD32");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
    region = ibv_reg_mr(wire->pd, (void *)memory, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (!region)
        fail("ibv_reg_mr of GPU memory");
    memset(received, 0, bytes);
    arrived = send_message(wire, region, target) == 0;
    for (size_t i = 0; arrived && i < bytes / 4; i++)
        arrived = received[i] == number;
    if (ibv_dereg_mr(region))
        fail("ibv_dereg_mr");
    must(cuMemFree(memory), "cuMemFree");
    return arrived;
}

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1000, arrived = 0;
    size_t bytes = argc > 2 ? (size_t)atol(argv[2]) & ~(size_t)3 : 64 << 10;
    struct wire wire;
    struct ibv_mr *target;
    CUcontext context;
    void *memory;
    double begin;

    must(cuInit(0), "cuInit");
    must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    open_card(&wire);
    connect_to_self(&wire);
    memory = calloc(1, bytes);
    target = memory ? ibv_reg_mr(wire.pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!target)
        fail("ibv_reg_mr of host memory");
    begin = now_us();
    for (unsigned i = 0; i < rounds; i++)
        arrived += (unsigned)round_trip(&wire, i + 1, bytes, target);
    printf("%u of %u messages of %zu bytes arrived, %.1f us each\n", arrived, rounds, bytes,
           (now_us() - begin) / (rounds ? rounds : 1));
    if (ibv_dereg_mr(target) || ibv_destroy_qp(wire.qp) || ibv_destroy_cq(wire.cq) ||
        ibv_dealloc_pd(wire.pd) || ibv_close_device(wire.context))
        fail("closing the card");
    free(memory);
    must(cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
    return arrived != rounds;
}
