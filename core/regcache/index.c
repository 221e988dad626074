/*
 * The index of registrations by address and by handle, and the claim that a hit makes
 * (regcache.h has the picture).
 */
#include "core/regcache/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SLAB_FIRST  ((size_t)12 << 10)
#define SLAB_LARGE  ((size_t)2 << 20) /* a huge page, for the sake of hits among many entries */
#define SLABS_SMALL (8 * SLAB_FIRST)
#define LINK_MASK   UINT64_C(63) /* entries are aligned to 64 bytes: the rest numbers the link */
#define BITS_LEAST  14
#define BITS_MOST   20

static unsigned class_shift(unsigned class)
{
    return 16 + 2 * class;
}

/* The largest pages that are not larger than the range. */
static unsigned class_of(uint64_t size)
{
    unsigned class = 0;

    while (class + 1 < GS_REG_CLASSES && size >> class_shift(class + 1))
        class++;
    return class;
}

static uint64_t hash(const struct gs_regcache *cache, uint64_t value)
{
    return value * UINT64_C(0x9e3779b97f4a7c15) >> (64 - cache->bits);
}

static uint64_t bucket_of(const struct gs_regcache *cache, uint64_t page, unsigned class)
{
    return hash(cache, page << 5 | class);
}

static struct gs_reg *link_entry(uint64_t link)
{
    return (struct gs_reg *)(uintptr_t)(link & ~LINK_MASK);
}

/* Memory in huge pages where it is as large; its contents are anything. */
static void *memory_new(size_t bytes)
{
    size_t align = bytes >= SLAB_LARGE ? SLAB_LARGE : 64;
    void *memory = aligned_alloc(align, (bytes + align - 1) & ~(align - 1));

    if (memory && align == SLAB_LARGE)
        madvise(memory, bytes, MADV_HUGEPAGE); /* or not: it is only faster */
    return memory;
}

static gs_status make_buckets_locked(struct gs_regcache *cache)
{
    uint64_t *page;
    size_t bytes;

    if (cache->page)
        return GS_OK;
    cache->bits = BITS_LEAST;
    while (cache->bits < BITS_MOST && cache->limit_count > (UINT64_C(1) << cache->bits) / 2)
        cache->bits++;
    bytes = sizeof *page << cache->bits;
    page = memory_new(bytes);
    cache->by_handle = memory_new(bytes);
    if (!page || !cache->by_handle) {
        free(page);
        free(cache->by_handle);
        cache->by_handle = NULL;
        return GS_NO_HOST_MEMORY;
    }
    memset(page, 0, bytes);
    memset(cache->by_handle, 0, bytes);
    __atomic_store_n(&cache->page, page, __ATOMIC_RELEASE);
    return GS_OK;
}

/* Entries come from slabs; the first place of each holds the list of them. */
static bool add_slab_locked(struct gs_regcache *cache)
{
    size_t bytes = cache->slab_bytes < SLABS_SMALL ? SLAB_FIRST : SLAB_LARGE;
    struct gs_reg *slab = memory_new(bytes);

    if (!slab)
        return false;
    slab->next_handle = cache->slabs;
    cache->slabs = slab;
    cache->slab_bytes += bytes;
    cache->fresh = slab + 1;
    cache->fresh_end = slab + bytes / sizeof *slab;
    return true;
}

void gs_reg_slabs_free(struct gs_regcache *cache)
{
    struct gs_reg *slab;

    while ((slab = cache->slabs)) {
        cache->slabs = slab->next_handle;
        free(slab);
    }
}

/* A late reader may still look at one that is recycled, and at no other. */
static struct gs_reg *take_spare_locked(struct gs_regcache *cache)
{
    struct gs_reg *reg = cache->spare;

    if (reg) {
        cache->spare = reg->next_handle;
    } else if (cache->fresh != cache->fresh_end || add_slab_locked(cache)) {
        reg = cache->fresh++;
        memset(reg, 0, sizeof *reg);
        reg->uses = GS_REG_FREE;
    }
    return reg;
}

struct gs_reg *gs_reg_new_locked(struct gs_regcache *cache)
{
    struct gs_reg *reg;

