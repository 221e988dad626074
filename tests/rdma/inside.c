/* What tests of memory regions have a puppet call (tests/puppet.c) beside the driver, the library
 * and the stand-in libibverbs, which the puppet is linked with as verbs programs are. */
#include <infiniband/verbs.h>

#include "shim/gpushim.h"
#include "softcuda.h"
#include "tests/system.h"
#include "verbs_stand_in.h"

#pragma GCC visibility push(default)

/* The card moves bytes between two addresses of one process, by keys that it has for them. */
bool move(struct ibv_pd *pd, const struct ibv_mr *from, uint64_t from_iova, const struct ibv_mr *to,
          uint64_t to_iova, uint32_t bytes);
bool move(struct ibv_pd *pd, const struct ibv_mr *from, uint64_t from_iova, const struct ibv_mr *to,
          uint64_t to_iova, uint32_t bytes)
{
    struct ibv_cq *cq = ibv_create_cq(pd->context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    struct ibv_sge source = {from_iova, bytes, from->lkey}, target = {to_iova, bytes, to->lkey};
    struct ibv_recv_wr receive = {.sg_list = &target, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &source, .num_sge = 1}, *bad_send;
    struct ibv_wc done[2];

    return ibv_post_recv(qp, &receive, &bad_receive) == 0 &&
           ibv_post_send(qp, &send, &bad_send) == 0 && ibv_poll_cq(cq, 2, done) == 2 &&
           done[0].status == IBV_WC_SUCCESS && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0;
}

/* In a child: 0 where it registers and ends host memory, and GPU memory, in its own name, as its
 * parent has two registrations. */
int registers_as_a_child(struct ibv_pd *pd, struct stand_in_attr *attr);
int registers_as_a_child(struct ibv_pd *pd, struct stand_in_attr *attr)
{
    static char memory[4096];
    struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct stand_in_attr *) =
        (__typeof__(reg_ex))dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
    __typeof__(&gpushim_registrations) registrations =
        (__typeof__(registrations))dlsym(RTLD_DEFAULT, "gpushim_registrations");
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct stand_in_counts now;

    if (!mr || ibv_dereg_mr(mr) != 0)
        return 1;
    mr = reg_ex(pd, attr);
    if (!mr || ibv_dereg_mr(mr) != 0)
        return 2;
    stand_in_counts(&now); /* as the card's side sees it */
    return registrations(NULL, 0) == 0 && now.registered == 4 && now.live == 2 ? 0 : 3;
}

/* When external memory was given back (note_deleted calls it). */
struct stand_in_counts counts_then;
uint64_t bytes_then;
void note_counts(void *unused);
void note_counts(void *unused)
{
    struct softcuda_census census;

    stand_in_counts(&counts_then);
    softcuda_census(&census);
    bytes_then = census.device_bytes;
}
