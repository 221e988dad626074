/* tests/unit/single_fixture.h */
#include "single_fixture.h"

#include <criterion/criterion.h>

void lone_start(struct single_fixture *f)
{
    fixture_options(&f->base);
    f->base.options.lone_stream = true;
    fixture_start(&f->base);
    MUST(cuStreamCreate(&f->a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&f->b, CU_STREAM_NON_BLOCKING));
}

void lone_finish(struct single_fixture *f)
{
    MUST(cuStreamDestroy(f->a));
    MUST(cuStreamDestroy(f->b));
    fixture_end(&f->base);
}

CUdeviceptr lone_alloc(struct single_fixture *f, size_t size)
{
    CUdeviceptr address;

    MUST(gs_core_alloc(f->base.core, size, &address));
    return address;
}

void lone_free(struct single_fixture *f, CUdeviceptr address)
{
    MUST(gs_core_free(f->base.core, address));
}

void lone_fill(struct single_fixture *f, CUstream stream, CUdeviceptr address, unsigned value,
               uint64_t delay_ns)
{
    gs_single_submits(gs_core_single(f->base.core), stream);
    fixture_spin_fill(&f->base, stream, address, value, WORDS, delay_ns);
}

unsigned lone_others(struct single_fixture *f, CUdeviceptr address, unsigned value)
{
    MUST(cuCtxSynchronize());
    return fixture_count_other(&f->base, f->a, address, value, WORDS);
}

uint64_t lone_stream(struct single_fixture *f)
{
    return gs_single_state(gs_core_single(f->base.core));
}

CUdeviceptr lone_reused_behind(struct single_fixture *f, uint64_t delay_ns)
{
    CUdeviceptr block = lone_alloc(f, 8 * MIB);

    lone_fill(f, f->a, block, 1, delay_ns);
    lone_free(f, block);
    cr_assert_eq(lone_alloc(f, 8 * MIB), block);
    return block;
}

void lone_submits_on_a(struct single_fixture *f)
{
    gs_single_submits(gs_core_single(f->base.core), f->a);
}
