/*
 * How often the share thread looks for the next message before it sleeps, counted. To it the time
 * is what the test makes it: it passes in its epoll_wait and ppoll alone, so that no other program
 * of the machine has a part in what is counted. The program is linked for that with its own of
 * these and gs_now_ns.
 */
#include <criterion/criterion.h>
#include <sys/epoll.h>

#include "core/share/internal.h"
#include "core/share/wire.h"
#include "scene.h"
#include "tests/system.h"

#define US        UINT64_C(1000)
#define LOOK_NS   (10 * US)
#define ROW_LOOKS 15 /* of 150 us, after the last open of a row */
#define ALL       (-1)

static struct gs_export *export;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
static int client;

/* All atomic: what a test sets, before it sends: how many looks find nothing (ALL: every one), and
 * how long a sleep is until a message comes. */
static int vain;
static uint64_t slept_ns;
/* And what the share thread sets: how often it has looked, when it is, how much of that has passed
 * while somebody came, and for how many milliseconds at most it sleeps now (0: it does not). */
static uint64_t looks, now_ns, company_ns;
static int asleep;

static _Thread_local bool is_share_thread;

#define READ(counter)       __atomic_load_n(&(counter), __ATOMIC_SEQ_CST)
#define SET(counter, value) __atomic_store_n(&(counter), (value), __ATOMIC_SEQ_CST)

int __real_epoll_wait(int fd, struct epoll_event *events, int most, int limit);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int limit);
uint64_t __real_gs_now_ns(void);
uint64_t __wrap_gs_now_ns(void);

uint64_t __wrap_gs_now_ns(void)
{
    return is_share_thread ? READ(now_ns) : __real_gs_now_ns();
}

static void pass(uint64_t ns)
{
    __atomic_add_fetch(&now_ns, ns, __ATOMIC_SEQ_CST);
}

static void pass_in_company(uint64_t ns)
{
    __atomic_add_fetch(&company_ns, ns, __ATOMIC_SEQ_CST);
    pass(ns);
}

static int in_vain;    /* since something was found */
static bool has_slept; /* it looks for what has ended its sleep */

int __real_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *mask);

int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *mask)
{
    uint64_t ns = limit ? (uint64_t)limit->tv_sec * 1000000000 + (uint64_t)limit->tv_nsec : 0;
    int found;

    if (!is_share_thread) {
        SET(now_ns, __real_gs_now_ns());
        is_share_thread = true;
    }
    in_vain = 0;
    SET(asleep, limit ? (int)((ns + 999999) / 1000000) : INT_MAX);
    found = __real_ppoll(fds, count, limit, mask);
    SET(asleep, 0);
    if (found <= 0 && limit) {
        pass(ns);
    } else if (
        !fds[1].revents) { /* threads of its own wake it in no time, whenever they come to it */
        pass_in_company(READ(slept_ns));
    }
    has_slept = true;
    return found;
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int limit)
{
    if (has_slept) {
        has_slept = false;
        return __real_epoll_wait(fd, events, most, 0);
    }
    pass_in_company(LOOK_NS);
    __atomic_add_fetch(&looks, 1, __ATOMIC_SEQ_CST);
    if (READ(vain) == ALL || in_vain++ < READ(vain))
        return 0;
    in_vain = 0;
    return __real_epoll_wait(fd, events, most, -1); /* it is there at this look */
}

/* The share thread sleeps, and has nothing to do for `limit` milliseconds. */
static bool sleeps(int limit)
{
    return SIDE_WAIT(READ(asleep) >= limit);
}

static void begin(void)
{
    scene_block(&export, ipc_handle);
    side.share->spins = true; /* whatever CPUs there are */
}

static void setup(void)
{
    scene_new();
    SET(slept_ns, 100 * US);
    SET(vain, ALL);
    begin();
    /* Its time has begun, and nothing wakes it any more: the time of who comes with that would not
     * pass. */
    cr_assert(SIDE_WAIT(READ(side.share->loop.fds_made)));
    cr_assert(sleeps(1000 * 1000));
}

static void teardown(void)
{
    close(client);
    scene_end();
}

TestSuite(share_looks, .init = setup, .fini = teardown, .timeout = 120);

/* Opens the block once more. */
static void open_again(void)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    cr_assert_eq(gs_wire_send(client, &message, -1), 0);
    cr_assert_eq(recv(client, &message, sizeof message, 0), (ssize_t)message.head.size);
    cr_assert_eq(message.head.type, GS_WIRE_GRANT);
}

/* Each open is found at the eleventh look, or slept for as long. Looking is 64 ms at once and a
 * sixteenth of the time. */
