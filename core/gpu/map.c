/* The allocation map (core/gpu/map.h): a two-level table over 2 MiB pages. */
#include "core/gpu/map.h"

#include <sys/mman.h>

#define LEAF_ENTRIES ((size_t)1 << GS_MAP_LEAF_BITS)
#define LEAF_COUNT   (sizeof((struct gs_map *)0)->leaf / sizeof((struct gs_map *)0)->leaf[0])

void gs_map_init(struct gs_map *map)
{
    gs_lock_init(&map->lock, GS_RANK_MAP);
}

void gs_map_destroy(struct gs_map *map)
{
    for (size_t i = 0; i < LEAF_COUNT; i++) {
        if (map->leaf[i])
            munmap(map->leaf[i], sizeof *map->leaf[i]);
        map->leaf[i] = NULL;
    }
    gs_lock_destroy(&map->lock);
}

/* Zeros, of which most are never touched: from the heap all of them might be, which takes 60 to 80
 * us of a first open or allocation (32 page faults, measured on an H200's machine). */
static struct gs_map_leaf *leaf_new(void)
{
    void *leaf = mmap(NULL, sizeof(struct gs_map_leaf), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return leaf == MAP_FAILED ? NULL : leaf;
}

/* Every leaf under [first, last] exists afterwards. Called with the lock held. */
static gs_status make_leaves_locked(struct gs_map *map, uint64_t first, uint64_t last)
{
    gs_lock_assert_held(&map->lock);
    for (uint64_t i = first >> GS_MAP_LEAF_BITS; i <= last >> GS_MAP_LEAF_BITS; i++) {
        struct gs_map_leaf *leaf;

        if (map->leaf[i])
            continue;
        leaf = leaf_new();
        if (!leaf)
            return GS_NO_HOST_MEMORY;
        __atomic_store_n(&map->leaf[i], leaf, __ATOMIC_RELEASE);
    }
    return GS_OK;
}

static void set_range(struct gs_map *map, const struct gs_span *span, struct gs_span *value)
{
    uint64_t page = span->base >> GS_PAGE_SHIFT;
    uint64_t end = page + (span->size >> GS_PAGE_SHIFT);

    for (; page < end; page++) {
        struct gs_map_leaf *leaf = map->leaf[page >> GS_MAP_LEAF_BITS];
        __atomic_store_n(&leaf->entry[page & (LEAF_ENTRIES - 1)], value, __ATOMIC_RELEASE);
    }
}

gs_status gs_map_insert(struct gs_map *map, struct gs_span *span)
{
    uint64_t first = span->base >> GS_PAGE_SHIFT;
    uint64_t last = (span->base + span->size - 1) >> GS_PAGE_SHIFT;
    gs_status status;

    if (span->size == 0 || (span->base | span->size) & (GS_PAGE_SIZE - 1) || last < first ||
        last >> GS_MAP_LEAF_BITS >= LEAF_COUNT)
        return GS_INVALID;
    GS_HOLDING(&map->lock);
    status = make_leaves_locked(map, first, last);
    if (status == GS_OK)
        set_range(map, span, span);
    return status;
}

void gs_map_remove(struct gs_map *map, struct gs_span *span)
{
    GS_HOLDING(&map->lock);

    set_range(map, span, NULL);
}

/* The first page from `page` on that a span covers, below `end`; `end` if there is none. */
static uint64_t next_page(const struct gs_map *map, uint64_t page, uint64_t end)
{
    while (page < end) {
        const struct gs_map_leaf *leaf =
            __atomic_load_n(&map->leaf[page >> GS_MAP_LEAF_BITS], __ATOMIC_ACQUIRE);
        uint64_t next_leaf = ((page >> GS_MAP_LEAF_BITS) + 1) << GS_MAP_LEAF_BITS;

        if (!leaf)
            page = next_leaf;
        for (; leaf && page < next_leaf && page < end; page++)
            if (__atomic_load_n(&leaf->entry[page & (LEAF_ENTRIES - 1)], __ATOMIC_ACQUIRE))
                return page;
    }
    return end;
}

uint64_t gs_map_next(const struct gs_map *map, uint64_t address, size_t size)
{
    const uint64_t pages = LEAF_COUNT * LEAF_ENTRIES;
    uint64_t last, end, page;

    if (size == 0)
        return GS_MAP_NONE;
    if (__builtin_add_overflow(address, size - 1, &last))
        last = UINT64_MAX;
    end = (last >> GS_PAGE_SHIFT) + 1;
    if (end > pages)
        end = pages;
    page = next_page(map, address >> GS_PAGE_SHIFT, end);
    return page < end ? page << GS_PAGE_SHIFT : GS_MAP_NONE;
}

bool gs_map_overlaps(const struct gs_map *map, uint64_t address, size_t size)
{
    return gs_map_next(map, address, size) != GS_MAP_NONE;
}

uint64_t gs_map_after(const struct gs_map *map, uint64_t address)
{
    const uint64_t end = LEAF_COUNT * LEAF_ENTRIES;
    const struct gs_span *last = address == GS_MAP_NONE ? NULL : gs_map_find(map, address);
    uint64_t page = address == GS_MAP_NONE ? 0 : (address >> GS_PAGE_SHIFT) + 1;

    while ((page = next_page(map, page, end)) < end &&
           gs_map_find(map, page << GS_PAGE_SHIFT) == last)
        page++;
    return page < end ? page << GS_PAGE_SHIFT : GS_MAP_NONE;
}
