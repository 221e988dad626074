/*
 * Reads the file in which a process recorded what became of its GPU memory
 * (core/record/trace_format.h), whoever wrote it: nothing in it is believed before it was checked.
 */
#ifndef GS_SHIM_COMMAND_TRACE_READ_H
#define GS_SHIM_COMMAND_TRACE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/record/trace_format.h"

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
    struct gs_trace_device devices[256]; /* those with a name or bytes are told by the file */
    bool has_device[256];                /* told, or in an event */
    char *modules;                       /* lines of /proc/PID/maps; "" */
    struct trace_name {
        const char *function, *file; /* ended by control characters, in `bytes`; NULL: none was told */
        unsigned line;               /* 0: a label */
    } *names; /* GS_TRACE_NAMES_MOST by their numbers; NULL: the file has none */
    uint64_t duration_ns;                /* until the last event's end */
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

const char *trace_call_name(const struct trace_event *event);    /* "cuMemAlloc" */
const char *trace_outcome_name(const struct trace_event *event); /* "cached" */

#endif
