/*
 * gpushim replay: replay.c starts the runs and compares them, replay_play.c is one run: a process
 * that makes a trace's calls again, with the library or without.
 */
#ifndef GS_SHIM_COMMAND_REPLAY_H
#define GS_SHIM_COMMAND_REPLAY_H

#include "shim/command/trace_blocks.h"

struct replay_times {
    uint64_t count, sum_ns, median_ns, p99_ns, most_ns;
};

/* What a run found, written as it is from one process of this program to another. */
struct replay_result {
    char wrong[256]; /* in words: it could not run; "": it did */
    bool has_library;
    struct replay_times allocations, frees;
    uint64_t refused, failed_frees;
    /* The most memory that the process had of the driver: the library's own figure, or what
     * cuMemGetInfo told whenever there was more live memory than before. */
    uint64_t reserved_peak;
};

/* Makes the calls in the trace's order, one after the other, and waits for nothing in between. */
void replay_play(const struct trace *trace, const struct trace_memory *memory,
                 struct replay_result *ret_result);

#endif
