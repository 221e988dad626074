/*
 * A whole core in single-stream mode (core/gpu/single.h), and two streams: what the tests of that
 * mode have in common, whichever layer they are of.
 */
#ifndef TESTS_UNIT_LONE_FIXTURE_H
#define TESTS_UNIT_LONE_FIXTURE_H

#include "core/gpu/single.h"
#include "tests/unit/fixture.h"

#define WORDS 4096 /* of a fill */

struct single_fixture {
    struct fixture base;
    CUstream a, b;
};

/* Of each test of the suite, which starts it; what it has not ended itself ends with it. */
extern struct single_fixture f;

void lone_start(struct single_fixture *lone);
void lone_finish(struct single_fixture *lone);
CUdeviceptr lone_alloc(struct single_fixture *lone, size_t size);
void lone_free(struct single_fixture *lone, CUdeviceptr address);
/* As the program's calls come through the hooks. */
void lone_fill(struct single_fixture *lone, CUstream stream, CUdeviceptr address, unsigned value,
               uint64_t delay_ns);
/* How many words differ, when all work is done. Looked at without the library's knowledge. */
unsigned lone_others(struct single_fixture *lone, CUdeviceptr address, unsigned value);
uint64_t single_stream(struct single_fixture *lone);
/* A block that was freed behind work in stream a, and is handed out again at once. */
CUdeviceptr lone_reused_behind(struct single_fixture *lone, uint64_t delay_ns);
void lone_submits_on_a(struct single_fixture *lone);

#endif
