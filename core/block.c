/*
 * Blocks within chunks (core/pool.h): cutting, merging, finding. A chunk that was cut has one bit
 * for each unit, set where a block starts, and a word of summary for 64 of such words, so that the
 * block around any address is found by looking backwards over few words.
 */
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

#define IDS_AT_ONCE 65536 /* so seldom do pools write what others read */
#define QUICK_BYTES_MIN ((size_t)16 << 20) /* what may lie unmerged, and */
#define QUICK_SHARE 16                     /* this part of what is live */
#define POLLED_ONCE_IN 8 /* small allocations that no quick list serves */
/* What may lie stranded: the larger of the first and a part of what was live lately, while the
 * device has so many times as much left. */
#define STRANDED_MIN ((size_t)16 << 20)
#define STRANDED_PERCENT 8
#define STRANDED_PER_SPARE 6 /* percent more for one more of spare_percent */
#define STRANDED_LEFT 40
/* While the device has less left than so many times what was live lately, a block goes into no
 * chunk but of its own size: beside another one it would keep the chunk from its next use, and from
 * the driver. Where making chunks takes time that is felt, that begins later. */
#define TIGHT_TIMES 4
#define TIGHT_TIMES_IN_HASTE 2
/* A whole chunk that fits is taken before a part of one that leaves more than this. */
#define PART_SLACK (4 * GS_PAGE_SIZE)

struct gs_index {
    struct gs_block **at; /* by unit: the block that starts there, or NULL */
    uint64_t *starts, *summary;
};

/* Chunk records are recycled and never freed: a reader of the map may hold one for a moment
 * longer than it lives (core/map.h). */
static struct {
    struct gs_lock lock; /* rank RECORDS; protects first */
    struct gs_chunk *first;
} spare_chunks = {GS_LOCK_INITIALIZER(GS_RANK_RECORDS), NULL};

static struct gs_chunk *chunk_record_new(void)
{
    struct gs_chunk *chunk;

    gs_lock_take(&spare_chunks.lock);
    chunk = spare_chunks.first;
    if (chunk)
        spare_chunks.first = chunk->next;
    gs_lock_release(&spare_chunks.lock);
    return chunk ? chunk : calloc(1, sizeof *chunk);
}

void gs_chunk_record_free(struct gs_chunk *chunk)
{
    free(chunk->index);
    chunk->index = NULL;
    gs_lock_take(&spare_chunks.lock);
    chunk->next = spare_chunks.first;
    spare_chunks.first = chunk;
    gs_lock_release(&spare_chunks.lock);
}

static struct gs_block *block_record_new(struct gs_pool *pool)
{
    struct gs_block *block = pool->spare_blocks;

    if (!block)
        return calloc(1, sizeof *block);
    pool->spare_blocks = block->above;
    memset(block, 0, sizeof *block);
    return block;
}

void gs_block_record_free(struct gs_pool *pool, struct gs_block *block)
{
    block->above = pool->spare_blocks;
    pool->spare_blocks = block;
}

/* ---- Finding ---------------------------------------------------------------------------- */

static size_t unit_of(const struct gs_chunk *chunk, uint64_t address)
{
    return (address - chunk->span.base) >> chunk->shift;
}

static void index_set(struct gs_chunk *chunk, struct gs_block *block)
{
    size_t unit = unit_of(chunk, block->base);

    chunk->index->at[unit] = block;
    chunk->index->starts[unit / 64] |= UINT64_C(1) << (unit % 64);
    chunk->index->summary[unit / 4096] |= UINT64_C(1) << (unit / 64 % 64);
}

static void index_clear(struct gs_chunk *chunk, const struct gs_block *block)
{
    size_t unit = unit_of(chunk, block->base);

    chunk->index->at[unit] = NULL;
    chunk->index->starts[unit / 64] &= ~(UINT64_C(1) << (unit % 64));
    if (!chunk->index->starts[unit / 64])
        chunk->index->summary[unit / 4096] &= ~(UINT64_C(1) << (unit / 64 % 64));
}

