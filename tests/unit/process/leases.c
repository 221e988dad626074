/* Blocks that the program has freed and others still hold come back by themselves: nobody has to
 * allocate, free or ask for it. Who runs out of memory waits for those of the same GPU. */
#include <criterion/criterion.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/reclaim.h"
#include "core/share/exporter.h"
#include "core/share/wire.h"
#include "core/process/stats.h"
#include "tests/unit/fixture.h"
#include "tests/driver/softcuda.h"

#define TRIES 20000 /* looks of a millisecond */

static struct fixture f;
static struct gs_context *context;
static int client;
static char dir[64];

/* Of the test's thread: how often it waits for others. Atomic. */
static _Thread_local unsigned waits;

int __real_pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *mutex,
                                  const struct timespec *until);
/* TSan's library, which has one of its own, links only with one that can be seen. */
__attribute__((visibility("default"))) int
__wrap_pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *mutex,
                              const struct timespec *until);

int __wrap_pthread_cond_timedwait(pthread_cond_t *changed, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    __atomic_add_fetch(&waits, 1, __ATOMIC_RELAXED);
    return __real_pthread_cond_timedwait(changed, mutex, until);
}

static void start(uint64_t grace_ns)
{
    snprintf(dir, sizeof dir, "/tmp/gpushim-leases-%d", (int)getpid());
    fixture_options(&f);
    f.options.decay_ns = 3600 * 1000 * MS; /* it gives nothing back meanwhile */
    f.options.cross = false;               /* its importers, by hand, take a descriptor */
    f.options.share.enable = true;
    f.options.share.grace_ns = f.options.share.grace_least_ns = grace_ns;
    snprintf(f.options.share.dir, sizeof f.options.share.dir, "%s", dir);
    fixture_start(&f);
}

static void end(void)
{
    fixture_end(&f);
    rmdir(dir);
}

static CUdeviceptr must_share(unsigned char *ret_ipc_handle)
{
    CUdeviceptr address;

    MUST(gs_core_alloc(f.core, 8 * MIB, &address));
    MUST(gs_core_ipc_handle(f.core, address, ret_ipc_handle));
    MUST(gs_context_current(f.core, &context));
    return address;
}

/* Another process opens the block, by hand. */
static uint64_t must_open(const unsigned char *ipc_handle)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    union gs_wire_message message;
    struct gs_wire_fds fds;
    int received;

    snprintf(to.sun_path, sizeof to.sun_path, "%s/", dir);
    for (unsigned i = 0; i < GS_INSTANCE_SIZE; i++)
        sprintf(to.sun_path + strlen(to.sun_path), "%02x", ipc_handle[8 + i]);
    client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(client, (struct sockaddr *)&to, sizeof to), 0);
    gs_wire_start(&message, GS_WIRE_HELLO, 0);
    memcpy(message.hello.instance, ipc_handle + 8, GS_INSTANCE_SIZE);
    cr_assert_eq(gs_wire_send(client, &message, -1), 0);
    gs_wire_start(&message, GS_WIRE_OPEN, 1);
    memcpy(message.open.ipc_handle, ipc_handle, GS_IPC_HANDLE_SIZE);
    message.open.want_fd = 1;
    cr_assert_eq(gs_wire_send(client, &message, -1), 0);
    while ((received = gs_wire_receive_all(client, &message, &fds)) == -EAGAIN)
        usleep(500);
    cr_assert_eq(received, 0);
    cr_assert_eq(message.head.type, GS_WIRE_GRANT);
    cr_assert_eq(fds.count, 1);
    close(fds.fd[0]);
    return message.grant.block_id;
}

static void give_back(uint64_t block_id)
{
    union gs_wire_message message;

    gs_wire_start(&message, GS_WIRE_CLOSE, 1);
    message.close.block_id = block_id;
    cr_assert_eq(gs_wire_send(client, &message, -1), 0);
}

/* Of the arenas of large blocks: the figure alone, which nothing is done for. */
static size_t limbo(void)
{
    size_t bytes = 0;

    for (unsigned i = 0; i < GS_CONTEXT_ARENAS; i++) {
        if (!context->arenas[i])
            continue;
        gs_latch_take(&context->arenas[i]->lock);
        bytes += context->arenas[i]->held;
        gs_latch_release(&context->arenas[i]->lock);
    }
    return bytes;
}

static bool leaves_limbo(void)
{
    for (int i = 0; i < TRIES && limbo() > 0; i++)
        usleep(1000);
    return limbo() == 0;
}

static unsigned long long device_bytes(void)
{
    struct softcuda_census census;

    softcuda_census(&census);
    return census.device_bytes;
}

/* Frees it, and it is held, or free. */
static void free_now(CUdeviceptr address)
{
    MUST(gs_core_free(f.core, address));
    MUST(cuCtxSynchronize());
    gs_core_cached(f.core);
}

static void must_free(CUdeviceptr address)
{
    free_now(address);
    cr_assert_eq(limbo(), 8 * MIB);
}