    gs_lock_assert_held(&cache->lock);
    if (make_buckets_locked(cache) != GS_OK)
        return NULL;
    reg = take_spare_locked(cache);
    if (!reg)
        return NULL;
    GS_STORE(reg->next_handle, NULL);
    GS_STORE(reg->flags, 0);
    GS_STORE(reg->handle, NULL);
    GS_STORE(reg->hits, 0);
    reg->note[0] = reg->note[1] = 0;
    return reg;
}

void gs_reg_recycle_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    gs_lock_assert_held(&cache->lock);
    cache->hits += GS_LOAD(reg->hits);
    __atomic_store_n(&reg->uses, GS_REG_FREE, __ATOMIC_RELEASE);
    GS_STORE(reg->next_handle, cache->spare);
    cache->spare = reg;
}

/* ---- The list of all entries --------------------------------------------------------------- */

static void list_remove_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    if (reg->prev_used)
        reg->prev_used->next_used = reg->next_used;
    else
        cache->first_used = reg->next_used;
    if (reg->next_used)
        reg->next_used->prev_used = reg->prev_used;
    else
        cache->last_used = reg->prev_used;
}

static void list_append_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    reg->placed = GS_LOAD(reg->stamp);
    reg->prev_used = cache->last_used;
    reg->next_used = NULL;
    if (cache->last_used)
        cache->last_used->next_used = reg;
    else
        cache->first_used = reg;
    cache->last_used = reg;
}

void gs_reg_place_last_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    gs_lock_assert_held(&cache->lock);
    list_remove_locked(cache, reg);
    list_append_locked(cache, reg);
}

/* ---- By address ------------------------------------------------------------------------------ */

void gs_reg_describe_locked(struct gs_reg *reg, const struct gs_reg_request *request, uint64_t base,
                            uint64_t end)
{
    GS_STORE(reg->key.backend, request->key.backend);
    GS_STORE(reg->key.domain, request->key.domain);
    GS_STORE(reg->key.access, request->key.access);
    GS_STORE(reg->key.shift, request->key.shift);
    GS_STORE(reg->base, base);
    GS_STORE(reg->end, end);
    GS_STORE(reg->id, request->id);
    reg->exact = request->exact;
    gs_reg_set_view(reg, request);
    /* Who read the serial before this and claims the entry after it looks in vain; who reads it
     * after this reads all of the above. */
    __atomic_store_n(&reg->serial, reg->serial + 1, __ATOMIC_RELEASE);
}

void gs_reg_enter_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    uint64_t base = reg->base, end = reg->end, first, last;

    gs_lock_assert_held(&cache->lock);
    reg->class = (uint8_t)class_of(end - base);
    first = base >> class_shift(reg->class);
    last = (end - 1) >> class_shift(reg->class);
    reg->links = (uint8_t)(last - first + 1);
    if (cache->class_entries[reg->class]++ == 0)
        GS_STORE(cache->classes, cache->classes | UINT64_C(1) << reg->class);
    for (unsigned i = 0; i < reg->links; i++) {
        uint64_t *head = &cache->page[bucket_of(cache, first + i, reg->class)];

        GS_STORE(reg->next[i], *head);
        __atomic_store_n(head, (uint64_t)(uintptr_t)reg | i, __ATOMIC_RELEASE);
    }
    GS_STORE(reg->stamp, __atomic_add_fetch(&cache->tick, 1, __ATOMIC_RELAXED));
    list_append_locked(cache, reg);
    GS_STORE(cache->bytes, cache->bytes + (end - base));
    __atomic_store_n(&cache->entries, cache->entries + 1, __ATOMIC_RELEASE);
    gs_reg_weigh_locked(cache);
}

