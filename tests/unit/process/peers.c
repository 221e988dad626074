/* What peers may touch (core/process/peers.h): all of a piece before a block of it is anybody's. */
#include <criterion/criterion.h>

#include "core/base/latch.h"
#include "core/process/context.h"
#include "core/process/peers.h"
#include "tests/children.h"
#include "tests/unit/fixture.h"

#define SIZE ((size_t)64 << 10)
#define PEER 1

/* The thread whose arena grows, and where it stands. */
static struct {
    struct fixture f;
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    sem_t creates, goes_on;
    pid_t thread;
    bool armed;
    CUdeviceptr block, other;
} grows;

/* Whether the peer may touch the piece of a block. */
static bool peer_may_touch(CUdeviceptr block)
{
    const struct gs_piece *piece;
    struct gs_arena *arena = fixture_lock_pool(&grows.f, block);
    bool may;

    piece = (const struct gs_piece *)gs_map_find(&grows.f.core->map, block);
    may = piece->peer_access >> PEER & 1;
    gs_latch_release(&arena->lock);
    return may;
}

void __real_gs_latch_wake(struct gs_latch *latch);
void __wrap_gs_latch_wake(struct gs_latch *latch);

/* The arena was let go right now: what another thread would get of it at this moment. */
void __wrap_gs_latch_wake(struct gs_latch *latch)
{
    __real_gs_latch_wake(latch);
    if (!grows.armed || gettid() != grows.thread)
        return;
    grows.armed = false;
    MUST(gs_core_alloc(grows.f.core, SIZE, &grows.other));
    cr_assert(peer_may_touch(grows.other), "a block was handed out before the peer had access");
}

static CUresult create_slowly(CUmemGenericAllocationHandle *handle, size_t size,
                              const CUmemAllocationProp *properties, unsigned long long flags)
{
    if (gettid() == grows.thread) {
        sem_post(&grows.creates);
        sem_wait(&grows.goes_on);
    }
    return grows.create(handle, size, properties, flags);
}

static void *grow(void *arg)
{
    __atomic_store_n(&grows.thread, gettid(), __ATOMIC_SEQ_CST);
    MUST(cuCtxSetCurrent(grows.f.context));
    MUST(gs_core_alloc(grows.f.core, SIZE, &grows.block));
    return NULL;
}

Test(peers, have_access_to_a_piece_before_a_block_of_it_is_handed_out, .timeout = 60)
{
    struct gs_arena *arena;
    CUdeviceptr first, released;
    pthread_t thread;

    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_options(&grows.f);
    fixture_start(&grows.f);
    MUST(gs_core_alloc(grows.f.core, SIZE, &first)); /* the arena is there, */
    MUST(gs_core_free(grows.f.core, first));
    fixture_drain(&grows.f);
    released = fixture_release(&grows.f, true); /* and has no piece */
    cr_assert_gt(released, 0);
    gs_core_mempool_access(grows.f.core, 0, PEER);
    sem_init(&grows.creates, 0, 0);
    sem_init(&grows.goes_on, 0, 0);
    grows.create = fixture_driver(&grows.f)->mem_create;
    fixture_driver(&grows.f)->mem_create = create_slowly;
    cr_assert_eq(pthread_create(&thread, NULL, grow, NULL), 0);
    sem_wait(&grows.creates);
    /* Who has slept for a latch wakes somebody as it lets go. */
    arena = fixture_home(&grows.f);
    gs_latch_take(&arena->lock);
    sem_post(&grows.goes_on);
    while (__atomic_load_n(&arena->lock.state, __ATOMIC_SEQ_CST) != 2 ||
           thread_state(getpid(), grows.thread) != 'S')
        sched_yield();
    grows.armed = true;
    gs_latch_release(&arena->lock);
    pthread_join(thread, NULL);
    cr_assert_not(grows.armed, "the moment did not come");
    cr_assert(peer_may_touch(grows.block));
    MUST(gs_core_free(grows.f.core, grows.block));
    MUST(gs_core_free(grows.f.core, grows.other));
    fixture_end(&grows.f);
}

/* So many times more the peer gets no access: its page tables find no memory. */
static struct {
    CUresult (*set)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    unsigned refusals;
} access_of;

