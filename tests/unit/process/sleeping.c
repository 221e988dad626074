/* tests/unit/process/sleeping.h */
#include "sleeping.h"

#include <criterion/criterion.h>

#include "core/base/clock.h"

static unsigned char byte_of(size_t i, unsigned seed)
{
    return (unsigned char)(i * 31 + i / 4096 + seed);
}

/* Some of each page is enough, and the last byte. The driver's memory is the host's too. */
void fill(CUdeviceptr at, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i += 509)
        ((unsigned char *)at)[i] = byte_of(i, seed);
    ((unsigned char *)at)[size - 1] = byte_of(size - 1, seed);
}

bool is_filled(CUdeviceptr at, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i += 509)
        if (((unsigned char *)at)[i] != byte_of(i, seed))
            return false;
    return ((unsigned char *)at)[size - 1] == byte_of(size - 1, seed);
}

CUresult release_what_is_had(CUmemGenericAllocationHandle handle)
{
    MUST(cuMemRelease(handle));
    return CUDA_SUCCESS;
}

void sleeping_start(struct fixture *f, const char *memory)
{
    setenv("SOFTCUDA_MEMORY", memory, 1);
    fixture_options(f);
    fixture_start(f);
}

size_t device_bytes(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.device_bytes;
}

bool goes(struct fixture *f, struct gs_sleep_why *why)
{
    return gs_core_sleep(f->core, NULL, NULL, gs_now_ns() + SECOND, why);
}

bool comes(struct fixture *f, struct gs_sleep_why *why)
{
    return gs_core_wake(f->core, gs_now_ns(), why);
}

struct gs_asleep asleep(const struct fixture *f)
{
    struct gs_asleep figures;

    gs_core_asleep(f->core, &figures);
    return figures;
}

#define NONE "cuDriverGetVersion"
unsigned fail_each(const struct slept *slept, bool wakes, CUresult error)
{
    unsigned failed = 0;

    for (unsigned nth = 1;; nth++) {
        struct gs_sleep_why why;
        struct fixture f;
        bool done, hit;
        int version;

        sleeping_start(&f, "1G");
        slept->make(&f);
        if (wakes)
            cr_assert(goes(&f, &why), "%s", why.text);
        MUST(softcuda_fail(NONE, 1, error));
        cuDriverGetVersion(&version); /* the one that failed last */
        MUST(softcuda_fail("*", nth, error));
        done = wakes ? comes(&f, &why) : goes(&f, &why);
        hit = strcmp(softcuda_last_failed(), NONE) != 0;
        softcuda_reset();
        if (hit)
            failed++;
        else
            cr_assert(done, "%s", why.text);
        if (!done)
            cr_assert_neq(why.error, 0, "call %u", nth);
        cr_assert_eq(asleep(&f).since_ns != 0, done != wakes, "call %u", nth);
        if (!wakes && !done)
            cr_assert(slept->are_right(), "call %u: awake, and not as it was", nth);
        if (asleep(&f).since_ns)
            cr_assert(comes(&f, &why), "call %u: %s", nth, why.text);
        cr_assert(slept->are_right(), "call %u", nth);
        cr_assert(goes(&f, &why), "call %u: %s", nth, why.text);
        cr_assert(comes(&f, &why), "call %u: %s", nth, why.text);
        cr_assert(slept->are_right(), "call %u", nth);
        slept->end(&f);
        if (!hit)
            return failed;
    }
}
