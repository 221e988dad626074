/* The index of free ranges: it finds what fits, the tightest it compares, and nothing else. */
#include <criterion/criterion.h>
#include <stdlib.h>

#include "core/base/bins.h"

Test(bins, a_find_is_within_bounds_and_found_whenever_a_larger_class_has_one)
{
    enum { COUNT = 400 };
    static struct gs_bin_entry entries[COUNT];
    static int in[COUNT];
    struct gs_bins bins;

    srand(1);
    gs_bins_init(&bins, 9);
    for (int round = 0; round < 40000; round++) {
        int i = rand() % COUNT;
        size_t size = ((size_t)rand() % 4096 + 1) << 9;
        struct gs_bin_entry *found = gs_bins_find(&bins, size, SIZE_MAX);

        cr_assert(!found || found->size >= size);
        /* Anything twice the size is in a higher class and must be found. */
        for (int j = 0; !found && j < COUNT; j++)
            cr_assert(!in[j] || entries[j].size < 2 * size);
        if (in[i])
            gs_bins_remove(&bins, &entries[i]);
        else
            entries[i].size = size, gs_bins_insert(&bins, &entries[i]);
        in[i] = !in[i];
    }
}

/* More than one bin's worth of looks lie before it. */
Test(bins, the_only_one_that_is_large_enough_is_found_behind_many_that_are_not)
{
    enum { UNIT = 512, MANY = 40 };
    struct gs_bin_entry small[MANY], large = {.size = 33 * UNIT};
    struct gs_bins bins;

    gs_bins_init(&bins, 9);
    gs_bins_insert(&bins, &large);
    for (int i = 0; i < MANY; i++) {
        small[i].size = 32 * UNIT; /* of the same bin */
        gs_bins_insert(&bins, &small[i]);
    }
    cr_assert_eq(gs_bins_find(&bins, 33 * UNIT, SIZE_MAX), &large);
    cr_assert_null(gs_bins_find(&bins, 34 * UNIT, SIZE_MAX));
}

Test(bins, what_is_left_in_a_bin_is_found)
{
    struct gs_bin_entry entry[3];
    struct gs_bins bins;

    gs_bins_init(&bins, 9);
    for (int i = 0; i < 3; i++) {
        entry[i].size = 100 << 9;
        gs_bins_insert(&bins, &entry[i]);
    }
    gs_bins_remove(&bins, &entry[2]);
    cr_assert_not_null(gs_bins_find(&bins, 100 << 9, SIZE_MAX));
    cr_assert_not_null(gs_bins_largest(&bins));
    gs_bins_remove(&bins, &entry[0]);
    cr_assert_eq(gs_bins_find(&bins, 1 << 9, SIZE_MAX), &entry[1]);
    gs_bins_remove(&bins, &entry[1]);
    cr_assert_null(gs_bins_find(&bins, 1 << 9, SIZE_MAX));
    cr_assert_null(gs_bins_largest(&bins));
}