static CUresult refuse_peer(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc,
                            size_t count)
{
    const struct gs_piece *piece;

    piece = (const struct gs_piece *)gs_map_find(&grows.f.core->map, address);
    if (desc->location.id == PEER)
        cr_assert_neq(piece->arena->lock.state, 0, "it is anybody's meanwhile");
    if (desc->location.id == PEER && access_of.refusals > 0) {
        access_of.refusals--;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return access_of.set(address, size, desc, count);
}

/* Blocks are had until they need one more piece, whose memory the peer gets no access to. */
static void is_refused(size_t size)
{
    CUdeviceptr blocks[64];
    unsigned count = 1;
    gs_status status;
    size_t used;

    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_options(&grows.f);
    fixture_start(&grows.f);
    MUST(gs_core_alloc(grows.f.core, size, &blocks[0]));
    gs_core_mempool_access(grows.f.core, 0, PEER);
    access_of.set = fixture_driver(&grows.f)->mem_set_access;
    fixture_driver(&grows.f)->mem_set_access = refuse_peer;
    access_of.refusals = UINT_MAX;
    used = grows.f.core->figures.used[0];
    while ((status = gs_core_alloc(grows.f.core, size, &blocks[count])) == GS_OK && count < 63)
        cr_assert(peer_may_touch(blocks[count++]));
    cr_assert_eq(status, GS_NO_MEMORY);
    cr_assert_eq(grows.f.core->figures.used[0], used, "a piece of no use has stayed");
    access_of.refusals = 1; /* it is tried again */
    MUST(gs_core_alloc(grows.f.core, size, &blocks[count]));
    cr_assert(peer_may_touch(blocks[count]));
    for (unsigned i = 0; i <= count; i++)
        MUST(gs_core_free(grows.f.core, blocks[i]));
    fixture_end(&grows.f);
}

Test(peers, keep_no_block_that_one_of_them_may_not_touch, .timeout = 60)
{
    is_refused((size_t)64 << 20);
}

Test(peers, keep_no_small_block_that_one_of_them_may_not_touch, .timeout = 60)
{
    is_refused((size_t)700 << 10);
}

/* Memory that is there when it is let in refuses: then what comes later is not opened to it
 * either. */
static void is_not_let_in(gs_status (*let_in)(void))
{
    const size_t size = (size_t)128 << 20;
    CUdeviceptr one, two;

    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_options(&grows.f);
    fixture_start(&grows.f);
    MUST(gs_core_alloc(grows.f.core, (size_t)64 << 20, &one));
    access_of.set = fixture_driver(&grows.f)->mem_set_access;
    fixture_driver(&grows.f)->mem_set_access = refuse_peer;
    access_of.refusals = 1;
    cr_assert_eq(let_in(), (gs_status)CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(access_of.refusals, 0);
    MUST(gs_core_alloc(grows.f.core, size, &two));
    cr_assert_not(peer_may_touch(two + size - 1), "it was let in all the same");
    MUST(let_in());
    cr_assert(peer_may_touch(one));
    cr_assert(peer_may_touch(two + size - 1));
    MUST(gs_core_free(grows.f.core, one));
    MUST(gs_core_free(grows.f.core, two));
    fixture_end(&grows.f);
}

static gs_status by_pool(void)
{
    return gs_core_mempool_access(grows.f.core, 0, PEER);
}

Test(peers, are_let_in_by_a_pool_to_all_of_it_or_refused, .timeout = 60)
{
    is_not_let_in(by_pool);
}

/* Two threads let it in at once: who comes second. */
static struct {
    CUdeviceptr block;
    pid_t thread;
    bool is_done;
} second;

static void *let_in_again(void *arg)
{
    MUST(cuCtxSetCurrent(grows.f.context));
    __atomic_store_n(&second.thread, gettid(), __ATOMIC_SEQ_CST);
    MUST(gs_core_mempool_access(grows.f.core, 0, PEER));
    __atomic_store_n(&second.is_done, true, __ATOMIC_SEQ_CST);
    cr_assert(peer_may_touch(second.block));
    return NULL;
}

/* The first is here, until the second waits: for it, or for the arena where it is done. */
static CUresult set_beside_another(CUdeviceptr address, size_t size, const CUmemAccessDesc *desc,
                                   size_t count)
{
    pthread_t thread;
    pid_t tid;

    fixture_driver(&grows.f)->mem_set_access = access_of.set;
    cr_assert_eq(pthread_create(&thread, NULL, let_in_again, NULL), 0);
    pthread_detach(thread);
    while ((tid = __atomic_load_n(&second.thread, __ATOMIC_SEQ_CST)) == 0 ||
           thread_state(getpid(), tid) != 'S')
        sched_yield();
    cr_assert_not(__atomic_load_n(&second.is_done, __ATOMIC_SEQ_CST),
                  "the second was told that it is done");
    return access_of.set(address, size, desc, count);
}

Test(peers, are_let_in_when_the_second_thread_goes_on_too, .timeout = 60)
{
    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_options(&grows.f);
    fixture_start(&grows.f);
    MUST(gs_core_alloc(grows.f.core, SIZE, &second.block));
    access_of.set = fixture_driver(&grows.f)->mem_set_access;
    fixture_driver(&grows.f)->mem_set_access = set_beside_another;
    MUST(by_pool());
    while (!__atomic_load_n(&second.is_done, __ATOMIC_SEQ_CST))
        sched_yield();
    MUST(gs_core_free(grows.f.core, second.block));
    fixture_end(&grows.f);
}

static gs_status by_context(void)
{
    CUcontext other, popped;
    gs_status status;

    MUST(cuDevicePrimaryCtxRetain(&other, PEER));
    MUST(cuCtxPushCurrent(other));
    status = gs_core_peer_enabled(grows.f.core, grows.f.context);
    MUST(cuCtxPopCurrent(&popped));
    return status;
}

Test(peers, are_let_in_by_a_context_to_all_of_it_or_refused, .timeout = 60)
{
    is_not_let_in(by_context);
}

/* As the driver does, which says what is wrong with that. */
Test(peers, are_devices, .timeout = 60)
{
    setenv("SOFTCUDA_DEVICES", "2", 1);
    fixture_options(&grows.f);
    fixture_start(&grows.f);
    MUST(gs_core_alloc(grows.f.core, SIZE, &grows.block));
    MUST(gs_core_mempool_access(grows.f.core, 0, GS_DEVICES_MAX));
    MUST(gs_core_mempool_access(grows.f.core, GS_DEVICES_MAX, PEER));
    MUST(gs_core_mempool_access(grows.f.core, 0, -1));
    MUST(gs_core_mempool_access(grows.f.core, -1, PEER));
    cr_assert_eq(gs_peers_of(grows.f.core, 0), 0);
    MUST(gs_core_free(grows.f.core, grows.block));
    fixture_end(&grows.f);
}
