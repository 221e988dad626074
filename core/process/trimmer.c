/* Idle memory goes back to the driver (core/process/trimmer.h). */
#include "core/process/trimmer.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/process/context.h"
#include "core/process/limit.h"
#include "core/process/own.h"
#include "core/process/reclaim.h"

#define WORTH_A_THREAD ((size_t)64 << 20)
#define KEPT_FIRST     ((size_t)48 << 20) /* free bytes that stay: in a context's first arena, */
#define KEPT_OTHER     ((size_t)2 << 20)  /* and in each of its others */
#define PEAK_SHARE     8                  /* of what was live lately, forgotten at each look */
#define EXIT_WAIT_MS   500

enum gs_trimmer_state {
    TRIMMER_NONE,
    TRIMMER_STARTING,
    TRIMMER_AWAKE,
    TRIMMER_ASLEEP,
    TRIMMER_CALLED, /* awake, and there is something to trim, or for neighbour.h */
    TRIMMER_STOP,
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
static bool begin(struct gs_trimmer *trimmer)
{
    __atomic_store_n(&trimmer->busy, true, __ATOMIC_SEQ_CST);
    return !__atomic_load_n(&trimmer->ending, __ATOMIC_SEQ_CST);
}

static void end(struct gs_trimmer *trimmer)
{
    __atomic_store_n(&trimmer->busy, false, __ATOMIC_SEQ_CST);
}

/* One piece of at most so many bytes (0: none), or, in any case, of what is beyond the arena's
 * limit. It is a call of the driver's each, and who asks how much is free waits for it. */
static struct gs_piece *detach_one_locked(struct gs_arena *arena, size_t most, size_t limit)
{
    struct gs_piece *piece = NULL;

    gs_latch_assert_held(&arena->lock);
    if (arena->dead || arena->leaving)
        return NULL;
    if (most > 0)
        piece = gs_arena_detach_locked(arena, 1, most);
    if (!piece && arena->free_bytes > limit)
        piece = gs_arena_detach_locked(arena, 1, SIZE_MAX);
    if (piece)
        GS_COUNT(arena->counts.later);
    return piece;
}

/* Of what an arena has beyond its target, or its limit. */
static struct gs_piece *detach_surplus(struct gs_arena *arena)
{
    GS_HOLDING_LATCH(&arena->lock);

