/* Making, using and releasing registrations (regcache.h). How they end is in ends.c. */
#include "core/regcache/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

gs_status gs_regcache_create(const struct gs_regcache_options *options,
                             const struct gs_regcache_events *events, const struct gs_log *log,
                             struct gs_regcache **ret_cache)
{
    struct gs_regcache *cache = aligned_alloc(_Alignof(struct gs_regcache), sizeof *cache);

    if (!cache)
        return GS_NO_HOST_MEMORY;
    memset(cache, 0, sizeof *cache);
    gs_lock_init(&cache->lock, GS_RANK_REGISTRATIONS);
    pthread_cond_init(&cache->left, NULL);
    cache->limit_count = options->count;
    cache->limit_bytes = options->bytes;
    gs_reg_weigh_locked(cache);
    cache->log = *log;
    if (events)
        cache->events = *events;
    *ret_cache = cache;
    return GS_OK;
}

static bool every(const struct gs_regcache_info *info, void *arg)
{
    return true;
}

void gs_regcache_destroy(struct gs_regcache *cache)
{
    if (!cache)
        return;
    gs_regcache_flush(cache, every, NULL);
    pthread_cond_destroy(&cache->left);
    gs_lock_destroy(&cache->lock);
    gs_reg_slabs_free(cache);
    free(cache->page);
    free(cache->by_handle);
    free(cache);
}

void gs_regcache_limit_bytes(struct gs_regcache *cache, uint64_t bytes)
{
    gs_lock_take(&cache->lock);
    if (bytes < cache->limit_bytes)
        cache->limit_bytes = bytes;
    gs_reg_weigh_locked(cache);
    gs_lock_release(&cache->lock);
}

bool gs_regcache_empty(const struct gs_regcache *cache)
{
    return __atomic_load_n(&cache->entries, __ATOMIC_ACQUIRE) == 0;
}

const uint64_t *gs_regcache_count(const struct gs_regcache *cache)
{
    return &cache->entries;
}

void gs_reg_announce(struct gs_regcache *cache, struct gs_reg_range range)
{
    if (range.size > 0 && cache->events.released)
        cache->events.released(cache->events.arg, range.base, range.size);
}

/* ---- Making ---------------------------------------------------------------------------------- */

struct growth {
    const struct gs_reg_request *request;
    uint64_t base, end, wanted;
};

static bool may_merge(const struct gs_reg *reg, const struct gs_reg_request *request)
{
    return gs_reg_kept(reg) && !reg->exact && reg->id == request->id &&
           memcmp(&reg->key, &request->key, sizeof reg->key) == 0;
}

/* An idle registration that overlaps is pinned again as part of the new one, unless that makes it
 * more than twice as large: slices registered one after the other would be pinned over and over. */
static bool grow_locked(struct gs_reg *reg, void *arg)
{
    struct growth *growth = arg;
    uint64_t base = reg->base < growth->base ? reg->base : growth->base;
    uint64_t end = reg->end > growth->end ? reg->end : growth->end;

    if (GS_LOAD(reg->uses) == 0 && may_merge(reg, growth->request) &&
        end - base <= 2 * growth->wanted) {
        growth->base = base;
        growth->end = end;
    }
    return true;
}

gs_status gs_regcache_begin(struct gs_regcache *cache, const struct gs_reg_request *request,
                            struct gs_reg **ret_reg, bool *ret_hit)
{
    struct growth growth = {request, request->cover, request->cover + request->cover_size,
                            request->cover_size};
    struct gs_reg *reg;

    gs_lock_take(&cache->lock);
    reg = gs_regcache_hit(cache, request);
    *ret_hit = reg != NULL;
    if (!reg && (reg = gs_reg_new_locked(cache))) {
        if (request->keep && !request->exact && cache->entries)
            gs_reg_overlaps_locked(cache, growth.base, growth.end, grow_locked, &growth);
        gs_reg_describe_locked(reg, request, growth.base, growth.end);
        GS_STORE(reg->flags, request->keep ? 0 : GS_REG_UNKEPT);
        __atomic_store_n(&reg->uses, GS_REG_PENDING, __ATOMIC_RELEASE);
        gs_reg_enter_locked(cache, reg);
        cache->stats.misses++;
    }
    gs_lock_release(&cache->lock);
    *ret_reg = reg;
    return reg ? GS_OK : GS_NO_HOST_MEMORY;
}

