/* What is said about memory that is freed and that others keep, and when. */
#include <criterion/criterion.h>

#include "core/share/exporter.h"
#include "core/share/wire.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

#define BLOCKS    4
#define SILENT_MS 500 /* so long the library waits for an answer: core/share/flush.c */

static struct gs_export *export[BLOCKS];
static unsigned char ipc_handle[BLOCKS][GS_IPC_HANDLE_SIZE];
static unsigned long address[BLOCKS];

/* Another process has the blocks open, of 1, 2, 3 and 4 KiB. */
static void start(void)
{
    scene_chunk();
    other_start(&other, dir, NULL);
    for (size_t i = 0; i < BLOCKS; i++) {
        cr_assert_eq(side_export(&side, &chunk, i * 65536, (i + 1) * 1024, &export[i]), GS_OK);
        gs_export_handle(export[i], ipc_handle[i]);
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

/* What the share thread says is heard so many microseconds before it goes on. */
static unsigned rests_us; /* atomic */

static bool lacks_memory;  /* atomic; the kernel, for a RING or an answer */
static unsigned not_taken; /* atomic; such messages */

static bool is_not_taken(const struct msghdr *message)
{
    const union gs_wire_message *said = message->msg_iov->iov_base;
    uint16_t type = said->head.type;

    return __atomic_load_n(&lacks_memory, __ATOMIC_SEQ_CST) &&
           (type == GS_WIRE_RING || type == GS_WIRE_GRANT || type == GS_WIRE_REFUSE ||
            type == GS_WIRE_CLOSE);
}

static unsigned asked, answered; /* atomic; FLUSH and last FLUSHED of this process's share thread */

/* Nobody is asked, or to be asked, and has not answered. */
static bool has_answered(void)
{
    return __atomic_load_n(&asked, __ATOMIC_SEQ_CST) ==
           __atomic_load_n(&answered, __ATOMIC_SEQ_CST);
}

static void count(const struct msghdr *message, ssize_t size, uint16_t type, unsigned *count)
{
    const union gs_wire_message *said = message->msg_iov->iov_base;

    if (size >= (ssize_t)sizeof said->head && said->head.type == type &&
        !(type == GS_WIRE_FLUSHED && said->flushed.closing))
        __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
}

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t sent;

    if (is_not_taken(message)) {
        __atomic_add_fetch(&not_taken, 1, __ATOMIC_SEQ_CST);
        errno = ENOBUFS;
        return -1;
    }
    sent = __real_sendmsg(fd, message, flags);
    count(message, sent, GS_WIRE_FLUSH, &asked);
    usleep(__atomic_load_n(&rests_us, __ATOMIC_SEQ_CST));
    return sent;
}

ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags)
{
    ssize_t got = __real_recvmsg(fd, message, flags);

    if (flags & MSG_PEEK && message->msg_iovlen > 0) /* each is looked at once, and then taken */
        count(message, got, GS_WIRE_FLUSHED, &answered);
    return got;
}

/* The n-th time that it was said, or NULL. */
static const char *said(int n)
{
    const char *at = side_logged();

    while ((at = strstr(at, " still held by other processes")) && --n > 0)
        at++;
    return at;
}

Test(share_limbo, so_many_bytes_are_said_once_with_who_holds_them)
{
    struct gs_share_stats stats;
    char holder[96];

    options.limbo_warning = 5 * 1024;
    start();
    free_block(1);
    usleep(300000);
    cr_assert_null(said(1), "%s", side_logged());
    free_block(2);
    cr_assert(SIDE_WAIT(said(1)));
    snprintf(holder, sizeof holder, "most by process %d (share_other): 2 blocks, 5 KiB",
             (int)other.pid);
    cr_assert_not_null(strstr(side_logged(), "2 blocks, 5 KiB, are freed"), "%s", side_logged());
    cr_assert_not_null(strstr(side_logged(), holder), "%s", side_logged());
    gs_share_stats(side.share, &stats);
    cr_assert_eq(stats.limbo, 2);
    cr_assert_eq(stats.limbo_bytes, 5 * 1024);
    cr_assert_eq(stats.references, BLOCKS);
    cr_assert_neq(stats.limbo_ns, 0);
    free_block(3);
    close_block(3); /* above half of the bound all the time */
    usleep(300000);
    cr_assert_null(said(2), "%s", side_logged());
    close_block(1);
    close_block(2);
    gs_share_stats(side.share, &stats);
    cr_assert_eq(stats.limbo, 0);
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
    usleep(300000);
    free_block(0);
    cr_assert(!said(1) || !side_within(freed, 1200 * MS), "%s", side_logged());
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
    close_block(0); /* the old one stays */
    usleep(300000);
    cr_assert_null(said(2), "%s", side_logged());
    close_block(2);
    free_block(1);
    cr_assert(SIDE_WAIT(said(2)), "%s", side_logged());
}