    return detach_one_locked(arena, gs_arena_surplus_locked(arena), arena->kept.limit);
}

bool gs_trimmer_is_ending(const struct gs_core *core)
{
    return __atomic_load_n(&core->trimmer.ending, __ATOMIC_SEQ_CST);
}

void gs_trimmer_surplus(struct gs_core *core)
{
    struct gs_arena *arena = NULL;
    struct gs_piece *piece;

    if (!__atomic_exchange_n(&core->trimmer.surplus, false, __ATOMIC_SEQ_CST))
        return;
    while ((arena = gs_next_arena(core, NULL, arena)))
        while (!gs_trimmer_is_ending(core) && (piece = detach_surplus(arena)))
            gs_pieces_unmap(core, piece);
}

/* The state is set back first: what is left to the thread from then on sets it again. */
static void do_called(struct gs_core *core)
{
    struct gs_trimmer *trimmer = &core->trimmer;
    int expected = TRIMMER_CALLED;

    __atomic_compare_exchange_n(&trimmer->state, &expected, TRIMMER_AWAKE, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    if (begin(trimmer)) {
        gs_neighbour_answer(core);
        gs_trimmer_surplus(core);
    }
    end(trimmer);
}

/* May be set at any time. */
static uint64_t decay_of(const struct gs_core *core)
{
    return __atomic_load_n(&core->options.decay_ns, __ATOMIC_SEQ_CST);
}

/* Until the state is another one, `ns` are over, or they are not `decay`'s any more. Other
 * processes that ask for memory are answered meanwhile, and pieces are given back. */
static int sleep_in(struct gs_core *core, int state, uint64_t decay, uint64_t ns)
{
    struct gs_trimmer *trimmer = &core->trimmer;
    uint64_t now = gs_now_ns(), until = ns < UINT64_MAX - now ? now + ns : UINT64_MAX;
    int seen;

    for (;;) {
        seen = __atomic_load_n(&trimmer->state, __ATOMIC_SEQ_CST);
        if (seen == TRIMMER_AWAKE && seen == state && decay_of(core) != decay)
            return seen;
        if (seen == TRIMMER_CALLED && state == TRIMMER_AWAKE)
            do_called(core);
        else if (seen != state || now >= until)
            return seen;
        else
            futex_wait(&trimmer->state, state, until == UINT64_MAX ? UINT64_MAX : until - now);
        now = gs_now_ns();
    }
}

/* The arena's lock is held. What the last look saw is forgotten bit by bit, so that a peak long ago
 * does not let the arena hold more. */
static void forget_peak_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    arena->kept.live_peak -= arena->kept.live_peak / PEAK_SHARE;
    if (arena->kept.live_peak < arena->kept.live_high)
        arena->kept.live_peak = arena->kept.live_high;
    arena->kept.live_high = arena->live;
}

/* What was free all the time, piece by piece. The arena may be another context's by now. */
static bool give_idle(struct gs_core *core, struct gs_arena *arena, size_t idle)
{
    struct gs_piece *piece;
    bool any = false;

    for (size_t keep; !gs_trimmer_is_ending(core); any = true) {
        gs_latch_take(&arena->lock);
        keep = arena->first ? KEPT_FIRST : KEPT_OTHER;
        piece = detach_one_locked(arena, idle > keep ? idle : 0, SIZE_MAX);
        gs_latch_release(&arena->lock);
        if (!piece)
            break;
        idle -= piece->span.size;
        gs_pieces_unmap(core, piece);
    }
    return any;
}

/* Returns whether the arena has done anything since the last look, or may have more to give. */
static bool look_at(struct gs_core *core, struct gs_arena *arena)
{
    size_t free_before, idle;
    bool used;

    gs_latch_take(&arena->lock);
    if (arena->dead || arena->leaving) {
        gs_latch_release(&arena->lock);
        return false;
    }
    used = arena->kept.seen_hits != arena->counts.hits + arena->counts.misses;
    arena->kept.seen_hits = arena->counts.hits + arena->counts.misses;
    free_before = arena->free_bytes;
    idle = arena->kept.free_low;
    if (!used)
        gs_arena_flush_streams_locked(arena, 0);
    gs_arena_collect_locked(arena);
    used |= arena->free_bytes != free_before || arena->epochs.open.first || arena->epochs.oldest ||
            gs_arena_touched_locked(arena);
    forget_peak_locked(arena);
    used |= arena->free_bytes != arena->kept.free_low;
    arena->kept.free_low = arena->free_bytes;
    gs_latch_release(&arena->lock);
    gs_spent_unmap(core);
    return give_idle(core, arena, idle) || used;
}

static bool look(struct gs_core *core)
{
    struct gs_arena *arena = NULL;
    bool used = false;

    gs_context_trim_dead(core);
    while ((arena = gs_next_arena(core, NULL, arena))) {
        if (gs_trimmer_is_ending(core))
            return false;
        used |= look_at(core, arena);
    }
    return used;
}

static void *run(void *arg)
{
    struct gs_core *core = arg;
    struct gs_trimmer *trimmer = &core->trimmer;
    int state = TRIMMER_AWAKE;

    pthread_setname_np(pthread_self(), "gpushim-trim");
    gs_releasing_goes_after(true);
    while (state != TRIMMER_STOP) {
        uint64_t decay = decay_of(core), pause = decay / 2;
        bool used;

        if (begin(trimmer))
            gs_neighbour_join(core); /* again where it could not be before */
        end(trimmer);
        if (decay == 0) {
            state = sleep_in(core, TRIMMER_AWAKE, decay, UINT64_MAX);
            continue;
        }
        sleep_in(core, TRIMMER_AWAKE, decay, pause ? pause : 1);
        if (decay_of(core) != decay)
            continue;
        used = begin(trimmer) && look(core);
        end(trimmer);
        state = TRIMMER_AWAKE;
        if (!used && __atomic_compare_exchange_n(&trimmer->state, &state, TRIMMER_ASLEEP, false,
                                                 __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            /* What was freed after the look and before this has woken nobody. */
            if (begin(trimmer) && look(core))
                gs_trimmer_activity(core);
            end(trimmer);
            state = sleep_in(core, TRIMMER_ASLEEP, decay, UINT64_MAX);
        } else {
            state = __atomic_load_n(&trimmer->state, __ATOMIC_SEQ_CST);
        }
    }
    return NULL;
}

static size_t of_all_devices(const struct gs_core *core)
{
    size_t bytes = gs_own_bytes(core->programs.own);

    for (CUdevice device = 0; device < GS_DEVICES_MAX; device++)
        bytes += gs_limit_used(core, device);
    return bytes;
}

void gs_trimmer_grown(struct gs_core *core)
{
    struct gs_trimmer *trimmer = &core->trimmer;
    int expected = TRIMMER_NONE;

    if (__atomic_load_n(&trimmer->state, __ATOMIC_RELAXED) != TRIMMER_NONE ||
        (decay_of(core) == 0 && !core->options.neighbours) ||
        of_all_devices(core) < WORTH_A_THREAD ||
        !__atomic_compare_exchange_n(&trimmer->state, &expected, TRIMMER_STARTING, false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        return;
    /* Without a thread the arena works on and keeps what it has; another growth tries again. */
    __atomic_store_n(&trimmer->state,
                     gs_background_start(&trimmer->background, run, core) == 0 ? TRIMMER_AWAKE
                                                                               : TRIMMER_NONE,
                     __ATOMIC_SEQ_CST);
}

void gs_trimmer_activity(void *arg)
{
    struct gs_trimmer *trimmer = &((struct gs_core *)arg)->trimmer;
    int expected = TRIMMER_ASLEEP;

    if (__atomic_load_n(&trimmer->state, __ATOMIC_RELAXED) == TRIMMER_ASLEEP &&
        __atomic_compare_exchange_n(&trimmer->state, &expected, TRIMMER_AWAKE, false,
                                    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        futex_wake(&trimmer->state);
}

bool gs_trimmer_is_there(const struct gs_core *core)
{
    int state = __atomic_load_n(&core->trimmer.state, __ATOMIC_RELAXED);

    return state > TRIMMER_STARTING && state < TRIMMER_STOP && !gs_trimmer_is_ending(core);
}

static bool call(struct gs_trimmer *trimmer)
{
    int state = __atomic_load_n(&trimmer->state, __ATOMIC_SEQ_CST);

    while (state == TRIMMER_AWAKE || state == TRIMMER_ASLEEP)
        if (__atomic_compare_exchange_n(&trimmer->state, &state, TRIMMER_CALLED, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            futex_wake(&trimmer->state);
            return true;
        }
    return state == TRIMMER_CALLED;
}

bool gs_trimmer_wake(struct gs_core *core)
{
    __atomic_store_n(&core->trimmer.surplus, true, __ATOMIC_SEQ_CST);
    return gs_trimmer_is_there(core) && call(&core->trimmer);
}

bool gs_trimmer_asked(struct gs_core *core)
{
    return core->options.neighbours && gs_trimmer_is_there(core) && call(&core->trimmer);
}

bool gs_trimmer_is_this(const struct gs_core *core)
{
    int state = __atomic_load_n(&core->trimmer.state, __ATOMIC_RELAXED);

    return state > TRIMMER_STARTING && gs_background_is_this(&core->trimmer.background);
}

/* Only tests end a core: the thread comes by when it is done with the arena or the neighbour that
 * it is at. */
void gs_trimmer_stop(struct gs_core *core)
{
    struct gs_trimmer *trimmer = &core->trimmer;

    if (__atomic_load_n(&trimmer->state, __ATOMIC_SEQ_CST) == TRIMMER_NONE)
        return;
    __atomic_store_n(&trimmer->ending, true, __ATOMIC_SEQ_CST);
    __atomic_store_n(&trimmer->state, TRIMMER_STOP, __ATOMIC_SEQ_CST);
    futex_wake(&trimmer->state);
    pthread_join(trimmer->background.thread, NULL);
}

/* The thread may be in a call of the driver, which is about to be unloaded. It ends that soon, and
 * calls no more; where it does not, the process ends all the same, half a second later. */
void gs_trimmer_at_exit(struct gs_core *core)
{
    __atomic_store_n(&core->trimmer.ending, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < EXIT_WAIT_MS && __atomic_load_n(&core->trimmer.busy, __ATOMIC_SEQ_CST); i++)
        gs_rest_ns(GS_NS_PER_MS);
}
