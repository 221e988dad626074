/* Between the files of the registration cache (regcache.h). */
#ifndef GS_CORE_REGCACHE_INTERNAL_H
#define GS_CORE_REGCACHE_INTERNAL_H

#include <pthread.h>

#include "core/base/clock.h"
#include "core/base/lock.h"
#include "core/regcache/regcache.h"

#define GS_REG_LINKS     5   /* pages of its class that an entry touches at most */
#define GS_REG_CLASSES   17  /* pages of 64 KiB, 256 KiB, 1 MiB, … */
#define GS_REG_STEPS_MAX 256 /* links a look-up without the lock follows before it takes it */

/* Values of gs_reg.uses. Below PENDING: how many users; 0: idle. */
#define GS_REG_PENDING UINT32_C(0x40000000) /* begun, not pinned yet: in use, and not to be found */
#define GS_REG_INVALID UINT32_C(0x80000000) /* idle, and to be unpinned by whoever comes first */
#define GS_REG_LEAVING UINT32_C(0xa0000000) /* a thread is unpinning it */
#define GS_REG_FREE    UINT32_C(0xc0000000) /* not a registration: spare */

/* Values of gs_reg.flags, or'ed. */
#define GS_REG_AWAITED 1u /* its release is to be announced */
#define GS_REG_DROP    2u /* it is not to be kept after its release, as it was to be */
#define GS_REG_UNKEPT  4u /* it was not to be kept from the start */

/*
 * Atomic: what look-ups read without the lock (serial, key, range, id, next, uses, flags, view,
 * handle). All of these but uses, flags, hits, stamp and view change under the lock only,
 * while the entry is not to be found (pending, or free).
 *
 * A hit and its release touch the first two cache lines, which no other entry shares.
 */
struct gs_reg {
    /* What a look-up compares. */
    uint32_t uses;
    uint32_t serial;    /* rises when any of the following has changed */
    uint64_t base, end; /* [base, end) is pinned */
    uint64_t id;
    struct gs_reg_key key;
    /* What its user reads and writes. */
    uint64_t view_base, view_end; /* the part that its one user uses; all of it if users share */
    uint32_t stamp, hits;         /* the stamp is of the tick's low bits */
    void *handle;
    uint64_t note[2];
    uint8_t flags;
    /* Under the lock. */
    uint8_t class, links;
    bool exact;
    uint32_t placed; /* the stamp when it got its place in the list */
    /* Lists. */
    uint64_t next[GS_REG_LINKS]; /* in the chains of its pages: entry | link number */
    struct gs_reg *next_handle;
    struct gs_reg *prev_used, *next_used; /* all entries, least recently placed first */
} __attribute__((aligned(64)));

struct gs_regcache {
    /* What hits read. It changes with misses and ends only. */
    uint64_t *page; /* atomic, set once: buckets of the page index */
    struct gs_reg **by_handle;
    unsigned bits;           /* log2 of the buckets of either */
    uint32_t tick;           /* atomic: rises with each change, tells old stamps from new */
    bool over;               /* atomic: a limit is exceeded */
    uint64_t classes;        /* atomic: bit c: some entry is of class c */
    uint64_t entries, bytes; /* atomic; of all that are not free */
    uint64_t limit_count, limit_bytes; /* under the lock; as the options say, and a device allows */

    /* rank REGISTRATIONS; protects what is below, and what is above but what is said atomic */
    struct gs_lock lock __attribute__((aligned(64)));
    pthread_cond_t left; /* an entry that was leaving is gone */
    struct gs_log log;
    struct gs_regcache_events events;
    uint64_t departed, departed_bytes; /* of the entries, what some thread is unpinning */
    uint64_t class_entries[GS_REG_CLASSES];
    struct gs_reg *first_used, *last_used;
    struct gs_reg *spare;
    struct gs_reg *fresh, *fresh_end; /* of the newest slab, never used yet */
    struct gs_reg *slabs;             /* linked by next_handle of their first places */
    uint64_t slab_bytes;
    uint64_t hits; /* of entries that are gone */
    struct gs_regcache_stats stats;
};

#define GS_LOAD(place)         __atomic_load_n(&(place), __ATOMIC_RELAXED)
#define GS_STORE(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELAXED)

