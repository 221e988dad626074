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

static struct gs_export *export_at(size_t offset, size_t size, unsigned char *ret_ipc_handle)
{
    struct gs_export *export;

    cr_assert_eq(side_export(&side, &chunk, offset, size, &export), GS_OK);
    gs_export_handle(export, ret_ipc_handle);
    return export;
}

/* With a broker: it has `count` blocks, of all that share in the directory. */
static void await_published(unsigned long long count)
{
    if (side_with_broker())
        cr_assert(SIDE_WAIT(side_broker_published(dir) == count), "%llu are left there",
                  side_broker_published(dir));
}

/* What a killed process left in the directory. */
static void remove_leftovers(void)
{
    cr_assert(side_broker_end(dir));
    side_dir_remove(dir);
}

static int other_reads(unsigned long address)
{
    return atoi(other_ask(&other, "read %lx", address) + 3);
}

static void other_closes(unsigned long address)
{
    cr_assert_str_eq(other_ask(&other, "close %lx", address), "status 0");
}

Test(share_life, nothing_exists_before_the_first_use)
{
    CUdeviceptr address;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE] = {0};
    struct gs_import_info info;
    struct gs_export *export;
    int fds, threads = side_threads();

    side_stop(&side);
    fds = side_open_fds();
    side_start(&side, &options);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_NOT_OURS);
    cr_assert_eq(gs_share_find(side.share, chunk.base, &info), GS_NOT_OURS);
    cr_assert_eq(gs_share_close(side.share, chunk.base), GS_NOT_OURS);
    gs_share_context_gone(side.share, SIDE_CONTEXT);
    gs_share_at_exit(side.share);
    cr_assert_eq(side_dir_count(dir), -1);
    cr_assert_eq(side_threads(), threads);
    cr_assert_eq(side_open_fds(), fds);
    export = export_at(0, 512, ipc_handle);
    if (!side_with_broker()) /* or that one is there already */
        cr_assert_eq(side_dir_count(dir), 1);
    cr_assert_geq(side_threads(), threads + 1);
    cr_assert(SIDE_WAIT(side_threads() == threads + 1), "%d", side_threads());
    cr_assert(side_withdraws(&side, export));
}

Test(share_life, a_ipc_handle_with_a_valid_check_and_another_secret_is_refused)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = export_at(0, 512, ipc_handle);
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

Test(share_life, blocks_of_one_chunk_share_one_mapping)
{
    unsigned char ipc_handle[3][GS_IPC_HANDLE_SIZE];
    struct gs_export *export[3];
    unsigned long address[3];

    for (int i = 0; i < 3; i++) {
        export[i] = export_at(512 * (size_t)i, 512, ipc_handle[i]);
        ((char *)chunk.base)[512 * i] = (char)(10 + i);
    }
    for (int i = 2; i >= 0; i--)
        cr_assert_eq(other_open(&other, ipc_handle[i], &address[i]), GS_OK);
    cr_assert_eq(memdriver_exports(), 1);
    cr_assert_eq(address[1], address[0] + 512);
    cr_assert_eq(address[2], address[0] + 1024);
    other_closes(address[1]);
    cr_assert(side_gets_back(&side, export[1]));
    cr_assert_eq(other_reads(address[0]), 10);
    cr_assert_eq(other_reads(address[2]), 12);
    cr_assert_not(gs_share_withdraw(side.share, export[0]));
    other_closes(address[0]);
    other_closes(address[2]);
    cr_assert(side_gets_back(&side, export[0]));
    cr_assert(side_gets_back(&side, export[2]));
    /* What is left are spare events, at most one for each block: how many there are depends on
     * whether one close's fence had passed before the next. A mapping would count three more. */
    cr_assert(SIDE_WAIT(atoi(other_ask(&other, "census") + 3) <= 3));
}

Test(share_life, opens_are_counted)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = export_at(0, 512, ipc_handle);
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

