/* What tests may ask of the stand-in libibverbs beside its verbs (dlsym finds these there). */
#ifndef TESTS_RDMA_VERBS_STAND_IN_H
#define TESTS_RDMA_VERBS_STAND_IN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stand_in_counts {
    unsigned long registered, deregistered, live;
    unsigned long killed; /* keys that died because their memory went */
    unsigned long sent, wrong;
};

__attribute__((visibility("default"))) void stand_in_counts(struct stand_in_counts *ret_counts);
/* Every `each`-th registration fails; 0: none. */
__attribute__((visibility("default"))) void stand_in_fail(unsigned each, int error);
__attribute__((visibility("default"))) void stand_in_room(unsigned registrations);

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
