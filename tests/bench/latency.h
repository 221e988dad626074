/*
 * The latency benchmark in its parts:
 *
 *   latency.c        runs one mix, by one thread or several, and prints what it found
 *   latency_mix.c    the mixes: which blocks are allocated and freed in which order
 *   latency_count.c  how long calls took: histograms
 *   latency_trace.c  one more mix: the calls of a recorded program
 *
 * Each allocation and each free is timed by itself. A mix is made of a seed and is the same each
 * time, whatever allocator is underneath and however long its calls take.
 */
#ifndef LATENCY_H
#define LATENCY_H

#include "bench.h"
#include "trace.h"

enum latency_kind { LATENCY_ALLOC, LATENCY_FREE };
#define LATENCY_KINDS 2

/* ---- how long calls took (latency_count.c) ---- */

/* Up to 127 ns exactly, above to 1/64 of the time; the last one begins at half an hour. */
#define LATENCY_BUCKETS (36 * 64)

struct latency_counts {
    uint64_t calls, sum_ns, max_ns;
    uint64_t bucket[LATENCY_BUCKETS];
};

void latency_count(struct latency_counts *counts, uint64_t ns);
void latency_counts_add(struct latency_counts *sum, const struct latency_counts *counts);

/* The least time that so many percent of the calls took at most: the upper edge of its bucket. 0
 * where there are no calls. */
uint64_t latency_percentile(const struct latency_counts *counts, double percent);

/* An object of that name: calls, mean, percentiles, maximum, and the buckets that are not empty,
 * each with the time at which it begins. */
void latency_counts_print(const char *key, const struct latency_counts *counts);

/* ---- what a mix is made with (latency.c) ---- */

struct latency_actor; /* one thread of a mix */

struct latency_block {
    CUdeviceptr address; /* 0: not live */
    size_t size;
    CUstream stream;
};

struct latency_mix {
    const char *name;
    unsigned threads, streams; /* streams: of each thread */
    void (*play)(
        struct latency_actor *actor); /* calls latency_begin once, and ends when the run is done */
};
extern const struct latency_mix latency_mixes[]; /* name NULL ends it */

/* The trace in that file (trace.h), with a kernel of that length (0: none) beside each 16 calls,
 * and how many calls once through it are. For one run. */
const struct latency_mix *latency_trace(const char *path, uint64_t kernel_ns,
                                        const struct trace **ret_trace, uint64_t *ret_calls);

/* A number below `below`, the next of this thread's. */
uint64_t latency_random(struct latency_actor *actor, uint64_t below);
unsigned latency_threads(const struct latency_actor *actor);

/* What was allocated before is the mix's start and does not count. Waits for the other threads. */
void latency_begin(struct latency_actor *actor);
bool latency_is_done(const struct latency_actor *actor);

/* The stream of the next allocations and kernels. */
void latency_stream(struct latency_actor *actor, unsigned nth);

void latency_allocate(struct latency_actor *actor, struct latency_block *block, size_t size);
void latency_free(struct latency_actor *actor, struct latency_block *block);

/* A kernel of that length that writes to the block, in the order of its stream. As many as a
 * program gets ahead of its GPU are under way at most. */
void latency_kernel(struct latency_actor *actor, const struct latency_block *block, uint64_t ns);

/* Waits for all of this thread's kernels. */
void latency_finish(struct latency_actor *actor);
void latency_pause(uint64_t milliseconds);

/* The program's pause, where one was asked for: what is held at its end is told. */
void latency_idle(struct latency_actor *actor);

#endif
