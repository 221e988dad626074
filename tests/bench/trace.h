/*
 * Traces of allocations: every allocation and free of a program, one line each,
 *
 *     op bytes address
 *
 * with op a (allocation) or f (free; bytes is 0), address in hexadecimal, in the order they
 * happened. Files whose name ends in .xz are unpacked while they are read.
 */
#ifndef TRACE_H
#define TRACE_H

#include "tests/system.h"

struct trace_op {
    uint64_t size;
    uint32_t slot; /* names the block; used again once it is free */
    bool alloc;
};

struct trace {
    struct trace_op *ops;
    size_t count;
    uint32_t slots;
    uint64_t live_peak; /* bytes as asked for */
    /* As a driver counts that gives blocks of 1 MiB and more whole pieces of 2 MiB, and packs the
     * smaller ones at 512 bytes: less than this no device can hold the program in. */
    uint64_t live_peak_rounded;
    uint64_t live_end; /* what it never frees */
};

/* Reads and checks it; ends the program, naming file and line, where it is no trace. */
void trace_read(struct trace *trace, const char *path);

void trace_free(struct trace *trace);

#endif
