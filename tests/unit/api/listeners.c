/* A listener that comes back with a call, on the thread that is giving its memory back: it finds
 * the arena whole, and that thread does not wait for itself. */
#include <criterion/criterion.h>

#include "core/api/pin.h"
#include "core/process/trimmer.h"
#include "core/process/reclaim.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

static struct fixture f;
static void (*call)(void);
static unsigned calls, sleeps; /* atomic */
static _Thread_local bool within;

/* Waiting for pieces on their way is sleeping for a while again and again. TSan's library, which
 * has a nanosleep of its own, links only with one that can be seen. */
int __real_nanosleep(const struct timespec *wanted, struct timespec *left);
__attribute__((visibility("default"))) int __wrap_nanosleep(const struct timespec *wanted,
                                                            struct timespec *left);

int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
    if (within)
        __atomic_add_fetch(&sleeps, 1, __ATOMIC_SEQ_CST);
    return __real_nanosleep(wanted, left);
}

static void unmapping(uint64_t address, size_t size)
{
    within = true;
    call();
    within = false;
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
}

static void must_free(CUdeviceptr address)
{
    MUST(gs_core_free(f.core, address));
    MUST(cuCtxSynchronize());
    gs_core_cached(f.core); /* looks at what has come back */
}

static void start(void (*listener)(void))
{
    call = listener;
    fixture_options(&f);
    f.options.decay_ns = UINT64_C(3600000000000);
    fixture_start(&f);
    gs_core_on_unmap(f.core, unmapping);
}

/* As cuMemGetInfo does. */
static void finish(void)
{
    gs_core_begin_count(f.core);
}

static void make_room(void)
{
    unsigned step = 0;

    gs_core_make_room(f.core, 0, 2 * MIB, &step);
}

/* What the background gives back. */
Test(listeners, one_that_asks_what_is_free_does_not_wait_for_its_own_release)
{
    CUdeviceptr block[2];

    setenv("SOFTCUDA_MEMORY", "900M", 1);
    start(finish);
    must_alloc(&f, 400 * MIB);
    for (int i = 0; i < 2; i++)
        block[i] = must_alloc(&f, 100 * MIB);
    for (int i = 0; i < 2; i++)
        must_free(block[i]);
    gs_latch_take(&fixture_home(&f)->lock);
    fixture_home(&f)->kept.live_peak = 400 * MIB;
    gs_latch_release(&fixture_home(&f)->lock);
    cr_assert(gs_trimmer_wake(f.core));
    while (__atomic_load_n(&calls, __ATOMIC_SEQ_CST) < 2)
        usleep(1000);
    cr_assert_eq(sleeps, 0);
    fixture_end(&f);
}

/* Its record is the next one's from then on. */
static CUcontext ending;

static void end_context(void)
{
    CUcontext context = ending;

    ending = NULL;
    if (context)
        fixture_context_end(&f, context);
}

/* Who goes through the contexts' memory has seen the last one then, which had none. */
Test(listeners, one_that_ends_a_context_hides_no_other_from_who_gives_back)
{
    start(end_context);
    must_free(must_alloc(&f, 16 * MIB));
    fixture_context_new();
    must_free(must_alloc(&f, 16 * MIB));
    ending = fixture_context_new();
    gs_core_cached(f.core);
    cr_assert_eq(fixture_release(&f, false), 32 * MIB);
    cr_assert_null(ending);
    MUST(cuCtxSetCurrent(f.context));
    fixture_end(&f);
}

Test(listeners, one_that_needs_memory_does_not_wait_for_its_own_release)
{
    CUdeviceptr block[3];

    start(make_room);
    for (int i = 0; i < 3; i++)
        block[i] = must_alloc(&f, 16 * MIB);
    for (int i = 0; i < 3; i++)
        must_free(block[i]);
    cr_assert_eq(fixture_release(&f, false), 48 * MIB);
    cr_assert_eq(calls, 12);
    cr_assert_eq(sleeps, 0);
    fixture_end(&f);
}
