/*
 * What tests of memory regions have in common: one card of the stand-in libibverbs, one domain, and
 * GPU memory of the software driver.
 */
#ifndef TESTS_RDMA_CARD_H
#define TESTS_RDMA_CARD_H

#include <cuda.h>
#include <infiniband/verbs.h>

#include "tests/check.h"
#include "softcuda.h"
#include "verbs_stand_in.h"
#include "tests/system.h"

#define KIB    ((size_t)1 << 10)
#define MIB    ((size_t)1 << 20)
#define LOCAL  IBV_ACCESS_LOCAL_WRITE
#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static struct ibv_context *card;
static struct ibv_pd *pd;

static inline struct stand_in_counts counts(void)
{
    struct stand_in_counts now;

    stand_in_counts(&now);
    return now;
}

static inline CUdeviceptr allocate(size_t size)
{
    CUdeviceptr address;

    CHECK(cuMemAlloc(&address, size) == CUDA_SUCCESS);
    return address;
}

static inline void release(CUdeviceptr address)
{
    CHECK(cuMemFree(address) == CUDA_SUCCESS);
}

static inline struct ibv_mr *reg(CUdeviceptr address, size_t size, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(pd, (void *)address, size, access);

    CHECK(!mr || ((CUdeviceptr)mr->addr == address && mr->length == size && mr->pd == pd));
    return mr;
}

static inline void dereg(struct ibv_mr *mr)
{
    CHECK(ibv_dereg_mr(mr) == 0);
}

/* Everything that the arena can give back goes back: an allocation that cannot be had asks for
 * it. */
static inline void trim(void)
{
    CUdeviceptr address;
    size_t left, total;

    CHECK(cuMemGetInfo(&left, &total) == CUDA_SUCCESS);
    CHECK(cuMemAlloc(&address, total - 1) == CUDA_ERROR_OUT_OF_MEMORY);
}

static inline struct softcuda_census census(void)
{
    struct softcuda_census now;

    softcuda_census(&now);
    return now;
}

/* What the GPU has for more than the block that main keeps. */
static size_t kept_by_main;

static inline size_t held(void)
{
    return census().device_bytes - kept_by_main;
}

/* Whether a block of more than PIECE lies across the driver's allocations. */
#define PIECE (4 * MIB) /* the 256th of this GPU */

static inline bool crosses(void)
{
    const char *option = getenv("GPUSHIM_DEBUG_POOL_CROSS");

    return !option || strcmp(option, "off") != 0;
}

/* A GPU whose memory is never free as a whole, and a card. */
static inline void open_card(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CUcontext context;

    CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
          cuCtxSetCurrent(context) == CUDA_SUCCESS);
    allocate(PIECE);
    trim();
    kept_by_main = census().device_bytes;
    card = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(card);
    CHECK(card && pd);
}

struct card_case {
    const char *name;
    void (*run)(void);
};

/* Runs the case that the program was asked for. */
static inline int run_case(const struct card_case *cases, size_t count, int argc, char **argv)
{
    for (size_t i = 0; i < count; i++)
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    return 2;
}
#define RUN_CASE(cases, argc, argv) run_case(cases, sizeof(cases) / sizeof(cases)[0], argc, argv)

#endif
