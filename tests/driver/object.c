/*
 * Handles. Every object a program gets a handle of lives in a slot of one address range that
 * nothing else is ever in, so a handle is checked by its address and the slot's magic word:
 * a stale or junk one is an error, never an access to somebody else's memory. A freed slot waits
 * behind all the others before it is used again, so stale handles stay stale for long.
 */
#include "internal.h"

#define SLOT_BYTES  ((size_t)512)
#define SLOTS       ((size_t)1 << 16)
#define ARENA_BYTES (SLOT_BYTES * SLOTS)
#define MAGIC       0x50DAC0DEu

struct free_slot {
    struct sd_object object;
    struct free_slot *next;
};

/* A plain array and no mapping: leak checkers look for pointers in it. Untouched, it costs nothing.
 */
static char arena[ARENA_BYTES] __attribute__((aligned(512)));
static size_t fresh; /* slots from here on were never used */
static struct free_slot *free_first, *free_last;
static size_t free_count;
static uint64_t last_id;
static unsigned live[SD_KINDS];

uint64_t sd_next_id(void)
{
    return ++last_id;
}

static void *slot_take(void)
{
    /* Old slots are reused late, when a good number of them waits. */
    if (free_count > 4096 || (fresh == SLOTS && free_count)) {
        struct free_slot *slot = free_first;
        free_first = slot->next;
        if (!free_first)
            free_last = NULL;
        free_count--;
        return slot;
    }
    return fresh < SLOTS ? arena + SLOT_BYTES * fresh++ : NULL;
}

void *sd_object_new(enum sd_kind kind, size_t size)
{
    struct sd_object *object = size <= SLOT_BYTES ? slot_take() : NULL;

    if (!object)
        return NULL;
    memset(object, 0, size);
    object->magic = MAGIC;
    object->kind = kind;
    object->id = sd_next_id();
    live[kind]++;
    return object;
}

void sd_object_free(void *object)
{
    struct free_slot *slot = object;

    live[slot->object.kind]--;
    slot->object.magic = 0;
    slot->next = NULL;
    if (free_last)
        free_last->next = slot;
    else
        free_first = slot;
    free_last = slot;
    free_count++;
}

void *sd_object_check(const void *handle, enum sd_kind kind)
{
    size_t offset = (uintptr_t)handle - (uintptr_t)arena;
    struct sd_object *object = (struct sd_object *)(uintptr_t)handle;

    if (offset >= fresh * SLOT_BYTES || offset % SLOT_BYTES)
        return NULL;
    return object->magic == MAGIC && object->kind == kind ? object : NULL;
}

unsigned sd_object_count(enum sd_kind kind)
{
    return live[kind];
}

size_t sd_ranges_after(const struct sd_ranges *ranges, uint64_t address)
{
    size_t low = 0, high = ranges->count;

    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct sd_range *range = &ranges->at[middle];
        if (range->base + range->size <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void *sd_ranges_find(const struct sd_ranges *ranges, uint64_t address)
{
    size_t i = sd_ranges_after(ranges, address);

    return i < ranges->count && ranges->at[i].base <= address ? ranges->at[i].value : NULL;
}

bool sd_ranges_add(struct sd_ranges *ranges, uint64_t base, uint64_t size, void *value)
{
    size_t i = sd_ranges_after(ranges, base);

    if (ranges->count == ranges->room) {
        size_t room = ranges->room ? ranges->room * 2 : 64;
        struct sd_range *at = realloc(ranges->at, room * sizeof *at);
        if (!at)
            return false;
        ranges->at = at;
        ranges->room = room;
    }
    memmove(&ranges->at[i + 1], &ranges->at[i], (ranges->count - i) * sizeof *ranges->at);
    ranges->at[i] = (struct sd_range){base, size, value};
    ranges->count++;
    return true;
}

void sd_ranges_remove(struct sd_ranges *ranges, uint64_t base)
{
    size_t i = sd_ranges_after(ranges, base);

    if (i == ranges->count || ranges->at[i].base != base)
        return;
    ranges->count--;
    memmove(&ranges->at[i], &ranges->at[i + 1], (ranges->count - i) * sizeof *ranges->at);
}