/* For a chunk whose whole is one block. Its pages are touched only where blocks start. */
static bool index_make(struct gs_chunk *chunk)
{
    size_t units = chunk->span.size >> chunk->shift;
    size_t words = (units + 63) / 64, summaries = (words + 63) / 64;
    struct gs_index *index =
        calloc(1, sizeof *index + units * sizeof *index->at + (words + summaries) * 8);

    if (!index)
        return false;
    index->at = (struct gs_block **)(index + 1);
    index->starts = (uint64_t *)(index->at + units);
    index->summary = index->starts + words;
    chunk->index = index;
    index_set(chunk, chunk->lowest);
    return true;
}

struct gs_block *gs_chunk_start(const struct gs_chunk *chunk, uint64_t address)
{
    uint64_t offset = address - chunk->span.base;

    if (!chunk->index)
        return offset == 0 ? chunk->lowest : NULL;
    if (offset & ((UINT64_C(1) << chunk->shift) - 1))
        return NULL;
    return chunk->index->at[offset >> chunk->shift];
}

/* The highest bit of `words` at or below `bit`; there is one. */
static size_t bit_below(const uint64_t *words, size_t bit)
{
    size_t word = bit / 64;
    uint64_t bits = words[word] & (~UINT64_C(0) >> (63 - bit % 64));

    while (!bits)
        bits = words[--word];
    return word * 64 + (63 - (size_t)__builtin_clzll(bits));
}

/* Ends: the chunk's first unit always starts a block. */
struct gs_block *gs_chunk_find(const struct gs_chunk *chunk, uint64_t address)
{
    const struct gs_index *index = chunk->index;
    size_t unit, word;
    uint64_t bits;

    if (!index)
        return chunk->lowest;
    unit = unit_of(chunk, address);
    bits = index->starts[unit / 64] & (~UINT64_C(0) >> (63 - unit % 64));
    if (bits)
        return index->at[unit / 64 * 64 + (63 - (size_t)__builtin_clzll(bits))];
    word = bit_below(index->summary, unit / 64 - 1);
    return index->at[word * 64 + (63 - (size_t)__builtin_clzll(index->starts[word]))];
}

/* ---- Bins ------------------------------------------------------------------------------- */

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
    gs_bins_insert(&pool->bins[kind], &block->entry);
    if (kind == GS_BIN_LARGE_PART)
        pool->stranded += block->entry.size;
}

static void unbin(struct gs_pool *pool, struct gs_block *block)
{
    enum gs_bin_kind kind = kind_of(block);

    gs_bins_remove(&pool->bins[kind], &block->entry);
    if (kind == GS_BIN_LARGE_PART)
        pool->stranded -= block->entry.size;
}

/* ---- Cutting and merging ---------------------------------------------------------------- */

/* NULL also without host memory, or where blocks have their chunks alone: the block simply stays
 * larger. */
struct gs_block *gs_block_cut(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    struct gs_block *rest;

    if (pool->shared->whole_chunks && block->chunk->shift == GS_LARGE_SHIFT)
        return NULL;
    if (block->entry.size == size || (!block->chunk->index && !index_make(block->chunk)))
        return NULL;
    rest = block_record_new(pool);
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
    index_set(rest->chunk, rest);
    return rest;
}

/* `upper` becomes part of `lower`, its neighbour below; both are in no bin. */
void gs_block_merge(struct gs_pool *pool, struct gs_block *lower, struct gs_block *upper)
{
    lower->entry.size += upper->entry.size;
    lower->above = upper->above;
    if (upper->above)
        upper->above->below = lower;
    index_clear(upper->chunk, upper);
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
    if (__builtin_expect(pool->id == pool->id_end, 0)) {
        pool->id_end = 1 + __atomic_add_fetch(&pool->shared->next_id, IDS_AT_ONCE,
                                              __ATOMIC_RELAXED);
        pool->id = pool->id_end - IDS_AT_ONCE;
    }
    return pool->id++;
}

