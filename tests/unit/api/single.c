/* Single-stream mode (core/gpu/single.h), and calls that make memory reachable beside the
 * stream. */
#include <criterion/criterion.h>

#include "core/api/core.h"
#include "tests/unit/single_fixture.h"

/* What makes memory reachable beside the stream, each after a free that the GPU has not passed and
 * a reuse. After it the first owner's work is over. */
static CUdeviceptr reused;

static void by_a_capture(void)
{
    MUST(gs_core_capture_begin(f.base.core, f.b));
    gs_core_capture_end(f.base.core, f.b);
}

static void by_sharing(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    gs_core_ipc_handle(f.base.core, reused, ipc_handle); /* whatever becomes of it */
}

static void by_sync_memops(void)
{
    MUST(gs_core_sync_memops(f.base.core, reused, true));
}

static void by_another_context(void)
{
    CUcontext popped;

    gs_single_context(gs_core_single(f.base.core), (CUcontext)&popped);
}

static const struct {
    const char *name;
    void (*by)(void);
} ends[] = {
    {"a capture", by_a_capture},
    {"sharing", by_sharing},
    {"SYNC_MEMOPS", by_sync_memops},
    {"another context", by_another_context},
};

Test(single, what_reaches_memory_beside_the_stream_waits_for_it)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        CUdeviceptr block;

        lone_start(&f);
        block = lone_alloc(&f, 8 * MIB);
        lone_fill(&f, f.a, block, 1, 20 * MS);
        lone_free(&f, block);
        reused = lone_alloc(&f, 8 * MIB);
        cr_assert_eq(reused, block);
        ends[i].by();
        cr_assert_eq(single_stream(&f), GS_SINGLE_MULTI, "%s", ends[i].name);
        cr_assert_eq(cuStreamQuery(f.a), CUDA_SUCCESS, "%s", ends[i].name);
        lone_finish(&f);
    }
}
