/*
 * The cache of registrations: pins of GPU memory with a device (a verbs memory region, a gdrcopy
 * pin, a cuFile buffer), kept after their last use so that the next one costs a look-up.
 *
 *             begin, complete             release                 evict, invalidate, flush
 *   (nothing) ───────────────► in use ◄──────────► idle ──► invalidated ──► leaving ──► (nothing)
 *                                       hit          │  drain                  ▲  unpin is called
 *                                                    └─────────────────────────┘
 *
 * What makes a kept registration right. Its pages are those of its range for as long as the range
 * stays mapped as it is. Freed memory that the arena keeps stays mapped, so its registrations stay
 * right too, whatever block lies there next. Before a range is unmapped every registration over it
 * is gone (invalidate and drain), and while one is in use the range is not unmapped and freed
 * blocks under it are not handed out (in_use). Memory that is not the arena's can be remapped
 * behind our back: its entries carry the driver's buffer id, and one with another id is never
 * found.
 *
 * Entries are found by address through a hash of their pages: an entry is listed under each page
 * of its size class that it touches, at most five. A hit takes no lock: entries are recycled and
 * never freed, are claimed by one compare-and-swap, and are looked at again once claimed.
 *
 * The lock is held only to change the index. Pin and unpin functions are called with no lock.
 */
#ifndef GS_CORE_REGCACHE_REGCACHE_H
#define GS_CORE_REGCACHE_REGCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/log.h"
#include "core/base/status.h"

#define GS_REG_PAGE ((uint64_t)64 << 10) /* what devices map GPU memory in */

struct gs_reg_key;

/* One kind of device. Lives as long as the process. */
struct gs_reg_backend {
    const char *name;
    bool lends;   /* a registration has one user at a time; a second one gets another */
    bool refuses; /* overlapping registrations are refused: idle ones in the way go first */
    /*
     * Registers a range; `arg` is what gs_regcache_complete was given. 0 and *ret_handle, which is
     * this cache's from then on; or an errno value and nothing was pinned. ENOMEM and ENOSPC say
     * that the device is full, and that giving up others may help.
     */
    int (*pin)(const struct gs_reg_key *key, uint64_t base, size_t size, void *arg,
               void **ret_handle);
    /* Undoes it. 0; or an errno value, and the range is still pinned. Neither function may free
     * or unmap GPU memory. */
    int (*unpin)(const struct gs_reg_key *key, void *handle);
};

/* What tells two registrations of one range apart. */
struct gs_reg_key {
    const struct gs_reg_backend *backend;
    uintptr_t domain; /* who may use it: a protection domain */
    uint64_t access;
    uint64_t shift; /* anything else: for verbs how far the key's addresses are from ours */
};

struct gs_reg_request {
    struct gs_reg_key key;
    uint64_t base; /* what will be used */
    size_t size;   /* bytes, not 0 */
    uint64_t id;   /* 0: memory of the arena; else the driver's buffer id */
    bool keep;     /* it may outlive its use */
    bool exact;    /* only a registration of this very range will do */
    /* On a miss this range is pinned, which contains the one above, and may grow by idle
     * neighbours it overlaps. */
    uint64_t cover;
    size_t cover_size;
};

/* One registration. Its fields are the cache's, but for the note. */
struct gs_reg;

struct gs_regcache_options {
    uint64_t count; /* registrations kept at most, those in use included; 0 keeps none */
    uint64_t bytes; /* the same in bytes */
};

struct gs_regcache_events {
    /* A registration that had kept memory of this range waiting is no longer in use. No lock is
     * held. */
    void (*released)(void *arg, uint64_t base, size_t size);
    void *arg;
};

struct gs_regcache_stats {
    uint64_t hits, misses, merges, evictions, invalidations, failures;
    uint64_t entries, in_use, bytes; /* now; bytes pinned */
    uint64_t pins, unpins, pin_ns, unpin_ns;
    uint64_t host_bytes; /* that the cache itself takes */
};

struct gs_regcache_info { /* one line of "who pins what" */
    struct gs_reg_key key;
    uint64_t base, id, hits;
    size_t size;
    unsigned uses;
    bool keep;
};

struct gs_regcache;

/* Allocates nothing large and starts nothing before the first registration. GS_NO_HOST_MEMORY. */
gs_status gs_regcache_create(const struct gs_regcache_options *options,
                             const struct gs_regcache_events *events, const struct gs_log *log,
                             struct gs_regcache **ret_cache);
/* Unpins what is idle. For tests: nothing is in use and no other call is under way. */
void gs_regcache_destroy(struct gs_regcache *cache);

