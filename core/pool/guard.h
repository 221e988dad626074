/*
 * Who may have a block beyond its free, and memory beyond its last block: another process that
 * holds a lease of it, a device that has it registered. The arena knows neither of them. It asks
 * here, with its lock held; what answers waits for nobody, and takes locks of higher ranks alone.
 */
#ifndef GS_CORE_POOL_GUARD_H
#define GS_CORE_POOL_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gs_block;

struct gs_guard {
    const uint64_t *registered; /* atomic: how many registrations there are */
    /* The program has freed an exported block. */
    void (*freed)(void *arg, struct gs_block *block);
    /* Whether nobody has the block, nor may come for it. It is not exported any more then. Else
     * whoever looks after it says so when that has ended (gs_arena_unguard_locked). */
    bool (*may_go)(void *arg, struct gs_block *block);
    /* Whether a range in which no block lies may be unmapped: nothing will use it any more. */
    bool (*may_unmap)(void *arg, uint64_t base, size_t size);
    void *arg;
};

#endif
