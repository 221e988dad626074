/*
 * What the tests of core have in common: a core over the software driver, in a context of its own,
 * and kernels to keep its streams busy.
 */
#ifndef TESTS_UNIT_FIXTURE_H
#define TESTS_UNIT_FIXTURE_H

#include "core/api/core.h"
#include "core/pool/arena.h"
#include "tests/system.h"

#define MIB ((size_t)1 << 20)
#define MS  UINT64_C(1000000)

struct fixture {
    struct gs_core *core;
    struct gs_core_options options;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction spin_fill, fill, count_other;
};

/* Options that tests may change between these two. */
void fixture_options(struct fixture *fixture);
/* Before the start: asks other processes for memory, and answers them, in a folder where there are
 * none, which goes with the core. */
void fixture_neighbours(struct fixture *fixture);
void fixture_start(struct fixture *fixture);
/* Ends core and the context; everything must be given back but what the test says it keeps. */
void fixture_end(struct fixture *fixture);
/* A suite of which each test finds in `f` what fixture_options does, and starts it; what it has not
 * ended itself ends with it. */
#define FIXTURE_SUITE(suite)          \
    static struct fixture f;          \
                                      \
    static void fixture_begins(void)  \
    {                                 \
        fixture_options(&f);          \
    }                                 \
                                      \
    static void fixture_is_over(void) \
    {                                 \
        if (f.core)                   \
            fixture_end(&f);          \
    }                                 \
                                      \
    TestSuite(suite, .init = fixture_begins, .fini = fixture_is_over);
/* What was freed has come back. */
void fixture_drain(struct fixture *fixture);

/* A context of device 0, made current; the prototype of cuCtxCreate changed with CUDA 13. */
CUcontext fixture_context_new(void);
/* Such a one ends, of which core hears before and after. */
void fixture_context_end(struct fixture *fixture, CUcontext context);

/* Whether the driver has no cuCtxRecordEvent (SOFTCUDA_WITHOUT): all tests of core also run so. The
 * call that records an event of a context's. */
bool fixture_is_old(void);
const char *fixture_recording_call(void);

/* Fills `count` words at `address` with `value` on `stream`, `delay_ns` after it gets there. */
void fixture_spin_fill(struct fixture *fixture, CUstream stream, CUdeviceptr address,
                       unsigned value, size_t count, unsigned long long delay_ns);
/* The GPU stands still in fixture->stream before a block's free. */
void fixture_free_behind_work(struct fixture *fixture, CUdeviceptr block);
/* How many of `count` words differ from `value`; waits for `stream`. */
unsigned fixture_count_other(struct fixture *fixture, CUstream stream, CUdeviceptr address,
                             unsigned value, size_t count);

/* Ends the test program with the line where a call failed: works in threads and forked children. */
#define MUST(call) fixture_must((int)(call), #call, __FILE__, __LINE__)
void fixture_must(int result, const char *call, const char *file, int line);

CUdeviceptr must_alloc(struct fixture *fixture, size_t size);

/* What a whole core has of each layer, for that layer's tests: its fences; its table of driver
 * calls, of which a test may take some away; the first arena of the current context; that of a
 * block, locked. */
struct gs_fences *fixture_fences(struct fixture *fixture);
struct gs_driver *fixture_driver(struct fixture *fixture);
struct gs_arena *fixture_home(struct fixture *fixture);
struct gs_arena *fixture_lock_pool(struct fixture *fixture, CUdeviceptr address);
/* All that can go back to the current context's device does; with `wait`, also what the GPU is
 * at. */
size_t fixture_release(struct fixture *fixture, bool wait);

/* The arena's figures for the current context. */
struct fixture_arena {
    size_t reserved, live, free_bytes, limbo, retired;
};
struct fixture_arena fixture_arena(struct fixture *fixture);
/* What was counted on device 0 so far. */
struct gs_arena_counts fixture_counts(struct fixture *fixture);

#endif
