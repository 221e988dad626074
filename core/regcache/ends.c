/*
 * How registrations end (regcache.h): by eviction, because their memory or their domain goes, or
 * because they are not to be kept. Unpinning happens with no lock held; an entry that leaves stays
 * in the index until it is unpinned, so that whoever wants to unmap its range waits for it.
 */
#include "core/regcache/internal.h"

#include <string.h>

static _Thread_local unsigned unpinning;

/* Whether this thread is in an unpin function. */
static bool is_unpinning(void)
{
    return unpinning > 0;
}

bool gs_reg_depart_locked(struct gs_regcache *cache, struct gs_reg_leavers *leavers,
                          struct gs_reg *reg)
{
    uint32_t idle = 0, invalidated = GS_REG_INVALID;

    gs_lock_assert_held(&cache->lock);
    /* Against a release: either it is idle here, or the release sees what flags were set before. */
    if (!__atomic_compare_exchange_n(&reg->uses, &idle, GS_REG_LEAVING, false, __ATOMIC_SEQ_CST,
                                     __ATOMIC_SEQ_CST) &&
        !__atomic_compare_exchange_n(&reg->uses, &invalidated, GS_REG_LEAVING, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return false;
    gs_reg_handle_leave_locked(cache, reg);
    GS_STORE(reg->next_handle, leavers->first);
    leavers->first = reg;
    cache->departed++;
    cache->departed_bytes += reg->end - reg->base;
    return true;
}

static void stays_for_ever_locked(struct gs_regcache *cache, struct gs_reg *reg, int error)
{
    gs_lock_assert_held(&cache->lock);
    gs_log_line(&cache->log, GS_LOG_WARNING,
                "%s: a registration of %llu bytes at %#llx could not be undone (%s): its memory "
                "is kept until the program ends",
                reg->key.backend->name, (unsigned long long)(reg->end - reg->base),
                (unsigned long long)reg->base, strerror(error));
    __atomic_fetch_or(&reg->flags, GS_REG_UNKEPT, __ATOMIC_RELAXED);
    GS_STORE(reg->view_base, reg->base);
    GS_STORE(reg->view_end, reg->end);
    cache->stats.failures++;
}

int gs_reg_unpin_one(struct gs_regcache *cache, struct gs_reg *reg, bool for_ever)
{
    struct gs_reg_range awaited = {0};
    uint64_t begin = gs_now_ns();
    int error;

    unpinning++;
    error = reg->key.backend->unpin(&reg->key, reg->handle);
    unpinning--;
    gs_lock_take(&cache->lock);
    cache->stats.unpin_ns += gs_now_ns() - begin;
    cache->departed--;
    cache->departed_bytes -= reg->end - reg->base;
    if (error) {
        if (for_ever)
            stays_for_ever_locked(cache, reg, error);
        gs_reg_handle_enter_locked(cache, reg);
        __atomic_store_n(&reg->uses, 1, __ATOMIC_RELEASE);
    } else {
        cache->stats.unpins++;
        awaited = gs_reg_awaited_locked(reg);
        gs_reg_leave_locked(cache, reg);
        gs_reg_recycle_locked(cache, reg);
    }
    pthread_cond_broadcast(&cache->left);
    gs_lock_release(&cache->lock);
    gs_reg_announce(cache, awaited);
    return error;
}

void gs_reg_unpin(struct gs_regcache *cache, struct gs_reg_leavers *leavers)
{
    struct gs_reg *reg;

    while ((reg = leavers->first)) {
        leavers->first = reg->next_handle;
        gs_reg_unpin_one(cache, reg, true);
    }
}

/* The least recently used idle entry, or one that is invalidated, is taken. Those used since they
 * got their place go to the end of the list. Called with the lock held. */
static struct gs_reg *take_oldest_locked(struct gs_regcache *cache, struct gs_reg_leavers *leavers)
{
    struct gs_reg *reg = cache->first_used, *next;

    gs_lock_assert_held(&cache->lock);
    for (uint64_t left = cache->entries; reg && left > 0; left--, reg = next) {
        uint32_t uses = GS_LOAD(reg->uses);

        next = reg->next_used;
        if (uses != GS_REG_INVALID && GS_LOAD(reg->stamp) != reg->placed) {
            gs_reg_place_last_locked(cache, reg);
            if (!next)
                next = reg; /* the only one */
        } else if (gs_reg_depart_locked(cache, leavers, reg)) {
            return reg;
        }
    }
    return NULL;
}

/* Every place in the list was given up in turn: what has moved is looked at once more. */
static struct gs_reg *take_any_locked(struct gs_regcache *cache, struct gs_reg_leavers *leavers)
{
    struct gs_reg *reg = take_oldest_locked(cache, leavers);

    return reg ? reg : take_oldest_locked(cache, leavers);
}

unsigned gs_reg_evict(struct gs_regcache *cache, bool all)
{
    struct gs_reg_leavers leavers = {NULL};
    unsigned count = 0;
    struct gs_reg *reg;

    gs_lock_take(&cache->lock);
    while ((all || cache->entries - cache->departed > cache->limit_count ||
            cache->bytes - cache->departed_bytes > cache->limit_bytes) &&
           (reg = take_any_locked(cache, &leavers)))
        count++;
    cache->stats.evictions += count;
    gs_lock_release(&cache->lock);
    gs_reg_unpin(cache, &leavers);
    return count;
}

/* ---- The memory goes ------------------------------------------------------------------------- */

struct search {
    struct gs_regcache *cache;
    struct gs_reg_leavers *leavers;
    uint64_t base, end;
    bool in_use, leaving;
};

static bool is_used(uint32_t uses)
{
    return uses > 0 && uses <= GS_REG_PENDING;
}

static bool find_used_locked(struct gs_reg *reg, void *arg)
{
    struct search *search = arg;

    if (!is_used(__atomic_load_n(&reg->uses, __ATOMIC_ACQUIRE)) ||
        GS_LOAD(reg->view_base) >= search->end || GS_LOAD(reg->view_end) <= search->base)
        return true;
    /* Announced at its release; which may have been just now. */
    __atomic_fetch_or(&reg->flags, GS_REG_AWAITED, __ATOMIC_SEQ_CST);
    search->in_use = is_used(__atomic_load_n(&reg->uses, __ATOMIC_SEQ_CST));
    return !search->in_use;
}

bool gs_regcache_in_use(struct gs_regcache *cache, uint64_t base, size_t size)
{
    struct search search = {.base = base, .end = base + size};

    if (gs_regcache_empty(cache))
        return false;
    gs_lock_take(&cache->lock);
    gs_reg_overlaps_locked(cache, base, base + size, find_used_locked, &search);
    gs_lock_release(&cache->lock);
    return search.in_use;
}

static bool invalidate_one_locked(struct gs_reg *reg, void *arg)
{
    struct search *search = arg;
    uint32_t uses = 0;

    if (__atomic_compare_exchange_n(&reg->uses, &uses, GS_REG_INVALID, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST))
        search->cache->stats.invalidations++;
    else if (is_used(uses))
        search->in_use = true;
    return true;
}

/* Any use of any part of it. */
static bool find_any_use_locked(struct gs_reg *reg, void *arg)
{
    struct search *search = arg;

    if (!is_used(__atomic_load_n(&reg->uses, __ATOMIC_ACQUIRE)))
        return true;
    __atomic_fetch_or(&reg->flags, GS_REG_AWAITED, __ATOMIC_SEQ_CST);
    search->in_use = is_used(__atomic_load_n(&reg->uses, __ATOMIC_SEQ_CST));
    return !search->in_use;
}

bool gs_regcache_invalidate(struct gs_regcache *cache, uint64_t base, size_t size)
{
    struct search search = {.cache = cache, .base = base, .end = base + size};

    if (gs_regcache_empty(cache))
        return true;
    if (is_unpinning()) /* draining would wait for this very thread */
        return false;
    gs_lock_take(&cache->lock);
    gs_reg_overlaps_locked(cache, base, base + size, find_any_use_locked, &search);
    if (!search.in_use)
        gs_reg_overlaps_locked(cache, base, base + size, invalidate_one_locked, &search);
    gs_lock_release(&cache->lock);
    return !search.in_use;
}

static bool drain_one_locked(struct gs_reg *reg, void *arg)
{
    struct search *search = arg;
    uint32_t uses = __atomic_load_n(&reg->uses, __ATOMIC_ACQUIRE);

    if (is_used(uses)) {
        search->in_use = true;
        if (reg->id) /* its memory goes all the same: what is known of it is stale */
            __atomic_fetch_or(&reg->flags, GS_REG_DROP, __ATOMIC_SEQ_CST);
    } else if (gs_reg_depart_locked(search->cache, search->leavers, reg)) {
        if (uses == 0)
            search->cache->stats.invalidations++;
    } else if (GS_LOAD(reg->uses) == GS_REG_LEAVING) {
        search->leaving = true;
    } else { /* a hit came between */
        search->in_use = true;
    }
    return true;
}

bool gs_regcache_drain(struct gs_regcache *cache, uint64_t base, size_t size)
{
    struct gs_reg_leavers leavers = {NULL};
    struct search search = {.cache = cache, .leavers = &leavers, .leaving = true};

    if (gs_regcache_empty(cache))
        return true;
    while (search.leaving) {
        search.in_use = search.leaving = false;
        gs_lock_take(&cache->lock);
        gs_reg_overlaps_locked(cache, base, base + size, drain_one_locked, &search);
        if (search.leaving && !leavers.first) {
            if (is_unpinning()) {
                gs_lock_release(&cache->lock);
                return false;
            }
            /* Until the thread that unpins has done so, in a call of a card's library or of the
             * program's. Natively it would be in that call as well, and the memory not go
             * before. */
            pthread_cond_wait(&cache->left, &cache->lock.mutex);
        }
        gs_lock_release(&cache->lock);
        if (leavers.first) {
            gs_reg_unpin(cache, &leavers);
            search.leaving = true; /* look again: what could not be unpinned is in use */
        }
    }
    return !search.in_use;
}

/* ---- The domain goes ------------------------------------------------------------------------- */

void gs_regcache_flush(struct gs_regcache *cache,
                       bool (*matches)(const struct gs_regcache_info *info, void *arg), void *arg)
{
    struct gs_reg_leavers leavers = {NULL};
    struct gs_reg *next;
    bool again = true;

    if (gs_regcache_empty(cache))
        return;
    while (again) {
        again = false;
        gs_lock_take(&cache->lock);
        for (struct gs_reg *reg = cache->first_used; reg; reg = next) {
            struct gs_regcache_info info = {.key = reg->key,
                                            .base = reg->base,
                                            .id = reg->id,
                                            .size = reg->end - reg->base,
                                            .keep = gs_reg_kept(reg),
                                            .hits = GS_LOAD(reg->hits)};

            next = reg->next_used;
            if (!matches(&info, arg))
                continue;
            /* A use that ends just now ends it with the flag, or leaves it to be taken here. */
            __atomic_fetch_or(&reg->flags, GS_REG_DROP, __ATOMIC_SEQ_CST);
            if (gs_reg_depart_locked(cache, &leavers, reg))
                cache->stats.invalidations++;
            else if (GS_LOAD(reg->uses) == GS_REG_LEAVING && !is_unpinning())
                again = true;
        }
        if (again && !leavers.first) /* as in gs_regcache_drain */
            pthread_cond_wait(&cache->left, &cache->lock.mutex);
        gs_lock_release(&cache->lock);
        gs_reg_unpin(cache, &leavers);
    }
}
