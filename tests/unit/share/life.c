/* Sharing between two processes, from the first handle to the last close. */
#include <criterion/criterion.h>

#include "core/share/exporter.h"
#include "core/share/ipc_handle.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

static void setup(void)
{
    scene_new();
    options.isolate = true; /* what is given back is unmapped: see cached.c for the other way */
    scene_side();
    chunk = side_chunk_new(&side, 4 * MIB);
    other_start(&other, dir, "strict=1");
}

static void teardown(void)
{
    if (other.pid)
        CHECK(other_stop(&other) == 0);
    scene_stop();
    CHECK(memdriver_alive() == 0);
    if (side_with_broker()) /* which may come only now */
        CHECK(SIDE_WAIT(side_broker_end(dir) && side_dir_count(dir) <= 0));
    CHECK(side_dir_count(dir) <= 0);
    side_dir_remove(dir);
}

TestSuite(share_life, .init = setup, .fini = teardown, .timeout = 120);

static void other_closes(unsigned long address)
{
    cr_assert_str_eq(other_ask(&other, "close %lx", address), "status 0");
}

Test(share_life, a_ipc_handle_with_a_valid_check_and_another_secret_is_refused)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = scene_export(0, 512, ipc_handle);
    struct gs_ipc_handle forged;
    unsigned long address;

    cr_assert_eq(gs_ipc_handle_read(ipc_handle, &forged), GS_OK);
    forged.secret[15] ^= 1;
    gs_ipc_handle_write(&forged, ipc_handle);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_STALE);
    cr_assert_not_null(strstr(side_logged(), "was refused: the handle is stale or was changed"),
                       "the exporter was not asked");
    cr_assert(side_withdraws(&side, export));
}

Test(share_life, opens_are_counted)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = scene_export(0, 512, ipc_handle);
    unsigned long first, again;

    cr_assert_eq(other_open(&other, ipc_handle, &first), GS_OK);
    cr_assert_eq(other_open(&other, ipc_handle, &again), GS_OK);
    cr_assert_eq(first, again);
    other_closes(first);
    cr_assert_str_eq(other_ask(&other, "read %lx", first), "ok 0");
    cr_assert_not(gs_share_withdraw(side.share, export));
    other_closes(first);
    cr_assert_str_eq(other_ask(&other, "close %lx", first), "status -1");
    cr_assert(side_gets_back(&side, export));
}

Test(share_life, in_its_grace_a_freed_block_can_be_opened)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;

    options.grace_ns = 60000 * MS;
    scene_side_anew();
    export = scene_export(0, 512, ipc_handle);
    gs_share_freed(side.share, export, side_now());
    cr_assert_not(gs_share_withdraw(side.share, export));
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    other_closes(address);
    /* It was opened: its grace is over with the last close. */
    cr_assert(SIDE_WAIT(gs_share_withdraw(side.share, export)));
}

Test(share_life, the_end_of_a_grace_is_announced_and_makes_the_ipc_handle_stale)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], held_ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export, *held;
    unsigned long address;
    unsigned told, before;
    uint64_t freed;

    options.grace_ns = 300 * MS;
    scene_side_anew();
    export = scene_export(0, 512, ipc_handle);
    held = scene_export(512, 512, held_ipc_handle);
    cr_assert_eq(other_open(&other, held_ipc_handle, &address), GS_OK);
    told = __atomic_load_n(&side.leases_ended, __ATOMIC_RELAXED);
    freed = side_now();
    gs_share_freed(side.share, export, freed);
    gs_share_freed(side.share, held, freed);
    /* Nobody asks, and the arena is told all the same; before, it may have been told of something
     * else that has ended. */
    do {
        before = told;
        cr_assert(
            SIDE_WAIT((told = __atomic_load_n(&side.leases_ended, __ATOMIC_RELAXED)) > before));
    } while (side_within(freed, options.grace_ns));
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_STALE, "its grace is over");
    cr_assert_eq(other_open(&other, held_ipc_handle, &address), GS_OK, "it is held");
    other_closes(address);
    other_closes(address);
    cr_assert(side_gets_back(&side, export));
    cr_assert(side_gets_back(&side, held));
}

/* The other's block is opened and closed, and does not go back yet. */
static void opens_and_closes_in_vain(void)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_close(side.share, scene_open(ipc_handle)), GS_OK);
    cr_assert(all_rest(other.pid));
    cr_assert_str_eq(other_ask(&other, "withdraw"), "held");
}

Test(share_life, while_a_capture_is_open_nothing_is_given_back)
{
    gs_fences_capture_begin(&side.fences, 1, SIDE_CONTEXT, SIDE_CONTEXT);
    opens_and_closes_in_vain();
    gs_fences_capture_end(&side.fences, 1, NULL);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

Test(share_life, a_driver_without_context_events_is_waited_for)
{
    side.driver.ctx_record_event = NULL;
    memdriver_hold(true);
    opens_and_closes_in_vain();
    memdriver_hold(false);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}
