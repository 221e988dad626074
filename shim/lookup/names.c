/*
 * Which names are ours, and the real look-ups. Without instrumentation and libc calls, as resolve.c.
 */
#include "names.h"
#include "elf_symbols.h"
#include "shim/entry_points.h"

#include <stdint.h>

enum {
#define GS_ENTRY(symbol, class, since) ROW_##symbol,
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
    ROWS
};

static const char *const names[ROWS] = {
#define GS_ENTRY(symbol, class, since) #symbol,
    GS_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

/* Names by hash, open addressing: row + 1, 0 for an empty slot. Filled by whoever comes first;
 * threads that come together write the same values. */
#define SLOTS 1024 /* as many as name_hash tells apart */
_Static_assert(ROWS <= SLOTS / 2, "the name table is too full: double SLOTS");
static _Atomic uint16_t slots[SLOTS];
static atomic_bool slots_filled;

static uint32_t name_hash(const char *name)
{
    uint32_t h = 0;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x01000193;
    return h >> 22;
}

static bool same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

static void slots_fill(void)
{
    volatile uint16_t filled[SLOTS]; /* volatile: clearing it calls no memset */

    for (unsigned slot = 0; slot < SLOTS; slot++)
        filled[slot] = 0;
    for (unsigned row = 0; row < ROWS; row++) {
        uint32_t slot = name_hash(names[row]);
        while (filled[slot])
            slot = (slot + 1) % SLOTS;
        filled[slot] = (uint16_t)(row + 1);
    }
    for (unsigned slot = 0; slot < SLOTS; slot++)
        atomic_store_explicit(&slots[slot], filled[slot], memory_order_relaxed);
    atomic_store_explicit(&slots_filled, true, memory_order_release);
}

int gs_name_row(const char *name)
{
    if (!gs_name_may_be_ours(name))
        return -1;
    if (!atomic_load_explicit(&slots_filled, memory_order_acquire))
        slots_fill();
    for (uint32_t slot = name_hash(name);; slot = (slot + 1) % SLOTS) {
        int row = atomic_load_explicit(&slots[slot], memory_order_relaxed) - 1;
        if (row < 0 || same(names[row], name))
            return row;
    }
}

void *gs_next(_Atomic(void *) *cache, const char *name)
{
    void *found = atomic_load_explicit(cache, memory_order_relaxed);
    if (__builtin_expect(!found, 0)) {
        found = gs_elf_next(name);
        atomic_store_explicit(cache, found, memory_order_relaxed);
    }
    return found;
}

_Atomic(void *) gs_next_dlsym_found, gs_next_dlvsym_found;

gs_dlsym_fn *gs_next_dlsym(void)
{
    return (gs_dlsym_fn *)gs_next(&gs_next_dlsym_found, "dlsym");
}

gs_dlvsym_fn *gs_next_dlvsym(void)
{
    return (gs_dlvsym_fn *)gs_next(&gs_next_dlvsym_found, "dlvsym");
}
