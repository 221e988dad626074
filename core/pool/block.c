/*
 * Blocks within chunks (core/pool/arena.h): cutting, merging, taking, and what may lie beside what.
 */
#include "core/pool/arena.h"

#include <stdlib.h>
#include <string.h>

#define IDS_AT_ONCE 65536 /* so seldom do arenas write what others read */
#define QUICK_BYTES_MIN ((size_t)4 << 20) /* what may lie unmerged, and */
#define QUICK_SHARE 64                     /* this part of what is live */
#define POLLED_ONCE_IN 8 /* small allocations that no quick list serves */
/* What may be fragmented: the larger of the first and a part of what was live lately. */
#define FRAGMENTED_MIN ((size_t)16 << 20)
#define FRAGMENTED_PERCENT 8
#define FRAGMENTED_EACH ((size_t)96 << 20) /* by one block, which may stay when the program is idle */
#define FRAGMENTED_PER_SLACK 2 /* percent more for one more of slack_percent */
#define WASTE_SHARE 64 /* of a device's memory, what its chunks may owe: 1.6 percent, */
#define WASTE_LEFT 2   /* and less where the device has not much left: this part of that; */
#define WASTE_COSTS 4  /* but up to this part of what is spare where chunks cost time lately, */
#define WASTE_SETTLED 2 /* while the program has had no more at once than this part of the device, */
#define WASTE_GROWING 8 /* or than this one, where that still grows */
#define WASTE_MIN ((size_t)16 << 20)
#define MIXED_PERCENT 28 /* of what was live lately, what chunks may be mixed, */
#define MIXED_PER_SLACK 2 /* and that much more for one more of slack_percent */
#define MIXED_MIN ((size_t)112 << 20)
/* A whole chunk that fits is taken before a part of one that leaves more than this. */
#define PART_SLACK (4 * GS_PAGE_SIZE)

static bool is_large(const struct gs_chunk *chunk)
{
    return chunk->shift == GS_LARGE_SHIFT;
}

static enum gs_bin_kind kind_of(const struct gs_block *block)
{
    bool whole = block->entry.size == block->chunk->span.size;

    if (is_large(block->chunk))
        return whole ? GS_BIN_LARGE_WHOLE : GS_BIN_LARGE_PART;
    return whole ? GS_BIN_SMALL_WHOLE : GS_BIN_SMALL_PART;
}

static void make_ready_locked(struct gs_arena *arena, struct gs_block *block)
{
    enum gs_bin_kind kind = kind_of(block);

    block->state = GS_BLOCK_FREE;
    gs_bins_insert(&arena->free.bins[kind], &block->entry);
    if (kind == GS_BIN_LARGE_PART)
        arena->free.fragmented += block->entry.size;
    if (kind == GS_BIN_LARGE_WHOLE)
        gs_chunk_settle_debt_locked(arena, block->chunk);
}

static void unbin_locked(struct gs_arena *arena, struct gs_block *block)
{
    enum gs_bin_kind kind = kind_of(block);

    gs_bins_remove(&arena->free.bins[kind], &block->entry);
    if (kind == GS_BIN_LARGE_PART)
        arena->free.fragmented -= block->entry.size;
}

/* ---- Waste ------------------------------------------------------------------------------- */

static size_t waste_of(const struct gs_chunk *chunk, size_t need)
{
    size_t pages = gs_page_round(need);

    return chunk->span.size > pages ? chunk->span.size - pages : 0;
}

/* What chunks may owe for having cost time lately: a part of what the device has beyond what was live
 * here at once. What the program will want next is not known; one that has had little of the device leaves
 * room for both, and one that has filled it must find it again. */
static size_t owed_for_costs_locked(const struct gs_arena *arena, size_t left)
{
    const unsigned most = GS_SLACK_PERCENT_MOST - GS_SLACK_PERCENT_MIN;
    const unsigned part = arena->kept.settled < GS_SETTLED ? WASTE_GROWING : WASTE_SETTLED;
    size_t has = left + arena->reserved, had = arena->counts.live_peak;

    if (had > has / part)
        return 0;
    return (has - had) / WASTE_COSTS / most * (arena->kept.slack_percent - GS_SLACK_PERCENT_MIN);
}

