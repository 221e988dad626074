/*
 * An index of free ranges by size: two-level segregated fit. Insert, remove and "is there one that
 * fits" are O(1); a look-up compares a bounded number of candidates to waste little.
 */
#ifndef GS_CORE_BASE_BINS_H
#define GS_CORE_BASE_BINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GS_BIN_LEVELS 40
#define GS_BIN_SLOTS  16

/* Embedded in what is indexed. `size` is bytes and must not change while it is in a bin. */
struct gs_bin_entry {
    struct gs_bin_entry *prev, *next;
    size_t size;
};

struct gs_bins {
    unsigned shift;  /* log2 of the unit that all sizes are multiples of */
    uint64_t levels; /* bit l: slots[l] is not empty */
    uint16_t slots[GS_BIN_LEVELS];
    struct gs_bin_entry *head[GS_BIN_LEVELS][GS_BIN_SLOTS];
};

void gs_bins_init(struct gs_bins *bins, unsigned shift);
void gs_bins_insert(struct gs_bins *bins, struct gs_bin_entry *entry);
void gs_bins_remove(struct gs_bins *bins, struct gs_bin_entry *entry);

/* An entry of at least `size` and at most `limit` bytes, the tightest of those compared, still in
 * its bin; NULL if none was found. */
struct gs_bin_entry *gs_bins_find(const struct gs_bins *bins, size_t size, size_t limit);

/* Any one entry (the largest size class first), or NULL. */
struct gs_bin_entry *gs_bins_largest(const struct gs_bins *bins);

#endif
