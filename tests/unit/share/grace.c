/* Handles that were given out, and whose block was freed before anybody opened it. */
#include <criterion/criterion.h>
#include <string.h>

#include "core/share/exporter.h"
#include "scene.h"

#define S     (UINT64_C(1000) * MS)
/* Neither is over while a test waits for what has to come. */
#define LEAST (60 * S)
#define MOST  (600 * S)
#define WAITS 8 /* times as much as what waits is left */

static size_t room[2]; /* of two devices, for the share thread */

static bool asked(void *arg, enum gs_question question, unsigned device, union gs_told *told)
{
    told->left = __atomic_load_n(&room[device], __ATOMIC_SEQ_CST);
    return question == GS_ASKED_LEFT;
}

static void setup(void)
{
    scene_new();
    options.grace_ns = MOST;
    options.grace_least_ns = LEAST;
    scene_chunk();
    room[0] = room[1] = SIZE_MAX;
    side.share->events.asked = asked;
    other_start(&other, dir, "");
}

TestSuite(share_grace, .init = setup, .fini = scene_end, .timeout = 120);

/* A block of so many bytes, freed so long ago. */
static struct gs_export *freed_of(unsigned device, size_t size, uint64_t ago)
{
    struct gs_share_source source = {.handle = chunk.handle,
                                     .chunk_id = chunk.id,
                                     .chunk_size = chunk.size,
                                     .size = size,
                                     .address = chunk.base,
                                     .device = device};
    struct gs_export *export;

    memcpy(source.uuid, device ? side_other_gpu : side_gpu, sizeof source.uuid);
    cr_assert_eq(gs_share_export(side.share, &source, &export), GS_OK);
    gs_share_freed(side.share, export, side_now() - ago);
    return export;
}

static struct gs_export *freed(uint64_t ago)
{
    return freed_of(0, 512, ago);
}

/* As the share thread does, so long from now. */
static void tick(uint64_t later)
{
    gs_graces_tick(side.share, side_now() + later);
}

static bool is_over(struct gs_export *export)
{
    tick(0);
    return gs_share_withdraw(side.share, export);
}

Test(share_grace, its_time_is_over_whatever_is_left)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = freed(0);
    unsigned long address;

    gs_export_handle(export, ipc_handle);
    tick(MOST);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_STALE);
    cr_assert(side_gets_back(&side, export));
    cr_assert_null(strstr(side_logged(), "before debug.grace is over"));
}

Test(share_grace, where_nothing_is_left_it_has_the_least)
{
    struct gs_export *younger, *older;

    room[0] = 0;
    younger = freed(0);
    older = freed(LEAST);
    cr_assert(side_gets_back(&side, older));
    cr_assert_not(is_over(younger));
    tick(LEAST);
    cr_assert(side_gets_back(&side, younger));
    cr_assert_not_null(strstr(side_logged(), "little memory is left"));
}

/* Each keeps a page at least. */
Test(share_grace, what_was_freed_first_ends_until_the_rest_is_little)
{
    struct gs_export *export[5];

    room[0] = 3 * WAITS * 2 * MIB;
    for (unsigned i = 0; i < 5; i++)
        export[i] = freed(LEAST + 5 * S * (5 - i));
    cr_assert(side_gets_back(&side, export[0]));
    cr_assert(side_gets_back(&side, export[1]));
    for (unsigned i = 2; i < 5; i++)
        cr_assert_not(is_over(export[i]), "%u", i);
    room[0] = 3 * WAITS * 2 * MIB - 1;
    cr_assert_not(is_over(export[3]), "nobody looks without a reason");
    tick(3 * S); /* none is over by time */
    freed(LEAST);
    cr_assert(side_gets_back(&side, export[2]));
    cr_assert(side_gets_back(&side, export[3]), "the last one counts too");
    cr_assert_not(is_over(export[4]));
}

Test(share_grace, what_is_large_counts_as_that)
{
    struct gs_export *large, *small;

    room[0] = WAITS * 2 * MIB;
    large = freed_of(0, 2 * MIB + 512, LEAST);
    cr_assert(side_gets_back(&side, large));
    small = freed_of(0, 2 * MIB, LEAST);
    cr_assert_not(is_over(small));
}

Test(share_grace, each_device_is_a_matter_of_its_own)
{
    struct gs_export *here, *there;

    room[1] = 0;
    here = freed_of(0, 512, LEAST);
    there = freed_of(1, 512, LEAST);
    cr_assert(side_gets_back(&side, there));
    cr_assert_not(is_over(here));
}

Test(share_grace, who_needs_memory_has_it_from_those_that_had_their_least)
{
    struct gs_export *older = freed(LEAST + 7 * S), *younger = freed(0);

    cr_assert_not(is_over(older));
    gs_share_end_graces(side.share, side_other_gpu, GS_GRACES_LONG);
    cr_assert_not(is_over(older));
    gs_share_end_graces(side.share, side_gpu, GS_GRACES_LONG);
    cr_assert(is_over(older));
    cr_assert_not(is_over(younger));
    cr_assert_not_null(strstr(side_logged(),
                              "memory is needed: freed blocks whose handles nobody has opened "
                              "yet (1) may be used again before debug.grace is over; the "
                              "oldest, block 1 of 1 KiB, was freed 67"),
                       "%s", side_logged());
    gs_share_end_graces(side.share, NULL, GS_GRACES_ALL);
    cr_assert(side_gets_back(&side, younger));
}

Test(share_grace, the_least_is_no_more_than_the_most)
{
    struct gs_export *export;

    scene_stop();
    options.grace_ns = 100 * MS;
    scene_chunk();
    export = freed(100 * MS);
    cr_assert(side_gets_back(&side, export));
}