bool gs_arena_may_owe_locked(const struct gs_arena *arena, size_t bytes, unsigned part)
{
    int ordinal = arena->device->ordinal;
    size_t owed = __atomic_load_n(&arena->shared->waste[ordinal], __ATOMIC_RELAXED);
    size_t left = __atomic_load_n(&arena->shared->left[ordinal], __ATOMIC_RELAXED);
    size_t most = arena->device->total / WASTE_SHARE;
    size_t costs = owed_for_costs_locked(arena, left);

    gs_latch_assert_held(&arena->lock);
    if (costs > most)
        most = costs;
    if (left > 0 && left / WASTE_LEFT + WASTE_MIN < most)
        most = left / WASTE_LEFT + WASTE_MIN;
    return owed + bytes <= most / part;
}

static size_t mixed_by(const struct gs_chunk *chunk, size_t need)
{
    size_t size = chunk->span.size;

    return is_large(chunk) && size / GS_MIXED_TIMES > need ? size - GS_MIXED_TIMES * need : 0;
}

static bool may_mix_locked(const struct gs_arena *arena, const struct gs_chunk *chunk, size_t need)
{
    size_t mixed = mixed_by(chunk, need);
    unsigned more = MIXED_PER_SLACK * (arena->kept.slack_percent - GS_SLACK_PERCENT_MIN);
    size_t most = arena->kept.live_peak / 100 * (MIXED_PERCENT + more);

    return mixed <= chunk->mixed || arena->free.mixed + mixed - chunk->mixed <= most + MIXED_MIN;
}

bool gs_block_may_lie_locked(const struct gs_arena *arena, const struct gs_block *block,
                             size_t need)
{
    size_t waste = waste_of(block->chunk, need);

    gs_latch_assert_held(&arena->lock);
    if (!may_mix_locked(arena, block->chunk, need))
        return false;
    return waste <= block->chunk->waste ||
           gs_arena_may_owe_locked(arena, waste - block->chunk->waste, 1);
}

void gs_block_lies_locked(struct gs_arena *arena, struct gs_chunk *chunk, size_t need)
{
    size_t waste = waste_of(chunk, need), mixed = mixed_by(chunk, need);

    gs_latch_assert_held(&arena->lock);
    if (mixed > chunk->mixed) {
        arena->free.mixed += mixed - chunk->mixed;
        chunk->mixed = mixed;
    }
    if (waste <= chunk->waste)
        return;
    __atomic_add_fetch(&arena->shared->waste[arena->device->ordinal], waste - chunk->waste,
                       __ATOMIC_RELAXED);
    chunk->waste = waste;
}

void gs_chunk_settle_debt_locked(struct gs_arena *arena, struct gs_chunk *chunk)
{
    gs_latch_assert_held(&arena->lock);
    if (chunk->waste)
        __atomic_sub_fetch(&arena->shared->waste[arena->device->ordinal], chunk->waste,
                           __ATOMIC_RELAXED);
    chunk->waste = 0;
    arena->free.mixed -= chunk->mixed;
    chunk->mixed = 0;
}

/* ---- Cutting and merging ---------------------------------------------------------------- */

/* NULL also without host memory, or where blocks have their chunks alone: the block simply stays
 * larger. */
struct gs_block *gs_block_cut_locked(struct gs_arena *arena, struct gs_block *block, size_t size)
{
    struct gs_block *rest;

    gs_latch_assert_held(&arena->lock);
    if (arena->shared->whole_chunks && block->chunk->shift == GS_LARGE_SHIFT)
        return NULL;
    if (block->entry.size == size || (!block->chunk->index && !gs_index_make_locked(block->chunk)))
        return NULL;
    rest = gs_block_record_new_locked(arena);
    if (!rest)
        return NULL;
    rest->chunk = block->chunk;
    rest->base = block->base + size;
    rest->entry.size = block->entry.size - size;
    rest->state = block->state;
    rest->stream = block->stream;
    block->entry.size = size;
    rest->below = block;
    rest->above = block->above;
    if (rest->above)
        rest->above->below = rest;
    block->above = rest;
    gs_index_set_locked(rest->chunk, rest);
    return rest;
}