Test(share_life, a_close_waits_for_the_gpu_and_a_new_open_revives_the_mapping)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = export_at(0, 512, ipc_handle);
    unsigned long first, again;

    cr_assert_eq(other_open(&other, ipc_handle, &first), GS_OK);
    other_ask(&other, "hold 1");
    other_closes(first);
    cr_assert(side_stays_held(&side, export, 100), "given back while work may run");
    cr_assert_eq(other_open(&other, ipc_handle, &again), GS_OK);
    cr_assert_eq(first, again);
    other_closes(first);
    cr_assert_eq(memdriver_exports(), 1);
    cr_assert(side_stays_held(&side, export, 100));
    other_ask(&other, "hold 0");
    cr_assert(side_gets_back(&side, export));
    cr_assert_str_eq(other_ask(&other, "census"), "ok 1");
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
    export = export_at(0, 512, ipc_handle);
    await_published(1);
    freed = side_now();
    gs_share_freed(side.share, export, freed);
    cr_assert_not(gs_share_withdraw(side.share, export));
    cr_assert(SIDE_WAIT(gs_share_withdraw(side.share, export)));
    cr_assert_geq(side_now() - freed, with_grace.grace_ns);
    export = export_at(0, 512, ipc_handle);
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
    export = export_at(0, 512, ipc_handle);
    gs_share_freed(side.share, export, side_now());
    cr_assert_not(gs_share_withdraw(side.share, export));
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    other_closes(address);
    /* It was opened: its grace is over with the last close. */
    cr_assert(SIDE_WAIT(gs_share_withdraw(side.share, export)));
}

/* What one end of a grace takes of the share thread, in ns, beside `count` exports that live. */
static uint64_t cost_of_a_grace(unsigned count)
{
    static struct gs_export *live[20000];
    uint64_t least = UINT64_MAX;
    struct timespec begun, ended;
    struct gs_export *freed;

    for (unsigned i = 0; i < count; i++)
        cr_assert_eq(side_export(&side, &chunk, 512, 512, &live[i]), GS_OK);
    for (int tries = 0; tries < 5; tries++) {
        cr_assert_eq(side_export(&side, &chunk, 0, 512, &freed), GS_OK);
        gs_share_freed(side.share, freed, side_now());
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
        for (unsigned i = 1; i <= 20; i++) /* as if so many hours later */
            gs_graces_tick(side.share, side_now() + i * SIDE_HOUR);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
        cr_assert(side_gets_back(&side, freed));
        least = MIN(least, (uint64_t)(ended.tv_sec - begun.tv_sec) * 1000000000u +
                               (uint64_t)(ended.tv_nsec - begun.tv_nsec));
    }
    for (unsigned i = 0; i < count; i++)
        cr_assert(side_gets_back(&side, live[i]));
    return least;
}

Test(share_life, the_end_of_a_grace_costs_no_more_beside_many_exports)
{
    uint64_t few, many;

    if (side_with_broker()) {
        teardown(); /* whoever skips does not come to it */
        cr_skip_test("a broker would be left all of them");
    }
    few = cost_of_a_grace(10);
    many = cost_of_a_grace(20000);
    cr_assert_lt(many, 50 * few, "%lu ns beside 10 exports, %lu beside 20,000", (unsigned long)few,
                 (unsigned long)many);
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
    export = export_at(0, 512, ipc_handle);
    held = export_at(512, 512, held_ipc_handle);
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
    struct gs_export *export = export_at(0, 512, ipc_handle);
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

/* The handle opens at its owner, or that one's broker, whoever gave it on. */
Test(share_life, who_opens_what_was_passed_on_has_a_lease_of_its_own)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = export_at(0, 512, ipc_handle);
    struct other third;
    unsigned long address, at_third;

    other_start(&third, dir, NULL);
    cr_assert_eq(other_open(&other, ipc_handle, &address), GS_OK);
    ipc_handle_from_hex(other_ask(&other, "handle %lx", address) + 3, ipc_handle);
    cr_assert_eq(other_open(&third, ipc_handle, &at_third), GS_OK);
    other_kill(&other);
    cr_assert(side_stays_held(&side, export, 500), "the third lost its memory");
    other_ask(&third, "close %lx", at_third);
    cr_assert(side_gets_back(&side, export));
    cr_assert_eq(other_stop(&third), 0);
}

Test(share_life, what_was_passed_on_is_served_by_a_broker_alone_after_its_owners_end)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], passed_on[GS_IPC_HANDLE_SIZE];
    struct other second;
    unsigned long there;
    CUdeviceptr address = 1;

    other_export(&other, 0, 512, 77, ipc_handle);
    await_published(1);
    other_start(&second, dir, NULL);
    cr_assert_eq(other_open(&second, ipc_handle, &there), GS_OK);
    other_kill(&other);
    ipc_handle_from_hex(other_ask(&second, "handle %lx", there) + 3, passed_on);
    cr_assert_arr_eq(passed_on, ipc_handle, GS_IPC_HANDLE_SIZE);
    if (side_with_broker()) {
        cr_assert_eq(gs_share_open(side.share, passed_on, SIDE_CONTEXT, 0, &address), GS_OK);
        cr_assert_eq(*(char *)address, 77);
    } else {
        cr_assert_eq(gs_share_open(side.share, passed_on, SIDE_CONTEXT, 0, &address),
                     GS_UNREACHABLE);
        cr_assert_eq(address, 1);
        cr_assert_not_null(strstr(side_logged(), "has ended"), "%s", side_logged());
        cr_assert_not_null(strstr(side_logged(), "share.strategy = broker"), "%s", side_logged());
        cr_assert_eq(side_dir_count(dir), 1, "who passes it on has something there");
    }
    cr_assert_str_eq(other_ask(&second, "read %lx", there), "ok 77");
    cr_assert_eq(other_stop(&second), 0);
    remove_leftovers();
}

