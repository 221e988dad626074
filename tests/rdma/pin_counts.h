/* What the stand-ins of libgdrapi and libcufile counted. */
#ifndef TESTS_RDMA_PIN_COUNTS_H
#define TESTS_RDMA_PIN_COUNTS_H

struct pin_counts {
    unsigned long pinned, live;
    unsigned long left_to_close; /* ended by closing the library */
    unsigned long wrong;         /* ended after their memory */
};

#endif