static bool is_full(int error)
{
    return error == ENOMEM || error == ENOSPC;
}

/* Idle registrations within the new range are of no use any more. */
struct absorption {
    struct gs_regcache *cache;
    struct gs_reg *by;
    struct gs_reg_leavers *leavers;
    bool any;
};

static bool absorb_locked(struct gs_reg *reg, void *arg)
{
    struct absorption *absorption = arg;
    const struct gs_reg *by = absorption->by;

    if (reg != by && reg->base >= by->base && reg->end <= by->end && gs_reg_kept(reg) &&
        !reg->exact && reg->id == by->id && memcmp(&reg->key, &by->key, sizeof by->key) == 0 &&
        (reg->base > by->base || reg->end < by->end) &&
        gs_reg_depart_locked(absorption->cache, absorption->leavers, reg))
        absorption->cache->stats.merges++;
    return true;
}

static bool clear_way_locked(struct gs_reg *reg, void *arg)
{
    struct absorption *absorption = arg;

    if (reg != absorption->by && reg->key.backend == absorption->by->key.backend &&
        gs_reg_depart_locked(absorption->cache, absorption->leavers, reg))
        absorption->cache->stats.evictions++;
    return true;
}

/* For a device that refuses overlapping registrations. */
static void make_way(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg_leavers leavers = {NULL};
    struct absorption absorption = {cache, reg, &leavers, false};

    gs_lock_take(&cache->lock);
    gs_reg_overlaps_locked(cache, reg->base, reg->end, clear_way_locked, &absorption);
    gs_lock_release(&cache->lock);
    gs_reg_unpin(cache, &leavers);
}

static int pin(struct gs_regcache *cache, struct gs_reg *reg, void *arg, void **ret_handle)
{
    const struct gs_reg_backend *backend = reg->key.backend;
    size_t size = reg->end - reg->base;
    int error;

    if (backend->refuses)
        make_way(cache, reg);
    error = backend->pin(&reg->key, reg->base, size, arg, ret_handle);
    /* Nothing kept may make a call fail that would have succeeded without a cache. */
    if (is_full(error) && gs_reg_evict(cache, true))
        error = backend->pin(&reg->key, reg->base, size, arg, ret_handle);
    return error;
}

int gs_regcache_complete(struct gs_regcache *cache, struct gs_reg *reg, void *arg)
{
    struct gs_reg_leavers leavers = {NULL};
    struct absorption absorption = {cache, reg, &leavers, false};
    uint64_t begin = gs_now_ns();
    void *handle = NULL;
    struct gs_reg_range awaited;
    bool over;
    int error = pin(cache, reg, arg, &handle);

    gs_lock_take(&cache->lock);
    if (error) {
        awaited = gs_reg_awaited_locked(reg);
        gs_reg_leave_locked(cache, reg);
        gs_reg_recycle_locked(cache, reg);
        cache->stats.failures++;
        pthread_cond_broadcast(&cache->left);
        gs_lock_release(&cache->lock);
        gs_reg_announce(cache, awaited);
        return error;
    }
    cache->stats.pins++;
    cache->stats.pin_ns += gs_now_ns() - begin;
    GS_STORE(reg->handle, handle);
    gs_reg_handle_enter_locked(cache, reg);
    if (gs_reg_kept(reg) && !reg->exact)
        gs_reg_overlaps_locked(cache, reg->base, reg->end, absorb_locked, &absorption);
    __atomic_store_n(&reg->uses, 1, __ATOMIC_RELEASE);
    over = GS_LOAD(cache->over);
    gs_lock_release(&cache->lock);
    gs_reg_unpin(cache, &leavers);
    if (over)
        gs_reg_evict(cache, false);
    return 0;
}

/* ---- Using and releasing --------------------------------------------------------------------- */

/*
 * What flags that came during the use ask for after it. From the end of the use on the entry may be
 * another's: a flag of theirs that is taken here is only announced early, and whoever waits for it
 * waits anew; one of theirs that is to be dropped and idle is to be dropped. Where it has gone
 * since, whoever unpinned it has announced that.
 */
