/*
 * The index of registrations by address and by handle, and the claim that a hit makes
 * (regcache.h has the picture).
 */
#include "core/regcache/internal.h"

#include <stdlib.h>
#include <string.h>

#define SLAB_ENTRIES 64
#define LINK_MASK UINT64_C(63) /* entries are aligned to 64 bytes: the rest is the link's number */
#define BITS_LEAST 14
#define BITS_MOST 20

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

static gs_status make_buckets(struct gs_regcache *cache)
{
    uint64_t *page;

    if (cache->page)
        return GS_OK;
    cache->bits = BITS_LEAST;
    while (cache->bits < BITS_MOST && cache->limit_count > (UINT64_C(1) << cache->bits) / 2)
        cache->bits++;
    page = calloc((size_t)1 << cache->bits, sizeof *page);
    cache->by_handle = calloc((size_t)1 << cache->bits, sizeof(struct gs_reg *));
    if (!page || !cache->by_handle) {
        free(page);
        free(cache->by_handle);
        cache->by_handle = NULL;
        return GS_NO_HOST_MEMORY;
    }
    __atomic_store_n(&cache->page, page, __ATOMIC_RELEASE);
    return GS_OK;
}

/* Entries are made many at a time; the place of the first holds the list of these slabs. */
static struct gs_reg *add_slab(struct gs_regcache *cache)
{
    struct gs_reg *slab = aligned_alloc(64, SLAB_ENTRIES * sizeof *slab);

    if (!slab)
        return NULL;
    memset(slab, 0, SLAB_ENTRIES * sizeof *slab);
    for (unsigned i = 1; i < SLAB_ENTRIES; i++) {
        slab[i].uses = GS_REG_FREE;
        slab[i].next_handle = i + 1 < SLAB_ENTRIES ? &slab[i + 1] : NULL;
    }
    slab->next_handle = cache->slabs;
    cache->slabs = slab;
    cache->slab_count++;
    return slab + 1;
}

void gs_reg_slabs_free(struct gs_regcache *cache)
{
    struct gs_reg *slab;

    while ((slab = cache->slabs)) {
        cache->slabs = slab->next_handle;
        free(slab);
    }
}

uint64_t gs_reg_slab_bytes(const struct gs_regcache *cache)
{
    return cache->slab_count * SLAB_ENTRIES * sizeof(struct gs_reg);
}

struct gs_reg *gs_reg_new(struct gs_regcache *cache)
{
    struct gs_reg *reg;

    if (make_buckets(cache) != GS_OK)
        return NULL;
    if (!cache->spare)
        cache->spare = add_slab(cache);
    reg = cache->spare;
    if (!reg)
        return NULL;
    cache->spare = reg->next_handle;
    GS_STORE(reg->next_handle, NULL);
    GS_STORE(reg->flags, 0);
    GS_STORE(reg->handle, NULL);
    GS_STORE(reg->hits, 0);
    reg->note[0] = reg->note[1] = 0;
    return reg;
}

void gs_reg_recycle(struct gs_regcache *cache, struct gs_reg *reg)
{
    cache->hits += GS_LOAD(reg->hits);
    __atomic_store_n(&reg->uses, GS_REG_FREE, __ATOMIC_RELEASE);
    GS_STORE(reg->next_handle, cache->spare);
    cache->spare = reg;
}

/* ---- The list of all entries --------------------------------------------------------------- */

static void list_remove(struct gs_regcache *cache, struct gs_reg *reg)
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

static void list_append(struct gs_regcache *cache, struct gs_reg *reg)
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

void gs_reg_place_last(struct gs_regcache *cache, struct gs_reg *reg)
{
    list_remove(cache, reg);
    list_append(cache, reg);
}

/* ---- By address ------------------------------------------------------------------------------ */

void gs_reg_enter(struct gs_regcache *cache, struct gs_reg *reg)
{
    uint64_t base = reg->base, end = reg->end, first, last;

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
    list_append(cache, reg);
    GS_STORE(cache->bytes, cache->bytes + (end - base));
    __atomic_store_n(&cache->entries, cache->entries + 1, __ATOMIC_RELEASE);
}

void gs_reg_leave(struct gs_regcache *cache, struct gs_reg *reg)
{
    uint64_t first = reg->base >> class_shift(reg->class);

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
    list_remove(cache, reg);
    GS_STORE(cache->bytes, cache->bytes - (reg->end - reg->base));
    __atomic_store_n(&cache->entries, cache->entries - 1, __ATOMIC_RELEASE);
}

struct overlap {
    uint64_t base, end;
    bool (*visit)(struct gs_reg *reg, void *arg);
    void *arg;
};