Test(share_life, a_dead_exporter_whose_child_holds_its_socket_is_not_waited_for)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], second[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    uint64_t start;

    other_export(&other, 0, 512, 77, ipc_handle);
    other_export(&other, 512, 512, 78, second);
    await_published(2);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    int child = atoi(other_ask(&other, "fork") + 3);
    other_kill(&other);
    start = side_now();
    cr_assert_eq(gs_share_open(side.share, second, SIDE_CONTEXT, 0, &address),
                 side_with_broker() ? GS_OK : GS_UNREACHABLE);
    cr_assert(side_within(start, options.timeout_ns / 2));
    kill(child, SIGKILL);
    remove_leftovers();
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

Test(share_life, an_importer_that_was_hung_up_on_while_idle_connects_again)
{
    struct gs_share_options one_client = options;
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export;
    struct gs_share_stats stats;
    struct other second;
    unsigned long address;
    pid_t child = 0;

    side_stop(&side);
    one_client.max_clients = 1;
    side_start(&side, &one_client);
    export = export_at(0, 512, ipc_handle);
    cr_assert_eq(other_stop(&other), 0);
    other_start(&other, dir, "idle=0");
    other_start(&second, dir, "idle=0");
    for (int i = 0; i < 4; i++) {
        struct other *turn = i % 2 ? &second : &other;

        if (i == 2 && (child = fork_child()) == 0) { /* it holds the socket that is hung up next */
            pause();
            _exit(0);
        }
        cr_assert_eq(other_open(turn, ipc_handle, &address), GS_OK, "turn %d", i);
        other_ask(turn, "close %lx", address);
        cr_assert(SIDE_WAIT((gs_share_stats(side.share, &stats), stats.references == 0)));
    }
    cr_assert(side_gets_back(&side, export));
    cr_assert_eq(other_stop(&second), 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
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

Test(share_life, descriptors_before_and_after_are_the_same)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE], own[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    struct gs_export *export;
    unsigned long there;
    int before;

    side_stop(&side);
    before = side_open_fds();
    side_start(&side, &options);
    other_export(&other, 0, 512, 5, ipc_handle);
    export = export_at(0, 512, own);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(other_open(&other, own, &there), GS_OK);
    other_closes(there);
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
    cr_assert(side_gets_back(&side, export));
    side_stop(&side);
    cr_assert_eq(side_open_fds(), before);
    side_start(&side, &options);
}

static int alive_there(void)
{
    return atoi(other_ask(&other, "census") + 3);
}

/* They are reserved while the grant is under way, as many as the block needs if it is alone. */
Test(share_life, addresses_that_were_reserved_for_nothing_go_back_at_once)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_export *export = export_at(0, 512, ipc_handle);
    int before = alive_there(), own = memdriver_alive(), left;
    CUdeviceptr address;
    unsigned long there;

    cr_assert_eq(other_open(&other, ipc_handle, &there), GS_OK);
    cr_assert_eq(alive_there(), before + 2, "a reservation and a mapping of 4 MiB");
    other_closes(there);
    cr_assert(side_gets_back(&side, export));
    left = alive_there();
    cr_assert_eq(other_open(&other, ipc_handle, &there), GS_STALE);
    cr_assert_eq(alive_there(), left);
    other_export(&other, 0, 512, 5, ipc_handle);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address), GS_OK);
    cr_assert_eq(memdriver_alive(), own + 2, "of the 2 MiB that were reserved");
    cr_assert_eq(gs_share_close(side.share, address), GS_OK);
}

static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    int lines = 0;

    for (int c = getc(maps); c != EOF; c = getc(maps))
        lines += c == '\n';
    fclose(maps);
    return lines;
}

Test(share_life, mappings_before_and_after_are_the_same)
{
    const int rounds = 40;
    unsigned char own[GS_IPC_HANDLE_SIZE];
    int before = mappings();

    for (int i = 0; i < rounds; i++) {
        struct gs_export *export;

        side_stop(&side);
        side_start(&side, &options);
        if (i % 2)
            continue;
        export = export_at(0, 512, own);
        cr_assert(side_withdraws(&side, export));
    }
    cr_assert_lt(mappings(), before + rounds / 2);
}
