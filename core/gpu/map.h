/*
 * The allocation map: from any address to the piece that covers it.
 *
 * Pieces are multiples of 2 MiB, so the map is a two-level table with one entry for each 2 MiB of a
 * 49-bit address space. A look-up takes no lock and touches two words. Records of pieces are
 * recycled and never freed, so a look-up that races with a release reads a record that may be
 * stale: whoever acts on it takes the owner's lock and looks again.
 */
#ifndef GS_CORE_GPU_MAP_H
#define GS_CORE_GPU_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/lock.h"
#include "core/base/status.h"

#define GS_PAGE_SHIFT 21
#define GS_PAGE_SIZE  ((size_t)1 << GS_PAGE_SHIFT)

static inline size_t gs_page_round(size_t size)
{
    return (size + GS_PAGE_SIZE - 1) & ~(GS_PAGE_SIZE - 1);
}
#define GS_MAP_ADDRESS_BITS 49
#define GS_MAP_LEAF_BITS    14

/* What the map points at: the first member of struct gs_piece and of struct gs_import. */
struct gs_span {
    uint64_t base; /* device address, a multiple of 2 MiB */
    size_t size;   /* bytes, a multiple of 2 MiB */
    enum gs_span_kind {
        GS_SPAN_PIECE = 1,  /* an arena's piece: struct gs_piece of core/pool/arena.h */
        GS_SPAN_IMPORT = 2, /* another process's piece, mapped here: core/share */
        GS_SPAN_OWN = 3,    /* the program's own mapping, in a map of such: core/process/own.c */
    } kind;
};

struct gs_map_leaf {
    struct gs_span *entry[(size_t)1 << GS_MAP_LEAF_BITS];
};

struct gs_map {
    struct gs_lock lock; /* rank MAP; protects writers against each other */
    struct gs_map_leaf *leaf[1 << (GS_MAP_ADDRESS_BITS - GS_PAGE_SHIFT - GS_MAP_LEAF_BITS)];
};

/* *map is all zeros: most of it is never touched. */
void gs_map_init(struct gs_map *map);
/* Frees the leaves; no span may be in the map and no reader under way. */
void gs_map_destroy(struct gs_map *map);

/* The span that covers `address`, or NULL. Lock-free; inline, as every hooked call begins here. */
static inline struct gs_span *gs_map_find(const struct gs_map *map, uint64_t address)
{
    const struct gs_map_leaf *leaf;
    uint64_t page = address >> GS_PAGE_SHIFT;

    if (page >> GS_MAP_LEAF_BITS >= sizeof map->leaf / sizeof map->leaf[0])
        return NULL;
    leaf = __atomic_load_n(&map->leaf[page >> GS_MAP_LEAF_BITS], __ATOMIC_ACQUIRE);
    if (!leaf)
        return NULL;
    return __atomic_load_n(&leaf->entry[page & (((uint64_t)1 << GS_MAP_LEAF_BITS) - 1)],
                           __ATOMIC_ACQUIRE);
}

/*
 * Enters a span, which must not overlap one in the map; it stays the caller's.
 * GS_NO_HOST_MEMORY: nothing was entered. GS_INVALID: the address is beyond the map.
 */
gs_status gs_map_insert(struct gs_map *map, struct gs_span *span);
void gs_map_remove(struct gs_map *map, struct gs_span *span);

/* The first page of [address, address + size) that a span covers any part of, or GS_MAP_NONE.
 * Lock-free. */
#define GS_MAP_NONE UINT64_MAX
uint64_t gs_map_next(const struct gs_map *map, uint64_t address, size_t size);

/* Whether a span lies in any part of [address, address + size). Lock-free. */
bool gs_map_overlaps(const struct gs_map *map, uint64_t address, size_t size);

/* An address in the next span behind the one at an address (GS_MAP_NONE: the first), or
 * GS_MAP_NONE. Lock-free: those that are in the map all the while are met. */
uint64_t gs_map_after(const struct gs_map *map, uint64_t address);

#endif
