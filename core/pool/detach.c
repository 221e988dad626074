/*
 * Chunks that leave an arena (core/pool/arena.h): which, and how many are too much. An arena holds
 * no more than a little above what was live lately, what retires apart: a chunk that is free as a
 * whole goes when a new one of another size comes. Without that, a program whose sizes change holds
 * several times what it uses.
 */
#include "core/pool/arena.h"

#define WEIGHED_NS          UINT64_C(100000000)  /* at least between two weighings */
#define LATELY_NS           UINT64_C(1600000000) /* what it cost is forgotten in */
#define COST_FORGOTTEN_NS   UINT64_C(500000000)  /* and before less is kept again */
#define COST_PART           200                  /* of the time: more is kept for what costs as much */
#define SLACK_STEP          4
#define COST_FORGOTTEN_PART 1000
#define HELD_MIN            ((size_t)64 << 20) /* live and free: below this nothing is too much */
#define LEFT_LITTLE         4 /* a device has little left below this part of its memory */

static bool may_unmap_locked(const struct gs_arena *arena, const struct gs_chunk *chunk)
{
    const struct gs_guard *guard = &arena->shared->guard;

    return guard->may_unmap(guard->arg, chunk->span.base, chunk->span.size);
}

static struct gs_chunk *chunk_of(const struct gs_bin_entry *entry)
{
    return ((const struct gs_block *)entry)->chunk;
}

/* Whether no work touches it any more. */
static bool has_passed_locked(struct gs_arena *arena, struct gs_chunk *chunk)
{
    return arena->leaving ? gs_fence_passed(&chunk->freed)
                          : gs_fence_query(&arena->events, &chunk->freed) == GS_OK;
}

/* The same of one after the other: where one is too early for the GPU, so are those after it, of
 * which it is not asked. */
static bool has_passed_too_locked(struct gs_arena *arena, struct gs_chunk *chunk,
                                  struct gs_fence *stuck)
{
    if (stuck->line && stuck->line == chunk->freed.line && stuck->number <= chunk->freed.number)
        return false;
    if (has_passed_locked(arena, chunk))
        return true;
    *stuck = chunk->freed;
    return false;
}

static struct gs_chunk *detach_locked(struct gs_arena *arena, enum gs_bin_kind kind,
                                      struct gs_bin_entry *entry, struct gs_chunk *onto)
{
    struct gs_chunk *chunk = ((struct gs_block *)entry)->chunk;

    gs_bins_remove(&arena->free.bins[kind], entry);
    gs_block_record_free_locked(arena, (struct gs_block *)entry);
    gs_map_remove(arena->shared->map, &chunk->span);
    if (chunk->next)
        chunk->next->prev = chunk->prev;
    if (chunk->prev)
        chunk->prev->next = chunk->next;
    else
        arena->chunks = chunk->next;
    __atomic_store_n(&chunk->arena, NULL, __ATOMIC_RELAXED);
    GS_SUB(arena->reserved, chunk->span.size);
    GS_SUB(arena->free_bytes, chunk->span.size);
    gs_chunk_settle_debt_locked(arena, chunk);
    if (arena->free_bytes < arena->kept.free_low)
        arena->kept.free_low = arena->free_bytes;
    GS_COUNT(arena->counts.trims);
    chunk->next = onto;
    return chunk;
}

/* From now on until its end others may wait for it. */
static void begin_release_locked(struct gs_arena *arena, struct gs_chunk *chunk)
{
    chunk->releasing = true;
    __atomic_add_fetch(&arena->shared->releasing, 1, __ATOMIC_SEQ_CST);
}

struct gs_chunk *gs_arena_detach_bytes_locked(struct gs_arena *arena, size_t bytes)
{
    static const enum gs_bin_kind kinds[] = {GS_BIN_LARGE_WHOLE, GS_BIN_SMALL_WHOLE};
    struct gs_bin_entry *staying[2] = {NULL, NULL};
    struct gs_chunk *detached = NULL;
    struct gs_fence stuck = {0};

    gs_latch_assert_held(&arena->lock);
    for (int i = 0; i < 2; i++)
        while (bytes > 0) {
            struct gs_bins *bins = &arena->free.bins[kinds[i]];
            struct gs_bin_entry *entry = gs_bins_find(bins, bytes, SIZE_MAX);

            if (!entry)
                entry = gs_bins_largest(bins);
            if (!entry)
                break;
            if (has_passed_too_locked(arena, chunk_of(entry), &stuck) &&
                may_unmap_locked(arena, chunk_of(entry))) {
                bytes -= entry->size < bytes ? entry->size : bytes;
                detached = detach_locked(arena, kinds[i], entry, detached);
                begin_release_locked(arena, detached);
                continue;
            }
            /* It is guarded, or the GPU is at it: it stays. */
            gs_bins_remove(bins, entry);
            entry->next = staying[i];
            staying[i] = entry;
        }
    for (int i = 0; i < 2; i++)
        while (staying[i]) {
            struct gs_bin_entry *next = staying[i]->next;

            gs_bins_insert(&arena->free.bins[kinds[i]], staying[i]);
            staying[i] = next;
        }
    return detached;
}

void gs_arena_spend_locked(struct gs_arena *arena, struct gs_block *block)
{
    struct gs_chunk *chunk = block->chunk;

    gs_latch_assert_held(&arena->lock);
    if (block->entry.size == chunk->span.size && may_unmap_locked(arena, chunk))
        arena->guarded.spent =
            detach_locked(arena, chunk->shift == GS_UNIT_SHIFT ? GS_BIN_SMALL_WHOLE : GS_BIN_LARGE_WHOLE,
                          &block->entry, arena->guarded.spent);
}

