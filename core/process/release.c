/* Giving chunks back to the driver in the background (core/process/release.h). */
#include "core/process/release.h"

#include <time.h>

#include "core/process/context.h"
#include "core/process/reclaim.h"

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define COUNTED_NS UINT64_C(100000000)   /* the same, where it is only to be counted */
#define BEHIND_PERCENT 4 /* of what was live at most, which the background may be behind by */
#define FINISH_NS UINT64_C(1000000000) /* for the chunks that other threads are at */
#define ROOM_NS UINT64_C(20000000) /* the same, where an arena is about to hold too much beside them */

void gs_releases_init(struct gs_core *core)
{
    gs_lock_init(&core->releases.lock, GS_RANK_RELEASES);
}

void gs_releases_destroy(struct gs_core *core)
{
    gs_lock_destroy(&core->releases.lock);
}

static void leave(struct gs_releases *releases, struct gs_chunk *chunks, struct gs_chunk *last,
                  size_t bytes)
{
    gs_lock_take(&releases->lock);
    __atomic_fetch_add(&releases->bytes, bytes, __ATOMIC_SEQ_CST);
    if (releases->last)
        releases->last->next = chunks;
    else
        releases->first = chunks;
    releases->last = last;
    gs_lock_release(&releases->lock);
}

/* The oldest, to be given back by the caller. */
static struct gs_chunk *take(struct gs_releases *releases)
{
    struct gs_chunk *chunk;

    gs_lock_take(&releases->lock);
    chunk = releases->first;
    if (chunk) {
        releases->first = chunk->next;
        if (!releases->first)
            releases->last = NULL;
        chunk->next = NULL;
        __atomic_fetch_add(&releases->taken, 1, __ATOMIC_SEQ_CST);
    }
    gs_lock_release(&releases->lock);
    return chunk;
}

/* Returns the bytes; 0: there is none. */
static size_t give_one(struct gs_core *core)
{
    struct gs_chunk *chunk = take(&core->releases);
    size_t bytes;

    if (!chunk)
        return 0;
    bytes = chunk->span.size;
    gs_chunks_unmap(core, chunk);
    __atomic_fetch_sub(&core->releases.bytes, bytes, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&core->releases.taken, 1, __ATOMIC_SEQ_CST);
    return bytes;
}

void gs_releases_run(struct gs_core *core, const bool *stop)
{
    while (!__atomic_load_n(stop, __ATOMIC_SEQ_CST) && give_one(core) > 0)
        continue;
}

/* What other threads leave from now on is theirs to give back: otherwise it might go on as long as
 * they do. Those that are at a chunk end it, in a call of the driver or of a listener of the
 * program's; a second is the most that is waited for. The driver's own free would have taken as
 * long. */
size_t gs_releases_finish(struct gs_core *core)
{
    struct gs_releases *releases = &core->releases;
    struct timespec pause = {.tv_nsec = 10000};
    size_t bytes = __atomic_load_n(&releases->bytes, __ATOMIC_SEQ_CST), given = 0, one;
    uint64_t deadline;

    /* From within a release nothing is waited for, nor given back: each would come by here again. */
    if (bytes == 0 || gs_releasing_here())
        return 0;
    while (given < bytes && (one = give_one(core)) > 0)
        given += one;
    deadline = gs_now_ns() + FINISH_NS;
    while (__atomic_load_n(&releases->taken, __ATOMIC_SEQ_CST) > 0 && gs_now_ns() < deadline)
        nanosleep(&pause, NULL);
    return bytes;
}

/* Whether the arena may grow by `size` while what is left for the background is not the driver's yet: with that it
 * holds a little more than it did at some time. Other arenas are not asked. */
static bool has_room(const struct gs_core *core, const struct gs_arena *arena, size_t size)
{
    size_t more = LOAD(arena->counts.live_peak) / 100 * BEHIND_PERCENT;

    return LOAD(arena->reserved) + LOAD(core->releases.bytes) + size <=
           LOAD(arena->counts.reserved_peak) + more;
}

/* A chunk may be a third of what a program has, and the one that another thread is at is not the driver's yet.
 * That thread ends it, in a few calls of the driver where a native free makes one; 20 ms are the most that is
 * waited for, and then the arena holds more for a while. Whether it waited. */
static bool await_room(const struct gs_core *core, const struct gs_arena *arena, size_t size)
{
    const struct timespec pause = {.tv_nsec = 10000};
    const uint64_t deadline = gs_now_ns() + ROOM_NS;
    bool waited = false;

    if (gs_releasing_here()) /* it may be this thread's own */
        return false;
    while (!has_room(core, arena, size) && LOAD(core->releases.taken) > 0 && gs_now_ns() < deadline) {
        nanosleep(&pause, NULL);
        waited = true;
    }
    return waited;
}

/* How many they are; 0: there is no thread for it, and they are the driver's. */
static unsigned leave_all(struct gs_core *core, struct gs_chunk *chunks)
{
    struct gs_chunk *last = chunks;
    size_t bytes = chunks->span.size;
    unsigned count = 1;

    if (!gs_purge_is_there(core)) {
        gs_chunks_unmap(core, chunks);
        return 0;
    }
    for (; last->next; last = last->next, count++)
        bytes += last->next->span.size;
    leave(&core->releases, chunks, last, bytes);
    if (!gs_purge_release(core)) /* it has just been ended */
        gs_releases_finish(core);
    return count;
}

void gs_arena_make_room(struct gs_core *core, struct gs_arena *arena, struct gs_chunk *chunks,
                        size_t size)
{
    uint64_t began = gs_now_ns();
    unsigned left = chunks ? leave_all(core, chunks) : 0, given = 0;
    bool waited;

    gs_turn_begin(&core->releases.turn);
    while (!has_room(core, arena, size) && give_one(core) > 0)
        given++;
    gs_turn_end(&core->releases.turn);
    waited = await_room(core, arena, size);
    if (!chunks && !given && !waited)
        return;
    gs_latch_take(&arena->lock);
    GS_ADD(arena->counts.later, left > given ? left - given : 0);
    gs_arena_felt_locked(arena, gs_now_ns() - began, true);
    gs_latch_release(&arena->lock);
}

static bool is_releasing(const struct gs_core *core)
{
    return __atomic_load_n(&core->shared.releasing, __ATOMIC_SEQ_CST) > 0;
}

bool gs_releases_await(const struct gs_core *core, uint64_t limit_ns)
{
    struct timespec pause = {.tv_nsec = 20000};
    uint64_t waited = 0;
    bool any = false;

    if (gs_releasing_here()) /* one of them is this thread's */
        return false;
    while (is_releasing(core) && waited < limit_ns) {
        any = true;
        nanosleep(&pause, NULL);
        waited += (uint64_t)pause.tv_nsec;
        if (pause.tv_nsec < 1000000)
            pause.tv_nsec *= 2;
    }
    return any;
}

uint64_t gs_released_ns(const struct gs_core *core)
{
    return __atomic_load_n(&core->shared.released_ns, __ATOMIC_SEQ_CST);
}

uint64_t gs_core_finish_releases(struct gs_core *core)
{
    gs_releases_finish(core);
    gs_releases_await(core, COUNTED_NS);
    return gs_released_ns(core);
}

bool gs_core_released_since(const struct gs_core *core, uint64_t finished)
{
    return is_releasing(core) || gs_released_ns(core) != finished;
}
