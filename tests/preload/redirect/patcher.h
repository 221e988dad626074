/*
 * What patcher.c puts between a program and the driver, and what it has seen there.
 */
#ifndef GPUSHIM_TESTS_PRELOAD_REDIRECT_PATCHER_H
#define GPUSHIM_TESTS_PRELOAD_REDIRECT_PATCHER_H

#include <stddef.h>

enum patcher_way {
    PATCHER_NEAR,    /* a jump of 5 bytes over the function, the original by moved instructions */
    PATCHER_FAR,     /* the same with the longest jump, 13 bytes */
    PATCHER_RESTORE, /* a jump, taken away for each call of the original */
    PATCHER_RELOC,   /* the slots by which loaded objects call the function */
};

/* NULL, or what could not be done. */
const char *patcher_install(enum patcher_way way);

/* Allocations and frees that came by, of memory and of memory in a stream's order; and address and
 * size of the last block that a free was of, as the driver said before it. */
struct patcher_seen {
    int allocs, frees, async_allocs, async_frees;
    unsigned long long address;
    size_t size;
};
struct patcher_seen patcher_seen(void);

#endif
