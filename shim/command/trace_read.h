/*
 * Reads the file in which a process recorded what became of its GPU memory
 * (core/record/trace_format.h), whoever wrote it: nothing in it is believed before it was checked
 * (trace_read.c). What it says of memory has trace_blocks.c, of who called trace_stack.c.
 */
#ifndef GS_SHIM_COMMAND_TRACE_READ_H
#define GS_SHIM_COMMAND_TRACE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/record/trace_format.h"

#define TRACE_DEVICES 256 /* an event has a byte for its own */

struct trace_event {
    uint64_t at_ns;   /* when it took effect: an allocation has its block at its end, a free gives
                         it away at its begin */
    uint64_t time_ns; /* when the call began */
    uint64_t address, size, stream; /* of all but figures */
    struct {
        uint64_t live, cached, retired, limbo;
    } figures;                   /* GS_TRACE_FIGURES alone */
    const unsigned char *frames; /* frame_count addresses of 8 bytes, at no alignment */
    uint32_t took_ns, thread;
    int32_t result; /* a CUresult */
    uint8_t op, device, outcome, frame_count;
};

struct trace {
    struct gs_trace_header header;
    struct trace_event *events; /* of all threads, by at_ns */
    size_t count;
    struct gs_trace_device
        devices[TRACE_DEVICES];     /* those with a name or bytes are told by the file */
    bool has_device[TRACE_DEVICES]; /* told, or in an event */
    char *modules;                  /* lines of /proc/PID/maps; "" */
    struct trace_name {
        const char *function,
            *file;        /* ended by control characters, in `bytes`; NULL: none was told */
        unsigned line;    /* 0: a label */
    } *names;             /* GS_TRACE_NAMES_MOST by their numbers; NULL: the file has none */
    uint64_t duration_ns; /* until the last event's end */
    uint64_t waited_ns;
    unsigned threads; /* that wrote events */
    bool ended;       /* the process said its end */
    bool cut;         /* the file ends within a block */
    bool is_private;  /* not all may read the file */
    void *bytes;      /* what `frames` points into */
};

/* False, and said: it cannot be read, is none, or is damaged. A file that ends within a block is
 * read up to there. */
bool trace_read(const char *path, struct trace *ret_trace);
void trace_free(struct trace *trace);
/* For tdestroy: a tree's own nodes go, and what they are of stays. */
void trace_keep(void *what);

uint64_t trace_frame(const struct trace_event *event, unsigned n);

/* An allocation, in whatever order; and whether it got its memory. */
bool trace_is_alloc(const struct trace_event *event);
bool trace_is_free(const struct trace_event *event);
bool trace_did(const struct trace_event *event);

const char *trace_call_name(const struct trace_event *event);    /* "cuMemAlloc", of a call */
const char *trace_outcome_name(const struct trace_event *event); /* "cached" */

/* ---- What it says of memory over time: blocks, pieces, the most there was, and who held it ---- */

#define TRACE_NEVER SIZE_MAX /* no event: it was still there at the end */

struct trace_block {
    size_t from, to; /* events: allocated, freed; made, given back */
    uint64_t address, size;
    uint64_t stack;    /* equal for equal call stacks; 0: none was recorded */
    bool is_in_pieces; /* all of it; the driver's own memory is in none */
    uint8_t device;
};

struct trace_device_sums {
    uint64_t allocations, frees, refused, bytes; /* of all allocations together */
    uint64_t live_peak, live_peak_ns, reserved_peak, cached_peak, retired_peak, limbo_peak;
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
    const struct trace *trace;
    struct trace_block *blocks, *pieces; /* in the order of `from` */
    size_t block_count, piece_count;
    /* Of each event: which of them begins there and which ends, each its place and one; 0: none.
     * They are pieces where the event is of a piece. */
    uint32_t *begins, *ends;
    struct trace_device_sums devices[TRACE_DEVICES];
    struct trace_sums sums;
};

void trace_follow(const struct trace *trace, struct trace_memory *ret_memory);
void trace_memory_free(struct trace_memory *memory);

/* Blocks that hold memory of a device at a moment, together by who allocated them: by call stack,
 * or by size where none was recorded. */
struct trace_holder {
    uint64_t key, bytes, count; /* the key: its stack, or its size with the highest bit changed */
    const struct trace_event *first, *last; /* of its allocations */
};

/* From the largest on; freed by free(). */
struct trace_holder *trace_holders(const struct trace_memory *memory, unsigned device, size_t event,
                                   size_t *ret_count);

/* ---- Frames in words: of a script as it was told, else file, place and, with symbols, function - */

#define TRACE_FRAME_SIZE 512

struct trace_modules;

/* Of the trace, which has to stay. */
struct trace_modules *trace_modules_make(const struct trace *trace);
void trace_modules_free(struct trace_modules *modules);

struct trace_place {
    char function[TRACE_FRAME_SIZE]; /* "" where it is not known */
    char file
        [TRACE_FRAME_SIZE];  /* its last part, of a script all; "" where nothing was mapped there */
    uint64_t offset;         /* in the file; else the address */
    unsigned line;           /* of a script */
    bool is_named, is_label; /* a line of a script, or a label, which has no file */
};

void trace_place(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place);
/* "function (file+0x12)", "file+0x12" or "0x12"; "function (file:12)" of a script, "label tag", or
 * "?" for one of these that was not told. */
void trace_frame_text(struct trace_modules *modules, uint64_t address,
                      char ret_text[TRACE_FRAME_SIZE]);

/* The functions of an ELF file, by the place of their code in it. The file is whatever lies there, and
 * may be cut or written over meanwhile. */

struct functions;

/* Without any where the file cannot be read, or is no ELF file. */
struct functions *functions_make(const char *path);
void functions_free(void *functions);
/* The symbol of the function whose code is at this place, which stays the functions'; NULL: none is
 * known to be. */
const char *functions_find(const struct functions *functions, uint64_t place);

#endif