/* It is called back at the free and given back at once; what took longer than a tenth of a second
 * may be said. */
Test(share_limbo, what_is_only_kept_for_the_next_open_is_not_said)
{
    bool at_once = true;

    options.limbo_warning_blocks = 1;
    start();
    for (int i = 0; i < BLOCKS; i++) {
        uint64_t freed = side_now();

        other_ask(&other, "close %lx", address[i]);
        free_block(i);
        cr_assert(side_gets_back(&side, export[i]));
        at_once &= side_within(freed, 100 * MS);
    }
    usleep(300000);
    cr_assert(!said(1) || !at_once, "%s", side_logged());
}

/* What is freed, not held and not in its grace either waits for the GPU or for an allocation. */
Test(share_limbo, what_nobody_holds_does_not_count)
{
    struct gs_share_stats stats;
    uint64_t freed;

    options.grace_ns = 200 * MS;
    start();
    cr_assert_eq(side_export(&side, &chunk, 1 * MIB, 512, &export[0]), GS_OK);
    freed = side_now();
    free_block(0);
    gs_share_stats(side.share, &stats);
    cr_assert(stats.limbo == 1 || !side_within(freed, 200 * MS), "it is in its grace");
    cr_assert(SIDE_WAIT((gs_share_stats(side.share, &stats), stats.limbo == 0)));
    cr_assert(side_gets_back(&side, export[0]));
}

/* Memory is out: what was only kept for the next open is waited for, what is open since long
 * not. */
Test(share_limbo, what_comes_back_is_waited_for)
{
    uint64_t begun;

    start();
    for (int i = 0; i < 3; i++)
        other_ask(&other, "close %lx", address[i]);
    gs_share_freed(side.share, export[3], side_now() - 30000 * MS);
    gs_share_await_given_back(side.share, NULL, 20000 * MS);
    for (int i = 0; i < 3; i++)
        free_block(i);
    begun = side_now();
    gs_share_await_given_back(side.share, NULL, 20000 * MS);
    cr_assert_lt(side_now() - begun, 15000 * MS, "it was waited for what is open");
    for (int i = 0; i < 3; i++)
        cr_assert(side_gets_back(&side, export[i]));
    cr_assert(side_stays_held(&side, export[3], 100));
    begun = side_now();
    cr_assert_eq(side_export(&side, &chunk, 1 * MIB, 512, &export[0]), GS_OK);
    gs_export_handle(export[0], ipc_handle[0]);
    __atomic_store_n(&rests_us, 200000, __ATOMIC_SEQ_CST); /* it counts as held all the same */
    cr_assert_eq(other_open(&other, ipc_handle[0], &address[0]), GS_OK);
    free_block(0);
    gs_share_await_given_back(side.share, NULL, 300 * MS);
    __atomic_store_n(&rests_us, 0, __ATOMIC_SEQ_CST);
    cr_assert_geq(side_now() - begun, 300 * MS,
                  "what is open since a moment ago was not waited for");
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

bool __wrap_gs_cond_wait_until(struct gs_cond *cond, struct gs_lock *lock, uint64_t until_ns)
{
    __atomic_store_n(&tells_late, false, __ATOMIC_SEQ_CST);
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

/* One that is stopped, while it has something open that was freed long ago. */
Test(share_limbo, who_does_not_answer_is_waited_for_once)
{
    uint64_t begun;

    start();
    gs_share_freed(side.share, export[0], side_now() - 30000 * MS);
    gs_share_await_given_back(side.share, NULL, 0); /* it has a thread that answers */
    halt(other.pid);
    begun = side_now();
    for (int i = 0; i < 40; i++)
        gs_share_await_given_back(side.share, NULL, 0);
    cr_assert_lt(side_now() - begun, 10000 * MS, "it was waited for each time");
    kill(other.pid, SIGCONT);
    other_ask(&other, "close %lx", address[0]);
    cr_assert(side_gets_back(&side, export[0]));
    cr_assert(SIDE_WAIT(has_answered()) && all_rest(other.pid) && SIDE_WAIT(has_answered()),
              "it is asked and does not answer");
    gs_share_freed(side.share, export[1], side_now() - 30000 * MS);
    other_ask(&other, "close %lx", address[1]);
    begun = side_now();
    gs_share_await_given_back(side.share, NULL, 0);
    cr_assert(side_withdraws(&side, export[1]) || !side_within(begun, SILENT_MS * MS),
              "what was closed is not waited for any more");
}

/* Several threads whose program needs memory at once. */
static void *await_closed(void *arg)
{
    (void)arg;
    for (int i = 0; i < 200; i++)
        gs_share_await_given_back(side.share, NULL, 0);
    return NULL;
}

Test(share_limbo, many_threads_wait_for_what_is_closed)
{
    pthread_t thread[4];

    start();
    for (int i = 0; i < BLOCKS; i++)
        gs_share_freed(side.share, export[i], side_now() - 30000 * MS);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, await_closed, NULL), 0);
    for (int i = 0; i < BLOCKS; i++) {
        other_ask(&other, "close %lx", address[i]);
        gs_share_await_given_back(side.share, NULL, 0);
        cr_assert(side_withdraws(&side, export[i]), "block %d", i);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
}

/* Here of one user alone: whatever there is of it is his. */
Test(share_limbo, what_may_be_in_limbo_has_a_limit)
{
    struct gs_export *more[4];
    unsigned char ipc_handles[4][GS_IPC_HANDLE_SIZE];
    unsigned long opened[4];

    options.limbo_limit = 3 * 1024 + 256;
    options.grace_ns = SIDE_HOUR;
    start();
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(side_export(&side, &chunk, 1 * MIB + (size_t)i * 512, 512, &more[i]), GS_OK);
        gs_export_handle(more[i], ipc_handles[i]);
    }
    free_block(0);
    free_block(1); /* 3 KiB, and in their grace: */
    gs_share_freed(side.share, more[0], side_now());
    gs_share_freed(side.share, more[1], side_now());
    cr_assert_eq(other_open(&other, ipc_handles[0], &opened[0]), GS_OK,
                 "it is opened below the limit");
    cr_assert_neq(other_open(&other, ipc_handles[1], &opened[1]), GS_OK, "it is freed");
    cr_assert_eq(other_open(&other, ipc_handles[2], &opened[2]), GS_OK, "it is not freed");
    cr_assert_eq(side_export(&side, &chunk, 1 * MIB + 2048, 512, &more[3]), GS_NOT_OFFERED);
    cr_assert_not_null(strstr(side_logged(), "debug.limbo_limit"));
    other_ask(&other, "close %lx", address[1]);
    cr_assert(side_gets_back(&side, export[1]));
    cr_assert_eq(side_export(&side, &chunk, 1 * MIB + 2048, 512, &more[3]), GS_OK, "there is room");
    cr_assert_eq(other_open(&other, ipc_handles[1], &opened[1]), GS_OK, "there is room");
    cr_assert(side_stays_held(&side, export[0], 100), "it was taken away");
}

