/* Idle memory goes back to the driver (core/process/trimmer.h). */
#include "core/process/trimmer.h"

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

enum { TRIMMER_NONE, TRIMMER_STARTING, TRIMMER_RUNS, TRIMMER_STOPS };

static void wake(struct gs_trimmer *trimmer)
{
    __atomic_add_fetch(&trimmer->wakes, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &trimmer->wakes, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Until it was woken more often, or that time. */
static void sleep_until(struct gs_trimmer *trimmer, int wakes, uint64_t until_ns)
{
    const uint64_t now = gs_now_ns(), ns = until_ns > now ? until_ns - now : 0;
    const struct timespec time = {(time_t)(ns / GS_NS_PER_S), (long)(ns % GS_NS_PER_S)};

    syscall(SYS_futex, &trimmer->wakes, FUTEX_WAIT_PRIVATE, wakes,
            until_ns < UINT64_MAX ? &time : NULL, NULL, 0);
}

/* One piece of what was `idle`, or of what the arena has beyond its target (NULL), or, in any case,
 * beyond its limit. The arena may be another context's by now. */
static struct gs_piece *detach_one(struct gs_arena *arena, const size_t *idle)
{
    const size_t keep = arena->first ? KEPT_FIRST : KEPT_OTHER;
    struct gs_piece *piece = NULL;
    size_t most;
    GS_HOLDING_LATCH(&arena->lock);

    if (arena->dead || arena->leaving)
        return NULL;
    most = !idle ? gs_arena_surplus_locked(arena) : *idle > keep ? *idle : 0;
    if (most > 0)
        piece = gs_arena_detach_locked(arena, 1, most);
    if (!piece && arena->free_bytes > arena->kept.limit)
        piece = gs_arena_detach_locked(arena, 1, SIZE_MAX);
    if (piece)
        GS_COUNT(arena->counts.later);
    return piece;
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
        while (!gs_trimmer_is_ending(core) && (piece = detach_one(arena, NULL)))
            gs_pieces_unmap(core, piece);
}

/* May be set at any time. */
static uint64_t decay_of(const struct gs_core *core)
{
    return __atomic_load_n(&core->options.decay_ns, __ATOMIC_SEQ_CST);
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

/* What was free all the time, piece by piece: each is a call of the driver's, and who asks how much
 * is free waits for it. */
static bool give_idle(struct gs_core *core, struct gs_arena *arena, size_t idle)
{
    struct gs_piece *piece;
    bool any = false;

    for (; !gs_trimmer_is_ending(core) && (piece = detach_one(arena, &idle)); any = true) {
        idle -= piece->span.size < idle ? piece->span.size : idle;
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
        gs_arena_flush_streams_locked(arena, 0, 0);
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

/* What is freed from here on ends the sleep that comes of it. */
static void look_once(struct gs_core *core)
{
    __atomic_store_n(&core->trimmer.idle, true, __ATOMIC_SEQ_CST);
    if (look(core))
        __atomic_store_n(&core->trimmer.idle, false, __ATOMIC_SEQ_CST);
}

static void *run(void *arg)
{
    struct gs_core *core = arg;
    struct gs_trimmer *trimmer = &core->trimmer;
    uint64_t decay = 0, look_ns = UINT64_MAX;

    pthread_setname_np(pthread_self(), "gpushim-trim");
    gs_releasing_goes_after(true);
    while (__atomic_load_n(&trimmer->state, __ATOMIC_SEQ_CST) != TRIMMER_STOPS) {
        const int wakes = __atomic_load_n(&trimmer->wakes, __ATOMIC_SEQ_CST);

        __atomic_store_n(&trimmer->busy, true, __ATOMIC_SEQ_CST);
        if (!gs_trimmer_is_ending(core)) {
            gs_neighbour_join(core); /* again where it could not be before */
            gs_neighbour_answer(core);
            gs_trimmer_surplus(core);
            if (gs_now_ns() >= look_ns) {
                look_once(core);
                look_ns = UINT64_MAX;
            }
            if (decay_of(core) != decay ||
                (look_ns == UINT64_MAX && !__atomic_load_n(&trimmer->idle, __ATOMIC_SEQ_CST))) {
                decay = decay_of(core);
                look_ns = decay ? gs_now_ns() + decay / 2 : UINT64_MAX;
            }
        } else
            look_ns = UINT64_MAX; /* the process exits, and with it the thread */
        __atomic_store_n(&trimmer->busy, false, __ATOMIC_SEQ_CST);
        sleep_until(trimmer, wakes, look_ns);
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
                     gs_background_start(&trimmer->background, run, core) == 0 ? TRIMMER_RUNS
                                                                               : TRIMMER_NONE,
                     __ATOMIC_SEQ_CST);
}

void gs_trimmer_activity(void *arg)
{
    struct gs_trimmer *trimmer = &((struct gs_core *)arg)->trimmer;

    if (__atomic_load_n(&trimmer->idle, __ATOMIC_RELAXED) &&
        __atomic_exchange_n(&trimmer->idle, false, __ATOMIC_SEQ_CST))
        wake(trimmer);
}

static bool runs(const struct gs_core *core)
{
    return __atomic_load_n(&core->trimmer.state, __ATOMIC_SEQ_CST) == TRIMMER_RUNS;
}

bool gs_trimmer_is_there(const struct gs_core *core)
{
    return runs(core) && !gs_trimmer_is_ending(core);
}

bool gs_trimmer_wake(struct gs_core *core)
{
    __atomic_store_n(&core->trimmer.surplus, true, __ATOMIC_SEQ_CST);
    if (!gs_trimmer_is_there(core))
        return false;
    wake(&core->trimmer);
    return true;
}

bool gs_trimmer_is_this(const struct gs_core *core)
{
    return runs(core) && gs_background_is_this(&core->trimmer.background);
}

/* Only tests end a core: the thread comes by when it is done with the arena or the neighbour that
 * it is at. */
void gs_trimmer_stop(struct gs_core *core)
{
    if (!runs(core))
        return;
    __atomic_store_n(&core->trimmer.ending, true, __ATOMIC_SEQ_CST);
    __atomic_store_n(&core->trimmer.state, TRIMMER_STOPS, __ATOMIC_SEQ_CST);
    wake(&core->trimmer);
    gs_background_join(&core->trimmer.background);
}

/* The thread may be in a call of the driver, which is about to be unloaded. It ends that soon, and
 * calls no more; where it does not, the process ends all the same, half a second later. */
void gs_trimmer_at_exit(struct gs_core *core)
{
    __atomic_store_n(&core->trimmer.ending, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < EXIT_WAIT_MS && __atomic_load_n(&core->trimmer.busy, __ATOMIC_SEQ_CST); i++)
        gs_rest_ns(GS_NS_PER_MS);
}