void gs_block_live(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    block->state = GS_BLOCK_LIVE;
    block->size = size;
    block->async = false;
    block->id = next_id(pool);
    pool->live += block->entry.size;
    if (pool->live > pool->live_high) {
        pool->live_high = pool->live;
        if (pool->live > pool->live_peak)
            pool->live_peak = pool->live;
        if (pool->live > pool->counts.live_peak)
            __atomic_store_n(&pool->counts.live_peak, pool->live, __ATOMIC_RELAXED);
    }
}

/* Little is left on the device, beside what was live lately. */
static bool is_tight(const struct gs_pool *pool)
{
    bool in_haste = pool->spare_percent > GS_SPARE_PERCENT_MIN;

    return pool->left + pool->ready <
           pool->live_peak * (in_haste ? TIGHT_TIMES_IN_HASTE : TIGHT_TIMES);
}

size_t gs_pool_strandable(const struct gs_pool *pool)
{
    size_t left = (pool->left + pool->ready) / STRANDED_LEFT;
    size_t most = pool->live_peak / 100 *
                  (STRANDED_PERCENT +
                   STRANDED_PER_SPARE * (pool->spare_percent - GS_SPARE_PERCENT_MIN));

    if (most < STRANDED_MIN)
        most = STRANDED_MIN;
    if (most > left)
        most = is_tight(pool) ? 0 : left;
    return most > pool->stranded ? most - pool->stranded : 0;
}

/* What is left of a used chunk first; a whole one only if it would strand little. */
static struct gs_bin_entry *find_large(struct gs_pool *pool, size_t need)
{
    struct gs_bin_entry *part = gs_bins_find(&pool->bins[GS_BIN_LARGE_PART], need, SIZE_MAX);
    struct gs_bin_entry *whole;
    size_t slack;

    if (part && is_tight(pool) &&
        ((struct gs_block *)part)->chunk->span.size > need + GS_PAGE_SIZE - 1)
        part = NULL;
    if (part && part->size - need <= PART_SLACK)
        return part;
    slack = part || pool->shared->whole_chunks ? 0 : gs_pool_strandable(pool);
    if (slack < GS_PAGE_SIZE - 1)
        slack = GS_PAGE_SIZE - 1;
    whole = gs_bins_find(&pool->bins[GS_BIN_LARGE_WHOLE], need, need + slack);
    return whole ? whole : part;
}

static struct gs_bin_entry *find_small(struct gs_pool *pool, size_t need)
{
    struct gs_bin_entry *part = gs_bins_find(&pool->bins[GS_BIN_SMALL_PART], need, SIZE_MAX);

    return part ? part : gs_bins_find(&pool->bins[GS_BIN_SMALL_WHOLE], need, SIZE_MAX);
}

static void note_ready(struct gs_pool *pool)
{
    if (pool->ready < pool->ready_low)
        pool->ready_low = pool->ready;
}

static struct gs_block *take_entry(struct gs_pool *pool, struct gs_bin_entry *entry, size_t need,
                                   size_t size)
{
    struct gs_block *block = (struct gs_block *)entry, *rest;

    unbin(pool, block);
    rest = gs_block_cut(pool, block, need);
    if (rest)
        make_ready(pool, rest);
    pool->ready -= block->entry.size;
    note_ready(pool);
    gs_block_live(pool, block, size);
    return block;
}

static struct gs_block *take_quick(struct gs_pool *pool, size_t unit, size_t size)
{
    struct gs_block *block = pool->quick[unit];

    pool->quick[unit] = (struct gs_block *)block->entry.next;
    if (!pool->quick[unit])
        pool->quick_used[unit / 64] &= ~(UINT64_C(1) << (unit % 64));
    pool->quick_bytes -= block->entry.size;
    pool->ready -= block->entry.size;
    note_ready(pool);
    gs_block_live(pool, block, size);
    return block;
}

struct gs_block *gs_pool_take(struct gs_pool *pool, size_t size)
{
    bool small;
    size_t need = gs_pool_round(pool, size, &small), unit = need >> GS_UNIT_SHIFT;
    struct gs_bin_entry *entry;

