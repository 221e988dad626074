/* tests/unit/single_fixture.h */
#include "single_fixture.h"

#include <criterion/criterion.h>

struct single_fixture f;

static void is_over(void)
{
    if (f.base.core)
        lone_finish(&f);
}

TestSuite(single, .fini = is_over);

void lone_start(struct single_fixture *lone)
{
    fixture_options(&lone->base);
    lone->base.options.single_stream = true;
    fixture_start(&lone->base);
    MUST(cuStreamCreate(&lone->a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&lone->b, CU_STREAM_NON_BLOCKING));
}

void lone_finish(struct single_fixture *lone)
{
    MUST(cuStreamDestroy(lone->a));
    MUST(cuStreamDestroy(lone->b));
    fixture_end(&lone->base);
}

CUdeviceptr lone_alloc(struct single_fixture *lone, size_t size)
{
    CUdeviceptr address;

    MUST(gs_core_alloc(lone->base.core, size, &address));
    return address;
}

void lone_free(struct single_fixture *lone, CUdeviceptr address)
{
    MUST(gs_core_free(lone->base.core, address));
}

void lone_fill(struct single_fixture *lone, CUstream stream, CUdeviceptr address, unsigned value,
               uint64_t delay_ns)
{
    gs_single_submits(gs_core_single(lone->base.core), stream);
    fixture_spin_fill(&lone->base, stream, address, value, WORDS, delay_ns);
}

unsigned lone_others(struct single_fixture *lone, CUdeviceptr address, unsigned value)
{
    MUST(cuCtxSynchronize());
    return fixture_count_other(&lone->base, lone->a, address, value, WORDS);
}

uint64_t single_stream(struct single_fixture *lone)
{
    return gs_single_state(gs_core_single(lone->base.core));
}

CUdeviceptr lone_reused_behind(struct single_fixture *lone, uint64_t delay_ns)
{
    CUdeviceptr block = lone_alloc(lone, 8 * MIB);

    lone_fill(lone, lone->a, block, 1, delay_ns);
    lone_free(lone, block);
    cr_assert_eq(lone_alloc(lone, 8 * MIB), block);
    return block;
}

void lone_submits_on_a(struct single_fixture *lone)
{
    gs_single_submits(gs_core_single(lone->base.core), lone->a);
}
