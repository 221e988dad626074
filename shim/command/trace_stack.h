/*
 * Frames of a trace in words: lines of scripts and labels as they were told; of a return address
 * the file that was mapped there, the place in it, and the function, where that file is here and
 * has symbols.
 */
#ifndef GS_SHIM_COMMAND_TRACE_STACK_H
#define GS_SHIM_COMMAND_TRACE_STACK_H

#include <stdint.h>

#include "shim/command/trace_read.h"

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

/*
 * The functions of an ELF file, by the place of their code in it. The file is whatever lies there:
 * nothing that it says of itself is believed, and it may be cut or written over meanwhile.
 */

struct functions;

/* NULL: the file cannot be read, or is no ELF file. */
struct functions *functions_make(const char *path);
void functions_free(struct functions *functions); /* or NULL */
/* The symbol of the function whose code is at this place, which stays the functions'; NULL: none is
 * known to be. */
const char *functions_find(const struct functions *functions, uint64_t place);

#endif
