/*
 * Blocks within chunks (core/pool/pool.h): cutting, merging, taking, and what may lie beside what.
 */
#include "core/pool/pool.h"

#include <stdlib.h>
#include <string.h>

#define IDS_AT_ONCE 65536 /* so seldom do pools write what others read */
#define QUICK_BYTES_MIN ((size_t)4 << 20) /* what may lie unmerged, and */
#define QUICK_SHARE 64                     /* this part of what is live */
#define POLLED_ONCE_IN 8 /* small allocations that no quick list serves */
/* What may lie stranded: the larger of the first and a part of what was live lately. */
#define STRANDED_MIN ((size_t)16 << 20)
#define STRANDED_PERCENT 8
#define STRANDED_EACH ((size_t)96 << 20) /* by one block, which may stay when the program is idle */
#define STRANDED_PER_SPARE 2 /* percent more for one more of spare_percent */
#define DEBT_SHARE 64 /* of a device's memory, what its chunks may owe: 1.6 percent, */
#define DEBT_LEFT 2   /* and less where the device has not much left: this part of that */
#define DEBT_MIN ((size_t)16 << 20)
#define MIXED_PERCENT 28 /* of what was live lately, what chunks may be mixed, */
#define MIXED_PER_SPARE 2 /* and that much more for one more of spare_percent */
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

static void make_ready(struct gs_pool *pool, struct gs_block *block)
{
    enum gs_bin_kind kind = kind_of(block);

    block->state = GS_BLOCK_READY;
    gs_bins_insert(&pool->free.bins[kind], &block->entry);
    if (kind == GS_BIN_LARGE_PART)
        pool->free.stranded += block->entry.size;
    if (kind == GS_BIN_LARGE_WHOLE)
        gs_chunk_settle_debt(pool, block->chunk);
}

static void unbin(struct gs_pool *pool, struct gs_block *block)
{
    enum gs_bin_kind kind = kind_of(block);

    gs_bins_remove(&pool->free.bins[kind], &block->entry);
    if (kind == GS_BIN_LARGE_PART)
        pool->free.stranded -= block->entry.size;
}

/* ---- Debt -------------------------------------------------------------------------------- */

static size_t debt_of(const struct gs_chunk *chunk, size_t need)
{
    size_t pages = (need + GS_PAGE_SIZE - 1) & ~(GS_PAGE_SIZE - 1);

    return chunk->span.size > pages ? chunk->span.size - pages : 0;
}

bool gs_pool_may_owe(const struct gs_pool *pool, size_t bytes, unsigned part)
{
    int ordinal = pool->device->ordinal;
    size_t owed = __atomic_load_n(&pool->shared->debt[ordinal], __ATOMIC_RELAXED);
    size_t left = __atomic_load_n(&pool->shared->left[ordinal], __ATOMIC_RELAXED);
    size_t most = pool->device->total / DEBT_SHARE;

    if (left > 0 && left / DEBT_LEFT + DEBT_MIN < most)
        most = left / DEBT_LEFT + DEBT_MIN;
    return owed + bytes <= most / part;
}

static size_t mixed_by(const struct gs_chunk *chunk, size_t need)
{
    size_t size = chunk->span.size;

    return is_large(chunk) && size / GS_MIXED_TIMES > need ? size - GS_MIXED_TIMES * need : 0;
}

static bool may_mix(const struct gs_pool *pool, const struct gs_chunk *chunk, size_t need)
{
    size_t mixed = mixed_by(chunk, need);
    unsigned more = MIXED_PER_SPARE * (pool->kept.spare_percent - GS_SPARE_PERCENT_MIN);
    size_t most = pool->kept.live_peak / 100 * (MIXED_PERCENT + more);

    return mixed <= chunk->mixed || pool->free.mixed + mixed - chunk->mixed <= most + MIXED_MIN;
}

bool gs_block_may_lie(const struct gs_pool *pool, const struct gs_block *block, size_t need)
{
    size_t debt = debt_of(block->chunk, need);

    if (!may_mix(pool, block->chunk, need))
        return false;
    return debt <= block->chunk->debt || gs_pool_may_owe(pool, debt - block->chunk->debt, 1);
}

void gs_block_lies(struct gs_pool *pool, struct gs_chunk *chunk, size_t need)
{
    size_t debt = debt_of(chunk, need), mixed = mixed_by(chunk, need);

    if (mixed > chunk->mixed) {
        pool->free.mixed += mixed - chunk->mixed;
        chunk->mixed = mixed;
    }
    if (debt <= chunk->debt)
        return;
    __atomic_add_fetch(&pool->shared->debt[pool->device->ordinal], debt - chunk->debt,
                       __ATOMIC_RELAXED);
    chunk->debt = debt;
}

