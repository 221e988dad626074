/*
 * A whole core in single-stream mode (core/gpu/lone.h), and two streams: what the tests of that mode have
 * in common, whichever layer they are of.
 */
#ifndef TESTS_UNIT_LONE_FIXTURE_H
#define TESTS_UNIT_LONE_FIXTURE_H

#include "core/gpu/lone.h"
#include "tests/unit/fixture.h"

#define WORDS 4096 /* of a fill */

struct lone_fixture {
    struct fixture base;
    CUstream a, b;
};

void lone_start(struct lone_fixture *f);
void lone_finish(struct lone_fixture *f);
CUdeviceptr lone_alloc(struct lone_fixture *f, size_t size);
void lone_free(struct lone_fixture *f, CUdeviceptr address);
/* As the program's calls come through the hooks. */
void lone_fill(struct lone_fixture *f, CUstream stream, CUdeviceptr address, unsigned value,
                 uint64_t delay_ns);
/* How many words differ, when all work is done. Looked at without the library's knowledge. */
unsigned lone_others(struct lone_fixture *f, CUdeviceptr address, unsigned value);
uint64_t lone_stream(struct lone_fixture *f);
/* A block that was freed behind work in stream a, and is handed out again at once. */
CUdeviceptr lone_reused_behind(struct lone_fixture *f, uint64_t delay_ns);
void lone_submits_on_a(struct lone_fixture *f);

#endif