static uint64_t in_limbo(void)
{
    struct gs_share_stats stats;

    gs_share_stats(side.share, &stats);
    return stats.limbo;
}

static void *close_later(void *arg)
{
    usleep(50000);
    other_ask(&other, "close %lx", *(unsigned long *)arg);
    return NULL;
}

/* The share thread exports what was given out, for its first importer. */
Test(share_limbo, what_is_being_exported_is_waited_for)
{
    options.export_ahead = true;
    start();
    for (int i = 0; i < BLOCKS; i++)
        close_block(i);
    side_chunk_free(&side, &chunk);
    chunk = side_chunk_new(&side, 2 * MIB);
    memdriver_delay_export(200000);
    cr_assert_eq(side_export(&side, &chunk, 0, 1024, &export[0]), GS_OK);
    gs_share_freed(side.share, export[0], side_now());
    gs_share_await_given_back(side.share, side_gpu, SIDE_HOUR);
    cr_assert(side_withdraws(&side, export[0]), "it was not waited for");
    memdriver_delay_export(0);
}

/* Nobody holds them, and nobody can be named who does. */
Test(share_limbo, what_is_to_be_exported_is_not_said_to_be_held)
{
    struct side_chunk given[BLOCKS];

    options.export_ahead = true;
    options.limbo_warning_blocks = 1;
    options.limbo_warning = 1024;
    options.limbo_warning_ns = 100 * MS;
    start();
    for (int i = 0; i < BLOCKS; i++)
        close_block(i);
    memdriver_delay_export(150000);
    for (int i = 0; i < BLOCKS; i++) {
        given[i] = side_chunk_new(&side, 2 * MIB);
        cr_assert_eq(side_export(&side, &given[i], 0, 1024, &export[i]), GS_OK);
        free_block(i);
    }
    for (int i = 0; i < BLOCKS; i++)
        cr_assert(side_gets_back(&side, export[i]));
    usleep(300000);
    cr_assert_null(said(1), "%s", side_logged());
    memdriver_delay_export(0);
    for (int i = 0; i < BLOCKS; i++)
        side_chunk_free(&side, &given[i]);
}