/* `upper` becomes part of `lower`, its neighbour below; both are in no bin. */
void gs_block_merge_locked(struct gs_arena *arena, struct gs_block *lower, struct gs_block *upper)
{
    gs_latch_assert_held(&arena->lock);
    lower->entry.size += upper->entry.size;
    lower->above = upper->above;
    if (upper->above)
        upper->above->below = lower;
    gs_index_clear_locked(upper->chunk, upper);
    gs_block_record_free_locked(arena, upper);
}

/* ---- Taking ----------------------------------------------------------------------------- */

size_t gs_arena_round(const struct gs_arena *arena, size_t size, bool *ret_small)
{
    size_t unit;

    *ret_small = size < arena->shared->small_limit;
    unit = *ret_small ? GS_UNIT_SIZE : (size_t)1 << GS_LARGE_SHIFT;
    return (size + unit - 1) & ~(unit - 1);
}

static uint64_t next_id_locked(struct gs_arena *arena)
{
    if (__builtin_expect(arena->id % IDS_AT_ONCE == 0, 0))
        arena->id = __atomic_add_fetch(&arena->shared->next_id, IDS_AT_ONCE, __ATOMIC_RELAXED);
    return arena->id++;
}

void gs_block_live_locked(struct gs_arena *arena, struct gs_block *block, size_t size)
{
    gs_latch_assert_held(&arena->lock);
    block->state = GS_BLOCK_LIVE;
    block->size = size;
    block->async = block->multi_stream = false;
    block->id = next_id_locked(arena);
    GS_ADD(arena->live, block->entry.size);
    if (arena->live > arena->kept.live_high) {
        arena->kept.live_high = arena->live;
        if (arena->live > arena->kept.live_peak)
            arena->kept.live_peak = arena->live;
        if (arena->live > arena->counts.live_peak)
            __atomic_store_n(&arena->counts.live_peak, arena->live, __ATOMIC_RELAXED);
    }
}

size_t gs_arena_strandable_locked(const struct gs_arena *arena)
{
    size_t most = arena->kept.live_peak / 100 *
                  (FRAGMENTED_PERCENT +
                   FRAGMENTED_PER_SLACK * (arena->kept.slack_percent - GS_SLACK_PERCENT_MIN));

    gs_latch_assert_held(&arena->lock);
    if (most < FRAGMENTED_MIN)
        most = FRAGMENTED_MIN;
    return most > arena->free.fragmented ? most - arena->free.fragmented : 0;
}

static bool may_lie(const struct gs_bin_entry *entry, const struct gs_bin_wish *wish)
{
    return gs_block_may_lie_locked(wish->arg, (const struct gs_block *)entry, wish->size);
}

static struct gs_bin_entry *find_where_it_may_lie_locked(const struct gs_arena *arena,
                                                         enum gs_bin_kind kind, size_t need,
                                                         size_t limit)
{
    const struct gs_bin_wish wish = {need, limit, may_lie, arena};

    return arena->free.bins[kind].levels ? gs_bins_find_wish(&arena->free.bins[kind], &wish) : NULL;
}

/* What is left of a used chunk first; a whole one only if it would fragment little. */
static struct gs_bin_entry *find_large_locked(struct gs_arena *arena, size_t need)
{
    struct gs_bin_entry *part =
        find_where_it_may_lie_locked(arena, GS_BIN_LARGE_PART, need, SIZE_MAX);
    struct gs_bin_entry *whole;
    size_t slack;

