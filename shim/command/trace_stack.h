/*
 * Frames of a trace in words: lines of scripts and labels as they were told; of a return address the file that
 * was mapped there, the place in it, and the function, where that file is here and has symbols.
 */
#ifndef GS_SHIM_COMMAND_TRACE_STACK_H
#define GS_SHIM_COMMAND_TRACE_STACK_H

#include "shim/command/trace_read.h"

#define TRACE_FRAME_SIZE 512

struct trace_modules;

/* Of the trace, which has to stay. */
struct trace_modules *trace_modules_make(const struct trace *trace);
void trace_modules_free(struct trace_modules *modules);

struct trace_place {
    char function[TRACE_FRAME_SIZE]; /* "" where it is not known */
    char file[TRACE_FRAME_SIZE];     /* its last part, of a script all; "" where nothing was mapped there */
    uint64_t offset;                 /* in the file; else the address */
    unsigned line;                   /* of a script */
    bool is_named;                   /* a line of a script, or a label, which has no file */
};

void trace_place(struct trace_modules *modules, uint64_t address, struct trace_place *ret_place);
/* "function (file+0x12)", "file+0x12" or "0x12"; "function (file:12)" of a script, "label tag". */
void trace_frame_text(struct trace_modules *modules, uint64_t address,
                      char ret_text[TRACE_FRAME_SIZE]);

#endif
