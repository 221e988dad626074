/*
 * What the tests of core have in common: a core over the software driver, in a context of its own,
 * and kernels to keep its streams busy.
 */
#ifndef TESTS_UNIT_FIXTURE_H
#define TESTS_UNIT_FIXTURE_H

#include "core/api/core.h"
#include "core/pool/pool.h"

struct fixture {
    struct gs_core *core;
    struct gs_core_options options;
    CUcontext context;
    CUmodule module;
    CUfunction spin_fill, fill, count_other;
};

/* Options that tests may change between these two. */
void fixture_options(struct fixture *fixture);
void fixture_start(struct fixture *fixture);
/* Ends core and the context; everything must be given back but what the test says it keeps. */
void fixture_end(struct fixture *fixture);

/* A context of device 0, made current; the prototype of cuCtxCreate changed with CUDA 13. */
CUcontext fixture_context_new(void);

/* Fills `count` words at `address` with `value` on `stream`, `delay_ns` after it gets there. */
void fixture_spin_fill(struct fixture *fixture, CUstream stream, CUdeviceptr address,
                       unsigned value, size_t count, unsigned long long delay_ns);
/* How many of `count` words differ from `value`; waits for `stream`. */
unsigned fixture_count_other(struct fixture *fixture, CUstream stream, CUdeviceptr address,
                             unsigned value, size_t count);

/* Ends the test program with the line where a call failed: works in threads and forked children. */
#define MUST(call) fixture_must((int)(call), #call, __FILE__, __LINE__)
void fixture_must(int result, const char *call, const char *file, int line);

/* The pool's figures for the current context. */
struct fixture_pool {
    size_t reserved, live, ready, limbo, retiring;
};
struct fixture_pool fixture_pool(struct fixture *fixture);
/* What was counted on device 0 so far. */
struct gs_pool_counts fixture_counts(struct fixture *fixture);

#endif