Test(share_looks, whoever_comes_again_and_again_is_looked_for_in_a_part_of_the_time)
{
    uint64_t begun, accompanied, looked, most, least;

    client = side_connect_by_hand(dir, ipc_handle);
    open_again();
    cr_assert(sleeps(1));
    SET(vain, 10);
    begun = READ(now_ns);
    accompanied = READ(company_ns);
    looked = READ(looks);
    while (READ(company_ns) - accompanied < 600000 * US)
        open_again();
    looked = (READ(looks) - looked) * LOOK_NS;
    most = 64000 * US + (READ(now_ns) - begun) / 16;
    least = 64000 * US + (READ(company_ns) - accompanied) / 16;
    cr_assert_leq(looked, most + ROW_LOOKS * LOOK_NS, "%llu us in looking, not %llu",
                  (unsigned long long)(looked / US), (unsigned long long)(most / US));
    cr_assert_geq(looked, least - least / 8, "%llu us in looking, of %llu",
                  (unsigned long long)(looked / US), (unsigned long long)(least / US));
}

/* One that has come late once is no reason not to look for the next one. */
Test(share_looks, what_comes_after_a_row_does_not_end_the_looking_in_the_next)
{
    uint64_t looked;

    client = side_connect_by_hand(dir, ipc_handle);
    SET(slept_ns, 25000 * US); /* no row, and what was in vain is long ago */
    for (int i = 0; i < 3; i++) {
        open_again();
        cr_assert(sleeps(1000));
    }
    SET(slept_ns, 500 * US);
    looked = READ(looks);
    open_again();
    cr_assert(sleeps(1000));
    cr_assert_eq(READ(looks) - looked, ROW_LOOKS);
}

/* Who was given a handle opens it as soon as he has it: for 2 ms. */
Test(share_looks, after_a_handle_was_given_out_its_importer_is_looked_for)
{
    struct side_chunk given = side_chunk_new(&side, 2 * MIB);
    struct gs_export *first;
    uint64_t looked = READ(looks), begun = READ(now_ns);

    side.share->options.export_ahead = true;
    cr_assert_eq(side_export(&side, &given, 0, 512, &first), GS_OK);
    cr_assert(SIDE_WAIT(READ(looks) > looked));
    cr_assert(sleeps(1));
    cr_assert_geq(READ(now_ns) - begun, GS_EXPORTED_NS);
    cr_assert_leq(READ(looks) - looked, GS_EXPORTED_NS / LOOK_NS + 2);
    side_chunk_free(&side, &given);
}

/* Though none came: who opens one after the other is looked for all the same. */
Test(share_looks, a_handle_that_nobody_opened_does_not_end_the_looking_in_a_row)
{
    struct side_chunk given = side_chunk_new(&side, 2 * MIB);
    struct gs_export *first;
    uint64_t looked = READ(looks);

    side.share->options.export_ahead = true;
    cr_assert_eq(side_export(&side, &given, 0, 512, &first), GS_OK);
    cr_assert(SIDE_WAIT(READ(looks) > looked));
    cr_assert(sleeps(1));
    SET(vain, 2);
    client = side_connect_by_hand(dir, ipc_handle);
    open_again();
    open_again();
    looked = READ(looks);
    SET(vain, ALL);
    open_again();
    cr_assert(sleeps(1));
    cr_assert_gt(READ(looks), looked);
    side_chunk_free(&side, &given);
}

/* It says each 20 minutes in the folder that its process lives: with nothing to do that is all.
 * Also while one has the block open and is silent, and when it has gone and its lease has ended. */
Test(share_looks, an_idle_thread_sleeps_for_as_long_as_it_may)
{
    struct gs_share_stats stats;
    uint64_t looked;

    client = side_connect_by_hand(dir, ipc_handle);
    for (int i = 0; i < 100; i++)
        open_again();
    cr_assert(sleeps(1000 * 1000), "%d ms", READ(asleep));
    looked = READ(looks);
    SET(slept_ns, 25000 * US);
    side_leave(client);
    client = -1;
    cr_assert(SIDE_WAIT((gs_share_stats(side.share, &stats), stats.references == 0)));
    cr_assert(sleeps(1000 * 1000), "%d ms", READ(asleep));
    cr_assert_eq(READ(looks), looked);
}

/* The same for who can be asked for memory, and is not. */
Test(share_looks, a_thread_that_nobody_asks_sleeps_for_as_long_as_it_may)
{
    scene_stop();
    side_start(&side, &options);
    cr_assert_eq(gs_share_serve(side.share), GS_OK);
    cr_assert(sleeps(1000 * 1000), "%d ms", READ(asleep));
}

/* The same for who has memory of others open, closed and idle. */
Test(share_looks, an_idle_importer_sleeps_for_as_long_as_it_may)
{
    unsigned char theirs[GS_IPC_HANDLE_SIZE];

    options.idle_ns = SIDE_HOUR;
    scene_stop();
    begin();
    other_start(&other, dir, NULL);
    other_export(&other, 0, 512, 5, theirs);
    scene_open(theirs);
    other_export(&other, 512, 512, 5, theirs);
    cr_assert_eq(gs_share_close(side.share, scene_open(theirs)), GS_OK);
    cr_assert(sleeps(1000 * 1000), "%d ms", READ(asleep));
}