/* One bucket of one page: an entry is visited under the first page that it shares with the query. */
static bool visit_page(struct gs_regcache *cache, const struct overlap *o, uint64_t page,
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

static bool visit_list(struct gs_regcache *cache, const struct overlap *o)
{
    struct gs_reg *next;

    for (struct gs_reg *reg = cache->first_used; reg; reg = next) {
        next = reg->next_used;
        if (reg->base < o->end && reg->end > o->base && !o->visit(reg, o->arg))
            return false;
    }
    return true;
}

bool gs_reg_overlaps(struct gs_regcache *cache, uint64_t base, uint64_t end,
                     bool (*visit)(struct gs_reg *reg, void *arg), void *arg)
{
    const struct overlap o = {base, end, visit, arg};
    uint64_t pages = 0;

    for (unsigned class = 0; class < GS_REG_CLASSES; class++)
        if (cache->class_entries[class])
            pages += ((end - 1) >> class_shift(class)) - (base >> class_shift(class)) + 1;
    if (pages > cache->entries)
        return visit_list(cache, &o);
    for (unsigned class = 0; class < GS_REG_CLASSES; class++) {
        if (!cache->class_entries[class])
            continue;
        for (uint64_t page = base >> class_shift(class);
             page <= (end - 1) >> class_shift(class); page++)
            if (!visit_page(cache, &o, page, class))
                return false;
    }
    return true;
}

/* ---- By handle ------------------------------------------------------------------------------- */

static struct gs_reg **handle_bucket(const struct gs_regcache *cache, const void *handle)
{
    return &cache->by_handle[hash(cache, (uint64_t)(uintptr_t)handle >> 3)];
}

void gs_reg_handle_enter(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg **head = handle_bucket(cache, reg->handle);

    GS_STORE(reg->next_handle, *head);
    __atomic_store_n(head, reg, __ATOMIC_RELEASE);
}

void gs_reg_handle_leave(struct gs_regcache *cache, struct gs_reg *reg)
{
    struct gs_reg **link = handle_bucket(cache, reg->handle);

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

/* ---- The claim ------------------------------------------------------------------------------- */

static bool fits(const struct gs_reg *reg, const struct gs_reg_request *request)
{
    uint64_t base = GS_LOAD(reg->base), end = GS_LOAD(reg->end);
    uint64_t wanted_end = request->base + request->size;

    if (base > request->base || end < wanted_end || GS_LOAD(reg->id) != request->id ||
        GS_LOAD(reg->key.domain) != request->key.domain ||
        GS_LOAD(reg->key.access) != request->key.access ||
        GS_LOAD(reg->key.shift) != request->key.shift ||
        GS_LOAD(reg->key.backend) != request->key.backend)
        return false;
    return !request->exact || (base == request->base && end == wanted_end);
}

/* What tells most others from it at once. */
static inline bool may_fit(const struct gs_reg *reg, const struct gs_reg_request *request)
{
    return GS_LOAD(reg->base) <= request->base &&
           GS_LOAD(reg->end) - request->base >= request->size && GS_LOAD(reg->uses) < GS_REG_PENDING;
}

/* A use more, if the entry may have one. */
static bool claim(struct gs_reg *reg, bool lends)
{
    uint32_t uses = GS_LOAD(reg->uses);

    while (lends ? uses == 0 : uses < GS_REG_PENDING - 1)
        if (__atomic_compare_exchange_n(&reg->uses, &uses, uses + 1, true, __ATOMIC_ACQ_REL,
                                        __ATOMIC_RELAXED))
            return true;
    return false;
}

struct gs_reg *gs_reg_claim(struct gs_regcache *cache, const struct gs_reg_request *request)
{
    const uint64_t *buckets = __atomic_load_n(&cache->page, __ATOMIC_ACQUIRE);
    uint64_t classes = GS_LOAD(cache->classes);
    bool lends = request->key.backend->lends;

    for (; buckets && classes; classes &= classes - 1) {
        unsigned class = (unsigned)__builtin_ctzll(classes);
        uint64_t page = request->base >> class_shift(class);
        uint64_t link =
            __atomic_load_n(&buckets[bucket_of(cache, page, class)], __ATOMIC_ACQUIRE);

        for (unsigned steps = 0; link && steps < GS_REG_STEPS_MAX; steps++) {
            struct gs_reg *reg = link_entry(link);

            /* What was read of an unclaimed entry may be of two registrations: look again. */
            if (may_fit(reg, request) && fits(reg, request) && claim(reg, lends)) {
                if (fits(reg, request))
                    return reg;
                gs_regcache_release(cache, reg);
            }
            link = __atomic_load_n(&reg->next[link & LINK_MASK], __ATOMIC_ACQUIRE);
        }
    }
    return NULL;
}