    if (small && unit < GS_QUICK_CLASSES) {
        if (__builtin_expect(!pool->quick[unit] && pool->oldest, 0) &&
            pool->polls++ % POLLED_ONCE_IN == 0)
            gs_pool_poll(pool);
        if (pool->quick[unit])
            return take_quick(pool, unit, size);
    }
    entry = small ? find_small(pool, need) : find_large(pool, need);
    return entry ? take_entry(pool, entry, need, size) : NULL;
}

struct gs_block *gs_pool_take_any(struct gs_pool *pool, size_t size)
{
    static const enum gs_bin_kind order[] = {GS_BIN_LARGE_PART, GS_BIN_LARGE_WHOLE,
                                             GS_BIN_SMALL_PART, GS_BIN_SMALL_WHOLE};
    struct gs_block *block = gs_pool_take(pool, size);

    for (size_t i = 0; !block && i < sizeof order / sizeof *order; i++) {
        size_t unit = i < 2 ? (size_t)1 << GS_LARGE_SHIFT : GS_UNIT_SIZE;
        size_t need = (size + unit - 1) & ~(unit - 1);
        struct gs_bin_entry *entry = gs_bins_find(&pool->bins[order[i]], need, SIZE_MAX);

        if (entry)
            block = take_entry(pool, entry, need, size);
    }
    return block;
}

/* ---- Giving ----------------------------------------------------------------------------- */

void gs_pool_give(struct gs_pool *pool, struct gs_block *block)
{
    struct gs_block *below = block->below, *above = block->above;

    pool->ready += block->entry.size;
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

    if (unit >= GS_QUICK_CLASSES || is_large(block->chunk) ||
        (pool->quick_bytes > QUICK_BYTES_MIN && pool->quick_bytes > pool->live / QUICK_SHARE)) {
        gs_pool_give(pool, block);
        return;
    }
    block->state = GS_BLOCK_QUICK;
    block->entry.next = (struct gs_bin_entry *)pool->quick[unit];
    pool->quick[unit] = block;
    pool->quick_used[unit / 64] |= UINT64_C(1) << (unit % 64);
    pool->quick_bytes += block->entry.size;
    pool->ready += block->entry.size;
}

bool gs_pool_settle(struct gs_pool *pool)
{
    if (!pool->quick_bytes)
        return false;
    for (size_t word = 0; word < GS_QUICK_CLASSES / 64; word++)
        while (pool->quick_used[word]) {
            size_t unit = word * 64 + (size_t)__builtin_ctzll(pool->quick_used[word]);
            struct gs_block *block = pool->quick[unit], *next;

            pool->quick_used[word] &= pool->quick_used[word] - 1;
            pool->quick[unit] = NULL;
            for (; block; block = next) {
                next = (struct gs_block *)block->entry.next;
                pool->ready -= block->entry.size;
                gs_pool_give(pool, block);
            }
        }
    pool->quick_bytes = 0;
    return true;
}

gs_status gs_pool_add_chunk(struct gs_pool *pool, CUdeviceptr address, size_t size, bool small,
                            CUmemGenericAllocationHandle handle)
{
    struct gs_chunk *chunk = chunk_record_new();
    struct gs_block *block = block_record_new(pool);

    if (!chunk || !block)
        goto no_memory;
    chunk->span = (struct gs_span){.base = address, .size = size, .kind = GS_SPAN_CHUNK};
    __atomic_store_n(&chunk->pool, pool, __ATOMIC_RELAXED);
    chunk->handle = handle;
    chunk->reach = 0;
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
    pool->reserved += size;
    pool->ready += size;
    pool->left -= size < pool->left ? size : pool->left;
    if (pool->reserved > pool->counts.reserved_peak)
        __atomic_store_n(&pool->counts.reserved_peak, pool->reserved, __ATOMIC_RELAXED);
    GS_COUNT(pool->counts.grown);
    make_ready(pool, block);
    return GS_OK;
no_memory:
    if (chunk)
        gs_chunk_record_free(chunk);
    if (block)
        gs_block_record_free(pool, block);
    return GS_NO_HOST_MEMORY;
}
