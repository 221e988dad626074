/*
 * What the stand-ins take for pinned pages: file and offset behind an address range, as the
 * software CUDA driver's memory is files.
 */
#ifndef TESTS_RDMA_PAGES_H
#define TESTS_RDMA_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct pages {
    unsigned long long device, inode, offset;
};

/* The pages behind a range; false: it is not mapped, or may not be read. */
static inline bool pages_behind(uint64_t base, size_t size, struct pages *ret)
{
    FILE *maps = fopen("/proc/self/maps", "r");
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
        if (at == base)
            *ret = (struct pages){(unsigned long long)major << 32 | minor, inode,
                                  offset + (base - low)};
        at = high;
    }
    if (maps)
        fclose(maps);
    return at >= base + size;
}

#endif
