/* The allocation map: every address of a span finds it, no other does. */
#include <criterion/criterion.h>

#include "core/gpu/map.h"

Test(map, addresses_beyond_the_table_are_nobodys)
{
    static struct gs_map map;
    struct gs_span high = {.base = UINT64_C(1) << GS_MAP_ADDRESS_BITS, .size = GS_PAGE_SIZE};
    struct gs_span last = {.base = (UINT64_C(1) << GS_MAP_ADDRESS_BITS) - GS_PAGE_SIZE,
                           .size = GS_PAGE_SIZE};
    struct gs_span odd = {.base = 4096, .size = GS_PAGE_SIZE};

    gs_map_init(&map);
    cr_assert_eq(gs_map_insert(&map, &high), GS_INVALID);
    cr_assert_eq(gs_map_insert(&map, &odd), GS_INVALID);
    cr_assert_null(gs_map_find(&map, high.base));
    cr_assert_null(gs_map_find(&map, UINT64_MAX));
    cr_assert_null(gs_map_find(&map, 0));
    cr_assert_eq(gs_map_insert(&map, &last), GS_OK);
    cr_assert_eq(gs_map_find(&map, last.base + 5), &last);
    gs_map_destroy(&map);
}

Test(map, ranges_overlap_what_they_touch_and_each_span_is_visited_once)
{
    static struct gs_map map;
    const uint64_t base = UINT64_C(0x7f0000000000);
    struct gs_span spans[] = {
        {.base = base, .size = 3 * GS_PAGE_SIZE, .kind = GS_SPAN_PIECE},
        {.base = base + 3 * GS_PAGE_SIZE, .size = GS_PAGE_SIZE, .kind = GS_SPAN_PIECE},
        {.base = base + 9 * GS_PAGE_SIZE, .size = 2 * GS_PAGE_SIZE, .kind = GS_SPAN_PIECE},
    };
    uint64_t at = GS_MAP_NONE;

    gs_map_init(&map);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(gs_map_insert(&map, &spans[i]), GS_OK);
    cr_assert(gs_map_overlaps(&map, base, 1));
    cr_assert(gs_map_overlaps(&map, base - 1, 2));
    cr_assert(gs_map_overlaps(&map, base - GS_PAGE_SIZE, GS_PAGE_SIZE + 1));
    cr_assert(gs_map_overlaps(&map, base + 4 * GS_PAGE_SIZE - 1, 1));
    cr_assert(gs_map_overlaps(&map, 0, SIZE_MAX));
    cr_assert(gs_map_overlaps(&map, base + 5 * GS_PAGE_SIZE, SIZE_MAX));
    cr_assert_not(gs_map_overlaps(&map, base, 0));
    cr_assert_not(gs_map_overlaps(&map, base - 1, 1));
    cr_assert_not(gs_map_overlaps(&map, base + 4 * GS_PAGE_SIZE, 5 * GS_PAGE_SIZE));
    for (int i = 0; i < 3; i++)
        cr_assert_eq(at = gs_map_after(&map, at), spans[i].base);
    cr_assert_eq(gs_map_after(&map, at), GS_MAP_NONE);
    gs_map_destroy(&map);
}
