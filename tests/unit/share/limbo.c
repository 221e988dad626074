/* What is said about memory that is freed and that others keep, and when. */
#include <criterion/criterion.h>

#include "by_hand.h"
#include "core/share/exporter.h"
#include "core/share/internal.h"
#include "core/share/let_go.h"
#include "core/share/wire.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define BLOCKS  4
#define HELD_UP 32 /* times */

static struct gs_export *export[BLOCKS];
static unsigned char ipc_handle[BLOCKS][GS_IPC_HANDLE_SIZE];
static unsigned long address[BLOCKS];

/* Another process has the blocks open, of 1, 2, 3 and 4 KiB. */
static void start(void)
{
    scene_chunk();
    other_start(&other, dir, NULL);
    for (size_t i = 0; i < BLOCKS; i++) {
        export[i] = scene_export(i * 65536, (i + 1) * 1024, ipc_handle[i]);
        cr_assert_eq(other_open(&other, ipc_handle[i], &address[i]), GS_OK);
    }
}

TestSuite(share_limbo, .init = scene_new, .fini = scene_end, .timeout = 120);

static void free_block(int i)
{
    gs_share_freed(side.share, export[i], side_now());
}

static void close_block(int i)
{
    other_ask(&other, "close %lx", address[i]);
    cr_assert(side_gets_back(&side, export[i]));
}

/* The n-th time that it was said, or NULL. */
static const char *said(int n)
{
    const char *at = side_logged();

    while ((at = strstr(at, " still held by other processes")) && --n > 0)
        at++;
    return at;
}

Test(share_limbo, so_many_blocks_are_said_and_again_after_they_were_half_as_many)
{
    options.limbo_warning_blocks = 2;
    start();
    free_block(0);
    usleep(300000);
    cr_assert_null(said(1), "%s", side_logged());
    free_block(1);
    cr_assert(SIDE_WAIT(said(1)));
    close_block(0);
    free_block(2); /* it was one, and half of two is */
    usleep(300000);
    cr_assert_null(said(2), "%s", side_logged());
    close_block(1);
    close_block(2);
    free_block(3);
    usleep(300000);
    cr_assert_null(said(2), "%s", side_logged());
}

Test(share_limbo, below_the_bound_it_is_armed_anew)
{
    options.limbo_warning_blocks = 2;
    start();
    free_block(0);
    free_block(1);
    cr_assert(SIDE_WAIT(said(1)));
    close_block(0);
    close_block(1);
    free_block(2);
    free_block(3);
    cr_assert(SIDE_WAIT(said(2)), "%s", side_logged());
    cr_assert_not_null(strstr(side_logged(), "2 blocks, 7 KiB, are freed"), "%s", side_logged());
}

Test(share_limbo, an_old_block_is_said_with_who_has_held_it_since_when)
{
    char holder[96];
    const char *oldest;
    uint64_t freed;
    int age = 0;

    options.limbo_warning_ns = 1200 * MS;
    start();
    usleep(1100000);
    freed = side_now();
    free_block(2);
    cr_assert(SIDE_WAIT(said(1)));
    cr_assert_not(side_within(freed, 1200 * MS));
    oldest = strstr(side_logged(), "block 3 of 3 KiB, was freed ");
    cr_assert_not_null(oldest, "%s", side_logged());
    sscanf(oldest, "block 3 of 3 KiB, was freed %d s ago", &age);
    cr_assert_geq(age, 1);
    snprintf(holder, sizeof holder, " s ago, process %d (share_other) has held it for ",
             (int)other.pid);
    cr_assert_not_null(strstr(oldest, holder), "%s", side_logged());
    cr_assert_geq(atoi(strstr(oldest, holder) + strlen(holder)), age + 1);
    close_block(2);
}