/* The wait that would be one in vain ends with the test's time. */
Test(share_limbo, what_comes_back_to_one_gpu_is_not_waited_for_by_another)
{
    struct side_chunk there;
    struct gs_share_source source = {.block_id = 77, .chunk_size = 2 * MIB, .size = 512};
    struct gs_export *export_there;
    unsigned char ipc_handle_there[GS_IPC_HANDLE_SIZE];
    unsigned long address_there;
    pthread_t thread;

    start();
    there = side_chunk_new(&side, 2 * MIB);
    source.handle = there.handle;
    source.chunk_id = there.id;
    memcpy(source.uuid, side_other_gpu, sizeof source.uuid);
    cr_assert_eq(gs_share_export(side.share, &source, &export_there), GS_OK);
    gs_export_handle(export_there, ipc_handle_there);
    cr_assert_eq(other_open(&other, ipc_handle_there, &address_there), GS_OK);

    free_block(0); /* the other process has it open */
    gs_share_await_given_back(side.share, side_other_gpu, SIDE_HOUR);
    cr_assert_eq(in_limbo(), 1);
    close_block(0);

    free_block(1);
    gs_share_freed(side.share, export_there, side_now()); /* after all others */
    cr_assert_eq(pthread_create(&thread, NULL, close_later, &address[1]), 0);
    gs_share_await_given_back(side.share, side_gpu, SIDE_HOUR);
    cr_assert_eq(in_limbo(), 1, "its own was not waited for");
    pthread_join(thread, NULL);
    cr_assert(side_gets_back(&side, export[1]));

    other_ask(&other, "close %lx", address_there);
    gs_share_await_given_back(side.share, NULL, SIDE_HOUR);
    cr_assert_eq(in_limbo(), 0);
    cr_assert(side_gets_back(&side, export_there));
    side_chunk_free(&side, &there);
}

/* The broker serves nothing that was taken back, whether it was told by then or not. */
Test(share_limbo, what_the_broker_cannot_be_told_is_used_again_at_once)
{
    start();
    for (int i = 1; i < BLOCKS; i++)
        close_block(i);
    other_ask(&other, "close %lx", address[0]);
    cr_assert(!side_with_broker() || SIDE_WAIT(side_broker_published(dir) == 1));
    __atomic_store_n(&lacks_memory, side_with_broker(), __ATOMIC_SEQ_CST);
    cr_assert(side_gets_back(&side, export[0]));
    cr_assert(!side_with_broker() || side_broker_published(dir) == 1);
    __atomic_store_n(&lacks_memory, false, __ATOMIC_SEQ_CST);
    cr_assert(!side_with_broker() || SIDE_WAIT(side_broker_published(dir) == 0));
}

Test(share_limbo, who_cannot_be_answered_keeps_what_it_holds)
{
    char hex[2 * GS_IPC_HANDLE_SIZE + 1];
    unsigned char next[GS_IPC_HANDLE_SIZE];
    struct gs_export *exported;

    start();
    cr_assert_eq(side_export(&side, &chunk, MIB, 1024, &exported), GS_OK);
    gs_export_handle(exported, next);
    ipc_handle_to_hex(next, hex);
    __atomic_store_n(&lacks_memory, true, __ATOMIC_SEQ_CST);
    fprintf(other.in, "open %s\n", hex);
    fflush(other.in);
    cr_assert(SIDE_WAIT(__atomic_load_n(&not_taken, __ATOMIC_SEQ_CST) >= 2));
    __atomic_store_n(&lacks_memory, false, __ATOMIC_SEQ_CST);
    cr_assert(side_stays_held(&side, export[0], 2000), "hung up on, it lost what it had open");
    other_kill(&other);
    for (int i = 0; i < BLOCKS; i++)
        cr_assert(side_gets_back(&side, export[i]));
    cr_assert(side_gets_back(&side, exported));
}

Test(share_limbo, what_cannot_be_given_back_for_now_is_later)
{
    unsigned char its[GS_IPC_HANDLE_SIZE];
    CUdeviceptr there;

    start();
    other_export(&other, 0, 512, 7, its);
    cr_assert_eq(gs_share_open(side.share, its, SIDE_CONTEXT, 0, &there), GS_OK);
    __atomic_store_n(&lacks_memory, true, __ATOMIC_SEQ_CST);
    cr_assert_eq(gs_share_close(side.share, there), GS_OK);
    cr_assert_not(other_withdraws(&other));
    cr_assert(SIDE_WAIT(__atomic_load_n(&not_taken, __ATOMIC_SEQ_CST) >= 2));
    __atomic_store_n(&lacks_memory, false, __ATOMIC_SEQ_CST);
    cr_assert(SIDE_WAIT(other_withdraws(&other)), "its reference stayed");
    other_kill(&other);
    for (int i = 0; i < BLOCKS; i++)
        cr_assert(side_gets_back(&side, export[i]));
}
