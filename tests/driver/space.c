/*
 * The devices' part of the address space: one range that nothing else is ever in. So an address
 * that was freed is never memory of the program's own, and is known for what it was: a call that is
 * given it refuses it, as the real one does, and nobody's memory is written.
 */
#include "internal.h"

#define MOST  ((size_t)16 << 40)
#define LEAST ((size_t)64 << 30)

static uint64_t first, end;    /* protected by sd_lock, as all here; `end` 0: not made yet */
static struct sd_ranges taken; /* of it */
static uint64_t from;          /* nothing is free below */

static const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/* Some machines, and tools such as TSan, have less than others. */
static void make(void)
{
    void *p = MAP_FAILED;

    end = 1;
    for (size_t size = MOST; size >= LEAST && p == MAP_FAILED; size /= 2) {
        p = mmap(NULL, size, PROT_NONE, flags, -1, 0);
        if (p == MAP_FAILED)
            continue;
        first = from = sd_round_up((uint64_t)p, SD_GRANULE);
        end = (uint64_t)p + size;
    }
}

bool sd_space_is_devices(uint64_t address)
{
    return address >= first && address < end;
}

static bool take(uint64_t base, size_t size)
{
    size_t next = sd_ranges_after(&taken, base);

    if (base < first || size > end - base ||
        (next < taken.count && taken.at[next].base < base + size))
        return false;
    return sd_ranges_add(&taken, base, size, &taken);
}

/* The lowest place; 0: there is none. */
static uint64_t find(size_t size, size_t align)
{
    size_t i = sd_ranges_after(&taken, from);
    uint64_t at;

    for (; i < taken.count && taken.at[i].base <= from; i++)
        from = taken.at[i].base + taken.at[i].size;
    at = sd_round_up(from, align);
    for (; i < taken.count && at < end && taken.at[i].base < at + size; i++)
        at = sd_round_up(taken.at[i].base + taken.at[i].size, align);
    return at >= first && at < end && size <= end - at ? at : 0;
}

/* Where the devices' part is used up, or was not to be had. */
static uint64_t elsewhere(size_t size, size_t align)
{
    void *p = size + align > size ? mmap(NULL, size + align, PROT_NONE, flags, -1, 0) : MAP_FAILED;
    uint64_t base, start = (uint64_t)p;

    if (p == MAP_FAILED)
        return 0;
    base = sd_round_up(start, align);
    if (base > start)
        munmap(p, base - start);
    munmap((void *)(base + size), start + align - base);
    return base;
}

static bool at_wish(uint64_t at, size_t size)
{
    void *p;

    if (sd_space_is_devices(at))
        return take(at, size);
    p = mmap((void *)at, size, PROT_NONE, flags | MAP_FIXED_NOREPLACE, -1, 0);
    if (p != (void *)at && p != MAP_FAILED)
        munmap(p, size);
    return p == (void *)at;
}

uint64_t sd_address_reserve(size_t size, size_t align, uint64_t at)
{
    uint64_t base;

    if (!end)
        make();
    if (at && at % align == 0 && at_wish(at, size))
        return at;
    base = find(size, align);
    return base && take(base, size) ? base : elsewhere(size, align);
}

/* Nothing is mapped there any more. */
void sd_address_release(uint64_t base, size_t size)
{
    if (!sd_space_is_devices(base)) {
        munmap((void *)base, size);
        return;
    }
    sd_ranges_remove(&taken, base);
    if (base < from)
        from = base;
}
