/* SYNC_MEMOPS beside a capture (core/api/memops.h) that ends at the worst moment. */
#include <criterion/criterion.h>

#include "core/api/core.h"
#include "core/api/memops.h"
#include "tests/unit/fixture.h"

static struct fixture f;
static bool ends; /* the capture, when it was seen */

bool __real_gs_core_capturing(struct gs_core *core);
bool __wrap_gs_core_capturing(struct gs_core *core);

bool __wrap_gs_core_capturing(struct gs_core *core)
{
    const bool is = __real_gs_core_capturing(core);
    CUgraph graph;

    if (!is || !ends)
        return is;
    ends = false;
    MUST(cuStreamEndCapture(f.stream, &graph));
    gs_core_capture_end(f.core, f.stream);
    MUST(cuGraphDestroy(graph));
    return is;
}

Test(memops, are_in_order_though_the_capture_ends_meanwhile, .timeout = 60)
{
    unsigned flags = 0;
    CUdeviceptr block;

    fixture_options(&f);
    fixture_start(&f);
    block = must_alloc(&f, 4096);
    MUST(gs_core_capture_begin(f.core, f.stream));
    MUST(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ends = true;
    MUST(gs_core_sync_memops(f.core, block, true));
    cr_assert_not(ends, "the moment did not come");
    MUST(cuCtxGetFlags(&flags));
    cr_assert(flags & CU_CTX_SYNC_MEMOPS);
    MUST(gs_core_free(f.core, block));
    fixture_end(&f);
}