void gs_reg_leave_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    uint64_t first = reg->base >> class_shift(reg->class);

    gs_lock_assert_held(&cache->lock);
    for (unsigned i = 0; i < reg->links; i++) {
        uint64_t *link = &cache->page[bucket_of(cache, first + i, reg->class)];
        uint64_t ours = (uint64_t)(uintptr_t)reg | i;

        while (*link != ours)
            link = &link_entry(*link)->next[*link & LINK_MASK];
        /* A reader that stands on this entry goes on from it: its own link stays as it is. */
        __atomic_store_n(link, reg->next[i], __ATOMIC_RELEASE);
    }
    if (--cache->class_entries[reg->class] == 0)
        GS_STORE(cache->classes, cache->classes & ~(UINT64_C(1) << reg->class));
    list_remove_locked(cache, reg);
    GS_STORE(cache->bytes, cache->bytes - (reg->end - reg->base));
    __atomic_store_n(&cache->entries, cache->entries - 1, __ATOMIC_RELEASE);
    gs_reg_weigh_locked(cache);
}

struct overlap {
    uint64_t base, end;
    bool (*visit)(struct gs_reg *reg, void *arg);
    void *arg;
};

/* One bucket of one page: an entry is visited under the first page that it shares with the
 * query. */
static bool visit_page_locked(struct gs_regcache *cache, const struct overlap *o, uint64_t page,
                              unsigned class)
{
    uint64_t link = cache->page[bucket_of(cache, page, class)], next;
    uint64_t query_first = o->base >> class_shift(class);

    for (; link; link = next) {
        struct gs_reg *reg = link_entry(link);
        uint64_t first = reg->base >> class_shift(class);
        unsigned number = (unsigned)(link & LINK_MASK);

        next = reg->next[number];
        if (reg->class != class || first + number != page || reg->base >= o->end ||
            reg->end <= o->base || page != (first > query_first ? first : query_first))
            continue;
        if (!o->visit(reg, o->arg))
            return false;
    }
    return true;
}

static void visit_list_locked(struct gs_regcache *cache, const struct overlap *o)
{
    struct gs_reg *next;

    for (struct gs_reg *reg = cache->first_used; reg; reg = next) {
        next = reg->next_used;
        if (reg->base < o->end && reg->end > o->base && !o->visit(reg, o->arg))
            return;
    }
}

void gs_reg_overlaps_locked(struct gs_regcache *cache, uint64_t base, uint64_t end,
                            bool (*visit)(struct gs_reg *reg, void *arg), void *arg)
{
    const struct overlap o = {base, end, visit, arg};
    uint64_t pages = 0;

    gs_lock_assert_held(&cache->lock);
    for (unsigned class = 0; class < GS_REG_CLASSES; class++)
        if (cache->class_entries[class])
            pages += ((end - 1) >> class_shift(class)) - (base >> class_shift(class)) + 1;
    if (pages > cache->entries) {
        visit_list_locked(cache, &o);
        return;
    }
    for (unsigned class = 0; class < GS_REG_CLASSES; class++) {
        if (!cache->class_entries[class])
            continue;
        for (uint64_t page = base >> class_shift(class); page <= (end - 1) >> class_shift(class);
             page++)
            if (!visit_page_locked(cache, &o, page, class))
                return;
    }
}

/* ---- By handle ------------------------------------------------------------------------------- */

static struct gs_reg **handle_bucket(const struct gs_regcache *cache, const void *handle)
{
    return &cache->by_handle[hash(cache, (uint64_t)(uintptr_t)handle >> 3)];
}

void gs_reg_handle_enter_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg **head = handle_bucket(cache, reg->handle);

    gs_lock_assert_held(&cache->lock);
    GS_STORE(reg->next_handle, *head);
    __atomic_store_n(head, reg, __ATOMIC_RELEASE);
}

void gs_reg_handle_leave_locked(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg **link = handle_bucket(cache, reg->handle);

    gs_lock_assert_held(&cache->lock);
    while (*link != reg)
        link = &(*link)->next_handle;
    __atomic_store_n(link, reg->next_handle, __ATOMIC_RELEASE);
}