/* Allocates in the current context until there is no more, which is looked for everywhere. */
static void fill_device(size_t size)
{
    CUdeviceptr address;

    while (gs_core_alloc(f.core, size, &address) == GS_OK)
        continue;
}

Test(leases, a_full_gpu_does_not_wait_for_what_others_hold_of_another)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address;
    uint64_t block_id;
    CUcontext second;

    setenv("SOFTCUDA_DEVICES", "2", 1);
    setenv("SOFTCUDA_MEMORY", "96M", 1);
    start(0);
    address = must_share(ipc_handle);
    block_id = must_open(ipc_handle);
    MUST(cuDevicePrimaryCtxRetain(&second, 1));
    MUST(cuCtxSetCurrent(second));
    fill_device(32 * MIB);
    MUST(cuCtxSetCurrent(f.context));
    must_free(address);
    MUST(cuCtxSetCurrent(second));
    waits = 0;
    fill_device(32 * MIB);
    gs_core_make_room(f.core, 1, MIB, &(unsigned){1});
    cr_assert_eq(waits, 0);
    gs_core_make_room(f.core, 0, MIB, &(unsigned){1});
    cr_assert_gt(waits, 0, "that GPU's own is waited for");
    MUST(cuCtxSetCurrent(f.context));
    give_back(block_id);
    cr_assert(leaves_limbo());
    close(client);
    gs_core_destroy(f.core);
    MUST(cuDevicePrimaryCtxRelease(1));
    rmdir(dir);
}

/* Without the library that memory would be there. */
Test(leases, on_a_full_gpu_the_grace_of_what_nobody_opened_is_over)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    CUdeviceptr address, again;

    setenv("SOFTCUDA_MEMORY", "96M", 1);
    start(3600 * 1000 * MS);
    address = must_share(ipc_handle);
    fill_device(32 * MIB);
    fill_device(2 * MIB);
    must_free(address);
    MUST(gs_core_alloc(f.core, 8 * MIB, &again));
    cr_assert_eq(again, address);
    gs_core_destroy(f.core);
    rmdir(dir);
}

/* Where less is enough. */
Test(leases, a_full_gpu_gives_what_lies_idle_before_a_grace_ends)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    size_t left, total;

    setenv("SOFTCUDA_MEMORY", "96M", 1);
    start(3600 * 1000 * MS);
    must_free(must_share(ipc_handle));
    free_now(must_alloc(&f, 512));
    MUST(cuMemGetInfo(&left, &total));
    must_alloc(&f, left / (2 * MIB) * (2 * MIB) + 2 * MIB);
    cr_assert_eq(limbo(), 8 * MIB);
    gs_core_destroy(f.core);
    rmdir(dir);
}

Test(leases, a_block_that_nobody_opened_leaves_limbo_when_its_grace_is_over)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    start(300 * MS);
    must_free(must_share(ipc_handle));
    cr_assert(leaves_limbo());
    cr_assert_eq(fixture_arena(&f).free_bytes, fixture_arena(&f).reserved);
    end();
}

/* The next context has a record of its own until then. */
Test(leases, the_memory_of_a_context_that_has_gone_goes_with_the_last_lease)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_context *next;
    CUcontext handle;
    uint64_t block_id;

    start(0);
    handle = fixture_context_new();
    must_share(ipc_handle);
    block_id = must_open(ipc_handle);
    fixture_context_end(&f, handle);
    cr_assert_eq(device_bytes(), 8 * MIB);
    handle = fixture_context_new();
    must_alloc(&f, 8 * MIB);
    MUST(gs_context_current(f.core, &next));
    cr_assert_neq(next, context);
    cr_assert_eq(f.core->gone.dead, 1);
    fixture_context_end(&f, handle);
    give_back(block_id);
    for (int i = 0; i < TRIES && device_bytes() > 0; i++)
        usleep(1000);
    cr_assert_eq(device_bytes(), 0);
    gs_context_trim_dead(f.core);
    cr_assert_eq(f.core->gone.dead, 0);
    cr_assert(context->spare);
    close(client);
    MUST(cuCtxSetCurrent(f.context));
    end();
}

#define EXPORTS 64

/* Each of them would take new memory, until the GPU is full. */
Test(leases, what_nobody_opens_takes_a_part_of_the_gpu_alone)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    setenv("SOFTCUDA_MEMORY", "1G", 1);
    start(3600 * 1000 * MS);
    f.core->share->options.grace_least_ns = 0;
    for (int i = 0; i < EXPORTS; i++) {
        free_now(must_share(ipc_handle));
        gs_graces_tick(f.core->share, gs_now_ns());
        gs_share_tell(f.core->share);
    }
    cr_assert_geq(limbo(), 96 * MIB, "an eighth of 1 GiB");
    cr_assert_leq(fixture_arena(&f).reserved, 192 * MIB);
    gs_core_destroy(f.core);
    rmdir(dir);
}

