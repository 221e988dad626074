/* Sharing between two processes, from the first handle to the last close. */
#include <criterion/criterion.h>
#include <sys/param.h>

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

/* With a broker: it has `count` blocks, of all that share in the directory. */
static void await_published(unsigned long long count)
{
    if (side_with_broker())
        cr_assert(SIDE_WAIT(side_broker_published(dir) == count), "%llu are left there",
                  side_broker_published(dir));
}

static int other_reads(unsigned long address)
{
    return atoi(other_ask(&other, "read %lx", address) + 3);
}

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
    cr_assert_eq(other_reads(first), 0);
    cr_assert_not(gs_share_withdraw(side.share, export));
    other_closes(first);
    cr_assert_str_eq(other_ask(&other, "close %lx", first), "status -1");
    cr_assert(side_gets_back(&side, export));
}

Test(share_life, an_unopened_export_has_its_grace)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    uint64_t freed = side_now();
    struct gs_share_options with_grace = options;

    side_stop(&side);
    with_grace.grace_ns = 1000000000;
    side_start(&side, &with_grace);
    export = scene_export(0, 512, ipc_handle);
    await_published(1);
    freed = side_now();
    gs_share_freed(side.share, export, freed);
    cr_assert_not(gs_share_withdraw(side.share, export));
    cr_assert(SIDE_WAIT(gs_share_withdraw(side.share, export)));
    cr_assert_geq(side_now() - freed, with_grace.grace_ns);
    export = scene_export(0, 512, ipc_handle);
    await_published(1);
    gs_share_freed(side.share, export, side_now() + UINT64_C(3600000000000));
    cr_assert_not(gs_share_withdraw(side.share, export));
    gs_share_end_graces(side.share, (const unsigned char[16]){"another GPU"}, GS_GRACES_ALL);
    cr_assert_not(gs_share_withdraw(side.share, export));
    gs_share_end_graces(side.share, NULL, GS_GRACES_ALL);
    /* The share thread may be at the export, to publish it to a broker: then the answer is
     * later. */
    cr_assert(SIDE_WAIT(gs_share_withdraw(side.share, export)), "memory is out");
}

Test(share_life, in_its_grace_a_freed_block_can_be_opened)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    unsigned long address;
    struct gs_share_options with_grace = options;

    side_stop(&side);
    with_grace.grace_ns = 60000000000;
    side_start(&side, &with_grace);
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
    struct gs_share_options with_grace = options;

    side_stop(&side);
    with_grace.grace_ns = 300000000;
    side_start(&side, &with_grace);
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
    } while (side_within(freed, with_grace.grace_ns));
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_STALE, "its grace is over");
    cr_assert_eq(other_open(&other, held_ipc_handle, &address), GS_OK, "it is held");
    other_closes(address);
    other_closes(address);
    cr_assert(side_gets_back(&side, export));
    cr_assert(side_gets_back(&side, held));
}

Test(share_life, an_importer_shares_on_what_it_imported)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], passed_on[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = scene_export(0, 512, ipc_handle);
    struct other third;
    unsigned long address, at_third;
    const char *answer;

    other_start(&third, dir, NULL);
    *(char *)chunk.base = 9;
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    answer = other_ask(&other, "handle %lx", address + 100);
    cr_assert_eq(strncmp(answer, "ok ", 3), 0, "%s", answer);
    ipc_handle_from_hex(answer + 3, passed_on);
    cr_assert_eq(memcmp(ipc_handle, passed_on, sizeof ipc_handle), 0);
    cr_assert_eq(other_open(&third, passed_on, &at_third), GS_OK);
    other_closes(address);
    cr_assert_str_eq(other_ask(&third, "read %lx", at_third), "ok 9");
    cr_assert(side_stays_held(&side, export, 100));
    other_ask(&third, "close %lx", at_third);
    cr_assert(side_gets_back(&side, export));
    cr_assert_eq(other_stop(&third), 0);
}

Test(share_life, a_context_that_goes_closes_what_it_opened)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    CUcontext second = (CUcontext)0x2000;

    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, second, 1, &address), GS_OK);
    gs_share_context_gone(side.share, SIDE_CONTEXT);
    cr_assert_eq(*(char *)address, 5);
    cr_assert_str_eq(other_ask(&other, "withdraw"), "held");
    gs_share_context_gone(side.share, second);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    cr_assert_eq(gs_map_find(&side.map, address), NULL);
    cr_assert_eq(gs_share_close(side.share, address), GS_NOT_OURS);
}

Test(share_life, while_a_capture_is_open_nothing_is_given_back)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    gs_fences_capture_begin(&side.fences, 1, SIDE_CONTEXT, SIDE_CONTEXT);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(all_rest(other.pid));
    cr_assert_str_eq(other_ask(&other, "withdraw"), "held");
    gs_fences_capture_end(&side.fences, 1, NULL);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

Test(share_life, a_context_that_is_leaving_is_not_asked)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    memdriver_hold(true);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    gs_share_context_leaving(side.share, SIDE_CONTEXT);
    memdriver_hold(false);
    cr_assert(all_rest(other.pid));
    cr_assert_str_eq(other_ask(&other, "withdraw"), "held");
    gs_share_context_stays(side.share, SIDE_CONTEXT);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
    cr_assert_eq(gs_map_find(&side.map, address), NULL);
}

Test(share_life, a_driver_without_context_events_is_waited_for)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;

    side.driver.ctx_record_event = NULL;
    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    memdriver_hold(true);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(all_rest(other.pid));
    cr_assert_str_eq(other_ask(&other, "withdraw"), "held");
    memdriver_hold(false);
    cr_assert(SIDE_WAIT(other_withdraws(&other)));
}

Test(share_life, sharing_that_is_off_exports_and_opens_nothing)
{
    struct gs_share_options off = options;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    CUdeviceptr address;

    other_export(&other, 0, 512, 5, ipc_handle);
    side_stop(&side);
    off.enable = false;
    side_start(&side, &off);
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_NOT_OFFERED);
    cr_assert_not_null(strstr(side_logged(), "shared: share.enable is off"), "%s", side_logged());
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_NOT_OFFERED);
    cr_assert_not_null(strstr(side_logged(), "off here (share.enable)"), "%s", side_logged());
}
