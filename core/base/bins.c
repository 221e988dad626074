/* Two-level segregated fit (core/base/bins.h). */
#include "core/base/bins.h"

#include <string.h>

#define SLOT_BITS     4
#define COMPARED_MAX  16  /* candidates looked at in one bin */
#define DESPERATE_MAX 512 /* and in the first one when no other has any */

struct position {
    unsigned level, slot;
};

static struct position position_of(const struct gs_bins *bins, size_t size)
{
    uint64_t units = size >> bins->shift;
    unsigned log;

    if (units < GS_BIN_SLOTS)
        return (struct position){0, (unsigned)units};
    log = 63 - (unsigned)__builtin_clzll(units);
    return (struct position){log - SLOT_BITS + 1,
                             (unsigned)(units >> (log - SLOT_BITS)) & (GS_BIN_SLOTS - 1)};
}

void gs_bins_init(struct gs_bins *bins, unsigned shift)
{
    memset(bins, 0, sizeof *bins);
    bins->shift = shift;
}

void gs_bins_insert(struct gs_bins *bins, struct gs_bin_entry *entry)
{
    struct position at = position_of(bins, entry->size);
    struct gs_bin_entry **head = &bins->head[at.level][at.slot];

    entry->prev = NULL;
    entry->next = *head;
    if (*head)
        (*head)->prev = entry;
    *head = entry;
    bins->slots[at.level] |= (uint16_t)(1u << at.slot);
    bins->levels |= UINT64_C(1) << at.level;
}

void gs_bins_remove(struct gs_bins *bins, struct gs_bin_entry *entry)
{
    struct position at = position_of(bins, entry->size);

    if (entry->next)
        entry->next->prev = entry->prev;
    if (entry->prev) {
        entry->prev->next = entry->next;
        return;
    }
    bins->head[at.level][at.slot] = entry->next;
    if (entry->next)
        return;
    bins->slots[at.level] &= (uint16_t)~(1u << at.slot);
    if (!bins->slots[at.level])
        bins->levels &= ~(UINT64_C(1) << at.level);
}

static struct gs_bin_entry *tightest(struct gs_bin_entry *entry, size_t size, size_t limit,
                                     unsigned compared)
{
    struct gs_bin_entry *best = NULL;

    for (unsigned i = 0; entry && i < compared; i++, entry = entry->next)
        if (entry->size >= size && entry->size <= limit && (!best || entry->size < best->size))
            best = entry;
    return best;
}

/* The first bin that is not empty after `at`; false if there is none. */
static int next_bin(const struct gs_bins *bins, struct position *at)
{
    uint64_t levels;
    unsigned slots = 0;

    if (at->slot + 1 < GS_BIN_SLOTS)
        slots = bins->slots[at->level] & (~0u << (at->slot + 1));
    if (!slots) {
        levels = bins->levels & (~UINT64_C(1) << at->level);
        if (!levels)
            return 0;
        at->level = (unsigned)__builtin_ctzll(levels);
        slots = bins->slots[at->level];
    }
    at->slot = (unsigned)__builtin_ctz(slots);
    return 1;
}

struct gs_bin_entry *gs_bins_find(const struct gs_bins *bins, size_t size, size_t limit)
{
    struct position at;
    struct gs_bin_entry *first, *best;

    if (!bins->levels)
        return NULL;
    at = position_of(bins, size);
    first = bins->head[at.level][at.slot];
    best = tightest(first, size, limit, COMPARED_MAX);
    if (!best && next_bin(bins, &at)) /* there all are large enough */
        best = tightest(bins->head[at.level][at.slot], size, limit, COMPARED_MAX);
    return best ? best : tightest(first, size, limit, DESPERATE_MAX);
}

struct gs_bin_entry *gs_bins_largest(const struct gs_bins *bins)
{
    unsigned level;

    if (!bins->levels)
        return NULL;
    level = 63 - (unsigned)__builtin_clzll(bins->levels);
    return bins->head[level][31 - (unsigned)__builtin_clz(bins->slots[level])];
}
