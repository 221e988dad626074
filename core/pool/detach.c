/*
 * Chunks that leave a pool (core/pool/pool.h): which, and how many are too much. A pool holds no
 * more than a little above what was live lately, what retires apart: a chunk that is ready as a
 * whole goes when a new one of another size comes. Without that, a program whose sizes change holds
 * several times what it uses.
 */
#include "core/pool/pool.h"

#define WEIGHED_NS     UINT64_C(100000000)  /* at least between two weighings */
#define LATELY_NS      UINT64_C(1600000000) /* what was felt is forgotten in */
#define UNFELT_NS      UINT64_C(500000000)  /* and before less is kept again */
#define FELT_PART      100                  /* of the time, */
#define FELT_MUCH_PART 40                   /* or that much */
#define SPARE_STEP     4
#define UNFELT_PART    1000
#define HELD_MIN       ((size_t)64 << 20) /* live and ready: below this nothing is too much */

static bool may_unmap(const struct gs_pool *pool, const struct gs_chunk *chunk)
{
    const struct gs_guard *guard = &pool->shared->guard;

    return guard->may_unmap(guard->arg, chunk->span.base, chunk->span.size);
}

static struct gs_chunk *chunk_of(const struct gs_bin_entry *entry)
{
    return ((const struct gs_block *)entry)->chunk;
}

/* Whether no work touches it any more. */
static bool has_passed(struct gs_pool *pool, struct gs_chunk *chunk)
{
    return pool->leaving ? gs_fence_passed(&chunk->freed)
                         : gs_fence_query(&pool->events, &chunk->freed) == GS_OK;
}

/* The same of one after the other: where one is too early for the GPU, so are those after it, of
 * which it is not asked. */
static bool has_passed_too(struct gs_pool *pool, struct gs_chunk *chunk, struct gs_fence *stuck)
{
    if (stuck->line && stuck->line == chunk->freed.line && stuck->number <= chunk->freed.number)
        return false;
    if (has_passed(pool, chunk))
        return true;
    *stuck = chunk->freed;
    return false;
}

static struct gs_chunk *detach(struct gs_pool *pool, enum gs_bin_kind kind,
                               struct gs_bin_entry *entry, struct gs_chunk *onto)
{
    struct gs_chunk *chunk = ((struct gs_block *)entry)->chunk;

    gs_bins_remove(&pool->free.bins[kind], entry);
    gs_block_record_free(pool, (struct gs_block *)entry);
    gs_map_remove(pool->shared->map, &chunk->span);
    if (chunk->next)
        chunk->next->prev = chunk->prev;
    if (chunk->prev)
        chunk->prev->next = chunk->next;
    else
        pool->chunks = chunk->next;
    __atomic_store_n(&chunk->pool, NULL, __ATOMIC_RELAXED);
    GS_SUB(pool->reserved, chunk->span.size);
    GS_SUB(pool->ready, chunk->span.size);
    gs_chunk_settle_debt(pool, chunk);
    if (pool->ready < pool->kept.ready_low)
        pool->kept.ready_low = pool->ready;
    GS_COUNT(pool->counts.trims);
    chunk->next = onto;
    return chunk;
}

/* From now on until its end others may wait for it. */
static void begin_release(struct gs_pool *pool, struct gs_chunk *chunk)
{
    chunk->releasing = true;
    __atomic_add_fetch(&pool->shared->releasing, 1, __ATOMIC_SEQ_CST);
}

struct gs_chunk *gs_pool_detach_bytes(struct gs_pool *pool, size_t bytes)
{
    static const enum gs_bin_kind kinds[] = {GS_BIN_LARGE_WHOLE, GS_BIN_SMALL_WHOLE};
    struct gs_bin_entry *staying[2] = {NULL, NULL};
    struct gs_chunk *detached = NULL;
    struct gs_fence stuck = {0};

