/* What does not hold ends the program, with where and what. */
#ifndef GPUSHIM_TESTS_RDMA_CHECK_H
#define GPUSHIM_TESTS_RDMA_CHECK_H

#include <stdio.h>
#include <unistd.h>

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what);                     \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

#endif
