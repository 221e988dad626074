/* Idle memory goes back to the driver (core/process/decay.h). */
#include "core/process/decay.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/process/context.h"
#include "core/process/reclaim.h"

#define WORTH_A_THREAD ((size_t)64 << 20)
#define KEPT_FIRST ((size_t)48 << 20) /* ready bytes that stay: in a context's first pool, */
#define KEPT_OTHER ((size_t)2 << 20)  /* and in each of its others */
#define PEAK_SHARE 8                  /* of what was live lately, forgotten at each look */
#define EXIT_WAIT_MS 500

enum gs_decay_state {
    DECAY_NONE,
    DECAY_STARTING,
    DECAY_AWAKE,
    DECAY_ASLEEP,
    DECAY_CALLED, /* awake, and there is something for core/process/release.h, or neighbour.h */
    DECAY_STOP,
};

static void futex_wait(int *word, int expected, uint64_t ns)
{
    const struct timespec time = {(time_t)(ns / GS_NS_PER_S), (long)(ns % GS_NS_PER_S)};

    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, ns < UINT64_MAX ? &time : NULL, NULL, 0);
}

static void futex_wake(int *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Begins what may call the driver; false: the process exits. Ended by setting `busy` to false. */
static bool begin(struct gs_decay *decay)
{
    __atomic_store_n(&decay->busy, true, __ATOMIC_SEQ_CST);
    return !__atomic_load_n(&decay->ending, __ATOMIC_SEQ_CST);
}

static void end(struct gs_decay *decay)
{
    __atomic_store_n(&decay->busy, false, __ATOMIC_SEQ_CST);
}

/* The state is set back first: what is left to the thread from then on sets it again. */
static void do_called(struct gs_core *core)
{
    struct gs_decay *decay = &core->decay;
    int expected = DECAY_CALLED;

    __atomic_compare_exchange_n(&decay->state, &expected, DECAY_AWAKE, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    if (begin(decay)) {
        gs_neighbour_answer(core); /* others wait for it */
        gs_releases_run(core, &decay->ending);
    }
    end(decay);
}

/* Until the state is another one or `ns` are over. Other processes that ask for memory are answered
 * meanwhile, and chunks are given back. */
static int sleep_in(struct gs_core *core, int state, uint64_t ns)
{
    struct gs_decay *decay = &core->decay;
    uint64_t now = gs_now_ns(), until = ns < UINT64_MAX - now ? now + ns : UINT64_MAX;
    int seen;

    for (;;) {
        seen = __atomic_load_n(&decay->state, __ATOMIC_SEQ_CST);
        if (seen == DECAY_CALLED && state == DECAY_AWAKE)
            do_called(core);
        else if (seen != state || now >= until)
            return seen;
        else
            futex_wait(&decay->state, state, until == UINT64_MAX ? UINT64_MAX : until - now);
        now = gs_now_ns();
    }
}

/* The pool's lock is held. What the last look saw is forgotten bit by bit, so that a peak long ago
 * does not let the pool hold more. */
static void forget_peak(struct gs_pool *pool)
{
    pool->kept.live_peak -= pool->kept.live_peak / PEAK_SHARE;
    if (pool->kept.live_peak < pool->kept.live_high)
        pool->kept.live_peak = pool->kept.live_high;
    pool->kept.live_high = pool->live;
    pool->kept.behind_high -= pool->kept.behind_high / PEAK_SHARE;
}

/* Returns whether the pool has done anything since the last look, or may have more to give. */
static bool look_at(struct gs_core *core, struct gs_pool *pool)
{
    struct gs_chunk *chunks = NULL;
    size_t ready_before, idle, keep;
    bool used;

    gs_latch_take(&pool->lock);
    if (pool->dead || pool->leaving) {
        gs_latch_release(&pool->lock);
        return false;
    }
    used = pool->kept.seen_hits != pool->counts.hits + pool->counts.misses;
    pool->kept.seen_hits = pool->counts.hits + pool->counts.misses;
    ready_before = pool->ready;
    idle = pool->kept.ready_low;
    keep = pool->first ? KEPT_FIRST : KEPT_OTHER;
    if (!used)
        gs_pool_flush_streams(pool, 0);
    gs_pool_collect(pool);
    used |= pool->ready != ready_before || pool->epochs.open.first || pool->epochs.oldest ||
            pool->order.apart || gs_pool_touched(pool);
    if (idle > keep) {
        gs_pool_settle(pool);
        chunks = gs_pool_detach_ready(pool, pool->ready - (idle - keep));
    }
    forget_peak(pool);
    gs_pool_weigh(pool);
    used |= pool->ready != pool->kept.ready_low;
    pool->kept.ready_low = pool->ready;
    gs_latch_release(&pool->lock);
    if (core->shared.wipe)
        gs_pool_wipe(core, pool);
    return gs_chunks_release(core, chunks) > 0 || used;
}

static bool look(struct gs_core *core)
{
    struct gs_pool *pools[GS_POOLS_MAX];
    bool used = gs_context_bury_dead(core);
    unsigned count = gs_pools_of(core, NULL, pools);

    for (unsigned i = 0; i < count; i++) {
        if (__atomic_load_n(&core->decay.ending, __ATOMIC_SEQ_CST))
            return false;
        used |= look_at(core, pools[i]);
    }
    return used;
}

static void *run(void *arg)
{
    struct gs_core *core = arg;
    struct gs_decay *decay = &core->decay;
    uint64_t pause = core->options.decay_ns / 2;
    int state = DECAY_AWAKE;

    pthread_setname_np(pthread_self(), "gpushim-decay");
    if (begin(decay))
        gs_neighbour_join(core);
    end(decay);
    while (state != DECAY_STOP) {
        bool used;

        if (core->options.decay_ns == 0) {
            state = sleep_in(core, DECAY_AWAKE, UINT64_MAX);
            continue;
        }
        sleep_in(core, DECAY_AWAKE, pause ? pause : 1);
        if (begin(decay))
            gs_neighbour_join(core); /* where it could not be before */
        used = begin(decay) && look(core);
        end(decay);
        state = DECAY_AWAKE;
        if (!used && __atomic_compare_exchange_n(&decay->state, &state, DECAY_ASLEEP, false,
                                                 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            /* What was freed after the look and before this has woken nobody. */
            if (begin(decay) && look(core))
                gs_decay_activity(core);
            end(decay);
            state = sleep_in(core, DECAY_ASLEEP, UINT64_MAX);
        } else {
            state = __atomic_load_n(&decay->state, __ATOMIC_SEQ_CST);
        }
    }
    return NULL;
}

void gs_decay_grown(struct gs_core *core, size_t reserved)
{
    struct gs_decay *decay = &core->decay;
    int expected = DECAY_NONE;

    if (reserved < WORTH_A_THREAD ||
        (core->options.decay_ns == 0 && !core->options.neighbours) ||
        __atomic_load_n(&decay->state, __ATOMIC_RELAXED) != DECAY_NONE ||
        !__atomic_compare_exchange_n(&decay->state, &expected, DECAY_STARTING, false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    /* Without a thread the pool works on and keeps what it has; another growth tries again. */
    __atomic_store_n(&decay->state,
                     gs_background_start(&decay->background, run, core) == 0 ? DECAY_AWAKE
                                                                             : DECAY_NONE,
                     __ATOMIC_SEQ_CST);
}

void gs_decay_activity(void *arg)
{
    struct gs_decay *decay = &((struct gs_core *)arg)->decay;
    int expected = DECAY_ASLEEP;

    if (__atomic_load_n(&decay->state, __ATOMIC_RELAXED) == DECAY_ASLEEP &&
        __atomic_compare_exchange_n(&decay->state, &expected, DECAY_AWAKE, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
        futex_wake(&decay->state);
}

bool gs_decay_is_there(struct gs_core *core)
{
    int state = __atomic_load_n(&core->decay.state, __ATOMIC_RELAXED);

    return state > DECAY_STARTING && state < DECAY_STOP &&
           !__atomic_load_n(&core->decay.ending, __ATOMIC_RELAXED);
}

static bool call(struct gs_decay *decay)
{
    int state = __atomic_load_n(&decay->state, __ATOMIC_SEQ_CST);

    while (state == DECAY_AWAKE || state == DECAY_ASLEEP)
        if (__atomic_compare_exchange_n(&decay->state, &state, DECAY_CALLED, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            futex_wake(&decay->state);
            return true;
        }
    return state == DECAY_CALLED;
}

bool gs_decay_release(struct gs_core *core)
{
    return call(&core->decay);
}

bool gs_decay_asked(void *arg)
{
    struct gs_core *core = arg;

    return core->options.neighbours && gs_decay_is_there(core) && call(&core->decay);
}

bool gs_decay_is_this(const struct gs_core *core)
{
    int state = __atomic_load_n(&core->decay.state, __ATOMIC_RELAXED);

    return state > DECAY_STARTING && gs_background_is_this(&core->decay.background);
}

/* Only tests end a core: the thread comes by when it is done with the pool or the neighbour that it
 * is at. */
void gs_decay_stop(struct gs_core *core)
{
    struct gs_decay *decay = &core->decay;

    if (__atomic_load_n(&decay->state, __ATOMIC_SEQ_CST) == DECAY_NONE)
        return;
    __atomic_store_n(&decay->ending, true, __ATOMIC_SEQ_CST);
    __atomic_store_n(&decay->state, DECAY_STOP, __ATOMIC_SEQ_CST);
    futex_wake(&decay->state);
    pthread_join(decay->background.thread, NULL);
}

/* The thread may be in a call of the driver, which is about to be unloaded. It ends that soon, and
 * calls no more; where it does not, the process ends all the same, half a second later. */
void gs_decay_at_exit(struct gs_core *core)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    __atomic_store_n(&core->decay.ending, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < EXIT_WAIT_MS && __atomic_load_n(&core->decay.busy, __ATOMIC_SEQ_CST); i++)
        nanosleep(&pause, NULL);
}