void gs_chunk_settle_debt(struct gs_pool *pool, struct gs_chunk *chunk)
{
    if (chunk->debt)
        __atomic_sub_fetch(&pool->shared->debt[pool->device->ordinal], chunk->debt,
                           __ATOMIC_RELAXED);
    chunk->debt = 0;
    pool->free.mixed -= chunk->mixed;
    chunk->mixed = 0;
}

/* ---- Cutting and merging ---------------------------------------------------------------- */

/* NULL also without host memory, or where blocks have their chunks alone: the block simply stays
 * larger. */
struct gs_block *gs_block_cut(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    struct gs_block *rest;

    if (pool->shared->whole_chunks && block->chunk->shift == GS_LARGE_SHIFT)
        return NULL;
    if (block->entry.size == size || (!block->chunk->index && !gs_index_make(block->chunk)))
        return NULL;
    rest = gs_block_record_new(pool);
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
    gs_index_set(rest->chunk, rest);
    return rest;
}

/* `upper` becomes part of `lower`, its neighbour below; both are in no bin. */
void gs_block_merge(struct gs_pool *pool, struct gs_block *lower, struct gs_block *upper)
{
    lower->entry.size += upper->entry.size;
    lower->above = upper->above;
    if (upper->above)
        upper->above->below = lower;
    gs_index_clear(upper->chunk, upper);
    gs_block_record_free(pool, upper);
}

/* ---- Taking ----------------------------------------------------------------------------- */

size_t gs_pool_round(const struct gs_pool *pool, size_t size, bool *ret_small)
{
    size_t unit;

    *ret_small = size < pool->shared->small_limit;
    unit = *ret_small ? GS_UNIT_SIZE : (size_t)1 << GS_LARGE_SHIFT;
    return (size + unit - 1) & ~(unit - 1);
}

static uint64_t next_id(struct gs_pool *pool)
{
    if (__builtin_expect(pool->id % IDS_AT_ONCE == 0, 0))
        pool->id = __atomic_add_fetch(&pool->shared->next_id, IDS_AT_ONCE, __ATOMIC_RELAXED);
    return pool->id++;
}

void gs_block_live(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    block->state = GS_BLOCK_LIVE;
    block->size = size;
    block->async = block->elsewhere = false;
    block->id = next_id(pool);
    GS_ADD(pool->live, block->entry.size);
    if (pool->live > pool->kept.live_high) {
        pool->kept.live_high = pool->live;
        if (pool->live > pool->kept.live_peak)
            pool->kept.live_peak = pool->live;
        if (pool->live > pool->counts.live_peak)
            __atomic_store_n(&pool->counts.live_peak, pool->live, __ATOMIC_RELAXED);
    }
}

size_t gs_pool_strandable(const struct gs_pool *pool)
{
    size_t most = pool->kept.live_peak / 100 *
                  (STRANDED_PERCENT +
                   STRANDED_PER_SPARE * (pool->kept.spare_percent - GS_SPARE_PERCENT_MIN));

    if (most < STRANDED_MIN)
        most = STRANDED_MIN;
    return most > pool->free.stranded ? most - pool->free.stranded : 0;
}

static bool may_lie(const struct gs_bin_entry *entry, const struct gs_bin_wish *wish)
{
    return gs_block_may_lie(wish->arg, (const struct gs_block *)entry, wish->size);
}

static struct gs_bin_entry *find_where_it_may_lie(const struct gs_pool *pool, enum gs_bin_kind kind,
                                                  size_t need, size_t limit)
{
    const struct gs_bin_wish wish = {need, limit, may_lie, pool};

    return pool->free.bins[kind].levels ? gs_bins_find_wish(&pool->free.bins[kind], &wish) : NULL;
}

/* What is left of a used chunk first; a whole one only if it would strand little. */
static struct gs_bin_entry *find_large(struct gs_pool *pool, size_t need)
{
    struct gs_bin_entry *part = find_where_it_may_lie(pool, GS_BIN_LARGE_PART, need, SIZE_MAX);
    struct gs_bin_entry *whole;
    size_t slack;

    if ((part && part->size - need <= PART_SLACK) || !pool->free.bins[GS_BIN_LARGE_WHOLE].levels)
        return part;
    slack = part || pool->shared->whole_chunks ? 0 : gs_pool_strandable(pool);
    if (slack > STRANDED_EACH && pool->kept.spare_percent == GS_SPARE_PERCENT_MIN)
        slack = STRANDED_EACH;
    if (slack < GS_PAGE_SIZE - 1)
        slack = GS_PAGE_SIZE - 1;
    whole = find_where_it_may_lie(pool, GS_BIN_LARGE_WHOLE, need, need + slack);
    return whole ? whole : part;
}