/* More than are told of, who come in no order: by what of it is freed. */
Test(share_limbo, those_who_have_most_are_named_in_order_and_all_are_counted)
{
    enum { HOLDERS = GS_SHARE_HOLDERS + 2 };
    static const size_t kib[HOLDERS] = {2, 5, 1, 4, 3};
    struct gs_export *held_of[HOLDERS];
    struct other others[HOLDERS];
    struct gs_share_held held;
    uint64_t begun;

    scene_chunk();
    begun = side_now();
    for (size_t i = 0; i < HOLDERS; i++) {
        held_of[i] = scene_export(i * 65536, kib[i] * 1024, ipc_handle[0]);
        other_start(&others[i], dir, NULL);
        cr_assert_eq(other_open(&others[i], ipc_handle[0], &address[0]), GS_OK);
    }
    gs_share_held(side.share, side_gpu, 0, &held);
    cr_assert(held.holders == 0 && held.bytes == 0, "nothing is freed");
    for (size_t i = 0; i < HOLDERS; i++)
        gs_share_freed(side.share, held_of[i], side_now());
    gs_share_held(side.share, side_gpu, 0, &held);
    cr_assert_eq(held.holders, HOLDERS);
    cr_assert_eq(held.bytes, 15 * 1024);
    for (size_t n = 0; n < GS_SHARE_HOLDERS; n++) {
        size_t i = 0;

        while (kib[i] != HOLDERS - n)
            i++;
        cr_assert_eq(held.most[n].bytes, kib[i] * 1024);
        cr_assert_eq(held.most[n].pid, others[i].pid);
        cr_assert_str_eq(held.most[n].name, "share_other");
        cr_assert(held.most[n].held_ns > 0 && held.most[n].held_ns < side_now() - begun);
        cr_assert_not(held.most[n].stopped);
    }
    gs_share_held(side.share, side_other_gpu, 0, &held);
    cr_assert(held.holders == 0 && held.bytes == 0, "it is of another device");
    for (size_t i = 0; i < HOLDERS; i++)
        other_kill(&others[i]);
}

/* The share thread has heard of an end, and comes to tell of it when somebody waits, or is told
 * to. */
static bool tells_late, is_late; /* atomic */

bool __real_gs_exports_tell(struct gs_share *share);
bool __wrap_gs_exports_tell(struct gs_share *share);

bool __wrap_gs_exports_tell(struct gs_share *share)
{
    bool ended;

    gs_lock_take(&share->lock);
    ended = gs_export_oldest(share, GS_EXPORT_ENDED) != NULL;
    gs_lock_release(&share->lock);
    while (ended && __atomic_load_n(&tells_late, __ATOMIC_SEQ_CST)) {
        __atomic_store_n(&is_late, true, __ATOMIC_SEQ_CST);
        usleep(100);
    }
    return __real_gs_exports_tell(share);
}

bool __real_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns);
bool __wrap_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns);

static struct gs_client *ending; /* who waits for it longer than for others waits no more */
static uint64_t longest_ns;

bool __wrap_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns)
{
    uint64_t now = side_now();

    __atomic_store_n(&tells_late, false, __ATOMIC_SEQ_CST);
    if (ending && until_ns > now + 1000 * MS) {
        longest_ns = until_ns - now;
        ending->flush.awaited = false;
        return true;
    }
    return __real_gs_cond_wait_until(cond, lock, until_ns);
}

/* On a busy machine it may be long between the two. */
Test(share_limbo, an_end_that_was_heard_and_not_told_is_waited_for)
{
    unsigned before;
    bool waited;

    start();
    free_block(0);
    before = __atomic_load_n(&side.leases_ended, __ATOMIC_SEQ_CST);
    __atomic_store_n(&tells_late, true, __ATOMIC_SEQ_CST);
    other_ask(&other, "close %lx", address[0]);
    cr_assert(SIDE_WAIT(__atomic_load_n(&is_late, __ATOMIC_SEQ_CST)));
    gs_share_await_given_back(side.share, NULL, 20000 * MS);
    waited = __atomic_load_n(&side.leases_ended, __ATOMIC_SEQ_CST) > before;
    __atomic_store_n(&tells_late, false, __ATOMIC_SEQ_CST);
    cr_assert(waited, "the memory is said to be back, and is not");
}