/* ---- Index (index.c). With the lock held unless said otherwise --------------------------- */

void gs_reg_slabs_free(struct gs_regcache *cache);
/* A spare entry with fresh fields, in no list; NULL without host memory. */
struct gs_reg *gs_reg_new_locked(struct gs_regcache *cache);
/* Sets key, range and view of an entry that is not to be found. */
void gs_reg_describe_locked(struct gs_reg *reg, const struct gs_reg_request *request, uint64_t base,
                            uint64_t end);
/* Enters it. It can be found as soon as its uses say so. */
void gs_reg_enter_locked(struct gs_regcache *cache, struct gs_reg *reg);
/* Takes it out of all lists but that of handles. */
void gs_reg_leave_locked(struct gs_regcache *cache, struct gs_reg *reg);
void gs_reg_recycle_locked(struct gs_regcache *cache, struct gs_reg *reg);
void gs_reg_handle_enter_locked(struct gs_regcache *cache, struct gs_reg *reg);
void gs_reg_handle_leave_locked(struct gs_regcache *cache, struct gs_reg *reg);
/* Lock-free. An idle one only with `idle`, and then with the lock held. */
struct gs_reg *gs_reg_by_handle(struct gs_regcache *cache, const struct gs_reg_backend *backend,
                                const void *handle, bool idle);

/* Calls `visit` once for each entry that overlaps [base, end) until it returns false. The entry may
 * not leave meanwhile. */
void gs_reg_overlaps_locked(struct gs_regcache *cache, uint64_t base, uint64_t end,
                            bool (*visit)(struct gs_reg *reg, void *arg), void *arg);

/* What of the entry its user has. With users that share it, all of it. */
static inline void gs_reg_set_view(struct gs_reg *reg, const struct gs_reg_request *request)
{
    bool lends = request->key.backend->lends;

    GS_STORE(reg->view_base, lends ? request->base : reg->base);
    GS_STORE(reg->view_end, lends ? request->base + request->size : reg->end);
}

/* After a limit or what it limits has changed. */
static inline void gs_reg_weigh_locked(struct gs_regcache *cache)
{
    GS_STORE(cache->over, cache->entries > cache->limit_count || cache->bytes > cache->limit_bytes);
}

/* To the end of the list of all entries. */
void gs_reg_place_last_locked(struct gs_regcache *cache, struct gs_reg *reg);

/* ---- Ends (ends.c) ------------------------------------------------------------------------ */

/* What an entry held of memory that somebody waits for; none: size 0. */
struct gs_reg_range {
    uint64_t base;
    size_t size;
};

/* Whether a thread awaits that the entry's use ends, and of which range; the caller alone tells
 * that thread, once the lock is let go. Lock held. */
static inline struct gs_reg_range gs_reg_awaited_locked(struct gs_reg *reg)
{
    unsigned flags = __atomic_fetch_and(&reg->flags, (uint8_t)~GS_REG_AWAITED, __ATOMIC_SEQ_CST);

    return (struct gs_reg_range){reg->base, flags & GS_REG_AWAITED ? reg->end - reg->base : 0};
}
/* Wakes the threads that await the range. Lock not held. */
void gs_reg_announce(struct gs_regcache *cache, struct gs_reg_range range);

/* Entries that a thread has set leaving, linked by next_handle; they are in no list of handles. */
struct gs_reg_leavers {
    struct gs_reg *first;
};

/* Takes an idle or invalidated entry for unpinning. False: it is in use or another thread's. */
bool gs_reg_depart_locked(struct gs_regcache *cache, struct gs_reg_leavers *leavers,
                          struct gs_reg *reg);
/* Unpins them. One that cannot be stays, in use for ever. Lock not held. */
void gs_reg_unpin(struct gs_regcache *cache, struct gs_reg_leavers *leavers);
/* Unpins one that has departed and is in no list of leavers. 0, and it is gone; or the backend's
 * error, and it is in use again, as it was, or with `for_ever` for good. Lock not held. */
int gs_reg_unpin_one(struct gs_regcache *cache, struct gs_reg *reg, bool for_ever);
/* Unpins idle entries, the least recently used first, until no limit is exceeded, or all of them.
 * Lock not held. Returns how many. */
unsigned gs_reg_evict(struct gs_regcache *cache, bool all);

#endif