    if ((part && part->size - need <= PART_SLACK) || !arena->free.bins[GS_BIN_LARGE_WHOLE].levels)
        return part;
    slack = part || arena->shared->whole_chunks ? 0 : gs_arena_strandable_locked(arena);
    if (slack > FRAGMENTED_EACH && arena->kept.slack_percent == GS_SLACK_PERCENT_MIN)
        slack = FRAGMENTED_EACH;
    if (slack < GS_PAGE_SIZE - 1)
        slack = GS_PAGE_SIZE - 1;
    whole = find_where_it_may_lie_locked(arena, GS_BIN_LARGE_WHOLE, need, need + slack);
    return whole ? whole : part;
}

static struct gs_bin_entry *find_small_locked(struct gs_arena *arena, size_t need)
{
    struct gs_bin_entry *part = gs_bins_find(&arena->free.bins[GS_BIN_SMALL_PART], need, SIZE_MAX);

    return part ? part : gs_bins_find(&arena->free.bins[GS_BIN_SMALL_WHOLE], need, SIZE_MAX);
}

static void note_ready_locked(struct gs_arena *arena)
{
    if (arena->free_bytes < arena->kept.free_low)
        arena->kept.free_low = arena->free_bytes;
}

void gs_block_unready_locked(struct gs_arena *arena, struct gs_block *block)
{
    gs_latch_assert_held(&arena->lock);
    unbin_locked(arena, block);
    block->state = GS_BLOCK_RETIRED;
    GS_SUB(arena->free_bytes, block->entry.size);
    note_ready_locked(arena);
}

static struct gs_block *take_entry_locked(struct gs_arena *arena, struct gs_bin_entry *entry,
                                          size_t need, size_t size)
{
    struct gs_block *block = (struct gs_block *)entry, *rest;

    unbin_locked(arena, block);
    if (is_large(block->chunk))
        gs_block_lies_locked(arena, block->chunk, need);
    rest = gs_block_cut_locked(arena, block, need);
    if (rest)
        make_ready_locked(arena, rest);
    GS_SUB(arena->free_bytes, block->entry.size);
    note_ready_locked(arena);
    gs_block_live_locked(arena, block, size);
    return block;
}

static struct gs_block *take_quick_locked(struct gs_arena *arena, size_t unit, size_t size)
{
    struct gs_block *block = arena->free.quick[unit];

    arena->free.quick[unit] = (struct gs_block *)block->entry.next;
    arena->free.quick_bytes -= block->entry.size;
    GS_SUB(arena->free_bytes, block->entry.size);
    note_ready_locked(arena);
    gs_block_live_locked(arena, block, size);
    return block;
}

static struct gs_block *take_small_locked(struct gs_arena *arena, size_t need, size_t size)
{
    size_t unit = need >> GS_UNIT_SHIFT;
    struct gs_bin_entry *entry;

    if (unit < GS_QUICK_CLASSES) {
        if (__builtin_expect(!arena->free.quick[unit] && arena->epochs.oldest, 0) &&
            arena->epochs.polls++ % POLLED_ONCE_IN == 0)
            gs_arena_poll_locked(arena);
        if (arena->free.quick[unit])
            return take_quick_locked(arena, unit, size);
    }
    entry = find_small_locked(arena, need);
    return entry ? take_entry_locked(arena, entry, need, size) : NULL;
}

/* The large block that came back last leaves its place, for its next owner or the free ones proper. */
static struct gs_block *unlast_locked(struct gs_arena *arena)
{
    struct gs_block *block = arena->free.last;

    arena->free.last = NULL;
    GS_SUB(arena->free_bytes, block->entry.size);
    if (kind_of(block) == GS_BIN_LARGE_PART)
        arena->free.fragmented -= block->entry.size;
    return block;
}

/* False: there was none. */
static bool settle_last_locked(struct gs_arena *arena)
{
    if (!arena->free.last)
        return false;
    gs_arena_give_locked(arena, unlast_locked(arena));
    return true;
}

static struct gs_block *take_last_locked(struct gs_arena *arena, size_t size)
{
    struct gs_block *block = unlast_locked(arena);

    note_ready_locked(arena);
    gs_block_live_locked(arena, block, size);
    return block;
}