Test(share_limbo, who_is_ending_is_waited_for_two_seconds)
{
    start();
    halt(other.pid);
    free_block(0);
    gs_lock_take(&side.share->lock);
    ending = side.share->clients.first;
    ending->flush.hung_up = true;
    gs_lock_release(&side.share->lock);
    gs_share_await_recalled(side.share);
    cr_assert(longest_ns > 0 && longest_ns <= 2000 * MS, "%llu ns", (unsigned long long)longest_ns);
    kill(other.pid, SIGCONT);
}

/* Here of one user alone: whatever there is of it is theirs. */
Test(share_limbo, what_may_be_in_limbo_has_a_limit)
{
    struct gs_export *more[4];
    unsigned char ipc_handles[4][GS_IPC_HANDLE_SIZE];
    unsigned long opened[4];

    options.limbo_limit = 3 * 1024 + 256;
    options.grace_ns = SIDE_HOUR;
    start();
    for (int i = 0; i < 3; i++) {
        more[i] = scene_export(1 * MIB + (size_t)i * 512, 512, ipc_handles[i]);
    }
    free_block(0);
    free_block(1); /* 3 KiB, and in their grace: */
    gs_share_freed(side.share, more[0], side_now());
    gs_share_freed(side.share, more[1], side_now());
    cr_assert_eq(other_open(&other, ipc_handles[0], &opened[0]), GS_OK,
                 "it is opened below the limit");
    cr_assert_neq(other_open(&other, ipc_handles[1], &opened[1]), GS_OK, "it is freed");
    cr_assert_eq(other_open(&other, ipc_handles[2], &opened[2]), GS_OK, "it is not freed");
    close(side.share->place.listener);
    cr_assert_eq(side_export(&side, &chunk, 1 * MIB + 2048, 512, &more[3]), GS_NOT_OFFERED);
    cr_assert_not_null(strstr(side_logged(), "debug.limbo_limit"));
    cr_assert_geq(side_dial(dir, ipc_handle[2]), 0, "its socket is there again");
    other_ask(&other, "close %lx", address[1]);
    cr_assert(side_gets_back(&side, export[1]));
    cr_assert_eq(side_export(&side, &chunk, 1 * MIB + 2048, 512, &more[3]), GS_OK, "there is room");
    cr_assert_eq(other_open(&other, ipc_handles[1], &opened[1]), GS_OK, "there is room");
    cr_assert(side_stays_held(&side, export[0], 100), "it was taken away");
}

/* So many are shared, as whoever asks is told. */
static unsigned long long told(int fd)
{
    union gs_wire_message message;

    cr_assert_eq(hear(fd, &message), GS_WIRE_REPORT);
    return message.report.exports;
}

/* Who asks again and again is told what was found before for as long as looking took, and not for
 * as long as the machine or the program held it up: here the latter, for 20 ms, at each of the
 * places where it takes its lock. */
Test(share_limbo, what_is_told_is_no_older_than_it_was_work_to_find)
{
    unsigned char another[GS_IPC_HANDLE_SIZE];
    int fd;

    start();
    fd = side_connect_by_hand(dir, ipc_handle[0]);
    for (unsigned round = 0; round < HELD_UP; round++) {
        scene_export((BLOCKS + round) * 65536, 512, another);
        usleep(20000); /* many times what the look took */
        gs_lock_take(&side.share->lock);
        cr_assert_eq(say(fd, MESSAGE(QUERY, 1)), 0);
        usleep(2000);
        gs_lock_release(&side.share->lock);
        for (uint64_t end = side_now() + round * 1000; side_now() < end;)
            continue;
        gs_lock_take(&side.share->lock);
        usleep(20000);
        gs_lock_release(&side.share->lock);
        cr_assert_eq(told(fd), BLOCKS + round + 1);
    }
    close(fd);
}