struct gs_chunk *gs_arena_detach_ready_locked(struct gs_arena *arena, size_t keep)
{
    gs_latch_assert_held(&arena->lock);
    if (arena->free_bytes <= keep)
        return NULL;
    gs_arena_settle_locked(arena);
    return gs_arena_detach_bytes_locked(arena, arena->free_bytes - keep);
}

void gs_arena_felt_locked(struct gs_arena *arena, uint64_t ns, bool again)
{
    gs_latch_assert_held(&arena->lock);
    GS_ADD(arena->counts.map_ns, ns);
    if (again)
        arena->kept.cost_ns += ns;
}

/* More is kept only for what has cost time for a while: at a program's start sizes have not
 * settled, whatever is kept. */
void gs_arena_weigh_locked(struct gs_arena *arena)
{
    uint64_t now = gs_now_ns(), passed = now - arena->kept.seen_ns, cost = arena->kept.cost_ns;

    gs_latch_assert_held(&arena->lock);
    if (passed < WEIGHED_NS)
        return;
    arena->kept.cost_lately -=
        arena->kept.cost_lately * (passed < LATELY_NS ? passed : LATELY_NS) / LATELY_NS;
    arena->kept.cost_lately += cost;
    if (arena->counts.live_peak > arena->kept.weighed_peak) {
        arena->kept.weighed_peak = arena->counts.live_peak;
        arena->kept.settled = 0;
    } else if (arena->kept.settled < GS_SETTLED) {
        arena->kept.settled++;
    }
    if (cost > passed / COST_PART && arena->kept.cost_lately > LATELY_NS / COST_PART) {
        unsigned percent = arena->kept.slack_percent + SLACK_STEP;

        if (percent > GS_SLACK_PERCENT_MOST)
            percent = GS_SLACK_PERCENT_MOST;
        __atomic_store_n(&arena->kept.slack_percent, percent, __ATOMIC_RELAXED);
    } else if (cost < passed / COST_FORGOTTEN_PART &&
               arena->kept.slack_percent > GS_SLACK_PERCENT_MIN && passed > COST_FORGOTTEN_NS) {
        GS_SUB(arena->kept.slack_percent, 1);
    }
    arena->kept.seen_ns = now;
    arena->kept.cost_ns = 0;
}

static size_t beyond_locked(const struct gs_arena *arena, size_t held, size_t more, size_t size)
{
    size_t peak =
        arena->kept.live_peak > arena->live + size ? arena->kept.live_peak : arena->live + size;
    size_t most = peak + peak / 100 * arena->kept.slack_percent + more;

    gs_latch_assert_held(&arena->lock);
    if (most < HELD_MIN)
        most = HELD_MIN;
    return held > most ? held - most : 0;
}

size_t gs_arena_excess_locked(const struct gs_arena *arena, size_t size)
{
    size_t held = arena->live + arena->free_bytes + gs_arena_behind_bytes_locked(arena) +
                  arena->order.bytes + size;

    return beyond_locked(arena, held, arena->kept.behind_high, size);
}

size_t gs_arena_excess_ordered_locked(const struct gs_arena *arena, size_t size)
{
    size_t held = arena->live + arena->free_bytes + arena->order.bytes + size;

    return arena->order.bytes ? beyond_locked(arena, held, 0, size) : 0;
}

/* False: it has, or that is not known yet. */
static bool has_little_left(const struct gs_arena *arena)
{
    size_t left = __atomic_load_n(&arena->shared->left[arena->device->ordinal], __ATOMIC_RELAXED);

    return left > 0 && left < arena->device->total / LEFT_LITTLE;
}

/* What is ordered goes back once the GPU has passed it. As long as much else waits for that, it is
 * of more use where it is. So it is on a device that has little left, which gets it when that is
 * full (core/process/reclaim.c): other chunks in its place were cut, until a block of 12 MiB was
 * not to be had of 14 percent that were free (a server's trace at 1.02 of what it has live, once in
 * 20 replays). */
static void retire_excess_locked(struct gs_arena *arena, size_t behind, size_t size)
{
    const unsigned percent = arena->shared->retiring_percent;
    size_t excess = gs_arena_excess_ordered_locked(arena, size);

    if (excess == 0 || has_little_left(arena) ||
        (percent > 0 && behind > arena->kept.live_peak / 100 * percent))
        return;
    gs_arena_retire_whole_locked(arena, excess);
    gs_arena_collect_locked(arena);
}

struct gs_chunk *gs_arena_detach_excess_locked(struct gs_arena *arena, size_t size)
{
    size_t behind = gs_arena_behind_bytes_locked(arena), excess;
    size_t epochs = 2 * gs_epoch_limit_locked(arena);
    struct gs_chunk *detached;

    gs_latch_assert_held(&arena->lock);
    /* What retires now is free soon, and so much will retire again; but an epoch or two are no
     * sign of a GPU that is behind. */
    if (behind > arena->kept.behind_high + epochs)
        arena->kept.behind_high = behind - epochs;
    excess = gs_arena_excess_locked(arena, size);
    detached = excess > 0 ? gs_arena_detach_bytes_locked(arena, excess) : NULL;
    retire_excess_locked(arena, behind, size);
    return detached;
}