Test(leases, the_driver_has_what_nobody_opened_where_it_is_waited_for)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];

    start(3600 * 1000 * MS);
    must_free(must_share(ipc_handle));
    cr_assert_eq(fixture_release(&f, false), 0);
    cr_assert_eq(limbo(), 8 * MIB);
    cr_assert_geq(fixture_release(&f, true), 8 * MIB);
    cr_assert_eq(limbo(), 0);
    end();
}

Test(leases, another_process_has_what_waited_longer_than_it_must)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    const struct gs_device *device;

    start(3600 * 1000 * MS);
    must_free(must_share(ipc_handle));
    device = &f.core->device[0];
    cr_assert_gt(limbo(), 0);
    gs_device_yield(f.core, device, 8 * MIB);
    cr_assert_gt(limbo(), 0, "it must wait");
    f.core->share->options.grace_least_ns = 0;
    cr_assert_geq(gs_device_yield(f.core, device, 8 * MIB), 8 * MIB);
    cr_assert_eq(limbo(), 0);
    end();
}

Test(leases, a_process_that_sleeps_keeps_nothing_that_waited_longer_than_it_must)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_sleep_why why;

    start(3600 * 1000 * MS);
    must_free(must_share(ipc_handle));
    f.core->share->options.grace_least_ns = 0;
    cr_assert(gs_core_sleep(f.core, NULL, NULL, gs_now_ns() + 10000 * MS, &why), "%s", why.text);
    cr_assert_eq(f.core->sleep.figures.stays[GS_STAYS_SHARED], 0);
    cr_assert_eq(f.core->sleep.figures.copied, 0);
    MUST(!gs_core_wake(f.core, gs_now_ns() + 10000 * MS, &why));
    end();
}

/* Who has it ends that by an allocation that would fail. */
Test(leases, what_waits_for_others_to_come_counts_as_free)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    size_t left, total, free_bytes, all;
    CUdeviceptr address;
    uint64_t block_id;

    setenv("SOFTCUDA_MEMORY", "256M", 1);
    start(3600 * 1000 * MS);
    address = must_share(ipc_handle);
    MUST(cuMemGetInfo(&left, &total));
    must_free(address);
    cr_assert_eq(gs_core_cached(f.core), fixture_arena(&f).reserved);
    cr_assert_eq(gs_limit_left(f.core, 0), left + fixture_arena(&f).reserved);
    f.core->options.limit.bytes = 64 * MIB;
    free_bytes = all = total;
    gs_core_bound(f.core, 0, &free_bytes, &all);
    cr_assert_eq(free_bytes, 64 * MIB);
    block_id = must_open(ipc_handle);
    cr_assert_eq(gs_core_cached(f.core), fixture_arena(&f).reserved - 8 * MIB,
                 "another process has it");
    give_back(block_id);
    cr_assert(leaves_limbo());
    cr_assert_eq(gs_core_cached(f.core), fixture_arena(&f).reserved);
    close(client);
    end();
}

/* What the driver has left, and what is free here. */
Test(leases, what_is_left_is_what_could_be_allocated)
{
    size_t left, total;
    CUdeviceptr address;

    setenv("SOFTCUDA_MEMORY", "256M", 1);
    start(0);
    cr_assert_eq(gs_limit_left(f.core, 1), 0, "there is no such device");
    MUST(gs_core_alloc(f.core, 40 * MIB, &address));
    MUST(cuMemGetInfo(&left, &total));
    cr_assert_eq(gs_limit_left(f.core, 0), left + fixture_arena(&f).free_bytes);
    free_now(address);
    cr_assert_eq(gs_limit_left(f.core, 0), left + fixture_arena(&f).reserved);
    f.core->options.limit.bytes = 64 * MIB;
    cr_assert_eq(gs_limit_left(f.core, 0), 64 * MIB);
    f.core->options.limit.bytes = 0;
    softcuda_fail("cuMemGetInfo", 0, CUDA_ERROR_LAUNCH_FAILED);
    cr_assert_eq(gs_limit_left(f.core, 0), fixture_arena(&f).reserved);
    softcuda_reset();
    end();
}

/* The GPU still works on one of two that others hold, and on one that nobody has. */
Test(leases, what_others_hold_is_in_limbo_though_the_gpu_works_on_it)
{
    unsigned char ipc_handle[GS_IPC_HANDLE_SIZE];
    struct gs_figures figures;
    CUdeviceptr block[2];
    int first;

    start(0);
    block[0] = must_share(ipc_handle);
    must_open(ipc_handle);
    first = client;
    must_free(block[0]);
    block[0] = must_share(ipc_handle);
    must_open(ipc_handle);
    MUST(gs_core_alloc(f.core, 40 * MIB, &block[1]));
    softcuda_hold(1);
    for (int i = 0; i < 2; i++) {
        MUST(cuMemsetD8Async(block[i], 1, 4096, f.stream));
        MUST(gs_core_free(f.core, block[i]));
    }
    cr_assert(gs_stats_tell(f.core, 0, &figures));
    cr_assert_eq(figures.limbo, 16 * MIB);
    cr_assert_eq(figures.retired, 40 * MIB);
    softcuda_hold(0);
    close(first);
    close(client);
    end();
}
