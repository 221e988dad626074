/* Time for which a thread that looks again and again was there: it may have stood still in
 * between. */
#include <criterion/criterion.h>

#include "core/base/clock.h"

#define MOST_NS (20 * GS_NS_PER_MS)

Test(look, a_long_pause_counts_as_a_short_one)
{
    uint64_t began = gs_now_ns(), looked = began - GS_NS_PER_S;

    cr_assert_eq(gs_look_counts(&looked), MOST_NS);
    cr_assert(looked >= began && looked <= gs_now_ns(), "the next look counts from this one");
}

Test(look, what_is_short_counts_as_it_is)
{
    uint64_t looked = gs_now_ns();

    for (int i = 0; i < 100; i++) {
        uint64_t before = looked, counts = gs_look_counts(&looked), took = looked - before;

        cr_assert_eq(counts, took < MOST_NS ? took : MOST_NS, "%llu ns of %llu",
                     (unsigned long long)counts, (unsigned long long)took);
    }
}
