/*
 * The file in which a process records what becomes of its GPU memory (gpushim run --record), and
 * which gpushim report reads. Numbers are in the machine's order of bytes.
 *
 *   struct gs_trace_header, once
 *   blocks: struct gs_trace_block, then what its kind says; in the order in which they were written
 *
 * Each thread fills blocks of its own, so the events of one block are in order, and those of all
 * have to be merged by their time. A file may end within a block: its process was killed, or the
 * disk is full. What is before that block holds.
 */
#ifndef GS_CORE_BASE_TRACE_FORMAT_H
#define GS_CORE_BASE_TRACE_FORMAT_H

#include <stdint.h>

#define GS_TRACE_MAGIC       "GSTRACE"
#define GS_TRACE_VERSION     1
#define GS_TRACE_BLOCK_MAGIC 0x4b4c4247u /* "GBLK" */

struct gs_trace_header {
    char magic[8]; /* with its 0 */
    uint32_t version;
    uint32_t header_size;  /* of this struct: the first block is there */
    uint64_t realtime_ns;  /* of the begin, since 1970 */
    uint64_t monotonic_ns; /* the same moment by CLOCK_MONOTONIC */
    int32_t pid;
    uint32_t has_stacks; /* whether they were asked for */
    char program[64];
};

enum gs_trace_kind {
    GS_TRACE_EVENTS = 1, /* struct gs_trace_event, each with its frames */
    GS_TRACE_MODULES,    /* text, the lines of /proc/self/maps that can be executed: for stacks */
    GS_TRACE_DEVICES,    /* struct gs_trace_device, one each */
    GS_TRACE_END,        /* the process has ended by itself: nothing is missing */
    GS_TRACE_NAMES,      /* text, what frames that are no addresses stand for */
};

/*
 * A frame that is no return address: with this bit it is the number of a name, a line of text in
 * some block, before or after the event:
 *
 *     NUMBER LINE FUNCTION <tab> FILE     a line of a script
 *     NUMBER 0 LABEL <tab>                what the program called what it does (gpushim_tag)
 *
 * Frames with names come first: the label, lines from the innermost outwards, return addresses.
 * Number 0 is none of those that had room.
 */
#define GS_TRACE_NAMED      (UINT64_C(1) << 63)
#define GS_TRACE_NAMES_MOST UINT32_C(65536)

struct gs_trace_block {
    uint32_t magic;
    uint32_t size; /* of the block with this struct */
    uint32_t kind;
    uint32_t thread;    /* the kernel's number of it */
    uint64_t waited_ns; /* how long the program's thread waited for the file since its last block */
};

struct gs_trace_device {
    uint32_t device, reserved;
    uint64_t bytes; /* of its memory */
    uint8_t uuid[16];
    char name[64];
};

enum gs_trace_op {
    GS_TRACE_ALLOC = 1, /* cuMemAlloc and its kin */
    GS_TRACE_FREE,
    GS_TRACE_ALLOC_ASYNC, /* in the order of a stream */
    GS_TRACE_FREE_ASYNC,
    GS_TRACE_PIECE_MADE, /* memory came from the driver: address, size */
    GS_TRACE_PIECE_GONE, /* and went back */
    GS_TRACE_EXPORTED,   /* a block got an IPC handle */
    GS_TRACE_OPENED,     /* another process's block was opened here */
    GS_TRACE_CLOSED,
    GS_TRACE_FIGURES, /* how much a device has of what, at that moment */
};

/* Where the memory of an allocation came from. */
enum gs_trace_outcome {
    GS_TRACE_NONE,    /* of what is no allocation */
    GS_TRACE_CACHED,  /* free memory, found at once */
    GS_TRACE_FURTHER, /* free memory, after looking further */
    GS_TRACE_NEW,     /* a piece was made for it */
    GS_TRACE_WAITED,  /* after waiting for the GPU */
    GS_TRACE_DRIVER,  /* the driver's own: the library does not serve it */
    GS_TRACE_REFUSED, /* the program got an error: result */
};

/* Who follows an address puts the ends of what makes memory (time_ns + took_ns) in order with the
 * begins of what takes it away: another thread's call may have begun before what made room for
 * it. */
struct gs_trace_event {
    uint64_t time_ns; /* since the header's moment, when the call began */
    uint8_t op, device, outcome;
    uint8_t frames;   /* that follow, 8 bytes each, the innermost first */
    uint32_t took_ns; /* the call; at most 4.29 s are told */
    union {
        struct {
            uint64_t address, size;
            uint64_t stream; /* its handle, 0 for the default stream */
            int32_t result;  /* a CUresult */
            uint32_t reserved;
        } call;
        struct {
            uint64_t live, cached, retired, limbo; /* bytes, as gpushim stats has them */
        } figures;
    };
};

_Static_assert(sizeof(struct gs_trace_event) == 48 && sizeof(struct gs_trace_block) == 24 &&
                   sizeof(struct gs_trace_header) == 104 && sizeof(struct gs_trace_device) == 96,
               "what is written by one process is read by another");

#endif