static struct gs_bin_entry *find_small(struct gs_pool *pool, size_t need)
{
    struct gs_bin_entry *part = gs_bins_find(&pool->free.bins[GS_BIN_SMALL_PART], need, SIZE_MAX);

    return part ? part : gs_bins_find(&pool->free.bins[GS_BIN_SMALL_WHOLE], need, SIZE_MAX);
}

static void note_ready(struct gs_pool *pool)
{
    if (pool->ready < pool->kept.ready_low)
        pool->kept.ready_low = pool->ready;
}

void gs_block_unready(struct gs_pool *pool, struct gs_block *block)
{
    unbin(pool, block);
    block->state = GS_BLOCK_RETIRING;
    GS_SUB(pool->ready, block->entry.size);
    note_ready(pool);
}

static struct gs_block *take_entry(struct gs_pool *pool, struct gs_bin_entry *entry, size_t need,
                                   size_t size)
{
    struct gs_block *block = (struct gs_block *)entry, *rest;

    unbin(pool, block);
    if (is_large(block->chunk))
        gs_block_lies(pool, block->chunk, need);
    rest = gs_block_cut(pool, block, need);
    if (rest)
        make_ready(pool, rest);
    GS_SUB(pool->ready, block->entry.size);
    note_ready(pool);
    gs_block_live(pool, block, size);
    return block;
}

static struct gs_block *take_quick(struct gs_pool *pool, size_t unit, size_t size)
{
    struct gs_block *block = pool->free.quick[unit];

    pool->free.quick[unit] = (struct gs_block *)block->entry.next;
    pool->free.quick_bytes -= block->entry.size;
    GS_SUB(pool->ready, block->entry.size);
    note_ready(pool);
    gs_block_live(pool, block, size);
    return block;
}

static struct gs_block *take_small(struct gs_pool *pool, size_t need, size_t size)
{
    size_t unit = need >> GS_UNIT_SHIFT;
    struct gs_bin_entry *entry;

    if (unit < GS_QUICK_CLASSES) {
        if (__builtin_expect(!pool->free.quick[unit] && pool->epochs.oldest, 0) &&
            pool->epochs.polls++ % POLLED_ONCE_IN == 0)
            gs_pool_poll(pool);
        if (pool->free.quick[unit])
            return take_quick(pool, unit, size);
    }
    entry = find_small(pool, need);
    return entry ? take_entry(pool, entry, need, size) : NULL;
}

/* Among the ready ones proper; false: there was none. */
static bool settle_whole(struct gs_pool *pool)
{
    struct gs_block *block = pool->free.whole;

    pool->free.whole = NULL;
    if (block)
        make_ready(pool, block);
    return block != NULL;
}

static struct gs_block *take_whole(struct gs_pool *pool, size_t size)
{
    struct gs_block *block = pool->free.whole;

    pool->free.whole = NULL;
    GS_SUB(pool->ready, block->entry.size);
    note_ready(pool);
    gs_block_live(pool, block, size);
    return block;
}

static struct gs_block *take_large_ready(struct gs_pool *pool, size_t need, size_t size)
{
    struct gs_bin_entry *entry;

    if (pool->free.whole && pool->free.whole->entry.size == need)
        return take_whole(pool, size);
    settle_whole(pool);
    entry = find_large(pool, need);
    return entry ? take_entry(pool, entry, need, size) : NULL;
}

/* Looks at what has come back rather than find nothing: one large block is often all of it. */
static struct gs_block *take_large(struct gs_pool *pool, size_t need, size_t size)
{
    struct gs_block *block = take_large_ready(pool, need, size);

    if (block || (!pool->epochs.oldest && !pool->epochs.open.first && !pool->order.apart))
        return block;
    gs_pool_look(pool);
    return take_large_ready(pool, need, size);
}

struct gs_block *gs_pool_take(struct gs_pool *pool, size_t size)
{
    bool small;
    size_t need = gs_pool_round(pool, size, &small);

    return small ? take_small(pool, need, size) : take_large(pool, need, size);
}

struct gs_block *gs_pool_take_from(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    bool small;
    size_t need = gs_pool_round(pool, size, &small);

    return take_entry(pool, &block->entry, need, size);
}

struct gs_block *gs_pool_take_any(struct gs_pool *pool, size_t size)
{
    static const enum gs_bin_kind order[] = {GS_BIN_LARGE_PART, GS_BIN_LARGE_WHOLE,
                                             GS_BIN_SMALL_PART, GS_BIN_SMALL_WHOLE};
    struct gs_block *block = gs_pool_take(pool, size);

