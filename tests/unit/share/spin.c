/* Looking for the next message without sleeping: when the share thread does it, and for how long
 * at most. It is linked so that its epoll_wait, ppoll and sched_yield are the ones below. */
#include <criterion/criterion.h>
#include <sys/epoll.h>

#include "core/share/directory.h"
#include "core/share/wire.h"
#include "scene.h"
#include "tests/children.h"
#include "tests/system.h"

static struct gs_export *export;
static unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
static bool looks_at_all;

/* Of the share thread; atomic. What it spent is CPU time, of which it gets none while the machine
 * stands still. */
static uint64_t calls, looks, looked_ns, yields;
static uint64_t importer_yields; /* of the test's own thread */
static _Thread_local bool is_share_thread;

int __real_epoll_wait(int fd, struct epoll_event *events, int most, int limit);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int limit);
int __real_sched_yield(void);
int __wrap_sched_yield(void);

int __wrap_sched_yield(void)
{
    __atomic_add_fetch(is_share_thread ? &yields : &importer_yields, 1, __ATOMIC_SEQ_CST);
    return __real_sched_yield();
}

static bool has_slept; /* it looks for what has ended its sleep: that is no look */

int __real_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *mask);

int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *limit,
                 const sigset_t *mask)
{
    has_slept = true;
    return __real_ppoll(fds, count, limit, mask);
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int limit)
{
    static uint64_t last; /* when the look before this one found nothing; 0: there was none */
    int count = __real_epoll_wait(fd, events, most, limit);
    struct timespec spent;
    uint64_t now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    now = (uint64_t)spent.tv_sec * 1000000000 + (uint64_t)spent.tv_nsec;

    is_share_thread = true;
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (!has_slept) {
        __atomic_add_fetch(&looks, 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&looked_ns, last ? now - last : 0, __ATOMIC_SEQ_CST);
    }
    last = !has_slept && count == 0 ? now : 0;
    has_slept = false;
    return count;
}

#define READ(counter) __atomic_load_n(&(counter), __ATOMIC_SEQ_CST)

static bool has_cpus(void)
{
    cpu_set_t cpus;

    return sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) > 1;
}

/* From now on only on the n-th of the test's CPUs, if it has two. */
static void run_on(int n)
{
    static cpu_set_t all;
    cpu_set_t one;

    if (CPU_COUNT(&all) == 0 && !has_cpus())
        return;
    if (CPU_COUNT(&all) == 0)
        sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && n-- == 0)
            CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
}

static void setup(void)
{
    scene_new();
    options.timeout_ns = 1000000000;
    looks_at_all = has_cpus();
    scene_side();
    run_on(0); /* and the share thread, which that one starts */
    chunk = side_chunk_new(&side, 2 * MIB);
    cr_assert_eq(side_export(&side, &chunk, 0, 512, &export), GS_OK);
    gs_export_handle(export, ipc_handle);
}

TestSuite(share_spin, .init = setup, .fini = scene_end, .timeout = 120);

/* Another process that opens and closes the block until the time is over, and works in between. */
static void open_again_and_again(uint64_t ns, uint64_t work_ns)
{
    pid_t child = fork_child();
    int status;

    if (child == 0) {
        struct sockaddr_un to;
        union gs_wire_message message;
        uint64_t end = side_now() + ns;
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

        run_on(1);
        side_path_of(dir, ipc_handle, &to);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
            _exit(1);
        side_greet(fd, ipc_handle + 8);
        while (side_now() < end) {
            gs_wire_start(&message, GS_WIRE_OPEN, 1);
            memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
            gs_wire_send(fd, &message, -1);
            while (recv(fd, &message, sizeof message, MSG_DONTWAIT) < 0 && errno == EAGAIN)
                continue;
            if (message.head.type != GS_WIRE_GRANT)
                _exit(2);
            gs_wire_start(&message, GS_WIRE_CLOSE, 1);
            message.close.block_id = 1;
            gs_wire_send(fd, &message, -1);
            for (uint64_t begun = side_now(); side_now() < begun + work_ns;)
                continue;
        }
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
}

static bool sleeps(void)
{
    uint64_t before = READ(calls);

    usleep(300000);
    return READ(calls) == before;
}

Test(share_spin, in_a_row_the_next_open_is_looked_for_and_afterwards_one_sleeps)
{
    bool asleep = false;

    for (int i = 0; i < 10 && (i == 0 || (looks_at_all && READ(yields) == 0)); i++)
        open_again_and_again(20000000, 40000);
    if (looks_at_all)
        cr_assert_gt(READ(looks), 0);
    usleep(400000); /* mostly the lease has ended, and its settling time is over */
    for (int i = 0; i < 10 && !asleep; i++)
        asleep = sleeps();
    cr_assert(asleep);
    if (looks_at_all)
        cr_assert_gt(READ(yields), 0, "whoever waits for its CPU waits until it sleeps");
}

/* 64 ms at once and a sixteenth of the time; the rest is for a last look. */
Test(share_spin, whoever_comes_again_and_again_gets_a_part_of_the_time)
{
    uint64_t begun = side_now(), most;

    open_again_and_again(2000000000, 60000);
    most = (side_now() - begun) / 16 + 80000000;
    cr_assert_lt(READ(looked_ns), most, "%llu ms in looking",
                 (unsigned long long)READ(looked_ns) / 1000000);
}

/* One that never answers costs its importer the time and not a CPU. */
Test(share_spin, an_importer_that_waits_for_long_sleeps)
{
    struct gs_ipc_handle silent = {.instance = "nobody", .block_id = 1, .chunk_id = 1, .size = 512};
    struct rusage before, after;
    struct sockaddr_un to;
    CUdeviceptr opened;
    uint64_t used;
    int fd;

    gs_ipc_handle_write(&silent, ipc_handle);
    side_path_of(dir, ipc_handle, &to);
    fd = side_listen(to.sun_path);
    getrusage(RUSAGE_THREAD, &before);
    cr_assert_eq(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &opened), GS_UNREACHABLE);
    getrusage(RUSAGE_THREAD, &after);
    used = (uint64_t)(after.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_utime.tv_sec -
                      before.ru_stime.tv_sec) *
               1000000 +
           (uint64_t)(after.ru_utime.tv_usec + after.ru_stime.tv_usec) -
           (uint64_t)(before.ru_utime.tv_usec + before.ru_stime.tv_usec);
    cr_assert_lt(used, 300000, "%llu us of CPU in a second", (unsigned long long)used);
    for (int i = 0; i < 5 && looks_at_all && importer_yields == 0;
         i++) /* the machine stood still */
        gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &opened);
    if (looks_at_all)
        cr_assert_gt(importer_yields, 0);
    close(fd);
}
