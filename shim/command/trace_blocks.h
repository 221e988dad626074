/*
 * What a trace says of memory over time: each block from its allocation to its free, each piece
 * from when it came from the driver until it went back, the most there ever was, and who held it
 * then.
 */
#ifndef GS_SHIM_COMMAND_TRACE_BLOCKS_H
#define GS_SHIM_COMMAND_TRACE_BLOCKS_H

#include "shim/command/trace_read.h"

#define TRACE_NEVER SIZE_MAX /* no event: it was still there at the end */

struct trace_block {
    size_t from, to; /* events: allocated, freed; made, given back */
    uint64_t address, size;
    uint64_t stack; /* equal for equal call stacks; 0: none was recorded */
    uint32_t piece; /* that it lies in, its place and one; 0: in none, as the driver's own memory */
    uint8_t device;
};

struct trace_device_sums {
    uint64_t allocations, frees, refused, bytes; /* of all allocations together */
    uint64_t live_peak, reserved_peak, cached_peak, retired_peak, limbo_peak;
    uint64_t live_end; /* never freed */
    uint64_t never_freed;
    size_t live_peak_at; /* the event from which on it was; TRACE_NEVER: there was none */
};

struct trace_sums {
    uint64_t allocations, frees, refused, failed_frees;
    uint64_t unknown_frees; /* of blocks whose allocation is not in the file */
    uint64_t replaced; /* blocks at whose address another was allocated: gone with their context */
    uint64_t exported, opened;
    uint64_t in_calls_ns; /* allocations and frees */
};

struct trace_memory {
    struct trace_block *blocks, *pieces; /* in the order of `from` */
    size_t block_count, piece_count;
    /* Of each event: which of them begins there and which ends, each its place and one; 0: none.
     * They are pieces where the event is of a piece. */
    uint32_t *begins, *ends;
    struct trace_device_sums devices[256];
    struct trace_sums sums;
};

void trace_follow(const struct trace *trace, struct trace_memory *ret_memory);
void trace_memory_free(struct trace_memory *memory);

/* Blocks that hold memory of a device at a moment, together by who allocated them: by call stack,
 * or by size where none was recorded. */
struct trace_holder {
    uint64_t key, bytes, count; /* the key: its stack, or its size with the highest bit changed */
    size_t first, last; /* of its blocks, by their places in `blocks` */
};

/* From the largest on; freed by free(). */
struct trace_holder *trace_holders(const struct trace_memory *memory, unsigned device, size_t event,
                                   size_t *ret_count);

/* The piece that a block lies in for as long as it is there; NULL: none. */
const struct trace_block *trace_piece_of(const struct trace_memory *memory,
                                         const struct trace_block *block);

/* *most is no less from now on. */
void trace_raise(uint64_t *most, uint64_t now);

/* Whether it is there from this event on. */
bool trace_is_there(const struct trace_block *block, size_t event);

#endif
