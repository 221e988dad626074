/*
 * Blocks within chunks (core/pool.h): cutting, merging, finding. A small chunk has one bit for
 * each 512 bytes, set where a block starts, so that the block around any address is found by
 * looking backwards over at most 64 words.
 */
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

#define WORDS (GS_UNITS_PER_PAGE / 64)

struct gs_small_index {
    uint64_t starts[WORDS];
    struct gs_block *at[GS_UNITS_PER_PAGE];
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

static void chunk_record_free(struct gs_chunk *chunk)
{
    free(chunk->small);
    chunk->small = NULL;
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

static void block_record_free(struct gs_pool *pool, struct gs_block *block)
{
    block->above = pool->spare_blocks;
    pool->spare_blocks = block;
}

static size_t unit_of(const struct gs_chunk *chunk, uint64_t address)
{
    return (address - chunk->span.base) >> GS_UNIT_SHIFT;
}

static void index_set(struct gs_chunk *chunk, struct gs_block *block)
{
    size_t unit = unit_of(chunk, block->base);

    if (!chunk->small)
        return;
    chunk->small->starts[unit / 64] |= UINT64_C(1) << (unit % 64);
    chunk->small->at[unit] = block;
}

static void index_clear(struct gs_chunk *chunk, const struct gs_block *block)
{
    size_t unit = unit_of(chunk, block->base);

    chunk->small->starts[unit / 64] &= ~(UINT64_C(1) << (unit % 64));
}

struct gs_block *gs_chunk_find(const struct gs_chunk *chunk, uint64_t address)
{
    size_t unit, word;
    uint64_t bits;

    if (!chunk->small)
        return chunk->lowest;
    unit = unit_of(chunk, address);
    word = unit / 64;
    bits = chunk->small->starts[word] & (~UINT64_C(0) >> (63 - unit % 64));
    while (!bits) /* ends: the chunk's first unit always starts a block */
        bits = chunk->small->starts[--word];
    return chunk->small->at[word * 64 + (63 - (size_t)__builtin_clzll(bits))];
}

size_t gs_pool_round(const struct gs_pool *pool, size_t size, bool *ret_small)
{
    size_t unit;

    *ret_small = size < pool->shared->small_limit;
    unit = *ret_small ? GS_UNIT_SIZE : GS_PAGE_SIZE;
    return (size + unit - 1) & ~(unit - 1);
}

static struct gs_bins *bins_of(struct gs_pool *pool, const struct gs_block *block)
{
    return block->chunk->small ? &pool->small : &pool->large;
}

static void make_ready(struct gs_pool *pool, struct gs_block *block)
{
    block->state = GS_BLOCK_READY;
    gs_bins_insert(bins_of(pool, block), &block->entry);
}

/* Cuts what `size` does not need off a block that is in no bin. Without host memory for another
 * record the block simply stays larger. */
static void cut(struct gs_pool *pool, struct gs_block *block, size_t size)
{
    struct gs_block *rest;

    if (!block->chunk->small || block->entry.size == size)
        return;
    rest = block_record_new(pool);
    if (!rest)
        return;
    rest->chunk = block->chunk;
    rest->base = block->base + size;
    rest->entry.size = block->entry.size - size;
    block->entry.size = size;
    rest->below = block;
    rest->above = block->above;
    if (rest->above)
        rest->above->below = rest;
    block->above = rest;
    index_set(rest->chunk, rest);
    make_ready(pool, rest);
}

struct gs_block *gs_pool_take(struct gs_pool *pool, size_t size)
{
    bool small;
    size_t need = gs_pool_round(pool, size, &small);
    /* A large block may waste an eighth: more would make sizes drift, less would rarely fit. */
    size_t limit = small ? SIZE_MAX : need + need / 8;
    struct gs_bins *bins = small ? &pool->small : &pool->large;
    struct gs_bin_entry *entry = gs_bins_find(bins, need, limit);
    struct gs_block *block;

    if (!entry)
        return NULL;
    gs_bins_remove(bins, entry);
    block = (struct gs_block *)entry;
    cut(pool, block, need);
    block->state = GS_BLOCK_LIVE;
    block->size = size;
    block->async = false;
    block->id = __atomic_add_fetch(&pool->shared->next_id, 1, __ATOMIC_RELAXED);
    pool->ready -= block->entry.size;
    pool->live += block->entry.size;
    return block;
}

/* `upper` becomes part of `lower`, its neighbour below; both are ready and in no bin. */
static void merge(struct gs_pool *pool, struct gs_block *lower, struct gs_block *upper)
{
    lower->entry.size += upper->entry.size;
    lower->above = upper->above;
    if (upper->above)
        upper->above->below = lower;
    index_clear(upper->chunk, upper);
    block_record_free(pool, upper);
}

void gs_pool_give(struct gs_pool *pool, struct gs_block *block)
{
    struct gs_block *below = block->below, *above = block->above;

    pool->ready += block->entry.size;
    if (above && above->state == GS_BLOCK_READY) {
        gs_bins_remove(bins_of(pool, above), &above->entry);
        merge(pool, block, above);
    }
    if (below && below->state == GS_BLOCK_READY) {
        gs_bins_remove(bins_of(pool, below), &below->entry);
        merge(pool, below, block);
        block = below;
    }
    make_ready(pool, block);
}

gs_status gs_pool_add_chunk(struct gs_pool *pool, CUdeviceptr address, size_t size, bool small,
                            CUmemGenericAllocationHandle handle)
{
    struct gs_chunk *chunk = chunk_record_new();
    struct gs_block *block = block_record_new(pool);
    struct gs_small_index *index = small ? calloc(1, sizeof *index) : NULL;

    if (!chunk || !block || (small && !index))
        goto no_memory;
    chunk->span = (struct gs_span){.base = address, .size = size, .kind = GS_SPAN_CHUNK};
    __atomic_store_n(&chunk->pool, pool, __ATOMIC_RELAXED);
    chunk->handle = handle;
    chunk->id = __atomic_add_fetch(&pool->shared->next_id, 1, __ATOMIC_RELAXED);
    chunk->lowest = block;
    chunk->small = index;
    block->chunk = chunk;
    block->base = address;
    block->entry.size = size;
    if (gs_map_insert(pool->shared->map, &chunk->span) != GS_OK)
        goto no_memory;
    index_set(chunk, block);
    chunk->prev = NULL;
    chunk->next = pool->chunks;
    if (chunk->next)
        chunk->next->prev = chunk;
    pool->chunks = chunk;
    pool->reserved += size;
    pool->ready += size;
    make_ready(pool, block);
    return GS_OK;
no_memory:
    if (chunk) {
        chunk->small = NULL;
        chunk_record_free(chunk);
    }
    free(index);
    if (block)
        block_record_free(pool, block);
    return GS_NO_HOST_MEMORY;
}

struct gs_chunk *gs_pool_detach_ready(struct gs_pool *pool, size_t keep)
{
    struct gs_chunk *detached = NULL, *next;

    for (struct gs_chunk *chunk = pool->chunks; chunk && pool->ready > keep; chunk = next) {
        struct gs_block *block = chunk->lowest;

        next = chunk->next;
        if (block->state != GS_BLOCK_READY || block->entry.size != chunk->span.size)
            continue;
        if (!gs_regcache_doom(pool->shared->regcache, chunk->span.base, chunk->span.size))
            continue;
        gs_bins_remove(bins_of(pool, block), &block->entry);
        block_record_free(pool, block);
        gs_map_remove(pool->shared->map, &chunk->span);
        if (chunk->next)
            chunk->next->prev = chunk->prev;
        if (chunk->prev)
            chunk->prev->next = chunk->next;
        else
            pool->chunks = chunk->next;
        __atomic_store_n(&chunk->pool, NULL, __ATOMIC_RELAXED);
        pool->reserved -= chunk->span.size;
        pool->ready -= chunk->span.size;
        chunk->next = detached;
        detached = chunk;
    }
    return detached;
}

size_t gs_chunks_release(struct gs_pool_shared *shared, struct gs_chunk *chunks)
{
    size_t bytes = 0;

    while (chunks) {
        struct gs_chunk *next = chunks->next;

        /* What could not be unpinned keeps its memory: it is lost, but nobody else's. */
        if (gs_regcache_settle(shared->regcache, chunks->span.base, chunks->span.size)) {
            gs_device_unmap(shared->driver, chunks->handle, chunks->span.base,
                            chunks->span.size);
            bytes += chunks->span.size;
        }
        chunk_record_free(chunks);
        chunks = next;
    }
    return bytes;
}