    for (size_t i = 0; !block && i < sizeof order / sizeof *order; i++) {
        size_t unit = i < 2 ? (size_t)1 << GS_LARGE_SHIFT : GS_UNIT_SIZE;
        size_t need = (size + unit - 1) & ~(unit - 1);
        struct gs_bin_entry *entry = gs_bins_find(&pool->free.bins[order[i]], need, SIZE_MAX);

        if (entry)
            block = take_entry(pool, entry, need, size);
    }
    return block;
}

/* ---- Giving ----------------------------------------------------------------------------- */

void gs_pool_give(struct gs_pool *pool, struct gs_block *block)
{
    struct gs_block *below = block->below, *above = block->above;

    GS_ADD(pool->ready, block->entry.size);
    if (above && above->state == GS_BLOCK_READY) {
        unbin(pool, above);
        gs_block_merge(pool, block, above);
    }
    if (below && below->state == GS_BLOCK_READY) {
        unbin(pool, below);
        gs_block_merge(pool, below, block);
        block = below;
    }
    make_ready(pool, block);
}

void gs_pool_give_quick(struct gs_pool *pool, struct gs_block *block)
{
    size_t unit = block->entry.size >> GS_UNIT_SHIFT;

    if (kind_of(block) == GS_BIN_LARGE_WHOLE) {
        settle_whole(pool);
        gs_chunk_settle_debt(pool, block->chunk);
        block->state = GS_BLOCK_QUICK;
        pool->free.whole = block;
        GS_ADD(pool->ready, block->entry.size);
        return;
    }
    if (unit >= GS_QUICK_CLASSES || is_large(block->chunk) ||
        (pool->free.quick_bytes > QUICK_BYTES_MIN &&
         pool->free.quick_bytes > pool->live / QUICK_SHARE)) {
        gs_pool_give(pool, block);
        return;
    }
    block->state = GS_BLOCK_QUICK;
    block->entry.next = (struct gs_bin_entry *)pool->free.quick[unit];
    pool->free.quick[unit] = block;
    pool->free.quick_bytes += block->entry.size;
    GS_ADD(pool->ready, block->entry.size);
}

bool gs_pool_settle(struct gs_pool *pool)
{
    bool any = settle_whole(pool);

    for (size_t unit = 0; pool->free.quick_bytes > 0; unit++) {
        struct gs_block *block;

        while ((block = pool->free.quick[unit])) {
            pool->free.quick[unit] = (struct gs_block *)block->entry.next;
            pool->free.quick_bytes -= block->entry.size;
            GS_SUB(pool->ready, block->entry.size);
            gs_pool_give(pool, block);
            any = true;
        }
    }
    return any;
}

/* Not before there is a chunk: until then the device may not have been looked at. */
static size_t cache_limit(const struct gs_pool *pool)
{
    size_t share = pool->device->total / 100 * pool->shared->cache_percent;

    return share && share < pool->shared->cache_limit ? share : pool->shared->cache_limit;
}

gs_status gs_pool_add_chunk(struct gs_pool *pool, CUdeviceptr address, size_t size, bool small,
                            CUmemGenericAllocationHandle handle, struct gs_block **ret_block)
{
    struct gs_chunk *chunk = gs_chunk_record_new();
    struct gs_block *block = gs_block_record_new(pool);

    if (!chunk || !block)
        goto no_memory;
    chunk->span = (struct gs_span){.base = address, .size = size, .kind = GS_SPAN_CHUNK};
    __atomic_store_n(&chunk->pool, pool, __ATOMIC_RELAXED);
    chunk->handle = handle;
    chunk->reach = 0;
    chunk->debt = chunk->mixed = 0;
    chunk->freed = (struct gs_fence){0};
    chunk->id = next_id(pool);
    chunk->lowest = block;
    chunk->shift = small ? GS_UNIT_SHIFT : GS_LARGE_SHIFT;
    block->chunk = chunk;
    block->base = address;
    block->entry.size = size;
    if (gs_map_insert(pool->shared->map, &chunk->span) != GS_OK)
        goto no_memory;
    chunk->prev = NULL;
    chunk->next = pool->chunks;
    if (chunk->next)
        chunk->next->prev = chunk;
    pool->chunks = chunk;
    GS_ADD(pool->reserved, size);
    GS_ADD(pool->ready, size);
    if (pool->reserved > pool->counts.reserved_peak)
        __atomic_store_n(&pool->counts.reserved_peak, pool->reserved, __ATOMIC_RELAXED);
    GS_COUNT(pool->counts.grown);
    pool->kept.limit = cache_limit(pool);
    if (small)
        gs_block_lies(pool, chunk, GS_PAGE_SIZE);
    make_ready(pool, block);
    *ret_block = block;
    return GS_OK;
no_memory:
    if (chunk)
        gs_chunk_record_free(chunk);
    if (block)
        gs_block_record_free(pool, block);
    return GS_NO_HOST_MEMORY;
}
