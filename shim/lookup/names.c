/*
 * Which names are ours, and the real look-ups. Without instrumentation and libc calls, as
 * resolve.c.
 */
#include "names.h"
#include "elf_symbols.h"
#include "shim/lookup/known_names.h"

#include <stdint.h>

const char *const gs_row_names[GS_ROWS] = {
#define GS_ENTRY(symbol, ...) [GS_ROW_##symbol] = #symbol,
    GS_ENTRIES(GS_ENTRY) GS_LIBRARY_ENTRIES(GS_ENTRY)
#undef GS_ENTRY
};

/* Those that need no row, in one text, each with a space behind it. */
static const char known[] = GS_KNOWN_NAMES;

/* Names by hash, open addressing: row + 1, or where a known name begins in that text, GS_ROWS + 1
 * further on; 0 for an empty slot. Filled by whoever comes first; threads that come together write
 * the same values. */
#define SLOTS 2048 /* as many as name_hash tells apart */
_Static_assert(GS_ROWS + sizeof known / 20 <= SLOTS / 2,
               "the name table is too full: double SLOTS");
_Static_assert(GS_ROWS + sizeof known <= UINT16_MAX, "a place in the text and a row are a slot");
static _Atomic uint16_t slots[SLOTS];
static atomic_bool slots_filled;

/* A name ends with its text, or in `known` with a space. */
static bool is_end(char c)
{
    return !c || c == ' ';
}

static uint32_t name_hash(const char *name)
{
    uint32_t h = 0;
    for (; !is_end(*name); name++)
        h = (h ^ (unsigned char)*name) * 0x01000193;
    return h >> 21;
}

static bool same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return !*a && is_end(*b);
}

static void put(volatile uint16_t *filled, const char *name, size_t value)
{
    uint32_t slot = name_hash(name);

    while (filled[slot])
        slot = (slot + 1) % SLOTS;
    filled[slot] = (uint16_t)value;
}

static void slots_fill(void)
{
    volatile uint16_t filled[SLOTS]; /* volatile: clearing it calls no memset */

    for (unsigned slot = 0; slot < SLOTS; slot++)
        filled[slot] = 0;
    for (unsigned row = 0; row < GS_ROWS; row++)
        put(filled, gs_row_names[row], row + 1);
    for (size_t at = 0; known[at]; at++)
        if (at == 0 || known[at - 1] == ' ')
            put(filled, known + at, GS_ROWS + 1 + at);
    for (unsigned slot = 0; slot < SLOTS; slot++)
        atomic_store_explicit(&slots[slot], filled[slot], memory_order_relaxed);
    atomic_store_explicit(&slots_filled, true, memory_order_release);
}

int gs_name_row(const char *name)
{
    if (!gs_name_may_be_ours(name))
        return GS_NAME_UNKNOWN;
    if (!atomic_load_explicit(&slots_filled, memory_order_acquire))
        slots_fill();
    for (uint32_t slot = name_hash(name);; slot = (slot + 1) % SLOTS) {
        int value = atomic_load_explicit(&slots[slot], memory_order_relaxed);
        if (!value)
            return GS_NAME_UNKNOWN;
        if (same(name, value <= GS_ROWS ? gs_row_names[value - 1] : known + value - GS_ROWS - 1))
            return value <= GS_ROWS ? value - 1 : GS_NAME_KNOWN;
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
