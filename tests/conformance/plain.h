/*
 * What plain programs check with, that have no Criterion: the first fault ends the process. _exit,
 * since some do so in threads and forked children.
 */
#ifndef TESTS_CONFORMANCE_PLAIN_H
#define TESTS_CONFORMANCE_PLAIN_H

#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

#define FAIL(...)                                       \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fputc('\n', stderr);                            \
        _exit(1);                                       \
    } while (0)
#define OK(call)                                      \
    do {                                              \
        CUresult ok_got = (call);                     \
        if (ok_got != CUDA_SUCCESS)                   \
            FAIL("%s: error %d", #call, (int)ok_got); \
    } while (0)

#endif