    for (int i = 0; i < 2; i++)
        while (bytes > 0) {
            struct gs_bins *bins = &pool->free.bins[kinds[i]];
            struct gs_bin_entry *entry = gs_bins_find(bins, bytes, SIZE_MAX);

            if (!entry)
                entry = gs_bins_largest(bins);
            if (!entry)
                break;
            if (has_passed_too(pool, chunk_of(entry), &stuck) && may_unmap(pool, chunk_of(entry))) {
                bytes -= entry->size < bytes ? entry->size : bytes;
                detached = detach(pool, kinds[i], entry, detached);
                begin_release(pool, detached);
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

            gs_bins_insert(&pool->free.bins[kinds[i]], staying[i]);
            staying[i] = next;
        }
    return detached;
}

void gs_pool_spend(struct gs_pool *pool, struct gs_block *block)
{
    struct gs_chunk *chunk = block->chunk;

    if (block->entry.size == chunk->span.size && may_unmap(pool, chunk))
        pool->guarded.spent = detach(pool, GS_BIN_LARGE_WHOLE, &block->entry, pool->guarded.spent);
}

struct gs_chunk *gs_pool_detach_ready(struct gs_pool *pool, size_t keep)
{
    if (pool->ready <= keep)
        return NULL;
    gs_pool_settle(pool);
    return gs_pool_detach_bytes(pool, pool->ready - keep);
}

void gs_pool_felt(struct gs_pool *pool, uint64_t ns, bool again)
{
    GS_ADD(pool->counts.map_ns, ns);
    if (again)
        pool->kept.felt_ns += ns;
}

/* More is kept only for what has been felt for a while: at a program's start sizes have not
 * settled, whatever is kept. */
void gs_pool_weigh(struct gs_pool *pool)
{
    uint64_t now = gs_now_ns(), passed = now - pool->kept.seen_ns, felt = pool->kept.felt_ns;

    if (passed < WEIGHED_NS)
        return;
    pool->kept.felt_lately -=
        pool->kept.felt_lately * (passed < LATELY_NS ? passed : LATELY_NS) / LATELY_NS;
    pool->kept.felt_lately += felt;
    if (felt > passed / FELT_PART && pool->kept.felt_lately > LATELY_NS / FELT_PART) {
        bool much =
            felt > passed / FELT_MUCH_PART && pool->kept.felt_lately > LATELY_NS / FELT_MUCH_PART;
        unsigned most = much ? GS_SPARE_PERCENT_MOST : GS_SPARE_PERCENT_MORE;
        unsigned percent = pool->kept.spare_percent + (much ? 2 : 1) * SPARE_STEP;

        if (pool->kept.spare_percent < most)
            __atomic_store_n(&pool->kept.spare_percent, percent < most ? percent : most,
                             __ATOMIC_RELAXED);
    } else if (felt < passed / UNFELT_PART && pool->kept.spare_percent > GS_SPARE_PERCENT_MIN &&
               passed > UNFELT_NS) {
        GS_SUB(pool->kept.spare_percent, 1);
    }
    pool->kept.seen_ns = now;
    pool->kept.felt_ns = 0;
}

size_t gs_pool_excess(const struct gs_pool *pool, size_t size)
{
    size_t peak =
        pool->kept.live_peak > pool->live + size ? pool->kept.live_peak : pool->live + size;
    size_t most =
        peak + peak / 100 * pool->kept.spare_percent + pool->kept.behind_high + pool->order.bytes;
    size_t held = pool->live + pool->ready + gs_pool_behind_bytes(pool) + pool->order.bytes + size;

    if (most < HELD_MIN)
        most = HELD_MIN;
    return held > most ? held - most : 0;
}

struct gs_chunk *gs_pool_detach_excess(struct gs_pool *pool, size_t size)
{
    size_t behind = gs_pool_behind_bytes(pool), excess;

    /* What retires now is ready soon, and so much will retire again; but an epoch or two are no
     * sign of a GPU that is behind. */
    if (behind > pool->kept.behind_high + 2 * pool->epochs.limit)
        pool->kept.behind_high = behind - 2 * pool->epochs.limit;
    excess = gs_pool_excess(pool, size);
    return excess > 0 ? gs_pool_detach_bytes(pool, excess) : NULL;
}