/* What a device can have pinned at most: the limit in bytes is never higher from now on. What is
 * beyond goes with the next miss. */
void gs_regcache_limit_bytes(struct gs_regcache *cache, uint64_t bytes);
/* ---- Users ------------------------------------------------------------------------------ */

/* A kept registration that covers the request, now in use; NULL: there is none. Lock-free. */
struct gs_reg *gs_regcache_hit(struct gs_regcache *cache, const struct gs_reg_request *request);

/*
 * Enters a registration that is about to be made, in use from now on, or takes a kept one
 * (*ret_hit). May be called with an arena's lock held, and has to be, for arena memory, so that the
 * range cannot go between the look at it and this call. GS_NO_HOST_MEMORY.
 */
gs_status gs_regcache_begin(struct gs_regcache *cache, const struct gs_reg_request *request,
                            struct gs_reg **ret_reg, bool *ret_hit);

/* Pins what begin entered. 0; or the backend's errno value after kept registrations made room and
 * it was tried again: the entry is gone then. No lock is held. */
int gs_regcache_complete(struct gs_regcache *cache, struct gs_reg *reg, void *arg);

/* Ends one use. 0; or, for one that is not kept, why the backend could not unpin it: it is in use
 * still. No lock is held. */
int gs_regcache_release(struct gs_regcache *cache, struct gs_reg *reg);

/* The registration in use with that handle, or NULL. */
struct gs_reg *gs_regcache_find(struct gs_regcache *cache, const struct gs_reg_backend *backend,
                                const void *handle);

/* Whether a registration, used or not, has that handle. */
bool gs_regcache_knows(struct gs_regcache *cache, const struct gs_reg_backend *backend,
                       const void *handle);

/* A registration in use is now of another range: known by the new one, and not kept. */
void gs_regcache_change(struct gs_regcache *cache, struct gs_reg *reg,
                        const struct gs_reg_request *request);
/* A registration in use went without unpin (its device's side was closed). */
void gs_regcache_forget(struct gs_regcache *cache, struct gs_reg *reg);

/* The registrations in use that `matches` picks went without unpin. */
void gs_regcache_abandon(struct gs_regcache *cache,
                         bool (*matches)(const struct gs_regcache_info *info, void *arg),
                         void *arg);

/* It is not kept after its use, as it was to be. */
void gs_reg_drop(struct gs_reg *reg);
/* Where the part begins that its one user asked for. */
uint64_t gs_reg_view(const struct gs_reg *reg);
void *gs_reg_handle(const struct gs_reg *reg);
const struct gs_reg_key *gs_reg_key(const struct gs_reg *reg);
bool gs_reg_kept(const struct gs_reg *reg);
/* Two words for whoever has a lent registration in use; zero when it is made. */
uint64_t *gs_reg_note(struct gs_reg *reg);

/* ---- Owners of memory -------------------------------------------------------------------- */

/* Whether a registration in use covers part of the range. If so, its end will be announced. Never
 * blocks; may be called with an arena's lock held. */
bool gs_regcache_in_use(struct gs_regcache *cache, uint64_t base, size_t size);

/* The range is to be unmapped: no idle registration over it will be used again. False: one is in
 * use, the range has to stay. Never blocks; may be called with an arena's lock held. */
bool gs_regcache_invalidate(struct gs_regcache *cache, uint64_t base, size_t size);

/* Unpins what lies over the range and is not in use, and waits for others who do. False: one is in
 * use, or could not be unpinned: the range must not be unmapped. No lock is held. */
bool gs_regcache_drain(struct gs_regcache *cache, uint64_t base, size_t size);

/* Unpins the idle registrations that `matches` picks, which is called under the cache's lock; of
 * those in use it makes ones that are not kept after their use. */
void gs_regcache_flush(struct gs_regcache *cache,
                       bool (*matches)(const struct gs_regcache_info *info, void *arg), void *arg);

/* ---- Asking ------------------------------------------------------------------------------ */

/* Whether there is any registration: one load. */
bool gs_regcache_empty(const struct gs_regcache *cache);
/* How many there are; atomic, and there as long as the cache. */
const uint64_t *gs_regcache_count(const struct gs_regcache *cache);
void gs_regcache_stats(struct gs_regcache *cache, struct gs_regcache_stats *ret_stats);
/* The figures for a caller that must not wait; false: the lock is taken. */
bool gs_regcache_try_stats(struct gs_regcache *cache, struct gs_regcache_stats *ret_stats);
/* Fills in up to `room` registrations and returns how many there are. */
size_t gs_regcache_list(struct gs_regcache *cache, struct gs_regcache_info *info, size_t room);

#endif