struct gs_reg *gs_reg_by_handle(struct gs_regcache *cache, const struct gs_reg_backend *backend,
                                const void *handle, bool idle)
{
    struct gs_reg *reg;

    if (!__atomic_load_n(&cache->page, __ATOMIC_ACQUIRE))
        return NULL;
    reg = __atomic_load_n(handle_bucket(cache, handle), __ATOMIC_ACQUIRE);
    for (unsigned steps = 0; reg && steps < GS_REG_STEPS_MAX; steps++) {
        uint32_t uses = __atomic_load_n(&reg->uses, __ATOMIC_ACQUIRE);

        if (GS_LOAD(reg->handle) == handle && GS_LOAD(reg->key.backend) == backend &&
            (idle || (uses > 0 && uses < GS_REG_PENDING)))
            return reg; /* the caller's use keeps it what it is */
        reg = __atomic_load_n(&reg->next_handle, __ATOMIC_ACQUIRE);
    }
    return NULL;
}

/* ---- The hit --------------------------------------------------------------------------------- */

static inline bool fits(const struct gs_reg *reg, const struct gs_reg_request *request,
                        uint64_t end)
{
    uint64_t base = GS_LOAD(reg->base), reg_end = GS_LOAD(reg->end), differs;

    if (base > request->base || reg_end < end) /* most others are told from it by this */
        return false;
    differs = (GS_LOAD(reg->id) ^ request->id) | (GS_LOAD(reg->key.domain) ^ request->key.domain) |
              (GS_LOAD(reg->key.access) ^ request->key.access) |
              (GS_LOAD(reg->key.shift) ^ request->key.shift) |
              ((uintptr_t)GS_LOAD(reg->key.backend) ^ (uintptr_t)request->key.backend);
    if (request->exact)
        differs |= (base ^ request->base) | (reg_end ^ end);
    return differs == 0;
}

/* A use more, if the entry may have one. */
static inline bool claim(struct gs_reg *reg, bool lends)
{
    uint32_t uses = 0;

    if (lends)
        return GS_LOAD(reg->uses) == 0 &&
               __atomic_compare_exchange_n(&reg->uses, &uses, 1, false, __ATOMIC_ACQ_REL,
                                           __ATOMIC_RELAXED);
    uses = GS_LOAD(reg->uses);
    while (uses < GS_REG_PENDING - 1)
        if (__atomic_compare_exchange_n(&reg->uses, &uses, uses + 1, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return true;
    return false;
}

/* The entry is the caller's. */
static inline struct gs_reg *use(const struct gs_regcache *cache, struct gs_reg *reg,
                                 const struct gs_reg_request *request)
{
    uint32_t tick = GS_LOAD(cache->tick) + 1; /* later than what was entered last */

    if (request->key.backend->lends) {
        gs_reg_set_view(reg, request);
        GS_STORE(reg->hits, GS_LOAD(reg->hits) + 1);
    } else {
        __atomic_fetch_add(&reg->hits, 1, __ATOMIC_RELAXED);
    }
    if (GS_LOAD(reg->stamp) != tick)
        GS_STORE(reg->stamp, tick);
    return reg;
}

struct gs_reg *gs_regcache_hit(struct gs_regcache *cache, const struct gs_reg_request *request)
{
    const uint64_t *buckets = __atomic_load_n(&cache->page, __ATOMIC_ACQUIRE);
    uint64_t classes = GS_LOAD(cache->classes);
    uint64_t end = request->base + request->size;
    bool lends = request->key.backend->lends;

    for (; buckets && classes; classes &= classes - 1) {
        unsigned class = (unsigned)__builtin_ctzll(classes);
        uint64_t page = request->base >> class_shift(class);
        uint64_t link = __atomic_load_n(&buckets[bucket_of(cache, page, class)], __ATOMIC_ACQUIRE);

        for (unsigned steps = 0; link && steps < GS_REG_STEPS_MAX; steps++) {
            struct gs_reg *reg = link_entry(link);
            uint32_t serial = __atomic_load_n(&reg->serial, __ATOMIC_ACQUIRE);

            __builtin_prefetch(&reg->view_base, 1); /* with the first line, not after it */
            if (fits(reg, request, end) && claim(reg, lends)) {
                /* It may have become another since its serial was read, but not any more. */
                if (__builtin_expect(GS_LOAD(reg->serial) == serial, 1))
                    return use(cache, reg, request);
                gs_regcache_release(cache, reg);
            }
            link = __atomic_load_n(&reg->next[link & LINK_MASK], __ATOMIC_ACQUIRE);
        }
    }
    return NULL;
}