static void give_last_locked(struct gs_arena *arena, struct gs_block *block)
{
    settle_last_locked(arena);
    if (kind_of(block) == GS_BIN_LARGE_WHOLE)
        gs_chunk_settle_debt_locked(arena, block->chunk);
    else
        arena->free.fragmented += block->entry.size;
    block->state = GS_BLOCK_QUICK;
    arena->free.last = block;
    GS_ADD(arena->free_bytes, block->entry.size);
}

static struct gs_block *take_large_ready_locked(struct gs_arena *arena, size_t need, size_t size)
{
    struct gs_bin_entry *entry;

    if (arena->free.last && arena->free.last->entry.size == need)
        return take_last_locked(arena, size);
    settle_last_locked(arena);
    entry = find_large_locked(arena, need);
    return entry ? take_entry_locked(arena, entry, need, size) : NULL;
}

/* Looks at what has come back rather than find nothing: one large block is often all of it. */
static struct gs_block *take_large_locked(struct gs_arena *arena, size_t need, size_t size)
{
    struct gs_block *block = take_large_ready_locked(arena, need, size);

    if (block || (!arena->epochs.oldest && !arena->epochs.open.first && !arena->order.apart))
        return block;
    gs_arena_look_locked(arena);
    return take_large_ready_locked(arena, need, size);
}

struct gs_block *gs_arena_take_locked(struct gs_arena *arena, size_t size)
{
    bool small;
    size_t need = gs_arena_round(arena, size, &small);

    gs_latch_assert_held(&arena->lock);
    return small ? take_small_locked(arena, need, size) : take_large_locked(arena, need, size);
}

struct gs_block *gs_arena_take_from_locked(struct gs_arena *arena, struct gs_block *block,
                                           size_t size)
{
    bool small;
    size_t need = gs_arena_round(arena, size, &small);

    gs_latch_assert_held(&arena->lock);
    return take_entry_locked(arena, &block->entry, need, size);
}

struct gs_block *gs_arena_take_any_locked(struct gs_arena *arena, size_t size)
{
    static const enum gs_bin_kind order[] = {GS_BIN_LARGE_PART, GS_BIN_LARGE_WHOLE,
                                             GS_BIN_SMALL_PART, GS_BIN_SMALL_WHOLE};
    struct gs_block *block = gs_arena_take_locked(arena, size);

    gs_latch_assert_held(&arena->lock);
    for (size_t i = 0; !block && i < sizeof order / sizeof *order; i++) {
        size_t unit = i < 2 ? (size_t)1 << GS_LARGE_SHIFT : GS_UNIT_SIZE;
        size_t need = (size + unit - 1) & ~(unit - 1);
        struct gs_bin_entry *entry = gs_bins_find(&arena->free.bins[order[i]], need, SIZE_MAX);

        if (entry)
            block = take_entry_locked(arena, entry, need, size);
    }
    return block;
}

/* ---- Giving ----------------------------------------------------------------------------- */

void gs_arena_give_locked(struct gs_arena *arena, struct gs_block *block)
{
    struct gs_block *below = block->below, *above = block->above;

    gs_latch_assert_held(&arena->lock);
    GS_ADD(arena->free_bytes, block->entry.size);
    if (above && above->state == GS_BLOCK_FREE) {
        unbin_locked(arena, above);
        gs_block_merge_locked(arena, block, above);
    }
    if (below && below->state == GS_BLOCK_FREE) {
        unbin_locked(arena, below);
        gs_block_merge_locked(arena, below, block);
        block = below;
    }
    make_ready_locked(arena, block);
}

