/* What tests may ask of the stand-in libibverbs beside its verbs (dlsym finds these there). */
#ifndef TESTS_RDMA_VERBS_STAND_IN_H
#define TESTS_RDMA_VERBS_STAND_IN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stand_in_counts {
    unsigned long registered, deregistered, live;
    unsigned long killed; /* keys that died because their memory went */
    unsigned long sent, wrong;
    unsigned long tried;   /* registrations, those that failed included */
    unsigned long unknown; /* deregistrations of what is no region */
};

__attribute__((visibility("default"))) void stand_in_counts(struct stand_in_counts *ret_counts);
/* Every `each`-th registration fails; 0: none. */
__attribute__((visibility("default"))) void stand_in_fail(unsigned each, int error);
__attribute__((visibility("default"))) void stand_in_room(unsigned registrations);

/* The device is pulled out: every call answers EIO, until the device is closed. */
__attribute__((visibility("default"))) void stand_in_gone(void);
struct ibv_pd;
struct ibv_mr;
/* What the card lets others do there; UINT_MAX: it is no region. */
__attribute__((visibility("default"))) unsigned stand_in_access(const struct ibv_mr *mr);
/* Registers as a vendor's own extension would, by no call that anybody hooks. */
__attribute__((visibility("default"))) struct ibv_mr *stand_in_reg(struct ibv_pd *pd, void *addr,
                                                                   size_t length, int access);

/* What the card finds by a region's key at the address that peers and work requests have for it; 0:
 * it refuses. */
__attribute__((visibility("default"))) uint64_t stand_in_at(const struct ibv_mr *mr,
                                                            uint64_t address);

/* ibv_mr_init_attr, which older headers lack. */
struct stand_in_attr {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    void *dmah;
};

#endif
