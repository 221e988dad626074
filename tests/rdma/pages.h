/*
 * What the stand-ins take for pinned pages: files and offsets behind an address range, as the
 * software CUDA driver's memory is files, one for each of its allocations.
 */
#ifndef TESTS_RDMA_PAGES_H
#define TESTS_RDMA_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct pages {
    unsigned long long device, inode, offset; /* of the first one */
    unsigned long long sum;                   /* of all of them */
    unsigned long long allocations;           /* of the GPU, that they are of */
};

/* The pages behind a range; false: it is not mapped, or may not be read. */
static inline bool pages_behind(uint64_t base, size_t size, struct pages *ret)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long long last = 0, next = 0;
    uint64_t at = base;
    char line[512];

    while (maps && at < base + size && fgets(line, sizeof line, maps)) {
        unsigned long long low, high, offset, inode;
        unsigned major, minor;
        char mode[5];

        if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu", &low, &high, mode, &offset, &major,
                   &minor, &inode) != 7 ||
            high <= at)
            continue;
        if (low > at || mode[0] != 'r')
            break;
        offset += at - low;
        if (at == base)
            *ret = (struct pages){(unsigned long long)major << 32 | minor, inode, offset, 0, 0};
        if (at == base || inode != last || offset != next) { /* else the file just goes on */
            ret->sum = ret->sum * 31 + inode + offset;
            ret->allocations += strstr(line, "softcuda-") != NULL;
        }
        last = inode;
        next = offset + (high - at);
        at = high;
    }
    if (maps)
        fclose(maps);
    return at >= base + size;
}

/* What nvidia_p2p_get_pages takes: of the GPU's memory no more than one allocation. */
static inline bool one_allocation(const struct pages *pages)
{
    return pages->allocations <= 1;
}

#endif