void gs_arena_give_quick_locked(struct gs_arena *arena, struct gs_block *block)
{
    size_t unit = block->entry.size >> GS_UNIT_SHIFT;

    gs_latch_assert_held(&arena->lock);
    if (is_large(block->chunk)) {
        give_last_locked(arena, block);
        return;
    }
    if (unit >= GS_QUICK_CLASSES ||
        (arena->free.quick_bytes > QUICK_BYTES_MIN &&
         arena->free.quick_bytes > arena->live / QUICK_SHARE)) {
        gs_arena_give_locked(arena, block);
        return;
    }
    block->state = GS_BLOCK_QUICK;
    block->entry.next = (struct gs_bin_entry *)arena->free.quick[unit];
    arena->free.quick[unit] = block;
    arena->free.quick_bytes += block->entry.size;
    GS_ADD(arena->free_bytes, block->entry.size);
}

bool gs_arena_settle_locked(struct gs_arena *arena)
{
    bool any = settle_last_locked(arena);

    gs_latch_assert_held(&arena->lock);
    for (size_t unit = 0; arena->free.quick_bytes > 0; unit++) {
        struct gs_block *block;

        while ((block = arena->free.quick[unit])) {
            arena->free.quick[unit] = (struct gs_block *)block->entry.next;
            arena->free.quick_bytes -= block->entry.size;
            GS_SUB(arena->free_bytes, block->entry.size);
            gs_arena_give_locked(arena, block);
            any = true;
        }
    }
    return any;
}

/* Not before there is a chunk: until then the device may not have been looked at. */
static size_t cache_limit_locked(const struct gs_arena *arena)
{
    const struct gs_arena_shared *shared = arena->shared;
    size_t limit = __atomic_load_n(&shared->cache_limit, __ATOMIC_RELAXED);
    size_t share = arena->device->total / 100 *
                   __atomic_load_n(&shared->cache_percent, __ATOMIC_RELAXED);

    return share && share < limit ? share : limit;
}

void gs_arena_limit_locked(struct gs_arena *arena)
{
    gs_latch_assert_held(&arena->lock);
    if (arena->chunks)
        arena->kept.limit = cache_limit_locked(arena);
}

gs_status gs_arena_add_chunk_locked(struct gs_arena *arena, CUdeviceptr address, size_t size,
                                    bool small, CUmemGenericAllocationHandle handle,
                                    struct gs_block **ret_block)
{
    struct gs_chunk *chunk = gs_chunk_record_new();
    struct gs_block *block = gs_block_record_new_locked(arena);

    gs_latch_assert_held(&arena->lock);
    if (!chunk || !block)
        goto no_memory;
    chunk->span = (struct gs_span){.base = address, .size = size, .kind = GS_SPAN_CHUNK};
    __atomic_store_n(&chunk->arena, arena, __ATOMIC_RELAXED);
    __atomic_store_n(&chunk->device, (unsigned char)arena->device->ordinal, __ATOMIC_RELAXED);
    chunk->handle = handle;
    chunk->peer_access = 0;
    chunk->waste = chunk->mixed = 0;
    chunk->freed = (struct gs_fence){0};
    chunk->id = next_id_locked(arena);
    chunk->lowest = block;
    chunk->shift = small ? GS_UNIT_SHIFT : GS_LARGE_SHIFT;
    block->chunk = chunk;
    block->base = address;
    block->entry.size = size;
    if (gs_map_insert(arena->shared->map, &chunk->span) != GS_OK)
        goto no_memory;
    chunk->prev = NULL;
    chunk->next = arena->chunks;
    if (chunk->next)
        chunk->next->prev = chunk;
    arena->chunks = chunk;
    GS_ADD(arena->reserved, size);
    GS_ADD(arena->free_bytes, size);
    if (arena->reserved > arena->counts.reserved_peak)
        __atomic_store_n(&arena->counts.reserved_peak, arena->reserved, __ATOMIC_RELAXED);
    GS_COUNT(arena->counts.grown);
    arena->kept.limit = cache_limit_locked(arena);
    if (small)
        gs_block_lies_locked(arena, chunk, GS_PAGE_SIZE);
    make_ready_locked(arena, block);
    *ret_block = block;
    return GS_OK;
no_memory:
    if (chunk)
        gs_chunk_record_free(chunk);
    if (block)
        gs_block_record_free_locked(arena, block);
    return GS_NO_HOST_MEMORY;
}