static void after_release(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg_leavers leavers = {NULL};
    struct gs_reg_range awaited;

    gs_lock_take(&cache->lock);
    awaited = gs_reg_awaited_locked(reg);
    if (GS_LOAD(reg->flags) & GS_REG_DROP && gs_reg_depart_locked(cache, &leavers, reg))
        cache->stats.invalidations++;
    gs_lock_release(&cache->lock);
    gs_reg_unpin(cache, &leavers);
    gs_reg_announce(cache, awaited);
}

/* The last use of one that is not kept unpins it. */
static int release_unkept(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg_leavers leavers = {NULL};
    uint32_t one = 1;

    gs_lock_take(&cache->lock);
    if (!__atomic_compare_exchange_n(&reg->uses, &one, GS_REG_INVALID, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED)) {
        __atomic_fetch_sub(&reg->uses, 1, __ATOMIC_SEQ_CST); /* shared: another's use goes on, */
        gs_lock_release(&cache->lock);
        after_release(cache, reg); /* or has ended meanwhile */
        return 0;
    }
    gs_reg_depart_locked(cache, &leavers, reg);
    gs_lock_release(&cache->lock);
    return gs_reg_unpin_one(cache, reg, false);
}

int gs_regcache_release(struct gs_regcache *cache, struct gs_reg *reg)
{
    if (__builtin_expect(GS_LOAD(reg->flags) & (GS_REG_UNKEPT | GS_REG_DROP), 0))
        return release_unkept(cache, reg);
    if (reg->key.backend->lends) /* the next user's is not this one's: nothing until it says */
        GS_STORE(reg->view_end, 0);
    __atomic_fetch_sub(&reg->uses, 1, __ATOMIC_SEQ_CST);
    if (__builtin_expect(__atomic_load_n(&reg->flags, __ATOMIC_SEQ_CST), 0))
        after_release(cache, reg);
    if (__builtin_expect(GS_LOAD(cache->over), 0))
        gs_reg_evict(cache, false);
    return 0;
}

struct gs_reg *gs_regcache_find(struct gs_regcache *cache, const struct gs_reg_backend *backend,
                                const void *handle)
{
    struct gs_reg *reg;

    if (gs_regcache_empty(cache))
        return NULL;
    reg = gs_reg_by_handle(cache, backend, handle, false);
    if (!reg) { /* or others changed the list meanwhile */
        gs_lock_take(&cache->lock);
        reg = gs_reg_by_handle(cache, backend, handle, false);
        gs_lock_release(&cache->lock);
    }
    return reg;
}

bool gs_regcache_knows(struct gs_regcache *cache, const struct gs_reg_backend *backend,
                       const void *handle)
{
    bool knows;

    if (gs_regcache_empty(cache))
        return false;
    gs_lock_take(&cache->lock);
    knows = gs_reg_by_handle(cache, backend, handle, true) != NULL;
    gs_lock_release(&cache->lock);
    return knows;
}

void gs_regcache_change(struct gs_regcache *cache, struct gs_reg *reg,
                        const struct gs_reg_request *request)
{
    struct gs_reg_range awaited;

    gs_lock_take(&cache->lock);
    awaited = gs_reg_awaited_locked(reg); /* of the old range, whose use ends */
    /* Not to be found while it changes. */
    __atomic_store_n(&reg->uses, GS_REG_PENDING, __ATOMIC_RELEASE);
    gs_reg_leave_locked(cache, reg);
    gs_reg_describe_locked(reg, request, request->base, request->base + request->size);
    reg->exact = true;
    __atomic_fetch_or(&reg->flags, GS_REG_UNKEPT, __ATOMIC_RELAXED);
    gs_reg_enter_locked(cache, reg);
    __atomic_store_n(&reg->uses, 1, __ATOMIC_RELEASE);
    gs_lock_release(&cache->lock);
    gs_reg_announce(cache, awaited);
}

static struct gs_reg_range forget_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg_range awaited;

    gs_lock_assert_held(&cache->lock);
    __atomic_store_n(&reg->uses, GS_REG_LEAVING, __ATOMIC_RELEASE);
    awaited = gs_reg_awaited_locked(reg);
    gs_reg_handle_leave_locked(cache, reg);
    gs_reg_leave_locked(cache, reg);
    gs_reg_recycle_locked(cache, reg);
    pthread_cond_broadcast(&cache->left);
    return awaited;
}

void gs_regcache_forget(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg_range awaited;

    gs_lock_take(&cache->lock);
    awaited = forget_locked(cache, reg);
    gs_lock_release(&cache->lock);
    gs_reg_announce(cache, awaited);
}

/* Up to the first whose end somebody awaits; false: there is none. */
static bool abandon_some(struct gs_regcache *cache,
                         bool (*matches)(const struct gs_regcache_info *info, void *arg), void *arg)
{
    struct gs_reg_range awaited = {0};
    struct gs_reg *next;

    gs_lock_take(&cache->lock);
    for (struct gs_reg *reg = cache->first_used; reg && awaited.size == 0; reg = next) {
        struct gs_regcache_info info = {.key = reg->key,
                                        .base = reg->base,
                                        .id = reg->id,
                                        .size = reg->end - reg->base,
                                        .keep = gs_reg_kept(reg)};
        uint32_t uses = GS_LOAD(reg->uses);

        next = reg->next_used;
        if (uses > 0 && uses < GS_REG_PENDING && matches(&info, arg))
            awaited = forget_locked(cache, reg);
    }
    gs_lock_release(&cache->lock);
    gs_reg_announce(cache, awaited);
    return awaited.size > 0;
}

void gs_regcache_abandon(struct gs_regcache *cache,
                         bool (*matches)(const struct gs_regcache_info *info, void *arg), void *arg)
{
    while (abandon_some(cache, matches, arg))
        continue;
}

void gs_reg_drop(struct gs_reg *reg)
{
    __atomic_fetch_or(&reg->flags, GS_REG_DROP, __ATOMIC_RELAXED);
}

uint64_t gs_reg_view(const struct gs_reg *reg)
{
    return GS_LOAD(reg->view_base);
}

void *gs_reg_handle(const struct gs_reg *reg)
{
    return reg->handle;
}

const struct gs_reg_key *gs_reg_key(const struct gs_reg *reg)
{
    return &reg->key;
}

bool gs_reg_kept(const struct gs_reg *reg)
{
    return !(GS_LOAD(reg->flags) & GS_REG_UNKEPT);
}

uint64_t *gs_reg_note(struct gs_reg *reg)
{
    return reg->note;
}

/* ---- Asking ---------------------------------------------------------------------------------- */

static void read_stats_locked(const struct gs_regcache *cache, struct gs_regcache_stats *ret_stats)
{
    gs_lock_assert_held(&cache->lock);
    *ret_stats = cache->stats;
    ret_stats->hits = cache->hits;
    for (const struct gs_reg *reg = cache->first_used; reg; reg = reg->next_used) {
        uint32_t uses = GS_LOAD(reg->uses);

        ret_stats->hits += GS_LOAD(reg->hits);
        ret_stats->in_use += uses > 0 && uses <= GS_REG_PENDING;
    }
    ret_stats->entries = cache->entries;
    ret_stats->bytes = cache->bytes;
    ret_stats->host_bytes = sizeof *cache + cache->slab_bytes;
    if (cache->page)
        ret_stats->host_bytes += ((uint64_t)16) << cache->bits;
}

void gs_regcache_stats(struct gs_regcache *cache, struct gs_regcache_stats *ret_stats)
{
    gs_lock_take(&cache->lock);
    read_stats_locked(cache, ret_stats);
    gs_lock_release(&cache->lock);
}

bool gs_regcache_try_stats(struct gs_regcache *cache, struct gs_regcache_stats *ret_stats)
{
    if (!gs_lock_try(&cache->lock))
        return false;
    read_stats_locked(cache, ret_stats);
    gs_lock_release(&cache->lock);
    return true;
}

size_t gs_regcache_list(struct gs_regcache *cache, struct gs_regcache_info *info, size_t room)
{
    size_t count = 0;

    gs_lock_take(&cache->lock);
    for (const struct gs_reg *reg = cache->first_used; reg; reg = reg->next_used, count++) {
        uint32_t uses = GS_LOAD(reg->uses);

        if (count < room)
            info[count] = (struct gs_regcache_info){
                .key = reg->key,
                .base = reg->base,
                .id = reg->id,
                .size = reg->end - reg->base,
                .hits = GS_LOAD(reg->hits),
                .uses = uses == GS_REG_PENDING  ? 1
                        : uses < GS_REG_PENDING ? uses
                                                : 0,
                .keep = gs_reg_kept(reg),
            };
    }
    gs_lock_release(&cache->lock);
    return count;
}
